//! Replies in the wire formats.

use serde_json::{Value, json};

use super::Dialect;
use super::reply::{End, Step};

/// The body of a failure.
pub fn error(dialect: Option<Dialect>, status: u16, kind: &str, message: &str) -> Vec<u8> {
    let body = match dialect {
        Some(Dialect::Anthropic) => json!({ "type": "error", "error": { "type": kind, "message": message } }),
        Some(Dialect::Google) => {
            let name = if status == 429 { "RESOURCE_EXHAUSTED" } else { "INVALID_ARGUMENT" };
            json!({ "error": { "code": status, "message": message, "status": name } })
        }
        _ => json!({ "error": { "message": message, "type": kind, "param": null, "code": null } }),
    };
    body.to_string().into_bytes()
}

/// One streamed message in the making.
pub struct Stream {
    dialect: Dialect,
    usage: (u64, u64),
    begun: bool,
    /// The blocks so far: the open one is the last.
    blocks: Vec<Block>,
    is_open: bool,
}

#[derive(Clone, PartialEq)]
enum Block {
    Text(String),
    Thinking(String),
    Call(String, String, String),
}

impl Stream {
    pub fn new(dialect: Dialect, usage: (u64, u64)) -> Stream {
        Stream { dialect, usage, begun: false, blocks: Vec::new(), is_open: false }
    }

    /// The events for one step.
    pub fn step(&mut self, step: &Step) -> String {
        let mut out = self.begin();
        match self.dialect {
            Dialect::OpenAiChat => self.chat(step, &mut out),
            Dialect::Anthropic => self.anthropic(step, &mut out),
            Dialect::OpenAiResponses => self.responses(step, &mut out),
            Dialect::Google => self.google(step, &mut out),
        }
        out
    }

    fn begin(&mut self) -> String {
        if std::mem::replace(&mut self.begun, true) {
            return String::new();
        }
        let (input, _) = self.usage;
        match self.dialect {
            Dialect::Anthropic => {
                let usage = json!({ "input_tokens": input, "output_tokens": 1, "cache_read_input_tokens": 0 });
                let message = json!({ "id": "msg_1", "type": "message", "role": "assistant", "model": "m1",
                    "content": [], "stop_reason": null, "usage": usage });
                named(json!({ "type": "message_start", "message": message }))
            }
            Dialect::OpenAiResponses => {
                let response = json!({ "id": "resp_1", "object": "response", "status": "in_progress", "output": [] });
                named(json!({ "type": "response.created", "response": response }))
            }
            Dialect::OpenAiChat | Dialect::Google => String::new(),
        }
    }

    fn calls(&self) -> usize {
        self.blocks.iter().filter(|block| matches!(block, Block::Call(..))).count()
    }

    fn chat(&mut self, step: &Step, out: &mut String) {
        let delta = match step {
            Step::Text(text) => json!({ "role": "assistant", "content": text }),
            Step::Thinking(text) => json!({ "role": "assistant", "reasoning_content": text }),
            Step::Call(id, name, arguments) => {
                let function = json!({ "name": name, "arguments": arguments });
                let call = json!({ "index": self.calls(), "id": id, "type": "function", "function": function });
                self.blocks.push(Block::Call(id.clone(), name.clone(), arguments.clone()));
                json!({ "role": "assistant", "content": null, "tool_calls": [call] })
            }
            Step::End(end) => {
                let reason = match end {
                    End::Done => "stop",
                    End::Calls => "tool_calls",
                    End::Length => "length",
                };
                let (input, output) = self.usage;
                let usage =
                    json!({ "prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output });
                let choice = json!({ "index": 0, "delta": {}, "finish_reason": reason });
                out.push_str(&data(json!({ "choices": [choice] })));
                out.push_str(&data(json!({ "choices": [], "usage": usage })));
                out.push_str("data: [DONE]\n\n");
                return;
            }
            Step::Raw(_) | Step::Hold(_) | Step::Pause(_) | Step::Reset => return,
        };
        out.push_str(&data(json!({ "choices": [{ "index": 0, "delta": delta }] })));
    }

    /// Takes text or thinking into the open block of its kind, or opens a new one; gives its number and whether
    /// it is new, after closing the one before by `close`.
    fn enter(&mut self, block: Block, out: &mut String, close: impl Fn(usize, &Block) -> String) -> (usize, bool) {
        if self.is_open {
            let index = self.blocks.len().saturating_sub(1);
            match (self.blocks.last_mut(), &block) {
                (Some(Block::Text(so_far)), Block::Text(more))
                | (Some(Block::Thinking(so_far)), Block::Thinking(more)) => {
                    so_far.push_str(more);
                    return (index, false);
                }
                (Some(last), _) => out.push_str(&close(index, last)),
                (None, _) => {}
            }
        }
        self.blocks.push(block);
        self.is_open = true;
        (self.blocks.len() - 1, true)
    }

    fn anthropic(&mut self, step: &Step, out: &mut String) {
        let close = |index: usize, block: &Block| {
            let mut text = String::new();
            if matches!(block, Block::Thinking(_)) {
                let delta = json!({ "type": "signature_delta", "signature": format!("c2ln{index}") });
                text.push_str(&named(json!({ "type": "content_block_delta", "index": index, "delta": delta })));
            }
            text + &named(json!({ "type": "content_block_stop", "index": index }))
        };
        let (block, start, delta) = match step {
            Step::Text(text) => (
                Block::Text(text.clone()),
                json!({ "type": "text", "text": "" }),
                json!({ "type": "text_delta", "text": text }),
            ),
            Step::Thinking(text) => (
                Block::Thinking(text.clone()),
                json!({ "type": "thinking", "thinking": "", "signature": "" }),
                json!({ "type": "thinking_delta", "thinking": text }),
            ),
            Step::Call(id, name, arguments) => (
                Block::Call(id.clone(), name.clone(), arguments.clone()),
                json!({ "type": "tool_use", "id": id, "name": name, "input": {} }),
                json!({ "type": "input_json_delta", "partial_json": arguments }),
            ),
            Step::End(end) => {
                if let (true, Some(last)) = (self.is_open, self.blocks.last()) {
                    out.push_str(&close(self.blocks.len() - 1, last));
                }
                let reason = match end {
                    End::Done => "end_turn",
                    End::Calls => "tool_use",
                    End::Length => "max_tokens",
                };
                let (input, output) = self.usage;
                let usage = json!({ "input_tokens": input, "output_tokens": output });
                let delta = json!({ "stop_reason": reason, "stop_sequence": null });
                out.push_str(&named(json!({ "type": "message_delta", "delta": delta, "usage": usage })));
                out.push_str(&named(json!({ "type": "message_stop" })));
                return;
            }
            Step::Raw(_) | Step::Hold(_) | Step::Pause(_) | Step::Reset => return,
        };
        let (index, is_new) = self.enter(block, out, close);
        if is_new {
            out.push_str(&named(json!({ "type": "content_block_start", "index": index, "content_block": start })));
        }
        out.push_str(&named(json!({ "type": "content_block_delta", "index": index, "delta": delta })));
    }

    fn responses(&mut self, step: &Step, out: &mut String) {
        let done = |index: usize, block: &Block| {
            named(
                json!({ "type": "response.output_item.done", "output_index": index, "item": item(index, block, true) }),
            )
        };
        let (block, kind, delta) = match step {
            Step::Text(text) => (Block::Text(text.clone()), "response.output_text.delta", text),
            Step::Thinking(text) => (Block::Thinking(text.clone()), "response.reasoning_summary_text.delta", text),
            Step::Call(id, name, arguments) => (
                Block::Call(id.clone(), name.clone(), arguments.clone()),
                "response.function_call_arguments.delta",
                arguments,
            ),
            Step::End(end) => {
                if let (true, Some(last)) = (self.is_open, self.blocks.last()) {
                    out.push_str(&done(self.blocks.len() - 1, last));
                }
                let items: Vec<Value> = self.blocks.iter().enumerate().map(|(i, block)| item(i, block, true)).collect();
                let (input, output) = self.usage;
                let usage = json!({ "input_tokens": input, "output_tokens": output, "total_tokens": input + output,
                    "input_tokens_details": { "cached_tokens": 0 }, "output_tokens_details": { "reasoning_tokens": 0 } });
                let mut response = json!({ "id": "resp_1", "object": "response", "status": "completed",
                    "output": items, "usage": usage });
                let kind = if *end == End::Length {
                    response["status"] = json!("incomplete");
                    response["incomplete_details"] = json!({ "reason": "max_output_tokens" });
                    "response.incomplete"
                } else {
                    "response.completed"
                };
                out.push_str(&named(json!({ "type": kind, "response": response })));
                return;
            }
            Step::Raw(_) | Step::Hold(_) | Step::Pause(_) | Step::Reset => return,
        };
        let (index, is_new) = self.enter(block.clone(), out, done);
        if is_new {
            let added = item(index, &block, false);
            out.push_str(&named(json!({ "type": "response.output_item.added", "output_index": index, "item": added })));
        }
        let id = added_id(index, &block);
        let mut event = json!({ "type": kind, "output_index": index, "item_id": id, "delta": delta });
        match block {
            Block::Text(_) => event["content_index"] = json!(0),
            Block::Thinking(_) => event["summary_index"] = json!(0),
            Block::Call(..) => {}
        }
        out.push_str(&named(event));
    }

    fn google(&mut self, step: &Step, out: &mut String) {
        let part = match step {
            Step::Text(text) => json!({ "text": text }),
            Step::Thinking(text) => json!({ "text": text, "thought": true }),
            Step::Call(id, name, arguments) => {
                let arguments: Value = serde_json::from_str(arguments).unwrap_or_default();
                self.blocks.push(Block::Call(id.clone(), name.clone(), arguments.to_string()));
                json!({ "functionCall": { "id": id, "name": name, "args": arguments } })
            }
            Step::End(end) => {
                let reason = if *end == End::Length { "MAX_TOKENS" } else { "STOP" };
                let (input, output) = self.usage;
                let usage = json!({ "promptTokenCount": input, "candidatesTokenCount": output,
                    "totalTokenCount": input + output });
                let candidate =
                    json!({ "index": 0, "content": { "role": "model", "parts": [] }, "finishReason": reason });
                out.push_str(&data(json!({ "candidates": [candidate], "usageMetadata": usage })));
                return;
            }
            Step::Raw(_) | Step::Hold(_) | Step::Pause(_) | Step::Reset => return,
        };
        let content = json!({ "role": "model", "parts": [part] });
        out.push_str(&data(json!({ "candidates": [{ "index": 0, "content": content }] })));
    }
}

fn added_id(index: usize, block: &Block) -> String {
    match block {
        Block::Text(_) => format!("msg_{index}"),
        Block::Thinking(_) => format!("rs_{index}"),
        Block::Call(id, ..) => format!("fc_{id}"),
    }
}

/// An output item of the Responses API, at its beginning or whole.
fn item(index: usize, block: &Block, whole: bool) -> Value {
    let id = added_id(index, block);
    match block {
        Block::Text(text) => {
            let content =
                if whole { json!([{ "type": "output_text", "text": text, "annotations": [] }]) } else { json!([]) };
            json!({ "type": "message", "id": id, "role": "assistant", "content": content })
        }
        Block::Thinking(text) => {
            let summary = if whole { json!([{ "type": "summary_text", "text": text }]) } else { json!([]) };
            json!({ "type": "reasoning", "id": id, "summary": summary, "encrypted_content": format!("ZW5j{index}") })
        }
        Block::Call(call_id, name, arguments) => {
            let arguments = if whole { arguments } else { "" };
            json!({ "type": "function_call", "id": id, "call_id": call_id, "name": name, "arguments": arguments })
        }
    }
}

fn data(event: Value) -> String {
    format!("data: {event}\n\n")
}

fn named(event: Value) -> String {
    format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap_or_default())
}
