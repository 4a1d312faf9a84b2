//! The outcome of items: whether each was given out and done once, and which calls of workers failed.

use std::collections::{BTreeMap, HashSet};

use super::Stage;
use crate::hands::Log;
use crate::report::{Row, float};

/// Items that were lost, given out twice or finished twice, of `made` items. `left`: items that were not collected.
pub fn exactly_once_rows(made: usize, log: &Log, left: usize) -> Vec<Row> {
    let claimed: HashSet<&str> = log.claims.iter().map(|claim| claim.item.as_str()).collect();
    let ended: HashSet<&str> = log.ends.iter().map(|end| end.held.uid.as_str()).collect();
    let number = |what: &str, count: usize| Row::one(what, float(count), "");
    vec![
        number("items that were made", made),
        number("items that were not given out", made.saturating_sub(claimed.len())).goal("0"),
        number("items that were not finished", made.saturating_sub(ended.len())).goal("0"),
        number("claims beyond one an item", log.claims.len() - claimed.len()).goal("0"),
        number("ends taken beyond one an item", log.ends.len() - ended.len()).goal("0"),
        number("finished items that were not collected", left),
    ]
}

/// The workers' calls that were refused, or not answered, since the last call of this.
pub fn troubles(stage: &Stage) -> Vec<Row> {
    let mut counts = BTreeMap::<String, usize>::new();
    for sample in stage.fleet.samples() {
        if let Some(trouble) = sample.failure {
            *counts.entry(format!("calls that failed: {}: {trouble}", sample.call)).or_default() += 1;
        }
    }
    counts.into_iter().map(|(what, count)| Row::one(what, float(count), "")).collect()
}

/// Prints why some items could not be made.
pub fn print_create_errors<'a>(why: impl Iterator<Item = &'a String>) {
    why.collect::<HashSet<_>>().into_iter().for_each(|why| println!("  an item could not be made: {why}"));
}
