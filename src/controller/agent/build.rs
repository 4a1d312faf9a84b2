//! The pod of an Agent, and what makes a hand-made Agent ours. Pure.
//!
//! The pod meets Pod Security `restricted` whatever the pool says: no root, no capabilities, no privilege escalation, a
//! read-only root, seccomp, no ServiceAccount token, limits, sized scratch volumes, and a resolver that refuses at once
//! (silence would cost programs seconds at each start). No Secret is ever mounted or put into its environment.
//!
//! Two containers, two uids: `link`, a native sidecar, holds the token and the way to the gateway; `agent` has our supervisor
//! as its first process and nothing to steal. They share loopback and one folder with one socket.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMapVolumeSource, Container, EmptyDirVolumeSource, EnvVar, EnvVarSource, ExecAction, KeyToPath, Lifecycle,
    LifecycleHandler, LocalObjectReference, ObjectFieldSelector, PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod,
    PodDNSConfig, PodDNSConfigOption, PodSecurityContext, PodSpec, ProjectedVolumeSource, ResourceRequirements, SeccompProfile,
    SecurityContext, ServiceAccountTokenProjection, Volume, VolumeMount, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::api::agent_pool::{Dialect, EnvVar as PoolEnv, PoolMode, ProgramFile};
use crate::api::owner::owner;
use crate::api::{Agent, AgentPool, names};
use crate::controller::supervised::Supervised;

/// Name of the agent's container.
pub const CONTAINER: &str = "agent";
/// Name of the sidecar.
pub const LINK: &str = "link";
/// The uid the sidecar runs as: not the agent's, which must not read its files or touch its processes.
const LINK_UID: i64 = 10_002;
/// Our programs, as the sidecar's container installs them for the agent's.
const BIN: &str = "/spillway/bin";
const RUN: &str = "/spillway/run";
const JOURNAL: &str = "/spillway/journal";
const TOKEN: &str = "/spillway/token";
const CA: &str = "/spillway/ca";
/// Files between our programs and the agent's: notices, payloads, results.
const DATA: &str = "/spillway/data";
/// The sidecar's loopback port for other hosts than models, git and tools.
const EGRESS_PROXY: &str = "http://127.0.0.1:4102";
/// The sidecar's loopback port for models.
const MODELS: &str = "http://127.0.0.1:4101";
/// What stands where a client insists on a key: the gateway puts the team's in.
const PLACEHOLDER: &str = "held-by-spillway";
/// How long a token lives; the kubelet renews it at four fifths.
const TOKEN_SECONDS: i64 = 3600;
/// What the sidecar may use. Its binary lies in a scratch volume.
const LINK_LIMITS: [(&str, &str); 3] = [("cpu", "500m"), ("memory", "48Mi"), ("ephemeral-storage", "64Mi")];
const LINK_REQUESTS: [(&str, &str); 3] = [("cpu", "5m"), ("memory", "12Mi"), ("ephemeral-storage", "16Mi")];
/// The uid and gid agents run as.
const AGENT_UID: i64 = 10_001;
/// The scratch volume that the home is in. It belongs to root: the supervisor makes a folder of the program's own below it.
const HOMES: &str = "/home/agent";
const HOME: &str = "/home/agent/home";
/// The pool's files, each in a folder of its own, from where the supervisor copies them.
const FILES: &str = "/spillway/files";
/// The name of each there.
const FILE: &str = "content";
const WORKSPACE: &str = "/workspace";
const TMP: &str = "/tmp";
/// Limits of an agent whose pool sets none: enough to build small projects, little enough for ten agents on a laptop.
const DEFAULT_LIMITS: [(&str, &str); 3] = [("cpu", "1"), ("memory", "1Gi"), ("ephemeral-storage", "10Gi")];
/// What is reserved for it; without these Kubernetes would reserve the limits.
const DEFAULT_REQUESTS: [(&str, &str); 3] = [("cpu", "100m"), ("memory", "128Mi"), ("ephemeral-storage", "64Mi")];
/// Scratch volumes with their sizes; the node evicts a pod that grows over them.
const SCRATCH: [(&str, &str, &str); 2] = [("home", HOMES, "1Gi"), ("tmp", TMP, "1Gi")];
const WORKSPACE_SIZE: &str = "8Gi";
const SHM_SIZE: &str = "64Mi";

/// The pod of `agent` in `pool`.
pub fn pod(agent: &Agent, pool: &AgentPool, user_namespaces: bool, supervised: &Supervised) -> Pod {
    let spec = &pool.spec;
    let scheduling = spec.scheduling.clone().unwrap_or_default();
    let files = spec.agent.files.clone().unwrap_or_default();
    let chat = spec.mode == PoolMode::Chat;
    let container = Container {
        name: CONTAINER.into(),
        image: Some(spec.agent.image.clone()),
        command: Some(command(pool)),
        env: Some(environment(agent, pool)),
        resources: Some(resources(agent.spec.resources.as_ref().or(spec.agent.resources.as_ref()))),
        security_context: Some(container_walls()),
        working_dir: Some(WORKSPACE.into()),
        volume_mounts: Some(mounts(&files)),
        stdin: chat.then_some(true),
        tty: chat.then_some(true),
        ..Container::default()
    };
    Pod {
        metadata: ObjectMeta {
            name: Some(agent.name_any()),
            namespace: agent.namespace(),
            labels: Some(pod_labels(agent, pool)),
            // kubectl logs and exec mean the program, not the sidecar.
            annotations: Some([("kubectl.kubernetes.io/default-container".to_owned(), CONTAINER.to_owned())].into()),
            owner_references: Some(vec![owner::<Agent>(&agent.metadata)]),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            init_containers: Some(vec![link(supervised)]),
            containers: vec![container],
            restart_policy: Some("Never".into()),
            termination_grace_period_seconds: Some(spec.goodbye_timeout_seconds().into()),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            host_users: user_namespaces.then_some(false),
            security_context: Some(pod_walls()),
            dns_policy: Some("None".into()),
            dns_config: Some(no_dns()),
            volumes: Some(volumes(agent, pool, &files)),
            node_selector: scheduling.node_selector.filter(|selector| !selector.is_empty()),
            tolerations: scheduling.tolerations,
            priority_class_name: scheduling.priority_class_name,
            runtime_class_name: scheduling.runtime_class_name,
            service_account_name: scheduling.service_account_name,
            image_pull_secrets: scheduling
                .image_pull_secrets
                .map(|list| list.into_iter().map(|secret| LocalObjectReference { name: secret.name }).collect()),
            ..PodSpec::default()
        }),
        status: None,
    }
}

/// The change that makes an Agent that a person made, or changed, ours: what it lacks of finalizer, owner and labels.
pub fn adoption(agent: &Agent, pool: Option<&AgentPool>) -> Value {
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

/// The native sidecar. Our programs are put where the agent's container finds them by a hook: the kubelet starts nothing
/// else before that has ended, and a container of its own for it would cost each start a second.
fn link(supervised: &Supervised) -> Container {
    let mount = |name: &str, path: &str| VolumeMount { name: name.into(), mount_path: path.into(), ..VolumeMount::default() };
    let read = |name: &str, path: &str| VolumeMount { read_only: Some(true), ..mount(name, path) };
    let install = ExecAction { command: Some(vec!["/spillway-agent".into(), "install".into(), BIN.into()]) };
    let after_start = LifecycleHandler { exec: Some(install), ..LifecycleHandler::default() };
    let quantities = |all: [(&str, &str); 3]| all.into_iter().map(|(name, value)| (name.to_owned(), Quantity(value.to_owned()))).collect();
    Container {
        name: LINK.into(),
        image: Some(supervised.image.clone()),
        image_pull_policy: Some(supervised.pull_policy.clone()),
        command: Some(vec!["/spillway-agent".into(), "link".into()]),
        env: Some(vec![EnvVar { name: "SPILLWAY_GATEWAY".into(), value: Some(supervised.gateway.clone()), value_from: None }]),
        restart_policy: Some("Always".into()),
        lifecycle: Some(Lifecycle { post_start: Some(after_start), ..Lifecycle::default() }),
        resources: Some(ResourceRequirements {
            limits: Some(quantities(LINK_LIMITS)),
            requests: Some(quantities(LINK_REQUESTS)),
            ..ResourceRequirements::default()
        }),
        security_context: Some(SecurityContext { run_as_user: Some(LINK_UID), ..container_walls() }),
        volume_mounts: Some(vec![
            mount("spillway-bin", BIN),
            mount("spillway-run", RUN),
            mount("spillway-journal", JOURNAL),
            read("spillway-token", TOKEN),
            read("spillway-ca", CA),
        ]),
        ..Container::default()
    }
}

/// Our supervisor, with the pool's program after it.
fn command(pool: &AgentPool) -> Vec<String> {
    let agent = &pool.spec.agent;
    let mut words = vec![format!("{BIN}/spillway-agent"), "agent".to_owned()];
    for PoolEnv { name, .. } in agent.env.iter().flatten() {
        words.extend(["--pass".to_owned(), name.clone()]);
    }
    if pool.spec.mode == PoolMode::Chat {
        words.push("--tty".to_owned());
    }
    words.extend(["--home".to_owned(), HOME.to_owned()]);
    for (at, file) in agent.files.iter().flatten().enumerate() {
        let to = match file.path.strip_prefix("workspace/") {
            Some(rest) => format!("{WORKSPACE}/{rest}"),
            None => format!("{HOME}/{}", file.path),
        };
        words.extend(["--file".to_owned(), format!("{FILES}/{at}/{FILE}"), to]);
    }
    words.push("--".to_owned());
    words.extend(agent.command.iter().cloned());
    words
}

/// Nothing is inherited: what Spillway sets, and what the pool lists.
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
        plain("SPILLWAY_DATA_DIR", DATA.into()),
        plain("SPILLWAY_STORAGE_HASH", storage_hash(agent, pool)),
        plain("HOME", HOME.into()),
        plain("TMPDIR", TMP.into()),
    ];
    // Programs that honour a proxy are told at once that nothing else can be reached, instead of waiting for an answer.
    for (name, value) in [("HTTP_PROXY", EGRESS_PROXY), ("HTTPS_PROXY", EGRESS_PROXY), ("NO_PROXY", "localhost,127.0.0.1,::1")] {
        all.extend([plain(name, value.into()), plain(&name.to_lowercase(), value.into())]);
    }
    all.extend(models(pool).into_iter().map(|(name, value)| plain(name, value)));
    let listed = pool.spec.agent.env.clone().unwrap_or_default();
    all.extend(listed.into_iter().map(|PoolEnv { name, value }| EnvVar { name, value: Some(value.unwrap_or_default()), value_from: None }));
    all
}

/// Where clients of models find them: the first entry of each protocol, at the path that its clients add theirs to.
fn models(pool: &AgentPool) -> Vec<(&'static str, String)> {
    let entries = pool.spec.models.as_deref().unwrap_or_default();
    let all = [
        ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "", &[Dialect::Anthropic][..]),
        ("OPENAI_BASE_URL", "OPENAI_API_KEY", "/v1", &[Dialect::OpenAIChat, Dialect::OpenAIResponses]),
        ("GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY", "", &[Dialect::Gemini]),
    ];
    let mut set = Vec::new();
    for (url, key, path, dialects) in all {
        if let Some(entry) = entries.iter().find(|entry| dialects.contains(&entry.dialect)) {
            set.extend([(url, format!("{MODELS}/{}{path}", entry.name)), (key, PLACEHOLDER.to_owned())]);
        }
    }
    set
}

/// The same for agents that work on the same storage.
fn storage_hash(agent: &Agent, pool: &AgentPool) -> String {
    let claim = pool.spec.workspace.as_ref().and_then(|workspace| workspace.claim_name.clone());
    let source = claim.map_or_else(|| format!("empty/{}", agent.name_any()), |claim| format!("claim/{claim}"));
    names::short_hash(&[&agent.namespace().unwrap_or_default(), &source], 16)
}

/// What is set, and for the rest the defaults: an agent without limits would have the node's.
fn resources(set: Option<&ResourceRequirements>) -> ResourceRequirements {
    let mut resources = set.cloned().unwrap_or_default();
    let limits = resources.limits.get_or_insert_default();
    for (name, value) in DEFAULT_LIMITS {
        limits.entry(name.to_owned()).or_insert_with(|| Quantity(value.to_owned()));
    }
    let requests = resources.requests.get_or_insert_default();
    for (name, value) in DEFAULT_REQUESTS {
        let limited = set.is_some_and(|set| set.limits.as_ref().is_some_and(|limits| limits.contains_key(name)));
        // A limit that was set may be below our default request, which the API server would refuse: then it is the request too.
        if !limited {
            requests.entry(name.to_owned()).or_insert_with(|| Quantity(value.to_owned()));
        }
    }
    resources
}

fn container_walls() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        run_as_non_root: Some(true),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".into()]), add: None }),
        ..SecurityContext::default()
    }
}

fn pod_walls() -> PodSecurityContext {
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

fn no_dns() -> PodDNSConfig {
    let option = |name: &str| PodDNSConfigOption { name: Some(name.into()), value: Some("1".into()) };
    PodDNSConfig { nameservers: Some(vec!["127.0.0.1".into()]), options: Some(vec![option("timeout"), option("attempts")]), searches: None }
}

fn scratch(name: &str, size: &str, medium: Option<&str>) -> Volume {
    let volume = EmptyDirVolumeSource { size_limit: Some(Quantity(size.into())), medium: medium.map(str::to_owned) };
    Volume { name: name.into(), empty_dir: Some(volume), ..Volume::default() }
}

/// The claim that the agent has for itself, if its pool wants that. It is the Agent's, and goes with it; whether what was
/// written stays is the storage class's to say.
pub fn claim(agent: &Agent, pool: &AgentPool) -> Option<PersistentVolumeClaim> {
    let template = pool.spec.workspace.as_ref()?.volume_claim_template.clone()?;
    let mut labels = names::pool_labels(&pool.name_any(), pool.metadata.uid.as_deref().unwrap_or_default(), &pool.spec.type_);
    labels.insert(names::AGENT_LABEL.to_owned(), agent.name_any());
    Some(PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(names::claim_name(&agent.name_any())),
            namespace: agent.namespace(),
            labels: Some(labels),
            owner_references: Some(vec![owner::<Agent>(&agent.metadata)]),
            ..ObjectMeta::default()
        },
        spec: Some(template),
        status: None,
    })
}

fn volumes(agent: &Agent, pool: &AgentPool, files: &[ProgramFile]) -> Vec<Volume> {
    let spec = pool.spec.workspace.as_ref();
    let own = || claim(agent, pool).map(|claim| claim.name_any());
    let workspace = match spec.and_then(|workspace| workspace.claim_name.clone()).or_else(own) {
        Some(claim_name) => Volume {
            name: "workspace".into(),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource { claim_name, read_only: None }),
            ..Volume::default()
        },
        None => scratch("workspace", WORKSPACE_SIZE, None),
    };
    let mut all = vec![workspace, scratch("shm", SHM_SIZE, Some("Memory"))];
    all.extend(own_volumes());
    all.extend(SCRATCH.iter().map(|(name, _, size)| scratch(name, size, None)));
    all.extend(files.iter().enumerate().map(|(at, file)| Volume {
        name: format!("file-{at}"),
        config_map: Some(ConfigMapVolumeSource {
            name: file.config_map_key_ref.name.clone(),
            items: Some(vec![KeyToPath { key: file.config_map_key_ref.key.clone(), path: FILE.into(), mode: None }]),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    }));
    all
}

/// What our two programs share, and what only the sidecar has.
fn own_volumes() -> Vec<Volume> {
    let token = ServiceAccountTokenProjection {
        audience: Some(crate::wire::GATEWAY_AUDIENCE.into()),
        expiration_seconds: Some(TOKEN_SECONDS),
        path: "token".into(),
    };
    let token = VolumeProjection { service_account_token: Some(token), ..VolumeProjection::default() };
    vec![
        scratch("spillway-bin", "32Mi", None),
        scratch("spillway-run", "1Mi", None),
        scratch("spillway-journal", "4Mi", Some("Memory")),
        scratch("spillway-data", "64Mi", None),
        Volume {
            name: "spillway-token".into(),
            // Readable for all in the one container that has it: the uids of the containers differ.
            projected: Some(ProjectedVolumeSource { default_mode: Some(0o444), sources: Some(vec![token]) }),
            ..Volume::default()
        },
        Volume {
            name: "spillway-ca".into(),
            config_map: Some(ConfigMapVolumeSource { name: names::CA_CONFIG_MAP.into(), ..ConfigMapVolumeSource::default() }),
            ..Volume::default()
        },
    ]
}

fn mounts(files: &[ProgramFile]) -> Vec<VolumeMount> {
    let mount = |name: &str, path: &str| VolumeMount { name: name.into(), mount_path: path.into(), ..VolumeMount::default() };
    let read = |name: &str, path: &str| VolumeMount { read_only: Some(true), ..mount(name, path) };
    let mut all = vec![mount("workspace", WORKSPACE), mount("shm", "/dev/shm"), mount("spillway-data", DATA)];
    // A socket on a mount that is read-only can be connected to and not replaced.
    all.extend([read("spillway-bin", BIN), read("spillway-run", RUN)]);
    all.extend(SCRATCH.iter().map(|(name, path, _)| mount(name, path)));
    all.extend((0..files.len()).map(|at| read(&format!("file-{at}"), &format!("{FILES}/{at}"))));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::AgentSpec;

    fn objects(extra: Value) -> (Agent, AgentPool) {
        let mut spec = json!({"type": "free", "agent": {"image": "x", "command": ["y"]}});
        if let (Some(spec), Value::Object(extra)) = (spec.as_object_mut(), extra) {
            spec.extend(extra);
        }
        let mut pool: AgentPool = serde_json::from_value(
            json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "AgentPool", "metadata": {"name": "p"}, "spec": spec}),
        )
        .expect("a pool");
        pool.metadata.uid = Some("pool-uid".into());
        let mut agent = Agent::new(
            "p-1",
            AgentSpec {
                pool_ref: Default::default(),
                display_name: None,
                sequence: None,
                parent_ref: None,
                manual: None,
                paused: None,
                resume_pause: None,
                hibernated: None,
                resources: None,
                external: None,
            },
        );
        agent.metadata.uid = Some("agent-uid".into());
        (agent, pool)
    }

    fn supervised() -> Supervised {
        let peer = k8s_openapi::api::networking::v1::NetworkPolicyPeer::default();
        Supervised {
            gateway: "10.0.0.1:8443".into(),
            peer,
            port: 8443,
            image: "spillway:dev".into(),
            pull_policy: "Never".into(),
            canaries: vec![],
        }
    }

    fn built(extra: Value) -> PodSpec {
        let (agent, pool) = objects(extra);
        pod(&agent, &pool, true, &supervised()).spec.expect("a spec")
    }

    #[test]
    fn meets_pod_security_restricted_and_mounts_no_token() {
        let spec = built(json!({}));
        let walls = spec.security_context.expect("pod walls");
        assert_eq!(
            (walls.run_as_non_root, walls.seccomp_profile.map(|profile| profile.type_)),
            (Some(true), Some("RuntimeDefault".into()))
        );
        assert_eq!(
            (spec.automount_service_account_token, spec.enable_service_links, spec.host_users),
            (Some(false), Some(false), Some(false))
        );
        let container = &spec.containers[0];
        let walls = container.security_context.as_ref().expect("container walls");
        assert_eq!((walls.allow_privilege_escalation, walls.read_only_root_filesystem), (Some(false), Some(true)));
        assert_eq!(walls.capabilities.as_ref().and_then(|all| all.drop.clone()), Some(vec!["ALL".into()]));
        for volume in spec.volumes.expect("volumes") {
            assert!(volume.secret.is_none(), "{}", volume.name);
            assert!(volume.empty_dir.is_none_or(|scratch| scratch.size_limit.is_some()), "{} has a size", volume.name);
        }
    }

    #[test]
    fn a_program_is_told_who_it_is_and_where_it_may_keep_what() {
        let told = |name: &str, agent: &Agent, pool: &AgentPool| {
            let all = environment(agent, pool);
            let mut found = all.into_iter().filter(|one| one.name == name);
            let one = found.next().unwrap_or_else(|| panic!("{name} is not set"));
            assert!(found.next().is_none(), "{name} is set twice");
            one
        };
        let (mut agent, pool) = objects(json!({"type": "drone"}));
        agent.metadata.namespace = Some("team".into());
        let id = told("SPILLWAY_AGENT_ID", &agent, &pool);
        let source = id.value_from.and_then(|from| from.field_ref).map(|field| field.field_path);
        assert_eq!((source.as_deref(), id.value), (Some("metadata.uid"), None), "the pod's uid is the agent's identity: status.podRef.uid");
        for (name, value) in [
            ("SPILLWAY_AGENT_NAME", "p-1"),
            ("SPILLWAY_AGENT_TYPE", "drone"),
            ("SPILLWAY_POOL", "p"),
            ("SPILLWAY_DATA_DIR", "/spillway/data"),
            ("SPILLWAY_CONTAINER_MODE", "true"),
        ] {
            assert_eq!(told(name, &agent, &pool).value.as_deref(), Some(value), "{name}");
        }
        // Agents of one storage have the same hash, others not.
        let hash = |agent: &Agent, pool: &AgentPool| told("SPILLWAY_STORAGE_HASH", agent, pool).value.unwrap_or_default();
        let other = Agent { metadata: ObjectMeta { name: Some("p-2".into()), ..agent.metadata.clone() }, ..agent.clone() };
        let elsewhere = Agent { metadata: ObjectMeta { namespace: Some("other".into()), ..agent.metadata.clone() }, ..agent.clone() };
        let own = hash(&agent, &pool);
        assert!(own.len() == 16 && own.bytes().all(|byte| byte.is_ascii_hexdigit()), "{own}");
        assert_eq!(own, hash(&agent, &pool), "it stays as it is");
        assert_ne!(own, hash(&other, &pool), "each has its own empty folder");
        assert_ne!(own, hash(&elsewhere, &pool), "a namespace's storage is its own");
        let (_, shared) = objects(json!({"type": "drone", "workspace": {"claimName": "c"}}));
        assert_eq!(hash(&agent, &shared), hash(&other, &shared), "they share a volume");
        assert_ne!(hash(&agent, &shared), hash(&elsewhere, &shared));
    }

    /// tests/chart-live.sh has the API server judge it, with the controller's own policies in force.
    #[test]
    fn the_chart_is_tried_with_a_pod_as_it_is_made() {
        let file = json!({"path": "a", "configMapKeyRef": {"name": "c", "key": "k"}});
        let (agent, pool) = objects(json!({
            "mode": "Chat",
            "agent": {"image": "x", "command": ["y"], "files": [file], "env": [{"name": "A", "value": "b"}]},
            "workspace": {"volumeClaimTemplate": {"accessModes": ["ReadWriteOnce"]}},
        }));
        let made = format!("{:#}\n", json!(pod(&agent, &pool, true, &supervised())));
        assert!(made == include_str!("../../../tests/agent-pod.json"), "tests/agent-pod.json is not what is made:\n{made}");
    }

    #[test]
    fn clients_find_the_first_model_api_of_their_protocol_and_no_key() {
        let entry = |name: &str, dialect: &str| json!({"name": name, "dialect": dialect, "origin": "https://models.example.org"});
        let (_, pool) = objects(json!({"models": [
            entry("gpt", "OpenAIResponses"), entry("claude", "Anthropic"), entry("other", "OpenAIChat"), entry("again", "Anthropic"),
        ]}));
        let text = |value: &str| value.to_owned();
        let expected = [
            ("ANTHROPIC_BASE_URL", text("http://127.0.0.1:4101/claude")),
            ("ANTHROPIC_API_KEY", text(PLACEHOLDER)),
            ("OPENAI_BASE_URL", text("http://127.0.0.1:4101/gpt/v1")),
            ("OPENAI_API_KEY", text(PLACEHOLDER)),
        ];
        assert_eq!(models(&pool), expected);
        assert_eq!(models(&objects(json!({})).1), []);
    }

    #[test]
    fn the_token_and_the_journal_are_the_sidecars_alone() {
        let spec = built(json!({}));
        let link = &spec.init_containers.as_ref().expect("a sidecar")[0];
        let mounted = |container: &Container| -> Vec<(String, bool)> {
            let mounts = container.volume_mounts.iter().flatten();
            mounts
                .map(|mount| (mount.name.clone(), mount.read_only == Some(true)))
                .filter(|(name, _)| name.starts_with("spillway-"))
                .collect()
        };
        let own = |name: &str, read_only: bool| (name.to_owned(), read_only);
        assert_eq!(mounted(&spec.containers[0]), [own("spillway-data", false), own("spillway-bin", true), own("spillway-run", true)]);
        assert!(mounted(link).contains(&own("spillway-token", true)) && mounted(link).contains(&own("spillway-journal", false)));
        assert_eq!(link.restart_policy.as_deref(), Some("Always"), "a native sidecar");
        let uid = |container: &Container| container.security_context.as_ref().and_then(|walls| walls.run_as_user);
        assert_eq!((uid(link), uid(&spec.containers[0])), (Some(LINK_UID), None), "the agent's is the pod's");
    }

    #[test]
    fn the_supervisor_starts_the_program_and_passes_on_what_the_pool_lists() {
        let words = |extra| built(extra).containers[0].command.clone().expect("a command").join(" ");
        assert_eq!(words(json!({})), "/spillway/bin/spillway-agent agent --home /home/agent/home -- y");
        let extra = json!({"mode": "Chat", "agent": {"image": "x", "command": ["sh", "-c", "a b"], "env": [{"name": "A", "value": "1"}]}});
        assert_eq!(words(extra), "/spillway/bin/spillway-agent agent --pass A --tty --home /home/agent/home -- sh -c a b");
    }

    #[test]
    fn limits_are_always_set_and_what_is_set_is_kept() {
        let resources = built(
            json!({"agent": {"image": "x", "command": ["y"], "resources": {"limits": {"memory": "64Mi"}, "requests": {"cpu": "5m"}}}}),
        )
        .containers[0]
            .resources
            .clone()
            .expect("resources");
        let (limits, requests) = (resources.limits.expect("limits"), resources.requests.expect("requests"));
        assert_eq!((limits["memory"].0.as_str(), limits["cpu"].0.as_str(), requests["cpu"].0.as_str()), ("64Mi", "1", "5m"));
        assert!(!requests.contains_key("memory"), "a default request of 128Mi would be above the limit that was set");
    }

    #[test]
    fn files_are_copied_below_home_or_the_workspace() {
        let file = |path: &str| json!({"path": path, "configMapKeyRef": {"name": "c", "key": "k"}});
        let spec =
            built(json!({"agent": {"image": "x", "command": ["y"], "files": [file(".codex/config.toml"), file("workspace/AGENTS.md")]}}));
        let container = &spec.containers[0];
        let words = container.command.clone().expect("a command").join(" ");
        assert_eq!(
            words,
            "/spillway/bin/spillway-agent agent --home /home/agent/home --file /spillway/files/0/content \
             /home/agent/home/.codex/config.toml --file /spillway/files/1/content /workspace/AGENTS.md -- y"
        );
        let mounts = container.volume_mounts.iter().flatten().filter(|mount| mount.name.starts_with("file-"));
        let mounts: Vec<_> = mounts.map(|mount| (mount.mount_path.as_str(), mount.read_only, mount.sub_path.as_deref())).collect();
        assert_eq!(mounts, [("/spillway/files/0", Some(true), None), ("/spillway/files/1", Some(true), None)]);
        let home = container.env.iter().flatten().find(|variable| variable.name == "HOME").and_then(|home| home.value.as_deref());
        assert_eq!(home, Some(HOME), "the folder that the supervisor makes");
    }

    #[test]
    fn a_chat_agent_has_a_terminal() {
        let container = &built(json!({"mode": "Chat"})).containers[0];
        assert_eq!((container.stdin, container.tty), (Some(true), Some(true)));
        assert_eq!(built(json!({})).containers[0].tty, None);
    }

    #[test]
    fn an_agent_made_by_hand_gets_finalizer_owner_and_labels() {
        let (agent, pool) = objects(json!({}));
        let patch = adoption(&agent, Some(&pool));
        assert_eq!(patch["metadata"]["finalizers"], json!([names::AGENT_FINALIZER]));
        assert_eq!(patch["metadata"]["ownerReferences"][0]["uid"], "pool-uid");
        assert_eq!(patch["metadata"]["labels"][names::TYPE_LABEL], "free");
        let mut half = agent.clone();
        half.metadata.finalizers = Some(vec![names::AGENT_FINALIZER.into()]);
        assert_eq!(adoption(&half, Some(&pool))["metadata"]["finalizers"], json!([names::AGENT_FINALIZER]), "once");
    }
}
