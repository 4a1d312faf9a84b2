//! The model calls of the program, by their conversations, for the watch-dog of commands. Pure, except for the lock around it.
//!
//! The gateway reads the body of a call, and its answer names the conversation that the call continues. Until then, and if the
//! answer names none, the conversation is unknown.
//!
//! What always holds: a forgotten conversation that continues counts as a new one. The start of a call is never forgotten.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use spillway_wire::link::{Conversation, ModelCalls};

use crate::clock::BootTime;

/// The most conversations that are remembered.
const MAX_CONVERSATIONS: usize = 16;

/// A call without an end yet.
#[derive(Clone, Copy, Debug)]
struct OpenCall {
    begun: u64,
    conversation: Option<u64>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    under_way: BTreeMap<u64, OpenCall>,
    conversations: BTreeMap<u64, Conversation>,
    /// The start of the last call that ended without a known conversation, or whose conversation was forgotten.
    unknown: Option<u64>,
    begun: u64,
    seen: u64,
}

/// All model calls of the pod's program. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Conversations(Arc<Mutex<State>>);

/// A call. It ends when it is dropped.
#[derive(Debug)]
pub struct Call {
    all: Conversations,
    number: u64,
}

impl Conversations {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a call.
    pub fn begin(&self, now: BootTime) -> Call {
        let mut state = self.lock();
        let (number, begun) = (state.next, now.millis());
        state.next += 1;
        (state.begun, state.seen) = (begun, begun);
        state.under_way.insert(number, OpenCall { begun, conversation: None });
        drop(state);
        Call { all: self.clone(), number }
    }

    /// The calls so far.
    pub fn calls(&self) -> ModelCalls {
        let state = self.lock();
        let unknown = state.under_way.values().filter(|call| call.conversation.is_none()).map(|call| call.begun);
        ModelCalls {
            begun: state.begun,
            seen: state.seen,
            conversations: state.conversations.values().copied().collect(),
            unknown: unknown.chain(state.unknown).max(),
            answered: None,
        }
    }
}

impl Call {
    /// A part of the answer came.
    pub fn seen(&self, now: BootTime) {
        self.all.lock().seen = now.millis();
    }

    /// The call continues this conversation.
    pub fn set_conversation(&self, conversation: u64) {
        let mut state = self.all.lock();
        let state = &mut *state;
        let Some(call) = state.under_way.get_mut(&self.number) else { return };
        call.conversation = Some(conversation);
        let new = Conversation { first: call.begun, begun: call.begun, ended: None };
        let known = state.conversations.entry(conversation).or_insert(new);
        (known.begun, known.ended) = (known.begun.max(call.begun), None);
        if state.conversations.len() > MAX_CONVERSATIONS {
            // Of the conversations without an open call, the one whose answer ended first is forgotten.
            let oldest = state.conversations.iter().filter_map(|(number, known)| Some((known.ended?, *number))).min();
            let forgotten = oldest.and_then(|(_, number)| state.conversations.remove(&number));
            state.unknown = state.unknown.max(forgotten.map(|forgotten| forgotten.begun));
        }
    }

    fn end(&self, now: BootTime) {
        let mut state = self.all.lock();
        let state = &mut *state;
        let Some(call) = state.under_way.remove(&self.number) else { return };
        state.seen = now.millis();
        let Some(conversation) = call.conversation else {
            state.unknown = state.unknown.max(Some(call.begun));
            return;
        };
        let others = state.under_way.values().any(|other| other.conversation == Some(conversation));
        if let Some(known) = state.conversations.get_mut(&conversation).filter(|_| !others) {
            known.ended = Some(now.millis());
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.end(BootTime::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> BootTime {
        BootTime::from_millis(millis)
    }

    /// Makes a call of a conversation, from its beginning to its end.
    fn call(all: &Conversations, conversation: Option<u64>, begun: u64, ended: u64) {
        let call = all.begin(at(begun));
        conversation.into_iter().for_each(|conversation| call.set_conversation(conversation));
        call.end(at(ended));
    }

    fn of(first: u64, begun: u64, ended: Option<u64>) -> Conversation {
        Conversation { first, begun, ended }
    }

    #[test]
    fn a_call_is_of_no_known_conversation_until_its_answer_says_so() {
        let all = Conversations::default();
        let first = all.begin(at(10));
        assert_eq!(all.calls(), ModelCalls { begun: 10, seen: 10, unknown: Some(10), ..ModelCalls::default() });
        first.set_conversation(7);
        first.seen(at(15));
        assert_eq!(all.calls(), ModelCalls { begun: 10, seen: 15, conversations: vec![of(10, 10, None)], unknown: None, answered: None });
        let beside = all.begin(at(20));
        first.end(at(30));
        assert_eq!(
            all.calls(),
            ModelCalls { begun: 20, seen: 30, conversations: vec![of(10, 10, Some(30))], unknown: Some(20), answered: None }
        );
        // The answer never names a conversation, so that it stays unknown.
        beside.end(at(40));
        call(&all, Some(7), 50, 60);
        assert_eq!(
            all.calls(),
            ModelCalls { begun: 50, seen: 60, conversations: vec![of(10, 50, Some(60))], unknown: Some(20), answered: None }
        );
        drop((first, beside));
        assert_eq!(all.calls().seen, 60, "an end counts once");
    }

    #[test]
    fn a_conversation_with_two_calls_at_once_ends_with_the_last_of_them() {
        let all = Conversations::default();
        let (one, other) = (all.begin(at(10)), all.begin(at(20)));
        one.set_conversation(7);
        other.set_conversation(7);
        one.end(at(30));
        assert_eq!(all.calls().conversations, [of(10, 20, None)]);
        other.end(at(40));
        assert_eq!(all.calls().conversations, [of(10, 20, Some(40))]);
    }

    #[test]
    fn a_bounded_number_of_conversations_is_remembered_and_a_forgotten_one_is_new() {
        let all = Conversations::default();
        let running = all.begin(at(1));
        running.set_conversation(u64::MAX);
        for number in 0..10_000 {
            call(&all, Some(number), 10 + number, 11 + number);
            assert!(all.calls().conversations.len() <= MAX_CONVERSATIONS);
        }
        assert!(all.calls().conversations.contains(&of(1, 1, None)), "one that is under way is not forgotten");
        assert_eq!(all.calls().unknown, Some(9_994), "that the forgotten ones were there is not");
        call(&all, Some(0), 20_000, 20_001);
        assert!(all.calls().conversations.contains(&of(20_000, 20_000, Some(20_001))));
    }
}
