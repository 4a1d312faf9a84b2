//! Anthropic Messages: reads its calls, and the usage in its answers.

use spillway_wire::meter::Dialect;

use crate::Fault;
use crate::json_spans::{self, Node, Path};
use crate::media::{Data, MediaTally, max_image_tokens};
use crate::outcome::{ERROR_PATH, FIRST_DIALECT_NOTE, KIND_NOTE, KIND_PATH};
use crate::request::{OutputLimit, Request, model_name, refuse_members};
use crate::scan::{FoundValues, Kind, ValuePath, object, output, value};
use crate::usage::{UsageConfidence, UsageSoFar};

/// Tools that Anthropic describes and the client runs, with the first digits of their date. Without these digits
/// `bash_` would also match `bash_code_execution`, which runs at Anthropic.
const CLIENT_TOOL_PREFIXES: [&str; 4] = ["bash_20", "text_editor_20", "computer_20", "memory_20"];
/// Members of blocks that count as text, whatever they contain: arguments of tools, quotations, descriptions of tools.
const TEXT_MEMBERS: [&str; 5] = ["input", "citations", "tool", "cache_control", "caller"];
const REFUSED_MEMBERS: [(&str, &str); 2] = [
    ("mcp_servers", "the provider would call these servers and read their answers as input that Spillway cannot count"),
    ("container", "files and skills of a container are input that is not in the body"),
];

pub(crate) fn read(body: &Node<'_>, found: &mut MediaTally) -> Result<Request, Fault> {
    let root = Path::Root;
    let model = model_name(body)?;
    refuse_members(body, &REFUSED_MEMBERS)?;
    let stream = json_spans::boolean(body.get("stream"), &root.key("stream"))?.unwrap_or_default();
    let output = json_spans::count(body.get("max_tokens"), &root.key("max_tokens"), 0)?;
    let at = root.key("thinking");
    let thinking = match json_spans::object(body.get("thinking"), &at)? {
        Some(thinking) => json_spans::count(thinking.get("budget_tokens"), &at.key("budget_tokens"), 0)?.unwrap_or_default(),
        None => 0,
    };
    read_content(body.get("system"), &root.key("system"), found)?;
    let at = root.key("messages");
    for (index, message) in json_spans::list(body.get("messages"), &at)?.iter().enumerate() {
        let at = at.item(index);
        json_spans::object(Some(message), &at)?;
        read_content(message.get("content"), &at.key("content"), found)?;
    }
    let at = root.key("tools");
    let offered = json_spans::list(body.get("tools"), &at)?;
    if !offered.is_empty() {
        found.tools();
    }
    for (index, offered) in offered.iter().enumerate() {
        read_tool(offered, &at.item(index), found)?;
    }
    check_context_edits(body)?;
    let limits = vec![OutputLimit::of(body, "max_tokens", output)];
    Ok(Request { model, stream, output, thinking, choices: 1, limits, ..Request::default() })
}

fn read_tool(tool: &Node<'_>, at: &Path<'_>, found: &mut MediaTally) -> Result<(), Fault> {
    json_spans::object(Some(tool), at)?;
    match json_spans::text(tool.get("type"), &at.key("type"))?.as_deref() {
        None | Some("custom") => Ok(()),
        Some(known) if CLIENT_TOOL_PREFIXES.iter().any(|prefix| known.starts_with(prefix)) => {
            found.add_provider_tool();
            Ok(())
        }
        Some(other) => Err(at.key("type").fault(format_args!(
            "the provider runs {other:.64} and reads its results as input that Spillway cannot count. Remove it from the tools"
        ))),
    }
}

/// Refuses edits of the context other than `clear_*`. A clear edit only removes input. A summary is another run of the
/// model inside this call.
fn check_context_edits(body: &Node<'_>) -> Result<(), Fault> {
    let at = Path::Root.key("context_management");
    let Some(management) = json_spans::object(body.get("context_management"), &at)? else { return Ok(()) };
    let at = at.key("edits");
    for (index, edit) in json_spans::list(management.get("edits"), &at)?.iter().enumerate() {
        let at = at.item(index);
        let kind = json_spans::text(edit.get("type"), &at.key("type"))?.unwrap_or_default();
        if !kind.starts_with("clear_") {
            let what = "may run the model once more, outside of max_tokens. Only edits whose type begins with clear_ are allowed";
            return Err(at.key("type").fault(format_args!("{kind:.64} {what}")));
        }
    }
    Ok(())
}

/// Reads content: a text, or a list of blocks.
fn read_content(node: Option<&Node<'_>>, at: &Path<'_>, found: &mut MediaTally) -> Result<(), Fault> {
    if node.is_some_and(|node| node.text().is_some()) {
        return Ok(());
    }
    for (index, node) in json_spans::list(node, at)?.iter().enumerate() {
        let at = at.item(index);
        json_spans::object(Some(node), &at)?;
        read_block(node, &at, found)?;
    }
    Ok(())
}

/// Reads a block and everything in it, because a block of an unknown type may also have a source.
fn read_block(node: &Node<'_>, at: &Path<'_>, found: &mut MediaTally) -> Result<(), Fault> {
    let kind = json_spans::text(node.get("type"), &at.key("type"))?.unwrap_or_default();
    match kind.as_ref() {
        "container_upload" => return Err(at.fault("a file that the provider stores is input that is not in the body")),
        "image" | "document" if node.get("source").is_none() => return Err(at.key("source").fault("the field is required")),
        "tool_addition" => {
            if let Some(added) = node.get("tool") {
                read_tool(added, &at.key("tool"), found)?;
            }
        }
        // Text, thinking, calls of tools, and future types count as text.
        _ => {}
    }
    for member in node.members().iter().filter(|member| !TEXT_MEMBERS.contains(&member.key.as_ref())) {
        let at = at.key(&member.key);
        match member.key.as_ref() {
            // The source of a search result is a text.
            "source" if kind != "image" && kind != "document" && member.node.text().is_some() => {}
            "source" => read_source(Some(&member.node), &at, kind == "image", found)?,
            "file_id" if !member.node.is_empty() => {
                return Err(at.fault("send the data itself: Spillway cannot count a file that the provider stores"));
            }
            "content" if member.node.members().is_empty() => read_content(node.get("content"), &at, found)?,
            _ => read_nested(&member.node, &at, found)?,
        }
    }
    Ok(())
}

fn read_nested(node: &Node<'_>, at: &Path<'_>, found: &mut MediaTally) -> Result<(), Fault> {
    if !node.members().is_empty() {
        return read_block(node, at, found);
    }
    node.items().iter().enumerate().try_for_each(|(index, item)| read_nested(item, &at.item(index), found))
}

/// Reads a source. `is_image`: the source is of an image. Any other source may be read as a document.
pub(crate) fn read_source(node: Option<&Node<'_>>, at: &Path<'_>, is_image: bool, found: &mut MediaTally) -> Result<(), Fault> {
    let source = json_spans::object(node, at)?.ok_or_else(|| at.fault("the field is required"))?;
    match json_spans::text(source.get("type"), &at.key("type"))?.unwrap_or_default().as_ref() {
        "base64" => {
            let mime = json_spans::text(source.get("media_type"), &at.key("media_type"))?.unwrap_or_default();
            let at = at.key("data");
            let data = source.get("data").ok_or_else(|| at.fault("the field is required"))?;
            json_spans::text(Some(data), &at)?;
            // Base64 of a document is never read as text, and base64 of an image only as an image.
            let mime = if is_image && mime.to_ascii_lowercase().starts_with("image/") { mime.as_ref() } else { "application/octet-stream" };
            found.add_base64(mime, &Data::of_node(Some(data)), max_image_tokens(Dialect::Anthropic, "", None));
            Ok(())
        }
        "text" => Ok(()),
        "content" => read_content(source.get("content"), &at.key("content"), found),
        "url" => {
            Err(at.key("type").fault("send the data itself, in base64: Spillway cannot count data that the provider fetches from a URL"))
        }
        "file" => Err(at.key("type").fault("send the data itself: Spillway cannot count a file that the provider stores")),
        other => Err(at.key("type").fault(format_args!("{other:.64} is an unknown type, which Spillway cannot count"))),
    }
}

const MESSAGE_NOTE: usize = FIRST_DIALECT_NOTE;
const USAGE_NOTE: usize = FIRST_DIALECT_NOTE + 1;
const INPUT_NOTE: usize = FIRST_DIALECT_NOTE + 2;
const CACHE_READ_NOTE: usize = FIRST_DIALECT_NOTE + 3;
const CACHE_WRITE_NOTE: usize = FIRST_DIALECT_NOTE + 4;
const OUTPUT_NOTE: usize = FIRST_DIALECT_NOTE + 5;
const DELTA_NOTE: usize = FIRST_DIALECT_NOTE + 6;
const STOP_NOTE: usize = FIRST_DIALECT_NOTE + 7;
const BLOCK_NOTE: usize = FIRST_DIALECT_NOTE + 8;
const CONTENT_NOTE: usize = FIRST_DIALECT_NOTE + 9;

/// Paths of the values of an answer that are read.
pub(crate) const VALUE_PATHS: &[ValuePath] = &{
    const USAGE_PATHS: &[ValuePath] = &[
        value("input_tokens", INPUT_NOTE),
        value("cache_read_input_tokens", CACHE_READ_NOTE),
        value("cache_creation_input_tokens", CACHE_WRITE_NOTE),
        value("output_tokens", OUTPUT_NOTE),
    ];
    [
        KIND_PATH,
        ERROR_PATH,
        object("message", MESSAGE_NOTE, &[object("usage", USAGE_NOTE, USAGE_PATHS)]),
        object("usage", USAGE_NOTE, USAGE_PATHS),
        ValuePath { within: &[value("stop_reason", STOP_NOTE)], ..output("delta", DELTA_NOTE) },
        output("content_block", BLOCK_NOTE),
        output("content", CONTENT_NOTE),
    ]
};

/// Reads an event of a stream, or a whole answer.
pub(crate) fn event(notes: &FoundValues, seen: &mut UsageSoFar) {
    match notes[KIND_NOTE].word() {
        "message_start" => {
            read_usage(notes, seen);
        }
        "message_delta" if read_usage(notes, seen) => {
            seen.raise_confidence(if notes[STOP_NOTE].kind == Kind::None { UsageConfidence::AtEnd } else { UsageConfidence::Final });
        }
        "content_block_start" => seen.add_output_bytes(notes[BLOCK_NOTE].output_bytes),
        "content_block_delta" => seen.add_output_bytes(notes[DELTA_NOTE].output_bytes),
        "message" => {
            seen.add_output_bytes(notes[CONTENT_NOTE].output_bytes);
            if read_usage(notes, seen) {
                seen.raise_confidence(UsageConfidence::Final);
            }
        }
        _ => {}
    }
}

/// Reads the usage, and returns whether it contains output. The counts are cumulative, so they are not added up.
fn read_usage(notes: &FoundValues, seen: &mut UsageSoFar) -> bool {
    let [input, read, written, output] = [INPUT_NOTE, CACHE_READ_NOTE, CACHE_WRITE_NOTE, OUTPUT_NOTE].map(|at| seen.number(&notes[at]));
    seen.add_counts(input, read, written, output);
    output.is_some()
}
