//! How long a connection may live. Pure: the time is an argument.
//!
//! What always holds: a strange connection ends a bounded time after its start, whatever the peer sends. A known
//! connection lives while a request runs on it, and is closed when it has been idle for a time.

use std::time::Duration;

/// Time limits.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// From the start of a strange connection to its end: for the handshake and for a request with a valid token.
    pub strange: Duration,
    /// From the first byte of a request's head to its last (HTTP/1).
    pub head: Duration,
    /// Between two requests on a known connection.
    pub idle: Duration,
    /// For the last responses, once the peer was asked to close.
    pub close: Duration,
}

/// What the driver of a connection must do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask again at this time, or after the next event.
    WaitUntil(Duration),
    /// Ask again after the next event.
    Wait,
    /// Accept no new requests, and tell the peer so.
    Close,
    /// Drop it.
    End,
}

/// What happened on a connection so far.
#[derive(Clone, Copy, Debug)]
pub struct Lifetime {
    times: Times,
    began: Duration,
    known: bool,
    /// Running requests. A request runs until the last byte of its response is handed over.
    running: u32,
    /// Since when no request runs.
    resting_since: Duration,
    /// When the first byte of an incomplete head arrived (HTTP/1).
    head_since: Option<Duration>,
    refused: bool,
    closing_since: Option<Duration>,
}

impl Lifetime {
    /// A connection that begins at `now`.
    pub fn new(times: Times, now: Duration) -> Self {
        Self { times, began: now, known: false, running: 0, resting_since: now, head_since: None, refused: false, closing_since: None }
    }

    /// A request on it was accepted.
    pub fn admitted(&mut self) {
        self.known = true;
    }

    /// The token of a request on it was refused: a known connection accepts no more requests.
    pub fn refused(&mut self) {
        self.refused = true;
    }

    /// Whether the token of a request on it was refused.
    pub fn is_refused(&self) -> bool {
        self.refused
    }

    /// The peer was asked to close it.
    pub fn closing(&mut self, now: Duration) {
        self.closing_since.get_or_insert(now);
    }

    /// Bytes arrived (HTTP/1). True: a head begins with them.
    pub fn bytes_received(&mut self, now: Duration) -> bool {
        let begins = self.running == 0 && self.head_since.is_none();
        if begins {
            self.head_since = Some(now);
        }
        begins
    }

    /// The head of a request is complete.
    pub fn request_began(&mut self) {
        self.running += 1;
        self.head_since = None;
    }

    /// The response to a request is handed over, or dropped. True: no other request runs.
    pub fn request_ended(&mut self, now: Duration) -> bool {
        self.running = self.running.saturating_sub(1);
        self.resting_since = now;
        self.running == 0
    }

    /// The step that is due at `now`.
    pub fn step(&self, now: Duration) -> Step {
        let Self { times, began, known, running, resting_since, head_since, refused, closing_since } = *self;
        let busy = known && running > 0;
        let until = |deadline: Duration, due: Step| if now >= deadline { due } else { Step::WaitUntil(deadline) };
        match closing_since {
            Some(_) if busy => Step::Wait,
            // The response that ended last also gets this time.
            Some(since) if known => until(since.max(resting_since) + times.close, Step::End),
            Some(since) => until(since + times.close, Step::End),
            None if !known => until(began + times.strange, Step::Close),
            None if refused => Step::Close,
            None if busy => Step::Wait,
            None => {
                let rest = resting_since + times.idle;
                until(head_since.map_or(rest, |since| rest.min(since + times.head)), Step::Close)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;
    const TIMES: Times = Times {
        strange: Duration::from_secs(10),
        head: Duration::from_secs(10),
        idle: Duration::from_secs(75),
        close: Duration::from_secs(2),
    };

    fn known() -> Lifetime {
        let mut life = Lifetime::new(TIMES, S(0));
        life.bytes_received(S(1));
        life.request_began();
        life.admitted();
        life
    }

    #[test]
    fn a_strange_one_ends_whatever_it_does() {
        let mut life = Lifetime::new(TIMES, S(0));
        assert_eq!(life.step(S(0)), Step::WaitUntil(S(10)));
        for second in 1..10 {
            life.bytes_received(S(second));
            life.request_began();
            life.refused();
            if second % 2 == 0 {
                life.request_ended(S(second));
            }
            assert_eq!(life.step(S(second)), Step::WaitUntil(S(10)));
        }
        assert_eq!(life.step(S(10)), Step::Close);
        life.closing(S(10));
        assert_eq!(life.step(S(11)), Step::WaitUntil(S(12)), "answers on their way get a moment");
        assert_eq!(life.step(S(12)), Step::End, "also while requests run that nobody let in");
    }

    #[test]
    fn a_known_one_lives_while_a_request_runs_and_then_rests() {
        let mut life = known();
        assert_eq!(life.step(S(100_000)), Step::Wait);
        assert!(life.request_ended(S(100_000)));
        assert_eq!(life.step(S(100_001)), Step::WaitUntil(S(100_075)));
        assert_eq!(life.step(S(100_075)), Step::Close);
    }

    #[test]
    fn a_head_that_began_must_be_whole_soon() {
        let mut life = known();
        life.request_ended(S(20));
        assert!(life.bytes_received(S(50)));
        assert!(!life.bytes_received(S(55)), "the same head");
        assert_eq!(life.step(S(55)), Step::WaitUntil(S(60)));
        assert_eq!(life.step(S(60)), Step::Close);
        life.request_began();
        assert_eq!(life.step(S(60)), Step::Wait, "it is whole");
    }

    #[test]
    fn bytes_beside_a_request_are_its_body() {
        let mut life = known();
        assert!(!life.bytes_received(S(2)));
        life.request_ended(S(3));
        assert_eq!(life.step(S(3)), Step::WaitUntil(S(78)));
    }

    #[test]
    fn who_is_refused_later_gets_its_running_answers_and_no_more() {
        let mut life = known();
        life.request_began();
        life.refused();
        life.request_ended(S(5));
        assert_eq!(life.step(S(5)), Step::Close);
        life.closing(S(5));
        assert_eq!(life.step(S(5000)), Step::Wait, "a request that was let in runs on");
        life.request_ended(S(5001));
        assert_eq!(life.step(S(5001)), Step::WaitUntil(S(5003)));
        assert_eq!(life.step(S(5003)), Step::End);
    }

    #[test]
    fn who_is_let_in_while_it_is_closing_gets_its_answer() {
        let mut life = Lifetime::new(TIMES, S(0));
        life.request_began();
        life.closing(S(10));
        life.admitted();
        assert_eq!(life.step(S(1000)), Step::Wait);
        life.request_ended(S(1000));
        assert_eq!(life.step(S(1002)), Step::End);
    }
}
