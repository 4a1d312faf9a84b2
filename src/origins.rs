//! The servers that gateways may call with a team's credential, for models and for git: origins that the chart lists, and
//! addresses that are public or explicitly allowed. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::Deserialize;

/// The public origins of the providers of the four dialects.
pub const DEFAULT_ORIGINS: [&str; 3] = ["https://api.anthropic.com", "https://api.openai.com", "https://generativelanguage.googleapis.com"];
const HTTPS_PORT: u16 = 443;

/// An origin in normal form: `https`, the host in lower case, the port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    /// Name, or address without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
}

impl Origin {
    /// Reads `https://host` or `https://host:port`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| format!("{text:?} is not an origin: {why}");
        let uri: http::Uri = text.parse().map_err(|error| wrong(&format!("{error}")))?;
        if uri.scheme_str() != Some("https") {
            return Err(wrong("it must begin with https://"));
        }
        let authority = uri.authority().ok_or_else(|| wrong("it has no host"))?;
        if authority.as_str().contains('@') || !matches!(uri.path(), "" | "/") || uri.query().is_some() || text.contains(['#', '?']) {
            return Err(wrong("it must be https://host or https://host:port, without a path or user"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
        // The library ignores an invalid port, so the port is parsed here.
        let port = match authority.as_str().strip_prefix(authority.host()).unwrap_or_default() {
            "" => HTTPS_PORT,
            port => {
                port.strip_prefix(':').and_then(|port| port.parse().ok()).ok_or_else(|| wrong("its port is not a number below 65536"))?
            }
        };
        if host.is_empty() || port == 0 {
            return Err(wrong("it has no host, or port 0"));
        }
        Ok(Self { host, port })
    }

    /// The value for a Host header.
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        if self.port == HTTPS_PORT { host } else { format!("{host}:{}", self.port) }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "https://{}", self.authority())
    }
}

/// An entry of the chart's `gateway.modelOrigins` or `git.origins`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OriginEntry {
    origin: String,
    #[serde(default)]
    allow_private: bool,
    #[serde(default)]
    ca_bundle: String,
}

/// The settings of an origin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OriginTerms {
    /// Its address may be private.
    pub allow_private: bool,
    /// Trusted certificates in addition to the public ones, as PEM.
    pub ca_bundle: String,
}

/// A list of allowed origins. Default: those of models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origins(BTreeMap<Origin, OriginTerms>);

impl Default for Origins {
    fn default() -> Self {
        Self(DEFAULT_ORIGINS.iter().filter_map(|text| Some((Origin::parse(text).ok()?, OriginTerms::default()))).collect())
    }
}

impl Origins {
    /// Reads a JSON list of `{origin, allowPrivate, caBundle}`.
    pub fn parse(json: &str) -> Result<Self, String> {
        let entries: Vec<OriginEntry> = serde_json::from_str(json).map_err(|error| error.to_string())?;
        Self::of(entries)
    }

    /// The origins of a list.
    pub fn of(entries: Vec<OriginEntry>) -> Result<Self, String> {
        let mut all = BTreeMap::new();
        for OriginEntry { origin, allow_private, ca_bundle } in entries {
            let origin = Origin::parse(&origin)?;
            if all.insert(origin.clone(), OriginTerms { allow_private, ca_bundle }).is_some() {
                return Err(format!("{origin} is listed twice"));
            }
        }
        Ok(Self(all))
    }

    /// No origin.
    pub fn none() -> Self {
        Self(BTreeMap::new())
    }

    /// The settings of `origin`, if it is allowed.
    pub fn terms(&self, origin: &Origin) -> Option<&OriginTerms> {
        self.0.get(origin)
    }
}

/// Why the gateway does not connect to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialRefusal {
    /// No host has it: unspecified, multicast, broadcast, reserved, or for documentation.
    Reserved,
    /// This machine.
    Loopback,
    /// Link-local, where clouds serve the credentials of their machines.
    LinkLocal,
    /// A private network.
    Private,
}

impl fmt::Display for DialRefusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Reserved => "a reserved address, which the gateway never calls",
            Self::Loopback => "a loopback address, which gateway.modelOrigins of the chart does not allow (allowPrivate)",
            Self::LinkLocal => "a link-local address, which the gateway never calls because clouds serve credentials there",
            Self::Private => "a private address, which gateway.modelOrigins of the chart does not allow (allowPrivate)",
        })
    }
}

/// Whether the gateway may connect to `address`. `allow_private` allows private and loopback addresses, never
/// link-local or reserved ones.
pub fn judge(address: IpAddr, allow_private: bool) -> Result<(), DialRefusal> {
    let closed = match address {
        IpAddr::V4(address) => closed_v4(address),
        IpAddr::V6(address) => closed_v6(address),
    };
    match closed {
        None => Ok(()),
        Some(DialRefusal::Private | DialRefusal::Loopback) if allow_private => Ok(()),
        Some(closed) => Err(closed),
    }
}

fn closed_v4(address: Ipv4Addr) -> Option<DialRefusal> {
    match address.octets() {
        [127, ..] => Some(DialRefusal::Loopback),
        [169, 254, ..] => Some(DialRefusal::LinkLocal),
        // The metadata addresses of clouds that are not link-local.
        [100, 100, 100, 200] | [168, 63, 129, 16] | [192, 0, 0, 192] => Some(DialRefusal::LinkLocal),
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] | [100, 64..=127, ..] => Some(DialRefusal::Private),
        [0, ..] | [192, 0, 0, _] | [192, 0, 2, _] | [192, 88, 99, _] | [198, 18..=19, ..] => Some(DialRefusal::Reserved),
        [198, 51, 100, _] | [203, 0, 113, _] | [224..=255, ..] => Some(DialRefusal::Reserved),
        _ => None,
    }
}

fn closed_v6(address: Ipv6Addr) -> Option<DialRefusal> {
    let segments = address.segments();
    match segments {
        // An IPv4 address inside an IPv6 address has the reason of the IPv4 address, and is refused also if that is
        // public: it is never needed.
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => {
            Some(closed_v4(v4(high, low)).unwrap_or(DialRefusal::Reserved))
        }
        [0, 0, 0, 0, 0, 0, 0, 1] => Some(DialRefusal::Loopback),
        [0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x254] | [0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254] => Some(DialRefusal::LinkLocal),
        [0xfe80..=0xfebf, ..] => Some(DialRefusal::LinkLocal),
        [0xfc00..=0xfdff, ..] | [0xfec0..=0xfeff, ..] => Some(DialRefusal::Private),
        [0x2001, 0..=0x1ff, ..] | [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Some(DialRefusal::Reserved),
        // The global unicast range.
        [0x2000..=0x3fff, ..] => None,
        _ => Some(DialRefusal::Reserved),
    }
}

fn v4(high: u16, low: u16) -> Ipv4Addr {
    let [a, b] = high.to_be_bytes();
    let [c, d] = low.to_be_bytes();
    Ipv4Addr::new(a, b, c, d)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_address() {
        use DialRefusal::{LinkLocal, Loopback, Private, Reserved};
        let cases = [
            ("1.1.1.1", None),
            ("9.255.255.255", None),
            ("11.0.0.0", None),
            ("100.63.255.255", None),
            ("100.128.0.0", None),
            ("172.15.255.255", None),
            ("172.32.0.0", None),
            ("192.167.255.255", None),
            ("198.17.255.255", None),
            ("198.20.0.0", None),
            ("223.255.255.255", None),
            ("0.0.0.0", Some(Reserved)),
            ("0.1.2.3", Some(Reserved)),
            ("10.0.0.1", Some(Private)),
            ("10.255.255.255", Some(Private)),
            ("100.64.0.0", Some(Private)),
            ("100.127.255.255", Some(Private)),
            ("100.100.100.200", Some(LinkLocal)),
            ("127.0.0.1", Some(Loopback)),
            ("127.255.255.255", Some(Loopback)),
            ("168.63.129.16", Some(LinkLocal)),
            ("169.254.169.254", Some(LinkLocal)),
            ("169.254.0.1", Some(LinkLocal)),
            ("172.16.0.0", Some(Private)),
            ("172.31.255.255", Some(Private)),
            ("192.0.0.1", Some(Reserved)),
            ("192.0.0.192", Some(LinkLocal)),
            ("192.0.2.1", Some(Reserved)),
            ("192.88.99.1", Some(Reserved)),
            ("192.168.0.1", Some(Private)),
            ("198.18.0.1", Some(Reserved)),
            ("198.19.255.255", Some(Reserved)),
            ("198.51.100.1", Some(Reserved)),
            ("203.0.113.1", Some(Reserved)),
            ("224.0.0.1", Some(Reserved)),
            ("240.0.0.1", Some(Reserved)),
            ("255.255.255.255", Some(Reserved)),
            ("2606:4700::1111", None),
            ("2001:4860::8888", None),
            ("2a00::1", None),
            ("::", Some(Reserved)),
            ("::1", Some(Loopback)),
            ("::127.0.0.1", Some(Reserved)),
            ("::ffff:127.0.0.1", Some(Loopback)),
            ("::ffff:10.0.0.1", Some(Private)),
            ("::ffff:169.254.169.254", Some(LinkLocal)),
            ("::ffff:1.1.1.1", Some(Reserved)),
            ("64:ff9b::7f00:1", Some(Loopback)),
            ("64:ff9b::a9fe:a9fe", Some(LinkLocal)),
            ("64:ff9b:1::1", Some(Reserved)),
            ("2002:a9fe:a9fe::", Some(LinkLocal)),
            ("2002:101:101::", Some(Reserved)),
            ("2001::1", Some(Reserved)),
            ("2001:db8::1", Some(Reserved)),
            ("3fff::1", Some(Reserved)),
            ("100::1", Some(Reserved)),
            ("fc00::1", Some(Private)),
            ("fd12:3456::1", Some(Private)),
            ("fd00:ec2::254", Some(LinkLocal)),
            ("fd20:ce::254", Some(LinkLocal)),
            ("fe80::1", Some(LinkLocal)),
            ("febf::1", Some(LinkLocal)),
            ("fec0::1", Some(Private)),
            ("ff02::1", Some(Reserved)),
        ];
        for (text, closed) in cases {
            let address: IpAddr = text.parse().expect(text);
            assert_eq!(judge(address, false).err(), closed, "{text}");
            let open = matches!(closed, None | Some(Private | Loopback));
            assert_eq!(judge(address, true).is_ok(), open, "{text}, with private ones allowed");
        }
    }

    #[test]
    fn an_origin_has_one_form() {
        for (text, form) in [
            ("https://api.anthropic.com", "https://api.anthropic.com"),
            ("https://API.Anthropic.COM:443", "https://api.anthropic.com"),
            ("https://api.openai.com/", "https://api.openai.com"),
            ("https://models.team.svc:8443", "https://models.team.svc:8443"),
            ("https://[2606:4700::1]:8443", "https://[2606:4700::1]:8443"),
        ] {
            assert_eq!(Origin::parse(text).map(|origin| origin.to_string()).as_deref(), Ok(form), "{text}");
        }
        for text in [
            "http://api.anthropic.com",
            "api.anthropic.com",
            "https://",
            "https://user@api.anthropic.com",
            "https://api.anthropic.com/v1",
            "https://api.anthropic.com?x=1",
            "https://api.anthropic.com#x",
            "https://api.anthropic.com:0",
            "https://api.anthropic.com:",
            "https://api.anthropic.com:99999",
            "",
        ] {
            assert!(Origin::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn only_what_is_listed_is_open() {
        let all = Origins::default();
        for text in DEFAULT_ORIGINS {
            assert_eq!(all.terms(&Origin::parse(text).expect(text)), Some(&OriginTerms::default()));
        }
        let of = |text: &str| Origin::parse(text).expect("an origin");
        assert_eq!(all.terms(&of("https://api.anthropic.com:8443")), None);
        let own = Origins::parse(r#"[{"origin": "https://Models.team.svc:8443", "allowPrivate": true, "caBundle": "x"}]"#).expect("a list");
        let terms = OriginTerms { allow_private: true, ca_bundle: "x".into() };
        assert_eq!((own.terms(&of("https://models.team.svc:8443")), own.terms(&of(DEFAULT_ORIGINS[0]))), (Some(&terms), None));
        for bad in [
            r#"[{"origin": "http://a"}]"#,
            r#"[{"origin": "https://a", "alowPrivate": true}]"#,
            "{}",
            r#"[{"origin":"https://a"},{"origin":"https://A:443"}]"#,
        ] {
            assert!(Origins::parse(bad).is_err(), "{bad}");
        }
    }
}
