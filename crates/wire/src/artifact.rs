//! Artifacts: files that a program keeps with its item, for people and for other items.
//!
//! A program puts a file to, and gets it from, the sidecar's artifact port under the paths of the agents' API. The gateway asks the
//! governor ([`ArtifactRequest`]) before it stores or reads a byte, and again before an artifact counts as stored.

use serde::{Deserialize, Serialize};

use crate::body::BoundedBody;
use crate::work::LeaseRef;

/// Start of the paths of the calls about artifacts.
pub const ARTIFACT_PATH_PREFIX: &str = "/agent/v1/artifacts/";
/// Start of the paths at which people read artifacts, at the gateway. NAMESPACE/ITEM/NAME follows.
pub const PEOPLE_PATH_PREFIX: &str = "/people/v1/artifacts/";
/// Audience of the tokens with which people read artifacts.
pub const ARTIFACT_AUDIENCE: &str = "spillway.dev/artifacts";
/// Header with such a token. The API server removes `Authorization` from the requests that it passes on.
pub const PERSON_TOKEN_HEADER: &str = "spillway-token";
/// In a path, the item that the caller holds.
pub const OWN_ITEM: &str = "-";
/// Header with the SHA-256 of an artifact, as 64 hexadecimal digits.
pub const SHA256_HEADER: &str = "spillway-sha256";
/// The most characters of the name of an artifact.
pub const MAX_NAME_CHARS: usize = 128;
/// The most characters of the name of an item.
const MAX_ITEM_CHARS: usize = 253;
/// Hexadecimal digits of a SHA-256.
const SHA256_DIGITS: usize = 64;
/// Hexadecimal digits of an id.
pub const ID_DIGITS: usize = 32;
/// The most keys of one question about unused objects.
pub const MAX_KEYS: usize = 500;

/// Whether an artifact may have this name: letters, digits, `.`, `_` and `-`; it begins with a letter, a digit or `_`.
pub fn is_name(name: &str) -> bool {
    let first = name.chars().next().is_some_and(|first| first.is_ascii_alphanumeric() || first == '_');
    first && name.len() <= MAX_NAME_CHARS && name.chars().all(|char| char.is_ascii_alphanumeric() || "._-".contains(char))
}

/// The rule of [`is_name`], in words.
pub const NAME_RULE: &str = "1 to 128 letters, digits, '.', '_' and '-', the first one a letter, a digit or '_'";

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// An artifact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Artifact {
    /// Name of its item.
    pub item: String,
    /// Its name, unique in the item.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 of the content, as 64 hexadecimal digits.
    pub sha256: String,
    /// When it is deleted, as RFC 3339.
    pub expires: String,
}

/// All artifacts of an item.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ArtifactList {
    /// The artifacts.
    pub artifacts: Vec<Artifact>,
}

/// Where the content of an artifact is in the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StoreKey {
    /// Stands for the cluster: clusters may share a bucket.
    pub cluster: String,
    /// Namespace of the item.
    pub namespace: String,
    /// Uid of the item.
    pub item: String,
    /// Id of the upload: no two uploads have the same.
    pub id: String,
}

impl StoreKey {
    /// The path of the object.
    pub fn path(&self) -> String {
        format!("{}/{}/{}/{}", self.cluster, self.namespace, self.item, self.id)
    }

    /// Reads a path. None: no artifact has such a path.
    pub fn parse(path: &str) -> Option<Self> {
        let parts: Vec<String> = path.split('/').map(str::to_owned).collect();
        let [cluster, namespace, item, id] = <[String; 4]>::try_from(parts).ok()?;
        let named = [&cluster, &namespace, &item].iter().all(|part| !part.is_empty());
        (named && is_hex(&id, ID_DIGITS)).then_some(Self { cluster, namespace, item, id })
    }
}

/// `POST /governor/v1/artifacts`: a step of a call of an agent about artifacts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ArtifactRequest {
    /// The item that the program works on, as the sidecar knows it.
    #[serde(default)]
    pub lease: Option<LeaseRef>,
    /// The step.
    pub step: ArtifactStep,
}

/// A step. The governor answers with the type that is named.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum ArtifactStep {
    /// Whether a file may be stored now: [`StoreKey`].
    Begin {
        /// Its name.
        name: String,
        /// Its size.
        bytes: u64,
    },
    /// The object is stored: from now on it is the artifact of this name. [`FinishedArtifact`].
    Finish {
        /// Its name.
        name: String,
        /// Id of the object.
        id: String,
        /// Its size.
        bytes: u64,
        /// SHA-256 of the content.
        sha256: String,
    },
    /// Which object has the content of an artifact: [`StoredArtifact`].
    Read {
        /// Name of the item, or [`OWN_ITEM`].
        item: String,
        /// Name of the artifact.
        name: String,
    },
    /// The artifacts of an item: [`ArtifactList`].
    List {
        /// Name of the item, or [`OWN_ITEM`].
        item: String,
    },
}

/// An artifact and the object with its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredArtifact {
    /// The artifact.
    pub artifact: Artifact,
    /// The object.
    pub object: StoreKey,
}

/// `POST /governor/v1/artifacts/read`: which object has the content of an artifact that a person may read. It is answered with
/// [`StoredArtifact`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PersonalRead {
    /// Namespace of the item.
    pub namespace: String,
    /// Name of the item.
    pub item: String,
    /// Name of the artifact.
    pub name: String,
}

/// An artifact that is stored from now on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FinishedArtifact {
    /// The artifact.
    pub artifact: Artifact,
    /// Objects that the item has no longer.
    pub left: Vec<StoreKey>,
}

/// `POST /governor/v1/artifacts/unused`: which of these objects belong to no artifact. It is answered with [`UnusedAnswer`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UnusedObjects {
    /// Objects in the store.
    #[serde(default)]
    pub objects: Vec<StoredObject>,
    /// Objects that were removed from the store, or were never complete.
    #[serde(default)]
    pub removed: Vec<StoreKey>,
}

/// An object in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StoredObject {
    /// Its key.
    pub key: StoreKey,
    /// How long ago it was written.
    pub age_seconds: u64,
}

/// The unused objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UnusedAnswer {
    /// The first part of all keys of this cluster.
    pub cluster: String,
    /// The objects that belong to no artifact.
    pub unused: Vec<StoreKey>,
}

/// Refuses what is no name of an artifact.
fn named(name: &str) -> Result<(), (&'static str, String)> {
    if is_name(name) { Ok(()) } else { Err(("name", format!("must have {NAME_RULE}"))) }
}

/// Refuses what is no name of an object.
fn object(field: &'static str, name: &str) -> Result<(), (&'static str, String)> {
    let fits = !name.is_empty() && name.len() <= MAX_ITEM_CHARS;
    if fits { Ok(()) } else { Err((field, format!("must have 1 to {MAX_ITEM_CHARS} characters"))) }
}

impl BoundedBody for PersonalRead {
    fn check(&self) -> Result<(), (&'static str, String)> {
        let Self { namespace, item, name } = self;
        object("namespace", namespace)?;
        object("item", item)?;
        named(name)
    }
}

impl BoundedBody for ArtifactRequest {
    fn check(&self) -> Result<(), (&'static str, String)> {
        match &self.step {
            ArtifactStep::Begin { name, bytes: _ } => named(name),
            ArtifactStep::Finish { name, id, bytes: _, sha256 } => {
                named(name)?;
                let hex = |field, text: &str, digits| {
                    if is_hex(text, digits) { Ok(()) } else { Err((field, format!("must have {digits} hexadecimal digits"))) }
                };
                hex("id", id, ID_DIGITS)?;
                hex("sha256", sha256, SHA256_DIGITS)
            }
            ArtifactStep::Read { item, name } => object("item", item).and_then(|()| named(name)),
            ArtifactStep::List { item } => object("item", item),
        }
    }
}

impl BoundedBody for UnusedObjects {
    fn check(&self) -> Result<(), (&'static str, String)> {
        for (field, count) in [("objects", self.objects.len()), ("removed", self.removed.len())] {
            if count > MAX_KEYS {
                return Err((field, format!("must have at most {MAX_KEYS} entries")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_segment_of_a_path_and_no_option() {
        for good in ["a", "report.pdf", "_x", "0", "A-b_c.d", &"x".repeat(128)] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", ".", "..", ".a", "-rf", "a/b", "a b", "a\n", "ä", "a%2f", &"x".repeat(129)] {
            assert!(!is_name(bad), "{bad:?}");
        }
    }

    #[test]
    fn a_key_is_its_path_and_no_other_path_is_one() {
        let key = StoreKey { cluster: "c".into(), namespace: "n".into(), item: "u".into(), id: "0123456789abcdef".repeat(2) };
        assert_eq!(StoreKey::parse(&key.path()), Some(key.clone()));
        let path = key.path();
        for bad in
            ["n/u", "c/n/u/x", "c//u/0123456789abcdef0123456789abcdef", &format!("{path}/x"), &format!("{path}#1"), &path.to_uppercase()]
        {
            assert_eq!(StoreKey::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_request_with_a_wrong_field_is_refused_by_its_name() {
        let field = |step| ArtifactRequest { lease: None, step }.check().err().map(|(field, _)| field);
        let (id, sha256) = ("a".repeat(32), "b".repeat(64));
        let finish =
            |name: &str, id: &str, sha256: &str| ArtifactStep::Finish { name: name.into(), id: id.into(), bytes: 1, sha256: sha256.into() };
        assert_eq!(field(finish("a", &id, &sha256)), None);
        assert_eq!(field(finish("a/b", &id, &sha256)), Some("name"));
        assert_eq!(field(finish("a", "../x", &sha256)), Some("id"));
        assert_eq!(field(finish("a", &id, "")), Some("sha256"));
        assert_eq!(field(ArtifactStep::Begin { name: "..".into(), bytes: 0 }), Some("name"));
        assert_eq!(field(ArtifactStep::List { item: String::new() }), Some("item"));
        assert_eq!(field(ArtifactStep::Read { item: OWN_ITEM.into(), name: "a".into() }), None);
    }
}
