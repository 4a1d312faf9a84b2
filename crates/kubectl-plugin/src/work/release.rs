//! `release`: takes an item away from an agent whose node is dead. Before the pod is proved gone, only the statement of a person
//! can do that: a node that does not answer may still run the agent. Without `--node-is-dead` the command only prints the facts.
//!
//! The statement is about one lease (`spec.releasedEpoch`), and is written over exactly the version that was read. So a newer
//! claim is not released.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use super::life;
use crate::api::{Agent, GROUP, WorkItem};
use crate::connect::Cluster;
use crate::console::{Console, Output};
use crate::error::Error;
use crate::find;
use crate::input;
use crate::table::{pairs, printable};
use crate::write::{self, Decision, WriteOutcome, WriteTarget};
use spillway_conversion::work as convert;

/// The taint by which a person states that a machine is off.
const OUT_OF_SERVICE_TAINT: &str = "node.kubernetes.io/out-of-service";

/// Arguments of `release`.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(after_help = "Examples:
  kubectl spillway release bugs-x7k2p                  # show its agent, pod and node; change nothing
  kubectl spillway release bugs-x7k2p --node-is-dead   # the machine is off: give the item to another agent

An item goes back to its queue automatically when the pod of its agent is proved gone. An unreachable node proves nothing. If
the machine is off, `kubectl taint node NODE node.kubernetes.io/out-of-service=nodeshutdown:NoExecute` states that for all pods
of the node; `release --node-is-dead` states it for one item.")]
pub struct Arguments {
    /// The item
    #[arg(value_name = "ITEM", value_parser = input::item)]
    pub item: String,
    /// State that the machine of the item's agent is off, and does not come back with the agent
    #[arg(long)]
    pub node_is_dead: bool,
    /// Do not ask for confirmation
    #[arg(short, long, requires = "node_is_dead")]
    pub yes: bool,
}

/// The state of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeIs {
    /// Its condition Ready is True.
    Ready,
    /// Its condition Ready is not True.
    NotReady,
    /// It has the out-of-service taint: its items go back to their queues without a release.
    OutOfService,
    /// The Node does not exist any more: its items go back to their queues without a release.
    Deleted,
    /// The Node cannot be read.
    Unknown,
}

/// The agent that holds an item, with its pod and its node.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// The item.
    pub item: WorkItem,
    /// The state of its agent, as text.
    pub agent: String,
    /// The state of the agent's pod, as text.
    pub pod: String,
    /// The node, if it is known.
    pub node: Option<String>,
    /// The state of the node.
    pub node_state: NodeIs,
    /// The errors of reads that failed, as text.
    pub unread: Vec<String>,
}

/// The command: reads, asks the user, writes.
pub async fn execute(cluster: &Cluster, arguments: &Arguments, console: &mut dyn Console) -> Result<(), Error> {
    let item = super::item(cluster, &arguments.item).await?;
    ensure_held(&item)?;
    let facts = read_facts(cluster, item).await;
    if !arguments.node_is_dead {
        console.show(explanation(&facts));
        return Ok(());
    }
    console.show(facts_output(&facts));
    if !arguments.yes && !console.confirm(&question(&facts))? {
        return Err(Error::Usage("nothing was released".into()));
    }
    let epoch = epoch(&facts.item);
    let decide = |item: &WorkItem| decide(item, epoch);
    let mut output = Output::default();
    match write::settle::<WorkItem>(cluster, "item", &arguments.item, WriteTarget::Version, decide).await? {
        WriteOutcome::Written(_) => {
            output.line(format!("workitem.{GROUP}/{} released: Spillway no longer waits for its agent", arguments.item))
        }
        WriteOutcome::Unchanged(_, words) => output.line(format!("workitem.{GROUP}/{} unchanged: {words}", arguments.item)),
        WriteOutcome::Failed(words) => output.failure(printable(&words)),
    }
    console.show(output);
    Ok(())
}

/// Refuses an item that no agent holds.
pub fn ensure_held(item: &WorkItem) -> Result<(), Error> {
    let (name, phase) = (item.name_any(), life::phase(item));
    if phase.held() {
        return Ok(());
    }
    let mend = if phase.redrivable() {
        "`kubectl spillway redrive` starts it again".to_owned()
    } else if phase.ended() {
        "the item has ended".to_owned()
    } else {
        format!("`kubectl spillway explain item/{name}` shows what it waits for")
    };
    Err(Error::Usage(format!("no agent holds item \"{name}\" ({}), so it cannot be released; {mend}", life::state(item))))
}

fn epoch(item: &WorkItem) -> i64 {
    convert::record(item).epoch
}

/// Decides the write to an item. `epoch` is the lease that the user saw.
pub fn decide(item: &WorkItem, epoch: i64) -> Decision {
    let record = convert::record(item);
    if !record.phase.held() {
        return Decision::Leave(format!("no agent holds it any more ({})", record.phase.name()));
    }
    if record.epoch != epoch {
        return Decision::Refuse(format!(
            "was claimed by another agent meanwhile ({}), and was not released",
            record.holder.map(|holder| holder.agent).unwrap_or_default()
        ));
    }
    if convert::spec(item).released_epoch >= epoch {
        return Decision::Leave("it is released already, and the operator has not observed that yet".to_owned());
    }
    Decision::Write(json!({"releasedEpoch": epoch}))
}

/// Reads the agent, its pod and its node. Failed reads become notes.
pub async fn read_facts(cluster: &Cluster, item: WorkItem) -> Facts {
    let unknown = || "not known".to_owned();
    let mut facts = Facts { item, agent: unknown(), pod: unknown(), node: None, node_state: NodeIs::Unknown, unread: Vec::new() };
    let name = life::agent_of(&facts.item).unwrap_or_default().to_owned();
    let agent = match cluster.api::<Agent>().get_opt(&name).await.map_err(Error::of::<Agent>(&cluster.namespace, &name)) {
        Ok(agent) => agent,
        Err(error) => {
            facts.unread.push(error.to_string());
            return facts;
        }
    };
    let Some(agent) = agent else {
        facts.agent = format!("{name}: it does not exist any more");
        return facts;
    };
    facts.agent = format!("{name}: {}", find::state(&agent));
    let status = agent.status.clone().unwrap_or_default();
    facts.node = status.node;
    if agent.spec.external.is_some() {
        facts.pod = "none: the agent runs outside the cluster".to_owned();
    }
    if let Some(recorded) = status.pod_ref {
        match cluster.api::<Pod>().get_opt(&recorded.name).await {
            Ok(pod) => {
                let pod = pod.filter(|pod| pod.uid().as_deref() == Some(&recorded.uid));
                facts.pod = format!("{}: {}", recorded.name, pod.as_ref().map_or_else(|| "its object is gone".to_owned(), pod_words));
                facts.node = pod.and_then(|pod| pod.spec).and_then(|spec| spec.node_name).or(facts.node);
            }
            Err(error) => facts.unread.push(Error::of::<Pod>(&cluster.namespace, &recorded.name)(error).to_string()),
        }
    }
    if let Some(node) = facts.node.clone() {
        match Api::<Node>::all(cluster.client.clone()).get_opt(&node).await {
            Ok(found) => facts.node_state = found.as_ref().map_or(NodeIs::Deleted, node_state),
            Err(error) => facts.unread.push(Error::of::<Node>(&cluster.namespace, &node)(error).to_string()),
        }
    }
    facts
}

fn pod_words(pod: &Pod) -> String {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("no phase");
    let leaving = if pod.metadata.deletion_timestamp.is_some() { ", being deleted" } else { "" };
    format!("{phase}{leaving}")
}

/// Derives the state of a node from its taints and conditions.
pub fn node_state(node: &Node) -> NodeIs {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    if taints.into_iter().any(|taint| taint.key == OUT_OF_SERVICE_TAINT) {
        return NodeIs::OutOfService;
    }
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready").is_some_and(|ready| ready.status == "True");
    if ready { NodeIs::Ready } else { NodeIs::NotReady }
}

fn node_words(facts: &Facts) -> String {
    let Some(node) = &facts.node else { return "not known".to_owned() };
    let words = match facts.node_state {
        NodeIs::Ready => "Ready",
        NodeIs::NotReady => "not Ready",
        NodeIs::OutOfService => "marked as out of service",
        NodeIs::Deleted => "deleted",
        NodeIs::Unknown => "its state is not known",
    };
    format!("{node}: {words}")
}

/// The facts, one a line, with a warning if the node is Ready.
pub fn facts_output(facts: &Facts) -> Output {
    let mut output = Output::default();
    output.note(format!("WorkItem {}: {}, epoch {}", facts.item.name_any(), printable(&life::state(&facts.item)), epoch(&facts.item)));
    let lines = [("Agent", facts.agent.clone()), ("Pod", facts.pod.clone()), ("Node", node_words(facts))];
    output.err.push_str(&pairs(&lines));
    facts.unread.iter().for_each(|words| output.note(format!("note: an object could not be read: {}", printable(words))));
    match facts.node_state {
        NodeIs::Ready => output.note(format!(
            "WARNING: node {} IS READY. The node is not dead: most likely the agent still works on this item. After a release a second agent works on it at the same time.",
            facts.node.as_deref().unwrap_or_default()
        )),
        NodeIs::OutOfService | NodeIs::Deleted => {
            output.note("note: this proves that the agent is gone: the item goes back to its queue automatically within moments");
        }
        NodeIs::NotReady | NodeIs::Unknown => {}
    }
    output
}

/// The output without `--node-is-dead`: the facts, and what a release means. Nothing was changed.
pub fn explanation(facts: &Facts) -> Output {
    let mut output = facts_output(facts);
    let name = facts.item.name_any();
    output.note("The item goes back to its queue automatically when its agent gives it back, or when the pod of the agent is proved gone.");
    output.note("An unreachable node proves nothing: the agent may still run there.");
    output.note("--node-is-dead states, for this item, that the machine is off and does not come back with the agent. The item then goes");
    output.note("to another agent without waiting for proof, and counts one loss. If the machine does come back, two agents work on the");
    output.note("item for a while. Only the finish of the second one counts, but both may have pushed or sent something.");
    output.failure(format!("nothing was released: if the machine is off, run `kubectl spillway release {name} --node-is-dead`"));
    output
}

/// The question before the write.
pub fn question(facts: &Facts) -> String {
    let name = facts.item.name_any();
    let node = facts.node.as_deref().unwrap_or("of its agent");
    match facts.node_state {
        NodeIs::Ready => format!("Node {node} is READY. Release item {name} anyway? Two agents may then work on it."),
        NodeIs::NotReady | NodeIs::OutOfService | NodeIs::Deleted | NodeIs::Unknown => {
            format!("Is the machine {node} off? Item {name} then goes to another agent.")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn item(phase: &str, epoch: i64, spec: &Value) -> WorkItem {
        let mut all = json!({"queueRef": {"name": "q"}});
        spec.as_object().into_iter().flatten().for_each(|(key, value)| all[key] = value.clone());
        serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkItem", "metadata": {"name": "i"}, "spec": all,
            "status": {"phase": phase, "lease": {"holder": "pod", "agent": "a-1", "leaseTransitions": epoch}}}))
        .expect("a WorkItem")
    }
    fn facts(node_is: NodeIs) -> Facts {
        Facts {
            item: item("Leased", 3, &json!({})),
            agent: "a-1: Stale".into(),
            pod: "a-1: Running".into(),
            node: Some("k".into()),
            node_state: node_is,
            unread: Vec::new(),
        }
    }

    #[test]
    fn only_the_lease_that_was_looked_at_is_released() {
        assert_eq!(decide(&item("Leased", 3, &json!({})), 3), Decision::Write(json!({"releasedEpoch": 3})));
        assert_eq!(decide(&item("Cancelling", 3, &json!({"releasedEpoch": 2})), 3), Decision::Write(json!({"releasedEpoch": 3})));
        assert!(matches!(decide(&item("Paused", 3, &json!({"releasedEpoch": 3})), 3), Decision::Leave(_)));
        assert!(matches!(decide(&item("Leased", 4, &json!({})), 3), Decision::Refuse(words) if words.contains("another agent")));
        assert_eq!(decide(&item("Ready", 3, &json!({})), 3), Decision::Leave("no agent holds it any more (Ready)".into()));
    }

    #[test]
    fn what_nobody_holds_cannot_be_released() {
        let refused = |phase: &str| ensure_held(&item(phase, 3, &json!({}))).expect_err("refused").to_string();
        assert!(ensure_held(&item("Leased", 3, &json!({}))).is_ok() && ensure_held(&item("Paused", 3, &json!({}))).is_ok());
        assert!(refused("Ready").ends_with("`kubectl spillway explain item/i` shows what it waits for"));
        assert!(refused("DeadLettered").ends_with("`kubectl spillway redrive` starts it again"));
        assert!(refused("Succeeded").ends_with("the item has ended"));
    }

    #[test]
    fn a_node_is_what_it_says_unless_a_person_vouches() {
        let node = |taints: Value, ready: &str| -> Node {
            serde_json::from_value(json!({"metadata": {"name": "k"}, "spec": {"taints": taints}, "status": {"conditions": [{"type": "Ready", "status": ready}]}}))
                .expect("a node")
        };
        assert_eq!(node_state(&node(json!([]), "True")), NodeIs::Ready);
        assert_eq!(node_state(&node(json!([]), "Unknown")), NodeIs::NotReady);
        assert_eq!(node_state(&node(json!([{"key": OUT_OF_SERVICE_TAINT, "effect": "NoExecute"}]), "True")), NodeIs::OutOfService);
    }

    #[test]
    fn a_node_that_is_ready_is_warned_of() {
        let told = facts_output(&facts(NodeIs::Ready)).err;
        assert!(
            told.starts_with(
                "WorkItem i: Leased, epoch 3\n  Agent  a-1: Stale\n  Pod    a-1: Running\n  Node   k: Ready\nWARNING: node k IS READY."
            ),
            "{told}"
        );
        assert!(question(&facts(NodeIs::Ready)).starts_with("Node k is READY. Release item i anyway?"));
        assert_eq!(question(&facts(NodeIs::NotReady)), "Is the machine k off? Item i then goes to another agent.");
        assert!(!facts_output(&facts(NodeIs::NotReady)).err.contains("WARNING"));
        let without = explanation(&facts(NodeIs::NotReady));
        assert!(without.failed && without.err.contains("--node-is-dead states"), "{without:?}");
    }
}
