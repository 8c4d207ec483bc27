//! The folded views against what the contract says of them, node by node.

use std::collections::HashMap;
use std::sync::Arc;

use kli_protocol::api::{GetTreeParams, TreeNode, TreeView};
use kli_protocol::record::{Body, Custom, Label, LeafRecord, Message, ModelChange, Record, UserMessage};
use proptest::prelude::*;
use serde_json::Map;

use super::*;
use crate::store::{Durability, NewSession, Store, StoreSettings};

fn new(id: &str) -> NewSession {
    NewSession { id: id.into(), work_dir: "/tmp".into(), created_at_ms: 1, ..NewSession::default() }
}

fn user() -> Body {
    Body::message(Message::User(UserMessage { content: "a prompt".into(), ..UserMessage::default() }))
}

fn add(log: &Log, number: usize, kind: u8, parent: Option<Ix>) {
    let parent_id = parent.map(|ix| log.id(ix));
    let body = match (kind % 16, &parent_id) {
        (0, Some(target)) => Body::Label(Label { target_id: target.clone(), label: Some("L".into()) }),
        (1, _) => Body::Leaf(LeafRecord {}),
        (2, _) => Body::Custom(Custom::default()),
        (3 | 4, _) => Body::Unknown(Map::new()),
        (5, _) => Body::ModelChange(ModelChange::default()),
        _ => user(),
    };
    let mut record = Record::new(format!("{number:08x}"), parent_id, "2026-01-01T00:00:00.000Z", body);
    if matches!(record.body, Body::Unknown(_)) {
        record.kind = "odd".into();
    }
    log.append(&[record]).unwrap();
}

/// Some records, then perhaps a fork somewhere with more.
fn session(first: &[(u8, u8)], fork: Option<u8>, more: &[(u8, u8)]) -> (Arc<Store>, Arc<Log>) {
    let store = Store::new(None, StoreSettings { durability: Durability::Os, max_memory_bytes: 1 << 20 }).unwrap();
    let mut log = store.create(new("first")).unwrap();
    let mut number = 0;
    let mut grow = |log: &Log, records: &[(u8, u8)]| {
        for (kind, parent) in records {
            let all: Vec<Ix> = log.entries_before(log.end()).map(|node| node.ix).collect();
            // Mostly a chain; else anywhere, or a root of its own.
            let parent = match parent {
                0..170 => log.leaf(),
                170..175 => None,
                n => all.get(usize::from(*n) % all.len().max(1)).copied(),
            };
            add(log, number, *kind, parent);
            number += 1;
        }
    };
    grow(&log, first);
    let all: Vec<Ix> = log.entries_before(log.end()).map(|node| node.ix).collect();
    if let Some(at) = fork.and_then(|n| all.get(usize::from(n) % all.len().max(1)).copied()) {
        log = store.fork(&log, at, new("second")).unwrap();
        grow(&log, more);
    }
    (store, log)
}

fn pages(log: &Log, params: &GetTreeParams) -> (Vec<String>, Vec<TreeNode>) {
    let mut all = Vec::new();
    let mut params = GetTreeParams { limit: Some(3), ..params.clone() };
    loop {
        let page = tree(log, &params).unwrap();
        all.splice(0..0, page.nodes);
        match page.next_cursor {
            Some(cursor) => params.cursor = Some(cursor),
            None => return (page.roots, all),
        }
    }
}

/// A node as it should be: id, parent, children, last id and count of a run.
type Expected = (String, Option<String>, Vec<String>, Option<(String, u64)>);

fn shown(node: TreeNode) -> Expected {
    assert_eq!(node.child_count, node.children.len() as u64);
    (node.id, node.parent_id, node.children, node.last_id.zip(node.count))
}

/// The same by the words of the contract, slowly.
fn expected(log: &Log, view: TreeView) -> Vec<Expected> {
    let mut nodes: Vec<Ix> = log.entries_before(log.end()).map(|node| node.ix).collect();
    nodes.reverse();
    let counts = |ix: &Ix| log.node(*ix).unwrap().kind != Kind::Unknown || !log.children(Some(*ix)).is_empty();
    let alone = |ix: Ix| {
        let forks = log.children(Some(ix)).iter().filter(|ix| counts(ix)).count() > 1;
        log.leaf() == Some(ix) || log.label(ix).is_some() || forks
    };
    let is_shown = |ix: Ix| match view {
        TreeView::All => true,
        TreeView::Messages => log.node(ix).unwrap().kind == Kind::Message,
        TreeView::Prompts => log.node(ix).unwrap().role == Some(Role::User),
        TreeView::Labelled => log.label(ix).is_some(),
        TreeView::Branches => match log.parent(ix) {
            // The head of a run: not the one child that goes on with its parent's.
            Some(parent) => {
                let children = log.children(Some(parent));
                let next = children.iter().find(|ix| counts(ix)).or(children.first());
                alone(ix) || alone(parent) || next != Some(&ix)
            }
            None => true,
        },
    };
    let head_of = |mut ix: Ix| loop {
        if is_shown(ix) {
            return Some(ix);
        }
        ix = log.parent(ix)?;
    };
    let mut children: HashMap<Ix, Vec<String>> = HashMap::new();
    let mut runs: HashMap<Ix, (Ix, u64)> = HashMap::new();
    for ix in &nodes {
        if let Some(head) = head_of(*ix) {
            let run = runs.entry(head).or_insert((*ix, 0));
            *run = (*ix, run.1 + 1);
        }
        if is_shown(*ix)
            && let Some(above) = log.parent(*ix).and_then(head_of)
        {
            children.entry(above).or_default().push(log.id(*ix));
        }
    }
    let folds = view == TreeView::Branches;
    let node = |ix: &Ix| {
        let parent = log.parent(*ix).and_then(head_of).map(|ix| log.id(ix));
        let run = runs.get(ix).filter(|_| folds).map(|(last, count)| (log.id(*last), *count));
        (log.id(*ix), parent, children.get(ix).cloned().unwrap_or_default(), run)
    };
    nodes.iter().filter(|ix| is_shown(**ix)).map(node).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn views_show_what_they_should(
        first in prop::collection::vec((any::<u8>(), any::<u8>()), 1..40),
        fork in prop::option::of(any::<u8>()),
        more in prop::collection::vec((any::<u8>(), any::<u8>()), 0..20),
    ) {
        let (_store, log) = session(&first, fork, &more);
        for view in [TreeView::All, TreeView::Messages, TreeView::Prompts, TreeView::Labelled, TreeView::Branches] {
            let params = GetTreeParams { view: Some(view), ..GetTreeParams::default() };
            let (roots, nodes) = pages(&log, &params);
            let nodes: Vec<Expected> = nodes.into_iter().map(shown).collect();
            prop_assert_eq!(&nodes, &expected(&log, view), "{:?}", view);
            let topmost = nodes.iter().filter(|node| node.1.is_none()).map(|node| node.0.clone());
            prop_assert_eq!(roots, topmost.collect::<Vec<_>>(), "{:?}", view);
            if view != TreeView::Branches {
                continue;
            }
            // Each run unfolds into the entries that it stands for.
            for (id, _, _, run) in nodes {
                let (last, count) = run.unwrap();
                let params = GetTreeParams { root_id: Some(id.clone()), last_id: Some(last.clone()), ..GetTreeParams::default() };
                let (_, unfolded) = pages(&log, &params);
                prop_assert_eq!(unfolded.len() as u64, count);
                prop_assert_eq!(unfolded.first().map(|n| &n.id), Some(&id));
                prop_assert_eq!(unfolded.last().map(|n| &n.id), Some(&last));
            }
        }
    }
}
