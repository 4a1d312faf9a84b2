//! Egress: what the programs of a pool reach besides models, through the sidecar's proxy and the gateway, to real servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kube::ResourceExt as _;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use spillway::api::Agent;
use spillway::api::work_item::WorkItemPhase::{Cancelled, Leased};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::support::exec::{exec, sh};
use crate::support::history::has_condition;
use crate::support::operator::free_listener;
use crate::support::{Operator, TestNamespace, check_state, eventually};

/// Runs until the agent is asked to end.
const QUIET: &str = "trap 'exit 0' TERM; while :; do sleep 1000 & wait $!; done";

/// A server on the node: it answers an HTTP request with its name, and echoes the lines of any other client.
struct Server {
    port: u16,
    connections: Arc<AtomicUsize>,
    open: Arc<AtomicUsize>,
}

impl Server {
    async fn start(namespace: &TestNamespace) -> Self {
        let listener = free_listener(namespace.node);
        listener.set_nonblocking(true).expect("a listener of tokio");
        let listener = TcpListener::from_std(listener).expect("a listener of tokio");
        let port = listener.local_addr().expect("its address").port();
        let (connections, open) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let server = Self { port, connections: connections.clone(), open: open.clone() };
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let open = open.clone();
                connections.fetch_add(1, Ordering::SeqCst);
                open.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(async move {
                    serve(stream).await;
                    open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        server
    }

    /// Connections that are open.
    fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    /// Connections so far.
    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

async fn serve(mut stream: TcpStream) {
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
        let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
        let answer = if text.starts_with("GET ") {
            let host = text.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("host: ").map(str::to_owned));
            let body = format!("served {}", host.unwrap_or_default());
            format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
        } else {
            text
        };
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// A namespace whose gateway knows some names, with one idle agent of a pool with these outputs.
async fn opened(name: &str, platform: impl Fn(u16) -> Value, pool: impl Fn(u16) -> Value) -> (TestNamespace, Operator, Server, Agent) {
    let namespace = TestNamespace::open(name).await;
    let server = Server::start(&namespace).await;
    let node = namespace.node;
    // The gateway asks for full names, with a dot at their end.
    let hosts = format!(
        "127.0.0.1 localhost\n{node} files.example.test. inside.example.test. other.example.test.\n\
         169.254.169.254 metadata.example.test.\n127.0.0.1 loopback.example.test.\n"
    );
    std::fs::write(namespace.hosts_file(), hosts).expect("a file");
    std::fs::write(namespace.egress_file(), platform(server.port).to_string()).expect("a file");
    namespace.kill_gateway();
    namespace.start_gateway("gateway");
    let operator = namespace.operator("one");
    operator.leads(&namespace).await;
    let agent = json!({"replicas": 1, "agent": {"command": ["/bin/sh", "-c", QUIET]}});
    let mut spec = pool(server.port);
    spec.as_object_mut().expect("an object").extend(agent.as_object().expect("an object").clone());
    // For pools that take items. Without it they would be blocked.
    namespace.apply_queue("bugs", json!({})).await;
    namespace.apply_pool("coders", spec).await;
    let agent = namespace.wait_until_idle("coders", 1).await.remove(0);
    (namespace, operator, server, agent)
}

fn platform(port: u16) -> Value {
    json!({
        "deny": ["other.example.test:*"],
        "allowPrivate": [format!("files.example.test:{port}"), format!("other.example.test:{port}")],
        "allowSets": {"files": [format!("files.example.test:{port}")]},
    })
}

fn listed(port: u16) -> Value {
    let allow = ["inside", "other", "metadata", "loopback", "absent"].map(|host| format!("{host}.example.test:{port}"));
    json!({"sandbox": {"outputs": {"egress": "AllowList", "allow": allow, "allowSets": ["files"]}}})
}

/// The head of the proxy's answer to a `CONNECT` with this destination.
async fn connect(namespace: &TestNamespace, pod: &str, destination: &str) -> String {
    let script = r#"printf 'CONNECT %s HTTP/1.1\r\nHost: x\r\n\r\n' "$0" | nc -w 20 127.0.0.1 4102 | head -c 2000"#;
    exec(namespace, pod, &["/bin/sh", "-c", script, destination]).await.out
}

/// The status and the reason of such a head.
fn verdict(head: &str) -> (String, String) {
    let status = head.split_whitespace().nth(1).unwrap_or_default().to_owned();
    let reason = head.lines().find_map(|line| line.trim().strip_prefix("spillway-denied: ")).unwrap_or_default().to_owned();
    (status, reason)
}

#[tokio::test]
async fn a_program_reaches_what_its_pool_lists_and_nothing_else() {
    let (namespace, _operator, server, agent) = opened("egress", platform, listed).await;
    let (pod, port) = (agent.name_any(), server.port);
    // As clients do: by the proxy in their environment.
    let fetched = sh(&namespace, &pod, &format!("wget -q -O - http://files.example.test:{port}/x")).await;
    assert_eq!(fetched.ok(), format!("served files.example.test:{port}"));
    // A tunnel carries whatever the program sends, as it comes.
    let tunnel = format!(
        "{{ printf 'CONNECT files.example.test:{port} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n'; sleep 1; echo one; sleep 1; echo two; sleep 1; }} \
         | nc -w 20 127.0.0.1 4102 | tail -n 2"
    );
    assert_eq!(sh(&namespace, &pod, &tunnel).await.ok(), "one\ntwo\n");
    let before = server.connections();
    let denied = [
        (format!("unlisted.example.test:{port}"), "NotListed"),
        ("files.example.test:443".to_owned(), "NotListed"),
        (format!("x.files.example.test:{port}"), "NotListed"),
        (format!("inside.example.test:{port}"), "NotPublic"),
        (format!("metadata.example.test:{port}"), "NotPublic"),
        (format!("loopback.example.test:{port}"), "NotPublic"),
        (format!("other.example.test:{port}"), "DeniedByPlatform"),
        (format!("{}:{port}", namespace.node), "HostIsAddress"),
        (format!("127.0.0.1:{port}"), "HostIsAddress"),
    ];
    for (destination, reason) in denied {
        let head = connect(&namespace, &pod, &destination).await;
        assert_eq!(verdict(&head), ("403".to_owned(), reason.to_owned()), "{destination}: {head}");
    }
    let absent = connect(&namespace, &pod, &format!("absent.example.test:{port}")).await;
    assert_eq!(verdict(&absent), ("502".to_owned(), "destination_unreachable".to_owned()), "{absent}");
    assert_eq!(server.connections(), before, "no denied request reached the server");
    // A program that ignores the proxy reaches nothing.
    let around = sh(&namespace, &pod, &format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 {} {port}", namespace.node)).await;
    assert!(!around.out.starts_with("served"), "{around:?}");
    assert_eq!(server.connections(), before);
    namespace.close().await;
}

/// Spellings of hosts by which programs got past the rules of other proxies: each row is sent as it stands.
#[tokio::test]
async fn tricks_with_hosts_reach_nothing() {
    let open = |_| json!({"sandbox": {"outputs": {"egress": "Open"}}});
    let (namespace, _operator, server, agent) = opened("egresstricks", platform, open).await;
    let (pod, port) = (agent.name_any(), server.port);
    let files = format!("files.example.test:{port}");
    assert_eq!(verdict(&connect(&namespace, &pod, &files).await), ("403".to_owned(), "PortNotOpen".to_owned()));
    let rows: Vec<String> = [
        "2130706433:443",
        "0x7f000001:443",
        "0X7f.0.0.1:443",
        "0177.0.0.1:443",
        "127.1:443",
        "127.0.0.1:443",
        "0:443",
        "0.0.0.0:443",
        "169.254.169.254:443",
        "2852039166:443",
        "0xa9fea9fe:443",
        "0251.0376.0251.0376:443",
        "100.100.100.200:443",
        "168.63.129.16:443",
        "[::1]:443",
        "[::]:443",
        "[::ffff:127.0.0.1]:443",
        "[::ffff:a9fe:a9fe]:443",
        "[fd00:ec2::254]:443",
        "[fe80::1%25eth0]:443",
        "[64:ff9b::7f00:1]:443",
        "::1:443",
        "localhost:443",
        "localhost.:443",
        "LOCALHOST:443",
        "kubernetes:443",
        "files.example.test.:443",
        ".files.example.test:443",
        "files..example.test:443",
        "user@files.example.test:443",
        "user:secret@files.example.test:443",
        "files.example.test@127.0.0.1:443",
        "files.example.test%2e:443",
        "files.example.test%00.example.org:443",
        "files.example.test#@example.org:443",
        "files.example.test/../x:443",
        "files.example.test\\example.org:443",
        "*.example.test:443",
        "files_example.test:443",
        "files.example.test:0443",
        "files.example.test:+443",
        "files.example.test:443:443",
        "files.example.test:",
        "files.example.test",
        "files.example.test:0",
        "files.example.test:65536",
        "-files.example.test:443",
        "файлы.example.test:443",
        "http://files.example.test:443",
        "loopback.example.test:443",
        "metadata.example.test:443",
        "inside.example.test:443",
        "other.example.test:443",
    ]
    .map(str::to_owned)
    .into();
    assert!(rows.len() >= 40);
    for row in rows {
        let head = connect(&namespace, &pod, &row).await;
        let (status, reason) = verdict(&head);
        assert!(status == "400" || (status == "403" && !reason.is_empty()), "{row:?}: {head:?}");
    }
    assert_eq!(server.connections(), 0, "no row reached the server");
    namespace.close().await;
}

/// A tunnel of a program, from its start on.
async fn begin_tunnel(namespace: &TestNamespace, pod: &str, destination: &str) {
    let script = r#"(
        { printf 'CONNECT %s HTTP/1.1\r\nHost: x\r\n\r\n' "$0"; sleep 600; } |
            { nc 127.0.0.1 4102 > /tmp/tunnel; echo over >> /tmp/tunnel; }
    ) > /dev/null 2>&1 &"#;
    exec(namespace, pod, &["/bin/sh", "-c", script, destination]).await.ok();
    eventually("the tunnel is open", async || {
        let said = sh(namespace, pod, "cat /tmp/tunnel").await.out;
        check_state(said.starts_with("HTTP/1.1 200"), || said)
    })
    .await;
}

#[tokio::test]
async fn a_connection_ends_with_its_gateway_and_with_its_agent() {
    let (namespace, _operator, server, agent) = opened("egressends", platform, listed).await;
    let (pod, destination) = (agent.name_any(), format!("files.example.test:{}", server.port));
    begin_tunnel(&namespace, &pod, &destination).await;
    namespace.kill_gateway();
    eventually("the program sees the end of its connection", async || {
        let said = sh(&namespace, &pod, "cat /tmp/tunnel").await.out;
        check_state(said.contains("over"), || said)
    })
    .await;
    namespace.start_gateway("gateway-2");
    eventually("another gateway serves the next connection", async || {
        let said = sh(&namespace, &pod, &format!("wget -q -O - http://{destination}/")).await;
        check_state(said.out.starts_with("served"), || format!("{said:?}"))
    })
    .await;
    begin_tunnel(&namespace, &pod, &destination).await;
    assert_eq!(server.open(), 1);
    // The pod is there still when its agent was revoked: the gateway ends what it has open.
    namespace.api::<Agent>().delete(&pod, &DeleteParams::default()).await.expect("the Agent is deleted");
    eventually("the server sees the end of the connection", async || check_state(server.open() == 0, || "it is open".into())).await;
    namespace.close().await;
}

#[tokio::test]
async fn denials_count_for_supervision_and_a_wrong_list_is_named() {
    let rule = json!([{"signal": "RuleViolated", "rule": "NetworkDenied", "count": 3, "windowSeconds": 600, "do": "Pause"}]);
    let pool = |port| {
        let mut spec = listed(port);
        spec["supervision"] = json!({"mode": "Enforce", "rules": rule});
        spec
    };
    let (namespace, _operator, server, agent) = opened("egresssignal", platform, pool).await;
    let pod = agent.name_any();
    for _ in 0..3 {
        let head = connect(&namespace, &pod, "unlisted.example.test:443").await;
        assert_eq!(verdict(&head).1, "NotListed", "{head}");
    }
    let agents = namespace.api::<Agent>();
    let paused = eventually("the supervision pauses the agent", async || {
        let agent = agents.get(&pod).await.map_err(|error| error.to_string())?;
        check_state(has_condition(&agent, "Paused", "True", "PausedBySupervisor"), || format!("{:?}", agent.status)).map(|()| agent)
    })
    .await;
    let interventions = paused.status.and_then(|status| status.interventions).unwrap_or_default();
    let last = interventions.last().expect("an intervention is recorded");
    assert_eq!((last.signal.as_str(), last.action.as_str()), ("RuleViolated/NetworkDenied", "Pause"), "{last:?}");
    let refused = connect(&namespace, &pod, &format!("files.example.test:{}", server.port)).await;
    assert_eq!(verdict(&refused), ("403".to_owned(), "not_working".to_owned()), "{refused}");
    let wrong = json!({"replicas": 1, "sandbox": {"outputs": {"egress": "AllowList", "allowSets": ["nix"]}}});
    namespace.apply_pool("wrong", wrong).await;
    let (reason, message) = namespace.pool_says("wrong", "Blocked", "True").await;
    assert_eq!(reason, "InvalidEgress");
    assert!(message.contains("no set nix") && message.contains("files"), "{message}");
    namespace.close().await;
}

#[tokio::test]
async fn an_item_narrows_what_its_agent_reaches() {
    let pool = |port| {
        let mut spec = listed(port);
        spec["queues"] = json!([{"name": "bugs"}]);
        spec
    };
    let (namespace, _operator, server, agent) = opened("itemegress", platform, pool).await;
    let (pod, port) = (agent.name_any(), server.port);
    let listed = format!("inside.example.test:{port}");
    let items = [
        ("wide", json!({"egress": "Open"}), "200"),
        ("none", json!({"egress": "None"}), "403 NotListedByItem"),
        ("other", json!({"egress": "AllowList", "allow": [listed]}), "403 NotListedByItem"),
        ("set", json!({"egress": "AllowList", "allowSets": ["files"]}), "200"),
    ];
    for (name, outputs, expected) in items {
        namespace.submit("bugs", name, json!({"bulkhead": {"sandbox": {"outputs": outputs}}})).await;
        namespace.wait_for_item_phase(name, Leased).await;
        let head = connect(&namespace, &pod, &format!("files.example.test:{port}")).await;
        let (status, reason) = verdict(&head);
        assert_eq!(format!("{status} {reason}").trim(), expected, "{name}: {head}");
        namespace.change_item(name, json!({"cancelRequested": true})).await;
        namespace.wait_for_item_phase(name, Cancelled).await;
    }
    // Without an item the lists of the pool hold.
    let head = connect(&namespace, &pod, &format!("files.example.test:{port}")).await;
    assert_eq!(verdict(&head).0, "200", "{head}");
    namespace.close().await;
}
