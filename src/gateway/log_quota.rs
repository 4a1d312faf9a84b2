//! How many lines of the log refused callers may cause together. Without a bound, one pod without a token fills the disk of the log.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The most lines a second.
const MAX_LINES_PER_SECOND: u32 = 20;

/// Lines of the log in this second.
#[derive(Debug, Default)]
pub struct LogQuota(Mutex<(u64, u32)>);

impl LogQuota {
    /// Takes one line, if there is one left. `now`: the time on a clock that does not go back.
    pub fn take(&self, now: Duration) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (second, lines) = &mut *state;
        if *second != now.as_secs() {
            (*second, *lines) = (now.as_secs(), 0);
        }
        *lines = lines.saturating_add(1);
        *lines <= MAX_LINES_PER_SECOND
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_second_has_so_many_lines() {
        let quota = LogQuota::default();
        let taken = |millis| (0..100).filter(|_| quota.take(Duration::from_millis(millis))).count();
        assert_eq!((taken(0), taken(999), taken(1000), taken(5000)), (20, 0, 20, 20));
    }
}
