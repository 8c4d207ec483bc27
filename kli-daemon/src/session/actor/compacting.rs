//! Compaction and branch summaries: a model writes, the actor appends what is worth keeping.
//!
//! While one goes on beside no run, what persons say waits and is said afterwards, in order. Failure and abort
//! leave the session as it was.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FutureExt;
use kli_protocol::api::{
    Behavior, CompactResult, CompactionReason, EventBody, ModelRef, NavigateTreeParams, NavigateTreeResult, RunError,
    RunErrorKind, RunOutcome, RunStop, Status,
};
use kli_protocol::record::{Body, BranchSummary};
use kli_protocol::{ApiError, ErrorKind};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::prompts::{PromptOrder, Started};
use super::write::Draft;
use super::{Actor, Ix, Message};
use crate::compaction::{self, Compacted, CompactionError, OnRetry, Retry, Stretch, Summarizer};
use crate::context::estimate::Budget;
use crate::context::{Window, cut, transcript};
use crate::session::branch::{self, Shape};
use crate::session::{Pending, api_error};

/// A compaction or a summary beside no run.
pub(super) struct Work {
    pub status: Status,
    pub cancel: CancellationToken,
    /// The run that begins afterwards, and who waits for it.
    pub next_run: Option<String>,
    pub waiters: Vec<oneshot::Sender<RunOutcome>>,
    /// What was said meanwhile, in order.
    pub said: Vec<(PromptOrder, Behavior)>,
}

/// All that a compaction is made from.
pub(super) struct CompactionJob {
    pub stretch: Stretch,
    pub by: Summarizer,
}

/// A move of the leaf: done, or waiting for its summary.
pub enum Navigated {
    Now(NavigateTreeResult),
    Later(Pending<Result<NavigateTreeResult, ApiError>>),
}

impl Actor {
    pub fn compact(
        &mut self,
        instructions: Option<String>,
        leaf_id: &Option<Option<String>>,
    ) -> Result<Pending<Result<CompactResult, ApiError>>, ApiError> {
        self.check_quiet()?;
        self.catch_up()?;
        self.check_writable()?;
        self.check_leaf(leaf_id)?;
        let job = self.compaction_job(&self.branch.model.clone())?;
        let Ok(CompactionJob { stretch, by }) = job else { return Err(CompactionError::NothingToCompact.into()) };
        self.auto.resume();
        let mailbox = self.mailbox().ok_or_else(crate::session::handle::gone)?;
        let cancel = self.begin_work(Status::Compacting);
        self.publish(EventBody::CompactionStart { reason: CompactionReason::Manual });
        let (reply, answer) = oneshot::channel();
        // Ended by `cancel`; the actor outlives it, since it is not quiet before.
        tokio::spawn(async move {
            let made = compaction::compact(&stretch, instructions.as_deref(), &by, &cancel).await;
            let call = Box::new(move |actor: &mut Actor| {
                let stored = actor.store_compaction(made);
                let _ = reply.send(stored);
                actor.end_work();
            });
            let _ = mailbox.send(Message::Call(call)).await;
        });
        Ok(Pending::of(answer))
    }

    pub fn navigate_summarized(&mut self, params: &NavigateTreeParams) -> Result<Navigated, ApiError> {
        if params.summarize != Some(true) {
            return self.navigate(params).map(Navigated::Now);
        }
        self.check_move(params)?;
        self.check_writable()?;
        let to = self.destination(params.entry_id.as_deref(), params.position)?;
        let by = self.summarizer(&self.branch.model.clone())?;
        let (path, left_out) = self.left_path(to.leaf, by.path_budget())?;
        if !transcript::says_anything(&path) {
            return self.navigate(params).map(Navigated::Now);
        }
        let mailbox = self.mailbox().ok_or_else(crate::session::handle::gone)?;
        let cancel = self.begin_work(Status::Summarizing);
        self.publish(EventBody::CompactionStart { reason: CompactionReason::Branch });
        let (reply, answer) = oneshot::channel();
        let params = params.clone();
        tokio::spawn(async move {
            let instructions = params.instructions.as_deref();
            let made = compaction::summarize_branch(&path, left_out, instructions, &by, &cancel).await;
            let call = Box::new(move |actor: &mut Actor| {
                let moved = actor.store_branch_summary(&params, to, made);
                let _ = reply.send(moved);
                actor.end_work();
            });
            let _ = mailbox.send(Message::Call(call)).await;
        });
        Ok(Navigated::Later(Pending::of(answer)))
    }

    /// The path that a move leaves, root → leaf: from the last entry that both branches share on.
    fn left_path(&self, to: Option<Ix>, tokens: u64) -> Result<(Vec<Arc<crate::context::Item>>, bool), ApiError> {
        let Some(leaf) = self.log.leaf() else { return Ok((vec![], false)) };
        let shared = to.and_then(|to| self.log.common_ancestor(to, leaf));
        let up = self.log.up(Some(leaf)).map(|node| node.ix).take_while(|ix| Some(*ix) != shared);
        cut::newest(up.map(|ix| branch::item(&self.log, ix)), tokens).map_err(api_error)
    }

    fn store_branch_summary(
        &mut self,
        params: &NavigateTreeParams,
        to: super::navigate::Destination,
        made: Result<Option<BranchSummary>, CompactionError>,
    ) -> Result<NavigateTreeResult, ApiError> {
        let made = match made {
            Ok(made) => made,
            Err(error) => {
                self.tell_compaction_failed(&error);
                return Err(error.into());
            }
        };
        let from_id = self.tip_id();
        let Some(mut summary) = made else {
            self.publish(EventBody::CompactionEnd { entry_id: None, error: None });
            return self.move_to(to, params.label.as_deref());
        };
        summary.from_id = from_id.clone().unwrap_or_else(|| "root".into());
        let id = self.log.new_id(self.deps.clock.as_ref());
        let record = kli_protocol::record::Record::new(
            id.clone(),
            to.leaf.map(|ix| self.log.id(ix)),
            self.deps.now(),
            Body::BranchSummary(summary),
        );
        let written = match self.write_records(vec![record]) {
            Ok(written) => written,
            Err(error) => {
                self.publish(EventBody::CompactionEnd { entry_id: None, error: Some(store_error(&error)) });
                return Err(error);
            }
        };
        self.tell(written);
        self.publish(EventBody::CompactionEnd { entry_id: Some(id.clone()), error: None });
        self.publish(EventBody::LeafMoved { leaf_id: Some(id.clone()), from_id: from_id.clone() });
        self.refresh_branch();
        if let Some(label) = &params.label {
            self.set_label(&id, Some(label.clone()))?;
        }
        let (editor_text, images) = match to.prompt {
            Some(prompt) => (Some(prompt.text), prompt.images),
            None => (None, None),
        };
        Ok(NavigateTreeResult { leaf_id: Some(id.clone()), from_id, editor_text, images, summary_entry_id: Some(id) })
    }

    /// Appends a compaction that is worth it, and says how it went.
    pub(super) fn store_compaction(
        &mut self,
        made: Result<Compacted, CompactionError>,
    ) -> Result<CompactResult, ApiError> {
        let made = match made {
            Ok(made) => made,
            Err(error) => {
                self.tell_compaction_failed(&error);
                return Err(error.into());
            }
        };
        let id = self.log.new_id(self.deps.clock.as_ref());
        let result = CompactResult {
            entry_id: id.clone(),
            summary: made.compaction.summary.clone(),
            first_kept_entry_id: made.compaction.first_kept_entry_id.clone().unwrap_or_else(|| id.clone()),
            tokens_before: made.compaction.tokens_before,
            tokens_after: made.tokens_after,
        };
        // Calls that a crash left open are answered in front of it, as in front of any other entry.
        let mut drafts = if self.run.is_none() { self.open_call_drafts()? } else { vec![] };
        drafts.push(Draft { id: Some(id.clone()), body: Body::Compaction(made.compaction) });
        match self.write(drafts) {
            Ok(written) => {
                self.tell(written);
                self.publish(EventBody::CompactionEnd { entry_id: Some(id), error: None });
                Ok(result)
            }
            Err(error) => {
                self.publish(EventBody::CompactionEnd { entry_id: None, error: Some(store_error(&error)) });
                Err(error)
            }
        }
    }

    fn tell_compaction_failed(&mut self, error: &CompactionError) {
        let error = RunError { kind: run_error_kind(error), message: error.to_string(), retryable: false };
        self.publish(EventBody::CompactionEnd { entry_id: None, error: Some(error) });
    }

    /// The inner error: there is nothing to compact.
    pub(super) fn compaction_job(&self, model: &ModelRef) -> Result<Result<CompactionJob, Summarizer>, ApiError> {
        let shape = self.shape(model, self.branch.options.clone())?;
        let by = self.summarizer_of(&shape);
        let window = self.with_window(Window::clone).map_err(api_error)?;
        Ok(match Stretch::of(window, shape.setting.overhead, &by.budget) {
            Some(stretch) => Ok(CompactionJob { stretch, by }),
            None => Err(by),
        })
    }

    fn summarizer(&self, model: &ModelRef) -> Result<Summarizer, ApiError> {
        self.shape(model, self.branch.options.clone()).map(|shape| self.summarizer_of(&shape))
    }

    fn summarizer_of(&self, shape: &Shape) -> Summarizer {
        let settings = self.settings();
        Summarizer {
            provider: shape.provider.clone(),
            model: shape.model.clone(),
            options: shape.options.clone(),
            budget: self.budget(shape.model.context_window),
            attempts: settings.retry.max_attempts,
            base_delay: Duration::from_millis(settings.retry.base_delay_ms),
            cache_key: format!("{}-summary", self.id),
            on_retry: self.retry_teller(),
        }
    }

    /// Whoever summarises is no part of the actor, and speaks to it by messages.
    fn retry_teller(&self) -> OnRetry {
        let mailbox = self.mailbox();
        Arc::new(move |retry| {
            let mailbox = mailbox.clone();
            let Retry { attempt, max_attempts, delay_ms, reason } = retry;
            let tell = Box::new(move |actor: &mut Actor| {
                actor.publish(EventBody::RetryScheduled { attempt, max_attempts, delay_ms, reason });
            });
            async move {
                if let Some(mailbox) = mailbox {
                    let _ = mailbox.send(Message::Call(tell)).await;
                }
            }
            .boxed()
        })
    }

    pub(super) fn budget(&self, window: u64) -> Budget {
        let compaction = self.settings().compaction;
        Budget::new(window, compaction.reserve_tokens, compaction.keep_recent_tokens)
    }

    /// Nothing that would be in the way of a move or a compaction goes on.
    pub(super) fn check_quiet(&self) -> Result<(), ApiError> {
        match self.run.is_some() || self.work.is_some() {
            true => Err(self.busy("wait until it has ended, or abort it")),
            false => Ok(()),
        }
    }

    fn begin_work(&mut self, status: Status) -> CancellationToken {
        let cancel = CancellationToken::new();
        self.work = Some(Work { status, cancel: cancel.clone(), next_run: None, waiters: vec![], said: vec![] });
        self.refresh_status();
        cancel
    }

    /// Goes on with what was said meanwhile; after an abort it waits for the next run.
    fn end_work(&mut self) {
        let Some(work) = self.work.take() else { return };
        self.refresh_status();
        let waited = !work.said.is_empty();
        let mut said = work.said.into_iter();
        let aborted = work.cancel.is_cancelled();
        let first = if aborted { None } else { said.next() };
        if let Some((order, _)) = first {
            self.start_next(order, work.next_run, work.waiters);
        } else {
            let outcome = RunOutcome { stop_reason: RunStop::Aborted, leaf_id: self.tip_id(), ..RunOutcome::default() };
            for waiter in work.waiters {
                let _ = waiter.send(outcome.clone());
            }
        }
        for (order, behavior) in said {
            self.requeue(order, behavior);
        }
        if waited {
            self.tell_queue();
        }
        self.take_deferred();
    }

    fn start_next(&mut self, order: PromptOrder, run_id: Option<String>, waiters: Vec<oneshot::Sender<RunOutcome>>) {
        match self.start_prompt_as(order.clone(), run_id) {
            Ok(Started { .. }) => self.add_waiters(waiters),
            Err(error) => {
                let outcome = RunOutcome {
                    stop_reason: RunStop::Error,
                    leaf_id: self.tip_id(),
                    error: Some(store_error(&error)),
                    ..RunOutcome::default()
                };
                self.requeue(order, Behavior::FollowUp);
                for waiter in waiters {
                    let _ = waiter.send(outcome.clone());
                }
            }
        }
    }
}

fn store_error(error: &ApiError) -> RunError {
    let kind = match error.kind() {
        Some(ErrorKind::NoApiKey) => RunErrorKind::NoApiKey,
        Some(ErrorKind::ModelNotFound) => RunErrorKind::BadRequest,
        _ => RunErrorKind::StoreFailed,
    };
    RunError { kind, message: error.message.clone(), retryable: false }
}

fn run_error_kind(error: &CompactionError) -> RunErrorKind {
    match error {
        CompactionError::Failed(failure) => failure.kind,
        CompactionError::TooLong { .. } => RunErrorKind::ContextOverflow,
        CompactionError::Aborted => RunErrorKind::Interrupted,
        _ => RunErrorKind::Internal,
    }
}
