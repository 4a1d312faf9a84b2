//! The report of the sidecar: its content, and when it is due. It plans no other call.

use std::time::Duration;

use spillway_wire::agent::{Program, Report, Run};
use spillway_wire::sandbox::SandboxRefusals;

use super::{Link, MIN_REPORT_INTERVAL, OPEN_EGRESS_THRESHOLD};
use crate::clock::{BootTime, millis};

/// A report without the parts whose changes are not reported at once: times, and counts that a program may raise all the time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UrgentParts(Report);

impl UrgentParts {
    pub(super) fn of(report: &Report) -> Self {
        let refused = SandboxRefusals { system_calls: 0, files: 0, uses: report.refused.uses.clone() };
        Self(Report { period_seconds: 0, silent_ms: 0, frozen_ms: 0, refused, ..report.clone() })
    }
}

impl Link {
    pub(super) fn report_due(&self, report: &Report) -> BootTime {
        let Some((sent, UrgentParts(shown))) = &self.sent else { return BootTime::default() };
        let period = self.settings.as_ref().map_or(1, |settings| settings.heartbeat_period_seconds.max(1));
        let changed = self.acknowledged.as_ref() != Some(&UrgentParts::of(report));
        // The start of the program is reported at once, because people wait for it. For each item that would be too often.
        if !self.settings.as_ref().is_some_and(|settings| settings.work.as_ref().is_some_and(|work| work.run == Run::PerItem))
            && shown.program == Program::Waiting
            && report.program != Program::Waiting
        {
            return *sent;
        }
        sent.after(if changed { MIN_REPORT_INTERVAL } else { Duration::from_secs(period.into()) })
    }

    /// The report, now. `None`: the program may have started, and the supervisor has not reported its state yet.
    pub fn report(&self, now: BootTime) -> Option<Report> {
        let waiting = Report::of(Program::Waiting);
        let (at, said) = match &self.program {
            Some((at, report)) => (*at, report.clone()),
            None if self.let_start => return None,
            None => (now, waiting),
        };
        // The supervisor reported nothing since, so that the program has been silent (and frozen) since.
        let since = millis(now.since(at));
        let frozen_ms = if said.program == Program::Frozen { said.frozen_ms.saturating_add(since) } else { said.frozen_ms };
        let silent_ms = if said.program == Program::Waiting { 0 } else { said.silent_ms.saturating_add(since) };
        let reachable =
            if !self.let_start || self.isolation.open >= OPEN_EGRESS_THRESHOLD { self.isolation.reachable.clone() } else { Vec::new() };
        let action = self.action.clone().or_else(|| said.action.clone());
        let period_seconds = self.settings.as_ref().map_or(0, |settings| settings.heartbeat_period_seconds);
        // The sidecar knows a lease before the supervisor does, and until its end is settled.
        let held = self.sidecar_work.held();
        Some(Report {
            period_seconds,
            silent_ms,
            frozen_ms,
            action,
            reachable,
            held,
            commands: self.commands,
            breaker: self.breaker,
            ..said
        })
    }

    /// Whether the last accepted report is still true. The lease does not count, because its end is a separate call.
    pub fn all_reported(&self, now: BootTime) -> bool {
        let known = |UrgentParts(shown): &UrgentParts| Report { held: None, ..shown.clone() };
        self.report(now).is_none_or(|report| self.acknowledged.as_ref().map(known) == Some(known(&UrgentParts::of(&report))))
    }
}
