//! Conversion of the spec of a Breaker to the settings of its circuits, and of circuits from and to its status. Pure.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::api::breaker::{self as api, BreakerSpec, CircuitState, CommandsGuard, ModelsGuard, WorkGuard};
use crate::api::cluster_budget::BreakerDefaults;
use crate::api::shared;
use crate::policy::breaker::{Force, Guard, Mode, PersistedCircuit, Review, Settings, State};

/// Maximum number of circuits in a status.
pub const MAX_STATUS_CIRCUITS: usize = 32;

fn mode(mode: shared::Mode) -> Mode {
    match mode {
        shared::Mode::Enforce => Mode::Enforce,
        shared::Mode::Observe => Mode::Observe,
        shared::Mode::Disabled => Mode::Disabled,
    }
}

/// The spec of one guard.
#[derive(Clone, Copy, Default)]
struct Numbers {
    threshold: Option<i32>,
    window: Option<i32>,
    open: Option<i32>,
    successes: Option<i32>,
    factor: Option<i32>,
    max_open: Option<i32>,
    probes: Option<i32>,
    probe_within: Option<i32>,
    review: Option<api::Review>,
}

impl Numbers {
    fn apply_to(self, settings: &mut Settings) {
        let milliseconds = |seconds: Option<i32>| seconds.and_then(|seconds| u64::try_from(seconds).ok()).map(|seconds| seconds * 1000);
        let number = |number: Option<i32>| number.and_then(|number| u32::try_from(number).ok());
        let Self { threshold, window, open, successes, factor, max_open, probes, probe_within, review } = self;
        settings.threshold = number(threshold).unwrap_or(settings.threshold);
        settings.window = milliseconds(window).unwrap_or(settings.window);
        settings.open = milliseconds(open).unwrap_or(settings.open);
        settings.successes = number(successes).unwrap_or(settings.successes);
        settings.factor = number(factor).unwrap_or(settings.factor);
        settings.max_open = milliseconds(max_open).unwrap_or(settings.max_open);
        settings.probes = number(probes).unwrap_or(settings.probes);
        settings.probe_within = milliseconds(probe_within).or(settings.probe_within);
        settings.review = match review {
            Some(api::Review::Required) => Review::Required,
            Some(api::Review::Auto) => Review::Auto,
            None => settings.review,
        };
    }
}

macro_rules! numbers {
    ($guard:expr) => {
        $guard.map_or_else(Numbers::default, |guard| Numbers {
            threshold: guard.failure_threshold,
            window: guard.window_seconds,
            open: guard.open_seconds,
            successes: guard.success_threshold,
            factor: guard.backoff_factor,
            max_open: guard.max_open_seconds,
            probes: guard.half_open_probes,
            probe_within: guard.probe_timeout_seconds,
            review: None,
        })
    };
}

/// The guards of one spec.
#[derive(Clone, Copy)]
struct Guards<'a> {
    work: Option<&'a WorkGuard>,
    project: Option<&'a WorkGuard>,
    commands: Option<&'a CommandsGuard>,
    models: Option<&'a ModelsGuard>,
}

impl Guards<'_> {
    fn numbers(self, guard: Guard) -> Numbers {
        let Self { work, project, commands, models } = self;
        let of_work = |guard: Option<&WorkGuard>| Numbers { review: guard.and_then(|guard| guard.review), ..numbers!(guard) };
        match guard {
            Guard::Work => of_work(work),
            Guard::Project => of_work(project),
            Guard::Commands => numbers!(commands),
            Guard::Session => {
                let session = commands.and_then(|commands| commands.session.as_ref());
                Numbers { threshold: session.and_then(|session| session.failure_threshold), ..numbers!(commands) }
            }
            Guard::Models => numbers!(models),
        }
    }
}

/// The spec that applies to a circuit: that of its Breaker, if one applies, and the defaults of the ClusterBudget for
/// unset fields.
#[derive(Clone, Copy, Default)]
pub struct CircuitSpec<'a> {
    /// The spec of the Breaker.
    pub own: Option<&'a BreakerSpec>,
    /// The defaults for unset fields.
    pub defaults: Option<&'a BreakerDefaults>,
}

impl CircuitSpec<'_> {
    /// In rising priority.
    fn guards(&self) -> impl DoubleEndedIterator<Item = Guards<'_>> {
        let defaults = self.defaults.map(|BreakerDefaults { work, project, commands, models }| Guards {
            work: work.as_ref(),
            project: project.as_ref(),
            commands: commands.as_ref(),
            models: models.as_ref(),
        });
        let own = self.own.map(|own| Guards {
            work: own.work.as_ref(),
            project: own.project.as_ref(),
            commands: own.commands.as_ref(),
            models: own.models.as_ref(),
        });
        defaults.into_iter().chain(own)
    }

    /// The limit for the first token of a stream, in seconds.
    pub fn first_token(&self) -> Option<i32> {
        self.guards().rev().find_map(|guards| guards.models?.first_token_seconds)
    }

    /// Exit codes of commands that count as failures.
    pub fn failure_exit_codes(&self) -> Vec<i32> {
        self.guards().rev().find_map(|guards| guards.commands?.failure_exit_codes.clone()).unwrap_or_default()
    }

    /// The settings of a circuit of this guard. `operation` is the longest time of one of several consecutive
    /// operations, in milliseconds.
    pub fn settings(&self, guard: Guard, operation: u64) -> Settings {
        let mut settings = Settings::of(guard);
        if guard == Guard::Project {
            // If a pool tolerates more failures, its project tolerates as many.
            let borne = self.guards().rev().find_map(|guards| guards.work?.failure_threshold);
            settings.threshold = settings.threshold.max(borne.and_then(|borne| u32::try_from(borne).ok()).unwrap_or(0));
        }
        self.guards().for_each(|guards| guards.numbers(guard).apply_to(&mut settings));
        if let Some(BreakerSpec { mode: how, force, approved_epoch, pools: _, work: _, project: _, commands: _, models: _ }) = self.own {
            settings.mode = mode(*how);
            settings.force = force.map(|force| match force {
                api::Force::Open => Force::Open,
                api::Force::Closed => Force::Closed,
            });
            settings.approved = approved_epoch.and_then(|epoch| u64::try_from(epoch).ok());
        }
        settings.with_effective_window(operation)
    }
}

/// Converts a state to that of the custom resource.
pub fn state(state: State) -> CircuitState {
    match state {
        State::Closed => CircuitState::Closed,
        State::HalfOpen => CircuitState::HalfOpen,
        State::Open => CircuitState::Open,
    }
}

/// The persistent state of a circuit in a status.
pub fn saved(circuit: &api::Circuit) -> PersistedCircuit {
    PersistedCircuit {
        state: match circuit.state {
            CircuitState::Closed => State::Closed,
            CircuitState::HalfOpen => State::HalfOpen,
            CircuitState::Open => State::Open,
        },
        epoch: u64::try_from(circuit.epoch).unwrap_or(0),
        opens: circuit.opens.and_then(|opens| u32::try_from(opens).ok()).unwrap_or(0),
        open_until: circuit.open_until.as_ref().map(|until| until.0.as_millisecond()),
    }
}

/// A circuit for the status. While it is the same opening, the stored end of the opening is kept, because clock
/// readings differ slightly.
pub fn circuit(what: &str, saved: &PersistedCircuit, stored: Option<&api::Circuit>) -> api::Circuit {
    let same = stored.filter(|stored| self::saved(stored).is_equivalent(saved));
    let until = saved.open_until.and_then(|until| Timestamp::from_millisecond(until).ok()).map(Time);
    api::Circuit {
        key: what.to_owned(),
        state: state(saved.state),
        epoch: i64::try_from(saved.epoch).unwrap_or(i64::MAX),
        opens: i32::try_from(saved.opens).ok().filter(|opens| *opens > 0),
        open_until: same.map_or(until, |same| same.open_until.clone()),
        failures: None,
        last_failure: None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(spec: serde_json::Value) -> BreakerSpec {
        serde_json::from_value(spec).expect("a spec")
    }

    #[test]
    fn what_is_unset_is_as_the_guard_has_it() {
        for guard in [Guard::Work, Guard::Project, Guard::Session, Guard::Commands, Guard::Models] {
            assert_eq!(CircuitSpec { own: Some(&spec(json!({}))), defaults: None }.settings(guard, 1), Settings::of(guard));
            assert_eq!(CircuitSpec::default().settings(guard, 1), Settings::of(guard));
        }
    }

    #[test]
    fn each_guard_has_its_own_numbers() {
        let spec = spec(json!({"mode": "Observe", "force": "Open", "approvedEpoch": 7,
            "work": {"failureThreshold": 2, "windowSeconds": 10, "review": "Required", "probeTimeoutSeconds": 9},
            "commands": {"failureThreshold": 20, "session": {"failureThreshold": 4}, "openSeconds": 5},
            "models": {"backoffFactor": 2, "maxOpenSeconds": 60, "halfOpenProbes": 3, "successThreshold": 4}}));
        let of = |guard| CircuitSpec { own: Some(&spec), defaults: None }.settings(guard, 8000);
        let work = of(Guard::Work);
        assert_eq!((work.mode, work.force, work.approved, work.review), (Mode::Observe, Some(Force::Open), Some(7), Review::Required));
        assert_eq!((work.threshold, work.window, work.probe_within), (2, 16_000, Some(9000)), "two turns of eight seconds");
        assert_eq!((of(Guard::Session).threshold, of(Guard::Session).open), (4, 5000));
        assert_eq!((of(Guard::Commands).threshold, of(Guard::Commands).window), (20, 120_000));
        let models = of(Guard::Models);
        assert_eq!((models.factor, models.max_open, models.probes, models.successes, models.review), (2, 60_000, 3, 4, Review::Auto));
    }

    #[test]
    fn what_a_breaker_leaves_unset_is_as_the_cluster_has_it() {
        let defaults: BreakerDefaults = serde_json::from_value(json!({
            "work": {"failureThreshold": 7, "review": "Required"},
            "commands": {"session": {"failureThreshold": 4}, "openSeconds": 5, "failureExitCodes": [137]},
            "models": {"firstTokenSeconds": 9, "openSeconds": 8},
        }))
        .expect("defaults");
        let none = CircuitSpec { own: None, defaults: Some(&defaults) };
        let work = none.settings(Guard::Work, 1);
        assert_eq!((work.threshold, work.review, work.open), (7, Review::Required, 60_000), "also where there is no Breaker");
        let own = spec(json!({"mode": "Observe", "pools": ["p"], "work": {"openSeconds": 11, "review": "Auto"},
            "commands": {"failureThreshold": 20}, "models": {"openSeconds": 12}}));
        let both = CircuitSpec { own: Some(&own), ..none };
        let work = both.settings(Guard::Work, 1);
        assert_eq!((work.mode, work.threshold, work.review, work.open), (Mode::Observe, 7, Review::Auto, 11_000));
        let (session, commands) = (both.settings(Guard::Session, 0), both.settings(Guard::Commands, 0));
        assert_eq!((session.threshold, commands.threshold, session.open, commands.open), (4, 20, 5000, 5000));
        assert_eq!((both.failure_exit_codes(), both.first_token(), both.settings(Guard::Models, 0).open), (vec![137], Some(9), 12_000));
        let codes = spec(json!({"commands": {"failureExitCodes": []}, "models": {"firstTokenSeconds": 1}}));
        let other = CircuitSpec { own: Some(&codes), ..none };
        assert_eq!((other.failure_exit_codes(), other.first_token()), (vec![], Some(1)), "none is a word, too");
    }

    #[test]
    fn a_project_bears_as_many_failures_as_one_of_its_pools_unless_it_is_said() {
        let of = |own: serde_json::Value, defaults: serde_json::Value| {
            let (own, defaults) = (spec(own), serde_json::from_value(defaults).expect("defaults"));
            let project = CircuitSpec { own: Some(&own), defaults: Some(&defaults) }.settings(Guard::Project, 600_000);
            (project.threshold, project.window, project.review)
        };
        assert_eq!(of(json!({}), json!({})), (3, 300_000, Review::Auto));
        assert_eq!(
            of(json!({"work": {"failureThreshold": 1, "review": "Required", "windowSeconds": 9}}), json!({})),
            (3, 300_000, Review::Auto)
        );
        assert_eq!(of(json!({"work": {"failureThreshold": 8}}), json!({"work": {"failureThreshold": 9}})).0, 8);
        assert_eq!(of(json!({}), json!({"work": {"failureThreshold": 9}})).0, 9);
        let said = json!({"work": {"failureThreshold": 9}, "project": {"failureThreshold": 2, "review": "Required"}});
        assert_eq!(of(said, json!({"project": {"failureThreshold": 5, "windowSeconds": 60}})), (2, 60_000, Review::Required));
    }

    #[test]
    fn a_circuit_survives_its_way_through_a_status() {
        let cases = [
            PersistedCircuit::default(),
            PersistedCircuit { state: State::Open, epoch: 3, opens: 2, open_until: Some(1_767_225_725_000) },
            PersistedCircuit { state: State::HalfOpen, epoch: 4, opens: 2, open_until: None },
        ];
        for before in cases {
            let first = circuit("work/p", &before, None);
            assert_eq!(saved(&first), before);
            let later = PersistedCircuit { open_until: before.open_until.map(|until| until + 1700), ..before };
            assert_eq!(circuit("work/p", &later, Some(&first)), first, "that clocks differ is no news");
        }
    }
}
