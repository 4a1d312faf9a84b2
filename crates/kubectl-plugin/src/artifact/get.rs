//! `artifact get`: the content of an artifact, from a gateway through the API server. A file that is got is whole and right, or not
//! there.

use std::io::{self, Write};
use std::path::Path;

use futures::{AsyncRead, AsyncReadExt as _};
use http::Request;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use sha2::{Digest as _, Sha256};
use spillway_wire::artifact::{ARTIFACT_AUDIENCE, PEOPLE_PATH_PREFIX, PERSON_TOKEN_HEADER};
use spillway_wire::text::hex;

use super::{GetArguments, find};
use crate::api::artifact::ItemArtifact;
use crate::connect::Cluster;
use crate::console::{Console, Output};
use crate::error::Error;

/// How long the token is valid: longer than any download takes.
const TOKEN_SECONDS: i64 = 3600;
/// Bytes that are read at once.
const READ_BYTES: usize = 64 * 1024;

/// The command. The gateways may let a download wait for others: `patient` waits for it.
pub async fn run(cluster: &Cluster, patient: &Cluster, arguments: &GetArguments, console: &mut dyn Console) -> Result<(), Error> {
    let (item, name) = &arguments.artifact;
    let artifact = find(cluster, item, name).await?;
    let token = token(cluster, &arguments.service_account).await?;
    let (system, service) = &arguments.gateway_service;
    let path =
        format!("/api/v1/namespaces/{system}/services/https:{service}:https/proxy{PEOPLE_PATH_PREFIX}{}/{item}/{name}", cluster.namespace);
    let request =
        Request::get(path).header(PERSON_TOKEN_HEADER, token).body(Vec::new()).map_err(|error| Error::Usage(error.to_string()))?;
    let content = patient.client.request_stream(request).await.map_err(|error| explained(error, system, service))?;
    let output = arguments.output.as_deref().unwrap_or_else(|| Path::new(name));
    if output.as_os_str() == "-" {
        return copy(content, &artifact, &mut io::stdout().lock()).await;
    }
    save(content, &artifact, output).await?;
    console.show(Output::of(format!("{} ({})\n", output.display(), super::size(artifact.bytes))));
    Ok(())
}

/// A token that shows the right to read the artifacts of the namespace.
async fn token(cluster: &Cluster, account: &str) -> Result<String, Error> {
    let spec = TokenRequestSpec {
        audiences: Some(vec![ARTIFACT_AUDIENCE.to_owned()]),
        expiration_seconds: Some(TOKEN_SECONDS),
        bound_object_ref: None,
    };
    let request = TokenRequest { metadata: ObjectMeta::default(), spec: Some(spec), status: None };
    let accounts = cluster.api::<ServiceAccount>();
    let made = accounts.create_token_request(account, &PostParams::default(), &request).await;
    let made = made.map_err(Error::of::<ServiceAccount>(&cluster.namespace, account))?;
    made.status
        .and_then(|status| status.token)
        .ok_or_else(|| Error::Usage(format!("the API server gave no token of ServiceAccount {account:?}")))
}

/// Writes the content beside the file and then renames it.
async fn save(content: impl AsyncRead + Unpin, artifact: &ItemArtifact, output: &Path) -> Result<(), Error> {
    let wrong = |error: io::Error| Error::Usage(format!("{}: {error}", output.display()));
    let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(wrong)?;
    copy(content, artifact, &mut file).await?;
    file.as_file().sync_all().map_err(wrong)?;
    file.persist(output).map_err(|error| wrong(error.error))?;
    Ok(())
}

async fn copy(mut content: impl AsyncRead + Unpin, artifact: &ItemArtifact, output: &mut impl Write) -> Result<(), Error> {
    let (mut digest, mut bytes, mut buffer) = (Sha256::new(), 0_i64, vec![0; READ_BYTES]);
    loop {
        let read = content.read(&mut buffer).await.map_err(|error| Error::Usage(format!("the file was cut off: {error}; try again")))?;
        let part = buffer.get(..read).unwrap_or_default();
        if part.is_empty() {
            break;
        }
        digest.update(part);
        bytes = bytes.saturating_add(i64::try_from(part.len()).unwrap_or(i64::MAX));
        output.write_all(part).map_err(|error| Error::Usage(format!("cannot write the file: {error}")))?;
    }
    output.flush().map_err(|error| Error::Usage(format!("cannot write the file: {error}")))?;
    if hex(&digest.finalize()) != artifact.sha256 {
        let ItemArtifact { bytes: expected, .. } = artifact;
        return Err(Error::Usage(format!("the file came with another content ({bytes} of {expected} bytes): try again")));
    }
    Ok(())
}

/// Why the proxied request failed, and what to do.
fn explained(error: kube::Error, system: &str, service: &str) -> Error {
    let kube::Error::Api(status) = error else { return Error::Unanswered(Box::new(error)) };
    // A gateway's refusal is no Status of the API server, and its text is the message then.
    if let Ok(refusal) = serde_json::from_str::<spillway_wire::Refusal>(&status.message) {
        return Error::Server { reason: refusal.code.label().to_owned(), message: refusal.message };
    }
    match status.code {
        403 => Error::Usage(format!(
            "you may not reach the gateways through the API server: {}. The chart's value artifacts.people gives all users that right; \
             --gateway-service names the Service, if it is not {system}/{service}",
            status.message
        )),
        404 => Error::Usage(format!(
            "there is no Service {service} in namespace {system} that serves artifacts: name the gateways' Service with --gateway-service \
             NAMESPACE/NAME"
        )),
        503 => Error::Usage(format!("the API server cannot reach the gateways: {}", status.message)),
        _ => Error::Server { reason: status.reason, message: status.message },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn artifact(content: &[u8]) -> ItemArtifact {
        let sha256 = hex(&Sha256::digest(content));
        let value = serde_json::json!({"name": "f", "bytes": content.len(), "sha256": sha256, "id": "1".repeat(32), "epoch": 1,
            "creationTime": "2026-01-01T00:00:00Z", "expirationTime": "2026-01-09T00:00:00Z"});
        serde_json::from_value(value).expect("an artifact")
    }

    #[tokio::test]
    async fn a_file_is_whole_or_not_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let output = folder.path().join("f");
        let wrong = save(&b"hal"[..], &artifact(b"half"), &output).await.expect_err("cut off").to_string();
        assert!(wrong.contains("3 of 4 bytes"), "{wrong}");
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
        save(&b"whole"[..], &artifact(b"whole"), &output).await.expect("written");
        assert_eq!(std::fs::read(&output).expect("a file"), b"whole");
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }
}
