//! How the supervisor runs the steps of a changeset: commands of our own binary, and the pool's verify command. It does not decide
//! when: [`changeset`](super::changeset) does.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use spillway_wire::changeset::{ChangesetSettings, ChangesetTarget, PendingCommit};
use spillway_wire::work::Assignment;

use super::changeset::{Action, Step};
use super::command_run::RunEvent;
use super::item;
use super::supervisor::Supervisor;
use crate::clock::BootTime;

/// The variable with the name of the agent.
const AGENT_NAME_VARIABLE: &str = "SPILLWAY_AGENT_NAME";

impl Supervisor {
    /// Makes the clone or the copy of the item in hand.
    pub(super) fn prepare_changeset(&mut self) {
        let actions = self.changeset.prepare(BootTime::now());
        self.run_changeset_actions(actions);
    }

    /// Commits the changes of the item in hand.
    pub(super) fn commit_changeset(&mut self) {
        let settings = self.items.changeset_settings();
        let seconds = settings.filter(|settings| !settings.verify.is_empty()).map(|settings| settings.verify_seconds);
        let actions = self.changeset.commit(BootTime::now(), seconds.map(|seconds| Duration::from_secs(seconds.into())));
        self.run_changeset_actions(actions);
    }

    /// The sidecar names the commit to the gateway.
    pub(super) fn commit_named(&mut self, commit: &PendingCommit) {
        let actions = self.changeset.named(BootTime::now(), commit);
        self.run_changeset_actions(actions);
    }

    /// Stops the work on the changeset of the item in hand.
    pub(super) fn stop_changeset(&mut self) {
        let actions = self.changeset.stop(BootTime::now());
        self.run_changeset_actions(actions);
    }

    pub(super) fn on_changeset(&mut self, event: RunEvent) {
        let actions = self.changeset.on(BootTime::now(), event);
        self.run_changeset_actions(actions);
    }

    fn run_changeset_actions(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Run(step) => self.start_step(&step),
                Action::KillAll => self.init.signal_all(Signal::KILL),
                Action::Judge => {
                    let (output, tail) = (self.output.standard_output(), self.output.tail());
                    let actions = self.changeset.judge(BootTime::now(), &output, &tail);
                    self.run_changeset_actions(actions);
                }
                Action::Prepared(ended) => self.on_item(item::Event::Prepared(ended)),
                Action::Committed(ended) => self.on_item(item::Event::Committed(ended)),
            }
        }
    }

    fn start_step(&mut self, step: &Step) {
        let (command, environment) = match (self.items.assignment(), self.items.changeset_settings()) {
            (Some(_), Some(settings)) if *step == Step::Verify => {
                (settings.verify.iter().map(OsString::from).collect(), self.environment())
            }
            (Some(item), Some(settings)) => {
                let agent = self.environment.get(AGENT_NAME_VARIABLE).and_then(|name| name.to_str()).unwrap_or_default();
                (command(&self.own, agent, self.changeset.seal(), step, item, settings), self.environment.clone())
            }
            // Unreachable: an item whose pool has no changesets has no step.
            (None, _) | (_, None) => return self.stop_changeset(),
        };
        match self.start_command(&command, &environment) {
            Ok(pid) => self.step_pid = Some(pid),
            Err(why) => self.on_changeset(RunEvent::NotStarted(why)),
        }
    }
}

/// The command of a step, but for the pool's own.
fn command(own: &Path, agent: &str, seal: &str, step: &Step, item: &Assignment, settings: &ChangesetSettings) -> Vec<OsString> {
    let mut words = Vec::new();
    let mut option = |name: &str, value: &str| words.extend([format!("--{name}"), value.to_owned()]);
    let branch = item.branch.as_deref().unwrap_or_default();
    let verb = match (step, &settings.target) {
        (Step::Prepare, ChangesetTarget::Repository { remote, revision, depth }) => {
            option("remote", remote);
            option("agent", agent);
            revision.iter().for_each(|revision| option("ref", revision));
            depth.iter().for_each(|depth| option("depth", &depth.to_string()));
            "prepare"
        }
        (Step::Prepare, ChangesetTarget::Folder { .. }) => "copy",
        (Step::Commit(base), ChangesetTarget::Repository { .. }) => {
            option("base", base);
            option("branch", branch);
            option("agent", agent);
            option("item", &item.name);
            option("item-uid", &item.held.uid);
            "commit"
        }
        (Step::Commit(base), ChangesetTarget::Folder { .. }) => {
            option("base", base);
            option("name", item.folder.as_deref().unwrap_or_default());
            "compare"
        }
        (Step::Push(PendingCommit { old, new }), ChangesetTarget::Repository { .. }) => {
            option("branch", branch);
            option("old", old);
            option("new", new);
            "push"
        }
        (Step::Push(_), ChangesetTarget::Folder { .. }) => "apply",
        (Step::Verify, _) => "",
    };
    if let Step::Commit(_) = step {
        settings.protect.iter().for_each(|path| option("protect", path));
        settings.max_bytes.iter().for_each(|bytes| option("max-bytes", &bytes.to_string()));
    }
    if let ChangesetTarget::Repository { .. } = settings.target {
        option("seal", seal);
    }
    if matches!(step, Step::Prepare | Step::Commit(_)) {
        words.extend(settings.files.iter().flat_map(|(from, to)| ["--file".to_owned(), from.clone(), to.clone()]));
    }
    let start = [own.as_os_str().to_owned(), "changeset".into(), verb.into()];
    start.into_iter().chain(words.into_iter().map(OsString::from)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn the_commands_name_all_that_the_pool_says() {
        let settings = ChangesetSettings {
            target: ChangesetTarget::Repository {
                remote: "https://git.example.com/a".into(),
                revision: Some("main".into()),
                depth: Some(5),
            },
            protect: vec!["ci".into(), "--x".into()],
            max_bytes: Some(100),
            verify: Vec::new(),
            verify_seconds: 600,
            files: vec![("/spillway/files/0/content".into(), "/workspace/AGENTS.md".into())],
        };
        let item = Assignment { branch: Some("spillway/fix-1".into()), folder: Some("data/a".into()), ..samples::assignment(1) };
        let of_target = |step: &Step, settings: &ChangesetSettings| {
            let words = command(Path::new("/bin/x"), "coders-1", "s", step, &item, settings);
            words.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
        };
        let of = |step: &Step| of_target(step, &settings);
        let file = "--file /spillway/files/0/content /workspace/AGENTS.md";
        assert_eq!(
            of(&Step::Prepare),
            format!("/bin/x changeset prepare --remote https://git.example.com/a --agent coders-1 --ref main --depth 5 --seal s {file}")
        );
        assert_eq!(
            of(&Step::Commit("b".into())),
            format!(
                "/bin/x changeset commit --base b --branch spillway/fix-1 --agent coders-1 --item fix-1 --item-uid u-1 --protect ci \
                 --protect --x --max-bytes 100 --seal s {file}"
            )
        );
        let commit = PendingCommit { old: "o".into(), new: "n".into() };
        assert_eq!(of(&Step::Push(commit.clone())), "/bin/x changeset push --branch spillway/fix-1 --old o --new n --seal s");
        let folder = ChangesetSettings { target: ChangesetTarget::Folder { folder: "sites/a".into() }, ..settings.clone() };
        let of = |step: &Step| of_target(step, &folder);
        assert_eq!(of(&Step::Prepare), format!("/bin/x changeset copy {file}"));
        let expected = format!("/bin/x changeset compare --base b --name data/a --protect ci --protect --x --max-bytes 100 {file}");
        assert_eq!(of(&Step::Commit("b".into())), expected);
        assert_eq!(of(&Step::Push(commit)), "/bin/x changeset apply", "the volume is the sidecar's alone");
    }
}
