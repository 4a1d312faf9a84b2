//! Removes unused metadata from lists and watches of the API server: `metadata.managedFields`, and annotations of
//! others. Any user may write these. An object that is read by its name is not changed: its managers may matter, or it
//! is written back.
//!
//! Both may be most of an object, and a parsed tree of fields takes up to a hundred times its length. They are removed
//! from the bytes as they arrive, before they are parsed. Nothing else may change.
//!
//! In the place of long `managedFields` stands their length, by which [`super::tolerant`] judges the object.

use bytes::Bytes;
use http_body_util::BodyExt;
use http_body_util::combinators::MapFrame;

use super::request::describe;
use crate::api::names;

/// The used annotations. The last one is the API server's, and ends a streamed list.
const READ_ANNOTATIONS: [&str; 9] = [
    names::ANSWERED_ANNOTATION,
    names::ISSUE_ANNOTATION,
    names::ARGO_TRACKING_ANNOTATION,
    names::REASON_ANNOTATION,
    names::APPLIED_ANNOTATION,
    names::DEFAULT_ANNOTATION,
    names::DEFAULT_MADE_ANNOTATION,
    names::DEFAULT_BREAKER_MADE_ANNOTATION,
    "k8s.io/initial-events-end",
];
/// The most bytes of a used annotation, with its name. Ours are short.
const MAX_ANNOTATION_BYTES: usize = 1024;
/// The length of shorter `managedFields` is of no interest.
pub const SHORT_MANAGED_FIELDS_BYTES: usize = 64 * 1024;
/// What stands before and after the length, in the place of longer ones. It is read like any other list of managers.
const LENGTH_MARK: (&str, &str) = (r#"[{"manager":"spillway.dev/bytes/"#, r#""}]"#);
/// The most bytes of a field's name that are kept. No field of `metadata` has a longer name.
const MAX_FIELD_NAME_BYTES: usize = 64;

/// Whether an annotation is used.
pub fn is_read(annotation: &str) -> bool {
    READ_ANNOTATIONS.contains(&annotation)
}

/// The bytes of `managedFields`, of which this JSON was read: they themselves, or their length.
pub fn managed_fields_bytes(json: &str) -> usize {
    let length = json.strip_prefix(LENGTH_MARK.0).and_then(|rest| rest.strip_suffix(LENGTH_MARK.1));
    length.and_then(|length| length.parse().ok()).unwrap_or(json.len())
}

/// The layer of a client that trims answers.
#[derive(Clone)]
pub struct TrimLayer;

impl<S> tower::Layer<S> for TrimLayer {
    type Service = Trim<S>;
    fn layer(&self, inner: S) -> Trim<S> {
        Trim(inner)
    }
}

/// The trimming service.
#[derive(Clone)]
pub struct Trim<S>(S);

type Map = Box<dyn FnMut(hyper::body::Frame<Bytes>) -> hyper::body::Frame<Bytes> + Send>;

impl<S, B, R> tower::Service<http::Request<B>> for Trim<S>
where
    S: tower::Service<http::Request<B>, Response = http::Response<R>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    R: hyper::body::Body<Data = Bytes> + 'static,
{
    type Response = http::Response<MapFrame<R, Map>>;
    type Error = S::Error;
    type Future = futures::future::BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let many = matches!(describe(request.method(), request.uri()).0, "list" | "watch");
        let answer = self.0.call(request);
        Box::pin(async move { answer.await.map(|answer| trimmed(answer, many)) })
    }
}

fn trimmed<R>(mut answer: http::Response<R>, many: bool) -> http::Response<MapFrame<R, Map>>
where
    R: hyper::body::Body<Data = Bytes> + 'static,
{
    let json = answer.headers().get(http::header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    let trims = many && json;
    if trims {
        answer.headers_mut().remove(http::header::CONTENT_LENGTH);
    }
    let mut trimmer = Trimmer::default();
    answer.map(|body| {
        let map: Map = Box::new(move |frame| if trims { frame.map_data(|data| trimmer.feed(&data)) } else { frame });
        body.map_frame(map)
    })
}

/// The kinds of objects and lists that the trimmer distinguishes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Array,
    Object,
    /// Value of a field `metadata`.
    Metadata,
    /// Value of `annotations` of such an object.
    Annotations,
}

/// The role of a string.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Text {
    Name,
    Value,
}

/// A member of an object that may be removed.
enum Member {
    /// Its bytes are dropped.
    Dropped,
    /// The same, for `managedFields`, of which this many were dropped.
    ManagedFields(usize),
    /// Its bytes are held until its end, unless there are too many.
    Held(Vec<u8>),
}

/// Copies a sequence of JSON values without the removed members.
#[derive(Default)]
struct Trimmer {
    /// The open objects and lists, outermost first; true: a member was written. This takes a byte or two for each
    /// level.
    frames: Vec<(Kind, bool)>,
    /// The next string is a name.
    name_next: bool,
    /// Set inside a string; true: the next byte is escaped.
    text: Option<(Text, bool)>,
    /// The last name, up to the limit of names.
    name: Vec<u8>,
    /// The member that may be removed, and the number of frames around it.
    member: Option<(Member, usize)>,
}

impl Trimmer {
    fn feed(&mut self, input: &[u8]) -> Bytes {
        let mut out = Vec::with_capacity(input.len());
        let mut at = 0;
        while let Some(&byte) = input.get(at) {
            // Most bytes are inside values that are copied as they are.
            if let Some((Text::Value, false)) = self.text {
                let rest = &input[at..];
                let length = rest.iter().position(|byte| matches!(byte, b'"' | b'\\')).unwrap_or(rest.len());
                if length > 0 {
                    self.write(&rest[..length], &mut out);
                    at += length;
                    continue;
                }
            }
            self.step(byte, &mut out);
            at += 1;
        }
        out.into()
    }

    fn kind(&self) -> Option<Kind> {
        self.frames.last().map(|(kind, _)| *kind)
    }

    /// Whether the position is directly in an object whose members may be removed.
    fn may_remove_member(&self) -> bool {
        self.member.is_none() && matches!(self.kind(), Some(Kind::Metadata | Kind::Annotations))
    }

    fn write(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        match &mut self.member {
            None => out.extend_from_slice(bytes),
            Some((Member::Dropped, _)) => {}
            Some((Member::ManagedFields(dropped), _)) => *dropped += bytes.len(),
            Some((Member::Held(held), _)) if held.len() + bytes.len() <= MAX_ANNOTATION_BYTES => held.extend_from_slice(bytes),
            Some((member, _)) => *member = Member::Dropped,
        }
    }

    fn step(&mut self, byte: u8, out: &mut Vec<u8>) {
        if let Some((text, escaped)) = self.text {
            return self.step_in_string(text, escaped, byte, out);
        }
        // The end of the member that may be removed: a comma after it, or the end of the object around it.
        if matches!(byte, b',' | b'}')
            && let Some((_, depth)) = &self.member
            && *depth == self.frames.len()
        {
            let written = match self.member.take() {
                Some((Member::Held(held), _)) => held,
                Some((Member::ManagedFields(dropped), _)) if dropped > SHORT_MANAGED_FIELDS_BYTES => {
                    format!("\"managedFields\":{}{dropped}{}", LENGTH_MARK.0, LENGTH_MARK.1).into_bytes()
                }
                Some((Member::ManagedFields(_) | Member::Dropped, _)) | None => Vec::new(),
            };
            if !written.is_empty() {
                self.separate(out);
                out.extend_from_slice(&written);
            }
        }
        match byte {
            b'"' => {
                let text = if self.name_next { Text::Name } else { Text::Value };
                self.text = Some((text, false));
                if text == Text::Name {
                    self.name.clear();
                    if self.may_remove_member() {
                        return; // written once the name is known
                    }
                }
            }
            b'{' => {
                let kind = match (self.kind(), self.name.as_slice(), self.name_next) {
                    (Some(Kind::Metadata), b"annotations", false) => Kind::Annotations,
                    (Some(Kind::Object), b"metadata", false) => Kind::Metadata,
                    _ => Kind::Object,
                };
                self.frames.push((kind, false));
                self.name_next = true;
            }
            b'[' => {
                self.frames.push((Kind::Array, false));
                self.name_next = false;
            }
            b'}' | b']' => {
                self.frames.pop();
                self.name_next = false;
            }
            b':' => self.name_next = false,
            b',' => {
                self.name_next = self.kind() != Some(Kind::Array);
                if self.may_remove_member() {
                    return; // written before the next member that stays
                }
            }
            _ => {}
        }
        self.write(&[byte], out);
    }

    /// A byte of a string.
    fn step_in_string(&mut self, text: Text, escaped: bool, byte: u8, out: &mut Vec<u8>) {
        let ends = byte == b'"' && !escaped;
        self.text = if ends { None } else { Some((text, byte == b'\\' && !escaped)) };
        if text == Text::Value {
            return self.write(&[byte], out);
        }
        if !ends && self.name.len() <= MAX_FIELD_NAME_BYTES {
            self.name.push(byte);
        }
        if !self.may_remove_member() {
            return self.write(&[byte], out);
        }
        if ends {
            self.name_next = false;
            self.decide(out);
        }
    }

    /// Decides about the member whose name was read.
    fn decide(&mut self, out: &mut Vec<u8>) {
        let depth = self.frames.len();
        let quoted = [b"\"".as_slice(), &self.name, b"\""].concat();
        let known = self.name.len() <= MAX_FIELD_NAME_BYTES;
        let read = std::str::from_utf8(&self.name).is_ok_and(is_read);
        match self.kind() {
            Some(Kind::Metadata) if known && self.name != b"managedFields" => {
                self.separate(out);
                out.extend_from_slice(&quoted);
            }
            Some(Kind::Metadata) if known => self.member = Some((Member::ManagedFields(0), depth)),
            Some(Kind::Annotations) if known && read => self.member = Some((Member::Held(quoted), depth)),
            Some(Kind::Metadata | Kind::Annotations | Kind::Object | Kind::Array) | None => {
                self.member = Some((Member::Dropped, depth));
            }
        }
    }

    /// A comma, unless the member that is written next is the first of its object.
    fn separate(&mut self, out: &mut Vec<u8>) {
        if let Some((_, written)) = self.frames.last_mut()
            && std::mem::replace(written, true)
        {
            out.push(b',');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    /// The result for an input in pieces of `piece` bytes.
    fn trim(text: &str, piece: usize) -> String {
        let mut trimmer = Trimmer::default();
        let parts: Vec<u8> = text.as_bytes().chunks(piece).flat_map(|part| trimmer.feed(part).to_vec()).collect();
        String::from_utf8(parts).expect("text")
    }

    /// The same change on a parsed value.
    fn cut(value: &mut Value, metadata: bool) {
        match value {
            Value::Object(fields) => {
                if metadata {
                    fields.remove("managedFields");
                    if let Some(Value::Object(annotations)) = fields.get_mut("annotations") {
                        annotations.retain(|name, value| is_read(name) && value.to_string().len() < 900);
                    }
                }
                for (name, value) in fields.iter_mut() {
                    // The value of an annotation is copied unchanged.
                    if !(metadata && name == "annotations" && value.is_object()) {
                        cut(value, !metadata && name == "metadata");
                    }
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| cut(item, false)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    #[test]
    fn what_nobody_reads_is_cut_out_wherever_it_stands_and_however_it_is_cut() {
        let long = "x".repeat(2000);
        let metadata = json!({
            "annotations": {"a": "\"}{,:\\", "spillway.dev/default": "true", "spillway.dev/reason": long, "spillway.dev/applied": "é\"\\"},
            "labels": {"annotations": "stays", "managedFields": "stays"},
            "managedFields": [{"fieldsV1": {"f:metadata": {"f:annotations": {".": {}, "f:\"}]": {}}}}, "manager": "m"}],
            "name": "n",
        });
        let object = json!({"kind": "K", "metadata": metadata, "spec": {"a": [[], {}, "metadata", {"metadata": 1}], "managedFields": [1]}});
        let only = json!({"metadata": {"annotations": {"a": "b"}, "managedFields": []}});
        for value in [
            object.clone(),
            only.clone(),
            json!({"type": "ADDED", "object": object}),
            json!({"apiVersion": "v1", "items": [object, only, object], "metadata": {"resourceVersion": "7", "continue": "c"}}),
            json!([]),
            json!("metadata"),
        ] {
            let mut expected = value.clone();
            cut(&mut expected, false);
            for text in [value.to_string(), serde_json::to_string_pretty(&value).expect("JSON")] {
                for piece in [1, 2, 3, 7, 64, 100_000] {
                    let found: Value = serde_json::from_str(&trim(&text, piece)).expect("JSON");
                    assert_eq!(found, expected, "{piece}");
                }
            }
        }
    }

    #[test]
    fn events_of_a_watch_stay_one_a_line() {
        let lines = "{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"managedFields\":[1],\"name\":\"a\"}}}\n{\"type\":\"DELETED\",\"object\":{\"metadata\":{}}}\n";
        let expected =
            "{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":\"a\"}}}\n{\"type\":\"DELETED\",\"object\":{\"metadata\":{}}}\n";
        assert_eq!(trim(lines, 5), expected);
    }

    #[test]
    fn what_is_cut_out_is_kept_nowhere_on_the_way() {
        let mut trimmer = Trimmer::default();
        assert_eq!(trimmer.feed(b"{\"metadata\":{\"managedFields\":["), "{\"metadata\":{");
        for _ in 0..100 {
            assert!(trimmer.feed(&[b"{\"f:a\":{\"f:b\":[]}},".as_slice(); 100].concat()).is_empty());
        }
        let rest = trimmer.feed(b"0],\"annotations\":{\"spillway.dev/reason\":\"");
        let length = b":[".len() + 100 * 100 * b"{\"f:a\":{\"f:b\":[]}},".len() + b"0]".len();
        assert_eq!(rest, format!("\"managedFields\":{}{length}{},\"annotations\":{{", LENGTH_MARK.0, LENGTH_MARK.1));
        for _ in 0..100 {
            assert!(trimmer.feed(&[b'x'; 1000]).is_empty());
        }
        assert_eq!(trimmer.feed(b"\"}}}"), "}}}");
        assert!(trimmer.frames.is_empty() && trimmer.member.is_none());
    }

    #[test]
    fn of_long_managed_fields_the_length_stays() {
        let trimmed = |fields: usize| -> Value {
            let object = format!(r#"{{"metadata":{{"managedFields":[{}0],"name":"n"}}}}"#, "0,".repeat(fields));
            serde_json::from_str::<Value>(&trim(&object, 1000)).expect("JSON")["metadata"].take()
        };
        assert_eq!(trimmed(SHORT_MANAGED_FIELDS_BYTES / 2 - 10), json!({"name": "n"}));
        let long = trimmed(SHORT_MANAGED_FIELDS_BYTES);
        assert_eq!(long["name"], "n");
        let read = managed_fields_bytes(&long["managedFields"].to_string());
        assert!(read.abs_diff(2 * SHORT_MANAGED_FIELDS_BYTES) < 10, "{read}");
        for whole in ["[]", "null", r#"[{"manager":"m"}]"#, r#"[{"manager":"spillway.dev/bytes/many"}]"#] {
            assert_eq!(managed_fields_bytes(whole), whole.len());
        }
    }

    #[tokio::test]
    async fn answers_to_lists_and_watches_are_trimmed_and_those_to_reads_of_one_are_not() {
        use http_body_util::Full;
        use tower::{Layer as _, ServiceExt as _};

        let whole = r#"{"metadata":{"managedFields":[1],"name":"a"}}"#;
        let server = tower::service_fn(async |_: http::Request<()>| {
            let answer = http::Response::builder().header("content-type", "application/json");
            Ok::<_, std::convert::Infallible>(answer.body(Full::new(Bytes::from_static(whole.as_bytes()))).expect("an answer"))
        });
        let trimmed = r#"{"metadata":{"name":"a"}}"#;
        let pools = "/apis/spillway.dev/v1alpha1/agentpools";
        let one = "/apis/spillway.dev/v1alpha1/namespaces/n/agentpools/p";
        for (uri, expected) in [(pools.to_owned(), trimmed), (format!("{pools}?watch=true"), trimmed), (one.to_owned(), whole)] {
            let request = http::Request::get(&uri).body(()).expect("a request");
            let answer = TrimLayer.layer(server).oneshot(request).await.expect("an answer");
            let body = answer.into_body().collect().await.expect("a body").to_bytes();
            assert_eq!(body, expected, "{uri}");
        }
    }

    fn values() -> impl Strategy<Value = Value> {
        let names = prop::sample::select(vec!["metadata", "annotations", "managedFields", "a", "é", "\"", "\\", "spillway.dev/default"]);
        let leaf = prop_oneof![
            Just(json!(null)),
            Just(json!(true)),
            any::<i32>().prop_map(|number| json!(number)),
            ".{0,8}".prop_map(|text| json!(text))
        ];
        leaf.prop_recursive(5, 40, 5, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
                prop::collection::vec((names.clone(), inner), 0..5)
                    .prop_map(|members| Value::Object(members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn nothing_else_changes(value in values(), piece in 1_usize..20) {
            let mut expected = value.clone();
            cut(&mut expected, false);
            let found: Value = serde_json::from_str(&trim(&value.to_string(), piece)).expect("JSON");
            prop_assert_eq!(found, expected);
        }
    }
}
