//! The Agents of a pool. Pure: the same pool and number always give the same Agent.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use crate::api::shared::LocalRef;
use crate::api::{Agent, AgentPool, AgentSpec, names};
use crate::controller::agent::owner;

/// The Agent with this number.
pub fn agent(pool: &AgentPool, number: i64) -> Agent {
    let uid = pool.metadata.uid.clone().unwrap_or_default();
    let name = names::agent_name(&pool.name_any(), &uid, number);
    let spec = AgentSpec {
        pool_ref: LocalRef { name: pool.name_any() },
        display_name: Some(names::display_name(&name)),
        sequence: Some(number),
        parent_ref: None,
        manual: None,
        paused: None,
        resume_pause: None,
        resources: None,
    };
    Agent {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: pool.namespace(),
            labels: Some(names::pool_labels(&pool.name_any(), &uid, &pool.spec.type_)),
            owner_references: Some(vec![owner::<AgentPool>(&pool.metadata)]),
            finalizers: Some(vec![names::AGENT_FINALIZER.to_owned()]),
            ..ObjectMeta::default()
        },
        spec,
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_same_number_gives_the_same_agent_and_its_number_can_be_proved() {
        let mut pool: AgentPool = serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "AgentPool",
            "metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"type": "free", "agent": {"image": "x"}}}))
        .expect("a pool");
        let made = agent(&pool, 3);
        assert_eq!(made, agent(&pool, 3));
        assert_eq!(made.spec.sequence, Some(3));
        assert!(names::is_agent_of(&made.name_any(), 3, "p", "u"));
        pool.metadata.uid = Some("other".into());
        assert_ne!(agent(&pool, 3).name_any(), made.name_any(), "a pool made again under its name has other agents");
    }
}
