//! Sessions for elsewhere: self-contained `jsonl`, `pi`, `markdown`, `html`.

mod page;
mod pi;

use std::fs::OpenOptions;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use kli_protocol::api::ExportFormat;
use kli_protocol::record::{Header, HeaderKind, Kind, LeafRecord, Record, SESSION_VERSION};

use super::log::Log;
use super::{Ix, Result, StoreError};

/// What to export.
#[derive(Clone, Copy, Debug)]
pub struct Export {
    pub format: ExportFormat,
    /// The end of the branch (`pi`, `markdown`, `html`); none: before the first entry.
    pub leaf: Option<Ix>,
}

impl Log {
    /// Into a new file; on failure there is none.
    pub fn export_file(&self, export: Export, path: &Path) -> Result<()> {
        let failed = |source| StoreError::Io { act: format!("cannot write {}", path.display()), source };
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = match made {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                return Err(StoreError::FileExists { path: path.to_owned() });
            }
            made => made.map_err(failed)?,
        };
        let mut out = BufWriter::with_capacity(1 << 18, file);
        let written = self.export(export, &mut out).and_then(|()| out.flush().map_err(failed));
        written.inspect_err(|_| {
            let _ = std::fs::remove_file(path);
        })
    }

    /// As a text of at most `max` bytes.
    pub fn export_text(&self, export: Export, max: u64) -> Result<String> {
        let mut out = Bounded { bytes: Vec::new(), max };
        match self.export(export, &mut out) {
            Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::FileTooLarge => {
                let message = format!("the export is larger than {max} bytes: give a path to write it to");
                Err(StoreError::Limit { limit: "maxMessageBytes", max, message })
            }
            Err(e) => Err(e),
            Ok(()) => String::from_utf8(out.bytes).map_err(|e| StoreError::Other(e.to_string())),
        }
    }

    fn export(&self, export: Export, out: &mut dyn Write) -> Result<()> {
        match export.format {
            ExportFormat::Jsonl => self.export_whole(out),
            ExportFormat::Pi => pi::write(self, export.leaf, out),
            ExportFormat::Markdown => page::markdown(self, export.leaf, out),
            ExportFormat::Html => page::html(self, export.leaf, out),
        }
    }

    /// All that can be seen, line for line, under the same id.
    fn export_whole(&self, out: &mut dyn Write) -> Result<()> {
        put(out, &serialised(&header(self))?)?;
        let mut leaf = None;
        for node in self.records_after(None) {
            put(out, &self.text(node.ix)?)?;
            match node.kind {
                Kind::Leaf => leaf = node.parent,
                kind if kind.becomes_leaf() => leaf = Some(node.ix),
                _ => {}
            }
        }
        // A branch that was shared may have been left there in another order.
        if leaf != self.leaf() {
            let id = (0u32..).map(|n| format!("{n:08x}")).find(|id| self.find_whole(id).is_none()).unwrap_or_default();
            let parent = self.leaf().map(|ix| self.id(ix));
            let body = kli_protocol::record::Body::Leaf(LeafRecord {});
            put(out, &serialised(&Record::new(id, parent, self.facts().updated_at, body))?)?;
        }
        Ok(())
    }

    /// Root → leaf, without marks.
    fn branch_to(&self, leaf: Option<Ix>) -> Vec<Ix> {
        let mut branch: Vec<Ix> = self.up(leaf).filter(|node| !node.kind.is_mark()).map(|node| node.ix).collect();
        branch.reverse();
        branch
    }
}

/// The header of a session that stands by itself.
fn header(log: &Log) -> Header {
    let facts = log.facts();
    Header {
        kind: HeaderKind::Session,
        version: SESSION_VERSION,
        id: facts.id,
        timestamp: facts.created_at,
        cwd: Some(facts.work_dir),
        parent_session: facts.parent_session,
        mode: log.read().header.mode,
        base: None,
        migrated_from: None,
    }
}

fn serialised<T: serde::Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|e| StoreError::Other(e.to_string()))
}

fn put(out: &mut dyn Write, line: &str) -> Result<()> {
    let written = out.write_all(line.as_bytes()).and_then(|()| out.write_all(b"\n"));
    written.map_err(|source| StoreError::Io { act: "cannot write the export".into(), source })
}

struct Bounded {
    bytes: Vec<u8>,
    max: u64,
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if (self.bytes.len() + bytes.len()) as u64 > self.max {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
