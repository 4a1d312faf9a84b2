//! The writer of product requirement documents. It runs once for each idea, writes the document as the item's result, and
//! queues the work that follows from it.

use std::io::Read as _;

use spillway_wire::work::{MAX_RESULT_BYTES, Outcome};

use super::decision::{Decision, cut};
use super::dialect::Message;
use super::output::print_plain;
use super::prompt;
use super::sidecar::{Sidecar, SidecarError};
use super::thinker::{ThinkResult, Thinker, note};
use crate::command::output::{EXIT_UNREACHABLE, print_to_stderr};
use crate::files;

/// The most bytes of an idea.
const MAX_IDEA_BYTES: u64 = 256 * 1024;
/// The most bytes of an idea that a document without a model quotes.
const MAX_QUOTED_BYTES: usize = 2500;
/// The most bytes of the title of a document without a model.
const MAX_TITLE_BYTES: usize = 80;

/// Writes one document; returns the exit code.
pub fn run(thinker: &Thinker, sidecar: &Sidecar, variable: impl Fn(&str) -> Option<String>) -> u8 {
    let idea = match read_idea(variable("SPILLWAY_PAYLOAD_FILE").as_deref()) {
        Ok(idea) => idea,
        Err(error) => {
            print_to_stderr(&format!("error: the idea cannot be read: {error}"));
            return 1;
        }
    };
    let result = match write(thinker, sidecar, &idea, variable("SPILLWAY_ITEM").as_deref(), variable("SPILLWAY_ITEM_UID").as_deref()) {
        Ok(result) => result,
        Err(trouble) => {
            print_to_stderr(&format!("error: {}", trouble.words()));
            // The item did not fail: another attempt is made later.
            sidecar
                .conclude(&Outcome::Release { reason: "Released".to_owned(), message: cut(trouble.words(), MAX_TITLE_BYTES).to_owned() });
            return EXIT_UNREACHABLE;
        }
    };
    print_plain(&result);
    let Some(path) = variable("SPILLWAY_RESULT_FILE") else { return 0 };
    match files::write(path.as_ref(), cut(&result, MAX_RESULT_BYTES).as_bytes(), 0o600) {
        Ok(()) => 0,
        Err(error) => {
            print_to_stderr(&format!("error: {path}: {error}"));
            1
        }
    }
}

fn read_idea(file: Option<&str>) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    match file {
        Some(file) => std::fs::File::open(file)?.take(MAX_IDEA_BYTES).read_to_end(&mut bytes)?,
        None => std::io::stdin().take(MAX_IDEA_BYTES).read_to_end(&mut bytes)?,
    };
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The document, followed by the items that were queued.
fn write(thinker: &Thinker, sidecar: &Sidecar, idea: &str, item: Option<&str>, uid: Option<&str>) -> Result<String, SidecarError> {
    let work = prompt::work(&sidecar.list(None)?);
    let (decision, why) = match thinker.think(sidecar, vec![Message::from_user(prompt::request(idea, &work))]) {
        ThinkResult::Decided(decision, _) => (decision, None),
        ThinkResult::ByRules(why) => (Decision { document: Some(by_rules(idea)), ..Decision::default() }, why),
    };
    let Decision { document, steps, .. } = decision;
    let mut parts = vec![document.unwrap_or_default()];
    let key = uid.map(|uid| format!("prd-{uid}"));
    match sidecar.queue(&steps, item, key.as_deref()) {
        Ok(items) if items.is_empty() => {}
        Ok(items) => parts.push(format!(
            "Queued: {}.",
            items.iter().map(|item| format!("{} ({})", item.name, item.type_)).collect::<Vec<_>>().join(", ")
        )),
        Err(trouble @ SidecarError::Unavailable(_)) => return Err(trouble),
        // An earlier attempt queued it.
        Err(SidecarError::Known(_)) => parts.push("The work that follows from it was queued before.".to_owned()),
        // The item asks for the document: a refusal of the follow-up work is only mentioned.
        Err(SidecarError::Refused(words)) => parts.push(format!("The work that follows from it is not queued: {}", cut(&words, 300))),
    }
    parts.extend(note(why.as_deref()));
    Ok(parts.join("\n\n"))
}

/// A document without a model: the idea in its own words, and open questions.
fn by_rules(idea: &str) -> String {
    let idea = idea.trim();
    let title = cut(idea.lines().next().unwrap_or_default(), MAX_TITLE_BYTES);
    let title = if title.is_empty() { "An idea without words" } else { title };
    format!(
        "# {title}\n\n## The idea\n{}\n\n## Open\n- Whose problem is it, and what do they do today?\n- How does one see that it is \
         done?\n- What is not part of it?",
        cut(idea, MAX_QUOTED_BYTES)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_model_the_idea_is_kept_in_its_own_words_and_fits_a_result() {
        let document = by_rules(" a dark mode\nfor nights ");
        assert!(document.starts_with("# a dark mode\n\n## The idea\na dark mode\nfor nights\n\n## Open\n- Whose"), "{document}");
        assert!(by_rules("").starts_with("# An idea without words"));
        assert!(by_rules(&"é".repeat(10_000)).len() < MAX_RESULT_BYTES - 500);
    }
}
