//! A scripted provider of models: Anthropic Messages, OpenAI Chat Completions and Responses, Gemini generateContent, streamed
//! and not, with their lists of models and counts of tokens. Tests, benchmarks and the demo put it where the real ones would
//! be. It wants the credential it was started with, does what the model's name says ([`script`]), and keeps books of its own
//! ([`count`]), so that a ledger can be compared with what its provider says, to the token.
//!
//! It must not share code with what it tests: a mistake in both would look like agreement.

pub mod answer;
pub mod anthropic;
pub mod ask;
pub mod chat;
pub mod chunks;
pub mod count;
pub mod gemini;
pub mod refusal;
pub mod responses;
pub mod script;
pub mod serve;
pub mod turn;

pub use answer::Provider;
pub use serve::serve;
