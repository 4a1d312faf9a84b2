//! The windows of limits: aligned in UTC, weeks from Monday, each with a number, a start and an end. And their clock,
//! which never goes back and never stands still.
//!
//! Integers only. Times are milliseconds since the Unix epoch; they come in as arguments.

use std::fmt;

const MS_PER_SECOND: i64 = 1000;
const MS_PER_MINUTE: i64 = 60 * MS_PER_SECOND;
const MS_PER_HOUR: i64 = 60 * MS_PER_MINUTE;
const MS_PER_DAY: i64 = 24 * MS_PER_HOUR;
/// The distance from the last Monday before 1970 to 1 January 1970, a Thursday, in days.
const FIRST_MONDAY_OFFSET_DAYS: i64 = 3;
/// The last millisecond of the year 9999. Later times count as this one, so that no sum of times can overflow.
const MAX_UNIX_MS: i64 = 253_402_300_799_999;
/// While the ledger's clock is ahead of the wall clock, it runs slower by this fraction.
const CLOCK_SLOWDOWN_DIVISOR: u64 = 8;

/// A kind of window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the names are the documentation")]
pub enum Window {
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Lifetime,
}

impl Window {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Lifetime];

    /// Its name, as in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Minute => "Minute",
            Self::Hour => "Hour",
            Self::Day => "Day",
            Self::Week => "Week",
            Self::Month => "Month",
            Self::Lifetime => "Lifetime",
        }
    }

    /// The window of this kind that contains a time (milliseconds).
    pub fn at(self, time: i64) -> Span {
        let time = time.clamp(0, MAX_UNIX_MS);
        let days = time.div_euclid(MS_PER_DAY);
        let index = match self {
            Self::Minute => time.div_euclid(MS_PER_MINUTE),
            Self::Hour => time.div_euclid(MS_PER_HOUR),
            Self::Day => days,
            Self::Week => (days + FIRST_MONDAY_OFFSET_DAYS).div_euclid(7),
            Self::Month => {
                let (year, month, _) = date(days);
                (year - 1970) * 12 + month - 1
            }
            Self::Lifetime => 0,
        };
        Span { window: self, index }
    }
}

/// One window. Its number counts the windows of its kind from the one that contains 1 January 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// Its kind.
    pub window: Window,
    /// Its number.
    pub index: i64,
}

impl Span {
    /// Its first millisecond; `i64::MIN` for a lifetime.
    pub fn start(self) -> i64 {
        match self.window {
            Window::Minute => self.index.saturating_mul(MS_PER_MINUTE),
            Window::Hour => self.index.saturating_mul(MS_PER_HOUR),
            Window::Day => self.index.saturating_mul(MS_PER_DAY),
            Window::Week => self.index.saturating_mul(7).saturating_sub(FIRST_MONDAY_OFFSET_DAYS).saturating_mul(MS_PER_DAY),
            Window::Month => {
                days_of(1970_i64.saturating_add(self.index.div_euclid(12)), self.index.rem_euclid(12) + 1, 1).saturating_mul(MS_PER_DAY)
            }
            Window::Lifetime => i64::MIN,
        }
    }

    /// The first millisecond after it; none for a lifetime.
    pub fn end(self) -> Option<i64> {
        match self.window {
            Window::Lifetime => None,
            Window::Minute | Window::Hour | Window::Day | Window::Week | Window::Month => Some(self.next().start()),
        }
    }

    /// The next window.
    pub fn next(self) -> Self {
        Self { index: self.index.saturating_add(1), ..self }
    }

    /// Parses the text of [`fmt::Display`].
    pub fn parse(text: &str) -> Option<Self> {
        if text == "lifetime" {
            return Some(Self { window: Window::Lifetime, index: 0 });
        }
        let (day, rest) = match (text.strip_suffix("/P1W"), text.split_once('T')) {
            (Some(day), _) => (day, None),
            (None, Some((day, time))) => (day, Some(time.strip_suffix('Z')?)),
            (None, None) => (text, None),
        };
        let numbers: Vec<i64> = day.split('-').map(number).collect::<Option<_>>()?;
        let (window, days) = match (numbers.as_slice(), rest) {
            ([year, month], None) => (Window::Month, days_of(*year, *month, 1)),
            ([year, month, day], None) if text.ends_with("/P1W") => (Window::Week, days_of(*year, *month, *day)),
            ([year, month, day], None) => (Window::Day, days_of(*year, *month, *day)),
            ([year, month, day], Some(time)) if time.contains(':') => (Window::Minute, days_of(*year, *month, *day)),
            ([year, month, day], Some(_)) => (Window::Hour, days_of(*year, *month, *day)),
            _ => return None,
        };
        let minutes = match rest.map(|time| time.split_once(':').map_or((time, "00"), |both| both)) {
            Some((hours, minutes)) => number(hours)? * 60 + number(minutes)?,
            None => 0,
        };
        let span = window.at(days.saturating_mul(MS_PER_DAY).saturating_add(minutes * MS_PER_MINUTE));
        // A text that differs from our own format was not written by us.
        (span.to_string() == text).then_some(span)
    }
}

/// At most four digits: years end with 9999.
fn number(text: &str) -> Option<i64> {
    (text.len() <= 4 && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

/// The start of the window, as exact as its kind needs. So the text also shows the kind (`2026-11`, `2026-11-22`,
/// `2026-11-16/P1W`, `2026-11-22T10Z`, `2026-11-22T10:05Z`, `lifetime`).
impl fmt::Display for Span {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.window == Window::Lifetime {
            return out.write_str("lifetime");
        }
        let start = self.start();
        let (year, month, day) = date(start.div_euclid(MS_PER_DAY));
        let (hour, minute) = (start.rem_euclid(MS_PER_DAY) / MS_PER_HOUR, start.rem_euclid(MS_PER_HOUR) / MS_PER_MINUTE);
        match self.window {
            Window::Minute => write!(out, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}Z"),
            Window::Hour => write!(out, "{year:04}-{month:02}-{day:02}T{hour:02}Z"),
            Window::Day => write!(out, "{year:04}-{month:02}-{day:02}"),
            Window::Week => write!(out, "{year:04}-{month:02}-{day:02}/P1W"),
            Window::Month => write!(out, "{year:04}-{month:02}"),
            Window::Lifetime => Ok(()),
        }
    }
}

/// Year, month and day of the day with this number after 1 January 1970. The year is taken to begin in March, so that
/// the leap day is its last; 400 years have 146,097 days.
fn date(days: i64) -> (i64, i64, i64) {
    let days = days.saturating_add(719_468);
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// The inverse: days since 1 January 1970.
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = year.clamp(0, 20_000) - i64::from(month <= 2);
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// The clock of windows: the wall clock, but it never goes back (a window that was left is not entered again) and never
/// stands still (a corrected wall clock must not stretch an hour to a day). While it is ahead of the wall clock it runs
/// slower by an eighth, until the wall clock has caught up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Clock {
    /// Its time when it last equalled the wall clock, in milliseconds.
    base_time: i64,
    /// The steady clock at that moment, in milliseconds.
    ticks: u64,
}

impl Clock {
    /// The clock of a new leader: no earlier than `not_before`, the latest start of a window that was counted before.
    /// `wall` is the wall clock, `ticks` a steady clock, both in milliseconds.
    pub fn start(wall: i64, ticks: u64, not_before: i64) -> Self {
        Self { base_time: wall.max(not_before), ticks }
    }

    /// The time in milliseconds.
    pub fn now(&mut self, wall: i64, ticks: u64) -> i64 {
        let passed = ticks.saturating_sub(self.ticks);
        let slow = self.base_time.saturating_add_unsigned(passed - passed / CLOCK_SLOWDOWN_DIVISOR);
        if wall >= slow {
            *self = Self { base_time: wall, ticks: ticks.max(self.ticks) };
            return wall;
        }
        slow
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(year: i64, month: i64, day: i64, hour: i64, minute: i64) -> i64 {
        days_of(year, month, day) * MS_PER_DAY + hour * MS_PER_HOUR + minute * MS_PER_MINUTE
    }

    #[test]
    fn windows_are_aligned_and_weeks_begin_on_monday() {
        let sunday = at(2026, 11, 22, 10, 57) + 12_345;
        let cases = [
            (Window::Minute, "2026-11-22T10:57Z", at(2026, 11, 22, 10, 57), Some(at(2026, 11, 22, 10, 58))),
            (Window::Hour, "2026-11-22T10Z", at(2026, 11, 22, 10, 0), Some(at(2026, 11, 22, 11, 0))),
            (Window::Day, "2026-11-22", at(2026, 11, 22, 0, 0), Some(at(2026, 11, 23, 0, 0))),
            (Window::Week, "2026-11-16/P1W", at(2026, 11, 16, 0, 0), Some(at(2026, 11, 23, 0, 0))),
            (Window::Month, "2026-11", at(2026, 11, 1, 0, 0), Some(at(2026, 12, 1, 0, 0))),
            (Window::Lifetime, "lifetime", i64::MIN, None),
        ];
        for (window, text, start, end) in cases {
            let span = window.at(sunday);
            assert_eq!((span.to_string().as_str(), span.start(), span.end()), (text, start, end), "{}", window.name());
            assert_eq!(Span::parse(text), Some(span));
        }
    }

    #[test]
    fn the_calendar_knows_leap_years() {
        for (year, month, end) in [(2024, 2, 29), (2100, 2, 28), (2000, 2, 29), (2026, 12, 31), (1970, 1, 31)] {
            let span = Window::Month.at(at(year, month, end, 23, 59));
            assert_eq!(span.start(), at(year, month, 1, 0, 0), "{year}-{month}");
            assert_eq!(span.end(), Some(at(year, month, end, 0, 0) + MS_PER_DAY), "{year}-{month}");
        }
        assert_eq!(date(0), (1970, 1, 1));
        assert_eq!(date(days_of(2024, 2, 29)), (2024, 2, 29));
    }

    #[test]
    fn what_was_not_written_by_us_is_not_read() {
        for text in
            ["", "2026", "2026-13", "2026-11-31", "2026-11-22T10:57", "2026-11-22T24Z", "2026-11-17/P1W", "2026-1-2", "-1-02", "lifetimes"]
        {
            assert_eq!(Span::parse(text), None, "{text}");
        }
    }

    #[test]
    fn the_clock_follows_jumps_forward_and_heals_from_them() {
        let mut clock = Clock::start(100 * MS_PER_HOUR, 0, 99 * MS_PER_HOUR);
        assert_eq!(clock.now(100 * MS_PER_HOUR + 1, 1), 100 * MS_PER_HOUR + 1);
        // The wall clock jumps a minute ahead, and is corrected.
        assert_eq!(clock.now(100 * MS_PER_HOUR + MS_PER_MINUTE, 2), 100 * MS_PER_HOUR + MS_PER_MINUTE);
        let ahead = clock.now(100 * MS_PER_HOUR + 10, 10);
        assert!(ahead >= 100 * MS_PER_HOUR + MS_PER_MINUTE, "never back");
        let later = clock.now(100 * MS_PER_HOUR + 4 * MS_PER_MINUTE, 240_000);
        assert!(later > 100 * MS_PER_HOUR + 4 * MS_PER_MINUTE && later < 100 * MS_PER_HOUR + 5 * MS_PER_MINUTE, "it runs on, slower");
        assert_eq!(clock.now(100 * MS_PER_HOUR + 9 * MS_PER_MINUTE, 540_000), 100 * MS_PER_HOUR + 9 * MS_PER_MINUTE, "caught up");
        assert_eq!(Clock::start(5, 0, 7).now(5, 0), 7, "a new leader is not earlier than what was counted");
    }

    /// The number of hour windows that begin in `minutes` minutes, if the wall clock is set forward or back at some of
    /// them.
    fn hours_begun(minutes: u64, steps: &[(u64, i64)]) -> usize {
        let start = at(2026, 11, 22, 10, 30);
        let (mut clock, mut step) = (Clock::start(start, 0, 0), 0);
        let mut begun = Vec::new();
        for minute in 0..=minutes {
            step += steps.iter().filter(|(when, _)| *when == minute).map(|(_, by)| by).sum::<i64>();
            let ticks = minute * 60_000;
            let span = Window::Hour.at(clock.now(start + step + i64::try_from(ticks).expect("small"), ticks));
            assert!(begun.last().is_none_or(|last| *last <= span), "a window that was left is not entered again");
            if begun.last() != Some(&span) {
                begun.push(span);
            }
        }
        begun.len()
    }

    #[test]
    fn a_step_of_the_wall_clock_begins_no_window_again_and_at_most_as_many_more_as_it_skips() {
        let often: Vec<(u64, i64)> = (10..110).map(|minute| (minute, if minute % 2 == 0 { MS_PER_HOUR } else { -MS_PER_HOUR })).collect();
        // The minutes that pass, the steps, and the most windows.
        let cases = [
            ("none", 120, [].as_slice(), 3),
            ("an hour back", 120, &[(45, -MS_PER_HOUR)], 3),
            ("an hour ahead", 120, &[(45, MS_PER_HOUR)], 4),
            ("an hour ahead, and put right", 120, &[(45, MS_PER_HOUR), (50, -MS_PER_HOUR)], 4),
            ("an hour back, and put right", 120, &[(45, -MS_PER_HOUR), (50, MS_PER_HOUR)], 3),
            ("there and back for an hour and a half", 120, &often, 4),
        ];
        for (what, minutes, steps, most) in cases {
            let begun = hours_begun(minutes, steps);
            assert!(begun <= most, "{what}: {begun} windows");
        }
    }

    proptest! {
        #[test]
        fn every_time_is_in_its_window_and_in_no_other(time in 0i64..MAX_UNIX_MS) {
            for window in Window::ALL {
                let span = window.at(time);
                prop_assert!(span.start() <= time && span.end().is_none_or(|end| time < end));
                prop_assert_eq!(Span::parse(&span.to_string()), Some(span));
                if let Some(end) = span.end() {
                    prop_assert_eq!(window.at(end).index, if end > MAX_UNIX_MS { span.index } else { span.index + 1 });
                    prop_assert_eq!(window.at(span.start().max(0)), span);
                }
            }
        }

        #[test]
        fn any_text_and_any_time_are_survived(text in "[-0-9TZP/W:]{0,24}", time: i64) {
            let parsed = Span::parse(&text);
            for span in Window::ALL.map(|window| window.at(time)).into_iter().chain(parsed) {
                prop_assert!(span.index >= 0 && span.end().is_none_or(|end| end > span.start()));
            }
        }

        #[test]
        fn the_clock_never_goes_back_and_never_stands_still(steps in proptest::collection::vec((-5_000_000i64..5_000_000, 0u64..100_000), 1..50)) {
            let (mut clock, mut wall, mut ticks, mut last) = (Clock::start(1_000_000_000, 0, 0), 1_000_000_000_i64, 0_u64, 0_i64);
            let mut first = None;
            for (jump, passed) in steps {
                wall += jump;
                ticks += passed;
                let now = clock.now(wall, ticks);
                prop_assert!(now >= last && now >= wall);
                let (began, then) = *first.get_or_insert((now, ticks));
                prop_assert!(now - began >= i64::try_from((ticks - then) * 7 / 8).unwrap_or(0) - 50);
                last = now;
            }
        }
    }
}
