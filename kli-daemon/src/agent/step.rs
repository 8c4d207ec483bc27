//! One reply of the model, asked for again while its failures pass.

use std::time::Duration;

use futures_util::StreamExt;
use kli_protocol::api::{RunError, RunErrorKind};
use kli_protocol::record::{AssistantMessage, Block, Content, StopReason};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::retry::{self, Next, RetrySettings};
use super::{HostFailure, RunEvent, RunHost, Turn};
use crate::provider::{Failure, StreamEvent};

/// What asking the model came to. It is stored already.
pub(super) enum Reply {
    Done(AssistantMessage),
    /// With the text that had come.
    Aborted(String),
    Failed {
        error: RunError,
        text: String,
    },
}

pub(super) async fn reply<H: RunHost>(
    host: &H,
    turn: &mut Turn,
    settings: RetrySettings,
    cancel: &CancellationToken,
) -> Result<Reply, HostFailure> {
    let mut attempt = 1;
    let mut overflowed = false;
    loop {
        let (failure, partial) = match attempt_once(host, turn, cancel).await {
            Attempt::Done(message) => {
                host.store_reply(turn.message_id.clone(), (*message).clone()).await?;
                return Ok(Reply::Done(*message));
            }
            Attempt::Failed(failure, partial) => (failure, *partial),
        };
        if cancel.is_cancelled() {
            let text = partial.content.text();
            store_partial(host, turn, partial, StopReason::Aborted, None).await?;
            return Ok(Reply::Aborted(text));
        }
        if failure.kind == RunErrorKind::ContextOverflow && !overflowed {
            overflowed = true;
            if let Some(smaller) = host.make_room().await? {
                host.emit(RunEvent::MessageDropped { message_id: turn.message_id.clone() }).await;
                *turn = smaller;
                continue;
            }
        }
        let next = match failure.retryable {
            true => retry::next(settings, attempt, failure.retry_after_ms, host.jitter()),
            false => Next::GiveUp,
        };
        let Next::Wait(delay_ms) = next else {
            let error = RunError { kind: failure.kind, message: failure.message.clone(), retryable: failure.retryable };
            let text = partial.content.text();
            store_partial(host, turn, partial, StopReason::Error, Some(failure.message)).await?;
            return Ok(Reply::Failed { error, text });
        };
        host.emit(RunEvent::MessageDropped { message_id: turn.message_id.clone() }).await;
        attempt += 1;
        host.emit(RunEvent::Retry { attempt, max_attempts: settings.max_attempts, delay_ms, reason: failure.message })
            .await;
        tokio::select! {
            () = tokio::time::sleep(std::time::Duration::from_millis(delay_ms)) => {}
            () = cancel.cancelled() => return Ok(Reply::Aborted(String::new())),
        }
        turn.message_id = host.retry_message_id().await;
    }
}

enum Attempt {
    Done(Box<AssistantMessage>),
    Failed(Failure, Box<AssistantMessage>),
}

async fn attempt_once<H: RunHost>(host: &H, turn: &Turn, cancel: &CancellationToken) -> Attempt {
    host.emit(RunEvent::MessageStart { message_id: turn.message_id.clone() }).await;
    let mut stream = turn.provider.stream(turn.request.clone(), cancel.clone());
    let mut deltas = Deltas::default();
    loop {
        let event = tokio::select! {
            biased;
            event = stream.next() => event,
            () = deltas.due() => {
                deltas.tell(host).await;
                continue;
            }
        };
        match event {
            None => break,
            Some(StreamEvent::Started) => {}
            Some(StreamEvent::Text { index, delta }) => deltas.add(host, RunEvent::Text { index, delta }).await,
            Some(StreamEvent::Thinking { index, delta }) => deltas.add(host, RunEvent::Thinking { index, delta }).await,
            Some(StreamEvent::ToolCall { index, id, name, delta }) => {
                deltas.add(host, RunEvent::ToolCall { index, id, name, delta }).await;
            }
            Some(StreamEvent::Done(message)) => {
                deltas.tell(host).await;
                return Attempt::Done(message);
            }
            Some(StreamEvent::Failed { failure, partial }) => {
                deltas.tell(host).await;
                return Attempt::Failed(failure, partial);
            }
        }
    }
    deltas.tell(host).await;
    let failure = Failure {
        kind: RunErrorKind::Internal,
        message: "The provider's stream ended without an end.".into(),
        retryable: true,
        retry_after_ms: None,
    };
    Attempt::Failed(failure, Box::default())
}

/// Deltas on their way to those who watch. A model that writes faster than anybody reads is told of in larger
/// pieces: each one wakes everybody who watches.
#[derive(Default)]
struct Deltas {
    untold: Option<RunEvent>,
    told: Option<Instant>,
}

/// What comes within this time of the last piece is told as one; it is too short to be seen.
const TOGETHER: Duration = Duration::from_millis(10);

impl Deltas {
    async fn add<H: RunHost>(&mut self, host: &H, event: RunEvent) {
        let other = match &mut self.untold {
            Some(known) => known.join(event),
            None => Some(event),
        };
        if other.is_some() {
            self.tell(host).await;
            self.untold = other;
        }
        if self.told.is_none_or(|told| told.elapsed() >= TOGETHER) {
            self.tell(host).await;
        }
    }

    async fn tell<H: RunHost>(&mut self, host: &H) {
        if let Some(event) = self.untold.take() {
            host.emit(event).await;
            self.told = Some(Instant::now());
        }
    }

    /// When what is untold must be told.
    async fn due(&self) {
        match (&self.untold, self.told) {
            (Some(_), Some(told)) => tokio::time::sleep_until(told + TOGETHER).await,
            (Some(_), None) => {}
            (None, _) => std::future::pending().await,
        }
    }
}

/// Keeps what had come of a reply that is not whole. Its tool calls never ran and go; a reply of nothing is kept
/// only for its error.
async fn store_partial<H: RunHost>(
    host: &H,
    turn: &Turn,
    mut partial: AssistantMessage,
    stop_reason: StopReason,
    error_message: Option<String>,
) -> Result<(), HostFailure> {
    let mut blocks = partial.content.into_blocks();
    blocks.retain(|b| !matches!(b, Block::ToolCall(_)));
    partial.content = Content::Blocks(blocks);
    partial.stop_reason = stop_reason;
    partial.error_message = error_message;
    if partial.content.is_blank() && partial.error_message.is_none() {
        host.emit(RunEvent::MessageDropped { message_id: turn.message_id.clone() }).await;
        return Ok(());
    }
    if partial.model.is_empty() {
        partial.provider.clone_from(&turn.request.model.provider);
        partial.model.clone_from(&turn.request.model.model_id);
    }
    if partial.timestamp == 0 {
        partial.timestamp = host.now_ms();
    }
    host.store_reply(turn.message_id.clone(), partial).await
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use kli_protocol::record::ToolResultMessage;

    use super::*;
    use crate::agent::{CallInfo, Permission};
    use crate::tool::{Outline, Tool, ToolContext};

    /// Writes down what it is told, and when; nothing else is asked of it here.
    #[derive(Default)]
    struct Watcher(Mutex<Vec<(u128, String)>>, std::sync::OnceLock<Instant>);

    impl RunHost for Watcher {
        async fn emit(&self, event: RunEvent) {
            let began = *self.1.get_or_init(Instant::now);
            let told = match event {
                RunEvent::Text { index, delta } => format!("text {index} {delta}"),
                RunEvent::Thinking { delta, .. } => format!("thinking {delta}"),
                RunEvent::ToolCall { id, delta, .. } => format!("call {id} {delta}"),
                other => format!("{other:?}"),
            };
            self.0.lock().unwrap().push((began.elapsed().as_millis(), told));
        }

        async fn begin_turn(&self) -> Result<Turn, HostFailure> {
            unreachable!()
        }
        async fn store_reply(&self, _: String, _: AssistantMessage) -> Result<(), HostFailure> {
            unreachable!()
        }
        async fn store_result(&self, _: ToolResultMessage) -> Result<(), HostFailure> {
            unreachable!()
        }
        async fn permit(&self, _: Arc<dyn Tool>, _: CallInfo, _: Outline) -> Permission {
            unreachable!()
        }
        fn tool_context(&self, _: &str) -> ToolContext {
            unreachable!()
        }
        async fn end_turn(&self) -> Result<(), HostFailure> {
            unreachable!()
        }
        async fn on_disk(&self) -> Result<(), HostFailure> {
            unreachable!()
        }
        async fn more_to_say(&self) -> Result<bool, HostFailure> {
            unreachable!()
        }
        async fn anything_queued(&self) -> Result<bool, HostFailure> {
            unreachable!()
        }
        async fn make_room(&self) -> Result<Option<Turn>, HostFailure> {
            unreachable!()
        }
        async fn retry_message_id(&self) -> String {
            unreachable!()
        }
        fn now_ms(&self) -> u64 {
            0
        }
        fn jitter(&self) -> f64 {
            0.0
        }
    }

    fn text(index: u32, delta: &str) -> RunEvent {
        RunEvent::Text { index, delta: delta.into() }
    }

    fn call(id: &str, delta: &str) -> RunEvent {
        RunEvent::ToolCall { index: 1, id: id.into(), name: "ls".into(), delta: delta.into() }
    }

    /// Deltas with the pauses before them, and what is told of them when.
    #[tokio::test(start_paused = true)]
    async fn deltas_are_told_together() {
        let thinking = RunEvent::Thinking { index: 0, delta: "t".into() };
        let long = "x".repeat(5000);
        for (deltas, told) in [
            // A slow one is told at once, each time.
            (vec![(0, text(0, "a")), (30, text(0, "b"))], vec![(0, "text 0 a"), (30, "text 0 b")]),
            // Of a fast one the first at once, the others together, when it pauses too.
            (
                vec![(0, text(0, "a")), (1, text(0, "b")), (1, text(0, "c")), (50, text(0, "d"))],
                vec![(0, "text 0 a"), (10, "text 0 bc"), (52, "text 0 d")],
            ),
            (
                vec![(0, text(0, "a")), (4, text(0, "b")), (4, text(0, "c")), (4, text(0, "d"))],
                vec![(0, "text 0 a"), (10, "text 0 bc"), (12, "text 0 d")],
            ),
            // Another piece of the reply is another event.
            (
                vec![(0, thinking), (0, text(1, "a")), (0, text(1, "b")), (0, call("1", "{")), (0, call("2", "{"))],
                vec![(0, "thinking t"), (0, "text 1 ab"), (0, "call 1 {"), (0, "call 2 {")],
            ),
            (
                vec![(0, text(0, "a")), (0, text(0, &long)), (0, text(0, "b"))],
                vec![(0, "text 0 a"), (0, &format!("text 0 {long}")), (0, "text 0 b")],
            ),
        ] {
            let host = Watcher::default();
            let mut untold = Deltas::default();
            for (pause, delta) in deltas {
                let next = Instant::now() + Duration::from_millis(pause);
                loop {
                    tokio::select! {
                        biased;
                        () = tokio::time::sleep_until(next) => break,
                        () = untold.due() => untold.tell(&host).await,
                    }
                }
                untold.add(&host, delta).await;
            }
            untold.tell(&host).await;
            let seen = host.0.into_inner().unwrap();
            let seen: Vec<(u128, &str)> = seen.iter().map(|(at, told)| (*at, told.as_str())).collect();
            assert_eq!(seen, told);
        }
    }
}
