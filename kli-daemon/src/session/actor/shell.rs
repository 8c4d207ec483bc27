//! Commands that a person runs in the session, and its background jobs.
//!
//! A command runs at once, also beside a run; what it printed becomes an entry, during a run at the next turn
//! boundary, so that it never comes between a call and its result.

use std::path::PathBuf;
use std::time::Duration;

use kli_protocol::api::{BashResult, EventBody, Job};
use kli_protocol::record::{BashExecution, Block, Body, Content, Message, MessageBody};
use kli_protocol::{ApiError, ErrorKind};
use serde_json::json;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::Actor;
use super::host::{Output, progress};
use super::write::Draft;
use crate::session::Pending;

use crate::tool::{CommandError, CommandOutcome, ToolContext, jobs::Jobs, run_command};

/// Commands of persons that run in one session at a time.
const MAX_SHELLS: usize = 16;

/// A command that runs, or has ended and waits to be written.
pub(super) struct Shell {
    /// The entry that it becomes.
    id: String,
    cancel: CancellationToken,
    key: Option<String>,
    /// Those who wait for it: the caller, and whoever called again with its key.
    waiters: Vec<oneshot::Sender<Result<BashResult, ApiError>>>,
    ended: Option<BashExecution>,
}

/// What a person wants run.
#[derive(Clone, Debug, Default)]
pub struct ShellOrder {
    pub command: String,
    pub exclude_from_context: Option<bool>,
    pub timeout: Option<Duration>,
    pub key: Option<String>,
}

impl Actor {
    /// Starts a command; the answer comes when its entry is written.
    pub fn bash(&mut self, order: ShellOrder) -> Result<Pending<Result<BashResult, ApiError>>, ApiError> {
        if let Some(entry_id) = order.key.as_deref().and_then(|key| self.entry_of_key(key)) {
            return Ok(Pending::ready(self.bash_again(&entry_id)));
        }
        let (waiter, answer) = oneshot::channel();
        if let Some(same) = self.shells.iter_mut().find(|shell| shell.key.is_some() && shell.key == order.key) {
            same.waiters.push(waiter);
            return Ok(Pending::of(answer));
        }
        self.check_writable()?;
        if self.shells.len() >= MAX_SHELLS {
            return Err(ApiError::limit(
                "maxCommands",
                MAX_SHELLS as u64,
                format!("{MAX_SHELLS} commands run in this session already; wait for one, or abort."),
            ));
        }
        let mailbox = self.mailbox().ok_or_else(crate::session::handle::gone)?;
        let entry_id = self.log.new_id(self.deps.clock.as_ref());
        let cancel = CancellationToken::new();
        let context = ToolContext {
            session_id: self.id.to_string(),
            tool_call_id: entry_id.clone(),
            work_dir: PathBuf::from(self.work_dir()),
            env: self.env.clone(),
            cancel: cancel.clone(),
            progress: progress(mailbox.clone(), entry_id.clone(), Output::OfShell),
            images: false,
            jobs: self.jobs.clone(),
            sandbox: self.deps.settings().sandbox,
        };
        let shell = Shell { id: entry_id.clone(), cancel, key: order.key.clone(), waiters: vec![waiter], ended: None };
        self.shells.push(shell);
        self.refresh_status();
        self.publish_for(
            None,
            EventBody::ToolStart {
                tool_call_id: entry_id.clone(),
                tool_name: "bash".into(),
                title: crate::text::one_line(&order.command, 200),
                arguments: [("command".to_owned(), json!(order.command))].into_iter().collect(),
                locations: vec![],
            },
        );
        // The command ends by `cancel`, which closing the session gives; the actor ends only after it.
        tokio::spawn(async move {
            let outcome = run_command(&order.command, order.timeout, &context).await;
            let call = Box::new(move |actor: &mut Actor| actor.shell_ended(entry_id, order, outcome));
            let _ = mailbox.send(super::Message::Call(call)).await;
        });
        Ok(Pending::of(answer))
    }

    fn shell_ended(&mut self, entry_id: String, order: ShellOrder, outcome: Result<CommandOutcome, CommandError>) {
        let outcome = outcome.unwrap_or_else(|error| CommandOutcome {
            output: error.to_string(),
            exit_code: Some(126),
            ..CommandOutcome::default()
        });
        self.publish_for(
            None,
            EventBody::ToolEnd {
                tool_call_id: entry_id.clone(),
                is_error: outcome.exit_code != Some(0),
                content: Content::Blocks(vec![Block::text(outcome.output.clone())]),
                details: Some(json!({ "exitCode": outcome.exit_code, "cancelled": outcome.cancelled })),
            },
        );
        let execution = BashExecution {
            command: order.command,
            output: outcome.output,
            exit_code: outcome.exit_code,
            cancelled: outcome.cancelled || outcome.timed_out,
            truncated: outcome.truncated,
            full_output_path: outcome.full_output_path.map(|path| path.display().to_string()),
            exclude_from_context: order.exclude_from_context,
            timestamp: self.deps.clock.now_ms(),
        };
        if let Some(shell) = self.shells.iter_mut().find(|shell| shell.id == entry_id) {
            shell.ended = Some(execution);
        }
        // Between turns of a run its entry would come between a call and its results.
        if self.run.is_none() {
            self.write_ended_shells();
        }
    }

    /// Writes what commands printed that ended meanwhile: at a turn boundary.
    pub(super) fn write_ended_shells(&mut self) {
        while let Some(at) = self.shells.iter().position(|shell| shell.ended.is_some()) {
            let Shell { id: entry_id, key, waiters, ended: Some(execution), .. } = self.shells.remove(at) else {
                continue;
            };
            let result = result_of(&entry_id, &execution);
            let message = Message::BashExecution(execution);
            let body = Body::Message(MessageBody { message, idempotency_key: key.clone() });
            let written = self.append(vec![Draft { id: Some(entry_id.clone()), body }]);
            if written.is_ok() {
                self.key_done(key.as_deref());
            }
            let answer = match written {
                Ok(_) if result.cancelled && result.exit_code.is_none() && self.was_aborted(&entry_id) => {
                    Err(ApiError::new(ErrorKind::Aborted, "The command was aborted; its output so far is stored."))
                }
                Ok(_) => Ok(result),
                Err(error) => Err(error),
            };
            for waiter in waiters {
                let _ = waiter.send(answer.clone());
            }
        }
        self.aborted_shells.retain(|id| self.shells.iter().any(|shell| shell.id == *id));
        self.refresh_status();
    }

    fn was_aborted(&self, entry_id: &str) -> bool {
        self.aborted_shells.iter().any(|id| id == entry_id)
    }

    fn bash_again(&self, entry_id: &str) -> Result<BashResult, ApiError> {
        match self.body_of_key(entry_id)? {
            Body::Message(MessageBody { message: Message::BashExecution(execution), .. }) => {
                Ok(result_of(entry_id, &execution))
            }
            _ => Err(super::prompts::key_of_another("bash")),
        }
    }

    /// Output of a command that runs.
    pub(super) fn shell_update(&mut self, tool_call_id: String, delta: String) {
        self.publish_for(None, EventBody::ToolUpdate { tool_call_id, delta });
    }

    /// Ends the commands that run. True if there were any.
    pub(super) fn cancel_shells(&mut self) -> bool {
        let running: Vec<&Shell> = self.shells.iter().filter(|shell| shell.ended.is_none()).collect();
        for shell in &running {
            shell.cancel.cancel();
        }
        self.aborted_shells.extend(running.iter().map(|shell| shell.id.clone()));
        !running.is_empty()
    }

    pub fn jobs(&self) -> Vec<Job> {
        self.jobs.list()
    }

    /// The jobs themselves, to end one without holding up the session.
    pub fn job_table(&self) -> std::sync::Arc<Jobs> {
        self.jobs.clone()
    }
}

fn result_of(entry_id: &str, execution: &BashExecution) -> BashResult {
    BashResult {
        entry_id: entry_id.to_owned(),
        output: execution.output.clone(),
        exit_code: execution.exit_code,
        cancelled: execution.cancelled,
        truncated: execution.truncated,
        full_output_path: execution.full_output_path.clone(),
    }
}
