//! When a map is searched for entries that are of no use any more: each time it has doubled since the last search. So an
//! insertion costs the same however many entries there are, and a map holds at most twice what is in use.

/// The size at which a map is searched next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sweep {
    at: usize,
    least: usize,
}

impl Sweep {
    /// For a map that is not searched while it has fewer entries than `least`.
    pub const fn new(least: usize) -> Self {
        Self { at: least, least }
    }

    /// Whether a map of `length` entries is to be searched before another one is added.
    pub fn is_due(&self, length: usize) -> bool {
        length >= self.at
    }

    /// The map was searched and `left` entries are in use.
    pub fn done(&mut self, left: usize) {
        self.at = left.saturating_mul(2).max(self.least);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_holds_twice_what_is_in_use_and_is_searched_seldom() {
        for used in [0, 5, 100, 3_000] {
            let (mut sweep, mut length, mut searched, mut longest) = (Sweep::new(100), 0_usize, 0_usize, 0);
            for _ in 0..100_000 {
                if sweep.is_due(length) {
                    searched += length;
                    length = length.min(used);
                    sweep.done(length);
                }
                length += 1;
                longest = longest.max(length);
            }
            assert!(longest <= (2 * used).max(100), "{used} are in use, and there were {longest}");
            assert!(searched <= 3 * 100_000, "{used} are in use: {searched} entries were looked at");
        }
    }
}
