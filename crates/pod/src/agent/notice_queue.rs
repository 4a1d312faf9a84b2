//! The queue of notices that must be written to the program's file. It does not read the file.

use spillway_wire::agent::{DesiredState, Notice};

use super::hooks::MAX_PENDING_WARNINGS;
use super::notices::{self, Notices};
use super::supervisor::Supervisor;
use super::{MAX_UNWRITTEN_NOTICES, NOTICE_RETRY_DELAY};
use crate::clock::BootTime;
use crate::{FIRST_POD_NOTICE_ID, agent_says, clock};

impl Supervisor {
    /// Queues a notice that the pod itself makes.
    pub(super) fn notice(&mut self, now: BootTime, about: &str, text: String) {
        self.own_notices += 1;
        let notice = Notice { id: FIRST_POD_NOTICE_ID + self.own_notices, time: clock::wall(), about: about.to_owned(), text };
        notices::queue_own(&mut self.unwritten, notice, MAX_UNWRITTEN_NOTICES);
        self.write_at = now;
    }

    /// Queues the controller's notices that are new.
    pub(super) fn queue_new_notices(&mut self, wanted: &DesiredState) {
        let newest = self
            .unwritten
            .iter()
            .rev()
            .map(|notice| notice.id)
            .find(|id| *id < FIRST_POD_NOTICE_ID)
            .unwrap_or(self.health.last_written_notice());
        let room = MAX_UNWRITTEN_NOTICES.saturating_sub(self.unwritten.len());
        // A notice for which there is no room is not acknowledged, so that it comes again.
        self.unwritten.extend(wanted.notices.iter().filter(|notice| notice.id > newest).take(room).cloned());
        self.write_at = BootTime::now();
    }

    /// Writes the queued notices. Only a written notice counts as delivered.
    pub(super) fn write_notices(&mut self, now: BootTime) {
        if self.unwritten.is_empty() || now < self.write_at {
            return;
        }
        if self.notices.is_none() {
            self.notices = Notices::open(&self.options.data).ok();
        }
        while let (Some(notice), Some(file)) = (self.unwritten.front(), &self.notices) {
            if let Err(error) = file.append(notice) {
                agent_says!("cannot write notice {} to the data folder: {error}; trying again", notice.id);
                break;
            }
            if notice.id < FIRST_POD_NOTICE_ID {
                self.health.notices_seen(notice.id);
            }
            self.warnings.extend(self.unwritten.pop_front());
        }
        notices::keep_last(&mut self.warnings, MAX_PENDING_WARNINGS);
        self.write_at = now.after(NOTICE_RETRY_DELAY);
    }
}
