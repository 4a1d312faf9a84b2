//! The command `spillway bridge`, with its subcommands.

use clap::Subcommand;
use spillway_bridge::check::{CheckArguments, check};

use super::audit_log::{VerifyArguments, verify};
use super::install::InstallArguments;
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
    /// Copy this program to a folder. The init container of a Toolset's pod does that.
    #[command(hide = true)]
    Install(InstallArguments),
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
            (Some(BridgeCommand::Install(arguments)), _) => return arguments.install(),
            (Some(BridgeCommand::Audit(AuditArguments { command: AuditCommand::Verify(arguments) })), _) => verify(&arguments)?,
            (None, Some(arguments)) => return serve(self.log_format, arguments),
            (None, None) => anyhow::bail!("--definitions is missing: the folder of the definitions; or --upstream"),
        };
        print!("{said}");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct CommandLine {
        #[command(flatten)]
        arguments: BridgeArguments,
    }

    fn parsed<'a>(words: impl Iterator<Item = &'a str>) -> Result<BridgeArguments, String> {
        CommandLine::try_parse_from(words).map(|line| line.arguments).map_err(|error| error.to_string())
    }

    #[test]
    fn the_shipped_services_start_a_bridge() {
        let unit = include_str!("../../config/bridge/spillway-bridge.service");
        let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("a command");
        // The name of the command is the second word.
        let of_unit = parsed(start.split(' ').skip(1)).expect("it is valid").serve.expect("what to serve");
        assert!(of_unit.definitions.is_some_and(|folder| folder.ends_with(".config/spillway/definitions")) && of_unit.audit_file.is_some());
        let plist = include_str!("../../config/bridge/dev.spillway.bridge.plist");
        let words = plist.split_once("<array>").and_then(|(_, rest)| rest.split_once("</array>")).expect("a command").0;
        let words = words.lines().filter_map(|line| line.trim().strip_prefix("<string>")?.strip_suffix("</string>"));
        assert_eq!(parsed(words.skip(1)).expect("it is valid").serve.map(|serve| serve.audit_file.is_some()), Some(true));
    }

    #[test]
    fn a_subcommand_needs_no_definitions_and_excludes_them() {
        for line in [
            "bridge check DIR",
            "bridge audit verify FILE --last HASH",
            "bridge install DIR",
            "bridge --definitions DIR --log-format json",
            "bridge --upstream FILE --credential a=b",
        ] {
            parsed(line.split(' ')).expect(line);
        }
        for line in [
            "bridge --definitions DIR check DIR",
            "bridge audit",
            "bridge --listen 127.0.0.1:1",
            "bridge --upstream FILE --definitions DIR",
            "bridge --upstream FILE --allow /bin/id",
        ] {
            parsed(line.split(' ')).expect_err(line);
        }
    }
}
