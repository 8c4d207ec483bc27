//! Views that show only some nodes: which those are, and what stands above and below each.
//!
//! One pass over the index, no bodies. A node's nearest shown ancestor follows from its parent's, since parents
//! stand before their children in the file; where damage turned that round, the walk goes up step by step.

use std::collections::HashMap;

use kli_protocol::api::{TreeNode, TreeView};
use kli_protocol::record::Kind;

use super::MAX_CHILDREN;
use crate::store::{Ix, Log, Role};

/// A node that a view shows; for a folded run, its first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown {
    pub ix: Ix,
    /// The last of a folded run.
    last: Ix,
    count: u64,
}

pub(super) struct Fold {
    /// Nodes stand for runs.
    folds: bool,
    /// Newest first.
    shown: Vec<Shown>,
    parents: HashMap<Ix, Ix>,
    children: HashMap<Ix, Vec<Ix>>,
}

impl Fold {
    pub fn new(log: &Log, view: TreeView, leaf: Option<Ix>, within: &dyn Fn(Ix) -> bool) -> Fold {
        let mut nodes: Vec<Ix> = log.entries_before(log.end()).map(|n| n.ix).filter(|ix| within(*ix)).collect();
        nodes.reverse();
        let runs = match view {
            TreeView::Branches => runs(log, &nodes, leaf),
            _ => nodes
                .iter()
                .filter(|ix| shows(log, view, **ix))
                .map(|ix| Shown { ix: *ix, last: *ix, count: 1 })
                .collect(),
        };
        // Which shown node stands for each node: its own, or the nearest above.
        let mut stands: HashMap<Ix, Ix> = HashMap::with_capacity(nodes.len());
        let heads: HashMap<Ix, Ix> = runs.iter().map(|s| (s.ix, s.ix)).collect();
        let mut parents = HashMap::new();
        let mut children: HashMap<Ix, Vec<Ix>> = HashMap::new();
        for ix in &nodes {
            let above = log.parent(*ix).and_then(|p| stands.get(&p).copied());
            if let Some(head) = heads.get(ix) {
                if let Some(above) = above {
                    parents.insert(*head, above);
                    children.entry(above).or_default().push(*head);
                }
                stands.insert(*ix, *head);
            } else if let Some(above) = above {
                stands.insert(*ix, above);
            }
        }
        let mut shown = runs;
        shown.reverse();
        Fold { folds: view == TreeView::Branches, shown, parents, children }
    }

    pub fn shown_before(&self, before: Ix) -> impl Iterator<Item = Shown> + '_ {
        self.shown.iter().copied().filter(move |s| s.ix < before)
    }

    /// Puts the nearest shown nodes in place of the real ones.
    pub fn dress(&self, log: &Log, shown: Shown, node: &mut TreeNode) {
        let children = self.children.get(&shown.ix).map(Vec::as_slice).unwrap_or_default();
        node.parent_id = self.parents.get(&shown.ix).map(|p| log.id(*p));
        node.child_count = children.len() as u64;
        node.children = children.iter().take(MAX_CHILDREN).map(|c| log.id(*c)).collect();
        if self.folds {
            node.last_id = Some(log.id(shown.last));
            node.count = Some(shown.count);
        }
    }

    fn roots(&self) -> Vec<Ix> {
        self.shown.iter().rev().map(|s| s.ix).filter(|ix| !self.parents.contains_key(ix)).collect()
    }
}

/// The topmost nodes of a view.
pub(super) fn shown_roots(log: &Log, view: TreeView, leaf: Option<Ix>) -> Vec<Ix> {
    match view {
        TreeView::All | TreeView::Branches => log.children(None),
        _ => Fold::new(log, view, leaf, &|_| true).roots(),
    }
}

fn shows(log: &Log, view: TreeView, ix: Ix) -> bool {
    let node = log.node(ix);
    match view {
        TreeView::Messages => node.is_some_and(|n| n.kind == Kind::Message),
        TreeView::Prompts => node.is_some_and(|n| n.role == Some(Role::User)),
        TreeView::Labelled => log.label(ix).is_some(),
        TreeView::All | TreeView::Branches => true,
    }
}

/// Runs of nodes without a fork, a label or the leaf.
fn runs(log: &Log, nodes: &[Ix], leaf: Option<Ix>) -> Vec<Shown> {
    let labelled: std::collections::HashSet<Ix> = log.labels().into_iter().map(|(ix, _)| ix).collect();
    let mut below: HashMap<Ix, u32> = HashMap::with_capacity(nodes.len());
    for ix in nodes {
        // Another program's odd entries do not make a fork.
        let counts = log.node(*ix).is_some_and(|n| n.kind != Kind::Unknown) || !log.children(Some(*ix)).is_empty();
        if let Some(parent) = log.parent(*ix).filter(|_| counts) {
            *below.entry(parent).or_default() += 1;
        }
    }
    let alone = |ix: Ix| Some(ix) == leaf || labelled.contains(&ix) || below.get(&ix).copied().unwrap_or_default() > 1;
    let mut runs: Vec<Shown> = vec![];
    // The run whose last node this is.
    let mut open: HashMap<Ix, usize> = HashMap::new();
    for ix in nodes {
        let run = log.parent(*ix).and_then(|parent| open.remove(&parent)).filter(|_| !alone(*ix));
        let index = match run.and_then(|index| runs.get_mut(index).map(|run| (index, run))) {
            Some((index, run)) => {
                run.last = *ix;
                run.count += 1;
                index
            }
            None => {
                runs.push(Shown { ix: *ix, last: *ix, count: 1 });
                runs.len() - 1
            }
        };
        if !alone(*ix) {
            open.insert(*ix, index);
        }
    }
    runs
}
