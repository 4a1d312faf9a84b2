//! Whether an agent may be given work, as far as what it reported and what its pool asks for tell: the custom resource's
//! words turned into those of `policy::preflight`. Pure.

use super::live::View;
use crate::api::conditions::{reasons, types};
use crate::api::{Agent, AgentPoolSpec};
use crate::controller::conditions::find;
use crate::policy::preflight::{Command, Facts, Verdict, judge};
use crate::wire::agent::{Preflight, PreflightState};

/// What follows for `agent`, of which this is known, and whose pool asks for this.
pub fn verdict(agent: &Agent, view: Option<&View>, spec: Option<&AgentPoolSpec>) -> Verdict {
    let status = agent.status.as_ref();
    let report = view.and_then(|view| view.report.as_ref()).map(|(report, _)| report);
    if report.is_none()
        && let Some(failed) = status.and_then(|status| find(&status.conditions, types::READY)).filter(|ready| ready.reason == REASON)
    {
        // A leader that has not heard of it yet goes by what the one before it stored.
        return Verdict::Failed(failed.message.clone());
    }
    let command = match report.and_then(|report| report.preflight.as_ref()) {
        None => Command::NotTold,
        Some(Preflight { state: PreflightState::Pending, message: _ }) => Command::Pending,
        Some(Preflight { state: PreflightState::Passed, message: _ }) => Command::Passed,
        Some(Preflight { state: PreflightState::Failed, message }) => Command::Failed(message.clone()),
    };
    let reported = view.and_then(|view| view.sandbox.as_ref()).map(|sandbox| sandbox.missing.clone());
    let stored = || status.and_then(|status| status.sandbox.as_ref()).map(|sandbox| sandbox.missing.clone().unwrap_or_default());
    let missing = reported.or_else(stored);
    let require_sandbox = spec.and_then(|spec| spec.preflight.as_ref()?.require_sandbox);
    judge(&Facts { command, require_sandbox, missing: missing.as_deref() })
}

/// The reason under which a failure is shown.
pub const REASON: &str = reasons::PREFLIGHT_FAILED;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::agent::{Program, Report, Sandbox};
    use serde_json::{Value, json};

    fn agent(status: Value) -> Agent {
        serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Agent", "metadata": {"name": "a"}, "spec": {"poolRef": {"name": "p"}}, "status": status})).expect("an Agent")
    }
    fn view(report: Option<Option<PreflightState>>, missing: Option<&[&str]>) -> View {
        let preflight = |state| Preflight { state, message: "no login".into() };
        let report = report.map(|state| Report { preflight: state.map(preflight), ..Report::of(Program::Waiting) });
        View {
            report: report.map(|report| (report, jiff::Timestamp::UNIX_EPOCH)),
            sandbox: missing
                .map(|missing| Sandbox { tier: "Pod".into(), missing: missing.iter().map(|name| (*name).to_owned()).collect() }),
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
