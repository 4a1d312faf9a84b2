//! `spillway preflight`: tests the requirements in `spec.preflight` of a pool from inside its agent's container, clones the pool's
//! repository, and then runs the pool's own command. The operator puts it into the agent's settings; a person may also run it.
//!
//! It must not make a call that costs tokens or starts a program of a Toolset: it asks a model's API only for the list of models, and a
//! Toolset for the list of programs ([`toolset_check`](super::toolset_check)).

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use clap::Args;

use super::git::checkout::Checkout;
use super::output::print_to_stderr;
use super::shell::is_program;
use super::think::dialect::Dialect;
use super::think::model::{GetAnswer, get};
use super::toolset_check::ToolsetCheck;
use crate::agent::home::Home;
use crate::{FIRST_LOOPBACK_PORT, TOOLS_URL, WORKSPACE_DIR};

/// Time limit of one answer. All calls are made at once, and a preflight without a clone has 30 s.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// The variable with the URL of the pool's repository at the sidecar.
const GIT_URL_VARIABLE: &str = "SPILLWAY_GIT_URL";

/// Arguments of `preflight`: the requirements, and the pool's command.
#[derive(Debug, Args)]
pub struct PreflightArguments {
    /// Program that must be on the PATH (repeatable)
    #[arg(long, value_name = "NAME")]
    tool: Vec<String>,
    /// Entry of the pool's models, as NAME=DIALECT, that must answer with its list of models (repeatable)
    #[arg(long, value_name = "ENTRY", value_parser = entry)]
    model: Vec<Entry>,
    /// Entry, as NAME=DIALECT=URL, whose provider serves this URL and must answer. A refusal is an answer too (repeatable)
    #[arg(long, value_name = "ENTRY", value_parser = url)]
    url: Vec<(Entry, String)>,
    /// Toolset, as NAME=PROGRAM,PROGRAM, that must answer and serve these programs (repeatable)
    #[arg(long, value_name = "TOOLSET", value_parser = toolset)]
    toolset: Vec<ToolsetCheck>,
    /// Repository to clone into the workspace
    #[arg(long, value_name = "URL")]
    clone: Option<String>,
    /// Branch, tag or commit of the clone [default: the default branch]
    #[arg(long = "ref", value_name = "REF", requires = "clone")]
    revision: Option<String>,
    /// Commits of the clone [default: all]
    #[arg(long, value_name = "N", requires = "clone")]
    depth: Option<u32>,
    /// File, and the path in the workspace to which it is copied after the clone (repeatable)
    #[arg(long, num_args = 2, value_names = ["FROM", "TO"], requires = "clone")]
    file: Vec<PathBuf>,
    /// Workspace of the clone
    #[arg(long, value_name = "DIR", default_value = WORKSPACE_DIR)]
    workspace: PathBuf,
    /// Port of the sidecar for models
    #[arg(long, hide = true, default_value_t = FIRST_LOOPBACK_PORT)]
    models_port: u16,
    /// Start of the URLs of Toolsets at the sidecar
    #[arg(long, hide = true, default_value = TOOLS_URL)]
    tools_url: String,
    /// The pool's own command, which runs when all requirements are met
    #[arg(last = true)]
    command: Vec<OsString>,
}

/// An entry of the pool's models.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    name: String,
    dialect: Dialect,
}

fn entry(text: &str) -> Result<Entry, String> {
    let (name, dialect) = text.split_once('=').ok_or("the value must be NAME=DIALECT")?;
    let dialect = clap::ValueEnum::from_str(dialect, false)?;
    Ok(Entry { name: name.to_owned(), dialect })
}

fn url(text: &str) -> Result<(Entry, String), String> {
    let (of, url) = text.split_once("=https://").ok_or("the value must be NAME=DIALECT=https://...")?;
    Ok((entry(of)?, format!("https://{url}")))
}

fn toolset(text: &str) -> Result<ToolsetCheck, String> {
    let (name, programs) = text.split_once('=').ok_or("the value must be NAME=PROGRAM,PROGRAM")?;
    let programs = programs.split(',').filter(|program| !program.is_empty()).map(str::to_owned).collect();
    Ok(ToolsetCheck { name: name.to_owned(), programs })
}

/// Tests the requirements; returns the exit code, unless the pool's own command replaces this process.
pub fn run(arguments: PreflightArguments) -> u8 {
    let PreflightArguments { tool, model, url, toolset, clone, revision, depth, file, workspace, models_port, tools_url, command } =
        arguments;
    let mut troubles: Vec<String> = tool.iter().filter(|name| !on_path(name)).map(|name| missing(name)).collect();
    let ask = |entry: &Entry| list_models(entry, models_port);
    let asked: Vec<Option<String>> = std::thread::scope(|scope| {
        let models = model.iter().map(|entry| scope.spawn(move || model_error(entry, &ask(entry))));
        let models: Vec<_> = models.collect();
        let toolsets = toolset.iter().map(|check| scope.spawn(|| check.error(&tools_url, ANSWER_TIMEOUT)));
        let toolsets: Vec<_> = toolsets.collect();
        let urls: Vec<_> = url.iter().map(|(entry, url)| scope.spawn(move || host_error(url, &ask(entry)))).collect();
        let ended = |asking: std::thread::ScopedJoinHandle<'_, Option<String>>| {
            asking.join().unwrap_or_else(|_| Some("a test of the preflight broke off (this is a fault of Spillway)".to_owned()))
        };
        models.into_iter().chain(urls).chain(toolsets).map(ended).collect()
    });
    troubles.extend(asked.into_iter().flatten());
    if troubles.is_empty()
        && let Some(remote) = clone
    {
        let files = Home::new(None, &file);
        let sidecar_url = env::var(GIT_URL_VARIABLE).ok();
        troubles.extend(Checkout { remote, revision, depth, sidecar_url, into: workspace, files }.run().err());
    }
    if !troubles.is_empty() {
        print_to_stderr(&troubles.join("; "));
        return 1;
    }
    let Some((program, rest)) = command.split_first() else { return 0 };
    let error = Command::new(program).args(rest).exec();
    print_to_stderr(&format!("error: {}: {error}", program.display()));
    126
}

fn missing(tool: &str) -> String {
    format!("{tool} is not on the path (spec.preflight.tools)")
}

fn on_path(tool: &str) -> bool {
    env::split_paths(&env::var_os("PATH").unwrap_or_default()).any(|folder| is_program(&folder.join(tool)))
}

/// Asks for the entry's list of models. The gateway adds the entry's credential.
fn list_models(entry: &Entry, port: u16) -> Result<GetAnswer, String> {
    let path = match entry.dialect {
        Dialect::Anthropic | Dialect::OpenAIChat | Dialect::OpenAIResponses => "v1/models",
        Dialect::Gemini => "v1beta/models",
    };
    let headers: &[(&str, &str)] = match entry.dialect {
        Dialect::Anthropic => &[("anthropic-version", "2023-06-01")],
        Dialect::OpenAIChat | Dialect::OpenAIResponses | Dialect::Gemini => &[],
    };
    get(&format!("http://127.0.0.1:{port}/{}/{path}", entry.name), headers, ANSWER_TIMEOUT)
}

fn model_error(Entry { name, dialect: _ }: &Entry, answered: &Result<GetAnswer, String>) -> Option<String> {
    match answered {
        Ok(GetAnswer { status: 200..300, .. }) => None,
        Ok(GetAnswer { status, words }) => Some(format!("the model API {name} answers {status}: {words} (spec.preflight.models)")),
        Err(why) => Some(format!("the model API {name} does not answer: {why} (spec.preflight.models)")),
    }
}

/// A refusal of the host is an answer too. The gateway's own 400 and 5xx mean that it could not or may not make the call.
fn host_error(url: &str, answered: &Result<GetAnswer, String>) -> Option<String> {
    match answered {
        Ok(GetAnswer { status: 400 | 500.., words }) => Some(format!("{url} does not answer: {words} (spec.preflight.urls)")),
        Ok(_) => None,
        Err(why) => Some(format!("{url} does not answer: {why} (spec.preflight.urls)")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_named_with_its_protocol_and_a_url_may_have_anything_in_it() {
        assert_eq!(entry("gpt=OpenAIChat"), Ok(Entry { name: "gpt".into(), dialect: Dialect::OpenAIChat }));
        assert!(entry("gpt").is_err() && entry("gpt=Other").is_err());
        let (entry, url) = url("gpt=Gemini=https://a.example/x?y=https://z").expect("an entry");
        assert_eq!((entry.dialect, url.as_str()), (Dialect::Gemini, "https://a.example/x?y=https://z"));
    }

    #[test]
    fn a_toolset_is_named_with_its_programs_or_without() {
        let check =
            |programs: &[&str]| ToolsetCheck { name: "deploy".into(), programs: programs.iter().map(|&name| name.into()).collect() };
        assert_eq!(toolset("deploy=deploy,git_push"), Ok(check(&["deploy", "git_push"])));
        assert_eq!(toolset("deploy="), Ok(check(&[])));
        assert!(toolset("deploy").is_err());
    }

    #[test]
    fn a_refusal_is_an_answer_of_a_host_and_none_of_a_model() {
        let entry = Entry { name: "gpt".into(), dialect: Dialect::OpenAIChat };
        for (status, model, host) in [(200, true, true), (401, false, true), (404, false, true), (400, false, false), (503, false, false)] {
            let answered = Ok(GetAnswer { status, words: "said".into() });
            assert_eq!((model_error(&entry, &answered).is_none(), host_error("u", &answered).is_none()), (model, host), "{status}");
        }
        let silent = Err("refused".to_owned());
        assert!(model_error(&entry, &silent).is_some_and(|words| words.contains("gpt does not answer: refused")));
        assert!(host_error("https://u", &silent).is_some_and(|words| words.starts_with("https://u does not answer")));
    }
}
