//! `logs`: shows the output of an agent's program, or of its sidecar. It streams, and keeps at most one line of each log.
//!
//! The output of an agent is not trusted, so it is made safe before it is shown.

use std::io;
use std::pin::Pin;
use std::time::Duration;

use futures::io::AsyncBufReadExt as _;
use futures::{AsyncBufRead, Stream, StreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::LogParams;
use serde::Serialize;

use super::connect::Cluster;
use super::console::{Console, Output};
use super::error::Error;
use super::find::{self, AGENT_CONTAINER, FoundObject, LINK_CONTAINER};
use super::input::{self, NamedKind};
use super::last_words::LastWords;
use super::ls;
use super::table::{printable, printable_line};
use crate::api::Agent;

/// The most logs that are followed at once: each keeps a connection to a kubelet open.
const MAX_FOLLOWED_LOGS: usize = 32;
/// The most bytes of a line. Longer lines are split, so that no program can fill the memory of the plugin.
const MAX_LINE_BYTES: usize = 64 * 1024;

/// Arguments of `logs`.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(after_help = "Examples:
  kubectl spillway logs coders-1f2e3d4c5b
  kubectl spillway logs coders-1f2e3d4c5b -f --tail 20
  kubectl spillway logs coders-1f2e3d4c5b --since 5m --link   # the log of its sidecar
  kubectl spillway logs --pool coders -f                      # all agents of the pool, each line after its agent's name

Control characters become \u{fffd}, and colours are removed, because the output of an agent is not trusted. A log is deleted
with its pod. If the pod is gone, the command names the items that keep the end of the program's output.")]
pub struct Arguments {
    /// The agent
    #[arg(value_name = "AGENT", required_unless_present = "pool", value_parser = input::agent_or_pool)]
    pub name: Option<NamedKind>,
    /// Show the logs of all agents of this pool, each line after its agent's name
    #[arg(long, value_name = "POOL", conflicts_with = "name", value_parser = input::pool)]
    pub pool: Option<String>,
    /// Follow the log. Agents that the pool creates later are not followed
    #[arg(short, long)]
    pub follow: bool,
    /// Show only the last N lines of each log
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(0..))]
    pub tail: Option<i64>,
    /// Show only lines that are newer than this: 30s, 5m, 2h
    #[arg(long, value_name = "DURATION", value_parser = input::duration)]
    pub since: Option<Duration>,
    /// With --link, show the log of the sidecar before its last restart. An agent's program runs once, so it has no earlier log
    #[arg(short, long)]
    pub previous: bool,
    /// Show the log of the sidecar that connects the agent, instead of the program's
    #[arg(long)]
    pub link: bool,
}

/// One log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    /// The agent.
    pub agent: String,
    /// Its pod.
    pub pod: String,
    /// The text before each of its lines.
    pub prefix: String,
    /// The state of the agent, as text.
    pub state: String,
    /// Whether the agent has ended. Its pod may be gone.
    pub ended: bool,
}

/// The logs to read.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The namespace.
    pub namespace: String,
    /// The logs.
    pub sources: Vec<Source>,
    /// Notes on agents without a log.
    pub notes: Vec<String>,
    /// The parameters of the requests.
    pub params: LogParams,
}

/// Finds the logs.
pub async fn plan(cluster: &Cluster, arguments: &Arguments) -> Result<Plan, Error> {
    let namespace = &cluster.namespace;
    let mut plan = Plan { namespace: namespace.clone(), sources: Vec::new(), notes: Vec::new(), params: params(arguments)? };
    if let Some(pool) = &arguments.pool {
        let list = ls::Arguments { pool: Some(pool.clone()), all: true, ..ls::Arguments::default() };
        let report = ls::run(cluster, &list).await?;
        plan.notes.extend(report.unreadable);
        let (sources, notes) = pool_sources(namespace, &report.agents, arguments.follow)?;
        plan.sources = sources;
        plan.notes.extend(notes);
        if plan.sources.is_empty() && plan.notes.is_empty() {
            plan.notes.push(format!("pool \"{pool}\" has no agents"));
        }
        return Ok(plan);
    }
    let Some(name) = &arguments.name else { return Err(Error::Usage("name an agent, or a pool with --pool".into())) };
    match find::named(cluster, name).await? {
        FoundObject::Agent(agent) => match source(namespace, &agent, String::new()) {
            Ok(source) => plan.sources.push(source),
            Err(words) if find::ended(&agent) => {
                let last = LastWords::default().of(cluster, &agent.name_any()).await;
                return Err(Error::Usage(format!("{words}. {last}")));
            }
            Err(words) => return Err(Error::Usage(words)),
        },
        FoundObject::Pool(pool) => {
            let agents = ls::agents_of(cluster, &pool.name_any()).await?;
            return Err(Error::Usage(pool_name_error(&pool.name_any(), &agents)));
        }
    }
    Ok(plan)
}

fn params(arguments: &Arguments) -> Result<LogParams, Error> {
    let Arguments { name: _, pool: _, follow, tail, since, previous, link } = arguments;
    if *previous && !*link {
        return Err(Error::Usage(
            "--previous is only possible with --link: the container of an agent's program runs once and is never restarted. An earlier agent \
             has its own log: `kubectl spillway ls --all` lists the ended agents"
                .into(),
        ));
    }
    let since = since.map(|since| i64::try_from(since.as_millis().div_ceil(1000)).unwrap_or(i64::MAX));
    if since == Some(0) {
        return Err(Error::Usage("--since must be longer than 0: leave it out for the whole log".into()));
    }
    let container = if *link { LINK_CONTAINER } else { AGENT_CONTAINER };
    Ok(LogParams {
        container: Some(container.to_owned()),
        follow: *follow,
        tail_lines: *tail,
        since_seconds: since,
        previous: *previous,
        ..LogParams::default()
    })
}

/// The log of an agent, or why there is none.
fn source(namespace: &str, agent: &Agent, prefix: String) -> Result<Source, String> {
    let name = agent.name_any();
    let state = find::state(agent);
    match agent.status.as_ref().and_then(|status| status.pod_ref.as_ref()) {
        _ if agent.spec.external.is_some() => {
            Err(format!("agent \"{name}\" runs outside the cluster: its log is on the machine where `spillway-agent run` was started"))
        }
        Some(pod) => Ok(Source { agent: name, pod: pod.name.clone(), prefix, state, ended: find::ended(agent) }),
        None => Err(format!(
            "agent \"{name}\" has no pod, so it has no log ({}); `kubectl spillway explain agent/{name} -n {namespace}` shows the reason",
            printable(&state)
        )),
    }
}

/// The logs of a pool's agents. Logs of ended agents are read while their pods exist, and are not followed.
fn pool_sources(namespace: &str, agents: &[Agent], follow: bool) -> Result<(Vec<Source>, Vec<String>), Error> {
    let (mut sources, mut notes) = (Vec::new(), Vec::new());
    for agent in agents.iter().filter(|agent| !(follow && find::ended(agent))) {
        match source(namespace, agent, prefix(agent, agents)) {
            Ok(source) => sources.push(source),
            Err(_) if find::ended(agent) => {} // it never had a pod
            Err(words) => notes.push(words),
        }
    }
    if follow && sources.len() > MAX_FOLLOWED_LOGS {
        return Err(Error::Usage(format!(
            "{} logs cannot be followed at once, because the limit is {MAX_FOLLOWED_LOGS}: leave out --follow, or name one of the agents",
            sources.len()
        )));
    }
    Ok((sources, notes))
}

/// The display name of the agent, with its name if another agent has the same display name.
fn prefix(agent: &Agent, among: &[Agent]) -> String {
    let shared = |name: &String| among.iter().filter(|other| other.spec.display_name.as_ref() == Some(name)).count() > 1;
    match &agent.spec.display_name {
        Some(name) if shared(name) => format!("[{} {}] ", printable(name), agent.name_any()),
        Some(name) => format!("[{}] ", printable(name)),
        None => format!("[{}] ", agent.name_any()),
    }
}

fn pool_name_error(pool: &str, agents: &[Agent]) -> String {
    match agents {
        [] => format!("\"{pool}\" is a pool and has no agents now; `kubectl spillway ls {pool} --all` lists the ended agents"),
        agents => format!(
            "\"{pool}\" is a pool; name one of its agents: {}. Or write --pool {pool}, which shows all of them, each line after its agent's name",
            find::candidates(agents.iter())
        ),
    }
}

/// Batches of lines that are safe to show.
type Lines = Pin<Box<dyn Stream<Item = io::Result<Vec<String>>> + Send>>;

/// Shows the logs: one after the other, or all at once while they are followed.
pub async fn run(cluster: &Cluster, plan: &Plan, console: &mut dyn Console) {
    let mut output = Output::default();
    plan.notes.iter().for_each(|words| output.note(format!("note: {}", printable(words))));
    console.show(output);
    let mut open = futures::stream::SelectAll::new();
    let mut last_words = LastWords::default();
    for source in &plan.sources {
        match read(cluster, source, &plan.params).await {
            Ok(lines) => open.push(with_prefix(lines, source.prefix.clone())),
            Err(UnreadLog::Gone(words)) => {
                let last = last_words.of(cluster, &source.agent).await;
                show_failure(console, &format!("{words}. {last}"));
            }
            Err(UnreadLog::Other(words)) => show_failure(console, &words),
        }
        if !plan.params.follow {
            show(&mut open, console).await;
        }
        if console.is_output_closed() {
            return;
        }
    }
    show(&mut open, console).await;
}

/// The lines of a log with their prefix.
type Tagged = Pin<Box<dyn Stream<Item = (String, io::Result<Vec<String>>)> + Send>>;

fn with_prefix(lines: Lines, prefix: String) -> Tagged {
    Box::pin(lines.map(move |lines| (prefix.clone(), lines)))
}

/// Shows the lines of all logs until all logs have ended.
async fn show(open: &mut futures::stream::SelectAll<Tagged>, console: &mut dyn Console) {
    while let Some((prefix, lines)) = open.next().await {
        match lines {
            Ok(lines) => {
                let mut output = Output::default();
                lines.iter().for_each(|line| output.line(format!("{prefix}{line}")));
                console.show(output);
            }
            Err(error) => show_failure(console, &format!("{prefix}the connection to the log was lost: {error}")),
        }
        if console.is_output_closed() {
            return;
        }
    }
}

fn show_failure(console: &mut dyn Console, words: &str) {
    let mut output = Output::default();
    output.failure(printable(words));
    console.show(output);
}

/// The error message for a log that cannot be read.
#[derive(Debug, PartialEq, Eq)]
enum UnreadLog {
    /// The agent has ended, and its log is gone with its pod.
    Gone(String),
    /// Any other error.
    Other(String),
}

/// Opens a log, or says why it cannot be read.
async fn read(cluster: &Cluster, source: &Source, params: &LogParams) -> Result<Lines, UnreadLog> {
    match cluster.api::<Pod>().log_stream(&source.pod, params).await {
        Ok(reader) => Ok(Box::pin(lines(Box::pin(reader)))),
        Err(error) => Err(read_error(&cluster.namespace, source, error)),
    }
}

fn read_error(namespace: &str, source: &Source, error: kube::Error) -> UnreadLog {
    let Source { agent, pod, prefix: _, state, ended } = source;
    match &error {
        kube::Error::Api(status) if status.code == 404 && *ended => {
            UnreadLog::Gone(format!("agent \"{agent}\" has ended, and its log is gone with its pod ({state})"))
        }
        kube::Error::Api(status) if status.code == 404 => {
            UnreadLog::Other(format!("pod \"{pod}\" of agent \"{agent}\" does not exist ({state})"))
        }
        _ => {
            UnreadLog::Other(format!("the log of agent \"{agent}\" cannot be read: {} ({state})", Error::of::<Pod>(namespace, pod)(error)))
        }
    }
}

/// The lines of a log, safe to show.
fn lines(reader: Pin<Box<dyn AsyncBufRead + Send>>) -> impl Stream<Item = io::Result<Vec<String>>> + Send {
    let open = Some((reader, Splitter::default()));
    futures::stream::try_unfold(open, |open| async move {
        let Some((mut reader, mut splitter)) = open else { return Ok(None) };
        let bytes = reader.fill_buf().await?;
        let (read, lines) = (bytes.len(), splitter.take(bytes));
        if read == 0 {
            return Ok(Some((splitter.into_last_line(), None)));
        }
        reader.consume_unpin(read);
        Ok(Some((lines, Some((reader, splitter)))))
    })
}

/// Splits bytes into lines.
#[derive(Debug, Default)]
struct Splitter {
    partial_line: Vec<u8>,
}

impl Splitter {
    /// The lines that are complete with these bytes.
    fn take(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut lines = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            for piece in part.chunks(MAX_LINE_BYTES) {
                self.partial_line.extend_from_slice(piece);
                if self.partial_line.ends_with(b"\n") || self.partial_line.len() >= MAX_LINE_BYTES {
                    lines.push(safe_line(&std::mem::take(&mut self.partial_line)));
                }
            }
        }
        lines
    }

    /// The last line, if it has no line end.
    fn into_last_line(self) -> Vec<String> {
        if self.partial_line.is_empty() { Vec::new() } else { vec![safe_line(&self.partial_line)] }
    }
}

/// One line without its end. Programs on a terminal also end lines with a carriage return.
fn safe_line(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    printable_line(text.trim_end_matches(['\n', '\r']))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn agent(name: &str, display: Option<&str>, status: Value) -> Agent {
        serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Agent", "metadata": {"name": name, "uid": "u"},
            "spec": {"poolRef": {"name": "p"}, "displayName": display}, "status": status}))
        .expect("an Agent")
    }
    fn running(name: &str, display: Option<&str>) -> Agent {
        agent(name, display, json!({"phase": "Idle", "podRef": {"name": name, "uid": "u"}}))
    }

    #[test]
    fn what_was_asked_for_becomes_the_request() {
        let asked = Arguments { follow: true, tail: Some(7), since: Some(Duration::from_millis(1500)), link: true, ..Arguments::default() };
        let params_of = |arguments: &Arguments| params(arguments).expect("sound");
        let got = params_of(&asked);
        assert_eq!((got.container.as_deref(), got.follow, got.tail_lines, got.since_seconds), (Some("link"), true, Some(7), Some(2)));
        let plain = params_of(&Arguments::default());
        assert_eq!((plain.container.as_deref(), plain.follow, plain.tail_lines), (Some("agent"), false, None));
        let error = params(&Arguments { previous: true, ..Arguments::default() }).expect_err("refused").to_string();
        assert!(params_of(&Arguments { previous: true, link: true, ..Arguments::default() }).previous);
        assert!(error.contains("runs once") && error.contains("kubectl spillway ls --all"), "{error}");
        assert!(params(&Arguments { since: Some(Duration::ZERO), ..Arguments::default() }).is_err());
    }

    #[test]
    fn a_pool_is_no_agent_and_its_agents_are_listed() {
        assert_eq!(
            pool_name_error("p", &[running("a", Some("calm-otter"))]),
            "\"p\" is a pool; name one of its agents: a (calm-otter, Idle). Or write --pool p, which shows all of them, each line after its agent's name"
        );
        assert!(pool_name_error("p", &[]).contains("ls p --all"));
    }

    #[test]
    fn the_logs_of_a_pool_have_names_and_those_that_ended_are_not_followed() {
        let ended = agent("c", Some("wise-carp"), json!({"phase": "Stopped", "podRef": {"name": "c", "uid": "u"}}));
        let waiting = agent("d", None, json!({"phase": "Spawning"}));
        let agents = [running("a", Some("calm-otter")), running("b", Some("calm-otter")), ended, waiting, running("e", None)];
        let (sources, notes) = pool_sources("n", &agents, false).expect("sources");
        let prefixes: Vec<&str> = sources.iter().map(|source| source.prefix.as_str()).collect();
        assert_eq!(prefixes, ["[calm-otter a] ", "[calm-otter b] ", "[wise-carp] ", "[e] "]);
        assert!(notes[0].starts_with("agent \"d\" has no pod, so it has no log (Spawning)"), "{notes:?}");
        let mut outside = agent("f", None, json!({"phase": "Idle"}));
        outside.spec.external = Some(crate::api::agent::ExternalProcess { user: "alice".into() });
        let (_, notes) = pool_sources("n", &[outside], false).expect("sources");
        assert!(notes[0].contains("runs outside the cluster") && notes[0].contains("spillway-agent run"), "{notes:?}");
        assert_eq!(pool_sources("n", &agents, true).expect("sources").0.len(), 3);
        let many: Vec<Agent> = (0..33).map(|number| running(&format!("a{number}"), None)).collect();
        assert!(pool_sources("n", &many, true).expect_err("refused").to_string().starts_with("33 logs cannot be followed at once"));
        assert!(pool_sources("n", &many, false).is_ok());
    }

    #[test]
    fn lines_are_cut_where_they_end_and_never_grow_without_bound() {
        let mut splitter = Splitter::default();
        assert_eq!(splitter.take(b"one\r\ntw"), ["one"]);
        assert_eq!(splitter.take(b"o\n\n\x1b[2Jthr\xff"), ["two", ""]);
        assert_eq!(splitter.into_last_line(), ["\u{fffd}[2Jthr\u{fffd}"]);
        let mut splitter = Splitter::default();
        let long = splitter.take(&vec![b'x'; 3 * MAX_LINE_BYTES + 1]);
        assert_eq!((long.len(), splitter.into_last_line()), (3, vec!["x".to_owned()]));
        assert!(Splitter::default().into_last_line().is_empty());
    }

    #[test]
    fn a_log_that_is_gone_is_told_with_the_agents_end() {
        let source =
            Source { agent: "a".into(), pod: "a".into(), prefix: String::new(), state: "Stopped, PodFailed: m".into(), ended: true };
        let missing =
            |code: u16| kube::Error::Api(Box::new(serde_json::from_value(json!({"code": code, "message": "m2"})).expect("a Status")));
        let gone = "agent \"a\" has ended, and its log is gone with its pod (Stopped, PodFailed: m)";
        assert_eq!(read_error("n", &source, missing(404)), UnreadLog::Gone(gone.into()));
        let living = Source { state: "Idle".into(), ended: false, ..source };
        let other = |words: &str| UnreadLog::Other(words.into());
        assert_eq!(read_error("n", &living, missing(404)), other("pod \"a\" of agent \"a\" does not exist (Idle)"));
        assert_eq!(read_error("n", &living, missing(400)), other("the log of agent \"a\" cannot be read: from server (400): m2 (Idle)"));
    }
}
