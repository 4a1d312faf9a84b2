//! The estimated cost of a model call before it is made, and its real cost: estimates, weights, and the learned ratio
//! of tokens to bytes.
//!
//! What always holds: with [`Estimate::Bytes`] the charge of a call that kept its output limit is never above its hold,
//! for any share of cached input and any weights.

/// The most tokens of one kind that one call may report: far above any model, far below an overflow.
pub const MAX_CALL_TOKENS: i64 = 1_000_000_000_000;
/// The highest limit; see `MAX_TOKENS` of the API.
pub const MAX_LIMIT_TOKENS: i64 = 1_000_000_000_000_000;
const PER_MILLE: i64 = 1000;
/// The lowest ratio, in thousandths of a token a byte. No text has fewer tokens. Input with fewer is white space, or
/// the model does not read it.
pub const MIN_RATIO_PER_MILLE: i64 = 150;
/// The lowest ratio that is charged for the text of a call with unknown usage, in thousandths of a token a byte: what
/// source code and most languages have at most. A learned ratio may be far lower, and would make it cheap to abandon a
/// call.
pub const MIN_CHARGED_RATIO_PER_MILLE: i64 = 350;
/// The largest weight, as in the API.
const MAX_WEIGHT: i64 = 1_000_000;

/// The weight of a token of each kind, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Weights {
    /// Input that was not cached.
    pub input: i64,
    /// Output, including reasoning.
    pub output: i64,
    /// Input that was read from a cache.
    pub cache_read: i64,
    /// Input written to a cache.
    pub cache_write: i64,
}

impl Default for Weights {
    fn default() -> Self {
        Self { input: PER_MILLE, output: PER_MILLE, cache_read: PER_MILLE, cache_write: PER_MILLE }
    }
}

impl Weights {
    /// The weights within the range that the arithmetic allows.
    pub fn clamped(self) -> Self {
        let Self { input, output, cache_read, cache_write } = self;
        let [input, output, cache_read, cache_write] = [input, output, cache_read, cache_write].map(|weight| weight.clamp(0, MAX_WEIGHT));
        Self { input, output, cache_read, cache_write }
    }

    /// The highest weight of input: its kind is not known before the call.
    fn dearest_input(&self) -> i64 {
        self.input.max(self.cache_read).max(self.cache_write)
    }

    fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The most that a call with these tokens can be charged, rounded up.
    pub fn bound(&self, input: i64, output: i64) -> i64 {
        let (input, output) = (input.clamp(0, MAX_CALL_TOKENS), output.clamp(0, MAX_CALL_TOKENS));
        if self.is_default() {
            return input + output;
        }
        // At most 2 * 10^18: it fits.
        ceil_per_mille(input * self.dearest_input() + output * self.output)
    }

    /// What a call is charged, rounded up.
    pub fn charge(&self, usage: &Usage) -> i64 {
        let Usage { input, cache_read, cache_write, output } = usage.clamped();
        if self.is_default() {
            return input + cache_read + cache_write + output;
        }
        // At most 4 * 10^18: it fits.
        ceil_per_mille(input * self.input + cache_read * self.cache_read + cache_write * self.cache_write + output * self.output)
    }

    /// The most output tokens that fit into `room` with `input`; below 0 if the input alone does not fit.
    pub fn max_output(&self, room: i64, input: i64) -> i64 {
        let (room, input) = (room.clamp(-MAX_LIMIT_TOKENS, MAX_LIMIT_TOKENS), input.clamp(0, MAX_CALL_TOKENS));
        if self.is_default() {
            return room - input;
        }
        let left = room * PER_MILLE - input * self.dearest_input();
        match self.output {
            _ if left < 0 => -1,
            0 => MAX_CALL_TOKENS,
            weight => left / weight,
        }
    }
}

fn ceil_per_mille(thousandths: i64) -> i64 {
    thousandths / PER_MILLE + i64::from(thousandths % PER_MILLE > 0)
}

/// The usage of a call in tokens, as the provider reported it. The four add up to all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Usage {
    /// Input that was not cached.
    pub input: i64,
    /// Input that was read from a cache.
    pub cache_read: i64,
    /// Input written to a cache.
    pub cache_write: i64,
    /// Output, including reasoning.
    pub output: i64,
}

impl Usage {
    fn clamped(self) -> Self {
        let Self { input, cache_read, cache_write, output } = self;
        let [input, cache_read, cache_write, output] =
            [input, cache_read, cache_write, output].map(|tokens| tokens.clamp(0, MAX_CALL_TOKENS));
        Self { input, cache_read, cache_write, output }
    }
}

/// How well a call's usage is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Quality {
    /// The provider reported it.
    Exact,
    /// The provider reported a part: the stream was cut. The charge is the estimate, or the known usage if that is
    /// more.
    Partial,
    /// The provider reported nothing. The charge is the same as for `Partial`.
    Estimated,
}

/// How input is estimated before it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Estimate {
    /// By the learned ratio of tokens to bytes: close, may be exceeded.
    Ratio,
    /// One token a byte: never exceeded.
    Bytes,
}

/// What happens to a call that asks for more output than is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OnInsufficient {
    /// It may write less.
    ClampOutput,
    /// It is refused.
    Reject,
}

/// The rules of a budget for single calls. For a whole path the strictest rule applies, except for the floor: that is
/// the nearest budget's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallTerms {
    /// The most output tokens that one choice may ask for.
    pub max_output: i64,
    /// Output tokens below which a call is refused instead of cut.
    pub min_output: i64,
    /// How input is estimated.
    pub estimate: Estimate,
    /// What happens to a call that does not fit.
    pub on_insufficient: OnInsufficient,
}

impl Default for CallTerms {
    fn default() -> Self {
        Self { max_output: 16_000, min_output: 1024, estimate: Estimate::Ratio, on_insufficient: OnInsufficient::ClampOutput }
    }
}

impl CallTerms {
    /// Both rules apply: the smaller output, the safer estimate, and cutting only if both allow it. The floor is this
    /// one's.
    pub fn combine(self, above: Self) -> Self {
        Self {
            max_output: self.max_output.min(above.max_output),
            min_output: self.min_output,
            estimate: self.estimate.max(above.estimate),
            on_insufficient: self.on_insufficient.max(above.on_insufficient),
        }
    }
}

/// The size of a call, from its body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CallSize {
    /// Bytes of text, including tools and names.
    pub bytes: i64,
    /// Tokens of input other than text (images, files), by a table of upper bounds.
    pub other_tokens: i64,
    /// The output limit that it asks for, tokens per choice.
    pub output: Option<i64>,
    /// The model's own output limit, tokens per choice.
    pub model_output: Option<i64>,
    /// Tokens that it reserves for thinking, which count as output.
    pub thinking: i64,
    /// The number of choices that it asks for; 0 counts as 1.
    pub choices: i64,
}

impl CallSize {
    /// Input tokens that are charged if the usage is unknown: those that are `held` for it, and at least
    /// [`MIN_CHARGED_RATIO_PER_MILLE`] of its text.
    pub fn charged(&self, held: i64) -> i64 {
        let text = ceil_per_mille(self.bytes.clamp(0, MAX_CALL_TOKENS) * MIN_CHARGED_RATIO_PER_MILLE);
        held.max(text.saturating_add(self.other_tokens.clamp(0, MAX_CALL_TOKENS)).min(MAX_CALL_TOKENS))
    }
}

/// The request to the ledger for a call, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HoldRequest {
    /// Input, estimated high.
    pub input: i64,
    /// The most output of each choice.
    pub output: i64,
    /// Output of each choice below which the call has no use.
    pub min_output: i64,
    /// Choices, at least 1.
    pub choices: i64,
}

impl HoldRequest {
    /// The request of a body under these terms. `ratio` is the model's, in thousandths of a token a byte.
    pub fn of(body: &CallSize, terms: &CallTerms, ratio: i64) -> Self {
        let bytes = body.bytes.clamp(0, MAX_CALL_TOKENS);
        let text = match terms.estimate {
            Estimate::Bytes => bytes,
            Estimate::Ratio => ceil_per_mille(bytes * ratio.clamp(MIN_RATIO_PER_MILLE, PER_MILLE)),
        };
        let limits = [body.output, body.model_output].into_iter().flatten().map(|limit| limit.clamp(0, MAX_CALL_TOKENS));
        let output = limits.fold(terms.max_output.clamp(1, MAX_CALL_TOKENS), i64::min);
        let floor = terms.min_output.saturating_add(body.thinking.max(0));
        let least = match terms.on_insufficient {
            OnInsufficient::ClampOutput => floor.clamp(0, output),
            OnInsufficient::Reject => output,
        };
        Self {
            input: text.saturating_add(body.other_tokens.clamp(0, MAX_CALL_TOKENS)).min(MAX_CALL_TOKENS),
            output,
            min_output: least,
            choices: body.choices.clamp(1, 1000),
        }
    }
}

/// The width of a histogram step, in thousandths of a token a byte.
const RATIO_STEP_PER_MILLE: i64 = 16;
const RATIO_STEP_COUNT: usize = 63;
/// The ratio before anything is learned: half a token a byte.
const INITIAL_RATIO_PER_MILLE: i64 = 500;
/// The number of calls that the initial ratio counts for: a model needs a thousand calls to prove a lower ratio.
const INITIAL_RATIO_CALLS: u64 = 10;
/// Above this number of calls the older half of the histogram is forgotten.
const MAX_LEARNED_CALLS: u64 = 20_000;

/// The learned ratio of tokens to bytes of one model in one namespace: the 99th percentile of its calls, in
/// thousandths, starting with half a token a byte. It rises with the first calls that exceed it and falls slowly, not
/// below [`MIN_RATIO_PER_MILLE`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LearnedRatio {
    seen: [u64; RATIO_STEP_COUNT],
    total: u64,
    ratio: i64,
}

impl Default for LearnedRatio {
    fn default() -> Self {
        let mut learned = Self { seen: [0; RATIO_STEP_COUNT], total: INITIAL_RATIO_CALLS, ratio: INITIAL_RATIO_PER_MILLE };
        learned.seen[step_of(INITIAL_RATIO_PER_MILLE)] = INITIAL_RATIO_CALLS;
        learned
    }
}

fn step_of(ratio: i64) -> usize {
    usize::try_from(ratio / RATIO_STEP_PER_MILLE).unwrap_or(0).min(RATIO_STEP_COUNT - 1)
}

/// The ratio in thousandths, for at least one byte.
fn ratio_of(bytes: i64, tokens: i64) -> i64 {
    (tokens.min(bytes).min(MAX_CALL_TOKENS) * PER_MILLE) / bytes.min(MAX_CALL_TOKENS)
}

impl LearnedRatio {
    /// Thousandths of a token a byte: at most 1000, one token a byte.
    pub fn ratio(&self) -> i64 {
        self.ratio
    }

    /// Whether a call says something about text: a call with fewer tokens than [`MIN_RATIO_PER_MILLE`] does not.
    pub fn is_informative(bytes: i64, tokens: i64) -> bool {
        bytes > 0 && tokens >= 0 && ratio_of(bytes, tokens) >= MIN_RATIO_PER_MILLE
    }

    /// Learns from a call with `bytes` of text and `tokens` of input.
    pub fn learn(&mut self, bytes: i64, tokens: i64) {
        if !Self::is_informative(bytes, tokens) {
            return;
        }
        if let Some(count) = self.seen.get_mut(step_of(ratio_of(bytes, tokens))) {
            *count += 1;
        }
        self.total += 1;
        if self.total > MAX_LEARNED_CALLS {
            self.seen.iter_mut().for_each(|count| *count /= 2);
            self.total = self.seen.iter().sum();
        }
        self.ratio = self.percentile_99();
    }

    /// The upper end of the step that contains the 99th percentile.
    fn percentile_99(&self) -> i64 {
        let mut above = self.total / 100;
        for (step, count) in self.seen.iter().enumerate().rev() {
            if *count > above {
                return i64::try_from(step + 1).map_or(PER_MILLE, |step| (step * RATIO_STEP_PER_MILLE).min(PER_MILLE));
            }
            above -= count;
        }
        INITIAL_RATIO_PER_MILLE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TERMS: CallTerms =
        CallTerms { max_output: 1000, min_output: 100, estimate: Estimate::Ratio, on_insufficient: OnInsufficient::ClampOutput };

    #[test]
    fn an_ask_is_the_least_of_all_limits_and_knows_its_floor() {
        let body = CallSize { bytes: 1001, other_tokens: 7, choices: 2, ..CallSize::default() };
        assert_eq!(
            HoldRequest::of(&body, &TERMS, 500),
            HoldRequest { input: 508, output: 1000, min_output: 100, choices: 2 },
            "rounded up"
        );
        let sure = TERMS.combine(CallTerms { estimate: Estimate::Bytes, min_output: 50, max_output: 5000, ..TERMS });
        assert_eq!(HoldRequest::of(&body, &sure, 500).input, 1008, "a token a byte");
        let small = CallSize { output: Some(300), model_output: Some(40), ..body };
        assert_eq!(HoldRequest::of(&small, &TERMS, 500).output, 40);
        assert_eq!(HoldRequest::of(&small, &TERMS, 500).min_output, 40, "who asks for little is not refused for asking for little");
        let thinks = CallSize { output: Some(900), thinking: 600, ..body };
        assert_eq!(HoldRequest::of(&thinks, &TERMS, 500).min_output, 700, "the thinking and the floor above it");
        let rejects = CallTerms { on_insufficient: OnInsufficient::Reject, ..TERMS };
        assert_eq!(HoldRequest::of(&body, &rejects.combine(TERMS), 500).min_output, 1000);
    }

    #[test]
    fn the_ratio_starts_at_a_half_rises_soon_and_falls_late() {
        let mut learned = LearnedRatio::default();
        assert_eq!(learned.ratio(), 500);
        learned.learn(1000, 700);
        assert!((700..=704).contains(&learned.ratio()), "one call that exceeds it is believed: {}", learned.ratio());
        let mut low = LearnedRatio::default();
        (0..500).for_each(|_| low.learn(1000, 250));
        assert!(low.ratio() >= 500);
        (0..1000).for_each(|_| low.learn(1000, 250));
        assert!((250..=272).contains(&low.ratio()), "{}", low.ratio());
        (0..100_000).for_each(|_| low.learn(10, 30));
        assert_eq!(low.ratio(), 1000, "never above a token a byte");
    }

    #[test]
    fn what_nobody_knows_is_never_charged_by_a_low_ratio_alone() {
        let body = CallSize { bytes: 1_000_000, other_tokens: 7, ..CallSize::default() };
        let held = |estimate, ratio| HoldRequest::of(&body, &CallTerms { estimate, ..TERMS }, ratio).input;
        assert_eq!(held(Estimate::Ratio, 0), 150_007, "whatever was learned");
        assert_eq!(body.charged(held(Estimate::Ratio, 160)), 350_007);
        assert_eq!(body.charged(held(Estimate::Ratio, 416)), 416_007, "more was held");
        assert_eq!(body.charged(held(Estimate::Bytes, 160)), 1_000_007, "never more than is held there");
        assert_eq!(CallSize::default().charged(0), 0);
    }

    fn weights() -> impl Strategy<Value = Weights> {
        let weight = || prop_oneof![Just(1000i64), 0i64..5000, Just(1_000_000)];
        (weight(), weight(), weight(), weight()).prop_map(|(input, output, cache_read, cache_write)| Weights {
            input,
            output,
            cache_read,
            cache_write,
        })
    }

    proptest! {
        #[test]
        fn a_charge_is_never_above_the_bound_of_its_tokens(weights in weights(), input in 0i64..1_000_000, read in 0i64..1_000_000,
                                                            write in 0i64..1_000_000, output in 0i64..1_000_000) {
            let usage = Usage { input, cache_read: read, cache_write: write, output };
            prop_assert!(weights.charge(&usage) <= weights.bound(input + read + write, output));
        }

        #[test]
        fn what_fits_fits_and_one_more_does_not(weights in weights(), room in 0i64..2_000_000, input in 0i64..1_000_000) {
            let outputs = weights.max_output(room, input);
            if outputs < 0 {
                prop_assert!(weights.bound(input, 0) > room);
            } else {
                prop_assert!(weights.bound(input, outputs) <= room);
                prop_assert!(outputs >= MAX_CALL_TOKENS || weights.bound(input, outputs + 1) > room);
            }
        }

        #[test]
        fn no_number_is_too_large(weights in weights(), a: i64, b: i64, c: i64, d: i64) {
            let usage = Usage { input: a, cache_read: b, cache_write: c, output: d };
            prop_assert!(weights.charge(&usage) >= 0 && weights.bound(a, b) >= 0);
            let _ = weights.max_output(a, b);
            let body = CallSize { bytes: a, other_tokens: b, output: Some(c), model_output: Some(d), thinking: a, choices: b };
            let ask = HoldRequest::of(&body, &TERMS, c);
            prop_assert!(ask.min_output <= ask.output && ask.choices >= 1 && ask.input >= 0);
            let mut learned = LearnedRatio::default();
            learned.learn(a, b);
            prop_assert!((MIN_RATIO_PER_MILLE..=1000).contains(&learned.ratio()));
            prop_assert!(body.charged(c) >= c && body.charged(c) >= 0);
        }
    }
}
