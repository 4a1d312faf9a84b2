//! The answer for a refused call, in its dialect. The program must end its work at once or wait, and must not retry
//! many times. The behaviour of programs was measured; the table is in `docs/reference/models.md`.

use serde_json::{Value, json};
use spillway_wire::meter::Dialect;
use spillway_wire::shortage::{LimitRoom, Shortage};
use spillway_wire::{Code, Refusal};

/// Maximum seconds that a program is asked to wait. For a longer wait the call is refused for good.
const MAX_CLIENT_WAIT_SECONDS: u32 = 60;
/// Maximum seconds of an open circuit for which a program waits. A circuit that opens for a minute opens for up to a
/// tenth more. A program waits one minute, and may have to wait once more.
const MAX_CIRCUIT_WAIT_SECONDS: u32 = 67;
/// Seconds to wait if the refusal does not say how long.
const DEFAULT_WAIT_SECONDS: u32 = 5;
/// Maximum number of characters of a message.
const MAX_MESSAGE_CHARS: usize = 2_000;

/// Codex shows the text of this header if it drops the body's text, and appends ", or try again at".
const CODEX_MESSAGE_HEADER: &str = "x-codex-promo-message";

/// An answer for a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// Headers, including `content-type`. Names are in lower case.
    pub headers: Vec<(&'static str, String)>,
    /// The body, in the dialect's shape of an error.
    pub body: Vec<u8>,
}

/// Action that the answer asks of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProgramAction {
    /// Try again after this many seconds: other calls hold the tokens that are left.
    Wait(u32),
    /// Try again after this many seconds: Spillway is not available.
    Unavailable(u32),
    /// End the work.
    End,
    /// End the work: the call itself is wrong. The value is the HTTP status.
    InvalidCall(u16),
}

fn program_action(refusal: &Refusal, now_ms: i64) -> ProgramAction {
    let seconds = refusal.retry_after_seconds.or_else(|| seconds_until_reset(refusal.budget.as_deref(), now_ms));
    match refusal.code {
        Code::BudgetHeld | Code::TooManyCalls => {
            ProgramAction::Wait(seconds.unwrap_or(DEFAULT_WAIT_SECONDS).clamp(1, MAX_CLIENT_WAIT_SECONDS))
        }
        Code::GovernorAway
        | Code::DestinationUnreachable
        | Code::SessionUnknown
        | Code::HoldClosed
        | Code::PreflightNotPassed
        | Code::Internal
        | Code::Unknown => match seconds.unwrap_or(DEFAULT_WAIT_SECONDS) {
            short @ 0..=MAX_CLIENT_WAIT_SECONDS => ProgramAction::Unavailable(short.max(1)),
            _ => ProgramAction::End,
        },
        Code::TurnTimedOut => ProgramAction::Unavailable(DEFAULT_WAIT_SECONDS),
        // Without a time, a person must act.
        Code::CircuitOpen => match refusal.retry_after_seconds {
            Some(short @ 0..=MAX_CIRCUIT_WAIT_SECONDS) => ProgramAction::Unavailable(short.clamp(1, MAX_CLIENT_WAIT_SECONDS)),
            Some(_) | None => ProgramAction::End,
        },
        // Programs take 401 and 403 for a wrong key of the user, so neither is used.
        Code::BudgetExhausted
        | Code::NotWorking
        | Code::AgentEnded
        | Code::NoToken
        | Code::InvalidToken
        | Code::WrongAudience
        | Code::NotAPod
        | Code::NotAnAgent
        | Code::StaleLease
        | Code::LeaseLost => ProgramAction::End,
        Code::NoSuchCall | Code::NoSuchArtifact => ProgramAction::InvalidCall(404),
        Code::WrongMethod => ProgramAction::InvalidCall(405),
        Code::ModelNotAllowed
        | Code::EgressDenied
        | Code::GitDenied
        | Code::ToolsDenied
        | Code::InvalidBody
        | Code::BodyTooLarge
        | Code::NotAllowed
        | Code::LimitReached
        | Code::NotBuilt
        | Code::KeyReused
        | Code::FinishedAlready
        | Code::NotHeld
        | Code::NoQueues
        | Code::QueueMissing
        | Code::QueueFull
        | Code::TypeNotAccepted
        | Code::ItemTooLarge
        | Code::Cycle
        | Code::Duplicate => ProgramAction::InvalidCall(400),
    }
}

/// Seconds until the window ends, if that is soon.
fn seconds_until_reset(shortage: Option<&Shortage>, now_ms: i64) -> Option<u32> {
    let left = shortage?.room.as_ref()?.resets_at?.saturating_sub(now_ms);
    let seconds = u32::try_from(left.max(0).saturating_add(999) / 1000).ok()?;
    (seconds <= MAX_CLIENT_WAIT_SECONDS).then_some(seconds)
}

/// The answer for a refused call. `_stream` changes nothing: no byte of the stream was sent yet, so the answer is an
/// HTTP error too.
pub fn refuse(dialect: Dialect, _stream: bool, refusal: &Refusal, now_ms: i64) -> Answer {
    let then = program_action(refusal, now_ms);
    // Codex sends thirty requests after a 503, and six after a 402.
    let codex = dialect == Dialect::OpenAIResponses;
    let (status, wait) = match then {
        ProgramAction::Wait(seconds) => (429, Some(seconds)),
        ProgramAction::Unavailable(seconds) if codex => (429, Some(seconds)),
        ProgramAction::Unavailable(seconds) => (503, Some(seconds)),
        ProgramAction::End if codex => (429, None),
        ProgramAction::End => (402, None),
        ProgramAction::InvalidCall(status) => (status, None),
    };
    let mut headers = vec![("content-type", "application/json".to_owned())];
    headers.extend(wait.map(|seconds| ("retry-after", seconds.to_string())));
    if then == ProgramAction::End {
        headers.push(("x-should-retry", "false".to_owned()));
    }
    let room = refusal.budget.as_ref().and_then(|shortage| shortage.room.as_ref());
    headers.extend(room.map(budget_headers).unwrap_or_default());
    let message = message(refusal);
    if then == ProgramAction::End && codex {
        headers.push((CODEX_MESSAGE_HEADER, header_text(&message)));
    }
    let body = match dialect {
        Dialect::Anthropic => anthropic(then, &message),
        Dialect::OpenAIChat => openai(then, &message, refusal),
        Dialect::OpenAIResponses => responses(then, &message, refusal),
        Dialect::Gemini => gemini(status, then, wait, &message),
    };
    Answer { status, headers, body: body.to_string().into_bytes() }
}

/// The body of a refusal of a call whose dialect is unknown: the form of the agents' API, and an `error` in which
/// clients of each dialect find the message.
pub fn refuse_in_unknown_dialect(refusal: &Refusal, now_ms: i64) -> Vec<u8> {
    let then = program_action(refusal, now_ms);
    let message = message(refusal);
    let status = refusal.code.status();
    let mut body = serde_json::to_value(refusal).unwrap_or_default();
    body["type"] = "error".into();
    body["error"] = anthropic(then, &message)["error"].clone();
    let google = gemini(status, then, None, &message);
    for field in ["code", "status"] {
        body["error"][field] = google["error"][field].clone();
    }
    body.to_string().into_bytes()
}

/// The same as an event in the middle of a stream, which ends after it.
pub fn refuse_in_stream(dialect: Dialect, refusal: &Refusal, now_ms: i64) -> Vec<u8> {
    let body = refuse(dialect, true, refusal, now_ms).body;
    let mut event = match dialect {
        Dialect::Anthropic | Dialect::OpenAIResponses => b"\n\nevent: error\ndata: ".to_vec(),
        Dialect::OpenAIChat | Dialect::Gemini => b"\n\ndata: ".to_vec(),
    };
    event.extend_from_slice(&body);
    event.extend_from_slice(b"\n\n");
    event
}

/// The headers of the tightest limit, for allowed and refused calls: the limit, the tokens that are left, and the end
/// of its window in seconds since 1970.
pub fn budget_headers(room: &LimitRoom) -> Vec<(&'static str, String)> {
    let mut headers = vec![("x-budget-limit", room.limit.to_string()), ("x-budget-remaining", room.left.max(0).to_string())];
    headers.extend(room.resets_at.map(|at| ("x-budget-reset", at.div_euclid(1000).to_string())));
    headers
}

fn anthropic(then: ProgramAction, message: &str) -> Value {
    let kind = match then {
        ProgramAction::Wait(_) => "rate_limit_error",
        // `overloaded_error` is not used, because Claude Code gives up after the third one.
        ProgramAction::Unavailable(_) => "api_error",
        ProgramAction::End => "billing_error",
        ProgramAction::InvalidCall(404) => "not_found_error",
        ProgramAction::InvalidCall(_) => "invalid_request_error",
    };
    json!({"type": "error", "error": {"type": kind, "message": message}})
}

fn openai(then: ProgramAction, message: &str, refusal: &Refusal) -> Value {
    let kind = match then {
        ProgramAction::Wait(_) => "rate_limit_exceeded",
        ProgramAction::Unavailable(_) => "server_error",
        ProgramAction::End => "insufficient_quota",
        ProgramAction::InvalidCall(_) => "invalid_request_error",
    };
    json!({"error": {"message": message, "type": kind, "param": refusal.field, "code": refusal.code.label()}})
}

fn responses(then: ProgramAction, message: &str, refusal: &Refusal) -> Value {
    let mut body = openai(then, message, refusal);
    if then == ProgramAction::End {
        body["error"]["type"] = "usage_limit_reached".into();
        let resets = refusal.budget.as_ref().and_then(|shortage| shortage.room.as_ref()?.resets_at);
        if let Some(at) = resets {
            body["error"]["resets_at"] = at.div_euclid(1000).into();
        }
    }
    body
}

fn gemini(status: u16, then: ProgramAction, wait: Option<u32>, message: &str) -> Value {
    let word = match then {
        ProgramAction::Wait(_) => "RESOURCE_EXHAUSTED",
        ProgramAction::Unavailable(_) => "UNAVAILABLE",
        ProgramAction::End => "FAILED_PRECONDITION",
        ProgramAction::InvalidCall(404) => "NOT_FOUND",
        ProgramAction::InvalidCall(_) => "INVALID_ARGUMENT",
    };
    let mut body = json!({"error": {"code": status, "message": message, "status": word}});
    if let Some(seconds) = wait {
        let info = json!({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": format!("{seconds}s")});
        body["error"]["details"] = json!([info]);
    }
    body
}

/// The message of the refusal, with the facts about the budget that it leaves out: tokens left, reset time, field to
/// raise, people to ask.
fn message(refusal: &Refusal) -> String {
    let mut message = format!("Spillway: {}", refusal.message.trim_end_matches('.'));
    let mut add = |part: String| {
        message.push_str(". ");
        message.push_str(&part);
    };
    if let Some(Shortage { room, because, field, own: _ }) = refusal.budget.as_deref() {
        // A Budget that does not exist, or whose parents are wrong, has no limit to raise.
        let is_limit = !matches!(because.as_str(), "missing" | "blocked");
        if let Some(LimitRoom { budget, name, limit, used, held, left, resets_at }) = room {
            if !refusal.message.contains(&format!("{left} of {limit} tokens")) {
                add(format!("{budget}, limit {name}: {left} of {limit} tokens are left ({used} used, {held} held by calls in flight)"));
            }
            match resets_at.map(format_utc) {
                Some(at) if refusal.message.contains(&at) => {}
                Some(at) => add(format!("It resets at {at}")),
                None => add("It does not reset by itself".to_owned()),
            }
        }
        // The message of the ledger begins with the object and ends with the field. The field alone is followed by its
        // object.
        let bare = field.split_once(" of ").map_or(field.as_str(), |(bare, _)| bare);
        if is_limit && !refusal.message.contains(bare) {
            add(format!("The field to raise is {field}"));
        }
        let help = if is_limit { "raise it, or give more for a while with a Grant" } else { "correct it" };
        add(format!("The platform engineers of this team can {help}"));
    }
    message.push('.');
    match message.char_indices().nth(MAX_MESSAGE_CHARS) {
        Some((end, _)) => message[..end].to_owned(),
        None => message,
    }
}

/// A message as the value of a header: one line of ASCII without a full stop.
fn header_text(message: &str) -> String {
    let sign = |sign: char| match sign {
        ' '..='~' => sign,
        _ if sign.is_whitespace() => ' ',
        _ => '?',
    };
    message.trim_end_matches('.').chars().map(sign).collect()
}

/// A time in milliseconds as `2026-11-22T16:05Z`, as the ledger writes it.
fn format_utc(ms: i64) -> String {
    let minutes = ms.div_euclid(60_000);
    let (days, minute) = (minutes.div_euclid(1440), minutes.rem_euclid(1440));
    // Days since 0000-03-01, in eras of 400 years. The leap day is the last day of such a year.
    let (era, day) = ((days + 719_468).div_euclid(146_097), (days + 719_468).rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (date, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = year + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{date:02}T{:02}:{:02}Z", minute / 60, minute % 60)
}

#[cfg(test)]
#[path = "refuse_tests.rs"]
mod tests;
