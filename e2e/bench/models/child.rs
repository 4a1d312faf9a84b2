//! A child process of this program at the lowest priority, which carries out orders. On a cluster the callers that load
//! an operator are other machines. Here they get the processor time that the cluster, the operators and the measuring
//! process leave.
//!
//! The child first writes a line of JSON with facts for its parent. Then it reads an order, carries it out, and answers
//! with the outcome, a line each. It ends when its input ends.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::Context as _;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::processes;

/// The lowest priority, as `nice(1)` counts.
const LOWEST: i32 = 19;

/// The child process, seen from its parent. It ends when this value is dropped.
pub struct Process {
    child: Child,
    pipes: Mutex<Option<Pipes>>,
}

struct Pipes {
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Process {
    /// Starts this program with `arguments`; the child and its first line.
    pub async fn start<T: DeserializeOwned + Send + 'static>(arguments: &[&str]) -> anyhow::Result<(Self, T)> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (orders, answers) = (child.stdin.take().context("its input")?, child.stdout.take().context("its output")?);
        let process = Self { child, pipes: Mutex::new(None) };
        let (said, pipes) = Pipes { orders, answers: BufReader::new(answers) }.read().await?;
        *process.pipes.lock().unwrap_or_else(PoisonError::into_inner) = Some(pipes);
        Ok((process, said))
    }

    /// Gives an order, and waits for its outcome.
    pub async fn order<T: DeserializeOwned + Send + 'static>(&self, order: &impl Serialize) -> anyhow::Result<T> {
        let pipes = self.pipes.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut pipes = pipes.context("it carries out another order, or has ended")?;
        say(&mut pipes.orders, order)?;
        let (answer, pipes) = pipes.read().await?;
        *self.pipes.lock().unwrap_or_else(PoisonError::into_inner) = Some(pipes);
        Ok(answer)
    }

    /// Seconds of processor time it has used so far.
    pub fn processor_seconds(&self) -> anyhow::Result<f64> {
        processes::processor_seconds(self.child.id())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Pipes {
    /// Reads one line of the child.
    async fn read<T: DeserializeOwned + Send + 'static>(mut self) -> anyhow::Result<(T, Self)> {
        let reading = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            self.answers.read_line(&mut line)?;
            let said = serde_json::from_str(&line).context("the other process has ended")?;
            anyhow::Ok((said, self))
        });
        reading.await?
    }
}

/// In the child: takes the lowest priority.
pub fn yield_to_others() -> anyhow::Result<()> {
    // A session of its own. In the session of the measuring process it would come before the cluster. New threads
    // inherit the priority.
    rustix::process::setsid().context("a session of its own")?;
    processes::renice(LOWEST)
}

/// In the child: writes `what` to the parent.
pub fn answer(what: &impl Serialize) -> anyhow::Result<()> {
    say(std::io::stdout(), what)
}

/// In the child: the next order; none when the input has ended.
pub async fn next_order<T: DeserializeOwned>() -> anyhow::Result<Option<T>> {
    let line = tokio::task::spawn_blocking(|| std::io::stdin().lock().lines().next()).await?;
    line.map(|line| Ok(serde_json::from_str(&line?)?)).transpose()
}

fn say(mut to: impl std::io::Write, what: &impl Serialize) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    to.write_all(&line)?;
    Ok(to.flush()?)
}
