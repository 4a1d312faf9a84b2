//! Code for one operating system is only in files that also have code for the other systems.

use std::fs;
use std::path::{Path, PathBuf};

/// The files with code for each system.
const PER_SYSTEM: [&str; 2] = ["chat.rs", "top/stop_signals.rs"];
/// Names that only one system has: parts of the standard library and of tokio, and whole crates.
const OF_ONE_SYSTEM: [&str; 7] = ["os::unix", "os::linux", "os::windows", "signal::unix", "signal::windows", "rustix::", "libc::"];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { sources(&path, found) } else { found.push(path) }
    }
}

#[test]
fn what_one_system_has_is_used_behind_cfg_only() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    assert!(files.len() > 50, "only {} files were found", files.len());
    for path in files {
        let text = fs::read_to_string(&path).expect("a text");
        let name = path.strip_prefix(&root).expect("below src").display().to_string().replace(std::path::MAIN_SEPARATOR, "/");
        let used: Vec<&str> = OF_ONE_SYSTEM.into_iter().filter(|part| text.contains(part)).collect();
        if PER_SYSTEM.contains(&name.as_str()) {
            assert!(!used.is_empty() && text.contains("#[cfg(unix)]"), "{name} is the same for all systems: take it out of the list");
        } else {
            assert!(used.is_empty(), "{name} uses {used:?}, which not every system has");
        }
    }
}
