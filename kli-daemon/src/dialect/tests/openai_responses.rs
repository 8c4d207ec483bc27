use super::*;
use kli_protocol::api::RunErrorKind;
use kli_protocol::record::StopReason;

const URL: &str = "https://api.openai.com/v1";

fn play(stream: &str) -> Replayed {
    replay(Api::OpenaiResponses, thinker("openai", "gpt"), stream)
}

fn stream(events: &[Value]) -> String {
    events.iter().map(|e| format!("event: {}\ndata: {e}\n\n", e["type"].as_str().unwrap())).collect()
}

/// A reply with reasoning, text and a call, as the API sends one.
fn whole() -> Vec<Value> {
    vec![
        json!({"type":"response.created","response":{"id":"resp_1","status":"in_progress"}}),
        json!({"type":"response.output_item.added","output_index":0,"item":{"type":"reasoning","id":"rs_1","summary":[]}}),
        json!({"type":"response.reasoning_summary_part.added","output_index":0,"summary_index":0}),
        json!({"type":"response.reasoning_summary_text.delta","output_index":0,"delta":"first"}),
        json!({"type":"response.reasoning_summary_part.added","output_index":0,"summary_index":1}),
        json!({"type":"response.reasoning_summary_text.delta","output_index":0,"delta":"second"}),
        json!({"type":"response.output_item.done","output_index":0,"item":{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"first"}],"encrypted_content":"ZW5j"}}),
        json!({"type":"response.output_item.added","output_index":1,"item":{"type":"message","id":"msg_1","role":"assistant","content":[]}}),
        json!({"type":"response.output_text.delta","output_index":1,"content_index":0,"delta":"I look."}),
        json!({"type":"response.output_item.done","output_index":1,"item":{"type":"message","id":"msg_1","content":[{"type":"output_text","text":"I look."}],"phase":"commentary"}}),
        json!({"type":"response.output_item.added","output_index":2,"item":{"type":"function_call","id":"fc_1","call_id":"call_1","name":"read","arguments":""}}),
        json!({"type":"response.function_call_arguments.delta","output_index":2,"delta":"{\"path\":"}),
        json!({"type":"response.function_call_arguments.delta","output_index":2,"delta":"\"a\"}"}),
        json!({"type":"response.function_call_arguments.done","output_index":2,"arguments":"{\"path\":\"a\"}"}),
        json!({"type":"response.output_item.done","output_index":2,"item":{"type":"function_call","id":"fc_1","call_id":"call_1","name":"read","arguments":"{\"path\":\"a\"}"}}),
        json!({"type":"response.completed","response":{"status":"completed","usage":{"input_tokens":100,"input_tokens_details":{"cached_tokens":60},"output_tokens":7,"total_tokens":107}}}),
    ]
}

#[test]
fn a_whole_reply_and_its_way_back() {
    let reply = play(&stream(&whole()));
    assert_eq!(reply.failure, None);
    assert_eq!(reply.calls(), json!([["call_1", "read", { "path": "a" }]]));
    let usage = reply.message.usage;
    assert_eq!([usage.input, usage.output, usage.cache_read, usage.total_tokens], [40, 7, 60, 107]);
    let Some(Block::Thinking(thinking)) = reply.message.content.blocks().first() else { panic!() };
    assert_eq!(thinking.thinking, "first\n\nsecond");
    let messages = json!([
        { "role": "user", "content": "go" },
        Message::Assistant(reply.message.clone()),
        { "role": "toolResult", "toolCallId": "call_1", "toolName": "read", "content": "ok" }
    ]);
    let body = encode(Api::OpenaiResponses, URL, &request(thinker("openai", "gpt"), messages.clone()));
    assert_eq!(
        body["input"],
        json!([
            { "role": "user", "content": [{ "type": "input_text", "text": "go" }] },
            { "type": "reasoning", "summary": [{ "type": "summary_text", "text": "first" }], "encrypted_content": "ZW5j" },
            { "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "I look." }], "phase": "commentary" },
            { "type": "function_call", "call_id": "call_1", "name": "read", "arguments": "{\"path\":\"a\"}" },
            { "type": "function_call_output", "call_id": "call_1", "output": "ok" }
        ])
    );
    assert_eq!((&body["store"], &body["include"]), (&json!(false), &json!(["reasoning.encrypted_content"])));
    // F115: nothing that refers to what the server would have had to keep.
    for id in ["rs_1", "msg_1", "fc_1", "resp_1", "item_reference", "previous_response_id"] {
        assert!(!body.to_string().contains(id), "{id}");
    }
    let other = encode(Api::OpenaiResponses, URL, &request(thinker("openai", "other"), messages));
    assert!(!other.to_string().contains("ZW5j"));
}

#[test]
fn of_the_failure_list() {
    if let Some(text) = failure_case("F112-responses-incomplete.sse") {
        let reply = play(&text);
        assert_eq!(
            (reply.text().as_str(), reply.message.stop_reason, reply.failure),
            ("Half", StopReason::Length, None)
        );
    }
    if let Some(text) = failure_case("F113-responses-reasoning-then-abort.sse") {
        let reply = play(&text);
        assert_eq!(reply.failure.as_ref().map(|f| (f.kind, f.retryable)), Some((RunErrorKind::Network, true)));
        let messages = json!([{ "role": "user", "content": "go" }, Message::Assistant(reply.message), { "role": "user", "content": "again" }]);
        let body = encode(Api::OpenaiResponses, URL, &request(thinker("openai", "gpt"), messages));
        assert_eq!(body["input"].as_array().unwrap().len(), 2, "{body}");
    }
}

#[test]
fn ends() {
    fn check(events: &[Value], expected: Option<(RunErrorKind, bool)>) {
        assert_eq!(play(&stream(events)).failure.map(|f| (f.kind, f.retryable)), expected, "{events:?}");
    }
    let whole = whole();
    check(&whole[..whole.len() - 1], Some((RunErrorKind::Network, true)));
    check(
        &[json!({"type":"response.failed","response":{"error":{"code":"server_error","message":"oops"}}})],
        Some((RunErrorKind::Overloaded, true)),
    );
    check(
        &[
            json!({"type":"response.failed","response":{"error":{"code":"context_length_exceeded","message":"Your input exceeds the context window of this model."}}}),
        ],
        Some((RunErrorKind::ContextOverflow, false)),
    );
    check(&[json!({"type":"response.failed","response":{"error":null}})], Some((RunErrorKind::Overloaded, true)));
    check(
        &[
            json!({"type":"response.completed","response":{"status":"failed","error":{"code":"server_error","message":"oops"}}}),
        ],
        Some((RunErrorKind::Overloaded, true)),
    );
    check(&[json!({"type":"response.completed","response":{"status":"completed","error":null}})], None);
    check(
        &[json!({"type":"error","code":"rate_limit_exceeded","message":"slow down"})],
        Some((RunErrorKind::RateLimited, true)),
    );
    check(
        &[json!({"type":"error","error":{"type":"invalid_request_error","message":"no","code":null}})],
        Some((RunErrorKind::BadRequest, false)),
    );
    let filtered = play(&stream(&[
        json!({"type":"response.incomplete","response":{"status":"incomplete","incomplete_details":{"reason":"content_filter"}}}),
    ]));
    assert!(filtered.failure.is_none() && filtered.message.error_message.is_some());
}

#[test]
fn items_that_come_only_whole() {
    let events = [
        json!({"type":"response.output_item.done","output_index":0,"item":{"type":"message","id":"m","content":[{"type":"output_text","text":"hi"}]}}),
        json!({"type":"response.output_item.done","output_index":1,"item":{"type":"function_call","id":"f","call_id":"c","name":"read","arguments":"{}"}}),
        json!({"type":"response.completed","response":{"status":"completed"}}),
    ];
    let reply = play(&stream(&events));
    assert_eq!((reply.text().as_str(), reply.calls()), ("hi", json!([["c", "read", {}]])));
    // Only with the end.
    let output: Vec<&Value> = events.iter().filter_map(|event| event.get("item")).collect();
    let end = json!({"type":"response.completed","response":{"status":"completed","output":output}});
    let reply = play(&stream(std::slice::from_ref(&end)));
    assert_eq!((reply.text().as_str(), reply.calls()), ("hi", json!([["c", "read", {}]])));
    // Told once already.
    let reply = play(&stream(&[events[0].clone(), events[1].clone(), end]));
    assert_eq!((reply.text().as_str(), reply.calls()), ("hi", json!([["c", "read", {}]])));
}

#[test]
fn effort() {
    fn check(effort: Option<&str>, expected: Value) {
        let mut request = request(thinker("openai", "gpt"), json!([{ "role": "user", "content": "go" }]));
        request.options.extend(effort.map(|e| ("reasoning-effort".to_owned(), json!(e))));
        assert_eq!(encode(Api::OpenaiResponses, URL, &request)["reasoning"], expected);
    }
    check(None, Value::Null);
    check(Some("off"), json!({ "effort": "none" }));
    check(Some("max"), json!({ "effort": "high", "summary": "auto" }));
    let plain = request(model("openai", "gpt-4.1"), json!([{ "role": "user", "content": "go" }]));
    assert!(encode(Api::OpenaiResponses, URL, &plain).get("include").is_none());
}

#[test]
fn images_in_results() {
    let png = json!({ "type": "image", "data": "aGk=", "mimeType": "image/png" });
    let messages = json!([
        { "role": "user", "content": "go" },
        { "role": "assistant", "content": [{ "type": "toolCall", "id": "c", "name": "read", "arguments": {} }] },
        { "role": "toolResult", "toolCallId": "c", "toolName": "read", "content": [{ "type": "text", "text": "a.png" }, png] }
    ]);
    let body = encode(Api::OpenaiResponses, URL, &request(model("openai", "gpt"), messages));
    assert_eq!(body["input"][2]["output"][1]["image_url"], "data:image/png;base64,aGk=");
}

/// A reply may speak after a call; before the call's output comes, the API wants nothing but calls.
#[test]
fn words_after_a_call_go_in_front_of_it() {
    let signed = |id: &str| {
        let item = json!({ "type": "reasoning", "id": id, "summary": [], "encrypted_content": id });
        json!({ "type": "thinking", "thinking": "hm", "thinkingSignature": item.to_string() })
    };
    let text = |text: &str| json!({ "type": "text", "text": text });
    let call = |id: &str| json!({ "type": "toolCall", "id": id, "name": "read", "arguments": {} });
    let content =
        json!([signed("r1"), call("c1"), text("a"), signed("r2"), text("b"), signed("r3"), call("c2"), signed("r4")]);
    let said = json!({ "role": "assistant", "api": "openai-responses", "provider": "openai", "model": "gpt", "content": content });
    let result = |id: &str| json!({ "role": "toolResult", "toolCallId": id, "toolName": "read", "content": "x" });
    let messages = json!([{ "role": "user", "content": "go" }, said, result("c1"), result("c2")]);
    let body = encode(Api::OpenaiResponses, URL, &request(thinker("openai", "gpt"), messages));
    let shape: Vec<String> = body["input"].as_array().unwrap()[1..]
        .iter()
        .map(|item| {
            let told = [&item["encrypted_content"], &item["content"][0]["text"], &item["call_id"]];
            told.into_iter().filter_map(Value::as_str).collect()
        })
        .collect();
    assert_eq!(shape, ["a", "r2", "b", "r1", "c1", "r3", "c2", "c1", "c2"]);
}
