//! The buddy: an agent that talks to the person at its terminal. It queues the work that the person asks for, and prints the
//! results as they come.

use std::io::{BufRead as _, Read as _, Write as _};

use super::decision::Decision;
use super::dialect::Message;
use super::output::print_plain;
use super::prompt;
use super::scheduler::by_rules;
use super::sidecar::{Sidecar, SidecarError};
use super::thinker::{ThinkResult, Thinker, note};
use crate::command::output::print;

/// The most bytes of a line; a terminal gives no more than 4,096.
const MAX_LINE_BYTES: u64 = 16 * 1024;
/// The most bytes of a conversation that the model gets again. Older messages are forgotten.
const MAX_CONVERSATION_BYTES: usize = 32 * 1024;

/// Talks until standard input ends; returns the exit code.
pub fn run(mut thinker: Thinker, sidecar: &Sidecar) -> u8 {
    let listener = sidecar.clone();
    std::thread::spawn(move || listener.listen(print_plain));
    print("buddy: tell me about bugs, tasks and ideas, or ask how they are.");
    let mut input = std::io::stdin().lock();
    let mut conversation = Vec::new();
    loop {
        show_prompt();
        let mut line = Vec::new();
        match input.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return 0,
            Ok(_) => {}
        }
        let words = String::from_utf8_lossy(&line).trim().to_owned();
        if words.is_empty() {
            continue;
        }
        thinker.refresh();
        print_plain(&answer(&thinker, sidecar, &mut conversation, &words));
    }
}

/// Prints the prompt for the next line.
fn show_prompt() {
    let mut out = std::io::stdout();
    let _ = write!(out, "> ").and_then(|()| out.flush()); // a closed output is no error
}

fn answer(thinker: &Thinker, sidecar: &Sidecar, conversation: &mut Vec<Message>, words: &str) -> String {
    let work = match sidecar.list(None) {
        Ok(listed) => prompt::work(&listed),
        Err(trouble) => return format!("Spillway does not answer now. Please repeat this later: {}", trouble.words()),
    };
    let mut messages = conversation.clone();
    messages.push(Message::from_user(prompt::request(words, &work)));
    let (decision, why) = match thinker.think(sidecar, messages) {
        ThinkResult::Decided(decision, said) => {
            remember(conversation, words, said);
            (decision, None)
        }
        ThinkResult::ByRules(why) => (by_rules(words, thinker, work), why),
    };
    let Decision { say, questions, steps, document: _ } = decision;
    let mut parts = Vec::new();
    parts.extend((!say.is_empty()).then_some(say));
    parts.extend(questions);
    match sidecar.queue(&steps, None, None) {
        Ok(items) => parts.extend(items.iter().map(|item| format!("Queued {} ({}, queue {}).", item.name, item.type_, item.queue))),
        Err(SidecarError::Unavailable(words)) => parts.push(format!("I could not queue it. Please repeat this later: {words}")),
        Err(SidecarError::Known(words) | SidecarError::Refused(words)) => parts.push(format!("I may not queue it: {words}")),
    }
    parts.extend(note(why.as_deref()));
    parts.join("\n")
}

/// Adds a question and its answer, and forgets the oldest pairs until the rest fits.
fn remember(conversation: &mut Vec<Message>, words: &str, said: String) {
    conversation.extend([Message::from_user(words.to_owned()), Message::from_model(said)]);
    let size = |messages: &[Message]| messages.iter().map(|message| message.text.len()).sum::<usize>();
    while size(conversation) > MAX_CONVERSATION_BYTES && conversation.len() > 2 {
        conversation.drain(..2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_forgets_its_oldest_words_in_pairs() {
        let mut conversation = Vec::new();
        for number in 0..10 {
            remember(&mut conversation, &format!("{number}{}", "x".repeat(8 * 1024)), "y".to_owned());
        }
        assert_eq!(conversation.len(), 6);
        assert!(conversation[0].text.starts_with('7') && !conversation[0].by_model && conversation[1].by_model);
    }
}
