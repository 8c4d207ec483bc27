//! Request → Responses JSON. No item bears an id: with `store: false` the server knows none.

use serde_json::{Map, Value, json};

use crate::dialect::transform::{self, IdRule, Part, Piece, Returned, Said, Turn};
use crate::dialect::{Api, Call, Request, Target, quirks};

pub fn call(request: &Request, _target: Target<'_>) -> Call {
    let mut body = Map::new();
    body.insert("model".into(), json!(request.model.model_id));
    body.insert("stream".into(), json!(true));
    body.insert("store".into(), json!(false));
    if request.model.reasoning {
        body.insert("include".into(), json!(["reasoning.encrypted_content"]));
        let asked = request.options.get("reasoning-effort").and_then(Value::as_str);
        match quirks::effort(&request.model, asked) {
            None => {}
            Some("off") => {
                body.insert("reasoning".into(), json!({ "effort": "none" }));
            }
            Some(level) => {
                body.insert("reasoning".into(), json!({ "effort": level, "summary": "auto" }));
            }
        }
    }
    if !request.cache_key.is_empty() {
        body.insert("prompt_cache_key".into(), json!(request.cache_key));
    }
    if !request.system_prompt.trim().is_empty() {
        body.insert("instructions".into(), json!(&*request.system_prompt));
    }
    if !request.tools.is_empty() {
        let tools = request.tools.iter().map(|tool| {
            json!({ "type": "function", "name": tool.name, "description": tool.description,
                "parameters": tool.parameters, "strict": false })
        });
        body.insert("tools".into(), tools.collect());
    }
    body.insert("input".into(), Value::Array(input(request)));
    if let Some(max) = transform::max_tokens(request) {
        // The API takes no less.
        body.insert("max_output_tokens".into(), json!(max.max(16)));
    }
    Call {
        path: "/responses".into(),
        headers: Vec::new(),
        body: Value::Object(body),
        key_header: ("authorization", "Bearer "),
    }
}

fn input(request: &Request) -> Vec<Value> {
    let mut out = Vec::with_capacity(request.messages.len());
    for turn in transform::turns(request, Api::OpenaiResponses, IdRule::Plain { max: 64 }) {
        match turn {
            Turn::User(parts) => {
                let content: Vec<Value> = parts.iter().map(part).collect();
                out.push(json!({ "role": "user", "content": content }));
            }
            Turn::Assistant(said) => assistant(&said, &mut out),
            Turn::Results(results) => out.extend(results.iter().map(result)),
        }
    }
    out
}

fn part(part: &Part<'_>) -> Value {
    match part {
        Part::Text(text) => json!({ "type": "input_text", "text": text }),
        Part::Image(image) => {
            let url = format!("data:{};base64,{}", image.mime_type, image.data);
            json!({ "type": "input_image", "image_url": url, "detail": "auto" })
        }
    }
}

fn assistant(said: &Said<'_>, out: &mut Vec<Value>) {
    // Reasoning is refused unless the item that it led to follows.
    let last = said.pieces.iter().rposition(|piece| !matches!(piece, Piece::Thinking(_))).unwrap_or(0);
    for (at, piece) in said.pieces.iter().enumerate() {
        match piece {
            Piece::Text { text, signature } => {
                let mut item = json!({ "type": "message", "role": "assistant",
                    "content": [{ "type": "output_text", "text": text }] });
                let signed = signature.and_then(|signature| serde_json::from_str::<Value>(signature).ok());
                if let (Some(phase), Value::Object(item)) = (signed.as_ref().and_then(|s| s.get("phase")), &mut item) {
                    item.insert("phase".into(), phase.clone());
                }
                out.push(item);
            }
            Piece::Thinking(block) if at < last => out.extend(block.thinking_signature.as_deref().and_then(reasoning)),
            Piece::Thinking(_) => {}
            Piece::Call { id, call } => {
                let arguments = Value::Object(call.arguments.clone()).to_string();
                out.push(json!({ "type": "function_call", "call_id": id, "name": call.name, "arguments": arguments }));
            }
        }
    }
}

/// The reasoning item that a signature holds. Without encrypted content it would be a reference to something
/// that the server has not kept.
fn reasoning(signature: &str) -> Option<Value> {
    let item: Value = serde_json::from_str(signature).ok()?;
    let encrypted = item.get("encrypted_content").filter(|content| content.is_string())?;
    let summary = item.get("summary").cloned().unwrap_or_else(|| json!([]));
    Some(json!({ "type": "reasoning", "summary": summary, "encrypted_content": encrypted }))
}

fn result(result: &Returned<'_>) -> Value {
    let output = if result.parts.iter().any(|part| matches!(part, Part::Image(_))) {
        result.parts.iter().map(part).collect()
    } else {
        json!(result.text())
    };
    json!({ "type": "function_call_output", "call_id": result.id, "output": output })
}
