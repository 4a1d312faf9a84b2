//! What a program in a local sandbox sees and may do, decided from the flags, the configuration and the home folder. Pure: the file
//! system is asked through a function that the caller gives.
//!
//! What always holds: the longest path of [`Policy::paths`] that contains a file decides about the file, and no path of the policy
//! is in a hidden path. So a hidden path is hidden with all that is in it, whatever the workspace and the mounts are. A listed
//! socket of the machine is visible only if a mount names it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::bridge::BridgeUrl;
use super::config::{Config, Mount, MountAccess, NetworkAccess};

/// How a path is seen, with all that is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visibility {
    /// Read and executed.
    Read,
    /// Read, written and executed.
    Write,
    /// An empty folder in memory, which the program may write to.
    Temporary,
    /// An empty folder or file, which cannot be written.
    Hidden(FileKind),
}

/// Whether a path is a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A folder.
    Folder,
    /// Anything else.
    File,
}

/// A file that exists, by its path without links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The path.
    pub path: PathBuf,
    /// Its kind.
    pub kind: FileKind,
}

/// The system that runs the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Platform {
    /// Linux, by bubblewrap.
    Linux,
    /// macOS, by Seatbelt.
    Macos,
}

impl Platform {
    /// That of this machine.
    pub fn own() -> Self {
        if std::env::consts::OS == "macos" { Self::Macos } else { Self::Linux }
    }
}

/// What a person asks for.
#[derive(Clone, Debug)]
pub struct Request {
    /// The system.
    pub platform: Platform,
    /// The folder that the program works in.
    pub workspace: PathBuf,
    /// The configuration. Its bridge is that of the flag, if there is one.
    pub config: Config,
    /// Our own environment.
    pub environment: Vec<(OsString, OsString)>,
    /// The unix sockets of this machine, by their paths without links.
    pub sockets: Vec<PathBuf>,
}

/// The decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The working directory of the program.
    pub workspace: PathBuf,
    /// The home folder.
    pub home: PathBuf,
    /// The paths, of which the longest decides about a file.
    pub paths: BTreeMap<PathBuf, Visibility>,
    /// The network.
    pub network: NetworkAccess,
    /// The bridge that the program reaches.
    pub bridge: Option<BridgeUrl>,
    /// The whole environment of the program.
    pub environment: Vec<(OsString, OsString)>,
}

/// The request cannot be met.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// There is no home folder.
    #[error("HOME is not set to a folder that exists")]
    NoHome,
    /// The workspace is missing.
    #[error("workspace directory does not exist: {}", .0.display())]
    NoWorkspace(PathBuf),
    /// The workspace is a file.
    #[error("workspace is not a directory: {}", .0.display())]
    NotAFolder(PathBuf),
    /// A mount or hidden path is relative.
    #[error("{field}: the path {} must be absolute or begin with ~/", path.display())]
    Relative {
        /// The field of the configuration.
        field: &'static str,
        /// The path.
        path: PathBuf,
    },
    /// A mount is missing.
    #[error("mounts: the path does not exist: {}", .0.display())]
    NoMount(PathBuf),
    /// The path contains the system's own files.
    #[error("{field}: {} cannot be used, because it contains {system}, which belongs to the system: use a folder in it", path.display())]
    ContainsSystem {
        /// The field or flag.
        field: &'static str,
        /// The path.
        path: PathBuf,
        /// The folder of the system.
        system: &'static str,
    },
    /// The path is in a folder that the sandbox replaces.
    #[error("{field}: {} cannot be used, because the sandbox replaces {system}", path.display())]
    InKernelFolder {
        /// The field or flag.
        field: &'static str,
        /// The path.
        path: PathBuf,
        /// The replaced folder.
        system: &'static str,
    },
    /// The path is hidden.
    #[error("{field}: {} cannot be used, because {} is hidden", path.display(), hidden.display())]
    InHidden {
        /// The field or flag.
        field: &'static str,
        /// The path.
        path: PathBuf,
        /// The hidden path.
        hidden: PathBuf,
    },
    /// The home folder is to be hidden.
    #[error("hide: {} cannot be hidden, because it contains the home folder, which is empty in the sandbox anyway", .0.display())]
    HidesHome(PathBuf),
    /// A variable is none.
    #[error("pass: {0:?} is no name of a variable")]
    Variable(String),
}

/// Well-known places of credentials, in the home folder.
pub const CREDENTIALS: [&str; 46] = [
    ".aws",
    ".azure",
    ".cache/huggingface/token",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".config/BraveSoftware",
    ".config/chromium",
    ".config/containers",
    ".config/doctl",
    ".config/gcloud",
    ".config/gh",
    ".config/git/credentials",
    ".config/glab-cli",
    ".config/google-chrome",
    ".config/helm",
    ".config/hub",
    ".config/op",
    ".config/pypoetry/auth.toml",
    ".config/rclone",
    ".config/sops",
    ".config/spillway",
    ".docker",
    ".gem/credentials",
    ".git-credentials",
    ".gnupg",
    ".kube",
    ".local/share/atuin/key",
    ".local/share/gnome-keyring",
    ".local/share/keyrings",
    ".local/share/kwalletd",
    ".local/share/mkcert",
    ".local/share/password-store",
    ".m2/settings.xml",
    ".mozilla",
    ".netrc",
    ".npmrc",
    ".password-store",
    ".pgpass",
    ".pypirc",
    ".ssh",
    ".terraform.d",
    ".thunderbird",
    ".vault-token",
    "Library/Application Support/Google/Chrome",
    "Library/Cookies",
    "Library/Keychains",
];
/// The folder in the home folder with the programs that a person installed. It cannot be written: a login starts programs from it too.
const PROGRAMS_FOLDER: &str = ".local";
/// Variables that the program gets, if they are set. Those that begin with `LC_` are added.
const ENVIRONMENT: [&str; 15] = [
    "PATH",
    "USER",
    "LOGNAME",
    "LANG",
    "LANGUAGE",
    "TERM",
    "COLORTERM",
    "TZ",
    "SHELL",
    "NO_COLOR",
    "FORCE_COLOR",
    "EDITOR",
    "VISUAL",
    "COLUMNS",
    "LINES",
];
/// The variable with the URL of the bridge.
pub const BRIDGE_VARIABLE: &str = "SPILLWAY_BRIDGE_URL";
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Folders of the system: no workspace, mount or hidden path contains one.
const LINUX_SYSTEM: [&str; 14] =
    ["/bin", "/boot", "/dev", "/etc", "/lib", "/proc", "/run", "/sbin", "/sys", "/tmp", "/usr", "/var/lib", "/var/run", "/var/tmp"];
const MACOS_SYSTEM: [&str; 8] = ["/System", "/Library", "/bin", "/dev", "/private/etc", "/private/tmp", "/sbin", "/usr"];
/// Folders that the sandbox replaces: nothing in them can be mounted.
const LINUX_REPLACED: [&str; 5] = ["/dev", "/proc", "/run", "/sys", "/var/run"];
const MACOS_REPLACED: [&str; 2] = ["/dev", "/private/var/run"];
/// Folders that are empty in the sandbox, besides the home folder.
const LINUX_TEMPORARY: [&str; 4] = ["/run", "/tmp", "/var/run", "/var/tmp"];
const MACOS_TEMPORARY: [&str; 3] = ["/private/tmp", "/private/var/run", "/private/var/tmp"];

/// Decides. `resolve` gives the path of a file without links, if the file exists.
pub fn build(request: &Request, resolve: impl Fn(&Path) -> Option<Resolved>) -> Result<Policy, PolicyError> {
    let Request { platform, workspace, config, environment, sockets } = request;
    let Config { mounts, network, bridge, pass, hide } = config;
    let own = |name: &str| environment.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
    let folder = |path: &Path| resolve(path).filter(|found| found.kind == FileKind::Folder).map(|found| found.path);
    let given = own("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
    let home = given.as_deref().and_then(folder).ok_or(PolicyError::NoHome)?;
    check_system(*platform, "HOME", &home)?;
    let found = resolve(workspace).ok_or_else(|| PolicyError::NoWorkspace(workspace.clone()))?;
    if found.kind != FileKind::Folder {
        return Err(PolicyError::NotAFolder(workspace.clone()));
    }
    let workspace = found.path;
    check_path(*platform, "--workspace", &workspace)?;

    let mut paths = visible(*platform, &home, &workspace, mounts, &resolve)?;
    // One that is shared with others, such as /tmp, is empty anyway.
    let runtime = own("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let mut hidden: Vec<PathBuf> = CREDENTIALS.iter().map(|name| home.join(name)).collect();
    hidden.extend(runtime.filter(|path| check_system(*platform, "XDG_RUNTIME_DIR", path).is_ok()));
    for path in hide {
        let path = absolute("hide", path, &home)?;
        let path = resolve(&path).map_or(path, |found| found.path);
        check_system(*platform, "hide", &path)?;
        if home.starts_with(&path) {
            return Err(PolicyError::HidesHome(path));
        }
        hidden.push(path);
    }
    for found in hidden.iter().filter_map(|path| resolve(path)) {
        hide_path(&mut paths, &home, &workspace, found)?;
    }
    let address = bridge.as_ref().map(|url| match network {
        NetworkAccess::None => url.local(),
        NetworkAccess::Host => url.to_string(),
    });
    let environment = program_environment(environment, pass, &home, address)?;
    let mut policy = Policy { workspace, home, paths, network: *network, bridge: bridge.clone(), environment };
    hide_sockets(&mut policy, *platform, sockets);
    Ok(policy)
}

/// The paths before anything is hidden.
fn visible(
    platform: Platform,
    home: &Path,
    workspace: &Path,
    mounts: &[Mount],
    resolve: &impl Fn(&Path) -> Option<Resolved>,
) -> Result<BTreeMap<PathBuf, Visibility>, PolicyError> {
    let folder = |path: &Path| resolve(path).filter(|found| found.kind == FileKind::Folder).map(|found| found.path);
    let temporary: &[&str] = match platform {
        Platform::Linux => &LINUX_TEMPORARY,
        Platform::Macos => &MACOS_TEMPORARY,
    };
    let mut paths = BTreeMap::from([(PathBuf::from("/"), Visibility::Read)]);
    paths.extend(temporary.iter().filter_map(|path| folder(Path::new(path))).map(|path| (path, Visibility::Temporary)));
    // A home folder in the workspace is a part of it.
    if !home.starts_with(workspace) {
        paths.insert(home.to_owned(), Visibility::Temporary);
        let programs = home.join(PROGRAMS_FOLDER);
        // A link is not followed: there is no link in the empty home folder.
        if folder(&programs).is_some_and(|found| found == programs) {
            paths.insert(programs, Visibility::Read);
        }
    }
    for Mount { path, access } in mounts {
        let path = resolve(&absolute("mounts", path, home)?).ok_or_else(|| PolicyError::NoMount(path.clone()))?.path;
        check_path(platform, "mounts", &path)?;
        let seen = match access {
            MountAccess::Read => Visibility::Read,
            MountAccess::Write => Visibility::Write,
        };
        paths.insert(path, seen);
    }
    paths.insert(workspace.to_owned(), Visibility::Write);
    Ok(paths)
}

/// Hides a path. The folders that are granted by themselves are hidden with it. What a person named is refused instead.
fn hide_path(paths: &mut BTreeMap<PathBuf, Visibility>, home: &Path, workspace: &Path, found: Resolved) -> Result<(), PolicyError> {
    let Resolved { path: hidden, kind } = found;
    if workspace.starts_with(&hidden) {
        return Err(PolicyError::InHidden { field: "--workspace", path: workspace.to_owned(), hidden });
    }
    let is_own = |path: &Path| path == home || path == home.join(PROGRAMS_FOLDER);
    let is_mount = |seen: Visibility| matches!(seen, Visibility::Read | Visibility::Write);
    if let Some((path, _)) = paths.iter().find(|(path, seen)| path.starts_with(&hidden) && is_mount(**seen) && !is_own(path)) {
        return Err(PolicyError::InHidden { field: "mounts", path: path.clone(), hidden });
    }
    if home.starts_with(&hidden) {
        return Err(PolicyError::HidesHome(hidden));
    }
    paths.retain(|path, _| !path.starts_with(&hidden));
    // There is no file in a hidden folder that something could be mounted on.
    if !hidden.ancestors().any(|folder| matches!(paths.get(folder), Some(Visibility::Hidden(_)))) {
        paths.insert(hidden, Visibility::Hidden(kind));
    }
    Ok(())
}

/// Hides the sockets that would be visible. Their servers run outside the sandbox, and some start programs there for a client, such
/// as a container engine. A read-only folder does not prevent a connection. A socket that is a mount itself was named by a person.
fn hide_sockets(policy: &mut Policy, platform: Platform, sockets: &[PathBuf]) {
    let replaced = replaced(platform);
    for socket in sockets.iter().filter(|path| !replaced.iter().any(|folder| path.starts_with(folder))) {
        if matches!(policy.visibility(socket), Visibility::Read | Visibility::Write) && !policy.paths.contains_key(socket) {
            policy.paths.insert(socket.clone(), Visibility::Hidden(FileKind::File));
        }
    }
}

impl Policy {
    /// How a path without links is seen.
    pub fn visibility(&self, path: &Path) -> Visibility {
        path.ancestors().find_map(|folder| self.paths.get(folder)).copied().unwrap_or(Visibility::Read)
    }

    /// How the folder around a path is seen.
    pub fn around(&self, path: &Path) -> Visibility {
        path.parent().map_or(Visibility::Read, |parent| self.visibility(parent))
    }

    /// For people: what is visible and hidden.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        for (path, seen) in &self.paths {
            let word = match seen {
                Visibility::Read => "read-only",
                Visibility::Write => "read-write",
                Visibility::Temporary => "empty, in memory",
                Visibility::Hidden(_) => "hidden",
            };
            text.push_str(&format!("{word:<17} {}\n", path.display()));
        }
        let network = match (self.network, &self.bridge) {
            (NetworkAccess::Host, _) => "that of this machine".to_owned(),
            (NetworkAccess::None, None) => "none".to_owned(),
            (NetworkAccess::None, Some(url)) => format!("none but the bridge at {url}"),
        };
        let names: Vec<_> = self.environment.iter().map(|(name, _)| name.to_string_lossy()).collect();
        text + &format!("network           {network}\nenvironment       {}\n", names.join(" "))
    }
}

fn replaced(platform: Platform) -> &'static [&'static str] {
    match platform {
        Platform::Linux => &LINUX_REPLACED,
        Platform::Macos => &MACOS_REPLACED,
    }
}

fn check_path(platform: Platform, field: &'static str, path: &Path) -> Result<(), PolicyError> {
    match replaced(platform).iter().find(|system| path.starts_with(system)) {
        Some(system) => Err(PolicyError::InKernelFolder { field, path: path.to_owned(), system }),
        None => check_system(platform, field, path),
    }
}

fn check_system(platform: Platform, field: &'static str, path: &Path) -> Result<(), PolicyError> {
    let system: &[&str] = match platform {
        Platform::Linux => &LINUX_SYSTEM,
        Platform::Macos => &MACOS_SYSTEM,
    };
    match system.iter().find(|system| Path::new(system).starts_with(path)) {
        Some(system) => Err(PolicyError::ContainsSystem { field, path: path.to_owned(), system }),
        None => Ok(()),
    }
}

/// A path of the configuration, with `~` replaced.
fn absolute(field: &'static str, path: &Path, home: &Path) -> Result<PathBuf, PolicyError> {
    match path.strip_prefix("~") {
        Ok(rest) => Ok(home.join(rest)),
        Err(_) if path.is_absolute() => Ok(path.to_owned()),
        Err(_) => Err(PolicyError::Relative { field, path: path.to_owned() }),
    }
}

fn program_environment(
    own: &[(OsString, OsString)],
    pass: &[String],
    home: &Path,
    bridge: Option<String>,
) -> Result<Vec<(OsString, OsString)>, PolicyError> {
    let bad = |name: &&String| name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if let Some(name) = pass.iter().find(bad) {
        return Err(PolicyError::Variable(name.clone()));
    }
    let allowed = |name: &str| ENVIRONMENT.contains(&name) || name.starts_with("LC_") || pass.iter().any(|passed| passed == name);
    let mut environment = BTreeMap::from([("PATH".into(), OsString::from(DEFAULT_PATH))]);
    environment.extend(own.iter().filter(|(name, _)| name.to_str().is_some_and(allowed)).cloned());
    environment.insert("HOME".into(), home.into());
    environment.insert("TMPDIR".into(), "/tmp".into());
    match bridge {
        Some(url) => environment.insert(BRIDGE_VARIABLE.into(), url.into()),
        None => environment.remove(std::ffi::OsStr::new(BRIDGE_VARIABLE)),
    };
    Ok(environment.into_iter().collect())
}
