//! Giving up the capabilities of a privileged user. Landlock keeps a program from reading the memory and the variables of other processes,
//! but not one with CAP_PERFMON, which a program of root has.

use std::io;

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capability_is_in_bounding_set, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities,
};

/// Gives up all capabilities of this thread, and of all programs that it will start. Call it before other threads start.
pub fn give_up() -> io::Result<()> {
    // The kernel names those that it does not know.
    for capability in (0..u64::BITS).map(|bit| CapabilitySet::from_bits_retain(1 << bit)) {
        match capability_is_in_bounding_set(capability) {
            Ok(true) => match remove_capability_from_bounding_set(capability) {
                Ok(()) => {}
                // A user who is not root has none, and a program that may gain no privilege gets none.
                Err(Errno::PERM) if !rustix::process::geteuid().is_root() => {}
                Err(error) => return Err(error.into()),
            },
            Ok(false) => {}
            Err(_) => break,
        }
    }
    match clear_ambient_capability_set() {
        Ok(()) | Err(Errno::INVAL) => {}
        Err(error) => return Err(error.into()),
    }
    let none = CapabilitySet::empty();
    Ok(set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?)
}
