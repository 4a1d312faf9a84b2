//! The address of an upstream. TLS is required, but for a Service of the cluster and for this machine.

use std::fmt;
use std::net::IpAddr;

/// The most characters of an address.
pub const MAX_URL_CHARS: usize = 2048;
/// Ends of the names of Services.
const SERVICE_SUFFIXES: [&str; 2] = [".svc", ".svc.cluster.local"];

/// A checked address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamUrl {
    text: String,
    host: String,
    port: u16,
}

impl fmt::Display for UpstreamUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

impl UpstreamUrl {
    /// Reads an address, or says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAX_URL_CHARS || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(format!("it must have at most {MAX_URL_CHARS} ASCII characters without spaces"));
        }
        let (is_plain, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(rest), _) => (false, rest),
            (None, Some(rest)) => (true, rest),
            (None, None) => return Err("it must begin with https://, or http:// for a Service of the cluster".to_owned()),
        };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        if authority.contains('@') || text.contains('#') {
            return Err("it must have no user, no password and no fragment: the credential is in credentialsRef".to_owned());
        }
        let (host, port) = split_authority(authority)?;
        let port = port.unwrap_or(if is_plain { 80 } else { 443 });
        let url = Self { text: text.to_owned(), host, port };
        if is_plain && !url.is_service() && !url.is_loopback() {
            let message =
                "http:// is for a Service of the cluster (NAME.NAMESPACE.svc) and for this machine: others could read the credential";
            return Err(message.to_owned());
        }
        Ok(url)
    }

    /// Its host, without the brackets of an IPv6 address.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether it is this machine, or this pod.
    pub fn is_loopback(&self) -> bool {
        self.host == "localhost" || self.host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
    }

    /// Whether it is a Service of the cluster.
    fn is_service(&self) -> bool {
        SERVICE_SUFFIXES.iter().any(|suffix| self.host.ends_with(suffix))
    }
}

/// The host and the port.
fn split_authority(authority: &str) -> Result<(String, Option<u16>), String> {
    let wrong = |what: &str| Err(what.to_owned());
    let (host, port, is_bracketed) = match authority.strip_prefix('[') {
        Some(rest) => {
            let Some((host, after)) = rest.split_once(']') else { return wrong("[...] must contain an IPv6 address") };
            (host, if after.is_empty() { None } else { Some(after.strip_prefix(':').unwrap_or("")) }, true)
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port), false),
            None => (authority, None, false),
        },
    };
    let of_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'-');
    let is_name = !host.is_empty() && host.len() <= 253 && host.bytes().all(of_name) && !host.starts_with(['.', '-']);
    if is_bracketed && !host.parse::<IpAddr>().is_ok_and(|address| address.is_ipv6()) {
        return wrong("[...] must contain an IPv6 address");
    }
    if !is_bracketed && !is_name {
        return wrong("its host must be a DNS name in lower case, or an IP address");
    }
    match port.map(str::parse::<u16>) {
        None => Ok((host.to_owned(), None)),
        Some(Ok(number @ 1..)) => Ok((host.to_owned(), Some(number))),
        Some(Ok(_) | Err(_)) => wrong("its port must be a number from 1 to 65535"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_host_and_a_port() {
        for (text, host, port) in [
            ("https://mcp.example.com/mcp", "mcp.example.com", 443),
            ("https://mcp.example.com:8443/a?b=c", "mcp.example.com", 8443),
            ("https://10.0.0.5", "10.0.0.5", 443),
            ("https://[fd00::5]:9/x", "fd00::5", 9),
            ("http://mcp.tools.svc/mcp", "mcp.tools.svc", 80),
            ("http://mcp.tools.svc.cluster.local:3000/mcp", "mcp.tools.svc.cluster.local", 3000),
            ("http://127.0.0.1:3000/mcp", "127.0.0.1", 3000),
            ("http://localhost:3000", "localhost", 3000),
            ("http://[::1]:3000/mcp", "::1", 3000),
        ] {
            let url = UpstreamUrl::parse(text).expect(text);
            assert_eq!((url.host(), url.port(), url.to_string().as_str()), (host, port, text));
        }
        assert!(UpstreamUrl::parse("http://127.0.0.1:1").is_ok_and(|url| url.is_loopback()));
        assert!(UpstreamUrl::parse("https://a.example").is_ok_and(|url| !url.is_loopback()));
    }

    #[test]
    fn an_address_that_tells_the_credential_or_nothing_is_refused() {
        for text in [
            "http://mcp.example.com/mcp",
            "http://10.0.0.5/mcp",
            "http://evil.example/.svc",
            "http://evil.example?.svc",
            "http://evil.example#.svc",
            "https://user:pass@mcp.example.com/",
            "http://a.svc@evil.example/",
            "https://a.example/#b",
            "ftp://a.example",
            "https://",
            "https://:443",
            "https://a.example:0",
            "https://a.example:70000",
            "https://a.example:",
            "https://[::1",
            "https://[a.example]",
            "https://A.example",
            "https://a b",
            "https://\u{e4}.example",
            "mcp.example.com",
        ] {
            UpstreamUrl::parse(text).expect_err(text);
        }
    }
}
