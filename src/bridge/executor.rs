//! One call of a program, from its arguments to its answer.
//!
//! What always holds: a program starts only after a record of its call is in the audit log, and every admitted call ends in the limits, in
//! the memory of keys and in the log, also if its client goes away.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use spillway_bridge::admission::{Admission, Busy};
use spillway_bridge::answer::{Answer, Status};
use spillway_bridge::audit::{Caller, Event, recorded_arguments, recorded_text};
use spillway_bridge::call::CheckedCall;
use spillway_bridge::definition::{Definition, credential_variable};
use spillway_bridge::idempotency::{Keys, Repeat};
use spillway_bridge::redaction::Secrets;
use spillway_wire::sandbox::SandboxSettings;
use tokio_util::sync::CancellationToken;

use super::audit_log::AuditLog;
use super::credentials::CredentialFiles;
use super::pinned_program::PinnedProgram;
use super::program_process::{self, ProgramEnd, ProgramJob};
use super::served_catalog::{LoadedCatalog, ServedCatalog};

/// Where programs look for programs.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// When to repeat a call whose first one runs.
const REPEAT_MILLISECONDS: u64 = 1000;

/// A call of a program, as it came in.
#[derive(Clone, Debug)]
pub struct ProgramCall {
    /// Who calls.
    pub caller: Caller,
    /// Name of the program.
    pub program: String,
    /// Its arguments.
    pub arguments: Map<String, Value>,
    /// A repeated call with the same key gets the answer of the first.
    pub idempotency_key: Option<String>,
}

/// All that a call needs.
#[derive(Debug)]
pub struct Executor {
    served: Arc<ServedCatalog>,
    credentials: CredentialFiles,
    audit: AuditLog,
    admission: Mutex<Admission>,
    keys: Mutex<Keys>,
    /// Holds the private folders of calls.
    folder: PathBuf,
    started: Instant,
}

/// The answer to a call that starts nothing.
type NotRun = Box<Answer>;

/// A call that was checked.
struct Ready {
    definition: Definition,
    program: PinnedProgram,
    words: Vec<String>,
    credentials: BTreeMap<String, String>,
}

impl Executor {
    /// `folder`: an empty folder of this process.
    pub fn new(served: Arc<ServedCatalog>, credentials: CredentialFiles, audit: AuditLog, max_running: u32, folder: PathBuf) -> Self {
        let admission = Mutex::new(Admission::new(max_running));
        Self { served, credentials, audit, admission, keys: Mutex::default(), folder, started: Instant::now() }
    }

    /// The definitions that are served now.
    pub fn served(&self) -> Arc<LoadedCatalog> {
        self.served.now()
    }

    /// Carries out a call. If the future is dropped, or `gone` is cancelled, the program is ended.
    pub async fn execute(self: Arc<Self>, call: ProgramCall, gone: CancellationToken) -> Answer {
        let gone = gone.child_token();
        // The end of a call is written in any case, so that the work is no part of this future.
        let _guard = gone.clone().drop_guard();
        let work = tokio::spawn(async move { self.carry_out(&call, gone).await });
        work.await.unwrap_or_else(|error| Answer::not_run(Status::SpawnFailed, "internal", format!("the call failed: {error}")))
    }

    async fn carry_out(&self, call: &ProgramCall, gone: CancellationToken) -> Answer {
        let audit_id = match spillway_pod::random::key() {
            Ok(key) => key.chars().take(24).collect::<String>(),
            Err(error) => return Answer::not_run(Status::SpawnFailed, "internal", format!("no random bytes: {error}")),
        };
        let loaded = self.served();
        let revision = loaded.catalog().revision().to_owned();
        let answer = match self.begin(call, &loaded).await {
            Ok(Begun::Answered(answer)) => return Answer::clone(&answer),
            Ok(Begun::Ready(ready)) => {
                let ended = self.run_admitted(call, &ready, &audit_id, &revision, gone).await;
                let answer = Answer { audit_id, revision, ..ended };
                self.lock_admission().end(&ready.definition.name);
                self.forget_key_or_keep(call, &answer);
                answer
            }
            Err(not_run) => Answer { audit_id, revision, ..*not_run },
        };
        // A busy answer is not written: a caller could fill the disk with them. What was started has its records.
        if answer.status == Status::Rejected {
            self.write_refusal(call, &answer);
        }
        answer
    }

    /// Checks a call and admits it.
    async fn begin(&self, call: &ProgramCall, loaded: &LoadedCatalog) -> Result<Begun, NotRun> {
        let rejected = |rule, message: String| Box::new(Answer::not_run(Status::Rejected, rule, message));
        self.lock_admission().attempt(&call.caller.name, self.now_milliseconds()).map_err(busy)?;
        let Some((definition, program)) = loaded.program(&call.program) else {
            return Err(rejected("unknownProgram", "there is no such program; list_programs names all".to_owned()));
        };
        if definition.requires_approval {
            let message = format!("{} needs the approval of a person, and this bridge has nobody who approves", definition.name);
            return Err(rejected("approval", message));
        }
        let checked = CheckedCall::check(definition, &call.arguments)
            .and_then(|checked| match checked.artifacts().next() {
                Some((name, _)) => Err(spillway_bridge::call::CallRefused {
                    field: name.to_owned(),
                    rule: "artifact",
                    message: "this bridge has no store of artifacts".to_owned(),
                }),
                None => checked.words(definition, &BTreeMap::new()),
            })
            .map_err(|refused| Box::new(Answer { field: Some(refused.field.clone()), ..*rejected(refused.rule, refused.to_string()) }))?;
        let credentials = self.read_credentials(definition).await;
        let credentials = credentials.map_err(|message| Box::new(Answer::not_run(Status::SpawnFailed, "credentials", message)))?;
        if let Some(key) = &call.idempotency_key {
            match self.begin_key(call, key) {
                Repeat::First => {}
                Repeat::Answered(answer) => return Ok(Begun::Answered(answer)),
                Repeat::Running => {
                    let message = "the first call with this idempotencyKey runs; repeat this one to get its answer";
                    let answer = Answer::not_run(Status::Busy, "idempotencyKey", message);
                    return Err(Box::new(Answer { retry_after_milliseconds: Some(REPEAT_MILLISECONDS), ..answer }));
                }
                Repeat::OtherArguments => {
                    let message = "the first call with this idempotencyKey had other arguments".to_owned();
                    return Err(rejected("idempotencyKey", message));
                }
            }
        }
        if let Err(full) = self.lock_admission().begin(&call.caller.name, definition, self.now_milliseconds()) {
            let answer = busy(full);
            self.forget_key_or_keep(call, &answer);
            return Err(answer);
        }
        let (definition, program) = (definition.clone(), program.clone());
        Ok(Begun::Ready(Box::new(Ready { definition, program, words: checked, credentials })))
    }

    /// Runs the program of an admitted call.
    async fn run_admitted(&self, call: &ProgramCall, ready: &Ready, audit_id: &str, revision: &str, gone: CancellationToken) -> Answer {
        let secrets = Secrets::new(&ready.credentials);
        let program = ready.program.clone();
        // The file may be read.
        let checked = tokio::task::spawn_blocking(move || program.check()).await;
        match checked {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Answer::not_run(Status::Rejected, "commandChanged", error.to_string()),
            Err(error) => return Answer::not_run(Status::Rejected, "internal", error.to_string()),
        }
        let arguments = secrets.remove_from(recorded_arguments(&Value::Object(call.arguments.clone())));
        let (caller, name) = (&call.caller, ready.definition.name.as_str());
        let start = Event::Start { audit_id, caller, program: name, revision, arguments: &arguments };
        if let Err(error) = self.write(&start) {
            tracing::error!(%error, "the audit log cannot be written; calls are denied");
            return Answer::not_run(Status::SpawnFailed, "audit", "the audit log cannot be written, so that no program is started");
        }
        let folder = self.folder.join(audit_id);
        let ended = match make_private(&folder) {
            Ok(()) => self.run_program(ready, &folder, gone).await,
            Err(error) => Err(error),
        };
        remove(&folder);
        let answer =
            ended.map_or_else(|error| Answer::not_run(Status::SpawnFailed, "process", error.to_string()), |ended| answer(ended, &secrets));
        let Answer { status, exit_code, duration_milliseconds, truncated, .. } = answer;
        if let Err(error) = self.write(&Event::End { audit_id, status, exit_code, duration_milliseconds, truncated }) {
            tracing::error!(%error, audit_id, "the end of a call is not in the audit log");
        }
        answer
    }

    async fn run_program(&self, ready: &Ready, folder: &Path, gone: CancellationToken) -> io::Result<ProgramEnd> {
        let Definition { command, timeout_seconds, limits, environment, .. } = &ready.definition;
        let home = folder.display().to_string();
        let mut variables: BTreeMap<String, String> = [("PATH", PATH), ("HOME", &home), ("TMPDIR", &home), ("LANG", "C.UTF-8")]
            .map(|(name, value)| (name.into(), value.into()))
            .into();
        variables.extend(environment.clone());
        variables.extend(ready.credentials.iter().map(|(name, value)| (credential_variable(name), value.clone())));
        let job = ProgramJob {
            program: command.clone(),
            words: ready.words.clone(),
            timeout_milliseconds: u64::from(*timeout_seconds) * 1000,
            stdout_bytes: limits.stdout_bytes,
            stderr_bytes: limits.stderr_bytes,
            folder: folder.to_owned(),
            sandbox: SandboxSettings::default(),
        };
        program_process::run(&job, &variables, gone).await
    }

    async fn read_credentials(&self, definition: &Definition) -> Result<BTreeMap<String, String>, String> {
        let (files, names) = (self.credentials.clone(), definition.credentials.clone());
        let read = tokio::task::spawn_blocking(move || files.read(&names)).await;
        read.unwrap_or_else(|error| Err(format!("the credentials cannot be read: {error}")))
    }

    fn begin_key(&self, call: &ProgramCall, key: &str) -> Repeat {
        let arguments = Value::Object(call.arguments.clone()).to_string();
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        keys.begin(&call.caller.name, &call.program, key, &arguments, self.now_milliseconds())
    }

    /// A repeat of a call that started nothing may start something.
    fn forget_key_or_keep(&self, call: &ProgramCall, answer: &Answer) {
        let Some(key) = &call.idempotency_key else { return };
        let ran = !matches!(answer.status, Status::Busy | Status::Rejected | Status::SpawnFailed);
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        keys.end(&call.caller.name, &call.program, key, ran.then(|| answer.clone()), self.now_milliseconds());
    }

    fn write_refusal(&self, call: &ProgramCall, answer: &Answer) {
        let Answer { status, audit_id, revision, field, rule, .. } = answer;
        let (program, rule) = (recorded_text(&call.program), rule.unwrap_or_default());
        let (caller, field) = (&call.caller, field.as_deref());
        let refused = Event::Refused { audit_id, caller, program: &program, revision, status: *status, field, rule };
        if let Err(error) = self.write(&refused) {
            tracing::error!(%error, "a refused call is not in the audit log");
        }
    }

    fn write(&self, event: &Event<'_>) -> io::Result<()> {
        // It waits for the disk. The other calls go on, on other threads.
        tokio::task::block_in_place(|| self.audit.write(event))
    }

    fn lock_admission(&self) -> std::sync::MutexGuard<'_, Admission> {
        self.admission.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_milliseconds(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// A call that was begun.
enum Begun {
    /// It runs now.
    Ready(Box<Ready>),
    /// It ran before.
    Answered(Arc<Answer>),
}

fn busy(Busy { rule, retry_after_milliseconds }: Busy) -> NotRun {
    let wait = Duration::from_millis(retry_after_milliseconds);
    let message = format!("the limit {rule} is reached; try again in {} s", wait.as_secs_f64().ceil());
    Box::new(Answer { retry_after_milliseconds: Some(retry_after_milliseconds), ..Answer::not_run(Status::Busy, rule, message) })
}

fn answer(ended: ProgramEnd, secrets: &Secrets) -> Answer {
    let ProgramEnd { exit_code, timed_out, cancelled, not_started, stdout, stderr, truncated, duration_milliseconds } = ended;
    let status = match (&not_started, exit_code) {
        (Some(_), _) => Status::SpawnFailed,
        _ if timed_out => Status::Timeout,
        _ if cancelled => Status::Cancelled,
        (None, Some(0)) => Status::Ok,
        (None, Some(_) | None) => Status::Nonzero,
    };
    Answer {
        status,
        exit_code,
        stdout: secrets.remove(stdout),
        stderr: secrets.remove(stderr),
        truncated,
        duration_milliseconds,
        audit_id: String::new(),
        revision: String::new(),
        field: None,
        rule: not_started.as_ref().map(|_| "process"),
        message: not_started,
        retry_after_milliseconds: None,
    }
}

/// A folder that only our user can read.
pub(super) fn make_private(folder: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(folder)
}

fn remove(folder: &Path) {
    if let Err(error) = fs::remove_dir_all(folder)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(%error, folder = %folder.display(), "the private folder of a call cannot be removed");
    }
}
