//! The rules of a pool for the changes of an item: paths that must not change, and a limit in bytes. Pure.

use spillway_wire::changeset::reasons;

use crate::agent::changeset::StepFailure;

/// The most characters of a path in a message.
const MAX_SHOWN_CHARS: usize = 200;

/// Why a changed path is refused, if one is protected.
pub fn protected<'a>(paths: impl IntoIterator<Item = &'a str>, protect: &[String]) -> Option<StepFailure> {
    let (path, pattern) =
        paths.into_iter().find_map(|path| protect.iter().find(|pattern| covers(pattern, path)).map(|pattern| (path, pattern)))?;
    let path = shown(path);
    let message = format!("{path} was changed, and {pattern} is protected (spec.sandbox.changeset.protect of the pool)");
    Some(StepFailure::new(reasons::PROTECTED_PATH, message))
}

/// Why so many changed bytes are refused, if they are too many. `advice` is a sentence for people.
pub fn too_large(bytes: u64, max_bytes: Option<u64>, advice: &str) -> Option<StepFailure> {
    let most = max_bytes.filter(|most| bytes > *most)?;
    let message =
        format!("the changed files have {bytes} bytes, and may have {most} (spec.sandbox.changeset.maxBytes of the pool). {advice}");
    Some(StepFailure::new(reasons::CHANGESET_TOO_LARGE, message))
}

/// A path of a program in a message.
pub fn shown(path: &str) -> String {
    path.chars().take(MAX_SHOWN_CHARS).collect()
}

/// Whether a pattern stands for this path, or for a folder above it. `*` stands for any characters of one name.
fn covers(pattern: &str, path: &str) -> bool {
    let mut names = path.split('/');
    let pattern = pattern.trim_start_matches("./").trim_end_matches('/');
    pattern.split('/').all(|wanted| names.next().is_some_and(|name| matches(wanted.as_bytes(), name.as_bytes())))
}

/// Whether `*` in `pattern` can stand for something so that it is `name`.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let mut parts = pattern.split(|byte| *byte == b'*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let mut parts: Vec<&[u8]> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = (0..=rest.len()).find(|at| rest.get(*at..).is_some_and(|rest| rest.starts_with(part))) else { return false };
        rest = rest.get(at + part.len()..).unwrap_or_default();
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_covers_its_path_and_all_below_and_a_star_is_one_name() {
        for (pattern, path, covered) in [
            (".github", ".github/workflows/ci.yaml", true),
            (".github/", ".github", true),
            ("./ci", "ci/run", true),
            (".github", ".github2/x", false),
            ("a/b", "a", false),
            ("*.lock", "Cargo.lock", true),
            ("*.lock", "sub/Cargo.lock", false),
            ("*/Cargo.lock", "sub/Cargo.lock", true),
            ("*/Cargo.lock", "sub/sub/Cargo.lock", false),
            ("a*b*c", "a1b2c", true),
            ("a*b*c", "a1c2b", false),
            ("ab*b", "ab", false),
            ("*", "anything/below", true),
            ("CI", "ci", false),
        ] {
            assert_eq!(covers(pattern, path), covered, "{pattern} {path}");
        }
    }

    #[test]
    fn a_refusal_names_the_path_and_the_field() {
        let protect = ["x".to_owned(), "fi*".to_owned()];
        let failure = protected(["a", "file"], &protect).expect("refused");
        assert_eq!(failure.message, "file was changed, and fi* is protected (spec.sandbox.changeset.protect of the pool)");
        assert_eq!(protected(["a", "b"], &protect), None);
        assert_eq!(too_large(11, Some(10), "Do less.").map(|failure| failure.reason).as_deref(), Some(reasons::CHANGESET_TOO_LARGE));
        assert_eq!((too_large(10, Some(10), ""), too_large(11, None, "")), (None, None));
    }
}
