//! Agents outside the cluster: the header with which each of their calls names its agent, and the call that creates an
//! agent.
//!
//! The header proves nothing. The gateway and the governor check it against the user of the call's token.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::body::{BoundedBody, at_most};
use crate::meter::Dialect;

/// Header of each call of an agent outside the cluster. It names the agent, in the format of [`ExternalAgent`].
pub const EXTERNAL_HEADER: &str = "spillway-external";

/// Maximum number of bytes of each part of an [`ExternalAgent`].
const MAX_PLACE_PART_BYTES: usize = 63;

/// An agent outside the cluster: `NAMESPACE/POOL/AGENT/UID`, or `NAMESPACE/POOL` before it has an Agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalAgent {
    /// Namespace of its pool.
    pub namespace: String,
    /// Name of its pool.
    pub pool: String,
    /// Name and uid of its Agent. None: the Agent does not exist yet.
    pub agent: Option<(String, String)>,
}

impl ExternalAgent {
    /// Parses the value of the header. None: the value is invalid.
    pub fn parse(text: &str) -> Option<Self> {
        let sound = |part: &&str| {
            !part.is_empty() && part.len() <= MAX_PLACE_PART_BYTES && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        let parts: Vec<&str> = text.split('/').collect();
        if !parts.iter().all(sound) {
            return None;
        }
        let (namespace, pool, agent) = match parts.as_slice() {
            [namespace, pool] => (namespace, pool, None),
            [namespace, pool, agent, uid] => (namespace, pool, Some(((*agent).to_owned(), (*uid).to_owned()))),
            [..] => return None,
        };
        Some(Self { namespace: (*namespace).to_owned(), pool: (*pool).to_owned(), agent })
    }
}

impl fmt::Display for ExternalAgent {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.namespace, self.pool)?;
        match &self.agent {
            Some((agent, uid)) => write!(out, "/{agent}/{uid}"),
            None => Ok(()),
        }
    }
}

/// A request of a process outside the cluster for an Agent. It can be repeated with the same `Idempotency-Key` header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Enrol {
    /// Version of the program.
    pub version: String,
    /// Name of the agent that is shown to people.
    #[serde(default)]
    pub display_name: Option<String>,
}

impl BoundedBody for Enrol {
    fn check(&self) -> Result<(), (&'static str, String)> {
        at_most("version", &self.version, 64)?;
        let Some(name) = &self.display_name else { return Ok(()) };
        if name.is_empty() || name.chars().any(char::is_control) {
            return Err(("displayName", "must not be empty and must not contain control characters".into()));
        }
        at_most("displayName", name, 63)
    }
}

/// The Agent that was created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Enrolled {
    /// Name of the Agent.
    pub agent: String,
    /// Uid of the Agent.
    pub uid: String,
    /// Type of its pool.
    #[serde(rename = "type")]
    pub type_: String,
    /// Model APIs that the agent may call.
    #[serde(default)]
    pub models: Vec<ModelEntry>,
}

/// A model API of a pool, under the name that agents use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ModelEntry {
    /// Name of the entry, which is the first part of the path of a call.
    pub name: String,
    /// Protocol of the API.
    pub dialect: Dialect,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_it_is_written_and_nothing_else_is_one() {
        let agent = Some(("p-0123".to_owned(), "3f0e-1".to_owned()));
        for place in [None, agent].map(|agent| ExternalAgent { namespace: "team-a".into(), pool: "p".into(), agent }) {
            assert_eq!(ExternalAgent::parse(&place.to_string()), Some(place));
        }
        let long = format!("n/{}", "p".repeat(64));
        for text in ["", "n", "n/", "/p", "n/p/a", "n/p/a/", "n/p/a/u/x", "n/p p", "n/p\u{e9}", "n/..", long.as_str()] {
            assert_eq!(ExternalAgent::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_name_for_people_is_short_and_can_be_shown() {
        let enrol = |name: &str| Enrol { version: "1".into(), display_name: Some(name.into()) }.check().map_err(|(field, _)| field);
        assert_eq!((enrol("alices laptop"), enrol(&"x".repeat(63))), (Ok(()), Ok(())));
        for name in ["", "a\u{1b}[31m", "a\nb", &"x".repeat(64)] {
            assert_eq!(enrol(name), Err("displayName"), "{name:?}");
        }
    }
}
