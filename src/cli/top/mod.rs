//! `top`: agents as they are now, and again every few seconds. Only reads.
//!
//! | file | for |
//! |---|---|
//! | this one | arguments, and the look at the cluster: a typed snapshot |
//! | [`state`] | what its user chose: sort order, pause, scrolling; keys to choices. Pure |
//! | [`view`] | snapshot, size and state to lines. Pure |
//! | [`live`] | the screen: draws, reads keys, looks again, and gives the terminal back however it ends |
//!
//! Each look is a list from the API server's cache, which costs it little; nothing is watched.

pub mod live;
pub mod state;
pub mod view;

use std::time::Duration;

use jiff::Timestamp;
use kube::api::ListParams;
use kube::core::{DeserializeGuard, NamespaceResourceScope};
use kube::{Api, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::connect::Cluster;
use super::error::Error;
use super::find;
use super::input;
use crate::api::agent::AgentPhase;
use crate::api::conditions::types;
use crate::api::{Agent, AgentPool, names};

pub use state::Sort;

/// The shortest time between two looks: the API server serves others too.
const SHORTEST: Duration = Duration::from_millis(500);

/// Arguments of `top`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
#[command(after_help = "Examples:
  kubectl spillway top                        # the agents of this namespace, every two seconds
  kubectl spillway top coders --sort tokens
  kubectl spillway top -A --interval 10s
  kubectl spillway top --once | head          # once, as plain text

Keys: q quits, s sorts by the next column, p holds the picture and lets it go on, arrows, page up and down, home and end
scroll. Where standard output is no terminal it prints once.")]
pub struct Arguments {
    /// Only the agents of this pool
    #[arg(value_name = "POOL", value_parser = input::pool)]
    pub pool: Option<String>,
    /// In all namespaces
    #[arg(short = 'A', long, conflicts_with = "pool")]
    pub all_namespaces: bool,
    /// Print once, as plain text
    #[arg(long)]
    pub once: bool,
    /// Between two looks; at least 500ms
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = interval)]
    pub interval: Duration,
    /// What stands first
    #[arg(long, value_enum, value_name = "COLUMN", default_value = "name")]
    pub sort: Sort,
}

fn interval(text: &str) -> Result<Duration, String> {
    match input::duration(text)? {
        short if short < SHORTEST => Err("the API server serves others too: at least 500ms".to_owned()),
        long => Ok(long),
    }
}

/// One look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Where was looked; none: everywhere.
    pub namespace: Option<String>,
    /// At which pool; none: at all.
    pub pool: Option<String>,
    /// The living agents.
    pub agents: Vec<Row>,
    /// Agents that ended and are kept for reading.
    pub ended: usize,
    /// Stored objects that do not fit their type.
    pub unreadable: usize,
    /// The pools together.
    pub pools: Pools,
}

/// One agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its name for people.
    pub display_name: String,
    /// Its pool.
    pub pool: String,
    /// Its type.
    pub type_: String,
    /// Where it is in its life.
    pub phase: Option<AgentPhase>,
    /// What it does.
    pub action: String,
    /// The item it holds.
    pub item: String,
    /// Tokens it has spent.
    pub tokens: Option<i64>,
    /// Its last heartbeat, as last written.
    pub heartbeat: Option<Timestamp>,
    /// Its program's last activity, as last written.
    pub activity: Option<Timestamp>,
    /// When it was made.
    pub created: Option<Timestamp>,
}

/// Pools, added up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pools {
    /// How many.
    pub count: usize,
    /// Agents wanted.
    pub desired: i64,
    /// Agents there are.
    pub agents: i64,
    /// Agents that hold an item.
    pub active: i64,
    /// Agents that hold none.
    pub idle: i64,
    /// Pools that are Blocked or Stalled: name and reason.
    pub hindered: Vec<(String, String)>,
}

/// Looks once.
pub async fn look(cluster: &Cluster, arguments: &Arguments) -> Result<Snapshot, Error> {
    let Arguments { pool, all_namespaces, once: _, interval: _, sort: _ } = arguments;
    let by_pool = pool.as_ref().map(|pool| format!("spec.poolRef.name={pool}"));
    let agents = list::<Agent>(cluster, *all_namespaces, by_pool).await?;
    let by_name = pool.as_ref().map(|pool| format!("metadata.name={pool}"));
    let pools = list::<AgentPool>(cluster, *all_namespaces, by_name).await?;
    if let (Some(name), true) = (pool, pools.is_empty()) {
        let plural = AgentPool::plural(&()).into_owned();
        return Err(Error::NotFound {
            kind: AgentPool::kind(&()).into_owned(),
            plural,
            name: name.clone(),
            namespace: cluster.namespace.clone(),
        });
    }
    let mut snapshot = Snapshot {
        namespace: (!all_namespaces).then(|| cluster.namespace.clone()),
        pool: pool.clone(),
        unreadable: agents.iter().filter(|agent| agent.0.is_err()).count() + pools.iter().filter(|pool| pool.0.is_err()).count(),
        ..Snapshot::default()
    };
    for agent in agents.iter().filter_map(|agent| agent.0.as_ref().ok()) {
        if find::ended(agent) {
            snapshot.ended += 1;
        } else {
            snapshot.agents.push(row(agent));
        }
    }
    pools.iter().filter_map(|pool| pool.0.as_ref().ok()).for_each(|pool| add(&mut snapshot.pools, pool));
    Ok(snapshot)
}

/// Objects of a kind, from the API server's cache: at most a moment old.
async fn list<K>(cluster: &Cluster, everywhere: bool, fields: Option<String>) -> Result<Vec<DeserializeGuard<K>>, Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let api: Api<DeserializeGuard<K>> = if everywhere { Api::all(cluster.client.clone()) } else { cluster.api() };
    let params = ListParams { field_selector: fields, ..ListParams::default().match_any() };
    Ok(api.list(&params).await.map_err(Error::of::<K>(&cluster.namespace, ""))?.items)
}

fn row(agent: &Agent) -> Row {
    let status = agent.status.clone().unwrap_or_default();
    Row {
        namespace: agent.namespace().unwrap_or_default(),
        name: agent.name_any(),
        display_name: agent.spec.display_name.clone().unwrap_or_default(),
        pool: agent.spec.pool_ref.name.clone(),
        type_: agent.labels().get(names::TYPE_LABEL).cloned().unwrap_or_default(),
        phase: status.phase,
        action: status.current_action.unwrap_or_default(),
        item: status.current_item.map(|item| item.name).unwrap_or_default(),
        tokens: status.tokens.and_then(|tokens| tokens.used),
        heartbeat: status.last_heartbeat_time.map(|time| time.0),
        activity: status.last_activity_time.map(|time| time.0),
        created: agent.creation_timestamp().map(|time| time.0),
    }
}

fn add(pools: &mut Pools, pool: &AgentPool) {
    let status = pool.status.clone().unwrap_or_default();
    let number = |number: Option<i32>| i64::from(number.unwrap_or(0));
    pools.count += 1;
    pools.desired += number(status.desired);
    pools.agents += number(status.agents);
    pools.active += number(status.active);
    pools.idle += number(status.idle);
    let hindered = [types::STALLED, types::BLOCKED]
        .iter()
        .find_map(|type_| find::condition(&status.conditions, type_).filter(|condition| condition.status == "True"));
    pools.hindered.extend(hindered.map(|condition| (pool.name_any(), condition.reason.clone())));
}
