//! How an answer of the sidecar is printed, and its exit code.

use std::io::Write as _;

use spillway_wire::agent::{DesiredState, Directive};
use spillway_wire::budget::{Limit, RemainingTokens};
use spillway_wire::follow::{Message, SubmittedItem, WorkList};
use spillway_wire::link::Answer;
use spillway_wire::plan::Planned;
use spillway_wire::work::Assignment;

use super::output::{EXIT_REFUSED, notice_line, print, print_to_stderr, refused};

/// Prints an answer; returns the exit code.
pub fn show(answer: &Answer, key: Option<&str>) -> u8 {
    match answer {
        Answer::Done => 0,
        Answer::Kept => {
            print_to_stderr("no gateway answers now: the request is written down, and is sent when a gateway answers");
            0
        }
        Answer::Notices(notices) => {
            notices.iter().for_each(|notice| print(&notice_line(notice)));
            0
        }
        Answer::Spawned(spawned) => {
            print(&spawned.agent);
            0
        }
        Answer::Submitted(submitted) => {
            print(&submitted.name);
            0
        }
        Answer::Planned(planned) => {
            show_plan(planned);
            0
        }
        Answer::Listed(listed) => {
            show_list(listed);
            0
        }
        Answer::Inbox(inbox) => {
            inbox.messages.iter().for_each(|message| print(&message_line(message, false)));
            0
        }
        Answer::Budget(left) => {
            show_left(left);
            0
        }
        Answer::Item(item) => show_item(item.as_deref(), false),
        Answer::Status { registered, wanted } => {
            print(&status(*registered, wanted));
            0
        }
        // Only `exec` gets these answers.
        Answer::CommandBegun(_) | Answer::CommandRejected(_) | Answer::CommandUntimed => 0,
        Answer::Refused(refusal) => refused(refusal, key),
    }
}

fn status(registered: bool, wanted: &DesiredState) -> String {
    let directive = match wanted.directive {
        Directive::Run => "run: work",
        Directive::Pause => "pause: take nothing new",
        Directive::Drain => "drain: finish the work, the agent is ended soon",
        Directive::Stop => "stop: end now",
    };
    let registered = if registered { "yes" } else { "not yet" };
    format!("registered: {registered}\nwanted: {directive}\nnotices: {}", wanted.notices.len())
}

/// Prints the item's task exactly as it is, or the item as JSON.
pub fn show_item(item: Option<&Assignment>, json: bool) -> u8 {
    let Some(item) = item else {
        print_to_stderr("there is no item");
        return EXIT_REFUSED;
    };
    if json {
        print(&serde_json::to_string(item).unwrap_or_default()); // JSON can express each value of our types
    } else {
        let mut out = std::io::stdout();
        let _ = out.write_all(item.payload.as_bytes()).and_then(|()| out.flush()); // a closed output is no error
    }
    0
}

/// Prints the names of a queued plan and of its items.
fn show_plan(Planned { plan, items }: &Planned) {
    print(plan);
    items.iter().for_each(|item| print(&format!("{}\t{}", item.key, item.name)));
}

/// Prints the number of items in each phase, and the items.
fn show_list(WorkList { counts, items }: &WorkList) {
    let counts: Vec<String> = counts.iter().map(|(phase, count)| format!("{count} {phase}")).collect();
    print(&if counts.is_empty() { "nothing was submitted".to_owned() } else { counts.join(", ") });
    items.iter().for_each(|item| print(&item_line(item, true)));
}

/// Prints a line for each limit.
fn show_left(RemainingTokens { limits }: &RemainingTokens) {
    if limits.is_empty() {
        print("no limit applies to the tokens of this agent");
    }
    limits.iter().for_each(|limit| print(&limit_line(limit)));
}

fn limit_line(limit: &Limit) -> String {
    let Limit { budget, name, window, limit: tokens, used, held, left, resets, enforced, paused } = limit;
    let mut line = format!("{budget}, {name} ({window}): {left} of {tokens} left, {used} used, {held} held");
    if let Some(resets) = resets {
        line.push_str(&format!(", resets {resets}"));
    }
    if *paused {
        line.push_str(", paused");
    }
    if !enforced {
        line.push_str(", only counted");
    }
    line
}

/// A message in one line.
pub fn message_line(message: &Message, json: bool) -> String {
    if json {
        return serde_json::to_string(message).unwrap_or_default(); // JSON can express each value of our types
    }
    match message {
        Message::ItemEnded { item } => item_line(item, true),
        Message::PlanEnded { plan, counts } => {
            let counts: Vec<String> = counts.iter().map(|(phase, count)| format!("{count} {phase}")).collect();
            format!("{plan}: finished, {}", counts.join(", "))
        }
        Message::ItemWaits { item, text } => format!("{}: waits: {text}", item.name),
        Message::Escalated { agent, signal, text, item } => {
            let item = item.as_ref().map(|item| format!(" (holds {item})")).unwrap_or_default();
            format!("{agent}{item}: {signal}: {}", text.split_whitespace().collect::<Vec<_>>().join(" "))
        }
    }
}

/// An item in one line, with its result or without.
pub fn item_line(item: &SubmittedItem, with_result: bool) -> String {
    let mut line = format!("{}: {}", item.name, item.phase);
    if let Some(reason) = &item.reason {
        line.push_str(&format!(" ({reason})"));
    }
    if let Some(position) = item.position {
        line.push_str(&format!(", {position} before it"));
    }
    if let Some(result) = item.result.as_ref().filter(|_| with_result) {
        line.push_str(&format!(": {}", result.trim().replace(['\n', '\r'], " ")));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_one_line() {
        let limit = Limit {
            budget: "Budget/default in team".into(),
            name: "hourly".into(),
            window: "Hour".into(),
            limit: 1000,
            used: 200,
            held: 50,
            left: 750,
            resets: Some("2026-11-22T11:00:00Z".into()),
            enforced: true,
            paused: false,
        };
        let said = "Budget/default in team, hourly (Hour): 750 of 1000 left, 200 used, 50 held, resets 2026-11-22T11:00:00Z";
        assert_eq!(limit_line(&limit), said);
        let life = Limit { resets: None, enforced: false, paused: true, ..limit };
        assert!(limit_line(&life).ends_with("50 held, paused, only counted"));
    }

    #[test]
    fn an_item_is_one_line_whatever_came_out_of_it() {
        let item =
            SubmittedItem { name: "a".into(), phase: "Succeeded".into(), result: Some("one\ntwo\n".into()), ..SubmittedItem::default() };
        assert_eq!((item_line(&item, true).as_str(), item_line(&item, false).as_str()), ("a: Succeeded: one two", "a: Succeeded"));
        let item = SubmittedItem {
            name: "a".into(),
            phase: "Ready".into(),
            position: Some(3),
            reason: Some("Redriven".into()),
            ..SubmittedItem::default()
        };
        assert_eq!(item_line(&item, true), "a: Ready (Redriven), 3 before it");
    }
}
