use proptest::prelude::*;
use serde_json::Value;

use super::*;

const PLACES: &[ValuePath] = &[
    value("kind", 0),
    object("usage", 1, &[value("tokens", 2), object("details", 3, &[value("cached", 4)])]),
    object("choices", 5, &[output("delta", 6), value("finish", 7)]),
    output("text", 8),
];

fn read(text: &str) -> Scanner {
    let mut scanner = Scanner::new(PLACES);
    let read = scanner.feed(text.as_bytes());
    assert!(read <= text.len());
    scanner.end();
    scanner
}

#[test]
fn what_stands_at_known_places_is_noted_and_nothing_else() {
    let scanner = read(
        r#" {"kind": "end", "other": {"tokens": 9, "kind": "x"}, "usage": {"tokens": 12, "details": {"cached": 3.0, "x": []}},
            "choices": [{"delta": {"content": "abc", "id": "not counted"}, "finish": null}, {"delta": {"args": {"a": [1, 2]}}, "finish": "stop"}]}"#,
    );
    assert!(scanner.has_ended());
    let notes = scanner.notes();
    assert_eq!((notes[0].word(), notes[2].word(), notes[4].word(), notes[7].times), ("end", "12", "3.0", 1));
    assert_eq!((notes[1].kind, notes[1].members, notes[5].kind, notes[5].members), (Kind::Object, 2, Kind::List, 2));
    // "abc" with its quotes, and the arguments as they stand.
    assert_eq!(notes[6].output_bytes, 5 + i64::try_from(r#"{"a": [1, 2]}"#.len()).expect("few"));
    assert_eq!(notes[8].kind, Kind::None);
}

#[test]
fn what_is_deep_wide_or_long_is_forgotten() {
    for text in ["[".repeat(MAX_SCAN_DEPTH + 1), format!("{{\"x\": {}", "[".repeat(MAX_SCAN_DEPTH))] {
        assert!(read(&text).is_broken());
    }
    let mut scanner =
        read(&format!(r#"{{"kind": "{}", "{}": 1, "usage": {{"tokens": {}}}}}"#, "x".repeat(500), "k".repeat(500), "1".repeat(500)));
    assert!(scanner.has_ended());
    assert_eq!((scanner.notes()[0].word(), scanner.notes()[0].members, scanner.notes()[2].word()), ("", 500, ""));
    assert!(scanner.word.capacity() <= 4 * MAX_WORD_BYTES && scanner.key.capacity() <= 4 * MAX_KEY_BYTES);
    scanner.reset();
    assert_eq!((scanner.notes()[0].kind, scanner.notes()[0].word()), (Kind::None, ""));
}

/// JSON in the form of serde_json.
fn json() -> impl Strategy<Value = Value> {
    let word =
        prop_oneof![Just("kind"), Just("usage"), Just("tokens"), Just("choices"), Just("delta"), Just("text"), Just("id"), Just("é\"\\\n")];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,80}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 60, 6, move |inner| {
        let word = word.clone().prop_map(str::to_owned);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map(word, inner, 0..6).prop_map(|map| Value::from(map.into_iter().collect::<serde_json::Map<_, _>>())),
        ]
    })
}

/// Bytes of output, by another implementation.
fn written(value: &Value) -> usize {
    match value {
        Value::Null => 0,
        Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string().len(),
        Value::Array(items) => items.iter().map(written).sum(),
        Value::Object(members) => members
            .iter()
            .map(|(key, value)| match key.as_bytes() {
                key if UNCOUNTED_MEMBERS.contains(&key) => 0,
                key if WHOLE_MEMBERS.contains(&key) => value.to_string().len(),
                _ => written(value),
            })
            .sum(),
    }
}

proptest! {
    #[test]
    fn it_reads_as_serde_json_does_and_wherever_it_is_cut(value in json(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6)) {
        let text = value.to_string();
        let whole = read(&text);
        prop_assert!(whole.has_ended(), "{}", text);
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).chain([0, text.len()]).collect();
        places.sort_unstable();
        let mut cut = Scanner::new(PLACES);
        for ends in places.windows(2) {
            let part = &text.as_bytes()[ends[0]..ends[1]];
            prop_assert_eq!(cut.feed(part), part.len());
        }
        cut.end();
        prop_assert!(cut.has_ended());
        for (one, other) in whole.notes.0.iter().zip(&cut.notes.0) {
            prop_assert_eq!((one.kind, one.times, one.members, one.output_bytes, one.word()), (other.kind, other.times, other.members, other.output_bytes, other.word()));
        }
        let notes = whole.notes();
        if let Some(tokens) = value.get("usage").and_then(|usage| usage.get("tokens")).and_then(Value::as_i64) {
            prop_assert_eq!(notes[2].word(), tokens.to_string());
        }
        if let Some(output) = value.get("text") {
            prop_assert_eq!(notes[8].output_bytes, i64::try_from(written(output)).expect("few"));
        }
    }

    #[test]
    fn what_serde_json_does_not_read_is_not_read(text in "[\\[\\]{}\":,0-9eE+.\\-a-f \\\\ntrul]{0,24}") {
        let taken = read(&text);
        let all = taken.before == text.len() as u64;
        let ours = taken.has_ended() && (all || text.as_bytes()[usize::try_from(taken.before).expect("few")..].trim_ascii().is_empty());
        let theirs = serde_json::from_str::<Value>(&text);
        // serde_json also reads the value of a number.
        if !theirs.as_ref().is_err_and(|error| error.to_string().contains("out of range")) {
            prop_assert_eq!(ours, theirs.is_ok(), "{}", text);
        }
    }
}
