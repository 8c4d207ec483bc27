//! The tool calls of one reply: side by side where that is safe, their results stored in call order.

use std::sync::Arc;

use futures_util::future::FutureExt;
use futures_util::stream::{self, StreamExt};
use kli_protocol::record::{Content, ToolCallBlock, ToolResultMessage};
use tokio_util::sync::CancellationToken;

use super::{CallInfo, HostFailure, Permission, RunEvent, RunHost, Turn};
use crate::context::assemble::{ABORTED_RESULT, NOT_BEGUN_RESULT};
use crate::tool::{Effect, Tool, ToolOutput};

/// Calls of one reply that run at the same time at most.
const PARALLEL: usize = 16;

/// Runs calls and stores a result for each, whatever happens. Those that only read run beside all others; those
/// that write or execute run one after another, in call order.
pub(super) async fn run_all<H: RunHost>(
    host: &H,
    turn: &Turn,
    calls: Vec<ToolCallBlock>,
    cancel: &CancellationToken,
) -> Result<(), HostFailure> {
    let calls = &calls;
    let lane = |indices: Vec<usize>| {
        stream::iter(indices)
            .then(move |index| async move {
                match calls.get(index) {
                    Some(call) => Some((index, run_one(host, turn, call, cancel).await)),
                    None => None,
                }
            })
            .boxed()
    };
    let mut done = stream::iter(lanes(turn, calls)).map(lane).flatten_unordered(PARALLEL);
    let mut results: Vec<Option<ToolResultMessage>> = calls.iter().map(|_| None).collect();
    let mut stored = 0;
    while let Some(finished) = done.next().await {
        if let Some((index, result)) = finished
            && let Some(slot) = results.get_mut(index)
        {
            *slot = Some(result);
        }
        while let Some(result) = results.get_mut(stored).and_then(Option::take) {
            host.store_result(result).await?;
            stored += 1;
        }
    }
    Ok(())
}

/// Stores an error result for each call, without running any.
pub(super) async fn refuse_all<H: RunHost>(host: &H, calls: &[ToolCallBlock], why: &str) -> Result<(), HostFailure> {
    for call in calls {
        let result = message(call, ToolOutput::error(why), host.now_ms());
        host.emit(RunEvent::ToolEnd { result: Box::new(result.clone()) }).await;
        host.store_result(result).await?;
    }
    Ok(())
}

/// Indices of calls that go one after another: each reading call is a lane of its own, all others share one.
fn lanes(turn: &Turn, calls: &[ToolCallBlock]) -> Vec<Vec<usize>> {
    let changes = |call: &ToolCallBlock| {
        find(turn, &call.name).is_some_and(|t| matches!(t.spec().effect, Effect::Writes | Effect::Executes))
    };
    let (serial, free): (Vec<_>, Vec<_>) = calls.iter().enumerate().partition(|(_, call)| changes(call));
    let mut lanes: Vec<Vec<usize>> = free.into_iter().map(|(index, _)| vec![index]).collect();
    if !serial.is_empty() {
        lanes.insert(0, serial.into_iter().map(|(index, _)| index).collect());
    }
    lanes
}

async fn run_one<H: RunHost>(
    host: &H,
    turn: &Turn,
    call: &ToolCallBlock,
    cancel: &CancellationToken,
) -> ToolResultMessage {
    let output = match find(turn, &call.name) {
        None => {
            let names: Vec<_> = turn.tools.iter().map(|t| t.spec().name.as_str()).collect();
            host.emit(RunEvent::ToolStart { call: info(call, call.name.clone(), vec![]) }).await;
            ToolOutput::error(format!("Unknown tool {:?}. The tools here are: {}.", call.name, names.join(", ")))
        }
        Some(tool) => run_tool(host, turn, tool, call, cancel).await,
    };
    let result = message(call, output, host.now_ms());
    host.emit(RunEvent::ToolEnd { result: Box::new(result.clone()) }).await;
    result
}

async fn run_tool<H: RunHost>(
    host: &H,
    turn: &Turn,
    tool: Arc<dyn Tool>,
    call: &ToolCallBlock,
    cancel: &CancellationToken,
) -> ToolOutput {
    if cancel.is_cancelled() {
        return ToolOutput::error(NOT_BEGUN_RESULT);
    }
    let outline = tool.outline(&call.arguments, &turn.work_dir);
    let info = info(call, outline.title.clone(), outline.locations.clone());
    host.emit(RunEvent::ToolStart { call: info.clone() }).await;
    if let Some(fault) = crate::dialect::invalid_arguments(&call.arguments) {
        return ToolOutput::error(fault);
    }
    let permission = tokio::select! {
        permission = host.permit(tool.clone(), info, outline) => permission,
        () = cancel.cancelled() => Permission::Refused(NOT_BEGUN_RESULT.into()),
    };
    if let Permission::Refused(why) = permission {
        return ToolOutput::error(why);
    }
    let context = host.tool_context(&call.id);
    tokio::select! {
        biased;
        output = std::panic::AssertUnwindSafe(tool.call(call.arguments.clone(), context)).catch_unwind() => {
            output.unwrap_or_else(|_| ToolOutput::error(format!("{} failed inside; this is a fault of kli.", call.name)))
        }
        // The tool was told by its context; what it does not end within this time is dropped.
        () = async { cancel.cancelled().await; tokio::time::sleep(GRACE).await } => ToolOutput::error(ABORTED_RESULT),
    }
}

/// How long a cancelled tool may take to say what it had.
const GRACE: std::time::Duration = std::time::Duration::from_millis(500);

fn find(turn: &Turn, name: &str) -> Option<Arc<dyn Tool>> {
    turn.tools.iter().find(|t| t.spec().name == name).cloned()
}

fn info(call: &ToolCallBlock, title: String, locations: Vec<kli_protocol::api::Location>) -> CallInfo {
    CallInfo {
        tool_call_id: call.id.clone(),
        tool_name: call.name.clone(),
        title,
        arguments: call.arguments.clone(),
        locations,
    }
}

fn message(call: &ToolCallBlock, output: ToolOutput, now_ms: u64) -> ToolResultMessage {
    let content = match output.content.is_empty() {
        true => Content::Blocks(vec![kli_protocol::record::Block::text("(no output)")]),
        false => Content::Blocks(output.content),
    };
    ToolResultMessage {
        tool_call_id: call.id.clone(),
        tool_name: call.name.clone(),
        content,
        details: output.details,
        is_error: output.is_error,
        timestamp: now_ms,
    }
}
