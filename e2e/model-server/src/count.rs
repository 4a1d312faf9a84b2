//! The provider's own counts: the tokens of each caller, model and credential, and the last requests. Tests compare a
//! ledger with `told`, to the token. `charged` is the amount that a provider would bill, whether or not it was
//! reported.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde_json::{Value, json};

use crate::ask::Tokens;

/// Number of the last requests that are kept for `GET /requests`.
const LAST: usize = 64;
/// The most callers that are counted by name.
const MOST_LINES: usize = 100_000;

/// The credential, model and caller of a call.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Name of the credential; never the credential.
    pub credential: String,
    /// The model's name in the call.
    pub model: String,
    /// The caller: the header `x-caller`, or else the first word of `user-agent`.
    pub caller: String,
}

#[derive(Clone, Copy, Default)]
struct Line {
    /// The time of its first call.
    since: Option<Instant>,
    calls: u64,
    refused: u64,
    finished: u64,
    charged: Tokens,
    told: Tokens,
}

/// The counts.
#[derive(Default)]
pub struct Books {
    lines: Mutex<BTreeMap<Key, Line>>,
    last: Mutex<VecDeque<Value>>,
}

fn open<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Books {
    fn with(&self, key: &Key, change: impl FnOnce(&mut Line)) {
        let mut lines = open(&self.lines);
        let full = lines.len() >= MOST_LINES && !lines.contains_key(key);
        let key = if full { Key { credential: String::new(), model: String::new(), caller: "others".to_owned() } } else { key.clone() };
        change(lines.entry(key).or_default());
    }

    /// Counts a call; the number of calls before it, and the seconds since the caller's first call.
    pub fn begin(&self, key: &Key) -> (u64, u64) {
        let (mut before, mut known) = (0, 0);
        self.with(key, |line| {
            before = line.calls;
            known = line.since.get_or_insert_with(Instant::now).elapsed().as_secs();
            line.calls += 1;
        });
        (before, known)
    }

    /// Counts a refused call.
    pub fn refused(&self, key: &Key) {
        self.with(key, |line| line.refused += 1);
    }

    /// Counts a piece of an answer that is sent.
    pub fn piece(&self, key: &Key, charged: &Tokens, told: &Tokens) {
        if (*charged, *told) != (Tokens::default(), Tokens::default()) {
            self.with(key, |line| {
                line.charged.add(charged);
                line.told.add(told);
            });
        }
    }

    /// Counts an answer that was sent to its end.
    pub fn finished(&self, key: &Key) {
        self.with(key, |line| line.finished += 1);
    }

    /// Keeps a request for `GET /requests`.
    pub fn keep_request(&self, request: Value) {
        let mut last = open(&self.last);
        if last.len() >= LAST {
            last.pop_front();
        }
        last.push_back(request);
    }

    /// `GET /requests`: the last requests, the oldest first.
    #[must_use]
    pub fn requests(&self) -> Value {
        json!(*open(&self.last))
    }

    /// `GET /count`: a line for each caller, and their sums.
    #[must_use]
    pub fn count(&self) -> Value {
        let lines = open(&self.lines);
        let mut sum = Line::default();
        for line in lines.values() {
            sum.calls += line.calls;
            sum.refused += line.refused;
            sum.finished += line.finished;
            sum.charged.add(&line.charged);
            sum.told.add(&line.told);
        }
        let named = |(key, line): (&Key, &Line)| {
            let mut value = numbers(line);
            for (name, text) in [("credential", &key.credential), ("model", &key.model), ("caller", &key.caller)] {
                crate::turn::put(&mut value, name, Some(json!(text)));
            }
            value
        };
        json!({"lines": lines.iter().map(named).collect::<Vec<_>>(), "all": numbers(&sum)})
    }
}

fn numbers(line: &Line) -> Value {
    json!({
        "calls": line.calls, "refused": line.refused, "finished": line.finished,
        "charged": tokens(&line.charged), "told": tokens(&line.told),
    })
}

fn tokens(tokens: &Tokens) -> Value {
    let Tokens { input, cache_read, cache_write, output, reasoning } = *tokens;
    let all = tokens.all_input().saturating_add(output);
    json!({"input": input, "cacheRead": cache_read, "cacheWrite": cache_write, "output": output, "reasoning": reasoning, "all": all})
}
