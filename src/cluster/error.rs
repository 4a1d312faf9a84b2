//! Errors of calls to the API server, and their classes.

use kube::core::Status;

/// An error of a call, with the call's name and its source.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A request failed.
    #[error("{call}: {}", message_of(source))]
    Api {
        /// The call, in words.
        call: &'static str,
        /// The error of the client.
        #[source]
        source: Box<kube::Error>,
    },
    /// Another leader has written, so this process must not write any more.
    #[error("{call}: another leader with a higher owner epoch has written; this process has lost its leadership")]
    Fenced {
        /// The call, in words.
        call: &'static str,
    },
    /// The Lease was not renewed in time.
    #[error("this process does not hold the leader lease any more")]
    NotLeading,
    /// Other writers changed the object before each attempt.
    #[error("{call}: other writers changed the object before each attempt")]
    Contended {
        /// The call, in words.
        call: &'static str,
    },
}

/// The class of an error, which decides the reaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The object was changed before the write: read it again, and decide again.
    Conflict,
    /// The object exists already.
    AlreadyExists,
    /// The object does not exist.
    NotFound,
    /// The namespace's quota refuses.
    QuotaExceeded,
    /// The namespace is being deleted.
    Terminating,
    /// The server refuses for a reason that only a person can correct.
    Refused,
    /// This process does not lead any more.
    LostLeadership,
    /// The server did not answer, or asks to come back later.
    Unavailable,
}

impl Class {
    /// The label for metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Conflict => "conflict",
            Self::AlreadyExists => "already_exists",
            Self::NotFound => "not_found",
            Self::QuotaExceeded => "quota_exceeded",
            Self::Terminating => "terminating",
            Self::Refused => "refused",
            Self::LostLeadership => "lost_leadership",
            Self::Unavailable => "unavailable",
        }
    }
}

impl Error {
    /// Adds the name of the call to its error.
    pub fn of(call: &'static str) -> impl FnOnce(kube::Error) -> Self {
        move |source| Self::Api { call, source: Box::new(source) }
    }

    /// As [`of`](Self::of), for a write of a status with our owner epoch. Only there a refusal can mean that another
    /// leader has written. Elsewhere the same message could come from a user's text in an object.
    pub fn of_status_write(call: &'static str) -> impl FnOnce(kube::Error) -> Self {
        move |source| {
            let fenced = matches!(&source, kube::Error::Api(status) if is_fence(status));
            if fenced { Self::Fenced { call } } else { Self::Api { call, source: Box::new(source) } }
        }
    }

    /// The class of the error.
    pub fn class(&self) -> Class {
        match self {
            Self::Fenced { .. } | Self::NotLeading => Class::LostLeadership,
            Self::Contended { .. } => Class::Unavailable,
            Self::Api { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => class_of(status),
                // Every other variant is about the connection or the reading of the answer, and is retried.
                _ => Class::Unavailable,
            },
        }
    }

    /// The API server's own message, for conditions and events.
    pub fn message(&self) -> String {
        match self {
            Self::Api { source, .. } => message_of(source),
            Self::Fenced { .. } | Self::NotLeading | Self::Contended { .. } => self.to_string(),
        }
    }
}

fn message_of(source: &kube::Error) -> String {
    match source {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        other => other.to_string(),
    }
}

/// Whether the CRD's rule against a falling owner epoch refused the status.
fn is_fence(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    status.code == 422 && causes.into_iter().any(|cause| cause.field == "status.governorEpoch" && cause.message.contains("must not fall"))
}

fn class_of(status: &Status) -> Class {
    let has_cause = |reason: &str| status.details.iter().flat_map(|details| &details.causes).any(|cause| cause.reason == reason);
    match status.code {
        404 => Class::NotFound,
        409 if status.reason == "AlreadyExists" => Class::AlreadyExists,
        409 => Class::Conflict,
        403 if has_cause("NamespaceTerminating") => Class::Terminating,
        // For example an admission webhook is down: the server answers with the reason.
        500 => Class::Refused,
        403 if status.message.contains("status unknown for quota") => Class::QuotaExceeded,
        403 if status.message.contains("exceeded quota")
            || status.message.contains("must specify limits")
            || status.message.contains("failed quota") =>
        {
            Class::QuotaExceeded
        }
        400 | 401 | 403 | 405 | 413 | 415 | 422 => Class::Refused,
        _ => Class::Unavailable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn api(code: u16, reason: &str, message: &str) -> Error {
        let status = Status { status: None, code, message: message.into(), metadata: None, reason: reason.into(), details: None };
        Error::of("test")(kube::Error::Api(Box::new(status)))
    }

    #[test]
    fn each_answer_has_its_consequence() {
        let cases = [
            (api(409, "AlreadyExists", ""), Class::AlreadyExists),
            (api(409, "Conflict", ""), Class::Conflict),
            (api(404, "NotFound", ""), Class::NotFound),
            (api(403, "Forbidden", r#"pods "x" is forbidden: exceeded quota: q, requested: pods=1"#), Class::QuotaExceeded),
            (api(403, "Forbidden", r#"pods "x" is forbidden: violates PodSecurity"#), Class::Refused),
            (api(422, "Invalid", "spec.image: Required value"), Class::Refused),
            (api(422, "Invalid", "spec.nodeSelector: Invalid value: \"governorEpoch must not fall\""), Class::Refused),
            (api(429, "TooManyRequests", ""), Class::Unavailable),
            (api(500, "InternalError", "failed calling webhook"), Class::Refused),
            (api(503, "ServiceUnavailable", ""), Class::Unavailable),
        ];
        for (error, class) in cases {
            assert_eq!(error.class(), class, "{error}");
        }
    }

    #[test]
    fn only_a_refused_status_write_can_say_that_leadership_is_lost() {
        use kube::core::response::{StatusCause, StatusDetails};
        let refused = |field: &str| {
            let cause =
                StatusCause { reason: "FieldValueInvalid".into(), message: "governorEpoch must not fall: ...".into(), field: field.into() };
            let details = StatusDetails {
                name: String::new(),
                group: String::new(),
                kind: String::new(),
                uid: String::new(),
                causes: vec![cause],
                retry_after_seconds: 0,
            };
            kube::Error::Api(Box::new(Status {
                status: None,
                code: 422,
                message: String::new(),
                metadata: None,
                reason: "Invalid".into(),
                details: Some(details),
            }))
        };
        assert_eq!(Error::of_status_write("test")(refused("status.governorEpoch")).class(), Class::LostLeadership);
        assert_eq!(Error::of_status_write("test")(refused("spec.nodeSelector")).class(), Class::Refused);
        assert_eq!(Error::of("test")(refused("status.governorEpoch")).class(), Class::Refused);
    }

    #[test]
    fn the_servers_words_are_passed_on() {
        assert_eq!(api(403, "Forbidden", "exceeded quota: q").message(), "exceeded quota: q");
        assert_eq!(api(403, "Forbidden", "exceeded quota: q").to_string(), "test: exceeded quota: q");
    }
}
