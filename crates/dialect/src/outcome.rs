//! The outcome of a call for its provider's circuit: the provider works, it fails, or it refused this one call for a
//! fault of the call. Only a failure that another call would meet as well counts.

use spillway_wire::meter::{FaultCause, Outcome};

use crate::scan::{FoundValues, Kind, ValuePath, object, value};

/// Words with which providers report a failure of their own, in lower case.
const PROVIDER_FAILURE_WORDS: [&str; 12] = [
    "overloaded_error",
    "api_error",
    "server_error",
    "internal_error",
    "internal_server_error",
    "overloaded",
    "server_overloaded",
    "engine_overloaded",
    "service_unavailable",
    "unavailable",
    "internal",
    "deadline_exceeded",
];

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerEnd {
    /// It ended properly.
    Whole,
    /// The connection broke.
    Broken,
    /// No byte came for too long.
    Idle,
    /// The answer was no longer read: its client left, or it took longer than any answer may.
    Abandoned,
}

/// The outcome of a status. `None`: it depends on the answer.
pub fn outcome_of_status(status: u16, retry_after: Option<u32>) -> Option<Outcome> {
    match status {
        500 | 502 | 503 | 504 | 529 => Some(Outcome::Failed { why: FaultCause::Status(status), retry_after }),
        200..=299 => None,
        _ => Some(Outcome::Nothing),
    }
}

/// The outcome of an answer of status 200. `error`: the answer contained an error. True: the error was the provider's
/// own.
pub fn outcome_of_answer(ended: AnswerEnd, error: Option<bool>) -> Outcome {
    let failed = |why| Outcome::Failed { why, retry_after: None };
    match (error, ended) {
        (Some(true), _) => failed(FaultCause::Event),
        (Some(false), _) | (None, AnswerEnd::Abandoned) => Outcome::Nothing,
        (None, AnswerEnd::Whole) => Outcome::Worked,
        (None, AnswerEnd::Broken) => failed(FaultCause::Broken),
        (None, AnswerEnd::Idle) => failed(FaultCause::Idle),
    }
}

// Notes of the type of an event and of errors. All dialects have them at these paths.
/// Note of the type of an event.
pub(crate) const KIND_NOTE: usize = 0;
const ERROR_NOTE: usize = 1;
const ERROR_WORD_NOTES: [usize; 3] = [2, 3, 4];
const INNER_ERROR_NOTE: usize = 5;
const INNER_ERROR_WORD_NOTES: [usize; 3] = [6, 7, 8];
const FLAT_ERROR_WORD_NOTES: [usize; 3] = [9, 10, KIND_NOTE];
/// First note of a dialect's own paths.
pub(crate) const FIRST_DIALECT_NOTE: usize = 11;
/// Path of the type of an event.
pub(crate) const KIND_PATH: ValuePath = value("type", KIND_NOTE);
/// Paths of the code of an event that is an error itself.
pub(crate) const FLAT_ERROR_PATHS: [ValuePath; 2] = [value("code", FLAT_ERROR_WORD_NOTES[0]), value("status", FLAT_ERROR_WORD_NOTES[1])];
/// Path of an error in an event.
pub(crate) const ERROR_PATH: ValuePath = object(
    "error",
    ERROR_NOTE,
    &[value("code", ERROR_WORD_NOTES[0]), value("status", ERROR_WORD_NOTES[1]), value("type", ERROR_WORD_NOTES[2])],
);
/// Path of an error in the `response` of an event.
pub(crate) const INNER_ERROR_PATH: ValuePath = object(
    "error",
    INNER_ERROR_NOTE,
    &[value("code", INNER_ERROR_WORD_NOTES[0]), value("status", INNER_ERROR_WORD_NOTES[1]), value("type", INNER_ERROR_WORD_NOTES[2])],
);

/// Whether an event contains an error, and whether the error is the provider's own.
pub(crate) fn provider_error(event: &FoundValues) -> Option<bool> {
    let [named, inner] = [ERROR_NOTE, INNER_ERROR_NOTE].map(|at| event[at].kind != Kind::None);
    let flat = event[KIND_NOTE].word() == "error";
    match (named, inner) {
        (true, _) if !event[ERROR_NOTE].is_empty() => Some(is_provider_failure(event, ERROR_WORD_NOTES)),
        (false, true) if !event[INNER_ERROR_NOTE].is_empty() => Some(is_provider_failure(event, INNER_ERROR_WORD_NOTES)),
        // The event itself is an error.
        (_, _) if flat => Some(is_provider_failure(event, FLAT_ERROR_WORD_NOTES)),
        (_, _) => None,
    }
}

/// Whether an event contains an error of any kind.
pub(crate) fn has_error(event: &FoundValues) -> bool {
    event[ERROR_NOTE].kind != Kind::None
}

fn is_provider_failure(event: &FoundValues, says: [usize; 3]) -> bool {
    says.into_iter().any(|at| {
        let note = &event[at];
        match note.kind {
            Kind::Number => {
                note.word().parse::<u16>().is_ok_and(|status| matches!(outcome_of_status(status, None), Some(Outcome::Failed { .. })))
            }
            Kind::Text => PROVIDER_FAILURE_WORDS.contains(&note.word().to_ascii_lowercase().as_str()),
            Kind::None | Kind::False | Kind::True | Kind::List | Kind::Object => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::Scanner;

    const PLACES: &[ValuePath] = &{
        let [code, status] = FLAT_ERROR_PATHS;
        [KIND_PATH, ERROR_PATH, code, status, object("response", FIRST_DIALECT_NOTE, &[INNER_ERROR_PATH])]
    };

    #[test]
    fn a_status_is_a_failure_only_if_another_call_would_meet_it_too() {
        for status in [500, 502, 503, 504, 529] {
            let failed = Outcome::Failed { why: FaultCause::Status(status), retry_after: Some(7) };
            assert_eq!(outcome_of_status(status, Some(7)), Some(failed));
        }
        for status in [301, 400, 401, 402, 403, 404, 409, 413, 422, 429, 499, 501] {
            assert_eq!(outcome_of_status(status, None), Some(Outcome::Nothing), "{status}");
        }
        assert_eq!(outcome_of_status(200, None), None);
    }

    #[test]
    fn an_error_in_an_answer_is_the_providers_own_or_the_calls() {
        let cases = [
            (r#"{"type":"error","error":{"type":"overloaded_error","message":"x"}}"#, Some(true)),
            (r#"{"type":"error","error":{"type":"api_error","message":"x"}}"#, Some(true)),
            (r#"{"type":"error","error":{"type":"rate_limit_error","message":"x"}}"#, Some(false)),
            (r#"{"type":"error","error":{"type":"invalid_request_error","message":"x"}}"#, Some(false)),
            (r#"{"error":{"message":"x","type":"server_error","code":null}}"#, Some(true)),
            (r#"{"error":{"message":"x","code":503}}"#, Some(true)),
            (r#"{"error":{"message":"x","code":429}}"#, Some(false)),
            (r#"{"error":{"code":503,"status":"UNAVAILABLE"}}"#, Some(true)),
            (r#"{"error":{"code":400,"status":"INVALID_ARGUMENT"}}"#, Some(false)),
            (r#"{"type":"response.failed","response":{"error":{"code":"server_error","message":"x"}}}"#, Some(true)),
            (r#"{"type":"response.failed","response":{"error":{"code":"rate_limit_exceeded"}}}"#, Some(false)),
            (r#"{"type":"response.completed","response":{"error":null}}"#, None),
            (r#"{"type":"error","code":"server_error","message":"x"}"#, Some(true)),
            (r#"{"choices":[],"error":null}"#, None),
            (r#"{"choices":[{"delta":{"content":"error"}}]}"#, None),
        ];
        for (event, wanted) in cases {
            let mut scanner = Scanner::new(PLACES);
            scanner.feed(event.as_bytes());
            assert!(scanner.has_ended());
            assert_eq!(provider_error(scanner.notes()), wanted, "{event}");
        }
    }

    #[test]
    fn an_abandoned_answer_has_no_outcome_for_its_provider() {
        assert_eq!(outcome_of_answer(AnswerEnd::Whole, None), Outcome::Worked);
        assert_eq!(outcome_of_answer(AnswerEnd::Abandoned, None), Outcome::Nothing);
        assert_eq!(outcome_of_answer(AnswerEnd::Whole, Some(false)), Outcome::Nothing);
        for (ended, error, why) in [
            (AnswerEnd::Whole, Some(true), FaultCause::Event),
            (AnswerEnd::Broken, None, FaultCause::Broken),
            (AnswerEnd::Idle, None, FaultCause::Idle),
            (AnswerEnd::Abandoned, Some(true), FaultCause::Event),
        ] {
            assert_eq!(outcome_of_answer(ended, error), Outcome::Failed { why, retry_after: None });
        }
    }
}
