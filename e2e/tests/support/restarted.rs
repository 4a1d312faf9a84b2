//! The controllers of one namespace, kept like those of a Deployment: a controller that ends is restarted, whatever the
//! cause, also after a lost lease on a busy machine.

use std::sync::Mutex;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;

use super::{Operator, TestNamespace, check_state, eventually};

/// Controllers that run until this is dropped.
pub struct Controllers(Mutex<State>);

struct State {
    running: Vec<Operator>,
    started: usize,
}

impl State {
    fn start(&mut self, room: &TestNamespace) -> Operator {
        self.started += 1;
        room.operator(&format!("controller-{}", self.started))
    }
}

impl Controllers {
    pub fn start(room: &TestNamespace, count: usize) -> Self {
        let mut state = State { running: Vec::new(), started: 0 };
        for _ in 0..count {
            let one = state.start(room);
            state.running.push(one);
        }
        Self(Mutex::new(state))
    }

    /// Restarts them until the test is over.
    pub async fn run_during(&self, room: &TestNamespace, test: impl Future<Output = ()>) {
        tokio::select! {
            () = test => {}
            () = self.keep_running(room) => {}
        }
    }

    async fn keep_running(&self, room: &TestNamespace) {
        loop {
            self.restart(room);
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    }

    fn restart(&self, room: &TestNamespace) {
        let mut state = self.0.lock().expect("not poisoned");
        for at in 0..state.running.len() {
            if !state.running[at].runs() {
                state.running[at] = state.start(room);
            }
        }
    }

    /// The controller with this holder identity, if it was not replaced.
    pub fn with<T>(&self, holder: &str, act: impl FnOnce(&Operator) -> T) -> Option<T> {
        let state = self.0.lock().expect("not poisoned");
        state.running.iter().find(|controller| controller.is_holder(holder)).map(act)
    }

    /// Waits until another controller than this one holds the lease; its holder identity.
    pub async fn leader(&self, room: &TestNamespace, but: &str) -> String {
        eventually("one of the controllers leads", async || {
            let lease = room.api::<Lease>().get_opt("spillway-controller").await.map_err(|error| error.to_string())?;
            let holder = lease.and_then(|lease| lease.spec?.holder_identity).unwrap_or_default();
            let leads = holder != but && self.with(&holder, |_| ()).is_some();
            check_state(leads, || format!("the holder is {holder:?}")).map(|()| holder)
        })
        .await
    }
}
