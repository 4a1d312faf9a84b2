//! The fields that this version does not support, as a page, and as an admission policy that warns.

use std::fmt::Write as _;

use crate::api::unsupported::{Field, UNSUPPORTED_FIELDS, Values};

/// `docs/reference/unsupported.md`.
pub fn page() -> String {
    let mut page = String::from(
        "<!-- Generated from crates/api by `make generate`. Do not edit. -->\n# Fields that this version does not support\n\n\
         The API has these fields so that their names are stable. None of them is ignored silently: the API server warns the user who \
         writes one, and the object reports it. All other fields have an effect. `tests/fields.txt` lists where each field is read, and \
         a test compares both lists with the schemas.\n\n\
         | kind | report |\n|---|---|\n\
         | `AgentPool` | `Stalled` is True with the reason `Unsupported`, and its message names all of these fields. The pool makes no agents |\n\
         | `WorkItem` | its phase is `Rejected`, with the reason `Unsupported` |\n\
\n\
         | kind | field | unsupported values | instead |\n|---|---|---|---|\n",
    );
    for field in UNSUPPORTED_FIELDS {
        let Field { kind, path, values, advice: instead } = field;
        let what = match values {
            Values::Any => "anything".to_owned(),
            Values::NotEmpty => "anything but an empty list".to_owned(),
            Values::True => "`true`".to_owned(),
            Values::These(these) => these.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", "),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(page, "| `{kind}` | `{path}` | {what} | {instead} |");
    }
    page
}

/// The mark of an unsupported field in the reference. Empty for a supported field.
pub fn mark(kind: &str, path: &str) -> String {
    let Some(field) = UNSUPPORTED_FIELDS.iter().find(|field| field.kind == kind && field.path == path) else { return String::new() };
    let what = match field.values {
        Values::Any | Values::NotEmpty => String::new(),
        Values::True => " with `true`".to_owned(),
        Values::These(these) => format!(" with {}", these.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", ")),
    };
    format!(" **[Unsupported](unsupported.md){what}**: {}.", field.advice)
}

/// The policy, as a template of the chart. It warns and refuses nothing: the object itself reports the field, and a
/// fleet that is applied from Git must not fail because of the order in which operator and objects are upgraded.
pub fn policy(header: &str) -> String {
    let plural = |kind: &str| format!("{}s", kind.to_lowercase());
    let mut kinds: Vec<String> = UNSUPPORTED_FIELDS.iter().map(|field| plural(field.kind)).collect();
    kinds.dedup();
    let mut text = format!(
        "{{{{- if .Values.admissionPolicies.enabled }}}}\n{header}{}",
        r#"apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ include "spillway.clusterName" . }}-unsupported
  labels:
    {{- include "spillway.labels" . | nindent 4 }}
spec:
  # It only warns: a write is never held up by it.
  failurePolicy: Ignore
  matchConstraints:
    {{- include "spillway.policyNamespaces" . | nindent 4 }}
    resourceRules:
      - apiGroups: [spillway.dev]
        apiVersions: [v1alpha1]
        operations: [CREATE, UPDATE]
"#
    );
    let _ = writeln!(text, "        resources: [{}]\n        scope: Namespaced\n  validations:", kinds.join(", "));
    for field in UNSUPPORTED_FIELDS {
        let expression = format!("object.kind != '{}' || {}", field.kind, field.expression("object"));
        let _ = writeln!(text, "    - expression: \"{expression}\"\n      message: \"{}\"", field.message());
    }
    text.push_str(
        r#"---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ include "spillway.clusterName" . }}-unsupported
  labels:
    {{- include "spillway.labels" . | nindent 4 }}
spec:
  policyName: {{ include "spillway.clusterName" . }}-unsupported
  validationActions: [Warn]
{{- end }}
"#,
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_is_on_the_page_in_the_policy_and_marked() {
        let (page, policy) = (page(), policy(""));
        for field in UNSUPPORTED_FIELDS {
            assert!(page.contains(&format!("| `{}` | `{}` |", field.kind, field.path)), "{field:?}");
            assert!(policy.contains(&field.message()) && policy.contains(&field.expression("object")), "{field:?}");
            assert!(mark(field.kind, field.path).contains("Unsupported"), "{field:?}");
            // In a string of YAML with double quotes.
            assert!(!field.message().contains(['"', '\\']) && !field.expression("object").contains(['"', '\\']), "{field:?}");
        }
        assert!(policy.contains("resources: [workitems]") && policy.contains("validationActions: [Warn]"));
        assert_eq!(mark("AgentPool", "spec.type"), "");
    }
}
