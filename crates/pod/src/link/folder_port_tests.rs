//! The steps of the agent's container against the port, over a real socket and a real folder.

use std::fs;

use hyper::Method;
use spillway_wire::changeset::reasons;
use tokio::net::TcpListener;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::*;
use crate::agent::changeset::StepResult;
use crate::agent::home::Home;
use crate::command::folder::apply::attempt;
use crate::command::folder::compare::Comparison;
use crate::command::folder::copy::copy;
use crate::command::folder::port::{Failure, request};
use crate::command::git::samples::{Folder as TestFolder, folder};
use crate::samples;

/// The claim and the path of the folder.
const NAME: &str = "data/site";

/// A port for the folder `site` of a volume.
struct Served {
    volume: TestFolder,
    url: String,
    folder: watch::Sender<Option<String>>,
    item: watch::Sender<Option<LeaseRef>>,
    commit: watch::Sender<Option<PendingCommit>>,
    threads: Arc<Semaphore>,
}

impl Served {
    async fn start() -> Self {
        let volume = folder("volume");
        fs::create_dir_all(volume.0.join("site/sub")).expect("folders");
        fs::write(volume.0.join("site/one"), "1").expect("a file");
        fs::write(volume.0.join("site/sub/two"), "2").expect("a file");
        let (folder, item, commit) =
            (watch::channel(Some(NAME.to_owned())).0, watch::channel(Some(samples::assignment(1).held)).0, watch::channel(None).0);
        let port = FolderPort::new(volume.0.clone(), Some(NAME.to_owned()), folder.subscribe(), item.subscribe(), commit.subscribe());
        let threads = port.threads.clone();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/folder", listener.local_addr().expect("an address"));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(port.clone().serve(stream));
            }
        });
        Self { volume, url, folder, item, commit, threads }
    }

    fn content(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.volume.0.join("site").join(path)).ok()
    }

    /// Waits until so many threads are free. A thread ends a moment after the answer that it wrote.
    async fn free_threads(&self, count: usize) {
        while self.threads.available_permits() != count {
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// The status of an answer.
    async fn status(&self, method: Method, path: &str) -> u16 {
        let url = self.url.replace("/folder", path);
        spawn_blocking(move || request(&url, method, None).expect("an answer").status.as_u16()).await.expect("asked")
    }
}

/// A workspace with the base of its copy.
struct Workspace {
    root: TestFolder,
    own: TestFolder,
    base: String,
}

impl Workspace {
    async fn copied(served: &Served) -> Self {
        let (root, own, url) = (folder("workspace"), folder("own"), served.url.clone());
        let paths = (root.0.clone(), own.0.clone());
        let base = spawn_blocking(move || copy(&url, &paths.0, &paths.1, &Home::default())).await.expect("run").expect("a copy");
        Self { root, own, base }
    }

    fn compare(&self) -> PendingCommit {
        let comparison = Comparison {
            workspace: self.root.0.clone(),
            own: self.own.0.clone(),
            base: self.base.clone(),
            folder: NAME.to_owned(),
            protect: Vec::new(),
            max_bytes: None,
            files: Vec::new(),
        };
        let Ok(StepResult::Made { commit, .. }) = comparison.make() else { panic!("there are changes") };
        commit
    }

    async fn apply(&self, served: &Served) -> Result<StepResult, Failure> {
        let (url, own) = (served.url.clone(), self.own.0.clone());
        spawn_blocking(move || attempt(&url, &own)).await.expect("run")
    }
}

#[tokio::test]
async fn announced_changes_are_made_once_and_a_second_item_of_the_same_base_conflicts() {
    let served = Served::start().await;
    let (first, second) = (Workspace::copied(&served).await, Workspace::copied(&served).await);
    assert_eq!(first.base, second.base);
    assert_eq!(fs::read_to_string(first.root.0.join("sub/two")).expect("copied"), "2");
    fs::write(first.root.0.join("one"), "first").expect("changed");
    fs::remove_dir_all(first.root.0.join("sub")).expect("removed");
    fs::write(first.root.0.join("new"), "x".repeat(300_000)).expect("a file");
    fs::write(second.root.0.join("one"), "second").expect("changed");
    fs::write(second.root.0.join("other"), "").expect("a file");
    served.commit.send_replace(Some(first.compare()));
    for _ in 0..2 {
        assert!(matches!(first.apply(&served).await, Ok(StepResult::Pushed)), "an answer may be lost");
        assert_eq!((served.content("one").as_deref(), served.content("sub/two")), (Some("first"), None));
        assert_eq!(served.content("new").map(|content| content.len()), Some(300_000));
    }
    served.commit.send_replace(Some(second.compare()));
    let Ok(StepResult::Refused(failure)) = second.apply(&served).await else { panic!("a conflict") };
    assert_eq!(failure.reason, reasons::CHANGESET_CONFLICT);
    assert!(failure.message.contains("work began from: one. The next attempt"), "{}", failure.message);
    assert_eq!((served.content("one").as_deref(), served.content("other")), (Some("first"), None));
}

#[tokio::test]
async fn changes_that_are_not_those_announced_are_not_made() {
    let served = Served::start().await;
    let workspace = Workspace::copied(&served).await;
    fs::write(workspace.root.0.join("one"), "forged").expect("changed");
    let made = workspace.compare();
    served.commit.send_replace(Some(PendingCommit { new: "0".repeat(64), ..made }));
    let Err(Failure::Passing(error)) = workspace.apply(&served).await else { panic!("refused") };
    assert!(error.contains("digest"), "{error}");
    served.commit.send_replace(None);
    let Err(Failure::Passing(error)) = workspace.apply(&served).await else { panic!("refused") };
    assert_eq!(error, "no changes are announced");
    assert_eq!(served.content("one").as_deref(), Some("1"));
}

#[tokio::test]
async fn changes_whose_item_is_gone_while_they_wait_for_the_folder_are_not_made() {
    let served = Served::start().await;
    let workspace = Workspace::copied(&served).await;
    fs::write(workspace.root.0.join("one"), "late").expect("changed");
    served.commit.send_replace(Some(workspace.compare()));
    let lock = fs::File::options().write(true).open(served.volume.0.join("site/.spillway/lock")).expect("a lock");
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("locked");
    served.free_threads(MAX_CONNECTIONS).await; // the copy has ended
    let applied = async {
        let cancelled = async {
            served.free_threads(MAX_CONNECTIONS - 1).await; // one thread waits for the lock
            served.item.send_replace(Some(samples::assignment(2).held));
            drop(lock);
        };
        tokio::join!(workspace.apply(&served), cancelled).0
    };
    let Err(Failure::Passing(error)) = applied.await else { panic!("withdrawn") };
    assert_eq!(error, "the changes are not announced any more");
    assert_eq!(served.content("one").as_deref(), Some("1"));
}

#[tokio::test]
async fn only_the_folder_of_the_pool_is_served_and_only_for_an_item() {
    let served = Served::start().await;
    for (method, path, expected) in
        [(Method::GET, "/folder", 200), (Method::GET, "/folder/../..", 404), (Method::GET, "/", 404), (Method::PUT, "/folder", 405)]
    {
        assert_eq!(served.status(method, path).await, expected, "{path}");
    }
    for other in [None, Some("data/other".to_owned()), Some("other/site".to_owned())] {
        served.folder.send_replace(other.clone());
        assert_eq!(served.status(Method::GET, "/folder").await, 404, "{other:?}");
    }
    served.item.send_replace(None);
    assert_eq!(served.status(Method::GET, "/folder").await, 403);
}

#[tokio::test]
async fn copies_for_one_item_are_counted_and_requests_beyond_the_threads_are_refused() {
    let served = Served::start().await;
    for _ in 0..MAX_COPIES {
        served.free_threads(MAX_CONNECTIONS).await;
        assert_eq!(served.status(Method::GET, "/folder").await, 200);
    }
    served.free_threads(MAX_CONNECTIONS).await;
    assert_eq!(served.status(Method::GET, "/folder").await, 429);
    served.item.send_replace(Some(samples::assignment(2).held));
    let lock = fs::File::options().write(true).open(served.volume.0.join("site/.spillway/lock")).expect("a lock");
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("locked");
    let waiting: Vec<_> = (0..MAX_CONNECTIONS)
        .map(|_| {
            let url = served.url.clone();
            spawn_blocking(move || request(&url, Method::GET, None).expect("an answer").status.as_u16())
        })
        .collect();
    served.free_threads(0).await; // all of them wait for the lock
    assert_eq!(served.status(Method::GET, "/folder").await, 503);
    drop(lock);
    for waiting in waiting {
        assert_eq!(waiting.await.expect("asked"), 200);
    }
}

#[tokio::test]
async fn a_folder_that_cannot_be_copied_says_why() {
    let served = Served::start().await;
    std::os::unix::fs::symlink("/etc", served.volume.0.join("site/link")).expect("a link");
    let (root, own, url) = (folder("workspace"), folder("own"), served.url.clone());
    let paths = (root.0.clone(), own.0.clone());
    let copied = spawn_blocking(move || copy(&url, &paths.0, &paths.1, &Home::default())).await.expect("run");
    let error = copied.expect_err("no copy");
    assert!(error.contains("\"link\"") && error.contains("outside the folder"), "{error}");
}

#[test]
fn a_conflict_names_some_paths_and_counts_the_others() {
    let paths: Vec<RelativePath> = (0..10).map(|number| RelativePath::parse(&format!("p{number}")).expect("a path")).collect();
    assert!(conflict_text(&paths, 12).contains("from: p0, p1, p2, p3, p4 and 7 more. The next"));
    assert!(conflict_text(&paths[..1], 1).contains("from: p0. The next"));
}
