//! `top`: the agents that have not ended.

use std::borrow::Cow;
use std::cmp::Reverse;

use jiff::Timestamp;
use kube::{Resource as _, ResourceExt as _};
use ratatui::style::{Color, Modifier, Style};

use super::state::Order;
use super::subject::{Subject, list, nonzero_counts, scope_text};
use super::view::Sheet;
use crate::api::agent::AgentPhase;
use crate::api::conditions::types;
use crate::api::{Agent, AgentPool, names};
use crate::connect::Cluster;
use crate::error::Error;
use crate::find;
use crate::table::{age, or_nothing};

/// The columns that shrink on a narrow screen, with their minimum widths.
const SHRINKABLE_COLUMNS: [(&str, usize); 5] = [("ACTION", 8), ("ITEM", 8), ("EXTERNAL", 8), ("POOL", 6), ("DISPLAY", 10)];
/// The most pools with problems in the summary.
const MAX_HINDERED_POOLS: usize = 3;

/// The agents to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agents {
    /// The pool; none for all pools.
    pub pool: Option<String>,
    /// Whether to show all namespaces.
    pub everywhere: bool,
}

/// The sort orders of agents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Sort {
    /// By display name
    #[default]
    Name,
    /// By phase, in the order of an agent's life
    Phase,
    /// The oldest first
    Age,
    /// The most spent tokens first
    Tokens,
    /// The latest activity first
    Activity,
}

impl Order for Sort {}

impl Sort {
    /// The agents in this order; equal ones by name.
    pub fn sorted(self, rows: &[Row]) -> Vec<&Row> {
        let mut rows: Vec<&Row> = rows.iter().collect();
        rows.sort_by(|one, other| {
            let by = match self {
                Self::Name => one.display_name.cmp(&other.display_name),
                // An agent without a phase comes first, because None is less.
                Self::Phase => one.phase.map(|phase| phase as u8).cmp(&other.phase.map(|phase| phase as u8)),
                Self::Age => (one.created.is_none(), one.created).cmp(&(other.created.is_none(), other.created)),
                Self::Tokens => Reverse(one.tokens).cmp(&Reverse(other.tokens)),
                Self::Activity => Reverse(one.activity).cmp(&Reverse(other.activity)),
            };
            by.then_with(|| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)))
        });
        rows
    }
}

/// The data of one refresh.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The namespace; none for all namespaces.
    pub namespace: Option<String>,
    /// The pool; none for all pools.
    pub pool: Option<String>,
    /// The agents that have not ended.
    pub agents: Vec<Row>,
    /// The number of ended agents, which are kept for reading.
    pub ended: usize,
    /// The number of stored objects that do not fit their type.
    pub unreadable: usize,
    /// The totals of the pools.
    pub pools: Pools,
}

/// One agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its display name.
    pub display_name: String,
    /// Its pool.
    pub pool: String,
    /// Its type.
    pub type_: String,
    /// Its phase.
    pub phase: Option<AgentPhase>,
    /// Its current action.
    pub action: String,
    /// The item it holds.
    pub item: String,
    /// Tokens it has spent.
    pub tokens: Option<i64>,
    /// Its last heartbeat, as last written.
    pub heartbeat: Option<Timestamp>,
    /// Its program's last activity, as last written.
    pub activity: Option<Timestamp>,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// The user that registered it, if it runs outside the cluster.
    pub external: Option<String>,
}

/// The totals of the pools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pools {
    /// The number of pools.
    pub count: usize,
    /// Desired agents.
    pub desired: i64,
    /// Existing agents.
    pub agents: i64,
    /// Agents that hold an item.
    pub active: i64,
    /// Agents that hold no item.
    pub idle: i64,
    /// Pools that are Blocked or Stalled: name and reason.
    pub problem_pools: Vec<(String, String)>,
}

impl Subject for Agents {
    type Snapshot = Snapshot;
    type Sort = Sort;

    async fn look(&self, cluster: &Cluster) -> Result<Snapshot, Error> {
        let Self { pool, everywhere } = self;
        let by_pool = pool.as_ref().map(|pool| format!("spec.poolRef.name={pool}"));
        let agents = list::<Agent>(cluster, *everywhere, by_pool).await?;
        let by_name = pool.as_ref().map(|pool| format!("metadata.name={pool}"));
        let pools = list::<AgentPool>(cluster, *everywhere, by_name).await?;
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
            namespace: (!everywhere).then(|| cluster.namespace.clone()),
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
        pools.iter().filter_map(|pool| pool.0.as_ref().ok()).for_each(|pool| add_to_totals(&mut snapshot.pools, pool));
        Ok(snapshot)
    }

    fn sheet(snapshot: &Snapshot, sort: Sort, now: Timestamp) -> Sheet {
        let everywhere = snapshot.namespace.is_none();
        let external = snapshot.agents.iter().any(|row| row.external.is_some());
        let pool = snapshot.pool.as_ref().map(|pool| format!(", pool {pool}")).unwrap_or_default();
        Sheet {
            scope: format!("{}{pool}", scope_text(snapshot.namespace.as_deref())),
            summary: vec![phases(snapshot), pools(snapshot)],
            header: header(everywhere, external),
            rows: sort.sorted(&snapshot.agents).into_iter().map(|row| (cells(row, everywhere, external, now), style(row.phase))).collect(),
            shrinkable_columns: &SHRINKABLE_COLUMNS,
        }
    }
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
        external: agent.spec.external.as_ref().map(|external| external.user.clone()),
    }
}

fn add_to_totals(pools: &mut Pools, pool: &AgentPool) {
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
    pools.problem_pools.extend(hindered.map(|condition| (pool.name_any(), condition.reason.clone())));
}

/// How many agents are in each phase.
fn phases(snapshot: &Snapshot) -> String {
    let known = [
        AgentPhase::Active,
        AgentPhase::Idle,
        AgentPhase::Running,
        AgentPhase::Spawning,
        AgentPhase::Paused,
        AgentPhase::Hibernated,
        AgentPhase::Goodbye,
        AgentPhase::Stale,
    ];
    let count = |phase: Option<AgentPhase>| snapshot.agents.iter().filter(|row| row.phase == phase).count();
    let mut words = vec![format!("Agents {}", snapshot.agents.len())];
    words.extend(nonzero_counts(known.map(|phase| (phase.name(), count(Some(phase))))));
    words.extend(nonzero_counts([("new", count(None)), ("ended", snapshot.ended), ("unreadable", snapshot.unreadable)]));
    words.join("  ")
}

/// The summary of the pools.
fn pools(snapshot: &Snapshot) -> String {
    let pools = &snapshot.pools;
    let mut text =
        format!("Pools {}  desired {}  agents {}  active {}  idle {}", pools.count, pools.desired, pools.agents, pools.active, pools.idle);
    if !pools.problem_pools.is_empty() {
        let told: Vec<String> =
            pools.problem_pools.iter().take(MAX_HINDERED_POOLS).map(|(name, reason)| format!("{name} {reason}")).collect();
        let more = pools.problem_pools.len().saturating_sub(MAX_HINDERED_POOLS);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        text.push_str(&format!("  problems: {}{more}", told.join(", ")));
    }
    text
}

fn header(everywhere: bool, external: bool) -> Vec<Cow<'static, str>> {
    let namespace = everywhere.then_some("NAMESPACE");
    let others = ["DISPLAY", "POOL", "TYPE", "PHASE", "ACTION", "ITEM", "TOKENS", "BEAT", "AGE", "NAME"];
    namespace.into_iter().chain(others).chain(external.then_some("EXTERNAL")).map(Cow::Borrowed).collect()
}

fn cells(row: &Row, everywhere: bool, with_external: bool, now: Timestamp) -> Vec<String> {
    let Row { namespace, name, display_name, pool, type_, phase, action, item, tokens, heartbeat, activity: _, created, external } = row;
    let namespace = everywhere.then(|| namespace.clone());
    let others = [
        display_name.clone(),
        pool.clone(),
        type_.clone(),
        or_nothing(phase.map(AgentPhase::name)),
        action.clone(),
        item.clone(),
        or_nothing(*tokens),
        age(*heartbeat, now),
        age(*created, now),
        name.clone(),
    ];
    let external = with_external.then(|| or_nothing(external.as_ref()));
    namespace.into_iter().chain(others).chain(external).collect()
}

fn style(phase: Option<AgentPhase>) -> Style {
    match phase {
        Some(AgentPhase::Active) => Style::new().fg(Color::Green),
        Some(AgentPhase::Spawning | AgentPhase::Goodbye | AgentPhase::Paused) => Style::new().fg(Color::Yellow),
        Some(AgentPhase::Stale | AgentPhase::ForceStopped) => Style::new().fg(Color::Red),
        Some(AgentPhase::Hibernated | AgentPhase::Stopped) | None => Style::new().add_modifier(Modifier::DIM),
        Some(AgentPhase::Running | AgentPhase::Idle) => Style::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(rows: &[&Row]) -> String {
        rows.iter().map(|row| row.name.as_str()).collect()
    }

    #[test]
    fn agents_stand_in_the_order_that_was_chosen() {
        let time = |second| jiff::Timestamp::from_second(second).ok();
        let row = |name: &str, display: &str, phase, tokens, activity, created| Row {
            name: name.into(),
            display_name: display.into(),
            phase,
            tokens,
            activity: time(activity),
            created: time(created),
            ..Row::default()
        };
        let rows = [
            row("a", "wise", Some(AgentPhase::Idle), Some(5), 3, 30),
            row("b", "calm", Some(AgentPhase::Spawning), None, 9, 20),
            row("c", "calm", None, Some(7), 1, 10),
            Row { name: "d".into(), display_name: "able".into(), phase: Some(AgentPhase::Stale), ..Row::default() },
        ];
        let orders = [(Sort::Name, "dbca"), (Sort::Phase, "cbad"), (Sort::Age, "cbad"), (Sort::Tokens, "cabd"), (Sort::Activity, "bacd")];
        for (sort, expected) in orders {
            assert_eq!(named(&sort.sorted(&rows)), expected, "{sort:?}");
        }
        let outside = Row { external: Some("alice".into()), ..Row::default() };
        let shown = |agents: Vec<Row>| Agents::sheet(&Snapshot { agents, ..Snapshot::default() }, Sort::Name, Timestamp::UNIX_EPOCH);
        let sheet = shown(vec![outside, Row::default()]);
        assert_eq!(sheet.header.last().map(AsRef::as_ref), Some("EXTERNAL"), "agents outside the cluster say whose they are");
        let users: Vec<_> = sheet.rows.iter().filter_map(|(cells, _)| cells.last().map(String::as_str)).collect();
        assert_eq!((users, sheet.rows[0].0.len()), (vec!["alice", ""], sheet.header.len()));
        assert_eq!(shown(vec![Row::default()]).header.last().map(AsRef::as_ref), Some("NAME"), "where there are none nothing is said");
        let mut sort = Sort::Name;
        (0..orders.len()).for_each(|_| sort = sort.next());
        assert_eq!(sort, Sort::Name);
    }
}
