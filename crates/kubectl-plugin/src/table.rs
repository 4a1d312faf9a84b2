//! Columns, ages, and text that is safe to print. Pure; it must not know a kind.

use comfy_table::{Table, presets};
use jiff::Timestamp;

/// The text of an empty cell.
pub const EMPTY_COLUMN: &str = "-";

/// Rows under a header, as kubectl prints them: three spaces between the columns, no lines, no trailing spaces.
pub fn table(header: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.iter().copied());
    for row in rows {
        table.add_row(row.iter().map(|cell| if cell.is_empty() { EMPTY_COLUMN.to_owned() } else { printable(cell) }));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 3));
    }
    let mut text = table.trim_fmt();
    text.push('\n');
    text
}

/// The same, indented by two spaces; empty without rows.
pub fn indented(header: &[&str], rows: Vec<Vec<String>>) -> String {
    if rows.is_empty() {
        return String::new();
    }
    table(header, rows).lines().map(|line| format!("  {line}\n")).collect()
}

/// Names with their values, indented by two spaces.
pub fn pairs(all: &[(&str, String)]) -> String {
    let width = all.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    all.iter().map(|(name, words)| format!("  {name:width$}  {}\n", printable(words))).collect()
}

/// `text` with characters replaced that would move the cursor or break a row. Agents have written many of the listed texts.
pub fn printable(text: &str) -> String {
    text.chars().map(|character| if moves_cursor(character) { '\u{fffd}' } else { character }).collect()
}

/// As [`printable`], for a line that a program wrote for a terminal: tabs stay, and colour sequences are removed.
pub fn printable_line(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        let after = &rest[character.len_utf8()..];
        rest = match (character, colour(rest)) {
            (_, Some(after_colour)) => after_colour,
            ('\t', None) => {
                safe.push('\t');
                after
            }
            (_, None) => {
                safe.push(if moves_cursor(character) { '\u{fffd}' } else { character });
                after
            }
        };
    }
    safe
}

/// A text of several lines as one line.
pub fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The rest of `text` after an escape sequence for colours (`ESC [ numbers m`) at its beginning.
fn colour(text: &str) -> Option<&str> {
    let numbers = text.strip_prefix("\u{1b}[")?;
    numbers.trim_start_matches(|character: char| character.is_ascii_digit() || matches!(character, ';' | ':')).strip_prefix('m')
}

/// Whether a character moves the cursor, ends the line, or changes the direction of the text after it.
fn moves_cursor(character: char) -> bool {
    character.is_control() || matches!(character, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The text, or an empty one.
pub fn or_nothing(text: Option<impl ToString>) -> String {
    text.map_or_else(String::new, |text| text.to_string())
}

/// The age since `from`, as kubectl prints it: the largest unit, and the next one while the age is short.
pub fn age(from: Option<Timestamp>, now: Timestamp) -> String {
    let Some(from) = from else { return String::new() };
    let seconds = now.duration_since(from).as_secs().max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let both = |large: i64, unit: &str, small: i64, small_unit: &str| match small {
        0 => format!("{large}{unit}"),
        _ => format!("{large}{unit}{small}{small_unit}"),
    };
    match () {
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => both(minutes, "m", seconds % 60, "s"),
        () if hours < 3 => format!("{minutes}m"),
        () if hours < 8 => both(hours, "h", minutes % 60, "m"),
        () if hours < 48 => format!("{hours}h"),
        () if days < 8 => both(days, "d", hours % 24, "h"),
        () if days < 730 => format!("{days}d"),
        () if days < 2920 => both(days / 365, "y", days % 365, "d"),
        () => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_those_of_kubectl() {
        let from = Timestamp::UNIX_EPOCH;
        let cases = [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (150, "2m30s"),
            (3599, "59m"),
            (3 * 3600 + 60, "3h1m"),
            (8 * 3600 + 60, "8h"),
            (49 * 3600, "2d1h"),
            (9 * 86_400 + 1, "9d"),
            (800 * 86_400, "2y70d"),
            (3000 * 86_400, "8y"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(age(Some(from), from + jiff::SignedDuration::from_secs(seconds)), expected);
        }
        assert_eq!(age(Some(from + jiff::SignedDuration::from_secs(5)), from), "0s", "another machine's clock may be ahead");
    }

    #[test]
    fn lines_of_a_log_lose_their_colours_and_nothing_else() {
        assert_eq!(printable_line("\u{1b}[1;31mred\u{1b}[0m\tplain"), "red\tplain");
        assert_eq!(printable_line("\u{1b}[2J\u{1b}]0;title\u{7}\r\u{1b}["), "\u{fffd}[2J\u{fffd}]0;title\u{fffd}\u{fffd}\u{fffd}[");
        assert_eq!(printable("one \u{202e}owt"), "one \u{fffd}owt");
    }

    #[test]
    fn rows_line_up_and_control_characters_never_reach_the_terminal() {
        let rows = vec![vec!["a".into(), "\u{1b}[2J".into()], vec!["longer".into(), String::new()]];
        assert_eq!(table(&["NAME", "X"], rows), "NAME     X\na        \u{fffd}[2J\nlonger   -\n");
    }
}
