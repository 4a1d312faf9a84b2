//! The table of the types of work: their queues, their priorities, and the words that classify a request. A team edits this
//! table. Pure, except [`Routes::read`].

use std::path::Path;

use serde::Deserialize;
use spillway_wire::body::{self, BoundedBody, at_most};

use crate::files;

/// The most bytes of the file.
const MAX_FILE_BYTES: usize = 64 * 1024;
/// The most types.
const MAX_TYPES: usize = 32;
/// The most queues, first words or words of one type.
const MAX_LIST_ENTRIES: usize = 64;

/// The table.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Routes {
    /// The types, in the order in which their words are searched.
    pub types: Vec<Route>,
    /// The type of a request that no word classifies.
    pub otherwise: String,
}

/// One type of work.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Route {
    /// Its name.
    #[serde(rename = "type")]
    pub type_: String,
    /// A description of the type, for the model.
    #[serde(default)]
    pub about: String,
    /// Queues for the type. The first one is used unless the model names another. Empty: Spillway routes by the type.
    #[serde(default)]
    pub queues: Vec<String>,
    /// The priority of its items.
    #[serde(default)]
    pub priority: i32,
    /// The highest priority that the model may give one of its items; unset: `priority`.
    #[serde(default)]
    pub max_priority: Option<i32>,
    /// Words at the beginning of a request of this type. They are searched before the `words` of any type.
    #[serde(default)]
    pub first_words: Vec<String>,
    /// Words anywhere in a request of this type.
    #[serde(default)]
    pub words: Vec<String>,
}

impl BoundedBody for Routes {
    fn check(&self) -> Result<(), (&'static str, String)> {
        if self.types.is_empty() || self.types.len() > MAX_TYPES {
            return Err(("types", format!("{} entries; 1 to {MAX_TYPES} are taken", self.types.len())));
        }
        for (at, route) in self.types.iter().enumerate() {
            let Route { type_, about, queues, priority, max_priority, first_words, words } = route;
            at_most("types.type", type_, 63)?;
            if type_.is_empty() || self.types[..at].iter().any(|other| other.type_ == *type_) {
                return Err(("types.type", format!("{type_:?} is empty, or is in the list twice")));
            }
            at_most("types.about", about, 1000)?;
            if max_priority.is_some_and(|most| most < *priority) {
                return Err(("types.maxPriority", format!("{type_:?}: it is below priority, {priority}")));
            }
            for (field, list) in [("types.queues", queues), ("types.firstWords", first_words), ("types.words", words)] {
                if list.len() > MAX_LIST_ENTRIES {
                    return Err((field, format!("{type_:?}: {} entries; at most {MAX_LIST_ENTRIES} are taken", list.len())));
                }
                list.iter().try_for_each(|entry| at_most(field, entry, 253))?;
            }
        }
        if self.route(&self.otherwise).is_none() {
            return Err(("otherwise", format!("{:?} is none of the types", self.otherwise)));
        }
        Ok(())
    }
}

impl Default for Routes {
    fn default() -> Self {
        let list = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let bug = Route {
            type_: "bug".to_owned(),
            about: "something that worked, or should work, does not".to_owned(),
            priority: 10,
            max_priority: Some(50),
            words: list(&[
                "fix", "fixes", "fixed", "fixing", "bug", "bugs", "crash", "crashes", "crashed", "crashing", "broken", "error", "errors",
            ]),
            ..Route::default()
        };
        let idea = Route {
            type_: "idea".to_owned(),
            about: "something new that has to be thought through before it is built".to_owned(),
            first_words: list(&["idea", "feature", "design", "write a prd"]),
            words: list(&["idea", "ideas", "feature", "features", "design", "designs", "prd", "prds"]),
            ..Route::default()
        };
        let chore = Route { type_: "chore".to_owned(), about: "any other task".to_owned(), ..Route::default() };
        Self { types: vec![bug, idea, chore], otherwise: "chore".to_owned() }
    }
}

impl Routes {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, String> {
        let trouble = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let bytes = files::read(path, MAX_FILE_BYTES).map_err(|error| trouble(&error))?.ok_or_else(|| trouble(&"there is no such file"))?;
        body::read(&bytes).map_err(|refusal| trouble(&refusal.message))
    }

    /// The row of a type.
    pub fn route(&self, type_: &str) -> Option<&Route> {
        self.types.iter().find(|route| route.type_ == type_)
    }

    /// The type of a request, from its words.
    pub fn classify(&self, text: &str) -> &str {
        let text = in_words(text);
        let begins = |route: &&Route| route.first_words.iter().any(|words| text.starts_with(&in_words(words)));
        let contains = |route: &&Route| route.words.iter().any(|word| text.contains(&in_words(word)));
        let found = self.types.iter().find(begins).or_else(|| self.types.iter().find(contains));
        found.map_or(self.otherwise.as_str(), |route| route.type_.as_str())
    }
}

/// Letters alone, in lower case, each word between spaces.
fn in_words(text: &str) -> String {
    let lower = text.to_lowercase();
    let words: Vec<&str> = lower.split(|letter: char| !letter.is_alphabetic()).filter(|word| !word.is_empty()).collect();
    format!(" {} ", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_decide_the_type_and_the_first_ones_before_all_others() {
        let routes = Routes::default();
        let cases = [
            ("the clock runs backwards: FIX it", "bug"),
            ("It crashes.", "bug"),
            ("idea: an error page that is fun", "idea"),
            ("please write a PRD for a dark mode", "idea"),
            ("2 steps: remove what nobody uses", "chore"),
            ("the prefix is a terror", "chore"),
            ("", "chore"),
        ];
        for (text, type_) in cases {
            assert_eq!(routes.classify(text), type_, "{text}");
        }
    }

    /// The JSON below a key of the samples' ConfigMap.
    fn sample(key: &str) -> String {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/samples/think.yaml");
        let text = std::fs::read_to_string(file).expect("the samples");
        let below = text.lines().skip_while(|line| *line != format!("  {key}: |")).skip(1);
        below.take_while(|line| line.starts_with("    ")).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn the_tables_of_the_samples_can_be_used_and_a_document_makes_no_ideas() {
        let read = |key: &str| body::read::<Routes>(sample(key).as_bytes()).unwrap_or_else(|refusal| panic!("{key}: {refusal}"));
        let usual = Routes::default();
        for text in ["fix it", "idea: it", "write a PRD for it", "tidy it"] {
            assert_eq!(read("routes.json").classify(text), usual.classify(text), "{text}");
        }
        assert!(read("follow-ups.json").route("idea").is_none(), "prd takes ideas");
    }

    #[test]
    fn a_table_that_says_nothing_sure_is_refused_by_the_field() {
        let field = |text: &str| body::read::<Routes>(text.as_bytes()).err().and_then(|refusal| refusal.field);
        assert_eq!(field(r#"{"types": [{"type": "a"}], "otherwise": "a"}"#), None);
        assert_eq!(field(r#"{"types": [], "otherwise": "a"}"#).as_deref(), Some("types"));
        assert_eq!(field(r#"{"types": [{"type": "a"}, {"type": "a"}], "otherwise": "a"}"#).as_deref(), Some("types.type"));
        assert_eq!(field(r#"{"types": [{"type": "a"}], "otherwise": "b"}"#).as_deref(), Some("otherwise"));
        let low = r#"{"types": [{"type": "a", "priority": 5, "maxPriority": 4}], "otherwise": "a"}"#;
        assert_eq!(field(low).as_deref(), Some("types.maxPriority"));
        assert_eq!(field(r#"{"types": [{"type": "a", "word": []}], "otherwise": "a"}"#).as_deref(), Some("types[0].word"));
        assert_eq!(Routes::default().check(), Ok(()));
    }
}
