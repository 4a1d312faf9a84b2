//! A queue of objects to reconcile. It contains each object at most once, so the number of objects bounds its length.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::Stream;
use tokio::sync::mpsc;

struct Waiting<K>(Arc<Mutex<HashSet<K>>>);

impl<K> Waiting<K> {
    fn lock(&self) -> MutexGuard<'_, HashSet<K>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sender of the queue. Never waits.
pub struct Due<K> {
    waiting: Waiting<K>,
    sender: mpsc::UnboundedSender<K>,
}

impl<K> Clone for Due<K> {
    fn clone(&self) -> Self {
        Self { waiting: Waiting(self.waiting.0.clone()), sender: self.sender.clone() }
    }
}

impl<K: Clone + Eq + Hash> Due<K> {
    /// Queues an object. Does nothing if it is queued already, or if the receiver is gone.
    pub fn send(&self, key: K) {
        if self.waiting.lock().insert(key.clone()) {
            let _ = self.sender.send(key); // the receiver is gone: the process is stopping
        }
    }
}

/// An empty queue: its sender, and the stream of its objects.
pub fn queue<K: Clone + Eq + Hash + Send + 'static>() -> (Due<K>, impl Stream<Item = K> + Send + 'static) {
    let (sender, receiver) = mpsc::unbounded_channel::<K>();
    let waiting = Arc::new(Mutex::new(HashSet::new()));
    let due = Due { waiting: Waiting(waiting.clone()), sender };
    let out = futures::stream::unfold((receiver, Waiting(waiting)), async |(mut receiver, waiting)| {
        let key = receiver.recv().await?;
        // A change after this queues the object again.
        waiting.lock().remove(&key);
        Some((key, (receiver, waiting)))
    });
    (due, out)
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, StreamExt as _};

    use super::*;

    #[tokio::test]
    async fn an_object_is_in_the_queue_once_and_again_when_it_came_out() {
        let (due, out) = queue();
        let mut out = std::pin::pin!(out);
        for _ in 0..1_000 {
            due.send("a");
            due.clone().send("b");
        }
        assert_eq!(due.waiting.lock().len(), 2);
        assert_eq!(out.next().await, Some("a"));
        due.send("a");
        assert_eq!((out.next().await, out.next().await), (Some("b"), Some("a")));
        assert!(due.waiting.lock().is_empty());
        assert!(out.next().now_or_never().is_none());
        drop(due);
        assert_eq!(out.next().await, None);
    }
}
