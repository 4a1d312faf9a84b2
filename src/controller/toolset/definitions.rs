//! Judges the ConfigMaps with the definitions of a Toolset, and the definitions. Pure.
//!
//! A wrong definition must be found before the Deployment changes: the new bridge would refuse to start when the old one has ended. Only
//! the bridge finds out whether the programs exist in the image.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::ConfigMap;
use spillway_bridge::catalog::{DefinitionCheck, FileFault, MAX_PROGRAMS, is_definition};
use spillway_bridge::definition::Allowed;

use crate::api::conditions::reasons;
use crate::api::toolset::{Definitions, ToolsetSpec};

/// Faults that a message names. It counts the others.
const MAX_FAULTS: usize = 5;
/// Characters of a fault in a message.
const MAX_FAULT_CHARS: usize = 300;

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
        Self { immutable: map.immutable == Some(true), keys: keys.filter(|key| is_definition(key)).cloned().collect() }
    }
}

/// What the definitions of a Toolset may use. The arguments of its bridge say the same.
pub fn allowed(spec: &ToolsetSpec) -> Allowed {
    Allowed {
        commands: Some(spec.allowed_commands().to_vec()).filter(|allowed| !allowed.is_empty()),
        credentials: spec.credentials.iter().flatten().map(|credential| credential.name.clone()).collect(),
        max_seconds: u32::try_from(spec.max_execution_seconds()).unwrap_or(0),
    }
}

/// Judges the definitions of a Toolset, one ConfigMap after the other.
#[derive(Debug)]
pub struct DefinitionsJudge {
    allowed: Allowed,
    check: DefinitionCheck,
    files: usize,
    faults: Vec<FileFault>,
    is_late: bool,
}

impl DefinitionsJudge {
    /// One that has judged nothing.
    pub fn new(allowed: Allowed) -> Self {
        Self { allowed, check: DefinitionCheck::default(), files: 0, faults: Vec::new(), is_late: false }
    }

    /// Judges the definitions of a ConfigMap, until `is_late` says that the time is up.
    pub fn judge(&mut self, map: &ConfigMap, is_late: impl Fn() -> bool) {
        let text = map.data.iter().flatten().map(|(key, text)| (key, text.as_bytes()));
        let binary = map.binary_data.iter().flatten().map(|(key, bytes)| (key, bytes.0.as_slice()));
        for (file, bytes) in text.chain(binary).filter(|(key, _)| is_definition(key)) {
            self.files += 1;
            self.is_late = self.is_late || is_late();
            if self.files <= MAX_PROGRAMS && !self.is_late {
                self.faults.extend(self.check.judge(file, bytes, &self.allowed).err());
            }
        }
    }

    /// The judgement of all definitions.
    pub fn finish(self) -> Result<(), DefinitionsProblem> {
        let problem = |message| Err(DefinitionsProblem { reason: reasons::INVALID_DEFINITION, message });
        if self.files == 0 {
            return problem("no ConfigMap of spec.definitions has a definition: a key that ends with .md".to_owned());
        }
        if self.files > MAX_PROGRAMS {
            return problem(format!("the ConfigMaps have {} definitions. At most {MAX_PROGRAMS} are served", self.files));
        }
        let mut messages: Vec<String> =
            self.faults.iter().take(MAX_FAULTS).map(|fault| fault.to_string().chars().take(MAX_FAULT_CHARS).collect()).collect();
        if self.faults.len() > MAX_FAULTS {
            messages.push(format!("and {} more", self.faults.len() - MAX_FAULTS));
        }
        if self.is_late {
            messages.push("the other definitions could not be judged in time. Make their patterns simpler".to_owned());
        }
        if messages.is_empty() { Ok(()) } else { problem(messages.join("; ")) }
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

    fn judged(spec: Value, maps: &[Value], is_late: bool) -> Result<(), String> {
        let mut all = json!({"image": "i", "definitions": [], "allowedCommands": ["/bin/*"]});
        all.as_object_mut().expect("an object").extend(spec.as_object().expect("an object").clone());
        let mut judge = DefinitionsJudge::new(allowed(&serde_json::from_value(all).expect("a spec")));
        for map in maps {
            judge.judge(&serde_json::from_value(map.clone()).expect("a ConfigMap"), || is_late);
        }
        judge.finish().map_err(|problem| {
            assert_eq!(problem.reason, "InvalidDefinition");
            problem.message
        })
    }

    fn definition(name: &str, more: &str) -> String {
        format!("---\nname: {name}\ndescription: d\ncommand: /bin/echo\n{more}\n---\nHelp.\n")
    }

    #[test]
    fn definitions_are_judged_by_what_the_spec_allows() {
        let uses_all = definition("a", "timeoutSeconds: 400\nenv: {credentials: [deploy-key]}");
        let map = [json!({"data": {"a.md": uses_all, "readme": "x", ".b.md": "x"}})];
        let credentials = json!([{"name": "deploy-key", "secretRef": {"name": "s"}}]);
        assert_eq!(judged(json!({"credentials": credentials, "maxExecutionSeconds": 400}), &map, false), Ok(()));
        for (spec, wrong) in [
            (json!({"credentials": credentials}), "a.md: line 5: timeoutSeconds: "),
            (json!({"maxExecutionSeconds": 400}), "a.md: line 6: "),
            (
                json!({"credentials": credentials, "maxExecutionSeconds": 400, "allowedCommands": ["/usr/bin/git"]}),
                "a.md: line 4: allowedCommands: ",
            ),
        ] {
            let message = judged(spec, &map, false).expect_err(wrong);
            assert!(message.starts_with(wrong), "{message}");
        }
    }

    #[test]
    fn all_definitions_are_judged_together_and_the_message_is_bounded() {
        let map = |key: &str, text: &str| json!({"data": {key: text}});
        let twice = judged(json!({}), &[map("a.md", &definition("a", "")), map("b.md", &definition("a", ""))], false);
        assert!(twice.as_ref().is_err_and(|message| message.starts_with("b.md: duplicateName")), "{twice:?}");
        assert!(judged(json!({}), &[json!({"data": {"readme": ""}})], false).is_err_and(|message| message.starts_with("no ConfigMap")));
        let binary = json!({"binaryData": {"a.md": "/w=="}});
        assert!(judged(json!({}), &[binary], false).is_err_and(|message| message.starts_with("a.md: ")));
        let many: serde_json::Map<String, Value> = (0..9).map(|number| (format!("{number}.md"), json!("x"))).collect();
        let message = judged(json!({}), &[json!({"data": many})], false).expect_err("wrong");
        assert!(message.ends_with("; and 4 more") && message.len() < MAX_FAULTS * (MAX_FAULT_CHARS + 10), "{message}");
        let many: serde_json::Map<String, Value> =
            (0..=MAX_PROGRAMS).map(|number| (format!("{number}.md"), json!(definition(&format!("p{number}"), "")))).collect();
        assert!(judged(json!({}), &[json!({"data": many})], false).is_err_and(|message| message.contains("At most 128")));
        assert!(judged(json!({}), &[map("a.md", &definition("a", ""))], true).is_err_and(|message| message.contains("in time")));
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

    /// Each folder below config/samples/toolsets is one that a team may copy: what its kustomization lists is valid together.
    #[test]
    fn the_samples_are_right() {
        let samples = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("config/samples/toolsets");
        let read = |path: &std::path::Path| std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let listed = read(&samples.join("kustomization.yaml"));
        let folders =
            std::fs::read_dir(&samples).expect("the samples").map(|entry| entry.expect("an entry").path()).filter(|path| path.is_dir());
        let folders: Vec<_> = folders.collect();
        assert!(folders.len() > 4, "{folders:?}");
        for folder in folders {
            let name = folder.file_name().and_then(|name| name.to_str()).expect("a name");
            assert!(listed.contains(&format!("  - {name}\n")), "{name} is not listed");
            let toolset: crate::api::Toolset = serde_saphyr::from_str(&read(&folder.join("toolset.yaml"))).expect(name);
            let maps: Vec<&str> = toolset.spec.definitions.iter().flatten().map(|entry| entry.config_map_ref.name.as_str()).collect();
            assert_eq!((toolset.metadata.name.as_deref(), maps), (Some(name), vec![format!("{name}-programs").as_str()]));
            let kustomization = read(&folder.join("kustomization.yaml"));
            assert!(kustomization.contains(&format!("name: {name}-programs\n")) && kustomization.contains("immutable: true"), "{name}");
            let mut data = serde_json::Map::new();
            for file in std::fs::read_dir(&folder).expect("the folder").map(|entry| entry.expect("an entry").path()) {
                let key = file.file_name().and_then(|name| name.to_str()).expect("a name");
                if is_definition(key) {
                    assert!(kustomization.contains(&format!("- {key}\n")), "{name}/{key} is not listed");
                    data.insert(key.to_owned(), json!(read(&file)));
                }
            }
            let map = serde_json::from_value(json!({"immutable": true, "data": data})).expect("a ConfigMap");
            let mut judge = DefinitionsJudge::new(allowed(&toolset.spec));
            judge.judge(&map, || false);
            assert_eq!(judge.finish().map_err(|problem| problem.message), Ok(()), "{name}");
            super::super::egress::EgressTargets::parse(toolset.spec.egress.as_ref()).expect(name);
            for credential in toolset.spec.credentials.iter().flatten() {
                let secret = read(&folder.join("secret.yaml"));
                assert!(secret.contains(&format!("name: {}\n", credential.secret_ref.name)) && secret.contains("  token: "), "{name}");
            }
        }
    }
}
