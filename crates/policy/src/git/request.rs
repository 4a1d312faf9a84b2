//! One HTTP request of a git client, by method, path and query: git's smart HTTP protocol has four.
//!
//! Pure. Requests of the older protocol, which reads files of the repository one by one, are not served.

use super::repository::Repository;

/// What a client wants from a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// To fetch objects.
    Fetch,
    /// To push objects.
    Push,
}

impl Service {
    /// The name of the service in the protocol.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fetch => "git-upload-pack",
            Self::Push => "git-receive-pack",
        }
    }

    /// The word in metrics and logs.
    pub fn label(self) -> &'static str {
        match self {
            Self::Fetch => "fetch",
            Self::Push => "push",
        }
    }

    /// The path below that of the repository, and the query.
    pub fn path(self, exchange: Exchange) -> String {
        match exchange {
            Exchange::Advertisement => format!("/info/refs?service={}", self.name()),
            Exchange::Call => format!("/{}", self.name()),
        }
    }

    /// The content type of the request's body.
    pub fn request_type(self) -> String {
        format!("application/x-{}-request", self.name())
    }

    /// The content type of the answer.
    pub fn answer_type(self, exchange: Exchange) -> String {
        match exchange {
            Exchange::Advertisement => format!("application/x-{}-advertisement", self.name()),
            Exchange::Call => format!("application/x-{}-result", self.name()),
        }
    }
}

/// The two exchanges of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exchange {
    /// The client asks for the server's capabilities and refs.
    Advertisement,
    /// The client sends commands, and objects in a push.
    Call,
}

/// A request.
#[derive(Clone, Debug)]
pub struct GitRequest {
    /// The repository.
    pub repository: Repository,
    /// The service.
    pub service: Service,
    /// Which of its exchanges.
    pub exchange: Exchange,
}

/// Why a request is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// It is of git's large file storage.
    Lfs,
    /// It is of the older protocol, or of no git client.
    NotServed,
}

impl std::fmt::Display for RequestError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Self::Lfs => "large file storage (LFS) is not supported: set GIT_LFS_SKIP_SMUDGE=1 to work without these files",
            Self::NotServed => "this is no request of git's smart HTTP protocol: use git, with the URL HOST/PATH below this port's /git/",
        })
    }
}

/// Reads a request; `path` is without the prefix, `HOST[:PORT]/PATH/...`.
pub fn parse(method: &str, path: &str, query: Option<&str>) -> Result<GitRequest, RequestError> {
    if path.contains("/info/lfs") {
        return Err(RequestError::Lfs);
    }
    let found = [Service::Fetch, Service::Push].into_iter().find_map(|service| {
        if let Some(repository) = path.strip_suffix("/info/refs") {
            let asked = query.and_then(|query| query.strip_prefix("service=")) == Some(service.name());
            return (method == "GET" && asked).then_some((repository, service, Exchange::Advertisement));
        }
        let repository = path.strip_suffix(service.name())?.strip_suffix('/')?;
        (method == "POST" && query.is_none()).then_some((repository, service, Exchange::Call))
    });
    let (repository, service, exchange) = found.ok_or(RequestError::NotServed)?;
    let repository = Repository::parse(repository).map_err(|_| RequestError::NotServed)?;
    Ok(GitRequest { repository, service, exchange })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_four_requests_of_the_protocol_are_read() {
        let cases = [
            ("GET", "a.example/x/y.git/info/refs", Some("service=git-upload-pack"), Service::Fetch, Exchange::Advertisement),
            ("GET", "a.example/x/y.git/info/refs", Some("service=git-receive-pack"), Service::Push, Exchange::Advertisement),
            ("POST", "a.example/x/y.git/git-upload-pack", None, Service::Fetch, Exchange::Call),
            ("POST", "a.example:8443/x/y/git-receive-pack", None, Service::Push, Exchange::Call),
        ];
        for (method, path, query, service, exchange) in cases {
            let request = parse(method, path, query).expect(path);
            assert_eq!((request.service, request.exchange), (service, exchange), "{path}");
            let again = format!("{}{}", request.repository.name(), service.path(exchange));
            let (path, query) = again.split_once('?').map_or((again.as_str(), None), |(path, query)| (path, Some(query)));
            assert!(parse(method, path, query).is_ok(), "{again}");
        }
    }

    #[test]
    fn nothing_else_is_served() {
        for (method, path, query) in [
            ("GET", "a.example/x/info/refs", None),
            ("GET", "a.example/x/info/refs", Some("service=git-upload-archive")),
            ("GET", "a.example/x/info/refs", Some("service=git-upload-pack&x=1")),
            ("GET", "a.example/x/info/refs", Some("x=1&service=git-upload-pack")),
            ("POST", "a.example/x/info/refs", Some("service=git-upload-pack")),
            ("GET", "a.example/x/git-upload-pack", None),
            ("POST", "a.example/x/git-upload-pack", Some("a")),
            ("PUT", "a.example/x/git-receive-pack", None),
            ("GET", "a.example/x/HEAD", None),
            ("GET", "a.example/x/objects/info/packs", None),
            ("POST", "a.example/x/git-upload-archive", None),
            ("POST", "a.example/git-upload-pack", None),
            ("POST", "/git-upload-pack", None),
            ("POST", "git-upload-pack", None),
            ("POST", "a.example/x/../y/git-upload-pack", None),
            ("POST", "a.example/x%2fy/git-upload-pack", None),
            ("POST", "a.example//x/git-upload-pack", None),
            ("POST", "127.0.0.1/x/git-upload-pack", None),
        ] {
            assert_eq!(parse(method, path, query).err(), Some(RequestError::NotServed), "{method} {path} {query:?}");
        }
        assert_eq!(parse("POST", "a.example/x/info/lfs/objects/batch", None).err(), Some(RequestError::Lfs));
    }
}
