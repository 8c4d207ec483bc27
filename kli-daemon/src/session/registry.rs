//! All sessions of the daemon: making, finding, opening, deleting; [`lists`] tells what there is, [`unload`] lets go
//! of those that nobody needs.

mod lists;
mod unload;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kli_protocol::api::{
    CreateSessionParams, Event, EventBody, ImportSessionParams, ModelRef, SessionCounts, SessionInfo, Status,
};
use kli_protocol::{ApiError, ErrorKind};
use serde_json::Value;
use tokio::sync::{OnceCell, oneshot};

use super::actor::{self, ForkOrder, ForkPoint, Kept, Message, Opening};
use super::handle::Handle;
use super::{Deps, api_error, info};
use crate::mcp;
use crate::store::{Import, LastUsed, Log, NewSession, StoreError};

type Slot = Arc<OnceCell<Handle>>;

pub struct Registry {
    pub deps: Arc<Deps>,
    /// Sessions that are open, or being opened: a slot makes the second caller wait for the first. A mutex, since
    /// every connection looks sessions up and the map is held for a moment only.
    open: Mutex<HashMap<String, Slot>>,
    unloaded: unload::Unloaded,
    stopping: AtomicBool,
}

/// What a fork gave, for its caller.
pub struct ForkMade {
    pub session: SessionInfo,
    pub text: Option<String>,
    pub images: Option<Vec<kli_protocol::api::Image>>,
}

impl Registry {
    pub fn new(deps: Arc<Deps>) -> Arc<Registry> {
        let (all, clock) = (deps.all.clone(), deps.clock.clone());
        deps.store.when_scanned(move |facts| {
            if all.is_followed() {
                let (session_id, time) = (Some(facts.id.clone()), crate::clock::rfc3339(clock.now_ms()));
                let body = EventBody::SessionInfoChanged { session: info::session_info(facts, Status::Idle) };
                all.tell(&Event { seq: None, session_id, time, run_id: None, body });
            }
        });
        Arc::new(Registry {
            deps,
            open: Mutex::default(),
            unloaded: unload::Unloaded::default(),
            stopping: AtomicBool::new(false),
        })
    }

    /// Tells all who watch the daemon, of something that is no session's.
    pub fn warn(&self, kind: &str, message: String) {
        let body = EventBody::Warning { kind: kind.to_owned(), message };
        self.deps.all.tell(&Event { seq: None, session_id: None, time: self.deps.now(), run_id: None, body });
    }

    fn map(&self) -> MutexGuard<'_, HashMap<String, Slot>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn live(&self, id: &str) -> Option<Handle> {
        self.map().get(id).and_then(|slot| slot.get().cloned()).filter(|handle| !handle.mailbox.is_closed())
    }

    fn handles(&self) -> Vec<Handle> {
        self.map().values().filter_map(|slot| slot.get().cloned()).filter(|h| !h.mailbox.is_closed()).collect()
    }

    /// The session that a caller means, opened if need be: a whole id, a beginning or end of one, or a name.
    pub async fn find(&self, text: &str) -> Result<Handle, ApiError> {
        if let Some(handle) = self.live(text) {
            return Ok(handle.touched());
        }
        let (store, wanted) = (self.deps.store.clone(), text.to_owned());
        let id = blocking(move || store.resolve(&wanted)).await?.map_err(api_error)?;
        self.open_id(&id).await
    }

    /// By the whole id.
    pub async fn open_id(&self, id: &str) -> Result<Handle, ApiError> {
        let (store, wanted) = (self.deps.store.clone(), id.to_owned());
        self.slot(id, move || store.open(&wanted)).await
    }

    pub async fn open_path(&self, path: &Path) -> Result<Handle, ApiError> {
        let (store, wanted) = (self.deps.store.clone(), path.to_owned());
        let log = blocking(move || store.open_path(&wanted)).await?.map_err(api_error)?;
        let (facts, moves_on) = (log.facts(), log.is_legacy());
        let handle = self.slot(&facts.id, move || Ok(log)).await?;
        // What was read may be the successor of a file of an older version.
        let read = facts.path.as_deref().unwrap_or(path);
        match handle.log.facts().path {
            Some(open) if !moves_on && !is_same_file(&open, read) => Err(ApiError::new(
                ErrorKind::SessionExists,
                format!(
                    "{} has the same session id as {}, which is open; importSession gives it a new one.",
                    path.display(),
                    open.display()
                ),
            )),
            _ => Ok(handle),
        }
    }

    /// A person said whether a directory is trusted: its open sessions learn of it.
    pub async fn trust_changed(&self, dir: &Path) -> Result<(), ApiError> {
        for handle in self.handles() {
            if Path::new(&handle.log.facts().work_dir).starts_with(dir) {
                handle.ask(|actor| actor.trust_changed()).await?;
            }
        }
        Ok(())
    }

    async fn slot(
        &self,
        id: &str,
        open: impl FnOnce() -> crate::store::Result<Arc<Log>> + Send + 'static,
    ) -> Result<Handle, ApiError> {
        let slot = {
            let mut map = self.map();
            let slot = map.entry(id.to_owned()).or_default();
            if slot.get().is_some_and(|handle| handle.mailbox.is_closed()) {
                // Its actor is gone: open it anew.
                *slot = Slot::default();
            }
            slot.clone()
        };
        self.refuse_when_stopping()?;
        slot.get_or_try_init(|| async {
            let log = blocking(open).await?.map_err(api_error)?;
            let kept = self.unloaded.take(&log.facts().id).unwrap_or_else(Kept::fresh);
            Ok(self.spawn(log, Opening::default(), kept))
        })
        .await
        .cloned()
        .map(Handle::touched)
    }

    /// Gives a new log its actor, and tells everybody of the new session.
    async fn adopt(&self, log: Arc<Log>, opening: Opening, kept: Kept) -> Result<Handle, ApiError> {
        self.refuse_when_stopping()?;
        let id = log.facts().id;
        let handle = self.spawn(log, opening, kept);
        let slot = Slot::default();
        let _ = slot.set(handle.clone());
        self.map().insert(id, slot);
        Ok(handle)
    }

    async fn announce(&self, handle: &Handle) -> Result<SessionInfo, ApiError> {
        let store = self.deps.store.clone();
        handle
            .ask(move |actor| {
                store.set_last(&actor.log);
                let session = actor.info();
                actor.publish_public(EventBody::SessionCreated { session: session.clone() });
                session
            })
            .await
    }

    fn spawn(&self, log: Arc<Log>, opening: Opening, kept: Kept) -> Handle {
        actor::spawn(log, self.deps.clone(), opening, kept)
    }

    pub async fn create(&self, params: CreateSessionParams) -> Result<SessionInfo, ApiError> {
        let work_dir = canonical_dir(&params.work_dir)?;
        let kept = Kept::new(params.env.unwrap_or_default(), mcp_settings(params.mcp_servers.as_ref())?);
        let model = match (params.provider, params.model_id) {
            (Some(provider), Some(model_id)) => {
                self.known_model(&provider, &model_id)?;
                Some(ModelRef { provider, model_id })
            }
            (None, None) => None,
            _ => return Err(ApiError::invalid_params("give `provider` and `modelId` together")),
        };
        let options = params.options.unwrap_or_default();
        for (id, value) in &options {
            actor::check_option(id, value)?;
        }
        let name = params.name.as_deref().map(actor::clean_name).transpose()?.flatten();
        let has_dir = self.deps.store.session_dir().is_some();
        if params.persist == Some(true) && !has_dir {
            return Err(ApiError::invalid_params(
                "persist: no sessionDir is set, so sessions live in memory; set it in config.toml or by --session-dir",
            ));
        }
        let new = NewSession {
            id: params.session_id.unwrap_or_else(|| crate::clock::session_id(self.deps.clock.as_ref())),
            work_dir,
            created_at_ms: self.deps.clock.now_ms(),
            persist: params.persist.unwrap_or(has_dir),
            parent_session: None,
            mode: None,
        };
        let store = self.deps.store.clone();
        let log = blocking(move || store.create(new)).await?.map_err(api_error)?;
        let opening = Opening { model, options, mode: params.mode, name };
        let handle = self.adopt(log, opening, kept).await?;
        self.announce(&handle).await
    }

    /// A model that exists; whether it can be used is looked at when it is.
    fn known_model(&self, provider: &str, model_id: &str) -> Result<(), ApiError> {
        match self.deps.models().find(provider, model_id) {
            Err(error) if error.kind() == Some(ErrorKind::ModelNotFound) => Err(error),
            _ => Ok(()),
        }
    }

    /// The session last used in a directory, opened.
    pub async fn continue_session(&self, work_dir: &str, create: bool) -> Result<Option<SessionInfo>, ApiError> {
        let dir = canonical(work_dir)?;
        let (store, wanted) = (self.deps.store.clone(), dir.clone());
        let last = blocking(move || store.last(&wanted)).await?.map_err(api_error)?;
        match last {
            Some(LastUsed::Id(id)) => {
                let handle = self.opened(self.open_id(&id).await?).await?;
                self.used(&handle).await.map(Some)
            }
            Some(LastUsed::Path(path)) => {
                let handle = self.opened(self.open_path(&path).await?).await?;
                self.used(&handle).await.map(Some)
            }
            None if create => {
                self.create(CreateSessionParams { work_dir: dir, ..CreateSessionParams::default() }).await.map(Some)
            }
            None => Ok(None),
        }
    }

    /// Notes that a session was opened, for `continueSession`.
    pub async fn used(&self, handle: &Handle) -> Result<SessionInfo, ApiError> {
        let store = self.deps.store.clone();
        handle
            .ask(move |actor| {
                store.set_last(&actor.log);
                actor.info()
            })
            .await
    }

    /// Makes a new session out of one: `pending` is the fork, already in that session's mailbox.
    pub async fn fork(&self, pending: super::Pending<Result<actor::Forked, ApiError>>) -> Result<ForkMade, ApiError> {
        let forked = pending.wait().await??;
        let (fresh, name) = (forked.opening.is_some(), forked.name);
        let handle = self.adopt(forked.log, forked.opening.unwrap_or_default(), Kept::fresh()).await?;
        let written =
            handle.ask(move |actor| if fresh { actor.write_opening() } else { actor.write_name(name) }).await?;
        if let Err(error) = written {
            // Nobody was told of it yet.
            self.close(&handle).await;
            self.map().remove(handle.id.as_ref());
            self.deps.store.discard(&handle.id);
            return Err(error);
        }
        let session = self.announce(&handle).await?;
        Ok(ForkMade { session, text: forked.text, images: forked.images })
    }

    /// Checks the parameters that fork, clone and rewind share.
    pub fn fork_order(
        &self,
        new_id: Option<String>,
        name: Option<String>,
        work_dir: Option<String>,
    ) -> Result<ForkOrder, ApiError> {
        let work_dir = work_dir.as_deref().map(canonical_dir).transpose()?;
        let name = name.as_deref().map(actor::clean_name).transpose()?.flatten();
        Ok(ForkOrder { new_id, name, work_dir })
    }

    pub async fn fork_at(
        &self,
        handle: &Handle,
        point: ForkPoint,
        order: ForkOrder,
    ) -> Result<super::Pending<Result<actor::Forked, ApiError>>, ApiError> {
        handle.send(move |actor| actor.fork(&point, order)).await
    }

    /// Takes in a session of another program as a new one.
    pub async fn import(&self, params: ImportSessionParams) -> Result<SessionInfo, ApiError> {
        let path = absolute(&params.path)?;
        let has_dir = self.deps.store.session_dir().is_some();
        let import = Import {
            path,
            format: params.format.unwrap_or_default(),
            new: NewSession {
                id: params.session_id.unwrap_or_else(|| crate::clock::session_id(self.deps.clock.as_ref())),
                work_dir: params.work_dir.as_deref().map(canonical_dir).transpose()?.unwrap_or_default(),
                created_at_ms: self.deps.clock.now_ms(),
                persist: has_dir,
                parent_session: None,
                mode: None,
            },
            name: params.name.as_deref().map(actor::clean_name).transpose()?.flatten(),
        };
        let deps = self.deps.clone();
        let log = blocking(move || deps.store.import(import, deps.clock.as_ref())).await?.map_err(api_error)?;
        let handle = self.adopt(log, Opening::default(), Kept::fresh()).await?;
        self.announce(&handle).await
    }

    pub async fn delete(&self, id: &str) -> Result<(), ApiError> {
        let store = self.deps.store.clone();
        let wanted = id.to_owned();
        let meant = match blocking(move || store.resolve(&wanted)).await? {
            Ok(resolved) if resolved == id => None,
            Ok(resolved) => Some(resolved),
            Err(StoreError::Ambiguous { candidates, .. }) => Some(candidates.join(" or ")),
            Err(error) => return Err(api_error(error)),
        };
        if let Some(meant) = meant {
            return Err(ApiError::new(
                ErrorKind::SessionNotFound,
                format!("No session {id}; deleteSession takes whole ids only (did you mean {meant}?)."),
            ));
        }
        let handle = self.open_id(id).await?;
        handle.ask(|actor| actor.delete()).await??;
        self.map().remove(id);
        self.close(&handle).await;
        Ok(())
    }

    /// Ends what goes on in a session, then its actor.
    async fn close(&self, handle: &Handle) {
        let (done, closed) = oneshot::channel();
        if handle.mailbox.send(Message::Stop(done)).await.is_ok() {
            let _ = closed.await;
        }
    }

    /// Ids of sessions where something goes on.
    pub fn running(&self) -> Vec<String> {
        self.handles()
            .iter()
            .filter(|handle| *handle.status.borrow() != Status::Idle)
            .map(|handle| handle.id.to_string())
            .collect()
    }

    /// Ids of sessions that are not empty and would be lost with the daemon.
    pub fn memory_only(&self) -> Vec<String> {
        self.handles()
            .iter()
            .filter(|handle| !handle.log.is_empty() && !handle.log.facts().persisted)
            .map(|handle| handle.id.to_string())
            .collect()
    }

    /// Ends when nothing goes on in any session.
    pub async fn until_idle(&self) {
        loop {
            let busy = self.handles().into_iter().find(|handle| *handle.status.borrow() != Status::Idle);
            let Some(mut busy) = busy else { return };
            // An error: that session is gone, the next may be busy.
            let _ = busy.status.wait_for(|status| *status == Status::Idle).await;
        }
    }

    pub fn counts(&self) -> SessionCounts {
        SessionCounts {
            open: self.handles().len() as u64,
            running: self.running().len() as u64,
            memory_only: self.memory_only().len() as u64,
        }
    }

    /// Aborts what goes on everywhere and waits until all is written.
    pub async fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        let handles = self.handles();
        let mut closing: Vec<_> = vec![];
        for handle in &handles {
            let (done, closed) = oneshot::channel();
            if handle.mailbox.send(Message::Stop(done)).await.is_ok() {
                closing.push(closed);
            }
        }
        for closed in closing {
            let _ = closed.await;
        }
        for kept in self.unloaded.drain() {
            kept.shutdown().await;
        }
    }

    fn refuse_when_stopping(&self) -> Result<(), ApiError> {
        match self.stopping.load(Ordering::Acquire) {
            true => Err(ApiError::new(ErrorKind::ShuttingDown, "The daemon is shutting down; start it again.")),
            false => Ok(()),
        }
    }
}

/// One file may have several names: links to it lie in the session directory too.
fn is_same_file(a: &Path, b: &Path) -> bool {
    a == b || a.canonicalize().is_ok_and(|a| b.canonicalize().is_ok_and(|b| a == b))
}

/// Servers as parameters give them.
pub fn mcp_settings(given: Option<&Value>) -> Result<mcp::Settings, ApiError> {
    let settings = given.map(mcp::Settings::parse).transpose();
    Ok(settings.map_err(|says| ApiError::invalid_params(format!("mcpServers: {says}")))?.unwrap_or_default())
}

/// A path as parameters give it.
pub fn absolute(path: &str) -> Result<PathBuf, ApiError> {
    match Path::new(path).is_absolute() {
        true => Ok(PathBuf::from(path)),
        false => Err(ApiError::invalid_params(format!(
            "path: {path:?} is not absolute; the daemon's directory is not yours"
        ))),
    }
}

/// File work, away from the threads that serve connections.
pub async fn blocking<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> Result<R, ApiError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| ApiError::internal("A part of the daemon failed; its log says more."))
}

/// A work directory as it is kept: absolute, links resolved; one that is gone is compared as text.
pub fn canonical(path: &str) -> Result<String, ApiError> {
    if !Path::new(path).is_absolute() {
        return Err(ApiError::invalid_params(format!(
            "workDir: {path:?} is not absolute; the daemon's directory is not yours"
        )));
    }
    match std::fs::canonicalize(path) {
        Ok(real) => real.into_os_string().into_string().map_err(|_| {
            ApiError::invalid_params("workDir: its real path is not UTF-8, which a session file cannot hold")
        }),
        Err(_) => Ok(tidy(path)),
    }
}

fn tidy(path: &str) -> String {
    let mut parts: Vec<&str> = vec![];
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// As `canonical`, and it must be there.
pub fn canonical_dir(path: &str) -> Result<String, ApiError> {
    let dir = canonical(path)?;
    match Path::new(&dir).is_dir() {
        true => Ok(dir),
        false => Err(ApiError::new(
            ErrorKind::WorkDirNotFound,
            format!("There is no directory {path}; make it, or name another work directory."),
        )),
    }
}
