//! Making and signing certificates. Times come in as arguments.

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use time::OffsetDateTime;

use crate::policy::certificates::{AUTHORITY_LIFE, Authority, SERVING_LIFE};

/// Certificates count from a little before they are made: clocks of nodes differ.
const CLOCKS_DIFFER: i64 = 300;

/// A certificate with its key, as PEM, and its times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The certificate.
    pub certificate: String,
    /// Its private key.
    pub key: String,
    /// When it was made and when it ends, in seconds since 1970.
    pub times: Authority,
}

/// What can go wrong here: a key that cannot be read, a clock beyond all bounds.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The library refuses.
    #[error("making a certificate: {0}")]
    Making(#[from] rcgen::Error),
    /// The clock is out of bounds.
    #[error("the time {0} is out of bounds")]
    Time(i64),
}

/// A new authority.
pub fn authority(now: i64) -> Result<Pair, Error> {
    let key = KeyPair::generate()?;
    let times = Authority { made: now, ends: now.saturating_add(seconds(AUTHORITY_LIFE)) };
    let certificate = params(times)?.self_signed(&key)?;
    Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem(), times })
}

/// A certificate for a server called `name`, signed by `authority`.
pub fn serving(authority: &Pair, name: &str, now: i64) -> Result<Pair, Error> {
    let issuing = params(authority.times)?;
    let issuer = Issuer::new(issuing, KeyPair::from_pem(&authority.key)?);
    let key = KeyPair::generate()?;
    let times = Authority { made: now, ends: now.saturating_add(seconds(SERVING_LIFE)).min(authority.times.ends) };
    let mut params = CertificateParams::new(vec![name.to_owned()])?;
    params.distinguished_name = named(name);
    params.not_before = at(now - CLOCKS_DIFFER)?;
    params.not_after = at(times.ends)?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    let certificate = params.signed_by(&key, &issuer)?;
    Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem(), times })
}

/// The authority's parameters follow from its times, so that it can sign again after a restart.
fn params(times: Authority) -> Result<CertificateParams, Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name = named(&format!("Spillway internal authority {}", times.made));
    params.not_before = at(times.made - CLOCKS_DIFFER)?;
    params.not_after = at(times.ends)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

fn named(name: &str) -> DistinguishedName {
    let mut all = DistinguishedName::new();
    all.push(DnType::CommonName, name);
    all
}

fn at(seconds: i64) -> Result<OffsetDateTime, Error> {
    OffsetDateTime::from_unix_timestamp(seconds).map_err(|_| Error::Time(seconds))
}

fn seconds(duration: std::time::Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}
