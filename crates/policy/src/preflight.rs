//! Whether an agent may get work, from what its pod reports and what its pool requires.
//!
//! It does not decide whether an agent is kept. An agent that fails stays, tries again, and keeps its place in the
//! pool.

/// Guarantees that depend on the kernel of a node. A pool requires them by `sandbox.isolation`, and then the pod itself starts no program
/// without them. So a pool that does not set `requireSandbox` accepts what its pod reports. A pool that sets it requires all.
pub const NODE_GUARANTEES: [&str; 5] = ["Landlock", "TcpPorts", "Signals", "AbstractSockets", "AgentStrict"];

/// The result of an agent's preflight command, as the agent reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// The agent reported no result: its pool has no command, or the command has not begun. The pod asks for no work
    /// before its command has passed.
    NotReported,
    /// It has not ended yet.
    Pending,
    /// It succeeded.
    Passed,
    /// It failed, with this message.
    Failed(String),
}

/// What is known of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts<'a> {
    /// The result of its command.
    pub command: Command,
    /// Whether its pool requires the sandbox. `None`: the pool does not say.
    pub require_sandbox: Option<bool>,
    /// Guarantees that its pod reports as missing. `None`: it has not reported.
    pub missing: Option<&'a [String]>,
}

/// Whether an agent may get work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may get work.
    Passed,
    /// Not known yet. It gets no work until then.
    Pending,
    /// It gets no work, for this reason.
    Failed(String),
}

/// Decides. A known failure takes precedence over a result that is not known yet.
pub fn judge(facts: &Facts) -> Verdict {
    let Facts { command, require_sandbox, missing } = facts;
    let sandbox = sandbox(*require_sandbox, *missing);
    match (command, sandbox) {
        (Command::Failed(words), Verdict::Failed(also)) => Verdict::Failed(format!("{words}; {also}")),
        (Command::Failed(words), Verdict::Passed | Verdict::Pending) => Verdict::Failed(words.clone()),
        (_, failed @ Verdict::Failed(_)) => failed,
        (Command::Pending, Verdict::Passed | Verdict::Pending) | (_, Verdict::Pending) => Verdict::Pending,
        (Command::NotReported | Command::Passed, Verdict::Passed) => Verdict::Passed,
    }
}

fn sandbox(required: Option<bool>, missing: Option<&[String]>) -> Verdict {
    let strict = match required {
        Some(false) => return Verdict::Passed,
        Some(true) => true,
        None => false,
    };
    let Some(missing) = missing else {
        // A pod that must have all guarantees must report them first.
        return if strict { Verdict::Pending } else { Verdict::Passed };
    };
    let lacking: Vec<&str> = missing.iter().map(String::as_str).filter(|name| strict || !NODE_GUARANTEES.contains(name)).collect();
    if lacking.is_empty() {
        return Verdict::Passed;
    }
    Verdict::Failed(format!("its sandbox lacks {}, which its AgentPool requires (spec.preflight.requireSandbox)", lacking.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }
    fn verdict(command: Command, require_sandbox: Option<bool>, missing: Option<&[&str]>) -> Verdict {
        let missing = missing.map(names);
        judge(&Facts { command, require_sandbox, missing: missing.as_deref() })
    }
    fn failed(words: &str) -> Verdict {
        Verdict::Failed(words.to_owned())
    }

    #[test]
    fn the_command_decides_where_no_sandbox_is_required() {
        for require in [None, Some(false)] {
            assert_eq!(verdict(Command::NotReported, require, None), Verdict::Passed, "nothing was asked for");
            assert_eq!(verdict(Command::Pending, require, None), Verdict::Pending);
            assert_eq!(verdict(Command::Passed, require, None), Verdict::Passed);
            assert_eq!(verdict(Command::Failed("no login".into()), require, None), failed("no login"));
        }
    }

    #[test]
    fn a_required_sandbox_lacks_nothing() {
        let lacks = "its sandbox lacks Landlock, Seccomp, which its AgentPool requires (spec.preflight.requireSandbox)";
        let of = |require, missing: Option<&[&str]>| verdict(Command::Passed, require, missing);
        assert_eq!(of(Some(true), Some(&["Landlock", "Seccomp"])), failed(lacks));
        assert_eq!(of(Some(true), Some(&[])), Verdict::Passed);
        assert_eq!(of(Some(true), None), Verdict::Pending, "it has to say so");
        assert_eq!(of(Some(false), Some(&["Landlock", "Seccomp"])), Verdict::Passed);
        assert_eq!(of(None, Some(&NODE_GUARANTEES)), Verdict::Passed, "what depends on the node is required by nobody who did not say so");
        assert_eq!(
            of(None, Some(&["Landlock", "Seccomp"])),
            failed("its sandbox lacks Seccomp, which its AgentPool requires (spec.preflight.requireSandbox)")
        );
    }

    #[test]
    fn whatever_fails_is_told_and_no_failure_is_hidden_by_what_is_not_known() {
        let both = verdict(Command::Failed("no login".into()), Some(true), Some(&["Landlock"]));
        assert_eq!(both, failed("no login; its sandbox lacks Landlock, which its AgentPool requires (spec.preflight.requireSandbox)"));
        let commands = [Command::NotReported, Command::Pending, Command::Passed, Command::Failed("x".into())];
        for command in commands {
            for require in [None, Some(false), Some(true)] {
                for missing in [None, Some(&[] as &[&str]), Some(&["Landlock"]), Some(&["Seccomp"])] {
                    let verdict = verdict(command.clone(), require, missing);
                    let lacks = missing.is_some_and(|all| all.iter().any(|one| require == Some(true) || !NODE_GUARANTEES.contains(one)));
                    let fails = matches!(command, Command::Failed(_)) || (lacks && require != Some(false));
                    assert_eq!(matches!(verdict, Verdict::Failed(_)), fails, "{command:?} {require:?} {missing:?}");
                    let unknown = command == Command::Pending || (require == Some(true) && missing.is_none());
                    assert_eq!(verdict == Verdict::Pending, unknown && !fails, "{command:?} {require:?} {missing:?}");
                }
            }
        }
    }
}
