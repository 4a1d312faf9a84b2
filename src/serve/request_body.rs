//! Reads request bodies within limits: of one call, of a namespace, of the whole process. There are separate limits for
//! model calls, for agents' own calls at a gateway, and for agents' calls at the governor.
//!
//! A namespace may have at most twice the free memory without the reserve, and always a guaranteed part of the reserve.
//! So one namespace alone gets half of the memory, and some sixty namespaces together cannot keep another one out.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use http_body_util::BodyExt as _;
use hyper::body::Body as _;
use tokio::sync::Notify;

use crate::wire::{Code, Refusal};

/// The limits of memory and time.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimits {
    /// The most bytes of one body.
    pub max_body_bytes: usize,
    /// Bytes of all bodies in memory as they were received. Parsed values take more.
    pub total_bytes: usize,
    /// The part of these that only namespaces with at most `guaranteed` bytes may use.
    pub reserve: usize,
    /// Bytes that a namespace gets while the reserve lasts.
    pub guaranteed: usize,
    /// How long a body may take to arrive.
    pub within: Duration,
    /// How long a call waits for memory.
    pub memory_wait: Duration,
}

/// A namespace may have this many times the free memory. So one largest body passes while there is no other, if the
/// memory without the reserve is at least one and a half times as large.
const FREE_SPACE_MULTIPLE: usize = 2;

/// Calls of one namespace that wait for memory. Each tries again whenever any memory is freed.
const MAX_WAITING_CALLS: usize = 16;

/// The memory of bodies. Cheap to clone.
#[derive(Clone)]
pub struct BodyMemory(Arc<Shared>);

struct Shared {
    sizes: BodyLimits,
    counts: Mutex<Counts>,
    freed: Notify,
}

struct Counts {
    sizes: BodyLimits,
    all: usize,
    by_namespace: HashMap<String, usize>,
    waiting: HashMap<String, usize>,
}

impl Counts {
    fn new(sizes: BodyLimits) -> Self {
        Self { sizes, all: 0, by_namespace: HashMap::new(), waiting: HashMap::new() }
    }

    /// Takes `bytes` more for a namespace, if its limits allow it.
    fn take(&mut self, namespace: &str, bytes: usize) -> bool {
        let BodyLimits { total_bytes: all, reserve, guaranteed, .. } = self.sizes;
        let own = self.by_namespace.get(namespace).copied().unwrap_or_default() + bytes;
        let Some(free) = all.checked_sub(self.all + bytes) else { return false };
        let takes = own <= guaranteed || own <= FREE_SPACE_MULTIPLE * free.saturating_sub(reserve);
        if takes {
            self.all += bytes;
            self.by_namespace.insert(namespace.to_owned(), own);
        }
        takes
    }

    fn give_back(&mut self, namespace: &str, bytes: usize) {
        self.all = self.all.saturating_sub(bytes);
        subtract(&mut self.by_namespace, namespace, bytes);
    }
}

/// Subtracts `count` from a namespace's number. A number of zero is removed.
fn subtract(numbers: &mut HashMap<String, usize>, namespace: &str, count: usize) {
    if let Some(number) = numbers.get_mut(namespace) {
        *number = number.saturating_sub(count);
        if *number == 0 {
            numbers.remove(namespace);
        }
    }
}

/// A waiting call of a namespace, until it is dropped.
struct WaitingCall<'a> {
    bodies: &'a BodyMemory,
    namespace: &'a str,
}

impl<'a> WaitingCall<'a> {
    fn begin(bodies: &'a BodyMemory, namespace: &'a str) -> Result<Self, Refusal> {
        let mut counts = bodies.lock();
        let waiting = counts.waiting.entry(namespace.to_owned()).or_default();
        if *waiting >= MAX_WAITING_CALLS {
            return Err(memory_refusal());
        }
        *waiting += 1;
        Ok(Self { bodies, namespace })
    }
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        subtract(&mut self.bodies.lock().waiting, self.namespace, 1);
    }
}

/// The memory of one body, until it is dropped.
pub struct BodyReservation {
    bodies: BodyMemory,
    namespace: String,
    bytes: usize,
}

impl BodyReservation {
    /// Takes `bytes` more, if the limits allow it.
    fn grow(&mut self, bytes: usize) -> bool {
        let takes = self.bodies.lock().take(&self.namespace, bytes);
        self.bytes += if takes { bytes } else { 0 };
        takes
    }

    /// Takes `bytes` more; waits up to `patience` while the limits do not allow it.
    async fn wait(&mut self, bytes: usize) -> Result<(), Refusal> {
        if self.grow(bytes) {
            return Ok(());
        }
        let (bodies, namespace, patience) = (self.bodies.clone(), self.namespace.clone(), self.bodies.0.sizes.memory_wait);
        let _waiting = WaitingCall::begin(&bodies, &namespace)?;
        let waiting = async {
            loop {
                let freed = bodies.0.freed.notified();
                tokio::pin!(freed);
                // From here on no notification is missed.
                freed.as_mut().enable();
                if self.grow(bytes) {
                    return;
                }
                freed.await;
            }
        };
        tokio::time::timeout(patience, waiting).await.map_err(|_| memory_refusal())
    }
}

fn memory_refusal() -> Refusal {
    let message = "too many request bodies of this namespace and others are in memory; try again";
    Refusal::new(Code::TooManyCalls, message).retry_after(2)
}

impl Drop for BodyReservation {
    fn drop(&mut self) {
        self.bodies.lock().give_back(&self.namespace, self.bytes);
        self.bodies.0.freed.notify_waiters();
    }
}

impl BodyMemory {
    /// All memory is free.
    pub fn new(sizes: BodyLimits) -> Self {
        Self(Arc::new(Shared { sizes, counts: Mutex::new(Counts::new(sizes)), freed: Notify::new() }))
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the body of a call from `namespace`.
    pub async fn read(&self, namespace: &str, body: Body) -> Result<(Vec<u8>, BodyReservation), Refusal> {
        let place = BodyReservation { bodies: self.clone(), namespace: namespace.to_owned(), bytes: 0 };
        let reading = tokio::time::timeout(self.0.sizes.within, read_whole(body, place, self.0.sizes.max_body_bytes)).await;
        reading.map_err(|_| Refusal::new(Code::InvalidBody, "the body did not arrive in time").field("(body)"))?
    }
}

async fn read_whole(mut body: Body, mut place: BodyReservation, most: usize) -> Result<(Vec<u8>, BodyReservation), Refusal> {
    let too_large = || Refusal::new(Code::BodyTooLarge, format!("the body has more than {most} bytes")).field("(body)");
    // A call with a known length waits for all its memory before it reads: with parts of bodies in memory, calls could
    // wait for each other.
    let said = body.size_hint().exact().map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX)).unwrap_or_default();
    if said > most {
        // The body is read up to the limit and discarded: a client whose connection is cut while it sends does not see
        // the answer.
        let mut passed = 0;
        while passed <= most
            && let Some(Ok(frame)) = body.frame().await
        {
            passed += frame.data_ref().map_or(0, |data| data.len());
        }
        return Err(too_large());
    }
    place.wait(said).await?;
    let mut read = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Refusal::new(Code::InvalidBody, format!("the body cannot be read: {error}")).field("(body)"))?;
        let Ok(data) = frame.into_data() else { continue };
        let length = read.len() + data.len();
        if length > most {
            return Err(too_large());
        }
        if !place.grow(length.saturating_sub(place.bytes)) {
            return Err(memory_refusal());
        }
        read.extend_from_slice(&data);
    }
    Ok((read, place))
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use proptest::prelude::*;

    use super::*;
    use crate::gateway::models::MODEL_BODY_LIMITS as MODELS;
    use crate::gateway::routes::AGENT_BODY_LIMITS as AGENTS;
    use crate::governor::server::GOVERNOR_BODY_LIMITS as CALLS;
    use crate::serve::fair_semaphore::{Bounds, FairSemaphore};

    const MIB: usize = 1 << 20;
    const MOST: usize = MODELS.max_body_bytes;
    const PATIENCE: Duration = MODELS.memory_wait;
    /// All limits that are in use.
    const ALL: [BodyLimits; 3] = [MODELS, AGENTS, CALLS];

    fn body(bytes: usize) -> Body {
        Body::from(vec![b'x'; bytes])
    }

    /// Bytes of all bodies, and the number of namespaces that have some.
    fn held(bodies: &BodyMemory) -> (usize, usize) {
        let counts = bodies.lock();
        (counts.all, counts.by_namespace.len())
    }

    fn code(read: Result<(Vec<u8>, BodyReservation), Refusal>) -> Option<Code> {
        read.err().map(|refusal| refusal.code)
    }

    #[tokio::test(start_paused = true)]
    async fn the_largest_body_passes_alone_and_what_is_refused_has_no_room() {
        let bodies = BodyMemory::new(MODELS);
        let (first, place) = bodies.read("team", body(MOST)).await.expect("room");
        assert_eq!((first.len(), place.bytes), (MOST, MOST));
        assert_eq!(code(bodies.read("team", body(30 * MIB)).await), Some(Code::TooManyCalls), "after it has waited");
        drop(place);
        assert_eq!(code(bodies.read("team", body(MOST + 1)).await), Some(Code::BodyTooLarge));
        assert_eq!(held(&bodies), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn two_namespaces_that_take_all_they_can_keep_no_third_one_out() {
        let bodies = BodyMemory::new(MODELS);
        let mut taken = Vec::new();
        for namespace in ["loud", "louder"] {
            for bytes in [30 * MIB, 8 * MIB, MIB, 256 * 1024] {
                while let Ok((_, place)) = bodies.read(namespace, body(bytes)).await {
                    taken.push(place);
                }
            }
        }
        let (_, third) = bodies.read("third", body(2 * MIB)).await.expect("room for a third one");
        drop(third);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_waits_for_room_that_is_given_back() {
        let bodies = BodyMemory::new(MODELS);
        let (_, place) = bodies.read("team", body(MOST)).await.expect("room");
        let waiting = tokio::spawn({
            let bodies = bodies.clone();
            async move { bodies.read("team", body(MOST)).await.map(|_| ()) }
        });
        tokio::time::sleep(PATIENCE / 2).await;
        assert!(!waiting.is_finished());
        drop(place);
        assert_eq!(waiting.await.expect("no panic"), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn so_many_of_a_namespace_wait_for_room_and_no_more() {
        let bodies = BodyMemory::new(MODELS);
        let (_, _place) = bodies.read("loud", body(MOST)).await.expect("room");
        let mut waiting: Vec<_> = (0..MAX_WAITING_CALLS).map(|_| Box::pin(bodies.read("loud", body(MOST)))).collect();
        assert!(waiting.iter_mut().all(|call| call.now_or_never().is_none()));
        let further = Box::pin(bodies.read("loud", body(MOST))).now_or_never().expect("at once");
        assert_eq!(code(further), Some(Code::TooManyCalls));
        let mut other = Box::pin(bodies.read("louder", body(MOST)));
        assert!((&mut other).now_or_never().is_none(), "another namespace waits, and is not refused");
        drop((waiting, other));
        assert!(bodies.lock().waiting.is_empty());
    }

    /// Agents' calls that write, with the largest bodies, while no write ever ends.
    #[tokio::test(start_paused = true)]
    async fn what_waits_for_its_turn_to_write_is_a_bounded_sum_and_others_come_through() {
        for sizes in [AGENTS, CALLS] {
            let (bodies, turns) = (BodyMemory::new(sizes), FairSemaphore::new(Bounds { total: 2, per_namespace: 1, max_waiting: 8_000 }));
            let call = async |namespace: &str, bytes: usize| {
                let (read, _place) = bodies.read(namespace, body(bytes)).await?;
                let turn = tokio::time::timeout(Duration::from_secs(5), turns.take(namespace)).await;
                Ok::<_, Refusal>((read.len(), turn.is_ok()))
            };
            let _never_ends = turns.take("loud").await;
            let calls = (0..100).map(|_| call("loud", sizes.max_body_bytes));
            let looking = async {
                for _ in 0..30 {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    let (held, _) = held(&bodies);
                    assert!(held <= sizes.total_bytes && held >= sizes.max_body_bytes, "{held} bytes of {sizes:?}");
                }
                let quiet = call("quiet", 2048).await.expect("there is room for a heartbeat");
                assert_eq!(quiet, (2048, true), "and a turn");
            };
            let (ended, ()) = tokio::join!(futures::future::join_all(calls), looking);
            let codes = ended.into_iter().filter_map(Result::err).map(|refusal| (refusal.code, refusal.retry_after_seconds));
            assert!(codes.into_iter().all(|refused| refused == (Code::TooManyCalls, Some(2))));
            assert_eq!(held(&bodies), (0, 0));
        }
    }

    #[test]
    fn every_room_takes_one_body_of_the_most_bytes_and_keeps_a_reserve_for_many() {
        for sizes in ALL {
            assert!(Counts::new(sizes).take("team", sizes.max_body_bytes), "{sizes:?}");
            assert!(sizes.reserve < sizes.total_bytes && sizes.guaranteed * 8 <= sizes.reserve, "{sizes:?}");
        }
    }

    proptest! {
        /// While up to sixty other namespaces hold any memory, a namespace that holds nothing can read a small body.
        #[test]
        fn a_small_body_of_a_newcomer_always_has_room(
            taken in prop::collection::vec((0..60_usize, 1..MOST), 0..400), small in 1..=MODELS.guaranteed,
        ) {
            let mut counts = Counts::new(MODELS);
            for (namespace, bytes) in taken {
                let namespace = format!("n{namespace}");
                // As much of it as the limits allow.
                let mut bytes = bytes;
                while bytes > 0 && !counts.take(&namespace, bytes) {
                    bytes /= 2;
                }
            }
            prop_assert!(counts.all <= MODELS.total_bytes);
            prop_assert_eq!(counts.all, counts.by_namespace.values().sum::<usize>());
            prop_assert!(counts.take("newcomer", small), "{} are free", MODELS.total_bytes - counts.all);
        }

        /// After any sequence of takes and returns, the sum is below the limit, and one namespace is below its share.
        #[test]
        fn what_all_have_together_is_bounded(
            taken in prop::collection::vec((any::<bool>(), 0..9_usize, 1..64_usize), 0..400), which in 0..ALL.len(),
        ) {
            let sizes = ALL[which];
            let (mut counts, mut had) = (Counts::new(sizes), Vec::new());
            for (back, namespace, part) in taken {
                if back && !had.is_empty() {
                    let (namespace, bytes): (String, usize) = had.swap_remove(part % had.len());
                    counts.give_back(&namespace, bytes);
                } else {
                    let (namespace, bytes) = (format!("n{namespace}"), sizes.max_body_bytes / part);
                    if counts.take(&namespace, bytes) {
                        had.push((namespace, bytes));
                    }
                }
                prop_assert!(counts.all <= sizes.total_bytes);
                prop_assert_eq!(counts.all, had.iter().map(|(_, bytes)| bytes).sum::<usize>());
                let share = (FREE_SPACE_MULTIPLE * (sizes.total_bytes - sizes.reserve)).div_ceil(FREE_SPACE_MULTIPLE + 1).max(sizes.guaranteed);
                prop_assert!(counts.by_namespace.values().all(|own| *own <= share));
            }
        }
    }
}
