//! The writes of `pause` and `resume` to an item or a queue, and the check whether its status confirms them. Pure.

use serde_json::{Map, Value, json};

use super::request::{PauseRequest, Verb};
use crate::api::conditions::types;
use crate::api::{WorkItem, WorkQueue};
use crate::find;
use crate::policy::work::Phase;
use crate::policy::work::item::reasons;
use crate::wait::Check;
use crate::work::life;
use crate::write::Decision;
use spillway_conversion::work as convert;

/// Decides the write to an item.
pub fn decide_item(verb: Verb, item: &WorkItem) -> Decision {
    let (spec, record) = (convert::spec(item), convert::record(item));
    if record.phase.ended() {
        return Decision::Refuse(format!("has ended ({})", record.phase.name()));
    }
    if item.metadata.deletion_timestamp.is_some() {
        return Decision::Refuse("is being deleted".to_owned());
    }
    match verb {
        Verb::Pause if spec.suspend => Decision::Leave("spec.suspend is true already".to_owned()),
        Verb::Pause => Decision::Write(json!({"suspend": true})),
        Verb::Resume if record.phase == Phase::Suspended && record.reason.as_deref() == Some(reasons::RESTORED) => Decision::Refuse(
            "was restored from a backup, and restored items do not start automatically: `kubectl spillway redrive` starts it".to_owned(),
        ),
        Verb::Resume => {
            let mut body = Map::new();
            if spec.suspend {
                body.insert("suspend".into(), Value::Null);
            }
            let paused = record.phase == Phase::Paused;
            if paused && record.pauses > 0 && spec.resume_pause < record.pauses {
                body.insert("resumePause".into(), json!(record.pauses));
            }
            match body.is_empty() {
                true if paused => Decision::Leave("a resume is requested already".to_owned()),
                true => Decision::Leave("it is not paused".to_owned()),
                false => Decision::Write(body.into()),
            }
        }
    }
}

/// A note on an item that an agent holds: the pause does not stop the agent.
pub fn note(verb: Verb, item: &WorkItem) -> Option<String> {
    let agent = life::agent_of(item).filter(|_| verb == Verb::Pause)?;
    Some(format!(
        "agent {agent} holds the item and continues: the pause counts when the item comes back; `kubectl spillway pause {agent}` pauses the agent"
    ))
}

/// Decides the write to a queue.
pub fn decide_queue(verb: Verb, queue: &WorkQueue) -> Decision {
    if queue.metadata.deletion_timestamp.is_some() {
        return Decision::Refuse("is being deleted".to_owned());
    }
    match (verb, queue.spec.suspend == Some(true)) {
        (Verb::Pause, true) => Decision::Leave("spec.suspend is true already".to_owned()),
        (Verb::Pause, false) => Decision::Write(json!({"suspend": true})),
        (Verb::Resume, true) => Decision::Write(json!({"suspend": null})),
        (Verb::Resume, false) => Decision::Leave("it is not paused".to_owned()),
    }
}

/// Whether the status of an item confirms the request. `Err` is the reason why it never can.
pub fn check_item_status(verb: Verb, item: &WorkItem, asked: &PauseRequest) -> Check<Result<(), String>> {
    let phase = life::phase(item);
    if phase.ended() {
        return Check::Done(Err(format!("has ended: {}", life::state(item))));
    }
    let looked = item.status.as_ref().and_then(|status| status.observed_generation).is_some_and(|seen| seen >= asked.generation);
    let held = matches!(phase, Phase::Suspended | Phase::Paused);
    let wanted = match verb {
        Verb::Pause => phase == Phase::Suspended,
        Verb::Resume => !held,
    };
    if wanted && looked { Check::Done(Ok(())) } else { Check::NotYet(life::state(item)) }
}

/// Whether the status of a queue confirms the request.
pub fn check_queue_status(verb: Verb, queue: &WorkQueue, asked: &PauseRequest) -> Check<Result<(), String>> {
    let status = queue.status.clone().unwrap_or_default();
    let Some(ready) = find::condition(&status.conditions, types::READY) else {
        return Check::NotYet("the operator has not observed it yet".to_owned());
    };
    let looked = ready.observed_generation.or(status.observed_generation).is_some_and(|seen| seen >= asked.generation);
    let suspended = ready.reason == "Suspended";
    if looked && suspended == (verb == Verb::Pause) {
        return Check::Done(Ok(()));
    }
    Check::NotYet(format!("{} is {}, {}", ready.type_, ready.status, find::reason_and_message(ready)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(spec: &Value, status: &Value) -> WorkItem {
        let mut all = json!({"queueRef": {"name": "q"}});
        spec.as_object().into_iter().flatten().for_each(|(key, value)| all[key] = value.clone());
        serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkItem",
            "metadata": {"name": "i", "uid": "u", "generation": 3}, "spec": all, "status": status}))
        .expect("a WorkItem")
    }
    fn queue(spec: &Value, status: &Value) -> WorkQueue {
        serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkQueue",
            "metadata": {"name": "q", "uid": "u", "generation": 3}, "spec": spec, "status": status}))
        .expect("a WorkQueue")
    }

    #[test]
    fn only_what_would_change_is_written() {
        let leave = |words: &str| Decision::Leave(words.to_owned());
        let held = json!({"phase": "Paused", "pauses": 2, "lease": {"holder": "p", "agent": "a-1", "leaseTransitions": 1}});
        let cases = [
            (Verb::Pause, json!({}), json!({"phase": "Ready"}), Decision::Write(json!({"suspend": true}))),
            (Verb::Pause, json!({"suspend": true}), json!({}), leave("spec.suspend is true already")),
            (Verb::Pause, json!({}), json!({"phase": "Failed"}), Decision::Refuse("has ended (Failed)".into())),
            (Verb::Resume, json!({"suspend": true}), json!({"phase": "Suspended"}), Decision::Write(json!({"suspend": null}))),
            (Verb::Resume, json!({}), json!({"phase": "Ready"}), leave("it is not paused")),
            (Verb::Resume, json!({}), held.clone(), Decision::Write(json!({"resumePause": 2}))),
            (
                Verb::Resume,
                json!({"suspend": true, "resumePause": 1}),
                held.clone(),
                Decision::Write(json!({"suspend": null, "resumePause": 2})),
            ),
            (Verb::Resume, json!({"resumePause": 2}), held.clone(), leave("a resume is requested already")),
        ];
        for (verb, spec, status, expected) in cases {
            assert_eq!(decide_item(verb, &item(&spec, &status)), expected, "{verb:?} {spec} {status}");
        }
        let restored = item(&json!({}), &json!({"phase": "Suspended", "reason": "Restored"}));
        assert!(matches!(decide_item(Verb::Resume, &restored), Decision::Refuse(words) if words.contains("redrive")));
        assert!(note(Verb::Pause, &item(&json!({}), &held)).is_some_and(|words| words.contains("kubectl spillway pause a-1")));
        assert_eq!(note(Verb::Resume, &item(&json!({}), &held)), None);
        assert_eq!(decide_queue(Verb::Pause, &queue(&json!({}), &json!({}))), Decision::Write(json!({"suspend": true})));
        assert_eq!(decide_queue(Verb::Resume, &queue(&json!({"suspend": true}), &json!({}))), Decision::Write(json!({"suspend": null})));
        assert_eq!(decide_queue(Verb::Resume, &queue(&json!({}), &json!({}))), leave("it is not paused"));
    }

    #[test]
    fn only_an_answer_to_what_was_written_counts() {
        let asked = PauseRequest { generation: 3, ..PauseRequest::default() };
        let look = |verb, status: Value| check_item_status(verb, &item(&json!({}), &status), &asked);
        assert_eq!(look(Verb::Pause, json!({"phase": "Suspended", "observedGeneration": 3})), Check::Done(Ok(())));
        assert_eq!(look(Verb::Pause, json!({"phase": "Ready", "observedGeneration": 3})), Check::NotYet("Ready".into()));
        assert_eq!(look(Verb::Resume, json!({"phase": "Ready", "observedGeneration": 2})), Check::NotYet("Ready".into()));
        assert_eq!(look(Verb::Resume, json!({"phase": "Leased", "observedGeneration": 3})), Check::Done(Ok(())));
        assert!(matches!(look(Verb::Resume, json!({"phase": "Cancelled"})), Check::Done(Err(_))));
        let ready = |reason: &str, generation: i64| {
            let condition = json!({"type": "Ready", "status": "True", "reason": reason, "message": "m", "observedGeneration": generation, "lastTransitionTime": "2026-01-01T00:00:00Z"});
            queue(&json!({}), &json!({"conditions": [condition]}))
        };
        assert_eq!(check_queue_status(Verb::Pause, &ready("Suspended", 3), &asked), Check::Done(Ok(())));
        assert_eq!(check_queue_status(Verb::Pause, &ready("Suspended", 2), &asked), Check::NotYet("Ready is True, Suspended: m".into()));
        assert_eq!(check_queue_status(Verb::Resume, &ready("Serving", 3), &asked), Check::Done(Ok(())));
        assert!(matches!(check_queue_status(Verb::Resume, &queue(&json!({}), &json!({})), &asked), Check::NotYet(_)));
    }
}
