//! `spillway source`: issues of a forge with a label become items of work, and their ends are told on the issues.
//!
//! It is a process of the team, with the team's rights: it makes, cancels and deletes its own items in one namespace, and nothing else.
//! It keeps nothing in memory from one poll to the next.
//!
//! | file | for |
//! |---|---|
//! | `mod` | the loop: poll, plan, carry out |
//! | [`plan`] | what is to be done. Pure |
//! | [`forge`] | the APIs of the forges. Pure |
//! | [`issue_item`] | an issue as an item, and the end of an item as a comment. Pure |
//! | [`http`] | one request to a forge |

pub mod forge;
pub mod http;
pub mod issue_item;
pub mod plan;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use self::forge::{Forge, Issue};
use self::http::{ForgeClient, ForgeError, read_certificates};
use self::issue_item::{Target, answered, comment, mark, source_id, sourced};
use self::plan::{SourcedItem, Step, plan};
use crate::api::WorkItem;
use crate::api::names::{SOURCE_LABEL, managers};
use crate::cluster::background_writes::ForegroundWrites;
use crate::cluster::{Class, calls, connect};
use crate::telemetry::Metrics;

/// The most pages of a list that are read: more issues than any queue takes.
const MAX_PAGES: usize = 40;
/// The longest wait after failures.
const MAX_BACKOFF: Duration = Duration::from_secs(900);

/// The settings of the process.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The repository.
    pub forge: Forge,
    /// File with the forge's token.
    pub token: PathBuf,
    /// File with certificates to trust, in addition to the public authorities.
    pub ca: Option<PathBuf>,
    /// Where items are made.
    pub target: Target,
    /// Between two polls.
    pub interval: Duration,
    /// Polls once, and ends.
    pub once: bool,
}

/// Runs until `stop`, or polls once.
pub async fn run(settings: Settings, stop: CancellationToken) -> anyhow::Result<()> {
    let user_agent = format!("spillway-source/{}", crate::VERSION);
    let client = connect::connect(&user_agent, Metrics::default(), ForegroundWrites::default())
        .await
        .context("cannot connect to the API server: set KUBECONFIG, or give this pod a ServiceAccount")?;
    let forge_client = ForgeClient::new(settings.token.clone(), &read_certificates(settings.ca.as_deref())?)?;
    let source = Source { settings, client, forge_client };
    let mut failures = 0_u32;
    loop {
        let wait = match source.poll().await {
            Ok(failed) if failed > 0 && source.settings.once => anyhow::bail!("{failed} steps failed: the log says which"),
            Ok(_) => {
                failures = 0;
                source.settings.interval
            }
            Err(error) if source.settings.once => return Err(error.into()),
            Err(error) => {
                failures = failures.saturating_add(1);
                tracing::warn!(%error, "the forge or the cluster cannot be asked now; trying again");
                let backoff = source.settings.interval.saturating_mul(2_u32.saturating_pow(failures.min(16))).min(MAX_BACKOFF);
                if let ForgeError::Wait(wait) = error { wait.max(source.settings.interval) } else { backoff }
            }
        };
        if source.settings.once {
            return Ok(());
        }
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = stop.cancelled() => return Ok(()),
        }
    }
}

struct Source {
    settings: Settings,
    client: Client,
    forge_client: ForgeClient,
}

impl Source {
    fn items(&self) -> Api<WorkItem> {
        Api::namespaced(self.client.clone(), &self.settings.target.namespace)
    }

    /// Polls once. Returns the number of steps that failed: they keep back neither the others nor the next poll, because a step may fail
    /// for ever, such as a comment on a locked issue.
    async fn poll(&self) -> Result<usize, ForgeError> {
        let issues = self.issues().await?;
        let selector = format!("{SOURCE_LABEL}={}", source_id(&self.settings.forge));
        let listed = self.items().list(&ListParams::default().labels(&selector)).await.context("listing the items")?;
        let items: BTreeMap<String, WorkItem> = listed.items.into_iter().map(|item| (item.name_any(), item)).collect();
        let known: Vec<SourcedItem> = items.values().filter_map(sourced).collect();
        let mut failed = 0;
        for step in plan(&issues, &known) {
            if let Err(error) = self.carry_out(&step, &issues, &items).await {
                if let ForgeError::Wait(_) = error {
                    return Err(error);
                }
                tracing::warn!(?step, %error, "a step failed");
                failed += 1;
            }
        }
        Ok(failed)
    }

    /// All open issues with the label.
    async fn issues(&self) -> Result<Vec<Issue>, ForgeError> {
        let forge = &self.settings.forge;
        let mut all = Vec::new();
        for page in 1..=MAX_PAGES {
            let answer = self.forge_client.send(forge, forge.issues(page)).await?;
            let (issues, more) = forge.read_issues(&answer).map_err(|error| anyhow::anyhow!(error))?;
            all.extend(issues);
            if !more {
                break;
            }
        }
        Ok(all)
    }

    async fn carry_out(&self, step: &Step, issues: &[Issue], items: &BTreeMap<String, WorkItem>) -> Result<(), ForgeError> {
        let (forge, target) = (&self.settings.forge, &self.settings.target);
        match step {
            Step::Create(number) => {
                let Some(issue) = issues.iter().find(|issue| issue.number == *number) else { return Ok(()) };
                let item = issue_item::item(forge, issue, target).context("the item of an issue")?;
                match calls::create(&self.items(), &item, managers::SOURCE).await {
                    Ok(_) => tracing::info!(issue = number, item = item.name_any(), "an issue is an item"),
                    Err(error) if error.class() == Class::AlreadyExists => {}
                    Err(error) => return Err(anyhow::Error::new(error).context("creating an item").into()),
                }
            }
            Step::Answer(name) => {
                let Some(item) = items.get(name) else { return Ok(()) };
                if let Some(known) = sourced(item) {
                    self.answer(item, &known).await?;
                }
            }
            Step::Renew(name) => {
                let uid = items.get(name).and_then(|item| item.uid()).unwrap_or_default();
                calls::delete(&self.items(), name, &uid, None).await.context("deleting an item")?;
                tracing::info!(item = name, "the label was put again: the item is deleted, and the next poll makes another one");
            }
            Step::CancelIfWithdrawn(name) => {
                let Some(item) = items.get(name) else { return Ok(()) };
                let Some(known) = sourced(item) else { return Ok(()) };
                // A list may lack an issue for other reasons.
                if self.issue(known.number).await?.is_none_or(|issue| !issue.is_work()) {
                    let (uid, version) = (item.uid().unwrap_or_default(), item.resource_version().unwrap_or_default());
                    let spec = json!({"cancelRequested": true});
                    calls::patch_spec(&self.items(), name, (&uid, &version), managers::SOURCE, spec).await.context("cancelling an item")?;
                    tracing::info!(item = name, issue = known.number, "the issue is closed or has lost its label: the item is cancelled");
                }
            }
        }
        Ok(())
    }

    /// An issue as it is now. None: it does not exist any more.
    async fn issue(&self, number: u64) -> Result<Option<Issue>, ForgeError> {
        let forge = &self.settings.forge;
        match self.forge_client.send(forge, forge.issue(number)).await {
            Ok(answer) => Ok(Some(forge.read_issue(&answer).map_err(|error| anyhow::anyhow!(error))?)),
            Err(ForgeError::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Tells the end of an item. Each of the three effects may be repeated.
    async fn answer(&self, item: &WorkItem, known: &SourcedItem) -> Result<(), ForgeError> {
        let (forge, number) = (&self.settings.forge, known.number);
        // Without the issue there is nobody to tell.
        if let Some(issue) = self.issue(number).await? {
            if !self.is_told(number, &mark(&known.uid)).await? {
                let text = comment(item, &self.settings.target.namespace);
                self.forge_client.send(forge, forge.comment(number, &text)).await?;
            }
            if issue.labelled {
                self.forge_client.send(forge, forge.unlabel(&issue)).await?;
            }
        }
        calls::annotate(&self.items(), &known.name, managers::SOURCE, answered()).await.context("marking an item")?;
        tracing::info!(issue = number, item = known.name, "the end of an item is told");
        Ok(())
    }

    async fn is_told(&self, number: u64, mark: &str) -> Result<bool, ForgeError> {
        let forge = &self.settings.forge;
        for page in 1..=MAX_PAGES {
            let answer = self.forge_client.send(forge, forge.comments(number, page)).await?;
            let (texts, more) = forge.read_comments(&answer).map_err(|error| anyhow::anyhow!(error))?;
            if texts.iter().any(|text| text.contains(mark)) {
                return Ok(true);
            }
            if !more {
                break;
            }
        }
        Ok(false)
    }
}
