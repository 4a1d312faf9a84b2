//! The Seatbelt profile for a policy, for `sandbox-exec` of macOS. Pure. The rules of a profile are read in order, and the last rule
//! that matches decides, so that the longer path of a policy wins here as it does on Linux.
//!
//! The profile was written from the documentation of others. It was not run on macOS: the tests compare its text alone.

use std::collections::BTreeSet;
use std::path::Path;

use super::config::NetworkAccess;
use super::policy::{Policy, Visibility};

/// What every program needs: processes of its own, and the system's information about users and hosts.
const BASE: &str = r#"(version 1)
(deny default)
(allow process-exec)
(allow process-fork)
(allow process-info* (target same-sandbox))
(allow signal (target same-sandbox))
(allow sysctl-read)
(allow pseudo-tty)
(allow ipc-posix-sem)
(allow ipc-posix-shm)
(allow mach-lookup
  (global-name "com.apple.system.logger")
  (global-name "com.apple.system.notification_center")
  (global-name "com.apple.system.opendirectoryd.libinfo"))
"#;
/// Devices.
const DEVICES: &str = r#"(allow file-read* file-write* file-ioctl
  (literal "/dev/null")
  (literal "/dev/zero")
  (literal "/dev/random")
  (literal "/dev/urandom")
  (literal "/dev/ptmx")
  (literal "/dev/tty")
  (regex #"^/dev/ttys[0-9]+$"))
"#;
/// The network of the machine, with its names and certificates.
const HOST_NETWORK: &str = r#"(allow network*)
(allow system-socket)
(allow mach-lookup
  (global-name "com.apple.SystemConfiguration.configd")
  (global-name "com.apple.dnssd.service")
  (global-name "com.apple.trustd.agent"))
"#;

/// The socket of the system's resolver of names.
const RESOLVER_SOCKET: &str = "/private/var/run/mDNSResponder";

/// The profile. `folder` is the private folder of this run, which takes the place of `/tmp`.
pub fn profile(policy: &Policy, folder: &Path) -> String {
    let mut text = BASE.to_owned();
    for (path, seen) in &policy.paths {
        let name = literal(path);
        text.push_str(&match seen {
            Visibility::Read => format!("(allow file-read* (subpath {name}))\n(deny file-write* (subpath {name}))\n"),
            Visibility::Write => format!("(allow file-read* file-write* (subpath {name}))\n"),
            // There are no folders in memory. Programs find their way through the folder all the same.
            Visibility::Temporary => {
                format!("(deny file-read* file-write* (subpath {name}))\n(allow file-read-metadata (literal {name}))\n")
            }
            Visibility::Hidden(_) => format!("(deny file-read* file-write* (subpath {name}))\n"),
        });
    }
    // Rules are about paths: a folder around such a path cannot be moved, or the path would have another name.
    let limited = policy.paths.iter().filter(|(_, seen)| !matches!(seen, Visibility::Write)).map(|(path, _)| path);
    let above = limited.flat_map(|path| path.ancestors().skip(1)).filter(|path| policy.visibility(path) == Visibility::Write);
    for path in above.collect::<BTreeSet<_>>() {
        text.push_str(&format!("(deny file-write-unlink (literal {}))\n", literal(path)));
    }
    text.push_str(&format!("(allow file-read* file-write* (subpath {}))\n", literal(folder)));
    text.push_str(DEVICES);
    match (policy.network, &policy.bridge) {
        (NetworkAccess::Host, _) => {
            text.push_str(HOST_NETWORK);
            text.push_str(&unix_sockets(policy, folder));
        }
        (NetworkAccess::None, Some(url)) => {
            text.push_str(&format!("(allow network-outbound (remote ip \"localhost:{}\"))\n", url.port()));
        }
        (NetworkAccess::None, None) => {}
    }
    text
}

/// The unix sockets that are reached besides the machine's network, which includes them all: those in writable folders, and that of
/// names. A closed file does not close its socket. Without the network there are none.
fn unix_sockets(policy: &Policy, folder: &Path) -> String {
    let mut text = format!("(deny network-outbound (remote unix-socket))\n(allow network-outbound (literal \"{RESOLVER_SOCKET}\"))\n");
    for (path, seen) in &policy.paths {
        let rule = if matches!(seen, Visibility::Write) { "allow" } else { "deny" };
        // The whole system is closed already, and the resolver is in it.
        if path.parent().is_some() && !Path::new(RESOLVER_SOCKET).starts_with(path) {
            text.push_str(&format!("({rule} network-outbound (remote unix-socket (subpath {})))\n", literal(path)));
        }
    }
    text + &format!("(allow network-outbound (remote unix-socket (subpath {})))\n", literal(folder))
}

fn literal(path: &Path) -> String {
    format!("\"{}\"", path.to_string_lossy().replace('\\', "\\\\").replace('"', "\\\""))
}
