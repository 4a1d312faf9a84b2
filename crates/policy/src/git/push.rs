//! The start of a push: which refs it updates, before the objects. And the answer to a push that is denied.
//!
//! Pure. It follows gitprotocol-pack and gitprotocol-http: lines with their length in four hexadecimal digits, up to a flush.

use std::fmt;

/// The most bytes before the objects.
pub const MAX_HEAD_BYTES: usize = 64 * 1024;
/// The most updates of one push.
pub const MAX_UPDATES: usize = 128;
/// The most bytes of a name. No valid one is longer than 255.
const MAX_NAME_BYTES: usize = 1024;
/// The digits of a line's length.
const LENGTH_DIGITS: usize = 4;
/// The end of a list of lines.
const FLUSH: &[u8] = b"0000";
/// Bytes of a side band's line that are data, in the smaller of its two forms.
const SIDE_BAND_BYTES: usize = 990;
/// The side band of the report, and that of messages for the user.
const REPORT_BAND: u8 = 1;
const MESSAGE_BAND: u8 = 2;

/// One update of a ref.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefUpdate {
    /// Its commit on the server, as the client knows it; all zeros: there is no such ref.
    pub old: String,
    /// Its new commit; all zeros: it is deleted.
    pub new: String,
    /// Its full name.
    pub name: String,
}

impl RefUpdate {
    /// Whether the ref is new. The server refuses the update if it exists.
    pub fn creates(&self) -> bool {
        is_zero(&self.old)
    }

    /// Whether the ref is deleted.
    pub fn deletes(&self) -> bool {
        is_zero(&self.new)
    }
}

fn is_zero(id: &str) -> bool {
    id.bytes().all(|byte| byte == b'0')
}

/// The start of a push.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PushHead {
    /// The updates. None: the client only tests whether it may push.
    pub updates: Vec<RefUpdate>,
    /// Whether the client reads the report in a side band.
    pub side_band: bool,
    /// Whether the client wants a report.
    pub report: bool,
}

/// Why the start of a push cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushError {
    /// It does not follow the protocol.
    Malformed,
    /// It is a signed push, whose updates are inside a certificate.
    Signed,
    /// It has options, by which servers do more than update refs, such as merging.
    Options,
    /// It has too many updates, or they are too long.
    TooMany,
}

impl fmt::Display for PushError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed => out.write_str("the push does not follow git's protocol"),
            Self::Signed => out.write_str("signed pushes are not supported: push without --signed"),
            Self::Options => out.write_str("push options are not supported: push without -o"),
            Self::TooMany => write!(out, "a push has at most {MAX_UPDATES} refs, of {MAX_HEAD_BYTES} bytes together: push fewer at once"),
        }
    }
}

/// Reads the start of a push from parts of any size. It keeps all bytes that it got.
#[derive(Debug, Default)]
pub struct PushHeadReader {
    bytes: Vec<u8>,
    /// Bytes of whole lines that were read.
    read: usize,
    head: PushHead,
    capabilities_seen: bool,
}

impl PushHeadReader {
    /// Takes the next part. `Some`: the start is complete; the bytes after it are objects.
    pub fn push(&mut self, part: &[u8]) -> Result<Option<PushHead>, PushError> {
        self.bytes.extend_from_slice(part);
        loop {
            let rest = self.bytes.get(self.read..).unwrap_or_default();
            let Some(digits) = rest.get(..LENGTH_DIGITS) else { break };
            let length = line_length(digits)?;
            if length == 0 {
                self.read += LENGTH_DIGITS;
                return Ok(Some(std::mem::take(&mut self.head)));
            }
            let Some(line) = rest.get(LENGTH_DIGITS..length) else { break };
            read_line(line, &mut self.head, &mut self.capabilities_seen)?;
            self.read += length;
            if self.read > MAX_HEAD_BYTES || self.head.updates.len() > MAX_UPDATES {
                return Err(PushError::TooMany);
            }
        }
        // A line has at most 65,520 bytes, so more than this is no unfinished line.
        if self.bytes.len() > 2 * MAX_HEAD_BYTES { Err(PushError::TooMany) } else { Ok(None) }
    }

    /// All bytes that it got.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// The length in a line's first digits, which counts these digits too; 0: a flush.
fn line_length(digits: &[u8]) -> Result<usize, PushError> {
    let text = std::str::from_utf8(digits).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let length = text.and_then(|text| usize::from_str_radix(text, 16).ok()).ok_or(PushError::Malformed)?;
    // 1 to 3 are delimiters of other commands, and 4 is an empty line: a push has neither.
    if length == 0 || length > LENGTH_DIGITS { Ok(length) } else { Err(PushError::Malformed) }
}

fn read_line(line: &[u8], head: &mut PushHead, capabilities_seen: &mut bool) -> Result<(), PushError> {
    let (line, capabilities) = match line.iter().position(|byte| *byte == 0) {
        Some(at) => (line.get(..at).unwrap_or_default(), line.get(at + 1..)),
        None => (line, None),
    };
    let text = std::str::from_utf8(line).map_err(|_| PushError::Malformed)?;
    let text = text.strip_suffix('\n').unwrap_or(text);
    if text.starts_with("push-cert") {
        return Err(PushError::Signed);
    }
    if let Some(id) = text.strip_prefix("shallow ") {
        return if is_id(id) && capabilities.is_none() { Ok(()) } else { Err(PushError::Malformed) };
    }
    if let Some(capabilities) = capabilities {
        // Servers read the capabilities of the first update only.
        if std::mem::replace(capabilities_seen, true) || !head.updates.is_empty() {
            return Err(PushError::Malformed);
        }
        let all = std::str::from_utf8(capabilities).map_err(|_| PushError::Malformed)?;
        for capability in all.split_ascii_whitespace() {
            head.report |= matches!(capability, "report-status" | "report-status-v2");
            head.side_band |= matches!(capability, "side-band-64k" | "side-band");
            if capability == "push-options" {
                return Err(PushError::Options);
            }
        }
    }
    let mut words = text.splitn(3, ' ');
    let (Some(old), Some(new), Some(name)) = (words.next(), words.next(), words.next()) else { return Err(PushError::Malformed) };
    if !is_id(old) || !is_id(new) || old.len() != new.len() {
        return Err(PushError::Malformed);
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(PushError::TooMany);
    }
    head.updates.push(RefUpdate { old: old.to_owned(), new: new.to_owned(), name: name.to_owned() });
    Ok(())
}

/// Whether a text is the name of an object, in SHA-1 or SHA-256.
fn is_id(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The body of the answer to a denied push: git shows `message`, and each ref with the reason. No ref is updated.
pub fn denied_report(head: &PushHead, reasons: &[String], message: &str) -> Vec<u8> {
    let mut report = Vec::new();
    if head.report {
        line(&mut report, b"unpack ok\n");
        for (update, reason) in head.updates.iter().zip(reasons) {
            line(&mut report, format!("ng {} {}\n", update.name, one_line(reason)).as_bytes());
        }
        report.extend_from_slice(FLUSH);
    }
    if !head.side_band {
        return report;
    }
    let mut body = Vec::new();
    let message = format!("Spillway: {}\n", one_line(message));
    for (band, data) in [(MESSAGE_BAND, message.as_bytes()), (REPORT_BAND, &report)] {
        for part in data.chunks(SIDE_BAND_BYTES) {
            line(&mut body, &[&[band], part].concat());
        }
    }
    body.extend_from_slice(FLUSH);
    body
}

fn one_line(text: &str) -> String {
    text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect()
}

fn line(out: &mut Vec<u8>, data: &[u8]) {
    out.extend_from_slice(format!("{:04x}", data.len() + LENGTH_DIGITS).as_bytes());
    out.extend_from_slice(data);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ZERO: &str = "0000000000000000000000000000000000000000";
    const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

    fn push(lines: &[&str], rest: &[u8]) -> Vec<u8> {
        let mut all = Vec::new();
        lines.iter().for_each(|text| line(&mut all, text.as_bytes()));
        [&all, FLUSH, rest].concat()
    }

    fn read(bytes: &[u8]) -> Result<Option<PushHead>, PushError> {
        PushHeadReader::default().push(bytes)
    }

    fn update(old: &str, new: &str, name: &str) -> RefUpdate {
        RefUpdate { old: old.into(), new: new.into(), name: name.into() }
    }

    #[test]
    fn the_updates_of_a_push_are_read_wherever_it_is_cut() {
        let first = format!("{ZERO} {A} refs/heads/x\0 report-status-v2 side-band-64k object-format=sha1 agent=git/2");
        let second = format!("{A} {ZERO} refs/heads/y z\n");
        let shallow = format!("shallow {B}");
        let bytes = push(&[&shallow, &first, &second], b"PACK....");
        let expected =
            PushHead { updates: vec![update(ZERO, A, "refs/heads/x"), update(A, ZERO, "refs/heads/y z")], side_band: true, report: true };
        assert_eq!(read(&bytes), Ok(Some(expected.clone())));
        for cut in 0..bytes.len() - b"PACK....".len() {
            let mut reader = PushHeadReader::default();
            assert_eq!(reader.push(&bytes[..cut]), Ok(None), "{cut}");
            assert_eq!(reader.push(&bytes[cut..]), Ok(Some(expected.clone())), "{cut}");
            assert_eq!(reader.into_bytes(), bytes);
        }
        assert!(expected.updates[0].creates() && expected.updates[1].deletes());
        assert_eq!(read(FLUSH), Ok(Some(PushHead::default())), "a test whether the push is allowed");
    }

    #[test]
    fn what_is_no_push_is_refused() {
        let good = format!("{ZERO} {A} refs/heads/x");
        let capabilities = format!("{good}\0 report-status");
        for lines in [
            &["hello"][..],
            &[&format!("{ZERO} {A}")],
            &[&format!("{ZERO} {} refs/heads/x", &A[..39])],
            &[&format!("{ZERO} {} refs/heads/x", A.to_uppercase())],
            &[&format!("{ZERO} {A}{B:.24} refs/heads/x")],
            &["shallow x"],
            &[&capabilities, &capabilities],
            &[&good, &capabilities],
        ] {
            assert_eq!(read(&push(lines, b"")), Err(PushError::Malformed), "{lines:?}");
        }
        for bytes in [&b"0001"[..], b"0004", b"zzzz", b"+012", b"PACK"] {
            assert_eq!(read(bytes), Err(PushError::Malformed), "{bytes:?}");
        }
        assert_eq!(read(&push(&["push-cert\0 report-status"], b"")), Err(PushError::Signed));
        let options = format!("{good}\0 report-status push-options");
        assert_eq!(read(&push(&[&options], b"")), Err(PushError::Options));
        assert_eq!(read(&push(&[&format!("{good}{}", "x".repeat(MAX_NAME_BYTES))], b"")), Err(PushError::TooMany));
        let many = vec![good.as_str(); MAX_UPDATES + 1];
        assert_eq!(read(&push(&many, b"")), Err(PushError::TooMany));
    }

    #[test]
    fn a_client_reads_why_each_ref_was_refused() {
        let head = PushHead { updates: vec![update(ZERO, A, "refs/heads/main")], side_band: false, report: true };
        let plain = denied_report(&head, &["not\nallowed".into()], "no");
        assert_eq!(plain, b"000eunpack ok\n0023ng refs/heads/main not allowed\n0000");
        let banded = denied_report(&PushHead { side_band: true, ..head.clone() }, &["not allowed".into()], "no");
        let report = b"\x01000eunpack ok\n0023ng refs/heads/main not allowed\n0000";
        let expected = [&b"0012\x02Spillway: no\n"[..], format!("{:04x}", report.len() + 4).as_bytes(), report, FLUSH].concat();
        assert_eq!(String::from_utf8_lossy(&banded), String::from_utf8_lossy(&expected));
        assert!(denied_report(&PushHead { report: false, ..head }, &["no".into()], "no").is_empty());
    }

    /// A line of a push: mostly a valid one.
    fn any_line() -> impl Strategy<Value = Vec<u8>> {
        let id = prop_oneof![Just(ZERO.to_owned()), Just(A.to_owned()), "[0-9a-f]{40}"];
        let end = prop_oneof![4 => Just(""), 1 => Just("\n"), 2 => Just("\0 report-status side-band-64k"), 1 => Just("\0 push-options")];
        let update = (id.clone(), id.clone(), "refs/heads/[a-z/]{1,12}", end);
        let update = update.prop_map(|(old, new, name, end)| format!("{old} {new} {name}{end}").into_bytes());
        prop_oneof![8 => update, 1 => id.prop_map(|id| format!("shallow {id}").into_bytes()), 1 => prop::collection::vec(any::<u8>(), 1..20)]
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused_and_cuts_change_nothing(
            lines in prop::collection::vec(any_line(), 0..5),
            ends in any::<bool>(),
            rest in prop::collection::vec(any::<u8>(), 0..20),
            cut in 0_usize..400,
        ) {
            let mut bytes = Vec::new();
            lines.iter().for_each(|text| line(&mut bytes, text));
            if ends {
                bytes.extend_from_slice(FLUSH);
            }
            bytes.extend_from_slice(&rest);
            let cut = cut.min(bytes.len());
            let whole = read(&bytes);
            let mut reader = PushHeadReader::default();
            let parts = match reader.push(&bytes[..cut]) {
                Ok(None) => reader.push(&bytes[cut..]),
                ended => ended,
            };
            prop_assert_eq!(&whole, &parts);
            if let Ok(Some(head)) = whole {
                prop_assert!(head.updates.iter().all(|update| bytes.windows(update.name.len()).any(|part| part == update.name.as_bytes())));
            }
        }
    }
}
