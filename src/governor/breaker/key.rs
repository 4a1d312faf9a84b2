//! The key of a circuit: its namespace, its guard, and the object that it guards.

use std::fmt;

use crate::api::names::short_hash;
use crate::policy::breaker::Guard;

/// The longest name of a circuit in a status.
const MAX_CIRCUIT_NAME_BYTES: usize = 128;
/// The class of all further models of a provider with too many models.
pub const OVERFLOW_MODEL_CLASS: &str = "other";
/// Hexadecimal digits of the hash at the end of a shortened name.
const NAME_HASH_DIGITS: usize = 16;

/// A circuit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Its namespace.
    pub namespace: String,
    /// Its guard.
    pub guard: Guard,
    /// Its name in the status of a Breaker: `work/POOL`, `work`, `commands`, `models/HOST/CLASS`.
    pub name: String,
}

impl Key {
    /// The work of a pool.
    pub fn work(namespace: &str, pool: &str) -> Self {
        Self { namespace: namespace.to_owned(), guard: Guard::Work, name: format!("work/{pool}") }
    }

    /// The work of all pools of a namespace.
    pub fn project(namespace: &str) -> Self {
        Self { namespace: namespace.to_owned(), guard: Guard::Project, name: "work".to_owned() }
    }

    /// The commands of all agents of the pools that a Breaker guards.
    pub fn commands(namespace: &str) -> Self {
        Self { namespace: namespace.to_owned(), guard: Guard::Commands, name: "commands".to_owned() }
    }

    /// Calls of one class of models at one provider.
    pub fn models(namespace: &str, host: &str, class: &str) -> Self {
        let mut what = format!("models/{host}/{class}");
        if what.len() > MAX_CIRCUIT_NAME_BYTES {
            let hash = short_hash(&[&what], NAME_HASH_DIGITS);
            let end = (0..MAX_CIRCUIT_NAME_BYTES - NAME_HASH_DIGITS).rev().find(|at| what.is_char_boundary(*at)).unwrap_or(0);
            what.truncate(end);
            what.push('-');
            what.push_str(&hash);
        }
        Self { namespace: namespace.to_owned(), guard: Guard::Models, name: what }
    }

    /// Parses the name of a circuit in a status. `None` if this version does not know its guard.
    pub fn named(namespace: &str, what: &str) -> Option<Self> {
        let guard = match what.split('/').next() {
            Some("work") if what == "work" => Guard::Project,
            Some("work") => Guard::Work,
            Some("commands") => Guard::Commands,
            Some("models") => Guard::Models,
            _ => return None,
        };
        Some(Self { namespace: namespace.to_owned(), guard, name: what.to_owned() })
    }

    /// The part after the guard: a pool, or a provider and a class of models. Empty for circuits of everything.
    pub fn target(&self) -> &str {
        self.name.split_once('/').map_or("", |(_, about)| about)
    }

    /// The provider of a class of models. Empty if the name was too long and was shortened.
    pub fn provider(&self) -> Option<&str> {
        match self.guard {
            Guard::Models => Some(self.target().split_once('/').map_or("", |(provider, _)| provider)),
            Guard::Work | Guard::Project | Guard::Session | Guard::Commands => None,
        }
    }

    /// The shared circuit of the further models of this provider.
    pub fn shared(&self) -> Option<Self> {
        match self.provider()? {
            "" => Some(Self { name: format!("models/{OVERFLOW_MODEL_CLASS}"), ..self.clone() }),
            provider => Some(Self::models(&self.namespace, provider, OVERFLOW_MODEL_CLASS)),
        }
    }

    /// The pool of the circuit, if it is for one pool.
    pub fn pool(&self) -> Option<&str> {
        match self.guard {
            Guard::Work => Some(self.target()),
            Guard::Project | Guard::Session | Guard::Commands | Guard::Models => None,
        }
    }

    /// Whether there is only one circuit of this key, which moves when another Breaker applies.
    pub fn moves_between_breakers(&self) -> bool {
        match self.guard {
            Guard::Work | Guard::Project => true,
            Guard::Session | Guard::Commands | Guard::Models => false,
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_again_by_its_name() {
        let long = "h".repeat(300);
        let models = [Key::models("n", "api.example.com", "large"), Key::models("n", &long, "large")];
        for key in [Key::work("n", "p"), Key::project("n"), Key::commands("n")].into_iter().chain(models) {
            assert!(key.name.len() <= MAX_CIRCUIT_NAME_BYTES, "{key}");
            assert_eq!(Key::named("n", &key.name), Some(key));
        }
        assert_ne!(Key::models("n", &long, "large"), Key::models("n", &long, "small"));
        assert_eq!((Key::project("n").pool(), Key::project("n").target(), Key::project("n").moves_between_breakers()), (None, "", true));
        assert_eq!((Key::work("n", "p").pool(), Key::commands("n").pool(), Key::commands("n").target()), (Some("p"), None, ""));
        assert_eq!(Key::named("n", "tomorrow/x"), None);
        let shared = |key: &Key| key.shared().map(|shared| shared.name);
        assert_eq!(shared(&Key::models("n", "h:8443", "a/b")).as_deref(), Some("models/h:8443/other"));
        let other = Key::models("n", &long, "large").shared().expect("of models");
        assert_eq!((other.name.as_str(), other.shared().as_ref()), ("models/other", Some(&other)));
        assert_eq!((shared(&Key::work("n", "p")), Key::commands("n").provider()), (None, None));
    }
}
