//! The leader's loop: reads the two Secrets, decides, and writes them by compare-and-swap. Another leader's write is a
//! conflict, after which the Secrets are read again. The current certificates are published on a channel.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, Client};
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use super::authority::{self, PemKeyPair};
use crate::cluster::lease::Leadership;
use crate::cluster::{Class, Error};
use crate::policy::certificates::{Authority, Facts, Signer, Step, renew, signer, step};
use crate::wire::text::hex;
use crate::wire::{CA_FILE, GATEWAY_TLS_NAME, GOVERNOR_TLS_NAME};

/// Between two checks.
const CERTIFICATE_CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// After a failure.
const CERTIFICATE_RETRY_DELAY: Duration = Duration::from_secs(2);

/// The names of the Secrets.
#[derive(Clone, Debug)]
pub struct SecretNames {
    /// Their namespace: the controller's own.
    pub namespace: String,
    /// Name of the authority's Secret.
    pub authority: String,
    /// Name of the Secret with the gateways' certificate.
    pub gateway: String,
}

/// The trusted certificates, and the governor's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trust {
    /// Certificates of authorities, as PEM.
    pub bundle: String,
    /// The governor's own certificate.
    pub governor: PemKeyPair,
}

/// Keeps the certificates while this process leads. Returns only when leadership is lost.
pub async fn keep(client: Client, places: SecretNames, leadership: Leadership, tell: watch::Sender<Option<Trust>>) {
    let api: Api<Secret> = Api::namespaced(client, &places.namespace);
    loop {
        let wait = match reconcile(&api, &places, &leadership, &tell).await {
            Ok(()) => CERTIFICATE_CHECK_INTERVAL,
            Err(Problem::Call(error)) if error.class() == Class::LostLeadership => {
                leadership.abdicate();
                // The process ends after the check for a rollback.
                return leadership.lost().await;
            }
            Err(error) => {
                tracing::warn!(%error, "cannot update the internal certificates; retrying");
                CERTIFICATE_RETRY_DELAY
            }
        };
        tokio::time::sleep(wait).await;
    }
}

#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error(transparent)]
    Call(#[from] Error),
    #[error(transparent)]
    Making(#[from] authority::Error),
}

async fn reconcile(
    api: &Api<Secret>,
    places: &SecretNames,
    leadership: &Leadership,
    tell: &watch::Sender<Option<Trust>>,
) -> Result<(), Problem> {
    let now = jiff::Timestamp::now().as_second();
    let stored = read(api, &places.authority).await?;
    let (mut first, mut second) = (pair(stored.as_ref(), "first"), pair(stored.as_ref(), "second"));
    let facts = |first: &Option<PemKeyPair>, second: &Option<PemKeyPair>| Facts { now, first: times(first), second: times(second) };
    let before = (first.clone(), second.clone());
    match step(&facts(&first, &second)) {
        Step::Keep => {}
        Step::MakeFirst => first = Some(authority::authority(now)?),
        Step::MakeSecond => second = Some(authority::authority(now)?),
        Step::DropFirst => first = second.take(),
    }
    if before != (first.clone(), second.clone()) {
        let mut data = BTreeMap::new();
        put(&mut data, "first", first.as_ref());
        put(&mut data, "second", second.as_ref());
        write(api, leadership, &places.authority, stored, data).await?;
        tracing::info!(secret = %places.authority, "made or changed the internal certificate authority");
    }
    let signing = if signer(&facts(&first, &second)) == Signer::Second { second.as_ref() } else { first.as_ref() };
    let Some(signing) = signing else { return Ok(()) };
    let bundle: String = [&first, &second].into_iter().flatten().map(|pair| pair.certificate.as_str()).collect();
    keep_gateway_certificate(api, places, leadership, signing, &bundle, now).await?;
    let current = tell.borrow().clone();
    let governor = match current {
        Some(trust) if trust.bundle == bundle && !renew(now, trust.governor.times.made, trust.governor.times.ends, true) => return Ok(()),
        Some(_) | None => authority::serving(signing, GOVERNOR_TLS_NAME, now)?,
    };
    tell.send_replace(Some(Trust { bundle, governor }));
    Ok(())
}

/// Keeps the Secret with the gateways' certificate and the trusted authorities.
async fn keep_gateway_certificate(
    api: &Api<Secret>,
    places: &SecretNames,
    leadership: &Leadership,
    signing: &PemKeyPair,
    bundle: &str,
    now: i64,
) -> Result<(), Problem> {
    let stored = read(api, &places.gateway).await?;
    let by = fingerprint(&signing.certificate);
    let has = |key: &str, value: &str| text(stored.as_ref(), key).as_deref() == Some(value);
    let fresh = pair(stored.as_ref(), "tls").filter(|pair| !renew(now, pair.times.made, pair.times.ends, has("signer", &by)));
    if fresh.is_some() && has(CA_FILE, bundle) {
        return Ok(());
    }
    let serving = match fresh {
        Some(pair) => pair,
        None => authority::serving(signing, GATEWAY_TLS_NAME, now)?,
    };
    let mut data = BTreeMap::new();
    put(&mut data, "tls", Some(&serving));
    data.insert("signer".to_owned(), ByteString(by.into_bytes()));
    data.insert(CA_FILE.to_owned(), ByteString(bundle.as_bytes().to_vec()));
    write(api, leadership, &places.gateway, stored, data).await?;
    tracing::info!(secret = %places.gateway, "made or changed the gateways' certificate");
    Ok(())
}

async fn read(api: &Api<Secret>, name: &str) -> Result<Option<Secret>, Error> {
    api.get_opt(name).await.map_err(Error::of("reading a Secret of certificates"))
}

async fn write(
    api: &Api<Secret>,
    leadership: &Leadership,
    name: &str,
    stored: Option<Secret>,
    data: BTreeMap<String, ByteString>,
) -> Result<(), Error> {
    leadership.check()?;
    let params = PostParams { field_manager: Some(crate::api::names::managers::PKI.into()), ..PostParams::default() };
    let labels = BTreeMap::from([(crate::api::names::MANAGED_BY_LABEL.to_owned(), crate::api::names::MANAGED_BY.to_owned())]);
    match stored {
        Some(mut secret) => {
            secret.data = Some(data);
            api.replace(name, &params, &secret).await.map_err(Error::of("replacing a Secret of certificates"))?;
        }
        None => {
            let metadata = ObjectMeta { name: Some(name.to_owned()), labels: Some(labels), ..ObjectMeta::default() };
            let secret = Secret { metadata, data: Some(data), ..Secret::default() };
            api.create(&params, &secret).await.map_err(Error::of("creating a Secret of certificates"))?;
        }
    }
    Ok(())
}

fn times(pair: &Option<PemKeyPair>) -> Option<Authority> {
    pair.as_ref().map(|pair| pair.times)
}

/// The pair that is stored under `prefix`. None also if it cannot be read.
pub fn pair(secret: Option<&Secret>, prefix: &str) -> Option<PemKeyPair> {
    let times = text(secret, &format!("{prefix}.times"))?;
    let (made, ends) = times.split_once(' ')?;
    Some(PemKeyPair {
        certificate: text(secret, &format!("{prefix}.crt"))?,
        key: text(secret, &format!("{prefix}.key"))?,
        times: Authority { made: made.parse().ok()?, ends: ends.parse().ok()? },
    })
}

/// The text stored under `key`.
pub fn text(secret: Option<&Secret>, key: &str) -> Option<String> {
    String::from_utf8(secret?.data.as_ref()?.get(key)?.0.clone()).ok()
}

fn put(data: &mut BTreeMap<String, ByteString>, prefix: &str, pair: Option<&PemKeyPair>) {
    let Some(PemKeyPair { certificate, key, times }) = pair else { return };
    let parts = [("crt", certificate.clone()), ("key", key.clone()), ("times", format!("{} {}", times.made, times.ends))];
    data.extend(parts.into_iter().map(|(part, text)| (format!("{prefix}.{part}"), ByteString(text.into_bytes()))));
}

fn fingerprint(certificate: &str) -> String {
    hex(&Sha256::digest(certificate.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_read_as_it_was_put_and_half_of_one_is_none() {
        let made = authority::authority(1_700_000_000).expect("an authority");
        let mut data = BTreeMap::new();
        put(&mut data, "first", Some(&made));
        let mut secret = Secret { data: Some(data), ..Secret::default() };
        assert_eq!(pair(Some(&secret), "first"), Some(made));
        assert_eq!(pair(Some(&secret), "second"), None);
        secret.data.as_mut().expect("data").remove("first.key");
        assert_eq!(pair(Some(&secret), "first"), None);
    }
}
