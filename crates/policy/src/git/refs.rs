//! Names of refs, and the pattern of those that a pool's agents may push.
//!
//! Pure. A pattern may contain `{agent}`, `{pool}` and `{item}`, so that each agent or item has refs of its own.

use std::fmt;

use crate::work::requires;

/// The most bytes of a name.
const MAX_REF_BYTES: usize = 255;
/// Where a pattern that does not begin with `refs/` belongs.
const BRANCHES: &str = "refs/heads/";
/// The names that a pattern may contain.
const PLACEHOLDERS: [&str; 3] = ["{agent}", "{pool}", "{item}"];

/// Whether git accepts this full name of a ref (`git check-ref-format`).
pub fn is_valid(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("refs/") else { return false };
    let allowed = |byte: u8| byte > b' ' && byte != 0x7f && !b"~^:?*[\\".contains(&byte);
    let component = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.ends_with(".lock");
    name.len() <= MAX_REF_BYTES
        && name.bytes().all(allowed)
        && rest.contains('/')
        && rest.split('/').all(component)
        && !name.ends_with('.')
        && !name.contains("..")
        && !name.contains("@{")
}

/// Whether a text can be checked out: a branch, a tag, a full ref or a commit. It never looks like an option.
pub fn is_revision(text: &str) -> bool {
    !text.starts_with('-') && is_valid(&format!("{BRANCHES}{text}"))
}

/// The pattern of a pool, with placeholders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefTemplate(String);

/// The pattern for one agent: `*` stands for any characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefPattern(String);

/// Why a text is no pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TemplateError {
    /// It matches refs of everybody.
    TooWide,
    /// It has a placeholder that does not exist.
    UnknownPlaceholder,
    /// No ref can have such a name.
    NoRef,
}

impl fmt::Display for TemplateError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooWide => out
                .write_str("it is too wide: write a name before the first *, as in agents/*, and a / after a placeholder, as in {agent}/*"),
            Self::UnknownPlaceholder => write!(out, "it has a placeholder that does not exist: there are {}", PLACEHOLDERS.join(", ")),
            Self::NoRef => out.write_str("no ref can have such a name"),
        }
    }
}

impl RefTemplate {
    /// Reads a pattern: a branch (`agents/*`), or the full name of refs (`refs/tags/agents-*`).
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        let full = if text.starts_with("refs/") { text.to_owned() } else { format!("{BRANCHES}{text}") };
        let bare = PLACEHOLDERS.iter().fold(full.clone(), |bare, placeholder| bare.replace(placeholder, "x"));
        if bare.contains(['{', '}']) {
            return Err(TemplateError::UnknownPlaceholder);
        }
        // A star may stand for nothing or for much, so one ordinary name stands for all that it matches.
        if !is_valid(&bare.replace('*', "x")) {
            return Err(TemplateError::NoRef);
        }
        // `{agent}*` of the agent a-1 would match the refs of a-10.
        if full.contains("}*") {
            return Err(TemplateError::TooWide);
        }
        let kind_and_name = bare.strip_prefix("refs/").and_then(|rest| rest.split_once('/'));
        match kind_and_name {
            Some((kind, name)) if !kind.contains('*') && !name.starts_with('*') => Ok(Self(full)),
            Some(_) | None => Err(TemplateError::TooWide),
        }
    }

    /// The pattern for an agent. None: it names an item, and the agent holds none.
    pub fn fill(&self, agent: &str, pool: &str, item: Option<&str>) -> Option<RefPattern> {
        let filled = self.0.replace("{agent}", agent).replace("{pool}", pool);
        match item {
            Some(item) => Some(RefPattern(filled.replace("{item}", item))),
            None if filled.contains("{item}") => None,
            None => Some(RefPattern(filled)),
        }
    }
}

impl RefPattern {
    /// A pattern that another process has filled.
    pub fn filled(text: String) -> Self {
        Self(text)
    }

    /// Whether it matches the full name of a ref.
    pub fn matches(&self, name: &str) -> bool {
        requires::matches(&self.0, name)
    }
}

impl fmt::Display for RefPattern {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_valid_as_git_says() {
        for name in
            ["refs/heads/main", "refs/heads/a/b/c", "refs/tags/v1.0", "refs/for/main", "refs/heads/ü", "refs/heads/a@b", "refs/heads/-a"]
        {
            assert!(is_valid(name), "{name}");
        }
        let long = format!("refs/heads/{}", "x".repeat(MAX_REF_BYTES));
        for name in [
            "",
            "HEAD",
            "main",
            "refs/main",
            "refs/heads/",
            "refs//main",
            "refs/heads//a",
            "refs/heads/a/",
            "refs/heads/.a",
            "refs/heads/a/.b",
            "refs/heads/a..b",
            "refs/heads/a.lock",
            "refs/heads/a.lock/b",
            "refs/heads/a.",
            "refs/heads/a b",
            "refs/heads/a~1",
            "refs/heads/a^",
            "refs/heads/a:b",
            "refs/heads/a?",
            "refs/heads/a*",
            "refs/heads/a[b",
            "refs/heads/a\\b",
            "refs/heads/a@{1}",
            "refs/heads/a\nb",
            "refs/heads/a\0b",
            "refs/heads/a\u{7f}",
            &long,
        ] {
            assert!(!is_valid(name), "{name:?}");
        }
    }

    #[test]
    fn a_revision_is_never_an_option_or_a_path() {
        for text in ["main", "v1.0", "feature/x", "refs/pull/7/head", "0123456789abcdef0123456789abcdef01234567"] {
            assert!(is_revision(text), "{text}");
        }
        for text in ["", "-x", "--upload-pack=x", "../main", "a..b", "a b", "main~1", ":x", "/x", "x/"] {
            assert!(!is_revision(text), "{text}");
        }
    }

    #[test]
    fn a_template_gives_each_agent_its_own_pattern() {
        let fill = |text: &str, item: Option<&str>| {
            RefTemplate::parse(text).expect(text).fill("coder-1", "coders", item).map(|pattern| pattern.to_string())
        };
        assert_eq!(fill("agents/*", None).as_deref(), Some("refs/heads/agents/*"));
        assert_eq!(fill("{agent}/*", None).as_deref(), Some("refs/heads/coder-1/*"));
        assert_eq!(fill("{pool}/{item}", Some("fix-7")).as_deref(), Some("refs/heads/coders/fix-7"));
        assert_eq!(fill("{pool}/{item}", None), None, "it has no item");
        assert_eq!(fill("refs/tags/agents-*", None).as_deref(), Some("refs/tags/agents-*"));
    }

    #[test]
    fn a_template_that_is_too_wide_or_matches_nothing_is_refused() {
        let error = |text: &str| RefTemplate::parse(text).err();
        for text in ["*", "**", "refs/heads/*", "refs/*/x", "refs/tags/*x", "*-agents", "{agent}*", "x/{item}*"] {
            assert_eq!(error(text), Some(TemplateError::TooWide), "{text}");
        }
        for text in ["", "/x", "a/../*", "a b", "a~*", "refs/heads", ".x/*", "a//*"] {
            assert_eq!(error(text), Some(TemplateError::NoRef), "{text}");
        }
        for text in ["{agents}/*", "{/*", "a}"] {
            assert_eq!(error(text), Some(TemplateError::UnknownPlaceholder), "{text}");
        }
        assert_eq!(error("main"), None, "one exact branch");
    }
}
