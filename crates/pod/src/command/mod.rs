//! `spillway`: the commands of the program in the pod. Each command asks the sidecar one question through the unix socket. No
//! command holds a secret, or connects to anything but the sidecar.

mod answer;
mod artifact;
mod ask;
mod budget;
pub mod changeset;
mod exec;
pub mod folder;
mod follow;
pub mod git;
mod heard_notices;
mod local_http;
mod mcp;
mod new_notices;
mod output;
mod place;
mod preflight;
mod refusals;
pub mod shell;
mod think;
mod toolset_check;
mod work;

use std::io::Read as _;

use clap::{Args, Parser, Subcommand};
use spillway_wire::agent::{Goodbye, Spawn};
use spillway_wire::body::MAX_BODY_BYTES;
use spillway_wire::link::{Answer, Ask, Progress};
use spillway_wire::work::{NotifyOn, Requires, Submit};
use spillway_wire::{Code, Refusal};

use answer::show;
use ask::key_or_new;
use heard_notices::HeardNotices;
use new_notices::tell_new;
use output::{notice_line, print, refused, unreachable_sidecar};

pub use output::{EXIT_REFUSED, EXIT_UNREACHABLE};
pub use place::SidecarPaths;

/// Commands for the program of an agent: each sends one request to the agent's sidecar
#[derive(Debug, Parser)]
#[command(name = "spillway", version, about, after_help = EXIT_CODES)]
pub struct Arguments {
    #[command(flatten)]
    place: SidecarPaths,
    #[command(subcommand)]
    verb: Verb,
}

/// The last lines of `--help`.
pub const EXIT_CODES: &str = "Exit codes: 0: done, or written down to be sent later (standard error says so). 2: wrong usage. 3: refused, \
or there is no item. 4: the sidecar cannot be reached. exec has the exit code of the command, or 124: its time limit was over. 125: it was \
not run, because a breaker is open. 126 or 127: it cannot be started. New notices are printed first, on standard error.";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Record that the work of this agent is over. The agent is ended soon, and its pool replaces it if it still wants it
    Goodbye {
        /// Reason, for people; at most 1,024 characters
        #[arg(required = true, num_args = 1..)]
        reason: Vec<String>,
    },
    /// Report the current action in a few words, and the progress of the item. People see it
    Progress {
        /// Current action; at most 256 characters
        #[arg(required_unless_present_any = ["percent", "checkpoint"], num_args = 1..)]
        text: Vec<String>,
        /// Percentage of the item that is done
        #[arg(long, value_name = "0-100", value_parser = clap::value_parser!(u8).range(0..=100))]
        percent: Option<u8>,
        /// Where another attempt at the item can continue, for example a branch; at most 1,024 characters
        #[arg(long, value_name = "TEXT")]
        checkpoint: Option<String>,
    },
    /// Get the next item of work, and report how an item ended
    Work {
        /// Command about an item
        #[command(subcommand)]
        verb: work::Verb,
    },
    /// Queue an item of work, and print its name
    Submit(SubmitArguments),
    /// Queue many items at once, with dependencies between them, and print the names of the plan and of its items
    Plan(follow::PlanArguments),
    /// Print the messages since the last call, such as items of this pool's agents that have ended
    Inbox(follow::InboxArguments),
    /// Run a command with a time limit. At the limit, all processes that it started are ended
    Exec(exec::ExecArguments),
    /// Serve MCP on standard input and output, with one tool, `run_command`, which runs a command as `exec` does
    Mcp,
    /// Test the requirements of a pool's preflight, then run the pool's preflight command
    Preflight(preflight::PreflightArguments),
    /// Keep files with the item in hand, and get files of other items
    Artifact(artifact::Arguments),
    /// A step of an item's changeset. The supervisor runs it
    #[command(hide = true)]
    Changeset {
        /// Step
        #[command(subcommand)]
        verb: changeset::Verb,
    },
    /// Run one of the agents that ship with Spillway: a scheduler, a writer of requirements, or an agent to talk to
    Think(think::ThinkArguments),
    /// Print what is left of the budgets over this agent, or ask for more
    Budget(budget::Arguments),
    /// Print the notices for the program
    Notices,
    /// Print whether the agent is registered, and its desired state
    Status,
    /// Ask for a child agent, and print its name
    Spawn {
        /// Pool of the child: one that may.spawnIn of this agent's pool lists
        pool: String,
        /// Name for people
        #[arg(long)]
        name: Option<String>,
        /// Idempotency key: the same key never makes a second child [default: a new key]
        #[arg(long)]
        key: Option<String>,
    },
}

/// An item to be queued.
#[derive(Debug, Args)]
pub struct SubmitArguments {
    /// Queue of the item [default: the queue that accepts its type]
    #[arg(long, required_unless_present = "type_")]
    queue: Option<String>,
    /// Type of the work
    #[arg(long = "type", value_name = "TYPE")]
    type_: Option<String>,
    /// Priority; items with a higher number come first
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    priority: i32,
    /// Group of the item; the items of one group can be cancelled together
    #[arg(long)]
    group: Option<String>,
    /// Key of the item in its namespace; at most one item of one key exists
    #[arg(long, value_name = "KEY")]
    dedup_key: Option<String>,
    /// Name of an item that must succeed first (repeatable)
    #[arg(long, value_name = "NAME")]
    after: Vec<String>,
    /// End that the inbox reports, and people see as an event: Finished, Failed or DeadLettered (repeatable) [default: the
    /// inbox reports any end, people see failures]
    #[arg(long, value_name = "END", value_parser = end)]
    notify_on: Vec<NotifyOn>,
    /// What a pool must have to get the item, as FIELD=NAME: models, tools, urls, accounts, volumes or repositories (repeatable)
    #[arg(long, value_name = "FIELD=NAME", value_parser = requirement)]
    requires: Vec<(Requirement, String)>,
    /// Idempotency key: the same key never makes a second item [default: a new key]
    #[arg(long)]
    key: Option<String>,
    /// The task; - reads standard input
    #[arg(allow_hyphen_values = true)]
    payload: Option<String>,
}

/// Runs a command of `spillway`; returns the exit code.
pub fn run(Arguments { place, verb }: Arguments) -> u8 {
    run_verb(&place, verb)
}

/// Runs a command; returns the exit code.
pub fn run_verb(place: &SidecarPaths, verb: Verb) -> u8 {
    // Notices are for the program, which does not run yet, and the output of a preflight is its message.
    if matches!(verb, Verb::Preflight(_) | Verb::Changeset { .. }) {
        return carry_out(place, verb);
    }
    let mut heard = HeardNotices::new(&place.ask_data);
    let asked = ask::ask(&place.ask_socket, &Ask::Notices);
    let known = match &asked {
        Ok(Answer::Notices(notices)) => notices.clone(),
        Ok(_) | Err(_) => Vec::new(),
    };
    if let Verb::Notices = verb {
        let notices = heard.all(known);
        notices.iter().for_each(|notice| print(&notice_line(notice)));
        heard.remember(&notices);
        // The file of notices can be read without the sidecar. The exit code then says that there may be more.
        return match asked {
            Ok(Answer::Refused(refusal)) => refused(&refusal, None),
            Ok(_) => 0,
            Err(error) => unreachable_sidecar(&error),
        };
    }
    tell_new(&mut heard, known);
    carry_out(place, verb)
}

fn carry_out(place: &SidecarPaths, verb: Verb) -> u8 {
    let (ask, key) = match verb {
        Verb::Work { verb } => return work::run(&place.ask_socket, verb),
        Verb::Exec(arguments) => return exec::run(&place.ask_socket, arguments),
        Verb::Mcp => return mcp::run(place),
        Verb::Think(arguments) => return think::run(place, arguments),
        Verb::Preflight(arguments) => return preflight::run(arguments),
        Verb::Changeset { verb } => return changeset::run(verb),
        Verb::Artifact(arguments) => return artifact::run(arguments),
        Verb::Budget(arguments) => return budget::run(&place.ask_socket, arguments),
        Verb::Plan(arguments) => return follow::plan(&place.ask_socket, arguments),
        Verb::Inbox(arguments) => return follow::inbox(&place.ask_socket, &place.ask_data, arguments),
        Verb::Goodbye { reason } => (Ask::Goodbye(Goodbye { reason: reason.join(" ") }), None),
        Verb::Progress { text, percent, checkpoint } => {
            (Ask::Progress(Progress { action: text.join(" "), percent, checkpoint_ref: checkpoint }), None)
        }
        Verb::Notices => (Ask::Notices, None),
        Verb::Status => (Ask::Status, None),
        Verb::Spawn { pool, name, key } => {
            let key = match key_or_new(key) {
                Ok(key) => key,
                Err(refusal) => return refused(&refusal, None),
            };
            (Ask::Spawn { key: key.clone(), request: Spawn { pool, display_name: name } }, Some(key))
        }
        Verb::Submit(arguments) => match submit(arguments) {
            Ok((key, request)) => (Ask::Submit { key: key.clone(), request: Box::new(request) }, Some(key)),
            Err(refusal) => return refused(&refusal, None),
        },
    };
    match ask::ask(&place.ask_socket, &ask) {
        Ok(answer) => show(&answer, key.as_deref()),
        Err(error) => unreachable_sidecar(&error),
    }
}

fn submit(arguments: SubmitArguments) -> Result<(String, Submit), Refusal> {
    let SubmitArguments { queue, type_, priority, group, dedup_key, after, notify_on, requires: needed, key, payload } = arguments;
    let payload = match payload {
        Some(payload) if payload == "-" => {
            let mut text = String::new();
            let read = std::io::stdin().take(MAX_BODY_BYTES as u64).read_to_string(&mut text);
            read.map_err(|error| Refusal::new(Code::InvalidBody, format!("payload: {error}")).field("payload"))?;
            text
        }
        payload => payload.unwrap_or_default(),
    };
    let mut requires = Requires::default();
    for (requirement, name) in needed {
        let list = match requirement {
            Requirement::Models => &mut requires.models,
            Requirement::Tools => &mut requires.tools,
            Requirement::Urls => &mut requires.urls,
            Requirement::Accounts => &mut requires.accounts,
            Requirement::Volumes => &mut requires.volumes,
            Requirement::Repositories => &mut requires.repositories,
        };
        list.push(name);
    }
    let request = Submit { queue, type_, priority, group, dedup_key, payload, after, notify_on, requires, ..Submit::default() };
    Ok((key_or_new(key)?, request))
}

/// A field of an item's requirements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Requirement {
    Models,
    Tools,
    Urls,
    Accounts,
    Volumes,
    Repositories,
}

fn requirement(text: &str) -> Result<(Requirement, String), String> {
    let (field, name) = text.split_once('=').filter(|(_, name)| !name.is_empty()).ok_or("the value must be FIELD=NAME")?;
    let requirement = match field {
        "models" => Requirement::Models,
        "tools" => Requirement::Tools,
        "urls" => Requirement::Urls,
        "accounts" => Requirement::Accounts,
        "volumes" => Requirement::Volumes,
        "repositories" => Requirement::Repositories,
        _ => return Err("the field must be models, tools, urls, accounts, volumes or repositories".to_owned()),
    };
    Ok((requirement, name.to_owned()))
}

/// Parses the name of an end of an item.
fn end(name: &str) -> Result<NotifyOn, String> {
    let ends = [NotifyOn::Finished, NotifyOn::Failed, NotifyOn::DeadLettered];
    ends.into_iter().find(|end| format!("{end:?}") == name).ok_or_else(|| "the value must be Finished, Failed or DeadLettered".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_sound() {
        use clap::CommandFactory as _;
        Arguments::command().debug_assert();
    }

    #[test]
    fn asking_for_help_says_no_goodbye() {
        for words in [&["--help"][..], &["-h"], &["done", "--help"], &["--reason", "x"], &[]] {
            let words = ["spillway", "goodbye"].iter().chain(words);
            assert!(Arguments::try_parse_from(words).is_err());
        }
        assert!(Arguments::try_parse_from(["spillway", "goodbye", "all", "is", "done"]).is_ok());
        assert!(Arguments::try_parse_from(["spillway", "goodbye", "--", "--help"]).is_ok());
    }

    #[test]
    fn what_an_item_needs_is_named_with_its_field() {
        let words = ["spillway", "submit", "--queue", "q", "--requires", "models=a=b", "--requires", "tools=git", "x"];
        let Ok(Arguments { verb: Verb::Submit(arguments), .. }) = Arguments::try_parse_from(words) else { panic!("no submit") };
        let (_, request) = submit(arguments).expect("a request");
        assert_eq!((request.requires.models, request.requires.tools), (vec!["a=b".to_owned()], vec!["git".to_owned()]));
        for wrong in ["models", "models=", "agents=x"] {
            assert!(Arguments::try_parse_from(["spillway", "submit", "--queue", "q", "--requires", wrong]).is_err(), "{wrong}");
        }
    }
}
