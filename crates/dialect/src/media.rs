//! Images, sound and files of a body, in base64. Their bytes say little about their tokens. Therefore a table of upper
//! bounds applies.
//!
//! | data | Anthropic | OpenAI, Chat and Responses | Gemini |
//! |---|---|---|---|
//! | an image | 5,000 (2,576 pixels a side) | 25,000 (10,000 patches, the largest factor); 3,000 with `detail: low`; 48,500 for models named `4o-mini` | 4,500 (16 tiles) |
//! | sound | | two tokens a byte of its base64, at most a window | the same |
//! | a text file in base64 | a window | its bytes | its bytes |
//! | any other file (PDF, video, office) | a window | a window | a window |
//! | a list of tools | 1,000 for the words that the provider adds to it | 1,000 | 1,000 |
//! | a tool that the provider describes and the client runs | 2,000 | 2,000 | 2,000 |
//!
//! A window is 1,050,000 tokens, the largest context window of these providers. No call can have more input. Therefore
//! all rows together count as at most one window. A file counts as a window, because its content is unknown until it is
//! unpacked, and a small file can hold much. A text file counts by its bytes in base64.
//!
//! The declared media type is not trusted, because a provider may inspect the data itself. An image must begin as an
//! image, sound must not begin as a document, and a text file must be text. Anything else counts as a window.

use std::borrow::Cow;

use spillway_wire::meter::Dialect;

use crate::Fault;
use crate::json_spans::{Node, Path};

/// Tokens of the largest context window.
pub(crate) const MAX_CONTEXT_TOKENS: i64 = 1_050_000;
/// Tokens of the words that a provider adds to a list of tools.
const TOOL_LIST_TOKENS: i64 = 1_000;
/// Tokens of a tool that the provider describes itself.
const PROVIDER_TOOL_TOKENS: i64 = 2_000;

/// Bytes of base64 that are inspected: about a kilobyte of data.
const MEDIA_HEAD_BYTES: usize = 1_400;
/// Extensions of files that unpack to more than their bytes.
const DOCUMENT_EXTENSIONS: [&str; 14] =
    ["pdf", "doc", "docx", "dot", "dotx", "odt", "rtf", "ppt", "pptx", "odp", "xls", "xlsx", "ods", "epub"];

/// The media found so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MediaTally {
    /// Bytes of base64 that do not count as text.
    pub media_bytes: usize,
    tokens: i64,
}

impl MediaTally {
    /// Tokens of all data that is not text.
    pub fn tokens(&self) -> i64 {
        self.tokens.min(MAX_CONTEXT_TOKENS)
    }

    fn add(&mut self, bytes: usize, tokens: i64) {
        self.media_bytes += bytes;
        self.tokens = self.tokens.saturating_add(tokens);
    }

    /// Adds data of type `mime` that the model gets directly: an image, sound, a text, or other data.
    pub fn add_base64(&mut self, mime: &str, data: &Data<'_>, image: i64) {
        let start = decode_base64(&data.head);
        match media_class(mime).as_str() {
            "image" if is_image(&start) => self.add(data.bytes, image),
            "audio" if !is_document(&start) => self.add_sound(data.bytes),
            "text" if is_text(&start, &data.head) => {}
            _ => self.add(data.bytes, MAX_CONTEXT_TOKENS),
        }
    }

    /// Adds a file of type `mime`. The provider may choose its reader by the name. Only text counts by its bytes.
    pub fn add_file(&mut self, mime: &str, name: &str, data: &Data<'_>) {
        if media_class(mime) != "text" || !is_text(&decode_base64(&data.head), &data.head) || has_document_name(name) {
            self.add(data.bytes, MAX_CONTEXT_TOKENS);
        }
    }

    /// Adds sound of `bytes` bytes of base64, in a field that accepts only sound.
    pub fn add_sound(&mut self, bytes: usize) {
        self.add(bytes, i64::try_from(bytes).unwrap_or(MAX_CONTEXT_TOKENS).saturating_mul(2).min(MAX_CONTEXT_TOKENS));
    }

    /// Adds a `data:` URL of an image. Any other URL is refused: the provider would fetch uncounted data, and the path
    /// of the URL could send data to a host that the agent chooses.
    pub fn add_image_url(&mut self, url: &str, at: &Path<'_>, image: i64) -> Result<(), Fault> {
        let (mime, data) = data_url(url, at)?;
        self.add_base64(mime, &Data::of(data), image);
        Ok(())
    }

    /// Adds a `data:` URL of a file.
    pub fn add_file_url(&mut self, url: &str, name: &str, at: &Path<'_>) -> Result<(), Fault> {
        let (mime, data) = data_url(url, at)?;
        self.add_file(mime, name, &Data::of(data));
        Ok(())
    }

    /// Adds the words around a list of tools that is not empty.
    pub fn tools(&mut self) {
        self.add(0, TOOL_LIST_TOKENS);
    }

    /// Adds a tool that the provider describes and the client runs.
    pub fn add_provider_tool(&mut self) {
        self.add(0, PROVIDER_TOOL_TOKENS);
    }
}

/// Maximum number of tokens of one image.
pub(crate) fn max_image_tokens(dialect: Dialect, model: &str, detail: Option<&str>) -> i64 {
    match dialect {
        Dialect::Anthropic => 5_000,
        Dialect::OpenAIChat | Dialect::OpenAIResponses if detail == Some("low") => 3_000,
        Dialect::OpenAIChat | Dialect::OpenAIResponses if model.contains("4o-mini") => 48_500,
        Dialect::OpenAIChat | Dialect::OpenAIResponses => 25_000,
        Dialect::Gemini => 4_500,
    }
}

/// Base64 in a body: its beginning and its length.
#[derive(Clone, Debug)]
pub(crate) struct Data<'d> {
    head: Cow<'d, str>,
    bytes: usize,
}

impl<'d> Data<'d> {
    /// Base64 in a text.
    pub fn of(text: &'d str) -> Self {
        let end = (0..=MEDIA_HEAD_BYTES.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
        Self { head: Cow::Borrowed(&text[..end]), bytes: text.len() }
    }

    /// Base64 in a string of a body.
    pub fn of_node(node: Option<&Node<'d>>) -> Self {
        Self { head: node.map(|node| node.text_head(MEDIA_HEAD_BYTES)).unwrap_or_default(), bytes: node.map_or(0, Node::text_bytes) }
    }
}

/// Splits `data:MIME,DATA`.
fn data_url<'u>(url: &'u str, at: &Path<'_>) -> Result<(&'u str, &'u str), Fault> {
    let inner = url.get(..5).filter(|scheme| scheme.eq_ignore_ascii_case("data:")).and_then(|_| url[5..].split_once(','));
    inner.ok_or_else(|| at.fault("only data: URLs are allowed: Spillway cannot count data that the provider fetches from other URLs"))
}

/// The first part of a media type.
fn media_class(mime: &str) -> String {
    mime.split('/').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Decodes the base64 at the beginning of a text, in either alphabet.
fn decode_base64(text: &str) -> Vec<u8> {
    let (mut out, mut bits, mut count) = (Vec::with_capacity(text.len()), 0u32, 0u32);
    for sign in text.bytes().filter(|sign| !sign.is_ascii_whitespace()) {
        let six = match sign {
            b'A'..=b'Z' => sign - b'A',
            b'a'..=b'z' => sign - b'a' + 26,
            b'0'..=b'9' => sign - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => break,
        };
        (bits, count) = (bits << 6 | u32::from(six), count + 6);
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    out
}

/// Whether data begins as an image that a provider accepts: PNG, JPEG, GIF, WebP, BMP, TIFF, HEIC, AVIF. A document
/// that begins as an image is not an image.
fn is_image(start: &[u8]) -> bool {
    let begins = [&b"\x89PNG\r\n\x1a\n"[..], b"\xff\xd8\xff", b"GIF87a", b"GIF89a", b"BM", b"II*\0", b"MM\0*"];
    let still = [&b"heic"[..], b"heix", b"heim", b"heis", b"mif1", b"avif"];
    let known = begins.iter().any(|magic| start.starts_with(magic))
        || (start.starts_with(b"RIFF") && start.get(8..12) == Some(b"WEBP"))
        || (start.get(4..8) == Some(b"ftyp") && start.get(8..12).is_some_and(|brand| still.contains(&brand)));
    known && !is_document(start)
}

/// Whether data begins as a format that unpacks to more than its bytes: PDF, which parsers search for in the first
/// kilobyte, ZIP (office), OLE, RTF, gzip.
fn is_document(start: &[u8]) -> bool {
    let begins = [&b"PK"[..], b"\xd0\xcf\x11\xe0", b"{\\rtf", b"\x1f\x8b"];
    begins.iter().any(|magic| start.starts_with(magic)) || start.windows(5).any(|part| part == b"%PDF-")
}

/// Whether data begins as a text. `raw`: the data before decoding, in case it is not base64.
fn is_text(start: &[u8], raw: &str) -> bool {
    let sign = |byte: &u8| *byte >= 0x20 || matches!(byte, b'\t' | b'\n' | b'\r' | 0x0c | 0x1b);
    start.iter().all(sign) && !is_document(start) && !raw.contains("PDF-")
}

/// Whether a file has the name of a document.
fn has_document_name(name: &str) -> bool {
    let ending = name.rsplit_once('.').map(|(_, ending)| ending.trim().to_ascii_lowercase()).unwrap_or_default();
    DOCUMENT_EXTENSIONS.contains(&ending.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Data that begins with `start`, in base64, with 100 bytes in all.
    fn data(start: &[u8]) -> String {
        const SIGNS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let bytes: Vec<u8> = start.iter().copied().chain(std::iter::repeat(b' ')).take(75).collect();
        let sign = |group: &[u8], at: u32| {
            let bits = u32::from(group[0]) << 16 | u32::from(group[1]) << 8 | u32::from(group[2]);
            char::from(SIGNS[(bits >> (18 - 6 * at) & 63) as usize])
        };
        bytes.chunks(3).flat_map(|group| (0..4).map(move |at| sign(group, at))).collect()
    }

    const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";

    #[test]
    fn each_sort_counts_by_its_row_and_all_together_at_most_a_window() {
        for (mime, start, hidden, tokens) in [
            ("image/png", PNG, 100, 7),
            ("IMAGE/JPEG", b"\xff\xd8\xff\xe0", 100, 7),
            ("image/webp", b"RIFF\x10\0\0\0WEBPVP8 ", 100, 7),
            ("image/heic", b"\0\0\0\x18ftypheic", 100, 7),
            ("audio/wav", b"RIFF\x10\0\0\0WAVE", 100, 200),
            ("text/plain", b"hello\tworld\n", 0, 0),
            ("application/pdf", b"%PDF-1.7", 100, MAX_CONTEXT_TOKENS),
            ("video/mp4", b"\0\0\0\x18ftypisom", 100, MAX_CONTEXT_TOKENS),
            ("", PNG, 100, MAX_CONTEXT_TOKENS),
        ] {
            let mut found = MediaTally::default();
            found.add_base64(mime, &Data::of(&data(start)), 7);
            assert_eq!((found.media_bytes, found.tokens()), (hidden, tokens), "{mime}");
        }
        let mut found = MediaTally::default();
        (0..3).for_each(|_| found.add_base64("application/pdf", &Data::of("A"), 0));
        assert_eq!(found.tokens(), MAX_CONTEXT_TOKENS);
    }

    #[test]
    fn a_declared_type_is_not_believed() {
        let png_with_pdf = [PNG, b" %PDF-1.4"].concat();
        for (mime, start) in [
            ("image/png", &b"%PDF-1.7"[..]),
            ("image/png", b"junk %PDF-1.7"),
            ("image/png", &png_with_pdf),
            ("image/png", b"PK\x03\x04"),
            ("image/png", b"\0\0\0\x18ftypisom"),
            ("image/png", b"RIFF\x10\0\0\0AVI "),
            ("image/svg+xml", b"<svg>"),
            ("audio/wav", b"%PDF-1.7"),
            ("audio/wav", b"PK\x03\x04"),
            ("text/plain", b"%PDF-1.7"),
            ("text/plain", b"{\\rtf1"),
            ("text/plain", b"\xd0\xcf\x11\xe0\0\0"),
            ("text/plain", b"\0binary"),
        ] {
            let mut found = MediaTally::default();
            found.add_base64(mime, &Data::of(&data(start)), 7);
            assert_eq!((found.media_bytes, found.tokens()), (100, MAX_CONTEXT_TOKENS), "{mime} {start:?}");
        }
        let text = data(b"a,b\n1,2\n");
        for (mime, name, wanted) in [
            ("text/csv;base64", "a.csv", 0),
            ("text/plain;base64", "", 0),
            ("text/plain;base64", "a.PDF", MAX_CONTEXT_TOKENS),
            ("text/plain;base64", "a.docx", MAX_CONTEXT_TOKENS),
            ("image/png;base64", "a.png", MAX_CONTEXT_TOKENS),
            ("application/pdf;base64", "a.pdf", MAX_CONTEXT_TOKENS),
        ] {
            let mut found = MediaTally::default();
            found.add_file(mime, name, &Data::of(&text));
            assert_eq!(found.tokens(), wanted, "{mime} {name}");
        }
    }

    #[test]
    fn a_provider_fetches_nothing() {
        for url in ["https://example.org/a.png", "http://10.0.0.1/", "file:///etc/passwd", "gs://b/o", "", "data:", "data", "d\u{e4}ta:,"] {
            assert!(MediaTally::default().add_image_url(url, &Path::Root.key("url"), 1).is_err(), "{url}");
            assert!(MediaTally::default().add_file_url(url, "", &Path::Root.key("file_data")).is_err(), "{url}");
        }
        let mut found = MediaTally::default();
        let url = format!("data:image/png;base64,{}", data(PNG));
        found.add_image_url(&url, &Path::Root, 9).expect("a data URL");
        assert_eq!((found.media_bytes, found.tokens()), (100, 9));
    }
}
