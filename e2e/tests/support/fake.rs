//! A governor with scripted answers, under the real name and with a certificate of the namespace's own authority. It
//! shows how gateways react, without two real leaders at the right moment.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use k8s_openapi::ByteString;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use spillway::pki::authority::{self, PemKeyPair};
use spillway::pki::tls::{Serving, server};
use spillway::serve::{Bounds, Connection, bind, serve_tls};
use spillway::telemetry::Metrics;
use spillway::wire::governor::{Change, OWNER_EPOCH_HEADER};
use spillway::wire::{GATEWAY_TLS_NAME, GOVERNOR_TLS_NAME};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::TestNamespace;

/// The namespace's own authority. The test makes it, because there is no controller.
pub struct Authority(PemKeyPair);

impl Authority {
    /// Makes it, and the objects in which gateways and callers find it.
    pub async fn make(room: &TestNamespace) -> Self {
        let now = jiff::Timestamp::now().as_second();
        let made = authority::authority(now).expect("an authority");
        let gateway = authority::serving(&made, GATEWAY_TLS_NAME, now).expect("a certificate");
        let times = format!("{} {}", gateway.times.made, gateway.times.ends);
        let data = [("tls.crt", &gateway.certificate), ("tls.key", &gateway.key), ("tls.times", &times), ("ca.crt", &made.certificate)];
        let data: BTreeMap<_, _> = data.into_iter().map(|(key, text)| (key.to_owned(), ByteString(text.clone().into_bytes()))).collect();
        let mut secret = Secret { data: Some(data), ..Secret::default() };
        secret.metadata.name = Some("spillway-gateway-tls".to_owned());
        room.api::<Secret>().create(&PostParams::default(), &secret).await.expect("a Secret");
        let mut map = ConfigMap { data: Some([("ca.crt".to_owned(), made.certificate.clone())].into()), ..ConfigMap::default() };
        map.metadata.name = Some("spillway-ca".to_owned());
        room.api::<ConfigMap>().create(&PostParams::default(), &map).await.expect("a ConfigMap");
        Self(made)
    }
}

/// A fake governor. It serves until it is dropped.
pub struct FakeGovernor {
    name: &'static str,
    address: SocketAddr,
    shared: Arc<Shared>,
    end: CancellationToken,
}

struct Shared {
    /// The owner epoch on every answer.
    epoch: AtomicI64,
    /// Whether calls of agents are answered.
    answers: watch::Sender<bool>,
    /// Number of calls without an answer so far.
    kept: watch::Sender<usize>,
    /// Whether streams of changes continue.
    streams: watch::Sender<bool>,
}

impl FakeGovernor {
    /// A governor that answers at once, with this owner epoch.
    pub async fn start(room: &TestNamespace, authority: &Authority, name: &'static str, epoch: i64) -> Self {
        let listener = bind(SocketAddr::new(room.node, 0)).await.expect("an address");
        let address = listener.local_addr().expect("an address");
        let certificate = Serving::default();
        let made = authority::serving(&authority.0, GOVERNOR_TLS_NAME, jiff::Timestamp::now().as_second()).expect("a certificate");
        certificate.set(&made).expect("a certificate");
        let shared = Arc::new(Shared {
            epoch: AtomicI64::new(epoch),
            answers: watch::channel(true).0,
            kept: watch::channel(0).0,
            streams: watch::channel(true).0,
        });
        let routes = axum::Router::new().fallback(answer).with_state(shared.clone());
        let end = CancellationToken::new();
        tokio::spawn(serve_tls(
            listener,
            server(certificate),
            Bounds { streams: 64, ..Bounds::GATEWAYS },
            routes,
            Metrics::default(),
            end.clone(),
        ));
        Self { name, address, shared, end }
    }

    /// Writes its address into the Lease.
    pub async fn leads(&self, room: &TestNamespace) {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "spillway-controller", "annotations": {"spillway.dev/governor": self.address.to_string()}},
            "spec": {"holderIdentity": self.name},
        });
        let params = PatchParams::apply("e2e").force();
        room.api::<Lease>().patch("spillway-controller", &params, &Patch::Apply(lease)).await.expect("the Lease");
    }

    /// Sets the owner epoch of its answers from now on.
    pub fn says_epoch(&self, epoch: i64) {
        self.shared.epoch.store(epoch, Ordering::SeqCst);
    }

    /// Holds calls without an answer from now on.
    pub fn holds_answers(&self) {
        self.shared.answers.send_replace(false);
    }

    /// Answers the held calls and all later ones.
    pub fn release_answers(&self) {
        self.shared.answers.send_replace(true);
    }

    /// Ends its streams of changes, like a governor that finds that it does not lead.
    pub fn ends_streams(&self) {
        self.shared.streams.send_replace(false);
    }

    /// Waits until it holds a call.
    pub async fn wait_for_held_call(&self) {
        self.shared.kept.subscribe().wait_for(|kept| *kept > 0).await.expect("it serves");
    }
}

impl Drop for FakeGovernor {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    // It checks no token: every caller counts as a gateway.
    request.extensions().get::<Connection>().expect("served").admit("gateways").expect("a place");
    let body = if request.uri().path() == "/governor/v1/changes" {
        stream(shared.streams.subscribe())
    } else {
        shared.kept.send_modify(|kept| *kept += 1);
        let _ = shared.answers.subscribe().wait_for(|answers| *answers).await; // we hold the sender
        shared.kept.send_modify(|kept| *kept -= 1);
        Body::from(json!({"revision": "1.1", "directive": "run"}).to_string())
    };
    let epoch = shared.epoch.load(Ordering::SeqCst).to_string();
    Response::builder().header(OWNER_EPOCH_HEADER, epoch).header("content-type", "application/json").body(body).expect("an answer")
}

/// Sends signs of life until the stream shall end.
fn stream(mut go_on: watch::Receiver<bool>) -> Body {
    let each = tokio::time::interval(std::time::Duration::from_secs(1));
    let lines = futures::stream::unfold(each, async |mut each| {
        each.tick().await;
        let mut line = serde_json::to_vec(&Change::Alive).expect("JSON");
        line.push(b'\n');
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(line)), each))
    });
    let over = async move {
        let _ = go_on.wait_for(|go_on| !go_on).await; // without the fake it ends too
    };
    Body::from_stream(futures::StreamExt::take_until(lines, Box::pin(over)))
}
