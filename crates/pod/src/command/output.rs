//! Output lines for programs and for people, and exit codes.

use std::io::Write as _;

use spillway_wire::Refusal;
use spillway_wire::agent::Notice;

/// Wrong usage, or a named file cannot be used.
pub const EXIT_USAGE: u8 = 2;
/// The request was refused, or there is no item.
pub const EXIT_REFUSED: u8 = 3;
/// The sidecar cannot be reached.
pub const EXIT_UNREACHABLE: u8 = 4;

/// Prints a refusal; returns the exit code.
pub(super) fn refused(refusal: &Refusal, key: Option<&str>) -> u8 {
    print_to_stderr(&format!("refused: {refusal}"));
    if let Some(key) = key.filter(|_| refusal.code.is_retryable()) {
        print_to_stderr(&format!("to try again without making a second one, add: --key {key}"));
    }
    EXIT_REFUSED
}

/// Prints that the sidecar cannot be reached; returns the exit code.
pub(super) fn unreachable_sidecar(error: &std::io::Error) -> u8 {
    print_to_stderr(&format!("error: the sidecar cannot be reached: {error}"));
    EXIT_UNREACHABLE
}

/// Prints a line for programs. A closed output is no error.
pub(super) fn print(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Prints a line for people and for the model.
pub(super) fn print_to_stderr(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// A notice in one line, without line breaks of its text.
pub(super) fn notice_line(notice: &Notice) -> String {
    let text = notice.text.replace(['\n', '\r'], " ");
    format!("{} {}: {text}", notice.time, notice.about)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_is_one_line() {
        let notice = Notice { id: 1, time: "T".into(), about: "A".into(), text: "one\ntwo".into() };
        assert_eq!(notice_line(&notice), "T A: one two");
    }
}
