//! A process of this program's own at the lowest priority, which does what its orders say. On a cluster those who burden an
//! operator are other machines: here they get what processor time the cluster, the operators and who measures leave them.
//!
//! It says in a line of JSON what its parent has to know, reads a line that says what to do, and answers with a line that says
//! what came of it; it ends when nobody can give it another one.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::Context as _;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::processes;

/// As `nice(1)` counts: nothing is lower.
const LOWEST: i32 = 19;

/// The other process, seen from its parent. It ends with this value.
pub struct Process {
    child: Child,
    pipes: Mutex<Option<Pipes>>,
}

struct Pipes {
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Process {
    /// Starts this program with `arguments`; with what it says first.
    pub async fn start<T: DeserializeOwned + Send + 'static>(arguments: &[&str]) -> anyhow::Result<(Self, T)> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (orders, answers) = (child.stdin.take().context("its input")?, child.stdout.take().context("its output")?);
        let process = Self { child, pipes: Mutex::new(None) };
        let (said, pipes) = Pipes { orders, answers: BufReader::new(answers) }.read().await?;
        *process.pipes.lock().unwrap_or_else(PoisonError::into_inner) = Some(pipes);
        Ok((process, said))
    }

    /// Gives an order, and waits for what came of it.
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
        // That it ended before is no error.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Pipes {
    /// One line that it says.
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

/// In the other process: takes the lowest priority.
pub fn yield_to_others() -> anyhow::Result<()> {
    // A session of its own, or it would come before the cluster with those who measure. Threads have the priority of who begins them.
    rustix::process::setsid().context("a session of its own")?;
    processes::renice(LOWEST)
}

/// In the other process: says `what` to the parent.
pub fn answer(what: &impl Serialize) -> anyhow::Result<()> {
    say(std::io::stdout(), what)
}

/// In the other process: the next order; none when nobody can give one.
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
