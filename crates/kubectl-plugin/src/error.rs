//! The errors of the plugin. A message says what is wrong and what to do. A refusal of the server keeps the server's message.

use std::error::Error as StdError;

use kube::Resource;

/// Why a command stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The object is not there.
    #[error("{kind} \"{name}\" not found in namespace \"{namespace}\"; `kubectl get {plural} -n {namespace}` lists those that exist")]
    NotFound {
        /// Kind of the object.
        kind: String,
        /// Its plural, as kubectl accepts it.
        plural: String,
        /// Name of the object.
        name: String,
        /// The namespace that was searched.
        namespace: String,
    },
    /// The namespace is not there.
    #[error("namespace \"{0}\" not found; `kubectl get namespaces` lists those that exist, -n selects one")]
    NoNamespace(String),
    /// The kind is not there.
    #[error("the API server does not know {plural}.{group}: Spillway is not installed in this cluster, or --context selects another cluster", group = crate::api::GROUP)]
    NotServed {
        /// Plural of the kind.
        plural: String,
    },
    /// The name is taken.
    #[error("{kind} \"{name}\" exists already in namespace \"{namespace}\"; choose another --name, or omit it to get a generated name")]
    Exists {
        /// Kind of the object.
        kind: String,
        /// The name.
        name: String,
        /// Its namespace.
        namespace: String,
    },
    /// The server refused.
    #[error("from server ({reason}): {message}")]
    Server {
        /// The reason of the server's Status.
        reason: String,
        /// The message of the server's Status.
        message: String,
    },
    /// The server did not answer.
    #[error("no answer from the API server: {}; check --request-timeout, --context and --kubeconfig", with_causes(.0.as_ref()))]
    Unanswered(#[source] Box<kube::Error>),
    /// The answer cannot be parsed.
    #[error("cannot read an answer of the API server: {}; install the plugin in the version of the operator (`{program} version` prints the plugin's version)", with_causes(.0.as_ref()), program = super::PROGRAM_NAME)]
    Answer(#[source] Box<kube::Error>),
    /// There is no usable kubeconfig.
    #[error("cannot connect: {}; --kubeconfig and --context select the cluster", with_causes(.0.as_ref()))]
    Config(#[source] Box<dyn StdError + Send + Sync>),
    /// The result cannot be written in the requested format.
    #[error("cannot write the result: {0}")]
    Format(String),
    /// The command cannot run with these arguments, or in this state of the object.
    #[error("{0}")]
    Usage(String),
}

impl Error {
    /// Converts the error of a call on the object `name` of kind `K`. `name` is empty if the call names no object, as in a list.
    pub fn of<K: Resource<DynamicType = ()>>(namespace: &str, name: &str) -> impl FnOnce(kube::Error) -> Self {
        move |source| {
            let status = match source {
                kube::Error::Api(status) => status,
                kube::Error::SerdeError(_) | kube::Error::FromUtf8(_) => return Self::Answer(Box::new(source)),
                // Every other variant is about reaching the server: connecting, TLS, credentials, time-outs.
                _ => return Self::Unanswered(Box::new(source)),
            };
            let (kind, plural) = (K::kind(&()).into_owned(), K::plural(&()).into_owned());
            let about = status.details.as_ref().map(|details| (details.kind.as_str(), details.name.as_str()));
            match (status.code, about) {
                (404, Some(("namespaces", missing))) => Self::NoNamespace(missing.to_owned()),
                (404, Some((_, missing))) if !name.is_empty() && missing == name => {
                    Self::NotFound { kind, plural, name: name.to_owned(), namespace: namespace.to_owned() }
                }
                (404, _) => Self::NotServed { plural },
                (409, _) if status.reason == "AlreadyExists" => {
                    Self::Exists { kind, name: name.to_owned(), namespace: namespace.to_owned() }
                }
                _ => {
                    let reason = if status.reason.is_empty() { status.code.to_string() } else { status.reason };
                    Self::Server { reason, message: status.message }
                }
            }
        }
    }
}

/// An error with its causes. A cause that the text already contains is left out.
fn with_causes(error: &(dyn StdError + 'static)) -> String {
    let mut told = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        if !told.contains(&words) {
            told.push_str(": ");
            told.push_str(&words);
        }
        next = cause.source();
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::AgentPool;
    use serde_json::{Value, json};

    fn told(status: Value) -> String {
        let status = serde_json::from_value(status).expect("a Status");
        Error::of::<AgentPool>("n", "p")(kube::Error::Api(status)).to_string()
    }

    #[test]
    fn each_refusal_names_the_mend_or_keeps_the_servers_words() {
        let cases = [
            (
                json!({"code": 404, "reason": "NotFound", "message": "m", "details": {"name": "p", "kind": "agentpools"}}),
                "AgentPool \"p\" not found in namespace \"n\"; `kubectl get agentpools -n n` lists those that exist",
            ),
            (
                json!({"code": 404, "reason": "NotFound", "message": "m", "details": {"name": "n", "kind": "namespaces"}}),
                "namespace \"n\" not found; `kubectl get namespaces` lists those that exist, -n selects one",
            ),
            (
                json!({"code": 404, "reason": "", "message": "404 page not found"}),
                "the API server does not know agentpools.spillway.dev: Spillway is not installed in this cluster, or --context selects another cluster",
            ),
            (
                json!({"code": 403, "reason": "Forbidden", "message": "agentpools.spillway.dev \"p\" is forbidden: User \"u\" cannot patch"}),
                "from server (Forbidden): agentpools.spillway.dev \"p\" is forbidden: User \"u\" cannot patch",
            ),
            (
                json!({"code": 409, "reason": "AlreadyExists", "message": "m"}),
                "AgentPool \"p\" exists already in namespace \"n\"; choose another --name, or omit it to get a generated name",
            ),
            (json!({"code": 500, "message": "m"}), "from server (500): m"),
        ];
        for (status, expected) in cases {
            assert_eq!(told(status), expected);
        }
    }
}
