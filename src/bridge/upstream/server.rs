//! The upstream of a bridge: its tools, read again and again, and calls of them, as answers.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use rmcp::model::CallToolResult;
use serde_json::{Map, Value};
use spillway_bridge::answer::{Answer, Status};
use spillway_bridge::definition::Definition;
use spillway_bridge::redaction::Secrets;
use spillway_bridge::upstream::listed::{OfferedTool, RawTool, visible};
use spillway_bridge::upstream::tool_states::{ToolFaultKind, ToolState, ToolStates};
use spillway_bridge::upstream::{MAX_UPSTREAM_BYTES, Upstream};
use spillway_wire::tools::{UpstreamFault, UpstreamFaultKind};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::http::UpstreamConnector;
use super::session::{CallEnd, MAX_PAGE_BYTES, SessionFault, SessionPlace};
use crate::bridge::credentials::CredentialFiles;

/// The rule of an answer about an upstream that failed.
pub const UPSTREAM_RULE: &str = "upstream";
/// The rule of an answer about a tool that is not offered now.
const NOT_OFFERED_RULE: &str = "notOffered";
/// The rule of an answer that has too many bytes.
const ANSWER_BYTES_RULE: &str = "answerBytes";
/// Interval of the looks at the tools.
const LOOK_INTERVAL: Duration = Duration::from_secs(30);
/// Interval of the looks at an upstream that does not answer.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// How long a look may take.
const LOOK_TIMEOUT: Duration = Duration::from_secs(30);
/// How long an agent that asks for the tools waits for the first look.
const FIRST_LOOK_WAIT: Duration = Duration::from_secs(10);
/// The most bytes of the answers that open a session.
const MIN_SESSION_BYTES: usize = 256 * 1024;
/// Room for the envelope of an answer.
const ENVELOPE_BYTES: usize = 1024;
/// The most characters of the words of an upstream in a message.
const MAX_MESSAGE_CHARS: usize = 1024;

/// The upstream of this bridge.
#[derive(Debug)]
pub struct UpstreamServer {
    upstream: Upstream,
    place: SessionPlace,
    credentials: CredentialFiles,
    seen: Mutex<ToolStates>,
    /// What is wrong with the connection.
    unreachable: Mutex<Option<String>>,
    /// Whether the tools were listed once.
    listed: watch::Sender<bool>,
}

impl UpstreamServer {
    /// The upstream that these bytes describe. Nothing is sent yet.
    pub fn open(bytes: &[u8], max_seconds: u32, credentials: CredentialFiles) -> anyhow::Result<Self> {
        let upstream = Upstream::load(bytes, max_seconds).map_err(|fault| anyhow::anyhow!("the upstream is wrong: {fault}"))?;
        if let Some(name) = &upstream.credential
            && !credentials.names().any(|known| known == name)
        {
            anyhow::bail!("credentialsRef: there is no credential {name:?}: --credential {name}=FILE is missing");
        }
        let connector = UpstreamConnector::new(&upstream.ca_bundle)?;
        let place = SessionPlace { connector, url: upstream.url.to_string().into(), revision: Arc::default() };
        let (seen, unreachable, listed) = (Mutex::default(), Mutex::default(), watch::Sender::new(false));
        Ok(Self { upstream, place, credentials, seen, unreachable, listed })
    }

    /// Reads a file with the fields of an upstream.
    pub fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
        let read = || {
            let mut bytes = Vec::new();
            let most = MAX_UPSTREAM_BYTES as u64 + 1;
            std::io::Read::read_to_end(&mut std::io::Read::take(std::fs::File::open(file)?, most), &mut bytes).map(|_| bytes)
        };
        read().with_context(|| format!("cannot read {}", file.display()))
    }

    /// What agents may do with it.
    pub fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    /// The tools as agents see them. It waits a while for the first look; an error: the tools are not known.
    pub async fn tools(&self) -> Result<Vec<OfferedTool>, String> {
        let mut listed = self.listed.subscribe();
        let waited = tokio::time::timeout(FIRST_LOOK_WAIT, listed.wait_for(|listed| *listed)).await;
        match waited {
            Ok(_) => Ok(self.seen().offered().map(|seen| seen.offered.clone()).collect()),
            Err(_) => Err(self.unreachable().unwrap_or_else(|| "the upstream has not answered yet".to_owned())),
        }
    }

    /// What is wrong with it.
    pub fn fault(&self) -> Option<UpstreamFault> {
        if let Some(message) = self.unreachable() {
            return Some(UpstreamFault { kind: UpstreamFaultKind::Unreachable, message });
        }
        let (kind, message) = self.seen().fault()?;
        let kind = match kind {
            ToolFaultKind::Missing => UpstreamFaultKind::ToolMissing,
            ToolFaultKind::OtherDigest => UpstreamFaultKind::ToolRefused,
            ToolFaultKind::Changed => UpstreamFaultKind::ToolChanged,
        };
        Some(UpstreamFault { kind, message: message.chars().take(MAX_MESSAGE_CHARS).collect() })
    }

    /// Looks at the tools again and again, until the process is to stop.
    pub async fn follow(self: Arc<Self>, stop: CancellationToken) {
        loop {
            let looked = stop.run_until_cancelled(self.look()).await;
            let wait = match looked {
                None => return,
                Some(true) => LOOK_INTERVAL,
                Some(false) => RETRY_INTERVAL,
            };
            if stop.run_until_cancelled(tokio::time::sleep(wait)).await.is_none() {
                return;
            }
        }
    }

    /// Looks once. Returns whether the upstream answered.
    async fn look(&self) -> bool {
        let listing = tokio::time::timeout(LOOK_TIMEOUT, self.list()).await;
        let listing = listing.unwrap_or_else(|_| Err(format!("it does not answer within {} s", LOOK_TIMEOUT.as_secs())));
        match listing {
            Ok(tools) => {
                let mut seen = self.seen();
                if seen.look(&self.upstream, &tools) {
                    for tool in seen.offered() {
                        tracing::info!(tool = tool.offered.name, digest = tool.digest, "a tool of the upstream");
                    }
                    if let Some((kind, message)) = seen.fault() {
                        tracing::warn!(?kind, message, "the tools of the upstream are not as they should be");
                    }
                }
                drop(seen);
                self.set_unreachable(None);
                self.listed.send_replace(true);
                true
            }
            Err(message) => {
                let message: String = visible(&message).chars().take(MAX_MESSAGE_CHARS).collect();
                if self.set_unreachable(Some(message.clone())) {
                    tracing::warn!(url = %self.upstream.url, message, "the tools of the upstream cannot be listed");
                }
                false
            }
        }
    }

    async fn list(&self) -> Result<std::collections::BTreeMap<String, RawTool>, String> {
        let (token, secrets) = self.read_credential().await?;
        let listing = async {
            let session = self.place.open(token.as_deref(), MAX_PAGE_BYTES, Instant::now() + LOOK_TIMEOUT).await?;
            session.list(|name| self.upstream.tools.contains_key(name)).await
        };
        let tools = listing.await.map_err(|fault| secrets.remove(fault.message()))?;
        // An upstream knows the credential, and could show it to agents.
        Ok(tools.into_iter().map(|(name, tool)| (name, without(tool, &secrets))).collect())
    }

    /// The credential now: the file may be renewed.
    async fn read_credential(&self) -> Result<(Option<String>, Secrets), String> {
        let (files, names) = (self.credentials.clone(), self.upstream.credential.clone());
        let read = tokio::task::spawn_blocking(move || files.read(&names.into_iter().collect::<Vec<_>>())).await;
        let credentials = read.unwrap_or_else(|error| Err(error.to_string()))?;
        let secrets = Secrets::new(&credentials);
        Ok((credentials.into_values().next(), secrets))
    }

    /// Whether a tool can be called now, or the answer of a call that is not sent.
    pub fn check_offered(&self, tool: &str) -> Result<(), Box<Answer>> {
        let not_sent = |rule, message: String| Err(Box::new(Answer::not_run(Status::SpawnFailed, rule, message)));
        match self.seen().tool(tool) {
            Some(ToolState::Offered(_)) => Ok(()),
            Some(ToolState::Missing) => not_sent(NOT_OFFERED_RULE, format!("the upstream does not offer {tool} now")),
            Some(ToolState::OtherDigest(_)) => {
                not_sent(NOT_OFFERED_RULE, format!("the upstream says something else about {tool} than the digest of the Toolset"))
            }
            Some(ToolState::TooLong(_)) => not_sent(NOT_OFFERED_RULE, format!("the schema of {tool} is too long")),
            None => {
                let why = self.unreachable().unwrap_or_else(|| "it has not answered yet".to_owned());
                not_sent(UPSTREAM_RULE, format!("the upstream has not told its tools: {why}"))
            }
        }
    }

    /// Calls a tool that was checked. `token` and `secrets`: the credential, and what is taken out of the answer.
    pub async fn call(
        &self,
        definition: &Definition,
        arguments: &Map<String, Value>,
        (token, secrets): (Option<&str>, &Secrets),
        end: &CancellationToken,
    ) -> Answer {
        let began = Instant::now();
        let until = began + Duration::from_secs(definition.timeout_seconds.into());
        let calling = self.call_in_session(definition, arguments, token, until, end);
        let ended = tokio::select! {
            ended = calling => ended,
            // A session that cannot be opened in time.
            () = tokio::time::sleep_until(until + Duration::from_secs(5)) => CallEnd::TimedOut,
        };
        let failed = |status, rule, message: String| {
            let message: String = visible(&secrets.remove(message)).chars().take(MAX_MESSAGE_CHARS).collect();
            Answer::not_run(status, rule, format!("the upstream: {message}"))
        };
        let most = definition.limits.stdout_bytes;
        let too_long = || failed(Status::Unknown, ANSWER_BYTES_RULE, format!("its answer has more than {most} bytes (limits.answerBytes)"));
        let answer = match ended {
            CallEnd::Answered(result) => answer(*result, secrets, most).unwrap_or_else(too_long),
            CallEnd::Cancelled => failed(Status::Cancelled, UPSTREAM_RULE, "nobody waits for the call any more".to_owned()),
            CallEnd::TimedOut => {
                failed(Status::Timeout, UPSTREAM_RULE, format!("it did not answer within {} s", definition.timeout_seconds))
            }
            CallEnd::Failed(SessionFault::NotRun(message)) => failed(Status::SpawnFailed, UPSTREAM_RULE, message),
            CallEnd::Failed(SessionFault::Unknown(message)) => failed(Status::Unknown, UPSTREAM_RULE, message),
            CallEnd::Failed(SessionFault::Protocol(message)) => failed(Status::Nonzero, UPSTREAM_RULE, message),
            CallEnd::Failed(SessionFault::TooLong) => too_long(),
        };
        let duration_milliseconds = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        Answer { duration_milliseconds, ..answer }
    }

    async fn call_in_session(
        &self,
        definition: &Definition,
        arguments: &Map<String, Value>,
        token: Option<&str>,
        until: Instant,
        end: &CancellationToken,
    ) -> CallEnd {
        let asks_for_headers = match self.seen().tool(&definition.name) {
            Some(ToolState::Offered(seen)) => seen.asks_for_headers,
            Some(ToolState::Missing | ToolState::OtherDigest(_) | ToolState::TooLong(_)) | None => false,
        };
        let answer_bytes = definition.limits.stdout_bytes + ENVELOPE_BYTES;
        let session_bytes = if asks_for_headers { MAX_PAGE_BYTES } else { answer_bytes.max(MIN_SESSION_BYTES) };
        let opening = async {
            let session = self.place.open(token, session_bytes, until).await?;
            if asks_for_headers {
                // The SDK learns from the list which arguments become headers.
                session.list(|_| false).await?;
            }
            Ok(session)
        };
        let opened = tokio::select! {
            opened = opening => opened,
            () = end.cancelled() => return CallEnd::Cancelled,
            () = tokio::time::sleep_until(until) => return CallEnd::TimedOut,
        };
        match opened {
            Ok(session) => session.call(definition.name.clone(), arguments.clone(), until, end).await,
            Err(SessionFault::Protocol(message)) => CallEnd::Failed(SessionFault::NotRun(message)),
            Err(fault) => CallEnd::Failed(fault),
        }
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, ToolStates> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unreachable(&self) -> Option<String> {
        self.unreachable.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Keeps what is wrong, and says whether it is something else than before.
    fn set_unreachable(&self, message: Option<String>) -> bool {
        let mut kept = self.unreachable.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = *kept != message;
        *kept = message;
        changed
    }
}

/// The answer with a result of a tool. None: it has more than `most` bytes.
fn answer(result: CallToolResult, secrets: &Secrets, most: usize) -> Option<Answer> {
    let failed = result.is_error == Some(true);
    // What else the upstream says, it says to its client, and that is this bridge.
    let CallToolResult { content, structured_content, is_error, .. } = result;
    let mut passed = CallToolResult::default();
    (passed.content, passed.structured_content, passed.is_error) = (content, structured_content, is_error);
    let value = serde_json::to_value(&passed).unwrap_or_default();
    let text = without_secrets(value, secrets).to_string();
    if text.len() > most {
        return None;
    }
    let status = if failed { Status::Nonzero } else { Status::Ok };
    Some(Answer { rule: None, message: None, tool_result: Some(text), ..Answer::not_run(status, "", "") })
}

/// The value without secrets, also in the names of its members.
fn without_secrets(value: Value, secrets: &Secrets) -> Value {
    match value {
        Value::String(text) => Value::String(secrets.remove(text)),
        Value::Object(members) => {
            Value::Object(members.into_iter().map(|(name, value)| (secrets.remove(name), without_secrets(value, secrets))).collect())
        }
        Value::Array(values) => Value::Array(values.into_iter().map(|value| without_secrets(value, secrets)).collect()),
        other @ (Value::Null | Value::Bool(_) | Value::Number(_)) => other,
    }
}

fn without(tool: RawTool, secrets: &Secrets) -> RawTool {
    let RawTool { name, title, description, schema, read_only, too_long } = tool;
    let schema = match without_secrets(Value::Object(schema), secrets) {
        Value::Object(schema) => schema,
        _ => Map::new(),
    };
    let cleaned = |text: Option<String>| text.map(|text| secrets.remove(text));
    RawTool { name, title: cleaned(title), description: cleaned(description), schema, read_only, too_long }
}
