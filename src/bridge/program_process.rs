//! A process of ours around one program: `spillway bridge-program`. All that the program starts is below it, so that it ends all of that,
//! and reports once. The bridge keeps its input open as long as the client waits: its end means that nobody does.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, BufRead as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};
use spillway_pod::process::tree::Exit;
use spillway_pod::process::{self, Job, KeptBytes, ProcessEnd, RunResult, RunTarget};
use spillway_sandbox::container;
use spillway_sandbox::kernel::Kernel;
use spillway_wire::sandbox::SandboxSettings;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use super::capabilities;

/// The name of the command that this process has.
pub const COMMAND: &str = "bridge-program";
/// The most bytes of a [`ProgramJob`].
const MAX_JOB_BYTES: u64 = 1024 * 1024;
/// The most bytes of a [`ProgramEnd`]: both streams, in JSON.
const MAX_END_BYTES: u64 = 64 * 1024 * 1024;
/// The longest time from the end of the time limit, or from the call's end, to the report. Ending all processes takes less.
const END_TIMEOUT: Duration = Duration::from_secs(15);

/// What to run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProgramJob {
    /// The program.
    pub program: PathBuf,
    /// The words after it.
    pub words: Vec<String>,
    /// Time limit.
    pub timeout_milliseconds: u64,
    /// The most bytes of its standard output that are kept.
    pub stdout_bytes: usize,
    /// The most bytes of its standard error that are kept.
    pub stderr_bytes: usize,
    /// The only folder that it may write to. It is its working directory.
    pub folder: PathBuf,
    /// Its sandbox.
    pub sandbox: SandboxSettings,
}

/// How a program ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramEnd {
    /// Its exit code; 128 plus the number of the signal that ended it. None: it was not started, or cannot be ended.
    pub exit_code: Option<i32>,
    /// Its time was over.
    pub timed_out: bool,
    /// Nobody waited for it any more.
    pub cancelled: bool,
    /// Why it was not started.
    pub not_started: Option<String>,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
    /// Whether parts of its output were left out.
    pub truncated: bool,
    /// Milliseconds that it ran.
    pub duration_milliseconds: u64,
}

/// Runs a program with exactly these variables, until it has ended with all that it started. `gone`: nobody waits for it any more.
pub async fn run(job: &ProgramJob, variables: &BTreeMap<String, String>, gone: CancellationToken) -> io::Result<ProgramEnd> {
    let line = serde_json::to_string(job)? + "\n";
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(COMMAND).env_clear().envs(variables).current_dir(&job.folder);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).kill_on_drop(true);
    let mut child = command.spawn()?;
    let (input, output) = (child.stdin.take(), child.stdout.take());
    let (mut input, output) = input.zip(output).ok_or_else(|| io::Error::other("its streams are missing"))?;
    input.write_all(line.as_bytes()).await?;
    let told = async {
        let mut text = Vec::new();
        output.take(MAX_END_BYTES).read_to_end(&mut text).await?;
        Ok::<_, io::Error>((text, child.wait().await?))
    };
    tokio::pin!(told);
    let limit = Duration::from_millis(job.timeout_milliseconds) + END_TIMEOUT;
    let ended = tokio::select! {
        ended = tokio::time::timeout(limit, &mut told) => ended,
        () = gone.cancelled() => {
            drop(input);
            tokio::time::timeout(END_TIMEOUT, &mut told).await
        }
    };
    let (text, status) = ended.map_err(|_| io::Error::other("the process around the program did not end"))??;
    serde_json::from_slice(&text).map_err(|_| no_report(status))
}

fn no_report(status: ExitStatus) -> io::Error {
    io::Error::other(format!("the process around the program ended without a report: {status}"))
}

/// What the process does: it reads a [`ProgramJob`] from its input, and writes a [`ProgramEnd`] to its output.
pub fn main() -> io::Result<()> {
    let mut line = Vec::new();
    io::Read::take(io::stdin().lock(), MAX_JOB_BYTES).read_until(b'\n', &mut line)?;
    let job: ProgramJob = serde_json::from_slice(&line)?;
    let end = match carry_out(&job) {
        Ok(ran) => report(&job.program, &ran),
        Err(why) => ProgramEnd { not_started: Some(why), ..ProgramEnd::default() },
    };
    let mut output = io::stdout().lock();
    serde_json::to_writer(&mut output, &end)?;
    output.flush()
}

fn carry_out(job: &ProgramJob) -> Result<RunResult, String> {
    let sandbox = container::prepare(&job.sandbox, &Kernel::probe(), &[], std::slice::from_ref(&job.folder), &[])
        .map_err(|unavailable| format!("its sandbox cannot be prepared: {}", unavailable.message))?;
    capabilities::give_up().map_err(|error| format!("the capabilities of root cannot be given up: {error}"))?;
    let words = std::iter::once(OsString::from(&job.program)).chain(job.words.iter().map(OsString::from)).collect();
    let runs = Job {
        what: RunTarget::Program(words),
        within: Duration::from_millis(job.timeout_milliseconds),
        capture: Some(KeptBytes { output: job.stdout_bytes, errors: job.stderr_bytes }),
        input: false,
        keep: false,
        meant_to_stay: Vec::new(),
        sandbox: Some(sandbox),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let watched = std::thread::Builder::new().spawn(end_with_input).map_err(|error| error.to_string())?;
        let ran = process::run(&runs, || {}).await.map_err(|error| error.to_string());
        drop(watched);
        ran
    })
}

/// Asks this process to end when its input ends. A runner that is asked ends its program.
fn end_with_input() {
    let mut rest = Vec::new();
    while io::stdin().lock().read_until(b'\n', &mut rest).is_ok_and(|read| read > 0) {
        rest.clear();
    }
    // A process can always signal itself.
    let _ = kill_process(getpid(), Signal::TERM);
}

fn report(program: &Path, ran: &RunResult) -> ProgramEnd {
    let (exit_code, not_started) = match &ran.ended {
        ProcessEnd::Exit(Exit::Code(code)) => (Some(*code), None),
        ProcessEnd::Exit(Exit::Signal(signal)) => (Some(128 + signal), None),
        ProcessEnd::NotStarted(error) => (None, Some(format!("cannot start {}: {error}", program.display()))),
        ProcessEnd::Never => (None, None),
    };
    ProgramEnd {
        exit_code,
        timed_out: ran.timed_out,
        cancelled: ran.cancelled.is_some(),
        not_started,
        stdout: ran.output.text(),
        stderr: ran.errors.text(),
        truncated: ran.output.truncated() || ran.errors.truncated(),
        duration_milliseconds: u64::try_from(ran.took.as_millis()).unwrap_or(u64::MAX),
    }
}
