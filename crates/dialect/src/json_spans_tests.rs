use super::reader::STRING_CHUNK_BYTES;
use super::*;
use proptest::prelude::*;

fn fault(body: &str) -> Fault {
    Fault::from(read(body).expect_err(body))
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    for (body, field, words) in [
        ("", "(body)", "ends before its JSON value"),
        ("{", "(body)", "a key in quotes"),
        ("{\"a\":1,\"a\":2}", "a", "twice"),
        ("{\"m\":[{\"x\":{\"b\":1,\"\\u0062\":2}}]}", "m.[0].x.b", "twice"),
        ("{\"m\":[1,{\"x\":tru}]}", "m[1].x", "not a JSON value"),
        ("{\"a\":1}x", "(body)", "after the end"),
        ("{\"a\":1} {}", "(body)", "after the end"),
        ("{\"a\":01}", "(body)", "a comma"),
        ("{\"a\":1.}", "a", "a digit"),
        ("{\"a\":+1}", "a", "not a JSON value"),
        ("{\"a\":\"\u{1}\"}", "a", "control"),
        ("{\"a\":\"\\x\"}", "a", "escape"),
        ("{\"a\":\"\\u12\"}", "a", "escape"),
        ("{\"\\ud800\":1}", "(body)", "unpaired surrogate"),
        ("{'a':1}", "(body)", "a key in quotes"),
        ("{\"a\":1,}", "(body)", "a key in quotes"),
        ("\u{feff}{}", "(body)", "not a JSON value"),
        ("{\"a\":NaN}", "a", "not a JSON value"),
    ] {
        let fault = fault(body);
        assert_eq!(fault.field.as_deref(), Some(field.replace(".[", "[").as_str()), "{body}: {fault}");
        assert!(fault.message.contains(words), "{body}: {fault}");
    }
}

#[test]
fn depth_values_and_repeated_keys_are_bounded() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(read(&nested(128)).is_ok());
    assert!(read(&nested(129)).is_err());
    assert!(read(&"[".repeat(1_000_000)).is_err());
    let many = |values: usize| format!("[{}0]", "0,".repeat(values - 2));
    assert!(read(&many(MAX_JSON_VALUES)).is_ok());
    assert!(read(&many(MAX_JSON_VALUES + 1)).is_err());
    let wide: Vec<String> = (0..5000).map(|key| format!("\"k{}\":0", key % 4999)).collect();
    assert_eq!(fault(&format!("{{{}}}", wide.join(","))).field.as_deref(), Some("k0"));
}

#[test]
fn strings_are_read_as_they_are_meant() {
    for (body, text) in [
        ("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\u{8}\u{c}\n\r\t"),
        ("\"\\u00e4\\ud83d\\ude00x\"", "\u{e4}\u{1f600}x"),
        ("\"\\ud83d\"", "\u{fffd}"),
        ("\"\\ud83d\\u0041\"", "\u{fffd}A"),
        ("\"\\ude00\"", "\u{fffd}"),
        ("\"\\\\u0041\"", "\\u0041"),
    ] {
        assert_eq!(read(body).expect(body).text().as_deref(), Some(text), "{body}");
    }
}

#[test]
fn what_ends_a_string_is_found_wherever_it_stands() {
    for before in 0..3 * STRING_CHUNK_BYTES {
        let plain = "x".repeat(before);
        let node = format!("[\"{plain}\\n{plain}\",\"{plain}\"]");
        let node = read(&node).expect("JSON");
        assert_eq!(node.items()[0].text().as_deref(), Some(format!("{plain}\n{plain}").as_str()));
        assert_eq!(node.items()[1].text_bytes(), before);
        for wrong in [format!("\"{plain}"), format!("\"{plain}\u{1}{plain}\""), format!("\"{plain}\\"), format!("\"{plain}\\\"")] {
            assert!(read(&wrong).is_err(), "{wrong}");
        }
    }
}

/// The value as serde_json represents it.
fn value(node: &Node<'_>) -> serde_json::Value {
    match &node.value {
        Value::Null => serde_json::Value::Null,
        Value::Bool(is) => (*is).into(),
        Value::Number(digits) => digits.parse().map(serde_json::Value::Number).expect("a number"),
        Value::Text(text) => text.read().into_owned().into(),
        Value::List(items) => items.iter().map(value).collect(),
        Value::Object(members) => members.iter().map(|member| (member.key.clone().into_owned(), value(&member.node))).collect(),
    }
}

/// Checks the position of every value.
fn check_places(node: &Node<'_>, text: &str) {
    let part = read(&text[node.at()..node.end()]).expect("a value by itself");
    assert_eq!(value(&part), value(node));
    node.items().iter().for_each(|node| check_places(node, text));
    node.members().iter().for_each(|member| check_places(&member.node, text));
}

fn json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        (-1e9..1e9f64).prop_map(Into::into),
        "\\PC{0,12}".prop_map(Into::into),
        "[\u{0}-\u{ff}\"\\\\]{0,8}".prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
            proptest::collection::hash_map("\\PC{0,6}", inner, 0..6)
                .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn what_serde_writes_is_read_alike(json in json(), pretty in any::<bool>()) {
        let text = if pretty { serde_json::to_string_pretty(&json) } else { serde_json::to_string(&json) }.expect("text");
        let node = read(&text).map_err(|trouble| TestCaseError::fail(Fault::from(trouble).message))?;
        prop_assert_eq!(value(&node), serde_json::from_str::<serde_json::Value>(&text).expect("JSON"));
        check_places(&node, &text);
    }

    /// Text that is accepted here is JSON for serde. Text that only serde accepts has a known reason.
    #[test]
    fn it_is_never_laxer_than_serde(text in "[\\[\\]{}:,\"\\\\ua0-9eE.+ \ntrfnuls-]{0,24}") {
        let theirs = serde_json::from_str::<serde_json::Value>(&text);
        match read(&text) {
            Ok(_) => {
                let excused = theirs.as_ref().err().is_some_and(|error| {
                    let words = error.to_string();
                    words.contains("number out of range") || words.contains("surrogate") || words.contains("hex escape")
                });
                prop_assert!(theirs.is_ok() || excused, "{text}: {theirs:?}");
            }
            Err(trouble) => {
                let fault = Fault::from(trouble);
                prop_assert!(theirs.is_err() || fault.message.contains("twice") || fault.message.contains("unpaired surrogate"), "{fault}");
            }
        }
    }

    #[test]
    fn a_changed_body_is_no_panic(json in json(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = serde_json::to_vec(&json).expect("text");
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(text) = std::str::from_utf8(&bytes) {
            let _ = read(text);
        }
    }
}
