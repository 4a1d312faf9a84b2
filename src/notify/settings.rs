//! The list of webhooks: a JSON file. Its secrets are in separate files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use serde::Deserialize;

/// The format of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Format {
    /// Spillway's own JSON.
    #[default]
    Generic,
    /// `{"text": ...}`, as incoming webhooks of Slack and compatible services accept it.
    Slack,
}

/// A webhook.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Webhook {
    /// Its name in logs and metrics.
    pub name: String,
    /// The format of its requests.
    #[serde(default)]
    pub format: Format,
    /// File with its URL. It is read for each attempt, because a Secret may change.
    pub url_file: PathBuf,
    /// File with the value of the header Authorization. None: no such header is sent.
    #[serde(default)]
    pub authorization_file: Option<PathBuf>,
    /// Trusted certificates in addition to the public authorities, in PEM.
    #[serde(default)]
    pub ca_bundle: String,
    /// Send only notices about objects in these namespaces. Empty: all notices.
    #[serde(default)]
    pub namespaces: BTreeSet<String>,
}

impl Webhook {
    /// Whether it gets notices about objects in this namespace.
    pub fn wants(&self, namespace: Option<&str>) -> bool {
        self.namespaces.is_empty() || namespace.is_some_and(|namespace| self.namespaces.contains(namespace))
    }
}

/// Reads the list of webhooks.
pub fn read(path: &Path) -> anyhow::Result<Vec<Webhook>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let webhooks: Vec<Webhook> = serde_json::from_str(&text).with_context(|| format!("{} is not a list of webhooks", path.display()))?;
    let names: BTreeSet<&str> = webhooks.iter().map(|webhook| webhook.name.as_str()).collect();
    ensure!(names.len() == webhooks.len(), "{}: two webhooks have the same name", path.display());
    Ok(webhooks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_understood_is_refused() {
        let file = std::env::temp_dir().join(format!("spillway-webhooks-{}", std::process::id()));
        let read = |text: &str| {
            std::fs::write(&file, text).expect("written");
            super::read(&file)
        };
        let one = read(r#"[{"name": "a", "urlFile": "/u"}]"#).expect("a list").remove(0);
        assert_eq!((one.format, one.wants(None), one.wants(Some("n"))), (Format::Generic, true, true));
        let one = read(r#"[{"name": "a", "urlFile": "/u", "format": "Slack", "namespaces": ["n"]}]"#).expect("a list").remove(0);
        assert_eq!((one.format, one.wants(None), one.wants(Some("n")), one.wants(Some("m"))), (Format::Slack, false, true, false));
        for wrong in [
            "{}",
            r#"[{"name": "a"}]"#,
            r#"[{"name": "a", "urlFile": "/u", "url": "x"}]"#,
            r#"[{"name": "a", "urlFile": "/u", "format": "X"}]"#,
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        let twice = read(r#"[{"name": "a", "urlFile": "/u"}, {"name": "a", "urlFile": "/v"}]"#);
        assert!(twice.is_err_and(|error| error.to_string().contains("the same name")));
        std::fs::remove_file(&file).expect("removed");
    }
}
