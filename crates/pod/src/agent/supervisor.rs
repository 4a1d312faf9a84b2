//! The state of the supervisor, which its loop and the files for its actions share.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::path::PathBuf;

use spillway_wire::agent::{Checkpoint, Notice, Settings};
use tokio::sync::{mpsc, watch};

use super::changeset::Changeset;
use super::control::SupervisorReport;
use super::health::Health;
use super::item::Items;
use super::item_files::ItemFiles;
use super::life::Life;
use super::notices::Notices;
use super::options::Options;
use super::output::LastOutput;
use super::preflight::Preflight;
use super::processes::Init;
use super::terminal::Terminal;
use super::watchdog::Watchdog;
use crate::agent_says;
use crate::clock::BootTime;

/// A hook that runs.
pub(super) struct Hook {
    pub pid: i32,
    pub until: BootTime,
}

/// The state of the supervisor.
pub(super) struct Supervisor {
    pub(super) init: Init,
    pub(super) options: Options,
    pub(super) environment: BTreeMap<String, OsString>,
    /// The program's `PATH` with the timed shells; `None` if its image has no shell.
    pub(super) timed_path: Option<OsString>,
    /// The pool exempts all commands that do not ask for a time limit.
    pub(super) untimed: bool,
    /// The variables that the item in hand adds to the environment.
    pub(super) item_variables: BTreeMap<String, OsString>,
    pub(super) life: Life,
    pub(super) preflight: Preflight,
    /// The pid of the preflight command, while it runs.
    pub(super) preflight_pid: Option<i32>,
    /// The settings for the start of the program, after its preflight has passed.
    pub(super) start_with: Option<Settings>,
    pub(super) items: Items,
    pub(super) changeset: Changeset,
    /// The pid of a step of the changeset, while it runs.
    pub(super) step_pid: Option<i32>,
    /// Our own binary.
    pub(super) own: PathBuf,
    pub(super) health: Health,
    /// The pid of the program, while it runs.
    pub(super) program: Option<i32>,
    pub(super) output: LastOutput,
    /// Closes when all output of the program was read.
    pub(super) output_copied: Option<mpsc::Receiver<()>>,
    pub(super) item_files: Option<ItemFiles>,
    pub(super) terminal: Option<Terminal>,
    pub(super) notices: Option<Notices>,
    /// The number of notices that the pod itself has made.
    pub(super) own_notices: u64,
    /// Notices that are not written yet.
    pub(super) unwritten: VecDeque<Notice>,
    pub(super) write_at: BootTime,
    pub(super) warn_hook: Vec<String>,
    pub(super) warnings: VecDeque<Notice>,
    pub(super) warning: Option<Hook>,
    pub(super) checkpoint_hook: Vec<String>,
    /// The checkpoint hook, while it runs, and whether it was killed at its time limit.
    pub(super) checkpointing: Option<(Hook, bool)>,
    /// The result of the last checkpoint.
    pub(super) checkpoint: Option<Checkpoint>,
    pub(super) drain: Option<i32>,
    pub(super) watchdog: Watchdog,
    /// Commands so far that hung without a time limit.
    pub(super) hung: u32,
    pub(super) look_at: BootTime,
    pub(super) reports: watch::Sender<Option<SupervisorReport>>,
    pub(super) told_active: BootTime,
    /// When the sidecar last got the counts of refusals.
    pub(super) counts_told_at: BootTime,
    pub(super) leave: Option<u8>,
}

impl Supervisor {
    /// The state before the program is started.
    pub(super) fn new(
        init: Init,
        options: Options,
        own: PathBuf,
        environment: BTreeMap<String, OsString>,
        timed_path: Option<OsString>,
    ) -> Self {
        let now = BootTime::now();
        let notices = Notices::open(&options.data)
            .inspect_err(|error| agent_says!("cannot write notices to {}: {error}", options.data.display()))
            .ok();
        let item_files = ItemFiles::open(&options.data).ok();
        Self {
            init,
            terminal: options.tty.then(|| Terminal::open().ok()).flatten(),
            options,
            environment,
            timed_path,
            untimed: false,
            item_variables: BTreeMap::new(),
            life: Life::default(),
            preflight: Preflight::default(),
            preflight_pid: None,
            start_with: None,
            items: Items::default(),
            changeset: Changeset::default(),
            step_pid: None,
            own,
            health: Health::new(now),
            program: None,
            output: LastOutput::default(),
            output_copied: None,
            item_files,
            notices,
            own_notices: 0,
            unwritten: VecDeque::new(),
            write_at: now,
            warn_hook: Vec::new(),
            warnings: VecDeque::new(),
            warning: None,
            checkpoint_hook: Vec::new(),
            checkpointing: None,
            checkpoint: None,
            drain: None,
            watchdog: Watchdog::default(),
            hung: 0,
            look_at: now,
            reports: watch::Sender::new(None),
            told_active: now,
            counts_told_at: now,
            leave: None,
        }
    }
}
