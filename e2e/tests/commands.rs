//! Commands that agents run with `spillway exec`, in real pods: commands that hang block one agent, those of many
//! agents block their namespace, and no process of a command outlives it.

use futures::future::join_all;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use rustix::process::Signal;
use serde_json::{Value, json};
use spillway::api::breaker::{Circuit, CircuitState};
use spillway::api::{Agent, Breaker};

use crate::support::exec::{CommandOutput, exec, sh};
use crate::support::history::pod_uid;
use crate::support::{Operator, TestNamespace, check_state, eventually, node};

/// A program that runs scripts from [`run`], one after the other.
const PROGRAM: &str =
    "cd /tmp; while :; do if [ -e task ]; then sh task > out 2> err; echo $? > code; rm task; mv code over; fi; sleep 0.2; done";
const GIVE: &str = "cd /tmp; rm -f over; printf %s \"$1\" > new; mv new task; until [ -e over ]; do sleep 0.2; done; cat out; cat err >&2; exit $(cat over)";

/// Has the agent's program run a script.
async fn run(room: &TestNamespace, agent: &str, script: &str) -> CommandOutput {
    exec(room, agent, &["/bin/sh", "-c", GIVE, "sh", script]).await
}

/// The output with `--output json`.
fn told(said: &CommandOutput) -> Value {
    serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"))
}

async fn set_up(name: &str) -> (TestNamespace, Operator) {
    let room = TestNamespace::open(name).await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    (room, operator)
}

/// Makes `count` agents that run scripts of the test.
async fn agents(room: &TestNamespace, pool: &str, count: usize) -> Vec<String> {
    let extra = json!({
        "replicas": count, "agent": {"command": ["/bin/sh", "-c", PROGRAM]}, "supervision": {"heartbeatPeriodSeconds": 1},
    });
    room.apply_pool(pool, extra).await;
    room.wait_until_idle(pool, count).await.iter().map(ResourceExt::name_any).collect()
}

async fn breaker(room: &TestNamespace, name: &str, spec: Value) {
    let object = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Breaker", "metadata": {"name": name}, "spec": spec});
    room.api::<Breaker>().patch(name, &PatchParams::apply("e2e").force(), &Patch::Apply(object)).await.expect("the Breaker is accepted");
}

/// Waits until a Breaker's circuit of commands fits.
async fn circuit(room: &TestNamespace, name: &str, what: &str, fits: impl Fn(&Circuit) -> bool) -> Breaker {
    eventually(&format!("the circuit of commands of Breaker {name} {what}"), async || {
        let breaker = room.api::<Breaker>().get(name).await.map_err(|error| error.to_string())?;
        let circuits = breaker.status.as_ref().and_then(|status| status.circuits.as_deref()).unwrap_or_default();
        let holds = circuits.iter().find(|circuit| circuit.key == "commands").is_some_and(&fits);
        check_state(holds, || format!("{:?}", breaker.status)).map(|()| breaker)
    })
    .await
}

/// The state of its circuit of commands, and the status and reason of its condition Tripped.
fn summary(breaker: &Breaker) -> (Option<CircuitState>, String) {
    let status = breaker.status.clone().unwrap_or_default();
    let tripped = status.conditions.iter().find(|condition| condition.type_ == "Tripped");
    (
        status.summary.and_then(|summary| summary.commands),
        tripped.map(|told| format!("{}/{}", told.status, told.reason)).unwrap_or_default(),
    )
}

/// How often the breaker of an agent's commands opened, by its Agent's status.
async fn timeouts(room: &TestNamespace, agent: &str) -> Option<i32> {
    room.api::<Agent>().get(agent).await.expect("the Agent is there").status.and_then(|status| status.timeouts)
}

#[tokio::test]
async fn ten_that_hang_stop_one_agent_until_two_work() {
    let (room, _operator) = set_up("hang").await;
    let agents = agents(&room, "coders", 2).await;
    let (one, other) = (&agents[0], &agents[1]);
    // From the first command that hangs until the refusal of the eleventh.
    let beside = run(&room, other, "n=0; until [ -e /tmp/enough ]; do spillway exec -- true || exit 9; n=$((n+1)); sleep 1; done; echo $n");
    let hangs = async {
        let script = "for n in 1 2 3 4 5 6 7 8 9 10; do spillway exec --timeout 1 -- sleep 600; echo $?; done
            spillway exec -- touch /tmp/started; echo $?
            spillway exec --output json -- touch /tmp/started; echo $?; ls /tmp";
        let said = run(&room, one, script).await;
        sh(&room, other, "touch /tmp/enough").await.ok();
        said
    };
    let (beside, said) = futures::join!(beside, hangs);
    let lines: Vec<&str> = said.out.lines().collect();
    assert!(lines.len() > 13, "{said:?}");
    assert_eq!((&lines[..10], lines[10], lines[12]), (&["124"; 10][..], "125", "125"), "{said:?}");
    let told: Value = serde_json::from_str(lines[11]).unwrap_or_else(|error| panic!("{error}: {said:?}"));
    let words = told["refused"].as_str().unwrap_or_default();
    assert!(words.starts_with("bash circuit breaker open for session: ") && told["doNotRetry"] == true, "{told}");
    assert!(told["retryAfterMilliseconds"].as_u64().is_some_and(|wait| (1..=33_000).contains(&wait)), "{told}");
    for words in ["sleep timed out after 1 s", "bash circuit breaker open for session: ", "retryAfterMilliseconds: "] {
        assert!(said.err.contains(words), "{words:?} is not said: {said:?}");
    }
    assert!(!lines[13..].contains(&"started"), "what is refused does not run: {said:?}");
    let worked: u32 = beside.ok().trim().parse().expect("a number");
    assert!(worked > 0, "the other agent's commands ran all the time");
    eventually("the agent's status counts the opening", async || {
        let counted = timeouts(&room, one).await;
        check_state(counted == Some(1), || format!("{counted:?}"))
    })
    .await;
    assert_eq!(timeouts(&room, other).await, None);

    // Two probes close it. Then a command that hangs is the first of ten again.
    let script = "until spillway exec -- true; do sleep 1; done; spillway exec -- true; echo $?
        spillway exec --timeout 1 -- sleep 600; echo $?; spillway exec -- true; echo $?";
    assert_eq!(run(&room, one, script).await.ok().lines().collect::<Vec<_>>(), ["0", "124", "0"]);
    assert_eq!(timeouts(&room, one).await, Some(1));
    room.close().await;
}

#[tokio::test]
async fn a_hundred_that_say_no_open_nothing_unless_a_person_counts_their_code() {
    let (room, _operator) = set_up("says-no").await;
    let agents = agents(&room, "coders", 1).await;
    let script = "n=1; while [ $n -le 100 ]; do spillway exec -- sh -c \"exit $n\"; [ $? = $n ] || exit 9; n=$((n+1)); done; spillway exec -- echo works";
    assert_eq!(run(&room, &agents[0], script).await.ok(), "works\n");
    assert_eq!(timeouts(&room, &agents[0]).await, None);
    breaker(&room, "strict", json!({"commands": {"session": {"failureThreshold": 3}, "failureExitCodes": [3], "openSeconds": 600}})).await;
    // The same command, when the pod has learned of it.
    let script = "while spillway exec -- sh -c 'exit 3'; [ $? = 3 ]; do sleep 0.2; done; spillway exec -- true";
    let said = run(&room, &agents[0], script).await;
    assert!(said.code == 125 && said.err.contains("bash circuit breaker open for session: "), "{said:?}");
    room.close().await;
}

#[tokio::test]
async fn an_opening_outlives_the_sidecar_and_a_person_may_decide_otherwise() {
    let (room, _operator) = set_up("sidecar").await;
    let guard = json!({"session": {"failureThreshold": 2}, "openSeconds": 600});
    breaker(&room, "strict", json!({"commands": guard})).await;
    let agent = agents(&room, "coders", 1).await.remove(0);
    run(&room, &agent, "until spillway exec --timeout 1 -- sleep 600; [ $? = 125 ]; do :; done").await.ok();
    eventually("the agent's status counts the opening", async || {
        let counted = timeouts(&room, &agent).await;
        check_state(counted == Some(1), || format!("{counted:?}"))
    })
    .await;
    let uid = pod_uid(&room.api::<Agent>().get(&agent).await.expect("the Agent is there"));
    let before = node::link(&uid).expect("its sidecar");
    node::signal(&before, Signal::KILL);
    eventually("another sidecar runs", async || {
        let now = node::link(&uid);
        check_state(now.as_ref().is_some_and(|now| now.pid != before.pid), || format!("{now:?}"))
    })
    .await;
    let says = async |what: &str, words: &str| {
        eventually(what, async || {
            let said = run(&room, &agent, "spillway exec -- echo works").await;
            check_state(said.out.contains(words) || (said.code == 125 && said.err.contains(words)), || format!("{said:?}"))
        })
        .await
    };
    says("it is open", "bash circuit breaker open for session: too many failures").await;
    breaker(&room, "strict", json!({"commands": guard, "force": "Closed"})).await;
    says("a person closed it", "works").await;
    breaker(&room, "strict", json!({"commands": guard, "force": "Open"})).await;
    says("a person opened it", "a person holds it open").await;
    assert_eq!(timeouts(&room, &agent).await, Some(1), "it opened once");
    room.close().await;
}

#[tokio::test]
#[ignore = "it takes minutes of both cores: E2E_LONG=1"]
async fn long_those_of_many_agents_stop_their_namespace_until_two_that_are_tried_work() {
    let (room, operator) = set_up("many").await;
    let (elsewhere, _other) = set_up("elsewhere").await;
    breaker(&room, "strict", json!({"commands": {"windowSeconds": 1200, "openSeconds": 120}})).await;
    breaker(&room, "apart", json!({"pools": ["apart"]})).await;
    let (many, apart, there) = futures::join!(agents(&room, "coders", 6), agents(&room, "apart", 1), agents(&elsewhere, "coders", 1));
    // Fifty open the breaker of all, and ten that of one agent: so nine of each of five agents, and four of a sixth, do
    // not.
    let hang = |times: u32| {
        format!("n=0; while [ $n -lt {times} ]; do spillway exec --timeout 1 -- sleep 600; [ $? = 124 ] || exit 9; n=$((n+1)); done")
    };
    let nine = hang(9);
    let (all, sixth) =
        futures::join!(join_all(many[..5].iter().map(|agent| run(&room, agent, &nine))), async { run(&room, &many[5], &hang(4)).await });
    all.into_iter().chain([sixth]).for_each(|said| drop(said.ok()));
    circuit(&room, "strict", "counts 49", |circuit| (circuit.state, circuit.failures) == (CircuitState::Closed, Some(49))).await;
    run(&room, &many[5], &hang(1)).await.ok();
    let open = circuit(&room, "strict", "is open", |circuit| circuit.state == CircuitState::Open).await;
    assert_eq!(summary(&open), (Some(CircuitState::Open), "True/CircuitOpen".to_owned()));

    let refused = |said: &CommandOutput| {
        let told = told(said);
        assert!(told["refused"].as_str().is_some_and(|words| words.starts_with("bash circuit breaker open globally: ")), "{said:?}");
        assert!(told["retryAfterMilliseconds"].as_u64().is_some_and(|wait| wait > 0), "{said:?}");
    };
    // For each agent, when its pod has learned of it.
    let asks = "while said=$(spillway exec --output json -- true); do sleep 0.2; done; echo \"$said\"";
    join_all(many.iter().map(|agent| run(&room, agent, asks))).await.iter().for_each(refused);

    // No command passes while another leader takes over, until little of the time is left.
    let asks = r#"left=120000; while [ "$left" -gt 30000 ]; do
        said=$(spillway exec --output json -- true) && exit 9
        left=$(echo "$said" | sed 's/.*"retryAfterMilliseconds":\([0-9]*\).*/\1/'); sleep 0.1; done; echo "$said""#;
    let next = room.operator("two");
    let takes_over = async {
        operator.signal(Signal::KILL);
        next.leads(&room).await;
    };
    let (all, ()) = futures::join!(join_all(many.iter().map(|agent| run(&room, agent, asks))), takes_over);
    all.into_iter().for_each(|said| refused(&CommandOutput { out: said.clone().ok(), ..said }));

    // While one agent holds the probe no other gets one. It holds the probe until the test lets it continue.
    let probe =
        "until spillway exec --timeout 600 -- sh -c 'touch tried; until [ -e go ]; do sleep 0.2; done'; do sleep 1; done 2> /dev/null";
    let first = run(&room, &many[0], probe);
    let meanwhile = async {
        eventually("a command runs as a probe", async || {
            let said = sh(&room, &many[0], "ls /tmp/tried").await;
            check_state(said.code == 0, || said.err)
        })
        .await;
        circuit(&room, "strict", "is half open", |circuit| circuit.state == CircuitState::HalfOpen).await;
        let tries = "spillway exec --output json -- true";
        join_all(many[1..].iter().map(|agent| run(&room, agent, tries))).await.iter().for_each(refused);
        // Agents of another Breaker's pool, and of another namespace, are not affected.
        for (room, agent) in [(&room, &apart[0]), (&elsewhere, &there[0])] {
            assert_eq!(run(room, agent, "spillway exec -- echo works").await.ok(), "works\n");
        }
        sh(&room, &many[0], "touch /tmp/go").await.ok();
    };
    let (first, ()) = futures::join!(first, meanwhile);
    first.ok();
    // The second success is another agent's.
    run(&room, &many[1], "until spillway exec -- true; do sleep 1; done 2> /dev/null").await.ok();
    let closed = circuit(&room, "strict", "is closed", |circuit| circuit.state == CircuitState::Closed).await;
    assert_eq!(summary(&closed), (Some(CircuitState::Closed), "False/CircuitsClosed".to_owned()));
    eventually("every agent runs commands again", async || {
        let all = join_all(many.iter().map(|agent| run(&room, agent, "spillway exec -- true"))).await;
        check_state(all.iter().all(|said| said.code == 0), || format!("{all:?}"))
    })
    .await;
    for agent in &many {
        assert_eq!(timeouts(&room, agent).await, None, "no breaker of one agent opened");
    }
    elsewhere.close().await;
    room.close().await;
}

/// A word in the command line of every process of a tree. Functions count the processes with it, and wait for a number
/// of them.
const TREE: &str = "count() { cat /proc/[0-9]*/cmdline 2> /dev/null | tr '\\0' '\\n' | grep -c -x '9876[1]'; }
stands() { until [ \"$(count)\" -ge \"$1\" ]; do sleep 0.1; done; touch stands; }
";

async fn count(room: &TestNamespace, agent: &str) -> String {
    sh(room, agent, &format!("{TREE} count")).await.out.trim().to_owned()
}

#[tokio::test]
async fn nothing_outlives_its_command() {
    let (room, _operator) = set_up("trees").await;
    let agent = agents(&room, "coders", 1).await.remove(0);
    let trees = [
        ("it ignores SIGTERM", "trap '' TERM; sleep 98761 & stands 1; while :; do sleep 98761; done"),
        ("it left its session and its parent", "setsid sh -c 'trap \"\" TERM; sleep 98761 & exit 0'; stands 1; sleep 98761"),
        (
            "it forks when it is asked to end",
            "trap 'sh tree 98761 & sh tree 98761 &' TERM; sleep 98761 & stands 1; while :; do sleep 0.1; done",
        ),
        (
            "it forks and ends, forks and ends",
            "trap '' TERM; if [ -z \"$1\" ]; then sleep 98761 & setsid sh tree 98761 1 & stands 2; sleep 98761; fi
            [ $2 -gt 20000 ] || setsid sh tree 98761 $(($2+1)) & exit",
        ),
        ("it is stopped", "sleep 98761 & stands 1; kill -STOP $!; kill -STOP $$; sleep 98761"),
    ];
    for (what, tree) in trees {
        let script = format!("cat > tree <<'END'\n{TREE}{tree}\nEND\nrm -f stands; spillway exec --output json --timeout 10 -- sh tree");
        let said = run(&room, &agent, &script).await;
        assert_eq!(count(&room, &agent).await, "0", "{what}: {said:?}");
        let ended = told(&said);
        assert!(said.code == 124 && ended["timedOut"] == true && ended.get("unkillable").is_none(), "{what}: {said:?}");
        assert_eq!(sh(&room, &agent, "ls /tmp/stands").await.code, 0, "{what}: it had not come so far: {said:?}");
    }
    // Processes that it leaves do not delay its end, and end with it, unless they are allowed to stay.
    for (flag, left) in [("--timeout=600", "0"), ("--keep", "1")] {
        let said = run(&room, &agent, &format!("spillway exec {flag} --output json -- sh -c 'sleep 98761 & echo done'")).await;
        let ended = told(&said);
        assert_eq!((said.code, &ended["stdout"], &ended["timedOut"]), (0, &json!("done\n"), &json!(false)), "{said:?}");
        assert_eq!(count(&room, &agent).await, left, "{said:?}");
    }
    room.close().await;
}
