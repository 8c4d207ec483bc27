//! Request → chat completions JSON. What changes least stands first, for the provider's prompt cache.

use std::borrow::Cow;

use kli_protocol::record::ThinkingBlock;
use serde_json::Value;

use crate::dialect::json::{Fields, Json, object};
use crate::dialect::quirks::{self, Quirks, Thinking};
use crate::dialect::transform::{self, Part, Piece, Returned, Said, Turn};
use crate::dialect::{Api, Call, Request, Target};

/// Under which names servers put thinking; what came under a name goes back under it.
pub const THINKING_FIELDS: [&str; 3] = ["reasoning_content", "reasoning", "reasoning_text"];

pub fn call(request: &Request, target: Target<'_>) -> Call {
    let quirks = quirks::of(target, &request.model);
    let mut body: Fields<'_> = vec![("model", request.model.model_id.as_str().into()), ("stream", true.into())];
    if quirks.stream_options {
        body.push(("stream_options", object! { "include_usage" => true }));
    }
    if quirks.cache_key && !request.cache_key.is_empty() {
        body.push(("prompt_cache_key", request.cache_key.as_str().into()));
    }
    let thinks = thinking(request, quirks, &mut body);
    if !request.tools.is_empty() {
        let tools = request.tools.iter().map(|tool| {
            let function = object! {
                "name" => tool.name.as_str(),
                "description" => tool.description.as_str(),
                "parameters" => &tool.parameters,
            };
            object! { "type" => "function", "function" => function }
        });
        body.push(("tools", tools.collect()));
    }
    let turns = transform::turns(request, Api::OpenaiChat, quirks.ids);
    body.push(("messages", messages(request, &turns, quirks, thinks).into()));
    // Last, since it shrinks as the context fills.
    if let Some(max) = transform::max_tokens(request) {
        let name = if quirks.max_completion_tokens { "max_completion_tokens" } else { "max_tokens" };
        body.push((name, max.into()));
    }
    Call {
        path: "/chat/completions".into(),
        headers: Vec::new(),
        body: Json::Object(body).text(),
        key_header: ("authorization", "Bearer "),
    }
}

/// Writes how hard to think; true unless thinking is certainly off.
fn thinking<'a>(request: &'a Request, quirks: Quirks, body: &mut Fields<'a>) -> bool {
    let asked = request.options.get("reasoning-effort").and_then(Value::as_str);
    let Some(level) = quirks::effort(&request.model, asked) else { return request.model.reasoning };
    let off = level == "off";
    let (key, value) = match quirks.thinking {
        // A server that does not know "none" refuses the request; left out, it does as it likes.
        Thinking::Effort { none: false } if off => return true,
        Thinking::Effort { .. } => ("reasoning_effort", Json::from(if off { "none" } else { level })),
        Thinking::Reasoning if off => ("reasoning", object! { "enabled" => false }),
        Thinking::Reasoning => ("reasoning", object! { "effort" => level }),
        Thinking::Switch => ("thinking", object! { "type" => if off { "disabled" } else { "enabled" } }),
        Thinking::Enable => ("enable_thinking", Json::from(!off)),
        Thinking::Fixed => return true,
    };
    body.push((key, value));
    !off
}

fn messages<'a>(request: &'a Request, turns: &'a [Turn<'_>], quirks: Quirks, thinks: bool) -> Vec<Json<'a>> {
    let mut out = Vec::with_capacity(request.messages.len() + 1);
    if !request.system_prompt.trim().is_empty() {
        out.push(object! { "role" => "system", "content" => &*request.system_prompt });
    }
    for turn in turns {
        match turn {
            Turn::User(parts) => out.push(object! { "role" => "user", "content" => user_content(parts) }),
            Turn::Assistant(said) => out.extend(assistant(said, quirks, thinks)),
            Turn::Results(results) => tool_results(results, &mut out),
        }
    }
    if quirks.cache_control {
        mark_for_cache(&mut out);
    }
    out
}

fn user_content<'a>(parts: &'a [Part<'_>]) -> Json<'a> {
    match parts {
        [Part::Text(text)] => Json::from(&**text),
        _ => parts.iter().map(part).collect(),
    }
}

fn part<'a>(part: &'a Part<'_>) -> Json<'a> {
    match part {
        Part::Text(text) => object! { "type" => "text", "text" => &**text },
        Part::Image(image) => {
            let url = format!("data:{};base64,{}", image.mime_type, image.data);
            object! { "type" => "image_url", "image_url" => object! { "url" => url } }
        }
    }
}

fn assistant<'a>(said: &'a Said<'_>, quirks: Quirks, thinks: bool) -> Option<Json<'a>> {
    let mut text: Option<Cow<'a, str>> = None;
    let mut calls = Vec::new();
    let mut thought = Vec::new();
    for piece in &said.pieces {
        match piece {
            Piece::Text { text: piece, .. } => match &mut text {
                None => text = Some(Cow::Borrowed(piece)),
                Some(text) => text.to_mut().push_str(piece),
            },
            Piece::Thinking(block) => thought.push(*block),
            Piece::Call { id, call } => {
                let arguments = serde_json::to_string(&call.arguments).unwrap_or_default();
                let function = object! { "name" => call.name.as_str(), "arguments" => arguments };
                calls.push(object! { "id" => id.as_ref(), "type" => "function", "function" => function });
            }
        }
    }
    if text.is_none() && calls.is_empty() {
        return None;
    }
    let mut message: Fields<'_> =
        vec![("role", "assistant".into()), ("content", text.map_or_else(Json::null, Json::from))];
    if !calls.is_empty() {
        message.extend(thinking_fields(&thought));
        let has_content = message.iter().any(|(key, _)| *key == "reasoning_content");
        if quirks.reasoning_content_required && thinks && !has_content {
            // From another model, or lost on the way. A blank passes the check; some servers take "" for missing.
            message.push(("reasoning_content", " ".into()));
        }
        message.push(("tool_calls", calls.into()));
    }
    Some(Json::Object(message))
}

/// Thinking as it came, for the servers that want it back beside tool calls: the signature of a block says
/// under which field it came, or is the list of OpenRouter's `reasoning_details`.
fn thinking_fields<'a>(thought: &[&'a ThinkingBlock]) -> Fields<'a> {
    let mut fields: Fields<'a> = Vec::new();
    for block in thought {
        let signature = block.thinking_signature.as_deref().unwrap_or_default();
        if let Some(name) = THINKING_FIELDS.into_iter().find(|name| *name == signature) {
            match fields.iter_mut().find(|(key, _)| *key == name) {
                Some((_, Json::Text(text))) => text.to_mut().push_str(&block.thinking),
                _ => fields.push((name, block.thinking.as_str().into())),
            }
        } else if signature.starts_with('[')
            && let Ok(details @ Value::Array(_)) = serde_json::from_str::<Value>(signature)
        {
            match fields.iter_mut().find(|(key, _)| *key == "reasoning_details") {
                // The last list counts.
                Some((_, known)) => *known = details.into(),
                None => fields.push(("reasoning_details", details.into())),
            }
        }
    }
    fields
}

/// Tool messages hold text only: pictures follow in a user message, after all results of the turn.
fn tool_results<'a>(results: &'a [Returned<'_>], out: &mut Vec<Json<'a>>) {
    let mut pictures = Vec::new();
    for result in results {
        out.push(object! { "role" => "tool", "tool_call_id" => result.id.as_ref(), "content" => result.text() });
        let images: Vec<Json<'_>> = result.parts.iter().filter(|p| matches!(p, Part::Image(_))).map(part).collect();
        if !images.is_empty() {
            let text = format!("Image from the result of {}:", result.name);
            pictures.push(object! { "type" => "text", "text" => text });
            pictures.extend(images);
        }
    }
    if !pictures.is_empty() {
        out.push(object! { "role" => "user", "content" => pictures });
    }
}

/// Marks the system prompt and the last user message, for models behind OpenRouter that cache on demand.
fn mark_for_cache(messages: &mut [Json<'_>]) {
    fn mark(message: &mut Json<'_>) {
        let Some(content) = message.get_mut("content") else { return };
        if let Json::Text(text) = content {
            let text = std::mem::take(text);
            *content = Json::List(vec![object! { "type" => "text", "text" => text }]);
        }
        if let Some(part) = content.list_mut().and_then(|parts| parts.last_mut()) {
            part.set("cache_control", object! { "type" => "ephemeral" });
        }
    }
    let is = |message: &Json<'_>, role: &str| message.get("role").and_then(Json::as_str) == Some(role);
    if let Some(first) = messages.first_mut().filter(|m| is(m, "system")) {
        mark(first);
    }
    if let Some(last) = messages.iter_mut().rev().find(|m| is(m, "user")) {
        mark(last);
    }
}
