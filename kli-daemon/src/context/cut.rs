//! Where a compaction cuts: what it summarises, and the first entry that it keeps.

use std::collections::HashMap;
use std::sync::Arc;

use super::estimate::Kept;
use super::item::{Item, Sent};
use super::window::Window;

/// A place in a window: all before it is summarised, all from it on is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Index of the first kept item.
    pub at: usize,
    /// Its id, for `firstKeptEntryId`.
    pub first_kept: String,
    /// The newest prompt comes before the cut: its turn is larger than what is kept, and is split.
    pub splits_turn: bool,
    /// Estimate of what goes, the previous summary included.
    pub tokens: u64,
}

/// Keeps about the last tokens, from a prompt or a reply on; never from a tool result, nor from between a call and
/// its results. None: there is nothing worth a summary, all of it would be kept.
pub fn find_cut(window: &Window, keep: Kept) -> Option<Cut> {
    let items = window.items();
    let whole = whole_pairs(items);
    let may_start = |at: usize| {
        items.get(at).is_some_and(|item| item.message().is_some() && item.result().is_none())
            && whole.get(at).copied().unwrap_or_default()
    };
    let natural = natural_cut(items, keep.about)?;
    let at =
        (natural..items.len()).find(|at| may_start(*at)).or_else(|| (0..natural).rev().find(|at| may_start(*at)))?;
    let mut at = with_its_prompt(items, at, may_start);
    if tokens(items.get(at..)?) > keep.most {
        // It begins with a message that leaves no room for another: later, if there is a place.
        let later = (at + 1..items.len()).filter(|later| may_start(*later));
        let mut later = later.map(|later| with_its_prompt(items, later, may_start)).filter(|later| *later > at);
        let fits = later.clone().find(|later| items.get(*later..).is_some_and(|kept| tokens(kept) <= keep.most));
        at = fits.or(later.next_back()).unwrap_or(at);
    }
    let (before, kept) = items.split_at_checked(at)?;
    if before.iter().all(|item| item.message().is_none()) {
        return None;
    }
    let old = window.summary().and_then(|summary| summary.message.as_deref()).map_or(0, super::estimate::message);
    Some(Cut {
        at,
        first_kept: kept.first()?.id.clone(),
        splits_turn: !kept.iter().any(|item| item.is_prompt()),
        tokens: old.saturating_add(tokens(before)),
    })
}

/// Tokens of what is sent of them.
fn tokens(items: &[Arc<Item>]) -> u64 {
    items.iter().filter(|item| item.message().is_some()).fold(0, |sum, item| sum.saturating_add(item.tokens()))
}

/// The newest entries of a path, root → leaf, as far as about `tokens` go. `up` comes newest first and ends where
/// the path does. The flag says whether older ones were left out.
pub fn newest<E>(up: impl IntoIterator<Item = Result<Arc<Item>, E>>, tokens: u64) -> Result<(Vec<Arc<Item>>, bool), E> {
    let mut items = Vec::new();
    let mut left = tokens;
    let mut more = false;
    for item in up {
        let item = item?;
        let size = item.tokens();
        if size > left && !items.is_empty() {
            more = true;
            break;
        }
        left = left.saturating_sub(size);
        items.push(item);
    }
    items.reverse();
    Ok((items, more))
}

/// The last place from which on there are `keep_recent` tokens.
fn natural_cut(items: &[Arc<Item>], keep_recent: u64) -> Option<usize> {
    let mut kept: u64 = 0;
    items.iter().enumerate().rev().find_map(|(at, item)| {
        if item.message().is_some() {
            kept = kept.saturating_add(item.tokens());
        }
        (kept >= keep_recent.max(1)).then_some(at)
    })
}

/// For each place: whether no reply before it has results, or open calls, after it.
fn whole_pairs(items: &[Arc<Item>]) -> Vec<bool> {
    let mut until: Vec<usize> = vec![0; items.len()];
    let mut callers: HashMap<&str, usize> = HashMap::new();
    // The last reply since the last prompt, and how many of its calls are open.
    let mut last: Option<(usize, usize)> = None;
    for (at, item) in items.iter().enumerate() {
        if let Some((reply, sent)) = item.assistant() {
            callers.extend(reply.content.tool_calls().map(|call| (call.id.as_str(), at)));
            let calls =
                if matches!(sent, Sent::Whole | Sent::CallsNotRun) { reply.content.tool_calls().count() } else { 0 };
            last = Some((at, calls));
        } else if let Some(result) = item.result() {
            if let Some(caller) = callers.get(result.tool_call_id.as_str()) {
                if let Some(until) = until.get_mut(*caller) {
                    *until = at;
                }
                if let Some((_, open)) = last.as_mut().filter(|(at, _)| at == caller) {
                    *open = open.saturating_sub(1);
                }
            }
        } else if item.is_prompt() {
            last = None;
        }
    }
    if let Some((at, _)) = last.filter(|(_, open)| *open > 0) {
        // Its results are still to come.
        if let Some(until) = until.get_mut(at) {
            *until = usize::MAX;
        }
    }
    let mut pending = 0;
    let places = until.iter().enumerate().map(|(at, until)| {
        let whole = pending < at || pending == 0;
        pending = pending.max(*until);
        whole
    });
    places.collect()
}

/// A cut right after a prompt saves nothing of its turn: the prompt stays too.
fn with_its_prompt(items: &[Arc<Item>], mut at: usize, may_start: impl Fn(usize) -> bool + Copy) -> usize {
    if items.get(at).is_some_and(|item| item.assistant().is_none()) {
        return at;
    }
    for before in (0..at).rev() {
        let Some(item) = items.get(before) else { break };
        if item.message().is_none() {
            continue;
        }
        if item.assistant().is_some() || item.result().is_some() || !may_start(before) {
            break;
        }
        at = before;
    }
    at
}

#[cfg(test)]
mod tests;
