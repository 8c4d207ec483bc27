//! Moving the leaf inside the tree.

use kli_protocol::ApiError;
use kli_protocol::api::{EventBody, NavigateTreeParams, NavigateTreeResult, Position};
use kli_protocol::record::{Body, LeafRecord, Record};

use super::{Actor, Ix};
use crate::session::{api_error, branch};
use crate::store::Role;

/// Where a move goes.
pub(super) struct Destination {
    pub leaf: Option<Ix>,
    /// The entry that was named; none: the place before the first entry.
    pub entry: Option<Ix>,
    /// The prompt to edit, when the move goes before one.
    pub prompt: Option<branch::PromptText>,
}

impl Actor {
    pub fn navigate(&mut self, params: &NavigateTreeParams) -> Result<NavigateTreeResult, ApiError> {
        self.check_move(params)?;
        let to = self.destination(params.entry_id.as_deref(), params.position)?;
        self.move_to(to, params.label.as_deref())
    }

    /// All that can be wrong with a move but its target: nothing is written before this is known.
    pub(super) fn check_move(&mut self, params: &NavigateTreeParams) -> Result<(), ApiError> {
        self.check_quiet()?;
        self.catch_up()?;
        self.check_leaf(&params.leaf_id)?;
        params.label.as_deref().map(super::edits::clean_label).transpose().map(|_| ())
    }

    /// Moves the leaf, without a summary.
    pub(super) fn move_to(&mut self, to: Destination, label: Option<&str>) -> Result<NavigateTreeResult, ApiError> {
        let from_id = self.tip_id();
        self.move_leaf(to.leaf)?;
        if let (Some(label), Some(entry)) = (label, to.entry) {
            let id = self.log.id(entry);
            self.set_label(&id, Some(label.to_owned()))?;
        }
        let (editor_text, images) = match to.prompt {
            Some(prompt) => (Some(prompt.text), prompt.images),
            None => (None, None),
        };
        Ok(NavigateTreeResult { leaf_id: self.tip_id(), from_id, editor_text, images, summary_entry_id: None })
    }

    pub(super) fn destination(
        &self,
        entry_id: Option<&str>,
        position: Option<Position>,
    ) -> Result<Destination, ApiError> {
        let Some(entry_id) = entry_id else {
            return Ok(Destination { leaf: None, entry: None, prompt: None });
        };
        let ix = self.log.find(entry_id).map_err(api_error)?;
        let node = self.log.node(ix).ok_or_else(|| super::edits::mark(entry_id))?;
        if node.kind.is_mark() {
            return Err(super::edits::mark(entry_id));
        }
        if node.role != Some(Role::User) {
            if position == Some(Position::Before) {
                return Ok(Destination { leaf: self.log.parent(ix), entry: Some(ix), prompt: None });
            }
            return Ok(Destination { leaf: Some(ix), entry: Some(ix), prompt: None });
        }
        if position == Some(Position::At) {
            return Ok(Destination { leaf: Some(ix), entry: Some(ix), prompt: None });
        }
        let prompt = branch::prompt_text(&self.log, ix).map_err(api_error)?;
        Ok(Destination { leaf: self.log.parent(ix), entry: Some(ix), prompt: Some(prompt) })
    }

    /// Moves the leaf by a record of its own; where it is already, nothing is written.
    fn move_leaf(&mut self, to: Option<Ix>) -> Result<(), ApiError> {
        let from = self.log.leaf();
        if to == from {
            return Ok(());
        }
        self.check_writable()?;
        let (leaf_id, from_id) = (to.map(|ix| self.log.id(ix)), from.map(|ix| self.log.id(ix)));
        let record = Record::new(
            self.log.new_id(self.deps.clock.as_ref()),
            leaf_id.clone(),
            self.deps.now(),
            Body::Leaf(LeafRecord {}),
        );
        let written = self.write_records(vec![record])?;
        self.tell(written);
        self.publish(EventBody::LeafMoved { leaf_id, from_id });
        self.refresh_branch();
        Ok(())
    }
}
