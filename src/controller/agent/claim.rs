//! The PersistentVolumeClaim of an agent's own volume. It outlives the agent's pods, and is deleted with the agent.
//!
//! Its name follows from the Agent's name, so that a claim that was created and never recorded is found again. What
//! always holds: a claim that this Agent does not own is neither used nor deleted.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;

use super::build;
use crate::api::agent::ClaimRef;
use crate::api::conditions::reasons;
use crate::api::names::managers;
use crate::api::{Agent, AgentPool};
use crate::cluster::{Class, Error, ObjectKey, calls};
use crate::controller::Context;
use crate::policy::agent::{Hindrance, HindranceKind};

/// The claim that a pod mounts, if any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The pool has no template for a claim.
    None,
    /// The claim to mount.
    Ready(ClaimRef),
    /// The claim cannot be used, and why.
    Refused(Hindrance),
}

/// Finds the claim of the Agent, or creates it.
pub async fn ensure(agent: &Agent, pool: &AgentPool, key: &ObjectKey, context: &Context) -> Result<Claim, Error> {
    let Some(claim) = build::claim(agent, pool) else { return Ok(Claim::None) };
    let api = context.api::<PersistentVolumeClaim>(&key.namespace);
    // Read before it is created: an exhausted quota refuses even the creation of a claim that exists.
    if let Some(there) = api.get_opt(&claim.name_any()).await.map_err(Error::of("reading a PersistentVolumeClaim"))? {
        return Ok(judge(&there, agent));
    }
    context.leadership.check()?;
    match calls::create(&api, &claim, managers::AGENT).await {
        Ok(made) => {
            if let Some(lost) = agent.status.as_ref().and_then(|status| status.claim_ref.as_ref()) {
                let note = format!(
                    "PersistentVolumeClaim/{} (uid {}) was deleted. The agent starts with a new, empty volume",
                    lost.name, lost.uid
                );
                context.events.warning(agent, reasons::VOLUME_LOST, "MakeClaim", note).await;
            }
            Ok(judge(&made, agent))
        }
        Err(error) => {
            let kind = match error.class() {
                Class::QuotaExceeded => HindranceKind::QuotaExceeded,
                Class::Terminating => HindranceKind::NamespaceTerminating,
                Class::Refused => HindranceKind::VolumeRefused,
                Class::AlreadyExists | Class::Conflict | Class::NotFound | Class::LostLeadership | Class::Unavailable => return Err(error),
            };
            Ok(Claim::Refused(Hindrance { kind, message: error.message() }))
        }
    }
}

/// Whether the claim with the Agent's name belongs to it and is not being deleted.
fn judge(claim: &PersistentVolumeClaim, agent: &Agent) -> Claim {
    let refused = |message| Claim::Refused(Hindrance { kind: HindranceKind::VolumeRefused, message });
    let (name, uid) = (claim.name_any(), claim.uid().unwrap_or_default());
    if !is_owned(claim, agent) {
        return refused(format!(
            "PersistentVolumeClaim/{name} (uid {uid}) was not made for this agent, so the agent does not use it. Delete the claim or the agent"
        ));
    }
    if claim.metadata.deletion_timestamp.is_some() {
        return refused(format!("PersistentVolumeClaim/{name} (uid {uid}) is being deleted. The agent gets a new one afterwards"));
    }
    Claim::Ready(ClaimRef { name, uid })
}

fn is_owned(claim: &PersistentVolumeClaim, agent: &Agent) -> bool {
    let owners = claim.metadata.owner_references.iter().flatten();
    owners.into_iter().any(|owner| owner.controller == Some(true) && Some(&owner.uid) == agent.metadata.uid.as_ref())
}

/// Deletes the volume of an agent that ended and whose pod is gone, although its Agent is still kept. A claim that
/// cannot be deleted here is deleted with the Agent.
pub async fn delete_claim(agent: &Agent, key: &ObjectKey, context: &Context) -> Result<(), Error> {
    let Some(claim) = agent.status.as_ref().and_then(|status| status.claim_ref.as_ref()) else { return Ok(()) };
    context.leadership.confirm().await?;
    match calls::delete(&context.api::<PersistentVolumeClaim>(&key.namespace), &claim.name, &claim.uid, None).await {
        Err(error) if matches!(error.class(), Class::LostLeadership | Class::Unavailable) => Err(error),
        Err(error) => {
            tracing::warn!(namespace = %key.namespace, agent = %key.name, claim = %claim.name, %error, "cannot delete the volume of an ended agent; it is deleted with its Agent");
            Ok(())
        }
        Ok(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn agent() -> Agent {
        serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Agent",
            "metadata": {"name": "a", "namespace": "n", "uid": "agent-uid"}, "spec": {"poolRef": {"name": "p"}}}))
        .expect("an Agent")
    }
    fn pool(extra: Value) -> AgentPool {
        let mut spec = json!({"type": "worker", "agent": {"image": "x", "command": ["y"]}});
        spec.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
        serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "AgentPool", "metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": spec})).expect("a pool")
    }
    fn template() -> AgentPool {
        pool(json!({"workspace": {"volumeClaimTemplate": {"storageClassName": "fast", "accessModes": ["ReadWriteOnce"]}}}))
    }
    fn words(claim: &Claim) -> &str {
        match claim {
            Claim::Refused(Hindrance { kind: HindranceKind::VolumeRefused, message }) => message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_claim_is_made_from_the_template_and_is_its_agents() {
        assert_eq!(build::claim(&agent(), &pool(json!({}))), None);
        let mut claim = build::claim(&agent(), &template()).expect("a claim");
        assert_eq!((claim.name_any().as_str(), claim.namespace().as_deref()), ("a-workspace", Some("n")));
        assert_eq!(claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref()), Some("fast"));
        claim.metadata.uid = Some("c".into());
        assert_eq!(judge(&claim, &agent()), Claim::Ready(ClaimRef { name: "a-workspace".into(), uid: "c".into() }));
    }

    #[test]
    fn a_claim_of_somebody_else_is_not_used_whatever_it_is_called() {
        let mut other = build::claim(&agent(), &template()).expect("a claim");
        other.metadata.owner_references.as_mut().expect("owners")[0].uid = "of an Agent of that name that was before".into();
        assert!(words(&judge(&other, &agent())).contains("was not made for this agent"));
        other.metadata.owner_references = None;
        assert!(words(&judge(&other, &agent())).contains("was not made for this agent"));
    }

    #[test]
    fn a_claim_that_goes_is_waited_for() {
        let mut claim = build::claim(&agent(), &template()).expect("a claim");
        claim.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time");
        assert!(words(&judge(&claim, &agent())).contains("is being deleted"));
    }
}
