//! Messages events → reply.

use std::collections::BTreeMap;

use kli_protocol::record::Usage;
use serde_json::{Value, json};

use crate::dialect::assembler::{CallSlot, Slot};
use crate::dialect::{Assembler, Decoder, Failure, Heard, Start, event, failure};
use crate::sse;

pub struct MessagesDecoder {
    reply: Assembler,
    /// Blocks by the provider's index.
    open: BTreeMap<u64, Open>,
    stopped: bool,
    ended: bool,
}

enum Open {
    Text(Slot),
    Thinking(Slot),
    /// `input` as the block began; deltas take its place.
    Call {
        slot: CallSlot,
        input: Option<Value>,
    },
    /// Of a kind that we do not know.
    Other,
}

impl MessagesDecoder {
    pub fn new(start: Start) -> MessagesDecoder {
        MessagesDecoder { reply: Assembler::new(start), open: BTreeMap::new(), stopped: false, ended: false }
    }

    fn take(&mut self, event: &Value) -> Result<Heard, Failure> {
        let index = event.get("index").and_then(Value::as_u64).unwrap_or(0);
        match event.get("type").and_then(Value::as_str).unwrap_or_default() {
            "message_start" => {
                self.count(event.pointer("/message/usage"));
                Ok(Heard::Content)
            }
            "content_block_start" => {
                if let Some(block) = event.get("content_block") {
                    self.begin(index, block);
                }
                Ok(Heard::Content)
            }
            "content_block_delta" => {
                let Some(delta) = event.get("delta") else { return Ok(Heard::Nothing) };
                self.delta(index, delta);
                // An empty delta is no better than a ping.
                let fields = delta.as_object().into_iter().flatten().filter(|(key, _)| *key != "type");
                let empty = fields.map(|(_, value)| value).all(|value| value.is_null() || value.as_str() == Some(""));
                Ok(if empty { Heard::Nothing } else { Heard::Content })
            }
            "content_block_stop" => {
                self.finish(index);
                Ok(Heard::Content)
            }
            "message_delta" => {
                self.count(event.get("usage"));
                match event.pointer("/delta/stop_reason").and_then(Value::as_str) {
                    Some(reason) => {
                        self.stop(reason);
                        Ok(Heard::Stopped)
                    }
                    None => Ok(Heard::Content),
                }
            }
            "message_stop" => {
                self.ended = true;
                Ok(Heard::End)
            }
            _ => match failure::in_stream(event) {
                Some(failure) => Err(failure),
                None => Ok(Heard::Nothing),
            },
        }
    }

    fn begin(&mut self, index: u64, block: &Value) {
        let text = |key: &str| block.get(key).and_then(Value::as_str).unwrap_or_default();
        let mut slot = Slot::default();
        let open = match text("type") {
            "text" => {
                self.reply.text(&mut slot, text("text"));
                Open::Text(slot)
            }
            "thinking" => {
                self.reply.thinking(&mut slot, text("thinking"));
                self.reply.thinking_signature(&mut slot, text("signature"));
                Open::Thinking(slot)
            }
            "redacted_thinking" => {
                self.reply.redacted(&mut slot, text("data"));
                Open::Other
            }
            "tool_use" => {
                let slot = self.reply.open_call();
                self.reply.call_id(slot, text("id"));
                self.reply.call_name(slot, text("name"));
                let input = block.get("input").filter(|input| input.as_object().is_some_and(|map| !map.is_empty()));
                Open::Call { slot, input: input.cloned() }
            }
            _ => Open::Other,
        };
        self.open.insert(index, open);
    }

    fn delta(&mut self, index: u64, delta: &Value) {
        let text = |key: &str| delta.get(key).and_then(Value::as_str).unwrap_or_default();
        match (text("type"), self.open.get_mut(&index)) {
            ("text_delta", Some(Open::Text(slot))) => self.reply.text(slot, text("text")),
            ("thinking_delta", Some(Open::Thinking(slot))) => self.reply.thinking(slot, text("thinking")),
            ("signature_delta", Some(Open::Thinking(slot))) => self.reply.thinking_signature(slot, text("signature")),
            ("input_json_delta", Some(Open::Call { slot, .. })) => {
                self.reply.call_arguments(*slot, text("partial_json"));
            }
            // A server that forgot to begin the block.
            ("text_delta", None) => {
                let mut slot = Slot::default();
                self.reply.text(&mut slot, text("text"));
                self.open.insert(index, Open::Text(slot));
            }
            _ => {}
        }
    }

    fn finish(&mut self, index: u64) {
        if let Some(Open::Call { slot, input }) = self.open.get_mut(&index) {
            if let Some(input) = input.take().filter(|_| self.reply.call_so_far(*slot).1.is_empty()) {
                self.reply.call_arguments(*slot, &input.to_string());
            }
            self.reply.close_call(*slot);
        }
    }

    fn stop(&mut self, reason: &str) {
        self.stopped = true;
        match reason {
            "max_tokens" | "model_context_window_exceeded" => self.reply.cut_off(),
            "refusal" => self.reply.refused("The model refused to answer."),
            _ => {}
        }
    }

    /// Counts are running totals: the last one said counts.
    fn count(&mut self, usage: Option<&Value>) {
        let Some(usage) = usage else { return };
        let mut counted = self.reply.usage_so_far();
        let set = |key: &str, field: &mut u64| {
            if let Some(number) = usage.get(key).and_then(Value::as_u64) {
                *field = number;
            }
        };
        set("input_tokens", &mut counted.input);
        set("output_tokens", &mut counted.output);
        set("cache_read_input_tokens", &mut counted.cache_read);
        set("cache_creation_input_tokens", &mut counted.cache_write);
        self.reply.usage(Usage { total_tokens: 0, ..counted });
    }
}

impl Decoder for MessagesDecoder {
    fn event(&mut self, event: &sse::Event) -> Result<Heard, Failure> {
        if event::is_done(event) {
            self.ended |= self.stopped;
            return Ok(if self.ended { Heard::End } else { Heard::Nothing });
        }
        event::read(event)?.map_or(Ok(Heard::Nothing), |event| self.take(&event))
    }

    fn body(&mut self, body: Value) -> Result<(), Failure> {
        let blocks = body.get("content").and_then(Value::as_array).into_iter().flatten();
        for (index, block) in (0u64..).zip(blocks) {
            self.begin(index, block);
            self.finish(index);
        }
        let delta = json!({ "type": "message_delta", "delta": { "stop_reason": body.get("stop_reason") }, "usage": body.get("usage") });
        self.take(&delta).map(|_| ())
    }

    fn complete(&self) -> bool {
        self.stopped || self.ended
    }

    fn assembler(&mut self) -> &mut Assembler {
        &mut self.reply
    }
}
