//! Calls with a key, of which each runs once. A client that got no answer repeats its call with the same key, and gets the answer of the
//! first. Pure: the time comes in. The memory of the bridge holds the answers: after a restart a repeated call runs again.
//!
//! What always holds: a key of a call that may have run is known for its whole period. If memory is short, answers go, and keys stay.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use crate::answer::Answer;

/// How long a key is kept after the end of its call.
const KEPT_MILLISECONDS: u64 = 3_600_000;
/// The most keys that are kept. At the bound a new key is refused.
const MAX_KEYS: usize = 20_000;
/// The most bytes of the texts of kept answers.
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
    /// The first one ran, and its answer is not kept any more.
    AnswerGone,
    /// The first one had other arguments.
    OtherArguments,
    /// There are too many keys. The call is none of them.
    Full,
}

#[derive(Debug)]
enum State {
    Running,
    Answered(Arc<Answer>),
    AnswerGone,
}

#[derive(Debug)]
struct Call {
    arguments: [u8; 32],
    state: State,
}

/// The calls with keys.
#[derive(Debug, Default)]
pub struct Keys {
    calls: BTreeMap<Key, Call>,
    /// The ended ones, the oldest first, with their times.
    ended: VecDeque<(u64, Key)>,
    /// How many of [`Self::ended`], from the oldest on, have no answer any more.
    without_answer: usize,
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
            Some(Call { state: State::Answered(answer), .. }) => Repeat::Answered(answer.clone()),
            Some(Call { state: State::AnswerGone, .. }) => Repeat::AnswerGone,
            Some(Call { state: State::Running, .. }) => Repeat::Running,
            None if self.calls.len() >= MAX_KEYS => Repeat::Full,
            None => {
                self.calls.insert(key, Call { arguments, state: State::Running });
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
                call.state = State::Answered(Arc::new(answer));
                self.ended.push_back((now_milliseconds, key));
                self.forget(now_milliseconds);
            }
        }
    }

    /// Forgets old keys, and the oldest answers beyond the bound.
    fn forget(&mut self, now_milliseconds: u64) {
        while self.ended.front().is_some_and(|(at, _)| now_milliseconds.saturating_sub(*at) >= KEPT_MILLISECONDS) {
            let Some((_, key)) = self.ended.pop_front() else { return };
            let state = self.calls.remove(&key).map(|call| call.state);
            self.without_answer = self.without_answer.saturating_sub(1);
            self.bytes -= bytes(state.as_ref());
        }
        while self.bytes > MAX_ANSWER_BYTES {
            let Some((_, key)) = self.ended.get(self.without_answer) else { return };
            if let Some(call) = self.calls.get_mut(key) {
                let state = std::mem::replace(&mut call.state, State::AnswerGone);
                self.bytes -= bytes(Some(&state));
            }
            self.without_answer += 1;
        }
    }
}

fn bytes(state: Option<&State>) -> usize {
    match state {
        Some(State::Answered(answer)) => answer.bytes(),
        Some(State::Running | State::AnswerGone) | None => 0,
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
    fn an_answer_may_go_and_its_key_stays() {
        let mut keys = Keys::default();
        for (time, key) in ["a", "b", "c"].into_iter().enumerate() {
            keys.begin("a", "p", key, "{}", 0);
            keys.end("a", "p", key, Some(answer(MAX_ANSWER_BYTES / 2)), time as u64);
        }
        assert_eq!(keys.begin("a", "p", "a", "{}", 3), Repeat::AnswerGone, "the oldest goes first");
        assert!(matches!(keys.begin("a", "p", "b", "{}", 3), Repeat::Answered(_)));
        keys.begin("a", "p", "huge", "{}", 3);
        keys.end("a", "p", "huge", Some(answer(MAX_ANSWER_BYTES + 1)), 4);
        for key in ["a", "b", "c", "huge"] {
            assert_eq!(keys.begin("a", "p", key, "{}", 5), Repeat::AnswerGone, "{key}");
        }
        assert_eq!((keys.bytes, keys.without_answer), (0, 4));
        assert_eq!(keys.begin("a", "p", "a", "{}", KEPT_MILLISECONDS + 4), Repeat::First);
        assert_eq!((keys.bytes, keys.without_answer, keys.ended.len()), (0, 0, 0));
    }

    #[test]
    fn the_number_of_keys_is_bounded_and_no_old_one_makes_room() {
        let mut keys = Keys::default();
        for number in 0..MAX_KEYS {
            let key = number.to_string();
            assert_eq!(keys.begin("a", "p", &key, "{}", 0), Repeat::First);
            keys.end("a", "p", &key, Some(answer(1)), 0);
        }
        assert_eq!(keys.begin("a", "p", "one more", "{}", 1), Repeat::Full);
        assert!(matches!(keys.begin("a", "p", "0", "{}", 1), Repeat::Answered(_)));
        assert_eq!(keys.begin("a", "p", "one more", "{}", KEPT_MILLISECONDS), Repeat::First);
    }
}
