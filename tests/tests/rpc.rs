//! The wire itself: framings, the frames of the JSON-RPC specification, errors, limits.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use kli_protocol::api::{Method, Visitor, visit_methods};
use kli_protocol::rpc::Incoming;
use kli_tests::raw::{self, Then};
use kli_tests::{Daemon, Gate, ModelServer, Reply, Session, Setup, fixtures, timed};
use serde_json::{Value, json};

const PING: &str = r#"{"jsonrpc":"2.0","id":"a","method":"ping"}"#;

fn request(id: Value, method: &str, params: Value) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string()
}

fn is_pong(reply: &Value, id: &Value) -> bool {
    reply["jsonrpc"] == "2.0" && reply["id"] == *id && reply["result"]["protocolVersion"] == 1
}

/// What a reply is, in short: `id=result`, `id=code`.
fn short(reply: &Value) -> String {
    match reply {
        Value::Array(batch) => {
            let mut members: Vec<String> = batch.iter().map(short).collect();
            members.sort();
            format!("[{}]", members.join(" "))
        }
        _ => match reply["error"]["code"].as_i64() {
            Some(code) => format!("{}={code}", reply["id"]),
            None if reply.get("result").is_some() => format!("{}=ok", reply["id"]),
            None => format!("neither result nor error: {reply}"),
        },
    }
}

/// Sends bytes, half-closes, and compares the replies in short, in any order.
#[track_caller]
fn check(daemon: &Daemon, bytes: impl AsRef<[u8]>, expected: &[&str]) {
    let replies = raw::lines(&daemon.socket, bytes.as_ref(), Then::Shut);
    let mut found: Vec<String> = replies.iter().map(short).collect();
    let mut expected: Vec<String> = expected.iter().map(|e| (*e).to_owned()).collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected, "{} → {replies:?}", String::from_utf8_lossy(bytes.as_ref()));
}

#[test]
fn newline_framing() {
    let daemon = Setup::new().start();
    for (bytes, expected) in [
        (format!("{PING}\n"), vec!["\"a\"=ok"]),
        (PING.to_owned(), vec!["\"a\"=ok"]), // the last line need not end
        (format!("\u{feff} \r\n{PING}\r\n\n"), vec!["\"a\"=ok"]),
        (format!("{{nope}}\n{PING}\n"), vec!["null=-32700", "\"a\"=ok"]),
        (format!("what is this\n{PING}\n"), vec!["null=-32700", "\"a\"=ok"]),
        (
            [json!("s"), json!(7), Value::Null].map(|id| request(id, "ping", json!({})) + "\n").concat(),
            vec!["\"s\"=ok", "7=ok", "null=ok"],
        ),
        (r#"{"jsonrpc":"2.0","method":"ping"}"#.to_owned() + "\n", vec![]),
        ("[]\n".to_owned(), vec!["null=-32600"]),
        ("[1,2]\n".to_owned(), vec!["[null=-32600 null=-32600]"]),
        (r#"{"jsonrpc":"2.0","method":1,"params":"bar"}"#.to_owned() + "\n", vec!["null=-32600"]),
        (request(json!(1), "foobar", json!({})) + "\n", vec!["1=-32601"]),
        (request(json!(1), "getTree", json!({})) + "\n", vec!["1=-32602"]),
        (request(json!(1), "getSession", json!(["no-such-session"])) + "\n", vec!["1=-32020"]),
        (
            format!(
                "[{PING},{},{{\"jsonrpc\":\"2.0\",\"method\":\"ping\"}},1]\n",
                request(json!(7), "ping", json!({}))
            ),
            vec!["[\"a\"=ok 7=ok null=-32600]"],
        ),
    ] {
        check(&daemon, bytes, &expected);
    }
}

/// Requests whose fault can be told in two ways: the code is one of those, and the connection lives.
#[test]
fn faults_with_two_names() {
    let daemon = Setup::new().start();
    for (line, codes) in [
        (r#"{"id":1,"method":"ping"}"#, [-32600, -32600]),
        (r#"{"jsonrpc":"2.0","id":1,"method":"getTree","params":"x"}"#, [-32600, -32602]),
        (r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#, [-32600, -32600]),
        (r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#, [-32600, -32600]),
    ] {
        let replies = raw::lines(&daemon.socket, format!("{line}\n{PING}\n").as_bytes(), Then::Shut);
        let faults: Vec<i64> = replies.iter().filter_map(|reply| reply["error"]["code"].as_i64()).collect();
        assert!(faults.len() == 1 && codes.contains(&faults[0]), "{line}: {replies:?}");
        assert!(replies.iter().any(|reply| is_pong(reply, &json!("a"))), "{line}: {replies:?}");
    }
}

/// The examples of section 7 of the specification that a server without `subtract` can answer.
#[test]
fn the_specifications_own_examples() {
    let daemon = Setup::new().start();
    for (line, expected) in [
        (r#"{"jsonrpc": "2.0", "method": "foobar", "id": "1"}"#, vec!["\"1\"=-32601"]),
        (r#"{"jsonrpc": "2.0", "method": "foobar, "params": "bar", "baz]"#, vec!["null=-32700"]),
        (r#"{"jsonrpc": "2.0", "method": 1, "params": "bar"}"#, vec!["null=-32600"]),
        (
            r#"[{"jsonrpc": "2.0", "method": "ping", "params": [], "id": "1"}, {"jsonrpc": "2.0", "method"]"#,
            vec!["null=-32700"],
        ),
        ("[]", vec!["null=-32600"]),
        ("[1]", vec!["[null=-32600]"]),
        ("[1,2,3]", vec!["[null=-32600 null=-32600 null=-32600]"]),
        (
            r#"[{"jsonrpc": "2.0", "method": "ping", "id": "1"}, {"jsonrpc": "2.0", "method": "ping"}, {"foo": "boo"}, {"jsonrpc": "2.0", "method": "foo.get", "params": {"name": "myself"}, "id": "5"}]"#,
            vec!["[\"1\"=ok \"5\"=-32601 null=-32600]"],
        ),
        (r#"[{"jsonrpc": "2.0", "method": "ping"}, {"jsonrpc": "2.0", "method": "ping"}]"#, vec![]),
    ] {
        check(&daemon, format!("{line}\n"), &expected);
    }
}

#[test]
fn bad_frames_that_peers_fell_over() {
    let daemon = Setup::new().start();
    if let Some(path) = fixtures::shared("failures/F172-rpc-bad-frames.bin") {
        let replies = raw::lines(&daemon.socket, &std::fs::read(path).unwrap(), Then::Shut);
        let ids: Vec<&Value> = replies.iter().filter(|r| r.get("result").is_some()).map(|r| &r["id"]).collect();
        assert!(ids.contains(&&json!(1)) && ids.contains(&&json!(5)), "{replies:?}");
    }
    check(&daemon, b"\xff\xfe{\"\n{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n", &["null=-32700", "1=ok"]);
    daemon.client().call("ping", json!({}));
}

/// Only LF ends a message: U+2028 and its like are data, also cut in the middle of their bytes.
#[test]
fn line_separators_are_data() {
    let server = ModelServer::with([Reply::text("b\u{2028}c\u{85}d")]);
    let daemon = Setup::new().model(&server).start();
    let work_dir = fixtures::work_dir();
    let mut session = Session::create(&daemon, work_dir.path());
    let said = "a\u{2028}b\u{2029}c\u{85}d";
    // The separator itself, not its escape.
    let call = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"prompt","params":{{"sessionId":"{}","text":"{said}","wait":true}}}}"#,
        session.id
    );
    let mut stream = UnixStream::connect(&daemon.socket).unwrap();
    for byte in call.as_bytes().iter().chain(b"\n") {
        stream.write_all(&[*byte]).unwrap();
    }
    let reply = raw::read_until(&mut stream, |got| got.contains(&b'\n'));
    let reply: Value = serde_json::from_slice(&reply).unwrap();
    assert_eq!(reply["result"]["text"], "b\u{2028}c\u{85}d");
    assert_eq!(session.prompts()[0].1, said);
    server.assert_valid();
}

#[test]
fn content_length_framing() {
    let daemon = Setup::new().start();
    let mut bytes = raw::framed(PING.as_bytes());
    bytes.extend(raw::framed(b"{nope}"));
    bytes.extend(raw::framed(br#"{"jsonrpc":"2.0","method":"ping"}"#));
    let typed = b"Content-Length: 42\r\nContent-Type: application/vscode-jsonrpc; charset=utf-8\r\n\r\n";
    bytes.extend(typed);
    bytes.extend(br#"{"jsonrpc":"2.0","id": 2, "method":"ping"}"#);
    let replies = raw::unframe(&raw::exchange(&daemon.socket, &bytes, Then::Shut));
    let mut found: Vec<String> = replies.iter().map(short).collect();
    found.sort();
    assert_eq!(found, ["\"a\"=ok", "2=ok", "null=-32700"]);
}

fn http(socket: &Path, body: &str, content_type: &str) -> (u16, String) {
    let head = format!(
        "POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let reply = raw::exchange(socket, format!("{head}{body}").as_bytes(), Then::Read(usize::MAX));
    let reply = String::from_utf8(reply).unwrap();
    let status = reply.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or_else(|| panic!("{reply}"));
    let body = reply.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default();
    (status, body)
}

#[test]
fn http_post() {
    let daemon = Setup::new().start();
    let work_dir = fixtures::work_dir();
    let mut session = Session::create(&daemon, work_dir.path());
    for kind in ["application/json", "application/x-www-form-urlencoded", "text/plain"] {
        let (status, body) = http(&daemon.socket, PING, kind);
        assert_eq!(status, 200, "{kind}: {body}");
        assert!(is_pong(&serde_json::from_str(&body).unwrap(), &json!("a")), "{kind}: {body}");
    }
    let note = json!({ "jsonrpc": "2.0", "method": "setSessionName",
        "params": { "sessionId": session.id, "name": "by post" } });
    let (status, body) = http(&daemon.socket, &note.to_string(), "application/json");
    assert!((200..300).contains(&status) && body.trim().is_empty(), "{status} {body}");
    assert!(kli_tests::poll(kli_tests::PATIENCE, || session.state()["name"] == "by post"));
    let subscribe = request(json!(1), "subscribe", json!({ "sessionId": session.id }));
    let (_, body) = http(&daemon.socket, &subscribe, "application/json");
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["error"]["data"]["kind"], "needsConnection", "{body}");
}

#[test]
fn websocket() {
    let daemon = Setup::new().start();
    let mut stream = UnixStream::connect(&daemon.socket).unwrap();
    stream.set_read_timeout(Some(kli_tests::PATIENCE)).unwrap();
    // Key and answer are those of RFC 6455, section 1.3.
    stream
        .write_all(
            b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
              Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        )
        .unwrap();
    let head = raw::read_until(&mut stream, |got| got.ends_with(b"\r\n\r\n"));
    let head = String::from_utf8(head).unwrap();
    assert!(head.starts_with("HTTP/1.1 101") && head.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
    let mask = [1u8, 2, 3, 4];
    let mut frame = vec![0x81, 0x80 | PING.len() as u8];
    frame.extend(mask);
    frame.extend(PING.bytes().zip(mask.iter().cycle()).map(|(byte, key)| byte ^ key));
    stream.write_all(&frame).unwrap();
    let mut head = [0; 2];
    stream.read_exact(&mut head).unwrap();
    let mut length = usize::from(head[1]);
    if length == 126 {
        let mut long = [0; 2];
        stream.read_exact(&mut long).unwrap();
        length = usize::from(u16::from_be_bytes(long));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    assert_eq!(head[0], 0x81, "one whole text frame");
    assert!(is_pong(&serde_json::from_slice(&body).unwrap(), &json!("a")));
}

#[test]
fn parameters() {
    let daemon = Setup::new().start();
    let work_dir = fixtures::work_dir();
    let mut session = Session::create(&daemon, work_dir.path());
    let unknown = session.error("getTree", json!({ "colour": 1 }));
    assert_eq!(unknown.code(), -32602);
    assert!(unknown.0.to_string().contains("colour"), "{unknown:?}");
    assert_eq!(session.error("getTree", json!({ "limit": "many" })).code(), -32602);
    for method in ["listSessions", "getForest", "getTree", "getBranch", "getContext", "getForkMessages", "search"] {
        let mut params = json!({ "cursor": "none of ours" });
        match method {
            "listSessions" | "getForest" => {}
            "search" => params["query"] = json!("x"),
            _ => params["sessionId"] = json!(session.id),
        }
        assert_eq!(session.client.error(method, params).code(), -32602, "{method}");
    }
    for content in [json!(5), json!({}), json!([5]), json!([{ "text": "no type" }]), json!([{ "type": "text" }])] {
        let note = json!({ "customType": "x", "content": content });
        assert_eq!(session.error("appendEntry", note).code(), -32602, "{content}");
        let result = json!({ "callId": "c", "content": content });
        assert_eq!(session.client.error("submitToolResult", result).code(), -32602, "{content}");
    }
    // By position, in the order of the contract; null counts as absent.
    let by_position = session.client.call("getSession", json!([session.id]));
    assert_eq!(by_position["sessionId"], json!(session.id));
    let made = session.client.call("createSession", json!([work_dir.path(), null, null]));
    assert_eq!(made["workDir"], json!(work_dir.path()));
    assert_eq!(session.error("navigateTree", json!({ "entryId": "ffffffffffff" })).code(), -32021);
    let error = session.client.error("getSession", json!({ "sessionId": "nobody" }));
    assert_eq!((error.code(), error.kind()), (-32020, "sessionNotFound"));
    assert!(error.message().len() > 10, "a sentence for a person: {}", error.message());
}

#[test]
fn calls_side_by_side() {
    let gate = Gate::new();
    let server = ModelServer::with([Reply::held("a", &gate, "b")]);
    let daemon = Setup::new().model(&server).start();
    let work_dir = fixtures::work_dir();
    let mut session = Session::create(&daemon, work_dir.path());
    let waiting = session.send("prompt", json!({ "text": "slowly", "wait": true }));
    gate.reached();
    let (_, took) = timed(|| session.client.call("ping", json!({})));
    assert!(took.as_secs() < 3, "a call that waits holds up no other on its connection");
    assert!(!session.client.is_answered(waiting));
    for (method, params) in [
        ("prompt", json!({ "text": "x" })),
        ("navigateTree", json!({ "entryId": null })),
        ("continueRun", json!({})),
        ("compact", json!({})),
        ("deleteSession", json!({})),
    ] {
        let error = session.error(method, params);
        assert_eq!((error.code(), error.kind()), (-32024, "sessionBusy"), "{method}");
        assert_eq!(error.0["data"]["status"], "running");
    }
    for method in ["getTree", "getBranch", "getContext", "getStats", "getSession"] {
        session.call(method, json!({}));
    }
    session.call("setSessionName", json!({ "name": "meanwhile" }));
    gate.open();
    assert_eq!(session.client.reply(waiting).unwrap()["stopReason"], "done");
    server.assert_valid();
}

#[test]
fn a_message_above_the_limit() {
    let daemon = Setup::new().start();
    let long = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":\"big\",\"method\":\"ping\",\"params\":{{\"x\":\"{}\"}}}}",
        "y".repeat(20 << 20)
    );
    let replies = raw::lines(&daemon.socket, format!("{long}\n{PING}\n").as_bytes(), Then::Shut);
    assert_eq!(replies.len(), 2, "{replies:?}");
    assert!(replies.iter().any(|reply| is_pong(reply, &json!("a"))), "the connection lives");
    let error = replies.iter().find(|reply| reply.get("error").is_some()).unwrap().to_string();
    assert!(error.contains("maxMessageBytes") || error.contains("16777216"), "{error}");
    assert!(daemon.rss_bytes() < 200 << 20);
}

/// Two hundred idle connections, half-sent lines, clients that die: the next one is served as before.
#[test]
fn others_who_misbehave() {
    let daemon = Setup::new().start();
    daemon.client().call("ping", json!({}));
    let files = daemon.open_files();
    let mut idle: Vec<UnixStream> = (0..200).map(|_| UnixStream::connect(&daemon.socket).unwrap()).collect();
    for stream in &mut idle {
        stream.write_all(br#"{"jsonrpc":"2.0","id":1,"#).unwrap();
    }
    let (_, took) = timed(|| daemon.client().call("ping", json!({})));
    assert!(took.as_secs() < 2, "{took:?}");
    drop(idle);
    for _ in 0..200 {
        let mut stream = UnixStream::connect(&daemon.socket).unwrap();
        stream.write_all(PING.as_bytes()).unwrap();
    }
    assert!(
        kli_tests::poll(kli_tests::PATIENCE, || daemon.open_files() <= files + 2),
        "{} files open, {files} before",
        daemon.open_files()
    );
    daemon.client().call("ping", json!({}));
}

#[test]
fn the_document_names_every_method() {
    struct Names(Vec<&'static str>);
    impl Visitor for Names {
        fn method<M: Method>(&mut self) {
            self.0.push(M::NAME);
        }
    }
    let mut names = Names(Vec::new());
    visit_methods(&mut names);
    let daemon = Setup::new().start();
    let document = daemon.client().call("rpc.discover", json!({}));
    assert!(document["openrpc"].is_string());
    let listed: Vec<&str> =
        document["methods"].as_array().unwrap().iter().map(|method| method["name"].as_str().unwrap()).collect();
    for name in names.0 {
        assert!(name == "rpc.discover" || listed.contains(&name), "{name} is not in the document");
        // And each is there: whatever it says of missing parameters, it is not unknown.
        if !matches!(name, "shutdown" | "reloadConfig") {
            let line = request(json!(1), name, json!({})) + "\n";
            let reply = raw::exchange(&daemon.socket, line.as_bytes(), Then::Read(1));
            let reply: Incoming = serde_json::from_slice(reply.split(|b| *b == b'\n').next().unwrap()).unwrap();
            assert!(reply.error.is_none_or(|error| error.code != -32601), "{name} is unknown to the daemon");
        }
    }
}

/// Tools that a connected client runs.
#[test]
fn client_tools() {
    let server = ModelServer::with([
        Reply::call("c1", "buffers", json!({ "all": true })),
        Reply::text("thanks"),
        Reply::call("c2", "buffers", json!({})),
        Reply::text("gone"),
    ]);
    let daemon = Setup::new().model(&server).start();
    let work_dir = fixtures::work_dir();
    let mut session = Session::create(&daemon, work_dir.path());
    let mut editor = daemon.client();
    let tool = json!({ "name": "buffers", "description": "open buffers", "readOnly": true,
        "parameters": { "type": "object", "properties": { "all": { "type": "boolean" } } } });
    editor.call("registerTools", json!({ "tools": [tool] }));
    for name in ["bash", "no spaces", ""] {
        let bad = json!({ "tools": [{ "name": name, "description": "x", "parameters": { "type": "object" } }] });
        assert_eq!(editor.error("registerTools", bad).code(), -32602, "{name:?}");
    }
    for parameters in [json!([]), json!({ "type": "string" }), json!({ "type": ["object", "null"] })] {
        let bad = json!({ "tools": [{ "name": "x", "description": "x", "parameters": parameters }] });
        assert_eq!(editor.error("registerTools", bad).code(), -32602, "{parameters}");
    }
    // Of what may be left out of a schema, providers want more than most clients say.
    for (name, parameters) in [("any", json!({})), ("none", json!({ "type": "object" }))] {
        let tool = json!({ "name": name, "description": "x", "parameters": parameters });
        editor.call("registerTools", json!({ "tools": [tool] }));
    }
    session.call("prompt", json!({ "text": "what is open?" }));
    let call = editor.until(|e| e.method == "toolCall");
    assert_eq!((&call.body["name"], &call.body["arguments"]), (&json!("buffers"), &json!({ "all": true })));
    let answer = json!({ "callId": call.body["callId"], "content": "main.rs" });
    editor.call("submitToolResult", answer.clone());
    assert_eq!(editor.error("submitToolResult", answer).kind(), "callNotFound");
    session.wait();
    assert!(server.last().says("main.rs"));
    // It goes with its connection, and what was open gets an error result.
    let seen = editor.events().len();
    session.call("prompt", json!({ "text": "again" }));
    editor.until_after(seen, |e| e.method == "toolCall");
    drop(editor);
    assert_eq!(session.wait()["stopReason"], "done");
    assert!(session.messages().iter().any(|m| m["toolCallId"] == "c2" && m["isError"] == true));
    server.assert_valid();
}

/// Of two clients with one tool the newest has it, until it goes; a call that is no longer wanted is taken back.
#[test]
fn the_same_tool_of_two_clients() {
    let server = ModelServer::with([
        Reply::call("c1", "buffers", json!({})),
        Reply::text("from the first"),
        Reply::call("c2", "buffers", json!({})),
        Reply::text("from the second"),
        Reply::call("c3", "buffers", json!({})),
        Reply::text("from the first again"),
        Reply::call("c4", "buffers", json!({})),
    ]);
    let daemon = Setup::new().model(&server).start();
    let work_dir = fixtures::work_dir();
    let mut session = Session::create(&daemon, work_dir.path());
    let tools = json!({ "tools": [{ "name": "buffers", "description": "open buffers", "readOnly": true,
        "parameters": { "type": "object", "properties": {} } }] });
    let called = |client: &kli_tests::Client, id: &str| {
        client.until(|e| e.method == "toolCall" && e.body["toolCallId"] == id).body["callId"].clone()
    };
    let mut first = daemon.client();
    let subscription = first.call("registerTools", tools.clone());
    let mut answer = |client: &mut kli_tests::Client, id: &str| {
        session.call("prompt", json!({ "text": id }));
        let call_id = called(client, id);
        client.call("submitToolResult", json!({ "callId": call_id, "content": [{ "type": "text", "text": id }] }));
        assert_eq!(session.wait()["stopReason"], "done");
        assert_eq!(session.result_of(id), (id.to_owned(), false));
    };
    answer(&mut first, "c1");
    let mut second = daemon.client();
    let newest = second.call("registerTools", tools);
    answer(&mut second, "c2");
    second.call("unregisterTools", json!({ "subscription": newest }));
    answer(&mut first, "c3");
    session.call("prompt", json!({ "text": "stop" }));
    let call_id = called(&first, "c4");
    session.call("abort", json!({}));
    first.until(|e| e.body["callId"] == call_id && e.body["cancelled"] == true);
    assert_eq!(first.error("submitToolResult", json!({ "callId": call_id, "content": "late" })).kind(), "callNotFound");
    assert_eq!(first.call("unregisterTools", json!({ "subscription": subscription })), true);
    assert_eq!(first.call("unregisterTools", json!({ "subscription": subscription })), false);
    assert!(!session.call("getContext", json!({}))["tools"].to_string().contains("buffers"));
    server.assert_valid();
}
