//! Chat completion chunks → reply, whatever way a server breaks its tool calls into pieces.

use std::collections::BTreeMap;

use kli_protocol::api::RunErrorKind;
use kli_protocol::record::Usage;
use serde_json::Value;

use super::encode::THINKING_FIELDS;
use crate::dialect::assembler::{CallSlot, Slot};
use crate::dialect::{Assembler, Decoder, Failure, Heard, Start, arguments, event, failure};
use crate::sse;

pub struct ChatDecoder {
    reply: Assembler,
    text: Slot,
    thinking: Slot,
    /// The thinking before the text or the calls.
    thought: Slot,
    calls: Vec<Piecemeal>,
    /// OpenRouter's `reasoning_details`, whose pieces carry signatures; by their index.
    details: BTreeMap<u64, Value>,
    /// The field that thinking came in.
    field: Option<&'static str>,
    stopped: bool,
    ended: bool,
}

/// A tool call that comes in pieces, and what tells which pieces are its own.
struct Piecemeal {
    choice: u64,
    index: Option<u64>,
    id: String,
    slot: CallSlot,
    /// Its name came once more, alone, after its arguments were whole: arguments that follow are another call's.
    named_again: bool,
}

impl ChatDecoder {
    pub fn new(start: Start) -> ChatDecoder {
        ChatDecoder {
            reply: Assembler::new(start),
            text: Slot::default(),
            thinking: Slot::default(),
            thought: Slot::default(),
            calls: Vec::new(),
            details: BTreeMap::new(),
            field: None,
            stopped: false,
            ended: false,
        }
    }

    fn chunk(&mut self, chunk: &Value) -> Result<Heard, Failure> {
        if let Some(failure) = failure::in_stream(chunk) {
            return Err(failure);
        }
        let (before, was_stopped) = (self.reply.bytes(), self.stopped);
        for choice in chunk.get("choices").and_then(Value::as_array).into_iter().flatten() {
            self.choice(choice)?;
        }
        // Groq and Kimi have usage in places of their own.
        let usage = [chunk.get("usage"), chunk.pointer("/x_groq/usage"), chunk.pointer("/choices/0/usage")];
        if let Some(usage) = usage.into_iter().flatten().find(|usage| usage.is_object()) {
            self.reply.usage(read_usage(usage));
        }
        Ok(Heard::of_chunk(self.reply.bytes() > before, self.stopped, was_stopped))
    }

    fn choice(&mut self, choice: &Value) -> Result<(), Failure> {
        if let Some(failure) = failure::in_stream(choice) {
            return Err(failure);
        }
        let number = choice.get("index").and_then(Value::as_u64).unwrap_or(0);
        // A server that does not stream says `message`; some send both, the whole message at the end again.
        let delta = [choice.get("delta"), choice.get("message")].into_iter().flatten().find(|d| d.is_object());
        if let Some(delta) = delta {
            self.delta(number, delta);
        }
        if let Some(reason) = choice.get("finish_reason").and_then(Value::as_str).filter(|r| !r.is_empty()) {
            match reason {
                "error" | "insufficient_system_resource" | "engine_overloaded" => {
                    let message = format!("The provider failed in the middle of the reply ({reason}).");
                    return Err(Failure::passing(RunErrorKind::Overloaded, message));
                }
                "length" | "max_tokens" | "model_length" => self.reply.cut_off(),
                "content_filter" | "safety" | "refusal" | "sensitive" => {
                    self.reply.refused("The provider's content filter stopped the reply.");
                }
                _ => {}
            }
            self.stopped = true;
        }
        Ok(())
    }

    fn delta(&mut self, choice: u64, delta: &Value) {
        self.think(delta);
        match delta.get("content") {
            Some(Value::String(text)) => self.said(text),
            // Mistral's thinking models send parts.
            Some(Value::Array(parts)) => {
                for part in parts {
                    match part.get("type").and_then(Value::as_str) {
                        Some("thinking") => {
                            let inner = part.get("thinking").and_then(Value::as_array).into_iter().flatten();
                            for text in inner.filter_map(|t| t.get("text").and_then(Value::as_str)) {
                                self.thinking_text(text);
                            }
                        }
                        _ => {
                            if let Some(text) = part.get("text").and_then(Value::as_str) {
                                self.said(text);
                            }
                        }
                    }
                }
            }
            _ => {}
        }
        if let Some(refusal) = delta.get("refusal").and_then(Value::as_str).filter(|r| !r.is_empty()) {
            self.said(refusal);
            self.reply.refused("The model refused to answer.");
        }
        for call in delta.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
            self.call(choice, call);
        }
        // The form before tool calls had a list.
        if let Some(function) = delta.get("function_call").filter(|f| f.is_object()) {
            self.call(choice, &serde_json::json!({ "index": 0, "function": function }));
        }
    }

    fn said(&mut self, text: &str) {
        if !text.trim().is_empty() {
            self.end_of_thinking();
        }
        self.reply.text(&mut self.text, text);
    }

    fn think(&mut self, delta: &Value) {
        let mut told = false;
        for field in THINKING_FIELDS {
            if let Some(text) = delta.get(field).and_then(Value::as_str).filter(|text| !text.is_empty()) {
                self.field = Some(field);
                self.thinking_text(text);
                told = true;
                // Some servers send the same text under two names.
                break;
            }
        }
        for detail in delta.get("reasoning_details").and_then(Value::as_array).into_iter().flatten() {
            if !told && let Some(text) = detail.get("text").or(detail.get("summary")).and_then(Value::as_str) {
                self.thinking_text(text);
            }
            self.detail(detail);
        }
    }

    fn thinking_text(&mut self, text: &str) {
        self.reply.thinking(&mut self.thinking, text);
    }

    /// Joins the pieces of a detail: text and data grow, all else is as last said.
    fn detail(&mut self, detail: &Value) {
        let Value::Object(piece) = detail else { return };
        self.reply.grow(piece.values().filter_map(Value::as_str).map(str::len).sum());
        let next = self.details.last_key_value().map_or(0, |(at, _)| at + 1);
        let index = piece.get("index").and_then(Value::as_u64).unwrap_or(next);
        let Value::Object(whole) = self.details.entry(index).or_insert_with(|| Value::Object(Default::default()))
        else {
            return;
        };
        for (key, value) in piece {
            match (whole.get_mut(key), value) {
                (Some(Value::String(old)), Value::String(new))
                    if matches!(key.as_str(), "text" | "summary" | "data") =>
                {
                    old.push_str(new);
                }
                (Some(_), Value::Null) => {}
                _ => {
                    whole.insert(key.clone(), value.clone());
                }
            }
        }
    }

    /// Thinking that comes after this is another block.
    fn end_of_thinking(&mut self) {
        self.sign_thinking();
        if self.thinking.is_open() {
            self.thought = std::mem::take(&mut self.thinking);
        }
    }

    fn sign_thinking(&mut self) {
        if let Some(field) = self.field {
            self.reply.set_thinking_signature(&self.thinking, field.to_owned());
        }
    }

    fn call(&mut self, choice: u64, piece: &Value) {
        let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
        let function = piece.get("function").unwrap_or(piece);
        let name = text(function.get("name"));
        let id = text(piece.get("id"));
        let arguments = match function.get("arguments") {
            Some(Value::String(text)) => text.clone(),
            Some(object @ Value::Object(_)) => object.to_string(),
            _ => String::new(),
        };
        let index = piece.get("index").and_then(Value::as_u64);
        if id.is_empty() && name.is_empty() && arguments.is_empty() {
            return;
        }
        self.end_of_thinking();
        let mut name = name;
        let place = self.find_call(choice, index, &id, &name, &arguments).unwrap_or_else(|| {
            if let Some(before) = self.calls.last().filter(|call| call.named_again && name.is_empty()) {
                self.reply.call_so_far(before.slot).0.clone_into(&mut name);
            }
            let slot = self.reply.open_call();
            self.calls.push(Piecemeal { choice, index, id: String::new(), slot, named_again: false });
            // Text after a call is another block.
            self.text = Slot::default();
            self.calls.len() - 1
        });
        let Some(call) = self.calls.get_mut(place) else { return };
        if call.id.is_empty() {
            call.id.clone_from(&id);
        }
        let slot = call.slot;
        let (old_name, old_arguments) = self.reply.call_so_far(slot);
        call.named_again = arguments.is_empty() && name == old_name && arguments::is_whole(old_arguments);
        self.reply.call_id(slot, &id);
        self.reply.call_name(slot, &name);
        // Gemini behind this format.
        if let Some(signature) = piece.pointer("/extra_content/google/thought_signature").and_then(Value::as_str) {
            self.reply.call_signature(slot, signature);
        }
        self.reply.call_arguments(slot, &arguments);
    }

    /// Which call a piece goes on with; none: it begins one.
    fn find_call(&self, choice: u64, index: Option<u64>, id: &str, name: &str, arguments: &str) -> Option<usize> {
        let mut mine = self.calls.iter().enumerate().filter(|(_, call)| call.choice == choice);
        let (place, call) = match index {
            Some(_) => mine.rfind(|(_, call)| call.index == index)?,
            None if !id.is_empty() => match mine.rfind(|(_, call)| call.id == id || call.id.is_empty()) {
                Some((place, call)) if call.id == id => return Some(place),
                Some(other) => other,
                None => return None,
            },
            None => mine.next_back()?,
        };
        let (old_name, old_arguments) = self.reply.call_so_far(call.slot);
        let whole = arguments::is_whole(old_arguments);
        let begins = if call.id.is_empty() || id.is_empty() {
            // Without ids, a name and arguments after a whole call begin another; so does another name.
            let named = !name.is_empty() && (!arguments.is_empty() || !old_name.is_empty() && name != old_name);
            whole && (named || call.named_again && !arguments.is_empty())
        } else {
            // Servers that give each call index 0. Some, though, make up an id for each piece of one call.
            call.id != id && !name.is_empty() && !old_name.is_empty() && (whole || old_arguments.is_empty())
        };
        (!begins).then_some(place)
    }
}

impl Decoder for ChatDecoder {
    fn event(&mut self, event: &sse::Event) -> Result<Heard, Failure> {
        if event::is_done(event) {
            self.ended = true;
            return Ok(Heard::End);
        }
        event::read(event)?.map_or(Ok(Heard::Nothing), |chunk| self.chunk(&chunk))
    }

    fn body(&mut self, body: Value) -> Result<(), Failure> {
        self.chunk(&body)?;
        self.stopped |= body.get("choices").and_then(Value::as_array).is_some_and(|choices| !choices.is_empty());
        Ok(())
    }

    fn complete(&self) -> bool {
        self.stopped || self.ended && !(self.reply.is_empty() && self.reply.usage_so_far() == Usage::default())
    }

    /// Thinking gets what must come back with it.
    fn seal(&mut self) {
        self.end_of_thinking();
        if !self.details.is_empty() {
            let details = Value::Array(std::mem::take(&mut self.details).into_values().collect()).to_string();
            if self.thought.is_open() {
                self.reply.set_thinking_signature(&self.thought, details);
            } else {
                // All of it is hidden.
                self.reply.redacted(&mut self.thought, &details);
            }
        }
    }

    fn assembler(&mut self) -> &mut Assembler {
        &mut self.reply
    }
}

/// `prompt_tokens` counts what came from the cache as well; ours do not.
fn read_usage(usage: &Value) -> Usage {
    let number = |path: &str| usage.pointer(path).and_then(Value::as_u64);
    let prompt = number("/prompt_tokens").unwrap_or(0);
    let cached = number("/prompt_tokens_details/cached_tokens")
        .or_else(|| number("/prompt_cache_hit_tokens"))
        .or_else(|| number("/cached_tokens"))
        .unwrap_or(0)
        .min(prompt);
    let written = number("/prompt_tokens_details/cache_write_tokens").unwrap_or(0).min(prompt - cached);
    let mut output = number("/completion_tokens").unwrap_or(0);
    let total = number("/total_tokens").unwrap_or(0);
    // xAI counts reasoning beside the completion, all others within it.
    if let Some(reasoning) = number("/completion_tokens_details/reasoning_tokens")
        && total == prompt.saturating_add(output).saturating_add(reasoning)
    {
        output = output.saturating_add(reasoning);
    }
    Usage {
        input: prompt - cached - written,
        output,
        cache_read: cached,
        cache_write: written,
        total_tokens: total,
        ..Usage::default()
    }
}
