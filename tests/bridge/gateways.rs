//! The bridge of a Toolset, as a gateway calls it: over TLS, with the real client.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use axum::http::{HeaderMap, Method, Request, StatusCode};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use spillway::bridge::client::{BridgeAccount, BridgeClient, BridgeConnection, BridgeError, in_memory};
use spillway::pki::authority::{PemKeyPair, authority, serving};
use spillway::pki::tls::Serving;
use spillway::wire::governor::{CALLER_POD_HEADER, CALLER_UID_HEADER};
use spillway::wire::meter::ITEM_HEADER;
use spillway::wire::tools::{BRIDGE_MCP_PATH, BridgeStatus, TOOL_STATUS_HEADER, UpstreamFaultKind};
use spillway::wire::{BRIDGE_AUDIENCE, GATEWAY_TLS_NAME, GOVERNOR_TLS_NAME};

use super::support::{Bridge, wait_until};
use super::upstream_server::{UpstreamServer, text};

pub const CALLER: [(&str, &str); 3] = [(CALLER_POD_HEADER, "agent-1"), (CALLER_UID_HEADER, "pod-uid"), (ITEM_HEADER, "item-uid/7")];

/// A bridge that serves gateways, and the authority of its installation.
pub struct Toolset {
    pub bridge: Bridge,
    authority: PemKeyPair,
}

/// An API server that knows one token: that of a pod of the ServiceAccount `team:tools`.
fn api_server() -> kube::Client {
    let service = tower::service_fn(|request: http::Request<kube::client::Body>| async move {
        let body = request.into_body().collect().await.expect("a body").to_bytes();
        let review: Value = serde_json::from_slice(&body).expect("a review");
        let extra = json!({"authentication.kubernetes.io/pod-name": ["p"], "authentication.kubernetes.io/pod-uid": ["u"]});
        let user = json!({"username": "system:serviceaccount:team:tools", "extra": extra});
        let known = review["spec"]["token"] == "token-of-the-bridge" && review["spec"]["audiences"] == json!([BRIDGE_AUDIENCE]);
        let status = json!({"authenticated": known, "user": user, "audiences": [BRIDGE_AUDIENCE]});
        let answer = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "metadata": {}, "spec": review["spec"], "status": status});
        Ok::<_, std::convert::Infallible>(http::Response::new(Full::new(Bytes::from(answer.to_string()))))
    });
    kube::Client::new(service, "default")
}

fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}

fn write(folder: &Path, name: &str, text: &str) -> String {
    let file = folder.join(name);
    std::fs::write(&file, text).expect("written");
    file.display().to_string()
}

impl Toolset {
    fn start() -> Self {
        Self::with(&[("say", super::SAY)])
    }

    /// A bridge with these definitions.
    pub fn with(definitions: &[(&str, &str)]) -> Self {
        Self::start_with(|more| Bridge::start(definitions, more))
    }

    /// `start` gets the arguments by which a bridge serves gateways.
    fn start_with(start: impl FnOnce(&[&str]) -> Bridge) -> Self {
        let folder = tempfile::Builder::new().prefix("toolset").tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder").keep();
        let authority = authority(now()).expect("an authority");
        let (ca, token) = (write(&folder, "ca.crt", &authority.certificate), write(&folder, "token", "token-of-the-bridge\n"));
        let bridge = start(&["--gateway-ca", &ca, "--identity-token", &token]);
        Self { bridge, authority }
    }

    /// A client that shows the certificate `shown`.
    fn client(shown: Option<&PemKeyPair>) -> BridgeClient {
        let certificate = Serving::default();
        if let Some(shown) = shown {
            certificate.set(shown).expect("a certificate");
        }
        BridgeClient::new(certificate, api_server()).expect("a client")
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.bridge.port()))
    }

    async fn connect(&self, shown: Option<&PemKeyPair>, account: &str) -> Result<BridgeConnection, BridgeError> {
        let account = BridgeAccount { namespace: "team".into(), service_account: account.into() };
        Self::client(shown).connect(self.address(), &account, || Ok(())).await
    }

    /// Sends a request over a connection of a gateway.
    pub async fn send(&self, method: Method, path: &str, headers: &[(&str, &str)], body: &[u8]) -> (StatusCode, HeaderMap, Value) {
        let gateway = serving(&self.authority, GATEWAY_TLS_NAME, now()).expect("a certificate");
        let connection = self.connect(Some(&gateway), "tools").await.map_err(|error| error.to_string()).expect("the bridge");
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(in_memory(Bytes::copy_from_slice(body))).expect("a request");
        let answer = connection.send(request).await.map_err(|error| error.to_string());
        let (head, body) = answer.expect("an answer").response.into_parts();
        let bytes = body.collect().await.expect("whole").to_bytes();
        (head.status, head.headers, serde_json::from_slice(&bytes).unwrap_or_default())
    }

    /// A call of a program, as a gateway sends it.
    pub async fn execute(&self, headers: &[(&str, &str)], program: &str, args: &Value) -> (StatusCode, HeaderMap, Value) {
        self.call(headers, &json!({"name": "execute", "arguments": {"program": program, "args": args}})).await
    }

    /// A call of a tool, as a gateway sends it.
    async fn call(&self, headers: &[(&str, &str)], call: &Value) -> (StatusCode, HeaderMap, Value) {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}).to_string();
        let own = [
            ("content-type", "application/json"),
            ("accept", "application/json, text/event-stream"),
            ("mcp-protocol-version", "2025-11-25"),
        ];
        let headers: Vec<(&str, &str)> = own.iter().chain(headers).copied().collect();
        self.send(Method::POST, BRIDGE_MCP_PATH, &headers, body.as_bytes()).await
    }

    async fn say(&self, headers: &[(&'static str, &'static str)]) -> (StatusCode, HeaderMap, Value) {
        self.execute(headers, "say", &json!({"one": "x"})).await
    }
}

pub fn install_provider() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default(); // another test may have
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_calls_for_an_agent_and_the_audit_log_names_it() {
    install_provider();
    let toolset = Toolset::start();
    let (status, headers, body) = toolset.say(&CALLER).await;
    assert_eq!((status, &body["result"]["structuredContent"]["stdout"]), (StatusCode::OK, &json!("x|")), "{body}");
    assert_eq!(headers.get(TOOL_STATUS_HEADER).and_then(|status| status.to_str().ok()), Some("ok"));
    let events = toolset.bridge.events();
    let start = events.iter().find(|event| event["event"] == "Start").expect("a start");
    assert_eq!(start["caller"], json!({"name": "agent-1", "pod": "pod-uid", "item": "item-uid/7"}));
    let (status, _, _) = toolset.say(&CALLER[..1]).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "a gateway that does not say for which pod it calls");
    let origin = [CALLER[0], CALLER[1], ("origin", "https://evil.example")];
    let (status, _, _) = toolset.say(&origin).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    wait_until("both are in the audit log", || {
        let events = toolset.bridge.events();
        let refused: Vec<&Value> = events.iter().filter(|event| event["event"] == "Refused").map(|event| &event["rule"]).collect();
        refused == [&json!("caller"), &json!("origin")]
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bridge_answers_spillway_alone_and_spillway_calls_the_bridge_alone() {
    install_provider();
    let toolset = Toolset::start();
    for name in [GATEWAY_TLS_NAME, GOVERNOR_TLS_NAME] {
        let shown = serving(&toolset.authority, name, now()).expect("a certificate");
        assert!(toolset.connect(Some(&shown), "tools").await.is_ok(), "{name}");
        let other = toolset.connect(Some(&shown), "other").await.err().expect("another ServiceAccount");
        assert!(matches!(&other, BridgeError::NotTheBridge(why) if why.contains("team:tools")), "{other}");
    }
    let foreign = authority(now()).expect("an authority");
    let foreign = serving(&foreign, GATEWAY_TLS_NAME, now()).expect("a certificate");
    let unnamed = serving(&toolset.authority, "agent.spillway.internal", now()).expect("a certificate");
    for shown in [None, Some(&foreign), Some(&unnamed)] {
        let refused = toolset.connect(shown, "tools").await.err().expect("a stranger");
        assert!(matches!(refused, BridgeError::Unreachable(_)), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bridge_says_what_it_serves_and_which_changed_definition_is_wrong() {
    install_provider();
    let toolset = Toolset::start();
    let shown = serving(&toolset.authority, GOVERNOR_TLS_NAME, now()).expect("a certificate");
    let account = BridgeAccount { namespace: "team".into(), service_account: "tools".into() };
    let client = Toolset::client(Some(&shown));
    let first = client.status(toolset.address(), &account).await.map_err(|error| error.to_string()).expect("a status");
    assert_eq!((first.programs.as_slice(), first.problem), (&["say".to_owned()][..], None));
    toolset.bridge.define("wrong", "command: relative\n");
    let (until, mut problem) = (std::time::Instant::now() + std::time::Duration::from_secs(120), None);
    while problem.is_none() && std::time::Instant::now() < until {
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        let status = client.status(toolset.address(), &account).await.map_err(|error| error.to_string()).expect("a status");
        assert_eq!(status.revision, first.revision, "the last right definitions are served");
        problem = status.problem;
    }
    let problem = problem.expect("a problem");
    assert!(problem.contains("wrong.md") && problem.contains("line"), "{problem}");
}

/// Asks the bridge for its status until it holds.
async fn wait_for_status(toolset: &Toolset, holds: impl Fn(&BridgeStatus) -> bool) -> BridgeStatus {
    let shown = serving(&toolset.authority, GOVERNOR_TLS_NAME, now()).expect("a certificate");
    let account = BridgeAccount { namespace: "team".into(), service_account: "tools".into() };
    let client = Toolset::client(Some(&shown));
    let until = std::time::Instant::now() + std::time::Duration::from_secs(120);
    loop {
        let status = client.status(toolset.address(), &account).await.map_err(|error| error.to_string()).expect("a status");
        if holds(&status) {
            return status;
        }
        assert!(std::time::Instant::now() < until, "{status:?}");
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_mcp_server_is_called_for_an_agent_and_its_faults_are_in_the_status() {
    install_provider();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let fields = format!("url: http://{address}/mcp\ntools: [{{name: search}}, {{name: gone}}]\n");
    let toolset = Toolset::start_with(|more| Bridge::start_upstream(&fields, more));
    let kind = |status: &BridgeStatus| status.upstream.as_ref().map(|fault| fault.kind);
    let down = wait_for_status(&toolset, |status| kind(status) == Some(UpstreamFaultKind::Unreachable)).await;
    assert_eq!(down.programs, ["gone", "search"]);
    assert!(down.upstream.is_some_and(|fault| fault.message.contains("Connection refused")));
    let listener = std::net::TcpListener::bind(address).expect("the same port");
    let server = UpstreamServer::on(listener, |request, stream| text(stream, request, "found"));
    let up = wait_for_status(&toolset, |status| kind(status) == Some(UpstreamFaultKind::ToolMissing)).await;
    assert_eq!(up.upstream.map(|fault| fault.message).as_deref(), Some("gone is not there"));
    let outcome = |headers: &HeaderMap| headers.get(TOOL_STATUS_HEADER).and_then(|status| status.to_str().ok()).map(str::to_owned);
    let (status, headers, body) = toolset.call(&CALLER, &json!({"name": "search", "arguments": {}})).await;
    assert_eq!((status, &body["result"]["content"][0]["text"]), (StatusCode::OK, &json!("found")), "{body}");
    assert_eq!(outcome(&headers).as_deref(), Some("ok"));
    let (_, headers, body) = toolset.call(&CALLER, &json!({"name": "secret", "arguments": {}})).await;
    assert_eq!(
        (outcome(&headers).as_deref(), &body["result"]["structuredContent"]["rule"]),
        (Some("rejected"), &json!("notAllowed")),
        "{body}"
    );
    assert_eq!(server.calls().len(), 1);
    let events = toolset.bridge.events();
    let start = events.iter().find(|event| event["event"] == "Start").expect("a start");
    assert_eq!((&start["program"], &start["caller"]["item"]), (&json!("search"), &json!("item-uid/7")));
}
