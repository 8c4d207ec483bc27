//! Request → Responses JSON. No item bears an id: with `store: false` the server knows none.

use serde_json::Value;

use crate::dialect::json::{Fields, Json, object};
use crate::dialect::transform::{self, IdRule, Part, Piece, Returned, Said, Turn};
use crate::dialect::{Api, Call, Request, Target, quirks};

pub fn call(request: &Request, _target: Target<'_>) -> Call {
    let mut body: Fields<'_> =
        vec![("model", request.model.model_id.as_str().into()), ("stream", true.into()), ("store", false.into())];
    if request.model.reasoning {
        body.push(("include", Json::List(vec!["reasoning.encrypted_content".into()])));
        let asked = request.options.get("reasoning-effort").and_then(Value::as_str);
        match quirks::effort(&request.model, asked) {
            None => {}
            Some("off") => body.push(("reasoning", object! { "effort" => "none" })),
            Some(level) => body.push(("reasoning", object! { "effort" => level, "summary" => "auto" })),
        }
    }
    if !request.cache_key.is_empty() {
        body.push(("prompt_cache_key", request.cache_key.as_str().into()));
    }
    if !request.system_prompt.trim().is_empty() {
        body.push(("instructions", (&*request.system_prompt).into()));
    }
    if !request.tools.is_empty() {
        let tools = request.tools.iter().map(|tool| {
            object! {
                "type" => "function",
                "name" => tool.name.as_str(),
                "description" => tool.description.as_str(),
                "parameters" => &tool.parameters,
                "strict" => false,
            }
        });
        body.push(("tools", tools.collect()));
    }
    let turns = transform::turns(request, Api::OpenaiResponses, IdRule::Plain { max: 64 });
    body.push(("input", input(&turns).into()));
    if let Some(max) = transform::max_tokens(request) {
        // The API takes no less.
        body.push(("max_output_tokens", max.max(16).into()));
    }
    Call {
        path: "/responses".into(),
        headers: Vec::new(),
        body: Json::Object(body).text(),
        key_header: ("authorization", "Bearer "),
    }
}

fn input<'a>(turns: &'a [Turn<'_>]) -> Vec<Json<'a>> {
    let mut out = Vec::with_capacity(turns.len());
    for turn in turns {
        match turn {
            Turn::User(parts) => {
                let content: Vec<Json<'_>> = parts.iter().map(part).collect();
                out.push(object! { "role" => "user", "content" => content });
            }
            Turn::Assistant(said) => assistant(said, &mut out),
            Turn::Results(results) => out.extend(results.iter().map(result)),
        }
    }
    out
}

fn part<'a>(part: &'a Part<'_>) -> Json<'a> {
    match part {
        Part::Text(text) => object! { "type" => "input_text", "text" => &**text },
        Part::Image(image) => {
            let url = format!("data:{};base64,{}", image.mime_type, image.data);
            object! { "type" => "input_image", "image_url" => url, "detail" => "auto" }
        }
    }
}

/// Words go in front of calls: between a call and its output the API wants nothing else.
fn assistant<'a>(said: &'a Said<'_>, out: &mut Vec<Json<'a>>) {
    let mut calls = Vec::new();
    // Reasoning is refused unless the item that it led to follows.
    let mut reasoned = Vec::new();
    for piece in &said.pieces {
        match piece {
            Piece::Text { text, signature } => {
                let content = vec![object! { "type" => "output_text", "text" => *text }];
                let mut item = object! { "type" => "message", "role" => "assistant", "content" => content };
                let signed = signature.and_then(|signature| serde_json::from_str::<Value>(signature).ok());
                if let Some(phase) = signed.as_ref().and_then(|s| s.get("phase")) {
                    item.set("phase", phase.clone());
                }
                out.append(&mut reasoned);
                out.push(item);
            }
            Piece::Thinking(block) => reasoned.extend(block.thinking_signature.as_deref().and_then(reasoning)),
            Piece::Call { id, call } => {
                let arguments = serde_json::to_string(&call.arguments).unwrap_or_default();
                calls.append(&mut reasoned);
                calls.push(object! {
                    "type" => "function_call",
                    "call_id" => id.as_ref(),
                    "name" => call.name.as_str(),
                    "arguments" => arguments,
                });
            }
        }
    }
    out.append(&mut calls);
}

/// The reasoning item that a signature holds. Without encrypted content it would be a reference to something
/// that the server has not kept.
fn reasoning<'a>(signature: &str) -> Option<Json<'a>> {
    let item: Value = serde_json::from_str(signature).ok()?;
    let encrypted = item.get("encrypted_content").filter(|content| content.is_string())?.clone();
    let summary = item.get("summary").cloned().unwrap_or_else(|| Value::Array(Vec::new()));
    Some(object! { "type" => "reasoning", "summary" => summary, "encrypted_content" => encrypted })
}

fn result<'a>(result: &'a Returned<'_>) -> Json<'a> {
    let output = if result.parts.iter().any(|part| matches!(part, Part::Image(_))) {
        result.parts.iter().map(part).collect()
    } else {
        Json::from(result.text())
    };
    object! { "type" => "function_call_output", "call_id" => result.id.as_ref(), "output" => output }
}
