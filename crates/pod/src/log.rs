//! Log lines of our own processes on standard error. Each line can be read alone. They are few: in the agent's container they
//! stand between the lines of the program.

use std::fmt::Arguments;
use std::io::Write as _;

/// Writes one line. A failure to write is ignored.
pub fn line(who: &str, what: Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{who}: {what}");
}

/// Logs a line of the sidecar.
#[macro_export]
macro_rules! link_says {
    ($($what:tt)*) => { $crate::log::line("spillway-link", format_args!($($what)*)) };
}

/// Logs a line of the supervisor.
#[macro_export]
macro_rules! agent_says {
    ($($what:tt)*) => { $crate::log::line("spillway-agent", format_args!($($what)*)) };
}
