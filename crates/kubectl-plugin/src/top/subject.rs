//! The trait of a subject of `top`, and code that all subjects share.

use jiff::Timestamp;
use kube::api::ListParams;
use kube::core::{DeserializeGuard, NamespaceResourceScope};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use super::state::Order;
use super::view::Sheet;
use crate::connect::Cluster;
use crate::error::Error;

/// A kind of object that `top` shows.
pub trait Subject {
    /// The data of one refresh.
    type Snapshot;
    /// The sort orders of its rows.
    type Sort: Order;

    /// Reads the data of one refresh.
    fn look(&self, cluster: &Cluster) -> impl Future<Output = Result<Self::Snapshot, Error>>;

    /// The sheet for a snapshot. Pure.
    fn sheet(snapshot: &Self::Snapshot, sort: Self::Sort, now: Timestamp) -> Sheet;
}

/// The objects of a kind, from the API server's cache, so they are at most a moment old.
pub(super) async fn list<K>(cluster: &Cluster, everywhere: bool, fields: Option<String>) -> Result<Vec<DeserializeGuard<K>>, Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let api: Api<DeserializeGuard<K>> = if everywhere { Api::all(cluster.client.clone()) } else { cluster.api() };
    let params = ListParams { field_selector: fields, ..ListParams::default().match_any() };
    Ok(api.list(&params).await.map_err(Error::of::<K>(&cluster.namespace, ""))?.items)
}

/// All objects of a kind, at one refresh.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedObjects<R> {
    /// The namespace; none for all namespaces.
    pub namespace: Option<String>,
    /// One row for each object.
    pub rows: Vec<R>,
    /// The number of stored objects that do not fit their type.
    pub unreadable: usize,
}

/// Lists all objects of a kind. `row` builds the row of an object.
pub(super) async fn list_rows<K, R>(cluster: &Cluster, everywhere: bool, row: fn(&K) -> R) -> Result<ListedObjects<R>, Error>
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

/// The scope as text; none for all namespaces.
pub(super) fn scope_text(namespace: Option<&str>) -> String {
    namespace.map_or_else(|| "all namespaces".to_owned(), |namespace| format!("namespace {namespace}"))
}

/// Names with their counts, without counts of 0.
pub(super) fn nonzero_counts(counts: impl IntoIterator<Item = (&'static str, usize)>) -> Vec<String> {
    counts.into_iter().filter(|(_, count)| *count > 0).map(|(name, count)| format!("{name} {count}")).collect()
}
