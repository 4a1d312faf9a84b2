use std::collections::BTreeSet;

use spillway_wire::meter::{CallEnd, JournaledHold, Quality, Usage};

use super::*;
use crate::disk::Folder;
use crate::fake_disk::FakeDisk;
use crate::fake_leader::{Leader, Random};
use crate::session::Plan;

const FILE: &str = "session.jsonl";
/// Enough space for these small sessions.
const ROOM: usize = 24 * 1024;

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn open(id: u64) -> JournaledHold {
    JournaledHold { id, at: 7, path: vec![format!("a:agent-{}", id % 5), "b:team/default".into()], input: 10, output: 20 }
}

fn start<D: Disk>(disk: &D, now: Duration) -> anyhow::Result<DurableSession<D>> {
    let (mut journal, lines) = Journal::open_on(Some(disk.clone()), ROOM)?;
    journal.spare = 2048;
    Ok(DurableSession::restore(journal, &lines, Some("uid"), now))
}

/// Makes one call to its end. False: it was refused because a line could not be written.
fn call<D: Disk>(durable: &mut DurableSession<D>, now: Duration) -> bool {
    if !durable.is_written() {
        return false;
    }
    let (id, line) = durable.session.take_number("team").expect("room");
    if !line.is_none_or(|line| durable.append_line(&line, now)) {
        durable.session.discard_number(id);
        return false;
    }
    let line = durable.session.given(id, &open(id)).expect("room");
    let kept = durable.append_line(&line, now);
    let sent = durable.session.sent(id);
    let kept = kept && durable.append_line(&sent, now);
    let quality = if kept { Quality::Partial } else { Quality::Exact };
    let line = durable.session.end(id, Usage::default(), quality, CallEnd::default(), "m", 0).expect("it was open");
    durable.append_line(&line, now);
    kept
}

#[test]
fn a_journal_that_fills_its_volume_is_written_anew_and_goes_on() {
    let disk = FakeDisk::new(2 * ROOM, 1);
    let mut durable = start(&disk, at(0)).expect("started");
    durable.session.connected(Some(1));
    let Plan::Begin(begin) = durable.session.plan(at(0), true) else { panic!("it begins") };
    durable.session.began(at(0), Some(1), &begin, 0);
    // Many times the size of the volume. Each settle is acknowledged, but there is no compaction meanwhile.
    for one in 0..600 {
        assert!(call(&mut durable, at(one)), "call {one}");
        if let Plan::Tell(settles) = durable.session.plan(at(one), true)
            && let Some(line) = durable.session.settles_answered(at(one), &settles, settles.settles.last().map_or(0, |settle| settle.seq))
        {
            assert!(durable.append_line(&line, at(one)));
        }
    }
    drop(durable);
    let durable = start(&disk, at(600)).expect("started");
    assert!(durable.is_written() && durable.session.name() == "uid");
}

#[test]
fn a_process_starts_on_a_volume_that_is_full_and_works_when_there_is_room() {
    let disk = FakeDisk::new(2 * ROOM, 2);
    // Without reserved space, as an earlier version left it.
    disk.put(FILE, b"{\"session\":{\"name\":\"s\",\"reserved\":1025,\"acked\":0}}\n{\"held\":{\"id\":1,\"at\":7,\"path\":[\"a:x\"],\"input\":1,\"output\":2}}\n{\"sent\":1}\n");
    disk.state().occupied = 2 * ROOM;
    for _ in 0..3 {
        let mut durable = start(&disk, at(0)).expect("it starts");
        durable.session.connected(Some(1));
        assert_eq!((durable.is_written(), durable.session.name(), durable.session.unacknowledged_count()), (false, "s", 1));
        assert!(!call(&mut durable, at(0)), "nothing is spent that cannot be written down");
        assert_eq!(durable.retry_rewrite(at(0)), Some(JOURNAL_RETRY_DELAY), "it is tried again");
        assert!(matches!(durable.session.plan(at(0), durable.is_written()), Plan::Wait(_)), "nothing is told that is not written");
    }
    let mut durable = start(&disk, at(0)).expect("it starts");
    disk.state().occupied = 0;
    assert_eq!(durable.retry_rewrite(at(0)), Some(JOURNAL_RETRY_DELAY), "not at once again");
    assert_eq!(durable.retry_rewrite(JOURNAL_RETRY_DELAY), None);
    assert!(call(&mut durable, at(2)));
    assert_eq!(start(&disk, at(3)).expect("started").session.unacknowledged_count(), 2);
}

/// If the process ends at any step of the rewrite of a full journal, the next process knows everything that was written
/// before.
#[test]
fn a_process_that_ends_at_any_step_of_a_repair_loses_nothing() {
    for seed in 0..20 {
        for step in 1..12 {
            let disk = FakeDisk::new(2 * ROOM, seed * 7919 + 13);
            let mut durable = start(&disk, at(0)).expect("started");
            for _ in 0..10 {
                assert!(call(&mut durable, at(0)));
            }
            let free = 2 * ROOM - ROOM.div_ceil(64) * 64;
            disk.state().occupied = free; // a write fits into the last page, or fails
            disk.state().stops = Some(step);
            let mut calls = 10;
            while !disk.has_stopped() && calls < 30 {
                calls += usize::from(call(&mut durable, at(0)));
            }
            drop(durable);
            disk.state().stops = None;
            let again = start(&disk, at(1)).expect("started");
            let owed = again.session.unacknowledged_count();
            assert!((calls..=calls + 1).contains(&owed), "step {step}: {calls} calls were made, {owed} are known");
            assert!(again.is_written(), "the room in reserve is there after a crash too");
        }
    }
}

struct Simulation {
    random: Random,
    disk: FakeDisk,
    durable: DurableSession<FakeDisk>,
    leader: Leader,
    now: Duration,
    connection: u64,
    asking: Vec<u64>,
    held: Vec<(u64, bool)>,
    used: BTreeSet<u64>,
    sent: BTreeSet<u64>,
    /// Holds whose line `sent` failed: they were not sent, but a part of the line may have been written.
    tried: BTreeSet<u64>,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let room = usize::try_from(random.below(8 * 1024)).expect("small");
        let disk = FakeDisk::new(ROOM + 12 * 1024 + room, random.below(u64::MAX));
        let durable = start(&disk, at(0)).expect("a first start");
        let (leader, now) = (Leader::default(), at(0));
        let (asking, held, used, sent, tried) = Default::default();
        let mut world = Self { random, disk, durable, leader, now, connection: 1, asking, held, used, sent, tried };
        world.durable.session.connected(Some(1));
        world
    }

    fn keep(&mut self, line: Option<Line>) -> bool {
        line.is_none_or(|line| self.durable.append_line(&line, self.now))
    }

    fn end(&mut self, id: u64, quality: Quality) {
        let line = self.durable.session.end(id, Usage::default(), quality, CallEnd::default(), "m", 1);
        self.keep(line);
    }

    fn restart(&mut self) {
        self.disk.state().stops = None;
        self.durable = loop {
            // A start that fails, or ends in the middle, is repeated.
            if let Ok(durable) = start(&self.disk, self.now) {
                break durable;
            }
        };
        (self.asking, self.held) = (Vec::new(), Vec::new());
        self.connection += 1;
        self.durable.session.connected(Some(self.connection));
    }

    fn pick(&mut self, of: usize) -> usize {
        usize::try_from(self.random.below(of as u64)).expect("small")
    }

    fn step(&mut self, lost: u64) {
        match self.random.below(14) {
            0 | 1 if self.durable.is_written() => {
                let (id, line) = self.durable.session.take_number("team").expect("room");
                if self.keep(line) {
                    assert!(self.used.insert(id), "{id} is used again");
                    self.asking.push(id);
                } else {
                    self.durable.session.discard_number(id);
                }
            }
            2 | 3 if !self.asking.is_empty() && self.durable.session.is_attached() => self.hold(lost),
            4 if !self.asking.is_empty() => {
                let id = self.asking.remove(0);
                self.end(id, Quality::Exact);
            }
            5 | 6 => {
                let Some(at) = self.held.iter().position(|(_, sent)| !sent) else { return };
                let id = self.held[at].0;
                let line = self.durable.session.sent(id);
                if self.keep(Some(line)) {
                    self.held[at].1 = true;
                    self.sent.insert(id);
                } else {
                    self.tried.insert(id);
                    self.durable.session.unsent(id);
                    self.held.swap_remove(at);
                    self.end(id, Quality::Exact);
                }
            }
            7 | 8 if !self.held.is_empty() => {
                let at = self.pick(self.held.len());
                let (id, sent) = self.held.swap_remove(at);
                self.end(id, if sent { Quality::Partial } else { Quality::Exact });
            }
            9 => self.leader.durable = self.leader.received,
            10 if self.random.one_in(4) => {
                self.leader.replaced();
                self.connection += 1;
                self.durable.session.connected(Some(self.connection));
            }
            11 if self.random.one_in(3) => self.restart(),
            12 => {
                if let Some((shorter, snapshot)) = self.durable.begin_compaction() {
                    let written = shorter.write(snapshot.lines());
                    let _ = self.durable.finish_compaction(written); // after an error the journal continues as it is
                }
            }
            _ => self.talk(lost),
        }
    }

    fn hold(&mut self, lost: u64) {
        let at = self.pick(self.asking.len());
        let id = self.asking[at];
        if lost == 1 {
            return;
        }
        match self.leader.hold(id) {
            None => self.durable.session.detached(),
            Some(_) if lost == 2 => {}
            Some(given) => {
                assert!(given, "{id} was never used, and is refused as closed");
                self.asking.swap_remove(at);
                let line = self.durable.session.given(id, &open(id)).expect("room");
                if self.keep(Some(line)) {
                    self.held.push((id, false));
                } else {
                    self.end(id, Quality::Exact);
                }
            }
        }
    }

    fn talk(&mut self, lost: u64) {
        let now = self.now;
        self.durable.retry_rewrite(now);
        let line = match self.durable.session.plan(now, self.durable.is_written()) {
            Plan::Wait(_) => return,
            _ if lost == 1 => return self.durable.session.failed(now),
            Plan::Begin(begin) => {
                let acked = self.leader.begin(&begin);
                if lost == 2 {
                    return self.durable.session.failed(now);
                }
                self.durable.session.began(now, Some(self.connection), &begin, acked)
            }
            Plan::Tell(settles) => match self.leader.tell(&settles) {
                Some(_) if lost == 2 => return self.durable.session.failed(now),
                Some(acked) => self.durable.session.settles_answered(now, &settles, acked),
                None => {
                    self.durable.session.detached();
                    return self.durable.session.failed(now);
                }
            },
        };
        self.keep(line);
    }

    fn quiet(&mut self) {
        {
            let mut state = self.disk.state();
            (state.fails, state.occupied) = (0, 0);
        }
        if self.disk.has_stopped() {
            self.restart();
        }
        self.disk.state().stops = None;
        for (id, sent) in std::mem::take(&mut self.held) {
            self.end(id, if sent { Quality::Partial } else { Quality::Exact });
        }
        for id in std::mem::take(&mut self.asking) {
            self.end(id, Quality::Exact);
        }
        for _ in 0..60 {
            self.now += at(1);
            self.talk(0);
            self.leader.durable = self.leader.received;
        }
        assert!(self.durable.is_written(), "when there is room again it is written");
        assert_eq!((self.durable.session.unacknowledged_count(), self.leader.open.len()), (0, 0), "after quiet nothing is held or owed");
        let not_exact = self.leader.charged.iter().filter(|(_, _, quality)| *quality != Quality::Exact);
        let charged: BTreeSet<u64> = not_exact.map(|(_, hold, _)| *hold).collect();
        assert!(self.sent.is_subset(&charged), "{:?} were sent and cost nothing", self.sent.difference(&charged));
        let may: BTreeSet<u64> = self.sent.union(&self.tried).copied().collect();
        assert!(charged.is_subset(&may), "{:?} were never sent", charged.difference(&may));
        let (id, _) = self.durable.session.take_number("team").expect("room");
        assert!(!self.used.contains(&id), "{id} is used again");
    }
}

fn run(seed: u64) {
    let mut world = Simulation::new(seed);
    for _ in 0..150 {
        world.now += Duration::from_millis(world.random.below(900));
        if world.random.one_in(12) {
            let trouble = world.random.below(5);
            let (room, steps) = (world.random.below(16 * 1024), world.random.below(12));
            let mut state = world.disk.state();
            state.occupied = if trouble == 0 { usize::try_from(room).expect("small") } else { 0 };
            state.fails = if trouble == 1 { 4 } else { 0 };
            state.stops = (trouble == 2).then(|| u32::try_from(steps).expect("small") + 1);
        }
        let lost = world.random.below(8); // 1: a call, 2: its answer
        world.step(lost);
        if world.disk.has_stopped() {
            world.restart();
        }
    }
    world.quiet();
}

#[test]
fn whatever_a_disk_does_what_was_answered_is_charged_once_and_no_number_is_used_again() {
    for seed in 0..150 {
        let ran = std::panic::catch_unwind(|| run(seed));
        assert!(ran.is_ok(), "seed {seed}");
    }
}

/// The folder of the volume for the test below. The test runs only if it is set.
const VOLUME: &str = "SPILLWAY_TEST_VOLUME";

/// Runs the test below on a tmpfs of its own, if a tmpfs can be mounted.
#[test]
fn a_real_volume_that_is_full_is_written_again() {
    let folder = std::env::temp_dir().join(format!("spillway-volume-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let mount = "mount -t tmpfs -o size=256k,mode=700 spillway-test \"$0\" || exit 77; exec \"$@\"";
    let mut command = std::process::Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    let own = std::env::current_exe().expect("this program");
    command.args(["--mount", "sh", "-c", mount]).arg(&folder).arg(own);
    command.args(["--exact", "gateway::meter::durable::tests::on_a_real_volume", "--nocapture"]).env(VOLUME, &folder);
    let ended = command.output();
    std::fs::remove_dir(&folder).expect("removed");
    match ended {
        // The mount is not allowed.
        Ok(output) if output.status.code() == Some(77) => eprintln!("skipped: no volume can be mounted here"),
        Ok(output) => {
            assert!(output.status.success(), "{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
        }
        Err(error) => eprintln!("skipped: {error}"),
    }
}

#[test]
fn on_a_real_volume() {
    let Some(volume) = std::env::var_os(VOLUME).map(std::path::PathBuf::from) else { return };
    let disk = Folder::open(&volume).expect("the volume");
    let mut durable = start(&disk, at(0)).expect("started");
    // Until the journal has filled the volume and was rewritten several times.
    let (mut shrunk, mut length, mut calls) = (0, 0, 0);
    while shrunk < 3 {
        assert!(call(&mut durable, at(0)), "after {calls} calls");
        calls += 1;
        let now = std::fs::metadata(volume.join(FILE)).expect("the journal").len();
        (shrunk, length) = (shrunk + u32::from(now < length), now);
        if calls % 20 == 0 {
            acknowledge(&mut durable);
        }
    }
    // The volume is full of another file, and nothing is reserved: the process starts, and works when there is space.
    let owed = durable.session.unacknowledged_count();
    drop(durable);
    std::fs::remove_file(volume.join("session.new")).expect("the room in reserve");
    let filled = std::fs::write(volume.join("filler"), vec![0; 512 * 1024]);
    assert!(filled.is_err(), "the volume is full");
    let mut durable = start(&disk, at(0)).expect("it starts");
    assert!(!durable.is_written() && !call(&mut durable, at(0)));
    std::fs::remove_file(volume.join("filler")).expect("removed");
    assert_eq!(durable.retry_rewrite(JOURNAL_RETRY_DELAY), None);
    assert!(call(&mut durable, at(2)));
    assert_eq!(durable.session.unacknowledged_count(), owed + 1);
}

/// Acknowledges all ended holds, as a leader would.
fn acknowledge<D: Disk>(durable: &mut DurableSession<D>) {
    let mut lines: Vec<Line> = durable.session.snapshot().lines().collect();
    let Some(Line::Session { acked, .. }) = lines.first() else { panic!("a first line") };
    let acked = Line::Acked(acked + u64::try_from(durable.session.unacknowledged_count()).expect("few"));
    lines.push(acked.clone());
    durable.session = Session::restore(&lines, || unreachable!("it has a name")).expect("restored");
    assert!(durable.append_line(&acked, at(0)));
}
