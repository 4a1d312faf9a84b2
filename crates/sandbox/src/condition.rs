//! Conditions on the arguments of a system call. Each is a masked comparison of one argument, which is the only kind that seccomp's
//! programs, container runtimes and the Security Profiles Operator express alike. All only allow: a value with strange high bits, which
//! the kernel ignores, matches as the kernel sees it.

/// The bits of an `int` argument that the kernel looks at.
pub const INT: u64 = 0xffff_ffff;

/// `argument & mask == value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Index of the argument.
    pub argument: u8,
    /// Bits that are compared.
    pub mask: u64,
    /// Their value.
    pub value: u64,
}

/// Conditions of which each must hold.
pub type Rule = Vec<Condition>;

impl Condition {
    /// Whether it holds for these arguments.
    pub fn holds(&self, arguments: &[u64; 6]) -> bool {
        arguments.get(usize::from(self.argument)).is_some_and(|argument| argument & self.mask == self.value)
    }
}

/// An `int` argument has this value.
pub fn is(argument: u8, value: u32) -> Condition {
    Condition { argument, mask: INT, value: value.into() }
}

/// None of these bits is set.
pub fn without(argument: u8, bits: u32) -> Condition {
    Condition { argument, mask: bits.into(), value: 0 }
}

/// The bits of the mask have this value.
pub fn masked(argument: u8, mask: u32, value: u32) -> Condition {
    Condition { argument, mask: mask.into(), value: value.into() }
}

/// The whole argument is zero.
pub fn is_null(argument: u8) -> Condition {
    Condition { argument, mask: u64::MAX, value: 0 }
}

/// Rules of which one holds exactly if an `int` argument has none of these values. They go along the bits from the highest: a
/// condition is made where no forbidden value has the bits so far.
pub fn excluding(argument: u8, forbidden: &[u32]) -> Vec<Rule> {
    let mut rules = Vec::new();
    let mut prefixes = vec![(0_u32, 0_u32)];
    while let Some((mask, value)) = prefixes.pop() {
        if !forbidden.iter().any(|one| one & mask == value) {
            rules.push(vec![masked(argument, mask, value)]);
        } else if mask != u32::MAX {
            let next = !mask & !(!mask >> 1);
            prefixes.extend([(mask | next, value | next), (mask | next, value)]);
        }
    }
    rules
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn holds(rules: &[Rule], value: u64) -> bool {
        rules.iter().any(|rule| rule.iter().all(|condition| condition.holds(&[0, value, 0, 0, 0, 0])))
    }

    proptest! {
        #[test]
        fn all_but_the_forbidden_values_are_allowed(
            forbidden in prop::collection::vec(any::<u32>(), 0..4), value: u32, high: u32, flips in prop::collection::vec(0..32_u32, 0..2)
        ) {
            let rules = excluding(1, &forbidden);
            let near = flips.iter().fold(forbidden.first().copied().unwrap_or(value), |near, bit| near ^ (1 << bit));
            for value in [value, near].into_iter().chain(forbidden.iter().copied()) {
                for high in [0, u64::from(high) << 32] {
                    prop_assert_eq!(holds(&rules, high | u64::from(value)), !forbidden.contains(&value), "{:#x}", value);
                }
            }
        }
    }

    #[test]
    fn nothing_forbidden_is_one_rule_and_one_value_takes_a_rule_for_each_bit() {
        assert_eq!(excluding(1, &[]), [vec![masked(1, 0, 0)]]);
        assert_eq!(excluding(1, &[7]).len(), 32);
        assert!(excluding(1, &[0x5412, 0x541c]).len() < 40, "close values share rules");
    }
}
