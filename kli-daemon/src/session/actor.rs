//! The one owner of a session: what changes it, in the order in which it is asked.
//!
//! Serialise → append → apply → publish → answer: an entry is written before anybody hears of it. The actor
//! never waits for a model, a tool or a person; those are tasks of their own, which come back as calls.

mod approvals;
mod compacting;
mod edits;
mod forks;
mod host;
mod instructions;
mod kept;
mod navigate;
mod partial;
mod prompts;
mod runs;
mod servers;
mod shell;
mod state;
mod write;

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use kli_protocol::ApiError;
use kli_protocol::api::{EventBody, Mode, ModelRef, Status};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};

pub use compacting::Navigated;
pub use edits::{Extension, check_option, clean_name, mark};
pub use forks::{ForkOrder, ForkPoint, Forked};
pub use kept::Kept;
pub use prompts::{PromptAnswer, PromptOrder, Started};
pub use shell::ShellOrder;
pub use state::{WHOLE_ENTRY, shortened};

use super::branch::{BranchSettings, Cache};
use super::handle::{Door, Handle, MAILBOX};
use super::hub::Hub;
use super::{Deps, Settings};
use crate::compaction::Auto;
use crate::mcp;
use crate::store::events::EventLog;
use crate::store::{Ix, Log};
use crate::tool::jobs::Jobs;

/// Everything that can happen to a session.
pub(super) enum Message {
    Call(Box<dyn FnOnce(&mut Actor) + Send>),
    /// Ends what goes on, then the actor.
    Stop(oneshot::Sender<()>),
    /// Ends the actor, unless it is needed: then the sender is dropped.
    Unload(oneshot::Sender<Box<Kept>>),
    /// As `Unload`, where the file need not bring it back as it was: it is read anew.
    Reopen(oneshot::Sender<Box<Kept>>),
}

/// What a session that has no record yet will be opened with.
#[derive(Clone, Debug, Default)]
pub struct Opening {
    pub model: Option<ModelRef>,
    pub options: BTreeMap<String, Value>,
    pub mode: Option<Mode>,
    pub name: Option<String>,
}

pub struct Actor {
    pub(super) id: Arc<str>,
    pub(super) log: Arc<Log>,
    pub(super) hub: Arc<Hub>,
    pub(super) deps: Arc<Deps>,
    /// Milestone events on disk, once the session has a file.
    events: Option<EventLog>,
    me: mpsc::WeakSender<Message>,
    /// For those who follow it, also when it is opened anew.
    door: Arc<Door>,
    status: watch::Sender<Status>,
    opening: Opening,
    /// Model and options of the branch that the next entry goes on.
    branch: BranchSettings,
    mode: Mode,
    /// For this session's tools; never written.
    env: Arc<BTreeMap<String, String>>,
    mcp: mcp::Servers,
    jobs: Arc<Jobs>,
    queue: prompts::Waiting,
    run: Option<runs::Run>,
    /// A compaction or a summary beside no run.
    work: Option<compacting::Work>,
    auto: Auto,
    /// Outcomes of runs that are over, newest last, for those who ask late.
    finished: VecDeque<(String, kli_protocol::api::RunOutcome)>,
    approvals: approvals::Approvals,
    keys: prompts::Keys,
    /// In the order in which they were begun.
    shells: Vec<shell::Shell>,
    /// Of those, the ones that an abort ended.
    aborted_shells: Vec<String>,
    /// Messages of the branch, read before: a turn reads only what is new.
    /// Shared with the run, which assembles its requests beside the actor; a mutex, since both look at it.
    cache: Arc<Mutex<Cache>>,
    /// System prompt and tools as last sent.
    instructions: Option<Arc<instructions::Instructions>>,
    stopping: Option<oneshot::Sender<()>>,
    /// Of the system prompt: the day on which the session was opened, the same until it is closed, so that
    /// midnight does not cost a provider's cache.
    date: String,
    /// The title as last told, to tell of a change.
    title: Option<String>,
}

/// Starts the actor of a session.
pub(super) fn spawn(log: Arc<Log>, deps: Arc<Deps>, opening: Opening, kept: Kept) -> Handle {
    let events = deps.event_path(&log).map(EventLog::open);
    let hub = kept.hub.unwrap_or_else(|| {
        // Events of an earlier daemon had numbers up to this; where their file is lost, time tells of a higher one.
        let last = match events.as_ref().map(EventLog::reserved) {
            None => 0,
            Some(Some(reserved)) => reserved,
            Some(None) => deps.clock.now_ms(),
        };
        Arc::new(Hub::new(last, deps.settings().max_subscriber_bytes))
    });
    let (mailbox, inbox) = mpsc::channel(MAILBOX);
    let door = kept.door.unwrap_or_default();
    door.lead_to(&mailbox);
    let (status, watched) = watch::channel(Status::Idle);
    log.set_opening_name(opening.name.clone());
    let facts = log.facts();
    let id: Arc<str> = facts.id.as_str().into();
    let today = deps.now().chars().take(10).collect();
    let mut actor = Actor {
        id: id.clone(),
        log: log.clone(),
        hub: hub.clone(),
        deps,
        events,
        me: mailbox.downgrade(),
        door: door.clone(),
        status,
        opening,
        branch: BranchSettings::default(),
        mode: Mode::default(),
        env: kept.env,
        mcp: mcp::Servers::default(),
        jobs: kept.jobs,
        queue: prompts::Waiting::default(),
        run: None,
        work: None,
        auto: kept.auto.unwrap_or_default(),
        finished: kept.finished,
        approvals: kept.approvals,
        keys: kept.keys,
        shells: vec![],
        aborted_shells: vec![],
        cache: Arc::default(),
        instructions: None,
        stopping: None,
        date: kept.date.unwrap_or(today),
        title: facts.first_prompt.as_deref().map(|prompt| crate::store::title(None, Some(prompt))),
    };
    actor.mode = actor.mode_said();
    actor.refresh_branch();
    actor.start_servers(kept.mcp);
    // Boxed, since a future that takes it by value has room for it twice.
    tokio::spawn(Box::new(actor).live(inbox));
    Handle { id, log, hub, status: watched, mailbox, door, used: Arc::new(AtomicBool::new(true)) }
}

impl Actor {
    async fn live(mut self: Box<Self>, mut inbox: mpsc::Receiver<Message>) {
        while let Some(message) = inbox.recv().await {
            match message {
                Message::Call(call) => call(&mut self),
                Message::Stop(done) => {
                    self.abort_all();
                    self.stopping = Some(done);
                }
                Message::Unload(reply) if self.can_be_unloaded() => {
                    self.sync().await;
                    let _ = reply.send(Box::new(self.into_kept().await));
                    return;
                }
                Message::Reopen(reply) if self.is_quiet() && self.queue.is_empty() && self.stopping.is_none() => {
                    let _ = reply.send(Box::new(self.into_kept().await));
                    return;
                }
                Message::Unload(_) | Message::Reopen(_) => {}
            }
            if self.stopping.is_some() && self.is_quiet() {
                break;
            }
        }
        self.mcp.shutdown().await;
        self.jobs.shutdown().await;
        self.sync().await;
        if let Some(done) = self.stopping.take() {
            let _ = done.send(());
        }
    }

    async fn sync(&self) {
        if let Err(error) = self.log.sync().await {
            tracing::error!(session = %self.id, %error, "the last records may not be on disk");
        }
    }

    fn is_quiet(&self) -> bool {
        self.run.is_none() && self.work.is_none() && self.shells.is_empty()
    }

    /// A way for tasks of this session to come back. None while the session is being closed.
    fn mailbox(&self) -> Option<mpsc::Sender<Message>> {
        self.me.upgrade()
    }

    /// Where the next entry attaches: a run stays on its own branch, whatever other programs append.
    fn tip(&self) -> Option<Ix> {
        match &self.run {
            Some(run) => run.tip,
            None => self.log.leaf(),
        }
    }

    /// The tip as an id, for the wire.
    fn tip_id(&self) -> Option<String> {
        self.tip().map(|ix| self.log.id(ix))
    }

    pub fn work_dir(&self) -> String {
        self.log.facts().work_dir
    }

    /// The configuration as it holds in this session's directory, now.
    fn settings(&self) -> Arc<Settings> {
        self.deps.settings_in(Path::new(&self.work_dir())).0
    }

    /// By the records, or the caller who made the session, or the configuration.
    fn mode_said(&self) -> Mode {
        self.log.facts().mode.or(self.opening.mode).unwrap_or_else(|| self.settings().default_mode)
    }

    /// What the project's configuration says begins to count, or ceases to.
    pub fn trust_changed(&mut self) {
        let mode = self.mode_said();
        if mode != self.mode && self.log.facts().mode.is_none() {
            self.mode = mode;
            self.publish(EventBody::ModeChanged { mode });
        }
        self.refresh_branch();
        self.tell_info();
    }

    fn refresh_branch(&mut self) {
        let default = self.opening.model.clone().or_else(|| self.project_model().ok().flatten());
        let default = default.unwrap_or_else(|| self.deps.models().default_model());
        self.branch = super::branch::settings(&self.log, self.tip(), default, &self.opening.options);
    }

    /// The model that the project wants for new sessions; an error says why it cannot be had.
    fn project_model(&self) -> Result<Option<ModelRef>, ApiError> {
        let Some(wanted) = self.settings().default_model.clone() else { return Ok(None) };
        self.deps.models().find(&wanted.provider, &wanted.model_id)?;
        Ok(Some(wanted))
    }
}
