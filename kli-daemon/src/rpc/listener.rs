//! The socket's place in the file system: who may reach it, and whose it is.
//!
//! Nothing that lies at the path is ever removed but a socket on which nobody listens, and that only by whoever
//! holds the lock of that path (`crate::lock`), which callers of [`bind`] take first.

use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener as StdListener, UnixStream as StdStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::{UnixListener, UnixStream};

/// The longest path that the system can bind, in bytes.
const MAX_PATH_BYTES: usize = if cfg!(target_os = "linux") { 107 } else { 103 };

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error(
        "the socket path is too long: {length} bytes, the system's limit is {MAX_PATH_BYTES}; \
         give a shorter one with --socket or KLI_SOCKET: {path}"
    )]
    TooLong { path: PathBuf, length: usize },
    #[error("the socket path has no directory: {0}")]
    NoDirectory(PathBuf),
    #[error("cannot make the socket's directory {path}: {source}")]
    MakeDirectory { path: PathBuf, source: io::Error },
    #[error("the socket's directory belongs to another user (uid {owner}): {path}; choose one of your own")]
    ForeignDirectory { path: PathBuf, owner: u32 },
    #[error("others may write to the socket's directory {path} (mode {mode:03o}); run: chmod go-w {path}")]
    OpenDirectory { path: PathBuf, mode: u32 },
    #[error("{path} is {what}, not a socket; it is left as it is. Choose another path or move it away")]
    NotASocket { path: PathBuf, what: &'static str },
    #[error("another program listens at {0}; stop it or choose another path")]
    InUse(PathBuf),
    #[error("cannot {act} {path}: {source}")]
    Io { act: &'static str, path: PathBuf, source: io::Error },
    #[error("the socket that was passed to this process cannot be used: {0}")]
    Passed(io::Error),
}

/// Checks the path's length, and makes its directory (0700) or checks the one there is.
pub fn prepare(path: &Path) -> Result<(), BindError> {
    let length = path.as_os_str().len();
    if length > MAX_PATH_BYTES {
        return Err(BindError::TooLong { path: path.to_owned(), length });
    }
    let directory = match path.parent() {
        Some(directory) if path.file_name().is_some() && directory.is_absolute() => directory,
        _ => return Err(BindError::NoDirectory(path.to_owned())),
    };
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .and_then(|()| fs::metadata(directory))
        .map_err(|source| BindError::MakeDirectory { path: directory.to_owned(), source })
        .and_then(|metadata| check_directory(directory, &metadata))
}

fn check_directory(path: &Path, metadata: &Metadata) -> Result<(), BindError> {
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(BindError::ForeignDirectory { path: path.to_owned(), owner: metadata.uid() });
    }
    if metadata.mode() & 0o022 != 0 {
        return Err(BindError::OpenDirectory { path: path.to_owned(), mode: metadata.mode() & 0o777 });
    }
    Ok(())
}

/// A socket that listens. Dropped, it leaves nothing behind.
#[derive(Debug)]
pub struct Bound {
    listener: UnixListener,
    path: PathBuf,
    /// The socket's device and inode, when it is ours to remove.
    made: Option<(u64, u64)>,
}

/// Listens at a path that was [`prepare`]d and whose lock is held. Needs a tokio runtime.
pub fn bind(path: &Path) -> Result<Bound, BindError> {
    let failed = |act| {
        let path = path.to_owned();
        move |source| BindError::Io { act, path, source }
    };
    clear_the_way(path)?;
    let listener = listen(path).map_err(failed("listen at"))?;
    let metadata = fs::symlink_metadata(path).map_err(failed("look at"))?;
    let mut bound = to_tokio(listener, path.to_owned()).map_err(failed("listen at"))?;
    bound.made = Some((metadata.dev(), metadata.ino()));
    Ok(bound)
}

/// The socket that systemd (or another starter that speaks `LISTEN_FDS`) passed to this process, if it did. It
/// stays the starter's: it is not removed at the end.
pub fn activated() -> Result<Option<Bound>, BindError> {
    let Some(listener) = listenfd::ListenFd::from_env().take_unix_listener(0).map_err(BindError::Passed)? else {
        return Ok(None);
    };
    let address = listener.local_addr().map_err(BindError::Passed)?;
    let path = address.as_pathname().map(Path::to_owned).unwrap_or_default();
    to_tokio(listener, path).map(Some).map_err(BindError::Passed)
}

/// Tells systemd, if it asked, that clients may come.
pub fn notify_ready() {
    notify(&[sd_notify::NotifyState::Ready]);
}

/// Tells systemd, if it asked, that the daemon is about to end.
pub fn notify_stopping() {
    notify(&[sd_notify::NotifyState::Stopping]);
}

fn notify(state: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "cannot tell the service manager");
    }
}

/// Removes a socket on which nobody listens; refuses whatever else is there.
fn clear_the_way(path: &Path) -> Result<(), BindError> {
    let io = |act, source| BindError::Io { act, path: path.to_owned(), source };
    let kind = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata.file_type(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(io("look at", e)),
    };
    if !kind.is_socket() {
        let what = match () {
            () if kind.is_dir() => "a directory",
            () if kind.is_symlink() => "a symbolic link",
            () if kind.is_fifo() => "a FIFO",
            () if kind.is_file() => "a file",
            () => "a device",
        };
        return Err(BindError::NotASocket { path: path.to_owned(), what });
    }
    match StdStream::connect(path) {
        Ok(_) => Err(BindError::InUse(path.to_owned())),
        // Nobody listens; the lock's holder may take its place.
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|e| io("remove the stale socket", e))
        }
        // A full backlog: somebody listens.
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Err(BindError::InUse(path.to_owned())),
        Err(e) => Err(io("reach the socket at", e)),
    }
}

/// Binds, takes the socket from all others, and only then listens.
fn listen(path: &Path) -> io::Result<StdListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(StdListener::from(socket))
}

fn to_tokio(listener: StdListener, path: PathBuf) -> io::Result<Bound> {
    listener.set_nonblocking(true)?;
    Ok(Bound { listener: UnixListener::from_std(listener)?, path, made: None })
}

impl Bound {
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The next connection of our own user. Waits out a lack of file descriptors or memory.
    pub(super) async fn accept(&self) -> UnixStream {
        let mut pause = Duration::from_millis(10);
        loop {
            let error = match self.listener.accept().await {
                Ok((socket, _)) if is_ours(&socket) => return socket,
                Ok(_) => continue,
                Err(error) => error,
            };
            // A client that left before it was accepted is no reason to wait.
            if error.kind() == io::ErrorKind::ConnectionAborted {
                continue;
            }
            tracing::warn!(%error, "cannot accept a connection, trying again in {pause:?}");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }
}

fn is_ours(socket: &UnixStream) -> bool {
    let ours = rustix::process::geteuid().as_raw();
    match socket.peer_cred() {
        Ok(peer) if peer.uid() == ours => true,
        Ok(peer) => {
            tracing::warn!(uid = peer.uid(), "refused a connection of another user");
            false
        }
        Err(error) => {
            tracing::warn!(%error, "refused a connection whose user cannot be told");
            false
        }
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // Somebody may have put something else there meanwhile; that is not ours.
        let there = fs::symlink_metadata(&self.path).map(|metadata| (metadata.dev(), metadata.ino())).ok();
        if self.made.is_some() && self.made == there {
            let _ = fs::remove_file(&self.path);
        }
    }
}
