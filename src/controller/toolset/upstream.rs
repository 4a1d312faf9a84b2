//! The MCP server of a Toolset that fronts one: judging `spec.upstream`, and the argument by which its bridge is told. Pure.
//!
//! The bridge judges the same text by the same code. What is wrong must be found before the Deployment changes.

use serde_json::json;
use spillway_bridge::upstream::Upstream;
use spillway_bridge::upstream::url::UpstreamUrl;

use super::definitions::DefinitionsProblem;
use crate::api::conditions::reasons;
use crate::api::toolset::ToolsetSpec;
use crate::api::upstream;
use crate::pki::tls;

/// The most bytes of the argument. The kernel takes no argument of more than 128 KiB.
const MAX_ARGUMENT_BYTES: usize = 120 * 1024;
/// The most characters of what is wrong.
const MAX_MESSAGE_CHARS: usize = 512;
/// Name of the credential at the bridge. The name of a Secret may contain characters that no credential has.
pub const CREDENTIAL_NAME: &str = "upstream";

/// The fields of the upstream, as its bridge reads them. Kubernetes expands `$(NAME)` in arguments, so that no dollar sign is in it.
pub fn argument(upstream: &upstream::Upstream) -> String {
    let mut fields = json!(upstream);
    if upstream.credentials_ref.is_some() {
        fields["credentialsRef"] = json!({"name": CREDENTIAL_NAME});
    }
    fields.to_string().replace('$', "\\u0024")
}

/// Judges `spec.upstream`.
pub fn judge(spec: &ToolsetSpec, upstream: &upstream::Upstream) -> Result<(), DefinitionsProblem> {
    let problem = |message: String| {
        let message: String = message.chars().take(MAX_MESSAGE_CHARS).collect();
        Err(DefinitionsProblem { reason: reasons::INVALID_DEFINITION, message: format!("spec.upstream: {message}") })
    };
    let argument = argument(upstream);
    if argument.len() > MAX_ARGUMENT_BYTES {
        return problem(format!("it has {} bytes as JSON, and may have {MAX_ARGUMENT_BYTES}", argument.len()));
    }
    let loaded = match Upstream::load(argument.as_bytes(), u32::try_from(spec.max_execution_seconds()).unwrap_or(0)) {
        Ok(loaded) => loaded,
        Err(fault) => return problem(format!("{}: {}", fault.rule, fault.message)),
    };
    if loaded.url.is_loopback() {
        return problem("url: it is the bridge's own pod. Give the address of the MCP server".to_owned());
    }
    match tls::public(&loaded.ca_bundle) {
        Ok(_) => Ok(()),
        Err(error) => problem(format!("caBundle: {error:#}")),
    }
}

/// The address of the upstream, if it is one.
pub fn address(upstream: &upstream::Upstream) -> Option<UpstreamUrl> {
    UpstreamUrl::parse(&upstream.url).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn judged(upstream: Value) -> Result<(), String> {
        let spec: ToolsetSpec = serde_json::from_value(json!({"upstream": upstream, "maxExecutionSeconds": 100})).expect("a spec");
        judge(&spec, spec.upstream.as_ref().expect("an upstream")).map_err(|problem| problem.message)
    }

    #[test]
    fn what_the_bridge_would_refuse_is_found_before() {
        let good = json!({"url": "https://mcp.example.com/mcp", "credentialsRef": {"name": "0.tracker", "key": "k"}, "tools": [{"name": "a", "timeoutSeconds": 100,
            "arguments": [{"name": "x", "pattern": "a$(B)$"}, {"name": "n", "type": "integer", "min": -1}]}]});
        assert_eq!(judged(good.clone()), Ok(()));
        let with = |path: &str, value: Value| {
            let mut changed = good.clone();
            *changed.pointer_mut(path).expect("a member") = value;
            judged(changed)
        };
        for (path, value, wrong) in [
            ("/url", json!("http://mcp.example.com"), "spec.upstream: url: http:// is for a Service"),
            ("/url", json!("http://127.0.0.1:8080"), "spec.upstream: url: it is the bridge's own pod"),
            ("/tools/0/timeoutSeconds", json!(101), "spec.upstream: timeoutSeconds: tools: a: "),
            ("/tools/0/arguments/0/pattern", json!("["), "spec.upstream: pattern: tools: a: "),
            ("/tools/0/name", json!("a b"), "spec.upstream: name: "),
        ] {
            let message = with(path, value).expect_err(wrong);
            assert!(message.starts_with(wrong), "{message}");
        }
        let mut certificate = good.clone();
        certificate["caBundle"] = json!("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
        assert!(judged(certificate).is_err_and(|message| message.starts_with("spec.upstream: caBundle: ")));
        let mut long = good;
        long["caBundle"] = json!("x".repeat(130_000));
        assert!(judged(long).is_err_and(|message| message.contains("may have 122880")));
    }

    #[test]
    fn the_argument_has_no_dollar_sign_and_no_name_of_a_secret() {
        let spec = json!({"url": "https://a.example", "credentialsRef": {"name": "secret.name", "key": "k"}, "tools": [{"name": "a", "arguments": [{"name": "x", "pattern": "a$(B)$"}]}]});
        let argument = argument(&serde_json::from_value(spec).expect("an upstream"));
        assert!(!argument.contains('$') && !argument.contains("secret.name"), "{argument}");
        let loaded = Upstream::load(argument.as_bytes(), 60).expect("it is valid");
        assert_eq!((loaded.credential.as_deref(), loaded.tools.len()), (Some(CREDENTIAL_NAME), 1));
    }
}
