//! Reads a session's lines into its index, whatever state the file is in: damage costs the damaged line and a
//! warning, nothing else.

mod lines;

use std::io;
use std::ops::ControlFlow;
use std::path::Path;

use kli_protocol::api::Warning;
use kli_protocol::record::{Header, HeaderKind, KLI_SESSION_VERSION, SESSION_VERSION};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use lines::{Line, Piece, THREADED, first_line, pieces};

use super::medium::Medium;
use super::{Result, StoreError};
use crate::tree::line::{self, NoRecord};
use crate::tree::{Above, Index, Ix, Note, Place, Pushed, json};

/// So many warnings of a file are kept.
const WARNINGS: usize = 100;

/// The format of a file's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// pi's first: no ids, each line follows the one before.
    V1,
    /// pi's second: read as the third, but not written.
    V2,
    V3,
}

/// The beginning of a session file.
#[derive(Clone, Debug)]
pub struct Head {
    pub header: Header,
    pub shape: Shape,
    /// Written by a newer version: says so.
    pub newer: Option<String>,
    /// Where the records begin.
    pub end: u64,
    /// The header is all there is, and has no LF.
    pub unclosed: bool,
}

impl Head {
    /// Read up to here.
    pub fn progress(&self) -> Progress {
        let tail = if self.unclosed { Tail::Unclosed } else { Tail::Clean };
        Progress { covered: self.end, tail, ..Progress::default() }
    }
}

/// How a file ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tail {
    #[default]
    Clean,
    /// The last record is whole and has no LF.
    Unclosed,
    /// Part of a line lies behind the last record.
    Torn,
}

/// How far a medium was read.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Progress {
    /// Bytes up to the end of the last line that counts.
    pub covered: u64,
    pub tail: Tail,
    /// Lines after the header: they number the records of pi's first format.
    pub lines: u32,
    /// The id of the last record, its successor's parent in pi's first format.
    pub last_id: Option<String>,
}

/// What was odd about a file; of many of them the first.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Warnings {
    pub list: Vec<Warning>,
    pub more: usize,
}

impl Warnings {
    pub fn add(&mut self, kind: &str, message: String, path: Option<&Path>, offset: Option<u64>) {
        if self.list.len() >= WARNINGS {
            self.more += 1;
            return;
        }
        let path = path.map(|p| p.display().to_string());
        self.list.push(Warning { kind: kind.to_owned(), message, path, offset });
    }
}

/// Reads the header. A file without one is refused with a reason; nothing is changed about it.
pub fn head(medium: &dyn Medium, path: &Path) -> Result<Head> {
    let failed = |source| StoreError::Io { act: format!("cannot read {}", path.display()), source };
    let found = first_line(medium).map_err(failed)?;
    let corrupt = |reason: &str| StoreError::Corrupt { path: path.to_owned(), reason: reason.into(), offset: Some(0) };
    let (bytes, end, closed) = found.ok_or_else(|| corrupt("is empty"))?;
    let no_header = || corrupt("does not begin with a session header");
    let text = std::str::from_utf8(&bytes).map_err(|_| no_header())?;
    let text = json::without_lone_surrogates(text);
    let header = match serde_json::from_str::<Header>(&text) {
        Ok(header) => header,
        Err(_) => newer_header(&text).ok_or_else(no_header)?,
    };
    if header.id.is_empty() {
        return Err(corrupt("has a session header without an id"));
    }
    let known = match header.kind {
        HeaderKind::Session => SESSION_VERSION,
        HeaderKind::KliSession => KLI_SESSION_VERSION,
    };
    let newer = (header.version > known).then(|| {
        format!("{} was written by a newer version or another program (version {})", path.display(), header.version)
    });
    let shape = match (header.kind, header.version) {
        (HeaderKind::Session, 0 | 1) => Shape::V1,
        (HeaderKind::Session, 2) => Shape::V2,
        _ => Shape::V3,
    };
    Ok(Head { header, shape, newer, end, unclosed: !closed })
}

/// A header of a version that may have changed its fields: only what every version must have.
fn newer_header(text: &str) -> Option<Header> {
    let value: Value = serde_json::from_str(text).ok()?;
    let string = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
    let (kind, known) = match string("type")?.as_str() {
        "session" => (HeaderKind::Session, SESSION_VERSION),
        "kli_session" => (HeaderKind::KliSession, KLI_SESSION_VERSION),
        _ => return None,
    };
    let version = value.get("version").and_then(Value::as_u64).filter(|v| *v > known)?;
    Some(Header {
        kind,
        version,
        id: string("id")?,
        timestamp: string("timestamp").unwrap_or_default(),
        cwd: string("cwd"),
        parent_session: None,
        mode: None,
        base: None,
        migrated_from: None,
    })
}

/// Where records are read from and what is told about them.
pub struct Source<'a> {
    pub medium: &'a dyn Medium,
    pub path: Option<&'a Path>,
    pub shape: Shape,
}

/// Reads all lines behind `progress.covered` into the index.
pub fn records(
    source: &Source<'_>,
    index: &mut Index,
    above: &dyn Above,
    progress: &mut Progress,
    warnings: &mut Warnings,
) -> io::Result<Vec<Ix>> {
    let mut taken = Vec::new();
    let size = source.medium.size().unwrap_or_default();
    pieces(source.medium, progress.covered, |piece| {
        let mut reader = Reader { source, index, above, progress, warnings, taken: &mut taken };
        reader.take_all(piece, size)
    })?;
    Ok(taken)
}

struct Reader<'a> {
    source: &'a Source<'a>,
    index: &'a mut Index,
    above: &'a dyn Above,
    progress: &'a mut Progress,
    warnings: &'a mut Warnings,
    taken: &'a mut Vec<Ix>,
}

impl Reader<'_> {
    fn take_all(&mut self, piece: &Piece, size: u64) -> ControlFlow<()> {
        if size > THREADED {
            // Once it is known how long lines are here: the table is made in its size.
            if let Some(first) = piece.lines.first().filter(|_| self.index.is_empty()) {
                let length = (piece.len() / piece.lines.len() as u64).max(1);
                self.index.reserve((size.saturating_sub(first.offset) / length) as usize);
            }
            self.index.fetch(piece.lines.iter().filter_map(|line| line.checked.quick.as_ref()?.id(piece.text(line))));
        }
        for line in &piece.lines {
            if self.take(piece, line).is_break() {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    fn take(&mut self, piece: &Piece, line: &Line) -> ControlFlow<()> {
        self.progress.lines = self.progress.lines.saturating_add(1);
        let (offset, bytes) = (line.offset, piece.text(line));
        if !line.closed && !line.checked.object {
            if bytes.is_empty() {
                self.progress.covered = line.end;
                self.progress.tail = Tail::Unclosed;
            } else {
                self.progress.tail = Tail::Torn;
                self.warn("tornTail", "the last line is cut off and left out: it begins", offset);
            }
            return ControlFlow::Break(());
        }
        self.progress.covered = line.end;
        self.progress.tail = if line.closed { Tail::Clean } else { Tail::Unclosed };
        let read = match self.source.shape {
            _ if !line.checked.object => Err(NoRecord::Damaged),
            // The header is line 1.
            Shape::V1 => {
                let id = format!("{:08x}", self.progress.lines + 1);
                line::read_v1(bytes, id, self.progress.last_id.clone())
            }
            Shape::V2 | Shape::V3 => line::read_checked(bytes, line.checked.quick.as_ref()),
        };
        match read {
            Ok(record) => self.push(&record, Place { offset, len: bytes.len() as u32, crc: line.crc }),
            Err(_) if bytes.is_empty() => {}
            Err(NoRecord::Damaged) => self.warn("badLine", "a line that is not a JSON object is left out", offset),
            Err(NoRecord::NoId) => self.warn("noId", "a record without an id is left out", offset),
            Err(NoRecord::NoType) => self.warn("noType", "a record without a type is left out", offset),
            Err(NoRecord::Header) => {}
        }
        ControlFlow::Continue(())
    }

    fn push(&mut self, record: &line::Line<'_>, place: Place) {
        match self.index.push(record, place, self.above) {
            Pushed::Node(ix) => {
                self.taken.push(ix);
                if self.source.shape == Shape::V1 {
                    self.progress.last_id = Some(record.id.clone().into_owned());
                }
            }
            Pushed::Duplicate => {
                let what = format!("a second record with the id {} is left out", record.id);
                self.warn("duplicateId", &what, place.offset);
            }
            Pushed::Full => self.warn("badLine", "a record too many is left out", place.offset),
        }
    }

    fn warn(&mut self, kind: &str, what: &str, offset: u64) {
        self.warnings.add(kind, format!("{what} at byte {offset}"), self.source.path, Some(offset));
    }
}

/// Ties up what pointed forward, and tells of what stays odd among the records from `from` on.
pub fn settle(index: &mut Index, above: &dyn Above, from: u32, path: Option<&Path>, warnings: &mut Warnings) {
    for note in index.settle(above) {
        let (kind, ix, what) = match &note {
            Note::Missing { ix, parent } => {
                ("missingParent", ix.0, format!("is not connected: its parent {parent} does not exist"))
            }
            Note::Cycle { ix } => ("cycle", ix.0, "lies in a circle of parents, which is cut there".to_owned()),
        };
        if ix < from {
            continue;
        }
        let offset = index.row(ix).map(|row| row.offset);
        let id = index.id(ix).unwrap_or_default();
        warnings.add(kind, format!("entry {id} {what}"), path, offset);
    }
}
