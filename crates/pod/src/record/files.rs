//! The file that a system call names, and what the call does to it, as far as Landlock limits that. Pure.

use spillway_sandbox::grants::Access;

/// The folder that a path of a call begins from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The working directory of the process.
    WorkingDirectory,
    /// The open folder with this descriptor.
    Descriptor(i32),
}

/// A file that a call names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// Where its path begins.
    pub start: Start,
    /// The address of its path in the memory of the process.
    pub path: u64,
    /// What the call does.
    pub usage: Usage,
}

/// What a call does to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
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
struct Form {
    call: &'static str,
    /// The argument with the descriptor of the folder, if there is one.
    folder: Option<usize>,
    path: usize,
    usage: FormUsage,
}

enum FormUsage {
    /// The argument with the flags of `open`.
    Flags(usize),
    Is(Usage),
}

const fn form(call: &'static str, folder: Option<usize>, path: usize, usage: FormUsage) -> Form {
    Form { call, folder, path, usage }
}

const ADD: FormUsage = FormUsage::Is(Usage::Entry(Exists::No));
const REMOVE: FormUsage = FormUsage::Is(Usage::Entry(Exists::Yes));
const REPLACE: FormUsage = FormUsage::Is(Usage::Entry(Exists::Either));
const READ: FormUsage = FormUsage::Is(Usage::File(Access::Read));
const WRITE: FormUsage = FormUsage::Is(Usage::File(Access::Write));

/// A call with two paths has two forms.
const FORMS: [Form; 26] = [
    form("open", None, 0, FormUsage::Flags(1)),
    form("openat", Some(0), 1, FormUsage::Flags(2)),
    form("creat", None, 0, FormUsage::Is(Usage::Create)),
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

/// The files that a call names.
pub fn named(call: &str, arguments: &[u64; 6]) -> Vec<Named> {
    let argument = |index: usize| arguments.get(index).copied().unwrap_or(0);
    let one = |form: &Form| {
        let usage = match form.usage {
            FormUsage::Is(usage) => usage,
            FormUsage::Flags(flags) => opened(argument(flags))?,
        };
        let start = form.folder.map_or(Start::WorkingDirectory, |folder| match argument(folder) as i32 {
            WORKING_DIRECTORY => Start::WorkingDirectory,
            descriptor => Start::Descriptor(descriptor),
        });
        Some(Named { start, path: argument(form.path), usage })
    };
    FORMS.iter().filter(|form| form.call == call).filter_map(one).collect()
}

/// What the flags of `open` say. `None`: it opens nothing.
fn opened(flags: u64) -> Option<Usage> {
    if flags & PATH_ONLY != 0 {
        return None;
    }
    let writes = flags & ACCESS_MODE != 0 || flags & TRUNCATE != 0;
    Some(match (writes, flags & CREATE != 0) {
        _ if flags & UNNAMED != 0 => Usage::File(Access::Write),
        (true, true) => Usage::Create,
        (true, false) => Usage::File(Access::Write),
        (false, true) => Usage::Create,
        (false, false) if flags & DIRECTORY != 0 => Usage::File(Access::List),
        (false, false) => Usage::File(Access::Read),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_name_files_and_say_what_they_do() {
        let at_folder = |usage| vec![Named { start: Start::WorkingDirectory, path: 7, usage }];
        let folder = u64::from(WORKING_DIRECTORY as u32);
        for (flags, usage) in [
            (0, Usage::File(Access::Read)),
            (0o2_000_000, Usage::File(Access::Read)),
            (1, Usage::File(Access::Write)),
            (2, Usage::File(Access::Write)),
            (0o101, Usage::Create),
            (0o100, Usage::Create),
            (DIRECTORY, Usage::File(Access::List)),
            (UNNAMED | DIRECTORY | 2, Usage::File(Access::Write)),
        ] {
            assert_eq!(named("openat", &[folder, 7, flags, 0, 0, 0]), at_folder(usage), "{flags:o}");
            assert_eq!(named("open", &[7, flags, 0, 0, 0, 0]), at_folder(usage), "{flags:o}");
        }
        assert!(named("openat", &[folder, 7, PATH_ONLY, 0, 0, 0]).is_empty(), "Landlock lets it pass");
        assert!(named("read", &[folder, 7, 0, 0, 0, 0]).is_empty());
        let both = named("renameat2", &[3, 7, folder, 8, 0, 0]);
        assert_eq!(
            both.iter().map(|named| (named.start, named.path)).collect::<Vec<_>>(),
            [(Start::Descriptor(3), 7), (Start::WorkingDirectory, 8)]
        );
    }
}
