//! What an item requires of a pool, compared with what the pool has. Pure, and independent of agents: what a pool has
//! follows from its spec, so it is known before the pool has an agent.

use std::collections::BTreeSet;
use std::fmt;

use crate::git::Repository;

/// What an item requires. Empty by default.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Requires {
    /// Programs on the agents' path, and programs of Toolsets.
    pub tools: BTreeSet<String>,
    /// Models that may be called.
    pub models: BTreeSet<String>,
    /// URLs that can be reached.
    pub urls: BTreeSet<String>,
    /// Credentials, by name.
    pub accounts: BTreeSet<String>,
    /// Volumes that are mounted, by the name of their PersistentVolumeClaim.
    pub volumes: BTreeSet<String>,
    /// Git repositories, by a URL.
    pub repositories: BTreeSet<String>,
    /// Guarantees of the sandbox, as `field: value`.
    pub sandbox: BTreeSet<String>,
}

/// What a pool has.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolOffer {
    /// Programs that preflight checks before its agents get work, on their path and of Toolsets.
    pub tools: BTreeSet<String>,
    /// Patterns of the models that its agents may call; `*` stands for any characters.
    pub models: BTreeSet<String>,
    /// Origins that its agents can reach, in the form of [`origin`].
    pub origins: BTreeSet<String>,
    /// Credentials for its agents' calls, by name.
    pub accounts: BTreeSet<String>,
    /// PersistentVolumeClaims that its agents mount.
    pub volumes: BTreeSet<String>,
    /// The git repository of its agents, by the name that it has whatever its URL.
    pub repositories: BTreeSet<String>,
    /// Guarantees that its agents' sandbox has, or can have for an item, as `field: value`.
    pub sandbox: BTreeSet<String>,
}

/// The items that the agents of a pool take.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolIntake {
    /// Its queues, in order, with the types that it takes from each (empty: all).
    pub queues: Vec<(String, Vec<String>)>,
    /// What the pool has that items may require.
    pub offer: PoolOffer,
    /// It describes agents outside the cluster.
    pub outside_cluster: bool,
}

impl PoolIntake {
    /// The intake of its agents outside the cluster: no volume is mounted and no repository cloned there, no program was
    /// checked, and there is no sandbox.
    pub fn for_outside(self) -> Self {
        let none = BTreeSet::new;
        let offer = PoolOffer { tools: none(), volumes: none(), repositories: none(), sandbox: none(), ..self.offer };
        Self { offer, outside_cluster: true, ..self }
    }
}

/// A requirement that is not met.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnmetRequirement {
    /// The field of the item's spec that asks for it.
    pub field: &'static str,
    /// The required name.
    pub name: String,
}

impl fmt::Display for UnmetRequirement {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} ({})", self.name, self.field)
    }
}

/// A text that names some of them and counts the others.
pub fn unmet_summary(lacks: &[UnmetRequirement]) -> String {
    const MAX_NAMED_REQUIREMENTS: usize = 5;
    let named: Vec<String> = lacks.iter().take(MAX_NAMED_REQUIREMENTS).map(UnmetRequirement::to_string).collect();
    let more = lacks.len().saturating_sub(MAX_NAMED_REQUIREMENTS);
    if more > 0 { format!("{} and {more} more", named.join(", ")) } else { named.join(", ") }
}

impl Requires {
    /// Whether it requires nothing.
    pub fn is_empty(&self) -> bool {
        let Self { tools, models, urls, accounts, volumes, repositories, sandbox } = self;
        [tools, models, urls, accounts, volumes, repositories, sandbox].iter().all(|names| names.is_empty())
    }
}

impl PoolOffer {
    /// The requirements that are not met, in the order of the fields.
    pub fn lacks(&self, requires: &Requires) -> Vec<UnmetRequirement> {
        let Requires { tools, models, urls, accounts, volumes, repositories, sandbox } = requires;
        let lack = |field: &'static str, names: &BTreeSet<String>, there: &dyn Fn(&str) -> bool| {
            let missing = names.iter().filter(|name| !there(name));
            missing.map(|name| UnmetRequirement { field, name: name.clone() }).collect::<Vec<_>>()
        };
        [
            lack("requires.tools", tools, &|name| self.tools.contains(name)),
            lack("requires.models", models, &|name| self.models.iter().any(|pattern| matches(pattern, name))),
            lack("requires.urls", urls, &|url| self.reaches(url)),
            lack("requires.accounts", accounts, &|name| self.accounts.contains(name)),
            lack("requires.volumes", volumes, &|name| self.volumes.contains(name)),
            lack("requires.repositories", repositories, &|url| self.has_repository(url)),
            lack("bulkhead.sandbox", sandbox, &|guarantee| self.sandbox.contains(guarantee)),
        ]
        .concat()
    }

    /// Whether all requirements are met.
    pub fn meets(&self, requires: &Requires) -> bool {
        requires.is_empty() || self.lacks(requires).is_empty()
    }

    /// Whether this is the URL of its agents' repository.
    fn has_repository(&self, url: &str) -> bool {
        Repository::parse_url(url).is_ok_and(|repository| self.repositories.contains(&repository.name()))
    }

    /// Whether its agents can reach this URL.
    pub fn reaches(&self, url: &str) -> bool {
        origin(url).is_some_and(|origin| self.origins.contains(&origin))
    }
}

/// The origin of an https URL in one form: the host in lower case, and the port unless it is 443. `None`: it is no such
/// URL.
pub fn origin(url: &str) -> Option<String> {
    let scheme = url.get(..8).filter(|scheme| scheme.eq_ignore_ascii_case("https://"))?;
    let authority = url[scheme.len()..].split(['/', '?', '#']).next()?.to_ascii_lowercase();
    let authority = authority.strip_suffix(":443").unwrap_or(&authority);
    (!authority.is_empty() && !authority.contains(['@', ' '])).then(|| format!("https://{authority}"))
}

/// Whether a name matches a pattern, in which `*` stands for any number of characters. Takes time proportional to
/// pattern times name.
pub fn matches(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut left) = name.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        let Some(at) = left.find(part) else { return false };
        left = left.get(at + part.len()..).unwrap_or_default();
    }
    left.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn outside_the_cluster_there_is_no_volume_and_nobody_looked_for_programs() {
        let pool = PoolIntake { queues: vec![("bugs".into(), Vec::new())], offer: offer(), outside_cluster: false };
        let outside = pool.clone().for_outside();
        assert_eq!((&outside.queues, outside.outside_cluster), (&pool.queues, true));
        for (requires, meets) in [
            (Requires { models: names(&["claude-9"]), accounts: names(&["team"]), ..Requires::default() }, true),
            (Requires { urls: names(&["https://api.example.org/x"]), ..Requires::default() }, true),
            (Requires { volumes: names(&["repo"]), ..Requires::default() }, false),
            (Requires { repositories: names(&["https://git.example.org/a"]), ..Requires::default() }, false),
            (Requires { tools: names(&["git"]), ..Requires::default() }, false),
            (Requires { sandbox: names(&["isolation.landlock: Required"]), ..Requires::default() }, false),
        ] {
            assert!(pool.offer.meets(&requires), "{requires:?}");
            assert_eq!(outside.offer.meets(&requires), meets, "{requires:?}");
        }
    }

    fn offer() -> PoolOffer {
        PoolOffer {
            tools: names(&["git", "make"]),
            models: names(&["claude-*", "exact"]),
            origins: names(&["https://api.example.org"]),
            accounts: names(&["team"]),
            volumes: names(&["repo"]),
            repositories: names(&["git.example.org/a"]),
            sandbox: names(&["isolation.landlock: Required"]),
        }
    }

    #[test]
    fn each_field_is_looked_for_where_it_is_and_what_lacks_is_named() {
        let requires = |tools: &[&str], models: &[&str], urls: &[&str], accounts: &[&str], volumes: &[&str]| Requires {
            tools: names(tools),
            models: names(models),
            urls: names(urls),
            accounts: names(accounts),
            volumes: names(volumes),
            ..Requires::default()
        };
        let all = requires(&["git"], &["claude-x", "exact"], &["https://API.example.org:443/v1?x"], &["team"], &["repo"]);
        assert!(offer().meets(&all) && offer().meets(&Requires::default()) && PoolOffer::default().meets(&Requires::default()));
        let others = requires(&["git", "cargo"], &["gpt"], &["https://other.example.org"], &["repo"], &["team"]);
        let lacks = offer().lacks(&others);
        assert_eq!(lacks.len(), 5, "{lacks:?}");
        let words = "cargo (requires.tools), gpt (requires.models), https://other.example.org (requires.urls), \
                     repo (requires.accounts), team (requires.volumes)";
        assert_eq!(unmet_summary(&lacks), words);
        let strict = Requires { sandbox: names(&["isolation.landlock: Required", "outputs.loopback: LinkOnly"]), ..Requires::default() };
        assert_eq!(unmet_summary(&offer().lacks(&strict)), "outputs.loopback: LinkOnly (bulkhead.sandbox)");
        let many: Vec<UnmetRequirement> = (0..7).map(|at| UnmetRequirement { field: "requires.tools", name: at.to_string() }).collect();
        assert!(unmet_summary(&many).ends_with("4 (requires.tools) and 2 more"));
    }

    #[test]
    fn a_repository_is_the_same_whatever_its_url() {
        let lacks = |url: &str| !offer().meets(&Requires { repositories: names(&[url]), ..Requires::default() });
        for url in ["https://git.example.org/a", "https://git.example.org/a.git", "https://GIT.example.org:443/a"] {
            assert!(!lacks(url), "{url}");
        }
        for url in ["https://git.example.org/b", "https://git.example.org", "http://git.example.org/a", "git@git.example.org:a", ""] {
            assert!(lacks(url), "{url}");
        }
    }

    #[test]
    fn an_origin_has_one_form_and_what_is_none_is_reached_by_nobody() {
        let cases = [
            ("https://a.example", Some("https://a.example")),
            ("HTTPS://A.example:443/x", Some("https://a.example")),
            ("https://a.example:8443?x", Some("https://a.example:8443")),
            ("https://a.example#x", Some("https://a.example")),
            ("http://a.example", None),
            ("https://", None),
            ("https://key@a.example", None),
            ("a.example", None),
            ("", None),
        ];
        for (url, expected) in cases {
            assert_eq!(origin(url).as_deref(), expected, "{url}");
        }
    }

    #[test]
    fn a_pattern_stands_for_what_its_stars_leave_open() {
        for (pattern, name, fits) in [
            ("claude-*", "claude-", true),
            ("claude-*", "claud", false),
            ("*-mini", "gpt-mini", true),
            ("a*b*c", "aXbYc", true),
            ("a*b*c", "acb", false),
            ("exact", "exact", true),
            ("exact", "exactly", false),
        ] {
            assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
        }
    }

    fn some_names() -> impl Strategy<Value = BTreeSet<String>> {
        proptest::collection::btree_set("[ab]", 0..3)
    }

    fn some_requires() -> impl Strategy<Value = Requires> {
        (some_names(), some_names(), some_names(), some_names()).prop_map(|(tools, models, accounts, volumes)| Requires {
            tools,
            models,
            accounts,
            volumes,
            ..Requires::default()
        })
    }

    proptest! {
        #[test]
        fn who_has_more_meets_no_less_and_who_needs_less_is_met_no_less(
            needed in some_requires(), more in some_requires(), tools in some_names(), models in some_names(),
        ) {
            let of = |requires: &Requires| PoolOffer {
                tools: requires.tools.clone(),
                models: requires.models.clone(),
                accounts: requires.accounts.clone(),
                volumes: requires.volumes.clone(),
                ..PoolOffer::default()
            };
            let mut offer = of(&more);
            let met = offer.meets(&needed);
            prop_assert_eq!(met, offer.lacks(&needed).is_empty());
            offer.tools.extend(tools);
            offer.models.extend(models);
            prop_assert!(!met || offer.meets(&needed));
            let fewer = Requires { tools: BTreeSet::new(), ..needed.clone() };
            prop_assert!(!met || offer.meets(&fewer));
            prop_assert!(of(&needed).meets(&needed));
        }
    }
}
