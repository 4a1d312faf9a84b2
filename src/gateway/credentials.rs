//! The team's credentials for models and for git: a Secret in the pool's namespace that names its origin. It is sent to no other
//! origin.
//!
//! The gateway may read only Secrets that a RoleBinding in that namespace names. A credential is cached for a short
//! time, and read again after the provider refused it. A credential is never written to a log or an error.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::HeaderValue;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use tokio::time::Instant;

use crate::cluster::ttl_cache::TtlCache;
use crate::origins::Origin;
use crate::policy::git::Denial;
use crate::wire::{Code, Refusal};

/// Type of the Secret with a credential for models.
pub const MODEL_SECRET_TYPE: &str = "spillway.dev/model-credential";
/// Type of the Secret with a credential for git.
pub const GIT_SECRET_TYPE: &str = "spillway.dev/git-credential";
/// The user of a git credential that names none. Servers that take tokens ignore it.
const DEFAULT_GIT_USER: &str = "git";
/// How long a valid credential is cached.
const CREDENTIAL_TTL: Duration = Duration::from_secs(30);
/// How long an invalid credential is cached, so that a flood of calls does not become a flood of reads.
const INVALID_CREDENTIAL_TTL: Duration = Duration::from_secs(2);
/// How long the read of a Secret may take.
const CREDENTIAL_READ_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest pause that a provider can request.
const MAX_PROVIDER_PAUSE: Duration = Duration::from_secs(300);
/// Cached Secrets.
const MAX_CACHED_CREDENTIALS: usize = 4096;
/// Paused models of one credential. Calls of further models still go to the provider, which refuses them itself.
const MAX_PAUSED_MODELS: usize = 64;

/// What a credential is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Calls of models: the key itself.
    Models,
    /// Git: a token, with a user, as `Basic` authentication.
    Git,
}

impl Purpose {
    /// The only type of Secret that is used.
    fn secret_type(self) -> &'static str {
        match self {
            Self::Models => MODEL_SECRET_TYPE,
            Self::Git => GIT_SECRET_TYPE,
        }
    }

    /// The field of a pool that names the Secret.
    fn field(self) -> &'static str {
        match self {
            Self::Models => "spec.models[].credentialsRef",
            Self::Git => "spec.workspace.git.credentialsRef",
        }
    }

    /// The start of the name of the Role in our manifest.
    fn role(self) -> &'static str {
        match self {
            Self::Models => "spillway-model",
            Self::Git => "spillway-git",
        }
    }

    /// A refusal that a retry does not solve.
    fn permanent_refusal(self, message: String) -> Refusal {
        match self {
            // Its status is 400, which clients show and do not retry.
            Self::Models => Refusal::new(Code::ModelNotAllowed, message),
            Self::Git => Refusal::new(Code::GitDenied, message).reason(Denial::CredentialForbidden.reason()),
        }
    }
}

/// A credential, as it is sent. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(HeaderValue);

impl Token {
    /// Its text for a header.
    pub fn header_value(&self) -> &HeaderValue {
        &self.0
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Token(..)")
    }
}

type Key = (String, String);
/// A credential and its origin, or a message that says what is wrong with it.
type ReadOutcome = Result<(Origin, Token), String>;

/// Reads credentials. Concurrent calls that need the same credential share one read.
pub struct Credentials {
    reader: Arc<Reader>,
    known: TtlCache<Key, Result<ReadOutcome, Refusal>>,
    paused: Pauses,
}

/// Until when calls are paused, by credential and model.
#[derive(Default)]
struct Pauses(Mutex<HashMap<Key, HashMap<String, Instant>>>);

struct Reader {
    purpose: Purpose,
    client: Client,
    /// The ServiceAccount of this gateway and its namespace, for manifests in refusals.
    account: (String, String),
}

impl Credentials {
    /// Reads with `client`, as the ServiceAccount `account` in `namespace`.
    pub fn new(purpose: Purpose, client: Client, account: &str, namespace: &str) -> Self {
        // An invalid credential is cached briefly, because people correct it and try again at once.
        let keep = |read: &Result<ReadOutcome, Refusal>| match read {
            Ok(Ok(_)) => CREDENTIAL_TTL,
            Ok(Err(_)) => INVALID_CREDENTIAL_TTL,
            Err(_) => Duration::ZERO,
        };
        let reader = Reader { purpose, client, account: (account.to_owned(), namespace.to_owned()) };
        Self { reader: Arc::new(reader), known: TtlCache::new(keep, MAX_CACHED_CREDENTIALS), paused: Pauses::default() }
    }

    /// The credential in the Secret `name` of `namespace`, for `origin`.
    pub async fn get(&self, namespace: &str, name: &str, origin: &Origin) -> Result<Token, Refusal> {
        let key = (namespace.to_owned(), name.to_owned());
        let (reader, own) = (self.reader.clone(), key.clone());
        let read = self.known.get(key, |_| Ok::<_, Refusal>(async move { reader.read(&own.0, &own.1).await })).await??;
        let purpose = self.reader.purpose;
        let (bound, token) = read.map_err(|message| purpose.permanent_refusal(message))?;
        if bound != *origin {
            return Err(purpose.permanent_refusal(format!(
                "CredentialsForbidden: the Secret {namespace}/{name} is for {bound}, but the call goes to {origin}. A credential is sent \
                 only to the origin that it names. Name the right Secret in {}, or correct `origin` in the Secret",
                purpose.field()
            )));
        }
        Ok(token)
    }

    /// Pauses calls of this model with this credential for the time that the provider requested, at most
    /// `MAX_PROVIDER_PAUSE`. Most providers count by model. With a provider that counts all models together, each model
    /// is paused after its own first refusal.
    pub fn pause(&self, namespace: &str, name: &str, model: &str, within: Duration) {
        self.paused.pause((namespace.to_owned(), name.to_owned()), model, Instant::now() + within.min(MAX_PROVIDER_PAUSE));
    }

    /// How long calls of this model with this credential are still paused.
    pub fn paused(&self, namespace: &str, name: &str, model: &str) -> Option<Duration> {
        self.paused.left(&(namespace.to_owned(), name.to_owned()), model)
    }

    /// The provider refused the credential: the next call reads it again.
    pub fn forget(&self, namespace: &str, name: &str) {
        self.known.forget(&(namespace.to_owned(), name.to_owned()));
    }
}

impl Pauses {
    fn pause(&self, key: Key, model: &str, until: Instant) {
        let mut paused = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if paused.len() >= MAX_CACHED_CREDENTIALS && !paused.contains_key(&key) {
            paused.retain(|_, models| models.values().any(|until| *until > now));
            if paused.len() >= MAX_CACHED_CREDENTIALS {
                return;
            }
        }
        let models = paused.entry(key).or_default();
        models.retain(|_, until| *until > now);
        if models.len() < MAX_PAUSED_MODELS || models.contains_key(model) {
            let known = models.entry(model.to_owned()).or_insert(until);
            *known = until.max(*known);
        }
    }

    fn left(&self, key: &Key, model: &str) -> Option<Duration> {
        let paused = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let until = paused.get(key)?.get(model)?;
        Some(until.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
    }
}

impl Reader {
    /// Err: the Secret cannot be read now. The inner Err says what is wrong with it.
    async fn read(&self, namespace: &str, name: &str) -> Result<ReadOutcome, Refusal> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let unknown = |why: String| {
            tracing::warn!(namespace, secret = name, why, "cannot read the Secret of a credential");
            Refusal::new(Code::GovernorAway, "the credential cannot be read now; try again").retry_after(5)
        };
        let read = tokio::time::timeout(CREDENTIAL_READ_TIMEOUT, secrets.get(name)).await.map_err(|_| unknown("no answer".into()))?;
        Ok(match read {
            Ok(secret) => judge(self.purpose, &secret, namespace, name),
            Err(kube::Error::Api(status)) if status.code == 404 => Err(format!(
                "CredentialsForbidden: the Secret {namespace}/{name} does not exist. {} of the pool names it. Create it with the type {} \
                 and the keys `origin` and `token`:\n{}",
                self.purpose.field(),
                self.purpose.secret_type(),
                self.manifest(namespace, name, true)
            )),
            Err(kube::Error::Api(status)) if status.code == 403 => Err(format!(
                "CredentialsForbidden: the gateway may not read the Secret {namespace}/{name}, which spec.models[].credentialsRef of the \
                 pool names. Create the Secret if it does not exist, and a Role and a RoleBinding in {namespace} that let ServiceAccount \
                 {own}/{account} get it:\n{}",
                self.manifest(namespace, name, false),
                account = self.account.0,
                own = self.account.1
            )),
            Err(error) => return Err(unknown(error.to_string())),
        })
    }

    /// The manifest that makes the Secret readable.
    fn manifest(&self, namespace: &str, name: &str, secret: bool) -> String {
        let (account, own) = &self.account;
        let (type_, role) = (self.purpose.secret_type(), self.purpose.role());
        let secret = if secret {
            format!(
                "apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}, namespace: {namespace}}}\ntype: {type_}\n\
                 stringData: {{origin: \"https://...\", token: \"...\"}}\n---\n"
            )
        } else {
            String::new()
        };
        format!(
            "{secret}apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {{name: {role}-{name}, namespace: {namespace}}}\n\
             rules: [{{apiGroups: [\"\"], resources: [secrets], resourceNames: [{name}], verbs: [get]}}]\n---\n\
             apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {{name: {role}-{name}, namespace: {namespace}}}\n\
             roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: {role}-{name}}}\n\
             subjects: [{{kind: ServiceAccount, name: {account}, namespace: {own}}}]\n"
        )
    }
}

fn judge(purpose: Purpose, secret: &Secret, namespace: &str, name: &str) -> ReadOutcome {
    let wrong = |what: &str| format!("CredentialsForbidden: the Secret {namespace}/{name} is not a valid credential: {what}");
    if secret.type_.as_deref() != Some(purpose.secret_type()) {
        // A user who may name a Secret in a pool must not be able to send out other Secrets.
        let type_ = purpose.secret_type();
        return Err(wrong(&format!("its type is not {type_}. The type cannot be changed: delete it and create it again")));
    }
    let value = |key: &str| {
        let bytes = secret.data.as_ref().and_then(|data| data.get(key));
        bytes.and_then(|bytes| std::str::from_utf8(&bytes.0).ok()).map(str::trim).filter(|text| !text.is_empty())
    };
    let text = |key: &str| value(key).ok_or_else(|| wrong(&format!("it has no `{key}`")));
    let origin = Origin::parse(text("origin")?).map_err(|error| wrong(&error))?;
    let token = match purpose {
        Purpose::Models => text("token")?.to_owned(),
        Purpose::Git => {
            let user = value("username").unwrap_or(DEFAULT_GIT_USER);
            if user.contains(':') {
                return Err(wrong("its `username` has a colon"));
            }
            format!("Basic {}", BASE64.encode(format!("{user}:{}", text("token")?)))
        }
    };
    let mut token = HeaderValue::from_str(&token).map_err(|_| wrong("its `token` has characters that a header cannot have"))?;
    token.set_sensitive(true);
    Ok((origin, Token(token)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::ByteString;
    use kube::client::Body;

    fn secret(type_: &str, data: &[(&str, &str)]) -> Secret {
        let data = data.iter().map(|(key, value)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec()))).collect();
        Secret { type_: Some(type_.into()), data: Some(data), ..Secret::default() }
    }

    #[test]
    fn only_a_whole_credential_is_one() {
        let whole = [("origin", "https://api.openai.com"), ("token", " sk-1\n")];
        let (origin, token) = judge(Purpose::Models, &secret(MODEL_SECRET_TYPE, &whole), "ns", "s").expect("a credential");
        assert_eq!((origin.to_string().as_str(), token.0.as_bytes()), ("https://api.openai.com", &b"sk-1"[..]));
        assert_eq!(format!("{token:?}"), "Token(..)");
        for (type_, data, what) in [
            ("Opaque", &whole[..], "type"),
            (MODEL_SECRET_TYPE, &whole[..1], "token"),
            (MODEL_SECRET_TYPE, &whole[1..], "origin"),
            (MODEL_SECRET_TYPE, &[("origin", "http://api.openai.com"), ("token", "t")], "https"),
            (MODEL_SECRET_TYPE, &[("origin", "https://api.openai.com"), ("token", "a\nb")], "header"),
        ] {
            let error = judge(Purpose::Models, &secret(type_, data), "ns", "s").expect_err(what);
            assert!(error.contains(what) && error.contains("ns/s") && !error.contains("sk-1"), "{error}");
        }
    }

    #[test]
    fn a_git_credential_is_sent_with_its_user() {
        let judged = |data: &[(&str, &str)]| judge(Purpose::Git, &secret(GIT_SECRET_TYPE, data), "ns", "s");
        let origin = ("origin", "https://git.example.com");
        let (_, token) = judged(&[origin, ("token", "t")]).expect("a credential");
        assert_eq!(token.0.to_str().ok(), Some("Basic Z2l0OnQ="), "git:t");
        let (_, token) = judged(&[origin, ("token", "t"), ("username", "robot")]).expect("a credential");
        assert_eq!(token.0.to_str().ok(), Some("Basic cm9ib3Q6dA=="), "robot:t");
        assert!(judged(&[origin, ("token", "t"), ("username", "a:b")]).is_err_and(|error| error.contains("username")));
        let of_models = judge(Purpose::Git, &secret(MODEL_SECRET_TYPE, &[origin, ("token", "t")]), "ns", "s");
        assert!(of_models.is_err_and(|error| error.contains(GIT_SECRET_TYPE)), "a key of models is not sent to a git server");
    }

    #[tokio::test(start_paused = true)]
    async fn a_model_that_is_paused_pauses_no_other_and_names_are_bounded() {
        let (pauses, key) = (Pauses::default(), |name: &str| ("n".to_owned(), name.to_owned()));
        let until = |seconds| Instant::now() + Duration::from_secs(seconds);
        pauses.pause(key("s"), "large", until(40));
        pauses.pause(key("s"), "large", until(10));
        assert_eq!(pauses.left(&key("s"), "large"), Some(Duration::from_secs(40)), "the longest counts");
        assert_eq!((pauses.left(&key("s"), "small"), pauses.left(&key("t"), "large")), (None, None));
        (0..1000).for_each(|number| pauses.pause(key("s"), &format!("made-up-{number}"), until(20)));
        assert_eq!(pauses.0.lock().expect("nobody panicked")[&key("s")].len(), MAX_PAUSED_MODELS);
        assert!(pauses.left(&key("s"), "large").is_some());
        tokio::time::advance(Duration::from_secs(41)).await;
        assert_eq!(pauses.left(&key("s"), "large"), None);
        (0..2 * MAX_CACHED_CREDENTIALS).for_each(|number| pauses.pause(key(&number.to_string()), "large", until(20)));
        assert_eq!(pauses.0.lock().expect("nobody panicked").len(), MAX_CACHED_CREDENTIALS);
        tokio::time::advance(Duration::from_secs(21)).await;
        pauses.pause(key("new"), "large", until(20));
        assert_eq!(pauses.0.lock().expect("nobody panicked").len(), 1, "those that are over make room");
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_is_believed_for_five_minutes_at_most() {
        let silent = |_: http::Request<Body>| std::future::pending::<Result<http::Response<Body>, std::convert::Infallible>>();
        let credentials = Credentials::new(Purpose::Models, Client::new(tower::service_fn(silent), "n"), "gateway", "n");
        for (name, said, believed) in [("short", 40, 40), ("long", 86_400, 300)] {
            credentials.pause("n", name, "large", Duration::from_secs(said));
            assert_eq!(credentials.paused("n", name, "large"), Some(Duration::from_secs(believed)), "{said} s");
        }
        tokio::time::advance(Duration::from_secs(301)).await;
        assert_eq!(credentials.paused("n", "long", "large"), None);
    }
}
