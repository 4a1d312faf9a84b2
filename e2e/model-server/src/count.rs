//! The provider's own books: what each caller used of each model with each credential, and what came in last. Tests compare
//! a ledger with `told`, to the token; `charged` is what a provider would bill, whoever heard of it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde_json::{Value, json};

use crate::ask::Tokens;

/// How many of the last requests are kept, to be looked at.
const LAST: usize = 64;
/// How many callers there may be: beyond it nothing new is counted by name.
const MOST_LINES: usize = 100_000;

/// Whose call it is, and of what.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Name of the credential; never the credential.
    pub credential: String,
    /// The model as it was named.
    pub model: String,
    /// Who calls, as the header `x-caller` says, or else the first word of `user-agent`.
    pub caller: String,
}

#[derive(Clone, Copy, Default)]
struct Line {
    /// When its first call came.
    since: Option<Instant>,
    calls: u64,
    refused: u64,
    finished: u64,
    charged: Tokens,
    told: Tokens,
}

/// The books.
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

    /// Counts a call; says how many there were before, and for how many seconds this caller has been known.
    pub fn begin(&self, key: &Key) -> (u64, u64) {
        let (mut before, mut known) = (0, 0);
        self.with(key, |line| {
            before = line.calls;
            known = line.since.get_or_insert_with(Instant::now).elapsed().as_secs();
            line.calls += 1;
        });
        (before, known)
    }

    /// A call was refused.
    pub fn refused(&self, key: &Key) {
        self.with(key, |line| line.refused += 1);
    }

    /// A piece of an answer goes out.
    pub fn piece(&self, key: &Key, charged: &Tokens, told: &Tokens) {
        if (*charged, *told) != (Tokens::default(), Tokens::default()) {
            self.with(key, |line| {
                line.charged.add(charged);
                line.told.add(told);
            });
        }
    }

    /// An answer went out to its end.
    pub fn finished(&self, key: &Key) {
        self.with(key, |line| line.finished += 1);
    }

    /// Keeps a request to be looked at.
    pub fn keep(&self, request: Value) {
        let mut last = open(&self.last);
        if last.len() >= LAST {
            last.pop_front();
        }
        last.push_back(request);
    }

    /// `GET /requests`: the last ones, the oldest first.
    #[must_use]
    pub fn requests(&self) -> Value {
        json!(*open(&self.last))
    }

    /// `GET /count`: a line a caller, and their sums.
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
