//! Who may call a bridge: programs of a laptop, perhaps with a token, or the gateways of an installation, which say for which agent they
//! call.
//!
//! It must not decide on a call of a program.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, put};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use spillway_bridge::audit::{Caller, RecordedFile};

use super::admitted_request::{AdmittedRequest, Provided};
use super::call_files::{CallFiles, FileRefused};
use super::executor::Executor;
use super::settings::ServeArguments;
use crate::serve::Connection;
use crate::wire::BRIDGE_TLS_NAME;
use crate::wire::artifact::SHA256_HEADER;
use crate::wire::governor::{CALLER_POD_HEADER, CALLER_UID_HEADER};
use crate::wire::meter::ITEM_HEADER;
use crate::wire::tools::{
    BRIDGE_FILES_PATH, BRIDGE_IDENTITY_PATH, BRIDGE_STATUS_PATH, BridgeStatus, MAX_REQUEST_BYTES, TOOL_REQUEST_HEADER, TOOL_STATUS_HEADER,
    TOOL_VERDICT_HEADER, TOOLSET_HEADER,
};

/// Time limit of the body of a request.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// The caller's name in the audit log, if the bridge was started by hand.
const LOCAL_CALLER: &str = "local";
/// The name by which gateways are counted, and the caller of a request that names no agent.
const GATEWAYS: &str = "gateway";
/// The hosts by which programs of a laptop reach the bridge.
const LOCAL_HOSTS: [&str; 3] = ["localhost", "127.0.0.1", "::1"];
/// The rule of a request whose Host or Origin is wrong.
const ORIGIN_RULE: &str = "origin";
/// The rule of a request that does not show who calls.
const CALLER_RULE: &str = "caller";
/// The most programs and characters in a status.
const MAX_STATUS_PROGRAMS: usize = 128;
const MAX_PROBLEM_CHARS: usize = 1024;

/// Who may call. Cheap to clone.
#[derive(Clone, Debug)]
pub enum Clients {
    /// Programs of this machine, and others that know the token.
    Local {
        /// The token.
        token: Option<Arc<str>>,
    },
    /// Gateways, which TLS has let in.
    Gateways {
        /// File with the token that proves which bridge this is.
        identity: Arc<Path>,
    },
}

impl Clients {
    /// The clients of these arguments.
    pub fn of(arguments: &ServeArguments) -> anyhow::Result<Self> {
        if let Some(identity) = &arguments.identity_token {
            return Ok(Self::Gateways { identity: identity.as_path().into() });
        }
        let token = arguments.token_file.as_ref().map(read_token).transpose()?;
        if token.is_none() && !arguments.listen.ip().is_loopback() {
            anyhow::bail!(
                "{} can be reached from other machines, so that --token-file is needed: a file with the token that clients send",
                arguments.listen
            );
        }
        Ok(Self::Local { token })
    }

    /// The hosts by which they reach the bridge.
    pub fn own_hosts(&self) -> impl Iterator<Item = &'static str> {
        let hosts: &[&str] = match self {
            Self::Local { .. } => &LOCAL_HOSTS,
            Self::Gateways { .. } => &[BRIDGE_TLS_NAME],
        };
        hosts.iter().copied()
    }

    /// The routes for them, with `mcp` behind the admission.
    pub fn routes(self, mcp: Router, executor: Arc<Executor>) -> Router {
        let state = (self.clone(), executor.clone());
        let mcp = mcp.layer(from_fn_with_state(state, admit));
        match self {
            Self::Local { .. } => mcp,
            Self::Gateways { identity } => {
                let files = executor.files();
                let bring = move |path: axum::extract::Path<(String, String)>, request: Request| bring_file(files, path, request);
                let own = Router::new()
                    .route(&format!("{BRIDGE_FILES_PATH}{{request}}/{{name}}"), put(bring))
                    .route(BRIDGE_IDENTITY_PATH, get(move || identity_token(identity)))
                    .route(BRIDGE_STATUS_PATH, get(move || async move { json_body(&status(&executor)) }));
                // TLS has shown that the client is ours.
                mcp.merge(own.layer(from_fn(know_gateway)))
            }
        }
    }

    /// The caller of a request, or the refusal of it.
    fn caller(&self, headers: &HeaderMap) -> Result<Caller, Box<Response>> {
        match self {
            Self::Local { token: Some(token) } if !has_token(headers, token) => {
                let message = "this bridge asks for a token: Authorization: Bearer TOKEN, with the TOKEN of its --token-file\n";
                Err(Box::new((StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Bearer")], message).into_response()))
            }
            Self::Local { .. } => Ok(Caller::named(LOCAL_CALLER)),
            Self::Gateways { .. } => asserted_caller(headers)
                .ok_or_else(|| Box::new((StatusCode::BAD_REQUEST, "the gateway names no agent for which it calls\n").into_response())),
        }
    }

    /// What the gateway provides for a request.
    fn provided(&self, headers: &HeaderMap) -> Result<Option<Provided>, (StatusCode, &'static str)> {
        match self {
            Self::Local { .. } => Ok(None),
            Self::Gateways { .. } => provided(headers).map(Some).ok_or((StatusCode::BAD_REQUEST, "the verdict of the request is wrong\n")),
        }
    }

    /// The name by which connections and refused requests are counted.
    fn counted_as(&self) -> &'static str {
        match self {
            Self::Local { .. } => LOCAL_CALLER,
            Self::Gateways { .. } => GATEWAYS,
        }
    }
}

/// The agent for which a gateway calls.
fn asserted_caller(headers: &HeaderMap) -> Option<Caller> {
    let value = |name: &str| headers.get(name)?.to_str().ok().filter(|value| !value.is_empty()).map(str::to_owned);
    Some(Caller { name: value(CALLER_POD_HEADER)?, pod: Some(value(CALLER_UID_HEADER)?), item: value(ITEM_HEADER) })
}

/// What a gateway provides. None: it cannot be read.
fn provided(headers: &HeaderMap) -> Option<Provided> {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().ok()).map_or(Some(None), |value| value.map(Some));
    let judged = match text(TOOL_VERDICT_HEADER)? {
        Some(encoded) => Some(serde_json::from_slice(&BASE64_STANDARD.decode(encoded).ok()?).ok()?),
        None => None,
    };
    let own = |name| Some(text(name)?.unwrap_or_default().to_owned());
    Some(Provided { request: own(TOOL_REQUEST_HEADER)?, toolset: own(TOOLSET_HEADER)?, judged })
}

/// Takes an artifact for a request that is under way.
async fn bring_file(files: Arc<CallFiles>, path: axum::extract::Path<(String, String)>, request: Request) -> Response {
    let axum::extract::Path((id, name)) = path;
    let (head, body) = request.into_parts();
    let header = |name: HeaderName| head.headers.get(name).and_then(|value| value.to_str().ok());
    let bytes = header(header::CONTENT_LENGTH).and_then(|value| value.parse().ok());
    let sha256 = header(HeaderName::from_static(SHA256_HEADER)).map(str::to_owned);
    let agent = header(HeaderName::from_static(CALLER_UID_HEADER)).unwrap_or_default().to_owned();
    let (Some(bytes), Some(sha256)) = (bytes, sha256) else {
        return (StatusCode::LENGTH_REQUIRED, "the size and the hash of the file are missing\n").into_response();
    };
    match files.bring((&agent, &id), &name, RecordedFile { sha256, bytes }, body).await {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(refused) => {
            tracing::warn!(%refused, name, "an artifact for a program was not taken");
            let status = match refused {
                FileRefused::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
                FileRefused::Wrong(_) | FileRefused::CutOff(_) => StatusCode::BAD_REQUEST,
                FileRefused::Full | FileRefused::Disk(_) => StatusCode::SERVICE_UNAVAILABLE,
            };
            (status, format!("{refused}\n")).into_response()
        }
    }
}

fn read_token(file: &PathBuf) -> anyhow::Result<Arc<str>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    match text.trim() {
        "" => anyhow::bail!("{} has no token", file.display()),
        token => Ok(token.into()),
    }
}

fn has_token(headers: &HeaderMap, token: &str) -> bool {
    let sent = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(|value| value.strip_prefix("Bearer "));
    sent.is_some_and(|sent| spillway_pod::random::same(sent, token))
}

/// Lets a request pass that may call and is whole in time. A client that stops in the middle of its request would keep the place of its
/// connection otherwise. What is refused here, or for its origin, is in the audit log.
async fn admit(State((clients, executor)): State<(Clients, Arc<Executor>)>, request: Request, next: Next) -> Response {
    let caller = match clients.caller(request.headers()) {
        Ok(caller) => caller,
        Err(refused) => {
            let message = "the request does not show who calls".to_owned();
            executor.refuse(Caller::named(clients.counted_as()), CALLER_RULE, message).await;
            return *refused;
        }
    };
    if let Err(refused) = keep_connection(&request, clients.counted_as()) {
        return refused.into_response();
    }
    let mut request = match read_whole(request).await {
        Ok(request) => request,
        Err(refused) => return refused.into_response(),
    };
    let provided = match clients.provided(request.headers()) {
        Ok(provided) => provided,
        Err(refused) => return refused.into_response(),
    };
    let admitted = AdmittedRequest::of(caller, provided);
    request.extensions_mut().insert(admitted.clone());
    let mut response = next.run(request).await;
    if response.status() == StatusCode::FORBIDDEN {
        executor.refuse(admitted.caller, ORIGIN_RULE, "the Host or the Origin of the request is wrong".to_owned()).await;
    }
    match admitted.outcome.get() {
        Some(Ok(status)) => {
            response.headers_mut().insert(HeaderName::from_static(TOOL_STATUS_HEADER), HeaderValue::from_static(status.label()));
            response
        }
        Some(Err(needs)) => (StatusCode::PRECONDITION_REQUIRED, json_body(needs)).into_response(),
        None => response,
    }
}

/// Keeps the connection of a gateway for its next request.
async fn know_gateway(request: Request, next: Next) -> Response {
    match keep_connection(&request, GATEWAYS) {
        Ok(()) => next.run(request).await,
        Err(refused) => refused.into_response(),
    }
}

/// The connection of a request is a known one from now on.
fn keep_connection(request: &Request, counted_as: &str) -> Result<(), (StatusCode, &'static str)> {
    let Some(connection) = request.extensions().get::<Connection>() else { return Ok(()) };
    connection.admit(counted_as).map_err(|_| (StatusCode::SERVICE_UNAVAILABLE, "too many connections\n"))
}

/// The request with a body that is in memory.
async fn read_whole(request: Request) -> Result<Request, (StatusCode, &'static str)> {
    let (head, body) = request.into_parts();
    match tokio::time::timeout(BODY_TIMEOUT, to_bytes(body, MAX_REQUEST_BYTES)).await {
        Ok(Ok(bytes)) => Ok(Request::from_parts(head, Body::from(bytes))),
        // A client whose connection broke does not read the answer.
        Ok(Err(_)) => Err((StatusCode::PAYLOAD_TOO_LARGE, "a request may have 256 KiB\n")),
        Err(_) => Err((StatusCode::REQUEST_TIMEOUT, "the request did not come within 10 s\n")),
    }
}

/// The token that proves which bridge this is. The kubelet renews the file.
async fn identity_token(file: Arc<Path>) -> Response {
    match tokio::fs::read_to_string(&file).await {
        Ok(token) => token.into_response(),
        Err(error) => {
            tracing::error!(%error, file = %file.display(), "cannot read the token of this bridge (--identity-token)");
            StatusCode::SERVICE_UNAVAILABLE.into_response()
        }
    }
}

fn json_body(value: &impl Serialize) -> Response {
    let text = serde_json::to_string(value).unwrap_or_default(); // our own types always serialize
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

/// What this bridge serves.
fn status(executor: &Executor) -> BridgeStatus {
    let served = executor.served();
    let programs = served.catalog().programs().take(MAX_STATUS_PROGRAMS).map(|program| program.name.clone()).collect();
    let upstream = served.upstream().and_then(|server| server.fault());
    let faults = executor.faults().join("; ");
    let problem = Some(faults).filter(|faults| !faults.is_empty()).map(|faults| faults.chars().take(MAX_PROBLEM_CHARS).collect());
    BridgeStatus { revision: served.catalog().revision().to_owned(), programs, problem, upstream }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_names_the_agent_for_which_it_calls() {
        let headers = |all: &[(&'static str, &'static str)]| -> HeaderMap {
            all.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
        };
        let whole = [(CALLER_POD_HEADER, "a"), (CALLER_UID_HEADER, "u"), (ITEM_HEADER, "i/3")];
        let expected = Caller { name: "a".into(), pod: Some("u".into()), item: Some("i/3".into()) };
        assert_eq!(asserted_caller(&headers(&whole)), Some(expected));
        assert_eq!(asserted_caller(&headers(&whole[..2])).and_then(|caller| caller.item), None);
        for missing in [&whole[1..], &whole[..1], &[(CALLER_POD_HEADER, ""), (CALLER_UID_HEADER, "u")]] {
            assert_eq!(asserted_caller(&headers(missing)), None, "{missing:?}");
        }
        let clients = Clients::Gateways { identity: Path::new("/x").into() };
        assert_eq!(clients.caller(&headers(&[])).expect_err("nobody").status(), StatusCode::BAD_REQUEST);
    }

    #[test]
    fn a_local_client_shows_the_token_if_there_is_one() {
        let clients = Clients::Local { token: Some("secret".into()) };
        let mut headers = HeaderMap::new();
        assert_eq!(clients.caller(&headers).expect_err("no token").status(), StatusCode::UNAUTHORIZED);
        headers.insert(header::AUTHORIZATION, HeaderValue::from_static("Bearer secret"));
        // A local client cannot be an agent.
        headers.insert(CALLER_POD_HEADER, HeaderValue::from_static("agent"));
        assert_eq!(clients.caller(&headers).expect("the token"), Caller::named(LOCAL_CALLER));
    }
}
