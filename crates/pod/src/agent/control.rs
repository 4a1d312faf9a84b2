//! The supervisor's connection to the sidecar. It is opened before the program starts, and opened again whenever it breaks.
//!
//! Each message is a whole state, so that a lost connection loses nothing. On a new connection, the key of the sidecar proves
//! that the supervisor connects. It decides nothing.

use std::path::PathBuf;
use std::time::Duration;

use spillway_wire::agent::Report;
use spillway_wire::changeset::PendingCommit;
use spillway_wire::link::{Answer, Control, Hello, Order};
use spillway_wire::work::{LeaseRef, Outcome};
use tokio::io::BufReader;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use crate::{MAX_ORDER_BYTES, agent_says, lines};

/// First and longest pause between two tries to connect.
const CONNECT_BACKOFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// The state that the sidecar gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SupervisorReport {
    /// The state of the program.
    pub report: Report,
    /// No process of the program is left.
    pub ended: bool,
    /// Commands of the program so far that hung without a time limit.
    pub hung: u32,
    /// The end of the item in hand, until it is settled.
    pub finished: Option<(LeaseRef, Outcome)>,
    /// The commit that may be pushed now.
    pub commit: Option<PendingCommit>,
}

/// Connects, sends states and receives orders, until the task is dropped. `said` gets the last state that was written whole.
pub async fn keep(
    socket: PathBuf,
    mut told: watch::Receiver<Option<SupervisorReport>>,
    said: watch::Sender<Option<SupervisorReport>>,
    orders: mpsc::Sender<Order>,
) {
    let mut key = None;
    let mut pause = CONNECT_BACKOFF.0;
    let mut complained = false;
    loop {
        match UnixStream::connect(&socket).await {
            Ok(stream) => {
                let (reader, writer) = stream.into_split();
                let telling = tell(writer, key.clone(), &mut told, &said);
                let mut listening = std::pin::pin!(listen(reader, &mut key, &orders));
                let heard = tokio::select! {
                    heard = &mut listening => heard,
                    // A sidecar that died may have written orders before, such as the key.
                    () = telling => timeout(CONNECT_BACKOFF.1, listening).await.unwrap_or(false),
                };
                if heard {
                    pause = CONNECT_BACKOFF.0;
                    complained = false;
                }
            }
            Err(error) if !complained => {
                complained = true;
                agent_says!("cannot connect to the sidecar yet ({}: {error}); trying again", socket.display());
            }
            Err(_) => {}
        }
        sleep(pause).await;
        pause = (pause * 2).min(CONNECT_BACKOFF.1);
    }
}

/// Forwards orders until the connection ends; returns whether there were any.
async fn listen(reader: OwnedReadHalf, key: &mut Option<String>, orders: &mpsc::Sender<Order>) -> bool {
    let mut reader = BufReader::with_capacity(1024, reader);
    let mut heard = false;
    while let Ok(Some(line)) = lines::read(&mut reader, MAX_ORDER_BYTES).await {
        match serde_json::from_slice::<Order>(&line) {
            Ok(Order::Key(given)) => {
                heard = true;
                *key = Some(given);
            }
            Ok(order) => {
                heard = true;
                if orders.send(order).await.is_err() {
                    return heard;
                }
            }
            Err(error) => match serde_json::from_slice::<Answer>(&line) {
                Ok(Answer::Refused(refusal)) => agent_says!("the sidecar refuses the supervisor: {refusal}"),
                Ok(_) | Err(_) => agent_says!("cannot parse an order of the sidecar: {error}"),
            },
        }
    }
    heard
}

/// Sends the key, and then the state of the program whenever it changes.
async fn tell(
    mut writer: OwnedWriteHalf,
    key: Option<String>,
    told: &mut watch::Receiver<Option<SupervisorReport>>,
    acknowledged: &watch::Sender<Option<SupervisorReport>>,
) {
    if lines::write(&mut writer, &Hello::Control { key }).await.is_err() {
        return;
    }
    let mut seen = 0;
    let mut finished = None;
    let mut commit = None;
    told.mark_changed();
    while told.changed().await.is_ok() {
        let Some(state) = told.borrow_and_update().clone() else { continue };
        let mut news = vec![Control::State(Box::new(state.report.clone()))];
        if state.report.notices_seen > seen {
            seen = state.report.notices_seen;
            news.push(Control::NoticesSeen(seen));
        }
        // An end is sent once on each connection.
        if state.finished != finished {
            finished.clone_from(&state.finished);
            news.extend(state.finished.clone().map(|(held, outcome)| Control::Finished { held, outcome }));
        }
        // A sidecar that was started anew knows of no commit.
        if commit.as_ref() != Some(&state.commit) {
            commit = Some(state.commit.clone());
            news.push(Control::Commit(state.commit.clone()));
        }
        // Each hung command is sent once, over all connections.
        let known = acknowledged.borrow().as_ref().map_or(0, |said| said.hung);
        news.extend((known..state.hung).map(|_| Control::CommandHung));
        if state.ended {
            news.push(Control::Ended);
        }
        for one in news {
            if lines::write(&mut writer, &one).await.is_err() {
                return;
            }
        }
        acknowledged.send_replace(Some(state));
    }
}
