//! Running a command as the supervisor of a pod does.

use std::process::{Command, Output, Stdio};
use std::thread;

use spillway_sandbox::Sandbox;

/// The output of the command in the sandbox. A thread refuses what the filter refuses.
pub fn output(sandbox: &Sandbox, mut command: Command) -> Output {
    let pending = sandbox.confine_and_report(&mut command).expect("a socket");
    let watcher = thread::spawn(move || {
        let listener = pending.listener().expect("no error").expect("this kernel has listeners");
        while let Some(call) = listener.next().expect("a call") {
            listener.refuse(&call).expect("refused");
        }
    });
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    drop(command);
    let output = child.wait_with_output().expect("it ends");
    watcher.join().expect("the watcher ends with the last process");
    output
}
