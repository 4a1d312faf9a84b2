//! Why a call of a model has no answer to pass on: what that says of the provider, and what the client is told.

use axum::http::StatusCode;

use super::upstream::UpstreamError;
use crate::wire::meter::{FaultCause, Outcome};
use crate::wire::{Code, Refusal};

/// Why there is no answer to pass on.
pub enum Failure {
    Refused(Refusal),
    Trouble(UpstreamError),
    Slow,
    Redirect,
    Encoded,
    /// The provider does not take the team's credential. Its own words may repeat it.
    Credential(StatusCode),
}

impl Failure {
    /// What it says of the provider.
    pub fn outcome(&self) -> Outcome {
        let failed = |why| Outcome::Failed { why, retry_after: None };
        match self {
            Self::Trouble(UpstreamError::Unreachable { .. }) => failed(FaultCause::Unreachable),
            Self::Trouble(UpstreamError::Broken { .. }) => failed(FaultCause::Broken),
            Self::Slow => failed(FaultCause::Late),
            // Of our own making, or of people's.
            Self::Refused(_)
            | Self::Trouble(UpstreamError::NotListed(_) | UpstreamError::Address { .. })
            | Self::Redirect
            | Self::Encoded
            | Self::Credential(_) => Outcome::Nothing,
        }
    }

    /// Whether the provider may have done some of it.
    pub fn may_have_cost(&self) -> bool {
        match self {
            Self::Refused(_) | Self::Redirect | Self::Credential(_) => false,
            Self::Trouble(trouble) => trouble.may_have_cost(),
            Self::Slow | Self::Encoded => true,
        }
    }

    /// As one word, for metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Refused(_) => "refused",
            Self::Trouble(_) | Self::Redirect | Self::Encoded => "unreachable",
            Self::Slow => "slow",
            Self::Credential(_) => "provider_error",
        }
    }

    /// What the client is told.
    pub fn refusal(&self, origin: &str) -> Refusal {
        // What does not pass is a 400, which clients show and do not repeat.
        let lasting = |message: String| Refusal::new(Code::ModelNotAllowed, message);
        let passing = |message: String| Refusal::new(Code::GovernorAway, message).retry_after(5);
        match self {
            Self::Refused(refusal) => refusal.clone(),
            Self::Trouble(trouble) if trouble.passes() => passing(trouble.to_string()),
            Self::Trouble(trouble) => lasting(trouble.to_string()),
            Self::Slow => passing(format!("{origin} did not begin to answer in time")),
            Self::Redirect => lasting(format!("{origin} answers with a redirect, which is not followed: correct spec.models[].origin")),
            Self::Credential(status) => lasting(format!(
                "{origin} refuses the team's credential for this call ({}): correct the Secret that spec.models[].credentialsRef names, or \
                 what its account may use. The provider's words are left out, since they may repeat the credential",
                status.as_u16(),
            )),
            Self::Encoded => lasting(format!("{origin} answers in an encoding that was not asked for, which cannot be metered")),
        }
    }
}
