//! The definitions that are served. A folder is read again every few seconds, and served if all of it is right. Otherwise the last right one
//! is served further, and the log says what is wrong. A running call keeps the definitions with which it began.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use spillway_bridge::catalog::{Catalog, FileFault, read};
use spillway_bridge::definition::{Allowed, Definition, Fault};
use tokio_util::sync::CancellationToken;

use super::pinned_program::PinnedProgram;
use super::runnable::Runnable;
use super::upstream::server::UpstreamServer;

/// The rule that a call of an unknown program breaks.
pub const UNKNOWN_PROGRAM: &str = "unknownProgram";
/// What is said of an unknown program.
pub const UNKNOWN_PROGRAM_MESSAGE: &str = "there is no such program; list_programs names all";
/// Between two readings of the folder.
const READ_INTERVAL: Duration = Duration::from_secs(2);

/// Definitions, and the files of their programs.
#[derive(Debug)]
pub struct LoadedCatalog {
    catalog: Catalog,
    programs: BTreeMap<String, Runnable>,
    upstream: Option<Arc<UpstreamServer>>,
}

impl LoadedCatalog {
    /// Loads these files, or says what is wrong with each that is wrong.
    fn load(files: &BTreeMap<String, Vec<u8>>, allowed: &Allowed) -> Result<Self, Vec<String>> {
        let texts = |faults: Vec<FileFault>| faults.iter().map(FileFault::to_string).collect::<Vec<_>>();
        if files.is_empty() {
            return Err(vec!["there is no definition: files that end with .md".to_owned()]);
        }
        let catalog = Catalog::load(files, allowed).map_err(texts)?;
        let (mut programs, mut faults) = (BTreeMap::new(), Vec::new());
        for definition in catalog.programs() {
            match PinnedProgram::pin(definition) {
                Ok(program) => {
                    programs.insert(definition.name.clone(), Runnable::Program(program));
                }
                Err(error) => {
                    faults.push(Fault { line: None, rule: "command", message: format!("{}: {error}", definition.name) }.to_string())
                }
            }
        }
        if faults.is_empty() { Ok(Self { catalog, programs, upstream: None }) } else { Err(faults) }
    }

    /// The tools of an upstream.
    fn of_upstream(server: Arc<UpstreamServer>) -> Self {
        let tools = server.upstream().tools.values().map(|tool| tool.definition.clone());
        let catalog = Catalog::of(tools, server.upstream().revision.clone());
        let programs = catalog.programs().map(|tool| (tool.name.clone(), Runnable::Tool(server.clone()))).collect();
        Self { catalog, programs, upstream: Some(server) }
    }

    /// The upstream whose tools these are, if they are no programs.
    pub fn upstream(&self) -> Option<&Arc<UpstreamServer>> {
        self.upstream.as_ref()
    }

    /// The rule that a call of something else breaks, and what to say.
    pub fn unknown(&self) -> (&'static str, &'static str) {
        match self.upstream {
            Some(_) => ("notAllowed", "this Toolset does not allow the tool; tools/list names all"),
            None => (UNKNOWN_PROGRAM, UNKNOWN_PROGRAM_MESSAGE),
        }
    }

    /// The definitions.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// A program with its file, or a tool.
    pub fn program(&self, name: &str) -> Option<(&Definition, &Runnable)> {
        self.catalog.program(name).zip(self.programs.get(name))
    }
}

/// The definitions that are served now.
#[derive(Debug)]
pub struct ServedCatalog {
    folder: PathBuf,
    allowed: Allowed,
    now: Mutex<Arc<LoadedCatalog>>,
    /// What is wrong with other files that were found since. They are tried again: a program may be installed after its definition.
    faults: Mutex<Vec<String>>,
}

impl ServedCatalog {
    /// Serves the definitions of this folder, or says what is wrong with them.
    pub fn open(folder: PathBuf, allowed: Allowed) -> anyhow::Result<(Self, FolderWatch)> {
        let files = read(&folder).map_err(|error| anyhow::anyhow!("cannot read {}: {error}", folder.display()))?;
        let loaded = LoadedCatalog::load(&files, &allowed)
            .map_err(|faults| anyhow::anyhow!("the definitions of {} are wrong:\n{}", folder.display(), faults.join("\n")))?;
        let served = Self { folder, allowed, now: Mutex::new(Arc::new(loaded)), faults: Mutex::default() };
        Ok((served, FolderWatch { served: files }))
    }

    /// Serves the tools of an upstream. They never change.
    pub fn of_upstream(server: Arc<UpstreamServer>, allowed: Allowed) -> Self {
        let loaded = LoadedCatalog::of_upstream(server);
        Self { folder: PathBuf::new(), allowed, now: Mutex::new(Arc::new(loaded)), faults: Mutex::default() }
    }

    /// What is served now.
    pub fn now(&self) -> Arc<LoadedCatalog> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is wrong with the files that are in the folder now, if they are not served.
    pub fn faults(&self) -> Vec<String> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Keeps the faults, and says whether they are others than before.
    fn set_faults(&self, faults: &[String]) -> bool {
        let mut kept = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = *kept != faults;
        *kept = faults.to_vec();
        changed
    }
}

/// What was last seen of the folder.
#[derive(Debug)]
pub struct FolderWatch {
    /// The files that are served.
    served: BTreeMap<String, Vec<u8>>,
}

impl FolderWatch {
    /// Reads the folder again and again, until the process is to stop.
    pub async fn follow(mut self, served: Arc<ServedCatalog>, stop: CancellationToken) {
        while stop.run_until_cancelled(tokio::time::sleep(READ_INTERVAL)).await.is_some() {
            let at_work = served.clone();
            // Files are read and hashed on a thread that may wait.
            match tokio::task::spawn_blocking(move || (self.look(&at_work), self)).await {
                Ok((said, watch)) => {
                    match said {
                        None => {}
                        Some(Ok(revision)) => tracing::info!(revision, "serving changed definitions"),
                        Some(Err(faults)) => tracing::error!(
                            faults = faults.join("; "),
                            served = served.now().catalog().revision(),
                            "the definitions were changed and are wrong; the last right ones are served"
                        ),
                    }
                    self = watch;
                }
                Err(error) => return tracing::error!(%error, "the folder of the definitions is not read any more"),
            }
        }
    }

    /// Reads the folder. None: nothing changed.
    fn look(&mut self, served: &ServedCatalog) -> Option<Result<String, Vec<String>>> {
        let files = read(&served.folder).map_err(|error| vec![format!("cannot read {}: {error}", served.folder.display())]);
        if files.as_ref().is_ok_and(|files| *files == self.served) {
            served.set_faults(&[]);
            return None;
        }
        match files.and_then(|files| LoadedCatalog::load(&files, &served.allowed).map(|loaded| (files, loaded))) {
            Ok((files, loaded)) => {
                self.served = files;
                served.set_faults(&[]);
                let revision = loaded.catalog.revision().to_owned();
                *served.now.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(loaded);
                Some(Ok(revision))
            }
            Err(faults) => served.set_faults(&faults).then_some(Err(faults)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_changed_folder_is_served_only_if_all_of_it_is_right() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |file: &str, command: &str| {
            let text = format!("---\nname: {file}\ndescription: d\ncommand: {command}\n---\n");
            fs::write(folder.path().join(format!("{file}.md")), text).expect("a file");
        };
        let allowed = Allowed { commands: None, credentials: Vec::new(), max_seconds: 60 };
        let open = || ServedCatalog::open(folder.path().to_owned(), allowed.clone());
        assert!(open().expect_err("empty").to_string().contains("there is no definition"));
        write("a", "/usr/bin/id");
        let (served, mut watch) = open().expect("a catalogue");
        let first = served.now();
        assert_eq!(watch.look(&served), None);
        write("b", "/usr/bin/missing");
        let faults = watch.look(&served).expect("a change").expect_err("no such program");
        assert!(faults.iter().any(|fault| fault.contains("b: /usr/bin/missing cannot be used")), "{faults:?}");
        assert_eq!(served.now().catalog().revision(), first.catalog().revision());
        assert_eq!(served.faults(), faults);
        assert_eq!(watch.look(&served), None, "a fault is said once");
        let late = tempfile::tempdir().expect("a folder");
        let program = late.path().join("late");
        write("b", &program.display().to_string());
        watch.look(&served).expect("a change").expect_err("not installed yet");
        fs::copy("/usr/bin/id", &program).expect("installed");
        watch.look(&served).expect("it is tried again").expect("it is right");
        assert_eq!(served.faults(), [] as [&str; 0]);
        write("b", "/usr/bin/env");
        watch.look(&served).expect("a change").expect_err("an interpreter");
        write("b", "/usr/bin/tail");
        watch.look(&served).expect("a change").expect("it is right");
        assert!(served.now().program("b").is_some() && first.program("b").is_none());
        fs::remove_dir_all(folder.path()).expect("removed");
        watch.look(&served).expect("a change").expect_err("no folder");
        assert!(served.now().program("b").is_some());
    }
}
