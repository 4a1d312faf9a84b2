//! Bytes and words as plain text.

use std::fmt::Write as _;

/// `text` as one segment of a path or one value of a query: all characters except letters, digits and `-._~` are escaped.
pub fn percent_escape(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut escaped, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            let _ = write!(escaped, "%{byte:02X}"); // writing to a String cannot fail
        }
        escaped
    })
}

/// Bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut digits, byte| {
        let _ = write!(digits, "{byte:02x}"); // writing to a String cannot fail
        digits
    })
}

/// Unicode calls these letters, and they look like nothing: fillers of Hangul.
const LETTERS_WITHOUT_SHAPE: [char; 4] = ['\u{115f}', '\u{1160}', '\u{3164}', '\u{ffa0}'];

/// A text in which a person sees each character: those that move the cursor, turn the direction, have no shape or look like a space are
/// written as `\uXXXX`. A text of JSON stays one, with the same meaning.
pub fn visible(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut seen, character| {
        let is_letter = character.is_alphanumeric() && !LETTERS_WITHOUT_SHAPE.contains(&character);
        if character == ' ' || character.is_ascii_graphic() || is_letter {
            seen.push(character);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                let _ = write!(seen, "\\u{unit:04x}"); // writing to a String cannot fail
            }
        }
        seen
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_sees_each_character() {
        assert_eq!(visible("a b-\u{e9}\u{65e5}"), "a b-\u{e9}\u{65e5}");
        let hidden = "\u{1b}\u{202e}\u{200b}\u{a0}\u{3164}\u{e0041}\u{ad}";
        assert_eq!(visible(hidden), "\\u001b\\u202e\\u200b\\u00a0\\u3164\\udb40\\udc41\\u00ad");
        assert_eq!(visible(&visible(hidden)), visible(hidden));
    }

    #[test]
    fn a_segment_of_a_path_may_be_any_text() {
        assert_eq!(percent_escape("a-1/b c&d"), "a-1%2Fb%20c%26d");
        assert_eq!(percent_escape("\u{e4}?#%"), "%C3%A4%3F%23%25");
    }

    #[test]
    fn each_byte_is_two_digits() {
        assert_eq!(hex(&[0, 10, 255]), "000aff");
    }
}
