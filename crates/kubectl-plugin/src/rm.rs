//! `rm`: deletes agents. It reads them first, deletes exactly these objects (by uid), and says that the pool may replace them.
//!
//! The pod of a deleted Agent has the goodbye time of the pool to end. `--force` shortens that to one second, and not to zero:
//! then the Pod object would disappear before its processes.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, Preconditions};
use kube::core::DeserializeGuard;
use serde::Serialize;
use tokio::time::Instant;

use super::connect::Cluster;
use super::console::Output;
use super::error::Error;
use super::input;
use super::scale::agent_count_text;
use super::wait::{self, Check};
use crate::api::agent::PodRef;
use crate::api::names;
use crate::api::{Agent, AgentPool, GROUP};

/// The grace period of a pod with `--force`.
const FORCED_GRACE_SECONDS: u32 = 1;
/// Concurrent deletes: a pool of thousands takes seconds, and the API server stays free for others.
const MAX_CONCURRENT_DELETES: usize = 8;

/// Arguments of `rm`.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(after_help = "Examples:
  kubectl spillway rm coders-1f2e3d4c5b
  kubectl spillway rm coders-1f2e3d4c5b --force       # one second instead of the pool's goodbye time
  kubectl spillway rm --pool coders --all --wait
  kubectl spillway ls coders -o name | xargs kubectl spillway rm

The pool replaces the agents that it still wants. To run fewer agents: kubectl spillway scale POOL --replicas N")]
pub struct Arguments {
    /// The agents
    #[arg(value_name = "AGENT", required_unless_present = "pool", value_parser = input::agent)]
    pub agents: Vec<String>,
    /// The pool, with --all
    #[arg(long, value_name = "POOL", conflicts_with = "agents", requires = "all", value_parser = input::pool)]
    pub pool: Option<String>,
    /// Delete all agents of the pool, with ended agents and those that were created by hand
    #[arg(long, requires = "pool")]
    pub all: bool,
    /// End the pods within one second
    #[arg(long)]
    pub force: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
    /// Wait until the agents are gone
    #[arg(long)]
    pub wait: bool,
    /// How long to wait
    #[arg(long, value_name = "DURATION", requires = "wait", default_value = "60s", value_parser = input::duration)]
    pub timeout: Duration,
}

/// An Agent to delete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// Its name.
    pub name: String,
    /// Its uid: no other object with the same name is deleted.
    pub uid: String,
    /// Its pool.
    pub pool: String,
    /// Whether its pool created it, and may replace it.
    pub pools_own: bool,
    /// Its pod, if the operator has recorded one.
    pub pod: Option<PodRef>,
}

/// The Agents to delete, before the user confirms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// The namespace.
    pub namespace: String,
    /// The Agents, by name.
    pub targets: Vec<Target>,
    /// Error messages on agents that cannot be deleted.
    pub failures: Vec<String>,
}

/// The deleted Agents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The namespace.
    pub namespace: String,
    /// The deleted Agents. Their pods may still run.
    pub removed: Vec<Target>,
    /// Whether their pods were ended by force.
    pub forced: bool,
    /// Error messages.
    pub failures: Vec<String>,
}

/// The result of waiting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Waited {
    /// The namespace.
    pub namespace: String,
    /// The Agents that still exist.
    pub left: Vec<String>,
}

/// Reads the Agents to delete.
pub async fn plan(cluster: &Cluster, arguments: &Arguments) -> Result<Plan, Error> {
    let mut plan = Plan { namespace: cluster.namespace.clone(), targets: Vec::new(), failures: Vec::new() };
    if let Some(pool) = &arguments.pool {
        plan.targets = of_pool(cluster, pool).await?;
        return Ok(plan);
    }
    for name in arguments.agents.iter().collect::<BTreeSet<_>>() {
        match cluster.api::<DeserializeGuard<Agent>>().get(name).await.map_err(Error::of::<Agent>(&cluster.namespace, name)) {
            Ok(agent) => plan.targets.push(target(&agent)),
            Err(error @ Error::NotFound { .. }) => plan.failures.push(error.to_string()),
            Err(error) => return Err(error),
        }
    }
    Ok(plan)
}

/// The agents of a pool, including those that are already being deleted: the command can wait for these, or force them.
async fn of_pool(cluster: &Cluster, pool: &str) -> Result<Vec<Target>, Error> {
    let params = ListParams::default().fields(&format!("spec.poolRef.name={pool}"));
    let found = cluster.api::<DeserializeGuard<Agent>>().list(&params).await.map_err(Error::of::<Agent>(&cluster.namespace, ""))?;
    if found.items.is_empty() {
        cluster.api::<AgentPool>().get_metadata(pool).await.map_err(Error::of::<AgentPool>(&cluster.namespace, pool))?;
    }
    let mut targets: Vec<Target> = found.items.iter().map(|agent| Target { pool: pool.to_owned(), ..target(agent) }).collect();
    targets.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(targets)
}

/// The target for an Agent, also if the stored object does not fit its type.
fn target(agent: &DeserializeGuard<Agent>) -> Target {
    let fits = agent.0.as_ref().ok();
    let labelled = agent.labels().get(names::POOL_LABEL).cloned().unwrap_or_default();
    Target {
        name: agent.name_any(),
        uid: agent.uid().unwrap_or_default(),
        pool: fits.map_or(labelled, |agent| agent.spec.pool_ref.name.clone()),
        pools_own: fits.is_some_and(|agent| agent.spec.sequence.is_some()),
        pod: fits.and_then(|agent| agent.status.as_ref()).and_then(|status| status.pod_ref.clone()),
    }
}

/// The question before the delete; none if no confirmation is needed.
pub fn question(plan: &Plan, arguments: &Arguments) -> Option<String> {
    let pool = arguments.pool.as_ref().filter(|_| !arguments.yes && !plan.targets.is_empty())?;
    let many = agent_count_text(plan.targets.len() as u64);
    Some(format!("Delete {many} of pool {pool} in namespace {}? The pool replaces the agents that it still wants.", plan.namespace))
}

/// Deletes the Agents. Every Agent is tried; errors are in the report.
pub async fn run(cluster: &Cluster, plan: Plan, force: bool) -> Report {
    let Plan { namespace, targets, failures } = plan;
    let mut report = Report { namespace, removed: Vec::new(), forced: force, failures };
    let deletes = targets.into_iter().map(|target| async move {
        let mut failures = Vec::new();
        let deleted = match delete_agent(cluster, &target).await {
            Ok(()) => true,
            Err(words) => {
                failures.push(words);
                false
            }
        };
        if deleted
            && force
            && let Some(pod) = &target.pod
            && let Err(error) = end_pod(cluster, pod).await
        {
            failures.push(format!(
                "the pod of agent \"{}\" was not ended by force, and ends within its normal grace period: {error}",
                target.name
            ));
        }
        (deleted.then_some(target), failures)
    });
    let mut done = futures::stream::iter(deletes).buffered(MAX_CONCURRENT_DELETES);
    while let Some((removed, failures)) = done.next().await {
        report.removed.extend(removed);
        report.failures.extend(failures);
    }
    report
}

async fn delete_agent(cluster: &Cluster, target: &Target) -> Result<(), String> {
    let params = DeleteParams { preconditions: only(&target.uid), ..DeleteParams::default() };
    match cluster.api::<DeserializeGuard<Agent>>().delete(&target.name, &params).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()), // it is gone already
        Err(kube::Error::Api(status)) if status.code == 409 => {
            Err(format!("agent \"{}\" was replaced by another one with the same name meanwhile; the new one was not deleted", target.name))
        }
        Err(error) => Err(Error::of::<Agent>(&cluster.namespace, &target.name)(error).to_string()),
    }
}

async fn end_pod(cluster: &Cluster, pod: &PodRef) -> Result<(), Error> {
    let params =
        DeleteParams { grace_period_seconds: Some(FORCED_GRACE_SECONDS), preconditions: only(&pod.uid), ..DeleteParams::default() };
    match cluster.api::<Pod>().delete(&pod.name, &params).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()), // that pod is gone
        Err(error) => Err(Error::of::<Pod>(&cluster.namespace, &pod.name)(error)),
    }
}

fn only(uid: &str) -> Option<Preconditions> {
    Some(Preconditions { uid: Some(uid.to_owned()), resource_version: None })
}

/// Waits until the deleted Agents are gone, at most `timeout` for all of them.
pub async fn wait(cluster: &Cluster, report: &Report, timeout: Duration) -> Result<Waited, Error> {
    let deadline = Some(Instant::now() + timeout);
    let api = cluster.api::<Agent>();
    let mut left: Vec<&Target> = report.removed.iter().collect();
    while let Some(target) = left.last() {
        let gone = wait::until(deadline, wait::WAIT_POLL_INTERVAL, async || {
            let found = api.get_metadata_opt(&target.name).await.map_err(Error::of::<Agent>(&cluster.namespace, &target.name))?;
            let gone = found.is_none_or(|found| found.metadata.uid.as_deref() != Some(&target.uid));
            Ok(if gone { Check::Done(()) } else { Check::NotYet(String::new()) })
        });
        match gone.await? {
            wait::Waited::Done(()) => left.pop(),
            wait::Waited::TimedOut(_) => break,
        };
    }
    Ok(Waited { namespace: report.namespace.clone(), left: left.iter().map(|target| target.name.clone()).collect() })
}

/// The deleted Agents, as text.
pub fn render(report: &Report) -> Output {
    let Report { namespace, removed, forced, failures } = report;
    let mut output = Output::default();
    for target in removed {
        let how = if *forced { "force deleted" } else { "deleted" };
        output.line(format!("agent.{GROUP}/{} {how}", target.name));
    }
    let pools: BTreeSet<&str> = removed.iter().filter(|target| target.pools_own).map(|target| target.pool.as_str()).collect();
    for pool in pools {
        output.note(format!(
            "note: pool {pool} replaces the agents that it still wants; for fewer agents: kubectl spillway scale {pool} --replicas N -n {namespace}"
        ));
    }
    for words in failures {
        output.failure(words);
    }
    if removed.is_empty() && failures.is_empty() {
        output.note(format!("No agents found in namespace {namespace}."));
    }
    output
}

/// The result of waiting, as text.
pub fn render_waited(waited: &Waited) -> Output {
    let Waited { namespace, left } = waited;
    let mut output = Output::default();
    if !left.is_empty() {
        let names: Vec<&str> = left.iter().take(5).map(String::as_str).collect();
        let more = if left.len() > names.len() { format!(" and {} more", left.len() - names.len()) } else { String::new() };
        output.failure(format!(
            "these agents are not gone in time: {}{more}; `kubectl spillway ls --all -o wide -n {namespace}` shows their state",
            names.join(", ")
        ));
    }
    output
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(name: &str, pools_own: bool) -> Target {
        Target { name: name.into(), uid: "u".into(), pool: "p".into(), pools_own, pod: None }
    }
    fn report(removed: Vec<Target>, failures: Vec<String>) -> Report {
        Report { namespace: "n".into(), removed, forced: false, failures }
    }

    #[test]
    fn a_whole_pool_is_asked_for_and_single_agents_are_not() {
        let plan = Plan { namespace: "n".into(), targets: vec![target("a", true), target("b", false)], failures: Vec::new() };
        let pool = Arguments { pool: Some("p".into()), all: true, ..Arguments::default() };
        assert_eq!(
            question(&plan, &pool).as_deref(),
            Some("Delete 2 agents of pool p in namespace n? The pool replaces the agents that it still wants.")
        );
        assert_eq!(question(&plan, &Arguments { yes: true, ..pool.clone() }), None);
        assert_eq!(question(&Plan { targets: Vec::new(), ..plan.clone() }, &pool), None);
        assert_eq!(question(&plan, &Arguments { agents: vec!["a".into()], ..Arguments::default() }), None);
    }

    #[test]
    fn the_replacement_is_told_only_of_agents_that_the_pool_made() {
        let own = render(&report(vec![target("a", true), target("b", true)], Vec::new()));
        assert_eq!(own.out, "agent.spillway.dev/a deleted\nagent.spillway.dev/b deleted\n");
        assert_eq!(
            own.err,
            "note: pool p replaces the agents that it still wants; for fewer agents: kubectl spillway scale p --replicas N -n n\n"
        );
        assert!(render(&report(vec![target("a", false)], Vec::new())).err.is_empty());
    }

    #[test]
    fn failures_fail_and_nothing_is_said_so() {
        let failed = render(&report(Vec::new(), vec!["w".into()]));
        assert_eq!((failed.err.as_str(), failed.failed), ("error: w\n", true));
        assert_eq!(
            render(&report(Vec::new(), Vec::new())),
            Output { err: "No agents found in namespace n.\n".into(), ..Output::default() }
        );
        let left = Waited { namespace: "n".into(), left: (0..7).map(|number| format!("a{number}")).collect() };
        assert!(render_waited(&left).failed && render_waited(&left).err.contains("a0, a1, a2, a3, a4 and 2 more"));
        assert_eq!(render_waited(&Waited { left: Vec::new(), ..left }), Output::default());
    }
}
