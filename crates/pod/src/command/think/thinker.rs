//! From a request to a decision, by a model. An answer that cannot be used is asked for once more. If there is no model, or no
//! usable answer, the caller uses rules, and the reason is returned.

use std::path::PathBuf;
use std::time::Duration;

use super::arguments::{Role, ThinkArguments};
use super::decision::Decision;
use super::dialect::{Dialect, Message};
use super::model::Model;
use super::routes::Routes;
use super::sidecar::Sidecar;
use super::{prompt, reply};
use crate::command::output::print_to_stderr;
use crate::files;

/// The most bytes of a prompt.
const MAX_PROMPT_BYTES: usize = 64 * 1024;
/// Unusable answers to one request, before the caller uses rules.
const MAX_UNUSABLE_ANSWERS: u32 = 2;

/// The result of a request to the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ThinkResult {
    /// The decision, and the model's own text for the rest of the conversation.
    Decided(Decision, String),
    /// No model decided. The reason is unset if no model is configured.
    ByRules(Option<String>),
}

/// Turns requests into decisions.
#[derive(Debug)]
pub struct Thinker {
    role: Role,
    /// The model, or why there is none.
    model: Result<Model, Option<String>>,
    prompt_file: Option<PathBuf>,
    routes_file: Option<PathBuf>,
    /// The last usable content of the files.
    prompt: String,
    routes: Routes,
}

impl Thinker {
    /// Reads the files of the arguments. A file that cannot be used is an error.
    pub fn new(arguments: ThinkArguments, variable: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let ThinkArguments { role, model, dialect, prompt, routes, max_output_tokens, answer_seconds } = arguments;
        let within = Duration::from_secs(answer_seconds);
        let model = model.ok_or(None).and_then(|name| find_model(name, dialect, max_output_tokens, within, variable).map_err(Some));
        let mut thinker = Self {
            role,
            model,
            prompt_file: prompt,
            routes_file: routes,
            prompt: prompt::built_in_instructions(role).to_owned(),
            routes: Routes::default(),
        };
        thinker.read_files()?;
        Ok(thinker)
    }

    /// The table of types.
    pub fn routes(&self) -> &Routes {
        &self.routes
    }

    /// Reads the files again, so that edits apply. A file that cannot be used is reported, and its previous content is kept.
    pub fn refresh(&mut self) {
        if let Err(trouble) = self.read_files() {
            print_to_stderr(&format!("a file cannot be used, so its previous content stays in use: {trouble}"));
        }
    }

    fn read_files(&mut self) -> Result<(), String> {
        if let Some(path) = &self.routes_file {
            self.routes = Routes::read(path)?;
        }
        if let Some(path) = &self.prompt_file {
            let trouble = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
            let bytes = files::read(path, MAX_PROMPT_BYTES).map_err(|error| trouble(&error))?;
            let bytes = bytes.ok_or_else(|| trouble(&"there is no such file"))?;
            self.prompt = String::from_utf8(bytes).map_err(|error| trouble(&error))?;
        }
        Ok(())
    }

    /// The decision about the last message of a conversation.
    pub fn think(&self, sidecar: &Sidecar, mut messages: Vec<Message>) -> ThinkResult {
        let model = match &self.model {
            Ok(model) => model,
            Err(why) => return ThinkResult::ByRules(why.clone()),
        };
        let system = prompt::system(&self.prompt, self.role, &self.routes);
        let mut trouble = String::new();
        for _ in 0..MAX_UNUSABLE_ANSWERS {
            let bytes = system.len() + messages.iter().map(|message| message.text.len()).sum::<usize>();
            if let Some(short) = sidecar.short_of_tokens(bytes) {
                return ThinkResult::ByRules(Some(short));
            }
            let text = match model.ask(&system, &messages) {
                Ok(text) => text,
                Err(why) => return ThinkResult::ByRules(Some(why)),
            };
            match reply::read(&text, &self.routes, self.role) {
                Ok(decision) => return ThinkResult::Decided(decision, text),
                Err(why) => {
                    messages.extend([Message::from_model(text), Message::from_user(prompt::correction(&why))]);
                    trouble = why;
                }
            }
        }
        ThinkResult::ByRules(Some(format!("the model's answer cannot be used: {trouble}")))
    }
}

/// The model of this name, with the address from the environment of the pod.
fn find_model(
    name: String,
    dialect: Option<Dialect>,
    max_output: u32,
    within: Duration,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Model, String> {
    let address = |dialect: Dialect| variable(dialect.variables().0).map(|base| (dialect, base));
    let (dialect, base) = match dialect {
        Some(dialect) => {
            address(dialect).ok_or_else(|| format!("{} is not set: the pool has no such entry in models", dialect.variables().0))?
        }
        None => Dialect::WITH_OWN_BASE_URL.into_iter().find_map(address).ok_or("the pool has no models")?,
    };
    let key = variable(dialect.variables().1).unwrap_or_default();
    Ok(Model { dialect, name, base, key, max_output, within })
}

/// The last line of an answer that rules gave although a model is configured.
pub fn note(why: Option<&str>) -> Option<String> {
    why.map(|why| format!("(By rules, without the model: {why})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(dialect: Option<Dialect>, set: &[(&str, &str)]) -> Result<(Dialect, String, String), String> {
        let variable = |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        let model = find_model("m".into(), dialect, 1, Duration::ZERO, variable)?;
        Ok((model.dialect, model.base, model.key))
    }

    #[test]
    fn the_protocol_is_the_one_that_was_named_or_the_first_that_the_pool_has() {
        let both = [("OPENAI_BASE_URL", "http://o/v1"), ("OPENAI_API_KEY", "k"), ("ANTHROPIC_BASE_URL", "http://a")];
        let of = |dialect, base: &str, key: &str| Ok((dialect, base.to_owned(), key.to_owned()));
        assert_eq!(chosen(None, &both), of(Dialect::Anthropic, "http://a", ""));
        assert_eq!(chosen(None, &both[..2]), of(Dialect::OpenAIChat, "http://o/v1", "k"));
        assert_eq!(chosen(Some(Dialect::OpenAIResponses), &both), of(Dialect::OpenAIResponses, "http://o/v1", "k"));
        assert_eq!(chosen(None, &[]), Err("the pool has no models".to_owned()));
        assert!(chosen(Some(Dialect::Gemini), &both).expect_err("none").starts_with("GOOGLE_GEMINI_BASE_URL is not set"));
    }
}
