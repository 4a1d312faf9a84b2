//! `spillway mcp`: a server of the Model Context Protocol on standard input and output, with one tool that runs a command.
//!
//! Each command runs in its own process, `spillway exec`, so that all commands are run and ended in one way.
//!
//! What always holds: at most [`MAX_CONCURRENT_COMMANDS`] commands run at once. A cancelled call ends with all processes that it
//! started. All calls end so when the client closes the connection or we are killed. No message needs more than a few megabytes.
//!
//! | file | for |
//! |---|---|
//! | [`protocol`] | JSON-RPC, one message per line |
//! | [`tool`] | the tool: its arguments and its result |

mod protocol;
mod tool;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process, waitid};
use serde_json::Value;

use super::output::print_to_stderr;
use super::place::SidecarPaths;
use crate::files;
use protocol::MessageKind;
use tool::{Call, CommandResult};

/// Commands that run at once.
const MAX_CONCURRENT_COMMANDS: usize = 8;
/// The most bytes of a message: a command and its standard input.
const MAX_MESSAGE_BYTES: usize = 1024 * 1024;
/// Messages that are read before the earlier ones are processed.
const MAX_MESSAGES_AHEAD: usize = 8;
/// The most bytes that are read of the output of `spillway exec`, which writes less.
const MAX_OUTPUT_BYTES: u64 = 4 * 1024 * 1024;

/// An event for the server.
enum Event {
    /// The client sent a message.
    Line(Vec<u8>),
    /// The client sent a message that is too long.
    TooLong,
    /// The client has closed the connection.
    Closed,
    /// The call with this id has ended.
    CallEnded(Value, io::Result<CommandResult>),
}

/// The stage of a call.
#[derive(Clone, Copy, Debug)]
enum Stage {
    Starting,
    Running(Pid),
    Over,
    Cancelled,
}

/// A call that has not ended.
#[derive(Clone, Debug)]
struct Running(Arc<Mutex<Stage>>);

impl Running {
    fn lock(&self) -> MutexGuard<'_, Stage> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the call, and drops its result.
    fn cancel(&self) {
        let mut stage = self.lock();
        if let Stage::Running(pid) = *stage {
            // The process is reaped only after the stage is `Over`, so that the pid still belongs to it.
            let _ = kill_process(pid, Signal::TERM); // it may have ended
        }
        *stage = Stage::Cancelled;
    }
}

/// Serves until the client closes the connection; returns the exit code.
pub fn run(place: &SidecarPaths) -> u8 {
    let binary = match std::env::current_exe() {
        Ok(binary) => binary,
        Err(error) => {
            print_to_stderr(&format!("error: cannot find the path of this program: {error}"));
            return 1;
        }
    };
    let (events, happened) = sync_channel(MAX_MESSAGES_AHEAD);
    let said = events.clone();
    std::thread::spawn(move || read(io::stdin().lock(), &said));
    let mut server = Server { place: place.clone(), binary, events, running: HashMap::new() };
    match server.serve(&happened) {
        Ok(()) => 0,
        // The client has closed our output.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
        Err(error) => {
            print_to_stderr(&format!("error: {error}"));
            1
        }
    }
}

/// Sends each line of the client as an event.
fn read(mut from: impl BufRead, events: &SyncSender<Event>) {
    loop {
        let event = match line(&mut from) {
            Ok(Some(Some(line))) => Event::Line(line),
            Ok(Some(None)) => Event::TooLong,
            Ok(None) | Err(_) => Event::Closed,
        };
        let closed = matches!(event, Event::Closed);
        if events.send(event).is_err() || closed {
            return;
        }
    }
}

/// The next line; `Some(None)`: the line was too long and was skipped.
fn line(from: &mut impl BufRead) -> io::Result<Option<Option<Vec<u8>>>> {
    let mut line = Vec::new();
    from.by_ref().take(MAX_MESSAGE_BYTES as u64).read_until(b'\n', &mut line)?;
    match line.last() {
        None => return Ok(None),
        Some(b'\n') => return Ok(Some(Some(line))),
        Some(_) => {}
    }
    if line.len() < MAX_MESSAGE_BYTES {
        return Ok(Some(Some(line))); // the last line has no end
    }
    from.skip_until(b'\n')?;
    Ok(Some(None))
}

struct Server {
    place: SidecarPaths,
    binary: PathBuf,
    events: SyncSender<Event>,
    /// The calls by their ids, as the client wrote them.
    running: HashMap<String, Running>,
}

impl Server {
    fn serve(&mut self, happened: &Receiver<Event>) -> io::Result<()> {
        let mut closed = false;
        while !(closed && self.running.is_empty()) {
            let Ok(event) = happened.recv() else { return Ok(()) };
            let answer = match event {
                Event::Line(line) => self.take(protocol::read(&line)),
                Event::TooLong => Some(protocol::refused(&Value::Null, protocol::INVALID_REQUEST, "a message may have at most 1 MiB")),
                Event::Closed => {
                    closed = true;
                    self.running.values().for_each(Running::cancel);
                    None
                }
                Event::CallEnded(id, ran) => self.over(&id, &ran),
            };
            if let Some(answer) = answer.filter(|_| !closed) {
                let mut out = io::stdout().lock();
                out.write_all(&crate::lines::line(&answer)?)?;
                out.flush()?;
            }
        }
        Ok(())
    }

    /// Takes a message of the client; returns the answer, if there is one now.
    fn take(&mut self, said: MessageKind) -> Option<Value> {
        match said {
            MessageKind::Answer(answer) => Some(answer),
            MessageKind::Nothing => None,
            MessageKind::Call(id, call) => match call {
                Ok(call) => self.begin(id, call),
                Err(wrong) => Some(protocol::answer(&id, tool::error_result(&wrong))),
            },
            MessageKind::Cancel(id) => {
                if let Some(running) = self.running.get(&id.to_string()) {
                    running.cancel();
                }
                None
            }
        }
    }

    fn begin(&mut self, id: Value, call: Call) -> Option<Value> {
        let key = id.to_string();
        if self.running.contains_key(&key) {
            return Some(protocol::refused(&id, protocol::INVALID_REQUEST, "another request with this id has no answer yet"));
        }
        if self.running.len() >= MAX_CONCURRENT_COMMANDS {
            let words = format!("{MAX_CONCURRENT_COMMANDS} commands are running already: wait until one of them has ended");
            return Some(protocol::answer(&id, tool::error_result(&words)));
        }
        let running = Running(Arc::new(Mutex::new(Stage::Starting)));
        self.running.insert(key, running.clone());
        let (events, place, binary) = (self.events.clone(), self.place.clone(), self.binary.clone());
        // The parent-death signal of `exec` follows the thread that started it, so that thread waits for the end of the command.
        std::thread::spawn(move || {
            let ran = carry_out(&binary, &place, &call, &running);
            let _ = events.send(Event::CallEnded(id, ran)); // the server is ending
        });
        None
    }

    fn over(&mut self, id: &Value, ran: &io::Result<CommandResult>) -> Option<Value> {
        let running = self.running.remove(&id.to_string())?;
        if let Stage::Cancelled = *running.lock() {
            return None;
        }
        let result = match ran {
            Ok(ran) => tool::result(ran),
            Err(error) => tool::error_result(&format!("the command was not run: {error}")),
        };
        Some(protocol::answer(id, result))
    }
}

/// Runs one command in its own process.
fn carry_out(binary: &Path, place: &SidecarPaths, call: &Call, running: &Running) -> io::Result<CommandResult> {
    let (mut output, mut errors) = (files::anonymous_file()?, files::anonymous_file()?);
    let mut command = Command::new(binary);
    command.arg("--ask-socket").arg(&place.ask_socket).arg("--ask-data").arg(&place.ask_data);
    command.args(["exec", "--output", "json", "--stdin", "--parent", &getpid().as_raw_nonzero().to_string()]);
    if let Some(seconds) = call.timeout_seconds {
        command.args(["--timeout", &seconds.to_string()]);
    }
    command.arg("--").args(&call.command);
    if let Some(folder) = &call.cwd {
        command.current_dir(folder);
    }
    command.stdin(files::stdin_with(call.stdin.as_bytes())?).stdout(output.try_clone()?).stderr(errors.try_clone()?);
    let status = follow(&mut command, running)?;
    Ok(CommandResult {
        status: status.map_or(-1, |status| status.code().unwrap_or(-1)),
        output: text(&mut output)?,
        errors: text(&mut errors)?,
    })
}

/// Starts the process and waits for its end. `None`: the call was cancelled before.
fn follow(command: &mut Command, running: &Running) -> io::Result<Option<ExitStatus>> {
    let mut stage = running.lock();
    if let Stage::Cancelled = *stage {
        return Ok(None);
    }
    let mut child = command.spawn()?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or_else(|| io::Error::other("the process has no valid pid"))?;
    *stage = Stage::Running(pid);
    drop(stage);
    while let Err(rustix::io::Errno::INTR) = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {}
    let mut stage = running.lock();
    if let Stage::Running(_) = *stage {
        *stage = Stage::Over;
    }
    child.wait().map(Some)
}

fn text(file: &mut File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    BufReader::new(file).take(MAX_OUTPUT_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_too_long_is_passed_over_and_the_next_one_is_read() {
        let long = vec![b'x'; 3 * MAX_MESSAGE_BYTES];
        let text = [&b"one\n"[..], &long, b"\ntwo\nlast"].concat();
        let mut from = BufReader::with_capacity(7, &text[..]);
        let mut lines = Vec::new();
        while let Some(line) = line(&mut from).expect("read") {
            lines.push(line.map(|line| String::from_utf8(line).expect("text")));
        }
        let expected = [Some("one\n"), None, Some("two\n"), Some("last")];
        assert_eq!(lines, expected.map(|line| line.map(str::to_owned)));
    }
}
