//! The events of the explained object: reading them, and their form in a report.

use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::ListParams;

use super::facts::Facts;
use super::report::HistoryEntry;
use crate::connect::Cluster;
use crate::error::Error;

/// The most events in a report; the newest are kept.
const MAX_SHOWN_EVENTS: usize = 12;
/// Reads the events of these objects. The API server keeps events for about an hour, so an empty list proves nothing.
pub(super) async fn read(cluster: &Cluster, uids: Vec<Option<String>>, facts: &mut Facts) {
    for uid in uids.into_iter().flatten().filter(|uid| !uid.is_empty()) {
        let params = ListParams::default().fields(&format!("involvedObject.uid={uid}"));
        match cluster.api::<Event>().list(&params).await {
            Ok(found) => facts.events.extend(found.items),
            Err(error) => {
                facts.unread.push(format!("events: {}", Error::of::<Event>(&cluster.namespace, "")(error)));
                return;
            }
        }
    }
}

/// The newest events, the newest last.
pub(super) fn newest_events(events: &[Event]) -> Vec<HistoryEntry> {
    let mut told: Vec<HistoryEntry> = events
        .iter()
        .map(|event| {
            let series = event.series.as_ref();
            let time = series.and_then(|series| series.last_observed_time.as_ref()).map(|time| Time(time.0));
            let once = event.event_time.as_ref().map(|time| Time(time.0));
            let about = &event.involved_object;
            HistoryEntry {
                time: time.or_else(|| event.last_timestamp.clone()).or(once).or_else(|| event.metadata.creation_timestamp.clone()),
                type_: event.type_.clone().unwrap_or_default(),
                about: format!(
                    "{}/{}",
                    about.kind.as_deref().unwrap_or_default().to_ascii_lowercase(),
                    about.name.as_deref().unwrap_or_default()
                ),
                reason: event.reason.clone().unwrap_or_default(),
                message: event.message.clone().unwrap_or_default(),
                count: series.and_then(|series| series.count).or(event.count).unwrap_or(1),
            }
        })
        .collect();
    told.sort_by_key(|event| event.time.as_ref().map(|time| time.0));
    told.drain(..told.len().saturating_sub(MAX_SHOWN_EVENTS));
    told
}
