//! Polls until a condition holds or the time is up. All commands that wait use this loop.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use super::error::Error;

/// The time between two reads.
pub const WAIT_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Check<T> {
    /// The wait is over.
    Done(T),
    /// The condition does not hold yet, with the current state as text.
    NotYet(String),
}

/// The result of waiting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waited<T> {
    /// The condition held in time.
    Done(T),
    /// The time is up, with the state of the last check.
    TimedOut(String),
}

/// Calls `look` until it is done, at most until `deadline` (none: no limit), with `pause` between two calls.
///
/// # Errors
/// The first error of `look` ends the wait.
pub async fn until<T>(
    deadline: Option<Instant>,
    pause: Duration,
    mut look: impl AsyncFnMut() -> Result<Check<T>, Error>,
) -> Result<Waited<T>, Error> {
    let mut last = "no answer yet".to_owned();
    loop {
        match before_deadline(deadline, look()).await {
            None => return Ok(Waited::TimedOut(last)),
            Some(answer) => match answer? {
                Check::Done(done) => return Ok(Waited::Done(done)),
                Check::NotYet(words) => last = words,
            },
        }
        if before_deadline(deadline, sleep(pause)).await.is_none() {
            return Ok(Waited::TimedOut(last));
        }
    }
}

async fn before_deadline<T>(deadline: Option<Instant>, work: impl Future<Output = T>) -> Option<T> {
    match deadline {
        Some(deadline) => timeout_at(deadline, work).await.ok(),
        None => Some(work.await),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_looks_until_it_is_over_and_is_told_what_was_seen_last() {
        let mut looks = 0;
        let waited = until(None, WAIT_POLL_INTERVAL, async || {
            looks += 1;
            Ok(if looks == 3 { Check::Done(looks) } else { Check::NotYet(format!("look {looks}")) })
        })
        .await;
        assert_eq!(waited.expect("an answer"), Waited::Done(3));
        let deadline = Instant::now() + Duration::from_millis(700);
        let mut looks = 0;
        let waited: Result<Waited<()>, Error> = until(Some(deadline), WAIT_POLL_INTERVAL, async || {
            looks += 1;
            Ok(Check::NotYet(format!("look {looks}")))
        })
        .await;
        assert_eq!(waited.expect("an answer"), Waited::TimedOut("look 2".into()));
        let waited: Result<Waited<()>, Error> = until(None, WAIT_POLL_INTERVAL, async || Err(Error::Usage("no".into()))).await;
        assert_eq!(waited.expect_err("refused").to_string(), "no");
    }
}
