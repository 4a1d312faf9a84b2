//! Each reason of the conditions of a Toolset, and the events about their changes.

use super::*;

fn at(second: i64) -> jiff::Timestamp {
    jiff::Timestamp::from_second(second).expect("a time")
}

fn bridge(programs: &[&str], problem: Option<&str>) -> BridgeStatus {
    let programs = programs.iter().map(|name| (*name).to_owned()).collect();
    BridgeStatus { revision: "0123456789abcdef".into(), programs, problem: problem.map(str::to_owned), upstream: None }
}

fn serving() -> ToolsetFacts {
    ToolsetFacts {
        invalid_spec: None,
        definitions: Ok(()),
        objects: ObjectsState::InForce,
        address: Some(([10, 1, 2, 3], 443).into()),
        unknown_names: Vec::new(),
        pod: PodState::Ready,
        answer: BridgeAnswer::Serves(bridge(&["disk", "deploy"], None)),
    }
}

fn missing() -> Result<(), DefinitionsProblem> {
    Err(DefinitionsProblem { reason: reasons::CONFIG_MAP_NOT_FOUND, message: "ConfigMap/c does not exist".into() })
}

fn status(facts: &ToolsetFacts, stored: Option<&ToolsetStatus>) -> ToolsetStatus {
    next_status(facts, stored, 4, at(10))
}

/// Status and reason of a condition.
fn words(status: &ToolsetStatus, type_: &str) -> (String, String) {
    let condition = find(&status.conditions, type_).expect("the condition");
    assert_eq!(condition.observed_generation, Some(4));
    (condition.status.clone(), condition.reason.clone())
}

fn message(status: &ToolsetStatus, type_: &str) -> String {
    find(&status.conditions, type_).expect("the condition").message.clone()
}

fn is(status: &str, reason: &str) -> (String, String) {
    (status.to_owned(), reason.to_owned())
}

#[test]
fn a_bridge_that_answers_serves() {
    let next = status(&serving(), None);
    assert_eq!(words(&next, "Ready"), is("True", "Serving"));
    assert_eq!(words(&next, "DefinitionsValid"), is("True", "DefinitionsLoaded"));
    assert_eq!(message(&next, "Ready"), "the bridge serves 2 programs");
    assert_eq!((next.address.as_deref(), next.program_count, next.observed_generation), (Some("10.1.2.3:443"), Some(2), Some(4)));
    assert_eq!(next.revision.as_deref(), Some("0123456789abcdef"));
    let names: Vec<_> = next.programs.iter().flatten().map(|program| (program.name.as_str(), program.valid)).collect();
    assert_eq!(names, [("deploy", true), ("disk", true)]);
    assert_eq!(next_status(&serving(), Some(&next), 4, at(99)), next, "nothing changes with the time");
}

#[test]
fn each_obstacle_has_its_reason() {
    type Change = fn(&mut ToolsetFacts);
    let with = |change: Change| {
        let mut facts = serving();
        change(&mut facts);
        let next = status(&facts, None);
        (words(&next, "Ready"), message(&next, "Ready"))
    };
    let cases: [(Change, &str, &str); 9] = [
        (|facts| facts.invalid_spec = Some("no wildcard".into()), "InvalidSpec", "no wildcard"),
        (
            |facts| (facts.invalid_spec, facts.objects) = (Some("no wildcard".into()), ObjectsState::Earlier),
            "InvalidSpec",
            "no wildcard. The earlier spec is served on",
        ),
        (|facts| (facts.objects, facts.definitions) = (ObjectsState::NotMade, missing()), "DefinitionsInvalid", "DefinitionsValid says"),
        (|facts| facts.objects = ObjectsState::Waiting("Service/x".into()), "Starting", "Service/x"),
        (|facts| facts.objects = ObjectsState::Failed(reasons::NAME_TAKEN, "Service/x".into()), "NameTaken", "Service/x"),
        (|facts| facts.objects = ObjectsState::Failed(reasons::OBJECT_REFUSED, "no".into()), "ObjectRefused", "no"),
        (|facts| facts.pod = PodState::Starting("ImagePullBackOff".into()), "Starting", "ImagePullBackOff"),
        (|facts| facts.pod = PodState::Failing("error: x".into()), "BridgeFailing", "error: x"),
        (|facts| facts.answer = BridgeAnswer::NotAsked, "Starting", "no address"),
    ];
    for (change, reason, part) in cases {
        let (ready, message) = with(change);
        assert_eq!(ready, is("False", reason), "{message}");
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn wrong_definitions_leave_the_last_good_ones_in_service() {
    let mut facts = serving();
    (facts.objects, facts.definitions) = (ObjectsState::Earlier, missing());
    let next = status(&facts, None);
    assert_eq!((words(&next, "Ready"), words(&next, "DefinitionsValid")), (is("True", "Serving"), is("False", "ConfigMapNotFound")));
    let mut facts = serving();
    facts.answer = BridgeAnswer::Serves(bridge(&["disk"], Some("disk.md line 3: command")));
    let next = status(&facts, None);
    assert_eq!((words(&next, "Ready"), words(&next, "DefinitionsValid")), (is("True", "Serving"), is("False", "InvalidDefinition")));
    let told = message(&next, "DefinitionsValid");
    assert_eq!(told, "disk.md line 3: command. The bridge serves the last valid definitions, revision 0123456789abcdef");
}

#[test]
fn a_bridge_counts_as_unreachable_only_after_several_looks() {
    let served = status(&serving(), None);
    let mut facts = serving();
    facts.answer = BridgeAnswer::Silent("timed out".into(), MAX_SILENT_LOOKS - 1);
    assert_eq!(status(&facts, Some(&served)), served, "one lost answer is no news");
    assert_eq!(words(&status(&facts, None), "Ready"), is("False", "BridgeUnreachable"), "it never answered");
    facts.answer = BridgeAnswer::Silent("timed out".into(), MAX_SILENT_LOOKS);
    let next = status(&facts, Some(&served));
    assert_eq!((words(&next, "Ready"), words(&next, "DefinitionsValid")), (is("False", "BridgeUnreachable"), is("Unknown", "NotReported")));
    assert!(message(&next, "Ready").ends_with("timed out"));
    assert_eq!((next.programs, next.revision), (served.programs, served.revision), "what it said last stays");
}

#[test]
fn names_without_an_address_are_named() {
    let mut facts = serving();
    facts.unknown_names = vec!["git.example.com".into()];
    assert!(message(&status(&facts, None), "Ready").ends_with("cannot be reached: git.example.com"));
}

#[test]
fn what_a_bridge_says_fits_the_schema() {
    let mut facts = serving();
    let many: Vec<String> = (0..500).map(|number| format!("{number}-{}", "x".repeat(100))).collect();
    let names: Vec<&str> = many.iter().map(String::as_str).chain(["", "a", "a"]).collect();
    facts.answer = BridgeAnswer::Serves(BridgeStatus { revision: "r".repeat(1000), ..bridge(&names, Some(&"p".repeat(10_000))) });
    let next = status(&facts, None);
    let programs = next.programs.clone().expect("programs");
    assert!(programs.len() == MAX_PROGRAMS && programs.iter().all(|program| (1..=63).contains(&program.name.len())));
    assert_eq!(programs.iter().map(|program| &program.name).collect::<BTreeSet<_>>().len(), MAX_PROGRAMS, "each name once");
    assert_eq!(next.revision.as_ref().map(String::len), Some(64));
    assert!(message(&next, "DefinitionsValid").len() <= 4096);
}

#[test]
fn a_change_is_reported_once() {
    let told = |stored: Option<&ToolsetStatus>, next: &ToolsetStatus| {
        let stored = stored.map_or(&[][..], |stored| &stored.conditions);
        changes(stored, &next.conditions).into_iter().map(|change| (change.warning, change.reason)).collect::<Vec<_>>()
    };
    let mut facts = serving();
    facts.pod = PodState::Starting("the pod is starting".into());
    facts.answer = BridgeAnswer::NotAsked;
    let starting = status(&facts, None);
    assert_eq!(told(None, &starting), [(false, "Starting".into())]);
    let served = status(&serving(), Some(&starting));
    assert_eq!(told(Some(&starting), &served), [(false, "Serving".into())]);
    assert_eq!(told(Some(&served), &served), []);
    facts.pod = PodState::Failing("error: x".into());
    assert_eq!(told(Some(&served), &status(&facts, Some(&served))), [(true, "BridgeFailing".into())]);
    let mut facts = serving();
    facts.answer = BridgeAnswer::Serves(bridge(&["disk"], Some("a")));
    let wrong = status(&facts, Some(&served));
    assert_eq!(told(Some(&served), &wrong), [(true, "InvalidDefinition".into())]);
    facts.answer = BridgeAnswer::Serves(bridge(&["disk"], Some("b")));
    assert_eq!(told(Some(&wrong), &status(&facts, Some(&wrong))), [(true, "InvalidDefinition".into())], "another one is wrong");
    (facts.objects, facts.definitions) = (ObjectsState::NotMade, missing());
    assert_eq!(told(None, &status(&facts, None)), [(true, "ConfigMapNotFound".into())], "one event, not two");
}

#[test]
fn a_fault_of_an_mcp_server_is_told() {
    for (kind, state, reason, words_of_it) in [
        (UpstreamFaultKind::Unreachable, "False", "UpstreamUnreachable", "does not work: boo"),
        (UpstreamFaultKind::ToolMissing, "False", "UpstreamToolMissing", "does not offer all of spec.upstream.tools: boo"),
        (UpstreamFaultKind::ToolRefused, "False", "UpstreamToolRefused", "spec.upstream.tools[].digest, so it is not offered: boo"),
        (UpstreamFaultKind::ToolChanged, "True", "UpstreamToolChanged", "agents see what it said first: boo"),
    ] {
        let upstream = Some(UpstreamFault { kind, message: format!("boo{}", "x".repeat(10_000)) });
        let facts = ToolsetFacts { answer: BridgeAnswer::Serves(BridgeStatus { upstream, ..bridge(&["search"], None) }), ..serving() };
        let next = status(&facts, None);
        assert_eq!(words(&next, "Ready"), is(state, reason));
        assert!(message(&next, "Ready").contains(words_of_it) && message(&next, "Ready").len() < 1000, "{}", message(&next, "Ready"));
        assert_eq!(words(&next, "DefinitionsValid"), is("True", "DefinitionsLoaded"));
        let told = changes(&status(&serving(), None).conditions, &next.conditions);
        assert!(told.len() == 1 && told[0].warning && told[0].reason == reason, "{told:?}");
    }
    let upstream = Some(UpstreamFault { kind: UpstreamFaultKind::Unreachable, message: "no".into() });
    let facts = ToolsetFacts {
        answer: BridgeAnswer::Serves(BridgeStatus { upstream, ..bridge(&["search"], None) }),
        unknown_names: vec!["mcp.example.com".into()],
        ..serving()
    };
    assert!(message(&status(&facts, None), "Ready").ends_with("These names have no address: mcp.example.com"));
}
