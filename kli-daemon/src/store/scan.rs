//! Reads a session's lines into its index, whatever state the file is in: damage costs the damaged line and a
//! warning, nothing else.

use std::borrow::Cow;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;

use kli_protocol::api::Warning;
use kli_protocol::record::{Header, HeaderKind, KLI_SESSION_VERSION, SESSION_VERSION};
use memchr::memchr;
use serde_json::Value;

use super::medium::Medium;
use super::{Result, StoreError};
use crate::tree::line::{self, NoRecord};
use crate::tree::{Above, Index, Ix, Note, Place, Pushed, json};

/// How much is read at a time.
const BLOCK: usize = 256 * 1024;
/// A longer line is no record.
const LINE: usize = 512 * 1024 * 1024;
/// A header must be within this.
const HEADER: usize = 1024 * 1024;
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tail {
    #[default]
    Clean,
    /// The last record is whole and has no LF.
    Unclosed,
    /// Part of a line lies behind the last record.
    Torn,
}

/// How far a medium was read.
#[derive(Clone, Debug, Default)]
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
#[derive(Clone, Debug, Default)]
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

/// A line as it lies in the file.
struct Raw<'a> {
    offset: u64,
    bytes: &'a [u8],
    /// With its LF.
    end: u64,
    closed: bool,
}

/// Calls `each` with every line from `from` on. `limit`: a longer line is given cut off at it.
fn lines(
    medium: &dyn Medium,
    from: u64,
    limit: usize,
    mut each: impl FnMut(Raw<'_>) -> ControlFlow<()>,
) -> io::Result<()> {
    let mut block = vec![0u8; BLOCK];
    // The beginning of a line whose end is in a later block.
    let mut carried: Vec<u8> = Vec::new();
    let mut line_start = from;
    let mut at = from;
    loop {
        let n = medium.read_at(at, &mut block)?;
        let mut rest = block.get(..n).unwrap_or_default();
        while let Some(end) = memchr(b'\n', rest) {
            let (line, after) = rest.split_at(end);
            let line_end = at + end as u64 + 1;
            let whole = match carried.is_empty() {
                true => Cow::Borrowed(line),
                false => {
                    extend(&mut carried, line, limit);
                    Cow::Owned(std::mem::take(&mut carried))
                }
            };
            if each(Raw { offset: line_start, bytes: &whole, end: line_end, closed: true }).is_break() {
                return Ok(());
            }
            line_start = line_end;
            at = line_end;
            rest = after.get(1..).unwrap_or_default();
        }
        extend(&mut carried, rest, limit);
        at += rest.len() as u64;
        if n < block.len() {
            break;
        }
    }
    if at > line_start {
        let _ = each(Raw { offset: line_start, bytes: &carried, end: at, closed: false });
    }
    Ok(())
}

fn extend(line: &mut Vec<u8>, more: &[u8], limit: usize) {
    let room = limit.saturating_sub(line.len());
    line.extend_from_slice(more.get(..room).unwrap_or(more));
}

const BOM: &[u8] = b"\xef\xbb\xbf";

/// The line without white space around it (and a BOM in front), and where that begins.
fn trimmed<'a>(raw: &Raw<'a>) -> (u64, &'a [u8]) {
    let bytes = match raw.offset {
        0 => raw.bytes.strip_prefix(BOM).unwrap_or(raw.bytes),
        _ => raw.bytes,
    };
    let start = bytes.trim_ascii_start();
    let skipped = raw.bytes.len() - start.len();
    (raw.offset + skipped as u64, start.trim_ascii_end())
}

/// Reads the header. A file without one is refused with a reason; nothing is changed about it.
pub fn head(medium: &dyn Medium, path: &Path) -> Result<Head> {
    let mut found = None;
    let failed = |source| StoreError::Io { act: format!("cannot read {}", path.display()), source };
    lines(medium, 0, HEADER, |raw| {
        let (_, bytes) = trimmed(&raw);
        if bytes.is_empty() {
            return ControlFlow::Continue(());
        }
        found = Some((bytes.to_vec(), raw.end, raw.closed));
        ControlFlow::Break(())
    })
    .map_err(failed)?;
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
    let path = source.path;
    let mut taken = Vec::new();
    lines(source.medium, progress.covered, LINE, |raw| {
        progress.lines = progress.lines.saturating_add(1);
        let (offset, bytes) = trimmed(&raw);
        let warn = |warnings: &mut Warnings, kind: &str, what: &str| {
            warnings.add(kind, format!("{what} at byte {offset}"), path, Some(offset));
        };
        let read = match source.shape {
            _ if bytes.is_empty() || raw.bytes.len() >= LINE => Err(NoRecord::Damaged),
            // The header is line 1.
            Shape::V1 => line::read_v1(bytes, format!("{:08x}", progress.lines + 1), progress.last_id.clone()),
            Shape::V2 | Shape::V3 => line::read(bytes),
        };
        if !raw.closed && read == Err(NoRecord::Damaged) {
            if !bytes.is_empty() {
                progress.tail = Tail::Torn;
                warn(warnings, "tornTail", "the last line is cut off and left out: it begins");
            } else {
                progress.covered = raw.end;
                progress.tail = Tail::Unclosed;
            }
            return ControlFlow::Break(());
        }
        progress.covered = raw.end;
        progress.tail = if raw.closed { Tail::Clean } else { Tail::Unclosed };
        match read {
            Ok(line) => {
                let place = Place { offset, len: bytes.len() as u32, crc: crc32fast::hash(bytes) };
                match index.push(&line, place, above) {
                    Pushed::Node(ix) => {
                        taken.push(ix);
                        if source.shape == Shape::V1 {
                            progress.last_id = Some(line.id.into_owned());
                        }
                    }
                    Pushed::Duplicate => {
                        warn(warnings, "duplicateId", &format!("a second record with the id {} is left out", line.id));
                    }
                    Pushed::Full => warn(warnings, "badLine", "a record too many is left out"),
                }
            }
            Err(_) if bytes.is_empty() => {}
            Err(NoRecord::Damaged) => warn(warnings, "badLine", "a line that is not a JSON object is left out"),
            Err(NoRecord::NoId) => warn(warnings, "noId", "a record without an id is left out"),
            Err(NoRecord::NoType) => warn(warnings, "noType", "a record without a type is left out"),
            Err(NoRecord::Header) => {}
        }
        ControlFlow::Continue(())
    })?;
    Ok(taken)
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
