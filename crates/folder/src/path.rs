//! Paths below a folder. Pure.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The most bytes of a path: the kernel's own limit.
pub const MAX_PATH_BYTES: usize = 4095;
/// The most bytes of one name.
const MAX_NAME_BYTES: usize = 255;
/// The name of Spillway's own files at the top of a folder. No item sees or changes them, and no path has this name.
pub const OWN_NAME: &str = ".spillway";

/// A path below a folder: names with `/` between them, none of them `.` or `..`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RelativePath(String);

/// Why a text is no path below a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PathError {
    /// It is empty, begins or ends with `/`, or has `//`.
    #[error("a path has no empty names")]
    EmptyName,
    /// It has a name that is `.` or `..`.
    #[error("a path has no names . and ..")]
    Dots,
    /// It has a NUL.
    #[error("a path has no NUL")]
    Nul,
    /// It, or one of its names, is too long.
    #[error("a path has at most 4095 bytes, and each name at most 255")]
    TooLong,
    /// It is one of Spillway's own files.
    #[error("the name .spillway is Spillway's own")]
    Own,
}

impl RelativePath {
    /// Reads a path.
    pub fn parse(text: &str) -> Result<Self, PathError> {
        if text.len() > MAX_PATH_BYTES {
            return Err(PathError::TooLong);
        }
        for name in text.split('/') {
            match name {
                "" => return Err(PathError::EmptyName),
                "." | ".." => return Err(PathError::Dots),
                name if name.contains('\0') => return Err(PathError::Nul),
                name if name.len() > MAX_NAME_BYTES => return Err(PathError::TooLong),
                // Also below another folder: a folder of another pool may be there.
                OWN_NAME => return Err(PathError::Own),
                _ => {}
            }
        }
        Ok(Self(text.to_owned()))
    }

    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The path of the folder that it is in, and its last name.
    pub fn split(&self) -> (Option<&str>, &str) {
        self.0.rsplit_once('/').map_or((None, self.0.as_str()), |(folder, name)| (Some(folder), name))
    }

    /// The folders above it, from its own to the top.
    pub fn folders(&self) -> impl Iterator<Item = &str> {
        let mut next = self.split().0;
        std::iter::from_fn(move || {
            let folder = next?;
            next = folder.rsplit_once('/').map(|(above, _)| above);
            Some(folder)
        })
    }

    /// Whether a symbolic link at this path with this target points to a path below the same folder. Names that lead up come first in
    /// such a target: the folders above a link are real, and a later name may be a link itself.
    pub fn link_stays_below(&self, target: &str) -> bool {
        if target.is_empty() || target.starts_with('/') || target.contains('\0') || target.len() > MAX_PATH_BYTES {
            return false;
        }
        let (mut depth, mut leads_up) = (self.0.split('/').count() - 1, true);
        for name in target.split('/') {
            match name {
                "" | "." => {}
                ".." => match depth.checked_sub(1).filter(|_| leads_up) {
                    Some(less) => depth = less,
                    None => return false,
                },
                OWN_NAME => return false,
                _ => leads_up = false,
            }
        }
        true
    }
}

impl TryFrom<String> for RelativePath {
    type Error = PathError;

    fn try_from(text: String) -> Result<Self, PathError> {
        Self::parse(&text)
    }
}

impl From<RelativePath> for String {
    fn from(path: RelativePath) -> Self {
        path.0
    }
}

impl std::fmt::Display for RelativePath {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_below_the_folder_are_paths() {
        for (text, expected) in [
            ("a", Ok(())),
            ("a/b c/\n-rf", Ok(())),
            ("a/.spillway", Err(PathError::Own)),
            ("a/.spillway/commit/0", Err(PathError::Own)),
            (".spillway2", Ok(())),
            ("", Err(PathError::EmptyName)),
            ("/a", Err(PathError::EmptyName)),
            ("a/", Err(PathError::EmptyName)),
            ("a//b", Err(PathError::EmptyName)),
            ("..", Err(PathError::Dots)),
            ("a/../b", Err(PathError::Dots)),
            ("./a", Err(PathError::Dots)),
            ("a\0b", Err(PathError::Nul)),
            (".spillway/x", Err(PathError::Own)),
            (&"x".repeat(256), Err(PathError::TooLong)),
            (&"x/".repeat(2048), Err(PathError::TooLong)),
        ] {
            assert_eq!(RelativePath::parse(text).map(drop), expected, "{text:?}");
        }
    }

    #[test]
    fn the_folders_above_a_path_are_listed_from_its_own_to_the_top() {
        let path = RelativePath::parse("a/b/c").expect("a path");
        assert_eq!(path.folders().collect::<Vec<_>>(), ["a/b", "a"]);
        assert_eq!(path.split(), (Some("a/b"), "c"));
        assert_eq!(RelativePath::parse("a").expect("a path").folders().count(), 0);
    }

    #[test]
    fn a_link_that_leaves_the_folder_is_known_by_its_words() {
        for (path, target, stays) in [
            ("a", "b", true),
            ("a/b", "../c", true),
            ("a/b", "../../c", false),
            ("a", "..", false),
            ("a", "/etc/passwd", false),
            ("a", "b/../../c", false),
            ("a/b", ".././/c", true),
            ("a/b/c", "../.././d/e", true),
            ("l", "a/b/c/../../y", false),
            ("a", "b/..", false),
            ("a", "", false),
            ("a", ".spillway/x", false),
            ("a/b", "../.spillway", false),
            ("a/b", ".spillway", false),
        ] {
            assert_eq!(RelativePath::parse(path).expect("a path").link_stays_below(target), stays, "{path} -> {target}");
        }
    }
}
