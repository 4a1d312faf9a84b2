//! How the supervisor starts the preflight command and the program. It does not decide when: [`preflight`](super::preflight),
//! [`life`](super::life) and [`item`](super::item) do.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use spillway_wire::agent::{Input, Settings};
use spillway_wire::link::Order;
use spillway_wire::sandbox::SandboxUnavailable;
use tokio::sync::mpsc;

use super::command_run::RunEvent;
use super::item_files::{ItemFiles, PAYLOAD_FILE, RESULT_FILE};
use super::life::Event;
use super::output::{self, LastOutput, Stream};
use super::processes::Started;
use super::supervisor::Supervisor;
use super::{confinement, environment, preflight};
use crate::clock::BootTime;
use crate::{BIN_DIR, FAIL_CLOSED_EXIT_CODE, agent_says};

impl Supervisor {
    /// The sidecar lets the program start: the preflight runs first.
    pub(super) fn may_start(&mut self, settings: &Settings) {
        // The sidecar has registered, so that the agent's status says why.
        if let Some(SandboxUnavailable { reason, message }) = self.init.unavailable() {
            agent_says!("the program is not started: {}: {message}", reason.condition_reason());
            self.leave = Some(FAIL_CLOSED_EXIT_CODE);
            return;
        }
        // The last settings count: a sidecar that connects again may have newer ones.
        self.start_with = Some(settings.clone());
        let timeout =
            settings.preflight_seconds.map_or(preflight::DEFAULT_PREFLIGHT_TIMEOUT, |seconds| Duration::from_secs(seconds.into()));
        let now = BootTime::now();
        let actions = self.preflight.begin(now, settings.preflight_command.clone(), timeout);
        self.prepare(now, actions);
        if self.preflight.passed()
            && let Some(settings) = self.start_with.take()
        {
            self.on(Event::Order(Order::Start(Box::new(settings))));
        }
    }

    /// Runs the preflight command as the program is run, but with empty standard input and without a terminal.
    pub(super) fn check(&mut self, command: &[String]) {
        let command: Vec<OsString> = command.iter().map(OsString::from).collect();
        match self.start_command(&command, &self.environment.clone()) {
            Ok(pid) => self.preflight_pid = Some(pid),
            Err(why) => self.on_preflight(RunEvent::NotStarted(why)),
        }
    }

    /// Starts a command before or after the program, with empty standard input and without a terminal; returns its pid, or why not.
    pub(super) fn start_command(&mut self, command: &[OsString], environment: &BTreeMap<String, OsString>) -> Result<i32, String> {
        (self.output, self.output_copied) = (LastOutput::default(), None);
        let started = self.init.start(command, environment, b"", false).map_err(|error| {
            let name = command.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            format!("cannot start {name}: {error}")
        })?;
        let pid = started.pid;
        self.copy(started);
        Ok(pid)
    }

    pub(super) fn start(&mut self, now: BootTime) {
        match self.init.start(&self.options.command, &self.program_environment(), b"", self.options.tty) {
            Ok(started) => self.started(now, started),
            Err(error) => {
                let (code, why) = self.not_started(&error);
                agent_says!("{why}");
                self.health.started(now);
                self.health.ended();
                self.on(Event::NotStarted(code));
            }
        }
    }

    /// Confines what starts from now on as the item in hand requires.
    pub(super) fn confine_for_item(&mut self) {
        let required = self.items.assignment().map(|item| item.sandbox).unwrap_or_default();
        let bin = self.own.parent().unwrap_or(Path::new(BIN_DIR));
        self.init.confine_for_item(required, |pool| confinement::prepare_for_item(&self.options, bin, required, pool));
    }

    /// Writes the item for the program, and runs the program. The error has an exit code and a message.
    pub(super) fn start_for_item(&mut self, now: BootTime, turn: u32, text: &str, input: Input) -> Result<(), (u8, String)> {
        let Some(item) = self.items.assignment() else { return Ok(()) };
        if self.item_files.is_none() {
            self.item_files = ItemFiles::open(&self.options.data).ok();
        }
        let files = self.item_files.as_ref().ok_or_else(|| io::Error::other("the folder cannot be opened"));
        let put = files.and_then(|files| {
            if turn == 1 {
                files.put(RESULT_FILE, b"")?;
            }
            if turn == 1 || input == Input::File { files.put(PAYLOAD_FILE, text.as_bytes()) } else { Ok(()) }
        });
        put.map_err(|error| (126, format!("cannot write the item to {}: {error}", self.options.data.display())))?;
        let of_item = environment::item_variables(item, turn, &self.options.data);
        let mut command = self.options.command.clone();
        if input == Input::Argument {
            command.push(text.into());
        }
        let stdin = if input == Input::Stdin { text.as_bytes() } else { b"" };
        self.item_variables = of_item;
        // The output of an earlier item is no output of this one.
        self.output = LastOutput::default();
        self.output_copied = None;
        let started = self.init.start(&command, &self.program_environment(), stdin, self.options.tty);
        let started = started.map_err(|error| self.not_started(&error))?;
        self.life.busy();
        self.started(now, started);
        Ok(())
    }

    /// The exit code as a shell reports it (127: not found, 126: cannot be executed), and a message.
    fn not_started(&self, error: &io::Error) -> (u8, String) {
        let name = self.options.command.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        (if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 }, format!("cannot start {name}: {error}"))
    }

    /// The current environment of the program and of hooks.
    pub(super) fn environment(&self) -> BTreeMap<String, OsString> {
        let mut environment = self.environment.clone();
        if self.items.held().is_some() {
            environment.extend(self.item_variables.clone());
        }
        environment
    }

    /// The environment of the program, with the timed shells. Hooks have their own time limits instead.
    fn program_environment(&self) -> BTreeMap<String, OsString> {
        let mut environment = self.environment();
        environment.extend(self.timed_path.clone().filter(|_| !self.untimed).map(|path| ("PATH".to_owned(), path)));
        environment
    }

    fn started(&mut self, now: BootTime, started: Started) {
        self.program = Some(started.pid);
        self.watchdog.program_started(now);
        self.health.started(now);
        self.copy(started);
    }

    /// Copies the output of the process until its end.
    fn copy(&mut self, started: Started) {
        if let Some((out, err)) = started.output {
            let (ended, copying) = mpsc::channel(1);
            self.output_copied = Some(copying);
            let copied = output::copy((out, Stream::Out), io::stdout(), self.output.clone(), ended.clone())
                .and_then(|()| output::copy((err, Stream::Err), io::stderr(), self.output.clone(), ended));
            if let Err(error) = copied {
                // The pipe is closed, so that the program's writes fail: it cannot continue usefully.
                agent_says!("cannot copy the program's output: {error}");
                self.init.signal_all(Signal::KILL);
            }
        }
    }
}
