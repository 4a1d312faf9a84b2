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

#[cfg(test)]
mod tests {
    use super::*;

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
