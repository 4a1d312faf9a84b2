//! Unix sockets of the machine, and `spillway-agent sandbox` with the real bubblewrap.

mod common;

use std::fs;
use std::io::Write as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::laptop::{Machine, error, out};
use common::until;

/// Prints what each server says, or why there is none.
const CLIENT: &str = "import socket, sys
for path in sys.argv[1:]:
    try:
        client = socket.socket(socket.AF_UNIX); client.connect(path); print(client.recv(9).decode())
    except OSError as error: print(error.strerror)";
const SAID: &str = "reached";

/// A socket whose server greets each client, until the test ends. It is removed with this value.
struct Server(PathBuf);

impl Server {
    fn new(path: &Path) -> std::io::Result<Self> {
        fs::create_dir_all(path.parent().expect("a folder"))?;
        let listener = UnixListener::bind(path)?;
        std::thread::spawn(move || {
            listener.incoming().filter_map(Result::ok).for_each(|mut client| drop(client.write_all(SAID.as_bytes())))
        });
        Ok(Self(path.to_owned()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// What a client of each socket is told, outside the sandbox and in it.
fn outside_and_inside(machine: &Machine, flags: &[&str], change: impl Fn(&mut Command), paths: &[PathBuf]) -> [Vec<String>; 2] {
    let project = machine.path("home/project").display().to_string();
    let text: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    let client: Vec<&str> = ["python3", "-c", CLIENT].into_iter().chain(text.iter().map(String::as_str)).collect();
    let mut bare = Command::new("python3");
    bare.args(&client[1..]);
    let mut confined = machine.launcher(&[&["--workspace", &project], flags].concat(), &client);
    change(&mut confined);
    [bare, confined].map(|mut command| {
        let output = command.output().expect("it runs");
        assert!(output.status.success(), "{}", error(&output));
        out(&output).lines().map(str::to_owned).collect()
    })
}

#[test]
fn no_socket_of_the_machine_is_reached_unless_a_mount_names_it() {
    let machine = Machine::new();
    let name = format!("spillway-test-{}.sock", std::process::id());
    // Only root can make one in /run.
    let system = ["/run", "/tmp", "/var/tmp", "/dev/shm"].map(|folder| Server::new(&Path::new(folder).join(&name)));
    let own = ["home/.local/share/tool.sock", "home/.ssh/agent.sock", "home/app/app.sock", "home/project/a/dev.sock", "outside/db.sock"];
    let own = own.map(|path| Server::new(&machine.path(path)).expect("a socket"));
    let named = Server::new(&machine.path("outside/named.sock")).expect("a socket");
    let hidden: Vec<PathBuf> = system.iter().flatten().chain(&own).map(|server| server.0.clone()).collect();
    assert!(hidden.len() >= own.len() + 3, "{hidden:?}");
    let mounts =
        format!("mounts: [{{path: {}, access: Write}}, {{path: {}, access: Read}}]", machine.path("outside").display(), named.0.display());
    let paths: Vec<PathBuf> = hidden.iter().chain([&named.0]).cloned().collect();
    for network in ["none", "host"] {
        let config = machine.config(&format!("{mounts}\nnetwork: {network}\n"));
        let [outside, inside] = outside_and_inside(&machine, &["--config", &config], |_| (), &paths);
        assert!(outside.iter().all(|said| said == SAID), "the servers answer: {outside:?}");
        let (last, rest) = inside.split_last().expect("lines");
        assert_eq!((last.as_str(), rest.len()), (SAID, hidden.len()), "the client works inside: {inside:?}");
        assert!(rest.iter().all(|said| said == "No such file or directory" || said == "Connection refused"), "{inside:?}");
    }
    // The command cannot remove what hides a socket. Its own sockets work.
    let script = "rm -f a/dev.sock; mv a b; mv a/dev.sock x; python3 -c 'import socket
server = socket.socket(socket.AF_UNIX); server.bind(\"own.sock\"); server.listen()
client = socket.socket(socket.AF_UNIX); client.connect(\"own.sock\"); print(\"own\")'";
    let output = machine.shell(&[], script);
    assert_eq!(out(&output), "own", "{}", error(&output));
    assert_eq!(error(&output).matches("busy").count(), 3, "{}", error(&output));
    assert!(machine.path("home/project/a/dev.sock").exists());
}

/// As that of a container engine without root: the list of the kernel has only sockets of our own network namespace.
#[test]
fn a_socket_of_another_network_namespace_is_hidden_if_a_variable_names_it() {
    let machine = Machine::new();
    let path = machine.path("home/.local/engine.sock");
    let server = format!(
        "import socket
server = socket.socket(socket.AF_UNIX); server.bind({:?}); server.listen()
while True: server.accept()[0].send(b'{SAID}')",
        path.display().to_string()
    );
    let flags = ["--dev-bind", "/", "/", "--unshare-user", "--unshare-net", "--die-with-parent", "python3", "-c", &server];
    let mut engine = Command::new("bwrap").args(flags).stdin(Stdio::null()).spawn().expect("it runs");
    until("the server listens", || path.exists().then_some(()));
    let name = |command: &mut Command| {
        command.env("DOCKER_HOST", format!("unix://{}", path.display()));
    };
    let paths = [path.clone()];
    let unnamed = outside_and_inside(&machine, &[], |_| (), &paths);
    let named = outside_and_inside(&machine, &[], name, &paths);
    engine.kill().and_then(|()| engine.wait()).expect("it ends");
    assert_eq!(unnamed, [[SAID], [SAID]], "the limit that the how-to names");
    assert_eq!(named, [[SAID], ["Connection refused"]]);
}
