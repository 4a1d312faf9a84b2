//! `spillway mcp`: a server of the Model Context Protocol on standard input and output, with one tool that runs a command.
//!
//! Each command is a process of its own, `spillway exec`, so that there is one way to run a command and one that ends it. What
//! always holds: no more than [`AT_ONCE`] run; a call that is cancelled ends with all that it started, and so do all of them
//! when the client goes away or we are killed; no message makes us hold more than a few megabytes.
//!
//! | file | for |
//! |---|---|
//! | [`protocol`] | JSON-RPC, one message a line |
//! | [`tool`] | the tool: what it takes, what came of it |

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

use super::output::tell;
use super::place::SidecarPaths;
use crate::files;
use protocol::MessageKind;
use tool::{Call, CommandResult};

/// Commands at once.
const MAX_CONCURRENT_COMMANDS: usize = 8;
/// The most bytes of a message: a command and what it is given to read.
const MAX_MESSAGE_BYTES: usize = 1024 * 1024;
/// Messages that are read ahead of what is done.
const MAX_MESSAGES_AHEAD: usize = 8;
/// Read of what a command's process wrote: more than it ever does.
const MAX_OUTPUT_BYTES: u64 = 4 * 1024 * 1024;

/// What happens.
enum Event {
    /// The client said something.
    Line(Vec<u8>),
    /// The client said more than we read.
    TooLong,
    /// The client is gone.
    Closed,
    /// The call with this id is over.
    Over(Value, io::Result<CommandResult>),
}

/// Where a call is.
#[derive(Clone, Copy, Debug)]
enum Stage {
    Coming,
    Running(Pid),
    Over,
    Unwanted,
}

/// A call that is not over.
#[derive(Clone, Debug)]
struct Running(Arc<Mutex<Stage>>);

impl Running {
    fn lock(&self) -> MutexGuard<'_, Stage> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody wants its result any more.
    fn cancel(&self) {
        let mut stage = self.lock();
        if let Stage::Running(pid) = *stage {
            // Not reaped before it is said that it is over: the number is still its own.
            let _ = kill_process(pid, Signal::TERM); // it may have ended
        }
        *stage = Stage::Unwanted;
    }
}

/// Serves until the client is gone; gives the exit code.
pub fn run(place: &SidecarPaths) -> u8 {
    let binary = match std::env::current_exe() {
        Ok(binary) => binary,
        Err(error) => {
            tell(&format!("error: cannot find the path of this program: {error}"));
            return 1;
        }
    };
    let (events, happened) = sync_channel(MAX_MESSAGES_AHEAD);
    let said = events.clone();
    std::thread::spawn(move || read(io::stdin().lock(), &said));
    let mut server = Server { place: place.clone(), binary, events, running: HashMap::new() };
    match server.serve(&happened) {
        Ok(()) => 0,
        // Whoever closed our output is gone.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
        Err(error) => {
            tell(&format!("error: {error}"));
            1
        }
    }
}

/// Hands on what the client says, a line at a time.
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

/// The next line; nothing in it: it was too long, and passed over.
fn line(from: &mut impl BufRead) -> io::Result<Option<Option<Vec<u8>>>> {
    let mut line = Vec::new();
    from.by_ref().take(MAX_MESSAGE_BYTES as u64).read_until(b'\n', &mut line)?;
    match line.last() {
        None => return Ok(None),
        Some(b'\n') => return Ok(Some(Some(line))),
        Some(_) => {}
    }
    if line.len() < MAX_MESSAGE_BYTES {
        return Ok(Some(Some(line))); // the last one has no end
    }
    from.skip_until(b'\n')?;
    Ok(Some(None))
}

struct Server {
    place: SidecarPaths,
    binary: PathBuf,
    events: SyncSender<Event>,
    /// By their ids, as they were said.
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
                Event::Over(id, ran) => self.over(&id, &ran),
            };
            if let Some(answer) = answer.filter(|_| !closed) {
                let mut out = io::stdout().lock();
                out.write_all(&crate::lines::line(&answer)?)?;
                out.flush()?;
            }
        }
        Ok(())
    }

    /// The client said something; what it is answered now.
    fn take(&mut self, said: MessageKind) -> Option<Value> {
        match said {
            MessageKind::Answer(answer) => Some(answer),
            MessageKind::Nothing => None,
            MessageKind::Call(id, call) => match call {
                Ok(call) => self.begin(id, call),
                Err(wrong) => Some(protocol::answer(&id, tool::wrong(&wrong))),
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
            return Some(protocol::answer(&id, tool::wrong(&words)));
        }
        let running = Running(Arc::new(Mutex::new(Stage::Coming)));
        self.running.insert(key, running.clone());
        let (events, place, binary) = (self.events.clone(), self.place.clone(), self.binary.clone());
        // The command ends with the thread that started it, so that it does with us.
        std::thread::spawn(move || {
            let ran = carry_out(&binary, &place, &call, &running);
            let _ = events.send(Event::Over(id, ran)); // we are ending
        });
        None
    }

    fn over(&mut self, id: &Value, ran: &io::Result<CommandResult>) -> Option<Value> {
        let running = self.running.remove(&id.to_string())?;
        if let Stage::Unwanted = *running.lock() {
            return None;
        }
        let result = match ran {
            Ok(ran) => tool::result(ran),
            Err(error) => tool::wrong(&format!("the command was not run: {error}")),
        };
        Some(protocol::answer(id, result))
    }
}

/// Runs one command, in a process of its own.
fn carry_out(binary: &Path, place: &SidecarPaths, call: &Call, running: &Running) -> io::Result<CommandResult> {
    let (mut output, mut errors) = (files::nowhere()?, files::nowhere()?);
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
    command.stdin(files::reading(call.stdin.as_bytes())?).stdout(output.try_clone()?).stderr(errors.try_clone()?);
    let status = follow(&mut command, running)?;
    Ok(CommandResult {
        status: status.map_or(-1, |status| status.code().unwrap_or(-1)),
        output: text(&mut output)?,
        errors: text(&mut errors)?,
    })
}

/// Starts it and waits for its end. None: it was not wanted any more before it began.
fn follow(command: &mut Command, running: &Running) -> io::Result<Option<ExitStatus>> {
    let mut stage = running.lock();
    if let Stage::Unwanted = *stage {
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
