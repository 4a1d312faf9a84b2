//! Egress: whether an agent may reach a destination, by the lists of its pool and the rules of the platform.
//!
//! It must not resolve a name: gateways check addresses.

use kube::ResourceExt;
use serde_json::Value;

use super::caller::{Caller, identify};
use super::lease_check;
use crate::api::sandbox::Egress;
use crate::api::{AgentPool, AgentPoolSpec};
use crate::controller::Context;
use crate::egress_settings::EgressSettings;
use crate::policy::egress::{Denial, Destination, EgressMode, EgressRules, HostPattern, ItemEgress, decide};
use crate::policy::git::Repository;
use crate::policy::interventions::{Signal, Violation};
use crate::wire::egress::{EgressAllowed, EgressRequest};
use crate::wire::{Code, Refusal, body};

/// Answers a gateway's question for an agent. A denial counts for the agent's supervision.
pub async fn of_agent(caller: &Caller, bytes: &[u8], context: &Context) -> Result<Value, Refusal> {
    let agent = identify(caller, context).await?;
    if agent.spec.external.is_some() {
        return Err(Refusal::new(Code::NotAllowed, "agents outside the cluster have their own network"));
    }
    let EgressRequest { destination, item, denied } = body::read(bytes)?;
    if let Some(reason) = denied {
        count(caller, &destination, Denial::known_reason(&reason), context);
        return Ok(serde_json::json!(EgressAllowed {}));
    }
    lease_check::may_act(caller, &agent, item.as_ref(), context)?;
    let stored = context.stores.pool(&caller.key.namespace, &agent.spec.pool_ref.name);
    let pool = stored.as_ref().and_then(|pool| pool.0.as_ref().ok());
    let pool = pool.ok_or_else(|| Refusal::unavailable("the controller does not know the agent's pool yet; try again"))?;
    let judged = Destination::parse(&destination).map_err(Denial::Invalid).and_then(|destination| {
        // A pool with an invalid list opens what is valid in it; the pool reports the rest.
        decide(&rules(&pool.spec, &context.egress), &destination)?;
        let set = |name: &str| context.egress.allow_sets.get(name).map(Vec::as_slice);
        match limit_of_item(caller, context) {
            Some(limit) if !limit.opens(set, &destination) => Err(Denial::NotListedByItem),
            Some(_) | None => Ok(()),
        }
    });
    judged.map(|()| serde_json::json!(EgressAllowed {})).map_err(|denial| {
        count(caller, &destination, denial.reason(), context);
        Refusal::new(Code::EgressDenied, words(pool, &destination, &denial)).reason(denial.reason())
    })
}

/// The limit of the item that the agent holds, whether its request names the item or not.
fn limit_of_item(caller: &Caller, context: &Context) -> Option<Box<ItemEgress>> {
    context.work_index.with(&caller.key.namespace, |work| work.index.held_by(&caller.uid)?.1.spec.egress.clone())
}

/// Counts a denial for the agent's supervision.
fn count(caller: &Caller, destination: &str, reason: &str, context: &Context) {
    let words = format!("{destination:?} was denied ({reason})");
    context.live.raise(&caller.uid, Signal::RuleViolated(Violation::NetworkDenied), Some(words));
    context.wake.agent(&caller.key);
}

/// Why a destination is denied, and which field changes that.
fn words(pool: &AgentPool, destination: &str, denial: &Denial) -> String {
    let name = pool.name_any();
    let field = "spec.sandbox.outputs";
    match denial {
        Denial::NoEgress => format!("{destination} is denied: AgentPool/{name} opens no destination ({field}.egress is None)"),
        Denial::NotListed => format!("{destination} is denied: {field}.allow and {field}.allowSets of AgentPool/{name} do not list it"),
        Denial::NotListedByItem => {
            format!("{destination} is denied: spec.bulkhead.sandbox.outputs of the WorkItem that the agent holds does not list it")
        }
        Denial::PortNotOpen
        | Denial::DeniedByPlatform
        | Denial::ModelOrigin
        | Denial::GitServer
        | Denial::NotPublic
        | Denial::Invalid(_) => {
            format!("{destination:?} is denied: {denial}")
        }
    }
}

/// The rules for the agents of a pool, as far as its lists are valid.
fn rules<'a>(spec: &AgentPoolSpec, settings: &'a EgressSettings) -> EgressRules<'a> {
    let outputs = spec.sandbox.as_ref().and_then(|sandbox| sandbox.outputs.as_ref());
    let mode = match outputs.and_then(|outputs| outputs.egress) {
        None | Some(Egress::None) => EgressMode::None,
        Some(Egress::AllowList) => EgressMode::AllowList,
        Some(Egress::Open) => EgressMode::Open,
    };
    let listed = outputs.into_iter().flat_map(|outputs| outputs.allow.iter().flatten());
    let sets = outputs.into_iter().flat_map(|outputs| outputs.allow_sets.iter().flatten());
    EgressRules {
        disabled: !settings.enabled,
        mode,
        allow: listed.filter_map(|text| HostPattern::parse(text).ok()).collect(),
        sets: sets.filter_map(|name| settings.allow_sets.get(name).map(Vec::as_slice)).collect(),
        deny: &settings.deny,
        git_server: git_server(spec),
    }
}

/// The server of the pool's git repository.
fn git_server(spec: &AgentPoolSpec) -> Option<Destination> {
    let git = spec.workspace.as_ref()?.git.as_ref()?;
    Repository::parse_url(&git.remote).ok().map(|repository| repository.server().clone())
}

/// What is wrong with a pool's lists: the field, and what to do. The schema cannot know the sets of the platform.
pub fn invalid(spec: &AgentPoolSpec, settings: &EgressSettings) -> Option<String> {
    let outputs = spec.sandbox.as_ref()?.outputs.as_ref()?;
    if !settings.enabled && !matches!(outputs.egress, None | Some(Egress::None)) {
        let help = "leave it unset, or have the platform team set the chart's value egress.enabled";
        return Some(format!("spec.sandbox.outputs.egress: the platform has disabled egress; {help}"));
    }
    let git_server = git_server(spec);
    let wrong = outputs.allow.iter().flatten().find_map(|text| match HostPattern::parse(text) {
        Ok(pattern) if git_server.as_ref().is_some_and(|server| pattern.to_string() == server.to_string()) => {
            Some(format!("{text:?} is the server of spec.workspace.git, which agents reach by git only: leave it out"))
        }
        Ok(pattern) if pattern.names_every_port() => Some(format!("{text:?} needs a port")),
        Ok(_) => None,
        Err(error) => Some(error.to_string()),
    });
    if let Some(wrong) = wrong {
        return Some(format!("spec.sandbox.outputs.allow: {wrong}"));
    }
    let unknown = outputs.allow_sets.iter().flatten().find(|name| !settings.allow_sets.contains_key(*name))?;
    let known: Vec<&str> = settings.allow_sets.keys().map(String::as_str).collect();
    let known =
        if known.is_empty() { "the platform defines none".to_owned() } else { format!("the platform defines {}", known.join(", ")) };
    Some(format!("spec.sandbox.outputs.allowSets: there is no set {unknown}; {known} (the chart's value egress.allowSets)"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pool(outputs: Value) -> AgentPool {
        let spec = json!({"type": "worker", "agent": {"image": "x", "command": ["y"]}, "sandbox": {"outputs": outputs}});
        AgentPool::new("coders", serde_json::from_value(spec).expect("a spec"))
    }

    fn settings() -> EgressSettings {
        EgressSettings::parse(r#"{"deny": ["bad.example.org:*"], "allowSets": {"npm": ["packages.example.net:443"]}}"#).expect("settings")
    }

    fn reason(outputs: Value, destination: &str) -> Option<&'static str> {
        let destination = Destination::parse(destination).expect(destination);
        decide(&rules(&pool(outputs).spec, &settings()), &destination).err().map(|denial| denial.reason())
    }

    #[test]
    fn a_pool_opens_its_list_and_the_sets_that_it_names() {
        let outputs = json!({"egress": "AllowList", "allow": ["*.example.org:443"], "allowSets": ["npm"]});
        assert_eq!(reason(outputs.clone(), "packages.example.net:443"), None);
        assert_eq!(reason(outputs.clone(), "a.example.org:443"), None);
        assert_eq!(reason(outputs.clone(), "bad.example.org:443"), Some("DeniedByPlatform"));
        assert_eq!(reason(outputs, "other.example.net:443"), Some("NotListed"));
        assert_eq!(reason(json!({}), "packages.example.net:443"), Some("NoEgress"));
        assert_eq!(reason(json!({"egress": "Open"}), "other.example.net:443"), None);
        let disabled = EgressSettings::parse(r#"{"enabled": false}"#).expect("settings");
        let destination = Destination::parse("other.example.net:443").expect("a destination");
        assert_eq!(decide(&rules(&pool(json!({"egress": "Open"})).spec, &disabled), &destination), Err(Denial::DeniedByPlatform));
    }

    #[test]
    fn a_wrong_list_is_named_with_its_field() {
        let of = |outputs: Value| invalid(&pool(outputs).spec, &settings());
        assert_eq!(of(json!({"egress": "AllowList", "allow": ["a.example.org:443"], "allowSets": ["npm"]})), None);
        let disabled = EgressSettings::parse(r#"{"enabled": false}"#).expect("settings");
        let closed = invalid(&pool(json!({"egress": "Open"})).spec, &disabled).expect("it is disabled");
        assert!(closed.contains("spec.sandbox.outputs.egress") && closed.contains("egress.enabled"), "{closed}");
        assert_eq!(invalid(&pool(json!({"egress": "None"})).spec, &disabled), None);
        let unknown = of(json!({"egress": "AllowList", "allowSets": ["npm", "cargo"]})).expect("an unknown set");
        assert!(unknown.contains("allowSets") && unknown.contains("no set cargo") && unknown.contains("defines npm"), "{unknown}");
        let address = of(json!({"egress": "AllowList", "allow": ["10.0.0.1:443"]})).expect("an address");
        assert!(address.contains("spec.sandbox.outputs.allow") && address.contains("10.0.0.1:443"), "{address}");
    }

    #[test]
    fn a_denial_names_the_pool_and_the_field() {
        let words = words(&pool(json!({})), "other.example.net:443", &Denial::NotListed);
        assert!(words.contains("AgentPool/coders") && words.contains("spec.sandbox.outputs.allow"), "{words}");
    }
}
