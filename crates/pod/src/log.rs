//! What our processes say about themselves: a line each on standard error, readable alone. Few of them: in the agent's
//! container they stand between the program's own lines.

use std::fmt::Arguments;
use std::io::Write as _;

/// Writes one line. That nobody can read it is no reason to end.
pub fn line(who: &str, what: Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{who}: {what}");
}

/// Says a line of the sidecar.
#[macro_export]
macro_rules! link_says {
    ($($what:tt)*) => { $crate::log::line("spillway-link", format_args!($($what)*)) };
}

/// Says a line of the supervisor.
#[macro_export]
macro_rules! agent_says {
    ($($what:tt)*) => { $crate::log::line("spillway-agent", format_args!($($what)*)) };
}
