//! Printing texts of other programs and people without control characters, so that they cannot control the terminal.

use crate::command::output::print;

/// Prints a text that other programs or people have written a part of, without control characters.
pub(super) fn print_plain(words: &str) {
    print(&printable(words));
}

/// The text without control characters, except tabs and line ends, and without characters that change the direction of text.
fn printable(words: &str) -> String {
    let steers = |letter: char| {
        (letter.is_control() && !matches!(letter, '\n' | '\t'))
            || matches!(letter, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    words.chars().filter(|letter| !steers(*letter)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_others_do_not_steer_a_terminal() {
        assert_eq!(printable("a\u{1b}]0;title\u{7}\r\n\tb\u{9b}2J\u{202e}c é"), "a]0;title\n\tb2Jc é");
    }
}
