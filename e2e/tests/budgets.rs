//! Budgets are not exceeded: with hundreds of calls at once, and while gateways and governors are killed and stopped.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher::{self, Event};
use rustix::process::Signal;
use serde_json::json;
use spillway::api::{Agent, Budget};

use crate::support::caller::{Answer, Line};
use crate::support::gateways::{Gateways, Life};
use crate::support::kills::Dice;
use crate::support::models::{Counted, Scripted, spent, used_held_lost, wait_until_counts_agree};
use crate::support::restarted::Controllers;
use crate::support::standins::Standin;
use crate::support::{GENEROUS, TestNamespace, check_state, eventually};

/// Path below the entry `gpt` of a pool.
const PATH: &str = "/v1/chat/completions";
/// How long a gateway waits for a governor before it sends a call away.
const GOVERNOR_AWAY: Duration = Duration::from_secs(30);

/// A call that is made many times: the tokens that are held for it, and its final cost.
struct Call {
    body: String,
    estimate: i64,
    costs: i64,
    /// Tokens that are held after its extension.
    most: i64,
}

impl Call {
    /// A call that may write `output` tokens, and costs this percentage of its hold. `modes` are the provider's.
    fn new(modes: &str, stream: bool, output: i64, percent: i64) -> Self {
        let written = output * percent / 100;
        let body = |input: i64| {
            let model = format!("scripted-large--input-{input:05}--output-{written:03}{modes}");
            json!({"model": model, "max_tokens": output, "stream": stream, "messages": [{"role": "user", "content": "say something"}]})
                .to_string()
        };
        // The gateway's estimate. The number in the body always has the same number of digits.
        let route = spillway_dialect::route("POST", PATH, None).expect("a way");
        let empty = body(0);
        let parsed = spillway_dialect::parse(&route, Some("application/json"), None, empty.as_bytes());
        let bytes = parsed.unwrap_or_else(|fault| panic!("{}", fault.message)).facts().bytes;
        let input = bytes * percent / 100;
        let (estimate, costs) = (bytes + output, input + written);
        Self { body: body(input), estimate, costs, most: estimate }
    }

    /// The same, with words so long that they seem to be more than the output limit. Its hold is extended while it
    /// runs, and the provider's final usage is too small to be believed.
    fn extended(modes: &str, output: i64, percent: i64) -> Self {
        let long = 128;
        let call = Self::new(&format!("--long-{long}{modes}"), true, output, percent);
        // A gateway counts at least one token for this number of bytes. An extension asks for half more plus 256.
        let seems = output * percent / 100 * (long + 8) / 32;
        assert!(seems > output, "its hold would not be extended");
        Self { most: call.estimate - output + seems + seems / 2 + 256, ..call }
    }
}

/// Sets the namespace's budget to this number of tokens, without a reset and without pauses. It is in effect when this
/// returns.
async fn budget(room: &TestNamespace, tokens: i64) {
    let object = json!({
        "apiVersion": "spillway.dev/v1alpha1", "kind": "Budget", "metadata": {"name": "default"},
        "spec": {
            // Bytes: usage never exceeds its hold. Reject: each call holds the tokens that it asks for.
            "tokens": {"limits": [{"name": "all", "tokens": tokens, "window": "Lifetime"}], "estimate": "Bytes", "onInsufficient": "Reject"},
            "requests": {"maxInFlight": 10_000},
            "thresholds": [{"percent": 100, "action": "Log"}],
        },
    });
    room.api::<Budget>().patch("default", &PatchParams::apply("e2e").force(), &Patch::Apply(object)).await.expect("the Budget is accepted");
    eventually(&format!("{tokens} tokens are counted"), async || {
        let budget = room.api::<Budget>().get("default").await.map_err(|error| error.to_string())?;
        let tightest = budget.status.and_then(|status| status.tightest);
        check_state(tightest.as_ref().and_then(|tightest| tightest.limit) == Some(tokens), || format!("{tightest:?}"))
    })
    .await;
}

/// Makes `count` agents that may call the provider, without a limit for their lives.
async fn agents(room: &TestNamespace, provider: &Scripted, count: usize) -> Vec<Standin> {
    let models = [provider.entry("gpt", "OpenAIChat")];
    room.standins("callers", count, json!({"models": models, "bulkhead": {"lifetimeTokens": 1_000_000_000_i64}})).await
}

fn text(answer: &Answer) -> String {
    String::from_utf8_lossy(&answer.body).into_owned()
}

/// The time that every client waits after this refusal.
fn retry_after(answer: &Answer) -> Duration {
    let header = answer.headers.get("retry-after").and_then(|value| value.to_str().ok()?.parse().ok());
    Duration::from_secs(header.unwrap_or_else(|| panic!("it has no valid retry-after: {answer:?}")))
}

/// Checks a final refusal: no client retries it, and its message names the Budget.
fn assert_final_refusal(answer: &Answer) {
    assert_eq!(answer.headers.get("x-should-retry").map(|value| value.as_bytes()), Some(&b"false"[..]), "{answer:?}");
    assert!(text(answer).contains("Budget/default"), "{answer:?}");
}

/// Whether it is the refusal while others hold the rest, or while a new leader does not know all holds of gateways yet.
fn is_temporary_refusal(answer: &Answer) -> bool {
    let said = text(answer);
    let held = ["Calls in flight hold the rest", "not all gateways have reported their holds", "no tokens for the call a moment ago"];
    held.iter().any(|words| said.contains(words))
}

/// The most calls of one agent that a gateway accepts at once.
const OF_ONE_AGENT: usize = 16;
const AT_ONCE: usize = 512;

/// Calls, and retries after each refusal that allows it; the number of retries and the final answer.
async fn call_until_final(mut line: Line, body: String, told_to_wait: &AtomicUsize) -> (usize, Answer) {
    for times in 0.. {
        let answer = line.call_for(GENEROUS, "POST", &format!("/models/gpt{PATH}"), body.clone()).await.expect("an answer");
        match answer.status {
            429 => assert!(is_temporary_refusal(&answer), "{answer:?}"),
            503 => eprintln!("a call is sent away: {}", text(&answer)),
            _ => return (times, answer),
        }
        told_to_wait.fetch_add(usize::from(times == 0), Ordering::SeqCst);
        let after = retry_after(&answer);
        assert!((1..=5).contains(&after.as_secs()), "{answer:?}");
        tokio::time::sleep(after).await;
    }
    unreachable!("it comes back for ever")
}

/// Makes all calls at once, while `meanwhile` runs; the final answer of each.
async fn flood(agents: &[Standin], call: &Call, told_to_wait: &AtomicUsize, meanwhile: impl Future<Output = ()>) -> Vec<(usize, Answer)> {
    let each = agents.iter().flat_map(|agent| std::iter::repeat_n(&agent.caller, OF_ONE_AGENT));
    // All handshakes at once would take longer than a gateway's limit, and it closes idle new connections. So each
    // connection first makes a call.
    let lines = futures::stream::iter(each).map(async |caller| {
        let mut line = caller.connect().await.expect("the gateway is there");
        assert_eq!(line.call("HEAD", "/models/gpt/api/hello", "").await.map(|answer| answer.status), Ok(200));
        line
    });
    let lines: Vec<Line> = lines.buffer_unordered(16).collect().await;
    assert_eq!(lines.len(), AT_ONCE);
    let calls = lines.into_iter().map(|line| call_until_final(line, call.body.clone(), told_to_wait));
    futures::join!(futures::future::join_all(calls), meanwhile).0
}

/// Number of answered calls. All others must have a final refusal.
fn count_answered(all: &[(usize, Answer)]) -> usize {
    let (passed, refused): (Vec<_>, Vec<_>) = all.iter().partition(|(_, answer)| answer.status == 200);
    for (_, answer) in refused {
        assert_eq!(answer.status, 402, "{answer:?}");
        assert_final_refusal(answer);
    }
    passed.len()
}

#[tokio::test]
async fn of_512_calls_at_once_no_more_pass_than_the_budget_bears() {
    let room = TestNamespace::open("flood").await;
    let controllers = Controllers::start(&room, 1);
    controllers.run_during(&room, under_a_flood(&room)).await;
    room.close().await;
}

async fn under_a_flood(room: &TestNamespace) {
    let provider = Scripted::serve(room).await;
    // Calls that cost all of their hold: ten fit.
    let call = Call::new("--wait", false, 100, 100);
    assert_eq!(call.costs, call.estimate);
    let room_for_ten = 10 * call.estimate;
    budget(room, room_for_ten).await;
    let agents = agents(room, &provider, AT_ONCE / OF_ONE_AGENT).await;
    let told_to_wait = AtomicUsize::new(0);
    let ten_are_in_flight = async {
        eventually("the provider has ten calls, and all others were refused for now", async || {
            let (there, waiting) = (provider.calls(), told_to_wait.load(Ordering::SeqCst));
            check_state((there, waiting) == (10, AT_ONCE - 10), || format!("{there} are there, {waiting} wait"))
        })
        .await;
        provider.release_waiting();
    };
    let all = flood(&agents, &call, &told_to_wait, ten_are_in_flight).await;
    assert_eq!((count_answered(&all), provider.calls()), (10, 10));
    assert!(all.iter().all(|(times, answer)| answer.status == 200 || *times > 0), "no call is refused finally without a retry");
    wait_until_counts_agree(room, &provider).await;
    assert_eq!(spent(room).await, (room_for_ten, 0, 0));

    // Calls that cost half of their hold: each end frees tokens for others, until the rest is too small.
    let call = Call::new("--wait", false, 100, 50);
    let more = 10 * call.estimate;
    budget(room, room_for_ten + more).await;
    let all = flood(&agents, &call, &AtomicUsize::new(0), async {}).await;
    let bears = 1 + (more - call.estimate) / call.costs;
    assert!(bears > 10, "{bears}");
    assert_eq!((count_answered(&all), provider.calls()), (usize::try_from(bears).expect("a number"), 10 + bears));
    wait_until_counts_agree(room, &provider).await;
    let (used, ..) = spent(room).await;
    assert!(used <= room_for_ten + more && used + call.estimate > room_for_ten + more, "{used}");
}

/// A fault of a gateway or a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    GatewayKilled,
    GatewayStopped,
    LeaderKilled,
    /// It is stopped until another one leads. Then it continues with its old memory.
    LeaderStopped,
}

const FAULTS: [Fault; 7] = [
    Fault::GatewayKilled,
    Fault::GatewayKilled,
    Fault::GatewayKilled,
    Fault::GatewayStopped,
    Fault::GatewayStopped,
    Fault::LeaderKilled,
    Fault::LeaderStopped,
];
/// The faults happen before this number of complete answers.
const BEFORE: usize = 100;
const FLEET: usize = 50;
/// About as long as an answer takes, in milliseconds.
const ANSWER: usize = 3_500;

/// The outcome of one call that may have cost tokens.
struct MadeCall {
    /// The header `x-caller`.
    name: String,
    agent: String,
    gateway: usize,
    /// When it began.
    gateway_life: Life,
    /// Whether all of its answer arrived. Otherwise its client left, or its gateway was killed.
    whole: bool,
    /// The most that it may be charged if the provider's usage is not received or not believed.
    most: i64,
    /// Whether the provider's usage is believed.
    usage_believed: bool,
}

/// The answer to a call.
#[derive(Debug)]
enum Outcome {
    Whole,
    Left,
    /// Its gateway was killed meanwhile, or was stopped.
    Lost,
    ComeBack(Duration),
    Spent,
}

struct Scene<'a> {
    room: &'a TestNamespace,
    provider: &'a Scripted,
    gateways: Gateways<'a>,
    /// The two kinds of calls, in turn by agent: one whose usage is believed, and one whose hold is extended.
    calls: [Call; 2],
    limit: i64,
    made: Mutex<Vec<MadeCall>>,
    /// Number of complete answers.
    whole: AtomicUsize,
    controllers: &'a Controllers,
}

impl Scene<'_> {
    /// One agent's program: it makes calls until the budget is spent, and drops about half of them before their end.
    async fn works(&self, agent: &Standin, call: &Call, mut dice: Dice) {
        for number in 0.. {
            let leaves = (dice.below(2) == 0).then(|| Duration::from_millis(u64::try_from(dice.below(ANSWER)).expect("a number")));
            for again in 0.. {
                let name = format!("{}.{number}.{again}", agent.name);
                match self.calls(agent, call, &name, dice.below(self.gateways.count()), leaves).await {
                    Outcome::Whole | Outcome::Left => break,
                    Outcome::Lost => tokio::time::sleep(Duration::from_millis(100)).await, // as clients do
                    Outcome::ComeBack(after) => tokio::time::sleep(after).await,
                    Outcome::Spent => return,
                }
            }
        }
    }

    /// One call. It fails only if its own gateway is killed.
    async fn calls(&self, agent: &Standin, call: &Call, name: &str, gateway: usize, leaves: Option<Duration>) -> Outcome {
        let life = self.gateways.life(gateway);
        let caller = agent.caller.at(self.gateways.address(gateway)).with_header("x-caller", name);
        let began = Instant::now();
        let calling = async { caller.connect().await?.call_for(GENEROUS, "POST", &format!("/models/gpt{PATH}"), call.body.clone()).await };
        let outcome = match tokio::time::timeout(leaves.unwrap_or(GENEROUS), calling).await {
            Err(_) => Outcome::Left,
            Ok(Ok(answer)) => self.answered(&answer, began.elapsed()),
            Ok(Err(error)) => {
                let now = self.gateways.life(gateway);
                let killed = now.number != life.number || !life.serves;
                // A stopped gateway may have given up handshakes that had begun.
                let stood_still = now.signals != life.signals;
                assert!(killed || stood_still, "{name} failed and its gateway lives ({life:?}, {now:?}): {error}");
                Outcome::Lost
            }
        };
        let whole = match outcome {
            Outcome::Whole => true,
            Outcome::Left | Outcome::Lost => false,
            Outcome::ComeBack(_) | Outcome::Spent => return outcome,
        };
        self.whole.fetch_add(usize::from(whole), Ordering::SeqCst);
        let (most, believed) = (call.most, call.most == call.estimate);
        let made = MadeCall {
            name: name.to_owned(),
            agent: agent.name.clone(),
            gateway,
            gateway_life: life,
            whole,
            most,
            usage_believed: believed,
        };
        self.made.lock().expect("not poisoned").push(made);
        outcome
    }

    fn answered(&self, answer: &Answer, after: Duration) -> Outcome {
        let said = text(answer);
        match answer.status {
            200 => {
                assert!(said.trim_end().ends_with("[DONE]"), "an answer that looks whole is: {said}");
                Outcome::Whole
            }
            429 => {
                assert!(is_temporary_refusal(answer), "{answer:?}");
                Outcome::ComeBack(retry_after(answer))
            }
            // The gateway waited for the governor for the full time. It does not wait for a busy API server.
            503 => {
                let machine = ["the API server did not answer", "cannot be read now"].iter().any(|words| said.contains(words));
                assert!(machine || after >= GOVERNOR_AWAY, "sent away after {after:?}: {answer:?}");
                eprintln!("a call is sent away after {after:?}: {said}");
                Outcome::ComeBack(retry_after(answer))
            }
            402 => {
                assert_final_refusal(answer);
                Outcome::Spent
            }
            _ => panic!("no call fails because of a fail-over: {answer:?}"),
        }
    }

    /// Makes each fault once. Order and times follow from the seed.
    async fn fails(&self, mut dice: Dice) {
        let faults = dice.shuffled(FAULTS.to_vec());
        for (moment, fault) in dice.moments(FAULTS.len(), BEFORE).into_iter().zip(faults) {
            eventually(&format!("{moment} calls are answered, before {fault:?}"), async || {
                let whole = self.whole.load(Ordering::SeqCst);
                check_state(whole >= moment, || format!("{whole}"))
            })
            .await;
            let which = dice.below(self.gateways.count());
            eprintln!("{fault:?} ({which}) when {} answers came", self.whole.load(Ordering::SeqCst));
            match fault {
                Fault::GatewayKilled => {
                    self.gateways.kill(which);
                    self.gateways.wait_until_serving(which).await;
                }
                Fault::GatewayStopped => {
                    self.gateways.signal(which, Signal::STOP);
                    let long = Duration::from_millis(u64::try_from(500 + dice.below(4_500)).expect("a number"));
                    tokio::time::sleep(long).await;
                    self.gateways.signal(which, Signal::CONT);
                }
                Fault::LeaderKilled => {
                    let leader = self.controllers.leader(self.room, "").await;
                    self.controllers.with(&leader, |leader| leader.signal(Signal::KILL));
                }
                Fault::LeaderStopped => {
                    let leader = self.controllers.leader(self.room, "").await;
                    self.controllers.with(&leader, |leader| leader.signal(Signal::STOP));
                    self.controllers.leader(self.room, &leader).await;
                    self.controllers.with(&leader, |leader| leader.signal(Signal::CONT));
                    eventually("the old leader ends", async || {
                        check_state(self.controllers.with(&leader, |_| ()).is_none(), || format!("{leader} runs"))
                    })
                    .await;
                }
            }
        }
    }

    /// The least and the highest cost of each agent's calls.
    fn bounds(&self) -> BTreeMap<String, (i64, i64)> {
        let counted = self.provider.callers();
        let mut bounds = BTreeMap::new();
        for MadeCall { name, agent, gateway, gateway_life: life, whole, most: call_most, usage_believed: believed } in
            self.made.lock().expect("not poisoned").iter()
        {
            let killed = self.gateways.life(*gateway).number != life.number;
            let (least, most) = match counted.get(name) {
                // A call whose client left is charged the provider's usage, if the gateway reads the answer to its end.
                Some(Counted { finished: 1, reported_tokens: told, .. }) if *believed && (*whole || !killed) => (*told, *told),
                Some(Counted { reported_tokens: told, .. }) => (*told, *call_most),
                None if killed => (0, *call_most),
                None => (0, 0),
            };
            let (all_least, all_most) = bounds.entry(agent.clone()).or_insert((0, 0));
            (*all_least, *all_most) = (*all_least + least, *all_most + most);
        }
        bounds
    }

    /// Waits until no tokens are held, each agent's account has the cost of its calls, and the budget has their sum.
    async fn is_quiet(&self) {
        eventually("nothing is held, and each account is right", async || {
            let (bounds, told) = (self.bounds(), self.provider.reported_tokens());
            let mut sum = 0;
            for agent in self.room.list::<Agent>().await {
                let tokens = agent.status.as_ref().and_then(|status| status.tokens.clone()).unwrap_or_default();
                let (used, held, lost) = (tokens.used.unwrap_or(0), tokens.held.unwrap_or(0), tokens.lost.unwrap_or(0));
                let (least, most) = bounds.get(&agent.name_any()).copied().unwrap_or((0, 0));
                let right = (least..=most).contains(&used) && (held, lost) == (0, 0);
                check_state(right, || format!("{}: used {used}, held {held}, lost {lost}; it cost {least} to {most}", agent.name_any()))?;
                sum += used;
            }
            let spent = spent(self.room).await;
            check_state(spent == (sum, 0, 0) && sum >= told, || format!("used, held, lost: {spent:?}; the agents: {sum}; told: {told}"))
        })
        .await;
    }

    /// Checks at each write of the budget that spent and possible tokens stay within its limit.
    async fn watch_limit(&self) {
        let mut events = watcher::watcher(self.room.api::<Budget>(), watcher::Config::default()).boxed();
        while let Some(event) = events.next().await {
            let (Event::Apply(budget) | Event::InitApply(budget)) = event.expect("the test's own watch holds") else { continue };
            let (used, held, lost) = used_held_lost(&budget);
            assert!(used + held + lost <= self.limit, "used {used}, held {held}, lost {lost} of {}", self.limit);
            let windows = budget.status.iter().flat_map(|status| status.windows.iter().flatten());
            let high = windows.filter_map(|window| window.high_water).max().unwrap_or(0);
            assert!(high <= self.limit, "calls are given tokens below {high} of {}", self.limit);
        }
    }
}

#[tokio::test]
async fn a_budget_holds_while_gateways_and_leaders_are_killed_and_stopped() {
    let room = TestNamespace::open("budgetfaults").await;
    let mut dice = Dice::seeded();
    let controllers = Controllers::start(&room, 3);
    controllers.run_during(&room, under_faults(&room, &controllers, &mut dice)).await;
    room.close().await;
}

async fn under_faults(room: &TestNamespace, controllers: &Controllers, dice: &mut Dice) {
    let provider = Scripted::serve(room).await;
    // In the end half of the held tokens are used, with and without a client that leaves.
    let calls = [Call::new("--events-8--pace-300", true, 64, 50), Call::extended("--events-8--pace-300", 64, 50)];
    let estimate = calls.iter().map(|call| call.estimate).max().expect("two calls");
    // Calls whose gateway is killed are charged in full, for each agent up to twice. The limit is reached soon after
    // the last fault.
    let limit = i64::try_from(BEFORE * 3).expect("a number") * estimate;
    budget(room, limit).await;
    let agents = agents(room, &provider, FLEET).await;
    let gateways = Gateways::start(room, 2).await;
    let (made, whole) = (Mutex::default(), AtomicUsize::new(0));
    let scene = Scene { room, provider: &provider, gateways, calls, limit, made, whole, controllers };
    let everything = async {
        let calls = scene.calls.iter().cycle();
        let works = agents.iter().zip(calls).map(|(agent, call)| scene.works(agent, call, dice.fork())).collect::<Vec<_>>();
        futures::join!(futures::future::join_all(works), scene.fails(dice.fork()));
        scene.is_quiet().await;
    };
    tokio::select! {
        () = everything => {}
        () = scene.watch_limit() => panic!("the watch ended"),
    }
    let (used, ..) = spent(room).await;
    assert!(used <= limit && provider.reported_tokens() <= limit, "{used} of {limit}; told: {}", provider.reported_tokens());
    assert!(used + estimate > limit, "no call was refused finally while tokens were left: {used} of {limit}");
    let made = scene.made.lock().expect("not poisoned").iter().map(|made| made.whole).collect::<Vec<_>>();
    eprintln!("{} calls, {} of them whole; {used} tokens of {limit}", made.len(), made.iter().filter(|whole| **whole).count());
}
