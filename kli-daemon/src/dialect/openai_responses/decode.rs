//! Responses events → reply. Only `response.completed` and `response.incomplete` are its end.

use std::collections::BTreeMap;

use kli_protocol::api::RunErrorKind;
use kli_protocol::record::Usage;
use serde_json::{Value, json};

use crate::dialect::assembler::{CallSlot, Slot};
use crate::dialect::{Assembler, Decoder, Failure, Heard, Start, event, failure};
use crate::sse;

pub struct ResponsesDecoder {
    reply: Assembler,
    /// Items by their place in the output, else by their id.
    items: BTreeMap<String, Item>,
    ended: bool,
}

enum Item {
    Message(Slot),
    Reasoning { slot: Slot, parts: u32 },
    Call(CallSlot),
}

impl ResponsesDecoder {
    pub fn new(start: Start) -> ResponsesDecoder {
        ResponsesDecoder { reply: Assembler::new(start), items: BTreeMap::new(), ended: false }
    }

    fn take(&mut self, event: &Value) -> Result<Heard, Failure> {
        let text = |key: &str| event.get(key).and_then(Value::as_str).unwrap_or_default();
        let kind = text("type");
        let key = key_of(event);
        match kind {
            "response.output_item.added" => {
                if let Some(item) = event.get("item") {
                    self.begin(key, item);
                }
            }
            "response.output_item.done" => {
                if let Some(item) = event.get("item") {
                    self.finish(key, item);
                }
            }
            "response.output_text.delta" => self.said(key, text("delta")),
            "response.refusal.delta" => {
                self.said(key, text("delta"));
                self.reply.refused("The model refused to answer.");
            }
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
                self.thought(key, text("delta"));
            }
            "response.reasoning_summary_part.added" => self.next_part(key),
            "response.function_call_arguments.delta" => {
                if let Some(Item::Call(slot)) = self.items.get(&key) {
                    self.reply.call_arguments(*slot, text("delta"));
                }
            }
            "response.function_call_arguments.done" => {
                if let Some(Item::Call(slot)) = self.items.get(&key) {
                    self.reply.set_call_arguments(*slot, text("arguments"));
                }
            }
            // Some servers call every end `response.completed`, also one that failed.
            "response.completed" | "response.done"
                if event.pointer("/response/error").is_some_and(Value::is_object) =>
            {
                return Err(failed(event));
            }
            "response.completed" | "response.incomplete" | "response.done" => {
                if let Some(response) = event.get("response") {
                    self.take_output(response);
                    self.end(response);
                }
                self.ended = true;
                return Ok(Heard::End);
            }
            "response.failed" => return Err(failed(event)),
            _ => {
                if let Some(failure) = failure::in_stream(event) {
                    return Err(failure);
                }
                // Queued, in progress, keep-alive: nothing that brings the reply forward.
                let forward = kind.ends_with(".delta") || kind.ends_with(".done") || kind.ends_with(".added");
                return Ok(if forward { Heard::Content } else { Heard::Nothing });
            }
        }
        // An empty delta is no better than a ping.
        let empty = kind.ends_with(".delta") && text("delta").is_empty();
        Ok(if empty { Heard::Nothing } else { Heard::Content })
    }

    fn begin(&mut self, key: String, item: &Value) {
        let text = |key: &str| item.get(key).and_then(Value::as_str).unwrap_or_default();
        let open = match text("type") {
            "message" => Item::Message(Slot::default()),
            "reasoning" => Item::Reasoning { slot: Slot::default(), parts: 0 },
            "function_call" => {
                let slot = self.reply.open_call();
                let id = if text("call_id").is_empty() { text("id") } else { text("call_id") };
                self.reply.call_id(slot, id);
                self.reply.call_name(slot, text("name"));
                self.reply.call_arguments(slot, text("arguments"));
                Item::Call(slot)
            }
            _ => return,
        };
        self.items.insert(key, open);
    }

    fn said(&mut self, key: String, delta: &str) {
        if let Item::Message(slot) = self.items.entry(key).or_insert_with(|| Item::Message(Slot::default())) {
            self.reply.text(slot, delta);
        }
    }

    fn thought(&mut self, key: String, delta: &str) {
        let begin = || Item::Reasoning { slot: Slot::default(), parts: 0 };
        if let Item::Reasoning { slot, .. } = self.items.entry(key).or_insert_with(begin) {
            self.reply.thinking(slot, delta);
        }
    }

    /// A summary has paragraphs.
    fn next_part(&mut self, key: String) {
        if let Some(Item::Reasoning { slot, parts }) = self.items.get_mut(&key) {
            *parts += 1;
            if *parts > 1 {
                self.reply.thinking(slot, "\n\n");
            }
        }
    }

    /// The item as a whole: what no delta told, and what must come back.
    fn finish(&mut self, key: String, item: &Value) {
        if !self.items.contains_key(&key) {
            self.begin(key.clone(), item);
        }
        match self.items.get_mut(&key) {
            Some(Item::Message(slot)) => {
                if !slot.is_open() {
                    for part in item.get("content").and_then(Value::as_array).into_iter().flatten() {
                        if let Some(text) = part.get("text").or(part.get("refusal")).and_then(Value::as_str) {
                            self.reply.text(slot, text);
                        }
                        if part.get("type").and_then(Value::as_str) == Some("refusal") {
                            self.reply.refused("The model refused to answer.");
                        }
                    }
                }
                if let Some(phase) = item.get("phase").filter(|phase| phase.is_string()) {
                    self.reply.text_signature(slot, &json!({ "phase": phase }).to_string());
                }
            }
            Some(Item::Reasoning { slot, .. }) => {
                if !slot.is_open() {
                    let parts = item.get("summary").and_then(Value::as_array).into_iter().flatten();
                    let texts: Vec<&str> = parts.filter_map(|part| part.get("text").and_then(Value::as_str)).collect();
                    self.reply.thinking(slot, &texts.join("\n\n"));
                }
                if item.get("encrypted_content").is_some_and(Value::is_string) {
                    self.reply.thinking_signature(slot, &item.to_string());
                }
            }
            Some(Item::Call(slot)) => {
                let slot = *slot;
                let text = |key: &str| item.get(key).and_then(Value::as_str).unwrap_or_default();
                self.reply.call_id(slot, text("call_id"));
                self.reply.call_name(slot, text("name"));
                self.reply.set_call_arguments(slot, text("arguments"));
                self.reply.close_call(slot);
            }
            None => {}
        }
    }

    /// The items of a server that tells them only at the end, or all at once.
    fn take_output(&mut self, response: &Value) {
        if !self.reply.is_empty() {
            return;
        }
        for (index, item) in response.get("output").and_then(Value::as_array).into_iter().flatten().enumerate() {
            self.finish(format!("{index:08}"), item);
        }
    }

    fn end(&mut self, response: &Value) {
        let number = |path: &str| response.pointer(path).and_then(Value::as_u64).unwrap_or(0);
        let cached = number("/usage/input_tokens_details/cached_tokens");
        self.reply.usage(Usage {
            input: number("/usage/input_tokens").saturating_sub(cached),
            output: number("/usage/output_tokens"),
            cache_read: cached,
            total_tokens: number("/usage/total_tokens"),
            ..Usage::default()
        });
        match response.pointer("/incomplete_details/reason").and_then(Value::as_str) {
            Some("content_filter") => self.reply.refused("The provider's content filter stopped the reply."),
            Some(_) => self.reply.cut_off(),
            None if response.get("status").and_then(Value::as_str) == Some("incomplete") => self.reply.cut_off(),
            None => {}
        }
    }
}

fn failed(event: &Value) -> Failure {
    let told = event.get("response").filter(|response| response.get("error").is_some_and(Value::is_object));
    told.and_then(failure::in_stream)
        .unwrap_or_else(|| Failure::passing(RunErrorKind::Overloaded, "The provider failed and gave no reason."))
}

fn key_of(event: &Value) -> String {
    match event.get("output_index").and_then(Value::as_u64) {
        Some(index) => format!("{index:08}"),
        None => {
            let id = event.get("item_id").or_else(|| event.pointer("/item/id")).and_then(Value::as_str);
            id.unwrap_or_default().to_owned()
        }
    }
}

impl Decoder for ResponsesDecoder {
    fn event(&mut self, event: &sse::Event) -> Result<Heard, Failure> {
        event::read(event)?.map_or(Ok(Heard::Nothing), |event| self.take(&event))
    }

    fn body(&mut self, body: Value) -> Result<(), Failure> {
        if body.get("status").and_then(Value::as_str) == Some("failed") {
            return self.take(&json!({ "type": "response.failed", "response": body })).map(|_| ());
        }
        if !body.get("output").is_some_and(Value::is_array) {
            return Ok(());
        }
        self.take_output(&body);
        self.end(&body);
        self.ended = true;
        Ok(())
    }

    fn complete(&self) -> bool {
        self.ended
    }

    fn assembler(&mut self) -> &mut Assembler {
        &mut self.reply
    }
}
