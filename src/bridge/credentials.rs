//! Credentials of programs, from files. A file is read at each call, so that a changed one is used at once.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::PathBuf;

use spillway_bridge::redaction::{MIN_SECRET_BYTES, Secrets};

/// The most bytes of a credential.
const MAX_CREDENTIAL_BYTES: u64 = 64 * 1024;

/// The name of the token of a ServiceAccount in an answer. No credential has this name.
const TOKEN_NAME: &str = "ServiceAccount token";

/// The files of credentials.
#[derive(Clone, Debug, Default)]
pub struct CredentialFiles {
    /// By the names of the credentials.
    files: BTreeMap<String, PathBuf>,
    /// The token of a ServiceAccount, which all programs may read.
    token: Option<PathBuf>,
}

impl CredentialFiles {
    /// These files.
    pub fn new(files: BTreeMap<String, PathBuf>, token: Option<PathBuf>) -> Self {
        Self { files, token }
    }

    /// The names of the credentials.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.files.keys()
    }

    /// The files.
    pub fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        self.files.values()
    }

    /// The values of these credentials. A line feed at the end of a file is no part of its value.
    pub fn read(&self, names: &[String]) -> Result<BTreeMap<String, String>, String> {
        let read = |name: &String| {
            let file = self.files.get(name).ok_or_else(|| format!("there is no credential {name}"))?;
            // The name of the file is not for agents.
            let value = read(file).map_err(|error| format!("the credential {name} cannot be read: {error}"))?;
            Ok((name.clone(), value))
        };
        names.iter().map(read).collect()
    }

    /// Whether programs may read the token of a ServiceAccount.
    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// The token that all programs may read now, to take it out of answers.
    pub fn read_token(&self) -> Result<Secrets, String> {
        let token = self.token.as_ref().map(read).transpose();
        let token = token.map_err(|error| format!("the token of the ServiceAccount cannot be read: {error}"))?;
        Ok(Secrets::new(&token.map(|token| (TOKEN_NAME.to_owned(), token)).into_iter().collect()))
    }
}

fn read(file: &PathBuf) -> io::Result<String> {
    let mut text = String::new();
    File::open(file)?.take(MAX_CREDENTIAL_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_CREDENTIAL_BYTES {
        return Err(io::Error::other(format!("it has more than {MAX_CREDENTIAL_BYTES} bytes")));
    }
    if text.contains('\0') {
        return Err(io::Error::other("it contains a zero byte, and a variable cannot"));
    }
    let value = text.strip_suffix('\n').unwrap_or(&text);
    let value = value.strip_suffix('\r').unwrap_or(value);
    if value.len() < MIN_SECRET_BYTES {
        return Err(io::Error::other(format!(
            "it has less than {MIN_SECRET_BYTES} bytes, and could not be told from other text in an answer"
        )));
    }
    Ok(value.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_credential_is_the_content_of_its_file_without_its_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("key");
        let files = CredentialFiles::new([("key".to_owned(), file.clone())].into(), Some(file.clone()));
        let read = || files.read(&["key".to_owned()]).map(|mut all| all.remove("key").expect("the key"));
        read().expect_err("no file");
        for (content, value) in [("abcdef", "abcdef"), ("abcdef\n", "abcdef"), ("abcdef\r\n", "abcdef"), ("abc\ndef\n\n", "abc\ndef\n")] {
            fs::write(&file, content).expect("a file");
            assert_eq!(read().as_deref(), Ok(value));
            let hidden = files.read_token().expect("the token").remove(format!("a {value} b"));
            assert!(hidden.starts_with("a [credential ServiceAccount token]") && !hidden.contains(value), "{hidden}");
        }
        for wrong in [vec![0xff; 9], b"abc\0def".to_vec(), vec![b'x'; 70_000], b"abcde\n".to_vec(), Vec::new()] {
            fs::write(&file, wrong).expect("a file");
            let message = read().expect_err("a wrong one");
            assert!(message.starts_with("the credential key cannot be read: ") && !message.contains("/"), "{message}");
        }
        files.read(&["other".to_owned()]).expect_err("an unknown one");
    }
}
