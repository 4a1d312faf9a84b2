//! The route of a request to a provider's API. A path that is not known here is refused: its tokens would not be
//! counted (batches, files), or its data would not be read (sockets).
//!
//! Paths are compared byte for byte. A path with an escape, a double slash or a dot segment is unknown, because the
//! provider might read it as another path.

use spillway_wire::meter::Dialect;

/// Prefixes of an API's path: those of the providers, and of servers with the same dialect.
const PATH_PREFIXES: [&str; 6] = ["/v1", "", "/api/v1", "/openai/v1", "/v1beta/openai", "/inference/v1"];
/// Prefixes of the versions of Gemini's API.
const GEMINI_PATH_PREFIXES: [&str; 3] = ["/v1beta/models", "/v1/models", "/v1alpha/models"];
/// Names of query parameters that are sent on. API keys in the query are not.
const ALLOWED_QUERY_KEYS: [&str; 9] = ["beta", "limit", "after", "after_id", "before_id", "order", "pageSize", "pageToken", "api-version"];
/// Maximum number of bytes of a model's name.
pub(crate) const MAX_MODEL_NAME_BYTES: usize = 128;

/// Paths that are served below the name of an entry of the pool's models, for people. Each path is also served with
/// other prefixes.
pub const SERVED_PATHS: [&str; 8] = [
    "POST /v1/messages",
    "POST /v1/messages/count_tokens",
    "POST /v1/chat/completions",
    "POST /v1/responses",
    "POST /v1beta/models/MODEL:generateContent",
    "POST /v1beta/models/MODEL:streamGenerateContent",
    "POST /v1beta/models/MODEL:countTokens",
    "GET /v1/models",
];

/// The route of a request to a provider's API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Dialect of the path. Unset if several dialects have the path.
    pub dialect: Option<Dialect>,
    /// Kind of the call.
    pub kind: Kind,
    /// Model of the call, if the path names it (Gemini).
    pub model: Option<String>,
    /// Whether the answer is a stream, if the path says so (Gemini).
    pub stream: Option<bool>,
    /// The query to send on, without `?`: the parameters that the provider needs, without API keys. Nothing else of the
    /// client's query may be sent.
    pub query: Option<String>,
}

/// Kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// An answer of a model: the only kind that costs tokens.
    Generate,
    /// The number of tokens of a call. It is free.
    CountTokens,
    /// The list of models, or one model. It is free.
    ListModels,
    /// `HEAD /` and `HEAD /api/hello`. The gateway itself answers with 200 and no body. They are never sent on.
    Hello,
}

/// The route of a method, a provider's path (which begins with `/`) and a query (without `?`).
///
/// `None`: the request is refused.
pub fn route(method: &str, path: &str, query: Option<&str>) -> Option<Route> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~:@+".contains(&byte);
    if !path.bytes().all(plain) || path.split('/').skip(1).any(|segment| matches!(segment, "." | "..")) || path.contains("//") {
        return None;
    }
    let found = match method {
        "HEAD" if matches!(path, "/" | "/api/hello") => Some((None, Kind::Hello, None, None)),
        "GET" => model_list_dialect(path).map(|dialect| (dialect, Kind::ListModels, None, None)),
        "POST" => match PATH_PREFIXES.into_iter().find_map(|prefix| post_dialect_and_kind(path.strip_prefix(prefix)?)) {
            Some((dialect, kind)) => Some((Some(dialect), kind, None, None)),
            None => gemini(path).map(|(kind, model, stream)| (Some(Dialect::Gemini), kind, Some(model), stream)),
        },
        _ => None,
    };
    let (dialect, kind, model, stream) = found?;
    let query = match kind {
        Kind::Hello => None,
        Kind::Generate | Kind::CountTokens | Kind::ListModels => {
            forwarded_query(query.unwrap_or_default(), dialect == Some(Dialect::Gemini))?
        }
    };
    Some(Route { dialect, kind, model, stream, query })
}

fn post_dialect_and_kind(path: &str) -> Option<(Dialect, Kind)> {
    match path {
        "/messages" => Some((Dialect::Anthropic, Kind::Generate)),
        "/messages/count_tokens" => Some((Dialect::Anthropic, Kind::CountTokens)),
        "/chat/completions" => Some((Dialect::OpenAIChat, Kind::Generate)),
        "/responses" => Some((Dialect::OpenAIResponses, Kind::Generate)),
        _ => None,
    }
}

/// The dialect of `models` and `models/NAME`. `Some(None)`: several dialects.
fn model_list_dialect(path: &str) -> Option<Option<Dialect>> {
    let one = |rest: &str| rest.is_empty() || rest.strip_prefix('/').is_some_and(is_name);
    if ["/v1beta/models", "/v1alpha/models"]
        .into_iter()
        .any(|models| path.strip_prefix(models).is_some_and(|rest| one(rest) && !rest.contains(':')))
    {
        return Some(Some(Dialect::Gemini));
    }
    PATH_PREFIXES
        .into_iter()
        .any(|prefix| path.strip_prefix(prefix).and_then(|rest| rest.strip_prefix("/models")).is_some_and(one))
        .then_some(None)
}

fn is_name(segment: &str) -> bool {
    !segment.is_empty() && segment.len() <= MAX_MODEL_NAME_BYTES && !segment.contains('/')
}

/// Parses `models/NAME:METHOD`.
fn gemini(path: &str) -> Option<(Kind, String, Option<bool>)> {
    let call = GEMINI_PATH_PREFIXES.into_iter().find_map(|models| path.strip_prefix(models)?.strip_prefix('/'))?;
    let (model, method) = call.split_once(':')?;
    let (kind, stream) = match method {
        "generateContent" => (Kind::Generate, Some(false)),
        "streamGenerateContent" => (Kind::Generate, Some(true)),
        "countTokens" => (Kind::CountTokens, None),
        _ => return None,
    };
    is_name(model).then(|| (kind, model.to_owned(), stream))
}

/// The parameters of the query that are sent on. `None`: the query asks for an answer in a format that cannot be
/// metered (`alt=proto`).
fn forwarded_query(query: &str, gemini: bool) -> Option<Option<String>> {
    let (mut parts, mut alts) = (Vec::new(), 0);
    for part in query.split('&') {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        if gemini && name == "alt" {
            alts += 1;
            if alts > 1 || !matches!(value, "json" | "sse") {
                return None;
            }
        } else if !ALLOWED_QUERY_KEYS.contains(&name)
            || !value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~%:".contains(&byte))
        {
            continue;
        }
        parts.push(part);
    }
    Some(if parts.is_empty() { None } else { Some(parts.join("&")) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_paths_are_known() {
        use Dialect::{Anthropic, Gemini, OpenAIChat, OpenAIResponses};
        let known = [
            ("HEAD", "/", None, Kind::Hello),
            ("HEAD", "/api/hello", None, Kind::Hello),
            ("POST", "/v1/messages", Some(Anthropic), Kind::Generate),
            ("POST", "/v1/messages/count_tokens", Some(Anthropic), Kind::CountTokens),
            ("POST", "/v1/chat/completions", Some(OpenAIChat), Kind::Generate),
            ("POST", "/chat/completions", Some(OpenAIChat), Kind::Generate),
            ("POST", "/api/v1/chat/completions", Some(OpenAIChat), Kind::Generate),
            ("POST", "/v1beta/openai/chat/completions", Some(OpenAIChat), Kind::Generate),
            ("POST", "/v1/responses", Some(OpenAIResponses), Kind::Generate),
            ("GET", "/v1/models", None, Kind::ListModels),
            ("GET", "/v1/models/gpt-5.5", None, Kind::ListModels),
            ("GET", "/v1beta/models", Some(Gemini), Kind::ListModels),
            ("GET", "/v1beta/models/gemini-3-pro", Some(Gemini), Kind::ListModels),
        ];
        for (method, path, dialect, kind) in known {
            let found = route(method, path, None).unwrap_or_else(|| panic!("{method} {path}"));
            assert_eq!((found.dialect, found.kind, found.model, found.stream), (dialect, kind, None, None), "{method} {path}");
        }
        let unknown = "GET /|HEAD /v1/models|POST /|POST /v1/messages/|POST /v1/messages/batches|POST /v1/files|GET /v1/files|\
            POST /v1/batches|GET /v1/responses|GET /v1/responses/resp_1|POST /v1/responses/compact|POST /v1/embeddings|\
            POST /v1/completions|POST /v2/messages|POST /x/v1/messages|POST //v1/messages|POST /v1//messages|POST /v1/./messages|\
            POST /v1/../v1/messages|POST /v1/%6dessages|POST /v1/messages%2f|POST /v1/messages?x|POST v1/messages|PUT /v1/messages|\
            post /v1/messages|DELETE /v1/models/x|GET /v1/models/a/b|GET /v1/models/..|POST /v1beta/models/x:embedContent|\
            POST /v1beta/models/x:batchGenerateContent|POST /v1beta/models/:generateContent|POST /v1beta/models/a/b:generateContent|\
            POST /v1beta/models/x:generateContent:y|POST /v1beta/tunedModels/x:generateContent|POST /v1beta/cachedContents|\
            POST /v1beta/models/x%3AgenerateContent|POST /upload/v1beta/files|GET /v1beta/models/x:generateContent|GET /v1/messages|\
            POST /openai/deployments/x/chat/completions|CONNECT /v1/messages|POST /v1/mess\u{e4}ges";
        for line in unknown.split('|') {
            let (method, path) = line.trim().split_once(' ').expect("a method and a path");
            assert_eq!(route(method, path, None), None, "{line}");
        }
    }

    #[test]
    fn what_is_told_to_be_served_is_served() {
        for line in SERVED_PATHS {
            let (method, path) = line.split_once(' ').expect("a method and a path");
            assert!(route(method, &path.replace("MODEL", "gemini-2.5-pro"), None).is_some(), "{line}");
        }
    }

    #[test]
    fn geminis_path_names_the_model_and_whether_it_streams() {
        for (method, kind, stream) in [
            ("generateContent", Kind::Generate, Some(false)),
            ("streamGenerateContent", Kind::Generate, Some(true)),
            ("countTokens", Kind::CountTokens, None),
        ] {
            for version in ["v1", "v1beta", "v1alpha"] {
                let found = route("POST", &format!("/{version}/models/gemini-2.5-pro:{method}"), None).expect("known");
                assert_eq!((found.dialect, found.kind, found.stream), (Some(Dialect::Gemini), kind, stream));
                assert_eq!(found.model.as_deref(), Some("gemini-2.5-pro"));
            }
        }
    }

    #[test]
    fn a_key_in_the_query_is_not_sent_on_and_unknown_parts_do_no_harm() {
        let gemini = "/v1beta/models/g:streamGenerateContent";
        for (path, query, want) in [
            ("/v1/messages", "beta=true", Some("beta=true")),
            ("/v1/messages", "beta=true&key=SECRET&x=1", Some("beta=true")),
            ("/v1/messages", "alt=proto", None),
            ("/v1/messages", "beta=tr ue", None),
            (gemini, "alt=sse&key=SECRET", Some("alt=sse")),
            (gemini, "key=SECRET&$httpMethod=PUT&fields=candidates&callback=f&access_token=S&%6bey=S", None),
            (gemini, "", None),
        ] {
            assert_eq!(route("POST", path, Some(query)).expect(query).query.as_deref(), want, "{query}");
        }
        for query in ["alt=proto", "alt=media", "alt", "alt=sse&alt=json", "alt=sse%00"] {
            assert_eq!(route("POST", gemini, Some(query)), None, "{query}");
        }
        assert_eq!(
            route("GET", "/v1/models", Some("limit=5&after_id=a")).and_then(|found| found.query).as_deref(),
            Some("limit=5&after_id=a")
        );
    }
}
