//! Walks along a session's tree, through any number of bases, and ancestor questions that need no walk.

use std::collections::VecDeque;

use kli_protocol::record::Kind;

use super::log::Log;
use super::{Ix, Node};
use crate::tree::{NONE, link};

/// How many rows a walk takes under one lock, at first and at most: many callers want only a few.
const FIRST_STEPS: usize = 8;
const STEPS: usize = 128;

impl Log {
    /// From a record up to its root, marks included, itself first. Holds no lock between steps.
    pub fn up(&self, from: Option<Ix>) -> impl Iterator<Item = Node> + '_ {
        Walk { log: self, next: from.map_or(NONE, |ix| ix.0), steps: FIRST_STEPS, ready: VecDeque::new() }
    }

    /// As `up`, but only `model_change`, `option_change`, `thinking_level_change` and `compaction`: by links of
    /// their own, so that it takes time by their number.
    pub fn settings_up(&self, from: Option<Ix>) -> impl Iterator<Item = Node> + '_ {
        let first = from.and_then(|ix| {
            let row = self.row(ix.0)?;
            if row.is_settings() { Some(ix) } else { link(row.settings) }
        });
        std::iter::successors(first, |ix| link(self.row(ix.0)?.settings)).filter_map(|ix| self.node(ix))
    }

    /// The `context_edit`s that hang on a branch from the side, in file order, each with the entry that it hangs on:
    /// nothing was attached to them, so that no way leads through them. Where something was, they count for those that
    /// come that way.
    pub fn edits_aside(&self, tip: Ix) -> Vec<(Ix, Ix)> {
        let mut edits: Vec<u32> = Vec::new();
        let mut limit = NONE;
        for log in self.chain() {
            let state = log.read();
            let is_edit = |mark: &u32| state.index.row(*mark).is_some_and(|row| row.kind() == Kind::ContextEdit);
            edits.extend(state.index.targets().map(|(mark, _)| mark).filter(|mark| *mark < limit).filter(is_edit));
            limit = log.start;
        }
        edits.sort_unstable();
        let aside = |edit: u32| {
            let row = self.row(edit).filter(|_| self.is_visible(Ix(edit)))?;
            let on = link(row.tree_parent).filter(|on| self.is_ancestor(*on, tip))?;
            (!self.is_ancestor(Ix(edit), tip) && !self.leads_on(edit)).then_some((on, Ix(edit)))
        };
        edits.into_iter().filter_map(aside).collect()
    }

    /// Whether an entry was attached to a mark, or to marks on it: whoever does so does it next.
    fn leads_on(&self, mark: u32) -> bool {
        let mut at = mark;
        loop {
            match self.row(at + 1).filter(|row| row.parent == at) {
                Some(row) if row.kind().is_mark() => at += 1,
                next => return next.is_some(),
            }
        }
    }

    /// Whether `above` is `below` or lies on its way to the root; logarithmic.
    pub fn is_ancestor(&self, above: Ix, below: Ix) -> bool {
        let depth = self.depth(above);
        depth > 0 && self.ancestor_at(below, depth) == Some(above)
    }

    /// The last entry that both branches share.
    pub fn common_ancestor(&self, a: Ix, b: Ix) -> Option<Ix> {
        let depth = self.depth(a).min(self.depth(b));
        let (mut a, mut b) = (self.ancestor_at(a, depth)?.0, self.ancestor_at(b, depth)?.0);
        while a != b {
            let (row_a, row_b) = (self.row(a)?, self.row(b)?);
            // At the same depth jumps are of the same length; roots jump nowhere.
            (a, b) = match row_a.jump != row_b.jump {
                true if row_a.jump != a => (row_a.jump, row_b.jump),
                _ => (link(row_a.parent)?.0, link(row_b.parent)?.0),
            };
        }
        // A mark may be what they share.
        match self.row(a)? {
            row if row.kind().is_mark() => link(row.tree_parent),
            _ => Some(Ix(a)),
        }
    }

    /// Number of records on the way to the root, itself included.
    pub fn depth(&self, ix: Ix) -> u32 {
        self.row(ix.0).map_or(0, |row| row.depth)
    }

    /// Visible tree entries (no marks) with `ix < before`, newest first.
    pub fn entries_before(&self, before: Ix) -> impl Iterator<Item = Node> + '_ {
        let own = Down { log: self, next: before.0.min(self.end().0), ready: VecDeque::new() };
        own.chain(self.shared_before(before)).filter(|node| !node.kind.is_mark())
    }

    /// Visible records, marks included, with `ix > after`, in file order.
    pub fn records_after(&self, after: Option<Ix>) -> impl Iterator<Item = Node> + '_ {
        let first = after.map_or(0, |ix| ix.0.saturating_add(1));
        let shared = self.shared_from(first);
        let own = Onward { log: self, next: first.max(self.start), ready: VecDeque::new() };
        shared.into_iter().filter_map(|ix| self.node(ix)).chain(own)
    }

    /// The record of that depth on the way from `ix` to its root.
    pub(super) fn ancestor_at(&self, ix: Ix, depth: u32) -> Option<Ix> {
        let mut at = ix.0;
        let mut row = self.row(at)?;
        if depth == 0 {
            return None;
        }
        while row.depth > depth {
            let jump = self.row(row.jump).filter(|far| far.depth >= depth);
            (at, row) = match jump {
                Some(far) if row.jump != at => (row.jump, far),
                _ => (row.parent, self.row(row.parent)?),
            };
        }
        (row.depth == depth).then_some(Ix(at))
    }

    /// The entry right below `ix` (none: the root) on the way to `below`, marks passed over.
    pub(super) fn next_towards(&self, ix: Option<Ix>, below: Ix) -> Option<Ix> {
        let depth = ix.map_or(0, |ix| self.depth(ix));
        (depth + 1..=self.depth(below))
            .map_while(|depth| self.ancestor_at(below, depth))
            .find(|ix| self.node(*ix).is_some_and(|node| !node.kind.is_mark()))
    }

    /// The shared branch below `before`, newest first, marks included.
    fn shared_before(&self, before: Ix) -> Box<dyn Iterator<Item = Node> + '_> {
        let Some(base) = &self.base else { return Box::new(std::iter::empty()) };
        if base.log.chain().any(|log| log.read().index.has_forward_links()) {
            let mut all: Vec<Node> = self.up(Some(base.entry)).filter(|node| node.ix < before).collect();
            all.sort_unstable_by_key(|node| std::cmp::Reverse(node.ix));
            return Box::new(all.into_iter());
        }
        // Places fall on the way up, so a jump that stays above the limit loses nothing.
        let mut at = base.entry.0;
        while at != NONE && at >= before.0 {
            let Some(row) = self.row(at) else { break };
            at = if row.jump != at && row.jump >= before.0 { row.jump } else { row.parent };
        }
        Box::new(self.up(link(at)))
    }

    /// Visible records of the base from `first` on, in file order.
    fn shared_from(&self, first: u32) -> Vec<Ix> {
        let Some(base) = self.base.as_ref().filter(|_| first < self.start) else { return Vec::new() };
        let forward = base.log.chain().any(|log| log.read().index.has_forward_links());
        let branch = self.up(Some(base.entry)).map(|node| node.ix.0);
        let mut all: Vec<u32> = match forward {
            true => branch.filter(|ix| *ix >= first).collect(),
            false => branch.take_while(|ix| *ix >= first).collect(),
        };
        let mut limit = self.start;
        for log in base.log.chain() {
            let counts = |mark: &u32| (first..limit).contains(mark);
            let marks: Vec<u32> = log.read().index.targets().map(|(mark, _)| mark).filter(counts).collect();
            all.extend(marks.into_iter().filter(|mark| self.is_visible(Ix(*mark))));
            limit = log.start;
        }
        all.sort_unstable();
        all.dedup();
        all.into_iter().map(Ix).collect()
    }
}

/// Up the parents, through the bases, a few rows under each lock.
struct Walk<'a> {
    log: &'a Log,
    next: u32,
    steps: usize,
    ready: VecDeque<Node>,
}

impl Iterator for Walk<'_> {
    type Item = Node;

    fn next(&mut self) -> Option<Node> {
        if self.ready.is_empty() && self.next != NONE {
            let owner = self.log.owner(self.next);
            let state = owner.read();
            while self.ready.len() < self.steps {
                let Some(row) = state.index.row(self.next) else { break };
                self.ready.push_back(row.node(self.next));
                self.next = row.parent;
            }
            self.steps = (self.steps * 2).min(STEPS);
        }
        self.ready.pop_front()
    }
}

/// Own records, newest first.
struct Down<'a> {
    log: &'a Log,
    next: u32,
    ready: VecDeque<Node>,
}

impl Iterator for Down<'_> {
    type Item = Node;

    fn next(&mut self) -> Option<Node> {
        if self.ready.is_empty() {
            let state = self.log.read();
            while self.ready.len() < STEPS && self.next > self.log.start {
                self.next -= 1;
                self.ready.extend(state.index.row(self.next).map(|row| row.node(self.next)));
            }
        }
        self.ready.pop_front()
    }
}

/// Own records in file order.
struct Onward<'a> {
    log: &'a Log,
    next: u32,
    ready: VecDeque<Node>,
}

impl Iterator for Onward<'_> {
    type Item = Node;

    fn next(&mut self) -> Option<Node> {
        if self.ready.is_empty() {
            let state = self.log.read();
            while self.ready.len() < STEPS
                && let Some(row) = state.index.row(self.next)
            {
                self.ready.push_back(row.node(self.next));
                self.next += 1;
            }
        }
        self.ready.pop_front()
    }
}
