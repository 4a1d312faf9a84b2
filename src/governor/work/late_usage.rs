//! Tokens of an item's last calls that became known after its end: a gateway may report them later than the agent
//! reports the end.

use std::sync::Arc;

use serde_json::json;

use crate::api::WorkItem;
use crate::cluster::{Class, Error, ObjectKey, calls};
use crate::controller::Context;
use crate::controller::status_throttle::after_conflict;
use crate::governor::budget::object::result_unknown;
use crate::serve::fair_semaphore::FairSemaphore;

/// Writes the late usage of all items for which it is known by now.
pub fn tell_late(context: &Arc<Context>, writes: &FairSemaphore) {
    for (uid, key) in context.meter.take_late_usage() {
        let (context, writes) = (context.clone(), writes.clone());
        tokio::spawn(async move {
            let _turn = writes.take(&key.namespace).await;
            let again = match tell(&context, &key, &uid).await {
                Ok(()) => false,
                Err(error) if matches!(error.class(), Class::Conflict | Class::Unavailable) => true,
                Err(error) => {
                    tracing::warn!(namespace = key.namespace, item = key.name, %error, "the tokens of an item's last calls could not be written to its status");
                    false
                }
            };
            context.meter.late_usage_stored(&uid, again);
        });
    }
}

async fn tell(context: &Context, key: &ObjectKey, uid: &str) -> Result<(), Error> {
    context.leadership.check()?;
    let found =
        context.work_index.with(&key.namespace, |namespace_work| Some((namespace_work.by_uid(uid)?.1.version, namespace_work.used(uid)?)));
    let Some((version, stored)) = found else { return Ok(()) };
    let Some(told) = context.meter.used_by(uid, stored) else { return Ok(()) };
    let api = context.api::<WorkItem>(&key.namespace);
    let body = json!({
        "metadata": {"resourceVersion": version},
        "status": {"tokens": {"used": told.total}, "governorEpoch": context.epoch},
    });
    let result = calls::patch_status(&api, &key.name, &body).await;
    match result.as_ref().map_err(Error::class) {
        Ok(stored) => {
            context.meter.usage_stored(uid, told, false);
            context.work_index.observe(stored);
        }
        Err(Class::NotFound) => return Ok(()),
        Err(Class::Conflict) => {
            if let Some(live) = after_conflict(context, &api, &key.name).await? {
                context.work_index.observe(&live);
            }
        }
        Err(class) if result_unknown(class) => context.meter.usage_stored(uid, told, true),
        Err(_) => {}
    }
    result.map(drop)
}
