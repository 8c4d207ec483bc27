//! Looking at a session: the tree in pages, entries, branches, prompts. Reads the log beside the actor.

mod fold;
mod pages;
#[cfg(test)]
mod tests;

use kli_protocol::ApiError;
use kli_protocol::api::{
    ContextUse, EntriesResult, ForkMessage, GetBranchParams, GetEntriesParams, GetForkMessagesResult, GetStatsResult,
    GetTreeParams, GetTreeResult, ModelUsage, PageParams, TreeNode, TreeView,
};
use kli_protocol::record::{Body, Kind, Message};

pub use pages::{PAGE, PAGE_BYTES, page_limit, page_offset};

use super::actor::shortened;
use super::{api_error, branch};
use crate::context::{estimate, preview};
use crate::store::{Ix, Log, Role};
use fold::Part;
use pages::{Page, cursor_of, position};

/// Children that a node names at most; `childCount` says how many there are.
const MAX_CHILDREN: usize = 1000;

/// The tree, flat, from the newest nodes back.
pub fn tree(log: &Log, params: &GetTreeParams) -> Result<GetTreeResult, ApiError> {
    let view = params.view.unwrap_or_default();
    let part = Part { root: shown_entry(log, &params.root_id)?, last: shown_entry(log, &params.last_id)? };
    let leaf = log.leaf();
    let before = position(params.cursor.as_deref())?.unwrap_or(log.end());
    let mut page = Page::new(page_limit(params.limit, PAGE)?);
    let mut more = false;
    let roots;
    if view == TreeView::All {
        for ix in all_before(log, part, before) {
            more = page.is_full();
            if more {
                break;
            }
            let shown = tree_node(log, ix, leaf)?;
            page.push(weight(&shown), shown);
        }
        roots = part.root.map_or_else(|| log.children(None), |root| vec![root]);
    } else {
        let fold = fold::Fold::new(log, view, leaf, part);
        for shown in fold.shown_before(before) {
            more = page.is_full();
            if more {
                break;
            }
            let mut node = tree_node(log, shown.ix, leaf)?;
            fold.dress(log, shown, &mut node);
            page.push(weight(&node), node);
        }
        roots = part.root.map_or_else(|| fold.roots().collect(), |root| vec![root]);
    }
    let roots = roots.into_iter().map(|ix| log.id(ix)).collect();
    let mut nodes = page.into_items();
    nodes.reverse();
    let next = nodes.first().filter(|_| more).map(|node: &TreeNode| log.find(&node.id).map(cursor_of));
    let next_cursor = next.transpose().map_err(api_error)?;
    Ok(GetTreeResult { leaf_id: leaf.map(|ix| log.id(ix)), roots, nodes, next_cursor })
}

/// An entry of the tree that a call names.
fn shown_entry(log: &Log, id: &Option<String>) -> Result<Option<Ix>, ApiError> {
    let Some(id) = id else { return Ok(None) };
    let ix = log.find(id).map_err(api_error)?;
    match log.node(ix) {
        Some(node) if !node.kind.is_mark() => Ok(Some(ix)),
        _ => Err(super::actor::mark(id)),
    }
}

/// All entries of a part, newest first.
fn all_before(log: &Log, part: Part, before: Ix) -> Box<dyn Iterator<Item = Ix> + '_> {
    match part {
        Part { root: None, last: None } => Box::new(log.entries_before(before).map(|node| node.ix)),
        part => Box::new(fold::entries_of(log, part).into_iter().filter(move |ix| *ix < before)),
    }
}

fn weight(node: &TreeNode) -> usize {
    400 + node.preview.len() + node.children.iter().map(|c| c.len() + 4).sum::<usize>()
}

fn tree_node(log: &Log, ix: Ix, leaf: Option<Ix>) -> Result<TreeNode, ApiError> {
    let record = log.record(ix).map_err(api_error)?;
    let children = log.children(Some(ix));
    Ok(TreeNode {
        id: log.id(ix),
        parent_id: log.parent(ix).map(|p| log.id(p)),
        kind: match log.node(ix).map(|n| n.kind) {
            Some(Kind::Unknown) | None => "unknown".into(),
            Some(kind) => kind.type_name().into(),
        },
        role: preview::role(&record).map(str::to_owned),
        tool_name: preview::tool_name(&record).map(str::to_owned),
        preview: preview::preview(&record),
        label: log.label(ix),
        timestamp: record.timestamp.clone(),
        tokens: estimate::record(&record),
        child_count: children.len() as u64,
        children: children.iter().take(MAX_CHILDREN).map(|c| log.id(*c)).collect(),
        on_branch: leaf.is_some_and(|leaf| log.is_ancestor(ix, leaf)),
        last_id: None,
        count: None,
    })
}

/// Entries by id, or all records, after one or from the first.
pub fn entries(log: &Log, params: &GetEntriesParams, max_message: usize) -> Result<EntriesResult, ApiError> {
    let mut page = Page::new(page_limit(params.limit, PAGE)?);
    let whole = |ix: Ix| {
        let entry = log.entry(ix).map_err(api_error)?;
        Ok::<_, ApiError>(match entry.json().len() < max_message.saturating_sub(4096) {
            true => entry,
            false => shortened(entry),
        })
    };
    let mut next_cursor = None;
    match (&params.ids, &params.after) {
        (Some(ids), None) => {
            let start = page_offset(params.cursor.as_deref())?;
            for (index, id) in ids.iter().enumerate().skip(start) {
                let entry = whole(log.find(id).map_err(api_error)?)?;
                if page.is_full() || !page.has_room(entry.json().len()) {
                    next_cursor = Some(index.to_string());
                    break;
                }
                page.push(entry.json().len(), entry);
            }
        }
        (None, after) => {
            let after = match (position(params.cursor.as_deref())?, after) {
                (Some(ix), _) => Some(ix),
                (None, after) => after.as_deref().map(|id| log.find(id)).transpose().map_err(api_error)?,
            };
            let mut last = after;
            for node in log.records_after(after) {
                let entry = whole(node.ix)?;
                if page.is_full() || !page.has_room(entry.json().len()) {
                    next_cursor = last.map(cursor_of);
                    break;
                }
                last = Some(node.ix);
                page.push(entry.json().len(), entry);
            }
        }
        (Some(_), Some(_)) => return Err(ApiError::invalid_params("give either `ids` or `after`")),
    }
    Ok(EntriesResult { entries: page.into_items(), next_cursor })
}

/// The branch, newest page first, each page root to leaf.
pub fn branch_page(log: &Log, params: &GetBranchParams) -> Result<EntriesResult, ApiError> {
    let end = branch_end(log, &params.leaf_id)?;
    let after = params.after.as_deref().map(|id| log.find(id)).transpose().map_err(api_error)?;
    let from = match position(params.cursor.as_deref())? {
        Some(ix) => Some(ix),
        None => end,
    };
    let mut page = Page::new(page_limit(params.limit, PAGE)?);
    let mut next_cursor = None;
    for node in log.up(from) {
        if Some(node.ix) == after {
            break;
        }
        if node.kind.is_mark() {
            continue;
        }
        if page.is_full() || !page.has_room((node.len as usize).min(super::actor::WHOLE_ENTRY)) {
            next_cursor = Some(cursor_of(node.ix));
            break;
        }
        let entry = shortened(log.entry(node.ix).map_err(api_error)?);
        page.push(entry.json().len(), entry);
    }
    let mut entries = page.into_items();
    entries.reverse();
    Ok(EntriesResult { entries, next_cursor })
}

/// Where a branch ends: at the leaf, or where the caller says.
pub fn branch_end(log: &Log, leaf_id: &Option<Option<String>>) -> Result<Option<Ix>, ApiError> {
    match leaf_id {
        None => Ok(log.leaf()),
        Some(None) => Ok(None),
        Some(Some(id)) => log.find(id).map(Some).map_err(api_error),
    }
}

/// The prompts of the branch, newest first.
pub fn fork_messages(log: &Log, params: &PageParams) -> Result<GetForkMessagesResult, ApiError> {
    let from = match position(params.cursor.as_deref())? {
        Some(ix) => Some(ix),
        None => log.leaf(),
    };
    let mut page = Page::new(page_limit(params.limit, PAGE)?);
    let mut next_cursor = None;
    for node in log.up(from).filter(|n| n.role == Some(Role::User)) {
        if page.is_full() {
            next_cursor = Some(cursor_of(node.ix));
            break;
        }
        let record = log.record(node.ix).map_err(api_error)?;
        let text = branch::prompt_of(&record).text;
        page.push(text.len() + 100, ForkMessage { entry_id: record.id, text, timestamp: record.timestamp });
    }
    Ok(GetForkMessagesResult { messages: page.into_items(), next_cursor })
}

/// Counts and costs of a session's own entries, on all branches.
pub fn stats(log: &Log, context: ContextUse) -> Result<GetStatsResult, ApiError> {
    let mut stats = GetStatsResult { context, ..GetStatsResult::default() };
    let mut models: Vec<ModelUsage> = vec![];
    for node in log.records_after(log.last_shared()) {
        match (node.kind, node.role) {
            (_, Some(Role::User)) => stats.user_messages += 1,
            (_, Some(Role::ToolResult)) => stats.tool_results += 1,
            (_, Some(Role::Assistant)) => {
                stats.assistant_messages += 1;
                let record = log.record(node.ix).map_err(api_error)?;
                let Body::Message(body) = record.body else { continue };
                let Message::Assistant(reply) = body.message else { continue };
                stats.tool_calls += reply.content.tool_calls().count() as u64;
                stats.usage += reply.usage;
                match models.iter_mut().find(|m| m.provider == reply.provider && m.model_id == reply.model) {
                    Some(model) => model.usage += reply.usage,
                    None => {
                        models.push(ModelUsage { provider: reply.provider, model_id: reply.model, usage: reply.usage })
                    }
                }
            }
            (Kind::Usage | Kind::Compaction | Kind::BranchSummary, _) => {
                let record = log.record(node.ix).map_err(api_error)?;
                match record.body {
                    Body::Usage(usage) => stats.usage += usage.usage,
                    Body::Compaction(compaction) => stats.usage += compaction.usage.unwrap_or_default(),
                    Body::BranchSummary(summary) => stats.usage += summary.usage.unwrap_or_default(),
                    _ => {}
                }
            }
            _ => {}
        }
    }
    stats.models = models;
    Ok(stats)
}
