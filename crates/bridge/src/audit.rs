//! The audit log: lines of JSON, each with the hash of the line before it, so that a changed, removed or moved line is found. Pure: nothing
//! is written here.
//!
//! A line is `{"hash":"H","previous":"P",...}`. H is the SHA-256 of all bytes of the line after `"hash":"H",`, and P is the hash of the line
//! before. A removed end of the log cannot be found in the log itself: compare the last hash with the one that the bridge told.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use spillway_wire::text::hex;

use crate::answer::Status;

/// The hash before the first record of a log.
pub const FIRST: &str = "0000000000000000000000000000000000000000000000000000000000000000";
/// The most bytes of a line.
pub const MAX_LINE_BYTES: usize = 64 * 1024;
/// The most bytes of the arguments in a record. Of longer ones it has the hash.
const MAX_ARGUMENT_BYTES: usize = 16 * 1024;
/// The most characters of a text that a caller wrote.
const MAX_TEXT_CHARS: usize = 1024;
const BEFORE_HASH: &str = "{\"hash\":\"";
const AFTER_HASH: &str = "\",";

/// Who calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Caller {
    /// The agent, or the user of a bridge that was started by hand.
    pub name: String,
    /// The uid of the agent's pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The item that the agent holds, and the epoch of its lease, as `UID/EPOCH`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<String>,
}

impl Caller {
    /// A caller that is no agent.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), pod: None, item: None }
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all_fields = "camelCase")]
pub enum Event<'a> {
    /// The bridge began to write.
    Opened {
        /// Its version.
        version: &'a str,
        /// Bytes of an unfinished line, which were removed: the process before ended while it wrote them, and started nothing because of them.
        removed_bytes: u64,
    },
    /// A program starts now.
    Start {
        /// The id of the call.
        audit_id: &'a str,
        /// Who calls.
        caller: &'a Caller,
        /// The program.
        program: &'a str,
        /// The revision of the definitions.
        revision: &'a str,
        /// The arguments.
        arguments: &'a Value,
        /// The artifacts that the program gets, by name.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        artifacts: &'a BTreeMap<String, RecordedFile>,
        /// The user who approved the call.
        #[serde(skip_serializing_if = "Option::is_none")]
        approved_by: Option<&'a str>,
    },
    /// The program of a call ended.
    End {
        /// The id of the call.
        audit_id: &'a str,
        /// How it ended.
        status: Status,
        /// Its exit code.
        #[serde(skip_serializing_if = "Option::is_none")]
        exit_code: Option<i32>,
        /// Milliseconds that it ran.
        duration_milliseconds: u64,
        /// Whether parts of its output were left out of the answer.
        truncated: bool,
    },
    /// A call that started nothing.
    Refused {
        /// The id of the call.
        audit_id: &'a str,
        /// Who calls.
        caller: &'a Caller,
        /// The program, as the caller named it.
        program: &'a str,
        /// The revision of the definitions.
        revision: &'a str,
        /// The status of the answer.
        status: Status,
        /// The argument that is wrong.
        #[serde(skip_serializing_if = "Option::is_none")]
        field: Option<&'a str>,
        /// The rule.
        rule: &'a str,
        /// The user who denied the call.
        #[serde(skip_serializing_if = "Option::is_none")]
        denied_by: Option<&'a str>,
    },
}

/// A file that a program gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordedFile {
    /// SHA-256 of its content, as 64 hexadecimal digits.
    pub sha256: String,
    /// Its size.
    pub bytes: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    previous: &'a str,
    sequence: u64,
    time: &'a str,
    #[serde(flatten)]
    event: &'a Event<'a>,
}

/// The end of a log: where the next record is added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// The hash of the last record.
    pub last: String,
    /// The number of records.
    pub records: u64,
}

impl Default for Chain {
    fn default() -> Self {
        Self { last: FIRST.to_owned(), records: 0 }
    }
}

impl Chain {
    /// The line of the next record, with its end, and the chain after it. `time`: now, in RFC 3339.
    pub fn next(&self, time: &str, event: &Event<'_>) -> (String, Self) {
        let records = self.records + 1;
        let body = Body { previous: &self.last, sequence: records, time, event };
        // Names and values are texts and numbers: they are always JSON.
        let body = serde_json::to_string(&body).unwrap_or_default();
        let rest = body.strip_prefix('{').unwrap_or_default();
        let hash = hash(rest.as_bytes());
        (format!("{BEFORE_HASH}{hash}{AFTER_HASH}{rest}\n"), Self { last: hash, records })
    }
}

/// The arguments as a record has them.
pub fn recorded_arguments(arguments: &Value) -> Value {
    let text = arguments.to_string();
    if text.len() <= MAX_ARGUMENT_BYTES {
        return arguments.clone();
    }
    serde_json::json!({"bytes": text.len(), "sha256": hash(text.as_bytes())})
}

/// A text of a caller as a record has it.
pub fn recorded_text(text: &str) -> String {
    text.chars().take(MAX_TEXT_CHARS).collect()
}

fn hash(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// The first wrong line of a log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {fault}")]
pub struct BadRecord {
    /// Its number, from 1.
    pub line: u64,
    /// What is wrong with it.
    pub fault: BadRecordFault,
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRecordFault {
    /// It is no record.
    #[error("it is no record of an audit log")]
    NoRecord,
    /// Its content does not fit its hash.
    #[error("it was changed: its content does not have the hash {0}")]
    Changed(String),
    /// It does not follow the line before.
    #[error("a line before it was removed, added or moved: it follows record {expected}, and the line before is record {found}")]
    OutOfOrder {
        /// The number of the record that it follows.
        expected: u64,
        /// The number of the record before.
        found: u64,
    },
    /// Its number fits, and its link to the line before does not.
    #[error("the line before it was replaced: their hashes do not fit")]
    Unlinked,
    /// It has no end.
    #[error("it is unfinished: the process that wrote it ended")]
    Unfinished,
}

#[derive(Deserialize)]
struct Link {
    previous: String,
    sequence: u64,
}

/// Follows a log, line by line.
#[derive(Clone, Debug, Default)]
pub struct Verifier {
    chain: Chain,
}

impl Verifier {
    /// Checks the next line. `line` has no line feed.
    pub fn line(&mut self, line: &[u8]) -> Result<(), BadRecord> {
        let bad = |fault| BadRecord { line: self.chain.records + 1, fault };
        let (stated, rest, link) = parts(line).ok_or_else(|| bad(BadRecordFault::NoRecord))?;
        if hash(rest) != stated {
            return Err(bad(BadRecordFault::Changed(stated)));
        }
        if link.sequence != self.chain.records + 1 {
            let expected = link.sequence.saturating_sub(1);
            return Err(bad(BadRecordFault::OutOfOrder { expected, found: self.chain.records }));
        }
        if link.previous != self.chain.last {
            return Err(bad(BadRecordFault::Unlinked));
        }
        self.chain = Chain { last: stated, records: link.sequence };
        Ok(())
    }

    /// The line is unfinished.
    pub fn unfinished(&self) -> BadRecord {
        BadRecord { line: self.chain.records + 1, fault: BadRecordFault::Unfinished }
    }

    /// The end of a log whose last line this is. None: it is no record, or was changed.
    pub fn chain_after(last_line: &[u8]) -> Option<Chain> {
        let (stated, rest, link) = parts(last_line)?;
        (hash(rest) == stated).then_some(Chain { last: stated, records: link.sequence })
    }

    /// The end of the log, after the lines so far.
    pub fn chain(&self) -> &Chain {
        &self.chain
    }
}

/// The hash that a line states, what the hash is of, and its link.
fn parts(line: &[u8]) -> Option<(String, &[u8], Link)> {
    let text = std::str::from_utf8(line).ok()?;
    let (stated, rest) = text.strip_prefix(BEFORE_HASH)?.split_once(AFTER_HASH)?;
    let whole = format!("{{{rest}");
    Some((stated.to_owned(), rest.as_bytes(), serde_json::from_str(&whole).ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn start<'a>(audit_id: &'a str, caller: &'a Caller, arguments: &'a Value, artifacts: &'a BTreeMap<String, RecordedFile>) -> Event<'a> {
        Event::Start { audit_id, caller, program: "p", revision: "r", arguments, artifacts, approved_by: None }
    }

    fn log(count: usize) -> Vec<String> {
        let (mut chain, mut lines) = (Chain::default(), Vec::new());
        let (caller, none) = (Caller::named("me"), BTreeMap::new());
        for number in 0..count {
            let arguments = json!({"text": "a\"b\n\u{1F600}", "number": number});
            let audit_id = number.to_string();
            let event = match number % 3 {
                0 => Event::Opened { version: "1", removed_bytes: 0 },
                1 => start(&audit_id, &caller, &arguments, &none),
                _ => Event::End { audit_id: &audit_id, status: Status::Ok, exit_code: Some(0), duration_milliseconds: 5, truncated: false },
            };
            let (line, next) = chain.next("2026-11-28T00:00:00Z", &event);
            chain = next;
            lines.push(line);
        }
        lines
    }

    fn verify(lines: &[String]) -> Result<Chain, BadRecord> {
        let mut verifier = Verifier::default();
        for line in lines {
            verifier.line(line.trim_end_matches('\n').as_bytes())?;
        }
        Ok(verifier.chain().clone())
    }

    #[test]
    fn a_record_is_one_line_with_the_fields_of_its_event() {
        let lines = log(3);
        assert!(lines.iter().all(|line| line.matches('\n').count() == 1 && line.ends_with('\n')));
        let start: Value = serde_json::from_str(&lines[1]).expect("JSON");
        let expected = json!({"event": "Start", "sequence": 2, "auditId": "1", "caller": {"name": "me"}, "program": "p", "revision": "r"});
        for (name, value) in expected.as_object().expect("an object") {
            assert_eq!(&start[name], value, "{name}");
        }
        assert_eq!(serde_json::from_str::<Value>(&lines[2]).expect("JSON")["exitCode"], json!(0));
    }

    #[test]
    fn a_whole_log_is_right_and_ends_with_its_last_hash() {
        let chain = verify(&log(20)).expect("it is right");
        assert_eq!((chain.records, verify(&[]).expect("empty").last.as_str()), (20, FIRST));
        assert!(log(20)[19].contains(&chain.last));
    }

    #[test]
    fn the_first_wrong_line_is_named_and_how_it_is_wrong() {
        let fault = |lines: &[String]| {
            let BadRecord { line, fault } = verify(lines).expect_err("it is wrong");
            (line, fault)
        };
        let good = log(9);
        let mut edited = good.clone();
        edited[4] = edited[4].replace("\"number\":4", "\"number\":5");
        assert!(matches!(fault(&edited), (5, BadRecordFault::Changed(_))));
        let mut removed = good.clone();
        removed.remove(3);
        assert_eq!(fault(&removed), (4, BadRecordFault::OutOfOrder { expected: 4, found: 3 }));
        let mut moved = good.clone();
        moved.swap(2, 6);
        assert_eq!(fault(&moved), (3, BadRecordFault::OutOfOrder { expected: 6, found: 2 }));
        let mut twice = good.clone();
        twice.insert(5, good[4].clone());
        assert_eq!(fault(&twice), (6, BadRecordFault::OutOfOrder { expected: 4, found: 5 }));
        let mut strange = good.clone();
        strange[0] = "{}\n".into();
        assert_eq!(fault(&strange), (1, BadRecordFault::NoRecord));
        // A whole line with a hash of its own, written by somebody who knows the format.
        let mut replaced = good.clone();
        let before = verify(&good[..4]).expect("right");
        replaced[4] = before.next("2026-11-28T00:00:00Z", &Event::Opened { version: "2", removed_bytes: 0 }).0;
        assert_eq!(fault(&replaced), (6, BadRecordFault::Unlinked));
    }

    #[test]
    fn what_callers_write_is_bounded() {
        let long = json!({"text": "x".repeat(200_000)});
        let recorded = recorded_arguments(&long);
        assert_eq!(recorded["bytes"], json!(long.to_string().len()));
        assert_eq!(recorded_arguments(&json!({"a": 1})), json!({"a": 1}));
        assert_eq!(recorded_text(&"\u{e9}".repeat(5000)).chars().count(), MAX_TEXT_CHARS);
        let caller = Caller::named("n".repeat(253));
        let most = json!("\u{1}".repeat(MAX_ARGUMENT_BYTES / 6 - 1));
        let file = RecordedFile { sha256: FIRST.to_owned(), bytes: u64::MAX };
        let artifacts = (0..64).map(|number| (format!("{number:0>128}"), file.clone())).collect();
        let arguments = recorded_arguments(&most);
        let approved_by = "\u{1f600}".repeat(512);
        let (arguments, artifacts, approved_by) = (&arguments, &artifacts, Some(approved_by.as_str()));
        let event = Event::Start { audit_id: "id", caller: &caller, program: "p", revision: "r", arguments, artifacts, approved_by };
        assert!(Chain::default().next("t", &event).0.len() < MAX_LINE_BYTES);
    }

    proptest! {
        /// A change of any byte is found in its line, or in the next one if it is of the last hash.
        #[test]
        fn a_changed_byte_is_found(line in 0..6_usize, at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut lines: Vec<Vec<u8>> = log(6).iter().map(|line| line.trim_end_matches('\n').as_bytes().to_vec()).collect();
            let at = at.index(lines[line].len());
            prop_assume!(lines[line][at] != byte);
            lines[line][at] = byte;
            let mut verifier = Verifier::default();
            let wrong = lines.iter().find_map(|line| verifier.line(line).err());
            prop_assert_eq!(wrong.map(|wrong| wrong.line), Some(line as u64 + 1));
        }
    }
}
