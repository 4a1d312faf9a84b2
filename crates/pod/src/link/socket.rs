//! The unix socket inside the pod: takes connections, reads their first line, hands it on.
//!
//! The program can open as many connections as it likes; it must neither keep the supervisor out nor make us hold memory
//! without bound. So lines are bounded, questions are bounded in number and time, and of those that have not said yet what
//! they want, the oldest makes room for the next, once it had its time.

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
/// For one question, from the connection to the answer.
pub const QUESTION_TIMEOUT: Duration = Duration::from_secs(30);
/// Connections that have not said yet what they want. Each may hold most of a line.
const MAX_UNDECIDED_CONNECTIONS: usize = 32;
/// So much time has each of them, however many wait behind it ...
const FIRST_LINE_TIMEOUT: Duration = Duration::from_millis(250);
/// ... and so often it is looked whether there is room.
const ROOM_CHECK_INTERVAL: Duration = Duration::from_millis(5);
/// What is to be told to the supervisor, in this order.
#[derive(Debug)]
enum Line {
    Order(Order),
    /// Somebody else has to hear this after what comes before was written.
    Then(oneshot::Sender<Answer>, Answer),
}

/// Orders that wait for a supervisor that does not read. It is dropped then, and told everything when it comes again.
const MAX_PENDING_ORDERS: usize = 64;

/// Whether a connection may be the supervisor's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is: it knows the key.
    Known,
    /// It can only be: nothing else runs yet. It gets a key.
    First,
    /// It may not.
    Refused,
}

/// Decides whether a connection is the supervisor's: by its key; or without one, as long as the program was not let start
/// (so nobody else is there) and no other connection is open. `given` is the key that was given out, if any is known.
pub fn admit(shown: Option<&str>, given: Option<&str>, let_start: bool, connected: bool) -> Admission {
    match (shown, given) {
        (Some(shown), Some(given)) if random::same(shown, given) => Admission::Known,
        (Some(_), Some(_)) => Admission::Refused,
        // Our journal is new and the supervisor is not: whoever comes first with a key is it.
        (Some(_), None) if !connected => Admission::Known,
        (None, _) if !let_start && !connected => Admission::First,
        (_, _) => Admission::Refused,
    }
}

/// Listens at `path`, for everybody in the pod.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    crate::files::remove(path)?;
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
    Ok(listener)
}

/// Takes connections until the runtime ends.
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

/// A connection that has not said yet what it wants.
struct NewConnection {
    /// Closed when it has: from then on it is not ours to end.
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
        let _ = lines::write(&mut writer, &answer).await; // who asked may have gone
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
    /// Serves `candidate` as the supervisor; what it says comes as [`Input::Control`] with `number`, its end as
    /// [`Input::Gone`].
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
            // One that closed may have said something before, its last words: its end is the reader's to find.
            let mut broken = false;
            while let Some(line) = waiting.recv().await {
                match line {
                    Line::Order(order) => broken = broken || lines::write(&mut writer, &order).await.is_err(),
                    Line::Then(reply, answer) => drop(reply.send(answer)), // who asked may have gone
                }
            }
        });
        Self { orders, tasks: [reading.abort_handle(), writing.abort_handle()] }
    }

    /// Tells it. `false`: it does not read.
    pub fn tell(&self, order: Order) -> bool {
        self.orders.try_send(Line::Order(order)).is_ok()
    }

    /// Answers somebody else when all that it was told before is written: who acts on the answer acts after that.
    pub fn then(&self, reply: oneshot::Sender<Answer>, answer: Answer) {
        match self.orders.try_send(Line::Then(reply, answer)) {
            Ok(()) | Err(mpsc::error::TrySendError::Full(Line::Order(_)) | mpsc::error::TrySendError::Closed(Line::Order(_))) => {}
            Err(
                mpsc::error::TrySendError::Full(Line::Then(reply, answer)) | mpsc::error::TrySendError::Closed(Line::Then(reply, answer)),
            ) => {
                drop(reply.send(answer)); // who asked may have gone
            }
        }
    }
}

/// Sends a connection away.
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
