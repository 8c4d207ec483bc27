//! What stays in memory of a session that is unloaded: all that its file does not tell and somebody may still ask
//! for. The log's index, the context that was read, and the task itself go.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use kli_protocol::api::RunOutcome;

use super::Actor;
use super::approvals::Approvals;
use super::prompts::Keys;
use crate::compaction::Auto;
use crate::mcp;
use crate::session::handle::Door;
use crate::session::hub::Hub;
use crate::tool::jobs::Jobs;

/// Handed from a session's actor to the next one.
pub struct Kept {
    pub(super) env: Arc<BTreeMap<String, String>>,
    /// Its servers ended with it and start anew.
    pub(super) mcp: mcp::Settings,
    pub(super) door: Option<Arc<Door>>,
    /// None: not opened before by this daemon.
    pub(super) hub: Option<Arc<Hub>>,
    /// None: as the configuration says.
    pub(super) auto: Option<Auto>,
    pub(super) jobs: Arc<Jobs>,
    pub(super) finished: VecDeque<(String, RunOutcome)>,
    pub(super) approvals: Approvals,
    pub(super) keys: Keys,
    pub(super) date: Option<String>,
}

impl Kept {
    /// Of one for which nobody said more.
    pub fn fresh() -> Kept {
        Kept::new(BTreeMap::new(), mcp::Settings::default())
    }

    /// Of a session that is opened for the first time.
    pub fn new(env: BTreeMap<String, String>, mcp: mcp::Settings) -> Kept {
        Kept {
            env: Arc::new(env),
            mcp,
            door: None,
            hub: None,
            auto: None,
            jobs: Arc::default(),
            finished: VecDeque::new(),
            approvals: Approvals::default(),
            keys: Keys::default(),
            date: None,
        }
    }

    /// Bytes of its events, which are most of it.
    pub fn bytes(&self) -> usize {
        self.hub.as_ref().map_or(0, |hub| hub.bytes())
    }

    /// Lets go of the events: who wants them gets what lies on disk.
    pub fn forget_events(&self) {
        if let Some(hub) = &self.hub {
            hub.forget();
        }
    }

    /// Ends what its commands left running.
    pub async fn shutdown(self) {
        self.jobs.shutdown().await;
    }
}

impl Actor {
    /// Nothing goes on, nothing waits to be said, and the file alone can bring the session back.
    pub(super) fn can_be_unloaded(&self) -> bool {
        self.is_quiet() && self.queue.is_empty() && self.stopping.is_none() && self.log.can_be_reopened()
    }

    pub(super) async fn into_kept(mut self: Box<Self>) -> Kept {
        self.hub.shrink();
        self.mcp.shutdown().await;
        Kept {
            env: self.env,
            mcp: self.mcp.settings().clone(),
            door: Some(self.door),
            hub: Some(self.hub),
            auto: Some(self.auto),
            jobs: self.jobs,
            finished: self.finished,
            approvals: self.approvals,
            keys: self.keys,
            date: Some(self.date),
        }
    }
}
