use super::*;
use crate::route::route;
use crate::{Call, parse};
use serde_json::{Value, json};

const MESSAGES: &str = "/v1/messages";
const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const GEMINI: &str = "/v1beta/models/m:generateContent";
const NAMED: [&str; 3] = [MESSAGES, CHAT, RESPONSES];

fn call(path: &str, more: &Value) -> Result<Call, Fault> {
    let mut body = if path == GEMINI { json!({"contents": []}) } else { json!({"model": "m"}) };
    for (key, value) in more.as_object().expect("members") {
        body[key] = value.clone();
    }
    parse(&route("POST", path, None).expect(path), None, None, body.to_string().into_bytes())
}

/// The members that are known to add hidden input, or to name another model or account. They are repeated here, so that
/// a lost row is noticed.
const KNOWN: [&str; 52] = [
    "web_search_options",
    "web_search",
    "search_parameters",
    "search_settings",
    "search_options",
    "plugins",
    "enable_search",
    "enable_enhancement",
    "force_search_enhancement",
    "enable_deep_search",
    "enable_code_interpreter",
    "compound_custom",
    "data_sources",
    "enhancements",
    "vector_store_ids",
    "models",
    "route",
    "fallbacks",
    "context_window_fallbacks",
    "content_policy_fallbacks",
    "model_list",
    "user_config",
    "lora",
    "lora_path",
    "api_base",
    "base_url",
    "api_key",
    "custom_llm_provider",
    "extra_headers",
    "headers",
    "extra_query",
    "bootstrap_host",
    "preset",
    "prompt_id",
    "prompt_variables",
    "file_ids",
    "cached_content",
    "cachedContent",
    "session_params",
    "kv_transfer_params",
    "image_data",
    "video_data",
    "audio_data",
    "chat_template",
    "mm_processor_kwargs",
    "media_io_kwargs",
    "custom_logit_processor",
    "logits_processors",
    "additional_drop_params",
    "deferred",
    "provider_options",
    "providerOptions",
];

#[test]
fn none_of_those_that_are_known_to_bring_hidden_input_is_forgotten() {
    for key in KNOWN {
        for path in NAMED {
            assert_eq!(call(path, &json!({key: {"x": 1}})).expect_err(key).field.as_deref(), Some(key), "{path}");
        }
    }
}

#[test]
fn a_member_that_brings_hidden_input_is_refused_in_each_dialect_and_in_any_letters() {
    for (index, (key, _)) in COMMON_REFUSED_MEMBERS.iter().enumerate() {
        assert!(!COMMON_REFUSED_MEMBERS[..index].iter().any(|(other, _)| other == key), "{key} stands twice");
        for path in NAMED {
            let fault = call(path, &json!({*key: {"x": 1}})).expect_err(key);
            assert_eq!(fault.field.as_deref(), Some(*key), "{path}");
            let shouted = key.to_uppercase();
            assert_eq!(call(path, &json!({&shouted: true})).expect_err(key).field, Some(shouted), "{path}");
            for nothing in [json!(null), json!(false), json!(""), json!([])] {
                assert!(call(path, &json!({*key: nothing})).is_ok(), "{path} {key}: it asks for nothing");
            }
        }
    }
}

#[test]
fn a_template_is_given_switches_and_no_template() {
    let long = "x".repeat(MAX_TEMPLATE_CHOICE_BYTES + 1);
    for (given, field) in [
        (json!({"chat_template": "{{ x }}"}), "chat_template_kwargs.chat_template"),
        (json!({"Chat_Template": "{{ x }}"}), "chat_template_kwargs.Chat_Template"),
        (json!({"documents": [{"text": "x"}]}), "chat_template_kwargs.documents"),
        (json!({"messages": {"x": 1}}), "chat_template_kwargs.messages"),
        (json!({"word": long}), "chat_template_kwargs.word"),
        (json!("{{ x }}"), "chat_template_kwargs"),
    ] {
        for path in NAMED {
            let fault = call(path, &json!({"chat_template_kwargs": given})).expect_err(field);
            assert_eq!(fault.field.as_deref(), Some(field), "{path}");
        }
    }
    let honest =
        json!({"enable_thinking": false, "thinking": true, "reasoning_effort": "high", "thinking_budget": 512, "tools": [], "x": null});
    for path in NAMED {
        assert!(call(path, &json!({"chat_template_kwargs": honest})).is_ok(), "{path}");
    }
}

#[test]
fn a_body_in_the_body_says_only_what_gemini_reads_there() {
    for (extra, field) in [
        (json!({"google": {"cached_content": "cachedContents/1"}}), "extra_body.google.cached_content"),
        (json!({"google": {"cachedContent": "cachedContents/1"}}), "extra_body.google.cachedContent"),
        (json!({"google": "x"}), "extra_body.google"),
        (json!({"max_tokens": 100_000}), "extra_body.max_tokens"),
        (json!({"extra_body": {"google": {}}}), "extra_body.extra_body"),
        (json!([1]), "extra_body"),
    ] {
        for path in NAMED {
            assert_eq!(call(path, &json!({"extra_body": extra})).expect_err(field).field.as_deref(), Some(field), "{path}");
        }
    }
    let honest = json!({"google": {"thinking_config": {"thinking_budget": 1}, "thought_tag_marker": "think", "cached_content": ""}});
    assert!(call(CHAT, &json!({"extra_body": honest})).is_ok());
    assert!(call(CHAT, &json!({"extra_body": {}})).is_ok());
}

#[test]
fn a_models_name_asks_for_nothing_else() {
    for path in NAMED {
        for model in ["openai/gpt-5:online", "openai/gpt-5:Online", "@preset/mine", "openai/gpt-5@preset/mine"] {
            assert_eq!(call(path, &json!({"model": model})).expect_err(model).field.as_deref(), Some("model"), "{path}");
        }
        for model in ["openai/gpt-5:free", "online", "a:online-2", "models/gemini-3", "ft:gpt:org::id"] {
            assert!(call(path, &json!({"model": model})).is_ok(), "{path} {model}");
        }
    }
}

#[test]
fn what_costs_more_than_its_tokens_say_is_for_administrators_to_allow() {
    let all = [MESSAGES, CHAT, RESPONSES, GEMINI];
    let rows: [(&[&str], Value, &str); 12] = [
        (&all, json!({"service_tier": "priority"}), "service_tier"),
        (&all, json!({"service_tier": "Fast"}), "service_tier"),
        (&all, json!({"service_tier": "ultrafast"}), "service_tier"),
        (&all, json!({"service_tier": "SERVICE_TIER_PRIORITY"}), "service_tier"),
        (&all, json!({"serviceTier": "priority"}), "service_tier"),
        (&all, json!({"service_tier": 7}), "service_tier"),
        (&all, json!({"service_tier": "auto", "serviceTier": "priority"}), "service_tier"),
        (&all, json!({"speed": "fast"}), "speed"),
        (&all, json!({"speed": {}}), "speed"),
        (&[MESSAGES, CHAT, GEMINI], json!({"store": true}), "store"),
        (&[CHAT], json!({"store": "true"}), "store"),
        (&[CHAT], json!({"store": 1}), "store"),
    ];
    for (paths, more, field) in rows {
        assert!(SURCHARGE_MEMBERS.contains(&field));
        for path in paths {
            let call = call(path, &more).unwrap_or_else(|fault| panic!("{fault}"));
            let fault = call.check_surcharges(|_| false).expect_err(field);
            let named = fault.field.as_deref().expect("a field");
            assert!(more.get(named).is_some() && fault.message.contains("gateway.allowedFields"), "{path}: {fault}");
            assert!(call.check_surcharges(|allowed| allowed == field).is_ok(), "{path} {more}");
            assert!(call.check_surcharges(|allowed| allowed != field).is_err(), "{path} {more}");
        }
    }
}

#[test]
fn what_clients_send_by_themselves_costs_what_it_says() {
    let all = [MESSAGES, CHAT, RESPONSES, GEMINI];
    let hour = json!({"type": "ephemeral", "ttl": "1h"});
    let rows: [(&[&str], Value); 10] = [
        (&all, json!({})),
        (&all, json!({"service_tier": null, "speed": null, "store": null})),
        (&all, json!({"service_tier": "auto", "store": false})),
        (&all, json!({"service_tier": "flex", "speed": "standard"})),
        (&all, json!({"service_tier": "default"})),
        (&[MESSAGES], json!({"service_tier": "standard_only", "cache_control": hour})),
        (&[MESSAGES], json!({"system": [{"type": "text", "text": "s", "cache_control": hour}]})),
        (&[GEMINI], json!({"serviceTier": "SERVICE_TIER_STANDARD"})),
        (&[GEMINI], json!({"serviceTier": "SERVICE_TIER_UNSPECIFIED"})),
        // The default of this protocol, and what Codex sends to some hosts.
        (&[RESPONSES], json!({"store": true})),
    ];
    for (paths, more) in rows {
        for path in paths {
            let call = call(path, &more).unwrap_or_else(|fault| panic!("{fault}"));
            assert!(call.check_surcharges(|_| false).is_ok(), "{path} {more}");
        }
    }
}
