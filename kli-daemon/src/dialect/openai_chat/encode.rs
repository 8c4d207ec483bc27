//! Request → chat completions JSON. What changes least stands first, for the provider's prompt cache.

use kli_protocol::record::ThinkingBlock;
use serde_json::{Map, Value, json};

use crate::dialect::quirks::{self, Quirks, Thinking};
use crate::dialect::transform::{self, Part, Piece, Returned, Said, Turn};
use crate::dialect::{Api, Call, Request, Target};

/// Under which names servers put thinking; what came under a name goes back under it.
pub const THINKING_FIELDS: [&str; 3] = ["reasoning_content", "reasoning", "reasoning_text"];

pub fn call(request: &Request, target: Target<'_>) -> Call {
    let quirks = quirks::of(target, &request.model);
    let mut body = Map::new();
    body.insert("model".into(), json!(request.model.model_id));
    body.insert("stream".into(), json!(true));
    if quirks.stream_options {
        body.insert("stream_options".into(), json!({ "include_usage": true }));
    }
    if quirks.cache_key && !request.cache_key.is_empty() {
        body.insert("prompt_cache_key".into(), json!(request.cache_key));
    }
    let thinks = thinking(request, quirks, &mut body);
    if !request.tools.is_empty() {
        let tools = request.tools.iter().map(|tool| {
            json!({ "type": "function", "function": {
                "name": tool.name, "description": tool.description, "parameters": tool.parameters } })
        });
        body.insert("tools".into(), tools.collect());
    }
    body.insert("messages".into(), Value::Array(messages(request, quirks, thinks)));
    // Last, since it shrinks as the context fills.
    if let Some(max) = transform::max_tokens(request) {
        let name = if quirks.max_completion_tokens { "max_completion_tokens" } else { "max_tokens" };
        body.insert(name.into(), json!(max));
    }
    Call {
        path: "/chat/completions".into(),
        headers: Vec::new(),
        body: Value::Object(body),
        key_header: ("authorization", "Bearer "),
    }
}

/// Writes how hard to think; true unless thinking is certainly off.
fn thinking(request: &Request, quirks: Quirks, body: &mut Map<String, Value>) -> bool {
    let asked = request.options.get("reasoning-effort").and_then(Value::as_str);
    let Some(level) = quirks::effort(&request.model, asked) else { return request.model.reasoning };
    let off = level == "off";
    let (key, value) = match quirks.thinking {
        // A server that does not know "none" refuses the request; left out, it does as it likes.
        Thinking::Effort { none: false } if off => return true,
        Thinking::Effort { .. } => ("reasoning_effort", json!(if off { "none" } else { level })),
        Thinking::Reasoning if off => ("reasoning", json!({ "enabled": false })),
        Thinking::Reasoning => ("reasoning", json!({ "effort": level })),
        Thinking::Switch => ("thinking", json!({ "type": if off { "disabled" } else { "enabled" } })),
        Thinking::Enable => ("enable_thinking", json!(!off)),
        Thinking::Fixed => return true,
    };
    body.insert(key.into(), value);
    !off
}

fn messages(request: &Request, quirks: Quirks, thinks: bool) -> Vec<Value> {
    let mut out = Vec::with_capacity(request.messages.len() + 1);
    if !request.system_prompt.trim().is_empty() {
        out.push(json!({ "role": "system", "content": &*request.system_prompt }));
    }
    for turn in transform::turns(request, Api::OpenaiChat, quirks.ids) {
        match turn {
            Turn::User(parts) => out.push(json!({ "role": "user", "content": user_content(&parts) })),
            Turn::Assistant(said) => out.extend(assistant(&said, quirks, thinks)),
            Turn::Results(results) => tool_results(&results, &mut out),
        }
    }
    if quirks.cache_control {
        mark_for_cache(&mut out);
    }
    out
}

fn user_content(parts: &[Part<'_>]) -> Value {
    match parts {
        [Part::Text(text)] => json!(text),
        _ => parts.iter().map(part).collect(),
    }
}

fn part(part: &Part<'_>) -> Value {
    match part {
        Part::Text(text) => json!({ "type": "text", "text": text }),
        Part::Image(image) => {
            let url = format!("data:{};base64,{}", image.mime_type, image.data);
            json!({ "type": "image_url", "image_url": { "url": url } })
        }
    }
}

fn assistant(said: &Said<'_>, quirks: Quirks, thinks: bool) -> Option<Value> {
    let mut text = String::new();
    let mut calls = Vec::new();
    let mut thought = Vec::new();
    for piece in &said.pieces {
        match piece {
            Piece::Text { text: piece, .. } => text.push_str(piece),
            Piece::Thinking(block) => thought.push(*block),
            Piece::Call { id, call } => {
                let arguments = Value::Object(call.arguments.clone()).to_string();
                calls.push(json!({ "id": id, "type": "function", "function": {
                    "name": call.name, "arguments": arguments } }));
            }
        }
    }
    if text.is_empty() && calls.is_empty() {
        return None;
    }
    let mut message = Map::new();
    message.insert("role".into(), json!("assistant"));
    message.insert("content".into(), if text.is_empty() { Value::Null } else { json!(text) });
    if !calls.is_empty() {
        for (key, value) in thinking_fields(&thought) {
            message.insert(key, value);
        }
        if quirks.reasoning_content_required && thinks && !message.contains_key("reasoning_content") {
            // From another model, or lost on the way. A blank passes the check; some servers take "" for missing.
            message.insert("reasoning_content".into(), json!(" "));
        }
        message.insert("tool_calls".into(), Value::Array(calls));
    }
    Some(Value::Object(message))
}

/// Thinking as it came, for the servers that want it back beside tool calls: the signature of a block says
/// under which field it came, or is the list of OpenRouter's `reasoning_details`.
fn thinking_fields(thought: &[&ThinkingBlock]) -> Vec<(String, Value)> {
    let mut fields: Vec<(String, Value)> = Vec::new();
    for block in thought {
        match block.thinking_signature.as_deref() {
            Some(name) if THINKING_FIELDS.contains(&name) => match fields.iter_mut().find(|(key, _)| key == name) {
                Some((_, Value::String(text))) => text.push_str(&block.thinking),
                _ => fields.push((name.to_owned(), json!(block.thinking))),
            },
            Some(details) if details.starts_with('[') => {
                if let Ok(details @ Value::Array(_)) = serde_json::from_str(details) {
                    fields.push(("reasoning_details".into(), details));
                }
            }
            _ => {}
        }
    }
    fields
}

/// Tool messages hold text only: pictures follow in a user message, after all results of the turn.
fn tool_results(results: &[Returned<'_>], out: &mut Vec<Value>) {
    let mut pictures = Vec::new();
    for result in results {
        out.push(json!({ "role": "tool", "tool_call_id": result.id, "content": result.text() }));
        let images: Vec<Value> = result.parts.iter().filter(|p| matches!(p, Part::Image(_))).map(part).collect();
        if !images.is_empty() {
            pictures.push(json!({ "type": "text", "text": format!("Image from the result of {}:", result.name) }));
            pictures.extend(images);
        }
    }
    if !pictures.is_empty() {
        out.push(json!({ "role": "user", "content": pictures }));
    }
}

/// Marks the system prompt and the last user message, for models behind OpenRouter that cache on demand.
fn mark_for_cache(messages: &mut [Value]) {
    fn mark(message: &mut Value) {
        if let Some(content @ Value::String(_)) = message.get_mut("content") {
            let text = content.take();
            *content = json!([{ "type": "text", "text": text }]);
        }
        let last = message.get_mut("content").and_then(Value::as_array_mut).and_then(|parts| parts.last_mut());
        if let Some(Value::Object(part)) = last {
            part.insert("cache_control".into(), json!({ "type": "ephemeral" }));
        }
    }
    let is = |message: &Value, role: &str| message.get("role").and_then(Value::as_str) == Some(role);
    if let Some(first) = messages.first_mut().filter(|m| is(m, "system")) {
        mark(first);
    }
    if let Some(last) = messages.iter_mut().rev().find(|m| is(m, "user")) {
        mark(last);
    }
}
