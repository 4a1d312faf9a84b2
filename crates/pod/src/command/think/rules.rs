//! The decision about a request without a model: it is split into tasks, and words decide the type of each. Pure.
//!
//! | request | result |
//! |---|---|
//! | a question (`status`, `how far are you?`, any text that ends with `?`) | no task |
//! | one task | one step |
//! | several tasks: on separate lines, numbered, or separated by semicolons | one step for each |
//! | a task that begins with `then` | a step that waits for all tasks before it |
//!
//! A line belongs to the task before it if it is indented further, or is between two lines of three backticks.

use super::decision::Step;
use super::routes::Routes;

/// The kind of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// It has no words.
    Nothing,
    /// Each of its tasks is a question.
    Question,
    /// It asks for work.
    Work(Vec<Step>),
}

/// Reads a request.
pub fn read(text: &str, routes: &Routes) -> Request {
    let tasks = Splitter::default().split(text);
    if tasks.is_empty() {
        return Request::Nothing;
    }
    if tasks.iter().all(|task| is_question(&task.text)) {
        return Request::Question;
    }
    let step = |(at, task): (usize, &Task)| {
        let before = tasks.iter().enumerate().filter(|(_, other)| other.stage + 1 == task.stage);
        Step::of_type(routes, (at + 1).to_string(), before.map(|(at, _)| (at + 1).to_string()).collect(), &task.text)
    };
    Request::Work(tasks.iter().enumerate().map(step).collect())
}

/// A task, and its stage: it waits for the tasks of the stage before.
struct Task {
    text: String,
    stage: usize,
}

#[derive(Default)]
struct Splitter {
    tasks: Vec<Task>,
    stage: usize,
    /// The next task waits for the tasks before it.
    waits: bool,
    /// A further line may belong to the last task.
    open: bool,
    /// All lines up to the next fence belong to the last task.
    fenced: bool,
    /// The indent of the last task's line.
    margin: usize,
}

impl Splitter {
    fn split(mut self, text: &str) -> Vec<Task> {
        text.split('\n').for_each(|line| self.line(line));
        for task in &mut self.tasks {
            task.text = trim(&task.text).to_owned();
        }
        self.tasks
    }

    fn line(&mut self, line: &str) {
        let fence = line.trim_start_matches([' ', '\t']).starts_with("```");
        if self.open
            && (self.fenced || fence || (indent(line) > self.margin && !trim(line).is_empty()))
            && let Some(last) = self.tasks.last_mut()
        {
            last.text.push('\n');
            last.text.push_str(line);
            self.fenced ^= fence;
            return;
        }
        let before = self.tasks.len();
        self.margin = indent(line);
        if fence {
            self.fenced = true;
            self.add(line);
        } else {
            line.split(';').for_each(|part| self.numbered(part));
        }
        self.open = self.tasks.len() > before;
    }

    /// `1. one 2. two` on one line.
    fn numbered(&mut self, text: &str) {
        let mut rest = text;
        if marked(trim(text), 1).is_some() {
            for number in 2.. {
                let next =
                    rest.char_indices().find(|(at, letter)| is_blank(*letter) && marked(&rest[at + letter.len_utf8()..], number).is_some());
                let Some((at, _)) = next else { break };
                self.add(&rest[..at]);
                rest = &rest[at..];
            }
        }
        self.add(rest);
    }

    /// Adds a task, without the mark of a list before it.
    fn add(&mut self, text: &str) {
        let mut text = without_mark(trim(text));
        if let Some(rest) = after_then(text) {
            text = rest;
            self.waits = !self.tasks.is_empty();
        }
        if text.is_empty() {
            return;
        }
        // Two tasks in a row that begin with `then` get two stages.
        self.stage += usize::from(self.waits);
        self.waits = false;
        self.tasks.push(Task { text: text.to_owned(), stage: self.stage });
    }
}

fn is_blank(letter: char) -> bool {
    letter == ' ' || letter == '\t'
}

fn trim(text: &str) -> &str {
    text.trim_matches([' ', '\t', '\r', '\n'])
}

/// The width of the blanks before a line; a tab is eight of them.
fn indent(line: &str) -> usize {
    line.chars().take_while(|letter| is_blank(*letter)).map(|letter| if letter == '\t' { 8 } else { 1 }).sum()
}

/// The text after the mark `N.`, `N)` or `(N)` and a blank.
fn marked(text: &str, number: usize) -> Option<&str> {
    let text = text.strip_prefix('(').unwrap_or(text).strip_prefix(&number.to_string())?;
    text.strip_prefix(['.', ')'])?.strip_prefix(is_blank)
}

/// The text without the mark of a list before it.
fn without_mark(text: &str) -> &str {
    let digits = text.strip_prefix('(').unwrap_or(text);
    let after_digits = digits.trim_start_matches(|letter: char| letter.is_ascii_digit());
    let numbered = if after_digits.len() < digits.len() { after_digits.strip_prefix(['.', ')']) } else { None };
    let rest = numbered.or_else(|| text.strip_prefix(['-', '*', '+']));
    rest.filter(|rest| rest.starts_with(is_blank)).map_or(text, |rest| rest.trim_start_matches(is_blank))
}

/// The text after `then` or `and then`.
fn after_then(text: &str) -> Option<&str> {
    let strip =
        |text: &str, word: &str| -> Option<usize> { text.get(..word.len()).filter(|start| start.eq_ignore_ascii_case(word)).map(str::len) };
    let text = strip(text, "and ").map_or(text, |length| &text[length..]);
    let rest = &text[strip(text, "then")?..];
    let ends = [' ', '\t', ',', ':'];
    (rest.is_empty() || rest.starts_with(ends)).then(|| rest.trim_start_matches(ends))
}

/// First words of a question without a question mark.
const QUESTION_PREFIXES: [&str; 24] = [
    "how far ",
    "how many ",
    "how much ",
    "how long ",
    "how is ",
    "how are ",
    "how does ",
    "how do ",
    "how goes ",
    "what's ",
    "what is ",
    "what are ",
    "what was ",
    "what did ",
    "what happened ",
    "where's ",
    "where is ",
    "where are ",
    "when will ",
    "when is ",
    "when are ",
    "when does ",
    "who ",
    "why ",
];

fn is_question(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    let polite = ["please", "can you", "could you", "would you", "will you"];
    if polite.iter().any(|words| text.strip_prefix(words).is_some_and(|rest| rest.starts_with([' ', ',']))) {
        return false;
    }
    if text.trim_end_matches([' ', '\t', '"', '\'', ')']).ends_with('?') {
        return true;
    }
    asks_status(&text) || QUESTION_PREFIXES.iter().any(|beginning| text.starts_with(beginning))
}

/// Whether a text asks for the state of the work: `the current progress please`, `show me the status`, `news of the login`.
fn asks_status(text: &str) -> bool {
    let skip = |text: &'_ str, words: &[&str]| -> usize { words.iter().find(|word| text.starts_with(**word)).map_or(0, |word| word.len()) };
    let over = |rest: &str| rest.trim_matches([' ', '.', '!']).is_empty();
    let shown = skip(text, &["show", "tell", "give"]);
    if shown > 0 {
        let mut rest = &text[shown..];
        for words in [&[" me", " us"][..], &[" the", " your"], &[" current"]] {
            rest = &rest[skip(rest, words)..];
        }
        let asked = skip(rest, &[" status", " progress"]);
        return asked > 0 && over(&rest[asked..]);
    }
    let mut rest = text;
    for words in [&["the ", "your ", "any "][..], &["current "]] {
        rest = &rest[skip(rest, words)..];
    }
    let asked = skip(rest, &["status", "progress", "news"]);
    if asked == 0 {
        return false;
    }
    let rest = &rest[asked..];
    skip(rest, &[" of ", " for ", " on "]) > 0 || over(&rest[skip(rest, &[" report", " update", " please"])..])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Key, what it waits for, type and task of each step.
    fn steps(text: &str) -> Vec<(String, Vec<String>, String, String)> {
        match read(text, &Routes::default()) {
            Request::Work(steps) => steps.into_iter().map(|step| (step.key, step.after, step.type_, step.task)).collect(),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn one_task_is_one_step_with_its_words_as_they_are() {
        let cases = [
            "the clock runs backwards: FIX it",
            "Can you fix the status page?",
            "\"}],\"x\":[{\" $(touch x) `id` ' \\ \\n %s -- é",
            "a stack:\n```\nthen; one\n\n2. two\n```",
            "a list of\n  - what belongs to it\n\tand more",
            "statuses of all; ",
        ];
        for words in cases {
            let steps = steps(&format!(" {words}\n\n"));
            let task = words.trim_end_matches("; ");
            assert_eq!(steps.iter().map(|step| (step.0.as_str(), step.3.as_str())).collect::<Vec<_>>(), [("1", task)], "{words}");
        }
    }

    #[test]
    fn several_tasks_are_steps_in_the_order_that_was_said() {
        type Row<'a> = (&'a str, &'a [&'a str], &'a str, &'a str);
        let cases: [(&str, &[Row]); 7] = [
            ("fix a; tidy b", &[("1", &[], "bug", "fix a"), ("2", &[], "chore", "tidy b")]),
            (
                "1. fix a\r\n2) write a PRD for b\n(3) then tidy c\n- d",
                &[
                    ("1", &[], "bug", "fix a"),
                    ("2", &[], "idea", "write a PRD for b"),
                    ("3", &["1", "2"], "chore", "tidy c"),
                    ("4", &["1", "2"], "chore", "d"),
                ],
            ),
            ("1. fix a 2. tidy 3.5 things", &[("1", &[], "bug", "fix a"), ("2", &[], "chore", "tidy 3.5 things")]),
            ("then a\nthen\nb; and then, c;\n\n;", &[("1", &[], "chore", "a"), ("2", &["1"], "chore", "b"), ("3", &["2"], "chore", "c")]),
            ("  a\n    with more; of it\n  b", &[("1", &[], "chore", "a\n    with more; of it"), ("2", &[], "chore", "b")]),
            ("thence a; then: b", &[("1", &[], "chore", "thence a"), ("2", &["1"], "chore", "b")]),
            ("(then) a; é; thé", &[("1", &[], "chore", "(then) a"), ("2", &[], "chore", "é"), ("3", &[], "chore", "thé")]),
        ];
        for (words, expected) in cases {
            let steps = steps(words);
            let rows: Vec<_> = steps
                .iter()
                .map(|(key, after, type_, task)| (key.as_str(), after.iter().map(String::as_str).collect(), type_.as_str(), task.as_str()))
                .collect();
            let expected: Vec<(&str, Vec<&str>, &str, &str)> =
                expected.iter().map(|(key, after, type_, task)| (*key, after.to_vec(), *type_, *task)).collect();
            assert_eq!(rows, expected, "{words}");
        }
    }

    #[test]
    fn a_question_is_no_work_and_a_question_among_tasks_is() {
        let questions = [
            "status",
            "Status report.",
            "how far are you",
            "How many items are left?",
            "what is worker doing",
            "is it done?",
            "the status of a; and b?",
            "show me the current progress!",
        ];
        for words in questions {
            assert_eq!(read(words, &Routes::default()), Request::Question, "{words}");
        }
        for words in ["", " \n;\n", "then"] {
            assert_eq!(read(words, &Routes::default()), Request::Nothing, "{words:?}");
        }
        assert_eq!(steps("fix a; how far are you?").len(), 2);
    }
}
