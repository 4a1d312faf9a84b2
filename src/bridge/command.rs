//! The command `spillway bridge`, with its subcommands.

use clap::Subcommand;
use spillway_bridge::check::{CheckArguments, check};

use super::audit_log::{VerifyArguments, verify};
use super::settings::ServeArguments;
use crate::telemetry::LogFormat;

/// The arguments of the command.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct BridgeArguments {
    #[command(subcommand)]
    command: Option<BridgeCommand>,
    #[command(flatten)]
    serve: Option<ServeArguments>,
    /// Format of log lines, on standard error. RUST_LOG selects the lines.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

#[derive(Debug, Subcommand)]
enum BridgeCommand {
    /// Say what is wrong with the definitions of a folder, or list its programs. The exit code is 1 if one is wrong.
    Check(CheckArguments),
    /// The audit log.
    Audit(AuditArguments),
}

#[derive(Debug, clap::Args)]
struct AuditArguments {
    #[command(subcommand)]
    command: AuditCommand,
}

#[derive(Debug, Subcommand)]
enum AuditCommand {
    /// Say whether an audit log is whole, or which of its lines was changed, removed or moved. The exit code is 1 then.
    Verify(VerifyArguments),
}

impl BridgeArguments {
    /// Carries out a subcommand and prints what it says, or gives `serve` what to serve.
    pub fn run(self, serve: impl FnOnce(LogFormat, ServeArguments) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let said = match (self.command, self.serve) {
            (Some(BridgeCommand::Check(arguments)), _) => check(arguments)?,
            (Some(BridgeCommand::Audit(AuditArguments { command: AuditCommand::Verify(arguments) })), _) => verify(&arguments)?,
            (None, Some(arguments)) => return serve(self.log_format, arguments),
            (None, None) => anyhow::bail!("--definitions is missing: the folder of the definitions"),
        };
        print!("{said}");
        Ok(())
    }
}
