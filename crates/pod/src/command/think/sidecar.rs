//! What the program asks of its sidecar: work to be queued, how it stands, and what ended. A question that nobody answers is
//! asked again for a while; what is refused is told in the words of the refusal.

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

/// Times that a question is asked while nobody can answer it.
const MAX_ATTEMPTS: u32 = 5;
/// Between two of them.
const QUESTION_RETRY_DELAY: Duration = Duration::from_secs(2);
/// Between two tries to say how an item ended.
const CONCLUDE_RETRY_DELAY: Duration = Duration::from_secs(1);

/// What is said of an answer to another question.
const WRONG_ANSWER_MESSAGE: &str = "the sidecar's answer does not match the request";

/// Between two questions for an item that were answered with none.
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
    /// Nobody can answer now.
    Away(String),
    /// What was to be queued was queued before, perhaps otherwise, under the same key.
    Known(String),
    /// It was refused.
    Refused(String),
}

impl SidecarError {
    fn of(refusal: &Refusal) -> Self {
        let words = refusal.to_string();
        if matches!(refusal.code, Code::Duplicate | Code::KeyReused) {
            Self::Known(words)
        } else if refusal.code.passes() {
            Self::Away(words)
        } else {
            Self::Refused(words)
        }
    }

    /// In words.
    pub fn words(&self) -> &str {
        match self {
            Self::Away(words) | Self::Known(words) | Self::Refused(words) => words,
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
    /// At its place in the pod.
    pub fn new(place: &SidecarPaths) -> Self {
        Self { socket: place.ask_socket.clone(), data: place.ask_data.clone() }
    }

    /// Asks; again while nobody can answer.
    fn ask(&self, question: &Ask) -> Result<Answer, SidecarError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let trouble = match ask::ask(&self.socket, question) {
                Ok(Answer::Refused(refusal)) => SidecarError::of(&refusal),
                Ok(answer) => return Ok(answer),
                Err(error) => SidecarError::Away(format!("the sidecar cannot be reached: {error}")),
            };
            match trouble {
                SidecarError::Away(_) if tries < MAX_ATTEMPTS => std::thread::sleep(QUESTION_RETRY_DELAY),
                trouble => return Err(trouble),
            }
        }
    }

    /// Queues work, all or nothing.
    pub fn queue(&self, steps: &[Step], group: Option<&str>, dedup_key: Option<&str>) -> Result<Vec<Queued>, SidecarError> {
        let key = key_or_new(None).map_err(|refusal| SidecarError::Away(refusal.to_string()))?;
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

    /// What the agents of the pool submitted, or of it what has this group.
    pub fn list(&self, group: Option<&str>) -> Result<WorkList, SidecarError> {
        let question = Ask::ListWork(ListWork { submitted_by: None, group: group.map(str::to_owned), plan: None });
        match self.ask(&question)? {
            Answer::Listed(listed) => Ok(listed),
            _ => Err(SidecarError::Refused(WRONG_ANSWER_MESSAGE.to_owned())),
        }
    }

    /// The next item, or the one in hand; none: there is none yet.
    pub fn next(&self) -> Option<Box<Assignment>> {
        match ask::ask(&self.socket, &Ask::Next { wait_seconds: MAX_CLAIM_WAIT_SECONDS }) {
            Ok(Answer::Item(Some(item))) => Some(item),
            // It was waited for; a sidecar that does not wait is not asked without a pause.
            Ok(Answer::Item(None)) => {
                std::thread::sleep(NEXT_ITEM_POLL_INTERVAL);
                None
            }
            // Not yet, or not now: that was said at once.
            Ok(_) | Err(_) => {
                std::thread::sleep(CONCLUDE_RETRY_DELAY);
                None
            }
        }
    }

    /// Says how the item in hand ended, until the sidecar hears it. That it is not ours any more is no error: somebody else
    /// answers then.
    pub fn conclude(&self, outcome: &Outcome) {
        while ask::ask(&self.socket, &Ask::Finish(outcome.clone())).is_err() {
            std::thread::sleep(CONCLUDE_RETRY_DELAY);
        }
    }

    /// Why a call of so many bytes is not worth trying: a limit that it passes has less left, or is paused. A call that is
    /// refused would have the agent paused with its item.
    pub fn short_of_tokens(&self, bytes: usize) -> Option<String> {
        let Ok(Answer::Budget(left)) = ask::ask(&self.socket, &Ask::Budget) else { return None };
        let needed = i64::try_from(bytes / 4).unwrap_or(i64::MAX);
        let short = left.limits.into_iter().find(|limit| limit.enforced && (limit.paused || limit.left < needed))?;
        Some(format!("{}, {}: {} tokens are left", short.budget, short.name, if short.paused { 0 } else { short.left }))
    }

    /// Tells, for ever, what ended of the work that the pool's agents queued. An agent that replaces another one hears what
    /// that one waited for.
    pub fn listen(&self, told: impl Fn(&str)) {
        let file = follow::cursor_file(&self.data);
        let mut after = follow::cursor(&file);
        loop {
            match ask::ask(&self.socket, &Ask::Inbox(InboxQuery { after: after.clone(), wait_seconds: MAX_CLAIM_WAIT_SECONDS })) {
                Ok(Answer::Inbox(Inbox { messages, cursor })) => {
                    messages.iter().for_each(|message| told(&in_words(message)));
                    follow::remember(&file, &cursor);
                    after = Some(cursor);
                }
                Ok(_) | Err(_) => std::thread::sleep(CONCLUDE_RETRY_DELAY),
            }
        }
    }
}

/// A message, in one line.
fn in_words(message: &Message) -> String {
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
            in_words(&Message::ItemEnded { item })
        };
        assert_eq!(ended("Succeeded", None, Some("3 steps for \"fix: a\"\nand more")), "Done: item-a: 3 steps for \"fix: a\" and more");
        assert_eq!(ended("Succeeded", None, None), "Done: item-a");
        assert_eq!(ended("DeadLettered", Some("TooManyFailures"), Some("no")), "Failed: item-a: DeadLettered (TooManyFailures): no");
        let plan =
            Message::PlanEnded { plan: "plan-d".into(), counts: [("DeadLettered".to_owned(), 1), ("Succeeded".to_owned(), 2)].into() };
        assert_eq!(in_words(&plan), "Plan plan-d finished: 1 DeadLettered, 2 Succeeded");
        let waits =
            Message::ItemWaits { item: SubmittedItem { name: "item-a".into(), ..SubmittedItem::default() }, text: "no pool has m".into() };
        assert_eq!(in_words(&waits), "Waits: item-a: no pool has m");
    }

    #[test]
    fn what_passes_is_waited_for_and_what_was_queued_before_is_known() {
        let of = |code| SidecarError::of(&Refusal::new(code, "x"));
        assert!(matches!(of(Code::GovernorAway), SidecarError::Away(_)));
        assert!(matches!(of(Code::KeyReused), SidecarError::Known(_)) && matches!(of(Code::Duplicate), SidecarError::Known(_)));
        assert!(matches!(of(Code::QueueFull), SidecarError::Refused(_)) && matches!(of(Code::NotAllowed), SidecarError::Refused(_)));
    }
}
