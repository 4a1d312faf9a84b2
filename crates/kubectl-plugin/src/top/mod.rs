//! `top`: shows agents, pools or queues, refreshed every few seconds. Only reads.
//!
//! | file | for |
//! |---|---|
//! | this one | arguments |
//! | `subject` | the trait of a subject, and code that all subjects share |
//! | [`agents`], [`pools`], [`queues`] | one subject each: the typed snapshot, and the columns |
//! | [`state`] | the state of the view: sort order, pause, scrolling; how keys change it. Pure |
//! | [`view`] | from a sheet of rows, a size and a state to lines. Pure |
//! | [`live`] | the screen: draws, reads keys, refreshes, and always restores the terminal |
//! | `stop_signals` | the signals that end it, on Unix and on Windows |
//!
//! Each refresh is a list from the API server's cache, which costs the server little. Nothing is watched.

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

/// The shortest time between two refreshes: the API server must stay free for others.
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
  kubectl spillway top queues                 # the queues: how full they are, and how long their items wait
  kubectl spillway top pools -A               # the pools: desired and existing agents
  kubectl spillway top --once | head          # once, as plain text
  kubectl spillway top pool/queues            # the agents of a pool with the name queues

Keys: q quits, s sorts by the next column, p pauses or resumes the refresh, and the arrows, page up, page down, home and end
scroll. If standard output is not a terminal, the command prints once."
)]
pub struct Arguments {
    /// Show pools or queues instead of agents
    #[command(subcommand)]
    pub subject: Option<Subjects>,
    /// Only the agents of this pool
    #[arg(value_name = "POOL", value_parser = input::pool, conflicts_with = "all_namespaces")]
    pub pool: Option<String>,
    /// Sort order
    #[arg(long, value_enum, value_name = "COLUMN", default_value = "name")]
    pub sort: agents::Sort,
    /// Scope and refresh
    #[command(flatten)]
    pub picture: Picture,
}

/// The subjects besides agents.
#[derive(Clone, Debug, PartialEq, Eq, clap::Subcommand)]
pub enum Subjects {
    /// Watch pools: desired and existing agents
    Pools {
        /// Sort order
        #[arg(long, value_enum, value_name = "COLUMN", default_value = "name")]
        sort: pools::Sort,
        /// Scope and refresh
        #[command(flatten)]
        picture: Picture,
    },
    /// Watch queues: items by state, and how long they wait
    Queues {
        /// Sort order
        #[arg(long, value_enum, value_name = "COLUMN", default_value = "name")]
        sort: queues::Sort,
        /// Scope and refresh
        #[command(flatten)]
        picture: Picture,
    },
}

/// The scope and the refresh of the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
pub struct Picture {
    /// Show all namespaces
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Print once, as plain text
    #[arg(long)]
    pub once: bool,
    /// Time between two refreshes; at least 500ms
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = interval)]
    pub interval: Duration,
}

fn interval(text: &str) -> Result<Duration, String> {
    match input::duration(text)? {
        short if short < MIN_REFRESH_INTERVAL => Err("the interval must be at least 500ms, to limit the load on the API server".to_owned()),
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
        console.show(Output::of(view::plain_text(&S::sheet(&snapshot, sort, Timestamp::now()))));
        return Ok(());
    }
    live::run(cluster, subject, sort, picture.interval, snapshot).await
}
