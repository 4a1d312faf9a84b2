//! Calls of agents that submit work: one item, or a plan of many. Each may be repeated: the name of an item follows
//! from its key, so the API server itself refuses a duplicate.

use std::collections::HashMap;

use futures::{StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::ResourceExt;
use kube::api::ObjectMeta;

use super::common::{ready, turn, unavailable};
use super::convert;
use crate::api::names;
use crate::api::shared::LocalRef;
use crate::api::work_item::{self, Dependency, DependencyCondition, WorkItemSpec};
use crate::api::{AgentPool, WorkItem};
use crate::cluster::{Class, Error, calls};
use crate::controller::{Context, capacity};
use crate::governor::caller::Caller;
use crate::policy::work::admission::{Admission, Refusal as Rejection};
use crate::wire::plan::{Plan, Planned, PlannedItem, Step};
use crate::wire::work::{NotifyOn, Requires, Submit, Submitted};
use crate::wire::{Code, Refusal};

/// Items of a plan that are created at once.
const MAX_CONCURRENT_CREATES: usize = 8;

fn key_of(key: Option<&str>) -> Result<&str, Refusal> {
    key.filter(|key| !key.is_empty() && key.len() <= 253).ok_or_else(|| {
        let message = "the header Idempotency-Key is missing or longer than 253 bytes: it makes a repeated call safe";
        Refusal::new(Code::InvalidBody, message).field("Idempotency-Key")
    })
}

/// Creates an item.
pub async fn submit(
    caller: &Caller,
    pool: &AgentPool,
    key: Option<&str>,
    request: Submit,
    context: &Context,
) -> Result<Submitted, Refusal> {
    ready(context)?;
    let key = key_of(request.dedup_key.as_deref().or(key))?;
    // A dedupKey is unique in the namespace. An idempotency key is unique for the agent.
    let scope = if request.dedup_key.is_some() { "dedup" } else { caller.uid.as_str() };
    let item = item_of(caller, &format!("item-{}", names::short_hash(&["item", scope, key], 16)), request, pool);
    let (queue, there) = admitted(&item, pool, context)?;
    within_budgets(pool, u64::from(!there), context)?;
    make(item, queue, context).await
}

/// Creates all items of a plan. None is assigned before all of them exist, so a repeated call can continue where this
/// one ends.
pub async fn plan(caller: &Caller, pool: &AgentPool, key: Option<&str>, request: Plan, context: &Context) -> Result<Planned, Refusal> {
    ready(context)?;
    let key = key_of(request.dedup_key.as_deref().or(key))?;
    let scope = if request.dedup_key.is_some() { "dedup" } else { caller.uid.as_str() };
    let Names { plan, items: names } = names_of(scope, key, &request.steps);
    let size = i32::try_from(request.steps.len()).unwrap_or(i32::MAX);
    let items = request.steps.into_iter().map(|Step { key, after, mut item }| {
        item.after.extend(after.iter().filter_map(|step| names.get(step).cloned()));
        let mut item = item_of(caller, names.get(&key).map_or("", String::as_str), item, pool);
        item.spec.plan = Some(work_item::Plan { id: plan.clone(), size });
        (key, item)
    });
    let mut more: HashMap<String, u64> = HashMap::new();
    let mut making = Vec::new();
    for (key, item) in items {
        let (queue, there) = admitted(&item, pool, context)
            .map_err(|refusal| Refusal { message: format!("step {key:?}: {}", refusal.message), ..refusal })?;
        *more.entry(queue.clone()).or_default() += u64::from(!there);
        making.push((key, item, queue));
    }
    within_budgets(pool, more.values().sum(), context)?;
    // Each item alone fits, but all of them together may not: then none is created.
    for (queue, more) in more {
        let (pending, most) = context.work_index.with(&caller.key.namespace, |namespace_work| {
            (namespace_work.index.pending(&queue), namespace_work.index.queue(&queue).map_or(0, |queue| queue.max_pending))
        });
        if more > 0 && pending + more > most {
            return Err(rejected(&Rejection::QueueFull { queue, limit: most, current: pending }));
        }
    }
    let made = async |(key, item, queue)| {
        let Submitted { name, uid, queue } = make(item, queue, context).await?;
        Ok::<_, Refusal>(PlannedItem { key, name, uid, queue })
    };
    // The first item is created alone: if another plan used the same key, this create fails before anything of this
    // plan exists.
    let mut making = making.into_iter();
    let mut items = Vec::new();
    if let Some(first) = making.next() {
        items.push(made(first).await?);
    }
    let rest: Vec<PlannedItem> = futures::stream::iter(making.map(made)).buffered(MAX_CONCURRENT_CREATES).try_collect().await?;
    items.extend(rest);
    Ok(Planned { plan, items })
}

/// Whether this many more items may be unfinished in the namespace, by the budgets above it and above the pool of the
/// caller.
fn within_budgets(pool: &AgentPool, more: u64, context: &Context) -> Result<(), Refusal> {
    let Some(limit) = capacity::pool_work_limit(pool, &context.stores).filter(|_| more > 0) else { return Ok(()) };
    let pending = context.work_index.with(&pool.namespace().unwrap_or_default(), |namespace_work| namespace_work.index.unfinished());
    if pending.saturating_add(more) <= limit.most {
        return Ok(());
    }
    Err(rejected(&Rejection::ProjectFull { limit, current: pending }))
}

/// The names of a plan and its items.
struct Names {
    plan: String,
    /// By the steps' keys.
    items: HashMap<String, String>,
}

/// The name of the plan contains a hash of all its steps, so another plan with the same key has another name. The name
/// of the first item follows from the key alone, so two such plans conflict there.
fn names_of(scope: &str, key: &str, steps: &[Step]) -> Names {
    let all = serde_json::to_string(steps).unwrap_or_default(); // our own types always serialize
    let plan = format!("plan-{}", names::short_hash(&["plan", scope, key, &all], 16));
    let name_of = |(at, step): (usize, &Step)| {
        let hash = if at == 0 { names::short_hash(&["plan", scope, key], 16) } else { names::short_hash(&["step", &plan, &step.key], 16) };
        (step.key.clone(), format!("item-{hash}"))
    };
    Names { items: steps.iter().enumerate().map(name_of).collect(), plan }
}

/// The queue of an item, and whether the item already exists; or why it may not be created.
fn admitted(item: &WorkItem, pool: &AgentPool, context: &Context) -> Result<(String, bool), Refusal> {
    let (name, namespace) = (item.name_any(), item.namespace().unwrap_or_default());
    let spec = convert::spec(item);
    let (there, admission) = context
        .work_index
        .with(&namespace, |namespace_work| (namespace_work.index.get(&name).cloned(), namespace_work.index.admission(&name, &spec)));
    let known = there.is_some();
    let queue = match admission {
        // A repeated call gets the same answer, whatever happened to the queue.
        _ if known => there.and_then(|entry| entry.record.queue.or(entry.spec.queue)).unwrap_or_default(),
        Admission::To(queue) => queue,
        Admission::Refused(rejection) => return Err(rejected(&rejection)),
        Admission::Unknown => return Err(Refusal::unavailable("the controller does not know the queues yet; try again")),
    };
    let allowed = pool.spec.may.iter().flat_map(|may| may.submit_to.iter().flatten()).any(|allowed| *allowed == queue);
    if !allowed {
        let message = format!("AgentPool/{} does not list {queue:?} in spec.may.submitTo", pool.name_any());
        return Err(Refusal::new(Code::NotAllowed, message).field("queue"));
    }
    Ok((queue, known))
}

/// Creates an item, or finds the one that an earlier call created.
async fn make(item: WorkItem, queue: String, context: &Context) -> Result<Submitted, Refusal> {
    let (name, namespace) = (item.name_any(), item.namespace().unwrap_or_default());
    let _turn = turn(&namespace, context).await?;
    context.leadership.check().map_err(|error| unavailable(context, &error))?;
    let api = context.api::<WorkItem>(&namespace);
    let made = match calls::create(&api, &item, names::managers::GOVERNOR).await {
        Ok(made) => {
            context.work_index.observe(&made);
            made
        }
        Err(error) if error.class() == Class::AlreadyExists => {
            let there = api.get_opt(&name).await.map_err(Error::of("reading an item")).map_err(|error| unavailable(context, &error))?;
            let Some(there) = there else { return Err(Refusal::unavailable("an item with the same key was just deleted; try again")) };
            if as_asked(&there.spec) != as_asked(&item.spec) {
                return Err(if item.spec.dedup_key.is_some() {
                    rejected(&Rejection::Duplicate(name))
                } else {
                    Refusal::new(Code::KeyReused, "this key was used for another item or plan").field("Idempotency-Key")
                });
            }
            there
        }
        Err(error) => return Err(unavailable(context, &error)),
    };
    let queue = convert::queue_of(&made).map_or(queue, str::to_owned);
    Ok(Submitted { name, uid: made.uid().unwrap_or_default(), queue })
}

/// The spec as it was submitted: without the time, and without fields that people may have changed since.
fn as_asked(spec: &WorkItemSpec) -> WorkItemSpec {
    WorkItemSpec {
        submit_time: None,
        priority: 0,
        suspend: None,
        cancel_requested: None,
        redrives: None,
        resume_pause: None,
        released_epoch: None,
        ..spec.clone()
    }
}

fn item_of(caller: &Caller, name: &str, request: Submit, pool: &AgentPool) -> WorkItem {
    let Submit { queue, type_, priority, group, concurrency_key, dedup_key, payload, after, notify_on, requires } = request;
    let mut after = after;
    after.sort();
    after.dedup();
    let after: Vec<Dependency> =
        after.into_iter().map(|name| Dependency { name, queue: None, condition: DependencyCondition::Succeeded }).collect();
    let notify_on: Vec<work_item::NotifyOn> = notify_on
        .into_iter()
        .map(|end| match end {
            NotifyOn::Finished => work_item::NotifyOn::Finished,
            NotifyOn::Failed => work_item::NotifyOn::Failed,
            NotifyOn::DeadLettered => work_item::NotifyOn::DeadLettered,
        })
        .collect();
    let spec = WorkItemSpec {
        queue_ref: queue.map(|name| LocalRef { name }),
        type_,
        priority,
        group,
        concurrency_key,
        dedup_key,
        payload,
        submit_time: Some(MicroTime(Timestamp::now())),
        depends_on: Some(after).filter(|after| !after.is_empty()),
        notify_on: Some(notify_on).filter(|notify_on| !notify_on.is_empty()),
        requires: Some(requires).filter(|requires| !requires.is_empty()).map(needs),
        ..WorkItemSpec::default()
    };
    let labels = [(names::MANAGED_BY_LABEL, names::MANAGED_BY.to_owned()), (names::SUBMITTED_BY_LABEL, pool.name_any())];
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(caller.key.namespace.clone()),
        labels: Some(labels.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
        ..ObjectMeta::default()
    };
    WorkItem { metadata, spec, status: None }
}

fn needs(requires: Requires) -> work_item::Requires {
    let Requires { tools, models, urls, accounts, volumes, repositories } = requires;
    let some = |names: Vec<String>| Some(names).filter(|names| !names.is_empty());
    work_item::Requires {
        tools: some(tools),
        models: some(models),
        urls: some(urls),
        accounts: some(accounts),
        volumes: some(volumes),
        repositories: some(repositories),
    }
}

fn rejected(rejection: &Rejection) -> Refusal {
    let (code, field) = match rejection {
        Rejection::QueueMissing(_) => (Code::QueueMissing, "queue"),
        Rejection::QueueFull { .. } | Rejection::ProjectFull { .. } => (Code::QueueFull, "queue"),
        Rejection::TypeNotAccepted { .. } => (Code::TypeNotAccepted, "type"),
        Rejection::TooLarge { .. } => (Code::ItemTooLarge, "payload"),
        Rejection::Duplicate(_) => (Code::Duplicate, "dedupKey"),
        Rejection::Cycle(_) => (Code::Cycle, "after"),
        Rejection::Unsupported(_) => (Code::NotBuilt, "(body)"),
    };
    let refusal = Refusal::new(code, rejection.to_string()).field(field);
    match rejection {
        Rejection::QueueFull { limit, current, .. } | Rejection::TooLarge { limit, current, .. } => refusal.limit(*limit, *current),
        Rejection::ProjectFull { limit, current } => refusal.limit(limit.most, *current),
        Rejection::QueueMissing(_)
        | Rejection::TypeNotAccepted { .. }
        | Rejection::Duplicate(_)
        | Rejection::Cycle(_)
        | Rejection::Unsupported(_) => refusal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(key: &str, payload: &str) -> Step {
        let item = Submit { queue: Some("q".into()), payload: payload.into(), ..Submit::default() };
        Step { key: key.into(), after: Vec::new(), item }
    }

    #[test]
    fn another_plan_under_the_same_key_meets_the_first_in_its_first_item_and_nowhere_else() {
        let one = names_of("pod", "k", &[step("a", "x"), step("b", "y")]);
        let again = names_of("pod", "k", &[step("a", "x"), step("b", "y")]);
        assert_eq!((&one.plan, &one.items), (&again.plan, &again.items));
        for other in [vec![step("a", "x"), step("b", "z")], vec![step("c", "x")], vec![step("b", "y"), step("a", "x"), step("d", "")]] {
            let names = names_of("pod", "k", &other);
            assert_ne!(names.plan, one.plan);
            assert_eq!(names.items[&other[0].key], one.items["a"]);
            for step in &other[1..] {
                assert!(!one.items.values().any(|name| *name == names.items[&step.key]), "{}", step.key);
            }
        }
        assert_ne!(names_of("pod", "l", &[step("a", "x")]).items["a"], one.items["a"]);
        assert_ne!(names_of("other", "k", &[step("a", "x")]).items["a"], one.items["a"]);
    }
}
