//! The protocols of model APIs, as pure code: which path asks for what, what a call may cost, what its answer used, and how a
//! refusal is said so that programs understand it. Bytes in, bytes and facts out: no I/O, no clock, no decision about budgets.
//!
//! | module | for |
//! |---|---|
//! | `route` | a method, a path and a query: what is asked for, or nothing that may be passed |
//! | `json_spans` | reading JSON once, with the place of each value |
//! | `call` | a call: its facts, and the body that is sent on |
//! | `request` | what a body asks for, its output limit, and the members that are refused: the same for all dialects |
//! | `fault` | what is wrong with a body |
//! | `fields` | what is refused beside the conversation, and what costs more than its tokens say |
//! | `media` | what is no text, by a table of upper bounds |
//! | `conversation` | which calls go on with one conversation |
//! | `anthropic`, `chat`, `responses`, `gemini` | the fields of each dialect, in calls and in answers |
//! | `sse`, `chunks` | events and JSON objects of an answer, at whatever places it is cut |
//! | `scan` | what stands at a few places of such an object, as it passes |
//! | `usage`, `meter` | the usage of an answer as it passes |
//! | `refuse` | the answer for a refused call |
//!
//! # What always holds
//! [`Facts::bytes`](spillway_wire::meter::Facts::bytes) plus `other_tokens` is an upper bound of the input's tokens: a token a
//! byte of the body as it stands, names, structure and tools among it, but for what stands in the table of `media`. So a call
//! whose input does not stand in its body is refused ([`parse`] says so, with the field), and what is sent is what was counted.
//!
//! # What is refused, and why
//! | | fields | why |
//! |---|---|---|
//! | all | a key twice in an object, no UTF-8, compressed, deeper than 128, more than 100,000 values, a rest behind the end | two readers could read two calls |
//! | all | URLs and ids of files, images, sound | what the provider fetches or keeps is not counted; and a URL is a way out |
//! | all | tools that the provider runs (search, fetching, code, MCP, retrieval) | it reads their results as input, again and again |
//! | all | output that is no text | it costs more than its tokens say |
//! | all but Gemini | what `fields` lists: `web_search_options`, `plugins`, `models`, `fallbacks`, `preset`, `chat_template` and the like; `:online` models | hidden input; another model; an answer that nobody reads |
//! | Anthropic | `mcp_servers`, `container`, edits of the context other than `clear_*` | hidden input; another model; another call inside the call |
//! | Chat | `audio`, `prediction`, `n_predict` | output beside the limit |
//! | Responses | `previous_response_id`, `conversation`, `prompt`, `background`, `context_management`, references to items, sealed reasoning that is not in the body while `store` is not false | hidden input; an answer that nobody reads |
//! | Gemini | `cachedContent`, `routingConfig`, `modelConfig`, both spellings of a name, another model in the body than in the path | hidden input; two readers |
//!
//! Web search and image generation that a Responses call only offers are taken out of its tools: programs offer them unasked.
//! The `id` of an item that stands for what the provider kept of it is taken out where the item may stand without.
//! Null, `false` and empty strings and lists ask for nothing and pass. Fields that are not known here pass: a provider that
//! adds one which brings tokens is not covered until it stands in the table.

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
pub use outcome::{AnswerEnd, of_answer, of_status};
pub use refuse::{Answer, budget_headers, refuse, refuse_any, refuse_in_stream};
pub use route::{Kind, Route, SERVED_PATHS, route};
