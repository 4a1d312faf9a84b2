//! Programs that agents use do their ordinary work in the sandbox. One that is not installed is named and left out.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use spillway_sandbox::Sandbox;
use spillway_sandbox::grants::{Container, grants};
use spillway_sandbox::kernel::Kernel;
use spillway_sandbox::plan::plan;
use spillway_wire::sandbox::{Requirement, SandboxSettings};

mod common;

/// The program that must be installed, and a script of bash that works in an empty folder.
const WORK: [(&str, &str, &str); 14] = [
    (
        "shell",
        "bash",
        "ls / /etc /var > /dev/null; find / -maxdepth 1 -name usr | grep -q usr; echo x > /dev/stderr; echo x | tee /dev/stderr > /dev/null; diff <(echo a) <(echo a); head -c 9 /dev/zero > z; read -r line < <(echo in); cat /dev/stdin <<< here > h; exec 3<> z; : > /proc/self/fd/3; mkfifo p; (echo through > p &); read x < p; [ $x = through ]; echo a | tee f | grep -q a; ulimit -n; umask; (sleep 0.1 & wait)",
    ),
    (
        "temporary files",
        "bash",
        "t=$(mktemp -d); echo x > $t/f; mv $t/f g; cp -a g h; ln -s h l; ln h k; chmod 700 g; touch -d yesterday g; find . -name g | grep -q g; tar cf t.tar g h; tar tf t.tar | grep -q h",
    ),
    (
        "git",
        "git",
        "git init -q r; cd r; git config user.email a@b.c; git config user.name a; echo x > f; git add f; git commit -qm one; git checkout -qb two; echo y >> f; git commit -qam two; git clone -q . ../s; cd ../s; git log --oneline | wc -l | grep -q 2; git gc -q; git worktree add -q ../w HEAD",
    ),
    (
        "python",
        "python3",
        "python3 -c 'import multiprocessing as m, subprocess, tempfile, sqlite3, ssl, asyncio, threading; p = m.Pool(2); assert p.map(abs, [-1, -2]) == [1, 2]; p.close(); q = m.Queue(); q.put(1); assert q.get() == 1; assert subprocess.check_output([\"echo\", \"x\"]) == b\"x\\n\"; sqlite3.connect(\"x.db\").execute(\"create table t(a)\"); asyncio.run(asyncio.sleep(0.01))'",
    ),
    ("python virtual environment", "python3", "python3 -m venv --without-pip v; v/bin/python -c 'print(1)' | grep -q 1"),
    (
        "loopback",
        "python3",
        "python3 -c 'import http.server as h, threading as t, urllib.request as u; s = h.ThreadingHTTPServer((\"127.0.0.1\", 0), h.SimpleHTTPRequestHandler); t.Thread(target=s.serve_forever, daemon=True).start(); assert u.urlopen(f\"http://127.0.0.1:{s.server_port}/\").status == 200' 2> log",
    ),
    (
        "node",
        "node",
        "node -e 'const {Worker} = require(\"worker_threads\"), c = require(\"child_process\"), fs = require(\"fs\"); fs.watch(\".\").close(); c.execSync(\"true\"); new Worker(\"require(\\\"worker_threads\\\").parentPort.postMessage(1)\", {eval: true}).on(\"message\", m => process.exit(m - 1))'; node -e 'const s = require(\"net\").createServer(c => c.end(\"x\")).listen(0, \"127.0.0.1\", () => require(\"net\").connect(s.address().port).on(\"data\", () => process.exit(0)))'",
    ),
    (
        "npm",
        "npm",
        "mkdir dep; echo '{\"name\":\"dep\",\"version\":\"1.0.0\"}' > dep/package.json; echo '{\"name\":\"app\",\"version\":\"1.0.0\",\"scripts\":{\"test\":\"node -p 1\"},\"dependencies\":{\"dep\":\"file:dep\"}}' > package.json; npm install --offline --no-audit --no-fund --loglevel=error; npm test",
    ),
    (
        "gcc",
        "gcc",
        "printf '#include <pthread.h>\\n#include <stdio.h>\\nvoid *f(void *a) { return a; }\\nint main(void) { pthread_t t; pthread_create(&t, 0, f, 0); pthread_join(t, 0); puts(\"x\"); return 0; }\\n' > a.c; gcc -O2 -pthread a.c -o a; ./a | grep -q x; make --version > /dev/null; printf 'a2: a.c\\n\\tgcc -pthread a.c -o a2\\n' > Makefile; make -j2 > /dev/null; ./a2 | grep -q x",
    ),
    (
        "cargo",
        "cargo",
        "cargo init -q --name app --vcs none .; cargo build -q --offline; cargo test -q --offline > /dev/null; ./target/debug/app | grep -q Hello",
    ),
    (
        "go",
        "go",
        "printf 'module app\\n\\ngo 1.20\\n' > go.mod; printf 'package main\\n\\nimport (\"fmt\"; \"os/exec\"; \"net\")\\n\\nfunc main() { l, e := net.Listen(\"tcp\", \"127.0.0.1:0\"); if e != nil { panic(e) }; go func() { c, _ := l.Accept(); c.Close() }(); if _, e := net.Dial(\"tcp\", l.Addr().String()); e != nil { panic(e) }; o, _ := exec.Command(\"echo\", \"x\").Output(); fmt.Print(string(o)) }\\n' > main.go; go build -o app .; ./app | grep -q x; go vet .",
    ),
    (
        "java",
        "javac",
        "printf 'public class A { public static void main(String[] a) throws Exception { Thread t = new Thread(() -> System.out.println(\"x\")); t.start(); t.join(); new ProcessBuilder(\"true\").start().waitFor(); var s = new java.net.ServerSocket(0); new java.net.Socket(\"127.0.0.1\", s.getLocalPort()).close(); new java.net.DatagramSocket(0).close(); java.net.NetworkInterface.getNetworkInterfaces(); } }\\n' > A.java; javac A.java; java -Xmx64m A | grep -q x",
    ),
    (
        "browser",
        "chromium",
        // Its own sandbox needs namespaces. The sandbox of the agent takes its place.
        "echo '<p id=x></p><script>document.getElementById(\"x\").textContent = \"made \" + 6 * 7</script>' > a.html; timeout 60 chromium --headless --no-sandbox --disable-gpu --user-data-dir=$PWD/profile --dump-dom file://$PWD/a.html 2> log | grep -q 'made 42'",
    ),
    (
        "its own sandbox",
        "unshare",
        "! unshare --user true 2> err; setpriv --no-new-privs true; nice -n 5 true; timeout 5 true; setsid -w true; flock f true; stdbuf -o0 true; script -qc true /dev/null > /dev/null < /dev/null || true",
    ),
];

fn sandbox(folders: &[PathBuf]) -> Sandbox {
    let settings = SandboxSettings { landlock: Requirement::Required, syscalls: Requirement::Required, ..SandboxSettings::default() };
    let plan = plan(&settings, &Kernel::probe()).expect("this kernel can all");
    Sandbox::prepare(&plan, &grants(&Container::read().expect("a container"), &[], folders), &[]).expect("a sandbox")
}

fn is_installed(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).exists()))
}

fn work(script: &str, folder: &Path, sandbox: Option<&Sandbox>) -> Result<Duration, String> {
    let (home, work, tmp) = (folder.join("home"), folder.join("work"), folder.join("tmp"));
    for folder in [&home, &work, &tmp] {
        fs::create_dir_all(folder).expect("a folder");
    }
    let own = |name: &str| std::env::var_os(name).unwrap_or_default();
    // Toolchains that were installed for one user are found by their variables.
    let users = PathBuf::from(own("HOME"));
    let of_user = |name: &str, below: &str| std::env::var_os(name).unwrap_or_else(|| users.join(below).into());
    let mut command = Command::new("bash");
    command
        .args(["-euo", "pipefail", "-c", script])
        .current_dir(&work)
        .env_clear()
        .envs([("PATH", own("PATH")), ("HOME", home.into()), ("TMPDIR", tmp.into()), ("LANG", "C.UTF-8".into())])
        .envs([("RUSTUP_HOME", of_user("RUSTUP_HOME", ".rustup")), ("PYENV_ROOT", of_user("PYENV_ROOT", ".pyenv"))])
        .envs([("GOFLAGS", "-mod=mod"), ("GOTOOLCHAIN", "local"), ("GOPROXY", "off")]);
    let began = std::time::Instant::now();
    let output = match sandbox {
        Some(sandbox) => common::output(sandbox, command),
        None => command.output().map_err(|error| error.to_string())?,
    };
    if output.status.success() {
        return Ok(began.elapsed());
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).lines().rev().take(12).collect::<Vec<_>>().join("\n");
    Err(format!("{}\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr)))
}

#[test]
fn programs_of_agents_do_their_work() {
    let (mut tried, mut wrong) = (0, Vec::new());
    for (name, program, script) in WORK {
        if !is_installed(program) {
            println!("{name}: not tried, {program} is not installed");
            continue;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let folders = ["home", "work", "tmp"].map(|name| folder.path().join(name));
        folders.iter().for_each(|folder| fs::create_dir_all(folder).expect("a folder"));
        tried += 1;
        match work(script, folder.path(), Some(&sandbox(&[&folders[..], &["/dev/shm".into()]].concat()))) {
            Ok(took) => println!("{name}: {} ms", took.as_millis()),
            Err(why) => {
                let free = tempfile::tempdir().expect("a folder");
                let without = work(script, free.path(), None).err().unwrap_or_else(|| "it works".to_owned());
                wrong.push(format!("{name}: {why}\nwithout a sandbox: {without}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(tried >= 4, "nearly nothing of it is installed here");
}
