//! One call of a program, from its arguments to its answer.
//!
//! What always holds: a program starts only after a record of its call is in the audit log, and every admitted call ends in the limits, in
//! the memory of keys and in the log, also if its client goes away.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use spillway_bridge::admission::Admission;
use spillway_bridge::answer::{Answer, Status};
use spillway_bridge::audit::{Caller, Event, RecordedFile, recorded_arguments, recorded_text};
use spillway_bridge::breakers::{BreakerPermits, Breakers};
use spillway_bridge::call::CheckedCall;
use spillway_bridge::definition::{Definition, credential_variable};
use spillway_bridge::idempotency::{Keys, Repeat};
use spillway_bridge::redaction::Secrets;
use spillway_policy::breaker::Moment;
use spillway_wire::sandbox::SandboxSettings;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::answers::{NotRun, PROCESS_RULE, answer, audit_id, breaker_end, broken, busy, no_artifacts, refused, rejected};
use super::audit_log::AuditLog;
use super::call_approval::{Approval, approval, denied_by};
use super::call_files::{CallFiles, TakenFiles};
use super::credentials::CredentialFiles;
use super::private_folder::{make_private, remove};
use super::program_call::ProgramCall;
use super::program_process::{self, ProgramEnd, ProgramJob, RunError};
use super::runnable::Runnable;
use super::served_catalog::{LoadedCatalog, ServedCatalog};
use crate::wire::tools::CallNeeds;

/// After its time limit a program has this long to be ended.
const END_MILLISECONDS: u64 = 10_000;
/// Where programs with the token of a ServiceAccount find the API server.
const API_SERVER_VARIABLES: [&str; 2] = ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"];
/// Where programs look for programs.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The most records that are being written at once. The file takes one after the other.
const MAX_AUDIT_WRITERS: usize = 16;
/// How long the end of the bridge waits for its calls. A program that ignores SIGTERM is killed after two seconds.
const FINISH_TIMEOUT: Duration = Duration::from_secs(20);
/// When to repeat a call whose first one runs.
const REPEAT_MILLISECONDS: u64 = 1000;

/// What programs run in.
#[derive(Clone, Debug)]
pub struct ProgramPlace {
    /// Holds the private folders of calls.
    pub folder: PathBuf,
    /// The sandbox of each.
    pub sandbox: SandboxSettings,
    /// Paths without links that programs cannot read.
    pub closed: Vec<PathBuf>,
}

/// All that a call needs.
#[derive(Debug)]
pub struct Executor {
    served: Arc<ServedCatalog>,
    credentials: CredentialFiles,
    audit: AuditLog,
    /// Writers of records wait here, and not on threads.
    audit_permits: Semaphore,
    admission: Mutex<Admission>,
    breakers: Mutex<Breakers>,
    keys: Mutex<Keys>,
    place: ProgramPlace,
    files: Arc<CallFiles>,
    started: Instant,
    /// The calls in progress.
    calls: TaskTracker,
    /// Ends them.
    stop: CancellationToken,
}

/// A call that was checked.
struct Ready {
    definition: Definition,
    runnable: Runnable,
    granted: Granted,
    credentials: BTreeMap<String, String>,
    /// What is taken out of its answer.
    secrets: Secrets,
    permits: BreakerPermits,
}

impl Executor {
    /// `stop`: ends the calls in progress, and no others begin.
    pub fn new(
        served: Arc<ServedCatalog>,
        credentials: CredentialFiles,
        audit: AuditLog,
        max_running: u32,
        (place, files): (ProgramPlace, Arc<CallFiles>),
        stop: CancellationToken,
    ) -> Self {
        Self {
            served,
            credentials,
            audit,
            audit_permits: Semaphore::new(MAX_AUDIT_WRITERS),
            admission: Mutex::new(Admission::new(max_running)),
            breakers: Mutex::default(),
            keys: Mutex::default(),
            place,
            files,
            started: Instant::now(),
            calls: TaskTracker::new(),
            stop,
        }
    }

    /// The definitions that are served now.
    pub fn served(&self) -> Arc<LoadedCatalog> {
        self.served.now()
    }

    /// The artifacts that wait for their calls.
    pub fn files(&self) -> Arc<CallFiles> {
        self.files.clone()
    }

    /// What is wrong with definitions that are not served for that.
    pub fn faults(&self) -> Vec<String> {
        self.served.faults()
    }

    /// Waits until the calls in progress have ended with their programs.
    pub async fn finish(&self) {
        self.calls.close();
        if tokio::time::timeout(FINISH_TIMEOUT, self.calls.wait()).await.is_err() {
            tracing::error!(calls = self.calls.len(), "calls did not end in time; their programs end later");
        }
    }

    /// Carries out a call, or says what it needs before it runs. If the future is dropped, or `gone` is cancelled, the program is ended.
    pub async fn execute(self: Arc<Self>, call: ProgramCall, gone: CancellationToken) -> Result<Answer, CallNeeds> {
        let end = self.stop.child_token();
        let _guard = end.clone().drop_guard();
        let (calls, ended) = (self.calls.clone(), end.clone());
        // The end of a call is written in any case, so that the work is no part of this future.
        let mut work = calls.spawn(async move { self.carry_out(&call, ended).await });
        let done = tokio::select! {
            done = &mut work => done,
            () = gone.cancelled() => {
                end.cancel();
                work.await
            }
        };
        done.unwrap_or_else(|error| Ok(Answer::not_run(Status::Unknown, "internal", format!("the call failed: {error}"))))
    }

    /// Refuses a call that cannot be read, or that came in a wrong way.
    pub async fn refuse(&self, caller: Caller, rule: &'static str, message: String) -> Answer {
        let call = ProgramCall { caller, provided: None, program: String::new(), arguments: Map::new(), idempotency_key: None };
        let answer = Answer::not_run(Status::Rejected, rule, message);
        let revision = self.served().catalog().revision().to_owned();
        match audit_id() {
            Ok(audit_id) => self.count_if_wrong(&call, Answer { audit_id, revision, ..answer }).await,
            Err(not_run) => *not_run,
        }
    }

    async fn carry_out(&self, call: &ProgramCall, end: CancellationToken) -> Result<Answer, CallNeeds> {
        let audit_id = match audit_id() {
            Ok(audit_id) => audit_id,
            Err(not_run) => return Ok(*not_run),
        };
        let loaded = self.served();
        let revision = loaded.catalog().revision().to_owned();
        let answer = match self.begin(call, &loaded, &audit_id).await {
            Ok(Begun::Needs(needs)) => return Err(needs),
            Ok(Begun::Answered(answer)) => return Ok(Answer::clone(&answer)),
            Ok(Begun::Ready(ready)) => {
                let ended = self.run_admitted(call, &ready, &audit_id, &revision, end).await;
                let answer = Answer { audit_id, revision, ..ended };
                self.lock_admission().end(&ready.definition.name);
                self.lock_breakers().end(&ready.permits, breaker_end(&answer), self.moment());
                self.end_key(call, &answer);
                answer
            }
            Err(not_run) => Answer { audit_id, revision, ..*not_run },
        };
        Ok(self.count_if_wrong(call, answer).await)
    }

    /// A wrong or denied call has a record, unless its caller makes too many of them. A busy answer has none: a caller could fill the disk. What was
    /// started has its own records.
    async fn count_if_wrong(&self, call: &ProgramCall, answer: Answer) -> Answer {
        if !matches!(answer.status, Status::Rejected | Status::Denied) {
            return answer;
        }
        let counted = self.lock_admission().wrong(&call.caller.name, self.now_milliseconds());
        match counted {
            Ok(()) => {
                self.write_refusal(call, &answer).await;
                answer
            }
            Err(full) => Answer { audit_id: answer.audit_id, revision: answer.revision, ..*busy(full) },
        }
    }

    /// Checks a call and admits it.
    async fn begin(&self, call: &ProgramCall, loaded: &LoadedCatalog, audit_id: &str) -> Result<Begun, NotRun> {
        let Some((definition, program)) = loaded.program(&call.program) else {
            let (rule, message) = loaded.unknown();
            return Err(rejected(rule, message));
        };
        let checked = CheckedCall::check(definition, &call.arguments).map_err(refused)?;
        let files: BTreeMap<String, String> = checked.artifacts().map(|(argument, name)| (argument.to_owned(), name.to_owned())).collect();
        let request = call.provided.as_ref().map(|provided| provided.request.as_str());
        let taken = match (self.files.take(request.unwrap_or_default(), files.values().map(String::as_str)), request) {
            (Ok(taken), _) => taken,
            (Err(missing), Some(_)) => return Ok(Begun::Needs(CallNeeds::Files(missing))),
            (Err(_), None) => return Err(no_artifacts(files.into_keys().next())),
        };
        let folder = self.place.folder.join(audit_id);
        let path = |(argument, name): (&String, &String)| (argument.clone(), TakenFiles::path(&folder, name).display().to_string());
        let paths = files.iter().map(path).collect();
        let words = checked.words(definition, &paths).map_err(refused)?;
        if self.stop.is_cancelled() {
            return Err(Box::new(Answer::not_run(Status::Busy, "ending", "the bridge ends")));
        }
        // A repeated call that ran needs no approval: it does not run again.
        let artifacts = taken.recorded();
        if let Some(answer) = self.begin_key(call, &artifacts)? {
            return Ok(Begun::Answered(answer));
        }
        // Nobody is asked about what cannot run now.
        let checked = if definition.requires_approval { program.check(&definition.name).await } else { Ok(()) };
        let approval = checked.and_then(|()| approval(call, definition, loaded.catalog().revision(), (&files, &artifacts)));
        let begun = match approval {
            Ok(Approval::Given(approved_by)) => self.begin_first(call, definition, program, Granted { words, taken, approved_by }).await,
            Ok(Approval::Needed(question)) => Ok(Begun::Needs(CallNeeds::Approval(question))),
            Err(not_run) => Err(not_run),
        };
        match &begun {
            Ok(Begun::Ready(_) | Begun::Answered(_)) => {}
            Ok(Begun::Needs(_)) => self.forget_key(call),
            Err(answer) => self.end_key(call, answer),
        }
        begun
    }

    /// Admits a call that is no repeat.
    async fn begin_first(
        &self,
        call: &ProgramCall,
        definition: &Definition,
        program: &Runnable,
        granted: Granted,
    ) -> Result<Begun, NotRun> {
        let read = self.read_credentials(definition).await;
        let (credentials, secrets) = read.map_err(|message| Box::new(Answer::not_run(Status::SpawnFailed, "credentials", message)))?;
        self.lock_admission().begin(&call.caller.name, definition, self.now_milliseconds()).map_err(busy)?;
        let within = u64::from(definition.timeout_seconds) * 1000;
        let permitted = self.lock_breakers().begin(&call.caller.name, within + END_MILLISECONDS, self.moment());
        let permits = permitted.map_err(|rejection| {
            self.lock_admission().end(&definition.name);
            broken(&rejection)
        })?;
        let (definition, runnable) = (definition.clone(), program.clone());
        Ok(Begun::Ready(Box::new(Ready { definition, runnable, granted, credentials, secrets, permits })))
    }

    /// The answer of the first call with this key, if there was one. Otherwise this is the first, and must [end](Self::end_key).
    fn begin_key(&self, call: &ProgramCall, artifacts: &BTreeMap<String, RecordedFile>) -> Result<Option<Arc<Answer>>, NotRun> {
        let Some(key) = &call.idempotency_key else { return Ok(None) };
        let arguments = json!([call.arguments, artifacts]).to_string();
        let known = self.lock_keys().begin(&call.caller.name, &call.program, key, &arguments, self.now_milliseconds());
        let refused = |status, message: &str| Err(Box::new(Answer::not_run(status, "idempotencyKey", message)));
        match known {
            Repeat::First => Ok(None),
            Repeat::Answered(answer) => Ok(Some(answer)),
            Repeat::AnswerGone => {
                refused(Status::Rejected, "the first call with this idempotencyKey ran, and its answer is not kept any more")
            }
            Repeat::OtherArguments => refused(Status::Rejected, "the first call with this idempotencyKey had other arguments"),
            Repeat::Full => refused(Status::Busy, "too many calls had an idempotencyKey within the last hour"),
            Repeat::Running => {
                let message = "the first call with this idempotencyKey runs; repeat this one to get its answer";
                let answer = Answer::not_run(Status::Busy, "idempotencyKey", message);
                Err(Box::new(Answer { retry_after_milliseconds: Some(REPEAT_MILLISECONDS), ..answer }))
            }
        }
    }

    /// A repeat of a call that started nothing may start something.
    fn end_key(&self, call: &ProgramCall, answer: &Answer) {
        let started_nothing = [Status::Busy, Status::BreakerOpen, Status::Rejected, Status::Denied, Status::SpawnFailed];
        self.end_key_with(call, (!started_nothing.contains(&answer.status)).then(|| answer.clone()));
    }

    fn forget_key(&self, call: &ProgramCall) {
        self.end_key_with(call, None);
    }

    fn end_key_with(&self, call: &ProgramCall, ran: Option<Answer>) {
        let Some(key) = &call.idempotency_key else { return };
        self.lock_keys().end(&call.caller.name, &call.program, key, ran, self.now_milliseconds());
    }

    /// Runs the program of an admitted call.
    async fn run_admitted(&self, call: &ProgramCall, ready: &Ready, audit_id: &str, revision: &str, end: CancellationToken) -> Answer {
        let secrets = &ready.secrets;
        if let Err(answer) = ready.runnable.check(&ready.definition.name).await {
            return *answer;
        }
        let arguments = recorded_arguments(&secrets.remove_from(Value::Object(call.arguments.clone())));
        let (caller, name) = (&call.caller, ready.definition.name.as_str());
        let (artifacts, approved_by) = (&ready.granted.taken.recorded(), ready.granted.approved_by.as_deref());
        let start = Event::Start { audit_id, caller, program: name, revision, arguments: &arguments, artifacts, approved_by };
        if let Err(error) = self.write(&start).await {
            tracing::error!(%error, "the audit log cannot be written; calls are denied");
            return Answer::not_run(Status::SpawnFailed, "audit", "the audit log cannot be written, so that nothing is started");
        }
        let answer = match &ready.runnable {
            Runnable::Program(_) => self.run_in_folder(ready, audit_id, end).await,
            Runnable::Tool(server) => {
                let token = ready.credentials.values().next().map(String::as_str);
                server.call(&ready.definition, &call.arguments, (token, secrets), &end).await
            }
        };
        let Answer { status, exit_code, duration_milliseconds, truncated, .. } = answer;
        if let Err(error) = self.write(&Event::End { audit_id, status, exit_code, duration_milliseconds, truncated }).await {
            tracing::error!(%error, audit_id, "the end of a call is not in the audit log");
        }
        answer
    }

    async fn run_in_folder(&self, ready: &Ready, audit_id: &str, end: CancellationToken) -> Answer {
        let folder = self.place.folder.join(audit_id);
        let made = make_private(&folder).and_then(|()| ready.granted.taken.move_into(&folder));
        let ended = match made {
            Ok(()) => self.run_program(ready, &folder, end).await,
            Err(error) => Err(RunError::NotStarted(error)),
        };
        // It may contain a million files.
        let _ = tokio::task::spawn_blocking(move || remove(&folder)).await;
        match ended {
            Ok(ended) => self.answer(ended, &ready.secrets).await,
            Err(error @ RunError::NotStarted(_)) => Answer::not_run(Status::SpawnFailed, PROCESS_RULE, error.to_string()),
            Err(error @ RunError::Lost(_)) => Answer::not_run(Status::Unknown, PROCESS_RULE, error.to_string()),
        }
    }

    async fn run_program(&self, ready: &Ready, folder: &Path, end: CancellationToken) -> Result<ProgramEnd, RunError> {
        let Definition { command, timeout_seconds, limits, environment, .. } = &ready.definition;
        let home = folder.display().to_string();
        let mut variables: BTreeMap<String, String> = [("PATH", PATH), ("HOME", &home), ("TMPDIR", &home), ("LANG", "C.UTF-8")]
            .map(|(name, value)| (name.into(), value.into()))
            .into();
        if self.credentials.has_token() {
            variables.extend(API_SERVER_VARIABLES.into_iter().filter_map(|name| Some((name.to_owned(), std::env::var(name).ok()?))));
        }
        variables.extend(environment.clone());
        variables.extend(ready.credentials.iter().map(|(name, value)| (credential_variable(name), value.clone())));
        let job = ProgramJob {
            program: command.clone(),
            words: ready.granted.words.clone(),
            timeout_milliseconds: u64::from(*timeout_seconds) * 1000,
            stdout_bytes: limits.stdout_bytes,
            stderr_bytes: limits.stderr_bytes,
            folder: folder.to_owned(),
            sandbox: self.place.sandbox.clone(),
            closed: self.place.closed.clone(),
        };
        program_process::run(&job, &variables, end).await
    }

    /// The answer about a program that ended. The token of the ServiceAccount may be another one than at the start.
    async fn answer(&self, ended: ProgramEnd, secrets: &Secrets) -> Answer {
        let files = self.credentials.clone();
        match tokio::task::spawn_blocking(move || files.read_token()).await {
            Ok(Ok(token)) => answer(ended, &secrets.clone().and(token)),
            Ok(Err(message)) => Answer::not_run(Status::Unknown, "credentials", message),
            Err(error) => Answer::not_run(Status::Unknown, "internal", error.to_string()),
        }
    }

    /// The credentials of a program, and what is taken out of its answer.
    async fn read_credentials(&self, definition: &Definition) -> Result<(BTreeMap<String, String>, Secrets), String> {
        let (files, names) = (self.credentials.clone(), definition.credentials.clone());
        let reading = move || {
            let credentials = files.read(&names)?;
            let secrets = Secrets::new(&credentials).and(files.read_token()?);
            Ok((credentials, secrets))
        };
        let read = tokio::task::spawn_blocking(reading).await;
        read.unwrap_or_else(|error| Err(format!("the credentials cannot be read: {error}")))
    }

    async fn write_refusal(&self, call: &ProgramCall, answer: &Answer) {
        let Answer { status, audit_id, revision, field, rule, .. } = answer;
        let (program, rule) = (recorded_text(&call.program), rule.unwrap_or_default());
        let (caller, field) = (&call.caller, field.as_deref());
        let denied_by = denied_by(call, *status);
        let refused = Event::Refused { audit_id, caller, program: &program, revision, status: *status, field, rule, denied_by };
        if let Err(error) = self.write(&refused).await {
            tracing::error!(%error, "a refused call is not in the audit log");
        }
    }

    async fn write(&self, event: &Event<'_>) -> io::Result<()> {
        // The disk, or the reader of our output, may hang, and must not take all threads.
        let _permit = self.audit_permits.acquire().await.map_err(io::Error::other)?;
        tokio::task::block_in_place(|| self.audit.write(event))
    }

    fn lock_keys(&self) -> std::sync::MutexGuard<'_, Keys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_admission(&self) -> std::sync::MutexGuard<'_, Admission> {
        self.admission.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_breakers(&self) -> std::sync::MutexGuard<'_, Breakers> {
        self.breakers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn moment(&self) -> Moment {
        Moment { now: self.now_milliseconds(), random: spillway_pod::random::fraction() }
    }

    fn now_milliseconds(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// What a call may use.
struct Granted {
    /// The words after the program.
    words: Vec<String>,
    /// Its artifacts.
    taken: TakenFiles,
    /// The user who approved it. None: nobody has to.
    approved_by: Option<String>,
}

/// A call that was begun.
enum Begun {
    /// It runs once the gateway has provided this.
    Needs(CallNeeds),
    /// It runs now.
    Ready(Box<Ready>),
    /// It ran before.
    Answered(Arc<Answer>),
}
