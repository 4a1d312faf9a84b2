//! The state of the view in `top`. Pure. It must not read a key or a clock.

use clap::ValueEnum;

/// The sort orders of a subject, as the command line accepts them.
pub trait Order: ValueEnum + Copy + Default + PartialEq {
    /// The order after a key press: the next one, or the first after the last.
    fn next(self) -> Self {
        let all = Self::value_variants().iter().copied();
        all.clone().cycle().take(2 * all.len()).skip_while(|one| *one != self).nth(1).unwrap_or(self)
    }

    /// Its name on the command line.
    fn option_name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// The action of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// Quit.
    Quit,
    /// Sort by the next column.
    Sort,
    /// Pause or resume the refresh.
    Pause,
    /// Scroll by this number of rows.
    Rows(isize),
    /// Scroll by this number of screens.
    Screens(isize),
    /// To the first row.
    First,
    /// To the last row.
    Last,
}

/// The choices of the user, and the result of the last refresh.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State<O> {
    /// The order.
    pub sort: O,
    /// Whether the refresh is paused.
    pub paused: bool,
    /// The number of rows above the first visible one.
    pub offset: usize,
    /// The error of the last refresh, and how many refreshes failed in a row.
    pub failure: Option<(String, u32)>,
    /// Whether the user quits.
    pub quit: bool,
}

impl<O: Order> State<O> {
    /// Handles a key. `rows` is the number of rows, and `shown` the number that fits on the screen.
    pub fn press(&mut self, key: Key, rows: usize, shown: usize) {
        match key {
            Key::Quit => self.quit = true,
            Key::Sort => self.sort = self.sort.next(),
            Key::Pause => self.paused = !self.paused,
            Key::Rows(by) => self.offset = self.offset.saturating_add_signed(by),
            Key::Screens(by) => self.offset = self.offset.saturating_add_signed(by.saturating_mul(shown.max(1).cast_signed())),
            Key::First => self.offset = 0,
            Key::Last => self.offset = usize::MAX,
        }
        self.settle(rows, shown);
    }

    /// Corrects the offset, because rows may be gone and the screen may be larger.
    pub fn settle(&mut self, rows: usize, shown: usize) {
        self.offset = self.offset.min(rows.saturating_sub(shown));
    }

    /// Records a refresh that succeeded.
    pub fn succeeded(&mut self) {
        self.failure = None;
    }

    /// Records a refresh that failed.
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
            words.push(state.sort.option_name());
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
        assert!(state.failure.is_none() && state.paused && !state.quit);
    }
}
