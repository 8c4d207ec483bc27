//! Where the bytes of a session lie: the one seam between the memory store and the file store.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use super::{Result, StoreError};

/// A session's bytes are no longer what they were: shrunk, replaced, gone. Says how.
#[derive(Debug)]
pub struct Lost(pub String);

/// Bytes that only grow, but for a torn end.
pub trait Medium: Send + Sync {
    /// How many bytes there are now, whoever wrote them.
    fn size(&self) -> Result<u64, Lost>;
    /// Whether so many more may be appended.
    fn room(&self, bytes: u64) -> Result<()>;
    /// Adds bytes at the end, in one `write` where the system takes them at once. On failure part may be there.
    fn append(&self, bytes: &[u8]) -> io::Result<()>;
    /// Drops what lies beyond `to`.
    fn cut(&self, to: u64) -> io::Result<()>;
    /// Reads up to the length of `buffer`; less only at the end.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
    /// All that was appended is on disk when this returns.
    fn sync(&self) -> io::Result<()>;
    /// Lets another program append, where this one alone could.
    fn unlock(&self) {}
}

/// The bytes from `offset` on, exactly `len`.
pub fn read(medium: &dyn Medium, offset: u64, len: u32) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len as usize];
    match medium.read_at(offset, &mut bytes)? {
        n if n == bytes.len() => Ok(bytes),
        _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file ends before the record does")),
    }
}

/// What all in-memory sessions together may take.
#[derive(Debug)]
pub struct Budget {
    max: u64,
    used: AtomicU64,
}

impl Budget {
    pub fn new(max: u64) -> Arc<Budget> {
        Arc::new(Budget { max, used: AtomicU64::new(0) })
    }

    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

/// A session in memory: its lines behind each other, in pieces that never move.
pub struct Memory {
    budget: Arc<Budget>,
    /// A lock, since readers on other threads must not wait for the session's actor. Held for copying only.
    pieces: RwLock<Pieces>,
}

#[derive(Default)]
struct Pieces {
    /// Each with the offset of its first byte.
    pieces: Vec<(u64, Vec<u8>)>,
    size: u64,
}

/// What a piece holds at least, once a session has grown.
const PIECE: usize = 64 * 1024;

impl Memory {
    pub fn new(budget: Arc<Budget>) -> Memory {
        Memory { budget, pieces: RwLock::default() }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let size = self.pieces.get_mut().unwrap_or_else(PoisonError::into_inner).size;
        self.budget.used.fetch_sub(size, Ordering::Relaxed);
    }
}

impl Medium for Memory {
    fn size(&self) -> Result<u64, Lost> {
        Ok(self.pieces.read().unwrap_or_else(PoisonError::into_inner).size)
    }

    fn room(&self, bytes: u64) -> Result<()> {
        let max = self.budget.max;
        if self.budget.used().saturating_add(bytes) <= max {
            return Ok(());
        }
        let message = format!(
            "the sessions in memory would take more than {max} bytes: set sessionDir to keep sessions in files, or export or delete some"
        );
        Err(StoreError::Limit { limit: "maxMemoryBytes", max, message })
    }

    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let mut pieces = self.pieces.write().unwrap_or_else(PoisonError::into_inner);
        let size = pieces.size;
        match pieces.pieces.last_mut() {
            Some((_, last)) if last.len() + bytes.len() <= last.capacity() => last.extend_from_slice(bytes),
            last => {
                // Grows with the session: one of three entries does not take 64 KiB.
                let grown = last.map_or(0, |(_, last)| last.capacity() * 2).min(PIECE);
                let mut piece = Vec::with_capacity(bytes.len().max(grown));
                piece.extend_from_slice(bytes);
                pieces.pieces.push((size, piece));
            }
        }
        pieces.size += bytes.len() as u64;
        self.budget.used.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn cut(&self, to: u64) -> io::Result<()> {
        let mut pieces = self.pieces.write().unwrap_or_else(PoisonError::into_inner);
        let cut = pieces.size.saturating_sub(to);
        pieces.pieces.retain(|(start, _)| *start < to);
        if let Some((start, last)) = pieces.pieces.last_mut() {
            last.truncate(usize::try_from(to - *start).unwrap_or(usize::MAX));
        }
        pieces.size -= cut;
        self.budget.used.fetch_sub(cut, Ordering::Relaxed);
        Ok(())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let pieces = self.pieces.read().unwrap_or_else(PoisonError::into_inner);
        let mut done = 0;
        let mut number = pieces.pieces.partition_point(|(start, _)| *start <= offset).saturating_sub(1);
        while let Some((start, piece)) = pieces.pieces.get(number) {
            let skip = usize::try_from(offset + done as u64 - start).unwrap_or(usize::MAX);
            let (Some(from), Some(to)) = (piece.get(skip..), buffer.get_mut(done..)) else { break };
            let n = from.len().min(to.len());
            if let (Some(from), Some(to)) = (from.get(..n), to.get_mut(..n)) {
                to.copy_from_slice(from);
            }
            done += n;
            if done == buffer.len() {
                break;
            }
            number += 1;
        }
        Ok(done)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}
