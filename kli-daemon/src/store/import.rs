//! Sessions of other programs become sessions here: a new id, entry ids and bytes kept where there are any.

mod claude;
mod codex;
mod kimi;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kli_protocol::api::ImportFormat;
use kli_protocol::record::{Body, Record, SessionInfoRecord};
use serde_json::Value;

use super::log::Log;
use super::{Ix, NewSession, Result, Store, StoreError};
use crate::clock::{Clock, parse_rfc3339, rfc3339};
use crate::tree::json;

/// What to import, and as what.
#[derive(Clone, Debug, Default)]
pub struct Import {
    /// A session file, or a Kimi session directory.
    pub path: PathBuf,
    pub format: ImportFormat,
    /// `id`, and `work_dir` where it is not to be the source's (else empty).
    pub new: NewSession,
    pub name: Option<String>,
}

/// A session of another program, in our records.
#[derive(Debug, Default)]
struct Foreign {
    work_dir: Option<String>,
    name: Option<String>,
    archived: bool,
    records: Vec<Record>,
}

/// So many lines are written at a time.
const LINES: usize = 512;

impl Store {
    /// The new session; on failure there is none.
    pub fn import(self: &Arc<Self>, import: Import, clock: &dyn Clock) -> Result<Arc<Log>> {
        let format = match import.format {
            ImportFormat::Auto => detect(&import.path)?,
            format => format,
        };
        let id = import.new.id.clone();
        let imported = match format {
            ImportFormat::Auto | ImportFormat::Kli | ImportFormat::Pi => self.import_own(import, clock),
            ImportFormat::Kimi => self.import_foreign(kimi::read(&import.path)?, import, clock),
            ImportFormat::Codex => self.import_foreign(codex::read(&import.path)?, import, clock),
            ImportFormat::Claude => self.import_foreign(claude::read(&import.path)?, import, clock),
        };
        if matches!(&imported, Err(e) if !matches!(e, StoreError::SessionExists(_))) {
            self.discard(&id);
        }
        imported
    }

    /// pi's and our own files: the whole visible tree, line for line.
    fn import_own(self: &Arc<Self>, mut import: Import, clock: &dyn Clock) -> Result<Arc<Log>> {
        let source = self.peek(&import.path)?;
        let facts = source.facts();
        if import.new.work_dir.is_empty() {
            import.new.work_dir = facts.work_dir;
        }
        import.new.created_at_ms = parse_rfc3339(&facts.created_at).unwrap_or(import.new.created_at_ms);
        let log = self.create(import.new)?;
        let mut lines = Vec::with_capacity(LINES);
        let records: Vec<Ix> = source.records_after(None).map(|node| node.ix).collect();
        for ix in records {
            lines.push(source.text(ix)?);
            if lines.len() == LINES {
                log.append_lines(std::mem::take(&mut lines))?;
            }
        }
        log.append_lines(lines)?;
        finish(&log, import.name, false, clock)?;
        Ok(log)
    }

    fn import_foreign(self: &Arc<Self>, foreign: Foreign, mut import: Import, clock: &dyn Clock) -> Result<Arc<Log>> {
        if import.new.work_dir.is_empty() {
            import.new.work_dir = foreign.work_dir.unwrap_or_else(|| directory_of(&import.path));
        }
        if let Some(first) = foreign.records.iter().find_map(|r| parse_rfc3339(&r.timestamp)) {
            import.new.created_at_ms = first;
        }
        if foreign.records.is_empty() {
            return Err(corrupt(&import.path, "holds no messages"));
        }
        let log = self.create(import.new)?;
        for records in foreign.records.chunks(LINES) {
            log.append(records)?;
        }
        finish(&log, import.name.or(foreign.name), foreign.archived, clock)?;
        Ok(log)
    }
}

/// The name and the archive flag, as the last record.
fn finish(log: &Log, name: Option<String>, archived: bool, clock: &dyn Clock) -> Result<()> {
    let name = name.filter(|name| !name.trim().is_empty());
    if name.is_none() && !archived {
        return Ok(());
    }
    let facts = log.facts();
    let body =
        SessionInfoRecord { name: name.or(facts.name), archived: archived.then_some(true), ..Default::default() };
    let leaf = log.leaf().map(|ix| log.id(ix));
    // With the time of what came before: importing is no use of the session.
    let time = if facts.updated_at.is_empty() { rfc3339(clock.now_ms()) } else { facts.updated_at };
    log.append(&[Record::new(log.new_id(clock), leaf, time, Body::SessionInfo(body))]).map(drop)
}

/// Whose file it is, by its first lines.
fn detect(path: &Path) -> Result<ImportFormat> {
    use std::io::BufRead;
    if path.is_dir() && !path.join("context.jsonl").exists() {
        return Err(corrupt(path, "is a directory and no session of Kimi CLI; name the file of one session"));
    }
    if path.is_dir() || path.file_name().is_some_and(|name| name == "context.jsonl" || name == "wire.jsonl") {
        return Ok(ImportFormat::Kimi);
    }
    let failed = |source| StoreError::Io { act: format!("cannot read {}", path.display()), source };
    let file = std::fs::File::open(path).map_err(failed)?;
    for line in std::io::BufReader::new(file).split(b'\n').take(50) {
        let Some(value) = parse(&line.map_err(failed)?) else { continue };
        let text = |name: &str| value.get(name).and_then(Value::as_str);
        match text("type") {
            Some("session" | "kli_session") => return Ok(ImportFormat::Kli),
            Some("session_meta" | "response_item" | "event_msg" | "turn_context") => return Ok(ImportFormat::Codex),
            _ if value.get("uuid").is_some() || value.get("sessionId").is_some() || value.get("leafUuid").is_some() => {
                return Ok(ImportFormat::Claude);
            }
            None if text("role").is_some() => return Ok(ImportFormat::Kimi),
            _ => {}
        }
    }
    Err(corrupt(
        path,
        "looks like no session of kli, pi, Kimi CLI, Codex or Claude Code; if it is one, name its `format`",
    ))
}

fn corrupt(path: &Path, reason: &str) -> StoreError {
    StoreError::Corrupt { path: path.to_owned(), reason: reason.to_owned(), offset: None }
}

/// A line as JSON; of a damaged line nothing.
fn parse(line: &[u8]) -> Option<Value> {
    let text = String::from_utf8_lossy(line);
    serde_json::from_str(&json::without_lone_surrogates(text.trim_start_matches('\u{feff}').trim())).ok()
}

/// Every line that is JSON, with its number from 1.
fn lines(path: &Path) -> Result<Vec<(usize, Value)>> {
    let failed = |source| StoreError::Io { act: format!("cannot read {}", path.display()), source };
    let bytes = std::fs::read(path).map_err(failed)?;
    let all = bytes.split(|b| *b == b'\n').enumerate();
    Ok(all.filter_map(|(number, line)| Some((number + 1, parse(line)?))).collect())
}

/// When a file was last written, which stands in where none of its lines has a time.
fn written_at(path: &Path) -> u64 {
    let modified = std::fs::metadata(path).and_then(|meta| meta.modified()).ok();
    let since = modified.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok()).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or_default()
}

/// The time of a session's first lines, where these have none: the first that a line has, else the file's.
fn first_time(path: &Path, lines: &[(usize, Value)]) -> u64 {
    let of = |line: &Value| string(line, "timestamp").and_then(|text| parse_rfc3339(&text));
    lines.iter().find_map(|(_, line)| of(line)).unwrap_or_else(|| written_at(path))
}

fn directory_of(path: &Path) -> String {
    let dir = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("/")) };
    dir.canonicalize().unwrap_or_else(|_| dir.to_owned()).display().to_string()
}

fn string(value: &Value, name: &str) -> Option<String> {
    value.get(name).and_then(Value::as_str).map(str::to_owned)
}

fn number(value: &Value, name: &str) -> u64 {
    value.get(name).and_then(Value::as_u64).unwrap_or_default()
}

/// Arguments of a call as text: an object, or what else it is under `input`.
fn arguments(text: &str) -> serde_json::Map<String, Value> {
    match serde_json::from_str(text) {
        Ok(Value::Object(map)) => map,
        _ if text.trim().is_empty() => serde_json::Map::new(),
        _ => serde_json::Map::from_iter([("input".to_owned(), Value::String(text.to_owned()))]),
    }
}

/// An image by a `data:` URL, else its address as text.
fn image(url: &str) -> kli_protocol::record::Block {
    use kli_protocol::record::{Block, ImageBlock};
    let data = url.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,"));
    match data {
        Some((mime_type, data)) => Block::Image(ImageBlock { data: data.to_owned(), mime_type: mime_type.to_owned() }),
        None => Block::text(format!("[image {url}]")),
    }
}
