//! A scripted provider of models at the node's address, over TLS, and the gateway's settings for it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use spillway_model_server::{Provider, serve};
use tokio::net::TcpListener;

use spillway::api::Budget;

use super::operator::free_port;
use super::{TestNamespace, check_state, eventually};

/// The team's credential, which is the only one that the provider accepts.
pub const TOKEN: &str = "the-teams-own-key";

/// A provider's counts of one caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    pub calls: i64,
    /// Answers that were sent to their end.
    pub finished: i64,
    /// Tokens that it reported.
    pub reported_tokens: i64,
}

/// A provider with a count of its own.
pub struct Scripted {
    provider: Arc<Provider>,
    /// `https://address:port`.
    pub origin: String,
    address: SocketAddr,
    tls: ServerConfig,
}

impl Scripted {
    /// Serves, makes the Secret `provider`, and restarts the namespace's gateway, which may call it from now on.
    pub async fn serve(room: &TestNamespace) -> Self {
        let provider = Self::absent(room).await;
        provider.start_listening().await;
        provider
    }

    /// Like [`serve`](Self::serve), but it listens only after [`start_listening`](Self::start_listening).
    pub async fn absent(room: &TestNamespace) -> Self {
        let address = SocketAddr::new(room.node, free_port(room.node));
        let origin = format!("https://{address}");
        let issued = rcgen::generate_simple_self_signed([room.node.to_string()]).expect("a certificate");
        let key = PrivateKeyDer::try_from(issued.signing_key.serialize_der()).expect("a key");
        let tls = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![issued.cert.der().clone()], key).expect("a pair");
        let provider = Provider::new(BTreeMap::from([("team".to_owned(), TOKEN.to_owned())]), vec!["scripted-large".to_owned()]);
        let origins = json!([{"origin": origin, "allowPrivate": true, "caBundle": issued.cert.pem()}]);
        std::fs::write(room.origins_file(), origins.to_string()).expect("a file");
        let secret: Secret = serde_json::from_value(json!({
            "metadata": {"name": "provider"}, "type": "spillway.dev/model-credential", "stringData": {"origin": origin, "token": TOKEN},
        }))
        .expect("a Secret");
        room.api::<Secret>().create(&PostParams::default(), &secret).await.expect("a new Secret");
        room.kill_gateway();
        room.start_gateway("gateway");
        Self { provider, origin, address, tls }
    }

    /// Starts to listen.
    pub async fn start_listening(&self) {
        let listener = TcpListener::bind(self.address).await.expect("its port");
        tokio::spawn(serve(listener, Some(self.tls.clone()), self.provider.clone()));
    }

    /// An entry of a pool's `models`.
    pub fn entry(&self, name: &str, dialect: &str) -> Value {
        json!({"name": name, "dialect": dialect, "origin": self.origin, "credentialsRef": {"name": "provider"}, "allow": ["scripted-*"]})
    }

    /// Number of calls, including refused ones.
    pub fn calls(&self) -> i64 {
        self.provider.counts.count()["all"]["calls"].as_i64().expect("a number")
    }

    /// Releases the answers that wait (mode `wait`), and all later ones.
    pub fn release_waiting(&self) {
        self.provider.release_waiting();
    }

    /// From now on the model answers `text` if the last words of a person contain `to`.
    pub fn say(&self, to: &str, text: &str) {
        self.provider.say(to, text);
    }

    /// From now on the model runs `command`, once, if the last words of a person contain `to`.
    pub fn run(&self, to: &str, command: &str) {
        self.provider.run(to, command);
    }

    /// Its counts of each caller, by the header `x-caller`.
    pub fn callers(&self) -> BTreeMap<String, Counted> {
        let count = self.provider.counts.count();
        let number = |value: &Value| value.as_i64().expect("a number");
        let lines = count["lines"].as_array().expect("lines").iter().map(|line| {
            let counted = Counted {
                calls: number(&line["calls"]),
                finished: number(&line["finished"]),
                reported_tokens: number(&line["told"]["all"]),
            };
            (line["caller"].as_str().expect("a name").to_owned(), counted)
        });
        lines.collect()
    }

    /// Tokens of all answers, as the provider reported them.
    pub fn reported_tokens(&self) -> i64 {
        self.provider.counts.count()["all"]["told"]["all"].as_i64().expect("a number")
    }
}

/// Used, held and lost tokens of the namespace's budget in its windows.
pub async fn spent(room: &TestNamespace) -> (i64, i64, i64) {
    let budget = room.api::<Budget>().get("default").await.expect("the Budget");
    used_held_lost(&budget)
}

/// Used, held and lost tokens in a Budget's status.
pub fn used_held_lost(budget: &Budget) -> (i64, i64, i64) {
    let windows = budget.status.iter().flat_map(|status| status.windows.iter().flatten());
    windows.fold((0, 0, 0), |(used, held, lost), window| {
        (used + window.used, held + window.held.unwrap_or(0), lost + window.lost.unwrap_or(0))
    })
}

/// Waits until the budget has exactly the provider's count, and holds no tokens.
pub async fn wait_until_counts_agree(room: &TestNamespace, provider: &Scripted) {
    eventually("the budget has the provider's count", async || {
        let (spent, told) = (spent(room).await, provider.reported_tokens());
        check_state(spent == (told, 0, 0), || format!("used, held, lost: {spent:?}; told: {told}"))
    })
    .await;
}

impl TestNamespace {
    /// File with the origins that the namespace's gateway may call.
    pub fn origins_file(&self) -> PathBuf {
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.origins", self.namespace))
    }

    /// File with the platform's rules of egress, for controllers and gateways that start later.
    pub fn egress_file(&self) -> PathBuf {
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.egress", self.namespace))
    }

    /// File with the platform's rules of git, for controllers and gateways that start later.
    pub fn git_file(&self) -> PathBuf {
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.gitrules", self.namespace))
    }

    /// File that says where artifacts are kept, for gateways that start later.
    pub fn artifacts_file(&self) -> PathBuf {
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.artifacts", self.namespace))
    }

    /// File of names and addresses, for gateways that start later.
    pub fn hosts_file(&self) -> PathBuf {
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.hosts", self.namespace))
    }

    /// Folder of the journal of the namespace's gateway.
    pub fn journal(&self) -> PathBuf {
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.journal", self.namespace))
    }
}
