//! The configuration file of a local sandbox: a strict YAML file. It only reads the file; it decides nothing about paths.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::bridge::BridgeUrl;

/// The most bytes of the file.
const MAX_CONFIG_BYTES: u64 = 64 * 1024;

/// The content of the file. A field that is not listed here is refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Paths that the program may use besides the workspace.
    #[serde(default)]
    pub mounts: Vec<Mount>,
    /// The network of the program.
    #[serde(default)]
    pub network: NetworkAccess,
    /// URL of the bridge. The flag `--bridge-url` wins.
    #[serde(default)]
    pub bridge: Option<BridgeUrl>,
    /// Names of variables of the environment that the program gets too.
    #[serde(default)]
    pub pass: Vec<String>,
    /// Paths that are hidden besides the well-known places of credentials.
    #[serde(default)]
    pub hide: Vec<PathBuf>,
}

/// A path that the program may use.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    /// An absolute path, or one that begins with `~/`.
    pub path: PathBuf,
    /// How it may be used.
    pub access: MountAccess,
}

/// How a mount may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum MountAccess {
    /// Read and executed.
    Read,
    /// Read, written and executed.
    Write,
}

/// The network of the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetworkAccess {
    /// A loopback interface of its own, and the bridge if there is one.
    #[default]
    None,
    /// The network of the machine.
    Host,
}

/// The file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// It is too long.
    #[error("{} has more than {MAX_CONFIG_BYTES} bytes", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// It is no such configuration.
    #[error("{}: {message}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The field and the place.
        message: String,
    },
}

impl Config {
    /// Reads the file.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let failed = |source| ConfigError::Read { path: path.to_owned(), source };
        if fs::metadata(path).map_err(failed)?.len() > MAX_CONFIG_BYTES {
            return Err(ConfigError::TooLong { path: path.to_owned() });
        }
        let text = fs::read_to_string(path).map_err(failed)?;
        Self::parse(&text).map_err(|message| ConfigError::Invalid { path: path.to_owned(), message })
    }

    /// Reads its text. An empty file is the default.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
            return Ok(Self::default());
        }
        // The lines after the first show the place again.
        let first = |error: String| error.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
        serde_saphyr::from_str(text).map_err(|error| first(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_read_and_an_empty_file_is_the_default() {
        let text = "mounts:\n  - {path: ~/.cargo, access: Read}\n  - {path: /srv/data, access: Write}\nnetwork: host\n\
                    bridge: http://localhost:3000\npass: [ANTHROPIC_API_KEY]\nhide: [/srv/secrets]\n";
        let config = Config::parse(text).expect("a configuration");
        let mount = |path: &str, access| Mount { path: path.into(), access };
        assert_eq!(config.mounts, [mount("~/.cargo", MountAccess::Read), mount("/srv/data", MountAccess::Write)]);
        assert_eq!((config.network, config.bridge.map(|url| url.port())), (NetworkAccess::Host, Some(3000)));
        assert_eq!((config.pass, config.hide), (vec!["ANTHROPIC_API_KEY".to_owned()], vec![PathBuf::from("/srv/secrets")]));
        assert_eq!(Config::parse(" \n# nothing\n"), Ok(Config::default()));
    }

    #[test]
    fn a_field_that_is_not_known_is_named() {
        for (text, name) in [
            ("mount: []\n", "mount"),
            ("mounts: [{path: /a, access: Read, mode: 7}]\n", "mode"),
            ("mounts: [{path: /a, access: All}]\n", "All"),
            ("mounts: [{path: /a}]\n", "access"),
            ("network: bridge\n", "bridge"),
            ("bridge: ftp://x\n", "ftp://x"),
        ] {
            let error = Config::parse(text).expect_err("refused");
            assert!(error.contains(name), "{text}: {error}");
        }
    }

    #[test]
    fn an_error_names_the_file() {
        let path = std::env::temp_dir().join(format!("spillway-config-{}", std::process::id()));
        assert!(Config::read(&path).expect_err("no file").to_string().contains(&path.display().to_string()));
        fs::write(&path, "strange: 1\n").expect("written");
        let error = Config::read(&path).expect_err("refused").to_string();
        fs::remove_file(&path).expect("removed");
        assert!(error.contains(&path.display().to_string()) && error.contains("strange"), "{error}");
    }
}
