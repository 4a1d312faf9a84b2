//! The pod of a Toolset's bridge. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMapProjection, ConfigMapVolumeSource, Container, ContainerPort, EmptyDirVolumeSource, HTTPGetAction, KeyToPath,
    PersistentVolumeClaimVolumeSource, PodSecurityContext, PodSpec, PodTemplateSpec, Probe, ProjectedVolumeSource, ResourceRequirements,
    SeccompProfile, SecretVolumeSource, SecurityContext, ServiceAccountTokenProjection, Volume, VolumeMount, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;

use super::{BRIDGE_PORT, account_name};
use crate::api::toolset::AuditSink;
use crate::api::{Toolset, names};
use crate::controller::compute_defaults::{ComputeDefaults, complete};
use crate::controller::supervised::Supervised;
use crate::controller::toolset::upstream;
use crate::wire::{BRIDGE_AUDIENCE, CA_FILE};

/// Name of the container of the bridge and of the programs.
pub const BRIDGE_CONTAINER: &str = "bridge";
/// Name of the container that copies our executable.
const INSTALL_CONTAINER: &str = "install";
/// Our executable, in our own image.
const OWN_EXECUTABLE: &str = "/bin/spillway";
const BIN_DIR: &str = "/spillway/bin";
const DEFINITIONS_DIR: &str = "/spillway/definitions";
const CREDENTIALS_DIR: &str = "/spillway/credentials";
const CA_DIR: &str = "/spillway/ca";
const IDENTITY_DIR: &str = "/spillway/identity";
/// Where the kubelet mounts the token of a pod's ServiceAccount.
const SERVICE_ACCOUNT_DIR: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const WORK_DIR: &str = "/spillway/work";
const AUDIT_DIR: &str = "/spillway/audit";
const TMP_DIR: &str = "/tmp";
/// Port of /livez and /readyz.
const HEALTH_PORT: u16 = 8080;
/// The uid and gid of the bridge and of its programs: those of no agent.
const BRIDGE_UID: i64 = 10_003;
/// How long the token lives by which the bridge identifies itself. The kubelet renews it at four fifths.
const TOKEN_TTL_SECONDS: i64 = 3600;
/// How long the bridge may take to end. It ends running programs within seconds.
const TERMINATION_GRACE_SECONDS: i64 = 40;
/// Readable for the user of the container and for its group, which is the fsGroup of the pod.
const PRIVATE_MODE: i32 = 0o440;
/// Limits of a bridge whose Toolset sets none.
const DEFAULT_LIMITS: ComputeDefaults = [("cpu", "1"), ("memory", "1Gi"), ("ephemeral-storage", "4Gi")];
/// Requests of a bridge whose Toolset sets none. Without them Kubernetes would use the limits as requests.
const DEFAULT_REQUESTS: ComputeDefaults = [("cpu", "50m"), ("memory", "64Mi"), ("ephemeral-storage", "64Mi")];
const INSTALL_LIMITS: ComputeDefaults = [("cpu", "500m"), ("memory", "64Mi"), ("ephemeral-storage", "64Mi")];
const INSTALL_REQUESTS: ComputeDefaults = [("cpu", "5m"), ("memory", "16Mi"), ("ephemeral-storage", "16Mi")];
/// Scratch volumes: name, folder and size. The kubelet evicts a pod that exceeds them.
const BIN_VOLUME: (&str, &str, &str) = ("bin", BIN_DIR, "128Mi");
const SCRATCH_VOLUMES: [(&str, &str, &str); 2] = [("work", WORK_DIR, "2Gi"), ("tmp", TMP_DIR, "1Gi")];

/// The template of the pod. `definitions` names the ConfigMaps with their uids.
pub fn template(toolset: &Toolset, definitions: &str, supervised: &Supervised) -> PodTemplateSpec {
    let mut labels = names::toolset_labels(&toolset.name_any());
    labels.insert(names::MANAGED_BY_LABEL.to_owned(), names::MANAGED_BY.to_owned());
    let annotations = [("kubectl.kubernetes.io/default-container", BRIDGE_CONTAINER), (names::DEFINITIONS_ANNOTATION, definitions)];
    let annotations = annotations.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    PodTemplateSpec {
        metadata: Some(ObjectMeta { labels: Some(labels), annotations: Some(annotations), ..ObjectMeta::default() }),
        spec: Some(PodSpec {
            // The tools of an upstream need no image but ours.
            init_containers: toolset.spec.upstream.is_none().then(|| vec![install_container(supervised)]),
            containers: vec![bridge_container(toolset, supervised)],
            service_account_name: Some(account_name(toolset)),
            // Programs such as kubectl use the token of an account that the Toolset names. Ours has no permissions.
            automount_service_account_token: Some(toolset.spec.service_account_name.is_some()),
            enable_service_links: Some(false),
            termination_grace_period_seconds: Some(TERMINATION_GRACE_SECONDS),
            security_context: Some(PodSecurityContext {
                run_as_non_root: Some(true),
                run_as_user: Some(BRIDGE_UID),
                run_as_group: Some(BRIDGE_UID),
                fs_group: Some(BRIDGE_UID),
                fs_group_change_policy: Some("OnRootMismatch".into()),
                seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".into(), localhost_profile: None }),
                ..PodSecurityContext::default()
            }),
            volumes: Some(volumes(toolset)),
            ..PodSpec::default()
        }),
    }
}

fn install_container(supervised: &Supervised) -> Container {
    let words = [OWN_EXECUTABLE, "bridge", "install", BIN_DIR];
    Container {
        name: INSTALL_CONTAINER.into(),
        image: Some(supervised.image.clone()),
        image_pull_policy: Some(supervised.pull_policy.clone()),
        command: Some(words.map(str::to_owned).into()),
        resources: Some(ResourceRequirements {
            limits: Some(quantities(INSTALL_LIMITS)),
            requests: Some(quantities(INSTALL_REQUESTS)),
            ..ResourceRequirements::default()
        }),
        security_context: Some(security_context()),
        volume_mounts: Some(vec![mount(BIN_VOLUME.0, BIN_DIR)]),
        ..Container::default()
    }
}

fn bridge_container(toolset: &Toolset, supervised: &Supervised) -> Container {
    let (image, pull_policy) = match toolset.spec.upstream {
        Some(_) => (Some(supervised.image.clone()), Some(supervised.pull_policy.clone())),
        None => (toolset.spec.image.clone(), None),
    };
    let port = |name: &str, number: u16| ContainerPort {
        name: Some(name.into()),
        container_port: number.into(),
        protocol: Some("TCP".into()),
        ..ContainerPort::default()
    };
    Container {
        name: BRIDGE_CONTAINER.into(),
        image,
        image_pull_policy: pull_policy,
        command: Some(command(toolset)),
        ports: Some(vec![port("bridge", BRIDGE_PORT), port("http", HEALTH_PORT)]),
        readiness_probe: Some(Probe { period_seconds: Some(5), ..probe("/readyz") }),
        liveness_probe: Some(Probe { period_seconds: Some(10), failure_threshold: Some(6), ..probe("/livez") }),
        resources: Some(complete(toolset.spec.resources.as_ref(), DEFAULT_LIMITS, DEFAULT_REQUESTS)),
        security_context: Some(security_context()),
        // The last lines of the log say why a bridge ended. The condition Ready shows them.
        termination_message_policy: Some("FallbackToLogsOnError".into()),
        volume_mounts: Some(mounts(toolset)),
        ..Container::default()
    }
}

fn command(toolset: &Toolset) -> Vec<String> {
    let spec = &toolset.spec;
    let executable = if spec.upstream.is_some() { OWN_EXECUTABLE.to_owned() } else { format!("{BIN_DIR}/spillway") };
    let mut words = vec![executable, "bridge".to_owned()];
    let mut option = |name: &str, value: String| words.extend([format!("--{name}"), value]);
    match &spec.upstream {
        Some(upstream) => option("upstream-config", upstream::argument(upstream)),
        None => option("definitions", DEFINITIONS_DIR.to_owned()),
    }
    option("listen", format!("0.0.0.0:{BRIDGE_PORT}"));
    option("gateway-ca", format!("{CA_DIR}/{CA_FILE}"));
    option("identity-token", format!("{IDENTITY_DIR}/token"));
    option("health-listen", format!("0.0.0.0:{HEALTH_PORT}"));
    for path in spec.allowed_commands() {
        option("allow", path.clone());
    }
    for MountedCredential { name, key, secret: _ } in credentials(toolset) {
        option("credential", format!("{name}={CREDENTIALS_DIR}/{name}/{key}"));
    }
    if spec.service_account_name.is_some() {
        option("service-account", SERVICE_ACCOUNT_DIR.to_owned());
    }
    option("max-seconds", spec.max_execution_seconds().to_string());
    if spec.upstream.is_none() {
        option("work-folder", WORK_DIR.to_owned());
    }
    option("log-format", "json".to_owned());
    if audit_claim(toolset).is_some() {
        option("audit-file", format!("{AUDIT_DIR}/audit.jsonl"));
    }
    if spec.upstream.is_none() {
        words.push("--require-sandbox".to_owned());
    }
    words
}

/// A credential in a file of the pod.
struct MountedCredential<'a> {
    name: &'a str,
    secret: &'a str,
    key: &'a str,
}

/// Those of programs, or that of the upstream.
fn credentials(toolset: &Toolset) -> Vec<MountedCredential<'_>> {
    let of_programs = toolset.spec.credentials.iter().flatten();
    let of_programs = of_programs.map(|one| MountedCredential { name: &one.name, secret: &one.secret_ref.name, key: one.key() });
    let of_upstream = toolset.spec.upstream.iter().filter_map(|upstream| upstream.credentials_ref.as_ref());
    let of_upstream = of_upstream.map(|one| MountedCredential { name: upstream::CREDENTIAL_NAME, secret: &one.name, key: one.key() });
    of_programs.chain(of_upstream).collect()
}

/// The PersistentVolumeClaim of the audit log.
fn audit_claim(toolset: &Toolset) -> Option<&str> {
    let audit = toolset.spec.audit.as_ref()?;
    match audit.sink {
        AuditSink::Stdout => None,
        AuditSink::PersistentVolumeClaim => audit.claim_name.as_deref(),
    }
}

/// Name of the volume of the credential at this place of the list. A credential's own name may be too long for a volume.
fn credential_volume(place: usize) -> String {
    format!("credential-{place}")
}

fn mounts(toolset: &Toolset) -> Vec<VolumeMount> {
    let read = |name: &str, path: &str| VolumeMount { read_only: Some(true), ..mount(name, path) };
    let has_programs = toolset.spec.upstream.is_none();
    let mut all = Vec::new();
    if has_programs {
        all.extend([read(BIN_VOLUME.0, BIN_DIR), read("definitions", DEFINITIONS_DIR)]);
    }
    all.extend([read("ca", CA_DIR), read("identity", IDENTITY_DIR)]);
    if has_programs {
        all.extend(SCRATCH_VOLUMES.map(|(name, path, _)| mount(name, path)));
    }
    for (place, credential) in credentials(toolset).iter().enumerate() {
        all.push(read(&credential_volume(place), &format!("{CREDENTIALS_DIR}/{}", credential.name)));
    }
    all.extend(audit_claim(toolset).map(|_| mount("audit", AUDIT_DIR)));
    all
}

fn volumes(toolset: &Toolset) -> Vec<Volume> {
    let config_map = |name: &str| VolumeProjection {
        config_map: Some(ConfigMapProjection { name: name.to_owned(), ..ConfigMapProjection::default() }),
        ..VolumeProjection::default()
    };
    let projected = |name: &str, mode: Option<i32>, sources: Vec<VolumeProjection>| Volume {
        name: name.to_owned(),
        projected: Some(ProjectedVolumeSource { default_mode: mode, sources: Some(sources) }),
        ..Volume::default()
    };
    let empty = |(name, _, size): (&str, &str, &str)| Volume {
        name: name.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource { size_limit: Some(Quantity(size.to_owned())), medium: None }),
        ..Volume::default()
    };
    let token = ServiceAccountTokenProjection {
        audience: Some(BRIDGE_AUDIENCE.into()),
        expiration_seconds: Some(TOKEN_TTL_SECONDS),
        path: "token".into(),
    };
    let token = VolumeProjection { service_account_token: Some(token), ..VolumeProjection::default() };
    let ca = ConfigMapVolumeSource { name: names::CA_CONFIG_MAP.into(), ..ConfigMapVolumeSource::default() };
    let definitions = toolset.spec.definitions().iter().map(|entry| config_map(&entry.config_map_ref.name)).collect();
    let has_programs = toolset.spec.upstream.is_none();
    let mut all = Vec::new();
    if has_programs {
        all.extend([empty(BIN_VOLUME), projected("definitions", None, definitions)]);
    }
    all.extend([
        Volume { name: "ca".into(), config_map: Some(ca), ..Volume::default() },
        projected("identity", Some(PRIVATE_MODE), vec![token]),
    ]);
    if has_programs {
        all.extend(SCRATCH_VOLUMES.map(empty));
    }
    for (place, credential) in credentials(toolset).iter().enumerate() {
        let key = credential.key.to_owned();
        all.push(Volume {
            name: credential_volume(place),
            secret: Some(SecretVolumeSource {
                secret_name: Some(credential.secret.to_owned()),
                default_mode: Some(PRIVATE_MODE),
                items: Some(vec![KeyToPath { key: key.clone(), path: key, mode: None }]),
                optional: None,
            }),
            ..Volume::default()
        });
    }
    all.extend(audit_claim(toolset).map(|claim| Volume {
        name: "audit".into(),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource { claim_name: claim.to_owned(), read_only: None }),
        ..Volume::default()
    }));
    all
}

fn mount(name: &str, path: &str) -> VolumeMount {
    VolumeMount { name: name.into(), mount_path: path.into(), ..VolumeMount::default() }
}

fn quantities(all: ComputeDefaults) -> BTreeMap<String, Quantity> {
    all.into_iter().map(|(name, value)| (name.to_owned(), Quantity(value.to_owned()))).collect()
}

fn probe(path: &str) -> Probe {
    let get = HTTPGetAction { path: Some(path.into()), port: IntOrString::String("http".into()), ..HTTPGetAction::default() };
    Probe { http_get: Some(get), timeout_seconds: Some(5), ..Probe::default() }
}

fn security_context() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        run_as_non_root: Some(true),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".into()]), add: None }),
        ..SecurityContext::default()
    }
}
