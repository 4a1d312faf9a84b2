//! Agents outside the cluster: creates an Agent for a process that registers, and adapts the settings and reports of
//! such agents.
//!
//! The gateway checks with Kubernetes, for this call or a moment before, that the user may register agents of the pool.
//! Invariants: no more agents are alive than the pool allows, however often users ask; a pool that accepts none gets
//! none; and claims of a process, which no sidecar of ours vouches for, affect no other agent.

use std::time::Duration;

use kube::ResourceExt;
use kube::api::ListParams;

use super::agent_creation::{creation_refusal, ended_or_deleting, idempotency_key};
use super::caller::Caller;
use super::work::common::turn;
use crate::api::agent_pool::Dialect as ApiDialect;
use crate::api::names::managers;
use crate::api::{Agent, AgentPool};
use crate::cluster::ObjectKey;
use crate::cluster::clock::BootTime;
use crate::cluster::{Class, Error, calls};
use crate::controller::{AgentObject, Context, agent_pool, capacity};
use crate::policy::children;
use crate::wire::agent::{Report, Sandbox, Settings, WorkSettings};
use crate::wire::command::CommandCounts;
use crate::wire::external::{Enrol, Enrolled, ModelEntry};
use crate::wire::meter::Dialect;
use crate::wire::sandbox::{AGENT_STRICT, LANDLOCK, POD_TIER, SandboxRefusals};
use crate::wire::{Code, Refusal};

/// The sandbox tier of an agent outside the cluster: no known isolation.
const EXTERNAL_SANDBOX_TIER: &str = "External";
const MISSING_GUARANTEES: [&str; 4] = [POD_TIER, "NetworkPolicy", LANDLOCK, AGENT_STRICT];
/// The longest report interval that is accepted, in seconds. At least three intervals pass before silence counts, so a
/// process must not choose a longer one.
const MAX_REPORT_PERIOD_SECONDS: u32 = 60;

/// The sandbox of an agent outside the cluster.
pub fn sandbox() -> Sandbox {
    Sandbox { tier: EXTERNAL_SANDBOX_TIER.to_owned(), missing: MISSING_GUARANTEES.map(str::to_owned).to_vec(), unavailable: None }
}

/// The settings for an agent outside the cluster: those of a pod without the commands that a pool runs in pods, because
/// the owner of a machine chooses what runs there. There is no NetworkPolicy to check, and items have no changesets.
pub fn settings(settings: Settings) -> Settings {
    Settings {
        chat: false,
        canaries: Vec::new(),
        drain_hook: Vec::new(),
        warn_hook: Vec::new(),
        checkpoint_hook: Vec::new(),
        preflight_command: Vec::new(),
        preflight_seconds: None,
        work: settings.work.map(|work| WorkSettings { changeset: None, ..work }),
        ..settings
    }
}

/// The parts of a report that are accepted. The report interval is bounded. Reachability is dropped, because no
/// NetworkPolicy isolates the process. Counts of hanging commands are dropped: these commands do not run on our nodes
/// and must not stop the commands of others. So is what a sandbox refused: there is no sandbox.
pub fn sanitize_report(report: Report) -> Report {
    let period_seconds = report.period_seconds.min(MAX_REPORT_PERIOD_SECONDS);
    let (refused, unavailable) = (SandboxRefusals::default(), None);
    Report { period_seconds, reachable: Vec::new(), commands: CommandCounts::default(), refused, unavailable, ..report }
}

/// Creates an Agent for a process outside the cluster. The same user and key get the same Agent.
pub async fn enrol(caller: &Caller, key: Option<&str>, request: Enrol, context: &Context) -> Result<Enrolled, Refusal> {
    let no_user = || Refusal::new(Code::NotAllowed, "only processes outside the cluster may make this call");
    let external = caller.external.as_ref().ok_or_else(no_user)?;
    let key = idempotency_key(key)?;
    let namespace = &caller.key.namespace;
    let stored = context.stores.pool(namespace, &external.pool);
    let pool = stored.as_ref().and_then(|pool| pool.0.as_ref().ok()).filter(|pool| pool.metadata.deletion_timestamp.is_none());
    let Some(pool) = pool else {
        return Err(Refusal::new(Code::NotAllowed, format!("AgentPool/{} does not exist in namespace {namespace}", external.pool)));
    };
    let most = allowed(pool)?;
    if let Some(words) = capacity::project_refusal(namespace, &context.stores) {
        return Err(Refusal::new(Code::LimitReached, words));
    }
    let wanted = agent_pool::external_agent(pool, &external.user, key, request.display_name.as_deref());
    let name = wanted.name_any();
    // One at a time for one pool: two concurrent calls could both see the last free place.
    let one = context.live.spawn_lock(&pool.uid().unwrap_or_default());
    let Ok(mut asked) = one.try_lock_owned() else {
        return Err(Refusal::new(Code::TooManyCalls, "another agent of this pool is being registered; try again").retry_after(1));
    };
    // Each attempt counts, whatever its result: the Agents of a full pool are listed no more often than agents may be
    // created.
    asked.retain(|time| time.elapsed() < children::CHILD_RATE_WINDOW);
    if let Some(wait) = children::wait(asked.iter().map(|time| time.elapsed()), most) {
        return Err(too_fast(wait, most, pool));
    }
    asked.push(BootTime::now());
    let _turn = turn(namespace, context).await?;
    let unavailable = |error: Error| creation_refusal(&error, caller);
    let api = context.api::<Agent>(namespace);
    let listed = context.api::<AgentObject>(namespace).list(&of_pool(pool)).await;
    let listed = listed.map_err(Error::of("listing a pool's Agents")).map_err(unavailable)?.items;
    let there: Vec<&Agent> =
        listed.iter().filter_map(|agent| agent.0.as_ref().ok()).filter(|agent| agent.spec.external.is_some()).collect();
    if let Some(known) = there.iter().find(|agent| agent.name_any() == name) {
        return existing_enrolment(known, &wanted, pool);
    }
    let living = u32::try_from(there.iter().filter(|agent| !ended_or_deleting(agent)).count()).unwrap_or(u32::MAX);
    check_limit(living, most, pool)?;
    let now = jiff::Timestamp::now();
    let ages = there.iter().filter_map(|agent| Duration::try_from(now.duration_since(agent.creation_timestamp()?.0)).ok());
    // Agents that the previous leader created count too.
    if let Some(wait) = children::wait(ages, most) {
        return Err(too_fast(wait, most, pool));
    }
    // Confirmed with the API server: if two replicas believe that they lead, only one creates agents.
    context.leadership.confirm().await.map_err(unavailable)?;
    let stored = match calls::create(&api, &wanted, managers::GOVERNOR).await {
        Ok(stored) => stored,
        // A create request that timed out, here or in the previous leader, may arrive late.
        Err(error) if error.class() == Class::AlreadyExists => {
            let stored = api.get(&name).await.map_err(Error::of("reading an Agent that is there already")).map_err(unavailable)?;
            return existing_enrolment(&stored, &wanted, pool);
        }
        Err(error) => return Err(unavailable(error)),
    };
    // The API server silently drops unknown fields. Without the field this would be an agent with a pod.
    if stored.spec.external.is_none() {
        let uid = stored.uid().unwrap_or_default();
        let _ = calls::delete(&api, &name, &uid, None).await; // the controller of the pool does the rest
        let message = "the API server drops spec.external of Agents: the CRDs are older than this operator; apply the CRDs of this version";
        return Err(Refusal::new(Code::LimitReached, message));
    }
    tracing::info!(%namespace, pool = %external.pool, agent = %name, user = %external.user, "an agent outside the cluster is registered");
    context.wake.agent(&ObjectKey { namespace: namespace.clone(), name });
    Ok(enrolled(&stored, pool))
}

/// The number of agents outside the cluster that a pool accepts.
fn allowed(pool: &AgentPool) -> Result<u32, Refusal> {
    let most = pool.spec.external.as_ref().and_then(|external| u32::try_from(external.max_agents).ok());
    most.ok_or_else(|| {
        let message = format!("AgentPool/{} takes no agents from outside the cluster (spec.external)", pool.name_any());
        Refusal::new(Code::NotAllowed, message)
    })
}

/// All Agents of a pool, whatever their labels are.
fn of_pool(pool: &AgentPool) -> ListParams {
    ListParams::default().fields(&format!("spec.poolRef.name={}", pool.name_any()))
}

/// Answers with the Agent that already exists under this name, if the same request created it.
fn existing_enrolment(known: &Agent, wanted: &Agent, pool: &AgentPool) -> Result<Enrolled, Refusal> {
    let asked = |agent: &Agent| (agent.spec.pool_ref.clone(), agent.spec.external.clone(), agent.spec.display_name.clone());
    if asked(known) != asked(wanted) {
        return Err(Refusal::new(Code::KeyReused, "this Idempotency-Key was used for another agent").field("Idempotency-Key"));
    }
    if ended_or_deleting(known) {
        return Err(Refusal::new(Code::AgentEnded, "this agent has ended: register a new agent with another Idempotency-Key"));
    }
    Ok(enrolled(known, pool))
}

/// Whether one more agent is allowed.
fn check_limit(living: u32, most: u32, pool: &AgentPool) -> Result<(), Refusal> {
    if living < most {
        return Ok(());
    }
    let message = format!(
        "AgentPool/{} has {living} living agents outside the cluster and allows {most} (spec.external.maxAgents): end one with `kubectl \
         spillway rm`, or wait until Spillway gives up a silent one",
        pool.name_any()
    );
    Err(Refusal::new(Code::LimitReached, message).limit(most.into(), living.into()))
}

/// Refuses an agent because too many were requested within a minute, even if few of them are alive.
fn too_fast(wait: Duration, most: u32, pool: &AgentPool) -> Refusal {
    let (rate, seconds) = (children::rate(most), wait.as_secs().saturating_add(1));
    let message = format!(
        "{rate} agents outside the cluster were requested within a minute, and AgentPool/{} allows no more: the limit is twice \
         spec.external.maxAgents ({most}), and at least 10; try again in {seconds} s",
        pool.name_any()
    );
    Refusal::new(Code::TooManyCalls, message).retry_after(u32::try_from(seconds).unwrap_or(u32::MAX))
}

fn enrolled(agent: &Agent, pool: &AgentPool) -> Enrolled {
    let dialect = |dialect| match dialect {
        ApiDialect::Anthropic => Dialect::Anthropic,
        ApiDialect::OpenAIChat => Dialect::OpenAIChat,
        ApiDialect::OpenAIResponses => Dialect::OpenAIResponses,
        ApiDialect::Gemini => Dialect::Gemini,
    };
    let models = pool.spec.models.iter().flatten().map(|entry| ModelEntry { name: entry.name.clone(), dialect: dialect(entry.dialect) });
    Enrolled { agent: agent.name_any(), uid: agent.uid().unwrap_or_default(), type_: pool.spec.type_.clone(), models: models.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::token::ExternalUser;
    use crate::controller::fake::{self, Leader, TEAM};
    use crate::governor::calls;
    use crate::wire::access::Call;
    use serde_json::json;

    fn pool(extra: serde_json::Value) -> AgentPool {
        let mut spec = json!({"type": "worker", "agent": {"image": "x", "command": ["y"]}});
        spec.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
        let object = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "AgentPool", "metadata": {"name": "p", "namespace": "n", "uid": "pool"}, "spec": spec});
        serde_json::from_value(object).expect("a pool")
    }

    #[test]
    fn a_pool_that_says_nothing_takes_none_and_no_pool_takes_more_than_it_says() {
        let refusal = allowed(&pool(json!({}))).expect_err("none");
        assert!(refusal.code == Code::NotAllowed && refusal.message.contains("spec.external"), "{refusal}");
        let pool = pool(json!({"external": {"maxAgents": 3}}));
        assert_eq!(allowed(&pool), Ok(3));
        assert_eq!(check_limit(2, 3, &pool), Ok(()));
        let refusal = check_limit(3, 3, &pool).expect_err("full");
        assert_eq!((refusal.code, refusal.limit, refusal.current), (Code::LimitReached, Some(3), Some(3)));
        assert!(refusal.message.contains("spec.external.maxAgents"), "{refusal}");
        let refusal = too_fast(Duration::from_secs(30), 3, &pool);
        assert_eq!((refusal.code, refusal.retry_after_seconds), (Code::TooManyCalls, Some(31)));
    }

    #[test]
    fn a_repetition_finds_its_own_agent_and_nobody_elses() {
        let pool = pool(json!({"external": {"maxAgents": 3}, "models": [
            {"name": "claude", "dialect": "Anthropic", "origin": "https://models.example.org"}]}));
        let mut made = agent_pool::external_agent(&pool, "alice", "k", Some("laptop"));
        made.metadata.uid = Some("u".into());
        let same = agent_pool::external_agent(&pool, "alice", "k", Some("laptop"));
        let found = existing_enrolment(&made, &same, &pool).expect("the same");
        assert_eq!((found.agent, found.uid.as_str(), found.type_.as_str()), (made.name_any(), "u", "worker"));
        assert_eq!(found.models, [ModelEntry { name: "claude".into(), dialect: Dialect::Anthropic }]);
        let other = agent_pool::external_agent(&pool, "alice", "k", Some("desktop"));
        assert_eq!(existing_enrolment(&made, &other, &pool).expect_err("another").code, Code::KeyReused);
        made.status = Some(serde_json::from_value(json!({"phase": "Stopped"})).expect("a status"));
        assert_eq!(existing_enrolment(&made, &same, &pool).expect_err("over").code, Code::AgentEnded);
    }

    fn caller(user: &str, uid: &str, agent: &str) -> Caller {
        let external = Some(ExternalUser { user: user.into(), pool: "p".into(), enrols: false });
        Caller { key: ObjectKey { namespace: TEAM.into(), name: agent.into() }, uid: uid.into(), gateway: "g".into(), external }
    }

    fn stored_pool(external: serde_json::Value) -> serde_json::Value {
        fake::object("AgentPool", "p", json!({"type": "worker", "agent": {"image": "x", "command": ["y"]}, "external": external}))
    }

    #[tokio::test]
    async fn as_many_live_as_the_pool_says_whoever_asks_and_how_often() {
        let leader = Leader::of(&[stored_pool(json!({"maxAgents": 2}))]);
        let asks = async |user: &str, key: &str| {
            let request = Enrol { version: "1".into(), display_name: None };
            enrol(&caller(user, "x", "p"), Some(key), request, &leader.context).await.map_err(|refusal| refusal.code)
        };
        let first = asks("alice", "1").await.expect("an agent");
        assert_eq!(asks("alice", "1").await.map(|again| again.uid), Ok(first.uid), "an answer may be lost");
        let second = asks("bob", "1").await.expect("an agent");
        assert_ne!(second.agent, first.agent, "the same key of another user is another agent");
        assert_eq!(asks("alice", "2").await.map(drop), Err(Code::LimitReached));
        leader.write("Agent", &second.agent, json!({"phase": "Stopped"}));
        assert!(asks("alice", "2").await.is_ok(), "one ended");
        assert_eq!(asks("bob", "1").await.map(drop), Err(Code::AgentEnded));
        let closed = Leader::of(&[stored_pool(json!(null))]);
        let request = Enrol { version: "1".into(), display_name: None };
        let refused = enrol(&caller("alice", "x", "p"), Some("1"), request, &closed.context).await.expect_err("the pool takes none");
        assert!(refused.message.contains("spec.external"), "{refused}");
    }

    #[tokio::test]
    async fn two_who_ask_at_once_for_the_last_place_do_not_both_get_it() {
        let leader = Leader::of(&[stored_pool(json!({"maxAgents": 1}))]);
        let asks = async |user: &str| {
            let request = Enrol { version: "1".into(), display_name: None };
            enrol(&caller(user, "x", "p"), Some("1"), request, &leader.context).await.map_err(|refusal| refusal.code)
        };
        let (alice, bob) = futures::join!(asks("alice"), asks("bob"));
        assert_eq!(usize::from(alice.is_ok()) + usize::from(bob.is_ok()), 1, "{alice:?} {bob:?}");
    }

    #[tokio::test]
    async fn who_asks_again_and_again_is_told_to_wait_before_anything_is_listed() {
        let leader = Leader::of(&[stored_pool(json!({"maxAgents": 1}))]);
        let asks = async |key: &str| {
            let request = Enrol { version: "1".into(), display_name: None };
            enrol(&caller("alice", "x", "p"), Some(key), request, &leader.context).await.map(drop).map_err(|refusal| refusal.code)
        };
        let mut codes = Vec::new();
        for at in 0..12 {
            codes.push(asks(&at.to_string()).await);
        }
        let full = codes.iter().filter(|code| **code == Err(Code::LimitReached)).count();
        let busy = codes.iter().filter(|code| **code == Err(Code::TooManyCalls)).count();
        assert_eq!((codes[0], full, busy), (Ok(()), 9, 2), "{codes:?}");
    }

    #[tokio::test]
    async fn what_a_process_says_of_itself_changes_nothing_for_others() {
        let mut agent = fake::object("Agent", "a", json!({"poolRef": {"name": "p"}, "external": {"user": "alice"}}));
        agent["status"] = json!({"phase": "Idle"});
        let leader = Leader::of(&[stored_pool(json!({"maxAgents": 1})), agent]);
        let (alice, uri) = (caller("alice", "Agent-a", "a"), "/agent/v1/report".parse().expect("a path"));
        let body = json!({"program": "running", "silentMs": 0, "periodSeconds": u32::MAX, "reachable": ["10.0.0.1:443"],
            "commands": {"failed": 64, "opened": 64}})
        .to_string();
        let says = async |caller: &Caller| calls::answer(Call::Report, &uri, caller, None, body.as_bytes(), &leader.context).await;
        says(&alice).await.expect("it is heard");
        let (report, _) = leader.context.live.view("Agent-a").and_then(|view| view.report).expect("a report");
        assert_eq!((report.period_seconds, report.commands), (MAX_REPORT_PERIOD_SECONDS, CommandCounts::default()));
        assert!(report.reachable.is_empty());
        let tried = json!({"command": {"owner": 1, "epoch": 1, "id": 1}, "timeoutMilliseconds": 1}).to_string();
        let tries = calls::answer(Call::TryCommand, &uri, &alice, None, tried.as_bytes(), &leader.context).await;
        assert_eq!(tries.expect_err("it is about pods").code, Code::NotAllowed);
        assert_eq!(says(&caller("bob", "Agent-a", "a")).await.expect_err("not his").code, Code::NotAnAgent);
    }

    #[test]
    fn nothing_that_a_pool_has_run_in_pods_is_run_elsewhere() {
        let pods: Settings = serde_json::from_value(json!({
            "agent": "a", "displayName": "A", "heartbeatPeriodSeconds": 20, "heartbeatTimeoutSeconds": 1800, "goodbyeTimeoutSeconds": 15,
            "chat": true, "canaries": ["10.0.0.1:443"], "drainHook": ["x"], "warnHook": ["x"], "checkpointHook": ["x"],
            "preflightCommand": ["x"],
            "work": {"run": "perItem", "input": "stdin", "continuePrompt": "", "maxTurns": 1,
                "changeset": {"remote": "https://git.example.com/a", "verifySeconds": 600}},
            "wanted": {"revision": "1", "directive": "run"},
        }))
        .expect("settings");
        let outside = settings(pods.clone());
        assert_eq!(outside.wanted, pods.wanted);
        for command in [&outside.drain_hook, &outside.warn_hook, &outside.checkpoint_hook, &outside.preflight_command, &outside.canaries] {
            assert!(command.is_empty(), "{outside:?}");
        }
        assert!(!outside.chat);
        assert!(pods.work.is_some_and(|work| work.changeset.is_some()) && outside.work.is_some_and(|work| work.changeset.is_none()));
    }
}
