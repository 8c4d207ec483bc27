//! Appending: serialise, one `write`, apply. A failure changes nothing, neither in memory nor in the file.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::{BoxFuture, FutureExt};
use kli_protocol::api::Warning;
use kli_protocol::record::{Entry, Header, Record};
use serde_json::value::RawValue;

use super::disk::{self, Disk, Locking};
use super::log::{Home, Log, Placed, State, Writer};
use super::medium::{self, Medium, Memory};
use super::scan::{self, Shape, Source, Tail};
use super::{Appended, Durability, Facts, Ix, Result, StoreError, legacy, names};
use crate::tree::line::{self, Line};
use crate::tree::{Place, Pushed};

impl Log {
    /// Writes records in one `write`, then applies them to the index. A failure changes nothing. The first call
    /// makes the file, its header in the same write. Only the session's actor calls it.
    ///
    /// Lines that another program appended meanwhile are taken in first (`taken_in`).
    pub fn append(&self, records: &[Record]) -> Result<Appended> {
        self.append_lines(serialised(records)?)
    }

    /// As `append`, for lines that are records already: byte for byte.
    pub(super) fn append_lines(&self, texts: Vec<String>) -> Result<Appended> {
        let mut writer = self.lock_writer();
        if texts.is_empty() {
            return Ok(Appended::default());
        }
        self.check_writable()?;
        self.bring_up_to_date(&mut writer)?;
        let place = self.read().place.clone();
        if let Some(place) = &place {
            self.take_in(&mut writer, place)?;
        }
        let lines = self.checked(&texts)?;
        let ixs = match &place {
            Some(place) => self.append_to(&mut writer, place, &lines)?,
            None => self.bear(&lines)?,
        };
        let entries = texts
            .into_iter()
            .map(|text| RawValue::from_string(text).map(Entry).map_err(|e| StoreError::Other(e.to_string())))
            .collect::<Result<Vec<_>>>()?;
        Ok(Appended { ixs, entries, taken_in: std::mem::take(&mut writer.taken_in) })
    }

    /// All that was written is on disk when this ends; calls of many sessions are grouped.
    pub async fn sync(&self) -> Result<()> {
        self.begin_sync().await
    }

    /// The same, on its way already; who awaits it learns how it went.
    pub fn begin_sync(&self) -> BoxFuture<'static, Result<()>> {
        let place = self.read().place.clone();
        let Some(place) = place.filter(|_| self.home != Home::Memory && self.shared.durability != Durability::Os)
        else {
            return std::future::ready(Ok(())).boxed();
        };
        let syncing = self.shared.syncer.now(place.job);
        let id = self.id.clone();
        let failed = move |source| StoreError::Io { act: format!("cannot bring session {id} to disk"), source };
        syncing.map(|done| done.map_err(failed)).boxed()
    }

    /// Takes in what another program appended, as an append does first; none for a session that is unchanged.
    pub fn take_in_foreign(&self) -> Result<Vec<Ix>> {
        let mut writer = self.lock_writer();
        let place = self.read().place.clone();
        if let Some(place) = place.filter(|_| self.read().read_only.is_none()) {
            self.take_in(&mut writer, &place)?;
        }
        Ok(std::mem::take(&mut writer.taken_in))
    }

    fn check_writable(&self) -> Result<()> {
        match &self.read().read_only {
            Some(reason) => Err(StoreError::ReadOnly { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// The lines as the index reads them, none of whose ids is taken.
    fn checked<'a>(&self, texts: &'a [String]) -> Result<Vec<(&'a str, Line<'a>)>> {
        let mut ids = HashSet::new();
        let mut lines = Vec::with_capacity(texts.len());
        for text in texts {
            let line = line::read(text.as_bytes()).map_err(|e| StoreError::Other(format!("not a record: {e:?}")))?;
            if !ids.insert(line.id.to_string()) || self.find_whole(&line.id).is_some() {
                return Err(StoreError::Other(format!("the entry id {} is taken", line.id)));
            }
            lines.push((text.as_str(), line));
        }
        Ok(lines)
    }

    /// Looks for changes by others. What was appended becomes part of the session; anything else closes it.
    fn take_in(&self, writer: &mut Writer, place: &Placed) -> Result<()> {
        let size = match place.medium.size() {
            Ok(size) => size,
            Err(lost) => return Err(self.lost(place, lost.0)),
        };
        if let Some((from, to)) = writer.garbage
            && (from..=to).contains(&size)
        {
            self.own_place()?;
            place.medium.cut(from).map_err(|source| self.failed("cut back", source))?;
            writer.garbage = None;
            return Ok(());
        }
        writer.garbage = None;
        let known = self.read().known;
        if size == known {
            return Ok(());
        }
        if size < known {
            return Err(self.lost(place, self.shrunk(place, size)));
        }
        if self.read().progress.tail == Tail::Unclosed && self.goes_on(place)? {
            // It is no record any more, and its row cannot be taken back.
            let path = place.path.as_deref().unwrap_or(Path::new(&self.id)).display();
            return Err(self.lost(place, format!("another program went on with the last line of {path}")));
        }
        let mut state = self.write();
        let state = &mut *state;
        let source = Source { medium: &*place.medium, path: place.path.as_deref(), shape: state.shape };
        let first = state.index.end();
        let taken = scan::records(&source, &mut state.index, &self.above(), &mut state.progress, &mut state.warnings)
            .map_err(|source| self.failed("read", source))?;
        self.settle_from(state, first, place.path.as_deref());
        state.known = size;
        state.warnings.add(
            "fileGrew",
            format!("another program wrote {} bytes to this session; they were taken in", size - known),
            place.path.as_deref(),
            Some(known),
        );
        writer.taken_in.extend(taken);
        Ok(())
    }

    /// Whether more than white space follows in the last line, which had no LF and was not blank.
    fn goes_on(&self, place: &Placed) -> Result<bool> {
        let mut at = self.read().progress.covered;
        let failed = |source| self.failed("read", source);
        let tells = |b: &&u8| **b == b'\n' || !b.is_ascii_whitespace();
        let mut bytes = [0; 4096];
        let mut before = at;
        loop {
            let first = before.saturating_sub(bytes.len() as u64);
            let read = medium::read(&*place.medium, first, (before - first) as u32).map_err(failed)?;
            match read.iter().rev().find(tells) {
                Some(b'\n') => return Ok(false),
                None if first > 0 => before = first,
                _ => break,
            }
        }
        loop {
            let n = place.medium.read_at(at, &mut bytes).map_err(failed)?;
            let read = bytes.get(..n).unwrap_or_default();
            match read.iter().find(tells) {
                Some(byte) => return Ok(*byte != b'\n'),
                None if n < bytes.len() => return Ok(false),
                None => at += n as u64,
            }
        }
    }

    fn settle_from(&self, state: &mut State, first: u32, path: Option<&Path>) {
        // Rows that forks refer to stay as they are until the session is opened again.
        if state.index.can_settle() && self.forked.load(Ordering::Acquire) {
            return;
        }
        scan::settle(&mut state.index, &self.above(), first, path, &mut state.warnings);
    }

    fn append_to(&self, writer: &mut Writer, place: &Placed, lines: &[(&str, Line<'_>)]) -> Result<Vec<Ix>> {
        let (covered, known, tail) = {
            let state = self.read();
            (state.progress.covered, state.known, state.progress.tail)
        };
        self.own_place()?;
        if tail == Tail::Torn || known > covered {
            place.medium.cut(covered).map_err(|source| self.failed("cut the torn tail of", source))?;
            let mut state = self.write();
            state.known = covered;
            state.progress.tail = Tail::Clean;
        }
        let mut bytes = Vec::with_capacity(lines.iter().map(|(text, _)| text.len() + 1).sum::<usize>() + 1);
        if tail == Tail::Unclosed {
            bytes.push(b'\n');
        }
        let first = covered + bytes.len() as u64;
        put_lines(&mut bytes, lines);
        place.medium.room(bytes.len() as u64)?;
        if let Err(source) = place.medium.append(&bytes) {
            self.cut_back(writer, place, covered, bytes.len() as u64);
            return Err(self.failed("write to", source));
        }
        let ixs = self.apply(lines, first);
        if self.home != Home::Memory && self.shared.durability == Durability::Turn {
            self.shared.syncer.soon(&place.job);
        }
        Ok(ixs)
    }

    /// After a failed append: the file is as it was, if nobody else wrote to it meanwhile.
    fn cut_back(&self, writer: &mut Writer, place: &Placed, to: u64, written_at_most: u64) {
        let garbage = (to, to + written_at_most);
        match place.medium.size() {
            Ok(size) if size == to => {}
            Ok(size) if size <= garbage.1 => {
                if let Err(e) = place.medium.cut(to) {
                    tracing::warn!(session = %self.id, "a failed write could not be cut off yet: {e}");
                    writer.garbage = Some(garbage);
                }
            }
            _ => {}
        }
    }

    /// The first records of a session: makes its file, header and records in one write.
    fn bear(&self, lines: &[(&str, Line<'_>)]) -> Result<Vec<Ix>> {
        let (header, planned) = {
            let state = self.read();
            (state.header.clone(), state.planned.clone())
        };
        let mut bytes = Vec::new();
        let place = match planned {
            None => {
                let medium = Memory::new(self.shared.budget.clone());
                put_lines(&mut bytes, lines);
                medium.room(bytes.len() as u64)?;
                medium.append(&bytes).map_err(|source| self.failed("write to", source))?;
                bytes.clear();
                Placed::new(Arc::new(medium), None)
            }
            Some(path) => {
                put_header(&mut bytes, &header)?;
                let head = bytes.len();
                put_lines(&mut bytes, lines);
                let place = self.make_file(path, &bytes)?;
                bytes.truncate(head);
                place
            }
        };
        {
            let mut state = self.write();
            state.head_end = bytes.len() as u64;
            state.place = Some(place);
        }
        Ok(self.apply(lines, bytes.len() as u64))
    }

    /// Nobody else may write where its file lies.
    fn own_place(&self) -> Result<()> {
        if self.home == Home::Dir { self.shared.own_dir() } else { Ok(()) }
    }

    /// Whether what can be done without may be written beside its file.
    pub fn owns_place(&self) -> bool {
        self.home != Home::Dir || self.shared.owns_dir()
    }

    /// Makes the session's file, on disk already where the setting asks for it.
    pub(super) fn make_file(&self, path: PathBuf, bytes: &[u8]) -> Result<Placed> {
        let locking = if self.home == Home::Outside { Locking::Own } else { Locking::None };
        self.own_place()?;
        let disk = Disk::create(&path, bytes, locking)?;
        if self.shared.durability != Durability::Os {
            let synced = disk.sync().and_then(|()| path.parent().map_or(Ok(()), disk::sync_dir));
            if let Err(source) = synced {
                let _ = std::fs::remove_file(&path);
                return Err(self.failed("bring to disk", source));
            }
        }
        Ok(Placed::new(Arc::new(disk), Some(path)))
    }

    /// What was written becomes part of the tree.
    fn apply(&self, lines: &[(&str, Line<'_>)], first: u64) -> Vec<Ix> {
        let mut state = self.write();
        let state = &mut *state;
        let mut offset = first;
        let mut ixs = Vec::with_capacity(lines.len());
        let mut awaited = false;
        for (text, line) in lines {
            let place = Place { offset, len: text.len() as u32, crc: crc32fast::hash(text.as_bytes()) };
            awaited |= state.index.is_awaited(&line.id);
            match state.index.push(line, place, &self.above()) {
                Pushed::Node(ix) => ixs.push(ix),
                Pushed::Duplicate | Pushed::Full => tracing::error!(session = %self.id, "a written record is left out"),
            }
            offset += text.len() as u64 + 1;
        }
        state.progress.covered = offset;
        state.progress.tail = Tail::Clean;
        state.known = offset;
        if awaited {
            let first = state.index.end();
            self.settle_from(state, first, None);
        }
        self.index_if_grown(state);
        ixs
    }

    /// A file of pi's first formats is written anew before the first append.
    pub(super) fn bring_up_to_date(&self, writer: &mut Writer) -> Result<()> {
        let (shape, place) = {
            let state = self.read();
            (state.shape, state.place.clone())
        };
        match place {
            Some(place) if shape != Shape::V3 => {
                // What an old pi wrote meanwhile belongs to it too.
                self.take_in(writer, &place)?;
                self.own_place()?;
                legacy::migrate(self, &place)
            }
            _ => Ok(()),
        }
    }

    /// The session is only read from now on.
    fn lost(&self, place: &Placed, how: String) -> StoreError {
        let reason = format!("{how}; nothing was written. Open the session again to go on");
        let mut state = self.write();
        state.warnings.add("fileLost", reason.clone(), place.path.as_deref(), None);
        state.read_only = Some(reason.clone());
        StoreError::Io { act: format!("session {}", self.id), source: std::io::Error::other(reason) }
    }

    fn shrunk(&self, place: &Placed, size: u64) -> String {
        let path = place.path.as_deref().unwrap_or(Path::new(&self.id)).display();
        format!("{path} shrank from {} to {size} bytes", self.read().known)
    }

    /// What the next append would find: the file shrank, was replaced or is gone. None too while one goes on.
    fn loss(&self) -> Option<Warning> {
        let writer = self.writer.try_lock().ok()?;
        let (place, known) = {
            let state = self.read();
            (state.place.clone()?, state.known)
        };
        let how = match place.medium.size() {
            Err(lost) => lost.0,
            Ok(size) if size < known && writer.garbage.is_none() => self.shrunk(&place, size),
            Ok(_) => return None,
        };
        let path = place.path.map(|path| path.display().to_string());
        Some(Warning {
            kind: "fileLost".into(),
            message: format!("{how}. Open the session again to go on"),
            path,
            offset: None,
        })
    }

    /// As [`Log::facts`], after a look at the file: who asks learns of a loss before anybody writes.
    pub fn facts_now(&self) -> Facts {
        let mut facts = self.facts();
        if facts.read_only.is_none()
            && let Some(loss) = self.loss()
        {
            facts.read_only = Some(loss.message.clone());
            facts.warnings.push(loss);
        }
        facts
    }

    pub(super) fn failed(&self, what: &str, source: std::io::Error) -> StoreError {
        StoreError::Io { act: format!("cannot {what} session {}", self.id), source }
    }
}

fn serialised(records: &[Record]) -> Result<Vec<String>> {
    let line = |record: &Record| record.to_line().map_err(|e| StoreError::Other(format!("cannot serialise: {e}")));
    records.iter().map(line).collect()
}

fn put_lines(bytes: &mut Vec<u8>, lines: &[(&str, Line<'_>)]) {
    for (text, _) in lines {
        bytes.extend_from_slice(text.as_bytes());
        bytes.push(b'\n');
    }
}

pub(super) fn put_header(bytes: &mut Vec<u8>, header: &Header) -> Result<()> {
    let text = serde_json::to_string(header).map_err(|e| StoreError::Other(e.to_string()))?;
    bytes.extend_from_slice(text.as_bytes());
    bytes.push(b'\n');
    Ok(())
}

/// Where a session's file lies below a directory of sessions.
pub(super) fn file_below(dir: &Path, work_dir: &str, header: &Header) -> PathBuf {
    dir.join(names::slug(work_dir)).join(names::file_name(&header.timestamp, &header.id))
}
