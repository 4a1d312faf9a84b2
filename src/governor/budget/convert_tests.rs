//! A written record is read back unchanged.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::api::budget::BudgetStatus;
use crate::api::cluster_budget::ClusterBudgetStatus;

fn name() -> impl Strategy<Value = String> {
    "[a-z]([-a-z0-9.]{0,8}[a-z0-9])?"
}

fn top() -> impl Strategy<Value = Key> {
    prop_oneof![
        name().prop_map(Key::Cluster),
        (name(), name()).prop_map(|(cluster, namespace)| Key::Namespace { cluster, namespace }),
        (name(), name()).prop_map(|(namespace, name)| Key::Budget { namespace, name }),
    ]
}

fn any_key() -> impl Strategy<Value = Key> {
    prop_oneof![
        top(),
        (top(), name()).prop_map(|(of, name)| Key::Share { of: Box::new(of), name }),
        "[a-f0-9-]{1,36}".prop_map(Key::Agent),
        ("[a-f0-9-]{1,36}", any::<i64>()).prop_map(|(item, epoch)| Key::Task { item, epoch }),
    ]
}

fn window() -> impl Strategy<Value = PersistedWindow> {
    let amount = || prop_oneof![Just(0_i64), 0..1_000_000_000_000_000_i64];
    let span = (0..Window::ALL.len(), 0..4_000_000_000_000_i64).prop_map(|(kind, time)| Window::ALL[kind].at(time));
    ("[a-c]", span, amount(), amount(), amount(), amount(), amount(), amount()).prop_map(
        |(limit, span, peak, used, held, lost, carried, high)| PersistedWindow { limit, span, peak, used, held, lost, debt: carried, high },
    )
}

fn saved(record: Key, others: Vec<Key>) -> impl Strategy<Value = PersistedRecord> {
    let windows = vec(vec(window(), 0..5), others.len() + 1);
    let acked = vec(("[a-z0-9]{1,9}", 0..i64::MAX).prop_map(|(session, seq)| AckedSettles { session, seq: seq.unsigned_abs() }), 0..4);
    let threshold = (1..=100_i64, 0..5_usize).prop_map(|(percent, action)| {
        let action = [Action::Log, Action::Warn, Action::Notify, Action::Pause, Action::Reap][action];
        Threshold { percent, action }
    });
    let latch = (window(), threshold, 0..1_000_000_i64);
    (windows, acked, vec(latch, 0..4)).prop_map(move |(windows, acked, latched)| {
        let keys = std::iter::once(record.clone()).chain(others.clone());
        let places = keys.zip(windows).map(|(key, mut windows)| {
            windows.sort_by(|one, other| (&one.limit, one.span).cmp(&(&other.limit, other.span)));
            windows.dedup_by(|one, other| one.limit == other.limit && one.span == other.span);
            PersistedPlace { key, windows }
        });
        let latched = latched.into_iter().map(|(window, threshold, height)| Latch {
            key: record.clone(),
            limit: window.limit,
            span: window.span,
            threshold,
            height,
        });
        PersistedRecord { places: places.collect(), acked, latched: latched.collect() }
    })
}

fn share(of: &Key, name: &str) -> Key {
    Key::Share { of: Box::new(of.clone()), name: name.to_owned() }
}

fn budget() -> Key {
    Key::budget("team", "default")
}

fn cluster() -> Key {
    Key::Cluster("all".into())
}

fn namespace(name: &str) -> Key {
    Key::Namespace { cluster: "all".into(), namespace: name.into() }
}

proptest! {
    #[test]
    fn a_place_is_read_as_it_was_named(key in any_key()) {
        prop_assert_eq!(super::parse_key(&key_to_text(&key)), Some(key));
    }

    #[test]
    fn no_text_is_taken_for_a_place_that_is_named_otherwise(text in "[abcnst:/x0-9]{0,12}") {
        if let Some(key) = super::parse_key(&text) {
            // An epoch has only one name, apart from signs and leading zeros.
            let same = super::key_to_text(&key) == text || matches!(key, Key::Task { .. });
            prop_assert!(same, "{}", text);
        }
    }

    #[test]
    fn a_budgets_record(saved in saved(budget(), vec![share(&budget(), "scheduler"), share(&budget(), "other")])) {
        let mut status = BudgetStatus::default();
        into_budget(&budget(), &canonical(&budget(), saved.clone()), &mut status);
        let stored: BudgetStatus = serde_json::from_value(serde_json::to_value(&status).expect("JSON")).expect("a status");
        prop_assert_eq!(of_budget(&budget(), Some(&stored)), canonical(&budget(), saved));
    }

    #[test]
    fn a_cluster_budgets_record(
        saved in saved(cluster(), vec![share(&cluster(), "s"), namespace("a"), share(&namespace("a"), "s"), share(&namespace("b"), "s")])
    ) {
        let mut status = ClusterBudgetStatus::default();
        let agents = crate::api::budget::AgentUsage { used: 3 };
        status.namespaces = Some(vec![NamespaceUsage { name: "z".into(), windows: None, reservations: None, agents: Some(agents.clone()) }]);
        into_cluster("all", &canonical(&cluster(), saved.clone()), &mut status);
        let stored: ClusterBudgetStatus = serde_json::from_value(serde_json::to_value(&status).expect("JSON")).expect("a status");
        prop_assert_eq!(of_cluster("all", Some(&stored)), canonical(&cluster(), saved));
        let counted = stored.namespaces.iter().flatten().find(|usage| usage.name == "z").and_then(|usage| usage.agents.clone());
        prop_assert_eq!(counted, Some(agents), "what others count stays");
    }

    #[test]
    fn an_agents_and_an_items_record(used in 0..1000_i64, held in 0..9_i64, lost in 0..9_i64, high in 0..2000_i64, seq in 0..9_u64) {
        for record in [Key::Agent("u".into()), Key::Task { item: "u".into(), epoch: 4 }] {
            let window = PersistedWindow { limit: LEAF_LIMIT_NAME.into(), span: LIFETIME, peak: 5000, used, held, lost, debt: 0, high };
            let saved = PersistedRecord {
                places: vec![PersistedPlace { key: record.clone(), windows: vec![window] }],
                acked: vec![AckedSettles { session: "g".into(), seq }],
                latched: Vec::new(),
            };
            let read = match &record {
                Key::Task { .. } => of_share("u", 4, Some(&into_share(4, &saved))),
                _ => of_agent("u", Some(&into_agent(&saved, 2))),
            };
            prop_assert_eq!(read, saved);
        }
    }
}

#[test]
fn text_that_nobody_wrote_names_no_place() {
    for text in ["", "x:a", "c:", "b:a", "b:/a", "b:a/", "n:a", "t:a/x", "s:a/a:u", "s:a/s:b/c:d", "s:/c:d", "s:a", "a:"] {
        assert_eq!(parse_key(text), None, "{text}");
    }
    let deep = "s:a/".repeat(1_000_000) + "c:d";
    assert_eq!(parse_key(&deep), None);
}

#[test]
fn of_another_lease_nothing_is_recorded() {
    let share = into_share(3, &PersistedRecord::default());
    assert_eq!(of_share("u", 4, Some(&share)), PersistedRecord::default());
    assert_eq!(of_agent("u", Some(&AgentTokens { top_ups: Some(1), ..AgentTokens::default() })), PersistedRecord::default());
}
