//! What the user of `top` chose. Pure; it must not read a key or a clock.

use std::cmp::Reverse;

use super::Row;

/// What agents are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Sort {
    /// By the name for people
    #[default]
    Name,
    /// By phase, in the order of a life
    Phase,
    /// The oldest first
    Age,
    /// Who spent most first
    Tokens,
    /// Who was active last first
    Activity,
}

impl Sort {
    /// The order that a key press leads to.
    pub fn next(self) -> Self {
        match self {
            Self::Name => Self::Phase,
            Self::Phase => Self::Age,
            Self::Age => Self::Tokens,
            Self::Tokens => Self::Activity,
            Self::Activity => Self::Name,
        }
    }

    /// In a word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Phase => "phase",
            Self::Age => "age",
            Self::Tokens => "tokens",
            Self::Activity => "activity",
        }
    }

    /// Agents in this order; equal ones by name.
    pub fn sorted(self, rows: &[Row]) -> Vec<&Row> {
        let mut rows: Vec<&Row> = rows.iter().collect();
        rows.sort_by(|one, other| {
            let by = match self {
                Self::Name => one.display_name.cmp(&other.display_name),
                // Not looked at yet comes first: None is less.
                Self::Phase => one.phase.map(|phase| phase as u8).cmp(&other.phase.map(|phase| phase as u8)),
                Self::Age => (one.created.is_none(), one.created).cmp(&(other.created.is_none(), other.created)),
                Self::Tokens => Reverse(one.tokens).cmp(&Reverse(other.tokens)),
                Self::Activity => Reverse(one.activity).cmp(&Reverse(other.activity)),
            };
            by.then_with(|| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)))
        });
        rows
    }
}

/// What a key means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// End.
    Quit,
    /// Sort by the next column.
    Sort,
    /// Hold the picture, or let it go on.
    Pause,
    /// Scroll by so many rows.
    Rows(isize),
    /// Scroll by so many screens.
    Screens(isize),
    /// To the first row.
    First,
    /// To the last row.
    Last,
}

/// What the user chose, and what came of the last look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The order.
    pub sort: Sort,
    /// The picture is held.
    pub held: bool,
    /// Rows above the first one shown.
    pub offset: usize,
    /// Why the last look failed, and how many did in a row.
    pub failure: Option<(String, u32)>,
    /// The user wants to leave.
    pub over: bool,
}

impl State {
    /// A key, with `rows` agents of which `shown` fit on the screen.
    pub fn press(&mut self, key: Key, rows: usize, shown: usize) {
        match key {
            Key::Quit => self.over = true,
            Key::Sort => self.sort = self.sort.next(),
            Key::Pause => self.held = !self.held,
            Key::Rows(by) => self.offset = self.offset.saturating_add_signed(by),
            Key::Screens(by) => self.offset = self.offset.saturating_add_signed(by.saturating_mul(shown.max(1).cast_signed())),
            Key::First => self.offset = 0,
            Key::Last => self.offset = usize::MAX,
        }
        self.settle(rows, shown);
    }

    /// Keeps rows on the screen: agents may have gone, and the screen may have grown.
    pub fn settle(&mut self, rows: usize, shown: usize) {
        self.offset = self.offset.min(rows.saturating_sub(shown));
    }

    /// A look that was answered.
    pub fn succeeded(&mut self) {
        self.failure = None;
    }

    /// A look that failed.
    pub fn failed(&mut self, words: String) {
        let times = self.failure.as_ref().map_or(0, |(_, times)| *times);
        self.failure = Some((words, times.saturating_add(1)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::agent::AgentPhase;

    fn named(rows: &[&Row]) -> String {
        rows.iter().map(|row| row.name.as_str()).collect()
    }

    #[test]
    fn agents_stand_in_the_order_that_was_chosen() {
        let time = |second| jiff::Timestamp::from_second(second).ok();
        let row = |name: &str, display: &str, phase, tokens, activity, created| Row {
            name: name.into(),
            display_name: display.into(),
            phase,
            tokens,
            activity: time(activity),
            created: time(created),
            ..Row::default()
        };
        let rows = [
            row("a", "wise", Some(AgentPhase::Idle), Some(5), 3, 30),
            row("b", "calm", Some(AgentPhase::Spawning), None, 9, 20),
            row("c", "calm", None, Some(7), 1, 10),
            Row { name: "d".into(), display_name: "able".into(), phase: Some(AgentPhase::Stale), ..Row::default() },
        ];
        let orders = [(Sort::Name, "dbca"), (Sort::Phase, "cbad"), (Sort::Age, "cbad"), (Sort::Tokens, "cabd"), (Sort::Activity, "bacd")];
        for (sort, expected) in orders {
            assert_eq!(named(&sort.sorted(&rows)), expected, "{sort:?}");
        }
        let mut sort = Sort::Name;
        (0..orders.len()).for_each(|_| sort = sort.next());
        assert_eq!(sort, Sort::Name);
    }

    #[test]
    fn scrolling_never_leaves_the_rows() {
        let mut state = State::default();
        let mut press = |key, expected: usize| {
            state.press(key, 25, 10);
            assert_eq!(state.offset, expected, "{key:?}");
        };
        press(Key::Rows(-1), 0);
        press(Key::Rows(1), 1);
        press(Key::Screens(1), 11);
        press(Key::Screens(1), 15);
        press(Key::First, 0);
        press(Key::Last, 15);
        state.settle(3, 10);
        assert_eq!(state.offset, 0);
        state.press(Key::Screens(1), 25, 0);
        assert_eq!(state.offset, 1);
    }

    #[test]
    fn failures_are_counted_until_a_look_succeeds() {
        let mut state = State::default();
        state.failed("w".into());
        state.failed("v".into());
        assert_eq!(state.failure, Some(("v".into(), 2)));
        state.succeeded();
        state.press(Key::Pause, 0, 0);
        assert!(state.failure.is_none() && state.held && !state.over);
    }
}
