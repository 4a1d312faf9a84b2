//! `Toolset`: privileged programs that run outside the sandbox, offered to agents through the bridge.

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::sandbox::Egress;
use crate::shared::LocalRef;

/// Programs with credentials. Who may edit it, or its definitions, may use the credentials.
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
    doc = "Privileged programs that agents may call through the bridge, outside of their sandbox. Not supported by this version: nothing serves them.",
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
    validation = Rule::new("self.definitions.all(one, self.definitions.exists_one(other, other.configMapRef.name == one.configMapRef.name))")
        .message("definitions must not name a ConfigMap twice")
        .field_path(".definitions"),
)]
pub struct ToolsetSpec {
    /// Container image that holds the programs.
    #[schemars(length(min = 1, max = 512), regex(pattern = "^[^\\s]+$"))]
    pub image: String,
    /// ConfigMaps whose `*.md` keys define the programs.
    #[schemars(length(min = 1, max = 16))]
    pub definitions: Vec<Definitions>,
    /// ServiceAccount of the bridge; unset: one of its own, without rights.
    #[schemars(length(min = 1, max = 253))]
    pub service_account_name: Option<String>,
    /// Secrets that programs may name.
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub credentials: Option<Vec<ToolCredential>>,
    /// Compute of the bridge.
    #[serde(default)]
    #[schemars(schema_with = "crate::schema::resources")]
    pub resources: Option<ResourceRequirements>,
    /// What its programs may reach; unset: nothing.
    pub egress: Option<ToolsetEgress>,
    /// Seconds an execution may take at most. Default 300.
    #[schemars(range(min = 1, max = 86400))]
    pub max_execution_seconds: Option<i32>,
    /// Programs that definitions may name: absolute paths, or all of a folder by `/*`.
    #[schemars(
        length(min = 1, max = 64),
        inner(length(min = 2, max = 256), regex(pattern = "^(/[A-Za-z0-9._+-]+)+(/\\*)?$")),
        extend("x-kubernetes-list-type" = "set")
    )]
    #[x_kube(validation = Rule::new("self.all(command, !command.split('/').exists(part, part == '..' || part == '.'))")
        .message("allowedCommands must not contain '.' or '..' as a part"))]
    pub allowed_commands: Vec<String>,
    /// Where the audit goes. If it cannot be written, calls are denied.
    pub audit: Option<Audit>,
}

/// A ConfigMap with definitions.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Definitions {
    /// The ConfigMap.
    pub config_map_ref: LocalRef,
    /// Take one that is not immutable, and load it again when it changes. Default false.
    pub mutable: Option<bool>,
}

/// A Secret that programs may name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ToolCredential {
    /// The name that definitions use.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// The Secret.
    pub secret_ref: LocalRef,
}

/// What programs may reach.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.allow) || self.allow.size() == 0 || (has(self.mode) && self.mode == 'AllowList')")
        .message("allow needs mode: AllowList")
        .field_path(".allow"),
)]
pub struct ToolsetEgress {
    /// Which hosts. Default None.
    pub mode: Option<Egress>,
    /// Hosts, as `host:port` or `*.domain:port`, with mode AllowList.
    #[schemars(
        length(max = 64),
        inner(length(min = 3, max = 260), regex(pattern = "^(\\*\\.)?[a-z0-9]([-a-z0-9.]*[a-z0-9])?:[0-9]{1,5}$"))
    )]
    pub allow: Option<Vec<String>>,
}

/// Where the audit goes.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(self.sink == 'PersistentVolumeClaim') == has(self.claimName)")
        .message("claimName must be set with sink PersistentVolumeClaim, and only with it")
        .field_path(".claimName"),
)]
pub struct Audit {
    /// The means.
    #[serde(default)]
    #[schemars(default)]
    pub sink: AuditSink,
    /// The PersistentVolumeClaim.
    #[schemars(length(min = 1, max = 253))]
    pub claim_name: Option<String>,
}

/// The means of an audit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum AuditSink {
    /// The bridge's standard output.
    #[default]
    Stdout,
    /// A file on a volume.
    PersistentVolumeClaim,
}

/// One program, as it was loaded.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProgramStatus {
    /// Its name.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Its definition holds.
    pub valid: bool,
    /// File, line and rule of what does not.
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
}

/// What Spillway says of a toolset.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ToolsetStatus {
    /// The generation this status speaks of; -1 before the first look.
    pub observed_generation: Option<i64>,
    /// Its programs.
    #[schemars(length(max = 128), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub programs: Option<Vec<ProgramStatus>>,
    /// How many of them are offered.
    pub program_count: Option<i32>,
    /// The revision of the definitions in force.
    #[schemars(length(max = 64))]
    pub revision: Option<String>,
    /// Ready, DefinitionsValid.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}
