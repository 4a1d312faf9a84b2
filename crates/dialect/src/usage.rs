//! The usage that a provider reported for an answer so far, in any dialect. The highest number of each field counts,
//! and numbers are never added up. An impossible number is cut to a possible one, and the usage is then not exact. It
//! is not exact either if the reported output is less than the written output.

use spillway_wire::meter::{Quality, Usage};

use crate::scan::{FoundValue, Kind};

/// Maximum number of tokens that is accepted for a field.
pub(crate) const MAX_REPORTED_TOKENS: i64 = 10_000_000;
/// Upper bound of the average number of bytes of an output token in any language, also if each letter is escaped.
const MAX_BYTES_PER_TOKEN: i64 = 32;

/// How complete the last reported usage is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum UsageConfidence {
    /// It is a part of the usage, or nothing.
    #[default]
    Nothing,
    /// It is the whole usage if the answer ends properly.
    AtEnd,
    /// It is the whole usage: nothing that follows can add to it.
    Final,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct UsageSoFar {
    input: Option<i64>,
    cache_read: Option<i64>,
    cache_write: Option<i64>,
    output: Option<i64>,
    /// The reported output or 0, and the bytes that were written since then.
    reported_output: i64,
    bytes_since_report: i64,
    /// Readable bytes of the whole answer.
    readable_bytes: i64,
    confidence: UsageConfidence,
    /// Whether a part could not be read, or a number is impossible.
    pub has_invalid_data: bool,
    /// Set if the answer contained an error: whether the error was the provider's own.
    pub error: Option<bool>,
    /// Number of choices that ended.
    pub finished_choices: i64,
}

impl UsageSoFar {
    /// Reads a reported count. None if there is none.
    pub fn number(&mut self, note: &FoundValue) -> Option<i64> {
        let read = match note.kind {
            Kind::Number => note.word().parse().ok().or_else(|| parse_integral(note.word())),
            Kind::None => return None,
            Kind::False | Kind::True | Kind::Text | Kind::List | Kind::Object => None,
        };
        let sane = read.map(|number: i64| number.clamp(0, MAX_REPORTED_TOKENS));
        self.has_invalid_data |= sane.is_none() || sane != read;
        sane
    }

    /// Takes reported counts that do not overlap. A count that falls is ignored.
    pub fn add_counts(&mut self, input: Option<i64>, cache_read: Option<i64>, cache_write: Option<i64>, output: Option<i64>) {
        self.input = self.input.max(input);
        self.cache_read = self.cache_read.max(cache_read);
        self.cache_write = self.cache_write.max(cache_write);
        self.output = self.output.max(output);
        // Some providers report 0 until the end.
        if let Some(output) = output.filter(|output| *output > self.reported_output) {
            (self.reported_output, self.bytes_since_report) = (output, 0);
        }
    }

    /// Takes reported counts where `input` includes cached input. The part of `total` beyond input and output is output
    /// (reasoning, which some providers do not count as output).
    pub fn add_counts_with_cached_input(
        &mut self,
        input: Option<i64>,
        cached: Option<i64>,
        written: Option<i64>,
        output: Option<i64>,
        total: Option<i64>,
    ) {
        let (Some(whole), cached, written) = (input, cached.unwrap_or_default(), written.unwrap_or_default()) else {
            return self.add_counts(None, cached, written, output);
        };
        self.has_invalid_data |= cached + written > whole;
        let cached = cached.min(whole);
        let written = written.min(whole - cached);
        let output = output.map(|output| output.max(total.unwrap_or_default() - whole));
        self.add_counts(Some(whole - cached - written), Some(cached), Some(written), output);
    }

    /// Sets how complete the last reported usage is.
    pub fn raise_confidence(&mut self, standing: UsageConfidence) {
        self.confidence = self.confidence.max(standing);
    }

    /// The stream reported its end: usage that is complete at a proper end is complete now.
    pub fn mark_stream_ended(&mut self) {
        if self.confidence == UsageConfidence::AtEnd {
            self.confidence = UsageConfidence::Final;
        }
    }

    /// Adds bytes of output.
    pub fn add_output_bytes(&mut self, bytes: i64) {
        self.bytes_since_report = self.bytes_since_report.saturating_add(bytes);
        self.readable_bytes = self.readable_bytes.saturating_add(bytes);
    }

    /// Adds bytes of encrypted output. Their number is no lower bound of tokens, because their content is unknown.
    pub fn add_encrypted_bytes(&mut self, bytes: i64) {
        self.bytes_since_report = self.bytes_since_report.saturating_add(bytes);
    }

    /// Lower bound of the output so far: the reported output, and a minimum for the bytes since then.
    pub fn output_lower_bound(&self) -> i64 {
        self.reported_output.saturating_add(self.bytes_since_report / MAX_BYTES_PER_TOKEN)
    }

    /// The usage and its quality at the end.
    pub fn end(&self, complete: bool) -> (Usage, Quality) {
        let any = [self.input, self.cache_read, self.cache_write, self.output];
        let [input, cache_read, cache_write, output] = any.map(Option::unwrap_or_default);
        let least = self.readable_bytes / MAX_BYTES_PER_TOKEN;
        let all = self.input.is_some() && self.output.is_some() && output >= least && !self.has_invalid_data;
        let quality = match self.confidence {
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

/// An integer in another notation: `12.0`, `1e3`.
fn parse_integral(digits: &str) -> Option<i64> {
    let number: f64 = digits.parse().ok()?;
    // The cast saturates at the limits of i64. Such a number is cut anyway.
    (number.is_finite() && number.fract() == 0.0).then_some(number as i64)
}
