//! The unix sockets of this machine that a path leads to. A process that may connect to one talks to a server outside its sandbox. It
//! only lists them: the policy decides which are hidden.
//!
//! The kernel lists sockets of its own network namespace. A server in another one, such as a rootless container engine, is found only
//! by a variable of the environment that names its socket. A server that bound its socket by a relative path is not found.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::process::{getegid, geteuid, getgroups};

/// The kernel's list.
const SOCKET_LIST: &str = "/proc/net/unix";
/// What is around a path in the value of a variable, as in `unix:path=/run/bus,guid=1`.
const SEPARATORS: &[u8] = b",;:= ";

/// The sockets that exist now, by their paths without links. Those that our user cannot name are left out.
pub fn host_sockets(environment: &[(OsString, OsString)]) -> Vec<PathBuf> {
    let list = fs::read(SOCKET_LIST).unwrap_or_default(); // macOS has none
    let found = listed(&list).into_iter().chain(environment.iter().flat_map(|(_, value)| named(value)));
    let is_socket = |path: &PathBuf| fs::metadata(path).is_ok_and(|found| found.file_type().is_socket());
    let plain = found.filter_map(|path| fs::canonicalize(path).ok()).filter(is_socket);
    plain.filter(|path| is_reachable(path)).collect::<BTreeSet<_>>().into_iter().collect()
}

/// The paths of the kernel's list. The columns before the path have no slash.
fn listed(list: &[u8]) -> Vec<PathBuf> {
    let path = |line: &[u8]| line.windows(2).position(|pair| pair == b" /").and_then(|at| line.get(at + 1..).map(bytes_path));
    list.split(|byte| *byte == b'\n').filter_map(path).collect()
}

/// The absolute paths in the value of a variable.
fn named(value: &OsStr) -> Vec<PathBuf> {
    let parts = value.as_bytes().split(|byte| SEPARATORS.contains(byte));
    parts.filter(|part| part.starts_with(b"/")).map(bytes_path).collect()
}

fn bytes_path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

/// Whether a user may go through the folders around a path without a capability. The command has none, and bubblewrap cannot mount
/// what its user cannot name. Others than root have no capability here either: for them the kernel has decided already.
fn is_reachable(path: &Path) -> bool {
    if !geteuid().is_root() {
        return true;
    }
    let groups = getgroups().unwrap_or_default();
    let is_ours = |group: u32| group == getegid().as_raw() || groups.iter().any(|own| own.as_raw() == group);
    let passes = |folder: &Path| {
        fs::metadata(folder).is_ok_and(|found| {
            let needed = if found.uid() == geteuid().as_raw() {
                0o100
            } else if is_ours(found.gid()) {
                0o010
            } else {
                0o001
            };
            found.mode() & needed != 0
        })
    };
    path.ancestors().skip(1).all(passes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixDatagram, UnixListener};

    use super::*;

    #[test]
    fn paths_are_read_from_the_kernels_list() {
        let list = b"Num       RefCount Protocol Flags    Type St Inode Path\n\
                     0000000000000000: 00000002 00000000 00010000 0001 01 12345 /run/docker.sock\n\
                     0000000000000000: 00000002 00000000 00010000 0001 01   345 /srv/a b\n\
                     0000000000000000: 00000003 00000000 00000000 0001 03 13226617\n\
                     0000000000000000: 00000002 00000000 00010000 0001 01 12346 @/tmp/.X11-unix/X0\n\
                     0000000000000000: 00000002 00000000 00010000 0001 01 12347 private/smtp\n";
        assert_eq!(listed(list), [PathBuf::from("/run/docker.sock"), PathBuf::from("/srv/a b")]);
    }

    #[test]
    fn paths_are_read_from_variables() {
        for (value, paths) in [
            ("/ssh-agent", &["/ssh-agent"][..]),
            ("unix:path=/run/user/7/bus,guid=12", &["/run/user/7/bus"]),
            ("unix:///mnt/docker.sock", &["///mnt/docker.sock"]),
            ("/tmp/tmux-7/default,123,0", &["/tmp/tmux-7/default"]),
            ("/bin:/usr/bin", &["/bin", "/usr/bin"]),
            (":0", &[]),
            ("a/b", &[]),
        ] {
            let paths: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
            assert_eq!(named(OsStr::new(value)), paths, "{value}");
        }
    }

    #[test]
    fn sockets_that_exist_are_found_and_files_are_not() {
        let folder = fs::canonicalize(std::env::temp_dir()).expect("a folder").join(format!("spillway-sockets-{}", std::process::id()));
        fs::create_dir(&folder).expect("a folder");
        let _server = UnixListener::bind(folder.join("server")).expect("a socket");
        let _datagrams = UnixDatagram::bind(folder.join("datagrams")).expect("a socket");
        // A server of another network namespace is not in the list: here one that has ended.
        drop(UnixListener::bind(folder.join("named")).expect("a socket"));
        fs::write(folder.join("file"), "").expect("written");
        let value = |name: &str| (OsString::from("A"), OsString::from(format!("unix:{}", folder.join(name).display())));
        let found = host_sockets(&[value("named"), value("file"), value("missing")]);
        let own: Vec<_> = found.iter().filter_map(|path| path.strip_prefix(&folder).ok()).collect();
        assert_eq!(own, [Path::new("datagrams"), Path::new("named"), Path::new("server")]);
        fs::remove_dir_all(&folder).expect("removed");
    }
}
