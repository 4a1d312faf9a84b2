//! The commands for work: items and queues. They write `spec` only; the governor writes `status`.
//!
//! | file | for |
//! |---|---|
//! | this one | reads that several commands share |
//! | [`ask`], [`submit`], [`queue`](mod@queue), [`cancel`], [`priority`], [`redrive`], [`release`], [`diff`] | one command each |
//! | [`payload`], [`follow`] | of `submit` and `ask`: reading the task, reporting the progress of the items |
//! | [`from_git`] | of `submit`: reading tasks from a git repository |
//! | [`stats`] | of `queue`: rates and times. Pure |
//! | [`changeset`] | the changes of an item as short texts, for `diff` and `explain`. Pure |
//! | [`life`] | the state of an item as a short text, the order of items, allowed changes of an item. Pure |

pub mod ask;
pub mod cancel;
pub mod changeset;
pub mod diff;
pub mod follow;
pub mod from_git;
pub mod life;
pub mod payload;
pub mod priority;
pub mod queue;
pub mod redrive;
pub mod release;
pub mod stats;
pub mod submit;

use kube::Api;
use kube::api::ListParams;
use kube::core::DeserializeGuard;
use kube::{Resource, ResourceExt as _};

use super::connect::Cluster;
use super::error::Error;
use crate::api::{WorkItem, WorkQueue};

/// Objects in one page of a list: all items with their payloads may be too large for one answer.
const LIST_PAGE_SIZE: u32 = 500;
/// Concurrent writes of items: a queue of thousands takes seconds, and the API server stays free for others.
const MAX_CONCURRENT_WRITES: usize = 8;

/// The result of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct ListedObjects<K> {
    /// The objects.
    pub objects: Vec<K>,
    /// One message for each stored object that does not fit its type.
    pub unreadable: Vec<String>,
}

/// All objects of a kind, page by page. `keep` shrinks each object before the next page is read.
pub async fn all<K>(cluster: &Cluster, everywhere: bool, fields: Option<&str>, keep: impl Fn(&mut K)) -> Result<ListedObjects<K>, Error>
where
    K: Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let api: Api<DeserializeGuard<K>> = if everywhere { Api::all(cluster.client.clone()) } else { cluster.api() };
    let mut params = ListParams { field_selector: fields.map(str::to_owned), ..ListParams::default().limit(LIST_PAGE_SIZE) };
    let mut found = ListedObjects { objects: Vec::new(), unreadable: Vec::new() };
    loop {
        let page = api.list(&params).await.map_err(Error::of::<K>(&cluster.namespace, ""))?;
        for object in page.items {
            match object.0 {
                Ok(mut object) => {
                    object.meta_mut().managed_fields = None;
                    keep(&mut object);
                    found.objects.push(object);
                }
                Err(invalid) => {
                    let name = invalid.metadata.name.unwrap_or_default();
                    found.unreadable.push(format!(
                        "{} \"{name}\" does not fit this version of the plugin: {}",
                        K::kind(&()),
                        invalid.error
                    ));
                }
            }
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok(found),
        }
    }
}

/// The items of the namespace, in the order in which agents get them, without their payloads.
pub async fn items(cluster: &Cluster, fields: Option<&str>) -> Result<ListedObjects<WorkItem>, Error> {
    let mut found = all::<WorkItem>(cluster, false, fields, |item| item.spec.payload.clear()).await?;
    life::sort_by_claim_order(&mut found.objects);
    Ok(found)
}

/// The queues of the namespace, by name.
pub async fn queues(cluster: &Cluster) -> Result<ListedObjects<WorkQueue>, Error> {
    let mut found = all::<WorkQueue>(cluster, false, None, |_| ()).await?;
    found.objects.sort_by_cached_key(|queue| queue.name_any());
    Ok(found)
}

/// The item of this name.
pub async fn item(cluster: &Cluster, name: &str) -> Result<WorkItem, Error> {
    cluster.api::<WorkItem>().get(name).await.map_err(Error::of::<WorkItem>(&cluster.namespace, name))
}

/// The queue of this name.
pub async fn queue(cluster: &Cluster, name: &str) -> Result<WorkQueue, Error> {
    cluster.api::<WorkQueue>().get(name).await.map_err(Error::of::<WorkQueue>(&cluster.namespace, name))
}

/// A number of items, as text.
pub fn item_count_text(count: usize) -> String {
    if count == 1 { "1 item".to_owned() } else { format!("{count} items") }
}
