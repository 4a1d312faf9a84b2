//! Many agents clone one small repository through the gateway at once.

use std::time::Instant;

use anyhow::Context as _;
use tokio::task::JoinSet;

use super::repository::{empty_folder, make_served, run, sync_disk};
use super::{GitBench, Route, clone_command};
use crate::models::{failures, seconds};
use crate::report::{Report, Row, float, percentile};

const REPOSITORY: &str = "team/small";

impl GitBench {
    /// Measures clones at once.
    pub async fn measure_concurrent_clones(&mut self) -> anyhow::Result<Report> {
        let (contents, clones) = (self.scale.small, self.scale.clones);
        make_served(&self.server.folder(REPOSITORY), &self.work_folder("new"), contents).await?;
        let sidecars = self.start_agents("small", REPOSITORY, clones).await?;
        let folder = self.work_folder("small");
        empty_folder(&folder)?;
        let commands: Vec<_> = sidecars
            .iter()
            .enumerate()
            .map(|(number, sidecar)| {
                clone_command(&self.remote(Route::Gateway, sidecar, REPOSITORY), &[], &folder.join(number.to_string()))
            })
            .collect();
        sync_disk().await?;
        let (before, used) = (self.gateway.memory()?.resident, self.gateway.processor_seconds()?);
        self.gateway.forget_peak()?;
        let began = Instant::now();
        let mut tasks = JoinSet::new();
        for command in commands {
            tasks.spawn(async move {
                let began = Instant::now();
                run(command).await.map(|_| seconds(began))
            });
        }
        let (mut times, mut failed) = (Vec::new(), Vec::new());
        while let Some(ended) = tasks.join_next().await {
            match ended.context("a clone's task")? {
                Ok(time) => times.push(time),
                Err(error) => failed.push(format!("{error:#}")),
            }
        }
        let (took, used) = (seconds(began), self.gateway.processor_seconds()? - used);
        let mut rows = vec![
            Row::one("clones", float(clones), ""),
            Row::one("clones that failed", float(failed.len()), ""),
            Row::one("begin -> all have ended", took, "s"),
            Row::one("one clone, p50", percentile(&times, 50.0), "s"),
            Row::one("one clone, the slowest", percentile(&times, 100.0), "s"),
            Row::one("gateway: resident before", before, "MiB"),
            Row::one("gateway: resident, peak", self.gateway.memory()?.peak, "MiB"),
            Row::one("gateway: processor time", used * 1000.0 / float(clones), "ms/clone"),
        ];
        rows.extend(failures("clones", &failed));
        std::fs::remove_dir_all(folder)?;
        let method = format!(
            "{clones} agents clone one repository of {} files and {:.0} MiB of random bytes at once through one gateway, each once, with files. \
             git does not try again. The disk is synced before. Peak: VmHWM, reset before. {}",
            contents.files,
            contents.mib(),
            self.method(),
        );
        Ok(Report::new(format!("{clones} clones at once"), method, rows))
    }
}
