//! Owner references: through them the API server's garbage collector deletes a child whose owner is gone.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;

/// Owner reference for a controlled child of the object with this metadata.
pub fn owner<K: Resource<DynamicType = ()>>(meta: &ObjectMeta) -> OwnerReference {
    OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: meta.name.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_controlled_by_its_owner() {
        let meta = ObjectMeta { name: Some("p".into()), uid: Some("u".into()), ..ObjectMeta::default() };
        let owner = owner::<crate::AgentPool>(&meta);
        assert_eq!((owner.api_version.as_str(), owner.kind.as_str()), ("spillway.dev/v1alpha1", "AgentPool"));
        assert_eq!((owner.name.as_str(), owner.uid.as_str()), ("p", "u"));
        assert_eq!((owner.controller, owner.block_owner_deletion), (Some(true), Some(true)));
    }
}
