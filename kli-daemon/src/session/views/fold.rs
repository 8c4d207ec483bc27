//! Views that show only some nodes: which those are, and what stands above and below each.
//!
//! One pass over the index, no bodies, all by place: a session has hundreds of thousands of nodes, and each page is
//! made anew. What stands above a node follows from what stands above its parent, since parents stand before their
//! children in the file; where damage turned that round, the walk goes up step by step.

use kli_protocol::api::{TreeNode, TreeView};
use kli_protocol::record::Kind;

use super::MAX_CHILDREN;
use crate::store::{Ix, Log, Node, Role};

/// A node that a view shows; for a folded run, its first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown {
    pub ix: Ix,
    /// The last of a folded run.
    last: Ix,
    count: u64,
}

/// No node, where numbers of nodes stand.
const NONE: u32 = u32::MAX;

pub(super) struct Fold {
    /// Nodes stand for runs.
    folds: bool,
    /// In file order; the rest of this speaks of them by their number here.
    shown: Vec<Shown>,
    parents: Vec<u32>,
    /// Children of all, one after another, and where those of each begin.
    children: Vec<u32>,
    first_child: Vec<u32>,
}

/// The nodes that a call speaks of, in file order: all; those below `root`; or the way from `root` down to `last`.
pub(super) fn scope(log: &Log, root: Option<Ix>, last: Option<Ix>) -> Vec<Node> {
    if last.is_some() {
        let mut way: Vec<Node> = vec![];
        let mut found = root.is_none();
        for node in log.up(last) {
            if !node.kind.is_mark() {
                way.push(node);
            }
            if Some(node.ix) == root {
                found = true;
                break;
            }
        }
        way.sort_unstable_by_key(|node| node.ix);
        return if found { way } else { vec![] };
    }
    let mut nodes: Vec<Node> = log.entries_before(log.end()).collect();
    nodes.reverse();
    if let Some(root) = root {
        let mut inside = Places::new(log, false);
        nodes.retain(|node| {
            let is = match node.above {
                _ if node.ix == root => true,
                Some(above) if above > node.ix => log.is_ancestor(root, node.ix),
                above => above.is_some_and(|above| inside.get(above)),
            };
            inside.set(node.ix, is);
            is
        });
    }
    nodes
}

impl Fold {
    pub fn new(log: &Log, view: TreeView, leaf: Option<Ix>, nodes: &[Node]) -> Fold {
        let shown = match view {
            TreeView::Branches => runs(log, nodes, leaf),
            _ => shown_singly(log, view, nodes),
        };
        let mut heads = Places::new(log, NONE);
        for (number, shown) in (0..).zip(&shown) {
            heads.set(shown.ix, number);
        }
        // Which shown node stands for each node: its own, or the nearest above.
        let mut stands = Places::new(log, NONE);
        let mut parents = vec![NONE; shown.len()];
        for node in nodes {
            let above = match node.above {
                Some(above) if above > node.ix => walk_up(log, above, &heads),
                above => above.map_or(NONE, |above| stands.get(above)),
            };
            let head = heads.get(node.ix);
            match parents.get_mut(head as usize) {
                Some(parent) => {
                    *parent = above;
                    stands.set(node.ix, head);
                }
                None => stands.set(node.ix, above),
            }
        }
        let (children, first_child) = by_parent(&parents);
        Fold { folds: view == TreeView::Branches, shown, parents, children, first_child }
    }

    /// Numbers of the nodes before a place, newest first.
    pub fn before(&self, before: Ix) -> impl Iterator<Item = usize> + use<> {
        (0..self.shown.partition_point(|shown| shown.ix < before)).rev()
    }

    pub fn ix(&self, number: usize) -> Option<Ix> {
        self.shown.get(number).map(|shown| shown.ix)
    }

    /// Puts the nearest shown nodes in place of the real ones.
    pub fn dress(&self, log: &Log, number: usize, node: &mut TreeNode) {
        let id = |number: &u32| self.ix(*number as usize).map(|ix| log.id(ix));
        let children = self.children_of(number);
        node.parent_id = self.parents.get(number).and_then(id);
        node.child_count = children.len() as u64;
        node.children = children.iter().take(MAX_CHILDREN).filter_map(id).collect();
        if let Some(shown) = self.shown.get(number).filter(|_| self.folds) {
            node.last_id = Some(log.id(shown.last));
            node.count = Some(shown.count);
        }
    }

    fn children_of(&self, number: usize) -> &[u32] {
        let bound = |number: usize| self.first_child.get(number).map_or(0, |first| *first as usize);
        self.children.get(bound(number)..bound(number + 1)).unwrap_or_default()
    }

    /// Those with nothing shown above them.
    pub fn roots(&self) -> impl Iterator<Item = Ix> + '_ {
        self.shown.iter().zip(&self.parents).filter(|(_, parent)| **parent == NONE).map(|(shown, _)| shown.ix)
    }
}

/// Something for each place of a session.
struct Places<T>(Vec<T>, T);

impl<T: Copy> Places<T> {
    fn new(log: &Log, value: T) -> Places<T> {
        Places(vec![value; log.end().0 as usize], value)
    }

    fn get(&self, ix: Ix) -> T {
        self.0.get(ix.0 as usize).copied().unwrap_or(self.1)
    }

    fn set(&mut self, ix: Ix, value: T) {
        if let Some(place) = self.0.get_mut(ix.0 as usize) {
            *place = value;
        }
    }
}

/// The shown node that stands for one whose parent comes later in the file.
fn walk_up(log: &Log, from: Ix, heads: &Places<u32>) -> u32 {
    let mut at = Some(from);
    while let Some(ix) = at {
        if heads.get(ix) != NONE {
            return heads.get(ix);
        }
        at = log.parent(ix);
    }
    NONE
}

/// Children sorted by parent, in file order, and where those of each parent begin (and the last end).
fn by_parent(parents: &[u32]) -> (Vec<u32>, Vec<u32>) {
    let mut next = vec![0u32; parents.len() + 1];
    for parent in parents {
        if let Some(count) = next.get_mut(*parent as usize) {
            *count += 1;
        }
    }
    let mut sum = 0;
    for count in &mut next {
        sum += std::mem::replace(count, sum);
    }
    let first = next.clone();
    let mut children = vec![NONE; sum as usize];
    for (number, parent) in (0..).zip(parents) {
        if let Some(place) = next.get_mut(*parent as usize) {
            if let Some(child) = children.get_mut(*place as usize) {
                *child = number;
            }
            *place += 1;
        }
    }
    (children, first)
}

fn shown_singly(log: &Log, view: TreeView, nodes: &[Node]) -> Vec<Shown> {
    let mut labelled = Places::new(log, false);
    if view == TreeView::Labelled {
        log.labels().into_iter().for_each(|(ix, _)| labelled.set(ix, true));
    }
    let shows = |node: &&Node| match view {
        TreeView::Messages => node.kind == Kind::Message,
        TreeView::Prompts => node.role == Some(Role::User),
        TreeView::Labelled => labelled.get(node.ix),
        TreeView::All | TreeView::Branches => true,
    };
    nodes.iter().filter(shows).map(|node| Shown { ix: node.ix, last: node.ix, count: 1 }).collect()
}

/// Runs of nodes without a fork, a label or the leaf.
fn runs(log: &Log, nodes: &[Node], leaf: Option<Ix>) -> Vec<Shown> {
    let mut has_children = Places::new(log, false);
    for node in nodes {
        node.above.into_iter().for_each(|above| has_children.set(above, true));
    }
    let mut ways = Places::new(log, 0u32);
    for node in nodes {
        // Another program's odd entries do not make a fork.
        let counts = node.kind != Kind::Unknown || has_children.get(node.ix);
        if let Some(above) = node.above.filter(|_| counts) {
            ways.set(above, ways.get(above).saturating_add(1));
        }
    }
    let mut alone = Places::new(log, false);
    leaf.into_iter().chain(log.labels().into_iter().map(|(ix, _)| ix)).for_each(|ix| alone.set(ix, true));
    let mut runs: Vec<Shown> = vec![];
    // The run whose last node this is, and which may go on.
    let mut open = Places::new(log, NONE);
    for node in nodes {
        let alone = alone.get(node.ix) || ways.get(node.ix) > 1;
        let run = match node.above {
            Some(above) if !alone => {
                // An odd entry goes on a run only where nothing else does.
                let odd = node.kind == Kind::Unknown && !has_children.get(node.ix) && ways.get(above) > 0;
                let run = if odd { NONE } else { open.get(above) };
                if run != NONE {
                    open.set(above, NONE);
                }
                run
            }
            _ => NONE,
        };
        let run = match runs.get_mut(run as usize) {
            Some(shown) => {
                shown.last = node.ix;
                shown.count += 1;
                run
            }
            None => {
                runs.push(Shown { ix: node.ix, last: node.ix, count: 1 });
                u32::try_from(runs.len() - 1).unwrap_or(NONE)
            }
        };
        if !alone {
            open.set(node.ix, run);
        }
    }
    runs
}
