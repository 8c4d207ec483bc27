//! The stretch of a branch that counts for the context: from the kept boundary of its last compaction to the leaf.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use kli_protocol::api::Warning;
use kli_protocol::record::{Content, Kind, StopReason, SummaryDetails, ToolCallBlock};

use super::item::{Item, Meaning, Sent, Summary};

/// How far above a boundary the reply is looked for whose results lie below it.
const MAX_EXTENSION: usize = 512;

/// Root → leaf, marks included, from the first entry kept on.
#[derive(Clone, Debug, Default)]
pub struct Window {
    items: Vec<Arc<Item>>,
    /// Where in `items` the compaction lies that counts.
    compaction: Option<usize>,
    warnings: Vec<Warning>,
}

impl Window {
    /// Reads a branch from its leaf upwards, and stops where what came before no longer counts.
    ///
    /// `on_branch` says whether an entry of that id lies on the branch: it spares the walk to the root that would
    /// be needed to find that a boundary is missing.
    pub fn read<E>(
        up: impl IntoIterator<Item = Result<Arc<Item>, E>>,
        mut on_branch: impl FnMut(&str) -> bool,
    ) -> Result<Window, E> {
        let mut up = up.into_iter();
        // Newest first, as it comes.
        let mut items: Vec<Arc<Item>> = Vec::new();
        let mut window = Window::default();
        let mut boundary: Option<String> = None;
        let mut stopped = false;
        while let Some(item) = up.next().transpose()? {
            stopped = match (&boundary, item.summary()) {
                (Some(id), _) => item.id == *id,
                (None, None) => false,
                (None, Some(summary)) => {
                    window.compaction = Some(items.len());
                    match kept_above(&item, summary, &items, &mut on_branch) {
                        Ok(kept) => boundary = kept,
                        Err(warning) => window.warnings.push(warning),
                    }
                    boundary.is_none()
                }
            };
            items.push(item);
            if stopped {
                break;
            }
        }
        if stopped {
            extend(&mut items, &mut up)?;
        }
        items.reverse();
        window.compaction = window.compaction.map(|at| items.len() - 1 - at);
        window.items = items;
        window.apply_edits();
        Ok(window)
    }

    /// The end of a branch alone, root → leaf: for what its last entries tell.
    pub fn of_end(items: Vec<Arc<Item>>) -> Window {
        Window { items, ..Window::default() }
    }

    /// Takes in a record that was appended at the leaf. Not for records of another program: read again then.
    pub fn push(&mut self, item: Arc<Item>) {
        match &item.meaning {
            Meaning::Edit { .. } => {
                self.edit(&item);
                self.items.push(item);
            }
            Meaning::Compaction(_) => self.push_compaction(item),
            _ => self.items.push(item),
        }
    }

    pub fn items(&self) -> &[Arc<Item>] {
        &self.items
    }

    /// The id of the compaction that counts.
    pub fn compaction_id(&self) -> Option<&str> {
        Some(self.items.get(self.compaction?)?.id.as_str())
    }

    /// The summary that stands in for what came before the window.
    pub fn summary_text(&self) -> Option<&str> {
        self.summary().map(|summary| summary.text.as_str())
    }

    /// The files that the summaries in the window carry: that of its compaction, and of branches left.
    pub fn details(&self) -> impl Iterator<Item = &SummaryDetails> {
        let counts = self.compaction.and_then(|at| self.items.get(at));
        let branches = self.items.iter().filter(|item| item.kind == Kind::BranchSummary);
        counts.into_iter().chain(branches).filter_map(|item| item.details())
    }

    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    pub(super) fn summary(&self) -> Option<&Summary> {
        self.items.get(self.compaction?)?.summary()
    }

    /// Reported usage counts only from here on: what came before was another request.
    pub(super) fn usage_barrier(&self) -> usize {
        let edit = self.items.iter().rposition(|item| item.edit().is_some());
        self.compaction.max(edit).map_or(0, |at| at + 1)
    }

    /// The calls at the end of the branch that have no stored result, oldest first: each gets one before the next
    /// entry is appended.
    pub fn open_calls(&self) -> Vec<ToolCallBlock> {
        let mut answered: Vec<&str> = Vec::new();
        for item in self.items.iter().rev() {
            if item.is_prompt() {
                break;
            }
            if let Some(result) = item.result() {
                answered.push(&result.tool_call_id);
            }
            if let Some((assistant, sent)) = item.assistant() {
                if matches!(sent, Sent::Never | Sent::AnsweredCalls) {
                    break;
                }
                // Two calls of one reply may share an id: each takes one result.
                let open = assistant.content.tool_calls().filter(|call| {
                    let at = answered.iter().position(|id| *id == call.id);
                    at.map(|at| answered.swap_remove(at)).is_none()
                });
                return open.cloned().collect();
            }
        }
        Vec::new()
    }

    /// Whether a run could have been cut off here: the branch ends in a prompt without reply, a tool result that no
    /// reply followed, or a reply that asks for tools.
    pub fn is_unfinished(&self) -> bool {
        let mut results = false;
        for item in self.items.iter().rev() {
            if item.is_prompt() {
                return true;
            }
            if item.kind == Kind::BranchSummary {
                return false;
            }
            results |= item.result().is_some();
            if let Some((assistant, sent)) = item.assistant() {
                return match sent {
                    Sent::Whole => assistant.content.tool_calls().next().is_some(),
                    // Cut off by its limit, the reply ends the run once its calls are answered.
                    Sent::CallsNotRun => !self.open_calls().is_empty(),
                    Sent::AnsweredCalls | Sent::Never => false,
                };
            }
        }
        results
    }

    /// Whether the model has said all it had to say, and nobody has said anything since.
    pub fn is_answered(&self) -> bool {
        for item in self.items.iter().rev() {
            if let Some((reply, sent)) = item.assistant() {
                let whole = sent == Sent::Whole && reply.stop_reason == StopReason::Stop;
                return whole && reply.error_message.is_none() && reply.content.tool_calls().next().is_none();
            }
            if item.message().is_some() {
                return false;
            }
        }
        false
    }

    fn push_compaction(&mut self, item: Arc<Item>) {
        self.items.push(item);
        let at = self.items.len() - 1;
        let Some(summary) = self.items.get(at).and_then(|item| item.summary()) else { return };
        let kept = summary.kept.as_deref();
        let start = kept.and_then(|id| self.items.iter().position(|item| item.id == id)).unwrap_or(at);
        self.items.drain(..start);
        self.compaction = Some(at - start);
        self.warnings.clear();
    }

    fn apply_edits(&mut self) {
        let edits: Vec<Arc<Item>> = self.items.iter().filter(|item| item.edit().is_some()).cloned().collect();
        let last: HashMap<&str, Option<&Content>> = edits.iter().filter_map(|edit| edit.edit()).collect();
        if last.is_empty() {
            return;
        }
        for item in &mut self.items {
            if let Some(replacement) = last.get(item.id.as_str()) {
                *item = Arc::new(item.edited(*replacement));
            }
        }
    }

    fn edit(&mut self, edit: &Item) {
        let Some((target, replacement)) = edit.edit() else { return };
        if let Some(item) = self.items.iter_mut().find(|item| item.id == target) {
            *item = Arc::new(item.edited(replacement));
        }
    }
}

/// What is wrong with the boundary of the compaction that counts; `above` says whether an entry of that id lies above
/// it on its branch.
pub fn boundary_warning(compaction: &Item, mut above: impl FnMut(&str) -> bool) -> Option<Warning> {
    kept_above(compaction, compaction.summary()?, &[], &mut above).err()
}

/// The boundary above a compaction; none: it keeps nothing.
fn kept_above(
    item: &Item,
    summary: &Summary,
    below: &[Arc<Item>],
    on_branch: &mut impl FnMut(&str) -> bool,
) -> Result<Option<String>, Warning> {
    let kept = summary.kept.as_deref().unwrap_or_default();
    if kept == item.id {
        return Ok(None);
    }
    if !kept.is_empty() && below.iter().all(|item| item.id != kept) && on_branch(kept) {
        return Ok(Some(kept.to_owned()));
    }
    Err(Warning {
        kind: "keptEntryMissing".to_owned(),
        message: format!(
            "The compaction {} keeps entries from {kept:?} on, which is not on its branch: the model sees its summary and what follows it",
            item.id
        ),
        ..Warning::default()
    })
}

/// Results at the top whose reply lies above the boundary: takes in what leads to it, so that they stay paired.
fn extend<E>(items: &mut Vec<Arc<Item>>, up: &mut impl Iterator<Item = Result<Arc<Item>, E>>) -> Result<(), E> {
    let from_top = items.iter().rev().take_while(|item| item.assistant().is_none());
    let orphans: HashSet<String> =
        from_top.filter_map(|item| item.result()).map(|result| result.tool_call_id.clone()).collect();
    if orphans.is_empty() {
        return Ok(());
    }
    let mut above = Vec::new();
    for item in up.take(MAX_EXTENSION) {
        let item = item?;
        let reply =
            item.assistant().map(|(reply, _)| reply.content.tool_calls().any(|call| orphans.contains(&call.id)));
        above.push(item);
        match reply {
            None => {}
            Some(false) => break,
            Some(true) => {
                items.append(&mut above);
                break;
            }
        }
    }
    Ok(())
}
