//! Where artifacts are kept, as the chart writes it.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use serde::Deserialize;

/// The file. Without a store, no artifact is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ArtifactSettings {
    /// The store.
    pub store: Option<StoreSettings>,
    /// Seconds between two searches for objects that belong to no artifact. Unset: 600.
    pub sweep_seconds: Option<u32>,
}

/// Between two sweeps, if nothing else is set.
const DEFAULT_SWEEP_INTERVAL: Duration = Duration::from_mins(10);

/// The store.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum StoreSettings {
    /// A folder of a volume.
    Volume {
        /// The folder.
        path: PathBuf,
    },
    /// A bucket of an S3-compatible server. The usual variables of the environment (`AWS_ACCESS_KEY_ID` and its like) have the
    /// credentials.
    S3(Bucket),
}

/// A bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Bucket {
    /// Its name.
    pub bucket: String,
    /// Its region. Unset: `us-east-1`.
    pub region: Option<String>,
    /// URL of the server. Unset: that of AWS in the region.
    pub endpoint: Option<String>,
    /// Start of the names of all objects.
    pub prefix: Option<String>,
    /// Whether the name of the bucket is part of the host name.
    pub virtual_hosted: Option<bool>,
    /// Certificates in PEM to trust, in addition to the public authorities.
    pub ca_bundle: Option<String>,
}

impl Bucket {
    /// What is wrong with the settings. The library computes with some of them without looking.
    pub fn check(&self) -> Result<(), String> {
        let Self { bucket, region, endpoint, prefix: _, virtual_hosted: _, ca_bundle: _ } = self;
        let plain =
            |text: &str, more: &str| text.chars().all(|char| char.is_ascii_lowercase() || char.is_ascii_digit() || more.contains(char));
        if !(3..=63).contains(&bucket.len()) || !plain(bucket, ".-") || bucket.starts_with(['.', '-']) {
            return Err(format!(
                "bucket: {bucket:?} must have 3 to 63 lower-case letters, digits, '.' and '-', the first one a letter or a digit"
            ));
        }
        if let Some(region) = region.as_deref().filter(|region| region.is_empty() || !plain(region, "-")) {
            return Err(format!("region: {region:?} must have lower-case letters, digits and '-'"));
        }
        match endpoint.as_deref() {
            Some(endpoint) if !is_origin(endpoint) => {
                Err(format!("endpoint: {endpoint:?} must be http://HOST, https://HOST or the same with :PORT, and nothing after it"))
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// Whether a text is the URL of a server, without a path.
fn is_origin(text: &str) -> bool {
    let Some(rest) = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")) else { return false };
    let (host, port) = rest.rsplit_once(':').map_or((rest, None), |(host, port)| (host, Some(port)));
    let is_name = host.split('.').all(|part| !part.is_empty() && part.chars().all(|char| char.is_ascii_alphanumeric() || char == '-'));
    let is_number = host.rsplit('.').next().is_some_and(|last| last.chars().all(|char| char.is_ascii_digit()));
    let is_host = is_name && (!is_number || host.parse::<Ipv4Addr>().is_ok());
    is_host && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

impl ArtifactSettings {
    /// Reads the file; without one there is no store.
    pub fn read(file: Option<&Path>) -> anyhow::Result<Self> {
        let Some(file) = file else { return Ok(Self::default()) };
        let text = std::fs::read_to_string(file).with_context(|| format!("reading {} (--artifacts-file)", file.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} (artifacts)", file.display()))
    }

    /// Between two sweeps.
    pub fn sweep_interval(&self) -> Duration {
        self.sweep_seconds.map_or(DEFAULT_SWEEP_INTERVAL, |seconds| Duration::from_secs(seconds.max(1).into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> serde_json::Result<ArtifactSettings> {
        serde_json::from_str(json)
    }

    #[test]
    fn wrong_settings_are_named_at_the_start() {
        let bucket = |bucket: &str, region: Option<&str>, endpoint: Option<&str>| Bucket {
            bucket: bucket.into(),
            region: region.map(str::to_owned),
            endpoint: endpoint.map(str::to_owned),
            ..Bucket::default()
        };
        for endpoint in [None, Some("https://s3.example.com"), Some("http://10.0.0.1:9000"), Some("https://minio:9000")] {
            assert_eq!(bucket("team-artifacts", Some("eu-west-1"), endpoint).check(), Ok(()), "{endpoint:?}");
        }
        let field = |settings: Bucket| settings.check().err().and_then(|wrong| wrong.split(':').next().map(str::to_owned));
        for name in ["", "ab", "a b", "Team", "-ab", "a/b", &"x".repeat(64)] {
            assert_eq!(field(bucket(name, None, None)).as_deref(), Some("bucket"), "{name:?}");
        }
        for region in ["", "eu west", "eu\n"] {
            assert_eq!(field(bucket("abc", Some(region), None)).as_deref(), Some("region"), "{region:?}");
        }
        for endpoint in [
            "s3.example.com",
            "ftp://x",
            "https://",
            "http://x:99999",
            "http://x:0",
            "http://10.0.0.300",
            "https://x/y",
            "https://a b",
            "https://u:p@x",
        ] {
            assert_eq!(field(bucket("abc", None, Some(endpoint))).as_deref(), Some("endpoint"), "{endpoint:?}");
        }
    }

    #[test]
    fn the_file_of_the_chart_is_read() {
        assert_eq!(parse("{}").expect("no store"), ArtifactSettings::default());
        let volume = parse(r#"{"store": {"volume": {"path": "/a"}}}"#).expect("a volume");
        assert_eq!(volume.store, Some(StoreSettings::Volume { path: "/a".into() }));
        let s3 = parse(r#"{"store": {"s3": {"bucket": "b", "endpoint": "https://s3.example.com"}}}"#).expect("a bucket");
        let endpoint = Some("https://s3.example.com".into());
        assert_eq!(s3.store, Some(StoreSettings::S3(Bucket { bucket: "b".into(), endpoint, ..Bucket::default() })));
        for bad in [r#"{"store": {"s3": {}}}"#, r#"{"store": {"tape": {}}}"#, r#"{"stores": {}}"#] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
