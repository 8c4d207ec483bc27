//! `<file>.idx`: the index of a large session file, mapped when the session is opened. A cache: it may lag behind,
//! be damaged or deleted at any time, and never decides what a session contains.
//!
//! Its parts are checked by their checksums, and against the file by inode, length and last covered record; what
//! lies beyond is scanned. It is replaced by rename, never changed in place, so that one that is mapped stays.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use bytemuck::{Pod, Zeroable, bytes_of};
use kli_protocol::record::Base;
use memmap2::MmapOptions;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::log::{Log, State};
use super::medium::{self, Medium};
use super::scan::{Head, Progress, Tail, Warnings};
use crate::tree::{Index, Parts, Rest, Slab};

/// Of a smaller file a scan is as fast.
pub const ABOVE: u64 = 1 << 20;

const MAGIC: [u8; 8] = *b"kli-idx3";
/// Parts begin at multiples of this, so that rows can be used where they are mapped.
const ALIGN: u64 = 4096;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Head0 {
    magic: [u8; 8],
    /// Of rows, slots, foreign ids and the rest: bytes, and checksums.
    lens: [u64; 4],
    crcs: [u32; 4],
    /// Of what stands before.
    crc: u32,
    pad: u32,
}

/// The rest, and which file it is about.
#[derive(Serialize, Deserialize)]
struct About<R> {
    rest: R,
    progress: Progress,
    warnings: Warnings,
    inode: u64,
    device: u64,
    head_end: u64,
    base: Option<Base>,
}

/// Where the index of a file lies: beside it, or for one outside the session directory among our caches.
pub fn path_of(file: &Path, outside: bool) -> Option<PathBuf> {
    if !outside {
        let mut name = file.file_name()?.to_owned();
        name.push(".idx");
        return Some(file.with_file_name(name));
    }
    let dirs = directories::ProjectDirs::from("", "", "kli")?;
    let hash = Sha256::digest(file.as_os_str().as_encoded_bytes());
    let name: String = hash.iter().take(16).map(|b| format!("{b:02x}")).collect();
    Some(dirs.cache_dir().join("index").join(format!("{name}.idx")))
}

/// What was known of a file, if that still holds: the index and how far it reaches.
pub fn load(
    idx: &Path,
    file: &Path,
    medium: &dyn Medium,
    head: &Head,
    start: u32,
) -> Option<(Index, Progress, Warnings)> {
    let stored = File::open(idx).ok()?;
    let mut bytes = [0u8; size_of::<Head0>()];
    stored.read_exact_at(&mut bytes, 0).ok()?;
    let head0: Head0 = *bytemuck::try_from_bytes(&bytes).ok()?;
    let size = stored.metadata().ok()?.len();
    let places = places(&head0)?;
    if head0.magic != MAGIC || head0.crc != head_crc(&head0) || places.get(4) != Some(&size) {
        return None;
    }
    let part = |n: usize| Some((*places.get(n)?, usize::try_from(*head0.lens.get(n)?).ok()?, *head0.crcs.get(n)?));
    let (at, len, crc) = part(3)?;
    let about: About<Rest> = serde_json::from_slice(&checked(&stored, at, len, crc)?).ok()?;
    let meta = std::fs::metadata(file).ok()?;
    let same = (meta.ino(), meta.dev()) == (about.inode, about.device)
        && meta.len() >= about.progress.covered
        && about.head_end == head.end
        && about.base == head.header.base
        && about.rest.start() == start;
    if !same {
        return None;
    }
    let rows = mapped(&stored, part(0)?)?;
    let slots = mapped(&stored, part(1)?)?;
    let (at, len, crc) = part(2)?;
    let foreign = checked(&stored, at, len, crc)?;
    let index = Index::from_parts(Parts { rows, slots, foreign, rest: about.rest });
    let last = index.last_row()?;
    let line = medium::read(medium, last.offset, last.len).ok()?;
    (crc32fast::hash(&line) == last.crc).then_some((index, about.progress, about.warnings))
}

fn places(head: &Head0) -> Option<[u64; 5]> {
    let mut places = [ALIGN; 5];
    for (n, len) in head.lens.iter().enumerate() {
        let end = places.get(n)?.checked_add(*len)?;
        *places.get_mut(n + 1)? = if n == 3 { end } else { end.checked_next_multiple_of(ALIGN)? };
    }
    Some(places)
}

fn head_crc(head: &Head0) -> u32 {
    crc32fast::hash(bytes_of(&Head0 { crc: 0, pad: 0, ..*head }))
}

fn checked(file: &File, at: u64, len: usize, crc: u32) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, at).ok()?;
    (crc32fast::hash(&bytes) == crc).then_some(bytes)
}

/// A part as memory; changes to it stay in memory.
fn mapped<T: Pod>(file: &File, (at, len, crc): (u64, usize, u32)) -> Option<Slab<T>> {
    if len == 0 {
        return Some(Slab::default());
    }
    // SAFETY: the map is private, so our writes reach nobody. Others may change a file under any map; this one is
    // 0600 in a directory of ours and replaced by rename only, and rows are plain numbers whose every use is checked.
    let map = unsafe { MmapOptions::new().offset(at).len(len).map_copy(file) }.ok()?;
    (crc32fast::hash(&map) == crc).then(|| Slab::load(map))?
}

/// An index to be written, and what it is about.
pub struct Snapshot<'a> {
    pub index: &'a Index,
    pub progress: &'a Progress,
    pub warnings: &'a Warnings,
    pub head_end: u64,
    pub base: Option<Base>,
}

impl<'a> Snapshot<'a> {
    pub fn of(state: &'a State) -> Snapshot<'a> {
        let State { index, progress, warnings, head_end, header, .. } = state;
        Snapshot { index, progress, warnings, head_end: *head_end, base: header.base.clone() }
    }
}

/// What is written, a piece at a time; none: it has changed since the first.
pub trait Stored {
    /// The rest, see [`about`].
    fn about(&self, inode: u64, device: u64) -> Option<Vec<u8>>;
    /// Adds bytes of a part (rows, slots, foreign ids) from `from` on, none at its end.
    fn part(&self, part: usize, from: usize, into: &mut Vec<u8>) -> Option<()>;
}

impl Stored for Snapshot<'_> {
    fn about(&self, inode: u64, device: u64) -> Option<Vec<u8>> {
        about(self, inode, device)
    }

    fn part(&self, part: usize, from: usize, into: &mut Vec<u8>) -> Option<()> {
        copy_part(self.index, part, from, into);
        Some(())
    }
}

/// How much is written at a time.
const PIECE: usize = 256 * 1024;

pub fn copy_part(index: &Index, part: usize, from: usize, into: &mut Vec<u8>) {
    let mut skip = from;
    for bytes in index.parts().get(part).into_iter().flatten() {
        let rest = bytes.get(skip.min(bytes.len())..).unwrap_or_default();
        skip = skip.saturating_sub(bytes.len());
        let room = PIECE - into.len();
        into.extend_from_slice(rest.get(..room.min(rest.len())).unwrap_or_default());
    }
}

/// All but the parts. None where the end of the file is not certain: a last record without LF may turn out to be
/// part of a longer line.
pub fn about(snapshot: &Snapshot<'_>, inode: u64, device: u64) -> Option<Vec<u8>> {
    if snapshot.progress.tail == Tail::Unclosed || snapshot.index.is_empty() {
        return None;
    }
    let about = About {
        rest: snapshot.index.rest(),
        progress: Progress { tail: Tail::Clean, ..snapshot.progress.clone() },
        // A torn tail is found again by whoever scans it again, and what the opening finds by whoever opens it.
        warnings: snapshot.warnings.of_lines(),
        inode,
        device,
        head_end: snapshot.head_end,
        base: snapshot.base.clone(),
    };
    serde_json::to_vec(&about).ok()
}

/// Writes the index of a file; a failure costs time at the next opening and nothing else. False: it changed while it
/// was written, so that there is none.
pub fn save(idx: &Path, file: &Path, stored: &dyn Stored) -> bool {
    let part = idx.with_extension("idx.part");
    let written = write(&part, file, stored).and_then(|whole| match whole {
        true => std::fs::rename(&part, idx).map(|()| true),
        false => Ok(false),
    });
    if !matches!(written, Ok(true)) {
        let _ = std::fs::remove_file(&part);
    }
    written.unwrap_or_else(|e| {
        tracing::debug!("{} could not be written: {e}", idx.display());
        true
    })
}

fn write(path: &Path, file: &Path, stored: &dyn Stored) -> io::Result<bool> {
    let meta = std::fs::metadata(file)?;
    let Some(rest) = stored.about(meta.ino(), meta.dev()) else { return Ok(false) };
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    let out = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    let mut head = Head0 { magic: MAGIC, lens: [0; 4], crcs: [0; 4], crc: 0, pad: 0 };
    let mut at = ALIGN;
    let mut piece = Vec::with_capacity(PIECE);
    for ((part, len), crc) in (0..3).zip(&mut head.lens).zip(&mut head.crcs) {
        let mut hasher = crc32fast::Hasher::new();
        loop {
            piece.clear();
            let from = usize::try_from(*len).unwrap_or(usize::MAX);
            if stored.part(part, from, &mut piece).is_none() {
                return Ok(false);
            }
            if piece.is_empty() {
                break;
            }
            hasher.update(&piece);
            out.write_all_at(&piece, at + *len)?;
            *len += piece.len() as u64;
        }
        *crc = hasher.finalize();
        at = (at + *len).next_multiple_of(ALIGN);
    }
    out.write_all_at(&rest, at)?;
    (head.lens[3], head.crcs[3]) = (rest.len() as u64, crc32fast::hash(&rest));
    head.crc = head_crc(&head);
    out.write_all_at(bytes_of(&head), 0)?;
    out.set_len(at + rest.len() as u64)?;
    Ok(true)
}

/// What is left of a log that was let go: its index is written, then freed.
pub struct Leftover {
    pub file: PathBuf,
    pub idx: PathBuf,
    pub index: Index,
    pub progress: Progress,
    pub warnings: Warnings,
    pub head_end: u64,
    pub base: Option<Base>,
}

enum Work {
    Open(Weak<Log>),
    Closed(Box<Leftover>),
}

/// How often a moment is looked for in which a session is quiet, and what lies between.
const TRIES: usize = 10;
const PAUSE: Duration = Duration::from_millis(100);

/// The thread that writes indexes.
pub struct Indexer {
    /// None once it is being dropped. Bounded by the sessions: each asks once until it was answered.
    work: Option<Sender<Work>>,
    thread: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
}

impl Indexer {
    pub fn start() -> io::Result<Indexer> {
        let (sender, work) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = stop.clone();
        let thread = std::thread::Builder::new().name("index".into()).spawn(move || serve(&work, &stopping))?;
        Ok(Indexer { work: Some(sender), thread: Some(thread), stop })
    }

    /// The index of an open session is to be written.
    pub fn open(&self, log: Weak<Log>) {
        if let Some(work) = &self.work {
            let _ = work.send(Work::Open(log));
        }
    }

    pub fn closed(&self, leftover: Leftover) {
        if let Some(work) = &self.work {
            let _ = work.send(Work::Closed(Box::new(leftover)));
        }
    }
}

impl Drop for Indexer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.work = None;
        // The thread itself may have held the last session of a store.
        if let Some(thread) = self.thread.take().filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }
}

fn serve(work: &Receiver<Work>, stop: &AtomicBool) {
    for work in work {
        match work {
            Work::Open(log) if !stop.load(Ordering::Relaxed) => {
                let mut tries = 0;
                // One that is busy is asked again later, and written at the latest when it is closed.
                while tries < TRIES
                    && !stop.load(Ordering::Relaxed)
                    && log.upgrade().is_some_and(|log| !log.save_index())
                {
                    tries += 1;
                    std::thread::sleep(PAUSE);
                }
            }
            Work::Open(_) => {}
            Work::Closed(left) => {
                let Leftover { index, progress, warnings, head_end, base, .. } = *left;
                let snapshot = Snapshot { index: &index, progress: &progress, warnings: &warnings, head_end, base };
                save(&left.idx, &left.file, &snapshot);
            }
        }
    }
}
