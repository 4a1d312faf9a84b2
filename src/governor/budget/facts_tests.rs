//! Defaults of unset fields, and selectors.

use serde_json::{Value, json};

use super::*;
use crate::policy::budget::tree::build;
use crate::policy::budget::{HoldAnswer, HoldRequest, Key, Ledger, Quality, Route, SessionLog, Settle, SettleOutcome, Usage};

fn cluster(name: &str, created: i64, spec: Value) -> ClusterBudget {
    let created = jiff::Timestamp::from_second(created).expect("a time").to_string();
    serde_json::from_value(json!({
        "apiVersion": "spillway.dev/v1alpha1", "kind": "ClusterBudget", "metadata": {"name": name, "creationTimestamp": created}, "spec": spec
    }))
    .expect("a ClusterBudget")
}

fn budget(spec: Value) -> Budget {
    serde_json::from_value(json!({
        "apiVersion": "spillway.dev/v1alpha1", "kind": "Budget", "metadata": {"name": "default", "namespace": "team"}, "spec": spec
    }))
    .expect("a Budget")
}

fn team(labels: &[(&str, &str)]) -> BTreeMap<String, Project> {
    let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    BTreeMap::from([("team".to_owned(), Project { labels, created: 1, pool_types: BTreeSet::new() })])
}

/// The same, with pools of these types.
fn with_pools(types: &[&str]) -> BTreeMap<String, Project> {
    let mut projects = team(&[]);
    projects.values_mut().for_each(|project| project.pool_types = types.iter().map(|one| (*one).to_owned()).collect());
    projects
}

#[test]
fn an_empty_budget_has_what_is_built_in() {
    let empty = budget(json!({}));
    let facts = facts(&[], &[&empty], &team(&[]));
    let found = &facts.budgets[0];
    let limits: Vec<_> = found.tokens.limits.iter().map(|limit| (limit.name.as_str(), limit.window, limit.tokens)).collect();
    assert_eq!(limits, [("hourly", Window::Hour, 100_000)]);
    assert_eq!((found.tokens.terms, found.max_in_flight), (Some(CallTerms::default()), Some(64)));
    assert_eq!(found.thresholds.iter().map(|one| one.percent).collect::<Vec<_>>(), [80, 90, 100]);
    assert_eq!((per_second(Some(&empty), None), lifetime(None, None, 0).limit()), (20, 10_000));
    assert_eq!(tokens(Some(&serde_json::from_value(json!({"limits": []})).expect("a policy")), None).limits, [], "none is said");
}

#[test]
fn a_limit_keeps_nothing_for_its_budget_unless_it_says_so() {
    let policy = |limit: Value| serde_json::from_value::<TokenPolicy>(json!({"limits": [limit]})).expect("a policy");
    let silent = policy(json!({"name": "daily", "tokens": 7, "window": "Day"}));
    let keeps = policy(json!({"name": "daily", "tokens": 7, "window": "Day", "guaranteed": 3}));
    for (own, default, kept) in [
        (None, None, 0),
        (None, Some(&silent), 0),
        (None, Some(&keeps), 3),
        (Some(&silent), None, 0),
        (Some(&silent), Some(&keeps), 0),
        (Some(&keeps), Some(&silent), 3),
    ] {
        assert_eq!(tokens(own, default).limits[0].guaranteed, kept, "{own:?} {default:?}");
    }
}

#[test]
fn a_budgets_word_is_before_the_clusters_and_field_by_field() {
    let defaults = json!({"namespaceSelector": {}, "defaults": {
        "bulkhead": {"lifetimeTokens": 500_000, "topUp": {"tokens": 5, "max": 2}},
        "budget": {
            "tokens": {"limits": [{"name": "daily", "tokens": 7, "window": "Day"}], "estimate": "Bytes", "maxOutputTokensPerRequest": 99},
            "requests": {"maxInFlight": 3, "perAgentPerSecond": 4}, "thresholds": []
        }
    }});
    let above = cluster("all", 5, defaults);
    let own = budget(json!({"tokens": {"maxOutputTokensPerRequest": 50}, "requests": {"maxInFlight": 9}}));
    let facts = facts(&[&above], &[&own], &team(&[]));
    let BudgetFacts { tokens, thresholds, max_in_flight, .. } = &facts.budgets[0];
    assert_eq!((tokens.limits[0].name.as_str(), tokens.limits[0].tokens), ("daily", 7));
    let terms = tokens.terms.expect("a Budget says them");
    assert_eq!((terms.estimate, terms.max_output, terms.min_output), (Estimate::Bytes, 50, 1024));
    assert_eq!((thresholds.len(), *max_in_flight), (0, Some(9)));
    let defaults = defaults_of(&[&above], team(&[]).get("team")).cloned();
    assert_eq!(per_second(Some(&own), defaults.as_ref()), 4);
    let life = lifetime(None, defaults.as_ref(), 1);
    assert_eq!((life.limit(), life.max), (500_005, 2));
    let own = Bulkhead { lifetime_tokens: Some(70), ..Bulkhead::default() };
    assert_eq!(lifetime(Some(&own), defaults.as_ref(), 0).limit(), 70);
    let children = |most| Bulkhead { max_child_agents: Some(most), ..Bulkhead::default() };
    let above = Defaults { bulkhead: Some(children(4)), ..Defaults::default() };
    let most = |own| bulkhead(own, Some(&above), |bulkhead| bulkhead.max_child_agents);
    assert_eq!([most(None), most(Some(&own)), most(Some(&children(0)))], [Some(4), Some(4), Some(0)]);
    let turn = |seconds| Bulkhead { model_turn_timeout_seconds: Some(seconds), ..Bulkhead::default() };
    let above = Defaults { bulkhead: Some(turn(40)), ..Defaults::default() };
    assert_eq!(
        [(None, None), (None, Some(&above)), (Some(&turn(5)), Some(&above))].map(|(own, above)| turn_seconds(own, above)),
        [600, 40, 5]
    );
}

#[test]
fn what_is_above_says_nothing_of_single_calls_unless_it_does() {
    let silent = cluster("a", 1, json!({"namespaceSelector": {}, "tokens": {"limits": [{"name": "m", "tokens": 9, "window": "Minute"}]}}));
    let says = cluster("b", 2, json!({"namespaceSelector": {}, "perNamespace": {"tokens": {"estimate": "Bytes"}}}));
    let facts = facts(&[&silent, &says], &[], &team(&[]));
    assert_eq!((facts.clusters[0].tokens.terms, facts.clusters[0].tokens.limits.len()), (None, 1));
    let terms = facts.clusters[1].per_namespace.terms.expect("it says one thing");
    assert_eq!((terms.estimate, terms.max_output), (Estimate::Bytes, MAX_CALL_TOKENS), "and no other");
}

/// The ClusterBudget of the chart (`clusterBudget.profile`).
fn profile() -> ClusterBudget {
    let hourly = json!({"name": "hourly", "tokens": 100_000, "window": "Hour"});
    let kept = json!([{"name": "scheduler", "poolTypes": ["scheduler"], "percent": 20}]);
    let tokens = json!({"limits": [hourly], "reservations": kept});
    cluster("default", 1, json!({"namespaceSelector": {}, "perNamespace": {"tokens": tokens}, "defaults": {"budget": {"tokens": tokens}}}))
}

#[test]
fn what_is_reserved_by_default_is_kept_where_there_is_such_a_pool_and_what_a_budget_says_always() {
    let reserved = |budget: &Budget, types: &[&str]| {
        let facts = facts(&[&profile()], &[budget], &with_pools(types));
        facts.budgets[0].tokens.reservations.iter().map(|share| share.percent).collect::<Vec<_>>()
    };
    let silent = budget(json!({"tokens": {"limits": [{"name": "daily", "tokens": 7, "window": "Day"}]}}));
    assert_eq!((reserved(&silent, &["worker", "scheduler"]), reserved(&silent, &["worker"])), (vec![20], vec![]));
    let says = budget(json!({"tokens": {"reservations": [{"name": "s", "poolTypes": ["scheduler"], "percent": 30}]}}));
    assert_eq!((reserved(&says, &["worker", "scheduler"]), reserved(&says, &["worker"])), (vec![30], vec![30]));
    let none = budget(json!({"tokens": {"reservations": []}}));
    assert_eq!(reserved(&none, &["scheduler"]), Vec::<i64>::new(), "a Budget may say that nothing is");
}

#[test]
fn by_default_a_flood_of_workers_leaves_schedulers_their_fifth() {
    let empty = budget(json!({}));
    let facts = facts(&[&profile()], &[&empty], &with_pools(&["worker", "scheduler"]));
    let mut ledger = Ledger::new(0);
    ledger.set_tree(&build(&facts.clusters, &facts.budgets).nodes);
    let (session, _) = ledger.begin(0, "gateway", &SessionLog { next_hold: 1, ..SessionLog::default() });
    let mut calls = 0;
    let mut passes = |pool_type: &str| {
        let mut route = Route::new(Vec::new(), Some(Key::budget("team", "default")), pool_type);
        let ask = HoldRequest { input: 0, output: 1000, min_output: 1000, choices: 1 };
        calls += 1;
        for _ in 0..3 {
            match ledger.hold(0, session, calls, &mut route, &ask) {
                HoldAnswer::Given(_) => {
                    let usage = Usage { output: 1000, ..Usage::default() };
                    let settle = Settle { seq: calls, hold: calls, usage, quality: Quality::Exact, input: 0, output: 1000 };
                    assert_eq!(ledger.settle(0, session, &settle), SettleOutcome::Counted);
                    return true;
                }
                HoldAnswer::Refused(_) => {
                    calls -= 1;
                    return false;
                }
                HoldAnswer::Write(keys) => keys.iter().for_each(|key| {
                    let draft = ledger.draft(0, key).expect("there is something to write");
                    ledger.written(&draft);
                }),
                other @ (HoldAnswer::Closed | HoldAnswer::Unattached) => panic!("{other:?}"),
            }
        }
        panic!("what was asked to be written is written")
    };
    assert_eq!((0..1000).take_while(|_| passes("worker")).count(), 80);
    assert_eq!((0..1000).take_while(|_| passes("scheduler")).count(), 20);
}

#[test]
fn the_oldest_that_selects_a_namespace_says_its_defaults() {
    let of = |tokens: i64| json!({"namespaceSelector": {}, "defaults": {"bulkhead": {"lifetimeTokens": tokens}}});
    let (young, old) = (cluster("a", 9, of(1)), cluster("b", 3, of(2)));
    let found = defaults_of(&[&young, &old], team(&[]).get("team"));
    assert_eq!(lifetime(None, found, 0).limit(), 2);
    assert!(defaults_of(&[&young], None).is_none());
}

#[test]
fn selectors_select_as_kubernetes_does() {
    let cases = [
        (json!({}), true),
        (json!({"matchLabels": {"tier": "a"}}), true),
        (json!({"matchLabels": {"tier": "a", "x": "y"}}), false),
        (json!({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["b", "a"]}]}), true),
        (json!({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["a"]}]}), false),
        (json!({"matchExpressions": [{"key": "other", "operator": "NotIn", "values": ["a"]}]}), true),
        (json!({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}), true),
        (json!({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}), false),
        (json!({"matchExpressions": [{"key": "tier", "operator": "Resembles", "values": ["a"]}]}), false),
    ];
    let labels = BTreeMap::from([("tier".to_owned(), "a".to_owned())]);
    for (selector, wanted) in cases {
        let parsed: LabelSelector = serde_json::from_value(selector.clone()).expect("a selector");
        assert_eq!(selects(&parsed, &labels), wanted, "{selector}");
    }
}

#[test]
fn the_namespaces_that_are_too_many_are_named() {
    let all = cluster("all", 1, json!({"namespaceSelector": {}}));
    let many: BTreeMap<String, Project> =
        (0..205_i64).map(|at| (format!("n{at}"), Project { created: 1000 - at, ..Project::default() })).collect();
    let facts = facts(&[&all], &[], &many);
    assert_eq!((facts.clusters[0].namespaces.len(), facts.beyond.len()), (MAX_COUNTED_NAMESPACES, 5));
    assert!(facts.beyond.contains(&("all".to_owned(), "n0".to_owned())), "the newest are");
    let known = team(&[]);
    assert_eq!(projects(&known, ["team".to_owned(), "unseen".to_owned()]).len(), 1, "what is not known yet is waited for");
}
