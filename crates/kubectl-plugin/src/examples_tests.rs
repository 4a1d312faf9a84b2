//! Every example of the plugin in pages, samples, the chart's notes and the plugin's own help is parsed by its arguments.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory as _, Parser as _};

use super::{Arguments, PROGRAM_NAME};

/// An example: its place, and the rest of its line after the program's name.
struct Example {
    place: String,
    /// Whether it is in a sentence: `kubectl spillway grant` without arguments is then no command line.
    inline: bool,
    line: String,
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Files below a folder with one of these endings.
fn files(folder: &Path, endings: &[&str], found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if path.is_dir() && !["target", "node_modules", ".git"].contains(&name.as_str()) {
            files(&path, endings, found);
        } else if endings.iter().any(|ending| name.ends_with(ending)) {
            found.push(path);
        }
    }
}

/// The text after each name of the program on a line, up to the end of the code.
fn after_name(line: &str) -> Vec<(bool, String)> {
    let mut found = Vec::new();
    for name in ["kubectl spillway", "kubectl-spillway"] {
        for (at, _) in line.match_indices(name) {
            let rest = &line[at + name.len()..];
            // Without a space after it, this is the name of a file, a page or a package.
            if !rest.starts_with(' ') || line[..at].ends_with("-p ") {
                continue;
            }
            // xargs adds arguments.
            let added = if line[..at].ends_with("xargs ") { " name" } else { "" };
            let inline = line[..at].matches('`').count() % 2 == 1;
            let end = if inline { rest.find('`').unwrap_or(rest.len()) } else { rest.len() };
            found.push((inline, format!("{}{added}", &rest[..end])));
        }
    }
    found
}

fn of_text(place: &str, text: &str, code_only: bool) -> Vec<Example> {
    let mut fenced = false;
    let mut examples = Vec::new();
    for (number, line) in text.replace("\\\n", " ").lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        let place = format!("{place}, near line {}", number + 1);
        let found = after_name(line).into_iter().filter(|(inline, _)| *inline || fenced || !code_only);
        examples.extend(found.map(|(inline, rest)| Example { place: place.clone(), inline, line: rest.trim().to_owned() }));
    }
    examples
}

fn all() -> Vec<Example> {
    let mut pages = vec![root().join("README.md"), root().join("SECURITY.md"), root().join("CONTRIBUTING.md")];
    files(&root().join("docs"), &[".md"], &mut pages);
    files(&root().join("charts"), &[".md", "NOTES.txt"], &mut pages);
    let mut samples = Vec::new();
    files(&root().join("config"), &[".yaml", ".md"], &mut samples);
    files(&root().join("charts"), &[".yaml"], &mut samples);
    let text = |path: &PathBuf| fs::read_to_string(path).expect("a text");
    let place =
        |path: &PathBuf| path.strip_prefix(root()).expect("below the root").display().to_string().replace(std::path::MAIN_SEPARATOR, "/");
    let mut examples: Vec<Example> = pages.iter().flat_map(|path| of_text(&place(path), &text(path), true)).collect();
    examples.extend(samples.iter().flat_map(|path| of_text(&place(path), &text(path), false)));
    for command in Arguments::command().get_subcommands() {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        examples.extend(of_text(&format!("the help of {}", command.get_name()), &help, false));
    }
    let decided = include_str!("explain/advice.rs").split("#[cfg(test)]").next().unwrap_or_default();
    for source in [include_str!("explain/advice/table.rs"), include_str!("explain/advice/changesets.rs"), decided] {
        examples.extend(of_text("the advice of explain", source, false));
    }
    examples
}

/// The words of a line as a shell splits them, up to a comment, a pipe, or another command.
fn words(line: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let (mut word, mut begun, mut quote) = (String::new(), false, None);
    for character in line.chars() {
        match (quote, character) {
            (Some(open), _) if character == open => quote = None,
            (Some(_), _) => word.push(character),
            (None, '\'' | '"') => (quote, begun) = (Some(character), true),
            (None, '#') if !begun => break,
            (None, '|' | ';' | '&' | '>' | ')') => break,
            (None, _) if character.is_whitespace() => {
                if begun {
                    words.push(std::mem::take(&mut word));
                }
                begun = false;
            }
            (None, _) => {
                word.push(character);
                begun = true;
            }
        }
    }
    if begun {
        words.push(word);
    }
    words
}

/// A word with its placeholders (`AGENT`, `{agent}`, `N`) replaced by values.
fn filled(word: &str) -> String {
    let is_name = |part: &str| !part.is_empty() && part.chars().all(|character| character.is_ascii_uppercase());
    if word.starts_with('-') {
        return word.to_owned();
    }
    let value = |part: &str| match part {
        "N" | "TOKENS" | "PAUSE" => "5".to_owned(),
        "TIME" | "DURATION" => "30m".to_owned(),
        part if is_name(part) || part.starts_with('{') => "name".to_owned(),
        part => part.to_owned(),
    };
    word.split('/').map(value).collect::<Vec<_>>().join("/")
}

/// Whether a line shows the usage of a command. The options of such a line are looked up, and the line is not parsed.
fn is_usage(line: &str) -> bool {
    let outside: String = line.split(['\'', '"']).step_by(2).collect();
    outside.contains(['[', '<'])
        || outside.contains("...")
        || outside.contains(" | -")
        || outside.split_whitespace().any(|word| word.contains('|') && word.chars().any(char::is_alphanumeric))
}

/// Whether a command, or a command of it, has an option.
fn knows(command: &Command, option: &str) -> bool {
    command.get_arguments().any(|argument| argument.get_long() == Some(option)) || command.get_subcommands().any(|of| knows(of, option))
}

/// The error of an example, if it has one.
fn wrong(example: &Example) -> Option<String> {
    let definition = {
        let mut command = Arguments::command();
        command.build();
        command
    };
    let parsed: Vec<String> = words(&example.line).iter().map(|word| filled(word)).collect();
    let name = parsed.iter().find(|word| !word.starts_with('-'))?;
    let Some(command) = definition.find_subcommand(name) else { return Some(format!("there is no command {name}")) };
    if is_usage(&example.line) {
        let options = example.line.split(|character: char| !(character.is_ascii_alphanumeric() || character == '-'));
        let unknown: Vec<&str> = options
            .filter_map(|word| word.strip_prefix("--"))
            .filter(|option| {
                !option.is_empty()
                    && !knows(command, option)
                    && !definition.get_arguments().any(|argument| argument.get_long() == Some(option))
            })
            .collect();
        return (!unknown.is_empty()).then(|| format!("{name} has no option {unknown:?}"));
    }
    if example.inline && parsed.len() == 1 {
        return None;
    }
    let error = Arguments::try_parse_from(std::iter::once(PROGRAM_NAME.to_owned()).chain(parsed.iter().cloned())).err()?;
    // A sentence may name an option alone: `kubectl spillway rm --force`.
    let partial = example.inline && error.kind() == clap::error::ErrorKind::MissingRequiredArgument;
    let shown = matches!(error.kind(), clap::error::ErrorKind::DisplayHelp | clap::error::ErrorKind::DisplayVersion);
    (!partial && !shown).then(|| error.to_string())
}

#[test]
fn every_example_of_a_command_line_is_one() {
    let examples = all();
    assert!(examples.len() > 150, "only {} examples were found", examples.len());
    let places =
        ["docs/how-to/codex.md", "config/samples/codex/agentpool.yaml", "README.md", "the help of submit", "the advice of explain"];
    for place in places {
        assert!(examples.iter().any(|example| example.place.starts_with(place)), "no example of {place} was found");
    }
    let bad: Vec<String> = examples
        .iter()
        .filter_map(|example| wrong(example).map(|why| format!("{}: kubectl spillway {}\n    {why}", example.place, example.line)))
        .collect();
    assert!(bad.is_empty(), "{} of {} examples are no command lines:\n{}", bad.len(), examples.len(), bad.join("\n"));
}

#[test]
fn what_is_no_command_line_is_found() {
    let example = |line: &str, inline: bool| Example { place: String::new(), inline, line: line.to_owned() };
    for line in
        ["submit -n demo --nonsense code", "frobnicate", "submit code \"write a file\"", "scale p --replicas many", "grant [--nonsense N]"]
    {
        assert!(wrong(&example(line, false)).is_some(), "{line}");
    }
    for line in [
        "submit code --payload 'a | b # c' | tee x",
        "logs AGENT -n NAMESPACE   # words",
        "grant agent/NAME TOKENS",
        "rm {agent} -n {namespace}",
    ] {
        assert_eq!(wrong(&example(line, false)), None, "{line}");
    }
    assert_eq!(wrong(&example("grant", true)), None);
    assert_eq!(words("a 'b c' \"d\"e # f"), ["a", "b c", "de"]);
}
