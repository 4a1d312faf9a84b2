//! Questions to the sidecar: to queue work, to list it, and to read its results. A question without an answer is repeated for a
//! while. A refusal is reported in its own words.

use std::path::PathBuf;
use std::time::Duration;

use spillway_wire::follow::{Inbox, InboxQuery, ListWork, Message, WorkList};
use spillway_wire::link::{Answer, Ask};
use spillway_wire::plan::PlannedItem;
use spillway_wire::work::{Assignment, MAX_CLAIM_WAIT_SECONDS, Outcome};
use spillway_wire::{Code, Refusal};

use super::decision::{Queueing, Step, queueing};
use crate::command::answer::message_line;
use crate::command::ask::{self, key_or_new};
use crate::command::follow;
use crate::command::place::SidecarPaths;

/// Tries of a question without an answer.
const MAX_ATTEMPTS: u32 = 5;
/// Between two tries of a question.
const QUESTION_RETRY_DELAY: Duration = Duration::from_secs(2);
/// Between two tries to report the end of an item.
const CONCLUDE_RETRY_DELAY: Duration = Duration::from_secs(1);

/// The error about an answer of the wrong kind.
const WRONG_ANSWER_MESSAGE: &str = "the sidecar's answer does not match the request";

/// Between two questions for an item that found none.
const NEXT_ITEM_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The sidecar.
#[derive(Clone, Debug)]
pub struct Sidecar {
    socket: PathBuf,
    data: PathBuf,
}

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SidecarError {
    /// The sidecar or the gateway does not answer now.
    Unavailable(String),
    /// Work with the same key was queued before. It may differ.
    Known(String),
    /// The request was refused.
    Refused(String),
}

impl SidecarError {
    fn of(refusal: &Refusal) -> Self {
        let words = refusal.to_string();
        if matches!(refusal.code, Code::Duplicate | Code::KeyReused) {
            Self::Known(words)
        } else if refusal.code.is_retryable() {
            Self::Unavailable(words)
        } else {
            Self::Refused(words)
        }
    }

    /// The message.
    pub fn words(&self) -> &str {
        match self {
            Self::Unavailable(words) | Self::Known(words) | Self::Refused(words) => words,
        }
    }
}

/// An item that was queued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queued {
    /// Its name.
    pub name: String,
    /// Its type.
    pub type_: String,
    /// Its queue.
    pub queue: String,
}

impl Sidecar {
    /// The sidecar at these paths.
    pub fn new(place: &SidecarPaths) -> Self {
        Self { socket: place.ask_socket.clone(), data: place.ask_data.clone() }
    }

    /// Asks, and repeats the question while there is no answer.
    fn ask(&self, question: &Ask) -> Result<Answer, SidecarError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let trouble = match ask::ask(&self.socket, question) {
                Ok(Answer::Refused(refusal)) => SidecarError::of(&refusal),
                Ok(answer) => return Ok(answer),
                Err(error) => SidecarError::Unavailable(format!("the sidecar cannot be reached: {error}")),
            };
            match trouble {
                SidecarError::Unavailable(_) if tries < MAX_ATTEMPTS => std::thread::sleep(QUESTION_RETRY_DELAY),
                trouble => return Err(trouble),
            }
        }
    }

    /// Queues work, all or nothing.
    pub fn queue(&self, steps: &[Step], group: Option<&str>, dedup_key: Option<&str>) -> Result<Vec<Queued>, SidecarError> {
        let key = key_or_new(None).map_err(|refusal| SidecarError::Unavailable(refusal.to_string()))?;
        let question = match queueing(steps, group, dedup_key) {
            None => return Ok(Vec::new()),
            Some(Queueing::One(request)) => Ask::Submit { key, request },
            Some(Queueing::Many(request)) => Ask::Plan { key, request },
        };
        let type_of = |key: &str| steps.iter().find(|step| step.key == key).map(|step| step.type_.clone()).unwrap_or_default();
        match self.ask(&question)? {
            Answer::Submitted(item) => {
                let type_ = steps.first().map(|step| step.type_.clone()).unwrap_or_default();
                Ok(vec![Queued { name: item.name, type_, queue: item.queue }])
            }
            Answer::Planned(planned) => {
                let queued = |PlannedItem { key, name, uid: _, queue }| Queued { name, type_: type_of(&key), queue };
                Ok(planned.items.into_iter().map(queued).collect())
            }
            _ => Err(SidecarError::Refused(WRONG_ANSWER_MESSAGE.to_owned())),
        }
    }

    /// The items that the agents of the pool submitted, or those of this group.
    pub fn list(&self, group: Option<&str>) -> Result<WorkList, SidecarError> {
        let question = Ask::ListWork(ListWork { submitted_by: None, group: group.map(str::to_owned), plan: None });
        match self.ask(&question)? {
            Answer::Listed(listed) => Ok(listed),
            _ => Err(SidecarError::Refused(WRONG_ANSWER_MESSAGE.to_owned())),
        }
    }

    /// The next item, or the item in hand; `None`: there is no item yet.
    pub fn next(&self) -> Option<Box<Assignment>> {
        match ask::ask(&self.socket, &Ask::Next { wait_seconds: MAX_CLAIM_WAIT_SECONDS }) {
            Ok(Answer::Item(Some(item))) => Some(item),
            // The sidecar has waited already. The pause is for a sidecar that does not wait.
            Ok(Answer::Item(None)) => {
                std::thread::sleep(NEXT_ITEM_POLL_INTERVAL);
                None
            }
            // The sidecar answered at once, without a wait.
            Ok(_) | Err(_) => {
                std::thread::sleep(CONCLUDE_RETRY_DELAY);
                None
            }
        }
    }

    /// Reports the end of the item in hand, until the sidecar answers. A refusal is no error: the item may belong to another
    /// agent by now.
    pub fn conclude(&self, outcome: &Outcome) {
        while ask::ask(&self.socket, &Ask::Finish(outcome.clone())).is_err() {
            std::thread::sleep(CONCLUDE_RETRY_DELAY);
        }
    }

    /// Why a model call of this many bytes should not be tried: a limit has fewer tokens left, or is paused. If the call were
    /// refused, the agent and its item would be paused.
    pub fn short_of_tokens(&self, bytes: usize) -> Option<String> {
        let Ok(Answer::Budget(left)) = ask::ask(&self.socket, &Ask::Budget) else { return None };
        let needed = i64::try_from(bytes / 4).unwrap_or(i64::MAX);
        let short = left.limits.into_iter().find(|limit| limit.enforced && (limit.paused || limit.left < needed))?;
        Some(format!("{}, {}: {} tokens are left", short.budget, short.name, if short.paused { 0 } else { short.left }))
    }

    /// Reports for ever what has ended of the work that the pool's agents queued. An agent that replaces another one also gets
    /// the results that the other one waited for.
    pub fn listen(&self, told: impl Fn(&str)) {
        let file = follow::cursor_file(&self.data);
        let mut after = follow::cursor(&file);
        loop {
            match ask::ask(&self.socket, &Ask::Inbox(InboxQuery { after: after.clone(), wait_seconds: MAX_CLAIM_WAIT_SECONDS })) {
                Ok(Answer::Inbox(Inbox { messages, cursor })) => {
                    messages.iter().for_each(|message| told(&message_text(message)));
                    follow::remember(&file, &cursor);
                    after = Some(cursor);
                }
                Ok(_) | Err(_) => std::thread::sleep(CONCLUDE_RETRY_DELAY),
            }
        }
    }
}

/// A message in one line.
fn message_text(message: &Message) -> String {
    let line = message_line(message, false);
    match message {
        Message::ItemEnded { item } => match line.strip_prefix(&format!("{}: Succeeded", item.name)) {
            Some(rest) => format!("Done: {}{rest}", item.name),
            None => format!("Failed: {line}"),
        },
        Message::PlanEnded { plan, .. } => {
            let counts = line.strip_prefix(&format!("{plan}: finished, ")).unwrap_or(&line);
            format!("Plan {plan} finished: {counts}")
        }
        Message::ItemWaits { item, text } => format!("Waits: {}: {text}", item.name),
        Message::Escalated { .. } => format!("Needs attention: {line}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_wire::follow::SubmittedItem;

    #[test]
    fn what_ended_is_told_in_one_line() {
        let ended = |phase: &str, reason: Option<&str>, result: Option<&str>| {
            let item = SubmittedItem {
                name: "item-a".into(),
                phase: phase.into(),
                reason: reason.map(Into::into),
                result: result.map(Into::into),
                ..SubmittedItem::default()
            };
            message_text(&Message::ItemEnded { item })
        };
        assert_eq!(ended("Succeeded", None, Some("3 steps for \"fix: a\"\nand more")), "Done: item-a: 3 steps for \"fix: a\" and more");
        assert_eq!(ended("Succeeded", None, None), "Done: item-a");
        assert_eq!(ended("DeadLettered", Some("TooManyFailures"), Some("no")), "Failed: item-a: DeadLettered (TooManyFailures): no");
        let plan =
            Message::PlanEnded { plan: "plan-d".into(), counts: [("DeadLettered".to_owned(), 1), ("Succeeded".to_owned(), 2)].into() };
        assert_eq!(message_text(&plan), "Plan plan-d finished: 1 DeadLettered, 2 Succeeded");
        let waits =
            Message::ItemWaits { item: SubmittedItem { name: "item-a".into(), ..SubmittedItem::default() }, text: "no pool has m".into() };
        assert_eq!(message_text(&waits), "Waits: item-a: no pool has m");
    }

    #[test]
    fn what_passes_is_waited_for_and_what_was_queued_before_is_known() {
        let of = |code| SidecarError::of(&Refusal::new(code, "x"));
        assert!(matches!(of(Code::GovernorAway), SidecarError::Unavailable(_)));
        assert!(matches!(of(Code::KeyReused), SidecarError::Known(_)) && matches!(of(Code::Duplicate), SidecarError::Known(_)));
        assert!(matches!(of(Code::QueueFull), SidecarError::Refused(_)) && matches!(of(Code::NotAllowed), SidecarError::Refused(_)));
    }
}
