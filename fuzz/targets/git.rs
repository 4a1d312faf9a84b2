//! Requests of git clients and the starts of pushes: a repository has one name, and the updates of a push are the same wherever it
//! is cut.
#![cfg_attr(fuzzing, no_main)]

use libfuzzer_sys::fuzz_target;
use spillway_policy::git::{PushHead, PushHeadReader, RefTemplate, Repository, refs, request};

/// Reads `bytes` in parts of `size`: the updates, and how many bytes were taken.
fn read(bytes: &[u8], size: usize) -> Result<Option<PushHead>, String> {
    let mut reader = PushHeadReader::default();
    for part in bytes.chunks(size) {
        if let Some(head) = reader.push(part).map_err(|error| error.to_string())? {
            assert!(bytes.starts_with(&reader.into_bytes()), "bytes of a push are lost");
            return Ok(Some(head));
        }
    }
    Ok(None)
}

fuzz_target!(|input: (&str, &str, &[u8])| {
    let (path, template, bytes) = input;
    for (method, query) in [("GET", Some("service=git-upload-pack")), ("POST", None)] {
        let Ok(asked) = request::parse(method, path, query) else { continue };
        let name = asked.repository.name();
        let again = Repository::parse(&name).expect("a name is a repository");
        assert!(again.is_same(&asked.repository) && again.name() == name, "{name}");
        assert!(!name.contains("/../") && !name.contains("//") && !name.contains(['%', '?', '#', '@', '\\']), "{name}");
        assert!(Repository::parse_url(&asked.repository.to_string()).is_ok_and(|url| url.is_same(&again)), "{name}");
    }
    if let Ok(template) = RefTemplate::parse(template) {
        let pattern = template.fill("a", "p", Some("i")).expect("an item is named");
        assert!(!pattern.matches("refs/heads/\u{1}") && !pattern.to_string().contains(['{', '}']), "{pattern}");
        assert!(!(pattern.matches("refs/heads/main") && pattern.matches("refs/heads/other")), "{pattern} is too wide");
    }
    let whole = read(bytes, usize::MAX);
    assert_eq!(whole, read(bytes, 1));
    assert_eq!(whole, read(bytes, 7));
    for update in whole.into_iter().flatten().flat_map(|head| head.updates) {
        assert!(matches!(update.old.len(), 40 | 64) && update.old.len() == update.new.len());
        assert!(!refs::is_valid(&update.name) || update.name.starts_with("refs/"));
    }
});
