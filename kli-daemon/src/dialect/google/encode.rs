//! Request → generateContent JSON. Calls and results are paired by name and order, ids are not sent.

use serde_json::{Map, Value, json};

use crate::dialect::transform::{self, IdRule, Part, Piece, Returned, Said, Turn};
use crate::dialect::{Api, Call, Request, Target, quirks};

/// What Google's manual gives for calls that another model made: Gemini 3 refuses one without a signature.
const NO_SIGNATURE: &str = "skip_thought_signature_validator";

pub fn call(request: &Request, _target: Target<'_>) -> Call {
    let mut body = Map::new();
    if !request.system_prompt.trim().is_empty() {
        body.insert("systemInstruction".into(), json!({ "parts": [{ "text": &*request.system_prompt }] }));
    }
    if !request.tools.is_empty() {
        let tools = request.tools.iter().map(|tool| {
            json!({ "name": tool.name, "description": tool.description, "parametersJsonSchema": tool.parameters })
        });
        let tools: Value = tools.collect();
        body.insert("tools".into(), json!([{ "functionDeclarations": tools }]));
    }
    body.insert("contents".into(), Value::Array(contents(request)));
    let mut generation = Map::new();
    if let Some(max) = transform::max_tokens(request) {
        generation.insert("maxOutputTokens".into(), json!(max));
    }
    if let Some(thinking) = thinking(request) {
        generation.insert("thinkingConfig".into(), thinking);
    }
    if !generation.is_empty() {
        body.insert("generationConfig".into(), Value::Object(generation));
    }
    let id = request.model.model_id.trim_start_matches("models/");
    Call {
        path: format!("/models/{id}:streamGenerateContent?alt=sse"),
        headers: Vec::new(),
        body: Value::Object(body),
        key_header: ("x-goog-api-key", ""),
    }
}

fn is_gemini_3(request: &Request) -> bool {
    request.model.model_id.contains("gemini-3")
}

fn thinking(request: &Request) -> Option<Value> {
    if !request.model.reasoning {
        return None;
    }
    let asked = request.options.get("reasoning-effort").and_then(Value::as_str);
    Some(match quirks::effort(&request.model, asked) {
        None => json!({ "includeThoughts": true }),
        Some("off") => json!({ "thinkingBudget": 0 }),
        Some(level) if is_gemini_3(request) => {
            let level = if matches!(level, "xhigh" | "max") { "high" } else { level };
            json!({ "includeThoughts": true, "thinkingLevel": level })
        }
        Some(level) => {
            let budget = match level {
                "minimal" => 1_024,
                "low" => 2_048,
                "medium" => 8_192,
                _ => 24_576,
            };
            json!({ "includeThoughts": true, "thinkingBudget": budget })
        }
    })
}

fn contents(request: &Request) -> Vec<Value> {
    let mut out: Vec<Value> = Vec::with_capacity(request.messages.len());
    let turns = transform::turns(request, Api::Google, IdRule::Plain { max: 64 });
    if !matches!(turns.first(), Some(Turn::User(_))) {
        out.push(content("user", vec![json!({ "text": "(The conversation begins here.)" })]));
    }
    for turn in turns {
        match turn {
            Turn::User(parts) => out.push(content("user", parts.iter().map(part).collect())),
            Turn::Assistant(said) => {
                let parts = assistant(&said, is_gemini_3(request));
                if !parts.is_empty() {
                    out.push(content("model", parts));
                }
            }
            Turn::Results(results) => {
                out.push(content("user", results.iter().map(response).collect()));
                let pictures: Vec<Value> = results.iter().flat_map(pictures).collect();
                if !pictures.is_empty() {
                    out.push(content("user", pictures));
                }
            }
        }
    }
    out
}

fn content(role: &str, parts: Vec<Value>) -> Value {
    json!({ "role": role, "parts": parts })
}

fn part(part: &Part<'_>) -> Value {
    match part {
        Part::Text(text) => json!({ "text": text }),
        Part::Image(image) => json!({ "inlineData": { "mimeType": image.mime_type, "data": image.data } }),
    }
}

fn assistant(said: &Said<'_>, signatures_required: bool) -> Vec<Value> {
    let mut parts = Vec::with_capacity(said.pieces.len());
    let mut calls = 0;
    for piece in &said.pieces {
        let (mut part, signature) = match piece {
            Piece::Text { text, signature } => (json!({ "text": text }), *signature),
            Piece::Thinking(block) => {
                // Thoughts are for people; only signed ones mean something to the model.
                let Some(signature) = block.thinking_signature.as_deref() else { continue };
                (json!({ "text": block.thinking, "thought": true }), Some(signature))
            }
            Piece::Call { call, .. } => {
                calls += 1;
                let own = call.thought_signature.as_deref().filter(|_| said.own);
                let signature = own.or((signatures_required && calls == 1).then_some(NO_SIGNATURE));
                (json!({ "functionCall": { "name": call.name, "args": call.arguments } }), signature)
            }
        };
        if let (Some(signature), Value::Object(part)) = (signature, &mut part) {
            part.insert("thoughtSignature".into(), json!(signature));
        }
        parts.push(part);
    }
    parts
}

fn response(result: &Returned<'_>) -> Value {
    let key = if result.is_error { "error" } else { "output" };
    json!({ "functionResponse": { "name": result.name, "response": { key: result.text() } } })
}

/// Pictures follow in a message of their own: beside responses, their number would no longer be that of the calls.
fn pictures(result: &Returned<'_>) -> Vec<Value> {
    let mut parts: Vec<Value> = result.parts.iter().filter(|part| matches!(part, Part::Image(_))).map(part).collect();
    if !parts.is_empty() {
        parts.insert(0, json!({ "text": format!("Image from the result of {}:", result.name) }));
    }
    parts
}
