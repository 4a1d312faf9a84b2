//! Custom resources as they are stored: they may not fit their type, and may be too large.
//!
//! A hostile or malformed object must not block other objects, nor take their memory. So an object is kept as bytes
//! until its fields are read, and unused fields are not parsed. An object with a too long field is reported by name and
//! not kept. What always holds: the memory for an object is at most a constant times its length, and has a constant
//! bound for the kinds that users write. `metadata` is kept without `managedFields` and without unused annotations.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::error_boundary::InvalidObject;
use serde::de::{DeserializeOwned, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::trim::{SHORT_MANAGED_FIELDS_BYTES, is_read, managed_fields_bytes};

/// The most bytes of a spec that is read. The schemas allow about half as many characters.
pub const MAX_SPEC_BYTES: usize = 256 * 1024;
/// The most bytes of a field of `metadata` that is read: labels, owners, finalizers.
const MAX_METADATA_FIELD_BYTES: usize = 32 * 1024;
/// The most bytes of `managedFields` for each byte of status and of spec. Our own record of a full status has less than two,
/// and a spec may have several managers.
const MANAGED_FIELDS_RATIO: usize = 4;
/// The bytes of a spec that count for this. A user writes the spec, and the API server works for a second on an apply to an object
/// with 200 kB of `managedFields`.
const MAX_SPEC_BYTES_COUNTED: usize = 64 * 1024;
/// The most bytes of an error about an object, because its message may contain a part of the object.
const MAX_ERROR_BYTES: usize = 512;

/// An object that may not fit its type.
#[derive(Clone, Debug)]
pub struct Tolerant<K>(pub Result<K, InvalidObject>);

impl<K: Resource> Resource for Tolerant<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dt: &K::DynamicType) -> Cow<'_, str> {
        K::kind(dt)
    }

    fn group(dt: &K::DynamicType) -> Cow<'_, str> {
        K::group(dt)
    }

    fn version(dt: &K::DynamicType) -> Cow<'_, str> {
        K::version(dt)
    }

    fn plural(dt: &K::DynamicType) -> Cow<'_, str> {
        K::plural(dt)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.as_ref().map_or_else(|invalid| &invalid.metadata, K::meta)
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.as_mut().map_or_else(|invalid| &mut invalid.metadata, K::meta_mut)
    }
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Tolerant<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        read(text.get()).map_err(D::Error::custom)
    }
}

/// An object of which only the metadata is read.
#[derive(Clone, Debug)]
pub struct MetadataOnly<K> {
    metadata: ObjectMeta,
    kind: PhantomData<K>,
}

impl<K: Resource> Resource for MetadataOnly<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dt: &K::DynamicType) -> Cow<'_, str> {
        K::kind(dt)
    }

    fn group(dt: &K::DynamicType) -> Cow<'_, str> {
        K::group(dt)
    }

    fn version(dt: &K::DynamicType) -> Cow<'_, str> {
        K::version(dt)
    }

    fn plural(dt: &K::DynamicType) -> Cow<'_, str> {
        K::plural(dt)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl<'de, K> Deserialize<'de> for MetadataOnly<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let named = |text: &str| -> Result<ObjectMeta, serde_json::Error> {
            let parts: RawParts<'_> = serde_json::from_str(text)?;
            let (metadata, _) = metadata(parts.metadata)?;
            serde_json::from_str(&serde_json::to_string(&metadata)?)
        };
        Ok(Self { metadata: named(text.get()).map_err(D::Error::custom)?, kind: PhantomData })
    }
}

/// An object in parts, each as text.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawParts<'a> {
    #[serde(borrow)]
    api_version: Option<&'a RawValue>,
    #[serde(borrow)]
    kind: Option<&'a RawValue>,
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
    #[serde(borrow)]
    spec: Option<&'a RawValue>,
    #[serde(borrow)]
    status: Option<&'a RawValue>,
}

/// The same parts without unused metadata.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct KeptParts<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    api_version: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'a RawValue>,
    metadata: &'a Metadata<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    spec: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'a RawValue>,
}

/// `metadata` in parts, without the dropped ones.
struct Metadata<'a> {
    fields: BTreeMap<String, &'a RawValue>,
    annotations: Annotations,
    /// The length of the dropped `managedFields`.
    managed_fields: usize,
}

impl Serialize for Metadata<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, value) in &self.fields {
            map.serialize_entry(name, value)?;
        }
        if !self.annotations.0.is_empty() {
            map.serialize_entry("annotations", &self.annotations.0)?;
        }
        map.end()
    }
}

/// The used annotations.
#[derive(Default)]
struct Annotations(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Annotations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Annotations;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("annotations")
            }

            fn visit_unit<E>(self) -> Result<Annotations, E> {
                Ok(Annotations::default())
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Annotations, A::Error> {
                let mut read = Annotations::default();
                while let Some(name) = map.next_key::<String>()? {
                    if is_read(&name) {
                        read.0.insert(name, map.next_value()?);
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(read)
            }
        }
        deserializer.deserialize_any(Read)
    }
}

/// Reads an object. Err: not even its name can be read.
fn read<K: DeserializeOwned>(text: &str) -> Result<Tolerant<K>, serde_json::Error> {
    let parts: RawParts<'_> = serde_json::from_str(text)?;
    let (metadata, mut trouble) = metadata(parts.metadata)?;
    let known = || -> Result<ObjectMeta, serde_json::Error> { serde_json::from_str(&serde_json::to_string(&metadata)?) };
    if let Some(length) = parts.spec.map(|spec| spec.get().len()).filter(|length| *length > MAX_SPEC_BYTES) {
        trouble = Some(format!("spec has {length} bytes of JSON, but at most {MAX_SPEC_BYTES} are allowed: make it shorter"));
    }
    let allowed =
        max_managed_fields_bytes(parts.spec.map_or(0, |spec| spec.get().len()), parts.status.map_or(0, |status| status.get().len()));
    if metadata.managed_fields > allowed {
        let length = metadata.managed_fields;
        trouble = Some(format!(
            "metadata.managedFields has {length} bytes of JSON, but at most {allowed} are allowed: give it fewer annotations, or make it anew"
        ));
    }
    let error = match trouble {
        Some(trouble) => trouble,
        None => {
            let RawParts { api_version, kind, metadata: _, spec, status } = parts;
            let kept = serde_json::to_string(&KeptParts { api_version, kind, metadata: &metadata, spec, status })?;
            match serde_json::from_str(&kept) {
                Ok(object) => return Ok(Tolerant(Ok(object))),
                Err(error) => short_message(&error),
            }
        }
    };
    Ok(Tolerant(Err(InvalidObject { error, metadata: known()? })))
}

/// The most bytes of `managedFields` of an object with a spec and a status of these lengths. The API server works for seconds on each
/// apply to an object with more, and while it does, it answers nobody else.
fn max_managed_fields_bytes(spec: usize, status: usize) -> usize {
    SHORT_MANAGED_FIELDS_BYTES + MANAGED_FIELDS_RATIO * (spec.min(MAX_SPEC_BYTES_COUNTED) + status)
}

/// The kept parts of `metadata`, and an error if a part is too long.
fn metadata(text: Option<&RawValue>) -> Result<(Metadata<'_>, Option<String>), serde_json::Error> {
    let mut fields: BTreeMap<String, &RawValue> = text.map_or_else(|| Ok(BTreeMap::new()), |text| serde_json::from_str(text.get()))?;
    let managed_fields = fields.remove("managedFields").map_or(0, |fields| managed_fields_bytes(fields.get()));
    let annotations = fields.remove("annotations").map_or_else(|| Ok(Annotations::default()), |text| serde_json::from_str(text.get()))?;
    let mut trouble = None;
    fields.retain(|name, value| {
        let length = value.get().len();
        let fits = length <= MAX_METADATA_FIELD_BYTES;
        if !fits {
            trouble = Some(format!(
                "metadata.{name} has {length} bytes of JSON, but at most {MAX_METADATA_FIELD_BYTES} are allowed: make it shorter"
            ));
        }
        fits
    });
    Ok((Metadata { fields, annotations, managed_fields }, trouble))
}

/// The message without line and column, which users cannot see, and without a long part of the object.
fn short_message(error: &serde_json::Error) -> String {
    let mut words = error.to_string();
    if let Some(at) = words.rfind(" at line ") {
        words.truncate(at);
    }
    words.truncate((0..=MAX_ERROR_BYTES.min(words.len())).rev().find(|at| words.is_char_boundary(*at)).unwrap_or(0));
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::AgentPool;
    use kube::ResourceExt;
    use serde_json::{Value, json};

    fn pool(metadata: Value, spec: Value) -> String {
        let mut all = json!({"name": "p", "namespace": "n", "uid": "u", "resourceVersion": "7"});
        all.as_object_mut().expect("an object").extend(metadata.as_object().expect("an object").clone());
        let mut whole = json!({"type": "worker", "agent": {"image": "x", "command": ["y"]}});
        whole.as_object_mut().expect("an object").extend(spec.as_object().expect("an object").clone());
        json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "AgentPool", "metadata": all, "spec": whole}).to_string()
    }

    fn read_pool(text: &str) -> Tolerant<AgentPool> {
        serde_json::from_str(text).expect("it is always read")
    }

    fn trouble(read: &Tolerant<AgentPool>) -> &str {
        &read.0.as_ref().expect_err("it is not kept").error
    }

    #[test]
    fn an_object_that_fits_is_read_without_what_nobody_reads_of_its_metadata() {
        let read = read_pool(&pool(
            json!({"managedFields": [{"manager": "m"}], "annotations": {"a": "b", "spillway.dev/default": "true"},
                "labels": {"team": "t"}, "finalizers": ["f"], "ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "o", "uid": "x"}],
                "creationTimestamp": "2026-01-01T00:00:00Z", "generation": 3}),
            json!({}),
        ));
        let pool = read.0.as_ref().expect("it fits");
        assert_eq!(pool.spec.type_, "worker");
        let meta = &pool.metadata;
        assert_eq!((meta.managed_fields.as_ref(), meta.generation), (None, Some(3)));
        assert_eq!(pool.annotations().keys().collect::<Vec<_>>(), ["spillway.dev/default"]);
        assert_eq!((pool.labels().len(), pool.finalizers().len(), pool.owner_references().len()), (1, 1, 1));
        assert!(pool.creation_timestamp().is_some());
        assert_eq!(read.meta().uid.as_deref(), Some("u"));
    }

    #[test]
    fn an_object_that_does_not_fit_is_told_of_by_name_and_stops_no_other() {
        let nested = format!("{}{}", "[".repeat(5_000), "]".repeat(5_000));
        let deep = pool(json!({}), json!({})).replace("\"type\":\"worker\"", &format!("\"type\":{nested}"));
        let list = format!(
            r#"{{"kind":"AgentPoolList","apiVersion":"spillway.dev/v1alpha1","metadata":{{"resourceVersion":"1"}},"items":[{deep},{}]}}"#,
            pool(json!({}), json!({}))
        );
        let list: kube::core::ObjectList<Tolerant<AgentPool>> = serde_json::from_str(&list).expect("a list");
        assert_eq!(
            list.items.iter().map(|read| (read.name_any(), read.0.is_ok())).collect::<Vec<_>>(),
            [("p".into(), false), ("p".into(), true)]
        );
        let event = format!(r#"{{"type":"ADDED","object":{deep}}}"#);
        let event: kube::core::WatchEvent<Tolerant<AgentPool>> = serde_json::from_str(&event).expect("an event");
        assert!(matches!(event, kube::core::WatchEvent::Added(read) if read.0.is_err()));
    }

    #[test]
    fn words_about_an_object_hold_little_of_it() {
        let read = read_pool(&pool(json!({}), json!({"mode": "x".repeat(100_000)})));
        assert!(trouble(&read).starts_with("unknown variant `xxx"), "{}", trouble(&read));
        assert!(trouble(&read).len() <= MAX_ERROR_BYTES);
        let read = read_pool(&pool(json!({}), json!({"replicas": "many"})));
        assert_eq!(trouble(&read), "invalid type: string \"many\", expected i32");
    }

    #[test]
    fn an_object_that_is_too_long_is_not_kept_and_keeps_what_is_needed_to_let_it_go() {
        let read = read_pool(&pool(json!({"finalizers": ["f"]}), json!({"unknown": vec![json!({"": 0}); 100_000]})));
        assert!(trouble(&read).contains("spec has 700"), "{}", trouble(&read));
        assert_eq!((read.name_any().as_str(), read.finalizers().len()), ("p", 1));
        let labels: BTreeMap<String, String> = (0..10_000).map(|number| (format!("l{number}"), "v".into())).collect();
        let read = read_pool(&pool(json!({"finalizers": ["f"], "labels": labels, "deletionTimestamp": "2026-01-01T00:00:00Z"}), json!({})));
        assert!(trouble(&read).contains("metadata.labels has"), "{}", trouble(&read));
        assert_eq!((read.labels().len(), read.finalizers().len()), (0, 1));
        assert!(read.meta().deletion_timestamp.is_some());
    }

    #[test]
    fn what_is_long_and_not_read_is_no_trouble() {
        let annotations: BTreeMap<String, String> = (0..60).map(|number| (format!("a{number}"), "v".repeat(4_000))).collect();
        let fields: Value = (0..4_000).map(|number| (format!("f:{number}"), json!({}))).collect::<serde_json::Map<_, _>>().into();
        let text = pool(json!({"annotations": annotations, "managedFields": [{"manager": "m", "fieldsV1": fields}]}), json!({}));
        let read = read_pool(&text);
        assert!(read.0.is_ok() && read.annotations().is_empty());
    }

    #[test]
    fn an_object_with_more_managed_fields_than_it_can_need_is_left_alone() {
        let entries = |count: usize| -> Value { vec![json!({"manager": "m"}); count].into() };
        let read = |managed: usize, status: usize| {
            let mut object: Value = serde_json::from_str(&pool(json!({"managedFields": entries(managed)}), json!({}))).expect("JSON");
            object["status"] = json!({"x": "y".repeat(status)});
            read_pool(&object.to_string())
        };
        assert!(read(4_000, 0).0.is_ok());
        let long = read(40_000, 0);
        assert!(trouble(&long).starts_with("metadata.managedFields has 640001 bytes of JSON, but at most 65"), "{}", trouble(&long));
        assert!(long.meta().managed_fields.is_none());
        // The governor's own status may be long, and so is the record of its fields: 400 namespaces of a ClusterBudget have 160 kB.
        assert!(read(40_000, 200_000).0.is_ok());
    }

    #[test]
    fn a_long_spec_permits_managed_fields_to_a_bound() {
        assert_eq!(max_managed_fields_bytes(MAX_SPEC_BYTES, 0), max_managed_fields_bytes(MAX_SPEC_BYTES_COUNTED, 0));
        assert!(max_managed_fields_bytes(MAX_SPEC_BYTES, 0) < 400_000);
    }
}
