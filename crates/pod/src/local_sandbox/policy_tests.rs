//! Tests of the policy, on machines that exist in memory alone.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::config::{Config, Mount, MountAccess, NetworkAccess};
use super::policy::{CREDENTIALS, FileKind, Platform, Policy, PolicyError, Request, Resolved, Visibility, build};

const HOME: &str = "/home/ada";

/// Files, and links by their targets. Every prefix of a path is a folder.
#[derive(Clone, Debug, Default)]
struct Machine {
    files: Vec<PathBuf>,
    links: BTreeMap<PathBuf, PathBuf>,
}

impl Machine {
    fn new(files: &[&str]) -> Self {
        let system = ["/usr/bin/sh", "/etc/passwd", "/tmp/x", "/run/user/x", "/var/tmp/x", "/var/lib/x", "/home/ada/src/project/main.rs"];
        Self { files: system.iter().chain(files).map(PathBuf::from).collect(), links: BTreeMap::new() }
    }

    fn link(mut self, path: &str, target: &str) -> Self {
        self.links.insert(path.into(), target.into());
        self
    }

    fn resolve(&self, path: &Path) -> Option<Resolved> {
        let mut plain = PathBuf::new();
        for part in path.components() {
            plain.push(part);
            if let Some(target) = self.links.get(&plain) {
                plain.clone_from(target);
            }
        }
        let kind = if self.files.contains(&plain) { FileKind::File } else { FileKind::Folder };
        let exists = self.files.iter().any(|file| file.starts_with(&plain));
        exists.then_some(Resolved { path: plain, kind })
    }

    fn policy(&self, workspace: &str, config: Config) -> Result<Policy, PolicyError> {
        self.policy_with(workspace, config, &[])
    }

    fn policy_with(&self, workspace: &str, config: Config, environment: &[(&str, &str)]) -> Result<Policy, PolicyError> {
        self.policy_of(workspace, config, environment, &[])
    }

    fn policy_of(&self, workspace: &str, config: Config, environment: &[(&str, &str)], sockets: &[PathBuf]) -> Result<Policy, PolicyError> {
        let home = [("HOME", HOME)];
        let environment = home.iter().chain(environment).map(|(name, value)| (OsString::from(name), OsString::from(value))).collect();
        let request = Request { platform: Platform::Linux, workspace: workspace.into(), config, environment, sockets: sockets.to_vec() };
        build(&request, |path| self.resolve(path))
    }
}

fn mount(path: &str, access: MountAccess) -> Mount {
    Mount { path: path.into(), access }
}

fn seen(policy: &Policy, path: &str) -> &'static str {
    match policy.visibility(Path::new(path)) {
        Visibility::Read => "read",
        Visibility::Write => "write",
        Visibility::Temporary => "temporary",
        Visibility::Hidden(_) => "hidden",
    }
}

#[test]
fn the_workspace_is_writable_the_home_folder_is_empty_and_the_rest_is_read_only() {
    let machine =
        Machine::new(&["/home/ada/.ssh/id", "/home/ada/.cache/x", "/home/ada/.local/bin/tool", "/home/ada/notes", "/home/bob/notes"]);
    let policy = machine.policy("/home/ada/src/project", Config::default()).expect("a policy");
    for (path, expected) in [
        ("/usr/bin/sh", "read"),
        ("/home/bob/notes", "read"),
        ("/home/ada/src/project/main.rs", "write"),
        ("/home/ada/.cache/x", "temporary"),
        ("/home/ada/.local/bin/tool", "read"),
        ("/home/ada/notes", "temporary"),
        ("/home/ada/src/other", "temporary"),
        ("/home/ada/.ssh/id", "hidden"),
        ("/tmp/x", "temporary"),
        ("/run/docker.sock", "temporary"),
    ] {
        assert_eq!(seen(&policy, path), expected, "{path}");
    }
    assert_eq!((policy.network, policy.bridge), (NetworkAccess::None, None));
}

#[test]
fn credentials_are_hidden_in_a_workspace_that_contains_them() {
    let machine = Machine::new(&["/home/ada/.ssh/id", "/home/ada/.netrc", "/dots/aws/key"]).link("/home/ada/.aws", "/dots/aws");
    for workspace in [HOME, "/home"] {
        let policy = machine.policy(workspace, Config::default()).expect("a policy");
        assert_eq!((seen(&policy, "/home/ada/notes"), seen(&policy, "/home/ada/.ssh/id")), ("write", "hidden"));
        assert_eq!(policy.paths.get(Path::new("/home/ada/.netrc")), Some(&Visibility::Hidden(FileKind::File)));
        assert_eq!(seen(&policy, "/dots/aws/key"), "hidden", "the target of a link");
    }
}

#[test]
fn paths_of_the_configuration_are_used_and_hiding_wins() {
    let machine = Machine::new(&["/home/ada/.cargo/bin/cargo", "/home/ada/.cargo/credentials.toml", "/srv/data/x", "/srv/data/key"]);
    let config = Config {
        mounts: vec![mount("~/.cargo", MountAccess::Read), mount("/srv/data", MountAccess::Write)],
        hide: vec!["/srv/data/key".into(), "~/.cache".into(), "/srv/missing".into()],
        ..Config::default()
    };
    let policy = machine.policy("/home/ada/src", config).expect("a policy");
    for (path, expected) in [
        ("/home/ada/.cargo/bin/cargo", "read"),
        ("/home/ada/.cargo/credentials.toml", "hidden"),
        ("/srv/data/x", "write"),
        ("/srv/data/key", "hidden"),
    ] {
        assert_eq!(seen(&policy, path), expected, "{path}");
    }
}

#[test]
fn what_cannot_be_met_is_refused_with_a_reason() {
    let machine = Machine::new(&["/home/ada/.ssh/keys/id", "/srv/data/x", "/opt/tool"]).link("/home/ada/etc", "/etc");
    let of = |workspace: &str, mounts: Vec<Mount>, hide: &[&str]| {
        let config = Config { mounts, hide: hide.iter().map(PathBuf::from).collect(), ..Config::default() };
        machine.policy(workspace, config).expect_err("refused").to_string()
    };
    for (workspace, text) in [
        ("/", "--workspace: / cannot be used, because it contains /bin"),
        ("/etc", "contains /etc"),
        ("/home/ada/etc", "--workspace: /etc cannot be used"),
        ("/var", "contains /var/lib"),
        ("/tmp", "contains /tmp"),
        ("/run/user", "the sandbox replaces /run"),
        ("/missing", "workspace directory does not exist: /missing"),
        ("/opt/tool", "workspace is not a directory: /opt/tool"),
        ("/home/ada/.ssh", "/home/ada/.ssh is hidden"),
        ("/home/ada/.ssh/keys", "/home/ada/.ssh is hidden"),
    ] {
        assert!(of(workspace, vec![], &[]).contains(text), "{workspace}: {}", of(workspace, vec![], &[]));
    }
    for (mounted, hidden, text) in [
        ("/srv/data", "/srv", "mounts: /srv/data cannot be used, because /srv is hidden"),
        ("~/.ssh/keys", "/srv", "/home/ada/.ssh is hidden"),
        ("/run", "/srv", "mounts: /run cannot be used"),
        ("/", "/srv", "mounts: / cannot be used"),
        ("data", "/srv", "mounts: the path data must be absolute"),
        ("/missing", "/srv", "mounts: the path does not exist: /missing"),
        ("/opt", "/home/ada/src", "--workspace: /home/ada/src/project cannot be used, because /home/ada/src is hidden"),
        ("/opt", "~", "hide: /home/ada cannot be hidden"),
        ("/opt", "/usr", "hide: /usr cannot be used"),
        ("/opt", "srv", "hide: the path srv must be absolute"),
    ] {
        let said = of("/home/ada/src/project", vec![mount(mounted, MountAccess::Read)], &[hidden]);
        assert!(said.contains(text), "{mounted} {hidden}: {said}");
    }
    let no_home =
        Request { platform: Platform::Linux, workspace: "/srv".into(), config: Config::default(), environment: vec![], sockets: vec![] };
    assert_eq!(build(&no_home, |path| machine.resolve(path)), Err(PolicyError::NoHome));
    let strange = Config { pass: vec!["A=B".into()], ..Config::default() };
    assert_eq!(machine.policy("/srv/data", strange), Err(PolicyError::Variable("A=B".into())));
}

#[test]
fn only_listed_variables_reach_the_program() {
    let machine = Machine::new(&[]);
    let config = Config {
        pass: vec!["MY_KEY".into(), "HOME".into()],
        bridge: Some("http://localhost:3000".parse().expect("a URL")),
        ..Config::default()
    };
    let own = [
        ("PATH", "/bin"),
        ("LC_ALL", "C"),
        ("GITHUB_TOKEN", "secret"),
        ("SSH_AUTH_SOCK", "/tmp/x"),
        ("MY_KEY", "k"),
        ("TMPDIR", "/strange"),
        ("SPILLWAY_BRIDGE_URL", "http://elsewhere"),
        ("XDG_RUNTIME_DIR", "/tmp"),
    ];
    let policy = machine.policy_with("/home/ada/src", config, &own).expect("a policy");
    let pairs: Vec<String> = policy.environment.iter().map(|(name, value)| format!("{}={}", name.display(), value.display())).collect();
    assert_eq!(pairs, ["HOME=/home/ada", "LC_ALL=C", "MY_KEY=k", "PATH=/bin", "SPILLWAY_BRIDGE_URL=http://127.0.0.1:3000", "TMPDIR=/tmp"]);
}

#[test]
fn a_runtime_folder_of_the_user_is_hidden_wherever_it_is() {
    let machine = Machine::new(&["/var/user/ada/bus"]);
    let policy = machine.policy_with("/home/ada/src", Config::default(), &[("XDG_RUNTIME_DIR", "/var/user/ada")]).expect("a policy");
    assert_eq!(seen(&policy, "/var/user/ada/bus"), "hidden");
}

#[test]
fn a_socket_is_hidden_wherever_it_would_be_visible_unless_a_mount_names_it() {
    let sockets = [
        ("/var/snap/lxd/unix.socket", "hidden"),
        ("/home/ada/.local/share/tool.sock", "hidden"),
        ("/home/ada/src/project/dev.sock", "hidden"),
        ("/srv/data/db.sock", "hidden"),
        ("/srv/named.sock", "read"),
        ("/run/docker.sock", "temporary"),
        ("/home/ada/.colima/docker.sock", "temporary"),
    ];
    let files: Vec<&str> = sockets.iter().map(|(path, _)| *path).collect();
    let machine = Machine::new(&files);
    let config =
        Config { mounts: vec![mount("/srv/data", MountAccess::Write), mount("/srv/named.sock", MountAccess::Read)], ..Config::default() };
    // No path of a policy is in a folder of the kernel.
    let paths: Vec<PathBuf> = files.iter().chain(&["/dev/shm/x.sock"]).map(PathBuf::from).collect();
    let policy = machine.policy_of("/home/ada/src/project", config, &[], &paths).expect("a policy");
    for (path, expected) in sockets {
        assert_eq!(seen(&policy, path), expected, "{path}");
    }
    assert!(!policy.paths.contains_key(Path::new("/dev/shm/x.sock")) && !policy.paths.contains_key(Path::new("/run/docker.sock")));
}

#[test]
fn with_the_network_of_the_machine_the_bridge_has_its_own_address() {
    let config = |network| Config { network, bridge: Some("http://bridge.example.org:3000".parse().expect("a URL")), ..Config::default() };
    for (network, expected) in [(NetworkAccess::None, "http://127.0.0.1:3000"), (NetworkAccess::Host, "http://bridge.example.org:3000")] {
        let policy = Machine::new(&[]).policy("/home/ada/src", config(network)).expect("a policy");
        assert!(policy.environment.contains(&("SPILLWAY_BRIDGE_URL".into(), expected.into())), "{:?}", policy.environment);
    }
}

fn any_path() -> impl Strategy<Value = String> {
    let start = prop::sample::select(vec![
        "",
        "/home",
        HOME,
        "/home/ada/.config",
        "/home/ada/.local",
        "/home/ada/.local/share",
        "/data",
        "/home/ada/.ssh",
    ]);
    (start, prop::collection::vec(prop::sample::select(vec!["a", "src", ".ssh", ".aws", "share", "keyrings"]), 0..3))
        .prop_map(|(start, rest)| rest.iter().fold(start.to_owned(), |path, part| format!("{path}/{part}")))
        .prop_map(|path| if path.is_empty() { "/".to_owned() } else { path })
}

proptest! {
    /// Every hidden path that exists, by its name or through a link, is hidden with all that is in it.
    #[test]
    fn a_hidden_path_is_never_visible(
        workspace in any_path(),
        mounts in prop::collection::vec((any_path(), any::<bool>()), 0..4),
        hide in prop::collection::vec(any_path(), 0..3),
        links in prop::collection::vec((any_path(), any_path()), 0..2),
        extra in prop::collection::vec(any_path(), 0..4),
        sockets in prop::collection::vec(any_path(), 0..3),
    ) {
        let mut files: Vec<String> = CREDENTIALS.iter().map(|name| format!("{HOME}/{name}/secret")).collect();
        files.extend(extra.iter().chain(&hide).chain([&workspace]).map(|path| format!("{path}/file")));
        files.extend(mounts.iter().map(|(path, _)| format!("{path}/file")));
        let mut machine = Machine::new(&files.iter().map(String::as_str).collect::<Vec<_>>());
        for (path, target) in links.iter().filter(|(path, target)| path.len() > HOME.len() && !target.starts_with(path.as_str())) {
            machine = machine.link(path, target);
        }
        let access = |write| if write { MountAccess::Write } else { MountAccess::Read };
        let config = Config {
            mounts: mounts.iter().map(|(path, write)| mount(path, access(*write))).collect(),
            hide: hide.iter().map(PathBuf::from).collect(),
            ..Config::default()
        };
        let sockets: Vec<PathBuf> = sockets.iter().map(|path| Path::new(path).join("socket")).collect();
        if let Ok(policy) = machine.policy_of(&workspace, config, &[], &sockets) {
            for socket in &sockets {
                prop_assert!(matches!(policy.visibility(socket), Visibility::Temporary | Visibility::Hidden(_)), "{}", socket.display());
            }
            let named = CREDENTIALS.iter().map(|name| Path::new(HOME).join(name)).chain(hide.iter().map(PathBuf::from));
            for Resolved { path, .. } in named.filter_map(|path| machine.resolve(&path)) {
                for path in [path.clone(), path.join("secret"), path.join("deep/er")] {
                    prop_assert!(matches!(policy.visibility(&path), Visibility::Hidden(_)), "{}: {:?}", path.display(), policy.paths);
                }
            }
            let in_hidden = |path: &Path| path.ancestors().skip(1).any(|above| matches!(policy.paths.get(above), Some(Visibility::Hidden(_))));
            prop_assert!(!policy.paths.keys().any(|path| in_hidden(path)), "nothing can be mounted there: {:?}", policy.paths);
            prop_assert_eq!(policy.visibility(&policy.workspace), Visibility::Write);
            prop_assert!(!policy.paths.keys().any(|path| path.starts_with("/dev") || path.starts_with("/proc")));
        }
    }
}
