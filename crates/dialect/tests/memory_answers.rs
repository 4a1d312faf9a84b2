//! Memory that reading one answer keeps, for any answer of the provider.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use spillway_dialect::{Call, Meter, parse, route};

/// Maximum number of bytes that are kept of one answer: names of paths, a few words, and one event that may be dropped.
const MOST: usize = 160 * 1024;
const MIB: usize = 1024 * 1024;

static NOW: AtomicUsize = AtomicUsize::new(0);

struct Counting;

#[expect(unsafe_code, reason = "an allocator cannot be written without")]
// SAFETY: each call goes to the system's allocator as it came; counting changes nothing of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        NOW.fetch_add(layout.size(), Ordering::Relaxed);
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

const CALLS: [(&str, &str); 5] = [
    ("/v1/messages", r#"{"model":"m","stream":true}"#),
    ("/v1/chat/completions", r#"{"model":"m","stream":true}"#),
    ("/v1/chat/completions", r#"{"model":"m","stream":true,"stream_options":{"include_usage":true}}"#),
    ("/v1/responses", r#"{"model":"m","stream":true}"#),
    ("/v1beta/models/m:streamGenerateContent", "{}"),
];

fn call(path: &str, body: &str) -> Call {
    parse(&route("POST", path, None).expect(path), None, None, body.as_bytes()).expect(path)
}

/// Beginnings of answers, each with a part that is repeated.
const ANSWERS: [(&str, &str); 12] = [
    (r#"{"choices":[{"logprobs":{"content":["#, r#"{"token":"a","logprob":-0.1,"top_logprobs":[]},"#),
    (r#"{"usage":{"prompt_tokens":"#, "1"),
    (r#"{"content":""#, "words and more words "),
    ("data: {\"delta\":{\"text\":\"", "words and more words "),
    ("data: [", "[[1],{\"usage\":2}],"),
    ("data: {", "\"usage\":{\"x\":1},"),
    ("{\"", "a key without end "),
    ("data: {\"usage\":{\"", "a key without end "),
    ("{\"usage\":", "["),
    ("", ": a comment\n"),
    ("", "data: x\n"),
    ("event: ", "x"),
];

/// There is only one test in this file, because the allocator would count others too.
#[test]
fn no_answer_is_kept_however_long_it_is() {
    for (path, body) in CALLS {
        let call = call(path, body);
        for media in ["application/json", "text/event-stream"] {
            for (begin, part) in ANSWERS {
                let chunk = part.repeat(64 * 1024 / part.len());
                let mut out = Vec::with_capacity(4 * chunk.len());
                let before = NOW.load(Ordering::Relaxed);
                let mut meter = Meter::new(&call, 200, Some(media));
                meter.feed(begin.as_bytes(), &mut out);
                let mut fed = 0;
                while fed < 2 * MIB {
                    out.clear();
                    meter.feed(chunk.as_bytes(), &mut out);
                    fed += chunk.len();
                }
                let kept = NOW.load(Ordering::Relaxed).saturating_sub(before);
                assert!(kept <= MOST, "{path}, {media}: {kept} bytes are kept of {fed} of {part:?}");
                drop(meter);
            }
        }
    }
}
