//! An agent's pod on the real node: the memory of our two programs in it, and the time that they add to its start,
//! compared with the same pod without the sandbox, and with pods that lack more and more of its parts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ExecAction, Lifecycle, LifecycleHandler, Pod};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, LogParams, ObjectMeta, PostParams};
use serde_json::{Value, json};
use spillway::api::conditions::reasons;
use spillway::api::names::POOL_LABEL;
use spillway::api::{Agent, AgentPool};

use crate::audit;
use crate::bench_namespace::{BenchNamespace, Nodes, within};
use crate::processes::{self, Memory, PodProcesses};
use crate::report::{Report, Row, percentile};
use crate::size::Size;

/// A multiple of twice the number of kinds, so that each kind is as often at each place of a turn. The pods of a
/// measurement stay, and a node carries 110.
const RUNS: usize = 20;
/// Limits of processor time of the program's container. With the low one, which other benchmarks have as well, the
/// kernel holds back the start of a container itself. The whole pod has the sum of its containers' limits, so the bare
/// pod has the least. With the high one no kind is held back, so that it compares fairly.
const CPU_LIMITS: [&str; 2] = ["1", "100m"];
const LIMIT: Duration = Duration::from_secs(120);
/// Pause between two starts, for the kubelet to settle.
const REST: Duration = Duration::from_secs(2);
/// How long the pods are left alone before their memory is read.
const IDLE: Duration = Duration::from_secs(60);
/// The pool with the default sandbox.
const POOL: &str = "pool";
/// The pool without a sandbox.
const UNCONFINED: &str = "unconfined";
/// The program prints this line and then does nothing.
const LINE: &str = "the program has begun";
const PROGRAM: [&str; 3] = ["/bin/sh", "-c", "echo the program has begun; while :; do sleep 3600; done"];

/// The kinds of pods that are started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// An agent's pod as Spillway makes it, with the default sandbox.
    Spillway,
    /// The same without Landlock and without a filter of system calls.
    Unconfined,
    /// The same with another sidecar, which sleeps and has a postStart hook that does nothing. The program runs by
    /// itself.
    Hook,
    /// The same without the hook.
    Sidecar,
    /// The program alone, with the same volumes.
    Bare,
}

const KINDS: [Kind; 5] = [Kind::Spillway, Kind::Unconfined, Kind::Hook, Kind::Sidecar, Kind::Bare];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Spillway => "Spillway's pod",
            Self::Unconfined => "Spillway's pod without the sandbox",
            Self::Hook => "pod with a sidecar and a hook that do nothing",
            Self::Sidecar => "pod with a sidecar that does nothing",
            Self::Bare => "bare pod",
        }
    }
}

/// One start: its steps, each with milliseconds since the pod's creation. The last is the program's first line.
type Start = Vec<(&'static str, f64)>;

/// Steps of the two kinds of Spillway's pods.
const SIDECAR: &str = "the sidecar's first line";
const ANSWERED: &str = "the gateway answers the sidecar";
const MAY_START: &str = "registered, isolation in force: the program may start";
const FIRST_LINE: &str = "the program's first line";

/// Runs the benchmark.
pub async fn run(size: Size) -> anyhow::Result<Vec<Report>> {
    let mut reports = Vec::new();
    for cpu in CPU_LIMITS {
        let room = BenchNamespace::open("pod").await?;
        let _operator = room.start_operators().await?;
        let starts = measure_starts(&room, cpu, size.runs(RUNS)).await?;
        reports.push(start_report(cpu, &starts));
        if reports.len() == CPU_LIMITS.len() {
            tokio::time::sleep(size.time(IDLE)).await;
            reports.push(memory_report(&agents(&room, POOL).await?)?);
        }
        // The next measurement needs the places of these pods on the node.
        remove_all(&room).await?;
    }
    Ok(reports)
}

/// Starts `runs` pods of each kind, one after the other.
async fn measure_starts(room: &BenchNamespace, cpu: &str, runs: usize) -> anyhow::Result<BTreeMap<Kind, Vec<Start>>> {
    let isolation = json!({"landlock": "Disabled", "seccomp": "RuntimeDefault"});
    for (pool, sandbox, expected) in
        [(POOL, json!({}), reasons::ENFORCED), (UNCONFINED, json!({"isolation": isolation}), reasons::POD_WALLS_ONLY)]
    {
        let spec: Value = json!({"type": "free", "scaling": {"min": 1, "max": 10000}, "sandbox": sandbox});
        room.apply_limited(pool, Nodes::Real, &PROGRAM, cpu, spec).await?;
        room.settled(pool, 1, LIMIT).await?;
        check_sandbox(room, pool, expected).await?;
    }
    // The first pod is the pattern of the others, and has brought the image's files into the page cache.
    let pattern = agents(room, POOL).await?.pop().context("the pool's pod")?;
    let mut starts: BTreeMap<Kind, Vec<Start>> = BTreeMap::new();
    for run in 0..runs {
        // The order changes, so that no kind always follows the same other kind.
        let mut kinds = KINDS;
        kinds.rotate_left(run % KINDS.len());
        if run % 2 == 1 {
            kinds.reverse();
        }
        for kind in kinds {
            let start = measure_start(room, kind, run, &pattern).await.with_context(|| format!("{}, run {run}", kind.name()))?;
            starts.entry(kind).or_default().push(start);
            tokio::time::sleep(REST).await;
        }
    }
    Ok(starts)
}

/// Waits until the pool's agent says that it has the sandbox that is to be measured.
async fn check_sandbox(room: &BenchNamespace, pool: &str, expected: &str) -> anyhow::Result<()> {
    within(LIMIT, &format!("the sandbox of {pool} is {expected}"), async || {
        let agents = room.api::<Agent>().list(&ListParams::default()).await?.items;
        let agent = agents.into_iter().find(|agent| agent.spec.pool_ref.name == pool).context("no agent")?;
        let conditions = agent.status.map(|status| status.conditions).unwrap_or_default();
        let sandbox = conditions.into_iter().find(|one| one.type_ == "SandboxEnforced").context("no condition")?;
        anyhow::ensure!(sandbox.reason == expected, "{}: {}", sandbox.reason, sandbox.message);
        Ok(())
    })
    .await
}

/// Removes the pools and all pods, and waits until they are gone.
async fn remove_all(room: &BenchNamespace) -> anyhow::Result<()> {
    let (at_once, all) = (DeleteParams::default().grace_period(0), ListParams::default());
    room.api::<AgentPool>().delete_collection(&DeleteParams::default(), &all).await?;
    room.api::<Pod>().delete_collection(&at_once, &all).await?;
    within(LIMIT, "all pods are removed", async || {
        let left = room.api::<Pod>().list(&all).await?.items.len();
        anyhow::ensure!(left == 0, "{left} are left");
        Ok(())
    })
    .await
}

/// The pods of a pool's agents.
async fn agents(room: &BenchNamespace, pool: &str) -> anyhow::Result<Vec<Pod>> {
    Ok(room.api::<Pod>().list(&ListParams::default().labels(&format!("{POOL_LABEL}={pool}"))).await?.items)
}

/// Starts one. It is not removed: the end of a pod would delay the next start by some hundred milliseconds.
async fn measure_start(room: &BenchNamespace, kind: Kind, run: usize, pattern: &Pod) -> anyhow::Result<Start> {
    let (pods, since) = (room.api::<Pod>(), Timestamp::now());
    let name = match kind {
        Kind::Spillway => another_agent(room, POOL).await?,
        Kind::Unconfined => another_agent(room, UNCONFINED).await?,
        Kind::Hook | Kind::Sidecar | Kind::Bare => {
            let pod = derived_pod(pattern, kind, &format!("{kind:?}-{run}").to_lowercase())?;
            pods.create(&PostParams::default(), &pod).await?.name_any()
        }
    };
    let program = within(LIMIT, "its program has printed its first line", async || {
        line(room, &name, "agent", LINE).await?.context("its log does not say so")
    })
    .await?;
    let uid = pods.get(&name).await?.uid().context("a uid")?;
    let writes = audit::writes(&room.namespace, since);
    let created = writes.iter().find(|write| write.is("create", "pods") && write.object_ref.name == name);
    let created = created.context("its creation in the audit log")?.stage_timestamp;
    let mut marks = start_steps(room, kind, &name, &processes::of_pod(&uid)?).await?;
    marks.push((FIRST_LINE, program));
    Ok(marks.into_iter().map(|(what, at)| (what, at.duration_since(created).as_secs_f64() * 1000.0)).collect())
}

/// Scales the pool up by one agent; the name of the new pod.
async fn another_agent(room: &BenchNamespace, pool: &str) -> anyhow::Result<String> {
    let known: BTreeSet<String> = agents(room, pool).await?.iter().map(ResourceExt::name_any).collect();
    room.resize(pool, known.len() + 1).await?;
    within(LIMIT, "the pool makes one more", async || {
        let names = agents(room, pool).await?;
        names.iter().map(ResourceExt::name_any).find(|name| !known.contains(name)).context("there is no other")
    })
    .await
}

/// A pod like Spillway's, with less in it.
fn derived_pod(pattern: &Pod, kind: Kind, name: &str) -> anyhow::Result<Pod> {
    let mut spec = pattern.spec.clone().context("a spec")?;
    spec.node_name = None;
    let mut sidecar = spec.init_containers.take().and_then(|mut all| all.pop()).context("a sidecar")?;
    let program = spec.containers.first_mut().context("a container")?;
    program.command = Some(PROGRAM.map(str::to_owned).into());
    match kind {
        // Volumes that no container mounts are not set up.
        Kind::Spillway | Kind::Unconfined | Kind::Bare => {
            let own = program.volume_mounts.get_or_insert_default();
            let others =
                sidecar.volume_mounts.into_iter().flatten().filter(|mount| mount.name != "spillway-bin" && mount.name != "spillway-run");
            own.extend(others);
        }
        Kind::Hook | Kind::Sidecar => {
            let nothing = ExecAction { command: Some(vec!["/bin/true".into()]) };
            let after_start = LifecycleHandler { exec: Some(nothing), ..LifecycleHandler::default() };
            sidecar = Container {
                image: program.image.clone(),
                command: Some(["/bin/sh", "-c", "while :; do sleep 3600; done"].map(str::to_owned).into()),
                env: None,
                lifecycle: (kind == Kind::Hook).then(|| Lifecycle { post_start: Some(after_start), ..Lifecycle::default() }),
                ..sidecar
            };
            spec.init_containers = Some(vec![sidecar]);
        }
    }
    Ok(Pod { metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() }, spec: Some(spec), status: None })
}

/// The observable steps until the program starts, in order.
async fn start_steps(
    room: &BenchNamespace,
    kind: Kind,
    name: &str,
    processes: &[PodProcesses],
) -> anyhow::Result<Vec<(&'static str, Timestamp)>> {
    let begun = |is: &dyn Fn(&PodProcesses) -> bool| {
        let found = processes.iter().filter(|one| is(one)).map(|one| processes::began(one.pid)).collect::<anyhow::Result<Vec<_>>>();
        found.map(|times| times.into_iter().min())
    };
    let program = |one: &PodProcesses| one.words == PROGRAM;
    let mut marks = Vec::new();
    match kind {
        Kind::Spillway | Kind::Unconfined => {
            marks.push(("the sidecar's process", begun(&is_link)?));
            marks.push((SIDECAR, line(room, name, "link", "started").await?));
            // This line appears only if an attempt before it failed: the network is closed until the network plugin
            // knows the pod.
            marks.push((ANSWERED, line(room, name, "link", "answers again").await?));
            marks.push(("the process of the program's container", begun(&is_supervisor)?));
            marks.push((MAY_START, line(room, name, "link", "may start").await?));
            marks.push(("the program's process", begun(&program)?));
        }
        Kind::Hook | Kind::Sidecar => {
            marks.push(("the sidecar's process", begun(&|one| one.words.len() == 3 && !program(one))?));
            marks.push(("the process of the program's container", begun(&program)?));
        }
        Kind::Bare => marks.push(("the process of the program's container", begun(&program)?)),
    }
    // Steps that were not observed are left out.
    Ok(marks.into_iter().filter_map(|(what, at)| Some((what, at?))).collect())
}

fn is_link(process: &PodProcesses) -> bool {
    process.words.iter().map(String::as_str).eq(["/spillway-agent", "link"])
}

fn is_supervisor(process: &PodProcesses) -> bool {
    let mut words = process.words.iter().map(String::as_str);
    words.next().is_some_and(|name| name.ends_with("/spillway-agent")) && words.next() == Some("agent")
}

/// When the container first wrote a line with this in it, as the container runtime read it.
async fn line(room: &BenchNamespace, pod: &str, container: &str, text: &str) -> anyhow::Result<Option<Timestamp>> {
    let params = LogParams { container: Some(container.to_owned()), timestamps: true, ..LogParams::default() };
    let log = room.api::<Pod>().logs(pod, &params).await?;
    log.lines().find(|line| line.contains(text)).and_then(|line| line.split_once(' ')).map(|(time, _)| Ok(time.parse()?)).transpose()
}

/// The time of a step of one start.
fn at(start: &Start, step: &str) -> Option<f64> {
    start.iter().find(|mark| mark.0 == step).map(|mark| mark.1)
}

/// Times between two steps, one a start.
fn between(starts: &[Start], from: &str, to: &str) -> Vec<f64> {
    starts.iter().filter_map(|start| Some(at(start, to)? - at(start, from)?)).collect()
}

fn start_report(cpu: &str, starts: &BTreeMap<Kind, Vec<Start>>) -> Report {
    let all = |kind: Kind| starts.get(&kind).map(Vec::as_slice).unwrap_or_default();
    let ends = |kind: Kind| -> Vec<f64> { all(kind).iter().filter_map(|start| at(start, FIRST_LINE)).collect() };
    let mut rows: Vec<Row> =
        KINDS.into_iter().map(|kind| Row::spread(format!("{}: created -> program", kind.name()), ends(kind), "ms")).collect();
    let median = |kind| percentile(&ends(kind), 50.0);
    let difference = |more, less| median(more) - median(less);
    rows.push(Row::one("added by Spillway (difference of the medians)", difference(Kind::Spillway, Kind::Bare), "ms").goal("<= 300 ms"));
    rows.push(Row::one("of which any second container adds", difference(Kind::Sidecar, Kind::Bare), "ms"));
    rows.push(Row::one("of which any hook after its start adds", difference(Kind::Hook, Kind::Sidecar), "ms"));
    rows.push(Row::one("of which Spillway's own work without the sandbox adds", difference(Kind::Unconfined, Kind::Hook), "ms"));
    rows.push(Row::one("of which the sandbox adds", difference(Kind::Spillway, Kind::Unconfined), "ms"));
    // What changes slowly on the machine is the same for all starts of a turn.
    let in_turn = |more, less| ends(more).into_iter().zip(ends(less)).map(|(more, less)| more - less).collect();
    rows.push(Row::spread("added by Spillway (differences within a turn)", in_turn(Kind::Spillway, Kind::Bare), "ms"));
    rows.push(Row::spread("added by the sandbox (differences within a turn)", in_turn(Kind::Spillway, Kind::Unconfined), "ms"));
    for (what, from, to) in [("sidecar started -> gateway answers it", SIDECAR, ANSWERED), ("may start -> program", MAY_START, FIRST_LINE)]
    {
        for kind in [Kind::Spillway, Kind::Unconfined] {
            rows.push(Row::spread(format!("{}: {what}", kind.name()), between(all(kind), from, to), "ms"));
        }
    }
    for (kind, all) in starts {
        let whole = all.iter().max_by_key(|start| start.len());
        for (what, _) in whole.into_iter().flatten() {
            let times: Vec<f64> = all.iter().filter_map(|start| at(start, what)).collect();
            rows.push(Row::spread(format!("{}: created -> {what}", kind.name()), times, "ms"));
        }
    }
    let method = "pods start on the real node, one after the other, the five kinds in turn, with the same image, resources, security and \
                  volumes. None is removed meanwhile. The time runs from the audit log's time of the creation to the time at which \
                  containerd read the program's first line. Process times are from /proc/PID/stat (steps of 10 ms; a container's process \
                  begins as runc's), and lines of the sidecar have containerd's time. Numbers are medians, with their spread in brackets. \
                  Of fewer than 100 starts p99 is the slowest";
    Report::new(format!("start of a pod, whose program may use {cpu} of a core"), method, rows)
}

fn memory_report(pods: &[Pod]) -> anyhow::Result<Report> {
    let mut rows: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
    let mut add = |what, value| rows.entry(what).or_default().push(value);
    for pod in pods {
        let all = processes::of_pod(&pod.uid().context("a uid")?)?;
        let find =
            |is: fn(&PodProcesses) -> bool| all.iter().find(|one| is(one)).with_context(|| format!("its program in {}", pod.name_any()));
        let (link, supervisor) = (find(is_link)?, find(is_supervisor)?);
        let (of_link, of_supervisor) = (processes::memory(link.pid)?, processes::memory(supervisor.pid)?);
        for (whose, Memory { resident, anonymous, .. }) in [
            (["link: resident", "link: of it anonymous"], of_link),
            (["supervisor: resident", "supervisor: of it anonymous"], of_supervisor),
        ] {
            add(whose[0], resident);
            add(whose[1], anonymous);
        }
        add("both: resident", of_link.resident + of_supervisor.resident);
        add("both: anonymous", of_link.anonymous + of_supervisor.anonymous);
        if let (Some(one), Some(other)) = (of_link.proportional, of_supervisor.proportional) {
            add("both: proportional", one + other);
        }
        let (sidecar, program) = (link.charged()?, supervisor.charged()?);
        add("sidecar's container: charged, page cache and kernel included", sidecar.all);
        add("sidecar's container: anonymous", sidecar.anonymous);
        add("program's container, with a shell that sleeps: charged", program.all);
        add("program's container, with a shell that sleeps: anonymous", program.anonymous);
    }
    let rows = rows.into_iter().map(|(what, values)| {
        let row = Row::spread(what, values, "MiB");
        if what == "both: resident" { row.goal("<= 16 MiB") } else { row }
    });
    let method = format!(
        "{} idle agents on the real node, the youngest a minute old, whose program sleeps: VmRSS, RssAnon and Pss of the two processes, and \
         what the memory cgroups of the two containers count",
        pods.len()
    );
    Ok(Report::new("memory in a pod", method, rows.collect()))
}
