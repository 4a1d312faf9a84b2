//! The signals that end the live table, and on Windows the events of its console.

use std::io;

#[cfg(unix)]
pub use unix::StopSignals;
#[cfg(windows)]
pub use windows::StopSignals;

#[cfg(unix)]
mod unix {
    use super::io;
    use tokio::signal::unix::{Signal, SignalKind, signal};

    /// Interrupt, termination, and the loss of the terminal.
    #[derive(Debug)]
    pub struct StopSignals([Signal; 3]);

    impl StopSignals {
        /// Installs the handlers. These signals then do not end the program any more.
        pub fn listen() -> io::Result<Self> {
            Ok(Self([signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::hangup())?]))
        }

        /// Completes at the first of these signals.
        pub async fn any(&mut self) {
            let Self([interrupt, terminate, hangup]) = self;
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
            }
        }
    }
}

#[cfg(windows)]
mod windows {
    use super::io;
    use tokio::signal::windows::{CtrlBreak, CtrlC, CtrlClose, CtrlLogoff, CtrlShutdown};

    /// Ctrl-C, Ctrl-Break, the close of the window, logoff, and shutdown. After the last three, Windows ends the process within
    /// seconds.
    #[derive(Debug)]
    pub struct StopSignals {
        interrupt: CtrlC,
        terminate: CtrlBreak,
        close: CtrlClose,
        logoff: CtrlLogoff,
        shutdown: CtrlShutdown,
    }

    impl StopSignals {
        /// Installs the handlers. Ctrl-C and Ctrl-Break then do not end the program any more.
        pub fn listen() -> io::Result<Self> {
            use tokio::signal::windows::{ctrl_break, ctrl_c, ctrl_close, ctrl_logoff, ctrl_shutdown};
            Ok(Self {
                interrupt: ctrl_c()?,
                terminate: ctrl_break()?,
                close: ctrl_close()?,
                logoff: ctrl_logoff()?,
                shutdown: ctrl_shutdown()?,
            })
        }

        /// Completes at the first of these signals.
        pub async fn any(&mut self) {
            let Self { interrupt, terminate, close, logoff, shutdown } = self;
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = close.recv() => {}
                _ = logoff.recv() => {}
                _ = shutdown.recv() => {}
            }
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::StopSignals;

    #[tokio::test]
    async fn each_signal_ends_the_wait() {
        for signal in ["INT", "TERM", "HUP"] {
            let mut signals = StopSignals::listen().expect("it listens");
            let sent = std::process::Command::new("kill").args(["-s", signal, &std::process::id().to_string()]).status();
            assert!(sent.expect("kill runs").success());
            tokio::time::timeout(std::time::Duration::from_secs(10), signals.any()).await.unwrap_or_else(|_| panic!("{signal} came"));
        }
    }
}
