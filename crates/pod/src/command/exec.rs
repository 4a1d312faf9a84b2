//! `spillway exec`: a command with a time limit, guarded by the session breaker.
//!
//! The sidecar decides before the command whether it may run, and gets the result after it. If the sidecar cannot be reached,
//! the command runs without a breaker: the breaker protects against hanging commands, and must not hang a command itself.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::time::Duration;

use clap::{Args, ValueEnum};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use serde::Serialize;
use spillway_wire::command::{
    BeginCommand, CommandBegun, CommandEnd, CommandEnded, CommandLimits, CommandPermit, CommandRejected, ObservedCommand,
};
use spillway_wire::link::{Answer, Ask};

use super::ask;
use super::new_notices::tell_notices;
use super::output::{print, print_to_stderr};
use super::place::SidecarPaths;
use crate::COMMAND_FIELDS_HELP;
use crate::clock::millis;
use crate::process::tree::{self, Exit};
use crate::process::{self, Job, KeptBytes, ProcessEnd, RunResult, RunTarget};

/// The time limit was over.
const EXIT_TIMED_OUT: u8 = 124;
/// The command was not run: a breaker is open, or an error prevented it.
const EXIT_NOT_RUN: u8 = 125;
/// The program exists and cannot be started.
const EXIT_NOT_STARTED: u8 = 126;
/// There is no such program.
const EXIT_MISSING: u8 = 127;
/// The longest time limit that can be asked for: a day.
const MAX_TIMEOUT_SECONDS: f64 = 86_400.0;

/// A command.
#[derive(Debug, Args)]
pub struct ExecArguments {
    /// Time limit, at most the longest that the pool allows [default: the pool's time limit for commands]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
    /// Print the result as JSON at the end. The command has no input then, and its output is only in the result
    #[arg(long, value_name = "json")]
    output: Option<Output>,
    /// Give the command our standard input, also with --output json
    #[arg(long)]
    stdin: bool,
    /// Leave the processes alive that the command leaves behind when it ends by itself; without this option they are killed
    #[arg(long)]
    keep: bool,
    /// Pid of the process that started us; when it ends, the command ends too
    #[arg(long, hide = true, value_name = "PID")]
    parent: Option<i32>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Output {
    /// One object.
    Json,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.001..=MAX_TIMEOUT_SECONDS).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| format!("the value must be a number of seconds, at most {MAX_TIMEOUT_SECONDS}"))
}

/// The printed result of a command that was run.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ExecReport {
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    timed_out: bool,
    spawn_failed: bool,
    stdout: String,
    stderr: String,
    truncated: bool,
    duration_milliseconds: u64,
    killed_survivors: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    unkillable: Option<usize>,
}

/// The printed result of a command that was refused.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct NotRun {
    refused: String,
    retry_after_milliseconds: u64,
    do_not_retry: bool,
}

/// Runs a command; returns the exit code.
pub fn run(socket: &Path, arguments: ExecArguments) -> u8 {
    let ExecArguments { timeout, output, stdin, keep, parent, command } = arguments;
    if let Some(parent) = parent
        && let Err(error) = end_with_parent(parent)
    {
        print_to_stderr(&format!("error: the command was not run: {error}"));
        return EXIT_NOT_RUN;
    }
    let name = command.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let (permit, within) = match begin(socket, timeout) {
        Ok(begun) => begun,
        Err(rejected) => return not_run(rejected, output),
    };
    let input = stdin || output.is_none();
    let job = Job {
        what: RunTarget::Program(command),
        within,
        capture: output.is_some().then(KeptBytes::default),
        input,
        keep,
        meant_to_stay: Vec::new(),
        sandbox: None,
    };
    let ran = match carry_out(socket, &job, permit) {
        Ok(ran) => ran,
        Err(error) => {
            print_to_stderr(&format!("error: {name} was not run: {error}"));
            return EXIT_NOT_RUN;
        }
    };
    let code = exit_code(&ran);
    match output {
        Some(Output::Json) => print(&json(&exec_report(&ran, &name))),
        None => messages(&ran, &name, within).into_iter().for_each(|line| print_to_stderr(&line)),
    }
    code
}

/// Runs a timed shell whose program did not ask for a time limit: processes that it leaves behind stay. `None`: it has no limit.
pub fn run_timed_shell(place: &SidecarPaths, shell: &'static str, arguments: &[OsString]) -> Option<u8> {
    let socket = &place.ask_socket;
    let unasked = ObservedCommand { program_started: tree::program_started()? };
    let asked = BeginCommand { timeout_milliseconds: None, unasked: Some(unasked) };
    let CommandBegun { permit, timeout_milliseconds, untimed } = match ask::once(socket, &Ask::BeginCommand(asked)) {
        Ok(Answer::CommandBegun(begun)) => begun,
        Ok(Answer::CommandRejected(rejected)) => return Some(not_run(rejected, None)),
        Ok(_) | Err(_) => return None,
    };
    tell_notices(place);
    let within = Duration::from_millis(timeout_milliseconds);
    let what = RunTarget::Shell { name: shell, arguments: arguments.to_vec() };
    let job = Job { what, within, capture: None, input: true, keep: true, meant_to_stay: untimed, sandbox: None };
    let ran = match carry_out(socket, &job, Some(permit)) {
        Ok(ran) => ran,
        Err(error) => {
            print_to_stderr(&format!("error: {shell} was not run: {error}"));
            return Some(EXIT_NOT_RUN);
        }
    };
    messages(&ran, shell, within).into_iter().for_each(|line| print_to_stderr(&line));
    if ran.timed_out {
        print_to_stderr(&format!("({COMMAND_FIELDS_HELP})"));
    }
    Some(exit_code(&ran))
}

/// Asks the kernel to end us when the process `parent`, which started us, ends.
fn end_with_parent(parent: i32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM))?;
    // The parent may have ended before this call.
    let there = getppid().is_some_and(|pid| pid.as_raw_nonzero().get() == parent);
    if there { Ok(()) } else { Err(io::Error::other("the process that asked for it has ended")) }
}

/// The permit of the breaker, if the sidecar answers, and the time limit.
fn begin(socket: &Path, timeout: Option<Duration>) -> Result<(Option<CommandPermit>, Duration), CommandRejected> {
    let asked = BeginCommand { timeout_milliseconds: timeout.map(millis), unasked: None };
    let trouble = match ask::ask(socket, &Ask::BeginCommand(asked)) {
        Ok(Answer::CommandBegun(CommandBegun { permit, timeout_milliseconds, untimed: _ })) => {
            let within = Duration::from_millis(timeout_milliseconds);
            if timeout.is_some_and(|timeout| timeout > within) {
                print_to_stderr(&format!("notice: the time limit is {} s, the longest that the agent's pool allows", within.as_secs()));
            }
            return Ok((Some(permit), within));
        }
        Ok(Answer::CommandRejected(rejected)) => return Err(rejected),
        Ok(Answer::Refused(refusal)) => refusal.to_string(),
        Ok(_) => "the sidecar's answer is not understood".to_owned(),
        Err(error) => format!("the sidecar cannot be reached: {error}"),
    };
    print_to_stderr(&format!("notice: no breaker guards this command: {trouble}"));
    let limits = CommandLimits::default();
    let most = Duration::from_secs(limits.max_timeout_seconds.into());
    Ok((None, timeout.unwrap_or(Duration::from_secs(limits.timeout_seconds.into())).min(most)))
}

/// Runs the command, and reports its end as soon as it is known. A program that is meant to stay is reported as cancelled.
fn carry_out(socket: &Path, job: &Job, permit: Option<CommandPermit>) -> io::Result<RunResult> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut permit = permit;
    let mut end = |how: CommandEnd| {
        if let Some(permit) = permit.take() {
            let _ = ask::ask(socket, &Ask::EndCommand(CommandEnded { permit, how })); // a permit without a report counts as failed
        }
    };
    let ran = runtime.block_on(process::run(job, || end(CommandEnd::Cancelled)))?;
    // Reported before the result is printed: its reader may start the next command at once.
    end(command_end(&ran));
    Ok(ran)
}

fn not_run(CommandRejected { message, retry_after_milliseconds }: CommandRejected, output: Option<Output>) -> u8 {
    match output {
        Some(Output::Json) => print(&json(&NotRun { refused: message, retry_after_milliseconds, do_not_retry: true })),
        None => print_to_stderr(&format!("{message} (retryAfterMilliseconds: {retry_after_milliseconds})")),
    }
    EXIT_NOT_RUN
}

/// How the command ended, for the breaker.
fn command_end(ran: &RunResult) -> CommandEnd {
    match &ran.ended {
        _ if ran.timed_out => CommandEnd::TimedOut,
        _ if ran.cancelled.is_some() => CommandEnd::Cancelled,
        ProcessEnd::NotStarted(_) => CommandEnd::NotStarted,
        ProcessEnd::Exit(Exit::Code(code)) => CommandEnd::Exited(*code),
        ProcessEnd::Exit(Exit::Signal(_)) | ProcessEnd::Never => CommandEnd::Signalled,
    }
}

fn exit_code(ran: &RunResult) -> u8 {
    let of_signal = |signal: i32| u8::try_from(signal).unwrap_or(127).saturating_add(128);
    match &ran.ended {
        _ if ran.timed_out => EXIT_TIMED_OUT,
        ProcessEnd::NotStarted(error) if error.kind() == io::ErrorKind::NotFound => EXIT_MISSING,
        ProcessEnd::NotStarted(_) => EXIT_NOT_STARTED,
        ProcessEnd::Exit(Exit::Code(code)) if ran.cancelled.is_none() => u8::try_from(code & 0xff).unwrap_or(u8::MAX),
        ProcessEnd::Exit(Exit::Signal(signal)) if ran.cancelled.is_none() => of_signal(*signal),
        ProcessEnd::Exit(_) | ProcessEnd::Never => of_signal(ran.cancelled.unwrap_or(9)),
    }
}

fn exec_report(ran: &RunResult, name: &str) -> ExecReport {
    let (exit_code, signal, trouble) = match &ran.ended {
        ProcessEnd::Exit(Exit::Code(code)) => (Some(*code), None, None),
        ProcessEnd::Exit(Exit::Signal(signal)) => (None, Some(*signal), None),
        ProcessEnd::NotStarted(error) => (None, None, Some(format!("cannot start {name}: {error}"))),
        ProcessEnd::Never => (None, None, None),
    };
    ExecReport {
        exit_code,
        signal,
        timed_out: ran.timed_out,
        spawn_failed: trouble.is_some(),
        stdout: ran.output.text(),
        stderr: trouble.unwrap_or_else(|| ran.errors.text()),
        truncated: ran.output.truncated() || ran.errors.truncated(),
        duration_milliseconds: millis(ran.took),
        killed_survivors: ran.killed_survivors,
        unkillable: Some(ran.unkillable).filter(|left| *left > 0),
    }
}

/// Our own lines, beside the output of the command.
fn messages(ran: &RunResult, name: &str, within: Duration) -> Vec<String> {
    let mut words = Vec::new();
    if ran.timed_out {
        words.push(format!("{name} timed out after {} s: it was ended, with all processes that it started", within.as_secs_f64()));
    }
    if let ProcessEnd::NotStarted(error) = &ran.ended {
        words.push(format!("cannot start {name}: {error}"));
    }
    if ran.unkillable > 0 {
        words.push(format!("{} processes of {name} cannot be killed", ran.unkillable));
    }
    words
}

/// JSON can express each value of our types.
fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_number_of_seconds() {
        for (text, expected) in [("1", 1000), ("0.25", 250), ("86400", 86_400_000)] {
            assert_eq!(seconds(text), Ok(Duration::from_millis(expected)), "{text}");
        }
        for wrong in ["0", "-1", "86401", "NaN", "inf", "", "1s"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
