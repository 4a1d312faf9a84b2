//! Judges the ConfigMaps with the definitions of a Toolset. Pure. The definitions themselves are judged by the bridge.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::ConfigMap;

use crate::api::conditions::reasons;
use crate::api::toolset::Definitions;

/// End of the keys that are definitions.
const DEFINITION_SUFFIX: &str = ".md";

/// What is kept of a ConfigMap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigMapFacts {
    /// Nobody can change it.
    pub immutable: bool,
    /// The keys of its definitions.
    pub keys: BTreeSet<String>,
}

impl ConfigMapFacts {
    /// The facts about a ConfigMap. Its content is not kept, because it may be large.
    pub fn of(map: &ConfigMap) -> Self {
        let keys = map.data.iter().flat_map(BTreeMap::keys).chain(map.binary_data.iter().flat_map(BTreeMap::keys));
        Self { immutable: map.immutable == Some(true), keys: keys.filter(|key| key.ends_with(DEFINITION_SUFFIX)).cloned().collect() }
    }
}

/// Why the definitions of a Toolset are not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefinitionsProblem {
    /// Reason of the condition.
    pub reason: &'static str,
    /// What is wrong, and what to do.
    pub message: String,
}

/// Judges the ConfigMaps of a Toolset: each entry of `spec.definitions` with its ConfigMap, if that exists.
pub fn judge(definitions: &[(Definitions, Option<ConfigMapFacts>)]) -> Result<(), DefinitionsProblem> {
    let problem = |reason, message| Err(DefinitionsProblem { reason, message });
    let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
    for (entry, facts) in definitions {
        let name = &entry.config_map_ref.name;
        let Some(facts) = facts else {
            return problem(
                reasons::CONFIG_MAP_NOT_FOUND,
                format!("ConfigMap/{name} does not exist. Create it, or remove it from spec.definitions"),
            );
        };
        if !facts.immutable && entry.mutable != Some(true) {
            return problem(
                reasons::CONFIG_MAP_MUTABLE,
                format!(
                    "ConfigMap/{name} can be changed, and a user who may change it may use the credentials. Set immutable: true in the \
                     ConfigMap, or mutable: true in spec.definitions"
                ),
            );
        }
        for key in &facts.keys {
            if let Some(other) = owners.insert(key, name) {
                return problem(
                    reasons::DUPLICATE_DEFINITION,
                    format!("ConfigMap/{other} and ConfigMap/{name} both have the key {key}. Rename one of the keys"),
                );
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn entry(name: &str, mutable: Option<bool>, map: Option<Value>) -> (Definitions, Option<ConfigMapFacts>) {
        let entry = serde_json::from_value(json!({"configMapRef": {"name": name}, "mutable": mutable})).expect("an entry");
        (entry, map.map(|map| ConfigMapFacts::of(&serde_json::from_value(map).expect("a ConfigMap"))))
    }

    fn reason(definitions: &[(Definitions, Option<ConfigMapFacts>)]) -> Result<(), (&'static str, String)> {
        judge(definitions).map_err(|problem| (problem.reason, problem.message))
    }

    #[test]
    fn immutable_maps_with_different_keys_are_right() {
        let one = json!({"immutable": true, "data": {"a.md": "", "readme": ""}});
        let two = json!({"data": {"b.md": "", "readme": ""}});
        assert_eq!(reason(&[entry("one", None, Some(one)), entry("two", Some(true), Some(two))]), Ok(()));
    }

    #[test]
    fn each_problem_names_the_map_and_what_to_do() {
        let fixed = |key: &str| Some(json!({"immutable": true, "data": {key: ""}}));
        let (missing, message) = reason(&[entry("one", None, fixed("a.md")), entry("two", None, None)]).expect_err("it is missing");
        assert!(missing == "ConfigMapNotFound" && message.starts_with("ConfigMap/two does not exist"), "{message}");
        for mutable in [None, Some(false)] {
            let (loose, message) = reason(&[entry("one", mutable, Some(json!({"data": {}})))]).expect_err("it can be changed");
            assert!(loose == "ConfigMapMutable" && message.contains("mutable: true"), "{message}");
        }
        let binary = Some(json!({"immutable": true, "binaryData": {"a.md": ""}}));
        let (double, message) = reason(&[entry("one", None, fixed("a.md")), entry("two", None, binary)]).expect_err("a key twice");
        assert!(double == "DuplicateDefinition" && message.contains("ConfigMap/one and ConfigMap/two both have the key a.md"), "{message}");
    }
}
