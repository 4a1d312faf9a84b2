//! `ClusterBudget/default`, as the chart's values say: applied once by each leader, after it won.
//!
//! Not by the chart itself: an object and the CRD of its kind do not install in one step, and a hook would make it anew at each
//! upgrade, with nothing counted. A field that somebody else manages is left to them: a conflict is no error here.

use std::sync::Arc;
use std::time::Duration;

use kube::Api;
use serde_json::{Value, json};

use super::context::Context;
use crate::api::ClusterBudget;
use crate::api::names::{self, managers};
use crate::cluster::{Class, calls};

/// Between two tries.
const CREATE_RETRY_DELAY: Duration = Duration::from_secs(30);

/// Applies it, and then waits for ever. Ends only with an error, when we do not lead any more.
pub async fn ensure(context: Arc<Context>, spec: Option<&Value>) -> anyhow::Result<()> {
    if let Some(spec) = spec {
        apply(&context, spec).await?;
    }
    std::future::pending().await
}

async fn apply(context: &Context, spec: &Value) -> anyhow::Result<()> {
    let api = Api::<ClusterBudget>::all(context.client.clone());
    loop {
        context.leadership.check()?;
        let Err(error) = calls::apply_gently(&api, names::DEFAULT_OBJECT_NAME, managers::DEFAULTS, json!({"spec": spec})).await else {
            return Ok(());
        };
        match error.class() {
            Class::Conflict => {
                tracing::info!(%error, "ClusterBudget/default is managed by another field manager; it is not changed");
                return Ok(());
            }
            Class::LostLeadership => return Err(error.into()),
            Class::AlreadyExists | Class::NotFound | Class::QuotaExceeded | Class::Terminating | Class::Refused | Class::Unavailable => {
                tracing::warn!(%error, "cannot apply ClusterBudget/default; retrying");
                tokio::time::sleep(CREATE_RETRY_DELAY).await;
            }
        }
    }
}
