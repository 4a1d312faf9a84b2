//! Values that tests of several modules share.

use spillway_wire::agent::{Input, Run, WorkSettings};
use spillway_wire::command::{BreakerMode, CommandBreakers};
use spillway_wire::sandbox::ItemSandbox;
use spillway_wire::work::{Assignment, LeaseRef};

/// Settings with which the program runs once for each item, with the task on its standard input.
pub fn per_item() -> WorkSettings {
    WorkSettings { run: Run::PerItem, input: Input::Stdin, continue_prompt: "go on".into(), max_turns: 1, max_items: None, changeset: None }
}

/// An item, leased under `epoch`.
pub fn assignment(epoch: i64) -> Assignment {
    Assignment {
        held: LeaseRef { uid: "u-1".into(), epoch },
        name: "fix-1".into(),
        queue: "fixes".into(),
        type_: None,
        payload: "do it".into(),
        attempt: 1,
        attempt_seconds: 60,
        checkpoint_ref: None,
        branch: None,
        folder: None,
        sandbox: ItemSandbox::default(),
    }
}

/// Breakers that open after three commands that fail or end with 42. The breaker of the namespace is closed.
pub fn breakers() -> CommandBreakers {
    CommandBreakers {
        mode: BreakerMode::Enforce,
        force: None,
        failure_threshold: 3,
        window_milliseconds: 120_000,
        open_milliseconds: 5_000,
        backoff_factor: 1,
        max_open_milliseconds: 900_000,
        success_threshold: 1,
        half_open_probes: 1,
        probe_milliseconds: None,
        failure_exit_codes: vec![42],
        open_globally: None,
    }
}
