//! The ledger of budgets: holds and settles a second in memory ([`memory`]), which needs no cluster, and written
//! records a second ([`records`]), which need one.

mod memory;
mod records;
mod world;

use crate::report::Report;
use crate::size::Size;

/// Runs the benchmark. The part that needs a cluster runs only with one.
pub async fn run(size: Size, cluster: bool) -> anyhow::Result<Vec<Report>> {
    let mut reports = memory::run(size)?;
    if cluster {
        reports.push(records::run(size).await?);
    } else {
        println!("  no cluster: how many records can be written a second is not measured");
    }
    Ok(reports)
}
