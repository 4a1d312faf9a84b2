//! The platform's rules of egress, as the chart writes them into a file (`egress` in its values).
//!
//! Controller and gateways read the same file. It must not decide: that is `policy::egress`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;
use serde::Deserialize;

use crate::policy::egress::{Destination, HostPattern};

/// The file.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct EgressFile {
    #[serde(default = "yes")]
    enabled: bool,
    #[serde(default)]
    deny: Vec<String>,
    #[serde(default)]
    allow_private: Vec<String>,
    #[serde(default)]
    allow_sets: BTreeMap<String, Vec<String>>,
}

fn yes() -> bool {
    true
}

/// The rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EgressSettings {
    /// Whether pools may open destinations at all.
    pub enabled: bool,
    /// Destinations that no pool reaches.
    pub deny: Vec<HostPattern>,
    /// Destinations whose addresses may be private.
    allow_private: Vec<Destination>,
    /// Lists that pools use by name.
    pub allow_sets: BTreeMap<String, Vec<HostPattern>>,
}

impl Default for EgressSettings {
    fn default() -> Self {
        Self { enabled: true, deny: Vec::new(), allow_private: Vec::new(), allow_sets: BTreeMap::new() }
    }
}

impl EgressSettings {
    /// Reads the file; without one the platform denies nothing and defines no sets.
    pub fn read(file: Option<&Path>) -> anyhow::Result<Self> {
        let Some(file) = file else { return Ok(Self::default()) };
        let text = std::fs::read_to_string(file).with_context(|| format!("reading {} (--egress-file)", file.display()))?;
        Self::parse(&text).map_err(|error| anyhow::anyhow!("{} (egress): {error}", file.display()))
    }

    /// Reads a JSON object with `enabled`, `deny`, `allowPrivate` and `allowSets`.
    pub fn parse(json: &str) -> Result<Self, String> {
        let EgressFile { enabled, deny, allow_private, allow_sets } = serde_json::from_str(json).map_err(|error| error.to_string())?;
        let patterns = |field: &str, texts: &[String]| -> Result<Vec<HostPattern>, String> {
            texts.iter().map(|text| HostPattern::parse(text).map_err(|error| format!("{field}: {error}"))).collect()
        };
        let exact = |text: &String| Destination::parse(text).map_err(|error| format!("allowPrivate: {text:?} is not HOST:PORT: {error}"));
        let set = |(name, texts): (String, Vec<String>)| {
            let field = format!("allowSets.{name}");
            let patterns = patterns(&field, &texts)?;
            match patterns.iter().find(|pattern| pattern.names_every_port()) {
                Some(pattern) => Err(format!("{field}: {pattern} needs a port")),
                None => Ok((name, patterns)),
            }
        };
        Ok(Self {
            enabled,
            deny: patterns("deny", &deny)?,
            allow_private: allow_private.iter().map(exact).collect::<Result<_, _>>()?,
            allow_sets: allow_sets.into_iter().map(set).collect::<Result<_, _>>()?,
        })
    }

    /// Whether the addresses of a destination may be private.
    pub fn may_be_private(&self, destination: &Destination) -> bool {
        self.allow_private.contains(destination)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_the_chart_is_read() {
        let json = r#"{"deny": ["*.internal.example.com:*"], "allowPrivate": ["npm.example.com:443"], "allowSets": {"npm": ["packages.example.org:443"]}}"#;
        let settings = EgressSettings::parse(json).expect("a file");
        let destination = |text| Destination::parse(text).expect("a destination");
        assert!(settings.deny[0].matches(&destination("a.internal.example.com:22")));
        assert!(
            settings.may_be_private(&destination("npm.example.com:443")) && !settings.may_be_private(&destination("npm.example.com:80"))
        );
        assert!(settings.allow_sets["npm"][0].matches(&destination("packages.example.org:443")));
        assert_eq!(EgressSettings::parse("{}"), Ok(EgressSettings::default()));
        assert!(EgressSettings::parse(r#"{"enabled": false}"#).is_ok_and(|settings| !settings.enabled));
    }

    #[test]
    fn a_wrong_entry_is_named_with_its_field() {
        for (json, words) in [
            (r#"{"deny": ["*:443"]}"#, "deny: \"*:443\""),
            (r#"{"allowPrivate": ["*.example.com:443"]}"#, "allowPrivate: \"*.example.com:443\""),
            (r#"{"allowPrivate": ["10.0.0.1:443"]}"#, "allowPrivate: \"10.0.0.1:443\""),
            (r#"{"allowSets": {"npm": ["packages.example.org"]}}"#, "allowSets.npm: \"packages.example.org\""),
            (r#"{"allowSets": {"npm": ["packages.example.org:*"]}}"#, "allowSets.npm: packages.example.org:* needs a port"),
            (r#"{"denied": []}"#, "denied"),
        ] {
            let error = EgressSettings::parse(json).expect_err(json);
            assert!(error.contains(words), "{json}: {error}");
        }
    }
}
