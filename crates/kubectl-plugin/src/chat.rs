//! `chat`: attaches to the terminal of an agent of a Chat pool. It finds the agent and becomes `kubectl attach`, with the same
//! kubeconfig, context and user. It must not carry the session itself.

use std::ffi::OsString;
use std::io;
use std::process::Command;

use kube::ResourceExt as _;
use serde::Serialize;

use super::connect::{Cluster, ConnectArguments};
use super::console::Output;
use super::error::Error;
use super::find::{self, AGENT_CONTAINER, FoundObject};
use super::input::{self, NamedKind};
use super::ls;
use super::table::printable;
use crate::api::agent::AgentPhase;
use crate::api::agent_pool::PoolMode;
use crate::api::{Agent, AgentPool};

/// The program of the session.
const KUBECTL_PROGRAM: &str = "kubectl";

/// Arguments of `chat`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
#[command(after_help = "Examples:
  kubectl spillway chat helper                 # the only ready agent of the pool helper
  kubectl spillway chat helper-1f2e3d4c5b      # this agent
  kubectl spillway chat pool/helper            # the pool, if an agent has the same name

Only agents of pools with spec.mode: Chat have a terminal. The session is one of `kubectl attach -it`:
  ctrl-c and ctrl-d     go to the program
  ctrl-p ctrl-q         do not detach: kubectl has no such keys
  the program's end     ends the session and the agent; its pool creates another one
  closing this window   ends only the session: the program continues, and you can attach again

Forbidden (403)? The admission policy of Spillway requires `create` on the subresource agents/attach of the group spillway.dev,
in addition to `create` on pods/attach. Ask for a Role with
  {apiGroups: [spillway.dev], resources: [agents/attach], verbs: [create]}
  {apiGroups: [\"\"], resources: [pods/attach], verbs: [create]}, and `get` on pods")]
pub struct Arguments {
    /// The agent, or a pool with one ready agent
    #[arg(value_name = "AGENT|POOL", value_parser = input::agent_or_pool)]
    pub name: NamedKind,
}

/// The terminal to attach to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Session {
    /// The namespace.
    pub namespace: String,
    /// The agent.
    pub agent: String,
    /// Its display name.
    pub display_name: Option<String>,
    /// Its pod.
    pub pod: String,
    /// Whether it is paused: the terminal works, but model calls are refused.
    pub paused: bool,
}

/// Finds the terminal.
pub async fn run(cluster: &Cluster, arguments: &Arguments) -> Result<Session, Error> {
    match find::named(cluster, &arguments.name).await? {
        FoundObject::Agent(agent) => {
            let pool = find::pool(cluster, &agent.spec.pool_ref.name).await?;
            ensure_chat_pool(&pool)?;
            session(&cluster.namespace, &agent)
        }
        FoundObject::Pool(pool) => {
            ensure_chat_pool(&pool)?;
            let agents = ls::agents_of(cluster, &pool.name_any()).await?;
            session(&cluster.namespace, only_ready_agent(&cluster.namespace, &pool.name_any(), &agents)?)
        }
    }
}

/// Refuses a pool whose agents have no terminal.
fn ensure_chat_pool(pool: &AgentPool) -> Result<(), Error> {
    match pool.spec.mode {
        PoolMode::Chat => Ok(()),
        PoolMode::Perseverance => Err(Error::Usage(format!(
            "spec.mode of pool \"{}\" is Perseverance: its agents work from queues and have no terminal; use a pool with spec.mode: Chat",
            pool.name_any()
        ))),
    }
}

/// The only agent of a pool that has a terminal.
fn only_ready_agent<'a>(namespace: &str, pool: &str, agents: &'a [Agent]) -> Result<&'a Agent, Error> {
    let there: Vec<&Agent> = agents.iter().filter(|agent| terminal_pod(agent).is_some()).collect();
    match there.as_slice() {
        [agent] => Ok(agent),
        [] if agents.is_empty() => Err(Error::Usage(format!(
            "pool \"{pool}\" has no agents; `kubectl spillway scale {pool} --replicas 1 -n {namespace}` creates one"
        ))),
        [] => Err(Error::Usage(format!(
            "no agent of pool \"{pool}\" is ready: {}; `kubectl spillway explain pool/{pool} -n {namespace}` shows why",
            find::candidates(agents.iter())
        ))),
        many => Err(Error::Usage(format!(
            "pool \"{pool}\" has {} ready agents; name one of them: {}",
            many.len(),
            find::candidates(many.iter().copied())
        ))),
    }
}

/// The pod whose terminal can be attached to.
fn terminal_pod(agent: &Agent) -> Option<&str> {
    let pod = agent.status.as_ref().and_then(|status| status.pod_ref.as_ref())?;
    (find::ready(agent) || paused(agent)).then_some(pod.name.as_str())
}

/// Whether the agent is paused. A paused agent keeps its terminal.
fn paused(agent: &Agent) -> bool {
    agent.metadata.deletion_timestamp.is_none() && find::phase(agent) == Some(AgentPhase::Paused)
}

/// The terminal of an agent.
fn session(namespace: &str, agent: &Agent) -> Result<Session, Error> {
    let name = agent.name_any();
    match terminal_pod(agent) {
        _ if find::ended(agent) => {
            Err(Error::Usage(format!("agent \"{name}\" has ended and has no terminal any more ({})", printable(&find::state(agent)))))
        }
        None => Err(Error::Usage(format!(
            "agent \"{name}\" is not ready ({}); `kubectl spillway explain agent/{name} -n {namespace}` shows the reason",
            printable(&find::state(agent))
        ))),
        Some(pod) => Ok(Session {
            namespace: namespace.to_owned(),
            display_name: agent.spec.display_name.clone(),
            pod: pod.to_owned(),
            paused: agent.spec.paused == Some(true) || paused(agent),
            agent: name,
        }),
    }
}

/// The text before the terminal opens. It goes to standard error, so that standard output has only the output of the session.
pub fn render(session: &Session) -> Output {
    let Session { namespace, agent, display_name, pod: _, paused } = session;
    let mut output = Output::default();
    let called = display_name.as_ref().map(|name| format!(" ({})", printable(name))).unwrap_or_default();
    output.note(format!("Attaching to agent {agent}{called}. ctrl-p ctrl-q does not detach in kubectl. If you close this window, the"));
    output.note("program continues. If the program ends (exit, ctrl-d), the session and the agent end too.");
    output.note("Forbidden (403)? You need `create` on agents/attach of spillway.dev: `kubectl spillway chat --help` shows the Role.");
    if *paused {
        output.note(format!(
            "note: this agent is paused and makes no model calls; `kubectl spillway resume {agent} -n {namespace}` resumes it"
        ));
    }
    output
}

/// The arguments of kubectl: the same cluster and user as for the plugin.
fn attach_arguments(session: &Session, connect: &ConnectArguments) -> Vec<OsString> {
    let mut arguments: Vec<OsString> =
        ["attach", "-it", &session.pod, "-c", AGENT_CONTAINER, "-n", &session.namespace].iter().map(OsString::from).collect();
    if let Some(context) = &connect.context {
        arguments.push(format!("--context={context}").into());
    }
    if let Some(file) = &connect.kubeconfig {
        let mut flag = OsString::from("--kubeconfig=");
        flag.push(file);
        arguments.push(flag);
    }
    arguments
}

/// Becomes kubectl, and exits with its exit code. Returns only if kubectl cannot be started.
pub fn attach(session: &Session, connect: &ConnectArguments) -> Error {
    let error = hand_over(Command::new(KUBECTL_PROGRAM).args(attach_arguments(session, connect)));
    Error::Usage(match error.kind() {
        io::ErrorKind::NotFound => {
            format!("{KUBECTL_PROGRAM} is not on the PATH, and chat needs it: install it, or add its folder to PATH")
        }
        _ => format!("cannot start {KUBECTL_PROGRAM}: {error}"),
    })
}

/// Replaces this process with the program, which then has the signals, the terminal and the exit code.
#[cfg(unix)]
fn hand_over(command: &mut Command) -> io::Error {
    use std::os::unix::process::CommandExt as _;
    command.exec()
}

/// Waits for the program and exits with its exit code: only on Unix a process can become another program.
#[cfg(not(unix))]
fn hand_over(command: &mut Command) -> io::Error {
    match command.status() {
        Ok(status) => std::process::exit(status.code().unwrap_or(1)),
        Err(error) => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn agent(name: &str, status: Value) -> Agent {
        serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Agent", "metadata": {"name": name, "uid": "u"},
            "spec": {"poolRef": {"name": "p"}, "displayName": "calm-otter"}, "status": status}))
        .expect("an Agent")
    }
    fn ready(name: &str) -> Agent {
        agent(
            name,
            json!({"phase": "Idle", "podRef": {"name": name, "uid": "u"}, "conditions": [
                {"type": "Ready", "status": "True", "reason": "Registered", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}),
        )
    }
    fn refused<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
        result.expect_err("refused").to_string()
    }

    #[test]
    fn a_pool_stands_for_its_one_ready_agent() {
        let starting = agent("b", json!({"phase": "Spawning"}));
        assert_eq!(only_ready_agent("n", "p", &[starting.clone(), ready("a")]).expect("one").name_any(), "a");
        assert!(refused(only_ready_agent("n", "p", &[])).contains("kubectl spillway scale p --replicas 1 -n n"));
        assert!(refused(only_ready_agent("n", "p", &[starting])).contains("b (calm-otter, Spawning)"));
        assert_eq!(
            refused(only_ready_agent("n", "p", &[ready("a"), ready("c")])),
            "pool \"p\" has 2 ready agents; name one of them: a (calm-otter, Idle), c (calm-otter, Idle)"
        );
    }

    #[test]
    fn only_a_terminal_that_is_there_is_opened() {
        assert_eq!(session("n", &ready("a")).expect("a session").pod, "a");
        assert!(refused(session("n", &agent("a", json!({"phase": "Stopped"})))).contains("has ended"));
        assert!(refused(session("n", &agent("a", json!({})))).contains("check that the operator runs"));
    }

    #[test]
    fn kubectl_gets_the_same_cluster_and_user() {
        let session = session("n", &ready("a")).expect("a session");
        let connect = ConnectArguments {
            namespace: None,
            context: Some("c".into()),
            kubeconfig: Some("/k f".into()),
            request_timeout: std::time::Duration::ZERO,
        };
        assert_eq!(
            attach_arguments(&session, &connect),
            ["attach", "-it", "a", "-c", "agent", "-n", "n", "--context=c", "--kubeconfig=/k f"].map(OsString::from)
        );
        let told = render(&Session { paused: true, display_name: Some("\u{1b}[2J".into()), ..session });
        assert!(told.err.contains("ctrl-p ctrl-q does not detach") && told.err.contains("agents/attach"), "{}", told.err);
        assert!(told.err.contains("kubectl spillway resume a -n n") && !told.err.contains('\u{1b}') && told.out.is_empty());
    }
}
