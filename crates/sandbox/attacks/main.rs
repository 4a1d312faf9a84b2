//! What a hostile program tries, one attack at a time: `spillway-attacks NAME`. It ends with 0 if the attack worked, and with 1 and the
//! error if it was refused. `--list` prints all attacks, and where each works without a sandbox. Tests run each attack without a sandbox, where it must work, and in one.
//!
//! An attack leaves no trace that could harm: it signals and reads only the process that it is told.

#![expect(unsafe_code, reason = "attacks are system calls that no library makes")]

mod files;
mod kernel;
mod processes;
mod sockets;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

/// Whom and what the attacks are aimed at, from the environment.
pub struct Target {
    /// A folder that is not granted.
    outside: PathBuf,
    /// A folder that is granted.
    inside: PathBuf,
    /// A process outside the sandbox, of the same user.
    pid: i32,
    /// An open descriptor that the program inherited.
    descriptor: i32,
    /// A TCP port on loopback that is not granted.
    port: u16,
    /// The name of an abstract unix socket of that process.
    socket: String,
}

/// Where an attack works without the sandbox.
#[derive(Clone, Copy, Debug)]
pub enum WorksIn {
    /// In a pod of an agent, and on the node.
    Pod,
    /// On the node, as its administrator. In a pod something else refuses it, too.
    Node,
    /// Nowhere on the kernels that we have: only the answer of the sandbox can be tested.
    Nothing,
}

/// An attack.
pub struct Attack {
    name: &'static str,
    works_in: WorksIn,
    /// What it would do.
    does: &'static str,
    run: fn(&Target) -> io::Result<()>,
}

const fn attack(name: &'static str, works_in: WorksIn, does: &'static str, run: fn(&Target) -> io::Result<()>) -> Attack {
    Attack { name, works_in, does, run }
}

fn all() -> impl Iterator<Item = &'static Attack> {
    files::ATTACKS.iter().chain(processes::ATTACKS).chain(kernel::ATTACKS).chain(sockets::ATTACKS)
}

fn main() -> ExitCode {
    let names: Vec<String> = std::env::args().skip(1).collect();
    if names.iter().any(|name| name == "--list") {
        all().for_each(|attack| println!("{}\t{:?}\t{}", attack.name, attack.works_in, attack.does));
        return ExitCode::SUCCESS;
    }
    let text = |name: &str| std::env::var(name).unwrap_or_default();
    let number = |name: &str| text(name).parse::<i32>().unwrap_or(-1);
    let target = Target {
        outside: text("ATTACK_OUTSIDE").into(),
        inside: text("ATTACK_INSIDE").into(),
        pid: number("ATTACK_PID"),
        descriptor: number("ATTACK_DESCRIPTOR"),
        port: u16::try_from(number("ATTACK_PORT")).unwrap_or(0),
        socket: text("ATTACK_SOCKET"),
    };
    let Some(attack) = names.first().and_then(|name| all().find(|attack| attack.name == name)) else {
        eprintln!("usage: spillway-attacks NAME | --list");
        return ExitCode::from(2);
    };
    match (attack.run)(&target) {
        Ok(()) => {
            println!("worked");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("refused: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The answer of a system call.
pub fn check(answer: libc::c_long) -> io::Result<libc::c_long> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

/// A system call. Each argument is as wide as a register, as the variadic function demands.
macro_rules! call {
    ($number:expr $(, $argument:expr)* $(,)?) => {
        // SAFETY: the attack gives valid pointers, or numbers that the kernel refuses.
        $crate::check(unsafe { libc::syscall($number $(, $argument as libc::c_long)*) })
    };
}
pub(crate) use call;
