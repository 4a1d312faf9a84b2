//! Memory that reading one call takes, for any body.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use spillway_dialect::{Route, parse, route};

const MIB: usize = 1024 * 1024;
/// Maximum number of bytes that reading takes in addition to the body and the sent body.
const MOST: usize = 16 * MIB;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Counting;

#[expect(unsafe_code, reason = "an allocator cannot be written without")]
// SAFETY: each call goes to the system's allocator as it came; counting changes nothing of it.
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

const PATHS: [&str; 5] =
    ["/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions", "/v1/responses", "/v1beta/models/m:streamGenerateContent"];

/// A body of about `bytes` bytes whose `member` is a list of `part`, or an object with many keys if `keys` is set.
fn body(member: &str, part: &str, bytes: usize, keys: bool) -> Vec<u8> {
    let mut body = format!("{{\"model\":\"m\",\"{member}\":{}", if keys { '{' } else { '[' });
    let mut number = 0;
    while body.len() < bytes {
        if number > 0 {
            body.push(',');
        }
        if keys {
            body.push_str(&format!("\"{number:x}\":"));
        }
        body.push_str(part);
        number += 1;
    }
    body.push_str(if keys { "}}" } else { "]}" });
    body.into_bytes()
}

/// Checks the memory that reading this body takes in addition to the body and the sent body.
fn costs_its_length(route: &Route, body: Vec<u8>, part: &str) {
    let length = body.len();
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let sent = parse(route, None, None, body).map(|call| call.upstream_body(100).len());
    let peak = PEAK.load(Ordering::Relaxed) - before;
    assert!(peak <= MOST + 2 * length, "{route:?}: {peak} bytes for {length} of {part}; {sent:?}");
}

/// There is only one test in this file, because the allocator would count others too.
#[test]
fn a_hostile_body_costs_no_more_than_its_own_length_and_a_constant() {
    let parts = ["[]", "{}", "0", "\"\"", "null", "[[[[[[]]]]]]", r#"{"":0}"#, r#"{"role":"user","content":"\u0041"}"#, r#""\"\"\"\"""#];
    for path in PATHS {
        let route = route("POST", path, None).expect(path);
        // Bodies of the maximum size. Most of each body is not read.
        for part in ["0", "[]", "{}"] {
            costs_its_length(&route, body("unknown", part, 6 * MIB, false), part);
        }
        for member in ["messages", "contents", "unknown"] {
            for part in parts {
                for (bytes, keys) in [(300 * 1024, false), (MIB, true)] {
                    costs_its_length(&route, body(member, part, bytes, keys), part);
                }
            }
        }
    }
}
