//! TLS servers and clients with the internal certificates, and clients for public servers. A server's certificate can
//! change while it serves.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::authority::PemKeyPair;

/// How long a connection to a public server may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The current certificate of a server.
#[derive(Clone, Debug, Default)]
pub struct Serving(Arc<Mutex<Option<Arc<CertifiedKey>>>>);

impl Serving {
    /// Replaces the certificate.
    pub fn set(&self, pair: &PemKeyPair) -> anyhow::Result<()> {
        let chain = CertificateDer::pem_slice_iter(pair.certificate.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .context("cannot read the certificate")?;
        let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).context("cannot read the certificate's key")?;
        let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key).context("cannot read the certificate's key")?;
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(CertifiedKey::new(chain, key)));
        Ok(())
    }

    /// The certificate, if there is one.
    pub fn current(&self) -> Option<Arc<CertifiedKey>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.current()
    }
}

/// A server with the certificate `serving`, for HTTP/2 and HTTP/1.1. It accepts only TLS 1.3, which all our clients
/// support. Sessions are not resumed, because our clients keep their connections.
pub fn server(serving: Serving) -> ServerConfig {
    let builder = ServerConfig::builder_with_protocol_versions(&[&rustls::version::TLS13]);
    let mut config = builder.with_no_client_auth().with_cert_resolver(Arc::new(serving));
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config
}

/// A client that trusts only `bundle`, for HTTP/2.
pub fn client(bundle: &str) -> anyhow::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(certificate.context("cannot read a trusted certificate")?).context("cannot read a trusted certificate")?;
    }
    anyhow::ensure!(!roots.is_empty(), "there is no trusted certificate");
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

/// A client that trusts the public authorities, and those in `bundle`. It sets no application protocol.
pub fn public(bundle: &str) -> anyhow::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    // The list of public authorities is part of the program, because its image has no other files.
    roots.add_parsable_certificates(webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter().cloned());
    for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(certificate.context("cannot read a trusted certificate")?).context("cannot read a trusted certificate")?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

/// Connects to servers that [`public`] trusts with `bundle`, and to servers without TLS. It speaks HTTP/1.1.
pub fn public_connector(bundle: &str) -> anyhow::Result<HttpsConnector<HttpConnector>> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    tcp.set_nodelay(true);
    Ok(HttpsConnectorBuilder::new().with_tls_config(public(bundle)?).https_or_http().enable_http1().wrap_connector(tcp))
}
