//! A request to a bridge, with the identity of the agent. It may be sent several times.
//!
//! It must not read a request or an answer of MCP.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use hyper::{Method, Request};

use crate::bridge::client::{BridgeAccount, BridgeAnswer, BridgeBody, BridgeConnection, BridgeError, in_memory};
use crate::cluster::token::PodIdentity;
use crate::gateway::caller::may_review_token;
use crate::gateway::state::Gateway;
use crate::wire::governor::{CALLER_NAMESPACE_HEADER, CALLER_POD_HEADER, CALLER_UID_HEADER};
use crate::wire::meter::ITEM_HEADER;
use crate::wire::text::hex;
use crate::wire::tools::{BRIDGE_MCP_PATH, JudgedCall, TOOL_REQUEST_HEADER, TOOL_VERDICT_HEADER, TOOLSET_HEADER, ToolsetTarget};
use crate::wire::work::LeaseRef;
use crate::wire::{Code, Refusal};

/// Headers of a program's request that go to the bridge, besides those of MCP.
const FORWARDED_HEADERS: [HeaderName; 4] = [header::ACCEPT, header::CONTENT_TYPE, header::ORIGIN, header::USER_AGENT];
/// Start of the names of MCP's headers.
pub const MCP_HEADER_PREFIX: &str = "mcp-";
/// Seconds after which a program may try again to reach a bridge.
const RETRY_SECONDS: u32 = 5;
/// Bytes of an id of a request.
const REQUEST_ID_BYTES: usize = 16;

/// A request of an agent, for a bridge.
pub struct BridgeCall<'a> {
    pub gateway: &'a Arc<Gateway>,
    pub pod: &'a PodIdentity,
    pub toolset: &'a str,
    /// The gateway's id of the request.
    pub id: String,
    headers: HeaderMap,
    body: Bytes,
    target: ToolsetTarget,
}

impl<'a> BridgeCall<'a> {
    pub fn new(
        gateway: &'a Arc<Gateway>,
        pod: &'a PodIdentity,
        toolset: &'a str,
        (headers, body): (&HeaderMap, Bytes),
        target: ToolsetTarget,
    ) -> Result<Self, Refusal> {
        let id = hex(&rand::random::<[u8; REQUEST_ID_BYTES]>());
        let headers = asserted(headers, pod, toolset, target.item.as_ref(), &id)
            .map_err(|error| Refusal::new(Code::Internal, format!("Toolset/{toolset}: {error}")))?;
        Ok(Self { gateway, pod, toolset, id, headers, body, target })
    }

    /// Sends the request of the program.
    pub async fn send_request(&self, connection: BridgeConnection) -> Result<BridgeAnswer, Refusal> {
        let body = in_memory(self.body.clone());
        self.send(connection, self.request(Method::POST, BRIDGE_MCP_PATH, self.headers.clone(), body)?).await
    }

    /// From now on the request has the verdict of a person.
    pub fn set_verdict(&mut self, judged: &JudgedCall) {
        self.headers.insert(HeaderName::from_static(TOOL_VERDICT_HEADER), verdict(judged));
    }

    /// From now on the request goes to where the bridge is by now. It stays for the same item.
    pub fn set_target(&mut self, target: ToolsetTarget) -> Result<(), Refusal> {
        if target.item != self.target.item {
            return Err(Refusal::new(Code::NotWorking, "the agent has taken an item since it made this call; make the call again"));
        }
        let verdict = self.headers.get(TOOL_VERDICT_HEADER).cloned();
        self.headers = asserted(&self.headers, self.pod, self.toolset, target.item.as_ref(), &self.id)
            .map_err(|error| Refusal::new(Code::Internal, format!("Toolset/{}: {error}", self.toolset)))?;
        self.headers.extend(verdict.map(|verdict| (HeaderName::from_static(TOOL_VERDICT_HEADER), verdict)));
        self.target = target;
        Ok(())
    }

    /// A request for the bridge.
    pub fn request(&self, method: Method, path: &str, headers: HeaderMap, body: BridgeBody) -> Result<Request<BridgeBody>, Refusal> {
        let mut request = Request::builder().method(method).uri(path).body(body).map_err(|error| self.unreachable(&error.to_string()))?;
        *request.headers_mut() = headers;
        Ok(request)
    }

    /// A connection to the bridge. Nothing was sent, so that it may be tried again.
    pub async fn connect(&self) -> Result<BridgeConnection, Refusal> {
        let Self { gateway, pod, toolset, target, .. } = self;
        let address: SocketAddr = target.address.parse().map_err(|_| self.unreachable(&format!("{} is no address", target.address)))?;
        let account = BridgeAccount { namespace: pod.namespace.clone(), service_account: target.service_account.clone() };
        let may_review = || may_review_token(gateway, &format!("bridges of {}", pod.namespace));
        gateway.tools.client.connect(address, &account, may_review).await.map_err(|error| {
            if let BridgeError::NotTheBridge(why) = &error {
                tracing::error!(namespace = pod.namespace, toolset, %address, why, "a server is not the bridge of the Toolset");
            }
            self.unreachable(&error.to_string())
        })
    }

    /// Sends a request to the bridge.
    pub async fn send(&self, connection: BridgeConnection, request: Request<BridgeBody>) -> Result<BridgeAnswer, Refusal> {
        connection.send(request).await.map_err(|error| self.unreachable(&error.to_string()))
    }

    /// The bridge cannot be used now.
    pub fn unreachable(&self, why: &str) -> Refusal {
        Refusal::new(Code::DestinationUnreachable, format!("Toolset/{}: {why}", self.toolset)).retry_after(RETRY_SECONDS)
    }
}

fn verdict(judged: &JudgedCall) -> HeaderValue {
    let text = serde_json::to_vec(judged).unwrap_or_default(); // our own types always serialize
    // Base64 is a value of a header.
    HeaderValue::try_from(BASE64_STANDARD.encode(text)).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// The headers for the bridge: those of MCP, and who calls. A program cannot set the latter.
fn asserted(
    from: &HeaderMap,
    pod: &PodIdentity,
    toolset: &str,
    item: Option<&LeaseRef>,
    id: &str,
) -> Result<HeaderMap, header::InvalidHeaderValue> {
    let is_forwarded = |name: &HeaderName| FORWARDED_HEADERS.contains(name) || name.as_str().starts_with(MCP_HEADER_PREFIX);
    let mut headers: HeaderMap =
        from.iter().filter(|(name, _)| is_forwarded(name)).map(|(name, value)| (name.clone(), value.clone())).collect();
    let item = item.map(|LeaseRef { uid, epoch }| (ITEM_HEADER, format!("{uid}/{epoch}")));
    let caller = [
        (CALLER_NAMESPACE_HEADER, pod.namespace.clone()),
        (CALLER_POD_HEADER, pod.name.clone()),
        (CALLER_UID_HEADER, pod.uid.clone()),
        (TOOL_REQUEST_HEADER, id.to_owned()),
        (TOOLSET_HEADER, toolset.to_owned()),
    ];
    for (name, value) in caller.into_iter().chain(item) {
        headers.insert(HeaderName::from_static(name), HeaderValue::try_from(value)?);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bridge_hears_from_the_gateway_who_calls_and_from_the_program_nothing_but_mcp() {
        let sent: HeaderMap = [
            ("content-type", "application/json"),
            ("mcp-protocol-version", "2025-11-25"),
            ("origin", "https://evil.example"),
            ("authorization", "Bearer x"),
            ("cookie", "a=b"),
            ("x-forwarded-for", "1.2.3.4"),
            (CALLER_UID_HEADER, "forged"),
            (ITEM_HEADER, "forged/9"),
            (TOOL_REQUEST_HEADER, "forged"),
            (TOOL_VERDICT_HEADER, "forged"),
            (TOOLSET_HEADER, "forged"),
        ]
        .into_iter()
        .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
        .collect();
        let pod = PodIdentity { namespace: "n".into(), name: "a".into(), uid: "u".into(), external: None };
        let text = |headers: &HeaderMap, name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let headers = asserted(&sent, &pod, "deploy", Some(&LeaseRef { uid: "i".into(), epoch: 3 }), "1").expect("headers");
        assert_eq!(text(&headers, CALLER_UID_HEADER).as_deref(), Some("u"));
        assert_eq!(text(&headers, ITEM_HEADER).as_deref(), Some("i/3"));
        assert_eq!(text(&headers, "origin").as_deref(), Some("https://evil.example"), "the bridge judges it");
        assert_eq!(headers.len(), 9, "{headers:?}");
        let headers = asserted(&sent, &pod, "deploy", None, "1").expect("headers");
        assert_eq!(text(&headers, ITEM_HEADER), None, "an item that nobody holds is not asserted");
    }
}
