//! How a record becomes a row: the fold.

use std::collections::HashMap;

use kli_protocol::record::{Kind, Usage};

use super::ids::{self, Id};
use super::line::{Line, Plain, Says};
use super::{Above, Aimless, FOREIGN_ID, Index, Ix, Labelling, NONE, Role, Row, link};

/// How far back a parent is looked for before the table of ids is asked: it nearly always is one of the last.
const LOOK_BACK: usize = 16;

/// Where a line lies.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    pub offset: u64,
    pub len: u32,
    pub crc: u32,
}

/// What became of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    Node(Ix),
    /// The id was there before: the first counts.
    Duplicate,
    /// There are as many records as can be numbered.
    Full,
}

/// Something odd about a record's parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// It exists nowhere: the record is a root.
    Missing { ix: Ix, parent: String },
    /// It lies below the record itself: the record is a root.
    Cycle { ix: Ix },
}

impl Index {
    /// Appends a record.
    pub fn push(&mut self, line: &Line<'_>, place: Place, above: &dyn Above) -> Pushed {
        let parent = line.parent.as_deref().map(Id::of);
        let pushed = self.add(Id::of(&line.id), parent, (line.kind, line.role), place, above);
        if let Pushed::Node(Ix(ix)) = pushed {
            self.fold(line, ix, above);
        }
        pushed
    }

    /// Appends a plain record, but for its time.
    pub fn push_plain(&mut self, plain: &Plain, usage: Option<&Usage>, above: &dyn Above) -> Pushed {
        let (id, parent) = (Id::Hex(plain.id), plain.parent.map(Id::Hex));
        let pushed = self.add(id, parent, (plain.kind, plain.role), plain.place, above);
        if let (Pushed::Node(_), Some(usage)) = (pushed, usage) {
            self.rest.tally.usage += *usage;
        }
        pushed
    }

    /// The time of the last record that has one.
    pub fn set_updated_at(&mut self, timestamp: &str) {
        self.rest.tally.updated_at.clear();
        self.rest.tally.updated_at.push_str(timestamp);
    }

    fn add(
        &mut self,
        id: Id<'_>,
        wanted: Option<Id<'_>>,
        (kind, role): (Kind, Option<Role>),
        place: Place,
        above: &dyn Above,
    ) -> Pushed {
        let rows = &self.rows;
        let foreign = &self.foreign;
        self.ids.grow_for_one(|n| rows.get(n as usize).map_or(0, |row| row.id_in(foreign).hash()));
        let hash = id.hash();
        let is = |n: u32| rows.get(n as usize).is_some_and(|row| row.id_in(foreign) == id);
        let slot = match self.ids.look(hash, is) {
            Err(slot) if above.find(id).is_none() => slot,
            _ => return Pushed::Duplicate,
        };
        let ix = self.end();
        if ix >= NONE - 1 {
            return Pushed::Full;
        }
        let parent = wanted.and_then(|id| self.look_up(id, above));
        let mut row = Row {
            offset: place.offset,
            len: place.len,
            crc: place.crc,
            id: 0,
            parent: parent.unwrap_or(NONE),
            jump: ix,
            depth: 1,
            nodes: 0,
            messages: 0,
            settings: NONE,
            tree_parent: NONE,
            first_child: NONE,
            last_child: NONE,
            next: NONE,
            kind: kind as u8,
            role: Row::role_number(role),
            flags: 0,
        };
        match id {
            Id::Hex(n) => row.id = n,
            Id::Text(text) => {
                let Some(at) = ids::store(&mut self.foreign, text) else { return Pushed::Full };
                row.id = at;
                row.flags |= FOREIGN_ID;
            }
        }
        self.derive(ix, &mut row, above);
        self.rows.push(row);
        self.ids.fill(slot, hash, ix - self.rest.start);
        self.hang(ix);
        if let (None, Some(missing)) = (parent, wanted) {
            self.rest.waiting.entry(missing.to_string().into()).or_default().push(ix);
        }
        if kind.becomes_leaf() {
            self.rest.leaf = ix;
        } else if kind == Kind::Leaf && (parent.is_some() || wanted.is_none()) {
            self.rest.leaf = parent.unwrap_or(NONE);
        }
        self.rest.tally.nodes += u64::from(!kind.is_mark());
        self.rest.tally.messages += u64::from(is_message(&row));
        if row.is_prompt() {
            self.rest.tally.first_prompt.get_or_insert(Ix(ix));
            self.rest.tally.last_prompt = Some(Ix(ix));
        }
        Pushed::Node(Ix(ix))
    }

    /// Ties records to parents that came after them. Returns what stays odd. Awaited parents stay awaited: a later
    /// record may bring one.
    pub fn settle(&mut self, above: &dyn Above) -> Vec<Note> {
        self.aim();
        let mut open: Vec<(u32, Box<str>)> =
            self.rest.waiting.iter().flat_map(|(id, rows)| rows.iter().map(|ix| (*ix, id.clone()))).collect();
        open.sort_unstable();
        let mut notes = Vec::new();
        let mut roots = HashMap::new();
        let mut changed = false;
        for (ix, id) in open {
            let Some(parent) = self.find(&id) else {
                notes.push(Note::Missing { ix: Ix(ix), parent: id.into() });
                continue;
            };
            if let Some(rows) = self.rest.waiting.get_mut(&id) {
                rows.retain(|waiting| *waiting != ix);
            }
            if self.root_of(parent, &mut roots) == ix {
                notes.push(Note::Cycle { ix: Ix(ix) });
                continue;
            }
            if let Some(row) = self.row_mut(ix) {
                row.parent = parent;
                changed = true;
            }
        }
        self.rest.waiting.retain(|_, rows| !rows.is_empty());
        if changed {
            self.rest.forward = true;
            self.derive_all(above);
        }
        notes
    }

    /// Gives labels and edits their targets that came after them.
    fn aim(&mut self) {
        let found: Vec<(Box<str>, u32)> =
            self.rest.aimless.keys().filter_map(|id| Some((id.clone(), self.find(id)?))).collect();
        for (id, target) in found {
            for mark in self.rest.aimless.remove(&id).into_iter().flatten() {
                match mark {
                    Aimless::Label(labelling) => {
                        self.rest.targets.insert(labelling.mark.0, target);
                        let history = self.rest.labels.entry(target).or_default();
                        history.insert(history.partition_point(|l| l.mark < labelling.mark), labelling);
                    }
                    Aimless::Edit(ix) => {
                        self.rest.targets.insert(ix, target);
                    }
                }
            }
        }
    }

    /// Whether a record that came later is one that others wait for.
    pub fn can_settle(&self) -> bool {
        self.rest.waiting.keys().any(|id| self.find(id).is_some())
    }

    /// The same session when it had only the records before `end`.
    pub fn truncated(&self, end: u32, above: &dyn Above) -> Index {
        let mut index = self.clone();
        index.rows.truncate(end.saturating_sub(self.rest.start) as usize);
        index.ids = Default::default();
        for number in 0..index.rows.len() {
            if let Some(row) = index.rows.get_mut(number)
                && row.parent != NONE
                && row.parent >= end
            {
                row.parent = NONE;
            }
            if let Some(hash) = index.rows.get(number).map(|row| index.id_of(row).hash()) {
                index.insert_id(hash, number as u32);
            }
        }
        index.rest.labels.retain(|target, _| *target < end);
        index.rest.labels.values_mut().for_each(|history| history.retain(|l| l.mark.0 < end));
        index.rest.targets.retain(|mark, target| *mark < end && *target < end);
        index.rest.keys.retain(|_, ix| *ix < end);
        index.rest.waiting.clear();
        index.rest.aimless.clear();
        index.derive_all(above);
        index
    }

    /// Makes room for so many records in all, as far as that can be told: a table that grows is filled anew.
    pub fn reserve(&mut self, rows: usize) {
        let (known, foreign) = (&self.rows, &self.foreign);
        self.ids.reserve(rows, |n| known.get(n as usize).map_or(0, |row| row.id_in(foreign).hash()));
        self.rows.reserve(rows);
    }

    fn insert_id(&mut self, hash: u32, number: u32) {
        let (rows, foreign) = (&self.rows, &self.foreign);
        self.ids.grow_for_one(|n| rows.get(n as usize).map_or(0, |row| row.id_in(foreign).hash()));
        self.ids.put(hash, number);
    }

    fn look_up(&self, id: Id<'_>, above: &dyn Above) -> Option<u32> {
        let near = self.rows.iter().rev().take(LOOK_BACK).position(|row| self.id_of(row) == id);
        match near {
            Some(back) => Some(self.end() - 1 - u32::try_from(back).ok()?),
            None => self.find_id(id).or_else(|| above.find(id)),
        }
    }

    fn any_row(&self, ix: u32, above: &dyn Above) -> Option<Row> {
        match self.row(ix) {
            Some(row) => Some(*row),
            None => above.row(ix),
        }
    }

    /// Fills in what follows from the rows above.
    fn derive(&self, ix: u32, row: &mut Row, above: &dyn Above) {
        let shown = u32::from(!row.kind().is_mark());
        let message = u32::from(is_message(row));
        let Some(parent) = self.any_row(row.parent, above) else {
            (row.jump, row.depth, row.nodes, row.messages) = (ix, 1, shown, message);
            (row.settings, row.tree_parent) = (NONE, NONE);
            return;
        };
        row.depth = parent.depth + 1;
        row.nodes = parent.nodes + shown;
        row.messages = parent.messages + message;
        row.settings = if parent.is_settings() { row.parent } else { parent.settings };
        row.tree_parent = if parent.kind().is_mark() { parent.tree_parent } else { row.parent };
        row.jump = row.parent;
        // Skew-binary jumps: two of the same length in a row become one.
        if let Some(up) = self.any_row(parent.jump, above)
            && let Some(top) = self.any_row(up.jump, above)
            && parent.depth - up.depth == up.depth - top.depth
            && parent.jump != row.parent
        {
            row.jump = up.jump;
        }
    }

    /// Adds a node to the children of its tree parent.
    fn hang(&mut self, ix: u32) {
        let Some(row) = self.row(ix) else { return };
        if row.kind().is_mark() {
            return;
        }
        let parent = row.tree_parent;
        let before = if parent == NONE {
            if self.rest.first_root == NONE {
                self.rest.first_root = ix;
            }
            std::mem::replace(&mut self.rest.last_root, ix)
        } else if parent < self.rest.start {
            let ends = self.rest.grafts.entry(parent).or_insert((ix, NONE));
            std::mem::replace(&mut ends.1, ix)
        } else if let Some(row) = self.row_mut(parent) {
            if row.first_child == NONE {
                row.first_child = ix;
            }
            std::mem::replace(&mut row.last_child, ix)
        } else {
            NONE
        };
        if let Some(row) = self.row_mut(before) {
            row.next = ix;
        }
    }

    /// What a record says about the session as a whole.
    fn fold(&mut self, line: &Line<'_>, ix: u32, above: &dyn Above) {
        if !line.timestamp.is_empty() {
            self.set_updated_at(&line.timestamp);
        }
        if let Some(key) = &line.key {
            self.rest.keys.entry(key.as_str().into()).or_insert(ix);
        }
        match &line.says {
            Says::Nothing => {}
            Says::Usage(usage) => self.rest.tally.usage += *usage,
            Says::Label { target, label } => {
                let label = label.as_deref().filter(|text| !text.is_empty()).map(Into::into);
                let labelling = Labelling { mark: Ix(ix), label };
                match self.look_up(Id::of(target), above) {
                    Some(target) => {
                        self.rest.labels.entry(target).or_default().push(labelling);
                        self.rest.targets.insert(ix, target);
                    }
                    None => self.wait_for(target, Aimless::Label(labelling)),
                }
            }
            Says::Edit { target } => match self.look_up(Id::of(target), above) {
                Some(target) => {
                    self.rest.targets.insert(ix, target);
                }
                None => self.wait_for(target, Aimless::Edit(ix)),
            },
            Says::Info(info) => {
                self.rest.tally.name = info.name.clone().filter(|name| !name.trim().is_empty());
                self.rest.tally.archived = info.archived.or(self.rest.tally.archived);
                self.rest.tally.mode = info.mode.or(self.rest.tally.mode);
                if let Some(dir) = &info.work_dir {
                    self.rest.tally.work_dir = Some(dir.clone());
                }
            }
        }
    }

    fn wait_for(&mut self, target: &str, mark: Aimless) {
        self.rest.aimless.entry(target.into()).or_default().push(mark);
    }

    /// The root of a record, remembering what was found on the way.
    fn root_of(&self, ix: u32, roots: &mut HashMap<u32, u32>) -> u32 {
        let mut at = ix;
        let mut passed = Vec::new();
        loop {
            // A remembered root may have got a parent since: its own row tells.
            let next = match roots.get(&at) {
                Some(root) if *root != at => *root,
                _ => self.row(at).map_or(NONE, |row| row.parent),
            };
            if link(next).is_none() || next < self.rest.start {
                break;
            }
            passed.push(at);
            at = next;
        }
        for ix in passed {
            roots.insert(ix, at);
        }
        at
    }

    /// Derives all rows anew, each after its parent, wherever that lies.
    fn derive_all(&mut self, above: &dyn Above) {
        let mut done = vec![false; self.rows.len()];
        let number = |index: &Index, ix: u32| ix.checked_sub(index.rest.start).map(|n| n as usize);
        let mut path = Vec::new();
        for ix in self.rest.start..self.end() {
            let mut at = ix;
            while let Some(n) = number(self, at)
                && done.get(n) == Some(&false)
            {
                path.push(at);
                at = self.row(at).map_or(NONE, |row| row.parent);
            }
            while let Some(at) = path.pop() {
                let Some(mut row) = self.row(at).copied() else { continue };
                self.derive(at, &mut row, above);
                (row.first_child, row.last_child, row.next) = (NONE, NONE, NONE);
                if let Some(place) = self.row_mut(at) {
                    *place = row;
                }
                if let Some(flag) = number(self, at).and_then(|n| done.get_mut(n)) {
                    *flag = true;
                }
            }
        }
        (self.rest.first_root, self.rest.last_root) = (NONE, NONE);
        self.rest.grafts.clear();
        for ix in self.rest.start..self.end() {
            self.hang(ix);
        }
    }
}

fn is_message(row: &Row) -> bool {
    row.kind() == Kind::Message && matches!(row.role(), Some(Role::User | Role::Assistant))
}
