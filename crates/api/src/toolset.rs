//! `Toolset`: privileged programs that run outside the sandbox, or tools of an existing MCP server. Agents call them through the bridge.

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::sandbox::Egress;
use crate::shared::LocalRef;
use crate::upstream::Upstream;

/// Desired state of a set of programs, or of tools of an MCP server, with credentials. A user who can edit the Toolset or its definitions can use the credentials.
#[skip_serializing_none]
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[kube(
    group = "spillway.dev",
    version = "v1alpha1",
    kind = "Toolset",
    plural = "toolsets",
    shortname = "ts",
    category = "spillway",
    namespaced,
    status = "ToolsetStatus",
    derive = "PartialEq",
    doc = "Privileged programs outside the sandbox, or tools of an MCP server, that agents may call through the bridge.",
    validation = Rule::new("self.metadata.name.size() <= 52 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')")
        .message("metadata.name must be a DNS label of at most 52 characters: its Deployment and its Service are named after it"),
    printcolumn(name = "Programs", type_ = "integer", json_path = ".status.programCount"),
    printcolumn(name = "Revision", type_ = "string", json_path = ".status.revision"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Reason", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.definitions) || self.definitions.all(one, self.definitions.exists_one(other, other.configMapRef.name == one.configMapRef.name))")
        .message("definitions must not name a ConfigMap twice")
        .field_path(".definitions"),
    validation = Rule::new("has(self.upstream) || (has(self.image) && has(self.definitions) && has(self.allowedCommands))")
        .message("image, definitions and allowedCommands must be set, or upstream in their place"),
    validation = Rule::new("!has(self.upstream) || (!has(self.image) && !has(self.definitions) && !has(self.allowedCommands) && !has(self.credentials) && !has(self.serviceAccountName))")
        .message("upstream excludes image, definitions, allowedCommands, credentials and serviceAccountName: they are for programs")
        .field_path(".upstream"),
)]
pub struct ToolsetSpec {
    /// Container image that holds the programs.
    #[schemars(length(min = 1, max = 512), regex(pattern = "^[^\\s]+$"))]
    pub image: Option<String>,
    /// ConfigMaps whose `*.md` keys define the programs.
    #[schemars(length(min = 1, max = 16))]
    pub definitions: Option<Vec<Definitions>>,
    /// Existing MCP server whose tools agents may call, in the place of programs. The bridge runs on Spillway's own image.
    pub upstream: Option<Upstream>,
    /// ServiceAccount of the bridge. If unset, the bridge has its own ServiceAccount without permissions.
    #[schemars(length(min = 1, max = 253))]
    pub service_account_name: Option<String>,
    /// Secrets that the definitions of programs may name.
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub credentials: Option<Vec<ToolCredential>>,
    /// Compute resources of the bridge.
    #[serde(default)]
    #[schemars(schema_with = "crate::schema::resources")]
    pub resources: Option<ResourceRequirements>,
    /// Hosts that the programs may reach. If unset, they reach none.
    pub egress: Option<ToolsetEgress>,
    /// Time limit in seconds of an execution. Defaults to 300.
    #[schemars(range(min = 1, max = 86400))]
    pub max_execution_seconds: Option<i32>,
    /// Seconds in which a person can approve a call of a program whose definition says `requiresApproval`. Defaults to 900.
    #[schemars(range(min = 10, max = 3600))]
    pub approval_timeout_seconds: Option<i32>,
    /// Programs that definitions may name: absolute paths, or all programs of a directory (`/*`).
    #[schemars(
        length(min = 1, max = 64),
        inner(length(min = 2, max = 256), regex(pattern = "^(/[A-Za-z0-9._+-]+)+(/\\*)?$")),
        extend("x-kubernetes-list-type" = "set")
    )]
    #[x_kube(validation = Rule::new("self.all(command, !command.split('/').exists(part, part == '..' || part == '.'))")
        .message("allowedCommands must not contain '.' or '..' as a part"))]
    pub allowed_commands: Option<Vec<String>>,
    /// Destination of the audit log. Calls are denied if it cannot be written.
    pub audit: Option<Audit>,
}

/// A ConfigMap with definitions of programs.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Definitions {
    /// ConfigMap that holds the definitions.
    pub config_map_ref: LocalRef,
    /// Whether the ConfigMap may be mutable. It is loaded again when it changes. Defaults to false.
    pub mutable: Option<bool>,
}

/// A Secret that definitions may name.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ToolCredential {
    /// Name that definitions use. It becomes the name of a variable, so it begins with a letter.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Secret that holds the credential.
    pub secret_ref: LocalRef,
    /// Key of the Secret whose value is the credential. Defaults to `token`.
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[A-Za-z0-9_-][A-Za-z0-9._-]*$"))]
    pub key: Option<String>,
}

impl ToolCredential {
    /// Key of the Secret whose value is the credential.
    pub fn key(&self) -> &str {
        self.key.as_deref().unwrap_or("token")
    }
}

/// Hosts that the programs may reach.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.allow) || self.allow.size() == 0 || (has(self.mode) && self.mode == 'AllowList')")
        .message("allow needs mode: AllowList")
        .field_path(".allow"),
)]
pub struct ToolsetEgress {
    /// Hosts that can be reached: none (`None`, the default), those in `allow` (`AllowList`), or all hosts (`Open`).
    pub mode: Option<Egress>,
    /// Hosts that can be reached over TCP with mode AllowList, as `host:port`. A host is an IP address (`10.0.0.5:443`,
    /// `[fd00::5]:443`), a DNS name, whose addresses Spillway looks up every 30 seconds, or a Service of the cluster
    /// (`name.namespace.svc:port`). A NetworkPolicy sees the pods behind a Service and not the Service itself. Therefore the port of a
    /// Service is that of its pods, and the programs reach this port of all pods in the namespace. For the API server, give the
    /// address behind its Service. Wildcards (`*.domain:port`) cannot be expressed: a Toolset with one
    /// is not served, or served on as it was before.
    #[schemars(
        length(max = 64),
        inner(length(min = 3, max = 260), regex(pattern = "^((\\*\\.)?[a-z0-9]([-a-z0-9.]*[a-z0-9])?|\\[[0-9a-f:.]+\\]):[0-9]{1,5}$"))
    )]
    pub allow: Option<Vec<String>>,
}

/// Destination of the audit log.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(self.sink == 'PersistentVolumeClaim') == has(self.claimName)")
        .message("claimName must be set with sink PersistentVolumeClaim, and only with it")
        .field_path(".claimName"),
)]
pub struct Audit {
    /// Type of destination: the standard output of the bridge (`Stdout`, the default), or a file on a volume (`PersistentVolumeClaim`).
    #[serde(default)]
    #[schemars(default)]
    pub sink: AuditSink,
    /// Name of the PersistentVolumeClaim.
    #[schemars(length(min = 1, max = 253))]
    pub claim_name: Option<String>,
}

/// Type of destination of the audit log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum AuditSink {
    /// The standard output of the bridge.
    #[default]
    Stdout,
    /// A file on a volume.
    PersistentVolumeClaim,
}

impl ToolsetSpec {
    /// ConfigMaps with the definitions of programs.
    pub fn definitions(&self) -> &[Definitions] {
        self.definitions.as_deref().unwrap_or_default()
    }

    /// Programs that definitions may name.
    pub fn allowed_commands(&self) -> &[String] {
        self.allowed_commands.as_deref().unwrap_or_default()
    }

    /// Time limit in seconds of an execution.
    pub fn max_execution_seconds(&self) -> i32 {
        self.max_execution_seconds.unwrap_or(300)
    }

    /// Seconds in which a person can approve a call.
    pub fn approval_timeout_seconds(&self) -> i32 {
        self.approval_timeout_seconds.unwrap_or(900)
    }
}

/// A program, as it was loaded.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProgramStatus {
    /// Name of the program.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Whether its definition is valid.
    pub valid: bool,
    /// File, line and rule of an invalid definition.
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
}

/// Observed state of a toolset.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ToolsetStatus {
    /// Generation that this status describes; -1 before the first reconcile.
    pub observed_generation: Option<i64>,
    /// Address of the bridge: IP address and port of its Service. Only Spillway's gateways and its controller can connect to it.
    #[schemars(length(max = 64))]
    pub address: Option<String>,
    /// Programs of the toolset.
    #[schemars(length(max = 128), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub programs: Option<Vec<ProgramStatus>>,
    /// Number of programs that are offered.
    pub program_count: Option<i32>,
    /// Revision of the definitions in force.
    #[schemars(length(max = 64))]
    pub revision: Option<String>,
    /// Conditions: Ready, DefinitionsValid.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}
