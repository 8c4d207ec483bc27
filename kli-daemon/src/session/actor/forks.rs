//! New sessions out of this one: fork, clone, rewind. The source is not written to.

use std::sync::Arc;

use kli_protocol::api::{Image, Position};
use kli_protocol::{ApiError, ErrorKind};

use super::{Actor, Ix, Opening};
use crate::session::{api_error, branch};
use crate::store::{Log, NewSession, Role};

/// Where the new session's branch ends.
#[derive(Clone, Debug)]
pub enum ForkPoint {
    /// At or before an entry; no position: before a prompt, at anything else.
    Entry { id: String, position: Option<Position> },
    /// At the leaf.
    Leaf,
    /// Before a prompt of the branch; none named: the newest.
    Prompt { id: Option<String> },
}

/// What the new session is to be.
#[derive(Clone, Debug, Default)]
pub struct ForkOrder {
    pub new_id: Option<String>,
    /// As it is kept.
    pub name: Option<String>,
    /// Canonical; none: the source's.
    pub work_dir: Option<String>,
}

/// A new session's log, not yet owned by an actor.
pub struct Forked {
    pub log: Arc<Log>,
    /// For one that shares nothing: what it is opened with.
    pub opening: Option<Opening>,
    pub name: Option<String>,
    pub text: Option<String>,
    pub images: Option<Vec<Image>>,
}

impl Actor {
    pub fn fork(&mut self, point: &ForkPoint, order: ForkOrder) -> Result<Forked, ApiError> {
        let facts = self.log.facts();
        if facts.newer_version {
            return Err(ApiError::new(
                ErrorKind::SessionReadOnly,
                facts.read_only.unwrap_or_else(|| "Written by a newer version.".into()),
            ));
        }
        let (end, prompt) = self.fork_end(point)?;
        let at_entry = match point {
            ForkPoint::Entry { position, .. } => prompt.is_none() && *position != Some(Position::Before),
            ForkPoint::Leaf | ForkPoint::Prompt { .. } => false,
        };
        let new = NewSession {
            id: order.new_id.unwrap_or_else(|| crate::clock::session_id(self.deps.clock.as_ref())),
            work_dir: order.work_dir.unwrap_or(facts.work_dir),
            created_at_ms: self.deps.clock.now_ms(),
            persist: facts.persisted,
            parent_session: Some(self.id.to_string()),
            mode: Some(self.mode),
        };
        let (text, images) = match prompt {
            Some(prompt) => (Some(prompt.text), prompt.images),
            None => (None, None),
        };
        let shared = end.filter(|end| at_entry || self.has_conversation(*end));
        let Some(at) = shared else {
            // The mode travels with the opening records; a plain header has none.
            let log = self.deps.store.create(NewSession { mode: None, ..new }).map_err(api_error)?;
            let opening = Opening {
                model: Some(self.branch.model.clone()),
                options: self.branch.options.clone(),
                mode: (self.mode != self.settings().default_mode || facts.mode.is_some()).then_some(self.mode),
                name: order.name,
            };
            return Ok(Forked { log, opening: Some(opening), name: None, text, images });
        };
        let log = self.deps.store.fork(&self.log, at, new).map_err(api_error)?;
        Ok(Forked { log, opening: None, name: order.name, text, images })
    }

    fn fork_end(&self, point: &ForkPoint) -> Result<(Option<Ix>, Option<branch::PromptText>), ApiError> {
        match point {
            ForkPoint::Leaf => Ok((self.log.leaf(), None)),
            ForkPoint::Entry { id, position } => {
                let to = self.destination(Some(id), *position)?;
                Ok((to.leaf, to.prompt))
            }
            ForkPoint::Prompt { id } => {
                let ix = self.prompt_of_branch(id.as_deref())?;
                let prompt = branch::prompt_text(&self.log, ix).map_err(api_error)?;
                Ok((self.log.parent(ix), Some(prompt)))
            }
        }
    }

    fn prompt_of_branch(&self, id: Option<&str>) -> Result<Ix, ApiError> {
        let leaf = self.tip();
        let Some(id) = id else {
            return branch::last_prompt(&self.log, leaf).ok_or_else(|| {
                ApiError::new(ErrorKind::InvalidEntry, "There is no prompt on this branch to rewind to.")
            });
        };
        let ix = self.log.find(id).map_err(api_error)?;
        let prompt = self.log.node(ix).is_some_and(|n| n.role == Some(Role::User));
        let on_branch = leaf.is_some_and(|leaf| self.log.is_ancestor(ix, leaf));
        match prompt && on_branch {
            true => Ok(ix),
            false => Err(ApiError::new(
                ErrorKind::InvalidEntry,
                format!("{id} is no prompt of the current branch; getForkMessages lists those, fork takes any entry."),
            )),
        }
    }

    /// Whether anything was said up to here; without that there is nothing to share.
    fn has_conversation(&self, end: Ix) -> bool {
        self.log.up(Some(end)).any(|n| matches!(n.role, Some(Role::User | Role::Assistant)))
    }
}
