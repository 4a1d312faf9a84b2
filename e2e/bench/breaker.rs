//! Breakers: how many operations a second a circuit can admit and complete, and the time that `spillway exec` adds to a
//! command. Neither needs a cluster. The benchmark plays the sidecar's part and answers each question at once.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use spillway::policy::breaker::{Answer, Circuit, Guard, Moment, Outcome, Settings, admission};

use crate::report::{Report, Row, float, folder, milliseconds};
use crate::size::Size;

/// Length of one measurement.
const TIME: Duration = Duration::from_secs(1);
const ROUNDS: usize = 3;
/// Commands of each kind.
const COMMANDS: usize = 300;
const GOAL: &str = "<= 5 ms";

/// Runs the benchmark.
pub fn run(size: Size) -> anyhow::Result<Vec<Report>> {
    Ok(vec![circuits(size)?, commands(size)?])
}

fn circuits(size: Size) -> anyhow::Result<Report> {
    let (time, rounds) = (size.time(TIME), size.runs(ROUNDS));
    let mut rows = Vec::new();
    for (what, guards) in [("one circuit", &[Guard::Models][..]), ("two at once, all or nothing", &[Guard::Session, Guard::Commands])] {
        let rates = (0..rounds).map(|_| rate(guards, time)).collect::<anyhow::Result<_>>()?;
        rows.push(Row::spread(what, rates, "/s"));
    }
    let method = format!(
        "one thread with policy's circuits and nothing around them: admit, then complete with a success, {:.2} s each, {rounds} times. Admit \
         and complete together count once. The circuits are closed. One failure in a hundred thousand never opens them",
        time.as_secs_f64()
    );
    Ok(Report::new("admit + complete a second, the pure circuit", method, rows))
}

fn rate(guards: &[Guard], time: Duration) -> anyhow::Result<f64> {
    let mut circuits: Vec<Circuit> = guards.iter().map(|guard| Circuit::new(Settings::of(*guard), 1)).collect();
    let began = Instant::now();
    let mut count = 0_usize;
    while began.elapsed() < time {
        for _ in 0..1000 {
            count += 1;
            // A millisecond apart, so that a failure leaves the window before the next one.
            let at = Moment { now: count as u64, random: 0.5 };
            let mut all: Vec<&mut Circuit> = circuits.iter_mut().collect();
            let Answer::Permit(permits) = admission::admit(&mut all, at, 1000) else {
                anyhow::bail!("a circuit opened: the benchmark has a fault")
            };
            let outcome = if count.is_multiple_of(100_000) { Outcome::Failure { retry_after: None } } else { Outcome::Success };
            for (circuit, permit) in circuits.iter_mut().zip(&permits) {
                circuit.complete(permit, outcome, at);
            }
        }
    }
    Ok(float(count) / began.elapsed().as_secs_f64())
}

fn commands(size: Size) -> anyhow::Result<Report> {
    let binary = std::env::var_os("SPILLWAY_BINARY").context("SPILLWAY_BINARY")?;
    let agent = Path::new(&binary).with_file_name("spillway-agent");
    ensure!(agent.is_file(), "{} is missing. `make build` builds it beside the operator's binary", agent.display());
    let rooms = folder("breaker")?;
    let socket = rooms.join("link.sock");
    let _ = std::fs::remove_file(&socket); // from an earlier run
    let listener = UnixListener::bind(&socket).with_context(|| socket.display().to_string())?;
    // The thread ends with this process.
    std::thread::spawn(move || listener.incoming().flatten().for_each(answer));
    let count = size.scaled_count(COMMANDS);
    let exec = |json: bool| {
        let mut command = Command::new(&agent);
        command.arg("--ask-socket").arg(&socket).arg("--ask-data").arg(&rooms).arg("exec");
        command.args(if json { &["--output", "json"][..] } else { &[] }).args(["--", "true"]);
        command
    };
    let (mut direct, mut plain, mut kept) = (Vec::new(), Vec::new(), Vec::new());
    // In turn, so that other load of the machine affects all of them.
    for _ in 0..count {
        direct.push(taken(&mut Command::new("true"))?);
        plain.push(taken(&mut exec(false))?);
        kept.push(taken(&mut exec(true))?);
    }
    let added = |of: &[f64]| of.iter().zip(&direct).map(|(one, direct)| one - direct).collect::<Vec<f64>>();
    let rows = vec![
        Row::spread("added by spillway exec", added(&plain), "ms").goal(GOAL),
        Row::spread("added by spillway exec --output json", added(&kept), "ms").goal(GOAL),
        Row::spread("spillway exec -- true", plain, "ms"),
        Row::spread("spillway exec --output json -- true", kept, "ms"),
        Row::spread("true", direct, "ms"),
    ];
    let method = format!(
        "`true`, {count} times directly and as often through `spillway exec`, in turn, from the start of the process to its end. The \
         benchmark plays the sidecar's part and answers at once"
    );
    Ok(Report::new("what spillway exec adds to a command", method, rows))
}

/// Runs the command; its time in milliseconds.
fn taken(command: &mut Command) -> anyhow::Result<f64> {
    let began = Instant::now();
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(milliseconds(began.elapsed()))
}

/// Answers one question of `spillway exec`: whether there are notices, whether a command may run, or that it ended.
fn answer(stream: UnixStream) {
    let mut line = String::new();
    let mut stream = BufReader::new(stream);
    if stream.read_line(&mut line).is_err() {
        return;
    }
    let answer = if line.contains("beginCommand") {
        r#"{"commandBegun": {"permit": {"owner": 1, "epoch": 0, "id": 1}, "timeoutMilliseconds": 60000}}"#
    } else if line.contains("notices") {
        r#"{"notices": []}"#
    } else {
        r#""done""#
    };
    let _ = writeln!(stream.get_mut(), "{answer}"); // the command may have ended
}
