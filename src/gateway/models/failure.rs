//! Why a model call has no response to pass on: what that means for the provider's circuit, and the refusal for the
//! client.

use axum::http::StatusCode;

use super::upstream::UpstreamError;
use crate::wire::meter::{FaultCause, Outcome};
use crate::wire::{Code, Refusal};

/// Why there is no response to pass on.
pub enum Failure {
    Refused(Refusal),
    Upstream(UpstreamError),
    Slow,
    Redirect,
    Encoded,
    /// The provider refuses the team's credential. Its message may repeat the credential.
    Credential(StatusCode),
}

impl Failure {
    /// What this failure shows about the provider.
    pub fn outcome(&self) -> Outcome {
        let failed = |why| Outcome::Failed { why, retry_after: None };
        match self {
            Self::Upstream(UpstreamError::Unreachable { .. }) => failed(FaultCause::Unreachable),
            Self::Upstream(UpstreamError::Broken { .. }) => failed(FaultCause::Broken),
            Self::Slow => failed(FaultCause::Late),
            // Caused by Spillway or by settings, not by the provider.
            Self::Refused(_)
            | Self::Upstream(UpstreamError::NotListed(_) | UpstreamError::Address { .. })
            | Self::Redirect
            | Self::Encoded
            | Self::Credential(_) => Outcome::Nothing,
        }
    }

    /// Whether the provider may have worked on the call.
    pub fn may_have_cost(&self) -> bool {
        match self {
            Self::Refused(_) | Self::Redirect | Self::Credential(_) => false,
            Self::Upstream(trouble) => trouble.may_have_cost(),
            Self::Slow | Self::Encoded => true,
        }
    }

    /// The label for metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Refused(_) => "refused",
            Self::Upstream(_) | Self::Redirect | Self::Encoded => "unreachable",
            Self::Slow => "slow",
            Self::Credential(_) => "provider_error",
        }
    }

    /// The refusal for the client.
    pub fn refusal(&self, origin: &str) -> Refusal {
        // A lasting failure has the status 400, which clients show and do not retry.
        let lasting = |message: String| Refusal::new(Code::ModelNotAllowed, message);
        let passing = |message: String| Refusal::new(Code::GovernorAway, message).retry_after(5);
        match self {
            Self::Refused(refusal) => refusal.clone(),
            Self::Upstream(trouble) if trouble.passes() => passing(trouble.to_string()),
            Self::Upstream(trouble) => lasting(trouble.to_string()),
            Self::Slow => passing(format!("{origin} did not start its response in time; try again")),
            Self::Redirect => lasting(format!("{origin} answers with a redirect, which is not followed: correct spec.models[].origin")),
            Self::Credential(status) => lasting(format!(
                "{origin} refuses the team's credential for this call ({}): correct the Secret that spec.models[].credentialsRef names, or \
                 the rights of its account. The provider's message is not shown, because it may contain the credential",
                status.as_u16(),
            )),
            Self::Encoded => {
                lasting(format!("{origin} answers with a content encoding that was not requested, so its tokens cannot be counted"))
            }
        }
    }
}
