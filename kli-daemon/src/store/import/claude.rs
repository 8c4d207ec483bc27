//! Claude Code project files: their `parentUuid` tree becomes ours. Lines of one answer become one message, what is
//! neither message nor summary becomes a mark, so that chains through it hold.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use kli_protocol::record::*;
use serde_json::Value;

use super::{Foreign, first_time, lines, number, string};
use crate::clock::{parse_rfc3339, rfc3339};
use crate::store::Result;

pub fn read(path: &Path) -> Result<Foreign> {
    let lines = lines(path)?;
    let mut reader = Reader { time: first_time(path, &lines), ..Reader::default() };
    for (_, line) in lines {
        reader.take(&line);
    }
    let Reader { records, alias, work_dir, title, ai_title, .. } = reader;
    let mut foreign = Foreign { work_dir, name: title.or(ai_title), archived: false, records };
    for record in &mut foreign.records {
        if let Some(id) = record.parent_id.as_ref().and_then(|parent| alias.get(parent)) {
            record.parent_id = id.clone();
        }
    }
    Ok(foreign)
}

#[derive(Default)]
struct Reader {
    records: Vec<Record>,
    ids: HashSet<String>,
    /// Lines that became part of another record, or of none.
    alias: HashMap<String, Option<String>>,
    /// Where the answer of an API message lies among the records.
    answers: HashMap<String, usize>,
    tools: HashMap<String, String>,
    time: u64,
    work_dir: Option<String>,
    title: Option<String>,
    ai_title: Option<String>,
}

impl Reader {
    fn take(&mut self, line: &Value) {
        self.work_dir = self.work_dir.take().or(string(line, "cwd"));
        let kind = line.get("type").and_then(Value::as_str).unwrap_or_default();
        match kind {
            "custom-title" => self.title = string(line, "customTitle"),
            "ai-title" => self.ai_title = string(line, "aiTitle"),
            "summary" if self.ai_title.is_none() => self.ai_title = string(line, "summary"),
            _ => {}
        }
        let Some(id) = string(line, "uuid").filter(|id| !id.is_empty() && self.ids.insert(id.clone())) else { return };
        if let Some(time) = string(line, "timestamp").and_then(|text| parse_rfc3339(&text)) {
            self.time = time;
        }
        let parent = string(line, "parentUuid").or(string(line, "logicalParentUuid"));
        let message = line.get("message").unwrap_or(&Value::Null);
        match kind {
            "user" => self.user(line, id, parent, message),
            "assistant" => self.assistant(line, id, parent, message),
            // The summary that follows stands where the boundary is.
            "system" if line.get("subtype").and_then(Value::as_str) == Some("compact_boundary") => {
                let parent = parent.map(|parent| self.resolved(parent));
                self.alias.insert(id, parent);
            }
            _ => {
                let mut data = line.clone();
                if let Some(fields) = data.as_object_mut() {
                    for known in ["uuid", "parentUuid", "timestamp", "sessionId", "cwd", "version"] {
                        fields.shift_remove(known);
                    }
                }
                let mark = Custom { custom_type: format!("claude/{kind}"), data, idempotency_key: None };
                self.push(id, parent, Body::Custom(mark));
            }
        }
    }

    fn push(&mut self, id: String, parent: Option<String>, body: Body) {
        let parent = parent.map(|parent| self.resolved(parent));
        self.records.push(Record::new(id, parent, rfc3339(self.time), body));
    }

    fn resolved(&self, id: String) -> String {
        self.alias.get(&id).cloned().flatten().unwrap_or(id)
    }

    fn user(&mut self, line: &Value, id: String, parent: Option<String>, message: &Value) {
        let flag = |name: &str| line.get(name).and_then(Value::as_bool).unwrap_or_default();
        let content = message.get("content").unwrap_or(&Value::Null);
        if flag("isCompactSummary") {
            let summary = Content::Blocks(blocks(content)).text();
            let kept = Some(id.clone());
            let compaction = Compaction { summary, first_kept_entry_id: kept, ..Compaction::default() };
            return self.push(id, parent, Body::Compaction(compaction));
        }
        let parts = content.as_array().cloned().unwrap_or_default();
        let (results, others): (Vec<Value>, Vec<Value>) =
            parts.into_iter().partition(|part| part.get("type").and_then(Value::as_str) == Some("tool_result"));
        let mut bodies: Vec<Body> = results.iter().map(|part| self.result(line, part)).collect();
        if results.is_empty() || !others.is_empty() {
            let content = match content {
                Value::String(text) => Content::Text(text.clone()),
                _ => Content::Blocks(blocks(&Value::Array(others))),
            };
            let injected = flag("isMeta") && results.is_empty();
            bodies.push(match injected {
                true => Body::CustomMessage(CustomMessage {
                    custom_type: "claude".into(),
                    content,
                    display: false,
                    ..CustomMessage::default()
                }),
                false => Body::message(Message::User(UserMessage { content, typed: None, timestamp: self.time })),
            });
        }
        // The line's id is the last one's, which what follows hangs on.
        let last = bodies.len().saturating_sub(1);
        let mut parent = parent;
        for (number, body) in bodies.into_iter().enumerate() {
            let own = if number == last { id.clone() } else { format!("{id}-{number}") };
            self.push(own.clone(), parent, body);
            parent = Some(own);
        }
    }

    fn result(&self, line: &Value, part: &Value) -> Body {
        let id = string(part, "tool_use_id").or(string(line, "sourceToolUseID")).unwrap_or_default();
        Body::message(Message::ToolResult(ToolResultMessage {
            tool_name: self.tools.get(&id).cloned().unwrap_or_default(),
            tool_call_id: id,
            content: Content::Blocks(blocks(part.get("content").unwrap_or(&Value::Null))),
            details: None,
            is_error: part.get("is_error").and_then(Value::as_bool).unwrap_or_default(),
            timestamp: self.time,
        }))
    }

    fn assistant(&mut self, line: &Value, id: String, parent: Option<String>, message: &Value) {
        let content = blocks(message.get("content").unwrap_or(&Value::Null));
        for block in &content {
            if let Block::ToolCall(call) = block {
                self.tools.insert(call.id.clone(), call.name.clone());
            }
        }
        let usage = message.get("usage").map(tokens).unwrap_or_default();
        // One answer is spread over lines, a block each, every one the parent of the next.
        let api_id = string(message, "id").unwrap_or_default();
        if let Some(at) = self.answers.get(&api_id).copied()
            && let Some(first) = self.records.get_mut(at)
            && let Body::Message(MessageBody { message: Message::Assistant(answer), .. }) = &mut first.body
        {
            if let Content::Blocks(blocks) = &mut answer.content {
                blocks.extend(content);
            }
            answer.usage = usage;
            answer.stop_reason = stop_reason(line, message, &answer.content);
            let first = first.id.clone();
            self.alias.insert(id, Some(first));
            return;
        }
        if !api_id.is_empty() {
            self.answers.insert(api_id, self.records.len());
        }
        let content = Content::Blocks(content);
        let stop_reason = stop_reason(line, message, &content);
        let answer = AssistantMessage {
            error_message: (stop_reason == StopReason::Error).then(|| content.text()),
            content,
            api: "anthropic".into(),
            provider: "anthropic".into(),
            model: string(message, "model").unwrap_or_default(),
            usage,
            stop_reason,
            timestamp: self.time,
        };
        self.push(id, parent, Body::message(Message::Assistant(answer)));
    }
}

fn stop_reason(line: &Value, message: &Value, content: &Content) -> StopReason {
    if line.get("isApiErrorMessage").and_then(Value::as_bool) == Some(true) {
        return StopReason::Error;
    }
    match message.get("stop_reason").and_then(Value::as_str) {
        Some("max_tokens") => StopReason::Length,
        _ if content.tool_calls().next().is_some() => StopReason::ToolUse,
        _ => StopReason::Stop,
    }
}

fn tokens(usage: &Value) -> Usage {
    let (input, output) = (number(usage, "input_tokens"), number(usage, "output_tokens"));
    let (read, write) = (number(usage, "cache_read_input_tokens"), number(usage, "cache_creation_input_tokens"));
    Usage {
        input,
        output,
        cache_read: read,
        cache_write: write,
        total_tokens: input + output + read + write,
        cost: Cost::default(),
    }
}

fn blocks(content: &Value) -> Vec<Block> {
    let block = |part: &Value| match part.get("type").and_then(Value::as_str) {
        Some("text") => Block::text(string(part, "text").unwrap_or_default()),
        Some("thinking") => Block::Thinking(ThinkingBlock {
            thinking: string(part, "thinking").unwrap_or_default(),
            thinking_signature: string(part, "signature"),
            redacted: None,
        }),
        Some("redacted_thinking") => Block::Thinking(ThinkingBlock {
            thinking: String::new(),
            thinking_signature: string(part, "data"),
            redacted: Some(true),
        }),
        Some("tool_use") => Block::ToolCall(ToolCallBlock {
            id: string(part, "id").unwrap_or_default(),
            name: string(part, "name").unwrap_or_default(),
            arguments: part.get("input").and_then(Value::as_object).cloned().unwrap_or_default(),
            thought_signature: None,
        }),
        Some("image") => match part.pointer("/source/data").and_then(Value::as_str) {
            Some(data) => Block::Image(ImageBlock {
                data: data.to_owned(),
                mime_type: part.pointer("/source/media_type").and_then(Value::as_str).unwrap_or_default().to_owned(),
            }),
            None => Block::Unknown(part.clone()),
        },
        _ => Block::Unknown(part.clone()),
    };
    match content {
        Value::String(text) => vec![Block::text(text.clone())],
        Value::Array(parts) => parts.iter().map(block).collect(),
        _ => Vec::new(),
    }
}
