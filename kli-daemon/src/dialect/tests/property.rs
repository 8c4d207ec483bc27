//! For any conversation that is paired, each format makes a request that a strict server takes, and what was sent
//! once is sent again the same.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

/// Text as models and people leave it: often empty or blank.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), Just(" \n".to_owned()), "[a-z\u{0}\u{4e2d}\"\\\\]{1,8}"]
}

fn id() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("call_0".to_owned()),
        Just(String::new()),
        Just("functions.read:0".to_owned()),
        Just("a|b".to_owned()),
        Just("x".repeat(300)),
        "[a-zA-Z0-9:.]{9}",
    ]
}

fn block() -> impl Strategy<Value = Value> {
    prop_oneof![
        text().prop_map(|text| json!({ "type": "text", "text": text })),
        (text(), proptest::option::of(text())).prop_map(|(thinking, signature)| {
            let signature = signature.map(|s| if s.is_empty() { "reasoning_content".into() } else { s });
            json!({ "type": "thinking", "thinking": thinking, "thinkingSignature": signature })
        }),
        Just(json!({ "type": "image", "data": "aGk=", "mimeType": "image/png" })),
        Just(json!({ "type": "future", "x": 1 })),
    ]
}

/// One message, or an assistant message with its results.
fn group() -> impl Strategy<Value = Vec<Value>> {
    let origin = prop_oneof![Just(("p", "m")), Just(("p", "other")), Just(("q", "m"))];
    let api = prop_oneof![Just("openai-chat"), Just("anthropic"), Just("openai-responses"), Just("google")];
    let results = proptest::collection::vec((id(), proptest::collection::vec(block(), 0..3), any::<bool>()), 0..4);
    let blocks = || proptest::collection::vec(block(), 0..3);
    prop_oneof![
        blocks().prop_map(|content| vec![json!({ "role": "user", "content": content })]),
        text().prop_map(|content| vec![json!({ "role": "user", "content": content })]),
        (origin, api, blocks(), results).prop_map(|((provider, model), api, mut content, results)| {
            content.extend(results.iter().map(|(id, ..)| json!({ "type": "toolCall", "id": id, "name": "read", "arguments": { "path": "a" } })));
            let mut group = vec![json!({ "role": "assistant", "api": api, "provider": provider, "model": model, "content": content })];
            group.extend(results.into_iter().map(|(id, content, is_error)| {
                json!({ "role": "toolResult", "toolCallId": id, "toolName": "read", "content": content, "isError": is_error })
            }));
            group
        }),
    ]
}

/// What all formats come down to: who says what, with which calls and results.
enum Item {
    Text(String),
    Call(String),
    Result(String, String),
}

fn items(api: Api, body: &Value) -> Vec<Item> {
    let string = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut items = Vec::new();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    match api {
        Api::OpenaiChat => {
            for message in list(&body["messages"]) {
                match &message["content"] {
                    content if message["role"] == "tool" => {
                        items.push(Item::Result(string(&message["tool_call_id"]), string(content)))
                    }
                    Value::String(text) => items.push(Item::Text(text.clone())),
                    Value::Array(parts) => {
                        assert!(!parts.is_empty());
                        items.extend(
                            parts.iter().filter(|p| p["type"] == "text").map(|p| Item::Text(string(&p["text"]))),
                        );
                    }
                    _ => assert!(message["tool_calls"].is_array(), "{message}"),
                }
                for call in list(&message["tool_calls"]) {
                    let arguments: Value =
                        serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
                    assert!(arguments.is_object());
                    items.push(Item::Call(string(&call["id"])));
                }
            }
        }
        Api::Anthropic => {
            let mut last = Value::Null;
            for message in list(&body["messages"]) {
                assert_ne!(message["role"], last);
                last = message["role"].clone();
                assert!(!list(&message["content"]).is_empty());
                for block in list(&message["content"]) {
                    match block["type"].as_str().unwrap() {
                        "text" => items.push(Item::Text(string(&block["text"]))),
                        "tool_use" => items.push(Item::Call(string(&block["id"]))),
                        "tool_result" => {
                            items.push(Item::Result(string(&block["tool_use_id"]), first_text(&block["content"])))
                        }
                        "thinking" => assert!(!block["signature"].as_str().unwrap().is_empty()),
                        _ => {}
                    }
                }
            }
            assert_eq!(last, "user");
        }
        Api::OpenaiResponses => {
            for item in list(&body["input"]) {
                match item["type"].as_str() {
                    Some("function_call") => items.push(Item::Call(string(&item["call_id"]))),
                    Some("function_call_output") => {
                        items.push(Item::Result(string(&item["call_id"]), first_text(&item["output"])));
                    }
                    _ => {
                        let content = list(&item["content"]);
                        assert!(!content.is_empty());
                        items.extend(
                            content.iter().filter(|p| p.get("text").is_some()).map(|p| Item::Text(string(&p["text"]))),
                        );
                    }
                }
            }
        }
        Api::Google => {
            // Without ids: calls and results are paired by their number.
            for (n, content) in list(&body["contents"]).iter().enumerate() {
                let parts = list(&content["parts"]);
                assert!(!parts.is_empty());
                let count = |key: &str| parts.iter().filter(|p| p.get(key).is_some()).count();
                for at in 0..count("functionCall") {
                    items.push(Item::Call(format!("{n}-{at}")));
                }
                for (at, part) in parts.iter().filter(|p| p.get("functionResponse").is_some()).enumerate() {
                    let response = &part["functionResponse"]["response"];
                    let text = response.get("output").or(response.get("error")).unwrap();
                    items.push(Item::Result(format!("{}-{at}", n - 1), string(text)));
                }
                items.extend(
                    parts
                        .iter()
                        .filter(|p| p.get("thought").is_none())
                        .filter_map(|p| p.get("text"))
                        .map(|t| Item::Text(string(t))),
                );
            }
        }
    }
    items
}

fn first_text(content: &Value) -> String {
    let parts = content.as_array().into_iter().flatten();
    let mut texts = parts.filter_map(|part| part["text"].as_str());
    content.as_str().or_else(|| texts.next()).unwrap_or_default().to_owned()
}

fn check_valid(api: Api, body: &Value) {
    let mut open: Vec<String> = Vec::new();
    let mut seen = HashSet::new();
    for item in items(api, body) {
        match item {
            Item::Text(text) => {
                assert!(!text.trim().is_empty(), "{}: blank text in {body}", api.name());
                assert!(open.is_empty() || api == Api::Google, "{}: open calls in {body}", api.name());
            }
            Item::Call(id) => {
                let limit = if api == Api::Anthropic { 64 } else { 256 };
                assert!(!id.is_empty() && id.len() <= limit, "{}: {id}", api.name());
                assert!(seen.insert(id.clone()), "{}: {id} twice", api.name());
                open.push(id);
            }
            Item::Result(id, text) => {
                assert!(!text.trim().is_empty(), "{}: empty result", api.name());
                assert_eq!(open.first(), Some(&id), "{}: {body}", api.name());
                open.remove(0);
            }
        }
    }
    assert!(open.is_empty(), "{}: {open:?} unanswered", api.name());
}

/// Stored conversations of the failure list, without the messages that a context leaves out.
#[test]
fn of_the_failure_list() {
    for file in
        ["F048-duplicate-call-id-across-turns.jsonl", "F108-cross-model-thinking.jsonl", "F116-empty-assistant.jsonl"]
    {
        let Some(text) = failure_case(file) else { continue };
        let records = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut messages: Vec<Value> = records.filter_map(|record| record.get("message").cloned()).collect();
        messages.retain(|message| message["stopReason"] != "error");
        messages.push(json!({ "role": "user", "content": "go" }));
        for api in Api::ALL {
            for model in [model("anthropic", "model-B"), model("p", "m")] {
                let body = encode(api, "https://api.anthropic.com", &request(model, Value::Array(messages.clone())));
                check_valid(api, &body);
                assert!(!body.to_string().contains("c2ln"), "{file}: a signature of another model");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_conversation_is_a_valid_request(groups in proptest::collection::vec(group(), 1..8)) {
        for (api, url) in [
            (Api::OpenaiChat, "http://127.0.0.1:1/v1"),
            (Api::OpenaiChat, "https://api.mistral.ai/v1"),
            (Api::Anthropic, "https://api.anthropic.com"),
            (Api::OpenaiResponses, "https://api.openai.com/v1"),
            (Api::Google, "https://generativelanguage.googleapis.com/v1beta"),
        ] {
            let mut before: Option<Vec<Value>> = None;
            for end in 1..=groups.len() {
                let mut messages: Vec<Value> = groups[..end].concat();
                messages.push(json!({ "role": "user", "content": "go" }));
                let body = encode(api, url, &request(model("p", "m"), Value::Array(messages)));
                check_valid(api, &body);
                if api == Api::OpenaiChat {
                    // All but the closing prompt is there again, the same.
                    let mut sent = body["messages"].as_array().unwrap().clone();
                    sent.pop();
                    if let Some(before) = before {
                        prop_assert_eq!(&sent[..before.len()], &before[..]);
                    }
                    before = Some(sent);
                }
            }
        }
    }
}
