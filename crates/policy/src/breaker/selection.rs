//! Which of several Breakers applies to a pool: the one that names it with the fewest other pools, then one for all
//! pools. Of two equal ones the first by name applies.

/// A Breaker that may apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// Its name.
    pub name: &'a str,
    /// The pools that it is for; empty: all.
    pub pools: &'a [String],
}

/// The name of the Breaker that applies to `pool`.
pub fn choose<'a>(pool: &str, candidates: impl IntoIterator<Item = Candidate<'a>>) -> Option<&'a str> {
    let for_it = candidates.into_iter().filter(|one| one.pools.is_empty() || one.pools.iter().any(|name| name == pool));
    let chosen = for_it.min_by_key(|one| (if one.pools.is_empty() { usize::MAX } else { one.pools.len() }, one.name));
    chosen.map(|one| one.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_specific_holds_and_then_the_first_by_name() {
        let pools = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let (all, ab, abc, b) = (pools(&[]), pools(&["a", "b"]), pools(&["a", "b", "c"]), pools(&["b"]));
        let set = |name, pools| Candidate { name, pools };
        let candidates = [set("default", &all), set("z", &abc), set("y", &ab), set("x", &ab), set("w", &b), set("early", &all)];
        let cases = [("a", Some("x")), ("b", Some("w")), ("c", Some("z")), ("d", Some("default"))];
        for (pool, expected) in cases {
            assert_eq!(choose(pool, candidates), expected, "{pool}");
            assert_eq!(choose(pool, candidates.into_iter().rev()), expected, "whatever the order");
        }
        assert_eq!(choose("a", [set("w", &b)]), None);
    }
}
