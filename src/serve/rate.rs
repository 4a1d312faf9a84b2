//! How many requests and handshakes of an address are served without a valid token. Pure: the time is an argument.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

/// Requests and handshakes of one address each second.
const REQUESTS_PER_SECOND: f64 = 200.0;
/// The same in a burst. Where a network hides pods behind their node's address, all pods of a node share it.
const REQUESTS_BURST: f64 = 400.0;
/// Addresses that are remembered. A forgotten address begins with a full bucket.
const REMEMBERED_ADDRESSES: usize = 4_096;

#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: f64,
    at: Duration,
}

impl Bucket {
    fn refill(&mut self, now: Duration) {
        self.left = (self.left + now.saturating_sub(self.at).as_secs_f64() * REQUESTS_PER_SECOND).min(REQUESTS_BURST);
        self.at = now;
    }
}

/// The remaining requests of each address.
#[derive(Debug, Default)]
pub struct AddressRates(HashMap<IpAddr, Bucket>);

impl AddressRates {
    /// Takes one request for `address`. Err: how long to wait for the next one.
    pub fn take(&mut self, address: IpAddr, now: Duration) -> Result<(), Duration> {
        if !self.0.contains_key(&address) && self.0.len() >= REMEMBERED_ADDRESSES {
            self.forget(now);
        }
        let bucket = self.0.entry(address).or_insert(Bucket { left: REQUESTS_BURST, at: now });
        bucket.refill(now);
        if bucket.left < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - bucket.left) / REQUESTS_PER_SECOND) + Duration::from_millis(1));
        }
        bucket.left -= 1.0;
        Ok(())
    }

    /// Gives one request back, for a request that was accepted.
    pub fn give_back(&mut self, address: IpAddr) {
        if let Some(bucket) = self.0.get_mut(&address) {
            bucket.left = (bucket.left + 1.0).min(REQUESTS_BURST);
        }
    }

    /// Forgets addresses whose bucket is full again; if there are none, the least recently used address.
    fn forget(&mut self, now: Duration) {
        self.0.retain(|_, bucket| bucket.left + now.saturating_sub(bucket.at).as_secs_f64() * REQUESTS_PER_SECOND < REQUESTS_BURST);
        if self.0.len() >= REMEMBERED_ADDRESSES
            && let Some(oldest) = self.0.iter().min_by_key(|(_, bucket)| bucket.at).map(|(address, _)| *address)
        {
            self.0.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn address(number: u32) -> IpAddr {
        Ipv4Addr::from(number).into()
    }

    #[test]
    fn an_address_has_a_burst_and_then_its_rate() {
        let mut rates = AddressRates::default();
        let taken = (0..1_000).filter(|_| rates.take(address(1), Duration::ZERO).is_ok()).count();
        assert_eq!(taken, 400);
        let after = rates.take(address(1), Duration::ZERO).expect_err("none is left");
        assert!(after < Duration::from_millis(10), "{after:?}");
        assert_eq!(rates.take(address(1), after), Ok(()), "it waited for so long");
        let later = (0..1_000).filter(|_| rates.take(address(1), after + Duration::from_secs(1)).is_ok()).count();
        assert!((200..=201).contains(&later), "{later}");
        assert_eq!(rates.take(address(2), Duration::ZERO), Ok(()), "another address has its own");
    }

    #[test]
    fn what_was_let_in_does_not_count() {
        let mut rates = AddressRates::default();
        for _ in 0..10_000 {
            assert_eq!(rates.take(address(1), Duration::ZERO), Ok(()));
            rates.give_back(address(1));
        }
    }

    #[test]
    fn the_oldest_addresses_are_forgotten() {
        let mut rates = AddressRates::default();
        for number in 0..20_000 {
            assert_eq!(rates.take(address(number), Duration::from_micros(number.into())), Ok(()));
            assert!(rates.0.len() <= REMEMBERED_ADDRESSES);
        }
        assert!(!rates.0.contains_key(&address(0)) && rates.0.contains_key(&address(19_999)));
    }
}
