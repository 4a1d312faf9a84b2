//! Builds the pod of an Agent, and the patch that adopts an Agent made by hand. Pure.
//!
//! The pod meets Pod Security `restricted` whatever the pool says: no root, no capabilities, no privilege escalation, a
//! read-only root, seccomp, no ServiceAccount token, limits, sized scratch volumes, and a resolver that refuses at once
//! (silence would cost programs seconds at each start). No Secret is ever mounted or put into its environment.
//!
//! The pod has two containers with different uids. `link`, a native sidecar, holds the token and connects to the
//! gateway. `agent` runs our supervisor as its first process and holds no credentials. They share the loopback
//! interface, and one folder with one socket.

mod sandbox;
mod volumes;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Capabilities, Container, EnvVar, EnvVarSource, ExecAction, Lifecycle, LifecycleHandler, LocalObjectReference, ObjectFieldSelector, Pod,
    PodDNSConfig, PodDNSConfigOption, PodSecurityContext, PodSpec, ResourceRequirements, SeccompProfile, SecurityContext, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::api::agent_pool::{Dialect, EnvVar as PoolEnv, PoolMode};
use crate::api::owner::owner;
use crate::api::shared::LocalRef;
use crate::api::{Agent, AgentPool, names};
use crate::controller::compute_defaults::{ComputeDefaults, complete};
use crate::controller::program_files::{FILE_NAME, FILES_DIR, FileCopy, HOME_DIR, WORKSPACE_DIR, copies};
use crate::controller::supervised::Supervised;
use crate::policy::git::Repository;
use crate::wire::sandbox::SANDBOX_VARIABLE;
use spillway_pod::TOOLS_URL;
use volumes::{folder_mount, mounts, volumes};

pub use volumes::claim;

/// Name of the agent's container.
pub const AGENT_CONTAINER: &str = "agent";
/// Name of the sidecar.
pub const LINK_CONTAINER: &str = "link";
/// The uid the sidecar runs as: not the agent's, which must not read its files or touch its processes.
const LINK_UID: i64 = 10_002;
/// Our programs, as the sidecar's container installs them for the agent's.
const BIN_DIR: &str = "/spillway/bin";
const RUN_DIR: &str = "/spillway/run";
const JOURNAL_DIR: &str = "/spillway/journal";
const TOKEN_DIR: &str = "/spillway/token";
const CA_DIR: &str = "/spillway/ca";
/// The mirror of the repository, from which the workspace of each item is cloned, or what the steps keep about a copy.
const MIRROR_DIR: &str = "/spillway/mirror";
/// The volume of the pool's folder, in the sidecar.
const FOLDER_VOLUME_DIR: &str = "/spillway/volume";
/// Files between our programs and the agent's: notices, payloads, results.
const DATA_DIR: &str = "/spillway/data";
/// The sidecar's loopback port for other hosts than models, git and tools.
const EGRESS_PROXY_URL: &str = "http://127.0.0.1:4102";
/// The variable with the URL of the pool's first Toolset.
const MCP_URL_VARIABLE: &str = "SPILLWAY_MCP_URL";
/// The variable with the URLs of all Toolsets of the pool, as a JSON object by name.
const MCP_SERVERS_VARIABLE: &str = "SPILLWAY_MCP_SERVERS";
/// The sidecar's loopback port for git.
const GIT_URL: &str = "http://127.0.0.1:4103/git";
/// The sidecar's loopback port for models.
const MODELS_URL: &str = "http://127.0.0.1:4101";
/// Placeholder for clients that require a key. The gateway replaces it with the team's key.
const PLACEHOLDER_KEY: &str = "held-by-spillway";
/// How long a token lives; the kubelet renews it at four fifths.
const TOKEN_TTL_SECONDS: i64 = 3600;
/// Limits of the sidecar. Its binary is in a scratch volume.
const LINK_LIMITS: [(&str, &str); 3] = [("cpu", "500m"), ("memory", "48Mi"), ("ephemeral-storage", "64Mi")];
/// Memory of the sidecar in pools with a folder, whose paths it compares.
const FOLDER_LINK_MEMORY: &str = "128Mi";
const LINK_REQUESTS: [(&str, &str); 3] = [("cpu", "5m"), ("memory", "12Mi"), ("ephemeral-storage", "16Mi")];
/// The uid and gid agents run as.
const AGENT_UID: i64 = 10_001;
/// The scratch volume that contains the home folder. It belongs to root: the supervisor creates the program's own
/// folder in it.
const HOME_VOLUME_DIR: &str = "/home/agent";
const TMP_DIR: &str = "/tmp";
/// Limits of an agent whose pool sets none: enough to build small projects, little enough for ten agents on a laptop.
const DEFAULT_LIMITS: ComputeDefaults = [("cpu", "1"), ("memory", "1Gi"), ("ephemeral-storage", "10Gi")];
/// Requests of an agent whose pool sets none. Without them Kubernetes would use the limits as requests.
const DEFAULT_REQUESTS: ComputeDefaults = [("cpu", "100m"), ("memory", "128Mi"), ("ephemeral-storage", "64Mi")];
/// Scratch volumes with their sizes. The kubelet evicts a pod that exceeds them.
const SCRATCH_VOLUMES: [(&str, &str, &str); 2] = [("home", HOME_VOLUME_DIR, "1Gi"), ("tmp", TMP_DIR, "1Gi")];
const WORKSPACE_SIZE: &str = "8Gi";
const SHM_SIZE: &str = "64Mi";

/// The pod of `agent` in `pool`.
pub fn pod(agent: &Agent, pool: &AgentPool, user_namespaces: bool, supervised: &Supervised) -> Pod {
    let spec = &pool.spec;
    let scheduling = spec.scheduling.clone().unwrap_or_default();
    let files = spec.agent.files.clone().unwrap_or_default();
    let chat = spec.mode == PoolMode::Chat;
    let container = Container {
        name: AGENT_CONTAINER.into(),
        image: Some(spec.agent.image.clone()),
        command: Some(command(pool)),
        env: Some(environment(agent, pool)),
        resources: Some(complete(agent.spec.resources.as_ref().or(spec.agent.resources.as_ref()), DEFAULT_LIMITS, DEFAULT_REQUESTS)),
        security_context: Some(SecurityContext { seccomp_profile: sandbox::container_profile(spec), ..container_security_context() }),
        working_dir: Some(WORKSPACE_DIR.into()),
        volume_mounts: Some(mounts(pool, &files)),
        stdin: chat.then_some(true),
        tty: chat.then_some(true),
        ..Container::default()
    };
    Pod {
        metadata: ObjectMeta {
            name: Some(agent.name_any()),
            namespace: agent.namespace(),
            labels: Some(pod_labels(agent, pool)),
            // kubectl logs and exec use this container, not the sidecar.
            annotations: Some([("kubectl.kubernetes.io/default-container".to_owned(), AGENT_CONTAINER.to_owned())].into()),
            owner_references: Some(vec![owner::<Agent>(&agent.metadata)]),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            init_containers: Some(vec![sidecar_container(pool, supervised)]),
            containers: vec![container],
            restart_policy: Some("Never".into()),
            termination_grace_period_seconds: Some(spec.goodbye_timeout_seconds().into()),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            host_users: user_namespaces.then_some(false),
            security_context: Some(pod_security_context()),
            dns_policy: Some("None".into()),
            dns_config: Some(dns_config()),
            volumes: Some(volumes(agent, pool, &files)),
            node_selector: Some(sandbox::node_selector(spec)).filter(|selector| !selector.is_empty()),
            tolerations: scheduling.tolerations,
            priority_class_name: scheduling.priority_class_name,
            runtime_class_name: scheduling.runtime_class_name,
            service_account_name: scheduling.service_account_name,
            image_pull_secrets: pull_secrets(scheduling.image_pull_secrets, supervised),
            ..PodSpec::default()
        }),
        status: None,
    }
}

/// The pull secrets of the pool, and those for the image of the sidecar. `None` if there are none: Kubernetes then takes those of the
/// pod's ServiceAccount.
fn pull_secrets(of_pool: Option<Vec<LocalRef>>, supervised: &Supervised) -> Option<Vec<LocalObjectReference>> {
    let mut names: Vec<String> = of_pool.into_iter().flatten().map(|secret| secret.name).collect();
    for name in &supervised.pull_secrets {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    (!names.is_empty()).then(|| names.into_iter().map(|name| LocalObjectReference { name }).collect())
}

/// The patch that adopts an Agent which a person created or changed: it adds a missing finalizer, owner and labels.
pub fn adoption_patch(agent: &Agent, pool: Option<&AgentPool>) -> Value {
    let mut finalizers = agent.finalizers().to_vec();
    if !finalizers.iter().any(|finalizer| finalizer == names::AGENT_FINALIZER) {
        finalizers.push(names::AGENT_FINALIZER.to_owned());
    }
    let mut metadata = json!({"uid": agent.metadata.uid, "resourceVersion": agent.metadata.resource_version, "finalizers": finalizers});
    if let Some(pool) = pool.filter(|_| agent.owner_uid().is_none()) {
        let mut owners = agent.metadata.owner_references.clone().unwrap_or_default();
        owners.push(owner::<AgentPool>(&pool.metadata));
        metadata["ownerReferences"] = json!(owners);
        metadata["labels"] =
            json!(names::pool_labels(&pool.name_any(), pool.metadata.uid.as_deref().unwrap_or_default(), &pool.spec.type_));
    }
    json!({"metadata": metadata})
}

fn pod_labels(agent: &Agent, pool: &AgentPool) -> BTreeMap<String, String> {
    let mut labels = names::pool_labels(&pool.name_any(), pool.metadata.uid.as_deref().unwrap_or_default(), &pool.spec.type_);
    labels.insert("app.kubernetes.io/name".to_owned(), "spillway-agent".to_owned());
    labels.insert(names::AGENT_LABEL.to_owned(), agent.name_any());
    let mode = if pool.spec.mode == PoolMode::Chat { "Chat" } else { "Perseverance" };
    labels.insert(names::MODE_LABEL.to_owned(), mode.to_owned());
    labels
}

/// The native sidecar. Its postStart hook installs our programs for the agent's container. The kubelet starts no other
/// container before that hook ends, and a separate init container would make each start a second slower.
fn sidecar_container(pool: &AgentPool, supervised: &Supervised) -> Container {
    let mount = |name: &str, path: &str| VolumeMount { name: name.into(), mount_path: path.into(), ..VolumeMount::default() };
    let read = |name: &str, path: &str| VolumeMount { read_only: Some(true), ..mount(name, path) };
    let install = ExecAction { command: Some(vec!["/spillway-agent".into(), "install".into(), BIN_DIR.into()]) };
    let after_start = LifecycleHandler { exec: Some(install), ..LifecycleHandler::default() };
    let own_mounts = [
        mount("spillway-bin", BIN_DIR),
        mount("spillway-run", RUN_DIR),
        mount("spillway-journal", JOURNAL_DIR),
        read("spillway-token", TOKEN_DIR),
        read("spillway-ca", CA_DIR),
    ];
    let quantities = |all: [(&str, &str); 3]| -> BTreeMap<String, Quantity> {
        all.into_iter().map(|(name, value)| (name.to_owned(), Quantity(value.to_owned()))).collect()
    };
    let folder = pool.spec.changed_folder().map(|folder| ("SPILLWAY_FOLDER", folder.name()));
    let own = [("SPILLWAY_GATEWAY", supervised.gateway.clone()), (SANDBOX_VARIABLE, sandbox::variable(&pool.spec))];
    let variables = own.into_iter().chain(folder);
    let variables = variables.map(|(name, value)| EnvVar { name: name.into(), value: Some(value), value_from: None });
    let mut limits = quantities(LINK_LIMITS);
    limits.extend(pool.spec.changed_folder().map(|_| ("memory".to_owned(), Quantity(FOLDER_LINK_MEMORY.to_owned()))));
    Container {
        name: LINK_CONTAINER.into(),
        image: Some(supervised.image.clone()),
        image_pull_policy: Some(supervised.pull_policy.clone()),
        command: Some(vec!["/spillway-agent".into(), "link".into()]),
        env: Some(variables.collect()),
        restart_policy: Some("Always".into()),
        lifecycle: Some(Lifecycle { post_start: Some(after_start), ..Lifecycle::default() }),
        resources: Some(ResourceRequirements {
            limits: Some(limits),
            requests: Some(quantities(LINK_REQUESTS)),
            ..ResourceRequirements::default()
        }),
        security_context: Some(SecurityContext { run_as_user: Some(LINK_UID), ..container_security_context() }),
        volume_mounts: Some(own_mounts.into_iter().chain(folder_mount(pool)).collect()),
        ..Container::default()
    }
}

/// Our supervisor, with the pool's program after it.
fn command(pool: &AgentPool) -> Vec<String> {
    let agent = &pool.spec.agent;
    let mut words = vec![format!("{BIN_DIR}/spillway-agent"), "agent".to_owned()];
    for PoolEnv { name, .. } in agent.env.iter().flatten() {
        words.extend(["--pass".to_owned(), name.clone()]);
    }
    if pool.spec.mode == PoolMode::Chat {
        words.push("--tty".to_owned());
    }
    words.extend(["--home".to_owned(), HOME_DIR.to_owned()]);
    words.extend(copies(&pool.spec).flat_map(|FileCopy { from, to, .. }| ["--file".to_owned(), from, to]));
    words.push("--".to_owned());
    words.extend(agent.command.iter().cloned());
    words
}

/// The whole environment: variables that Spillway sets, and those that the pool lists. Nothing is inherited.
fn environment(agent: &Agent, pool: &AgentPool) -> Vec<EnvVar> {
    let plain = |name: &str, value: String| EnvVar { name: name.to_owned(), value: Some(value), value_from: None };
    let uid = ObjectFieldSelector { field_path: "metadata.uid".into(), ..ObjectFieldSelector::default() };
    let uid = EnvVarSource { field_ref: Some(uid), ..EnvVarSource::default() };
    let mut all = vec![
        EnvVar { name: "SPILLWAY_AGENT_ID".into(), value: None, value_from: Some(uid) },
        plain("SPILLWAY_AGENT_NAME", agent.name_any()),
        plain("SPILLWAY_AGENT_TYPE", pool.spec.type_.clone()),
        plain("SPILLWAY_POOL", pool.name_any()),
        plain("SPILLWAY_CONTAINER_MODE", "true".into()),
        plain("SPILLWAY_DATA_DIR", DATA_DIR.into()),
        plain("SPILLWAY_STORAGE_HASH", storage_hash(agent, pool)),
        plain(SANDBOX_VARIABLE, sandbox::variable(&pool.spec)),
        plain("HOME", HOME_DIR.into()),
        plain("TMPDIR", TMP_DIR.into()),
    ];
    // Programs that use a proxy get a refusal for other hosts at once, instead of waiting for an answer.
    for (name, value) in [("HTTP_PROXY", EGRESS_PROXY_URL), ("HTTPS_PROXY", EGRESS_PROXY_URL), ("NO_PROXY", "localhost,127.0.0.1,::1")] {
        all.extend([plain(name, value.into()), plain(&name.to_lowercase(), value.into())]);
    }
    let listed = pool.spec.agent.env.clone().unwrap_or_default();
    // A name may be set once. A pool that sets the same settings of git replaces ours.
    let unlisted = |name: &String| !listed.iter().any(|own| own.name == *name);
    all.extend(git_variables(pool).into_iter().filter(|(name, _)| unlisted(name)).map(|(name, value)| plain(&name, value)));
    all.extend(tool_variables(pool).into_iter().filter(|(name, _)| unlisted(name)).map(|(name, value)| plain(&name, value)));
    all.extend(model_variables(pool).into_iter().map(|(name, value)| plain(name, value)));
    all.extend(listed.into_iter().map(|PoolEnv { name, value }| EnvVar { name, value: Some(value.unwrap_or_default()), value_from: None }));
    all
}

/// Variables that point git to the sidecar, whichever usual URL of the pool's repository a program uses.
fn git_variables(pool: &AgentPool) -> Vec<(String, String)> {
    let declared = pool.spec.workspace.as_ref().and_then(|workspace| workspace.git.as_ref());
    // A pool whose repository is wrong has no agents.
    let Some(repository) = declared.and_then(|git| Repository::parse_url(&git.remote).ok()) else { return Vec::new() };
    let (name, host) = (repository.name(), repository.server().host());
    let path = name.split_once('/').map_or("", |(_, path)| path);
    let url = format!("{GIT_URL}/{name}");
    let instead = format!("url.{url}.insteadOf");
    let settings = [
        (instead.clone(), format!("https://{name}")),
        (instead.clone(), format!("ssh://git@{host}/{path}")),
        (instead, format!("git@{host}:{path}")),
        // The workspace is a volume, which belongs to root.
        ("safe.directory".to_owned(), WORKSPACE_DIR.to_owned()),
    ];
    let mut set = vec![
        ("SPILLWAY_GIT_URL".to_owned(), url),
        // Nobody answers a question.
        ("GIT_TERMINAL_PROMPT".to_owned(), "0".to_owned()),
        ("GIT_CONFIG_COUNT".to_owned(), settings.len().to_string()),
    ];
    for (number, (key, value)) in settings.into_iter().enumerate() {
        set.extend([(format!("GIT_CONFIG_KEY_{number}"), key), (format!("GIT_CONFIG_VALUE_{number}"), value)]);
    }
    set
}

/// Variables that point clients of MCP to the sidecar: the pool's first Toolset, and all by their names.
fn tool_variables(pool: &AgentPool) -> Vec<(String, String)> {
    let listed = pool.spec.toolsets.as_deref().unwrap_or_default();
    let Some(first) = listed.first() else { return Vec::new() };
    let url = |name: &str| format!("{TOOLS_URL}{name}");
    let all: serde_json::Map<String, Value> = listed.iter().map(|toolset| (toolset.name.clone(), json!(url(&toolset.name)))).collect();
    vec![(MCP_URL_VARIABLE.to_owned(), url(&first.name)), (MCP_SERVERS_VARIABLE.to_owned(), Value::Object(all).to_string())]
}

/// Variables that point clients of model APIs to the sidecar: for each protocol the pool's first entry, with the base
/// path that clients of the protocol expect.
fn model_variables(pool: &AgentPool) -> Vec<(&'static str, String)> {
    let entries = pool.spec.models.as_deref().unwrap_or_default();
    let all = [
        ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "", &[Dialect::Anthropic][..]),
        ("OPENAI_BASE_URL", "OPENAI_API_KEY", "/v1", &[Dialect::OpenAIChat, Dialect::OpenAIResponses]),
        ("GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY", "", &[Dialect::Gemini]),
    ];
    let mut set = Vec::new();
    for (url, key, path, dialects) in all {
        if let Some(entry) = entries.iter().find(|entry| dialects.contains(&entry.dialect)) {
            set.extend([(url, format!("{MODELS_URL}/{}{path}", entry.name)), (key, PLACEHOLDER_KEY.to_owned())]);
        }
    }
    set
}

/// A hash that is equal for agents with the same storage.
fn storage_hash(agent: &Agent, pool: &AgentPool) -> String {
    let claim = pool.spec.workspace.as_ref().and_then(|workspace| workspace.claim_name.clone());
    let source = claim.map_or_else(|| format!("empty/{}", agent.name_any()), |claim| format!("claim/{claim}"));
    names::short_hash(&[&agent.namespace().unwrap_or_default(), &source], 16)
}

fn container_security_context() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        run_as_non_root: Some(true),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".into()]), add: None }),
        ..SecurityContext::default()
    }
}

fn pod_security_context() -> PodSecurityContext {
    PodSecurityContext {
        run_as_non_root: Some(true),
        run_as_user: Some(AGENT_UID),
        run_as_group: Some(AGENT_UID),
        fs_group: Some(AGENT_UID),
        fs_group_change_policy: Some("OnRootMismatch".into()),
        seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".into(), localhost_profile: None }),
        ..PodSecurityContext::default()
    }
}

fn dns_config() -> PodDNSConfig {
    let option = |name: &str| PodDNSConfigOption { name: Some(name.into()), value: Some("1".into()) };
    PodDNSConfig { nameservers: Some(vec!["127.0.0.1".into()]), options: Some(vec![option("timeout"), option("attempts")]), searches: None }
}

#[cfg(test)]
#[path = "build_tests.rs"]
mod tests;
