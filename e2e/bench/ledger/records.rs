//! Writes of the ledger's records to the real API server, as fast as it takes them, without the governor's bound of
//! twenty a second.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use futures::StreamExt as _;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Client, ResourceExt};
use spillway::api::Budget;
use spillway::governor::budget::Meter;
use spillway::governor::budget::facts::Project;
use spillway::governor::budget::object::{self, Object};
use spillway::governor::budget::record_writes::Job;
use spillway::policy::budget::{CallSize, Key, Route, SessionLog};

use super::world::budget;
use crate::bench_namespace::BenchNamespace;
use crate::report::{Report, Row, float, milliseconds, percentile};
use crate::size::Size;

/// Number of records, and of sessions. Each session costs each record a write.
const BUDGETS: usize = 50;
const SESSIONS: usize = 20;
/// Writes at once: one, as in the governor, and as many as a bare client tries.
const AT_ONCE: [usize; 2] = [1, 16];

/// Runs the benchmark.
pub async fn run(size: Size) -> anyhow::Result<Report> {
    let (budgets, sessions) = if size.small() { (10, 4) } else { (BUDGETS, SESSIONS) };
    let room = BenchNamespace::open("ledger").await?;
    for number in 0..budgets {
        let object = serde_json::from_value(budget(&room.namespace, &format!("b{number}"), None)).context("a Budget")?;
        room.api::<Budget>().create(&PostParams::default(), &object).await?;
    }
    let mut rows = Vec::new();
    for (epoch, at_once) in (1..).zip(AT_ONCE) {
        let meter = leader(&room, epoch).await?;
        let (mut took, mut bytes, began) = (Vec::new(), 0, Instant::now());
        for session in 0..sessions {
            demand(&meter, &room.namespace, budgets, &format!("gateway-{at_once}-{session}"));
            let jobs = futures::stream::iter(std::iter::from_fn(|| meter.next()));
            let writes: Vec<_> = jobs.map(|job| write(&room.client, &meter, job)).buffer_unordered(at_once).collect().await;
            for written in writes {
                let (milliseconds, size) = written?;
                took.push(milliseconds);
                bytes = bytes.max(size);
            }
        }
        let seconds = began.elapsed().as_secs_f64();
        anyhow::ensure!(took.len() >= budgets * sessions, "{} records were written, not {}", took.len(), budgets * sessions);
        rows.extend([
            Row::one(format!("{at_once} at once: records written a second"), float(took.len()) / seconds, "/s"),
            Row::one(format!("{at_once} at once: one write, p50"), percentile(&took, 50.0), "ms"),
            Row::one(format!("{at_once} at once: one write, p99"), percentile(&took, 99.0), "ms"),
            Row::one(format!("{at_once} at once: bytes of the largest write"), float(bytes), ""),
        ]);
    }
    // The controllers of benchmarks that follow serve all namespaces.
    room.api::<Budget>().delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    let method = format!(
        "{budgets} Budgets; {sessions} sessions of gateways, one after the other, ask each of them for a first hold, which waits for a \
         write of its record. The measuring program, which counts as the leader, sends governor::budget's own patches (compare-and-swap of \
         the status, with conditions and sessions). The governor itself writes at most twenty a second"
    );
    Ok(Report::new("records of the ledger on the API server", method, rows))
}

/// A leader of this epoch that has read all objects.
async fn leader(room: &BenchNamespace, epoch: i64) -> anyhow::Result<Meter> {
    let budgets: Vec<Arc<Budget>> = room.api::<Budget>().list(&ListParams::default()).await?.into_iter().map(Arc::new).collect();
    let meter = Meter::new(epoch);
    let objects = budgets.iter().map(|budget| (Key::budget(&room.namespace, &budget.name_any()), Object::Budget(budget.clone())));
    meter.read_all(objects.collect());
    meter.set_tree(&[], &budgets, &BTreeMap::from([(room.namespace.clone(), Project::default())]));
    meter.open();
    Ok(meter)
}

/// A session asks each Budget for a hold. The answer does not matter: each request needs a write of the record.
fn demand(meter: &Meter, namespace: &str, budgets: usize, session: &str) {
    meter.begin(session, &SessionLog { next_hold: 1, ..SessionLog::default() });
    for (id, number) in (1..).zip(0..budgets) {
        let mut route = Route::new(Vec::new(), Some(Key::budget(namespace, &format!("b{number}"))), "worker");
        let body = CallSize { bytes: 800, other_tokens: 0, output: Some(64), model_output: None, thinking: 0, choices: 1 };
        drop(meter.hold(session, id, &mut route, &body, (namespace, "bench")));
    }
}

/// Milliseconds of one write, and its bytes.
async fn write(client: &Client, meter: &Meter, job: Job) -> anyhow::Result<(f64, usize)> {
    let (object, patch) = meter.prepare(&job).context("something to write")?;
    let (bytes, began) = (patch.to_string().len(), Instant::now());
    let (stored, _) = object::write(client, &object, &patch).await?;
    let took = milliseconds(began.elapsed());
    drop(meter.stored(&job, stored));
    Ok((took, bytes))
}
