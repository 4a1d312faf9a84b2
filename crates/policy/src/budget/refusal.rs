//! Why a call gets no tokens: the limit in question, when that changes, and the field to raise. The gateway puts it
//! into the words of each dialect.

use std::fmt;

use super::holders::Holders;
use super::node::{Block, Key};
use super::tree::MAX_BUDGET_DEPTH;
use super::window::{Span, Window};

/// A window that ends within this many milliseconds is waited for.
const MAX_WINDOW_WAIT_MS: i64 = 60_000;

/// The cause of a refusal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RefusalCause {
    /// Too many tokens are spent.
    Used,
    /// The call would fit without calls in flight.
    Held,
    /// The call would fit without guarantees of siblings.
    Guaranteed,
    /// A leader was replaced, and not all gateways have reported their holds.
    Recovering,
    /// The call is larger than the whole limit.
    TooLarge,
    /// A threshold paused it.
    Paused,
    /// Too many calls at once.
    InFlight,
    /// More gateways than the ledger supports.
    Gateways,
    /// The budget does not exist.
    Missing,
    /// The budget gives no tokens until a person changes it.
    Blocked(Block),
}

impl RefusalCause {
    /// As one word, for metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Used => "used",
            Self::Held => "held",
            Self::Guaranteed => "guaranteed",
            Self::Recovering => "recovering",
            Self::TooLarge => "too_large",
            Self::Paused => "paused",
            Self::InFlight => "in_flight",
            Self::Gateways => "gateways",
            Self::Missing => "missing",
            Self::Blocked(_) => "blocked",
        }
    }
}

/// Whether another attempt helps, in order of finality.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RetryHint {
    /// After this many seconds.
    Wait(i64),
    /// Not before this time (milliseconds): too long for the work to wait.
    Later(i64),
    /// Not before a person changes something.
    Never,
}

/// The limit that refuses the call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LimitState {
    /// Its name.
    pub name: String,
    /// Its window.
    pub span: Span,
    /// The limit in weighed tokens, with grants.
    pub limit: i64,
    /// Spent: settled, lost, unexplained, and debt.
    pub used: i64,
    /// Held for calls in flight.
    pub held: i64,
    /// What the caller could still have; never below 0.
    pub left: i64,
    /// The least that the call asks for.
    pub asked: i64,
}

/// Why a call gets no tokens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Refusal {
    /// The place that refuses it.
    pub key: Key,
    /// The cause.
    pub cause: RefusalCause,
    /// The limit, if it is one of tokens.
    pub limit: Option<LimitState>,
    /// Whether another attempt helps.
    pub retry: RetryHint,
    /// The field to raise, from the root of its object.
    pub field: String,
    /// The places that have the missing tokens, if known.
    pub holders: Holders,
}

impl Refusal {
    /// A refusal without a limit of tokens.
    pub fn new(key: Key, because: RefusalCause, when: RetryHint, field: &str) -> Self {
        Self { key, cause: because, limit: None, retry: when, field: field.to_owned(), holders: Holders::default() }
    }

    /// When the window ends, in milliseconds.
    pub fn resets_at(&self) -> Option<i64> {
        self.limit.as_ref().and_then(|limit| limit.span.end())
    }

    /// Whether the place is above the agent's lifetime and the item's share. An item that ends because of it is
    /// released, not failed.
    pub fn above_agent(&self) -> bool {
        !self.key.is_leaf()
    }
}

/// A message for the caller: which limit, how much is left, until when, and what to do.
impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, cause: because, limit, retry: when, field, holders } = self;
        if let Some(LimitState { name, limit, left, asked, .. }) = limit {
            write!(out, "{key}: {left} of {limit} tokens are left of the limit {name} and the call asks for {asked}")?;
        } else {
            write!(out, "{key}")?;
        }
        match because {
            RefusalCause::Used => {}
            RefusalCause::Held if limit.is_none() => out.write_str(": it had no tokens for the call a moment ago")?,
            RefusalCause::Held => write!(out, ". Calls in flight hold the rest{holders}")?,
            RefusalCause::Guaranteed => write!(out, ". The rest is guaranteed to others{holders}")?,
            RefusalCause::Recovering => out.write_str(". The leader is new, and not all gateways have reported their holds to it")?,
            RefusalCause::TooLarge => out.write_str(". The whole limit is smaller than the call")?,
            RefusalCause::Paused => out.write_str(". The limit is paused by one of its thresholds")?,
            RefusalCause::InFlight => out.write_str(": too many calls at once")?,
            RefusalCause::Gateways => out.write_str(": more gateways spend from it than the ledger supports")?,
            RefusalCause::Missing => out.write_str(" does not exist")?,
            RefusalCause::Blocked(Block::ParentMissing(parent)) => write!(out, ": its parent Budget/{parent} does not exist")?,
            RefusalCause::Blocked(Block::Cycle(names)) => write!(out, ": its parents form a cycle of the Budgets {}", names.join(", "))?,
            RefusalCause::Blocked(Block::TooDeep) => write!(out, ": its chain of parents is longer than {MAX_BUDGET_DEPTH} Budgets")?,
        }
        match (when, self.resets_at()) {
            (RetryHint::Wait(seconds), _) => write!(out, ". Try again in {seconds} s")?,
            (RetryHint::Later(_), Some(end)) => write!(out, ". The limit resets at {}. Raise {field}", Window::Minute.at(end))?,
            (RetryHint::Later(_) | RetryHint::Never, _) => match because {
                RefusalCause::Missing => out.write_str(". Create a Budget with this metadata.name, or correct the reference to it")?,
                RefusalCause::Blocked(_) => write!(out, ". Correct {field}")?,
                RefusalCause::Used
                | RefusalCause::Held
                | RefusalCause::Guaranteed
                | RefusalCause::Recovering
                | RefusalCause::TooLarge
                | RefusalCause::Paused
                | RefusalCause::InFlight
                | RefusalCause::Gateways => write!(out, ". Raise {field}")?,
            },
        }
        match because {
            RefusalCause::Guaranteed => out.write_str(", or lower limits[].guaranteed of the others"),
            RefusalCause::Used
            | RefusalCause::Held
            | RefusalCause::Recovering
            | RefusalCause::TooLarge
            | RefusalCause::Paused
            | RefusalCause::InFlight
            | RefusalCause::Gateways
            | RefusalCause::Missing
            | RefusalCause::Blocked(_) => Ok(()),
        }
    }
}

/// The field that sets the limit of a place.
pub(super) fn field_of(key: &Key, limit: &str) -> String {
    match key {
        Key::Cluster(_) | Key::Budget { .. } => format!("spec.tokens.limits[{limit}].tokens"),
        Key::Namespace { .. } => format!("spec.perNamespace.tokens.limits[{limit}].tokens"),
        Key::Share { of, name } => match of.as_ref() {
            Key::Namespace { .. } => format!("spec.perNamespace.tokens.reservations[{name}].percent"),
            Key::Cluster(_) | Key::Budget { .. } | Key::Share { .. } | Key::Agent(_) | Key::Task { .. } => {
                format!("spec.tokens.reservations[{name}].percent")
            }
        },
        Key::Agent(_) => "spec.bulkhead.lifetimeTokens of its AgentPool".to_owned(),
        Key::Task { .. } => "spec.bulkhead.tokens of its WorkItem".to_owned(),
    }
}

/// The amounts of a limit that has not enough left.
#[derive(Clone, Copy, Debug)]
pub(super) struct LimitRoom {
    pub height: i64,
    /// Without unexplained tokens.
    pub spent: i64,
    pub unexplained: i64,
    pub held: i64,
    /// Guaranteed to others than the caller.
    pub reserved: i64,
    pub asked: i64,
    pub paused: bool,
}

/// The cause: the first of these that must change in any case.
pub(super) fn cause_of(room: &LimitRoom) -> RefusalCause {
    let LimitRoom { height, spent, unexplained: rest, held, reserved, asked, paused } = *room;
    if asked > height {
        return RefusalCause::TooLarge;
    }
    let left = height.saturating_sub(spent);
    if asked > left {
        return RefusalCause::Used;
    }
    if paused {
        return RefusalCause::Paused;
    }
    if asked > left.saturating_sub(reserved) {
        return RefusalCause::Guaranteed;
    }
    if asked > left.saturating_sub(reserved).saturating_sub(rest) && held == 0 { RefusalCause::Recovering } else { RefusalCause::Held }
}

/// Whether another attempt helps. `spread` makes callers come back at different times.
pub(super) fn retry_hint(because: &RefusalCause, span: Option<Span>, now: i64, spread: u64) -> RetryHint {
    match because {
        RefusalCause::Held | RefusalCause::Recovering | RefusalCause::InFlight | RefusalCause::Gateways => {
            RetryHint::Wait(1 + i64::try_from(spread % 5).unwrap_or(0))
        }
        RefusalCause::Used | RefusalCause::Guaranteed | RefusalCause::Paused => match span.and_then(Span::end) {
            Some(end) if end.saturating_sub(now) <= MAX_WINDOW_WAIT_MS => {
                RetryHint::Wait(end.saturating_sub(now).max(1).saturating_add(999) / 1000)
            }
            Some(end) => RetryHint::Later(end),
            None => RetryHint::Never,
        },
        RefusalCause::TooLarge | RefusalCause::Missing | RefusalCause::Blocked(_) => RetryHint::Never,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: LimitRoom = LimitRoom { height: 100, spent: 0, unexplained: 0, held: 0, reserved: 0, asked: 10, paused: false };

    #[test]
    fn the_first_thing_that_would_have_to_change_is_named() {
        let cases = [
            (LimitRoom { asked: 101, spent: 100, ..ROOM }, RefusalCause::TooLarge),
            (LimitRoom { spent: 91, held: 5, ..ROOM }, RefusalCause::Used),
            (LimitRoom { spent: 90, held: 5, ..ROOM }, RefusalCause::Held),
            (LimitRoom { spent: 90, held: 5, reserved: 1, ..ROOM }, RefusalCause::Guaranteed),
            (LimitRoom { unexplained: 95, ..ROOM }, RefusalCause::Recovering),
            (LimitRoom { unexplained: 50, held: 45, ..ROOM }, RefusalCause::Held),
            (LimitRoom { paused: true, ..ROOM }, RefusalCause::Paused),
        ];
        for (room, want) in cases {
            assert_eq!(cause_of(&room), want, "{room:?}");
        }
    }

    #[test]
    fn holds_are_waited_for_and_so_is_a_window_that_ends_soon() {
        let span = Window::Hour.at(0);
        assert_eq!(retry_hint(&RefusalCause::Held, Some(span), 0, 7), RetryHint::Wait(3));
        assert_eq!(retry_hint(&RefusalCause::Used, Some(span), 3_600_000 - 60_000, 7), RetryHint::Wait(60));
        assert_eq!(retry_hint(&RefusalCause::Used, Some(span), 3_600_000 - 1, 7), RetryHint::Wait(1));
        assert_eq!(retry_hint(&RefusalCause::Used, Some(span), 0, 7), RetryHint::Later(3_600_000));
        assert_eq!(retry_hint(&RefusalCause::Used, Some(Window::Lifetime.at(0)), 0, 7), RetryHint::Never);
        assert_eq!(retry_hint(&RefusalCause::TooLarge, Some(span), 3_599_999, 7), RetryHint::Never, "no window is large enough");
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        let limit = LimitState { name: "hourly".into(), span: Window::Hour.at(0), limit: 100, used: 95, held: 0, left: 5, asked: 10 };
        let key = Key::budget("team", "default");
        let field = field_of(&key, "hourly");
        let refusal = Refusal { limit: Some(limit), ..Refusal::new(key, RefusalCause::Used, RetryHint::Later(3_600_000), &field) };
        assert_eq!(
            refusal.to_string(),
            "Budget/default in team: 5 of 100 tokens are left of the limit hourly and the call asks for 10. The limit resets at \
             1970-01-01T01:00Z. Raise spec.tokens.limits[hourly].tokens"
        );
        assert!(refusal.above_agent());
        assert!(!Refusal { key: Key::Agent("a".into()), ..refusal }.above_agent());
    }
}
