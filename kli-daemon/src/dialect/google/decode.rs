//! generateContent chunks → reply.

use kli_protocol::api::RunErrorKind;
use kli_protocol::record::Usage;
use serde_json::Value;

use super::names::own_name;
use crate::dialect::assembler::Slot;
use crate::dialect::{Assembler, Decoder, Failure, Heard, Start, event, failure};
use crate::sse;

pub struct GeminiDecoder {
    reply: Assembler,
    text: Slot,
    thinking: Slot,
    stopped: bool,
}

impl GeminiDecoder {
    pub fn new(start: Start) -> GeminiDecoder {
        GeminiDecoder { reply: Assembler::new(start), text: Slot::default(), thinking: Slot::default(), stopped: false }
    }

    fn chunk(&mut self, chunk: &Value) -> Result<Heard, Failure> {
        if let Some(failure) = failure::in_stream(chunk) {
            return Err(failure);
        }
        if let Some(usage) = chunk.get("usageMetadata") {
            self.count(usage);
        }
        if let Some(reason) = chunk.pointer("/promptFeedback/blockReason").and_then(Value::as_str) {
            self.reply.refused(format!("The provider refuses the prompt ({reason})."));
            self.stopped = true;
        }
        let (before, was_stopped) = (self.reply.bytes(), self.stopped);
        // Only one candidate was asked for.
        if let Some(candidate) = chunk.get("candidates").and_then(Value::as_array).and_then(|list| list.first()) {
            for part in candidate.pointer("/content/parts").and_then(Value::as_array).into_iter().flatten() {
                self.part(part);
            }
            if let Some(reason) = candidate.get("finishReason").and_then(Value::as_str) {
                self.stop(reason, candidate.get("finishMessage").and_then(Value::as_str))?;
            }
        }
        Ok(Heard::of_chunk(self.reply.bytes() > before, self.stopped, was_stopped))
    }

    fn part(&mut self, part: &Value) {
        let signature = part.get("thoughtSignature").and_then(Value::as_str);
        if let Some(call) = part.get("functionCall") {
            let slot = self.reply.open_call();
            self.reply.call_id(slot, call.get("id").and_then(Value::as_str).unwrap_or_default());
            self.reply.call_name(slot, own_name(call.get("name").and_then(Value::as_str).unwrap_or_default()));
            if let Some(arguments) = call.get("args").filter(|arguments| !arguments.is_null()) {
                self.reply.call_arguments(slot, &arguments.to_string());
            }
            if let Some(signature) = signature {
                self.reply.call_signature(slot, signature);
            }
            self.reply.close_call(slot);
            self.text = Slot::default();
            self.thinking = Slot::default();
            return;
        }
        let Some(text) = part.get("text").and_then(Value::as_str) else { return };
        if part.get("thought").and_then(Value::as_bool) == Some(true) {
            self.reply.thinking(&mut self.thinking, text);
            if let Some(signature) = signature {
                self.reply.set_thinking_signature(&self.thinking, signature.to_owned());
            }
        } else {
            if !text.trim().is_empty() {
                self.thinking = Slot::default();
            }
            self.reply.text(&mut self.text, text);
            if let Some(signature) = signature {
                self.reply.text_signature(&self.text, signature);
            }
        }
    }

    fn stop(&mut self, reason: &str, message: Option<&str>) -> Result<(), Failure> {
        match reason {
            "FINISH_REASON_UNSPECIFIED" => return Ok(()),
            "MAX_TOKENS" => self.reply.cut_off(),
            "MALFORMED_FUNCTION_CALL"
            | "MALFORMED_RESPONSE"
            | "UNEXPECTED_TOOL_CALL"
            | "TOO_MANY_TOOL_CALLS"
            | "MISSING_THOUGHT_SIGNATURE"
            | "OTHER" => {
                let why = failure::quote(message.unwrap_or(reason));
                return Err(Failure::passing(
                    RunErrorKind::Internal,
                    format!("The model's reply came to nothing ({why})."),
                ));
            }
            // What was refused may stand before it: "IMAGE_SAFETY".
            "LANGUAGE" | "BLOCKLIST" | "SPII" => self.refuse(reason),
            _ if ["SAFETY", "RECITATION", "PROHIBITED_CONTENT"].iter().any(|end| reason.ends_with(end)) => {
                self.refuse(reason);
            }
            // Servers that speak the format have words of their own for an ordinary end.
            _ => {}
        }
        self.stopped = true;
        Ok(())
    }

    fn refuse(&mut self, reason: &str) {
        self.reply.refused(format!("The provider stopped the reply ({reason})."));
    }

    fn count(&mut self, usage: &Value) {
        let number = |key: &str| usage.get(key).and_then(Value::as_u64).unwrap_or(0);
        let cached = number("cachedContentTokenCount");
        let prompt = number("promptTokenCount").saturating_add(number("toolUsePromptTokenCount"));
        self.reply.usage(Usage {
            input: prompt.saturating_sub(cached),
            output: number("candidatesTokenCount").saturating_add(number("thoughtsTokenCount")),
            cache_read: cached,
            total_tokens: number("totalTokenCount"),
            ..Usage::default()
        });
    }
}

impl Decoder for GeminiDecoder {
    fn event(&mut self, event: &sse::Event) -> Result<Heard, Failure> {
        event::read(event)?.map_or(Ok(Heard::Nothing), |chunk| self.chunk(&chunk))
    }

    /// Without `alt=sse` a server sends the chunks as a list.
    fn body(&mut self, body: Value) -> Result<(), Failure> {
        match body {
            Value::Array(chunks) => chunks.iter().try_for_each(|chunk| self.chunk(chunk).map(|_| ())),
            chunk => self.chunk(&chunk).map(|_| ()),
        }
    }

    fn complete(&self) -> bool {
        self.stopped
    }

    fn assembler(&mut self) -> &mut Assembler {
        &mut self.reply
    }
}
