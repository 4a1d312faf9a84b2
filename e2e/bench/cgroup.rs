//! A memory control group with a limit, like that of a container: its peak can be read, and the kernel kills a process
//! that exceeds the limit. It is a child of this program's own group. Nothing else is changed. The end-to-end tests use
//! this file too.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

const MIB: f64 = 1024.0 * 1024.0;

/// The group, until it is dropped.
pub struct MemoryGroup {
    folder: PathBuf,
}

impl MemoryGroup {
    /// A new one of this name, with a limit in MiB. Needs root, and a kernel that lets a group have processes and children.
    pub fn new(name: &str, limit_mib: u32) -> anyhow::Result<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").ok().as_deref().and_then(memory_cgroup).context("this program's memory group")?;
        let folder = own.join(format!("spillway-{}-{name}", std::process::id()));
        fs::create_dir(&folder).with_context(|| format!("a memory group, {}", folder.display()))?;
        let group = Self { folder };
        let limit = (u64::from(limit_mib) << 20).to_string();
        fs::write(group.file(["memory.limit_in_bytes", "memory.max"]), limit).context("its limit")?;
        Ok(group)
    }

    /// The file of this name: of version 1, or of version 2.
    fn file(&self, [first, second]: [&str; 2]) -> PathBuf {
        let file = self.folder.join(first);
        if file.exists() { file } else { self.folder.join(second) }
    }

    /// Moves a process into the group. Memory that it had before stays charged to its former group.
    pub fn add(&self, process: u32) -> anyhow::Result<()> {
        fs::write(self.folder.join("cgroup.procs"), process.to_string()).with_context(|| format!("process {process} into its memory group"))
    }

    /// Resets the peak.
    pub fn forget_peak(&self) -> anyhow::Result<()> {
        fs::write(self.file(["memory.max_usage_in_bytes", "memory.peak"]), "0").context("forgetting the peak of a memory group")
    }

    /// The peak since the last reset, in MiB.
    pub fn peak(&self) -> anyhow::Result<f64> {
        let text = fs::read_to_string(self.file(["memory.max_usage_in_bytes", "memory.peak"])).context("the peak of a memory group")?;
        Ok(text.trim().parse::<f64>()? / MIB)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.folder); // a group that still has a process stays until the machine ends
    }
}

/// Where the memory cgroup of `/proc/PID/cgroup` is mounted: version 1 has a line of its own, version 2 the line `0::`.
pub fn memory_cgroup(groups: &str) -> Option<PathBuf> {
    let mut lines = groups.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let first = lines.clone().find(|(controllers, _)| controllers.split(',').any(|name| name == "memory"));
    let (root, path) = match first {
        Some((_, path)) => ("/sys/fs/cgroup/memory", path),
        None => ("/sys/fs/cgroup", lines.find(|(controllers, _)| controllers.is_empty())?.1),
    };
    Some(Path::new(root).join(path.trim_start_matches('/')))
}
