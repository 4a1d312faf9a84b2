//! The unix socket inside the pod: it accepts connections, reads their first line, and forwards it.
//!
//! The program can open any number of connections. It must neither keep the supervisor out nor use our memory without a bound.
//! So lines are bounded, and questions are bounded in number and time. Connections without a first line are bounded too: the
//! oldest one is closed for a new one, after a minimum time.

use std::collections::VecDeque;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use spillway_wire::body;
use spillway_wire::link::{Answer, Ask, Control, Hello, Order};
use spillway_wire::{Code, Refusal};
use tokio::io::BufReader;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use super::input::{Candidate, Input};
use crate::{MAX_LINE_BYTES, lines, link_says, random};

/// Questions that are answered at once.
pub const MAX_CONCURRENT_QUESTIONS: usize = 64;
/// Time limit of one question, from the connection to the answer.
pub const QUESTION_TIMEOUT: Duration = Duration::from_secs(30);
/// Connections that have not sent their first line. Each may hold almost a whole line.
const MAX_UNDECIDED_CONNECTIONS: usize = 32;
/// The minimum time of each of them, also if others wait ...
const FIRST_LINE_TIMEOUT: Duration = Duration::from_millis(250);
/// ... and the time between two checks for room.
const ROOM_CHECK_INTERVAL: Duration = Duration::from_millis(5);
/// A line for the supervisor, or an answer that must follow the lines before it.
#[derive(Debug)]
enum Line {
    Order(Order),
    /// An answer to another connection, to be sent after all lines before it were written.
    Then(oneshot::Sender<Answer>, Answer),
}

/// Orders that wait for a supervisor that does not read. Beyond that its connection is closed. It gets all orders on the next one.
const MAX_PENDING_ORDERS: usize = 64;

/// The decision about a connection that says that it is the supervisor's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is the supervisor's: it knows the key.
    Known,
    /// It must be the supervisor's, because nothing else runs yet. It gets a key.
    First,
    /// It is refused.
    Refused,
}

/// Decides whether a connection is the supervisor's: by its key, or without a key while the program may not start yet (so that no
/// other process can connect) and no other connection is open. `given` is the key that the supervisor got, if it is known.
pub fn admit(shown: Option<&str>, given: Option<&str>, let_start: bool, connected: bool) -> Admission {
    match (shown, given) {
        (Some(shown), Some(given)) if random::same(shown, given) => Admission::Known,
        (Some(_), Some(_)) => Admission::Refused,
        // Our journal is new, and the supervisor is not: the first connection with a key is the supervisor's.
        (Some(_), None) if !connected => Admission::Known,
        (None, _) if !let_start && !connected => Admission::First,
        (_, _) => Admission::Refused,
    }
}

/// Listens at `path`. Every process in the pod may connect.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    crate::files::remove(path)?;
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
    Ok(listener)
}

/// Accepts connections until the runtime ends.
pub async fn serve(listener: UnixListener, inputs: mpsc::Sender<Input>) {
    let asks = Arc::new(Semaphore::new(MAX_CONCURRENT_QUESTIONS));
    let mut undecided: VecDeque<NewConnection> = VecDeque::new();
    loop {
        undecided.retain(|connection| !connection.decided.is_closed());
        if undecided.len() >= MAX_UNDECIDED_CONNECTIONS {
            match undecided.front() {
                Some(oldest) if oldest.since.elapsed() >= FIRST_LINE_TIMEOUT => {
                    oldest.task.abort();
                    undecided.pop_front();
                }
                Some(_) | None => {
                    sleep(ROOM_CHECK_INTERVAL).await;
                    continue;
                }
            }
        }
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                link_says!("cannot accept a connection on the socket: {error}");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (decided, waiting) = oneshot::channel();
        let task = tokio::spawn(receive(stream, inputs.clone(), asks.clone(), waiting)).abort_handle();
        undecided.push_back(NewConnection { decided, since: Instant::now(), task });
    }
}

/// A connection that has not sent its first line.
struct NewConnection {
    /// Closed after the first line: from then on the connection is not closed for a new one.
    decided: oneshot::Sender<()>,
    since: Instant,
    task: AbortHandle,
}

async fn receive(stream: UnixStream, inputs: mpsc::Sender<Input>, asks: Arc<Semaphore>, undecided: oneshot::Receiver<()>) {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::with_capacity(1024, reader);
    let answering = async {
        let hello = lines::read(&mut reader, MAX_LINE_BYTES).await;
        drop(undecided);
        let ask = match hello {
            Ok(None) => return None,
            Ok(Some(line)) => match body::read::<Hello>(&line) {
                Ok(Hello::Control { key }) => return Some(key),
                Ok(Hello::Ask(ask)) => Ok(ask),
                Err(refusal) => Err(refusal),
            },
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                Err(Refusal::new(Code::BodyTooLarge, format!("a request may have at most {MAX_LINE_BYTES} bytes")).field("(body)"))
            }
            Err(_) => return None,
        };
        let answer = match ask {
            Ok(ask) => question(ask, &inputs, &asks).await,
            Err(refusal) => Answer::Refused(refusal),
        };
        let _ = lines::write(&mut writer, &answer).await; // the caller may have gone
        None
    };
    if let Ok(Some(key)) = timeout(QUESTION_TIMEOUT, answering).await {
        let _ = inputs.send(Input::Candidate(Candidate { key, reader, writer })).await; // we are ending
    }
}

async fn question(ask: Ask, inputs: &mpsc::Sender<Input>, asks: &Semaphore) -> Answer {
    let Ok(_place) = asks.try_acquire() else {
        let message = format!("{MAX_CONCURRENT_QUESTIONS} requests are being answered already; try again");
        return Answer::Refused(Refusal::new(Code::TooManyCalls, message).retry_after(1));
    };
    let (reply, answer) = oneshot::channel();
    let ending = || Answer::Refused(Refusal::new(Code::GovernorAway, "the sidecar is ending; try again"));
    if inputs.send(Input::Ask(ask, reply)).await.is_err() {
        return ending();
    }
    answer.await.unwrap_or_else(|_| ending())
}

/// The supervisor's connection. Dropping it closes it.
#[derive(Debug)]
pub struct Supervisor {
    orders: mpsc::Sender<Line>,
    tasks: [AbortHandle; 2],
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Supervisor {
    /// Serves `candidate` as the supervisor. Its messages come as [`Input::Control`] with `number`, its end as [`Input::Gone`].
    pub fn accept(candidate: Candidate, number: u64, inputs: mpsc::Sender<Input>) -> Self {
        let Candidate { key: _, mut reader, mut writer } = candidate;
        let (orders, mut waiting) = mpsc::channel::<Line>(MAX_PENDING_ORDERS);
        let reading = tokio::spawn(async move {
            while let Ok(Some(line)) = lines::read(&mut reader, MAX_LINE_BYTES).await {
                match serde_json::from_slice::<Control>(&line) {
                    Ok(said) => {
                        if inputs.send(Input::Control(number, said)).await.is_err() {
                            return;
                        }
                    }
                    Err(error) => link_says!("cannot parse a line of the supervisor: {error}"),
                }
            }
            let _ = inputs.send(Input::Gone(number)).await; // we are ending
        });
        let writing = tokio::spawn(async move {
            // A supervisor may write its last lines and close. Only the reader, after these lines, reports its end.
            let mut broken = false;
            while let Some(line) = waiting.recv().await {
                match line {
                    Line::Order(order) => broken = broken || lines::write(&mut writer, &order).await.is_err(),
                    Line::Then(reply, answer) => drop(reply.send(answer)), // the caller may have gone
                }
            }
        });
        Self { orders, tasks: [reading.abort_handle(), writing.abort_handle()] }
    }

    /// Sends an order. `false`: the supervisor does not read.
    pub fn tell(&self, order: Order) -> bool {
        self.orders.try_send(Line::Order(order)).is_ok()
    }

    /// Sends an answer to another connection after all orders before it are written, so that its reader acts later than they do.
    pub fn answer_after_orders(&self, reply: oneshot::Sender<Answer>, answer: Answer) {
        match self.orders.try_send(Line::Then(reply, answer)) {
            Ok(()) | Err(mpsc::error::TrySendError::Full(Line::Order(_)) | mpsc::error::TrySendError::Closed(Line::Order(_))) => {}
            Err(
                mpsc::error::TrySendError::Full(Line::Then(reply, answer)) | mpsc::error::TrySendError::Closed(Line::Then(reply, answer)),
            ) => {
                drop(reply.send(answer)); // the caller may have gone
            }
        }
    }
}

/// Refuses a connection.
pub async fn refuse(candidate: Candidate) {
    let Candidate { key: _, reader: _, mut writer } = candidate;
    let refusal = Refusal::new(Code::NotAllowed, "only the supervisor may open a control connection");
    let _ = timeout(Duration::from_secs(1), lines::write(&mut writer, &Answer::Refused(refusal))).await; // it may have gone
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_supervisor_and_nobody_else() {
        use Admission::{First, Known, Refused};
        let cases = [
            // shown, given, let start, connected
            ((None, None, false, false), First),
            ((None, Some("k"), false, false), First), // the key was lost on its way, and nothing else runs yet
            ((None, None, false, true), Refused),
            ((None, Some("k"), false, true), Refused),
            ((None, Some("k"), true, false), Refused),
            ((None, None, true, false), Refused),
            ((Some("k"), Some("k"), true, false), Known),
            ((Some("k"), Some("k"), true, true), Known), // its old connection is not seen as closed yet
            ((Some("x"), Some("k"), true, false), Refused),
            ((Some("x"), Some("k"), false, false), Refused),
            ((Some("k"), None, true, false), Known), // the journal was lost
            ((Some("k"), None, true, true), Refused),
        ];
        for ((shown, given, let_start, connected), expected) in cases {
            assert_eq!(admit(shown, given, let_start, connected), expected, "{shown:?} {given:?} {let_start} {connected}");
        }
    }
}
