//! Calls of Toolsets from agents' containers, as MCP clients make them. The image has busybox alone, so the client is a shell function.

use super::TestNamespace;
use super::exec::sh;

/// Shell functions that print the answer of the first Toolset of the pool, or of the one at the URL of the last argument:
/// `call TOOL ARGUMENTS` to a call of a tool, `execute PROGRAM ARGUMENTS` to one of a program, and `request METHOD PARAMS` to any request.
const FUNCTIONS: &str = r#"
request() {
    wget -Y off -q -O - --header 'Content-Type: application/json' --header 'Accept: application/json, text/event-stream' \
        --header 'MCP-Protocol-Version: 2025-11-25' --post-data "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"$1\",\"params\":$2}" \
        "${3:-$SPILLWAY_MCP_URL}" 2>&1
}
call() {
    request tools/call "{\"name\":\"$1\",\"arguments\":$2}" $3
}
execute() {
    call execute "{\"program\":\"$1\",\"args\":$2}" $3
}
"#;

/// Runs a script that calls tools in the agent's container, and returns what it printed.
pub async fn with_tools(namespace: &TestNamespace, agent: &str, script: &str) -> String {
    sh(namespace, agent, &format!("{FUNCTIONS}\n{script}")).await.out
}

/// The same, and goes on after a second while the script runs. What it prints is dropped.
pub async fn begin_with_tools(namespace: &TestNamespace, agent: &str, script: &str) {
    // The shell lets go of its output, or this would wait for the script.
    sh(namespace, agent, &format!("{FUNCTIONS}\nexec >/dev/null 2>&1\n{{ {script}; }} & sleep 1")).await;
}
