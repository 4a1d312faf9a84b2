//! The policy as a program that the kernel runs at each system call.
//!
//! The program searches for the number of the call among ranges of numbers with one answer. When it is installed, the kernel runs it
//! once for each number that exists, to know those that are always allowed: a program that compares with each number makes that slow.

use libc::sock_filter;

use crate::condition::{Condition, INT, Rule};
use crate::policy::{Allowed, MISSING, Network, allowed};

/// A processor architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// 64-bit Intel and AMD.
    X86_64,
    /// 64-bit Arm.
    Aarch64,
}

impl Architecture {
    /// That of this program.
    pub const OWN: Self = if cfg!(target_arch = "aarch64") { Self::Aarch64 } else { Self::X86_64 };

    /// The number of a call, if the architecture has it.
    pub fn number(self, name: &str) -> Option<u32> {
        match self {
            Self::X86_64 => name.parse::<syscalls::x86_64::Sysno>().ok().and_then(|call| u32::try_from(call.id()).ok()),
            Self::Aarch64 => name.parse::<syscalls::aarch64::Sysno>().ok().and_then(|call| u32::try_from(call.id()).ok()),
        }
    }

    /// The name of the call with a number, if the architecture has it.
    pub fn name(self, number: u32) -> Option<&'static str> {
        let number = usize::try_from(number).ok()?;
        match self {
            Self::X86_64 => syscalls::x86_64::Sysno::new(number).map(|call| call.name()),
            Self::Aarch64 => syscalls::aarch64::Sysno::new(number).map(|call| call.name()),
        }
    }

    /// All calls, with their numbers.
    pub fn calls(self) -> Vec<(&'static str, u32)> {
        let all: Vec<&'static str> = match self {
            Self::X86_64 => syscalls::x86_64::Sysno::iter().map(|call| call.name()).collect(),
            Self::Aarch64 => syscalls::aarch64::Sysno::iter().map(|call| call.name()).collect(),
        };
        all.into_iter().filter_map(|name| Some((name, self.number(name)?))).collect()
    }

    /// The kernel's word for it.
    pub(crate) fn audit_number(self) -> u32 {
        match self {
            Self::X86_64 => 0xc000_003e,
            Self::Aarch64 => 0xc000_00b7,
        }
    }
}

/// What the program answers to calls.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Allowed,
    /// As on a kernel that does not have the call.
    Missing,
    Refused,
    /// Allowed if one of the rules holds.
    Conditional(&'static [Rule]),
    /// The watcher decides.
    Watched,
}

/// The steps of a program.
pub type Program = Vec<sock_filter>;

const LOAD_WORD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP: u16 = 0x05;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_AT_LEAST: u16 = 0x35;
const RETURN: u16 = 0x06;
const ALLOW: u32 = 0x7fff_0000;
const ERROR: u32 = 0x0005_0000;
const EPERM: u32 = libc::EPERM.unsigned_abs();
const ENOSYS: u32 = libc::ENOSYS.unsigned_abs();
const EBUSY: u32 = libc::EBUSY.unsigned_abs();
/// The flag of a filter with a listener. The kernel reads the low half of the flags.
const NEW_LISTENER: u32 = 8;
/// Ask the watcher.
const NOTIFY: u32 = 0x7fc0_0000;
const END_PROCESS: u32 = 0x8000_0000;
/// The places of words in what the kernel shows of a call. The low half of an argument comes first.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;
const HALF_BYTES: u32 = 4;
const ARGUMENT_BYTES: u32 = 8;

/// The program. A call of another architecture (32-bit programs) ends the process. Calls that are newer than the policy seem missing, and
/// so do those of the x32 interface, which have higher numbers.
pub fn program(architecture: Architecture, network: Network) -> Program {
    let mut program = head(architecture);
    program.extend(search(&ranges(architecture, network, &[])));
    program
}

/// The program, with a watcher that answers calls in the place of EPERM. Without the watcher they fail too, with ENOSYS.
///
/// No process may install a filter with a listener of its own: of two filters that ask, the kernel hears the newer one. A program could let
/// its own calls go on as soon as our listener is closed, which the kernel would otherwise allow.
pub fn reporting(architecture: Architecture, network: Network) -> Program {
    let mut program = head(architecture);
    let seccomp = architecture.number("seccomp").unwrap_or(u32::MAX);
    program.extend([
        step(JUMP_IF_EQUAL, 0, 5, seccomp),
        step(LOAD_WORD, 0, 0, ARGUMENTS + ARGUMENT_BYTES),
        step(AND, 0, 0, NEW_LISTENER),
        step(JUMP_IF_EQUAL, 1, 0, 0),
        answer(ERROR | EBUSY),
        answer(ALLOW),
    ]);
    program.extend(search(&ranges(architecture, network, &[])));
    for step in program.iter_mut().filter(|step| step.code == RETURN && step.k == ERROR | EPERM) {
        step.k = NOTIFY;
    }
    program
}

/// The calls that a watcher hears of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchedCalls {
    /// All of them.
    All,
    /// Those that the policy does not allow, and those with these names.
    Refused(Network, &'static [&'static str]),
}

/// A program that refuses nothing, and lets a watcher hear of calls. Messages over the descriptor `socket` are free: over it the watcher
/// gets to know that there is something to hear.
pub fn watching(architecture: Architecture, watched: WatchedCalls, socket: u32) -> Program {
    match watched {
        WatchedCalls::All => vec![
            step(LOAD_WORD, 0, 0, NUMBER),
            step(JUMP_IF_EQUAL, 0, 3, architecture.number("sendmsg").unwrap_or(0)),
            step(LOAD_WORD, 0, 0, ARGUMENTS),
            step(JUMP_IF_EQUAL, 0, 1, socket),
            answer(ALLOW),
            answer(NOTIFY),
        ],
        WatchedCalls::Refused(network, names) => {
            let mut program = head(architecture);
            program.extend(search(&ranges(architecture, network, names)));
            for step in program.iter_mut().filter(|step| step.code == RETURN && step.k != ALLOW) {
                step.k = NOTIFY;
            }
            program
        }
    }
}

/// Steps that load the number of the call, if it is one of the architecture.
fn head(architecture: Architecture) -> Program {
    vec![
        step(LOAD_WORD, 0, 0, ARCHITECTURE),
        step(JUMP_IF_EQUAL, 1, 0, architecture.audit_number()),
        answer(END_PROCESS),
        step(LOAD_WORD, 0, 0, NUMBER),
    ]
}

/// The first number of each range, and the verdict on all numbers of the range. The watcher decides on the calls with these names.
fn ranges(architecture: Architecture, network: Network, watched: &[&str]) -> Vec<(u32, Verdict)> {
    // Older calls do not exist on newer architectures.
    let mut known: Vec<(u32, Verdict)> = allowed(network)
        .iter()
        .filter_map(|Allowed { name, rules }| {
            let verdict = match rules.as_slice() {
                _ if watched.contains(name) => Verdict::Watched,
                [] => Verdict::Allowed,
                rules => Verdict::Conditional(rules),
            };
            Some((architecture.number(name)?, verdict))
        })
        .collect();
    let newest = known.iter().map(|(number, _)| *number).max().unwrap_or(0);
    known.extend(MISSING.iter().filter_map(|name| Some((architecture.number(name)?, Verdict::Missing))));
    known.sort_by_key(|(number, _)| *number);
    let mut ranges = Vec::new();
    let mut next = 0;
    for (number, verdict) in known {
        if number > next {
            ranges.push((next, if next > newest { Verdict::Missing } else { Verdict::Refused }));
        }
        ranges.push((number, verdict));
        next = number + 1;
    }
    ranges.push((next, Verdict::Missing));
    ranges.dedup_by(|later, earlier| later.1 == earlier.1);
    ranges
}

/// Steps that find the range of the number.
fn search(ranges: &[(u32, Verdict)]) -> Program {
    match ranges {
        [] => vec![answer(ERROR | EPERM)],
        [(_, verdict)] => judge(verdict),
        _ => {
            let (lower, upper) = ranges.split_at(ranges.len() / 2);
            let below = search(lower);
            let first = upper.first().map_or(0, |(number, _)| *number);
            // A jump on a condition cannot reach as far as one without.
            let mut program = vec![step(JUMP_IF_AT_LEAST, 0, 1, first), jump(below.len())];
            program.extend(below);
            program.extend(search(upper));
            program
        }
    }
}

fn judge(verdict: &Verdict) -> Program {
    match verdict {
        Verdict::Allowed => vec![answer(ALLOW)],
        Verdict::Missing => vec![answer(ERROR | ENOSYS)],
        Verdict::Refused => vec![answer(ERROR | EPERM)],
        Verdict::Watched => vec![answer(NOTIFY)],
        Verdict::Conditional(rules) => {
            let mut program: Program = rules.iter().flat_map(allow_if).collect();
            program.push(answer(ERROR | EPERM));
            program
        }
    }
}

/// Allows the call if all conditions hold, and goes on behind these steps if not.
fn allow_if(rule: &Rule) -> Program {
    // From the last step to the first, because each condition jumps over those behind it.
    let mut behind = vec![answer(ALLOW)];
    for Condition { argument, mask, value } in rule.iter().rev() {
        let place = ARGUMENTS + u32::from(*argument) * ARGUMENT_BYTES;
        // A half without bits to compare needs no steps.
        for (place, mask, value) in [(place + HALF_BYTES, mask >> 32, value >> 32), (place, mask & INT, value & INT)] {
            let (mask, value) = (half(mask), half(value));
            if mask == 0 && value == 0 {
                continue;
            }
            let beyond = u8::try_from(behind.len()).unwrap_or(u8::MAX);
            let mut program = vec![step(LOAD_WORD, 0, 0, place)];
            if mask != u32::MAX {
                program.push(step(AND, 0, 0, mask));
            }
            program.push(step(JUMP_IF_EQUAL, 0, beyond, value));
            program.extend(behind);
            behind = program;
        }
    }
    behind
}

/// The low half of a word.
fn half(word: u64) -> u32 {
    u32::try_from(word & INT).unwrap_or(0)
}

fn step(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

fn answer(action: u32) -> sock_filter {
    step(RETURN, 0, 0, action)
}

/// A jump over so many steps.
fn jump(steps: usize) -> sock_filter {
    step(JUMP, 0, 0, u32::try_from(steps).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_conditions_of_a_rule_are_few_enough_for_a_jump() {
        for network in [Network::Pod, Network::Sidecar] {
            for rule in allowed(network).iter().flat_map(|call| &call.rules) {
                assert!(allow_if(rule).len() <= usize::from(u8::MAX), "{rule:?}");
            }
        }
    }

    #[test]
    fn a_number_is_found_in_few_steps() {
        for architecture in [Architecture::X86_64, Architecture::Aarch64] {
            let ranges = ranges(architecture, Network::Pod, &[]);
            assert!(ranges.len() < 256, "{} ranges", ranges.len());
            assert!(ranges.is_sorted_by(|one, other| one.0 < other.0 && one.1 != other.1), "{ranges:?}");
        }
    }
}
