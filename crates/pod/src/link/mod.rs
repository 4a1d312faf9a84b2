//! The sidecar: it alone holds the pod's token and calls the gateway.
//!
//! One loop owns the [state](state::Link) and carries out its plans. Calls, tests of the canary and connections are tasks that
//! send their results to the loop. The sidecar never starts or ends the program itself: it sends orders to the supervisor. State
//! that must survive a restart is in the [journal](journal::Journal) before a caller gets the answer that it is kept.
//!
//! | file | for |
//! |---|---|
//! | [`state`], [`work`], [`commands`], [`conversations`] | pure decisions: the agent, its items, its commands, its model calls |
//! | `sidecar`, [`input`], `input_handling`, [`action`] | the loop, its inputs and its actions |
//! | [`gateway`], [`calls`], [`retry`] | HTTPS to the gateway; the calls; when a call is repeated |
//! | [`socket`], [`loopback`] | the unix socket; the loopback ports |
//! | [`models`], [`egress`], [`forwarded_port`], `folder_port` | the ports: model calls; other hosts; the repository of the pool, and artifacts; the folder of the pool |
//! | `forwarding` | what the ports share: headers, the item of a request, answers in plain text |
//! | [`canary`] | the test that the network is isolated |
//! | [`journal`], [`kept_state`] | state that survives a restart |

pub mod action;
pub mod canary;
pub mod commands;
pub mod conversations;
pub mod egress;
mod folder_port;
pub mod forwarded_port;
mod forwarding;
pub mod gateway;
pub mod input;
mod input_handling;
pub mod journal;
pub mod kept_state;
pub mod loopback;
pub mod models;
mod options;
pub mod retry;
mod sidecar;
pub mod socket;
pub mod state;
pub mod work;

pub mod calls;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use spillway_wire::agent::Goodbye;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::link_says;
use gateway::Gateway;
use sidecar::Sidecar;

pub use options::{ExternalOptions, Options};

/// Time limit after SIGTERM to send what is not sent yet.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);
/// Time limit of the last goodbye, which is answered when it is stored.
const FINAL_GOODBYE_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs the sidecar until SIGTERM.
pub fn run(options: &Options) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let gateway = Gateway::new(options.gateway.clone(), options.ca.clone(), options.token.clone());
        let end = async {
            terminate.recv().await;
            link_says!("got SIGTERM: the sidecar ends");
            None
        };
        serve(options, Arc::new(gateway), None, end).await
    })
}

/// Serves until `end`, and a moment longer to send what is left, such as the goodbye that `end` returns.
pub async fn serve(
    options: &Options,
    gateway: Arc<Gateway>,
    outside: Option<ExternalOptions>,
    end: impl Future<Output = Option<Goodbye>>,
) -> io::Result<()> {
    let (inputs, mut received) = mpsc::channel(64);
    let listener = socket::bind(&options.socket)?;
    tokio::spawn(socket::serve(listener, inputs.clone()));
    let mut sidecar = Sidecar::new(options, gateway, inputs);
    match outside {
        None => loopback::serve(options.first_port, sidecar.ports()),
        Some(ExternalOptions { wanted, models, secret }) => {
            loopback::serve_models(models, sidecar.models().behind_secret(&secret));
            sidecar.external_directive = Some(wanted);
        }
    }
    link_says!("started; the gateway is {}", options.gateway);
    let goodbye = sidecar.run(&mut received, end).await;
    let within = if goodbye.is_some() { FINAL_GOODBYE_TIMEOUT } else { FLUSH_TIMEOUT };
    if let Some(goodbye) = goodbye {
        sidecar.keep_goodbye(goodbye);
    }
    sidecar.flush(&mut received, within).await;
    Ok(())
}
