//! `breaker`: controls circuit breakers by hand. `approve` allows a trial for the open circuits of work that wait for an
//! approval, up to their current epoch. `open` and `close` hold all circuits in one state, and `auto` makes them automatic
//! again.
//!
//! An approval covers only what its user saw: the patch carries the resource version, so a circuit that opens meanwhile is not
//! approved.

use serde::Serialize;
use serde_json::{Value, json};

use super::connect::Cluster;
use super::console::Output;
use super::error::Error;
use super::input;
use super::table::printable;
use super::write::{self, Decision, WriteOutcome, WriteTarget};
use crate::api::breaker::{Circuit, CircuitState, Force, Review};
use crate::api::shared::Mode;
use crate::api::{Breaker, GROUP};

/// Examples.
pub const BREAKER_HELP: &str = "Examples:
  kubectl get breakers                       # show which Breakers are open, and why
  kubectl spillway breaker approve default   # allow a trial for its open circuits of work
  kubectl spillway breaker open default      # refuse everything that it guards
  kubectl spillway breaker close default     # allow everything that it guards
  kubectl spillway breaker auto default      # undo both: the circuits are automatic again

approve is for review: Required (in spec.work or spec.project). It approves the openings in the current status, and no later ones.";

/// Arguments of `breaker`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct Arguments {
    /// The action
    #[arg(value_enum, value_name = "approve|open|close|auto")]
    pub verb: Verb,
    /// The Breaker
    #[arg(value_name = "NAME", value_parser = input::object)]
    pub name: String,
}

/// The action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
pub enum Verb {
    /// Allow a trial for its open circuits of work
    Approve,
    /// Hold all its circuits open
    Open,
    /// Hold all its circuits closed
    Close,
    /// Make its circuits automatic again
    Auto,
}

/// The result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The namespace.
    pub namespace: String,
    /// The Breaker.
    pub name: String,
    /// The action.
    pub verb: Verb,
    /// The epoch up to which openings are approved.
    pub approved: Option<i64>,
    /// Circuits that are open.
    pub open: Vec<String>,
    /// Why nothing was written; none if the Breaker was written.
    pub unchanged: Option<String>,
    /// The error message.
    pub failure: Option<String>,
}

/// Reads, decides, writes.
pub async fn run(cluster: &Cluster, arguments: &Arguments) -> Result<Report, Error> {
    let Arguments { verb, name } = arguments;
    let on = if *verb == Verb::Approve { WriteTarget::Version } else { WriteTarget::Uid };
    let done = write::settle(cluster, "breaker", name, on, |breaker| decide(*verb, breaker)).await?;
    let mut report = Report {
        namespace: cluster.namespace.clone(),
        name: name.clone(),
        verb: *verb,
        approved: None,
        open: Vec::new(),
        unchanged: None,
        failure: None,
    };
    let seen = |report: &mut Report, breaker: &Breaker| {
        report.approved = breaker.spec.approved_epoch;
        report.open = open(breaker).map(|circuit| circuit.key.clone()).collect();
    };
    match done {
        WriteOutcome::Written(breaker) => seen(&mut report, &breaker),
        WriteOutcome::Unchanged(breaker, words) => {
            seen(&mut report, &breaker);
            report.unchanged = Some(words);
        }
        WriteOutcome::Failed(words) => report.failure = Some(words),
    }
    Ok(report)
}

fn open(breaker: &Breaker) -> impl Iterator<Item = &Circuit> {
    let circuits = breaker.status.iter().flat_map(|status| status.circuits.iter().flatten());
    circuits.filter(|circuit| circuit.state == CircuitState::Open)
}

/// Decides the write to the Breaker.
fn decide(verb: Verb, breaker: &Breaker) -> Decision {
    let force = |wanted: Option<Force>, word: &str| {
        if breaker.spec.force == wanted {
            Decision::Leave(format!("its circuits {word} already"))
        } else {
            Decision::Write(json!({"force": wanted.map_or(Value::Null, |wanted| json!(wanted))}))
        }
    };
    match verb {
        Verb::Open => force(Some(Force::Open), "are held open"),
        Verb::Close => force(Some(Force::Closed), "are held closed"),
        Verb::Auto => force(None, "are automatic"),
        Verb::Approve => approve(breaker),
    }
}

fn approve(breaker: &Breaker) -> Decision {
    let of_pools = breaker.spec.work.as_ref().and_then(|work| work.review);
    let of_project = breaker.spec.project.as_ref().and_then(|project| project.review);
    let work: Vec<(&Circuit, Option<Review>)> = open(breaker)
        .filter_map(|circuit| match circuit.key.split_once('/') {
            None if circuit.key == "work" => Some((circuit, of_project)),
            Some(("work", _)) => Some((circuit, of_pools)),
            None | Some(_) => None,
        })
        .collect();
    if work.is_empty() {
        return Decision::Leave("none of its circuits of work is open".to_owned());
    }
    let waits = work.iter().filter(|(_, review)| *review == Some(Review::Required) && breaker.spec.mode == Mode::Enforce);
    let Some(epoch) = waits.map(|(circuit, _)| circuit.epoch).max() else {
        let until = open(breaker).filter_map(|circuit| circuit.open_until.as_ref()).map(|until| until.0).max();
        let until = until.map_or_else(String::new, |until| format!(" at {until}"));
        let field = if work.iter().all(|(circuit, _)| circuit.key == "work") { "spec.project.review" } else { "spec.work.review" };
        return Decision::Leave(format!(
            "its work needs no approval, because {field} is not Required: the trial starts automatically{until}"
        ));
    };
    match breaker.spec.approved_epoch {
        Some(approved) if approved == epoch => Decision::Leave(format!("its openings up to epoch {epoch} are approved already")),
        Some(_) | None => Decision::Write(json!({"approvedEpoch": epoch})),
    }
}

/// The result, as text.
pub fn render(report: &Report) -> Output {
    let Report { namespace, name, verb, approved, open, unchanged, failure } = report;
    let mut output = Output::default();
    let named = format!("breaker.{GROUP}/{name}");
    match (failure, unchanged) {
        (Some(words), _) => output.failure(printable(words)),
        (None, Some(words)) => output.line(format!("{named} unchanged: {}", printable(words))),
        (None, None) => {
            let done = match verb {
                Verb::Approve => {
                    let epoch = approved.map_or_else(String::new, |epoch| format!(" up to epoch {epoch}"));
                    format!("approved{epoch}: a trial is allowed for {}", printable(&open.join(", ")))
                }
                Verb::Open => "holds its circuits open".to_owned(),
                Verb::Close => "holds its circuits closed".to_owned(),
                Verb::Auto => "makes its circuits automatic again".to_owned(),
            };
            output.line(format!("{named} {done}"));
            if matches!(verb, Verb::Open | Verb::Close) {
                output.note(format!("`kubectl spillway breaker auto {name} -n {namespace}` undoes that"));
            }
        }
    }
    output
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaker(spec: Value, circuits: Value) -> Breaker {
        serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Breaker", "metadata": {"name": "b", "uid": "u"},
            "spec": spec, "status": {"circuits": circuits}}))
        .expect("a Breaker")
    }

    #[test]
    fn only_what_would_change_is_written_and_only_what_is_open_is_approved() {
        let required = json!({"work": {"review": "Required"}});
        let approved = json!({"work": {"review": "Required"}, "approvedEpoch": 5});
        let circuits = json!([{"key": "work/p", "state": "Open", "epoch": 3}, {"key": "work/q", "state": "Open", "epoch": 5},
            {"key": "work/r", "state": "HalfOpen", "epoch": 8}, {"key": "models/h/c", "state": "Open", "epoch": 9}]);
        let decided = |verb, spec: &Value| decide(verb, &breaker(spec.clone(), circuits.clone()));
        assert_eq!(decided(Verb::Approve, &required), Decision::Write(json!({"approvedEpoch": 5})));
        assert!(matches!(decided(Verb::Approve, &approved), Decision::Leave(words) if words.contains("already")));
        assert!(matches!(decided(Verb::Approve, &json!({})), Decision::Leave(words) if words.contains("not Required")));
        assert!(matches!(decide(Verb::Approve, &breaker(required.clone(), json!([]))), Decision::Leave(words) if words.contains("none")));
        // The circuit of the project has its own review setting.
        let project = json!([{"key": "work", "state": "Open", "epoch": 7}]);
        let of = |spec: Value| decide(Verb::Approve, &breaker(spec, project.clone()));
        assert_eq!(of(json!({"project": {"review": "Required"}})), Decision::Write(json!({"approvedEpoch": 7})));
        assert!(matches!(of(required.clone()), Decision::Leave(words) if words.contains("spec.project.review")));
        assert_eq!(decided(Verb::Open, &json!({})), Decision::Write(json!({"force": "Open"})));
        assert_eq!(decided(Verb::Close, &json!({"force": "Open"})), Decision::Write(json!({"force": "Closed"})));
        assert!(matches!(decided(Verb::Open, &json!({"force": "Open"})), Decision::Leave(_)));
        assert_eq!(decided(Verb::Auto, &json!({"force": "Open"})), Decision::Write(json!({"force": null})));
        assert!(matches!(decided(Verb::Auto, &json!({})), Decision::Leave(_)));
    }

    #[test]
    fn it_is_told_how_to_undo_it() {
        let report = |verb, failure: Option<&str>| Report {
            namespace: "n".into(),
            name: "b".into(),
            verb,
            approved: Some(5),
            open: vec!["work/p".into()],
            unchanged: None,
            failure: failure.map(str::to_owned),
        };
        let held = render(&report(Verb::Open, None));
        assert!(held.err.contains("breaker auto b -n n"), "{}", held.err);
        let approved = render(&report(Verb::Approve, None)).out;
        assert_eq!(approved, "breaker.spillway.dev/b approved up to epoch 5: a trial is allowed for work/p\n");
        assert!(render(&report(Verb::Auto, Some("no"))).failed);
    }
}
