//! `kubectl spillway`: the kubectl plugin. Parses arguments and calls the library.

use std::process::ExitCode;

use clap::Parser as _;
use kubectl_spillway::{Arguments, Terminal, run};

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version are not errors. A wrong command line exits with 1, as with kubectl.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        }
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut terminal = Terminal::default();
    match runtime.block_on(run(arguments, &mut terminal)) {
        Ok(()) if !terminal.failed() => ExitCode::SUCCESS,
        Ok(()) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
