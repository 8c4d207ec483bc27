//! The actor's end of a run: what a run asks, as calls to the actor.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::{BoxFuture, FutureExt as _};
use kli_protocol::ApiError;
use kli_protocol::api::{CompactResult, CompactionReason, EventBody, RunErrorKind};
use kli_protocol::record::{AssistantMessage, ToolResultMessage};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::approvals::Permit;
use super::compacting::CompactionJob;
use super::{Actor, Message};
use crate::agent::{CallInfo, HostFailure, Outcome, Permission, RunEvent, RunHost, Turn};
use crate::clock::Clock;
use crate::compaction::{self, Compacted, CompactionError};
use crate::context::estimate::Budget;
use crate::session::branch::{self, Cache};
use crate::session::handle::MAILBOX;
use crate::store::{Durability, Ix, Log};
use crate::tool::jobs::Jobs;
use crate::tool::sandbox::Sandbox;
use crate::tool::{Outline, Progress, Tool, ToolContext};

/// Output of one call that waits to be told, in bytes; more is passed over (the result has it all).
const PENDING_OUTPUT: usize = 256 << 10;

pub(super) struct ActorHost {
    mailbox: mpsc::Sender<Message>,
    run_id: String,
    session_id: String,
    log: Arc<Log>,
    clock: Arc<dyn Clock>,
    durability: Durability,
    cancel: CancellationToken,
    jobs: Arc<Jobs>,
    /// Of the turn that goes on. A mutex, since calls of one turn run side by side and read it.
    scene: Mutex<Scene>,
    cache: Arc<Mutex<Cache>>,
    /// The last turn on its way to the disk. A mutex for the sake of `&self`; only the run looks at it.
    syncing: Mutex<Option<BoxFuture<'static, crate::store::Result<()>>>>,
    /// Until the first turn: servers that may just be starting. A mutex for the sake of `&self`.
    servers: Mutex<Option<BoxFuture<'static, ()>>>,
}

/// Where tools work.
#[derive(Clone, Default)]
struct Scene {
    work_dir: PathBuf,
    env: Arc<BTreeMap<String, String>>,
    images: bool,
    sandbox: Sandbox,
}

/// What the actor says of the next turn; the messages are read by the run itself.
pub(super) struct TurnPlan {
    pub tip: Option<Ix>,
    pub shape: branch::Shape,
    pub message_id: String,
    pub env: Arc<BTreeMap<String, String>>,
    pub sandbox: Sandbox,
}

impl ActorHost {
    pub fn new(actor: &mut Actor, run_id: String, cancel: CancellationToken) -> ActorHost {
        // A run is started by a call that came through the mailbox, so somebody holds it; should the last holder
        // be gone, the run's calls fail and it ends.
        let mailbox = actor.mailbox().unwrap_or_else(|| mpsc::channel(MAILBOX).0);
        ActorHost {
            mailbox,
            run_id,
            session_id: actor.id.to_string(),
            log: actor.log.clone(),
            clock: actor.deps.clock.clone(),
            durability: actor.deps.settings().durability,
            cancel,
            jobs: actor.jobs.clone(),
            scene: Mutex::default(),
            cache: actor.cache.clone(),
            syncing: Mutex::default(),
            servers: Mutex::new((!actor.mcp.settings().is_empty()).then(|| actor.mcp.settled().boxed())),
        }
    }

    /// A call to the actor that nobody waits for.
    async fn tell(&self, call: impl FnOnce(&mut Actor) + Send + 'static) {
        // An error means the session is gone, which the next question will find.
        let _ = self.mailbox.send(Message::Call(Box::new(call))).await;
    }

    async fn ask<R: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Actor) -> R + Send + 'static,
    ) -> Result<R, HostFailure> {
        let (reply, answer) = tokio::sync::oneshot::channel();
        self.tell(move |actor| {
            let _ = reply.send(call(actor));
        })
        .await;
        answer.await.map_err(|_| HostFailure::new(RunErrorKind::Interrupted, "The session was closed."))
    }

    pub async fn ended(self, outcome: Outcome) {
        self.tell(move |actor| actor.run_ended(outcome)).await;
    }

    fn scene(&self) -> Scene {
        self.scene.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The turn that a plan makes; its request is shortened first when it would not fit.
    async fn turn_that_fits(&self, plan: TurnPlan) -> Result<Turn, HostFailure> {
        let (turn, tokens) = self.turn_of(plan).await?;
        let window = turn.request.model.context_window;
        if !self.ask(move |actor| actor.wants_compaction(tokens, window)).await? {
            return Ok(turn);
        }
        match self.compact(CompactionReason::Threshold).await? {
            true => {
                let plan = self.ask(|actor| actor.plan_turn()).await??;
                Ok(self.turn_of(plan).await?.0)
            }
            false => Ok(turn),
        }
    }

    /// True: the conversation is shorter now.
    async fn compact(&self, reason: CompactionReason) -> Result<bool, HostFailure> {
        let job = self.ask(move |actor| actor.begin_run_compaction(reason)).await?.map_err(|e| store_failure(&e))?;
        let Some(CompactionJob { stretch, by }) = job else { return Ok(false) };
        let made = compaction::compact(&stretch, None, &by, &self.cancel).await;
        self.ask(move |actor| actor.end_run_compaction(made, by.budget)).await
    }

    async fn turn_of(&self, plan: TurnPlan) -> Result<(Turn, u64), HostFailure> {
        let look = || {
            let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
            cache.window(&self.log, plan.tip).map(|window| branch::messages(window, &plan.shape.model))
        };
        let known = self.cache.lock().unwrap_or_else(PoisonError::into_inner).is_at(plan.tip);
        // What the cache has not is read; after a restart that may be megabytes.
        let read = if known { look() } else { tokio::task::block_in_place(look) };
        let messages = read.map_err(|e| store_failure(&crate::session::api_error(e)))?;
        let work_dir = plan.shape.setting.work_dir.clone();
        *self.scene.lock().unwrap_or_else(PoisonError::into_inner) = Scene {
            work_dir: work_dir.clone(),
            env: plan.env,
            sandbox: plan.sandbox,
            images: plan.shape.model.input.iter().any(|i| i == "image"),
        };
        let provider = plan.shape.provider.clone();
        let tools = plan.shape.setting.tools.clone();
        let tokens = plan.shape.tokens(&messages);
        let turn = Turn {
            request: plan.shape.request(messages, self.session_id.clone()),
            provider,
            message_id: plan.message_id,
            tools,
            work_dir,
        };
        Ok((turn, tokens))
    }
}

fn store_failure(error: &ApiError) -> HostFailure {
    HostFailure::new(RunErrorKind::StoreFailed, error.message.clone())
}

impl RunHost for ActorHost {
    async fn begin_turn(&self) -> Result<Turn, HostFailure> {
        let starting = self.servers.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(settled) = starting {
            self.cancel.run_until_cancelled(settled).await;
        }
        let plan = self.ask(|actor| actor.plan_turn()).await??;
        self.turn_that_fits(plan).await
    }

    async fn emit(&self, event: RunEvent) {
        self.tell(move |actor| actor.run_event(event)).await;
    }

    async fn store_reply(&self, message_id: String, message: AssistantMessage) -> Result<(), HostFailure> {
        self.ask(move |actor| actor.store_reply(message_id, message)).await?.map_err(|e| store_failure(&e))
    }

    async fn store_result(&self, result: ToolResultMessage) -> Result<(), HostFailure> {
        self.ask(move |actor| actor.store_result(result)).await?.map_err(|e| store_failure(&e))
    }

    async fn permit(&self, tool: Arc<dyn Tool>, call: CallInfo, outline: Outline) -> Permission {
        let gone = || Permission::Refused("Not run: the session was closed.".into());
        match self.ask(move |actor| actor.permit(tool, call, &outline)).await {
            Ok(Permit::Now(permission)) => permission,
            Ok(Permit::Later(answer)) => answer.await.unwrap_or_else(|_| gone()),
            Err(_) => gone(),
        }
    }

    fn tool_context(&self, tool_call_id: &str) -> ToolContext {
        let scene = self.scene();
        ToolContext {
            session_id: self.session_id.clone(),
            tool_call_id: tool_call_id.to_owned(),
            work_dir: scene.work_dir,
            env: scene.env,
            cancel: self.cancel.child_token(),
            progress: progress(self.mailbox.clone(), tool_call_id.to_owned(), Output::OfRun),
            images: scene.images,
            jobs: self.jobs.clone(),
            sandbox: scene.sandbox,
        }
    }

    async fn end_turn(&self) -> Result<(), HostFailure> {
        self.on_disk().await?;
        if self.durability != Durability::Os {
            let syncing = self.log.begin_sync();
            *self.syncing.lock().unwrap_or_else(PoisonError::into_inner) = Some(syncing);
        }
        Ok(())
    }

    async fn on_disk(&self) -> Result<(), HostFailure> {
        let syncing = self.syncing.lock().unwrap_or_else(PoisonError::into_inner).take();
        match syncing {
            Some(syncing) => syncing.await.map_err(|e| store_failure(&crate::session::api_error(e))),
            None => Ok(()),
        }
    }

    async fn more_to_say(&self) -> Result<bool, HostFailure> {
        self.ask(|actor| {
            let steered = actor.take_steered()?;
            let more = steered || actor.take_follow_up()?;
            if !more {
                actor.close_run();
            }
            Ok::<bool, ApiError>(more)
        })
        .await?
        .map_err(|e| store_failure(&e))
    }

    async fn anything_queued(&self) -> Result<bool, HostFailure> {
        self.ask(|actor| {
            actor.close_run();
            actor.anything_queued()
        })
        .await
    }

    async fn make_room(&self) -> Result<Option<Turn>, HostFailure> {
        if !self.compact(CompactionReason::Overflow).await? {
            return Ok(None);
        }
        let plan = self.ask(|actor| actor.plan_turn()).await??;
        Ok(Some(self.turn_of(plan).await?.0))
    }

    async fn retry_message_id(&self) -> String {
        self.log.new_id(self.clock.as_ref())
    }

    fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    fn jitter(&self) -> f64 {
        (self.clock.random() & 0xffff) as f64 / 65536.0
    }
}

impl std::fmt::Debug for ActorHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ActorHost").field("run", &self.run_id).finish_non_exhaustive()
    }
}

impl Actor {
    /// The next turn: takes in what was steered, and says from where and with what the request is made.
    fn plan_turn(&mut self) -> Result<TurnPlan, HostFailure> {
        self.write_ended_shells();
        self.take_steered().map_err(|e| store_failure(&e))?;
        self.instruct();
        let run = self.run.as_ref();
        let model = run.and_then(|r| r.model.clone()).unwrap_or_else(|| self.branch.model.clone());
        let mut options = self.branch.options.clone();
        options.extend(run.map(|r| r.options.clone()).unwrap_or_default());
        let shape = self.shape(&model, options).map_err(|e| {
            let kind = match e.kind() {
                Some(kli_protocol::ErrorKind::NoApiKey) => RunErrorKind::NoApiKey,
                _ => RunErrorKind::BadRequest,
            };
            HostFailure::new(kind, e.message)
        })?;
        Ok(TurnPlan {
            tip: self.tip(),
            shape,
            message_id: self.log.new_id(self.deps.clock.as_ref()),
            env: self.env.clone(),
            sandbox: self.deps.settings().sandbox,
        })
    }

    fn wants_compaction(&mut self, tokens: u64, window: u64) -> bool {
        let budget = self.budget(window);
        self.settings().compaction.enabled && self.auto.wants(tokens, &budget)
    }

    /// None: there is nothing to compact.
    fn begin_run_compaction(&mut self, reason: CompactionReason) -> Result<Option<CompactionJob>, ApiError> {
        let model = self.run.as_ref().and_then(|run| run.model.clone()).unwrap_or_else(|| self.branch.model.clone());
        let job = match self.compaction_job(&model)? {
            Ok(job) => job,
            Err(by) => {
                self.pause_when_full(None, by.budget);
                return Ok(None);
            }
        };
        if let Some(run) = &mut self.run {
            run.compacting = true;
        }
        self.refresh_status();
        self.publish(EventBody::CompactionStart { reason });
        Ok(Some(job))
    }

    /// True: the conversation is shorter now. A failure leaves it as it was, and is said once.
    fn end_run_compaction(&mut self, made: Result<Compacted, CompactionError>, budget: Budget) -> bool {
        if let Some(run) = &mut self.run {
            run.compacting = false;
        }
        self.refresh_status();
        let aborted = matches!(made, Err(CompactionError::Aborted));
        let stored = self.store_compaction(made);
        if !aborted {
            self.pause_when_full(Some(&stored), budget);
        }
        stored.is_ok()
    }

    /// Trying again before each request would gain nothing: says so, once. None: there was nothing to compact.
    fn pause_when_full(&mut self, ended: Option<&Result<CompactResult, ApiError>>, budget: Budget) {
        let tokens = match ended {
            Some(Ok(result)) => result.tokens_after,
            Some(Err(_)) | None => self.context_use().tokens,
        };
        if !self.auto.ended(tokens, &budget) {
            return;
        }
        let why = match ended {
            Some(Ok(_)) => "The conversation still fills most of the model's window after a compaction.",
            Some(Err(error)) => error.message.as_str(),
            None => {
                "The last messages alone fill most of the model's window, and nothing before them is left to summarize."
            }
        };
        let message =
            format!("{why} Automatic compaction pauses; compact with instructions, choose a larger model, or go back.");
        self.publish(EventBody::Warning { kind: "compactionPaused".into(), message });
    }
}

/// Whose output a callback takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Output {
    OfRun,
    OfShell,
}

/// Takes a tool's output without ever blocking it: text is put aside and told in pieces, one call to the actor
/// at a time.
pub(super) fn progress(mailbox: mpsc::Sender<Message>, tool_call_id: String, whose: Output) -> Progress {
    // A mutex, since output comes from the tool's own threads while the actor takes it.
    let pending = Arc::new(Mutex::new(String::new()));
    let asked = Arc::new(AtomicBool::new(false));
    Arc::new(move |text: &str| {
        {
            let mut pending = pending.lock().unwrap_or_else(PoisonError::into_inner);
            if pending.len() + text.len() > PENDING_OUTPUT {
                return;
            }
            pending.push_str(text);
        }
        if asked.swap(true, Ordering::AcqRel) {
            return;
        }
        let (pending, taken, tool_call_id) = (pending.clone(), asked.clone(), tool_call_id.clone());
        let call = Box::new(move |actor: &mut Actor| {
            taken.store(false, Ordering::Release);
            let delta = std::mem::take(&mut *pending.lock().unwrap_or_else(PoisonError::into_inner));
            match whose {
                Output::OfRun => actor.run_event(RunEvent::ToolUpdate { tool_call_id, delta }),
                Output::OfShell => actor.shell_update(tool_call_id, delta),
            }
        });
        if mailbox.try_send(Message::Call(call)).is_err() {
            // Full: the next piece asks again.
            asked.store(false, Ordering::Release);
        }
    })
}
