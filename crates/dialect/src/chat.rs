//! OpenAI Chat Completions, and servers with the same API: reads their calls, and the usage in their answers.

use spillway_wire::meter::Dialect;

use crate::Fault;
use crate::anthropic::read_source;
use crate::json_spans::{self, Node, Path};
use crate::media::{MediaTally, max_image_tokens};
use crate::outcome::{ERROR_PATH, FIRST_DIALECT_NOTE, FLAT_ERROR_PATHS, KIND_PATH, has_error};
use crate::request::{BodyEdit, OutputLimit, Request, before_first_member, model_name, refuse_members};
use crate::scan::{FoundValues, ValuePath, object, output, value};
use crate::usage::{UsageConfidence, UsageSoFar};

const REFUSED_MEMBERS: [(&str, &str); 3] = [
    ("audio", "spoken output costs more than its text and is not allowed"),
    ("prediction", "rejected predictions are charged in addition to the output limit"),
    ("n_predict", "some servers use it as the output limit instead of max_tokens"),
];
/// Members of messages that count as text, whatever they contain: calls of tools, and quotations.
const TEXT_MEMBERS: [&str; 6] = ["tool_calls", "function_call", "annotations", "tools", "parameters", "cache_control"];
/// Members of parts whose data the provider stores, fetches or unpacks.
const FETCHED_MEMBERS: [&str; 10] =
    ["file_id", "file_ids", "file_url", "file_uri", "video_url", "video", "audio_url", "document_url", "image_embeds", "audio_embeds"];
/// Members with an output limit. New models accept the second one. It is added if the body has none.
const OUTPUT_LIMIT_MEMBERS: [&str; 2] = ["max_tokens", "max_completion_tokens"];

pub(crate) fn read(body: &Node<'_>, found: &mut MediaTally) -> Result<Request, Fault> {
    let root = Path::Root;
    let model = model_name(body)?;
    refuse_members(body, &REFUSED_MEMBERS)?;
    let stream = json_spans::boolean(body.get("stream"), &root.key("stream"))?.unwrap_or_default();
    let mut choices = 1;
    for key in ["n", "best_of"] {
        choices = json_spans::choices(body.get(key), &root.key(key))?.unwrap_or(1).max(choices);
    }
    let (mut limits, mut output) = (Vec::new(), None);
    for key in OUTPUT_LIMIT_MEMBERS {
        let tokens = json_spans::count(body.get(key), &root.key(key), 0)?;
        output = [output, tokens].into_iter().flatten().min();
        if tokens.is_some() {
            limits.push(OutputLimit::of(body, key, tokens));
        }
    }
    if limits.is_empty() {
        let key = OUTPUT_LIMIT_MEMBERS.into_iter().find(|key| body.member(key).is_some()).unwrap_or(OUTPUT_LIMIT_MEMBERS[1]);
        limits.push(OutputLimit::of(body, key, None));
    }
    check_modalities(body)?;
    messages(body, &model, found)?;
    read_tools(body, found)?;
    let (edits, strip) = if stream { include_usage_edit(body)? } else { (Vec::new(), false) };
    Ok(Request { model, stream, output, thinking: 0, choices, limits, edits, strips_usage_chunk: strip })
}

fn check_modalities(body: &Node<'_>) -> Result<(), Fault> {
    let at = Path::Root.key("modalities");
    for (index, modality) in json_spans::list(body.get("modalities"), &at)?.iter().enumerate() {
        if !modality.is("text") {
            return Err(at.item(index).fault("output other than text costs more than its tokens show and is not allowed"));
        }
    }
    Ok(())
}

fn read_tools(body: &Node<'_>, found: &mut MediaTally) -> Result<(), Fault> {
    let at = Path::Root.key("tools");
    let tools = json_spans::list(body.get("tools"), &at)?;
    if !tools.is_empty() || body.get("functions").is_some() {
        found.tools();
    }
    for (index, tool) in tools.iter().enumerate() {
        let at = at.item(index);
        json_spans::object(Some(tool), &at)?;
        match json_spans::text(tool.get("type"), &at.key("type"))?.as_deref() {
            None | Some("function" | "custom") => {}
            Some(other) => {
                let what = "and reads its results as input that Spillway cannot count. Remove it from the tools";
                return Err(at.key("type").fault(format_args!("the provider runs {other:.64} {what}")));
            }
        }
    }
    Ok(())
}

fn messages(body: &Node<'_>, model: &str, found: &mut MediaTally) -> Result<(), Fault> {
    let at = Path::Root.key("messages");
    for (index, message) in json_spans::list(body.get("messages"), &at)?.iter().enumerate() {
        let at = at.item(index);
        json_spans::object(Some(message), &at)?;
        if message.get("audio").is_some() {
            return Err(at.key("audio").fault("sound that the provider stores is input that is not in the body"));
        }
        if let Some(content) = message.get("content").filter(|content| content.text().is_none()) {
            let at = at.key("content");
            for (index, part) in json_spans::list(Some(content), &at)?.iter().enumerate() {
                json_spans::object(Some(part), &at.item(index))?;
            }
        }
        read_part(message, &at, model, found)?;
    }
    Ok(())
}

/// Reads a part by its members at any depth and not by its type. Some servers need no type, and a part of an unknown
/// type may also have data.
fn read_part(part: &Node<'_>, at: &Path<'_>, model: &str, found: &mut MediaTally) -> Result<(), Fault> {
    let present = |member: &&json_spans::Member<'_>| !matches!(member.node.value, json_spans::Value::Null);
    for member in part.members().iter().filter(present).filter(|member| !TEXT_MEMBERS.contains(&member.key.as_ref())) {
        let (node, at) = (&member.node, at.key(&member.key));
        match member.key.as_ref() {
            "image_url" => image_url(node, &at, model, found)?,
            "input_audio" => {
                json_spans::object(Some(node), &at)?;
                json_spans::text(node.get("data"), &at.key("data"))?;
                found.add_sound(node.get("data").map_or(0, Node::text_bytes));
            }
            "file_data" => {
                let data = json_spans::text(Some(node), &at)?.unwrap_or_default();
                let name = part.get("filename").or_else(|| part.get("file_name")).and_then(Node::text).unwrap_or_default();
                found.add_file_url(&data, &name, &at)?;
            }
            // As in Anthropic's API: servers with both APIs accept it here too.
            "source" if !node.members().is_empty() => {
                read_source(Some(node), &at, part.get("type").is_some_and(|kind| kind.is("image")), found)?
            }
            key if FETCHED_MEMBERS.contains(&key) => {
                let what = "send the data itself: Spillway cannot count data that the provider fetches, stores or unpacks";
                return Err(at.fault(what));
            }
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

fn image_url(node: &Node<'_>, at: &Path<'_>, model: &str, found: &mut MediaTally) -> Result<(), Fault> {
    // If the URL is a text and not an object, there is no `detail`.
    let (url, detail) = if node.text().is_some() {
        (node.text(), None)
    } else {
        json_spans::object(Some(node), at)?;
        (json_spans::text(node.get("url"), &at.key("url"))?, json_spans::text(node.get("detail"), &at.key("detail"))?)
    };
    found.add_image_url(&url.unwrap_or_default(), &at.key("url"), max_image_tokens(Dialect::OpenAIChat, model, detail.as_deref()))
}

/// Adds `include_usage` to a stream. Returns the edit, and whether the client did not ask for usage itself.
fn include_usage_edit(body: &Node<'_>) -> Result<(Vec<BodyEdit>, bool), Fault> {
    let at = Path::Root.key("stream_options");
    let node = json_spans::object(body.get("stream_options"), &at)?;
    let asked = match node {
        Some(options) => json_spans::boolean(options.get("include_usage"), &at.key("include_usage"))?.unwrap_or_default(),
        None => false,
    };
    if asked {
        return Ok((Vec::new(), false));
    }
    let edit = match (node, body.member("stream_options")) {
        (Some(options), _) => match options.member("include_usage") {
            Some(no) => BodyEdit { at: no.at(), end: no.end(), text: "true".to_owned() },
            None => {
                let (at, after) = before_first_member(options);
                BodyEdit { at, end: at, text: format!("\"include_usage\":true{after}") }
            }
        },
        (None, Some(null)) => BodyEdit { at: null.at(), end: null.end(), text: "{\"include_usage\":true}".to_owned() },
        (None, None) => {
            let (at, after) = before_first_member(body);
            BodyEdit { at, end: at, text: format!("\"stream_options\":{{\"include_usage\":true}}{after}") }
        }
    };
    Ok((vec![edit], true))
}

const CHOICES_NOTE: usize = FIRST_DIALECT_NOTE;
const DELTA_NOTE: usize = FIRST_DIALECT_NOTE + 1;
const MESSAGE_NOTE: usize = FIRST_DIALECT_NOTE + 2;
const USAGE_NOTE: usize = FIRST_DIALECT_NOTE + 3;
const PROMPT_NOTE: usize = FIRST_DIALECT_NOTE + 4;
const COMPLETION_NOTE: usize = FIRST_DIALECT_NOTE + 5;
const TOTAL_NOTE: usize = FIRST_DIALECT_NOTE + 6;
const DETAILS_NOTE: usize = FIRST_DIALECT_NOTE + 7;
const CACHED_NOTE: usize = FIRST_DIALECT_NOTE + 8;
const CACHE_WRITE_NOTE: usize = FIRST_DIALECT_NOTE + 9;
const CACHE_HIT_NOTE: usize = FIRST_DIALECT_NOTE + 10;

/// Paths of the values of an answer that are read.
pub(crate) const VALUE_PATHS: &[ValuePath] = &{
    const USAGE_PATHS: &[ValuePath] = &[
        value("prompt_tokens", PROMPT_NOTE),
        value("completion_tokens", COMPLETION_NOTE),
        value("total_tokens", TOTAL_NOTE),
        object(
            "prompt_tokens_details",
            DETAILS_NOTE,
            &[value("cached_tokens", CACHED_NOTE), value("cache_write_tokens", CACHE_WRITE_NOTE)],
        ),
        value("prompt_cache_hit_tokens", CACHE_HIT_NOTE),
    ];
    let [code, status] = FLAT_ERROR_PATHS;
    [
        KIND_PATH,
        ERROR_PATH,
        code,
        status,
        object("choices", CHOICES_NOTE, &[output("delta", DELTA_NOTE), output("message", MESSAGE_NOTE)]),
        object("usage", USAGE_NOTE, USAGE_PATHS),
    ]
};

/// Reads a chunk of a stream, or a whole answer.
pub(crate) fn event(notes: &FoundValues, seen: &mut UsageSoFar) {
    seen.add_output_bytes(notes[DELTA_NOTE].output_bytes);
    seen.add_output_bytes(notes[MESSAGE_NOTE].output_bytes);
    if notes[USAGE_NOTE].members == 0 {
        return;
    }
    let [prompt, completion, total, cached, hit, written] =
        [PROMPT_NOTE, COMPLETION_NOTE, TOTAL_NOTE, CACHED_NOTE, CACHE_HIT_NOTE, CACHE_WRITE_NOTE].map(|at| seen.number(&notes[at]));
    seen.add_counts_with_cached_input(prompt, cached.or(hit), written, completion, total);
    // An answer with a message is whole. A chunk without choices is the extra chunk. After other chunks, more may
    // follow. A server that omits the total may have omitted more.
    let whole = notes[MESSAGE_NOTE].times == notes[CHOICES_NOTE].members && total.is_some();
    if prompt.is_some() && completion.is_some() {
        seen.raise_confidence(if whole { UsageConfidence::Final } else { UsageConfidence::AtEnd });
    }
}

/// Whether this is the extra chunk that `include_usage` causes: it has usage, no choices, and no error.
pub(crate) fn is_extra_usage_chunk(notes: &FoundValues) -> bool {
    notes[CHOICES_NOTE].is_empty() && notes[USAGE_NOTE].members > 0 && !has_error(notes)
}
