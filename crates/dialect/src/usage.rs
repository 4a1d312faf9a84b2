//! What a provider said of an answer's usage so far, whatever its dialect. The most that was said counts, per field; nothing is
//! added up. A number that cannot be is cut to what can, and the rest is not believed to be exact either; nor is output that is
//! less than what was written.

use spillway_wire::meter::{Quality, Usage};

use crate::scan::{FoundValue, Kind};

/// The most tokens of one sort that a provider is believed.
pub(crate) const MAX_REPORTED_TOKENS: i64 = 10_000_000;
/// More bytes than a token of output has on average in any language, also where each letter is escaped.
const MAX_BYTES_PER_TOKEN: i64 = 32;

/// What the usage that was said last is worth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum UsageConfidence {
    /// A part of it, or nothing.
    #[default]
    Nothing,
    /// All of it if the answer ended properly.
    AtEnd,
    /// All of it: whatever may follow says no more.
    Final,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct UsageSoFar {
    input: Option<i64>,
    cache_read: Option<i64>,
    cache_write: Option<i64>,
    output: Option<i64>,
    /// The output that was said, or 0; and the bytes that were written since.
    said: i64,
    since: i64,
    /// Bytes that anybody can read, of the whole answer.
    written: i64,
    standing: UsageConfidence,
    /// Something was not understood, or cannot be.
    pub trouble: bool,
    /// An error stood in the answer: whether it was the provider's own.
    pub error: Option<bool>,
    /// Choices that ended.
    pub finished: i64,
}

impl UsageSoFar {
    /// A count that a provider says; none is none.
    pub fn number(&mut self, note: &FoundValue) -> Option<i64> {
        let read = match note.kind {
            Kind::Number => note.word().parse().ok().or_else(|| whole(note.word())),
            Kind::None => return None,
            Kind::False | Kind::True | Kind::Text | Kind::List | Kind::Object => None,
        };
        let sane = read.map(|number: i64| number.clamp(0, MAX_REPORTED_TOKENS));
        self.trouble |= sane.is_none() || sane != read;
        sane
    }

    /// Takes what is said, where the four do not overlap. A count that falls has nothing to say.
    pub fn say(&mut self, input: Option<i64>, cache_read: Option<i64>, cache_write: Option<i64>, output: Option<i64>) {
        self.input = self.input.max(input);
        self.cache_read = self.cache_read.max(cache_read);
        self.cache_write = self.cache_write.max(cache_write);
        self.output = self.output.max(output);
        // Some say 0 until the end.
        if let Some(output) = output.filter(|output| *output > self.said) {
            (self.said, self.since) = (output, 0);
        }
    }

    /// Takes what is said, where `input` has what caches had in it, and what `total` has beyond input and output is output
    /// (reasoning, which some do not count there).
    pub fn say_whole(&mut self, input: Option<i64>, cached: Option<i64>, written: Option<i64>, output: Option<i64>, total: Option<i64>) {
        let (Some(whole), cached, written) = (input, cached.unwrap_or_default(), written.unwrap_or_default()) else {
            return self.say(None, cached, written, output);
        };
        self.trouble |= cached + written > whole;
        let cached = cached.min(whole);
        let written = written.min(whole - cached);
        let output = output.map(|output| output.max(total.unwrap_or_default() - whole));
        self.say(Some(whole - cached - written), Some(cached), Some(written), output);
    }

    /// What was just said is worth this.
    pub fn stands(&mut self, standing: UsageConfidence) {
        self.standing = self.standing.max(standing);
    }

    /// The stream said that it is over: what stands if it ends properly, stands.
    pub fn over(&mut self) {
        if self.standing == UsageConfidence::AtEnd {
            self.standing = UsageConfidence::Final;
        }
    }

    /// So many bytes of output came.
    pub fn wrote(&mut self, bytes: i64) {
        self.since = self.since.saturating_add(bytes);
        self.written = self.written.saturating_add(bytes);
    }

    /// So many bytes came of output that nobody can read: their number says little, as nobody knows what else is in them.
    pub fn sealed(&mut self, bytes: i64) {
        self.since = self.since.saturating_add(bytes);
    }

    /// The output so far that nobody can doubt: what was said, and what so many bytes since are at least.
    pub fn so_far(&self) -> i64 {
        self.said.saturating_add(self.since / MAX_BYTES_PER_TOKEN)
    }

    /// What is known at the end.
    pub fn end(&self, complete: bool) -> (Usage, Quality) {
        let any = [self.input, self.cache_read, self.cache_write, self.output];
        let [input, cache_read, cache_write, output] = any.map(Option::unwrap_or_default);
        let least = self.written / MAX_BYTES_PER_TOKEN;
        let all = self.input.is_some() && self.output.is_some() && output >= least && !self.trouble;
        let quality = match self.standing {
            UsageConfidence::Final if all => Quality::Exact,
            UsageConfidence::AtEnd if all && complete => Quality::Exact,
            UsageConfidence::Final | UsageConfidence::AtEnd | UsageConfidence::Nothing if any.iter().any(Option::is_some) => {
                Quality::Partial
            }
            UsageConfidence::Final | UsageConfidence::AtEnd | UsageConfidence::Nothing => Quality::Estimated,
        };
        (Usage { input, cache_read, cache_write, output: output.max(least) }, quality)
    }
}

/// An integer that is written as something else: `12.0`, `1e3`.
fn whole(digits: &str) -> Option<i64> {
    let number: f64 = digits.parse().ok()?;
    // The cast ends at the ends of i64, which are cut anyway.
    (number.is_finite() && number.fract() == 0.0).then_some(number as i64)
}
