//! A text conversation with a scheduler agent, as the task of one item: the request, the agent's question, and the
//! answer to it. The item contains the whole conversation. Therefore any agent can continue it.

/// A line of its own before the agent's question.
const ASKED_BACK_MARKER: &str = "[asked back]";
/// A line of its own before the answer to the question.
const ANSWERED_MARKER: &str = "[answered]";
/// Start of the line that says how to answer.
const ANSWER_HINT_PREFIX: &str = "Answer with: kubectl spillway ask --answers ";
/// Prefix of each line of an answer that is read as a part of the task before it.
const ANSWER_INDENT: &str = "            ";

/// The line that tells a person how to answer the question about the item of this name.
pub fn answer_hint(name: &str) -> String {
    format!("{ANSWER_HINT_PREFIX}{name} \"...\"")
}

/// The task of the item that carries the answer: `task` and `result` of the item that asked, and the words of the
/// answer.
pub fn task_with_answer(task: &str, result: &str, words: &str) -> String {
    let result: Vec<&str> = result.lines().filter(|line| !line.starts_with(ANSWER_HINT_PREFIX)).collect();
    format!("{}\n\n{ASKED_BACK_MARKER}\n{}\n\n{ANSWERED_MARKER}\n{}", task.trim_end(), result.join("\n"), words.trim())
}

/// The conversation as one request, for a program that only splits text into tasks. The agent's questions are left out,
/// and each answer is a part of the last task.
pub fn as_one_request(text: &str) -> String {
    if !text.lines().any(|line| line == ASKED_BACK_MARKER) {
        return text.to_owned();
    }
    let (mut part, mut request) = (QueryPart::Asked, Vec::new());
    for line in text.lines() {
        match (line, part) {
            (ASKED_BACK_MARKER, QueryPart::Asked | QueryPart::AskedBack | QueryPart::Answered) => part = QueryPart::AskedBack,
            (ANSWERED_MARKER, QueryPart::AskedBack | QueryPart::Answered) => part = QueryPart::Answered,
            (_, QueryPart::Asked) => request.push(line.to_owned()),
            (_, QueryPart::AskedBack) => {}
            (_, QueryPart::Answered) if line.trim().is_empty() => {}
            (_, QueryPart::Answered) => request.push(format!("{ANSWER_INDENT}{line}")),
        }
    }
    // A task continues in the next line, but not after an empty one.
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
        let first = task_with_answer("mend the login\n", &format!("Which one?\n{}", answer_hint("ask-1")), "the\nsecond");
        assert_eq!(first, "mend the login\n\n[asked back]\nWhich one?\n\n[answered]\nthe\nsecond");
        let second = task_with_answer(&first, "Since when?", "June");
        assert_eq!(as_one_request(&second), format!("mend the login\n{ANSWER_INDENT}the\n{ANSWER_INDENT}second\n{ANSWER_INDENT}June"));
        assert_eq!(as_one_request("a\n\nb"), "a\n\nb");
    }
}
