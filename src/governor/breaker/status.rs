//! The status of a Breaker: its circuits, a summary for each guard, its conditions and its events. Pure, and the only
//! module that makes the conditions of Breakers.
//!
//! Time alone must not cause a write. A failure that does not count any more, and an opening whose time is over, stay
//! in the status until something happens.

use std::cmp::Reverse;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::convert::{self, MAX_STATUS_CIRCUITS};
use crate::api::Breaker;
use crate::api::breaker::{BreakerStatus, Circuit, CircuitState, CircuitSummary};
use crate::api::conditions::{reasons, types};
use crate::api::shared::Mode;
use crate::controller::conditions::Builder;
use crate::policy::breaker::{Guard, PersistedCircuit, State};

/// Names that a message lists at most.
const MAX_LISTED_NAMES: usize = 10;

/// A circuit, as it is now.
#[derive(Clone, Debug)]
pub struct CircuitView<'a> {
    /// Its name.
    pub what: &'a str,
    /// Its guard.
    pub guard: Guard,
    /// Its persistent state.
    pub saved: PersistedCircuit,
    /// Failures that count now.
    pub failures: u32,
    /// The message of the last failure.
    pub last_failure: Option<&'a str>,
    /// Whether it is open and a person must approve the next try.
    pub review: bool,
}

/// Facts about a Breaker, except its circuits.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Its name.
    pub name: &'a str,
    /// Pools in spec.pools that do not exist.
    pub unknown: &'a [String],
    /// Pools that it applies to.
    pub guarded: &'a [String],
}

/// The status to be written.
pub fn next_status(breaker: &Breaker, facts: &Facts, views: &[CircuitView], now: Timestamp) -> BreakerStatus {
    let stored = breaker.status.clone().unwrap_or_default();
    let generation = breaker.metadata.generation.unwrap_or(0);
    let before = stored.circuits.as_deref().unwrap_or(&[]);
    // A failure that counts no more is no reason for a write.
    let circuits = Some(circuits(views, before, true)).filter(|all| all == before).unwrap_or_else(|| circuits(views, before, false));
    let build = Builder { stored: &stored.conditions, generation, now };
    let conditions = vec![ready(breaker, facts, &build), tripped(breaker, facts, views, &circuits, &build)];
    BreakerStatus {
        observed_generation: Some(generation),
        summary: summary(&circuits),
        circuits: Some(circuits).filter(|all| !all.is_empty()),
        governor_epoch: stored.governor_epoch,
        conditions,
    }
}

/// The circuits for the status: the open ones, then the newest, up to the maximum. A circuit that never failed is left
/// out. With `still`, stored failures count as before.
fn circuits(views: &[CircuitView], stored: &[Circuit], still: bool) -> Vec<Circuit> {
    let before = |what: &str| stored.iter().find(|circuit| circuit.key == what);
    let says = |view: &&CircuitView| view.saved.epoch > 0 || view.failures > 0 || (still && before(view.what).is_some());
    let mut worth: Vec<&CircuitView> = views.iter().filter(says).collect();
    worth.sort_by_key(|view| (Reverse(view.saved.state), Reverse(view.saved.epoch), view.what));
    worth.truncate(MAX_STATUS_CIRCUITS);
    let mut all: Vec<Circuit> = worth
        .into_iter()
        .map(|view| {
            let was = before(view.what);
            let mut circuit = convert::circuit(view.what, &view.saved, was);
            let same = was.filter(|was| still && (was.state, was.epoch) == (circuit.state, circuit.epoch));
            let failures = i32::try_from(view.failures).unwrap_or(i32::MAX);
            circuit.failures = Some(failures.max(same.and_then(|same| same.failures).unwrap_or(0))).filter(|failures| *failures > 0);
            circuit.last_failure = view.last_failure.map(|why| why.chars().take(256).collect());
            circuit
        })
        .collect();
    all.sort_by(|one, other| one.key.cmp(&other.key));
    all
}

fn rank(state: CircuitState) -> State {
    match state {
        CircuitState::Closed => State::Closed,
        CircuitState::HalfOpen => State::HalfOpen,
        CircuitState::Open => State::Open,
    }
}

fn summary(circuits: &[Circuit]) -> Option<CircuitSummary> {
    let worst = |guards: &[Guard]| {
        let own = circuits.iter().filter(|circuit| super::Key::named("", &circuit.key).is_some_and(|key| guards.contains(&key.guard)));
        own.map(|circuit| circuit.state).max_by_key(|state| rank(*state))
    };
    let open = circuits.iter().filter(|circuit| circuit.state == CircuitState::Open);
    (!circuits.is_empty()).then(|| CircuitSummary {
        work: worst(&[Guard::Work, Guard::Project]),
        commands: worst(&[Guard::Commands]),
        models: worst(&[Guard::Models]),
        opens: circuits.iter().filter_map(|circuit| circuit.opens).max(),
        open_until: open.filter_map(|circuit| circuit.open_until.clone()).max_by_key(|until| until.0),
    })
}

/// The name of a circuit in messages.
fn title(key: &str) -> String {
    let of_project = super::Key::named("", key).is_some_and(|key| key.guard == Guard::Project);
    if of_project { format!("circuit {key} (all pools of the namespace)") } else { format!("circuit {key}") }
}

fn list(names: &[String]) -> String {
    let more = names.len().saturating_sub(MAX_LISTED_NAMES);
    let first = names.iter().take(MAX_LISTED_NAMES).map(String::as_str).collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{first} and {more} more") } else { first }
}

fn ready(breaker: &Breaker, facts: &Facts, build: &Builder) -> Condition {
    let missing =
        || format!("these pools in spec.pools do not exist: AgentPool {}. Correct the names, or create the pools", list(facts.unknown));
    let named = breaker.spec.pools.as_ref().filter(|pools| !pools.is_empty());
    if named.is_some_and(|named| named.len() == facts.unknown.len()) {
        return build.build(types::READY, false, reasons::NO_POOL, format!("the Breaker guards no pool: {}", missing()));
    }
    let how = match breaker.spec.mode {
        Mode::Enforce => "the Breaker guards",
        Mode::Observe => "spec.mode is Observe: the Breaker refuses nothing and only observes",
        Mode::Disabled => "spec.mode is Disabled: the Breaker does not guard",
    };
    let mut message = match facts.guarded {
        [] => "the Breaker guards no pool: the namespace has none, or a more specific Breaker applies to each".to_owned(),
        pools => format!("{how} AgentPool {}", list(pools)),
    };
    if !facts.unknown.is_empty() {
        message = format!("{message}; {}", missing());
    }
    build.build(types::READY, true, reasons::GUARDING, message)
}

fn tripped(breaker: &Breaker, facts: &Facts, views: &[CircuitView], circuits: &[Circuit], build: &Builder) -> Condition {
    let namespace = breaker.metadata.namespace.as_deref().unwrap_or_default();
    let undo = format!("kubectl spillway breaker auto {} -n {namespace} ends that", facts.name);
    if breaker.spec.mode == Mode::Disabled {
        return build.build(types::TRIPPED, false, reasons::CIRCUITS_CLOSED, "circuits refuse nothing (spec.mode: Disabled)");
    }
    match breaker.spec.force {
        Some(crate::api::breaker::Force::Open) => {
            let message = format!("a person forced all circuits open (spec.force: Open); {undo}");
            return build.build(types::TRIPPED, true, reasons::FORCED_OPEN, message);
        }
        Some(crate::api::breaker::Force::Closed) => {
            let message = format!("a person forced all circuits closed (spec.force: Closed); {undo}");
            return build.build(types::TRIPPED, false, reasons::FORCED_CLOSED, message);
        }
        None => {}
    }
    let open: Vec<&Circuit> = circuits.iter().filter(|circuit| circuit.state != CircuitState::Closed).collect();
    let Some(worst) = open.iter().max_by_key(|circuit| (rank(circuit.state), circuit.epoch)) else {
        return build.build(types::TRIPPED, false, reasons::CIRCUITS_CLOSED, "all circuits are closed");
    };
    let title = title(&worst.key);
    let required = views.iter().any(|view| view.what == worst.key && view.review);
    let (reason, mut message) = match worst.state {
        CircuitState::Open if required => {
            let approve = format!("a person must approve the next try: kubectl spillway breaker approve {} -n {namespace}", facts.name);
            (reasons::REVIEW_REQUIRED, format!("{title} is open; {approve}"))
        }
        CircuitState::Open | CircuitState::Closed => {
            let until = worst.open_until.as_ref().map_or_else(String::new, |until| format!(" until {}", until.0));
            (reasons::CIRCUIT_OPEN, format!("{title} is open{until}"))
        }
        CircuitState::HalfOpen => (reasons::CIRCUIT_HALF_OPEN, format!("{title} is half open: a few tries test whether it works again")),
    };
    if let Some(last) = &worst.last_failure {
        message = format!("{message}; the last failure: {last}");
    }
    if let Some(key) = super::Key::named("", &worst.key).filter(|key| key.shared().as_ref() == Some(key)) {
        message = format!("{message}; {}", super::calls::shared_circuit_note(&key));
    }
    let others = open.len() - 1;
    if others > 0 {
        message = format!("{message} (and {others} more)");
    }
    let hidden = views.iter().filter(|view| view.saved.state == State::Open).count().saturating_sub(MAX_STATUS_CIRCUITS);
    if hidden > 0 {
        message = format!("{message}; {hidden} open circuits do not fit into this status, and a new leader will not know them");
    }
    build.build(types::TRIPPED, true, reason, message)
}

/// Whether only counts differ: such a write can wait.
pub fn only_counts_differ(stored: &BreakerStatus, next: &BreakerStatus) -> bool {
    let without_counts = |status: &BreakerStatus| {
        let mut status = status.clone();
        if let Some(circuits) = &mut status.circuits {
            circuits.retain(|circuit| circuit.epoch > 0);
            circuits.iter_mut().for_each(|circuit| (circuit.failures, circuit.last_failure) = (None, None));
        }
        status.circuits = status.circuits.filter(|circuits| !circuits.is_empty());
        status.summary = None;
        status
    };
    without_counts(stored) == without_counts(next)
}

/// An event about a Breaker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BreakerNews {
    /// Whether it is a warning.
    pub warning: bool,
    /// Whether it is also sent to webhooks: when a circuit opens and when it closes, but not for the tries in between.
    pub notify_webhooks: bool,
    /// The reason of the event.
    pub reason: &'static str,
    /// The message of the event.
    pub note: String,
}

/// The events for circuits that changed their state between two statuses.
pub fn news(before: &BreakerStatus, now: &BreakerStatus) -> Vec<BreakerNews> {
    let was = |what: &str| before.circuits.iter().flatten().find(|circuit| circuit.key == what);
    let moved = now.circuits.iter().flatten().filter_map(|circuit| {
        let before = was(&circuit.key).map_or((CircuitState::Closed, 0), |was| (was.state, was.epoch));
        let what = title(&circuit.key);
        match (before, circuit.state) {
            ((state, epoch), CircuitState::Open) if state != CircuitState::Open || epoch != circuit.epoch => {
                let until = circuit.open_until.as_ref().map_or_else(String::new, |until| format!(" until {}", until.0));
                let last = circuit.last_failure.as_deref().unwrap_or("too many failures");
                let told = state == CircuitState::Closed;
                Some(BreakerNews {
                    warning: true,
                    notify_webhooks: told,
                    reason: "CircuitOpened",
                    note: format!("{what} is open{until}: {last}"),
                })
            }
            ((CircuitState::Open, _), CircuitState::HalfOpen) => {
                let note = format!("{what} is half open: a few tries test whether it works again");
                Some(BreakerNews { warning: false, notify_webhooks: false, reason: "CircuitHalfOpen", note })
            }
            ((CircuitState::Open | CircuitState::HalfOpen, _), CircuitState::Closed) => Some(BreakerNews {
                warning: false,
                notify_webhooks: true,
                reason: "CircuitClosed",
                note: format!("{what} is closed: it works again"),
            }),
            (_, CircuitState::Open | CircuitState::HalfOpen | CircuitState::Closed) => None,
        }
    });
    moved.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::controller::conditions::find;

    fn breaker(spec: serde_json::Value) -> Breaker {
        serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Breaker", "spec": spec,
            "metadata": {"name": "strict", "namespace": "n", "generation": 3}}))
        .expect("a Breaker")
    }

    fn view(what: &'static str, state: State, epoch: u64) -> CircuitView<'static> {
        let guard = crate::governor::breaker::Key::named("n", what).expect("a known guard").guard;
        let opens = u32::from(state != State::Closed);
        let open_until = (state == State::Open).then_some(1_767_225_725_000);
        CircuitView {
            what,
            guard,
            saved: PersistedCircuit { state, epoch, opens, open_until },
            failures: 0,
            last_failure: Some("timed out"),
            review: false,
        }
    }

    fn of(spec: serde_json::Value, unknown: &[&str], guarded: &[&str], views: &[CircuitView]) -> BreakerStatus {
        let names = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let (unknown, guarded) = (names(unknown), names(guarded));
        next_status(&breaker(spec), &Facts { name: "strict", unknown: &unknown, guarded: &guarded }, views, Timestamp::UNIX_EPOCH)
    }

    fn condition(status: &BreakerStatus, type_: &str) -> (String, String, String) {
        let found = find(&status.conditions, type_).expect("it is always there");
        (found.status.clone(), found.reason.clone(), found.message.clone())
    }

    #[test]
    fn a_breaker_says_for_which_pools_it_is() {
        let ready = |spec, unknown: &[&str], guarded: &[&str]| condition(&of(spec, unknown, guarded, &[]), "Ready");
        let (status, reason, words) = ready(json!({"pools": ["a", "b"]}), &["a", "b"], &[]);
        assert_eq!((status.as_str(), reason.as_str()), ("False", "NoPool"));
        assert!(words.contains("AgentPool a, b"), "{words}");
        let (status, _, words) = ready(json!({"pools": ["a", "b"]}), &["b"], &["a"]);
        assert!(status == "True" && words.contains("guards AgentPool a;") && words.contains("do not exist: AgentPool b"), "{words}");
        let (status, _, words) = ready(json!({"mode": "Observe"}), &[], &["a"]);
        assert!(status == "True" && words.contains("observes"), "{words}");
    }

    #[test]
    fn the_worst_circuit_is_told() {
        let open = view("work/p", State::Open, 3);
        let half = view("models/h/large", State::HalfOpen, 4);
        let status = of(json!({}), &[], &["p"], &[half.clone(), open.clone(), view("commands", State::Closed, 0)]);
        let (yes, reason, words) = condition(&status, "Tripped");
        assert_eq!((yes.as_str(), reason.as_str()), ("True", "CircuitOpen"));
        assert!(words.contains("work/p is open until 2026-01-01T00:02:05Z") && words.contains("timed out"), "{words}");
        let summary = status.summary.clone().expect("there are circuits");
        assert_eq!((summary.work, summary.models, summary.commands), (Some(CircuitState::Open), Some(CircuitState::HalfOpen), None));
        let review = of(json!({}), &[], &["p"], &[CircuitView { review: true, ..open.clone() }]);
        let (_, reason, words) = condition(&review, "Tripped");
        assert!(reason == "ReviewRequired" && words.contains("breaker approve strict"), "{words}");
        let forced = |force: &str| condition(&of(json!({"force": force}), &[], &["p"], std::slice::from_ref(&open)), "Tripped");
        assert_eq!((forced("Open").0, forced("Open").1), ("True".into(), "ForcedOpen".into()));
        assert_eq!((forced("Closed").0, forced("Closed").1), ("False".into(), "ForcedClosed".into()));
        assert_eq!(condition(&of(json!({}), &[], &["p"], &[]), "Tripped").1, "CircuitsClosed");
    }

    #[test]
    fn the_circuit_of_the_project_is_told_as_what_it_is() {
        let (closed, open) = (view("work/p", State::Closed, 0), view("work", State::Open, 3));
        let status = of(json!({}), &[], &["p"], &[closed, open]);
        let (_, reason, words) = condition(&status, "Tripped");
        assert!(reason == "CircuitOpen" && words.starts_with("circuit work (all pools of the namespace) is open until"), "{words}");
        assert_eq!(status.summary.as_ref().and_then(|summary| summary.work), Some(CircuitState::Open));
        let told = news(&BreakerStatus::default(), &status);
        assert!(told[0].note.starts_with("circuit work (all pools of the namespace) is open"), "{told:?}");
    }

    #[test]
    fn no_open_circuit_makes_room_for_a_closed_one_and_what_is_hidden_is_said() {
        let names: Vec<&'static str> = (0..40).map(|index| &*Box::leak(format!("models/h{index}/large").into_boxed_str())).collect();
        let state = |index: usize| if index < 30 { State::Closed } else { State::Open };
        let views: Vec<CircuitView> =
            names.iter().enumerate().map(|(index, what)| view(what, state(index), u64::try_from(index).expect("small") + 1)).collect();
        let status = of(json!({}), &[], &["p"], &views);
        let kept = status.circuits.expect("circuits");
        assert_eq!(kept.len(), MAX_STATUS_CIRCUITS);
        assert_eq!(kept.iter().filter(|circuit| circuit.state == CircuitState::Open).count(), 10);
        assert!(
            !kept.iter().any(|circuit| circuit.key == "models/h7/large") && kept.iter().any(|circuit| circuit.key == "models/h29/large")
        );
        let all: Vec<CircuitView> = names.iter().map(|what| view(what, State::Open, 9)).collect();
        let words = condition(&of(json!({}), &[], &["p"], &all), "Tripped").2;
        assert!(words.contains("8 open circuits do not fit into this status"), "{words}");
    }

    #[test]
    fn time_alone_is_no_news() {
        let failing = |failures| CircuitView { failures, ..view("work/p", State::Closed, 0) };
        let mut stored = breaker(json!({}));
        let guarded = ["p".to_owned()];
        let facts = Facts { name: "strict", unknown: &[], guarded: &guarded };
        let now = |second| Timestamp::from_second(second).expect("a time");
        let first = next_status(&stored, &facts, &[failing(2)], now(1));
        stored.status = Some(first.clone());
        assert_eq!(next_status(&stored, &facts, &[failing(0)], now(900)), first);
        let third = next_status(&stored, &facts, &[failing(3)], now(900));
        assert!(third != first && only_counts_differ(&first, &third));
        let open = next_status(&stored, &facts, &[view("work/p", State::Open, 1)], now(900));
        assert!(!only_counts_differ(&first, &open));
        stored.status = Some(open.clone());
        assert_eq!(next_status(&stored, &facts, &[view("work/p", State::Open, 1)], now(9000)), open);
    }

    #[test]
    fn openings_and_closings_are_worth_an_event() {
        let status = |state, epoch| of(json!({}), &[], &["p"], &[view("work/p", state, epoch)]);
        let (closed, open, half) = (status(State::Closed, 0), status(State::Open, 1), status(State::HalfOpen, 2));
        let reasons = |before: &BreakerStatus, now: &BreakerStatus| {
            news(before, now).into_iter().map(|news| (news.warning, news.notify_webhooks, news.reason)).collect::<Vec<_>>()
        };
        assert_eq!(reasons(&closed, &open), [(true, true, "CircuitOpened")]);
        assert_eq!(reasons(&open, &half), [(false, false, "CircuitHalfOpen")]);
        assert_eq!(reasons(&half, &status(State::Open, 3)), [(true, false, "CircuitOpened")]);
        assert_eq!(reasons(&open, &status(State::Open, 3)), [(true, false, "CircuitOpened")], "between two writes it was tried");
        assert_eq!(reasons(&half, &status(State::Closed, 2)), [(false, true, "CircuitClosed")]);
        assert_eq!(reasons(&open, &open), []);
    }
}
