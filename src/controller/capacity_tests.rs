use super::*;
use serde_json::{Value, json};

const API: &str = "spillway.dev/v1alpha1";

fn pool(namespace: &str, name: &str, budget: Option<&str>) -> Value {
    let budget = budget.map_or(Value::Null, |name| json!({"name": name}));
    let mut spec = json!({"type": "free", "agent": {"image": "x", "command": ["y"]}, "budgetRef": budget});
    if spec["budgetRef"].is_null() {
        spec.as_object_mut().expect("an object").remove("budgetRef");
    }
    json!({"apiVersion": API, "kind": "AgentPool", "metadata": {"name": name, "namespace": namespace, "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": spec})
}
fn budget(name: &str, spec: Value) -> Value {
    json!({"apiVersion": API, "kind": "Budget", "metadata": {"name": name, "namespace": "n"}, "spec": spec})
}
fn at_most(agents: u32) -> Value {
    json!({"agents": {"maxConcurrent": agents}})
}
fn cluster(spec: Value) -> Value {
    let mut whole = json!({"namespaceSelector": {}});
    whole.as_object_mut().expect("an object").extend(spec.as_object().expect("an object").clone());
    json!({"apiVersion": API, "kind": "ClusterBudget", "metadata": {"name": "c"}, "spec": whole})
}
fn agent(namespace: &str, name: &str, pool: &str, status: Value) -> Value {
    json!({"apiVersion": API, "kind": "Agent", "metadata": {"name": name, "namespace": namespace}, "spec": {"poolRef": {"name": pool}}, "status": status})
}
fn running(name: &str, pool: &str) -> Value {
    agent("n", name, pool, json!({"phase": "Idle", "podRef": {"name": name, "uid": "u"}}))
}
fn waiting(name: &str, pool: &str) -> Value {
    agent("n", name, pool, json!({}))
}
fn pod(name: &str, phase: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "n"}, "status": {"phase": phase}})
}
fn key(name: &str) -> ObjectKey {
    ObjectKey { namespace: "n".into(), name: name.into() }
}
const ONE: Amounts = Amounts { agents: 1, memory: 1 << 30, storage: 0 };

/// Asks for a place for the agent `name` of pool p.
fn take(places: &PendingPlaces, name: &str, stores: &Stores) -> Result<(), (HindranceKind, String)> {
    let pool = stores.pool("n", "p").expect("the pool");
    let taken = places.reserve(&key(name), pool.0.as_ref().expect("it fits"), ONE, stores);
    taken.map_err(|hindrance| (hindrance.kind, hindrance.message))
}

#[test]
fn a_reserved_place_counts_before_the_caches_show_it() {
    let stores = Stores::of(&[pool("n", "p", Some("b")), budget("b", at_most(1)), waiting("one", "p"), waiting("two", "p")]);
    let places = PendingPlaces::default();
    assert_eq!(take(&places, "one", &stores), Ok(()));
    assert_eq!(take(&places, "one", &stores), Ok(()), "its own place is not in its way: its create may have been lost");
    let words =
        "Budget/b allows 1 agent at once (spec.agents.maxConcurrent), and 1 has a pod. Raise the limit, or delete an agent that it counts"
            .to_owned();
    assert_eq!(take(&places, "two", &stores), Err((HindranceKind::BudgetExhausted, words)));
    places.release(&key("one"));
    assert_eq!(take(&places, "two", &stores), Ok(()), "the pod was refused");
}

#[test]
fn caches_that_lag_count_too_much_and_not_too_little() {
    let base = || vec![pool("n", "p", Some("b")), budget("b", at_most(1)), waiting("me", "p")];
    let full = |more: Vec<Value>| take(&PendingPlaces::default(), "me", &Stores::of(&[base(), more].concat())).is_err();
    assert!(full(vec![running("other", "p")]), "its pod is not seen yet, or any more");
    assert!(full(vec![waiting("other", "p"), pod("other", "Pending")]), "its pod is not seen to be recorded");
    assert!(full(vec![pod("stray", "Running")]), "an agent that is not seen, of a pool that is not known");
    let ended = agent("n", "other", "p", json!({"phase": "Stopped", "podRef": {"name": "other", "uid": "u"}}));
    assert!(!full(vec![ended.clone(), pod("other", "Succeeded")]));
    assert!(full(vec![ended, pod("other", "Running")]), "it is still there");
    assert!(!full(vec![agent("n", "other", "p", json!({"phase": "Hibernated"}))]));
    assert!(!full(vec![waiting("other", "p")]), "who only waits holds nothing");
}

#[test]
fn a_place_is_kept_until_the_agent_itself_is_counted() {
    let places = PendingPlaces::default();
    let before = Stores::of(&[pool("n", "p", Some("b")), budget("b", at_most(1)), waiting("one", "p"), waiting("two", "p")]);
    assert_eq!(take(&places, "one", &before), Ok(()));
    let recorded = Stores::of(&[pool("n", "p", Some("b")), budget("b", at_most(1)), running("one", "p"), waiting("two", "p")]);
    assert!(take(&places, "two", &recorded).is_err());
    let gone = Stores::of(&[pool("n", "p", Some("b")), budget("b", at_most(1)), waiting("two", "p")]);
    assert_eq!(take(&places, "two", &gone), Ok(()));
}

#[test]
fn budgets_above_count_all_below_them() {
    let budgets =
        [budget("top", at_most(2)), budget("b", json!({"parentRef": {"name": "top"}})), budget("d", json!({"parentRef": {"name": "top"}}))];
    let pools = [pool("n", "p", Some("b")), pool("n", "q", Some("d"))];
    let both = [&budgets[..], &pools, &[waiting("me", "p"), running("x", "q"), running("y", "q")]].concat();
    assert!(take(&PendingPlaces::default(), "me", &Stores::of(&both)).is_err_and(|(_, words)| words.starts_with("Budget/top allows 2")));
    let circle = [budget("b", json!({"parentRef": {"name": "d"}})), budget("d", json!({"parentRef": {"name": "b"}}))];
    let stores = Stores::of(&[&circle[..], &pools, &[waiting("me", "p")]].concat());
    assert_eq!(take(&PendingPlaces::default(), "me", &stores), Ok(()), "a circle ends");
    let chain = |length: usize| -> Vec<Value> {
        let above = |at: usize| if at + 1 < length { json!({"parentRef": {"name": format!("b{}", at + 1)}}) } else { at_most(1) };
        let budgets = (0..length).map(|at| budget(&format!("b{at}"), above(at)));
        budgets.chain([pool("n", "p", Some("b0")), pool("n", "q", None), waiting("me", "p"), running("x", "p")]).collect()
    };
    let eighth = take(&PendingPlaces::default(), "me", &Stores::of(&chain(8)));
    assert!(eighth.is_err_and(|(_, words)| words.starts_with("Budget/b7 allows 1")), "the eighth is counted in");
    let ninth = take(&PendingPlaces::default(), "me", &Stores::of(&chain(9))).expect_err("too many");
    let words =
        "Budget/b0 allows no pods: its chain of parents (spec.parentRef) has more than 8 Budgets. Remove spec.parentRef from one of them";
    assert_eq!(ninth, (HindranceKind::BudgetExhausted, words.to_owned()), "and the ninth is never left out");
    let odd = json!({"apiVersion": API, "kind": "Budget", "metadata": {"name": "b", "namespace": "n"}, "spec": 7});
    let stores = Stores::of(&[odd, pools[0].clone(), waiting("me", "p")]);
    assert!(take(&PendingPlaces::default(), "me", &stores).is_err_and(|(kind, _)| kind == HindranceKind::Unsupported));
}

#[test]
fn a_mode_that_does_not_enforce_refuses_no_pod() {
    let observed = budget("b", json!({"mode": "Observe", "agents": {"maxConcurrent": 0}}));
    assert_eq!(take(&PendingPlaces::default(), "me", &Stores::of(&[observed, pool("n", "p", Some("b")), waiting("me", "p")])), Ok(()));
}

#[test]
fn a_cluster_budget_counts_namespaces_all_of_them_and_bytes() {
    let others = [
        agent("m", "x", "q", json!({"phase": "Idle", "podRef": {"name": "x", "uid": "u"}})),
        running("y", "p"),
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "y", "namespace": "n"}, "spec": {"containers": [], "resources": {"limits": {"memory": "3Gi"}}}}),
    ];
    let with = |spec: Value| {
        let stores = Stores::of(&[&others[..], &[cluster(spec), pool("n", "p", None), pool("m", "q", None), waiting("me", "p")]].concat());
        take(&PendingPlaces::default(), "me", &stores).err().map(|(_, words)| words)
    };
    assert_eq!(with(json!({"perNamespace": at_most(2), "agents": {"maxTotal": 3}, "compute": {"memory": "4Gi"}})), None);
    assert!(with(json!({"perNamespace": at_most(1)})).is_some_and(|words| words.contains("spec.perNamespace.agents.maxConcurrent")));
    assert!(with(json!({"agents": {"maxTotal": 2}})).is_some_and(|words| words.contains("spec.agents.maxTotal")));
    assert!(
        with(json!({"compute": {"memory": "3.5Gi"}})).is_some_and(|words| words.contains("3Gi are in use, and this agent requests 1Gi"))
    );
    let elsewhere = json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "m"}}, "agents": {"maxTotal": 0}});
    assert!(with(elsewhere.clone()).is_some(), "which labels the namespace has is not known yet");
    let known = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n", "labels": {"kubernetes.io/metadata.name": "n"}}});
    let stores = Stores::of(&[known, cluster(elsewhere), pool("n", "p", None), waiting("me", "p")]);
    assert_eq!(take(&PendingPlaces::default(), "me", &stores), Ok(()));
}

#[test]
fn defaults_apply_to_budgets_without_limits_of_their_own() {
    let defaults = || cluster(json!({"defaults": {"budget": {"agents": {"maxConcurrent": 1}}}}));
    let with = |budget: Value| {
        let stores = Stores::of(&[defaults(), budget, pool("n", "p", Some("b")), running("x", "p"), waiting("me", "p")]);
        take(&PendingPlaces::default(), "me", &stores).is_ok()
    };
    assert!(!with(budget("b", json!({}))) && with(budget("b", at_most(2))));
}

/// As the chart writes it (`clusterBudget.profile`), with fewer agents.
fn profile() -> Value {
    let kept = json!([{"name": "scheduler", "poolTypes": ["scheduler"], "percent": 20}]);
    cluster(json!({
        "perNamespace": {"agents": {"maxConcurrent": 5, "reservations": kept}},
        "defaults": {"budget": {"agents": {"reservations": kept}}},
    }))
}

#[test]
fn by_default_a_flood_of_workers_leaves_schedulers_a_fifth_of_the_agents() {
    let of_type = |name: &str, type_: &str, budget: Option<&str>| {
        let mut pool = pool("n", name, budget);
        pool["spec"]["type"] = json!(type_);
        pool
    };
    let workers = |count: usize| (0..count).map(|at| running(&format!("w{at}"), "w"));
    let asks = |pool: &str, all: Vec<Value>| {
        let stores = Stores::of(&[vec![profile(), waiting("me", pool)], all].concat());
        let pool = stores.pool("n", pool).expect("the pool");
        let taken = PendingPlaces::default().reserve(&key("me"), pool.0.as_ref().expect("it fits"), ONE, &stores);
        taken.err().map(|hindrance| hindrance.message)
    };
    let pools = [of_type("w", "worker", None), of_type("s", "scheduler", None)];
    let with = |count: usize| pools.iter().cloned().chain(workers(count)).collect::<Vec<_>>();
    assert_eq!(asks("w", with(3)), None);
    let words = "ClusterBudget/c allows 5 agents at once (spec.perNamespace.agents.maxConcurrent); 4 have a pod, and 1 more are reserved for \
                 pools of type scheduler (ClusterBudget/c, spec.perNamespace.agents.reservations[scheduler]). Raise the limit, or delete an \
                 agent that it counts";
    assert_eq!(asks("w", with(4)).as_deref(), Some(words));
    assert_eq!(asks("s", with(4)), None);
    let without = |count: usize| pools.iter().take(1).cloned().chain(workers(count)).collect::<Vec<_>>();
    assert_eq!(asks("w", without(4)), None, "nothing is kept where there is no such pool");

    // A fifth of a Budget's own limit is kept too, unless it has reservations of its own.
    let own = |reservations: Value| {
        let mut spec = json!({"agents": {"maxConcurrent": 2, "reservations": reservations}});
        if spec["agents"]["reservations"].is_null() {
            spec["agents"].as_object_mut().expect("an object").remove("reservations");
        }
        let pools = vec![budget("b", spec), of_type("w", "worker", Some("b")), of_type("s", "scheduler", Some("b"))];
        pools.into_iter().chain(workers(1)).collect::<Vec<_>>()
    };
    assert!(asks("w", own(Value::Null)).is_some_and(|words| words.contains("ClusterBudget/c, spec.defaults.budget.agents.reservations")));
    assert_eq!((asks("s", own(Value::Null)), asks("w", own(json!([])))), (None, None));
    let drones = json!([{"name": "drones", "poolTypes": ["drone"], "percent": 50, "cap": true}]);
    assert!(asks("w", own(drones)).is_some_and(|words| words.contains("Budget/b, spec.agents.reservations[drones]")), "it says it itself");
}

#[test]
fn volumes_are_held_for_as_long_as_their_agents_have_them() {
    let mut keeping = pool("n", "p", None);
    keeping["spec"]["workspace"] =
        json!({"volumeClaimTemplate": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "6Gi"}}}});
    let asleep = agent("n", "x", "p", json!({"phase": "Hibernated", "claimRef": {"name": "x-workspace", "uid": "v"}}));
    let stores = Stores::of(&[cluster(json!({"compute": {"storage": "10Gi"}})), keeping, asleep, waiting("me", "p")]);
    let pool = stores.pool("n", "p").expect("the pool");
    let asks = Amounts { storage: 6 << 30, ..ONE };
    let refused = PendingPlaces::default().reserve(&key("me"), pool.0.as_ref().expect("it fits"), asks, &stores).expect_err("refused");
    assert!(refused.message.contains("allows 10Gi of agents' volumes (spec.compute.storage); 6Gi are in use"), "{}", refused.message);
}

#[test]
fn namespaces_beyond_the_first_are_no_projects() {
    let mut young = pool("n", "p", None);
    young["metadata"]["creationTimestamp"] = json!("2026-06-01T00:00:00Z");
    let all = [cluster(json!({"projects": {"max": 1}})), young, pool("m", "q", None), waiting("me", "p")];
    let stores = Stores::of(&all);
    assert!(take(&PendingPlaces::default(), "me", &stores).is_err_and(|(kind, _)| kind == HindranceKind::ProjectLimit));
    assert!(project_refusal("n", &stores).is_some_and(|words| words.contains("allows 1 namespaces") && words.contains("there are 2")));
    assert_eq!(project_refusal("m", &stores), None);
}

#[test]
fn the_memory_of_a_pod_is_what_all_its_containers_may_use() {
    let pod: Pod = serde_json::from_value(json!({"spec": {
        "initContainers": [{"name": "link", "resources": {"limits": {"memory": "48Mi"}}}],
        "containers": [{"name": "agent", "resources": {"limits": {"memory": "1Gi"}}}, {"name": "none"}]}}))
    .expect("a pod");
    assert_eq!(total_memory_limit(&pod), (1 << 30) + (48 << 20));
    let kept = Pod {
        spec: Some(k8s_openapi::api::core::v1::PodSpec {
            resources: Some(pod_memory_resources(total_memory_limit(&pod))),
            ..Default::default()
        }),
        ..Pod::default()
    };
    assert_eq!(memory_of(&kept), total_memory_limit(&pod));
}

#[test]
fn the_lowest_limit_on_pending_items_applies() {
    let most = |more: &[Value]| {
        let stores = Stores::of(&[more, &[pool("n", "p", Some("b"))]].concat());
        let pool = stores.pool("n", "p").expect("the pool");
        pool_work_limit(pool.0.as_ref().expect("it fits"), &stores).map(|limit| (limit.most, limit.source))
    };
    let waits = |max: u32| json!({"work": {"maxPending": max}});
    assert_eq!(most(&[budget("b", json!({}))]), None);
    let below = json!({"parentRef": {"name": "top"}, "work": {"maxPending": 9}});
    let both = [budget("b", below), budget("top", waits(7)), cluster(json!({"perNamespace": waits(8)}))];
    assert_eq!(most(&both), Some((7, "Budget/top (spec.work.maxPending)".into())));
    let defaults = cluster(json!({"defaults": {"budget": waits(3)}}));
    assert_eq!(most(&[budget("b", json!({})), defaults.clone()]).map(|(max, _)| max), Some(3));
    assert_eq!(most(&[budget("b", json!({"mode": "Disabled", "work": {"maxPending": 1}})), defaults]), None);
}

#[test]
fn a_project_allows_what_its_topmost_budgets_and_the_cluster_allow_whoever_makes_items() {
    let project =
        |namespace: &str, objects: &[Value]| namespace_work_limit(namespace, &Stores::of(objects)).map(|limit| (limit.most, limit.source));
    let waits = |max: u32| json!({"work": {"maxPending": max}});
    let below = budget("below", json!({"parentRef": {"name": "top"}, "work": {"maxPending": 1}}));
    let all = [budget("top", waits(7)), below.clone(), budget("other", waits(9))];
    assert_eq!(project("n", &all), Some((7, "Budget/top (spec.work.maxPending)".into())), "a Budget below is for agents of its pools");
    assert_eq!(project("elsewhere", &all), None);
    assert_eq!(project("n", &[below, budget("top", json!({}))]), None);
    let each = cluster(json!({"perNamespace": waits(3)}));
    assert_eq!(
        project("n", &[budget("top", waits(7)), each.clone()]),
        Some((3, "ClusterBudget/c (spec.perNamespace.work.maxPending)".into()))
    );
    assert_eq!(project("n", &[each]).map(|(most, _)| most), Some(3), "without a Budget, too");
    let defaults = cluster(json!({"defaults": {"budget": waits(4)}}));
    let words = "ClusterBudget/c (spec.defaults.budget.work.maxPending)".to_owned();
    assert_eq!(project("n", &[budget("top", json!({})), defaults.clone()]), Some((4, words)));
    assert_eq!(project("n", std::slice::from_ref(&defaults)), None, "there is no Budget that it would be the default of");
    assert_eq!(project("n", &[budget("top", waits(9)), defaults]).map(|(most, _)| most), Some(9), "what a Budget says itself comes first");
    assert_eq!(project("n", &[budget("top", json!({"mode": "Observe", "work": {"maxPending": 1}}))]), None);
}

mod simulated {
    use super::*;
    use proptest::prelude::*;

    /// An agent and its pod, as they really are.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct Real {
        pod: bool,
        recorded: bool,
        ended: bool,
    }
    const AGENTS: usize = 6;
    const MOST: usize = 2;
    type Agents = [Real; AGENTS];

    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// An agent's reconciler tries to make its pod, which is made and recorded, made without an answer, or refused.
        Make(usize, Answer),
        /// A pod ends.
        Goes(usize),
        /// The end of the pod is stored in its Agent.
        Told(usize),
        /// The cache of Agents, or of pods, catches up to this share of what it lacks.
        Agents(usize),
        Pods(usize),
    }
    #[derive(Clone, Copy, Debug)]
    enum Answer {
        Made,
        Lost,
        Refused,
    }

    fn step() -> impl Strategy<Value = Step> {
        let answer = prop_oneof![4 => Just(Answer::Made), 1 => Just(Answer::Lost), 1 => Just(Answer::Refused)];
        prop_oneof![
            4 => (0..AGENTS, answer).prop_map(|(agent, answer)| Step::Make(agent, answer)),
            1 => (0..AGENTS).prop_map(Step::Goes),
            1 => (0..AGENTS).prop_map(Step::Told),
            2 => (1usize..3).prop_map(Step::Agents),
            2 => (1usize..3).prop_map(Step::Pods),
        ]
    }

    fn name(agent: usize) -> String {
        format!("a{agent}")
    }

    fn stores(agents: &Agents, pods: &Agents) -> Stores {
        let mut all = vec![pool("n", "p", Some("b")), budget("b", at_most(2))];
        all.extend(agents.iter().enumerate().map(|(at, real)| match real {
            Real { ended: true, .. } => agent("n", &name(at), "p", json!({"phase": "Stopped", "podRef": {"name": name(at), "uid": "u"}})),
            Real { recorded: true, .. } => running(&name(at), "p"),
            Real { .. } => waiting(&name(at), "p"),
        }));
        all.extend(pods.iter().enumerate().filter(|(_, real)| real.pod).map(|(at, _)| pod(&name(at), "Running")));
        Stores::of(&all)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        /// Whatever the caches show, and whichever answers are lost, no more pods live than the Budget allows.
        #[test]
        fn never_more_pods_than_allowed(steps in proptest::collection::vec(step(), 1..60)) {
            let places = PendingPlaces::default();
            let mut history: Vec<Agents> = vec![Agents::default()];
            let (mut agents_at, mut pods_at) = (0, 0);
            for step in steps {
                let mut now = history[history.len() - 1];
                match step {
                    Step::Make(at, answer) => {
                        let (cached, real) = (history[agents_at][at], now[at]);
                        // The gate: nothing is done before the cache shows our own last write of the Agent.
                        let waits = cached.recorded == real.recorded && cached.ended == real.ended && !real.recorded && !real.ended;
                        if waits && take(&places, &name(at), &stores(&history[agents_at], &history[pods_at])).is_ok() {
                            match answer {
                                // A pod that no Agent records is deleted first.
                                _ if real.pod => now[at].pod = false,
                                Answer::Made => {
                                    now[at].pod = true;
                                    history.push(now);
                                    now[at].recorded = true;
                                }
                                Answer::Lost => now[at].pod = true,
                                Answer::Refused => places.release(&key(&name(at))),
                            }
                        }
                    }
                    Step::Goes(at) => now[at].pod &= !now[at].recorded,
                    Step::Told(at) => now[at].ended |= now[at].recorded && !now[at].pod,
                    Step::Agents(share) => agents_at += (history.len() - 1 - agents_at).div_ceil(share),
                    Step::Pods(share) => pods_at += (history.len() - 1 - pods_at).div_ceil(share),
                }
                let alive = now.iter().filter(|real| real.pod).count();
                prop_assert!(alive <= MOST, "{alive} pods after {step:?}: {now:?}");
                history.push(now);
            }
        }
    }
}

#[test]
fn each_budget_counts_the_agents_below_it_and_so_do_clusters_and_their_namespaces() {
    let elsewhere = agent("m", "x", "q", json!({"phase": "Idle", "podRef": {"name": "x", "uid": "u"}}));
    let budgets = [budget("top", json!({})), budget("b", json!({"parentRef": {"name": "top"}})), budget("other", json!({}))];
    let pools = [pool("n", "p", Some("b")), pool("n", "r", Some("top")), pool("m", "q", None), cluster(json!({}))];
    let agents = [elsewhere, running("one", "p"), running("two", "r"), waiting("me", "p"), waiting("later", "p")];
    let stores = Stores::of(&[&budgets[..], &pools, &agents].concat());
    let places = PendingPlaces::default();
    let of = |places: &PendingPlaces, stores: &Stores| {
        let counted = places.counted(stores);
        let of = |place: &Place| counted.get(place).copied().unwrap_or(0);
        let namespace = |name: &str| of(&Place::Namespace { cluster: "c".into(), namespace: name.into() });
        let budgets = ["b", "top", "other"].map(|name| of(&Place::budget("n", name)));
        (budgets, of(&Place::Cluster("c".into())), namespace("n"), namespace("m"))
    };
    assert_eq!(of(&places, &stores), ([1, 2, 0], 3, 2, 1));
    assert_eq!(take(&places, "me", &stores), Ok(()));
    assert_eq!(of(&places, &stores), ([2, 3, 0], 4, 3, 1), "its pod is being made");
    let strays = [&budgets[..], &pools, &[pod("stray", "Running")]].concat();
    assert_eq!(of(&PendingPlaces::default(), &Stores::of(&strays)).0, [1, 1, 1], "whose it is is not known: it is counted by all");
}
