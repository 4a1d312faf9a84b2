//! TLS between Spillway's own processes and the bridges of Toolsets, which run in the namespaces of teams.
//!
//! A bridge accepts only a client that shows the certificate of a gateway or of the governor, from the installation's own authority. Its own
//! certificate proves nothing, because no key of the authority is in a team's namespace. The bridge proves itself inside of the connection,
//! by a token of its pod, which it shows only to such a client: see `crate::bridge::client`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use rcgen::{CertificateParams, KeyPair};
use rustls::client::ResolvesClientCert;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, ServerConfig, SignatureScheme,
};

use super::authority::PemKeyPair;
use super::tls::Serving;
use crate::policy::certificates::Authority;
use crate::wire::{BRIDGE_TLS_NAME, GATEWAY_TLS_NAME, GOVERNOR_TLS_NAME};

/// The protocol on these connections.
const PROTOCOL: &[u8] = b"http/1.1";

/// The server of a bridge. It accepts the clients that the certificates in the file `authorities` vouch for. The file is read for each
/// connection, because the authority changes.
pub fn server(authorities: PathBuf) -> anyhow::Result<ServerConfig> {
    let verifier = FromSpillway { authorities, provider: Arc::new(aws_lc_rs::default_provider()) };
    verifier.trusted().map_err(|error| anyhow::anyhow!("{}: {error}", verifier.authorities.display()))?;
    let certificate = Serving::default();
    certificate.set(&own_certificate()?)?;
    let builder = ServerConfig::builder_with_provider(verifier.provider.clone()).with_protocol_versions(&[&rustls::version::TLS13])?;
    let mut config = builder.with_client_cert_verifier(Arc::new(verifier)).with_cert_resolver(Arc::new(certificate));
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    Ok(config)
}

/// A client of bridges that shows this certificate.
pub fn client(certificate: Serving) -> anyhow::Result<ClientConfig> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone()).with_protocol_versions(&[&rustls::version::TLS13])?;
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyBridge { provider }));
    let mut config = builder.with_client_cert_resolver(Arc::new(certificate));
    config.resumption = rustls::client::Resumption::disabled();
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    Ok(config)
}

/// A certificate that the bridge signs itself.
fn own_certificate() -> anyhow::Result<PemKeyPair> {
    let key = KeyPair::generate().context("cannot make a key")?;
    let certificate = CertificateParams::new(vec![BRIDGE_TLS_NAME.to_owned()])?.self_signed(&key).context("cannot make a certificate")?;
    Ok(PemKeyPair { certificate: certificate.pem(), key: key.serialize_pem(), times: Authority { made: 0, ends: i64::MAX } })
}

impl ResolvesClientCert for Serving {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<rustls::sign::CertifiedKey>> {
        self.current()
    }

    fn has_certs(&self) -> bool {
        self.current().is_some()
    }
}

/// Accepts clients whose certificate is that of a gateway or of the governor.
#[derive(Debug)]
struct FromSpillway {
    authorities: PathBuf,
    provider: Arc<CryptoProvider>,
}

impl FromSpillway {
    /// Verifies certificates of servers: those of gateways and of the governor are made for servers, and are shown here to be known.
    fn trusted(&self) -> Result<Arc<WebPkiServerVerifier>, Error> {
        let roots = read_authorities(&self.authorities).map_err(|error| Error::General(format!("{error:#}")))?;
        let builder = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), self.provider.clone());
        builder.build().map_err(|error| Error::General(error.to_string()))
    }
}

fn read_authorities(file: &Path) -> anyhow::Result<RootCertStore> {
    let text = std::fs::read(file).context("cannot read the trusted certificates")?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&text) {
        roots.add(certificate.context("cannot read a trusted certificate")?).context("cannot read a trusted certificate")?;
    }
    Ok(roots)
}

impl ClientCertVerifier for FromSpillway {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let trusted = self.trusted()?;
        let mut last = Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure);
        for name in [GATEWAY_TLS_NAME, GOVERNOR_TLS_NAME] {
            let name = ServerName::try_from(name).map_err(|error| Error::General(error.to_string()))?;
            match trusted.verify_server_cert(end_entity, intermediates, &name, &[], now) {
                Ok(_) => return Ok(ClientCertVerified::assertion()),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("only TLS 1.3 is spoken".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Accepts the certificate of any bridge: the client asks for its token before it sends anything.
#[derive(Debug)]
struct AnyBridge {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyBridge {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("only TLS 1.3 is spoken".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rustls::{ClientConnection, ServerConnection};

    use super::*;
    use crate::pki::authority;

    /// A handshake in memory of a client that shows `shown` with the bridge that trusts `bundle`.
    fn shakes(bundle: &str, shown: Option<&PemKeyPair>) -> Result<(), String> {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("ca.crt");
        std::fs::write(&file, bundle).expect("written");
        let certificate = Serving::default();
        if let Some(shown) = shown {
            certificate.set(shown).expect("a certificate");
        }
        let name = ServerName::try_from(BRIDGE_TLS_NAME).expect("a name");
        let mut client = ClientConnection::new(Arc::new(client(certificate).expect("a client")), name).expect("a client");
        let mut server = ServerConnection::new(Arc::new(server(file).expect("a server"))).expect("a server");
        // The client's certificate is judged after the client has finished.
        for _ in 0..4 {
            let mut bytes = Vec::new();
            client.write_tls(&mut bytes).expect("memory");
            server.read_tls(&mut bytes.as_slice()).expect("memory");
            server.process_new_packets().map_err(|error| error.to_string())?;
            let mut bytes = Vec::new();
            server.write_tls(&mut bytes).expect("memory");
            client.read_tls(&mut bytes.as_slice()).expect("memory");
            client.process_new_packets().map_err(|error| error.to_string())?;
        }
        assert!(!client.is_handshaking() && !server.is_handshaking());
        Ok(())
    }

    #[test]
    fn a_bridge_accepts_gateways_and_the_governor_and_nobody_else() {
        let now = jiff::Timestamp::now().as_second();
        let own = authority::authority(now).expect("an authority");
        let other = authority::authority(now).expect("an authority");
        for name in [GATEWAY_TLS_NAME, GOVERNOR_TLS_NAME] {
            let shown = authority::serving(&own, name, now).expect("a certificate");
            assert_eq!(shakes(&own.certificate, Some(&shown)), Ok(()));
            let both = format!("{}{}", other.certificate, own.certificate);
            assert_eq!(shakes(&both, Some(&shown)), Ok(()), "while the authority changes");
            let foreign = authority::serving(&other, name, now).expect("a certificate");
            shakes(&own.certificate, Some(&foreign)).expect_err("of another installation");
            let expired = authority::serving(&own, name, now - 400 * 24 * 3600).expect("a certificate");
            shakes(&own.certificate, Some(&expired)).expect_err("expired");
        }
        let unnamed = authority::serving(&own, "agent.spillway.internal", now).expect("a certificate");
        shakes(&own.certificate, Some(&unnamed)).expect_err("another name");
        shakes(&own.certificate, Some(&own_certificate().expect("a certificate"))).expect_err("signed by itself");
        shakes(&own.certificate, None).expect_err("no certificate");
    }
}
