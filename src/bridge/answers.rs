//! The answers to calls: about what was not started, and about programs that ended. Pure but for the id of a call.

use std::io;
use std::time::Duration;

use spillway_bridge::admission::Busy;
use spillway_bridge::answer::{Answer, Status};
use spillway_bridge::call::CallRefused;
use spillway_bridge::redaction::Secrets;
use spillway_pod::process::capture::join_parts;
use spillway_policy::breaker::commands::End;
use spillway_policy::breaker::{Guard, Rejection};

use super::program_process::{KeptOutput, ProgramEnd};
use super::upstream::server::UPSTREAM_RULE;

/// The answer to a call that starts nothing.
pub type NotRun = Box<Answer>;

/// The rule of an answer about a process that could not be started, or was lost.
pub const PROCESS_RULE: &str = "process";
/// Characters of the id of a call.
const AUDIT_ID_CHARS: usize = 24;

/// A call that broke a rule.
pub fn rejected(rule: &'static str, message: &str) -> NotRun {
    Box::new(Answer::not_run(Status::Rejected, rule, message))
}

/// A call that names an artifact where there are none.
pub fn no_artifacts(argument: Option<String>) -> NotRun {
    let message = "this bridge has no store of artifacts: agents in the cluster have one";
    Box::new(Answer { field: argument, ..*rejected("artifact", message) })
}

/// A call whose arguments broke a rule.
pub fn refused(why: CallRefused) -> NotRun {
    let answer = Answer::not_run(Status::Rejected, why.rule, why.to_string());
    Box::new(Answer { field: Some(why.field), ..answer })
}

/// A call beyond a limit.
pub fn busy(Busy { rule, retry_after_milliseconds }: Busy) -> NotRun {
    let wait = Duration::from_millis(retry_after_milliseconds);
    let message = format!("the limit {rule} is reached; try again in {} s", wait.as_secs_f64().ceil());
    Box::new(Answer { retry_after_milliseconds: Some(retry_after_milliseconds), ..Answer::not_run(Status::Busy, rule, message) })
}

/// A call that a circuit breaker stops.
pub fn broken(rejection: &Rejection) -> NotRun {
    let whose = if rejection.guard == Guard::Session { "this agent's programs" } else { "the programs of all agents" };
    let message = format!("the circuit breaker of {whose} is open: {rejection}");
    let answer = Answer::not_run(Status::BreakerOpen, "breaker", message);
    Box::new(Answer { retry_after_milliseconds: Some(rejection.retry_after), ..answer })
}

/// How a program ended, for the breakers.
pub fn breaker_end(answer: &Answer) -> End {
    match answer.status {
        Status::Ok | Status::Nonzero => End::Exited(answer.exit_code.unwrap_or(0)),
        Status::Timeout => End::TimedOut,
        Status::SpawnFailed if matches!(answer.rule, Some(PROCESS_RULE | UPSTREAM_RULE)) => End::NotStarted,
        Status::Unknown if answer.rule == Some(UPSTREAM_RULE) => End::NotStarted,
        Status::SpawnFailed
        | Status::Rejected
        | Status::Denied
        | Status::Busy
        | Status::BreakerOpen
        | Status::Cancelled
        | Status::Unknown => End::Cancelled,
    }
}

/// A new id of a call.
pub fn audit_id() -> Result<String, NotRun> {
    let key = spillway_pod::random::key();
    let failed = |error: io::Error| Box::new(Answer::not_run(Status::SpawnFailed, "internal", format!("no random bytes: {error}")));
    key.map(|key| key.chars().take(AUDIT_ID_CHARS).collect()).map_err(failed)
}

/// The answer about a program that ended.
pub fn answer(ended: ProgramEnd, secrets: &Secrets) -> Answer {
    let ProgramEnd { exit_code, timed_out, cancelled, not_started, stdout, stderr, duration_milliseconds } = ended;
    let status = match (&not_started, exit_code) {
        (Some(_), _) => Status::SpawnFailed,
        _ if timed_out => Status::Timeout,
        _ if cancelled => Status::Cancelled,
        (None, Some(0)) => Status::Ok,
        (None, Some(_) | None) => Status::Nonzero,
    };
    Answer {
        status,
        exit_code,
        truncated: stdout.left_out > 0 || stderr.left_out > 0,
        stdout: text(stdout, secrets),
        stderr: text(stderr, secrets),
        duration_milliseconds,
        audit_id: String::new(),
        revision: String::new(),
        field: None,
        rule: not_started.as_ref().map(|_| PROCESS_RULE),
        message: not_started,
        retry_after_milliseconds: None,
        tool_result: None,
    }
}

/// The text of a stream without credentials.
fn text(stream: KeptOutput, secrets: &Secrets) -> String {
    let KeptOutput { begin, left_out, end } = stream;
    if left_out == 0 {
        return secrets.remove(begin);
    }
    let (begin, end) = secrets.remove_around_cut(begin, end);
    join_parts((begin, left_out, end))
}
