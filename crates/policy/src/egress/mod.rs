//! Egress: which destinations other than models the agents of a pool may reach.
//!
//! Pure. It must not resolve a name: the gateway checks the addresses that a name has, and connects to a checked address.
//!
//! | file | for |
//! |---|---|
//! | [`destination`] | a host and a port, as a program writes them |
//! | [`pattern`] | the entries of allow and deny lists |
//! | `mod` | the decision |

pub mod destination;
pub mod pattern;

use std::fmt;

pub use destination::{Destination, DestinationError};
pub use pattern::{HostPattern, PatternError};

/// The only port of `Open` egress.
pub const HTTPS_PORT: u16 = 443;

/// What a pool opens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EgressMode {
    /// No destination.
    #[default]
    None,
    /// The listed destinations.
    AllowList,
    /// Port 443 of every public host.
    Open,
}

/// The rules for the agents of one pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EgressRules<'a> {
    /// Whether the platform has disabled egress for every pool.
    pub disabled: bool,
    /// What the pool opens.
    pub mode: EgressMode,
    /// Destinations that the pool lists.
    pub allow: Vec<HostPattern>,
    /// The platform's lists that the pool names.
    pub sets: Vec<&'a [HostPattern]>,
    /// Destinations that the platform denies to every pool.
    pub deny: &'a [HostPattern],
    /// The server of the pool's git repository.
    pub git_server: Option<Destination>,
}

/// What an item opens of the destinations of its pool.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ItemEgress {
    /// Destinations that it lists.
    pub allow: Vec<HostPattern>,
    /// The platform's lists that it names.
    pub sets: Vec<String>,
}

impl ItemEgress {
    /// Whether it opens `destination`, if its pool does. `set`: the platform's list with a name.
    pub fn opens<'a>(&self, set: impl Fn(&str) -> Option<&'a [HostPattern]>, destination: &Destination) -> bool {
        let lists = self.sets.iter().filter_map(|name| set(name)).chain([self.allow.as_slice()]);
        lists.flatten().any(|pattern| pattern.matches(destination))
    }
}

/// Why a destination is denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denial {
    /// The destination is malformed.
    Invalid(DestinationError),
    /// The platform denies it.
    DeniedByPlatform,
    /// The pool opens no destination.
    NoEgress,
    /// The pool does not list it.
    NotListed,
    /// The item in hand does not list it.
    NotListedByItem,
    /// The pool opens port 443 only.
    PortNotOpen,
    /// It is an origin of models.
    ModelOrigin,
    /// It is the server of the pool's git repository.
    GitServer,
    /// It has no public address.
    NotPublic,
}

/// The reasons of all denials.
const REASONS: [&str; 10] = [
    "HostIsAddress",
    "InvalidDestination",
    "DeniedByPlatform",
    "NoEgress",
    "NotListed",
    "NotListedByItem",
    "PortNotOpen",
    "ModelOrigin",
    "GitServer",
    "NotPublic",
];

impl Denial {
    /// The reason, as programs, metrics and logs read it.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Invalid(DestinationError::Address) => "HostIsAddress",
            Self::Invalid(_) => "InvalidDestination",
            Self::DeniedByPlatform => "DeniedByPlatform",
            Self::NoEgress => "NoEgress",
            Self::NotListed => "NotListed",
            Self::NotListedByItem => "NotListedByItem",
            Self::PortNotOpen => "PortNotOpen",
            Self::ModelOrigin => "ModelOrigin",
            Self::GitServer => "GitServer",
            Self::NotPublic => "NotPublic",
        }
    }

    /// A reason that another process gave, if this version knows it: metrics have no other labels.
    pub fn known_reason(reason: &str) -> &'static str {
        REASONS.into_iter().find(|known| *known == reason).unwrap_or("other")
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(error) => error.fmt(out),
            Self::DeniedByPlatform => out.write_str("the platform denies this destination"),
            Self::NoEgress => out.write_str("the pool opens no destination (sandbox.outputs.egress is None)"),
            Self::NotListed => out.write_str("the pool does not list this destination"),
            Self::NotListedByItem => out.write_str("the item in hand does not list this destination"),
            Self::PortNotOpen => write!(out, "the pool opens port {HTTPS_PORT} only (sandbox.outputs.egress is Open)"),
            Self::ModelOrigin => out.write_str("it serves models: call it by the base URLs in the program's environment"),
            Self::GitServer => {
                out.write_str("it is the server of the pool's repository: use git, which reaches it by the sidecar's git port")
            }
            Self::NotPublic => {
                out.write_str("it has no public address, and the platform allows no private one (egress.allowPrivate of the chart)")
            }
        }
    }
}

/// Whether agents of a pool may reach `destination`. The platform's rules win over every pool.
pub fn decide(rules: &EgressRules<'_>, destination: &Destination) -> Result<(), Denial> {
    let EgressRules { disabled, mode, allow, sets, deny, git_server } = rules;
    let names = |list: &[HostPattern]| list.iter().any(|pattern| pattern.matches(destination));
    if *disabled || names(deny) {
        return Err(Denial::DeniedByPlatform);
    }
    // A program with a credential of its own could push there without the rules of the pool.
    if git_server.as_ref() == Some(destination) {
        return Err(Denial::GitServer);
    }
    match mode {
        EgressMode::None => Err(Denial::NoEgress),
        EgressMode::AllowList if names(allow) || sets.iter().any(|set| names(set)) => Ok(()),
        EgressMode::AllowList => Err(Denial::NotListed),
        EgressMode::Open if destination.port() == HTTPS_PORT => Ok(()),
        EgressMode::Open => Err(Denial::PortNotOpen),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(texts: &[&str]) -> Vec<HostPattern> {
        texts.iter().map(|text| HostPattern::parse(text).expect(text)).collect()
    }

    #[test]
    fn an_item_opens_only_what_it_lists() {
        let npm = patterns(&["registry.example.org:443"]);
        let set = |name: &str| (name == "npm").then_some(npm.as_slice());
        let opens = |allow: &[&str], sets: &[&str], host: &str| {
            let limit = ItemEgress { allow: patterns(allow), sets: sets.iter().map(|name| (*name).to_owned()).collect() };
            limit.opens(set, &Destination::parse(host).expect("a destination"))
        };
        assert!(opens(&["a.example.org:443"], &[], "a.example.org:443") && opens(&[], &["npm"], "registry.example.org:443"));
        assert!(!opens(&["a.example.org:443"], &["npm"], "b.example.org:443"));
        assert!(!opens(&[], &[], "a.example.org:443"), "None");
        assert!(!opens(&[], &["cargo"], "registry.example.org:443"), "a set that the platform does not define");
    }

    fn reason(rules: &EgressRules<'_>, destination: &str) -> Option<&'static str> {
        let destination = Destination::parse(destination).expect(destination);
        decide(rules, &destination).err().map(|denial| denial.reason())
    }

    #[test]
    fn a_pool_reaches_the_destinations_that_it_lists() {
        let (set, deny) = (patterns(&["*.example.org:8443"]), patterns(&["secret.example.org:*"]));
        let rules = EgressRules {
            mode: EgressMode::AllowList,
            allow: patterns(&["api.example.com:443"]),
            sets: vec![&set],
            deny: &deny,
            disabled: false,
            git_server: Some(Destination::parse("git.example.org:8443").expect("a destination")),
        };
        let cases = [
            ("api.example.com:443", None),
            ("API.Example.COM:443", None),
            ("api.example.com:80", Some("NotListed")),
            ("example.com:443", Some("NotListed")),
            ("evil.api.example.com:443", Some("NotListed")),
            ("api.example.com.evil.net:443", Some("NotListed")),
            ("a.example.org:8443", None),
            ("a.b.example.org:8443", Some("NotListed")),
            ("example.org:8443", Some("NotListed")),
            ("git.example.org:8443", Some("GitServer")),
            ("secret.example.org:8443", Some("DeniedByPlatform")),
        ];
        for (destination, expected) in cases {
            assert_eq!(reason(&rules, destination), expected, "{destination}");
        }
    }

    #[test]
    fn a_pool_without_a_list_reaches_nothing_and_an_open_one_port_443() {
        let closed = EgressRules { allow: patterns(&["api.example.com:443"]), ..EgressRules::default() };
        assert_eq!(reason(&closed, "api.example.com:443"), Some("NoEgress"));
        let empty = EgressRules { mode: EgressMode::AllowList, ..EgressRules::default() };
        assert_eq!(reason(&empty, "api.example.com:443"), Some("NotListed"));
        let deny = patterns(&["*.example.org:443"]);
        let open = EgressRules { mode: EgressMode::Open, deny: &deny, ..EgressRules::default() };
        assert_eq!(reason(&open, "api.example.com:443"), None);
        assert_eq!(reason(&open, "api.example.com:22"), Some("PortNotOpen"));
        assert_eq!(reason(&open, "a.example.org:443"), Some("DeniedByPlatform"));
        assert_eq!(reason(&EgressRules { disabled: true, ..open }, "api.example.com:443"), Some("DeniedByPlatform"));
    }
}
