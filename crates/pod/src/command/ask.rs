//! One question to the sidecar, and its answer.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use spillway_wire::link::{Answer, Ask, Hello};
use spillway_wire::{Code, Refusal};

use crate::{MAX_ORDER_BYTES, lines, random};

/// A little longer than the sidecar takes for any question.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(35);

/// How long a question is repeated while the sidecar restarts. Every question may be repeated.
const SIDECAR_RESTART_TIMEOUT: Duration = Duration::from_secs(2);
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// The idempotency key of a question: this one, or a new one.
pub fn key_or_new(key: Option<String>) -> Result<String, Refusal> {
    key.map_or_else(random::key, Ok).map_err(|error| Refusal::new(Code::Internal, format!("cannot make an idempotency key: {error}")))
}

/// Asks one question, and repeats it while the sidecar restarts.
pub fn ask(socket: &Path, ask: &Ask) -> io::Result<Answer> {
    let began = Instant::now();
    loop {
        match once(socket, ask) {
            Err(error) if restarting(&error) && began.elapsed() < SIDECAR_RESTART_TIMEOUT => std::thread::sleep(RETRY_DELAY),
            answer => return answer,
        }
    }
}

/// The socket exists, and no process listens on it, or the process has just ended.
fn restarting(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionRefused | ConnectionReset | UnexpectedEof)
}

/// Asks once, and does not wait for a sidecar that restarts.
pub fn once(socket: &Path, ask: &Ask) -> io::Result<Answer> {
    let mut stream = UnixStream::connect(socket).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", socket.display())))?;
    stream.set_read_timeout(Some(QUESTION_TIMEOUT))?;
    stream.set_write_timeout(Some(QUESTION_TIMEOUT))?;
    stream.write_all(&lines::line(&Hello::Ask(ask.clone()))?)?;
    let mut line = Vec::new();
    BufReader::new(stream.take(MAX_ORDER_BYTES as u64)).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the sidecar closed the connection without an answer"));
    }
    Ok(serde_json::from_slice(&line)?)
}
