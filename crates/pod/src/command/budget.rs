//! `spillway budget`: what is left of the budgets over this agent, and requests for more.

use std::path::Path;

use clap::{Args, Subcommand};
use spillway_wire::budget::AskTokens;
use spillway_wire::link::{Answer, Ask};

use super::answer::show;
use super::ask;
use super::output::{print, unreachable_sidecar};

/// Arguments of `budget`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Arguments {
    /// Print all data of each limit as JSON
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    verb: Option<Verb>,
}

/// Requests for tokens.
#[derive(Debug, Subcommand)]
enum Verb {
    /// Ask people for more tokens. They see the request at this agent, and as an event. It raises no limit: a person must grant it
    Ask {
        /// Number of tokens on top of the limit: 50000, 50k or 2M
        #[arg(value_parser = tokens)]
        tokens: i64,
        /// Reason, for people; at most 256 characters
        #[arg(required = true, num_args = 1..)]
        reason: Vec<String>,
    },
    /// Withdraw the request
    Withdraw,
}

/// Prints the state of the limits, or makes a request.
pub fn run(socket: &Path, Arguments { json, verb }: Arguments) -> u8 {
    let question = match verb {
        None => Ask::Budget,
        Some(Verb::Ask { tokens, reason }) => Ask::AskTokens(AskTokens { tokens, reason: reason.join(" ") }),
        Some(Verb::Withdraw) => Ask::AskTokens(AskTokens { tokens: 0, reason: String::new() }),
    };
    match ask::ask(socket, &question) {
        Ok(Answer::Budget(left)) if json => {
            print(&serde_json::to_string(&left).unwrap_or_default()); // JSON can express each value of our types
            0
        }
        Ok(answer) => show(&answer, None),
        Err(error) => unreachable_sidecar(&error),
    }
}

/// Parses a number of tokens, such as `50k`.
fn tokens(text: &str) -> Result<i64, String> {
    let (digits, factor) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1_000),
        None => text.strip_suffix('M').map_or((text, 1), |digits| (digits, 1_000_000)),
    };
    let number = Some(digits).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit())).and_then(|digits| digits.parse().ok());
    let number = number.and_then(|number: i64| number.checked_mul(factor)).filter(|number| *number > 0);
    number.ok_or_else(|| "the value must be a number of tokens, such as 50000, 50k or 2M".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_written_as_people_write_them() {
        let cases = [("50000", Some(50_000)), ("50k", Some(50_000)), ("2M", Some(2_000_000)), ("1K", Some(1_000))];
        for (text, number) in cases {
            assert_eq!(tokens(text).ok(), number, "{text}");
        }
        for text in ["", "0", "k", "-5", "+5", "1.5M", "5kk", "5m", "9223372036854775807k", "all"] {
            assert!(tokens(text).is_err(), "{text}");
        }
    }
}
