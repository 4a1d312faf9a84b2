//! The egress of a Toolset's pods: from `spec.egress` to the rules of a NetworkPolicy. Pure.
//!
//! A NetworkPolicy knows addresses and pods, and no names. So each DNS name becomes the addresses that the controller looked up. A
//! connection to a Service is translated to one of its pods before the policy sees it. So a Service becomes the pods of its namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use k8s_openapi::api::networking::v1::{NetworkPolicyEgressRule, NetworkPolicyPeer, NetworkPolicyPort};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::api::sandbox::Egress;
use crate::api::toolset::ToolsetEgress;
use crate::api::upstream::Upstream;
use crate::cluster::clock::BootTime;
use crate::controller::supervised::block;
use crate::controller::toolset::upstream::address;

/// Addresses of one name that are allowed.
pub const MAX_ADDRESSES: usize = 32;
/// How long an address stays allowed after an answer that no longer has it. Many names have other addresses in each answer, and
/// programs look them up at other times than we do.
const ADDRESS_RETENTION: Duration = Duration::from_secs(600);
/// Ends of the names of Services.
const SERVICE_SUFFIXES: [&str; 2] = [".svc.cluster.local", ".svc"];
const DNS_PORT: u16 = 53;
/// Namespace and label of the pods that answer DNS in most clusters.
const DNS_NAMESPACE: &str = "kube-system";
const DNS_LABEL: (&str, &str) = ("k8s-app", "kube-dns");
/// Usual address of the DNS cache on each node, which is no pod to a NetworkPolicy.
const NODE_LOCAL_DNS: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 20, 10));

/// A destination of the programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EgressTarget {
    /// An IP address and a port.
    Address(IpAddr, u16),
    /// A DNS name and a port.
    Name(String, u16),
    /// The pods of this namespace that listen on this port.
    Service(String, u16),
}

/// All destinations of the programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EgressTargets {
    /// None.
    Nothing,
    /// All.
    Everything,
    /// These.
    Listed(Vec<EgressTarget>),
}

impl EgressTargets {
    /// The destinations of `spec.egress`, or what is wrong with it and what to do.
    pub fn parse(egress: Option<&ToolsetEgress>) -> Result<Self, String> {
        let Some(egress) = egress else { return Ok(Self::Nothing) };
        match egress.mode {
            None | Some(Egress::None) => Ok(Self::Nothing),
            Some(Egress::Open) => Ok(Self::Everything),
            Some(Egress::AllowList) => egress.allow.iter().flatten().map(|entry| target(entry)).collect::<Result<_, _>>().map(Self::Listed),
        }
    }

    /// These destinations and the upstream of the Toolset.
    pub fn and_upstream(self, upstream: Option<&Upstream>) -> Result<Self, String> {
        let Some(url) = upstream.and_then(address) else { return Ok(self) };
        let added = || destination(url.host(), url.port()).map_err(|what| format!("spec.upstream.url: {what}"));
        match self {
            Self::Everything => Ok(Self::Everything),
            Self::Nothing => Ok(Self::Listed(vec![added()?])),
            Self::Listed(mut targets) => {
                let added = added()?;
                if !targets.contains(&added) {
                    targets.push(added);
                }
                Ok(Self::Listed(targets))
            }
        }
    }

    /// The DNS names to look up.
    pub fn names(&self) -> BTreeSet<String> {
        match self {
            Self::Nothing | Self::Everything => BTreeSet::new(),
            Self::Listed(targets) => targets
                .iter()
                .filter_map(|target| match target {
                    EgressTarget::Name(name, _) => Some(name.clone()),
                    EgressTarget::Address(..) | EgressTarget::Service(..) => None,
                })
                .collect(),
        }
    }

    /// The rules of the NetworkPolicy, with the known addresses of the names. A name without an address has no rule.
    /// `dns`: servers of names besides the usual ones. To a NetworkPolicy the address of a Service is none of its pods.
    pub fn rules(&self, known: &NameAddresses, dns: &[IpAddr]) -> Vec<NetworkPolicyEgressRule> {
        let targets = match self {
            Self::Nothing => return Vec::new(),
            Self::Everything => return vec![NetworkPolicyEgressRule::default()],
            Self::Listed(targets) => targets,
        };
        // A Service has a name too.
        let needs_dns = targets.iter().any(|target| matches!(target, EgressTarget::Name(..) | EgressTarget::Service(..)));
        let dns_rule = needs_dns.then(|| NetworkPolicyEgressRule {
            ports: Some(vec![port("UDP", DNS_PORT), port("TCP", DNS_PORT)]),
            to: Some([dns_pods(), block(NODE_LOCAL_DNS)].into_iter().chain(dns.iter().copied().map(block)).collect()),
        });
        let rules = targets.iter().filter_map(|target| {
            let (to, number) = match target {
                EgressTarget::Address(address, number) => (vec![block(*address)], *number),
                EgressTarget::Name(name, number) => (known.of(name).map(block).collect(), *number),
                EgressTarget::Service(namespace, number) => (vec![pods_of(namespace)], *number),
            };
            // A rule without destinations would allow all.
            (!to.is_empty()).then(|| NetworkPolicyEgressRule { ports: Some(vec![port("TCP", number)]), to: Some(to) })
        });
        dns_rule.into_iter().chain(rules).collect()
    }
}

fn target(entry: &str) -> Result<EgressTarget, String> {
    let wrong = |what: &str| Err(format!("spec.egress.allow: {entry}: {what}"));
    let Some((host, number)) = entry.rsplit_once(':') else { return wrong("the port is missing. Write host:port") };
    let number = match number.parse() {
        Ok(number @ 1..=u16::MAX) => number,
        Ok(0) | Err(_) => return wrong("a port is a number from 1 to 65535"),
    };
    if host.starts_with('*') {
        return wrong("a NetworkPolicy cannot express a wildcard. List each host, or set spec.egress.mode to Open");
    }
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    match (bare.unwrap_or(host).parse::<IpAddr>(), bare) {
        (Ok(address), _) => return Ok(EgressTarget::Address(address.to_canonical(), number)),
        (Err(_), Some(_)) => return wrong("[...] must contain an IPv6 address"),
        (Err(_), None) => {}
    }
    destination(host, number).or_else(|what| wrong(&what))
}

/// A host without brackets, and a port.
fn destination(host: &str, number: u16) -> Result<EgressTarget, String> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(EgressTarget::Address(address.to_canonical(), number));
    }
    let Some(service) = SERVICE_SUFFIXES.iter().find_map(|suffix| host.strip_suffix(suffix)) else {
        return Ok(EgressTarget::Name(host.to_owned(), number));
    };
    match service.rsplit_once('.') {
        Some(("kubernetes", "default")) => {
            Err("no pods are behind the API server's Service. Give the address and the port of the API server itself \
             (kubectl get endpointslices -n default kubernetes)"
                .to_owned())
        }
        Some((_, namespace)) => Ok(EgressTarget::Service(namespace.to_owned(), number)),
        None => Err("a Service is written as NAME.NAMESPACE.svc:PORT".to_owned()),
    }
}

fn port(protocol: &str, number: u16) -> NetworkPolicyPort {
    NetworkPolicyPort { protocol: Some(protocol.into()), port: Some(IntOrString::Int(number.into())), end_port: None }
}

fn pods_of(namespace: &str) -> NetworkPolicyPeer {
    let named = [("kubernetes.io/metadata.name".to_owned(), namespace.to_owned())].into();
    let namespace = LabelSelector { match_labels: Some(named), match_expressions: None };
    NetworkPolicyPeer { namespace_selector: Some(namespace), pod_selector: None, ip_block: None }
}

fn dns_pods() -> NetworkPolicyPeer {
    let labelled = [(DNS_LABEL.0.to_owned(), DNS_LABEL.1.to_owned())].into();
    let pods = LabelSelector { match_labels: Some(labelled), match_expressions: None };
    NetworkPolicyPeer { pod_selector: Some(pods), ..pods_of(DNS_NAMESPACE) }
}

/// The addresses of names, as lookups answered. A failed lookup changes nothing.
#[derive(Clone, Debug, Default)]
pub struct NameAddresses {
    known: BTreeMap<String, BTreeMap<IpAddr, BootTime>>,
    /// The name that was tried last. The next lookups begin after it, so that slow names keep no other from being tried.
    tried: Option<String>,
}

impl NameAddresses {
    /// Records the answer to a lookup. Of too many addresses those are kept that were answered last.
    pub fn record(&mut self, name: &str, answer: impl IntoIterator<Item = IpAddr>, now: BootTime) {
        let answer: BTreeSet<IpAddr> = answer.into_iter().map(|address| address.to_canonical()).take(MAX_ADDRESSES).collect();
        if answer.is_empty() {
            return;
        }
        let known = self.known.entry(name.to_owned()).or_default();
        known.extend(answer.into_iter().map(|address| (address, now)));
        known.retain(|_, last| now.since(*last) <= ADDRESS_RETENTION);
        while known.len() > MAX_ADDRESSES
            && let Some(oldest) = known.iter().min_by_key(|(_, last)| **last).map(|(address, _)| *address)
        {
            known.remove(&oldest);
        }
    }

    /// These names in the order in which they are looked up next.
    pub fn in_turn(&self, names: &BTreeSet<String>) -> Vec<String> {
        let is_next = |name: &&String| self.tried.as_ref().is_none_or(|tried| *name > tried);
        let (next, later): (Vec<&String>, Vec<&String>) = names.iter().partition(is_next);
        next.into_iter().chain(later).cloned().collect()
    }

    /// This name was tried last.
    pub fn tried(&mut self, name: Option<&String>) {
        self.tried = name.cloned();
    }

    /// Forgets all names but these.
    pub fn retain(&mut self, names: &BTreeSet<String>) {
        self.known.retain(|name, _| names.contains(name));
    }

    /// The addresses of a name, sorted.
    pub fn of(&self, name: &str) -> impl Iterator<Item = IpAddr> {
        self.known.get(name).into_iter().flat_map(|known| known.keys().copied())
    }

    /// No address of any name is known.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// All addresses, by name, as JSON. `None`: there are none.
    pub fn to_annotation(&self) -> Option<String> {
        let all: BTreeMap<&String, Vec<IpAddr>> = self.known.iter().map(|(name, known)| (name, known.keys().copied().collect())).collect();
        (!all.is_empty()).then(|| serde_json::to_string(&all).unwrap_or_default())
    }

    /// Takes over the addresses of these names from an annotation, as if they were answered now.
    pub fn restore(&mut self, annotation: &str, names: &BTreeSet<String>, now: BootTime) {
        let stored: BTreeMap<String, Vec<IpAddr>> = serde_json::from_str(annotation).unwrap_or_default();
        for (name, addresses) in stored.into_iter().filter(|(name, _)| names.contains(name)) {
            self.record(&name, addresses, now);
        }
    }

    /// Those of `names` that have no address.
    pub fn unknown(&self, names: &BTreeSet<String>) -> Vec<String> {
        names.iter().filter(|name| !self.known.contains_key(*name)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn parsed(egress: Value) -> Result<EgressTargets, String> {
        EgressTargets::parse(Some(&serde_json::from_value(egress).expect("egress")))
    }

    fn allowed(entry: &str) -> Result<EgressTargets, String> {
        parsed(json!({"mode": "AllowList", "allow": [entry]}))
    }

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn nothing_is_allowed_unless_it_is_listed() {
        let known = NameAddresses::default();
        assert_eq!(EgressTargets::parse(None), Ok(EgressTargets::Nothing));
        assert_eq!(parsed(json!({})).expect("valid").rules(&known, &[]), []);
        assert_eq!(parsed(json!({"mode": "None"})).expect("valid").rules(&known, &[]), []);
        assert_eq!(parsed(json!({"mode": "AllowList"})).expect("valid").rules(&known, &[]), []);
        assert_eq!(json!(parsed(json!({"mode": "Open"})).expect("valid").rules(&known, &[])), json!([{}]));
    }

    #[test]
    fn each_kind_of_destination_has_its_rule() {
        let allow = ["10.0.0.5:443", "[fd00::5]:22", "git.example.com:443", "db.team-a.svc:5432", "db-0.db.team-b.svc.cluster.local:5432"];
        let targets = parsed(json!({"mode": "AllowList", "allow": allow})).expect("valid");
        assert_eq!(targets.names(), BTreeSet::from(["git.example.com".to_owned()]));
        let mut known = NameAddresses::default();
        known.record("git.example.com", [address("192.0.2.9"), address("192.0.2.1"), address("2001:db8::1")], BootTime::default());
        let port = |number: u16| json!([{"protocol": "TCP", "port": number}]);
        let of = |namespace: &str| json!([{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}]);
        assert_eq!(
            json!(targets.rules(&known, &[])),
            json!([
                {"ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}], "to": [
                    {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}, "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}},
                    {"ipBlock": {"cidr": "169.254.20.10/32"}},
                ]},
                {"ports": port(443), "to": [{"ipBlock": {"cidr": "10.0.0.5/32"}}]},
                {"ports": port(22), "to": [{"ipBlock": {"cidr": "fd00::5/128"}}]},
                {"ports": port(443), "to": [{"ipBlock": {"cidr": "192.0.2.1/32"}}, {"ipBlock": {"cidr": "192.0.2.9/32"}}, {"ipBlock": {"cidr": "2001:db8::1/128"}}]},
                {"ports": port(5432), "to": of("team-a")},
                {"ports": port(5432), "to": of("team-b")},
            ])
        );
    }

    #[test]
    fn an_upstream_is_a_destination_too() {
        let upstream = |url: &str| -> Upstream { serde_json::from_value(json!({"url": url, "tools": []})).expect("an upstream") };
        let with = |egress: Value, url: &str| parsed(egress).expect("valid").and_upstream(Some(&upstream(url)));
        let listed = |targets: &[EgressTarget]| Ok(EgressTargets::Listed(targets.to_vec()));
        let name = EgressTarget::Name("mcp.example.com".into(), 443);
        assert_eq!(with(json!({}), "https://mcp.example.com/mcp"), listed(std::slice::from_ref(&name)));
        let allow = json!({"mode": "AllowList", "allow": ["10.0.0.5:22", "mcp.example.com:443"]});
        let other = EgressTarget::Address(address("10.0.0.5"), 22);
        assert_eq!(with(allow, "https://mcp.example.com/mcp"), listed(&[other, name]), "once");
        assert_eq!(with(json!({}), "http://mcp.tools.svc:3000/"), listed(&[EgressTarget::Service("tools".into(), 3000)]));
        assert_eq!(with(json!({}), "https://[fd00::5]/"), listed(&[EgressTarget::Address(address("fd00::5"), 443)]));
        assert_eq!(with(json!({"mode": "Open"}), "https://mcp.example.com/"), Ok(EgressTargets::Everything));
        assert_eq!(parsed(json!({})).expect("valid").and_upstream(None), Ok(EgressTargets::Nothing));
        assert!(with(json!({}), "http://mcp.svc/").is_err_and(|message| message.starts_with("spec.upstream.url: a Service is written")));
        assert_eq!(with(json!({}), "what"), Ok(EgressTargets::Nothing), "its judgement says what is wrong");
    }

    #[test]
    fn a_name_without_an_address_opens_nothing() {
        let targets = allowed("git.example.com:443").expect("valid");
        let known = NameAddresses::default();
        assert_eq!(known.unknown(&targets.names()), ["git.example.com"]);
        let rules = targets.rules(&known, &[]);
        assert!(rules.len() == 1 && rules[0].ports.as_ref().is_some_and(|ports| ports.len() == 2), "DNS alone: {rules:?}");
        let asked = targets.rules(&known, &["10.96.0.10".parse().expect("an address")]);
        assert!(json!(asked[0].to).to_string().contains("10.96.0.10/32"), "{asked:?}");
        assert_eq!(allowed("10.0.0.5:443").expect("valid").rules(&known, &[]).len(), 1, "an address needs no DNS");
    }

    #[test]
    fn destinations_that_cannot_be_expressed_are_refused_with_advice() {
        for (entry, advice) in [
            ("*.example.com:443", "List each host"),
            ("a:0", "from 1 to 65535"),
            ("a:65536", "from 1 to 65535"),
            ("[::g]:1", "IPv6"),
            ("db.svc:80", "NAME.NAMESPACE.svc"),
            ("kubernetes.default.svc:443", "endpointslices"),
        ] {
            let message = allowed(entry).expect_err(entry);
            assert!(message.starts_with(&format!("spec.egress.allow: {entry}: ")) && message.contains(advice), "{message}");
        }
    }

    #[test]
    fn addresses_stay_for_a_while_and_are_bounded() {
        let mut known = NameAddresses::default();
        let (start, soon, late) = (BootTime::default(), Duration::from_secs(30), Duration::from_secs(601));
        let at = |wait| start.after(wait);
        let (one, two) = (address("192.0.2.1"), address("192.0.2.2"));
        known.record("a", [one], start);
        known.record("a", [], at(soon));
        assert_eq!(known.of("a").collect::<Vec<_>>(), [one], "an empty answer changes nothing");
        known.record("a", [two], at(soon));
        assert_eq!(known.of("a").collect::<Vec<_>>(), [one, two], "a program may have the earlier answer");
        known.record("a", [two], at(late));
        assert_eq!(known.of("a").collect::<Vec<_>>(), [two]);
        known.record("a", (0..=255).map(|last| IpAddr::from([10, 0, 0, last])), at(late + soon));
        assert_eq!(known.of("a").count(), MAX_ADDRESSES);
        assert!(known.of("a").all(|address| address != two), "the oldest goes");
        known.retain(&BTreeSet::new());
        assert_eq!(known.of("a").count(), 0);
    }

    #[test]
    fn a_new_leader_takes_over_the_addresses_of_the_names_that_are_listed() {
        let (start, listed) = (BootTime::default(), BTreeSet::from(["a".to_owned(), "b".to_owned()]));
        let mut known = NameAddresses::default();
        assert_eq!(known.to_annotation(), None);
        known.record("a", [address("192.0.2.1"), address("2001:db8::1")], start);
        known.record("c", [address("192.0.2.3")], start);
        let annotation = known.to_annotation().expect("addresses");
        assert_eq!(annotation, r#"{"a":["192.0.2.1","2001:db8::1"],"c":["192.0.2.3"]}"#);
        let mut restored = NameAddresses::default();
        restored.restore(&annotation, &listed, start);
        assert_eq!(restored.of("a").collect::<Vec<_>>(), [address("192.0.2.1"), address("2001:db8::1")]);
        assert_eq!((restored.of("c").count(), restored.unknown(&listed)), (0, vec!["b".to_owned()]));
        restored.record("a", [address("192.0.2.9")], start.after(ADDRESS_RETENTION + Duration::from_secs(1)));
        assert_eq!(restored.of("a").collect::<Vec<_>>(), [address("192.0.2.9")], "they expire as others");
        let many: Vec<String> = (0..200).map(|last| format!("\"10.0.0.{last}\"")).collect();
        restored.restore(&format!("{{\"b\":[{}]}}", many.join(",")), &listed, start);
        assert_eq!(restored.of("b").count(), MAX_ADDRESSES);
        let mut nothing = NameAddresses::default();
        nothing.restore("not JSON", &listed, start);
        assert!(nothing.is_empty());
    }

    #[test]
    fn the_annotation_with_all_addresses_is_smaller_than_the_api_server_allows() {
        let mut known = NameAddresses::default();
        for name in 0..64 {
            let addresses =
                (0..MAX_ADDRESSES as u16).map(|last| IpAddr::from([0x2001, 0xdb8, 0xffff, 0xffff, 0xffff, 0xffff, 0xffff, last]));
            known.record(&format!("{name:0253}"), addresses, BootTime::default());
        }
        assert!(known.to_annotation().is_some_and(|annotation| annotation.len() < 256 * 1024 - 1024));
    }
}
