//! One run, from its prompt until the model has nothing more to do.

use kli_protocol::api::{RunError, RunErrorKind, RunStop};
use kli_protocol::record::{AssistantMessage, StopReason, Usage};
use tokio_util::sync::CancellationToken;

use crate::context::assemble::NOT_RUN_RESULT;

use super::step::{self, Reply};
use super::{HostFailure, Outcome, RunEvent, RunHost, RunOptions, tools};

/// Runs until the model is done, the limit of turns is reached, something fails, or `cancel`.
pub async fn run<H: RunHost>(host: &H, options: RunOptions, cancel: CancellationToken) -> Outcome {
    let mut outcome = Outcome::default();
    let ended = turns(host, &options, &cancel, &mut outcome).await;
    let on_disk = host.on_disk().await;
    outcome.stop = match ended.and_then(|stop| on_disk.map(|()| stop)) {
        Ok(stop) => stop,
        Err(HostFailure(error)) => {
            outcome.error = Some(error);
            RunStop::Error
        }
    };
    outcome
}

async fn turns<H: RunHost>(
    host: &H,
    options: &RunOptions,
    cancel: &CancellationToken,
    outcome: &mut Outcome,
) -> Result<RunStop, HostFailure> {
    let mut turns = 0;
    let mut refusal = None;
    loop {
        if cancel.is_cancelled() {
            return Ok(RunStop::Aborted);
        }
        if options.max_turns.is_some_and(|max| turns >= max) {
            return Ok(RunStop::MaxTurns);
        }
        turns += 1;
        let mut turn = host.begin_turn().await?;
        if cancel.is_cancelled() {
            return Ok(RunStop::Aborted);
        }
        host.emit(RunEvent::TurnStart).await;
        let reply = step::reply(host, &mut turn, options.retry, cancel).await?;
        let mut usage = Usage::default();
        let stop = match reply {
            Reply::Done(message) => {
                usage = message.usage;
                outcome.usage += usage;
                outcome.text = message.content.text();
                refusal = message.error_message.clone().map(refused);
                after_reply(host, &turn, &message, cancel).await?
            }
            Reply::Aborted(text) => {
                outcome.text = text;
                Next::End(RunStop::Aborted)
            }
            Reply::Failed { error, text } => {
                outcome.text = text;
                outcome.error = Some(error);
                Next::End(RunStop::Error)
            }
        };
        host.end_turn().await?;
        host.emit(RunEvent::TurnEnd { usage }).await;
        match stop {
            Next::Turn => {}
            // Here the run would end: what waits is said first.
            Next::End(stop @ (RunStop::Done | RunStop::Length | RunStop::Refused)) => {
                if cancel.is_cancelled() {
                    return Ok(RunStop::Aborted);
                }
                let more = match options.max_turns.is_some_and(|max| turns >= max) {
                    // What waits stays queued: there is no turn left to answer it.
                    true if host.anything_queued().await? && stop == RunStop::Done => return Ok(RunStop::MaxTurns),
                    true => false,
                    false => host.more_to_say().await?,
                };
                if !more {
                    outcome.error = refusal.filter(|_| stop == RunStop::Refused);
                    return Ok(stop);
                }
            }
            Next::End(stop) => return Ok(stop),
        }
    }
}

enum Next {
    Turn,
    End(RunStop),
}

async fn after_reply<H: RunHost>(
    host: &H,
    turn: &super::Turn,
    message: &AssistantMessage,
    cancel: &CancellationToken,
) -> Result<Next, HostFailure> {
    let calls: Vec<_> = message.content.tool_calls().cloned().collect();
    match message.stop_reason {
        // Its arguments may be cut: none of them runs.
        StopReason::Length => {
            tools::refuse_all(host, &calls, NOT_RUN_RESULT).await?;
            Ok(Next::End(RunStop::Length))
        }
        // A whole reply with a reason: the provider would not answer.
        _ if message.error_message.is_some() => {
            tools::refuse_all(host, &calls, "Not run: the provider refused to go on.").await?;
            Ok(Next::End(RunStop::Refused))
        }
        _ if calls.is_empty() => Ok(Next::End(RunStop::Done)),
        _ => {
            tools::run_all(host, turn, calls, cancel).await?;
            Ok(if cancel.is_cancelled() { Next::End(RunStop::Aborted) } else { Next::Turn })
        }
    }
}

fn refused(message: String) -> RunError {
    RunError { kind: RunErrorKind::BadRequest, message, retryable: false }
}
