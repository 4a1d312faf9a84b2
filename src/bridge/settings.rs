//! The arguments of `spillway bridge`.

use std::net::SocketAddr;
use std::path::PathBuf;

use spillway_bridge::definition::Allowed;
use spillway_wire::sandbox::{Requirement, SandboxSettings};

use super::credentials::CredentialFiles;
use super::upstream::server::UpstreamServer;

/// What to serve, and where.
#[derive(Clone, Debug, clap::Args)]
pub struct ServeArguments {
    /// Folder of the definitions, files that end with .md. It is read again when it changes
    #[arg(long, value_name = "DIR", required_unless_present_any = ["upstream", "upstream_config"])]
    pub definitions: Option<PathBuf>,
    /// Serve some tools of an MCP server in the place of programs: file with the fields of spec.upstream of a Toolset, as YAML or JSON
    #[arg(long, value_name = "FILE", conflicts_with_all = ["definitions", "allowed", "service_account", "require_sandbox", "work_folder"])]
    pub upstream: Option<PathBuf>,
    /// The content of such a file, for the pod of a Toolset
    #[arg(long, value_name = "JSON", hide = true, conflicts_with_all = ["definitions", "upstream"])]
    pub upstream_config: Option<String>,
    /// Address of the server. Without --token-file it must be a loopback address
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:3000")]
    pub listen: SocketAddr,
    /// File with the token that clients must send (Authorization: Bearer TOKEN) [default: no token]
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// A name by which clients reach this server, besides localhost and the loopback addresses; may be given several times
    #[arg(long = "host", value_name = "NAME")]
    pub hosts: Vec<String>,
    /// A program that definitions may name, or all of a folder (/opt/tools/*); may be given several times [default: all programs]
    #[arg(long = "allow", value_name = "PATH")]
    pub allowed: Vec<String>,
    /// A credential that definitions may use; may be given several times
    #[arg(long = "credential", value_name = "NAME=FILE", value_parser = credential)]
    pub credentials: Vec<(String, PathBuf)>,
    /// Folder with the token of a ServiceAccount, which all programs may read. The token is taken out of answers
    #[arg(long, value_name = "DIR")]
    pub service_account: Option<PathBuf>,
    /// The longest time limit of a program, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub max_seconds: u32,
    /// The most calls at once
    #[arg(long, value_name = "NUMBER", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub max_running: u32,
    /// File of the audit log. It is made if it does not exist, and continued if it does [default: standard output]
    #[arg(long, value_name = "FILE")]
    pub audit_file: Option<PathBuf>,
    /// Serve only the gateways of a Spillway installation, over TLS: file with the certificates of its authority
    #[arg(long, value_name = "FILE", requires = "identity_token", conflicts_with_all = ["token_file", "hosts", "end_with_input"])]
    pub gateway_ca: Option<PathBuf>,
    /// File with the token of this pod's ServiceAccount for the audience spillway.dev/bridge. It proves to gateways which bridge this is
    #[arg(long, value_name = "FILE", requires = "gateway_ca")]
    pub identity_token: Option<PathBuf>,
    /// Address of /livez, /readyz and /metrics [default: none]
    #[arg(long, value_name = "IP:PORT")]
    pub health_listen: Option<SocketAddr>,
    /// End if this kernel cannot enforce all limits of the sandbox of programs [default: say so, and go on]
    #[arg(long)]
    pub require_sandbox: bool,
    /// End when standard input ends: for programs that start a bridge
    #[arg(long)]
    pub end_with_input: bool,
    /// Folder for the private folders of calls [default: the folder for temporary files]
    #[arg(long, value_name = "DIR")]
    pub work_folder: Option<PathBuf>,
}

impl ServeArguments {
    /// The fields of an upstream, if its tools are to be served.
    pub fn upstream_fields(&self) -> anyhow::Result<Option<Vec<u8>>> {
        match (&self.upstream, &self.upstream_config) {
            (Some(file), _) => UpstreamServer::read(file).map(Some),
            (None, Some(text)) => Ok(Some(text.clone().into_bytes())),
            (None, None) => Ok(None),
        }
    }

    /// What definitions may use.
    pub fn allowed(&self) -> Allowed {
        Allowed {
            commands: Some(self.allowed.clone()).filter(|allowed| !allowed.is_empty()),
            credentials: self.credentials.iter().map(|(name, _)| name.clone()).collect(),
            max_seconds: self.max_seconds,
        }
    }

    /// The sandbox of programs.
    pub fn sandbox(&self) -> SandboxSettings {
        let requirement = if self.require_sandbox { Requirement::Required } else { Requirement::Preferred };
        let readable = self.service_account.iter().map(|folder| folder.display().to_string()).collect();
        SandboxSettings { landlock: requirement, syscalls: requirement, readable, ..SandboxSettings::default() }
    }

    /// The files of credentials.
    pub fn credential_files(&self) -> CredentialFiles {
        let token = self.service_account.as_ref().map(|folder| folder.join("token"));
        CredentialFiles::new(self.credentials.iter().cloned().collect(), token)
    }
}

fn credential(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, file)) if !file.is_empty() && is_plain_name(name) => Ok((name.to_owned(), file.into())),
        Some(_) | None => Err("expected NAME=FILE, with a NAME of letters, digits, - and _".into()),
    }
}

fn is_plain_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name.chars().all(|character| character.is_ascii_alphanumeric() || matches!(character, '-' | '_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credential_has_a_name_that_can_be_a_variable() {
        assert_eq!(credential("deploy-key=/run/key"), Ok(("deploy-key".into(), "/run/key".into())));
        for wrong in ["", "x", "=f", "a=", "1a=f", "a b=f", "\u{e4}=f"] {
            credential(wrong).expect_err(wrong);
        }
    }
}
