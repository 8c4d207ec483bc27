//! The tree of one session as an index without bodies: pure, and the fold of the session's records.
//!
//! [`Index::push`] is the only thing that changes it, one record after another in file order ([`Index::settle`]
//! then ties up what pointed forward). A row is of a fixed size, so that a million of them can be loaded from a
//! file as they are. A fork's index holds its own rows only and asks for those of its base through [`Above`].
//! Where the bodies lie, and who may see what of a base, is the store's business.

mod ids;
pub mod json;
pub mod line;
mod push;
mod slab;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use bytemuck::{Pod, Zeroable};
use kli_protocol::api::Mode;
use kli_protocol::record::{Kind, Usage};

pub use ids::{Id, IdTable};
pub use push::{Note, Place, Pushed};
use serde::{Deserialize, Serialize};
pub use slab::Slab;

/// A record's place in what one session can see: first the base's records (as of the fork), then its own, in
/// file order. Stays good as long as the log does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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
    /// The nearest one above that is no mark.
    pub above: Option<Ix>,
    pub kind: Kind,
    /// Of a message.
    pub role: Option<Role>,
    /// Bytes of the line.
    pub len: u32,
}

/// Stands for "none" where a row names another.
pub const NONE: u32 = u32::MAX;

/// A record in the index. All links are places in the session's view ([`Ix`]), so they may lie in the base.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Row {
    /// Of the line, in bytes from the start of the file.
    pub offset: u64,
    pub len: u32,
    /// CRC-32 of the line.
    pub crc: u32,
    /// The id itself where it is 8 lower-case hex digits, else where it lies among the foreign ids.
    id: u32,
    pub parent: u32,
    /// An ancestor further up (a root's is itself); together they reach any depth in logarithmic time.
    pub jump: u32,
    /// Records on the way to the root, itself included.
    pub depth: u32,
    /// Of these, nodes of the tree that is shown; user and assistant messages.
    pub nodes: u32,
    pub messages: u32,
    /// The nearest settings record or compaction above it.
    pub settings: u32,
    /// The nearest record above it that is no mark.
    pub tree_parent: u32,
    first_child: u32,
    last_child: u32,
    next: u32,
    kind: u8,
    role: u8,
    flags: u16,
}

const FOREIGN_ID: u16 = 1;

impl Row {
    pub fn kind(&self) -> Kind {
        Kind::ALL.get(usize::from(self.kind)).copied().unwrap_or(Kind::Unknown)
    }

    pub fn role(&self) -> Option<Role> {
        Some(match self.role {
            1 => Role::User,
            2 => Role::Assistant,
            3 => Role::ToolResult,
            4 => Role::BashExecution,
            5 => Role::Other,
            _ => return None,
        })
    }

    /// `foreign`: where ids lie that are not 8 hex digits.
    fn id_in<'a>(&self, foreign: &'a [u8]) -> Id<'a> {
        if self.flags & FOREIGN_ID == 0 {
            return Id::Hex(self.id);
        }
        Id::Text(ids::stored(foreign, self.id))
    }

    fn role_number(role: Option<Role>) -> u8 {
        match role {
            None => 0,
            Some(Role::User) => 1,
            Some(Role::Assistant) => 2,
            Some(Role::ToolResult) => 3,
            Some(Role::BashExecution) => 4,
            Some(Role::Other) => 5,
        }
    }

    /// Settings of the model's call, or a compaction: what [`Row::settings`] leads to.
    pub fn is_settings(&self) -> bool {
        is_settings(self.kind())
    }

    pub fn is_prompt(&self) -> bool {
        self.kind() == Kind::Message && self.role() == Some(Role::User)
    }

    pub fn node(&self, ix: u32) -> Node {
        let (parent, above) = (link(self.parent), link(self.tree_parent));
        Node { ix: Ix(ix), parent, above, kind: self.kind(), role: self.role(), len: self.len }
    }
}

pub fn is_settings(kind: Kind) -> bool {
    matches!(kind, Kind::ModelChange | Kind::OptionChange | Kind::ThinkingLevelChange | Kind::Compaction)
}

/// A link as an option.
pub fn link(ix: u32) -> Option<Ix> {
    (ix != NONE).then_some(Ix(ix))
}

/// What an index can see of the session that it is a fork of.
pub trait Above {
    fn row(&self, ix: u32) -> Option<Row>;
    /// A visible record by its whole id.
    fn find(&self, id: Id<'_>) -> Option<u32>;
}

/// No base.
impl Above for () {
    fn row(&self, _: u32) -> Option<Row> {
        None
    }

    fn find(&self, _: Id<'_>) -> Option<u32> {
        None
    }
}

/// What the records of one session add up to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    /// Own nodes of the tree, and of these user and assistant messages.
    pub nodes: u64,
    pub messages: u64,
    pub usage: Usage,
    pub name: Option<String>,
    pub archived: Option<bool>,
    pub mode: Option<Mode>,
    pub work_dir: Option<String>,
    /// Of the last record that has one.
    pub updated_at: String,
    /// The first and the last own prompt.
    pub first_prompt: Option<Ix>,
    pub last_prompt: Option<Ix>,
}

/// A label given or taken away.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Labelling {
    pub mark: Ix,
    pub label: Option<Box<str>>,
}

/// A `label` or `context_edit` that lies before what it is about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Aimless {
    Label(Labelling),
    Edit(u32),
}

/// The own records of one session.
#[derive(Clone, Debug)]
pub struct Index {
    rows: Slab<Row>,
    ids: IdTable,
    /// Foreign ids, each behind its length (4 bytes).
    foreign: Vec<u8>,
    rest: Rest,
}

/// What there is little of.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Rest {
    start: u32,
    leaf: u32,
    first_root: u32,
    last_root: u32,
    /// Own children of the base's entries: first and last.
    grafts: HashMap<u32, (u32, u32)>,
    labels: HashMap<u32, Vec<Labelling>>,
    /// Targets of `label` and `context_edit` records.
    targets: HashMap<u32, u32>,
    /// `idempotencyKey`s.
    keys: HashMap<Box<str>, u32>,
    /// Records whose parent has not turned up, by its id.
    waiting: HashMap<Box<str>, Vec<u32>>,
    /// The same of labels and edits and their targets.
    aimless: HashMap<Box<str>, Vec<Aimless>>,
    /// A record lies before its parent.
    forward: bool,
    tally: Tally,
}

impl Rest {
    pub fn start(&self) -> u32 {
        self.start
    }
}

/// An index apart, to be stored and loaded.
pub struct Parts<R> {
    pub rows: Slab<Row>,
    pub slots: Slab<u32>,
    pub foreign: Vec<u8>,
    pub rest: R,
}

impl Index {
    /// `start`: the records of the base that come before; `leaf`: where it ends.
    pub fn new(start: u32, leaf: Option<Ix>) -> Index {
        let rest = Rest {
            start,
            leaf: leaf.map_or(NONE, |ix| ix.0),
            first_root: NONE,
            last_root: NONE,
            grafts: HashMap::new(),
            labels: HashMap::new(),
            targets: HashMap::new(),
            keys: HashMap::new(),
            waiting: HashMap::new(),
            aimless: HashMap::new(),
            forward: false,
            tally: Tally::default(),
        };
        Index { rows: Slab::default(), ids: IdTable::default(), foreign: Vec::new(), rest }
    }

    /// From what was stored: trusted, so it must have been checked.
    pub fn from_parts(parts: Parts<Rest>) -> Index {
        let used = parts.rows.len();
        Index { rows: parts.rows, ids: IdTable::load(parts.slots, used), foreign: parts.foreign, rest: parts.rest }
    }

    /// Rows, slots and foreign ids as bytes, to be stored with the rest.
    pub fn parts(&self) -> [Vec<&[u8]>; 3] {
        [self.rows.bytes().into(), self.ids.slots().into(), vec![&self.foreign]]
    }

    pub fn rest(&self) -> &Rest {
        &self.rest
    }

    pub fn start(&self) -> u32 {
        self.rest.start
    }

    /// One past the last record.
    pub fn end(&self) -> u32 {
        self.rest.start.saturating_add(u32::try_from(self.rows.len()).unwrap_or(NONE))
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn last_row(&self) -> Option<&Row> {
        self.rows.get(self.rows.len().checked_sub(1)?)
    }

    /// Own records.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// An own record.
    pub fn row(&self, ix: u32) -> Option<&Row> {
        self.rows.get(usize::try_from(ix.checked_sub(self.rest.start)?).ok()?)
    }

    fn row_mut(&mut self, ix: u32) -> Option<&mut Row> {
        self.rows.get_mut(usize::try_from(ix.checked_sub(self.rest.start)?).ok()?)
    }

    pub fn leaf(&self) -> Option<Ix> {
        link(self.rest.leaf)
    }

    pub fn tally(&self) -> &Tally {
        &self.rest.tally
    }

    /// Whether some record lies before its parent: then places do not fall on the way up.
    pub fn has_forward_links(&self) -> bool {
        self.rest.forward
    }

    /// An own record by its whole id.
    pub fn find(&self, id: &str) -> Option<u32> {
        self.find_id(Id::of(id))
    }

    pub fn find_id(&self, id: Id<'_>) -> Option<u32> {
        let ordinal =
            self.ids.find(id.hash(), |n| self.rows.get(n as usize).is_some_and(|row| self.id_of(row) == id))?;
        Some(self.rest.start + ordinal)
    }

    /// Looks at where these ids would be, all at once, so that the memory is near when they are pushed: one after
    /// another each would wait for it.
    pub fn fetch(&self, ids: impl Iterator<Item = Id<'static>>) {
        let touched = ids.fold(0u32, |sum, id| sum.wrapping_add(self.ids.first(id.hash()).unwrap_or(0)));
        std::hint::black_box(touched);
    }

    pub fn find_key(&self, key: &str) -> Option<Ix> {
        self.rest.keys.get(key).map(|ix| Ix(*ix))
    }

    fn id_of<'a>(&'a self, row: &Row) -> Id<'a> {
        row.id_in(&self.foreign)
    }

    /// The id of an own record.
    pub fn id(&self, ix: u32) -> Option<String> {
        Some(self.id_of(self.row(ix)?).to_string())
    }

    /// Own records whose ids begin with `beginning`, at most `limit`.
    pub fn find_beginning(&self, beginning: &str, limit: usize) -> Vec<u32> {
        let fits = |row: &Row| match self.id_of(row) {
            Id::Text(text) => text.starts_with(beginning),
            Id::Hex(n) => ids::hex_begins_with(n, beginning),
        };
        (self.rest.start..).zip(self.rows.iter()).filter(|(_, row)| fits(row)).map(|(ix, _)| ix).take(limit).collect()
    }

    /// Own children of an entry, own or the base's (of none: own roots), in file order, marks passed over.
    pub fn children(&self, parent: Option<u32>) -> Vec<Ix> {
        let first = match parent {
            None => self.rest.first_root,
            Some(ix) if ix < self.rest.start => self.rest.grafts.get(&ix).map_or(NONE, |ends| ends.0),
            Some(ix) => self.row(ix).map_or(NONE, |row| row.first_child),
        };
        let mut children = Vec::new();
        let mut next = first;
        while let Some(row) = self.row(next) {
            children.push(Ix(next));
            next = row.next;
        }
        children
    }

    /// The label that an entry has by own records before `limit`; the outer none: none of them is about it.
    pub fn label(&self, target: u32, limit: u32) -> Option<Option<&str>> {
        let last = self.rest.labels.get(&target)?.iter().rfind(|l| l.mark.0 < limit)?;
        Some(last.label.as_deref())
    }

    /// Entries that own records before `limit` gave a label or took it from.
    pub fn labelled(&self) -> impl Iterator<Item = u32> + '_ {
        self.rest.labels.keys().copied()
    }

    /// What an own `label` or `context_edit` is about.
    pub fn target(&self, mark: u32) -> Option<u32> {
        self.rest.targets.get(&mark).copied()
    }

    /// Own marks that have a target.
    pub fn targets(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.rest.targets.iter().map(|(mark, target)| (*mark, *target))
    }

    /// The first own settings, before anything that is sent.
    pub fn opening(&self) -> Vec<Ix> {
        let opens = |row: &&Row| row.is_settings() && row.kind() != Kind::Compaction || row.kind().is_mark();
        (self.rest.start..)
            .zip(self.rows.iter().take_while(|row| opens(row)))
            .filter(|(_, row)| row.is_settings())
            .map(|(ix, _)| Ix(ix))
            .collect()
    }

    /// The number of own records that lie before `offset`: what a fork took over whose base was this long.
    pub fn rows_before(&self, offset: u64) -> u32 {
        u32::try_from(self.rows.partition_point(|row| row.offset < offset)).unwrap_or(NONE)
    }

    /// The own record that begins within these bytes of the file.
    pub fn row_between(&self, from: u64, to: u64) -> Option<u32> {
        let number = self.rows.partition_point(|row| row.offset < from);
        self.rows.get(number).filter(|row| row.offset < to)?;
        Some(self.rest.start + u32::try_from(number).ok()?)
    }

    /// Whether a parent or target of this id is awaited: it should not be given to a new record.
    pub fn is_awaited(&self, id: &str) -> bool {
        self.rest.waiting.contains_key(id) || self.rest.aimless.contains_key(id)
    }

    /// Bytes that it takes in memory, about.
    pub fn bytes(&self) -> usize {
        self.rows.len() * size_of::<Row>() + self.ids.bytes() + self.foreign.len()
    }
}
