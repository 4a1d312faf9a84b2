//! A large clone and a large push, on each route in turn: how fast they are, and what a proxy needs for them.

use std::collections::BTreeMap;

use super::repository::{git, git_in, make_bare, make_commit, make_served, timed};
use super::{GitBench, Remote, Route, clone_command};
use crate::report::{Report, Row};

/// The repository that is cloned, and the one that is pushed to.
const CLONED: &str = "team/large";
const PUSHED: &str = "team/pushed";
/// Settings of a client that does not wait for the disk, and keeps large files out of its memory.
const CLIENT_SETTINGS: [&str; 2] = ["core.fsync=none", "core.bigFileThreshold=1m"];
const MIB_PER_GIB: f64 = 1024.0;

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Direction {
    Clone,
    Push,
}

impl Direction {
    fn label(self) -> &'static str {
        match self {
            Self::Clone => "clone",
            Self::Push => "push",
        }
    }
}

/// Measurements of one direction on one route, one for each turn.
#[derive(Debug, Default)]
struct Measurements {
    mib_per_second: Vec<f64>,
    /// Processor time of the proxy.
    seconds_per_gib: Vec<f64>,
    /// The peak of the gateway's resident memory, in MiB.
    gateway_peaks: Vec<f64>,
}

impl GitBench {
    /// Measures clones and pushes.
    pub async fn measure_transfers(&mut self) -> anyhow::Result<Report> {
        let (contents, turns) = (self.scale.large, self.scale.turns);
        let commit = make_served(&self.server.folder(CLONED), &self.work_folder("new"), contents).await?;
        make_bare(&self.server.folder(PUSHED)).await?;
        let work = self.work_folder("pushed");
        let pushed = make_commit(&work, contents).await?;
        let cloning = self.start_agents("large", CLONED, 1).await?;
        let pushing = self.start_agents("pushed", PUSHED, 1).await?;
        let before = self.gateway.memory()?.resident;
        let mut all = BTreeMap::<(Direction, Route), Measurements>::new();
        for turn in 0..turns {
            for offset in 0..Route::ALL.len() {
                // Each turn begins with another route.
                let route = Route::ALL[(turn + offset) % Route::ALL.len()];
                if let Some(sidecar) = cloning.first() {
                    let remote = self.remote(route, sidecar, CLONED);
                    self.clone_once(&remote, route, &commit, all.entry((Direction::Clone, route)).or_default()).await?;
                }
                if let Some(sidecar) = pushing.first() {
                    let remote = self.remote(route, sidecar, PUSHED);
                    self.push_once(&remote, route, &pushed, all.entry((Direction::Push, route)).or_default()).await?;
                }
            }
        }
        std::fs::remove_dir_all(work)?;
        let mut rows = vec![Row::one("gateway: resident before", before, "MiB")];
        for ((direction, route), measurements) in all {
            let Measurements { mib_per_second, seconds_per_gib, gateway_peaks } = measurements;
            let name = |what: &str| format!("{}, {}{what}", direction.label(), route.label());
            rows.push(Row::spread(name(""), mib_per_second, "MiB/s"));
            if route != Route::Direct {
                rows.push(Row::spread(name(": processor time"), seconds_per_gib, "s/GiB"));
            }
            if route == Route::Gateway {
                rows.push(Row::spread(name(": resident, peak"), gateway_peaks, "MiB"));
            }
        }
        let method = format!(
            "a bare clone of one repository, and a push of one commit to a new branch of an empty repository, each of {} files and {:.0} MiB \
             of random bytes, on each route in turn, {turns} turns, each of which begins with another route. The disk is synced before each; \
             git does not wait for it meanwhile, and compresses nothing. A rate is of the whole command, with git's own work at both ends. \
             Processor time is that of the gateway, or of all of nginx's processes. Peak: VmHWM, reset before each. nginx is {}, a plain \
             proxy with as many workers as cores, TLS 1.3 on both legs, which \
             passes bodies on through buffers of 64 KiB, as the gateway does. {}",
            contents.files,
            contents.mib(),
            self.nginx.version,
            self.method(),
        );
        Ok(Report::new(format!("clone and push of {:.0} MiB", contents.mib()), method, rows))
    }

    async fn clone_once(&self, remote: &Remote, route: Route, commit: &str, into: &mut Measurements) -> anyhow::Result<()> {
        let target = self.work_folder("clone");
        let settings = remote.settings.iter().cloned().chain(CLIENT_SETTINGS.map(str::to_owned)).collect();
        let command = clone_command(&Remote { url: remote.url.clone(), settings }, &["--bare"], &target);
        self.measure(command, route, into).await?;
        let cloned = git_in(&target, &["rev-parse", "main"]).await?;
        anyhow::ensure!(cloned == commit, "the clone has another commit");
        std::fs::remove_dir_all(target)?;
        Ok(())
    }

    async fn push_once(&self, remote: &Remote, route: Route, commit: &str, into: &mut Measurements) -> anyhow::Result<()> {
        let served = self.server.folder(PUSHED);
        // The server has none of the objects.
        make_bare(&served).await?;
        let mut command = git(&remote.settings);
        command.arg("-C").arg(self.work_folder("pushed")).args(["push", "--quiet", &remote.url, "HEAD:refs/heads/bench/large"]);
        self.measure(command, route, into).await?;
        let pushed = git_in(&served, &["rev-parse", "refs/heads/bench/large"]).await?;
        anyhow::ensure!(pushed == commit, "the server has another commit");
        Ok(())
    }

    async fn measure(&self, command: std::process::Command, route: Route, into: &mut Measurements) -> anyhow::Result<()> {
        let mib = self.scale.large.mib();
        self.gateway.forget_peak()?;
        let before = self.proxy_seconds(route)?;
        let (seconds, _) = timed(command).await.map_err(|error| error.context(route.label()))?;
        let used = self.proxy_seconds(route)? - before;
        into.mib_per_second.push(mib / seconds);
        into.seconds_per_gib.push(used * MIB_PER_GIB / mib);
        into.gateway_peaks.push(self.gateway.memory()?.peak);
        Ok(())
    }
}
