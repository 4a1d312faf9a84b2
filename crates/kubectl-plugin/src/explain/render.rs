//! The report as text. Pure. It must not print unsafe characters, nor decide what matters.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::arguments::Format;
use super::report::{AttemptReport, EventReport, Fact, HistoryEntry, Report};
use crate::console::Output;
use crate::error::Error;
use crate::table::{age, indented, one_line, or_nothing, printable};

/// Characters of a message in a table. The state at the top and the JSON output have the whole message.
const MAX_MESSAGE_CHARS: usize = 200;

/// Characters kept from the end of an attempt's message. The message begins with the last output of the program and ends with
/// the cause.
const MAX_MESSAGE_TAIL_CHARS: usize = 320;

/// The report in the requested format.
pub fn render(report: &Report, format: Option<Format>, now: Timestamp) -> Result<Output, Error> {
    match format {
        None => Ok(text(report, now)),
        Some(Format::Json) => {
            let mut output = Output::default();
            output.line(serde_json::to_string_pretty(report).map_err(|error| Error::Format(error.to_string()))?);
            Ok(output)
        }
    }
}

fn text(report: &Report, now: Timestamp) -> Output {
    let Report {
        kind,
        namespace,
        name,
        display_name,
        state,
        since,
        why,
        facts,
        attempts,
        conditions,
        interventions,
        pool,
        agents,
        events,
        unread,
        advice,
    } = report;
    let mut output = Output::default();
    let called = display_name.as_ref().map(|called| format!(" ({})", printable(called))).unwrap_or_default();
    output.line(format!("{kind} {name}{called} in namespace {namespace}"));
    output.line(format!("  {}{}", printable(state), duration_text(since.as_ref(), now)));
    section(&mut output, "Why", !why.is_empty());
    why.iter().for_each(|words| output.line(format!("  {}", printable(words))));
    section(&mut output, "Facts", !facts.is_empty());
    let width = facts.iter().map(|fact| fact.name.len()).max().unwrap_or(0);
    facts.iter().for_each(|fact| output.line(format!("  {:width$}  {}", fact.name, value(fact, now))));
    let shown = |told: &Vec<EventReport>| told.iter().map(|told| row(told, state, now)).collect();
    rows(&mut output, "Conditions", &["TYPE", "STATUS", "REASON", "SINCE", "MESSAGE"], shown(conditions));
    let tried = attempts.iter().map(|attempt| attempt_row(attempt, state, now)).collect();
    rows(&mut output, "Attempts", &["EPOCH", "AGENT", "AGO", "TOOK", "HOW", "REASON", "MESSAGE"], tried);
    rows(&mut output, "What blocks its pool", &["TYPE", "STATUS", "REASON", "SINCE", "MESSAGE"], shown(pool));
    let waiting = agents.iter().map(|agent| {
        vec![
            agent.name.clone(),
            or_nothing(agent.display_name.as_ref()),
            ago(agent.since.as_ref(), now),
            shortened_message(&agent.state, state),
        ]
    });
    rows(&mut output, "Agents that are not ready", &["NAME", "DISPLAY", "SINCE", "STATE"], waiting.collect());
    let done = interventions
        .iter()
        .map(|one| vec![ago(Some(&one.time), now), one.signal.clone(), one.action.clone(), shortened_message(&one.message, state)]);
    rows(&mut output, "What the supervisor did", &["AGO", "SIGNAL", "ACTION", "MESSAGE"], done.collect());
    let happened = events.iter().map(|event| event_row(event, state, now)).collect();
    rows(&mut output, "Events", &["AGO", "TYPE", "ABOUT", "REASON", "MESSAGE"], happened);
    section(&mut output, "What to do", true);
    for hint in advice {
        let reason = printable(&hint.reason);
        let head = if hint.act { reason } else { format!("nothing ({reason})") };
        output.line(format!("  {head}: {}", printable(&hint.advice)));
    }
    unread.iter().for_each(|words| output.note(format!("note: an object could not be read: {}", printable(words))));
    output
}

/// A section with a table; nothing without rows.
fn rows(output: &mut Output, title: &str, header: &[&str], rows: Vec<Vec<String>>) {
    section(output, title, !rows.is_empty());
    output.out.push_str(&indented(header, rows));
}

fn attempt_row(attempt: &AttemptReport, state: &str, now: Timestamp) -> Vec<String> {
    let AttemptReport { epoch, agent, start_time, end_time, verb, reason, message: words } = attempt;
    vec![
        epoch.to_string(),
        agent.clone(),
        ago(Some(start_time), now),
        end_time.as_ref().map_or_else(String::new, |end| age(Some(start_time.0), end.0)),
        verb.clone(),
        or_nothing(reason.as_ref()),
        message_end(words.as_deref().unwrap_or_default(), state),
    ]
}

fn event_row(event: &HistoryEntry, state: &str, now: Timestamp) -> Vec<String> {
    let times = if event.count > 1 { format!(" ({} times)", event.count) } else { String::new() };
    vec![
        ago(event.time.as_ref(), now),
        event.type_.clone(),
        event.about.clone(),
        event.reason.clone(),
        format!("{}{times}", shortened_message(&event.message, state)),
    ]
}

fn section(output: &mut Output, title: &str, wanted: bool) {
    if wanted {
        output.line("");
        output.line(title);
    }
}

fn row(told: &EventReport, state: &str, now: Timestamp) -> Vec<String> {
    let message = shortened_message(&told.message, state);
    vec![told.type_.clone(), told.status.clone(), told.reason.clone(), ago(Some(&told.since), now), message]
}

/// A message, shortened if it is long or if the first lines of the report contain it.
fn shortened_message(text: &str, state: &str) -> String {
    let text = text.trim_end();
    if text.chars().count() > MAX_MESSAGE_CHARS / 4 && state.contains(text) {
        return "(as above)".to_owned();
    }
    match text.char_indices().nth(MAX_MESSAGE_CHARS) {
        Some((end, _)) => format!("{}\u{2026}", &text[..end]),
        None => text.to_owned(),
    }
}

/// The end of a message on one line: the end contains the cause.
fn message_end(text: &str, state: &str) -> String {
    let text = one_line(text);
    let count = text.chars().count();
    if count > MAX_MESSAGE_CHARS / 4 && state.contains(&text) {
        return "(as above)".to_owned();
    }
    match count.checked_sub(MAX_MESSAGE_TAIL_CHARS).filter(|over| *over > 0) {
        Some(over) => format!("\u{2026}{}", text.chars().skip(over).collect::<String>()),
        None => text,
    }
}

fn value(fact: &Fact, now: Timestamp) -> String {
    let Fact { name: _, time, value } = fact;
    let value = printable(value);
    match time {
        None => value,
        Some(time) if value.is_empty() => format!("{} ago", ago(Some(time), now)),
        Some(time) => format!("{} ago, {value}", ago(Some(time), now)),
    }
}

fn ago(time: Option<&Time>, now: Timestamp) -> String {
    age(time.map(|time| time.0), now)
}

fn duration_text(since: Option<&Time>, now: Timestamp) -> String {
    since.map(|since| format!(" (for {})", ago(Some(since), now))).unwrap_or_default()
}
