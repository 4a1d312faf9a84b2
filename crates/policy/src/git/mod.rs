//! Git: which repository the agents of a pool fetch from, and which refs they push.
//!
//! Pure. It reads the requests of git's smart HTTP protocol as far as a decision needs them, and never the objects of a
//! repository.
//!
//! | file | for |
//! |---|---|
//! | [`repository`] | a repository, as a pool and a program name it |
//! | [`request`] | one HTTP request of a git client |
//! | [`refs`] | names of refs, and the pattern of those that may be pushed |
//! | [`push`] | the ref updates at the start of a push, and the answer to a denied one |
//! | `mod` | the decision |

pub mod push;
pub mod refs;
pub mod repository;
pub mod request;

use std::fmt;

pub use push::{PushHead, PushHeadReader, RefUpdate};
pub use refs::{RefPattern, RefTemplate};
pub use repository::Repository;
pub use request::{Exchange, GitRequest, Service};

/// What agents may do with their repository besides fetching.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushRules {
    /// Refs that may be pushed.
    pub refs: RefPattern,
    /// Whether a ref that exists may be moved. A fast-forward and a forced update look the same to everybody who does not have the
    /// objects, so this allows both.
    pub overwrite: bool,
    /// Whether refs may be deleted.
    pub delete: bool,
    /// Which commits may be pushed.
    pub commits: Commits,
}

/// Commits that may be pushed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Commits {
    /// Any.
    Any,
    /// The commit that the agent's supervisor made of the item's files, from `old` to `new`; `None`: there is none now.
    Changeset(Option<(String, String)>),
}

/// Why a request is denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// The pool names no repository.
    NoRepository,
    /// It is not the repository of the pool.
    OtherRepository,
    /// The pool allows no pushes.
    PushNotAllowed,
    /// The name of the ref is malformed.
    InvalidRef,
    /// The pool does not allow pushes of this ref.
    RefNotAllowed,
    /// It is not the commit of the item's changeset.
    OnlyChangesets,
    /// The ref exists, and the pool allows only new refs.
    OverwriteNotAllowed,
    /// The pool allows no deletion of refs.
    DeleteNotAllowed,
    /// The platform does not list the server of the repository.
    OriginNotListed,
    /// The server has no address that may be connected to.
    NotPublic,
    /// The credential must not be used.
    CredentialForbidden,
    /// The server refuses the request.
    RemoteRefused,
    /// The transfer is larger than the platform allows.
    TooLarge,
    /// The request is not one of the served ones.
    InvalidRequest,
}

impl Denial {
    /// All denials.
    pub const ALL: [Self; 14] = [
        Self::NoRepository,
        Self::OtherRepository,
        Self::PushNotAllowed,
        Self::InvalidRef,
        Self::RefNotAllowed,
        Self::OnlyChangesets,
        Self::OverwriteNotAllowed,
        Self::DeleteNotAllowed,
        Self::OriginNotListed,
        Self::NotPublic,
        Self::CredentialForbidden,
        Self::RemoteRefused,
        Self::TooLarge,
        Self::InvalidRequest,
    ];

    /// The reason, as programs, metrics and logs read it.
    pub fn reason(self) -> &'static str {
        match self {
            Self::NoRepository => "NoRepository",
            Self::OtherRepository => "OtherRepository",
            Self::PushNotAllowed => "PushNotAllowed",
            Self::InvalidRef => "InvalidRef",
            Self::RefNotAllowed => "RefNotAllowed",
            Self::OnlyChangesets => "OnlyChangesets",
            Self::OverwriteNotAllowed => "OverwriteNotAllowed",
            Self::DeleteNotAllowed => "DeleteNotAllowed",
            Self::OriginNotListed => "OriginNotListed",
            Self::NotPublic => "NotPublic",
            Self::CredentialForbidden => "CredentialForbidden",
            Self::RemoteRefused => "RemoteRefused",
            Self::TooLarge => "TooLarge",
            Self::InvalidRequest => "InvalidRequest",
        }
    }

    /// A reason that another process gave, if this version knows it: metrics have no other labels.
    pub fn known_reason(reason: &str) -> &'static str {
        Self::ALL.into_iter().map(Self::reason).find(|known| *known == reason).unwrap_or("other")
    }

    /// Whether the program asked for something that its pool does not allow. Other denials are faults of a configuration.
    pub fn is_violation(self) -> bool {
        match self {
            Self::OtherRepository
            | Self::PushNotAllowed
            | Self::InvalidRef
            | Self::RefNotAllowed
            | Self::OnlyChangesets
            | Self::OverwriteNotAllowed
            | Self::DeleteNotAllowed => true,
            Self::NoRepository
            | Self::OriginNotListed
            | Self::NotPublic
            | Self::CredentialForbidden
            | Self::RemoteRefused
            | Self::TooLarge
            | Self::InvalidRequest => false,
        }
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::NoRepository => "the pool names no repository (spec.workspace.git)",
            Self::OtherRepository => "the pool names another repository (spec.workspace.git.remote)",
            Self::PushNotAllowed => "the pool allows no pushes (spec.workspace.git.push is not set)",
            Self::InvalidRef => "this is no valid name of a ref",
            Self::RefNotAllowed => "the pool does not allow pushes of this ref (spec.workspace.git.push)",
            Self::OnlyChangesets => {
                "agents of this pool push nothing: only the commit that Spillway made of an item's files is pushed (spec.sandbox.changeset)"
            }
            Self::OverwriteNotAllowed => "the ref exists, and the pool allows only new refs (spec.workspace.git.allowOverwrite)",
            Self::DeleteNotAllowed => "the pool allows no deletion of refs (spec.workspace.git.allowDelete)",
            Self::OriginNotListed => "the platform does not list the server of this repository (git.origins of the chart)",
            Self::NotPublic => "the server has no public address, and the platform allows no private one (git.origins of the chart)",
            Self::CredentialForbidden => "the credential of this repository must not be used",
            Self::RemoteRefused => "the server refuses the request",
            Self::TooLarge => "the transfer is larger than the platform allows (git of the chart)",
            Self::InvalidRequest => "this is no request of git's smart HTTP protocol",
        })
    }
}

/// Whether a ref may be updated.
pub fn decide(rules: &PushRules, update: &RefUpdate) -> Result<(), Denial> {
    let PushRules { refs: pattern, overwrite, delete, commits } = rules;
    if !refs::is_valid(&update.name) {
        return Err(Denial::InvalidRef);
    }
    if let Commits::Changeset(commit) = commits
        && commit.as_ref().is_none_or(|(old, new)| (old, new) != (&update.old, &update.new))
    {
        return Err(Denial::OnlyChangesets);
    }
    if !pattern.matches(&update.name) {
        return Err(Denial::RefNotAllowed);
    }
    if update.deletes() {
        return if *delete { Ok(()) } else { Err(Denial::DeleteNotAllowed) };
    }
    if update.creates() || *overwrite { Ok(()) } else { Err(Denial::OverwriteNotAllowed) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZERO: &str = "0000000000000000000000000000000000000000";
    const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

    fn verdict(overwrite: bool, delete: bool, old: &str, new: &str, name: &str) -> Option<&'static str> {
        let refs = RefTemplate::parse("agents/{agent}/*").expect("a pattern").fill("coder-1", "coders", None).expect("no item is named");
        let update = RefUpdate { old: old.into(), new: new.into(), name: name.into() };
        decide(&PushRules { refs, overwrite, delete, commits: Commits::Any }, &update).err().map(Denial::reason)
    }

    #[test]
    fn a_push_makes_new_refs_of_the_pattern_and_nothing_else() {
        let own = "refs/heads/agents/coder-1/fix";
        assert_eq!(verdict(false, false, ZERO, A, own), None);
        assert_eq!(verdict(false, false, A, B, own), Some("OverwriteNotAllowed"));
        assert_eq!(verdict(false, false, A, ZERO, own), Some("DeleteNotAllowed"));
        assert_eq!(verdict(true, false, A, B, own), None);
        assert_eq!(verdict(true, false, A, ZERO, own), Some("DeleteNotAllowed"), "a deletion is no overwrite");
        assert_eq!(verdict(false, true, A, ZERO, own), None);
        assert_eq!(verdict(false, true, A, B, own), Some("OverwriteNotAllowed"));
        for other in ["refs/heads/main", "refs/heads/agents/coder-2/fix", "refs/tags/agents/coder-1/fix", "refs/heads/agents/coder-1"] {
            assert_eq!(verdict(true, true, ZERO, A, other), Some("RefNotAllowed"), "{other}");
        }
        for bad in ["refs/heads/agents/coder-1/../../main", "refs/heads/agents/coder-1/a b", "HEAD", ""] {
            assert_eq!(verdict(true, true, ZERO, A, bad), Some("InvalidRef"), "{bad}");
        }
    }

    #[test]
    fn of_a_changeset_only_its_commit_is_pushed_and_only_to_its_branch() {
        let own = "refs/heads/spillway/fix-1";
        let verdict = |commit: Option<(&str, &str)>, old: &str, new: &str, name: &str| {
            let commits = Commits::Changeset(commit.map(|(old, new)| (old.to_owned(), new.to_owned())));
            let rules = PushRules { refs: RefPattern::filled(own.into()), overwrite: true, delete: false, commits };
            decide(&rules, &RefUpdate { old: old.into(), new: new.into(), name: name.into() }).err()
        };
        assert_eq!(verdict(Some((ZERO, A)), ZERO, A, own), None);
        assert_eq!(verdict(Some((B, A)), B, A, own), None, "an earlier attempt is replaced");
        assert_eq!(verdict(Some((ZERO, A)), ZERO, A, "refs/heads/main"), Some(Denial::RefNotAllowed));
        assert_eq!(verdict(Some((A, ZERO)), A, ZERO, own), Some(Denial::DeleteNotAllowed));
        for (commit, old, new) in
            [(None, ZERO, A), (Some((ZERO, A)), ZERO, B), (Some((ZERO, A)), B, A), (Some((B, A)), ZERO, A), (Some((ZERO, A)), A, ZERO)]
        {
            assert_eq!(verdict(commit, old, new, own), Some(Denial::OnlyChangesets), "{commit:?} {old} {new}");
        }
    }

    #[test]
    fn reasons_of_other_processes_are_known_or_other() {
        for denial in Denial::ALL {
            assert_eq!(Denial::known_reason(denial.reason()), denial.reason());
        }
        assert_eq!(Denial::known_reason("OfNextYear"), "other");
    }
}
