//! What the user of `top` chose. Pure; it must not read a key or a clock.

use clap::ValueEnum;

/// In which orders rows may stand: those that the command line takes.
pub trait Order: ValueEnum + Copy + Default + PartialEq {
    /// The order that a key press leads to: the next one, and the first after the last.
    fn next(self) -> Self {
        let all = Self::value_variants().iter().copied();
        all.clone().cycle().take(2 * all.len()).skip_while(|one| *one != self).nth(1).unwrap_or(self)
    }

    /// As the command line has it.
    fn word(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
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
pub struct State<O> {
    /// The order.
    pub sort: O,
    /// The picture is held.
    pub held: bool,
    /// Rows above the first one shown.
    pub offset: usize,
    /// Why the last look failed, and how many did in a row.
    pub failure: Option<(String, u32)>,
    /// The user wants to leave.
    pub over: bool,
}

impl<O: Order> State<O> {
    /// A key, with `rows` rows of which `shown` fit on the screen.
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

    /// Keeps rows on the screen: some may have gone, and the screen may have grown.
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
    use crate::top::agents::Sort;

    type State = super::State<Sort>;

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
    fn a_key_goes_through_all_orders_and_begins_again() {
        let mut state = State::default();
        let mut words = Vec::new();
        for _ in 0..6 {
            words.push(state.sort.word());
            state.press(Key::Sort, 0, 0);
        }
        assert_eq!(words, ["name", "phase", "age", "tokens", "activity", "name"]);
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
