//! `spawn`: creates one Agent by hand, outside min and max of its pool but within its bulkhead.
//!
//! The Agent is like one that the pool's controller creates, with two differences. It has no sequence number, because only the
//! pool's own agents have one. It has no finalizer: the Agent controller adds it before it creates the pod, so that without an
//! operator the Agent can still be deleted.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt as _;
use kube::api::PostParams;
use serde::Serialize;
use tokio::time::Instant;

use super::connect::Cluster;
use super::console::Output;
use super::error::Error;
use super::find;
use super::input;
use super::table::printable;
use super::wait::{self, Check};
use crate::api::names::{self, managers};
use crate::api::owner::owner;
use crate::api::shared::LocalRef;
use crate::api::{Agent, AgentPool, AgentSpec, GROUP};

/// Arguments of `spawn`.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
#[command(after_help = "Examples:
  kubectl spillway spawn coders
  kubectl spillway spawn coders --name night-shift --display-name \"Night shift\"
  kubectl spillway spawn coders --cpus 500m --memory 1Gi --wait --timeout 2m

The pool neither counts nor replaces an agent that was created by hand; `kubectl spillway rm` deletes it.")]
pub struct Arguments {
    /// The pool: the agent gets its program, bulkhead and sandbox
    #[arg(value_name = "POOL", value_parser = input::pool)]
    pub pool: String,
    /// Name of the Agent [default: the pool's, and five characters]
    #[arg(long, value_parser = input::label)]
    pub name: Option<String>,
    /// Display name of the Agent [default: two random words]
    #[arg(long, value_name = "NAME", value_parser = input::display_name)]
    pub display_name: Option<String>,
    /// Request and limit of CPU cores: 2, 0.5, 500m [default: the pool's]
    #[arg(long, value_name = "QUANTITY", allow_hyphen_values = true, value_parser = input::cpus)]
    pub cpus: Option<Quantity>,
    /// Request and limit of memory: 512Mi, 1Gi [default: the pool's]
    #[arg(long, value_name = "QUANTITY", allow_hyphen_values = true, value_parser = input::memory)]
    pub memory: Option<Quantity>,
    /// Wait until the agent is ready
    #[arg(long)]
    pub wait: bool,
    /// How long to wait
    #[arg(long, value_name = "DURATION", requires = "wait", default_value = "60s", value_parser = input::duration)]
    pub timeout: Duration,
}

/// The created Agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Spawned {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its display name.
    pub display_name: String,
    /// Its pool.
    pub pool: String,
}

/// The result of waiting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Waited {
    /// The Agent is ready.
    Ready,
    /// The Agent has ended, with its state.
    Ended(String),
    /// The Agent was deleted.
    Gone,
    /// The Agent is not ready in time, with its state.
    TimedOut(String),
}

/// Creates an Agent. `seed` is random: it selects the display name if the arguments have neither a display name nor a name.
pub async fn run(cluster: &Cluster, arguments: &Arguments, seed: u64) -> Result<Spawned, Error> {
    let namespace = &cluster.namespace;
    let pool = cluster.api::<AgentPool>().get(&arguments.pool).await.map_err(Error::of::<AgentPool>(namespace, &arguments.pool))?;
    if pool.metadata.deletion_timestamp.is_some() {
        return Err(Error::Usage(format!("AgentPool \"{}\" is being deleted, with all its agents", arguments.pool)));
    }
    let agent = agent(&pool, arguments, seed);
    let params = PostParams { field_manager: Some(managers::PLUGIN.to_owned()), ..PostParams::default() };
    let name = arguments.name.as_deref().unwrap_or_default();
    let made = cluster.api::<Agent>().create(&params, &agent).await.map_err(Error::of::<Agent>(namespace, name))?;
    Ok(Spawned {
        namespace: namespace.clone(),
        name: made.name_any(),
        uid: made.uid().unwrap_or_default(),
        display_name: made.spec.display_name.unwrap_or_default(),
        pool: arguments.pool.clone(),
    })
}

/// The Agent to create.
fn agent(pool: &AgentPool, arguments: &Arguments, seed: u64) -> Agent {
    let words = || names::display_name(&arguments.name.clone().unwrap_or_else(|| seed.to_string()));
    Agent {
        metadata: ObjectMeta {
            name: arguments.name.clone(),
            generate_name: arguments.name.is_none().then(|| format!("{}-", pool.name_any())),
            namespace: pool.namespace(),
            labels: Some(names::pool_labels(&pool.name_any(), &pool.uid().unwrap_or_default(), &pool.spec.type_)),
            owner_references: Some(vec![owner::<AgentPool>(&pool.metadata)]),
            ..ObjectMeta::default()
        },
        spec: AgentSpec {
            pool_ref: LocalRef { name: pool.name_any() },
            display_name: Some(arguments.display_name.clone().unwrap_or_else(words)),
            sequence: None,
            parent_ref: None,
            manual: Some(true),
            paused: None,
            resume_pause: None,
            tool_approvals: None,
            hibernated: None,
            resources: resources(pool, arguments),
            external: None,
        },
        status: None,
    }
}

/// The pool's resources with the arguments merged in, because the resources of an Agent replace those of its pool.
fn resources(pool: &AgentPool, arguments: &Arguments) -> Option<ResourceRequirements> {
    let asked: BTreeMap<String, Quantity> = [("cpu", &arguments.cpus), ("memory", &arguments.memory)]
        .into_iter()
        .filter_map(|(name, asked)| Some((name.to_owned(), asked.clone()?)))
        .collect();
    if asked.is_empty() {
        return None;
    }
    let mut resources = pool.spec.agent.resources.clone().unwrap_or_default();
    resources.requests.get_or_insert_default().extend(asked.clone());
    resources.limits.get_or_insert_default().extend(asked);
    Some(resources)
}

/// Waits until the Agent is ready, ended or deleted, at most `timeout`.
pub async fn wait(cluster: &Cluster, spawned: &Spawned, timeout: Duration) -> Result<Waited, Error> {
    let api = cluster.api::<Agent>();
    let waited = wait::until(Some(Instant::now() + timeout), wait::WAIT_POLL_INTERVAL, async || {
        let agent = api.get_opt(&spawned.name).await.map_err(Error::of::<Agent>(&spawned.namespace, &spawned.name))?;
        Ok(agent.map_or(Check::Done(Waited::Gone), |agent| check_ready(&agent, &spawned.uid)))
    });
    Ok(match waited.await? {
        wait::Waited::Done(waited) => waited,
        wait::Waited::TimedOut(words) => Waited::TimedOut(words),
    })
}

/// Whether the wait is over, by the state of the Agent.
fn check_ready(agent: &Agent, uid: &str) -> Check<Waited> {
    if agent.uid().as_deref() != Some(uid) {
        return Check::Done(Waited::Gone);
    }
    let words = find::state(agent);
    match () {
        () if find::ended(agent) => Check::Done(Waited::Ended(words)),
        () if find::ready(agent) => Check::Done(Waited::Ready),
        () => Check::NotYet(words),
    }
}

/// The created Agent, as text.
pub fn render(spawned: &Spawned) -> Output {
    Output::of(format!("agent.{GROUP}/{} created ({})\n", spawned.name, printable(&spawned.display_name)))
}

/// The result of waiting, as text.
pub fn render_waited(spawned: &Spawned, waited: &Waited) -> Output {
    let Spawned { namespace, name, uid: _, display_name: _, pool: _ } = spawned;
    let mut output = Output::default();
    match waited {
        Waited::Ready => output.line(format!("agent.{GROUP}/{name} is ready")),
        Waited::Ended(words) => output.failure(format!("agent \"{name}\" has ended: {}", printable(words))),
        Waited::Gone => output.failure(format!("agent \"{name}\" was deleted during the wait")),
        Waited::TimedOut(words) => {
            output.failure(format!("agent \"{name}\" is not ready in time; it stays and may become ready later ({})", printable(words)));
            output.note(format!(
                "`kubectl spillway explain agent/{name} -n {namespace}` shows the reason, `kubectl spillway rm {name} -n {namespace}` deletes it"
            ));
        }
    }
    output
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pool(resources: Value) -> AgentPool {
        serde_json::from_value(
            json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "AgentPool", "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"type": "free", "agent": {"image": "x", "command": ["y"], "resources": resources}}}),
        )
        .expect("a pool")
    }
    fn asked(pool_has: Value, cpus: Option<&str>, memory: Option<&str>) -> Value {
        let quantity = |text: &str| Quantity(text.into());
        json!(resources(&pool(pool_has), &Arguments { cpus: cpus.map(quantity), memory: memory.map(quantity), ..Arguments::default() }))
    }

    #[test]
    fn what_is_asked_is_reserved_and_the_limit_and_the_rest_stays_the_pools() {
        assert_eq!(asked(json!({"limits": {"memory": "4Gi"}}), None, None), Value::Null);
        assert_eq!(asked(json!({}), Some("500m"), None), json!({"requests": {"cpu": "500m"}, "limits": {"cpu": "500m"}}));
        assert_eq!(
            asked(json!({"requests": {"cpu": "1"}, "limits": {"memory": "4Gi", "cpu": "2"}}), Some("3"), None),
            json!({"requests": {"cpu": "3"}, "limits": {"memory": "4Gi", "cpu": "3"}})
        );
    }

    #[test]
    fn a_name_is_given_or_made() {
        let named = agent(&pool(json!({})), &Arguments { name: Some("a".into()), ..Arguments::default() }, 7);
        assert_eq!(
            (named.metadata.name.as_deref(), named.metadata.generate_name, named.spec.display_name),
            (Some("a"), None, Some(names::display_name("a")))
        );
        let unnamed = agent(&pool(json!({})), &Arguments::default(), 7);
        assert_eq!(
            (unnamed.metadata.name, unnamed.metadata.generate_name.as_deref(), unnamed.spec.display_name),
            (None, Some("p-"), Some(names::display_name("7")))
        );
    }

    fn look(status: Value) -> Option<Waited> {
        let agent: Agent =
            serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Agent", "metadata": {"name": "a", "uid": "u"},
            "spec": {"poolRef": {"name": "p"}}, "status": status}))
            .expect("an Agent");
        match check_ready(&agent, "u") {
            Check::Done(waited) => Some(waited),
            Check::NotYet(_) => None,
        }
    }

    #[test]
    fn an_agent_is_waited_for_until_it_is_ready_or_over() {
        let ready = |status: &str| json!([{"type": "Ready", "status": status, "reason": "R", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        assert_eq!(look(json!({})), None);
        assert_eq!(look(json!({"phase": "Spawning", "conditions": ready("False")})), None);
        assert_eq!(look(json!({"phase": "Running", "conditions": ready("True")})), Some(Waited::Ready));
        assert_eq!(look(json!({"phase": "Stopped", "conditions": ready("False")})), Some(Waited::Ended("Stopped, R: m".into())));
    }

    #[test]
    fn waiting_in_vain_is_a_failure_with_the_reason() {
        let spawned =
            Spawned { namespace: "n".into(), name: "a".into(), uid: "u".into(), display_name: "calm-otter".into(), pool: "p".into() };
        assert_eq!(render(&spawned).out, "agent.spillway.dev/a created (calm-otter)\n");
        assert!(!render_waited(&spawned, &Waited::Ready).failed);
        let late = render_waited(&spawned, &Waited::TimedOut("Spawning, QuotaExceeded: m".into()));
        assert!(late.failed && late.err.contains("(Spawning, QuotaExceeded: m)"), "{late:?}");
    }
}
