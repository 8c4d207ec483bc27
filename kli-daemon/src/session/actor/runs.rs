//! A session's run: its start, what it reports, its end.

use std::collections::BTreeMap;

use futures_util::future::FutureExt;
use kli_protocol::api::{
    Approvals, EventBody, ModelRef, PromptResult, RunError, RunErrorKind, RunOutcome, RunStop, ToolSnapshot,
};
use kli_protocol::record::{AssistantMessage, Body, Message, ToolResultMessage};
use kli_protocol::{ApiError, ErrorKind};
use serde_json::Value;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::host::ActorHost;
use super::partial::Partial;
use super::prompts::Started;
use super::write::Draft;
use super::{Actor, Ix};
use crate::agent::{self, Outcome, RunEvent, RunOptions};
use crate::context::Window;
use crate::session::branch::{self, RunMark};

/// Runs whose outcome is remembered.
const REMEMBERED: usize = 100;
/// Output of a running tool that a snapshot shows, in bytes: the end of it.
const SNAPSHOT_OUTPUT: usize = 64 << 10;

/// The run that goes on.
pub(super) struct Run {
    pub id: String,
    pub cancel: CancellationToken,
    /// Where its next entry attaches.
    pub tip: Option<Ix>,
    pub approvals: Approvals,
    /// For this run only.
    pub model: Option<ModelRef>,
    pub options: BTreeMap<String, Value>,
    /// The reply that is coming in.
    pub partial: Partial,
    pub tools: Vec<ToolSnapshot>,
    pub retrying: bool,
    pub compacting: bool,
    /// Its prompt.
    entry_id: Option<String>,
    /// What files say to the model was read.
    pub instructed: bool,
    /// Nothing more is taken in: what is said from now on starts another run.
    pub closed: bool,
    waiters: Vec<oneshot::Sender<RunOutcome>>,
}

/// How a run is to go.
pub(super) struct RunStart {
    pub run_id: String,
    pub entry_id: Option<String>,
    pub approvals: Approvals,
    pub model: Option<ModelRef>,
    pub options: BTreeMap<String, Value>,
    pub max_turns: Option<u32>,
}

impl Actor {
    /// Starts a run at the leaf; its prompt is written already.
    pub(super) fn start_run(&mut self, start: RunStart) -> oneshot::Receiver<RunOutcome> {
        let cancel = CancellationToken::new();
        let (waiter, ended) = oneshot::channel();
        let options = RunOptions { max_turns: start.max_turns, retry: self.deps.settings().retry };
        let host = ActorHost::new(self, start.run_id.clone(), cancel.clone());
        self.run = Some(Run {
            id: start.run_id,
            cancel: cancel.clone(),
            tip: self.log.leaf(),
            approvals: start.approvals,
            model: start.model,
            options: start.options,
            partial: Partial::default(),
            tools: vec![],
            retrying: false,
            compacting: false,
            entry_id: start.entry_id.clone(),
            instructed: false,
            closed: false,
            waiters: vec![waiter],
        });
        self.publish(EventBody::RunStart { entry_id: start.entry_id });
        self.refresh_status();
        // The actor outlives the task: it ends only when no run goes on. The task ends by `run_ended`, whatever
        // happens inside it.
        tokio::spawn(async move {
            let outcome = std::panic::AssertUnwindSafe(agent::run(&host, options, cancel)).catch_unwind().await;
            let outcome = outcome.unwrap_or_else(|_| Outcome {
                stop: RunStop::Error,
                error: Some(RunError {
                    kind: RunErrorKind::Internal,
                    message: "The run failed inside; this is a fault of kli, and the log says more.".into(),
                    retryable: false,
                }),
                ..Outcome::default()
            });
            host.ended(outcome).await;
        });
        ended
    }

    pub(super) fn run_ended(&mut self, outcome: Outcome) {
        // Still of the run, before its end is told.
        let Some(run_id) = self.run.as_ref().map(|run| run.id.clone()) else { return };
        self.resolve_approvals_as_aborted(&run_id);
        self.write_ended_shells();
        self.note_end(&run_id, &outcome);
        let Some(run) = self.run.take() else { return };
        let outcome = RunOutcome {
            stop_reason: outcome.stop,
            text: outcome.text,
            leaf_id: run.tip.map(|ix| self.log.id(ix)),
            error: outcome.error,
            usage: outcome.usage,
        };
        self.finished.push_back((run.id, outcome.clone()));
        while self.finished.len() > REMEMBERED {
            self.finished.pop_front();
        }
        self.publish_for(
            Some(run_id),
            EventBody::RunEnd { stop_reason: outcome.stop_reason, error: outcome.error.clone(), usage: outcome.usage },
        );
        // What another program appended meanwhile lies beside the run's own branch.
        if run.tip != self.log.leaf() {
            self.refresh_branch();
        }
        self.refresh_status();
        for waiter in run.waiters {
            let _ = waiter.send(outcome.clone());
        }
        self.take_deferred();
    }

    /// A run that ended where a crash could have cut it off says so in the file, or it would be taken for that.
    fn note_end(&mut self, run_id: &str, outcome: &Outcome) {
        if !self.with_end(Window::is_unfinished).unwrap_or_default() {
            return;
        }
        let mark = RunMark { run_id: run_id.into(), stop_reason: Some(outcome.stop), error: outcome.error.clone() };
        if let Err(error) = self.append(vec![mark.body().into()]) {
            tracing::warn!(session = %self.id, error = %error.message, "the end of a run is not in its file");
        }
    }

    /// The run is over but for its last words.
    pub(super) fn close_run(&mut self) {
        if let Some(run) = &mut self.run {
            run.closed = true;
        }
    }

    /// Answers when the run that goes on has ended.
    pub(super) fn when_run_ends(&mut self) -> Option<oneshot::Receiver<RunOutcome>> {
        let run = self.run.as_mut()?;
        let (waiter, ended) = oneshot::channel();
        run.waiters.retain(|w| !w.is_closed());
        run.waiters.push(waiter);
        Some(ended)
    }

    pub(super) fn add_waiters(&mut self, waiters: Vec<oneshot::Sender<RunOutcome>>) {
        if let Some(run) = &mut self.run {
            run.waiters.extend(waiters);
        }
    }

    pub(super) fn outcome_of(&self, run_id: &str) -> Option<RunOutcome> {
        self.finished.iter().rev().find(|(id, _)| id == run_id).map(|(_, outcome)| outcome.clone())
    }

    /// The run by its id, or the one that goes on, or the last one; none when there never was one.
    pub fn wait_run(&mut self, run_id: Option<&str>) -> Option<Started> {
        if let Some(run) = self.run.as_ref().filter(|run| run_id.is_none_or(|id| run.id == id)) {
            let (run_id, entry_id) = (run.id.clone(), run.entry_id.clone());
            let result = PromptResult { run_id, entry_id, ..PromptResult::default() };
            return Some(Started { result, ended: self.when_run_ends() });
        }
        // A run that begins when a compaction or a summary is done.
        if let Some(work) = &mut self.work
            && let Some(promised) = work.next_run.clone().filter(|promised| run_id.is_none_or(|id| id == promised))
        {
            let (waiter, ended) = oneshot::channel();
            work.waiters.push(waiter);
            let result = PromptResult { run_id: promised, queued: true, ..PromptResult::default() };
            return Some(Started { result, ended: Some(ended) });
        }
        let (run_id, outcome) = match run_id {
            Some(id) => (id.to_owned(), self.outcome_of(id).or_else(|| self.outcome_of_earlier(id))?),
            None => match self.finished.back().cloned() {
                Some(last) => last,
                None => self.last_earlier_run()?,
            },
        };
        let entry_id = run_id.strip_prefix("run_").filter(|id| self.log.find(id).is_ok()).map(str::to_owned);
        let result = PromptResult { run_id, queued: false, entry_id, outcome: Some(outcome) };
        Some(Started { result, ended: None })
    }

    /// A run of an earlier daemon, which the tree remembers by its prompt.
    fn outcome_of_earlier(&self, run_id: &str) -> Option<RunOutcome> {
        let entry_id = run_id.strip_prefix("run_")?;
        branch::outcome(&self.log, entry_id)
    }

    fn last_earlier_run(&self) -> Option<(String, RunOutcome)> {
        let prompt = branch::last_prompt(&self.log, self.log.leaf())?;
        let id = self.log.id(prompt);
        let outcome = branch::outcome(&self.log, &id)?;
        Some((super::prompts::run_id_of(&id), outcome))
    }

    pub fn continue_run(&mut self) -> Result<Started, ApiError> {
        self.check_quiet()?;
        self.catch_up()?;
        self.check_writable()?;
        if !self.anything_queued() && self.is_answered()? {
            return Err(ApiError::new(ErrorKind::InvalidEntry, "There is nothing to continue: prompt it instead."));
        }
        let model = self.branch.model.clone();
        self.deps.models().find(&model.provider, &model.model_id)?;
        let run_id = crate::clock::short_id(self.deps.clock.as_ref(), "run");
        let mut drafts = self.open_call_drafts()?;
        let mark = RunMark { run_id: run_id.clone(), stop_reason: None, error: None };
        drafts.push(mark.body().into());
        self.append(drafts)?;
        self.deps.store.set_last(&self.log);
        let ended = self.start_run(RunStart {
            run_id: run_id.clone(),
            entry_id: None,
            approvals: Approvals::Wait,
            model: None,
            options: BTreeMap::new(),
            max_turns: None,
        });
        Ok(Started { result: PromptResult { run_id, ..PromptResult::default() }, ended: Some(ended) })
    }

    /// Nothing waits for the model's words: it has said all it had to say, or nothing on the branch is sent, such as
    /// settings and a name alone.
    fn is_answered(&self) -> Result<bool, ApiError> {
        let model = self.model_info(&self.branch.model);
        let look = |end: &Window| end.is_answered() || branch::messages(end, &model).messages.is_empty();
        self.with_end(look).map_err(crate::session::api_error)
    }

    /// Ends the run that goes on (only `run_id`, if given) and what else goes on. The receiver tells when it is
    /// over; none when nothing went on.
    pub fn abort(&mut self, run_id: Option<&str>) -> Option<oneshot::Receiver<RunOutcome>> {
        if let Some(wanted) = run_id
            && self.run.as_ref().is_none_or(|run| run.id != wanted)
        {
            return None;
        }
        let mut shells = run_id.is_none() && self.cancel_shells();
        if run_id.is_none()
            && let Some(work) = &self.work
        {
            work.cancel.cancel();
            shells = true;
        }
        let ended = self.when_run_ends();
        self.abort_run();
        match ended {
            None if shells => {
                let (done, over) = oneshot::channel();
                let _ = done.send(RunOutcome { stop_reason: RunStop::Aborted, ..RunOutcome::default() });
                Some(over)
            }
            other => other,
        }
    }

    pub(super) fn abort_all(&mut self) {
        self.cancel_shells();
        if let Some(work) = &self.work {
            work.cancel.cancel();
        }
        self.abort_run();
    }

    fn abort_run(&mut self) {
        let Some(run) = &self.run else { return };
        run.cancel.cancel();
        let id = run.id.clone();
        self.resolve_approvals_as_aborted(&id);
    }

    // What the run reports.

    pub(super) fn run_event(&mut self, event: RunEvent) {
        if let Some(body) = self.note(event) {
            self.publish(body);
        }
    }

    /// Keeps what a snapshot needs of an event, and makes the public one.
    fn note(&mut self, event: RunEvent) -> Option<EventBody> {
        let context = matches!(event, RunEvent::TurnEnd { .. }).then(|| self.context_use());
        let was_retrying = self.run.as_ref().is_some_and(|run| run.retrying);
        let run = self.run.as_mut()?;
        let message_id = run.partial.message_id.clone().unwrap_or_default();
        let body = match event {
            RunEvent::TurnStart => EventBody::TurnStart {},
            RunEvent::TurnEnd { usage } => EventBody::TurnEnd { usage, context: context.unwrap_or_default() },
            RunEvent::MessageStart { message_id } => {
                run.partial = Partial::new(message_id.clone());
                run.retrying = false;
                EventBody::MessageStart { message_id }
            }
            RunEvent::MessageDropped { message_id } => {
                run.partial = Partial::default();
                EventBody::MessageEnd { message_id, stored: false }
            }
            RunEvent::Text { index, delta } => {
                run.partial.text(index, &delta);
                EventBody::TextDelta { message_id, index, delta }
            }
            RunEvent::Thinking { index, delta } => {
                run.partial.thinking(index, &delta);
                EventBody::ThinkingDelta { message_id, index, delta }
            }
            RunEvent::ToolCall { index, id, name, delta } => {
                run.partial.call(index, &id, &name, &delta);
                EventBody::ToolCallDelta { message_id, index, tool_call_id: id, tool_name: name, delta }
            }
            RunEvent::Retry { attempt, max_attempts, delay_ms, reason } => {
                run.retrying = true;
                EventBody::RetryScheduled { attempt, max_attempts, delay_ms, reason }
            }
            RunEvent::ToolStart { call } => {
                run.tools.push(ToolSnapshot {
                    tool_call_id: call.tool_call_id.clone(),
                    tool_name: call.tool_name.clone(),
                    title: call.title.clone(),
                    arguments: call.arguments.clone(),
                    output: String::new(),
                });
                EventBody::ToolStart {
                    tool_call_id: call.tool_call_id,
                    tool_name: call.tool_name,
                    title: call.title,
                    arguments: call.arguments,
                    locations: call.locations,
                }
            }
            RunEvent::ToolUpdate { tool_call_id, delta } => {
                if let Some(tool) = run.tools.iter_mut().find(|t| t.tool_call_id == tool_call_id) {
                    tool.output.push_str(&delta);
                    keep_end(&mut tool.output, SNAPSHOT_OUTPUT);
                }
                EventBody::ToolUpdate { tool_call_id, delta }
            }
            RunEvent::ToolEnd { result } => EventBody::ToolEnd {
                tool_call_id: result.tool_call_id,
                is_error: result.is_error,
                content: result.content,
                details: result.details,
            },
        };
        if self.run.as_ref().is_some_and(|run| run.retrying) != was_retrying {
            self.refresh_status();
        }
        Some(body)
    }

    pub(super) fn store_reply(&mut self, message_id: String, message: AssistantMessage) -> Result<(), ApiError> {
        let draft = Draft { id: Some(message_id.clone()), body: Body::message(Message::Assistant(message)) };
        let written = self.write(vec![draft])?;
        if let Some(run) = &mut self.run {
            run.partial = Partial::default();
        }
        self.publish(EventBody::MessageEnd { message_id, stored: true });
        self.tell(written);
        Ok(())
    }

    pub(super) fn store_result(&mut self, result: ToolResultMessage) -> Result<(), ApiError> {
        let call_id = result.tool_call_id.clone();
        self.append(vec![Body::message(Message::ToolResult(result)).into()])?;
        if let Some(run) = &mut self.run {
            run.tools.retain(|t| t.tool_call_id != call_id);
        }
        Ok(())
    }
}

fn keep_end(text: &mut String, max: usize) {
    if text.len() > 2 * max {
        let mut cut = text.len() - max;
        while !text.is_char_boundary(cut) {
            cut += 1;
        }
        text.drain(..cut);
    }
}
