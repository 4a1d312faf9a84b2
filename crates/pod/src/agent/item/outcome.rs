//! The outcomes of items as values, and a file's bytes as a result. It decides on no outcome.

use spillway_wire::work::{MAX_RESULT_BYTES, Outcome};

/// The most characters of a message.
const MAX_MESSAGE_CHARS: usize = 1024;

pub(super) fn cancelled() -> Outcome {
    release("Cancelled", "the item was cancelled")
}

/// The outcome of a lost lease. A sidecar that knows of the loss does not report it to a gateway.
pub(super) fn lost() -> Outcome {
    release("Lost", "the lease was lost")
}

pub(super) fn release(reason: &str, message: &str) -> Outcome {
    Outcome::Release { reason: reason.to_owned(), message: message.to_owned() }
}

pub(super) fn fail(reason: &str, message: &str, code: u8) -> Outcome {
    let message = message.chars().take(MAX_MESSAGE_CHARS).collect();
    Outcome::Fail { reason: reason.to_owned(), message, exit_code: Some(code.into()) }
}

/// `bytes` as a result, cut between two characters at the greatest length; `None` if there are no bytes.
pub fn result_of(bytes: &[u8]) -> Option<String> {
    let kept = bytes.get(..MAX_RESULT_BYTES).unwrap_or(bytes);
    // A character that the cut divides is removed, and not shown as a broken one.
    let whole = match std::str::from_utf8(kept) {
        Err(error) if bytes.len() > kept.len() && error.error_len().is_none() => kept.get(..error.valid_up_to()).unwrap_or(kept),
        Ok(_) | Err(_) => kept,
    };
    let mut text = String::from_utf8_lossy(whole).into_owned();
    if text.len() > MAX_RESULT_BYTES {
        text.truncate(text.floor_char_boundary(MAX_RESULT_BYTES));
    }
    (!text.is_empty()).then_some(text)
}
