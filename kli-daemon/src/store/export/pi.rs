//! A branch as pi 1.6 wants it: an existing directory, a thinking level, whole usage, every call with its result,
//! and the last line on the branch.

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::path::Path;

use kli_protocol::record::*;
use serde_json::{Map, Value, json};

use super::{header, put, serialised};
use crate::store::log::Log;
use crate::store::{Ix, Result};
use crate::tree::Role;
use crate::tree::json::without_lone_surrogates;

pub fn write(log: &Log, leaf: Option<Ix>, out: &mut dyn Write) -> Result<()> {
    let mut head = header(log);
    (head.parent_session, head.mode) = (None, None);
    if !head.cwd.as_deref().is_some_and(|dir| Path::new(dir).is_dir()) {
        head.cwd = Some("/".into());
    }
    put(out, &serialised(&head)?)?;
    let branch = log.branch_to(leaf);
    let facts = log.facts();
    let mut writer = Writer { log, out, last: None, made: 0 };
    if let Some(name) = facts.name {
        writer.make("session_info", &facts.created_at, json!({ "name": name }))?;
    }
    let has_level = branch.iter().any(|ix| log.node(*ix).is_some_and(|n| n.kind == Kind::ThinkingLevelChange));
    let results = results(log, &branch)?;
    let mut level = has_level;
    for ix in branch {
        let Some(node) = log.node(ix) else { continue };
        // pi finds one before the first message, else adds its own.
        if !level && !matches!(node.kind, Kind::ModelChange) {
            level = true;
            writer.make("thinking_level_change", &facts.created_at, json!({ "thinkingLevel": "off" }))?;
        }
        match node.kind {
            Kind::OptionChange | Kind::Unknown => {}
            Kind::Message => writer.message(ix, &results)?,
            _ => writer.copy(ix)?,
        }
    }
    if !level {
        writer.make("thinking_level_change", &facts.created_at, json!({ "thinkingLevel": "off" }))?;
    }
    Ok(())
}

/// The result of each call, by the message that the call stands in and its id: some providers give the same ids in
/// every turn.
type Results = HashMap<(Ix, String), Ix>;

/// Results on the branch: each belongs to the last call of its id before it, where that has none yet.
fn results(log: &Log, branch: &[Ix]) -> Result<Results> {
    let mut results = Results::new();
    let mut asked: HashMap<String, Ix> = HashMap::new();
    // Results that lie before their calls.
    let mut early: HashMap<String, Ix> = HashMap::new();
    for ix in branch {
        let role = log.node(*ix).and_then(|node| node.role);
        if !matches!(role, Some(Role::Assistant | Role::ToolResult)) {
            continue;
        }
        let Body::Message(MessageBody { message, .. }) = log.record(*ix)?.body else { continue };
        match message {
            Message::Assistant(answer) => {
                for call in answer.content.tool_calls() {
                    if let Some(result) = early.remove(&call.id) {
                        results.insert((*ix, call.id.clone()), result);
                    }
                    asked.insert(call.id.clone(), *ix);
                }
            }
            Message::ToolResult(result) => match asked.get(&result.tool_call_id) {
                Some(call) => _ = results.entry((*call, result.tool_call_id)).or_insert(*ix),
                None => _ = early.entry(result.tool_call_id).or_insert(*ix),
            },
            _ => {}
        }
    }
    Ok(results)
}

struct Writer<'a> {
    log: &'a Log,
    out: &'a mut dyn Write,
    last: Option<String>,
    made: u32,
}

impl Writer<'_> {
    /// A line that pi needs and the session does not have.
    fn make(&mut self, kind: &str, timestamp: &str, fields: Value) -> Result<()> {
        let id = loop {
            let id = format!("{:08x}", self.made);
            self.made += 1;
            if self.log.find_whole(&id).is_none() {
                break id;
            }
        };
        let mut line = json!({ "type": kind, "id": id, "parentId": self.last, "timestamp": timestamp });
        if let (Value::Object(line), Value::Object(fields)) = (&mut line, fields) {
            line.extend(fields);
        }
        put(self.out, &line.to_string())?;
        self.last = Some(id);
        Ok(())
    }

    fn copy(&mut self, ix: Ix) -> Result<()> {
        match self.fields(ix)? {
            Some(fields) => self.put(ix, fields),
            None => Ok(()),
        }
    }

    /// None of an entry nested deeper than serde goes, which is as good as one of a type that nobody knows.
    fn fields(&self, ix: Ix) -> Result<Option<Map<String, Value>>> {
        let text = self.log.text(ix)?;
        Ok(serde_json::from_str(&without_lone_surrogates(&text)).ok())
    }

    fn put(&mut self, ix: Ix, mut fields: Map<String, Value>) -> Result<()> {
        fields.insert("parentId".into(), self.last.clone().map_or(Value::Null, Value::String));
        put(self.out, &serialised(&fields)?)?;
        self.last = Some(self.log.id(ix));
        Ok(())
    }

    fn message(&mut self, ix: Ix, results: &Results) -> Result<()> {
        let Some(mut fields) = self.fields(ix)? else { return Ok(()) };
        let Some(message) = fields.get_mut("message").and_then(Value::as_object_mut) else { return Ok(()) };
        match message.get("role").and_then(Value::as_str) {
            // Behind its call, or nowhere.
            Some("toolResult") => Ok(()),
            Some("assistant") => {
                complete(message);
                let time = fields.get("timestamp").and_then(Value::as_str).unwrap_or_default().to_owned();
                self.put(ix, fields)?;
                let Body::Message(MessageBody { message: Message::Assistant(answer), .. }) = self.log.record(ix)?.body
                else {
                    return Ok(());
                };
                let mut written = HashSet::new();
                for call in answer.content.tool_calls().filter(|call| written.insert(call.id.clone())) {
                    match results.get(&(ix, call.id.clone())) {
                        Some(result) => self.copy(*result)?,
                        None => self.make("message", &time, unanswered(call, answer.timestamp))?,
                    }
                }
                Ok(())
            }
            _ => self.put(ix, fields),
        }
    }
}

fn unanswered(call: &ToolCallBlock, timestamp: u64) -> Value {
    let content = json!([{ "type": "text", "text": "This call was not carried out." }]);
    json!({ "message": { "role": "toolResult", "toolCallId": call.id, "toolName": call.name, "content": content,
        "isError": true, "timestamp": timestamp } })
}

/// Fields that pi reads without asking whether they are there.
fn complete(message: &mut Map<String, Value>) {
    let content = message.remove("content").unwrap_or_default();
    let content = match content {
        Value::String(text) => json!([{ "type": "text", "text": text }]),
        Value::Array(blocks) => Value::Array(blocks),
        _ => json!([]),
    };
    let usage = message.get("usage").and_then(|usage| serde_json::from_value::<Usage>(usage.clone()).ok());
    let usage = serde_json::to_value(usage.unwrap_or_default()).unwrap_or_default();
    let calls =
        content.as_array().is_some_and(|blocks| blocks.iter().any(|b| b.get("type") == Some(&json!("toolCall"))));
    for (name, value) in [
        ("api", json!("openai-completions")),
        ("provider", json!("unknown")),
        ("model", json!("unknown")),
        ("stopReason", json!(if calls { "toolUse" } else { "stop" })),
        ("timestamp", json!(0)),
    ] {
        message.entry(name).or_insert(value);
    }
    message.insert("content".into(), content);
    message.insert("usage".into(), usage);
}
