//! Fields of the API that this version does not support. None is accepted and ignored silently. An object that uses one reports
//! `Unsupported` with the name of the field, the API server warns its writer, and the reference marks the field.
//!
//! This is the only list. The conditions, the admission policy and the pages are generated from it. A test compares it with the schemas and
//! with the code that reads each other field. Remove the entry of a field when you implement it.

use serde_json::Value;

/// Values of a field that are not supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// Any value: the field must not be set.
    Any,
    /// A list that is not empty.
    NotEmpty,
    /// `true`.
    True,
    /// The listed values.
    These(&'static [&'static str]),
}

/// A field that this version does not support.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Kind of its object.
    pub kind: &'static str,
    /// Path of the field, as the reference writes it: `spec.supervision.rules[].signal`.
    pub path: &'static str,
    /// Values that are not supported.
    pub values: Values,
    /// Advice about an alternative.
    pub advice: &'static str,
}

const fn field(kind: &'static str, path: &'static str, values: Values, instead: &'static str) -> Field {
    Field { kind, path, values, advice: instead }
}

const NO_ITEM_MODE_ADVICE: &str = "leave it unset. The pool decides whether its sandbox observes (spec.sandbox.isolation.mode)";
const NO_ITEM_PROFILE_ADVICE: &str = "use AgentStrict. The pool decides about the profile of the node (spec.sandbox.isolation.seccomp)";
const NO_ITEM_POD_ADVICE: &str = "leave it unset. The pod exists before the item: the pool decides (spec.sandbox)";
const NO_ITEM_CHANGESET_ADVICE: &str = "leave it unset. The pool sets the changeset (spec.sandbox.changeset)";

/// All unsupported fields.
pub const UNSUPPORTED_FIELDS: [Field; 6] = [
    field("WorkItem", "spec.bulkhead.changeset", Values::Any, NO_ITEM_CHANGESET_ADVICE),
    field("WorkItem", "spec.bulkhead.sandbox.changeset", Values::Any, NO_ITEM_CHANGESET_ADVICE),
    field("WorkItem", "spec.bulkhead.sandbox.isolation.mode", Values::These(&["Observe"]), NO_ITEM_MODE_ADVICE),
    field("WorkItem", "spec.bulkhead.sandbox.isolation.seccomp", Values::These(&["Localhost"]), NO_ITEM_PROFILE_ADVICE),
    field("WorkItem", "spec.bulkhead.sandbox.isolation.userNamespace", Values::These(&["Required"]), NO_ITEM_POD_ADVICE),
    field("WorkItem", "spec.bulkhead.sandbox.software", Values::Any, NO_ITEM_POD_ADVICE),
];

impl Field {
    /// Message for the writer of an object that uses the field.
    pub fn message(&self) -> String {
        let Self { kind: _, path, values, advice: instead } = self;
        let which = match values {
            Values::Any | Values::NotEmpty => String::new(),
            Values::True => ": true".to_owned(),
            Values::These(these) => format!(": {}", these.join(" or ")),
        };
        format!("{path}{which} is not supported by this version: {instead}")
    }

    /// Whether an object with this spec uses the field with an unsupported value.
    pub fn is_used_by(&self, spec: &Value) -> bool {
        let below = self.path.strip_prefix("spec").unwrap_or(self.path);
        uses_path(spec, below.trim_start_matches('.'), self.values)
    }

    /// A CEL expression that is true for an object, named `root`, that does not use the field.
    pub fn expression(&self, root: &str) -> String {
        let asked = match self.path.split_once("[].") {
            None => usage_expression(root, self.path, self.values),
            Some((list, member)) => {
                let one = usage_expression("one", member, self.values);
                format!("{} && {root}.{list}.exists(one, {one})", path_exists_expression(root, list))
            }
        };
        format!("!({asked})")
    }
}

/// A CEL expression that each part of a path exists.
fn path_exists_expression(root: &str, path: &str) -> String {
    let ends = path.match_indices('.').map(|(end, _)| end).chain([path.len()]);
    ends.map(|end| format!("has({root}.{})", &path[..end])).collect::<Vec<_>>().join(" && ")
}

fn usage_expression(root: &str, path: &str, values: Values) -> String {
    let has = path_exists_expression(root, path);
    match values {
        Values::Any => has,
        Values::NotEmpty => format!("{has} && {root}.{path}.size() > 0"),
        Values::True => format!("{has} && {root}.{path}"),
        Values::These(these) => {
            let these = these.iter().map(|value| format!("'{value}'")).collect::<Vec<_>>().join(", ");
            format!("{has} && {root}.{path} in [{these}]")
        }
    }
}

fn uses_path(value: &Value, path: &str, values: Values) -> bool {
    if path.is_empty() {
        return match values {
            Values::Any => !value.is_null(),
            Values::NotEmpty => value.as_array().is_some_and(|all| !all.is_empty()),
            Values::True => value.as_bool() == Some(true),
            Values::These(these) => value.as_str().is_some_and(|value| these.contains(&value)),
        };
    }
    let (first, rest) = path.split_once('.').unwrap_or((path, ""));
    match first.strip_suffix("[]") {
        Some(list) => value.get(list).and_then(Value::as_array).is_some_and(|all| all.iter().any(|one| uses_path(one, rest, values))),
        None => value.get(first).is_some_and(|value| uses_path(value, rest, values)),
    }
}

/// The unsupported fields that the spec of an object of this kind uses.
pub fn used_fields(kind: &str, spec: &Value) -> Vec<Field> {
    UNSUPPORTED_FIELDS.iter().filter(|field| field.kind == kind && field.is_used_by(spec)).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn paths(kind: &str, spec: Value) -> Vec<&'static str> {
        used_fields(kind, &spec).iter().map(|field| field.path).collect()
    }

    #[test]
    fn what_is_asked_for_is_found_and_nothing_else() {
        assert_eq!(paths("AgentPool", json!({"type": "worker", "agent": {"image": "x"}})), [] as [&str; 0]);
        let harmless = json!({"preflight": {"models": true, "urls": ["https://x"], "tools": ["git"], "toolsets": [{"name": "t", "programs": ["p"]}]}, "toolsets": [{"name": "t"}], "workspace": {"git": {"remote": "r"}},
            "sandbox": {"isolation": {"landlock": "Required", "seccomp": "Localhost"}, "changeset": {"driver": "Git", "protect": ["a"], "maxBytes": 1, "verify": ["make"]}, "software": {"requireDigest": true, "path": ["/x"]},
                "outputs": {"egress": "AllowList", "allow": ["x.example.org:443"], "loopback": "LinkOnly"}},
            "supervision": {"rules": [{"signal": "BadChangeset", "do": "Reap"}, {"signal": "RuleViolated", "rule": "ToolRejected", "do": "Reap"}]}});
        assert_eq!(paths("AgentPool", harmless), [] as [&str; 0]);
        assert_eq!(paths("Toolset", json!({"image": "x"})), [] as [&str; 0]);
        let isolation = json!({"mode": "Observe", "seccomp": "Localhost", "userNamespace": "Required"});
        let sandbox = json!({"changeset": {}, "isolation": isolation, "software": {"path": ["/x"], "requireDigest": true}});
        let item = json!({"bulkhead": {"tokens": 5, "changeset": {}, "sandbox": sandbox}, "dependsOn": [{"name": "a", "queue": "q"}]});
        let of_items: Vec<&str> = UNSUPPORTED_FIELDS.iter().filter(|field| field.kind == "WorkItem").map(|field| field.path).collect();
        assert_eq!(paths("WorkItem", item), of_items);
        let narrow = json!({"isolation": {"landlock": "Required", "mode": "Enforce"}, "outputs": {"egress": "None"}});
        let harmless = json!({"requires": {"repositories": ["https://r"]}, "bulkhead": {"tokens": 5, "sandbox": narrow}});
        assert_eq!(paths("WorkItem", harmless), [] as [&str; 0]);
    }

    #[test]
    fn a_message_names_the_field_and_what_to_do() {
        let message = |path: &str| UNSUPPORTED_FIELDS.iter().find(|field| field.path == path).map(Field::message).unwrap_or_default();
        assert_eq!(
            message("spec.bulkhead.changeset"),
            "spec.bulkhead.changeset is not supported by this version: leave it unset. The pool sets the changeset (spec.sandbox.changeset)"
        );
        let mode = message("spec.bulkhead.sandbox.isolation.mode");
        assert!(mode.starts_with("spec.bulkhead.sandbox.isolation.mode: Observe is not supported"), "{mode}");
    }

    #[test]
    fn an_expression_of_cel_looks_before_it_reads() {
        let expression = |path: &str| {
            UNSUPPORTED_FIELDS.iter().find(|field| field.path == path).map(|field| field.expression("object")).unwrap_or_default()
        };
        assert_eq!(
            expression("spec.bulkhead.changeset"),
            "!(has(object.spec) && has(object.spec.bulkhead) && has(object.spec.bulkhead.changeset))"
        );
        let list = Field { kind: "AgentPool", path: "spec.list", values: Values::NotEmpty, advice: "" };
        assert_eq!(list.expression("object"), "!(has(object.spec) && has(object.spec.list) && object.spec.list.size() > 0)");
        let rule = Field { kind: "AgentPool", path: "spec.rules[].rule", values: Values::These(&["A"]), advice: "" };
        assert_eq!(
            rule.expression("object"),
            "!(has(object.spec) && has(object.spec.rules) && object.spec.rules.exists(one, has(one.rule) && one.rule in ['A']))"
        );
    }
}
