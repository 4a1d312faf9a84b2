//! Git: requests of programs' git clients for the repository of their pool.
//!
//! The governor says which repository an agent may use and which refs it may push. The gateway adds the team's credential and
//! carries the request to the server. It reads the ref updates at the start of a push, and no objects. No git runs here. Each
//! request is logged with its agent and item, and counted by its outcome.
//!
//! | file | for |
//! |---|---|
//! | `mod` | one request: decide, send, carry |
//! | `push` | the ref updates of a push, and the answer to a denied one |
//! | `remote` | the server: one request, and whether its answer can be passed on |
//! | `state` | the shared state |
//! | `transfer` | the body of a request |
//! | `watch` | when a request must not go on |

mod push;
mod remote;
mod state;
mod transfer;
mod watch;

pub use self::state::Git;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use hyper::Method;

use self::remote::RemoteAnswer;
use self::transfer::Upload;
use self::watch::{Watch, ask};
use super::call_slot::CallSlot;
use super::caller::identify;
use super::credentials::Token;
use super::download::download;
use super::models::item;
use super::state::Gateway;
use super::transfer_record::TransferRecord;
use crate::cluster::token::PodIdentity;
use crate::origins::Origin;
use crate::policy::git::{Denial, Exchange, GitRequest, PushHead, Repository, Service, request};
use crate::telemetry::TransferKind;
use crate::wire::git::{GIT_PATH_PREFIX, GitDenial, GitTarget, GitTargetRequest};
use crate::wire::work::LeaseRef;
use crate::wire::{Code, Refusal};

/// The most bytes of a fetch's request: names of objects that the client wants and has.
const MAX_FETCH_REQUEST_BYTES: u64 = 64 * 1024 * 1024;
/// The most bytes of the answer to a push, and of the list of refs before it.
const MAX_PUSH_ANSWER_BYTES: u64 = 256 * 1024 * 1024;
/// The most characters of a name in a log line.
const MAX_SHOWN_CHARS: usize = 255;
/// How many refs of a push are logged.
const MAX_LOGGED_REFS: usize = 8;

/// One git request of an agent.
struct Attempt<'a> {
    gateway: &'a Arc<Gateway>,
    pod: &'a PodIdentity,
    asked: &'a GitRequest,
    item: Option<LeaseRef>,
}

/// Answers a request below [`GIT_PATH_PREFIX`].
pub async fn answer(gateway: &Arc<Gateway>, request: Request) -> Result<Response, Refusal> {
    let pod = identify(gateway, request.headers(), request.extensions()).await?;
    let (head, body) = request.into_parts();
    let path = head.uri.path().strip_prefix(GIT_PATH_PREFIX).unwrap_or_default();
    let asked = request::parse(head.method.as_str(), path, head.uri.query()).map_err(|error| {
        gateway.metrics.git_request("other", Denial::InvalidRequest.reason());
        Refusal::new(Code::GitDenied, error.to_string()).reason(Denial::InvalidRequest.reason())
    })?;
    let attempt = Attempt { gateway, pod: &pod, asked: &asked, item: item(&head.headers)? };
    let request = GitTargetRequest {
        repository: asked.repository.name(),
        push: asked.service == Service::Push,
        item: attempt.item.clone(),
        denied: None,
    };
    let watch = Watch::new(gateway.clone(), pod.clone(), request);
    let answered = attempt.answer(&head.headers, body, watch).await;
    if let Err(refusal) = &answered {
        attempt.log(refusal.reason.as_deref().map_or_else(|| refusal.code.label(), Denial::known_reason), "");
    }
    answered
}

impl Attempt<'_> {
    async fn answer(&self, headers: &HeaderMap, body: Body, mut watch: Watch) -> Result<Response, Refusal> {
        let Self { gateway, pod, asked, .. } = self;
        let slot = gateway.git.slots.take(&pod.namespace, &gateway.long_polls.limit_key(pod)).await?;
        let (head, bytes, rest) = match (asked.service, asked.exchange) {
            (Service::Push, Exchange::Call) => {
                let push = watch.guard(push::read(headers, body)).await?;
                (Some(push.head), push.bytes, push.rest)
            }
            (Service::Fetch, Exchange::Call) => (None, Vec::new(), body),
            // It has no body: bytes after it would be another request.
            (Service::Fetch | Service::Push, Exchange::Advertisement) => (None, Vec::new(), Body::empty()),
        };
        // After the slow part: the agent may have been paused meanwhile, or have lost its item.
        let target = {
            let _deciding = CallSlot::take_of(&gateway.git.decisions, gateway, pod)?;
            watch.target().await?
        };
        let allowed = target.push.as_ref();
        let commit = push::announced_commit(headers);
        if let Some(head) = &head
            && let Some(denials) = push::denials(head, commit.as_ref(), allowed)
        {
            self.count_denial(head, &denials).await;
            let limit = gateway.git.settings.max_push_bytes;
            return watch.guard(async { Ok(push::denied(head, rest, &denials, allowed, limit).await) }).await;
        }
        self.log("Allowed", &head.as_ref().map(ref_names).unwrap_or_default());
        if let Some(head) = head {
            watch.push_allowed(head, commit);
        }
        let record = TransferRecord::new(gateway.metrics.clone(), TransferKind::Git, pod, target.remote.clone());
        let record = Arc::new(record);
        let silent = async {
            record.idle().await;
            Err(Refusal::new(Code::DestinationUnreachable, format!("{} does not answer", target.remote)).retry_after(10))
        };
        let sending = async {
            tokio::select! {
                answer = self.send(&target, headers, (bytes, rest), &record) => answer,
                silent = silent => silent,
            }
        };
        let RemoteAnswer { response, connection } = watch.guard(sending).await?;
        let limit = match asked.service {
            Service::Fetch => gateway.git.settings.max_fetch_bytes,
            Service::Push => MAX_PUSH_ANSWER_BYTES,
        };
        // The type was checked. No other header of the server goes to the program.
        let content_type = response.headers().get(header::CONTENT_TYPE).cloned();
        let ended = async move { drop(watch.ended().await) };
        let mut passed = Response::new(download(response.into_body(), limit, record, ended, (slot, connection)));
        passed.headers_mut().extend(content_type.map(|value| (header::CONTENT_TYPE, value)));
        Ok(passed)
    }

    /// Counts the first denial of a push, for metrics and for the agent's supervision.
    async fn count_denial(&self, head: &PushHead, denials: &[Option<Denial>]) {
        let Self { gateway, pod, asked, item } = self;
        let first = head.updates.iter().zip(denials).find_map(|(update, denial)| Some((update, (*denial)?)));
        let Some((update, denial)) = first else { return };
        self.log(denial.reason(), &ref_names(head));
        let denied = Some(GitDenial { reason: denial.reason().to_owned(), name: shown(&update.name) });
        let request = GitTargetRequest { repository: asked.repository.name(), push: true, item: item.clone(), denied };
        let _ = ask(gateway, pod, &request).await; // a denial that the governor cannot count is still a denial
    }

    /// Sends the request to the server with the team's credential. If the server refuses the credential, it is read again, because
    /// it may have been replaced.
    async fn send(
        &self,
        target: &GitTarget,
        headers: &HeaderMap,
        (head, rest): (Vec<u8>, Body),
        record: &Arc<TransferRecord>,
    ) -> Result<RemoteAnswer, Refusal> {
        let Self { gateway, pod, asked, .. } = self;
        let wrong = |error: String| Refusal::new(Code::Internal, format!("{}: {error}", target.remote));
        let repository = Repository::parse_url(&target.remote).map_err(|error| wrong(error.to_string()))?;
        let origin = Origin::parse(&repository.origin()).map_err(wrong)?;
        let (git, secret) = (&gateway.git, target.credential.as_deref());
        let token = self.token(secret, &origin).await?;
        let limit = match asked.service {
            Service::Fetch => MAX_FETCH_REQUEST_BYTES,
            Service::Push => git.settings.max_push_bytes,
        };
        let too_large = Arc::new(AtomicBool::new(false));
        let upload = |head, rest| Upload::new(head, rest, limit, record.clone(), too_large.clone());
        let sent = |token: Option<&Token>, body: Upload| {
            let method = if asked.exchange == Exchange::Call { Method::POST } else { Method::GET };
            let path = repository.url_path() + &asked.service.path(asked.exchange);
            let mut request = Request::builder().method(method).uri(path).body(body).map_err(|error| wrong(error.to_string()))?;
            *request.headers_mut() = remote::request_headers(headers, asked, token.map(Token::header_value));
            Ok::<_, Refusal>(request)
        };
        let request = sent(token.as_ref(), upload(head, rest))?;
        let answer = remote::send(&git.dialer, &origin, request).await;
        if too_large.load(Ordering::SeqCst) {
            let message = format!("{}: it has more than {limit} bytes", Denial::TooLarge);
            return Err(Refusal::new(Code::GitDenied, message).reason(Denial::TooLarge.reason()));
        }
        let mut answer = answer?;
        if let (StatusCode::UNAUTHORIZED, Some(secret)) = (answer.response.status(), secret) {
            git.credentials.forget(&pod.namespace, secret);
            // Only a request without a body can be sent again.
            if asked.exchange == Exchange::Advertisement {
                let newer = self.token(Some(secret), &origin).await?;
                if newer != token {
                    answer = remote::send(&git.dialer, &origin, sent(newer.as_ref(), upload(Vec::new(), Body::empty()))?).await?;
                }
            }
        }
        remote::check(&answer.response, asked, &target.remote, secret)?;
        Ok(answer)
    }

    async fn token(&self, secret: Option<&str>, origin: &Origin) -> Result<Option<Token>, Refusal> {
        let Some(secret) = secret else { return Ok(None) };
        self.gateway.git.credentials.get(&self.pod.namespace, secret, origin).await.map(Some)
    }

    /// Logs and counts the outcome of the request.
    fn log(&self, outcome: &'static str, refs: &str) {
        let Self { gateway, pod, asked, item } = self;
        let service = asked.service.label();
        gateway.metrics.git_request(service, outcome);
        let item = item.as_ref().map(|item| item.uid.as_str()).unwrap_or_default();
        let repository = asked.repository.name();
        // Each fetch and push begins with an advertisement, which is logged only if it is denied.
        if asked.exchange == Exchange::Call || outcome != "Allowed" {
            tracing::info!(namespace = pod.namespace, agent = pod.name, item, repository, service, refs, outcome, "git");
        }
    }
}

/// The refs of a push, for a log line.
fn ref_names(head: &PushHead) -> String {
    let names: Vec<String> = head.updates.iter().take(MAX_LOGGED_REFS).map(|update| shown(&update.name)).collect();
    names.join(" ")
}

/// A name of a program, as long as valid ones are.
fn shown(name: &str) -> String {
    name.chars().take(MAX_SHOWN_CHARS).collect()
}
