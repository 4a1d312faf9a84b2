//! The protocols of model APIs, as pure functions: the route of a path, the facts of a call, the usage of an answer,
//! and the answer for a refused call. The crate does no I/O, has no clock, and decides nothing about budgets.
//!
//! | module | holds |
//! |---|---|
//! | `route` | the paths that are served: dialect, kind of call, model, and the query that is sent on |
//! | `call` | a parsed call: its facts for the budget, and the body that is sent to the provider |
//! | `request` | the parts of a body that all dialects share: model, output limits, edits, refused members |
//! | `fields` | members that are refused in all dialects but Gemini, and members that cost more than their tokens show |
//! | `media` | images, sound and files: the table of their token bounds |
//! | `conversation` | the number of the conversation to which a call belongs |
//! | `anthropic`, `chat`, `responses`, `gemini` | one dialect each: reading its calls and its answers |
//! | `json_spans` | a strict JSON parser for bodies, which keeps the position of each value |
//! | `meter` | reads an answer as it passes, and returns its usage |
//! | `sse`, `chunks` | split a stream into events, or a body into JSON objects |
//! | `scan` | a streaming JSON scanner, which keeps the values at a few known paths |
//! | `usage` | the usage that a provider reported so far, and its quality |
//! | `outcome` | whether an answer counts as a failure of its provider |
//! | `refuse` | the answer for a refused call, in the format of each dialect |
//! | `fault` | the error of a body: its field and its message |
//!
//! # Invariant
//! [`Facts::bytes`](spillway_wire::meter::Facts::bytes) plus `other_tokens` is an upper bound of the input's tokens:
//! one token for each byte of the body, including names, structure and tools, except for data in the table of `media`.
//! Therefore a call with input outside its body is refused ([`parse`] names the field), and exactly the counted body is
//! sent.
//!
//! # Refused fields
//! | | fields | why |
//! |---|---|---|
//! | all | a key twice in an object, invalid UTF-8, compression, nesting deeper than 128, more than 100,000 values, data after the end | two parsers could read two different calls |
//! | all | URLs and ids of files, images, sound | data that the provider fetches or stores is not counted, and a URL can send data out |
//! | all | tools that the provider runs (search, fetching, code, MCP, retrieval) | the provider reads their results as input, many times in one call |
//! | all | output other than text | it costs more than its tokens show |
//! | all but Gemini | the list in `fields`: `web_search_options`, `plugins`, `models`, `fallbacks`, `preset`, `chat_template` and the like; `:online` models | hidden input; another model; an answer that is not metered |
//! | Anthropic | `mcp_servers`, `container`, edits of the context other than `clear_*` | hidden input; another model; another call inside the call |
//! | Chat | `audio`, `prediction`, `n_predict` | output outside of the limit |
//! | Responses | `previous_response_id`, `conversation`, `prompt`, `background`, `context_management`, references to items, encrypted reasoning that is not in the body while `store` is not false | hidden input; an answer that is not metered |
//! | Gemini | `cachedContent`, `routingConfig`, `modelConfig`, both spellings of a name, another model in the body than in the path | hidden input; two parsers |
//!
//! Programs offer web search and image generation by default in a Responses call. These tools are removed and not
//! refused. The `id` of an item that refers to data stored by the provider is removed if the item is valid without it.
//! Null, `false`, and empty strings and lists request nothing and pass. Unknown fields pass: if a provider adds a field
//! that adds tokens, it is not covered until it is in the table.

mod anthropic;
mod call;
mod chat;
mod chunks;
mod conversation;
mod fault;
mod fields;
mod gemini;
mod json_spans;
mod media;
mod meter;
mod outcome;
mod refuse;
mod request;
mod responses;
mod route;
mod scan;
mod sse;
mod usage;

pub use call::{Call, parse};
pub use fault::Fault;
pub use fields::SURCHARGE_MEMBERS;
pub use meter::Meter;
pub use outcome::{AnswerEnd, outcome_of_answer, outcome_of_status};
pub use refuse::{Answer, budget_headers, refuse, refuse_in_stream, refuse_in_unknown_dialect};
pub use route::{Kind, Route, SERVED_PATHS, route};
