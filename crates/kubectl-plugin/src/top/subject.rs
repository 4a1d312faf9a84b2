//! What each subject of `top` brings, and what all of them share: a list of objects, and words about it.

use jiff::Timestamp;
use kube::api::ListParams;
use kube::core::{DeserializeGuard, NamespaceResourceScope};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use super::state::Order;
use super::view::Sheet;
use crate::connect::Cluster;
use crate::error::Error;

/// Something that can be watched.
pub trait Subject {
    /// What one look finds.
    type Snapshot;
    /// In which orders its rows may stand.
    type Sort: Order;

    /// Looks once.
    fn look(&self, cluster: &Cluster) -> impl Future<Output = Result<Self::Snapshot, Error>>;

    /// What is shown of a snapshot. Pure.
    fn sheet(snapshot: &Self::Snapshot, sort: Self::Sort, now: Timestamp) -> Sheet;
}

/// Objects of a kind, from the API server's cache: at most a moment old.
pub(super) async fn list<K>(cluster: &Cluster, everywhere: bool, fields: Option<String>) -> Result<Vec<DeserializeGuard<K>>, Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let api: Api<DeserializeGuard<K>> = if everywhere { Api::all(cluster.client.clone()) } else { cluster.api() };
    let params = ListParams { field_selector: fields, ..ListParams::default().match_any() };
    Ok(api.list(&params).await.map_err(Error::of::<K>(&cluster.namespace, ""))?.items)
}

/// One look at all objects of a kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedObjects<R> {
    /// Where was looked; none: everywhere.
    pub namespace: Option<String>,
    /// What is shown of each.
    pub rows: Vec<R>,
    /// Stored objects that do not fit their type.
    pub unreadable: usize,
}

/// Looks at all objects of a kind; `row` says what is shown of one.
pub(super) async fn listed<K, R>(cluster: &Cluster, everywhere: bool, row: fn(&K) -> R) -> Result<ListedObjects<R>, Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let all = list::<K>(cluster, everywhere, None).await?;
    Ok(ListedObjects {
        namespace: (!everywhere).then(|| cluster.namespace.clone()),
        rows: all.iter().filter_map(|one| one.0.as_ref().ok()).map(row).collect(),
        unreadable: all.iter().filter(|one| one.0.is_err()).count(),
    })
}

/// Where was looked, in words; none: everywhere.
pub(super) fn place(namespace: Option<&str>) -> String {
    namespace.map_or_else(|| "all namespaces".to_owned(), |namespace| format!("namespace {namespace}"))
}

/// Words with their counts, without those of which there are none.
pub(super) fn counted(counts: impl IntoIterator<Item = (&'static str, usize)>) -> Vec<String> {
    counts.into_iter().filter(|(_, count)| *count > 0).map(|(name, count)| format!("{name} {count}")).collect()
}
