use super::*;
use kli_protocol::api::RunErrorKind;
use kli_protocol::record::StopReason;

const URL: &str = "https://api.anthropic.com";

fn play(stream: &str) -> Replayed {
    replay(Api::Anthropic, model("anthropic", "claude"), stream)
}

/// The messages of a conversation that goes on after `reply` with one result for each call.
fn after(reply: &AssistantMessage) -> Value {
    let mut messages = vec![json!({ "role": "user", "content": "go" })];
    messages.push(serde_json::to_value(Message::Assistant(reply.clone())).unwrap());
    for call in reply.content.tool_calls() {
        messages.push(json!({ "role": "toolResult", "toolCallId": call.id, "toolName": call.name, "content": "ok" }));
    }
    Value::Array(messages)
}

#[test]
fn of_the_failure_list() {
    fn check(file: &str, text: &str, calls: Value, failure: Option<(RunErrorKind, bool)>) {
        let Some(stream) = failure_case(file) else { return };
        let reply = play(&stream);
        assert_eq!((reply.text().as_str(), reply.calls()), (text, calls), "{file}");
        assert_eq!(reply.failure.map(|f| (f.kind, f.retryable)), failure, "{file}");
    }
    check("F074c-anthropic-tool-no-delta.sse", "", json!([["toolu_1", "noargs", {}]]), None);
    check("F086b-ping.sse", "hi", json!([]), None);
    check("F093c-anthropic-error-mid.sse", "Part", json!([]), Some((RunErrorKind::Overloaded, true)));
    check("F096b-refusal.sse", "", json!([]), None);
    check("F106-thinking-tool.sse", "I will run it.", json!([["toolu_1", "bash", { "command": "ls" }]]), None);
    let Some(stream) = failure_case("F096b-refusal.sse") else { return };
    assert!(play(&stream).message.error_message.is_some());
}

#[test]
fn thinking_goes_back_as_it_came() {
    let Some(stream) = failure_case("F106-thinking-tool.sse") else { return };
    let reply = play(&stream);
    assert_eq!(reply.message.stop_reason, StopReason::ToolUse);
    // Through the file and back.
    let stored: Message =
        serde_json::from_str(&serde_json::to_string(&Message::Assistant(reply.message.clone())).unwrap()).unwrap();
    assert_eq!(stored, Message::Assistant(reply.message.clone()));
    let body = encode(Api::Anthropic, URL, &request(model("anthropic", "claude"), after(&reply.message)));
    assert_eq!(
        body["messages"][1]["content"],
        json!([
            { "type": "thinking", "thinking": "why — because", "signature": "c2lnLUFCQw==" },
            { "type": "redacted_thinking", "data": "ZW5jcnlwdGVk" },
            { "type": "text", "text": "I will run it." },
            { "type": "tool_use", "id": "toolu_1", "name": "bash", "input": { "command": "ls" } }
        ])
    );
    for (api, url) in [
        (Api::Anthropic, URL),
        (Api::OpenaiChat, "http://x/v1"),
        (Api::OpenaiResponses, "http://x/v1"),
        (Api::Google, "http://x"),
    ] {
        let other = encode(api, url, &request(model("anthropic", "model-B"), after(&reply.message))).to_string();
        for foreign in ["c2lnLUFCQw==", "ZW5jcnlwdGVk", "because"] {
            assert!(!other.contains(foreign), "{} {other}", api.name());
        }
        assert!(other.contains("toolu_1") || api == Api::Google);
    }
}

#[test]
fn usage_is_a_running_total() {
    let stream = "data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":10,\"output_tokens\":1,\"cache_read_input_tokens\":100,\"cache_creation_input_tokens\":1000}}}\n\n\
        data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"max_tokens\"},\"usage\":{\"output_tokens\":9}}\n\ndata: {\"type\":\"message_stop\"}\n\n";
    let reply = play(stream);
    let usage = reply.message.usage;
    assert_eq!(
        [usage.input, usage.output, usage.cache_read, usage.cache_write, usage.total_tokens],
        [10, 9, 100, 1000, 1119]
    );
    assert!((usage.cost.total - (10.0 + 18.0 + 50.0 + 4000.0) / 1e6).abs() < 1e-12);
    assert_eq!(reply.message.stop_reason, StopReason::Length);
}

#[test]
fn ends() {
    fn check(stream: &str, expected: Option<(RunErrorKind, bool)>) {
        assert_eq!(play(stream).failure.map(|f| (f.kind, f.retryable)), expected, "{stream}");
    }
    let text =
        "data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"hi\"}}\n\n";
    check(text, Some((RunErrorKind::Network, true)));
    check(&format!("{text}data: {{\"type\":\"message_delta\",\"delta\":{{\"stop_reason\":\"end_turn\"}}}}\n\n"), None);
    check(&format!("{text}data: {{\"type\":\"message_stop\"}}\n\n"), None);
    check(
        "data: {\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":\"prompt is too long: 2 tokens > 1\"}}\n\n",
        Some((RunErrorKind::ContextOverflow, false)),
    );
    check(
        "data: {\"type\":\"error\",\"error\":{\"type\":\"rate_limit_error\",\"message\":\"x\"}}\n\n",
        Some((RunErrorKind::RateLimited, true)),
    );
}

#[test]
fn what_is_sent() {
    let png = json!({ "type": "image", "data": "aGk=", "mimeType": "image/png" });
    let messages = json!([
        { "role": "user", "content": "look" },
        { "role": "assistant", "content": [
            { "type": "text", "text": " " },
            { "type": "toolCall", "id": "functions.read:0", "name": "read", "arguments": {} },
            { "type": "toolCall", "id": "c2", "name": "read", "arguments": { "path": "b" } },
            { "type": "toolCall", "id": "c3", "name": "read", "arguments": {} }] },
        { "role": "toolResult", "toolCallId": "functions.read:0", "toolName": "read", "content": [png], "isError": true },
        { "role": "toolResult", "toolCallId": "c2", "toolName": "read", "content": [] },
        { "role": "toolResult", "toolCallId": "c3", "toolName": "read", "content": [png] },
        { "role": "user", "content": "and?" }
    ]);
    let call = Api::Anthropic
        .dialect()
        .encode(&request(model("anthropic", "claude"), messages), Target { api: Api::Anthropic, base_url: URL });
    assert_eq!((call.path.as_str(), call.key_header), ("/v1/messages", ("x-api-key", "")));
    assert!(call.headers.contains(&("anthropic-version", "2023-06-01".into())));
    let mark = json!({ "type": "ephemeral" });
    let picture = json!({ "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": "aGk=" } });
    assert_eq!(
        serde_json::from_slice::<Value>(&call.body).unwrap(),
        json!({
            "model": "claude", "stream": true,
            "system": [{ "type": "text", "text": "Be brief.", "cache_control": mark }],
            "tools": [{ "name": "read", "description": "Reads a file.", "input_schema": {
                "type": "object", "properties": { "path": { "type": "string" } }, "required": ["path"] }, "cache_control": mark }],
            "messages": [
                { "role": "user", "content": [{ "type": "text", "text": "look", "cache_control": mark }] },
                { "role": "assistant", "content": [
                    { "type": "tool_use", "id": "functions_read_0", "name": "read", "input": {} },
                    { "type": "tool_use", "id": "c2", "name": "read", "input": { "path": "b" } },
                    { "type": "tool_use", "id": "c3", "name": "read", "input": {} }] },
                { "role": "user", "content": [
                    // What is an error holds text alone: its picture follows behind all results.
                    { "type": "tool_result", "tool_use_id": "functions_read_0", "content": [
                        { "type": "text", "text": "(an image)" }], "is_error": true },
                    { "type": "tool_result", "tool_use_id": "c2", "content": [{ "type": "text", "text": "(no output)" }] },
                    { "type": "tool_result", "tool_use_id": "c3", "content": [{ "type": "text", "text": "(an image)" }, picture] },
                    { "type": "text", "text": "Image from the result of read:" },
                    picture,
                    { "type": "text", "text": "and?", "cache_control": mark }] }
            ],
            "max_tokens": 4096
        })
    );
}

#[test]
fn thinking_is_asked_for_only_where_it_is_accepted() {
    fn check(effort: &str, loop_began_with: Option<Value>, expected: Option<u64>) {
        let mut messages = vec![json!({ "role": "user", "content": "go" })];
        if let Some(first) = loop_began_with {
            let call = json!({ "type": "toolCall", "id": "c1", "name": "read", "arguments": {} });
            messages.push(json!({ "role": "assistant", "api": "anthropic", "provider": "anthropic", "model": "claude", "content": [first, call] }));
            messages.push(json!({ "role": "toolResult", "toolCallId": "c1", "toolName": "read", "content": "x" }));
        }
        let mut request = request(thinker("anthropic", "claude"), Value::Array(messages));
        request.max_tokens = Some(16_000);
        request.options.insert("reasoning-effort".into(), json!(effort));
        let body = encode(Api::Anthropic, URL, &request);
        assert_eq!(body["thinking"]["budget_tokens"].as_u64(), expected, "{effort}");
    }
    check("low", None, Some(2_048));
    check("high", None, Some(14_976));
    check("off", None, None);
    let signed = json!({ "type": "thinking", "thinking": "hm", "thinkingSignature": "sig" });
    check("low", Some(signed), Some(2_048));
    check("low", Some(json!({ "type": "thinking", "thinking": "cut off" })), None);
    check("low", Some(json!({ "type": "text", "text": "I look." })), None);
}

#[test]
fn roles_alternate_and_the_person_has_the_first_and_the_last_word() {
    let messages = json!([
        { "role": "assistant", "content": "hello" },
        { "role": "user", "content": "a" },
        { "role": "user", "content": "b" },
        { "role": "assistant", "content": "half of" }
    ]);
    let body = encode(Api::Anthropic, URL, &request(model("anthropic", "claude"), messages));
    let roles: Vec<&str> = body["messages"].as_array().unwrap().iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant", "user"]);
}

#[test]
fn thinking_from_a_file_of_pi_is_kept() {
    let said = json!({ "role": "assistant", "api": "anthropic-messages", "provider": "anthropic", "model": "claude", "content": [
        { "type": "thinking", "thinking": "hm", "thinkingSignature": "sig" }, { "type": "text", "text": "a" }] });
    let messages = json!([{ "role": "user", "content": "go" }, said, { "role": "user", "content": "on" }]);
    let body = encode(Api::Anthropic, URL, &request(model("anthropic", "claude"), messages));
    assert_eq!(body["messages"][1]["content"][0]["signature"], "sig");
}
