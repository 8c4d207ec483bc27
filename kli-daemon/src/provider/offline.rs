//! `demo/offline`: no language model, but a few fixed rules that drive the real loop without key or network.
//!
//! It reads the newest prompt, asks for tools when the prompt names a file, a directory, a pattern or a command,
//! quotes their results, and makes summaries by extracting lines. Everything else of the program is the real
//! thing: streaming, approvals, tools, the tree. The same prompt always gets the same answer.

mod plan;
mod summary;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt};
use kli_protocol::api::{ModelInfo, RunErrorKind};
use kli_protocol::record::{StopReason, Usage};
use tokio_util::sync::CancellationToken;

use super::Provider;
use crate::clock::Clock;
use crate::dialect::{Assembler, Failure, Request, Slot, Start, StreamEvent, rough_tokens};
use plan::{Plan, ToolUse};

pub const PROVIDER: &str = "demo";
pub const MODEL: &str = "offline";

/// Between two words, so that a person sees text arrive.
const PACE: Duration = Duration::from_millis(6);
/// However long the text.
const LONGEST: Duration = Duration::from_millis(1_200);

pub fn model() -> ModelInfo {
    ModelInfo {
        provider: PROVIDER.into(),
        model_id: MODEL.into(),
        name: "Offline demo (not a language model)".into(),
        context_window: 128_000,
        max_output: 8_192,
        reasoning: false,
        input: vec!["text".into()],
        available: true,
        ..ModelInfo::default()
    }
}

pub struct Offline {
    clock: Arc<dyn Clock>,
}

impl Offline {
    pub fn new(clock: Arc<dyn Clock>) -> Offline {
        Offline { clock }
    }
}

impl Provider for Offline {
    fn stream(&self, request: Request, cancel: CancellationToken) -> BoxStream<'static, StreamEvent> {
        let seed = self.clock.random() as u64;
        let start = Start { api: "offline", model: request.model.clone(), timestamp: self.clock.now_ms(), seed };
        let mut reply = Assembler::new(start);
        let script = script(plan::plan(&request), seed);
        let words = u32::try_from(script.len()).unwrap_or(u32::MAX).max(1);
        let pace = PACE.min(LONGEST / words);
        let written: usize = script.iter().map(Say::bytes).sum();
        reply.usage(Usage { input: rough_tokens(&request).max(1), output: tokens(written), ..Usage::default() });
        let performance = Performance { reply, script: script.into_iter(), pace, text: Slot::default(), over: false };
        stream::unfold((performance, cancel), |(mut performance, cancel)| async move {
            let events = performance.next(&cancel).await?;
            Some((stream::iter(events), (performance, cancel)))
        })
        .flatten()
        .boxed()
    }
}

fn tokens(bytes: usize) -> u64 {
    u64::try_from(bytes.div_ceil(4)).unwrap_or(u64::MAX)
}

/// One thing to say.
enum Say {
    Begin,
    Word(String),
    Call { id: String, call: ToolUse },
}

impl Say {
    fn bytes(&self) -> usize {
        match self {
            Say::Begin => 0,
            Say::Word(word) => word.len(),
            Say::Call { call, .. } => call.name.len() + call.arguments.to_string().len(),
        }
    }
}

fn script(plan: Plan, seed: u64) -> Vec<Say> {
    let mut script = vec![Say::Begin];
    script.extend(plan.text.split_inclusive(' ').map(|word| Say::Word(word.to_owned())));
    script.extend(plan.calls.into_iter().enumerate().map(|(n, call)| {
        let id = format!("demo_{:08x}_{}", seed & 0xffff_ffff, n + 1);
        Say::Call { id, call }
    }));
    script
}

struct Performance {
    reply: Assembler,
    script: std::vec::IntoIter<Say>,
    pace: Duration,
    text: Slot,
    over: bool,
}

impl Performance {
    async fn next(&mut self, cancel: &CancellationToken) -> Option<Vec<StreamEvent>> {
        if self.over {
            return None;
        }
        if cancel.is_cancelled() {
            return Some(self.abort());
        }
        let events = match self.script.next() {
            Some(Say::Begin) => return Some(vec![StreamEvent::Started]),
            Some(Say::Word(word)) => {
                self.reply.text(&mut self.text, &word);
                self.reply.take_events()
            }
            Some(Say::Call { id, call }) => {
                let slot = self.reply.open_call();
                self.reply.call_id(slot, &id);
                self.reply.call_name(slot, call.name);
                self.reply.call_arguments(slot, &call.arguments.to_string());
                self.reply.close_call(slot);
                self.reply.take_events()
            }
            None => {
                self.over = true;
                return Some(self.reply.done());
            }
        };
        tokio::select! {
            biased;
            () = cancel.cancelled() => {
                let mut events = events;
                events.extend(self.abort());
                Some(events)
            }
            () = tokio::time::sleep(self.pace) => Some(events),
        }
    }

    fn abort(&mut self) -> Vec<StreamEvent> {
        self.over = true;
        let failure = Failure::fatal(RunErrorKind::Interrupted, "The request was aborted.");
        self.reply.failed(failure, StopReason::Aborted)
    }
}
