//! Request → Messages JSON.
//!
//! Cache marks: on the system prompt, the last tool, and the last two user messages (the cache is found again only
//! within 20 blocks of a mark, and a turn may bring more results than that).

use serde_json::Value;

use crate::dialect::json::{Fields, Json, object};
use crate::dialect::transform::{self, IdRule, Part, Piece, Returned, Said, Turn};
use crate::dialect::{Api, Call, Request, Target, quirks};

pub fn call(request: &Request, target: Target<'_>) -> Call {
    let turns = transform::turns(request, Api::Anthropic, IdRule::Strict { max: 64 });
    let max_tokens = transform::max_tokens(request).unwrap_or(4_096);
    let mut body: Fields<'_> = vec![("model", request.model.model_id.as_str().into()), ("stream", true.into())];
    if let Some(budget) = thinking_budget(request, max_tokens).filter(|_| may_think(&turns)) {
        body.push(("thinking", object! { "type" => "enabled", "budget_tokens" => budget }));
    }
    if !request.system_prompt.trim().is_empty() {
        let mut system = Json::List(vec![object! { "type" => "text", "text" => &*request.system_prompt }]);
        mark_last(&mut system);
        body.push(("system", system));
    }
    if !request.tools.is_empty() {
        let tools = request.tools.iter().map(|tool| {
            object! {
                "name" => tool.name.as_str(),
                "description" => tool.description.as_str(),
                "input_schema" => &tool.parameters,
            }
        });
        let mut tools: Json<'_> = tools.collect();
        mark_last(&mut tools);
        body.push(("tools", tools));
    }
    body.push(("messages", messages(&turns).into()));
    body.push(("max_tokens", max_tokens.into()));
    let mut headers = vec![("anthropic-version", "2023-06-01".to_owned())];
    if quirks::host(target.base_url).ends_with("anthropic.com") {
        // Thinking between tool calls.
        headers.push(("anthropic-beta", "interleaved-thinking-2025-05-14".to_owned()));
    }
    let path = if target.base_url.ends_with("/v1") { "/messages" } else { "/v1/messages" };
    Call { path: path.into(), headers, body: Json::Object(body).text(), key_header: ("x-api-key", "") }
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
        .is_none_or(|first| matches!(first.get("type").and_then(Json::as_str), Some("thinking" | "redacted_thinking")))
}

fn messages<'a>(turns: &'a [Turn<'_>]) -> Vec<Json<'a>> {
    let mut out: Vec<(&str, Vec<Json<'_>>)> = Vec::with_capacity(turns.len());
    if !matches!(turns.first(), Some(Turn::User(_))) {
        out.push(("user", vec![object! { "type" => "text", "text" => "(The conversation begins here.)" }]));
    }
    for turn in turns {
        let (role, blocks) = match turn {
            Turn::User(parts) => ("user", parts.iter().map(part).collect()),
            Turn::Assistant(said) => ("assistant", assistant(said)),
            Turn::Results(results) => {
                ("user", results.iter().map(result).chain(results.iter().flat_map(pictures)).collect())
            }
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
    let mut messages: Vec<Json<'_>> =
        out.into_iter().map(|(role, content)| object! { "role" => role, "content" => content }).collect();
    let is_user = |message: &&mut Json<'_>| message.get("role").and_then(Json::as_str) == Some("user");
    for message in messages.iter_mut().rev().filter(is_user).take(2) {
        if let Some(content) = message.get_mut("content") {
            mark_last(content);
        }
    }
    messages
}

fn mark_last(list: &mut Json<'_>) {
    if let Some(last) = list.list_mut().and_then(|list| list.last_mut()) {
        last.set("cache_control", object! { "type" => "ephemeral" });
    }
}

fn part<'a>(part: &'a Part<'_>) -> Json<'a> {
    match part {
        Part::Text(text) => object! { "type" => "text", "text" => &**text },
        Part::Image(image) => object! { "type" => "image", "source" => object! {
        "type" => "base64", "media_type" => image.mime_type.as_str(), "data" => image.data.as_str() } },
    }
}

fn assistant<'a>(said: &'a Said<'_>) -> Vec<Json<'a>> {
    said.pieces.iter().filter_map(block_of).collect()
}

fn block_of<'a>(piece: &'a Piece<'_>) -> Option<Json<'a>> {
    match piece {
        Piece::Text { text, .. } => Some(object! { "type" => "text", "text" => *text }),
        Piece::Thinking(block) => {
            // Thinking that was cut off has no signature, and is refused.
            let signature = block.thinking_signature.as_deref().filter(|signature| !signature.is_empty())?;
            Some(if block.redacted == Some(true) {
                object! { "type" => "redacted_thinking", "data" => signature }
            } else {
                object! { "type" => "thinking", "thinking" => block.thinking.as_str(), "signature" => signature }
            })
        }
        Piece::Call { id, call } => Some(object! {
        "type" => "tool_use", "id" => id.as_ref(), "name" => call.name.as_str(), "input" => &call.arguments }),
    }
}

fn result<'a>(result: &'a Returned<'_>) -> Json<'a> {
    let inside = |part: &&Part<'_>| !result.is_error || matches!(part, Part::Text(_));
    let content: Vec<Json<'_>> = result.parts.iter().filter(inside).map(part).collect();
    let mut block = object! { "type" => "tool_result", "tool_use_id" => result.id.as_ref(), "content" => content };
    if result.is_error {
        block.set("is_error", true);
    }
    block
}

/// The pictures of a result that is an error, which may hold text alone: they follow behind all results.
fn pictures<'a>(result: &'a Returned<'_>) -> Vec<Json<'a>> {
    let is_picture = |part: &&Part<'_>| result.is_error && matches!(part, Part::Image(_));
    let mut blocks: Vec<Json<'_>> = result.parts.iter().filter(is_picture).map(part).collect();
    if !blocks.is_empty() {
        let text = format!("Image from the result of {}:", result.name);
        blocks.insert(0, object! { "type" => "text", "text" => text });
    }
    blocks
}
