//! Support code of the tests.

pub mod audit;
pub mod caller;
#[path = "../../bench/cgroup.rs"]
pub mod cgroup;
pub mod exec;
pub mod fake;
pub mod fleet;
pub mod gateways;
pub mod git_http;
pub mod git_server;
pub mod history;
pub mod hosts_file;
pub mod kills;
pub mod mcp;
pub mod models;
pub mod neighbours;
pub mod node;
pub mod operator;
pub mod outside;
pub mod proxy;
pub mod restarted;
pub mod schema;
pub mod small_volume;
pub mod standins;
pub mod stopped;
pub mod test_namespace;
pub mod track;
pub mod witness;
pub mod work;

use std::path::{Path, PathBuf};
use std::time::Duration;

pub use operator::Operator;
pub use test_namespace::TestNamespace;

/// Longer than any step takes on a loaded machine.
pub const GENEROUS: Duration = Duration::from_secs(300);

/// The kubectl plugin: `SPILLWAY_PLUGIN`, which `make e2e` sets, or else the binary beside the operator of this build.
/// Cargo builds no binary of another package for a test.
pub fn plugin_path() -> PathBuf {
    let built = || Path::new(env!("CARGO_BIN_EXE_spillway")).with_file_name("kubectl-spillway");
    let path = std::env::var_os("SPILLWAY_PLUGIN").map_or_else(built, PathBuf::from);
    assert!(path.exists(), "{} is missing: `cargo build -p kubectl-spillway` builds it, or SPILLWAY_PLUGIN names one", path.display());
    path
}

/// Waits until `look` succeeds. After `limit` it fails with `what` and the last result.
pub async fn within<T, F>(limit: Duration, what: &str, mut look: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, String>>,
{
    let started = std::time::Instant::now();
    loop {
        let last = match look().await {
            Ok(found) => return found,
            Err(last) => last,
        };
        assert!(started.elapsed() < limit, "still waiting after {} s until {what}; last seen: {last}", limit.as_secs());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Like [`within`], with a generous limit.
pub async fn eventually<T, F>(what: &str, look: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, String>>,
{
    within(GENEROUS, what, look).await
}

/// `Ok` if `holds`, else the observed value.
pub fn check_state(holds: bool, instead: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(instead()) }
}
