//! The isolation of an agent's pod, tested from inside: the addresses that it can reach, the data that it can read, and
//! that its program does not run without isolation. Each refusal has a control: the same attempt succeeds in a pod
//! without isolation.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt;
use kube::api::{DeleteParams, LogParams, PostParams};
use serde_json::{Value, json};
use spillway::api::Agent;
use spillway::api::agent::AgentPhase::{Active, ForceStopped, Idle, Running, Spawning, Stale, Stopped};
use tokio::net::{TcpListener, UdpSocket};

use crate::support::exec::sh;
use crate::support::history::{History, condition, has_condition, phase, pod_uid};
use crate::support::{Operator, TestNamespace, check_state, eventually, node};

/// A pod without our isolation, with `command` in the image of the demo agent; its address.
async fn open_pod(room: &TestNamespace, name: &str, command: Value) -> IpAddr {
    let walls = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": true, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}});
    let pod = serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"terminationGracePeriodSeconds": 1, "containers":
        [{"name": "agent", "image": "localhost/spillway/demo-agent:dev", "command": command, "securityContext": walls}]}}))
    .expect("a pod");
    room.api::<Pod>().create(&PostParams::default(), &pod).await.expect("a pod of our own");
    eventually(&format!("{name} runs"), async || {
        let status = room.api::<Pod>().get(name).await.map_err(|error| error.to_string())?.status.expect("a status");
        let running = status.phase.as_deref() == Some("Running");
        let address = status.pod_ip.filter(|_| running).ok_or_else(|| format!("{:?}", status.phase))?;
        address.parse().map_err(|error| format!("{address}: {error}"))
    })
    .await
}

/// Removes the test's own pods.
async fn remove(room: &TestNamespace, pods: &[&str]) {
    for pod in pods {
        room.api::<Pod>().delete(pod, &DeleteParams::default()).await.expect("deleted");
    }
}

/// Tries to connect from the container `agent` of `pod` to each target; whether each connection was accepted.
async fn reaches(room: &TestNamespace, pod: &str, targets: &[SocketAddr]) -> BTreeMap<SocketAddr, bool> {
    let tries: Vec<String> = targets
        .iter()
        .map(|target| format!("nc -w 3 {} {} -e /bin/true 2>/dev/null && echo open || echo closed", target.ip(), target.port()))
        .collect();
    let said = sh(room, pod, &tries.join("\n")).await.ok();
    let found: Vec<bool> =
        said.lines().map(|line| if line == "open" || line == "closed" { line == "open" } else { panic!("{said}") }).collect();
    assert_eq!(found.len(), targets.len(), "{said}");
    targets.iter().copied().zip(found).collect()
}

/// A name server on the node that answers every name.
async fn name_server(room: &TestNamespace) -> SocketAddr {
    let socket = UdpSocket::bind((room.node, 0)).await.expect("a port");
    let address = socket.local_addr().expect("an address");
    tokio::spawn(async move {
        let mut question = [0_u8; 512];
        while let Ok((length, from)) = socket.recv_from(&mut question).await {
            // The question as an answer with one record: the name at offset 12 has the address 192.0.2.7.
            let mut answer = question[..length].to_vec();
            answer[2..4].copy_from_slice(&[0x81, 0x80]);
            answer[6..8].copy_from_slice(&[0, 1]);
            answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 7]);
            socket.send_to(&answer, from).await.expect("answered");
        }
    });
    address
}

#[tokio::test]
async fn an_agent_reaches_its_gateway_and_nothing_else() {
    let room = TestNamespace::open("reach").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    let listens = json!(["/bin/nc", "-ll", "-p", "8080", "-e", "/bin/true"]);
    let peer = open_pod(&room, "peer", listens).await;
    open_pod(&room, "open", json!(["/bin/sleep", "100000"])).await;
    room.apply_pool("walled", json!({"replicas": 2})).await;
    let agents = room.wait_until_idle("walled", 2).await;
    let (agent, other) = (agents[0].name_any(), agents[1].name_any());
    let at = |address: &str| address.parse::<SocketAddr>().expect("an address");
    let outside = [at("10.96.0.1:443"), SocketAddr::new(room.node, 6443), SocketAddr::new(room.node, 10250), SocketAddr::new(peer, 8080)];

    let mut targets = outside.to_vec();
    targets.push(room.gateway);
    let from_open = reaches(&room, "open", &targets).await;
    assert!(from_open.values().all(|open| *open), "without isolation all targets can be reached: {from_open:?}");
    let from_agent = reaches(&room, &agent, &targets).await;
    let open: Vec<_> = from_agent.iter().filter(|(_, open)| **open).map(|(target, _)| *target).collect();
    assert_eq!(open, [room.gateway]);

    // There is no ingress either: other pods do not reach a port that an agent listens on.
    sh(&room, &other, "nc -ll -p 9999 -e /bin/true > /dev/null 2>&1 &").await.ok();
    let listening = room.api::<Pod>().get(&other).await.expect("a pod").status.and_then(|status| status.pod_ip).expect("an address");
    let listening = SocketAddr::new(listening.parse().expect("an address"), 9999);
    eventually("the listener works inside its pod", async || {
        let own = reaches(&room, &other, &[at("127.0.0.1:9999"), listening]).await;
        check_state(own.values().all(|open| *open), || format!("{own:?}"))
    })
    .await;
    assert!(!reaches(&room, "open", &[listening]).await[&listening], "from a pod without isolation");
    assert!(!reaches(&room, &agent, &[listening]).await[&listening], "from an agent of the same pool");
    // Loopback answers: the sidecar serves errors there.
    let loopback = at("127.0.0.1:4102");
    assert!(reaches(&room, &agent, &[loopback]).await[&loopback]);
    remove(&room, &["open", "peer"]).await;
    room.close().await;
}

#[tokio::test]
async fn an_agents_questions_for_names_fail_at_once() {
    let room = TestNamespace::open("names").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    open_pod(&room, "open", json!(["/bin/sleep", "100000"])).await;
    room.apply_pool("walled", json!({"replicas": 1})).await;
    let agent = room.wait_until_idle("walled", 1).await.remove(0).name_any();
    let server = name_server(&room).await;
    let script = format!("nslookup -type=a example.org {server}");
    let answered = sh(&room, "open", &script).await;
    assert!(answered.out.contains("192.0.2.7"), "a pod without isolation is answered: {answered:?}");
    let refused = sh(&room, &agent, &script).await;
    assert!(refused.code != 0 && !refused.out.contains("192.0.2.7"), "{refused:?}");
    // Its own resolver address has no server: a query is refused at once, without a wait.
    let own = sh(&room, &agent, "cat /etc/resolv.conf; nslookup example.org").await;
    assert!(own.code != 0 && own.out.contains("nameserver 127.0.0.1") && own.err.contains("Connection refused"), "{own:?}");
    remove(&room, &["open"]).await;
    room.close().await;
}

/// A pattern for the beginning of every token, written so that it does not match itself.
const TOKEN: &str = "[e]yJhbGciOi";

#[tokio::test]
async fn an_agent_cannot_read_the_token_of_its_sidecar() {
    let room = TestNamespace::open("token").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    room.apply_pool("walled", json!({"replicas": 1})).await;
    let agent = room.wait_until_idle("walled", 1).await.remove(0);
    let (name, uid) = (agent.name_any(), pod_uid(&agent));

    // The sidecar has the token, and it matches the pattern.
    let link = node::link(&uid).expect("a sidecar");
    let token = std::fs::read_to_string(format!("/proc/{}/root/spillway/token/token", link.pid)).expect("the sidecar's token");
    assert!(token.starts_with("eyJhbGciOi"), "tokens begin in another way now: change TOKEN");
    let mounts = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).expect("mounts");
    assert!(mounts(link.pid).contains(" /spillway/token "));

    // The token is not mounted, and in no file, environment or command line.
    let supervisor = node::supervisor(&uid).expect("a supervisor");
    assert!(!mounts(supervisor.pid).contains("/spillway/token"));
    let search = async |what: &str| {
        let script = format!(
            "{{ find / -xdev -type f; find /spillway /workspace /home /tmp /dev/shm -type f; }} 2>/dev/null | sort -u | xargs -r grep -laE '{what}' 2>/dev/null
             for p in /proc/[0-9]*; do for f in environ cmdline; do tr '\\0' '\\n' < $p/$f 2>/dev/null | grep -qE '{what}' && echo $p/$f; done; done; true"
        );
        sh(&room, &name, &script).await.ok()
    };
    assert_eq!(search(TOKEN).await, "");
    // Control: the search finds a file of the program, and the environment of another process with its uid.
    sh(&room, &name, "echo eyJhbGciOi > /tmp/mine; X=eyJhbGciOi sleep 100000 > /dev/null 2>&1 & true").await.ok();
    let found = search(TOKEN).await;
    assert!(found.contains("/tmp/mine") && found.contains("/environ"), "{found:?}");
    let listed = sh(&room, &name, "find / -name token -not -path '/proc/*' 2>/dev/null; true").await.ok();
    assert_eq!(listed, "");

    // The sidecar's processes are in another PID namespace. The supervisor's memory cannot be read or traced: the
    // kernel checks both in the same way.
    let seen_by_it = sh(&room, &name, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").await.ok();
    assert!(seen_by_it.contains("spillway-agent agent") && !seen_by_it.contains("spillway-agent link"), "{seen_by_it}");
    let closed = "for f in mem maps environ auxv stack syscall; do head -c 1 /proc/$1/$f > /dev/null 2>&1 && echo $f; done; \
        for f in root cwd fd ns; do ls -l /proc/$1/$f/ > /dev/null 2>&1 && echo $f; done; \
        for f in /proc/$1/root/spillway /proc/$1/cwd/.; do ls $f > /dev/null 2>&1 && echo $f; done; true";
    let peeked = |pid: &str| format!("set -- {pid}; {closed}");
    assert_eq!(sh(&room, &name, &peeked("1")).await.ok(), "", "of the supervisor nothing");
    let own = sh(&room, &name, &peeked("$(pidof sleep | cut -d' ' -f1)")).await.ok();
    for file in ["maps", "environ", "root", "fd"] {
        assert!(own.lines().any(|line| line == file), "of a process of its own, much: {own:?}");
    }
    room.close().await;
}

/// An address that accepts connections, until this is dropped.
struct Listening(SocketAddr, tokio::task::JoinHandle<()>);

impl Listening {
    async fn on_the_node(room: &TestNamespace) -> Self {
        let listener = TcpListener::bind((room.node, 0)).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        Self(address, tokio::spawn(async move { while listener.accept().await.is_ok() {} }))
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.1.abort();
    }
}

/// A NetworkPolicy that lets all pods of the namespace reach `to`, like a network plugin that applies policies late.
async fn open_egress(room: &TestNamespace, to: SocketAddr) {
    let out = json!([{"to": [{"ipBlock": {"cidr": format!("{}/32", to.ip())}}], "ports": [{"protocol": "TCP", "port": to.port()}]}]);
    let policy = json!({"metadata": {"name": "hole"}, "spec": {"podSelector": {}, "policyTypes": ["Egress"], "egress": out}});
    let policy: NetworkPolicy = serde_json::from_value(policy).expect("a policy");
    room.api().create(&PostParams::default(), &policy).await.expect("a policy of our own");
}

async fn close_egress(room: &TestNamespace) {
    room.api::<NetworkPolicy>().delete("hole", &DeleteParams::default()).await.expect("deleted");
}

/// Checks that the agent's program does not start, and that the agent shows the reason.
fn held_back(agent: &Agent, reachable: SocketAddr) -> bool {
    let names_it = condition(agent, "Ready").is_some_and(|ready| ready.message.contains(&reachable.to_string()));
    has_condition(agent, "Ready", "False", "EgressNotEnforced")
        && has_condition(agent, "SandboxEnforced", "False", "EgressNotEnforced")
        && names_it
}

async fn output(room: &TestNamespace, name: &str) -> String {
    let params = LogParams { container: Some("agent".into()), ..LogParams::default() };
    room.api::<Pod>().logs(name, &params).await.expect("its output")
}

/// A program that prints that it began, and waits for SIGTERM.
const BEGINS: &str = "echo begun; trap 'exit 0' TERM; while :; do sleep 1000 & wait $!; done";

async fn with_canary(name: &str) -> (TestNamespace, Operator, History, Listening) {
    let room = TestNamespace::open(name).await;
    let canary = Listening::on_the_node(&room).await;
    let operator = Operator::start_with(&room, "one", None, &["--canary".into(), canary.0.to_string()]);
    operator.leads(&room).await;
    let history = History::start(&room);
    (room, operator, history, canary)
}

#[tokio::test]
async fn no_program_starts_before_its_walls_stand() {
    let (room, _operator, history, canary) = with_canary("canary").await;
    open_egress(&room, canary.0).await;
    let program = json!({"command": ["/bin/sh", "-c", BEGINS]});
    room.apply_pool("free", json!({"replicas": 1, "agent": program})).await;
    let (_, agent) = history.wait_for_agent("it is held back", |agent| held_back(agent, canary.0)).await;
    let (name, uid) = (agent.name_any(), pod_uid(&agent));
    assert_eq!(node::program(&uid), None, "only the supervisor runs");
    assert_eq!(output(&room, &name).await, "");
    assert_eq!(phase(&agent), Some(Running));
    room.wait_for_event(&name, "EgressNotEnforced", &canary.0.to_string()).await;
    room.pool_says("free", "Ready", "False").await;

    close_egress(&room).await;
    let started = room.wait_until_idle("free", 1).await.remove(0);
    assert_eq!(pod_uid(&started), uid, "the same pod goes on");
    assert!(!has_condition(&started, "SandboxEnforced", "False", "EgressNotEnforced"), "{:?}", started.status);
    eventually("the program begins", async || {
        let said = output(&room, &name).await;
        check_state(said == "begun\n", || said.clone())
    })
    .await;
    assert_eq!(history.phases(&name).await, [Spawning, Running, Idle]);
    room.close().await;
}

#[tokio::test]
async fn a_pod_whose_walls_never_stand_is_given_up_and_another_one_tried() {
    let (room, _operator, history, canary) = with_canary("never").await;
    open_egress(&room, canary.0).await;
    let program = json!({"command": ["/bin/sh", "-c", BEGINS]});
    room.apply_pool("free", json!({"replicas": 1, "agent": program, "supervision": {"startupTimeoutSeconds": 30}})).await;
    let (_, ended) = history.wait_for_agent("it is given up", |agent| phase(agent) == Some(ForceStopped)).await;
    let ready = condition(&ended, "Ready").expect("Ready");
    assert!(ready.reason == "StartTimedOut" && ready.message.contains(&canary.0.to_string()), "{ready:?}");
    assert_eq!(history.phases(&ended.name_any()).await, [Spawning, Running, Stale, ForceStopped]);
    history.wait_for_agent("another one is tried", |agent| agent.name_any() != ended.name_any() && held_back(agent, canary.0)).await;
    close_egress(&room).await;
    room.wait_until_idle("free", 1).await;
    room.close().await;
}

#[tokio::test]
async fn a_program_ends_when_its_walls_fall() {
    let (room, _operator, history, canary) = with_canary("fall").await;
    let program = json!({"command": ["/bin/sh", "-c", BEGINS]});
    room.apply_pool("free", json!({"replicas": 1, "agent": program})).await;
    let agent = room.wait_until_idle("free", 1).await.remove(0);
    let (name, uid) = (agent.name_any(), pod_uid(&agent));
    eventually("the program begins", async || {
        let said = output(&room, &name).await;
        check_state(said.starts_with("begun\n"), || said.clone())
    })
    .await;
    open_egress(&room, canary.0).await;
    // The sidecar probes each minute.
    let (_, ended) = history.wait_for_agent("it ended", |agent| agent.name_any() == name && phase(agent) == Some(Stopped)).await;
    let ready = condition(&ended, "Ready").expect("Ready");
    assert!(ready.reason == "PodFailed" && ready.message.contains("78"), "{ready:?}");
    assert!(output(&room, &name).await.contains(&canary.0.to_string()), "it says why");
    assert_eq!(node::program(&uid), None);
    assert!(!history.phases(&name).await.contains(&Active));
    history.wait_for_agent("its replacement is held back", |agent| agent.name_any() != name && held_back(agent, canary.0)).await;
    close_egress(&room).await;
    room.wait_until_idle("free", 1).await;
    room.close().await;
}
