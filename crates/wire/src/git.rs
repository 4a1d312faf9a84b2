//! Git: the requests of a program's git client for the repository of its pool.
//!
//! `/git/HOST[:PORT]/PATH/...` carries one request of git's smart HTTP protocol. The gateway asks the governor which repository
//! the agent may use ([`GitTargetRequest`]).

use serde::{Deserialize, Serialize};

use crate::body::{BoundedBody, at_most};
use crate::work::LeaseRef;

/// Start of the paths of git requests, at the sidecar's git port and at the gateway.
pub const GIT_PATH_PREFIX: &str = "/git/";
/// The most characters of the name of a repository or a ref in a request.
const MAX_NAME_CHARS: usize = 1400;

/// `POST /governor/v1/git`: which repository an agent may use, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GitTargetRequest {
    /// The repository that the program asks for, as `HOST[:PORT]/PATH`.
    pub repository: String,
    /// Whether the program pushes.
    pub push: bool,
    /// The item that the program works on, as the sidecar knows it.
    #[serde(default)]
    pub item: Option<LeaseRef>,
    /// The gateway has denied the request: the governor counts the denial and allows nothing.
    #[serde(default)]
    pub denied: Option<GitDenial>,
}

/// A denial by the gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GitDenial {
    /// The reason, in one word.
    pub reason: String,
    /// The ref, or the repository.
    pub name: String,
}

/// The repository of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GitTarget {
    /// Its URL.
    pub remote: String,
    /// Secret with the credential, in the agent's namespace.
    pub credential: Option<String>,
    /// What may be pushed. None: nothing.
    pub push: Option<GitPush>,
}

/// What an agent may push.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GitPush {
    /// Pattern of full names of refs; `*` stands for any characters.
    pub refs: String,
    /// Whether refs that exist may be moved.
    pub overwrite: bool,
    /// Whether refs may be deleted.
    pub delete: bool,
    /// Whether only the commit that the pod announced may be pushed ([`COMMIT_HEADER`](crate::changeset::COMMIT_HEADER)).
    #[serde(default)]
    pub changeset_only: bool,
}

impl BoundedBody for GitTargetRequest {
    fn check(&self) -> Result<(), (&'static str, String)> {
        at_most("repository", &self.repository, MAX_NAME_CHARS)?;
        let Some(GitDenial { reason, name }) = &self.denied else { return Ok(()) };
        at_most("denied.reason", reason, 63)?;
        at_most("denied.name", name, MAX_NAME_CHARS)
    }
}
