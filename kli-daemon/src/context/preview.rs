//! One line about an entry, for the views of a tree.

use kli_protocol::record::{Block, Body, Content, Message, Record, StopReason, ToolCallBlock};
use serde_json::Value;

/// In characters.
pub const MAX_PREVIEW: usize = 200;

/// One line of at most [`MAX_PREVIEW`] characters. Reads no more of a text than it shows.
pub fn preview(record: &Record) -> String {
    match &record.body {
        Body::Message(body) => message(&body.message),
        Body::ModelChange(change) => one_line(&format!("{}/{}", change.provider, change.model_id)),
        Body::OptionChange(change) => one_line(&format!("{}: {}", change.option_id, plain(&change.value))),
        Body::ThinkingLevelChange(change) => one_line(&format!("reasoning-effort: {}", change.thinking_level)),
        Body::Compaction(compaction) => one_line(&compaction.summary),
        Body::BranchSummary(summary) => one_line(&summary.summary),
        Body::CustomMessage(custom) => match content(&custom.content) {
            text if text.is_empty() => one_line(&custom.custom_type),
            text => text,
        },
        Body::Custom(custom) => one_line(&custom.custom_type),
        Body::Label(label) => one_line(label.label.as_deref().unwrap_or_default()),
        Body::SessionInfo(info) => one_line(info.name.as_deref().unwrap_or_default()),
        Body::Usage(usage) => one_line(&usage.kind),
        Body::ContextEdit(edit) => one_line(&edit.target_id),
        Body::Leaf(_) => String::new(),
        Body::Unknown(_) => one_line(&record.kind),
    }
}

/// `role` of a message.
pub fn role(record: &Record) -> Option<&'static str> {
    match &record.body {
        Body::Message(body) => match &body.message {
            Message::User(_) => Some("user"),
            Message::Assistant(_) => Some("assistant"),
            Message::ToolResult(_) => Some("toolResult"),
            Message::BashExecution(_) => Some("bashExecution"),
            Message::Unknown => None,
        },
        _ => None,
    }
}

/// The tool of a result, or of a reply's first call.
pub fn tool_name(record: &Record) -> Option<&str> {
    match &record.body {
        Body::Message(body) => match &body.message {
            Message::ToolResult(result) => Some(&result.tool_name),
            Message::Assistant(reply) => reply.content.tool_calls().next().map(|call| call.name.as_str()),
            Message::User(_) | Message::BashExecution(_) | Message::Unknown => None,
        },
        _ => None,
    }
}

/// What a person wrote: as typed, not its expansion. None for anything but a prompt.
pub fn prompt_text(record: &Record) -> Option<String> {
    match &record.body {
        Body::Message(body) => match &body.message {
            Message::User(prompt) => Some(prompt.typed.clone().unwrap_or_else(|| prompt.content.text())),
            _ => None,
        },
        _ => None,
    }
}

fn message(message: &Message) -> String {
    match message {
        Message::User(prompt) => match &prompt.typed {
            Some(typed) => one_line(typed),
            None => content(&prompt.content),
        },
        Message::Assistant(reply) => match content(&reply.content) {
            text if !text.is_empty() => text,
            _ => match (reply.content.tool_calls().next(), reply.stop_reason, &reply.error_message) {
                (Some(call), _, _) => tool_call(call),
                (None, _, Some(error)) => one_line(error),
                (None, StopReason::Aborted, None) => "(aborted)".to_owned(),
                (None, StopReason::Error, None) => "(error)".to_owned(),
                (None, _, None) => thinking(&reply.content),
            },
        },
        Message::ToolResult(result) => content(&result.content),
        Message::BashExecution(bash) => one_line(&format!("$ {}", head(&bash.command))),
        Message::Unknown => String::new(),
    }
}

fn content(content: &Content) -> String {
    match content {
        Content::Text(text) => one_line(text),
        Content::Blocks(blocks) => {
            let texts = blocks.iter().filter_map(|block| match block {
                Block::Text(text) => Some(head(&text.text)),
                Block::Image(_) => Some("[image]"),
                Block::Thinking(_) | Block::ToolCall(_) | Block::Unknown(_) => None,
            });
            one_line(&texts.take(MAX_PREVIEW).collect::<Vec<_>>().join(" "))
        }
    }
}

fn thinking(content: &Content) -> String {
    let mut thoughts = content.blocks().iter().filter_map(|block| match block {
        Block::Thinking(thinking) => Some(thinking.thinking.as_str()),
        _ => None,
    });
    thoughts.next().map(one_line).unwrap_or_default()
}

/// `bash cargo test`: the name and what says most about the call.
fn tool_call(call: &ToolCallBlock) -> String {
    const TELLING: [&str; 7] = ["command", "path", "file_path", "filePath", "pattern", "query", "url"];
    let telling = TELLING.iter().find_map(|name| call.arguments.get(*name));
    match telling.or_else(|| call.arguments.values().next()) {
        Some(value) => one_line(&format!("{} {}", call.name, plain(value))),
        None => one_line(&call.name),
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => head(text).to_owned(),
        Value::Array(_) | Value::Object(_) => "…".to_owned(),
        other => other.to_string(),
    }
}

/// As much of a text as could be shown, so that a huge one is not copied.
fn head(text: &str) -> &str {
    text.get(..text.floor_char_boundary(64 * MAX_PREVIEW)).unwrap_or(text)
}

/// White space runs → one space; control and direction characters dropped; cut at [`MAX_PREVIEW`] characters, never
/// inside one.
pub fn one_line(text: &str) -> String {
    let mut line = String::new();
    let mut len = 0;
    let mut gap = false;
    for c in text.chars() {
        if c.is_whitespace() {
            gap = len > 0;
            continue;
        }
        if c.is_control() || is_direction(c) {
            continue;
        }
        let needs = if gap { 2 } else { 1 };
        if len + needs > MAX_PREVIEW {
            // Room for the mark that more follows.
            while len >= MAX_PREVIEW {
                line.pop();
                len -= 1;
            }
            line.push('…');
            break;
        }
        if gap {
            line.push(' ');
            gap = false;
        }
        line.push(c);
        len += needs;
    }
    line
}

/// Characters that turn the direction of what follows: they could make a line read as something else.
fn is_direction(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{061c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(json: &str) -> String {
        preview(&Record::parse(&json.replacen('{', "{\"id\":\"x\",", 1)).unwrap())
    }

    #[test]
    fn previews() {
        for (json, want) in [
            (r#"{"type":"message","message":{"role":"user","content":" a\n\tb "}}"#, "a b"),
            (r#"{"type":"message","message":{"role":"user","content":"long","typed":"/short"}}"#, "/short"),
            (r#"{"type":"message","message":{"role":"user","content":[{"type":"image","data":"A"}]}}"#, "[image]"),
            (
                r#"{"type":"message","message":{"role":"assistant","content":[{"type":"toolCall","name":"read","arguments":{"limit":3,"path":"a.rs"}}]}}"#,
                "read a.rs",
            ),
            (
                r#"{"type":"message","message":{"role":"assistant","content":[],"stopReason":"error","errorMessage":"no\nnet"}}"#,
                "no net",
            ),
            (r#"{"type":"message","message":{"role":"bashExecution","command":"ls"}}"#, "$ ls"),
            (r#"{"type":"message","message":{"role":"alien","content":"x"}}"#, ""),
            (r#"{"type":"model_change","provider":"p","modelId":"m"}"#, "p/m"),
            (r#"{"type":"option_change","optionId":"speed","value":2}"#, "speed: 2"),
            (r#"{"type":"compaction","summary":"s"}"#, "s"),
            (r#"{"type":"alien","x":1}"#, "alien"),
        ] {
            assert_eq!(of(json), want, "{json}");
        }
    }

    #[test]
    fn lines_are_cut_at_characters() {
        for (text, len) in
            [("x".repeat(200), 200), ("x".repeat(201), 200), ("中 ".repeat(300), 200), ("\u{202e}a\u{1b}b".into(), 2)]
        {
            let line = one_line(&text);
            assert_eq!(line.chars().count(), len, "{line}");
        }
        assert!(one_line(&"x".repeat(201)).ends_with("x…"));
    }
}
