//! Streams: many at once, each of thousands of events, on each way in turn. Measured are the processor time and the
//! delay of an event, and the memory of a stream in the proxy.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::task::JoinSet;

use super::load::Streamed;
use super::{Arm, Bench, failures, provider, seconds};
use crate::report::{Report, Row, float, percentile};

/// Interval between two reads of the proxy's memory.
const LOOK: Duration = Duration::from_millis(250);
/// Pause in which closed connections are cleaned up.
const REST: Duration = Duration::from_secs(2);

impl Bench<'_> {
    /// Runs the benchmark.
    pub async fn streams(&self) -> anyhow::Result<Report> {
        let mut rows = Vec::new();
        for arm in Arm::ALL {
            tokio::time::sleep(REST).await;
            rows.extend(self.streams_of(arm).await?);
        }
        let super::Scale { streams, events, pace, .. } = self.scale;
        let method = format!(
            "{streams} streams at once, each on a connection of its own, of {events} events of about 175 bytes, one each {} ms; an event \
             carries the time at which it left the provider and is timed until a caller has read it. Resident: VmRSS of the proxy (of all \
             of nginx's processes) before, and the most of it meanwhile (read each {} ms). Each proxy has carried only single calls \
             before. The gateway with HTTP/2 follows the one with HTTP/1.1 in the same process, so its memory shows only what it \
             needs beyond that. {}",
            pace.as_millis(),
            LOOK.as_millis(),
            self.method(),
        );
        Ok(Report::new(format!("{streams} streams at once"), method, rows))
    }

    async fn streams_of(&self, arm: Arm) -> anyhow::Result<Vec<Row>> {
        let super::Scale { streams, events, .. } = self.scale;
        let (body, count) = (provider::body(provider::STREAM, 1024), Arc::new(AtomicUsize::new(0)));
        let (used, before, began) = (self.used(arm)?, self.resident(arm)?, Instant::now());
        let mut tasks = JoinSet::new();
        for number in 0..streams {
            let (target, body, count) = (self.target(arm)?.clone(), body.clone(), count.clone());
            tasks.spawn(async move { target.stream(number, &body, usize::MAX, &count).await });
        }
        let (mut most, mut all, mut failed) = (before, Vec::<Streamed>::new(), Vec::new());
        let mut looks = tokio::time::interval(LOOK);
        while !tasks.is_empty() {
            tokio::select! {
                Some(ended) = tasks.join_next() => match ended.context("a stream's task")? {
                    Ok(streamed) => all.push(streamed),
                    Err(error) => failed.push(format!("{error:#}")),
                },
                _ = looks.tick() => most = most.max(self.resident(arm)?),
            }
        }
        let (took, used) = (seconds(began), self.used(arm)?.since(used));
        let count = count.load(Ordering::Relaxed);
        let whole = all.iter().filter(|streamed| streamed.is_complete && streamed.delays.len() == events).count();
        let delays: Vec<f64> = all.into_iter().flat_map(|streamed| streamed.delays).collect();
        let name = |what: &str| format!("{}: {what}", arm.label());
        let mut rows = vec![
            Row::one(name("streams that came whole"), float(whole), ""),
            Row::one(name("events a second"), float(count) / took, "/s"),
            Row::one(name("an event left -> read, p50"), percentile(&delays, 50.0), "ms"),
            Row::one(name("an event left -> read, p99"), percentile(&delays, 99.0), "ms"),
        ];
        if arm != Arm::Straight {
            let each = Row::one(name("resident, for each stream"), (most - before) * 1024.0 / float(streams), "KiB");
            rows.push(Row::one(name("resident before"), before, "MiB"));
            rows.push(if arm == Arm::Nginx { each } else { each.goal("<= 25 KiB") });
            rows.push(Row::one(name("processor time of the proxy"), used.proxy * 1_000_000.0 / float(count), "us/event"));
        }
        if matches!(arm, Arm::Gateway | Arm::GatewayH2) {
            rows.push(Row::one(name("processor time of the controller"), used.controller * 1000.0 / float(streams), "ms/stream"));
        }
        rows.extend(failures(arm.label(), &failed));
        Ok(rows)
    }

    /// Resident memory of the proxy of an arm, in MiB.
    fn resident(&self, arm: Arm) -> anyhow::Result<f64> {
        match arm {
            Arm::Straight => Ok(0.0),
            Arm::Nginx => self.nginx.resident(),
            Arm::Gateway | Arm::GatewayH2 => Ok(self.stage.gateway.memory()?.resident),
        }
    }
}
