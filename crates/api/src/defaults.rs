//! Values of unset fields that depend on other fields. They are computed here and not defaulted by the CRD, so that a later change of
//! `type` changes its defaults too.

use crate::AgentPoolSpec;
use crate::agent_pool::{FolderWorkspace, GitWorkspace, PoolMode};
use crate::names;
use crate::sandbox::{Changeset, ChangesetDriver};

/// Default number of seconds between heartbeats.
pub const HEARTBEAT_PERIOD_SECONDS: i32 = 20;
const HEARTBEAT_TIMEOUT_SECONDS: i32 = 1800;
const STARTUP_TIMEOUT_SECONDS: i32 = 300;
const GOODBYE_TIMEOUT_SECONDS: i32 = 15;
/// Branch of an item's changeset, if the pool names none.
pub const CHANGESET_BRANCH: &str = "spillway/{item}";
const VERIFY_SECONDS: i32 = 600;
/// Default number of seconds for which the object of a stopped Agent is kept.
pub const STOPPED_TTL_SECONDS: i32 = 3600;

impl AgentPoolSpec {
    /// Minimum number of agents. Defaults to 0, for schedulers to 1.
    pub fn min(&self) -> u32 {
        let by_type = u32::from(self.type_ == names::SCHEDULER_TYPE);
        self.scaling.as_ref().and_then(|scaling| scaling.min).map_or(by_type, at_least_zero)
    }

    /// Maximum number of agents. Defaults to 1.
    pub fn max(&self) -> u32 {
        self.scaling.as_ref().and_then(|scaling| scaling.max).map_or(1, at_least_zero)
    }

    /// Whether the number of agents follows the work in the queues. Defaults to true for workers and drones. It is always false for a Chat
    /// pool.
    pub fn work_aware(&self) -> bool {
        let by_type = matches!(self.type_.as_str(), "worker" | names::DRONE_TYPE);
        self.mode == PoolMode::Perseverance && self.scaling.as_ref().and_then(|scaling| scaling.work_aware).unwrap_or(by_type)
    }

    /// Number of items for which the pool runs one agent. Defaults to 1.
    pub fn items_per_agent(&self) -> u32 {
        self.scaling.as_ref().and_then(|scaling| scaling.items_per_agent).map_or(1, at_least_zero)
    }

    /// Number of agents in addition to those that the work needs. Defaults to 0.
    pub fn idle_buffer(&self) -> u32 {
        self.scaling.as_ref().and_then(|scaling| scaling.idle_buffer).map_or(0, at_least_zero)
    }

    /// Seconds for which a lower target must hold. Defaults to 30.
    pub fn cooldown_seconds(&self) -> u32 {
        self.scaling.as_ref().and_then(|scaling| scaling.cooldown_seconds).map_or(30, at_least_zero)
    }

    /// Exact number of agents, if a person or an autoscaler set it.
    pub fn fixed_replicas(&self) -> Option<u32> {
        self.replicas.map(at_least_zero)
    }

    /// Seconds from the request to stop until the agent is killed, at least 1. Defaults to 15.
    pub fn goodbye_timeout_seconds(&self) -> u32 {
        let set = self.supervision.as_ref().and_then(|supervision| supervision.goodbye_timeout_seconds);
        at_least_zero(set.unwrap_or(GOODBYE_TIMEOUT_SECONDS)).max(1)
    }

    /// Seconds between heartbeats, at least 1. Defaults to 20.
    pub fn heartbeat_period_seconds(&self) -> u32 {
        let set = self.supervision.as_ref().and_then(|supervision| supervision.heartbeat_period_seconds);
        at_least_zero(set.unwrap_or(HEARTBEAT_PERIOD_SECONDS)).max(1)
    }

    /// Seconds of silence after which an agent is stale, at least 3. Defaults to 1800.
    pub fn heartbeat_timeout_seconds(&self) -> u32 {
        let set = self.supervision.as_ref().and_then(|supervision| supervision.heartbeat_timeout_seconds);
        at_least_zero(set.unwrap_or(HEARTBEAT_TIMEOUT_SECONDS)).max(3)
    }

    /// Seconds in which a new agent must register, at least 1. Defaults to 300.
    pub fn startup_timeout_seconds(&self) -> u32 {
        let set = self.supervision.as_ref().and_then(|supervision| supervision.startup_timeout_seconds);
        at_least_zero(set.unwrap_or(STARTUP_TIMEOUT_SECONDS)).max(1)
    }

    /// Seconds for which the object of a stopped Agent is kept. Defaults to 3600.
    pub fn stopped_ttl_seconds(&self) -> u32 {
        let set = self.supervision.as_ref().and_then(|supervision| supervision.stopped_ttl_seconds);
        at_least_zero(set.unwrap_or(STOPPED_TTL_SECONDS))
    }

    /// Settings of changesets and where they begin and end, if items of the pool have changesets.
    pub fn changeset(&self) -> Option<(&Changeset, ChangesetTarget<'_>)> {
        let changeset = self.sandbox.as_ref()?.changeset.as_ref()?;
        let workspace = self.workspace.as_ref()?;
        let target = match changeset.driver? {
            ChangesetDriver::Git => ChangesetTarget::Repository(workspace.git.as_ref()?),
            ChangesetDriver::Copy => ChangesetTarget::Folder(workspace.folder.as_ref()?),
            ChangesetDriver::None => return None,
        };
        Some((changeset, target))
    }

    /// Settings of changesets by git, if items of the pool have such.
    pub fn git_changeset(&self) -> Option<&Changeset> {
        self.changeset().filter(|(_, target)| matches!(target, ChangesetTarget::Repository(_))).map(|(changeset, _)| changeset)
    }

    /// Folder of the items' changesets, if they have such.
    pub fn changed_folder(&self) -> Option<&FolderWorkspace> {
        match self.changeset()?.1 {
            ChangesetTarget::Folder(folder) => Some(folder),
            ChangesetTarget::Repository(_) => None,
        }
    }
}

/// Where changesets begin and end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangesetTarget<'a> {
    /// A clone of a repository, and a branch of it.
    Repository(&'a GitWorkspace),
    /// A copy of a folder, and the folder.
    Folder(&'a FolderWorkspace),
}

impl FolderWorkspace {
    /// The folder as text: the claim, and the path in its volume.
    pub fn name(&self) -> String {
        self.path.as_ref().map_or_else(|| self.claim_name.clone(), |path| format!("{}/{path}", self.claim_name))
    }
}

impl Changeset {
    /// Template of the branch. Defaults to `spillway/{item}`.
    pub fn branch_template(&self) -> &str {
        self.branch.as_deref().unwrap_or(CHANGESET_BRANCH)
    }

    /// Time limit in seconds of the verify command, at least 1. Defaults to 600.
    pub fn verify_timeout_seconds(&self) -> u32 {
        at_least_zero(self.verify_seconds.unwrap_or(VERIFY_SECONDS)).max(1)
    }
}

/// The number, or 0 if it is negative. The CRD refuses negative numbers, but an object that was stored before a rule was tightened may hold
/// one.
fn at_least_zero(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent_pool::Scaling;

    fn pool(type_: &str) -> AgentPoolSpec {
        serde_json::from_value(serde_json::json!({"type": type_, "agent": {"image": "x", "command": ["y"]}})).expect("a minimal pool")
    }

    #[test]
    fn the_type_decides_what_is_unset() {
        assert_eq!((pool("scheduler").min(), pool("worker").min(), pool("free").max()), (1, 0, 1));
        assert!(pool("worker").work_aware() && pool("drone").work_aware());
        assert!(!pool("free").work_aware() && !pool("scheduler").work_aware());
    }

    #[test]
    fn items_have_changesets_with_a_driver_and_what_it_works_on() {
        let of = |changeset: serde_json::Value, workspace: serde_json::Value| {
            let spec = serde_json::json!({"type": "worker", "agent": {"image": "x", "command": ["y"]},
                "sandbox": {"changeset": changeset}, "workspace": workspace});
            let spec: AgentPoolSpec = serde_json::from_value(spec).expect("a pool");
            let (changeset, target) = spec.changeset()?;
            let target = match target {
                ChangesetTarget::Repository(git) => git.remote.clone(),
                ChangesetTarget::Folder(folder) => folder.name(),
            };
            assert_eq!((spec.git_changeset().is_some(), spec.changed_folder().is_some()), (target == "r", target != "r"));
            Some((changeset.branch_template().to_owned(), changeset.verify_timeout_seconds(), target))
        };
        let git = serde_json::json!({"git": {"remote": "r"}});
        assert_eq!(of(serde_json::json!({"driver": "Git"}), git.clone()), Some(("spillway/{item}".into(), 600, "r".into())));
        let own = serde_json::json!({"driver": "Git", "branch": "b", "verifySeconds": 5});
        assert_eq!(of(own, git.clone()), Some(("b".into(), 5, "r".into())));
        assert_eq!(of(serde_json::json!({"driver": "Git"}), serde_json::Value::Null), None);
        let folder = |path: Option<&str>| serde_json::json!({"folder": {"claimName": "c", "path": path}});
        let copied =
            |path| of(serde_json::json!({"driver": "Copy", "verifySeconds": 5}), folder(path)).map(|(_, seconds, name)| (seconds, name));
        assert_eq!(copied(None), Some((5, "c".into())));
        assert_eq!(copied(Some("a/b")), Some((5, "c/a/b".into())));
        assert_eq!(of(serde_json::json!({"driver": "Git"}), folder(None)), None);
        for driver in ["Copy", "None"] {
            assert_eq!(of(serde_json::json!({"driver": driver}), git.clone()), None, "{driver}");
        }
        assert_eq!(of(serde_json::json!({}), git), None);
    }

    #[test]
    fn what_is_set_wins_but_a_chat_pool_follows_no_work() {
        let scaling = Some(Scaling { work_aware: Some(true), min: Some(2), max: Some(7), ..Scaling::default() });
        let free = AgentPoolSpec { scaling, ..pool("free") };
        assert!(free.work_aware() && free.min() == 2 && free.max() == 7);
        assert!(!AgentPoolSpec { mode: PoolMode::Chat, ..free }.work_aware());
        assert!(!AgentPoolSpec { mode: PoolMode::Chat, ..pool("worker") }.work_aware());
    }
}
