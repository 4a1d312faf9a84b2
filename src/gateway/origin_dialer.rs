//! Connections over TLS to listed origins, at checked addresses only.
//!
//! For each connection the name is resolved once, each address is checked, and only a checked address is dialled. So a name that
//! changes its addresses later does not bypass the check. It must not know what is sent on a connection.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::origins::{DialRefusal, Origin, OriginTerms, Origins, judge};
use crate::pki::tls;

/// How long the lookup of a name may take.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long TCP and TLS together may take, for one address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How many addresses of one name are tried.
const MAX_ADDRESS_ATTEMPTS: usize = 3;

/// Why there is no connection.
#[derive(Debug)]
pub enum OriginDialError {
    /// The origin is not listed.
    NotListed,
    /// It has only addresses that are not allowed; one of them.
    Address(IpAddr, DialRefusal),
    /// It has no address, does not answer, or has an invalid certificate.
    Unreachable(String),
}

/// Dials origins.
pub struct OriginDialer {
    origins: Origins,
    /// The application protocols that are offered, the preferred one first.
    protocols: &'static [&'static str],
    configs: Mutex<HashMap<Origin, Arc<ClientConfig>>>,
}

impl OriginDialer {
    /// Dials these origins, and offers these application protocols.
    pub fn new(origins: Origins, protocols: &'static [&'static str]) -> Self {
        Self { origins, protocols, configs: Mutex::default() }
    }

    /// The listed origin that `text` names.
    pub fn find(&self, text: &str) -> Option<Origin> {
        Origin::parse(text).ok().filter(|origin| self.origins.terms(origin).is_some())
    }

    /// A new connection to an origin.
    pub async fn dial(&self, origin: &Origin) -> Result<TlsStream<TcpStream>, OriginDialError> {
        let unreachable = OriginDialError::Unreachable;
        let terms = self.origins.terms(origin).ok_or(OriginDialError::NotListed)?;
        let config = self.config(origin, terms).map_err(|error| unreachable(format!("{error:#}")))?;
        let name = ServerName::try_from(origin.host.clone()).map_err(|error| unreachable(error.to_string()))?;
        let mut last = "it has no address".to_owned();
        for address in addresses(origin, terms).await?.into_iter().take(MAX_ADDRESS_ATTEMPTS) {
            let connecting = async {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                TlsConnector::from(config.clone()).connect(name.clone(), stream).await
            };
            match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => last = error.to_string(),
                Err(_) => last = "it does not answer".to_owned(),
            }
        }
        Err(unreachable(last))
    }

    fn config(&self, origin: &Origin, terms: &OriginTerms) -> anyhow::Result<Arc<ClientConfig>> {
        if let Some(config) = self.configs.lock().unwrap_or_else(PoisonError::into_inner).get(origin) {
            return Ok(config.clone());
        }
        let mut config = tls::public(&terms.ca_bundle).context("its caBundle is invalid")?;
        config.alpn_protocols = self.protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        let config = Arc::new(config);
        self.configs.lock().unwrap_or_else(PoisonError::into_inner).insert(origin.clone(), config.clone());
        Ok(config)
    }
}

/// The allowed addresses of an origin. Err: it has only addresses that are not allowed, or the lookup failed.
async fn addresses(origin: &Origin, terms: &OriginTerms) -> Result<Vec<SocketAddr>, OriginDialError> {
    let unreachable = |why: &str| OriginDialError::Unreachable(why.to_owned());
    let looking = tokio::net::lookup_host((origin.host.as_str(), origin.port));
    let found = tokio::time::timeout(RESOLVE_TIMEOUT, looking).await.map_err(|_| unreachable("the lookup of its name took too long"))?;
    let found: Vec<SocketAddr> = found.map_err(|error| unreachable(&error.to_string()))?.collect();
    let open: Vec<SocketAddr> = found.iter().copied().filter(|address| judge(address.ip(), terms.allow_private).is_ok()).collect();
    let closed = found.iter().find_map(|address| Some((address.ip(), judge(address.ip(), terms.allow_private).err()?)));
    match closed {
        Some((address, closed)) if open.is_empty() => Err(OriginDialError::Address(address, closed)),
        Some(_) | None => Ok(open),
    }
}
