//! Tests of the conversion of items and queues in both directions.

use kube::core::SelectorExt as _;
use proptest::prelude::*;

use super::status::conditions;
use super::*;

fn item(spec: Value, status: Value) -> WorkItem {
    let meta = json!({"name": "i", "namespace": "n", "uid": "u", "resourceVersion": "7", "creationTimestamp": "2026-01-01T00:02:00Z"});
    let mut object = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkItem", "metadata": meta, "spec": {"queueRef": {"name": "q"}}, "status": status});
    object["spec"].as_object_mut().expect("an object").extend(spec.as_object().expect("an object").clone());
    serde_json::from_value(object).expect("a WorkItem")
}

#[test]
fn a_record_survives_its_way_through_a_status() {
    let entry = entry(&item(json!({}), json!({})));
    let millis = |at: i64| UnixMillis(1_767_225_600_000 + at);
    let attempt = |epoch, verb, reason: Option<&str>| Attempt {
        epoch,
        agent: "a-1".into(),
        start: millis(0),
        end: millis(2000),
        verb,
        reason: reason.map(str::to_owned),
        message: reason.map(|_| "in words".to_owned()),
    };
    let mut records: Vec<Record> =
        Phase::ALL.into_iter().filter(|phase| !phase.held()).map(|phase| Record { phase, ..Record::default() }).collect();
    records.push(Record {
        phase: Phase::Leased,
        epoch: 3,
        holder: Some(Holder { pod: "p".into(), agent: "a-2".into(), since: millis(7) }),
        attempts: 2,
        failures: 1,
        stalls: 1,
        redrives: 4,
        pauses: 5,
        queue: Some("q".into()),
        started: Some(millis(0)),
        history: Verb::ALL.into_iter().take(5).map(|verb| attempt(2, verb, Some("Why"))).collect(),
        ..Record::default()
    });
    records.push(Record { phase: Phase::Scheduled, reason: Some("Backoff".into()), next_attempt: Some(millis(9000)), ..Record::default() });
    for record in records {
        let body = patch(&entry, &record, &Policy::default(), &StatusExtras::default(), 9, millis(0));
        let mut status = body["status"].clone();
        // A merge patch removes what is null.
        status.as_object_mut().expect("an object").retain(|_, value| !value.is_null());
        if let Some(lease) = status.get_mut("lease").and_then(Value::as_object_mut) {
            lease.retain(|_, value| !value.is_null());
        }
        let stored = item(json!({}), status);
        assert_eq!(super::record(&stored), record, "{body}");
        assert_eq!(stored.status.expect("a status").governor_epoch, Some(9));
    }
}

#[test]
fn when_it_was_ready_first_is_stored_with_whatever_is_written_and_forgotten_by_a_redrive() {
    let mut entry = entry(&item(json!({}), json!({"phase": "Ready", "readyTime": "2026-01-01T00:02:05Z"})));
    let first = entry.first_ready;
    assert_eq!(first, Some(UnixMillis(1_767_225_725_000)));
    let now = UnixMillis(1_767_225_800_000);
    let stored = |entry: &Entry, record: Record| {
        let body = patch(entry, &record, &Policy::default(), &StatusExtras::default(), 9, now);
        super::entry(&item(json!({}), body["status"].clone())).first_ready
    };
    let in_phase = |phase, redrives| Record { phase, redrives, ..Record::default() };
    assert_eq!(stored(&entry, in_phase(Phase::Scheduled, 0)), first);
    assert_eq!(stored(&entry, in_phase(Phase::Ready, 1)), Some(now), "started again, it is measured anew");
    assert_eq!(stored(&entry, in_phase(Phase::Pending, 1)), None);
    entry.first_ready = None;
    assert_eq!(stored(&entry, in_phase(Phase::Ready, 0)), Some(now));
    assert_eq!(stored(&entry, in_phase(Phase::Blocked, 0)), None);
}

#[test]
fn what_comes_back_from_a_backup_is_known_by_its_age_or_its_label() {
    let restored = |spec: Value, status: Value| super::spec(&item(spec, status)).restored;
    assert!(!restored(json!({}), json!({})));
    assert!(!restored(json!({"submitTime": "2026-01-01T00:01:30.000000Z"}), json!({})));
    assert!(restored(json!({"submitTime": "2026-01-01T00:00:30.000000Z"}), json!({})));
    assert!(!restored(json!({"submitTime": "2026-01-01T00:00:30.000000Z"}), json!({"phase": "Ready"})), "its status came back with it");
    let mut labelled = item(json!({}), json!({}));
    labelled.metadata.labels = Some([("velero.io/restore-name".to_owned(), "r".to_owned())].into());
    assert!(super::spec(&labelled).restored);
}

#[test]
fn the_place_in_the_order_cannot_be_bought_with_an_old_time() {
    let submitted = |time: &str| super::spec(&item(json!({"submitTime": time}), json!({"phase": "Ready"}))).submitted;
    let created = super::spec(&item(json!({}), json!({}))).created;
    assert_eq!(submitted("2020-01-01T00:00:00.000000Z"), UnixMillis(created.0 - 60_000));
    assert_eq!(submitted("2030-01-01T00:00:00.000000Z"), UnixMillis(created.0 + 999), "within the second of its creation");
    assert_eq!(submitted("2026-01-01T00:01:59.500000Z"), UnixMillis(created.0 - 500));
}

#[test]
fn what_argo_or_flux_keeps_is_known() {
    let mut meta = ObjectMeta::default();
    assert!(!is_gitops_managed(&meta));
    meta.annotations = Some([("argocd.argoproj.io/tracking-id".to_owned(), "app:x".to_owned())].into());
    assert!(is_gitops_managed(&meta));
    meta.annotations = None;
    meta.labels = Some([("kustomize.toolkit.fluxcd.io/name".to_owned(), "x".to_owned())].into());
    assert!(is_gitops_managed(&meta));
}

#[test]
fn dead_letters_are_kept_as_their_queue_says_and_else_for_thirty_days() {
    let queue = |spec: Value| {
        let object = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkQueue", "metadata": {"name": "q"}, "spec": spec});
        let queue = super::queue(&serde_json::from_value(object).expect("a WorkQueue"));
        (queue.policy.ttl.as_secs(), queue.policy.dead_letter_ttl.as_secs(), queue.max_dead_letters)
    };
    assert_eq!(queue(json!({})), (3600, 2_592_000, 1000));
    let own = json!({"itemDefaults": {"ttlSecondsAfterFinished": 7}, "deadLetters": {"ttlSeconds": 60, "max": 5}});
    assert_eq!(queue(own), (7, 60, 5));
    assert_eq!(queue(json!({"itemDefaults": {"ttlSecondsAfterFinished": 7}, "deadLetters": {}})), (7, 2_592_000, 1000));
}

#[test]
fn an_operator_that_kubernetes_does_not_have_is_refused_rather_than_left_out() {
    let asks = |operator: &str| {
        let selector = json!({"matchExpressions": [{"key": "k", "operator": operator, "values": ["v"]}]});
        super::spec(&item(json!({"agentSelector": selector}), json!({}))).unsupported
    };
    assert_eq!(asks("In"), None);
    assert_eq!(asks("Gt").as_deref(), Some("an unknown operator in agentSelector.matchExpressions"));
}

proptest! {
    /// The selection is the same as that of the selector of Kubernetes' own client.
    #[test]
    fn an_agent_selector_selects_as_kubernetes_does(
        match_labels in proptest::option::of(proptest::collection::btree_map("[xyz]", "[ab]?", 0..2)),
        expressions in proptest::collection::vec(("[xyz]", 0usize..4, proptest::collection::vec("[ab]?", 1..3)), 0..4),
        labels in proptest::collection::btree_map("[xyz]", "[ab]?", 0..4),
    ) {
        let requirement = |(key, operator, values): (String, usize, Vec<String>)| LabelSelectorRequirement {
            key,
            operator: ["In", "NotIn", "Exists", "DoesNotExist"][operator].to_owned(),
            values: (operator < 2).then_some(values),
        };
        let selector = LabelSelector { match_labels, match_expressions: Some(expressions.into_iter().map(requirement).collect()) };
        let kubernetes = kube::core::Selector::try_from(selector.clone()).expect("it is valid");
        let ours = super::selector(Some(&selector)).expect("it is known");
        prop_assert_eq!(ours.matches(&labels), kubernetes.matches(&labels), "{:?} on {:?}", selector, labels);
    }
}

#[test]
fn an_attempt_may_take_the_lesser_of_what_its_item_and_its_queue_say() {
    let within = |spec: Value, defaults: Value| {
        let queue = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkQueue", "metadata": {"name": "q"}, "spec": {"itemDefaults": defaults}});
        let queue = super::queue(&serde_json::from_value(queue).expect("a WorkQueue"));
        super::spec(&item(spec, json!({}))).overrides.apply_to(&queue.policy).attempt_timeout.as_secs()
    };
    let task = |seconds: u32| json!({"bulkhead": {"timeoutSeconds": seconds}});
    let own = |seconds: u32| json!({"bulkhead": {"timeoutSeconds": 30}, "overrides": {"attemptTimeoutSeconds": seconds}});
    assert_eq!((within(json!({}), json!({})), within(task(30), json!({}))), (7200, 30));
    assert_eq!(within(task(30), json!({"attemptTimeoutSeconds": 60})), 30);
    assert_eq!(within(task(90), json!({"attemptTimeoutSeconds": 60})), 60, "an item only narrows");
    assert_eq!((within(own(10), json!({})), within(own(90), json!({}))), (10, 30));
}

#[test]
fn what_is_not_done_of_an_item_is_named() {
    let asks = |spec: Value| super::spec(&item(spec, json!({}))).unsupported;
    assert_eq!(asks(json!({})), None);
    assert_eq!(asks(json!({"agentSelector": {"matchLabels": {"a": "b"}}, "bulkhead": {"tokens": 5, "timeoutSeconds": 60}})), None);
    assert_eq!(asks(json!({"requires": {"tools": ["make"], "models": ["m"], "repositories": ["https://r"]}})), None);
    let two = json!({"bulkhead": {"changeset": {}, "sandbox": {"changeset": {}}}});
    assert_eq!(asks(two).as_deref(), Some("bulkhead.changeset and bulkhead.sandbox.changeset"));
}

#[test]
fn what_no_pool_has_is_a_condition_while_the_item_is_ready_and_what_it_needs_is_read() {
    let asked = json!({"requires": {"tools": ["make"], "models": ["m", "m"], "urls": ["https://u"], "accounts": ["a"], "volumes": ["v"], "repositories": ["https://r"]}});
    let needs = super::spec(&item(asked, json!({}))).requires;
    assert_eq!((needs.tools.len(), needs.models.len(), needs.urls.len(), needs.accounts.len(), needs.volumes.len()), (1, 1, 1, 1, 1));
    assert_eq!(needs.repositories.len(), 1);
    let record = |phase: Phase| Record { phase, reason: Some("RequirementsUnmet".into()), ..Record::default() };
    let beside = StatusExtras { unmet_requirements: Some("no pool has m".into()), ..StatusExtras::default() };
    let told = conditions(&record(Phase::Ready), &Policy::default(), &beside, 1, UnixMillis(0));
    let shown = (&told[0]["type"], &told[0]["status"], &told[0]["reason"], &told[0]["message"]);
    assert_eq!(shown, (&json!("PreflightPassed"), &json!("False"), &json!("RequirementsUnmet"), &json!("no pool has m")));
    let ready = Record { phase: Phase::Ready, ..Record::default() };
    assert_eq!(conditions(&ready, &Policy::default(), &beside, 1, UnixMillis(0)), json!([]));
}

#[test]
fn an_end_without_success_has_a_message_in_its_own_words() {
    let message = |phase: Phase, reason: &str, last: Option<&str>, beside: Option<&str>| {
        let attempt = |message: &str| Attempt {
            epoch: 1,
            agent: "a".into(),
            start: UnixMillis(0),
            end: UnixMillis(1),
            verb: Verb::Fail,
            reason: Some("Exited".into()),
            message: Some(message.to_owned()),
        };
        let history = last.map(attempt).into_iter().collect();
        let record = Record { phase, reason: Some(reason.into()), failures: 2, history, ..Record::default() };
        let beside = StatusExtras { message: beside.map(str::to_owned), ..StatusExtras::default() };
        let told = conditions(&record, &Policy { max_attempts: 2, ..Policy::default() }, &beside, 1, UnixMillis(2));
        let failed = told.as_array().and_then(|all| all.iter().find(|one| one["type"] == "Failed").cloned());
        failed.map(|failed| failed["message"].as_str().unwrap_or_default().to_owned())
    };
    let dead = message(Phase::DeadLettered, "TooManyFailures", Some("no login.\nGiving up."), None);
    let words = "the item failed 2 times (maxAttempts: 2). The last attempt: no login. Giving up. Correct the cause, then start the item \
                 again (kubectl spillway redrive)";
    assert_eq!(dead.as_deref(), Some(words));
    let silent = message(Phase::Failed, "DroneFailed", Some(" "), None).expect("it failed");
    assert!(silent.contains("type drone") && !silent.contains("last attempt"), "{silent}");
    let long = message(Phase::Failed, "FailureRule", Some(&"x".repeat(1024)), None).expect("it failed");
    assert!(long.len() < 800, "{long}");
    let refused = message(Phase::DeadLettered, "QueueFull", None, Some("WorkQueue/q is full"));
    assert_eq!(refused.as_deref(), Some("WorkQueue/q is full"), "the refusal says it");
    let with = message(Phase::Cancelled, "DependencyFailed", None, None);
    assert_eq!(with.as_deref(), Some("an item in spec.dependsOn ended without the required success"));
    assert_eq!(message(Phase::Succeeded, "Completed", None, None), None);
}
