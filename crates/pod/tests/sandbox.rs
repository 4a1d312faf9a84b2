//! Tests of the sandbox with the real sidecar and supervisor: what the program may do, what the sidecar reports, and kernels that cannot
//! enforce what is required. Such a kernel is played by a seccomp filter, which gives Landlock's calls the error of that kernel.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::supervised::Supervised;
use common::{BINARY, FakeGateway, Folder, Process, until};
use serde_json::{Value, json};

const EPERM: i32 = 1;
const ENOSYS: i32 = 38;
const EOPNOTSUPP: i32 = 95;

/// Our binary, on a kernel that answers Landlock's calls with this error.
fn on_a_kernel(folder: &Folder, error: i32) -> PathBuf {
    // The steps of the filter: the number of the call; 444 to 446 get the error.
    let script = format!(
        "#!/usr/bin/env python3\n\
         import ctypes, os, struct, sys\n\
         step = lambda code, jt, jf, k: struct.pack('HBBI', code, jt, jf, k)\n\
         steps = step(0x20, 0, 0, 0) + step(0x35, 0, 2, 444) + step(0x25, 1, 0, 446) + step(6, 0, 0, 0x50000 | {error}) + step(6, 0, 0, 0x7fff0000)\n\
         buffer = ctypes.create_string_buffer(steps)\n\
         program = struct.pack('HxxxxxxP', len(steps) // 8, ctypes.addressof(buffer))\n\
         libc = ctypes.CDLL(None, use_errno=True)\n\
         assert libc.prctl(38, 1, 0, 0, 0) == 0\n\
         assert libc.prctl(22, 2, ctypes.create_string_buffer(program), 0, 0) == 0\n\
         os.execv('{BINARY}', ['{BINARY}'] + sys.argv[1:])\n"
    );
    let path = folder.path("old-kernel");
    fs::write(&path, script).expect("a script");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it can be run");
    path
}

/// The sidecar, run by `binary` with these settings of the sandbox, and what it registered with.
fn registered(folder: &Folder, binary: &PathBuf, settings: &Value) -> (Process, Value) {
    let gateway = FakeGateway::start(folder);
    let registered = registered_at(&gateway, folder, binary, settings);
    // The gateway lives as long as the sidecar, which lives as long as the test.
    std::mem::forget(gateway);
    registered
}

fn registered_at(gateway: &FakeGateway, folder: &Folder, binary: &PathBuf, settings: &Value) -> (Process, Value) {
    let mut command = Command::new(binary);
    command.arg("link").args(["--first-port", "0"]).env("SPILLWAY_GATEWAY", gateway.address().to_string());
    command.env("SPILLWAY_SANDBOX", settings.to_string());
    for (flag, name) in [("--ca", "ca.crt"), ("--token", "token"), ("--journal", "journal"), ("--socket", "run/link.sock")] {
        command.arg(flag).arg(folder.path(name));
    }
    let link = Process::start(&mut command, folder.path("link.log"));
    let call = gateway.wait("/register", 0, |_| true);
    (link, call.body["sandbox"].clone())
}

#[test]
fn a_required_sandbox_that_the_kernel_cannot_enforce_starts_nothing_and_says_why() {
    let cases = [(ENOSYS, "LandlockNotBuilt"), (EOPNOTSUPP, "LandlockNotEnabled"), (EPERM, "LandlockRefused")];
    for (error, reason) in cases {
        let folder = Folder::new();
        let (kernel, settings) = (on_a_kernel(&folder, error), json!({"landlock": "Required"}));
        let (_link, sandbox) = registered(&folder, &kernel, &settings);
        assert_eq!(sandbox["unavailable"]["reason"], reason, "{sandbox}");
        let touched = folder.path("touched");
        let program = ["touch", touched.to_str().expect("a path")];
        let mut agent = Supervised::start_from(&kernel, &folder, &[], &program, |command| {
            command.env("SPILLWAY_SANDBOX", settings.to_string());
        });
        assert_eq!(agent.ended().code(), Some(78), "{}", agent.log());
        assert!(agent.log().contains(&format!("the program is not started: {reason}: ")), "{}", agent.log());
        assert!(!touched.exists(), "it did not start");
    }
}

#[test]
fn a_pod_without_the_user_namespace_that_its_pool_requires_starts_nothing() {
    for mode in ["Enforce", "Observe"] {
        let folder = Folder::new();
        let settings = json!({"userNamespace": true, "mode": mode});
        let (_link, sandbox) = registered(&folder, &BINARY.into(), &settings);
        assert_eq!(sandbox["unavailable"]["reason"], "UserNamespaceMissing", "{sandbox}");
        // Without root, the test itself runs the supervisor in a user namespace.
        if rustix::process::geteuid().is_root() {
            let touched = folder.path("touched");
            let program = ["touch", touched.to_str().expect("a path")];
            let mut agent = Supervised::start_from(Path::new(BINARY), &folder, &[], &program, |command| {
                command.env("SPILLWAY_SANDBOX", settings.to_string());
            });
            assert_eq!((agent.ended().code(), touched.exists()), (Some(78), false), "{}", agent.log());
            assert!(agent.log().contains("the program is not started: UserNamespaceMissing: "), "{}", agent.log());
        }
    }
}

#[test]
fn a_preferred_sandbox_starts_with_what_the_kernel_has() {
    let folder = Folder::new();
    let (kernel, settings) = (on_a_kernel(&folder, ENOSYS), json!({}));
    let (_link, sandbox) = registered(&folder, &kernel, &settings);
    assert_eq!(sandbox, json!({"tier": "AgentStrict", "missing": ["Landlock", "Signals", "AbstractSockets"]}));
    let script = "echo started; grep Seccomp: /proc/self/status; unshare --user true || echo no namespace; exec sleep 1000";
    let agent = Supervised::start_from(&kernel, &folder, &[], &["sh", "-c", script], |command| {
        command.env("SPILLWAY_SANDBOX", settings.to_string());
    });
    let said = agent.wait_output("no namespace");
    assert!(said.contains("started") && said.contains("Seccomp:\t2"), "{said}");
}

#[test]
fn settings_that_cannot_be_read_start_nothing() {
    let folder = Folder::new();
    let settings = json!({"landlock": "Sometimes"});
    let (_link, sandbox) = registered(&folder, &BINARY.into(), &settings);
    assert_eq!(sandbox["unavailable"]["reason"], "SandboxNotPrepared", "{sandbox}");
    let mut agent = Supervised::start_with(&folder, &[], &["true"], |command| {
        command.env("SPILLWAY_SANDBOX", settings.to_string());
    });
    assert_eq!(agent.ended().code(), Some(78), "{}", agent.log());
}

#[test]
fn what_only_the_supervisor_cannot_prepare_is_reported() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    let (_link, sandbox) = registered_at(&gateway, &folder, &BINARY.into(), &json!({}));
    assert_eq!(sandbox["unavailable"], Value::Null, "{sandbox}");
    let mut agent = Supervised::start_with(&folder, &[], &["true"], |command| {
        command.env("SPILLWAY_SANDBOX", "not the same settings");
    });
    assert_eq!(agent.ended().code(), Some(78), "{}", agent.log());
    gateway.report(|report| report["unavailable"]["reason"] == "SandboxNotPrepared");
}

/// A program that makes refused system calls, ends with a wrong exit code if one was not refused, and stays.
const REFUSED: &str = "for i in 1 2 3; do unshare --user true && exit 1; done; \
    python3 -c 'import ctypes, os, sys; libc = ctypes.CDLL(None, use_errno=True); \
    sys.exit(libc.ptrace(0, 0, 0, 0) == 0 or ctypes.get_errno() != 1)' || exit 2; echo all refused; exec sleep 1000";

#[test]
fn refused_system_calls_are_counted() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    let settings = json!({"landlock": "Required", "syscalls": "Required"});
    let (_link, _sandbox) = registered_at(&gateway, &folder, &BINARY.into(), &settings);
    let agent = Supervised::start_with(&folder, &[], &["sh", "-c", REFUSED], |command| {
        command.env("SPILLWAY_SANDBOX", settings.to_string());
    });
    agent.wait_output("all refused");
    let counted = gateway.report(|report| report["refused"]["systemCalls"] == 4);
    assert_eq!(counted.body["refused"]["uses"], json!(["ptrace", "unshare"]), "{}", counted.body);
    assert_eq!(counted.body["refused"]["files"], 0, "Landlock refuses without telling");
}

/// An agent of a pool without a sandbox, whose program says which parts it has, on a kernel. The result of each item in turn.
fn results(binary: &PathBuf, items: &[Value]) -> Vec<(String, Value)> {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    gateway.work(json!({}));
    let settings = json!({"landlock": "Disabled", "syscalls": "Disabled"});
    let (_link, sandbox) = registered_at(&gateway, &folder, binary, &settings);
    assert_eq!(sandbox["tier"], "Pod", "{sandbox}");
    for (number, sandbox) in (1..).zip(items) {
        gateway.offer_with(number, "x", sandbox);
    }
    let script = format!(
        "grep -q '^Seccomp:.2' /proc/self/status && filter=yes; echo x > {} && files=open; echo ${{filter:-no}} ${{files:-closed}}",
        folder.path("foreign").display()
    );
    let agent = Supervised::start_from(binary, &folder, &[], &["sh", "-c", &script], |command| {
        command.env("SPILLWAY_SANDBOX", settings.to_string()).env("TMPDIR", folder.path("data")).current_dir(folder.path("data"));
    });
    let ends = (1..).zip(items).map(|(number, _)| gateway.ended(number)).collect();
    until("each counting thread ends with the processes that it counts for", || {
        let tasks = fs::read_dir(format!("/proc/{}/task", agent.pid)).expect("the supervisor's threads");
        let counts = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.trim() == "refusals");
        (!tasks.flatten().any(counts)).then_some(())
    });
    ends
}

#[test]
fn an_item_has_its_own_sandbox_and_the_next_one_does_not() {
    let items =
        [json!({}), json!({"syscalls": true, "landlock": true}), json!({"syscalls": true}), json!({"sidecarPortsOnly": true}), json!({})];
    let said: Vec<String> = results(&BINARY.into(), &items)
        .into_iter()
        .map(|(end, body)| format!("{end} {}", body["result"].as_str().unwrap_or("-")))
        .collect();
    assert_eq!(said, ["complete no open", "complete yes closed", "complete yes open", "complete yes closed", "complete no open"]);
}

#[test]
fn an_item_whose_sandbox_the_node_cannot_enforce_fails_and_says_why() {
    let folder = Folder::new();
    let kernel = on_a_kernel(&folder, ENOSYS);
    let ends = results(&kernel, &[json!({"landlock": true}), json!({})]);
    assert_eq!((ends[0].0.as_str(), ends[1].0.as_str()), ("fail", "complete"), "{ends:?}");
    let message = ends[0].1["message"].as_str().expect("a message");
    assert!(
        message.contains("the item requires more of the sandbox (spec.bulkhead.sandbox): the node's kernel has no Landlock"),
        "{message}"
    );
}

#[test]
fn a_flood_of_refused_calls_delays_nothing() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    let settings = json!({"syscalls": "Required"});
    let (_link, _sandbox) = registered_at(&gateway, &folder, &BINARY.into(), &settings);
    let flood = "python3 -c 'import ctypes; libc = ctypes.CDLL(None)\nwhile True: libc.ptrace(0, 0, 0, 0)' &";
    let script = format!("trap '' TERM; {flood} {flood} {flood} {flood} echo flooding; while true; do sleep 1; done");
    let mut agent = Supervised::start_with(&folder, &[], &["sh", "-c", &script], |command| {
        command.env("SPILLWAY_SANDBOX", settings.to_string());
    });
    agent.wait_output("flooding");
    gateway.report(|report| report["refused"]["systemCalls"].as_u64().is_some_and(|count| count > 10_000));
    // Some of them are killed while their calls wait for an answer.
    agent.signal(rustix::process::Signal::TERM);
    assert!(agent.ended().code().is_some(), "{}", agent.log());
}

#[test]
fn a_sandbox_that_observes_refuses_nothing_and_counts() {
    let folder = Folder::new();
    let gateway = FakeGateway::start(&folder);
    let settings = json!({"landlock": "Required", "syscalls": "Required", "mode": "Observe"});
    let (_link, sandbox) = registered_at(&gateway, &folder, &BINARY.into(), &settings);
    assert_eq!(sandbox["tier"], "Observed", "{sandbox}");
    assert_eq!(sandbox["missing"].as_array().map(Vec::len), Some(4), "{sandbox}");
    let foreign = folder.path("foreign");
    let script = format!("echo x > {} && unshare --user true && echo made; exec sleep 1000", foreign.display());
    let mut agent = Supervised::start_with(&folder, &[], &["sh", "-c", &script], |command| {
        command.env("SPILLWAY_SANDBOX", settings.to_string()).env("TMPDIR", folder.path("data")).current_dir(folder.path("data"));
    });
    agent.wait_output("made");
    assert!(foreign.exists());
    let counted = gateway.report(|report| report["refused"]["systemCalls"] == 1 && report["refused"]["files"] != 0);
    let uses = counted.body["refused"]["uses"].to_string();
    // The file does not exist before, so that its folder is what would have to be open.
    let folder_of = format!("write {}", foreign.parent().expect("a folder").display());
    assert!(uses.contains("unshare") && uses.contains(&folder_of), "{uses}");
    agent.signal(rustix::process::Signal::TERM);
    agent.ended();
    assert!(agent.log().contains("the sandbox refuses these system calls:") && agent.log().contains("  unshare "), "{}", agent.log());
}

#[test]
fn the_preflight_the_program_and_its_commands_are_in_the_sandbox() {
    let folder = Folder::new();
    let settings = json!({"landlock": "Required", "syscalls": "Required"});
    let gateway = FakeGateway::start(&folder);
    let foreign = folder.path("foreign");
    let check = format!("grep NoNewPrivs /proc/self/status; echo x > {} || echo not by the preflight", foreign.display());
    gateway.set("preflightCommand", json!(["sh", "-c", check]));
    let (_link, sandbox) = registered_at(&gateway, &folder, &BINARY.into(), &settings);
    assert_eq!(sandbox["missing"], json!([]), "{sandbox}");
    let own = folder.path("data/own");
    let bin = PathBuf::from(BINARY);
    // A command with a time limit finds and ends its processes, and all of them have the sandbox.
    let script = format!(
        "echo x > {own} && echo own; echo x > {foreign} || echo not foreign; kill -0 1 || echo not the supervisor; \
         grep NoNewPrivs /proc/self/status; \
         {bin} exec --timeout 1 -- sh -c '(setsid sleep 999 &) ; echo x > {foreign} || echo not by exec; sleep 999' ; echo exec ended $?; exec sleep 1000",
        own = own.display(),
        foreign = foreign.display(),
        bin = bin.display(),
    );
    let agent = Supervised::start_with(&folder, &[], &["sh", "-c", &script], |command| {
        // The test's own folder is in the usual folder of temporary files.
        command.env("SPILLWAY_SANDBOX", settings.to_string()).env("TMPDIR", folder.path("data")).current_dir(folder.path("data"));
    });
    let said = agent.wait_output("exec ended");
    for line in ["not by the preflight", "own", "not foreign", "not the supervisor", "NoNewPrivs:\t1", "not by exec", "exec ended 124"] {
        assert!(said.lines().any(|one| one == line), "{line}: {said}");
    }
    assert!(own.exists() && !foreign.exists());
}
