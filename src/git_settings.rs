//! The platform's rules of git, as the chart writes them into a file (`git` in its values).
//!
//! Controller and gateways read the same file. It must not decide: that is `policy::git`.

use std::path::Path;

use anyhow::Context as _;
use serde::Deserialize;

use crate::origins::{Origin, OriginEntry, Origins};
use crate::policy::git::Repository;

/// The most bytes of one fetch of a platform that sets none.
const DEFAULT_MAX_FETCH_BYTES: u64 = 8 << 30;
/// The most bytes of one push of a platform that sets none.
const DEFAULT_MAX_PUSH_BYTES: u64 = 1 << 30;

/// The file.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct GitFile {
    origins: Option<Vec<OriginEntry>>,
    max_fetch_bytes: Option<u64>,
    max_push_bytes: Option<u64>,
}

/// The rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GitSettings {
    /// The servers whose repositories pools may name.
    pub origins: Origins,
    /// The most bytes of the answers to one request of a fetch.
    pub max_fetch_bytes: u64,
    /// The most bytes of one push.
    pub max_push_bytes: u64,
}

impl Default for GitSettings {
    fn default() -> Self {
        Self { origins: Origins::none(), max_fetch_bytes: DEFAULT_MAX_FETCH_BYTES, max_push_bytes: DEFAULT_MAX_PUSH_BYTES }
    }
}

impl GitSettings {
    /// Reads the file; without one no server can be used.
    pub fn read(file: Option<&Path>) -> anyhow::Result<Self> {
        let Some(file) = file else { return Ok(Self::default()) };
        let text = std::fs::read_to_string(file).with_context(|| format!("reading {} (--git-file)", file.display()))?;
        Self::parse(&text).map_err(|error| anyhow::anyhow!("{} (git): {error}", file.display()))
    }

    /// Reads a JSON object with `origins`, `maxFetchBytes` and `maxPushBytes`.
    pub fn parse(json: &str) -> Result<Self, String> {
        let GitFile { origins, max_fetch_bytes, max_push_bytes } = serde_json::from_str(json).map_err(|error| error.to_string())?;
        let defaults = Self::default();
        let origins = origins.map(Origins::of).transpose().map_err(|error| format!("origins: {error}"))?;
        Ok(Self {
            origins: origins.unwrap_or(defaults.origins),
            max_fetch_bytes: max_fetch_bytes.unwrap_or(defaults.max_fetch_bytes),
            max_push_bytes: max_push_bytes.unwrap_or(defaults.max_push_bytes),
        })
    }

    /// Whether the platform lists the server of a repository.
    pub fn lists(&self, repository: &Repository) -> bool {
        Origin::parse(&repository.origin()).is_ok_and(|origin| self.origins.terms(&origin).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_the_chart_is_read() {
        let json = r#"{"origins": [{"origin": "https://git.example.com:8443", "allowPrivate": true}], "maxPushBytes": 5}"#;
        let settings = GitSettings::parse(json).expect("a file");
        let lists = |url: &str| settings.lists(&Repository::parse_url(url).expect(url));
        assert!(lists("https://git.example.com:8443/a/b") && !lists("https://git.example.com/a/b") && !lists("https://github.com/a/b"));
        assert_eq!((settings.max_push_bytes, settings.max_fetch_bytes), (5, DEFAULT_MAX_FETCH_BYTES));
        let empty = GitSettings::parse("{}").expect("an empty file");
        assert_eq!(empty, GitSettings::default());
        assert!(!empty.lists(&Repository::parse_url("https://github.com/a/b.git").expect("a repository")), "the platform lists servers");
        for (json, words) in [(r#"{"origins": [{"origin": "http://a.example.com"}]}"#, "origins: "), (r#"{"hosts": []}"#, "hosts")] {
            assert!(GitSettings::parse(json).is_err_and(|error| error.contains(words)), "{json}");
        }
    }
}
