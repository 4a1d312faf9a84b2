//! A scripted provider of models: Anthropic Messages, OpenAI Chat Completions and Responses, Gemini generateContent,
//! streamed and not, with their lists of models and counts of tokens. Tests, benchmarks and the demo use it in the
//! place of real providers. It accepts the credentials that it was started with, and follows the modes in the model's
//! name ([`script`]). It keeps its own count ([`count`]), so that a ledger can be compared with its provider's count,
//! to the token.
//!
//! It must not share code with the tested programs: a mistake in both would look like agreement.

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
