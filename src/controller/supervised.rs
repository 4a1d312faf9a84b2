//! What the pods that we make need to know of Spillway: the address of the gateway, the image with our programs, the addresses that
//! agents must not reach, and the gateway and the controller as NetworkPolicies see them.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::{IPBlock, NetworkPolicyPeer};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{Api, Client};

/// Delay between two reads of the gateway's Service while it is missing.
const SERVICE_RETRY_DELAY: Duration = Duration::from_secs(1);
/// The most servers of names. A resolver uses three.
const MAX_NAME_SERVERS: usize = 3;
/// Interval of the checks whether the gateway's address has changed.
const SERVICE_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Where the gateway is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gateway {
    /// Behind this Service of the controller's own namespace.
    Service(String),
    /// At this address, outside the cluster's own network.
    Address(SocketAddr),
}

/// How a NetworkPolicy selects the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControllerPeer {
    /// Pods with these labels in the controller's own namespace.
    Labels(BTreeMap<String, String>),
    /// A process at this address, outside the cluster's own network.
    Address(IpAddr),
}

/// Settings of the process for agents' pods and bridges.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the gateway is.
    pub gateway: Gateway,
    /// Namespace of its Service, and of the controller.
    pub namespace: String,
    /// The controller, as NetworkPolicies select it.
    pub controller: ControllerPeer,
    /// Image with the programs of the pod.
    pub image: String,
    /// Pull policy of that image.
    pub pull_policy: String,
    /// Secrets of agents' namespaces with which the kubelet pulls that image.
    pub pull_secrets: Vec<String>,
    /// Addresses that agents' pods must not be able to reach, as `host:port`.
    pub canaries: Vec<String>,
}

/// The settings for agents' pods and bridges, with the resolved address of the gateway.
#[derive(Clone, Debug, PartialEq)]
pub struct Supervised {
    /// Address of the gateway, as pods reach it.
    pub gateway: String,
    /// The gateway, as a NetworkPolicy sees it: the pods behind the Service.
    pub peer: NetworkPolicyPeer,
    /// The port of those pods.
    pub port: i32,
    /// The controller, as a NetworkPolicy sees it.
    pub controller: NetworkPolicyPeer,
    /// Image with the programs of the pod.
    pub image: String,
    /// Pull policy of that image.
    pub pull_policy: String,
    /// Secrets of agents' namespaces with which the kubelet pulls that image.
    pub pull_secrets: Vec<String>,
    /// Addresses that agents' pods must not be able to reach, as `host:port`.
    pub canaries: Vec<String>,
    /// The servers that our own pod asks for names. Other pods usually ask the same.
    pub dns: Vec<IpAddr>,
}

/// Resolves the settings, and waits for the Service. `tell` gets what is missing meanwhile.
pub async fn resolve(settings: &Settings, client: &Client, tell: impl Fn(Vec<String>)) -> Supervised {
    let mut told = false;
    loop {
        match read_gateway(settings, client).await {
            Ok(supervised) => {
                tell(Vec::new());
                return supervised;
            }
            Err(error) if !told => {
                tracing::warn!(error = format!("{error:#}"), "cannot find the address of the gateway; retrying");
                tell(vec![format!("{error:#}")]);
                told = true;
            }
            Err(_) => {}
        }
        tokio::time::sleep(SERVICE_RETRY_DELAY).await;
    }
}

/// Returns when the address of the gateway has changed.
pub async fn changed(settings: &Settings, client: &Client, known: &Supervised) {
    loop {
        tokio::time::sleep(SERVICE_CHECK_INTERVAL).await;
        // A Service that cannot be read, or is missing for a moment, has no other address.
        if read_gateway(settings, client).await.is_ok_and(|now| now != *known) {
            return;
        }
    }
}

async fn read_gateway(settings: &Settings, client: &Client) -> anyhow::Result<Supervised> {
    let Settings { gateway, namespace, controller, image, pull_policy, pull_secrets, canaries } = settings;
    let (gateway, peer, port) = match gateway {
        Gateway::Address(address) => (address.to_string(), block(address.ip()), i32::from(address.port())),
        Gateway::Service(name) => {
            let service =
                Api::<Service>::namespaced(client.clone(), namespace).get_opt(name).await.context("cannot read the gateway's Service")?;
            service_address(&service.with_context(|| format!("there is no Service {name} in namespace {namespace}"))?, namespace)?
        }
    };
    let controller = match controller {
        ControllerPeer::Address(address) => block(*address),
        ControllerPeer::Labels(labels) => pods(labels.clone(), namespace),
    };
    let (image, pull_policy) = (image.clone(), pull_policy.clone());
    let (pull_secrets, canaries) = (pull_secrets.clone(), canaries.clone());
    let dns = name_servers(&std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default());
    Ok(Supervised { gateway, peer, port, controller, image, pull_policy, pull_secrets, canaries, dns })
}

/// One address, as a NetworkPolicy sees it.
pub fn block(address: IpAddr) -> NetworkPolicyPeer {
    let bits = if address.is_ipv4() { 32 } else { 128 };
    NetworkPolicyPeer { ip_block: Some(IPBlock { cidr: format!("{address}/{bits}"), except: None }), ..NetworkPolicyPeer::default() }
}

/// The pods of a namespace with these labels, as a NetworkPolicy sees them.
fn pods(labels: BTreeMap<String, String>, namespace: &str) -> NetworkPolicyPeer {
    let select = |labels| Some(LabelSelector { match_labels: Some(labels), match_expressions: None });
    let named = [("kubernetes.io/metadata.name".to_owned(), namespace.to_owned())].into();
    NetworkPolicyPeer { pod_selector: select(labels), namespace_selector: select(named), ip_block: None }
}

fn service_address(service: &Service, namespace: &str) -> anyhow::Result<(String, NetworkPolicyPeer, i32)> {
    let spec = service.spec.as_ref().context("the gateway's Service has no spec")?;
    let address =
        spec.cluster_ip.as_deref().filter(|ip| !ip.is_empty() && *ip != "None").context("the gateway's Service has no cluster address")?;
    let port = spec.ports.iter().flatten().next().context("the gateway's Service has no port")?;
    let target = match &port.target_port {
        Some(IntOrString::Int(target)) => *target,
        Some(IntOrString::String(_)) | None => port.port,
    };
    let labels = spec.selector.clone().filter(|labels| !labels.is_empty());
    let peer = pods(labels.context("the gateway's Service selects no pods")?, namespace);
    let address: std::net::IpAddr = address.parse().context("the cluster address of the gateway's Service is no IP address")?;
    Ok((
        SocketAddr::from((address, u16::try_from(port.port).context("the port of the gateway's Service is no port number")?)).to_string(),
        peer,
        target,
    ))
}

/// The servers in the text of resolv.conf that other pods could ask too.
fn name_servers(text: &str) -> Vec<IpAddr> {
    let servers = text.lines().filter_map(|line| line.strip_prefix("nameserver")?.trim().parse::<IpAddr>().ok());
    servers.filter(|server| !server.is_loopback()).take(MAX_NAME_SERVERS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_servers_of_names_are_those_that_other_pods_can_ask() {
        let text = "search a.b\nnameserver 10.96.0.10\nnameserver 127.0.0.53\nnameserver fd00::a\noptions ndots:5\nnameserver x\n";
        let expected: [IpAddr; 2] = ["10.96.0.10".parse().expect("an address"), "fd00::a".parse().expect("an address")];
        assert_eq!(name_servers(text), expected);
    }

    #[test]
    fn a_policy_sees_the_pods_behind_a_service_and_their_port() {
        let service: Service = serde_json::from_value(
            json!({"spec": {"clusterIP": "10.1.2.3", "selector": {"app": "g"}, "ports": [{"port": 443, "targetPort": 8443}]}}),
        )
        .expect("a Service");
        let (address, peer, port) = service_address(&service, "sys").expect("resolved");
        assert_eq!((address.as_str(), port), ("10.1.2.3:443", 8443));
        assert_eq!(
            json!(peer),
            json!({"podSelector": {"matchLabels": {"app": "g"}}, "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "sys"}}})
        );
        let headless: Service =
            serde_json::from_value(json!({"spec": {"clusterIP": "None", "selector": {"app": "g"}, "ports": [{"port": 443}]}}))
                .expect("a Service");
        assert!(service_address(&headless, "sys").is_err());
        assert_eq!(json!(block("10.9.9.9".parse().expect("an address"))), json!({"ipBlock": {"cidr": "10.9.9.9/32"}}));
    }
}
