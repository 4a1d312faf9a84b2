//! How long copies and commits of a folder take, beside `tar` of the same folder. `cargo bench -p spillway-folder --bench folder`
//! prints numbers as JSON. Its folder is below `target`, on the disk of the checkout. It is a benchmark, not a test.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use sha2::{Digest as _, Sha256};
use spillway_folder::path::RelativePath;
use spillway_folder::record::{Change, Content, write_line};
use spillway_folder::{Folder, MAX_CHANGES, Outcome};
use spillway_wire::text::hex;

const FILES: usize = 10_000;
const FILE_BYTES: usize = 2048;
const ROUNDS: usize = 5;

type Failed = Box<dyn std::error::Error>;

/// The content of a file in a round.
fn content(number: usize, round: usize) -> String {
    format!("{number} {round} ").repeat(FILE_BYTES).chars().take(FILE_BYTES).collect()
}

fn path(number: usize) -> String {
    format!("{:03}/{number:05}.txt", number / 100)
}

fn file(text: &str) -> Content {
    Content::File { executable: false, size: text.len() as u64, sha256: hex(&Sha256::digest(text)) }
}

/// The stream of changes of the first `count` files from one round to the next, and its digest.
fn changes(count: usize, round: usize) -> Result<(Vec<u8>, String), Failed> {
    let (mut stream, mut digest) = (Vec::new(), Sha256::new());
    for number in 0..count {
        let (old, new) = (content(number, round), content(number, round + 1));
        let change = Change { path: RelativePath::parse(&path(number))?, old: Some(file(&old)), new: Some(file(&new)) };
        digest.update(write_line(&mut stream, &change)?);
        digest.update(b"\n");
        stream.extend(new.into_bytes());
    }
    Ok((stream, hex(&digest.finalize())))
}

/// Milliseconds of each round, as minimum and median.
fn times(mut round: impl FnMut(usize) -> Result<(), Failed>) -> Result<(f64, f64), Failed> {
    let mut all = Vec::new();
    for number in 0..ROUNDS {
        // What others wrote must not be waited for.
        rustix::fs::sync();
        let began = Instant::now();
        round(number)?;
        all.push(began.elapsed().as_secs_f64() * 1000.0);
    }
    all.sort_by(f64::total_cmp);
    Ok((all.first().copied().unwrap_or_default(), all.get(ROUNDS / 2).copied().unwrap_or_default()))
}

fn print(what: &str, (minimum, median): (f64, f64)) {
    println!(
        "{{\"what\": \"{what}\", \"files\": {FILES}, \"fileBytes\": {FILE_BYTES}, \"msMin\": {minimum:.1}, \"msMedian\": {median:.1}}}"
    );
}

/// The most memory that this process has had, in kB.
fn peak_memory() -> Result<String, Failed> {
    let status = fs::read_to_string("/proc/self/status")?;
    Ok(status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default().trim().to_owned())
}

/// Commits as many changes as one commit may have, with long paths. Their stream comes from a file.
fn commit_the_most(root: &Path) -> Result<(), Failed> {
    let (stream, mut digest) = (root.join("stream"), Sha256::new());
    let mut out = BufWriter::new(File::create(&stream)?);
    for number in 0..MAX_CHANGES {
        let name = format!("{:03}{}", number / 100, "x".repeat(190));
        let path = RelativePath::parse(&format!("{name}/{name}/{name}/{number:05}"))?;
        digest.update(write_line(&mut out, &Change { path, old: None, new: Some(file("")) })?);
        digest.update(b"\n");
    }
    out.flush()?;
    let folder = Folder::open(root, "largest")?;
    let staged = folder.receive(&mut BufReader::new(File::open(&stream)?), &hex(&digest.finalize()), u64::MAX)?;
    if folder.commit(staged, &|| true)? == Outcome::Committed { Ok(()) } else { Err("a conflict".into()) }
}

/// Reads the folder as an archive of `tar`, which makes no snapshot.
fn read_with_tar(folder: &Path) -> Result<(), Failed> {
    let mut tar = Command::new("tar").arg("-cf").arg("-").arg(folder).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    io::copy(&mut tar.stdout.take().ok_or("a pipe")?, &mut io::sink())?;
    if tar.wait()?.success() { Ok(()) } else { Err("tar failed".into()) }
}

fn main() -> Result<(), Failed> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../target/tmp/folder-bench-{}", std::process::id()));
    fs::create_dir_all(&root)?;
    // First: nothing else has needed memory yet.
    commit_the_most(&root)?;
    println!("{{\"what\": \"peak memory of the largest commit\", \"changes\": {MAX_CHANGES}, \"value\": \"{}\"}}", peak_memory()?);
    let site = root.join("site");
    for number in 0..FILES {
        let path = site.join(path(number));
        fs::create_dir_all(path.parent().ok_or("a file has a folder")?)?;
        fs::write(path, content(number, 0))?;
    }
    let folder = Folder::open(&root, "site")?;
    print("snapshot, which holds the lock", times(|_| folder.snapshot().map(drop).map_err(Failed::from))?);
    let mut streamed = BufWriter::new(io::sink());
    print("copy: snapshot and stream", times(|_| folder.copy(&mut streamed).map_err(Failed::from))?);
    streamed.flush()?;
    print("tar, the peer of a copy", times(|_| read_with_tar(&site))?);
    // The streams are made before, and outside of the times.
    for (what, count) in [("commit of 1 file", 1), ("commit of 100 files", 100), ("commit of 10,000 files", FILES)] {
        let mut streams = Vec::new();
        for round in 0..ROUNDS {
            streams.push(changes(count, round)?);
        }
        let committed = times(|round| {
            let (stream, digest) = streams.get(round).ok_or("a stream")?;
            let staged = folder.receive(&mut stream.as_slice(), digest, u64::MAX)?;
            if folder.commit(staged, &|| true)? == Outcome::Committed { Ok(()) } else { Err("a conflict".into()) }
        })?;
        print(what, committed);
        // The next series begins from the first contents again.
        for number in 0..count {
            fs::write(site.join(path(number)), content(number, 0))?;
        }
    }
    fs::remove_dir_all(&root)?;
    Ok(())
}
