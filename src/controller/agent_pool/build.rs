//! The Agents of a pool. Pure: the same pool and number always give the same Agent.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use crate::api::agent::ExternalProcess;
use crate::api::owner::owner;
use crate::api::shared::LocalRef;
use crate::api::{Agent, AgentPool, AgentSpec, names};

/// The Agent with this number.
pub fn agent(pool: &AgentPool, number: i64) -> Agent {
    let uid = pool.metadata.uid.as_deref().unwrap_or_default();
    let mut agent = member(pool, names::agent_name(&pool.name_any(), uid, number));
    agent.spec.sequence = Some(number);
    agent
}

/// The Agent that `parent`, whose pod has the uid `parent_uid`, requests under `key`. It does not count for the pool's
/// min and max. The same key gives the same Agent.
pub fn child_agent(pool: &AgentPool, parent: &Agent, parent_uid: &str, key: &str, display_name: Option<&str>) -> Agent {
    let mut agent = member(pool, names::child_name(&pool.name_any(), parent_uid, key));
    agent.spec.manual = Some(true);
    agent.spec.parent_ref = Some(LocalRef { name: parent.name_any() });
    if let Some(name) = display_name {
        agent.spec.display_name = Some(name.to_owned());
    }
    agent.metadata.labels.get_or_insert_default().insert(names::PARENT_UID_LABEL.to_owned(), parent_uid.to_owned());
    agent
}

/// The Agent of a process outside the cluster that `user` registers under `key`. It does not count for the pool's min
/// and max. The same user and key give the same Agent.
pub fn external_agent(pool: &AgentPool, user: &str, key: &str, display_name: Option<&str>) -> Agent {
    let uid = pool.metadata.uid.as_deref().unwrap_or_default();
    let mut agent = member(pool, names::external_name(&pool.name_any(), uid, user, key));
    agent.spec.external = Some(ExternalProcess { user: user.to_owned() });
    if let Some(name) = display_name {
        agent.spec.display_name = Some(name.to_owned());
    }
    agent
}

fn member(pool: &AgentPool, name: String) -> Agent {
    let uid = pool.metadata.uid.clone().unwrap_or_default();
    let spec = AgentSpec {
        pool_ref: LocalRef { name: pool.name_any() },
        display_name: Some(names::display_name(&name)),
        sequence: None,
        parent_ref: None,
        manual: None,
        paused: None,
        resume_pause: None,
        tool_approvals: None,
        hibernated: None,
        resources: None,
        external: None,
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
            "metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"type": "free", "agent": {"image": "x", "command": ["y"]}}}))
        .expect("a pool");
        let made = agent(&pool, 3);
        assert_eq!(made, agent(&pool, 3));
        assert_eq!(made.spec.sequence, Some(3));
        assert!(names::is_agent_of(&made.name_any(), 3, "p", "u"));
        let outside = external_agent(&pool, "alice", "k", None);
        assert_eq!(outside.spec.external.as_ref().map(|process| process.user.as_str()), Some("alice"));
        assert_eq!((outside.spec.sequence, outside.name_any() == external_agent(&pool, "bob", "k", None).name_any()), (None, false));
        pool.metadata.uid = Some("other".into());
        assert_ne!(agent(&pool, 3).name_any(), made.name_any(), "a pool made again under its name has other agents");
    }
}
