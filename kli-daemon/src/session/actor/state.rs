//! What a session shows of itself.

use futures_util::future::FutureExt;
use kli_protocol::ApiError;
use kli_protocol::api::{
    EventBody, GetContextParams, GetContextResult, ModelInfo, ModelRef, RunSnapshot, SessionInfo, SessionState, Status,
    SubscribeParams, Warning,
};
use kli_protocol::record::Entry;
use serde_json::{Value, json};
use std::sync::Arc;

use super::{Actor, Message};
use crate::context::Window;
use crate::session::handle::Handle;
use crate::session::hub::{self, Snapshotter, Spec};
use crate::session::{branch, info};

/// Entries above this many bytes come in events and pages as previews.
pub const WHOLE_ENTRY: usize = 1 << 20;

/// An entry, or its outline when it is too large for an event.
pub fn shortened(entry: Entry) -> Entry {
    if entry.json().len() <= WHOLE_ENTRY {
        return entry;
    }
    let outline = entry.record().map(|record| {
        json!({
            "type": record.kind,
            "id": record.id,
            "parentId": record.parent_id,
            "timestamp": record.timestamp,
            "preview": crate::context::preview::preview(&record),
            "bytes": entry.json().len(),
        })
    });
    match outline.and_then(|o: Value| serde_json::value::to_raw_value(&o)) {
        Ok(raw) => Entry(raw),
        Err(_) => entry,
    }
}

impl Actor {
    pub fn info(&self) -> SessionInfo {
        let mut info = info::session_info(self.log.facts_now(), *self.status.borrow());
        info.warnings.extend(self.project_warning());
        info.warnings.extend(self.mcp.warnings());
        info
    }

    pub fn state(&self) -> SessionState {
        let info = self.info();
        let mut warnings = info.warnings.clone();
        warnings.extend(branch::window_warnings(&self.log, self.tip()));
        SessionState {
            info: SessionInfo { warnings, ..info },
            leaf_id: self.tip_id(),
            provider: self.branch.model.provider.clone(),
            model_id: self.branch.model.model_id.clone(),
            options: self.branch.options.clone(),
            mode: self.mode,
            trusted: self.deps.trust.is_trusted(std::path::Path::new(&self.work_dir())),
            untrusted: self.deps.untrusted(std::path::Path::new(&self.work_dir())),
            interrupted: self.run.is_none()
                && self.work.is_none()
                && self.with_end(Window::is_unfinished).unwrap_or_default()
                && branch::was_cut_off(&self.log),
            queue: self.shown_queue(),
            pending_approvals: self.approvals.pending(),
            usage: self.log.facts().usage,
            context: self.context_use(),
        }
    }

    pub fn context_used(&self) -> kli_protocol::api::ContextUse {
        self.context_use()
    }

    /// Exactly what the next request would send, from any leaf.
    pub fn context(&mut self, params: &GetContextParams) -> Result<GetContextResult, ApiError> {
        // Where that fails the next prompt fails, and says so.
        let _ = self.catch_up();
        let limit = crate::session::views::page_limit(params.limit, crate::session::views::PAGE)?;
        let start = crate::session::views::page_offset(params.cursor.as_deref())?;
        let end = match &params.leaf_id {
            None => self.tip(),
            given => crate::session::views::branch_end(&self.log, given)?,
        };
        let settings = match end == self.tip() {
            true => self.branch.clone(),
            false => branch::settings(&self.log, end, self.branch.model.clone(), &self.opening.options),
        };
        // Also for a model that cannot be asked now: looking needs no key.
        let model = self.model_info(&settings.model);
        let setting = self.setting();
        let assembled = match end == self.tip() {
            true => self.with_window(|window| branch::messages(window, &model)),
            false => branch::read(&self.log, end).map(|window| branch::messages(&window, &model)),
        }
        .map_err(crate::session::api_error)?;
        let tokens = assembled.tokens(setting.overhead);
        let total = assembled.messages.len();
        let mut messages = vec![];
        let mut bytes = 0;
        for message in assembled.messages.iter().skip(start).take(limit) {
            bytes += serde_json::to_string(message.as_ref()).map(|text| text.len()).unwrap_or_default();
            if !messages.is_empty() && bytes > crate::session::views::PAGE_BYTES {
                break;
            }
            messages.push(message.as_ref().clone());
        }
        let shown = start + messages.len();
        Ok(GetContextResult {
            system_prompt: setting.system_prompt.to_string(),
            tools: setting.descriptions.to_vec(),
            messages,
            provider: settings.model.provider,
            model_id: settings.model.model_id,
            options: settings.options,
            tokens,
            next_cursor: (shown < total).then(|| shown.to_string()),
        })
    }

    pub(super) fn context_use(&self) -> kli_protocol::api::ContextUse {
        let model = self.model_info(&self.branch.model);
        let rough = self.with_cache(|cache| cache.rough_tokens(&self.log, self.tip(), &model));
        if let Some(tokens) = rough {
            return branch::context_use(tokens, model.context_window);
        }
        let assembled = self.with_window(|window| branch::messages(window, &model)).unwrap_or_default();
        // What a provider reported has system prompt and tools in it.
        let overhead = if assembled.anchor.is_some() { 0 } else { self.setting().overhead };
        branch::context_use(assembled.tokens(overhead), model.context_window)
    }

    /// What is known of a model, whether or not it can be asked.
    pub(super) fn model_info(&self, model: &ModelRef) -> Arc<ModelInfo> {
        let models = self.deps.models();
        if let Ok((info, _)) = models.find(&model.provider, &model.model_id) {
            return info;
        }
        let listed = models.list().into_iter().find(|m| m.provider == model.provider && m.model_id == model.model_id);
        Arc::new(listed.unwrap_or_else(|| ModelInfo {
            provider: model.provider.clone(),
            model_id: model.model_id.clone(),
            ..ModelInfo::default()
        }))
    }

    /// What is wrong with the project's own configuration.
    fn project_warning(&self) -> Option<Warning> {
        let work_dir = self.work_dir();
        let (_, fault) = self.deps.settings_in(std::path::Path::new(&work_dir));
        fault.or_else(|| {
            let error = self.log.is_empty().then(|| self.project_model().err()).flatten()?;
            let message = format!("The project's defaultModel cannot be used. {}", error.message);
            Some(Warning { kind: "projectConfig".into(), message, path: None, offset: None })
        })
    }

    /// The part of the branch that counts for its context.
    pub(super) fn with_window<R>(&self, look: impl FnOnce(&Window) -> R) -> crate::store::Result<R> {
        self.with_cache(|cache| cache.window(&self.log, self.tip()).map(look))
    }

    /// At least the end of the branch, from the last reply on whose usage was reported.
    pub(super) fn with_end<R>(&self, look: impl FnOnce(&Window) -> R) -> crate::store::Result<R> {
        self.with_cache(|cache| cache.look_at_end(&self.log, self.tip(), look))
    }

    pub(super) fn with_cache<R>(&self, look: impl FnOnce(&mut branch::Cache) -> R) -> R {
        look(&mut self.cache.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// A `snapshot` event at the last number.
    fn snapshot(&self) -> (u64, Arc<str>) {
        let seq = self.hub.last_seq();
        let run = self.run.as_ref().map(|run| RunSnapshot {
            run_id: run.id.clone(),
            message_id: run.partial.message_id.clone(),
            content: run.partial.blocks(),
            tools: run.tools.clone(),
        });
        let body = EventBody::Snapshot { session: Box::new(self.state()), run };
        (seq, hub::unnumbered(seq, &self.id, self.deps.now(), body))
    }

    /// Says what goes on, to lists and to those who follow.
    pub(super) fn refresh_status(&mut self) {
        let status = match &self.run {
            None => self.work.as_ref().map_or_else(|| self.idle_status(), |work| work.status),
            Some(_) if !self.approvals.is_empty() => Status::WaitingForApproval,
            Some(run) if run.retrying => Status::Retrying,
            Some(run) if run.compacting => Status::Compacting,
            Some(_) => Status::Running,
        };
        if *self.status.borrow() != status {
            self.status.send_replace(status);
            self.tell_info();
        }
    }

    /// A person's command keeps the daemon busy, though not the session.
    fn idle_status(&self) -> Status {
        match self.shells.is_empty() {
            true => Status::Idle,
            false => Status::Running,
        }
    }

    pub(super) fn title_changed(&mut self) -> bool {
        let title = crate::store::title(None, self.log.facts().first_prompt.as_deref());
        match self.title.as_deref() == Some(title.as_str()) {
            true => false,
            false => {
                self.title = Some(title);
                true
            }
        }
    }
}

/// What the registry asks of a new or a doomed session.
impl Actor {
    pub fn publish_public(&mut self, body: EventBody) {
        self.publish(body);
    }

    /// What those who follow it see may be another than before.
    pub fn tell_reopened(&mut self) {
        self.tell_info();
    }

    /// Deletes the session, unless something goes on; nothing can begin meanwhile.
    pub fn delete(&mut self) -> Result<(), ApiError> {
        if !self.is_quiet() {
            return Err(self.busy("abort what goes on, then delete it"));
        }
        tokio::task::block_in_place(|| self.deps.store.delete(&self.id)).map_err(crate::session::api_error)?;
        self.publish(EventBody::SessionDeleted {});
        Ok(())
    }
}

impl Handle {
    /// Events from a snapshot on, or after a number.
    pub fn feed(&self, params: SubscribeParams) -> futures_util::stream::BoxStream<'static, Arc<str>> {
        let door = self.door.clone();
        let snapshot: Snapshotter = Arc::new(move || {
            let mailbox = door.mailbox();
            async move {
                let (reply, answer) = tokio::sync::oneshot::channel();
                let call = Box::new(move |actor: &mut Actor| {
                    let _ = reply.send(actor.snapshot());
                });
                mailbox?.send(Message::Call(call)).await.ok()?;
                answer.await.ok()
            }
            .boxed()
        });
        self.hub.feed(Spec { after: params.after, types: params.types }, snapshot)
    }
}
