//! Creates and signs certificates. Times are arguments.

use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DistinguishedName, DnType, ExtendedKeyUsagePurpose, GeneralSubtree, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, NameConstraints,
};
use time::OffsetDateTime;

use crate::policy::certificates::{AUTHORITY_VALIDITY, Authority, SERVING_VALIDITY};
use crate::wire::{GATEWAY_TLS_NAME, GOVERNOR_TLS_NAME};

/// Certificates are valid from a little before their creation, because clocks of nodes differ.
const MAX_CLOCK_SKEW_SECONDS: i64 = 300;

/// A certificate with its key, as PEM, and its times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PemKeyPair {
    /// The certificate.
    pub certificate: String,
    /// Its private key.
    pub key: String,
    /// When it was created and when it expires, in seconds since 1970.
    pub times: Authority,
}

/// Errors of making certificates.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The library reports an error, such as an unreadable key.
    #[error("cannot make a certificate: {0}")]
    Making(#[from] rcgen::Error),
    /// The clock is out of bounds.
    #[error("the time {0}, in seconds since 1970, is out of bounds: check the node's clock")]
    Time(i64),
}

/// Creates a new authority.
pub fn authority(now: i64) -> Result<PemKeyPair, Error> {
    let key = KeyPair::generate()?;
    let times = Authority { made: now, ends: now.saturating_add(seconds(AUTHORITY_VALIDITY)) };
    let certificate = params(times)?.self_signed(&key)?;
    Ok(PemKeyPair { certificate: certificate.pem(), key: key.serialize_pem(), times })
}

/// Creates a certificate for the server name `name`, signed by `authority`.
pub fn serving(authority: &PemKeyPair, name: &str, now: i64) -> Result<PemKeyPair, Error> {
    let issuing = params(authority.times)?;
    let issuer = Issuer::new(issuing, KeyPair::from_pem(&authority.key)?);
    let key = KeyPair::generate()?;
    let times = Authority { made: now, ends: now.saturating_add(seconds(SERVING_VALIDITY)).min(authority.times.ends) };
    let mut params = CertificateParams::new(vec![name.to_owned()])?;
    params.distinguished_name = named(name);
    params.not_before = at(now - MAX_CLOCK_SKEW_SECONDS)?;
    params.not_after = at(times.ends)?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    let certificate = params.signed_by(&key, &issuer)?;
    Ok(PemKeyPair { certificate: certificate.pem(), key: key.serialize_pem(), times })
}

/// The authority's parameters follow from its times, so that it can sign again after a restart.
fn params(times: Authority) -> Result<CertificateParams, Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name = named(&format!("Spillway internal authority {}", times.made));
    params.not_before = at(times.made - MAX_CLOCK_SKEW_SECONDS)?;
    params.not_after = at(times.ends)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.name_constraints = Some(constraints());
    Ok(params)
}

/// The names that the authority can sign: the two internal names, and no address. The constraint is only in the
/// authority's own certificate. So certificates of an earlier authority without it stay valid until they are replaced.
fn constraints() -> NameConstraints {
    let names = [GATEWAY_TLS_NAME, GOVERNOR_TLS_NAME].map(|name| GeneralSubtree::DnsName(name.to_owned()));
    let all_addresses = [CidrSubnet::V4([0; 4], [0; 4]), CidrSubnet::V6([0; 16], [0; 16])].map(GeneralSubtree::IpAddress);
    NameConstraints { permitted_subtrees: names.to_vec(), excluded_subtrees: all_addresses.to_vec() }
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::tls;
    use super::*;
    use rustls::pki_types::ServerName;
    use rustls::{ClientConnection, ProtocolVersion, ServerConnection};

    const NOW: i64 = 1_700_000_000;

    /// A handshake in memory between a client that trusts `authority` and a server with the name `name` and the
    /// certificate `shown`.
    fn shakes(authority: &PemKeyPair, shown: &PemKeyPair, name: &str) -> Result<ProtocolVersion, String> {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default(); // another test may have
        let certificate = tls::Serving::default();
        certificate.set(shown).expect("a certificate");
        let mut client = tls::client(&authority.certificate).expect("an authority");
        client.time_provider = Arc::new(NextStep);
        let name = ServerName::try_from(name.to_owned()).expect("a name");
        let mut client = ClientConnection::new(Arc::new(client), name).map_err(|error| error.to_string())?;
        let mut server = ServerConnection::new(Arc::new(tls::server(certificate))).map_err(|error| error.to_string())?;
        while client.is_handshaking() || server.is_handshaking() {
            let mut bytes = Vec::new();
            client.write_tls(&mut bytes).expect("memory");
            server.read_tls(&mut bytes.as_slice()).expect("memory");
            server.process_new_packets().map_err(|error| error.to_string())?;
            let mut bytes = Vec::new();
            server.write_tls(&mut bytes).expect("memory");
            client.read_tls(&mut bytes.as_slice()).expect("memory");
            client.process_new_packets().map_err(|error| error.to_string())?;
        }
        client.protocol_version().ok_or_else(|| "no version".to_owned())
    }

    #[derive(Debug)]
    struct NextStep;

    impl rustls::time_provider::TimeProvider for NextStep {
        fn current_time(&self) -> Option<rustls::pki_types::UnixTime> {
            Some(rustls::pki_types::UnixTime::since_unix_epoch(std::time::Duration::from_secs(NOW.unsigned_abs())))
        }
    }

    #[test]
    fn the_authority_vouches_for_our_names_and_for_no_other() {
        let made = authority(NOW).expect("an authority");
        for name in [GATEWAY_TLS_NAME, GOVERNOR_TLS_NAME] {
            let shown = serving(&made, name, NOW).expect("a certificate");
            assert_eq!(shakes(&made, &shown, name), Ok(ProtocolVersion::TLSv1_3));
        }
        for name in ["kubernetes.default.svc", "spillway.internal", "evilgateway.spillway.internal", "10.0.0.1"] {
            let shown = serving(&made, name, NOW).expect("a certificate");
            let error = shakes(&made, &shown, name).expect_err(name);
            assert!(error.contains("NameConstraint") || error.contains("name constraint"), "{name}: {error}");
        }
    }

    #[test]
    fn an_authority_of_an_earlier_version_is_trusted_as_before() {
        let key = KeyPair::generate().expect("a key");
        let times = Authority { made: NOW, ends: NOW + 1_000_000 };
        let mut earlier = params(times).expect("parameters");
        earlier.name_constraints = None;
        let certificate = earlier.self_signed(&key).expect("a certificate").pem();
        let earlier = PemKeyPair { certificate, key: key.serialize_pem(), times };
        let shown = serving(&earlier, GATEWAY_TLS_NAME, NOW).expect("a certificate");
        assert_eq!(shakes(&earlier, &shown, GATEWAY_TLS_NAME), Ok(ProtocolVersion::TLSv1_3));
    }

    #[test]
    fn a_client_of_an_older_protocol_is_refused() {
        let made = authority(NOW).expect("an authority");
        let certificate = tls::Serving::default();
        certificate.set(&serving(&made, GATEWAY_TLS_NAME, NOW).expect("a certificate")).expect("a certificate");
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default(); // another test may have
        let client = rustls::ClientConfig::builder_with_protocol_versions(&[&rustls::version::TLS12]);
        let client = client.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth();
        let name = ServerName::try_from(GATEWAY_TLS_NAME).expect("a name");
        let mut client = ClientConnection::new(Arc::new(client), name).expect("a client");
        let mut server = ServerConnection::new(Arc::new(tls::server(certificate))).expect("a server");
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).expect("memory");
        server.read_tls(&mut bytes.as_slice()).expect("memory");
        assert!(server.process_new_packets().is_err());
    }
}
