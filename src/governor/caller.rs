//! Whether a caller is the agent that it claims to be. The API server vouches for the uid of a pod, and it must be the
//! uid in our own create response. Names, labels and owners prove nothing. A process outside the cluster is an agent if
//! the user of its token registered that agent. The module also reads the stored desired state of an agent.

use crate::api::Agent;
use crate::api::conditions::types;
use crate::cluster::token::ExternalUser;
use crate::cluster::{Error, ObjectKey};
use crate::controller::Context;
use crate::controller::agent::is_given_up;
use crate::controller::conditions::find;
use crate::wire::agent::Directive;
use crate::wire::{Code, Refusal};

/// A pod that the API server vouched for, or a process outside the cluster, which states itself which agent it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The key of its Agent: a pod has the name of its Agent.
    pub key: ObjectKey,
    /// Its uid.
    pub uid: String,
    /// The gateway that the call came through.
    pub gateway: String,
    /// The user of a process outside the cluster, as the API server vouched for it.
    pub external: Option<ExternalUser>,
}

/// The Agent that `caller` is.
pub async fn identify(caller: &Caller, context: &Context) -> Result<Agent, Refusal> {
    let cached = context.stores.agent(&caller.key);
    let cached = cached.as_ref().and_then(|object| object.0.as_ref().ok());
    match judge(cached, caller) {
        Ok(()) => {}
        Err(refusal) if refusal.code == Code::AgentEnded => return Err(refusal),
        // The cache may lag behind a status that we wrote a moment ago.
        Err(_) => {
            let live = context.api::<Agent>(&caller.key.namespace).get_opt(&caller.key.name).await;
            let live = live.map_err(Error::of("reading an Agent")).map_err(|error| {
                tracing::warn!(%error, "a caller could not be identified");
                Refusal::unavailable("the API server did not answer; try again")
            })?;
            judge(live.as_ref(), caller)?;
            return live.ok_or_else(|| not_an_agent(caller));
        }
    }
    cached.cloned().ok_or_else(|| not_an_agent(caller))
}

/// Whether the agent is paused or is to be paused, by its stored object.
pub fn is_paused(agent: &Agent) -> bool {
    let conditions = agent.status.as_ref().map_or(&[][..], |status| &status.conditions);
    agent.spec.paused == Some(true) || find(conditions, types::PAUSED).is_some_and(|paused| paused.status == "True")
}

/// The desired state of an agent by its stored object. The reconciler of a new leader may not have looked at the agent
/// yet. Until then, an agent that is paused or leaves must get no item.
pub fn stored_directive(agent: &Agent) -> Directive {
    if agent.metadata.deletion_timestamp.is_some() {
        Directive::Drain
    } else if is_paused(agent) {
        Directive::Pause
    } else {
        Directive::Run
    }
}

fn not_an_agent(caller: &Caller) -> Refusal {
    let Caller { key, uid, gateway: _, external } = caller;
    let message = match external {
        None => format!("no Agent has a pod with the uid {uid}: only pods that Spillway created for an Agent may call"),
        Some(external) => format!(
            "user {} did not register Agent/{} (uid {uid}) for AgentPool/{}: only the user that registered an agent may call for it",
            external.user, key.name, external.pool
        ),
    };
    Refusal::new(Code::NotAnAgent, message)
}

/// Whether an agent has ended, or its end is decided.
pub fn is_over(agent: &Agent) -> bool {
    agent.has_ended() || agent.status.as_ref().is_some_and(is_given_up)
}

/// Whether `agent` is the caller and is alive.
fn judge(agent: Option<&Agent>, caller: &Caller) -> Result<(), Refusal> {
    let is = |agent: &Agent| agent.caller_uid() == Some(&caller.uid) && registered(agent, caller.external.as_ref());
    let Some(agent) = agent.filter(|agent| is(agent)) else { return Err(not_an_agent(caller)) };
    if is_over(agent) { Err(Refusal::new(Code::AgentEnded, "this agent has ended and may make no more calls")) } else { Ok(()) }
}

/// Whether this user registered `agent`, for the pool that the user may register agents of. A pod registers no agents.
fn registered(agent: &Agent, by: Option<&ExternalUser>) -> bool {
    match (&agent.spec.external, by) {
        (None, None) => true,
        (Some(external), Some(by)) => external.user == by.user && agent.spec.pool_ref.name == by.pool,
        (None, Some(_)) | (Some(_), None) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn agent(status: serde_json::Value) -> Agent {
        serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Agent", "metadata": {"name": "a"}, "spec": {"poolRef": {"name": "p"}}, "status": status})).expect("an Agent")
    }
    fn caller(uid: &str, external: Option<(&str, &str)>) -> Caller {
        let external = external.map(|(user, pool)| ExternalUser { user: user.into(), pool: pool.into(), enrols: false });
        Caller { key: ObjectKey { namespace: "n".into(), name: "a".into() }, uid: uid.into(), gateway: "g".into(), external }
    }
    fn code(agent: Option<&Agent>) -> Option<Code> {
        judge(agent, &caller("u", None)).err().map(|refusal| refusal.code)
    }

    #[test]
    fn an_agent_outside_the_cluster_is_spoken_for_by_its_user_alone() {
        let outside = |status: serde_json::Value| {
            let mut agent = agent(status);
            agent.metadata.uid = Some("own".into());
            agent.spec.external = Some(crate::api::agent::ExternalProcess { user: "alice".into() });
            agent
        };
        let living = outside(json!({"phase": "Idle"}));
        let code = |agent: &Agent, caller: &Caller| judge(Some(agent), caller).err().map(|refusal| refusal.code);
        assert_eq!(code(&living, &caller("own", Some(("alice", "p")))), None);
        assert_eq!(code(&living, &caller("own", Some(("bob", "p")))), Some(Code::NotAnAgent), "another user says its name");
        assert_eq!(code(&living, &caller("own", Some(("alice", "q")))), Some(Code::NotAnAgent), "a right on another pool");
        assert_eq!(code(&living, &caller("old", Some(("alice", "p")))), Some(Code::NotAnAgent), "one before of its name");
        assert_eq!(code(&living, &caller("own", None)), Some(Code::NotAnAgent), "a pod");
        let dressed = outside(json!({"phase": "Idle", "podRef": {"name": "a", "uid": "u"}}));
        assert_eq!(code(&dressed, &caller("u", None)), Some(Code::NotAnAgent), "a status makes no pod of it");
        let inside = agent(json!({"phase": "Idle", "podRef": {"name": "a", "uid": "u"}}));
        assert_eq!(code(&inside, &caller("u", Some(("alice", "p")))), Some(Code::NotAnAgent), "a pod's agent, from outside");
        let words = judge(Some(&living), &caller("own", Some(("bob", "p")))).expect_err("refused").message;
        assert!(words.contains("bob") && !words.contains("alice"), "whose it is is nobody else's business: {words}");
        assert_eq!(code(&outside(json!({"phase": "Stopped"})), &caller("own", Some(("alice", "p")))), Some(Code::AgentEnded));
    }

    #[test]
    fn only_the_recorded_pod_of_a_living_agent_is_it() {
        let pod = |uid: &str| json!({"name": "a", "uid": uid});
        assert_eq!(code(None), Some(Code::NotAnAgent));
        assert_eq!(code(Some(&agent(json!({})))), Some(Code::NotAnAgent), "nothing is recorded");
        assert_eq!(
            code(Some(&agent(json!({"podRef": pod("other"), "phase": "Running"})))),
            Some(Code::NotAnAgent),
            "a forged or a former pod"
        );
        assert_eq!(code(Some(&agent(json!({"podRef": pod("u"), "phase": "Spawning"})))), None);
        assert_eq!(code(Some(&agent(json!({"podRef": pod("u"), "phase": "Goodbye"})))), None, "it may finish");
        assert_eq!(code(Some(&agent(json!({"podRef": pod("u"), "phase": "Stopped"})))), Some(Code::AgentEnded));
        assert_eq!(code(Some(&agent(json!({"podRef": pod("u"), "phase": "ForceStopped"})))), Some(Code::AgentEnded));
        let given_up = json!([{"type": "GivenUp", "status": "True", "reason": "HeartbeatLost", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        let condemned = agent(json!({"podRef": pod("u"), "phase": "Stale", "conditions": given_up}));
        assert_eq!(code(Some(&condemned)), Some(Code::AgentEnded), "its end is decided");
        let unreachable = agent(json!({"podRef": pod("u"), "phase": "Stale"}));
        assert_eq!(code(Some(&unreachable)), None, "its node was not heard of, and it is: it lives");
    }

    #[test]
    fn who_is_paused_or_leaves_is_known_before_anybody_looked() {
        let paused = |status: &str| json!({"conditions": [{"type": "Paused", "status": status, "reason": "BudgetExhausted", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
        let asked = {
            let mut agent = agent(json!({}));
            agent.spec.paused = Some(true);
            agent
        };
        let leaves = |mut agent: Agent| {
            agent.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time");
            agent
        };
        let cases = [
            (agent(json!({})), Directive::Run),
            (agent(paused("False")), Directive::Run),
            (agent(paused("True")), Directive::Pause),
            (asked.clone(), Directive::Pause),
            (leaves(asked), Directive::Drain),
        ];
        for (agent, expected) in cases {
            assert_eq!(stored_directive(&agent), expected, "{agent:?}");
        }
    }
}
