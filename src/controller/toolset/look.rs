//! One look at one Toolset: read it, apply its objects, ask its bridge, write its status.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt;
use kube::api::ListParams;

use super::apply::{AppliedObjects, keep};
use super::build::{self, SERVICE_PORT};
use super::config_maps::{RememberedJudgement, read_and_judge};
use super::egress::{EgressTargets, NameAddresses};
use super::lookups::Lookups;
use super::rollout::{PodState, is_rolled_out, pod_state};
use super::status::{BridgeAnswer, ObjectsState, ToolsetFacts, changes, next_status};
use crate::api::conditions::reasons;
use crate::api::names::{self, managers};
use crate::api::{Toolset, ToolsetStatus};
use crate::bridge::client::BridgeAccount;
use crate::cluster::clock::BootTime;
use crate::cluster::watch::Tolerant;
use crate::cluster::{Error, ObjectKey, calls};
use crate::controller::Context;
use crate::controller::conditions::holds_for;
use crate::controller::namespace_setup;
use crate::controller::served_toolsets::ServedToolset;

/// Name of this controller in metrics and logs.
pub const CONTROLLER_NAME: &str = "toolset";
/// How long a bridge may take to say what it serves.
const BRIDGE_TIMEOUT: Duration = Duration::from_secs(5);
/// Pods of a Toolset that are read. It has one, and others that are ending.
const MAX_PODS: u32 = 10;

/// What is remembered of a Toolset between two looks. It only saves writes and keeps addresses.
#[derive(Debug, Default)]
pub struct LookMemory {
    applied: AppliedObjects,
    addresses: NameAddresses,
    judgement: RememberedJudgement,
    silent_looks: u32,
}

/// The result of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookResult {
    /// The Toolset is served as its spec says.
    AsDesired,
    /// Something is missing or wrong.
    NotReady,
    /// There is nothing to do: the Toolset is gone, is being deleted, or cannot be read.
    Nothing,
}

/// Looks at the Toolset `key`.
pub async fn look(key: &ObjectKey, memory: &mut LookMemory, lookups: &Lookups, context: &Context) -> Result<LookResult, Error> {
    let stored = context.api::<Tolerant<Toolset>>(&key.namespace).get_opt(&key.name).await.map_err(Error::of("reading a Toolset"))?;
    let toolset = match stored.as_ref().map(|stored| &stored.0) {
        Some(Ok(toolset)) if toolset.metadata.deletion_timestamp.is_none() => toolset,
        // Its owner references delete its objects.
        Some(Ok(_)) | None => {
            context.toolsets.remove(key);
            return Ok(LookResult::Nothing);
        }
        Some(Err(invalid)) => {
            context.toolsets.remove(key);
            if context.is_new_error(CONTROLLER_NAME, key.clone(), &invalid.error) {
                tracing::error!(namespace = %key.namespace, toolset = %key.name, error = %invalid.error, "a stored Toolset does not fit its type; it is left alone");
                let note = format!(
                    "the stored object does not fit its type, so the operator ignores it. Apply the current CustomResourceDefinitions, then the object: {}",
                    invalid.error
                );
                if let Some(stored) = &stored {
                    context.events.warning(stored, reasons::INVALID_OBJECT, "Validate", note).await;
                }
            }
            return Ok(LookResult::Nothing);
        }
    };
    let facts = observe_and_apply(toolset, key, memory, lookups, context).await?;
    write_status(toolset, key, &facts, context).await
}

/// Applies the objects of a Toolset, and collects the facts of its status.
async fn observe_and_apply(
    toolset: &Toolset,
    key: &ObjectKey,
    memory: &mut LookMemory,
    lookups: &Lookups,
    context: &Context,
) -> Result<ToolsetFacts, Error> {
    let name = names::toolset_object(&key.name);
    // A new leader: what runs is served at once, before anything that may take long or fail.
    if context.toolsets.get(key).is_none() {
        let (service, deployment) = (owned::<Service>(toolset, &name, context).await?, owned::<Deployment>(toolset, &name, context).await?);
        serve(toolset, key, service.as_ref(), deployment.as_ref(), context);
    }
    // All bridges trust the certificates of this ConfigMap, also those of an earlier spec.
    namespace_setup::ensure(&key.namespace, context).await?;
    let targets =
        EgressTargets::parse(toolset.spec.egress.as_ref()).and_then(|targets| targets.and_upstream(toolset.spec.upstream.as_ref()));
    let definitions = read_and_judge(toolset, key, &mut memory.judgement, context).await?;
    let (mut made, mut unknown_names) = (None, Vec::new());
    let state = match (&targets, &definitions) {
        (Ok(targets), Ok(())) => {
            let wanted = targets.names();
            restore_addresses(toolset, &name, &wanted, memory, context).await?;
            lookups.refresh(&key.namespace, &wanted, &mut memory.addresses).await;
            unknown_names = memory.addresses.unknown(&wanted);
            match apply_objects(toolset, targets, memory, context).await? {
                Ok(objects) => {
                    made = Some(objects);
                    Some(ObjectsState::InForce)
                }
                Err(state) => Some(state),
            }
        }
        (Ok(_), Err(_)) | (Err(_), _) => None,
    };
    let (service, deployment) = match made {
        Some((service, deployment)) => (Some(service), Some(deployment)),
        // Those of the last valid spec serve on.
        None => (owned::<Service>(toolset, &name, context).await?, owned::<Deployment>(toolset, &name, context).await?),
    };
    let objects = state.unwrap_or(if deployment.is_some() { ObjectsState::Earlier } else { ObjectsState::NotMade });
    let served = serve(toolset, key, service.as_ref(), deployment.as_ref(), context);
    let pod = observe_pod(key, deployment.as_ref(), context).await?;
    let answer = match &served {
        Some(served) if pod == PodState::Ready => ask(key, served, memory, context).await,
        Some(_) | None => {
            memory.silent_looks = 0;
            BridgeAnswer::NotAsked
        }
    };
    let address = served.map(|served| served.address);
    Ok(ToolsetFacts { invalid_spec: targets.err(), definitions, objects, address, unknown_names, pod, answer })
}

/// Takes over the addresses that an earlier leader knew. Without them, slow lookups would close the network of a running bridge.
async fn restore_addresses(
    toolset: &Toolset,
    name: &str,
    wanted: &BTreeSet<String>,
    memory: &mut LookMemory,
    context: &Context,
) -> Result<(), Error> {
    if wanted.is_empty() || !memory.addresses.is_empty() {
        return Ok(());
    }
    let policy = owned::<NetworkPolicy>(toolset, name, context).await?;
    if let Some(annotation) = policy.as_ref().and_then(|policy| policy.annotations().get(names::ADDRESSES_ANNOTATION)) {
        memory.addresses.restore(annotation, wanted, BootTime::now());
    }
    Ok(())
}

/// Tells gateways where the bridge is, and which ServiceAccount it has. While an earlier spec is in force, it has the account of that one.
fn serve(
    toolset: &Toolset,
    key: &ObjectKey,
    service: Option<&Service>,
    deployment: Option<&Deployment>,
    context: &Context,
) -> Option<ServedToolset> {
    let account = deployment.and_then(|stored| stored.spec.as_ref()?.template.spec.as_ref()?.service_account_name.clone());
    let served = service.and_then(cluster_address).map(|address| ServedToolset {
        address,
        service_account: account.unwrap_or_else(|| build::account_name(toolset)),
        approval_timeout_seconds: toolset.spec.approval_timeout_seconds(),
    });
    match &served {
        Some(served) => context.toolsets.set(key.clone(), served.clone()),
        None => context.toolsets.remove(key),
    }
    served
}

/// Applies the objects: the NetworkPolicy before the pod that it is about.
async fn apply_objects(
    toolset: &Toolset,
    targets: &EgressTargets,
    memory: &mut LookMemory,
    context: &Context,
) -> Result<Result<(Service, Deployment), ObjectsState>, Error> {
    let uid = toolset.uid().unwrap_or_default();
    let LookMemory { applied, addresses, judgement, silent_looks: _ } = memory;
    macro_rules! kept {
        ($desired:expr) => {
            match keep(&$desired, &uid, applied, context).await? {
                Ok(stored) => stored,
                Err(state) => return Ok(Err(state)),
            }
        };
    }
    kept!(build::network_policy(toolset, targets, addresses, &context.supervised));
    if let Some(account) = build::service_account(toolset) {
        kept!(account);
    }
    let service = kept!(build::service(toolset));
    let deployment = kept!(build::deployment(toolset, judgement.uids(), &context.supervised));
    Ok(Ok((service, deployment)))
}

/// An object of the Toolset as it is stored.
async fn owned<K>(toolset: &Toolset, name: &str, context: &Context) -> Result<Option<K>, Error>
where
    K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope> + serde::de::DeserializeOwned + Clone + std::fmt::Debug,
{
    let api = context.api::<K>(&toolset.namespace().unwrap_or_default());
    let stored = api.get_opt(name).await.map_err(Error::of("reading an object of a Toolset"))?;
    Ok(stored.filter(|stored| stored.owner_references().iter().any(|owner| Some(&owner.uid) == toolset.metadata.uid.as_ref())))
}

fn cluster_address(service: &Service) -> Option<SocketAddr> {
    let address: IpAddr = service.spec.as_ref()?.cluster_ip.as_deref()?.parse().ok()?;
    Some(SocketAddr::new(address, SERVICE_PORT))
}

async fn observe_pod(key: &ObjectKey, deployment: Option<&Deployment>, context: &Context) -> Result<PodState, Error> {
    let Some(deployment) = deployment else { return Ok(pod_state(None, &[])) };
    if is_rolled_out(deployment) {
        return Ok(PodState::Ready);
    }
    let labels = names::toolset_labels(&key.name).iter().map(|(label, value)| format!("{label}={value}")).collect::<Vec<_>>().join(",");
    let params = ListParams::default().labels(&labels).limit(MAX_PODS);
    let pods = context.api::<Pod>(&key.namespace).list(&params).await.map_err(Error::of("listing the pods of a Toolset"))?;
    Ok(pod_state(Some(deployment), &pods.items))
}

/// Asks the bridge what it serves.
async fn ask(key: &ObjectKey, served: &ServedToolset, memory: &mut LookMemory, context: &Context) -> BridgeAnswer {
    let ServedToolset { address, service_account, approval_timeout_seconds: _ } = served;
    let account = BridgeAccount { namespace: key.namespace.clone(), service_account: service_account.clone() };
    let asked = tokio::time::timeout(BRIDGE_TIMEOUT, context.bridges.status(*address, &account)).await;
    let asked = asked
        .map_or_else(|_| Err(format!("no answer within {} s", BRIDGE_TIMEOUT.as_secs())), |asked| asked.map_err(|error| error.to_string()));
    match asked {
        Ok(status) => {
            memory.silent_looks = 0;
            BridgeAnswer::Serves(status)
        }
        Err(error) => {
            memory.silent_looks = memory.silent_looks.saturating_add(1);
            tracing::debug!(namespace = %key.namespace, toolset = %key.name, %address, error, "a bridge does not answer");
            BridgeAnswer::Silent(error, memory.silent_looks)
        }
    }
}

/// Writes the status if it changed, and reports the changes as events.
async fn write_status(toolset: &Toolset, key: &ObjectKey, facts: &ToolsetFacts, context: &Context) -> Result<LookResult, Error> {
    let generation = toolset.metadata.generation.unwrap_or(0);
    let next = next_status(facts, toolset.status.as_ref(), generation, jiff::Timestamp::now());
    if toolset.status.as_ref() != Some(&next) {
        context.leadership.check()?;
        let api = context.api::<Toolset>(&key.namespace);
        let version = toolset.metadata.resource_version.as_deref();
        let _: Toolset = calls::apply_status(&api, &key.name, managers::TOOLSET, version, &next).await?;
        report(toolset, &next, context).await;
    }
    let served = ["Ready", "DefinitionsValid"].iter().all(|type_| holds_for(&next.conditions, type_, generation));
    Ok(if served && !matches!(facts.answer, BridgeAnswer::Silent(..)) { LookResult::AsDesired } else { LookResult::NotReady })
}

async fn report(toolset: &Toolset, next: &ToolsetStatus, context: &Context) {
    let stored = toolset.status.as_ref().map_or(&[][..], |status| &status.conditions);
    for change in changes(stored, &next.conditions) {
        if change.warning {
            context.events.warning(toolset, &change.reason, "Serve", change.note).await;
        } else {
            context.events.normal(toolset, &change.reason, "Serve", change.note).await;
        }
    }
}

#[cfg(test)]
#[path = "look_tests.rs"]
mod tests;
