//! A session file: opened for reading, and for appending at the first append.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::medium::{Lost, Medium};
use super::{Result, StoreError};

pub struct Disk {
    path: PathBuf,
    file: File,
    writer: OnceLock<File>,
    device: u64,
    inode: u64,
    /// The lock on a file outside the session directory; the descriptor holds it.
    lock: Option<File>,
}

/// Whether a file is locked by itself: one inside the session directory is covered by the directory's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locking {
    None,
    Own,
    /// Read beside whoever has it: not as the session that it is.
    Apart,
}

impl Disk {
    /// An existing file. Nothing is written.
    pub fn open(path: &Path, locking: Locking) -> Result<Disk> {
        let failed = |source| StoreError::Io { act: format!("cannot open {}", path.display()), source };
        let file = File::open(path).map_err(failed)?;
        let meta = file.metadata().map_err(failed)?;
        if !meta.is_file() {
            let reason = "is no file".to_owned();
            return Err(StoreError::Corrupt { path: path.to_owned(), reason, offset: None });
        }
        Ok(Disk {
            path: path.to_owned(),
            lock: lock(path, &file, locking)?,
            file,
            writer: OnceLock::new(),
            device: meta.dev(),
            inode: meta.ino(),
        })
    }

    /// A new file that holds `bytes`, written at once; a failure leaves none behind.
    pub fn create(path: &Path, bytes: &[u8], locking: Locking) -> Result<Disk> {
        let failed = |source| StoreError::Io { act: format!("cannot make {}", path.display()), source };
        if let Some(dir) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
        }
        let made = OpenOptions::new().read(true).append(true).create_new(true).mode(0o600).open(path);
        let mut file = match made {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                return Err(StoreError::FileExists { path: path.to_owned() });
            }
            made => made.map_err(failed)?,
        };
        let make = || -> Result<Disk> {
            file.write_all(bytes).map_err(failed)?;
            let meta = file.metadata().map_err(failed)?;
            let lock = lock(path, &file, locking)?;
            let writer = OnceLock::from(file.try_clone().map_err(failed)?);
            Ok(Disk { path: path.to_owned(), lock, file, writer, device: meta.dev(), inode: meta.ino() })
        };
        make().inspect_err(|_| {
            let _ = std::fs::remove_file(path);
        })
    }

    pub fn is_locked(&self) -> bool {
        self.lock.is_some()
    }

    fn writer(&self) -> io::Result<&File> {
        if let Some(writer) = self.writer.get() {
            return Ok(writer);
        }
        let writer = OpenOptions::new().append(true).open(&self.path)?;
        let meta = writer.metadata()?;
        if (meta.dev(), meta.ino()) != (self.device, self.inode) {
            return Err(io::Error::other("the file was replaced"));
        }
        Ok(self.writer.get_or_init(|| writer))
    }
}

fn lock(path: &Path, file: &File, locking: Locking) -> Result<Option<File>> {
    if locking != Locking::Own {
        return Ok(None);
    }
    let failed = |source| StoreError::Io { act: format!("cannot lock {}", path.display()), source };
    let held = file.try_clone().map_err(failed)?;
    match held.try_lock() {
        Ok(()) => Ok(Some(held)),
        Err(std::fs::TryLockError::WouldBlock) => {
            Err(StoreError::Other(format!("{} is open in another program; close it there first", path.display())))
        }
        Err(std::fs::TryLockError::Error(e)) => Err(failed(e)),
    }
}

/// Brings a directory's entries to disk.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

impl Medium for Disk {
    fn size(&self) -> Result<u64, Lost> {
        let path = self.path.display();
        match std::fs::metadata(&self.path) {
            Ok(meta) if (meta.dev(), meta.ino()) == (self.device, self.inode) => Ok(meta.len()),
            Ok(_) => Err(Lost(format!("{path} was replaced by another file"))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(Lost(format!("{path} is gone"))),
            Err(e) => Err(Lost(format!("{path} cannot be looked at: {e}"))),
        }
    }

    fn room(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        self.writer()?.write_all(bytes)
    }

    fn cut(&self, to: u64) -> io::Result<()> {
        self.writer()?.set_len(to)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.file.read_at(rest, offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn unlock(&self) {
        if let Some(lock) = &self.lock
            && let Err(error) = lock.unlock()
        {
            tracing::warn!(path = %self.path.display(), %error, "the lock of a session file stays until it is closed");
        }
    }
}
