//! The kubectl plugin, `kubectl spillway`: what a person types to see agents and to say how many there should be.
//!
//! A command goes three ways, each testable alone: its arguments (parsed and checked before anything is sent) become a
//! typed report (the only part that talks to the API server, through [`Cluster`]), and the report becomes text (pure).
//!
//! | file | for |
//! |---|---|
//! | [`scale`], [`ls`], [`spawn`], [`rm`] | one command each: `Arguments`, the calls, the report, `render` |
//! | [`connect`] | the usual kubectl flags, and the client they lead to |
//! | [`error`] | what can go wrong, told with the way to mend it |
//! | [`input`] | names, quantities and durations as people write them |
//! | [`table`] | columns, ages, and text that is safe to print |
//! | [`console`] | standard output, standard error, and questions |
//!
//! What it must not do: use rights that its user does not have, read or write anything but custom resources (`rm --force`
//! also ends pods), or write a field that nobody asked for. Every delete carries the uid of what its user saw.

pub mod connect;
pub mod console;
pub mod error;
pub mod input;
pub mod ls;
pub mod rm;
pub mod scale;
pub mod spawn;
pub mod table;

use clap::{CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;

pub use connect::{Cluster, ConnectArguments};
pub use console::{Console, Output, Terminal};
pub use error::Error;

/// The name of the program, as completion scripts and the User-Agent have it.
pub const PROGRAM: &str = "kubectl-spillway";

/// See and steer fleets of AI coding agents.
#[derive(Debug, Parser)]
#[command(
    name = PROGRAM,
    bin_name = "kubectl spillway",
    version,
    about,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "Examples:
  kubectl spillway ls                          # the agents of this namespace
  kubectl spillway scale                       # its pools
  kubectl spillway scale coders --replicas 3   # exactly three agents
  kubectl spillway scale coders --auto         # as many as min, max and the work say
  kubectl spillway spawn coders --memory 4Gi   # one more, by hand
  kubectl spillway rm coders-1f2e3d4c5b        # end one"
)]
pub struct Arguments {
    /// Which cluster, as whom.
    #[command(flatten)]
    pub connect: ConnectArguments,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Say how many agents a pool runs, or show what pools want and have
    Scale(scale::Arguments),
    /// List agents
    #[command(visible_alias = "list")]
    Ls(ls::Arguments),
    /// Make one agent by hand: outside its pool's min and max, never outside its bulkhead
    Spawn(spawn::Arguments),
    /// Delete agents; their pool replaces what it still wants
    Rm(rm::Arguments),
    /// Print a completion script
    #[command(after_help = "Examples:
  source <(kubectl-spillway completion bash)
  kubectl-spillway completion zsh > \"${fpath[1]}/_kubectl-spillway\"
  kubectl-spillway completion fish > ~/.config/fish/completions/kubectl-spillway.fish

The script completes the program's own name, kubectl-spillway.")]
    Completion {
        /// For which shell
        #[arg(value_parser = clap::builder::PossibleValuesParser::new(["bash", "zsh", "fish"]))]
        shell: String,
    },
    /// Print the version of this plugin
    Version,
}

/// Runs one command. `Err` is what stopped it; what it found out before is on the console already.
pub async fn run(arguments: Arguments, console: &mut dyn Console) -> Result<(), Error> {
    let Arguments { connect, command } = arguments;
    match command {
        Command::Completion { shell } => console.show(completion(&shell)?),
        Command::Version => console.show(Output::of(format!("{PROGRAM} {}\n", crate::VERSION))),
        Command::Scale(arguments) => {
            let cluster = connect.connect().await?;
            console.show(scale::render(&scale::run(&cluster, &arguments).await?));
        }
        Command::Ls(arguments) => {
            let cluster = connect.connect().await?;
            console.show(ls::render(&ls::run(&cluster, &arguments).await?, arguments.output, jiff::Timestamp::now())?);
        }
        Command::Spawn(arguments) => {
            let cluster = connect.connect().await?;
            let spawned = spawn::run(&cluster, &arguments, rand::random()).await?;
            console.show(spawn::render(&spawned));
            if arguments.wait {
                console.show(spawn::render_waited(&spawned, &spawn::wait(&cluster, &spawned, arguments.timeout).await?));
            }
        }
        Command::Rm(arguments) => remove(&connect.connect().await?, &arguments, console).await?,
    }
    Ok(())
}

/// `rm`: look, ask, delete, wait.
async fn remove(cluster: &Cluster, arguments: &rm::Arguments, console: &mut dyn Console) -> Result<(), Error> {
    let plan = rm::plan(cluster, arguments).await?;
    if let Some(question) = rm::question(&plan, arguments)
        && !console.confirm(&question)?
    {
        return Err(Error::Usage("nothing was deleted".into()));
    }
    let report = rm::run(cluster, plan, arguments.force).await;
    console.show(rm::render(&report));
    if arguments.wait {
        console.show(rm::render_waited(&rm::wait(cluster, &report, arguments.timeout).await?));
    }
    Ok(())
}

fn completion(shell: &str) -> Result<Output, Error> {
    let shell: Shell = shell.parse().map_err(Error::Usage)?;
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), PROGRAM, &mut script);
    Ok(Output::of(String::from_utf8_lossy(&script).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(std::iter::once(PROGRAM).chain(line.split_whitespace()))
    }

    #[test]
    fn the_definition_of_the_arguments_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn what_makes_sense_is_taken() {
        let lines = [
            "scale",
            "scale -A",
            "scale p",
            "scale p --replicas 0",
            "scale agentpool/p --min 1 --max 5",
            "scale p --max 5",
            "scale p --auto",
            "scale p --auto --max 5",
            "ls",
            "list -A --all -o wide",
            "ls p -o json -n x",
            "-n x ls",
            "--context c --kubeconfig f --request-timeout 5s ls",
            "ls --request-timeout 0",
            "spawn p --name a --cpus 500m --memory 1Gi",
            "spawn p --wait --timeout 2m",
            "rm a b",
            "rm agent.spillway.dev/a --force --wait --timeout 90",
            "rm --pool p --all --yes",
            "completion zsh",
            "version",
        ];
        for line in lines {
            assert!(parse(line).is_ok(), "{line}: {}", parse(line).expect_err("refused"));
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_before_anything_is_sent() {
        let lines = [
            ("scale --replicas 3", "<POOL>"),
            ("scale p --replicas 3 --auto", "cannot be used with"),
            ("scale p --replicas 3 --min 1", "cannot be used with"),
            ("scale p --replicas -1", "-1 is not in 0..=10000"),
            ("scale p -A", "cannot be used with"),
            ("scale queue/p", "\"queue/p\" is not an AgentPool"),
            ("ls -o table", "possible values: wide, json, yaml, name"),
            ("spawn", "<POOL>"),
            ("spawn p --name A_b", "at most 63 lower-case letters"),
            ("spawn p --memory 1GB", "did you mean 1G or 1Gi?"),
            ("spawn p --memory 512m", "did you mean 512Mi?"),
            ("spawn p --cpus 0", "more than nothing"),
            ("spawn p --timeout 5s", "--wait"),
            ("rm", "AGENT"),
            ("rm --pool p", "--all"),
            ("rm --all", "--pool"),
            ("rm a --pool p --all", "cannot be used with"),
            ("ls --request-timeout soon", "write 30s, 2m or 1h"),
            ("completion tcsh", "possible values: bash, zsh, fish"),
        ];
        for (line, words) in lines {
            let error = parse(line).expect_err(line).to_string();
            assert!(error.contains(words), "{line}: {error}");
        }
    }

    #[test]
    fn every_shell_gets_a_script() {
        for shell in ["bash", "zsh", "fish"] {
            assert!(completion(shell).expect(shell).out.contains(PROGRAM), "{shell}");
        }
    }
}
