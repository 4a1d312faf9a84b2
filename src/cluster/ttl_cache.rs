//! A cache for answers that many calls need. Concurrent calls for the same key share one request. An answer is cached
//! for a short time, and shortly before it expires a call starts a renewal in the background, so that frequent callers
//! do not wait.
//!
//! It knows nothing about the requests. A request whose callers are all gone is dropped, except a renewal, so each
//! request must end by itself.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared, WeakShared};

use super::clock::BootTime;
use crate::policy::sweep::Sweep;

/// An answer that is needed this long before it expires is renewed. Answers that are cached for less than twice this
/// time are not.
const RENEW_BEFORE_EXPIRY: Duration = Duration::from_secs(5);
/// From this number of answers on, useless ones are removed.
const SWEEP_THRESHOLD: usize = 256;
/// How long after a failed renewal the next one may start.
const RENEW_RETRY_DELAY: Duration = Duration::from_secs(1);

struct CachedAnswer<V> {
    answer: V,
    since: BootTime,
    /// When the last renewal started.
    tried: Option<BootTime>,
}

struct State<K, V> {
    known: HashMap<K, CachedAnswer<V>>,
    /// The running requests, each with a unique number.
    running: HashMap<K, (u64, WeakShared<BoxFuture<'static, V>>)>,
    number: u64,
    /// When useless answers are removed from `known`.
    sweep: Sweep,
}

struct Entries<K, V> {
    /// How long an answer is valid. Zero: it is not cached.
    keep: fn(&V) -> Duration,
    /// The most cached answers.
    most: usize,
    state: Mutex<State<K, V>>,
}

/// The cache.
pub struct TtlCache<K, V>(Arc<Entries<K, V>>);

impl<K, V> TtlCache<K, V>
where
    K: Eq + Hash + Clone + Send + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// An empty cache. `keep` returns how long an answer is valid, and `most` is the most cached answers.
    pub fn new(keep: fn(&V) -> Duration, most: usize) -> Self {
        let state = State { known: HashMap::new(), running: HashMap::new(), number: 0, sweep: Sweep::new(SWEEP_THRESHOLD.min(most)) };
        Self(Arc::new(Entries { keep, most, state: Mutex::new(state) }))
    }

    fn lock(&self) -> MutexGuard<'_, State<K, V>> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer for this key. `ask` starts a request if none is running. It gets the last known answer, of any age.
    /// Err: `ask` refused to start a request.
    pub async fn get<F, E>(&self, key: K, ask: impl FnOnce(Option<&V>) -> Result<F, E>) -> Result<V, E>
    where
        F: Future<Output = V> + Send + 'static,
    {
        let asking = {
            let mut state = self.lock();
            let asking = state.running.get(&key).and_then(|(_, asking)| asking.upgrade());
            let known = state.known.get_mut(&key);
            let keep = known.as_ref().map(|known| ((self.0.keep)(&known.answer), known.since.elapsed()));
            match (known, keep) {
                (Some(known), Some((keep, age))) if age < keep => {
                    let answer = known.answer.clone();
                    let due = keep >= 2 * RENEW_BEFORE_EXPIRY
                        && age + RENEW_BEFORE_EXPIRY >= keep
                        && known.tried.is_none_or(|tried| tried.elapsed() >= RENEW_RETRY_DELAY);
                    if due && asking.is_none() {
                        known.tried = Some(BootTime::now());
                        if let Ok(asked) = ask(Some(&answer)) {
                            tokio::spawn(self.begin(&mut state, key, asked));
                        }
                    }
                    return Ok(answer);
                }
                (known, _) => match asking {
                    Some(asking) => asking,
                    None => {
                        let asked = ask(known.map(|known| &known.answer))?;
                        self.begin(&mut state, key, asked)
                    }
                },
            }
        };
        Ok(asking.await)
    }

    /// Forgets the answer for this key, and the result of a running request.
    pub fn forget(&self, key: &K) {
        let mut state = self.lock();
        state.known.remove(key);
        state.running.remove(key);
    }

    fn begin(&self, state: &mut State<K, V>, key: K, asked: impl Future<Output = V> + Send + 'static) -> Shared<BoxFuture<'static, V>> {
        state.number += 1;
        let (all, own, number) = (Self(self.0.clone()), key.clone(), state.number);
        let asking = async move {
            let answer = asked.await;
            all.store(own, number, &answer);
            answer
        };
        let asking = asking.boxed().shared();
        state.running.retain(|_, (_, asking)| asking.upgrade().is_some());
        state.running.extend(asking.downgrade().map(|asking| (key, (number, asking))));
        asking
    }

    fn store(&self, key: K, number: u64, answer: &V) {
        let mut state = self.lock();
        if state.running.get(&key).is_none_or(|(of, _)| *of != number) {
            return; // the key was forgotten meanwhile
        }
        state.running.remove(&key);
        let (keep, most) = (self.0.keep, self.0.most);
        if keep(answer).is_zero() {
            return;
        }
        if (state.sweep.is_due(state.known.len()) || state.known.len() >= most) && !state.known.contains_key(&key) {
            // An expired answer is still useful: `ask` gets it.
            state.known.retain(|_, known| known.since.elapsed() < 4 * keep(&known.answer));
            let left = state.known.len();
            state.sweep.done(left);
        }
        if state.known.len() < most || state.known.contains_key(&key) {
            state.known.insert(key, CachedAnswer { answer: answer.clone(), since: BootTime::now(), tried: None });
        }
    }

    /// Makes all answers older, for a test.
    #[cfg(test)]
    pub fn pass(&self, time: Duration) {
        let back = |at: BootTime| BootTime::default().after(at.since(BootTime::default()).saturating_sub(time));
        for known in self.lock().known.values_mut() {
            (known.since, known.tried) = (back(known.since), known.tried.map(back));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Semaphore;

    use super::*;

    const KEEP: Duration = Duration::from_secs(30);

    /// Answers with the number of its requests, once it is allowed to.
    #[derive(Clone)]
    struct SlowSource(Arc<(AtomicUsize, Semaphore)>);

    impl SlowSource {
        fn new() -> Self {
            Self(Arc::new((AtomicUsize::new(0), Semaphore::new(0))))
        }

        fn begin(&self) -> Result<impl Future<Output = usize> + Send + use<>, Infallible> {
            let Self(own) = self.clone();
            let number = self.asked() + 1;
            own.0.store(number, Ordering::SeqCst);
            Ok(async move {
                own.1.acquire().await.expect("it is open").forget();
                number
            })
        }

        fn asked(&self) -> usize {
            self.0.0.load(Ordering::SeqCst)
        }

        fn answer(&self, times: usize) {
            self.0.1.add_permits(times);
        }
    }

    fn forgetful() -> TtlCache<&'static str, usize> {
        TtlCache::new(|_| Duration::ZERO, 8)
    }

    #[tokio::test]
    async fn who_asks_at_the_same_time_is_answered_at_once_and_who_comes_later_asks() {
        let (all, slow) = (forgetful(), SlowSource::new());
        let ask = |key: &'static str| all.get(key, |_| slow.begin());
        let many = futures::future::join_all((0..100).map(|_| ask("a")));
        let let_go = async { slow.answer(1) };
        assert!(futures::join!(many, let_go).0.into_iter().all(|answer| answer == Ok(1)));
        slow.answer(2);
        assert_eq!(futures::join!(ask("a"), ask("b")), (Ok(2), Ok(3)), "an answer is not kept, and is for its own key");
        assert!(all.lock().running.is_empty());
    }

    #[tokio::test]
    async fn who_leaves_takes_nobodys_answer_along_and_what_was_left_alone_is_asked_anew() {
        let (all, slow) = (forgetful(), SlowSource::new());
        let ask = || Box::pin(all.get("a", |_| slow.begin()));
        let (mut first, mut second) = (ask(), ask());
        assert!(futures::poll!(&mut first).is_pending() && futures::poll!(&mut second).is_pending());
        drop(first);
        slow.answer(1);
        assert_eq!(second.await, Ok(1));
        let mut left = ask();
        assert!(futures::poll!(&mut left).is_pending());
        drop(left);
        slow.answer(1);
        assert_eq!(ask().await, Ok(3));
    }

    #[tokio::test]
    async fn who_may_not_ask_is_told_and_hinders_nobody() {
        let (all, slow) = (forgetful(), SlowSource::new());
        let refused = all.get("a", |_| Err::<std::future::Ready<usize>, _>("no")).await;
        assert_eq!(refused, Err("no"));
        slow.answer(1);
        assert_eq!(all.get("a", |_| slow.begin()).await, Ok(1));
    }

    #[tokio::test]
    async fn who_calls_often_waits_for_no_renewal_and_nobody_is_believed_for_longer() {
        let (all, slow) = (TtlCache::new(|_| KEEP, 8), SlowSource::new());
        let ask = || all.get("a", |_| slow.begin());
        slow.answer(1);
        assert_eq!(ask().await, Ok(1));
        all.pass(KEEP - RENEW_BEFORE_EXPIRY - RENEW_RETRY_DELAY);
        assert_eq!((ask().await, slow.asked()), (Ok(1), 1), "it is fresh");
        all.pass(RENEW_RETRY_DELAY);
        for _ in 0..3 {
            assert_eq!((ask().await, slow.asked()), (Ok(1), 2), "one renewal at a time, for which nobody waits");
        }
        all.pass(RENEW_BEFORE_EXPIRY);
        let mut waits = Box::pin(ask());
        assert!(futures::poll!(&mut waits).is_pending(), "it is too old");
        slow.answer(1);
        assert_eq!(waits.await, Ok(2), "what was asked beside the others is for everybody");
        assert_eq!((ask().await, slow.asked()), (Ok(2), 2));
    }

    #[tokio::test]
    async fn a_renewal_that_brings_nothing_is_not_tried_with_every_call() {
        let (all, slow) = (TtlCache::new(|answer| if *answer == 1 { KEEP } else { Duration::ZERO }, 8), SlowSource::new());
        let ask = || all.get("a", |_| slow.begin());
        slow.answer(10);
        assert_eq!(ask().await, Ok(1));
        all.pass(KEEP - RENEW_BEFORE_EXPIRY);
        for _ in 0..5 {
            assert_eq!(ask().await, Ok(1));
            tokio::task::yield_now().await;
        }
        assert_eq!(slow.asked(), 2);
        all.pass(RENEW_RETRY_DELAY);
        assert_eq!((ask().await, slow.asked()), (Ok(1), 3));
    }

    #[tokio::test]
    async fn what_was_asked_before_it_was_forgotten_is_believed_by_nobody_who_comes_later() {
        let (all, slow) = (TtlCache::new(|_| KEEP, 8), SlowSource::new());
        let ask = || all.get("a", |_| slow.begin());
        let mut early = Box::pin(ask());
        assert!(futures::poll!(&mut early).is_pending());
        all.forget(&"a");
        let mut late = Box::pin(ask());
        assert!(futures::poll!(&mut late).is_pending());
        slow.answer(2);
        assert_eq!((early.await, late.await, ask().await), (Ok(1), Ok(2), Ok(2)));
    }

    #[tokio::test]
    async fn what_is_of_no_use_any_more_is_not_kept_until_there_is_no_place_left() {
        let all = TtlCache::new(|_: &usize| KEEP, 100 * SWEEP_THRESHOLD);
        let ask = async |key: usize| all.get(key, |_| Ok::<_, Infallible>(async move { key })).await;
        for key in 0..SWEEP_THRESHOLD {
            assert_eq!(ask(key).await, Ok(key));
        }
        all.pass(4 * KEEP);
        assert_eq!(ask(SWEEP_THRESHOLD).await, Ok(SWEEP_THRESHOLD));
        assert_eq!(all.lock().known.len(), 1, "the others are of no use");
    }

    #[tokio::test]
    async fn as_many_are_remembered_as_may_be_and_those_are_renewed() {
        let (all, slow) = (TtlCache::new(|_| KEEP, 1), SlowSource::new());
        slow.answer(10);
        assert_eq!(all.get("a", |_| slow.begin()).await, Ok(1));
        assert_eq!(all.get("b", |_| slow.begin()).await, Ok(2));
        assert_eq!(all.get("b", |_| slow.begin()).await, Ok(3), "there was no room for it");
        all.pass(KEEP);
        assert_eq!(
            all.get("a", |before| before
                .map(|_| ())
                .ok_or("it is known still")
                .and_then(|()| slow.begin().map_err(|never| match never {})))
                .await,
            Ok(4)
        );
        all.pass(4 * KEEP);
        assert_eq!(all.get("b", |_| slow.begin()).await, Ok(5));
        assert_eq!(all.get("b", |_| slow.begin()).await, Ok(5));
    }
}
