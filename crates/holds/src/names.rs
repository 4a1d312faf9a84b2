//! Numbers for the names of limits: thousands of holds have the same few names, so each name is kept once.
//!
//! What always holds: during the life of the process a number stands for one name, and is never reused. A name that no
//! hold uses is forgotten.
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Bytes of a journal line with a name, without the name itself.
const NAME_LINE_OVERHEAD_BYTES: usize = 48;

/// The names that are in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    last: u64,
    numbers: HashMap<Arc<str>, u64>,
    known: BTreeMap<u64, Name>,
    bytes: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Name {
    text: Arc<str>,
    uses: usize,
}

/// The length of a text in JSON, quotes included.
pub fn json_bytes(text: &str) -> usize {
    let escaped = |character: char| match character {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\0'..='\u{1f}' => 6,
        other => other.len_utf8(),
    };
    2 + text.chars().map(escaped).sum::<usize>()
}

/// The largest size of names if all of them are new.
pub fn bytes<'a>(texts: impl Iterator<Item = &'a str>) -> usize {
    texts.map(|text| json_bytes(text) + NAME_LINE_OVERHEAD_BYTES).sum()
}

impl Names {
    /// Takes one more use of a name. Returns its number, and whether it is new, so that the journal must name it first.
    pub fn take(&mut self, text: &str) -> (u64, bool) {
        if let Some(number) = self.numbers.get(text).copied() {
            self.use_again(number);
            return (number, false);
        }
        self.last += 1;
        self.insert(self.last, text, 1);
        (self.last, true)
    }

    /// Reads a name from a line of the journal. False: it contradicts another line.
    pub fn read(&mut self, number: u64, text: &str) -> bool {
        match (self.known.get(&number), self.numbers.get(text)) {
            (None, None) => {
                self.insert(number, text, 0);
                self.last = self.last.max(number);
                true
            }
            (Some(known), _) => *known.text == *text,
            (None, Some(_)) => false,
        }
    }

    fn insert(&mut self, number: u64, text: &str, uses: usize) {
        let text: Arc<str> = Arc::from(text);
        self.bytes += json_bytes(&text) + NAME_LINE_OVERHEAD_BYTES;
        self.numbers.insert(Arc::clone(&text), number);
        self.known.insert(number, Name { text, uses });
    }

    /// One more hold uses this number. False: there is no such name.
    pub fn use_again(&mut self, number: u64) -> bool {
        let Some(name) = self.known.get_mut(&number) else { return false };
        name.uses += 1;
        true
    }

    /// A hold no longer uses this number.
    pub fn release(&mut self, number: u64) {
        if let Some(name) = self.known.get_mut(&number) {
            name.uses = name.uses.saturating_sub(1);
            if name.uses == 0 {
                self.forget(number);
            }
        }
    }

    fn forget(&mut self, number: u64) {
        if let Some(Name { text, uses: _ }) = self.known.remove(&number) {
            self.numbers.remove(&text);
            self.bytes -= json_bytes(&text) + NAME_LINE_OVERHEAD_BYTES;
        }
    }

    /// Forgets names from the journal that no hold uses.
    pub fn prune(&mut self) {
        let unused: Vec<u64> = self.known.iter().filter(|(_, name)| name.uses == 0).map(|(number, _)| *number).collect();
        unused.into_iter().for_each(|number| self.forget(number));
    }

    /// The name of a number.
    pub fn text(&self, number: u64) -> Option<&str> {
        self.known.get(&number).map(|name| name.text.as_ref())
    }

    /// All names, by number.
    pub fn all(&self) -> Vec<(u64, Arc<str>)> {
        self.known.iter().map(|(number, name)| (*number, Arc::clone(&name.text))).collect()
    }

    /// The most bytes that the journal needs for all names.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_one_number_while_it_is_used_and_another_one_after_that() {
        let mut names = Names::default();
        assert_eq!((names.take("a"), names.take("b"), names.take("a")), ((1, true), (2, true), (1, false)));
        names.release(1);
        assert_eq!(names.text(1), Some("a"), "it is used once more");
        names.release(1);
        assert_eq!((names.text(1), names.all().len()), (None, 1));
        assert_eq!(names.take("a"), (3, true), "a number is not used for a second text, nor again");
        names.release(3);
        names.release(2);
        assert_eq!((names.bytes(), names.all()), (0, Vec::new()), "what nobody uses takes no room");
    }

    #[test]
    fn names_of_a_journal_are_read_once_and_agree() {
        let mut names = Names::default();
        assert!(names.read(7, "a") && names.read(7, "a"), "the same may be said twice");
        assert!(!names.read(7, "b") && !names.read(8, "a"), "another meaning is refused");
        assert!(names.read(9, "c") && names.use_again(9) && !names.use_again(10));
        names.prune();
        assert_eq!((names.text(7), names.text(9)), (None, Some("c")));
        assert_eq!(names.take("a"), (10, true), "after those of the journal");
    }

    #[test]
    fn the_bytes_of_a_text_are_those_of_its_json() {
        for text in ["", "b:team/default", "quote \" slash \\ line \n\r\t", "\u{0}\u{1}\u{8}\u{c}\u{1f}\u{7f}", "gr\u{fc}n \u{1f600}"] {
            assert_eq!(json_bytes(text), serde_json::to_string(text).expect("text").len(), "{text:?}");
        }
    }
}
