//! The usual kubectl flags, and the client that they configure. It must not use other credentials than those that the flags and
//! the kubeconfig name.

use std::path::PathBuf;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, Resource};

use super::error::Error;
use super::input;

/// Cluster, user and namespace.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Connection")]
pub struct ConnectArguments {
    /// Namespace [default: the context's]
    #[arg(short, long, global = true, value_parser = input::label)]
    pub namespace: Option<String>,
    /// Context of the kubeconfig [default: its current one]
    #[arg(long, global = true)]
    pub context: Option<String>,
    /// The kubeconfig file [default: KUBECONFIG, then ~/.kube/config, then the pod's ServiceAccount]
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Time limit for one request to the API server; 0 means no limit
    #[arg(long, global = true, value_name = "DURATION", default_value = "30s", value_parser = input::duration)]
    pub request_timeout: Duration,
}

/// A cluster, and the namespace of the commands.
#[derive(Clone)]
pub struct Cluster {
    /// The client, with the rights of its user.
    pub client: Client,
    /// The namespace.
    pub namespace: String,
}

impl Cluster {
    /// The objects of one kind in the namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }
}

impl ConnectArguments {
    /// Reads the kubeconfig and creates the client. Sends no request.
    pub async fn connect(&self) -> Result<Cluster, Error> {
        let timeout = (!self.request_timeout.is_zero()).then_some(self.request_timeout);
        self.client(timeout).await
    }

    /// As [`Self::connect`], without a limit between two parts of an answer, for example for a log that is followed.
    pub async fn connect_to_follow(&self) -> Result<Cluster, Error> {
        self.client(None).await
    }

    async fn client(&self, read_timeout: Option<Duration>) -> Result<Cluster, Error> {
        // One TLS provider for the process. An error means that one is installed already, which is harmless.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let mut config = self.config().await?;
        let timeout = (!self.request_timeout.is_zero()).then_some(self.request_timeout);
        config.connect_timeout = timeout;
        config.read_timeout = read_timeout;
        // A connection may be idle between two requests for longer than the time limit of an answer.
        config.reset_reader_on_write = true;
        config.write_timeout = timeout;
        // A create whose answer was lost must not be sent again automatically: a generated name would make a second Agent.
        config.default_retry = false;
        let agent = format!("{}/{}", super::PROGRAM_NAME, crate::VERSION).parse().map_err(|error| Error::Config(Box::new(error)))?;
        config.headers.push((http::header::USER_AGENT, agent));
        let namespace = self.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).map_err(|error| Error::Config(Box::new(error)))?;
        Ok(Cluster { client, namespace })
    }

    async fn config(&self) -> Result<Config, Error> {
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        match (&self.kubeconfig, &self.context) {
            (Some(file), _) => {
                let kubeconfig = Kubeconfig::read_from(file).map_err(|error| Error::Config(Box::new(error)))?;
                Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|error| Error::Config(Box::new(error)))
            }
            (None, Some(_)) => Config::from_kubeconfig(&options).await.map_err(|error| Error::Config(Box::new(error))),
            (None, None) => Config::infer().await.map_err(|error| Error::Config(Box::new(error))),
        }
    }
}
