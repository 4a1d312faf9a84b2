use std::sync::Arc;

use super::*;

#[test]
fn what_was_kept_is_there_and_what_is_broken_is_absent() {
    let folder = std::env::temp_dir().join(format!("spillway-journal-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let journal = Journal::new(folder.clone());
    let nothing = journal.remembered();
    assert!(
        nothing.settings.is_none()
            && nothing.last_answer.is_none()
            && !nothing.let_start
            && nothing.action.is_none()
            && nothing.work == KeptWork::default()
    );
    journal.keep_goodbye(&Goodbye { reason: "done".into() }).expect("kept");
    journal.keep_action("testing").expect("kept");
    journal.keep_start();
    journal.keep_heard(BootTime::from_millis(77));
    std::fs::write(folder.join(SETTINGS_FILE), b"{\"agent\": ").expect("half a file");
    let again = Journal::new(folder.clone());
    assert_eq!(again.goodbye().map(|goodbye| goodbye.reason).as_deref(), Some("done"));
    let remembered = again.remembered();
    assert!(remembered.settings.is_none() && remembered.let_start);
    assert_eq!((remembered.last_answer, remembered.action.as_deref()), (Some(BootTime::from_millis(77)), Some("testing")));
    again.forget_goodbye();
    assert!(journal.goodbye().is_none());
    std::fs::remove_dir_all(&folder).expect("removed");
}

/// Steps that fail, write less than they are given, or end the process.
#[derive(Clone, Default)]
struct Faulty(Arc<Mutex<Faults>>);

#[derive(Default)]
struct Faults {
    dice: u64,
    /// One step in this number fails; 0: none fails.
    fails: u64,
    /// After this number of steps every step fails.
    stops: Option<u32>,
    /// Only the step after this number fails.
    fails_once: Option<u32>,
}

impl Faults {
    fn below(&mut self, most: u64) -> u64 {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        self.dice % most
    }

    fn step(&mut self) -> io::Result<()> {
        if let Some(left) = self.stops {
            self.stops = Some(left.saturating_sub(1));
            if left <= 1 {
                return Err(io::Error::other("the process ended"));
            }
        }
        self.fails_once = match self.fails_once {
            Some(0) => {
                self.fails_once = None;
                return Err(io::ErrorKind::StorageFull.into());
            }
            left => left.map(|left| left - 1),
        };
        if self.fails > 0 && self.below(self.fails) == 0 {
            return Err(if self.below(2) == 0 { io::ErrorKind::StorageFull.into() } else { io::Error::from_raw_os_error(5) });
        }
        Ok(())
    }
}

impl Faulty {
    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.0.lock().expect("faults")
    }

    fn dice<const N: usize>(&self, most: [u64; N]) -> [u64; N] {
        let mut faults = self.faults();
        most.map(|most| faults.below(most))
    }
}

struct File(Faulty, std::fs::File);

impl io::Write for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut faults = self.0.faults();
        let outcome = faults.step();
        let part = faults.below(bytes.len() as u64 + 1);
        let part = usize::try_from(part).expect("small");
        let stopped = faults.stops == Some(0);
        match outcome {
            Ok(()) if faults.fails > 0 => self.1.write(&bytes[..part.max(1)]),
            Ok(()) => self.1.write(bytes),
            Err(error) => {
                if !stopped {
                    self.1.write_all(&bytes[..part])?;
                }
                Err(error)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Steps for Faulty {
    type File = File;

    fn create(&self, path: &Path, mode: u32) -> io::Result<File> {
        self.faults().step()?;
        Ok(File(self.clone(), System.create(path, mode)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.faults().step()?;
        System.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.faults().step()?;
        System.remove(path)
    }
}

/// The values that a file may have: the last value that is known to be kept, or a later one whose write failed.
#[derive(Default)]
struct PossibleValues {
    kept: Option<String>,
    since: Vec<Option<String>>,
}

impl PossibleValues {
    fn says(&mut self, value: Option<String>, done: bool) {
        if done {
            *self = Self { kept: value, since: Vec::new() };
        } else {
            self.since.push(value);
        }
    }

    fn may_be(&self, found: &Option<String>) -> bool {
        self.kept == *found || self.since.contains(found)
    }
}

fn action_of<S: Steps>(journal: &Journal<S>) -> Option<String> {
    journal.json(ACTION_FILE)
}

fn goodbye_of<S: Steps>(journal: &Journal<S>) -> Option<String> {
    journal.goodbye().map(|goodbye| goodbye.reason)
}

fn run(seed: u64, folder: &Path) {
    std::fs::create_dir_all(folder).expect("a folder");
    let steps = Faulty::default();
    steps.faults().dice = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut journal = Journal::by(steps.clone(), folder.to_owned());
    let (mut action, mut goodbye) = (PossibleValues::default(), PossibleValues::default());
    for one in 0..40 {
        let [what, trouble, stops, restarts] = steps.dice([6, 12, 4, 10]);
        let stops = u32::try_from(stops).expect("small") + 1;
        match trouble {
            0 => steps.faults().fails = 2,
            1 => steps.faults().fails = 0,
            2 => steps.faults().stops = Some(stops),
            _ => {}
        }
        let text = format!("{one}-{}", "x".repeat(one));
        match what {
            0 | 1 => action.says(Some(text.clone()), journal.keep_action(&text).is_ok()),
            2 => {
                journal.forget_action();
                action.says(None, journal.is_fully_written());
            }
            3 => goodbye.says(Some(text.clone()), journal.keep_goodbye(&Goodbye { reason: text }).is_ok()),
            4 => {
                journal.forget_goodbye();
                goodbye.says(None, journal.is_fully_written());
            }
            _ => {
                if journal.catch_up() {
                    let last = |told: &PossibleValues| told.since.last().cloned().unwrap_or_else(|| told.kept.clone());
                    let (one, other) = (last(&action), last(&goodbye));
                    assert_eq!((action_of(&journal), goodbye_of(&journal)), (one.clone(), other.clone()), "what was late is there");
                    action.says(one, true);
                    goodbye.says(other, true);
                }
            }
        }
        let stopped = steps.faults().stops == Some(0);
        if stopped || restarts == 0 {
            steps.faults().stops = None;
            journal = Journal::by(steps.clone(), folder.to_owned());
            let found = (action_of(&journal), goodbye_of(&journal));
            assert!(action.may_be(&found.0) && goodbye.may_be(&found.1), "{found:?} was never said, or is older than what was kept");
            action.says(found.0, true);
            goodbye.says(found.1, true);
        }
    }
    *steps.faults() = Faults { dice: 1, ..Faults::default() };
    assert!(journal.catch_up(), "when there is room again all of it is written");
    journal.keep_action("last").expect("it works again");
    assert_eq!(action_of(&journal).as_deref(), Some("last"));
}

#[test]
fn whatever_a_folder_does_what_was_kept_is_found_and_what_was_late_is_written() {
    let folder = std::env::temp_dir().join(format!("spillway-journal-faults-{}", std::process::id()));
    for seed in 0..150 {
        let ran = std::panic::catch_unwind(|| run(seed, &folder));
        assert!(ran.is_ok(), "seed {seed}");
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}

#[test]
fn what_could_not_be_written_takes_no_room_and_the_file_before_stays() {
    let folder = std::env::temp_dir().join(format!("spillway-journal-room-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let steps = Faulty::default();
    steps.faults().dice = 7;
    let journal = Journal::by(steps.clone(), folder.clone());
    journal.keep_action("one").expect("kept");
    // It cannot be made, written, or renamed.
    for step in 0..3 {
        steps.faults().fails_once = Some(step);
        journal.keep_action("two").expect_err("it is not kept");
        assert!(!journal.is_fully_written() && action_of(&journal).as_deref() == Some("one"));
        assert_eq!(std::fs::read_dir(&folder).expect("the folder").count(), 1, "nothing is left beside after step {step}");
    }
    assert!(journal.catch_up() && journal.is_fully_written());
    assert_eq!(action_of(&journal).as_deref(), Some("two"));
    assert_eq!(std::fs::read_dir(&folder).expect("the folder").count(), 1, "nothing is left beside");
    std::fs::remove_dir_all(&folder).expect("removed");
}
