//! Which agents may take an item, by their labels: a Kubernetes label selector.
//!
//! What always holds: selectors with the same requirements in another order are equal, so that their items share one
//! class.

use std::collections::{BTreeMap, BTreeSet};

/// Requirements on an agent's labels; all of them must hold. Without a requirement every agent matches.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Selector(BTreeSet<Requirement>);

/// A requirement on one label.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Requirement {
    /// Key of the label.
    pub key: String,
    /// The condition on its value.
    pub operator: Operator,
}

/// The condition on a label.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operator {
    /// It exists, with one of these values.
    In(BTreeSet<String>),
    /// It does not exist, or has none of these values.
    NotIn(BTreeSet<String>),
    /// It exists, with any value.
    Exists,
    /// It does not exist.
    DoesNotExist,
}

impl Requirement {
    /// The label must have this value.
    pub fn equals(key: &str, value: &str) -> Self {
        Self { key: key.to_owned(), operator: Operator::In(BTreeSet::from([value.to_owned()])) }
    }

    /// Whether it holds for these labels.
    pub fn holds(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        match &self.operator {
            Operator::In(values) => value.is_some_and(|value| values.contains(value)),
            Operator::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

impl Selector {
    /// Whether an agent with these labels matches.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0.iter().all(|requirement| requirement.holds(labels))
    }
}

impl FromIterator<Requirement> for Selector {
    fn from_iter<T: IntoIterator<Item = Requirement>>(requirements: T) -> Self {
        Self(requirements.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn labels(all: &[(&str, &str)]) -> BTreeMap<String, String> {
        all.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn values(all: &[&str]) -> BTreeSet<String> {
        all.iter().map(|value| (*value).to_owned()).collect()
    }

    #[test]
    fn each_operator_is_the_one_of_kubernetes() {
        // The label `zone`: absent, a, b, and empty, which is a value too.
        let all = [labels(&[]), labels(&[("zone", "a")]), labels(&[("zone", "b")]), labels(&[("zone", "")]), labels(&[("other", "a")])];
        for (operator, expected) in [
            (Operator::In(values(&["a"])), [false, true, false, false, false]),
            (Operator::In(values(&["a", "b"])), [false, true, true, false, false]),
            (Operator::In(values(&[""])), [false, false, false, true, false]),
            (Operator::In(values(&[])), [false; 5]),
            (Operator::NotIn(values(&["a"])), [true, false, true, true, true]),
            (Operator::NotIn(values(&["a", "b"])), [true, false, false, true, true]),
            (Operator::NotIn(values(&[])), [true; 5]),
            (Operator::Exists, [false, true, true, true, false]),
            (Operator::DoesNotExist, [true, false, false, false, true]),
        ] {
            let selector: Selector = [Requirement { key: "zone".into(), operator: operator.clone() }].into_iter().collect();
            assert_eq!(all.each_ref().map(|labels| selector.matches(labels)), expected, "{operator:?}");
        }
        assert!(Selector::default().matches(&labels(&[])) && Selector::default().matches(&labels(&[("zone", "a")])));
    }

    fn some_values() -> impl Strategy<Value = BTreeSet<String>> {
        proptest::collection::btree_set("[ab]?", 0..3)
    }

    fn requirement() -> impl Strategy<Value = Requirement> {
        let operator = prop_oneof![
            some_values().prop_map(Operator::In),
            some_values().prop_map(Operator::NotIn),
            Just(Operator::Exists),
            Just(Operator::DoesNotExist),
        ];
        ("[xyz]", operator).prop_map(|(key, operator)| Requirement { key, operator })
    }

    fn some_labels() -> impl Strategy<Value = BTreeMap<String, String>> {
        proptest::collection::btree_map("[xyz]", "[ab]?", 0..4)
    }

    proptest! {
        #[test]
        fn not_in_is_the_contrary_of_in_and_absence_that_of_presence(labels in some_labels(), key in "[xyz]", values in some_values()) {
            let holds = |operator| Requirement { key: key.clone(), operator }.holds(&labels);
            prop_assert_eq!(holds(Operator::In(values.clone())), !holds(Operator::NotIn(values.clone())));
            prop_assert_eq!(holds(Operator::Exists), !holds(Operator::DoesNotExist));
            prop_assert!(!holds(Operator::In(values)) || holds(Operator::Exists), "what has a value is there");
        }

        #[test]
        fn all_requirements_must_hold_in_whatever_order_and_however_often(
            all in proptest::collection::vec(requirement(), 0..5), labels in some_labels(),
        ) {
            let selector: Selector = all.iter().cloned().collect();
            prop_assert_eq!(selector.matches(&labels), all.iter().all(|one| one.holds(&labels)));
            let again: Selector = all.iter().rev().chain(&all).cloned().collect();
            prop_assert_eq!(again, selector);
        }

        #[test]
        fn other_labels_change_nothing(one in requirement(), labels in some_labels(), value in "[ab]") {
            let mut more = labels.clone();
            more.insert("w".into(), value);
            prop_assert_eq!(one.holds(&more), one.holds(&labels));
        }
    }
}
