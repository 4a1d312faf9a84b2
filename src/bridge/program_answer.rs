//! The answer about a program that ended. Pure.

use spillway_bridge::answer::{Answer, Status};
use spillway_bridge::redaction::Secrets;
use spillway_pod::process::capture::join_parts;

use super::program_process::{KeptOutput, ProgramEnd};

/// The rule of an answer about a process that could not be started, or was lost.
pub const PROCESS_RULE: &str = "process";

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
