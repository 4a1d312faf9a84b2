//! Stands in for libFuzzer in tests: a fuzz target runs once on each file of its corpus. It must not change the inputs.

use std::path::Path;

pub use arbitrary;

/// Like libFuzzer's macro of this name, but makes a test.
#[macro_export]
macro_rules! fuzz_target {
    (|$data:ident: &[u8]| $body:expr) => {
        #[test]
        fn holds_for_each_file_of_the_corpus() {
            $crate::for_each_input(env!("CARGO_CRATE_NAME"), |bytes| {
                let $data: &[u8] = bytes;
                $body
            });
        }
    };
    (|$data:ident: $type:ty| $body:expr) => {
        #[test]
        fn holds_for_each_file_of_the_corpus() {
            $crate::for_each_input(env!("CARGO_CRATE_NAME"), |bytes| {
                let unread = $crate::arbitrary::Unstructured::new(bytes);
                // Not all bytes make a value of the type.
                let Ok($data) = <$type as $crate::arbitrary::Arbitrary>::arbitrary_take_rest(unread) else { return };
                $body
            });
        }
    };
}

/// Calls `target` with each file in the corpus of `name`. The path of a file is printed before, so a failed test shows it last.
///
/// # Panics
/// If there is no corpus.
pub fn for_each_input(name: &str, mut target: impl FnMut(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus").join(name);
    let entries = folder.read_dir().unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    assert!(!files.is_empty(), "{} has no file", folder.display());
    files.sort();
    for file in files {
        println!("{}", file.display());
        target(&std::fs::read(&file).expect("a readable file"));
    }
}
