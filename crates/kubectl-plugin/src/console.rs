//! Standard output, standard error, and questions. The only place of the plugin that touches them; it must not decide.

use std::io::{self, IsTerminal as _, Write as _};

use super::error::Error;

/// What a command has to say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// For standard output: what was asked for.
    pub out: String,
    /// For standard error: notes and failures.
    pub err: String,
    /// The program ends with 1.
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

/// Where a command speaks and asks.
pub trait Console {
    /// Shows what a command has to say.
    fn show(&mut self, output: Output);
    /// Whether nobody reads standard output any more (`| head`): what goes on for ever may then end.
    fn unheard(&self) -> bool;
    /// Asks a question whose answer is yes or no; an error where nobody can answer.
    fn confirm(&mut self, question: &str) -> Result<bool, Error>;
}

/// The real one.
#[derive(Debug, Default)]
pub struct Terminal {
    failed: bool,
    unheard: bool,
}

/// Whether standard input and standard output are a terminal: somebody sits there.
pub fn interactive() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// Ends when the user interrupts (Ctrl-C). From then on an interrupt does not end the program by itself.
pub async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        // It cannot be heard: then it ends the program, as it always does.
        std::future::pending::<()>().await;
    }
}

impl Terminal {
    /// Whether anything shown was a failure.
    pub fn failed(&self) -> bool {
        self.failed
    }
}

impl Console for Terminal {
    fn show(&mut self, output: Output) {
        let Output { out, err, failed } = output;
        self.failed |= failed;
        // Nobody reads on: nothing to say, and nothing to say it to.
        self.unheard |= io::stdout().write_all(out.as_bytes()).and_then(|()| io::stdout().flush()).is_err();
        let _ = io::stderr().write_all(err.as_bytes());
    }

    fn unheard(&self) -> bool {
        self.unheard
    }

    fn confirm(&mut self, question: &str) -> Result<bool, Error> {
        if !io::stdin().is_terminal() {
            return Err(Error::Usage(
                "standard input is no terminal, so nobody can be asked: add --yes to go on without a question; nothing was done".into(),
            ));
        }
        let _ = write!(io::stderr(), "{question} [y/N] ").and_then(|()| io::stderr().flush());
        let mut answer = String::new();
        io::stdin().read_line(&mut answer).map_err(|error| Error::Usage(format!("cannot read the answer: {error}; nothing was done")))?;
        Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
    }
}
