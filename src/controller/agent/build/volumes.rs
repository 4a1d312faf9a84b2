//! The volumes of an agent's pod, their mounts, and the agent's own PersistentVolumeClaim. Names no container.

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, EmptyDirVolumeSource, KeyToPath, PersistentVolumeClaim, PersistentVolumeClaimVolumeSource,
    ProjectedVolumeSource, ServiceAccountTokenProjection, Volume, VolumeMount, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use super::{
    BIN_DIR, DATA_DIR, FILE_NAME, FILES_DIR, FOLDER_VOLUME_DIR, MIRROR_DIR, RUN_DIR, SCRATCH_VOLUMES, SHM_SIZE, TOKEN_TTL_SECONDS,
    WORKSPACE_DIR, WORKSPACE_SIZE,
};
use crate::api::agent_pool::ProgramFile;
use crate::api::owner::owner;
use crate::api::{Agent, AgentPool, names};

/// The volume with the mirror of the repository, or with what the steps keep about a copy, in pools whose items have changesets. It is
/// as large as a workspace.
const MIRROR_VOLUME: &str = "spillway-mirror";
/// The volume with the folder of the pool. Only the sidecar mounts it.
const FOLDER_VOLUME: &str = "spillway-folder";

fn claim_volume(name: &str, claim_name: String) -> Volume {
    let source = PersistentVolumeClaimVolumeSource { claim_name, read_only: None };
    Volume { name: name.into(), persistent_volume_claim: Some(source), ..Volume::default() }
}

fn empty_dir_volume(name: &str, size: &str, medium: Option<&str>) -> Volume {
    let volume = EmptyDirVolumeSource { size_limit: Some(Quantity(size.into())), medium: medium.map(str::to_owned) };
    Volume { name: name.into(), empty_dir: Some(volume), ..Volume::default() }
}

/// The agent's own PersistentVolumeClaim, if its pool has a template. The Agent owns it, so both are deleted together.
/// The storage class decides whether the data is kept.
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

pub(super) fn volumes(agent: &Agent, pool: &AgentPool, files: &[ProgramFile]) -> Vec<Volume> {
    let spec = pool.spec.workspace.as_ref();
    let own = || claim(agent, pool).map(|claim| claim.name_any());
    let workspace = match spec.and_then(|workspace| workspace.claim_name.clone()).or_else(own) {
        Some(claim_name) => claim_volume("workspace", claim_name),
        None => empty_dir_volume("workspace", WORKSPACE_SIZE, None),
    };
    let mut all = vec![workspace, empty_dir_volume("shm", SHM_SIZE, Some("Memory"))];
    all.extend(own_volumes());
    all.extend(pool.spec.changeset().map(|_| empty_dir_volume(MIRROR_VOLUME, WORKSPACE_SIZE, None)));
    all.extend(pool.spec.changed_folder().map(|folder| claim_volume(FOLDER_VOLUME, folder.claim_name.clone())));
    all.extend(SCRATCH_VOLUMES.iter().map(|(name, _, size)| empty_dir_volume(name, size, None)));
    all.extend(files.iter().enumerate().map(|(at, file)| Volume {
        name: format!("file-{at}"),
        config_map: Some(ConfigMapVolumeSource {
            name: file.config_map_key_ref.name.clone(),
            items: Some(vec![KeyToPath { key: file.config_map_key_ref.key.clone(), path: FILE_NAME.into(), mode: None }]),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    }));
    all
}

/// Volumes that our two programs share, and those of the sidecar alone.
fn own_volumes() -> Vec<Volume> {
    let token = ServiceAccountTokenProjection {
        audience: Some(crate::wire::GATEWAY_AUDIENCE.into()),
        expiration_seconds: Some(TOKEN_TTL_SECONDS),
        path: "token".into(),
    };
    let token = VolumeProjection { service_account_token: Some(token), ..VolumeProjection::default() };
    vec![
        empty_dir_volume("spillway-bin", "32Mi", None),
        empty_dir_volume("spillway-run", "1Mi", None),
        empty_dir_volume("spillway-journal", "4Mi", Some("Memory")),
        empty_dir_volume("spillway-data", "64Mi", None),
        Volume {
            name: "spillway-token".into(),
            // Readable for every user of the sidecar, the only container that mounts it: the containers have different
            // uids.
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

/// The mount of the pool's folder in the sidecar.
pub(super) fn folder_mount(pool: &AgentPool) -> Option<VolumeMount> {
    pool.spec.changed_folder()?;
    Some(VolumeMount { name: FOLDER_VOLUME.into(), mount_path: FOLDER_VOLUME_DIR.into(), ..VolumeMount::default() })
}

pub(super) fn mounts(pool: &AgentPool, files: &[ProgramFile]) -> Vec<VolumeMount> {
    let mount = |name: &str, path: &str| VolumeMount { name: name.into(), mount_path: path.into(), ..VolumeMount::default() };
    let read = |name: &str, path: &str| VolumeMount { read_only: Some(true), ..mount(name, path) };
    let mut all = vec![mount("workspace", WORKSPACE_DIR), mount("shm", "/dev/shm"), mount("spillway-data", DATA_DIR)];
    // A program can connect to a socket on a read-only mount, and cannot replace it.
    all.extend([read("spillway-bin", BIN_DIR), read("spillway-run", RUN_DIR)]);
    all.extend(pool.spec.changeset().map(|_| mount(MIRROR_VOLUME, MIRROR_DIR)));
    all.extend(SCRATCH_VOLUMES.iter().map(|(name, path, _)| mount(name, path)));
    all.extend((0..files.len()).map(|at| read(&format!("file-{at}"), &format!("{FILES_DIR}/{at}"))));
    all
}
