use super::*;
use kli_protocol::api::RunErrorKind;
use kli_protocol::record::StopReason;

const URL: &str = "http://127.0.0.1:1/v1";

fn play(stream: &str) -> Replayed {
    replay(Api::OpenaiChat, model("fake", "m1"), stream)
}

fn chunks(choices: &[Value]) -> String {
    let mut text = String::new();
    for choice in choices {
        text.push_str(&format!("data: {}\n\n", json!({ "choices": [choice] })));
    }
    text + "data: [DONE]\n\n"
}

fn call_pieces(pieces: &[Value]) -> String {
    let mut choices: Vec<Value> =
        pieces.iter().map(|piece| json!({ "index": 0, "delta": { "tool_calls": [piece] } })).collect();
    choices.push(json!({ "index": 0, "delta": {}, "finish_reason": "tool_calls" }));
    chunks(&choices)
}

#[test]
fn broken_tool_calls_of_the_failure_list() {
    fn check(file: &str, text: &str, calls: Value) {
        let Some(stream) = failure_case(file) else { return };
        let reply = play(&stream);
        assert_eq!(reply.failure, None, "{file}");
        assert_eq!((reply.text().as_str(), reply.calls()), (text, calls), "{file}");
        assert_eq!(reply.message.stop_reason, StopReason::ToolUse, "{file}");
    }
    let a = json!({ "path": "a" });
    check("F074-empty-args.sse", "", json!([["c1", "noargs", {}]]));
    check("F074b-null-args.sse", "", json!([["c1", "noargs", {}]]));
    check("F075-no-index.sse", "", json!([["c1", "read", a], ["c2", "read", { "path": "b" }]]));
    check("F077-name-every-chunk.sse", "", json!([["c1", "read", a]]));
    check("F078-interleaved-no-id.sse", "", json!([["c1", "read", a], ["c2", "bash", { "command": "ls" }]]));
    check("F080-stop-with-calls.sse", "", json!([["c1", "bash", { "command": "ls" }]]));
    check("F082-two-choices.sse", "I will look.", json!([["c1", "read", a]]));
    check("F085-id-arrives-late.sse", "", json!([["c1", "read", a]]));
    let broken = json!([
        ["c1", "no_such_tool", { "a": 1 }],
        ["c2", "bash", { INVALID_ARGUMENTS: "{\"command\": ls}" }],
        ["c3", "bash", { INVALID_ARGUMENTS: "\"just a string\"" }]
    ]);
    check("F083-unknown-tool-bad-json.sse", "", broken);
}

#[test]
fn broken_tool_calls_beyond_it() {
    fn check(what: &str, pieces: &[Value], calls: Value) {
        let reply = play(&call_pieces(pieces));
        assert_eq!(reply.calls(), calls, "{what}");
    }
    let f = |name: &str, arguments: &str| json!({ "name": name, "arguments": arguments });
    check(
        "name in two halves",
        &[
            json!({"index":0,"id":"c1","function":f("re","")}),
            json!({"index":0,"function":f("ad","")}),
            json!({"index":0,"function":f("","{\"path\":\"a\"}")}),
        ],
        json!([["c1", "read", {"path": "a"}]]),
    );
    check(
        "name so far, again and again",
        &[
            json!({"index":0,"id":"c1","function":f("re","")}),
            json!({"index":0,"id":"c1","function":f("read","")}),
            json!({"index":0,"id":"c1","function":f("read","{}")}),
        ],
        json!([["c1", "read", {}]]),
    );
    check(
        "each call has index 0",
        &[
            json!({"index":0,"id":"c1","function":f("read","{\"path\":\"a\"}")}),
            json!({"index":0,"id":"c2","function":f("read","{\"path\":\"b\"}")}),
        ],
        json!([["c1", "read", {"path": "a"}], ["c2", "read", {"path": "b"}]]),
    );
    check(
        "an id made up for each piece",
        &[
            json!({"index":0,"id":"x1","function":f("read","{\"pa")}),
            json!({"index":0,"id":"x2","function":f("","th\":\"a\"}")}),
        ],
        json!([["x1", "read", {"path": "a"}]]),
    );
    check(
        "neither index nor id",
        &[
            json!({"function":f("read","{\"path\":\"a\"}")}),
            json!({"function":f("read","{\"path\":")}),
            json!({"function":{"arguments":"\"b\"}"}}),
        ],
        json!([["call_000000000abc_1", "read", {"path": "a"}], ["call_000000000abc_2", "read", {"path": "b"}]]),
    );
    let two = json!([["call_000000000abc_1", "read", {"path": "a"}], ["call_000000000abc_2", "read", {"path": "b"}]]);
    check(
        "neither index nor id, names before arguments",
        &[
            json!({"function":f("read","")}),
            json!({"function":{"arguments":"{\"path\":\"a\"}"}}),
            json!({"function":f("read","")}),
            json!({"function":{"arguments":"{\"path\":"}}),
            json!({"function":{"arguments":"\"b\"}"}}),
        ],
        two,
    );
    check(
        "neither index nor id, another name",
        &[json!({"function":f("read","{}")}), json!({"function":f("ls","")})],
        json!([["call_000000000abc_1", "read", {}], ["call_000000000abc_2", "ls", {}]]),
    );
    check(
        "the name once more at the end",
        &[json!({"function":f("read","{\"path\":\"a\"}")}), json!({"function":f("read","")})],
        json!([["call_000000000abc_1", "read", {"path": "a"}]]),
    );
    check(
        "the name after the arguments",
        &[json!({"index":0,"id":"c1","function":f("","{\"path\":\"a\"}")}), json!({"index":0,"function":f("read","")})],
        json!([["c1", "read", {"path": "a"}]]),
    );
    check(
        "all of it once more at the end",
        &[
            json!({"index":0,"id":"c1","function":f("read","{\"path\":\"a\"}")}),
            json!({"index":0,"id":"c1","function":f("read","{\"path\":\"a\"}")}),
        ],
        json!([["c1", "read", {"path": "a"}]]),
    );
    check("never an id", &[json!({"index":0,"function":f("read","{}")})], json!([["call_000000000abc_1", "read", {}]]));
    check(
        "one id for two calls",
        &[
            json!({"index":0,"id":"call_0","function":f("read","{}")}),
            json!({"index":1,"id":"call_0","function":f("bash","{}")}),
        ],
        json!([["call_0", "read", {}], ["call_0_2", "bash", {}]]),
    );
    check(
        "arguments as an object",
        &[json!({"index":0,"id":"c1","function":{"name":"read","arguments":{"path":"a"}}})],
        json!([["c1", "read", {"path": "a"}]]),
    );
    check(
        "no delta at all",
        &[json!({"index":0,"id":"c1","function":{"name":"noargs"}})],
        json!([["c1", "noargs", {}]]),
    );
    check("nothing in it", &[json!({"index":0,"id":"","function":{"name":"","arguments":""}})], json!([]));
    check(
        "no name",
        &[json!({"index":0,"id":"c1","function":{"arguments":"{}"}})],
        json!([["c1", "unnamed_tool", {}]]),
    );
    let old = chunks(&[
        json!({"delta":{"function_call":{"name":"read","arguments":"{}"}}}),
        json!({"delta":{},"finish_reason":"function_call"}),
    ]);
    assert_eq!(play(&old).calls(), json!([["call_000000000abc_1", "read", {}]]), "the form before tool calls");
}

#[test]
fn frames_and_ends_of_the_failure_list() {
    fn check(file: &str, text: &str, total: u64, failure: Option<(RunErrorKind, bool)>) {
        let Some(stream) = failure_case(file) else { return };
        for stream in [stream.clone(), stream.replace('\n', "\r\n"), stream.replace('\n', "\r")] {
            let reply = play(&stream);
            assert_eq!(reply.text(), text, "{file}");
            assert_eq!(reply.message.usage.total_tokens, total, "{file}");
            assert_eq!(reply.failure.map(|f| (f.kind, f.retryable)), failure, "{file}");
        }
    }
    check("F086-no-space-crlf-comments.sse", "Hello", 107, None);
    check("F088-multi-data-lines.sse", "hi", 0, None);
    check("F089-no-done.sse", "Hello", 0, None);
    check("F091-eof-mid-frame.sse", "Hello", 0, Some((RunErrorKind::Network, true)));
    check("F093-error-in-stream.sse", "Hello", 0, Some((RunErrorKind::Overloaded, true)));
    check("F093b-error-only.sse", "", 0, Some((RunErrorKind::BadRequest, false)));
    check("F094-usage-only-last.sse", "Hello", 107, None);
    check("F094b-usage-null-everywhere.sse", "Hello", 0, None);
    check("F096-content-filter.sse", "", 0, None);
    check("F097-null-choices-content.sse", "hi", 0, None);
}

#[test]
fn other_ends() {
    fn check(stream: &str, failure: Option<(RunErrorKind, bool)>) {
        assert_eq!(play(stream).failure.map(|f| (f.kind, f.retryable)), failure, "{stream}");
    }
    let ends = |choice: Value| chunks(&[json!({"delta":{"content":"Hel"}}), choice]);
    check(&ends(json!({"delta":{},"finish_reason":"error"})), Some((RunErrorKind::Overloaded, true)));
    check(
        &ends(json!({"delta":{},"finish_reason":"error","error":{"code":429,"message":"x"}})),
        Some((RunErrorKind::RateLimited, true)),
    );
    check(
        &ends(json!({"delta":{},"finish_reason":"insufficient_system_resource"})),
        Some((RunErrorKind::Overloaded, true)),
    );
    check(&ends(json!({"delta":{},"finish_reason":"eos"})), None);
    check(&ends(json!({"delta":{}})), None);
    check("data: [DONE]\n\n", Some((RunErrorKind::Network, true)));
    check(&chunks(&[json!({"delta":{},"finish_reason":"stop"})]), None);
}

#[test]
fn a_refusal_is_an_end_with_a_reason() {
    let filtered = chunks(&[json!({"delta":{"content":""}}), json!({"delta":{},"finish_reason":"content_filter"})]);
    let refused = chunks(&[json!({"delta":{"refusal":"I can't."}}), json!({"delta":{},"finish_reason":"stop"})]);
    for (stream, text) in [(filtered, ""), (refused, "I can't.")] {
        let reply = play(&stream);
        assert_eq!((reply.message.stop_reason, reply.text().as_str()), (StopReason::Stop, text));
        assert!(reply.message.error_message.is_some());
    }
}

#[test]
fn more_was_read_than_the_window_holds() {
    for (tokens, failure) in [(200_000, None), (200_001, Some((RunErrorKind::ContextOverflow, false)))] {
        let usage = json!({ "choices": [], "usage": { "prompt_tokens": tokens, "completion_tokens": 1 } });
        let reply = play(&format!("data: {usage}\n\ndata: [DONE]\n\n"));
        assert_eq!(reply.failure.map(|f| (f.kind, f.retryable)), failure, "{tokens}");
    }
}

#[test]
fn usage_and_price() {
    fn check(usage: Value, expected: [u64; 4]) {
        let stream = format!("data: {}\n\ndata: [DONE]\n\n", json!({ "choices": [], "usage": usage }));
        let got = play(&stream).message.usage;
        assert_eq!([got.input, got.output, got.cache_read, got.total_tokens], expected, "{usage}");
    }
    check(json!({"prompt_tokens":100,"completion_tokens":7,"total_tokens":107}), [100, 7, 0, 107]);
    check(
        json!({"prompt_tokens":100,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":60}}),
        [40, 7, 60, 107],
    );
    check(json!({"prompt_tokens":100,"completion_tokens":7,"prompt_cache_hit_tokens":60}), [40, 7, 60, 107]);
    check(
        json!({"prompt_tokens":100,"completion_tokens":7,"total_tokens":127,"completion_tokens_details":{"reasoning_tokens":20}}),
        [100, 27, 0, 127],
    );
    check(json!({"prompt_tokens":null,"completion_tokens":"7"}), [0, 0, 0, 0]);
    let stream = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1000000,\"completion_tokens\":1000000}}\n\ndata: [DONE]\n\n";
    assert_eq!(play(stream).message.usage.cost.total, 3.0);
    let kimi = chunks(&[
        json!({"delta":{"content":"x"},"finish_reason":"stop","usage":{"prompt_tokens":5,"completion_tokens":1}}),
    ]);
    assert_eq!(play(&kimi).message.usage.total_tokens, 6);
}

#[test]
fn thinking_goes_back_as_it_came() {
    fn check(fields: &[Value], expected: Value) {
        let mut choices: Vec<Value> = fields.iter().map(|field| json!({ "delta": field })).collect();
        choices
            .push(json!({"delta":{"tool_calls":[{"index":0,"id":"c1","function":{"name":"read","arguments":"{}"}}]}}));
        choices.push(json!({"delta":{},"finish_reason":"tool_calls"}));
        let reply = play(&chunks(&choices));
        let mut messages = json!([{ "role": "user", "content": "go" }]);
        messages.as_array_mut().unwrap().push(serde_json::to_value(Message::Assistant(reply.message.clone())).unwrap());
        messages
            .as_array_mut()
            .unwrap()
            .push(json!({ "role": "toolResult", "toolCallId": "c1", "toolName": "read", "content": [] }));
        let body = encode(Api::OpenaiChat, URL, &request(model("fake", "m1"), messages.clone()));
        let mut sent = body["messages"][2].clone();
        for key in ["role", "content", "tool_calls"] {
            sent.as_object_mut().unwrap().shift_remove(key);
        }
        assert_eq!(sent, expected);
        let foreign = encode(Api::OpenaiChat, URL, &request(model("fake", "m2"), messages));
        assert_eq!(foreign["messages"][2].as_object().unwrap().len(), 3, "another model gets no thinking");
    }
    check(
        &[json!({"reasoning_content":"first I "}), json!({"reasoning_content":"look"})],
        json!({"reasoning_content":"first I look"}),
    );
    check(&[json!({"reasoning":"hm","reasoning_content":"hm"})], json!({"reasoning_content":"hm"}));
    check(&[json!({"reasoning":"hm"}), json!({"content":"text"})], json!({"reasoning":"hm"}));
    let details = [
        json!({"reasoning":"hm","reasoning_details":[{"type":"reasoning.text","text":"h","index":0}]}),
        json!({"reasoning":"m","reasoning_details":[{"type":"reasoning.text","text":"m","signature":"sig","index":0}]}),
        json!({"reasoning_details":[{"type":"reasoning.encrypted","data":"ZW5j","index":1}]}),
        json!({"content":"text"}),
    ];
    check(
        &details,
        json!({"reasoning_details":[{"type":"reasoning.text","text":"hm","index":0,"signature":"sig"},{"type":"reasoning.encrypted","data":"ZW5j","index":1}]}),
    );
    check(
        &[json!({"reasoning_details":[{"type":"reasoning.encrypted","data":"ZW5j"}]})],
        json!({"reasoning_details":[{"type":"reasoning.encrypted","data":"ZW5j"}]}),
    );
    check(&[json!({"content":"text"})], json!({}));
}

#[test]
fn kimi_and_deepseek_want_reasoning_beside_each_call() {
    let messages = json!([
        { "role": "user", "content": "go" },
        { "role": "assistant", "provider": "other", "model": "x", "content": [{ "type": "toolCall", "id": "c1", "name": "read", "arguments": {} }] },
        { "role": "toolResult", "toolCallId": "c1", "content": "x" }
    ]);
    let url = "https://api.moonshot.ai/v1";
    let request_for = |effort: Option<&str>| {
        let mut request = request(thinker("moonshot", "kimi-k2.5"), messages.clone());
        request.options.extend(effort.map(|e| ("reasoning-effort".to_owned(), json!(e))));
        encode(Api::OpenaiChat, url, &request)
    };
    let on = request_for(Some("high"));
    assert_eq!(
        (on["messages"][2]["reasoning_content"].as_str(), &on["thinking"]),
        (Some(" "), &json!({"type":"enabled"}))
    );
    let off = request_for(Some("off"));
    assert_eq!((off["messages"][2].get("reasoning_content"), &off["thinking"]), (None, &json!({"type":"disabled"})));
    assert!(request_for(None).get("thinking").is_none());
}

#[test]
fn what_is_sent() {
    let png = json!({ "type": "image", "data": "aGk=", "mimeType": "image/png" });
    let messages = json!([
        { "role": "user", "content": [{ "type": "text", "text": "look" }, { "type": "text", "text": " " }, png] },
        { "role": "assistant", "content": [{ "type": "text", "text": "\n" }], "stopReason": "stop" },
        { "role": "assistant", "content": [
            { "type": "text", "text": "I look." },
            { "type": "toolCall", "id": "toolu_1|fc_9", "name": "read", "arguments": { "path": "b", "a": 1 } },
            { "type": "toolCall", "id": "c2", "name": "read", "arguments": {} }] },
        { "role": "toolResult", "toolCallId": "toolu_1|fc_9", "toolName": "read", "content": [png] },
        { "role": "toolResult", "toolCallId": "c2", "toolName": "read", "content": [{ "type": "text", "text": "" }] },
        { "role": "user", "content": "  " },
        { "role": "bashExecution", "command": "ls", "output": "a\n", "exitCode": 1 },
        { "role": "bashExecution", "command": "secret", "output": "a", "excludeFromContext": true },
        { "role": "user", "content": "next\u{0}" }
    ]);
    let body = encode(Api::OpenaiChat, URL, &request(model("fake", "m1"), messages.clone()));
    let image = json!({ "type": "image_url", "image_url": { "url": "data:image/png;base64,aGk=" } });
    assert_eq!(
        body,
        json!({
            "model": "m1", "stream": true, "stream_options": { "include_usage": true },
            "tools": [{ "type": "function", "function": { "name": "read", "description": "Reads a file.", "parameters": {
                "type": "object", "properties": { "path": { "type": "string" } }, "required": ["path"] } } }],
            "messages": [
                { "role": "system", "content": "Be brief." },
                { "role": "user", "content": [{ "type": "text", "text": "look" }, image] },
                { "role": "assistant", "content": "I look.", "tool_calls": [
                    { "id": "toolu_1", "type": "function", "function": { "name": "read", "arguments": "{\"path\":\"b\",\"a\":1}" } },
                    { "id": "c2", "type": "function", "function": { "name": "read", "arguments": "{}" } }] },
                { "role": "tool", "tool_call_id": "toolu_1", "content": "(an image)" },
                { "role": "tool", "tool_call_id": "c2", "content": "(no output)" },
                { "role": "user", "content": [{ "type": "text", "text": "Image from the result of read:" }, image] },
                { "role": "user", "content": "Ran `ls`\n```\na\n```\n(exit code 1)" },
                { "role": "user", "content": "next\u{0}" }
            ],
            "max_tokens": 4096
        })
    );
    let blind = Arc::new(ModelInfo { input: vec!["text".into()], ..ModelInfo::clone(&model("fake", "m1")) });
    let sent = encode(Api::OpenaiChat, URL, &request(blind, messages)).to_string();
    assert!(!sent.contains("image_url") && sent.contains("cannot see"), "{sent}");
}

#[test]
fn ids_are_unique_paired_and_stable() {
    let turn = |id: &str, text: &str| {
        vec![
            json!({ "role": "assistant", "content": [{ "type": "toolCall", "id": id, "name": "read", "arguments": { "path": text } }] }),
            json!({ "role": "toolResult", "toolCallId": id, "toolName": "read", "content": text }),
        ]
    };
    let mut messages = vec![json!({ "role": "user", "content": "go" })];
    let mut before = String::new();
    for (n, url) in ["x", "y", "z"].iter().enumerate() {
        messages.extend(turn("call_0", url));
        let body = encode(Api::OpenaiChat, URL, &request(model("fake", "m1"), Value::Array(messages.clone())));
        let sent = body["messages"].as_array().unwrap();
        let calls: Vec<&str> = sent.iter().filter_map(|m| m["tool_calls"][0]["id"].as_str()).collect();
        let results: Vec<&str> = sent.iter().filter_map(|m| m["tool_call_id"].as_str()).collect();
        assert_eq!(calls, results);
        assert_eq!(calls.iter().collect::<std::collections::HashSet<_>>().len(), n + 1);
        let now = Value::Array(sent.clone()).to_string();
        assert!(now.starts_with(before.trim_end_matches(']')), "the prefix stays as it was");
        before = now;
    }
    let mistral = request(model("mistral", "m"), Value::Array(messages));
    let body = encode(Api::OpenaiChat, "https://api.mistral.ai/v1", &mistral);
    for message in body["messages"].as_array().unwrap() {
        if let Some(id) = message["tool_calls"][0]["id"].as_str() {
            assert!(id.len() == 9 && id.bytes().all(|b| b.is_ascii_alphanumeric()), "{id}");
        }
    }
}

#[test]
fn servers_differ() {
    fn check(url: &str, id: &str, effort: Option<&str>, present: &[(&str, Value)], absent: &[&str]) {
        let mut request = request(thinker("p", id), json!([{ "role": "user", "content": "go" }]));
        request.options.extend(effort.map(|e| ("reasoning-effort".to_owned(), json!(e))));
        let body = encode(Api::OpenaiChat, url, &request);
        for (key, value) in present {
            assert_eq!(&body[key], value, "{url} {key}");
        }
        for key in absent {
            assert!(body.get(key).is_none(), "{url} {key}");
        }
    }
    check(
        "https://api.openai.com/v1",
        "o4",
        Some("high"),
        &[
            ("max_completion_tokens", json!(4096)),
            ("reasoning_effort", json!("high")),
            ("prompt_cache_key", json!("s1")),
        ],
        &["max_tokens"],
    );
    check("https://api.openai.com/v1", "o4", Some("off"), &[("reasoning_effort", json!("none"))], &[]);
    check("http://localhost:1/v1", "q", Some("off"), &[], &["reasoning_effort"]);
    check(
        "http://localhost:1/v1",
        "q",
        None,
        &[("max_tokens", json!(4096))],
        &["reasoning_effort", "prompt_cache_key", "max_completion_tokens"],
    );
    check("https://openrouter.ai/api/v1", "x", Some("low"), &[("reasoning", json!({"effort":"low"}))], &[]);
    check("https://openrouter.ai/api/v1", "x", Some("off"), &[("reasoning", json!({"enabled":false}))], &[]);
    check(
        "https://dashscope.aliyuncs.com/compatible-mode/v1",
        "qwen",
        Some("off"),
        &[("enable_thinking", json!(false))],
        &[],
    );
    check("https://api.mistral.ai/v1", "m", Some("high"), &[], &["stream_options", "reasoning_effort"]);
    check("https://notopenai.com/v1", "m", None, &[("max_tokens", json!(4096))], &["prompt_cache_key"]);
}

#[test]
fn the_output_limit_stays_within_the_window() {
    fn check(window: u64, max_output: u64, asked: Option<u64>, expected: Value) {
        let model = ModelInfo { context_window: window, max_output, ..ModelInfo::clone(&model("fake", "m1")) };
        let mut request = request(Arc::new(model), json!([{ "role": "user", "content": "x".repeat(20_000) }]));
        request.max_tokens = asked;
        assert_eq!(encode(Api::OpenaiChat, URL, &request)["max_tokens"], expected, "{window} {max_output} {asked:?}");
    }
    check(200_000, 4_096, None, json!(4_096));
    check(200_000, 4_096, Some(100), json!(100));
    check(8_000, 8_000, None, json!(2_898));
    check(5_000, 8_000, None, json!(1_024));
    check(0, 0, None, Value::Null);
}

#[test]
fn a_body_that_is_not_streamed() {
    let Some(text) = failure_case("F099-plain-json-200.json") else { return };
    let start = Start { api: "openai-chat", model: model("fake", "m1"), timestamp: 1, seed: 1 };
    let mut decoder = Api::OpenaiChat.dialect().decoder(start);
    decoder.body(serde_json::from_str(&text).unwrap()).unwrap();
    assert!(decoder.complete());
    decoder.seal();
    let events = decoder.assembler().done();
    let Some(StreamEvent::Done(message)) = events.last() else { panic!("{events:?}") };
    assert_eq!((message.content.text().as_str(), message.usage.total_tokens), ("not streamed", 5));
}

#[test]
fn blank_text_makes_no_block() {
    let stream = chunks(&[
        json!({"delta":{"reasoning_content":"\n"}}),
        json!({"delta":{"content":"\n\n"}}),
        json!({"delta":{"content":" Hi"}}),
        json!({"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"read","arguments":"{}"}}]}}),
        json!({"delta":{"content":"\n"}}),
        json!({"delta":{},"finish_reason":"length"}),
    ]);
    let reply = play(&stream);
    assert_eq!(reply.message.content.blocks().len(), 2);
    assert_eq!((reply.text().as_str(), reply.message.stop_reason), ("\n\n Hi", StopReason::Length));
}
