//! One request and its answer: the caller, the call, and the script's answer. Other modules send it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::header::{AUTHORIZATION, CONTENT_ENCODING, HeaderMap, USER_AGENT};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::ask::{Api, Ask, PresetAnswer, decide};
use crate::chunks::{self, Body};
use crate::count::{Books, Key};
use crate::refusal::{self, Refusal};
use crate::script::{self, Failure, Script};
use crate::turn::{ModelTurn, Stream, reported_usage, string};
use crate::{anthropic, chat, gemini, responses};

/// Target of a redirect. No client may follow it with a credential.
const ELSEWHERE: &str = "https://127.0.0.1:9/elsewhere";
/// The most bytes of a body that are kept for `GET /requests`.
const MOST_KEPT: usize = 512 * 1024;

/// The most texts that `POST /say` can set, and the most bytes of one, with the words that select it.
const MOST_SAID: usize = 64;
const MOST_SAID_BYTES: usize = 64 * 1024;

/// The state of the server.
pub struct Provider {
    /// Credentials, by their names.
    credentials: BTreeMap<String, String>,
    /// Names in its list of models. All other models are served too.
    models: Vec<String>,
    /// The counts.
    pub counts: Books,
    /// Whether waiting answers are released.
    gone: watch::Sender<bool>,
    /// Answers that a test set, with the words that select them.
    preset: Mutex<Vec<(String, PresetAnswer)>>,
}

/// An answer.
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its headers, without the content type.
    pub headers: Vec<(&'static str, String)>,
    /// How long to wait before its head.
    pub late: Duration,
    /// Whether it waits for `POST /go`.
    pub waits_for_release: bool,
    /// Its body.
    pub body: Body,
    /// The caller that it is counted for; unset: it is not counted.
    pub key: Option<Key>,
}

/// The call that a path names.
enum Route {
    Generate(Api, Option<Path>),
    CountTokens(Api),
    Models(Api, Option<String>),
}

/// The part of a Gemini call that is in its path.
struct Path {
    model: String,
    stream: bool,
    as_list: bool,
}

impl Provider {
    /// With these credentials, by name, and these models in its list.
    #[must_use]
    pub fn new(credentials: BTreeMap<String, String>, models: Vec<String>) -> Arc<Self> {
        Arc::new(Self { credentials, models, counts: Books::default(), gone: watch::Sender::new(false), preset: Mutex::default() })
    }

    /// Releases the answers that wait (mode `wait`), and all later ones.
    pub fn release_waiting(&self) {
        self.gone.send_replace(true);
    }

    /// From now on the model answers `text` if the last words of a person contain `to`. If several fit, the newest one
    /// counts.
    pub fn say(&self, to: &str, text: &str) {
        self.set(to, PresetAnswer::Text(text.to_owned()));
    }

    /// Like [`Self::say`], but the model calls a tool with this command, once, and then says that it is done.
    pub fn run(&self, to: &str, command: &str) {
        self.set(to, PresetAnswer::Command(command.to_owned()));
    }

    fn set(&self, to: &str, answer: PresetAnswer) {
        let mut preset = self.preset.lock().unwrap_or_else(PoisonError::into_inner);
        preset.push((to.to_owned(), answer));
        if preset.len() > MOST_SAID {
            preset.remove(0);
        }
    }

    fn preset_for(&self, task: &str) -> Option<PresetAnswer> {
        let preset = self.preset.lock().unwrap_or_else(PoisonError::into_inner);
        preset.iter().rev().find(|(to, _)| task.contains(to.as_str())).map(|(_, answer)| answer.clone())
    }

    /// Until [`Self::release_waiting`].
    pub async fn wait_for_release(&self) {
        let _ = self.gone.subscribe().wait_for(|gone| *gone).await; // we hold the sender
    }

    /// The answer to a request.
    pub fn answer(&self, head: &Parts, body: &[u8]) -> Answer {
        let path = head.uri.path();
        match (&head.method, path) {
            (&Method::GET, "/count") => return plain(self.counts.count()),
            (&Method::GET, "/requests") => return plain(self.counts.requests()),
            (&Method::HEAD, "/" | "/api/hello") => return plain(Value::Null),
            (&Method::POST, "/go") => {
                self.release_waiting();
                return plain(json!({}));
            }
            (&Method::POST, "/say") => {
                let told: Value = serde_json::from_slice(body).unwrap_or_default();
                let (Some(to), Some(text), true) = (string(&told, "to"), string(&told, "say"), body.len() <= MOST_SAID_BYTES) else {
                    return refused(None, Refusal::of(Api::Chat, 400, "{\"to\": \"...\", \"say\": \"...\"} of at most 64 KiB is taken"));
                };
                self.say(to, text);
                return plain(json!({}));
            }
            _ => {}
        }
        let Some(route) = route(head) else {
            return refused(None, Refusal::of(Api::Chat, 404, &format!("Invalid URL ({} {path})", head.method)));
        };
        let api = match route {
            Route::Generate(api, _) | Route::CountTokens(api) | Route::Models(api, _) => api,
        };
        let credential = self.credential(api, head);
        self.counts.keep_request(seen(head, body, credential));
        let Some(credential) = credential else {
            return refused(None, Refusal::of(api, 401, "the credential is missing, or is not one of this provider's"));
        };
        if head.headers.contains_key(CONTENT_ENCODING) {
            return refused(None, Refusal::of(api, 415, "no content encoding is understood"));
        }
        let parsed = || serde_json::from_slice::<Value>(body).map_err(|error| format!("the body is not JSON: {error}"));
        let generate = |gemini: Option<Path>| parsed().and_then(|value| read(api, &value, body.len(), gemini));
        match route {
            Route::Models(_, one) => self.list(api, one.as_deref()),
            Route::CountTokens(_) => match parsed() {
                Ok(_) => plain(counted(api, body.len() / 4 + 1)),
                Err(message) => refused(None, Refusal::of(api, 400, &message)),
            },
            Route::Generate(_, gemini) => match generate(gemini) {
                Ok(ask) => self.generate(head, credential, &ask),
                Err(message) => refused(None, Refusal::of(api, 400, &message)),
            },
        }
    }

    fn generate(&self, head: &Parts, credential: &str, ask: &Ask) -> Answer {
        let key = Key { credential: credential.to_owned(), model: ask.model.clone(), caller: caller(&head.headers) };
        let script = match Script::of(&ask.model, header(&head.headers, script::HEADER)) {
            Ok(script) => script,
            Err(message) => return refused(Some((&self.counts, key)), Refusal::of(ask.api, 400, &message)),
        };
        let (before, known) = self.counts.begin(&key);
        if let Some(refusal) = failure(ask.api, &script, before, known) {
            return Answer { late: script.late, waits_for_release: script.wait, ..refused(Some((&self.counts, key)), refusal) };
        }
        let (say, used) = decide(ask, &script, self.preset_for(&ask.task).as_ref());
        let told = reported_usage(used, &script);
        let turn = ModelTurn { ask, say: &say, used, reported: told, cumulative: script.cumulative, number: before + 1 };
        let body = if ask.stream {
            chunks::stream(ask, stream(&turn), &script)
        } else {
            chunks::complete_body(complete_answer(&turn), used, told, &script)
        };
        let headers = vec![("x-request-id", format!("req_{:08}", before + 1)), ("cache-control", "no-cache".to_owned())];
        Answer { status: StatusCode::OK, headers, late: script.late, waits_for_release: script.wait, body, key: Some(key) }
    }

    /// The name of the request's credential, from the headers that this provider reads.
    fn credential(&self, api: Api, head: &Parts) -> Option<&str> {
        let bearer = header(&head.headers, AUTHORIZATION.as_str()).and_then(|value| value.strip_prefix("Bearer "));
        let own = |name: &str| header(&head.headers, name);
        let came = match api {
            Api::Anthropic => own("x-api-key").or(bearer),
            Api::Chat | Api::Responses => bearer,
            Api::Gemini => own("x-goog-api-key"),
        }?;
        self.credentials.iter().find(|(_, secret)| secret.as_str() == came).map(|(name, _)| name.as_str())
    }

    fn list(&self, api: Api, one: Option<&str>) -> Answer {
        let entry = |name: &str| match api {
            Api::Anthropic => json!({"type": "model", "id": name, "display_name": name, "created_at": "2026-01-01T00:00:00Z"}),
            Api::Chat | Api::Responses => json!({"id": name, "object": "model", "created": 1, "owned_by": "scripted"}),
            Api::Gemini => json!({
                "name": format!("models/{name}"), "version": "1", "displayName": name,
                "inputTokenLimit": 1_000_000, "outputTokenLimit": 64_000,
                "supportedGenerationMethods": ["generateContent", "countTokens"],
            }),
        };
        if let Some(one) = one {
            return plain(entry(one));
        }
        let all: Vec<Value> = self.models.iter().map(|name| entry(name)).collect();
        plain(match api {
            Api::Anthropic => json!({"data": all, "has_more": false, "first_id": self.models.first(), "last_id": self.models.last()}),
            Api::Chat | Api::Responses => json!({"object": "list", "data": all}),
            Api::Gemini => json!({"models": all}),
        })
    }
}

fn route(head: &Parts) -> Option<Route> {
    let path = head.uri.path();
    let anthropic = head.headers.contains_key("anthropic-version") || head.headers.contains_key("x-api-key");
    let openai = if anthropic { Api::Anthropic } else { Api::Chat };
    match (&head.method, path) {
        (&Method::POST, "/v1/messages") => Some(Route::Generate(Api::Anthropic, None)),
        (&Method::POST, "/v1/messages/count_tokens") => Some(Route::CountTokens(Api::Anthropic)),
        (&Method::POST, "/v1/chat/completions") => Some(Route::Generate(Api::Chat, None)),
        (&Method::POST, "/v1/responses") => Some(Route::Generate(Api::Responses, None)),
        (&Method::POST, "/v1/responses/input_tokens") => Some(Route::CountTokens(Api::Responses)),
        (&Method::GET, "/v1/models") => Some(Route::Models(openai, None)),
        (&Method::GET, "/v1beta/models") => Some(Route::Models(Api::Gemini, None)),
        (&Method::GET, _) => {
            let (api, name) = path
                .strip_prefix("/v1/models/")
                .map(|name| (openai, name))
                .or_else(|| path.strip_prefix("/v1beta/models/").map(|name| (Api::Gemini, name)))?;
            Some(Route::Models(api, Some(name.to_owned())))
        }
        (&Method::POST, _) => {
            let (model, verb) = path.strip_prefix("/v1beta/models/").or_else(|| path.strip_prefix("/v1/models/"))?.split_once(':')?;
            let as_list = !head.uri.query().unwrap_or_default().split('&').any(|word| word == "alt=sse");
            let path = |stream| Some(Path { model: model.to_owned(), stream, as_list });
            match verb {
                "generateContent" => Some(Route::Generate(Api::Gemini, path(false))),
                "streamGenerateContent" => Some(Route::Generate(Api::Gemini, path(true))),
                "countTokens" => Some(Route::CountTokens(Api::Gemini)),
                _ => None,
            }
        }
        _ => None,
    }
}

fn read(api: Api, body: &Value, bytes: usize, path: Option<Path>) -> Result<Ask, String> {
    match api {
        Api::Anthropic => anthropic::read(body, bytes),
        Api::Chat => chat::read(body, bytes),
        Api::Responses => responses::read(body, bytes),
        Api::Gemini => {
            let Path { model, stream, as_list } = path.ok_or("no model in the path")?;
            gemini::read(body, bytes, &model, stream, as_list)
        }
    }
}

fn complete_answer(turn: &ModelTurn) -> Value {
    match turn.ask.api {
        Api::Anthropic => anthropic::complete_answer(turn),
        Api::Chat => chat::complete_answer(turn),
        Api::Responses => responses::complete_answer(turn),
        Api::Gemini => gemini::complete_answer(turn),
    }
}

fn stream(turn: &ModelTurn) -> Stream {
    match turn.ask.api {
        Api::Anthropic => anthropic::stream(turn),
        Api::Chat => chat::stream(turn),
        Api::Responses => responses::stream(turn),
        Api::Gemini => gemini::stream(turn),
    }
}

fn counted(api: Api, tokens: usize) -> Value {
    match api {
        Api::Anthropic => json!({"input_tokens": tokens}),
        Api::Chat | Api::Responses => json!({"object": "response.input_tokens", "input_tokens": tokens}),
        Api::Gemini => json!({"totalTokens": tokens}),
    }
}

/// The failure of this call, if it fails.
fn failure(api: Api, script: &Script, before: u64, known: u64) -> Option<Refusal> {
    let failure = script.failure.filter(|_| script.times == 0 || before < script.times)?;
    let refusal = match failure {
        Failure::Status(status) => Refusal::of(api, status, &format!("scripted status {status}")),
        Failure::Final => refusal::spent(api, false),
        Failure::Final400 => refusal::spent(api, true),
        Failure::Window(seconds) => refusal::window(api, seconds.checked_sub(known).filter(|left| *left > 0)?),
        Failure::Redirect => Refusal { location: Some(ELSEWHERE.to_owned()), ..Refusal::of(api, 307, "moved") },
    };
    Some(Refusal { retry: script.retry.or(refusal.retry), no_retry: script.no_retry || refusal.no_retry, ..refusal })
}

fn refused(key: Option<(&Books, Key)>, refusal: Refusal) -> Answer {
    let Refusal { status, body, retry, no_retry, location, shown } = refusal;
    let mut headers = Vec::new();
    headers.extend(retry.map(|seconds| ("retry-after", seconds.to_string())));
    headers.extend(no_retry.then(|| ("x-should-retry", "false".to_owned())));
    headers.extend(location.map(|location| ("location", location)));
    headers.extend(shown.map(|words| ("x-codex-promo-message", words)));
    if let Some((books, key)) = key {
        books.refused(&key);
    }
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    Answer { status, headers, ..plain(body) }
}

fn plain(value: Value) -> Answer {
    let body = chunks::complete_body(value, Default::default(), None, &Script::default());
    Answer { status: StatusCode::OK, headers: vec![], late: Duration::ZERO, waits_for_release: false, body, key: None }
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

fn caller(headers: &HeaderMap) -> String {
    let agent = || header(headers, USER_AGENT.as_str()).and_then(|agent| agent.split([' ', '/']).next());
    header(headers, "x-caller").or_else(agent).unwrap_or_default().chars().take(128).collect()
}

/// A request as `GET /requests` shows it. A credential in a header is replaced by its name, or by a word for an unknown
/// one.
fn seen(head: &Parts, body: &[u8], credential: Option<&str>) -> Value {
    let secret = ["authorization", "x-api-key", "x-goog-api-key"];
    let shown = |(name, value): (&hyper::header::HeaderName, &hyper::header::HeaderValue)| {
        let value = if secret.contains(&name.as_str()) {
            credential.unwrap_or("(unknown)").into()
        } else {
            String::from_utf8_lossy(value.as_bytes())
        };
        json!([name.as_str(), value])
    };
    let kept = &body[..body.len().min(MOST_KEPT)];
    let body = serde_json::from_slice::<Value>(kept).unwrap_or_else(|_| json!(String::from_utf8_lossy(kept)));
    let path = head.uri.path();
    json!({
        "method": head.method.as_str(), "path": path, "query": head.uri.query(), "bytes": kept.len(),
        "headers": head.headers.iter().map(shown).collect::<Vec<_>>(), "model": string(&body, "model"), "body": body,
    })
}
