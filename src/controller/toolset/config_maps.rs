//! Reads the ConfigMaps with the definitions of a Toolset, and remembers their judgement. It holds one ConfigMap at a time, and no content
//! afterwards.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio::sync::Semaphore;

use super::definitions::{ConfigMapFacts, DefinitionsJudge, DefinitionsProblem, allowed, judge};
use super::upstream;
use crate::api::conditions::reasons;
use crate::api::{Toolset, ToolsetSpec};
use crate::cluster::{Error, ObjectKey};
use crate::controller::Context;

/// Threads that judge definitions at once. Compiling the patterns of a definition takes processor time.
static JUDGING_THREADS: Semaphore = Semaphore::const_new(2);
/// How long judging the definitions of one Toolset may take. It usually takes milliseconds.
const JUDGING_TIMEOUT: Duration = Duration::from_secs(10);

/// Uid and resourceVersion of a ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MapVersion {
    uid: String,
    version: String,
}

impl MapVersion {
    /// `None`: the metadata has none, so that the content must be read.
    fn of(metadata: &ObjectMeta) -> Option<Self> {
        Some(Self { uid: metadata.uid.clone()?, version: metadata.resource_version.clone()? })
    }
}

/// Everything on which a judgement depends.
#[derive(Clone, Debug, PartialEq, Eq)]
struct JudgedVersions {
    toolset_uid: Option<String>,
    generation: Option<i64>,
    /// In the order of `spec.definitions`; `None`: the ConfigMap does not exist.
    maps: Vec<Option<MapVersion>>,
}

/// The last judgement of the definitions of one Toolset.
#[derive(Debug, Default)]
pub struct RememberedJudgement {
    last: Option<(JudgedVersions, Result<(), DefinitionsProblem>)>,
    uids: String,
}

impl RememberedJudgement {
    /// The judged ConfigMaps that do not change, with their uids, as `NAME=UID,NAME=UID`.
    pub fn uids(&self) -> &str {
        &self.uids
    }
}

/// Judges the definitions of a Toolset. Reads the content of its ConfigMaps only if something changed since the last judgement.
pub async fn read_and_judge(
    toolset: &Toolset,
    key: &ObjectKey,
    remembered: &mut RememberedJudgement,
    context: &Context,
) -> Result<Result<(), DefinitionsProblem>, Error> {
    if let Some((versions, judgement)) = &remembered.last
        && stored_versions(toolset, key, context).await?.as_ref() == Some(versions)
    {
        return Ok(judgement.clone());
    }
    *remembered = RememberedJudgement::default();
    let api = context.api::<ConfigMap>(&key.namespace);
    let (mut facts, mut maps, mut uids, mut complete) = (Vec::new(), Vec::new(), Vec::new(), true);
    let mut judged = Some(DefinitionsJudge::new(allowed(&toolset.spec)));
    let mut spent = Duration::ZERO;
    for entry in toolset.spec.definitions() {
        let map = api.get_opt(&entry.config_map_ref.name).await.map_err(Error::of("reading the definitions of a Toolset"))?;
        let version = map.as_ref().map(|map| MapVersion::of(&map.metadata));
        complete &= version != Some(None);
        maps.push(version.flatten());
        // A bridge takes over a changed ConfigMap by itself, unless the kubelet shows it no change.
        let is_fixed = entry.mutable != Some(true) || map.as_ref().is_some_and(|map| map.immutable == Some(true));
        let uid = map.as_ref().and_then(|map| map.metadata.uid.as_deref()).filter(|_| is_fixed);
        uids.extend(uid.map(|uid| format!("{}={uid}", entry.config_map_ref.name)));
        facts.push((entry.clone(), map.as_ref().map(ConfigMapFacts::of)));
        if let Some(map) = map
            && let Some(judge) = judged.take()
        {
            judged = judge_map(judge, map, &mut spent).await;
        }
    }
    remembered.uids = uids.join(",");
    let of_upstream = match &toolset.spec.upstream {
        Some(_) => Some(judge_upstream(&toolset.spec).await),
        None => None,
    };
    let definitions = || match judged {
        Some(judge) => judge.finish(),
        None => Err(fault_of_ours()),
    };
    let judgement = of_upstream.unwrap_or_else(|| judge(&facts).and_then(|()| definitions()));
    // Also one that took too long: it would take as long again.
    if complete {
        remembered.last = Some((versions_of(toolset, maps), judgement.clone()));
    }
    Ok(judgement)
}

fn fault_of_ours() -> DefinitionsProblem {
    let message = "the definitions cannot be judged: loading them ends with a fault of Spillway".to_owned();
    DefinitionsProblem { reason: reasons::INVALID_DEFINITION, message }
}

/// Judges `spec.upstream`, which has patterns too, on a thread that may be busy.
async fn judge_upstream(spec: &ToolsetSpec) -> Result<(), DefinitionsProblem> {
    let spec = spec.clone();
    let Ok(permit) = JUDGING_THREADS.acquire().await else { return Err(fault_of_ours()) };
    let judging = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        spec.upstream.as_ref().map_or(Ok(()), |upstream| upstream::judge(&spec, upstream))
    });
    judging.await.unwrap_or_else(|_| Err(fault_of_ours()))
}

/// Judges a ConfigMap on a thread that may be busy. `spent`: the time that judging has taken; waiting does not count. `None`: it panicked.
async fn judge_map(mut judge: DefinitionsJudge, map: ConfigMap, spent: &mut Duration) -> Option<DefinitionsJudge> {
    let permit = JUDGING_THREADS.acquire().await.ok()?;
    let before = *spent;
    let judging = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        let began = Instant::now();
        judge.judge(&map, || before + began.elapsed() > JUDGING_TIMEOUT);
        (judge, before + began.elapsed())
    });
    let (judge, after) = judging.await.ok()?;
    *spent = after;
    Some(judge)
}

fn versions_of(toolset: &Toolset, maps: Vec<Option<MapVersion>>) -> JudgedVersions {
    JudgedVersions { toolset_uid: toolset.metadata.uid.clone(), generation: toolset.metadata.generation, maps }
}

/// The versions that are stored now. `None`: the metadata of a ConfigMap has no version.
async fn stored_versions(toolset: &Toolset, key: &ObjectKey, context: &Context) -> Result<Option<JudgedVersions>, Error> {
    let api = context.api::<ConfigMap>(&key.namespace);
    let mut maps = Vec::new();
    for entry in toolset.spec.definitions() {
        let stored = api
            .get_metadata_opt(&entry.config_map_ref.name)
            .await
            .map_err(Error::of("reading the metadata of the definitions of a Toolset"))?;
        match stored.map(|stored| MapVersion::of(&stored.metadata)) {
            None => maps.push(None),
            Some(Some(version)) => maps.push(Some(version)),
            Some(None) => return Ok(None),
        }
    }
    Ok(Some(versions_of(toolset, maps)))
}
