//! `spillway artifact`: keeps files with the item in hand, and gets those of other items.

mod transfer;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use spillway_wire::artifact::{ArtifactList, NAME_RULE, OWN_ITEM, is_name};

use self::transfer::{Failure, Port};
use super::output::{EXIT_REFUSED, EXIT_UNREACHABLE, EXIT_USAGE, print, print_to_stderr};
use crate::ARTIFACTS_VARIABLE;

/// The most tries of one transfer. Together with their waits they outlast a change of the leader.
const MAX_ATTEMPTS: u32 = 7;
/// The first wait, which doubles with each try, and the longest one.
const WAITS: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(30));

/// The arguments of `artifact`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// URL of the sidecar's port for artifacts
    #[arg(long, global = true, hide = true, env = ARTIFACTS_VARIABLE, default_value = crate::DEFAULT_ARTIFACTS_URL)]
    url: String,
    #[command(subcommand)]
    verb: Verb,
}

/// The commands of `artifact`.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Keep a file with the item in hand, and print its name. A file of the same name is replaced
    Put {
        /// File
        file: PathBuf,
        /// Name of the artifact [default: the name of the file]
        #[arg(long)]
        name: Option<String>,
    },
    /// Get a file of the item in hand, of an item that it depends on, or of an item that this pool submitted
    Get {
        /// NAME, or ITEM/NAME
        artifact: String,
        /// File to write; - is standard output [default: the name of the artifact]
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Print the files of an item, each with its size in bytes and its end
    List {
        /// Item [default: the item in hand]
        item: Option<String>,
        /// Print all data as JSON
        #[arg(long)]
        json: bool,
    },
}

/// Runs a command; returns the exit code.
pub fn run(Arguments { url, verb }: Arguments) -> u8 {
    let port = match Port::parse(&url) {
        Ok(port) => port,
        Err(error) => return usage(&error),
    };
    match verb {
        Verb::Put { file, name } => put(&port, &file, name),
        Verb::Get { artifact, output } => get(&port, &artifact, output),
        Verb::List { item, json } => list(&port, item.as_deref().unwrap_or(OWN_ITEM), json),
    }
}

fn usage(words: &str) -> u8 {
    print_to_stderr(&format!("error: {words}"));
    EXIT_USAGE
}

fn put(port: &Port, file: &std::path::Path, name: Option<String>) -> u8 {
    let own = || file.file_name().map(|name| name.to_string_lossy().into_owned());
    let Some(name) = name.or_else(own) else { return usage(&format!("{} has no name: name the artifact with --name", file.display())) };
    if !is_name(&name) {
        return usage(&format!("an artifact cannot be named {name:?}: a name has {NAME_RULE}; name it with --name"));
    }
    match tried(|| port.put(file, &name)) {
        Ok(artifact) => {
            print(&format!("{}/{}", artifact.item, artifact.name));
            0
        }
        Err(code) => code,
    }
}

fn get(port: &Port, artifact: &str, output: Option<PathBuf>) -> u8 {
    let (item, name) = artifact.split_once('/').unwrap_or((OWN_ITEM, artifact));
    if item.is_empty() || !is_name(name) {
        return usage(&format!("{artifact:?} is no NAME or ITEM/NAME: a name has {NAME_RULE}"));
    }
    let output = output.unwrap_or_else(|| PathBuf::from(name));
    let got = if output.as_os_str() == "-" {
        // What was printed cannot be taken back, so it is printed once.
        settled(port.get_to_stdout(item, name))
    } else {
        tried(|| port.get(item, name, &output))
    };
    got.map_or_else(|code| code, |()| 0)
}

fn list(port: &Port, item: &str, json: bool) -> u8 {
    match tried(|| port.list(item)) {
        Ok(list) if json => {
            print(&serde_json::to_string(&list).unwrap_or_default());
            0
        }
        Ok(ArtifactList { artifacts }) => {
            artifacts.iter().for_each(|artifact| print(&format!("{}\t{}\t{}", artifact.name, artifact.bytes, artifact.expires)));
            0
        }
        Err(code) => code,
    }
}

/// Tries again as long as a failure may be over soon. Err: the exit code.
fn tried<T>(attempt: impl Fn() -> Result<T, Failure>) -> Result<T, u8> {
    let mut attempts = 1;
    loop {
        match attempt() {
            Err(Failure::Later(words, wait)) if attempts < MAX_ATTEMPTS => {
                print_to_stderr(&format!("{words}; trying again"));
                let (first, longest) = WAITS;
                std::thread::sleep(wait.max(first * 2_u32.pow(attempts - 1)).min(longest));
                attempts += 1;
            }
            result => return settled(result),
        }
    }
}

/// Prints a failure; returns its exit code.
fn settled<T>(result: Result<T, Failure>) -> Result<T, u8> {
    result.map_err(|failure| match failure {
        Failure::Usage(words) => usage(&words),
        Failure::Refused(words) | Failure::Later(words, _) => {
            print_to_stderr(&format!("refused: {words}"));
            EXIT_REFUSED
        }
        Failure::Unreachable(words) => {
            print_to_stderr(&format!("error: the sidecar cannot be reached: {words}"));
            EXIT_UNREACHABLE
        }
    })
}
