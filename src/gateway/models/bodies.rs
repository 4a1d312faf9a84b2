//! Reading the bodies of calls within bounds: of one call, of a namespace, of the whole process.
//!
//! A namespace may have at most twice what is free, without a reserve; and out of the reserve a little, whatever others have. So
//! one alone gets half of the room, and however many take all they can, no set of some sixty namespaces keeps another one out.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use http_body_util::BodyExt as _;
use hyper::body::Body as _;
use tokio::sync::Notify;

use crate::wire::{Code, Refusal};

/// The most bytes of one body: what providers take.
pub const MOST: usize = 32 * 1024 * 1024;
/// How long one may take to come.
const WITHIN: Duration = Duration::from_secs(60);
/// How long a call waits for room.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of all that are in memory at once. Each is there twice: as it came, and as it goes.
const OF_ALL: usize = 64 * 1024 * 1024;
/// Of these, what is for namespaces that have no more than [`GUARANTEED`].
const RESERVE: usize = 16 * 1024 * 1024;
/// Bytes that a namespace gets as long as the reserve lasts: some calls of a conversation.
const GUARANTEED: usize = 256 * 1024;
/// A namespace may have so many times what is free: one body of the most bytes goes through while nothing else does.
const SHARE: usize = 2;

/// How many bytes there are. Cheap to clone.
#[derive(Clone, Default)]
pub struct Bodies(Arc<Shared>);

#[derive(Default)]
struct Shared {
    counts: Mutex<Counts>,
    freed: Notify,
}

#[derive(Default)]
struct Counts {
    all: usize,
    of: HashMap<String, usize>,
}

impl Counts {
    /// Takes room for so many more bytes of a namespace, if there is any for it.
    fn take(&mut self, namespace: &str, bytes: usize) -> bool {
        let own = self.of.get(namespace).copied().unwrap_or_default() + bytes;
        let Some(free) = OF_ALL.checked_sub(self.all + bytes) else { return false };
        let takes = own <= GUARANTEED || own <= SHARE * free.saturating_sub(RESERVE);
        if takes {
            self.all += bytes;
            self.of.insert(namespace.to_owned(), own);
        }
        takes
    }

    fn give_back(&mut self, namespace: &str, bytes: usize) {
        self.all = self.all.saturating_sub(bytes);
        if let Some(own) = self.of.get_mut(namespace) {
            *own = own.saturating_sub(bytes);
            if *own == 0 {
                self.of.remove(namespace);
            }
        }
    }
}

/// The room of one body, until it is dropped.
pub struct Place {
    bodies: Bodies,
    namespace: String,
    bytes: usize,
}

impl Place {
    /// Takes room for so many more bytes, if there is any.
    fn grow(&mut self, bytes: usize) -> bool {
        let takes = self.bodies.lock().take(&self.namespace, bytes);
        self.bytes += if takes { bytes } else { 0 };
        takes
    }

    /// Takes room for `bytes`; while there is none, waits for a moment.
    async fn wait(&mut self, bytes: usize) -> Result<(), Refusal> {
        let bodies = self.bodies.clone();
        let waiting = async {
            loop {
                let freed = bodies.0.freed.notified();
                tokio::pin!(freed);
                // From here on nothing that is freed is missed.
                freed.as_mut().enable();
                if self.grow(bytes) {
                    return;
                }
                freed.await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.map_err(|_| full())
    }
}

fn full() -> Refusal {
    let message = "the bodies of calls that this namespace and others send take all the room that is for them; try again";
    Refusal::new(Code::TooManyCalls, message).retry_after(2)
}

impl Drop for Place {
    fn drop(&mut self) {
        self.bodies.lock().give_back(&self.namespace, self.bytes);
        self.bodies.0.freed.notify_waiters();
    }
}

impl Bodies {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the body of a call from `namespace`.
    pub async fn read(&self, namespace: &str, body: Body) -> Result<(Vec<u8>, Place), Refusal> {
        let place = Place { bodies: self.clone(), namespace: namespace.to_owned(), bytes: 0 };
        let reading = tokio::time::timeout(WITHIN, whole(body, place)).await;
        reading.map_err(|_| Refusal::new(Code::InvalidBody, "the body did not come in time").field("(body)"))?
    }
}

async fn whole(mut body: Body, mut place: Place) -> Result<(Vec<u8>, Place), Refusal> {
    let too_large = || Refusal::new(Code::BodyTooLarge, format!("the body has more than {MOST} bytes")).field("(body)");
    // Whoever says how much will come waits for room before any of it is here: with a part of it others might wait for each other.
    let said = body.size_hint().exact().map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX)).unwrap_or_default();
    if said > MOST {
        return Err(too_large());
    }
    place.wait(said).await?;
    let mut read = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Refusal::new(Code::InvalidBody, format!("the body cannot be read: {error}")).field("(body)"))?;
        let Ok(data) = frame.into_data() else { continue };
        let length = read.len() + data.len();
        if length > MOST {
            return Err(too_large());
        }
        if !place.grow(length.saturating_sub(place.bytes)) {
            return Err(full());
        }
        read.extend_from_slice(&data);
    }
    Ok((read, place))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: usize = 1 << 20;

    fn body(bytes: usize) -> Body {
        Body::from(vec![b'x'; bytes])
    }

    fn code(read: Result<(Vec<u8>, Place), Refusal>) -> Option<Code> {
        read.err().map(|refusal| refusal.code)
    }

    #[tokio::test(start_paused = true)]
    async fn the_largest_body_passes_alone_and_what_is_refused_has_no_room() {
        let bodies = Bodies::default();
        let (first, place) = bodies.read("team", body(MOST)).await.expect("room");
        assert_eq!((first.len(), place.bytes), (MOST, MOST));
        assert_eq!(code(bodies.read("team", body(30 * MIB)).await), Some(Code::TooManyCalls), "after it has waited");
        drop(place);
        assert_eq!(code(bodies.read("team", body(MOST + 1)).await), Some(Code::BodyTooLarge));
        assert_eq!((bodies.lock().all, bodies.lock().of.len()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn two_namespaces_that_take_all_they_can_keep_no_third_one_out() {
        let bodies = Bodies::default();
        let mut taken = Vec::new();
        for namespace in ["loud", "louder"] {
            for bytes in [30 * MIB, 8 * MIB, MIB, 256 * 1024] {
                while let Ok((_, place)) = bodies.read(namespace, body(bytes)).await {
                    taken.push(place);
                }
            }
        }
        let (_, third) = bodies.read("third", body(4 * MIB)).await.expect("room for a third one");
        drop(third);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_waits_for_room_that_is_given_back() {
        let bodies = Bodies::default();
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

    proptest! {
        /// Whatever others hold, and however many they are up to sixty, a namespace that holds nothing gets a small body in.
        #[test]
        fn a_small_body_of_a_newcomer_always_has_room(
            taken in prop::collection::vec((0..60_usize, 1..MOST), 0..400), small in 1..256_usize * 1024,
        ) {
            let mut counts = Counts::default();
            for (namespace, bytes) in taken {
                let namespace = format!("n{namespace}");
                // As much of it as there is room for.
                let mut bytes = bytes;
                while bytes > 0 && !counts.take(&namespace, bytes) {
                    bytes /= 2;
                }
            }
            prop_assert!(counts.all <= OF_ALL);
            prop_assert_eq!(counts.all, counts.of.values().sum::<usize>());
            prop_assert!(counts.take("newcomer", small), "{} are free", OF_ALL - counts.all);
        }
    }
}
