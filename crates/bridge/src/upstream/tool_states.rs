//! The tools of an upstream, as they were when they were first seen. Agents see them so until the bridge starts again: an upstream that
//! changes the words about a tool behind people's backs changes what models are told to do.

use std::collections::BTreeMap;

use super::listed::{MAX_SCHEMA_BYTES, OfferedTool, RawTool};
use super::{AllowedTool, Upstream};

/// A tool, and whether it may be called.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolState {
    /// Agents may call it.
    Offered(Box<PinnedTool>),
    /// The upstream does not list it.
    Missing,
    /// The Toolset names another digest than this one.
    OtherDigest(String),
    /// Its schema has too many bytes.
    TooLong(usize),
}

/// A tool that was seen.
#[derive(Clone, Debug, PartialEq)]
pub struct PinnedTool {
    /// As agents see it.
    pub offered: OfferedTool,
    /// The digest of it.
    pub digest: String,
    /// Whether a call of it needs headers that the list of tools explains.
    pub asks_for_headers: bool,
    /// The digest of what the upstream says about it now, if that is something else.
    pub changed: Option<String>,
}

/// All allowed tools. None was seen at first.
#[derive(Clone, Debug, Default)]
pub struct ToolStates {
    /// The states after the last look.
    tools: BTreeMap<String, ToolState>,
    /// Each tool as it was first seen. It stays when the upstream lists the tool no more, or a tool could be changed by removing it first.
    first: BTreeMap<String, PinnedTool>,
}

/// What is wrong with the tools of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolFaultKind {
    /// Some are not offered, because the upstream does not list them, or lists them too long.
    Missing,
    /// Some are not offered, because their digest is another one.
    OtherDigest,
    /// Some are offered as they were first seen, and the upstream says something else now.
    Changed,
}

impl ToolStates {
    /// Takes over what the upstream lists now. Returns whether something is other than before.
    pub fn look(&mut self, upstream: &Upstream, listed: &BTreeMap<String, RawTool>) -> bool {
        let next: BTreeMap<String, ToolState> = upstream
            .tools
            .iter()
            .map(|(name, allowed)| (name.clone(), next_state(allowed, listed.get(name), self.first.get(name))))
            .collect();
        for (name, state) in &next {
            if let ToolState::Offered(seen) = state
                && !self.first.contains_key(name)
            {
                self.first.insert(name.clone(), PinnedTool::clone(seen));
            }
        }
        let differs = next != self.tools;
        self.tools = next;
        differs
    }

    /// The state of a tool. None: the upstream was never asked, or the tool is not allowed.
    pub fn tool(&self, name: &str) -> Option<&ToolState> {
        self.tools.get(name)
    }

    /// The tools as agents see them, by name.
    pub fn offered(&self) -> impl Iterator<Item = &PinnedTool> {
        self.tools.values().filter_map(|state| match state {
            ToolState::Offered(seen) => Some(seen.as_ref()),
            ToolState::Missing | ToolState::OtherDigest(_) | ToolState::TooLong(_) => None,
        })
    }

    /// The worst fault, and the tools that have one.
    pub fn fault(&self) -> Option<(ToolFaultKind, String)> {
        let mut texts: BTreeMap<u8, (ToolFaultKind, Vec<String>)> = BTreeMap::new();
        for (name, state) in &self.tools {
            let (order, kind, text) = match state {
                ToolState::Missing => (0, ToolFaultKind::Missing, format!("{name} is not there")),
                ToolState::TooLong(bytes) => {
                    (0, ToolFaultKind::Missing, format!("the inputSchema of {name} has {bytes} bytes, and may have {MAX_SCHEMA_BYTES}"))
                }
                ToolState::OtherDigest(digest) => (1, ToolFaultKind::OtherDigest, format!("{name} has the digest {digest}")),
                ToolState::Offered(seen) => match &seen.changed {
                    Some(digest) => (2, ToolFaultKind::Changed, format!("{name} has the digest {digest} now, and had {}", seen.digest)),
                    None => continue,
                },
            };
            texts.entry(order).or_insert((kind, Vec::new())).1.push(text);
        }
        texts.into_values().next().map(|(kind, texts)| (kind, texts.join("; ")))
    }
}

/// The state of a tool after a look.
fn next_state(allowed: &AllowedTool, listed: Option<&RawTool>, first: Option<&PinnedTool>) -> ToolState {
    let Some(raw) = listed else { return ToolState::Missing };
    let digest = raw.digest();
    if allowed.digest.as_ref().is_some_and(|wanted| *wanted != digest) {
        return ToolState::OtherDigest(digest);
    }
    if let Some(first) = first {
        let changed = (first.digest != digest).then_some(digest);
        return ToolState::Offered(Box::new(PinnedTool { changed, ..first.clone() }));
    }
    match raw.schema_bytes() {
        bytes if bytes > MAX_SCHEMA_BYTES => ToolState::TooLong(bytes),
        _ => {
            let (offered, asks_for_headers) = (raw.offered(allowed), raw.asks_for_headers());
            ToolState::Offered(Box::new(PinnedTool { offered, digest, asks_for_headers, changed: None }))
        }
    }
}
