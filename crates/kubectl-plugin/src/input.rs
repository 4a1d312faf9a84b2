//! Names, quantities, durations and times as people write them, checked before anything is sent. Pure.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// A DNS label: the name of a namespace, a pool or an Agent.
pub fn label(text: &str) -> Result<String, String> {
    if text.len() <= 63 && is_part(text) {
        Ok(text.to_owned())
    } else {
        Err("a name has at most 63 lower-case letters, digits and '-', and starts and ends with a letter or digit".to_owned())
    }
}

/// Whether a text can be a part of a name, between two dots.
fn is_part(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty() && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

/// A DNS subdomain: the name of an item or a queue.
pub fn object(text: &str) -> Result<String, String> {
    if text.len() <= 253 && text.split('.').all(is_part) {
        Ok(text.to_owned())
    } else {
        Err("a name has at most 253 lower-case letters, digits, '-' and '.', and starts and ends with a letter or digit".to_owned())
    }
}

/// A display name.
pub fn display_name(text: &str) -> Result<String, String> {
    if (1..=63).contains(&text.chars().count()) && !text.chars().any(char::is_control) {
        Ok(text.to_owned())
    } else {
        Err("a display name has 1 to 63 characters, none of them a control character".to_owned())
    }
}

/// The names of the kind Agent before a slash, as kubectl accepts them.
const AGENT_KINDS: &[&str] = &["agent", "agents", "ag", "agent.spillway.dev", "agents.spillway.dev"];
/// The same for an AgentPool, with the short word `pool`.
const POOL_KINDS: &[&str] = &["pool", "pools", "agentpool", "agentpools", "apool", "agentpool.spillway.dev", "agentpools.spillway.dev"];
/// The same for a WorkItem.
const ITEM_KINDS: &[&str] = &["item", "items", "workitem", "workitems", "wi", "workitem.spillway.dev", "workitems.spillway.dev"];
/// The same for a WorkQueue.
const QUEUE_KINDS: &[&str] = &["queue", "queues", "workqueue", "workqueues", "wq", "workqueue.spillway.dev", "workqueues.spillway.dev"];

/// The name of an Agent or an AgentPool, with its kind if the user has typed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamedKind {
    /// `agent/NAME`.
    Agent(String),
    /// `pool/NAME`.
    Pool(String),
    /// A bare name: an Agent, or a pool if there is no such Agent.
    Either(String),
}

/// The name of an Agent, also in the form of `ls -o name`.
pub fn agent(text: &str) -> Result<String, String> {
    named(text, AGENT_KINDS, "an Agent")
}

/// The name of an AgentPool, also in the form of `kubectl get -o name`.
pub fn pool(text: &str) -> Result<String, String> {
    named(text, POOL_KINDS, "an AgentPool")
}

/// The name of a WorkItem, also in the form that `submit` prints.
pub fn item(text: &str) -> Result<String, String> {
    of_kind(text, ITEM_KINDS).unwrap_or_else(|| Err(format!("{text:?} is not a WorkItem")))
}

/// The name of a WorkQueue, also in the form of `kubectl get -o name`.
pub fn queue(text: &str) -> Result<String, String> {
    of_kind(text, QUEUE_KINDS).unwrap_or_else(|| Err(format!("{text:?} is not a WorkQueue")))
}

/// The name after one of these kinds, or a bare name; none if another kind is before it.
fn of_kind(text: &str, kinds: &[&str]) -> Option<Result<String, String>> {
    match text.split_once('/') {
        None => Some(object(text)),
        Some((kind, name)) => kinds.contains(&kind.to_ascii_lowercase().as_str()).then(|| object(name)),
    }
}

/// An object that can be paused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pausable {
    /// `agent/NAME`, or a bare name.
    Agent(String),
    /// `item/NAME`.
    Item(String),
    /// `queue/NAME`.
    Queue(String),
}

/// The name of an object that can be paused.
pub fn pausable(text: &str) -> Result<Pausable, String> {
    match item_or_queue(text) {
        Some(Ok(Work::Item(name))) => Ok(Pausable::Item(name)),
        Some(Ok(Work::Queue(name))) => Ok(Pausable::Queue(name)),
        Some(Err(words)) => Err(words),
        None => match text.split_once('/') {
            Some((kind, _)) if !AGENT_KINDS.contains(&kind.to_ascii_lowercase().as_str()) => {
                Err(format!("{text:?} cannot be paused: write the name of an agent, item/NAME or queue/NAME"))
            }
            _ => agent(text).map(Pausable::Agent),
        },
    }
}

/// The names of the kind Budget before a slash, as kubectl accepts them.
const BUDGET_KINDS: &[&str] = &["budget", "budgets", "bud", "budget.spillway.dev", "budgets.spillway.dev"];
/// The same for a ClusterBudget.
const CLUSTER_BUDGET_KINDS: &[&str] =
    &["clusterbudget", "clusterbudgets", "cbud", "clusterbudget.spillway.dev", "clusterbudgets.spillway.dev"];

/// An object that can get tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grantable {
    /// `agent/NAME`.
    Agent(String),
    /// `budget/NAME`.
    Budget(String),
    /// `clusterbudget/NAME`.
    ClusterBudget(String),
}

impl std::fmt::Display for Grantable {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Agent(name) => write!(to, "agent/{name}"),
            Self::Budget(name) => write!(to, "budget/{name}"),
            Self::ClusterBudget(name) => write!(to, "clusterbudget/{name}"),
        }
    }
}

/// The name of an object that can get tokens. The kind is required, because a bare name could be any of them.
pub fn grantable(text: &str) -> Result<Grantable, String> {
    let mend = || format!("{text:?} cannot get tokens: write agent/NAME, budget/NAME or clusterbudget/NAME");
    let (kind, name) = text.split_once('/').ok_or_else(mend)?;
    let kind = kind.to_ascii_lowercase();
    match kind.as_str() {
        kind if AGENT_KINDS.contains(&kind) => label(name).map(Grantable::Agent),
        kind if BUDGET_KINDS.contains(&kind) => object(name).map(Grantable::Budget),
        kind if CLUSTER_BUDGET_KINDS.contains(&kind) => object(name).map(Grantable::ClusterBudget),
        _ => Err(mend()),
    }
}

/// The most tokens that one Grant gives.
const MAX_GRANT_TOKENS: i64 = 1_000_000_000_000;

/// Tokens: `50000`, `50k`, `2M`.
pub fn tokens(text: &str) -> Result<i64, String> {
    let (digits, factor) = match text.strip_suffix(['k', 'M']) {
        Some(digits) if text.ends_with('k') => (digits, 1000),
        Some(digits) => (digits, 1_000_000),
        None => (text, 1),
    };
    let tokens = digits.parse::<i64>().ok().and_then(|number| number.checked_mul(factor));
    match tokens {
        Some(tokens) if (1..=MAX_GRANT_TOKENS).contains(&tokens) => Ok(tokens),
        Some(_) => Err(format!("a Grant gives 1 to {MAX_GRANT_TOKENS} tokens")),
        None => Err("not a number of tokens: write 50000, 50k or 2M".to_owned()),
    }
}

/// The id of a call that waits for approval, or its beginning.
pub fn approval_id(text: &str) -> Result<String, String> {
    if (1..=32).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)) {
        Ok(text.to_owned())
    } else {
        Err("an id has hexadecimal digits: `kubectl spillway approvals` shows it".to_owned())
    }
}

/// A reason, for people.
pub fn reason(text: &str) -> Result<String, String> {
    if (1..=1024).contains(&text.chars().count()) && !text.chars().any(char::is_control) {
        Ok(text.to_owned())
    } else {
        Err("a reason has 1 to 1024 characters, none of them a control character".to_owned())
    }
}

/// A WorkItem or a WorkQueue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// `item/NAME`.
    Item(String),
    /// `queue/NAME`.
    Queue(String),
}

/// The name of an item or a queue, with its kind; none if neither kind is before it.
fn item_or_queue(text: &str) -> Option<Result<Work, String>> {
    let (kind, name) = text.split_once('/')?;
    let kind = kind.to_ascii_lowercase();
    if ITEM_KINDS.contains(&kind.as_str()) {
        Some(object(name).map(Work::Item))
    } else if QUEUE_KINDS.contains(&kind.as_str()) {
        Some(object(name).map(Work::Queue))
    } else {
        None
    }
}

/// An object that can be explained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Explainable {
    /// An agent or a pool.
    Fleet(NamedKind),
    /// An item or a queue.
    Work(Work),
}

/// The name of an object that can be explained.
pub fn explainable(text: &str) -> Result<Explainable, String> {
    match item_or_queue(text) {
        Some(named) => named.map(Explainable::Work),
        None => agent_or_pool(text).map(Explainable::Fleet).map_err(|words| match text.split_once('/') {
            Some((kind, _)) if !is_fleet_kind(kind) => {
                format!("{text:?} cannot be explained: write agent/NAME, pool/NAME, item/NAME or queue/NAME")
            }
            Some(_) | None => words,
        }),
    }
}

fn is_fleet_kind(kind: &str) -> bool {
    let kind = kind.to_ascii_lowercase();
    AGENT_KINDS.contains(&kind.as_str()) || POOL_KINDS.contains(&kind.as_str())
}

/// The name of an Agent or of an AgentPool.
pub fn agent_or_pool(text: &str) -> Result<NamedKind, String> {
    let Some((kind, name)) = text.split_once('/') else { return label(text).map(NamedKind::Either) };
    let kind = kind.to_ascii_lowercase();
    if AGENT_KINDS.contains(&kind.as_str()) {
        label(name).map(NamedKind::Agent)
    } else if POOL_KINDS.contains(&kind.as_str()) {
        label(name).map(NamedKind::Pool)
    } else {
        Err(format!("{text:?} is neither an Agent nor an AgentPool: write agent/NAME or pool/NAME"))
    }
}

fn named(text: &str, kinds: &[&str], what: &str) -> Result<String, String> {
    match text.split_once('/') {
        None => label(text),
        Some((kind, name)) if kinds.contains(&kind.to_ascii_lowercase().as_str()) => label(name),
        Some(_) => Err(format!("{text:?} is not {what}")),
    }
}

/// A duration: `30s`, `1m30s`, `2h`; a bare number is seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse::<u32>() {
        return Ok(Duration::from_secs(seconds.into()));
    }
    let mend = || "not a duration: write 30s, 2m or 1h".to_owned();
    text.parse::<jiff::SignedDuration>().ok().and_then(|duration| Duration::try_from(duration).ok()).ok_or_else(mend)
}

/// A time, or a duration from now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointInTime {
    /// A time.
    At(Timestamp),
    /// A duration from now.
    In(Duration),
}

impl PointInTime {
    /// The time that it stands for.
    pub fn time(self, now: Timestamp) -> Timestamp {
        match self {
            Self::At(time) => time,
            Self::In(duration) => {
                SignedDuration::try_from(duration).ok().and_then(|duration| now.checked_add(duration).ok()).unwrap_or(Timestamp::MAX)
            }
        }
    }
}

/// A time with its zone, or a duration from now: `2026-11-22T18:00:00Z`, `2026-11-22T18:00+01:00`, `90m`.
pub fn point_in_time(text: &str) -> Result<PointInTime, String> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(PointInTime::At(time));
    }
    duration(text)
        .map(PointInTime::In)
        .map_err(|_| "neither a time nor a duration: write 2026-11-22T18:00:00Z, with a time zone, or 90m".to_owned())
}

/// Cores: `2`, `0.5`, `500m`.
pub fn cpus(text: &str) -> Result<Quantity, String> {
    let mend = "write cores: 2, 0.5 or 500m";
    match quantity_value(text) {
        None => Err(format!("not a quantity: {mend}")),
        Some(cores) if cores <= 0.0 => Err(format!("the quantity must be greater than 0: {mend}")),
        Some(cores) if cores < 0.001 => Err(format!("less than 1m, which is the smallest quantity of CPU: {mend}")),
        Some(_) => Ok(Quantity(text.to_owned())),
    }
}

/// Memory: `512Mi`, `1Gi`, `2G`.
pub fn memory(text: &str) -> Result<Quantity, String> {
    let mend = "write bytes: 512Mi, 1Gi or 2G";
    match quantity_value(text) {
        None => Err(match text.trim_end_matches(['b', 'B']).to_ascii_uppercase() {
            short if short != text && quantity_value(&short).is_some() && !short.ends_with(|last: char| last.is_ascii_digit()) => {
                format!("not a quantity: did you mean {short} or {short}i?")
            }
            _ => format!("not a quantity: {mend}"),
        }),
        Some(bytes) if bytes <= 0.0 => Err(format!("the quantity must be greater than 0: {mend}")),
        Some(bytes) if bytes < 1_048_576.0 => Err(match text.strip_suffix('m') {
            Some(number) => format!("m means thousandths of a byte: did you mean {number}Mi?"),
            None => format!("less than 1Mi, which is too little for any program: {mend}"),
        }),
        Some(_) => Ok(Quantity(text.to_owned())),
    }
}

/// The number that a Kubernetes quantity stands for, exact enough for plausibility checks; none if the API server would refuse
/// the quantity.
fn quantity_value(text: &str) -> Option<f64> {
    // The limit of the CRD. No useful quantity is longer.
    if text.len() > 32 {
        return None;
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = unsigned.find(|character: char| !character.is_ascii_digit() && character != '.').unwrap_or(unsigned.len());
    let (digits, suffix) = unsigned.split_at(end);
    if digits.matches('.').count() > 1 || !digits.contains(|character: char| character.is_ascii_digit()) {
        return None;
    }
    let number: f64 = digits.parse().ok()?;
    let signed = if text.starts_with('-') { -number } else { number };
    scale(suffix).map(|scale| signed * scale)
}

fn scale(suffix: &str) -> Option<f64> {
    let decimal = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
    let binary = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    if let Some(at) = decimal.iter().position(|known| *known == suffix) {
        return Some(1000_f64.powi(i32::try_from(at).ok()? - 3));
    }
    if let Some(at) = binary.iter().position(|known| *known == suffix) {
        return Some(1024_f64.powi(i32::try_from(at).ok()? + 1));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(10_f64.powi(exponent.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        let cases = [
            ("2", Some(2.0)),
            ("500m", Some(0.5)),
            (".5", Some(0.5)),
            ("1.", Some(1.0)),
            ("1Ki", Some(1024.0)),
            ("2G", Some(2e9)),
            ("1e3", Some(1000.0)),
            ("1E", Some(1e18)),
            ("1E-2", Some(0.01)),
            ("-1", Some(-1.0)),
            ("", None),
            (".", None),
            ("1.2.3", None),
            ("1K", None),
            ("1g", None),
            ("1 Gi", None),
            ("inf", None),
            ("1ee3", None),
        ];
        for (text, expected) in cases {
            let got = quantity_value(text);
            let same = match (got, expected) {
                (Some(got), Some(expected)) => (got - expected).abs() <= expected.abs() * 1e-9,
                (got, expected) => got.is_none() && expected.is_none(),
            };
            assert!(same, "{text:?}: {got:?}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_what_may_be() {
        assert_eq!(memory("1gb").expect_err("refused"), "not a quantity: did you mean 1G or 1Gi?");
        assert_eq!(
            memory("4096").expect_err("refused"),
            "less than 1Mi, which is too little for any program: write bytes: 512Mi, 1Gi or 2G"
        );
        assert_eq!(memory("lots").expect_err("refused"), "not a quantity: write bytes: 512Mi, 1Gi or 2G");
        assert_eq!(cpus("-1").expect_err("refused"), "the quantity must be greater than 0: write cores: 2, 0.5 or 500m");
        assert!(cpus("100u").expect_err("refused").starts_with("less than 1m"));
        assert_eq!((cpus("0.5"), memory("1Gi")), (Ok(Quantity("0.5".into())), Ok(Quantity("1Gi".into()))));
    }

    #[test]
    fn items_and_queues_are_named_as_kubectl_names_them() {
        assert_eq!((item("b-7"), item("workitem.spillway.dev/b.7")), (Ok("b-7".into()), Ok("b.7".into())));
        assert_eq!((queue("q"), queue("WQ/q")), (Ok("q".into()), Ok("q".into())));
        assert_eq!(item("queue/q").expect_err("refused"), "\"queue/q\" is not a WorkItem");
        assert!(item("item/A").is_err() && item(".a").is_err() && item("").is_err() && item(&"a".repeat(254)).is_err());
        assert_eq!(explainable("item/b"), Ok(Explainable::Work(Work::Item("b".into()))));
        assert_eq!(explainable("a"), Ok(Explainable::Fleet(NamedKind::Either("a".into()))));
        assert!(explainable("pod/a").expect_err("refused").ends_with("write agent/NAME, pool/NAME, item/NAME or queue/NAME"));
        assert!(!explainable("Agent/BAD_name").expect_err("refused").contains("cannot be explained"), "the name is wrong, not the kind");
    }

    #[test]
    fn times_are_points_or_distances() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
        let time = |text: &str| point_in_time(text).map(|when| when.time(now).to_string());
        assert_eq!(time("2026-11-22T18:00:00Z"), Ok("2026-11-22T18:00:00Z".into()));
        assert_eq!(time("2026-11-22T18:00+01:00"), Ok("2026-11-22T17:00:00Z".into()));
        assert_eq!(
            (time("90m"), time("1h30m"), time("5400")),
            (Ok("2026-01-01T01:30:00Z".into()), Ok("2026-01-01T01:30:00Z".into()), Ok("2026-01-01T01:30:00Z".into()))
        );
        for text in ["tomorrow", "2026-11-22", "2026-11-22T18:00:00", "-5m", ""] {
            assert!(time(text).expect_err("refused").contains("with a time zone, or 90m"), "{text}");
        }
    }

    #[test]
    fn durations_and_names() {
        assert_eq!(duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert!(duration("-5s").is_err() && duration("").is_err() && duration("1 fortnight").is_err());
        assert_eq!((agent("agent.spillway.dev/a"), pool("apool/p")), (Ok("a".into()), Ok("p".into())));
        assert_eq!(agent_or_pool("a"), Ok(NamedKind::Either("a".into())));
        assert_eq!((agent_or_pool("AG/a"), agent_or_pool("pool/p")), (Ok(NamedKind::Agent("a".into())), Ok(NamedKind::Pool("p".into()))));
        assert!(agent_or_pool("pod/a").expect_err("refused").contains("write agent/NAME or pool/NAME"));
        assert_eq!(pausable("agent/a"), Ok(Pausable::Agent("a".into())));
        assert_eq!((pausable("item/b.7"), pausable("wq/q")), (Ok(Pausable::Item("b.7".into())), Ok(Pausable::Queue("q".into()))));
        assert!(pausable("pool/p").expect_err("refused").contains("write the name of an agent, item/NAME or queue/NAME"));
        assert!(agent("pod/a").is_err() && label(&"a".repeat(64)).is_err() && label("-a").is_err());
        assert!(display_name("Ada \u{1b}[2J").is_err() && display_name("Ada, the first").is_ok());
    }
}
