//! `spillway-agent run`: an agent outside the cluster. This process asks the gateway for an Agent, is its sidecar, and starts the
//! supervisor as a child process, which runs the program.
//!
//! What always holds: only the program of the command line is run, and nothing that the cluster names. Only the variables of
//! this file are set. When the agent must end, the program ends with everything that it started.

use std::ffi::{OsStr, OsString};
use std::fs::DirBuilder;
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::pin::pin;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use spillway_policy::backoff;
use spillway_wire::agent::{Directive, Goodbye};
use spillway_wire::external::{Enrol, Enrolled, ExternalAgent, ModelEntry};
use spillway_wire::meter::Dialect;
use spillway_wire::{Code, Refusal};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::install::COMMAND_NAME;
use crate::link::gateway::{Answer, Call, Gateway};
use crate::link::retry::CALL_RETRY_BACKOFF;
use crate::link::{self, ExternalOptions, calls::retry_after};
use crate::process::exit_code;
use crate::process::tree::Tree;
use crate::{DATA_DIR_VARIABLE, FAIL_CLOSED_EXIT_CODE, SOCKET_VARIABLE, VERSION, link_says, random};

/// Time limit of one call that asks for an Agent, or says goodbye.
const ENROL_TIMEOUT: Duration = Duration::from_secs(10);
/// Wait for the answer to a registration that is under way when a signal asks us to end. A second signal ends the wait.
const ANSWER_GRACE: Duration = Duration::from_secs(3);
/// The port of a gateway whose URL names none.
const DEFAULT_GATEWAY_PORT: u16 = 8443;
/// The most characters of a name for people.
const MAX_NAME_CHARS: usize = 63;
/// Between two runs of the canary. Outside the cluster nothing is isolated, so the interval does not matter.
const SANDBOX_CHECK_INTERVAL: Duration = Duration::from_secs(3600);
/// Exit code if a signal asks us to end before the program is started: 128 plus the number of SIGTERM.
const SIGTERM_EXIT_CODE: u8 = 143;
/// Placeholder for clients that require a key.
const PLACEHOLDER_KEY: &str = "held-by-spillway";
/// Hosts that are never reached through a proxy.
const NO_PROXY_HOSTS: &str = "localhost,127.0.0.1,::1";
/// For each protocol: the variable of the base URL, the variable of the key, the path that clients expect after the entry, and
/// the dialects that use them.
const MODEL_VARIABLES: [(&str, &str, &str, &[Dialect]); 3] = [
    ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "", &[Dialect::Anthropic]),
    ("OPENAI_BASE_URL", "OPENAI_API_KEY", "/v1", &[Dialect::OpenAIChat, Dialect::OpenAIResponses]),
    ("GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY", "", &[Dialect::Gemini]),
];
/// Google's clients know two names for the key. If both are set, a client chooses one; so the second is removed.
const GOOGLE_KEY_ALIASES: (&str, &str) = ("GEMINI_API_KEY", "GOOGLE_API_KEY");

/// An agent outside the cluster.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// URL of the gateway, as https://HOST:PORT
    #[arg(long, value_name = "URL", env = "SPILLWAY_GATEWAY_URL", value_parser = address)]
    gateway: String,
    /// File with the certificates to trust: key ca.crt of the ConfigMap spillway-ca. It is read for each connection
    #[arg(long, value_name = "FILE")]
    ca: PathBuf,
    /// File with a token for the audience spillway.dev/gateway, of a ServiceAccount or a person. It is read for each call
    #[arg(long, value_name = "FILE")]
    token: PathBuf,
    /// Namespace of the pool
    #[arg(long, short, value_name = "NAME")]
    namespace: String,
    /// Name of the pool, which must have spec.external
    #[arg(long, value_name = "NAME")]
    pool: String,
    /// Name for people [default: name of this machine]
    #[arg(long)]
    name: Option<String>,
    /// Loopback port for models [default: any free port]
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    port: u16,
    /// The program and its arguments. It runs once, or for each item, as agent.run of the pool says
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Runs until the program or the agent has ended; returns the exit code.
pub fn run(arguments: Arguments) -> io::Result<u8> {
    let Arguments { gateway, ca, token, namespace, pool, name, port, command } = arguments;
    let place = ExternalAgent { namespace, pool, agent: None };
    if ExternalAgent::parse(&place.to_string()).as_ref() != Some(&place) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "--namespace and --pool may contain only letters, digits and dashes"));
    }
    let name = name.or_else(machine);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut asked = StopRequest::new()?;
        // Before the child starts, so that no SIGCHLD is missed.
        let children = signal(SignalKind::child())?;
        // Everything that can fail on this machine comes before the Agent exists, because the Agent would wait for us.
        let (key, secret, folder) = (random::key()?, random::key()?, Folder::new()?);
        // We are the subreaper, so that we can end what the supervisor started, also after the supervisor has ended.
        let tree = Tree::new()?;
        let models = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        let at = models.local_addr()?.port();
        let caller = Gateway::new(gateway.clone(), ca.clone(), token.clone());
        caller.set_external_agent(&place).map_err(io::Error::other)?;
        let (enrolled, terminated) = enrol_until(&caller, &key, name, &mut asked).await;
        let enrolled = match enrolled {
            Some(Ok(enrolled)) => enrolled,
            None => return Ok(SIGTERM_EXIT_CODE),
            Some(Err(_)) if terminated => return Ok(SIGTERM_EXIT_CODE),
            Some(Err(refusal)) => {
                link_says!("the gateway refuses to register the agent: {refusal}");
                return Ok(FAIL_CLOSED_EXIT_CODE);
            }
        };
        let place = ExternalAgent { agent: Some((enrolled.agent.clone(), enrolled.uid.clone())), ..place };
        caller.set_external_agent(&place).map_err(io::Error::other)?;
        if terminated {
            leave(&caller, "spillway-agent run got a signal to end before it started the program").await;
            return Ok(SIGTERM_EXIT_CODE);
        }
        let environment =
            environment(&place, &enrolled, &folder, &format!("http://127.0.0.1:{at}/{secret}"), |name| std::env::var_os(name));
        let (wanted, directives) = watch::channel(Directive::Run);
        let child = match supervisor(&folder, environment, &command) {
            Ok(child) => child,
            Err(error) => {
                leave(&caller, "spillway-agent run could not start the program").await;
                return Err(error);
            }
        };
        let mut program = Program { child, tree, stop_requested: false, code: FAIL_CLOSED_EXIT_CODE };
        let options = link::Options {
            gateway,
            ca,
            token,
            journal: folder.path("journal"),
            socket: folder.socket(),
            first_port: 0,
            look_each: SANDBOX_CHECK_INTERVAL,
            commands_open: None,
            folder: None,
        };
        let end = program.until_ended(asked, children, directives);
        link::serve(&options, Arc::new(caller), Some(ExternalOptions { wanted, models, secret }), end).await?;
        Ok(program.code)
    })
}

/// `HOST:PORT` of the gateway's URL.
fn address(url: &str) -> Result<String, String> {
    let rest = match url.split_once("://") {
        Some(("https", rest)) => rest,
        Some((scheme, _)) => return Err(format!("the scheme must be https, not {scheme}")),
        None => url,
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let sound = |byte: u8| byte.is_ascii_alphanumeric() || b".:-[]".contains(&byte);
    if rest.is_empty() || !rest.bytes().all(sound) {
        return Err("the URL must be https://HOST:PORT, without a path, a user or a query".to_owned());
    }
    // An IPv6 address has colons of its own, and brackets when a port follows.
    let ported = rest
        .rsplit_once(':')
        .is_some_and(|(host, port)| port.parse::<u16>().is_ok() && !host.is_empty() && (!host.contains(':') || host.ends_with(']')));
    Ok(if ported { rest.to_owned() } else { format!("{rest}:{DEFAULT_GATEWAY_PORT}") })
}

/// The host name of this machine, without control characters and cut.
fn machine() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    let name: String = name.trim().chars().filter(|character| !character.is_control()).take(MAX_NAME_CHARS).collect();
    (!name.is_empty()).then_some(name)
}

/// Asks for an Agent, until the gateway gives one or refuses for good.
async fn enrol(gateway: &Gateway, key: &str, display_name: Option<String>) -> Result<Enrolled, Refusal> {
    let internal = |error: serde_json::Error| Refusal::new(Code::Internal, format!("the gateway's answer is not understood: {error}"));
    let body = serde_json::to_vec(&Enrol { version: VERSION.to_owned(), display_name }).map_err(internal)?;
    let call = Call::post("/agent/v1/external", body, ENROL_TIMEOUT).key(key.to_owned());
    let (mut failures, mut said) = (0_u32, String::new());
    loop {
        let result = gateway.call(&call).await;
        let trouble = match &result {
            Ok(Answer::Done(body)) => return serde_json::from_slice(body).map_err(internal),
            Ok(Answer::Nothing) => "the gateway's answer is empty".to_owned(),
            Ok(Answer::Refused(refusal)) if !refusal.code.is_retryable() => return Err(refusal.clone()),
            Ok(Answer::Refused(refusal)) => refusal.to_string(),
            Err(silence) => silence.to_string(),
        };
        if trouble != said {
            link_says!("{trouble}; trying again");
            said = trouble;
        }
        failures = failures.saturating_add(1);
        sleep(backoff::delay(failures, CALL_RETRY_BACKOFF.0, CALL_RETRY_BACKOFF.1, random::fraction()).max(retry_after(&result))).await;
    }
}

/// As [`enrol`], and whether a signal asked us to end meanwhile. In that case it still waits a little for the answer: the Agent
/// may exist already, and only we know that it must go.
async fn enrol_until(
    gateway: &Gateway,
    key: &str,
    name: Option<String>,
    asked: &mut StopRequest,
) -> (Option<Result<Enrolled, Refusal>>, bool) {
    let mut enrolling = pin!(enrol(gateway, key, name));
    tokio::select! {
        enrolled = &mut enrolling => (Some(enrolled), false),
        () = asked.next() => tokio::select! {
            enrolled = timeout(ANSWER_GRACE, &mut enrolling) => (enrolled.ok(), true),
            () = asked.next() => (None, true),
        },
    }
}

/// Says goodbye for an agent that never ran, so that its pool need not wait until it is given up. Without an answer it is given up.
async fn leave(gateway: &Gateway, reason: &str) {
    let Ok(body) = serde_json::to_vec(&Goodbye { reason: reason.to_owned() }) else { return };
    match gateway.call(&Call::post("/agent/v1/goodbye", body, ENROL_TIMEOUT)).await {
        Ok(Answer::Done(_) | Answer::Nothing) => {}
        Ok(Answer::Refused(refusal)) => link_says!("the gateway refuses the agent's goodbye: {refusal}"),
        Err(silence) => link_says!("the agent's goodbye is not delivered: {silence}"),
    }
}

/// A temporary folder of this process, which is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> io::Result<Self> {
        let unique = random::key()?;
        let folder = Self(std::env::temp_dir().join(format!("spillway-{}", unique.get(..16).unwrap_or_default())));
        // It must be new: an existing folder may belong to another user.
        DirBuilder::new().mode(0o700).create(&folder.0)?;
        for name in ["journal", "data", "bin"] {
            DirBuilder::new().mode(0o700).create(folder.path(name))?;
        }
        symlink(std::env::current_exe()?, folder.path("bin").join(COMMAND_NAME))?;
        Ok(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn socket(&self) -> PathBuf {
        self.path("link.sock")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // the system clears its folder for temporary files
    }
}

/// What changes in the program's environment, compared with ours; no value removes a variable. `own` reads a variable of ours.
fn environment(
    place: &ExternalAgent,
    enrolled: &Enrolled,
    folder: &Folder,
    models: &str,
    own: impl Fn(&str) -> Option<OsString>,
) -> Vec<(String, Option<OsString>)> {
    let Enrolled { agent, uid, type_, models: entries } = enrolled;
    let mut set: Vec<(String, Option<OsString>)> = Vec::new();
    let mut say = |name: &str, value: Option<OsString>| set.push((name.to_owned(), value));
    for (name, value) in [
        ("SPILLWAY_AGENT_ID", uid.as_str()),
        ("SPILLWAY_AGENT_NAME", agent),
        ("SPILLWAY_AGENT_TYPE", type_),
        ("SPILLWAY_POOL", &place.pool),
        ("SPILLWAY_CONTAINER_MODE", "false"),
    ] {
        say(name, Some(value.into()));
    }
    say(DATA_DIR_VARIABLE, Some(folder.path("data").into()));
    say(SOCKET_VARIABLE, Some(folder.socket().into()));
    say("PATH", Some(join_variable(folder.path("bin").as_os_str(), ":", own("PATH"))));
    for name in ["NO_PROXY", "no_proxy"] {
        say(name, Some(join_variable(NO_PROXY_HOSTS.as_ref(), ",", own(name))));
    }
    for (url, key, below, dialects) in MODEL_VARIABLES {
        let speaks = |entry: &&ModelEntry| dialects.contains(&entry.dialect);
        if let Some(entry) = entries.iter().find(speaks) {
            say(url, Some(format!("{models}/{}{below}", entry.name).into()));
            say(key, Some(PLACEHOLDER_KEY.into()));
            if key == GOOGLE_KEY_ALIASES.0 {
                say(GOOGLE_KEY_ALIASES.1, None);
            }
        }
    }
    set
}

/// `first`, and after it `between` and `rest`, if `rest` is not empty.
fn join_variable(first: &OsStr, between: &str, rest: Option<OsString>) -> OsString {
    let mut all = first.to_owned();
    if let Some(rest) = rest.filter(|rest| !rest.is_empty()) {
        all.push(between);
        all.push(rest);
    }
    all
}

/// Starts the supervisor in its own process group: signals of a terminal come only to us, and we end the supervisor in order.
fn supervisor(folder: &Folder, environment: Vec<(String, Option<OsString>)>, command: &[OsString]) -> io::Result<Child> {
    let mut supervisor = Command::new(std::env::current_exe()?);
    supervisor.args(["agent", "--parent", &std::process::id().to_string()]);
    for (flag, path) in [("--data", folder.path("data")), ("--socket", folder.socket())] {
        supervisor.arg(flag).arg(path);
    }
    supervisor.arg("--").args(command);
    for (name, value) in environment {
        match value {
            Some(value) => supervisor.env(name, value),
            None => supervisor.env_remove(name),
        };
    }
    supervisor.stdin(Stdio::null()).process_group(0).spawn()
}

/// Ends the processes that are left below us. There are some only if the supervisor was killed.
async fn end_orphans(tree: Tree) {
    if !tree.end().await {
        link_says!("processes of the program cannot be killed");
    }
}

/// The supervisor, and the program below it.
struct Program {
    child: Child,
    /// All processes below us.
    tree: Tree,
    /// A signal on this machine asked us to end.
    stop_requested: bool,
    /// The exit code of the supervisor, once it has ended.
    code: u8,
}

impl Program {
    /// Waits until the program has ended, by itself, after a signal to us, or because the agent must end. Returns the goodbye.
    async fn until_ended(
        &mut self,
        mut asked: StopRequest,
        mut children: Signals,
        mut directives: watch::Receiver<Directive>,
    ) -> Option<Goodbye> {
        let mut told = false;
        let mut listens = true;
        loop {
            match self.child.try_wait() {
                Ok(None) => {}
                Ok(Some(status)) => {
                    self.code = exit_code(status);
                    end_orphans(self.tree).await;
                    return Some(Goodbye { reason: goodbye_reason(self.code, self.stop_requested) });
                }
                Err(error) => {
                    link_says!("cannot wait for the supervisor process: {error}");
                    return Some(Goodbye { reason: "spillway-agent run lost its supervisor process".to_owned() });
                }
            }
            tokio::select! {
                _ = children.recv() => {}
                () = asked.next() => {
                    self.stop_requested = true;
                    self.end();
                }
                changed = directives.changed(), if listens => {
                    listens = changed.is_ok();
                    let leaves = matches!(*directives.borrow_and_update(), Directive::Drain | Directive::Stop);
                    if leaves && !std::mem::replace(&mut told, true) {
                        link_says!("the agent's directive is drain or stop: the program is asked to end");
                        self.end();
                    }
                }
            }
        }
    }

    /// Asks the supervisor to end the program, as a kubelet does.
    fn end(&self) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM); // it may have ended
        }
    }
}

/// The reason of the goodbye.
fn goodbye_reason(code: u8, asked: bool) -> String {
    if asked { format!("a signal on its machine ended it: exit code {code}") } else { format!("its program ended with exit code {code}") }
}

/// The signals by which this machine asks us to end.
struct StopRequest([Signals; 3]);

impl StopRequest {
    fn new() -> io::Result<Self> {
        Ok(Self([signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?, signal(SignalKind::hangup())?]))
    }

    /// Waits for the next of them.
    async fn next(&mut self) {
        let [terminate, interrupt, hangup] = &mut self.0;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_is_named_by_its_url() {
        for (url, expected) in [
            ("https://gateway.example.org:9443", "gateway.example.org:9443"),
            ("https://gateway.example.org/", "gateway.example.org:8443"),
            ("10.0.0.7:8443", "10.0.0.7:8443"),
            ("https://[fd00::1]:8443", "[fd00::1]:8443"),
            ("https://[fd00::1]", "[fd00::1]:8443"),
        ] {
            assert_eq!(address(url).as_deref(), Ok(expected), "{url}");
        }
        for url in ["http://gateway:8443", "https://", "https://user@gateway", "https://gateway/path", "https://gateway?x"] {
            assert!(address(url).is_err(), "{url}");
        }
    }

    #[test]
    fn the_program_is_told_who_it_is_and_reaches_models_behind_a_secret() {
        let folder = Folder(PathBuf::from("/nowhere"));
        let place = ExternalAgent { namespace: "team".into(), pool: "laptops".into(), agent: None };
        let entry = |name: &str, dialect| ModelEntry { name: name.into(), dialect };
        let models = vec![entry("gpt", Dialect::OpenAIResponses), entry("other", Dialect::OpenAIChat), entry("g", Dialect::Gemini)];
        let enrolled = Enrolled { agent: "laptops-1".into(), uid: "u".into(), type_: "worker".into(), models };
        let own = |name: &str| (name == "PATH").then(|| OsString::from("/usr/bin")).or_else(|| (name == "NO_PROXY").then(|| "x".into()));
        let built = environment(&place, &enrolled, &folder, "http://127.0.0.1:1/secret", own);
        let of = |name: &str| {
            built.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone().map(|value| value.into_string().expect("text")))
        };
        let text = |text: &str| Some(Some(text.to_owned()));
        assert_eq!((of("SPILLWAY_AGENT_ID"), of("SPILLWAY_AGENT_TYPE")), (text("u"), text("worker")));
        assert_eq!((of("PATH"), of("NO_PROXY")), (text("/nowhere/bin:/usr/bin"), text("localhost,127.0.0.1,::1,x")));
        assert_eq!(of("OPENAI_BASE_URL"), text("http://127.0.0.1:1/secret/gpt/v1"), "the first of its protocol");
        assert_eq!(
            (of("OPENAI_API_KEY"), of("GEMINI_API_KEY"), of("GOOGLE_API_KEY")),
            (text(PLACEHOLDER_KEY), text(PLACEHOLDER_KEY), Some(None))
        );
        assert_eq!((of("ANTHROPIC_BASE_URL"), of("ANTHROPIC_API_KEY")), (None, None), "what the pool has not stays as it is");
        let names: Vec<&str> = built.iter().map(|(name, _)| name.as_str()).collect();
        let listed = ["SPILLWAY_", "PATH", "NO_PROXY", "no_proxy", "OPENAI_", "GOOGLE_", "GEMINI_"];
        assert!(names.iter().all(|name| listed.iter().any(|begin| name.starts_with(begin))), "and nothing else is set: {names:?}");
    }

    #[test]
    fn a_goodbye_says_how_it_ended() {
        assert!(goodbye_reason(3, false).contains("exit code 3") && goodbye_reason(143, true).contains("signal on its machine"));
    }
}
