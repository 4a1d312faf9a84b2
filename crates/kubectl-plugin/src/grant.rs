//! `grant`: more tokens for an agent, a Budget or a ClusterBudget. The target is read first, because a Grant for a limit that
//! does not exist has no effect.
//!
//! Each call creates a new Grant. A create whose answer was lost is not repeated automatically: without a name it would give
//! the tokens twice.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::PostParams;
use kube::{Api, ResourceExt as _};
use serde::Serialize;
use tokio::time::Instant;

use super::connect::Cluster;
use super::console::Output;
use super::error::Error;
use super::find;
use super::input::{self, Grantable};
use super::table::printable;
use super::wait::{self, Check};
use crate::api::budget::{TokenPolicy, WindowStatus};
use crate::api::conditions::types::APPLIED;
use crate::api::grant::{GrantTarget, GrantTargetKind};
use crate::api::names::{self, managers};
use crate::api::{Agent, Budget, ClusterBudget, GROUP, Grant, GrantSpec};

/// How long the command waits for the operator to apply the Grant.
const GRANT_TIMEOUT: Duration = Duration::from_secs(5);

/// Arguments of `grant`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
#[command(after_help = "Examples:
  kubectl spillway grant agent/coders-1f2e3d4c5b 50k          # for its life
  kubectl spillway grant budget/team 200k --for 1h            # of its only limit
  kubectl spillway grant budget/team 1M --limit daily --reason 'release week'
  kubectl spillway grant clusterbudget/all 1M --limit rate -n spillway-system --dry-run

Without --for the tokens can be spent to the end of the limit's window. A Grant is an object: `kubectl get grants` lists the
Grants. Only the end of a Grant (spec.untilTime) can be changed. Grants for a ClusterBudget must be in the namespace in which
Spillway runs. A user who may create Grants can raise the limits of others, so no team has this right by default: see the
ClusterRole whose name ends in -grants.")]
pub struct Arguments {
    /// The target: agent/NAME, budget/NAME or clusterbudget/NAME
    #[arg(value_name = "KIND/NAME", value_parser = input::grantable)]
    pub target: Grantable,
    /// Number of tokens: 50000, 50k, 2M
    #[arg(value_name = "N", value_parser = input::tokens)]
    pub tokens: i64,
    /// The limit of the Budget or ClusterBudget to raise [default: the only one]
    #[arg(long, value_name = "NAME", value_parser = input::label)]
    pub limit: Option<String>,
    /// How long the tokens can be spent [default: to the end of the window; for an agent, of its life]
    #[arg(long = "for", value_name = "DURATION", value_parser = input::duration)]
    pub lasting: Option<Duration>,
    /// The reason, for people; stored in an annotation of the Grant
    #[arg(long, value_name = "TEXT", value_parser = input::reason)]
    pub reason: Option<String>,
    /// Name of the Grant; with a name, a repeated command is refused [default: the target's, and five characters]
    #[arg(long, value_parser = input::label)]
    pub name: Option<String>,
    /// Let the API server check the Grant, and store nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// The created Grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// The target, as kind and name.
    pub target: String,
    /// The limit.
    pub limit: Option<String>,
    /// The number of tokens.
    pub tokens: i64,
    /// The end; none: the end of the window, or of the agent's life.
    pub until: Option<String>,
    /// Whether nothing was stored.
    pub dry_run: bool,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// The result of waiting for the operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Waited {
    /// The Grant counts.
    Applied,
    /// The Grant does not count, with the reason.
    Refused(String),
    /// The operator has not decided in time, with the last state.
    Unknown(String),
}

/// Reads the target and creates the Grant.
pub async fn run(cluster: &Cluster, arguments: &Arguments, now: Timestamp) -> Result<Report, Error> {
    let namespace = &cluster.namespace;
    let mut notes = Vec::new();
    let limit = match &arguments.target {
        Grantable::Agent(name) => {
            if arguments.limit.is_some() {
                return Err(Error::Usage("an agent has no limits to select, only the tokens of its life: leave --limit out".into()));
            }
            let agent = cluster.api::<Agent>().get(name).await.map_err(Error::of::<Agent>(namespace, name))?;
            if find::ended(&agent) {
                return Err(Error::Usage(format!("agent \"{name}\" has ended ({}), so it cannot spend tokens", find::state(&agent))));
            }
            None
        }
        Grantable::Budget(name) => {
            let budget = cluster.api::<Budget>().get(name).await.map_err(Error::of::<Budget>(namespace, name))?;
            let counted = budget.status.as_ref().and_then(|status| status.windows.as_deref());
            Some(select_limit(&arguments.target, &limits(budget.spec.tokens.as_ref(), counted), arguments.limit.as_deref(), &mut notes)?)
        }
        Grantable::ClusterBudget(name) => {
            let api: Api<ClusterBudget> = Api::all(cluster.client.clone());
            let budget = api.get(name).await.map_err(|error| cluster_budget_error(name, error))?;
            let counted = budget.status.as_ref().and_then(|status| status.windows.as_deref());
            Some(select_limit(&arguments.target, &limits(budget.spec.tokens.as_ref(), counted), arguments.limit.as_deref(), &mut notes)?)
        }
    };
    let until = arguments.lasting.map(|lasting| end_time(now, lasting)).transpose()?;
    let grant = grant(arguments, namespace, limit.clone(), until);
    let params = PostParams { field_manager: Some(managers::PLUGIN.to_owned()), dry_run: arguments.dry_run };
    let name = arguments.name.as_deref().unwrap_or_default();
    let made = cluster.api::<Grant>().create(&params, &grant).await.map_err(Error::of::<Grant>(namespace, name))?;
    Ok(Report {
        namespace: namespace.clone(),
        name: made.name_any(),
        uid: made.uid().unwrap_or_default(),
        target: arguments.target.to_string(),
        limit,
        tokens: arguments.tokens,
        until: until.map(|time| time.to_string()),
        dry_run: arguments.dry_run,
        notes,
    })
}

/// The error for a ClusterBudget, which has no namespace.
fn cluster_budget_error(name: &str, error: kube::Error) -> Error {
    match Error::of::<ClusterBudget>("", name)(error) {
        Error::NotFound { .. } => {
            Error::Usage(format!("ClusterBudget \"{name}\" not found; `kubectl get clusterbudgets` lists those that exist"))
        }
        other => other,
    }
}

/// The end, to the second.
fn end_time(now: Timestamp, lasting: Duration) -> Result<Timestamp, Error> {
    if lasting.is_zero() {
        return Err(Error::Usage("--for must be longer than 0".into()));
    }
    let end = SignedDuration::try_from(lasting).ok().and_then(|lasting| now.checked_add(lasting).ok());
    let end = end.and_then(|end| Timestamp::from_second(end.as_second()).ok());
    end.ok_or_else(|| Error::Usage("--for is too long: leave it out for no end".into()))
}

/// The limits of a budget: those of its spec, and those in its status, which other objects may define.
fn limits(tokens: Option<&TokenPolicy>, counted: Option<&[WindowStatus]>) -> Vec<String> {
    let said = tokens.and_then(|tokens| tokens.limits.as_ref()).into_iter().flatten().map(|limit| limit.name.clone());
    let mut all: Vec<String> = said.chain(counted.into_iter().flatten().map(|window| window.name.clone())).collect();
    all.sort();
    all.dedup();
    all
}

/// The limit to raise.
fn select_limit(target: &Grantable, known: &[String], named: Option<&str>, notes: &mut Vec<String>) -> Result<String, Error> {
    let listed = || known.join(", ");
    match (named, known) {
        (Some(name), []) => {
            notes.push(format!("{target} has no limits in its spec and status; the operator checks whether the limit {name} exists"));
            Ok(name.to_owned())
        }
        (Some(name), _) if known.iter().any(|known| known == name) => Ok(name.to_owned()),
        (Some(name), _) => Err(Error::Usage(printable(&format!("{target} has no limit \"{name}\": it has {}", listed())))),
        (None, [only]) => Ok(only.clone()),
        (None, []) => Err(Error::Usage(format!("{target} has no limits of tokens in its spec and status; name the limit with --limit"))),
        (None, _) => Err(Error::Usage(printable(&format!("{target} has more than one limit: name one with --limit ({})", listed())))),
    }
}

/// The Grant to create.
fn grant(arguments: &Arguments, namespace: &str, limit: Option<String>, until: Option<Timestamp>) -> Grant {
    let (kind, target) = match &arguments.target {
        Grantable::Agent(name) => (GrantTargetKind::Agent, name),
        Grantable::Budget(name) => (GrantTargetKind::Budget, name),
        Grantable::ClusterBudget(name) => (GrantTargetKind::ClusterBudget, name),
    };
    let reason = arguments.reason.clone().map(|reason| [(names::REASON_ANNOTATION.to_owned(), reason)].into());
    Grant {
        metadata: ObjectMeta {
            name: arguments.name.clone(),
            generate_name: arguments.name.is_none().then(|| format!("{target}-")),
            namespace: Some(namespace.to_owned()),
            annotations: reason,
            ..ObjectMeta::default()
        },
        spec: GrantSpec {
            target_ref: GrantTarget { kind, name: target.clone() },
            limit_name: limit,
            tokens: arguments.tokens,
            until_time: until.map(Time),
        },
        status: None,
    }
}

/// Waits a moment for the operator to apply the Grant.
pub async fn wait(cluster: &Cluster, report: &Report) -> Result<Waited, Error> {
    let look = async || read_grant(cluster, report).await;
    Ok(match wait::until(Some(Instant::now() + GRANT_TIMEOUT), wait::WAIT_POLL_INTERVAL, look).await? {
        wait::Waited::Done(waited) => waited,
        wait::Waited::TimedOut(words) => Waited::Unknown(words),
    })
}

async fn read_grant(cluster: &Cluster, report: &Report) -> Result<Check<Waited>, Error> {
    let found = cluster.api::<Grant>().get_opt(&report.name).await.map_err(Error::of::<Grant>(&cluster.namespace, &report.name))?;
    Ok(check_applied(found.filter(|grant| grant.uid().as_deref() == Some(&report.uid)).as_ref()))
}

fn check_applied(grant: Option<&Grant>) -> Check<Waited> {
    let Some(grant) = grant else { return Check::Done(Waited::Refused("it was deleted during the wait".to_owned())) };
    let applied = grant.status.as_ref().and_then(|status| find::condition(&status.conditions, APPLIED));
    match applied {
        Some(applied) if applied.status == "True" => Check::Done(Waited::Applied),
        Some(applied) if applied.status == "False" => Check::Done(Waited::Refused(find::reason_and_message(applied))),
        Some(applied) => Check::NotYet(find::reason_and_message(applied)),
        None => Check::NotYet("the operator has not observed it yet".to_owned()),
    }
}

/// The created Grant, as text.
pub fn render(report: &Report) -> Output {
    let Report { namespace: _, name, uid: _, target, limit, tokens, until, dry_run, notes } = report;
    let mut output = Output::default();
    let what = limit.as_ref().map_or_else(|| target.clone(), |limit| format!("{target}, limit {limit}"));
    let until = match (until, limit) {
        (Some(until), _) => format!("until {until}"),
        (None, Some(_)) => "to the end of the window".to_owned(),
        (None, None) => "for its life".to_owned(),
    };
    let dry = if *dry_run { " (server dry run)" } else { "" };
    output.line(printable(&format!("grant.{GROUP}/{name} created: {tokens} tokens for {what}, {until}{dry}")));
    notes.iter().for_each(|words| output.note(format!("note: {}", printable(words))));
    output
}

/// The result of waiting, as text.
pub fn render_waited(report: &Report, waited: &Waited) -> Output {
    let mut output = Output::default();
    let Report { namespace, name, .. } = report;
    match waited {
        Waited::Applied => output.line(format!("grant.{GROUP}/{name} applied")),
        Waited::Refused(words) => output.failure(printable(&format!("grant \"{name}\" does not count: {words}"))),
        Waited::Unknown(words) => output.note(printable(&format!(
            "note: the operator has not applied the Grant yet ({words}); `kubectl get grant {name} -n {namespace}` shows its state"
        ))),
    }
    output
}

#[cfg(test)]
mod tests {
    use super::*;

    fn team() -> Grantable {
        Grantable::Budget("team".into())
    }

    #[test]
    fn the_only_limit_is_meant_and_of_many_one_must_be_named() {
        let known = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let chosen = |names: &[&str], named: Option<&str>| select_limit(&team(), &known(names), named, &mut Vec::new());
        assert_eq!(chosen(&["hourly"], None).expect("the only one"), "hourly");
        assert_eq!(chosen(&["daily", "hourly"], Some("daily")).expect("named"), "daily");
        let words = |result: Result<String, Error>| result.expect_err("refused").to_string();
        assert_eq!(words(chosen(&["daily", "hourly"], None)), "budget/team has more than one limit: name one with --limit (daily, hourly)");
        assert_eq!(words(chosen(&["daily"], Some("x"))), "budget/team has no limit \"x\": it has daily");
        assert_eq!(words(chosen(&[], None)), "budget/team has no limits of tokens in its spec and status; name the limit with --limit");
        let mut notes = Vec::new();
        assert_eq!(select_limit(&team(), &[], Some("hourly"), &mut notes).expect("taken"), "hourly");
        assert_eq!(notes.len(), 1);
    }

    #[test]
    fn an_end_is_a_time_to_the_second() {
        let now: Timestamp = "2026-01-01T00:00:00.7Z".parse().expect("a time");
        assert_eq!(end_time(now, Duration::from_secs(3600)).expect("an end").to_string(), "2026-01-01T01:00:00Z");
        assert!(end_time(now, Duration::ZERO).is_err() && end_time(now, Duration::from_secs(u64::from(u32::MAX) * 1000)).is_err());
    }

    #[test]
    fn what_was_given_is_told_with_its_end() {
        let report = Report {
            namespace: "n".into(),
            name: "team-x".into(),
            uid: "u".into(),
            target: "budget/team".into(),
            limit: Some("hourly".into()),
            tokens: 5,
            until: None,
            dry_run: true,
            notes: vec!["w".into()],
        };
        let told = render(&report);
        assert_eq!(
            told.out,
            "grant.spillway.dev/team-x created: 5 tokens for budget/team, limit hourly, to the end of the window (server dry run)\n"
        );
        assert_eq!(told.err, "note: w\n");
        let late = render_waited(&report, &Waited::Unknown("the operator has not observed it yet".into()));
        assert!(!late.failed && late.err.contains("`kubectl get grant team-x -n n`"), "{}", late.err);
        assert!(render_waited(&report, &Waited::Refused("LimitUnknown".into())).failed);
    }
}
