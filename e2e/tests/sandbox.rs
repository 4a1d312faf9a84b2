//! The sandbox around an agent's program, in real pods: a hostile program, with the same attacks beside the sandbox as a control, and
//! what an agent says about it.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt as _;
use rustix::process::Signal;
use serde_json::{Value, json};
use spillway::api::Agent;
use spillway::api::work_item::WorkItemPhase::{Leased, Succeeded};

use crate::support::exec::{sh, spillway};
use crate::support::fleet::{log, try_log};
use crate::support::history::{History, has_condition};
use crate::support::work::{UNTIL_TOLD, holder};
use crate::support::{Operator, TestNamespace, check_state, eventually};

/// Every attack on the supervisor, with its name and its answer.
const ALL_ATTACKS: &str = "export ATTACK_PID=1 ATTACK_INSIDE=/workspace ATTACK_OUTSIDE=/foreign ATTACK_PORT=9 ATTACK_SOCKET=none ATTACK_DESCRIPTOR=100
spillway-attacks --list | while read -r attack works does; do answer=$(spillway-attacks $attack 2>&1) && code=0 || code=$?; echo \"attack $attack $works $code $answer\"; done";

/// Attacks whose target does not exist in this test's pods: nothing listens there.
const WITHOUT_TARGET: [&str; 2] = ["abstract-socket", "connect-loopback"];

/// What an answer has to look like where the kernel would have refused the attack for another reason, too.
const REFUSED_BY_LANDLOCK: [&str; 8] = [
    "read-outside",
    "reopen-path",
    "write-by-dotdot",
    "write-by-symlink",
    "truncate-outside",
    "remove-outside",
    "connect-loopback",
    "listen-loopback",
];

struct Answer {
    attack: String,
    /// A pod without the sandbox does not stop it. The control: without such attacks, the test would show nothing of the sandbox.
    works_in_pods: bool,
    code: i32,
    text: String,
}

fn answers(log: &str) -> Vec<Answer> {
    let lines = log.lines().filter_map(|line| line.strip_prefix("attack "));
    let parse = |line: &str| {
        let mut words = line.splitn(4, ' ');
        let (attack, works_in_pods) = (words.next()?.to_owned(), words.next()? == "Pod");
        Some(Answer { attack, works_in_pods, code: words.next()?.parse().ok()?, text: words.next().unwrap_or_default().to_owned() })
    };
    lines.filter_map(parse).collect()
}

fn sandbox_condition(agent: &Agent) -> Option<(String, String, String)> {
    let conditions = &agent.status.as_ref()?.conditions;
    let found = conditions.iter().find(|one| one.type_ == "SandboxEnforced" && one.status != "Unknown")?;
    Some((found.status.clone(), found.reason.clone(), found.message.clone()))
}

/// The first agent of the pool that says what its sandbox is, with status, reason and message.
pub async fn wait_for_sandbox(room: &TestNamespace, pool: &str) -> (Agent, (String, String, String)) {
    eventually("an agent says what its sandbox is", async || {
        let agents: Vec<Agent> = room.list().await;
        let found = agents.into_iter().filter(|agent| agent.spec.pool_ref.name == pool).find_map(|agent| {
            let said = sandbox_condition(&agent)?;
            Some((agent, said))
        });
        found.ok_or_else(|| "nothing yet".to_owned())
    })
    .await
}

#[tokio::test]
async fn every_attack_of_a_program_is_refused_and_works_beside_the_sandbox() {
    let room = TestNamespace::open("attacks").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    room.apply_queue("bugs", json!({})).await;
    let extra = json!({
        "scaling": {"min": 0, "max": 1},
        "agent": {
            "image": "localhost/spillway/attack-agent:dev",
            "resources": {"limits": {"cpu": "500m", "memory": "64Mi"}},
        },
        "sandbox": {"isolation": {"landlock": "Required", "seccomp": "AgentStrict"}, "outputs": {"loopback": "LinkOnly"}},
    });
    room.apply_workers("attackers", &["bugs"], &format!("{ALL_ATTACKS}\n{UNTIL_TOLD}"), extra).await;
    room.submit("bugs", "bug", json!({"payload": "bug"})).await;
    let agent = holder(&room.wait_for_item_phase("bug", Leased).await);
    let (_, (status, reason, message)) = wait_for_sandbox(&room, "attackers").await;
    assert_eq!((status.as_str(), reason.as_str()), ("True", "Enforced"), "{message}");

    let within = eventually("the program has tried everything", async || {
        let found = answers(&log(&room, &agent, "agent").await);
        if found.iter().any(|answer| answer.attack == "listen-loopback") { Ok(found) } else { Err(format!("{} answers", found.len())) }
    })
    .await;
    // A process that `exec` starts has the isolation of the pod, and no sandbox.
    let beside = answers(&sh(&room, &agent, ALL_ATTACKS).await.ok());
    assert!(within.len() > 70 && within.len() == beside.len(), "{} and {}", within.len(), beside.len());
    let mut wrong = Vec::new();
    for (inside, outside) in within.iter().zip(&beside) {
        println!("{}\t{}\t{}", inside.attack, inside.text, outside.text);
        // 159: killed by SIGSYS, as calls of 32-bit programs are.
        let refused = inside.code == 1 || (inside.attack == "old-calls" && inside.code == 159);
        let by_landlock = !REFUSED_BY_LANDLOCK.contains(&inside.attack.as_str()) || inside.text.contains("Permission denied");
        if !refused || !by_landlock {
            wrong.push(format!("{}: {} {}", inside.attack, inside.code, inside.text));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let differs = |answer: &&Answer| answer.works_in_pods != (answer.code == 0) && !WITHOUT_TARGET.contains(&answer.attack.as_str());
    let wrong: Vec<&str> = beside.iter().filter(differs).map(|answer| answer.attack.as_str()).collect();
    assert!(wrong.is_empty(), "beside the sandbox these do not do what their table says: {wrong:?}");
    room.release_item("bug").await;
    room.wait_for_item_phase("bug", Succeeded).await;
    room.close().await;
}

#[tokio::test]
async fn a_pool_chooses_how_its_programs_are_confined() {
    let room = TestNamespace::open("confined").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    // What the program can do, in its own words.
    let script = "cat /foreign/secret >/dev/null 2>&1 && echo foreign-read; echo x > /workspace/x && echo workspace-written; \
                  spillway-attacks udp >/dev/null && echo udp; spillway-attacks listen-loopback >/dev/null && echo listens; echo tried; exec sleep 100000";
    let pool = |sandbox: Value| {
        json!({"scaling": {"min": 1, "max": 1}, "sandbox": sandbox, "agent": {
            "image": "localhost/spillway/attack-agent:dev", "command": ["/bin/sh", "-c", script]}})
    };
    let cases = [
        ("defaults", json!({}), ("True", "Enforced"), vec!["workspace-written", "udp", "listens"]),
        ("narrow", json!({"outputs": {"loopback": "LinkOnly"}}), ("True", "Enforced"), vec!["workspace-written"]),
        (
            "wide",
            json!({"software": {"path": ["/foreign"]}}),
            ("True", "Enforced"),
            vec!["foreign-read", "workspace-written", "udp", "listens"],
        ),
        (
            "calls",
            json!({"isolation": {"seccomp": "RuntimeDefault"}}),
            ("False", "SandboxDegraded"),
            vec!["workspace-written", "udp", "listens"],
        ),
        (
            "files",
            json!({"isolation": {"landlock": "Disabled"}}),
            ("False", "SandboxDegraded"),
            vec!["foreign-read", "workspace-written", "udp", "listens"],
        ),
        (
            "none",
            json!({"isolation": {"landlock": "Disabled", "seccomp": "RuntimeDefault"}}),
            ("False", "PodWallsOnly"),
            vec!["foreign-read", "workspace-written", "udp", "listens"],
        ),
    ];
    for (name, sandbox, _, _) in &cases {
        room.apply_pool(name, pool(sandbox.clone())).await;
    }
    for (name, _, (status, reason), expected) in cases {
        let (agent, said) = wait_for_sandbox(&room, name).await;
        assert_eq!((said.0.as_str(), said.1.as_str()), (status, reason), "{name}: {}", said.2);
        let can = eventually(&format!("the program of {name} has tried"), async || {
            let said = try_log(&room, &agent.name_any(), "agent").await?;
            let all = ["foreign-read", "workspace-written", "udp", "listens"];
            let can: Vec<&str> = all.into_iter().filter(|word| said.lines().any(|line| line == *word)).collect();
            if said.lines().any(|line| line == "tried") { Ok(can) } else { Err(said) }
        })
        .await;
        assert_eq!(can, expected, "{name}");
    }
    room.close().await;
}

#[tokio::test]
async fn a_recording_says_what_the_sandbox_would_refuse_a_program() {
    let room = TestNamespace::open("recorded").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    let script = "cat /foreign/secret; spillway-attacks segment-table; spillway-attacks secret-memory; echo x > /workspace/x; exit 7";
    let pool = json!({
        "scaling": {"min": 1, "max": 1},
        "sandbox": {"isolation": {"landlock": "Disabled", "seccomp": "RuntimeDefault"}},
        "agent": {
            "image": "localhost/spillway/attack-agent:dev",
            "command": ["/bin/sh", "-c", format!("/spillway/bin/spillway-agent sandbox --record -- /bin/sh -c '{script}'; echo ended with $?; exec sleep 100000")],
        },
    });
    room.apply_pool("recorded", pool).await;
    let (agent, _) = wait_for_sandbox(&room, "recorded").await;
    let said = eventually("the recording has ended", async || {
        let said = try_log(&room, &agent.name_any(), "agent").await?;
        if said.contains("ended with") { Ok(said) } else { Err(said) }
    })
    .await;
    let lines: Vec<Vec<&str>> = said.lines().map(|line| line.split_whitespace().collect()).collect();
    let expected: [&[&str]; 4] = [
        &["modify_ldt", "1", "time", "EPERM"],
        &["memfd_secret", "1", "time", "ENOSYS:"],
        &["read", "/foreign/secret", "1", "time"],
        &["ended", "with", "7"],
    ];
    for expected in expected {
        assert!(lines.iter().any(|line| line.starts_with(expected)), "{expected:?}\n{said}");
    }
    assert_eq!(lines.iter().filter(|line| matches!(line.first(), Some(&"read" | &"write"))).count(), 1, "{said}");
    room.close().await;
}

/// A pool of one agent with the attacks in its image.
fn attackers(sandbox: Value, script: &str) -> Value {
    let agent = json!({"image": "localhost/spillway/attack-agent:dev", "command": ["/bin/sh", "-c", script]});
    json!({"scaling": {"min": 1, "max": 1}, "sandbox": sandbox, "agent": agent})
}

#[tokio::test]
async fn a_sandbox_that_observes_refuses_nothing_and_counts() {
    let room = TestNamespace::open("observed").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    let script = "cat /foreign/secret >/dev/null && echo read; spillway-attacks segment-table >/dev/null && echo called; exec sleep 100000";
    let sandbox = json!({"isolation": {"landlock": "Required", "seccomp": "AgentStrict", "mode": "Observe"}});
    room.apply_pool("observed", attackers(sandbox, script)).await;
    let agent = eventually("the agent has what the sandbox would refuse", async || {
        let (agent, said) = wait_for_sandbox(&room, "observed").await;
        assert_eq!((said.0.as_str(), said.1.as_str()), ("False", "SandboxObserved"), "{}", said.2);
        let names = ["modify_ldt", "read /foreign/secret"];
        if names.iter().all(|name| said.2.contains(name)) { Ok(agent) } else { Err(said.2) }
    })
    .await;
    let refused = agent.status.as_ref().and_then(|status| status.sandbox.clone()?.refused).unwrap_or_default();
    assert_eq!(refused, ["modify_ldt", "read /foreign/secret"]);
    let said = log(&room, &agent.name_any(), "agent").await;
    assert!(said.contains("read\n") && said.contains("called\n"), "{said}");
    for kind in ["File", "SystemCall"] {
        let (_, text) = operator.get("/metrics").await.expect("metrics");
        let series =
            format!("spillway_pool_sandbox_refusals_total{{namespace=\"{}\",pool=\"observed\",kind=\"{kind}\"}} 1", room.namespace);
        assert!(text.lines().any(|line| line == series), "{series}\n{text}");
    }
    room.close().await;
}

#[tokio::test]
async fn refused_system_calls_count_for_supervision() {
    let room = TestNamespace::open("violations").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    let script = "for i in 1 2 3 4 5 6; do spillway-attacks segment-table; done; exec sleep 100000";
    let mut pool = attackers(json!({"isolation": {"seccomp": "AgentStrict"}}), script);
    let rule = json!({"signal": "RuleViolated", "rule": "SandboxViolation", "count": 5, "windowSeconds": 600, "do": "Pause"});
    pool["supervision"] = json!({"rules": [rule]});
    room.apply_pool("violations", pool).await;
    let agent = eventually("the supervision pauses the agent", async || {
        let agents: Vec<Agent> = room.list().await;
        let paused = agents.into_iter().find(|agent| has_condition(agent, "Paused", "True", "PausedBySupervisor"));
        paused.ok_or_else(|| "no agent is paused".to_owned())
    })
    .await;
    let status = agent.status.expect("a status");
    let last = status.interventions.unwrap_or_default().last().cloned().expect("an intervention is recorded");
    assert_eq!((last.signal.as_str(), last.action.as_str()), ("RuleViolated/SandboxViolation", "Pause"), "{last:?}");
    assert!(last.message.contains("the sandbox has refused 6 system calls of the agent: modify_ldt"), "{last:?}");
    assert_eq!(status.sandbox.and_then(|sandbox| sandbox.refused), Some(vec!["modify_ldt".to_owned()]));
    room.close().await;
}

/// What this controller has counted of sandboxes, by pool and kind.
async fn counted(controller: &Operator) -> BTreeMap<String, u64> {
    let (_, text) = controller.get("/metrics").await.expect("metrics");
    let series = text.lines().filter_map(|line| line.strip_prefix("spillway_pool_sandbox_refusals_total{"));
    let parse = |line: &str| {
        let (labels, count) = line.split_once("} ")?;
        let label = |name: &str| labels.split(',').find_map(|label| label.strip_prefix(name)?.strip_prefix("=\"")?.strip_suffix('"'));
        Some((format!("{} {}", label("pool")?, label("kind")?), count.parse().ok()?))
    };
    series.map(|line| parse(line).unwrap_or_else(|| panic!("a sample: {line}"))).collect()
}

async fn wait_until_counted(controller: &Operator, expected: &[(&str, u64)]) {
    let expected: BTreeMap<String, u64> = expected.iter().map(|(series, count)| ((*series).to_owned(), *count)).collect();
    eventually("the controller has counted what the sandboxes said", async || {
        let counted = counted(controller).await;
        check_state(counted == expected, || format!("{counted:?}"))
    })
    .await;
}

/// Waits until the current leader has a report of this agent. Only this test's own call changes the action.
async fn wait_for_report(room: &TestNamespace, agent: &str, action: &str) {
    eventually(&format!("{agent} has reported {action:?}"), async || {
        let said = spillway(room, agent, &["progress", action]).await;
        let agent: Agent = room.api().get(agent).await.map_err(|error| error.to_string())?;
        let stored = agent.status.and_then(|status| status.current_action);
        check_state(stored.as_deref() == Some(action), || format!("{stored:?} {said:?}"))
    })
    .await;
}

/// Every intervention of a supervisor so far, with its pool.
async fn interventions(history: &History) -> BTreeSet<String> {
    let last = |agent: &Agent| {
        let last = agent.status.as_ref()?.interventions.as_ref()?.last()?;
        Some(format!("{}: {} {}: {}", agent.spec.pool_ref.name, last.signal, last.action, last.message))
    };
    history.of_agents(last).await
}

/// A sandbox counts from the start of its pod on, and tells each leader the whole count. A leader that took the count of its first report
/// for new would count twice, and raise signals again.
#[tokio::test]
async fn a_new_leader_counts_nothing_again_and_raises_no_signal_for_what_is_only_observed() {
    let room = TestNamespace::open("recounted").await;
    let mut first = room.operator("first");
    first.leads(&room).await;
    let history = History::start(&room);
    let script = "look() { cat /foreign/secret; for call in $1; do spillway-attacks segment-table; done; }
                  look '1 2'; until [ -e /workspace/go ]; do sleep 1; done; look '3 4 5'; exec sleep 100000";
    // Two refused calls before the change and three after it. One signal pauses the agent that is only observed. The other one is the
    // control: it must not be paused for five, and must be for three of the new leader.
    let rule =
        |count: u32| json!({"signal": "RuleViolated", "rule": "SandboxViolation", "count": count, "windowSeconds": 3600, "do": "Pause"});
    let isolation = json!({"landlock": "Required", "seccomp": "AgentStrict"});
    let observes = json!({"landlock": "Required", "seccomp": "AgentStrict", "mode": "Observe"});
    let mut names = Vec::new();
    for (pool, isolation, count) in [("observed", observes, 1), ("enforced", isolation, 3)] {
        let mut spec = attackers(json!({"isolation": isolation}), script);
        spec["supervision"] = json!({"rules": [rule(count)]});
        room.apply_pool(pool, spec).await;
        names.push(wait_for_sandbox(&room, pool).await.0.name_any());
    }
    let [observed, enforced] = <[String; 2]>::try_from(names).expect("two agents");
    wait_until_counted(&first, &[("observed File", 1), ("observed SystemCall", 2), ("enforced SystemCall", 2)]).await;
    let expected = ["modify_ldt", "read /foreign/secret"];
    let refused = async |name: &str| {
        let agent: Agent = room.api().get(name).await.expect("an Agent");
        agent.status.and_then(|status| status.sandbox?.refused).unwrap_or_default()
    };
    eventually("the Agent names what would be refused", async || {
        let refused = refused(&observed).await;
        check_state(refused == expected, || format!("{refused:?}"))
    })
    .await;
    assert_eq!(interventions(&history).await, BTreeSet::new());

    let second = room.operator("second");
    first.signal(Signal::KILL);
    assert!(!first.ended().await.success());
    second.leads(&room).await;
    for agent in [&observed, &enforced] {
        wait_for_report(&room, agent, "after the change").await;
    }
    assert_eq!(counted(&second).await, BTreeMap::new(), "all of it was counted by the first leader");
    assert_eq!(interventions(&history).await, BTreeSet::new());
    assert_eq!(refused(&observed).await, expected);

    for agent in [&observed, &enforced] {
        sh(&room, agent, "touch /workspace/go").await.ok();
    }
    wait_until_counted(&second, &[("observed File", 1), ("observed SystemCall", 3), ("enforced SystemCall", 3)]).await;
    eventually("what was refused is a signal for the new leader", async || {
        let agent: Agent = room.api().get(&enforced).await.map_err(|error| error.to_string())?;
        check_state(has_condition(&agent, "Paused", "True", "PausedBySupervisor"), || format!("{:?}", agent.status))
    })
    .await;
    // The leader has decided about the observed agent since, because it has stored a later report.
    wait_for_report(&room, &observed, "after the second look").await;
    assert_eq!(refused(&observed).await, expected);
    let interventions = interventions(&history).await;
    let of_control = "enforced: RuleViolated/SandboxViolation Pause: the sandbox has refused 5 system calls of the agent: modify_ldt";
    assert!(interventions.iter().all(|one| one.starts_with(of_control)) && interventions.len() == 1, "{interventions:#?}");
    room.close().await;
}

#[tokio::test]
async fn an_item_narrows_the_sandbox_of_its_program() {
    let room = TestNamespace::open("narrowed").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    for queue in ["bugs", "observed"] {
        room.apply_queue(queue, json!({})).await;
    }
    let script = "spillway-attacks segment-table >/dev/null && calls=open; cat /foreign/secret >/dev/null 2>&1 && files=open; \
                  spillway-attacks listen-loopback >/dev/null && ports=open; \
                  echo ${calls:-closed} ${files:-closed} ${ports:-closed} > $SPILLWAY_RESULT_FILE";
    let extra = |isolation: Value| json!({"scaling": {"min": 0, "max": 1}, "sandbox": {"isolation": isolation}, "agent": {"image": "localhost/spillway/attack-agent:dev"}});
    room.apply_workers("workers", &["bugs"], script, extra(json!({"landlock": "Disabled", "seccomp": "RuntimeDefault"}))).await;
    room.apply_workers("observed", &["observed"], script, extra(json!({"mode": "Observe"}))).await;
    let items = [
        ("wide", json!({}), "open open open"),
        ("calls", json!({"isolation": {"seccomp": "AgentStrict"}}), "closed open open"),
        ("files", json!({"isolation": {"landlock": "Required"}}), "open closed open"),
        ("ports", json!({"outputs": {"loopback": "LinkOnly"}}), "closed closed closed"),
        ("again", json!({}), "open open open"),
    ];
    for (name, sandbox, expected) in items {
        room.submit("bugs", name, json!({"bulkhead": {"sandbox": sandbox}})).await;
        let item = room.wait_for_item_phase(name, Succeeded).await;
        let result = item.status.and_then(|status| status.result).unwrap_or_default();
        assert_eq!(result.trim(), expected, "{name}");
    }
    // A sandbox that only observes guarantees nothing.
    room.submit("observed", "unmet", json!({"bulkhead": {"sandbox": {"isolation": {"landlock": "Required"}}}})).await;
    room.wait_for_event("unmet", "RequirementsUnmet", "isolation.landlock: Required (bulkhead.sandbox)").await;
    room.close().await;
}
