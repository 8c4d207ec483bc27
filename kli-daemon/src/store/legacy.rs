//! pi's first two formats: read as they are, written anew in the third before anything is appended.

use std::fs::OpenOptions;
use std::io::{BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kli_protocol::record::{Header, HeaderKind, SESSION_VERSION};
use serde_json::{Map, Value};

use super::disk::{self, Disk, Locking};
use super::log::{Home, Log, Placed};
use super::medium;
use super::scan::{self, Shape, Source, Warnings};
use super::write::put_header;
use super::{Durability, Ix, Result, StoreError};
use crate::tree::Index;

/// A line of the first format with the id and parent that follow from where it lies.
pub(super) fn upgraded(log: &Log, ix: Ix, text: &str) -> Option<String> {
    let mut fields: Map<String, Value> = serde_json::from_str(text).ok()?;
    let mut line = Map::new();
    line.insert("type".into(), fields.shift_remove("type")?);
    fields.shift_remove("id");
    fields.shift_remove("parentId");
    line.insert("id".into(), log.id(ix).into());
    let parent = log.node(ix)?.parent.map(|parent| log.id(parent));
    line.insert("parentId".into(), parent.map_or(Value::Null, Value::String));
    line.insert("timestamp".into(), fields.shift_remove("timestamp").unwrap_or_else(|| "".into()));
    let kept = fields.get("firstKeptEntryIndex").and_then(Value::as_u64);
    if let Some(kept) = kept.filter(|_| !fields.contains_key("firstKeptEntryId")) {
        // Counted from the header, which is number 0.
        let first = kept.checked_sub(1).and_then(|n| u32::try_from(n).ok()).map(|n| log.id(Ix(log.start + n)));
        fields.insert("firstKeptEntryId".into(), first.filter(|id| !id.is_empty()).map_or(Value::Null, Value::String));
    }
    line.extend(fields);
    serde_json::to_string(&line).ok()
}

/// Writes all entries to a new file of the third format, which has the session's id from then on. The old file is
/// not touched, and a failure leaves only it.
pub(super) fn migrate(log: &Log, old: &Placed) -> Result<()> {
    let Some(old_path) = old.path.clone() else { return Ok(()) };
    let header = new_header(log, &old_path);
    let path = free_path(&old_path, &log.id);
    let part = path.with_extension("jsonl.part");
    let failed = |source| StoreError::Io { act: format!("cannot write {}", part.display()), source };
    let write = || -> Result<()> {
        let _ = std::fs::remove_file(&part);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part).map_err(failed)?;
        let mut out = BufWriter::with_capacity(1 << 20, file);
        let mut head = Vec::new();
        put_header(&mut head, &header)?;
        out.write_all(&head).map_err(failed)?;
        for ix in log.start..log.end().0 {
            out.write_all(line(log, old, Ix(ix))?.as_bytes()).map_err(failed)?;
            out.write_all(b"\n").map_err(failed)?;
        }
        let file = out.into_inner().map_err(|e| failed(e.into_error()))?;
        if log.shared.durability != Durability::Os {
            file.sync_all().map_err(failed)?;
        }
        // A link and no rename: it fails where a file of that name is.
        std::fs::hard_link(&part, &path).or_else(|_| rename_free(&part, &path)).map_err(failed)
    };
    let written = write();
    let _ = std::fs::remove_file(&part);
    written?;
    if log.shared.durability != Durability::Os
        && let Some(dir) = path.parent()
    {
        let _ = disk::sync_dir(dir);
    }
    adopt(log, &path)
}

/// The file that an old one outside the session directory was written anew in.
pub(super) fn successor(old: &Path) -> Option<PathBuf> {
    let head = |path: &Path| scan::head(&Disk::open(path, Locking::None).ok()?, path).ok();
    let was = head(old).filter(|head| head.shape != Shape::V3)?;
    let name = old.file_name()?.to_str()?;
    let is_it = |path: &PathBuf| {
        let header = head(path).map(|head| head.header);
        header.is_some_and(|new| new.id == was.header.id && new.migrated_from.as_deref() == Some(name))
    };
    new_names(old, &was.header.id).take_while(|path| path.exists()).find(is_it)
}

fn rename_free(from: &Path, to: &Path) -> std::io::Result<()> {
    match to.exists() {
        true => Err(std::io::Error::from(std::io::ErrorKind::AlreadyExists)),
        false => std::fs::rename(from, to),
    }
}

fn new_header(log: &Log, old_path: &Path) -> Header {
    let old = log.read().header.clone();
    let name = old_path.file_name().map(|name| name.to_string_lossy().into_owned());
    let work_dir = log.read().work_dir.clone();
    Header { kind: HeaderKind::Session, version: SESSION_VERSION, cwd: Some(work_dir), migrated_from: name, ..old }
}

/// A name in the same directory that ends in the session's id, as every file that has an id should.
fn free_path(old: &Path, id: &str) -> PathBuf {
    new_names(old, id).find(|path| !path.exists()).unwrap_or_else(|| old.to_owned())
}

fn new_names(old: &Path, id: &str) -> impl Iterator<Item = PathBuf> {
    let stem = old.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    let stamp = stem.strip_suffix(&format!("_{id}")).unwrap_or(&stem).to_owned();
    let (old, id) = (old.to_owned(), id.to_owned());
    (0..1000).map(move |n| match n {
        0 => old.with_file_name(format!("{stamp}-v3_{id}.jsonl")),
        n => old.with_file_name(format!("{stamp}-v3-{n}_{id}.jsonl")),
    })
}

/// Lines of the second format byte for byte, of the first with what they lack.
fn line(log: &Log, old: &Placed, ix: Ix) -> Result<String> {
    if log.read().shape == Shape::V1 {
        return log.entry(ix).map(|entry| entry.json().to_owned());
    }
    let row = log.row(ix.0).ok_or_else(|| StoreError::EntryNotFound(log.id(ix)))?;
    let bytes = medium::read(&*old.medium, row.offset, row.len).map_err(|e| log.failed("read", e))?;
    String::from_utf8(bytes).map_err(|e| StoreError::Other(e.to_string()))
}

/// The new file takes the old one's place. Its records are the same in the same order, so all places stay good.
fn adopt(log: &Log, path: &Path) -> Result<()> {
    let locking = if log.home == Home::Outside { Locking::Own } else { Locking::None };
    let disk = Arc::new(Disk::open(path, locking)?);
    let head = scan::head(&*disk, path)?;
    let mut index = Index::new(log.start, None);
    let mut progress = head.progress();
    let mut warnings = Warnings::default();
    let source = Source { medium: &*disk, path: Some(path), shape: Shape::V3 };
    scan::records(&source, &mut index, &log.above(), &mut progress, &mut warnings)
        .map_err(|e| log.failed("read", e))?;
    scan::settle(&mut index, &log.above(), 0, Some(path), &mut warnings);
    let mut state = log.write();
    if index.end() != state.index.end() {
        let reason = "the new file does not hold the same entries".to_owned();
        return Err(StoreError::Corrupt { path: path.to_owned(), reason, offset: None });
    }
    state.known = progress.covered;
    state.index = index;
    state.progress = progress;
    state.head_end = head.end;
    state.header = head.header;
    state.shape = Shape::V3;
    state.place = Some(Placed::new(disk, Some(path.to_owned())));
    Ok(())
}
