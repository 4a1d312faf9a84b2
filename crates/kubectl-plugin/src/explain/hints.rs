//! Advice for the reasons of a report, each reason once.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::advice::{self, Advice};
use super::report::Hint;

/// Collects advice, each reason once.
pub(super) struct Hints<'a> {
    pub(super) placeholders: [(&'a str, Option<String>); 5],
    hints: Vec<Hint>,
}

impl<'a> Hints<'a> {
    pub(super) fn new(places: &[(&'a str, Option<String>); 5]) -> Self {
        Self { placeholders: places.clone(), hints: Vec::new() }
    }

    pub(super) fn add_condition(&mut self, condition: &Condition) {
        self.add(&condition.reason, advice::for_condition(condition));
    }

    pub(super) fn add_reason(&mut self, reason: &str) {
        if let Some(advice) = advice::for_reason(reason) {
            self.add(reason, advice);
        }
    }

    pub(super) fn add_action(&mut self, reason: &str, words: &'static str) {
        self.add(reason, Advice::Do(words));
    }

    pub(super) fn add_no_action(&mut self, reason: &str, words: &'static str) {
        self.add(reason, Advice::Nothing(words));
    }

    pub(super) fn add_not_observed(&mut self) {
        self.add_action(
            "NotObserved",
            "the operator has not observed it: check that the operator runs (`kubectl get pods -A -l app.kubernetes.io/name=spillway`) and serves this namespace",
        );
    }

    fn add(&mut self, reason: &str, advice: Advice) {
        if self.hints.iter().any(|hint| hint.reason == reason) {
            return;
        }
        let (text, act) = match advice {
            Advice::Do(text) => (text, true),
            Advice::Nothing(text) => (text, false),
        };
        let places: Vec<(&str, Option<&str>)> = self.placeholders.iter().map(|(place, name)| (*place, name.as_deref())).collect();
        self.hints.push(Hint { reason: reason.to_owned(), advice: advice::with_names(text, &places), act });
    }

    /// The advice, actions first.
    pub(super) fn into_sorted(mut self) -> Vec<Hint> {
        if self.hints.is_empty() {
            self.add_no_action("AsDesired", "no action is needed");
        }
        self.hints.sort_by_key(|hint| !hint.act);
        self.hints
    }
}
