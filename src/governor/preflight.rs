//! Whether an agent is fit for work, by its report and by the preflight settings of its pool: converts custom resources
//! to the facts of `policy::preflight`. Pure.

use super::live::View;
use super::sandbox_offer::reported;
use crate::api::agent_pool::{Dialect, GitWorkspace};
use crate::api::conditions::{reasons, types};
use crate::api::{Agent, AgentPoolSpec};
use crate::controller::conditions::find;
use crate::controller::program_files::{FileCopy, copies};
use crate::policy::preflight::{Command, Facts, Verdict, judge};
use crate::policy::work::requires::origin;
use crate::wire::agent::{Preflight, PreflightState};
use spillway_conversion::pool;

/// The verdict on `agent`, from its view in memory and the spec of its pool.
pub fn verdict(agent: &Agent, view: Option<&View>, spec: Option<&AgentPoolSpec>) -> Verdict {
    let status = agent.status.as_ref();
    let report = view.and_then(|view| view.report.as_ref()).map(|(report, _)| report);
    if report.is_none()
        && let Some(failed) =
            status.and_then(|status| find(&status.conditions, types::READY)).filter(|ready| ready.reason == PREFLIGHT_FAILED_REASON)
    {
        // A leader that has no report yet uses the result that the previous leader stored.
        return Verdict::Failed(failed.message.clone());
    }
    // The program does not start: the pod ends as soon as the agent has said so.
    let registered = view.and_then(|view| view.sandbox.as_ref()?.unavailable.as_ref());
    if let Some(unavailable) = registered.or(report.and_then(|report| report.unavailable.as_ref())) {
        return Verdict::Failed(unavailable.message.clone());
    }
    let command = match report.and_then(|report| report.preflight.as_ref()) {
        None => Command::NotReported,
        Some(Preflight { state: PreflightState::Pending, message: _ }) => Command::Pending,
        Some(Preflight { state: PreflightState::Passed, message: _ }) => Command::Passed,
        Some(Preflight { state: PreflightState::Failed, message }) => Command::Failed(message.clone()),
    };
    let missing = reported(agent, view).map(|(_, missing)| missing);
    let asked = spec.and_then(|spec| spec.preflight.as_ref()?.require_sandbox);
    // Agents outside the cluster have no sandbox. A pool that accepts them accepts that.
    let require_sandbox = if agent.spec.external.is_some() { Some(false) } else { asked };
    judge(&Facts { command, require_sandbox, missing: missing.as_deref() })
}

/// The condition reason of a failed preflight.
pub const PREFLIGHT_FAILED_REASON: &str = reasons::PREFLIGHT_FAILED;

/// Time limit of the preflight with a clone of a repository.
const CLONE_SECONDS: u32 = 900;
/// The program that clones.
const GIT: &str = "git";
/// Path of the `spillway` command in every agent's container.
const SPILLWAY_COMMAND_PATH: &str = "/spillway/bin/spillway";

/// The command that runs in an agent's container before its program: the checks of the pool's preflight, then the
/// pool's own command. The pod runs it, so that it sees the same environment as the program. Empty if there is nothing
/// to run.
pub fn command(spec: &AgentPoolSpec) -> Vec<String> {
    let own = spec.agent.preflight_command.clone().unwrap_or_default();
    let preflight = spec.preflight.clone().unwrap_or_default();
    let entries = spec.models.as_deref().unwrap_or_default();
    let mut checks = Vec::new();
    // The workspace is cloned for each item, by the git of the image.
    let for_items = spec.git_changeset().is_some() && !preflight.tools.iter().flatten().any(|tool| tool == GIT);
    for tool in preflight.tools.iter().flatten().map(String::as_str).chain(for_items.then_some(GIT)) {
        checks.extend(["--tool".to_owned(), tool.to_owned()]);
    }
    for toolset in preflight.toolsets.iter().flatten() {
        let programs = toolset.programs.as_deref().unwrap_or_default();
        checks.extend(["--toolset".to_owned(), format!("{}={}", toolset.name, programs.join(","))]);
    }
    for entry in entries.iter().filter(|_| preflight.models == Some(true)) {
        checks.extend(["--model".to_owned(), format!("{}={}", entry.name, dialect(entry.dialect))]);
    }
    for url in preflight.urls.iter().flatten() {
        let serves = |of_entry: &str| origin(of_entry) == origin(url);
        // A pool with a URL that has no entry creates no agents.
        if let Some(entry) = entries.iter().find(|entry| serves(&entry.origin)) {
            checks.extend(["--url".to_owned(), format!("{}={}={url}", entry.name, dialect(entry.dialect))]);
        }
    }
    if let Some(git) = git(spec) {
        checks.extend(["--clone".to_owned(), git.remote.clone()]);
        checks.extend(git.ref_.iter().flat_map(|revision| ["--ref".to_owned(), revision.clone()]));
        checks.extend(git.depth.iter().flat_map(|depth| ["--depth".to_owned(), depth.to_string()]));
        // The clone may have other files at their paths.
        let files = copies(spec).filter(|copy| copy.in_workspace);
        checks.extend(files.flat_map(|FileCopy { from, to, .. }| ["--file".to_owned(), from, to]));
    }
    if checks.is_empty() {
        return own;
    }
    let mut words = vec![SPILLWAY_COMMAND_PATH.to_owned(), "preflight".to_owned()];
    words.extend(checks);
    if !own.is_empty() {
        words.push("--".to_owned());
        words.extend(own);
    }
    words
}

/// The time limit of the command. None: the usual one, which is short for a clone.
pub fn seconds(spec: &AgentPoolSpec) -> Option<u32> {
    git(spec).map(|_| CLONE_SECONDS)
}

/// The repository that agents clone before their program starts. With changesets it is cloned for each item instead.
fn git(spec: &AgentPoolSpec) -> Option<&GitWorkspace> {
    spec.workspace.as_ref()?.git.as_ref().filter(|_| spec.git_changeset().is_none())
}

fn dialect(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Anthropic => "Anthropic",
        Dialect::OpenAIChat => "OpenAIChat",
        Dialect::OpenAIResponses => "OpenAIResponses",
        Dialect::Gemini => "Gemini",
    }
}

/// Why no agent of a pool with this spec can pass the preflight, if so. Such a pool creates no agents.
pub fn unmeetable_reason(spec: &AgentPoolSpec) -> Option<String> {
    let preflight = spec.preflight.as_ref()?;
    let offer = pool::pool_offer(spec);
    let unreached: Vec<&str> = preflight.urls.iter().flatten().filter(|url| !offer.reaches(url)).map(String::as_str).collect();
    if !unreached.is_empty() {
        let urls = unreached.join(", ");
        return Some(format!("{urls} (spec.preflight.urls) cannot be checked: only the origins in spec.models can"));
    }
    let listed = |name: &str| spec.toolsets.iter().flatten().any(|listed| listed.name == name);
    if let Some(toolset) = preflight.toolsets.iter().flatten().find(|toolset| !listed(&toolset.name)) {
        let name = &toolset.name;
        return Some(format!("Toolset/{name} (spec.preflight.toolsets) cannot be checked: add it to spec.toolsets"));
    }
    let asks_none = preflight.models == Some(true) && spec.models.as_ref().is_none_or(Vec::is_empty);
    asks_none.then(|| "spec.preflight.models is true and spec.models is empty: there is no model to check".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::agent::{Program, Report, Sandbox};
    use crate::wire::sandbox::{SandboxUnavailable, UnavailableReason};
    use serde_json::{Value, json};

    fn agent(status: Value) -> Agent {
        serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Agent", "metadata": {"name": "a"}, "spec": {"poolRef": {"name": "p"}}, "status": status})).expect("an Agent")
    }
    fn view(report: Option<Option<PreflightState>>, missing: Option<&[&str]>) -> View {
        let preflight = |state| Preflight { state, message: "no login".into() };
        let report = report.map(|state| Report { preflight: state.map(preflight), ..Report::of(Program::Waiting) });
        View {
            report: report.map(|report| (report, jiff::Timestamp::UNIX_EPOCH)),
            sandbox: missing.map(|missing| Sandbox {
                tier: "Pod".into(),
                missing: missing.iter().map(|name| (*name).to_owned()).collect(),
                unavailable: None,
            }),
            ..View::well()
        }
    }
    fn spec(preflight: Value) -> AgentPoolSpec {
        let spec = json!({"type": "free", "agent": {"image": "x", "command": ["y"]}, "preflight": preflight});
        serde_json::from_value(spec).expect("a spec")
    }

    #[test]
    fn what_it_reported_decides_and_before_that_what_was_stored() {
        let failed = json!([{"type": "Ready", "status": "False", "reason": "PreflightFailed", "message": "as stored", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        let stored = agent(json!({"phase": "Running", "conditions": failed}));
        let of = |view: Option<&View>| verdict(&stored, view, None);
        let as_stored = Verdict::Failed("as stored".into());
        assert_eq!((of(None), of(Some(&view(None, None)))), (as_stored.clone(), as_stored), "registered is not reported");
        assert_eq!(of(Some(&view(Some(None), None))), Verdict::Passed);
        assert_eq!(of(Some(&view(Some(Some(PreflightState::Passed)), None))), Verdict::Passed);
        assert_eq!(of(Some(&view(Some(Some(PreflightState::Pending)), None))), Verdict::Pending);
        assert_eq!(of(Some(&view(Some(Some(PreflightState::Failed)), None))), Verdict::Failed("no login".into()));
        assert_eq!(verdict(&agent(json!({})), None, None), Verdict::Passed, "unknown passes");
    }

    #[test]
    fn an_agent_whose_sandbox_cannot_be_prepared_gets_no_work() {
        let unavailable = SandboxUnavailable { reason: UnavailableReason::SandboxNotPrepared, message: "no settings".into() };
        let (mut of_sidecar, mut of_supervisor) = (view(None, Some(&[])), view(Some(Some(PreflightState::Passed)), None));
        if let (Some(sandbox), Some((report, _))) = (of_sidecar.sandbox.as_mut(), of_supervisor.report.as_mut()) {
            (sandbox.unavailable, report.unavailable) = (Some(unavailable.clone()), Some(unavailable));
        }
        for view in [of_sidecar, of_supervisor] {
            assert_eq!(verdict(&agent(json!({})), Some(&view), None), Verdict::Failed("no settings".into()));
        }
    }

    fn pool(extra: Value) -> AgentPoolSpec {
        let mut spec = json!({"type": "free", "agent": {"image": "x", "command": ["y"], "preflightCommand": ["test", "-e", "x"]},
            "models": [{"name": "claude", "dialect": "Anthropic", "origin": "https://a.example.org"},
                {"name": "gpt", "dialect": "OpenAIChat", "origin": "https://b.example.org"}]});
        spec.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
        serde_json::from_value(spec).expect("a spec")
    }

    #[test]
    fn a_repository_is_cloned_before_the_pools_own_command_and_files_of_the_pool_are_put_back() {
        let file = |path: &str| json!({"path": path, "configMapKeyRef": {"name": "c", "key": "k"}});
        let agent = json!({"image": "x", "command": ["y"], "preflightCommand": ["check"], "files": [file(".codex/config"), file("workspace/AGENTS.md")]});
        let spec = pool(json!({"agent": agent, "workspace": {"git": {"remote": "https://git.example.com/a", "ref": "main", "depth": 5}}}));
        let expected = "/spillway/bin/spillway preflight --clone https://git.example.com/a --ref main --depth 5 \
                        --file /spillway/files/1/content /workspace/AGENTS.md -- check";
        assert_eq!((command(&spec).join(" ").as_str(), seconds(&spec)), (expected, Some(CLONE_SECONDS)));
        assert_eq!(seconds(&pool(json!({}))), None);
    }

    #[test]
    fn with_changesets_nothing_is_cloned_before_an_item_and_git_is_looked_for_once() {
        let of = |tools: Value| {
            let spec = pool(json!({"workspace": {"git": {"remote": "https://git.example.com/a"}}, "preflight": {"tools": tools},
                "sandbox": {"changeset": {"driver": "Git"}}}));
            (command(&spec).join(" "), seconds(&spec))
        };
        assert_eq!(of(json!([])), ("/spillway/bin/spillway preflight --tool git -- test -e x".to_owned(), None));
        assert_eq!(of(json!(["make"])).0, "/spillway/bin/spillway preflight --tool make --tool git -- test -e x");
        assert_eq!(of(json!(["git", "make"])).0, "/spillway/bin/spillway preflight --tool git --tool make -- test -e x");
    }

    #[test]
    fn what_a_preflight_names_is_checked_before_the_pools_own_command() {
        let of = |preflight: Value| command(&pool(json!({"preflight": preflight}))).join(" ");
        assert_eq!(of(json!({"models": false, "urls": [], "tools": []})), "test -e x");
        let all = json!({"models": true, "urls": ["https://B.example.org/v1"], "tools": ["git"]});
        let expected = "/spillway/bin/spillway preflight --tool git --model claude=Anthropic --model gpt=OpenAIChat \
                        --url gpt=OpenAIChat=https://B.example.org/v1 -- test -e x";
        assert_eq!(of(all), expected);
        let toolsets = json!({"toolsets": [{"name": "deploy", "programs": ["deploy", "git_push"]}, {"name": "data"}]});
        assert_eq!(of(toolsets), "/spillway/bin/spillway preflight --toolset deploy=deploy,git_push --toolset data= -- test -e x");
        let alone = pool(json!({"agent": {"image": "x", "command": ["y"]}, "preflight": {"tools": ["git"]}}));
        assert_eq!(command(&alone).join(" "), "/spillway/bin/spillway preflight --tool git");
    }

    #[test]
    fn a_pool_whose_agents_could_never_pass_makes_none() {
        let of = |extra: Value| unmeetable_reason(&pool(extra));
        assert_eq!(of(json!({"preflight": {"models": true, "urls": ["https://a.example.org/x"]}})), None);
        assert!(of(json!({"preflight": {"urls": ["https://c.example.org"]}})).is_some_and(|words| words.contains("https://c.example.org")));
        let toolsets = json!({"toolsets": [{"name": "deploy"}]});
        assert_eq!(of(json!({"preflight": toolsets, "toolsets": [{"name": "deploy"}]})), None);
        assert!(of(json!({"preflight": toolsets})).is_some_and(|words| words.contains("Toolset/deploy (spec.preflight.toolsets)")));
        assert!(of(json!({"preflight": {"models": true}, "models": []})).is_some_and(|words| words.contains("spec.models is empty")));
        assert_eq!(of(json!({})), None);
    }

    #[test]
    fn the_guarantees_of_nodes_are_those_that_pods_report() {
        use crate::wire::sandbox::{ABSTRACT_SOCKETS, AGENT_STRICT, LANDLOCK, SIGNALS, TCP_PORTS};
        assert_eq!(crate::policy::preflight::NODE_GUARANTEES, [LANDLOCK, TCP_PORTS, SIGNALS, ABSTRACT_SOCKETS, AGENT_STRICT]);
    }

    #[test]
    fn an_agent_outside_the_cluster_works_without_a_sandbox() {
        let mut outside = agent(json!({}));
        outside.spec.external = Some(crate::api::agent::ExternalProcess { user: "alice".into() });
        let nothing = view(Some(None), Some(&["Pod", "NetworkPolicy"]));
        assert_eq!(verdict(&outside, Some(&nothing), Some(&spec(json!({})))), Verdict::Passed);
        assert!(matches!(verdict(&agent(json!({})), Some(&nothing), Some(&spec(json!({})))), Verdict::Failed(_)), "a pod needs one");
    }

    #[test]
    fn a_sandbox_that_a_leader_before_us_was_told_of_counts() {
        let stored = agent(json!({"sandbox": {"tier": "Pod", "missing": ["Landlock"]}}));
        let strict = spec(json!({"requireSandbox": true}));
        assert!(matches!(verdict(&stored, None, Some(&strict)), Verdict::Failed(words) if words.contains("Landlock")));
        let whole = view(Some(None), Some(&[]));
        assert_eq!(verdict(&stored, Some(&whole), Some(&strict)), Verdict::Passed, "what it reported since counts more");
        for lenient in [json!({}), json!({"requireSandbox": false})] {
            assert_eq!(verdict(&stored, None, Some(&spec(lenient))), Verdict::Passed);
        }
        assert_eq!(verdict(&agent(json!({})), None, Some(&strict)), Verdict::Pending);
    }
}
