//! The writes of the simulated ledger: drafts of records, and their outcomes. It stores nothing itself.

use super::{Gateway, Leader, Message, Simulation};

impl Simulation {
    pub(super) fn draft(&mut self, with: u32) {
        if self.leaders.is_empty() {
            return;
        }
        let leader = with as usize % self.leaders.len();
        let now = self.now(leader);
        let Leader { ledger, drafts, .. } = &mut self.leaders[leader];
        for (which, key) in ledger.due(now).iter().enumerate() {
            if (with >> (4 + which % 16)) & 3 > 0 {
                drafts.extend(ledger.draft(now, key));
            }
        }
    }

    /// The outcome of a write: it lands with a known or an unknown outcome, or it does not land.
    pub(super) fn outcome(&mut self, with: u32) {
        let busy: Vec<usize> = (0..self.leaders.len()).filter(|leader| !self.leaders[*leader].drafts.is_empty()).collect();
        if busy.is_empty() {
            return;
        }
        let leader = busy[with as usize % busy.len()];
        let most = if (with >> 7).is_multiple_of(4) { 1 } else { 5 };
        for _ in 0..most {
            if self.leaders.get(leader).is_some_and(|leader| !leader.drafts.is_empty()) {
                self.one_outcome(leader, with >> 4);
            }
        }
    }

    fn one_outcome(&mut self, leader: usize, with: u32) {
        let draft = self.leaders[leader].drafts.remove(0);
        let (epoch, versions) = (self.leaders[leader].epoch, self.leaders[leader].versions.clone());
        let how = with % 8;
        let landed = how != 0 && self.store(epoch, &versions, &draft);
        let (version, stored_by) = self.store.get(&draft.record).map(|stored| (stored.version, stored.epoch)).expect("it exists");
        if landed && how > 1 {
            let written = self.leaders[leader].ledger.written(&draft);
            self.leaders[leader].versions.insert(draft.record.clone(), version);
            self.events.extend(written.events);
            for (name, seq) in written.acked {
                let waits = |gateway: &Gateway| gateway.name == name && gateway.acked < seq;
                if let Some(gateway) = self.gateways.iter().position(waits) {
                    self.send(Message::Acked { gateway, seq });
                }
            }
            for (gateway, session, id, route, ask) in std::mem::take(&mut self.leaders[leader].waiting) {
                self.hold(leader, gateway, session, id, route, ask);
            }
            for (gateway, session, id, output) in std::mem::take(&mut self.leaders[leader].extending) {
                self.extend_at(leader, gateway, session, id, output);
            }
            return;
        }
        if stored_by > epoch {
            // Another leader has written: this process ends.
            self.leaders.remove(leader);
        } else if stored_by < epoch && Some(&version) != versions.get(&draft.record) {
            // An earlier leader wrote after our read: load again.
            self.leaders.remove(leader);
            self.take_over(1);
        } else {
            self.leaders[leader].versions.insert(draft.record.clone(), version);
            self.leaders[leader].ledger.failed(&draft);
        }
    }
}
