//! What a message gets, in newline and `Content-Length` framing.

use super::*;

#[track_caller]
fn check(input: impl AsRef<[u8]>, want: &[&str]) -> impl Future<Output = ()> {
    let (input, want) = (input.as_ref().to_vec(), want.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>());
    async move {
        let served = Served::start();
        let mut got: Vec<String> = served.exchange_lines(&input).await.iter().map(short).collect();
        got.sort();
        assert_eq!(got, want, "{}", String::from_utf8_lossy(&input));
        served.stop().await;
    }
}

#[tokio::test]
async fn newline_framing() {
    check(format!("{PING}\n"), &["\"a\" ok"]).await;
    check(PING, &["\"a\" ok"]).await;
    check(format!("\u{feff} \r\n{PING}\r\n"), &["\"a\" ok"]).await;
    check(format!("{{nope}}\n{PING}\n"), &["\"a\" ok", "null -32700"]).await;
    check("hello\n", &["null -32700"]).await;
    check("[]\n", &["null -32600"]).await;
    check("", &[]).await;
    check("\n\n", &[]).await;
    check("{", &["null -32700"]).await;
    for id in ["\"s\"", "7", "null", "-1", "1.5", "18446744073709551616", "\"\\u0061\""] {
        let served = Served::start();
        let all = served.exchange(format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#)).await;
        let text = String::from_utf8(all).unwrap();
        assert!(text.starts_with(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result""#)), "{text}");
        served.stop().await;
    }
}

#[tokio::test]
async fn errors_and_parameters() {
    let call =
        |method: &str, params: &str| format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
    check(call("nope", "{}"), &["1 -32601"]).await;
    // Of the contract, but not registered here.
    check(call("getTree", "{}"), &["1 -32601"]).await;
    check(call("getSession", "{}"), &["1 -32602"]).await;
    check(call("getSession", r#""str""#), &["1 -32602"]).await;
    check(call("getSession", r#"["missing"]"#), &["1 -32020"]).await;
    check(call("getSession", r#"["s"]"#), &["1 ok"]).await;
    check(call("getSession", r#"{"sessionId":"s"}"#), &["1 ok"]).await;
    check(call("getSession", r#"{"sessionId":"panic"}"#), &["1 -32603"]).await;
    check(call("ping", "null"), &["1 ok"]).await;
    let served = Served::start();
    let replies = served.exchange_lines(call("getSession", r#"{"sessionId":"s","colour":1}"#)).await;
    assert!(replies[0]["error"]["message"].as_str().unwrap().contains("colour"));
    let replies = served.exchange_lines(call("getSession", r#"["missing"]"#)).await;
    assert_eq!(replies[0]["error"]["data"]["kind"], "sessionNotFound");
    served.stop().await;
}

/// The examples of the JSON-RPC 2.0 specification, with methods that exist here.
#[tokio::test]
async fn the_specification() {
    check(r#"{"jsonrpc": "2.0", "method": "foobar, "params": "bar", "baz]"#, &["null -32700"]).await;
    check(r#"{"jsonrpc": "2.0", "method": 1, "params": "bar"}"#, &["null -32600"]).await;
    check(r#"[{"jsonrpc": "2.0", "method": "ping", "id": "1"},{"jsonrpc": "2.0", "method""#, &["null -32700"]).await;
    check("[1]", &["[null -32600]"]).await;
    check("[1,2,3]", &["[null -32600, null -32600, null -32600]"]).await;
    let batch = r#"[{"jsonrpc": "2.0", "method": "ping", "params": [], "id": "1"},
        {"jsonrpc": "2.0", "method": "setSessionName", "params": ["s", "noted"]},
        {"jsonrpc": "2.0", "method": "getSession", "params": ["s"], "id": "2"},
        {"foo": "boo"},
        {"jsonrpc": "2.0", "method": "foo.get", "params": {"name": "myself"}, "id": "5"},
        {"jsonrpc": "2.0", "method": "getSession", "params": {}, "id": 9}]"#;
    let served = Served::start();
    let replies = served.exchange_lines(batch.replace('\n', " ")).await;
    assert_eq!(replies.len(), 1);
    let mut members: Vec<String> = replies[0].as_array().unwrap().iter().map(short).collect();
    members.sort();
    assert_eq!(members, ["\"1\" ok", "\"2\" ok", "\"5\" -32601", "9 -32602", "null -32600"]);
    assert!(served.service.notes().contains(&"noted".to_owned()));
    served.stop().await;
    let notes = r#"[{"jsonrpc":"2.0","method":"setSessionName","params":["s","x"]},{"jsonrpc":"2.0","method":"ping"}]"#;
    check(notes, &[]).await;
}

#[tokio::test]
async fn bad_frames_leave_the_connection_alive() {
    // F172: each fault once, and calls between them.
    let input = b"\n\r\n{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\r\n{not json}\n\
        {\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"nope\"}\n[]\n[1]\n{\"id\":3}\n\
        {\"jsonrpc\":\"2.0\",\"method\":\"ping\"}\n{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"ping\"}\n\
        {\"jsonrpc\":\"2.0\",\"id\":4,\"method\":\"ping\",\"params\":\"str\"}\n\xff\xfe\n\
        {\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"ping\"}\n";
    let want = [
        "1 ok",
        "2 -32601",
        "3 -32600",
        "4 -32602",
        "5 ok",
        "[null -32600]",
        "null -32600",
        "null -32700",
        "null -32700",
        "null ok",
    ];
    check(input, &want).await;
}

#[tokio::test]
async fn line_separators_of_unicode_end_no_line() {
    // F171: also cut inside their three bytes.
    let call = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"getSession\",\"params\":[\"x\u{2028}y\u{2029}\"]}\n";
    let served = Served::start();
    let mut client = served.connect().await;
    for byte in call.as_bytes() {
        client.send([*byte]).await;
        tokio::task::yield_now().await;
    }
    let reply = client.line().await;
    assert_eq!(reply["result"]["sessionId"], "x\u{2028}y\u{2029}");
    assert_eq!(reply["result"]["title"], "a\u{2028}b");
    served.stop().await;
}

#[tokio::test]
async fn a_notification_is_carried_out_and_not_answered() {
    let served = Served::start();
    let note = r#"{"jsonrpc":"2.0","method":"setSessionName","params":{"sessionId":"s","name":"by line"}}"#;
    assert_eq!(served.exchange(format!("{note}\n{{\"jsonrpc\":\"2.0\",\"method\":\"subscribe\"}}\n")).await, b"");
    served.service.noted("by line").await;
    let framed = note.replace("line", "frame");
    assert_eq!(served.exchange(format!("Content-Length: {}\r\n\r\n{framed}", framed.len())).await, b"");
    served.service.noted("by frame").await;
    // Gone before it could be answered.
    let mut client = served.connect().await;
    client.send(format!("{}\n", note.replace("by line", "and left"))).await;
    drop(client);
    served.service.noted("and left").await;
    served.stop().await;
}

#[tokio::test]
async fn content_length_framing() {
    let served = Served::start();
    let frame = |text: &str| format!("Content-Length: {}\r\n\r\n{text}", text.len());
    let input =
        [frame(PING), frame("{nope}"), "Content-Length: x\r\n\r\n".to_owned(), frame(&PING.replace("\"a\"", "2"))];
    let text = String::from_utf8(served.exchange(input.concat()).await).unwrap();
    let mut rest = text.as_str();
    let mut replies = Vec::new();
    while let Some((header, body)) = rest.split_once("\r\n\r\n") {
        let length: usize = header.strip_prefix("Content-Length: ").unwrap().parse().unwrap();
        replies.push(short(&serde_json::from_str(&body[..length]).unwrap()));
        rest = &body[length..];
    }
    assert_eq!(replies, ["\"a\" ok", "null -32700", "null -32700", "2 ok"]);
    assert_eq!(rest, "");
    served.stop().await;
}

#[tokio::test]
async fn a_message_above_the_limit_is_passed_over() {
    let served = Served::with(Limits { max_message_bytes: 1000, ..Limits::default() });
    let long =
        format!(r#"{{"jsonrpc":"2.0","id":"big","method":"ping","params":{{"x":"{}"}}}}"#, "y".repeat(1_000_000));
    for framed in [format!("{long}\n{PING}\n"), format!("{PING}\n{long}")] {
        let replies = served.exchange_lines(framed).await;
        assert_eq!(replies.len(), 2);
        let error = replies.iter().find_map(|reply| reply.get("error")).unwrap();
        assert_eq!(error["code"], -32600);
        assert_eq!(error["data"], json!({ "kind": "limitExceeded", "limit": "maxMessageBytes", "max": 1000 }));
        assert!(replies.iter().any(|reply| is_pong(reply, json!("a"))));
    }
    served.stop().await;
}

#[tokio::test]
async fn a_batch_above_the_limit_is_not_begun() {
    let served = Served::with(Limits { max_batch: 2, ..Limits::default() });
    let replies = served.exchange_lines(format!("[{PING},{PING},{PING}]\n[{PING},{PING}]\n")).await;
    assert_eq!(replies[0]["error"]["data"]["limit"], "maxBatch");
    assert_eq!(short(&replies[1]), "[\"a\" ok, \"a\" ok]");
    served.stop().await;
}

#[tokio::test]
async fn a_batch_whose_replies_are_too_many_says_so_for_each() {
    let served = Served::with(Limits { max_batch_reply_bytes: 200, ..Limits::default() });
    let replies = served.exchange_lines(format!("[{PING},{PING},{PING}]\n")).await;
    let replies = replies[0].as_array().unwrap();
    assert_eq!(replies.len(), 3);
    assert!(is_pong(&replies[0], json!("a")));
    assert_eq!(replies[2]["error"]["data"]["limit"], "maxBatchReplyBytes");
    served.stop().await;
}
