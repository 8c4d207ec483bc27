//! Session stores: where the records of a session lie, in memory or in files, behind the same operations.
//!
//! A [`Log`] is one session's records: an index (see [`crate::tree`]) over bodies that stay where they were
//! written. It is shared: its actor alone appends; forks and readers look at it from other threads.
//! [`Store`] makes, opens, lists and deletes logs.

pub mod events;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kli_protocol::api::{Mode, Unreadable, Warning};
use kli_protocol::record::{Entry, Kind, Record, Usage};

/// A record's place in what one session can see: first the base's records (as of the fork), then its own, in
/// file order. Stays good as long as the log does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ix(pub u32);

/// `role` of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    User,
    Assistant,
    ToolResult,
    BashExecution,
    Other,
}

/// A record, without its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    pub ix: Ix,
    /// As written: may be a mark.
    pub parent: Option<Ix>,
    pub kind: Kind,
    /// Of a message.
    pub role: Option<Role>,
    /// Bytes of the line.
    pub len: u32,
}

/// What is known of a session without reading bodies.
#[derive(Clone, Debug, Default)]
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

/// One session's records.
pub struct Log {}

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("no session {0} here")]
    SessionNotFound(String),
    #[error("several sessions fit {text}: {}", candidates.join(", "))]
    Ambiguous { text: String, candidates: Vec<String> },
    #[error("a session {0} exists already, or did")]
    SessionExists(String),
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
    #[error("{path} exists")]
    FileExists { path: PathBuf },
    #[error("{0}")]
    Other(String),
}

pub type Result<T, E = StoreError> = std::result::Result<T, E>;

impl Log {
    pub fn facts(&self) -> Facts {
        todo!()
    }

    /// No record was written yet (nor, where it is to have one, its file).
    pub fn is_empty(&self) -> bool {
        todo!()
    }

    /// Where the next entry attaches; none: before the first.
    pub fn leaf(&self) -> Option<Ix> {
        todo!()
    }

    /// Records that the session can count up to: own and base's.
    pub fn end(&self) -> Ix {
        todo!()
    }

    pub fn node(&self, _ix: Ix) -> Option<Node> {
        todo!()
    }

    pub fn id(&self, _ix: Ix) -> String {
        todo!()
    }

    /// By the whole id, or a unique beginning of 4 characters or more. Sees only what is visible: own records,
    /// and of the base the shared branch with the marks on it that count.
    pub fn find(&self, _id: &str) -> Result<Ix> {
        todo!()
    }

    /// The entry above, marks passed over.
    pub fn parent(&self, _ix: Ix) -> Option<Ix> {
        todo!()
    }

    /// The entries below (of none: the roots), marks passed over, in file order.
    pub fn children(&self, _ix: Option<Ix>) -> Vec<Ix> {
        todo!()
    }

    /// From a record up to its root, marks included, itself first. Holds no lock between steps.
    pub fn up(&self, _from: Option<Ix>) -> impl Iterator<Item = Node> + '_ {
        std::iter::empty()
    }

    /// As `up`, but only `model_change`, `option_change`, `thinking_level_change` and `compaction`: by links of
    /// their own, so that it takes time by their number.
    pub fn settings_up(&self, _from: Option<Ix>) -> impl Iterator<Item = Node> + '_ {
        std::iter::empty()
    }

    /// The first settings of the session's own file or its base's: they count where a branch has none.
    pub fn opening_settings(&self) -> Vec<Ix> {
        todo!()
    }

    /// Whether `above` is `below` or lies on its way to the root; logarithmic.
    pub fn is_ancestor(&self, _above: Ix, _below: Ix) -> bool {
        todo!()
    }

    /// The last entry that both branches share.
    pub fn common_ancestor(&self, _a: Ix, _b: Ix) -> Option<Ix> {
        todo!()
    }

    /// Number of records on the way to the root, itself included.
    pub fn depth(&self, _ix: Ix) -> u32 {
        todo!()
    }

    pub fn last_shared(&self) -> Option<Ix> { None }
    pub fn label(&self, _ix: Ix) -> Option<String> {
        todo!()
    }

    /// All labelled entries.
    pub fn labels(&self) -> Vec<(Ix, String)> {
        todo!()
    }

    /// Visible tree entries (no marks) with `ix < before`, newest first.
    pub fn entries_before(&self, _before: Ix) -> impl Iterator<Item = Node> + '_ {
        std::iter::empty()
    }

    /// Visible records, marks included, with `ix > after`, in file order.
    pub fn records_after(&self, _after: Option<Ix>) -> impl Iterator<Item = Node> + '_ {
        std::iter::empty()
    }

    /// The line as it was written (lone surrogates as U+FFFD).
    pub fn entry(&self, _ix: Ix) -> Result<Entry> {
        todo!()
    }

    pub fn record(&self, _ix: Ix) -> Result<Record> {
        todo!()
    }

    /// An id that no visible entry has: 8 lower-case hex digits.
    pub fn new_id(&self, _clock: &dyn crate::clock::Clock) -> String {
        todo!()
    }

    /// Writes records in one `write`, then applies them to the index. A failure changes nothing. The first call
    /// makes the file, its header in the same write. Only the session's actor calls it.
    ///
    /// Lines that another program appended meanwhile are taken in first (`taken_in`, as `ix` range).
    pub fn append(&self, _records: &[Record]) -> Result<Appended> {
        todo!()
    }

    /// All that was written is on disk when this ends; calls of many sessions are grouped.
    pub async fn sync(&self) -> Result<()> {
        todo!()
    }
}

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

/// All sessions of one daemon.
pub struct Store {}

impl Store {
    /// `session_dir`: none keeps all sessions in memory. The caller holds the directory's lock.
    pub fn new(_session_dir: Option<&Path>, _settings: StoreSettings) -> Result<Arc<Store>> {
        todo!()
    }

    pub fn create(self: &Arc<Self>, _new: NewSession) -> Result<Arc<Log>> {
        todo!()
    }

    /// By the whole id.
    pub fn open(self: &Arc<Self>, _id: &str) -> Result<Arc<Log>> {
        todo!()
    }

    /// A file where it lies: under its own lock when outside `session_dir`.
    pub fn open_path(self: &Arc<Self>, _path: &Path) -> Result<Arc<Log>> {
        todo!()
    }

    /// A session whose branch ends with `at`: a header with a base, no copy.
    pub fn fork(self: &Arc<Self>, _source: &Arc<Log>, _at: Ix, _new: NewSession) -> Result<Arc<Log>> {
        todo!()
    }

    /// The whole id that a person's text means: whole, unique beginning, unique end, unique name, in this order.
    pub fn resolve(&self, _text: &str) -> Result<String> {
        todo!()
    }

    /// Newest first by `updated_at`, then id.
    pub fn list(&self, _filter: &Filter) -> (Vec<Facts>, Vec<Unreadable>) {
        todo!()
    }

    pub fn delete(&self, _id: &str) -> Result<()> {
        todo!()
    }

    /// Remembers the session last used in its work directory.
    pub fn set_last(&self, _log: &Log) {
        todo!()
    }

    /// The session last used there, or the newest; `Err` when it is there and cannot be read.
    pub fn last(&self, _work_dir: &str) -> Result<Option<String>> {
        todo!()
    }
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
pub fn title(_: Option<&str>, _: Option<&str>) -> String { todo!() }
impl Store { pub fn session_dir(&self) -> Option<&Path> { None } }
