//! Looks up the DNS names of `spec.egress.allow`. A number of lookups at once is allowed for all Toolsets together: each holds a thread
//! until the resolver answers, also after we stopped waiting for it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use tokio::sync::Semaphore;

use super::egress::{MAX_ADDRESSES, NameAddresses};
use crate::cluster::clock::BootTime;

/// Lookups at once, of all Toolsets.
const MAX_CONCURRENT_LOOKUPS: usize = 32;
/// Lookups at once, of one Toolset, so that a Toolset with slow names does not use up all of them.
const MAX_LOOKUPS_OF_TOOLSET: usize = 4;
/// How long all lookups of one Toolset may take. The last good answer of each later name stays in force.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// The lookups of all Toolsets.
#[derive(Clone, Debug)]
pub struct Lookups(Arc<Semaphore>);

impl Default for Lookups {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_CONCURRENT_LOOKUPS)))
    }
}

#[cfg(test)]
impl Lookups {
    /// All permits are in use.
    pub fn busy() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }
}

impl Lookups {
    /// Looks up names, and records their addresses in `known`.
    pub async fn refresh(&self, names: &BTreeSet<String>, known: &mut NameAddresses) {
        known.retain(names);
        let answers = futures::stream::iter(names.iter().cloned()).map(|name| async move { (name.clone(), self.look_up(name).await) });
        let mut answers = std::pin::pin!(answers.buffer_unordered(MAX_LOOKUPS_OF_TOOLSET));
        let recording = async {
            while let Some((name, answer)) = answers.next().await {
                known.record(&name, answer, BootTime::now());
            }
        };
        let _ = tokio::time::timeout(LOOKUP_TIMEOUT, recording).await; // later names keep their last answer
    }

    /// The addresses of a name; none if it has none, or if the lookup fails.
    async fn look_up(&self, name: String) -> Vec<IpAddr> {
        let Ok(permit) = self.0.clone().acquire_owned().await else { return Vec::new() };
        // The task holds the permit for as long as the thread waits. The dot at the end makes the name absolute: the search list of
        // our own pod must not be tried.
        let looking = tokio::spawn(async move {
            let _permit = permit;
            let found = tokio::net::lookup_host((format!("{name}."), 0)).await;
            found.map(|addresses| addresses.take(MAX_ADDRESSES).map(|address| address.ip()).collect()).unwrap_or_default()
        });
        looking.await.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_name_without_an_answer_keeps_its_addresses() {
        let names = BTreeSet::from(["localhost".to_owned(), "no-such-name.invalid".to_owned()]);
        let mut known = NameAddresses::default();
        let old: IpAddr = "192.0.2.1".parse().expect("an address");
        known.record("no-such-name.invalid", [old], BootTime::now());
        known.record("not-listed.example", [old], BootTime::now());
        Lookups::default().refresh(&names, &mut known).await;
        assert_eq!(known.of("no-such-name.invalid").collect::<Vec<_>>(), [old]);
        assert_eq!(known.of("not-listed.example").count(), 0);
    }
}
