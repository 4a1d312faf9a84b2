//! Printing notices on standard error, each once.

use spillway_wire::agent::Notice;
use spillway_wire::link::{Answer, Ask};

use super::ask;
use super::heard_notices::HeardNotices;
use super::output::{notice_line, print_to_stderr};
use super::place::SidecarPaths;

/// Prints the notices that were not printed before.
pub(super) fn tell_new(heard: &mut HeardNotices, known: Vec<Notice>) {
    let new = heard.new_ones(known);
    for notice in &new {
        print_to_stderr(&format!("notice: {}", notice_line(notice)));
    }
    heard.remember(&new);
}

/// Asks the sidecar for notices and prints the new ones. A timed shell does so, because its program calls no `spillway` command.
pub(super) fn tell_notices(place: &SidecarPaths) {
    if let Ok(Answer::Notices(known)) = ask::once(&place.ask_socket, &Ask::Notices) {
        tell_new(&mut HeardNotices::new(&place.ask_data), known);
    }
}
