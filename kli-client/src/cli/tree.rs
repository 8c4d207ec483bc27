//! Drawing a tree, line by line.
//!
//! A run of entries without a fork does not indent. At a fork one child goes on in the column of its parent: the
//! one on the branch of the leaf, else the one with most below it; the others are drawn before it, one column
//! further in. So the branch of the leaf is the left edge from top to bottom, and the depth of a tree of n
//! entries is at most about log2(n), however deep its chains are. Nothing here recurses.

use std::collections::{HashMap, HashSet};

use kli_client::api::{GetTreeResult, TreeNode};

use super::out::{Look, Style};
use super::text;

/// One line of a drawing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Which node.
    pub node: usize,
    pub depth: usize,
    /// Starts a side branch.
    pub fork: bool,
}

/// Orders nodes for drawing. `parents` gives each node's parent by its index, `main` tells which nodes are to
/// stay on the left edge.
pub fn layout(parents: &[Option<usize>], main: impl Fn(usize) -> bool) -> Vec<Row> {
    let count = parents.len();
    let mut children: Vec<Vec<usize>> = vec![Vec::new(); count];
    let mut roots = Vec::new();
    for (node, parent) in parents.iter().enumerate() {
        match parent.and_then(|p| children.get_mut(p)) {
            Some(siblings) => siblings.push(node),
            None => roots.push(node),
        }
    }
    let size = sizes(&children, &roots);
    let mut rows = Vec::with_capacity(count);
    let mut stack: Vec<Row> = roots.iter().rev().map(|node| Row { node: *node, depth: 0, fork: false }).collect();
    while let Some(row) = stack.pop() {
        rows.push(row);
        let Some(below) = children.get(row.node) else { continue };
        let on = below.iter().copied().find(|c| main(*c));
        let heavy = || below.iter().copied().max_by_key(|c| size.get(*c).copied().unwrap_or(0));
        let Some(straight) = on.or_else(heavy) else { continue };
        stack.push(Row { node: straight, depth: row.depth, fork: false });
        let side = below.iter().rev().filter(|c| **c != straight);
        stack.extend(side.map(|c| Row { node: *c, depth: row.depth + 1, fork: true }));
    }
    rows
}

/// How many nodes each subtree has.
fn sizes(children: &[Vec<usize>], roots: &[usize]) -> Vec<usize> {
    let mut order: Vec<usize> = Vec::with_capacity(children.len());
    let mut stack = roots.to_vec();
    while let Some(node) = stack.pop() {
        order.push(node);
        stack.extend(children.get(node).into_iter().flatten());
    }
    let mut size = vec![1; children.len()];
    for node in order.into_iter().rev() {
        let below: usize = children.get(node).into_iter().flatten().filter_map(|c| size.get(*c)).sum();
        if let Some(own) = size.get_mut(node) {
            *own = 1 + below;
        }
    }
    size
}

/// The tree of a session, one line an entry: id, place, who, what, label, leaf.
pub fn draw(tree: &GetTreeResult, style: Style) -> Vec<String> {
    let index: HashMap<&str, usize> = tree.nodes.iter().enumerate().map(|(i, n)| (n.id.as_str(), i)).collect();
    let parent = |n: &TreeNode| n.parent_id.as_deref().and_then(|p| index.get(p).copied());
    let parents: Vec<Option<usize>> = tree.nodes.iter().map(parent).collect();
    let rows = layout(&parents, |i| tree.nodes.get(i).is_some_and(|n| n.on_branch));
    let ids = id_width(&tree.nodes);
    let mut lines = Vec::with_capacity(rows.len() + 1);
    if tree.leaf_id.is_none() && !tree.nodes.is_empty() {
        lines.push(format!("{} {}", " ".repeat(ids), style.paint(Look::Good, "◀ leaf (before the first entry)")));
    }
    for row in rows {
        if let Some(node) = tree.nodes.get(row.node) {
            let leaf =
                tree.leaf_id.as_deref().is_some_and(|leaf| leaf == node.id || node.last_id.as_deref() == Some(leaf));
            lines.push(draw_node(node, row, &Columns { ids, leaf, style }));
        }
    }
    lines
}

struct Columns {
    ids: usize,
    leaf: bool,
    style: Style,
}

fn draw_node(node: &TreeNode, row: Row, columns: &Columns) -> String {
    let style = columns.style;
    let id = text::pad(&short(&node.id, columns.ids), columns.ids);
    let mut place = "│ ".repeat(row.depth.saturating_sub(1));
    if row.depth > 0 {
        place.push_str(if row.fork { "├─" } else { "│ " });
    }
    let dot = if node.on_branch { "●" } else { "○" };
    let who = who(node);
    let label = node.label.as_deref().map(|l| format!("[{}]", text::one_line(l))).unwrap_or_default();
    let leaf = if columns.leaf { "◀ leaf" } else { "" };
    let mut preview = text::one_line(&node.preview);
    if let Some(count) = node.count.filter(|c| *c > 1) {
        preview = format!("{preview} … {} more", count - 1);
    }
    if let Some(width) = style.width {
        let used: usize = [id.as_str(), &place, dot, &who, &label, leaf].iter().map(|t| width_of(t) + 1).sum();
        preview = text::cut(&preview, width.saturating_sub(used).max(12)).into_owned();
    }
    let who = match node.role.as_deref() {
        Some("user") => style.paint(Look::Person, &who),
        Some("assistant") => style.paint(Look::Bold, &who),
        _ => style.paint(Look::Dim, &who),
    };
    if !node.on_branch || node.kind != "message" {
        preview = style.paint(Look::Dim, &preview);
    }
    let parts = [
        style.paint(Look::Dim, &id),
        format!(
            "{}{}",
            style.paint(Look::Dim, &place),
            if node.on_branch { style.paint(Look::Good, dot) } else { dot.into() }
        ),
        who,
        preview,
        style.paint(Look::Label, &label),
        style.paint(Look::Good, leaf),
    ];
    parts.into_iter().filter(|p| !p.is_empty()).collect::<Vec<_>>().join(" ")
}

fn width_of(text: &str) -> usize {
    unicode_width::UnicodeWidthStr::width(text)
}

/// Whose entry it is, in a word.
fn who(node: &TreeNode) -> String {
    match (node.kind.as_str(), node.role.as_deref(), node.tool_name.as_deref()) {
        ("message", Some("user"), _) => "you".into(),
        ("message", Some("assistant"), _) => "model".into(),
        ("message", Some("toolResult"), Some(tool)) => text::one_line(tool),
        ("message", Some("toolResult"), None) => "tool".into(),
        ("message", Some("bashExecution"), _) => "!".into(),
        ("message", Some(role), _) => text::one_line(role),
        (kind, _, _) => text::one_line(kind),
    }
}

/// The first characters of an id.
pub fn short(id: &str, width: usize) -> String {
    text::one_line(id).chars().take(width).collect()
}

/// How many characters of the ids tell them apart: at least 8.
fn id_width(nodes: &[TreeNode]) -> usize {
    let longest = nodes.iter().map(|n| n.id.chars().count()).max().unwrap_or(0);
    for width in 8..longest {
        let mut seen = HashSet::with_capacity(nodes.len());
        if nodes.iter().all(|n| seen.insert(short(&n.id, width))) {
            return width;
        }
    }
    longest.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: &str, parent: Option<&str>, on_branch: bool) -> TreeNode {
        TreeNode {
            id: id.into(),
            parent_id: parent.map(str::to_owned),
            kind: "message".into(),
            role: Some("user".into()),
            preview: format!("text of {id}"),
            on_branch,
            ..Default::default()
        }
    }

    fn check(nodes: Vec<TreeNode>, leaf: Option<&str>, drawn: &[&str]) {
        let tree = GetTreeResult { leaf_id: leaf.map(str::to_owned), nodes, ..Default::default() };
        assert_eq!(draw(&tree, Style::PLAIN), drawn);
    }

    #[test]
    fn a_line_does_not_indent() {
        check(
            vec![node("a", None, true), node("b", Some("a"), true), node("c", Some("b"), true)],
            Some("c"),
            &["a ● you text of a", "b ● you text of b", "c ● you text of c ◀ leaf"],
        );
    }

    #[test]
    fn the_branch_of_the_leaf_is_the_left_edge() {
        let mut labelled = node("e", Some("a"), true);
        labelled.label = Some("second\u{1b}[31m try".into());
        check(
            vec![
                node("a", None, true),
                node("b", Some("a"), false),
                node("c", Some("b"), false),
                node("d", Some("b"), false),
                labelled,
                node("f", Some("e"), true),
                node("g", Some("a"), false),
            ],
            Some("f"),
            &[
                "a ● you text of a",
                "b ├─○ you text of b",
                "c │ ├─○ you text of c",
                "d │ ○ you text of d",
                "g ├─○ you text of g",
                "e ● you text of e [second\u{241b}[31m try]",
                "f ● you text of f ◀ leaf",
            ],
        );
    }

    #[test]
    fn several_roots_and_a_leaf_before_them() {
        check(
            vec![
                node("a", None, false),
                node("b", None, false),
                node("c", Some("a"), false),
                node("x", Some("gone"), false),
            ],
            None,
            &[
                "  ◀ leaf (before the first entry)",
                "a ○ you text of a",
                "c ○ you text of c",
                "b ○ you text of b",
                "x ○ you text of x",
            ],
        );
        check(vec![], None, &[]);
    }

    #[test]
    fn folded_runs_tell_their_length_and_hold_the_leaf() {
        let mut run = node("a", None, true);
        run.last_id = Some("c".into());
        run.count = Some(3);
        check(vec![run], Some("c"), &["a ● you text of a … 2 more ◀ leaf"]);
    }

    #[test]
    fn ids_are_as_long_as_needed() {
        let nodes = vec![node("entry-0001", None, true), node("entry-0002", Some("entry-0001"), true)];
        check(
            nodes,
            Some("entry-0002"),
            &["entry-0001 ● you text of entry-0001", "entry-0002 ● you text of entry-0002 ◀ leaf"],
        );
    }

    #[test]
    fn deep_trees_neither_overflow_nor_indent() {
        let n = 100_000;
        // A chain, each of whose nodes also has a leaf of its own: forks all the way down.
        let parents: Vec<Option<usize>> = (0..n)
            .map(|i: usize| if i == 0 { None } else { Some(if i % 2 == 1 { i - 1 } else { i.saturating_sub(2) }) })
            .collect();
        let rows = layout(&parents, |_| false);
        assert_eq!(rows.len(), n);
        assert_eq!(rows.iter().map(|r| r.depth).max(), Some(1));
        // A full binary tree.
        let parents: Vec<Option<usize>> = (0..n).map(|i: usize| (i > 0).then(|| (i - 1) / 2)).collect();
        let rows = layout(&parents, |_| false);
        assert_eq!(rows.len(), n);
        assert!(rows.iter().map(|r| r.depth).max().unwrap() <= 17);
    }

    #[test]
    fn lines_fit_the_terminal() {
        let mut long = node("a", None, true);
        long.preview = "中".repeat(200);
        let tree = GetTreeResult { leaf_id: Some("a".into()), nodes: vec![long], ..Default::default() };
        let lines = draw(&tree, Style { colour: false, terminal: true, width: Some(60) });
        assert!(lines.iter().all(|l| width_of(l) <= 60), "{lines:?}");
    }
}
