//! The modes of an answer, from the model's name (`any-name--slow-500--crlf`) or the header `x-script` (`slow-500
//! crlf`). Pure. An unknown mode is an error, so that a test with a misspelled mode fails.

use std::time::Duration;

/// The header with modes, in addition to those in the model's name.
pub const HEADER: &str = "x-script";
/// The most bytes of one line.
const MOST_BYTES: u64 = 64 * 1024 * 1024;
/// The most events or tokens of one answer.
const MOST: u64 = 1_000_000;

/// How an answer fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// With this status, and the provider's own message.
    Status(u16),
    /// Like the gateway's refusal for a spent budget: `final`.
    Final,
    /// The same, for clients that show only the body of a 400: `final400`.
    Final400,
    /// Like the gateway's refusal until a window resets, for N seconds after this caller's first call: `window-N`.
    Window(u64),
    /// With a redirect.
    Redirect,
}

/// How a body ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// Normally.
    #[default]
    Proper,
    /// The connection breaks after N events of content: `cut-N`.
    Cut(usize),
    /// Content continues until the client leaves: `endless`.
    Endless,
    /// No more data after N events of content, on an open connection: `silent-N`.
    Silent(usize),
    /// An error in the stream after N events of content: `error-N`.
    Error(usize),
}

/// The usage that a body reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScriptedSpeech {
    /// The real usage.
    #[default]
    True,
    /// Nothing: `nousage`.
    Nothing,
    /// N for input, and N for output: `lies-N`.
    Lie(u64),
    /// Values that are no number of tokens: `odd`.
    Odd,
}

/// The script of one call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script {
    /// How it fails; see `times`.
    pub failure: Option<Failure>,
    /// Only the first N calls of a caller for the model fail: `times-N`. 0: all fail.
    pub times: u64,
    /// `retry-after` of a failure: `retry-N`, in seconds.
    pub retry: Option<u64>,
    /// A failure carries `x-should-retry: false`: `noretry`.
    pub no_retry: bool,
    /// The pause before the head of the answer: `late-MS`.
    pub late: Duration,
    /// It waits before the head of the answer until `POST /go`: `wait`. See
    /// [`Provider::release_waiting`](crate::Provider::release_waiting).
    pub wait: bool,
    /// The pause before the first event: `slow-MS`.
    pub slow: Duration,
    /// The pause between events: `pace-MS`.
    pub pace: Duration,
    /// Events of content: `events-N`. Unset: one for each token.
    pub events: Option<usize>,
    /// Tokens of the final text: `output-N`.
    pub output: Option<u64>,
    /// Tokens of input that are reported: `input-N`. Unset: a quarter of the body's bytes.
    pub input: Option<u64>,
    /// Tokens of thinking, which are output: `think-N`.
    pub think: u64,
    /// Calls of a tool before the final text: `calls-N`.
    pub calls: Option<usize>,
    /// Half of the input is read from a cache, a quarter is written to one: `cache`.
    pub cache: bool,
    /// Lines of the stream end in CR LF: `crlf`.
    pub crlf: bool,
    /// Usage is reported repeatedly while it grows: `cumulative`.
    pub cumulative: bool,
    /// There are comments and fields without data between events: `comments`.
    pub comments: bool,
    /// The body comes in pieces of a few bytes: `split`.
    pub split: bool,
    /// One event is not JSON: `broken`.
    pub broken: bool,
    /// Each word of the final text is N bytes longer, and still one token: `long-N`.
    pub long: usize,
    /// One line of content has N bytes: `line-N`.
    pub line: u64,
    /// The usage that is reported.
    pub reported_usage: ScriptedSpeech,
    /// How it ends.
    pub ending: Ending,
}

impl Script {
    /// Reads the modes of a model's name and of the header.
    pub fn of(model: &str, header: Option<&str>) -> Result<Self, String> {
        let mut script = Self::default();
        let words = model.split("--").skip(1).chain(header.unwrap_or_default().split_whitespace());
        for word in words {
            script.take(word).ok_or_else(|| format!("unknown mode {word}"))?;
        }
        Ok(script)
    }

    fn take(&mut self, word: &str) -> Option<()> {
        let (name, number) = match word.rsplit_once('-') {
            Some((name, digits)) => (name, Some(digits.parse::<u64>().ok()?)),
            None => (word, None),
        };
        if let Some(number) = number { self.take_number(name, number) } else { self.take_word(name) }
    }

    fn take_word(&mut self, name: &str) -> Option<()> {
        match name {
            "cache" => self.cache = true,
            "crlf" => self.crlf = true,
            "cumulative" => self.cumulative = true,
            "comments" => self.comments = true,
            "split" => self.split = true,
            "broken" => self.broken = true,
            "wait" => self.wait = true,
            "noretry" => self.no_retry = true,
            "nousage" => self.reported_usage = ScriptedSpeech::Nothing,
            "odd" => self.reported_usage = ScriptedSpeech::Odd,
            "endless" => self.ending = Ending::Endless,
            "final" => self.failure = Some(Failure::Final),
            "final400" => self.failure = Some(Failure::Final400),
            "redirect" => self.failure = Some(Failure::Redirect),
            _ => return None,
        }
        Some(())
    }

    fn take_number(&mut self, name: &str, number: u64) -> Option<()> {
        let few = |number: u64| usize::try_from(number.min(MOST)).ok();
        match name {
            "late" => self.late = Duration::from_millis(number),
            "slow" => self.slow = Duration::from_millis(number),
            "pace" => self.pace = Duration::from_millis(number),
            "events" => self.events = few(number.max(1)),
            "output" => self.output = Some(number.clamp(1, MOST)),
            "input" => self.input = Some(number),
            "think" => self.think = number.min(MOST),
            "calls" => self.calls = few(number),
            "long" => self.long = few(number)?,
            "line" => self.line = number.min(MOST_BYTES),
            "lies" => self.reported_usage = ScriptedSpeech::Lie(number),
            "cut" => self.ending = Ending::Cut(few(number)?),
            "silent" => self.ending = Ending::Silent(few(number)?),
            "error" => self.ending = Ending::Error(few(number)?),
            "status" => self.failure = Some(Failure::Status(u16::try_from(number).ok().filter(|code| (400..600).contains(code))?)),
            "window" => self.failure = Some(Failure::Window(number)),
            "times" => self.times = number,
            "retry" => self.retry = Some(number),
            _ => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_come_from_the_model_and_from_the_header() {
        let script = Script::of("some-model-5.2--slow-500--crlf", Some("cut-3 cache")).expect("a script");
        let expected = Script { slow: Duration::from_millis(500), crlf: true, cache: true, ending: Ending::Cut(3), ..Script::default() };
        assert_eq!(script, expected);
        assert_eq!(Script::of("some-model-5.2", None), Ok(Script::default()));
    }

    #[test]
    fn a_mode_that_there_is_not_is_an_error() {
        for (model, word) in
            [("m--slwo-5", "slwo-5"), ("m--cut", "cut"), ("m--status-200", "status-200"), ("m--", ""), ("m--crlf-1", "crlf-1")]
        {
            assert_eq!(Script::of(model, None), Err(format!("unknown mode {word}")), "{model}");
        }
    }
}
