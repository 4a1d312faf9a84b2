//! The file that a system call names, and what the call does to it, as far as Landlock limits that. Pure.

use std::sync::LazyLock;

use spillway_sandbox::grants::Access;

/// The folder that a path of a call begins from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathBase {
    /// The working directory of the process.
    WorkingDirectory,
    /// The open folder with this descriptor.
    Descriptor(i32),
}

/// A file that a call names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedFile {
    /// Where its path begins.
    pub base: PathBase,
    /// The address of its path in the memory of the process.
    pub path: u64,
    /// What the call does.
    pub usage: FileUsage,
}

/// What a call does to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileUsage {
    /// It uses a file that exists.
    File(Access),
    /// It writes to a file, and makes the file if there is none.
    Create,
    /// It changes a name in a folder, if that name exists, or does not, or always.
    Entry(Exists),
}

/// The names for which a call changes a folder. For others it fails before the sandbox is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exists {
    /// A name that exists.
    Yes,
    /// A name that does not exist.
    No,
    /// Any name.
    Either,
}

/// How the arguments of a call name a file.
struct CallForm {
    call: &'static str,
    /// The argument with the descriptor of the folder, if there is one.
    folder: Option<usize>,
    path: usize,
    usage: UsageForm,
}

enum UsageForm {
    /// The argument with the flags of `open`.
    Flags(usize),
    Is(FileUsage),
}

const fn form(call: &'static str, folder: Option<usize>, path: usize, usage: UsageForm) -> CallForm {
    CallForm { call, folder, path, usage }
}

const ADD: UsageForm = UsageForm::Is(FileUsage::Entry(Exists::No));
const REMOVE: UsageForm = UsageForm::Is(FileUsage::Entry(Exists::Yes));
const REPLACE: UsageForm = UsageForm::Is(FileUsage::Entry(Exists::Either));
const READ: UsageForm = UsageForm::Is(FileUsage::File(Access::Read));
const WRITE: UsageForm = UsageForm::Is(FileUsage::File(Access::Write));

/// A call with two paths has two forms.
const FORMS: [CallForm; 26] = [
    form("open", None, 0, UsageForm::Flags(1)),
    form("openat", Some(0), 1, UsageForm::Flags(2)),
    form("creat", None, 0, UsageForm::Is(FileUsage::Create)),
    form("truncate", None, 0, WRITE),
    form("execve", None, 0, READ),
    form("execveat", Some(0), 1, READ),
    form("mkdir", None, 0, ADD),
    form("mkdirat", Some(0), 1, ADD),
    form("mknod", None, 0, ADD),
    form("mknodat", Some(0), 1, ADD),
    form("rmdir", None, 0, REMOVE),
    form("unlink", None, 0, REMOVE),
    form("unlinkat", Some(0), 1, REMOVE),
    form("symlink", None, 1, ADD),
    form("symlinkat", Some(1), 2, ADD),
    form("link", None, 0, REMOVE),
    form("link", None, 1, ADD),
    form("linkat", Some(0), 1, REMOVE),
    form("linkat", Some(2), 3, ADD),
    form("rename", None, 0, REMOVE),
    form("rename", None, 1, REPLACE),
    form("renameat", Some(0), 1, REMOVE),
    form("renameat", Some(2), 3, REPLACE),
    form("renameat2", Some(0), 1, REMOVE),
    form("renameat2", Some(2), 3, REPLACE),
    // Its flags are in memory that the process can change at once. Most programs only read by it.
    form("openat2", Some(0), 1, READ),
];

const WORKING_DIRECTORY: i32 = -100;
const ACCESS_MODE: u64 = 3;
const CREATE: u64 = 0o100;
const TRUNCATE: u64 = 0o1000;
const DIRECTORY: u64 = 0o200_000;
const PATH_ONLY: u64 = 0o10_000_000;
/// The flag of a file without a name, without that of directories, which it contains.
const UNNAMED: u64 = 0o20_000_000;

/// The names of the calls that name files.
pub fn calls() -> &'static [&'static str] {
    static CALLS: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
        let mut all: Vec<&str> = FORMS.iter().map(|form| form.call).collect();
        all.dedup();
        all
    });
    &CALLS
}

/// The files that a call names.
pub fn named(call: &str, arguments: &[u64; 6]) -> Vec<NamedFile> {
    let argument = |index: usize| arguments.get(index).copied().unwrap_or(0);
    let one = |form: &CallForm| {
        let usage = match form.usage {
            UsageForm::Is(usage) => usage,
            UsageForm::Flags(flags) => opened(argument(flags))?,
        };
        let base = form.folder.map_or(PathBase::WorkingDirectory, |folder| match argument(folder) as i32 {
            WORKING_DIRECTORY => PathBase::WorkingDirectory,
            descriptor => PathBase::Descriptor(descriptor),
        });
        Some(NamedFile { base, path: argument(form.path), usage })
    };
    FORMS.iter().filter(|form| form.call == call).filter_map(one).collect()
}

/// What the flags of `open` say. `None`: it opens nothing.
fn opened(flags: u64) -> Option<FileUsage> {
    if flags & PATH_ONLY != 0 {
        return None;
    }
    let writes = flags & ACCESS_MODE != 0 || flags & TRUNCATE != 0;
    Some(match (writes, flags & CREATE != 0) {
        _ if flags & UNNAMED != 0 => FileUsage::File(Access::Write),
        (true, true) => FileUsage::Create,
        (true, false) => FileUsage::File(Access::Write),
        (false, true) => FileUsage::Create,
        (false, false) if flags & DIRECTORY != 0 => FileUsage::File(Access::List),
        (false, false) => FileUsage::File(Access::Read),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_name_files_and_say_what_they_do() {
        let at_folder = |usage| vec![NamedFile { base: PathBase::WorkingDirectory, path: 7, usage }];
        let folder = u64::from(WORKING_DIRECTORY as u32);
        for (flags, usage) in [
            (0, FileUsage::File(Access::Read)),
            (0o2_000_000, FileUsage::File(Access::Read)),
            (1, FileUsage::File(Access::Write)),
            (2, FileUsage::File(Access::Write)),
            (0o101, FileUsage::Create),
            (0o100, FileUsage::Create),
            (DIRECTORY, FileUsage::File(Access::List)),
            (UNNAMED | DIRECTORY | 2, FileUsage::File(Access::Write)),
        ] {
            assert_eq!(named("openat", &[folder, 7, flags, 0, 0, 0]), at_folder(usage), "{flags:o}");
            assert_eq!(named("open", &[7, flags, 0, 0, 0, 0]), at_folder(usage), "{flags:o}");
        }
        assert!(named("openat", &[folder, 7, PATH_ONLY, 0, 0, 0]).is_empty(), "Landlock lets it pass");
        assert!(named("read", &[folder, 7, 0, 0, 0, 0]).is_empty());
        let both = named("renameat2", &[3, 7, folder, 8, 0, 0]);
        assert_eq!(
            both.iter().map(|named| (named.base, named.path)).collect::<Vec<_>>(),
            [(PathBase::Descriptor(3), 7), (PathBase::WorkingDirectory, 8)]
        );
    }
}
