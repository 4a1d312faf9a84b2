//! The three forms of the policy agree: for any call, the programs for the kernel, the profile of container runtimes and the policy itself
//! give the same answer. The files in `profiles` are those that the policy makes.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use libc::sock_filter;
use proptest::prelude::*;
use serde_json::Value;
use spillway_sandbox::filter::{Architecture, Program, program, reporting};
use spillway_sandbox::policy::{Network, allowed, verdict};
use spillway_sandbox::profile::{oci_profile, operator_profile};

/// What the kernel does with a call: nothing, an error, or the end of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Allow,
    Error(i32),
    Ask,
    Kill,
}

/// The kernel's word for the architecture.
fn audit_number(architecture: Architecture) -> u32 {
    match architecture {
        Architecture::X86_64 => 0xc000_003e,
        Architecture::Aarch64 => 0xc000_00b7,
    }
}

/// Runs one program as the kernel does.
fn run(program: &[sock_filter], number: u32, audit: u32, arguments: &[u64; 6]) -> u32 {
    let mut data = [number, audit, 0, 0].to_vec();
    data.extend(arguments.iter().flat_map(|argument| [*argument as u32, (argument >> 32) as u32]));
    let (mut at, mut word) = (0, 0_u32);
    loop {
        let sock_filter { code, jt, jf, k } = program[at];
        at += 1;
        let jump = |taken: bool| usize::from(if taken { jt } else { jf });
        match code {
            0x20 => word = data[k as usize / 4],
            0x54 => word &= k,
            0x05 => at += k as usize,
            0x15 => at += jump(word == k),
            0x25 => at += jump(word > k),
            0x35 => at += jump(word >= k),
            0x06 => return k,
            other => panic!("a step that the filter does not use: {other:#x}"),
        }
    }
}

/// What the kernel does with a call.
fn kernel(program: &[sock_filter], number: u32, audit: u32, arguments: &[u64; 6]) -> Action {
    let answer = run(program, number, audit, arguments);
    match answer & 0xffff_0000 {
        0x7fff_0000 => Action::Allow,
        0x0005_0000 => Action::Error((answer & 0xffff) as i32),
        0x7fc0_0000 => Action::Ask,
        _ => Action::Kill,
    }
}

/// What a container runtime makes of the profile, for a call that the profile knows.
fn runtime(profile: &Value, name: &str, arguments: &[u64; 6]) -> Action {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let number = |value: &Value| value.as_u64().expect("a number");
    for entry in profile["syscalls"].as_array().expect("entries") {
        let named = entry["names"].as_array().expect("names").iter().any(|one| text(one) == name);
        let holds = |arg: &Value| {
            assert_eq!(text(&arg["op"]), "SCMP_CMP_MASKED_EQ");
            arguments[number(&arg["index"]) as usize] & number(&arg["value"]) == number(&arg["valueTwo"])
        };
        if named && entry["args"].as_array().is_none_or(|args| args.iter().all(holds)) {
            return match text(&entry["action"]).as_str() {
                "SCMP_ACT_ALLOW" => Action::Allow,
                _ => Action::Error(number(&entry["errnoRet"]) as i32),
            };
        }
    }
    assert_eq!(text(&profile["defaultAction"]), "SCMP_ACT_ERRNO");
    Action::Error(libc::EPERM)
}

/// Arguments near those that the rules of a call speak of.
fn arguments(name: &str) -> impl Strategy<Value = [u64; 6]> + use<> {
    let rules = allowed(Network::Pod).iter().find(|call| call.name == name).map(|call| call.rules.clone()).unwrap_or_default();
    let values: Vec<u64> =
        rules.iter().flatten().map(|condition| condition.value).chain([0, 1, 2, 3, 6, 262, 0x5412, 0x541c, 35]).collect();
    let one =
        (prop::sample::select(values), prop_oneof![3 => Just(0_u64), 1 => any::<u64>()], prop_oneof![3 => Just(64_u32), 1 => 0..64_u32])
            .prop_map(|(value, noise, flip)| (value | noise) ^ 1_u64.checked_shl(flip).unwrap_or(0));
    [one.clone(), one.clone(), one.clone(), one.clone(), one.clone(), one]
}

fn call(architecture: Architecture) -> impl Strategy<Value = (&'static str, u32, [u64; 6])> {
    let conditional: Vec<&str> = allowed(Network::Pod).iter().filter(|call| !call.rules.is_empty()).map(|call| call.name).collect();
    let (known, all): (Vec<_>, _) =
        (architecture.calls().into_iter().filter(|(name, _)| conditional.contains(name)).collect(), architecture.calls());
    prop_oneof![prop::sample::select(known), prop::sample::select(all)]
        .prop_flat_map(|(name, number)| (Just(name), Just(number), arguments(name)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn kernel_runtime_and_policy_agree(x86 in call(Architecture::X86_64), arm in call(Architecture::Aarch64)) {
        static PROFILE: LazyLock<Value> = LazyLock::new(oci_profile);
        static PROGRAMS: LazyLock<[[Program; 2]; 2]> = LazyLock::new(|| {
            [Architecture::X86_64, Architecture::Aarch64]
                .map(|architecture| [program(architecture, Network::Pod), reporting(architecture, Network::Pod)])
        });
        for (architecture, (name, number, arguments)) in [(Architecture::X86_64, x86), (Architecture::Aarch64, arm)] {
            let [program, reporting] = &PROGRAMS[usize::from(architecture == Architecture::Aarch64)];
            let newest = allowed(Network::Pod).iter().filter_map(|call| architecture.number(call.name)).max().expect("calls");
            let of = |program: &Program| kernel(program, number, audit_number(architecture), &arguments);
            let expected = match verdict(Network::Pod, name, &arguments) {
                // Runtimes answer so for all that is newer than a profile.
                _ if number > newest => Action::Error(libc::ENOSYS),
                None => Action::Allow,
                Some(error) => Action::Error(error),
            };
            prop_assert_eq!(of(program), expected, "{} {:?} {:x?}", name, architecture, arguments);
            // The watcher hears of nothing that may be made, and of nothing that only seems missing.
            let reported = match expected {
                Action::Error(libc::EPERM) => Action::Ask,
                // Nor does a program get a watcher of its own.
                Action::Allow if name == "seccomp" && arguments[1] & 8 != 0 => Action::Error(libc::EBUSY),
                other => other,
            };
            prop_assert_eq!(of(reporting), reported, "{} {:?} {:x?}", name, architecture, arguments);
            if number <= newest {
                prop_assert_eq!(runtime(&PROFILE, name, &arguments), expected, "{} {:x?}", name, arguments);
            }
        }
    }
}

#[test]
fn calls_of_other_interfaces_are_not_made() {
    for architecture in [Architecture::X86_64, Architecture::Aarch64] {
        let program = program(architecture, Network::Pod);
        let read = architecture.number("read").expect("a number");
        let of = |number, audit| kernel(&program, number, audit, &[0; 6]);
        assert_eq!(of(read, audit_number(architecture)), Action::Allow);
        assert_eq!(of(read, 0x4000_0003), Action::Kill, "32-bit programs");
        for newer in [0x4000_0000 | read, 1000, u32::MAX] {
            assert_eq!(of(newer, audit_number(architecture)), Action::Error(libc::ENOSYS), "{newer:#x}");
        }
        assert!(program.len() < 2000, "{} steps of the kernel's 4096", program.len());
    }
}

#[test]
fn datagrams_are_for_programs_with_the_network_of_their_pod() {
    let program = |network| program(Architecture::OWN, network);
    let (socket, audit) = (Architecture::OWN.number("socket").expect("a number"), audit_number(Architecture::OWN));
    let arguments = [libc::AF_INET as u64, libc::SOCK_DGRAM as u64, 0, 0, 0, 0];
    assert_eq!(kernel(&program(Network::Pod), socket, audit, &arguments), Action::Allow);
    assert_eq!(kernel(&program(Network::Sidecar), socket, audit, &arguments), Action::Error(libc::EPERM));
}

#[test]
fn each_call_of_the_policy_exists_once() {
    let mut count = BTreeMap::new();
    for call in allowed(Network::Pod) {
        *count.entry(call.name).or_insert(0) += 1;
        let known = Architecture::X86_64.number(call.name).or(Architecture::Aarch64.number(call.name));
        assert!(known.is_some(), "{} is no system call", call.name);
    }
    assert!(count.values().all(|count| *count == 1), "{count:?}");
}

/// `SPILLWAY_WRITE=1` writes the files.
#[test]
fn the_files_are_those_that_the_policy_makes() {
    for (name, value) in [("agent-strict.json", oci_profile()), ("seccompprofile.json", operator_profile())] {
        let path = format!("{}/profiles/{name}", env!("CARGO_MANIFEST_DIR"));
        let expected = format!("{}\n", serde_json::to_string_pretty(&value).expect("JSON"));
        if std::env::var_os("SPILLWAY_WRITE").is_some() {
            std::fs::write(&path, &expected).expect("written");
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(found == expected, "{path} is stale: SPILLWAY_WRITE=1 cargo test --package spillway-sandbox --test agreement");
    }
}
