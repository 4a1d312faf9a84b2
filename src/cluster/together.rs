//! One question for all who ask the same at the same time: when what many know grows old at once, they must not all ask.
//!
//! It remembers nothing: who comes after the answer asks anew. What nobody waits for any more is dropped, and its answer is
//! given to nobody.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared, WeakShared};

type Asking<K, V> = HashMap<K, WeakShared<BoxFuture<'static, V>>>;

/// What is being asked.
pub struct Together<K, V>(Arc<Mutex<Asking<K, V>>>);

impl<K, V> Default for Together<K, V> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

fn lock<K, V>(asking: &Mutex<Asking<K, V>>) -> MutexGuard<'_, Asking<K, V>> {
    asking.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<K, V> Together<K, V>
where
    K: Eq + Hash + Clone + Send + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// The answer to what is asked under this key; `ask` begins to, if nobody does. Err: it may not be asked now.
    pub async fn ask<F, E>(&self, key: K, ask: impl FnOnce() -> Result<F, E>) -> Result<V, E>
    where
        F: Future<Output = V> + Send + 'static,
    {
        let asking = {
            let mut all = lock(&self.0);
            match all.get(&key).and_then(WeakShared::upgrade) {
                Some(asking) => asking,
                None => self.begin(&mut all, key, ask()?),
            }
        };
        Ok(asking.await)
    }

    /// Asks under this key if nobody does, beside whoever calls: who asks until it is answered has that answer.
    pub fn renew<F>(&self, key: K, ask: impl FnOnce() -> F)
    where
        F: Future<Output = V> + Send + 'static,
    {
        let mut all = lock(&self.0);
        if all.get(&key).and_then(WeakShared::upgrade).is_none() {
            tokio::spawn(self.begin(&mut all, key, ask()));
        }
    }

    fn begin(&self, all: &mut Asking<K, V>, key: K, answer: impl Future<Output = V> + Send + 'static) -> Shared<BoxFuture<'static, V>> {
        let (asked, own) = (self.0.clone(), key.clone());
        let asking = async move {
            let answer = answer.await;
            // From here on it may be old.
            lock(&asked).remove(&own);
            answer
        };
        let asking = asking.boxed().shared();
        all.retain(|_, asking| asking.upgrade().is_some());
        all.extend(asking.downgrade().map(|asking| (key, asking)));
        asking
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Semaphore;

    /// Answers with how often it was asked, when it is let.
    #[derive(Clone)]
    struct Slow(Arc<(AtomicUsize, Semaphore)>);

    impl Slow {
        fn new() -> Self {
            Self(Arc::new((AtomicUsize::new(0), Semaphore::new(0))))
        }

        fn begin(&self) -> Result<impl Future<Output = usize> + Send + use<>, Infallible> {
            let Self(own) = self.clone();
            let number = own.0.fetch_add(1, Ordering::SeqCst) + 1;
            Ok(async move {
                own.1.acquire().await.expect("it is open").forget();
                number
            })
        }
    }

    #[tokio::test]
    async fn who_asks_at_the_same_time_is_answered_at_once_and_who_comes_later_asks() {
        let (together, slow) = (Together::default(), Slow::new());
        let ask = |key: &'static str| together.ask(key, || slow.begin());
        let all = futures::future::join_all((0..100).map(|_| ask("a")));
        let let_go = async { slow.0.1.add_permits(1) };
        assert!(futures::join!(all, let_go).0.into_iter().all(|answer| answer == Ok(1)));
        slow.0.1.add_permits(2);
        assert_eq!(futures::join!(ask("a"), ask("b")), (Ok(2), Ok(3)), "an answer is not kept, and is for its own key");
        assert!(lock(&together.0).is_empty());
    }

    #[tokio::test]
    async fn who_leaves_takes_nobodys_answer_along_and_what_was_left_alone_is_asked_anew() {
        let (together, slow) = (Together::default(), Slow::new());
        let ask = || Box::pin(together.ask("a", || slow.begin()));
        let (mut first, mut second) = (ask(), ask());
        assert!(futures::poll!(&mut first).is_pending() && futures::poll!(&mut second).is_pending());
        drop(first);
        slow.0.1.add_permits(1);
        assert_eq!(second.await, Ok(1));
        let mut left = ask();
        assert!(futures::poll!(&mut left).is_pending());
        drop(left);
        slow.0.1.add_permits(1);
        assert_eq!(ask().await, Ok(3));
    }

    #[tokio::test]
    async fn what_is_renewed_is_asked_once_and_whoever_comes_meanwhile_has_that_answer() {
        let (together, slow) = (Together::default(), Slow::new());
        let renew = || together.renew("a", || slow.begin().unwrap_or_else(|never| match never {}));
        renew();
        renew();
        let coming = Box::pin(together.ask("a", || slow.begin()));
        slow.0.1.add_permits(1);
        assert_eq!(coming.await, Ok(1));
        assert_eq!(slow.0.0.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn who_may_not_ask_is_told_and_hinders_nobody() {
        let (together, slow) = (Together::default(), Slow::new());
        let refused = together.ask("a", || Err::<std::future::Ready<usize>, _>("no")).await;
        assert_eq!(refused, Err("no"));
        slow.0.1.add_permits(1);
        assert_eq!(together.ask("a", || slow.begin()).await, Ok(1));
    }
}
