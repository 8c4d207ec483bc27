//! One daemon for each socket and for each session directory.
//!
//! A lock is a `flock` on a file that stays where it is; the process that held it takes it along when it dies,
//! however it dies. What the file says (process id, socket) is only for the message that a second daemon prints.

use std::fs::{DirBuilder, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kli_protocol::error::in_full;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use crate::store::Ownership;

/// Held as long as this lives.
#[derive(Debug)]
pub struct Locks {
    _socket: File,
    session_dir: Option<DirLock>,
}

/// The lock of the session directory, taken again where the directory was removed under the daemon.
#[derive(Debug)]
struct DirLock {
    dir: PathBuf,
    /// What the lock's file tells others.
    socket: PathBuf,
    /// None: nothing could be written there so far. A mutex, since sessions write side by side; held while the lock
    /// is looked at or taken.
    held: Mutex<Option<File>>,
}

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error(
        "another kli-daemon{holder} serves {what}; use it, stop it with `kli daemon stop`, or choose another {what_option}"
    )]
    Held { what: String, what_option: &'static str, holder: Holder },
    #[error("cannot make the session directory {path}: {source}")]
    MakeDirectory { path: PathBuf, source: io::Error },
    #[error("cannot lock {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
}

/// Who holds a lock, as far as its file tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    pub pid: Option<u32>,
    pub socket: Option<String>,
}

impl Holder {
    /// Whether it may still be there; one that is not known counts as alive.
    fn lives(&self) -> bool {
        let Some(pid) = self.pid.and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw) else { return true };
        test_kill_process(pid) != Err(Errno::SRCH)
    }
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.pid, &self.socket) {
            (Some(pid), Some(socket)) => write!(f, " (pid {pid}, socket {socket})"),
            (Some(pid), None) => write!(f, " (pid {pid})"),
            _ => Ok(()),
        }
    }
}

/// A daemon that was killed while it started a command leaves a child that shares its descriptors until it
/// executes: for that moment the lock outlives its holder.
const ORPHAN_TRIES: usize = 100;
const ORPHAN_PAUSE: Duration = Duration::from_millis(10);

/// Where the lock of a session directory lies.
pub const SESSION_DIR_LOCK: &str = ".kli-lock";

/// Takes the lock of a socket path, whose directory exists, and that of the session directory, which is made
/// (0700) where it is missing.
pub fn acquire(socket: &Path, session_dir: Option<&Path>) -> Result<Locks, LockError> {
    let mut beside = socket.as_os_str().to_owned();
    beside.push(".lock");
    let socket_lock = lock(Path::new(&beside), socket, held_by_another(socket, "--socket"))?;
    let session_dir = session_dir.map(|dir| DirLock::new(dir, socket)).transpose()?;
    Ok(Locks { _socket: socket_lock, session_dir })
}

impl Ownership for Locks {
    fn take(&self) -> Result<(), String> {
        self.session_dir.as_ref().map_or(Ok(()), |lock| lock.take().map_err(|error| in_full(&error)))
    }

    fn is_taken(&self) -> bool {
        self.session_dir.as_ref().is_none_or(|lock| lock.is_in_place(&lock.held()))
    }
}

impl DirLock {
    fn new(dir: &Path, socket: &Path) -> Result<DirLock, LockError> {
        let mut lock = DirLock { dir: dir.to_owned(), socket: socket.to_owned(), held: Mutex::default() };
        match lock.take() {
            // There nobody can append; reading and listing need no lock.
            Err(LockError::Io { path, source })
                if matches!(source.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) =>
            {
                tracing::warn!(path = %path.display(), error = %source, "the session directory is read-only");
            }
            taken => taken?,
        }
        // Where the store writes, wherever a link leads later.
        lock.dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
        Ok(lock)
    }

    fn held(&self) -> MutexGuard<'_, Option<File>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A lock on a file that is no longer there, or is another, keeps nobody out.
    fn is_in_place(&self, held: &Option<File>) -> bool {
        let identity = |meta: io::Result<Metadata>| meta.map(|meta| (meta.dev(), meta.ino())).ok();
        let there = identity(std::fs::symlink_metadata(self.dir.join(SESSION_DIR_LOCK)));
        there.is_some() && there == held.as_ref().and_then(|file| identity(file.metadata()))
    }

    fn take(&self) -> Result<(), LockError> {
        let mut held = self.held();
        if self.is_in_place(&held) {
            return Ok(());
        }
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.dir);
        made.map_err(|source| LockError::MakeDirectory { path: self.dir.clone(), source })?;
        let path = self.dir.join(SESSION_DIR_LOCK);
        // The old one is kept until then: the directory may have been moved, and be moved back.
        let taken = lock(&path, &self.socket, held_by_another(&self.dir, "--session-dir"))?;
        if held.replace(taken).is_some() {
            tracing::warn!(path = %self.dir.display(), "the session directory was removed; its lock was taken again");
        }
        Ok(())
    }
}

fn held_by_another(what: &Path, what_option: &'static str) -> impl FnOnce(Holder) -> LockError {
    let what = what.display().to_string();
    move |holder| LockError::Held { what, what_option, holder }
}

fn lock(path: &Path, socket: &Path, held: impl FnOnce(Holder) -> LockError) -> Result<File, LockError> {
    let failed = |source| LockError::Io { path: path.to_owned(), source };
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)
        .map_err(failed)?;
    let mut tries = ORPHAN_TRIES;
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) => {
                let holder = holder(path);
                if tries == 0 || holder.lives() {
                    return Err(held(holder));
                }
                tries -= 1;
                std::thread::sleep(ORPHAN_PAUSE);
            }
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
    }
    let text = format!("{}\n{}\n", std::process::id(), socket.display());
    file.set_len(0).and_then(|()| file.write_all(text.as_bytes())).map_err(failed)?;
    Ok(file)
}

/// Reads who holds a lock. It may have been taken this very moment, and not yet say so.
fn holder(path: &Path) -> Holder {
    const TRIES: usize = 20;
    for _ in 0..TRIES {
        let mut text = String::new();
        let read = File::open(path).and_then(|file| file.take(8192).read_to_string(&mut text));
        let mut lines = text.lines();
        if let (Ok(_), Some(Ok(pid))) = (read, lines.next().map(str::parse)) {
            return Holder { pid: Some(pid), socket: lines.next().map(str::to_owned) };
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Holder::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_told_who_the_first_is() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b, sessions) = (dir.path().join("a"), dir.path().join("b"), dir.path().join("deep/sessions"));
        let first = acquire(&a, Some(&sessions)).unwrap();
        let me = std::process::id();
        for (socket, session_dir, what) in [(&a, None, &a), (&b, Some(&*sessions), &sessions)] {
            let error = acquire(socket, session_dir).unwrap_err();
            let text = error.to_string();
            assert!(matches!(error, LockError::Held { .. }));
            assert!(text.contains(&format!("pid {me}, socket {}", a.display())), "{text}");
            assert!(text.contains(&what.display().to_string()), "{text}");
        }
        drop(first);
        acquire(&b, Some(&sessions)).unwrap();
    }

    #[test]
    fn a_session_directory_that_was_removed_is_locked_anew() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b, sessions) = (dir.path().join("a"), dir.path().join("b"), dir.path().join("sessions"));
        let first = acquire(&a, Some(&sessions)).unwrap();
        assert!(first.is_taken());
        std::fs::remove_dir_all(&sessions).unwrap();
        assert!(!first.is_taken() && !sessions.exists(), "looking makes no directory");
        first.take().unwrap();
        assert!(matches!(acquire(&b, Some(&sessions)), Err(LockError::Held { .. })));
        // Another daemon is quicker.
        std::fs::remove_dir_all(&sessions).unwrap();
        let second = acquire(&b, Some(&sessions)).unwrap();
        let told = first.take().unwrap_err();
        assert!(told.contains(&format!("pid {}, socket {}", std::process::id(), b.display())), "{told}");
        assert!(!first.is_taken() && second.is_taken());
        drop(second);
        first.take().unwrap();
        assert!(first.is_taken());
    }

    #[test]
    fn what_a_dead_daemon_left_does_not_block() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        // The id of a process that lives: this one.
        std::fs::write(dir.path().join("s.lock"), format!("{}\n/elsewhere\nrest", std::process::id())).unwrap();
        let _locks = acquire(&socket, None).unwrap();
        let text = std::fs::read_to_string(dir.path().join("s.lock")).unwrap();
        assert_eq!(text, format!("{}\n{}\n", std::process::id(), socket.display()));
    }

    #[test]
    fn a_session_directory_that_is_a_file_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("sessions");
        std::fs::write(&file, "mine").unwrap();
        assert!(matches!(acquire(&dir.path().join("s"), Some(&file)), Err(LockError::MakeDirectory { .. })));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
    }
}
