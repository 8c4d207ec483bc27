use super::*;
use kli_protocol::api::RunErrorKind;
use kli_protocol::record::StopReason;

const URL: &str = "https://generativelanguage.googleapis.com/v1beta";

fn play(chunks: &[Value]) -> Replayed {
    let stream: String = chunks.iter().map(|chunk| format!("data: {chunk}\r\n\r\n")).collect();
    replay(Api::Google, thinker("google", "gemini-3-pro"), &stream)
}

fn parts(parts: Value) -> Value {
    json!({ "candidates": [{ "content": { "role": "model", "parts": parts } }] })
}

fn stop(reason: &str) -> Value {
    json!({ "candidates": [{ "finishReason": reason }], "usageMetadata": {
        "promptTokenCount": 100, "cachedContentTokenCount": 60, "candidatesTokenCount": 7, "thoughtsTokenCount": 20, "totalTokenCount": 127 } })
}

#[test]
fn a_whole_reply_and_its_way_back() {
    let reply = play(&[
        parts(json!([{ "text": "hm", "thought": true }])),
        parts(json!([{ "text": "I " }])),
        parts(json!([{ "text": "look." }])),
        parts(
            json!([{ "functionCall": { "name": "read", "args": { "path": "a" } }, "thoughtSignature": "c2ln" }, { "functionCall": { "name": "ls" } }]),
        ),
        stop("STOP"),
    ]);
    assert_eq!(
        (reply.failure.as_ref(), reply.text().as_str(), reply.message.stop_reason),
        (None, "I look.", StopReason::ToolUse)
    );
    assert_eq!(
        reply.calls(),
        json!([["call_000000000abc_1", "read", { "path": "a" }], ["call_000000000abc_2", "ls", {}]])
    );
    let usage = reply.message.usage;
    assert_eq!([usage.input, usage.output, usage.cache_read, usage.total_tokens], [40, 27, 60, 127]);
    let messages = json!([
        { "role": "user", "content": "go" },
        Message::Assistant(reply.message.clone()),
        { "role": "toolResult", "toolCallId": "call_000000000abc_1", "toolName": "read", "content": [{ "type": "image", "data": "aGk=", "mimeType": "image/png" }] },
        { "role": "toolResult", "toolCallId": "call_000000000abc_2", "content": [], "isError": true }
    ]);
    let body = encode(Api::Google, URL, &request(thinker("google", "gemini-3-pro"), messages.clone()));
    assert_eq!(
        body["contents"],
        json!([
            { "role": "user", "parts": [{ "text": "go" }] },
            { "role": "model", "parts": [
                { "text": "I look." },
                { "functionCall": { "name": "read", "args": { "path": "a" } }, "thoughtSignature": "c2ln" },
                { "functionCall": { "name": "ls", "args": {} } }] },
            { "role": "user", "parts": [
                { "functionResponse": { "name": "read", "response": { "output": "(an image)" } } },
                { "functionResponse": { "name": "ls", "response": { "error": "(no output)" } } }] },
            { "role": "user", "parts": [
                { "text": "Image from the result of read:" },
                { "inlineData": { "mimeType": "image/png", "data": "aGk=" } }] }
        ])
    );
    assert_eq!(body["systemInstruction"]["parts"][0]["text"], "Be brief.");
    assert_eq!(body["tools"][0]["functionDeclarations"][0]["name"], "read");
    let other = encode(Api::Google, URL, &request(thinker("google", "gemini-3-flash"), messages)).to_string();
    assert!(!other.contains("c2ln") && other.contains("skip_thought_signature_validator"), "{other}");
}

#[test]
fn ends() {
    fn check(chunks: &[Value], stop_reason: StopReason, refused: bool, failure: Option<(RunErrorKind, bool)>) {
        let reply = play(chunks);
        assert_eq!(reply.message.stop_reason, stop_reason, "{chunks:?}");
        assert_eq!(reply.failure.as_ref().map(|f| (f.kind, f.retryable)), failure, "{chunks:?}");
        assert_eq!(reply.message.error_message.is_some(), refused || failure.is_some(), "{chunks:?}");
    }
    let text = parts(json!([{ "text": "hi" }]));
    check(&[text.clone(), stop("STOP")], StopReason::Stop, false, None);
    check(&[text.clone(), stop("FUNCTION_CALL")], StopReason::Stop, false, None);
    check(&[text.clone(), stop("MAX_TOKENS")], StopReason::Length, false, None);
    check(&[text.clone(), stop("SAFETY")], StopReason::Stop, true, None);
    check(&[stop("IMAGE_SAFETY")], StopReason::Stop, true, None);
    check(&[stop("BLOCKLIST")], StopReason::Stop, true, None);
    check(&[json!({ "promptFeedback": { "blockReason": "OTHER" } })], StopReason::Stop, true, None);
    check(std::slice::from_ref(&text), StopReason::Error, false, Some((RunErrorKind::Network, true)));
    check(&[text, stop("MALFORMED_FUNCTION_CALL")], StopReason::Error, false, Some((RunErrorKind::Internal, true)));
    check(
        &[json!({ "error": { "code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE" } })],
        StopReason::Error,
        false,
        Some((RunErrorKind::Overloaded, true)),
    );
}

#[test]
fn thinking() {
    fn check(id: &str, effort: Option<&str>, expected: Value) {
        let mut request = request(thinker("google", id), json!([{ "role": "user", "content": "go" }]));
        request.options.extend(effort.map(|e| ("reasoning-effort".to_owned(), json!(e))));
        let call = Api::Google.dialect().encode(&request, Target { api: Api::Google, base_url: URL });
        assert_eq!(call.path, format!("/models/{id}:streamGenerateContent?alt=sse"));
        let body: Value = serde_json::from_slice(&call.body).unwrap();
        assert_eq!(body["generationConfig"]["thinkingConfig"], expected);
    }
    check("gemini-2.5-flash", None, json!({ "includeThoughts": true }));
    check("gemini-2.5-flash", Some("off"), json!({ "thinkingBudget": 0 }));
    check("gemini-2.5-flash", Some("medium"), json!({ "includeThoughts": true, "thinkingBudget": 8192 }));
    check("gemini-3-pro-preview", Some("max"), json!({ "includeThoughts": true, "thinkingLevel": "high" }));
}

/// Gemini refuses a whole request for a tool whose name begins with a digit; clients and models may give one.
#[test]
fn names_that_begin_with_a_digit() {
    let reply = play(&[parts(json!([{ "functionCall": { "name": "_9lives", "args": {} } }])), stop("STOP")]);
    assert_eq!(reply.calls(), json!([["call_000000000abc_1", "9lives", {}]]));
    let messages = json!([
        { "role": "user", "content": "go" },
        Message::Assistant(reply.message.clone()),
        { "role": "toolResult", "toolCallId": "call_000000000abc_1", "toolName": "9lives", "content": "x" }
    ]);
    let mut request = request(thinker("google", "gemini-3-pro"), messages);
    let tool = ToolDescription { name: "9lives".into(), ..request.tools[0].clone() };
    request.tools = Arc::new([tool]);
    let body = encode(Api::Google, URL, &request);
    assert_eq!(body["tools"][0]["functionDeclarations"][0]["name"], "_9lives");
    assert_eq!(body["contents"][1]["parts"][0]["functionCall"]["name"], "_9lives");
    assert_eq!(body["contents"][2]["parts"][0]["functionResponse"]["name"], "_9lives");
}
