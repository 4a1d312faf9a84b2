//! The launcher, outside the sandbox: it gathers facts, asks the policy, starts bubblewrap, passes signals on, and gives the exit
//! code of the command. It decides nothing about what is visible.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use spillway_sandbox::signals::{END_SIGNALS, ignore};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;

use super::LAUNCH_FAILED;
use super::bridge::{BridgeUrl, DEFAULT_URL, forward_socket};
use super::bubblewrap::{self, BRIDGE_SOCKET, CONTROL_SOCKET, EMPTY_FILE, Launch, NamespaceLimits, quoted, setup_failure};
use super::config::{Config, NetworkAccess};
use super::policy::{self, FileKind, Platform, Policy, Request, Resolved, Visibility};
use super::seatbelt;
use super::sockets::host_sockets;
use super::started_bridge::{self, StartedBridge};
use crate::process::exit_code;
use crate::random;

/// The name of bubblewrap's program.
const BUBBLEWRAP: &str = "bwrap";
/// The program that applies a Seatbelt profile.
const SANDBOX_EXEC: &str = "sandbox-exec";
/// The file of name servers.
const RESOLVER_FILE: &str = "/etc/resolv.conf";
/// The signals of a terminal's keys, which reach the command without us.
const TERMINAL_SIGNALS: [SignalKind; 2] = [SignalKind::interrupt(), SignalKind::quit()];

/// Added to a signal's number: the exit code if the signal ends us before the command has started.
const SIGNAL_EXIT_CODE: u8 = 128;
/// Wait for the connection of a stage that may have ended already.
const ACCEPT_GRACE: Duration = Duration::from_millis(100);

/// How the command is confined.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Arguments {
    /// Folder that the command works in, and may write to
    #[arg(long, value_name = "DIR", conflicts_with = "record")]
    workspace: Option<PathBuf>,
    /// URL of the bridge, as http://localhost:3000. It is the only address that the command reaches, unless the network is host
    #[arg(long, value_name = "URL", conflicts_with = "record")]
    bridge_url: Option<BridgeUrl>,
    /// Folder of definitions: starts `spillway bridge` with them, if nothing answers at the URL of the bridge. It ends with the command
    #[arg(long, value_name = "DIR", conflicts_with_all = ["record", "print"])]
    start_bridge: Option<PathBuf>,
    /// Configuration file, in YAML
    #[arg(long, value_name = "FILE", conflicts_with = "record")]
    config: Option<PathBuf>,
    /// Say on standard error what is visible and hidden
    #[arg(long, conflicts_with = "record")]
    verbose: bool,
    /// Print the command line of bubblewrap, or the profile of macOS, and run nothing
    #[arg(long, conflicts_with = "record")]
    print: bool,
    /// The system [default: that of this machine]
    #[arg(long, value_enum, requires = "print", conflicts_with = "record")]
    platform: Option<Platform>,
}

/// Why the command was not started.
type LaunchError = Box<dyn std::error::Error>;

/// Runs until the command has ended; returns its exit code, or that of a failed launch.
pub fn run(arguments: Arguments, command: Vec<OsString>) -> u8 {
    launch(arguments, command).unwrap_or_else(|error| {
        eprintln!("error: {error}");
        LAUNCH_FAILED
    })
}

fn launch(arguments: Arguments, command: Vec<OsString>) -> Result<u8, LaunchError> {
    let Arguments { workspace, bridge_url, start_bridge, config, verbose, print, platform } = arguments;
    let platform = platform.unwrap_or_else(Platform::own);
    let workspace = workspace.ok_or("--workspace is required")?;
    let mut config = config.map(|path| Config::read(&path)).transpose()?.unwrap_or_default();
    config.bridge = bridge_url.or(config.bridge);
    if start_bridge.is_some() && config.bridge.is_none() {
        config.bridge = Some(DEFAULT_URL.parse()?);
    }
    let audit = start_bridge.as_ref().map(|_| home().and_then(|home| started_bridge::audit_file(&home))).transpose()?;
    let environment: Vec<_> = std::env::vars_os().collect();
    let sockets = host_sockets(&environment);
    let policy = policy::build(&Request { platform, workspace, config, environment, sockets }, resolve)?;
    if verbose {
        eprint!("{}", policy.describe());
    }
    let definitions = start_bridge.map(|folder| definitions(&policy, &folder)).transpose()?;
    let bridge = definitions.zip(audit).map(|(definitions, audit)| BridgeToStart { definitions, audit });
    let program = std::env::current_exe()?;
    let folder = private_folder_path()?;
    let launch = Launch { program, folder, resolver: resolver(), terminal: has_terminal(), command };
    match (platform, print) {
        (Platform::Linux, true) => println!("{} {}", BUBBLEWRAP, quoted(&bubblewrap::arguments(&policy, &launch))),
        (Platform::Macos, true) => print!("{}", seatbelt::profile(&policy, &launch.folder)),
        (Platform::Linux, false) => return run_bubblewrap(policy, launch, bridge),
        (Platform::Macos, false) if bridge.is_some() => return Err("--start-bridge is for Linux: start spillway bridge yourself".into()),
        (Platform::Macos, false) => return Err(become_seatbelt(&policy, &launch)),
    }
    Ok(0)
}

/// What is needed to start a bridge.
struct BridgeToStart {
    /// The folder of its definitions.
    definitions: PathBuf,
    /// Its audit log.
    audit: PathBuf,
}

fn home() -> io::Result<PathBuf> {
    std::env::var_os("HOME").map(PathBuf::from).ok_or_else(|| io::Error::other("HOME is not set"))
}

/// The folder of definitions without links. A command that could write there would choose which programs run outside of its sandbox.
fn definitions(policy: &Policy, folder: &Path) -> Result<PathBuf, LaunchError> {
    let name = folder.display();
    let found = fs::canonicalize(folder).map_err(|error| format!("--start-bridge: {name}: {error}"))?;
    if policy.visibility(&found) == Visibility::Write {
        let why = "and so which programs run: keep the definitions outside of the workspace and of mounts with access Write";
        return Err(format!("--start-bridge: the command can change {name}, {why}").into());
    }
    Ok(found)
}

/// The path without links of a file that exists.
fn resolve(path: &Path) -> Option<Resolved> {
    let path = fs::canonicalize(path).ok()?;
    let kind = if path.is_dir() { FileKind::Folder } else { FileKind::File };
    Some(Resolved { path, kind })
}

/// The file of name servers, if it is a link into a folder that the sandbox replaces.
fn resolver() -> Option<PathBuf> {
    fs::canonicalize(RESOLVER_FILE).ok().filter(|path| path.starts_with("/run"))
}

/// Whether we run in the foreground of a terminal.
fn has_terminal() -> bool {
    fs::read_to_string("/proc/self/stat").is_ok_and(|text| in_foreground(&text))
}

/// The same from the kernel's line about a process: after the name come state, parent, group, session, terminal, and the group in
/// the foreground of that terminal.
fn in_foreground(stat: &str) -> bool {
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    matches!(fields.as_slice(), [_, _, group, _, terminal, foreground, ..] if *terminal != "0" && group == foreground)
}

/// A program by our `PATH`. Relative folders in it do not count, since a workspace could have a program of that name.
fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let runs = |path: &PathBuf| fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0);
    std::env::split_paths(&path).filter(|folder| folder.is_absolute()).map(|folder| folder.join(name)).find(runs)
}

/// Where the private folder of this run is.
fn private_folder_path() -> io::Result<PathBuf> {
    let unique = random::key()?;
    Ok(std::env::temp_dir().join(format!("spillway-sandbox-{}", unique.get(..16).unwrap_or_default())))
}

/// The private folder of a run. It is removed with this value.
struct PrivateFolder(PathBuf);

impl PrivateFolder {
    fn create(path: &Path) -> io::Result<Self> {
        // It must be new: an existing folder may belong to another user.
        DirBuilder::new().mode(0o700).create(path)?;
        let folder = Self(path.to_owned());
        File::create_new(path.join(EMPTY_FILE))?;
        Ok(folder)
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // the system clears its folder for temporary files
    }
}

/// The bridge must run before the command starts.
async fn check_bridge(policy: &Policy) -> Result<(), LaunchError> {
    let Some(url) = &policy.bridge else { return Ok(()) };
    let refused = |error| format!("the bridge is not running (start it with: spillway bridge): nothing answers at {url}: {error}");
    Ok(url.check().await.map_err(refused)?)
}

/// Starts the bridge, if none answers.
async fn start_bridge(policy: &Policy, to_start: &BridgeToStart, folder: &Path) -> Result<Option<StartedBridge>, LaunchError> {
    let Some(url) = &policy.bridge else { return Ok(None) };
    if url.check().await.is_ok() {
        return Ok(None);
    }
    if !url.is_local() {
        return Err(format!(
            "--start-bridge starts a bridge on this machine, and nothing answers at {url}: use --bridge-url {DEFAULT_URL}"
        )
        .into());
    }
    let program = find_program(started_bridge::PROGRAM).ok_or("--start-bridge needs the program spillway in a folder of PATH")?;
    let BridgeToStart { definitions, audit } = to_start;
    Ok(Some(StartedBridge::start(&program, url, definitions, audit, folder).await?))
}

fn run_bubblewrap(mut policy: Policy, launch: Launch, bridge: Option<BridgeToStart>) -> Result<u8, LaunchError> {
    let program = find_program(BUBBLEWRAP).ok_or("bubblewrap is not installed (apt-get install bubblewrap)")?;
    // One thread: the kernel ends bubblewrap when the thread that started it ends.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let folder = PrivateFolder::create(&launch.folder)?;
        let started = match &bridge {
            Some(bridge) => start_bridge(&policy, bridge, &folder.0).await?,
            None => check_bridge(&policy).await.map(|()| None)?,
        };
        let control = UnixListener::bind(folder.0.join(CONTROL_SOCKET))?;
        if let Some(url) = policy.bridge.clone().filter(|_| policy.network == NetworkAccess::None) {
            tokio::spawn(forward_socket(UnixListener::bind(folder.0.join(BRIDGE_SOCKET))?, url));
        }
        // Before the child starts, so that no signal is missed.
        let mut signals = EndSignals::new()?;
        let children = signal(SignalKind::child())?;
        // A socket may be gone since: bubblewrap would make a file in its place, or fail where it cannot.
        policy.paths.retain(|path, seen| !matches!(seen, Visibility::Hidden(FileKind::File)) || path.exists());
        let mut command = Command::new(program);
        command.args(bubblewrap::arguments(&policy, &launch)).env_clear().envs(policy.environment);
        // The command decides about them. Bubblewrap would end, and the command with it.
        ignore(&mut command, &END_SIGNALS);
        let child = command.spawn()?;
        signals.terminal = launch.terminal;
        let ended = supervise(child, children, control, signals).await;
        if let Some(bridge) = started {
            bridge.end().await;
        }
        ended
    })
}

/// Waits for bubblewrap, and passes signals on to the command.
async fn supervise(mut child: Child, mut children: Signal, control: UnixListener, mut signals: EndSignals) -> Result<u8, LaunchError> {
    let mut stage: Option<UnixStream> = None;
    loop {
        if let Some(status) = child.try_wait()? {
            // A command may be so short that its connection was not accepted yet.
            let began = stage.is_some() || timeout(ACCEPT_GRACE, control.accept()).await.is_ok();
            return if began { Ok(exit_code(status)) } else { Err(setup_failure(&namespace_limits()).into()) };
        }
        tokio::select! {
            _ = children.recv() => {}
            accepted = control.accept(), if stage.is_none() => stage = Some(accepted?.0),
            number = signals.next() => match &mut stage {
                // The command may have ended.
                Some(stage) => drop(stage.write_all(&[number]).await),
                // Bubblewrap ignores the signal, and may wait for a file system that does not answer.
                None => {
                    child.kill()?;
                    return Ok(SIGNAL_EXIT_CODE.saturating_add(number));
                }
            },
        }
    }
}

fn namespace_limits() -> NamespaceLimits {
    let read = |path: &str| fs::read_to_string(path).ok();
    NamespaceLimits {
        unprivileged: read("/proc/sys/kernel/unprivileged_userns_clone"),
        apparmor: read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
        limit: read("/proc/sys/user/max_user_namespaces"),
    }
}

/// The signals that ask us to end.
struct EndSignals {
    received: [(SignalKind, Signal); 4],
    /// Whether the command gets those of the terminal's keys itself.
    terminal: bool,
}

impl EndSignals {
    fn new() -> io::Result<Self> {
        let listen = |number| Ok::<_, io::Error>((SignalKind::from_raw(number), signal(SignalKind::from_raw(number))?));
        let [hangup, interrupt, quit, terminate] = END_SIGNALS;
        Ok(Self { received: [listen(hangup)?, listen(interrupt)?, listen(quit)?, listen(terminate)?], terminal: false })
    }

    /// The number of the next signal for the command.
    async fn next(&mut self) -> u8 {
        loop {
            let [(_, hangup), (_, interrupt), (_, quit), (_, terminate)] = &mut self.received;
            let at = tokio::select! {
                _ = hangup.recv() => 0,
                _ = interrupt.recv() => 1,
                _ = quit.recv() => 2,
                _ = terminate.recv() => 3,
            };
            let kind = self.received.get(at).map_or(SignalKind::terminate(), |(kind, _)| *kind);
            if !(self.terminal && TERMINAL_SIGNALS.contains(&kind)) {
                return u8::try_from(kind.as_raw_value()).unwrap_or_default();
            }
        }
    }
}

/// Becomes the command in a Seatbelt sandbox; returns why it could not. The private folder stays, since no process is left that
/// could remove it.
fn become_seatbelt(policy: &Policy, launch: &Launch) -> LaunchError {
    let prepare = || -> Result<Command, LaunchError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(check_bridge(policy))?;
        DirBuilder::new().mode(0o700).create(&launch.folder)?;
        let folder = fs::canonicalize(&launch.folder)?;
        // Outside the folder that the command may write to.
        let profile = folder.with_extension("sb");
        fs::write(&profile, seatbelt::profile(policy, &folder))?;
        let mut command = Command::new(SANDBOX_EXEC);
        command.arg(OsStr::new("-f")).arg(profile).args(&launch.command);
        command.env_clear().envs(policy.environment.iter().cloned()).env("HOME", &folder).env("TMPDIR", &folder);
        command.current_dir(&policy.workspace);
        Ok(command)
    };
    match prepare() {
        Ok(mut command) => command.exec().into(),
        Err(error) => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_foreground_is_read_from_the_kernels_line() {
        assert!(in_foreground("7 (a) b) S 1 7 7 34816 7 4194304 0"));
        assert!(!in_foreground("7 (a) S 1 7 7 34816 9 4194304 0"), "another job is in the foreground");
        assert!(!in_foreground("7 (a) S 1 7 7 0 -1 4194304 0"), "no terminal");
        assert!(!in_foreground("") && !in_foreground("7 (a) S 1"));
    }
}
