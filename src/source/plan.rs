//! What is to be done with the issues of a forge and the items that were made of them. Pure.
//!
//! The label of an issue is the record on the forge: it is there from the request of a person until the answer. The item, with its
//! annotation, is the record in the cluster. Each step may be repeated, so a crash between two steps loses nothing and asks nothing
//! twice.

use std::collections::BTreeMap;

use super::forge::Issue;

/// An item that was made of an issue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourcedItem {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// The number of its issue.
    pub number: u64,
    /// Whether it has ended.
    pub ended: bool,
    /// Whether its cancellation was requested.
    pub cancelled: bool,
    /// Whether its end was told on the forge.
    pub answered: bool,
}

/// A step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make an item of this issue.
    Create(u64),
    /// Tell the end of this item on its issue, and remove the label.
    Answer(String),
    /// The label was put again after the answer: delete the item, so that another one can be made.
    Renew(String),
    /// The issue is not in the list any more. If it is really no work any more, cancel this item.
    CancelIfWithdrawn(String),
}

/// The steps for these issues, which are all open ones with the label, and these items.
pub fn plan(issues: &[Issue], items: &[SourcedItem]) -> Vec<Step> {
    let known: BTreeMap<u64, &SourcedItem> = items.iter().map(|item| (item.number, item)).collect();
    let mut steps = Vec::new();
    for item in items.iter().filter(|item| item.ended && !item.answered) {
        steps.push(Step::Answer(item.name.clone()));
    }
    for issue in issues {
        match known.get(&issue.number) {
            None => steps.push(Step::Create(issue.number)),
            Some(item) if item.answered => steps.push(Step::Renew(item.name.clone())),
            Some(_) => {}
        }
    }
    let is_listed = |number: u64| issues.iter().any(|issue| issue.number == number);
    for item in items.iter().filter(|item| !item.ended && !item.cancelled && !is_listed(item.number)) {
        steps.push(Step::CancelIfWithdrawn(item.name.clone()));
    }
    steps
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn issue(number: u64) -> Issue {
        let text = String::new;
        Issue { number, title: text(), body: text(), url: text(), author: text(), open: true, labelled: true, label_id: None }
    }

    fn item(number: u64, ended: bool, answered: bool) -> SourcedItem {
        SourcedItem { name: format!("i{number}"), uid: format!("u{number}"), number, ended, cancelled: false, answered }
    }

    #[test]
    fn an_issue_becomes_one_item_and_its_end_is_told_once() {
        assert_eq!(plan(&[issue(1), issue(2)], &[item(1, false, false)]), [Step::Create(2)]);
        assert_eq!(plan(&[issue(1)], &[item(1, true, false)]), [Step::Answer("i1".into())]);
        assert_eq!(plan(&[], &[item(1, true, true)]), []);
        assert_eq!(
            plan(&[], &[item(1, true, false)]),
            [Step::Answer("i1".into())],
            "the label was removed, and the item is not marked yet"
        );
        assert_eq!(plan(&[issue(1)], &[item(1, true, true)]), [Step::Renew("i1".into())]);
        assert_eq!(plan(&[], &[item(1, false, false)]), [Step::CancelIfWithdrawn("i1".into())]);
        assert_eq!(plan(&[], &[SourcedItem { cancelled: true, ..item(1, false, false) }]), []);
    }

    /// A forge, a cluster and a source that may crash after any effect.
    #[derive(Clone, Debug)]
    enum Event {
        Label,
        Unlabel,
        End,
        /// Carries out the plan, up to this many effects.
        Poll(usize),
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![Just(Event::Label), Just(Event::Unlabel), Just(Event::End), (0usize..6).prop_map(Event::Poll)]
    }

    #[derive(Default)]
    struct CrashModel {
        labelled: bool,
        item: Option<(u64, bool, bool, bool)>, // generation, ended, cancelled, answered
        made: u64,
        comments: Vec<u64>,
    }

    impl CrashModel {
        fn poll(&mut self, mut effects: usize) {
            let issues: Vec<Issue> = self.labelled.then(|| issue(1)).into_iter().collect();
            let items: Vec<SourcedItem> = self
                .item
                .iter()
                .map(|(_, ended, cancelled, answered)| SourcedItem { cancelled: *cancelled, ..item(1, *ended, *answered) })
                .collect();
            let mut effect = || {
                let left = effects > 0;
                effects = effects.saturating_sub(1);
                left
            };
            for step in plan(&issues, &items) {
                match step {
                    Step::Create(_) if effect() => {
                        self.made += 1;
                        self.item = Some((self.made, false, false, false));
                    }
                    Step::Answer(_) => {
                        let Some((generation, ..)) = self.item else { return };
                        if !self.comments.contains(&generation) {
                            if !effect() {
                                return;
                            }
                            self.comments.push(generation);
                        }
                        if self.labelled {
                            if !effect() {
                                return;
                            }
                            self.labelled = false;
                        }
                        if !effect() {
                            return;
                        }
                        self.item = self.item.map(|(generation, ended, cancelled, _)| (generation, ended, cancelled, true));
                    }
                    Step::Renew(_) if effect() => self.item = None,
                    Step::CancelIfWithdrawn(_) if !self.labelled && effect() => {
                        self.item = self.item.map(|(generation, ended, _, answered)| (generation, ended, true, answered));
                    }
                    Step::Create(_) | Step::Renew(_) | Step::CancelIfWithdrawn(_) => return,
                }
            }
        }
    }

    proptest! {
        #[test]
        fn whatever_crashes_each_item_is_told_once_and_no_request_waits_for_ever(events in proptest::collection::vec(event(), 0..60)) {
            let mut world = CrashModel::default();
            for event in events {
                match event {
                    Event::Label => world.labelled = true,
                    Event::Unlabel => world.labelled = false,
                    Event::End => world.item = world.item.map(|(generation, _, cancelled, answered)| (generation, true, cancelled, answered)),
                    Event::Poll(effects) => world.poll(effects),
                }
                let mut told = world.comments.clone();
                told.dedup();
                prop_assert_eq!(&told, &world.comments, "an item is told once");
            }
            // Nobody crashes or changes anything any more, and each item ends.
            for _ in 0..6 {
                world.poll(usize::MAX);
                world.item = world.item.map(|(generation, _, cancelled, answered)| (generation, true, cancelled, answered));
            }
            prop_assert!(!world.labelled, "the request was answered");
            prop_assert!(world.item.is_none_or(|(generation, _, _, answered)| answered && world.comments.contains(&generation)));
        }
    }
}
