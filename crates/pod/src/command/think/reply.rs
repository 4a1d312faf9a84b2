//! A model's answer, read as a decision: one JSON object that is checked field by field. The error names the field that the
//! table of types does not allow, and is sent to the model. Pure.

use serde::Deserialize;
use spillway_wire::body::{self, BoundedBody, at_most};

use super::arguments::Role;
use super::decision::{Decision, Queueing, Step, queueing};
use super::routes::{Route, Routes};

/// The most steps of one reply.
pub const MAX_STEPS: usize = 50;
/// The most questions.
pub const MAX_QUESTIONS: usize = 5;
/// The most bytes of a document. It becomes the item's result, which has a limit.
pub const MAX_DOCUMENT_BYTES: usize = 3500;
/// The most bytes of a task that queues accept.
const MAX_TASK_BYTES: usize = 16 * 1024;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Reply {
    #[serde(default)]
    say: String,
    #[serde(default)]
    questions: Vec<String>,
    #[serde(default)]
    steps: Vec<ReplyStep>,
    #[serde(default)]
    document: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ReplyStep {
    key: String,
    #[serde(rename = "type")]
    type_: String,
    #[serde(default)]
    queue: Option<String>,
    #[serde(default)]
    priority: Option<i32>,
    #[serde(default)]
    after: Vec<String>,
    task: String,
}

impl BoundedBody for Reply {
    fn check(&self) -> Result<(), (&'static str, String)> {
        let Self { say, questions, steps, document } = self;
        at_most("say", say, 2000)?;
        let lists = [("questions", questions.len(), MAX_QUESTIONS), ("steps", steps.len(), MAX_STEPS)];
        if let Some((field, length, most)) = lists.into_iter().find(|(_, length, most)| length > most) {
            return Err((field, format!("{length} entries; at most {most} are taken")));
        }
        questions.iter().try_for_each(|question| at_most("questions", question, 500))?;
        if questions.iter().any(|question| question.trim().is_empty()) {
            return Err(("questions", "one of them is empty".into()));
        }
        if !questions.is_empty() && !steps.is_empty() {
            return Err(("questions", "give questions or steps, but not both".into()));
        }
        for ReplyStep { key, task, .. } in steps {
            if task.trim().is_empty() || task.len() > MAX_TASK_BYTES {
                return Err(("steps.task", format!("{key:?}: {} bytes; 1 to {MAX_TASK_BYTES} are taken", task.len())));
            }
        }
        if let Some(document) = document
            && (document.trim().is_empty() || document.len() > MAX_DOCUMENT_BYTES)
        {
            return Err(("document", format!("{} bytes; 1 to {MAX_DOCUMENT_BYTES} are taken", document.len())));
        }
        let empty = say.trim().is_empty() && questions.is_empty() && steps.is_empty() && document.is_none();
        if empty { Err(("say", "the answer is empty: it has no say, no questions and no steps".into())) } else { Ok(()) }
    }
}

/// Reads the answer of a model to a program with this role. The error is a message for the model.
pub fn read(text: &str, routes: &Routes, role: Role) -> Result<Decision, String> {
    let object = text.find('{').zip(text.rfind('}')).filter(|(start, end)| start < end);
    let (start, end) = object.ok_or("there is no JSON object in it")?;
    let Reply { say, questions, steps, document } = body::read(&text.as_bytes()[start..=end]).map_err(|refusal| refusal.message)?;
    match (role, &document) {
        (Role::Prd, None) => return Err("document: it is missing".to_owned()),
        (Role::Prd, Some(_)) if !questions.is_empty() => {
            return Err("questions: no person can answer here; put open questions into the document".to_owned());
        }
        (Role::Scheduler | Role::Buddy, Some(_)) => return Err("document: none is wanted".to_owned()),
        (Role::Prd, Some(_)) | (Role::Scheduler | Role::Buddy, None) => {}
    }
    let steps = steps.into_iter().map(|step| routed(step, routes)).collect::<Result<Vec<_>, _>>()?;
    // Keys, dependencies, and that there is no cycle.
    if let Some(Queueing::Many(plan)) = queueing(&steps, None, None) {
        plan.check().map_err(|(field, trouble)| format!("{field}: {trouble}"))?;
    } else if let [Step { key, after, .. }] = steps.as_slice()
        && let Some(other) = after.first()
    {
        return Err(format!("steps.after: {key:?} waits for {other:?}, which is no other step"));
    }
    Ok(Decision { say: say.trim().to_owned(), questions, steps, document })
}

/// Checks a step against the table of types, and adds its queue and priority.
fn routed(step: ReplyStep, routes: &Routes) -> Result<Step, String> {
    let ReplyStep { key, type_, queue, priority, after, task } = step;
    let known = || routes.types.iter().map(|route| route.type_.as_str()).collect::<Vec<_>>().join(", ");
    let route = routes.route(&type_).ok_or_else(|| format!("steps.type: {key:?}: {type_:?} is none of {}", known()))?;
    let Route { queues, priority: usual, max_priority, .. } = route;
    if let Some(queue) = queue.as_ref().filter(|queue| !queues.contains(queue)) {
        return Err(format!("steps.queue: {key:?}: {queue:?} is no queue of type {type_}; it has {}", queue_names(queues)));
    }
    let most = max_priority.unwrap_or(*usual);
    if let Some(priority) = priority.filter(|priority| *priority > most) {
        return Err(format!("steps.priority: {key:?}: {priority}; at most {most} for type {type_}"));
    }
    Ok(Step { queue: queue.or_else(|| queues.first().cloned()), priority: priority.unwrap_or(*usual), key, after, type_, task })
}

/// The names of queues, for a message.
pub fn queue_names(queues: &[String]) -> String {
    if queues.is_empty() { "none to name".to_owned() } else { queues.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn routes() -> Routes {
        let text = json!({"types": [
            {"type": "bug", "queues": ["bugs", "urgent"], "priority": 10, "maxPriority": 50},
            {"type": "chore", "priority": 2},
        ], "otherwise": "chore"});
        body::read(text.to_string().as_bytes()).expect("a table")
    }

    fn step(key: &str, extra: Value) -> Value {
        let mut step = json!({"key": key, "type": "bug", "task": "mend it"});
        step.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
        step
    }

    #[test]
    fn a_plan_gets_its_queues_and_priorities_from_the_table() {
        let steps = json!([
            step("a", json!({})),
            step("b", json!({"queue": "urgent", "priority": 50, "after": ["a"]})),
            step("c", json!({"type": "chore", "after": ["a", "b"]}))
        ]);
        // Models write text around the object, and a fence.
        let text = format!("Here you are:\n```json\n{}\n```", json!({"say": " Three. ", "steps": steps}));
        let decision = read(&text, &routes(), Role::Scheduler).expect("a plan");
        assert_eq!(decision.say, "Three.");
        let rows: Vec<_> = decision.steps.iter().map(|step| (step.key.as_str(), step.queue.as_deref(), step.priority)).collect();
        assert_eq!(rows, [("a", Some("bugs"), 10), ("b", Some("urgent"), 50), ("c", None, 2)]);
        assert_eq!(decision.steps[2].after, ["a", "b"]);
    }

    #[test]
    fn what_is_not_allowed_is_refused_by_its_field() {
        let cases = [
            ("no object", json!("text"), "there is no JSON object"),
            ("nothing", json!({}), "say: "),
            ("an unknown field", json!({"say": "x", "shell": "rm"}), "shell: "),
            ("an unknown type", json!({"steps": [step("a", json!({"type": "ask"}))]}), "steps.type: \"a\": \"ask\" is none of bug, chore"),
            ("a queue of another type", json!({"steps": [step("a", json!({"queue": "asks"}))]}), "steps.queue: "),
            ("too high a priority", json!({"steps": [step("a", json!({"priority": 51}))]}), "steps.priority: \"a\": 51; at most 50"),
            ("no key", json!({"steps": [{"type": "bug", "task": "x"}]}), "steps[0]"),
            ("an empty task", json!({"steps": [step("a", json!({"task": " "}))]}), "steps.task: "),
            ("a key twice", json!({"steps": [step("a", json!({})), step("a", json!({}))]}), "steps.key: "),
            ("a circle", json!({"steps": [step("a", json!({"after": ["b"]})), step("b", json!({"after": ["a"]}))]}), "steps.after: "),
            ("one that waits", json!({"steps": [step("a", json!({"after": ["b"]}))]}), "steps.after: "),
            ("both", json!({"questions": ["which?"], "steps": [step("a", json!({}))]}), "questions: "),
            ("six questions", json!({"questions": ["1", "2", "3", "4", "5", "6"]}), "questions: 6 entries"),
            ("a document", json!({"say": "x", "document": "y"}), "document: none is wanted"),
        ];
        for (what, reply, expected) in cases {
            let refused = read(&reply.to_string(), &routes(), Role::Scheduler).expect_err(what);
            assert!(refused.starts_with(expected), "{what}: {refused}");
        }
        let many: Vec<Value> = (0..=MAX_STEPS).map(|at| step(&at.to_string(), json!({}))).collect();
        assert!(read(&json!({"steps": many}).to_string(), &routes(), Role::Buddy).expect_err("many").starts_with("steps: 51 entries"));
    }

    #[test]
    fn a_document_is_required_of_its_writer_and_fits_a_result() {
        let read = |reply: Value| read(&reply.to_string(), &routes(), Role::Prd).map(|decision| decision.document);
        assert_eq!(read(json!({"document": "# A"})), Ok(Some("# A".to_owned())));
        assert!(read(json!({"say": "x"})).expect_err("none").starts_with("document: "));
        assert!(read(json!({"document": "x".repeat(MAX_DOCUMENT_BYTES + 1)})).expect_err("long").starts_with("document: 3501 bytes"));
        assert!(read(json!({"document": "x", "questions": ["?"]})).expect_err("asks").starts_with("questions: "));
    }
}
