//! The memory for reading custom resources, for any stored content.

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use spillway::api::{Agent, AgentPool, Breaker, Budget, ClusterBudget, Grant, Toolset, WorkItem, WorkQueue};
use spillway::cluster::tolerant::{MAX_SPEC_BYTES, MetadataOnly, Tolerant};

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Counting;

#[expect(unsafe_code, reason = "an allocator cannot be written without")]
// SAFETY: each call is passed to the system's allocator unchanged; counting does not affect it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How far an object of a schema is filled.
#[derive(Clone, Copy, PartialEq)]
enum Fill {
    /// Every field once, with empty lists, maps and strings.
    Least,
    /// Every field, with full lists and maps and empty strings: this takes the most memory for its length.
    Many,
    /// Every field, with the longest strings and one element in each list.
    Long,
    /// More than the schema allows, as an older schema may have allowed it.
    More,
}

/// A value of a schema. Patterns and rules are ignored, because nothing here checks them.
fn value(schema: &Value, fill: Fill) -> Value {
    let most = |key: &str, less: usize| match fill {
        Fill::Least => 0,
        Fill::Many => schema[key].as_u64().and_then(|most| usize::try_from(most).ok()).unwrap_or(less).min(400),
        Fill::Long => 1,
        Fill::More => 100,
    };
    if let Some(first) = schema["enum"].as_array().and_then(|values| values.first()) {
        return first.clone();
    }
    match schema["type"].as_str() {
        Some("object") if schema["additionalProperties"].is_object() => {
            let inner = &schema["additionalProperties"];
            (0..most("maxProperties", 16)).map(|at| (format!("k{at}"), value(inner, fill))).collect::<Map<_, _>>().into()
        }
        Some("object") => {
            let fields = schema["properties"].as_object();
            fields.into_iter().flatten().map(|(name, field)| (name.clone(), value(field, fill))).collect::<Map<_, _>>().into()
        }
        // Full lists in full lists would exceed the size of an object.
        Some("array") => {
            let inner = value(&schema["items"], if fill == Fill::More { Fill::Least } else { fill });
            std::iter::repeat_n(inner, most("maxItems", 16)).collect()
        }
        Some("string") if schema["format"] == "date-time" => json!("2026-01-01T00:00:00.000000Z"),
        Some("string") | None => {
            let length = schema["maxLength"].as_u64().and_then(|most| usize::try_from(most).ok()).unwrap_or(64);
            json!(if fill == Fill::Long { "x".repeat(length) } else { String::new() })
        }
        Some("integer") => json!(1),
        Some("boolean") => json!(true),
        other => panic!("{other:?}"),
    }
}

/// Objects of a kind that may be stored, each with its name.
fn objects(crd: &CustomResourceDefinition) -> Vec<(String, String)> {
    let schema = crd.spec.versions[0].schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref()).expect("a schema");
    let schema = serde_json::to_value(schema).expect("JSON");
    let kind = &crd.spec.names.kind;
    let object = |metadata: Value, spec: Value, status: Option<Value>| {
        let mut whole = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": kind, "spec": spec,
            "metadata": {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}});
        whole["metadata"].as_object_mut().expect("an object").extend(metadata.as_object().expect("an object").clone());
        if let Some(status) = status {
            whole["status"] = status;
        }
        whole.to_string()
    };
    let (spec, status) = (&schema["properties"]["spec"], &schema["properties"]["status"]);
    let mut all = Vec::new();
    for (name, fill) in [
        ("empty", Fill::Least),
        ("full of little things", Fill::Many),
        ("full of long strings", Fill::Long),
        ("beyond its schema", Fill::More),
    ] {
        all.push((name.to_owned(), object(json!({}), value(spec, fill), None)));
        all.push((format!("{name}, with its status"), object(json!({}), value(spec, fill), Some(value(status, fill)))));
    }
    let least = || value(spec, Fill::Least);
    // An element of a list of strings takes the most memory for its length: three bytes become a String.
    let filled = |field: &str, part: &str, length: usize| {
        let bomb = format!("[{}]", vec![part; length / (part.len() + 1)].join(","));
        object(json!({}), json!({field: "?"}), None).replacen("\"?\"", &bomb, 1)
    };
    for (name, part) in [("lists", "[]"), ("objects", r#"{"":0}"#), ("strings", r#""""#)] {
        all.push((format!("an unknown field of {name}"), filled("bomb", part, 250_000)));
        all.push((format!("a longer unknown field of {name}"), filled("bomb", part, 400_000)));
    }
    let fields = spec["properties"].as_object().into_iter().flatten();
    all.extend(fields.map(|(field, _)| (format!("{field} of strings"), filled(field, r#""""#, 250_000))));
    for depth in [100_000, 200_000] {
        let deep = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        all.push(("a deep field".into(), object(json!({}), json!({"bomb": "?"}), None).replacen("\"?\"", &deep, 1)));
    }
    let texts = |count: usize, length: usize| -> Map<String, Value> {
        (0..count).map(|at| (format!("{at:x}"), json!("x".repeat(length)))).collect()
    };
    all.push(("long annotations".into(), object(json!({"annotations": texts(4, 64_000)}), least(), None)));
    all.push(("many annotations".into(), object(json!({"annotations": texts(20_000, 0)}), least(), None)));
    all.push(("labels".into(), object(json!({"labels": texts(3_000, 0)}), least(), None)));
    all.push(("many labels".into(), object(json!({"labels": texts(20_000, 0)}), least(), None)));
    all.push(("many finalizers".into(), object(json!({"finalizers": vec![""; 50_000]}), least(), None)));
    let owner = json!({"apiVersion": "", "kind": "", "name": "", "uid": ""});
    all.push(("many owners".into(), object(json!({"ownerReferences": vec![owner; 2_000]}), least(), None)));
    let fields: Map<String, Value> = (0..30_000).map(|at| (format!("f:{at:x}"), json!({}))).collect();
    all.push(("many managed fields".into(), object(json!({"managedFields": [{"manager": "m", "fieldsV1": fields}]}), least(), None)));
    all
}

/// Checks the memory that a watch keeps of each object, and the peak while it reads it.
fn bounded<T: DeserializeOwned>(crd: &CustomResourceDefinition, written_by_users: bool) {
    for (name, text) in objects(crd) {
        let before = NOW.load(Ordering::Relaxed);
        PEAK.store(before, Ordering::Relaxed);
        let read: T = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let (kept, peak) = (NOW.load(Ordering::Relaxed) - before, PEAK.load(Ordering::Relaxed) - before);
        let place = format!("{}: {name}: {kept} kept, {peak} at most, of {} bytes", crd.spec.names.kind, text.len());
        // The constant is for an empty object. The text is in memory once while parts of it are read.
        assert!(kept <= 16 * text.len() + 16_384, "{place}");
        assert!(peak <= 24 * text.len() + 65_536, "{place}");
        // For fields that users write there is a constant limit for any length. Users do not write the status.
        if written_by_users && !name.contains("status") {
            assert!(kept <= 13 * MAX_SPEC_BYTES, "{place}");
            assert!(peak <= 3 * text.len() + 24 * MAX_SPEC_BYTES, "{place}");
        }
        drop(black_box(read));
    }
}

/// One test, because allocations of parallel tests would be counted too.
#[test]
fn what_is_kept_of_an_object_is_bounded_by_its_length_and_of_a_users_by_a_constant() {
    let crds = spillway::api::crds::all();
    let of = |kind: &str| crds.iter().find(|crd| crd.spec.names.kind == kind).expect("a CRD");
    bounded::<Tolerant<AgentPool>>(of("AgentPool"), true);
    bounded::<Tolerant<Agent>>(of("Agent"), true);
    bounded::<Tolerant<Breaker>>(of("Breaker"), true);
    bounded::<Tolerant<Budget>>(of("Budget"), true);
    bounded::<Tolerant<ClusterBudget>>(of("ClusterBudget"), false);
    bounded::<Tolerant<Grant>>(of("Grant"), true);
    bounded::<Tolerant<WorkItem>>(of("WorkItem"), true);
    bounded::<Tolerant<WorkQueue>>(of("WorkQueue"), true);
    // Only the metadata of these is watched.
    bounded::<MetadataOnly<Toolset>>(of("Toolset"), true);
    bounded::<MetadataOnly<WorkQueue>>(of("WorkQueue"), true);
}
