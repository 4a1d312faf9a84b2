//! `top`: agents, pools or queues as they are now, and again every few seconds. Only reads.
//!
//! | file | for |
//! |---|---|
//! | this one | arguments |
//! | `subject` | what each subject has to bring, and what all share |
//! | [`agents`], [`pools`], [`queues`] | one subject each: the look at the cluster as a typed snapshot, and its columns |
//! | [`state`] | what its user chose: sort order, pause, scrolling; keys to choices. Pure |
//! | [`view`] | a sheet of rows, size and state to lines. Pure |
//! | [`live`] | the screen: draws, reads keys, looks again, and gives the terminal back however it ends |
//! | `stop_signals` | what ends it from outside, on Unix and on Windows |
//!
//! Each look is a list from the API server's cache, which costs it little; nothing is watched.

pub mod agents;
pub mod live;
pub mod pools;
pub mod queues;
pub mod state;
mod stop_signals;
mod subject;
pub mod view;

use std::time::Duration;

use jiff::Timestamp;

use super::connect::Cluster;
use super::console::{self, Console, Output};
use super::error::Error;
use super::input;

pub use subject::{ListedObjects, Subject};

/// The shortest time between two looks: the API server serves others too.
const MIN_REFRESH_INTERVAL: Duration = Duration::from_millis(500);

/// Arguments of `top`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
#[command(
    subcommand_precedence_over_arg = true,
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  kubectl spillway top                        # the agents of this namespace, every two seconds
  kubectl spillway top coders --sort tokens
  kubectl spillway top -A --interval 10s
  kubectl spillway top queues                 # the queues, how full they are and how long their items wait
  kubectl spillway top pools -A               # the pools, what they want and have
  kubectl spillway top --once | head          # once, as plain text
  kubectl spillway top pool/queues            # the agents of a pool that is called queues

Keys: q quits, s sorts by the next column, p holds the picture and lets it go on, arrows, page up and down, home and end
scroll. Where standard output is no terminal it prints once."
)]
pub struct Arguments {
    /// What is shown instead of agents
    #[command(subcommand)]
    pub subject: Option<Subjects>,
    /// Only the agents of this pool
    #[arg(value_name = "POOL", value_parser = input::pool, conflicts_with = "all_namespaces")]
    pub pool: Option<String>,
    /// What stands first
    #[arg(long, value_enum, value_name = "COLUMN", default_value = "name")]
    pub sort: agents::Sort,
    /// How it is shown
    #[command(flatten)]
    pub picture: Picture,
}

/// What is shown instead of agents.
#[derive(Clone, Debug, PartialEq, Eq, clap::Subcommand)]
pub enum Subjects {
    /// Watch pools: what they want and have
    Pools {
        /// What stands first
        #[arg(long, value_enum, value_name = "COLUMN", default_value = "name")]
        sort: pools::Sort,
        /// How it is shown
        #[command(flatten)]
        picture: Picture,
    },
    /// Watch queues: how many items do what, and how long they wait
    Queues {
        /// What stands first
        #[arg(long, value_enum, value_name = "COLUMN", default_value = "name")]
        sort: queues::Sort,
        /// How it is shown
        #[command(flatten)]
        picture: Picture,
    },
}

/// Where it looks, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
pub struct Picture {
    /// In all namespaces
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Print once, as plain text
    #[arg(long)]
    pub once: bool,
    /// Between two looks; at least 500ms
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = interval)]
    pub interval: Duration,
}

fn interval(text: &str) -> Result<Duration, String> {
    match input::duration(text)? {
        short if short < MIN_REFRESH_INTERVAL => Err("the API server serves others too: at least 500ms".to_owned()),
        long => Ok(long),
    }
}

/// The command.
pub async fn execute(cluster: &Cluster, arguments: &Arguments, console: &mut dyn Console) -> Result<(), Error> {
    let Arguments { subject, pool, sort, picture } = arguments;
    match subject {
        None => show(cluster, &agents::Agents { pool: pool.clone(), everywhere: picture.all_namespaces }, *sort, picture, console).await,
        Some(Subjects::Pools { sort, picture }) => {
            show(cluster, &pools::Pools { everywhere: picture.all_namespaces }, *sort, picture, console).await
        }
        Some(Subjects::Queues { sort, picture }) => {
            show(cluster, &queues::Queues { everywhere: picture.all_namespaces }, *sort, picture, console).await
        }
    }
}

async fn show<S: Subject>(
    cluster: &Cluster,
    subject: &S,
    sort: S::Sort,
    picture: &Picture,
    console: &mut dyn Console,
) -> Result<(), Error> {
    let snapshot = subject.look(cluster).await?;
    if picture.once || !console::interactive() {
        console.show(Output::of(view::plain(&S::sheet(&snapshot, sort, Timestamp::now()))));
        return Ok(());
    }
    live::run(cluster, subject, sort, picture.interval, snapshot).await
}
