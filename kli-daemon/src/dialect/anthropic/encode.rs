//! Request → Messages JSON.
//!
//! Cache marks: on the system prompt, the last tool, and the last two user messages (the cache is found again only
//! within 20 blocks of a mark, and a turn may bring more results than that).

use serde_json::{Map, Value, json};

use crate::dialect::transform::{self, IdRule, Part, Piece, Returned, Said, Turn};
use crate::dialect::{Api, Call, Request, Target, quirks};

pub fn call(request: &Request, target: Target<'_>) -> Call {
    let turns = transform::turns(request, Api::Anthropic, IdRule::Strict { max: 64 });
    let max_tokens = transform::max_tokens(request).unwrap_or(4_096);
    let mut body = Map::new();
    body.insert("model".into(), json!(request.model.model_id));
    body.insert("stream".into(), json!(true));
    if let Some(budget) = thinking_budget(request, max_tokens).filter(|_| may_think(&turns)) {
        body.insert("thinking".into(), json!({ "type": "enabled", "budget_tokens": budget }));
    }
    if !request.system_prompt.trim().is_empty() {
        let mut system = json!([{ "type": "text", "text": &*request.system_prompt }]);
        mark_last(&mut system);
        body.insert("system".into(), system);
    }
    if !request.tools.is_empty() {
        let tools = request
            .tools
            .iter()
            .map(|tool| json!({ "name": tool.name, "description": tool.description, "input_schema": tool.parameters }));
        let mut tools: Value = tools.collect();
        mark_last(&mut tools);
        body.insert("tools".into(), tools);
    }
    body.insert("messages".into(), Value::Array(messages(&turns)));
    body.insert("max_tokens".into(), json!(max_tokens));
    let mut headers = vec![("anthropic-version", "2023-06-01".to_owned())];
    if quirks::host(target.base_url).ends_with("anthropic.com") {
        // Thinking between tool calls.
        headers.push(("anthropic-beta", "interleaved-thinking-2025-05-14".to_owned()));
    }
    let path = if target.base_url.ends_with("/v1") { "/messages" } else { "/v1/messages" };
    Call { path: path.into(), headers, body: Value::Object(body), key_header: ("x-api-key", "") }
}

/// Tokens for thinking; they count into `max_tokens`, and there are at least 1024 of them.
fn thinking_budget(request: &Request, max_tokens: u64) -> Option<u64> {
    let asked = request.options.get("reasoning-effort").and_then(Value::as_str);
    let budget = match quirks::effort(&request.model, asked)? {
        "off" => return None,
        "minimal" => 1_024,
        "low" => 2_048,
        "medium" => 8_192,
        "high" => 16_384,
        _ => 32_768,
    };
    (max_tokens >= 2_048).then(|| budget.min(max_tokens - 1_024))
}

/// With thinking switched on, a tool loop that goes on must have begun with thinking. One that another model
/// began, or this one without thinking, is ended without.
fn may_think(turns: &[Turn<'_>]) -> bool {
    let mut back = turns.iter().rev().skip_while(|turn| matches!(turn, Turn::User(_))).peekable();
    if !matches!(back.peek(), Some(Turn::Results(_))) {
        return true;
    }
    let began = back.take_while(|turn| !matches!(turn, Turn::User(_))).filter_map(|turn| match turn {
        Turn::Assistant(said) => said.pieces.iter().find_map(block_of),
        _ => None,
    });
    began
        .last()
        .is_none_or(|first| matches!(first.get("type").and_then(Value::as_str), Some("thinking" | "redacted_thinking")))
}

fn messages(turns: &[Turn<'_>]) -> Vec<Value> {
    let mut out: Vec<(&str, Vec<Value>)> = Vec::with_capacity(turns.len());
    if !matches!(turns.first(), Some(Turn::User(_))) {
        out.push(("user", vec![json!({ "type": "text", "text": "(The conversation begins here.)" })]));
    }
    for turn in turns {
        let (role, blocks) = match turn {
            Turn::User(parts) => ("user", parts.iter().map(part).collect()),
            Turn::Assistant(said) => ("assistant", assistant(said)),
            Turn::Results(results) => ("user", results.iter().map(result).collect()),
        };
        if blocks.is_empty() {
            continue;
        }
        // Results and what a person says after them are one message; so servers that want roles to alternate
        // are content as well.
        match out.last_mut() {
            Some((last, content)) if *last == role => content.extend(blocks),
            _ => out.push((role, blocks)),
        }
    }
    let mut messages: Vec<Value> =
        out.into_iter().map(|(role, content)| json!({ "role": role, "content": content })).collect();
    let is_user = |message: &&mut Value| message.get("role").and_then(Value::as_str) == Some("user");
    for message in messages.iter_mut().rev().filter(is_user).take(2) {
        if let Some(content) = message.get_mut("content") {
            mark_last(content);
        }
    }
    messages
}

fn mark_last(list: &mut Value) {
    if let Some(Value::Object(last)) = list.as_array_mut().and_then(|list| list.last_mut()) {
        last.insert("cache_control".into(), json!({ "type": "ephemeral" }));
    }
}

fn part(part: &Part<'_>) -> Value {
    match part {
        Part::Text(text) => json!({ "type": "text", "text": text }),
        Part::Image(image) => json!({ "type": "image", "source": {
            "type": "base64", "media_type": image.mime_type, "data": image.data } }),
    }
}

fn assistant(said: &Said<'_>) -> Vec<Value> {
    said.pieces.iter().filter_map(block_of).collect()
}

fn block_of(piece: &Piece<'_>) -> Option<Value> {
    match piece {
        Piece::Text { text, .. } => Some(json!({ "type": "text", "text": text })),
        Piece::Thinking(block) => {
            // Thinking that was cut off has no signature, and is refused.
            let signature = block.thinking_signature.as_deref().filter(|signature| !signature.is_empty())?;
            Some(if block.redacted == Some(true) {
                json!({ "type": "redacted_thinking", "data": signature })
            } else {
                json!({ "type": "thinking", "thinking": block.thinking, "signature": signature })
            })
        }
        Piece::Call { id, call } => {
            Some(json!({ "type": "tool_use", "id": id, "name": call.name, "input": call.arguments }))
        }
    }
}

fn result(result: &Returned<'_>) -> Value {
    let content: Vec<Value> = result.parts.iter().map(part).collect();
    let mut block = json!({ "type": "tool_result", "tool_use_id": result.id, "content": content });
    if result.is_error
        && let Value::Object(block) = &mut block
    {
        block.insert("is_error".into(), json!(true));
    }
    block
}
