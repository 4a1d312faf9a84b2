//! Model calls that were refused for lack of tokens, and their effect on the failure of an item whose program then
//! ends. Pure.
//!
//! The last output of a program may say anything or nothing. The refusal is known here, so the message always names the
//! Budget.

use crate::api::conditions::reasons;
use crate::policy::budget::refusal::RetryHint;
use crate::policy::budget::{Key, Refusal};
use crate::policy::work::failure::Failure;

/// Maximum length of the message of an attempt, in characters.
const MAX_MESSAGE_CHARS: usize = 1024;
/// Maximum length of a refusal in that message, in characters: names of objects may be long.
const MAX_REFUSAL_CHARS: usize = 640;

/// Who refused a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedBy {
    /// A budget above the agent. The item is not at fault.
    Above,
    /// The share of the item, finally: no later call of this attempt gets more.
    Share,
    /// The lifetime of the agent or the share of the item, temporarily or for another reason.
    Own,
}

/// A call that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedCall {
    /// The place.
    pub by: RefusedBy,
    /// The refusal: one sentence that names the object, the limit and the field to raise.
    pub words: String,
}

impl RefusedCall {
    /// The parts of a refusal that are kept.
    pub fn of(refusal: &Refusal) -> Self {
        let lasts = match refusal.retry {
            RetryHint::Wait(_) => false,
            RetryHint::Later(_) | RetryHint::Never => true,
        };
        let by = match &refusal.key {
            Key::Cluster(_) | Key::Namespace { .. } | Key::Budget { .. } | Key::Share { .. } => RefusedBy::Above,
            Key::Task { .. } if lasts => RefusedBy::Share,
            Key::Task { .. } | Key::Agent(_) => RefusedBy::Own,
        };
        Self { by, words: first(&refusal.to_string(), MAX_REFUSAL_CHARS) }
    }
}

/// The verdict on an attempt whose program failed, or reported a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptVerdict {
    /// The item failed.
    Failed(Failure),
    /// The item is given back with this message: a budget above the agent refused.
    GivenBack(String),
}

/// Judges a failure, with the refusal that came shortly before it, if there was one. An explicit report of the program
/// about its item is kept. A bad exit after a refusal is blamed on the refusal.
pub fn judge(failure: Failure, refused: Option<&RefusedCall>) -> AttemptVerdict {
    let Some(refused) = refused else { return AttemptVerdict::Failed(failure) };
    let Failure { reason, message, exit_code } = failure;
    let died = exit_code.is_some_and(|code| code != 0);
    let how = match exit_code {
        Some(code) => format!("the program ended ({reason}, exit code {code})"),
        None => format!("the item was reported as failed ({reason})"),
    };
    let message = last_words(&message, &format!("{how} after a model call was refused: {}", refused.words));
    match refused.by {
        RefusedBy::Above if died => AttemptVerdict::GivenBack(message),
        RefusedBy::Share if died => AttemptVerdict::Failed(Failure { reason: reasons::SHARE_SPENT.to_owned(), message, exit_code }),
        RefusedBy::Above | RefusedBy::Share | RefusedBy::Own => AttemptVerdict::Failed(Failure { reason, message, exit_code }),
    }
}

/// Puts the cause at the end, where people look for it, and before it as much of the end of the program's output as
/// fits.
fn last_words(words: &str, cause: &str) -> String {
    let words = words.trim();
    let available = MAX_MESSAGE_CHARS.saturating_sub(cause.chars().count() + 1);
    if words.is_empty() || available == 0 {
        return first(cause, MAX_MESSAGE_CHARS);
    }
    let skip = words.chars().count().saturating_sub(available);
    let last: String = words.chars().skip(skip).collect();
    format!("{last}\n{cause}")
}

fn first(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::budget::refusal::RefusalCause;

    fn refusal(key: Key, when: RetryHint) -> Refusal {
        Refusal::new(key, RefusalCause::Used, when, "spec.tokens")
    }

    fn died(message: &str) -> Failure {
        Failure { reason: "Exited".into(), message: message.into(), exit_code: Some(1) }
    }

    #[test]
    fn the_budget_is_named_whatever_the_program_said_last() {
        let refused = RefusedCall::of(&refusal(Key::budget("team", "night"), RetryHint::Later(0)));
        for words in ["", "[object Object]", "  at process.run (node:internal)\n", &"x".repeat(5000), &"\u{20ac}".repeat(2000)] {
            let AttemptVerdict::GivenBack(message) = judge(died(words), Some(&refused)) else { panic!("{words} is a failure") };
            assert!(message.ends_with("after a model call was refused: Budget/night in team. Raise spec.tokens"), "{message}");
            assert!(message.chars().count() <= MAX_MESSAGE_CHARS && message.contains("(Exited, exit code 1)"), "{message}");
            let last = words.trim().chars().rev().take(20).collect::<String>().chars().rev().collect::<String>();
            assert!(message.contains(&last), "{message}");
        }
    }

    #[test]
    fn a_refusal_with_long_names_leaves_a_message_that_the_api_takes() {
        let refused = RefusedCall::of(&refusal(Key::budget(&"n".repeat(253), &"b".repeat(2000)), RetryHint::Never));
        let AttemptVerdict::GivenBack(message) = judge(died(&"y".repeat(3000)), Some(&refused)) else { panic!("a failure") };
        assert_eq!(message.chars().count(), MAX_MESSAGE_CHARS);
        assert!(message.starts_with("yyy") && message.contains("Budget/bbb"), "{message}");
    }

    #[test]
    fn the_items_own_share_is_a_failure_with_a_reason_of_its_own() {
        let task = Key::Task { item: "i".into(), epoch: 1 };
        let share = RefusedCall::of(&refusal(task.clone(), RetryHint::Never));
        let AttemptVerdict::Failed(Failure { reason, message, exit_code }) = judge(died("Error"), Some(&share)) else {
            panic!("given back")
        };
        assert_eq!((reason.as_str(), exit_code), ("ShareSpent", Some(1)));
        assert!(message.contains("the item's share") && message.starts_with("Error\n"), "{message}");
        let held = RefusedCall::of(&refusal(task, RetryHint::Wait(2)));
        assert!(matches!(judge(died("Error"), Some(&held)), AttemptVerdict::Failed(failure) if failure.reason == "Exited"));
        let life = RefusedCall::of(&refusal(Key::Agent("a".into()), RetryHint::Never));
        assert!(matches!(judge(died("Error"), Some(&life)), AttemptVerdict::Failed(failure)
            if failure.reason == "Exited" && failure.message.contains("the agent's lifetime")));
    }

    #[test]
    fn what_a_program_says_itself_of_its_item_holds() {
        let refused = RefusedCall::of(&refusal(Key::budget("team", "night"), RetryHint::Never));
        let said = Failure { reason: "BadInput".into(), message: "no such file".into(), exit_code: None };
        let AttemptVerdict::Failed(failure) = judge(said.clone(), Some(&refused)) else { panic!("given back") };
        assert_eq!(failure.reason, "BadInput");
        assert!(failure.message.starts_with("no such file\nthe item was reported as failed"), "{}", failure.message);
        assert_eq!(judge(said.clone(), None), AttemptVerdict::Failed(said));
        assert_eq!(judge(died("x"), None), AttemptVerdict::Failed(died("x")));
    }
}
