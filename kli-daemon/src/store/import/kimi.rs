//! Kimi CLI: a directory with `context.jsonl` (what the model sees), `wire.jsonl` (when, and at what cost) and
//! `state.json` (title, archive flag). The first may come alone.

use std::collections::{HashMap, VecDeque};
use std::path::Path;

use kli_protocol::record::*;
use md5::{Digest, Md5};
use serde_json::Value;

use super::{Foreign, arguments, image, lines, number, string, written_at};
use crate::clock::rfc3339;
use crate::store::Result;

/// A model call, as the wire tells of it.
#[derive(Debug, Default)]
struct Step {
    time: u64,
    text: String,
    calls: Vec<String>,
    usage: Option<Usage>,
}

#[derive(Debug, Default)]
struct Wire {
    prompts: VecDeque<(u64, String)>,
    steps: Vec<Step>,
    results: HashMap<String, (u64, bool)>,
}

pub fn read(path: &Path) -> Result<Foreign> {
    let dir = if path.is_dir() { path } else { path.parent().unwrap_or(path) };
    let context = match path.file_name() {
        Some(name) if !path.is_dir() && name != "wire.jsonl" && name != "state.json" => path.to_owned(),
        _ => dir.join("context.jsonl"),
    };
    let mut wire = wire(&lines(&dir.join("wire.jsonl")).unwrap_or_default());
    let first = wire.prompts.iter().map(|(time, _)| *time).chain(wire.steps.iter().map(|step| step.time)).min();
    let mut reader = Reader { time: first.unwrap_or_else(|| written_at(&context)), ..Reader::default() };
    for (number, line) in lines(&context)? {
        reader.take(number, &line, &mut wire);
    }
    let state: Value = std::fs::read(dir.join("state.json"))
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default();
    let title = string(&state, "custom_title");
    Ok(Foreign {
        work_dir: work_dir(dir),
        // Until it is changed the title is the first prompt.
        name: title.filter(|title| !reader.first_prompt.starts_with(title.trim_end_matches(['…', '.']))),
        archived: state.get("archived").and_then(Value::as_bool).unwrap_or_default(),
        records: reader.records,
    })
}

/// Kimi keeps a session in `<its directory>/sessions/<MD5 of the work directory>/<session>`, and the work directories
/// in `kimi.json`. None for one that was taken from there.
fn work_dir(session: &Path) -> Option<String> {
    let session = session.canonicalize().ok()?;
    // Older ones lie in the work directory's own directory as a file.
    session.ancestors().take(2).find_map(|hashed| {
        let name = hashed.file_name()?.to_str()?;
        let state = hashed.parent()?.parent()?.join("kimi.json");
        let state: Value = serde_json::from_slice(&std::fs::read(state).ok()?).ok()?;
        let known = state.get("work_dirs")?.as_array()?.iter().filter_map(|dir| string(dir, "path"));
        known.into_iter().find(|path| {
            let hash: String = Md5::digest(path.as_bytes()).iter().map(|b| format!("{b:02x}")).collect();
            name == hash || name.ends_with(&format!("_{hash}"))
        })
    })
}

#[derive(Default)]
struct Reader {
    records: Vec<Record>,
    first_prompt: String,
    tools: HashMap<String, String>,
    time: u64,
}

impl Reader {
    fn take(&mut self, line_number: usize, line: &Value, wire: &mut Wire) {
        let content = line.get("content").unwrap_or(&Value::Null);
        match line.get("role").and_then(Value::as_str) {
            Some("user") => self.user(line_number, content, wire),
            Some("assistant") => self.assistant(line_number, line, content, wire),
            Some("tool") => self.result(line_number, line, content, wire),
            // The size of the context after the answer before it; only what the wire does not know better.
            Some("_usage") => {
                if let Some(Body::Message(MessageBody { message: Message::Assistant(message), .. })) =
                    self.records.last_mut().map(|record| &mut record.body)
                    && message.usage == Usage::default()
                {
                    message.usage.total_tokens = number(line, "token_count");
                }
            }
            // Checkpoints number the turns; a session that was taken back is written anew by Kimi itself.
            _ => {}
        }
    }

    fn push(&mut self, line_number: usize, body: Body) {
        let parent = self.records.last().map(|record| record.id.clone());
        self.records.push(Record::new(format!("{line_number:08x}"), parent, rfc3339(self.time), body));
    }

    fn user(&mut self, line_number: usize, content: &Value, wire: &mut Wire) {
        let blocks = blocks(content);
        let content = match blocks.as_slice() {
            [Block::Text(text)] => Content::Text(text.text.clone()),
            _ => Content::Blocks(blocks),
        };
        let text = content.text();
        let injected = ["<system-reminder>", "<system>"].iter().any(|tag| text.trim_start().starts_with(tag));
        if injected {
            let message =
                CustomMessage { custom_type: "kimi".into(), content, display: false, ..CustomMessage::default() };
            return self.push(line_number, Body::CustomMessage(message));
        }
        if let Some(at) = wire.prompts.iter().position(|(_, prompt)| *prompt == text) {
            self.time = wire.prompts.get(at).map_or(self.time, |(time, _)| *time);
            wire.prompts.drain(..=at);
        }
        if self.first_prompt.is_empty() {
            self.first_prompt = text;
        }
        let message = UserMessage { content, typed: None, timestamp: self.time };
        self.push(line_number, Body::message(Message::User(message)));
    }

    fn assistant(&mut self, line_number: usize, line: &Value, content: &Value, wire: &mut Wire) {
        let mut blocks = blocks(content);
        let mut calls = Vec::new();
        for call in line.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
            let function = call.get("function").unwrap_or(&Value::Null);
            let (id, name) = (string(call, "id").unwrap_or_default(), string(function, "name").unwrap_or_default());
            self.tools.insert(id.clone(), name.clone());
            calls.push(id.clone());
            let arguments = arguments(&string(function, "arguments").unwrap_or_default());
            blocks.push(Block::ToolCall(ToolCallBlock { id, name, arguments, thought_signature: None }));
        }
        let content = Content::Blocks(blocks);
        let step = wire.step_of(&content.text(), &calls);
        self.time = step.as_ref().map_or(self.time, |step| step.time);
        let message = AssistantMessage {
            content,
            api: "openai-chat".into(),
            provider: "kimi".into(),
            model: string(line, "model").unwrap_or_else(|| "kimi".into()),
            usage: step.and_then(|step| step.usage).unwrap_or_default(),
            stop_reason: if calls.is_empty() { StopReason::Stop } else { StopReason::ToolUse },
            error_message: None,
            timestamp: self.time,
        };
        self.push(line_number, Body::message(Message::Assistant(message)));
    }

    fn result(&mut self, line_number: usize, line: &Value, content: &Value, wire: &Wire) {
        let id = string(line, "tool_call_id").unwrap_or_default();
        let content = Content::Blocks(blocks(content));
        let known = wire.results.get(&id);
        self.time = known.map_or(self.time, |(time, _)| *time);
        let is_error = known.map_or_else(|| content.text().starts_with("<system>ERROR"), |(_, error)| *error);
        let message = ToolResultMessage {
            tool_name: self.tools.get(&id).cloned().unwrap_or_default(),
            tool_call_id: id,
            content,
            details: None,
            is_error,
            timestamp: self.time,
        };
        self.push(line_number, Body::message(Message::ToolResult(message)));
    }
}

fn blocks(content: &Value) -> Vec<Block> {
    let block = |part: &Value| match part.get("type").and_then(Value::as_str) {
        Some("text") => Block::text(string(part, "text").unwrap_or_default()),
        Some("think") => Block::Thinking(ThinkingBlock {
            thinking: string(part, "think").unwrap_or_default(),
            thinking_signature: string(part, "encrypted"),
            redacted: None,
        }),
        Some("image_url") => image(part.pointer("/image_url/url").and_then(Value::as_str).unwrap_or_default()),
        _ => Block::Unknown(part.clone()),
    };
    match content {
        Value::String(text) => vec![Block::text(text.clone())],
        Value::Array(parts) => parts.iter().map(block).collect(),
        _ => Vec::new(),
    }
}

fn wire(lines: &[(usize, Value)]) -> Wire {
    let mut wire = Wire::default();
    for (_, line) in lines {
        let seconds = line.get("timestamp").and_then(Value::as_f64).unwrap_or_default();
        let time = (seconds * 1000.0) as u64;
        let payload = line.pointer("/message/payload").unwrap_or(&Value::Null);
        let kind = line.pointer("/message/type").and_then(Value::as_str).unwrap_or_default();
        match (kind, wire.steps.last_mut()) {
            ("TurnBegin", _) => {
                let text = Content::Blocks(blocks(payload.get("user_input").unwrap_or(&Value::Null))).text();
                wire.prompts.push_back((time, text));
            }
            ("StepBegin", _) => wire.steps.push(Step { time, ..Step::default() }),
            ("ContentPart", Some(step)) if payload.get("type").and_then(Value::as_str) == Some("text") => {
                step.text.push_str(&string(payload, "text").unwrap_or_default());
            }
            ("ToolCall", Some(step)) => step.calls.extend(string(payload, "id")),
            ("StatusUpdate", Some(step)) => {
                if let Some(usage) = payload.get("token_usage") {
                    step.usage = Some(tokens(usage));
                }
            }
            ("ToolResult", _) => {
                let error = payload.pointer("/return_value/is_error").and_then(Value::as_bool).unwrap_or_default();
                if let Some(id) = string(payload, "tool_call_id") {
                    wire.results.insert(id, (time, error));
                }
            }
            _ => {}
        }
    }
    wire
}

fn tokens(usage: &Value) -> Usage {
    let (input, output) = (number(usage, "input_other"), number(usage, "output"));
    let (read, write) = (number(usage, "input_cache_read"), number(usage, "input_cache_creation"));
    Usage {
        input,
        output,
        cache_read: read,
        cache_write: write,
        total_tokens: input + output + read + write,
        cost: Cost::default(),
    }
}

impl Wire {
    /// The step that made an answer: it has its calls, or without any its text.
    fn step_of(&mut self, text: &str, calls: &[String]) -> Option<Step> {
        let fits = |step: &Step| match calls.first() {
            Some(call) => step.calls.contains(call),
            None => step.calls.is_empty() && step.text == text,
        };
        let at = self.steps.iter().position(fits)?;
        Some(self.steps.remove(at))
    }
}
