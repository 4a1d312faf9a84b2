//! Looks up the DNS names of `spec.egress.allow`. A number of lookups at once is allowed for all Toolsets together: each holds a thread
//! until the resolver answers, also after we stopped waiting for it.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use tokio::sync::Semaphore;

use super::egress::{MAX_ADDRESSES, NameAddresses};
use crate::cluster::clock::BootTime;

/// Lookups at once, of all Toolsets.
const MAX_CONCURRENT_LOOKUPS: usize = 32;
/// Lookups at once, of one namespace. A lookup of a slow name holds its permit also after we stopped waiting for it.
const MAX_LOOKUPS_OF_NAMESPACE: usize = 8;
/// Lookups at once, of one Toolset, so that a Toolset with slow names does not use up all of them.
const MAX_LOOKUPS_OF_TOOLSET: usize = 4;
/// How long all lookups of one Toolset may take. The last good answer of each later name stays in force.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// The lookups of all Toolsets.
#[derive(Clone, Debug)]
pub struct Lookups {
    all: Arc<Semaphore>,
    /// Those of namespaces with lookups under way.
    namespaces: Arc<Mutex<HashMap<String, Arc<Semaphore>>>>,
}

impl Default for Lookups {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(MAX_CONCURRENT_LOOKUPS)), namespaces: Arc::default() }
    }
}

#[cfg(test)]
impl Lookups {
    /// All permits are in use.
    pub fn busy() -> Self {
        Self { all: Arc::new(Semaphore::new(0)), namespaces: Arc::default() }
    }
}

impl Lookups {
    fn permits_of(&self, namespace: &str) -> Arc<Semaphore> {
        let mut namespaces = self.namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        // A permit that is in use or waited for has its own reference.
        namespaces.retain(|_, permits| Arc::strong_count(permits) > 1);
        let permits = namespaces.entry(namespace.to_owned());
        permits.or_insert_with(|| Arc::new(Semaphore::new(MAX_LOOKUPS_OF_NAMESPACE))).clone()
    }

    /// Looks up names for a Toolset of `namespace`, and records their addresses in `known`.
    pub async fn refresh(&self, namespace: &str, names: &BTreeSet<String>, known: &mut NameAddresses) {
        known.retain(names);
        let permits = self.permits_of(namespace);
        let in_turn = known.in_turn(names);
        let answers = futures::stream::iter(in_turn.iter().cloned()).map(|name| {
            let permits = permits.clone();
            async move { (name.clone(), self.look_up(name, permits).await) }
        });
        let mut answers = std::pin::pin!(answers.buffer_unordered(MAX_LOOKUPS_OF_TOOLSET));
        let mut answered = 0;
        let recording = async {
            while let Some((name, answer)) = answers.next().await {
                known.record(&name, answer, BootTime::now());
                answered += 1;
            }
        };
        let _ = tokio::time::timeout(LOOKUP_TIMEOUT, recording).await; // later names keep their last answer
        let begun = (answered + MAX_LOOKUPS_OF_TOOLSET).min(in_turn.len());
        known.tried(begun.checked_sub(1).and_then(|last| in_turn.get(last)));
    }

    /// The addresses of a name; none if it has none, or if the lookup fails.
    async fn look_up(&self, name: String, of_namespace: Arc<Semaphore>) -> Vec<IpAddr> {
        let Ok(own) = of_namespace.acquire_owned().await else { return Vec::new() };
        let Ok(permit) = self.all.clone().acquire_owned().await else { return Vec::new() };
        // The task holds the permits for as long as the thread waits. The dot at the end makes the name absolute: the search list of
        // our own pod must not be tried.
        let looking = tokio::spawn(async move {
            let _permits = (own, permit);
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
        Lookups::default().refresh("team", &names, &mut known).await;
        assert_eq!(known.of("no-such-name.invalid").collect::<Vec<_>>(), [old]);
        assert_eq!(known.of("not-listed.example").count(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_names_of_one_namespace_delay_no_other_one() {
        let lookups = Lookups::default();
        let slow = lookups.permits_of("slow").acquire_many_owned(8).await.expect("all permits");
        let mut known = NameAddresses::default();
        let names: BTreeSet<String> = ["a", "b", "c", "d", "e", "f"].map(|name| format!("{name}.example")).into();
        let meanwhile = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert_eq!(lookups.all.available_permits(), MAX_CONCURRENT_LOOKUPS, "it waits for its namespace alone");
        };
        tokio::join!(lookups.refresh("slow", &names, &mut known), meanwhile);
        assert_eq!(known.in_turn(&names)[0], "e.example", "slow names keep no other from being tried");
        assert_eq!(lookups.permits_of("team").available_permits(), MAX_LOOKUPS_OF_NAMESPACE);
        drop(slow);
        drop(lookups.permits_of("other"));
        let kept: Vec<String> = lookups.namespaces.lock().expect("whole").keys().cloned().collect();
        assert_eq!(kept, ["other"], "nothing is remembered of a namespace without lookups");
    }
}
