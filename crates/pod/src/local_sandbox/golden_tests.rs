//! The arguments of bubblewrap and the profile of Seatbelt, compared with files. `SPILLWAY_WRITE=1` writes the files.

use std::fs;
use std::path::{Path, PathBuf};

use super::bubblewrap::{Launch, NamespaceLimits, arguments, quoted, setup_failure};
use super::config::{Config, Mount, MountAccess, NetworkAccess};
use super::policy::{FileKind, Platform, Policy, Request, Resolved, build};
use super::seatbelt::profile;

fn compare(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/local_sandbox/golden").join(name);
    if std::env::var_os("SPILLWAY_WRITE").is_some() {
        fs::write(&path, text).expect("written");
    }
    let golden = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(text, golden, "{} is stale: SPILLWAY_WRITE=1 cargo test --package spillway-pod golden", path.display());
}

/// A machine with these files, of which those with a dot in the name are no folders.
fn policy(platform: Platform, home: &str, workspace: &str, files: &[&str], config: Config) -> Policy {
    let resolve = |path: &Path| {
        let kind = if files.contains(&path.to_str()?) { FileKind::File } else { FileKind::Folder };
        files.iter().any(|file| Path::new(file).starts_with(path)).then(|| Resolved { path: path.to_owned(), kind })
    };
    let environment = vec![("HOME".into(), home.into()), ("PATH".into(), "/usr/bin".into())];
    let sockets = ["/run/docker.sock", "/srv/server/socket", &format!("{workspace}/dev.sock")].map(PathBuf::from).to_vec();
    build(&Request { platform, workspace: workspace.into(), config, environment, sockets }, resolve).expect("a policy")
}

fn config(network: NetworkAccess) -> Config {
    let mount = |path: &str, access| Mount { path: path.into(), access };
    Config {
        mounts: vec![mount("~/.cargo", MountAccess::Read), mount("/srv/my data", MountAccess::Write)],
        network,
        bridge: Some("http://localhost:3000".parse().expect("a URL")),
        ..Config::default()
    }
}

const FILES: [&str; 9] = [
    "/home/ada/.cargo/credentials.toml",
    "/home/ada/.config/gh/hosts",
    "/home/ada/.local/bin/tool",
    "/home/ada/.ssh/id",
    "/home/ada/.netrc",
    "/home/ada/project/main.rs",
    "/srv/my data/x",
    "/run/x",
    "/tmp/x",
];

fn command_line(policy: &Policy, terminal: bool) -> String {
    let launch = Launch {
        program: "/opt/spillway-agent".into(),
        folder: "/tmp/spillway-sandbox-1".into(),
        resolver: Some("/run/systemd/resolve/stub-resolv.conf".into()),
        terminal,
        command: ["sh", "-c", "echo 'hello'"].map(Into::into).to_vec(),
    };
    // One option a line.
    quoted(&arguments(policy, &launch)).replace(" --", "\n--") + "\n"
}

#[test]
fn the_arguments_of_bubblewrap_are_those_of_the_golden_files() {
    let of = |workspace, network| policy(Platform::Linux, "/home/ada", workspace, &FILES, config(network));
    compare("bubblewrap-project.txt", &command_line(&of("/home/ada/project", NetworkAccess::None), false));
    compare("bubblewrap-home.txt", &command_line(&of("/home/ada", NetworkAccess::Host), true));
}

#[test]
fn the_profile_of_seatbelt_is_that_of_the_golden_files() {
    let files = [
        "/Users/ada/.cargo/credentials.toml",
        "/Users/ada/.ssh/id",
        "/Users/ada/Library/Keychains/login",
        "/Users/ada/project \"x\"/main.rs",
        "/private/tmp/x",
        "/srv/my data/x",
    ];
    let of = |workspace, network| policy(Platform::Macos, "/Users/ada", workspace, &files, config(network));
    let folder = PathBuf::from("/private/var/folders/ab/spillway-sandbox-1");
    compare("seatbelt-project.sb", &profile(&of("/Users/ada/project \"x\"", NetworkAccess::None), &folder));
    compare("seatbelt-home.sb", &profile(&of("/Users/ada", NetworkAccess::Host), &folder));
}

#[test]
fn a_failure_of_bubblewrap_names_the_setting_that_refuses() {
    let limits = |unprivileged: Option<&str>, apparmor: Option<&str>, limit: Option<&str>| NamespaceLimits {
        unprivileged: unprivileged.map(str::to_owned),
        apparmor: apparmor.map(str::to_owned),
        limit: limit.map(str::to_owned),
    };
    for (limits, name) in [
        (limits(None, Some("1\n"), Some("9")), "kernel.apparmor_restrict_unprivileged_userns=0"),
        (limits(Some("0\n"), None, Some("9")), "kernel.unprivileged_userns_clone=1"),
        (limits(Some("1\n"), Some("0\n"), Some("0\n")), "user.max_user_namespaces"),
        (limits(None, None, Some("9")), "its message is above"),
    ] {
        assert!(setup_failure(&limits).contains(name), "{}", setup_failure(&limits));
    }
}
