//! A word of a command, with places for arguments: `{bundle}:refs/heads/{branch}`. `{{` and `}}` stand for braces. Pure.

/// A part of a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Text that stays as it is.
    Literal(String),
    /// The value of the argument with this name.
    Argument(String),
}

/// A word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
}

impl Template {
    /// The word that is one argument.
    pub fn argument(name: &str) -> Self {
        Self { parts: vec![Part::Argument(name.to_owned())] }
    }

    /// Reads a word, or says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text.chars().peekable();
        while let Some(character) = rest.next() {
            match character {
                '{' | '}' if rest.peek() == Some(&character) => {
                    literal.extend(rest.next());
                }
                '{' => {
                    let mut name = String::new();
                    loop {
                        match rest.next() {
                            Some('}') => break,
                            Some('{') | None => return Err(format!("{text:?}: a `{{` has no `}}`; write `{{{{` for a brace")),
                            Some(character) => name.push(character),
                        }
                    }
                    if !literal.is_empty() {
                        parts.push(Part::Literal(std::mem::take(&mut literal)));
                    }
                    parts.push(Part::Argument(name));
                }
                '}' => return Err(format!("{text:?}: a `}}` has no `{{`; write `}}}}` for a brace")),
                '\0' => return Err("a word cannot contain NUL".to_owned()),
                character => literal.push(character),
            }
        }
        if !literal.is_empty() || parts.is_empty() {
            parts.push(Part::Literal(literal));
        }
        Ok(Self { parts })
    }

    /// The arguments in the word.
    pub fn arguments(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::Argument(name) => Some(name.as_str()),
            Part::Literal(_) => None,
        })
    }

    /// The argument that the word begins with.
    pub fn first_argument(&self) -> Option<&str> {
        match self.parts.first() {
            Some(Part::Argument(name)) => Some(name),
            Some(Part::Literal(_)) | None => None,
        }
    }

    /// The word with values. `None`: an argument has none, so that the word is left out.
    pub fn fill<'a>(&self, value: impl Fn(&str) -> Option<&'a str>) -> Option<String> {
        let mut word = String::new();
        for part in &self.parts {
            match part {
                Part::Literal(text) => word.push_str(text),
                Part::Argument(name) => word.push_str(value(name)?),
            }
        }
        Some(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(text: &str) -> Option<String> {
        let value = |name: &str| match name {
            "a" => Some("{b} $(x)"),
            "b" => Some("2"),
            _ => None,
        };
        Template::parse(text).expect(text).fill(value)
    }

    #[test]
    fn a_value_is_never_read_again() {
        assert_eq!(filled("{a}:{b}").as_deref(), Some("{b} $(x):2"));
        assert_eq!(filled("x{{{b}}}y").as_deref(), Some("x{2}y"));
        assert_eq!(filled("{{a}}").as_deref(), Some("{a}"));
        assert_eq!(filled("").as_deref(), Some(""));
        assert_eq!(filled("--x={missing}"), None, "the whole word is left out");
        let word = Template::parse("{a}-{b}").expect("a word");
        assert_eq!((word.arguments().collect::<Vec<_>>(), word.first_argument()), (vec!["a", "b"], Some("a")));
        assert_eq!(Template::parse("x{a}").expect("a word").first_argument(), None);
    }

    #[test]
    fn a_lonely_brace_is_an_error() {
        for text in ["{", "}", "{a", "a}", "{a{b}}", "{a}}", "\0"] {
            Template::parse(text).expect_err(text);
        }
    }
}
