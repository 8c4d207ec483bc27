//! Files that tests need: shared ones where they are, and session files made on the spot.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::binary::repository;

/// A directory of our own that is gone at the end; its path is canonical, and short enough for a socket in it.
pub fn temp_dir(prefix: &str) -> tempfile::TempDir {
    let base = std::env::temp_dir().canonicalize().expect("the temporary directory");
    let base = if base.as_os_str().len() > 40 { PathBuf::from("/tmp") } else { base };
    tempfile::Builder::new().prefix(prefix).tempdir_in(base).expect("a temporary directory")
}

/// A work directory with `hello.txt` in it, which says `marker-4711`.
pub fn work_dir() -> tempfile::TempDir {
    let directory = temp_dir("kli-w");
    std::fs::write(directory.path().join("hello.txt"), "marker-4711\n").unwrap();
    directory
}

/// A file of the collection of real sessions and failure cases that lies beside the repository (or where
/// `KLI_SHARED` says). It is not part of it: without it a test is skipped, and says so.
pub fn shared(relative: &str) -> Option<PathBuf> {
    let directory = std::env::var_os("KLI_SHARED")
        .map(PathBuf::from)
        .unwrap_or_else(|| repository().parent().unwrap_or(repository()).join("shared"));
    let path = directory.join(relative);
    if path.exists() {
        return Some(path);
    }
    eprintln!("skipped: there is no {}", path.display());
    None
}

/// All JSON lines of a file.
#[track_caller]
pub fn records(path: &Path) -> Vec<Value> {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    bytes
        .split(|b| *b == b'\n')
        .filter(|line| !line.trim_ascii().is_empty())
        .map(|line| serde_json::from_slice(line).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(line))))
        .collect()
}

/// The session files below a directory, in path order.
pub fn session_files(directory: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    let Ok(entries) = std::fs::read_dir(directory) else { return found };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.is_dir() {
            found.extend(session_files(&path));
        } else if path.extension().is_some_and(|e| e == "jsonl") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// A session file in the making, in the shape that pi writes.
pub struct SessionFile {
    text: String,
    count: u64,
}

impl SessionFile {
    pub fn new(id: &str, work_dir: &Path) -> SessionFile {
        let header = json!({
            "type": "session", "version": 3, "id": id, "timestamp": "2026-01-01T00:00:00.000Z", "cwd": work_dir,
        });
        SessionFile { text: format!("{header}\n"), count: 0 }
    }

    /// Adds a record with these fields after its envelope.
    pub fn record(&mut self, kind: &str, id: &str, parent: Option<&str>, fields: Value) -> &mut SessionFile {
        let (second, minute) = (self.count % 60, self.count / 60 % 60);
        self.count += 1;
        let mut record = json!({
            "type": kind, "id": id, "parentId": parent, "timestamp": format!("2026-01-01T00:{minute:02}:{second:02}.000Z"),
        });
        if let (Value::Object(record), Value::Object(fields)) = (&mut record, fields) {
            record.extend(fields);
        }
        let _ = writeln!(self.text, "{record}");
        self
    }

    pub fn user(&mut self, id: &str, parent: Option<&str>, text: &str) -> &mut SessionFile {
        let message = json!({ "role": "user", "content": text, "timestamp": 1_767_225_600_000u64 });
        self.record("message", id, parent, json!({ "message": message }))
    }

    pub fn assistant(&mut self, id: &str, parent: Option<&str>, text: &str) -> &mut SessionFile {
        self.reply(id, parent, json!([{ "type": "text", "text": text }]), "stop")
    }

    /// An assistant message that calls `bash`.
    pub fn call(&mut self, id: &str, parent: Option<&str>, call_id: &str) -> &mut SessionFile {
        let call = json!({ "type": "toolCall", "id": call_id, "name": "bash", "arguments": { "command": "ls" } });
        self.reply(id, parent, json!([call]), "toolUse")
    }

    fn reply(&mut self, id: &str, parent: Option<&str>, content: Value, stop: &str) -> &mut SessionFile {
        let cost = json!({ "input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "total": 0 });
        let usage =
            json!({ "input": 10, "output": 5, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 15, "cost": cost });
        let message = json!({
            "role": "assistant", "content": content, "api": "openai-completions", "provider": "fake", "model": "m1",
            "usage": usage, "stopReason": stop, "timestamp": 1_767_225_600_000u64,
        });
        self.record("message", id, parent, json!({ "message": message }))
    }

    pub fn result(&mut self, id: &str, parent: Option<&str>, call_id: &str, text: &str) -> &mut SessionFile {
        let message = json!({
            "role": "toolResult", "toolCallId": call_id, "toolName": "bash", "isError": false,
            "content": [{ "type": "text", "text": text }], "timestamp": 1_767_225_600_000u64,
        });
        self.record("message", id, parent, json!({ "message": message }))
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn write(&self, path: &Path) {
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory).unwrap();
        }
        std::fs::write(path, &self.text).unwrap();
    }
}

/// A conversation of `entries` messages in one line: prompt, call, result, answer, and so on. Gives its ids.
pub fn long_session(id: &str, work_dir: &Path, entries: usize) -> (SessionFile, Vec<String>) {
    let mut file = SessionFile::new(id, work_dir);
    let mut ids: Vec<String> = Vec::new();
    for n in 0..entries {
        let (id, parent) = (format!("{n:08x}"), ids.last().cloned());
        let body = format!("entry {n}: {}", "tree leaf branch parser socket buffer ".repeat(1 + n % 12));
        match n % 4 {
            0 => file.user(&id, parent.as_deref(), &body),
            1 => file.call(&id, parent.as_deref(), &format!("call_{n}")),
            2 => file.result(&id, parent.as_deref(), &format!("call_{}", n - 1), &body),
            _ => file.assistant(&id, parent.as_deref(), &body),
        };
        ids.push(id);
    }
    (file, ids)
}
