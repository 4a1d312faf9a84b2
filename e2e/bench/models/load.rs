//! The callers: HTTP/1.1 over TLS 1.3, as the sidecars of agents call. All targets use the same code, and differ in an
//! address, a name, a path and a token.
//!
//! Open loop: calls begin at times that are fixed beforehand, whether or not earlier calls are answered. Each is a task
//! of its own, timed from its own beginning, so a slow answer delays no other call. The delay of a task's beginning is
//! reported too.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::Bytes;
use futures::future::join_all;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::provider::{self, BEFORE_TIME};
use crate::arrivals::arrivals;
use crate::report::milliseconds;
use crate::simulated::address;

/// Seed of the times at which calls begin, which are the same for each target.
const SEED: u64 = 500;
/// Lead time in which all tasks are started before the first call is due.
const LEAD: Duration = Duration::from_millis(500);
/// Time limit for one call without a stream.
const PATIENCE: Duration = Duration::from_secs(30);

type Sender = SendRequest<Full<Bytes>>;

/// A target of calls, with callers that have an address each.
pub struct Target {
    tls: TlsConnector,
    name: ServerName<'static>,
    path: &'static str,
    callers: Vec<Caller>,
}

struct Caller {
    address: SocketAddr,
    bearer: Option<HeaderValue>,
    kept: Mutex<Vec<Sender>>,
}

/// Calls at a rate.
#[derive(Clone, Debug)]
pub struct Load {
    /// Calls a second.
    pub rate: f64,
    /// Length of the load.
    pub time: Duration,
    /// Whether connections are kept for the next calls. Otherwise each call has a connection of its own.
    pub keep: bool,
    /// The body of each call.
    pub body: Bytes,
}

/// The outcomes of the calls.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct Answers {
    /// Milliseconds from its beginning to the last byte of its answer, of each call that was answered with 200.
    pub took: Vec<f64>,
    /// Milliseconds by which calls began late.
    pub late: Vec<f64>,
    /// Errors of the failed calls.
    pub failed: Vec<String>,
}

/// The outcome of one stream.
#[derive(Debug, Default)]
pub struct Streamed {
    /// For each event, milliseconds from the provider to the reader.
    pub delays: Vec<f64>,
    /// Whether its last event came.
    pub is_complete: bool,
}

impl Target {
    /// A target at this port, with a caller for each of `tokens`, which trusts `bundle`.
    pub fn new(port: u16, name: &str, bundle: &str, path: &'static str, tokens: &[Option<String>]) -> anyhow::Result<Arc<Self>> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
            roots.add(certificate.context("a certificate to trust")?)?;
        }
        // As in the sidecar: TLS 1.3, and no session is resumed.
        let mut config =
            ClientConfig::builder_with_protocol_versions(&[&rustls::version::TLS13]).with_root_certificates(roots).with_no_client_auth();
        config.resumption = rustls::client::Resumption::disabled();
        let caller = |token: &Option<String>| {
            let bearer = token.as_ref().map(|token| HeaderValue::try_from(format!("Bearer {token}"))).transpose()?;
            Ok(Caller { address: address(port), bearer, kept: Mutex::default() })
        };
        let callers = tokens.iter().map(caller).collect::<anyhow::Result<_>>()?;
        let name = ServerName::try_from(name.to_owned()).context("a name")?;
        Ok(Arc::new(Self { tls: TlsConnector::from(Arc::new(config)), name, path, callers }))
    }

    fn caller(&self, number: usize) -> &Caller {
        &self.callers[number % self.callers.len()]
    }

    fn request(&self, caller: &Caller, body: &Bytes) -> anyhow::Result<Request<Full<Bytes>>> {
        let request = Request::post(self.path).header(HOST, "bench").header(CONTENT_TYPE, "application/json");
        let request = caller.bearer.iter().fold(request, |request, bearer| request.header(AUTHORIZATION, bearer));
        Ok(request.body(Full::new(body.clone()))?)
    }

    async fn dial(&self, caller: &Caller) -> anyhow::Result<Sender> {
        let stream = TcpStream::connect(caller.address).await?;
        stream.set_nodelay(true)?;
        let stream = self.tls.connect(self.name.clone(), stream).await?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        // It ends when the sender is dropped. The sender reports errors.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }

    async fn begin(&self, caller: &Caller, body: &Bytes, keep: bool) -> anyhow::Result<(Sender, Response<Incoming>)> {
        let take = || if keep { caller.kept.lock().unwrap_or_else(PoisonError::into_inner).pop() } else { None };
        while let Some(mut sender) = take() {
            if sender.ready().await.is_err() {
                continue;
            }
            match sender.try_send_request(self.request(caller, body)?).await {
                Ok(response) => return Ok((sender, response)),
                // The connection was closed while it was idle, and the call was not sent.
                Err(error) if error.message().is_some() => {}
                Err(error) => return Err(error.into_error().into()),
            }
        }
        let mut sender = self.dial(caller).await?;
        let response = sender.send_request(self.request(caller, body)?).await?;
        Ok((sender, response))
    }

    /// One call, to the last byte of its answer.
    pub async fn call(&self, number: usize, body: &Bytes, keep: bool) -> anyhow::Result<()> {
        let caller = self.caller(number);
        let answering = async {
            let (sender, response) = self.begin(caller, body, keep).await?;
            let status = response.status();
            let answer = response.into_body().collect().await?.to_bytes();
            anyhow::ensure!(status == StatusCode::OK, "{status}: {}", excerpt(&answer));
            if keep {
                caller.kept.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
            }
            Ok(())
        };
        tokio::time::timeout(PATIENCE, answering).await.context("no answer")?
    }

    /// One stream, which the caller leaves after a number of events. Each event that is read is counted in `events` at
    /// once.
    pub async fn stream(&self, number: usize, body: &Bytes, most: usize, events: &AtomicUsize) -> anyhow::Result<Streamed> {
        let (_sender, response) = self.begin(self.caller(number), body, false).await?;
        let status = response.status();
        let mut body = response.into_body();
        if status != StatusCode::OK {
            anyhow::bail!("{status}: {}", excerpt(&body.collect().await?.to_bytes()));
        }
        let (mut streamed, mut rest) = (Streamed::default(), Vec::new());
        while streamed.delays.len() < most {
            let Some(frame) = body.frame().await else { break };
            let Ok(data) = frame?.into_data() else { continue };
            let now = provider::clock();
            rest.extend_from_slice(&data);
            let mut read = 0;
            while let Some(end) = find(rest.get(read..).unwrap_or_default(), b"\n\n") {
                let event = rest.get(read..read + end).unwrap_or_default();
                read += end + 2;
                streamed.is_complete |= event.ends_with(b"[DONE]");
                if let Some(left) = sent_at(event).filter(|left| *left > 1) {
                    streamed.delays.push(milliseconds(Duration::from_nanos(now.saturating_sub(left))));
                    events.fetch_add(1, Ordering::Relaxed);
                }
            }
            rest.drain(..read);
        }
        Ok(streamed)
    }
}

/// Where `part` begins.
fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

/// When an event left the provider. 1 for events without a time.
fn sent_at(event: &[u8]) -> Option<u64> {
    let from = find(event, BEFORE_TIME)? + BEFORE_TIME.len();
    let digits = event.get(from..)?.iter().take_while(|byte| byte.is_ascii_digit());
    Some(digits.fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
}

/// The beginning of an unexpected answer.
fn excerpt(answer: &[u8]) -> String {
    String::from_utf8_lossy(answer).chars().take(200).collect()
}

/// Makes calls at a rate, whether or not earlier calls are answered.
pub async fn open(target: &Arc<Target>, load: &Load) -> Answers {
    let begin = Instant::now() + LEAD;
    let calls = arrivals(SEED, load.rate, load.time).into_iter().enumerate().map(|(number, due)| {
        let (target, body, keep, due) = (target.clone(), load.body.clone(), load.keep, begin + due);
        tokio::spawn(async move {
            tokio::time::sleep_until(due.into()).await;
            let began = Instant::now();
            let result = target.call(number, &body, keep).await;
            (began.saturating_duration_since(due), began.elapsed(), result)
        })
    });
    let mut answers = Answers::default();
    for call in join_all(calls.collect::<Vec<_>>()).await {
        match call {
            Ok((late, took, result)) => {
                answers.late.push(milliseconds(late));
                match result {
                    Ok(()) => answers.took.push(milliseconds(took)),
                    Err(error) => answers.failed.push(format!("{error:#}")),
                }
            }
            Err(error) => answers.failed.push(error.to_string()),
        }
    }
    answers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_says_when_it_left() {
        assert_eq!(sent_at(br#"data: {"id":"c","created":1234,"model":"m"}"#), Some(1234));
        assert_eq!((sent_at(b"data: [DONE]"), find(b"ab\n\nc", b"\n\n")), (None, Some(2)));
    }
}
