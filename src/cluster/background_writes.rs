//! Counts foreground writes, for whose result a caller waits. Background writes, which only update what people see,
//! wait until there are none.
//!
//! [`super::adaptive_limit`] limits the writes in flight.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// It is quiet this long after the last foreground write, because most foreground operations are several writes in
/// sequence.
const QUIET_DELAY: Duration = Duration::from_millis(20);

/// An extension that marks a request as a background write. It is not counted.
#[derive(Clone, Copy, Debug)]
pub struct BackgroundWrite;

#[derive(Default)]
struct Writes {
    begun: usize,
    last_ended: Option<Instant>,
}

/// The foreground writes of a process. Cheap to clone.
#[derive(Clone, Default)]
pub struct ForegroundWrites(Arc<watch::Sender<Writes>>);

/// A foreground write, until it is dropped.
pub struct ForegroundWrite(ForegroundWrites);

impl ForegroundWrites {
    /// A foreground write begins: it waits for its permit, or is in flight.
    pub fn disturb(&self) -> ForegroundWrite {
        self.0.send_modify(|writes| writes.begun += 1);
        ForegroundWrite(self.clone())
    }

    /// Waits until it is quiet, or for `at_most`.
    pub async fn wait(&self, at_most: Duration) {
        let _ = tokio::time::timeout(at_most, self.wait_until_quiet()).await;
    }

    async fn wait_until_quiet(&self) {
        let mut writes = self.0.subscribe();
        loop {
            // `self` keeps the sender, so this cannot fail.
            let ended = writes.wait_for(|writes| writes.begun == 0).await.ok().and_then(|writes| writes.last_ended);
            let Some(quiet) = ended.map(|ended| ended + QUIET_DELAY).filter(|quiet| *quiet > Instant::now()) else { return };
            tokio::time::sleep_until(quiet).await;
        }
    }
}

impl Drop for ForegroundWrite {
    fn drop(&mut self) {
        self.0.0.send_modify(|writes| {
            writes.begun = writes.begun.saturating_sub(1);
            writes.last_ended = Some(Instant::now());
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Duration = Duration::from_secs(2);

    async fn waited(quiet: &ForegroundWrites) -> Duration {
        let began = Instant::now();
        quiet.wait(MOST).await;
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn where_nobody_writes_nothing_is_waited_for() {
        assert_eq!(waited(&ForegroundWrites::default()).await, Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn what_shows_waits_for_every_write_and_a_moment_longer() {
        let quiet = ForegroundWrites::default();
        let (first, second) = (quiet.disturb(), quiet.disturb());
        let waiting = tokio::spawn({
            let quiet = quiet.clone();
            async move { waited(&quiet).await }
        });
        tokio::time::sleep(Duration::from_millis(100)).await;
        drop(first);
        tokio::time::sleep(Duration::from_millis(100)).await;
        drop(second);
        // Another write within that time starts the wait again.
        tokio::time::sleep(QUIET_DELAY / 2).await;
        let third = quiet.disturb();
        tokio::time::sleep(Duration::from_millis(100)).await;
        drop(third);
        assert_eq!(waiting.await.expect("it ends"), Duration::from_millis(300) + QUIET_DELAY / 2 + QUIET_DELAY);
        assert_eq!(waited(&quiet).await, Duration::ZERO, "and it stays so");
    }

    #[tokio::test(start_paused = true)]
    async fn where_it_is_never_quiet_it_waits_no_longer_than_it_may() {
        let quiet = ForegroundWrites::default();
        let _write = quiet.disturb();
        assert_eq!(waited(&quiet).await, MOST);
    }
}
