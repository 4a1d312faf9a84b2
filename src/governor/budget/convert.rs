//! Conversion of ledger records from and to the status of objects, and of places from and to their names on the wire.
//!
//! Nothing is decided here. Invariant: a written record is read back unchanged, except that windows of reservations and
//! namespaces without any activity are left out.

use crate::api::agent::AgentTokens;
use crate::api::budget::{self, BudgetStatus, Latched, ReservationUsage, ThresholdAction, WindowStatus};
use crate::api::cluster_budget::{ClusterBudgetStatus, NamespaceUsage};
use crate::api::work_item::ShareUsage;
use crate::policy::budget::node::{Action, Threshold};
use crate::policy::budget::persisted::{AckedSettles, Latch, PersistedPlace, PersistedWindow};
use crate::policy::budget::share::LEAF_LIMIT_NAME;
use crate::policy::budget::{Key, PersistedRecord, Span, Window};

use super::facts;

/// The name of a place in the journals of gateways.
pub fn key_to_text(key: &Key) -> String {
    match key {
        Key::Cluster(name) => format!("c:{name}"),
        Key::Namespace { cluster, namespace } => format!("n:{cluster}/{namespace}"),
        Key::Budget { namespace, name } => format!("b:{namespace}/{name}"),
        Key::Share { of, name } => format!("s:{name}/{}", key_to_text(of)),
        Key::Agent(uid) => format!("a:{uid}"),
        Key::Task { item, epoch } => format!("t:{item}/{epoch}"),
    }
}

/// Parses the output of [`key_to_text`].
pub fn parse_key(text: &str) -> Option<Key> {
    let (kind, rest) = text.split_once(':')?;
    if kind == "s" {
        let (name, of) = rest.split_once('/')?;
        // A share cannot have shares, so the recursion ends here.
        let of = plain(of.split_once(':')?)?;
        return (!name.is_empty() && !of.is_leaf()).then(|| Key::Share { of: Box::new(of), name: name.to_owned() });
    }
    plain((kind, rest))
}

fn plain((kind, rest): (&str, &str)) -> Option<Key> {
    let two = || rest.split_once('/').filter(|(one, other)| !one.is_empty() && !other.is_empty());
    match kind {
        "c" if !rest.is_empty() => Some(Key::Cluster(rest.to_owned())),
        "n" => two().map(|(cluster, namespace)| Key::Namespace { cluster: cluster.to_owned(), namespace: namespace.to_owned() }),
        "b" => two().map(|(namespace, name)| Key::budget(namespace, name)),
        "a" if !rest.is_empty() => Some(Key::Agent(rest.to_owned())),
        "t" => {
            let (item, epoch) = two()?;
            Some(Key::Task { item: item.to_owned(), epoch: epoch.parse().ok()? })
        }
        _ => None,
    }
}

/// A record without empty parts, in a canonical order: equal records compare equal.
pub fn canonical(record: &Key, mut saved: PersistedRecord) -> PersistedRecord {
    for place in &mut saved.places {
        if place.key != *record {
            place.windows.retain(has_activity);
        }
        place.windows.sort_by(|one, other| (&one.limit, one.span).cmp(&(&other.limit, other.span)));
    }
    saved.places.retain(|place| !place.windows.is_empty());
    saved.places.sort_by(|one, other| one.key.cmp(&other.key));
    saved.places.dedup_by(|one, other| one.key == other.key);
    saved.acked.sort_by(|one, other| one.session.cmp(&other.session));
    saved.latched.sort_by_key(|latch| (latch.key.clone(), latch.limit.clone(), latch.span, latch.threshold, latch.height));
    saved
}

/// Whether something was ever counted in a window.
fn has_activity(window: &PersistedWindow) -> bool {
    let PersistedWindow { limit: _, span: _, peak: _, used, held, lost, debt: carried, high } = window;
    [used, held, lost, carried, high].into_iter().any(|amount| *amount != 0)
}

fn some(amount: i64) -> Option<i64> {
    Some(amount).filter(|amount| *amount != 0)
}

fn window_status(window: &PersistedWindow) -> WindowStatus {
    let PersistedWindow { limit, span, peak, used, held, lost, debt: carried, high } = window;
    WindowStatus {
        name: limit.clone(),
        id: span.to_string(),
        limit: Some(*peak),
        used: *used,
        held: some(*held),
        lost: some(*lost),
        carried: some(*carried),
        high_water: some(*high),
    }
}

/// A window with a name that we do not know was not written by us, and is ignored.
fn saved_window(window: &WindowStatus) -> Option<PersistedWindow> {
    let WindowStatus { name, id, limit, used, held, lost, carried, high_water } = window;
    Some(PersistedWindow {
        limit: name.clone(),
        span: Span::parse(id)?,
        peak: limit.unwrap_or(0),
        used: *used,
        held: held.unwrap_or(0),
        lost: lost.unwrap_or(0),
        debt: carried.unwrap_or(0),
        high: high_water.unwrap_or(0),
    })
}

fn place(key: Key, windows: Option<&Vec<WindowStatus>>) -> PersistedPlace {
    PersistedPlace { key, windows: windows.into_iter().flatten().filter_map(saved_window).collect() }
}

fn shares<'a>(of: &Key, all: Option<&'a Vec<ReservationUsage>>) -> impl Iterator<Item = PersistedPlace> + use<'a> {
    let of = of.clone();
    all.into_iter().flatten().map(move |share| {
        let key = Key::Share { of: Box::new(of.clone()), name: share.name.clone() };
        place(key, share.windows.as_ref())
    })
}

fn windows_of(saved: &PersistedRecord, key: &Key) -> Option<Vec<WindowStatus>> {
    let found = saved.places.iter().find(|place| place.key == *key)?;
    Some(found.windows.iter().map(window_status).collect())
}

fn reservations_of(saved: &PersistedRecord, of: &Key) -> Option<Vec<ReservationUsage>> {
    let ours = saved.places.iter().filter_map(|place| match &place.key {
        Key::Share { of: above, name } if above.as_ref() == of => {
            Some(ReservationUsage { name: name.clone(), windows: Some(place.windows.iter().map(window_status).collect()) })
        }
        Key::Share { .. } | Key::Cluster(_) | Key::Namespace { .. } | Key::Budget { .. } | Key::Agent(_) | Key::Task { .. } => None,
    });
    Some(ours.collect::<Vec<_>>()).filter(|all| !all.is_empty())
}

fn ledger(saved: &PersistedRecord) -> budget::Ledger {
    let acked =
        saved.acked.iter().map(|acked| budget::Acked { session: acked.session.clone(), seq: i64::try_from(acked.seq).unwrap_or(i64::MAX) });
    let latched = saved.latched.iter().map(|latch| Latched {
        namespace: match &latch.key {
            Key::Namespace { namespace, .. } => Some(namespace.clone()),
            Key::Cluster(_) | Key::Budget { .. } | Key::Share { .. } | Key::Agent(_) | Key::Task { .. } => None,
        },
        name: latch.limit.clone(),
        id: latch.span.to_string(),
        percent: i32::try_from(latch.threshold.percent).unwrap_or(100),
        action: match latch.threshold.action {
            Action::Log => ThresholdAction::Log,
            Action::Warn => ThresholdAction::Warn,
            Action::Notify => ThresholdAction::Notify,
            Action::Pause => ThresholdAction::Pause,
            Action::Reap => ThresholdAction::Reap,
        },
        generation: latch.height,
    });
    let filled = |is_empty: bool| !is_empty;
    budget::Ledger {
        acked: Some(acked.collect::<Vec<_>>()).filter(|all| filled(all.is_empty())),
        latched: Some(latched.collect::<Vec<_>>()).filter(|all| filled(all.is_empty())),
    }
}

fn saved_ledger(ledger: Option<&budget::Ledger>, record: &Key) -> (Vec<AckedSettles>, Vec<Latch>) {
    let Some(ledger) = ledger else { return Default::default() };
    let acked = ledger.acked.iter().flatten();
    let acked = acked.map(|acked| AckedSettles { session: acked.session.clone(), seq: u64::try_from(acked.seq).unwrap_or(0) });
    let latch = |latched: &Latched| {
        let key = match (record, &latched.namespace) {
            (Key::Cluster(cluster), Some(namespace)) => Key::Namespace { cluster: cluster.clone(), namespace: namespace.clone() },
            (record, _) => record.clone(),
        };
        let threshold = Threshold { percent: i64::from(latched.percent), action: facts::action(latched.action) };
        let (limit, height) = (latched.name.clone(), latched.generation);
        Some(Latch { key, limit, span: Span::parse(&latched.id)?, threshold, height })
    };
    (acked.collect(), ledger.latched.iter().flatten().filter_map(latch).collect())
}

/// The record in the status of a Budget.
pub fn of_budget(record: &Key, status: Option<&BudgetStatus>) -> PersistedRecord {
    let Some(status) = status else { return PersistedRecord::default() };
    let (acked, latched) = saved_ledger(status.ledger.as_ref(), record);
    let own = std::iter::once(place(record.clone(), status.windows.as_ref()));
    let places = own.chain(shares(record, status.reservations.as_ref())).collect();
    canonical(record, PersistedRecord { places, acked, latched })
}

/// Writes a record into the status of a Budget. All other fields stay.
pub fn into_budget(record: &Key, saved: &PersistedRecord, status: &mut BudgetStatus) {
    status.windows = windows_of(saved, record);
    status.reservations = reservations_of(saved, record);
    status.ledger = Some(ledger(saved));
}

/// The record in the status of a ClusterBudget.
pub fn of_cluster(cluster: &str, status: Option<&ClusterBudgetStatus>) -> PersistedRecord {
    let Some(status) = status else { return PersistedRecord::default() };
    let record = Key::Cluster(cluster.to_owned());
    let (acked, latched) = saved_ledger(status.ledger.as_ref(), &record);
    let own = std::iter::once(place(record.clone(), status.windows.as_ref())).chain(shares(&record, status.reservations.as_ref()));
    let namespaces = status.namespaces.iter().flatten().flat_map(|usage| {
        let key = Key::Namespace { cluster: cluster.to_owned(), namespace: usage.name.clone() };
        let shares: Vec<_> = shares(&key, usage.reservations.as_ref()).collect();
        std::iter::once(place(key, usage.windows.as_ref())).chain(shares)
    });
    let places = own.chain(namespaces).collect();
    canonical(&record, PersistedRecord { places, acked, latched })
}

/// Writes a record into the status of a ClusterBudget. All other fields stay, including the counted agents.
pub fn into_cluster(cluster: &str, saved: &PersistedRecord, status: &mut ClusterBudgetStatus) {
    let record = Key::Cluster(cluster.to_owned());
    status.windows = windows_of(saved, &record);
    status.reservations = reservations_of(saved, &record);
    status.ledger = Some(ledger(saved));
    let mut namespaces = std::collections::BTreeMap::new();
    for usage in status.namespaces.take().into_iter().flatten() {
        if usage.agents.is_some() {
            let usage = NamespaceUsage { windows: None, reservations: None, ..usage };
            namespaces.insert(usage.name.clone(), usage);
        }
    }
    for place in &saved.places {
        let key = match &place.key {
            Key::Share { of, .. } => of.as_ref(),
            Key::Cluster(_) | Key::Namespace { .. } | Key::Budget { .. } | Key::Agent(_) | Key::Task { .. } => &place.key,
        };
        if let Key::Namespace { namespace, .. } = key {
            let empty = || NamespaceUsage { name: namespace.clone(), windows: None, reservations: None, agents: None };
            let usage: &mut NamespaceUsage = namespaces.entry(namespace.clone()).or_insert_with(empty);
            usage.windows = windows_of(saved, key);
            usage.reservations = reservations_of(saved, key);
        }
    }
    status.namespaces = Some(namespaces.into_values().collect::<Vec<_>>()).filter(|all| !all.is_empty());
}

const LIFETIME: Span = Span { window: Window::Lifetime, index: 0 };

/// The record in the status of an Agent. It is empty if nothing was ever recorded.
pub fn of_agent(uid: &str, tokens: Option<&AgentTokens>) -> PersistedRecord {
    let record = Key::Agent(uid.to_owned());
    let Some(tokens) = tokens.filter(|tokens| tokens.limit.is_some() || tokens.ledger.is_some()) else { return PersistedRecord::default() };
    let AgentTokens { used, held, lost, limit, top_ups: _, high_water, ledger } = tokens;
    let number = |amount: &Option<i64>| amount.unwrap_or(0);
    let window = PersistedWindow {
        limit: LEAF_LIMIT_NAME.to_owned(),
        span: LIFETIME,
        peak: number(limit),
        used: number(used),
        held: number(held),
        lost: number(lost),
        debt: 0,
        high: number(high_water),
    };
    let (acked, latched) = saved_ledger(ledger.as_ref(), &record);
    let places = vec![PersistedPlace { key: record.clone(), windows: vec![window] }];
    canonical(&record, PersistedRecord { places, acked, latched })
}

/// The window of a record that has only one.
fn only(saved: &PersistedRecord) -> Option<&PersistedWindow> {
    saved.places.first().and_then(|place| place.windows.first())
}

/// A record in the form of an Agent's status.
pub fn into_agent(saved: &PersistedRecord, top_ups: u32) -> AgentTokens {
    let window = only(saved);
    let number = |amount: fn(&PersistedWindow) -> i64| window.map(amount);
    AgentTokens {
        used: number(|window| window.used),
        held: number(|window| window.held).and_then(some),
        lost: number(|window| window.lost).and_then(some),
        limit: number(|window| window.peak),
        top_ups: i32::try_from(top_ups).ok().filter(|taken| *taken > 0),
        high_water: number(|window| window.high).and_then(some),
        ledger: Some(ledger(saved)),
    }
}

/// The record of the share of one lease in the status of a WorkItem. It is empty if the status describes another lease.
pub fn of_share(item: &str, epoch: i64, share: Option<&ShareUsage>) -> PersistedRecord {
    let record = Key::Task { item: item.to_owned(), epoch };
    let Some(share) = share.filter(|share| share.epoch == epoch) else { return PersistedRecord::default() };
    let ShareUsage { epoch: _, limit, used, held, lost, high_water, ledger } = share;
    let number = |amount: &Option<i64>| amount.unwrap_or(0);
    let window = PersistedWindow {
        limit: LEAF_LIMIT_NAME.to_owned(),
        span: LIFETIME,
        peak: number(limit),
        used: *used,
        held: number(held),
        lost: number(lost),
        debt: 0,
        high: number(high_water),
    };
    let (acked, latched) = saved_ledger(ledger.as_ref(), &record);
    let places = vec![PersistedPlace { key: record.clone(), windows: vec![window] }];
    canonical(&record, PersistedRecord { places, acked, latched })
}

/// A record in the form of a WorkItem's status.
pub fn into_share(epoch: i64, saved: &PersistedRecord) -> ShareUsage {
    let window = only(saved);
    let number = |amount: fn(&PersistedWindow) -> i64| window.map_or(0, amount);
    ShareUsage {
        epoch,
        limit: window.map(|window| window.peak),
        used: number(|window| window.used),
        held: some(number(|window| window.held)),
        lost: some(number(|window| window.lost)),
        high_water: some(number(|window| window.high)),
        ledger: Some(ledger(saved)),
    }
}

#[cfg(test)]
#[path = "convert_tests.rs"]
mod tests;
