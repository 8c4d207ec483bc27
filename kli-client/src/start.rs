//! Connecting to the daemon of this machine, and starting it where none runs.
//!
//! Of clients that start at the same time one starts the daemon: it holds a lock file beside the socket until
//! the daemon answers, the others wait for either. The daemon has a lock of its own, so a daemon that somebody
//! else starts meanwhile is no harm either.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use crate::error::ConnectError;
use crate::socket::state_dir;

/// How long a daemon may take from its start to its first answer.
pub(crate) const START_SECONDS: u64 = 10;
/// How long another daemon, in whose favour ours may have stepped back, gets to open its socket.
const GRACE: Duration = Duration::from_millis(300);
/// What the daemon writes to its standard error after it was started from here.
const STDERR_NAME: &str = "kli-daemon.stderr";
const STDERR_KEEP: u64 = 1 << 20;

/// Connects to the daemon at `path`, if there is one.
pub(crate) async fn connect(path: &Path) -> Result<UnixStream, ConnectError> {
    let deadline = Instant::now() + Duration::from_secs(START_SECONDS);
    let stream = loop {
        match UnixStream::connect(path).await {
            Ok(stream) => break stream,
            // More clients at once than the daemon's backlog holds.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline => {
                sleep(Duration::from_millis(5)).await;
            }
            Err(e) => return Err(explain(path, e)),
        }
    };
    check_owner(path, &stream)?;
    Ok(stream)
}

fn explain(path: &Path, error: io::Error) -> ConnectError {
    let path = path.to_owned();
    match error.kind() {
        io::ErrorKind::NotFound => ConnectError::NoDaemon { path },
        io::ErrorKind::ConnectionRefused => match std::fs::metadata(&path) {
            Ok(found) if !found.file_type().is_socket() => ConnectError::NotASocket { path },
            _ => ConnectError::NoDaemon { path },
        },
        _ => ConnectError::Socket { path, source: error },
    }
}

/// What is typed here goes to our own daemon only.
fn check_owner(path: &Path, stream: &UnixStream) -> Result<(), ConnectError> {
    let failed = |source| ConnectError::Socket { path: path.to_owned(), source };
    let owner = stream.peer_cred().map_err(failed)?.uid();
    if owner == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    Err(failed(io::Error::new(io::ErrorKind::PermissionDenied, format!("the daemon there belongs to user {owner}"))))
}

/// Connects to the daemon at `path`; starts one (`program`, else the one beside this executable, else the one on
/// PATH) where none runs.
pub(crate) async fn connect_or_start(path: &Path, program: Option<&Path>) -> Result<UnixStream, ConnectError> {
    let deadline = Instant::now() + Duration::from_secs(START_SECONDS);
    let mut lock: Option<File> = None;
    loop {
        match connect(path).await {
            Err(ConnectError::NoDaemon { .. }) => {}
            other => return other,
        }
        let file = match lock.take() {
            Some(file) => file,
            None => open_lock(path)?,
        };
        match file.try_lock() {
            // Whoever held it before may have started one in the meantime: look once more.
            Ok(()) => match connect(path).await {
                Err(ConnectError::NoDaemon { .. }) => return start(path, program, file).await,
                other => return other,
            },
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => lock = Some(file),
            Err(TryLockError::WouldBlock) => return Err(timed_out(path, String::new())),
            Err(TryLockError::Error(source)) => return Err(ConnectError::StartFile { path: lock_path(path), source }),
        }
        sleep(Duration::from_millis(10)).await;
    }
}

fn lock_path(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(".start");
    PathBuf::from(name)
}

fn open_lock(socket: &Path) -> Result<File, ConnectError> {
    let path = lock_path(socket);
    if let Some(dir) = path.parent()
        && !dir.exists()
    {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
        made.map_err(|source| ConnectError::StartFile { path: dir.to_owned(), source })?;
    }
    let no_follow = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    let opened =
        OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).custom_flags(no_follow).open(&path);
    opened.map_err(|source| ConnectError::StartFile { path, source })
}

/// Starts the daemon and waits until it listens. The lock goes with the return.
async fn start(path: &Path, program: Option<&Path>, _lock: File) -> Result<UnixStream, ConnectError> {
    let mut said = Said::open();
    let mut child = spawn(path, program, &said)?;
    let deadline = Instant::now() + Duration::from_secs(START_SECONDS);
    let mut pause = Duration::from_millis(1);
    let mut given_up: Option<(Instant, String)> = None;
    loop {
        match connect(path).await {
            Err(ConnectError::NoDaemon { .. }) => {}
            other => return other,
        }
        let now = Instant::now();
        match (&given_up, child.try_wait()) {
            (Some((since, status)), _) if now > *since + GRACE => {
                return Err(ConnectError::Exited { status: status.clone(), said: said.read() });
            }
            // A success may be one that went on in the background.
            (None, Ok(Some(status))) if !status.success() => given_up = Some((now, status.to_string())),
            _ => {}
        }
        if now > deadline {
            return Err(timed_out(path, said.read()));
        }
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

fn timed_out(path: &Path, said: String) -> ConnectError {
    ConnectError::TimedOut { path: path.to_owned(), seconds: START_SECONDS, said }
}

fn spawn(path: &Path, program: Option<&Path>, said: &Said) -> Result<Child, ConnectError> {
    let program = match program {
        Some(program) => program.to_owned(),
        None => find_program()?,
    };
    let mut command = Command::new(&program);
    command.arg("--socket").arg(path);
    // No file or directory of the caller's stays in use by a daemon that outlives it.
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(said.stdio()).kill_on_drop(false);
    // SAFETY: setsid is async-signal-safe, and nothing else runs between fork and exec.
    unsafe {
        // Out of the terminal's session: neither its Ctrl-C nor its end reaches the daemon.
        command.pre_exec(|| rustix::process::setsid().map(drop).map_err(io::Error::from));
    }
    // Tokio reaps the child even after it was let go, so a daemon that dies leaves no zombie behind.
    command.spawn().map_err(|source| ConnectError::Spawn { program, source })
}

/// The `kli-daemon` beside this executable, else the first on PATH.
fn find_program() -> Result<PathBuf, ConnectError> {
    let own = std::env::current_exe().and_then(std::fs::canonicalize).unwrap_or_default();
    let beside = own.parent().unwrap_or(Path::new("/")).to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).filter(|d| d.is_absolute());
    std::iter::once(beside.clone())
        .chain(on_path)
        .map(|dir| dir.join("kli-daemon"))
        .find(|file| file.is_file())
        .ok_or(ConnectError::NoProgram { beside })
}

/// Where the started daemon's standard error goes, so that a failed start can be explained.
struct Said {
    file: Option<File>,
    from: u64,
}

impl Said {
    fn open() -> Said {
        let open = |dir: PathBuf| -> io::Result<File> {
            DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
            let file =
                OpenOptions::new().create(true).append(true).read(true).mode(0o600).open(dir.join(STDERR_NAME))?;
            if file.metadata()?.len() > STDERR_KEEP {
                file.set_len(0)?;
            }
            Ok(file)
        };
        // Without a place for it the daemon starts all the same; only the explanation is missing.
        let file = state_dir().and_then(|dir| open(dir).ok());
        let from = file.as_ref().and_then(|f| f.metadata().ok()).map_or(0, |m| m.len());
        Said { file, from }
    }

    fn stdio(&self) -> Stdio {
        match self.file.as_ref().map(File::try_clone) {
            Some(Ok(file)) => Stdio::from(file),
            _ => Stdio::null(),
        }
    }

    /// The last 4 KiB that were written since.
    fn read(&mut self) -> String {
        let Some(file) = &mut self.file else { return "it left no message".into() };
        let end = file.metadata().map_or(self.from, |m| m.len());
        let from = self.from.max(end.saturating_sub(4096));
        let mut bytes = Vec::new();
        let read = file.seek(SeekFrom::Start(from)).and_then(|_| file.take(4096).read_to_end(&mut bytes));
        let text = String::from_utf8_lossy(&bytes).trim().to_owned();
        if read.is_err() || text.is_empty() { "it left no message".into() } else { text }
    }
}
