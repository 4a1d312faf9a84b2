//! A repository: a server and a path, as a pool declares it (`https://HOST[:PORT]/PATH`) and as a program asks for it below the
//! sidecar's git port (`HOST[:PORT]/PATH`).
//!
//! Pure. A repository has one spelling, except that servers accept a path with and without `.git`.

use std::fmt;

use crate::egress::Destination;

/// The port of `https` without one.
const HTTPS_PORT: u16 = 443;
/// The most characters of a path.
const MAX_PATH_CHARS: usize = 1024;
/// The end of a path that may be left out.
const SUFFIX: &str = ".git";

/// A repository.
#[derive(Clone, Debug)]
pub struct Repository {
    server: Destination,
    /// Without a slash at its start, as it was written.
    path: String,
}

/// Why a text names no repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RepositoryError {
    /// It does not begin with `https://`.
    NotHttps,
    /// Its host is not a host name.
    Host(String),
    /// It has no path, or the path has a segment or a character that is not allowed.
    Path,
    /// Its path is too long.
    TooLong,
}

impl fmt::Display for RepositoryError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotHttps => out.write_str("the URL does not begin with https://: other protocols are not supported"),
            Self::Host(error) => out.write_str(error),
            Self::Path => out.write_str(
                "the path is not one or more names of letters, digits and ._~+- (no user, no query, no %, no name that begins with a dot)",
            ),
            Self::TooLong => write!(out, "the path has more than {MAX_PATH_CHARS} characters"),
        }
    }
}

impl Repository {
    /// Reads `https://HOST[:PORT]/PATH`.
    pub fn parse_url(url: &str) -> Result<Self, RepositoryError> {
        Self::parse(url.strip_prefix("https://").ok_or(RepositoryError::NotHttps)?)
    }

    /// Reads `HOST[:PORT]/PATH`.
    pub fn parse(text: &str) -> Result<Self, RepositoryError> {
        let (host, path) = text.split_once('/').ok_or(RepositoryError::Path)?;
        let with_port = if host.contains(':') { host.to_owned() } else { format!("{host}:{HTTPS_PORT}") };
        let server = Destination::parse(&with_port).map_err(|error| RepositoryError::Host(error.to_string()))?;
        if path.len() > MAX_PATH_CHARS {
            return Err(RepositoryError::TooLong);
        }
        // With a second `.git` the name of a repository could be read in two ways.
        let twice = path.strip_suffix(SUFFIX).is_some_and(|bare| bare.ends_with(SUFFIX));
        if !path.split('/').all(is_segment) || path == SUFFIX || twice {
            return Err(RepositoryError::Path);
        }
        Ok(Self { server, path: path.to_owned() })
    }

    /// Its server.
    pub fn server(&self) -> &Destination {
        &self.server
    }

    /// The path of a URL of the repository, with a slash at its start.
    pub fn url_path(&self) -> String {
        format!("/{}", self.path)
    }

    /// Its origin, such as `https://git.example.com`.
    pub fn origin(&self) -> String {
        format!("https://{}", self.authority())
    }

    /// Host, and port if it is not the usual one.
    fn authority(&self) -> String {
        match self.server.port() {
            HTTPS_PORT => self.server.host().to_owned(),
            port => format!("{}:{port}", self.server.host()),
        }
    }

    /// `HOST[:PORT]/PATH` without `.git`, which names the repository in one way only.
    pub fn name(&self) -> String {
        format!("{}/{}", self.authority(), self.bare_path())
    }

    fn bare_path(&self) -> &str {
        self.path.strip_suffix(SUFFIX).unwrap_or(&self.path)
    }

    /// Whether both are the same repository.
    pub fn is_same(&self, other: &Self) -> bool {
        self.server == other.server && self.bare_path() == other.bare_path()
    }
}

impl fmt::Display for Repository {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "https://{}/{}", self.authority(), self.path)
    }
}

/// Whether a text is one name of a path. No name begins with a dot, so none leads out of its folder.
fn is_segment(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._~+-".contains(&byte);
    !text.is_empty() && !text.starts_with('.') && text.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_is_read_from_its_url_and_has_one_name() {
        let cases = [
            ("https://git.example.com/team/app.git", "git.example.com/team/app", "https://git.example.com"),
            ("https://git.example.com/team/app", "git.example.com/team/app", "https://git.example.com"),
            ("https://git.example.com:443/team/app", "git.example.com/team/app", "https://git.example.com"),
            ("https://GIT.example.com:8443/a/b/c/d.git", "git.example.com:8443/a/b/c/d", "https://git.example.com:8443"),
            ("https://git.example.com/~user/a+b_c-d.x", "git.example.com/~user/a+b_c-d.x", "https://git.example.com"),
        ];
        for (url, name, origin) in cases {
            let repository = Repository::parse_url(url).expect(url);
            assert_eq!((repository.name().as_str(), repository.origin().as_str()), (name, origin));
            assert!(Repository::parse(&repository.name()).expect(name).is_same(&repository), "{url}");
        }
    }

    #[test]
    fn other_texts_name_no_repository() {
        for url in [
            "http://git.example.com/team/app",
            "ssh://git@git.example.com/team/app",
            "git@git.example.com:team/app",
            "file:///etc/passwd",
            "https://git.example.com",
            "https://git.example.com/",
            "https://git.example.com/team/",
            "https://git.example.com//app",
            "https://git.example.com/team/../app",
            "https://git.example.com/team/./app",
            "https://git.example.com/team/.git",
            "https://git.example.com/.git",
            "https://git.example.com/team/app.git.git",
            "https://git.example.com/team/%2e%2e/app",
            "https://git.example.com/team/app?x",
            "https://git.example.com/team/app#x",
            "https://git.example.com/team/a b",
            "https://user@git.example.com/team/app",
            "https://user:password@git.example.com/team/app",
            "https://git.example.com@evil.example.com/team/app",
            "https://git.example.com\\evil/app",
            "https://10.0.0.1/team/app",
            "https://2130706433/team/app",
            "https://[::1]/team/app",
            "https://localhost/team/app",
            "https://git.example.com:0/team/app",
            "https://git.example.com:/team/app",
            "https://git.example.com./team/app",
        ] {
            assert!(Repository::parse_url(url).is_err(), "{url}");
        }
        assert_eq!(Repository::parse_url(&format!("https://a.b/{}", "x".repeat(1025))).err(), Some(RepositoryError::TooLong));
    }

    #[test]
    fn another_case_path_or_port_is_another_repository() {
        let one = Repository::parse_url("https://git.example.com/team/app").expect("a repository");
        let same = |url: &str| one.is_same(&Repository::parse_url(url).expect(url));
        assert!(same("https://git.example.com/team/app.git") && same("https://Git.Example.com:443/team/app"));
        for other in ["team/App", "team/app2", "team/app/x", "app"] {
            assert!(!same(&format!("https://git.example.com/{other}")), "{other}");
        }
        assert!(!same("https://git.example.com:8443/team/app") && !same("https://git2.example.com/team/app"));
    }
}
