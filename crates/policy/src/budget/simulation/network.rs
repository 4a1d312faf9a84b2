//! The network of the simulated ledger: delivers messages, and applies them at their receivers. It loses none by
//! itself.

use super::super::estimate::HoldRequest;
use super::super::holding::{HoldAnswer, SettleOutcome};
use super::super::session::{JournaledHold, SessionId};
use super::{Call, Leader, Message, Simulation};

impl Simulation {
    pub(super) fn deliver(&mut self, with: u32, double: bool) {
        if self.network.is_empty() {
            return;
        }
        let at = with as usize % self.network.len();
        let message = if double { self.network[at].clone() } else { self.network.swap_remove(at) };
        self.receive(message);
    }

    pub(super) fn receive(&mut self, message: Message) {
        match message {
            Message::Begin { gateway, to, log } => {
                let Some(leader) = self.leader(to) else { return };
                let now = self.now(leader);
                let (session, acked) = self.leaders[leader].ledger.begin(now, &self.gateways[gateway].name, &log);
                self.send(Message::Began { gateway, epoch: to, session });
                self.send(Message::Acked { gateway, seq: acked });
            }
            Message::Began { gateway, epoch, session } => {
                let gateway = &mut self.gateways[gateway];
                if gateway.epoch == epoch {
                    gateway.session = Some(session);
                }
            }
            Message::Hold { gateway, to, session, id, route, ask } => {
                if let Some(leader) = self.leader(to) {
                    self.hold(leader, gateway, session, id, route, ask);
                }
            }
            Message::Answered { gateway: index, epoch, id, open } => {
                let gateway = &mut self.gateways[index];
                // An answer of a replaced leader is ignored, and so is an answer to an abandoned question.
                if gateway.alive && epoch == gateway.epoch && gateway.asked.remove(&id).is_some() {
                    if let Some(open) = open {
                        gateway.open.insert(id, self.calls.len());
                        self.calls.push(Call { open, usage: None });
                        self.given += 1;
                    } else {
                        self.refused += 1;
                    }
                }
            }
            Message::Extend { gateway, to, session, id, output } => {
                if let Some(leader) = self.leader(to) {
                    self.extend_at(leader, gateway, session, id, output);
                }
            }
            Message::Extended { gateway: index, epoch, id, output } => {
                let gateway = &self.gateways[index];
                let call = gateway.open.get(&id).filter(|_| gateway.alive && epoch == gateway.epoch);
                if let Some(call) = call {
                    let open = &mut self.calls[*call].open;
                    self.extended += usize::from(output > open.output);
                    open.output = open.output.max(output);
                }
            }
            Message::Settle { gateway, to, session, settle } => {
                let Some(leader) = self.leader(to) else { return };
                let now = self.now(leader);
                let settled = self.leaders[leader].ledger.settle(now, session, &settle);
                let known = self.gateways[gateway].acked >= settle.seq || settled != SettleOutcome::Unknown;
                assert!(known, "a hold that is open is known: {settle:?}");
            }
            Message::Acked { gateway, seq } => {
                let gateway = &mut self.gateways[gateway];
                assert!(seq <= gateway.seq, "nobody acknowledges what was not told");
                while gateway.acked < seq {
                    gateway.acked += 1;
                    gateway.settles.pop_front();
                }
            }
        }
    }

    pub(super) fn hold(&mut self, leader: usize, gateway: usize, session: SessionId, id: u64, route: usize, ask: HoldRequest) {
        let now = self.now(leader);
        let Leader { ledger, routes, epoch, waiting, .. } = &mut self.leaders[leader];
        let epoch = *epoch;
        // It was given before, and may have been extended since.
        let again = ledger.held_tokens(session, id).is_some();
        let open = match ledger.hold(now, session, id, &mut routes[route], &ask) {
            HoldAnswer::Given(given) => {
                let path = ledger.path(session, id).expect("it is held");
                assert!(given.input == ask.input && (given.output <= ask.output || again) && given.output >= ask.min_output);
                Some(JournaledHold { id, at: given.at, path, input: given.input, output: given.output })
            }
            HoldAnswer::Write(keys) => {
                assert!(!keys.is_empty());
                waiting.push((gateway, session, id, route, ask));
                return;
            }
            HoldAnswer::Refused(_) => None,
            HoldAnswer::Closed | HoldAnswer::Unattached => return,
        };
        self.send(Message::Answered { gateway, epoch, id, open });
    }

    pub(super) fn extend_at(&mut self, leader: usize, gateway: usize, session: SessionId, id: u64, output: i64) {
        let now = self.now(leader);
        let Leader { ledger, epoch, extending, .. } = &mut self.leaders[leader];
        let epoch = *epoch;
        match ledger.extend(now, session, id, output) {
            HoldAnswer::Given(given) => self.send(Message::Extended { gateway, epoch, id, output: given.output }),
            HoldAnswer::Write(_) => extending.push((gateway, session, id, output)),
            // The call may finish in any case.
            HoldAnswer::Refused(_) | HoldAnswer::Closed | HoldAnswer::Unattached => {}
        }
    }
}
