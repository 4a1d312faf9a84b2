//! Calls with a key, of which each runs once. A client that got no answer repeats its call with the same key, and gets the answer of the
//! first. Pure: the time comes in. The memory of the bridge holds the answers: after a restart a repeated call runs again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use crate::answer::Answer;

/// How long an answer is kept.
const KEPT_MILLISECONDS: u64 = 3_600_000;
/// The most answers that are kept.
const MAX_ANSWERS: usize = 1000;
/// The most bytes of their texts.
const MAX_ANSWER_BYTES: usize = 16 * 1024 * 1024;
/// The most characters of a key.
pub const MAX_KEY_CHARS: usize = 128;

/// A caller, a program and a key.
type Key = (String, String, String);

/// What is known of a call with this key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// It is the first. It must [end](Keys::end).
    First,
    /// The first one runs.
    Running,
    /// The first one had this answer.
    Answered(Arc<Answer>),
    /// The first one had other arguments.
    OtherArguments,
}

#[derive(Debug)]
struct Call {
    arguments: [u8; 32],
    answer: Option<Arc<Answer>>,
}

/// The calls with keys.
#[derive(Debug, Default)]
pub struct Keys {
    calls: BTreeMap<Key, Call>,
    /// The answered ones, the oldest first, with their times.
    answered: VecDeque<(u64, Key)>,
    bytes: usize,
}

impl Keys {
    /// A call with a key comes in. `arguments`: its arguments as text.
    pub fn begin(&mut self, caller: &str, program: &str, key: &str, arguments: &str, now_milliseconds: u64) -> Repeat {
        self.forget(now_milliseconds);
        let arguments: [u8; 32] = Sha256::digest(arguments).into();
        let key = (caller.to_owned(), program.to_owned(), key.to_owned());
        match self.calls.get(&key) {
            Some(call) if call.arguments != arguments => Repeat::OtherArguments,
            Some(Call { answer: Some(answer), .. }) => Repeat::Answered(answer.clone()),
            Some(_) => Repeat::Running,
            None => {
                self.calls.insert(key, Call { arguments, answer: None });
                Repeat::First
            }
        }
    }

    /// The first call with this key is over. `answer`: none if no process was started, so that a repeat may run.
    pub fn end(&mut self, caller: &str, program: &str, key: &str, answer: Option<Answer>, now_milliseconds: u64) {
        let key = (caller.to_owned(), program.to_owned(), key.to_owned());
        match answer {
            None => {
                self.calls.remove(&key);
            }
            Some(answer) => {
                let Some(call) = self.calls.get_mut(&key) else { return };
                self.bytes += answer.bytes();
                call.answer = Some(Arc::new(answer));
                self.answered.push_back((now_milliseconds, key));
                self.forget(now_milliseconds);
            }
        }
    }

    fn forget(&mut self, now_milliseconds: u64) {
        while let Some((at, _)) = self.answered.front() {
            let old = now_milliseconds.saturating_sub(*at) >= KEPT_MILLISECONDS;
            if !old && self.answered.len() <= MAX_ANSWERS && self.bytes <= MAX_ANSWER_BYTES {
                return;
            }
            let Some((_, key)) = self.answered.pop_front() else { return };
            let answer = self.calls.remove(&key).and_then(|call| call.answer);
            self.bytes -= answer.map_or(0, |answer| answer.bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Status;

    fn answer(bytes: usize) -> Answer {
        Answer { stdout: "x".repeat(bytes), ..Answer::not_run(Status::Ok, "", "") }
    }

    #[test]
    fn a_call_with_a_key_runs_once() {
        let mut keys = Keys::default();
        assert_eq!(keys.begin("a", "p", "k", "{}", 0), Repeat::First);
        assert_eq!(keys.begin("a", "p", "k", "{}", 1), Repeat::Running);
        for (caller, program, key) in [("b", "p", "k"), ("a", "q", "k"), ("a", "p", "l")] {
            assert_eq!(keys.begin(caller, program, key, "{}", 1), Repeat::First, "another call");
        }
        keys.end("a", "p", "k", Some(answer(3)), 2);
        assert_eq!(keys.begin("a", "p", "k", "{}", 3), Repeat::Answered(Arc::new(answer(3))));
        assert_eq!(keys.begin("a", "p", "k", "{1}", 3), Repeat::OtherArguments);
        assert_eq!(keys.begin("a", "p", "k", "{}", 2 + KEPT_MILLISECONDS), Repeat::First, "it is forgotten");
    }

    #[test]
    fn a_call_that_started_nothing_may_be_repeated() {
        let mut keys = Keys::default();
        assert_eq!(keys.begin("a", "p", "k", "{}", 0), Repeat::First);
        keys.end("a", "p", "k", None, 1);
        assert_eq!(keys.begin("a", "p", "k", "{other}", 2), Repeat::First);
    }

    #[test]
    fn what_is_kept_is_bounded_and_the_oldest_goes_first() {
        let mut keys = Keys::default();
        for number in 0..MAX_ANSWERS + 10 {
            let key = number.to_string();
            keys.begin("a", "p", &key, "{}", 0);
            keys.end("a", "p", &key, Some(answer(10)), 0);
        }
        assert_eq!((keys.calls.len(), keys.bytes), (MAX_ANSWERS, 10 * MAX_ANSWERS));
        assert_eq!(keys.begin("a", "p", "0", "{}", 0), Repeat::First);
        keys.end("a", "p", "0", Some(answer(MAX_ANSWER_BYTES)), 0);
        assert_eq!((keys.calls.len(), keys.bytes), (1, MAX_ANSWER_BYTES));
    }
}
