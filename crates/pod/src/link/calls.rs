//! The calls to the gateway, and the tasks for calls that the state does not schedule: the long poll, the delivery of a goodbye,
//! and requests of the program.

use std::sync::Arc;
use std::time::Duration;

use spillway_policy::backoff;
use spillway_sandbox::container;
use spillway_sandbox::kernel::Kernel;
use spillway_wire::agent::{Acknowledgement, Goodbye, Register, Report, Spawn, Spawned};
use spillway_wire::budget::{AskTokens, RemainingTokens};
use spillway_wire::command::{EndTry, TryAnswer, TryCommand};
use spillway_wire::follow::{Inbox, InboxQuery, ListWork, WorkList};
use spillway_wire::link::Answer as Reply;
use spillway_wire::plan::{Plan, Planned};
use spillway_wire::sandbox::SANDBOX_VARIABLE;
use spillway_wire::text::percent_escape;
use spillway_wire::work::{Assignment, Claim, LeaseRef, MAX_CLAIM_WAIT_SECONDS, Outcome, ProgressUpdate, Submit, Submitted};
use spillway_wire::{Code, Refusal};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, timeout_at};

use super::gateway::{Answer, Call, Gateway, Silence, not_understood};
use super::input::Input;
use super::retry::{CALL_RETRY_BACKOFF, CallOutcome, is_final};
use crate::{VERSION, random};

/// Time limit of a call that is answered at once.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit of the long poll, which is answered within 30 s.
const LONG_POLL_TIMEOUT: Duration = Duration::from_secs(40);
/// Time limit of a claim, which is answered soon after its waiting time.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(MAX_CLAIM_WAIT_SECONDS as u64 + 10);
/// Time limit of a request of the program, with all repetitions. The socket waits longer for an answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(25);
/// Time limit of the request to try a command. A command waits no longer for it.
const COMMAND_TRY_TIMEOUT: Duration = Duration::from_secs(5);
/// The most seconds that a request for the inbox waits, so that the answer comes within the time limit of the socket.
const MAX_INBOX_WAIT_SECONDS: u32 = 15;
/// Between the starts of two long polls, also if the gateway answers at once.
const MIN_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Requests of the program that are made at once ...
const MAX_CONCURRENT_SPAWNS: usize = 4;
/// ... each of which takes at least this long, and each goodbye too. A gateway limits the calls of an agent, and requests of the
/// program must leave room for the reports.
const MIN_REQUEST_INTERVAL: Duration = Duration::from_millis(500);
/// The longest wait that a gateway may ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);
/// The most characters of an idempotency key.
const MAX_IDEMPOTENCY_KEY_CHARS: usize = 128;

/// `register`; without a sandbox for an agent `outside` the cluster.
pub fn register(outside: bool) -> Call {
    // Both containers have the same kernel and settings. The supervisor starts no program without the sandbox that is reported here.
    let settings = std::env::var_os(SANDBOX_VARIABLE).map(|settings| settings.to_string_lossy().into_owned());
    let sandbox = (!outside).then(|| container::report(settings.as_deref(), &Kernel::probe()));
    let register = Register { version: VERSION.to_owned(), sandbox };
    Call::post("/agent/v1/register", json(&register), CALL_TIMEOUT)
}

/// `report`.
pub fn report(report: &Report) -> Call {
    Call::post("/agent/v1/report", json(report), CALL_TIMEOUT)
}

/// `work/claim`.
pub fn claim(wait_seconds: u32) -> Call {
    Call::post("/agent/v1/work/claim", json(&Claim { wait_seconds }), CLAIM_TIMEOUT)
}

/// `work/{uid}/progress`.
pub fn advance(held: &LeaseRef, advance: &ProgressUpdate) -> Call {
    Call::post(&format!("/agent/v1/work/{}/progress", percent_escape(&held.uid)), json(advance), CALL_TIMEOUT)
}

/// `work/{uid}/complete`, `fail` or `release`.
pub fn finish(held: &LeaseRef, outcome: &Outcome) -> Call {
    let (verb, body) = outcome.verb_and_body(held.epoch);
    Call::post(&format!("/agent/v1/work/{}/{verb}", percent_escape(&held.uid)), json(&body), CALL_TIMEOUT)
}

/// The outcome of a claim.
pub fn claim_outcome(result: &Result<Answer, Silence>) -> CallOutcome<Option<Assignment>> {
    match result {
        Ok(Answer::Done(body)) => match serde_json::from_slice(body) {
            Ok(assignment) => CallOutcome::Done(Some(assignment)),
            Err(error) => CallOutcome::Refused(not_understood(&error)),
        },
        Ok(Answer::Nothing) => CallOutcome::Done(None),
        Ok(Answer::Refused(refusal)) => CallOutcome::Refused(refusal.clone()),
        Err(_) => CallOutcome::Silence,
    }
}

/// The outcome of a call about an item.
pub fn taken(result: &Result<Answer, Silence>) -> CallOutcome<()> {
    match result {
        Ok(Answer::Done(_) | Answer::Nothing) => CallOutcome::Done(()),
        Ok(Answer::Refused(refusal)) => CallOutcome::Refused(refusal.clone()),
        Err(_) => CallOutcome::Silence,
    }
}

fn goodbye(goodbye: &Goodbye) -> Call {
    Call::post("/agent/v1/goodbye", json(goodbye), CALL_TIMEOUT)
}

/// JSON can express each value of our types.
fn json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

/// The wait that the gateway asks for.
pub fn retry_after(result: &Result<Answer, Silence>) -> Duration {
    match result {
        Ok(Answer::Refused(refusal)) => Duration::from_secs(refusal.retry_after_seconds.unwrap_or(0).into()).min(MAX_RETRY_AFTER),
        Ok(Answer::Done(_) | Answer::Nothing) | Err(_) => Duration::ZERO,
    }
}

/// The pause before the next try.
fn pause(failures: u32, result: &Result<Answer, Silence>) -> Duration {
    backoff::delay(failures, CALL_RETRY_BACKOFF.0, CALL_RETRY_BACKOFF.1, random::fraction()).max(retry_after(result))
}

/// Polls for a desired state newer than the known revision, for ever. While no revision is known, it waits.
pub async fn wait(gateway: Arc<Gateway>, mut revision: watch::Receiver<Option<String>>, inputs: mpsc::Sender<Input>) {
    let mut failures = 0_u32;
    loop {
        let beyond = match revision.wait_for(Option::is_some).await {
            Ok(known) => known.clone().unwrap_or_default(),
            Err(_) => return,
        };
        let began = Instant::now();
        let result = gateway.call(&Call::get(format!("/agent/v1/wanted?after={}", percent_escape(&beyond)), LONG_POLL_TIMEOUT)).await;
        let wait = match &result {
            Ok(Answer::Done(_) | Answer::Nothing) => {
                failures = 0;
                MIN_POLL_INTERVAL.saturating_sub(began.elapsed())
            }
            Ok(Answer::Refused(_)) | Err(_) => {
                failures = failures.saturating_add(1);
                pause(failures, &result)
            }
        };
        if inputs.send(Input::LongPolled(result)).await.is_err() {
            return;
        }
        sleep(wait).await;
    }
}

/// Sends the goodbye in the journal until it is accepted or refused for good, and then waits for another one.
pub async fn deliver(gateway: Arc<Gateway>, mut kept: watch::Receiver<Option<Goodbye>>, inputs: mpsc::Sender<Input>) {
    let mut failures = 0_u32;
    loop {
        let said = match kept.wait_for(Option::is_some).await {
            Ok(said) => said.clone(),
            Err(_) => return,
        };
        let Some(said) = said else { continue };
        let began = Instant::now();
        let result = gateway.call(&goodbye(&said)).await;
        let over = match &result {
            Ok(Answer::Done(_) | Answer::Nothing) => true,
            Ok(Answer::Refused(refusal)) => is_final(refusal.code),
            Err(_) => false,
        };
        failures = if over { 0 } else { failures.saturating_add(1) };
        let wait = pause(failures.max(1), &result);
        kept.mark_unchanged();
        if inputs.send(Input::Delivered(said, result)).await.is_err() {
            return;
        }
        // After an accepted or refused goodbye the loop clears it. That is a change too, as a new goodbye is.
        tokio::select! {
            changed = kept.changed() => if changed.is_err() { return },
            () = sleep(wait) => {}
        }
        sleep(MIN_REQUEST_INTERVAL.saturating_sub(began.elapsed())).await;
    }
}

/// The limit of concurrent requests of the program.
#[derive(Clone, Debug)]
pub struct Spawning(Arc<Semaphore>);

impl Default for Spawning {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_CONCURRENT_SPAWNS)))
    }
}

/// A request of the program, which waits for the answer.
pub struct Delivery {
    call: Call,
    read: fn(&[u8]) -> serde_json::Result<Reply>,
    spawning: Spawning,
}

impl Delivery {
    /// A request for a child agent, with an idempotency key.
    pub fn spawn(key: String, request: &Spawn, spawning: Spawning) -> Result<Self, Refusal> {
        let call = keyed(Call::post("/agent/v1/agents", json(request), CALL_TIMEOUT), key)?;
        Ok(Self { call, read: |body| serde_json::from_slice::<Spawned>(body).map(Reply::Spawned), spawning })
    }

    /// A request to queue an item, with an idempotency key.
    pub fn submit(key: String, request: &Submit, spawning: Spawning) -> Result<Self, Refusal> {
        let call = keyed(Call::post("/agent/v1/work", json(request), CALL_TIMEOUT), key)?;
        Ok(Self { call, read: |body| serde_json::from_slice::<Submitted>(body).map(Reply::Submitted), spawning })
    }

    /// A request to queue a plan, with an idempotency key.
    pub fn plan(key: String, request: &Plan, spawning: Spawning) -> Result<Self, Refusal> {
        let call = keyed(Call::post("/agent/v1/plan", json(request), CALL_TIMEOUT), key)?;
        Ok(Self { call, read: |body| serde_json::from_slice::<Planned>(body).map(Reply::Planned), spawning })
    }

    /// A request for the items that the agents of the pool submitted.
    pub fn list(request: &ListWork, listening: Spawning) -> Self {
        let ListWork { submitted_by, group, plan } = request;
        let query = query(&[("submittedBy", submitted_by.as_deref()), ("group", group.as_deref()), ("plan", plan.as_deref())]);
        let call = Call::get(format!("/agent/v1/work{query}"), CALL_TIMEOUT);
        Self { call, read: |body| serde_json::from_slice::<WorkList>(body).map(Reply::Listed), spawning: listening }
    }

    /// A request for the messages of the inbox.
    pub fn inbox(request: &InboxQuery, listening: Spawning) -> Self {
        let wait = request.wait_seconds.min(MAX_INBOX_WAIT_SECONDS);
        let query = query(&[("after", request.after.as_deref()), ("waitSeconds", Some(&wait.to_string()))]);
        let call = Call::get(format!("/agent/v1/inbox{query}"), CALL_TIMEOUT + Duration::from_secs(wait.into()));
        Self { call, read: |body| serde_json::from_slice::<Inbox>(body).map(Reply::Inbox), spawning: listening }
    }

    /// A request for what is left of the budgets over the agent.
    pub fn budget(listening: Spawning) -> Self {
        let call = Call::get("/agent/v1/budget".to_owned(), CALL_TIMEOUT);
        Self { call, read: |body| serde_json::from_slice::<RemainingTokens>(body).map(Reply::Budget), spawning: listening }
    }

    /// A request for more tokens. A repetition changes nothing.
    pub fn ask_tokens(request: &AskTokens, spawning: Spawning) -> Self {
        let call = Call::post("/agent/v1/budget/request", json(request), CALL_TIMEOUT);
        Self { call, read: |body| serde_json::from_slice::<Acknowledgement>(body).map(|Acknowledgement {}| Reply::Done), spawning }
    }

    /// Repeats the call until an answer is final, or no time is left.
    pub async fn carry(self, gateway: Arc<Gateway>, inputs: mpsc::Sender<Input>, reply: oneshot::Sender<Reply>) {
        let end = Instant::now() + REQUEST_TIMEOUT;
        let mut failures = 0_u32;
        let mut answer = Reply::Refused(Refusal::new(Code::GovernorAway, "no gateway answers; try again with the same key"));
        let place = timeout_at(end, self.spawning.0.acquire()).await;
        let began = Instant::now();
        // The caller may have gone: then the call is not repeated.
        while !reply.is_closed()
            && let Ok(result) = timeout_at(end, gateway.call(&self.call)).await
        {
            let over = match &result {
                Ok(Answer::Done(body)) => {
                    answer = (self.read)(body).unwrap_or_else(|error| Reply::Refused(not_understood(&error)));
                    true
                }
                Ok(Answer::Nothing) => {
                    answer = Reply::Done;
                    true
                }
                Ok(Answer::Refused(refusal)) => {
                    answer = Reply::Refused(refusal.clone());
                    is_final(refusal.code)
                }
                Err(_) => false,
            };
            failures = failures.saturating_add(1);
            let wait = pause(failures, &result);
            let _ = inputs.send(Input::Carried(result)).await; // we are ending
            if over || Instant::now() + wait >= end {
                break;
            }
            sleep(wait).await;
        }
        let _ = reply.send(answer); // the caller may have gone
        sleep(MIN_REQUEST_INTERVAL.saturating_sub(began.elapsed())).await;
        drop(place);
    }
}

/// Asks the governor for the right to try a command, for as long as the command waits.
pub async fn try_command(gateway: Arc<Gateway>, inputs: mpsc::Sender<Input>, command: TryCommand, reply: oneshot::Sender<Reply>) {
    let call = Call::post("/agent/v1/commands/try", json(&command), CALL_TIMEOUT);
    let body = call_until_final(&gateway, &inputs, &call, COMMAND_TRY_TIMEOUT).await;
    let answer = body.and_then(|body| serde_json::from_slice::<TryAnswer>(&body).ok()).map(|tried| match tried {
        TryAnswer::Permit(permit) => Ok(permit),
        TryAnswer::Rejected(rejected) => Err(rejected),
    });
    let _ = inputs.send(Input::TryAnswered(command, answer, reply)).await; // we are ending
}

/// Reports the end of a tried command. Without a report, it counts as failed after its time limit.
pub async fn end_try(gateway: Arc<Gateway>, inputs: mpsc::Sender<Input>, told: EndTry) {
    let call = Call::post("/agent/v1/commands/end", json(&told), CALL_TIMEOUT);
    drop(call_until_final(&gateway, &inputs, &call, REQUEST_TIMEOUT).await);
}

/// Repeats a call until an answer is final or the time is over; returns the body of a successful answer.
async fn call_until_final(gateway: &Gateway, inputs: &mpsc::Sender<Input>, call: &Call, within: Duration) -> Option<Vec<u8>> {
    let end = Instant::now() + within;
    let mut failures = 0_u32;
    while let Ok(result) = timeout_at(end, gateway.call(call)).await {
        failures = failures.saturating_add(1);
        let wait = pause(failures, &result);
        let over = match &result {
            Ok(Answer::Done(body)) => Some(Some(body.to_vec())),
            Ok(Answer::Nothing) => Some(None),
            Ok(Answer::Refused(refusal)) => is_final(refusal.code).then_some(None),
            Err(_) => None,
        };
        let _ = inputs.send(Input::Carried(result)).await; // we are ending
        if let Some(body) = over {
            return body;
        }
        if Instant::now() + wait >= end {
            return None;
        }
        sleep(wait).await;
    }
    None
}

/// The query string of the pairs that have a value.
fn query(pairs: &[(&str, Option<&str>)]) -> String {
    let pairs = pairs.iter().filter_map(|(name, value)| value.map(|value| format!("{name}={}", percent_escape(value))));
    let pairs: Vec<String> = pairs.collect();
    if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) }
}

fn keyed(call: Call, key: String) -> Result<Call, Refusal> {
    if key.is_empty() || key.len() > MAX_IDEMPOTENCY_KEY_CHARS || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        let message = format!("key: must have 1 to {MAX_IDEMPOTENCY_KEY_CHARS} printable ASCII characters, without spaces");
        return Err(Refusal::new(Code::InvalidBody, message).field("key"));
    }
    Ok(call.key(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_cannot_be_a_header_is_refused_by_name() {
        let request = Spawn { pool: "p".into(), display_name: None };
        for key in ["", "a b", "a\nb", "\u{e9}", &"x".repeat(129)] {
            let refused = Delivery::spawn(key.to_owned(), &request, Spawning::default());
            assert_eq!(refused.err().and_then(|refusal| refusal.field).as_deref(), Some("key"));
        }
        assert!(Delivery::spawn("k-1".into(), &request, Spawning::default()).is_ok());
    }

    #[test]
    fn a_query_names_what_has_a_value() {
        assert_eq!(query(&[("a", None)]), "");
        assert_eq!(query(&[("a", Some("1")), ("b", None), ("c", Some("x&y=z"))]), "?a=1&c=x%26y%3Dz");
    }

    #[test]
    fn a_new_leader_that_does_not_know_us_yet_loses_no_goodbye() {
        assert!(!is_final(Code::NotAnAgent) && !is_final(Code::InvalidToken) && is_final(Code::AgentEnded));
    }
}
