//! Destinations and entries of lists: a destination has one spelling and is no address, and a list names no more than it says.
#![cfg_attr(fuzzing, no_main)]

use std::net::{IpAddr, SocketAddr};

use libfuzzer_sys::fuzz_target;
use spillway_policy::egress::{Destination, HostPattern};

fuzz_target!(|texts: (&str, &str)| {
    let (destination, entry) = texts;
    let entry = HostPattern::parse(entry);
    if let Ok(entry) = &entry {
        assert_eq!(HostPattern::parse(&entry.to_string()).as_ref(), Ok(entry));
    }
    let Ok(destination) = Destination::parse(destination) else { return };
    let text = destination.to_string();
    assert_eq!(Destination::parse(&text).as_ref(), Ok(&destination));
    assert!(destination.host().parse::<IpAddr>().is_err() && text.parse::<SocketAddr>().is_err(), "{text}");
    assert!(destination.host().bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.')), "{text}");
    // Resolvers take a host that ends in a number for an address.
    let last = destination.host().rsplit('.').next().unwrap_or_default();
    assert!(!last.bytes().all(|byte| byte.is_ascii_digit()), "{text}");
    if let Ok(entry) = entry
        && entry.matches(&destination)
    {
        let (host, entry) = (destination.host(), entry.to_string());
        let domain = entry.rsplit_once(':').map_or("", |(domain, _)| domain).trim_start_matches("*.");
        assert!(host == domain || host.strip_suffix(domain).is_some_and(|label| label.matches('.').count() == 1), "{entry} {text}");
    }
});
