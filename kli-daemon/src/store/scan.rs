//! Reads a session's lines into its index, whatever state the file is in: damage costs the damaged line and a
//! warning, nothing else.

mod batch;
mod fault;
mod lines;

use std::borrow::Cow;
use std::collections::HashSet;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;

use kli_protocol::api::Warning;
use kli_protocol::record::{Header, HeaderKind, KLI_SESSION_VERSION, SESSION_VERSION};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use batch::{Batch, Other, What};
use lines::{THREADED, first_line, parts};

use super::medium::Medium;
use super::{Result, StoreError};
use crate::tree::line::{self, NoRecord};
use crate::tree::{Above, Id, Index, Ix, Note, Pushed, json};

/// So many warnings of a file are kept.
const WARNINGS: usize = 100;

/// A shorter line is hardly ever a message.
const SHORTEST: u64 = 100;

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

/// What is told of a file's lines; the rest of its opening, or of what happened to it since.
const OF_LINES: [&str; 6] = ["badLine", "noId", "noType", "duplicateId", "missingParent", "cycle"];

impl Warnings {
    /// Those that the lines alone bring forth: of others a later opening finds its own.
    pub fn of_lines(&self) -> Warnings {
        let mut kept = self.clone();
        kept.list.retain(is_of_line);
        kept
    }

    /// Puts these in place of what was told of the lines before.
    pub fn set_lines(&mut self, lines: Warnings) {
        self.list.retain(|warning| !is_of_line(warning));
        self.list.extend(lines.list);
        self.more = lines.more;
    }

    pub fn add(&mut self, kind: &str, message: String, path: Option<&Path>, offset: Option<u64>) {
        if self.list.len() >= WARNINGS {
            self.more += 1;
            return;
        }
        let path = path.map(|p| p.display().to_string());
        self.list.push(Warning { kind: kind.to_owned(), message, path, offset });
    }
}

fn is_of_line(warning: &Warning) -> bool {
    OF_LINES.contains(&warning.kind.as_str())
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
        Err(_) => newer_header(&text).ok_or_else(|| corrupt(&fault::header_fault(&text)))?,
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
    let batch = || Batch::new(source.shape);
    parts(source.medium, progress.covered, batch, |batch| {
        let mut reader = Reader { source, index, above, progress, warnings, taken: &mut taken };
        reader.take(batch, size)
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
    fn take(&mut self, batch: &Batch, size: u64) -> ControlFlow<()> {
        if size > THREADED {
            // Once it is known how long lines are here: the table is made in its size.
            if self.index.is_empty() && batch.lines > 0 {
                let length = (batch.len() / u64::from(batch.lines)).max(SHORTEST);
                self.index.reserve((size.saturating_sub(batch.start) / length) as usize);
            }
            self.index.fetch(batch.plain.iter().map(|plain| Id::Hex(plain.id)));
        }
        let mut usages = batch.usages.iter();
        let mut others = batch.others.iter().peekable();
        let mut last = None;
        for (number, plain) in batch.plain.iter().enumerate() {
            while let Some(other) = others.next_if(|other| other.at <= number) {
                self.other(other, batch, &mut last);
            }
            let usage = plain.has_usage.then(|| usages.next()).flatten();
            let pushed = self.index.push_plain(plain, usage, self.above);
            if self.pushed(pushed, Id::Hex(plain.id), plain.place.offset) {
                last = Some(number);
            }
        }
        for other in others {
            self.other(other, batch, &mut last);
        }
        self.timed(batch, last);
        // A torn line is read again when it is whole.
        let whole = batch.lines.saturating_sub(u32::from(batch.tail == Tail::Torn));
        self.progress.lines = self.progress.lines.saturating_add(whole);
        if batch.lines > 0 {
            self.progress.covered = batch.end.unwrap_or(self.progress.covered);
            self.progress.tail = batch.tail;
        }
        if batch.tail == Tail::Clean { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    /// `last`: the plain record whose time is the session's.
    fn other(&mut self, other: &Other, batch: &Batch, last: &mut Option<usize>) {
        let read = match &other.what {
            What::Record(line) => Ok(Cow::Borrowed(&**line)),
            What::V1(bytes) => {
                // The header is line 1.
                let number = self.progress.lines.saturating_add(other.line).saturating_add(1);
                line::read_v1(bytes, format!("{number:08x}"), self.progress.last_id.clone()).map(Cow::Owned)
            }
            What::None(reason) => Err(*reason),
            What::Torn => {
                return self.warn("tornTail", "the last line is cut off and left out: it begins", other.place.offset);
            }
        };
        let (kind, what) = match read {
            Ok(record) => {
                self.timed(batch, last.take());
                let pushed = self.index.push(&record, other.place, self.above);
                let is_in = self.pushed(pushed, Id::of(&record.id), other.place.offset);
                if is_in && self.source.shape == Shape::V1 {
                    self.progress.last_id = Some(record.id.clone().into_owned());
                }
                return;
            }
            Err(NoRecord::Damaged) => ("badLine", "a line that is not a JSON object is left out"),
            Err(NoRecord::Unreadable) => {
                ("badLine", "a line nested too deep, or with a number out of range, is left out")
            }
            Err(NoRecord::NoId) => ("noId", "a record without an id is left out"),
            Err(NoRecord::NoType) => ("noType", "a record without a type is left out"),
            Err(NoRecord::Header) => return,
        };
        self.warn(kind, what, other.place.offset);
    }

    fn timed(&mut self, batch: &Batch, last: Option<usize>) {
        if let Some(time) = last.and_then(|number| batch.time(number)) {
            self.index.set_updated_at(time);
        }
    }

    /// Whether it is a record of the session now.
    fn pushed(&mut self, pushed: Pushed, id: Id<'_>, offset: u64) -> bool {
        match pushed {
            Pushed::Node(ix) => {
                self.taken.push(ix);
                return true;
            }
            Pushed::Duplicate => {
                self.warn("duplicateId", &format!("a second record with the id {id} is left out"), offset);
            }
            Pushed::Full => self.warn("badLine", "a record too many is left out", offset),
        }
        false
    }

    fn warn(&mut self, kind: &str, what: &str, offset: u64) {
        self.warnings.add(kind, format!("{what} at byte {offset}"), self.source.path, Some(offset));
    }
}

/// Ties up what pointed forward, and tells of what stays odd among the records from `from` on. What was told of a
/// parent that has come since is taken back.
pub fn settle(index: &mut Index, above: &dyn Above, from: u32, path: Option<&Path>, warnings: &mut Warnings) {
    let notes = index.settle(above);
    let place = |ix: Ix| index.row(ix.0).map(|row| row.offset);
    let missing: HashSet<Option<u64>> = notes
        .iter()
        .filter_map(|note| match note {
            Note::Missing { ix, .. } => Some(place(*ix)),
            Note::Cycle { .. } => None,
        })
        .collect();
    warnings.list.retain(|warning| warning.kind != "missingParent" || missing.contains(&warning.offset));
    for note in notes {
        let (kind, ix, what) = match note {
            Note::Missing { ix, .. } if ix.0 < from => continue,
            Note::Missing { ix, parent } => {
                ("missingParent", ix, format!("is not connected: its parent {parent} does not exist"))
            }
            Note::Cycle { ix } => ("cycle", ix, "lies in a circle of parents, which is cut there".to_owned()),
        };
        let id = index.id(ix.0).unwrap_or_default();
        warnings.add(kind, format!("entry {id} {what}"), path, place(ix));
    }
}
