//! What the supervisor knows: its state, as its loop and its parts about hooks and hung commands work with it.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;

use spillway_wire::agent::{Checkpoint, Notice, Settings};
use tokio::sync::{mpsc, watch};

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
    /// The program's `PATH`, with the timed shells; none: its image has no shell.
    pub(super) timed_path: Option<OsString>,
    /// Its pool wants no command timed that does not ask for it.
    pub(super) untimed: bool,
    /// What an item adds to it, while there is one.
    pub(super) of_item: BTreeMap<String, OsString>,
    pub(super) life: Life,
    pub(super) preflight: Preflight,
    /// The preflight command, as long as it exists.
    pub(super) checking: Option<i32>,
    /// What the program is started with when its preflight passed.
    pub(super) start_with: Option<Settings>,
    pub(super) items: Items,
    pub(super) health: Health,
    /// The program, as long as it exists.
    pub(super) program: Option<i32>,
    pub(super) output: LastOutput,
    /// Ends when all that the program wrote was read.
    pub(super) copying: Option<mpsc::Receiver<()>>,
    pub(super) item_files: Option<ItemFiles>,
    pub(super) terminal: Option<Terminal>,
    pub(super) notices: Option<Notices>,
    /// Notices of our own, so far.
    pub(super) own_notices: u64,
    /// Notices that could not be written yet.
    pub(super) unwritten: VecDeque<Notice>,
    pub(super) write_at: BootTime,
    pub(super) warn_hook: Vec<String>,
    pub(super) warnings: VecDeque<Notice>,
    pub(super) warning: Option<Hook>,
    pub(super) checkpoint_hook: Vec<String>,
    /// The checkpoint hook, as long as it exists, and whether it was killed for taking too long.
    pub(super) checkpointing: Option<(Hook, bool)>,
    /// What came of the last checkpoint.
    pub(super) checkpoint: Option<Checkpoint>,
    pub(super) drain: Option<i32>,
    pub(super) watchdog: Watchdog,
    /// Commands that hung and that nobody timed, so far.
    pub(super) hung: u32,
    pub(super) look_at: BootTime,
    pub(super) told: watch::Sender<Option<SupervisorReport>>,
    pub(super) told_active: BootTime,
    pub(super) leave: Option<u8>,
}

impl Supervisor {
    /// With no program yet.
    pub(super) fn new(init: Init, options: Options, environment: BTreeMap<String, OsString>, timed_path: Option<OsString>) -> Self {
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
            of_item: BTreeMap::new(),
            life: Life::default(),
            preflight: Preflight::default(),
            checking: None,
            start_with: None,
            items: Items::default(),
            health: Health::new(now),
            program: None,
            output: LastOutput::default(),
            copying: None,
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
            told: watch::Sender::new(None),
            told_active: now,
            leave: None,
        }
    }
}
