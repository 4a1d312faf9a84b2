//! Decides which connections may exist. Pure: the time is an argument.
//!
//! A connection is strange until a request on it is accepted with a valid token. From then on it is known. Strange
//! connections are counted by address, and a new one may evict an old one. Known connections are counted by namespace,
//! and are never evicted.
//!
//! What always holds: the number of strange connections never exceeds its limit, in total and for each address.
//! Addresses with many connections never keep out an address that has few. Namespaces with many connections never take
//! the last slot.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::Duration;

/// The limits of connections.
#[derive(Clone, Copy, Debug)]
pub struct Capacity {
    /// Strange connections.
    pub strange: usize,
    /// Strange connections of one address.
    pub strange_per_address: usize,
    /// Known connections.
    pub known: usize,
    /// Known connections of one address.
    pub known_per_address: usize,
}

/// An address with at most this many strange connections is probably honest: a pod begins with two or three.
const HONEST_ADDRESS_CONNECTIONS: usize = 3;
/// While every address has few strange connections, many pods start at once. A connection is not evicted before this
/// age then.
pub const RUSH_GRACE: Duration = Duration::from_secs(5);

/// Number of a connection. Later ones have higher numbers.
pub type Id = u64;

/// The decision about a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It is accepted. The evicted connection, if any, must be ended.
    Place {
        /// The number of the new connection.
        id: Id,
        /// The connection to end.
        evicted: Option<Id>,
    },
    /// There is no free slot now. There may be one when a connection ends, and there is one after this time.
    Later(Duration),
}

/// Why a connection cannot become known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionFull {
    /// Its namespace has reached its share of all slots.
    Namespace,
    /// Its address has reached its limit.
    Address,
    /// It was evicted.
    Evicted,
}

#[derive(Debug)]
struct KnownConnections {
    address: IpAddr,
    namespace: String,
}

/// All connections of a listener.
#[derive(Debug)]
pub struct Admission {
    capacity: Capacity,
    last: Id,
    /// Start of each strange connection, by address.
    strange: HashMap<IpAddr, BTreeMap<Id, Duration>>,
    strange_count: usize,
    known: HashMap<Id, KnownConnections>,
    known_of_address: HashMap<IpAddr, usize>,
    known_of_namespace: HashMap<String, usize>,
}

impl Admission {
    /// No connections yet.
    pub fn new(capacity: Capacity) -> Self {
        Self {
            capacity,
            last: 0,
            strange: HashMap::new(),
            strange_count: 0,
            known: HashMap::new(),
            known_of_address: HashMap::new(),
            known_of_namespace: HashMap::new(),
        }
    }

    /// The numbers of strange and of known connections.
    pub fn counts(&self) -> (usize, usize) {
        (self.strange_count, self.known.len())
    }

    /// A connection from `address` begins at `now`. It is strange.
    pub fn arrive(&mut self, address: IpAddr, now: Duration) -> Arrival {
        let own = self.strange.get(&address);
        let victim = if own.is_some_and(|own| own.len() >= self.capacity.strange_per_address) {
            own.and_then(|own| own.first_key_value()).map(|(id, _)| (address, *id))
        } else if self.strange_count >= self.capacity.strange {
            match self.oldest_of_busiest_address() {
                Some((_, _, began, count)) if count <= HONEST_ADDRESS_CONNECTIONS && now.saturating_sub(began) < RUSH_GRACE => {
                    return Arrival::Later(RUSH_GRACE.saturating_sub(now.saturating_sub(began)));
                }
                most => most.map(|(address, id, _, _)| (address, id)),
            }
        } else {
            None
        };
        if let Some((address, id)) = victim {
            self.forget_strange(address, id);
        }
        self.last += 1;
        self.strange.entry(address).or_default().insert(self.last, now);
        self.strange_count += 1;
        Arrival::Place { id: self.last, evicted: victim.map(|(_, id)| id) }
    }

    /// The oldest connection of the address with the most strange connections, and their number. If several addresses
    /// have the most, the address with the oldest connection counts.
    fn oldest_of_busiest_address(&self) -> Option<(IpAddr, Id, Duration, usize)> {
        let oldest = self.strange.iter().filter_map(|(address, own)| {
            let (id, began) = own.first_key_value()?;
            Some((*address, *id, *began, own.len()))
        });
        oldest.max_by_key(|(_, id, _, count)| (*count, std::cmp::Reverse(*id)))
    }

    /// Makes the strange connection `id` of `address` a known one of `namespace`. A namespace may have three quarters
    /// of the slots that other namespaces leave: alone it gets three quarters of all, and after any number of others
    /// one more namespace finds some.
    pub fn admit(&mut self, id: Id, address: IpAddr, namespace: &str) -> Result<(), AdmissionFull> {
        if self.known.contains_key(&id) {
            return Ok(());
        }
        if !self.strange.get(&address).is_some_and(|own| own.contains_key(&id)) {
            return Err(AdmissionFull::Evicted);
        }
        let own = self.known_of_namespace.get(namespace).copied().unwrap_or_default();
        let left_by_others = self.capacity.known.saturating_sub(self.known.len() - own);
        if (own + 1) * 4 > left_by_others * 3 {
            return Err(AdmissionFull::Namespace);
        }
        if self.known_of_address.get(&address).copied().unwrap_or_default() >= self.capacity.known_per_address {
            return Err(AdmissionFull::Address);
        }
        self.forget_strange(address, id);
        *self.known_of_namespace.entry(namespace.to_owned()).or_default() += 1;
        *self.known_of_address.entry(address).or_default() += 1;
        self.known.insert(id, KnownConnections { address, namespace: namespace.to_owned() });
        Ok(())
    }

    /// The connection `id` of `address` has ended. It may have been evicted before.
    pub fn leave(&mut self, id: Id, address: IpAddr) {
        self.forget_strange(address, id);
        if let Some(KnownConnections { address, namespace }) = self.known.remove(&id) {
            subtract(&mut self.known_of_address, &address);
            subtract(&mut self.known_of_namespace, &namespace);
        }
    }

    fn forget_strange(&mut self, address: IpAddr, id: Id) {
        let Some(own) = self.strange.get_mut(&address) else { return };
        if own.remove(&id).is_some() {
            self.strange_count -= 1;
        }
        if own.is_empty() {
            self.strange.remove(&address);
        }
    }
}

fn subtract<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

#[cfg(test)]
#[path = "admission_tests.rs"]
mod tests;
