//! Request → generateContent JSON. Calls and results are paired by name and order, ids are not sent.

use serde_json::Value;

use super::names::sent_name;
use crate::dialect::json::{Fields, Json, object};
use crate::dialect::transform::{self, IdRule, Part, Piece, Returned, Said, Turn};
use crate::dialect::{Api, Call, Request, Target, quirks};

/// What Google's manual gives for calls that another model made: Gemini 3 refuses one without a signature.
const NO_SIGNATURE: &str = "skip_thought_signature_validator";

pub fn call(request: &Request, _target: Target<'_>) -> Call {
    let mut body: Fields<'_> = Vec::new();
    if !request.system_prompt.trim().is_empty() {
        let parts = vec![object! { "text" => &*request.system_prompt }];
        body.push(("systemInstruction", object! { "parts" => parts }));
    }
    if !request.tools.is_empty() {
        let tools = request.tools.iter().map(|tool| {
            object! {
                "name" => sent_name(&tool.name),
                "description" => tool.description.as_str(),
                "parametersJsonSchema" => &tool.parameters,
            }
        });
        let tools: Json<'_> = tools.collect();
        body.push(("tools", Json::List(vec![object! { "functionDeclarations" => tools }])));
    }
    let turns = transform::turns(request, Api::Google, IdRule::Plain { max: 64 });
    body.push(("contents", contents(request, &turns).into()));
    let mut generation: Fields<'_> = Vec::new();
    if let Some(max) = transform::max_tokens(request) {
        generation.push(("maxOutputTokens", max.into()));
    }
    if let Some(thinking) = thinking(request) {
        generation.push(("thinkingConfig", thinking));
    }
    if !generation.is_empty() {
        body.push(("generationConfig", Json::Object(generation)));
    }
    let id = request.model.model_id.trim_start_matches("models/");
    Call {
        path: format!("/models/{id}:streamGenerateContent?alt=sse"),
        headers: Vec::new(),
        body: Json::Object(body).text(),
        key_header: ("x-goog-api-key", ""),
    }
}

fn is_gemini_3(request: &Request) -> bool {
    request.model.model_id.contains("gemini-3")
}

fn thinking(request: &Request) -> Option<Json<'_>> {
    if !request.model.reasoning {
        return None;
    }
    let asked = request.options.get("reasoning-effort").and_then(Value::as_str);
    Some(match quirks::effort(&request.model, asked) {
        None => object! { "includeThoughts" => true },
        Some("off") => object! { "thinkingBudget" => 0u64 },
        Some(level) if is_gemini_3(request) => {
            let level = if matches!(level, "xhigh" | "max") { "high" } else { level };
            object! { "includeThoughts" => true, "thinkingLevel" => level }
        }
        Some(level) => {
            let budget = match level {
                "minimal" => 1_024u64,
                "low" => 2_048,
                "medium" => 8_192,
                _ => 24_576,
            };
            object! { "includeThoughts" => true, "thinkingBudget" => budget }
        }
    })
}

fn contents<'a>(request: &Request, turns: &'a [Turn<'_>]) -> Vec<Json<'a>> {
    let mut out: Vec<Json<'_>> = Vec::with_capacity(turns.len() + 1);
    if !matches!(turns.first(), Some(Turn::User(_))) {
        out.push(content("user", vec![object! { "text" => "(The conversation begins here.)" }]));
    }
    for turn in turns {
        match turn {
            Turn::User(parts) => out.push(content("user", parts.iter().map(part).collect())),
            Turn::Assistant(said) => {
                let parts = assistant(said, is_gemini_3(request));
                if !parts.is_empty() {
                    out.push(content("model", parts));
                }
            }
            Turn::Results(results) => {
                out.push(content("user", results.iter().map(response).collect()));
                let pictures: Vec<Json<'_>> = results.iter().flat_map(pictures).collect();
                if !pictures.is_empty() {
                    out.push(content("user", pictures));
                }
            }
        }
    }
    out
}

fn content<'a>(role: &'static str, parts: Vec<Json<'a>>) -> Json<'a> {
    object! { "role" => role, "parts" => parts }
}

fn part<'a>(part: &'a Part<'_>) -> Json<'a> {
    match part {
        Part::Text(text) => object! { "text" => &**text },
        Part::Image(image) => {
            let data = object! { "mimeType" => image.mime_type.as_str(), "data" => image.data.as_str() };
            object! { "inlineData" => data }
        }
    }
}

fn assistant<'a>(said: &'a Said<'_>, signatures_required: bool) -> Vec<Json<'a>> {
    let mut parts = Vec::with_capacity(said.pieces.len());
    let mut calls = 0;
    for piece in &said.pieces {
        let (mut part, signature) = match piece {
            Piece::Text { text, signature } => (object! { "text" => *text }, *signature),
            Piece::Thinking(block) => {
                // Thoughts are for people; only signed ones mean something to the model.
                let Some(signature) = block.thinking_signature.as_deref() else { continue };
                (object! { "text" => block.thinking.as_str(), "thought" => true }, Some(signature))
            }
            Piece::Call { call, .. } => {
                calls += 1;
                let own = call.thought_signature.as_deref().filter(|_| said.own);
                let signature = own.or((signatures_required && calls == 1).then_some(NO_SIGNATURE));
                let call = object! { "name" => sent_name(&call.name), "args" => &call.arguments };
                (object! { "functionCall" => call }, signature)
            }
        };
        if let Some(signature) = signature {
            part.set("thoughtSignature", signature);
        }
        parts.push(part);
    }
    parts
}

fn response<'a>(result: &'a Returned<'_>) -> Json<'a> {
    let key = if result.is_error { "error" } else { "output" };
    let response = object! { key => result.text() };
    object! { "functionResponse" => object! { "name" => sent_name(result.name), "response" => response } }
}

/// Pictures follow in a message of their own: beside responses, their number would no longer be that of the calls.
fn pictures<'a>(result: &'a Returned<'_>) -> Vec<Json<'a>> {
    let mut parts: Vec<Json<'_>> =
        result.parts.iter().filter(|part| matches!(part, Part::Image(_))).map(part).collect();
    if !parts.is_empty() {
        parts.insert(0, object! { "text" => format!("Image from the result of {}:", result.name) });
    }
    parts
}
