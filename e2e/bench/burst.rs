//! A small pool from nothing, several times: the times until the first and the thirtieth pod are created.

use std::time::Duration;

use anyhow::Context as _;

use crate::audit;
use crate::bench_namespace::{BenchNamespace, Nodes};
use crate::report::{Report, Row};
use crate::simulated::Fleet;
use crate::size::Size;

const RUNS: usize = 5;
const AGENTS: usize = 30;
const LIMIT: Duration = Duration::from_secs(120);

/// Runs the benchmark.
pub async fn run(size: Size) -> anyhow::Result<Vec<Report>> {
    let room = BenchNamespace::open("burst").await?;
    let _operator = room.start_operators().await?;
    let _fleet = Fleet::start(&room);
    let (mut first, mut all, mut ready) = (Vec::new(), Vec::new(), Vec::new());
    let runs = size.runs(RUNS);
    for run in 0..runs {
        let name = format!("burst{run}");
        let applied = jiff::Timestamp::now();
        room.apply_pool(&name, AGENTS, Nodes::Fake).await?;
        room.settled(&name, AGENTS, LIMIT).await?;
        ready.push(jiff::Timestamp::now().duration_since(applied).as_secs_f64());
        let writes = audit::writes(&room.namespace, applied);
        let made: Vec<f64> = writes
            .iter()
            .filter(|write| write.is("create", "pods") && write.holder().is_some())
            .map(|write| write.stage_timestamp.duration_since(applied).as_secs_f64())
            .collect();
        anyhow::ensure!(made.len() == AGENTS, "{} pods were made for {AGENTS} agents", made.len());
        first.push(made.iter().copied().reduce(f64::min).context("a pod")?);
        all.push(made.iter().copied().reduce(f64::max).context("a pod")?);
    }
    let method = format!(
        "a new pool of {AGENTS} agents on KWOK nodes, with simulated sidecars, is applied, {runs} times one after the other. Times run from \
         before the apply to the audit log's time of the pods' creation, and until the pool is seen Ready, with every agent \
         registered (checked each 100 ms)"
    );
    let rows = vec![
        Row::spread("applied -> first pod created", first, "s").goal("<= 1 s"),
        Row::spread(format!("applied -> {AGENTS} pods created"), all, "s").goal("<= 3 s"),
        Row::spread("applied -> pool Ready", ready, "s"),
    ];
    Ok(vec![Report::new(format!("a pool of {AGENTS} from nothing"), method, rows)])
}
