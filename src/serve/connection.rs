//! One connection, as its requests and its driver see it; and the register of all connections of a listener.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Bounds;
use super::admission::{Admission, AdmissionFull, Arrival, Id};
use super::lifetime::{Lifetime, Step};
use super::rate::AddressRates;
use crate::telemetry::Metrics;

/// Why a connection, or a request on it, was refused: label of a metric.
mod reason {
    /// A new connection evicted a strange one.
    pub const EVICTED: &str = "evicted";
    /// No request on it was accepted in time.
    pub const NOT_ADMITTED: &str = "not_admitted";
    /// The token of a known connection was refused.
    pub const TOKEN_REFUSED: &str = "token_refused";
    /// Its address sent too many requests without a valid token.
    pub const RATE_LIMITED: &str = "rate";
    /// Its namespace has reached its limit of known connections.
    pub const NAMESPACE_FULL: &str = "namespace";
    /// Its address has reached its limit of known connections.
    pub const ADDRESS_FULL: &str = "address";
}

struct State {
    admission: Admission,
    /// Ends each strange connection.
    ends: HashMap<Id, CancellationToken>,
    rates: AddressRates,
}

struct Shared {
    bounds: Bounds,
    metrics: Metrics,
    began: Instant,
    state: Mutex<State>,
    /// A slot was freed.
    freed: Notify,
}

/// All connections of a listener. Cheap to clone.
#[derive(Clone)]
pub struct Register(Arc<Shared>);

impl Register {
    /// No connections yet.
    pub fn new(bounds: Bounds, metrics: Metrics) -> Self {
        let admission = Admission::new(bounds.capacity);
        let state = Mutex::new(State { admission, ends: HashMap::new(), rates: AddressRates::default() });
        Self(Arc::new(Shared { bounds, metrics, began: Instant::now(), state, freed: Notify::new() }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.0.began.elapsed()
    }

    fn update_gauges(&self, state: &State) {
        let (strange, known) = state.admission.counts();
        self.0.metrics.connections(self.0.bounds.listener, strange, known);
    }

    fn count_refusal(&self, reason: &'static str) {
        self.0.metrics.connection_refused(self.0.bounds.listener, reason);
    }

    /// A connection from `address` begins. Err: it has to wait for this long, or until [`Self::freed`].
    pub fn arrive(&self, address: IpAddr) -> Result<ConnectionSlot, Duration> {
        let now = self.now();
        let mut state = self.lock();
        match state.admission.arrive(address, now) {
            Arrival::Later(after) => Err(after),
            Arrival::Place { id, evicted } => {
                if let Some(end) = evicted.and_then(|id| state.ends.remove(&id)) {
                    end.cancel();
                    self.count_refusal(reason::EVICTED);
                }
                let ended = CancellationToken::new();
                state.ends.insert(id, ended.clone());
                self.update_gauges(&state);
                let lifetime = Mutex::new(Lifetime::new(self.0.bounds.times, now));
                let (known, waits, changed) = (AtomicBool::new(false), AtomicBool::new(false), Notify::new());
                Ok(ConnectionSlot(Connection(Arc::new(Inner {
                    register: self.clone(),
                    id,
                    address,
                    known,
                    has_queued_request: waits,
                    lifetime,
                    changed,
                    ended,
                }))))
            }
        }
    }

    /// Waits until a slot is freed. For one task only.
    pub async fn freed(&self) {
        self.0.freed.notified().await;
    }
}

struct Inner {
    register: Register,
    id: Id,
    address: IpAddr,
    known: AtomicBool,
    /// A request on it waits for the rate limit of its address.
    has_queued_request: AtomicBool,
    lifetime: Mutex<Lifetime>,
    /// Its next step may be due earlier now.
    changed: Notify,
    ended: CancellationToken,
}

/// The connection of a request: an extension of every request. Cheap to clone.
#[derive(Clone)]
pub struct Connection(Arc<Inner>);

/// The slot of a connection, until it is dropped.
pub struct ConnectionSlot(Connection);

impl ConnectionSlot {
    /// The connection in this slot.
    pub fn connection(&self) -> &Connection {
        &self.0
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let Inner { register, id, address, .. } = &*self.0.0;
        let mut state = register.lock();
        state.ends.remove(id);
        state.admission.leave(*id, *address);
        register.update_gauges(&state);
        drop(state);
        register.0.freed.notify_one();
    }
}

impl Connection {
    /// A request on it is accepted: it is a known connection of `namespace` from now on. Err: the limit of known
    /// connections is reached, and the request must be refused.
    pub fn admit(&self, namespace: &str) -> Result<(), AdmissionFull> {
        let Inner { register, id, address, known, lifetime: _, has_queued_request: _, changed: _, ended: _ } = &*self.0;
        if known.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut state = register.lock();
        match state.admission.admit(*id, *address, namespace) {
            Ok(()) => {}
            Err(full) => {
                drop(state);
                match full {
                    AdmissionFull::Namespace => register.count_refusal(reason::NAMESPACE_FULL),
                    AdmissionFull::Address => register.count_refusal(reason::ADDRESS_FULL),
                    AdmissionFull::Evicted => {}
                }
                return Err(full);
            }
        }
        // Its handshake and this request do not count against the rate limit.
        if state.ends.remove(id).is_some() {
            state.rates.give_back(*address);
            state.rates.give_back(*address);
        }
        register.update_gauges(&state);
        drop(state);
        self.lifetime().admitted();
        known.store(true, Ordering::Release);
        register.0.freed.notify_one();
        Ok(())
    }

    /// The token of a request on it is refused, permanently. A known connection then accepts no more requests.
    pub fn refuse(&self) {
        if self.is_known() {
            self.lifetime().refused();
            self.0.changed.notify_one();
        }
    }

    /// Whether a request on it was accepted.
    pub fn is_known(&self) -> bool {
        self.0.known.load(Ordering::Acquire)
    }

    /// Counts one request of its address, and waits while the rate limit is reached. False: another request on it waits
    /// already.
    pub async fn wait_for_rate_limit(&self) -> bool {
        let Inner { register, address, has_queued_request: waits, .. } = &*self.0;
        let mut waiting = None;
        loop {
            let now = register.now();
            let taken = register.lock().rates.take(*address, now);
            let Err(after) = taken else { return true };
            if waiting.is_none() {
                if waits.swap(true, Ordering::AcqRel) {
                    register.count_refusal(reason::RATE_LIMITED);
                    return false;
                }
                waiting = Some(QueuedRequest(waits));
            }
            tokio::time::sleep(after).await;
        }
    }

    fn lifetime(&self) -> MutexGuard<'_, Lifetime> {
        self.0.lifetime.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The head of a request is complete. The request runs until the returned value is dropped.
    pub(super) fn begin(&self) -> RunningRequest {
        self.lifetime().request_began();
        RunningRequest(self.clone())
    }

    /// Bytes came (HTTP/1).
    pub(super) fn bytes_received(&self) {
        let begins = self.lifetime().bytes_received(self.0.register.now());
        // A strange connection ends before the time limit of a head.
        if begins && self.is_known() {
            self.0.changed.notify_one();
        }
    }

    /// The peer was asked to close it.
    pub(super) fn closing(&self) {
        let (now, mut lifetime) = (self.0.register.now(), self.lifetime());
        if lifetime.step(now) == Step::Close {
            // A known connection that is closed because it is idle is not refused.
            if !self.is_known() {
                self.0.register.count_refusal(reason::NOT_ADMITTED);
            } else if lifetime.is_refused() {
                self.0.register.count_refusal(reason::TOKEN_REFUSED);
            }
        }
        lifetime.closing(now);
    }

    /// The step that is due now. Its times are those of [`Self::at`].
    pub(super) fn step(&self) -> Step {
        self.lifetime().step(self.0.register.now())
    }

    /// The instant of a time.
    pub(super) fn at(&self, time: Duration) -> Instant {
        self.0.register.0.began + time
    }

    /// When a strange connection that begins now must end.
    pub(super) fn strange_deadline(&self) -> Instant {
        Instant::now() + self.0.register.0.bounds.times.strange
    }

    /// Waits until its next step may have changed.
    pub(super) async fn changed(&self) {
        self.0.changed.notified().await;
    }

    /// Ends it now.
    pub(super) fn end(&self) {
        self.0.ended.cancel();
    }

    /// Waits until it has to end because another connection evicted it.
    pub(super) async fn ended(&self) {
        self.0.ended.cancelled().await;
    }

    pub(super) fn address(&self) -> IpAddr {
        self.0.address
    }
}

/// A request that waits for the rate limit.
struct QueuedRequest<'a>(&'a AtomicBool);

impl Drop for QueuedRequest<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// A running request.
pub(super) struct RunningRequest(Connection);

impl Drop for RunningRequest {
    fn drop(&mut self) {
        let now = self.0.0.register.now();
        let none_runs = self.0.lifetime().request_ended(now);
        if none_runs && self.0.is_known() {
            self.0.0.changed.notify_one();
        }
    }
}
