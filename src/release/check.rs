//! Whether a release serves: the API server serves the kinds, a leader renews its Lease, and each controller and gateway is ready. A
//! gateway is ready when it has its certificate and has reached the leader.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};
use tokio_util::sync::CancellationToken;

use super::{Deadline, client};
use crate::cluster::served;

/// How long a pod may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The most bytes of an answer of /readyz.
const MAX_ANSWER_BYTES: usize = 64 * 1024;
/// Port of /readyz, of controllers and gateways.
const HEALTH_PORT: u16 = 8080;
const COMPONENT_LABEL: &str = "app.kubernetes.io/component";

/// The command line of `spillway check`.
#[derive(clap::Args, Debug)]
pub struct CheckArguments {
    /// Namespace of the release.
    #[arg(long, env = "POD_NAMESPACE", default_value = "spillway-system")]
    namespace: String,
    /// Name of the leader Lease.
    #[arg(long, default_value = "spillway-controller")]
    lease_name: String,
    /// Labels of the release's pods, as a label selector.
    #[arg(long, value_name = "LABELS", default_value = "app.kubernetes.io/name=spillway")]
    selector: String,
    /// How many controllers must be ready.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    controllers: usize,
    /// How many gateways must be ready.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    gateways: usize,
    /// Seconds after which a check that does not pass has failed.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=3600))]
    timeout: u32,
}

/// Checks the release, and prints each result.
pub async fn check(arguments: CheckArguments, stop: CancellationToken) -> anyhow::Result<()> {
    let client = client("check").await?;
    let CheckArguments { namespace, lease_name, selector, controllers, gateways, timeout } = arguments;
    let deadline = Deadline::new(timeout, stop);
    let leases: Api<Lease> = Api::namespaced(client.clone(), &namespace);
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let passed = [
        until_passed(&deadline, "the API server serves the kinds of Spillway", async || check_kinds(&client).await).await,
        until_passed(&deadline, "a controller leads", async || check_leader(&leases, &lease_name, &deadline).await).await,
        until_passed(&deadline, "controllers are ready", async || check_pods(&pods, &selector, "controller", controllers).await).await,
        until_passed(&deadline, "gateways are ready", async || check_pods(&pods, &selector, "gateway", gateways).await).await,
    ];
    let failed = passed.iter().filter(|passed| !**passed).count();
    ensure!(failed == 0, "{failed} of {} checks failed", passed.len());
    Ok(())
}

/// Repeats a check until it passes or the time is over. Prints and returns whether it passed.
async fn until_passed(deadline: &Deadline, name: &str, look: impl AsyncFn() -> anyhow::Result<String>) -> bool {
    loop {
        match look().await {
            Ok(detail) => {
                println!("ok   {name}: {detail}");
                return true;
            }
            Err(error) => {
                if !deadline.next().await {
                    println!("FAIL {name}: {error:#}");
                    return false;
                }
            }
        }
    }
}

async fn check_kinds(client: &Client) -> anyhow::Result<String> {
    let missing = served::missing_kinds(client).await?;
    ensure!(missing.is_empty(), "missing: {}. Install the CustomResourceDefinitions", missing.join(", "));
    Ok("all of them".into())
}

/// A Lease names its last holder for ever. So the check waits for a renewal.
async fn check_leader(leases: &Api<Lease>, name: &str, deadline: &Deadline) -> anyhow::Result<String> {
    let (holder, before) = read_leader(leases, name).await?;
    while deadline.next().await {
        let (now, renewed) = read_leader(leases, name).await?;
        if now == holder && renewed != before {
            return Ok(format!("{holder} renews Lease/{name}"));
        }
        ensure!(now == holder, "the leader changed from {holder} to {now}");
    }
    bail!("{holder} holds Lease/{name} and does not renew it: read the logs of the controllers")
}

/// The holder, and when it renewed the Lease.
async fn read_leader(leases: &Api<Lease>, name: &str) -> anyhow::Result<(String, String)> {
    let lease = leases.get(name).await.with_context(|| format!("reading Lease/{name}"))?;
    let spec = lease.spec.unwrap_or_default();
    let holder = spec.holder_identity.filter(|holder| !holder.is_empty());
    let holder = holder.with_context(|| format!("no controller holds Lease/{name}: read the logs of the controllers"))?;
    Ok((holder, spec.renew_time.map(|time| time.0.to_string()).unwrap_or_default()))
}

async fn check_pods(pods: &Api<Pod>, selector: &str, component: &str, expected: usize) -> anyhow::Result<String> {
    let labels = format!("{selector},{COMPONENT_LABEL}={component}");
    let listed = pods.list(&ListParams::default().labels(&labels)).await.context("listing the pods of the release")?;
    let http = HttpClient::builder(TokioExecutor::new()).build_http();
    let mut ready = Vec::new();
    let mut others = String::new();
    for pod in listed.items.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
        match ask(&http, pod).await {
            Ok(()) => ready.push(pod.name_any()),
            Err(error) => write!(others, "; {}: {error:#}", pod.name_any())?,
        }
    }
    ensure!(ready.len() >= expected, "{} of {expected}{others}", ready.len());
    Ok(if ready.is_empty() { "none is wanted".into() } else { ready.join(", ") })
}

/// Asks a pod whether it is ready.
async fn ask(http: &HttpClient<HttpConnector, Empty<Bytes>>, pod: &Pod) -> anyhow::Result<()> {
    let ip = pod.status.as_ref().and_then(|status| status.pod_ip.as_deref()).context("it has no address yet")?;
    let address = SocketAddr::new(ip.parse::<IpAddr>().context("its address")?, HEALTH_PORT);
    let exchange = async {
        let answer = http.get(format!("http://{address}/readyz").parse()?).await.with_context(|| format!("asking {address}"))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect().await.map_err(|error| anyhow!("{error}"))?;
        ensure!(status.is_success(), "{status}: {}", failures(&String::from_utf8_lossy(&body.to_bytes())));
        Ok::<_, anyhow::Error>(())
    };
    tokio::time::timeout(ANSWER_TIMEOUT, exchange).await.with_context(|| format!("{address} does not answer"))?
}

/// The lines of an answer of /readyz that say what is missing.
fn failures(answer: &str) -> String {
    answer.lines().filter(|line| line.starts_with("[-]")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_missing_is_shown() {
        assert_eq!(failures("[+] kinds ok\n[-] governor missing: a connection\nnot ready\n"), "[-] governor missing: a connection");
    }

    #[tokio::test]
    async fn a_pod_without_an_address_is_not_ready() {
        let http = HttpClient::builder(TokioExecutor::new()).build_http();
        let error = ask(&http, &Pod::default()).await.expect_err("it has none");
        assert_eq!(error.to_string(), "it has no address yet");
    }
}
