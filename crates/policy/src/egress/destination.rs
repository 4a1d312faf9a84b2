//! A destination, as a program writes it in a proxy request (`HOST:PORT`): a host name in ASCII and a port.
//!
//! Pure. A destination has one spelling, so that the checked name is the resolved name. A spelling that another parser could
//! read as another host is refused, and so is an address: a rule for names says nothing about addresses.

use std::fmt;

/// The most characters of a host name (RFC 1035).
const MAX_HOST_CHARS: usize = 253;
/// The most characters of a label.
const MAX_LABEL_CHARS: usize = 63;

/// A host name in lower case, and a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Destination {
    host: String,
    port: u16,
}

/// Why a text is no destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DestinationError {
    /// It has no host.
    NoHost,
    /// It has no port.
    NoPort,
    /// Its port is not a plain number from 1 to 65535.
    InvalidPort,
    /// The host is an address.
    Address,
    /// The host has more than 253 characters, or a label more than 63.
    TooLong,
    /// The host has one label only.
    SingleLabel,
    /// The host ends with a dot.
    TrailingDot,
    /// A label is empty, or begins or ends with a hyphen.
    InvalidLabel,
    /// The host has characters outside ASCII.
    NotAscii,
    /// The host has a character that no host name has.
    InvalidCharacter,
}

impl fmt::Display for DestinationError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::NoHost => "the destination has no host",
            Self::NoPort => "the destination has no port: it is HOST:PORT",
            Self::InvalidPort => "the port is not a plain number from 1 to 65535",
            Self::Address => "the host is an address: only host names can be reached",
            Self::TooLong => "the host name is too long: it has at most 253 characters, and each label at most 63",
            Self::SingleLabel => "the host name has one label only: write the full name",
            Self::TrailingDot => "the host name ends with a dot: leave it out",
            Self::InvalidLabel => "a label of the host name is empty, or begins or ends with a hyphen",
            Self::NotAscii => "the host name has characters outside ASCII: write its xn-- form",
            Self::InvalidCharacter => "the host name has a character that host names do not have",
        })
    }
}

impl Destination {
    /// Reads `HOST:PORT`.
    pub fn parse(text: &str) -> Result<Self, DestinationError> {
        // The host comes first: an address in brackets has colons of its own.
        if text.starts_with('[') {
            return Err(DestinationError::Address);
        }
        let (host, port) = text.rsplit_once(':').ok_or(DestinationError::NoPort)?;
        if host.contains(':') && host.bytes().all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.')) {
            return Err(DestinationError::Address);
        }
        Ok(Self { host: host_name(host)?, port: port_number(port)? })
    }

    /// The host name, in lower case.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.host, self.port)
    }
}

/// A port in its one spelling: other parsers read `+443`, `0443` or ` 443` in different ways.
pub(super) fn port_number(text: &str) -> Result<u16, DestinationError> {
    let plain = !text.is_empty() && text.len() <= 5 && text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    text.parse().ok().filter(|_| plain).ok_or(DestinationError::InvalidPort)
}

/// A host name of at least two labels, in lower case.
pub(super) fn host_name(text: &str) -> Result<String, DestinationError> {
    if text.is_empty() {
        return Err(DestinationError::NoHost);
    }
    if !text.is_ascii() {
        return Err(DestinationError::NotAscii);
    }
    if !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.')) {
        return Err(DestinationError::InvalidCharacter);
    }
    if text.len() > MAX_HOST_CHARS || text.split('.').any(|label| label.len() > MAX_LABEL_CHARS) {
        return Err(DestinationError::TooLong);
    }
    // Resolvers take `name.` and `name` for the same host.
    let Some(last) = text.strip_suffix('.').map_or_else(|| text.rsplit('.').next(), |_| None) else {
        return Err(DestinationError::TrailingDot);
    };
    // Decimal, octal and hexadecimal numbers, in one to four parts, are addresses to many resolvers.
    if is_number(last) {
        return Err(DestinationError::Address);
    }
    if text.split('.').any(|label| label.is_empty() || label.starts_with('-') || label.ends_with('-')) {
        return Err(DestinationError::InvalidLabel);
    }
    if !text.contains('.') {
        return Err(DestinationError::SingleLabel);
    }
    Ok(text.to_ascii_lowercase())
}

/// Whether the last label of a host makes it an address: digits only, or a hexadecimal number.
fn is_number(label: &str) -> bool {
    let digits = !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_digit());
    let hexadecimal = label.get(..2).is_some_and(|start| start.eq_ignore_ascii_case("0x"));
    digits || (hexadecimal && label[2..].bytes().all(|byte| byte.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_destination_has_one_spelling() {
        let cases = [
            ("packages.example.org:443", "packages.example.org:443"),
            ("Packages.EXAMPLE.org:443", "packages.example.org:443"),
            ("xn--bcher-kva.example:8443", "xn--bcher-kva.example:8443"),
            ("a.b:1", "a.b:1"),
            ("127.0.0.1.example.org:443", "127.0.0.1.example.org:443"),
            ("1.2.3.4a:443", "1.2.3.4a:443"),
        ];
        for (text, expected) in cases {
            assert_eq!(Destination::parse(text).map(|destination| destination.to_string()).as_deref(), Ok(expected), "{text}");
        }
    }

    /// Spellings by which programs got past host rules of other proxies.
    #[test]
    fn tricks_with_hosts_are_refused_with_their_reason() {
        use DestinationError::{
            Address, InvalidCharacter, InvalidLabel, InvalidPort, NoHost, NoPort, NotAscii, SingleLabel, TooLong, TrailingDot,
        };
        let long_label = format!("{}.example.com:443", "a".repeat(64));
        let long_host = format!("{}example.com:443", "a.".repeat(125));
        let cases = [
            ("", NoPort),
            (":443", NoHost),
            ("example.com", NoPort),
            ("example.com:", InvalidPort),
            ("example.com:0", InvalidPort),
            ("example.com:65536", InvalidPort),
            ("example.com:99999999999", InvalidPort),
            ("example.com:+443", InvalidPort),
            ("example.com:0443", InvalidPort),
            ("example.com: 443", InvalidPort),
            ("example.com:443 ", InvalidPort),
            ("example.com:44a", InvalidPort),
            ("example.com:-1", InvalidPort),
            ("example.com:４４３", InvalidPort),
            ("localhost:443", SingleLabel),
            ("kubernetes:443", SingleLabel),
            ("example.com.:443", TrailingDot),
            (".:443", TrailingDot),
            (".example.com:443", InvalidLabel),
            ("example..com:443", InvalidLabel),
            ("-example.com:443", InvalidLabel),
            ("example-.com:443", InvalidLabel),
            ("user@example.com:443", InvalidCharacter),
            ("user:password@example.com:443", InvalidCharacter),
            ("example.com/:443", InvalidCharacter),
            ("example.com\\.evil.net:443", InvalidCharacter),
            ("example.com#.evil.net:443", InvalidCharacter),
            ("example.com?.evil.net:443", InvalidCharacter),
            ("example.com%2eevil.net:443", InvalidCharacter),
            ("example.com%00.evil.net:443", InvalidCharacter),
            ("example.com\0.evil.net:443", InvalidCharacter),
            ("example.com\n.evil.net:443", InvalidCharacter),
            ("example.com\t:443", InvalidCharacter),
            ("exa mple.com:443", InvalidCharacter),
            ("exa_mple.com:443", InvalidCharacter),
            ("*.example.com:443", InvalidCharacter),
            ("bücher.example:443", NotAscii),
            ("example。com:443", NotAscii),
            ("ⓔxample.com:443", NotAscii),
            ("exam\u{ad}ple.com:443", NotAscii),
            ("http://example.com:443", InvalidCharacter),
            ("127.0.0.1:443", Address),
            ("2130706433:443", Address),
            ("0x7f000001:443", Address),
            ("0X7F.0.0.1:443", Address),
            ("0177.0.0.1:443", Address),
            ("127.1:443", Address),
            ("1.2.3.0x4:443", Address),
            ("0x:443", Address),
            ("169.254.169.254:80", Address),
            ("example.com.1:443", Address),
            ("[::1]:443", Address),
            ("[::ffff:169.254.169.254]:80", Address),
            ("[fe80::1%25eth0]:443", Address),
            ("::1:443", Address),
            ("example.com:443:443", InvalidCharacter),
            (long_label.as_str(), TooLong),
            (long_host.as_str(), TooLong),
        ];
        assert!(cases.len() >= 40);
        for (text, expected) in cases {
            assert_eq!(Destination::parse(text), Err(expected), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn a_destination_that_is_read_is_read_again_as_the_same(text in "[a-zA-Z0-9.:@%\\[\\]-]{0,40}") {
            if let Ok(destination) = Destination::parse(&text) {
                prop_assert!(destination.host().parse::<std::net::IpAddr>().is_err());
                prop_assert_eq!(Destination::parse(&destination.to_string()), Ok(destination));
            }
        }
    }
}
