//! The decision about a request: an answer, questions, a document, and work to be queued. Pure.

use spillway_wire::plan::{self, Plan};
use spillway_wire::work::{NotifyOn, Submit};

use super::routes::Routes;

/// One item of work to be queued.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Names the step among the others.
    pub key: String,
    /// Keys of the steps that come before it.
    pub after: Vec<String>,
    /// The type of the work.
    pub type_: String,
    /// The queue; unset: routed by its type.
    pub queue: Option<String>,
    /// Steps with a higher number come first.
    pub priority: i32,
    /// The task.
    pub task: String,
}

impl Step {
    /// A step whose type follows from the words of its task. The type decides the queue and the priority.
    pub fn of_type(routes: &Routes, key: String, after: Vec<String>, task: &str) -> Self {
        let type_ = routes.classify(task);
        let (queue, priority) = routes.route(type_).map_or((None, 0), |route| (route.queues.first().cloned(), route.priority));
        Self { key, after, type_: type_.to_owned(), queue, priority, task: task.to_owned() }
    }
}

/// The decision about a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// The answer to the person or program that asked.
    pub say: String,
    /// Questions that must be answered before work is queued.
    pub questions: Vec<String>,
    /// Work to be queued.
    pub steps: Vec<Step>,
    /// The document, if the role writes one.
    pub document: Option<String>,
}

/// The call that queues work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Queueing {
    /// One item.
    One(Box<Submit>),
    /// Many items, all or none.
    Many(Plan),
}

/// The call that queues `steps`; `None` if there are no steps. With the key, a repetition by another agent queues nothing twice.
pub fn queueing(steps: &[Step], group: Option<&str>, dedup_key: Option<&str>) -> Option<Queueing> {
    let item = |step: &Step| Submit {
        queue: step.queue.clone(),
        type_: Some(step.type_.clone()),
        priority: step.priority,
        group: group.map(str::to_owned),
        payload: step.task.clone(),
        notify_on: vec![NotifyOn::Finished],
        ..Submit::default()
    };
    let dedup_key = dedup_key.map(str::to_owned);
    match steps {
        [] => None,
        [one] => Some(Queueing::One(Box::new(Submit { dedup_key, ..item(one) }))),
        many => {
            let steps = many.iter().map(|step| plan::Step { key: step.key.clone(), after: step.after.clone(), item: item(step) });
            Some(Queueing::Many(Plan { dedup_key, steps: steps.collect() }))
        }
    }
}

/// At most `most` bytes of a text, cut between two characters.
pub fn cut(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_step_is_an_item_and_many_are_a_plan_under_one_key_and_group() {
        let step = |key: &str, after: &[&str]| {
            Step::of_type(&Routes::default(), key.to_owned(), after.iter().map(|key| (*key).to_owned()).collect(), "fix it")
        };
        assert_eq!(queueing(&[], Some("g"), Some("k")), None);
        let Some(Queueing::One(item)) = queueing(&[step("1", &[])], Some("g"), Some("k")) else { panic!("not one") };
        assert_eq!((item.type_.as_deref(), item.priority, item.group.as_deref()), (Some("bug"), 10, Some("g")));
        assert_eq!((item.dedup_key.as_deref(), item.notify_on.as_slice()), (Some("k"), &[NotifyOn::Finished][..]));
        let Some(Queueing::Many(plan)) = queueing(&[step("1", &[]), step("2", &["1"])], None, Some("k")) else { panic!("not many") };
        assert_eq!((plan.dedup_key.as_deref(), plan.steps[1].after.as_slice()), (Some("k"), &["1".to_owned()][..]));
        assert!(plan.steps.iter().all(|step| step.item.dedup_key.is_none() && step.item.group.is_none()));
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        assert_eq!((cut("aé", 2), cut("aé", 3), cut("aé", 9), cut("", 0)), ("a", "aé", "aé", ""));
    }
}
