//! Items that a bare client makes: those that are measured, and those that only wait. It measures only how fast they
//! can be made.

use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, MicroTime};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use spillway::api::shared::LocalRef;
use spillway::api::{WorkItem, WorkItemSpec, WorkQueue};

use super::{LIMIT, Stage, cost};
use crate::bench_namespace::BenchNamespace;
use crate::report::{Report, Row, float};

/// The queue.
pub const QUEUE: &str = "work";
/// The queue's limit. No benchmark reaches it.
pub const MAX_PENDING: usize = 100_000;
/// Finished items that a queue keeps by default.
pub const KEPT: usize = 500;
/// Requests that the bare client has under way at once.
pub const AT_ONCE: usize = 64;
/// Bytes of each payload: a few sentences.
pub const PAYLOAD: usize = 256;
/// Label with the part of the benchmark that an item belongs to.
const PART: &str = "bench";
/// Priority of items that only wait: after all others.
const LAST: i32 = -1000;
/// The queue's counts may be written once more within five seconds.
const SETTLE: Duration = Duration::from_secs(10);
/// Interval between two counts of thousands of items.
const LOOK: Duration = Duration::from_secs(1);

/// An item of one part, which any worker may take.
pub fn item(part: &str, name: &str) -> WorkItem {
    let spec = WorkItemSpec {
        queue_ref: Some(LocalRef { name: QUEUE.to_owned() }),
        payload: "Mend what is broken. ".chars().cycle().take(PAYLOAD).collect(),
        submit_time: Some(MicroTime(Timestamp::now())),
        ..WorkItemSpec::default()
    };
    let mut item = WorkItem::new(name, spec);
    item.metadata.labels = Some([(PART.to_owned(), part.to_owned())].into());
    item
}

/// An item of lower priority for an agent with a label that none has: it is ready, and no worker takes it.
fn unclaimable_item(name: &str) -> WorkItem {
    let mut item = item("waiting", name);
    item.spec.priority = LAST;
    item.spec.agent_selector =
        Some(LabelSelector { match_labels: Some([("bench".to_owned(), "nobody".to_owned())].into()), ..LabelSelector::default() });
    item
}

/// Applies the queue, which keeps `kept` finished items.
pub async fn apply_queue(room: &BenchNamespace, kept: usize) -> anyhow::Result<()> {
    let spec = json!({"limits": {"maxPending": MAX_PENDING, "maxFinished": kept}});
    let object = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkQueue", "metadata": {"name": QUEUE}, "spec": spec});
    room.api::<WorkQueue>().patch(QUEUE, &PatchParams::apply("bench").force(), &Patch::Apply(object)).await?;
    Ok(())
}

/// Makes `count` items, 64 at once.
pub async fn make(room: &BenchNamespace, count: usize, item: impl Fn(usize) -> WorkItem) -> anyhow::Result<()> {
    let api = room.api::<WorkItem>();
    futures::stream::iter(0..count)
        .map(|number| {
            let (api, item) = (&api, item(number));
            async move { api.create(&PostParams::default(), &item).await.map(drop) }
        })
        .buffer_unordered(AT_ONCE)
        .try_collect::<Vec<()>>()
        .await?;
    Ok(())
}

/// Number of items that these labels and fields select.
async fn count(room: &BenchNamespace, params: &ListParams) -> anyhow::Result<usize> {
    Ok(room.api::<WorkItem>().list_metadata(params).await?.items.len())
}

/// Waits until `params` select no item; the number that is left when the time limit is over.
async fn until_none(room: &BenchNamespace, params: &ListParams) -> anyhow::Result<usize> {
    let began = Instant::now();
    loop {
        let left = count(room, params).await?;
        if left == 0 || began.elapsed() >= LIMIT {
            return Ok(left);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Sets the queue to keep nothing until all finished items of a part are collected; the number of those that were not.
pub async fn collect(room: &BenchNamespace, part: &str) -> anyhow::Result<usize> {
    apply_queue(room, 0).await?;
    let left = until_none(room, &ListParams::default().labels(&format!("{PART}={part}"))).await?;
    if left > 0 {
        println!("  after {} s {left} finished items were not collected", LIMIT.as_secs());
    }
    apply_queue(room, KEPT).await?;
    Ok(left)
}

/// Makes the items that wait, and waits until they are at rest.
pub(super) async fn fill(stage: &mut Stage) -> anyhow::Result<Report> {
    let (room, wanted) = (&stage.room, stage.scale.waiting);
    let (since, began, before) = (Timestamp::now(), Instant::now(), stage.used()?);
    make(room, wanted, |number| unclaimable_item(&format!("waiting-{number:05}"))).await?;
    let made = began.elapsed().as_secs_f64();
    // The phase Ready of an unclaimed item is stored after two seconds.
    let unwritten = ListParams::default().labels(&format!("{PART}=waiting")).fields("status.phase!=Ready");
    let left = until_none(room, &unwritten).await?;
    anyhow::ensure!(left == 0, "after {} s {left} of {wanted} items were not Ready", LIMIT.as_secs());
    let ready = began.elapsed().as_secs_f64();
    let used = before.spent_until(&stage.used()?);
    tokio::time::sleep(SETTLE).await;
    let mut rows = vec![
        Row::one("items created a second", float(wanted) / made, "/s"),
        Row::one("first create -> all are Ready and that is stored", ready, "s"),
        Row::one("last create -> all are Ready and that is stored", ready - made, "s"),
    ];
    rows.extend(used.rows(wanted));
    rows.extend(cost::writes_per_item(&cost::spillway_writes(room, since), wanted, None));
    rows.extend(stage.memory()?);
    stage.waiting = wanted;
    let method = format!(
        "a bare client makes {wanted} items, {AT_ONCE} at once, in the queue of the {} workers: of lower priority than all \
         others, and for agents with a label that none has. So they are ready, and every look for work meets them. From the first create \
         until the stored phase of all is Ready (checked each second)",
        stage.scale.agents
    );
    Ok(Report::new(format!("{wanted} items are made to wait"), method, rows))
}

/// Lets the workers finish items that are kept afterwards.
pub(super) async fn finish(stage: &mut Stage) -> anyhow::Result<Report> {
    let wanted = stage.scale.finished();
    apply_queue(&stage.room, wanted).await?;
    let hands = stage.fleet.hands();
    hands.set_work_time(Duration::ZERO);
    drop(hands.take());
    let began = Instant::now();
    make(&stage.room, wanted, |number| item("kept", &format!("kept-{number:05}"))).await?;
    stage.all_end(wanted).await?;
    let (took, ended) = (began.elapsed().as_secs_f64(), hands.end_count());
    anyhow::ensure!(ended >= wanted, "{ended} of {wanted} items were finished");
    stage.finished = wanted;
    let rows = vec![Row::one("first create -> all are finished", took, "s"), Row::one("finished a second", float(wanted) / took, "/s")];
    let method = format!("a bare client makes {wanted} items, {AT_ONCE} at once, which the workers do at once; the queue keeps so many");
    Ok(Report::new(format!("{wanted} items are done and kept"), method, rows))
}
