//! Commands that a program runs by itself, in real pods: shells that hang are ended at the pool's time limit, without
//! help of the program.

use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use spillway::api::{Agent, Breaker};

use crate::support::exec::sh;
use crate::support::models::Scripted;
use crate::support::{Operator, TestNamespace, check_state, eventually};

/// Finds a shell like a program that searches its `PATH`: busybox would use its own.
const FIND: &str = r#"cd /tmp
found() { IFS=:; for folder in $PATH; do if [ -x "$folder/sh" ]; then echo "$folder/sh"; return; fi; done; }
shell=$(found)
"#;

async fn set_up(name: &str) -> (TestNamespace, Operator) {
    let room = TestNamespace::open(name).await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    (room, operator)
}

/// One agent that runs this script as its program, and whose commands may take three seconds; its name, when the script
/// has ended.
async fn ran(room: &TestNamespace, script: &str, extra: Value) -> String {
    let program = format!("{FIND}{script}\ntouch over; exec sleep 100000");
    let mut spec = json!({
        "replicas": 1, "bulkhead": {"commandTimeoutSeconds": 3, "lifetimeTokens": 1_000_000_000_i64},
        "agent": {"command": ["/bin/sh", "-c", program]}, "supervision": {"heartbeatPeriodSeconds": 1},
    });
    for (name, value) in extra.as_object().expect("an object") {
        match (&mut spec[name], value) {
            (Value::Object(known), Value::Object(more)) => known.extend(more.clone()),
            (known, more) => *known = more.clone(),
        }
    }
    room.apply_pool("coders", spec).await;
    let agent = room.wait_until_idle("coders", 1).await.remove(0).name_any();
    eventually("the program has run its script", async || {
        let said = sh(room, &agent, "ls /tmp; cat /tmp/over").await;
        check_state(said.code == 0, || format!("{said:?}"))
    })
    .await;
    agent
}

async fn file(room: &TestNamespace, agent: &str, name: &str) -> String {
    sh(room, agent, &format!("cat /tmp/{name}")).await.ok()
}

#[tokio::test]
async fn shells_of_a_program_that_knows_nothing_of_it_end_at_their_time() {
    let (room, _operator) = set_up("shells").await;
    let breaker = json!({
        "apiVersion": "spillway.dev/v1alpha1", "kind": "Breaker", "metadata": {"name": "strict"},
        "spec": {"commands": {"session": {"failureThreshold": 3}, "openSeconds": 600}},
    });
    room.api::<Breaker>()
        .patch("strict", &PatchParams::apply("e2e").force(), &Patch::Apply(breaker))
        .await
        .expect("the Breaker is accepted");
    // The shell is found on the PATH, by its path, and by its path with only its command left. A step of the script
    // itself may take longer. Then too many commands have hung.
    let script = r#"
        "$shell" -c 'sleep 98761; true' 2> path-errors; echo "path $?" > path
        { /bin/sh -c 'sleep 98761; true'; echo "absolute $?" > absolute; } 2>&1 | cat > absolute-errors
        /bin/sh -c 'sleep 98761'; echo "simple $?" > simple
        sleep 8; echo "step $?" > step
        "$shell" -c 'touch refused-ran' 2> refused-errors; echo "refused $?" > refused"#;
    let agent = ran(&room, script, json!({})).await;
    for (name, code) in [("path", 124), ("absolute", 143), ("simple", 143), ("step", 0), ("refused", 125)] {
        assert_eq!(file(&room, &agent, name).await, format!("{name} {code}\n"));
    }
    for (name, words) in [
        ("path-errors", "sh timed out after 3 s"),
        ("path-errors", "spec.agent.untimedCommands"),
        ("absolute-errors", "sh (sleep) ran longer than the time limit of commands"),
        ("refused-errors", "bash circuit breaker open for session"),
    ] {
        let said = file(&room, &agent, name).await;
        assert!(said.contains(words), "{words} is not said: {said}");
    }
    let left =
        sh(&room, &agent, "ls /tmp/refused-ran; cat /proc/[0-9]*/cmdline 2> /dev/null | tr '\\0' '\\n' | grep -c -x '9876[1]'").await;
    assert_eq!(left.out.trim(), "0", "{left:?}");
    eventually("the agent's status counts the opening of its breaker", async || {
        let counted = room.api::<Agent>().get(&agent).await.map_err(|error| error.to_string())?.status.and_then(|status| status.timeouts);
        check_state(counted == Some(1), || format!("{counted:?}"))
    })
    .await;
    room.close().await;
}

#[tokio::test]
async fn what_ran_before_a_model_answered_goes_on_and_what_runs_after_it_has_a_time() {
    let (room, _operator) = set_up("answered").await;
    let provider = Scripted::serve(&room).await;
    let script = r#"
        "$shell" -c 'sleep 98761; true' & first=$!
        /bin/sh -c 'sleep 98762; true' & second=$!
        sleep 8
        wget -q -Y off -O answer --header 'content-type: application/json' \
            --post-data '{"model": "scripted-large", "messages": [{"role": "user", "content": "hello"}]}' "$OPENAI_BASE_URL/chat/completions"
        echo "answer $?" > answered
        "$shell" -c 'sleep 98763; true'; echo "path $?" > path
        /bin/sh -c 'sleep 98763; true'; echo "absolute $?" > absolute
        kill -0 $first && kill -0 $second && echo alive > helpers"#;
    let agent = ran(&room, script, json!({"models": [provider.entry("gpt", "OpenAIChat")]})).await;
    let mut said = Vec::new();
    for name in ["answered", "path", "absolute", "helpers"] {
        said.push(file(&room, &agent, name).await);
    }
    assert_eq!(said, ["answer 0\n", "path 124\n", "absolute 143\n", "alive\n"]);
    room.close().await;
}

#[tokio::test]
async fn what_a_pool_says_is_meant_to_stay_has_no_time() {
    let (room, _operator) = set_up("untimed").await;
    let script = r#"
        "$shell" -c 'sleep 8; exit 5'; echo "path $?" > path
        /bin/sh -c 'sleep 8; exit 5'; echo "absolute $?" > absolute
        "$shell" -c 'while :; do :; done'; echo "other $?" > other"#;
    let agent = ran(&room, script, json!({"agent": {"untimedCommands": ["sleep"]}})).await;
    for (name, code) in [("path", 5), ("absolute", 5), ("other", 124)] {
        assert_eq!(file(&room, &agent, name).await, format!("{name} {code}\n"));
    }
    room.close().await;
}
