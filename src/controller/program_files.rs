//! The files of a pool (`spec.agent.files`): where they are in the pod, and where the supervisor copies them. Pure.

use crate::api::AgentPoolSpec;
use crate::api::agent_pool::ProgramFile;

/// The program's home.
pub const HOME_DIR: &str = "/home/agent/home";
/// The program's working directory.
pub const WORKSPACE_DIR: &str = "/workspace";
/// The pool's files, each in a folder of its own.
pub const FILES_DIR: &str = "/spillway/files";
/// The name of each file in its folder.
pub const FILE_NAME: &str = "content";
/// The start of the path of a file in the workspace.
const WORKSPACE_PREFIX: &str = "workspace/";

/// A copy of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileCopy {
    /// Where the file is mounted.
    pub from: String,
    /// Where it is copied.
    pub to: String,
    /// Whether that is in the workspace.
    pub in_workspace: bool,
}

/// The copies of a pool's files.
pub fn copies(spec: &AgentPoolSpec) -> impl Iterator<Item = FileCopy> {
    spec.agent.files.iter().flatten().enumerate().map(|(at, ProgramFile { path, .. })| {
        let in_workspace = path.strip_prefix(WORKSPACE_PREFIX);
        let to = in_workspace.map_or_else(|| format!("{HOME_DIR}/{path}"), |rest| format!("{WORKSPACE_DIR}/{rest}"));
        FileCopy { from: format!("{FILES_DIR}/{at}/{FILE_NAME}"), to, in_workspace: in_workspace.is_some() }
    })
}
