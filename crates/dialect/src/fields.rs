//! Members of a body outside the conversation, of all dialects but Gemini: members that are refused in each of them,
//! and members that make a call cost more than its tokens show.
//!
//! Servers with the Messages, Chat or Responses API accept each other's members, and proxies add members of their own.
//! Therefore a member in the list is refused in all three.

use crate::Fault;
use crate::json_spans::{Node, Path};

const SEARCH_REFUSAL: &str = "the provider would search and read the results as input that Spillway cannot count";
const OTHER_TARGET_REFUSAL: &str = "another model, host or account than the allowed one could answer";
const STORED_INPUT_REFUSAL: &str = "data that the provider stores is input that is not in the body. Send the whole input with each call";
const LATE_ANSWER_REFUSAL: &str = "the answer would come later, and Spillway could not count its tokens";
const TEMPLATE_REFUSAL: &str = "a template can make more input than the body contains";
const MEDIA_REFUSAL: &str = "it changes the number of tokens of images, sound and videos";
const MERGED_REFUSAL: &str =
    "a server may read this as unchecked members of the call. Set members of the call at the top level of the body";

/// Members that are refused in Messages, Chat and Responses.
pub(crate) const COMMON_REFUSED_MEMBERS: [(&str, &str); 52] = [
    // Search.
    ("web_search_options", SEARCH_REFUSAL),
    ("web_search", SEARCH_REFUSAL),
    ("search_parameters", SEARCH_REFUSAL),
    ("search_settings", SEARCH_REFUSAL),
    ("search_options", SEARCH_REFUSAL),
    ("plugins", SEARCH_REFUSAL),
    ("enable_search", SEARCH_REFUSAL),
    ("enable_enhancement", SEARCH_REFUSAL),
    ("force_search_enhancement", SEARCH_REFUSAL),
    ("enable_deep_search", SEARCH_REFUSAL),
    ("enable_code_interpreter", SEARCH_REFUSAL),
    ("compound_custom", SEARCH_REFUSAL),
    ("data_sources", SEARCH_REFUSAL),
    ("enhancements", SEARCH_REFUSAL),
    ("vector_store_ids", SEARCH_REFUSAL),
    // Another model, host or account.
    ("models", OTHER_TARGET_REFUSAL),
    ("route", OTHER_TARGET_REFUSAL),
    ("fallbacks", OTHER_TARGET_REFUSAL),
    ("context_window_fallbacks", OTHER_TARGET_REFUSAL),
    ("content_policy_fallbacks", OTHER_TARGET_REFUSAL),
    ("model_list", OTHER_TARGET_REFUSAL),
    ("user_config", OTHER_TARGET_REFUSAL),
    ("lora", OTHER_TARGET_REFUSAL),
    ("lora_path", OTHER_TARGET_REFUSAL),
    ("api_base", OTHER_TARGET_REFUSAL),
    ("base_url", OTHER_TARGET_REFUSAL),
    ("api_key", OTHER_TARGET_REFUSAL),
    ("custom_llm_provider", OTHER_TARGET_REFUSAL),
    ("extra_headers", OTHER_TARGET_REFUSAL),
    ("headers", OTHER_TARGET_REFUSAL),
    ("extra_query", OTHER_TARGET_REFUSAL),
    ("bootstrap_host", OTHER_TARGET_REFUSAL),
    // Input outside the body.
    ("preset", STORED_INPUT_REFUSAL),
    ("prompt_id", STORED_INPUT_REFUSAL),
    ("prompt_variables", STORED_INPUT_REFUSAL),
    ("file_ids", STORED_INPUT_REFUSAL),
    ("cached_content", STORED_INPUT_REFUSAL),
    ("cachedContent", STORED_INPUT_REFUSAL),
    ("session_params", STORED_INPUT_REFUSAL),
    ("kv_transfer_params", STORED_INPUT_REFUSAL),
    ("image_data", STORED_INPUT_REFUSAL),
    ("video_data", STORED_INPUT_REFUSAL),
    ("audio_data", STORED_INPUT_REFUSAL),
    // Members that make the input larger than the body, or remove its limits.
    ("chat_template", TEMPLATE_REFUSAL),
    ("mm_processor_kwargs", MEDIA_REFUSAL),
    ("media_io_kwargs", MEDIA_REFUSAL),
    ("custom_logit_processor", "the server would run it"),
    ("logits_processors", "the server would run it"),
    ("additional_drop_params", "it could remove the output limit"),
    ("deferred", LATE_ANSWER_REFUSAL),
    ("provider_options", MERGED_REFUSAL),
    ("providerOptions", MERGED_REFUSAL),
];

/// Maximum bytes of a text argument of a template. A text of this length is a choice and not an input.
const MAX_TEMPLATE_CHOICE_BYTES: usize = 64;
/// Members that may be in `extra_body.google`, in both spellings.
const ALLOWED_GOOGLE_MEMBERS: [&str; 6] =
    ["thinking_config", "thinkingConfig", "thought_tag_marker", "thoughtTagMarker", "safety_settings", "safetySettings"];

/// Checks the members that are allowed with certain values only.
pub(crate) fn check_restricted_members(body: &Node<'_>) -> Result<(), Fault> {
    check_template_arguments(body)?;
    extra_body(body)
}

/// Checks the arguments of a template: they must not be a template, and must not be input that the template could
/// repeat.
fn check_template_arguments(body: &Node<'_>) -> Result<(), Fault> {
    let at = Path::Root.key("chat_template_kwargs");
    let Some(given) = body.get("chat_template_kwargs") else { return Ok(()) };
    crate::json_spans::object(Some(given), &at)?;
    for member in given.members() {
        let at = at.key(&member.key);
        let plain =
            member.node.items().is_empty() && member.node.members().is_empty() && member.node.text_bytes() <= MAX_TEMPLATE_CHOICE_BYTES;
        if !plain || (member.key.eq_ignore_ascii_case("chat_template") && !member.node.is_empty()) {
            return Err(at.fault(format_args!(
                "{TEMPLATE_REFUSAL}. Only booleans, numbers and texts of at most {MAX_TEMPLATE_CHOICE_BYTES} bytes are allowed"
            )));
        }
    }
    Ok(())
}

/// Checks `extra_body`. Gemini's servers read members of their own there. Other servers read all of it as members of
/// the call.
fn extra_body(body: &Node<'_>) -> Result<(), Fault> {
    let at = Path::Root.key("extra_body");
    let Some(extra) = body.get("extra_body") else { return Ok(()) };
    crate::json_spans::object(Some(extra), &at)?;
    for member in extra.members().iter().filter(|member| !member.node.is_empty()) {
        let at = at.key(&member.key);
        if member.key != "google" {
            return Err(at.fault(MERGED_REFUSAL));
        }
        crate::json_spans::object(Some(&member.node), &at)?;
        let unknown =
            |inner: &&crate::json_spans::Member<'_>| !ALLOWED_GOOGLE_MEMBERS.contains(&inner.key.as_ref()) && !inner.node.is_empty();
        if let Some(inner) = member.node.members().iter().find(unknown) {
            let known =
                "only thinking_config, thought_tag_marker and safety_settings are allowed: others add input that is not in the body";
            return Err(at.key(&inner.key).fault(known));
        }
    }
    Ok(())
}

/// Service tiers that cost the normal price of a model's tokens or less, and `auto`, which is the choice of the
/// project.
const ALLOWED_SERVICE_TIERS: [&str; 8] = ["", "auto", "default", "flex", "on_demand", "standard", "standard_only", "unspecified"];
/// Members that can make a call cost more than its tokens show, unless they have a value of the normal price.
pub const SURCHARGE_MEMBERS: [&str; 3] = ["service_tier", "speed", "store"];

/// A member of a body with a cost that its tokens do not show.
#[derive(Clone, Debug)]
pub(crate) struct Charge {
    /// One of [`SURCHARGE_MEMBERS`].
    pub field: &'static str,
    pub fault: Fault,
}

impl Charge {
    /// The charged members of a call. `keeps`: whether `store: true` asks for more than the default of the dialect.
    pub fn of(body: &Node<'_>, keeps: bool) -> Vec<Self> {
        let mut found = Vec::new();
        for (key, field) in [
            ("service_tier", SURCHARGE_MEMBERS[0]),
            ("serviceTier", SURCHARGE_MEMBERS[0]),
            ("speed", SURCHARGE_MEMBERS[1]),
            ("store", SURCHARGE_MEMBERS[2]),
        ] {
            let Some(node) = body.get(key) else { continue };
            let text = node.text().map(|text| text.to_ascii_lowercase());
            let word = text.as_deref();
            let free = match field {
                "service_tier" => {
                    word.is_some_and(|tier| ALLOWED_SERVICE_TIERS.contains(&tier.strip_prefix("service_tier_").unwrap_or(tier)))
                }
                "speed" => word.is_some_and(|speed| matches!(speed, "" | "standard")),
                _ => !keeps || node.is_empty(),
            };
            if !free {
                let what = match field {
                    "store" => "the provider stores the answer".to_owned(),
                    _ => format!("{:.40} may cost more than its tokens show", text.unwrap_or_else(|| "this value".to_owned())),
                };
                let fault = Path::Root.key(key).fault(format_args!(
                    "{what}, and Spillway does not count this cost. Remove the field, or ask the administrators of the cluster to allow it \
                     (gateway.allowedFields of the chart)"
                ));
                found.push(Self { field, fault });
            }
        }
        found
    }
}

#[cfg(test)]
#[path = "fields_tests.rs"]
mod tests;
