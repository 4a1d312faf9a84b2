//! The ledger of budgets: how many calls a second can be held for and settled in memory ([`memory`]), which needs no cluster,
//! and how many of its records can be written ([`records`]), which needs one.

mod memory;
mod records;
mod world;

use crate::report::Report;
use crate::size::Size;

/// Takes it; what needs a cluster only where there is one.
pub async fn run(size: Size, cluster: bool) -> anyhow::Result<Vec<Report>> {
    let mut reports = memory::run(size)?;
    if cluster {
        reports.push(records::run(size).await?);
    } else {
        println!("  no cluster: how many records can be written a second is not measured");
    }
    Ok(reports)
}
