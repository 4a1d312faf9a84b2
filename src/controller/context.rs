//! The context of every reconcile.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use kube::runtime::controller::Action;
use kube::{Api, Client, Resource};
use tokio::sync::watch;

use super::agent::PodTerminations;
use super::agent_pool::ScaleDowns;
use super::budget::WaitingNamespaces;
use super::capacity::PendingPlaces;
use super::fleet::Fleet;
use super::served_toolsets::ServedToolsets;
use super::stores::Stores;
use super::supervised::Supervised;
use super::wake::Wake;
use crate::bridge::client::BridgeClient;
use crate::cluster::background_writes::ForegroundWrites;
use crate::cluster::backoff::Backoff;
use crate::cluster::clock::BootTime;
use crate::cluster::events::Events;
use crate::cluster::gate::Gate;
use crate::cluster::lease::Leadership;
use crate::cluster::{Class, Error, ObjectKey};
use crate::egress_settings::EgressSettings;
use crate::git_settings::GitSettings;
use crate::governor::Live;
use crate::governor::breaker::Circuits;
use crate::governor::breaker::attempts::Attempts;
use crate::governor::budget::Meter;
use crate::governor::work::WorkIndex;
use crate::pki::secrets::Trust;
use crate::policy::lease::{StoreRollback, Takeover};
use crate::policy::status_throttle;
use crate::telemetry::Metrics;

/// How long after a rollback of the store a new leader grants no items: gateways reconnect within a second and replay what they know.
const REPLAY_GRACE: Duration = Duration::from_secs(5);
/// First and longest bound of the delay between retries of one object.
const RECONCILE_RETRY_BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// When an object is reconciled again after a reconcile without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextLook {
    /// After this long; earlier failures of the object are forgotten.
    After(Duration),
    /// With a growing delay, as after a failure: something is missing or refused now.
    WithBackoff,
    /// When something changes.
    OnChange,
}

/// The parts of a [`Context`].
pub struct ContextParts {
    /// The client.
    pub client: Client,
    /// Our leadership, without which nothing is written.
    pub leadership: Leadership,
    /// The state of the Lease when we took it over.
    pub takeover: Takeover,
    /// The metrics.
    pub metrics: Metrics,
    /// The recorder of events.
    pub events: Events,
    /// The caches.
    pub stores: Stores,
    /// What is known of pods that disappeared.
    pub pod_terminations: PodTerminations,
    /// Triggers reconciles.
    pub wake: Wake,
    /// The settings for agents' pods.
    pub supervised: Supervised,
    /// The platform's rules of egress.
    pub egress: EgressSettings,
    /// The platform's rules of git.
    pub git: GitSettings,
    /// The certificates.
    pub trust: watch::Receiver<Option<Trust>>,
    /// Asks bridges for their status.
    pub bridges: BridgeClient,
    /// The index of work items.
    pub work_index: WorkIndex,
    /// Whether writes are under way that a caller waits for.
    pub foreground_writes: ForegroundWrites,
    /// The counts of agents, for metrics.
    pub fleet: Fleet,
    /// The only namespace that is served. None: all are.
    pub only_namespace: Option<String>,
    /// All agents are ended and no new ones are made, because the operator is being removed.
    pub ends_agents: bool,
}

/// The context of every reconcile.
pub struct Context {
    /// The client.
    pub client: Client,
    /// Our leadership, without which nothing is written.
    pub leadership: Leadership,
    /// The state of the Lease when we took it over.
    pub takeover: Takeover,
    /// When this context was created. Gateways are served from then on.
    began: BootTime,
    /// Our owner epoch, written with every durable status.
    pub epoch: i64,
    /// The metrics.
    pub metrics: Metrics,
    /// The recorder of events.
    pub events: Events,
    /// The caches.
    pub stores: Stores,
    /// What is known of pods that disappeared.
    pub pod_terminations: PodTerminations,
    /// Our last writes of pools.
    pub pool_gate: Gate<ObjectKey>,
    /// Our last writes of agents.
    pub agent_gate: Gate<ObjectKey>,
    /// Our last writes of pods.
    pub pod_gate: Gate<ObjectKey>,
    /// Our last writes of NetworkPolicies and ConfigMaps.
    pub namespace_setup_gate: Gate<ObjectKey>,
    /// Our last writes of Budgets.
    pub budget_gate: Gate<ObjectKey>,
    /// Our last writes of ResourceQuotas and LimitRanges, by kind.
    pub compute_gate: Gate<(String, ObjectKey)>,
    /// The capacity that is reserved for pods that are being created.
    pub pending_places: PendingPlaces,
    /// Since when namespaces have no Budget, or no Breaker.
    pub waiting_namespaces: WaitingNamespaces,
    /// The reports of agents, and their directives.
    pub live: Live,
    /// The index of work items.
    pub work_index: WorkIndex,
    /// Whether writes are under way that a caller waits for.
    pub foreground_writes: ForegroundWrites,
    /// The counts of agents, for metrics.
    pub fleet: Fleet,
    /// The ledger of tokens.
    pub meter: Meter,
    /// The circuit breakers.
    pub circuits: Circuits,
    /// Attempts at items whose results circuits wait for.
    pub attempts: Attempts,
    /// Triggers reconciles.
    pub wake: Wake,
    /// The settings for agents' pods.
    pub supervised: Supervised,
    /// The platform's rules of egress.
    pub egress: EgressSettings,
    /// The platform's rules of git.
    pub git: GitSettings,
    /// How long pools have been larger than they need to be.
    pub scale_downs: ScaleDowns,
    /// The addresses of the bridges of Toolsets.
    pub toolsets: ServedToolsets,
    /// Asks bridges for their status.
    pub bridges: BridgeClient,
    only_namespace: Option<String>,
    /// All agents are ended and no new ones are made, because the operator is being removed.
    pub ends_agents: bool,
    trust: watch::Receiver<Option<Trust>>,
    backoff: Backoff<(&'static str, ObjectKey)>,
    published: Mutex<HashMap<(&'static str, ObjectKey), PublishTimes>>,
    invalid_told: Mutex<HashMap<(&'static str, ObjectKey), String>>,
}

/// When a status was written last, and since when the stored one is out of date.
#[derive(Debug, Default)]
struct PublishTimes {
    written: Option<BootTime>,
    differs: Option<BootTime>,
}

impl Context {
    /// A context for one leadership.
    pub fn new(parts: ContextParts, epoch: i64) -> Self {
        let ContextParts {
            client,
            leadership,
            takeover,
            metrics,
            events,
            stores,
            pod_terminations: disappearances,
            wake,
            supervised,
            egress,
            git,
            trust,
            bridges,
            work_index,
            foreground_writes: quiet,
            fleet,
            only_namespace,
            ends_agents,
        } = parts;
        let circuits = Circuits::new(epoch, metrics.clone());
        Self {
            client,
            leadership,
            takeover,
            began: BootTime::now(),
            epoch,
            metrics,
            events,
            stores,
            pod_terminations: disappearances,
            pool_gate: Gate::default(),
            agent_gate: Gate::default(),
            pod_gate: Gate::default(),
            namespace_setup_gate: Gate::default(),
            budget_gate: Gate::default(),
            compute_gate: Gate::default(),
            pending_places: PendingPlaces::default(),
            waiting_namespaces: WaitingNamespaces::default(),
            live: Live::new(epoch),
            work_index,
            foreground_writes: quiet,
            fleet,
            meter: Meter::new(epoch),
            circuits,
            attempts: Attempts::default(),
            scale_downs: ScaleDowns::default(),
            toolsets: ServedToolsets::default(),
            bridges,
            wake,
            supervised,
            egress,
            git,
            only_namespace,
            ends_agents,
            trust,
            backoff: Backoff::new(RECONCILE_RETRY_BACKOFF.0, RECONCILE_RETRY_BACKOFF.1),
            published: Mutex::default(),
            invalid_told: Mutex::default(),
        }
    }

    /// Whether this process serves a namespace.
    pub fn serves(&self, namespace: &str) -> bool {
        self.only_namespace.as_deref().is_none_or(|only| only == namespace)
    }

    /// A rollback of the store in the last minutes: gateways may know of writes that are lost.
    pub fn recent_rollback(&self) -> Option<&StoreRollback> {
        self.takeover.rollback.as_ref().filter(|rollback| rollback.is_recent(jiff::Timestamp::now().as_millisecond()))
    }

    /// Whether gateways may still replay lost answers. Until then no item is granted, and no lease counts as lost.
    pub fn replay_window_open(&self) -> bool {
        self.takeover.rollback.is_some() && self.began.elapsed() < REPLAY_GRACE
    }

    /// The certificates that pods trust, as PEM; `None` until they are created.
    pub fn bundle(&self) -> Option<String> {
        self.trust.borrow().as_ref().map(|trust| trust.bundle.clone())
    }

    /// The API of a kind in a namespace.
    pub fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Runs one reconcile: counts it, times it, and after a success forgets earlier failures of the object.
    pub async fn reconcile(
        &self,
        controller: &'static str,
        key: ObjectKey,
        work: impl Future<Output = Result<NextLook, Error>>,
    ) -> Result<Action, Error> {
        let started = Instant::now();
        let result = work.await;
        let outcome = match &result {
            Ok(NextLook::After(_) | NextLook::OnChange) => "ok",
            Ok(NextLook::WithBackoff) => "waiting",
            Err(error) => error.class().label(),
        };
        self.metrics.reconciled(controller, outcome, started.elapsed());
        Ok(match result? {
            NextLook::After(wait) => {
                self.backoff.succeeded(&(controller, key));
                Action::requeue(wait)
            }
            NextLook::OnChange => {
                self.backoff.succeeded(&(controller, key));
                Action::await_change()
            }
            NextLook::WithBackoff => Action::requeue(self.retry_after(controller, key)),
        })
    }

    /// An operation on this object succeeded: forgets its earlier failures.
    pub fn succeeded(&self, controller: &'static str, key: &ObjectKey) {
        self.backoff.succeeded(&(controller, key.clone()));
    }

    /// The delay before the next attempt after a failure of this object.
    fn retry_after(&self, controller: &'static str, key: ObjectKey) -> Duration {
        self.backoff.failed((controller, key))
    }

    /// The action after a failed reconcile.
    pub fn after_error(&self, controller: &'static str, key: ObjectKey, error: &Error) -> Action {
        self.record_failure(controller, key, error).map_or_else(Action::await_change, Action::requeue)
    }

    /// An operation on this object failed: logs the error, and returns the delay before the next attempt. `None`: we do
    /// not lead any more.
    pub fn record_failure(&self, controller: &'static str, key: ObjectKey, error: &Error) -> Option<Duration> {
        match error.class() {
            Class::LostLeadership => {
                self.leadership.abdicate();
                None
            }
            // The cache will show the conflicting change soon, so this is no warning.
            Class::Conflict | Class::AlreadyExists | Class::NotFound => {
                tracing::debug!(controller, object = %key.name, namespace = %key.namespace, %error, "the object was changed in the meantime; retrying");
                Some(self.retry_after(controller, key))
            }
            class @ (Class::QuotaExceeded | Class::Terminating | Class::Refused | Class::Unavailable) => {
                let delay = self.retry_after(controller, key.clone());
                tracing::warn!(controller, object = %key.name, namespace = %key.namespace, class = class.label(), retry_seconds = delay.as_secs_f64(), %error, "an operation on an object failed; retrying");
                Some(delay)
            }
        }
    }

    /// Decides whether a changed status is written now, and records the time.
    pub fn decide_write(
        &self,
        controller: &'static str,
        key: &ObjectKey,
        change: status_throttle::StatusChange,
    ) -> status_throttle::WriteDecision {
        let mut published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = (controller, key.clone());
        if change == status_throttle::StatusChange::None {
            published.entry(slot).and_modify(|known| known.differs = None);
            return status_throttle::WriteDecision::Never;
        }
        let known = published.entry(slot).or_default();
        let differs = known.differs.get_or_insert_with(BootTime::now).elapsed();
        let when = status_throttle::decide(change, known.written.map(|last| last.elapsed()), differs);
        if when == status_throttle::WriteDecision::Now {
            *known = PublishTimes { written: Some(BootTime::now()), differs: None };
        }
        when
    }

    /// Whether this error of an object that does not fit its type was not reported before.
    pub fn is_new_error(&self, controller: &'static str, key: ObjectKey, trouble: &str) -> bool {
        let mut told = self.invalid_told.lock().unwrap_or_else(PoisonError::into_inner);
        told.insert((controller, key), trouble.to_owned()).as_deref() != Some(trouble)
    }

    /// Forgets the failures and reports of a deleted object.
    pub fn forget(&self, controller: &'static str, key: &ObjectKey) {
        let slot = (controller, key.clone());
        self.backoff.succeeded(&slot);
        self.published.lock().unwrap_or_else(PoisonError::into_inner).remove(&slot);
        self.invalid_told.lock().unwrap_or_else(PoisonError::into_inner).remove(&slot);
    }
}

/// `base`, changed at random by up to a fifth, so that objects created together are not always reconciled together.
pub fn jittered(base: Duration) -> Duration {
    base.mul_f64(0.8 + 0.4 * rand::random::<f64>())
}
