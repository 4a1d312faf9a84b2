//! `scale`: sets how many agents a pool runs, by one merge patch with only the given fields, or lists pools.

use kube::ResourceExt as _;
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::DeserializeGuard;
use kube::{Api, Resource as _};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::connect::Cluster;
use super::console::Output;
use super::error::Error;
use super::input;
use super::table::{or_nothing, table};
use crate::api::names::managers;
use crate::api::{AgentPool, GROUP};

/// Arguments of `scale`.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(after_help = "Examples:
  kubectl spillway scale                            # the pools of this namespace
  kubectl spillway scale coders                     # one pool
  kubectl spillway scale coders --replicas 3        # exactly three agents, independent of the work
  kubectl spillway scale coders --auto              # automatic scaling between min and max
  kubectl spillway scale coders --min 1 --max 5     # the bounds of automatic scaling
  kubectl spillway scale coders --max 0             # drain the pool

Scaling down never kills a busy agent: the agent leaves when its item is done.")]
pub struct Arguments {
    /// The pool; without it all pools are listed
    #[arg(value_name = "POOL", value_parser = input::pool)]
    pub pool: Option<String>,
    /// Run exactly this number of agents, without automatic scaling
    #[arg(long, value_name = "N", requires = "pool", conflicts_with_all = ["min", "max", "auto"], allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(0..=10_000))]
    pub replicas: Option<i32>,
    /// Minimum number of agents (a pool that follows the work still scales to 0 without work)
    #[arg(long, value_name = "N", requires = "pool", allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(0..=10_000))]
    pub min: Option<i32>,
    /// Maximum number of agents; 0 drains the pool
    #[arg(long, value_name = "N", requires = "pool", allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(0..=10_000))]
    pub max: Option<i32>,
    /// Scale automatically again; removes spec.replicas
    #[arg(long, requires = "pool")]
    pub auto: bool,
    /// List the pools of all namespaces
    #[arg(short = 'A', long, conflicts_with = "pool")]
    pub all_namespaces: bool,
}

/// The sizes of one pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pool {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its type.
    #[serde(rename = "type")]
    pub type_: String,
    /// Desired agents in the last status.
    pub desired: Option<i32>,
    /// Existing agents in the last status.
    pub agents: Option<i32>,
    /// Lower bound of automatic scaling, with the default.
    pub min: u32,
    /// Upper bound of automatic scaling, with the default.
    pub max: u32,
    /// The fixed number of agents; none for automatic scaling.
    pub replicas: Option<u32>,
    /// The reason for `desired`.
    pub reason: Option<String>,
}

/// The result of `scale`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Report {
    /// A list of pools.
    #[serde(rename_all = "camelCase")]
    Pools {
        /// The namespace; none for all namespaces.
        namespace: Option<String>,
        /// The pools, by namespace and name.
        pools: Vec<Pool>,
        /// One message for each stored object that does not fit its type.
        unreadable: Vec<String>,
    },
    /// A pool after a change, as it is stored.
    #[serde(rename_all = "camelCase")]
    Scaled {
        /// The pool.
        pool: Pool,
        /// Whether spec.replicas overrides the changed bounds.
        overruled: bool,
    },
}

/// Lists pools, or changes one.
pub async fn run(cluster: &Cluster, arguments: &Arguments) -> Result<Report, Error> {
    let Some(name) = &arguments.pool else {
        return list(cluster, arguments.all_namespaces).await;
    };
    let api = cluster.api::<AgentPool>();
    match patch(arguments)? {
        None => {
            let pool = api.get(name).await.map_err(Error::of::<AgentPool>(&cluster.namespace, name))?;
            Ok(Report::Pools { namespace: Some(cluster.namespace.clone()), pools: vec![pool_sizes(&pool)], unreadable: Vec::new() })
        }
        Some(patch) => {
            let params = PatchParams { field_manager: Some(managers::PLUGIN.to_owned()), ..PatchParams::default() };
            let pool = api.patch(name, &params, &Patch::Merge(patch)).await.map_err(Error::of::<AgentPool>(&cluster.namespace, name))?;
            let overruled = pool.spec.replicas.is_some() && arguments.replicas.is_none();
            Ok(Report::Scaled { pool: pool_sizes(&pool), overruled })
        }
    }
}

/// The merge patch for the arguments; none if they change nothing.
fn patch(arguments: &Arguments) -> Result<Option<Value>, Error> {
    let Arguments { pool: _, replicas, min, max, auto, all_namespaces: _ } = arguments;
    if let (Some(min), Some(max)) = (min, max)
        && min > max
    {
        return Err(Error::Usage(format!("--min {min} is greater than --max {max}")));
    }
    let mut spec = Map::new();
    if let Some(replicas) = replicas {
        spec.insert("replicas".into(), json!(replicas));
    } else if *auto {
        spec.insert("replicas".into(), Value::Null);
    }
    let bounds: Map<String, Value> =
        [("min", min), ("max", max)].into_iter().filter_map(|(key, value)| Some((key.to_owned(), json!((*value)?)))).collect();
    if !bounds.is_empty() {
        spec.insert("scaling".into(), bounds.into());
    }
    Ok((!spec.is_empty()).then(|| json!({"spec": spec})))
}

async fn list(cluster: &Cluster, everywhere: bool) -> Result<Report, Error> {
    let api: Api<DeserializeGuard<AgentPool>> = if everywhere { Api::all(cluster.client.clone()) } else { cluster.api() };
    let found = api.list(&ListParams::default()).await.map_err(Error::of::<AgentPool>(&cluster.namespace, ""))?;
    let (mut pools, mut unreadable) = (Vec::new(), Vec::new());
    for object in found.items {
        let name = object.meta().name.clone().unwrap_or_default();
        match object.0 {
            Ok(pool) => pools.push(pool_sizes(&pool)),
            Err(invalid) => unreadable.push(format!("AgentPool \"{name}\" does not fit this version of the plugin: {}", invalid.error)),
        }
    }
    pools.sort_by(|one: &Pool, other| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)));
    Ok(Report::Pools { namespace: (!everywhere).then(|| cluster.namespace.clone()), pools, unreadable })
}

fn pool_sizes(pool: &AgentPool) -> Pool {
    let status = pool.status.as_ref();
    Pool {
        namespace: pool.namespace().unwrap_or_default(),
        name: pool.name_any(),
        type_: pool.spec.type_.clone(),
        desired: status.and_then(|status| status.desired),
        agents: status.and_then(|status| status.agents),
        min: pool.spec.min(),
        max: pool.spec.max(),
        replicas: pool.spec.fixed_replicas(),
        reason: status.and_then(|status| status.reason.clone()),
    }
}

/// The report as text.
pub fn render(report: &Report) -> Output {
    let mut output = Output::default();
    match report {
        Report::Pools { namespace, pools, unreadable } => {
            if pools.is_empty() {
                output.note(match namespace {
                    Some(namespace) => format!("No pools found in namespace {namespace}."),
                    None => "No pools found.".to_owned(),
                });
            } else {
                output.out = pools_table(pools, namespace.is_none());
            }
            for words in unreadable {
                output.note(format!("warning: {words}"));
            }
        }
        Report::Scaled { pool, overruled } => {
            let name = &pool.name;
            let bounds = match (pool.min, pool.max) {
                (_, 0) => "no agents (drained)".to_owned(),
                (min, max) => format!("{min} to {max} agents"),
            };
            let now = match pool.replicas {
                Some(replicas) if *overruled => {
                    format!("still exactly {}; automatic scaling would run {bounds}", agent_count_text(replicas))
                }
                Some(replicas) => format!("exactly {}", agent_count_text(replicas)),
                None => format!("automatic, {bounds}"),
            };
            output.line(format!("agentpool.{GROUP}/{name} scaled: {now}"));
            if let (true, Some(replicas)) = (overruled, pool.replicas) {
                output.note(format!(
                    "note: spec.replicas is {replicas} and overrides min and max; `kubectl spillway scale {name} --auto -n {}` removes it",
                    pool.namespace
                ));
            }
        }
    }
    output
}

/// A number of agents, as text.
pub(super) fn agent_count_text(count: impl Into<u64>) -> String {
    match count.into() {
        1 => "1 agent".to_owned(),
        count => format!("{count} agents"),
    }
}

fn pools_table(pools: &[Pool], with_namespace: bool) -> String {
    let mut header = vec!["NAME", "TYPE", "DESIRED", "AGENTS", "MIN", "MAX", "REPLICAS", "REASON"];
    if with_namespace {
        header.insert(0, "NAMESPACE");
    }
    let rows = pools.iter().map(|pool| {
        let replicas = pool.replicas.map_or_else(|| "auto".to_owned(), |replicas| replicas.to_string());
        let mut row = vec![
            pool.name.clone(),
            pool.type_.clone(),
            or_nothing(pool.desired),
            or_nothing(pool.agents),
            pool.min.to_string(),
            pool.max.to_string(),
            replicas,
            or_nothing(pool.reason.as_ref()),
        ];
        if with_namespace {
            row.insert(0, pool.namespace.clone());
        }
        row
    });
    table(&header, rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(replicas: Option<u32>) -> Pool {
        Pool {
            namespace: "n".into(),
            name: "p".into(),
            type_: "worker".into(),
            desired: Some(2),
            agents: None,
            min: 0,
            max: 5,
            replicas,
            reason: Some("NoWork".into()),
        }
    }

    #[test]
    fn the_patch_holds_what_was_asked_and_nothing_else() {
        let cases = [
            (Arguments::default(), None),
            (Arguments { replicas: Some(0), ..Arguments::default() }, Some(json!({"spec": {"replicas": 0}}))),
            (Arguments { auto: true, ..Arguments::default() }, Some(json!({"spec": {"replicas": null}}))),
            (Arguments { max: Some(5), ..Arguments::default() }, Some(json!({"spec": {"scaling": {"max": 5}}}))),
            (
                Arguments { auto: true, min: Some(1), max: Some(1), ..Arguments::default() },
                Some(json!({"spec": {"replicas": null, "scaling": {"min": 1, "max": 1}}})),
            ),
        ];
        for (arguments, expected) in cases {
            assert_eq!(patch(&arguments).expect("sound"), expected);
        }
        let error = patch(&Arguments { min: Some(5), max: Some(1), ..Arguments::default() }).expect_err("refused");
        assert_eq!(error.to_string(), "--min 5 is greater than --max 1");
    }

    #[test]
    fn pools_are_a_table() {
        let listed = |namespace: Option<&str>, pools| {
            render(&Report::Pools { namespace: namespace.map(str::to_owned), pools, unreadable: vec!["w".into()] })
        };
        let output = listed(Some("n"), vec![pool(None), Pool { name: "longer".into(), ..pool(Some(3)) }]);
        assert_eq!(
            output.out,
            "NAME     TYPE     DESIRED   AGENTS   MIN   MAX   REPLICAS   REASON\n\
             p        worker   2         -        0     5     auto       NoWork\n\
             longer   worker   2         -        0     5     3          NoWork\n"
        );
        assert_eq!(output.err, "warning: w\n");
        assert!(listed(None, vec![pool(None)]).out.starts_with("NAMESPACE   NAME"));
        assert_eq!(listed(Some("n"), Vec::new()).err, "No pools found in namespace n.\nwarning: w\n");
    }

    #[test]
    fn a_change_is_told_with_what_overrules_it() {
        let scaled = |pool, overruled| render(&Report::Scaled { pool, overruled });
        assert_eq!(scaled(pool(Some(1)), false).out, "agentpool.spillway.dev/p scaled: exactly 1 agent\n");
        assert_eq!(scaled(pool(None), false).out, "agentpool.spillway.dev/p scaled: automatic, 0 to 5 agents\n");
        assert_eq!(scaled(Pool { max: 0, ..pool(None) }, false).out, "agentpool.spillway.dev/p scaled: automatic, no agents (drained)\n");
        assert_eq!(
            scaled(pool(Some(3)), true).out,
            "agentpool.spillway.dev/p scaled: still exactly 3 agents; automatic scaling would run 0 to 5 agents\n"
        );
        assert!(
            scaled(pool(Some(3)), true)
                .err
                .starts_with("note: spec.replicas is 3 and overrides min and max; `kubectl spillway scale p --auto -n n`")
        );
    }
}
