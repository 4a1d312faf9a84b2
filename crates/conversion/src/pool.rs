//! The queues of a pool and its offer to items, from its spec alone.

use super::sandbox::offered;
use crate::api::agent_pool::{ModelApi, PoolMode, Workspace};
use crate::api::{AgentPool, AgentPoolSpec};
use crate::policy::git::Repository;
use crate::policy::work::requires::{PoolIntake, PoolOffer, origin};

/// The queues from which a pool takes items, in order, each with its types. Empty for a Chat pool.
pub fn queues_of(pool: &AgentPool) -> Vec<(String, Vec<String>)> {
    if pool.spec.mode == PoolMode::Chat {
        return Vec::new();
    }
    let queues = pool.spec.queues.iter().flatten();
    queues.map(|queue| (queue.name.clone(), queue.types.clone().unwrap_or_default())).collect()
}

/// The items that the agents of a pool take.
pub fn pool_intake(pool: &AgentPool) -> PoolIntake {
    PoolIntake { queues: queues_of(pool), offer: pool_offer(&pool.spec), outside_cluster: false }
}

/// What a pool offers to items with requirements: tools, models, origins, accounts, volumes and its repository.
pub fn pool_offer(spec: &AgentPoolSpec) -> PoolOffer {
    let models = || spec.models.iter().flatten();
    let account = |entry: &ModelApi| entry.credentials_ref.as_ref().map(|secret| secret.name.clone());
    let on_path = spec.preflight.iter().flat_map(|preflight| preflight.tools.iter().flatten());
    let of_toolsets = spec.preflight.iter().flat_map(|preflight| preflight.toolsets.iter().flatten());
    let of_toolsets = of_toolsets.flat_map(|toolset| toolset.programs.iter().flatten());
    PoolOffer {
        tools: on_path.chain(of_toolsets).cloned().collect(),
        models: models().flat_map(|entry| entry.allow.iter().flatten()).cloned().collect(),
        origins: models().filter_map(|entry| origin(&entry.origin)).collect(),
        accounts: models().filter_map(account).collect(),
        volumes: spec.workspace.iter().filter_map(|workspace| workspace.claim_name.clone()).collect(),
        repositories: spec.workspace.iter().filter_map(repository).collect(),
        sandbox: offered(spec),
    }
}

/// The name of a pool's repository. A pool whose repository is wrong has no agents.
fn repository(workspace: &Workspace) -> Option<String> {
    Repository::parse_url(&workspace.git.as_ref()?.remote).ok().map(|repository| repository.name())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use serde_json::{Value, json};

    fn pool(extra: Value) -> AgentPool {
        let mut spec = json!({"type": "worker", "agent": {"image": "x", "command": ["y"]}});
        spec.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
        let object = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "AgentPool", "metadata": {"name": "p"}, "spec": spec});
        serde_json::from_value(object).expect("an AgentPool")
    }

    #[test]
    fn what_a_pool_has_follows_from_its_spec() {
        let entry = |name: &str, origin: &str, secret: Value, allow: Value| json!({"name": name, "dialect": "Anthropic", "origin": origin, "credentialsRef": secret, "allow": allow});
        let pool = pool(json!({
            "models": [
                entry("a", "https://API.example.org:443", json!({"name": "team"}), json!(["claude-*"])),
                entry("b", "https://b.example.org:8443", Value::Null, Value::Null),
            ],
            "workspace": {"claimName": "repo"}, "queues": [{"name": "bugs", "types": ["bug"]}],
            "preflight": {"tools": ["git"], "toolsets": [{"name": "deploy", "programs": ["git_push"]}, {"name": "data"}]},
        }));
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let expected = PoolOffer {
            tools: names(&["git", "git_push"]),
            models: names(&["claude-*"]),
            origins: names(&["https://api.example.org", "https://b.example.org:8443"]),
            accounts: names(&["team"]),
            volumes: names(&["repo"]),
            repositories: names(&[]),
            sandbox: offered(&pool.spec),
        };
        assert_eq!(
            pool_intake(&pool),
            PoolIntake { queues: vec![("bugs".into(), vec!["bug".into()])], offer: expected, outside_cluster: false }
        );
        let offer = pool_offer(&self::pool(json!({"workspace": {"empty": {}}})).spec);
        assert_eq!(PoolOffer { sandbox: BTreeSet::new(), ..offer }, PoolOffer::default());
        let with_git = self::pool(json!({"workspace": {"git": {"remote": "https://GIT.example.org:443/team/app.git"}}}));
        assert_eq!(pool_offer(&with_git.spec).repositories, names(&["git.example.org/team/app"]));
    }
}
