//! `ClusterBudget/default`, from the chart's values. Each leader applies it once, after its election.
//!
//! The chart cannot install it: an object and the CRD of its kind do not install in one step, and a hook would create
//! it anew at each upgrade, without its counts. A field of another field manager is not changed, so a conflict is no
//! error here.

use std::sync::Arc;
use std::time::Duration;

use kube::Api;
use serde_json::{Value, json};

use super::context::Context;
use crate::api::ClusterBudget;
use crate::api::names::{self, managers};
use crate::cluster::{Class, calls};

/// Delay between two attempts.
const CREATE_RETRY_DELAY: Duration = Duration::from_secs(30);

/// Applies it, and then waits. Returns only with an error, when we do not lead any more.
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
