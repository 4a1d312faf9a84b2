//! The command line of bubblewrap for a policy. Pure: it decides nothing about what is visible, and runs nothing.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::config::NetworkAccess;
use super::policy::{FileKind, Policy, Visibility};

/// Our binary in the sandbox.
const STAGE_PROGRAM: &str = "/run/spillway-agent";
/// The private folder in the sandbox, which is read-only there.
pub const STAGE_FOLDER: &str = "/run/spillway";
/// The hidden subcommand that runs in the sandbox first.
pub const STAGE_COMMAND: &str = "sandbox-stage";
/// In the private folder: the socket by which the launcher passes signals on.
pub const CONTROL_SOCKET: &str = "control.sock";
/// In the private folder: the socket that leads to the bridge.
pub const BRIDGE_SOCKET: &str = "bridge.sock";
/// In the private folder: an empty file, which takes the place of hidden files.
pub const EMPTY_FILE: &str = "empty";

/// What one run adds to the policy.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Our own binary.
    pub program: PathBuf,
    /// The private folder of this run.
    pub folder: PathBuf,
    /// The file of name servers, if it is in a folder that the sandbox replaces.
    pub resolver: Option<PathBuf>,
    /// Whether the program has the terminal that we run in.
    pub terminal: bool,
    /// The program and its arguments.
    pub command: Vec<OsString>,
}

/// The arguments of bubblewrap. The environment is no part of them, because other users can read arguments.
pub fn arguments(policy: &Policy, launch: &Launch) -> Vec<OsString> {
    let Launch { program, folder, resolver, terminal, command } = launch;
    let mut all: Vec<OsString> = Vec::new();
    let mut add = |parts: &[&dyn AsRef<std::ffi::OsStr>]| all.extend(parts.iter().map(|part| part.as_ref().to_owned()));
    add(&[&"--unshare-all"]);
    if policy.network == NetworkAccess::Host {
        add(&[&"--share-net"]);
    }
    add(&[&"--die-with-parent"]);
    // Without a new session the terminal's signals and sizes arrive. The filter refuses input in the name of a person.
    if !terminal {
        add(&[&"--new-session"]);
    }
    // No process in the sandbox is without the filter but ours, which nothing in it can trace.
    add(&[&"--as-pid-1", &"--cap-drop", &"ALL"]);
    for (path, seen) in &anchored(policy) {
        match seen {
            Visibility::Read => add(&[&"--ro-bind", path, path]),
            Visibility::Write => add(&[&"--bind", path, path]),
            Visibility::Temporary => add(&[&"--tmpfs", path]),
            // There is nothing to hide in an empty folder.
            Visibility::Hidden(_) if policy.around(path) == Visibility::Temporary => {}
            Visibility::Hidden(FileKind::Folder) => add(&[&"--tmpfs", path, &"--remount-ro", path]),
            Visibility::Hidden(FileKind::File) => add(&[&"--ro-bind", &folder.join(EMPTY_FILE), path]),
        }
        // Before everything else, since no path of a policy is in these.
        if path == Path::new("/") {
            add(&[&"--dev", &"/dev", &"--proc", &"/proc"]);
        }
    }
    if let Some(file) = resolver.as_ref().filter(|_| policy.network == NetworkAccess::Host) {
        add(&[&"--ro-bind", file, file]);
    }
    add(&[&"--ro-bind", program, &STAGE_PROGRAM, &"--ro-bind", folder, &STAGE_FOLDER, &"--chdir", &policy.workspace]);
    add(&[&"--", &STAGE_PROGRAM, &STAGE_COMMAND]);
    if let Some(url) = policy.bridge.as_ref().filter(|_| policy.network == NetworkAccess::None) {
        add(&[&"--port", &url.port().to_string()]);
    }
    for (path, _) in policy.paths.iter().filter(|(_, seen)| matches!(seen, Visibility::Write | Visibility::Temporary)) {
        add(&[&"--write", path]);
    }
    add(&[&"--"]);
    all.extend(command.iter().cloned());
    all
}

/// The paths of the policy, and each writable folder around one of them. A folder that is a mount of its own cannot be renamed. Without
/// that, the command could move a hidden path's folder away, and the path would be visible under its new name.
fn anchored(policy: &Policy) -> BTreeMap<PathBuf, Visibility> {
    let folders = policy.paths.keys().flat_map(|path| path.ancestors().skip(1));
    let writable = folders.filter(|folder| policy.visibility(folder) == Visibility::Write);
    let mut all: BTreeMap<PathBuf, Visibility> = writable.map(|folder| (folder.to_owned(), Visibility::Write)).collect();
    all.extend(policy.paths.clone());
    all
}

/// A command line for people, quoted for a shell.
pub fn quoted(arguments: &[OsString]) -> String {
    let quote = |argument: &OsString| {
        let text = argument.to_string_lossy();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
        if !text.is_empty() && text.chars().all(plain) { text.into_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
    };
    arguments.iter().map(quote).collect::<Vec<_>>().join(" ")
}

/// What the kernel says about user namespaces, as its files do. A missing file is `None`.
#[derive(Clone, Debug, Default)]
pub struct NamespaceLimits {
    /// `/proc/sys/kernel/unprivileged_userns_clone` (Debian).
    pub unprivileged: Option<String>,
    /// `/proc/sys/kernel/apparmor_restrict_unprivileged_userns` (Ubuntu).
    pub apparmor: Option<String>,
    /// `/proc/sys/user/max_user_namespaces`.
    pub limit: Option<String>,
}

/// Why bubblewrap could not create the sandbox, and the mend.
pub fn setup_failure(limits: &NamespaceLimits) -> String {
    let is = |value: &Option<String>, text: &str| value.as_deref().map(str::trim) == Some(text);
    let mend = if is(&limits.apparmor, "1") {
        "AppArmor refuses user namespaces to programs without a profile (Ubuntu 23.10 and later): give bubblewrap a profile (apt-get install \
         apparmor-profiles; ln -s /usr/share/apparmor/extra-profiles/bwrap-userns-restrict /etc/apparmor.d/; systemctl reload apparmor), or \
         set sysctl kernel.apparmor_restrict_unprivileged_userns=0"
    } else if is(&limits.unprivileged, "0") {
        "the kernel refuses user namespaces to users: set sysctl kernel.unprivileged_userns_clone=1"
    } else if is(&limits.limit, "0") {
        "the kernel allows no user namespaces: set sysctl user.max_user_namespaces to a number such as 15000"
    } else {
        "its message is above. In a container, the container's runtime may refuse user namespaces"
    };
    format!("bubblewrap could not create the sandbox: {mend}")
}
