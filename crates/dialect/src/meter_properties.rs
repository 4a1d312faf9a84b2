//! Properties: the forwarded bytes and the usage do not depend on where an answer is cut, for any answer.

use super::tests::{CHAT, CHAT_EXTRA, DONE, JSON, MESSAGES, RESPONSES, SSE, asking, call, gemini_list, gemini_sse, metered};
use super::*;
use proptest::prelude::*;

type Answer = (Call, Option<&'static str>, String);

fn answers() -> Vec<Answer> {
    vec![
        (call(Dialect::Anthropic), SSE, MESSAGES.to_owned()),
        (call(Dialect::OpenAIChat), SSE, [CHAT, CHAT_EXTRA, DONE].concat()),
        (asking(), SSE, [CHAT, CHAT_EXTRA, DONE].concat()),
        (call(Dialect::OpenAIResponses), SSE, RESPONSES.to_owned()),
        (call(Dialect::Gemini), SSE, gemini_sse()),
        (call(Dialect::Gemini), JSON, gemini_list()),
    ]
}

/// The same answer with other ends of lines, `data:` without a space, or without the last blank line.
fn variants() -> Vec<Answer> {
    let mut all = answers();
    for (call, media, answer) in answers().into_iter().filter(|(_, media, _)| *media == SSE) {
        let lf = answer.replace("\r\n", "\n");
        let again = || match (call.dialect(), call.strips_usage_chunk()) {
            (Dialect::OpenAIChat, false) => asking(),
            (dialect, _) => self::call(dialect),
        };
        all.push((again(), media, lf.replace('\n', "\r\n")));
        all.push((again(), media, lf.replace('\n', "\r")));
        all.push((again(), media, lf.replace("data: ", "data:")));
        all.push((again(), media, format!("\u{feff}{lf}")));
        all.push((again(), media, lf.trim_end().to_owned()));
        // One JSON value in several data lines.
        all.push((again(), media, lf.replace(",\"usage\"", ",\ndata: \"usage\"")));
    }
    all
}

fn in_parts(call: &Call, media: Option<&str>, parts: &[&[u8]]) -> (Vec<u8>, Usage, Quality) {
    let (mut meter, mut out) = (Meter::new(call, 200, media), Vec::new());
    parts.iter().for_each(|part| meter.feed(part, &mut out));
    let (usage, quality) = meter.end(true, &mut out);
    (out, usage, quality)
}

#[test]
fn every_variant_is_read_alike() {
    for (call, media, answer) in variants() {
        let plain = answers().into_iter().find(|(plain, _, _)| plain.dialect() == call.dialect()).expect("there");
        let (_, usage, quality) = metered(&plain.0, plain.1, plain.2.as_bytes(), true);
        let (out, got, how) = metered(&call, media, answer.as_bytes(), true);
        assert_eq!((got, how), (usage, quality), "{answer}");
        let passed = String::from_utf8(out).expect("UTF-8");
        if call.strips_usage_chunk() {
            assert!(passed.len() < answer.len() && !passed.contains("\"prompt_tokens\""), "{passed}");
        } else {
            assert_eq!(passed, answer);
        }
    }
}

#[test]
fn cut_in_two_anywhere_nothing_changes() {
    for (call, media, answer) in variants() {
        let bytes = answer.as_bytes();
        let whole = metered(&call, media, bytes, true);
        for at in 0..=bytes.len() {
            assert_eq!(in_parts(&call, media, &[&bytes[..at], &bytes[at..]]), whole, "cut at {at} of {answer}");
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(in_parts(&call, media, &single), whole);
    }
}

/// The usage of a stream is known in part wherever it ends, and is never less than that of a shorter part.
#[test]
fn aborted_anywhere_it_is_what_is_known() {
    for (call, media, answer) in answers() {
        let bytes = answer.as_bytes();
        let (_, all, _) = metered(&call, media, bytes, true);
        let mut before = Usage::default();
        let mut exact = false;
        for end in 0..=bytes.len() {
            let (out, usage, quality) = metered(&call, media, &bytes[..end], false);
            if !call.strips_usage_chunk() {
                assert_eq!(out, &bytes[..end]);
            }
            let total = |usage: &Usage| usage.input + usage.cache_read + usage.cache_write + usage.output;
            assert!(total(&usage) >= total(&before), "{usage:?} after {before:?} at {end}");
            match quality {
                Quality::Exact => assert_eq!(usage, all, "at {end}"),
                Quality::Partial | Quality::Estimated => assert!(!exact, "what was exact stays so, at {end}"),
            }
            exact |= quality == Quality::Exact;
            before = usage;
        }
        assert!(exact);
    }
}

proptest! {
    #[test]
    fn cut_into_many_parts_nothing_changes(which in any::<prop::sample::Index>(), sizes in proptest::collection::vec(1usize..90, 1..60)) {
        let all = variants();
        let (call, media, answer) = &all[which.index(all.len())];
        let (mut parts, mut rest) = (Vec::new(), answer.as_bytes());
        for size in sizes {
            let (part, left) = rest.split_at(size.min(rest.len()));
            parts.push(part);
            rest = left;
        }
        parts.push(rest);
        prop_assert_eq!(in_parts(call, *media, &parts), metered(call, *media, answer.as_bytes(), true));
    }

    #[test]
    fn whatever_comes_passes(
        bytes in proptest::collection::vec(any::<u8>(), 0..400),
        words in proptest::collection::vec(prop::sample::select(vec!["data:", " {", "}", "[", "]", "\"", "\r", "\n", "\\", ":", ",", "\"usage\"", "7"]), 0..80),
        events in any::<bool>(), cut in any::<prop::sample::Index>(), complete in any::<bool>(),
    ) {
        let media = if events { SSE } else { JSON };
        for soup in [bytes, words.concat().into_bytes()] {
            for call in [call(Dialect::Anthropic), asking(), call(Dialect::OpenAIResponses), call(Dialect::Gemini), call(Dialect::OpenAIChat)] {
                let (mut meter, mut out) = (Meter::new(&call, 200, media), Vec::new());
                let at = cut.index(soup.len() + 1);
                meter.feed(&soup[..at], &mut out);
                meter.feed(&soup[at..], &mut out);
                let (usage, _) = meter.end(complete, &mut out);
                prop_assert_eq!(&out, &soup);
                prop_assert!([usage.input, usage.cache_read, usage.cache_write, usage.output].iter().all(|tokens| *tokens >= 0));
            }
        }
    }
}
