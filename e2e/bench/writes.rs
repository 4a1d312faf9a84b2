//! API writes of an agent's life: all writes of the operator except those of its lease, divided by the agents.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::api::ListParams;
use spillway::api::Agent;

use crate::audit::{self, Write};
use crate::bench_namespace::{BenchNamespace, Nodes, within};
use crate::report::{Report, Row, float};
use crate::simulated::Fleet;
use crate::size::Size;

const FAKE: usize = 200;
const REAL: usize = 30;
const LIMIT: Duration = Duration::from_secs(240);
/// Counts in a pool's status may be written once more within five seconds.
const SETTLE: Duration = Duration::from_secs(8);
const POOL: &str = "pool";

/// Runs it on both kinds of nodes at once: writes are counted, not timed, and the ends of KWOK's pods are mostly
/// waiting.
pub async fn run(size: Size) -> anyhow::Result<Vec<Report>> {
    let (many, few) = (size.scaled_count(FAKE), size.scaled_count(REAL));
    let (fake, real) = tokio::try_join!(life("writes-fake", many, Nodes::Fake), life("writes-real", few, Nodes::Real))?;
    let method = "one pool is made Ready, with every agent registered. It is left alone for 8 s, and scaled to 0, until no Agent is left and 8 s \
                  more. All writes with the operator's User-Agent in the audit log are counted, including refused ones, except those of \
                  leases, and divided by the agents. The pool's own writes are among them";
    Ok(vec![
        Report::new(format!("API writes an agent's life, {many} agents on KWOK nodes, simulated sidecars"), method, fake),
        Report::new(format!("API writes an agent's life, {few} agents on the real node"), method, real),
    ])
}

async fn life(name: &str, agents: usize, nodes: Nodes) -> anyhow::Result<Vec<Row>> {
    let room = BenchNamespace::open(name).await?;
    let _operator = room.start_operators().await?;
    let _fleet = (nodes == Nodes::Fake).then(|| Fleet::start(&room));
    let began = jiff::Timestamp::now();
    room.apply_pool(POOL, agents, nodes).await?;
    room.settled(POOL, agents, LIMIT).await?;
    tokio::time::sleep(SETTLE).await;
    let grown = jiff::Timestamp::now();
    room.resize(POOL, 0).await?;
    room.settled(POOL, 0, LIMIT).await?;
    within(LIMIT, "no Agent is left", async || {
        let left = room.api::<Agent>().list_metadata(&ListParams::default()).await?.items.len();
        anyhow::ensure!(left == 0, "{left} are left");
        Ok(())
    })
    .await?;
    let ended = jiff::Timestamp::now();
    tokio::time::sleep(SETTLE).await;
    let ours: Vec<Write> = audit::writes(&room.namespace, began)
        .into_iter()
        .filter(|write| write.holder().is_some() && write.object_ref.resource != "leases")
        .collect();
    let (start, end): (Vec<_>, Vec<_>) = ours.into_iter().partition(|write| write.stage_timestamp < grown);
    let each = |count: usize| float(count) / float(agents);
    let mut rows = vec![
        Row::one("whole life", each(start.len() + end.len()), "/agent"),
        Row::one("created until Ready", each(start.len()), "/agent"),
        Row::one("scaled to 0 until gone", each(end.len()), "/agent"),
        Row::one("seconds from scaled to 0 until gone", ended.duration_since(grown).as_secs_f64(), "s"),
    ];
    for (phase, writes) in [("created until Ready", start), ("scaled to 0 until gone", end)] {
        rows.extend(by_kind(&writes).into_iter().map(|(kind, count)| Row::one(format!("{phase}: {kind}"), each(count), "/agent")));
    }
    Ok(rows)
}

/// Number of writes for each verb and resource. Refused ones are counted apart.
pub fn by_kind(writes: &[Write]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for write in writes {
        let audit::Object { resource, subresource, .. } = &write.object_ref;
        let resource = if subresource.is_empty() { resource.clone() } else { format!("{resource}/{subresource}") };
        let refused = match write.response_status.code {
            200..300 => String::new(),
            code => format!(" ({code})"),
        };
        *counts.entry(format!("{} {resource}{refused}", write.verb)).or_insert(0) += 1;
    }
    counts
}
