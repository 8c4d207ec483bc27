//! Token estimates of messages and requests. Where a provider reported usage, that is the anchor, and only what
//! came later is estimated: see [`super::Assembled::tokens`].

use kli_protocol::api::ToolDescription;
use kli_protocol::record::{Block, Body, Content, ImageBlock, Message, Record, ToolCallBlock};
use serde_json::Value;

use super::script;

/// What surrounds each message on the wire: role, separators, ids.
const FRAME: u64 = 4;
/// Name and id of a call, beyond its arguments.
const CALL_FRAME: u64 = 12;

/// Of an image: providers count its pixels, never its bytes.
const IMAGE_MIN: u64 = 1_000;
const IMAGE_MAX: u64 = 6_000;
const PIXELS_PER_TOKEN: u64 = 750;
/// Where the size is unknown: base64 bytes, a guess.
const BYTES_PER_TOKEN: u64 = 600;

pub fn text(text: &str) -> u64 {
    script::tokens(text)
}

pub fn message(message: &Message) -> u64 {
    FRAME
        + match message {
            Message::User(m) => content(&m.content),
            Message::Assistant(m) => content(&m.content),
            Message::ToolResult(m) => CALL_FRAME + content(&m.content),
            Message::BashExecution(m) => text(&m.command) + text(&m.output),
            Message::Unknown => return 0,
        }
}

/// What an entry of the tree adds to a request that holds it.
pub fn record(record: &Record) -> u64 {
    match &record.body {
        Body::Message(body) => message(&body.message),
        Body::CustomMessage(custom) => FRAME + content(&custom.content),
        Body::Compaction(compaction) => FRAME + text(&compaction.summary),
        Body::BranchSummary(summary) => FRAME + text(&summary.summary),
        _ => 0,
    }
}

pub fn content(content: &Content) -> u64 {
    match content {
        Content::Text(words) => text(words),
        Content::Blocks(blocks) => blocks.iter().map(block).fold(0, u64::saturating_add),
    }
}

pub fn block(block: &Block) -> u64 {
    match block {
        Block::Text(block) => text(&block.text),
        Block::Image(block) => image(block),
        // A redacted block is all signature; one that is shown costs its text.
        Block::Thinking(block) if block.thinking.is_empty() => {
            block.thinking_signature.as_ref().map_or(0, |hidden| hidden.len() as u64 / 8)
        }
        Block::Thinking(block) => text(&block.thinking),
        Block::ToolCall(call) => tool_call(call),
        Block::Unknown(_) => 0,
    }
}

fn tool_call(call: &ToolCallBlock) -> u64 {
    let arguments = call.arguments.iter().map(|(name, value)| text(name) + 3 + json(value));
    CALL_FRAME + text(&call.name) + arguments.fold(0, u64::saturating_add)
}

/// Tokens of a value as JSON text, without printing it. Not recursive: depth is the model's to choose.
fn json(value: &Value) -> u64 {
    let mut sum: u64 = 0;
    let mut open = vec![value];
    while let Some(value) = open.pop() {
        sum = sum.saturating_add(match value {
            Value::Null | Value::Bool(_) => 1,
            Value::Number(_) => 2,
            // Line ends and quotes are escaped.
            Value::String(words) => {
                1 + text(words) + words.bytes().filter(|b| matches!(b, b'\n' | b'"')).count() as u64 / 2
            }
            Value::Array(values) => {
                open.extend(values);
                1 + values.len() as u64
            }
            Value::Object(fields) => {
                open.extend(fields.values());
                fields.keys().map(|name| text(name) + 3).sum::<u64>() + 1
            }
        });
    }
    sum
}

fn image(block: &ImageBlock) -> u64 {
    let tokens = match super::image::size(block) {
        Some((width, height)) => u64::from(width) * u64::from(height) / PIXELS_PER_TOKEN,
        None => block.data.len() as u64 / BYTES_PER_TOKEN,
    };
    tokens.clamp(IMAGE_MIN, IMAGE_MAX)
}

/// System prompt and tools of a request.
pub fn overhead(system_prompt: &str, tools: &[ToolDescription]) -> u64 {
    let tools = tools.iter().map(|t| CALL_FRAME + text(&t.name) + text(&t.description) + json(&t.parameters));
    tools.fold(FRAME + text(system_prompt), u64::saturating_add)
}

/// How much of a model's window a request may fill, and how much of the end of a branch a compaction keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    pub window: u64,
    /// Left free for the reply.
    pub reserve: u64,
    pub keep_recent: u64,
}

/// How many tokens of the end of a branch a compaction keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    pub about: u64,
    /// Where one long message would make it more than this, that message goes too.
    pub most: u64,
}

/// Of a model whose window is not known.
const UNKNOWN_WINDOW: u64 = 32_768;

impl Budget {
    /// The settings, fitted to small windows: at least half of one is for the request, of which a compaction keeps
    /// at most half.
    pub fn new(window: u64, reserve: u64, keep_recent: u64) -> Budget {
        let known = if window == 0 { UNKNOWN_WINDOW } else { window };
        let reserve = reserve.min(known / 2);
        Budget { window, reserve, keep_recent: keep_recent.min((known - reserve) / 2) }
    }

    /// Tokens that a request may have.
    pub fn room(&self) -> u64 {
        if self.window == 0 { u64::MAX } else { self.window.saturating_sub(self.reserve) }
    }

    /// What a compaction keeps of a request, of which system prompt and tools take `overhead`.
    pub fn kept(&self, overhead: u64) -> Kept {
        // What is left of the room is for the summary, and for what comes next.
        Kept { about: self.keep_recent, most: self.room().saturating_sub(overhead) / 4 * 3 }
    }

    pub fn needs_compaction(&self, tokens: u64) -> bool {
        tokens > self.room()
    }

    /// The window, also where it is not known.
    pub fn assumed_window(&self) -> u64 {
        if self.window == 0 { UNKNOWN_WINDOW } else { self.window }
    }
}

/// The output limit of a request of so many tokens: the model's own, or what its window leaves. None: no limit known.
pub fn output_limit(window: u64, max_output: u64, tokens: u64) -> Option<u64> {
    if max_output == 0 {
        return None;
    }
    if window == 0 {
        return Some(max_output);
    }
    // Estimates err: a twentieth stays free.
    let left = window.saturating_sub(tokens).saturating_sub(window / 20);
    Some(max_output.min(left.max(1_024)))
}

#[cfg(test)]
mod tests;
