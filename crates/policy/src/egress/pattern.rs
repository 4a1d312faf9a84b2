//! The entries of allow and deny lists: `HOST:PORT`, `*.DOMAIN:PORT`, and in deny lists also `*` as the port.
//!
//! Pure. A wildcard stands for exactly one label.

use std::fmt;

use super::destination::{Destination, DestinationError, host_name, port_number};

/// An entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPattern {
    /// Whether one label comes before `domain`.
    wildcard: bool,
    domain: String,
    /// None: every port.
    port: Option<u16>,
}

/// Why a text is no entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatternError {
    text: String,
    why: DestinationError,
}

impl fmt::Display for PatternError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:?} is not HOST:PORT or *.DOMAIN:PORT: {}", self.text, self.why)
    }
}

impl HostPattern {
    /// Reads an entry of a list.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let error = |why| PatternError { text: text.chars().take(300).collect(), why };
        let (host, port) = text.rsplit_once(':').ok_or_else(|| error(DestinationError::NoPort))?;
        let (wildcard, domain) = host.strip_prefix("*.").map_or((false, host), |domain| (true, domain));
        let domain = host_name(domain).map_err(error)?;
        let port = if port == "*" { None } else { Some(port_number(port).map_err(error)?) };
        Ok(Self { wildcard, domain, port })
    }

    /// Whether it names every port.
    pub fn names_every_port(&self) -> bool {
        self.port.is_none()
    }

    /// Whether it names this destination.
    pub fn matches(&self, destination: &Destination) -> bool {
        let Self { wildcard, domain, port } = self;
        if port.is_some_and(|port| port != destination.port()) {
            return false;
        }
        if !wildcard {
            return destination.host() == domain;
        }
        let label = destination.host().strip_suffix(domain.as_str()).and_then(|rest| rest.strip_suffix('.'));
        label.is_some_and(|label| !label.is_empty() && !label.contains('.'))
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { wildcard, domain, port } = self;
        let star = if *wildcard { "*." } else { "" };
        match port {
            Some(port) => write!(out, "{star}{domain}:{port}"),
            None => write!(out, "{star}{domain}:*"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_is_one_label() {
        let cases = [
            ("example.com:443", "example.com:443", true),
            ("example.com:443", "a.example.com:443", false),
            ("Example.com:443", "example.com:443", true),
            ("*.example.com:443", "a.example.com:443", true),
            ("*.example.com:443", "example.com:443", false),
            ("*.example.com:443", "a.b.example.com:443", false),
            ("*.example.com:443", "aexample.com:443", false),
            ("*.example.com:443", "a.example.com.evil.net:443", false),
            ("*.example.com:443", "a.example.com:80", false),
            ("*.example.com:*", "a.example.com:80", true),
        ];
        for (pattern, destination, expected) in cases {
            let (pattern, destination) = (HostPattern::parse(pattern).expect(pattern), Destination::parse(destination).expect(destination));
            assert_eq!(pattern.matches(&destination), expected, "{pattern} {destination}");
        }
    }

    #[test]
    fn an_entry_that_names_too_much_or_no_host_is_refused() {
        for text in ["*:443", "*.com:443", "*.*.example.com:443", "example.*:443", "10.0.0.1:443", "*.1:443", "example.com", "localhost:1"]
        {
            let error = HostPattern::parse(text).expect_err(text).to_string();
            assert!(error.contains(text), "{error}");
        }
        assert!(HostPattern::parse("example.com:*").is_ok_and(|pattern| pattern.names_every_port()));
    }
}
