//! Names, labels, annotations, finalizers and field managers: all strings that other programs match on.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

/// Value of `app.kubernetes.io/managed-by` on all objects that Spillway creates.
pub const MANAGED_BY: &str = "spillway";
/// The standard label that carries [`MANAGED_BY`].
pub const MANAGED_BY_LABEL: &str = "app.kubernetes.io/managed-by";
/// Label with the name of the pool of an Agent or pod.
pub const POOL_LABEL: &str = "spillway.dev/pool";
/// Uid of that pool. A pool that is created again under an old name owns no object of its predecessor.
pub const POOL_UID_LABEL: &str = "spillway.dev/pool-uid";
/// Name of the Agent of a pod.
pub const AGENT_LABEL: &str = "spillway.dev/agent";
/// Type of the agent: that of its pool when the agent was created.
pub const TYPE_LABEL: &str = "spillway.dev/type";
/// Mode of the pool. A person can attach only to agents of mode Chat.
pub const MODE_LABEL: &str = "spillway.dev/mode";
/// Uid of the pod of the agent that asked for this one.
pub const PARENT_UID_LABEL: &str = "spillway.dev/parent-uid";
/// Name of the pool whose agent submitted an item.
pub const SUBMITTED_BY_LABEL: &str = "spillway.dev/submitted-by";
/// Name of the NetworkPolicy that isolates the pods of agents, in each namespace with pools.
pub const AGENTS_NETWORK_POLICY: &str = "spillway-agents";
/// Name of the ConfigMap with the certificates that pods trust, in each namespace with pools.
pub const CA_CONFIG_MAP: &str = "spillway-ca";
/// Name of the Budget, the Breaker and the ClusterBudget that apply where none is named.
pub const DEFAULT_OBJECT_NAME: &str = "default";
/// Type of pools whose agents manage the queues of a team. They are never ended because their tokens are spent.
pub const SCHEDULER_TYPE: &str = "scheduler";
/// Type of pools whose agents work on one item each. A failure of such an item is final.
pub const DRONE_TYPE: &str = "drone";
/// Reason for a person's action, for people.
pub const REASON_ANNOTATION: &str = "spillway.dev/reason";
/// On a WorkItem that was submitted from a git repository: `REPOSITORY@COMMIT:PATH`.
pub const SOURCE_ANNOTATION: &str = "spillway.dev/source";
/// Annotation of an item that was made of an issue: the number of the issue.
pub const ISSUE_ANNOTATION: &str = "spillway.dev/issue";
/// Annotation of such an item: its end was told on the forge.
pub const ANSWERED_ANNOTATION: &str = "spillway.dev/answered";
/// Label of such an item: stands for the repository and the label of its issue.
pub const SOURCE_LABEL: &str = "spillway.dev/source";
/// On a ResourceQuota or LimitRange of a Budget: hash of the applied fields, so that a field that is later left out is removed.
pub const APPLIED_ANNOTATION: &str = "spillway.dev/applied";
/// On a `Budget/default` or `Breaker/default` that Spillway created. It is deleted with the last pool if nobody else wrote it.
pub const DEFAULT_ANNOTATION: &str = "spillway.dev/default";
/// On the ConfigMap [`CA_CONFIG_MAP`] of a namespace: `Budget/default` was created there once and is not created again.
pub const DEFAULT_MADE_ANNOTATION: &str = "spillway.dev/default-budget-made";
/// The same for `Breaker/default`.
pub const DEFAULT_BREAKER_MADE_ANNOTATION: &str = "spillway.dev/default-breaker-made";
/// On the NetworkPolicy of a Toolset: the addresses of the names in `spec.egress.allow`, as JSON. A new leader keeps them.
pub const ADDRESSES_ANNOTATION: &str = "spillway.dev/addresses";
/// On the pods of a Toolset: its ConfigMaps with their uids. A ConfigMap that was deleted and created again has another uid.
pub const DEFINITIONS_ANNOTATION: &str = "spillway.dev/definitions";
/// Annotation of Argo CD on the objects that it manages. Argo CD creates a deleted object again.
pub const ARGO_TRACKING_ANNOTATION: &str = "argocd.argoproj.io/tracking-id";
/// Start of the labels of nodes that have a version of the system call profile: the version follows. Pods of pools with
/// `seccomp: Localhost` select nodes by it. The value is [`NODE_PROFILE_INSTALLED`].
pub const NODE_PROFILE_LABEL_PREFIX: &str = "seccomp.spillway.dev/agent-strict-";
/// Value of these labels.
pub const NODE_PROFILE_INSTALLED: &str = "installed";
/// Finalizer of an Agent until its pod is gone, so that a deleted Agent never leaves a running pod behind.
pub const AGENT_FINALIZER: &str = "spillway.dev/pod";

/// Field managers of server-side apply, one for each writer.
pub mod managers {
    /// The AgentPool controller.
    pub const POOL: &str = "spillway-pool";
    /// The Agent controller.
    pub const AGENT: &str = "spillway-agent";
    /// The kubectl plugin.
    pub const PLUGIN: &str = "kubectl-spillway";
    /// The writer of the internal certificates.
    pub const PKI: &str = "spillway-pki";
    /// The writer of a Budget's ResourceQuota and LimitRange, and of the conditions about them.
    pub const COMPUTE: &str = "spillway-compute";
    /// The writer of the default objects: `Budget/default`, `Breaker/default`, `ClusterBudget/default`.
    pub const DEFAULTS: &str = "spillway-defaults";
    /// The Toolset controller: the objects of a Toolset, and its status.
    pub const TOOLSET: &str = "spillway-toolset";
    /// The process on each node that installs the system call profile.
    pub const NODE_PROFILE: &str = "spillway-node-profile";
    /// The process that makes the operator end all agents.
    pub const END_AGENTS: &str = "spillway-end-agents";
    /// The process that makes items of issues.
    pub const SOURCE: &str = "spillway-source";
    /// The governor: child agents and items that agents create, and the status of items.
    pub const GOVERNOR: &str = "spillway-governor";
}

/// Value of `app.kubernetes.io/name` of the pods of Toolsets.
pub const BRIDGE_NAME: &str = "spillway-bridge";

/// Name of the Deployment, the Service, the NetworkPolicy and the ServiceAccount of a Toolset. A Toolset's name has at most 52
/// characters, so this fits a DNS label.
pub fn toolset_object(toolset: &str) -> String {
    format!("{toolset}-toolset")
}

/// Labels that select the pods of a Toolset.
pub fn toolset_labels(toolset: &str) -> BTreeMap<String, String> {
    [("app.kubernetes.io/name", BRIDGE_NAME), ("app.kubernetes.io/instance", toolset)]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

/// Label of nodes that have this version of the system call profile.
pub fn node_profile_label(version: &str) -> String {
    format!("{NODE_PROFILE_LABEL_PREFIX}{version}")
}

/// Labels that select all objects of a pool.
pub fn pool_labels(pool: &str, pool_uid: &str, type_: &str) -> BTreeMap<String, String> {
    [(MANAGED_BY_LABEL, MANAGED_BY), (POOL_LABEL, pool), (POOL_UID_LABEL, pool_uid), (TYPE_LABEL, type_)]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

/// Maximum length of a name that is also a label value and a DNS label.
const MAX_LABEL_LENGTH: usize = 63;
/// Number of hexadecimal digits of the hash in an Agent's name: 40 bits.
const NAME_HASH_DIGITS: usize = 10;

/// The first `digits` hexadecimal digits of the SHA-256 of `parts`, each ended by a NUL so that they cannot run together.
pub fn short_hash(parts: &[&str], digits: usize) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect::<String>()[..digits].to_owned()
}

/// Name of the Agent with sequence number `sequence` of a pool. The same inputs always give the same name. Therefore a repeated create ends
/// in a 409 and not in a second Agent.
pub fn agent_name(pool: &str, pool_uid: &str, sequence: i64) -> String {
    let hash = short_hash(&[pool_uid, &sequence.to_string()], NAME_HASH_DIGITS);
    let prefix: String = pool.chars().take(MAX_LABEL_LENGTH - 1 - NAME_HASH_DIGITS).collect();
    format!("{}-{hash}", prefix.trim_end_matches('-'))
}

/// Name of the PersistentVolumeClaim of an Agent's own volume.
pub fn claim_name(agent: &str) -> String {
    format!("{agent}-workspace")
}

/// Maximum length of the name of an object.
const MAX_OBJECT_NAME_LENGTH: usize = 253;

/// Name of the ResourceQuota and of the LimitRange of a Budget.
pub fn compute_name(budget: &str) -> String {
    let name = format!("spillway-{budget}");
    if name.len() <= MAX_OBJECT_NAME_LENGTH {
        return name;
    }
    let prefix: String = name.chars().take(MAX_OBJECT_NAME_LENGTH - 1 - NAME_HASH_DIGITS).collect();
    format!("{}-{}", prefix.trim_end_matches(['-', '.']), short_hash(&[budget], NAME_HASH_DIGITS))
}

/// Name of an Agent that another agent spawned. The same parent and key always give the same name.
pub fn child_name(pool: &str, parent_uid: &str, key: &str) -> String {
    let hash = short_hash(&["child", parent_uid, key], NAME_HASH_DIGITS);
    let prefix: String = pool.chars().take(MAX_LABEL_LENGTH - 1 - NAME_HASH_DIGITS).collect();
    format!("{}-{hash}", prefix.trim_end_matches('-'))
}

/// Name of the Agent of a process outside the cluster. The same user and key always give the same name in a pool.
pub fn external_name(pool: &str, pool_uid: &str, user: &str, key: &str) -> String {
    let hash = short_hash(&["external", pool_uid, user, key], NAME_HASH_DIGITS);
    let prefix: String = pool.chars().take(MAX_LABEL_LENGTH - 1 - NAME_HASH_DIGITS).collect();
    format!("{}-{hash}", prefix.trim_end_matches('-'))
}

/// Whether the Agent `name` has sequence number `sequence` of the pool. The name holds a hash of both. Therefore this needs no label and no
/// owner reference, which people may change.
pub fn is_agent_of(name: &str, sequence: i64, pool: &str, pool_uid: &str) -> bool {
    sequence >= 0 && agent_name(pool, pool_uid, sequence) == name
}

const DISPLAY_NAME_ADJECTIVES: &[&str] = &[
    "able", "amber", "brave", "brisk", "calm", "clear", "clever", "crisp", "deft", "eager", "early", "fair", "fleet", "frank", "fresh",
    "gentle", "glad", "grand", "keen", "kind", "light", "lively", "lucid", "mellow", "merry", "mild", "neat", "noble", "patient", "plain",
    "polite", "prime", "proud", "quick", "quiet", "ready", "sharp", "silver", "smart", "solid", "spry", "steady", "still", "sturdy",
    "sunny", "swift", "tidy", "true", "vivid", "warm", "wise", "witty",
];
const DISPLAY_NAME_ANIMALS: &[&str] = &[
    "badger",
    "beaver",
    "bison",
    "bittern",
    "carp",
    "cormorant",
    "crane",
    "curlew",
    "dipper",
    "dolphin",
    "duck",
    "egret",
    "eider",
    "falcon",
    "finch",
    "gannet",
    "goose",
    "grebe",
    "gull",
    "heron",
    "ibis",
    "jackdaw",
    "kestrel",
    "kingfisher",
    "lapwing",
    "loon",
    "marten",
    "mink",
    "moorhen",
    "newt",
    "osprey",
    "otter",
    "pelican",
    "perch",
    "pike",
    "plover",
    "puffin",
    "rail",
    "salmon",
    "sandpiper",
    "seal",
    "shrew",
    "snipe",
    "stork",
    "sturgeon",
    "swan",
    "teal",
    "tern",
    "trout",
    "vole",
    "wagtail",
    "walrus",
];

/// Name shown to people. It is always the same for the same Agent. It is not unique; the name of the object is.
pub fn display_name(agent: &str) -> String {
    let hash = Sha256::digest(agent.as_bytes());
    let pick = |words: &[&'static str], at: usize| words[usize::from(u16::from_be_bytes([hash[at], hash[at + 1]])) % words.len()];
    format!("{}-{}", pick(DISPLAY_NAME_ADJECTIVES, 0), pick(DISPLAY_NAME_ANIMALS, 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agents_name_is_stable_and_fits_a_label() {
        let name = agent_name("coders", "3f0e", 7);
        assert_eq!(name, agent_name("coders", "3f0e", 7));
        assert!(name.starts_with("coders-") && name.len() == "coders-".len() + NAME_HASH_DIGITS, "{name}");
        let long = "p".repeat(63);
        assert_eq!(agent_name(&long, "3f0e", 7).len(), MAX_LABEL_LENGTH);
    }

    #[test]
    fn different_pools_and_numbers_never_share_a_name() {
        assert_ne!(agent_name("a", "uid-1", 1), agent_name("a", "uid-2", 1));
        assert_ne!(agent_name("a", "uid-1", 1), agent_name("a", "uid-1", 2));
        assert_ne!(short_hash(&["ab", "c"], 10), short_hash(&["a", "bc"], 10));
    }

    #[test]
    fn another_user_or_key_is_another_agent_outside_the_cluster() {
        let name = external_name("p", "uid", "alice", "k");
        assert_eq!(name, external_name("p", "uid", "alice", "k"));
        for other in [external_name("p", "uid", "bob", "k"), external_name("p", "uid", "alice", "l"), child_name("p", "uid", "k")] {
            assert_ne!(name, other);
        }
    }

    #[test]
    fn a_number_counts_only_under_its_own_name() {
        let name = agent_name("a", "uid", 4);
        assert!(is_agent_of(&name, 4, "a", "uid"));
        assert!(!is_agent_of(&name, 5, "a", "uid") && !is_agent_of("mine", 4, "a", "uid") && !is_agent_of(&name, 4, "a", "other"));
    }

    #[test]
    fn the_objects_of_a_budget_have_its_name_as_far_as_it_fits() {
        assert_eq!(compute_name("team"), "spillway-team");
        let (one, other) = (format!("{}a", "b".repeat(252)), format!("{}c", "b".repeat(252)));
        assert_eq!(compute_name(&one).len(), MAX_OBJECT_NAME_LENGTH);
        assert_ne!(compute_name(&one), compute_name(&other));
    }

    #[test]
    fn the_objects_of_a_toolset_have_names_that_are_dns_labels() {
        assert_eq!(toolset_object("deploy"), "deploy-toolset");
        assert!(toolset_object(&"a".repeat(52)).len() <= MAX_LABEL_LENGTH);
    }

    #[test]
    fn display_names_are_stable_words() {
        assert_eq!(display_name("coders-0123456789"), display_name("coders-0123456789"));
        assert!(display_name("x").split('-').count() == 2);
    }
}
