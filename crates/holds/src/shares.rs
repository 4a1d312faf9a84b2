//! Limits the unacknowledged bytes of a session, in total and for each namespace.
//!
//! A namespace may have at most twice the free bytes without a reserve of a quarter, and always a guaranteed part of
//! the reserve. So one namespace alone gets half of the bytes and is refused beyond that, while all others continue.
//! Any number of namespaces leaves the reserve to others.
use std::collections::HashMap;
use std::sync::Arc;

/// One part in this many of the bytes is reserved for namespaces with at most [`GUARANTEED_BYTES`].
const RESERVE_DIVISOR: usize = 4;
/// Bytes that a namespace gets while the reserve lasts: enough for some hundred calls.
const GUARANTEED_BYTES: usize = 64 * 1024;
/// A namespace may have this many times the free bytes without the reserve.
const FREE_SPACE_MULTIPLE: usize = 2;

/// The limit that is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareFull {
    /// The share of the namespace.
    Namespace,
    /// The limit of all namespaces together.
    All,
}

/// The taken bytes, in total and by namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shares {
    limit: usize,
    all: usize,
    of: HashMap<Arc<str>, usize>,
}

impl Shares {
    /// No bytes are taken.
    pub fn new(limit: usize) -> Self {
        Self { limit, all: 0, of: HashMap::new() }
    }

    /// Whether a namespace may take `bytes` more. `beside` are bytes of the limit that are taken outside of the shares.
    pub fn room(&self, namespace: &str, bytes: usize, beside: usize) -> Result<(), ShareFull> {
        let own = self.of.get(namespace).copied().unwrap_or_default() + bytes;
        let Some(free) = self.limit.checked_sub(self.all + beside + bytes) else { return Err(ShareFull::All) };
        let takes = own <= GUARANTEED_BYTES || own <= FREE_SPACE_MULTIPLE * free.saturating_sub(self.limit / RESERVE_DIVISOR);
        if takes { Ok(()) } else { Err(ShareFull::Namespace) }
    }

    /// A namespace takes `bytes`. Returns its shared name.
    pub fn take(&mut self, namespace: &str, bytes: usize) -> Arc<str> {
        self.all += bytes;
        let name = self.of.get_key_value(namespace).map_or_else(|| Arc::from(namespace), |(name, _)| Arc::clone(name));
        *self.of.entry(Arc::clone(&name)).or_default() += bytes;
        name
    }

    /// A namespace gives `bytes` back.
    pub fn give_back(&mut self, namespace: &str, bytes: usize) {
        self.all = self.all.saturating_sub(bytes);
        if let Some(own) = self.of.get_mut(namespace) {
            *own = own.saturating_sub(bytes);
            if *own == 0 {
                self.of.remove(namespace);
            }
        }
    }

    /// All taken bytes.
    pub fn all(&self) -> usize {
        self.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes `step` bytes at a time until a limit is reached, and returns that limit.
    fn fill(shares: &mut Shares, namespace: &str, step: usize) -> ShareFull {
        for _ in 0..=LIMIT / step {
            match shares.room(namespace, step, 0) {
                Ok(()) => drop(shares.take(namespace, step)),
                Err(full) => return full,
            }
        }
        panic!("{namespace} takes more than there is")
    }

    const LIMIT: usize = 12 * 1024 * 1024;

    #[test]
    fn one_alone_gets_half_and_the_others_go_on() {
        let mut shares = Shares::new(LIMIT);
        assert_eq!(fill(&mut shares, "greedy", 1024), ShareFull::Namespace);
        assert_eq!(shares.all(), LIMIT / 2);
        assert_eq!(shares.room("quiet", 1024, 0), Ok(()));
        assert_eq!(fill(&mut shares, "second", 1024), ShareFull::Namespace);
        assert!(shares.all() < LIMIT * 3 / 4);
        assert_eq!((shares.room("quiet", 1024, 0), shares.room("greedy", 1024, 0)), (Ok(()), Err(ShareFull::Namespace)));
        shares.give_back("greedy", LIMIT / 2);
        assert_eq!(shares.room("greedy", 1024, 0), Ok(()));
    }

    #[test]
    fn at_the_bound_nobody_gets_anything() {
        let mut shares = Shares::new(LIMIT);
        shares.take("one", LIMIT - 10);
        assert_eq!(shares.room("other", 10, 1), Err(ShareFull::All));
        assert_eq!(shares.room("other", 11, 0), Err(ShareFull::All));
        assert_eq!((shares.room("other", 10, 0), shares.room("one", 1, 0)), (Ok(()), Err(ShareFull::Namespace)));
        shares.give_back("one", LIMIT - 10);
        assert_eq!(shares, Shares::new(LIMIT), "nobody who has nothing is remembered");
    }

    #[test]
    fn many_that_take_all_they_can_leave_the_reserve() {
        let mut shares = Shares::new(LIMIT);
        for one in 0..40 {
            assert_eq!(fill(&mut shares, &format!("greedy-{one}"), 1024), ShareFull::Namespace);
        }
        assert_eq!(shares.room("new", GUARANTEED_BYTES, 0), Ok(()));
    }
}
