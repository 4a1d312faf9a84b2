//! An agent's pod on the real node: the memory of our two programs in it, and the time that they add to its start,
//! compared with pods that lack more and more of its parts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ExecAction, Lifecycle, LifecycleHandler, Pod};
use kube::ResourceExt;
use kube::api::{ListParams, LogParams, ObjectMeta, PostParams};
use spillway::api::names::AGENT_LABEL;

use crate::audit;
use crate::bench_namespace::{BenchNamespace, Nodes, within};
use crate::processes::{self, Memory, PodProcesses};
use crate::report::{Report, Row, percentile};
use crate::size::Size;

const RUNS: usize = 10;
const LIMIT: Duration = Duration::from_secs(120);
/// Pause between two starts, for the kubelet to settle.
const REST: Duration = Duration::from_secs(2);
/// How long the pods are left alone before their memory is read.
const IDLE: Duration = Duration::from_secs(60);
const POOL: &str = "pool";
/// The program prints this line and then does nothing.
const LINE: &str = "the program has begun";
const PROGRAM: [&str; 3] = ["/bin/sh", "-c", "echo the program has begun; while :; do sleep 3600; done"];

/// The kinds of pods that are started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// An agent's pod as Spillway makes it.
    Spillway,
    /// The same with another sidecar, which sleeps and has a postStart hook that does nothing. The program runs by
    /// itself.
    Hook,
    /// The same without the hook.
    Sidecar,
    /// The program alone, with the same volumes.
    Bare,
}

const KINDS: [Kind; 4] = [Kind::Spillway, Kind::Hook, Kind::Sidecar, Kind::Bare];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Spillway => "Spillway's pod",
            Self::Hook => "pod with a sidecar and a hook that do nothing",
            Self::Sidecar => "pod with a sidecar that does nothing",
            Self::Bare => "bare pod",
        }
    }
}

/// One start: its steps, each with milliseconds since the pod's creation. The last is the program's first line.
type Start = Vec<(&'static str, f64)>;

/// Runs the benchmark.
pub async fn run(size: Size) -> anyhow::Result<Vec<Report>> {
    let room = BenchNamespace::open("pod").await?;
    let _operator = room.start_operators().await?;
    // The first pod is the pattern of the others, and brings the image's files into the page cache.
    room.apply_program(POOL, 1, Nodes::Real, &PROGRAM).await?;
    room.settled(POOL, 1, LIMIT).await?;
    let pattern = agents(&room).await?.pop().context("the pool's pod")?;
    let mut starts: BTreeMap<Kind, Vec<Start>> = BTreeMap::new();
    for run in 0..size.runs(RUNS) {
        // The order changes, so that no kind always follows the same other kind.
        let mut kinds = KINDS;
        kinds.rotate_left(run % KINDS.len());
        if run % 2 == 1 {
            kinds.reverse();
        }
        for kind in kinds {
            let start = measure_start(&room, kind, run, &pattern).await.with_context(|| format!("{}, run {run}", kind.name()))?;
            starts.entry(kind).or_default().push(start);
            tokio::time::sleep(REST).await;
        }
    }
    tokio::time::sleep(size.time(IDLE)).await;
    Ok(vec![started(&starts), memory_report(&agents(&room).await?)?])
}

/// The pods of the namespace's agents.
async fn agents(room: &BenchNamespace) -> anyhow::Result<Vec<Pod>> {
    Ok(room.api::<Pod>().list(&ListParams::default().labels(AGENT_LABEL)).await?.items)
}

/// Starts one. It is not removed: the end of a pod would delay the next start by some hundred milliseconds.
async fn measure_start(room: &BenchNamespace, kind: Kind, run: usize, pattern: &Pod) -> anyhow::Result<Start> {
    let (pods, since) = (room.api::<Pod>(), Timestamp::now());
    let name = match kind {
        Kind::Spillway => another_agent(room).await?,
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
    marks.push(("the program's first line", program));
    Ok(marks.into_iter().map(|(what, at)| (what, at.duration_since(created).as_secs_f64() * 1000.0)).collect())
}

/// Scales the pool up by one agent; the name of the new pod.
async fn another_agent(room: &BenchNamespace) -> anyhow::Result<String> {
    let known: BTreeSet<String> = agents(room).await?.iter().map(ResourceExt::name_any).collect();
    room.resize(POOL, known.len() + 1).await?;
    within(LIMIT, "the pool makes one more", async || {
        let names = agents(room).await?;
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
        Kind::Spillway | Kind::Bare => {
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
        Kind::Spillway => {
            marks.push(("the sidecar's process", begun(&is_link)?));
            marks.push(("the sidecar's first line", line(room, name, "link", "started").await?));
            // This line appears only if an attempt before it failed: the network is closed until the network plugin
            // knows the pod.
            marks.push(("the gateway answers the sidecar", line(room, name, "link", "answers again").await?));
            marks.push(("the process of the program's container", begun(&is_supervisor)?));
            marks.push(("registered, isolation in force: the program may start", line(room, name, "link", "may start").await?));
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

fn started(starts: &BTreeMap<Kind, Vec<Start>>) -> Report {
    let ends = |kind: Kind| -> Vec<f64> { starts.get(&kind).into_iter().flatten().filter_map(|start| Some(start.last()?.1)).collect() };
    let mut rows: Vec<Row> =
        KINDS.into_iter().map(|kind| Row::spread(format!("{}: created -> program", kind.name()), ends(kind), "ms")).collect();
    let median = |kind| percentile(&ends(kind), 50.0);
    rows.push(
        Row::one("added by Spillway (difference of the medians)", median(Kind::Spillway) - median(Kind::Bare), "ms").goal("<= 300 ms"),
    );
    rows.push(Row::one("of which any second container adds", median(Kind::Sidecar) - median(Kind::Bare), "ms"));
    rows.push(Row::one("of which any hook after its start adds", median(Kind::Hook) - median(Kind::Sidecar), "ms"));
    rows.push(Row::one("of which Spillway's own work adds", median(Kind::Spillway) - median(Kind::Hook), "ms"));
    for (kind, all) in starts {
        let whole = all.iter().max_by_key(|start| start.len());
        for (what, _) in whole.into_iter().flatten() {
            let times: Vec<f64> = all.iter().filter_map(|start| start.iter().find(|mark| mark.0 == *what)).map(|mark| mark.1).collect();
            rows.push(Row::spread(format!("{}: created -> {what}", kind.name()), times, "ms"));
        }
    }
    let method = "pods start on the real node, one after the other, the four kinds in turn, with the same image, resources, security and \
                  volumes. None is removed meanwhile. The time runs from the audit log's time of the creation to the time at which \
                  containerd read the program's first line. Process times are from /proc/PID/stat (steps of 10 ms; a container's process \
                  begins as runc's), and lines of the sidecar have containerd's time. Numbers are medians, with their spread in brackets";
    Report::new("start of a pod", method, rows)
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
