//! The port for the folder of the pool: copies of it, and the changes of the item in hand.
//!
//! The volume is mounted in this container alone. The folder is the one that the pod was made for, and the only changes that are made are
//! those that the supervisor announced. A thread works on the volume, because its calls block. The thread ends with the request: a
//! client that is slow keeps no lock ([`spillway_folder`]).

use std::convert::Infallible;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use http_body_util::{BodyExt as _, Either, Full};
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use spillway_folder::path::RelativePath;
use spillway_folder::record::BUFFER_BYTES;
use spillway_folder::{Folder, FolderError, Outcome};
use spillway_wire::changeset::PendingCommit;
use spillway_wire::work::LeaseRef;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::time::timeout;

use crate::link_says;

/// Connections at once. A step makes one request after the other.
pub const MAX_CONNECTIONS: usize = 2;
/// The path of the folder.
const PATH: &str = "/folder";
/// How long the head of a request may take.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a request may take: as the longest step.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3600);
/// How long the rest of a body is read and dropped after a failure.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(10);
/// Pieces of a body between a request and its thread.
const QUEUED_PIECES: usize = 4;
/// The most bytes of the files of one changeset: as large as the volume that they come from.
const MAX_CHANGED_BYTES: u64 = 8 * 1024 * 1024 * 1024;
/// The most copies for one lease. A step tries some times, and after a pause again. Each copy keeps other agents from the folder for a
/// moment.
const MAX_COPIES: u32 = 10;
/// The most paths that a message about a conflict names.
const MAX_SHOWN_CONFLICTS: usize = 5;

type Answer = Response<Either<Pieces, Full<Bytes>>>;

/// The port. Cheap to clone.
#[derive(Clone, Debug)]
pub struct FolderPort {
    volume: PathBuf,
    /// The claim and the path of the folder whose volume is mounted. None: there is none.
    own: Option<String>,
    /// The claim and the path of the folder of the item in hand.
    folder: watch::Receiver<Option<String>>,
    item: watch::Receiver<Option<LeaseRef>>,
    commit: watch::Receiver<Option<PendingCommit>>,
    /// The last lease with a copy, and its number of copies.
    copies: Arc<Mutex<Option<(LeaseRef, u32)>>>,
    /// A permit for each thread. A thread may outlast its request, while it waits for the folder.
    threads: Arc<Semaphore>,
}

impl FolderPort {
    /// Serves the folder `own`, a claim and a path, whose volume is mounted at `volume`, for the item in hand, and the changes that its
    /// supervisor announced. An item of another folder is not served: the pool was changed after the pod was made.
    pub fn new(
        volume: PathBuf,
        own: Option<String>,
        folder: watch::Receiver<Option<String>>,
        item: watch::Receiver<Option<LeaseRef>>,
        commit: watch::Receiver<Option<PendingCommit>>,
    ) -> Self {
        Self { volume, own, folder, item, commit, copies: Arc::default(), threads: Arc::new(Semaphore::new(MAX_CONNECTIONS)) }
    }

    /// Serves the requests of one connection.
    pub async fn serve(self, stream: TcpStream) {
        let service = service_fn(|request| {
            let port = self.clone();
            async move { Ok::<_, Infallible>(port.answer(request).await) }
        });
        let mut builder = http1::Builder::new();
        builder.keep_alive(false).timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(BUFFER_BYTES);
        // The client may have gone.
        let _ = timeout(REQUEST_TIMEOUT, builder.serve_connection(TokioIo::new(stream), service)).await;
    }

    async fn answer(&self, request: Request<Incoming>) -> Answer {
        if request.uri().path() != PATH {
            return text(StatusCode::NOT_FOUND, "this port serves the pool's folder only, at /folder");
        }
        let (held, wanted) = (self.item.borrow().clone(), self.folder.borrow().clone());
        let Some(held) = held else {
            return text(StatusCode::FORBIDDEN, "this agent holds no item");
        };
        if wanted.is_none() || wanted != self.own {
            let name = |folder: Option<String>| folder.map_or_else(|| "no folder".to_owned(), |folder| format!("the folder {folder}"));
            let (own, wanted) = (name(self.own.clone()), name(wanted));
            let words = format!("this agent began with {own}, and the item has {wanted}: delete the agent, and its pool creates another");
            return text(StatusCode::NOT_FOUND, &words);
        }
        // A claim's name has no slash.
        let folder = wanted.and_then(|name| name.split_once('/').map(|(_, path)| path.to_owned())).unwrap_or_default();
        let Ok(permit) = self.threads.clone().try_acquire_owned() else {
            return text(StatusCode::SERVICE_UNAVAILABLE, "earlier requests are still at work on the folder");
        };
        match *request.method() {
            Method::GET if !self.may_copy(&held) => text(StatusCode::TOO_MANY_REQUESTS, "the folder was copied too often for this item"),
            Method::GET => self.copy(folder, permit).await,
            Method::POST => self.change(folder, held, request.into_body(), permit).await,
            _ => text(StatusCode::METHOD_NOT_ALLOWED, "this port answers GET and POST"),
        }
    }

    /// Counts a copy for this lease; returns whether it is one of the allowed ones.
    fn may_copy(&self, held: &LeaseRef) -> bool {
        let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, count) = match &mut *copies {
            Some(known) if known.0 == *held => known,
            other => other.insert((held.clone(), 0)),
        };
        *count = count.saturating_add(1);
        *count <= MAX_COPIES
    }

    /// Streams a copy of the folder.
    async fn copy(&self, folder: String, permit: OwnedSemaphorePermit) -> Answer {
        let (pieces, received) = mpsc::channel(QUEUED_PIECES);
        let (ready, begun) = oneshot::channel();
        let volume = self.volume.clone();
        thread::spawn(move || {
            let snapshot = Folder::open(&volume, &folder).and_then(|folder| folder.snapshot());
            let (snapshot, result) = match snapshot {
                Ok(snapshot) => (Some(snapshot), Ok(())),
                Err(error) => (None, Err(error)),
            };
            // The client may have gone: then the first piece fails.
            let _ = ready.send(result);
            let mut out = BufWriter::with_capacity(BUFFER_BYTES, PieceWriter(pieces));
            let streamed = snapshot.map_or(Ok(()), |snapshot| snapshot.stream(&mut out));
            // The client knows by the last line whether the copy is whole.
            let _ = out.flush();
            drop(permit);
            if let Err(error) = streamed {
                link_says!("the copy of the folder is cut off: {error}");
            }
        });
        match begun.await {
            Ok(Ok(())) => Response::new(Either::Left(Pieces(received))),
            Ok(Err(error)) => failed("the folder is not copied", &error),
            Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, "the folder is not copied (this is a fault of Spillway)"),
        }
    }

    /// Makes the changes of a stream, if they are the announced ones.
    async fn change(&self, folder: String, held: LeaseRef, mut body: Incoming, permit: OwnedSemaphorePermit) -> Answer {
        let Some(announced) = self.commit.borrow().clone() else {
            // A sidecar that was started anew hears of the changes in a moment.
            return text(StatusCode::SERVICE_UNAVAILABLE, "no changes are announced");
        };
        let (pieces, received) = mpsc::channel(QUEUED_PIECES);
        let (done, outcome) = oneshot::channel();
        let (volume, item, commit) = (self.volume.clone(), self.item.clone(), self.commit.clone());
        thread::spawn(move || {
            let mut input = BufReader::with_capacity(BUFFER_BYTES, PieceReader { received, piece: Bytes::new() });
            let outcome = Folder::open(&volume, &folder).and_then(|folder| {
                let staged = folder.receive(&mut input, &announced.new, MAX_CHANGED_BYTES)?;
                // The item may have been cancelled, or given to another agent, while this waited for the folder.
                let may_begin =
                    || !done.is_closed() && item.borrow().as_ref() == Some(&held) && commit.borrow().as_ref() == Some(&announced);
                folder.commit(staged, &may_begin)
            });
            drop(permit);
            let _ = done.send(outcome); // the client may have gone
        });
        forward(&mut body, pieces).await;
        let outcome = outcome.await;
        // A client that still sends could miss the answer.
        let _ = timeout(DISCARD_TIMEOUT, async { while body.frame().await.is_some_and(|frame| frame.is_ok()) {} }).await;
        match outcome {
            Ok(outcome) => answer_of(outcome),
            Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, "the changes were not made (this is a fault of Spillway)"),
        }
    }
}

fn answer_of(outcome: Result<Outcome, FolderError>) -> Answer {
    match outcome {
        Ok(Outcome::Committed) => text(StatusCode::OK, "done"),
        Ok(Outcome::Withdrawn) => text(StatusCode::SERVICE_UNAVAILABLE, "the changes are not announced any more"),
        Ok(Outcome::Conflict { paths, total }) => text(StatusCode::CONFLICT, &conflict_text(&paths, total)),
        Err(error) => failed("the changes are not made in the folder", &error),
    }
}

/// The answer about an error, which says whether another try may succeed.
fn failed(what: &str, error: &FolderError) -> Answer {
    link_says!("{what}: {error}");
    let status = if error.is_final() { StatusCode::INTERNAL_SERVER_ERROR } else { StatusCode::SERVICE_UNAVAILABLE };
    text(status, &error.to_string())
}

fn conflict_text(paths: &[RelativePath], total: usize) -> String {
    let named = paths.iter().take(MAX_SHOWN_CONFLICTS).map(RelativePath::as_str).collect::<Vec<_>>().join(", ");
    let more = total.saturating_sub(MAX_SHOWN_CONFLICTS.min(paths.len()));
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("the folder has other files by now than the work began from: {named}{more}. The next attempt begins from a new copy")
}

/// Sends the pieces of a body to a thread, until one of them ends.
async fn forward(body: &mut Incoming, pieces: mpsc::Sender<io::Result<Bytes>>) {
    while let Some(frame) = body.frame().await {
        let piece = match frame {
            Ok(frame) => frame.into_data().map_err(|_| io::ErrorKind::InvalidData.into()),
            Err(error) => Err(io::Error::other(error)),
        };
        if pieces.send(piece).await.is_err() {
            return; // the thread has failed, and its outcome says why
        }
    }
}

fn text(status: StatusCode, text: &str) -> Answer {
    let mut answer = Response::new(Either::Right(Full::from(format!("{text}\n"))));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    answer
}

/// A body of pieces from a thread.
struct Pieces(mpsc::Receiver<Bytes>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}

/// The writing end of [`Pieces`]. It fails when the request is over.
struct PieceWriter(mpsc::Sender<Bytes>);

impl Write for PieceWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.blocking_send(Bytes::copy_from_slice(bytes)).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads the pieces of a body in a thread.
struct PieceReader {
    received: mpsc::Receiver<io::Result<Bytes>>,
    piece: Bytes,
}

impl Read for PieceReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.received.blocking_recv() {
                Some(piece) => self.piece = piece?,
                None => return Ok(0),
            }
        }
        let count = self.piece.len().min(buffer.len());
        let taken = self.piece.split_to(count);
        buffer.get_mut(..count).unwrap_or_default().copy_from_slice(&taken);
        Ok(count)
    }
}

#[cfg(test)]
#[path = "folder_port_tests.rs"]
mod tests;
