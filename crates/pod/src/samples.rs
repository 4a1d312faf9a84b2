//! What tests of more than one room are made of.

use spillway_wire::agent::{Input, Run, Work};
use spillway_wire::work::{Assignment, Held};

/// The program is run for each item, once, with the task on its standard input.
pub fn per_item() -> Work {
    Work { run: Run::PerItem, input: Input::Stdin, continue_prompt: "go on".into(), max_turns: 1, max_items: None }
}

/// An item, leased under `epoch`.
pub fn assignment(epoch: i64) -> Assignment {
    Assignment {
        held: Held { uid: "u-1".into(), epoch },
        name: "fix-1".into(),
        queue: "fixes".into(),
        type_: None,
        payload: "do it".into(),
        attempt: 1,
        attempt_seconds: 60,
        checkpoint_ref: None,
    }
}
