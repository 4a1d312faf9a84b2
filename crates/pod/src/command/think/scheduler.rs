//! The scheduler: it turns requests in words into items of work for other pools, and prints their results. It runs all the time
//! (`agent.run: LongRunning`).
//!
//! What always holds: a request is queued once, also when the agent is lost in between. The dedup key follows from the uid of
//! the request's item. Before a model decides, the scheduler searches for items that were queued for the request, because a
//! second answer of the model may differ. All of these items have the name of the request's item as their group.

use spillway_wire::ask;
use spillway_wire::work::{Assignment, MAX_RESULT_BYTES, Outcome};

use super::decision::{Decision, cut};
use super::dialect::Message;
use super::output::print_plain;
use super::prompt;
use super::rules::{self, Request};
use super::sidecar::{Sidecar, SidecarError};
use super::thinker::{ThinkResult, Thinker, note};
use crate::command::output::print;

/// The most bytes of a message about a failure.
const MAX_MESSAGE_BYTES: usize = 1000;

/// Serves requests for ever.
pub fn run(mut thinker: Thinker, sidecar: &Sidecar) -> u8 {
    let listener = sidecar.clone();
    std::thread::spawn(move || listener.listen(print_plain));
    print("scheduler: ask me");
    loop {
        if let Some(item) = sidecar.next() {
            thinker.refresh();
            let outcome = serve(&thinker, sidecar, &item);
            match &outcome {
                Outcome::Complete { result, changeset: _ } => {
                    print_plain(&format!("{}: {}", item.name, result.as_deref().unwrap_or_default()))
                }
                Outcome::Fail { message, .. } | Outcome::Release { message, .. } => print_plain(&format!("{}: {message}", item.name)),
            }
            sidecar.conclude(&outcome);
        }
    }
}

/// Answers a request; returns the outcome of its item.
fn serve(thinker: &Thinker, sidecar: &Sidecar, item: &Assignment) -> Outcome {
    match answer(thinker, sidecar, item) {
        Ok(answer) => Outcome::Complete { result: Some(cut(&answer, MAX_RESULT_BYTES).to_owned()), changeset: None },
        // Spillway may answer later.
        Err(SidecarError::Unavailable(words)) => {
            Outcome::Release { reason: "Released".to_owned(), message: cut(&words, MAX_MESSAGE_BYTES).to_owned() }
        }
        Err(SidecarError::Known(words) | SidecarError::Refused(words)) => {
            Outcome::Fail { reason: "Refused".to_owned(), message: cut(&words, MAX_MESSAGE_BYTES).to_owned(), exit_code: None }
        }
    }
}

fn answer(thinker: &Thinker, sidecar: &Sidecar, Assignment { held, name, payload, .. }: &Assignment) -> Result<String, SidecarError> {
    // An agent that was lost may have queued the items.
    let count = queued_before(sidecar, name)?;
    if count > 0 {
        return Ok(queued(count));
    }
    let work = prompt::work(&sidecar.list(None)?);
    let conversation = vec![Message::from_user(prompt::request(payload, &work))];
    let (decision, why) = match thinker.think(sidecar, conversation) {
        ThinkResult::Decided(decision, _) => (decision, None),
        ThinkResult::ByRules(why) => (by_rules(payload, thinker, work), why),
    };
    let Decision { say, questions, steps, document: _ } = decision;
    let key = format!("ask-{}", held.uid);
    let count = match sidecar.queue(&steps, Some(name), Some(&key)) {
        Ok(items) => items.len(),
        // An agent that was lost queued them just before our search.
        Err(SidecarError::Known(words)) => match queued_before(sidecar, name)? {
            0 => return Err(SidecarError::Refused(words)),
            count => count,
        },
        Err(trouble) => return Err(trouble),
    };
    let mut parts = Vec::new();
    parts.extend((!say.is_empty()).then_some(say));
    if !questions.is_empty() {
        parts.push("Nothing is queued yet. To answer:".to_owned());
        parts.extend(questions.iter().enumerate().map(|(at, question)| format!("{}. {}", at + 1, question.trim())));
        parts.push(ask::answer_hint(name));
    }
    parts.extend((count > 0).then(|| queued(count)));
    parts.extend(note(why.as_deref()));
    Ok(parts.join("\n"))
}

fn queued_before(sidecar: &Sidecar, name: &str) -> Result<usize, SidecarError> {
    let counts = sidecar.list(Some(name))?.counts;
    Ok(usize::try_from(counts.values().sum::<u64>()).unwrap_or(usize::MAX))
}

fn queued(count: usize) -> String {
    match count {
        1 => "Queued 1 item. I'll let you know when it's done.".to_owned(),
        count => format!("Queued {count} items. I'll let you know when they're done."),
    }
}

/// The decision about a request without a model; `work` is the summary of the work.
pub fn by_rules(words: &str, thinker: &Thinker, work: String) -> Decision {
    match rules::read(&ask::as_one_request(words), thinker.routes()) {
        Request::Nothing => Decision { say: "Nothing was asked, so nothing is queued.".to_owned(), ..Decision::default() },
        Request::Question => Decision { say: work, ..Decision::default() },
        Request::Work(steps) => Decision { steps, ..Decision::default() },
    }
}
