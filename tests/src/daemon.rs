//! The real daemon, in a home of its own that is gone at the end.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::{Client, ModelServer, PATIENCE, binary, fixtures, process};

/// What a caller's environment may lend to the daemon: no keys, no proxies, no settings of ours.
const LENT: &[&str] = &["PATH", "LANG", "LANGUAGE", "TERM", "TZ", "USER", "LOGNAME", "SHELL", "LD_LIBRARY_PATH"];

/// How a daemon is to be started.
#[derive(Default)]
pub struct Setup {
    persisted: bool,
    session_dir: Option<PathBuf>,
    config: Option<String>,
    env: BTreeMap<String, String>,
}

impl Setup {
    /// Sessions in memory, no configuration: the offline model.
    pub fn new() -> Setup {
        Setup::default()
    }

    /// Sessions in files, in a directory of the daemon's own.
    pub fn persisted(mut self) -> Setup {
        self.persisted = true;
        self
    }

    /// Sessions in files, in this directory.
    pub fn session_dir(mut self, directory: &Path) -> Setup {
        self.session_dir = Some(directory.to_owned());
        self
    }

    /// A model server is the default model, no tool call needs a person, retries come soon.
    pub fn model(self, server: &ModelServer) -> Setup {
        self.config(server.config(200_000))
    }

    /// `config.toml`
    pub fn config(mut self, text: impl Into<String>) -> Setup {
        self.config = Some(text.into());
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Setup {
        self.env.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Makes the place without starting anything.
    pub fn prepare(self) -> Daemon {
        let dir = fixtures::temp_dir("kli-d");
        let home = dir.path().join("home");
        std::fs::create_dir_all(home.join("config/kli")).unwrap();
        let config = self.config.map(|text| {
            let path = home.join("config/kli/config.toml");
            std::fs::write(&path, text).unwrap();
            path
        });
        let session_dir = self.session_dir.or_else(|| self.persisted.then(|| dir.path().join("sessions")));
        let socket = dir.path().join("s");
        let mut env: BTreeMap<String, String> = std::env::vars()
            .filter(|(name, _)| LENT.contains(&name.as_str()) || name.starts_with("LC_") || name.starts_with("RUST"))
            .collect();
        for (name, path) in [
            ("HOME", home.clone()),
            ("XDG_CONFIG_HOME", home.join("config")),
            ("XDG_STATE_HOME", home.join("state")),
            ("XDG_DATA_HOME", home.join("data")),
            ("XDG_CACHE_HOME", home.join("cache")),
            ("XDG_RUNTIME_DIR", dir.path().to_owned()),
            ("KLI_SOCKET", socket.clone()),
        ] {
            env.insert(name.to_owned(), path.to_str().expect("a temporary path in UTF-8").to_owned());
        }
        env.extend(self.env);
        Daemon { dir, home, socket, session_dir, config, env, running: None }
    }

    /// Starts a daemon and returns when it answers.
    #[track_caller]
    pub fn start(self) -> Daemon {
        let mut daemon = self.prepare();
        daemon.start();
        daemon
    }
}

/// A daemon and its place: socket, home, log. Dropping it ends it, kills whatever it left, and removes the place.
pub struct Daemon {
    dir: tempfile::TempDir,
    pub home: PathBuf,
    pub socket: PathBuf,
    pub session_dir: Option<PathBuf>,
    pub config: Option<PathBuf>,
    pub env: BTreeMap<String, String>,
    running: Option<Running>,
}

struct Running {
    pid: u32,
    exit: mpsc::Receiver<ExitStatus>,
}

/// How a command ended.
#[derive(Debug)]
pub struct Finished {
    /// None: killed, since it did not end by itself.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Finished {
    #[track_caller]
    pub fn success(self) -> Finished {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl Daemon {
    /// The command that starts it in the foreground.
    pub fn command(&self) -> Command {
        self.command_on(&self.socket)
    }

    fn command_on(&self, socket: &Path) -> Command {
        let mut command = Command::new(binary::daemon());
        command.args(["--foreground", "--socket"]).arg(socket);
        if let Some(directory) = &self.session_dir {
            command.arg("--session-dir").arg(directory);
        }
        if let Some(config) = &self.config {
            command.arg("--config").arg(config);
        }
        command.env_clear().envs(&self.env).current_dir(self.dir.path()).stdin(Stdio::null());
        command
    }

    /// Starts it, also again after an end, and gives the time until it answered.
    #[track_caller]
    pub fn start(&mut self) -> Duration {
        assert!(self.running.is_none(), "the daemon runs already");
        let log = std::fs::File::options().create(true).append(true).open(self.log_path()).unwrap();
        let started = Instant::now();
        let child = self.command().stdout(log.try_clone().unwrap()).stderr(log).spawn().expect("start the daemon");
        let running = watch(child);
        let mut pause = Duration::from_millis(1);
        loop {
            if Client::connect(&self.socket).ok().and_then(|mut client| client.ping()).is_some() {
                self.running = Some(running);
                return started.elapsed();
            }
            // Waiting for its end is the pause: one that dies is told at once.
            if let Ok(status) = running.exit.recv_timeout(pause) {
                panic!("the daemon ended with {status} before it answered: {}", self.log());
            }
            if started.elapsed() > PATIENCE {
                process::signal(running.pid, Signal::KILL);
                panic!("the daemon did not answer in {PATIENCE:?}: {}", self.log());
            }
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    #[track_caller]
    pub fn client(&self) -> Client {
        Client::connect(&self.socket).unwrap_or_else(|error| panic!("connect to the daemon: {error}; {}", self.log()))
    }

    /// Its place: also the directory in which it was started.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    #[track_caller]
    pub fn pid(&self) -> u32 {
        self.running.as_ref().expect("the daemon runs").pid
    }

    /// `kill -9`
    #[track_caller]
    pub fn kill9(&mut self) {
        self.end(Signal::KILL);
    }

    /// SIGTERM, and how it ended.
    #[track_caller]
    pub fn terminate(&mut self) -> ExitStatus {
        self.end(Signal::TERM)
    }

    #[track_caller]
    fn end(&mut self, signal: Signal) -> ExitStatus {
        process::signal(self.pid(), signal);
        self.exited()
    }

    /// Returns when it has ended by itself.
    #[track_caller]
    pub fn exited(&mut self) -> ExitStatus {
        let running = self.running.take().expect("the daemon runs");
        running.exit.recv_timeout(PATIENCE).unwrap_or_else(|_| {
            process::signal(running.pid, Signal::KILL);
            panic!("the daemon did not end in {PATIENCE:?}: {}", self.log())
        })
    }

    pub fn is_running(&self) -> bool {
        self.running.as_ref().is_some_and(|running| process::status(running.pid, "Pid").is_some())
    }

    fn log_path(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// The end of what it printed.
    pub fn log(&self) -> String {
        let bytes = std::fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(2000)..]).into_owned()
    }

    /// Processes that it or its clients started and that are still there, itself among them while it runs.
    pub fn processes(&self) -> Vec<i32> {
        process::with_variable("KLI_SOCKET", self.socket.to_str().unwrap())
    }

    /// What it left behind: processes, once it has ended.
    pub fn stragglers(&self) -> Vec<i32> {
        let own = self.running.as_ref().map(|running| running.pid as i32);
        self.processes().into_iter().filter(|pid| Some(*pid) != own).collect()
    }

    /// Returns when nothing that it started is left: a killed process takes a moment to be gone.
    #[track_caller]
    pub fn until_no_stragglers(&self, patience: Duration) {
        let gone = crate::poll(patience, || self.stragglers().is_empty());
        assert!(gone, "still there after {patience:?}: {:?}", self.stragglers());
    }

    pub fn rss_bytes(&self) -> u64 {
        process::status(self.pid(), "VmRSS").unwrap_or(0) << 10
    }

    pub fn open_files(&self) -> usize {
        process::open_files(self.pid())
    }

    pub fn cpu_time(&self) -> Duration {
        process::cpu_time(self.pid()).unwrap_or_default()
    }

    /// The command `kli` with this daemon's socket and home.
    pub fn kli_command<S: AsRef<OsStr>>(&self, work_dir: &Path, args: &[S]) -> Command {
        let mut command = Command::new(binary::kli());
        command.args(args).env_clear().envs(&self.env).current_dir(work_dir);
        command
    }

    /// Runs `kli` to its end with nothing on its input.
    #[track_caller]
    pub fn kli<S: AsRef<OsStr>>(&self, work_dir: &Path, args: &[S]) -> Finished {
        finish(self.kli_command(work_dir, args), "")
    }

    #[track_caller]
    pub fn kli_with_input<S: AsRef<OsStr>>(&self, work_dir: &Path, args: &[S], input: &str) -> Finished {
        finish(self.kli_command(work_dir, args), input)
    }

    /// Another daemon of the same place, which is expected to end by itself.
    #[track_caller]
    pub fn run_second(&self) -> Finished {
        self.run_on(&self.socket)
    }

    /// The same, on another socket.
    #[track_caller]
    pub fn run_on(&self, socket: &Path) -> Finished {
        finish(self.command_on(socket), "")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            process::signal(running.pid, Signal::TERM);
            if running.exit.recv_timeout(Duration::from_secs(5)).is_err() {
                process::signal(running.pid, Signal::KILL);
                let _ = running.exit.recv_timeout(Duration::from_secs(5));
            }
        }
        for pid in self.processes() {
            process::signal(pid as u32, Signal::KILL);
        }
        if std::thread::panicking() {
            eprintln!("the daemon's log ends with: {}", self.log());
        }
    }
}

/// One thread waits for each child, so that its end is a message.
fn watch(mut child: std::process::Child) -> Running {
    let pid = child.id();
    let (send, exit) = mpsc::channel();
    std::thread::spawn(move || {
        if let Ok(status) = child.wait() {
            let _ = send.send(status);
        }
    });
    Running { pid, exit }
}

/// Runs a command to its end, or kills it when that does not come.
#[track_caller]
pub fn finish(mut command: Command, input: &str) -> Finished {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("start {command:?}: {error}"));
    let pid = child.id();
    let mut stdin = child.stdin.take().expect("a pipe");
    let input = input.to_owned();
    std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let (send, done) = mpsc::channel();
    std::thread::spawn(move || send.send(child.wait_with_output()));
    // Twice the usual, for a command that itself waits for a daemon to come up.
    let output = done.recv_timeout(PATIENCE * 2).unwrap_or_else(|_| {
        process::signal(pid, Signal::KILL);
        panic!("{command:?} did not end")
    });
    let output = output.expect("what the command printed");
    Finished {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
