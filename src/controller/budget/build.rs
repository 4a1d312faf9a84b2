//! The ResourceQuota and the LimitRange of a Budget, and whether a stored object equals them. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{LimitRange, LimitRangeItem, LimitRangeSpec, ResourceQuota, ResourceQuotaSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt};
use serde::Serialize;

use crate::api::budget::{Compute, PerAgentCompute};
use crate::api::owner::owner;
use crate::api::quantity::is_same_quantity;
use crate::api::{Budget, names};
use crate::policy::compute::StoredObject;

type Amounts = BTreeMap<String, Quantity>;

/// An object that carries a part of a Budget's compute.
pub trait ComputeObject: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope> {
    /// The desired object, if the Budget sets any of its values.
    fn desired(budget: &Budget, compute: &Compute) -> Option<Self>
    where
        Self: Sized;
    /// Whether it has the values of `wanted`.
    fn has_values_of(&self, wanted: &Self) -> bool;
    /// Its values, for messages.
    fn description(&self) -> String;
}

impl ComputeObject for ResourceQuota {
    fn desired(budget: &Budget, compute: &Compute) -> Option<Self> {
        let hard = non_empty(compute.hard.as_ref())?;
        let spec = ResourceQuotaSpec { hard: Some(hard), ..ResourceQuotaSpec::default() };
        Some(Self { metadata: meta(budget, &spec), spec: Some(spec), status: None })
    }

    fn has_values_of(&self, wanted: &Self) -> bool {
        // Values that others added are kept: more limits only make the quota stricter.
        let (Some(stored), Some(wanted)) = (hard(self), hard(wanted)) else { return false };
        wanted.iter().all(|(name, value)| stored.get(name).is_some_and(|stored| is_same_quantity(stored, value)))
    }

    fn description(&self) -> String {
        format!("ResourceQuota/{}: {}", self.name_any(), format_amounts(hard(self)))
    }
}

impl ComputeObject for LimitRange {
    fn desired(budget: &Budget, compute: &Compute) -> Option<Self> {
        let item = item(compute.per_agent.as_ref()?)?;
        let spec = LimitRangeSpec { limits: vec![item] };
        Some(Self { metadata: meta(budget, &spec), spec: Some(spec) })
    }

    fn has_values_of(&self, wanted: &Self) -> bool {
        // The list is replaced as a whole: entries of others are removed.
        let (Some(stored), Some(wanted)) = (&self.spec, &wanted.spec) else { return false };
        stored.limits.len() == wanted.limits.len() && stored.limits.iter().zip(&wanted.limits).all(|(one, other)| same_item(one, other))
    }

    fn description(&self) -> String {
        let item = self.spec.as_ref().and_then(|spec| spec.limits.first());
        let parts = item.into_iter().flat_map(|item| {
            [("default", &item.default), ("defaultRequest", &item.default_request), ("min", &item.min), ("max", &item.max)]
        });
        let parts: Vec<String> = parts
            .filter_map(|(name, amounts)| Some(format!("{name} {}", format_amounts(Some(amounts.as_ref().filter(|all| !all.is_empty())?)))))
            .collect();
        format!("LimitRange/{}: {}", self.name_any(), parts.join("; "))
    }
}

fn hard(quota: &ResourceQuota) -> Option<&Amounts> {
    quota.spec.as_ref()?.hard.as_ref()
}

fn non_empty(amounts: Option<&Amounts>) -> Option<Amounts> {
    amounts.filter(|amounts| !amounts.is_empty()).cloned()
}

fn format_amounts(amounts: Option<&Amounts>) -> String {
    let all: Vec<String> = amounts.into_iter().flatten().map(|(name, value)| format!("{name} {}", value.0)).collect();
    all.join(", ")
}

/// The limits of a container, with the values that the API server would fill in, so that a stored object differs only
/// if it was changed.
fn item(per_agent: &PerAgentCompute) -> Option<LimitRangeItem> {
    let PerAgentCompute { default, default_request, min, max } = per_agent;
    if [default, default_request, min, max].into_iter().all(|amounts| non_empty(amounts.as_ref()).is_none()) {
        return None;
    }
    let mut filled = default.clone().unwrap_or_default();
    let mut requests = default_request.clone().unwrap_or_default();
    fill(&mut filled, max.as_ref());
    fill(&mut requests, Some(&filled));
    fill(&mut requests, min.as_ref());
    Some(LimitRangeItem {
        type_: "Container".to_owned(),
        default: non_empty(Some(&filled)),
        default_request: non_empty(Some(&requests)),
        min: non_empty(min.as_ref()),
        max: non_empty(max.as_ref()),
        max_limit_request_ratio: None,
    })
}

fn fill(amounts: &mut Amounts, from: Option<&Amounts>) {
    for (name, value) in from.into_iter().flatten() {
        amounts.entry(name.clone()).or_insert_with(|| value.clone());
    }
}

fn same_item(one: &LimitRangeItem, other: &LimitRangeItem) -> bool {
    let LimitRangeItem { type_, default, default_request, min, max, max_limit_request_ratio } = one;
    let pairs = [
        (default, &other.default),
        (default_request, &other.default_request),
        (min, &other.min),
        (max, &other.max),
        (max_limit_request_ratio, &other.max_limit_request_ratio),
    ];
    *type_ == other.type_ && pairs.into_iter().all(|(one, other)| same_amounts(one.as_ref(), other.as_ref()))
}

/// `None` and an empty map are the same.
fn same_amounts(one: Option<&Amounts>, other: Option<&Amounts>) -> bool {
    let count = |amounts: Option<&Amounts>| amounts.map_or(0, BTreeMap::len);
    let there =
        |name: &String, value: &Quantity| other.and_then(|other| other.get(name)).is_some_and(|other| is_same_quantity(value, other));
    count(one) == count(other) && one.into_iter().flatten().all(|(name, value)| there(name, value))
}

fn meta(budget: &Budget, spec: &impl Serialize) -> ObjectMeta {
    let text = serde_json::to_string(spec).unwrap_or_default();
    ObjectMeta {
        name: Some(names::compute_name(&budget.name_any())),
        namespace: budget.namespace(),
        labels: Some([(names::MANAGED_BY_LABEL.to_owned(), names::MANAGED_BY.to_owned())].into()),
        annotations: Some([(names::APPLIED_ANNOTATION.to_owned(), names::short_hash(&[&text], 16))].into()),
        owner_references: Some(vec![owner::<Budget>(&budget.metadata)]),
        ..ObjectMeta::default()
    }
}

/// What is stored under the name of an object. Its owner reference proves that it belongs to the Budget: Kubernetes
/// deletes it with the Budget anyway.
pub fn stored<K: ComputeObject>(object: Option<&K>, wanted: Option<&K>, budget: &Budget) -> StoredObject {
    let Some(object) = object else { return StoredObject::Nothing };
    let meta = object.meta();
    let uid = meta.uid.clone().unwrap_or_default();
    let owners =
        || meta.owner_references.iter().flatten().filter(|owner| owner.kind == Budget::kind(&()) && owner.name == budget.name_any());
    let own = owners().any(|owner| Some(&owner.uid) == budget.metadata.uid.as_ref());
    let labelled = meta.labels.as_ref().and_then(|labels| labels.get(names::MANAGED_BY_LABEL)).is_some_and(|by| by == names::MANAGED_BY);
    match () {
        () if !(own || labelled && owners().next().is_some()) => StoredObject::Foreign,
        () if meta.deletion_timestamp.is_some() => StoredObject::Leaving,
        () if !own => StoredObject::Former { uid },
        () => StoredObject::Own {
            uid,
            same: labelled && wanted.is_some_and(|wanted| hash(meta) == hash(wanted.meta()) && object.has_values_of(wanted)),
        },
    }
}

fn hash(meta: &ObjectMeta) -> Option<&String> {
    meta.annotations.as_ref()?.get(names::APPLIED_ANNOTATION)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn budget(compute: Value) -> Budget {
        serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Budget",
            "metadata": {"name": "team", "namespace": "n", "uid": "u"}, "spec": {"compute": compute}}))
        .expect("a Budget")
    }
    fn wanted<K: ComputeObject>(budget: &Budget) -> Option<K> {
        K::desired(budget, budget.spec.compute.as_ref()?)
    }
    fn state<K: ComputeObject>(object: &K, budget: &Budget) -> StoredObject {
        stored(Some(object), wanted(budget).as_ref(), budget)
    }
    fn own(same: bool) -> StoredObject {
        StoredObject::Own { uid: "q".into(), same }
    }
    /// As the API server would store it: with a uid.
    fn made<K: ComputeObject>(mut object: K) -> K {
        object.meta_mut().uid = Some("q".into());
        object
    }

    #[test]
    fn hard_is_a_quota_that_the_budget_owns() {
        let budget = budget(json!({"hard": {"requests.cpu": "8", "pods": "20"}}));
        let quota: ResourceQuota = wanted(&budget).expect("a quota");
        assert_eq!(quota.name_any(), "spillway-team");
        assert_eq!(quota.metadata.owner_references, Some(vec![owner::<Budget>(&budget.metadata)]));
        assert_eq!(json!(quota.spec), json!({"hard": {"requests.cpu": "8", "pods": "20"}}));
        assert_eq!(quota.description(), "ResourceQuota/spillway-team: pods 20, requests.cpu 8");
        assert!(wanted::<LimitRange>(&budget).is_none());
    }

    #[test]
    fn a_budget_without_values_has_no_objects() {
        for compute in [json!({}), json!({"hard": {}, "perAgent": {}}), json!({"perAgent": {"max": {}}})] {
            let budget = budget(compute);
            assert!(wanted::<ResourceQuota>(&budget).is_none() && wanted::<LimitRange>(&budget).is_none());
        }
    }

    #[test]
    fn a_range_holds_what_the_api_server_would_fill_in() {
        let budget =
            budget(json!({"perAgent": {"max": {"cpu": "2", "memory": "4Gi"}, "default": {"cpu": "1"}, "min": {"memory": "64Mi"}}}));
        let range: LimitRange = wanted(&budget).expect("a range");
        assert_eq!(
            json!(range.spec),
            json!({"limits": [{"type": "Container", "max": {"cpu": "2", "memory": "4Gi"}, "min": {"memory": "64Mi"},
                "default": {"cpu": "1", "memory": "4Gi"}, "defaultRequest": {"cpu": "1", "memory": "4Gi"}}]})
        );
        assert_eq!(
            range.description(),
            "LimitRange/spillway-team: default cpu 1, memory 4Gi; defaultRequest cpu 1, memory 4Gi; min memory 64Mi; max cpu 2, memory 4Gi"
        );
    }

    #[test]
    fn equal_quantities_are_no_drift_and_a_change_is() {
        let budget = budget(json!({"hard": {"requests.cpu": "1000m"}, "perAgent": {"max": {"memory": "1024Mi"}}}));
        let mut quota: ResourceQuota = made(wanted(&budget).expect("a quota"));
        assert_eq!(state(&quota, &budget), own(true));
        let set = |quota: &mut ResourceQuota, name: &str, value: &str| {
            quota.spec.as_mut().and_then(|spec| spec.hard.as_mut()).expect("amounts").insert(name.into(), Quantity(value.into()))
        };
        set(&mut quota, "requests.cpu", "1");
        assert_eq!(state(&quota, &budget), own(true), "as the API server writes it");
        set(&mut quota, "pods", "5");
        assert_eq!(state(&quota, &budget), own(true), "somebody's own limit beside it");
        set(&mut quota, "requests.cpu", "2");
        assert_eq!(state(&quota, &budget), own(false));

        let mut range: LimitRange = made(wanted(&budget).expect("a range"));
        assert_eq!(state(&range, &budget), own(true));
        range.spec.as_mut().expect("a spec").limits[0].min = Some([("cpu".to_owned(), Quantity("1".into()))].into());
        assert_eq!(state(&range, &budget), own(false));
        let mut range: LimitRange = made(wanted(&budget).expect("a range"));
        range.metadata.labels = None;
        assert_eq!(state(&range, &budget), own(false), "without its label it would be seen no more");
    }

    #[test]
    fn a_value_that_is_removed_later_is_drift() {
        let before = budget(json!({"hard": {"pods": "5", "requests.cpu": "1"}}));
        let quota: ResourceQuota = made(wanted(&before).expect("a quota"));
        let after = budget(json!({"hard": {"pods": "5"}}));
        assert_eq!(state(&quota, &after), own(false), "it says more than is wanted, and that is ours");
        assert_eq!(state(&quota, &budget(json!({}))), own(false));
    }

    #[test]
    fn the_owner_reference_decides_whose_object_it_is() {
        let budget = budget(json!({"hard": {"pods": "5"}}));
        let quota: ResourceQuota = made(wanted(&budget).expect("a quota"));
        let changed = |change: fn(&mut ObjectMeta)| {
            let mut quota = quota.clone();
            change(&mut quota.metadata);
            state(&quota, &budget)
        };
        assert_eq!(changed(|meta| meta.owner_references = None), StoredObject::Foreign, "a label proves nothing");
        let other_uid = |meta: &mut ObjectMeta| meta.owner_references.as_mut().expect("owners")[0].uid = "old".into();
        assert_eq!(changed(other_uid), StoredObject::Former { uid: "q".into() });
        let other_name = |meta: &mut ObjectMeta| {
            let owner = &mut meta.owner_references.as_mut().expect("owners")[0];
            (owner.uid, owner.name) = ("other".into(), "other".into());
        };
        assert_eq!(changed(other_name), StoredObject::Foreign);
        let leaving = |meta: &mut ObjectMeta| meta.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).ok();
        assert_eq!(changed(leaving), StoredObject::Leaving);
        assert_eq!(stored(None, Some(&quota), &budget), StoredObject::Nothing);
    }
}
