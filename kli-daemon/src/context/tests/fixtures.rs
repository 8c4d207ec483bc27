//! Branches for tests, and the check that every request must pass.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use kli_protocol::api::ModelInfo;
use kli_protocol::record::{Block, Content, Kind, Message, Record};

use crate::context::{Assembled, Item, Window};

pub fn model() -> ModelInfo {
    ModelInfo {
        provider: "p".into(),
        model_id: "m".into(),
        context_window: 200_000,
        max_output: 8_192,
        input: vec!["text".into(), "image".into()],
        ..ModelInfo::default()
    }
}

/// A file of the shared material, where it is there.
pub fn shared(path: &str) -> Option<String> {
    let root = std::env::var_os("KLI_SHARED").map(PathBuf::from);
    let root = root.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared"));
    match std::fs::read(root.join(path)) {
        Ok(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) => {
            eprintln!("skipped: {path}: {error}");
            None
        }
    }
}

/// Root → leaf.
#[derive(Debug)]
pub struct Branch {
    pub items: Vec<Arc<Item>>,
}

impl Branch {
    /// Lines without id and parent.
    pub fn linear(lines: &[&str]) -> Branch {
        let records = lines.iter().enumerate().map(|(i, line)| {
            let mut value: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
            value["id"] = format!("e{}", i + 1).into();
            serde_json::from_value::<Record>(value).unwrap()
        });
        Branch { items: records.map(|record| Arc::new(Item::from(record))).collect() }
    }

    /// The branch of the leaf of a session file.
    pub fn shared(path: &str) -> Option<Branch> {
        let text = shared(path)?;
        let mut records: Vec<Record> = Vec::new();
        let mut leaf: Option<String> = None;
        for (number, line) in text.split('\n').enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let line = line.replace("\\ud83d\"", "\\ufffd\"");
            let Ok(mut value) = serde_json::from_str::<serde_json::Value>(&line) else { continue };
            if value["type"] == "session" {
                continue;
            }
            if value.get("id").is_none() && text.contains(r#""type":"session","id""#) {
                // pi's first format: a chain of lines.
                value["id"] = format!("{:08x}", number + 1).into();
                value["parentId"] = records.last().map(|r| r.id.clone()).into();
            }
            let Ok(record) = serde_json::from_value::<Record>(value) else { continue };
            let kind = record.body.kind();
            if kind == Kind::Leaf {
                leaf = record.parent_id.clone();
            } else if kind.becomes_leaf() {
                leaf = Some(record.id.clone());
            }
            records.push(record);
        }
        let mut by_id: HashMap<String, Record> = HashMap::new();
        for record in records {
            by_id.entry(record.id.clone()).or_insert(record);
        }
        let mut items = Vec::new();
        while let Some(record) = leaf.and_then(|id| by_id.remove(&id)) {
            leaf = record.parent_id.clone();
            items.push(Arc::new(Item::from(record)));
        }
        items.reverse();
        Some(Branch { items })
    }

    pub fn window(&self) -> Window {
        let ids: HashSet<&str> = self.items.iter().map(|item| item.id.as_str()).collect();
        let up = self.items.iter().rev().map(|item| Ok::<_, std::convert::Infallible>(item.clone()));
        Window::read(up, |id| ids.contains(id)).unwrap_or_else(|e| match e {})
    }
}

/// One line for each message, for tables.
pub fn shown(assembled: &Assembled) -> Vec<String> {
    assembled
        .messages
        .iter()
        .map(|message| match &**message {
            Message::User(m) => format!("user: {}", content(&m.content)),
            Message::Assistant(m) => format!("reply: {}", content(&m.content)),
            Message::ToolResult(m) => {
                let text = content(&m.content);
                let text = text.split_once(": ").filter(|(head, _)| ["Interrupted", "Not run"].contains(head));
                let error = if m.is_error { " (error)" } else { "" };
                let text = text.map(|(head, _)| head.to_owned()).unwrap_or_else(|| content(&m.content));
                format!("result {}{error}: {text}", m.tool_call_id)
            }
            other => format!("{other:?}"),
        })
        .collect()
}

fn content(content: &Content) -> String {
    match content {
        Content::Text(text) => text.clone(),
        Content::Blocks(blocks) => {
            let blocks = blocks.iter().map(|block| match block {
                Block::Text(text) => text.text.clone(),
                Block::Image(_) => "[image]".into(),
                Block::Thinking(thinking) => format!("<{}>", thinking.thinking),
                Block::ToolCall(call) => format!(" [{} {}]", call.id, call.name),
                Block::Unknown(_) => "?".into(),
            });
            blocks.collect::<String>().trim().to_owned()
        }
    }
}

/// VALID: what every provider takes.
pub fn valid(messages: &[Arc<Message>]) -> Result<(), String> {
    let mut ids = HashSet::new();
    let mut open: Vec<&str> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let fault = |what: &str| Err(format!("message {at}: {what}: {message:?}"));
        if at == 0 && !matches!(**message, Message::User(_)) {
            return fault("the first is not the user's");
        }
        if !open.is_empty() && !matches!(**message, Message::ToolResult(_)) {
            return fault("a call has no result before it");
        }
        let blocks = match &**message {
            Message::User(m) => &m.content,
            Message::Assistant(m) => &m.content,
            Message::ToolResult(m) => &m.content,
            Message::BashExecution(_) | Message::Unknown => return fault("no such role"),
        };
        match blocks {
            Content::Text(text) if text.trim().is_empty() => return fault("blank"),
            Content::Blocks(blocks) if blocks.is_empty() => return fault("empty"),
            _ => {}
        }
        for block in blocks.blocks() {
            let reply = matches!(**message, Message::Assistant(_));
            match block {
                Block::Text(text) if text.text.trim().is_empty() => return fault("a blank text block"),
                Block::Text(_) => {}
                Block::Image(image) if reply || image.data.is_empty() || image.data.len() > 5 << 20 => {
                    return fault("an image");
                }
                Block::Image(_) => {}
                Block::Thinking(_) if reply => {}
                Block::ToolCall(call) if reply => {
                    if call.id.is_empty() || !ids.insert(call.id.as_str()) {
                        return fault("a call id twice");
                    }
                    if call.name.is_empty() {
                        return fault("a call without name");
                    }
                }
                Block::Thinking(_) | Block::ToolCall(_) | Block::Unknown(_) => return fault("a block"),
            }
        }
        match &**message {
            Message::Assistant(m) => {
                if matches!(m.content.blocks().last(), Some(Block::Thinking(_))) {
                    return fault("ends in thinking");
                }
                open = m.content.tool_calls().map(|call| call.id.as_str()).rev_list();
            }
            Message::ToolResult(m) if open.pop() != Some(m.tool_call_id.as_str()) => {
                return fault("not the result of the next call");
            }
            _ => {}
        }
    }
    if open.is_empty() { Ok(()) } else { Err(format!("calls without result: {open:?}")) }
}

trait RevList<'a> {
    fn rev_list(self) -> Vec<&'a str>;
}

impl<'a, I: Iterator<Item = &'a str>> RevList<'a> for I {
    fn rev_list(self) -> Vec<&'a str> {
        let mut list: Vec<&str> = self.collect();
        list.reverse();
        list
    }
}

#[test]
fn the_check_finds_faults() {
    let user = serde_json::json!({"role":"user","content":"q"});
    let call = |ids: &[&str]| {
        let calls: Vec<_> =
            ids.iter().map(|id| serde_json::json!({"type":"toolCall","id":id,"name":"n","arguments":{}})).collect();
        serde_json::json!({"role":"assistant","content":calls})
    };
    let result = |id: &str| serde_json::json!({"role":"toolResult","toolCallId":id,"content":"r"});
    let text = |role: &str, text: &str| serde_json::json!({"role":role,"content":[{"type":"text","text":text}]});
    let thinking = serde_json::json!({"role":"assistant","content":[{"type":"thinking","thinking":"hm"}]});
    for (messages, is_valid) in [
        (vec![user.clone(), call(&["a", "b"]), result("a"), result("b"), user.clone()], true),
        (vec![user.clone(), call(&["a", "b"]), result("b"), result("a")], false),
        (vec![user.clone(), call(&["a"])], false),
        (vec![user.clone(), call(&["a"]), user.clone(), result("a")], false),
        (vec![user.clone(), call(&["a"]), result("a"), result("a")], false),
        (vec![user.clone(), call(&["a"]), result("a"), call(&["a"]), result("a")], false),
        (vec![user.clone(), result("a")], false),
        (vec![user.clone(), call(&[""]), result("")], false),
        (vec![text("assistant", "a")], false),
        (vec![user.clone(), text("assistant", " ")], false),
        (vec![user.clone(), call(&[])], false),
        (vec![user.clone(), thinking], false),
        (vec![text("system", "s")], false),
    ] {
        let messages: Vec<Arc<Message>> =
            messages.into_iter().map(|m| Arc::new(serde_json::from_value(m).unwrap())).collect();
        assert_eq!(valid(&messages).is_ok(), is_valid, "{messages:#?}");
    }
}
