//! Webhooks: sends notices to people's receivers, as generic JSON or in the format of Slack.
//!
//! A sender of a notice never waits: the notice goes into a bounded queue. Each webhook has a task of its own that
//! sends, retries, and gives up (`policy::outbox` decides when). Events are the record; a notice that waits when the
//! leader ends is lost. This module must not log a webhook's URL or authorization, which are secrets, nor read the body
//! of a receiver's answer.
//!
//! | file | for |
//! |---|---|
//! | [`settings`] | the list of webhooks |
//! | `notice` | a notice: an object, a reason, a message |
//! | [`body`] | the request bodies, pure |
//! | [`send`] | one attempt to send |

pub mod body;
mod notice;
pub mod send;
pub mod settings;

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::policy::outbox::{Delivery, NextStep, Outbox, Outcome};
use crate::telemetry::Metrics;
use send::Sender;
use settings::Webhook;

pub use notice::{Notice, NoticeGroup};

/// Notices that wait for the busy task of a webhook.
const NOTICE_QUEUE_CAPACITY: usize = 1024;

struct WebhookLane {
    webhook: Arc<Webhook>,
    queue: mpsc::Sender<Arc<Notice>>,
}

/// Sends notices to all webhooks. The default has none.
#[derive(Clone, Default)]
pub struct Notifier {
    lanes: Arc<[WebhookLane]>,
    metrics: Metrics,
}

impl Notifier {
    /// Starts a task for each webhook. They end with the notifier.
    pub fn start(webhooks: Vec<Webhook>, metrics: &Metrics) -> anyhow::Result<Self> {
        let mut ways = Vec::new();
        for webhook in webhooks {
            let sender = Sender::new(&webhook)?;
            let (queue, told) = mpsc::channel(NOTICE_QUEUE_CAPACITY);
            let webhook = Arc::new(webhook);
            tokio::spawn(run_webhook(webhook.clone(), sender, told, metrics.clone()));
            ways.push(WebhookLane { webhook, queue });
        }
        Ok(Self { lanes: ways.into(), metrics: metrics.clone() })
    }

    /// A notifier for tests, and the notices that all webhooks would get.
    #[cfg(test)]
    pub fn for_test() -> (Self, mpsc::Receiver<Arc<Notice>>) {
        let (queue, told) = mpsc::channel(NOTICE_QUEUE_CAPACITY);
        let webhook = serde_json::from_value(serde_json::json!({"name": "test", "urlFile": "/nowhere"})).expect("a webhook");
        (Self { lanes: [WebhookLane { webhook: Arc::new(webhook), queue }].into(), metrics: Metrics::default() }, told)
    }

    /// Queues a notice for each webhook that wants it. Never waits.
    pub fn tell(&self, notice: Notice) {
        let notice = Arc::new(notice);
        for WebhookLane { webhook, queue } in self.lanes.iter() {
            if webhook.wants(notice.about.namespace.as_deref()) && queue.try_send(notice.clone()).is_err() {
                self.metrics.notification(&webhook.name, "lost");
            }
        }
    }
}

/// Sends notices to one webhook until the notifier is dropped.
async fn run_webhook(webhook: Arc<Webhook>, sender: Sender, mut told: mpsc::Receiver<Arc<Notice>>, metrics: Metrics) {
    let began = Instant::now();
    let mut outbox: Outbox<NoticeGroup, Arc<Notice>> = Outbox::default();
    loop {
        match outbox.next(began.elapsed()) {
            NextStep::Send(telling, lost) => {
                let outcome = {
                    let trying = attempt(&webhook, &sender, &telling, lost, &metrics);
                    tokio::pin!(trying);
                    // New notices are taken meanwhile, so that the queue does not fill.
                    loop {
                        tokio::select! {
                            outcome = &mut trying => break outcome,
                            Some(notice) = told.recv() => outbox.push(NoticeGroup::of(&notice), notice, began.elapsed()),
                        }
                    }
                };
                let before = outbox.lost();
                outbox.record_attempt_end(telling, lost, outcome, began.elapsed(), rand::random());
                (before..outbox.lost()).for_each(|_| metrics.notification(&webhook.name, "lost"));
            }
            NextStep::WaitUntil(then) => tokio::select! {
                () = tokio::time::sleep_until(began + then) => {}
                notice = told.recv() => match notice {
                    Some(notice) => outbox.push(NoticeGroup::of(&notice), notice, began.elapsed()),
                    None => return,
                },
            },
            NextStep::Rest => match told.recv().await {
                Some(notice) => outbox.push(NoticeGroup::of(&notice), notice, began.elapsed()),
                None => return,
            },
        }
    }
}

async fn attempt(
    webhook: &Webhook,
    sender: &Sender,
    telling: &Delivery<NoticeGroup, Arc<Notice>>,
    lost: u64,
    metrics: &Metrics,
) -> Outcome {
    let text = body::text(webhook.format, telling, lost);
    let answer = sender.send(telling.id, text).await;
    let outcome = send::judge(&answer);
    let said = match outcome {
        Outcome::Taken => "sent",
        Outcome::Later(_) => "retried",
        Outcome::Refused => "refused",
    };
    metrics.notification(&webhook.name, said);
    let (name, reason) = (&webhook.name, &telling.key.reason);
    match (&answer, outcome) {
        (_, Outcome::Taken) => {}
        (Ok((status, _)), Outcome::Refused) => {
            tracing::warn!(webhook = name, reason, %status, "a webhook refused a notice, which is dropped: check the webhook's URL");
        }
        (Ok((status, _)), Outcome::Later(_)) => tracing::warn!(webhook = name, reason, %status, "a webhook did not accept a notice"),
        (Err(error), _) => tracing::warn!(webhook = name, reason, "cannot send a notice to a webhook: {error:#}"),
    }
    outcome
}

#[cfg(test)]
mod tests;
