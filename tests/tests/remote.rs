//! `kli --host`: the daemon of another machine over a real sshd, which is this machine's own, started here as this
//! user on the loopback interface, with keys and configuration of its own. Without an sshd the tests say so.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kli_tests::{Daemon, Finished, Gate, ModelServer, PATIENCE, Reply, Session, Setup, fixtures, poll, process, raw};
use serde_json::{Value, json};

/// An sshd, and an ssh that knows it as `box`.
struct Sshd {
    dir: tempfile::TempDir,
    server: Child,
    port: u16,
}

/// The environment of what runs on the other machine.
type Env<'a> = &'a std::collections::BTreeMap<String, String>;

fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/usr/local/sbin", "/sbin"].map(PathBuf::from);
    let found = std::env::split_paths(&path).chain(more).map(|dir| dir.join(name)).find(|file| file.is_file());
    if found.is_none() {
        eprintln!("skipped: there is no {name}");
    }
    found
}

impl Sshd {
    /// None, and why is said: there is none to be had.
    fn start(env: Env) -> Option<Sshd> {
        let (sshd, ssh, keygen) = (find("sshd")?, find("ssh")?, find("ssh-keygen")?);
        let is_root = rustix::process::geteuid().is_root();
        if is_root && std::fs::create_dir_all("/run/sshd").is_err() {
            eprintln!("skipped: an sshd of root needs /run/sshd");
            return None;
        }
        let dir = fixtures::temp_dir("kli-s");
        for key in ["host_key", "key"] {
            let mut make = Command::new(&keygen);
            make.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(dir.path().join(key));
            assert!(make.status().unwrap().success());
        }
        let text = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        let write = |name: &str, text: String| std::fs::write(dir.path().join(name), text).unwrap();
        write("authorized_keys", text("key.pub"));
        let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        let at = |name: &str| dir.path().join(name).display().to_string();
        let variables: Vec<String> =
            env.iter().filter(|(name, _)| *name != "PATH").map(|(name, value)| format!("\"{name}={value}\"")).collect();
        write(
            "sshd_config",
            format!(
                "ListenAddress 127.0.0.1:{port}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nStrictModes no\n\
                 UsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nDenyUsers nobody\nLogLevel ERROR\nSetEnv {}\n",
                at("host_key"),
                at("authorized_keys"),
                variables.join(" ")
            ),
        );
        write("known_hosts", format!("[127.0.0.1]:{port} {}", text("host_key.pub")));
        write(
            "ssh_config",
            format!(
                "Host box stranger\nHostName 127.0.0.1\nPort {port}\nIdentityFile {}\nIdentitiesOnly yes\nBatchMode yes\n\
                 StrictHostKeyChecking yes\nLogLevel ERROR\n\
                 Host box\nUserKnownHostsFile {}\n\
                 Host stranger\nUserKnownHostsFile /dev/null\n",
                at("key"),
                at("known_hosts"),
            ),
        );
        // ssh looks for its configuration in the home that the system knows, whatever HOME says.
        std::fs::create_dir(dir.path().join("bin")).unwrap();
        write("bin/ssh", format!("#!/bin/sh\nexec {} -F {} \"$@\"\n", ssh.display(), at("ssh_config")));
        let runs = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(dir.path().join("bin/ssh"), runs).unwrap();
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let mut server = Command::new(sshd)
            .args(["-D", "-e", "-f"])
            .arg(dir.path().join("sshd_config"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let up = poll(PATIENCE, || greets(port) || server.try_wait().unwrap().is_some());
        assert!(up && server.try_wait().unwrap().is_none(), "the sshd did not start: {}", text("log"));
        Some(Sshd { dir, server, port })
    }

    /// `kli` on a machine that has nothing but this ssh.
    fn kli(&self, program: &OsStr, work_dir: &Path) -> Command {
        let mut command = Command::new(program);
        let path = std::env::var("PATH").unwrap();
        command.env_clear().env("PATH", format!("{}:{path}", self.dir.path().join("bin").display()));
        command.env("HOME", self.dir.path()).current_dir(work_dir);
        command
    }

    /// Breaks every connection that there is.
    fn cut(&self) {
        for pid in children(self.server.id()) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        self.cut();
        let _ = self.server.kill();
        let _ = self.server.wait();
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
            eprintln!("the sshd on port {} said: {log}", self.port);
        }
    }
}

fn greets(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    let mut greeting = [0; 4];
    stream.read_exact(&mut greeting).is_ok() && &greeting == b"SSH-"
}

/// The processes that a process has started (Linux).
fn children(of: u32) -> Vec<rustix::process::Pid> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| process::status(*pid, "PPid") == Some(u64::from(of)))
        .filter_map(|pid| rustix::process::Pid::from_raw(i32::try_from(pid).ok()?))
        .collect()
}

struct Remote {
    server: ModelServer,
    daemon: Daemon,
    work_dir: tempfile::TempDir,
    ssh: Sshd,
}

impl Remote {
    fn start(replies: impl IntoIterator<Item = Reply>) -> Option<Remote> {
        let server = ModelServer::with(replies);
        let daemon = Setup::new().persisted().model(&server).prepare();
        let ssh = Sshd::start(&daemon.env)?;
        Some(Remote { server, daemon, work_dir: fixtures::work_dir(), ssh })
    }

    /// `kli --host HOST …` with `kli` at a path over there.
    fn kli_at(&self, host: &str, there: &OsStr, args: &[&str]) -> Command {
        let mut command = self.ssh.kli(self.program().as_ref(), self.work_dir.path());
        command.args(["--host", host, "--remote-kli"]).arg(there).args(args);
        command
    }

    fn program(&self) -> PathBuf {
        self.daemon.kli_command::<&str>(self.work_dir.path(), &[]).get_program().into()
    }

    fn kli(&self, args: &[&str]) -> Command {
        self.kli_at("box", self.program().as_ref(), args)
    }

    #[track_caller]
    fn run(&self, args: &[&str]) -> Finished {
        kli_tests::finish(self.kli(args), "")
    }
}

#[test]
fn a_prompt_on_another_machine() {
    let Some(mut remote) = Remote::start([Reply::text("from afar"), Reply::text("again")]) else { return };
    remote.daemon.start();
    let reply = remote.run(&["-p", "hello", "--output", "json"]).success().json();
    assert_eq!(reply["text"], "from afar", "{reply}");
    let listed = remote.daemon.client().call("listSessions", json!({}));
    assert_eq!(listed["sessions"][0]["sessionId"], reply["sessionId"], "it is that daemon's: {listed}");
    let id = reply["sessionId"].as_str().unwrap();
    assert_eq!(remote.run(&["-p", "more", "--session", id]).success().stdout, "again\n");
    let tree = remote.run(&["tree", id]).success().stdout;
    assert!(tree.contains("hello") && tree.contains("more"), "{tree}");
    // Its own words come through as they are: an exit status, and an error on standard error.
    let failed = remote.run(&["show", "no-such-session"]);
    assert!(failed.code == Some(1) && failed.stderr.contains("no-such-session"), "{failed:?}");
    remote.server.assert_valid();
}

/// What is over there is started there, as it is here.
#[test]
fn a_daemon_is_started_over_there() {
    let Some(remote) = Remote::start([]) else { return };
    let status = remote.run(&["rpc", "ping"]).success().json();
    let pid = status["pid"].as_u64().unwrap() as u32;
    assert!(remote.daemon.processes().contains(&(pid as i32)), "it has the environment of that machine");
    // It outlives the connection that it was started over.
    assert_eq!(remote.run(&["rpc", "ping"]).success().json()["pid"], json!(pid));
    remote.run(&["daemon", "stop"]).success();
    assert!(poll(PATIENCE, || process::status(pid, "Pid").is_none()), "it was stopped");
}

/// The network goes while the model speaks: the run goes on, and the client ends with all of it.
#[test]
fn the_network_goes_and_comes_back() {
    let gate = Gate::new();
    let Some(mut remote) = Remote::start([Reply::held("first half, ", &gate, "second half")]) else { return };
    remote.daemon.start();
    let mut command = remote.kli(&["-p", "hello", "--output", "stream-json"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let _watchdog = process::Watchdog::over(child.id());
    let (mut stdout, mut printed) = (child.stdout.take().unwrap(), Vec::new());
    while !String::from_utf8_lossy(&printed).contains("first half, ") {
        let mut piece = [0; 4096];
        let length = stdout.read(&mut piece).unwrap();
        assert_ne!(length, 0, "{:?}", child.wait_with_output());
        printed.extend_from_slice(&piece[..length]);
    }
    remote.ssh.cut();
    gate.open();
    stdout.read_to_end(&mut printed).unwrap();
    let output = child.wait_with_output().unwrap();
    let lines: Vec<Value> = String::from_utf8(printed)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    let text: String = lines.iter().filter(|e| e["type"] == "textDelta").filter_map(|e| e["delta"].as_str()).collect();
    assert_eq!(text, "first half, second half", "{lines:#?}\n{output:?}");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(lines.iter().filter(|e| e["type"] == "runEnd").count(), 1);
    assert_eq!(lines.last().unwrap()["text"], "first half, second half");
    assert_eq!(remote.server.requests().len(), 1, "one run");
}

/// Faults end soon, with a status that is not 0 and the words of whoever found them.
#[test]
fn faults_of_the_way() {
    let Some(mut remote) = Remote::start([]) else { return };
    remote.daemon.start();
    let program = remote.program();
    for (host, there, said) in [
        ("stranger", program.as_path(), "Host key verification failed"),
        ("box", Path::new("/nowhere/kli"), "/nowhere/kli"),
        ("nobody@box", program.as_path(), "Permission denied"),
    ] {
        let finished = kli_tests::finish(remote.kli_at(host, there.as_ref(), &["ls"]), "");
        assert_eq!(finished.code, Some(1), "{host}: {finished:?}");
        assert!(finished.stderr.contains(said), "{host}: {finished:?}");
        assert!(finished.stdout.is_empty(), "{finished:?}");
    }
}

/// `kli bridge` is bytes in and bytes out, in any framing, whatever their size.
#[test]
fn the_bridge_alone() {
    let mut daemon = Setup::new().prepare();
    daemon.start();
    let work_dir = fixtures::work_dir();
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    let long =
        json!({ "jsonrpc": "2.0", "id": 2, "method": "getSession", "params": { "sessionId": "x".repeat(3 << 20) } });
    for (input, replies) in [
        (format!("{ping}\n{long}\n").into_bytes(), 2),
        ([raw::framed(ping.as_bytes()), raw::framed(long.to_string().as_bytes())].concat(), 2),
        // Nothing is asked, nothing is said.
        (Vec::new(), 0),
    ] {
        let finished =
            daemon.kli_with_input(work_dir.path(), &["bridge"], std::str::from_utf8(&input).unwrap()).success();
        assert_eq!(finished.stdout.matches(r#""jsonrpc":"2.0""#).count(), replies, "{finished:?}");
    }
}

/// The bridge ends when either side does.
#[test]
fn the_bridge_ends() {
    let mut daemon = Setup::new().prepare();
    daemon.start();
    let work_dir = fixtures::work_dir();
    let bridge = |daemon: &Daemon| {
        let mut command = daemon.kli_command(work_dir.path(), &["bridge"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // Answered once, so that it is known to be there.
        child.stdin.as_mut().unwrap().write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n").unwrap();
        let mut byte = [0];
        child.stdout.as_mut().unwrap().read_exact(&mut byte).unwrap();
        child
    };
    let ends = |child: &mut Child| poll(Duration::from_secs(10), || child.try_wait().unwrap().is_some());
    // Whoever read its output is gone, while its input stays open and a subscription has nothing to say.
    let mut session = Session::create(&daemon, work_dir.path());
    let mut child = bridge(&daemon);
    let call = json!({ "jsonrpc": "2.0", "id": 2, "method": "subscribe", "params": { "sessionId": session.id } });
    writeln!(child.stdin.as_mut().unwrap(), "{call}").unwrap();
    drop(child.stdout.take());
    assert!(ends(&mut child), "its reader has gone");
    let connections = |session: &mut Session| session.client.call("getStatus", json!({}))["connections"].clone();
    assert!(poll(PATIENCE, || connections(&mut session) == 1), "and the daemon knows");
    let mut child = bridge(&daemon);
    daemon.kill9();
    assert!(ends(&mut child), "the daemon has gone");
}
