//! Standard output, standard error, and questions. The only place of the plugin that touches them; it must not decide.

use std::io::{self, IsTerminal as _, Write as _};

use super::error::Error;

/// The output of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// For standard output: the result.
    pub out: String,
    /// For standard error: notes and errors.
    pub err: String,
    /// Whether the program exits with 1.
    pub failed: bool,
}

impl Output {
    /// Text for standard output.
    pub fn of(out: String) -> Self {
        Self { out, ..Self::default() }
    }

    /// Adds a line for standard output.
    pub fn line(&mut self, text: impl AsRef<str>) {
        self.out.push_str(text.as_ref());
        self.out.push('\n');
    }

    /// Adds a line for standard error.
    pub fn note(&mut self, text: impl AsRef<str>) {
        self.err.push_str(text.as_ref());
        self.err.push('\n');
    }

    /// Adds a failure: a line for standard error, and exit code 1.
    pub fn failure(&mut self, text: impl AsRef<str>) {
        self.note(format!("error: {}", text.as_ref()));
        self.failed = true;
    }
}

/// Prints output and asks the user.
pub trait Console {
    /// Prints the output of a command.
    fn show(&mut self, output: Output);
    /// Whether standard output is closed (`| head`). An endless command then ends.
    fn is_output_closed(&self) -> bool;
    /// Asks a yes-or-no question. It is an error if standard input is not a terminal.
    fn confirm(&mut self, question: &str) -> Result<bool, Error>;
}

/// The console of the process.
#[derive(Debug, Default)]
pub struct Terminal {
    failed: bool,
    output_closed: bool,
}

/// Whether standard input and standard output are a terminal.
pub fn interactive() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// Completes when the user interrupts (Ctrl-C). After the first call an interrupt does not end the program any more.
pub async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        // The signal cannot be caught, so it still ends the program.
        std::future::pending::<()>().await;
    }
}

impl Terminal {
    /// Whether any output was a failure.
    pub fn failed(&self) -> bool {
        self.failed
    }
}

impl Console for Terminal {
    fn show(&mut self, output: Output) {
        let Output { out, err, failed } = output;
        self.failed |= failed;
        // An error means that the reader has closed standard output.
        self.output_closed |= io::stdout().write_all(out.as_bytes()).and_then(|()| io::stdout().flush()).is_err();
        let _ = io::stderr().write_all(err.as_bytes());
    }

    fn is_output_closed(&self) -> bool {
        self.output_closed
    }

    fn confirm(&mut self, question: &str) -> Result<bool, Error> {
        if !io::stdin().is_terminal() {
            return Err(Error::Usage(
                "standard input is not a terminal, so the command cannot ask; nothing was changed. Add --yes to skip the question".into(),
            ));
        }
        let _ = write!(io::stderr(), "{question} [y/N] ").and_then(|()| io::stderr().flush());
        let mut answer = String::new();
        io::stdin()
            .read_line(&mut answer)
            .map_err(|error| Error::Usage(format!("cannot read the answer: {error}; nothing was changed")))?;
        Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
    }
}
