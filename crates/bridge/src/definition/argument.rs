//! The arguments that a call may give, and the checks of their values. Pure.

use serde_json::Value;
use spillway_wire::artifact::{NAME_RULE, is_name};
use unicode_normalization::is_nfc;

use super::pattern::Pattern;

/// The most characters of a text, unless its definition says less or more.
pub const DEFAULT_MAX_CHARS: u32 = 1024;
/// The most characters that a definition may say.
pub const MAX_CHARS: u32 = 16 * 1024;

/// An argument.
#[derive(Clone, Debug)]
pub struct Argument {
    /// Its name.
    pub name: String,
    /// What it means.
    pub description: String,
    /// Whether each call has it.
    pub required: bool,
    /// Its type.
    pub type_: ArgumentType,
}

/// The type of an argument.
#[derive(Clone, Debug)]
pub enum ArgumentType {
    /// A text.
    Text {
        /// The pattern that the whole text matches.
        pattern: Option<Pattern>,
        /// The pattern as it was written.
        written: Option<String>,
        /// The most characters.
        max_chars: u32,
        /// Whether it may begin with a dash. Otherwise a program could take it for an option.
        leading_dash: bool,
        /// Whether it may have several lines. No word of a command has.
        multiline: bool,
    },
    /// A whole number.
    Integer {
        /// The least one.
        min: i64,
        /// The greatest one.
        max: i64,
    },
    /// `true` or `false`.
    Boolean,
    /// One of these texts.
    Enum(Vec<String>),
    /// An artifact of the agent's item, by its name.
    Artifact,
}

/// A checked value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checked {
    /// The text of the value, as the program gets it.
    Text(String),
    /// The name of an artifact. The program gets the path of a private copy.
    Artifact(String),
}

/// Why a value is refused: the rule in one word, and a message.
pub type Refusal = (&'static str, String);

impl Argument {
    /// The bytes of memory of its pattern.
    pub fn pattern_bytes(&self) -> usize {
        match &self.type_ {
            ArgumentType::Text { pattern: Some(pattern), .. } => pattern.bytes(),
            ArgumentType::Text { pattern: None, .. }
            | ArgumentType::Integer { .. }
            | ArgumentType::Boolean
            | ArgumentType::Enum(_)
            | ArgumentType::Artifact => 0,
        }
    }

    /// Checks the value of a call.
    pub fn check(&self, value: &Value) -> Result<Checked, Refusal> {
        let wrong_type = |expected: &str| ("type", format!("must be {expected}"));
        match &self.type_ {
            ArgumentType::Text { pattern, written, max_chars, leading_dash, multiline } => {
                let text = value.as_str().ok_or_else(|| wrong_type("a string"))?;
                let count = text.chars().count();
                if count > usize::try_from(*max_chars).unwrap_or(usize::MAX) {
                    return Err(("maxLength", format!("has {count} characters, and may have {max_chars}")));
                }
                check_text(text, *multiline)?;
                if text.starts_with('-') && !leading_dash {
                    return Err(("leadingDash", "must not begin with `-`: the program would take it for an option".to_owned()));
                }
                match pattern {
                    Some(pattern) if !pattern.matches(text) => {
                        Err(("pattern", format!("does not match {}", written.as_deref().unwrap_or_default())))
                    }
                    Some(_) | None => Ok(Checked::Text(text.to_owned())),
                }
            }
            ArgumentType::Integer { min, max } => {
                let number = value.as_i64().ok_or_else(|| wrong_type("a whole number"))?;
                if (*min..=*max).contains(&number) {
                    Ok(Checked::Text(number.to_string()))
                } else {
                    Err(("range", format!("must be from {min} to {max}")))
                }
            }
            ArgumentType::Boolean => {
                let value = value.as_bool().ok_or_else(|| wrong_type("true or false"))?;
                Ok(Checked::Text(value.to_string()))
            }
            ArgumentType::Enum(values) => {
                let text = value.as_str().ok_or_else(|| wrong_type("a string"))?;
                if values.iter().any(|known| known == text) {
                    Ok(Checked::Text(text.to_owned()))
                } else {
                    Err(("enum", format!("must be one of: {}", values.join(", "))))
                }
            }
            ArgumentType::Artifact => {
                let name = value.as_str().ok_or_else(|| wrong_type("the name of an artifact"))?;
                if is_name(name) {
                    Ok(Checked::Artifact(name.to_owned()))
                } else {
                    Err(("artifact", format!("is no name of an artifact, which has {NAME_RULE}")))
                }
            }
        }
    }
}

/// Refuses characters that look like others, or like none: control characters, marks that turn the direction of a line, line separators, and
/// texts that are not in the normal form NFC.
pub fn check_characters(text: &str) -> Result<(), Refusal> {
    check_text(text, false)
}

/// As [`check_characters`]. `multiline`: line feeds and tabs are allowed.
fn check_text(text: &str, multiline: bool) -> Result<(), Refusal> {
    let name = |character: char| format!("U+{:04X}", u32::from(character));
    let is_refused = |character: &char| character.is_control() && !(multiline && matches!(character, '\n' | '\t'));
    if let Some(control) = text.chars().find(is_refused) {
        return Err(("control", format!("contains the control character {}", name(control))));
    }
    if let Some(mark) = text.chars().find(|character| is_deceptive(*character)) {
        return Err(("bidi", format!("contains {}, which changes how a line is shown", name(mark))));
    }
    if is_nfc(text) { Ok(()) } else { Err(("normalForm", "is not in the Unicode normal form NFC".to_owned())) }
}

/// Marks of direction, line separators, and the byte order mark.
pub fn is_deceptive(character: char) -> bool {
    matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn argument(type_: ArgumentType) -> Argument {
        Argument { name: "a".into(), description: String::new(), required: true, type_ }
    }

    fn text(pattern: Option<&str>, leading_dash: bool) -> Argument {
        let compiled = pattern.map(|text| Pattern::parse(text).expect("a pattern"));
        argument(ArgumentType::Text {
            pattern: compiled,
            written: pattern.map(str::to_owned),
            max_chars: 10,
            leading_dash,
            multiline: false,
        })
    }

    #[test]
    fn each_hostile_text_is_refused_with_its_rule() {
        for (value, rule) in [
            (json!("-rf"), "leadingDash"),
            (json!("--"), "leadingDash"),
            (json!("a\0b"), "control"),
            (json!("a\nb"), "control"),
            (json!("a\rb"), "control"),
            (json!("\u{1b}[2J"), "control"),
            (json!("\u{85}"), "control"),
            (json!("a\u{202e}b"), "bidi"),
            (json!("a\u{2066}b"), "bidi"),
            (json!("\u{feff}a"), "bidi"),
            (json!("e\u{301}"), "normalForm"),
            (json!("x".repeat(11)), "maxLength"),
            (json!(1), "type"),
            (json!(null), "type"),
            (json!(["a"]), "type"),
            (json!({"a": 1}), "type"),
        ] {
            assert_eq!(text(None, false).check(&value).expect_err("refused").0, rule, "{value}");
        }
        // No shell reads it, so that these are ordinary characters.
        for harmless in ["$(id)", "`id`", "a;b", "a|b", "a&b", "*", "a b", "'\"", "é", "日本", "a-b"] {
            assert_eq!(text(None, false).check(&json!(harmless)), Ok(Checked::Text(harmless.to_owned())));
        }
        assert_eq!(text(None, true).check(&json!("-x")), Ok(Checked::Text("-x".into())));
        assert_eq!(text(Some("[a-z]+"), false).check(&json!("a;b")).expect_err("refused").0, "pattern");
        let lines = argument(ArgumentType::Text { pattern: None, written: None, max_chars: 10, leading_dash: true, multiline: true });
        assert_eq!(lines.check(&json!("a\n\tb")), Ok(Checked::Text("a\n\tb".into())));
        assert_eq!(lines.check(&json!("a\r")).expect_err("refused").0, "control");
    }

    #[test]
    fn other_types_take_only_their_own_values() {
        let number = argument(ArgumentType::Integer { min: 1, max: 5 });
        assert_eq!(number.check(&json!(5)), Ok(Checked::Text("5".into())));
        for (value, rule) in
            [(json!(0), "range"), (json!(6), "range"), (json!(1.5), "type"), (json!("1"), "type"), (json!(u64::MAX), "type")]
        {
            assert_eq!(number.check(&value).expect_err("refused").0, rule, "{value}");
        }
        let boolean = argument(ArgumentType::Boolean);
        assert_eq!(boolean.check(&json!(true)), Ok(Checked::Text("true".into())));
        assert_eq!(boolean.check(&json!("yes")).expect_err("refused").0, "type");
        let one = argument(ArgumentType::Enum(vec!["yes".into(), "no".into()]));
        assert_eq!(one.check(&json!("no")), Ok(Checked::Text("no".into())));
        assert_eq!(one.check(&json!(false)).expect_err("refused").0, "type");
        assert_eq!(one.check(&json!("No")).expect_err("refused").0, "enum");
        let artifact = argument(ArgumentType::Artifact);
        assert_eq!(artifact.check(&json!("0a-1.bundle")), Ok(Checked::Artifact("0a-1.bundle".into())));
        for bad in ["", "../x", ".x", "-x", "a/b", "a b", "é"] {
            assert_eq!(artifact.check(&json!(bad)).expect_err("refused").0, "artifact", "{bad}");
        }
    }
}
