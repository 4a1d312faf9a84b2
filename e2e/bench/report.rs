//! Numbers with their method, for people and as JSON.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::Serialize;

/// The machine that everything runs on: the cluster, the operators and the measuring program.
#[derive(Serialize)]
pub struct Machine {
    cores: usize,
    processor: String,
    memory_mib: u64,
    kernel: String,
}

impl Machine {
    /// Looks into `/proc`.
    pub fn look() -> Self {
        let field = |path: &str, name: &str| {
            let text = fs::read_to_string(path).unwrap_or_default();
            let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            line.split_once(':').map_or_else(|| "unknown".to_owned(), |(_, value)| value.trim().to_owned())
        };
        let memory = field("/proc/meminfo", "MemTotal");
        let memory_kib: u64 = memory.split(' ').next().and_then(|kib| kib.parse().ok()).unwrap_or(0);
        Self {
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            processor: field("/proc/cpuinfo", "model name"),
            memory_mib: memory_kib / 1024,
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cores, processor, memory_mib, kernel } = self;
        write!(f, "machine: {cores} cores ({processor}), {memory_mib} MiB, Linux {kernel}")
    }
}

/// The load average of the last minute.
pub fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(f64::NAN)
}

/// One run of a benchmark.
#[derive(Serialize)]
pub struct BenchmarkRun {
    /// Its name.
    pub name: &'static str,
    /// How long it took.
    pub seconds: f64,
    /// Load average of the machine for the last minute at the start, with the load of other programs.
    pub load_before: f64,
    /// The same at the end.
    pub load_after: f64,
    /// Its numbers.
    pub reports: Vec<Report>,
    /// The error, if it could not be measured.
    pub error: Option<String>,
}

/// Numbers that were taken with one method.
#[derive(Serialize)]
pub struct Report {
    /// The subject of the numbers.
    pub title: String,
    /// How the numbers were taken.
    pub method: String,
    /// The numbers.
    pub rows: Vec<Row>,
}

impl Report {
    /// A report of these rows.
    pub fn new(title: impl Into<String>, method: impl Into<String>, rows: Vec<Row>) -> Self {
        Self { title: title.into(), method: method.into(), rows }
    }

    /// Prints it for people.
    pub fn print(&self) {
        println!("\n{}\n  method: {}", self.title, self.method);
        self.rows.iter().for_each(|row| println!("  {row}"));
    }
}

/// One number, or the spread of a number that was taken several times.
#[derive(Serialize)]
pub struct Row {
    what: String,
    unit: &'static str,
    median: f64,
    min: f64,
    p99: f64,
    max: f64,
    values: Vec<f64>,
    goal: Option<&'static str>,
}

impl Row {
    /// A number that was taken once.
    pub fn one(what: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self::spread(what, vec![value], unit)
    }

    /// One that was taken several times.
    pub fn spread(what: impl Into<String>, values: Vec<f64>, unit: &'static str) -> Self {
        let at = |percent| percentile(&values, percent);
        Self { what: what.into(), unit, median: at(50.0), min: at(0.0), p99: at(99.0), max: at(100.0), goal: None, values }
    }

    /// Adds the goal of the number.
    pub fn goal(self, goal: &'static str) -> Self {
        Self { goal: Some(goal), ..self }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, unit, median, min, p99, max, values, goal } = self;
        write!(f, "{what:<60} {median:>9.2} {unit}")?;
        if values.len() > 1 {
            write!(f, " (median of {}; min {min:.2}, p99 {p99:.2}, max {max:.2})", values.len())?;
        }
        goal.map_or(Ok(()), |goal| write!(f, " [goal: {goal}]"))
    }
}

/// The nearest-rank percentile; not a number for no values.
pub fn percentile(values: &[f64], percent: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a rank among a few thousand")]
    let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// A folder in `target/bench`. It is made if it is missing.
pub fn folder(name: &str) -> anyhow::Result<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/bench").join(name);
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    Ok(folder.canonicalize()?)
}

/// A time in the unit of the reports.
pub fn milliseconds(time: std::time::Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// A count as a float.
pub fn float(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::INFINITY, f64::from)
}
