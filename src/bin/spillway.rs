//! `spillway`: the operator's processes. Parses arguments and calls the library.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{CommandFactory as _, Parser, Subcommand};
use spillway::bridge::BridgeArguments;
use spillway::cluster::lease::Identity;
use spillway::controller::supervised::{self, ControllerPeer, Gateway};
use spillway::egress_settings::EgressSettings;
use spillway::git_settings::GitSettings;
use spillway::node_profile::NodeProfileArguments;
use spillway::pki::secrets::SecretNames;
use spillway::release::{CheckArguments, EndAgentsArguments};
use spillway::source::forge::{Forge, ForgeKind};
use spillway::source::issue_item::Target;
use spillway::telemetry::{LogFormat, start_logs};
use spillway::{bridge, controller, gateway, generate, node_profile, notify, release, source};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Keeps fleets of AI coding agents inside bulkheads.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the controller: reconcile the custom resources.
    Controller(Box<ControllerArguments>),
    /// Run a gateway: the only service that agents can reach.
    Gateway(Box<GatewayArguments>),
    /// Make items of work of a forge's issues, and tell their ends on the issues.
    Source(Box<SourceArguments>),
    /// Keep the system call profile in the folder of this node's kubelet, and label the node.
    NodeProfile(NodeProfileArguments),
    /// Serve programs to agents over MCP: they run outside of the agents' sandboxes, with credentials that agents cannot read.
    Bridge(Box<BridgeArguments>),
    /// Run one program of the bridge. The bridge starts it.
    #[command(hide = true)]
    BridgeProgram,
    /// Say whether a release of the operator serves: the kinds, the leader, and every controller and gateway.
    Check(CheckArguments),
    /// End all agents before the operator is removed: its Deployment gets SPILLWAY_END_AGENTS=true.
    EndAgents(EndAgentsArguments),
    /// Print the CustomResourceDefinitions, or write or check every generated file of a checkout.
    Crds(CrdsArguments),
    /// Print a completion script for a shell.
    Completion { shell: clap_complete::Shell },
}

#[derive(clap::Args)]
struct ControllerArguments {
    /// Serve only this namespace. Empty: all [default: all]
    #[arg(long, env = "SPILLWAY_NAMESPACE")]
    namespace: Option<String>,
    /// Namespace of the leader Lease, usually that of this pod.
    #[arg(long, env = "POD_NAMESPACE", default_value = "spillway-system")]
    lease_namespace: String,
    /// Name of the leader Lease.
    #[arg(long, default_value = "spillway-controller")]
    lease_name: String,
    /// Name of this replica. A random suffix makes it unique after each restart.
    #[arg(long, env = "POD_NAME", default_value = "local")]
    identity: String,
    /// Address of /livez, /readyz and /metrics.
    #[arg(long, env = "SPILLWAY_LISTEN", default_value = "0.0.0.0:8080")]
    listen: SocketAddr,
    /// How many agents, and how many pools, are reconciled at once.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    concurrency: u16,
    /// Image with /spillway-agent: runs as the sidecar of every agent's pod.
    #[arg(long, env = "SPILLWAY_AGENT_IMAGE")]
    agent_image: String,
    /// Pull policy of that image: Always, IfNotPresent or Never.
    #[arg(long, default_value = "IfNotPresent", value_parser = ["Always", "IfNotPresent", "Never"])]
    agent_image_pull_policy: String,
    /// Secret with which the kubelet pulls that image, in the namespace of each agent; may be given several times.
    #[arg(long = "agent-image-pull-secret", value_name = "NAME")]
    agent_image_pull_secrets: Vec<String>,
    /// End all agents and make no new ones, so that the operator can be removed.
    #[arg(long, env = "SPILLWAY_END_AGENTS")]
    end_agents: bool,
    /// Service of the gateways, in the namespace of the Lease.
    #[arg(long, value_name = "NAME", conflicts_with = "gateway_address", required_unless_present = "gateway_address")]
    gateway_service: Option<String>,
    /// Address of a gateway outside the cluster's network, instead of a Service.
    #[arg(long, value_name = "IP:PORT")]
    gateway_address: Option<SocketAddr>,
    /// ServiceAccount of the gateways. Only this account may call the governor.
    #[arg(long, value_name = "NAMESPACE:NAME", value_parser = service_account)]
    gateway_account: String,
    /// Address at which the leader serves the gateways.
    #[arg(long, default_value = "0.0.0.0:8443")]
    governor_listen: SocketAddr,
    /// Address at which gateways reach this process [default: $POD_IP with the port of --governor-listen]
    #[arg(long, value_name = "IP:PORT")]
    governor_address: Option<SocketAddr>,
    /// Label of the controller's pods; may be given several times. The bridges of Toolsets accept connections of pods with all of these
    /// labels [default: of the address of --governor-address]
    #[arg(long = "pod-label", value_name = "KEY=VALUE", value_parser = label)]
    pod_labels: Vec<(String, String)>,
    /// Secret with the internal certificate authority, in the namespace of the Lease. Created if it does not exist.
    #[arg(long, default_value = "spillway-ca")]
    ca_secret: String,
    /// Secret with the gateways' certificate, in the namespace of the Lease. Created if it does not exist.
    #[arg(long, default_value = "spillway-gateway-tls")]
    gateway_tls_secret: String,
    /// Address that an agent's pod must not reach; may be given several times [default: the API server's Service]
    #[arg(long = "canary", value_name = "IP:PORT")]
    canaries: Vec<SocketAddr>,
    /// Do not test whether NetworkPolicies are enforced before an agent starts. For networks that cannot enforce them.
    #[arg(long, conflicts_with = "canaries")]
    no_canary: bool,
    /// Keep a ClusterBudget `default` with this spec, unless --namespace is set. Fields that other writers have set differently stay as they are.
    #[arg(long, value_name = "JSON", value_parser = object)]
    cluster_budget: Option<serde_json::Value>,
    /// File with a JSON list of webhooks: {name, format, urlFile, authorizationFile, caBundle, namespaces} [default:
    /// none]
    #[arg(long, value_name = "FILE")]
    webhooks_file: Option<PathBuf>,
    /// JSON object with {deny, allowPrivate, allowSets}: the platform's rules for destinations other than models [default: no rules]
    #[arg(long, value_name = "FILE")]
    egress_file: Option<PathBuf>,
    /// JSON object with {origins, maxFetchBytes, maxPushBytes}: the git servers that pools can use, and limits [default: no server]
    #[arg(long, value_name = "FILE")]
    git_file: Option<PathBuf>,
    /// Format of log lines. RUST_LOG selects the lines.
    #[arg(long, value_enum, default_value_t = LogFormat::Json)]
    log_format: LogFormat,
}

#[derive(clap::Args)]
struct GatewayArguments {
    /// Address for agents.
    #[arg(long, default_value = "0.0.0.0:8443")]
    listen: SocketAddr,
    /// Address of /livez, /readyz and /metrics.
    #[arg(long, default_value = "0.0.0.0:8080")]
    health_listen: SocketAddr,
    /// Namespace of the leader Lease and of the certificate, usually that of this pod.
    #[arg(long, env = "POD_NAMESPACE", default_value = "spillway-system")]
    namespace: String,
    /// Name of the leader Lease.
    #[arg(long, default_value = "spillway-controller")]
    lease_name: String,
    /// Secret with the gateways' certificate.
    #[arg(long, default_value = "spillway-gateway-tls")]
    tls_secret: String,
    /// File with a token of the gateways' ServiceAccount, for the audience spillway.dev/governor.
    #[arg(long, default_value = "/var/run/secrets/spillway.dev/governor/token")]
    governor_token_file: PathBuf,
    /// Name of this replica. A random suffix makes it unique after each restart.
    #[arg(long, env = "POD_NAME", default_value = "local")]
    identity: String,
    /// Folder for the journal of holds and settles of model calls. It must survive this process, best in memory
    /// [default: none]
    #[arg(long, value_name = "DIR")]
    journal: Option<PathBuf>,
    /// Uid of this pod. It names this gateway's session with the ledger of budgets.
    #[arg(long, env = "POD_UID", value_name = "UID")]
    pod_uid: Option<String>,
    /// ServiceAccount of this gateway, for the manifests that refusals name.
    #[arg(long, env = "POD_SERVICE_ACCOUNT", default_value = "spillway-gateway")]
    service_account: String,
    /// File with a JSON list of allowed destinations of model calls: {origin, allowPrivate, caBundle} [default: the
    /// public origins of the providers]
    #[arg(long, value_name = "FILE")]
    model_origins_file: Option<PathBuf>,
    /// Accept agents from outside the cluster, of users who may create agentpools/external. This needs the right to
    /// create subjectaccessreviews
    #[arg(long)]
    external_agents: bool,
    /// Additional audience of tokens with which users, not pods, register agents outside the cluster. Needed if the API
    /// server's users come from an identity provider: give an audience of that API server. May be given several times.
    #[arg(long, value_name = "AUDIENCE")]
    user_audience: Vec<String>,
    /// Additional header of model calls that is sent to providers. May be given several times.
    #[arg(long, value_name = "NAME")]
    allowed_header: Vec<String>,
    /// Field of model calls that is allowed although it may cost more than its tokens. May be given several times.
    #[arg(long, value_name = "NAME", value_parser = spillway_dialect::SURCHARGE_MEMBERS)]
    allowed_field: Vec<String>,
    /// JSON object with {deny, allowPrivate, allowSets}: the platform's rules for destinations other than models [default: no rules]
    #[arg(long, value_name = "FILE")]
    egress_file: Option<PathBuf>,
    /// JSON object with {origins, maxFetchBytes, maxPushBytes}: the git servers that pools can use, and limits [default: no server]
    #[arg(long, value_name = "FILE")]
    git_file: Option<PathBuf>,
    /// JSON object with {store}: where artifacts are kept, {volume: {path}} or {s3: {bucket, region, endpoint, prefix}} [default: no
    /// artifacts are kept]
    #[arg(long, value_name = "FILE")]
    artifacts_file: Option<PathBuf>,
    /// Format of log lines. RUST_LOG selects the lines.
    #[arg(long, value_enum, default_value_t = LogFormat::Json)]
    log_format: LogFormat,
}

#[derive(clap::Args)]
struct SourceArguments {
    /// Kind of the forge.
    #[arg(long, value_enum)]
    forge: ForgeKind,
    /// URL of its API, such as https://HOST/api/v1 (Gitea), https://HOST/api/v4 (GitLab) or https://HOST/api/v3 (GitHub Enterprise
    /// Server) [default: that of github.com or gitlab.com]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// The repository, as OWNER/NAME.
    #[arg(long, value_name = "OWNER/NAME")]
    repository: String,
    /// Label of the issues that are work. It is removed when the end of the item is told.
    #[arg(long)]
    label: String,
    /// File with the forge's token. It must be allowed to read issues, to comment on them and to change their labels.
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    /// Certificates in PEM to trust, in addition to the public authorities.
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// Namespace of the items.
    #[arg(long, env = "POD_NAMESPACE", default_value = "default")]
    namespace: String,
    /// Queue of the items.
    #[arg(long)]
    queue: String,
    /// Type of the work.
    #[arg(long = "type", value_name = "TYPE")]
    type_: Option<String>,
    /// Seconds between two polls.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(5..=86_400))]
    interval: u32,
    /// Poll once, and end. The exit code is 1 if the poll failed.
    #[arg(long)]
    once: bool,
    /// Format of log lines. RUST_LOG selects the lines.
    #[arg(long, value_enum, default_value_t = LogFormat::Json)]
    log_format: LogFormat,
}

/// A JSON object.
fn object(text: &str) -> Result<serde_json::Value, String> {
    serde_json::from_str::<serde_json::Map<_, _>>(text).map(serde_json::Value::Object).map_err(|error| error.to_string())
}

/// The user name of a ServiceAccount written as `namespace:name`.
fn service_account(text: &str) -> Result<String, String> {
    match text.split_once(':') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains(':') => {
            Ok(format!("system:serviceaccount:{namespace}:{name}"))
        }
        Some(_) | None => Err("expected NAMESPACE:NAME".into()),
    }
}

/// A label written as `key=value`.
fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        Some(_) | None => Err("expected KEY=VALUE".into()),
    }
}

#[derive(clap::Args)]
#[group(multiple = false)]
struct CrdsArguments {
    /// Write every generated file below this root of a checkout.
    #[arg(long, value_name = "ROOT")]
    write: Option<PathBuf>,
    /// Fail if a generated file below this root is missing or stale.
    #[arg(long, value_name = "ROOT")]
    check: Option<PathBuf>,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Controller(arguments) => run_controller(*arguments),
        Command::Gateway(arguments) => run_gateway(*arguments),
        Command::Source(arguments) => run_source(*arguments),
        Command::NodeProfile(arguments) => arguments.run(|format, keep| run(format, |stop| node_profile::run(keep, stop))),
        Command::Check(arguments) => run(LogFormat::Text, |stop| release::check(arguments, stop)),
        Command::EndAgents(arguments) => run(LogFormat::Text, |stop| release::end_agents(arguments, stop)),
        Command::Bridge(arguments) => arguments.run(|format, serve| run(format, |stop| bridge::run(serve, stop))),
        Command::BridgeProgram => bridge::program_process::main().map_err(Into::into),
        Command::Crds(CrdsArguments { write: Some(root), .. }) => generate::write(&root),
        Command::Crds(CrdsArguments { check: Some(root), .. }) => generate::check(&root),
        Command::Completion { shell } => generate::completion(shell, &mut Arguments::command()),
        Command::Crds(CrdsArguments { write: None, check: None }) => generate::crd_stream().map(|stream| print!("{stream}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_controller(arguments: ControllerArguments) -> anyhow::Result<()> {
    let format = arguments.log_format;
    let settings = settings(arguments)?;
    run(format, |stop| controller::run(settings, stop))
}

fn settings(arguments: ControllerArguments) -> anyhow::Result<controller::Settings> {
    let ControllerArguments {
        namespace,
        lease_namespace,
        lease_name,
        identity,
        listen,
        concurrency,
        agent_image,
        agent_image_pull_policy,
        agent_image_pull_secrets,
        end_agents,
        gateway_service,
        gateway_address,
        gateway_account,
        governor_listen,
        governor_address,
        pod_labels,
        ca_secret,
        gateway_tls_secret,
        canaries,
        no_canary,
        cluster_budget,
        webhooks_file,
        egress_file,
        git_file,
        log_format: _,
    } = arguments;
    let namespace = controller::served_namespace(namespace)?;
    let address = match (governor_address, std::env::var("POD_IP")) {
        (Some(address), _) => address,
        (None, Ok(ip)) => SocketAddr::new(ip.parse().context("POD_IP is not an IP address")?, governor_listen.port()),
        (None, Err(_)) => anyhow::bail!(
            "the address at which gateways reach this process is not known: set --governor-address, or the environment variable POD_IP"
        ),
    };
    let gateway = match (gateway_address, gateway_service) {
        (Some(address), _) => Gateway::Address(address),
        (None, service) => Gateway::Service(service.context("--gateway-service is not set")?),
    };
    Ok(controller::Settings {
        namespace: namespace.clone(),
        lease: Identity {
            namespace: lease_namespace.clone(),
            name: lease_name,
            holder: unique_name(&identity),
            address: Some(address.to_string()),
        },
        listen,
        concurrency,
        supervised: supervised::Settings {
            gateway,
            namespace: lease_namespace.clone(),
            controller: if pod_labels.is_empty() {
                ControllerPeer::Address(address.ip())
            } else {
                ControllerPeer::Labels(pod_labels.into_iter().collect())
            },
            image: agent_image,
            pull_policy: agent_image_pull_policy,
            pull_secrets: agent_image_pull_secrets,
            canaries: canary_addresses(&canaries, no_canary)?,
        },
        governor: governor_listen,
        // The limits of all namespaces are not for a controller that serves one of them.
        cluster_budget: cluster_budget.filter(|_| namespace.is_none()),
        ends_agents: end_agents,
        webhooks: webhooks_file.map(|file| notify::settings::read(&file)).transpose()?.unwrap_or_default(),
        egress: EgressSettings::read(egress_file.as_deref())?,
        git: GitSettings::read(git_file.as_deref())?,
        gateway_user: gateway_account,
        certificates: SecretNames { namespace: lease_namespace, authority: ca_secret, gateway: gateway_tls_secret },
    })
}

/// The addresses that an agent must not reach: the given ones, else the API server's Service as the kubelet announces
/// it to pods. Without this test a network that enforces nothing is not noticed, so only an explicit option disables
/// it.
fn canary_addresses(given: &[SocketAddr], none: bool) -> anyhow::Result<Vec<String>> {
    if none || !given.is_empty() {
        return Ok(given.iter().map(SocketAddr::to_string).collect());
    }
    let told = (std::env::var("KUBERNETES_SERVICE_HOST"), std::env::var("KUBERNETES_SERVICE_PORT"));
    let (Ok(host), Ok(port)) = told else {
        anyhow::bail!(
            "no address is known that agents must not reach: set --canary IP:PORT, or start agents without this test with --no-canary"
        )
    };
    // Some clusters announce a name. Agents have no DNS, so they get its address.
    let target = format!("{host}:{port}");
    let mut addresses = target
        .to_socket_addrs()
        .with_context(|| format!("cannot resolve the address {target} of the API server: set its address with --canary IP:PORT"))?;
    let address = addresses.next().with_context(|| format!("{target} has no address: set one with --canary IP:PORT"))?;
    Ok(vec![address.to_string()])
}

fn run_gateway(arguments: GatewayArguments) -> anyhow::Result<()> {
    let GatewayArguments {
        listen,
        health_listen,
        namespace,
        lease_name,
        tls_secret,
        governor_token_file,
        identity,
        journal,
        pod_uid,
        service_account,
        model_origins_file,
        external_agents,
        user_audience,
        allowed_header,
        allowed_field,
        egress_file,
        git_file,
        artifacts_file,
        log_format,
    } = arguments;
    let governor =
        gateway::governor::Settings { namespace, lease: lease_name, token: governor_token_file, identity: unique_name(&identity) };
    let settings = gateway::Settings {
        listen,
        health: health_listen,
        tls_secret,
        governor,
        journal,
        pod_uid,
        account: service_account,
        model_origins: model_origins_file,
        external_agents,
        user_audiences: user_audience,
        egress: egress_file,
        git: git_file,
        artifacts: artifacts_file,
        allowed_headers: allowed_header,
        allowed_fields: allowed_field,
    };
    run(log_format, |stop| gateway::run(settings, stop))
}

fn run_source(arguments: SourceArguments) -> anyhow::Result<()> {
    let SourceArguments { forge, url, repository, label, token_file, ca_file, namespace, queue, type_, interval, once, log_format } =
        arguments;
    let forge = Forge::new(forge, url.as_deref(), &repository, &label).map_err(|error| anyhow::anyhow!(error))?;
    let target = Target { namespace, queue, type_ };
    let settings = source::Settings { forge, token: token_file, ca: ca_file, target, interval: Duration::from_secs(interval.into()), once };
    run(log_format, |stop| source::run(settings, stop))
}

/// A replica's name that no other process has or had.
fn unique_name(name: &str) -> String {
    format!("{name}_{:08x}", rand::random::<u32>())
}

/// Runs one of the processes until SIGTERM or SIGINT.
fn run<F>(format: LogFormat, process: impl FnOnce(CancellationToken) -> F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    start_logs(format);
    // One TLS provider for the process. A second installation can only be a bug, and is harmless.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the runtime")?;
    runtime.block_on(async {
        let stop = CancellationToken::new();
        let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
        let stopping = stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            tracing::info!("received a signal to stop; finishing running work");
            stopping.cancel();
        });
        process(stop).await
    })
}
