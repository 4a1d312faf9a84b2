//! `spillway-agent sandbox` as a real command, with the real bubblewrap.

mod common;

use std::fs;
use std::io::Read as _;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use common::laptop::{Machine, error, folder_of_spillway, out, serve};
use common::{send, until};
use rustix::process::Signal;

#[test]
fn only_the_workspace_can_be_changed() {
    let machine = Machine::new();
    let outside = machine.path("outside/file").display().to_string();
    let script = format!(
        "echo changed > main.rs; mkdir ~/.cache; echo lost > ~/.cache/new; echo lost > ~/lost && cat ~/lost; echo lost > /tmp/lost && cat /tmp/lost
         sh ~/.local/bin/tool; echo x > ~/.local/bin/tool; cat ~/notes; cat {outside}; echo x > {outside}; echo x > /etc/spillway-canary; echo x > /usr/spillway-canary; pwd"
    );
    let output = machine.shell(&[], &script);
    assert_eq!(out(&output), format!("lost\nlost\ntool\n{}", machine.path("home/project").display()), "{}", error(&output));
    assert_eq!(fs::read_to_string(machine.path("home/project/main.rs")).expect("a file"), "changed\n");
    assert!(fs::read_to_string(machine.path("home/.local/bin/tool")).expect("a file").starts_with("#!"));
    assert_eq!(fs::read_to_string(machine.path("outside/file")).expect("a file"), "outside");
    assert!(!machine.path("home/lost").exists() && !machine.path("home/.cache").exists() && !Path::new("/etc/spillway-canary").exists());
}

#[test]
fn credentials_are_hidden_also_in_a_workspace_that_contains_them() {
    let machine = Machine::new();
    for workspace in ["home/project", "home", ""] {
        let script =
            "cat ~/.ssh/id ~/.netrc ~/.config/spillway/token; grep -rs canary ~; echo x > ~/.ssh/config; mv ~/.ssh ~/moved; ls -A ~/.ssh";
        let output = machine.shell_in(workspace, &[], script);
        assert_eq!(out(&output), "", "{workspace}: {}", error(&output));
    }
    let home = machine.shell_in("home", &[], "cat ~/notes");
    assert_eq!(out(&home), "notes", "the rest of the workspace is there: {}", error(&home));
    assert_eq!(fs::read_to_string(machine.path("home/.ssh/id")).expect("a file"), "canary");
    assert!(!machine.path("home/.ssh/config").exists());
}

/// A mount cannot be renamed, but the folder around it could be: the next run would look for the hidden path under its old name.
#[test]
fn a_folder_around_a_hidden_or_read_only_path_cannot_be_moved_away() {
    let machine = Machine::new();
    machine.shell_in("home", &[], "mv ~/.config ~/c2; mkdir -p ~/.config");
    let second = machine.shell_in("home", &[], "cat ~/c2/spillway/token ~/.config/spillway/token");
    assert_eq!(out(&second), "", "{}", error(&second));
    fs::create_dir_all(machine.path("home/project/a/hooks")).expect("folders");
    fs::write(machine.path("home/project/a/secret"), "canary").expect("written");
    let config = machine
        .config(&format!("mounts: [{{path: {0}/a/hooks, access: Read}}]\nhide: [{0}/a/secret]\n", machine.path("home/project").display()));
    for script in ["mv a b; cp -r b a; echo evil > a/hooks/pre-commit", "cat b/secret a/secret"] {
        let output = machine.shell(&["--config", &config], script);
        assert_eq!(out(&output), "", "{}", error(&output));
    }
    assert!(!machine.path("home/project/a/hooks/pre-commit").exists() && machine.path("home/project/a/secret").exists());
}

#[test]
fn the_environment_is_a_list_and_the_host_is_out_of_sight() {
    let machine = Machine::new();
    let config = machine.config("pass: [SPILLWAY_CANARY]\n");
    let output = machine.shell(&[], "env; ls /run/user /run/docker.sock /var/run/docker.sock; ls -d /proc/[0-9]* | wc -l");
    assert!(!out(&output).contains("canary") && out(&output).contains("TMPDIR=/tmp"), "{}", out(&output));
    let processes: u32 = out(&output).lines().last().and_then(|line| line.parse().ok()).expect("a number");
    assert!(processes < 8, "only its own: {processes}");
    assert_eq!(error(&output).matches("No such file").count(), 3, "{}", error(&output));
    let passed = machine.shell(&["--config", &config], "echo $SPILLWAY_CANARY $AWS_SECRET_ACCESS_KEY");
    assert_eq!(out(&passed), "canary");
}

#[test]
fn the_sandbox_of_pods_is_in_force_and_our_process_is_closed() {
    let machine = Machine::new();
    let output = machine.shell(
        &[],
        "grep -E '^(Seccomp|NoNewPrivs|CapEff|CapBnd):' /proc/self/status | tr -d '\\t'; grep Seccomp: /proc/1/status | tr -d '\\t'",
    );
    assert_eq!(out(&output), "CapEff:0000000000000000\nCapBnd:0000000000000000\nNoNewPrivs:1\nSeccomp:2\nSeccomp:0");
    for attack in ["unshare --user true", "mount -t tmpfs none /mnt", "cat /proc/1/environ", "dd if=/proc/1/mem count=1", "chroot / true"] {
        let output = machine.shell(&[], attack);
        assert!(!output.status.success(), "{attack}: {}", out(&output));
    }
    // Signals to all that it can reach end nothing but the command.
    let output = machine.shell(&[], "trap 'exit 4' TERM; kill -TERM 0; sleep 9");
    assert_eq!(output.status.code(), Some(4), "{}", error(&output));
}

const GET: &str = "get() { exec 3<>/dev/tcp/127.0.0.1/$1 && printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3 && tail -n 1 <&3; echo; }; ";

#[test]
fn without_a_network_only_the_bridge_is_reached() {
    let machine = Machine::new();
    let (bridge, other) = (serve("bridge"), serve("other"));
    let url = format!("http://localhost:{bridge}");
    let script =
        format!("{GET} echo $SPILLWAY_BRIDGE_URL; get {bridge}; get {bridge}; get {other}; tail -n +2 /proc/net/route; ls /sys/class/net");
    let output = machine.shell(&["--bridge-url", &url], &script);
    let lines: Vec<String> = out(&output).lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
    assert_eq!(lines.first(), Some(&format!("http://127.0.0.1:{bridge}")), "{}", error(&output));
    assert_eq!(out(&output).matches("bridge").count(), 2, "{lines:?}");
    assert!(!out(&output).contains("other"), "{lines:?}");
    assert!(error(&output).contains("Connection refused"), "{}", error(&output));
    let none = machine.shell(&[], &format!("{GET} get {bridge}; tail -n +2 /proc/net/route; tail -n +3 /proc/net/dev"));
    assert!(!out(&none).contains("bridge") && out(&none).lines().filter(|line| line.contains(':')).count() == 1, "{}", out(&none));
    let config = machine.config("network: host\n");
    let host = machine.shell(&["--config", &config], &format!("{GET} get {other}"));
    assert_eq!(out(&host), "other", "{}", error(&host));
}

#[test]
fn mounts_and_hidden_paths_of_the_configuration_are_used() {
    let machine = Machine::new();
    let outside = machine.path("outside").display().to_string();
    let config = machine
        .config(&format!("mounts:\n  - {{path: ~/notes, access: Read}}\n  - {{path: {outside}, access: Write}}\nhide: [{outside}/file, ~/.config, ~/.config/spillway]\n"));
    let output = machine
        .shell(&["--config", &config, "--verbose"], &format!("cat ~/notes {outside}/file; echo x > ~/notes; echo x > {outside}/new"));
    assert_eq!(out(&output), "notes", "{}", error(&output));
    assert!(machine.path("outside/new").exists());
    for line in [format!("read-write        {outside}"), format!("hidden            {outside}/file"), "network           none".to_owned()] {
        assert!(error(&output).contains(&line), "{line}: {}", error(&output));
    }
}

#[test]
fn the_exit_code_is_that_of_the_command() {
    let machine = Machine::new();
    let workspace = machine.path("home/project").display().to_string();
    let cases: [(&[&str], i32); 6] = [
        (&["true"], 0),
        (&["sh", "-c", "exit 3"], 3),
        (&["sh", "-c", "kill -KILL $$"], 137),
        (&["sh", "-c", "kill -TERM $$"], 143),
        (&["no-such-program"], 127),
        (&["./main.rs"], 126),
    ];
    for (command, code) in cases {
        let output = machine.launcher(&["--workspace", &workspace], command).output().expect("it runs");
        assert_eq!(output.status.code(), Some(code), "{command:?}: {}", error(&output));
    }
    let input = machine
        .launcher(&["--workspace", &workspace], &["cat"])
        .stdin(fs::File::open(machine.path("home/notes")).expect("a file"))
        .output();
    assert_eq!(out(&input.expect("it runs")), "notes", "standard input");
    // A process that it leaves ends with it.
    let left = machine.shell(&[], "setsid sleep 1000 & echo done");
    assert_eq!(out(&left), "done");
}

#[test]
fn signals_reach_the_command_and_a_killed_launcher_leaves_nothing() {
    let machine = Machine::new();
    let workspace = machine.path("home/project").display().to_string();
    let script = "trap 'exit 9' TERM; trap 'exit 8' INT; setsid sleep 1000 & touch ready; while :; do sleep 0.02; done";
    for (signal, code) in [(Signal::TERM, Some(9)), (Signal::INT, Some(8)), (Signal::KILL, None)] {
        let _ = fs::remove_file(machine.path("home/project/ready"));
        let mut command = machine.launcher(&["--workspace", &workspace], &["bash", "-c", script]);
        let mut launcher = command.stdout(Stdio::piped()).spawn().expect("it runs");
        until("the command runs", || machine.path("home/project/ready").exists().then_some(()));
        send(i32::try_from(launcher.id()).expect("a pid"), signal);
        let status = until("the launcher ends", || launcher.try_wait().expect("our child"));
        assert_eq!(status.code(), code);
        // Every process of the sandbox has this pipe: it closes when the last of them has ended.
        let mut pipe = launcher.stdout.take().expect("a pipe");
        assert_eq!(pipe.read_to_string(&mut String::new()).expect("closed"), 0);
    }
}

#[test]
fn the_keys_of_a_terminal_reach_the_command_once() {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let machine = Machine::new();
    let workspace = machine.path("home/project").display().to_string();
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&terminal).and_then(|()| unlockpt(&terminal)).expect("unlocked");
    let name = ptsname(&terminal, Vec::new()).expect("a name").into_string().expect("text");
    let end = || fs::File::options().read(true).write(true).open(&name).expect("the terminal");
    let script = "count=0; trap 'count=$((count + 1)); touch interrupted' INT; trap 'exit $count' TERM; tty -s; touch ready-$?
                  while :; do sleep 0.02; done";
    let inner = machine.launcher(&["--workspace", &workspace], &["bash", "-c", script]);
    // The program setsid makes the terminal that of a new session.
    let mut command = Command::new("setsid");
    command.arg("--ctty").arg(inner.get_program()).args(inner.get_args()).env("HOME", machine.path("home"));
    let mut child = command.stdin(end()).stdout(end()).stderr(end()).spawn().expect("it runs");
    until("the command runs", || machine.path("home/project/ready-0").exists().then_some(()));
    rustix::io::write(&terminal, b"\x03").expect("written");
    until("the command is interrupted", || machine.path("home/project/interrupted").exists().then_some(()));
    // It became the launcher, because it led no group.
    send(i32::try_from(child.id()).expect("a pid"), Signal::TERM);
    let status = until("the launcher ends", || child.try_wait().expect("our child"));
    assert_eq!(status.code(), Some(1), "one interrupt");
}

#[test]
fn errors_name_the_mend() {
    let machine = Machine::new();
    let project = machine.path("home/project").display().to_string();
    let workspace = ["--workspace", &project];
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port").local_addr().expect("an address").port();
    let url = format!("http://localhost:{closed}");
    let strange = machine.config("network: none\nmount: []\n");
    let ssh = machine.path("home/.ssh").display().to_string();
    let failing = |flags: &[&str], text: &str, change: &dyn Fn(&mut Command)| {
        let mut command = machine.launcher(flags, &["true"]);
        change(&mut command);
        let output = command.output().expect("it runs");
        assert!(error(&output).contains(text), "{flags:?}: {}", error(&output));
        assert_eq!(output.status.code(), Some(125), "{flags:?}");
    };
    let same = |_: &mut Command| {};
    failing(&[], "--workspace is required", &same);
    failing(&["--workspace", "/no/such"], "workspace directory does not exist: /no/such", &same);
    failing(&["--workspace", "/"], "--workspace: / cannot be used, because it contains /bin", &same);
    failing(&["--workspace", &ssh], &format!("{ssh} is hidden"), &same);
    failing(&[&workspace[..], &["--bridge-url", &url]].concat(), "the bridge is not running (start it with: spillway bridge)", &same);
    failing(&[&workspace[..], &["--config", &strange]].concat(), "config.yaml: line 2 column 1: unknown field `mount`", &same);
    failing(&workspace, "bubblewrap is not installed (apt-get install bubblewrap)", &|command| {
        command.env("PATH", "/no/such");
    });
    failing(&workspace, "HOME is not set to a folder that exists", &|command| {
        command.env("HOME", "/no/such");
    });
    // A kernel that refuses, as bubblewrap says it.
    let bin = machine.path("bin");
    fs::create_dir(&bin).expect("a folder");
    fs::write(bin.join("bwrap"), "#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n").expect("written");
    fs::set_permissions(bin.join("bwrap"), fs::Permissions::from_mode(0o755)).expect("executable");
    failing(&workspace, "bwrap: setting up uid map: Permission denied\nerror: bubblewrap could not create the sandbox: ", &|command| {
        command.env("PATH", &bin);
    });
    let print = machine.launcher(&[&workspace[..], &["--print"]].concat(), &["true"]).output().expect("it runs");
    assert!(out(&print).starts_with("bwrap --unshare-all --die-with-parent"), "{}", out(&print));
    let print = machine.launcher(&[&workspace[..], &["--print", "--platform", "macos"]].concat(), &["true"]).output().expect("it runs");
    assert!(out(&print).starts_with("(version 1)\n(deny default)"), "{}", out(&print));
}

#[test]
fn a_bridge_is_started_and_ends_with_the_command() {
    let machine = Machine::new();
    let definition =
        "---\nname: say\ndescription: d\ncommand: /usr/bin/printf\nargv: ['from the bridge: %s', '{word}']\nargs: [{name: word}]\n---\n";
    for folder in ["definitions", "home/project/definitions"] {
        fs::create_dir(machine.path(folder)).expect("a folder");
        fs::write(machine.path(folder).join("say.md"), definition).expect("written");
    }
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port").local_addr().expect("an address").port();
    let url = format!("http://localhost:{port}");
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"execute","arguments":{"program":"say","args":{"word":"hello"}}}}"#;
    let script = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{port}; printf '%b' 'POST /mcp HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\nContent-Type: \
         application/json\\r\\nAccept: application/json, text/event-stream\\r\\nMCP-Protocol-Version: 2025-11-25\\r\\nContent-Length: {}\\r\\n\\r\\n' >&3; \
         printf '%s' '{call}' >&3; cat <&3; cat ~/.config/spillway/bridge-audit.log",
        call.len()
    );
    let path = format!("{}:{}", folder_of_spillway().display(), std::env::var("PATH").expect("PATH"));
    let run = |definitions: &str, script: &str| {
        let (project, folder) = (machine.path("home/project").display().to_string(), machine.path(definitions).display().to_string());
        let flags = ["--workspace", &project, "--bridge-url", &url, "--start-bridge", &folder];
        machine.launcher(&flags, &["bash", "-c", script]).env("PATH", &path).output().expect("it runs")
    };
    let said = run("definitions", &script);
    assert!(out(&said).contains("from the bridge: hello"), "{} {}", out(&said), error(&said));
    assert!(error(&said).contains("bridge-audit.log: No such file or directory"), "{}", error(&said));
    std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect_err("it has ended");
    let audit = fs::read_to_string(machine.path("home/.config/spillway/bridge-audit.log")).expect("the log");
    assert_eq!(audit.matches("\"event\":\"End\"").count(), 1, "{audit}");
    // The command could write definitions of its own.
    let refused = run("home/project/definitions", "true");
    assert!(error(&refused).contains("keep the definitions outside of the workspace"), "{}", error(&refused));
    fs::write(machine.path("definitions/say.md"), "nothing").expect("written");
    let wrong = run("definitions", "true");
    assert!(error(&wrong).contains("say.md: line 1: NoFrontMatter") && wrong.status.code() == Some(125), "{}", error(&wrong));
    // A bridge that answers is used.
    let (other, path) = (serve("other"), path.as_str());
    let (project, url) = (machine.path("home/project").display().to_string(), format!("http://localhost:{other}"));
    let flags = ["--workspace", &project, "--bridge-url", &url, "--start-bridge", &machine.path("definitions").display().to_string()];
    let used = machine.launcher(&flags, &["bash", "-c", &format!("{GET} get {other}")]).env("PATH", path).output().expect("it runs");
    assert!(out(&used).contains("other"), "{}", error(&used));
}

/// As with a file system that does not answer while bubblewrap mounts it.
#[test]
fn a_bubblewrap_that_hangs_ends_with_the_launcher() {
    let machine = Machine::new();
    let (bin, began) = (machine.path("bin"), machine.path("began"));
    fs::create_dir(&bin).expect("a folder");
    fs::write(bin.join("bwrap"), format!("#!/bin/sh\necho $$ > {}\nexec /bin/sleep 1000\n", began.display())).expect("written");
    fs::set_permissions(bin.join("bwrap"), fs::Permissions::from_mode(0o755)).expect("executable");
    let workspace = machine.path("home/project").display().to_string();
    let mut launcher = machine.launcher(&["--workspace", &workspace], &["true"]).env("PATH", &bin).spawn().expect("it runs");
    let hanging = until("bubblewrap hangs", || fs::read_to_string(&began).ok().filter(|pid| pid.ends_with('\n')));
    send(i32::try_from(launcher.id()).expect("a pid"), Signal::TERM);
    assert_eq!(launcher.wait().expect("it ends").code(), Some(143));
    until("bubblewrap has ended", || (!Path::new("/proc").join(hanging.trim()).exists()).then_some(()));
}
