//! Every fuzz target is in both lists: in that of the fuzzer, and in that of the replay.

use std::path::Path;

#[test]
fn every_target_is_fuzzed_and_replayed() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: &str| std::fs::read_to_string(fuzz.join(path)).expect(path);
    let (fuzzed, replayed) = (read("Cargo.toml"), read("replay/Cargo.toml"));
    let mut targets = 0;
    for entry in fuzz.join("targets").read_dir().expect("the targets") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            continue;
        }
        let name = path.file_stem().and_then(|name| name.to_str()).expect("a name");
        targets += 1;
        assert!(fuzzed.contains(&format!("[[bin]]\nname = \"{name}\"\n")), "{name} has no [[bin]] in fuzz/Cargo.toml");
        assert!(replayed.contains(&format!("[[test]]\nname = \"{name}\"\n")), "{name} has no [[test]] in fuzz/replay/Cargo.toml");
    }
    assert!(targets > 0);
}
