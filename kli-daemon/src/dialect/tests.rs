//! What all formats share in their tests: replies are replayed from text, requests built from JSON.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use kli_protocol::api::{ModelInfo, RunErrorKind, ToolDescription};
use kli_protocol::record::{AssistantMessage, Block, Message};
use serde_json::{Value, json};

use super::*;

mod anthropic;
mod google;
mod openai_chat;
mod openai_responses;
mod property;

/// A file of the shared failure cases; none where they are not at hand.
pub fn failure_case(name: &str) -> Option<String> {
    let root = std::env::var_os("KLI_SHARED")
        .map(PathBuf::from)
        .unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared"));
    let path = root.join("failures").join(name);
    std::fs::read_to_string(&path).map_err(|e| eprintln!("skipped {}: {e}", path.display())).ok()
}

pub fn model(provider: &str, id: &str) -> Arc<ModelInfo> {
    Arc::new(ModelInfo {
        provider: provider.into(),
        model_id: id.into(),
        context_window: 200_000,
        max_output: 4_096,
        input: vec!["text".into(), "image".into()],
        cost: kli_protocol::api::ModelCost { input: 1.0, output: 2.0, cache_read: 0.5, cache_write: 4.0 },
        ..ModelInfo::default()
    })
}

pub fn thinker(provider: &str, id: &str) -> Arc<ModelInfo> {
    let levels = ["off", "low", "medium", "high"].map(str::to_owned).to_vec();
    let option = kli_protocol::api::ModelOption {
        option_id: "reasoning-effort".into(),
        values: levels,
        default: "medium".into(),
    };
    Arc::new(ModelInfo { reasoning: true, options: vec![option], ..ModelInfo::clone(&model(provider, id)) })
}

pub fn request(model: Arc<ModelInfo>, messages: Value) -> Request {
    let messages: Vec<Message> = serde_json::from_value(messages).unwrap();
    Request {
        model,
        system_prompt: "Be brief.".into(),
        tools: Arc::new([ToolDescription {
            name: "read".into(),
            description: "Reads a file.".into(),
            parameters: json!({ "type": "object", "properties": { "path": { "type": "string" } }, "required": ["path"] }),
        }]),
        messages: messages.into_iter().map(Arc::new).collect(),
        options: BTreeMap::new(),
        max_tokens: None,
        cache_key: "s1".into(),
    }
}

pub fn encode(api: Api, base_url: &str, request: &Request) -> Value {
    serde_json::from_slice(&api.dialect().encode(request, Target { api, base_url }).body).unwrap()
}

/// How a reply ended.
#[derive(Debug)]
pub struct Replayed {
    pub message: AssistantMessage,
    pub failure: Option<Failure>,
}

impl Replayed {
    pub fn text(&self) -> String {
        self.message.content.text()
    }

    /// `[["c1", "read", {…}], …]`
    pub fn calls(&self) -> Value {
        self.message.content.tool_calls().map(|call| json!([call.id, call.name, call.arguments])).collect()
    }
}

/// Feeds a recorded stream to a decoder, as the HTTP client would, and checks what holds for every reply.
pub fn replay(api: Api, model: Arc<ModelInfo>, stream: &str) -> Replayed {
    let start = Start { api: api.name(), model, timestamp: 1, seed: 0xabc };
    let mut decoder = api.dialect().decoder(start);
    let mut parser = sse::Parser::new(1 << 20);
    let mut server_events = Vec::new();
    parser.push(stream.as_bytes(), &mut server_events).unwrap();
    parser.finish(&mut server_events);
    let mut events = Vec::new();
    let mut failure = None;
    for event in &server_events {
        match decoder.event(event) {
            Ok(Heard::End) => break,
            Ok(_) => events.extend(decoder.assembler().take_events()),
            Err(f) => {
                failure = Some(f);
                break;
            }
        }
    }
    let failure = failure.or_else(|| {
        (!decoder.complete()).then(|| Failure::passing(kli_protocol::api::RunErrorKind::Network, "cut short"))
    });
    decoder.seal();
    events.extend(match failure {
        None => decoder.assembler().done(),
        Some(failure) => decoder.assembler().failed(failure, kli_protocol::record::StopReason::Error),
    });
    let (message, failure) = match events.pop() {
        Some(StreamEvent::Done(message)) => (*message, None),
        Some(StreamEvent::Failed { failure, partial }) => (*partial, Some(failure)),
        other => panic!("no end: {other:?}"),
    };
    if failure.is_none() {
        check_deltas(&message, &events);
    }
    Replayed { message, failure }
}

/// An error in whatever form, in the middle of a reply and instead of it, is the end: what came before it does not
/// pass for a whole reply, also with the mark that ends a stream behind it.
#[test]
fn errors_in_a_stream() {
    let half = |api: Api| match api {
        Api::OpenaiChat => json!({ "choices": [{ "index": 0, "delta": { "content": "Hel" } }] }),
        Api::OpenaiResponses => json!({ "type": "response.output_text.delta", "output_index": 0, "delta": "Hel" }),
        Api::Anthropic => {
            json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "text_delta", "text": "Hel" } })
        }
        Api::Google => json!({ "candidates": [{ "content": { "parts": [{ "text": "Hel" }] } }] }),
    };
    let errors = [
        r#"data: {"error":{"message":"bad tool schema","type":"invalid_request_error","code":null}}"#,
        r#"data: {"error":"bad tool schema","code":400}"#,
        r#"data: {"object":"error","message":"bad tool schema","type":"BadRequestError","param":null,"code":400}"#,
        r#"data: {"type":"error","error":{"type":"invalid_request_error","message":"bad tool schema"}}"#,
        r#"data: {"type":"error","code":"invalid_request_error","message":"bad tool schema","param":null}"#,
        r#"data: [{"error":{"code":400,"message":"bad tool schema","status":"INVALID_ARGUMENT"}}]"#,
        r#"data: {"detail":"bad tool schema","status":400}"#,
        "event: error\ndata: {\"code\":400,\"message\":\"bad tool schema\"}",
        "event: error\ndata: invalid_request: bad tool schema",
    ];
    for api in Api::ALL {
        for error in errors {
            for (before, text) in [(String::new(), ""), (format!("data: {}\n\n", half(api)), "Hel")] {
                let reply = replay(api, model("p", "m"), &format!("{before}{error}\n\ndata: [DONE]\n\n"));
                let failure =
                    reply.failure.as_ref().unwrap_or_else(|| panic!("{}: {error} was passed over", api.name()));
                assert_eq!((failure.kind, failure.retryable), (RunErrorKind::BadRequest, false), "{error}");
                assert!(failure.message.contains("bad tool schema"), "{}", failure.message);
                assert_eq!(reply.text(), text);
            }
        }
    }
}

/// What a server sends to keep the line open does not count as an answer, also when it looks like one.
#[test]
fn pings_are_not_content() {
    let check = |api: Api, event: Value, expected: Heard| {
        let start = Start { api: api.name(), model: model("p", "m"), timestamp: 1, seed: 1 };
        let event = sse::Event { data: event.to_string(), ..sse::Event::default() };
        assert_eq!(api.dialect().decoder(start).event(&event).unwrap(), expected, "{} {}", api.name(), event.data);
    };
    for (text, expected) in [("", Heard::Nothing), ("x", Heard::Content)] {
        check(Api::OpenaiChat, json!({ "choices": [{ "index": 0, "delta": { "content": text } }] }), expected);
        let delta = json!({ "type": "response.output_text.delta", "output_index": 0, "delta": text });
        check(Api::OpenaiResponses, delta, expected);
        let delta =
            json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "text_delta", "text": text } });
        check(Api::Anthropic, delta, expected);
        check(Api::Google, json!({ "candidates": [{ "content": { "parts": [{ "text": text }] } }] }), expected);
    }
    check(Api::OpenaiResponses, json!({ "type": "response.in_progress" }), Heard::Nothing);
    check(Api::Anthropic, json!({ "type": "ping" }), Heard::Nothing);
    check(Api::Google, json!({ "usageMetadata": { "promptTokenCount": 1 } }), Heard::Nothing);
}

/// A server that goes on talking after the end, and never closes, is not listened to for ever.
#[test]
fn nothing_new_after_the_end() {
    let check = |api: Api, events: &[(Value, Heard)]| {
        let mut decoder =
            api.dialect().decoder(Start { api: api.name(), model: model("p", "m"), timestamp: 1, seed: 1 });
        for (event, expected) in events {
            let event = sse::Event { data: event.to_string(), ..sse::Event::default() };
            assert_eq!(decoder.event(&event).unwrap(), *expected, "{} {}", api.name(), event.data);
        }
    };
    let choice = |text: &str, reason: Value| json!({ "choices": [{ "index": 0, "delta": { "content": text }, "finish_reason": reason }] });
    check(
        Api::OpenaiChat,
        &[
            (choice("x", Value::Null), Heard::Content),
            (choice("", json!("stop")), Heard::Stopped),
            (json!({ "choices": [], "usage": { "prompt_tokens": 1 } }), Heard::Nothing),
            (choice("", Value::Null), Heard::Nothing),
            (choice("y", Value::Null), Heard::Stopped),
        ],
    );
    let part = |text: &str| json!({ "candidates": [{ "content": { "parts": [{ "text": text }] } }] });
    let end = json!({ "candidates": [{ "finishReason": "STOP" }] });
    check(Api::Google, &[(part("x"), Heard::Content), (end, Heard::Stopped), (part(""), Heard::Nothing)]);
}

/// Half a surrogate pair in a reply: the reply is taken all the same.
#[test]
fn lone_surrogates() {
    for (api, stream) in [
        (Api::OpenaiChat, r#"data: {"choices":[{"index":0,"delta":{"content":"a\ud83dz"},"finish_reason":"stop"}]}"#),
        (
            Api::OpenaiResponses,
            r#"data: {"type":"response.completed","response":{"status":"completed","output":[{"type":"message","content":[{"type":"output_text","text":"a\ud83dz"}]}]}}"#,
        ),
        (
            Api::Anthropic,
            "data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"a\\ud83dz\"}}\n\ndata: {\"type\":\"message_stop\"}",
        ),
        (Api::Google, r#"data: {"candidates":[{"content":{"parts":[{"text":"a\ud83dz"}]},"finishReason":"STOP"}]}"#),
    ] {
        let reply = replay(api, model("p", "m"), &format!("{stream}\n\n"));
        assert!(reply.failure.is_none(), "{:?}", reply.failure);
        assert_eq!(reply.text(), "a\u{fffd}z");
    }
}

/// The deltas of a whole reply add up to its message, and no block is blank.
fn check_deltas(message: &AssistantMessage, events: &[StreamEvent]) {
    let mut told: BTreeMap<u32, String> = BTreeMap::new();
    let mut named: BTreeMap<u32, (String, String)> = BTreeMap::new();
    for event in events {
        match event {
            StreamEvent::Text { index, delta } | StreamEvent::Thinking { index, delta } => {
                told.entry(*index).or_default().push_str(delta);
            }
            StreamEvent::ToolCall { index, id, name, delta } => {
                told.entry(*index).or_default().push_str(delta);
                let first = named.entry(*index).or_insert_with(|| (id.clone(), name.clone()));
                assert_eq!((&first.0, &first.1), (id, name), "id and name stay the same");
            }
            _ => {}
        }
    }
    for (index, block) in message.content.blocks().iter().enumerate() {
        let told = told.get(&u32::try_from(index).unwrap()).map(String::as_str).unwrap_or_default();
        match block {
            Block::Text(block) => {
                assert_eq!(told, block.text);
                assert!(!block.text.trim().is_empty());
            }
            Block::Thinking(block) => assert_eq!(told, block.thinking),
            Block::ToolCall(call) => {
                assert_eq!(serde_json::Value::Object(arguments::parse(told)), Value::Object(call.arguments.clone()));
                assert!(!call.id.is_empty() && !call.name.is_empty());
            }
            other => panic!("{other:?}"),
        }
    }
}
