//! Streams of a folder's copies and changes: no path and no link of them leaves the folder, and a record that is read is written as
//! the same record.
#![cfg_attr(fuzzing, no_main)]

use std::fmt::Debug;
use std::io;

use libfuzzer_sys::fuzz_target;
use serde::Serialize;
use serde::de::DeserializeOwned;
use spillway_folder::path::{OWN_NAME, RelativePath};
use spillway_folder::record::{Change, CopyLine, Entry, copy_bytes, read_line, write_line};

fn check_path(path: &RelativePath) {
    let names: Vec<&str> = path.as_str().split('/').collect();
    assert!(names.iter().all(|name| !name.is_empty() && *name != "." && *name != ".." && !name.contains('\0')), "{path}");
    assert!(names.first() != Some(&OWN_NAME), "{path}");
}

/// Follows a link by its words, as the kernel would in a folder without other links.
fn check_link(path: &RelativePath, target: &str) {
    let mut names: Vec<&str> = path.folders().next().map(|folder| folder.split('/').collect()).unwrap_or_default();
    assert!(!target.starts_with('/'), "{target}");
    for name in target.split('/') {
        match name {
            "" | "." => {}
            ".." => assert!(names.pop().is_some(), "{path} -> {target}"),
            name => names.push(name),
        }
        assert!(names.first() != Some(&OWN_NAME), "{path} -> {target}");
    }
}

/// Reads the records of a stream, and skips the bytes after each.
fn read<T: DeserializeOwned + Serialize + PartialEq + Debug>(
    mut stream: &[u8],
    path: impl Fn(&T) -> Option<&RelativePath>,
    bytes: impl Fn(&T) -> u64,
) {
    while let Ok(Some((_, record))) = read_line::<T>(&mut stream) {
        path(&record).into_iter().for_each(check_path);
        let mut written = Vec::new();
        write_line(&mut written, &record).expect("written to memory");
        let (_, again) = read_line::<T>(&mut written.as_slice()).expect("a line").expect("a record");
        assert_eq!(record, again);
        if copy_bytes(&mut stream, &mut io::sink(), bytes(&record), |_| ()).is_err() {
            return;
        }
    }
}

fuzz_target!(|input: (&str, &str, &[u8])| {
    let (path, target, stream) = input;
    if let Ok(path) = RelativePath::parse(path) {
        check_path(&path);
        if path.link_stays_below(target) {
            check_link(&path, target);
        }
    }
    read::<Change>(stream, |change| Some(&change.path), Change::following_bytes);
    read::<Entry>(stream, |entry| Some(&entry.path), |_| 0);
    read::<CopyLine>(
        stream,
        |line| match line {
            CopyLine::File { path, .. } | CopyLine::Link { path, .. } => Some(path),
            CopyLine::End => None,
        },
        |line| if let CopyLine::File { size, .. } = line { *size } else { 0 },
    );
});
