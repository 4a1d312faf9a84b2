//! Fail-over: the time from the signal to the leader, which stops or kills it, to the first write of its successor, and
//! until agents' calls are answered again.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::Signal;

use crate::audit;
use crate::bench_namespace::{BenchNamespace, Nodes};
use crate::operator::Operator;
use crate::report::{Report, Row};
use crate::simulated::Fleet;
use crate::size::Size;
use crate::watch::{Sights, watch_new_agents};

const RUNS: usize = 5;
const LIMIT: Duration = Duration::from_secs(60);
const POOL: &str = "pool";

/// Seconds from the signal.
struct Times {
    /// To the successor's write of the lease.
    lease: f64,
    /// Until a watch shows the Agent that the successor made.
    effect: f64,
    /// Until the gateway is connected to the successor.
    gateway: f64,
}

/// A namespace with two replicas, a gateway and one pool.
struct Stage {
    room: BenchNamespace,
    leader: Operator,
    standby: Operator,
    gateway: Operator,
    born: Sights,
    agents: usize,
    replicas: u32,
}

/// Runs the benchmark.
pub async fn run(size: Size) -> anyhow::Result<Vec<Report>> {
    let room = BenchNamespace::open("failover").await?;
    let (leader, gateway) = room.start_operators().await?;
    let _fleet = Fleet::start(&room);
    let standby = Operator::start(&room, "two")?;
    standby.stands_by().await?;
    room.apply_pool(POOL, 1, Nodes::Fake).await?;
    room.settled(POOL, 1, LIMIT).await?;
    let born = watch_new_agents(&room).await?;
    let mut stage = Stage { room, leader, standby, gateway, born, agents: 1, replicas: 2 };
    let runs = size.runs(RUNS);
    let mut rows = Vec::new();
    for (signal, name, goal) in [(Signal::TERM, "SIGTERM", "<= 3 s"), (Signal::KILL, "SIGKILL", "<= 20 s")] {
        let mut times = Vec::new();
        for run in 0..runs {
            // The lease is checked and renewed at fixed times, so each run begins at another moment of its period.
            tokio::time::sleep(Duration::from_millis(400) * u32::try_from(run)?).await;
            times.push(stage.measure_failover(signal).await?);
        }
        rows.push(
            Row::spread(format!("{name} -> Agent made by the other replica"), times.iter().map(|t| t.effect).collect(), "s").goal(goal),
        );
        rows.push(Row::spread(format!("{name} -> lease taken by it"), times.iter().map(|t| t.lease).collect(), "s"));
        rows.push(Row::spread(format!("{name} -> gateway connected to it"), times.iter().map(|t| t.gateway).collect(), "s"));
    }
    let method = "two replicas, a gateway and one pool on KWOK nodes. The leader gets the signal, and spec.scaling.min is raised by one at once. \
                  The clock stops when a watch shows the new Agent. The audit log must show that the other replica made it. The lease's \
                  time is the audit log's. The time of the gateway's connection, from which on agents' calls are answered again, is that \
                  of its own log";
    Ok(vec![Report::new("fail-over", method, rows)])
}

impl Stage {
    /// One fail-over; afterwards the successor leads and a new replica stands by.
    async fn measure_failover(&mut self, signal: Signal) -> anyhow::Result<Times> {
        while self.born.try_recv().is_ok() {}
        self.agents += 1;
        let (told, began) = (jiff::Timestamp::now(), Instant::now());
        self.leader.signal(signal)?;
        self.room.resize(POOL, self.agents).await?;
        let (name, seen) =
            tokio::time::timeout(LIMIT, self.born.recv()).await.context("no replica took over")?.context("the watch ended")?;
        let gateway = self.gateway.connected_since(told, LIMIT).await?.duration_since(told).as_secs_f64();
        let lease = self.verify_successor(told, &name)?;
        self.replicas += 1;
        let next = Operator::start(&self.room, &format!("replica-{}", self.replicas))?;
        self.leader = std::mem::replace(&mut self.standby, next);
        self.leader.leads(&self.room).await?;
        self.standby.stands_by().await?;
        self.room.settled(POOL, self.agents, LIMIT).await?;
        Ok(Times { lease, effect: seen.duration_since(began).as_secs_f64(), gateway })
    }

    /// Checks that the standby made the Agent; when the standby took the lease.
    fn verify_successor(&self, told: jiff::Timestamp, agent: &str) -> anyhow::Result<f64> {
        let writes = audit::writes(&self.room.namespace, told);
        let maker = writes.iter().find(|write| write.is("create", "agents") && write.object_ref.name == agent);
        let holder = maker.and_then(audit::Write::holder).unwrap_or("nobody");
        anyhow::ensure!(self.standby.is_holder(holder), "Agent {agent} was made by {holder}, not by the standby");
        let taken =
            writes.iter().find(|write| write.is("update", "leases") && write.holder().is_some_and(|who| self.standby.is_holder(who)));
        Ok(taken.context("the successor's write of the lease")?.stage_timestamp.duration_since(told).as_secs_f64())
    }
}
