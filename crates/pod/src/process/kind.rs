//! The kind of a process, from its command line and its environment: a shell's command, or a program that is meant to stay. Pure,
//! except [`read`].
//!
//! A shell with one simple command becomes that command (`sh -c 'sleep 600'`), so that its command line is lost. The environment
//! still shows it: shells count their depth (`SHLVL`), name the program that they run (`_`) and their folder (`PWD`). A program
//! that starts another one without a shell passes its own environment on.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;

/// The most bytes of a command line that are read. The options of a shell are at its beginning.
pub const MAX_COMMAND_LINE_BYTES: u64 = 4096;
/// The most bytes of an environment that are read.
pub const MAX_ENVIRONMENT_BYTES: u64 = 16 * 1024;
/// The most characters of a name.
const MAX_NAME_CHARS: usize = 64;
/// The greatest depth of shells. Any process may set a larger number.
const MAX_SHELL_DEPTH: u32 = 10_000;
/// The names of shells.
const SHELL_NAMES: [&str; 8] = ["sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "fish"];

/// The traces of shells in an environment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Traces {
    /// The depth of shells (`SHLVL`).
    depth: u32,
    /// A shell has set its folder (`PWD`).
    folder: bool,
    /// The hash of the program that a shell says it started (`_`).
    started: Option<u64>,
    /// The started program is this program.
    names_this_program: bool,
}

/// The standard input of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Input {
    /// A terminal, of a person or of a session.
    Terminal,
    /// A pipe or socket of another process.
    Program,
    /// A file, or nothing.
    #[default]
    Other,
}

/// The kind of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kind {
    /// It is a shell.
    shell: bool,
    /// It is a shell that runs one command and ends.
    shell_command: bool,
    /// Its names.
    names: Vec<String>,
    /// The hash of its command line. A forked shell has the same hash as its parent.
    words: u64,
    /// The traces of shells in its environment; `None`: the environment cannot be read.
    traces: Option<Traces>,
    /// Its standard input.
    input: Input,
}

impl Kind {
    /// The kind of a process with this name, command line and environment. Each part of the two ends with a NUL.
    pub fn of(name: &str, words: &[u8], environment: Option<&[u8]>, input: Input) -> Self {
        let mut hasher = DefaultHasher::new();
        words.hash(&mut hasher);
        let words: Vec<&[u8]> = words.split(|byte| *byte == 0).collect();
        let first = words.first().copied().unwrap_or_default();
        // `python3 -m http.server`, `node /usr/bin/vite`: the program that an interpreter runs has its own name.
        let run = words.iter().skip(1).find(|word| !word.is_empty() && !word.starts_with(b"-"));
        let all = [name.as_bytes(), first].into_iter().chain(run.copied());
        let mut names: Vec<String> = all.map(base_name).filter(|name| !name.is_empty()).collect();
        names.dedup();
        let traces = environment.map(|environment| traces(environment, &names));
        let arguments = shell_arguments(&words);
        let shell_command = arguments.as_ref().is_some_and(|arguments| runs_command(arguments.iter().copied()));
        Self { shell: arguments.is_some(), shell_command, names, words: hasher.finish(), traces, input }
    }

    /// Whether it is a shell's command, as a child of `parent`.
    pub fn is_command(&self, parent: &Self) -> bool {
        // A forked shell belongs to its parent.
        (self.shell_command && self.words != parent.words) || self.became_command(parent)
    }

    /// Whether a shell between the parent and this process became this process.
    fn became_command(&self, parent: &Self) -> bool {
        let Some(own) = self.traces else { return false };
        match parent.traces {
            // The commands of a script have the depth of that script.
            before if parent.shell => before.is_some_and(|before| own.depth > before.depth + 1),
            None => own.names_this_program,
            Some(before) => {
                // A fork of a program, or another start of it, has the program's own `_`.
                let named = own.names_this_program && own.started != before.started;
                // Some programs set `PWD` themselves for a helper, to which they are connected.
                named || own.depth > before.depth || (own.folder && !before.folder && self.input != Input::Program)
            }
        }
    }

    /// Whether its standard input is a terminal.
    pub fn at_terminal(&self) -> bool {
        self.input == Input::Terminal
    }

    /// Whether one of its names is in `programs`.
    pub fn is_one_of(&self, programs: &[impl AsRef<str>]) -> bool {
        self.names.iter().any(|name| programs.iter().any(|program| program.as_ref() == name))
    }
}

/// The kind of the process `pid`; the default for a process that has ended.
pub fn read(pid: i32) -> Kind {
    let mut words = Vec::new();
    if let Ok(file) = File::open(format!("/proc/{pid}/cmdline")) {
        let _ = file.take(MAX_COMMAND_LINE_BYTES).read_to_end(&mut words); // it may have ended
    }
    let name = name(pid);
    let mut environment = Vec::new();
    let readable =
        File::open(format!("/proc/{pid}/environ")).and_then(|file| file.take(MAX_ENVIRONMENT_BYTES).read_to_end(&mut environment)).is_ok();
    let input = fs::read_link(format!("/proc/{pid}/fd/0")).unwrap_or_default();
    let input = input_of(input.as_os_str().as_bytes());
    Kind::of(&String::from_utf8_lossy(&name), &words, readable.then_some(&environment), input)
}

/// The name of a process in the kernel: the name of its file, cut.
pub fn name(pid: i32) -> Vec<u8> {
    let mut name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.truncate(name.trim_ascii_end().len());
    name
}

/// Our own executable file. Unlike a name, it cannot be forged.
#[derive(Debug)]
pub struct OwnBinary(Option<(u64, u64)>);

impl OwnBinary {
    /// Finds our own file.
    pub fn find() -> Self {
        Self(file("self"))
    }

    /// Whether a process runs this file.
    pub fn is_run_by(&self, pid: i32) -> bool {
        self.0.is_some() && file(&pid.to_string()) == self.0
    }
}

/// The device and inode of the file that a process runs.
fn file(process: &str) -> Option<(u64, u64)> {
    fs::metadata(format!("/proc/{process}/exe")).ok().map(|file| (file.dev(), file.ino()))
}

/// The kind of a standard input, from its name in the kernel.
fn input_of(name: &[u8]) -> Input {
    let begins = |all: &[&str]| all.iter().any(|one| name.starts_with(one.as_bytes()));
    match name {
        _ if begins(&["/dev/pts/", "/dev/tty", "/dev/console"]) => Input::Terminal,
        _ if begins(&["pipe:", "socket:"]) => Input::Program,
        _ => Input::Other,
    }
}

fn traces(environment: &[u8], names: &[String]) -> Traces {
    let value = |name: &[u8]| {
        let of_name = |variable: &&[u8]| variable.strip_prefix(name).is_some_and(|rest| rest.starts_with(b"="));
        let found = environment.split(|byte| *byte == 0).find(of_name)?;
        found.get(name.len() + 1..)
    };
    let hash = |program: &[u8]| {
        let mut hasher = DefaultHasher::new();
        program.hash(&mut hasher);
        hasher.finish()
    };
    let depth = value(b"SHLVL").and_then(|depth| std::str::from_utf8(depth).ok()?.parse::<u32>().ok());
    Traces {
        depth: depth.unwrap_or(0).min(MAX_SHELL_DEPTH),
        folder: value(b"PWD").is_some(),
        started: value(b"_").map(hash),
        names_this_program: value(b"_").is_some_and(|program| names.contains(&base_name(program))),
    }
}

/// Whether a shell with these arguments runs one command and ends. An interactive shell (`-i`) does not.
pub fn runs_command<'a>(arguments: impl IntoIterator<Item = &'a [u8]>) -> bool {
    let mut arguments = arguments.into_iter();
    let mut found = false;
    while let Some(argument) = arguments.next() {
        match argument {
            b"--" | b"-" => return found,
            b"--rcfile" | b"--init-file" => drop(arguments.next()),
            [b'-', b'-', ..] => {}
            [b'-', letters @ ..] if letters.contains(&b'i') => return false,
            [b'-', letters @ ..] if letters.contains(&b'c') => found = true,
            // The name of an option follows.
            [b'-' | b'+', .., b'o' | b'O'] => drop(arguments.next()),
            [b'-' | b'+', ..] => {}
            // The command, the name of a script, or its arguments.
            _ => return found,
        }
    }
    found
}

/// The arguments of a shell; `None`: the process is no shell.
fn shell_arguments<'a>(words: &[&'a [u8]]) -> Option<Vec<&'a [u8]>> {
    let mut words = words.iter().copied();
    let mut name = words.next().map(base_name)?;
    if name == "busybox" {
        name = words.next().map(base_name)?;
    }
    // A login shell has a dash before its name.
    SHELL_NAMES.contains(&name.trim_start_matches('-')).then(|| words.collect())
}

/// The name of a program, from its path. Some programs write a whole title there.
fn base_name(word: &[u8]) -> String {
    let text = String::from_utf8_lossy(word);
    let first = text.split_whitespace().next().unwrap_or_default();
    first.rsplit('/').next().unwrap_or_default().chars().take(MAX_NAME_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str]) -> Kind {
        let text: String = words.iter().map(|word| format!("{word}\0")).collect();
        Kind::of("kernels-name", text.as_bytes(), None, Input::Other)
    }

    /// A process with this command line (one string), these variables and this input.
    fn with(words: &str, environment: &[&str], input: Input) -> Kind {
        let nul = |all: &mut dyn Iterator<Item = &str>| all.map(|one| format!("{one}\0")).collect::<String>();
        let words = nul(&mut words.split(' '));
        Kind::of("", words.as_bytes(), Some(nul(&mut environment.iter().copied()).as_bytes()), input)
    }

    #[test]
    fn only_a_shell_with_a_command_runs_one() {
        let cases: [(&[&str], bool); 18] = [
            (&["-c", "make"], true),
            (&["-lc", "make"], true),
            (&["-c", "-l", "make"], true),
            (&["-e", "-o", "pipefail", "-c", "make"], true),
            (&["--norc", "-c", "make"], true),
            (&["--rcfile", "file", "-c", "make"], true),
            (&["+x", "-c", "make"], true),
            (&["-c", "--", "make"], true),
            (&["-c", "make", "-i"], true),
            (&["-ic", "make"], false),
            (&["-c", "-i", "make"], false),
            (&["script.sh", "-c"], false),
            (&["-o", "-c"], false),
            (&["--", "-c"], false),
            (&["-", "-c"], false),
            (&["-i"], false),
            (&["-s"], false),
            (&[], false),
        ];
        for (arguments, expected) in cases {
            assert_eq!(runs_command(arguments.iter().map(|argument| argument.as_bytes())), expected, "{arguments:?}");
        }
    }

    #[test]
    fn a_shell_is_known_by_its_name() {
        let cases: [(&[&str], bool); 8] = [
            (&["/bin/bash", "-lc", "make"], true),
            (&["-sh", "-c", "make"], true),
            (&["busybox", "sh", "-c", "make"], true),
            (&["busybox", "wget", "-c"], false),
            (&["/bin/dash", "script"], false),
            (&["gcc", "-c", "a.c"], false),
            (&["node", "-c", "sh"], false),
            (&[], false),
        ];
        for (words, expected) in cases {
            assert_eq!(of(words).shell_command, expected, "{words:?}");
        }
    }

    #[test]
    fn a_program_is_known_by_each_of_its_names() {
        let cases: [(&[&str], &[&str]); 6] = [
            (&["/usr/bin/vite", "--port", "80"], &["kernels-name", "vite", "80"]),
            (&["node", "--inspect", "/app/.bin/vite"], &["kernels-name", "node", "vite"]),
            (&["python3", "-m", "http.server"], &["kernels-name", "python3", "http.server"]),
            (&["npm run dev"], &["kernels-name", "npm"]),
            (&["bash", "-c", "cd web && vite"], &["kernels-name", "bash", "cd"]),
            (&[], &["kernels-name"]),
        ];
        for (words, names) in cases {
            assert_eq!(of(words).names, names, "{words:?}");
        }
        assert!(of(&["node", "vite"]).is_one_of(&["vite"]) && !of(&["node", "vite"]).is_one_of(&["vit"]));
        let long = of(&["x".repeat(1000).as_str()]);
        assert_eq!(long.names[1].len(), MAX_NAME_CHARS);
    }

    #[test]
    fn a_fork_has_the_words_of_its_parent() {
        let shell = |script| of(&["sh", "-c", script]);
        assert!(!shell("(a)").is_command(&shell("(a)")), "it forked");
        assert!(shell("(a)").is_command(&shell("(b)")) && shell("(a)").is_command(&of(&["node"])));
    }

    #[test]
    fn a_command_that_a_shell_became_is_known_by_what_the_shell_left() {
        let program = |words, environment: &[&str]| with(words, environment, Input::Other);
        let node = program("node agent.js", &["HOME=/h"]);
        let script = program("/bin/sh agent.sh", &["HOME=/h"]);
        let launched = program("codex exec", &["SHLVL=1", "PWD=/w"]);
        let worker: &[&str] = &["SHLVL=1", "PWD=/w", "_=/usr/bin/python3"];
        let python = program("python3 agent.py", worker);
        let hidden = of(&["codex"]);
        let none = Input::Other;
        let cases: [(&Kind, &str, &[&str], Input, bool); 19] = [
            // The environments after dash, bash and busybox, and one without a shell.
            (&node, "sleep 600", &["HOME=/h", "PWD=/w"], none, true),
            (&node, "sleep 600", &["PWD=/w", "SHLVL=0", "_=/usr/bin/sleep"], none, true),
            (&node, "sleep 600", &["SHLVL=1", "PWD=/w"], Input::Program, true),
            (&node, "sleep 600", &["HOME=/h"], none, false),
            // Some programs set the folder of a helper, to which they are connected.
            (&node, "server", &["HOME=/h", "PWD=/w"], Input::Program, false),
            // A process of a script is no command of another shell.
            (&script, "sleep 600", &["SHLVL=1", "PWD=/w"], none, false),
            (&script, "sleep 600", &["SHLVL=1", "PWD=/w", "_=/bin/sleep"], none, false),
            (&script, "sleep 600", &["SHLVL=2", "PWD=/w"], none, true),
            // A script had started the program.
            (&launched, "sleep 600", &["SHLVL=1", "PWD=/w"], none, false),
            (&launched, "sleep 600", &["SHLVL=2", "PWD=/w"], none, true),
            (&launched, "sleep 600", &["SHLVL=1", "PWD=/w", "_=/bin/sleep"], none, true),
            (&launched, "node /app/tool", &["SHLVL=1", "PWD=/w", "_=/app/tool"], none, true),
            (&launched, "sleep 600", &["SHLVL=1", "PWD=/w", "_=/bin/codex"], none, false),
            // A script had started the program by its name, and it forks workers, or starts itself once more.
            (&python, "python3 agent.py", worker, none, false),
            (&python, "python3 -m worker", worker, none, false),
            (&python, "sleep 600", &["SHLVL=1", "PWD=/w", "_=/bin/sleep"], none, true),
            // Less is known about the children of a program whose environment cannot be read.
            (&hidden, "sleep 600", &["SHLVL=1", "PWD=/w"], none, false),
            (&hidden, "sleep 600", &["PWD=/w", "_=/bin/sleep"], none, true),
            (&hidden, "sleep 600", &[], none, false),
        ];
        for (parent, words, environment, input, expected) in cases {
            let child = with(words, environment, input);
            assert_eq!(child.is_command(parent), expected, "{words} {environment:?} {input:?} below {parent:?}");
        }
    }

    #[test]
    fn what_a_process_reads_from_is_known_by_its_name() {
        let cases = [
            ("/dev/pts/3", Input::Terminal),
            ("/dev/console", Input::Terminal),
            ("pipe:[12]", Input::Program),
            ("socket:[12]", Input::Program),
            ("/dev/null", Input::Other),
            ("/spillway/data/payload", Input::Other),
            ("", Input::Other),
        ];
        for (name, expected) in cases {
            assert_eq!(input_of(name.as_bytes()), expected, "{name}");
        }
    }

    #[test]
    fn real_shells_leave_what_they_are_known_by() {
        let command = |shell: &str| {
            let mut child = std::process::Command::new(shell);
            let mut child = child.args(["-c", "sleep 1000"]).env_clear().env("PATH", "/usr/bin:/bin").spawn().expect("a child");
            let pid = i32::try_from(child.id()).expect("a pid");
            let became = (0..5000).find_map(|_| {
                std::thread::sleep(std::time::Duration::from_millis(1));
                Some(read(pid)).filter(|kind| kind.names.iter().any(|name| name == "sleep"))
            });
            child.kill().expect("killed");
            child.wait().expect("reaped");
            became.unwrap_or_else(|| panic!("{shell} becomes its command"))
        };
        let program = with("node agent.js", &["PATH=/usr/bin:/bin"], Input::Other);
        for shell in ["/bin/sh", "/bin/bash"] {
            let found = command(shell);
            // The standard input of the tests does not matter.
            assert!(Kind { input: Input::Other, ..found.clone() }.is_command(&program), "{shell}: {found:?}");
        }
    }

    #[test]
    fn what_is_read_of_a_process_is_bounded() {
        let long = "x".repeat(100_000);
        // The shell itself waits for input: a program that it started would stay when the shell is killed.
        let mut child = std::process::Command::new("sh").args(["-c", "read line; :", &long]).stdin(std::process::Stdio::piped()).spawn();
        let child = child.as_mut().expect("a child");
        let pid = i32::try_from(child.id()).expect("a pid");
        // After a start, the new process gets its name a moment later, and its command line a moment after the name.
        let begun =
            |found: &Kind| found.names.iter().any(|name| name == "sh") && found.words != Kind::of("sh", b"", None, Input::Other).words;
        let found = loop {
            let found = read(pid);
            if begun(&found) {
                break found;
            }
            assert!(child.try_wait().expect("asked").is_none(), "it waits");
        };
        child.kill().expect("killed");
        child.wait().expect("reaped");
        let mut words = format!("sh\0-c\0read line; :\0{long}");
        words.truncate(usize::try_from(MAX_COMMAND_LINE_BYTES).expect("few"));
        let known = Kind::of("sh", words.as_bytes(), None, Input::Other);
        assert_eq!((found.words, found.names, found.shell_command), (known.words, known.names, true));
        assert_eq!(read(i32::MAX), Kind::of("", b"", None, Input::Other));
    }
}
