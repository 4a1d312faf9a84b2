//! The files in the sidecar's folder after a restart: each is read as it was written, or counts as absent.
#![cfg_attr(fuzzing, no_main)]

use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use spillway_pod::link::journal::Journal;

const FILES: [&str; 8] = ["goodbye.json", "action.json", "work.json", "settings.json", "commands.json", "key", "started", "heard"];

static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    // In memory, as in a pod, because each written file is synced.
    let memory = PathBuf::from("/dev/shm");
    let above = if memory.is_dir() { memory } else { std::env::temp_dir() };
    above.join(format!("spillway-fuzz-{}", std::process::id()))
});

fuzz_target!(|data: &[u8]| {
    let Some((first, bytes)) = data.split_first() else { return };
    std::fs::create_dir_all(&*FOLDER).expect("a folder");
    let path = FOLDER.join(FILES[usize::from(*first) % FILES.len()]);
    std::fs::write(&path, bytes).expect("written");
    let journal = Journal::new(FOLDER.clone());
    let (found, goodbye, commands, key) = (journal.remembered(), journal.goodbye(), journal.commands(), journal.key());
    // The files are written again, and are the same.
    if let Some(goodbye) = &goodbye {
        journal.keep_goodbye(goodbye).expect("kept");
    }
    if let Some(action) = &found.action {
        journal.keep_action(action).expect("kept");
    }
    if let Some(settings) = &found.settings {
        journal.keep_settings(settings);
    }
    if let Some(commands) = &commands {
        journal.keep_commands(commands);
    }
    if let Some(last_answer) = found.last_answer {
        journal.keep_heard(last_answer);
    }
    journal.keep_work(&found.work);
    let again = journal.remembered();
    assert_eq!(
        (again.settings, again.last_answer, again.let_start, again.action, again.work),
        (found.settings, found.last_answer, found.let_start, found.action, found.work)
    );
    assert_eq!((journal.goodbye(), journal.commands(), journal.key()), (goodbye, commands, key));
    std::fs::remove_dir_all(&*FOLDER).expect("removed");
});
