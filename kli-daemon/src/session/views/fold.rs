//! Views that show only some nodes: which those are, and what stands above and below each.
//!
//! A pass or two over the outline of the tree, no bodies, and arrays by place: a million entries take milliseconds.

use kli_protocol::api::{TreeNode, TreeView};
use kli_protocol::record::Kind;

use super::MAX_CHILDREN;
use crate::store::{Ix, Log, Outline, Role, Spot};

const NOWHERE: u32 = Outline::NOWHERE;

/// The part of a tree that is asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Part {
    /// Only it and what lies below it.
    pub root: Option<Ix>,
    /// Only it and what lies above it.
    pub last: Option<Ix>,
}

/// A node that a view shows; for a folded run, its first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown {
    pub ix: Ix,
    /// The last of a folded run.
    last: Ix,
    count: u32,
    /// Its number among those that are shown.
    number: u32,
}

pub(super) struct Fold {
    /// Nodes stand for runs.
    folds: bool,
    /// In file order.
    shown: Vec<Shown>,
    /// The number of the node above each, or [`NOWHERE`].
    above: Vec<u32>,
    /// Numbers of the nodes below each: of number N those from `first_below[N]` to `first_below[N + 1]`.
    below: Vec<u32>,
    first_below: Vec<u32>,
}

impl Fold {
    pub fn new(log: &Log, view: TreeView, leaf: Option<Ix>, part: Part) -> Fold {
        let outline = log.outline();
        let inside = Inside::new(&outline, part);
        // The number of the shown node that stands for each place: its own, or the nearest above.
        let mut stands = vec![NOWHERE; outline.len()];
        let mut shown = match view {
            TreeView::Branches => runs(log, &outline, leaf, &inside, &mut stands),
            _ => chosen(log, &outline, view, &inside, &mut stands),
        };
        let mut above: Vec<u32> = Vec::with_capacity(shown.len());
        for node in &shown {
            let parent = outline.place(node.ix).and_then(|place| outline.spot(place)).map_or(NOWHERE, |s| s.parent);
            above.push(stands.get(parent as usize).copied().unwrap_or(NOWHERE));
        }
        if !outline.is_in_file_order() {
            sort(&mut shown, &mut above);
        }
        let (below, first_below) = children(&above);
        Fold { folds: view == TreeView::Branches, shown, above, below, first_below }
    }

    /// Newest first.
    pub fn shown_before(&self, before: Ix) -> impl Iterator<Item = Shown> + '_ {
        let end = self.shown.partition_point(|shown| shown.ix < before);
        self.shown.get(..end).unwrap_or_default().iter().rev().copied()
    }

    /// Puts the nearest shown nodes in place of the real ones.
    pub fn dress(&self, log: &Log, shown: Shown, node: &mut TreeNode) {
        let id = |number: &u32| self.shown.get(*number as usize).map(|shown| log.id(shown.ix));
        let number = shown.number as usize;
        let edge = |number: usize| self.first_below.get(number).map_or(0, |edge| *edge as usize);
        let children = self.below.get(edge(number)..edge(number + 1)).unwrap_or_default();
        node.parent_id = self.above.get(number).and_then(id);
        node.child_count = children.len() as u64;
        node.children = children.iter().take(MAX_CHILDREN).filter_map(id).collect();
        if self.folds {
            node.last_id = Some(log.id(shown.last));
            node.count = Some(u64::from(shown.count));
        }
    }

    /// The topmost nodes, in file order.
    pub fn roots(&self) -> impl Iterator<Item = Ix> + '_ {
        self.shown.iter().zip(&self.above).filter(|(_, above)| **above == NOWHERE).map(|(shown, _)| shown.ix)
    }
}

/// All entries of a part, newest first.
pub(super) fn entries_of(log: &Log, part: Part) -> Vec<Ix> {
    let outline = log.outline();
    let inside = Inside::new(&outline, part);
    let mut all: Vec<Ix> =
        outline.entries().filter(|(place, _)| inside.has(*place)).map(|(place, _)| outline.ix(place)).collect();
    all.sort_unstable_by(|a, b| b.cmp(a));
    all
}

/// Which places belong to the part that is asked for; none: all.
struct Inside(Option<Vec<bool>>);

impl Inside {
    fn new(outline: &Outline, part: Part) -> Inside {
        if part.root.is_none() && part.last.is_none() {
            return Inside(None);
        }
        let mut inside = vec![part.last.is_none(); outline.len()];
        let mut put = |place: u32, value: bool| {
            if let Some(flag) = inside.get_mut(place as usize) {
                *flag = value;
            }
        };
        let mut at = part.last.and_then(|last| outline.place(last));
        while let Some((place, spot)) = at.and_then(|place| Some((place, outline.spot(place)?))) {
            put(place, true);
            at = Some(spot.parent);
        }
        if let Some(root) = part.root {
            let root = outline.place(root);
            let mut below = vec![false; outline.len()];
            for (place, spot) in outline.entries() {
                let is = Some(place) == root || below.get(spot.parent as usize).copied().unwrap_or_default();
                if let Some(flag) = below.get_mut(place as usize) {
                    *flag = is;
                }
            }
            inside.iter_mut().zip(below).for_each(|(inside, below)| *inside &= below);
        }
        Inside(Some(inside))
    }

    fn has(&self, place: u32) -> bool {
        self.0.as_ref().is_none_or(|inside| inside.get(place as usize).copied().unwrap_or_default())
    }
}

/// Nodes of one sort.
fn chosen(log: &Log, outline: &Outline, view: TreeView, inside: &Inside, stands: &mut [u32]) -> Vec<Shown> {
    let mut labelled = vec![];
    if view == TreeView::Labelled {
        labelled = log.labels().into_iter().filter_map(|(ix, _)| outline.place(ix)).collect();
        labelled.sort_unstable();
    }
    let shows = |place: u32, spot: &Spot| match view {
        TreeView::Messages => spot.kind == Kind::Message,
        TreeView::Prompts => spot.role == Some(Role::User),
        TreeView::Labelled => labelled.binary_search(&place).is_ok(),
        TreeView::All | TreeView::Branches => true,
    };
    let mut shown: Vec<Shown> = vec![];
    for (place, spot) in outline.entries().filter(|(place, _)| inside.has(*place)) {
        let stand = match shows(place, spot) {
            true => {
                let (ix, number) = (outline.ix(place), shown.len() as u32);
                shown.push(Shown { ix, last: ix, count: 1, number });
                number
            }
            false => stands.get(spot.parent as usize).copied().unwrap_or(NOWHERE),
        };
        if let Some(slot) = stands.get_mut(place as usize) {
            *slot = stand;
        }
    }
    shown
}

/// Of a node, as runs are made: at most so many children are counted,
const MANY: u8 = 2;
/// or none of them counts and one has gone on with its run.
const TAKEN: u8 = 0x80;

/// Runs of nodes without a fork, a label or the leaf.
fn runs(log: &Log, outline: &Outline, leaf: Option<Ix>, inside: &Inside, stands: &mut [u32]) -> Vec<Shown> {
    // Children of each place; a label or the leaf is as good as a fork.
    let mut below = vec![0u8; outline.len()];
    // Another program's odd entries do not make a fork, unless something lies below them.
    let counts =
        |place: u32, spot: &Spot| spot.kind != Kind::Unknown || !log.children(Some(outline.ix(place))).is_empty();
    for (place, spot) in outline.entries().filter(|(place, _)| inside.has(*place)) {
        if let Some(count) = below.get_mut(spot.parent as usize).filter(|count| **count < MANY && counts(place, spot)) {
            *count += 1;
        }
    }
    let marked = log.labels().into_iter().map(|(ix, _)| ix).chain(leaf);
    for place in marked.filter_map(|ix| outline.place(ix)) {
        if let Some(count) = below.get_mut(place as usize) {
            *count = MANY;
        }
    }
    let mut runs: Vec<Shown> = vec![];
    for (place, spot) in outline.entries().filter(|(place, _)| inside.has(*place)) {
        let ix = outline.ix(place);
        let alone = below.get(place as usize).is_none_or(|count| *count & !TAKEN >= MANY);
        // The one child that counts goes on with its parent's run; where none does, the first.
        let goes_on = below.get_mut(spot.parent as usize).is_some_and(|count| {
            let goes_on = match *count {
                0 => true,
                MANY.. => false,
                _ => counts(place, spot),
            };
            if *count == 0 {
                *count |= TAKEN;
            }
            goes_on && !alone
        });
        let open = stands.get(spot.parent as usize).filter(|_| goes_on);
        let number = match open.and_then(|number| runs.get_mut(*number as usize)) {
            Some(run) => {
                run.last = ix;
                run.count += 1;
                run.number
            }
            None => {
                let number = runs.len() as u32;
                runs.push(Shown { ix, last: ix, count: 1, number });
                number
            }
        };
        if let Some(slot) = stands.get_mut(place as usize) {
            *slot = number;
        }
    }
    runs
}

/// Into file order, with the numbers that follow from it.
fn sort(shown: &mut [Shown], above: &mut [u32]) {
    let before: Vec<u32> = above.to_vec();
    shown.sort_unstable_by_key(|shown| shown.ix);
    let mut new = vec![NOWHERE; shown.len()];
    for (number, shown) in shown.iter().enumerate() {
        if let Some(slot) = new.get_mut(shown.number as usize) {
            *slot = number as u32;
        }
    }
    for ((number, shown), slot) in shown.iter_mut().enumerate().zip(above) {
        let old = before.get(shown.number as usize).copied().unwrap_or(NOWHERE);
        *slot = new.get(old as usize).copied().unwrap_or(NOWHERE);
        shown.number = number as u32;
    }
}

/// The nodes below each, one node's after the other's.
fn children(above: &[u32]) -> (Vec<u32>, Vec<u32>) {
    let mut first = vec![0u32; above.len() + 1];
    for parent in above.iter().filter(|parent| **parent != NOWHERE) {
        if let Some(count) = first.get_mut(*parent as usize + 1) {
            *count += 1;
        }
    }
    let mut sum = 0;
    for edge in &mut first {
        sum += *edge;
        *edge = sum;
    }
    let mut next = first.clone();
    let mut below = vec![NOWHERE; sum as usize];
    for (number, parent) in above.iter().enumerate() {
        if let Some(edge) = next.get_mut(*parent as usize).filter(|_| *parent != NOWHERE) {
            if let Some(slot) = below.get_mut(*edge as usize) {
                *slot = number as u32;
            }
            *edge += 1;
        }
    }
    (below, first)
}
