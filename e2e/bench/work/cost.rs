//! The cost of work: processor time, memory, and writes to the API server. It only measures.

use std::time::Instant;

use jiff::Timestamp;

use super::Stage;
use crate::audit::{self, Write};
use crate::bench_namespace::BenchNamespace;
use crate::processes;
use crate::report::{Row, float};
use crate::writes::by_kind;

/// Processor time of each process in seconds, so far or between two samples.
#[derive(Clone, Copy, Debug)]
pub struct Used {
    controller: f64,
    gateway: f64,
    api_server: f64,
    measuring: f64,
}

/// [`Used`] at a moment.
#[derive(Clone, Copy, Debug)]
pub struct CostSample {
    used: Used,
    at: Instant,
}

/// [`Used`] between two samples.
#[derive(Clone, Copy, Debug)]
pub struct Spent {
    used: Used,
    seconds: f64,
}

impl Stage {
    /// Processor time of all processes so far.
    pub fn used(&self) -> anyhow::Result<CostSample> {
        let used = Used {
            controller: self.controller.processor_seconds()?,
            gateway: self.gateway.processor_seconds()?,
            api_server: processes::processor_seconds(self.api_server)?,
            measuring: processes::processor_seconds(std::process::id())?,
        };
        Ok(CostSample { used, at: Instant::now() })
    }

    /// Memory of controller and gateway now.
    pub fn memory(&self) -> anyhow::Result<Vec<Row>> {
        let mut rows = Vec::new();
        for (who, memory) in [("controller", self.controller.memory()?), ("gateway", self.gateway.memory()?)] {
            rows.push(Row::one(format!("{who}: resident"), memory.resident, "MiB"));
            rows.push(Row::one(format!("{who}: peak since its start"), memory.peak, "MiB"));
        }
        Ok(rows)
    }
}

impl CostSample {
    /// Processor time between this sample and a later one.
    pub fn spent_until(&self, later: &Self) -> Spent {
        let Used { controller, gateway, api_server, measuring } = self.used;
        let used = Used {
            controller: later.used.controller - controller,
            gateway: later.used.gateway - gateway,
            api_server: later.used.api_server - api_server,
            measuring: later.used.measuring - measuring,
        };
        Spent { used, seconds: later.at.duration_since(self.at).as_secs_f64() }
    }
}

impl Spent {
    /// Processor time for each of `items` items, and in percent of one core.
    pub fn rows(&self, items: usize) -> Vec<Row> {
        let Used { controller, gateway, api_server, measuring } = self.used;
        let all = [
            ("controller", controller),
            ("gateway", gateway),
            ("API server", api_server),
            ("measuring program, its workers and its submitter", measuring),
        ];
        let rows = all.into_iter().flat_map(|(who, seconds)| {
            [
                Row::one(format!("{who}: processor time"), seconds * 1000.0 / float(items), "ms/item"),
                Row::one(format!("{who}: of one core"), seconds * 100.0 / self.seconds, "%"),
            ]
        });
        rows.collect()
    }
}

/// Spillway's writes in `room` since then, except those of leases.
pub fn spillway_writes(room: &BenchNamespace, since: Timestamp) -> Vec<Write> {
    let writes = audit::writes(&room.namespace, since).into_iter();
    writes.filter(|write| write.user_agent.starts_with("spillway-") && write.object_ref.resource != "leases").collect()
}

/// These writes for each of `items` items, in total and by kind.
pub fn writes_per_item(writes: &[Write], items: usize, goal: Option<&'static str>) -> Vec<Row> {
    let each = |count: usize| float(count) / float(items);
    let all = Row::one("Spillway's API writes, lease renewals apart", each(writes.len()), "/item");
    let mut rows = vec![goal.into_iter().fold(all, Row::goal)];
    rows.extend(by_kind(writes).into_iter().map(|(kind, count)| Row::one(format!("of them {kind}"), each(count), "/item")));
    rows
}
