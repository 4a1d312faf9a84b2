//! The scripted model server as a program. Its first line of output is its address, so that port 0 can be used.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use rustls::ServerConfig;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use spillway_model_server::{Provider, serve};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// A provider of models for tests, whose answers follow a script.
#[derive(Parser)]
#[command(name = "spillway-model-server")]
struct Args {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1:0", env = "MODEL_SERVER_LISTEN")]
    listen: SocketAddr,
    /// Certificate, in PEM. Without one the server uses no TLS.
    #[arg(long, requires = "key", env = "MODEL_SERVER_CERT")]
    cert: Option<PathBuf>,
    /// Key of the certificate, in PEM.
    #[arg(long, requires = "cert", env = "MODEL_SERVER_KEY")]
    key: Option<PathBuf>,
    /// Accepted credentials, as `NAME=SECRET`, separated by commas. The count shows the names.
    #[arg(long, value_delimiter = ',', env = "MODEL_SERVER_CREDENTIALS", hide_env_values = true, required = true)]
    credentials: Vec<String>,
    /// Models in the list of models. All other models are served too.
    #[arg(long, value_delimiter = ',', default_value = "scripted-large,scripted-small", env = "MODEL_SERVER_MODELS")]
    models: Vec<String>,
}

fn tls(cert: &Path, key: &Path) -> Result<ServerConfig> {
    let chain = CertificateDer::pem_file_iter(cert).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.with_context(|| format!("cannot read the certificate {}", cert.display()))?;
    let key = PrivateKeyDer::from_pem_file(key).with_context(|| format!("cannot read the key {}", key.display()))?;
    let mut config =
        ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key).context("the certificate and the key do not fit")?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn credentials(words: &[String]) -> Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    for word in words {
        match word.split_once('=') {
            Some((name, secret)) if !name.is_empty() && !secret.is_empty() => all.insert(name.to_owned(), secret.to_owned()),
            _ => bail!("--credentials: each credential must be NAME=SECRET"),
        };
    }
    Ok(all)
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default(); // nothing was installed before
    let config = args.cert.as_deref().zip(args.key.as_deref()).map(|(cert, key)| tls(cert, key)).transpose()?;
    let scheme = if config.is_some() { "https" } else { "http" };
    let provider = Provider::new(credentials(&args.credentials)?, args.models);
    let listener = TcpListener::bind(args.listen).await.with_context(|| format!("cannot listen on {}", args.listen))?;
    println!("{scheme}://{}", listener.local_addr()?);
    let mut asked = signal(SignalKind::terminate())?;
    tokio::select! {
        () = serve(listener, config, provider) => {}
        _ = asked.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    Ok(())
}
