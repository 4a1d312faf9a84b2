//! Clones of a repository with many files: by git itself from three places, and by the pod's program from its mirror, as
//! items with changesets have them.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Context as _;
use spillway_pod::agent::changeset::StepResult;

use super::repository::{empty_folder, isolated, make_served, timed};
use super::{GitBench, Remote, Route, clone_command};
use crate::report::{Report, Row};

const REPOSITORY: &str = "team/files";

/// The kinds of clones, in the order of their rows.
const LABELS: [&str; 5] = [
    "git clone from the server's folder (file://)",
    "git clone straight from the server (HTTPS)",
    "git clone through the gateway",
    "changeset prepare, without a mirror",
    "changeset prepare, with the mirror of the one before",
];

impl GitBench {
    /// Measures clones of many files.
    pub async fn measure_many_files(&mut self) -> anyhow::Result<Report> {
        let (contents, turns) = (self.scale.many_files, self.scale.turns);
        let commit = make_served(&self.server.folder(REPOSITORY), &self.work_folder("new"), contents).await?;
        let sidecars = self.start_agents("files", REPOSITORY, 1).await?;
        let sidecar = sidecars.first().context("an agent")?;
        let local = Remote { url: format!("file://{}", self.server.folder(REPOSITORY).display()), settings: Vec::new() };
        let remotes = [local, self.remote(Route::Direct, sidecar, REPOSITORY), self.remote(Route::Gateway, sidecar, REPOSITORY)];
        let mut times = LABELS.map(|_| Vec::new());
        for _ in 0..turns {
            let mut turn = Vec::new();
            for remote in &remotes {
                let target = self.work_folder("files");
                let (seconds, _) = timed(clone_command(remote, &[], &target)).await?;
                std::fs::remove_dir_all(target)?;
                turn.push(seconds);
            }
            let url = self.server.url_at(sidecar, REPOSITORY);
            empty_folder(&self.work_folder("mirror"))?;
            empty_folder(&self.work_folder("workspace"))?;
            let mut seal = String::new();
            for _ in 0..2 {
                let (seconds, output) = timed(self.prepare_command(&url, &seal)?).await.context("spillway-agent changeset prepare")?;
                let result = serde_json::from_str(&output).with_context(|| format!("prepare wrote {output:?}"))?;
                let StepResult::Prepared { base, seal: next } = result else { anyhow::bail!("prepare wrote {output:?}") };
                anyhow::ensure!(base == commit, "the workspace has another commit");
                seal = next;
                turn.push(seconds);
            }
            times.iter_mut().zip(turn).for_each(|(times, seconds)| times.push(seconds));
        }
        let rows = LABELS.into_iter().zip(times).map(|(label, times)| Row::spread(label, times, "s")).collect();
        let method = format!(
            "one repository of {} files of {} bytes, all random, is cloned with its files, {turns} turns of all kinds one after the other. The \
             disk is synced before each; git waits for it as by its defaults. `spillway-agent changeset prepare` is the step before each item \
             with a changeset: it empties the workspace, updates the mirror through the gateway, seals it, and makes a clone that shares its \
             objects. The first time there is no mirror and the workspace is empty. The second time the mirror has everything, and the \
             workspace has the files of the first time. {}",
            contents.files,
            contents.file_bytes,
            self.method(),
        );
        Ok(Report::new(format!("clone of {} files", contents.files), method, rows))
    }

    /// The step of the pod's program.
    fn prepare_command(&self, url: &str, seal: &str) -> anyhow::Result<Command> {
        let mut command = isolated(agent_binary()?);
        command.args(["changeset", "prepare", "--url", url, "--agent", "bench", "--seal", seal]);
        command.args(["--remote", &self.server.url(REPOSITORY)]);
        command.arg("--mirror").arg(self.work_folder("mirror")).arg("--workspace").arg(self.work_folder("workspace"));
        Ok(command)
    }
}

/// `SPILLWAY_AGENT_BINARY`, or the program beside the operator.
fn agent_binary() -> anyhow::Result<PathBuf> {
    if let Some(named) = std::env::var_os("SPILLWAY_AGENT_BINARY") {
        return Ok(named.into());
    }
    let operator = PathBuf::from(std::env::var_os("SPILLWAY_BINARY").context("SPILLWAY_BINARY")?);
    let beside = operator.with_file_name("spillway-agent");
    anyhow::ensure!(beside.is_file(), "{} is missing: run `make images`, or set SPILLWAY_AGENT_BINARY", beside.display());
    Ok(beside)
}
