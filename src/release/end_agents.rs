//! Ends all agents before the operator is removed. Only a running operator removes the finalizer of an Agent, so an operator that is
//! removed before its agents leaves objects and namespaces that cannot be deleted.
//!
//! The Deployment of the controllers gets `SPILLWAY_END_AGENTS=true`. The leader then deletes all Agents and makes no new ones. Pools,
//! queues, items and budgets stay. The setting ends with the Deployment, so the next installation continues with what was kept.

use std::time::Duration;

use anyhow::{Context as _, bail};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::{Api, Client, Resource, ResourceExt as _};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{Deadline, client};
use crate::api::names::managers;
use crate::api::{Agent, AgentPool};
use crate::cluster::{Class, Error};

/// The variable that makes a controller end all agents. The chart sets it to `false`.
const VARIABLE: &str = "SPILLWAY_END_AGENTS";
/// The container of the controller in its Deployment.
const CONTAINER: &str = "controller";
/// How many agents are named in messages.
const NAMED_AGENTS: u32 = 5;
/// How long a refusal may mean that the rights of this pod are not there yet. Argo CD creates the Job of a hook and its rights in no order.
const RIGHTS_ARRIVE: Duration = Duration::from_secs(30);

/// The command line of `spillway end-agents`.
#[derive(clap::Args, Debug)]
pub struct EndAgentsArguments {
    /// Namespace of the release.
    #[arg(long, env = "POD_NAMESPACE", default_value = "spillway-system")]
    namespace: String,
    /// Deployment of the controllers.
    #[arg(long, default_value = "spillway")]
    deployment: String,
    /// Labels of the controllers' pods, as a label selector.
    #[arg(long, value_name = "LABELS", default_value = "app.kubernetes.io/name=spillway,app.kubernetes.io/component=controller")]
    selector: String,
    /// The only namespace that the release serves [default: all]
    #[arg(long, value_name = "NAMESPACE")]
    only_namespace: Option<String>,
    /// Seconds after which agents that are left make the command fail.
    #[arg(long, value_name = "SECONDS", default_value_t = 240, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    timeout: u32,
}

/// Ends all agents, and waits until none is left.
pub async fn end_agents(arguments: EndAgentsArguments, stop: CancellationToken) -> anyhow::Result<()> {
    let client = client("end-agents").await?;
    let EndAgentsArguments { namespace, deployment, selector, only_namespace, timeout } = arguments;
    let deadline = Deadline::new(timeout, stop);
    let pools: Api<AgentPool> = served_objects(&client, only_namespace.as_deref());
    let agents: Api<Agent> = served_objects(&client, only_namespace.as_deref());
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
    let begun = loop {
        match begin(&pools, &agents, &deployments, &deployment).await {
            Ok(begun) => break begun,
            Err(error) if may_pass(error.class(), deadline.elapsed()) => {
                println!("{error}; trying again");
                if !deadline.next().await {
                    return Err(error).context(format!("after {timeout} s"));
                }
            }
            Err(error) if error.class() == Class::NotFound => {
                return Err(error).context("only a running controller can end the agents that are left. Install Spillway again");
            }
            Err(error) => return Err(error.into()),
        }
    };
    if !begun {
        println!("there are no pools and no agents");
        return Ok(());
    }
    println!("set {VARIABLE}=true in Deployment/{deployment}: the controllers end all agents");
    let controllers: Api<Pod> = Api::namespaced(client, &namespace);
    let mut told = None;
    loop {
        let waiting = match observe(&controllers, &selector, &agents).await {
            Ok((others, left)) => waiting_for(others, &left),
            Err(error) => Some(format!("the API server cannot be asked: {error:#}")),
        };
        let Some(waiting) = waiting else {
            println!("no agents are left");
            return Ok(());
        };
        if told.as_ref() != Some(&waiting) {
            println!("{waiting}");
        }
        if !deadline.next().await {
            bail!("after {timeout} s: {waiting}. Find out why (kubectl describe, the logs of the controllers), and try again")
        }
        told = Some(waiting);
    }
}

fn served_objects<K>(client: &Client, only_namespace: Option<&str>) -> Api<K>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
{
    match only_namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

/// The objects of one kind that are left.
#[derive(Debug, Default, PartialEq, Eq)]
struct Remaining {
    count: i64,
    /// The first ones, as `namespace/name`.
    first: Vec<String>,
}

/// Whether an error at the beginning may pass by itself.
fn may_pass(class: Class, elapsed: Duration) -> bool {
    match class {
        // The network of a new pod may open after its start.
        Class::Unavailable | Class::Conflict => true,
        Class::Refused => elapsed < RIGHTS_ARRIVE,
        _ => false,
    }
}

/// Tells the controllers to end all agents. False: there are no pools and no agents.
async fn begin(pools: &Api<AgentPool>, agents: &Api<Agent>, deployments: &Api<Deployment>, deployment: &str) -> Result<bool, Error> {
    if remaining(pools).await?.count == 0 && remaining(agents).await?.count == 0 {
        return Ok(false);
    }
    set_variable(deployments, deployment).await?;
    Ok(true)
}

/// The objects that are left. A kind that is not served has none.
async fn remaining<K>(api: &Api<K>) -> Result<Remaining, Error>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let listed = match api.list_metadata(&ListParams::default().limit(NAMED_AGENTS)).await.map_err(Error::of("listing objects")) {
        Ok(listed) => listed,
        Err(error) if error.class() == Class::NotFound => return Ok(Remaining::default()),
        Err(error) => return Err(error),
    };
    let name = |object: &PartialObjectMeta<K>| format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any());
    let first: Vec<String> = listed.items.iter().map(name).collect();
    let more = listed.metadata.remaining_item_count.unwrap_or(0);
    Ok(Remaining { count: i64::try_from(first.len()).unwrap_or(i64::MAX).saturating_add(more), first })
}

async fn set_variable(deployments: &Api<Deployment>, name: &str) -> Result<(), Error> {
    let stored = deployments.get(name).await.map_err(Error::of("reading the Deployment of the controllers"))?;
    // A release that is scaled to zero cannot end agents.
    let replicas = stored.spec.and_then(|spec| spec.replicas).unwrap_or(1).max(1);
    let env = json!([{"name": VARIABLE, "value": "true"}]);
    let template = json!({"spec": {"containers": [{"name": CONTAINER, "env": env}]}});
    let patch = json!({"spec": {"replicas": replicas, "template": template}});
    let params = PatchParams { field_manager: Some(managers::END_AGENTS.into()), ..PatchParams::default() };
    deployments.patch(name, &params, &Patch::Strategic(patch)).await.map_err(Error::of("changing the Deployment of the controllers"))?;
    Ok(())
}

/// The number of controllers that still make agents, and the agents that are left.
async fn observe(controllers: &Api<Pod>, selector: &str, agents: &Api<Agent>) -> anyhow::Result<(usize, Remaining)> {
    let pods = controllers.list(&ListParams::default().labels(selector)).await.context("listing the controllers")?;
    let others = pods.items.iter().filter(|pod| runs(pod) && !ends_agents(pod)).count();
    // The agents are read after the controllers: none of those that may have made one runs any more.
    Ok((others, remaining(agents).await?))
}

/// A pod that is being deleted may still lead.
fn runs(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    !matches!(phase, Some("Succeeded" | "Failed"))
}

fn ends_agents(pod: &Pod) -> bool {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut variables = containers.filter(|container| container.name == CONTAINER).flat_map(|container| container.env.iter().flatten());
    variables.any(|variable| variable.name == VARIABLE && variable.value.as_deref() == Some("true"))
}

/// What the end of all agents waits for; `None`: nothing.
fn waiting_for(other_controllers: usize, agents: &Remaining) -> Option<String> {
    if other_controllers > 0 {
        return Some(format!("waiting until {other_controllers} controllers without {VARIABLE}=true are replaced"));
    }
    let Remaining { count, first } = agents;
    if *count == 0 {
        return None;
    }
    let more = if i64::try_from(first.len()).is_ok_and(|named| named < *count) { ", ..." } else { "" };
    Some(format!("waiting for the end of {count} agents: {}{more}", first.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn controller(value: &str, phase: &str) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "c"}, "status": {"phase": phase},
            "spec": {"containers": [{"name": "proxy"}, {"name": "controller", "env": [{"name": VARIABLE, "value": value}]}]}}))
        .expect("a pod")
    }

    #[test]
    fn every_controller_that_may_make_agents_is_waited_for() {
        assert!(ends_agents(&controller("true", "Running")));
        assert!(!ends_agents(&controller("false", "Running")));
        assert!(!ends_agents(&Pod::default()), "one of an earlier version");
        assert!(runs(&controller("false", "Pending")) && runs(&controller("false", "Running")));
        assert!(!runs(&controller("false", "Failed")), "an evicted one");
    }

    #[test]
    fn rights_may_arrive_after_the_start() {
        let late = RIGHTS_ARRIVE;
        assert!(may_pass(Class::Refused, Duration::ZERO) && !may_pass(Class::Refused, late));
        assert!(may_pass(Class::Unavailable, late), "until the command's own timeout");
        assert!(!may_pass(Class::NotFound, Duration::ZERO), "a Deployment that is gone does not come back");
    }

    #[test]
    fn it_waits_for_controllers_then_for_agents() {
        let left = |count, first: &[&str]| Remaining { count, first: first.iter().map(|name| (*name).to_owned()).collect() };
        assert_eq!(
            waiting_for(1, &left(0, &[])).as_deref(),
            Some("waiting until 1 controllers without SPILLWAY_END_AGENTS=true are replaced")
        );
        assert_eq!(waiting_for(0, &left(2, &["t/a", "t/b"])).as_deref(), Some("waiting for the end of 2 agents: t/a, t/b"));
        assert_eq!(waiting_for(0, &left(9, &["t/a"])).as_deref(), Some("waiting for the end of 9 agents: t/a, ..."));
        assert_eq!(waiting_for(0, &left(0, &[])), None);
    }
}
