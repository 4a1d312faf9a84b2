//! `spillway-agent`, and under the name `spillway` the commands of the program. It parses arguments and calls the library.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use spillway_pod::agent::home::Home;
use spillway_pod::command::{self, SidecarPaths, Verb, shell};
use spillway_pod::{DATA_DIR, FIRST_LOOPBACK_PORT, MAX_PROCESSES, SOCKET_PATH, agent, external, install, link, local_sandbox, record};

/// The programs inside an agent's pod.
#[derive(Parser)]
#[command(name = "spillway-agent", version, about, after_help = command::EXIT_CODES)]
struct Arguments {
    #[command(flatten)]
    place: SidecarPaths,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Copy this binary to a folder, and link `spillway` and the timed shells to it
    Install {
        /// Folder of the copy and the links
        dir: PathBuf,
    },
    /// Run the sidecar, which makes all calls of the pod to the gateway
    Link(LinkArguments),
    /// Run a program outside the cluster, as an agent of a pool with spec.external. Nothing isolates the program
    Run(external::Arguments),
    /// Run a command on this machine in a sandbox, without Kubernetes; or find out what the sandbox of a pod would refuse it
    Sandbox(SandboxArguments),
    /// Start the command of a local sandbox, inside it
    #[command(hide = true)]
    SandboxStage(local_sandbox::StageArguments),
    /// Run the supervisor, as PID 1 of the agent's container. It starts the program and ends it
    Agent(AgentArguments),
    #[command(flatten)]
    Program(Verb),
}

#[derive(clap::Args)]
struct SandboxArguments {
    /// Run the command without a sandbox, and print what the sandbox of a pod would refuse
    #[arg(long)]
    record: bool,
    #[command(flatten)]
    recording: record::Arguments,
    #[command(flatten)]
    local: local_sandbox::Arguments,
    /// The command and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

#[derive(clap::Args)]
struct LinkArguments {
    /// Address of the gateway, as IP:PORT
    #[arg(long, env = "SPILLWAY_GATEWAY")]
    gateway: SocketAddr,
    /// File with the certificates to trust. It is read for each connection
    #[arg(long, default_value = "/spillway/ca/ca.crt")]
    ca: PathBuf,
    /// File with the pod's token. It is read for each call
    #[arg(long, default_value = "/spillway/token/token")]
    token: PathBuf,
    /// Folder for state that must survive a restart of the sidecar
    #[arg(long, default_value = "/spillway/journal")]
    journal: PathBuf,
    /// Path of the unix socket
    #[arg(long, default_value = SOCKET_PATH)]
    socket: PathBuf,
    /// First of the loopback ports; 0 opens none. It is fixed in a pod
    #[arg(long, hide = true, default_value_t = FIRST_LOOPBACK_PORT)]
    first_port: u16,
    /// Milliseconds between two tests of the network isolation, while it is in force
    #[arg(long, hide = true, default_value_t = 60_000)]
    look_each_ms: u64,
    /// Milliseconds for which the breaker of commands stays open
    #[arg(long, hide = true)]
    commands_open_ms: Option<u64>,
    /// Claim and path of the pool's folder, as CLAIM/PATH. Its volume is mounted at /spillway/volume
    #[arg(long, env = "SPILLWAY_FOLDER")]
    folder: Option<String>,
}

#[derive(clap::Args)]
struct AgentArguments {
    /// Variable of the container's environment that the program gets too (repeatable)
    #[arg(long, value_name = "NAME")]
    pass: Vec<String>,
    /// Give the program the container's terminal
    #[arg(long)]
    tty: bool,
    /// Processes and threads that the program may have at once. The limit applies only in a pod with its own user namespace
    #[arg(long, value_name = "N", default_value_t = MAX_PROCESSES)]
    max_processes: u64,
    /// Data folder of the program
    #[arg(long, value_name = "DIR", env = spillway_pod::DATA_DIR_VARIABLE, default_value = DATA_DIR)]
    data: PathBuf,
    /// Home folder of the program. It is created, and only its owner has access
    #[arg(long, value_name = "DIR")]
    home: Option<PathBuf>,
    /// File, and the path to which it is copied before the first program starts (repeatable)
    #[arg(long, num_args = 2, value_names = ["FROM", "TO"])]
    file: Vec<PathBuf>,
    /// Path of the sidecar's socket
    #[arg(long, value_name = "PATH", default_value = SOCKET_PATH)]
    socket: PathBuf,
    /// Outside the cluster: pid of the process that started the supervisor, and that ends the processes that are left
    #[arg(long, hide = true, value_name = "PID")]
    parent: Option<i32>,
    /// The program and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

fn main() -> ExitCode {
    let called = std::env::args_os().next();
    if let (Some(name), Some(shell)) = (&called, shell::called_shell(called.as_deref())) {
        return ExitCode::from(shell::run(shell, name, std::env::args_os().skip(1).collect()));
    }
    if called.as_deref().map(Path::new).and_then(Path::file_name) == Some(install::COMMAND_NAME.as_ref()) {
        return ExitCode::from(command::run(command::Arguments::parse()));
    }
    let Arguments { place, command } = Arguments::parse();
    let done = match command {
        Command::Install { dir } => install::install(&dir).map(|()| 0),
        Command::Link(arguments) => link::run(&options(arguments)).map(|()| 0),
        Command::Run(arguments) => external::run(arguments),
        Command::Sandbox(SandboxArguments { record: true, recording, local: _, command }) => record::run(recording, &command),
        Command::Sandbox(SandboxArguments { record: false, recording: _, local, command }) => Ok(local_sandbox::run(local, command)),
        Command::SandboxStage(arguments) => Ok(local_sandbox::run_stage(arguments)),
        Command::Agent(AgentArguments { pass, tty, max_processes, data, home, file, socket, parent, command }) => {
            let home = Home::new(home, &file);
            agent::run(agent::Options { command, pass, tty, max_processes, data, home, socket, parent })
        }
        Command::Program(verb) => Ok(command::run_verb(&place, verb)),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn options(arguments: LinkArguments) -> link::Options {
    let LinkArguments { gateway, ca, token, journal, socket, first_port, look_each_ms, commands_open_ms, folder } = arguments;
    let look_each = Duration::from_millis(look_each_ms);
    let commands_open = commands_open_ms.map(Duration::from_millis);
    link::Options { gateway: gateway.to_string(), ca, token, journal, socket, first_port, look_each, commands_open, folder }
}
