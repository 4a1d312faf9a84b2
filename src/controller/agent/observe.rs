//! Collects the facts about one Agent: from the caches, and by live reads where its pod is missing.

use std::sync::Arc;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, Resource, ResourceExt};

use super::{crash, external, pod_view, supervise};
use crate::api::agent::PodRef;
use crate::api::conditions::{reasons, types};
use crate::api::sandbox::Requirement;
use crate::api::{Agent, AgentPool, names};
use crate::cluster::{Error, ObjectKey};
use crate::controller::Context;
use crate::controller::agent_pool::{missing_references, unsupported};
use crate::controller::conditions::find;
use crate::controller::namespace_setup;
use crate::controller::stores::{NODE_LEASE_NAMESPACE, PoolObject};
use crate::governor::budget::availability::{self, TokenAvailability};
use crate::governor::live::View;
use crate::governor::work::namespace_work::AgentHolding;
use crate::policy::agent::{Facts, Hindrance, HindranceKind, Pod as PodFact, Sleep, Spawn};
use crate::policy::budget::{Blocker, Key as TokenKey};
use crate::policy::interventions;
use crate::policy::node_liveness::NodeReach;
use crate::policy::pod_termination::{NodeState, Verdict, judge};

/// The facts about one Agent.
pub struct AgentObservation {
    /// The facts that the plan is based on.
    pub facts: Facts,
    /// The recorded pod, if it exists.
    pub pod: Option<Arc<Pod>>,
    /// The pod exists and the cache does not contain it, so no event reports its changes.
    pub missing_in_cache: bool,
    /// What the agent reported.
    pub view: Option<View>,
    /// The intervention that is due, if any.
    pub decision: Option<interventions::Decision>,
    /// The item that it holds.
    pub holding: Option<AgentHolding>,
    /// Why the agent is paused, if it is.
    pub paused: Option<supervise::Pause>,
    /// Whether there are tokens for the agent's calls.
    pub tokens: TokenAvailability,
    /// The agent spent its lifetime tokens and holds no item: it leaves, and its pool creates another one.
    pub lifetime_spent: bool,
    /// Number of living agents that this agent requested.
    pub children: u32,
    /// The parent agent ended.
    pub parent_ended: bool,
    /// The agent runs outside the cluster, and its pool no longer accepts such agents.
    pub external_not_allowed: bool,
    /// The Agent's pool as stored, if it fits its type and is the one that owns the Agent.
    pool: Option<Arc<PoolObject>>,
}

impl AgentObservation {
    /// The Agent's pool.
    pub fn pool(&self) -> Option<&AgentPool> {
        self.pool.as_ref().and_then(|pool| pool.0.as_ref().ok())
    }
}

/// Collects the facts about `agent`. `cached` is its pod, if the cache contains it.
pub async fn observe(agent: &Agent, key: &ObjectKey, cached: Option<Arc<Pod>>, context: &Context) -> Result<AgentObservation, Error> {
    let stored = context.stores.pool(&key.namespace, &agent.spec.pool_ref.name);
    let owner = agent.owner_uid();
    let fits = |pool: &Arc<PoolObject>| pool.0.is_ok() && owner.is_none_or(|uid| pool.meta().uid.as_deref() == Some(uid));
    let pool = stored.clone().filter(fits);
    let recorded = agent.status.as_ref().and_then(|status| status.pod_ref.as_ref());
    let uid = agent.caller_uid();
    let view = uid.and_then(|uid| context.live.view(uid));
    let spec = pool.as_ref().and_then(|pool| pool.0.as_ref().ok()).map(|pool| &pool.spec);
    let outside = agent.spec.external.is_some();
    let watched = cached.is_some();
    let (fact, pod) = match (cached, recorded) {
        // A pod with the name of an agent outside the cluster is foreign.
        _ if outside => (external::process_as_pod(agent, view.as_ref(), spec, jiff::Timestamp::now()), None),
        (Some(pod), Some(recorded)) if pod.metadata.uid.as_deref() == Some(&recorded.uid) => {
            (own_pod_fact(agent, &pod, context), Some(pod))
        }
        (Some(_), None) => (PodFact::Foreign, None),
        (None, None) => (PodFact::Absent(Verdict::Unknown), None),
        // The end of an Agent is stored only after its pod is proved to have ended.
        (_, Some(_)) if agent.has_ended() => (PodFact::Absent(Verdict::Gone), None),
        (_, Some(recorded)) => find_missing_pod(agent, recorded, key, context).await?,
    };
    // The silence of a pod that terminates, or whose node does not respond, says nothing.
    let quiet = match &fact {
        PodFact::Ours(shown) => shown.deleting || shown.node != NodeReach::Heard,
        PodFact::Foreign | PodFact::Absent(_) => true,
    };
    let holding = uid.and_then(|uid| context.work_index.holding(&key.namespace, uid));
    let status = agent.status.as_ref();
    let condemned = status.is_some_and(super::is_given_up);
    let asked = crash::was_asked(agent, hibernation(agent) != Sleep::No);
    let decision = uid.filter(|_| !agent.has_ended() && !quiet);
    let decision = decision.and_then(|uid| {
        let of_pod = crash::pod_end_signals(agent, &fact, pod.as_deref(), asked, view.as_ref(), spec, context);
        supervise::decide(agent, uid, view.as_ref(), of_pod, holding.as_ref(), spec, context)
    });
    let parent_ended = match &agent.spec.parent_ref {
        Some(parent) if !agent.has_ended() => parent_has_ended(agent, &parent.name, context).await?,
        Some(_) | None => false,
    };
    let live_pool = pool.as_ref().and_then(|pool| pool.0.as_ref().ok()).filter(|_| !agent.has_ended());
    let tokens = live_pool.map_or(TokenAvailability::Unknown, |pool| availability::of_agent(agent, pool, context));
    let paused_at = status.and_then(|status| status.paused_at_limit);
    let has_more = live_pool.zip(paused_at).is_some_and(|(pool, at)| availability::has_more(agent, pool, at, context));
    let paused = supervise::pause(agent, decision.as_ref(), holding.as_ref(), has_more);
    let idle = Idle {
        holds: holding.is_some(),
        paused,
        leaves_when_spent: live_pool.is_some_and(availability::leaves_when_spent),
        not_responding: quiet,
    };
    let spent = is_lifetime_spent(agent, view.as_ref(), &tokens, idle)
        // From here on the agent gets no work. It may have got an item a moment ago.
        && uid.is_some_and(|uid| context.work_index.with(&key.namespace, |work| work.retire(uid)));
    let expelled = outside && live_pool.is_some_and(|pool| pool.spec.external.is_none());
    let facts = Facts {
        goodbye: parent_ended || spent || expelled || status.is_some_and(|status| status.goodbye.is_some()),
        condemned,
        sleep: hibernation(agent),
        life: supervise::life_facts(agent, view.as_ref(), decision.as_ref(), spec, holding.is_some(), paused.is_some()),
        deleting: agent.metadata.deletion_timestamp.is_some(),
        finalizer: agent.finalizers().iter().any(|finalizer| finalizer == names::AGENT_FINALIZER),
        owned: owner.is_some() || pool.is_none(),
        ended: agent.has_ended(),
        // An agent outside the cluster never gets a pod.
        recorded: recorded.is_some() || outside,
        spawn: spawn(
            agent,
            stored.as_ref().map(|pool| pool.meta().uid.as_deref()),
            pool.as_ref().and_then(|pool| pool.0.as_ref().ok()),
            context,
        ),
        pod: fact,
    };
    let children = uid.map_or(0, |uid| living_children(&key.namespace, uid, context));
    let unwatched = pod.is_some() && !watched;
    Ok(AgentObservation {
        facts,
        missing_in_cache: unwatched,
        pod,
        pool,
        view,
        decision,
        holding,
        paused,
        tokens,
        lifetime_spent: spent,
        children,
        parent_ended,
        external_not_allowed: expelled,
    })
}

/// What decides whether an agent is idle.
#[derive(Clone, Copy)]
struct Idle {
    /// It holds an item.
    holds: bool,
    paused: Option<supervise::Pause>,
    /// Agents of its pool leave when they have spent their lifetime tokens.
    leaves_when_spent: bool,
    /// Its pod terminates, or does not respond.
    not_responding: bool,
}

/// Whether an agent has spent its lifetime tokens and holds no item. Pure. If an agent spent nothing, its limit is too
/// low for any call, and a new agent would not help.
fn is_lifetime_spent(agent: &Agent, view: Option<&View>, tokens: &TokenAvailability, idle: Idle) -> bool {
    let Idle { holds, paused, leaves_when_spent: leaves, not_responding: quiet } = idle;
    let over = matches!(tokens, TokenAvailability::Blocked(Blocker { key: TokenKey::Agent(_), .. }));
    let spends = agent.status.as_ref().and_then(|status| status.tokens.as_ref()?.used).unwrap_or(0) > 0;
    // A pause by a person or an intervention keeps the agent. A pause for lack of tokens does not: without an item the
    // agent has nothing to wait for.
    let stays = matches!(paused, Some(supervise::Pause::Spec | supervise::Pause::Supervisor));
    let attached = view.and_then(|view| view.report.as_ref()).is_some_and(|(report, _)| report.attached);
    over && spends && leaves && !holds && !stays && !attached && !quiet && view.is_some_and(|view| view.started)
}

/// Whether the agent is to hibernate. A hibernation that began continues until its pod is gone, whatever
/// `spec.hibernated` says then.
fn hibernation(agent: &Agent) -> Sleep {
    let ready = agent.status.as_ref().and_then(|status| find(&status.conditions, types::READY));
    if ready.is_some_and(|ready| ready.reason == reasons::HIBERNATING) {
        return Sleep::Begun;
    }
    // A pool does not wake an Agent that was made by hand.
    if agent.spec.hibernated == Some(true) && agent.spec.sequence.is_some() { Sleep::Wanted } else { Sleep::No }
}

fn living_children(namespace: &str, uid: &str, context: &Context) -> u32 {
    let mine = context.stores.agents.state_filter(|child| {
        let meta = child.meta();
        meta.namespace.as_deref() == Some(namespace)
            && meta.labels.as_ref().and_then(|labels| labels.get(names::PARENT_UID_LABEL)).is_some_and(|parent| parent == uid)
            && child.0.as_ref().is_ok_and(|child| !child.has_ended())
    });
    u32::try_from(mine.len()).unwrap_or(u32::MAX)
}

/// Whether the parent of `agent` ended. A parent that the cache does not contain is read live.
async fn parent_has_ended(agent: &Agent, parent: &str, context: &Context) -> Result<bool, Error> {
    let namespace = agent.namespace().unwrap_or_default();
    let asked_by = agent.metadata.labels.as_ref().and_then(|labels| labels.get(names::PARENT_UID_LABEL));
    let Some(asked_by) = asked_by else { return Ok(false) }; // named by a person, who may name whom they like
    let over = |parent: &Agent| parent.has_ended() || parent.caller_uid().is_none_or(|uid| uid != asked_by);
    let cached = context.stores.agent(&ObjectKey { namespace: namespace.clone(), name: parent.to_owned() });
    if let Some(parent) = cached.as_ref().and_then(|object| object.0.as_ref().ok()) {
        return Ok(over(parent));
    }
    let live = context.api::<Agent>(&namespace).get_opt(parent).await.map_err(Error::of("reading an Agent"))?;
    Ok(live.is_none_or(|parent| over(&parent)))
}

fn own_pod_fact(agent: &Agent, pod: &Pod, context: &Context) -> PodFact {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).and_then(|name| context.stores.node(name));
    let ready = agent.status.as_ref().and_then(|status| find(&status.conditions, types::READY));
    let stored = ready.is_some_and(|ready| ready.reason == reasons::NODE_UNREACHABLE);
    // A deleted node says nothing: Kubernetes deletes its pods.
    let node = node.map_or(NodeReach::Heard, |node| context.stores.node_judgements.reach(&node, stored));
    let mut seen = pod_view::observe_pod(pod, node, context.pod_terminations.terminating_for(pod));
    let nodes = context.stores.nodes.state();
    pod_view::explain_unschedulable(&mut seen, pod, nodes.iter().map(Arc::as_ref));
    PodFact::Ours(seen)
}

/// Whether the pod can be created. `stored_uid` is the uid of the pool object with that name, even if it does not fit
/// its type.
fn spawn(agent: &Agent, stored_uid: Option<Option<&str>>, pool: Option<&AgentPool>, context: &Context) -> Spawn {
    let hindered = |kind, message| Spawn::Hindered(Hindrance { kind, message });
    let name = &agent.spec.pool_ref.name;
    let Some(pool) = pool else {
        return match (agent.owner_uid(), stored_uid) {
            (Some(owner), Some(stored)) if stored == Some(owner) => {
                hindered(HindranceKind::Unsupported, format!("AgentPool/{name} does not fit its type. Its events say why"))
            }
            (Some(_), _) => Spawn::PoolMissing,
            // The Agent was made by hand, or by GitOps before its pool: it waits.
            (None, _) => hindered(HindranceKind::MissingReference, format!("AgentPool/{name} (spec.poolRef) does not exist. Create it")),
        };
    };
    let namespace = pool.namespace().unwrap_or_default();
    let missing = missing_references(&pool.spec, &namespace, &context.stores);
    if !missing.is_empty() {
        return hindered(
            HindranceKind::MissingReference,
            format!(
                "AgentPool/{name} names objects that this namespace does not have: {}. Create them, or remove their names from the spec of the pool",
                missing.join(", ")
            ),
        );
    }
    if let Some(message) = unsupported(&pool.spec) {
        return hindered(HindranceKind::Unsupported, message);
    }
    if namespace_setup::is_ready(&namespace, context) { Spawn::Possible } else { Spawn::NotYet }
}

/// Whether a pod of this pool gets a user namespace of its own.
pub fn user_namespaces(pool: &AgentPool, context: &Context) -> bool {
    let wanted =
        pool.spec.sandbox.as_ref().and_then(|sandbox| sandbox.isolation.as_ref()?.user_namespace).unwrap_or(Requirement::Preferred);
    let scheduling = pool.spec.scheduling.as_ref();
    match wanted {
        Requirement::Required => true,
        Requirement::Disabled => false,
        // The features of the node's default handler say nothing about another runtime.
        Requirement::Preferred if scheduling.is_some_and(|scheduling| scheduling.runtime_class_name.is_some()) => false,
        Requirement::Preferred => {
            let nodes = context.stores.nodes.state();
            // Without the label of a profile: it may reach a node after the pod is made.
            let selector = scheduling.and_then(|scheduling| scheduling.node_selector.clone()).unwrap_or_default();
            pod_view::all_have_user_namespaces(nodes.iter().map(Arc::as_ref), &selector)
        }
    }
}

/// Finds out what happened to a recorded pod that the cache does not contain: by a live read, else by its last known
/// state and its node.
async fn find_missing_pod(
    agent: &Agent,
    recorded: &PodRef,
    key: &ObjectKey,
    context: &Context,
) -> Result<(PodFact, Option<Arc<Pod>>), Error> {
    let live = context.api::<Pod>(&key.namespace).get_opt(&key.name).await.map_err(Error::of("reading a pod"))?;
    if let Some(pod) = live.filter(|pod| pod.metadata.uid.as_deref() == Some(&recorded.uid)) {
        // The cache is stale, or the pod lost its labels and with them our watch. It is still ours.
        return Ok((own_pod_fact(agent, &pod, context), Some(Arc::new(pod))));
    }
    let (last, seen_on) = context.pod_terminations.last_seen(&recorded.uid);
    let node = seen_on.or_else(|| agent.status.as_ref().and_then(|status| status.node.clone()));
    let node = match node {
        None => NodeState::NotKnown(context.pod_terminations.missing_for(&recorded.uid, None, false)),
        Some(name) => node_state(&name, &recorded.uid, context).await?,
    };
    Ok((PodFact::Absent(judge(last, node)), None))
}

async fn node_state(name: &str, pod_uid: &str, context: &Context) -> Result<NodeState, Error> {
    let Some(node) = Api::<Node>::all(context.client.clone()).get_opt(name).await.map_err(Error::of("reading a node"))? else {
        return Ok(NodeState::Deleted);
    };
    if pod_view::out_of_service(&node) {
        return Ok(NodeState::OutOfService);
    }
    if !pod_view::healthy(&node) {
        context.pod_terminations.node_unhealthy(pod_uid);
        return Ok(NodeState::Unhealthy);
    }
    let lease = context.api::<Lease>(NODE_LEASE_NAMESPACE).get_opt(name).await.map_err(Error::of("reading a node's lease"))?;
    let renewed = lease.and_then(|lease| lease.spec?.renew_time).map(|time| time.0.to_string());
    Ok(NodeState::HealthyFor(context.pod_terminations.missing_for(pod_uid, renewed, true)))
}
