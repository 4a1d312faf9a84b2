//! A process of ours around one program: `spillway bridge-program`. All that the program starts is below it, so that it ends all of that,
//! and reports once. The bridge keeps its input open as long as the client waits. The end of the input is the order to end.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, BufRead as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};
use spillway_pod::process::capture::Capture;
use spillway_pod::process::tree::Exit;
use spillway_pod::process::{self, Job, KeptBytes, ProcessEnd, RunResult, RunTarget};
use spillway_sandbox::container;
use spillway_sandbox::kernel::Kernel;
use spillway_wire::sandbox::SandboxSettings;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use super::capabilities;
use super::end_of_input::when_input_ends;

/// The name of the command that this process has.
pub const COMMAND: &str = "bridge-program";
/// The most bytes of a [`ProgramJob`].
const MAX_JOB_BYTES: u64 = 1024 * 1024;
/// The most bytes of a [`ProgramEnd`]: both streams, in JSON.
const MAX_END_BYTES: u64 = 64 * 1024 * 1024;

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
    /// Paths without links that it cannot read.
    pub closed: Vec<PathBuf>,
}

/// What was kept of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptOutput {
    /// Its beginning, or all of it.
    pub begin: String,
    /// The number of bytes that follow and were left out.
    pub left_out: u64,
    /// Its end, if bytes were left out.
    pub end: String,
}

/// How a program ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramEnd {
    /// Its exit code; 128 plus the number of the signal that ended it. None: it was not started, or cannot be ended.
    pub exit_code: Option<i32>,
    /// Its time was over.
    pub timed_out: bool,
    /// The client did not wait any more.
    pub cancelled: bool,
    /// Why it was not started.
    pub not_started: Option<String>,
    /// Its standard output.
    pub stdout: KeptOutput,
    /// Its standard error.
    pub stderr: KeptOutput,
    /// Milliseconds that it ran.
    pub duration_milliseconds: u64,
}

/// Why there is no [`ProgramEnd`].
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The program was not started.
    #[error("the process around the program cannot be started: {0}")]
    NotStarted(io::Error),
    /// The program may have been started.
    #[error("the process around the program was lost: {0}")]
    Lost(io::Error),
}

/// Runs a program with exactly these variables, until it has ended with all that it started. `gone`: the client does not wait any more.
/// The process around it is never killed: it alone can end the program.
pub async fn run(job: &ProgramJob, variables: &BTreeMap<String, String>, gone: CancellationToken) -> Result<ProgramEnd, RunError> {
    let line = serde_json::to_string(job).map_err(|error| RunError::NotStarted(error.into()))? + "\n";
    // The file of our program may be replaced while we run.
    let mut command = Command::new("/proc/self/exe");
    command.arg(COMMAND).env_clear().envs(variables).current_dir(&job.folder);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    // The keys of a terminal end the bridge, which then ends its programs.
    command.process_group(0);
    let mut child = command.spawn().map_err(RunError::NotStarted)?;
    let (input, output) = (child.stdin.take(), child.stdout.take());
    let (mut input, output) = input.zip(output).ok_or_else(|| RunError::Lost(io::Error::other("its streams are missing")))?;
    input.write_all(line.as_bytes()).await.map_err(RunError::Lost)?;
    let told = async {
        let mut text = Vec::new();
        output.take(MAX_END_BYTES).read_to_end(&mut text).await?;
        Ok::<_, io::Error>((text, child.wait().await?))
    };
    tokio::pin!(told);
    let ended = tokio::select! {
        ended = &mut told => ended,
        () = gone.cancelled() => {
            drop(input);
            told.await
        }
    };
    let (text, status) = ended.map_err(RunError::Lost)?;
    serde_json::from_slice(&text).map_err(|_| RunError::Lost(no_report(status)))
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
    let sandbox = container::prepare_outside(&job.sandbox, &Kernel::probe(), &job.closed, &job.folder)
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
        // A process can always signal itself, and a runner that is asked to end ends its program.
        let end = || {
            let _ = kill_process(getpid(), Signal::TERM);
        };
        when_input_ends(end).map_err(|error| error.to_string())?;
        process::run(&runs, || {}).await.map_err(|error| error.to_string())
    })
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
        stdout: kept(&ran.output),
        stderr: kept(&ran.errors),
        duration_milliseconds: u64::try_from(ran.took.as_millis()).unwrap_or(u64::MAX),
    }
}

fn kept(stream: &Capture) -> KeptOutput {
    let (begin, left_out, end) = stream.parts();
    KeptOutput { begin, left_out, end }
}
