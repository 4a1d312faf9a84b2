//! Git: which repository an agent may use, and which refs it may push, by the workspace of its pool.
//!
//! It must not read a request of git: gateways do.

use kube::ResourceExt;
use serde_json::Value;

use super::caller::{Caller, identify};
use super::{changeset, lease_check};
use crate::api::AgentPoolSpec;
use crate::api::agent_pool::GitWorkspace;
use crate::controller::Context;
use crate::git_settings::GitSettings;
use crate::policy::git::{Denial, RefTemplate, Repository, refs};
use crate::policy::interventions::{Signal, Violation};
use crate::policy::work::entry::Entry;
use crate::wire::git::{GitDenial, GitPush, GitTarget, GitTargetRequest};
use crate::wire::work::LeaseRef;
use crate::wire::{Code, Refusal, body};

/// Answers a gateway's question for an agent. A denial of what the pool does not allow counts for the agent's supervision.
pub async fn of_agent(caller: &Caller, bytes: &[u8], context: &Context) -> Result<Value, Refusal> {
    let agent = identify(caller, context).await?;
    if agent.spec.external.is_some() {
        return Err(Refusal::new(Code::NotAllowed, "agents outside the cluster have their own network"));
    }
    let GitTargetRequest { repository, push, item, denied } = body::read(bytes)?;
    if let Some(GitDenial { reason, name }) = denied {
        count(caller, &name, Denial::known_reason(&reason), context);
        return Ok(Value::Null);
    }
    lease_check::may_act(caller, &agent, item.as_ref(), context)?;
    let stored = context.stores.pool(&caller.key.namespace, &agent.spec.pool_ref.name);
    let pool = stored.as_ref().and_then(|pool| pool.0.as_ref().ok());
    let pool = pool.ok_or_else(|| Refusal::unavailable("the controller does not know the agent's pool yet; try again"))?;
    let held = held_item(caller, item.as_ref(), context);
    let branch = held.as_ref().and_then(|(item, entry)| changeset::branch_of(&agent, pool, entry, item));
    let names = Names { agent: agent.name_any(), pool: pool.name_any(), item: held.map(|(item, _)| item), branch };
    let judged = target(&pool.spec, &context.git, &repository, push, &names);
    judged.map(|target| serde_json::json!(target)).map_err(|denial| {
        if denial.is_violation() {
            count(caller, &repository, denial.reason(), context);
        }
        let message = format!("{repository} is denied to the agents of AgentPool/{}: {denial}", names.pool);
        Refusal::new(Code::GitDenied, message).reason(denial.reason())
    })
}

/// Counts a denial for the agent's supervision.
fn count(caller: &Caller, name: &str, reason: &str, context: &Context) {
    let words = format!("git: {name:?} was denied ({reason})");
    context.live.raise(&caller.uid, Signal::RuleViolated(Violation::NetworkDenied), Some(words));
    context.wake.agent(&caller.key);
}

/// The item that the agent works on, with its name.
fn held_item(caller: &Caller, named: Option<&LeaseRef>, context: &Context) -> Option<(String, Entry)> {
    let lease = lease_check::lease_of(caller, named, context)?;
    context.work_index.with(&caller.key.namespace, |work| work.by_uid(&lease.uid))
}

/// The names that a pattern of refs may contain, and the branch of the changeset of the item.
struct Names {
    agent: String,
    pool: String,
    item: Option<String>,
    branch: Option<String>,
}

/// The repository of the agent, if it is the one that it asks for.
fn target(spec: &AgentPoolSpec, settings: &GitSettings, asked: &str, push: bool, names: &Names) -> Result<GitTarget, Denial> {
    let git = spec.workspace.as_ref().and_then(|workspace| workspace.git.as_ref()).ok_or(Denial::NoRepository)?;
    // A pool whose settings are wrong reports it: its agents use no repository.
    let declared = Repository::parse_url(&git.remote).map_err(|_| Denial::NoRepository)?;
    let same = Repository::parse(asked).is_ok_and(|asked| asked.is_same(&declared));
    if !same {
        return Err(Denial::OtherRepository);
    }
    if !settings.lists(&declared) {
        return Err(Denial::OriginNotListed);
    }
    let has_changesets = spec.git_changeset().is_some();
    let allowed = if has_changesets { changeset_push(names) } else { pushes(git, names) };
    if push && allowed.is_none() {
        return Err(if has_changesets { Denial::OnlyChangesets } else { Denial::PushNotAllowed });
    }
    let credential = git.credentials_ref.as_ref().map(|secret| secret.name.clone());
    Ok(GitTarget { remote: declared.to_string(), credential, push: allowed })
}

/// What an agent may push.
fn pushes(git: &GitWorkspace, names: &Names) -> Option<GitPush> {
    let template = RefTemplate::parse(git.push.as_deref()?).ok()?;
    let refs = template.fill(&names.agent, &names.pool, names.item.as_deref())?;
    Some(GitPush {
        refs: refs.to_string(),
        overwrite: git.allow_overwrite.unwrap_or_default(),
        delete: git.allow_delete.unwrap_or_default(),
        changeset_only: false,
    })
}

/// What may be pushed for an agent with changesets: the announced commit, to the branch of the item that it holds. An
/// earlier attempt may have left a commit there.
fn changeset_push(names: &Names) -> Option<GitPush> {
    let refs = format!("refs/heads/{}", names.branch.as_deref()?);
    Some(GitPush { refs, overwrite: true, delete: false, changeset_only: true })
}

/// What is wrong with a pool's repository: the field, and what to do. The schema knows neither all names nor the platform's list.
pub fn invalid(spec: &AgentPoolSpec, settings: &GitSettings) -> Option<String> {
    let git = spec.workspace.as_ref()?.git.as_ref()?;
    let declared = match Repository::parse_url(&git.remote) {
        Ok(declared) => declared,
        Err(error) => return Some(format!("spec.workspace.git.remote: {error}")),
    };
    if !settings.lists(&declared) {
        let origin = declared.origin();
        return Some(format!("spec.workspace.git.remote: the platform does not list {origin} (the chart's value git.origins)"));
    }
    if let Some(revision) = git.ref_.as_deref().filter(|revision| !refs::is_revision(revision)) {
        return Some(format!("spec.workspace.git.ref: {revision:?} is no branch, tag or commit"));
    }
    if let Some(message) = changeset::invalid_branch(spec) {
        return Some(message);
    }
    let push = git.push.as_deref()?;
    RefTemplate::parse(push).err().map(|error| format!("spec.workspace.git.push: {push:?}: {error}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const REMOTE: &str = "https://git.example.com/team/app.git";

    fn spec(git: Value) -> AgentPoolSpec {
        let spec = json!({"type": "worker", "agent": {"image": "x", "command": ["y"]}, "workspace": {"git": git}});
        serde_json::from_value(spec).expect("a spec")
    }

    fn settings() -> GitSettings {
        GitSettings::parse(r#"{"origins": [{"origin": "https://git.example.com"}]}"#).expect("settings")
    }

    fn names(item: Option<&str>) -> Names {
        Names { agent: "coders-1".into(), pool: "coders".into(), item: item.map(str::to_owned), branch: None }
    }

    fn with_changesets(branch: &str) -> AgentPoolSpec {
        let mut spec = json!(spec(json!({"remote": REMOTE})));
        spec["sandbox"] = json!({"changeset": {"driver": "Git", "branch": branch}});
        serde_json::from_value(spec).expect("a spec")
    }

    #[test]
    fn an_agent_with_changesets_pushes_the_commit_of_its_item_and_nothing_else() {
        let spec = with_changesets("{pool}/{item}");
        let of = |push, branch: Option<&str>| {
            let names = Names { branch: branch.map(str::to_owned), ..names(branch.map(|_| "fix-1")) };
            target(&spec, &settings(), "git.example.com/team/app", push, &names).map(|target| target.push)
        };
        let push = GitPush { refs: "refs/heads/coders/fix-1".into(), overwrite: true, delete: false, changeset_only: true };
        assert_eq!(of(true, Some("coders/fix-1")), Ok(Some(push)));
        assert_eq!(of(true, None), Err(Denial::OnlyChangesets), "it holds no item");
        assert_eq!(of(false, None), Ok(None), "it may fetch");
    }

    #[test]
    fn an_agent_has_the_repository_of_its_pool_and_no_other() {
        let all = spec(json!({"remote": REMOTE, "push": "{pool}/{item}/*", "credentialsRef": {"name": "robot"}, "allowDelete": true}));
        let of = |asked: &str, push, item| target(&all, &settings(), asked, push, &names(item));
        let push = GitPush { refs: "refs/heads/coders/fix-1/*".into(), overwrite: false, delete: true, changeset_only: false };
        let expected = GitTarget { remote: REMOTE.into(), credential: Some("robot".into()), push: Some(push) };
        assert_eq!(of("git.example.com/team/app", true, Some("fix-1")), Ok(expected));
        assert_eq!(of("git.example.com/team/app", true, None), Err(Denial::PushNotAllowed), "it has no item, and so no refs of its own");
        assert!(of("git.example.com/team/app", false, None).is_ok_and(|target| target.push.is_none()));
        for other in ["git.example.com/team/app2", "git.example.com/team", "other.example.com/team/app", "x"] {
            assert_eq!(of(other, false, None), Err(Denial::OtherRepository), "{other}");
        }
        let read_only = spec(json!({"remote": REMOTE}));
        assert_eq!(target(&read_only, &settings(), "git.example.com/team/app", true, &names(None)), Err(Denial::PushNotAllowed));
        let unlisted = GitSettings::default();
        assert_eq!(target(&read_only, &unlisted, "git.example.com/team/app", false, &names(None)), Err(Denial::OriginNotListed));
        let none = serde_json::from_value(json!({"type": "w", "agent": {"image": "x", "command": ["y"]}})).expect("a spec");
        assert_eq!(target(&none, &settings(), "git.example.com/team/app", false, &names(None)), Err(Denial::NoRepository));
    }

    #[test]
    fn a_wrong_field_is_named() {
        let of = |git: Value| invalid(&spec(git), &settings());
        assert_eq!(of(json!({"remote": REMOTE, "ref": "main", "push": "agents/*"})), None);
        for (git, words) in [
            (json!({"remote": "https://10.0.0.1/team/app"}), "spec.workspace.git.remote: the host is an address"),
            (json!({"remote": "https://github.com/team/app"}), "does not list https://github.com (the chart's value git.origins)"),
            (json!({"remote": REMOTE, "ref": "a..b"}), "spec.workspace.git.ref: \"a..b\""),
            (json!({"remote": REMOTE, "push": "*"}), "spec.workspace.git.push: \"*\": it is too wide"),
            (json!({"remote": REMOTE, "push": "{items}/*"}), "placeholder"),
        ] {
            let message = of(git.clone()).unwrap_or_default();
            assert!(message.contains(words), "{git}: {message}");
        }
        assert_eq!(invalid(&with_changesets("spillway/{item}"), &settings()), None);
        let message = invalid(&with_changesets("spillway/*"), &settings()).unwrap_or_default();
        assert!(message.starts_with("spec.sandbox.changeset.branch: \"spillway/*\""), "{message}");
    }
}
