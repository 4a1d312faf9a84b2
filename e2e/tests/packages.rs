//! Package managers, unchanged, get packages from their real registries through the allow list, and nothing without it.
//!
//! `make e2e-packages` runs this test. Its image is large and the registries are outside, so other runs leave it out. The
//! test knows no host: it does what a platform team does, and adds the hosts that the gateway's log shows as denied.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Value, json};
use spillway::api::work_item::WorkItemPhase::{DeadLettered, Succeeded};

use crate::support::outside::Outside;
use crate::support::work::phase;
use crate::support::{Operator, TestNamespace, check_state, within};

/// A project of each package manager: its name, a script that gets a package and uses it, and the last line that it prints.
const PROJECTS: [(&str, &str, &str); 4] = [
    (
        "npm",
        r#"export npm_config_fetch_retries=0 npm_config_audit=false npm_config_fund=false npm_config_update_notifier=false
        echo '{"name": "project", "version": "1.0.0", "dependencies": {"ms": "2.1.3"}}' > package.json
        npm install --package-lock-only
        npm cache clean --force
        npm ci
        node -p 'require("ms")("2 days")'"#,
        "172800000",
    ),
    (
        "pip",
        r#"python3 -m pip install --retries 0 --no-cache-dir --disable-pip-version-check --target packages six==1.17.0
        PYTHONPATH=packages python3 -c 'import six; print(six.__version__)'"#,
        "1.17.0",
    ),
    (
        "cargo",
        r#"export CARGO_NET_RETRY=0
        mkdir src
        printf '[package]\nname = "project"\nversion = "1.0.0"\nedition = "2024"\n[dependencies]\nitoa = "=1.0.15"\n' > Cargo.toml
        echo 'pub fn text(number: u8) -> String { itoa::Buffer::new().format(number).to_owned() }' > src/lib.rs
        cargo build
        basename target/debug/libproject.rlib"#,
        "libproject.rlib",
    ),
    (
        "go",
        r#"printf 'package main\n\nimport (\n"fmt"\n"github.com/google/uuid"\n)\n\nfunc main() { fmt.Println(uuid.Nil) }\n' > main.go
        go mod init example.com/project
        go get github.com/google/uuid@v1.6.0
        go build -o program .
        ./program"#,
        "00000000-0000-0000-0000-000000000000",
    ),
];
/// A program whose task is one of the scripts.
const RUN_TASK: &str = "cd \"$(mktemp -d)\"; eval \"$(cat)\" 2>&1";
/// Go compiles its library, with one core.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(900);

/// What the platform allows: one set of hosts, whose addresses may be private, because they are those of [`Outside`]. A set is
/// not empty, so there is one host more.
fn platform(hosts: &BTreeSet<String>) -> Value {
    let listed: Vec<String> = hosts.iter().map(|host| format!("{host}:443")).chain(["none.example.test:443".to_owned()]).collect();
    json!({"allowPrivate": listed, "allowSets": {"packages": listed}})
}

/// Restarts the controller and the gateway with these rules, as a change of the chart's values does.
async fn restart(namespace: &TestNamespace, round: usize, hosts: &BTreeSet<String>, before: Option<Operator>) -> Operator {
    drop(before);
    // The gateway asks for full names, with a dot at their end.
    let names: String = hosts.iter().map(|host| format!(" {host}.")).collect();
    std::fs::write(namespace.hosts_file(), format!("127.0.0.1 localhost\n{}{names}\n", namespace.node)).expect("a file");
    std::fs::write(namespace.egress_file(), platform(hosts).to_string()).expect("a file");
    namespace.kill_gateway();
    namespace.start_gateway(&gateway(round));
    let operator = namespace.operator(&format!("operator-{round}"));
    operator.leads(namespace).await;
    operator
}

fn gateway(round: usize) -> String {
    format!("gateway-{round}")
}

/// The hosts that the gateway of a round denied because no list has them, by the UID of the item that wanted them.
fn denied(namespace: &TestNamespace, round: usize) -> BTreeMap<String, BTreeSet<String>> {
    let name = format!("e2e-logs/{}-{}.log", namespace.namespace, gateway(round));
    let log = std::fs::read_to_string(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)).expect("a log");
    let mut denied: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let text = |field: &str| line[field].as_str().unwrap_or_default();
        if text("message") == "egress" && text("decision") == "NotListed" {
            let destination = text("destination").trim_matches('"');
            let host = destination.strip_suffix(":443").unwrap_or_else(|| panic!("not HTTPS: {line}"));
            denied.entry(text("item").to_owned()).or_default().insert(host.to_owned());
        }
    }
    denied
}

#[tokio::test]
#[ignore = "it needs the image of package managers, and registries: make e2e-packages"]
async fn package_managers_reach_their_registries_by_the_allow_list_and_not_without_it() {
    let namespace = TestNamespace::open("packages").await;
    let outside = Outside::open(namespace.node);
    let mut hosts = BTreeSet::new();
    let mut operator = restart(&namespace, 0, &hosts, None).await;
    namespace.apply_queue("code", json!({"itemDefaults": {"maxAttempts": 1}})).await;
    let resources = json!({"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"cpu": "2", "memory": "2Gi"}});
    // Each client has a setting of its own for root certificates, which may be those of a company's proxy. A program has no variable
    // of its image.
    let certificates = ["SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "PIP_CERT", "CARGO_HTTP_CAINFO"];
    let env = certificates.map(|name| json!({"name": name, "value": "/etc/ssl/certs/ca-certificates.crt"}));
    let env: Vec<Value> = env.into_iter().chain([json!({"name": "GOTOOLCHAIN", "value": "local"})]).collect();
    let spec = json!({
        "type": "worker", "replicas": 1, "queues": [{"name": "code"}],
        "sandbox": {"outputs": {"egress": "AllowList", "allowSets": ["packages"]}},
        "agent": {"image": "localhost/spillway/packages-agent:dev", "command": ["/bin/sh", "-e", "-c", RUN_TASK], "env": env, "resources": resources},
    });
    namespace.apply_pool("builders", spec).await;
    // A project that fails because of a denied host is tried again in the next round, with that host.
    let mut left = PROJECTS.to_vec();
    for round in 0.. {
        let names = left.iter().map(|(name, ..)| format!("{name}-{round}"));
        for (name, (_, script, _)) in names.clone().zip(&left) {
            namespace.submit("code", &name, json!({"payload": script})).await;
        }
        let mut failed = Vec::new();
        for (name, project) in names.zip(&left) {
            let item = within(PATIENCE, &format!("item {name} ends"), async || {
                let item = namespace.item(&name).await;
                check_state(matches!(phase(&item), Some(Succeeded | DeadLettered)), || format!("{:?}", item.status)).map(|()| item)
            })
            .await;
            let status = item.status.clone().unwrap_or_default();
            if phase(&item) == Some(Succeeded) {
                assert_ne!(round, 0, "{name} needs no registry: {status:?}");
                let result = status.result.unwrap_or_default();
                assert_eq!(result.trim().lines().last(), Some(project.2), "{name}: {result}");
                continue;
            }
            let missing = denied(&namespace, round).remove(item.metadata.uid.as_deref().unwrap_or_default()).unwrap_or_default();
            println!("{name} is denied {missing:?}");
            assert!(!missing.is_empty() && missing.is_disjoint(&hosts), "{name} failed, and no new host was denied: {status:?}");
            failed.push((*project, missing));
        }
        if failed.is_empty() {
            break;
        }
        left = failed.iter().map(|(project, _)| *project).collect();
        for host in failed.into_iter().flat_map(|(_, missing)| missing) {
            outside.allow(&host);
            hosts.insert(host);
        }
        operator = restart(&namespace, round + 1, &hosts, Some(operator)).await;
    }
    namespace.close().await;
    drop(operator);
}
