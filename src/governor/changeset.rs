//! Changesets: how the agents of a pool make them, the branch of each item, and the changeset in an item's status. Pure.
//!
//! It must not decide whether a push passes: gateways do, by the rules of [`git`](super::git).

use kube::ResourceExt;

use crate::api::agent_pool::FolderWorkspace;
use crate::api::defaults::ChangesetTarget;
use crate::api::item_changeset::{ChangesetState, ItemChangeset};
use crate::api::names::short_hash;
use crate::api::sandbox::Changeset;
use crate::api::{Agent, AgentPool, AgentPoolSpec};
use crate::controller::program_files::{FileCopy, copies};
use crate::policy::git::{RefTemplate, refs};
use crate::policy::interventions::{Signal, Violation};
use crate::policy::work::entry::Entry;
use crate::wire::changeset::{self, ChangesetReport, ChangesetSettings, reasons};

/// Where all branches are.
const BRANCHES: &str = "refs/heads/";
/// Of the name of an item whose whole name fits in no branch, this many characters are kept, and a hash follows.
const SHORTENED_ITEM_CHARS: usize = 40;
/// Hexadecimal digits of that hash.
const ITEM_HASH_DIGITS: usize = 10;
/// The most characters of the name of an agent or of a pool: both are values of labels.
const MAX_LABEL_CHARS: usize = 63;

/// How the agents of a pool make changesets. None: its items have none.
pub fn settings(pool: &AgentPool) -> Option<ChangesetSettings> {
    let (changeset, target) = pool.spec.changeset()?;
    let Changeset { driver: _, branch: _, protect, max_bytes, verify, verify_seconds: _ } = changeset;
    let files = copies(&pool.spec).filter(|copy| copy.in_workspace);
    Some(ChangesetSettings {
        target: match target {
            ChangesetTarget::Repository(git) => changeset::ChangesetTarget::Repository {
                remote: git.remote.clone(),
                revision: git.ref_.clone(),
                depth: git.depth.and_then(|depth| u32::try_from(depth).ok()),
            },
            ChangesetTarget::Folder(folder) => changeset::ChangesetTarget::Folder { folder: folder.path.clone().unwrap_or_default() },
        },
        protect: protect.clone().unwrap_or_default(),
        max_bytes: max_bytes.and_then(|most| u64::try_from(most).ok()),
        verify: verify.clone().unwrap_or_default(),
        verify_seconds: changeset.verify_timeout_seconds(),
        files: files.map(|FileCopy { from, to, in_workspace: _ }| (from, to)).collect(),
    })
}

/// Whether the items of this agent have changesets. Agents outside the cluster make none.
pub fn has_changesets(agent: &Agent, pool: &AgentPool) -> bool {
    agent.spec.external.is_none() && pool.spec.changeset().is_some()
}

/// The branch of an item's changeset, without `refs/heads/`. None: the items of the pool have none, or its template is
/// wrong.
pub fn branch(spec: &AgentPoolSpec, agent: &str, pool: &str, item: &str) -> Option<String> {
    let changeset = spec.git_changeset()?;
    let template = RefTemplate::parse(changeset.branch_template()).ok()?;
    // Names of items may be longer than a branch, or end with `.lock`.
    let fill = |item: &str| filled(&template, agent, pool, item);
    fill(item).or_else(|| fill(&shortened(item)))
}

/// The branch for the item that an agent holds: the one that its attempt began with, if there is one.
pub fn branch_of(agent: &Agent, pool: &AgentPool, entry: &Entry, item: &str) -> Option<String> {
    let begun = entry.open_changeset.clone().filter(|branch| !branch.is_empty());
    let of_pool = || branch(&pool.spec, &agent.name_any(), &pool.name_any(), item);
    has_changesets(agent, pool).then(|| begun.or_else(of_pool))?
}

/// The folder of the changesets of this agent's items, if they have such.
pub fn folder_of(agent: &Agent, pool: &AgentPool) -> Option<String> {
    pool.spec.changed_folder().filter(|_| has_changesets(agent, pool)).map(FolderWorkspace::name)
}

fn filled(template: &RefTemplate, agent: &str, pool: &str, item: &str) -> Option<String> {
    let full = template.fill(agent, pool, Some(item))?.to_string();
    full.strip_prefix(BRANCHES).filter(|_| refs::is_valid(&full)).map(str::to_owned)
}

fn shortened(item: &str) -> String {
    let start: String = item.chars().take(SHORTENED_ITEM_CHARS).collect();
    format!("{start}-{}", short_hash(&[item], ITEM_HASH_DIGITS))
}

/// What is wrong with the template of the branch, with the name of the field.
pub fn invalid_branch(spec: &AgentPoolSpec) -> Option<String> {
    let changeset = spec.git_changeset()?;
    let text = changeset.branch_template();
    let wrong = |words: &str| Some(format!("spec.sandbox.changeset.branch: {text:?}: {words}"));
    if text.contains('*') {
        return wrong("a branch has no *");
    }
    let template = match RefTemplate::parse(text) {
        Ok(template) => template,
        Err(error) => return wrong(&error.to_string()),
    };
    if filled(&template, "agent", "pool", "item").is_none() {
        return wrong("this is no branch");
    }
    let longest = "x".repeat(MAX_LABEL_CHARS);
    if filled(&template, &longest, &longest, &shortened(&longest)).is_none() {
        return wrong("with long names of agents, pools and items the branch is too long");
    }
    None
}

/// The changeset of an item that an agent claims under `epoch`.
pub fn opened(agent: &Agent, pool: &AgentPool, item: &str, epoch: i64) -> Option<ItemChangeset> {
    let branch = has_changesets(agent, pool).then(|| branch(&pool.spec, &agent.name_any(), &pool.name_any(), item))?;
    let folder = folder_of(agent, pool);
    // A pool whose branch is wrong has no changesets.
    if branch.is_none() && folder.is_none() {
        return None;
    }
    Some(ItemChangeset { branch, folder, remote: remote(&pool.spec), ..ItemChangeset::new(ChangesetState::Open, epoch) })
}

/// The changeset of an item that its agent has completed under `epoch`, as the agent reports it. `begun` is the branch
/// that the attempt began with. None: the agent has no changesets, and its claim is not believed.
pub fn completed(
    is_external: bool,
    spec: &AgentPoolSpec,
    epoch: i64,
    report: ChangesetReport,
    begun: Option<String>,
) -> Option<ItemChangeset> {
    // An attempt that began with a changeset ends with it, even if its pool has changed.
    if is_external || (begun.is_none() && spec.changeset().is_none()) {
        return None;
    }
    let ChangesetReport { base, commit, branch, folder, files, insertions, deletions } = report;
    let branch = begun.into_iter().chain([branch]).find(|branch| !branch.is_empty());
    // The pool may have another folder by now.
    let folder = Some(folder).filter(|folder| branch.is_none() && !folder.is_empty());
    let is_counted = branch.is_some();
    let known = ItemChangeset {
        remote: remote(spec).filter(|_| is_counted),
        branch,
        folder,
        base: Some(base),
        ..ItemChangeset::new(ChangesetState::Discarded, epoch)
    };
    let number = |value: u64| Some(i64::try_from(value).unwrap_or(i64::MAX));
    Some(match commit {
        Some(commit) => ItemChangeset {
            state: ChangesetState::Committed,
            commit: Some(commit),
            files: Some(files.into()),
            insertions: number(insertions).filter(|_| is_counted),
            deletions: number(deletions).filter(|_| is_counted),
            ..known
        },
        None => ItemChangeset { message: Some("no file was changed".to_owned()), ..known },
    })
}

fn remote(spec: &AgentPoolSpec) -> Option<String> {
    Some(spec.workspace.as_ref()?.git.as_ref()?.remote.clone())
}

/// The signals of an agent whose attempt failed for this reason.
pub fn signals(reason: &str) -> &'static [Signal] {
    const FORBIDDEN: Signal = Signal::RuleViolated(Violation::ForbiddenPath);
    if reason == reasons::PROTECTED_PATH {
        &[Signal::BadChangeset, FORBIDDEN]
    } else if reasons::REFUSED.contains(&reason) {
        &[Signal::BadChangeset]
    } else {
        &[]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use spillway_conversion::work as convert;

    use super::*;

    fn pool(changeset: Value) -> AgentPool {
        let file = |path: &str| json!({"path": path, "configMapKeyRef": {"name": "c", "key": "k"}});
        let agent = json!({"image": "x", "command": ["y"], "files": [file(".codex/config"), file("workspace/AGENTS.md")]});
        let git = json!({"remote": "https://git.example.com/a", "ref": "main", "depth": 5});
        let spec = json!({"type": "worker", "agent": agent, "workspace": {"git": git}, "sandbox": {"changeset": changeset}});
        AgentPool::new("coders", serde_json::from_value(spec).expect("a spec"))
    }

    fn folder_pool(path: &str) -> AgentPool {
        let spec = json!({"type": "worker", "agent": {"image": "x", "command": ["y"]}, "sandbox": {"changeset": {"driver": "Copy"}},
            "workspace": {"folder": {"claimName": "data", "path": path}}});
        AgentPool::new("writers", serde_json::from_value(spec).expect("a spec"))
    }

    fn agent(external: Value) -> Agent {
        Agent::new("coders-1", serde_json::from_value(json!({"poolRef": {"name": "coders"}, "external": external})).expect("an Agent"))
    }

    fn entry(status: Value) -> Entry {
        let object = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkItem", "metadata": {"name": "fix-1"},
            "spec": {"queueRef": {"name": "q"}}, "status": status});
        convert::entry(&serde_json::from_value(object).expect("a WorkItem"))
    }

    #[test]
    fn the_settings_of_a_pod_are_those_of_its_pool() {
        let all = json!({"driver": "Git", "protect": ["ci/*"], "maxBytes": 10, "verify": ["make", "test"], "verifySeconds": 30});
        let expected = ChangesetSettings {
            target: changeset::ChangesetTarget::Repository {
                remote: "https://git.example.com/a".into(),
                revision: Some("main".into()),
                depth: Some(5),
            },
            protect: vec!["ci/*".into()],
            max_bytes: Some(10),
            verify: vec!["make".into(), "test".into()],
            verify_seconds: 30,
            files: vec![("/spillway/files/1/content".into(), "/workspace/AGENTS.md".into())],
        };
        assert_eq!(settings(&pool(all)), Some(expected.clone()));
        let expected_target = expected.target.clone();
        let least = ChangesetSettings { protect: vec![], max_bytes: None, verify: vec![], verify_seconds: 600, ..expected };
        assert_eq!(settings(&pool(json!({"driver": "Git"}))), Some(least.clone()));
        let folder = |path: &str| changeset::ChangesetTarget::Folder { folder: path.into() };
        assert_eq!(settings(&folder_pool("sites/a")), Some(ChangesetSettings { target: folder("sites/a"), files: vec![], ..least }));
        assert_eq!(json!(folder("a")), json!({"folder": "a"}));
        for target in [folder(""), expected_target] {
            assert_eq!(serde_json::from_value::<changeset::ChangesetTarget>(json!(target)).expect("a target"), target);
        }
        assert_eq!(settings(&pool(json!({"driver": "None"}))), None);
    }

    #[test]
    fn each_item_has_a_branch_that_git_accepts() {
        let of = |template: Value, item: &str| branch(&pool(json!({"driver": "Git", "branch": template})).spec, "coders-1", "coders", item);
        assert_eq!(of(Value::Null, "fix-1").as_deref(), Some("spillway/fix-1"));
        assert_eq!(of(json!("{pool}/{agent}/{item}"), "fix-1").as_deref(), Some("coders/coders-1/fix-1"));
        assert_eq!(of(json!("refs/heads/next"), "fix-1").as_deref(), Some("next"));
        assert_eq!(of(json!("refs/tags/next"), "fix-1"), None, "a tag is no branch");
        assert_eq!(of(json!("a..b"), "fix-1"), None);
        let locked = of(Value::Null, "fix.lock").expect("a branch");
        assert!(locked.starts_with("spillway/fix.lock-") && locked.len() == "spillway/fix.lock-".len() + ITEM_HASH_DIGITS, "{locked}");
        let (one, other) = (format!("{}a", "x".repeat(252)), format!("{}b", "x".repeat(252)));
        let long = of(Value::Null, &one).expect("a branch");
        assert_ne!(Some(&long), of(Value::Null, &other).as_ref());
        assert!(refs::is_valid(&format!("{BRANCHES}{long}")), "{long}");
        assert_eq!(branch(&pool(json!({})).spec, "a", "p", "i"), None);
    }

    #[test]
    fn a_branch_that_is_none_is_named_with_its_field() {
        let of = |template: &str| invalid_branch(&pool(json!({"driver": "Git", "branch": template})).spec);
        for good in ["spillway/{item}", "{item}", "{pool}/{agent}/{item}", "refs/heads/next", "next"] {
            assert_eq!(of(good), None, "{good}");
        }
        for (bad, words) in [
            ("agents/*", "a branch has no *"),
            ("{items}/x", "placeholder"),
            ("a..b", "no ref can have such a name"),
            ("{item}.lock", "no ref can have such a name"),
            ("refs/tags/{item}", "this is no branch"),
            (&format!("{}{{agent}}{{pool}}{{item}}", "x".repeat(150)), "too long"),
        ] {
            let message = of(bad).unwrap_or_default();
            assert!(message.starts_with("spec.sandbox.changeset.branch: ") && message.contains(words), "{bad}: {message}");
        }
        assert_eq!(invalid_branch(&pool(json!({"driver": "None", "branch": "*"})).spec), None);
    }

    #[test]
    fn only_agents_in_pods_of_such_a_pool_have_changesets() {
        let (inside, outside, with) = (agent(Value::Null), agent(json!({"user": "alice"})), pool(json!({"driver": "Git"})));
        assert!(has_changesets(&inside, &with) && !has_changesets(&outside, &with));
        assert!(!has_changesets(&inside, &pool(json!({}))));
        let open = opened(&inside, &with, "fix-1", 3).expect("a changeset");
        assert_eq!(json!(open), json!({"state": "Open", "epoch": 3, "remote": "https://git.example.com/a", "branch": "spillway/fix-1"}));
        assert_eq!((opened(&outside, &with, "fix-1", 3), opened(&inside, &pool(json!({})), "fix-1", 3)), (None, None));
    }

    #[test]
    fn an_attempt_keeps_the_branch_that_it_began_with() {
        let (inside, with) = (agent(Value::Null), pool(json!({"driver": "Git", "branch": "new/{item}"})));
        let begun = entry(json!({"changeset": {"state": "Open", "epoch": 1, "branch": "old/fix-1"}}));
        assert_eq!(branch_of(&inside, &with, &begun, "fix-1").as_deref(), Some("old/fix-1"), "the template was changed meanwhile");
        for status in [json!({}), json!({"changeset": {"state": "Discarded", "epoch": 1, "branch": "old/fix-1"}})] {
            assert_eq!(branch_of(&inside, &with, &entry(status), "fix-1").as_deref(), Some("new/fix-1"));
        }
        assert_eq!(branch_of(&agent(json!({"user": "alice"})), &with, &begun, "fix-1"), None);
    }

    #[test]
    fn a_report_says_what_was_committed_and_is_believed_of_agents_with_changesets_alone() {
        let report = |commit: Option<&str>| ChangesetReport {
            base: "b".into(),
            commit: commit.map(str::to_owned),
            branch: "reported".into(),
            folder: String::new(),
            files: 2,
            insertions: u64::MAX,
            deletions: 1,
        };
        let (with, without) = (pool(json!({"driver": "Git"})).spec, pool(json!({})).spec);
        let done = completed(false, &with, 3, report(Some("c")), Some("spillway/fix-1".into())).expect("a changeset");
        let expected = json!({"state": "Committed", "epoch": 3, "remote": "https://git.example.com/a", "branch": "spillway/fix-1",
            "base": "b", "commit": "c", "files": 2, "insertions": i64::MAX, "deletions": 1});
        assert_eq!(json!(done), expected);
        let same = completed(false, &with, 3, report(None), None).expect("a changeset");
        let expected = json!({"state": "Discarded", "epoch": 3, "remote": "https://git.example.com/a", "branch": "reported", "base": "b",
            "message": "no file was changed"});
        assert_eq!(json!(same), expected);
        assert!(completed(false, &without, 3, report(Some("c")), Some("b".into())).is_some(), "it began before the pool changed");
        assert_eq!(completed(false, &without, 3, report(Some("c")), None), None);
        assert_eq!(completed(true, &with, 3, report(Some("c")), None), None);
    }

    #[test]
    fn changes_of_a_folder_name_the_folder_and_no_lines() {
        let (inside, outside, pool) = (agent(Value::Null), agent(json!({"user": "alice"})), folder_pool("sites/a"));
        let open = opened(&inside, &pool, "fix-1", 3).expect("a changeset");
        assert_eq!(json!(open), json!({"state": "Open", "epoch": 3, "folder": "data/sites/a"}));
        assert_eq!((folder_of(&inside, &pool).as_deref(), folder_of(&outside, &pool)), (Some("data/sites/a"), None));
        let item = entry(json!({"changeset": {"state": "Open", "epoch": 3, "folder": "data/sites/a"}}));
        assert_eq!(branch_of(&inside, &pool, &item, "fix-1"), None);
        let report = ChangesetReport {
            base: "b".into(),
            commit: Some("c".into()),
            folder: "data/sites/a".into(),
            files: 2,
            ..ChangesetReport::default()
        };
        let done = completed(false, &pool.spec, 3, report, item.open_changeset).expect("a changeset");
        let expected = json!({"state": "Committed", "epoch": 3, "folder": "data/sites/a", "base": "b", "commit": "c", "files": 2});
        assert_eq!(json!(done), expected);
    }

    #[test]
    fn reasons_are_those_that_pods_report() {
        assert_eq!(convert::CONFLICT_REASON, reasons::CHANGESET_CONFLICT);
        assert_eq!(signals(reasons::PROTECTED_PATH), [Signal::BadChangeset, Signal::RuleViolated(Violation::ForbiddenPath)]);
        assert_eq!(signals(reasons::CHANGESET_NOT_VERIFIED), [Signal::BadChangeset]);
        assert!(signals(reasons::CHANGESET_CONFLICT).is_empty() && signals("Exited").is_empty());
    }
}
