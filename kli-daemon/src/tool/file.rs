//! Files for tools: opened without ever blocking, decoded and encoded without loss, replaced at once or not at
//! all, and written by one call at a time.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use rustix::fs::{Access, OFlags};
use tokio::sync::OwnedMutexGuard;

use crate::text;

/// The largest file that is read whole, to be edited or compared.
pub(crate) const LARGEST_EDITED: u64 = 64 * 1024 * 1024;
/// The largest file that is looked into for a question to a person, which must come quickly.
pub(crate) const LARGEST_OUTLINED: u64 = 1024 * 1024;

#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error("There is no file {0}.")]
    NotFound(String),
    #[error("{0} is a directory.")]
    Directory(String),
    #[error("{0} is {1}, not a file that can be read or written.")]
    Special(String, &'static str),
    #[error("{0} is read-only (mode {1:04o}).")]
    ReadOnly(String, u32),
    #[error("{0} is {1}, more than the {2} that can be edited. Use bash for it.")]
    TooLarge(String, String, String),
    #[error("{0} was changed by another program meanwhile; nothing was written. Read it again.")]
    Changed(String),
    #[error("{0}: {1}")]
    Io(String, io::Error),
}

impl FileError {
    fn of(path: &Path, error: io::Error) -> FileError {
        let name = name(path);
        match error.kind() {
            io::ErrorKind::NotFound => FileError::NotFound(name),
            io::ErrorKind::IsADirectory => FileError::Directory(name),
            _ => FileError::Io(name, error),
        }
    }
}

fn name(path: &Path) -> String {
    text::printable(&path.to_string_lossy()).into_owned()
}

/// Opens a regular file. Anything else is refused before it is opened, and should it change in between, opening
/// does not block either.
pub(crate) fn open(path: &Path) -> Result<(File, Metadata), FileError> {
    regular(path, &std::fs::metadata(path).map_err(|error| FileError::of(path, error))?)?;
    let file = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed())
        .open(path)
        .map_err(|error| FileError::of(path, error))?;
    let metadata = file.metadata().map_err(|error| FileError::of(path, error))?;
    regular(path, &metadata)?;
    Ok((file, metadata))
}

fn regular(path: &Path, metadata: &Metadata) -> Result<(), FileError> {
    let kind = metadata.file_type();
    let what = if kind.is_file() {
        return Ok(());
    } else if kind.is_dir() {
        return Err(FileError::Directory(name(path)));
    } else if kind.is_fifo() {
        "a named pipe"
    } else if kind.is_socket() {
        "a socket"
    } else if kind.is_char_device() || kind.is_block_device() {
        "a device"
    } else {
        "special"
    };
    Err(FileError::Special(name(path), what))
}

/// A whole file, and what tells whether it is still the same.
pub(crate) fn read_whole(path: &Path, at_most: u64) -> Result<(Vec<u8>, Metadata), FileError> {
    let (file, metadata) = open(path)?;
    let mut bytes = Vec::new();
    file.take(at_most + 1).read_to_end(&mut bytes).map_err(|error| FileError::of(path, error))?;
    if bytes.len() as u64 > at_most {
        let size = text::size(metadata.len().max(bytes.len() as u64));
        return Err(FileError::TooLarge(name(path), size, text::size(at_most)));
    }
    Ok((bytes, metadata))
}

/// How the bytes of a file are text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Utf8,
    Utf8Bom,
    Utf16Le,
    Utf16Be,
}

/// The text of a file, without its byte order mark; none if it cannot be had without loss.
pub(crate) fn decode(bytes: &[u8]) -> Option<(String, Encoding)> {
    if let Some(rest) = bytes.strip_prefix(b"\xef\xbb\xbf") {
        return Some((std::str::from_utf8(rest).ok()?.to_owned(), Encoding::Utf8Bom));
    }
    if let Some(rest) = bytes.strip_prefix(b"\xff\xfe") {
        return Some((utf16(rest, u16::from_le_bytes)?, Encoding::Utf16Le));
    }
    if let Some(rest) = bytes.strip_prefix(b"\xfe\xff") {
        return Some((utf16(rest, u16::from_be_bytes)?, Encoding::Utf16Be));
    }
    Some((std::str::from_utf8(bytes).ok()?.to_owned(), Encoding::Utf8))
}

fn utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> Option<String> {
    let (units, rest) = bytes.as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    char::decode_utf16(units.iter().map(|pair| unit(*pair))).collect::<Result<_, _>>().ok()
}

/// The opposite of [`decode`].
pub(crate) fn encode(text: &str, encoding: Encoding) -> Vec<u8> {
    match encoding {
        Encoding::Utf8 => text.as_bytes().to_vec(),
        Encoding::Utf8Bom => [b"\xef\xbb\xbf", text.as_bytes()].concat(),
        Encoding::Utf16Le => std::iter::once(0xfeff).chain(text.encode_utf16()).flat_map(u16::to_le_bytes).collect(),
        Encoding::Utf16Be => std::iter::once(0xfeff).chain(text.encode_utf16()).flat_map(u16::to_be_bytes).collect(),
    }
}

/// Puts new content in place of a file's, in one step: a reader sees the old or the new, never a part. A symbolic
/// link stays one, and mode and owner stay what they were. Missing directories are made.
///
/// With `seen`, nothing is written if the file is no longer the one that was read.
pub(crate) fn replace(path: &Path, content: &[u8], seen: Option<&Metadata>) -> Result<(), FileError> {
    let target = real_path(path).map_err(|error| FileError::of(path, error))?;
    let old = match std::fs::metadata(&target) {
        Ok(metadata) => Some(metadata),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(FileError::of(path, error)),
    };
    if let Some(old) = &old {
        regular(path, old)?;
        // root may write everything; a mode without any `w` is a wish, and kept.
        if old.mode() & 0o222 == 0 || rustix::fs::access(&target, Access::WRITE_OK).is_err() {
            return Err(FileError::ReadOnly(name(path), old.mode() & 0o7777));
        }
    }
    if let Some(seen) = seen
        && old.as_ref().is_none_or(|old| !same(old, seen))
    {
        return Err(FileError::Changed(name(path)));
    }
    let directory = target.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(directory).map_err(|error| FileError::of(directory, error))?;
    match &old {
        // Renaming would cut the other names off this file.
        Some(old) if old.nlink() > 1 => overwrite(&target, content),
        _ => match swap(&target, directory, content, old.as_ref()) {
            // A file may be writable in a directory that is not, and an owner may be one that we cannot give.
            Err(error) if old.is_some() && error.kind() == io::ErrorKind::PermissionDenied => {
                overwrite(&target, content)
            }
            done => done,
        },
    }
    .map_err(|error| FileError::of(path, error))
}

fn same(a: &Metadata, b: &Metadata) -> bool {
    let key = |m: &Metadata| (m.dev(), m.ino(), m.len(), m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec());
    key(a) == key(b)
}

fn swap(target: &Path, directory: &Path, content: &[u8], old: Option<&Metadata>) -> io::Result<()> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".kli-").suffix(".tmp");
    if old.is_none() {
        // The umask takes from this what it takes from every new file.
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let mut file = builder.tempfile_in(directory)?;
    file.write_all(content)?;
    if let Some(old) = old {
        let new = file.as_file().metadata()?;
        if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
            std::os::unix::fs::fchown(file.as_file(), Some(old.uid()), Some(old.gid()))?;
        }
        // After the owner: changing it clears set-user-id bits.
        file.as_file().set_permissions(std::fs::Permissions::from_mode(old.mode() & 0o7777))?;
    }
    // Without this a power cut may leave an empty file under the name.
    file.as_file().sync_data()?;
    file.persist(target).map_err(|error| error.error)?;
    Ok(())
}

fn overwrite(target: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .truncate(true)
        .custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed())
        .open(target)?;
    file.write_all(content)?;
    file.sync_data()
}

/// Where a write to this path ends up, through links also where the last one points to nothing yet.
pub(crate) fn real_path(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    // As many links as the kernel follows.
    for _ in 0..40 {
        match std::fs::canonicalize(&path) {
            Ok(real) => return Ok(real),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Err(_) => {}
        }
        match std::fs::read_link(&path) {
            Ok(link) => path = path.parent().unwrap_or(Path::new("/")).join(link),
            Err(_) => return real_parent(&path),
        }
    }
    Err(io::Error::from_raw_os_error(rustix::io::Errno::LOOP.raw_os_error()))
}

/// The nearest ancestor that exists, made real, and the rest after it. The rest may not climb: nobody could say
/// where it ends.
fn real_parent(path: &Path) -> io::Result<PathBuf> {
    let mut rest = Vec::new();
    let mut ancestor = path;
    loop {
        let (Some(parent), Some(name)) = (ancestor.parent(), ancestor.file_name()) else {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        };
        rest.push(name.to_owned());
        ancestor = parent;
        if let Ok(real) = real_or_link(ancestor) {
            return Ok(rest.into_iter().rev().fold(real, |path, name| path.join(name)));
        }
    }
}

fn real_or_link(path: &Path) -> io::Result<PathBuf> {
    match std::fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && std::fs::read_link(path).is_ok() => {
            // A directory link to nothing: making the directory behind it is more than was asked.
            Ok(path.to_owned())
        }
        other => other,
    }
}

/// A place in the queue of those who write this file, taken at once: the order is that of these calls, and not that
/// in which the futures happen to be polled first. The future waits for the turn; dropped, it gives the place up.
pub(crate) fn queue_up(path: &Path) -> impl Future<Output = OwnedMutexGuard<()>> + Send + use<> {
    let key = real_path(path).unwrap_or_else(|_| path.to_owned());
    let mut turn = Box::pin(queue_of(key).lock_owned());
    // The first poll joins the queue; who polls next is the one to be woken.
    let first = turn.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    async move {
        match first {
            Poll::Ready(guard) => guard,
            Poll::Pending => turn.await,
        }
    }
}

fn queue_of(path: PathBuf) -> Arc<tokio::sync::Mutex<()>> {
    // A mutex and no owner task: sessions that do not know each other write the same file, and it is held only
    // for a look-up.
    static QUEUES: LazyLock<Mutex<HashMap<PathBuf, Weak<tokio::sync::Mutex<()>>>>> = LazyLock::new(Mutex::default);
    let mut queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
    if queues.len() >= 64 {
        queues.retain(|_, queue| queue.strong_count() > 0);
    }
    if let Some(queue) = queues.get(&path).and_then(Weak::upgrade) {
        return queue;
    }
    let queue = Arc::new(tokio::sync::Mutex::new(()));
    queues.insert(path, Arc::downgrade(&queue));
    queue
}

#[cfg(test)]
mod tests;
