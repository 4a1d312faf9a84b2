//! Writes the audit log, and verifies one. The records are those of `spillway_bridge::audit`.
//!
//! A record of a file is on the disk before [`AuditLog::write`] returns. A record that cannot be written whole is taken back, so that the
//! file stays a log; if that fails too, nothing more is written until the bridge is started again.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use rustix::fs::{FlockOperation, flock};
use spillway_bridge::audit::{Chain, Event, MAX_LINE_BYTES, Verifier};

use crate::VERSION;

/// Where records go.
#[derive(Debug)]
enum Sink {
    /// A file, and its length in bytes.
    File(File, u64),
    /// Standard output.
    Output,
    /// It failed, and cannot be mended here.
    Broken,
}

#[derive(Debug)]
struct Open {
    sink: Sink,
    chain: Chain,
}

/// The audit log of this process.
#[derive(Debug)]
pub struct AuditLog(Mutex<Open>);

impl AuditLog {
    /// Opens the file, or begins a log on standard output.
    pub fn open(file: Option<&Path>) -> io::Result<Self> {
        let (open, removed_bytes) = match file {
            None => (Open { sink: Sink::Output, chain: Chain::default() }, 0),
            Some(path) => open_file(path)?,
        };
        let log = Self(Mutex::new(open));
        log.write(&Event::Opened { version: VERSION, removed_bytes })?;
        Ok(log)
    }

    /// Writes a record. It blocks until the record is on the disk.
    pub fn write(&self, event: &Event<'_>) -> io::Result<()> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (line, chain) = open.chain.next(&Timestamp::now().to_string(), event);
        if line.len() > MAX_LINE_BYTES {
            return Err(io::Error::other(format!("the record has {} bytes, and may have {MAX_LINE_BYTES}", line.len())));
        }
        open.sink.write(line.as_bytes())?;
        open.chain = chain;
        Ok(())
    }

    /// The end of the log.
    pub fn chain(&self) -> Chain {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).chain.clone()
    }
}

impl Sink {
    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        match self {
            Self::Output => {
                let mut output = io::stdout().lock();
                // A line of which a part was written breaks the log.
                let written = output.write_all(line).and_then(|()| output.flush());
                written.inspect_err(|_| *self = Self::Broken)
            }
            Self::File(file, length) => match file.write_all(line).and_then(|()| file.sync_data()) {
                Ok(()) => {
                    *length += line.len() as u64;
                    Ok(())
                }
                Err(error) => {
                    if file.set_len(*length).is_err() {
                        *self = Self::Broken;
                    }
                    Err(error)
                }
            },
            Self::Broken => Err(io::Error::other("the audit log is broken since an earlier error")),
        }
    }
}

/// Opens a file at the end of its log. Returns also how many bytes of an unfinished line were removed.
fn open_file(path: &Path) -> io::Result<(Open, u64)> {
    let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
    // Two writers would continue the same record.
    flock(&file, FlockOperation::NonBlockingLockExclusive)
        .map_err(|error| io::Error::other(format!("{} is in use by another bridge: {error}", path.display())))?;
    let length = file.seek(SeekFrom::End(0))?;
    // The end of the last whole line is within this tail, whether or not an unfinished one follows it.
    let begin = length.saturating_sub(2 * MAX_LINE_BYTES as u64 + 1);
    file.seek(SeekFrom::Start(begin))?;
    let mut tail = Vec::new();
    io::Read::by_ref(&mut file).take(length - begin).read_to_end(&mut tail)?;
    let whole = tail.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    if whole == 0 && begin > 0 {
        return Err(no_log(path));
    }
    let removed = (tail.len() - whole) as u64;
    let lines = tail.get(..whole.saturating_sub(1)).unwrap_or_default();
    let last = lines.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
    let chain = match whole {
        0 => Chain::default(),
        _ => Verifier::chain_after(last).ok_or_else(|| no_log(path))?,
    };
    if removed > 0 {
        file.set_len(length - removed)?;
    }
    Ok((Open { sink: Sink::File(file, length - removed), chain }, removed))
}

fn no_log(path: &Path) -> io::Error {
    io::Error::other(format!(
        "the end of {} is no record of an audit log, or was changed. Keep the file, and name another one",
        path.display()
    ))
}

/// The file to verify.
#[derive(Clone, Debug, clap::Args)]
pub struct VerifyArguments {
    /// The audit log
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The hash of the last record, as the bridge told it: without it, records that were removed from the end are not noticed
    #[arg(long, value_name = "HASH")]
    last: Option<String>,
}

/// Verifies a log. The text names its last record.
pub fn verify(arguments: &VerifyArguments) -> anyhow::Result<String> {
    let name = arguments.file.display();
    let mut reader = BufReader::new(File::open(&arguments.file).map_err(|error| anyhow::anyhow!("cannot read {name}: {error}"))?);
    let mut verifier = Verifier::default();
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = io::Read::by_ref(&mut reader).take(MAX_LINE_BYTES as u64 + 1).read_until(b'\n', &mut line)?;
        let wrong = match line.strip_suffix(b"\n") {
            _ if read == 0 => break,
            Some(line) => verifier.line(line),
            None => Err(verifier.unfinished()),
        };
        wrong.map_err(|wrong| anyhow::anyhow!("{name}: {wrong}"))?;
    }
    let chain = verifier.chain();
    if let Some(last) = &arguments.last
        && *last != chain.last
    {
        anyhow::bail!("{name}: records are missing at the end: the last one has the hash {}, and not {last}", chain.last);
    }
    Ok(format!("{} records are whole and in order\nlast record: {}\n", chain.records, chain.last))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    struct Log {
        _folder: tempfile::TempDir,
        path: PathBuf,
    }

    impl Log {
        fn new() -> Self {
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("audit.log");
            Self { _folder: folder, path }
        }

        fn append(&self, bytes: &[u8]) {
            OpenOptions::new().append(true).open(&self.path).and_then(|mut file| file.write_all(bytes)).expect("written");
        }

        fn verify(&self, last: Option<&str>) -> Result<String, String> {
            let arguments = VerifyArguments { file: self.path.clone(), last: last.map(str::to_owned) };
            verify(&arguments).map_err(|error| error.to_string())
        }
    }

    fn end(audit_id: &str) -> Event<'_> {
        let status = spillway_bridge::answer::Status::Ok;
        Event::End { audit_id, status, exit_code: Some(0), duration_milliseconds: 1, truncated: false }
    }

    #[test]
    fn a_log_is_continued_after_a_restart() {
        let file = Log::new();
        for records in [2, 4] {
            let log = AuditLog::open(Some(&file.path)).expect("a log");
            AuditLog::open(Some(&file.path)).expect_err("another writer");
            log.write(&end("a")).expect("written");
            assert_eq!(log.chain().records, records);
            let last = log.chain().last;
            let said = file.verify(Some(&last)).expect("it is right");
            assert!(said.starts_with(&format!("{records} records")) && said.contains(&last), "{said}");
        }
        file.verify(Some("0")).expect_err("another last record");
    }

    #[test]
    fn an_unfinished_line_is_removed_and_said() {
        let file = Log::new();
        drop(AuditLog::open(Some(&file.path)).expect("a log"));
        file.append(b"{\"hash\":\"unfin");
        assert!(file.verify(None).expect_err("unfinished").contains("line 2: it is unfinished"));
        drop(AuditLog::open(Some(&file.path)).expect("a log"));
        assert!(file.verify(None).expect("right again").starts_with("2 records"));
        assert!(fs::read_to_string(&file.path).expect("the file").contains("\"removedBytes\":14"));
    }

    #[test]
    fn what_is_no_log_is_not_continued() {
        let file = Log::new();
        for content in [b"hello\n".to_vec(), vec![b'x'; 3 * MAX_LINE_BYTES], b"\n".to_vec()] {
            fs::write(&file.path, &content).expect("a file");
            AuditLog::open(Some(&file.path)).expect_err("no log");
            assert_eq!(fs::read(&file.path).expect("the file"), content, "it is kept as it is");
            file.verify(None).expect_err("no log");
        }
        // Of a file with one unfinished line nothing is known.
        fs::write(&file.path, "unfinished").expect("a file");
        drop(AuditLog::open(Some(&file.path)).expect("a log"));
        let edited = fs::read_to_string(&file.path).expect("the file").replace("\"removedBytes\":10", "\"removedBytes\":11");
        fs::write(&file.path, edited).expect("a file");
        AuditLog::open(Some(&file.path)).expect_err("its last record was changed");
    }

    #[test]
    fn a_full_disk_denies_and_leaves_a_whole_log() {
        let full = AuditLog(Mutex::new(Open {
            sink: Sink::File(OpenOptions::new().write(true).open("/dev/full").expect("the device"), 0),
            chain: Chain::default(),
        }));
        full.write(&end("a")).expect_err("no space");
        assert_eq!(full.chain(), Chain::default(), "the next record has the same number");
    }
}
