//! Conformance with HTTP/2, tested by h2spec.

use std::process::Command;

use axum::body::Bytes;
use spillway::serve::Bounds;
use spillway::telemetry::Metrics;

use crate::world::TestCluster;

/// Answers when a request is complete. A gateway answers h2spec, which has no token, at once, and then chance would
/// decide whether a later fault is read before the answer.
async fn answer(body: Bytes) -> String {
    format!("{} bytes", body.len())
}

/// `make h2spec` builds the program and names it in H2SPEC. Without H2SPEC the test does nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h2spec_passes() {
    let Some(program) = std::env::var_os("H2SPEC") else {
        println!("H2SPEC names no program: see `make h2spec`");
        return;
    };
    let world = TestCluster::new().await;
    let routes = axum::Router::new().fallback(answer);
    let port = world.listen(routes, Metrics::default(), Bounds::AGENTS).await.port().to_string();
    let report = world.folder.join("h2spec.xml");
    let mut command = Command::new(program);
    command.args(["--host", "127.0.0.1", "--port", &port, "--tls", "--insecure", "--junit-report"]).arg(&report);
    let output = tokio::task::spawn_blocking(move || command.output()).await.expect("no panic").expect("h2spec runs");
    let report = std::fs::read_to_string(report).expect("a report");
    let cases = report.matches("<testcase ").count();
    let failed = report.matches("<failure").count() + report.matches("<error").count();
    assert!(cases > 140, "{cases} cases ran");
    assert!(output.status.success() && failed == 0, "{failed} failed: {}", String::from_utf8_lossy(&output.stdout));
}
