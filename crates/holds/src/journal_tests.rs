use std::fs::OpenOptions;
use std::path::Path;

use spillway_wire::meter::JournaledHold;

use super::*;

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("spillway-meter-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder); // from an earlier run
    folder
}

fn first() -> Line {
    Line::Session { name: "s".into(), reserved: 1, acked: 0 }
}

#[test]
fn what_was_written_is_read_but_a_torn_end() {
    let folder = folder("torn");
    let (mut journal, lines) = Journal::open(Some(folder.clone()), 4096).expect("opened");
    assert_eq!(lines, []);
    journal.rewrite([first()].into_iter()).expect("written");
    let held = Line::Held(JournaledHold { id: 1, at: 5, path: vec!["a".into()], input: 1, output: 2 });
    journal.append(&held).expect("written");
    assert!(Journal::open(Some(folder.clone()), 4096).is_err(), "two processes do not share one");
    drop(journal);
    let mut file = OpenOptions::new().append(true).open(folder.join(JOURNAL_FILE)).expect("the file");
    file.write_all(b"{\"sent\": 1").expect("half a line");
    let (mut journal, lines) = Journal::open(Some(folder.clone()), 4096).expect("opened");
    assert_eq!(lines, [first(), held]);
    journal.rewrite(lines.into_iter()).expect("written");
    journal.append(&Line::Sent(1)).expect("written");
    drop(journal);
    assert_eq!(Journal::open(Some(folder.clone()), 4096).expect("opened").1.len(), 3);
    std::fs::remove_dir_all(&folder).expect("removed");
}

/// This many long lines exceed the spare bytes of a journal.
const LONG: usize = 20;

fn long_line() -> Line {
    Line::Name(1, "x".repeat(JOURNAL_SPARE_BYTES / 16))
}

/// A journal that is long enough for a compaction to its first line.
fn long(name: &str) -> (PathBuf, Journal) {
    let folder = folder(name);
    let mut journal = Journal::open(Some(folder.clone()), 4096).expect("opened").0;
    journal.rewrite([first()].into_iter()).expect("written");
    assert!(journal.begin_compaction(1).is_none(), "it is short");
    for _ in 0..LONG {
        journal.append(&long_line()).expect("written");
    }
    (folder, journal)
}

fn reopened(folder: &Path, journal: Journal) -> Vec<Line> {
    drop(journal);
    let lines = Journal::open(Some(folder.to_owned()), 4096).expect("opened").1;
    std::fs::remove_dir_all(folder).expect("removed");
    lines
}

#[test]
fn a_shorter_one_has_what_was_added_while_it_was_written() {
    let (folder, mut journal) = long("shorter");
    let shorter = journal.begin_compaction(1).expect("it is long");
    journal.append(&Line::Sent(1)).expect("written");
    assert!(journal.begin_compaction(1).is_none(), "one at a time");
    let written = shorter.write([first()].into_iter());
    journal.append(&Line::Sent(2)).expect("written");
    journal.finish_compaction(written).expect("in place");
    journal.append(&Line::Sent(3)).expect("written");
    let length = std::fs::metadata(folder.join(JOURNAL_FILE)).expect("the file").len();
    assert_eq!(u64::try_from(journal.bytes).expect("a size"), length);
    assert_eq!(reopened(&folder, journal), [first(), Line::Sent(1), Line::Sent(2), Line::Sent(3)]);
}

#[test]
fn a_shorter_one_that_was_overtaken_or_never_came_to_be_is_left_out() {
    let (folder, mut journal) = long("overtaken");
    let written = journal.begin_compaction(1).expect("it is long").write([first()].into_iter());
    journal.rewrite([first(), Line::Sent(1)].into_iter()).expect("written");
    journal.finish_compaction(written).expect("left out");
    assert!(!folder.join(SHORTENED_JOURNAL_FILE).exists(), "it takes no room");
    journal.append(&Line::Sent(2)).expect("written");
    assert_eq!(reopened(&folder, journal), [first(), Line::Sent(1), Line::Sent(2)]);

    let (folder, mut journal) = long("failed");
    drop(journal.begin_compaction(1).expect("it is long"));
    journal.finish_compaction(Err(io::ErrorKind::StorageFull.into())).expect_err("it is told");
    assert!(journal.begin_compaction(1).is_none(), "not at once again");
    journal.append(&Line::Sent(1)).expect("written");
    let lines = reopened(&folder, journal);
    assert_eq!((lines.len(), lines.last()), (LONG + 2, Some(&Line::Sent(1))));
}

#[test]
fn a_line_that_makes_no_sense_ends_the_session() {
    assert_eq!(read(b"{\"reserved\":7}\nrubbish\n{\"acked\":1}\n"), [Line::Reserved(0)]);
}

#[test]
fn a_journal_that_is_not_kept_has_a_name_of_its_own_each_time() {
    assert_eq!(name(Some("u"), false), "u");
    assert!(name(Some("u"), true).starts_with("u-") && name(Some("u"), true) != name(Some("u"), true));
    assert_eq!(name(None, false).len(), 16);
}
