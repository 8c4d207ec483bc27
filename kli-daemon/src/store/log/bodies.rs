//! Bodies, read where they lie, and the index on disk that says where.

use std::path::PathBuf;

use kli_protocol::record::{Body, Entry, Kind, Record};
use serde_json::{Map, value::RawValue};

use super::{BaseLink, Home, Log, Placed, State};
use crate::store::scan::{self, Progress, Shape, Source, Warnings};
use crate::store::sidecar::{self, Snapshot};
use crate::store::{Ix, Result, StoreError, legacy, medium};
use crate::tree::{Index, json};

impl Log {
    /// The line as it was written (lone surrogates as U+FFFD).
    pub fn entry(&self, ix: Ix) -> Result<Entry> {
        let text = self.text(ix)?;
        RawValue::from_string(text).map(Entry).map_err(|_| self.unreadable(ix, "no longer holds a record"))
    }

    pub fn record(&self, ix: Ix) -> Result<Record> {
        let text = self.text(ix)?;
        if let Ok(record) = Record::parse(&text) {
            return Ok(record);
        }
        // Nested deeper than serde goes: kept, shown as unknown, never sent.
        let node = self.node(ix).ok_or_else(|| StoreError::EntryNotFound(ix.0.to_string()))?;
        Ok(Record {
            kind: Kind::Unknown.type_name().to_owned(),
            id: self.id(ix),
            parent_id: node.parent.map(|parent| self.id(parent)),
            timestamp: String::new(),
            body: Body::Unknown(Map::new()),
        })
    }

    /// The line's text; JSON that was valid when it was indexed.
    pub(in crate::store) fn text(&self, ix: Ix) -> Result<String> {
        let owner = self.owner(ix.0);
        let (row, place, shape) = {
            let state = owner.read();
            let row = state.index.row(ix.0).copied().ok_or_else(|| StoreError::EntryNotFound(ix.0.to_string()))?;
            let place = state.place.clone().ok_or_else(|| StoreError::EntryNotFound(ix.0.to_string()))?;
            (row, place, state.shape)
        };
        let failed = |source| StoreError::Io { act: format!("cannot read an entry of session {}", owner.id), source };
        let mut bytes = medium::read(&*place.medium, row.offset, row.len).map_err(failed)?;
        if crc32fast::hash(&bytes) != row.crc && owner.without_idx() {
            let row = self.row(ix.0).ok_or_else(|| StoreError::EntryNotFound(ix.0.to_string()))?;
            bytes = medium::read(&*place.medium, row.offset, row.len).map_err(failed)?;
        }
        let text = String::from_utf8(bytes).map_err(|_| self.unreadable(ix, "no longer holds a record"))?;
        let text = match json::without_lone_surrogates(&text) {
            std::borrow::Cow::Borrowed(_) => text,
            std::borrow::Cow::Owned(clean) => clean,
        };
        match shape {
            Shape::V1 => Ok(legacy::upgraded(owner, ix, &text).unwrap_or(text)),
            Shape::V2 | Shape::V3 => Ok(text),
        }
    }

    /// A body was not what `.idx` says: that is dropped, and the file read. False where there was none to drop.
    fn without_idx(&self) -> bool {
        let _writer = self.lock_writer();
        let (place, shape, head_end) = {
            let state = self.read();
            match &state.place {
                Some(place) if state.from_idx => (place.clone(), state.shape, state.head_end),
                _ => return false,
            }
        };
        if let Some(idx) = self.idx_path(&place) {
            let _ = std::fs::remove_file(idx);
        }
        let mut index = Index::new(self.start, self.base.as_ref().map(|base| base.entry));
        let mut progress = Progress { covered: head_end, ..Progress::default() };
        let mut warnings = Warnings::default();
        let source = Source { medium: &*place.medium, path: place.path.as_deref(), shape };
        if scan::records(&source, &mut index, &self.above(), &mut progress, &mut warnings).is_err() {
            return false;
        }
        scan::settle(&mut index, &self.above(), 0, place.path.as_deref(), &mut warnings);
        let mut state = self.write();
        if index.end() != state.index.end() {
            let reason = "the session's file was changed by another program; open it again";
            state.warnings.add("fileLost", reason.to_owned(), place.path.as_deref(), None);
            state.read_only.get_or_insert_with(|| reason.to_owned());
        }
        state.warnings.set_lines(warnings);
        (state.index, state.progress, state.from_idx, state.indexed) = (index, progress, false, 0);
        true
    }

    fn idx_path(&self, place: &Placed) -> Option<PathBuf> {
        sidecar::path_of(place.path.as_deref()?, self.home == Home::Outside)
    }

    /// Lets `.idx` be written where it lacks a good part of the index.
    pub(in crate::store) fn index_if_grown(&self, state: &mut State) {
        if let Some(me) = self.me.get()
            && wants_idx(self.home, &self.base, state)
            && lacks(state.index.len(), state.asked)
        {
            state.asked = state.index.len();
            self.shared.indexer.open(me.clone());
        }
    }

    /// Writes `.idx` in a moment in which nothing is appended; false: there was none. Nobody waits for it: the index
    /// is locked for a small part at a time.
    pub(in crate::store) fn save_index(&self) -> bool {
        let Some(place) = self.read().place.clone() else { return true };
        let (Some(idx), Some(file)) = (self.idx_path(&place), place.path) else { return true };
        let (version, count) = {
            let state = self.read();
            (state.version, state.index.len())
        };
        let saved = sidecar::save(&idx, &file, &Quiet { log: self, version });
        if saved {
            self.write().indexed = count;
        }
        saved
    }

    fn unreadable(&self, ix: Ix, reason: &str) -> StoreError {
        let owner = self.owner(ix.0);
        let offset = self.row(ix.0).map(|row| row.offset);
        StoreError::Corrupt { path: owner.path().unwrap_or_default(), reason: reason.to_owned(), offset }
    }
}

/// A large file has an index that `.idx` lacks a good part of. None of a view that was made for a fork, nor of one
/// whose base is missing or lies in another order: what such an index says depends on more than its file.
pub(super) fn wants_idx(home: Home, base: &Option<BaseLink>, state: &State) -> bool {
    let known = state.progress.covered;
    home != Home::Memory
        && known > sidecar::ABOVE
        && state.head_end > 0
        && lacks(state.index.len(), state.indexed)
        && state.shape == Shape::V3
        && state.header.base.is_some() == base.is_some()
}

fn lacks(records: usize, covered: usize) -> bool {
    covered == 0 || records.saturating_sub(covered) > 1_000.max(covered / 4)
}

/// The index of an open session, as long as it stays as it is.
struct Quiet<'a> {
    log: &'a Log,
    version: u64,
}

impl Quiet<'_> {
    fn look<R>(&self, look: impl FnOnce(&State) -> R) -> Option<R> {
        let state = self.log.read();
        (state.version == self.version).then(|| look(&state))
    }
}

impl sidecar::Stored for Quiet<'_> {
    fn about(&self, inode: u64, device: u64) -> Option<Vec<u8>> {
        self.look(|state| sidecar::about(&Snapshot::of(state), inode, device)).flatten()
    }

    fn part(&self, part: usize, from: usize, into: &mut Vec<u8>) -> Option<()> {
        self.look(|state| sidecar::copy_part(&state.index, part, from, into))
    }
}
