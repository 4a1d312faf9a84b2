//! A conversation in words with a scheduler agent, as the task of one item: what was asked, what the agent asked back, and the
//! answer to that. All of it stands in the item, so that whichever agent takes it knows all.

/// Stands alone in a line, before what was asked back.
const ASKED_BACK: &str = "[asked back]";
/// Stands alone in a line, before the answer to it.
const ANSWERED: &str = "[answered]";
/// Begins the line that says how to answer.
const HINT: &str = "Answer with: kubectl spillway ask --answers ";
/// Before each line of an answer that is read as a part of the task before it.
const INDENT: &str = "            ";

/// How a person answers what was asked back about the item of this name.
pub fn hint(name: &str) -> String {
    format!("{HINT}{name} \"...\"")
}

/// The task of the item that answers: `task` and `result` of the one that asked back, and the words of the answer.
pub fn answered(task: &str, result: &str, words: &str) -> String {
    let result: Vec<&str> = result.lines().filter(|line| !line.starts_with(HINT)).collect();
    format!("{}\n\n{ASKED_BACK}\n{}\n\n{ANSWERED}\n{}", task.trim_end(), result.join("\n"), words.trim())
}

/// The conversation as one request, for whoever only splits words into tasks: without what was asked back, and with each
/// answer as a part of the last task.
pub fn as_one_request(text: &str) -> String {
    if !text.lines().any(|line| line == ASKED_BACK) {
        return text.to_owned();
    }
    let (mut part, mut request) = (QueryPart::Asked, Vec::new());
    for line in text.lines() {
        match (line, part) {
            (ASKED_BACK, QueryPart::Asked | QueryPart::AskedBack | QueryPart::Answered) => part = QueryPart::AskedBack,
            (ANSWERED, QueryPart::AskedBack | QueryPart::Answered) => part = QueryPart::Answered,
            (_, QueryPart::Asked) => request.push(line.to_owned()),
            (_, QueryPart::AskedBack) => {}
            (_, QueryPart::Answered) if line.trim().is_empty() => {}
            (_, QueryPart::Answered) => request.push(format!("{INDENT}{line}")),
        }
    }
    // A task goes on in the next line, not after an empty one.
    let words = request.iter().map(String::as_str).filter(|line| !line.trim().is_empty());
    words.collect::<Vec<_>>().join("\n")
}

#[derive(Clone, Copy)]
enum QueryPart {
    Asked,
    AskedBack,
    Answered,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_is_kept_whole_and_can_be_read_as_one_request() {
        let first = answered("mend the login\n", &format!("Which one?\n{}", hint("ask-1")), "the\nsecond");
        assert_eq!(first, "mend the login\n\n[asked back]\nWhich one?\n\n[answered]\nthe\nsecond");
        let second = answered(&first, "Since when?", "June");
        assert_eq!(as_one_request(&second), format!("mend the login\n{INDENT}the\n{INDENT}second\n{INDENT}June"));
        assert_eq!(as_one_request("a\n\nb"), "a\n\nb");
    }
}
