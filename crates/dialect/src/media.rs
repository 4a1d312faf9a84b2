//! What a body has beside its text: images, sound and files in base64. Their bytes say little about their tokens, so they
//! count by a table of upper bounds.
//!
//! | what | Anthropic | OpenAI, Chat and Responses | Gemini |
//! |---|---|---|---|
//! | an image | 5,000 (2,576 pixels a side) | 25,000 (10,000 patches, the largest factor); 3,000 with `detail: low`; 48,500 for models named `4o-mini` | 4,500 (16 tiles) |
//! | sound | | two a byte of its base64, at most a window | the same |
//! | any other file (PDF, video, office) | a window | a window | a window |
//! | a list of tools | 1,000 for the words that the provider puts around it | 1,000 | 1,000 |
//! | a tool that the provider describes and the client runs | 2,000 | 2,000 | 2,000 |
//!
//! A window is 1,050,000 tokens, the largest that a model of these providers has: no call can have more input, so all of this
//! together never counts as more. What a file holds cannot be known without unpacking it, and a small one can hold much.
//! A text file counts by its bytes, in base64 as it stands.

use spillway_wire::meter::Dialect;

use crate::Fault;
use crate::strict::Path;

/// The largest context window.
pub(crate) const WINDOW: i64 = 1_050_000;
/// The words around a list of tools.
const TOOLS: i64 = 1_000;
/// A tool that the provider describes itself.
const KNOWN_TOOL: i64 = 2_000;

/// What was found so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Bytes of base64 that do not count as text.
    pub hidden: usize,
    tokens: i64,
}

impl Found {
    /// Tokens of all that is no text.
    pub fn tokens(&self) -> i64 {
        self.tokens.min(WINDOW)
    }

    fn add(&mut self, bytes: usize, tokens: i64) {
        self.hidden += bytes;
        self.tokens = self.tokens.saturating_add(tokens);
    }

    /// Something of type `mime` in so many bytes of base64.
    pub fn base64(&mut self, mime: &str, bytes: usize, image: i64) {
        match mime.split('/').next().unwrap_or_default().to_ascii_lowercase().as_str() {
            "image" => self.add(bytes, image),
            "audio" => self.add(bytes, i64::try_from(bytes).unwrap_or(WINDOW).saturating_mul(2).min(WINDOW)),
            "text" => {}
            _ => self.add(bytes, WINDOW),
        }
    }

    /// A `data:` URL of so many bytes. Any other URL is refused: the provider would fetch what nobody here has seen, and send
    /// to a host of the agent's choice what stands in its path.
    pub fn url(&mut self, url: &str, at: &Path<'_>, image: i64) -> Result<(), Fault> {
        let inner = url.get(..5).filter(|scheme| scheme.eq_ignore_ascii_case("data:")).and_then(|_| url[5..].split_once(','));
        let Some((mime, data)) = inner else {
            return Err(at.fault("only data: URLs are passed: the provider would fetch anything else by itself, unseen and uncounted"));
        };
        self.base64(mime, data.len(), image);
        Ok(())
    }

    /// A list of tools that is not empty.
    pub fn tools(&mut self) {
        self.add(0, TOOLS);
    }

    /// A tool that the provider describes and the client runs.
    pub fn known_tool(&mut self) {
        self.add(0, KNOWN_TOOL);
    }
}

/// The most tokens of one image.
pub(crate) fn image(dialect: Dialect, model: &str, detail: Option<&str>) -> i64 {
    match dialect {
        Dialect::Anthropic => 5_000,
        Dialect::OpenAIChat | Dialect::OpenAIResponses if detail == Some("low") => 3_000,
        Dialect::OpenAIChat | Dialect::OpenAIResponses if model.contains("4o-mini") => 48_500,
        Dialect::OpenAIChat | Dialect::OpenAIResponses => 25_000,
        Dialect::Gemini => 4_500,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sort_counts_by_its_row_and_all_together_at_most_a_window() {
        for (mime, hidden, tokens) in [
            ("image/png", 100, 7),
            ("IMAGE/JPEG", 100, 7),
            ("audio/wav", 100, 200),
            ("text/plain", 0, 0),
            ("application/pdf", 100, WINDOW),
            ("video/mp4", 100, WINDOW),
            ("", 100, WINDOW),
        ] {
            let mut found = Found::default();
            found.base64(mime, 100, 7);
            assert_eq!((found.hidden, found.tokens()), (hidden, tokens), "{mime}");
        }
        let mut found = Found::default();
        (0..3).for_each(|_| found.base64("application/pdf", 1, 0));
        assert_eq!(found.tokens(), WINDOW);
    }

    #[test]
    fn a_provider_fetches_nothing() {
        for url in ["https://example.org/a.png", "http://10.0.0.1/", "file:///etc/passwd", "gs://b/o", "", "data:", "data", "d\u{e4}ta:,"] {
            assert!(Found::default().url(url, &Path::Root.key("url"), 1).is_err(), "{url}");
        }
        let mut found = Found::default();
        found.url("data:image/png;base64,AAAA", &Path::Root, 9).expect("a data URL");
        assert_eq!((found.hidden, found.tokens()), (4, 9));
    }
}
