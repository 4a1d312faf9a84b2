//! A new controller: the time until it gives out work again, with all existing items, and its memory afterwards.

use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::{LIMIT, Stage, items};
use crate::bench_namespace::within;
use crate::operator::Operator;
use crate::report::{Report, Row, float};

const RUNS: usize = 3;
/// Time limit for a controller to end.
const END: Duration = Duration::from_secs(60);
/// How long it is left alone before its memory is read.
const REST: Duration = Duration::from_secs(30);

/// Seconds from the start of the process.
struct Times {
    /// Until it leads, with its caches filled.
    leads: f64,
    /// Until the gateway is connected to it.
    gateway: f64,
    /// Until the first answer that gives an agent an item.
    first: f64,
    /// Until all items that waited for it are done.
    all: f64,
}

/// Runs the benchmark.
pub async fn run(stage: &mut Stage) -> anyhow::Result<Report> {
    stage.fleet.hands().set_work_time(Duration::ZERO);
    let mut times = Vec::new();
    for _ in 0..stage.size.runs(RUNS) {
        stage.all_wait().await?;
        times.push(measure_start(stage).await?);
    }
    let rest = stage.size.time(REST);
    tokio::time::sleep(rest).await;
    let (now, known) = (stage.controller.memory()?, stage.waiting + stage.finished);
    let of = |time: fn(&Times) -> f64| times.iter().map(time).collect::<Vec<_>>();
    let agents = stage.scale.agents;
    let resident = Row::one("controller: resident", now.resident, "MiB");
    let mut rows = vec![
        Row::spread("started -> leads, all items listed", of(|times| times.leads), "s"),
        Row::spread("started -> the gateway is connected to it", of(|times| times.gateway), "s"),
        Row::spread("started -> first claim answered", of(|times| times.first), "s"),
        Row::spread(format!("started -> {agents} items that waited for it are done"), of(|times| times.all), "s"),
        if known > 0 { resident.goal("<= 64 MiB (of 2,000 pods and 10,000 items)") } else { resident },
        Row::one("controller: of it anonymous", now.anonymous, "MiB"),
        Row::one("controller: peak since its start", now.peak, "MiB"),
    ];
    match stage.bare {
        Some(bare) if known > 0 => {
            let each = (now.resident - bare.resident) * 1024.0 / float(known);
            rows.push(Row::one("controller: more than without items, for each item", each, "KiB/item"));
        }
        Some(_) | None => stage.bare = Some(now),
    }
    let method = format!(
        "the controller gets SIGTERM. When it has ended, a bare client makes {agents} items that the {agents} workers may take. Then \
         another controller is started. This is done {} times. The times until it leads and until the gateway's connection are from their \
         logs, those of claims from the workers' answers. Workers without an answer ask again at growing intervals. VmRSS and VmHWM are \
         those of the last controller {} s after that",
        times.len(),
        rest.as_secs()
    );
    Ok(Report::new(format!("a new controller, {agents} agents, {}", stage.describe_other_items()), method, rows))
}

async fn measure_start(stage: &mut Stage) -> anyhow::Result<Times> {
    let hands = stage.fleet.hands();
    stage.controller.stop(END).await?;
    stage.replicas += 1;
    let (number, wanted) = (stage.replicas, stage.scale.agents);
    let part = format!("start-{number}");
    items::make(&stage.room, wanted, |item| items::item(&part, &format!("{part}-{item:05}"))).await?;
    drop(hands.take());
    let (told, began) = (jiff::Timestamp::now(), Instant::now());
    stage.controller = Operator::start(&stage.room, &format!("replica-{number}"))?;
    let first = within(LIMIT, "a claim is answered", async || hands.first_claim().context("none is")).await?;
    stage.all_end(wanted).await?;
    let log = hands.take();
    anyhow::ensure!(log.ends.len() >= wanted, "{} of {wanted} items were finished", log.ends.len());
    // If no finished items are to be kept, these are collected too.
    if stage.finished == 0 {
        let left = items::collect(&stage.room, &part).await?;
        anyhow::ensure!(left == 0, "{left} finished items were not collected");
    }
    let last = log.ends.iter().map(|end| end.at).max().context("an end")?;
    let since = |at: jiff::Timestamp| at.duration_since(told).as_secs_f64();
    Ok(Times {
        leads: since(stage.controller.led_since(told, LIMIT).await?),
        gateway: since(stage.gateway.connected_since(told, LIMIT).await?),
        first: first.duration_since(began).as_secs_f64(),
        all: last.duration_since(began).as_secs_f64(),
    })
}
