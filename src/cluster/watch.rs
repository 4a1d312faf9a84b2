//! One watch for each kind, kept in a store, with a tap that turns events into work.
//!
//! A malformed object must not block other objects, so custom resources are read through [`Tolerant`]. Objects are
//! pruned before they are kept, so that memory grows with the used fields, and not with fields that others write. A
//! list is read in pages. A page is in memory as a whole, so pages are short enough for large objects ([`config`]).

use std::fmt::Debug;
use std::hash::Hash;

use futures::{Stream, StreamExt};
use kube::Resource;
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::{Lookup, Store, store};
use kube::runtime::watcher::{self, Event};
use tokio::task::JoinSet;

pub use super::tolerant::{MetadataOnly, Tolerant};

/// Objects in one page of a list. A page is in memory twice while it is read. The largest objects that users can write
/// have some 400 kB.
const LIST_PAGE_SIZE: u32 = 100;

/// The settings of all lists and watches.
pub fn config() -> watcher::Config {
    watcher::Config::default().page_size(LIST_PAGE_SIZE)
}

/// An event for the tap.
pub enum Change<'a, K>
where
    K: Lookup + 'static,
    K::DynamicType: Hash + Eq,
{
    /// The object exists; it is new or changed.
    Present(&'a K),
    /// The object was deleted; this is its last state.
    Deleted(&'a K),
    /// The store is complete: after the start, and after an interruption in which deletions may have been missed.
    Listed(&'a Store<K>),
}

/// Keeps `events` (of a `watcher`) in the returned store, by a task on `tasks`. `prune` removes unused fields. `tap`
/// must not block.
pub fn start<K>(
    tasks: &mut JoinSet<()>,
    events: impl Stream<Item = watcher::Result<Event<K>>> + Send + 'static,
    prune: impl Fn(&mut K) + Send + 'static,
    mut tap: impl FnMut(Change<'_, K>) + Send + 'static,
) -> Store<K>
where
    K: Resource + Lookup + Clone + Debug + Send + Sync + 'static,
    <K as Lookup>::DynamicType: Default + Eq + Hash + Clone + Debug + Unpin + Send + Sync,
{
    let (reader, mut writer) = store();
    let listed = reader.clone();
    tasks.spawn(async move {
        let mut events = events
            .default_backoff()
            .modify(move |object| {
                object.meta_mut().managed_fields = None;
                prune(object);
            })
            .boxed();
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    // The store is updated first, because the tap must find the object there.
                    writer.apply_watcher_event(&event);
                    match &event {
                        Event::Apply(object) => tap(Change::Present(object)),
                        Event::Delete(object) => tap(Change::Deleted(object)),
                        Event::InitDone => tap(Change::Listed(&listed)),
                        Event::Init | Event::InitApply(_) => {}
                    }
                }
                Err(error) => tracing::warn!(object = std::any::type_name::<K>(), %error, "a watch broke; starting it again"),
            }
        }
    });
    reader
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory of a controller's container, in the chart's values.
    const CONTAINER: usize = 256 * 1024 * 1024;
    /// Bytes of the largest object that a user can write.
    const LARGEST: usize = 400_000;

    #[test]
    fn a_page_of_the_largest_objects_is_a_third_of_the_controllers_memory_at_most() {
        let page = config().page_size.expect("lists are read in pages");
        assert!(2 * LARGEST * usize::try_from(page).expect("small") <= CONTAINER / 3, "{page} objects");
    }
}
