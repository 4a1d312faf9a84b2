//! Several gateways of one namespace, like those behind a Service: killed, stopped and restarted while they are called.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Mutex;

use rustix::process::Signal;

use super::caller::Caller;
use super::operator::free_port;
use super::{Operator, TestNamespace, eventually};

/// Gateways that serve until this is dropped.
pub struct Gateways<'a> {
    room: &'a TestNamespace,
    all: Vec<RunningGateway>,
}

struct RunningGateway {
    address: SocketAddr,
    journal: PathBuf,
    process: Mutex<Process>,
}

struct Process {
    running: Option<Operator>,
    life: Life,
}

/// The process that serves at an address. A call that begins in one process and ends in another may be lost for that
/// reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// Number of processes that were killed before it.
    pub number: usize,
    /// Whether it was seen to serve.
    pub serves: bool,
    /// How often it was stopped or continued.
    pub signals: usize,
}

impl<'a> Gateways<'a> {
    /// Starts `count` gateways in the place of the namespace's one, each with a journal of its own. They serve when
    /// this returns.
    pub async fn start(room: &'a TestNamespace, count: usize) -> Self {
        room.kill_gateway();
        let one = |at: usize| RunningGateway {
            address: if at == 0 { room.gateway } else { SocketAddr::new(room.node, free_port(room.node)) },
            journal: room.journal().join(at.to_string()),
            process: Mutex::new(Process { running: None, life: Life { number: 0, serves: false, signals: 0 } }),
        };
        let gateways = Self { room, all: (0..count).map(one).collect() };
        for which in 0..count {
            gateways.begin(which);
            gateways.wait_until_serving(which).await;
        }
        gateways
    }

    fn one(&self, which: usize) -> &RunningGateway {
        self.all.get(which).expect("a gateway with this number")
    }

    pub fn count(&self) -> usize {
        self.all.len()
    }

    pub fn address(&self, which: usize) -> SocketAddr {
        self.one(which).address
    }

    pub fn life(&self, which: usize) -> Life {
        self.one(which).process.lock().expect("not poisoned").life
    }

    fn begin(&self, which: usize) {
        let one = self.one(which);
        let mut process = one.process.lock().expect("not poisoned");
        let name = format!("gateway-{which}-{}", process.life.number);
        process.running = Some(Operator::gateway_at(self.room, &name, one.address, &one.journal));
    }

    /// Waits until the current process serves.
    pub async fn wait_until_serving(&self, which: usize) {
        let caller = Caller::anonymous_at_gateway(self.room).await.at(self.address(which));
        eventually(&format!("gateway {which} serves"), async || caller.connect().await.map(drop)).await;
        self.one(which).process.lock().expect("not poisoned").life.serves = true;
    }

    /// Kills one and starts another in its place, with the same journal. See [`wait_until_serving`](Self::wait_until_serving).
    pub fn kill(&self, which: usize) {
        let mut process = self.one(which).process.lock().expect("not poisoned");
        // First, so that a caller that loses a call finds the reason.
        process.life = Life { number: process.life.number + 1, serves: false, signals: 0 };
        process.running = None;
        drop(process);
        self.begin(which);
    }

    /// Stops it, or continues it.
    pub fn signal(&self, which: usize, signal: Signal) {
        let mut process = self.one(which).process.lock().expect("not poisoned");
        process.life.signals += 1;
        process.running.as_ref().expect("it runs").signal(signal);
    }
}
