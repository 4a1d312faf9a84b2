//! The kubectl plugin, `kubectl spillway`: what a person types to see agents and to say how many there should be.
//!
//! A command goes three ways, each testable alone: its arguments (parsed and checked before anything is sent) become a
//! typed report (the only part that talks to the API server, through [`Cluster`]), and the report becomes text (pure).
//!
//! | file | for |
//! |---|---|
//! | [`scale`], [`ls`], [`spawn`], [`rm`], [`grant`], [`breaker`], [`chat`], [`logs`] | one command each: `Arguments`, the calls, the report, `render` |
//! | [`pause`] | a folder, two commands: `pause` and `resume` |
//! | [`work`] | a folder: the commands for items and queues |
//! | [`explain`] | a folder: what is read, the reports, the table of advice, the words |
//! | [`top`] | a folder: agents, pools and queues, what the user chose, the lines, the screen |
//! | [`find`] | which object a name means, and the state of an Agent in a few words |
//! | [`connect`] | the usual kubectl flags, and the client they lead to |
//! | [`error`] | what can go wrong, told with the way to mend it |
//! | [`input`] | names, quantities, durations and times as people write them |
//! | [`write`](mod@write) | looking at one object, deciding, one merge patch |
//! | [`wait`] | looking again until something is so |
//! | [`table`] | columns, ages, and text that is safe to print |
//! | [`console`] | standard output, standard error, and questions |
//!
//! What it must not do: use rights that its user does not have, write anything but custom resources (`rm --force` also ends
//! pods) or read anything else (`explain` also reads the agent's pod and events, `release` the pod and its node, `logs` its
//! log, and `chat` leaves the terminal to kubectl), or write a field that nobody asked for, or a status. Every delete carries
//! the uid of what its user saw, and every patch of an agent or of work that uid or the version.

pub mod breaker;
pub mod chat;
pub mod connect;
pub mod console;
pub mod error;
pub mod explain;
pub mod find;
pub mod grant;
pub mod input;
mod last_words;
pub mod logs;
pub mod ls;
pub mod pause;
pub mod rm;
pub mod scale;
pub mod spawn;
pub mod table;
pub mod top;
pub mod wait;
pub mod work;
pub mod write;

use clap::{CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;

pub use connect::{Cluster, ConnectArguments};
pub use console::{Console, Output, Terminal};
pub use error::Error;

use spillway_api as api;
use spillway_policy as policy;

/// The version of this build, as `version` prints it and the User-Agent carries it.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The name of the program, as completion scripts and the User-Agent have it.
pub const PROGRAM_NAME: &str = "kubectl-spillway";

/// See and steer fleets of AI coding agents.
#[derive(Debug, Parser)]
#[command(
    name = PROGRAM_NAME,
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
  kubectl spillway rm coders-1f2e3d4c5b        # end one
  kubectl spillway explain coders-1f2e3d4c5b   # why it is as it is, and what to do
  kubectl spillway logs coders-1f2e3d4c5b -f   # what it writes
  kubectl spillway ask 'fix the login'         # work for them, in words
  kubectl spillway submit bugs --payload '...' # the same, item by item
  kubectl spillway queue bugs                  # what waits, in its order
  kubectl spillway top                         # all of them, live"
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
    /// Hold agents (they keep what they have, take no work and make no model calls), items or queues
    #[command(after_help = pause::PAUSE_HELP)]
    Pause(pause::Arguments),
    /// Let paused agents, items or queues go on
    #[command(after_help = pause::RESUME_HELP)]
    Resume(pause::Arguments),
    /// Give an agent, a Budget or a ClusterBudget more tokens
    Grant(grant::Arguments),
    /// Approve that what a Breaker stopped is tried again, or hold its circuits open or closed
    #[command(after_help = breaker::BREAKER_HELP)]
    Breaker(breaker::Arguments),
    /// Sit down at the terminal of an agent of a Chat pool
    Chat(chat::Arguments),
    /// Show what an agent's program writes
    Logs(logs::Arguments),
    /// Ask a scheduler agent in words: it makes items of work of them, or answers
    Ask(work::ask::Arguments),
    /// Make items of work
    Submit(work::submit::Arguments),
    /// Show queues, or one with its items in their order
    Queue(work::queue::Arguments),
    /// End items, or all items of a group or of a queue; it cannot be taken back
    Cancel(work::cancel::Arguments),
    /// Put items before, or behind, the others of their queue
    Priority(work::priority::Arguments),
    /// Start items again that ended without success, dead letters above all
    Redrive(work::redrive::Arguments),
    /// Say that the node of an item's agent is dead, so that another agent gets the item
    Release(work::release::Arguments),
    /// Say why an agent, a pool, an item or a queue is as it is, what it waits for, and what to do
    Explain(explain::Arguments),
    /// Watch agents live, or pools, or queues
    Top(top::Arguments),
    /// Print a completion script
    #[command(after_help = "Examples:
  source <(kubectl-spillway completion bash)
  kubectl-spillway completion zsh > \"${fpath[1]}/_kubectl-spillway\"
  kubectl-spillway completion fish > ~/.config/fish/completions/kubectl-spillway.fish
  kubectl-spillway completion powershell | Out-String | Invoke-Expression

The script completes the program's own name, kubectl-spillway.")]
    Completion {
        /// For which shell
        #[arg(value_parser = clap::builder::PossibleValuesParser::new(["bash", "zsh", "fish", "powershell"]))]
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
        Command::Version => console.show(Output::of(format!("{PROGRAM_NAME} {}\n", crate::VERSION))),
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
        Command::Pause(arguments) => hold(&connect.connect().await?, pause::Verb::Pause, &arguments, console).await?,
        Command::Resume(arguments) => hold(&connect.connect().await?, pause::Verb::Resume, &arguments, console).await?,
        Command::Grant(arguments) => {
            let cluster = connect.connect().await?;
            let report = grant::run(&cluster, &arguments, jiff::Timestamp::now()).await?;
            console.show(grant::render(&report));
            if !report.dry_run {
                console.show(grant::render_waited(&report, &grant::wait(&cluster, &report).await?));
            }
        }
        Command::Breaker(arguments) => {
            console.show(breaker::render(&breaker::run(&connect.connect().await?, &arguments).await?));
        }
        Command::Chat(arguments) => {
            let session = chat::run(&connect.connect().await?, &arguments).await?;
            if !console::interactive() {
                return Err(Error::Usage("a chat needs a terminal: standard input and standard output must be one".into()));
            }
            console.show(chat::render(&session));
            return Err(chat::attach(&session, &connect));
        }
        Command::Logs(arguments) => {
            let plan = logs::plan(&connect.connect().await?, &arguments).await?;
            logs::run(&connect.connect_to_follow().await?, &plan, console).await;
        }
        Command::Ask(arguments) => work::ask::execute(&connect.connect().await?, &arguments, console).await?,
        Command::Submit(arguments) => work::submit::execute(&connect.connect().await?, &arguments, console).await?,
        Command::Queue(arguments) => work::queue::execute(&connect.connect().await?, &arguments, console).await?,
        Command::Cancel(arguments) => work::cancel::execute(&connect.connect().await?, &arguments, console).await?,
        Command::Priority(arguments) => work::priority::execute(&connect.connect().await?, &arguments, console).await?,
        Command::Redrive(arguments) => work::redrive::execute(&connect.connect().await?, &arguments, console).await?,
        Command::Release(arguments) => work::release::execute(&connect.connect().await?, &arguments, console).await?,
        Command::Explain(arguments) => {
            let facts = explain::run(&connect.connect().await?, &arguments).await?;
            console.show(explain::render(&explain::report(&facts), arguments.output, jiff::Timestamp::now())?);
        }
        Command::Top(arguments) => top::execute(&connect.connect().await?, &arguments, console).await?,
    }
    Ok(())
}

/// `pause` and `resume`: ask, wait.
async fn hold(cluster: &Cluster, verb: pause::Verb, arguments: &pause::Arguments, console: &mut dyn Console) -> Result<(), Error> {
    let report = pause::run(cluster, verb, arguments).await?;
    console.show(pause::render(&report));
    if arguments.wait {
        console.show(pause::render_waited(&pause::wait(cluster, &report, arguments.timeout).await?));
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
    clap_complete::generate(shell, &mut Arguments::command(), PROGRAM_NAME, &mut script);
    Ok(Output::of(String::from_utf8_lossy(&script).into_owned()))
}

#[cfg(test)]
mod examples_tests;

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(std::iter::once(PROGRAM_NAME).chain(line.split_whitespace()))
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
            "pause a agent/b --wait --timeout 2m",
            "pause queue/q item/bug-7",
            "resume a",
            "ask what is done?",
            "ask -",
            "ask fix it --wait --timeout 5m -o json",
            "ask -f tasks.txt -o name",
            "ask -- - a list",
            "submit q --payload x",
            "submit q -",
            "submit --queue q --payload x",
            "submit --type bug -f - --priority -3",
            "submit q --count 20 --payload p{} --after a --after item/b --not-before 30m --deadline 2026-11-22T18:00:00Z",
            "submit q --wait --timeout 2h -o name",
            "submit workqueue.spillway.dev/q --dedup-key k --dry-run",
            "queue",
            "queue -A",
            "queue q --all --limit 0",
            "queue q --suspend",
            "queue --stats",
            "queue q --stats --since 15m",
            "queue -A --stats",
            "cancel a workitem.spillway.dev/b.c",
            "cancel --group g --queue q -y",
            "cancel --queue q --all --dry-run",
            "priority a 5",
            "priority a workitem.spillway.dev/b -5",
            "priority -n x a -1000000 --dry-run",
            "priority 5 --queue q",
            "priority -5 --queue workqueue/q --group g --phase Ready --phase Leased -y",
            "priority --queue q 0",
            "redrive a",
            "redrive --queue q --phase Failed --phase Expired --reason R --group g --rate 2 -y",
            "release a",
            "release item/a --node-is-dead -y",
            "explain item/a",
            "explain queue/q -o json",
            "grant agent/a 5000",
            "grant bud/team 50k --limit hourly --for 1h --reason release",
            "grant clusterbudget.spillway.dev/default 2M --name week --dry-run",
            "breaker approve default",
            "breaker auto b -n x",
            "chat p",
            "chat pool/p -n x",
            "logs a -f --tail 5 --since 5m",
            "logs a --tail 0 --link",
            "logs agent/a --previous",
            "logs --pool p -f",
            "explain a",
            "explain pool/p -o json",
            "top",
            "top p --sort tokens --interval 500ms",
            "top -A --once",
            "top pools -A --sort missing",
            "top queues --once --sort oldest --interval 1s",
            "top pool/queues",
            "top queues -n x",
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
            ("pause", "<NAME>"),
            ("pause pool/p", "\"pool/p\" cannot be paused"),
            ("ask", "<WORDS>"),
            ("ask fix it -f tasks.txt", "cannot be used with"),
            ("ask fix it --timeout soon", "write 30s, 2m or 1h"),
            ("ask fix it -o yaml", "possible values: name, json"),
            ("submit q --payload x -f y", "cannot be used with"),
            ("submit q --dedup-key k --name n", "cannot be used with"),
            ("submit q --deadline tomorrow", "with its zone, or 90m"),
            ("submit q --count 0", "0 is not in 1..=10000"),
            ("submit q --priority 1000001", "is not in -1000000..=1000000"),
            ("submit q --type Bug", "lower-case letters"),
            ("submit q --wait --dry-run", "cannot be used with"),
            ("submit item/q", "\"item/q\" is not a WorkQueue"),
            ("queue --all", "<NAME>"),
            ("queue q --suspend --resume", "cannot be used with"),
            ("cancel", "ITEM"),
            ("cancel a --group g", "cannot be used with"),
            ("cancel --all", "--queue"),
            ("redrive", "ITEM"),
            ("priority a", "invalid value 'a' for '<N>'"),
            ("priority 5", "required arguments were not provided"),
            ("priority a 1000001", "1000001 is not in -1000000..=1000000"),
            ("priority a 5 --queue q", "cannot be used with"),
            ("priority 5 --queue q --phase Succeeded", "invalid value 'Succeeded'"),
            ("redrive --queue q --phase Succeeded", "possible values: DeadLettered, Failed, Expired, Rejected"),
            ("redrive --phase Failed", "--queue"),
            ("redrive --queue q --rate 0", "0 is not in 1..=1000"),
            ("release", "<ITEM>"),
            ("release a -y", "--node-is-dead"),
            ("explain pod/a", "item/NAME or queue/NAME"),
            ("resume a --timeout 5s", "--wait"),
            ("grant team 5", "write agent/NAME, budget/NAME or clusterbudget/NAME"),
            ("grant budget/team", "<N>"),
            ("grant budget/team 0", "1 to 1000000000000 tokens"),
            ("grant budget/team 5G", "write 50000, 50k or 2M"),
            ("grant budget/team 5 --for soon", "write 30s, 2m or 1h"),
            ("breaker approve", "<NAME>"),
            ("breaker trip b", "possible values: approve, open, close, auto"),
            ("chat", "<AGENT|POOL>"),
            ("chat pod/a", "neither an Agent nor an AgentPool"),
            ("logs", "AGENT"),
            ("logs a --pool p", "cannot be used with"),
            ("logs a --tail -1", "-1 is not in 0.."),
            ("logs a --since soon", "write 30s, 2m or 1h"),
            ("explain", "<NAME>"),
            ("explain a -o yaml", "possible values: json"),
            ("top p -A", "cannot be used with"),
            ("top --interval 100ms", "at least 500ms"),
            ("top queues --sort tokens", "possible values: name, ready, oldest, full, dead"),
            ("top queues p", "unexpected argument"),
            ("top p queues", "cannot be used with"),
            ("top --sort heat", "possible values: name, phase, age, tokens, activity"),
            ("completion tcsh", "possible values: bash, zsh, fish, powershell"),
        ];
        for (line, words) in lines {
            let error = parse(line).expect_err(line).to_string();
            assert!(error.contains(words), "{line}: {error}");
        }
    }

    #[test]
    fn every_shell_gets_a_script() {
        for shell in ["bash", "zsh", "fish", "powershell"] {
            assert!(completion(shell).expect(shell).out.contains(PROGRAM_NAME), "{shell}");
        }
    }
}
