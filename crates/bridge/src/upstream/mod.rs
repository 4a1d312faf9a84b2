//! A server of MCP that a Toolset fronts, the *upstream*: which of its tools agents may call, and with which arguments. Pure.
//!
//! What always holds: a tool that is not named is not called. A tool with rules takes only the arguments that its rules name. What the
//! upstream says about its tools is foreign text: its size is bounded, and a later change of it reaches no agent unnoticed.
//!
//! | file | for |
//! |---|---|
//! | this one | from `spec.upstream`, or a file with the same fields, to an [`Upstream`] |
//! | [`fields`] | the fields as people write them |
//! | [`url`] | the address |
//! | [`listed`] | what the upstream says about a tool |
//! | [`tool_states`] | the tools as they were when they were first seen |

pub mod fields;
pub mod listed;
pub mod tool_states;
pub mod url;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_saphyr::Spanned;
use sha2::{Digest as _, Sha256};

use crate::catalog::{MAX_PROGRAMS, revision_of};
use crate::definition::fields::{ArgumentFields, LimitFields, TypeName, read};
use crate::definition::load::{MAX_ARGUMENTS, argument_rules, check_pattern_bytes, limits, line, timeout};
use crate::definition::{Allowed, Argument, Definition, Fault};

use fields::{ToolFields, ToolLimitFields, UpstreamFields};
use url::UpstreamUrl;

/// The most bytes of the file.
pub const MAX_UPSTREAM_BYTES: usize = 256 * 1024;
/// The most values of the file.
const MAX_NODES: usize = 32 * 1024;
/// The least bytes of an answer that a tool may be limited to.
const MIN_ANSWER_BYTES: u64 = 1024;
/// The most characters of the name of a tool, which is also the name of a program in the status.
const MAX_TOOL_NAME_CHARS: usize = 63;
/// The most characters of the name of an argument.
const MAX_ARGUMENT_NAME_CHARS: usize = 64;
/// Digits of a digest.
pub const DIGEST_DIGITS: usize = 64;

/// A server of MCP, and what agents may do with it.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// Its address.
    pub url: UpstreamUrl,
    /// Name of the credential that requests carry.
    pub credential: Option<String>,
    /// Certificates that are trusted besides the public authorities, as PEM.
    pub ca_bundle: String,
    /// The tools that agents may call, by name.
    pub tools: BTreeMap<String, AllowedTool>,
    /// A hash of all of the above.
    pub revision: String,
}

/// A tool that agents may call.
#[derive(Clone, Debug)]
pub struct AllowedTool {
    /// Its limits and its arguments, as those of a program. It has no command.
    pub definition: Definition,
    /// The digest of what the upstream must say about it.
    pub digest: Option<String>,
}

impl Upstream {
    /// Loads the fields of `spec.upstream`, as YAML or JSON. `max_seconds`: the longest time limit of a call.
    pub fn load(bytes: &[u8], max_seconds: u32) -> Result<Self, Fault> {
        // Lines of a definition count from a line that is not here.
        Self::load_as_front_matter(bytes, max_seconds)
            .map_err(|fault| Fault { line: fault.line.map(|line| line.saturating_sub(1)), ..fault })
    }

    fn load_as_front_matter(bytes: &[u8], max_seconds: u32) -> Result<Self, Fault> {
        if bytes.len() > MAX_UPSTREAM_BYTES {
            return Err(Fault::new(None, "FileTooLong", format!("it has {} bytes, and may have {MAX_UPSTREAM_BYTES}", bytes.len())));
        }
        let text = std::str::from_utf8(bytes).map_err(|_| Fault::new(None, "NotUtf8", "it is not valid UTF-8"))?;
        let UpstreamFields { url, credentials_ref, ca_bundle, tools } = read_as_front_matter(text)?;
        let parsed = UpstreamUrl::parse(&url.value).map_err(|message| Fault::new(line(&url), "url", message))?;
        let credential = credentials_ref.map(|credential| credential.name.value);
        let allowed = Allowed { commands: None, credentials: credential.iter().cloned().collect(), max_seconds };
        if tools.is_empty() || tools.len() > MAX_PROGRAMS {
            return Err(Fault::new(line(&url), "tools", format!("tools must name 1 to {MAX_PROGRAMS} tools")));
        }
        let (mut all, mut pattern_bytes) = (BTreeMap::new(), 0);
        for fields in &tools {
            let tool = tool(fields, &allowed)?;
            pattern_bytes += tool.definition.arguments.iter().map(Argument::pattern_bytes).sum::<usize>();
            check_pattern_bytes(pattern_bytes, line(&fields.name))?;
            if all.insert(tool.definition.name.clone(), tool).is_some() {
                let message = format!("tools: {} is named twice", fields.name.value);
                return Err(Fault::new(line(&fields.name), "duplicateName", message));
            }
        }
        let mut hash = Sha256::new();
        hash.update(bytes);
        let revision = revision_of(hash);
        Ok(Self { url: parsed, credential, ca_bundle: ca_bundle.unwrap_or_default(), tools: all, revision })
    }
}

fn read_as_front_matter(text: &str) -> Result<UpstreamFields, Fault> {
    read(text, MAX_NODES).map_err(|fault| Fault { line: fault.line.map(|line| line.saturating_add(1)), ..fault })
}

fn tool(fields: &ToolFields, allowed: &Allowed) -> Result<AllowedTool, Fault> {
    let ToolFields { name, requires_approval, timeout_seconds, limits: limit_fields, arguments, digest } = fields;
    check_tool_name(name)?;
    let of_tool = |fault: Fault| Fault { message: format!("tools: {}: {}", name.value, fault.message), ..fault };
    if let Some(digest) = digest {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if digest.value.len() != DIGEST_DIGITS || !digest.value.bytes().all(is_digit) {
            let message = format!("tools: {}: digest must have {DIGEST_DIGITS} hexadecimal digits", name.value);
            return Err(Fault::new(line(digest), "digest", message));
        }
    }
    let definition = Definition {
        name: name.value.clone(),
        description: String::new(),
        help: String::new(),
        command: PathBuf::new(),
        words: Vec::new(),
        arguments: rules(arguments.as_deref().unwrap_or_default()).map_err(of_tool)?,
        timeout_seconds: timeout(timeout_seconds.as_ref(), allowed).map_err(of_tool)?,
        limits: tool_limits(limit_fields).map_err(of_tool)?,
        environment: BTreeMap::new(),
        credentials: allowed.credentials.clone(),
        requires_approval: *requires_approval,
        interpreter: false,
        takes_any_arguments: arguments.is_none(),
    };
    let digest = digest.as_ref().map(|digest| digest.value.clone());
    Ok(AllowedTool { definition, digest })
}

/// The names that MCP allows, as far as a status can hold them.
fn check_tool_name(name: &Spanned<String>) -> Result<(), Fault> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'/');
    let text = name.value.as_str();
    if (1..=MAX_TOOL_NAME_CHARS).contains(&text.len()) && text.bytes().all(plain) {
        return Ok(());
    }
    let message = format!("tools: the name {text:?} must have 1 to {MAX_TOOL_NAME_CHARS} letters, digits, `_`, `-`, `.` and `/`");
    Err(Fault::new(line(name), "name", message))
}

fn rules(all: &[ArgumentFields]) -> Result<Vec<Argument>, Fault> {
    let mut arguments: Vec<Argument> = Vec::new();
    for fields in all {
        let name = &fields.name.value;
        let fault = |rule, message: String| Err(Fault::new(line(&fields.name), rule, message));
        if !(1..=MAX_ARGUMENT_NAME_CHARS).contains(&name.len()) || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
            return fault(
                "name",
                format!("the argument {name:?} must have 1 to {MAX_ARGUMENT_NAME_CHARS} printable ASCII characters without spaces"),
            );
        }
        if fields.type_ == TypeName::Artifact {
            return fault("type", format!("{name}: an upstream takes no artifacts"));
        }
        if fields.leading_dash {
            return fault("leadingDash", format!("{name}: leadingDash is for programs: no word begins with the argument of a tool"));
        }
        if arguments.iter().any(|known| known.name == *name) {
            return fault("duplicateArgument", format!("the argument {name} is declared twice"));
        }
        if arguments.len() >= MAX_ARGUMENTS {
            return fault("tooManyArguments", format!("a tool may have rules for {MAX_ARGUMENTS} arguments"));
        }
        arguments.push(argument_rules(fields, false)?);
    }
    Ok(arguments)
}

fn tool_limits(fields: &ToolLimitFields) -> Result<crate::definition::Limits, Fault> {
    let ToolLimitFields { answer_bytes, concurrency, per_agent_per_minute } = fields;
    let named = |fault: Fault| Fault { message: fault.message.replace("stdoutBytes", "answerBytes"), ..fault };
    if let Some(bytes) = answer_bytes
        && bytes.value < MIN_ANSWER_BYTES
    {
        return Err(Fault::new(line(bytes), "limits", format!("limits.answerBytes must be at least {MIN_ANSWER_BYTES}")));
    }
    let fields = LimitFields {
        stdout_bytes: answer_bytes.clone(),
        stderr_bytes: None,
        concurrency: concurrency.clone(),
        per_agent_per_minute: per_agent_per_minute.clone(),
    };
    limits(&fields).map_err(named)
}

#[cfg(test)]
#[path = "upstream_tests.rs"]
mod tests;
