//! The client of the governor's ledger. It carries out [`Session::plan`], one call at a
//! time.

use std::time::Duration;

use serde::Serialize;
use spillway_holds::lines::Line;
use spillway_holds::session::{Plan, Session};

use super::{Meter, now};
use crate::wire::meter::MeterAck;
use crate::wire::{Code, Refusal};

const BEGIN_PATH: &str = "/governor/v1/meter/begin";
const SETTLE_PATH: &str = "/governor/v1/meter/settle";
/// Between two log lines about the same refusal.
const REPEATED_LOG_INTERVAL: Duration = Duration::from_secs(60);

impl Meter {
    /// Begins the session at each governor that we connect to, reports ended holds, and sends keep-alives. Never
    /// returns.
    pub async fn run(self) {
        let mut connections = self.0.governor.connections();
        let mut said: Option<(Code, Duration)> = None;
        loop {
            self.shorten();
            let connection = *connections.borrow_and_update();
            let (plan, tend) = {
                let mut inner = self.lock();
                inner.session.connected(connection);
                inner.session.set_replay(self.0.governor.store_rolled_back());
                let tend = inner.retry_rewrite(now());
                self.0.attached.send_if_modified(|attached| std::mem::replace(attached, inner.session.is_attached()) != *attached);
                (inner.session.plan(now(), inner.is_written()), tend)
            };
            let trouble = match plan {
                Plan::Wait(until) => {
                    let until = until.into_iter().chain(tend).min().map_or(Duration::MAX, |until| until.saturating_sub(now()));
                    tokio::select! {
                        () = self.0.wake.notified() => {}
                        changed = connections.changed() => if changed.is_err() { return },
                        () = tokio::time::sleep(until.min(Duration::from_secs(60))) => {}
                    }
                    None
                }
                Plan::Begin(begin) => {
                    let answer = self.ask(BEGIN_PATH, &begin).await;
                    self.handle_answer(answer, |session, now, acked| session.began(now, connection, &begin, acked))
                }
                Plan::Tell(settles) => {
                    let answer = self.ask(SETTLE_PATH, &settles).await;
                    self.handle_answer(answer, |session, now, acked| session.settles_answered(now, &settles, acked))
                }
            };
            if let Some(refusal) = trouble {
                let known = said.is_some_and(|(code, at)| code == refusal.code && now().saturating_sub(at) < REPEATED_LOG_INTERVAL);
                if !known {
                    tracing::warn!(%refusal, "the governor refused a report of the ledger session; trying again");
                    said = Some((refusal.code, now()));
                }
            }
        }
    }

    async fn ask(&self, path: &str, body: &impl Serialize) -> Result<MeterAck, Refusal> {
        self.0.governor.call_json(path, None, body).await
    }

    /// Handles the answer of a call: writes the line that follows from it, and wakes waiting tasks.
    fn handle_answer(
        &self,
        answer: Result<MeterAck, Refusal>,
        done: impl FnOnce(&mut Session, Duration, u64) -> Option<Line>,
    ) -> Option<Refusal> {
        let mut inner = self.lock();
        let trouble = match answer {
            Ok(MeterAck { acked }) => {
                if let Some(line) = done(&mut inner.session, now(), acked) {
                    inner.append_line(&line, now());
                }
                None
            }
            Err(refusal) => {
                if refusal.code == Code::SessionUnknown {
                    inner.session.detached();
                }
                inner.session.failed(now());
                Some(refusal)
            }
        };
        let (attached, owed) = (inner.session.is_attached(), inner.session.unacknowledged_count());
        drop(inner);
        self.0.attached.send_if_modified(|known| std::mem::replace(known, attached) != attached);
        self.0.unacknowledged.send_replace(owed);
        trouble
    }
}
