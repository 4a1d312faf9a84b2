//! The advice on Toolsets and their definitions: data alone. [`advice`](super) decides which advice applies.

use super::Advice;
use super::Advice::{Do, Nothing};
use crate::api::conditions::reasons;

/// The reasons of `Ready` and `DefinitionsValid` of a Toolset, with their advice.
pub(super) const TOOLSET_ADVICE: &[(&str, Advice)] = &[
    (reasons::STARTING, Nothing("the pod of the bridge is starting; if it stays so, `kubectl describe pod` says what it waits for")),
    (
        reasons::BRIDGE_FAILING,
        Do("the bridge ends at its start: correct what its last words in the message name, or the image of the Toolset"),
    ),
    (
        reasons::BRIDGE_UNREACHABLE,
        Do("the controller gets no answer from the bridge: check the NetworkPolicies of the namespace and the log of the bridge's pod"),
    ),
    (
        reasons::UPSTREAM_UNREACHABLE,
        Do(
            "the bridge gets no tools from the MCP server of spec.upstream: check the server, its address, the credential, and the NetworkPolicies",
        ),
    ),
    (
        reasons::UPSTREAM_TOOL_MISSING,
        Do("correct the names in spec.upstream.tools, or have the MCP server offer the tools that the message names"),
    ),
    (
        reasons::UPSTREAM_TOOL_REFUSED,
        Do(
            "read what the MCP server says about the tool now; if that is right, set the digest of the message in spec.upstream.tools[].digest",
        ),
    ),
    (
        reasons::UPSTREAM_TOOL_CHANGED,
        Do(
            "read what the MCP server says about the tool now; if that is right, restart the bridge: `kubectl rollout restart deployment NAME-toolset`",
        ),
    ),
    (reasons::INVALID_SPEC, Do("change the field that the message names. What was served before is served further")),
    (
        reasons::OBJECT_REFUSED,
        Do("the API server refuses an object of the Toolset: change what the message names, such as a quota or a policy"),
    ),
    (reasons::DEFINITIONS_INVALID, Do("correct the definitions: the condition DefinitionsValid says what is wrong")),
    (reasons::DEFINITIONS_LOADED, Nothing("the bridge serves all definitions")),
    (reasons::CONFIG_MAP_NOT_FOUND, Do("create the ConfigMap that the message names, or remove it from spec.definitions")),
    (
        reasons::CONFIG_MAP_MUTABLE,
        Do("set immutable: true in the ConfigMap, or mutable: true in spec.definitions: a user who may edit it may use the credentials"),
    ),
    (reasons::DUPLICATE_DEFINITION, Do("rename the key in one of the two ConfigMaps")),
    (reasons::INVALID_DEFINITION, Do("correct the definition: the message names file, line and rule. The last right ones are served")),
];
