//! The pattern of an argument. The whole text must match. A match takes time in proportion to the text, whatever the pattern.

use regex_automata::meta::Regex;
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Hir, Look};

/// The most characters of a pattern.
pub const MAX_PATTERN_CHARS: usize = 1024;
/// The most bytes of a compiled pattern. Repetitions of repetitions need many.
const MAX_COMPILED_BYTES: usize = 1024 * 1024;
/// The most bytes of all compiled patterns of a definition, or of an upstream.
pub const MAX_PATTERNS_BYTES: usize = 8 * 1024 * 1024;
/// The deepest nesting of groups.
const MAX_NESTING: u32 = 32;

/// A compiled pattern.
#[derive(Clone, Debug)]
pub struct Pattern(Regex);

impl Pattern {
    /// Compiles a pattern, or says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.chars().count() > MAX_PATTERN_CHARS {
            return Err(format!("a pattern may have {MAX_PATTERN_CHARS} characters"));
        }
        let parsed = ParserBuilder::new().nest_limit(MAX_NESTING).build().parse(text).map_err(|error| last_line(&error.to_string()))?;
        // Joined here, and not as text: a pattern may end with a comment.
        let whole = Hir::concat(vec![Hir::look(Look::Start), parsed, Hir::look(Look::End)]);
        let regex = Regex::builder()
            .configure(Regex::config().nfa_size_limit(Some(MAX_COMPILED_BYTES)).hybrid_cache_capacity(MAX_COMPILED_BYTES))
            .build_from_hir(&whole)
            .map_err(|_| "the pattern is too large: use fewer or smaller repetitions".to_owned())?;
        Ok(Self(regex))
    }

    /// The bytes of memory that it takes.
    pub fn bytes(&self) -> usize {
        self.0.memory_usage()
    }

    /// Whether the whole text matches.
    pub fn matches(&self, text: &str) -> bool {
        self.0.is_match(text)
    }
}

fn last_line(error: &str) -> String {
    error.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Pattern {
        Pattern::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn the_whole_text_matches_or_none_of_it() {
        for (text, value, matches) in [
            ("agent/[a-z0-9][a-z0-9._-]{0,62}", "agent/fix-1", true),
            ("agent/[a-z0-9][a-z0-9._-]{0,62}", "agent/fix-1\nx", false),
            ("agent/[a-z0-9][a-z0-9._-]{0,62}", "x agent/fix-1", false),
            ("a|ab", "ab", true),
            ("a|b", "ab", false),
            ("", "", true),
            ("", "a", false),
            ("a$", "a\n", false),
            ("(?m)a$", "a\nb", false),
            ("(?x) a # b", "a", true),
            ("(?x) a # b", "ab", false),
            ("a)|(b", "b", false),
        ] {
            match Pattern::parse(text) {
                Ok(pattern) => assert_eq!(pattern.matches(value), matches, "{text:?} {value:?}"),
                Err(_) => assert!(!matches, "{text:?}"),
            }
        }
    }

    #[test]
    fn a_pattern_that_costs_too_much_is_refused_and_others_take_little_time() {
        for text in
            ["(a{1000}){1000}{1000}", "(?:", "[a", "\\p{Nothing}", &"a".repeat(MAX_PATTERN_CHARS + 1), &"(".repeat(100), "(?=a)b", "(a)\\1"]
        {
            Pattern::parse(text).expect_err(text);
        }
        // A search that goes back would take longer than the age of the world.
        assert!(!pattern("(a+)+").matches(&format!("{}!", "a".repeat(100_000))));
        assert!(!pattern("(.*)*x").matches(&"y".repeat(100_000)));
    }
}
