//! Checks whether the API server serves our kinds. An operator without its CRDs is not ready, and names the missing
//! ones.

use std::borrow::Cow;
use std::collections::BTreeSet;

use kube::Client;

use super::{Class, Error};

/// Plural names of our kinds that the API server does not serve.
pub async fn missing_kinds(client: &Client) -> Result<Vec<String>, Error> {
    let served: BTreeSet<String> = match client.list_api_group_resources(&format!("{}/{}", crate::api::GROUP, crate::api::VERSION)).await {
        Ok(list) => list.resources.into_iter().map(|resource| resource.name).collect(),
        Err(source) => {
            let error = Error::of("asking which kinds are served")(source);
            if error.class() != Class::NotFound {
                return Err(error);
            }
            BTreeSet::new()
        }
    };
    let missing = crate::api::crds::plurals().into_iter().filter(|plural| !served.contains(plural.as_ref()));
    Ok(missing.map(Cow::into_owned).collect())
}
