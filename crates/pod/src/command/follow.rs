//! `spillway plan`, `work list` and `inbox`: many items at once, and the results of submitted items.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use spillway_wire::Refusal;
use spillway_wire::body::{self, BoundedBody as _, MAX_BODY_BYTES};
use spillway_wire::follow::{Inbox, InboxQuery, ListWork};
use spillway_wire::link::{Answer, Ask};
use spillway_wire::plan::Plan;
use spillway_wire::work::MAX_CLAIM_WAIT_SECONDS;

use super::answer::{message_line, show};
use super::ask::{self, key_or_new};
use super::output::{EXIT_REFUSED, print, print_to_stderr, refused, unreachable_sidecar};
use crate::files;

/// The file with the cursor of the last printed answer. The program may damage it; then messages are printed again.
const CURSOR_FILE: &str = ".inbox-printed";
/// Between two questions with an empty answer.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A plan.
#[derive(Debug, Args)]
pub struct PlanArguments {
    /// File with the plan, as JSON: {"steps": [{"key": "a", "item": {"type": "bug", "payload": "..."}}, {"key": "b", "after":
    /// ["a"], "item": {...}}]}; - reads standard input
    file: PathBuf,
    /// Idempotency key: the same key never makes a second plan [default: a new key]
    #[arg(long)]
    key: Option<String>,
}

/// Which items are listed.
#[derive(Debug, Args)]
pub struct ListArguments {
    /// Print only the items of this group
    #[arg(long)]
    group: Option<String>,
    /// Print only the items of this plan
    #[arg(long)]
    plan: Option<String>,
    /// Print all data of the items as JSON
    #[arg(long)]
    json: bool,
}

/// Which messages are printed.
#[derive(Debug, Args)]
pub struct InboxArguments {
    /// How long to wait for a message
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    wait: u32,
    /// Print also the messages that were printed before
    #[arg(long)]
    all: bool,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// Queues a plan; prints its name, and the key and name of each item.
pub fn plan(socket: &Path, PlanArguments { file, key }: PlanArguments) -> u8 {
    let mut text = Vec::new();
    let read = if file.as_os_str() == "-" {
        std::io::stdin().take(MAX_BODY_BYTES as u64 + 1).read_to_end(&mut text)
    } else {
        std::fs::File::open(&file).and_then(|opened| opened.take(MAX_BODY_BYTES as u64 + 1).read_to_end(&mut text))
    };
    let read = read.map_err(|error| Refusal::new(spillway_wire::Code::InvalidBody, format!("{}: {error}", file.display())));
    let asked = read.and_then(|_| body::read::<Plan>(&text)).and_then(|request| Ok((key_or_new(key)?, request)));
    let (key, request) = match asked {
        Ok(asked) => asked,
        Err(refusal) => return refused(&refusal, None),
    };
    match ask::ask(socket, &Ask::Plan { key: key.clone(), request }) {
        Ok(answer) => show(&answer, Some(&key)),
        Err(error) => unreachable_sidecar(&error),
    }
}

/// Prints the items that the agents of the pool submitted.
pub fn list(socket: &Path, ListArguments { group, plan, json }: ListArguments) -> u8 {
    match ask::ask(socket, &Ask::ListWork(ListWork { submitted_by: None, group, plan })) {
        Ok(Answer::Listed(listed)) if json => {
            print(&serde_json::to_string(&listed).unwrap_or_default()); // JSON can express each value of our types
            0
        }
        Ok(answer) => show(&answer, None),
        Err(error) => unreachable_sidecar(&error),
    }
}

/// Prints the messages since the last call; waits for one for up to `wait` seconds.
pub fn inbox(socket: &Path, data: &Path, InboxArguments { wait, all, json }: InboxArguments) -> u8 {
    let (began, wait) = (Instant::now(), Duration::from_secs(wait.into()));
    let file = cursor_file(data);
    let mut after = cursor(&file).filter(|_| !all);
    let mut printed = false;
    loop {
        let left = wait.saturating_sub(began.elapsed());
        let wait_seconds =
            if printed { 0 } else { u32::try_from(left.as_secs_f64().ceil() as u64).unwrap_or(u32::MAX).min(MAX_CLAIM_WAIT_SECONDS) };
        match ask::ask(socket, &Ask::Inbox(InboxQuery { after: after.clone(), wait_seconds })) {
            Ok(Answer::Inbox(Inbox { messages, cursor })) => {
                messages.iter().for_each(|message| print(&message_line(message, json)));
                printed = true;
                remember(&file, &cursor);
                after = Some(cursor); // there may be more messages than one answer holds
            }
            Ok(Answer::Done) if printed => return 0,
            Ok(Answer::Done) if began.elapsed() < wait => std::thread::sleep(POLL_INTERVAL),
            Ok(Answer::Done) => {
                print_to_stderr("there is no message");
                return EXIT_REFUSED;
            }
            Ok(answer) => return show(&answer, None),
            Err(error) => return unreachable_sidecar(&error),
        }
    }
}

/// The path of the file with the cursor of the inbox.
pub fn cursor_file(data: &Path) -> PathBuf {
    data.join(CURSOR_FILE)
}

/// The stored cursor. `None`: read the inbox from its beginning.
pub fn cursor(file: &Path) -> Option<String> {
    let text = files::read(file, 64).ok().flatten().and_then(|bytes| String::from_utf8(bytes).ok())?;
    let after = Some(text.trim().to_owned());
    after.filter(|after| InboxQuery { after: Some(after.clone()), wait_seconds: 0 }.check().is_ok())
}

/// Stores the cursor up to which the inbox was printed.
pub fn remember(file: &Path, cursor: &str) {
    if let Err(error) = files::write(file, cursor.as_bytes(), 0o600) {
        print_to_stderr(&format!("cannot store which messages were printed, so that they will be printed again: {error}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_was_remembered_and_what_is_none_is_not() {
        let folder = std::env::temp_dir().join(format!("spillway-inbox-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let file = cursor_file(&folder);
        assert_eq!(cursor(&file), None);
        for told in ["5", "5.7.1"] {
            remember(&file, told);
            assert_eq!(cursor(&file).as_deref(), Some(told));
        }
        for spoiled in ["", "-1", "5.", "5.7.1.2", "x", "123456789012345678901"] {
            remember(&file, spoiled);
            assert_eq!(cursor(&file), None, "{spoiled}");
        }
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
