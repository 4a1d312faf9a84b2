//! The target of a model call: the model entry of the pool that it names, and whether it is allowed. Pure.

use kube::ResourceExt;

use crate::api::AgentPool;
use crate::api::agent_pool;
use crate::policy::work::requires::matches;
use crate::wire::meter::{Dialect, ModelRoute, Target};
use crate::wire::{Code, Refusal};

fn dialect(dialect: agent_pool::Dialect) -> Dialect {
    match dialect {
        agent_pool::Dialect::Anthropic => Dialect::Anthropic,
        agent_pool::Dialect::OpenAIChat => Dialect::OpenAIChat,
        agent_pool::Dialect::OpenAIResponses => Dialect::OpenAIResponses,
        agent_pool::Dialect::Gemini => Dialect::Gemini,
    }
}

fn not_allowed(message: String) -> Refusal {
    Refusal::new(Code::ModelNotAllowed, message)
}

/// The target of a call, or the reason why it has none.
pub fn target(pool: &AgentPool, way: &ModelRoute) -> Result<Target, Refusal> {
    let entries = pool.spec.models.iter().flatten();
    let name = pool.name_any();
    let Some(entry) = entries.into_iter().find(|entry| entry.name == way.entry) else {
        let message = format!("AgentPool/{name} has no model API named {}: add one to spec.models", way.entry);
        return Err(not_allowed(message).field("way.entry"));
    };
    let speaks = dialect(entry.dialect);
    if way.dialect.is_some_and(|called| called != speaks) {
        let message = format!(
            "spec.models[{}] of AgentPool/{name} has the dialect {speaks:?}, and the path of the call is of another dialect",
            entry.name
        );
        return Err(not_allowed(message).field("way.dialect"));
    }
    let allowed = |model: &str| entry.allow.iter().flatten().any(|pattern| matches(pattern, model));
    if let Some(model) = way.model.as_deref().filter(|model| !allowed(model)) {
        let message = format!("the model {model} is not allowed: add it to spec.models[{}].allow of AgentPool/{name}", entry.name);
        return Err(not_allowed(message).field("way.model"));
    }
    Ok(Target {
        origin: entry.origin.clone(),
        dialect: speaks,
        credential: entry.credentials_ref.as_ref().map(|secret| secret.name.clone()),
        credential_type: entry.credential_type.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pool() -> AgentPool {
        serde_json::from_value(json!({
            "apiVersion": "spillway.dev/v1alpha1", "kind": "AgentPool", "metadata": {"name": "p"},
            "spec": {"type": "worker", "agent": {"image": "x", "command": ["y"]}, "models": [
                {"name": "claude", "dialect": "Anthropic", "origin": "https://a.example", "credentialsRef": {"name": "key"},
                 "allow": ["claude-*", "exact"]},
                {"name": "shut", "dialect": "OpenAIChat", "origin": "https://b.example"}
            ]}
        }))
        .expect("a pool")
    }

    fn way(entry: &str, dialect: Option<Dialect>, model: Option<&str>) -> ModelRoute {
        ModelRoute { entry: entry.into(), dialect, model: model.map(str::to_owned), item: None }
    }

    #[test]
    fn a_call_goes_where_its_entry_says_or_nowhere() {
        let anthropic = Some(Dialect::Anthropic);
        let cases = [
            (way("claude", anthropic, Some("claude-9")), Ok("https://a.example")),
            (way("claude", anthropic, Some("exact")), Ok("https://a.example")),
            (way("claude", None, None), Ok("https://a.example")),
            (way("claude", anthropic, Some("gpt-9")), Err("spec.models[claude].allow")),
            (way("claude", anthropic, Some("Claude-9")), Err("spec.models[claude].allow")),
            (way("claude", Some(Dialect::Gemini), Some("claude-9")), Err("spec.models[claude] of")),
            (way("other", anthropic, Some("claude-9")), Err("spec.models")),
            (way("shut", Some(Dialect::OpenAIChat), Some("m")), Err("spec.models[shut].allow")),
            (way("shut", Some(Dialect::OpenAIChat), None), Ok("https://b.example")),
        ];
        for (way, wanted) in cases {
            match (target(&pool(), &way), wanted) {
                (Ok(target), Ok(origin)) => assert_eq!(target.origin, origin, "{way:?}"),
                (Err(refusal), Err(words)) => {
                    assert_eq!(refusal.code, Code::ModelNotAllowed);
                    assert!(refusal.message.contains(words) && refusal.message.contains("AgentPool/p"), "{way:?}: {}", refusal.message);
                }
                (Ok(_) | Err(_), _) => panic!("{way:?} should be {wanted:?}"),
            }
        }
        assert_eq!(target(&pool(), &way("claude", None, None)).expect("it goes").credential.as_deref(), Some("key"));
    }

    #[test]
    fn a_star_stands_for_any_characters() {
        let cases = [
            ("*", "", true),
            ("*", "anything", true),
            ("a*", "a", true),
            ("a*", "b", false),
            ("*a", "ba", true),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("**", "x", true),
            ("gpt-5*mini", "gpt-5.1-mini", true),
            ("gpt-5*mini", "gpt-5.1-mini-high", false),
            ("exact", "exact-not", false),
            ("é*", "é2", true),
        ];
        for (pattern, name, wanted) in cases {
            assert_eq!(matches(pattern, name), wanted, "{pattern} {name}");
        }
    }
}
