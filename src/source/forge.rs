//! The REST APIs of forges: the requests about issues, and what is read of the answers. Pure.
//!
//! It must not send a request.

use http::{HeaderName, HeaderValue, Method, header};
use serde_json::{Value, json};

use crate::wire::text::percent_escape;

/// A kind of forge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ForgeKind {
    /// GitHub, and GitHub Enterprise Server
    Github,
    /// GitLab
    Gitlab,
    /// Gitea and Forgejo
    Gitea,
}

/// Issues of one page.
const PAGE_SIZE: usize = 50;

/// A repository on a forge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forge {
    kind: ForgeKind,
    /// URL of the API, without a slash at the end.
    api: String,
    /// The repository, as OWNER/NAME; on GitLab also GROUP/SUBGROUP/NAME.
    repository: String,
    /// The label of the issues that are work.
    label: String,
}

/// An issue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issue {
    /// Its number in its repository.
    pub number: u64,
    /// Its title.
    pub title: String,
    /// Its text.
    pub body: String,
    /// Its page.
    pub url: String,
    /// The name of its author.
    pub author: String,
    /// Whether it is open.
    pub open: bool,
    /// Whether it has the label of work.
    pub labelled: bool,
    /// The id of that label, where labels are removed by it.
    pub label_id: Option<u64>,
}

impl Issue {
    /// Whether it is work.
    pub fn is_work(&self) -> bool {
        self.open && self.labelled
    }
}

/// A request to the forge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForgeRequest {
    /// Its method.
    pub method: Method,
    /// Its URL.
    pub url: String,
    /// Its body.
    pub body: Option<Value>,
}

impl ForgeRequest {
    fn get(url: String) -> Self {
        Self { method: Method::GET, url, body: None }
    }
}

impl Forge {
    /// A repository. `api` may be left out where the forge is one for all.
    pub fn new(kind: ForgeKind, api: Option<&str>, repository: &str, label: &str) -> Result<Self, String> {
        let api = match (kind, api) {
            (_, Some(api)) => api,
            (ForgeKind::Github, None) => "https://api.github.com",
            (ForgeKind::Gitlab, None) => "https://gitlab.com/api/v4",
            (ForgeKind::Gitea, None) => return Err("--url is missing: the URL of the API, such as https://HOST/api/v1".to_owned()),
        };
        if !(api.starts_with("https://") || api.starts_with("http://"))
            || api.contains(['?', '#', '@'])
            || api.parse::<http::Uri>().is_err()
        {
            return Err(format!("--url {api:?} must be the URL of an API, as https://HOST/PATH, without a credential"));
        }
        let parts: Vec<&str> = repository.split('/').collect();
        let is_part = |part: &&str| {
            let of_name = |char: char| char.is_ascii_alphanumeric() || "._-".contains(char);
            !part.is_empty() && part.chars().all(of_name) && !part.chars().all(|char| char == '.')
        };
        let levels = if kind == ForgeKind::Gitlab { 2..=20 } else { 2..=2 };
        if !levels.contains(&parts.len()) || !parts.iter().all(is_part) {
            return Err(format!("--repository {repository:?} must be OWNER/NAME"));
        }
        if label.trim().is_empty() || label.contains(',') {
            return Err(format!("--label {label:?} must be the name of one label, without a comma"));
        }
        let api = api.trim_end_matches('/').to_owned();
        Ok(Self { kind, api, repository: repository.to_owned(), label: label.to_owned() })
    }

    /// The label of the issues that are work.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// What identifies the repository and its label among all others.
    pub fn identity(&self) -> [&str; 3] {
        [&self.api, &self.repository, &self.label]
    }

    /// The headers of each request, with the credential.
    pub fn headers(&self, token: &str) -> Result<Vec<(HeaderName, HeaderValue)>, String> {
        let secret = |text: String| {
            let mut value = HeaderValue::try_from(text).map_err(|_| "the token has a character that no header may have".to_owned())?;
            value.set_sensitive(true);
            Ok::<_, String>(value)
        };
        let json = |value: &'static str| (header::ACCEPT, HeaderValue::from_static(value));
        Ok(match self.kind {
            ForgeKind::Github => vec![
                json("application/vnd.github+json"),
                (HeaderName::from_static("x-github-api-version"), HeaderValue::from_static("2022-11-28")),
                (header::AUTHORIZATION, secret(format!("Bearer {token}"))?),
            ],
            ForgeKind::Gitlab => vec![json("application/json"), (HeaderName::from_static("private-token"), secret(token.to_owned())?)],
            ForgeKind::Gitea => vec![json("application/json"), (header::AUTHORIZATION, secret(format!("token {token}"))?)],
        })
    }

    fn repository_url(&self) -> String {
        match self.kind {
            ForgeKind::Github | ForgeKind::Gitea => format!("{}/repos/{}", self.api, self.repository),
            ForgeKind::Gitlab => format!("{}/projects/{}", self.api, percent_escape(&self.repository)),
        }
    }

    fn issue_url(&self, number: u64) -> String {
        format!("{}/issues/{number}", self.repository_url())
    }

    /// The open issues with the label: one page, from 1 on.
    pub fn issues(&self, page: usize) -> ForgeRequest {
        let (base, label) = (self.repository_url(), percent_escape(&self.label));
        let query = match self.kind {
            ForgeKind::Github => format!("state=open&labels={label}&sort=created&direction=asc&per_page={PAGE_SIZE}"),
            ForgeKind::Gitlab => format!("state=opened&labels={label}&order_by=created_at&sort=asc&per_page={PAGE_SIZE}"),
            ForgeKind::Gitea => format!("state=open&type=issues&labels={label}&limit={PAGE_SIZE}"),
        };
        ForgeRequest::get(format!("{base}/issues?{query}&page={page}"))
    }

    /// The issues of a page, and whether there may be another one.
    pub fn read_issues(&self, answer: &Value) -> Result<(Vec<Issue>, bool), String> {
        let all = answer.as_array().ok_or("the answer is no list of issues")?;
        // GitHub lists pull requests among the issues.
        let issues = all.iter().filter(|value| value.get("pull_request").is_none_or(Value::is_null));
        let issues: Result<Vec<Issue>, String> = issues.map(|value| self.read_issue(value)).collect();
        // Gitea lists all issues if it does not know the label.
        Ok((issues?.into_iter().filter(Issue::is_work).collect(), all.len() >= PAGE_SIZE))
    }

    /// One issue.
    pub fn issue(&self, number: u64) -> ForgeRequest {
        ForgeRequest::get(self.issue_url(number))
    }

    /// Reads an issue.
    pub fn read_issue(&self, value: &Value) -> Result<Issue, String> {
        let text = |path: &str| value.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (number, body, url, author, open) = match self.kind {
            ForgeKind::Github | ForgeKind::Gitea => ("/number", "/body", "/html_url", "/user/login", "open"),
            ForgeKind::Gitlab => ("/iid", "/description", "/web_url", "/author/username", "opened"),
        };
        let number = value.pointer(number).and_then(Value::as_u64).ok_or("an issue has no number")?;
        let mut labels = value.get("labels").and_then(Value::as_array).into_iter().flatten();
        let is_own = |label: &&Value| label.as_str().or_else(|| label.get("name")?.as_str()) == Some(&self.label);
        let own = labels.find(is_own);
        Ok(Issue {
            number,
            title: text("/title"),
            body: text(body),
            url: text(url),
            author: text(author),
            open: text("/state") == open,
            labelled: own.is_some(),
            label_id: own.filter(|_| self.kind == ForgeKind::Gitea).and_then(|label| label.get("id")?.as_u64()),
        })
    }

    /// The comments of an issue: one page, from 1 on.
    pub fn comments(&self, number: u64, page: usize) -> ForgeRequest {
        let base = self.issue_url(number);
        ForgeRequest::get(match self.kind {
            ForgeKind::Github => format!("{base}/comments?per_page={PAGE_SIZE}&page={page}"),
            ForgeKind::Gitlab => format!("{base}/notes?per_page={PAGE_SIZE}&page={page}"),
            ForgeKind::Gitea => format!("{base}/comments?limit={PAGE_SIZE}&page={page}"),
        })
    }

    /// The texts of a page of comments, and whether there may be another one.
    pub fn read_comments(&self, answer: &Value) -> Result<(Vec<String>, bool), String> {
        let all = answer.as_array().ok_or("the answer is no list of comments")?;
        let texts = all.iter().filter_map(|comment| comment.get("body")?.as_str()).map(str::to_owned);
        // Gitea sends all comments on each page.
        Ok((texts.collect(), all.len() == PAGE_SIZE && self.kind != ForgeKind::Gitea))
    }

    /// Adds a comment.
    pub fn comment(&self, number: u64, text: &str) -> ForgeRequest {
        let base = self.issue_url(number);
        let url = if self.kind == ForgeKind::Gitlab { format!("{base}/notes") } else { format!("{base}/comments") };
        ForgeRequest { method: Method::POST, url, body: Some(json!({"body": text})) }
    }

    /// Removes the label from an issue.
    pub fn unlabel(&self, issue: &Issue) -> ForgeRequest {
        let base = self.issue_url(issue.number);
        match self.kind {
            ForgeKind::Gitlab => ForgeRequest { method: Method::PUT, url: base, body: Some(json!({"remove_labels": self.label})) },
            ForgeKind::Github | ForgeKind::Gitea => {
                let label = issue.label_id.map_or_else(|| percent_escape(&self.label), |id| id.to_string());
                ForgeRequest { method: Method::DELETE, url: format!("{base}/labels/{label}"), body: None }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forge(kind: ForgeKind) -> Forge {
        Forge::new(kind, Some("https://forge.example.com/api/"), "team/app", "for agents").expect("a forge")
    }

    fn issue(label_id: Option<u64>) -> Issue {
        let (title, url, author) = ("T".into(), "u".into(), "ann".into());
        Issue { number: 7, title, body: String::new(), url, author, open: true, labelled: true, label_id }
    }

    #[test]
    fn each_forge_is_asked_in_its_own_words() {
        let urls = |kind| {
            let forge = forge(kind);
            let unlabel = forge.unlabel(&issue(Some(3))).url;
            [forge.issues(2).url, forge.issue(7).url, forge.comments(7, 1).url, forge.comment(7, "x").url, unlabel]
        };
        let base = "https://forge.example.com/api";
        assert_eq!(
            urls(ForgeKind::Github),
            [
                format!("{base}/repos/team/app/issues?state=open&labels=for%20agents&sort=created&direction=asc&per_page=50&page=2"),
                format!("{base}/repos/team/app/issues/7"),
                format!("{base}/repos/team/app/issues/7/comments?per_page=50&page=1"),
                format!("{base}/repos/team/app/issues/7/comments"),
                format!("{base}/repos/team/app/issues/7/labels/3"),
            ]
        );
        assert_eq!(urls(ForgeKind::Gitlab)[3], format!("{base}/projects/team%2Fapp/issues/7/notes"));
        assert_eq!(
            urls(ForgeKind::Gitea)[0],
            format!("{base}/repos/team/app/issues?state=open&type=issues&labels=for%20agents&limit=50&page=2")
        );
        let by_name = forge(ForgeKind::Github).unlabel(&issue(None));
        assert_eq!((by_name.method, by_name.url), (Method::DELETE, format!("{base}/repos/team/app/issues/7/labels/for%20agents")));
        assert_eq!(forge(ForgeKind::Gitlab).unlabel(&issue(None)).body, Some(json!({"remove_labels": "for agents"})));
    }

    #[test]
    fn issues_are_read_from_the_answers_of_each_forge() {
        let github = json!([
            {"number": 7, "title": "T", "body": null, "html_url": "u", "state": "open", "user": {"login": "ann"}, "labels": [{"name": "for agents"}]},
            {"number": 8, "title": "a pull request", "pull_request": {"url": "x"}, "state": "open"},
        ]);
        let (issues, more) = forge(ForgeKind::Github).read_issues(&github).expect("issues");
        assert_eq!((issues, more), (vec![issue(None)], false));
        let gitlab = json!([{"id": 1007, "iid": 7, "title": "T", "description": "", "web_url": "u", "state": "opened",
            "author": {"username": "ann"}, "labels": ["for agents"]}]);
        assert_eq!(forge(ForgeKind::Gitlab).read_issues(&gitlab).expect("issues").0, [issue(None)]);
        let forge = forge(ForgeKind::Gitea);
        let labels = json!([{"id": 1, "name": "bug"}, {"id": 2, "name": "for agents"}]);
        let gitea = json!([
            {"number": 7, "title": "T", "body": "", "html_url": "u", "state": "open", "user": {"login": "ann"}, "labels": labels},
            {"number": 8, "title": "without the label", "state": "open", "labels": [{"id": 1, "name": "bug"}]},
            {"number": 9, "title": "closed", "state": "closed", "labels": labels},
        ]);
        assert_eq!(forge.read_issues(&gitea).expect("issues").0, [issue(Some(2))], "the answer may have more than was asked for");
        assert!(forge.read_issues(&json!({"message": "no"})).is_err() && forge.read_issues(&json!([{"title": "x"}])).is_err());
    }

    #[test]
    fn wrong_settings_are_named() {
        let of = |kind, api: Option<&str>, repository: &str, label: &str| Forge::new(kind, api, repository, label).err();
        assert_eq!(of(ForgeKind::Github, None, "team/app", "l"), None);
        assert_eq!(of(ForgeKind::Gitlab, None, "group/sub/app", "l"), None);
        for (wrong, option) in [
            (of(ForgeKind::Gitea, None, "team/app", "l"), "--url"),
            (of(ForgeKind::Gitea, Some("git.example.com"), "team/app", "l"), "--url"),
            (of(ForgeKind::Gitea, Some("https://u:p@git.example.com"), "team/app", "l"), "--url"),
            (of(ForgeKind::Github, None, "app", "l"), "--repository"),
            (of(ForgeKind::Github, None, "team/app/x", "l"), "--repository"),
            (of(ForgeKind::Github, None, "team/..", "l"), "--repository"),
            (of(ForgeKind::Github, None, "team/a?b", "l"), "--repository"),
            (of(ForgeKind::Github, None, "team/app", "a,b"), "--label"),
            (of(ForgeKind::Github, None, "team/app", " "), "--label"),
        ] {
            assert!(wrong.as_ref().is_some_and(|words| words.starts_with(option)), "{wrong:?}");
        }
    }

    #[test]
    fn a_token_is_in_the_header_that_the_forge_reads() {
        let names = |kind| forge(kind).headers("t").expect("headers").into_iter().map(|(name, _)| name.to_string()).collect::<Vec<_>>();
        assert_eq!(names(ForgeKind::Gitlab), ["accept", "private-token"]);
        assert_eq!(names(ForgeKind::Gitea), ["accept", "authorization"]);
        assert!(forge(ForgeKind::Github).headers("a\nb").is_err());
    }
}
