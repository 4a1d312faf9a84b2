//! Gemini generateContent and streamGenerateContent: reads their calls, and the usage in their answers.
//!
//! Google's parser accepts each name in two spellings (`maxOutputTokens`, `max_output_tokens`), and one object instead
//! of a list. So does this one. It refuses both spellings of a name in one object.

use spillway_wire::meter::Dialect;

use crate::Fault;
use crate::json_spans::{self, Node, Path, Value};
use crate::media::{Data, MediaTally, max_image_tokens};
use crate::outcome::{ERROR_PATH, FIRST_DIALECT_NOTE, KIND_PATH};
use crate::request::{OutputLimit, Request, before_first_member};
use crate::scan::{FoundValues, Kind, ValuePath, object, output, value};
use crate::usage::{UsageConfidence, UsageSoFar};

/// Members that a tool may have. The provider runs all other tools.
const ALLOWED_TOOL_MEMBERS: [&str; 2] = ["functionDeclarations", "computerUse"];

/// Members of parts that are read here, and calls of tools, which count as text whatever they contain.
const KNOWN_PART_MEMBERS: [&str; 5] = ["fileData", "inlineData", "functionResponse", "functionCall", "toolCall"];

pub(crate) fn read(body: &Node<'_>, model: &str, found: &mut MediaTally) -> Result<Request, Fault> {
    let root = Path::Root;
    let mut request = read_request(body, model, &root, found)?;
    // countTokens also accepts a whole request.
    if let Some(inner) = member_in_either_spelling(body, "generateContentRequest", &root)? {
        let at = root.key("generateContentRequest");
        json_spans::object(Some(inner), &at)?;
        read_request(inner, model, &at, found)?;
    }
    request.model = model.to_owned();
    Ok(request)
}

fn read_request(body: &Node<'_>, model: &str, root: &Path<'_>, found: &mut MediaTally) -> Result<Request, Fault> {
    let at = root.key("model");
    if let Some(named) = json_spans::text(body.get("model"), &at)?
        && named.strip_prefix("models/").unwrap_or(&named) != model
    {
        return Err(at.fault("must be the model that the path names"));
    }
    if member_in_either_spelling(body, "cachedContent", root)?.is_some_and(|node| !node.is_empty()) {
        let at = root.key("cachedContent");
        return Err(at.fault("data that the provider stores is input that is not in the body. Send the whole input with each call"));
    }
    for key in ["contents", "systemInstruction"] {
        let at = root.key(key);
        for (index, content) in one_or_many(member_in_either_spelling(body, key, root)?).iter().enumerate() {
            let at = at.item(index);
            json_spans::object(Some(content), &at)?;
            parts(member_in_either_spelling(content, "parts", &at)?, &at.key("parts"), found)?;
        }
    }
    read_tools(member_in_either_spelling(body, "tools", root)?, &root.key("tools"), found)?;
    read_generation_config(body, root)
}

/// The member `key` in either of its spellings, unless it is null.
fn member_in_either_spelling<'n, 'a>(object: &'n Node<'a>, key: &str, at: &Path<'_>) -> Result<Option<&'n Node<'a>>, Fault> {
    Ok(member_with_spelling(object, key, at)?.map(|(_, node)| node).filter(|node| !matches!(node.value, Value::Null)))
}

/// The member `key`, with its spelling in the body.
fn member_with_spelling<'n, 'a>(object: &'n Node<'a>, key: &str, at: &Path<'_>) -> Result<Option<(String, &'n Node<'a>)>, Fault> {
    let other = to_snake_case(key);
    match (object.member(key), object.member(&other)) {
        (Some(_), Some(_)) if other != key => Err(at.key(key).fault(format_args!("the field is set twice, as {key} and as {other}"))),
        (Some(node), _) => Ok(Some((key.to_owned(), node))),
        (None, Some(node)) => Ok(Some((other, node))),
        (None, None) => Ok(None),
    }
}

fn to_snake_case(key: &str) -> String {
    key.chars().fold(String::new(), |mut out, letter| {
        if letter.is_ascii_uppercase() {
            out.push('_');
        }
        out.push(letter.to_ascii_lowercase());
        out
    })
}

/// The items of a list, or one object instead of a list.
fn one_or_many<'n, 'a>(node: Option<&'n Node<'a>>) -> &'n [Node<'a>] {
    match node {
        Some(Node { value: Value::List(items), .. }) => items,
        Some(one) => std::slice::from_ref(one),
        None => &[],
    }
}

fn parts(node: Option<&Node<'_>>, at: &Path<'_>, found: &mut MediaTally) -> Result<(), Fault> {
    for (index, part) in one_or_many(node).iter().enumerate() {
        let at = at.item(index);
        json_spans::object(Some(part), &at)?;
        read_part(part, &at, found)?;
    }
    Ok(())
}

/// Reads a part and everything in it, because an unknown member may also have data.
fn read_part(part: &Node<'_>, at: &Path<'_>, found: &mut MediaTally) -> Result<(), Fault> {
    if member_in_either_spelling(part, "fileData", at)?.is_some() {
        return Err(at
            .key("fileData")
            .fault("send the data itself, as inlineData: Spillway cannot count data that the provider stores or fetches"));
    }
    if let Some(inline) = member_in_either_spelling(part, "inlineData", at)? {
        let at = at.key("inlineData");
        json_spans::object(Some(inline), &at)?;
        let mime = json_spans::text(member_in_either_spelling(inline, "mimeType", &at)?, &at.key("mimeType"))?.unwrap_or_default();
        let data = inline.get("data");
        json_spans::text(data, &at.key("data"))?;
        found.add_base64(&mime, &Data::of_node(data), max_image_tokens(Dialect::Gemini, "", None));
    }
    if let Some(response) = member_in_either_spelling(part, "functionResponse", at)? {
        let at = at.key("functionResponse");
        parts(member_in_either_spelling(response, "parts", &at)?, &at.key("parts"), found)?;
    }
    let known = |key: &str| KNOWN_PART_MEMBERS.into_iter().any(|known| key == known || key == to_snake_case(known));
    part.members().iter().filter(|member| !known(&member.key)).try_for_each(|member| read_nested(&member.node, &at.key(&member.key), found))
}

fn read_nested(node: &Node<'_>, at: &Path<'_>, found: &mut MediaTally) -> Result<(), Fault> {
    if !node.members().is_empty() {
        return read_part(node, at, found);
    }
    node.items().iter().enumerate().try_for_each(|(index, item)| read_nested(item, &at.item(index), found))
}

fn read_tools(node: Option<&Node<'_>>, at: &Path<'_>, found: &mut MediaTally) -> Result<(), Fault> {
    let tools = one_or_many(node);
    if !tools.is_empty() {
        found.tools();
    }
    for (index, tool) in tools.iter().enumerate() {
        let at = at.item(index);
        json_spans::object(Some(tool), &at)?;
        for member in tool.members().iter().filter(|member| !matches!(member.node.value, Value::Null)) {
            match ALLOWED_TOOL_MEMBERS.into_iter().find(|known| member.key == *known || member.key == to_snake_case(known)) {
                Some("computerUse") => found.add_provider_tool(),
                Some(_) => {}
                None => {
                    let what = "the provider runs this tool and reads its results as input that Spillway cannot count";
                    return Err(at.key(&member.key).fault(format_args!("{what}. Remove it from the tools")));
                }
            }
        }
    }
    Ok(())
}

fn read_generation_config(body: &Node<'_>, root: &Path<'_>) -> Result<Request, Fault> {
    let key = "generationConfig";
    let at = root.key(key);
    let mut request = Request { choices: 1, ..Request::default() };
    let config = match member_with_spelling(body, key, root)? {
        Some((_, node)) if !matches!(node.value, Value::Null) => node,
        Some((_, null)) => {
            let limit = OutputLimit::Absent { at: null.at(), end: null.end(), before: "{\"maxOutputTokens\":".to_owned(), after: "}" };
            return Ok(Request { limits: vec![limit], ..request });
        }
        None => {
            let (at, after) = before_first_member(body);
            let before = format!("\"{key}\":{{\"maxOutputTokens\":");
            let after = if after.is_empty() { "}" } else { "}," };
            return Ok(Request { limits: vec![OutputLimit::Absent { at, end: at, before, after }], ..request });
        }
    };
    json_spans::object(Some(config), &at)?;
    let limit = member_with_spelling(config, "maxOutputTokens", &at)?;
    request.output = json_spans::count(member_in_either_spelling(config, "maxOutputTokens", &at)?, &at.key("maxOutputTokens"), 0)?;
    let spelling = limit.map_or("maxOutputTokens".to_owned(), |(spelling, _)| spelling);
    request.limits = vec![OutputLimit::of(config, &spelling, request.output)];
    request.choices =
        json_spans::choices(member_in_either_spelling(config, "candidateCount", &at)?, &at.key("candidateCount"))?.unwrap_or(1);
    if let Some(thinking) = member_in_either_spelling(config, "thinkingConfig", &at)? {
        let at = at.key("thinkingConfig");
        json_spans::object(Some(thinking), &at)?;
        // -1: the model decides, within the output limit.
        request.thinking = json_spans::count(member_in_either_spelling(thinking, "thinkingBudget", &at)?, &at.key("thinkingBudget"), -1)?
            .unwrap_or_default()
            .max(0);
    }
    for key in ["routingConfig", "modelConfig"] {
        if member_in_either_spelling(config, key, &at)?.is_some() {
            return Err(at.key(key).fault("another model than the allowed one could answer"));
        }
    }
    if member_in_either_spelling(config, "enableEnhancedCivicAnswers", &at)?.is_some_and(|node| !node.is_empty()) {
        return Err(at.key("enableEnhancedCivicAnswers").fault("the provider would read more input than the body contains"));
    }
    let modalities = member_in_either_spelling(config, "responseModalities", &at)?;
    let at = at.key("responseModalities");
    for (index, modality) in one_or_many(modalities).iter().enumerate() {
        if !json_spans::text(Some(modality), &at.item(index))?.is_some_and(|modality| modality.eq_ignore_ascii_case("text")) {
            return Err(at.item(index).fault("output other than text costs more than its tokens show and is not allowed"));
        }
    }
    Ok(request)
}

const CANDIDATES_NOTE: usize = FIRST_DIALECT_NOTE;
const CONTENT_NOTE: usize = FIRST_DIALECT_NOTE + 1;
const PARTS_NOTE: usize = FIRST_DIALECT_NOTE + 2;
const FINISH_NOTE: usize = FIRST_DIALECT_NOTE + 3;
const USAGE_NOTE: usize = FIRST_DIALECT_NOTE + 4;
const PROMPT_NOTE: usize = FIRST_DIALECT_NOTE + 5;
const TOOL_PROMPT_NOTE: usize = FIRST_DIALECT_NOTE + 6;
const WRITTEN_NOTE: usize = FIRST_DIALECT_NOTE + 7;
const THOUGHTS_NOTE: usize = FIRST_DIALECT_NOTE + 8;
const CACHED_NOTE: usize = FIRST_DIALECT_NOTE + 9;
const TOTAL_NOTE: usize = FIRST_DIALECT_NOTE + 10;

/// Paths of the values of an answer that are read.
pub(crate) const VALUE_PATHS: &[ValuePath] = &[
    KIND_PATH,
    ERROR_PATH,
    object(
        "candidates",
        CANDIDATES_NOTE,
        &[object("content", CONTENT_NOTE, &[output("parts", PARTS_NOTE)]), value("finishReason", FINISH_NOTE)],
    ),
    object(
        "usageMetadata",
        USAGE_NOTE,
        &[
            value("promptTokenCount", PROMPT_NOTE),
            value("toolUsePromptTokenCount", TOOL_PROMPT_NOTE),
            value("candidatesTokenCount", WRITTEN_NOTE),
            value("thoughtsTokenCount", THOUGHTS_NOTE),
            value("cachedContentTokenCount", CACHED_NOTE),
            value("totalTokenCount", TOTAL_NOTE),
        ],
    ),
];

/// Reads an event of a stream, an object of a list, or a whole answer.
pub(crate) fn event(notes: &FoundValues, choices: i64, seen: &mut UsageSoFar) {
    seen.add_output_bytes(notes[PARTS_NOTE].output_bytes);
    seen.finished_choices += notes[FINISH_NOTE].times;
    let [prompt, tools, candidates, thoughts, cached, total] =
        [PROMPT_NOTE, TOOL_PROMPT_NOTE, WRITTEN_NOTE, THOUGHTS_NOTE, CACHED_NOTE, TOTAL_NOTE].map(|at| seen.number(&notes[at]));
    if notes[USAGE_NOTE].kind != Kind::Object {
        return;
    }
    // Gemini leaves out zeros, and fields that the call did not ask for. Only the total shows that no part is missing.
    let output = candidates.unwrap_or_default() + thoughts.unwrap_or_default();
    seen.add_counts_with_cached_input(prompt.map(|prompt| prompt + tools.unwrap_or_default()), cached, None, Some(output), total);
    if prompt.is_some() && total.is_some() {
        seen.raise_confidence(if seen.finished_choices >= choices { UsageConfidence::Final } else { UsageConfidence::AtEnd });
    }
}
