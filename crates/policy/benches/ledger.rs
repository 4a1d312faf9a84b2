//! How fast tokens are held and settled in process, on one thread: an agent's life, a Budget, its namespace, the cluster.
//! `cargo bench -p spillway-policy --bench ledger` prints numbers and their method as JSON. It is a benchmark, not a test.

use std::time::Instant;

use spillway_policy::budget::facts::{BudgetFacts, ClusterFacts, TokenLimit, Tokens};
use spillway_policy::budget::share::{Lifetime, agent};
use spillway_policy::budget::tree::build;
use spillway_policy::budget::{
    HoldAnswer, HoldRequest, Key, Ledger, Quality, Route, SessionId, SessionLog, Settle, SettleOutcome, Usage, Window,
};

const NOW: i64 = 1_790_000_000_000;
const PAIRS: u64 = 3_000_000;

fn limit(name: &str, window: Window) -> TokenLimit {
    TokenLimit { name: name.into(), window, tokens: 1_000_000_000_000_000, guaranteed: 0 }
}

/// A drafted record counts as written at once.
fn write(ledger: &mut Ledger, now: i64) -> u64 {
    let mut writes = 0;
    for key in ledger.due(now) {
        if let Some(draft) = ledger.draft(now, &key) {
            ledger.written(&draft);
            writes += 1;
        }
    }
    writes
}

struct Run {
    pairs_per_second: f64,
    nanoseconds: f64,
    writes: u64,
}

fn run(agents: usize, open: u64) -> Option<Run> {
    let tokens = |limits| Tokens { limits, ..Tokens::default() };
    let cluster = ClusterFacts {
        name: "all".into(),
        tokens: tokens(vec![limit("rate", Window::Minute)]),
        per_namespace: tokens(vec![limit("daily", Window::Day)]),
        namespaces: vec![("team".into(), 0)],
        ..ClusterFacts::default()
    };
    let two = tokens(vec![limit("hourly", Window::Hour), limit("monthly", Window::Month)]);
    let budget = BudgetFacts { namespace: "team".into(), name: "default".into(), tokens: two, ..BudgetFacts::default() };
    let mut ledger = Ledger::new(NOW);
    ledger.set_tree(&build(&[cluster], &[budget]).nodes);
    let life = Lifetime { tokens: 1_000_000_000_000_000, top_up: 0, max: 0, taken: 0 };
    let mut routes: Vec<Route> = Vec::new();
    for name in (0..agents).map(|index| format!("agent-{index}")) {
        ledger.put(agent(&name, &life));
        routes.push(Route::new(vec![Key::Agent(name)], Some(Key::budget("team", "default")), "worker"));
    }
    let (session, _) = ledger.begin(NOW, "gateway", &SessionLog { next_hold: 1, ..SessionLog::default() });
    let ask = HoldRequest { input: 12_000, output: 4000, min_output: 1000, choices: 1 };
    let mut writes = 0;
    let mut held = 0_u64;
    let mut hold = |ledger: &mut Ledger, writes: &mut u64, now: i64, id: u64, session: SessionId| -> Option<()> {
        let route = routes.get_mut(usize::try_from(id).ok()? % agents)?;
        loop {
            match ledger.hold(now, session, id, route, &ask) {
                HoldAnswer::Given(_) => return Some(()),
                HoldAnswer::Write(_) => *writes += write(ledger, now),
                HoldAnswer::Refused(_) | HoldAnswer::Closed | HoldAnswer::Unattached => return None,
            }
        }
    };
    while held < open {
        held += 1;
        hold(&mut ledger, &mut writes, NOW, held, session)?;
    }
    let usage = Usage { input: 500, cache_read: 10_000, cache_write: 500, output: 1200 };
    let before = writes;
    let began = Instant::now();
    for seq in 1..=PAIRS {
        // A thousand pairs in a millisecond, so that windows end and records become due as in operation.
        let now = NOW + i64::try_from(seq / 1000).ok()?;
        held += 1;
        hold(&mut ledger, &mut writes, now, held, session)?;
        let settled =
            ledger.settle(now, session, &Settle { seq, hold: seq, usage, quality: Quality::Exact, input: ask.input, output: ask.output });
        if settled != SettleOutcome::Counted {
            return None;
        }
    }
    let took = began.elapsed().as_secs_f64();
    Some(Run { pairs_per_second: PAIRS as f64 / took, nanoseconds: took * 1e9 / PAIRS as f64, writes: writes - before })
}

fn main() {
    let mut rows = Vec::new();
    for (agents, open) in [(1, 0), (100, 0), (100, 512), (1000, 512)] {
        let Some(Run { pairs_per_second, nanoseconds, writes }) = run(agents, open) else {
            eprintln!("a hold was refused: the benchmark is wrong");
            std::process::exit(1);
        };
        rows.push(format!(
            "{{\"agents\": {agents}, \"open\": {open}, \"pairs_per_second\": {pairs_per_second:.0}, \"nanoseconds_a_pair\": {nanoseconds:.0}, \"writes\": {writes}}}"
        ));
    }
    println!("{{\"title\": \"hold and settle, one thread\",");
    println!(
        " \"method\": \"{PAIRS} pairs at four places (agent, Budget with two limits, namespace, cluster), with a constant number of open calls; records are drafted on request and count as written at once\","
    );
    println!(" \"rows\": [{}]}}", rows.join(",\n          "));
}
