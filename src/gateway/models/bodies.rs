//! Reading the bodies of calls within bounds: of one call, of a namespace, of the whole process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;

use crate::wire::{Code, Refusal};

/// The most bytes of one body: what providers take.
pub const MOST: usize = 32 * 1024 * 1024;
/// How long one may take to come.
const WITHIN: Duration = Duration::from_secs(60);
/// Of all that are in memory at once. Each is there about twice: as it came, and as it goes.
const OF_ALL: usize = 64 * 1024 * 1024;
/// Of those, what one namespace may have.
const OF_ONE: usize = 40 * 1024 * 1024;

/// How many bytes there are. Cheap to clone.
#[derive(Clone, Default)]
pub struct Bodies(Arc<Mutex<Counts>>);

#[derive(Default)]
struct Counts {
    all: usize,
    of: HashMap<String, usize>,
}

/// The place of one body, until it is dropped.
pub struct Place {
    bodies: Bodies,
    namespace: String,
    bytes: usize,
}

impl Place {
    fn grow(&mut self, bytes: usize) -> Result<(), Refusal> {
        let mut counts = self.bodies.0.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |whose: &str| Refusal::new(Code::TooManyCalls, format!("too much is being sent by {whose}; try again")).retry_after(2);
        if counts.all + bytes > OF_ALL {
            return Err(full("agents of this gateway"));
        }
        let own = counts.of.entry(self.namespace.clone()).or_default();
        if *own + bytes > OF_ONE {
            return Err(full("the agents of this namespace"));
        }
        *own += bytes;
        counts.all += bytes;
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.bodies.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.all = counts.all.saturating_sub(self.bytes);
        if let Some(own) = counts.of.get_mut(&self.namespace) {
            *own = own.saturating_sub(self.bytes);
            if *own == 0 {
                counts.of.remove(&self.namespace);
            }
        }
    }
}

impl Bodies {
    /// Reads the body of a call from `namespace`.
    pub async fn read(&self, namespace: &str, body: Body) -> Result<(Bytes, Place), Refusal> {
        let place = Place { bodies: self.clone(), namespace: namespace.to_owned(), bytes: 0 };
        let reading = tokio::time::timeout(WITHIN, whole(body, place)).await;
        reading.map_err(|_| Refusal::new(Code::InvalidBody, "the body did not come in time").field("(body)"))?
    }
}

async fn whole(mut body: Body, mut place: Place) -> Result<(Bytes, Place), Refusal> {
    let mut read = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Refusal::new(Code::InvalidBody, format!("the body cannot be read: {error}")).field("(body)"))?;
        let Ok(data) = frame.into_data() else { continue };
        if read.len() + data.len() > MOST {
            return Err(Refusal::new(Code::BodyTooLarge, format!("the body has more than {MOST} bytes")).field("(body)"));
        }
        place.grow(data.len())?;
        read.extend_from_slice(&data);
    }
    Ok((read.freeze(), place))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(bytes: usize) -> Body {
        Body::from(vec![b'x'; bytes])
    }

    #[tokio::test]
    async fn one_namespace_leaves_room_for_others() {
        let bodies = Bodies::default();
        let (first, place) = bodies.read("loud", body(30 << 20)).await.expect("room");
        assert_eq!(first.len(), 30 << 20);
        let code = |read: Result<(Bytes, Place), Refusal>| read.map(|_| ()).map_err(|refusal| refusal.code);
        assert_eq!(code(bodies.read("loud", body(11 << 20)).await), Err(Code::TooManyCalls));
        let (_, other) = bodies.read("quiet", body(30 << 20)).await.expect("room");
        assert_eq!(code(bodies.read("third", body(5 << 20)).await), Err(Code::TooManyCalls));
        drop((place, other));
        assert_eq!(bodies.0.lock().expect("whole").all, 0);
        assert!(bodies.0.lock().expect("whole").of.is_empty());
        assert_eq!(code(bodies.read("loud", body(MOST + 1)).await), Err(Code::BodyTooLarge));
        assert_eq!(bodies.0.lock().expect("whole").all, 0, "what was refused has no place");
    }
}
