//! The writes of `pause` and `resume` to an agent, and the check whether its status confirms them. Pure.

use serde_json::{Map, Value, json};

use super::request::{PAUSED_CONDITION, PauseRequest, Verb};
use crate::api::Agent;
use crate::api::agent::AgentPhase;
use crate::find;
use crate::wait::Check;
use crate::write::Decision;

/// Decides the write to the agent.
pub fn decide(verb: Verb, agent: &Agent) -> Decision {
    if let Some(phase) = find::phase(agent).filter(|phase| phase.ended()) {
        return Decision::Refuse(format!("has ended ({})", phase.name()));
    }
    if agent.metadata.deletion_timestamp.is_some() {
        return Decision::Refuse("is being deleted".to_owned());
    }
    let held = agent.spec.paused == Some(true);
    match verb {
        Verb::Pause if held => Decision::Leave("spec.paused is true already".to_owned()),
        Verb::Pause => Decision::Write(json!({"paused": true})),
        Verb::Resume => {
            let pauses = agent.status.as_ref().and_then(|status| status.pauses).filter(|pauses| *pauses > 0);
            let unanswered = pauses.filter(|pauses| agent.spec.resume_pause != Some(*pauses));
            let mut spec = Map::new();
            if held {
                spec.insert("paused".into(), Value::Null);
            }
            match (held || shows_paused(agent), unanswered) {
                (false, _) => Decision::Leave("it is not paused".to_owned()),
                (true, None) if !held => Decision::Leave("a resume is requested already".to_owned()),
                (true, unanswered) => {
                    spec.extend(unanswered.map(|pauses| ("resumePause".to_owned(), json!(pauses))));
                    Decision::Write(spec.into())
                }
            }
        }
    }
}

/// Whether the status shows a pause.
fn shows_paused(agent: &Agent) -> bool {
    let paused = agent.status.as_ref().and_then(|status| find::condition(&status.conditions, PAUSED_CONDITION));
    find::phase(agent) == Some(AgentPhase::Paused) || paused.is_some_and(|paused| paused.status == "True")
}

/// Whether the status of the agent confirms the request. `Err` is the reason why it never can.
pub fn check_status(verb: Verb, agent: &Agent, asked: &PauseRequest) -> Check<Result<(), String>> {
    if find::ended(agent) {
        return Check::Done(Err(format!("has ended: {}", find::state(agent))));
    }
    let status = agent.status.clone().unwrap_or_default();
    let Some(paused) = find::condition(&status.conditions, PAUSED_CONDITION) else {
        // An agent that was never paused may have no such condition.
        let looked = status.observed_generation.is_some_and(|generation| generation >= asked.generation);
        return match verb {
            Verb::Resume if looked && !shows_paused(agent) => Check::Done(Ok(())),
            Verb::Pause | Verb::Resume => Check::NotYet("the agent has no condition Paused yet".to_owned()),
        };
    };
    let wanted = match verb {
        Verb::Pause => "True",
        Verb::Resume => "False",
    };
    let looked = paused.observed_generation.or(status.observed_generation).is_some_and(|generation| generation >= asked.generation);
    if paused.status == wanted && looked {
        return Check::Done(Ok(()));
    }
    Check::NotYet(format!("{PAUSED_CONDITION} is {}, {}", paused.status, find::reason_and_message(paused)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(spec: &Value, status: Value) -> Agent {
        let mut spec = spec.clone();
        spec["poolRef"] = json!({"name": "p"});
        serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Agent",
            "metadata": {"name": "a", "uid": "u", "generation": 3}, "spec": spec, "status": status}))
        .expect("an Agent")
    }
    fn paused(status: &str, generation: i64) -> Value {
        json!([{"type": "Paused", "status": status, "reason": "R", "message": "m", "observedGeneration": generation, "lastTransitionTime": "2026-01-01T00:00:00Z"}])
    }

    #[test]
    fn only_what_would_change_is_written() {
        let write = Decision::Write;
        let leave = |words: &str| Decision::Leave(words.to_owned());
        let held = json!({"phase": "Paused", "pauses": 2, "conditions": paused("True", 3)});
        let cases = [
            (Verb::Pause, json!({}), json!({"phase": "Idle"}), write(json!({"paused": true}))),
            (Verb::Pause, json!({"paused": false}), json!({}), write(json!({"paused": true}))),
            (Verb::Pause, json!({}), held.clone(), write(json!({"paused": true}))),
            (Verb::Pause, json!({"paused": true}), json!({"phase": "Idle"}), leave("spec.paused is true already")),
            (Verb::Resume, json!({"paused": true}), json!({}), write(json!({"paused": null}))),
            (Verb::Resume, json!({"paused": true}), held.clone(), write(json!({"paused": null, "resumePause": 2}))),
            (Verb::Resume, json!({"paused": true, "resumePause": 2}), held.clone(), write(json!({"paused": null}))),
            (Verb::Resume, json!({"resumePause": 1}), held.clone(), write(json!({"resumePause": 2}))),
            (Verb::Resume, json!({"resumePause": 2}), held.clone(), leave("a resume is requested already")),
            (Verb::Resume, json!({}), json!({"phase": "Idle", "pauses": 2}), leave("it is not paused")),
            (Verb::Resume, json!({"paused": false}), json!({}), leave("it is not paused")),
            (Verb::Pause, json!({}), json!({"phase": "Stopped"}), Decision::Refuse("has ended (Stopped)".to_owned())),
        ];
        for (verb, spec, status, expected) in cases {
            assert_eq!(decide(verb, &agent(&spec, status.clone())), expected, "{verb:?} {spec} {status}");
        }
    }

    #[test]
    fn only_an_answer_to_what_was_written_counts() {
        let asked = PauseRequest { name: "a".into(), uid: "u".into(), generation: 3, ..PauseRequest::default() };
        let look = |verb, status| check_status(verb, &agent(&json!({}), status), &asked);
        assert_eq!(look(Verb::Pause, json!({"conditions": paused("True", 3)})), Check::Done(Ok(())));
        assert_eq!(look(Verb::Pause, json!({"conditions": paused("True", 2)})), Check::NotYet("Paused is True, R: m".into()));
        assert_eq!(look(Verb::Resume, json!({"conditions": paused("True", 3)})), Check::NotYet("Paused is True, R: m".into()));
        assert_eq!(look(Verb::Resume, json!({"conditions": paused("False", 4)})), Check::Done(Ok(())));
        assert_eq!(look(Verb::Resume, json!({"observedGeneration": 3, "phase": "Idle"})), Check::Done(Ok(())));
        assert!(matches!(look(Verb::Pause, json!({"observedGeneration": 3})), Check::NotYet(_)));
        assert!(matches!(look(Verb::Pause, json!({"phase": "ForceStopped"})), Check::Done(Err(_))));
    }
}
