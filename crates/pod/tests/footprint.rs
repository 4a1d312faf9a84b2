//! The memory of both programs of a pod when they are idle. A measurement, not a test:
//! `SPILLWAY_POD_BINARY=<static release binary> cargo test -p spillway-pod --test footprint -- --ignored --nocapture`

mod common;

use std::fs;

use common::supervised::Supervised;
use common::{FakeGateway, Folder, start_link_with};
use serde_json::json;

fn memory(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
    let value = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_whitespace().nth(1).and_then(|value| value.parse::<u64>().ok()).unwrap_or(0)
    };
    println!(
        "VmRSS {} kB, of it RssAnon {} kB, VmHWM {} kB, threads {}",
        value("VmRSS"),
        value("RssAnon"),
        value("VmHWM"),
        value("Threads")
    );
    value("VmRSS")
}

#[test]
#[ignore = "a measurement"]
fn both_programs_idle() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    gateway.set("canaries", json!(["192.0.2.1:443"]));
    let link = start_link_with(&folder, &gateway, &["--first-port", &common::ports().to_string()]);
    // With the sandbox of a pool that sets nothing, and the thread that counts what it refuses.
    let agent = Supervised::start_with(&folder, &[], &["sh", "-c", "echo ready; exec sleep 1000"], |command| {
        command.env("SPILLWAY_SANDBOX", "{}");
    });
    agent.wait_output("ready");
    gateway.wait("/report", 8, |call| call.status == 200);
    println!("{}", common::BINARY);
    let together = memory(link.pid()) + memory(agent.pid);
    println!("together {together} kB");
    assert!(together < 16 * 1024, "the goal is 16 MiB");
}
