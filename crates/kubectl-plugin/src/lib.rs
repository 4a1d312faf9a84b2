//! The kubectl plugin, `kubectl spillway`: commands to see agents and work, and to control them.
//!
//! A command has three steps, and each can be tested alone. Its arguments are parsed and checked before anything is sent.
//! `run` turns them into a typed report; only this step talks to the API server, through [`Cluster`]. `render` turns the
//! report into text, and is pure.
//!
//! | file | for |
//! |---|---|
//! | [`scale`], [`ls`], [`spawn`], [`rm`], [`grant`], [`breaker`], [`chat`], [`logs`] | one command each: `Arguments`, the calls, the report, `render` |
//! | [`approval`] | three commands: `approvals`, `approve` and `deny` |
//! | [`pause`] | a folder, two commands: `pause` and `resume` |
//! | [`work`] | a folder: the commands for items and queues |
//! | [`artifact`] | a folder: the list of an item's files, and the content of one |
//! | [`explain`] | a folder: the facts, the reports, the table of advice, the text |
//! | [`top`] | a folder: agents, pools and queues, the state of the view, the lines, the screen |
//! | [`find`] | the object of a name, and the state of an Agent as a short text |
//! | [`connect`] | the usual kubectl flags, and the client that they configure |
//! | [`error`] | the errors, with what to do |
//! | [`input`] | names, quantities, durations and times as people write them |
//! | [`write`](mod@write) | reading one object, deciding, one merge patch |
//! | [`wait`] | polling until a condition holds |
//! | [`table`] | columns, ages, and text that is safe to print |
//! | [`console`] | standard output, standard error, and questions |
//!
//! It must not use rights that its user does not have. It must not write anything but custom resources; only `rm --force` also
//! deletes pods, and `approve` and `deny` ask the server for the user's name. It must not read anything else, with these exceptions: `explain` also reads the agent's pod and events,
//! `release` the pod and its node, and `logs` its log; `chat` leaves the terminal to kubectl. It must not write a status, nor a
//! field that the command does not name. Every delete carries the uid of the object that was read. Every patch of an agent, an
//! item or a queue carries that uid or the resource version.

pub mod approval;
pub mod artifact;
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
use spillway_api::tool_approval::ToolDecision::{Approve, Deny};
use spillway_policy as policy;

/// The version of this build, as `version` prints it and the User-Agent carries it.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The name of the program, for completion scripts and the User-Agent.
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
  kubectl spillway scale coders --auto         # automatic, between min and max
  kubectl spillway spawn coders --memory 4Gi   # one more agent, by hand
  kubectl spillway rm coders-1f2e3d4c5b        # delete an agent
  kubectl spillway explain coders-1f2e3d4c5b   # the reasons for its state, and what to do
  kubectl spillway logs coders-1f2e3d4c5b -f   # the output of its program
  kubectl spillway ask 'fix the login'         # work for the agents, in words
  kubectl spillway submit bugs --payload '...' # an item of work
  kubectl spillway queue bugs                  # the items of a queue, in their order
  kubectl spillway top                         # all agents, live"
)]
pub struct Arguments {
    /// Cluster, user and namespace.
    #[command(flatten)]
    pub connect: ConnectArguments,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Set how many agents a pool runs, or show the sizes of pools
    Scale(scale::Arguments),
    /// List agents
    #[command(visible_alias = "list")]
    Ls(ls::Arguments),
    /// Create one agent by hand, outside min and max of its pool but within its bulkhead
    Spawn(spawn::Arguments),
    /// Delete agents; their pool replaces those that it still wants
    Rm(rm::Arguments),
    /// Pause agents, items or queues
    #[command(after_help = pause::PAUSE_HELP)]
    Pause(pause::Arguments),
    /// Resume paused agents, items or queues
    #[command(after_help = pause::RESUME_HELP)]
    Resume(pause::Arguments),
    /// Give an agent, a Budget or a ClusterBudget more tokens
    Grant(grant::Arguments),
    /// Approve a new trial for what a Breaker stopped, or hold its circuits open or closed
    #[command(after_help = breaker::BREAKER_HELP)]
    Breaker(breaker::Arguments),
    /// List calls of privileged programs that wait for a person's approval
    Approvals(approval::ListArguments),
    /// Let a call of a privileged program run, once
    #[command(after_help = approval::APPROVE_HELP)]
    Approve(approval::AnswerArguments),
    /// Refuse a call of a privileged program
    #[command(after_help = approval::DENY_HELP)]
    Deny(approval::AnswerArguments),
    /// Attach to the terminal of an agent of a Chat pool
    Chat(chat::Arguments),
    /// Show the output of an agent's program
    Logs(logs::Arguments),
    /// Ask a scheduler agent in words; it creates items of work, or answers
    Ask(work::ask::Arguments),
    /// Create items of work
    Submit(Box<work::submit::Arguments>),
    /// Show queues, or one queue with its items in their order
    Queue(work::queue::Arguments),
    /// Cancel items, or all items of a group or of a queue; this cannot be undone
    Cancel(work::cancel::Arguments),
    /// Set the priority of items within their queue
    Priority(work::priority::Arguments),
    /// Start items again that ended without success, mainly dead letters
    Redrive(work::redrive::Arguments),
    /// Declare the node of an item's agent dead, so that another agent gets the item
    Release(work::release::Arguments),
    /// Show what an item changed in the repository or the folder of its pool: branch, commit, size, and the git commands that show it
    Diff(work::diff::Arguments),
    /// List and get the files that agents keep with an item
    Artifact(Box<artifact::Arguments>),
    /// Explain the state of an agent, a pool, an item or a queue: what it waits for, and what to do
    Explain(explain::Arguments),
    /// Watch agents, pools or queues live
    Top(top::Arguments),
    /// Print a completion script
    #[command(after_help = "Examples:
  source <(kubectl-spillway completion bash)
  kubectl-spillway completion zsh > \"${fpath[1]}/_kubectl-spillway\"
  kubectl-spillway completion fish > ~/.config/fish/completions/kubectl-spillway.fish
  kubectl-spillway completion powershell | Out-String | Invoke-Expression

The script completes the name of the program, kubectl-spillway.")]
    Completion {
        /// The shell
        #[arg(value_parser = clap::builder::PossibleValuesParser::new(["bash", "zsh", "fish", "powershell"]))]
        shell: String,
    },
    /// Print the version of this plugin
    Version,
}

/// Runs one command. `Err` is the error that stopped it; earlier results are on the console already.
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
        Command::Pause(arguments) => pause_or_resume(&connect.connect().await?, pause::Verb::Pause, &arguments, console).await?,
        Command::Resume(arguments) => pause_or_resume(&connect.connect().await?, pause::Verb::Resume, &arguments, console).await?,
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
        Command::Approvals(arguments) => {
            let (cluster, now) = (connect.connect().await?, jiff::Timestamp::now());
            console.show(approval::render_list(&approval::list(&cluster, &arguments, now).await?, arguments.output, now)?);
        }
        Command::Approve(arguments) => approval::answer(&connect.connect().await?, Approve, &arguments, console).await?,
        Command::Deny(arguments) => approval::answer(&connect.connect().await?, Deny, &arguments, console).await?,
        Command::Chat(arguments) => {
            let session = chat::run(&connect.connect().await?, &arguments).await?;
            if !console::interactive() {
                return Err(Error::Usage("chat needs a terminal on standard input and standard output".into()));
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
        Command::Diff(arguments) => work::diff::execute(&connect.connect().await?, &arguments, console).await?,
        Command::Artifact(arguments) => artifact::execute(&connect, &arguments, console).await?,
        Command::Explain(arguments) => {
            let facts = explain::run(&connect.connect().await?, &arguments).await?;
            console.show(explain::render(&explain::report(&facts), arguments.output, jiff::Timestamp::now())?);
        }
        Command::Top(arguments) => top::execute(&connect.connect().await?, &arguments, console).await?,
    }
    Ok(())
}

/// `pause` and `resume`: writes the request, then waits.
async fn pause_or_resume(
    cluster: &Cluster,
    verb: pause::Verb,
    arguments: &pause::Arguments,
    console: &mut dyn Console,
) -> Result<(), Error> {
    let report = pause::run(cluster, verb, arguments).await?;
    console.show(pause::render(&report));
    if arguments.wait {
        console.show(pause::render_waited(&pause::wait(cluster, &report, arguments.timeout).await?));
    }
    Ok(())
}

/// `rm`: reads, asks the user, deletes, waits.
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
            "diff a",
            "diff workitem.spillway.dev/a -o yaml -n x",
            "explain item/a",
            "explain queue/q -o json",
            "grant agent/a 5000",
            "grant bud/team 50k --limit hourly --for 1h --reason release",
            "grant clusterbudget.spillway.dev/default 2M --name week --dry-run",
            "breaker approve default",
            "breaker auto b -n x",
            "approvals -A -o json",
            "approve agent/a",
            "approve a 5f0e --reason ok -y",
            "deny a --reason no",
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
            ("spawn p --cpus 0", "must be greater than 0"),
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
            ("submit q --deadline tomorrow", "with a time zone, or 90m"),
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
            ("diff", "<ITEM>"),
            ("diff queue/q", "\"queue/q\" is not a WorkItem"),
            ("diff a -o table", "possible values: json, yaml"),
            ("explain pod/a", "item/NAME or queue/NAME"),
            ("resume a --timeout 5s", "--wait"),
            ("grant team 5", "write agent/NAME, budget/NAME or clusterbudget/NAME"),
            ("grant budget/team", "<N>"),
            ("grant budget/team 0", "1 to 1000000000000 tokens"),
            ("grant budget/team 5G", "write 50000, 50k or 2M"),
            ("grant budget/team 5 --for soon", "write 30s, 2m or 1h"),
            ("breaker approve", "<NAME>"),
            ("breaker trip b", "possible values: approve, open, close, auto"),
            ("approve", "<AGENT>"),
            ("approve a X", "hexadecimal digits"),
            ("deny pool/a", "is not an Agent"),
            ("approvals a", "unexpected argument"),
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
