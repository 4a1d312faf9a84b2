//! `spillway bridge check`: says what is wrong with the definitions of a folder, or lists its programs.

use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;

use crate::catalog::{Catalog, read};
use crate::definition::{Allowed, Definition};

/// What to check, and what definitions may use.
#[derive(Debug, clap::Args)]
pub struct CheckArguments {
    /// Folder of the definitions, files that end with .md
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// A program that definitions may name, or all of a folder (/opt/tools/*); may be given several times [default: all programs]
    #[arg(long = "allow", value_name = "PATH")]
    allowed: Vec<String>,
    /// Name of a credential that definitions may use; may be given several times
    #[arg(long = "credential", value_name = "NAME")]
    credentials: Vec<String>,
    /// The longest time limit of a program, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    max_seconds: u32,
}

/// Why a folder is not served.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The folder cannot be read.
    #[error("cannot read {0}: {1}")]
    Read(String, io::Error),
    /// There is no definition.
    #[error("{0} has no definition: files that end with .md")]
    Empty(String),
    /// Some definitions are wrong. The text has a line for each.
    #[error("{0}")]
    Faults(String),
}

/// The programs of a folder as a table, or what is wrong.
pub fn check(arguments: CheckArguments) -> Result<String, CheckError> {
    let CheckArguments { folder, allowed, credentials, max_seconds } = arguments;
    let commands = Some(allowed).filter(|allowed| !allowed.is_empty());
    let allowed = Allowed { commands, credentials, max_seconds };
    let name = folder.display().to_string();
    let files = read(&folder).map_err(|error| CheckError::Read(name.clone(), error))?;
    if files.is_empty() {
        return Err(CheckError::Empty(name));
    }
    let catalog = Catalog::load(&files, &allowed).map_err(|faults| {
        let lines: Vec<String> = faults.iter().map(|fault| format!("{name}/{fault}")).collect();
        CheckError::Faults(format!("{} of {} definitions are wrong:\n{}", faults.len(), files.len(), lines.join("\n")))
    })?;
    let mut text = String::new();
    let width = catalog.programs().map(|program| program.name.len()).max().unwrap_or(0);
    for program in catalog.programs() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{:<width$}  {}  {}", program.name, program.command.display(), summary(program));
    }
    let _ = writeln!(text, "revision {}", catalog.revision());
    Ok(text)
}

fn summary(program: &Definition) -> String {
    let arguments: Vec<String> = program
        .arguments
        .iter()
        .map(|argument| if argument.required { argument.name.clone() } else { format!("[{}]", argument.name) })
        .collect();
    let approval = if program.requires_approval { "  needs an approval" } else { "" };
    format!("({}){approval}", arguments.join(", "))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn programs_are_listed_or_each_fault_has_its_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let check = || {
            let (path, allowed) = (folder.path().to_owned(), vec!["/bin/*".into()]);
            check(CheckArguments { folder: path, allowed, credentials: Vec::new(), max_seconds: 60 })
        };
        assert!(check().expect_err("empty").to_string().contains("has no definition"));
        let text = "---\nname: say\ndescription: d\ncommand: /bin/echo\nrequiresApproval: true\nargs: [{name: word, required: true}, {name: more}]\n---\n";
        fs::write(folder.path().join("say.md"), text).expect("a file");
        let said = check().expect("programs");
        assert!(said.starts_with("say  /bin/echo  (word, [more])  needs an approval\nrevision "), "{said}");
        fs::write(folder.path().join("bad.md"), "x").expect("a file");
        let said = check().expect_err("a fault").to_string();
        assert!(said.starts_with("1 of 2 definitions are wrong:\n") && said.contains("/bad.md: line 1: NoFrontMatter: "), "{said}");
    }
}
