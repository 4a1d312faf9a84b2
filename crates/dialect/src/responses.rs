//! OpenAI Responses: reads its calls, and the usage in its answers.

use spillway_wire::meter::Dialect;

use crate::Fault;
use crate::json_spans::{self, Node, Path};
use crate::media::{MediaTally, max_image_tokens};
use crate::outcome::{ERROR_PATH, FIRST_DIALECT_NOTE, FLAT_ERROR_PATHS, INNER_ERROR_PATH, KIND_NOTE, KIND_PATH};
use crate::request::{BodyEdit, OutputLimit, Request, model_name, refuse_members};
use crate::scan::{FoundValues, ValuePath, object, output, value};
use crate::usage::{UsageConfidence, UsageSoFar};

const STORED_INPUT_REFUSAL: &str = "data that the provider stores is input that is not in the body. Send the whole input with each call";
const REFUSED_MEMBERS: [(&str, &str); 5] = [
    ("previous_response_id", STORED_INPUT_REFUSAL),
    ("conversation", STORED_INPUT_REFUSAL),
    ("prompt", STORED_INPUT_REFUSAL),
    ("background", "Spillway could not count the tokens of the answer. Use a stream, or wait for the answer"),
    ("context_management", "a summary would run the model once more, outside of the output limit"),
];
/// Items that refer to the results of a tool of the provider, if they have an id.
const PROVIDER_TOOL_ITEMS: [&str; 3] = ["web_search_call", "file_search_call", "code_interpreter_call"];
/// Members of items that count as text, whatever they contain: calls of tools, tools, and quotations.
const TEXT_MEMBERS: [&str; 9] = [
    "arguments",
    "input",
    "action",
    "actions",
    "annotations",
    "tools",
    "parameters",
    "pending_safety_checks",
    "acknowledged_safety_checks",
];
/// Where a tool runs, and how it is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ToolRunner {
    /// The body describes it, and the client runs it.
    Client,
    /// The provider describes it, and the client runs it.
    ClientKnownTool,
    /// The provider runs it. Programs offer it by default, so it is removed.
    Dropped,
    /// The provider runs it. The call is refused.
    Provider,
}

pub(crate) fn read(body: &Node<'_>, text: &str, found: &mut MediaTally) -> Result<Request, Fault> {
    let root = Path::Root;
    let model = model_name(body)?;
    refuse_members(body, &REFUSED_MEMBERS)?;
    let stream = json_spans::boolean(body.get("stream"), &root.key("stream"))?.unwrap_or_default();
    let output = json_spans::count(body.get("max_output_tokens"), &root.key("max_output_tokens"), 0)?;
    let keeps = json_spans::boolean(body.get("store"), &root.key("store"))?.unwrap_or(true);
    let mut edits = Vec::new();
    read_tools(body.get("tools"), &root.key("tools"), text, found, &mut edits)?;
    check_tool_choice(body)?;
    // An answer has a list of items there. In a call it would be more input.
    json_spans::text(body.get("instructions"), &root.key("instructions"))?;
    let at = root.key("input");
    let of = Input { text, model: &model, stores_answer: keeps };
    if let Some(input) = body.get("input").filter(|input| input.text().is_none()) {
        for (index, item) in json_spans::list(Some(input), &at)?.iter().enumerate() {
            json_spans::object(Some(item), &at.item(index))?;
            read_item(item, &at.item(index), &of, found, &mut edits)?;
        }
    }
    let limits = vec![OutputLimit::of(body, "max_output_tokens", output)];
    Ok(Request { model, stream, output, thinking: 0, choices: 1, limits, edits, strips_usage_chunk: false })
}

fn tool_runner(tool: &Node<'_>, at: &Path<'_>) -> Result<ToolRunner, Fault> {
    json_spans::object(Some(tool), at)?;
    let local =
        |environment: Option<&Node<'_>>| environment.is_none_or(|environment| environment.get("type").is_some_and(|is| is.is("local")));
    Ok(match json_spans::text(tool.get("type"), &at.key("type"))?.unwrap_or_default().as_ref() {
        "function" | "custom" => ToolRunner::Client,
        "namespace" => {
            let at = at.key("tools");
            for (index, inner) in json_spans::list(tool.get("tools"), &at)?.iter().enumerate() {
                if tool_runner(inner, &at.item(index))? != ToolRunner::Client {
                    return Err(tool_refusal(inner, &at.item(index)));
                }
            }
            ToolRunner::Client
        }
        "tool_search" if tool.get("execution").is_some_and(|by| by.is("client")) => ToolRunner::Client,
        "local_shell" | "apply_patch" | "computer" | "computer_use_preview" => ToolRunner::ClientKnownTool,
        "shell" if local(tool.get("environment")) => ToolRunner::ClientKnownTool,
        "web_search" | "web_search_preview" | "image_generation" => ToolRunner::Dropped,
        dated if dated.starts_with("web_search_20") || dated.starts_with("web_search_preview_20") => ToolRunner::Dropped,
        _ => ToolRunner::Provider,
    })
}

fn tool_refusal(tool: &Node<'_>, at: &Path<'_>) -> Fault {
    let kind = tool.get("type").and_then(Node::text).unwrap_or_default();
    let what = "and reads its results as input that Spillway cannot count. Remove it from the tools";
    at.key("type").fault(format_args!("the provider runs {kind:.64} {what}"))
}

/// Checks a list of tools. An edit removes the tools that programs offer by default.
fn read_tools(node: Option<&Node<'_>>, at: &Path<'_>, text: &str, found: &mut MediaTally, edits: &mut Vec<BodyEdit>) -> Result<(), Fault> {
    let tools = json_spans::list(node, at)?;
    let (Some(node), false) = (node, tools.is_empty()) else { return Ok(()) };
    found.tools();
    let mut kept = Vec::with_capacity(tools.len());
    for (index, tool) in tools.iter().enumerate() {
        let at = at.item(index);
        match tool_runner(tool, &at)? {
            ToolRunner::Client => {}
            ToolRunner::ClientKnownTool => found.add_provider_tool(),
            ToolRunner::Dropped => continue,
            ToolRunner::Provider => return Err(tool_refusal(tool, &at)),
        }
        kept.push(&text[tool.at()..tool.end()]);
    }
    if kept.len() < tools.len() {
        edits.push(BodyEdit { at: node.at(), end: node.end(), text: format!("[{}]", kept.join(",")) });
    }
    Ok(())
}

/// Refuses a choice of a tool that is removed.
fn check_tool_choice(body: &Node<'_>) -> Result<(), Fault> {
    let at = Path::Root.key("tool_choice");
    let Some(choice) = body.get("tool_choice").filter(|choice| choice.text().is_none()) else { return Ok(()) };
    json_spans::object(Some(choice), &at)?;
    let asked = |tool: &Node<'_>, at: &Path<'_>| match tool_runner(tool, at)? {
        ToolRunner::Client | ToolRunner::ClientKnownTool => Ok(()),
        ToolRunner::Dropped | ToolRunner::Provider => Err(tool_refusal(tool, at)),
    };
    if choice.get("type").is_some_and(|kind| kind.is("allowed_tools")) {
        let at = at.key("tools");
        for (index, tool) in json_spans::list(choice.get("tools"), &at)?.iter().enumerate() {
            asked(tool, &at.item(index))?;
        }
        return Ok(());
    }
    asked(choice, &at)
}

/// Context for reading an item.
struct Input<'t> {
    text: &'t str,
    model: &'t str,
    /// Whether the provider stores its answer.
    stores_answer: bool,
}

fn read_item(item: &Node<'_>, at: &Path<'_>, input: &Input<'_>, found: &mut MediaTally, edits: &mut Vec<BodyEdit>) -> Result<(), Fault> {
    let Input { text, model, stores_answer: keeps } = *input;
    let kind = json_spans::text(item.get("type"), &at.key("type"))?;
    match kind.as_deref() {
        Some("item_reference") => return Err(at.fault(STORED_INPUT_REFUSAL)),
        // An item without a type is a message, or a reference to an item that the provider stores.
        None if item.get("role").is_none() => return Err(at.fault(STORED_INPUT_REFUSAL)),
        Some("reasoning") => {
            let whole = ["encrypted_content", "content"].into_iter().any(|key| item.get(key).is_some_and(|node| !node.is_empty()));
            if keeps && item.get("id").is_some() && !whole {
                let do_so = "Send store: false and include: [\"reasoning.encrypted_content\"]";
                return Err(at.fault(format_args!("it refers to reasoning that the provider stores, which Spillway cannot count. {do_so}")));
            }
            if !whole {
                remove_id(item, text, edits);
            }
        }
        Some(kind) if PROVIDER_TOOL_ITEMS.contains(&kind) => remove_id(item, text, edits),
        // A generated image without its data.
        Some("image_generation_call") if item.get("result").is_none_or(Node::is_empty) => return Err(at.fault(STORED_INPUT_REFUSAL)),
        Some(_) | None => {}
    }
    // Codex offers its tools here to newer models, and a tool search adds tools here.
    if let Some("tool_search_output" | "additional_tools") = kind.as_deref() {
        read_tools(item.get("tools"), &at.key("tools"), text, found, edits)?;
    }
    read_part(item, at, model, found)
}

/// Removes the id of an item. The provider would read the data that it stored under this id as input.
fn remove_id(item: &Node<'_>, text: &str, edits: &mut Vec<BodyEdit>) {
    if item.member("id").is_none() {
        return;
    }
    let kept = item.members().iter().filter(|member| member.key != "id");
    let kept: Vec<_> =
        kept.map(|member| format!("{}:{}", serde_json::Value::from(&*member.key), &text[member.node.at()..member.node.end()])).collect();
    edits.push(BodyEdit { at: item.at(), end: item.end(), text: format!("{{{}}}", kept.join(",")) });
}

/// Reads a part by its members at any depth and not by its type, because a part of an unknown type may also have data.
fn read_part(part: &Node<'_>, at: &Path<'_>, model: &str, found: &mut MediaTally) -> Result<(), Fault> {
    let present = |member: &&json_spans::Member<'_>| !matches!(member.node.value, json_spans::Value::Null);
    for member in part.members().iter().filter(present).filter(|member| !TEXT_MEMBERS.contains(&member.key.as_ref())) {
        let (node, at) = (&member.node, at.key(&member.key));
        match member.key.as_ref() {
            "file_id" | "file_ids" | "file_url" | "video_url" | "audio_url" => {
                return Err(at.fault("send the data itself: Spillway cannot count data that the provider stores or fetches"));
            }
            "image_url" => {
                let url = json_spans::text(Some(node), &at)?.unwrap_or_default();
                let detail = part.get("detail").and_then(Node::text);
                found.add_image_url(&url, &at, max_image_tokens(Dialect::OpenAIResponses, model, detail.as_deref()))?;
            }
            "file_data" => {
                let url = json_spans::text(Some(node), &at)?.unwrap_or_default();
                let name = part.get("filename").and_then(Node::text).unwrap_or_default();
                found.add_file_url(&url, &name, &at)?;
            }
            "input_audio" => found.add_sound(node.get("data").map_or(0, Node::text_bytes)),
            _ => read_nested(node, &at, model, found)?,
        }
    }
    Ok(())
}

fn read_nested(node: &Node<'_>, at: &Path<'_>, model: &str, found: &mut MediaTally) -> Result<(), Fault> {
    if !node.members().is_empty() {
        return read_part(node, at, model, found);
    }
    node.items().iter().enumerate().try_for_each(|(index, item)| read_nested(item, &at.item(index), model, found))
}

const RESPONSE_NOTE: usize = FIRST_DIALECT_NOTE;
const USAGE_NOTE: usize = FIRST_DIALECT_NOTE + 1;
const INPUT_NOTE: usize = FIRST_DIALECT_NOTE + 2;
const OUTPUT_NOTE: usize = FIRST_DIALECT_NOTE + 3;
const TOTAL_NOTE: usize = FIRST_DIALECT_NOTE + 4;
const DETAILS_NOTE: usize = FIRST_DIALECT_NOTE + 5;
const CACHED_NOTE: usize = FIRST_DIALECT_NOTE + 6;
const ITEM_NOTE: usize = FIRST_DIALECT_NOTE + 7;
const NAME_NOTE: usize = FIRST_DIALECT_NOTE + 8;
const SEALED_NOTE: usize = FIRST_DIALECT_NOTE + 9;
const DELTA_NOTE: usize = FIRST_DIALECT_NOTE + 10;
const CACHE_WRITE_NOTE: usize = FIRST_DIALECT_NOTE + 11;

/// Paths of the values of an answer that are read.
pub(crate) const VALUE_PATHS: &[ValuePath] = &{
    const USAGE_PATH: ValuePath = object(
        "usage",
        USAGE_NOTE,
        &[
            value("input_tokens", INPUT_NOTE),
            value("output_tokens", OUTPUT_NOTE),
            value("total_tokens", TOTAL_NOTE),
            object("input_tokens_details", DETAILS_NOTE, &[value("cached_tokens", CACHED_NOTE)]),
        ],
    );
    let [code, status] = FLAT_ERROR_PATHS;
    [
        KIND_PATH,
        ERROR_PATH,
        code,
        status,
        object("response", RESPONSE_NOTE, &[USAGE_PATH, INNER_ERROR_PATH]),
        object("item", ITEM_NOTE, &[output("name", NAME_NOTE), output("encrypted_content", SEALED_NOTE)]),
        output("delta", DELTA_NOTE),
        output("output", CACHE_WRITE_NOTE),
        USAGE_PATH,
    ]
};

/// Reads an event of a stream, or a whole answer.
pub(crate) fn event(notes: &FoundValues, seen: &mut UsageSoFar) {
    match notes[KIND_NOTE].word() {
        "response.completed" | "response.incomplete" | "response.failed" => read_usage(notes, seen),
        "response.output_item.added" => seen.add_output_bytes(notes[NAME_NOTE].output_bytes),
        // Hidden reasoning comes as one encrypted text.
        "response.output_item.done" => seen.add_encrypted_bytes(notes[SEALED_NOTE].output_bytes),
        delta if delta.ends_with(".delta") => seen.add_output_bytes(notes[DELTA_NOTE].output_bytes),
        "" => {
            seen.add_output_bytes(notes[CACHE_WRITE_NOTE].output_bytes);
            read_usage(notes, seen);
        }
        _ => {}
    }
}

fn read_usage(notes: &FoundValues, seen: &mut UsageSoFar) {
    if notes[USAGE_NOTE].members == 0 {
        return;
    }
    let [input, output, total, cached] = [INPUT_NOTE, OUTPUT_NOTE, TOTAL_NOTE, CACHED_NOTE].map(|at| seen.number(&notes[at]));
    seen.add_counts_with_cached_input(input, cached, None, output, total);
    if input.is_some() && output.is_some() {
        seen.raise_confidence(UsageConfidence::Final);
    }
}
