//! The policy as programs that the kernel runs at each system call.
//!
//! Two programs are installed: the first allows the calls of the policy and refuses all others, and the second answers as an older
//! kernel would for calls that are to seem missing. The kernel takes the strictest action, and of two errors the one of the program that
//! was installed last.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch, sock_filter,
};

use crate::condition::{Condition, INT, Rule};
use crate::policy::{MISSING, Network, allowed};

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

    /// All calls, with their numbers.
    pub fn calls(self) -> Vec<(&'static str, u32)> {
        let all: Vec<&'static str> = match self {
            Self::X86_64 => syscalls::x86_64::Sysno::iter().map(|call| call.name()).collect(),
            Self::Aarch64 => syscalls::aarch64::Sysno::iter().map(|call| call.name()).collect(),
        };
        all.into_iter().filter_map(|name| Some((name, self.number(name)?))).collect()
    }

    fn target(self) -> TargetArch {
        match self {
            Self::X86_64 => TargetArch::x86_64,
            Self::Aarch64 => TargetArch::aarch64,
        }
    }
}

/// The programs, in the order in which they are installed. A call of another architecture (32-bit programs) ends the process.
pub fn programs(architecture: Architecture, network: Network) -> Result<Vec<BpfProgram>, seccompiler::BackendError> {
    let mut rules = BTreeMap::new();
    for call in allowed(network) {
        // Older calls do not exist on newer architectures.
        if let Some(number) = architecture.number(call.name) {
            let chain = call.rules.iter().map(rule).collect::<Result<Vec<_>, _>>()?;
            rules.insert(i64::from(number), chain);
        }
    }
    let newest = rules.keys().next_back().copied().unwrap_or(0);
    let refused = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let filter = SeccompFilter::new(rules, refused, SeccompAction::Allow, architecture.target())?;
    Ok(vec![filter.try_into()?, missing(architecture, u32::try_from(newest).unwrap_or(u32::MAX))])
}

fn rule(rule: &Rule) -> Result<SeccompRule, seccompiler::BackendError> {
    let conditions = rule.iter().map(|Condition { argument, mask, value }| {
        // The high bits are compared only if they matter: that halves the program.
        let length = if *mask <= INT { SeccompCmpArgLen::Dword } else { SeccompCmpArgLen::Qword };
        SeccompCondition::new(*argument, length, SeccompCmpOp::MaskedEq(*mask), *value)
    });
    SeccompRule::new(conditions.collect::<Result<_, _>>()?)
}

const LOAD_WORD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_GREATER: u16 = 0x25;
const RETURN: u16 = 0x06;
const RETURN_ALLOW: u32 = 0x7fff_0000;
const RETURN_ERROR: u32 = 0x0005_0000;

/// ENOSYS for [`MISSING`] calls and for all that are newer than the policy. Calls of the x32 interface have higher numbers too.
fn missing(architecture: Architecture, newest: u32) -> BpfProgram {
    let step = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    let numbers: Vec<u32> = MISSING.iter().filter_map(|name| architecture.number(name)).collect();
    // The offset of the number in what the kernel shows of a call is 0.
    let mut program = vec![step(LOAD_WORD, 0, 0, 0)];
    for (at, number) in numbers.iter().enumerate() {
        // Over the later comparisons, the last one and the permission.
        let ahead = u8::try_from(numbers.len() - at - 1 + 2).unwrap_or(u8::MAX);
        program.push(step(JUMP_IF_EQUAL, ahead, 0, *number));
    }
    program.push(step(JUMP_IF_GREATER, 1, 0, newest));
    program.push(step(RETURN, 0, 0, RETURN_ALLOW));
    program.push(step(RETURN, 0, 0, RETURN_ERROR | libc::ENOSYS.unsigned_abs()));
    program
}
