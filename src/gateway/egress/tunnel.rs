//! The bytes of a connection: the request's body goes to the destination, and what the destination sends is the answer's body.
//!
//! It must not read the bytes. Memory is bounded: a part each way, and those that wait for the program.

use std::future::Future;
use std::pin::pin;

use axum::body::Body;
use bytes::Bytes;
use futures::StreamExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;

use crate::gateway::connection_slots::ConnectionSlot;
use crate::gateway::streamed_body::{BodyPart, streamed};
use crate::gateway::transfer_record::TransferRecord;

/// Bytes of a buffer.
const BUFFER_BYTES: usize = 16 * 1024;
/// Parts that wait for the program.
const MAX_PENDING_PARTS: usize = 2;

/// Carries the bytes of a connection until either side closes it, it is idle, or `ended`. That does not depend on whether anybody
/// reads the body.
pub fn carry(
    stream: TcpStream,
    body: Body,
    ended: impl Future<Output = ()> + Send + 'static,
    record: TransferRecord,
    slot: ConnectionSlot,
) -> Body {
    let (from, to) = stream.into_split();
    let (giving, taking) = mpsc::channel(MAX_PENDING_PARTS);
    tokio::spawn(async move {
        let _slot = slot;
        let record = &record;
        let carried = async {
            let mut uploading = pin!(upload(body, to, record));
            let mut downloading = pin!(download(from, giving, record));
            let upload_ended = tokio::select! {
                ended = &mut uploading => Some(ended),
                () = &mut downloading => None,
            };
            // A program that has sent all may wait for its answer. What is sent after the destination has closed is lost.
            if upload_ended == Some(UploadEnd::Whole) {
                downloading.await;
            }
        };
        tokio::select! {
            () = carried => {}
            () = ended => {}
            () = record.idle() => {}
        }
    });
    streamed(taking)
}

/// Carries what the destination sends, as fast as the program takes it.
async fn download(mut from: OwnedReadHalf, to: mpsc::Sender<BodyPart>, record: &TransferRecord) {
    let mut buffer = vec![0; BUFFER_BYTES];
    while let Ok(count) = from.read(&mut buffer).await {
        let part = if count == 0 { BodyPart::Whole } else { BodyPart::Data(Bytes::copy_from_slice(&buffer[..count])) };
        if to.send(part).await.is_err() || count == 0 {
            return;
        }
        record.received(count);
    }
}

/// How the way to the destination ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UploadEnd {
    /// The program has sent all, and the destination knows it.
    Whole,
    /// It was cut.
    Cut,
}

/// Carries the request's body to the destination.
async fn upload(body: Body, mut to: OwnedWriteHalf, record: &TransferRecord) -> UploadEnd {
    // Dropped or cut, it resets the connection: the destination must not take a part for the whole.
    let _ = to.as_ref().set_zero_linger(); // a socket that refuses it is closed in the usual way
    let mut parts = body.into_data_stream();
    while let Some(part) = parts.next().await {
        let Ok(part) = part else { return UploadEnd::Cut };
        if to.write_all(&part).await.is_err() {
            return UploadEnd::Cut;
        }
        record.sent(part.len());
    }
    if to.shutdown().await.is_err() { UploadEnd::Cut } else { UploadEnd::Whole }
}
