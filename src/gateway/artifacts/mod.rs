//! Artifacts: files that programs keep with their items.
//!
//! The governor says whether a file may be stored, and which object has the content of an artifact. The gateway carries the bytes
//! between the program and the store. An upload goes to an object of its own, and is an artifact when the governor has written it into
//! the status of the item: a crash at any moment leaves the artifact from before, or the new one.
//!
//! | file | for |
//! |---|---|
//! | `mod` | the calls of agents |
//! | `people` | the content of artifacts for people |
//! | `settings` | where artifacts are kept, as the chart writes it |
//! | `store` | the store: a folder or a bucket |
//! | `http` | the HTTP client of a bucket |
//! | `state` | the shared state |
//! | `sweep` | removes objects that belong to no artifact |

mod http;
mod people;
mod settings;
mod state;
mod store;
mod sweep;

pub use self::people::answer as answer_person;
pub use self::settings::ArtifactSettings;
pub use self::state::Artifacts;
pub use self::sweep::sweep;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use futures::{StreamExt as _, TryStreamExt as _};
use http_body_util::StreamBody;
use hyper::body::Frame;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use self::store::{Content, Store, UploadError, Uploaded, log_text};
use super::agent_end::agent_ended;
use super::call_slot::CallSlot;
use super::connection_slots::ConnectionSlot;
use super::download::download;
use super::models::item;
use super::state::Gateway;
use super::transfer_record::TransferRecord;
use crate::cluster::token::PodIdentity;
use crate::policy::artifacts::MAX_UPLOAD;
use crate::telemetry::TransferKind;
use crate::wire::access::Call;
use crate::wire::artifact::{
    ARTIFACT_PATH_PREFIX, Artifact, ArtifactList, ArtifactRequest, ArtifactStep, FinishedArtifact, NAME_RULE, OWN_ITEM, SHA256_HEADER,
    StoreKey, StoredArtifact, UnusedAnswer, UnusedObjects, is_name,
};
use crate::wire::work::LeaseRef;
use crate::wire::{Code, Refusal};

/// The governor's path for a step of a call.
const GOVERNOR_ARTIFACTS_PATH: &str = "/governor/v1/artifacts";
/// The governor's path for questions about objects.
const GOVERNOR_UNUSED_PATH: &str = "/governor/v1/artifacts/unused";
/// How long the governor is asked again to write a stored file into the status of its item.
const FINISH_TIMEOUT: Duration = Duration::from_secs(30);
/// Between two of these calls.
const FINISH_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How often an artifact that is replaced meanwhile is looked for.
const MAX_READ_ATTEMPTS: usize = 4;

/// A call of an agent about artifacts.
#[derive(Clone)]
struct Attempt {
    gateway: Arc<Gateway>,
    pod: PodIdentity,
    lease: Option<LeaseRef>,
}

/// Answers a call about artifacts.
pub async fn answer(gateway: &Arc<Gateway>, pod: &PodIdentity, call: Call, request: Request) -> Result<Response, Refusal> {
    let (head, body) = request.into_parts();
    let path = head.uri.path().strip_prefix(ARTIFACT_PATH_PREFIX).unwrap_or_default();
    let attempt = Attempt { gateway: gateway.clone(), pod: pod.clone(), lease: item(&head.headers)? };
    store(gateway)?;
    match (call, path.split_once('/')) {
        (Call::PutArtifact, None) => attempt.put(valid_name(path)?.to_owned(), &head.headers, body).await,
        (Call::GetArtifact, Some((item, name))) => attempt.get(item.to_owned(), valid_name(name)?.to_owned()).await,
        (Call::ListArtifacts, None) => {
            let list: ArtifactList = attempt.step(ArtifactStep::List { item: path.to_owned() }).await?;
            Ok(json(&list))
        }
        _ => Err(Refusal::new(Code::NoSuchCall, "there is no such call about artifacts")),
    }
}

fn valid_name(name: &str) -> Result<&str, Refusal> {
    let wrong = || Refusal::new(Code::InvalidBody, format!("an artifact cannot be named {name:?}: a name has {NAME_RULE}")).field("name");
    if is_name(name) { Ok(name) } else { Err(wrong()) }
}

fn json(value: &impl Serialize) -> Response {
    let text = serde_json::to_string(value).unwrap_or_default(); // our own types always serialize
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

/// The size of a request's body, which must be known before it is stored.
fn length(headers: &HeaderMap) -> Result<u64, Refusal> {
    let said = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let message = "the header Content-Length is missing: the size of a file is checked before it is stored";
    said.ok_or_else(|| Refusal::new(Code::InvalidBody, message).field("content-length"))
}

impl Attempt {
    /// One step at the governor.
    async fn step<A: DeserializeOwned>(&self, step: ArtifactStep) -> Result<A, Refusal> {
        let Self { gateway, pod, lease } = self;
        let _deciding = CallSlot::take_of(&gateway.artifacts.decisions, gateway, pod)?;
        gateway.governor.call_json(GOVERNOR_ARTIFACTS_PATH, Some(pod), &ArtifactRequest { lease: lease.clone(), step }).await
    }

    async fn slot(&self) -> Result<ConnectionSlot, Refusal> {
        let Self { gateway, pod, .. } = self;
        gateway.artifacts.slots.take(&pod.namespace, &gateway.long_polls.limit_key(pod)).await
    }

    async fn put(self, name: String, headers: &HeaderMap, body: Body) -> Result<Response, Refusal> {
        let bytes = length(headers)?;
        let slot = self.slot().await?;
        let revoked = self.gateway.long_polls.stream(&self.pod.uid);
        // The upload ends in order, and leaves nothing in the store or in the governor's count, also if the program hangs up.
        let uploading = tokio::spawn(async move {
            let _slot = slot;
            let key: StoreKey = self.step(ArtifactStep::Begin { name: name.clone(), bytes }).await?;
            self.upload(name, bytes, key, body, revoked).await
        });
        uploading.await.map_err(|error| Refusal::new(Code::Internal, format!("the upload was aborted: {error}")))?
    }

    async fn upload(self, name: String, bytes: u64, key: StoreKey, body: Body, revoked: Receiver<()>) -> Result<Response, Refusal> {
        let peer = format!("artifact {} {name}", key.item);
        let record = TransferRecord::new(self.gateway.metrics.clone(), TransferKind::Artifact, &self.pod, peer);
        // Dropping an upload would leave parts in the store: its content ends too early instead.
        let mut transfer = Transfer { gateway: self.gateway.clone(), pod: self.pod.clone(), revoked: Some(revoked) };
        let cut = CancellationToken::new();
        let content = body.into_data_stream().inspect_ok(|part| record.sent(part.len())).take_until(cut.clone().cancelled_owned());
        let uploaded = {
            let uploading = store(&self.gateway)?.upload(&key, bytes, content.boxed());
            tokio::pin!(uploading);
            tokio::select! {
                uploaded = &mut uploading => uploaded,
                refusal = transfer.ended(&record) => {
                    cut.cancel();
                    uploading.await.map_err(|_| UploadError::CutOff(refusal.message))
                }
            }
        };
        match uploaded {
            Ok(Uploaded { bytes, sha256 }) => {
                let step = ArtifactStep::Finish { name, id: key.id.clone(), bytes, sha256 };
                self.finish(step, key).await
            }
            Err(error) => {
                self.forget(vec![key]).await;
                Err(upload_refusal(&error))
            }
        }
    }

    /// Makes a stored object the artifact.
    async fn finish(&self, step: ArtifactStep, key: StoreKey) -> Result<Response, Refusal> {
        let until = Instant::now() + FINISH_TIMEOUT;
        let mut is_unsure = false;
        loop {
            let refusal = match self.step::<FinishedArtifact>(step.clone()).await {
                Ok(FinishedArtifact { artifact, left }) => {
                    self.forget(left).await;
                    return Ok(json(&artifact));
                }
                Err(refusal) => refusal,
            };
            match after_refusal(&refusal, is_unsure, Instant::now() >= until) {
                AfterRefusal::TryAgain => {}
                AfterRefusal::KeepObject => return Err(refusal),
                AfterRefusal::RemoveObject => {
                    self.forget(vec![key]).await;
                    return Err(refusal);
                }
            }
            is_unsure = true;
            sleep(FINISH_RETRY_INTERVAL).await;
        }
    }

    /// Removes objects that nothing needs any more, and tells the governor. Those that cannot be removed now are found later.
    async fn forget(&self, keys: Vec<StoreKey>) {
        let Ok(store) = store(&self.gateway) else { return };
        let removed = sweep::remove(store, keys).await;
        if !removed.is_empty() {
            drop(ask_unused(&self.gateway, UnusedObjects { objects: Vec::new(), removed }).await); // it counts them a while longer
        }
    }

    async fn get(self, item: String, name: String) -> Result<Response, Refusal> {
        let slot = self.slot().await?;
        let revoked = self.gateway.long_polls.stream(&self.pod.uid);
        let read = ArtifactStep::Read { item, name };
        let found = find(store(&self.gateway)?, || self.step(read.clone())).await?;
        Ok(content_answer(Transfer { gateway: self.gateway, pod: self.pod, revoked: Some(revoked) }, found, slot))
    }
}

/// An artifact of the item that an agent holds, for the program of a Toolset.
pub struct ArtifactForTool {
    /// The artifact.
    pub artifact: Artifact,
    /// Its content.
    pub content: Content,
}

/// Opens an artifact of the item that an agent holds. The caller bounds how many are open.
pub async fn open_own(
    gateway: &Arc<Gateway>,
    pod: &PodIdentity,
    lease: Option<LeaseRef>,
    name: String,
) -> Result<ArtifactForTool, Refusal> {
    let attempt = Attempt { gateway: gateway.clone(), pod: pod.clone(), lease };
    let store = store(gateway)?;
    let read = ArtifactStep::Read { item: OWN_ITEM.to_owned(), name };
    let (found, content) = find(store, || attempt.step(read.clone())).await?;
    Ok(ArtifactForTool { artifact: found.artifact, content })
}

/// What to do with a stored object after the governor did not make it the artifact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterRefusal {
    /// Ask the governor again.
    TryAgain,
    /// End the call. The object may be the artifact: if it is not, the sweep removes it.
    KeepObject,
    /// End the call. The object is not the artifact, and never will be.
    RemoveObject,
}

/// `is_unsure`: the governor may have written the artifact for an earlier try, whose answer was lost. A later try may be refused all the
/// same, because the item has ended meanwhile.
fn after_refusal(refusal: &Refusal, is_unsure: bool, is_late: bool) -> AfterRefusal {
    match (refusal.code.is_retryable(), is_unsure, is_late) {
        (true, _, false) => AfterRefusal::TryAgain,
        (true, _, true) | (false, true, _) => AfterRefusal::KeepObject,
        (false, false, _) => AfterRefusal::RemoveObject,
    }
}

/// A transfer that is under way: of an agent, or of a person, who cannot be revoked.
struct Transfer {
    gateway: Arc<Gateway>,
    pod: PodIdentity,
    revoked: Option<Receiver<()>>,
}

impl Transfer {
    /// Ends when the transfer must not go on, and says why.
    async fn ended(&mut self, record: &TransferRecord) -> Refusal {
        let Self { gateway, pod, revoked } = self;
        let agent_ended = async {
            match revoked {
                Some(revoked) => agent_ended(gateway, pod, revoked).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = gateway.artifacts.stopping.cancelled() => Refusal::unavailable("this gateway is stopping; try again"),
            () = agent_ended => Refusal::new(Code::AgentEnded, "this agent has ended"),
            () = record.idle() => Refusal::unavailable("no bytes came for too long"),
            () = sleep(MAX_UPLOAD) => Refusal::unavailable(format!("the transfer took longer than {} s", MAX_UPLOAD.as_secs())),
        }
    }
}

/// Finds an artifact and its content. `ask` asks the governor. An artifact may be replaced between its answer and the read of the object,
/// which is removed then: the governor names another object by that time.
async fn find<Asking: Future<Output = Result<StoredArtifact, Refusal>>>(
    store: &Store,
    ask: impl Fn() -> Asking,
) -> Result<(StoredArtifact, Content), Refusal> {
    let mut missing = None;
    for _ in 0..MAX_READ_ATTEMPTS {
        let found = ask().await?;
        if missing.as_ref() == Some(&found.object) {
            let Artifact { item, name, .. } = found.artifact;
            let message = format!("the content of artifact {name:?} of WorkItem/{item} is not in the store any more");
            return Err(Refusal::new(Code::NoSuchArtifact, message));
        }
        if let Some(content) = store.read(&found.object).await.map_err(|error| store_refusal(&error))? {
            return Ok((found, content));
        }
        missing = Some(found.object);
    }
    Err(Refusal::unavailable("the artifact was replaced while it was read; try again"))
}

/// The content of an artifact as an answer.
fn content_answer(mut transfer: Transfer, (found, content): (StoredArtifact, Content), slot: ConnectionSlot) -> Response {
    let StoredArtifact { artifact, object } = found;
    let peer = format!("artifact {} {}", object.item, artifact.name);
    let record = Arc::new(TransferRecord::new(transfer.gateway.metrics.clone(), TransferKind::Artifact, &transfer.pod, peer));
    let watched = record.clone();
    let ended = async move { drop(transfer.ended(&watched).await) };
    let content = StreamBody::new(content.map_ok(Frame::data));
    let mut answer = Response::new(download(content, artifact.bytes, record, ended, slot));
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(artifact.bytes));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.extend(HeaderValue::try_from(artifact.sha256).ok().map(|sha256| (header::HeaderName::from_static(SHA256_HEADER), sha256)));
    answer
}

fn store(gateway: &Gateway) -> Result<&Store, Refusal> {
    let none = || {
        let message = "this installation keeps no artifacts: the chart's value artifacts.enabled switches them on";
        Refusal::new(Code::NotBuilt, message)
    };
    gateway.artifacts.store.as_ref().ok_or_else(none)
}

fn upload_refusal(error: &UploadError) -> Refusal {
    match error {
        UploadError::CutOff(_) => Refusal::unavailable(error.to_string()),
        UploadError::TooLong => Refusal::new(Code::InvalidBody, error.to_string()).field("content-length"),
        UploadError::Store(error) => store_refusal(error),
    }
}

fn store_refusal(error: &object_store::Error) -> Refusal {
    tracing::warn!(error = log_text(error), "the store of artifacts failed");
    Refusal::new(Code::DestinationUnreachable, "the store of artifacts cannot be used now; the gateway's log says why").retry_after(10)
}

/// Asks the governor about objects in the store.
async fn ask_unused(gateway: &Gateway, objects: UnusedObjects) -> Result<UnusedAnswer, Refusal> {
    gateway.governor.call_json(GOVERNOR_UNUSED_PATH, None, &objects).await
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use futures::stream;

    use super::settings::StoreSettings;
    use super::*;

    #[test]
    fn an_object_is_removed_only_if_it_cannot_be_the_artifact() {
        let (away, ended) = (Refusal::unavailable("x"), Refusal::new(Code::AgentEnded, "x"));
        for is_unsure in [false, true] {
            assert_eq!(after_refusal(&away, is_unsure, false), AfterRefusal::TryAgain);
            assert_eq!(after_refusal(&away, is_unsure, true), AfterRefusal::KeepObject);
        }
        for is_late in [false, true] {
            assert_eq!(after_refusal(&ended, false, is_late), AfterRefusal::RemoveObject);
            assert_eq!(after_refusal(&ended, true, is_late), AfterRefusal::KeepObject, "an earlier try may have written it");
        }
    }

    fn named(id: u128) -> StoredArtifact {
        let (item, name, sha256, expires) = ("i".into(), "f".into(), String::new(), String::new());
        let object = StoreKey { cluster: "c".into(), namespace: "n".into(), item: "u".into(), id: format!("{id:032x}") };
        StoredArtifact { artifact: Artifact { item, name, bytes: 1, sha256, expires }, object }
    }

    #[tokio::test]
    async fn an_artifact_that_is_replaced_while_it_is_looked_for_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(&StoreSettings::Volume { path: folder.path().to_owned() }).expect("a store");
        let content = stream::iter([Ok::<_, std::io::Error>(bytes::Bytes::from_static(b"x"))]);
        store.upload(&named(3).object, 1, content).await.expect("stored");
        let asked = Cell::new(0_u128);
        let next = |most: u128| {
            asked.set(asked.get() + 1);
            std::future::ready(Ok(named(asked.get().min(most))))
        };
        let (found, _) = find(&store, || next(3)).await.unwrap_or_else(|refusal| panic!("{refusal:?}"));
        assert_eq!(found, named(3), "the first two objects were removed");
        asked.set(0);
        let lost = find(&store, || next(1)).await.err().expect("its object is lost");
        assert_eq!((lost.code, asked.get()), (Code::NoSuchArtifact, 2));
        asked.set(10);
        let replaced = find(&store, || next(u128::MAX)).await.err().expect("it is replaced for ever");
        assert!(replaced.code.is_retryable());
    }
}
