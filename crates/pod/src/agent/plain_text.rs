//! A program's output as plain text: without escape sequences and control characters. Of a line that was overwritten, it keeps
//! the text that a terminal shows. Pure; a stream may come in pieces of any size.
//!
//! What always holds: an escape sequence ends at the end of its line at the latest, so that an incomplete one hides only the
//! rest of its line.

/// The state of the parser.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Text,
    /// After ESC.
    Escape,
    /// After ESC and a byte that says that one more follows, such as `(` of `ESC ( B`.
    Intermediate,
    /// In a control sequence (`ESC [`), up to its final byte.
    Control,
    /// In a string for the terminal, such as its title (`ESC ]`), up to BEL or `ESC \`.
    String,
    /// After ESC in such a string.
    StringEscape,
}

/// One stream of output, read as it comes.
#[derive(Clone, Debug, Default)]
pub struct PlainText {
    state: State,
    /// After a carriage return: the next text overwrites the line, unless the line ends there.
    returned: bool,
}

impl PlainText {
    /// Appends the text of these bytes to `shown`. A carriage return may remove the last line of `shown`.
    pub fn push(&mut self, bytes: &[u8], shown: &mut Vec<u8>) {
        for byte in bytes {
            self.take(*byte, shown);
        }
    }

    fn take(&mut self, byte: u8, shown: &mut Vec<u8>) {
        if byte == b'\n' {
            (self.state, self.returned) = (State::Text, false);
            return shown.push(byte);
        }
        self.state = match (self.state, byte) {
            (State::Text | State::Escape | State::Intermediate | State::Control, 0x1b) => State::Escape,
            (State::String, 0x1b) => State::StringEscape,
            (State::Text, _) => {
                self.show(byte, shown);
                State::Text
            }
            (State::Escape, b'[') => State::Control,
            (State::Escape, b']' | b'P' | b'X' | b'^' | b'_') => State::String,
            (State::Escape | State::Intermediate, 0x20..=0x2f) => State::Intermediate,
            (State::Escape | State::Intermediate, _) => State::Text,
            (State::Control, 0x40..=0x7e) => State::Text,
            (State::Control, _) => State::Control,
            (State::String, 0x07) => State::Text,
            (State::String, _) => State::String,
            // `ESC \` ends the string. Another byte after ESC begins a new sequence, of which one byte is left out.
            (State::StringEscape, _) => State::Text,
        };
    }

    fn show(&mut self, byte: u8, shown: &mut Vec<u8>) {
        match byte {
            b'\r' => self.returned = true,
            0x00..=0x08 | 0x0b..=0x1f | 0x7f => {}
            _ => {
                if std::mem::take(&mut self.returned) {
                    let line = shown.iter().rposition(|shown| *shown == b'\n').map_or(0, |end| end + 1);
                    shown.truncate(line);
                }
                shown.push(byte);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(pieces: &[&[u8]]) -> String {
        let (mut text, mut shown) = (PlainText::default(), Vec::new());
        pieces.iter().for_each(|piece| text.push(piece, &mut shown));
        String::from_utf8(shown).expect("text")
    }

    #[test]
    fn colours_titles_and_cursors_leave_nothing() {
        let cases: [(&[u8], &str); 9] = [
            (b"\x1b[1;31merror\x1b[0m: no", "error: no"),
            (b"\x1b]0;title\x07one\x1b]8;;http://x\x1b\\two", "onetwo"),
            (b"\x1b(Bplain\x1b7\x1b=", "plain"),
            (b"\x1b[?25l\x1b[2K\x1b[Gdone", "done"),
            (b"a\x1b\x1b[31mb", "ab"),
            (b"a\x08\x00\x07b\tc", "ab\tc"),
            (b"tw\xc3\xb6", "tw\u{f6}"),
            (b"\x1b]0;never ended\nnext", "\nnext"),
            (b"\x1b[31", ""),
        ];
        for (written, want) in cases {
            assert_eq!(shown(&[written]), want, "{written:?}");
        }
    }

    #[test]
    fn a_line_that_was_written_over_is_as_a_terminal_shows_it() {
        assert_eq!(shown(&[b"one\r\ntwo\r\n"]), "one\ntwo\n");
        assert_eq!(shown(&[b"head\n 10 %\r 20 %\r100 %\n"]), "head\n100 %\n");
        assert_eq!(shown(&[b"kept\r"]), "kept");
        assert_eq!(shown(&[b"over", b"\r", b"\r", b"x"]), "x");
    }

    /// Every stream of four of these bytes, cut at every place.
    #[test]
    fn pieces_of_any_size_show_the_same() {
        const BYTES: [u8; 9] = [0x1b, b'[', b']', b'\\', b'(', 0x07, b'\r', b'\n', b'x'];
        for number in 0..BYTES.len().pow(4) {
            let bytes: Vec<u8> = (0..4).map(|place| BYTES[number / BYTES.len().pow(place) % BYTES.len()]).collect();
            let whole = shown(&[&bytes]);
            assert!(!whole.contains(['\u{1b}', '\u{7}', '\r']), "{bytes:?}: {whole:?}");
            for cut in 1..bytes.len() {
                let (one, other) = bytes.split_at(cut);
                assert_eq!(shown(&[one, other]), whole, "{bytes:?} cut at {cut}");
            }
        }
    }
}
