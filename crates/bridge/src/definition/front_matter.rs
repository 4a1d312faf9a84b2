//! The two parts of a definition: the front matter between two lines of three dashes, and the help behind it.

use super::Fault;

/// The most bytes of the front matter.
pub const MAX_FRONT_MATTER_BYTES: usize = 64 * 1024;
/// The most bytes of a definition.
pub const MAX_DEFINITION_BYTES: usize = 256 * 1024;
/// The lines around the front matter.
const FENCE: &str = "---";

/// The parts of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts<'a> {
    /// The fields, as YAML. Their first line is the second one of the file.
    pub fields: &'a str,
    /// The help.
    pub help: &'a str,
}

/// The parts of a file. Lines may end with CR LF, and the file may begin with a byte order mark.
pub fn split(bytes: &[u8]) -> Result<Parts<'_>, Fault> {
    if bytes.len() > MAX_DEFINITION_BYTES {
        let message = format!("the file has {} bytes, and may have {MAX_DEFINITION_BYTES}", bytes.len());
        return Err(Fault::new(None, "FileTooLong", message));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let before = bytes.get(..error.valid_up_to()).unwrap_or_default();
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        Fault::new(u32::try_from(line).ok(), "NotUtf8", "the file is not valid UTF-8")
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let rest = after_fence(text).ok_or_else(|| {
        let message = "the first line must be `---`, and the front matter begins behind it";
        Fault::new(1, "NoFrontMatter", message)
    })?;
    let mut at = 0;
    for line in rest.split_inclusive('\n') {
        if is_fence(line) {
            let fields = rest.get(..at).unwrap_or_default();
            if fields.len() > MAX_FRONT_MATTER_BYTES {
                let message = format!("the front matter has {} bytes, and may have {MAX_FRONT_MATTER_BYTES}", fields.len());
                return Err(Fault::new(1, "FrontMatterTooLong", message));
            }
            return Ok(Parts { fields, help: rest.get(at + line.len()..).unwrap_or_default().trim() });
        }
        at += line.len();
    }
    Err(Fault::new(1, "NoFrontMatter", "the front matter has no end: a line with `---` alone"))
}

fn after_fence(text: &str) -> Option<&str> {
    let line = text.split_inclusive('\n').next()?;
    (is_fence(line) && line.ends_with('\n')).then(|| text.get(line.len()..)).flatten()
}

fn is_fence(line: &str) -> bool {
    line.trim_end_matches(['\n', '\r', ' ', '\t']) == FENCE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_fields_and_help_whatever_its_line_ends() {
        for text in [
            "---\nname: a\n---\nHelp.\n",
            "---\r\nname: a\r\n---\r\nHelp.\r\n",
            "\u{feff}---\nname: a\n--- \nHelp.",
            "---\nname: a\n---\n\nHelp.\n\n",
        ] {
            let parts = split(text.as_bytes()).expect(text);
            assert_eq!((parts.fields.trim(), parts.help), ("name: a", "Help."), "{text:?}");
        }
        assert_eq!(split(b"---\n---").expect("no fields"), Parts { fields: "", help: "" });
        let parts = split(b"---\na: 1\n---\nx\n---\ny\n").expect("a line in the help");
        assert_eq!(parts.help, "x\n---\ny");
    }

    #[test]
    fn a_file_without_two_fences_is_none() {
        for text in ["", "---", "name: a\n---\n", "---\nname: a\n", "----\na: 1\n---\n", " ---\na: 1\n---\n", "---\na: 1\n ---\n"] {
            assert_eq!(split(text.as_bytes()).expect_err(text).rule, "NoFrontMatter", "{text:?}");
        }
    }

    #[test]
    fn sizes_and_encodings_are_checked_first() {
        let long = format!("---\n{}\n---\n", "#".repeat(MAX_FRONT_MATTER_BYTES));
        assert_eq!(split(long.as_bytes()).expect_err("long").rule, "FrontMatterTooLong");
        assert_eq!(split(&vec![b'a'; MAX_DEFINITION_BYTES + 1]).expect_err("long").rule, "FileTooLong");
        let fault = split(b"---\na: \xff\n---\n").expect_err("no text");
        assert_eq!((fault.rule, fault.line), ("NotUtf8", Some(2)));
    }
}
