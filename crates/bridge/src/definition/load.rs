//! From the bytes of a file to a definition. All that can be known without the program is checked here, so that a call meets no surprise.

use std::collections::BTreeSet;
use std::path::{Component, Path};

use serde_saphyr::Spanned;

use super::argument::{Argument, ArgumentType, DEFAULT_MAX_CHARS, MAX_CHARS, check_characters};
use super::fields::{ArgumentFields, EnvironmentFields, Fields, LimitFields, TypeName, in_file, parse};
use super::front_matter::split;
use super::pattern::{MAX_PATTERNS_BYTES, Pattern};
use super::template::Template;
use super::{Allowed, Definition, Fault, Limits};

/// The time limit of a program whose definition says none, in seconds.
const DEFAULT_SECONDS: u32 = 60;
/// The most arguments of a program.
pub(crate) const MAX_ARGUMENTS: usize = 64;
/// The most words of a command.
const MAX_WORDS: usize = 128;
/// The most texts of an `enum`.
const MAX_VALUES: usize = 128;
/// The most characters of a description.
const MAX_DESCRIPTION_CHARS: usize = 1024;
/// The most variables of an environment.
const MAX_VARIABLES: usize = 64;

/// Programs that run what their arguments say. `python3.11` is found by its beginning.
const INTERPRETERS: [&str; 33] = [
    "ash",
    "awk",
    "bash",
    "bun",
    "busybox",
    "csh",
    "dash",
    "deno",
    "env",
    "fish",
    "gawk",
    "ksh",
    "lua",
    "mawk",
    "node",
    "nodejs",
    "nohup",
    "osascript",
    "perl",
    "php",
    "pwsh",
    "python",
    "ruby",
    "sh",
    "ssh",
    "su",
    "sudo",
    "tclsh",
    "tcsh",
    "timeout",
    "toybox",
    "xargs",
    "zsh",
];
/// Variables that make a program load code, or look for programs elsewhere.
const DANGEROUS_VARIABLES: [&str; 10] =
    ["BASH_ENV", "ENV", "GCONV_PATH", "IFS", "NODE_OPTIONS", "PERL5LIB", "PERL5OPT", "PYTHONPATH", "PYTHONSTARTUP", "RUBYOPT"];

/// Loads a definition.
pub fn load(bytes: &[u8], allowed: &Allowed) -> Result<Definition, Fault> {
    let parts = split(bytes)?;
    let Fields { name, description, command, argv, args, timeout_seconds, limits, env, requires_approval, interpreter } =
        parse(parts.fields)?;
    check_name(&name, "name")?;
    check_description(&description)?;
    check_command(&command, interpreter, allowed)?;
    if args.len() > MAX_ARGUMENTS {
        return Err(Fault::new(
            line(&name),
            "tooManyArguments",
            format!("a program may have {MAX_ARGUMENTS} arguments, and this one has {}", args.len()),
        ));
    }
    let words = words(argv.as_deref(), &args)?;
    let begins: BTreeSet<&str> = words.iter().filter_map(Template::first_argument).collect();
    let (mut arguments, mut pattern_bytes) = (Vec::new(), 0);
    for fields in &args {
        let argument = argument(fields, begins.contains(fields.name.value.as_str()))?;
        if arguments.iter().any(|known: &Argument| known.name == argument.name) {
            return Err(Fault::new(line(&fields.name), "duplicateArgument", format!("the argument {} is declared twice", argument.name)));
        }
        pattern_bytes += argument.pattern_bytes();
        check_pattern_bytes(pattern_bytes, line(&fields.name))?;
        arguments.push(argument);
    }
    let (environment, credentials) = environment(&env, allowed)?;
    Ok(Definition {
        timeout_seconds: timeout(timeout_seconds.as_ref(), allowed)?,
        limits: self::limits(&limits)?,
        name: name.value,
        description: description.value,
        help: parts.help.to_owned(),
        command: command.value.into(),
        words,
        arguments,
        environment,
        credentials,
        requires_approval,
        interpreter,
        takes_any_arguments: false,
    })
}

pub(crate) fn line<T>(spanned: &Spanned<T>) -> u32 {
    in_file(spanned.referenced.line())
}

/// Names of programs and arguments: an agent writes them, and people read them in logs.
fn check_name(name: &Spanned<String>, field: &str) -> Result<(), Fault> {
    let text = &name.value;
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_' || byte == b'-';
    if text.len() <= 63 && text.bytes().all(plain) && text.starts_with(|first: char| first.is_ascii_lowercase()) {
        return Ok(());
    }
    let message = format!("{field} {text:?} must have at most 63 lower-case letters, digits, `_` and `-`, and begin with a letter");
    Err(Fault::new(line(name), "name", message))
}

fn check_description(description: &Spanned<String>) -> Result<(), Fault> {
    let fault = |message: String| Fault::new(line(description), "description", message);
    let text = description.value.as_str();
    if text.trim().is_empty() {
        return Err(fault("description must say what the program does: agents choose by it".to_owned()));
    }
    if text.chars().count() > MAX_DESCRIPTION_CHARS {
        return Err(fault(format!(
            "description may have {MAX_DESCRIPTION_CHARS} characters; write more into the text below the front matter"
        )));
    }
    check_characters(text).map_err(|(_, why)| fault(format!("description {why}")))
}

fn check_command(command: &Spanned<String>, interpreter: bool, allowed: &Allowed) -> Result<(), Fault> {
    let fault = |rule, message: String| Err(Fault::new(line(command), rule, message));
    let text = command.value.as_str();
    let path = Path::new(text);
    let plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    // The components of a path hide a dot and a doubled slash.
    let rebuilt: std::path::PathBuf = path.components().collect();
    if !path.is_absolute() || !plain || rebuilt.as_os_str() != path.as_os_str() || check_characters(text).is_err() {
        return fault("command", format!("command {text:?} must be an absolute path without `.`, `..` and doubled slashes"));
    }
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
        return fault("command", format!("command {text:?} names no program"));
    };
    if !allowed.allows(path) {
        return fault(
            "allowedCommands",
            format!(
                "command {text} is not in allowedCommands: {}",
                allowed.commands.iter().flatten().cloned().collect::<Vec<_>>().join(", ")
            ),
        );
    }
    if is_interpreter(name) && !interpreter {
        let message = format!("{name} runs what its arguments say. Name the program itself, or set `interpreter: true`");
        return fault("interpreter", message);
    }
    Ok(())
}

/// Whether a program runs what its arguments say, also with a version in its name.
pub fn is_interpreter(name: &str) -> bool {
    let plain = name.trim_end_matches(|end: char| end.is_ascii_digit() || matches!(end, '.' | '-'));
    INTERPRETERS.contains(&name) || INTERPRETERS.contains(&plain)
}

/// The words after the program. Without `argv`: each argument, in order.
fn words(argv: Option<&[Spanned<String>]>, args: &[ArgumentFields]) -> Result<Vec<Template>, Fault> {
    let Some(argv) = argv else { return Ok(args.iter().map(|fields| Template::argument(&fields.name.value)).collect()) };
    if argv.len() > MAX_WORDS {
        let message = format!("argv may have {MAX_WORDS} words, and has {}", argv.len());
        return Err(Fault::new(argv.first().map(line), "argv", message));
    }
    let mut words = Vec::new();
    let mut used = BTreeSet::new();
    for word in argv {
        let template = Template::parse(&word.value).map_err(|message| Fault::new(line(word), "argv", message))?;
        for name in template.arguments() {
            if !args.iter().any(|fields| fields.name.value == name) {
                return Err(Fault::new(line(word), "undeclared", format!("{{{name}}} is not declared in args")));
            }
            used.insert(name.to_owned());
        }
        words.push(template);
    }
    match args.iter().find(|fields| !used.contains(&fields.name.value)) {
        Some(unused) => {
            let message = format!("the argument {0} is in no word of argv: add {{{0}}}, or remove it from args", unused.name.value);
            Err(Fault::new(line(&unused.name), "unused", message))
        }
        None => Ok(words),
    }
}

/// `begins`: a word of the command begins with the argument.
fn argument(fields: &ArgumentFields, begins: bool) -> Result<Argument, Fault> {
    check_name(&fields.name, "the argument")?;
    if fields.multiline {
        let message = format!("{}: multiline is for the tools of an upstream: a word of a command has one line", fields.name.value);
        return Err(Fault::new(line(&fields.name), "multiline", message));
    }
    argument_rules(fields, begins)
}

/// The rules for the value of an argument, whatever its name. `begins`: a word of a command begins with it.
/// Refuses patterns that take too much memory together: the leader loads definitions of all teams.
pub(crate) fn check_pattern_bytes(bytes: usize, line: u32) -> Result<(), Fault> {
    if bytes <= MAX_PATTERNS_BYTES {
        return Ok(());
    }
    let message = format!("the compiled patterns take {bytes} bytes of memory, and may take {MAX_PATTERNS_BYTES}: use smaller repetitions");
    Err(Fault::new(line, "patternsTooLarge", message))
}

pub(crate) fn argument_rules(fields: &ArgumentFields, begins: bool) -> Result<Argument, Fault> {
    let ArgumentFields { name, type_, description, required, pattern, max_length, leading_dash, min, max, values, multiline } = fields;
    let fault = |rule, message: String| Fault::new(line(name), rule, message);
    if description.chars().count() > MAX_DESCRIPTION_CHARS || check_characters(description).is_err() {
        return Err(fault("description", format!("the description of {} is too long, or contains control characters", name.value)));
    }
    let fits = |given: bool, field: &str, types: &str| match given {
        true => Err(fault("type", format!("{}: {field} needs `type: {types}`", name.value))),
        false => Ok(()),
    };
    let is = |wanted: TypeName| *type_ == wanted;
    fits(pattern.is_some() && !is(TypeName::String), "pattern", "string")?;
    fits(max_length.is_some() && !is(TypeName::String), "maxLength", "string")?;
    fits(*multiline && !is(TypeName::String), "multiline", "string")?;
    fits(min.is_some() && !is(TypeName::Integer), "min", "integer")?;
    fits(max.is_some() && !is(TypeName::Integer), "max", "integer")?;
    fits(values.is_some() && !is(TypeName::Enum), "values", "enum")?;
    let dash = |may: bool| match may && begins && !leading_dash {
        true => Err(fault(
            "leadingDash",
            format!(
                "{} can begin with `-`, and a word begins with it: the program could take it for an option. Set `leadingDash: true` if that is meant",
                name.value
            ),
        )),
        false => Ok(()),
    };
    let type_ = match type_ {
        TypeName::String => {
            let max_chars = max_length.as_ref().map_or(DEFAULT_MAX_CHARS, |most| most.value);
            if !(1..=MAX_CHARS).contains(&max_chars) {
                return Err(fault("maxLength", format!("maxLength of {} must be from 1 to {MAX_CHARS}", name.value)));
            }
            let compiled = pattern.as_ref().map(|pattern| {
                Pattern::parse(&pattern.value)
                    .map_err(|why| Fault::new(line(pattern), "pattern", format!("pattern of {}: {why}", name.value)))
            });
            let written = pattern.as_ref().map(|pattern| pattern.value.clone());
            let leading_dash = *leading_dash || !begins;
            ArgumentType::Text { pattern: compiled.transpose()?, written, max_chars, leading_dash, multiline: *multiline }
        }
        TypeName::Integer => {
            let (min, max) = (min.as_ref().map_or(0, |min| min.value), max.as_ref().map_or(i64::MAX, |max| max.value));
            if min > max {
                return Err(fault("range", format!("{}: min {min} is greater than max {max}", name.value)));
            }
            dash(min < 0)?;
            ArgumentType::Integer { min, max }
        }
        TypeName::Boolean => ArgumentType::Boolean,
        TypeName::Enum => {
            let all: Vec<String> = values.iter().flatten().map(|value| value.value.clone()).collect();
            if all.is_empty() || all.len() > MAX_VALUES {
                return Err(fault("values", format!("{}: `type: enum` needs from 1 to {MAX_VALUES} values", name.value)));
            }
            if let Some(value) = values.iter().flatten().find(|value| check_characters(&value.value).is_err()) {
                return Err(Fault::new(line(value), "values", format!("a value of {} contains control characters", name.value)));
            }
            dash(all.iter().any(|value| value.starts_with('-')))?;
            ArgumentType::Enum(all)
        }
        TypeName::Artifact => ArgumentType::Artifact,
    };
    Ok(Argument { name: name.value.clone(), description: description.clone(), required: *required, type_ })
}

pub(crate) fn timeout(asked: Option<&Spanned<u32>>, allowed: &Allowed) -> Result<u32, Fault> {
    match asked {
        None => Ok(DEFAULT_SECONDS.min(allowed.max_seconds)),
        Some(seconds) if (1..=allowed.max_seconds).contains(&seconds.value) => Ok(seconds.value),
        Some(seconds) => Err(Fault::new(
            line(seconds),
            "timeoutSeconds",
            format!("timeoutSeconds must be from 1 to {} (maxExecutionSeconds)", allowed.max_seconds),
        )),
    }
}

pub(crate) fn limits(fields: &LimitFields) -> Result<Limits, Fault> {
    let LimitFields { stdout_bytes, stderr_bytes, concurrency, per_agent_per_minute } = fields;
    let within = |asked: &Option<Spanned<u64>>, field: &'static str, least: u64, most: u64, default: u64| match asked {
        None => Ok(default),
        Some(asked) if (least..=most).contains(&asked.value) => Ok(asked.value),
        Some(asked) => Err(Fault::new(line(asked), "limits", format!("limits.{field} must be from {least} to {most}"))),
    };
    let bytes = |asked, field, default: usize| {
        let (most, default) = (u64::try_from(Limits::MAX_OUTPUT_BYTES).unwrap_or(u64::MAX), u64::try_from(default).unwrap_or(0));
        within(asked, field, 0, most, default).map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
    };
    let count = |asked, field, most: u32, default: u32| {
        within(asked, field, 1, most.into(), default.into()).map(|count| u32::try_from(count).unwrap_or(u32::MAX))
    };
    let default = Limits::default();
    Ok(Limits {
        stdout_bytes: bytes(stdout_bytes, "stdoutBytes", default.stdout_bytes)?,
        stderr_bytes: bytes(stderr_bytes, "stderrBytes", default.stderr_bytes)?,
        concurrency: count(concurrency, "concurrency", Limits::MAX_CONCURRENCY, default.concurrency)?,
        per_agent_per_minute: count(
            per_agent_per_minute,
            "perAgentPerMinute",
            Limits::MAX_PER_AGENT_PER_MINUTE,
            default.per_agent_per_minute,
        )?,
    })
}

/// The variable with a credential: the name of the credential in upper case, with `_` for each other character.
pub fn credential_variable(name: &str) -> String {
    name.chars().map(|character| if character.is_ascii_alphanumeric() { character.to_ascii_uppercase() } else { '_' }).collect()
}

type Environment = (std::collections::BTreeMap<String, String>, Vec<String>);

fn environment(fields: &EnvironmentFields, allowed: &Allowed) -> Result<Environment, Fault> {
    let EnvironmentFields { set, credentials } = fields;
    if set.len() > MAX_VARIABLES {
        return Err(Fault::new(None, "env", format!("env.set may have {MAX_VARIABLES} variables")));
    }
    for (name, value) in set {
        let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            && !name.starts_with(|first: char| first.is_ascii_digit());
        if name.is_empty() || !plain {
            return Err(Fault::new(line(value), "env", format!("env.set: {name:?} is no name of a variable")));
        }
        if name.starts_with("LD_") || DANGEROUS_VARIABLES.contains(&name.as_str()) {
            return Err(Fault::new(line(value), "env", format!("env.set: {name} makes programs load code; it cannot be set")));
        }
        if check_characters(&value.value).is_err() {
            return Err(Fault::new(line(value), "env", format!("env.set: the value of {name} contains control characters")));
        }
    }
    for credential in credentials {
        let variable = credential_variable(&credential.value);
        if let Some(value) = set.get(&variable) {
            let message = format!("env.set: {variable} is the variable of the credential {}", credential.value);
            return Err(Fault::new(line(value), "env", message));
        }
        if !allowed.credentials.contains(&credential.value) {
            let known = allowed.credentials.join(", ");
            let message = format!("env.credentials: there is no credential {:?}. There are: {known}", credential.value);
            return Err(Fault::new(line(credential), "credentials", message));
        }
    }
    let set = set.iter().map(|(name, value)| (name.clone(), value.value.clone())).collect();
    Ok((set, credentials.iter().map(|credential| credential.value.clone()).collect()))
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
