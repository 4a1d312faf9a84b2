//! `ls`: lists agents. Only reads.

use kube::Api;
use kube::ResourceExt as _;
use kube::api::ListParams;
use kube::core::DeserializeGuard;
use serde::Serialize;
use serde_json::json;

use super::connect::Cluster;
use super::console::Output;
use super::error::Error;
use super::find;
use super::input;
use super::table::{age, or_nothing, table};
use crate::api::agent::AgentPhase;
use crate::api::conditions::types;
use crate::api::{Agent, AgentPool, GROUP, names};

/// Characters of a container's id that are shown.
const SHORT_ID_CHARS: usize = 13;

/// Arguments of `ls`.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(after_help = "Examples:
  kubectl spillway ls                 # the agents of this namespace that have not ended
  kubectl spillway ls coders --all    # all agents of one pool, with ended ones
  kubectl spillway ls -A -o wide      # all namespaces, with action, pod, container, node and reason
  kubectl spillway ls -o json | jq '.items[].status.tokens.used'")]
pub struct Arguments {
    /// Only the agents of this pool
    #[arg(value_name = "POOL", value_parser = input::pool)]
    pub pool: Option<String>,
    /// Also list ended agents
    #[arg(long)]
    pub all: bool,
    /// List the agents of all namespaces
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    pub output: Option<Format>,
}

/// The output format; without one a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// A table with more columns
    Wide,
    /// The objects, as a JSON list
    Json,
    /// The objects, as a YAML list
    Yaml,
    /// Only kind and name
    Name,
}

/// The result of `ls`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The namespace; none for all namespaces.
    pub namespace: Option<String>,
    /// The agents, by namespace, pool and name.
    pub agents: Vec<Agent>,
    /// The number of ended agents that are left out.
    pub ended: usize,
    /// One message for each stored object that does not fit its type.
    pub unreadable: Vec<String>,
}

/// Lists agents.
pub async fn run(cluster: &Cluster, arguments: &Arguments) -> Result<Report, Error> {
    let api: Api<DeserializeGuard<Agent>> = if arguments.all_namespaces { Api::all(cluster.client.clone()) } else { cluster.api() };
    let mut params = ListParams::default();
    if let Some(pool) = &arguments.pool {
        params = params.fields(&format!("spec.poolRef.name={pool}"));
    }
    let found = api.list(&params).await.map_err(Error::of::<Agent>(&cluster.namespace, ""))?;
    if let (true, false, Some(pool)) = (found.items.is_empty(), arguments.all_namespaces, &arguments.pool) {
        // A pool may have no agents, but a pool that does not exist is an error.
        cluster.api::<AgentPool>().get_metadata(pool).await.map_err(Error::of::<AgentPool>(&cluster.namespace, pool))?;
    }
    let mut report = Report {
        namespace: (!arguments.all_namespaces).then(|| cluster.namespace.clone()),
        agents: Vec::new(),
        ended: 0,
        unreadable: Vec::new(),
    };
    for object in found.items {
        match object.0 {
            Ok(agent) if find::ended(&agent) && !arguments.all => report.ended += 1,
            Ok(agent) => report.agents.push(agent),
            Err(invalid) => {
                let name = invalid.metadata.name.unwrap_or_default();
                report.unreadable.push(format!("Agent \"{name}\" does not fit this version of the plugin: {}", invalid.error));
            }
        }
    }
    report.agents.iter_mut().for_each(|agent| agent.metadata.managed_fields = None);
    report.agents.sort_by_cached_key(|agent| (agent.namespace(), agent.spec.pool_ref.name.clone(), agent.name_any()));
    Ok(report)
}

/// The agents of a pool that have not ended, by name.
pub async fn agents_of(cluster: &Cluster, pool: &str) -> Result<Vec<Agent>, Error> {
    let arguments = Arguments { pool: Some(pool.to_owned()), ..Arguments::default() };
    Ok(run(cluster, &arguments).await?.agents)
}

/// The report as text.
pub fn render(report: &Report, format: Option<Format>, now: jiff::Timestamp) -> Result<Output, Error> {
    let mut output = Output::default();
    let list = || json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": report.agents});
    match format {
        Some(Format::Json) => output.line(serde_json::to_string_pretty(&list()).map_err(|error| Error::Format(error.to_string()))?),
        Some(Format::Yaml) => output.out = serde_saphyr::to_string(&list()).map_err(|error| Error::Format(error.to_string()))?,
        Some(Format::Name) => report.agents.iter().for_each(|agent| output.line(format!("agent.{GROUP}/{}", agent.name_any()))),
        None | Some(Format::Wide) if report.agents.is_empty() => output.note(none_found(report)),
        None | Some(Format::Wide) => output.out = agents_table(report, format == Some(Format::Wide), now),
    }
    for words in &report.unreadable {
        output.note(format!("warning: {words}"));
    }
    Ok(output)
}

fn none_found(report: &Report) -> String {
    let place = report.namespace.as_ref().map_or_else(String::new, |namespace| format!(" in namespace {namespace}"));
    match report.ended {
        0 => format!("No agents found{place}."),
        ended => format!("No agents found{place}, except {ended} that have ended (--all shows them)."),
    }
}

fn agents_table(report: &Report, wide: bool, now: jiff::Timestamp) -> String {
    let mut header = vec!["DISPLAY", "NAME", "POOL", "TYPE", "PHASE", "ITEM", "TOKENS", "AGE"];
    // The column shows the users that registered the agents outside the cluster.
    let external = report.agents.iter().any(|agent| agent.spec.external.is_some());
    if external {
        header.push("EXTERNAL");
    }
    if report.namespace.is_none() {
        header.insert(0, "NAMESPACE");
    }
    if wide {
        header.extend(["ACTION", "POD", "CONTAINER", "NODE", "REASON"]);
    }
    let columns = Columns { namespace: report.namespace.is_none(), external, wide };
    table(&header, report.agents.iter().map(|agent| row(agent, columns, now)).collect())
}

/// The optional columns.
#[derive(Clone, Copy)]
struct Columns {
    namespace: bool,
    external: bool,
    wide: bool,
}

fn row(agent: &Agent, columns: Columns, now: jiff::Timestamp) -> Vec<String> {
    let status = agent.status.clone().unwrap_or_default();
    let mut row = Vec::new();
    if columns.namespace {
        row.extend(agent.namespace());
    }
    row.extend([
        or_nothing(agent.spec.display_name.as_ref()),
        agent.name_any(),
        agent.spec.pool_ref.name.clone(),
        or_nothing(agent.labels().get(names::TYPE_LABEL)),
        or_nothing(status.phase.map(AgentPhase::name)),
        or_nothing(status.current_item.as_ref().map(|item| &item.name)),
        or_nothing(status.tokens.as_ref().and_then(|tokens| tokens.used)),
        age(agent.creation_timestamp().map(|time| time.0), now),
    ]);
    if columns.external {
        row.push(or_nothing(agent.spec.external.as_ref().map(|external| &external.user)));
    }
    if columns.wide {
        let ready = status.conditions.iter().find(|condition| condition.type_ == types::READY);
        row.extend([
            or_nothing(status.current_action.as_ref()),
            or_nothing(status.pod_ref.as_ref().map(|pod| &pod.name)),
            or_nothing(status.container_id.as_deref().map(container)),
            or_nothing(status.node.as_ref()),
            or_nothing(ready.map(|condition| &condition.reason)),
        ]);
    }
    row
}

/// A container's id as `crictl` and `docker` show it: without the name of the runtime, and shortened.
fn container(id: &str) -> String {
    let id = id.split_once("://").map_or(id, |(_, id)| id);
    id.chars().take(SHORT_ID_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(name: &str, status: serde_json::Value) -> Agent {
        serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Agent",
            "metadata": {"name": name, "namespace": "n", "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"spillway.dev/type": "worker"}},
            "spec": {"poolRef": {"name": "p"}, "displayName": "calm-otter"}, "status": status}))
        .expect("an Agent")
    }
    fn report(agents: Vec<Agent>) -> Report {
        Report { namespace: Some("n".into()), agents, ended: 0, unreadable: Vec::new() }
    }
    fn shown(report: &Report, format: Option<Format>) -> Output {
        render(report, format, "2026-01-01T00:02:30Z".parse().expect("a time")).expect("text")
    }

    #[test]
    fn agents_are_a_table() {
        let busy = agent(
            "p-1",
            json!({"phase": "Active", "currentItem": {"name": "bug-7", "uid": "u", "epoch": 1}, "tokens": {"used": 1234}, "node": "k",
            "containerID": "containerd://0f36a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e",
            "podRef": {"name": "p-1", "uid": "u"}, "conditions": [{"type": "Ready", "status": "True", "reason": "Registered", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}),
        );
        let new = agent("p-2", json!({}));
        assert_eq!(
            shown(&report(vec![busy.clone(), new.clone()]), None).out,
            "DISPLAY      NAME   POOL   TYPE     PHASE    ITEM    TOKENS   AGE\n\
             calm-otter   p-1    p      worker   Active   bug-7   1234     2m30s\n\
             calm-otter   p-2    p      worker   -        -       -        2m30s\n"
        );
        let wide = Report { namespace: None, ..report(vec![busy]) };
        assert_eq!(
            shown(&wide, Some(Format::Wide)).out,
            "NAMESPACE   DISPLAY      NAME   POOL   TYPE     PHASE    ITEM    TOKENS   AGE     ACTION   POD   CONTAINER       NODE   REASON\n\
             n           calm-otter   p-1    p      worker   Active   bug-7   1234     2m30s   -        p-1   0f36a1b2c3d4e   k      Registered\n"
        );
    }

    #[test]
    fn agents_outside_the_cluster_say_whose_they_are() {
        let mut outside = agent("p-1", json!({"phase": "Idle"}));
        outside.spec.external = Some(crate::api::agent::ExternalProcess { user: "alice".into() });
        assert_eq!(
            shown(&report(vec![outside, agent("p-2", json!({}))]), None).out,
            "DISPLAY      NAME   POOL   TYPE     PHASE   ITEM   TOKENS   AGE     EXTERNAL\n\
             calm-otter   p-1    p      worker   Idle    -      -        2m30s   alice\n\
             calm-otter   p-2    p      worker   -       -      -        2m30s   -\n"
        );
    }

    #[test]
    fn machines_get_objects_and_names() {
        let one = report(vec![agent("p-1", json!({"phase": "Idle"}))]);
        let json: serde_json::Value = serde_json::from_str(&shown(&one, Some(Format::Json)).out).expect("JSON");
        assert_eq!(
            (json["kind"].as_str(), json["items"][0]["kind"].as_str(), json["items"][0]["status"]["phase"].as_str()),
            (Some("List"), Some("Agent"), Some("Idle"))
        );
        let yaml: serde_json::Value = serde_saphyr::from_str(&shown(&one, Some(Format::Yaml)).out).expect("YAML");
        assert_eq!(yaml, json);
        assert_eq!(shown(&one, Some(Format::Name)).out, "agent.spillway.dev/p-1\n");
    }

    #[test]
    fn nothing_is_told_on_standard_error_and_json_stays_a_list() {
        let none = report(Vec::new());
        assert_eq!(shown(&none, None), Output { err: "No agents found in namespace n.\n".into(), ..Output::default() });
        assert_eq!(
            shown(&Report { ended: 2, ..none.clone() }, None).err,
            "No agents found in namespace n, except 2 that have ended (--all shows them).\n"
        );
        assert_eq!(shown(&Report { namespace: None, ..none.clone() }, Some(Format::Wide)).err, "No agents found.\n");
        let json = shown(&none, Some(Format::Json));
        assert!(json.err.is_empty() && json.out.contains("\"items\": []"), "{json:?}");
        assert_eq!(shown(&none, Some(Format::Name)), Output::default());
    }
}
