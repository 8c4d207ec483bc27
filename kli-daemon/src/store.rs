//! Session stores: where the records of a session lie, in memory or in files, behind the same operations.
//!
//! A [`Log`] is one session's records: an index (see [`crate::tree`]) over bodies that stay where they were
//! written. It is shared: its actor alone appends; forks and readers look at it from other threads.
//! [`Store`] makes, opens, lists and deletes logs.
//!
//! Inside: [`log`] answers questions about a session ([`walk`] those that go along its tree, [`outline`] those about all of it), [`write`] appends,
//! [`medium`] and [`disk`] are where bytes lie, [`scan`] reads them into the index, [`sidecar`] keeps
//! that of large files, [`legacy`] knows pi's first
//! formats, [`sessions`] is the store, [`catalog`] what lies in its directory ([`listing`] reads it ahead), [`last`] the session last used,
//! [`sync`] the thread that brings files to disk, [`search`] looks into all sessions,
//! [`import`] and [`export`] know the formats of other programs.

mod catalog;
mod disk;
pub mod events;
mod export;
mod import;
mod last;
mod legacy;
mod listing;
mod log;
mod medium;
mod names;
mod outline;
mod scan;
mod search;
mod sessions;
mod sidecar;
mod sync;
#[cfg(test)]
mod tests;
mod walk;
mod write;

use std::path::PathBuf;

use kli_protocol::api::{Mode, Warning};
use kli_protocol::record::{Entry, Usage};
use serde::{Deserialize, Serialize};

pub use crate::tree::{Ix, Node, Role};
pub use export::Export;
pub use import::Import;
pub use log::Log;
pub use names::{title, valid_session_id};
pub use outline::{Outline, Spot};
pub use search::{Cursor, Search};
pub use sessions::{LastUsed, Store};

/// What is known of a session without reading bodies.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Facts {
    pub id: String,
    pub work_dir: String,
    pub created_at: String,
    pub updated_at: String,
    pub name: Option<String>,
    pub archived: bool,
    pub mode: Option<Mode>,
    /// First user prompt as typed, of the whole visible tree: the title is made from it.
    pub first_prompt: Option<String>,
    /// First prompt of the session's own.
    pub fork_prompt: Option<String>,
    pub last_prompt: Option<String>,
    /// None until the file was scanned.
    pub entry_count: Option<u64>,
    pub message_count: Option<u64>,
    /// The session it was forked from, as an id.
    pub parent_session: Option<String>,
    pub fork_entry_id: Option<String>,
    pub persisted: bool,
    /// Absent in memory, and before the first record.
    pub path: Option<PathBuf>,
    /// Why nothing can be appended.
    pub read_only: Option<String>,
    /// Written by a newer version: it cannot be forked either.
    pub newer_version: bool,
    pub warnings: Vec<Warning>,
    /// Of the session's own entries.
    pub usage: Usage,
}

/// What a new session is made from.
#[derive(Clone, Debug, Default)]
pub struct NewSession {
    pub id: String,
    pub work_dir: String,
    pub created_at_ms: u64,
    pub persist: bool,
    pub parent_session: Option<String>,
    /// Into the header: a fork's.
    pub mode: Option<Mode>,
}

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("no session {0} here")]
    SessionNotFound(String),
    #[error("several sessions fit {text}, give more of the id, or its end: {}", some(candidates))]
    Ambiguous { text: String, candidates: Vec<String> },
    #[error("a session {0} exists already, or did")]
    SessionExists(String),
    #[error("{0:?} cannot be a session id: 1 to 64 of A-Z a-z 0-9 . _ -, the first a letter or digit")]
    InvalidId(String),
    #[error("no entry {0} in this session")]
    EntryNotFound(String),
    #[error("several entries begin with {text}")]
    AmbiguousEntry { text: String, candidates: Vec<String> },
    #[error("{path}: {reason}")]
    Corrupt { path: PathBuf, reason: String, offset: Option<u64> },
    #[error("{reason}")]
    ReadOnly { reason: String },
    #[error("{act}: {source}")]
    Io { act: String, source: std::io::Error },
    #[error("{message}")]
    Limit { limit: &'static str, max: u64, message: String },
    #[error("{path} exists already; name another file")]
    FileExists { path: PathBuf },
    #[error("{0}")]
    Other(String),
}

/// So many as a person looks through; a program has them all.
fn some(candidates: &[String]) -> String {
    const SHOWN: usize = 4;
    let mut text = candidates.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    if candidates.len() > SHOWN {
        text.push_str(&format!(" and {} more", candidates.len() - SHOWN));
    }
    text
}

pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// Where appended records came to lie.
#[derive(Clone, Debug, Default)]
pub struct Appended {
    pub ixs: Vec<Ix>,
    pub entries: Vec<Entry>,
    /// Records of another program, found before ours were written.
    pub taken_in: Vec<Ix>,
}

/// Which sessions a list shows.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Canonical where it exists.
    pub work_dir: Option<String>,
    pub archived: bool,
    pub query: Option<String>,
}

/// Whose the session directory is: asked before each write there, since it may be removed, and made anew by others.
pub trait Ownership: Send + Sync {
    /// The directory is this daemon's alone when this ends well; one that is gone is made. An error is a sentence that
    /// tells who has it.
    fn take(&self) -> Result<(), String>;
    /// Whether it is this daemon's now. Nothing is changed.
    fn is_taken(&self) -> bool;
}

#[derive(Clone, Copy, Debug)]
pub struct StoreSettings {
    pub durability: Durability,
    pub max_memory_bytes: u64,
}

/// When a write must be on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// When the system likes.
    Os,
    /// When a turn ends, a file is made or a fork; anything else a second later at most.
    #[default]
    Turn,
    /// Before it is published.
    Entry,
}
