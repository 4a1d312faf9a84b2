//! Whether the budgets above a pool, an agent or a claim give tokens now. The reconcilers and the assignment of items
//! use it.
//!
//! It decides nothing (`policy::budget::blocker` does) and writes nothing. It checks once a second, and wakes the
//! reconcilers of pools and agents whose answer has changed. Invariant: an unknown state counts neither as available
//! nor as spent.

use std::collections::{HashMap, HashSet};

use super::facts;
use super::meter::Meter;
use super::object::Object;
use crate::api::conditions::{reasons, types};
use crate::api::{Agent, AgentPool, AgentStatus, names};
use crate::cluster::ObjectKey;
use crate::controller::Context;
use crate::controller::conditions::find;
use crate::policy::budget::blocker::RefusedNeed;
use crate::policy::budget::refusal::RefusalCause;
use crate::policy::budget::share::TopUp;
use crate::policy::budget::{Blocker, Key, Refusal, Route};
use spillway_conversion::pool::queues_of;

/// Whether tokens are available.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenAvailability {
    /// It is not known yet: records or budgets are being read.
    Unknown,
    /// Tokens are available.
    Available,
    /// Tokens are not available, and will not be for a while.
    Blocked(Blocker),
}

impl Meter {
    /// The blocker of every call of a pool of this type through these budgets, or, for an agent with this uid, of its
    /// lifetime tokens.
    pub fn blocker(&self, agent: Option<&str>, pool: &ObjectKey, top: Option<Key>, pool_type: &str) -> Option<Blocker> {
        let mut state = self.lock();
        let state = &mut *state;
        let now = state.now();
        let need = state.needs.get(&(pool.namespace.clone(), pool.name.clone()));
        let above = state.ledger.blocker(now, &mut Route::new(Vec::new(), top.clone(), pool_type), need);
        let own = agent.map(|uid| Key::Agent(uid.to_owned()));
        let (None, Some(own)) = (&above, own) else { return above };
        let record = state.records.get(&own)?;
        // A lifetime that can still be topped up is not spent.
        match record.lifetime.map(|life| life.top_up(i64::MAX)) {
            Some(TopUp::Granted(_)) => None,
            Some(TopUp::Spent | TopUp::ParentsLack(_)) | None => {
                state.ledger.blocker(now, &mut Route::new(vec![own], top, pool_type), None)
            }
        }
    }

    /// Records that a call of a pool was refused.
    pub fn call_refused(&self, pool: ObjectKey, refusal: &Refusal) {
        let Some(need) = RefusedNeed::of(refusal) else { return };
        let mut state = self.lock();
        let slot = (pool.namespace, pool.name);
        let need = match state.needs.remove(&slot) {
            Some(before) => before.combine(need),
            None => need,
        };
        state.needs.insert(slot, need);
    }

    /// Records that a call of a pool got this many tokens.
    pub fn call_granted(&self, pool: ObjectKey, tokens: i64) {
        if let Some(need) = self.lock().needs.get_mut(&(pool.namespace, pool.name)) {
            need.note_granted(tokens);
        }
    }

    /// Forgets all other pools.
    fn keep_pools(&self, pools: &KnownPools) {
        self.lock()
            .needs
            .retain(|(namespace, name), _| pools.contains_key(&ObjectKey { namespace: namespace.clone(), name: name.clone() }));
    }
}

/// Whether tokens are available for the agents of a pool.
pub fn of_pool(pool: &AgentPool, context: &Context) -> TokenAvailability {
    of(None, pool, context)
}

/// Whether tokens are available for an agent of a pool, including its lifetime tokens.
pub fn of_agent(agent: &Agent, pool: &AgentPool, context: &Context) -> TokenAvailability {
    of(agent.metadata.uid.as_deref(), pool, context)
}

fn of(agent: Option<&str>, pool: &AgentPool, context: &Context) -> TokenAvailability {
    let meter = &context.meter;
    let namespace = pool.metadata.namespace.as_deref().unwrap_or_default();
    let named = pool.spec.budget_ref.as_ref().map(|budget| budget.name.as_str());
    let exists = context.stores.budget(namespace, named.unwrap_or(names::DEFAULT_OBJECT_NAME)).is_some();
    if !meter.is_ready() {
        return TokenAvailability::Unknown;
    }
    let Some(above) = meter.above(namespace, named, exists) else { return TokenAvailability::Unknown };
    meter.blocker(agent, &ObjectKey::of(pool), above.top, &pool.spec.type_).map_or(TokenAvailability::Available, TokenAvailability::Blocked)
}

/// The condition reason of a blocker.
pub fn reason(obstacle: &Blocker) -> &'static str {
    match (&obstacle.cause, &obstacle.key) {
        (_, Key::Agent(_)) => reasons::LIFETIME_SPENT,
        (RefusalCause::Paused, _) => reasons::PAUSED_BY_THRESHOLD,
        (
            RefusalCause::Used
            | RefusalCause::Held
            | RefusalCause::Guaranteed
            | RefusalCause::Recovering
            | RefusalCause::TooLarge
            | RefusalCause::InFlight
            | RefusalCause::Gateways
            | RefusalCause::Missing
            | RefusalCause::Blocked(_),
            _,
        ) => reasons::BUDGET_EXHAUSTED,
    }
}

/// Whether an agent of this pool without lifetime tokens says goodbye when it has no item in hand, so that another
/// agent replaces it. This holds where agents work from queues. A scheduler is kept, and so is an agent that serves a
/// person.
pub fn leaves_when_spent(pool: &AgentPool) -> bool {
    !queues_of(pool).is_empty() && pool.spec.type_ != names::SCHEDULER_TYPE
}

/// Whether an agent that was paused at the lifetime limit `paused_at` has more tokens since: by a Grant, a raised
/// lifetimeTokens, or a top-up that it may take now.
pub fn has_more(agent: &Agent, pool: &AgentPool, paused_at: i64, context: &Context) -> bool {
    let Some(uid) = agent.metadata.uid.as_deref().filter(|_| context.meter.is_ready()) else { return false };
    let namespace = pool.metadata.namespace.as_deref().unwrap_or_default();
    let named = pool.spec.budget_ref.as_ref().map(|budget| budget.name.as_str());
    let exists = context.stores.budget(namespace, named.unwrap_or(names::DEFAULT_OBJECT_NAME)).is_some();
    let Some(above) = context.meter.above(namespace, named, exists) else { return false };
    // A paused agent makes no call that would update its lifetime.
    let defaults = context.meter.defaults(namespace);
    context.meter.place_agent(&Object::from(agent), facts::lifetime(pool.spec.bulkhead.as_ref(), defaults.as_ref(), 0));
    let height = context.meter.views(&Key::Agent(uid.to_owned())).iter().map(|view| view.height).max().unwrap_or(0);
    height > paused_at || context.meter.may_top_up(uid, &mut Route::new(Vec::new(), above.top, &pool.spec.type_))
}

/// The blocker of each pool at the last check.
pub type KnownPools = HashMap<ObjectKey, Option<Blocker>>;

/// Checks all pools: wakes those whose state has changed, and stops assigning items to those without tokens.
pub fn look(context: &Context, known: &mut KnownPools) {
    if !context.meter.is_ready() {
        return;
    }
    let mut held_back: HashMap<String, HashSet<String>> = HashMap::new();
    let mut now = KnownPools::new();
    for stored in context.stores.pools.state() {
        let Ok(pool) = &stored.0 else { continue };
        let name = ObjectKey::of(pool);
        let short = match of_pool(pool, context) {
            TokenAvailability::Unknown => continue,
            TokenAvailability::Available => None,
            TokenAvailability::Blocked(obstacle) => Some(obstacle),
        };
        // Also at the first check: a previous leader may have written another state.
        if known.get(&name) != Some(&short) {
            context.wake.pool(&name.namespace, &name.name);
            if short.is_some() {
                let agents = context.stores.agents_of(&name.namespace, &name.name);
                agents.iter().for_each(|agent| context.wake.agent(&ObjectKey::of(agent.as_ref())));
            }
        }
        if short.is_some() {
            held_back.entry(name.namespace.clone()).or_default().insert(name.name.clone());
        }
        now.insert(name, short);
    }
    *known = now;
    context.meter.keep_pools(known);
    release(context);
    for namespace in context.work_index.namespaces() {
        let pools = held_back.remove(&namespace).unwrap_or_default();
        if context.work_index.with(&namespace, |work| work.hold_back(pools)) {
            context.work_index.mark_due(&namespace, ""); // no item: each check signals the waiting agents
        }
    }
}

/// Wakes the agents whose status says that they have no tokens, and that have some now.
fn release(context: &Context) {
    for stored in context.stores.agents.state() {
        let Ok(agent) = &stored.0 else { continue };
        let paused_at = agent.status.as_ref().filter(|status| lives(status)).and_then(|status| status.paused_at_limit);
        if !status_says_short(agent) && paused_at.is_none() {
            continue;
        }
        let name = ObjectKey::of(agent);
        let pool = context.stores.pool(&name.namespace, &agent.spec.pool_ref.name);
        let Some(pool) = pool.as_ref().and_then(|pool| pool.0.as_ref().ok()) else { continue };
        let goes_on = paused_at.is_some_and(|paused_at| has_more(agent, pool, paused_at, context));
        if goes_on || (status_says_short(agent) && of_agent(agent, pool, context) == TokenAvailability::Available) {
            context.wake.agent(&name);
        }
    }
}

fn lives(status: &AgentStatus) -> bool {
    !status.phase.is_some_and(crate::api::agent::AgentPhase::ended)
}

fn status_says_short(agent: &Agent) -> bool {
    let Some(status) = &agent.status else { return false };
    lives(status) && find(&status.conditions, types::BUDGET_AVAILABLE).is_some_and(|available| available.status == "False")
}
