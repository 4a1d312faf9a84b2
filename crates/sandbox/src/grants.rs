//! The files that a program may use. Pure but for [`Container::read`], which reads the folders and mounts of the container.
//!
//! A program may read and execute all files of its image, and nothing that is mounted into the container beside what it needs: a Secret
//! that an admission webhook mounts is not granted, wherever it is. It may write to its own folders alone.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

/// How a file, or all files below a folder, may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// Its folders are listed, and no file is opened.
    List,
    /// Read and executed.
    Read,
    /// Read and written, but no program: a device or a file of the kernel.
    Device,
    /// Everything.
    Write,
}

/// A granted path. A path that does not exist grants nothing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Grant {
    /// The file, or the folder with all that is below it.
    pub path: PathBuf,
    /// How it may be used.
    pub access: Access,
}

/// Folders that are no part of an image, or that hold what others put there.
const FOREIGN_FOLDERS: [&str; 7] = ["/proc", "/sys", "/dev", "/run", "/var/run", "/tmp", "/spillway"];
/// Files that the kubelet mounts for every program.
const KUBELET_FILES: [&str; 3] = ["/etc/hosts", "/etc/hostname", "/etc/resolv.conf"];
/// The kernel's files about processes and limits. Those of foreign processes are closed by Landlock itself.
const KERNEL_FOLDERS: [&str; 2] = ["/proc", "/sys"];
/// The folder of devices, and that of terminals. Files that something mounts there are not granted.
const DEVICE_FOLDER: &str = "/dev";
const TERMINALS: &str = "/dev/pts";
/// The most devices that are granted.
const MAX_DEVICES: usize = 256;
/// The most folders that are read because something is mounted below them, and the most paths that are granted then. What is beyond is
/// denied.
const MAX_SPLIT_FOLDERS: usize = 256;
const MAX_IMAGE_PATHS: usize = 4096;

/// The container, as far as the grants depend on it.
#[derive(Clone, Debug, Default)]
pub struct Container {
    /// The paths of its image.
    pub image: Vec<PathBuf>,
    /// Its devices: the plain ones, and those that its pod was given (GPUs).
    pub devices: Vec<PathBuf>,
}

/// The grants of a program that may read `readable`, beside its image, and write to `writable`.
pub fn grants(container: &Container, readable: &[PathBuf], writable: &[PathBuf]) -> Vec<Grant> {
    let grant = |access| move |path: &Path| Grant { path: path.to_owned(), access };
    let fixed = KUBELET_FILES.iter().chain(&KERNEL_FOLDERS).map(Path::new);
    let read = container.image.iter().chain(readable).map(PathBuf::as_path).chain(fixed).map(grant(Access::Read));
    let devices = container.devices.iter().map(PathBuf::as_path).map(grant(Access::Device));
    // Programs list the root folder, and find their way from there. What is mounted can be listed, and not opened.
    let root = std::iter::once(Path::new("/")).map(grant(Access::List));
    let all = root.chain(read).chain(devices).chain(writable.iter().map(PathBuf::as_path).map(grant(Access::Write)));
    let all: BTreeSet<Grant> = all.collect();
    all.into_iter().collect()
}

/// Whether the grants let a program use a file so. `path` has no links. The caller of [`Access::Read`] may want to execute.
pub fn permits(grants: &[Grant], path: &Path, access: Access) -> bool {
    let enough = |granted| match access {
        Access::List => true,
        Access::Read | Access::Device => granted != Access::List,
        Access::Write => matches!(granted, Access::Write | Access::Device),
    };
    grants.iter().any(|grant| path.starts_with(&grant.path) && enough(grant.access))
}

impl Container {
    /// Reads this container.
    pub fn read() -> io::Result<Self> {
        Self::read_without(&[])
    }

    /// Reads this container. `closed`: paths without links that count as mounted, so that they are not granted.
    pub fn read_without(closed: &[PathBuf]) -> io::Result<Self> {
        Ok(Self { image: read_image(closed)?, devices: read_devices() })
    }
}

/// The devices, also those in folders (`/dev/dri`), and the folder of terminals.
fn read_devices() -> Vec<PathBuf> {
    let (mut found, mut ahead) = (vec![PathBuf::from(TERMINALS)], vec![PathBuf::from(DEVICE_FOLDER)]);
    while let Some(folder) = ahead.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
            let path = entry.path();
            // Not by the entry: in a user namespace, devices are mounted over plain files.
            let Ok(kind) = fs::symlink_metadata(&path).map(|found| found.file_type()) else { continue };
            if found.len() + ahead.len() >= MAX_DEVICES {
                return found;
            }
            if kind.is_char_device() || kind.is_block_device() {
                found.push(path);
            } else if kind.is_dir() && path != Path::new(TERMINALS) {
                ahead.push(path);
            }
        }
    }
    found
}

fn read_image(closed: &[PathBuf]) -> io::Result<Vec<PathBuf>> {
    let mut mounts = mount_points(&String::from_utf8_lossy(&fs::read("/proc/self/mountinfo")?));
    mounts.extend(closed.iter().cloned());
    // A link is not granted: its target is, if it is of the image.
    let list = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
        entries.filter(|entry| entry.file_type().is_ok_and(|kind| !kind.is_symlink())).map(|entry| entry.path()).collect()
    };
    Ok(image_paths(&mounts, list))
}

/// The paths of the image without what is mounted: a folder with a mount below it counts by its content.
fn image_paths(mounts: &BTreeSet<PathBuf>, list: impl Fn(&Path) -> Vec<PathBuf>) -> Vec<PathBuf> {
    let harmless = |mount: &Path| KUBELET_FILES.iter().any(|file| mount == Path::new(file));
    let foreign = |path: &Path| FOREIGN_FOLDERS.iter().any(|folder| path == Path::new(folder));
    let (mut found, mut ahead, mut split) = (Vec::new(), vec![PathBuf::from("/")], 0);
    while let Some(folder) = ahead.pop() {
        split += 1;
        for path in list(&folder).into_iter().filter(|path| !foreign(path) && !mounts.contains(path)) {
            let below = |other: &Path| other != path && other.starts_with(&path);
            let holds_mount = mounts.iter().any(|mount| below(mount) && !harmless(mount));
            let holds_foreign = FOREIGN_FOLDERS.iter().any(|folder| below(Path::new(folder)));
            if !holds_mount && !holds_foreign {
                found.push(path);
            } else if split + ahead.len() < MAX_SPLIT_FOLDERS {
                ahead.push(path);
            }
        }
    }
    found.truncate(MAX_IMAGE_PATHS);
    found.sort();
    found
}

/// The mount points in the kernel's list. The kernel writes spaces and backslashes in paths as octal numbers.
fn mount_points(list: &str) -> BTreeSet<PathBuf> {
    list.lines().filter_map(|line| line.split(' ').nth(4)).map(|path| PathBuf::from(unescaped(path))).collect()
}

fn unescaped(path: &str) -> String {
    let (mut text, mut rest) = (Vec::new(), path.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        let number = after.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match number.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                text.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                text.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A container's files; a folder is every prefix of a path.
    fn image(files: &[&str], mounts: &[&str]) -> Vec<PathBuf> {
        let mounts: BTreeSet<PathBuf> = mounts.iter().map(PathBuf::from).collect();
        let all: Vec<PathBuf> = files.iter().map(PathBuf::from).chain(mounts.iter().cloned()).collect();
        let list = |folder: &Path| {
            let inside = all.iter().filter_map(|path| path.strip_prefix(folder).ok()?.components().next());
            let inside: BTreeSet<PathBuf> = inside.map(|name| folder.join(name)).collect();
            inside.into_iter().collect()
        };
        image_paths(&mounts, list)
    }

    fn readable(image: &[PathBuf], path: &str) -> bool {
        let container = Container { image: image.to_vec(), devices: Vec::new() };
        let granted = grants(&container, &["/spillway/bin".into()], &["/workspace".into()]);
        granted.iter().any(|grant| matches!(grant.access, Access::Read | Access::Write) && Path::new(path).starts_with(&grant.path))
    }

    #[test]
    fn the_image_is_granted_and_nothing_that_is_mounted_into_it() {
        let files = ["/usr/bin/sh", "/app/agent.js", "/etc/passwd", "/var/lib/x", "/var/run/y", "/run/z", "/home/node/.npmrc", "/entry.sh"];
        let mounts = [
            "/",
            "/proc",
            "/dev",
            "/etc/hosts",
            "/etc/resolv.conf",
            "/etc/hostname",
            "/workspace",
            "/spillway/bin",
            "/run/secrets/token",
            "/var/run/secrets/kubernetes.io/serviceaccount",
            "/vault/secrets",
            "/app/config/secret",
            "/tmp",
        ];
        let image = image(&files, &mounts);
        for path in [
            "/usr/bin/sh",
            "/app/agent.js",
            "/etc/passwd",
            "/etc/hosts",
            "/var/lib/x",
            "/home/node/.npmrc",
            "/entry.sh",
            "/workspace/a",
            "/spillway/bin/spillway",
        ] {
            assert!(readable(&image, path), "{path}");
        }
        for path in [
            "/run/secrets/token/x",
            "/run/z",
            "/var/run/y",
            "/var/run/secrets/kubernetes.io/serviceaccount/token",
            "/vault/secrets/key",
            "/app/config/secret/key",
            "/tmp/x",
            "/spillway/journal/x",
        ] {
            assert!(!readable(&image, path), "{path}");
        }
        assert!(image.contains(&"/etc".into()), "a whole folder, in spite of the kubelet's files");
        assert!(!image.contains(&"/app".into()) && image.contains(&"/app/agent.js".into()));
    }

    #[test]
    fn folders_with_mounts_are_read_only_so_far() {
        let deep: Vec<String> = (0..2000).map(|number| format!("/d{number}/secret")).collect();
        let deep: Vec<&str> = deep.iter().map(String::as_str).collect();
        let image = image(&["/usr/bin/sh"], &deep);
        assert!(readable(&image, "/usr/bin/sh") && deep.iter().all(|path| !readable(&image, path)));
        let wide: Vec<String> = (0..10_000).map(|number| format!("/app/{number}")).collect();
        let wide: Vec<&str> = wide.iter().map(String::as_str).collect();
        assert_eq!(super::tests::image(&wide, &["/app/secret"]).len(), MAX_IMAGE_PATHS);
    }

    #[test]
    fn names_of_mounts_are_read_as_the_kernel_writes_them() {
        let list = "22 1 0:21 / / rw - overlay overlay rw\n23 22 0:5 / /a\\040b\\134c rw shared:2 - proc proc rw\nodd\n";
        let expected: BTreeSet<PathBuf> = ["/", "/a b\\c"].into_iter().map(PathBuf::from).collect();
        assert_eq!(mount_points(list), expected);
        assert_eq!(unescaped("/a\\"), "/a\\");
    }

    #[test]
    fn links_to_mounts_grant_nothing() {
        let image = read_image(&[]).expect("an image");
        let links: Vec<_> = image.iter().filter(|path| path.is_symlink()).collect();
        assert!(links.is_empty(), "{links:?}");
    }

    #[test]
    fn devices_are_granted_and_no_plain_file_beside_them() {
        let devices = read_devices();
        assert!(devices.contains(&"/dev/null".into()) && devices.contains(&TERMINALS.into()), "{devices:?}");
        let plain: Vec<_> = devices.iter().filter(|path| path.is_file() || path.starts_with("/dev/shm")).collect();
        assert!(plain.is_empty(), "{plain:?}");
    }

    #[test]
    fn this_container_can_be_read() {
        let image = read_image(&[]).expect("an image");
        assert!(readable(&image, "/usr/bin/env"), "{image:?}");
    }
}
