//! Codex rollouts: one line an item; items of one answer become one message, a roll-back moves the leaf.

use std::collections::HashMap;
use std::path::Path;

use kli_protocol::record::*;
use serde_json::Value;

use super::{Foreign, arguments, first_time, image, lines, number, string};
use crate::clock::{parse_rfc3339, rfc3339};
use crate::store::Result;

pub fn read(path: &Path) -> Result<Foreign> {
    let lines = lines(path)?;
    let mut reader = Reader { time: first_time(path, &lines), ..Reader::default() };
    for (number, line) in lines {
        reader.take(number, &line);
    }
    reader.close(StopReason::Stop);
    Ok(Foreign { work_dir: reader.work_dir, name: reader.name, archived: false, records: reader.records })
}

#[derive(Default)]
struct Reader {
    records: Vec<Record>,
    leaf: Option<String>,
    /// Where the leaf was before each prompt of the branch.
    prompts: Vec<Option<String>>,
    /// Blocks of the answer that is being read, and the line it began at.
    answer: Vec<Block>,
    began: usize,
    tools: HashMap<String, String>,
    time: u64,
    work_dir: Option<String>,
    name: Option<String>,
    provider: String,
    model: String,
    effort: String,
    line: usize,
}

impl Reader {
    fn take(&mut self, line_number: usize, line: &Value) {
        self.line = line_number;
        if let Some(time) = string(line, "timestamp").and_then(|text| parse_rfc3339(&text)) {
            self.time = time;
        }
        let payload = line.get("payload").unwrap_or(&Value::Null);
        let kind = payload.get("type").and_then(Value::as_str).unwrap_or_default();
        match (line.get("type").and_then(Value::as_str).unwrap_or_default(), kind) {
            ("session_meta", _) => {
                // A resumed session repeats it: the first is its own.
                self.work_dir = self.work_dir.take().or(string(payload, "cwd"));
                if self.provider.is_empty() {
                    self.provider = string(payload, "model_provider").unwrap_or_else(|| "openai".into());
                }
            }
            ("turn_context", _) => self.settings(payload),
            ("response_item", _) => self.item(kind, payload),
            ("compacted", _) => self.compacted(payload),
            ("event_msg", "token_count") => self.tokens(payload.pointer("/info/last_token_usage")),
            ("event_msg", "turn_aborted") => self.close(StopReason::Aborted),
            ("event_msg", "thread_name_updated") => self.name = string(payload, "thread_name"),
            ("event_msg", "thread_rolled_back") => self.roll_back(number(payload, "num_turns")),
            _ => {}
        }
    }

    fn push(&mut self, line_number: usize, suffix: &str, body: Body) {
        let id = format!("{line_number:08x}{suffix}");
        let record = Record::new(id.clone(), self.leaf.clone(), rfc3339(self.time), body);
        if record.body.kind().becomes_leaf() {
            self.leaf = Some(id);
        }
        self.records.push(record);
    }

    fn settings(&mut self, context: &Value) {
        if let Some(model) = string(context, "model").filter(|model| *model != self.model) {
            self.close(StopReason::Stop);
            self.model.clone_from(&model);
            let change = ModelChange { provider: self.provider.clone(), model_id: model };
            self.push(self.line, "", Body::ModelChange(change));
        }
        if let Some(effort) = string(context, "effort").filter(|effort| *effort != self.effort) {
            self.close(StopReason::Stop);
            self.effort.clone_from(&effort);
            let change = ThinkingLevelChange { thinking_level: effort };
            self.push(self.line, "-t", Body::ThinkingLevelChange(change));
        }
    }

    fn item(&mut self, kind: &str, item: &Value) {
        match kind {
            "message" => self.message(item),
            "reasoning" => self.add(reasoning(item)),
            "function_call" | "custom_tool_call" | "local_shell_call" => self.call(item),
            "function_call_output" | "custom_tool_call_output" => self.output(item),
            // Calls that the server carried out itself, and items of newer versions: kept, never sent.
            _ => self.add(Block::Unknown(item.clone())),
        }
    }

    fn add(&mut self, block: Block) {
        if self.answer.is_empty() {
            self.began = self.line;
        }
        self.answer.push(block);
    }

    fn message(&mut self, item: &Value) {
        let blocks = blocks(item.get("content").unwrap_or(&Value::Null));
        match item.get("role").and_then(Value::as_str) {
            Some("assistant") => blocks.into_iter().for_each(|block| self.add(block)),
            Some("user") => {
                self.close(StopReason::Stop);
                let content = match blocks.as_slice() {
                    [Block::Text(text)] => Content::Text(text.text.clone()),
                    _ => Content::Blocks(blocks),
                };
                if is_injected(&content.text()) {
                    let custom_type = "codex".to_owned();
                    let message = CustomMessage { custom_type, content, display: false, ..CustomMessage::default() };
                    return self.push(self.line, "", Body::CustomMessage(message));
                }
                self.prompts.push(self.leaf.clone());
                let message = UserMessage { content, typed: None, timestamp: self.time };
                self.push(self.line, "", Body::message(Message::User(message)));
            }
            // Instructions of the program itself.
            _ => {
                self.close(StopReason::Stop);
                let mark = Custom { custom_type: "codex".into(), data: item.clone(), idempotency_key: None };
                self.push(self.line, "", Body::Custom(mark));
            }
        }
    }

    fn call(&mut self, item: &Value) {
        let id = string(item, "call_id").or(string(item, "id")).unwrap_or_default();
        let name = string(item, "name").unwrap_or_else(|| "shell".into());
        let input = ["arguments", "input"].iter().find_map(|field| string(item, field)).unwrap_or_default();
        let arguments = match item.get("action") {
            Some(Value::Object(action)) => action.clone(),
            _ => arguments(&input),
        };
        self.tools.insert(id.clone(), name.clone());
        self.add(Block::ToolCall(ToolCallBlock { id, name, arguments, thought_signature: None }));
    }

    fn output(&mut self, item: &Value) {
        self.close(StopReason::ToolUse);
        let id = string(item, "call_id").unwrap_or_default();
        let output = item.get("output").unwrap_or(&Value::Null);
        let failed = output.get("success").and_then(Value::as_bool) == Some(false);
        let content = Content::Blocks(blocks(output.get("content").unwrap_or(output)));
        let message = ToolResultMessage {
            tool_name: self.tools.get(&id).cloned().unwrap_or_default(),
            tool_call_id: id,
            content,
            details: None,
            is_error: failed,
            timestamp: self.time,
        };
        self.push(self.line, "", Body::message(Message::ToolResult(message)));
    }

    /// Ends the answer that is being read.
    fn close(&mut self, stop: StopReason) {
        if self.answer.is_empty() {
            return;
        }
        let content = Content::Blocks(std::mem::take(&mut self.answer));
        let stop_reason = match stop {
            StopReason::Stop if content.tool_calls().next().is_some() => StopReason::ToolUse,
            stop => stop,
        };
        let message = AssistantMessage {
            content,
            api: "openai-responses".into(),
            provider: if self.provider.is_empty() { "openai".into() } else { self.provider.clone() },
            model: self.model.clone(),
            stop_reason,
            timestamp: self.time,
            ..AssistantMessage::default()
        };
        // By the line it began at; the one it ends before may have an entry of its own.
        self.push(self.began, "", Body::message(Message::Assistant(message)));
    }

    fn tokens(&mut self, usage: Option<&Value>) {
        let Some(usage) = usage else { return };
        self.close(StopReason::Stop);
        let answer = self.records.iter_mut().rev().find_map(|record| match &mut record.body {
            Body::Message(MessageBody { message: Message::Assistant(message), .. }) => Some(message),
            _ => None,
        });
        if let Some(message) = answer.filter(|message| message.usage == Usage::default()) {
            let cached = number(usage, "cached_input_tokens");
            message.usage = Usage {
                input: number(usage, "input_tokens").saturating_sub(cached),
                output: number(usage, "output_tokens"),
                cache_read: cached,
                cache_write: number(usage, "cache_write_input_tokens"),
                total_tokens: number(usage, "total_tokens"),
                cost: Cost::default(),
            };
        }
    }

    fn compacted(&mut self, payload: &Value) {
        self.close(StopReason::Stop);
        let mut summary = string(payload, "message").unwrap_or_default();
        for item in payload.get("replacement_history").and_then(Value::as_array).into_iter().flatten() {
            let text = Content::Blocks(blocks(item.get("content").unwrap_or(&Value::Null))).text();
            if !text.trim().is_empty() && !is_injected(&text) {
                let role = string(item, "role").unwrap_or_default();
                summary.push_str(&format!("\n\n{role}: {text}"));
            }
        }
        let summary = summary.trim().to_owned();
        // Codex put something else in the history's place: nothing before it is kept.
        let kept = Some(format!("{:08x}", self.line));
        let compaction = Compaction { summary, first_kept_entry_id: kept, ..Compaction::default() };
        self.push(self.line, "", Body::Compaction(compaction));
    }

    fn roll_back(&mut self, turns: u64) {
        self.close(StopReason::Stop);
        for _ in 0..turns {
            let Some(before) = self.prompts.pop() else { break };
            self.leaf = before;
        }
        self.push(self.line, "", Body::Leaf(LeafRecord {}));
    }
}

fn is_injected(text: &str) -> bool {
    let tags =
        ["<environment_context>", "<user_instructions>", "<permissions instructions>", "# AGENTS.md instructions"];
    tags.iter().any(|tag| text.trim_start().starts_with(tag))
}

fn reasoning(item: &Value) -> Block {
    let texts = |field: &str| -> Vec<String> {
        item.get(field)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(|part| string(part, "text"))
            .collect()
    };
    let mut text = texts("summary");
    text.extend(texts("content"));
    // What the provider wants back is the whole item.
    let signed = item.get("encrypted_content").is_some_and(Value::is_string);
    let thinking_signature = signed.then(|| item.to_string());
    Block::Thinking(ThinkingBlock { thinking: text.join("\n\n"), thinking_signature, redacted: None })
}

fn blocks(content: &Value) -> Vec<Block> {
    let block = |part: &Value| match part.get("type").and_then(Value::as_str) {
        Some("input_text" | "output_text" | "text") => string(part, "text").map(Block::text),
        Some("input_image") => string(part, "image_url").map(|url| image(&url)),
        _ => Some(Block::Unknown(part.clone())),
    };
    match content {
        Value::String(text) => vec![Block::text(text.clone())],
        Value::Array(parts) => parts.iter().filter_map(block).collect(),
        Value::Object(_) => block(content).into_iter().collect(),
        _ => Vec::new(),
    }
}
