//! HTTP POST and WebSocket.

use super::*;

async fn post(served: &Served, kind: &str, body: &str) -> (u16, String) {
    let request = format!(
        "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut client = served.connect().await;
    client.send(request).await;
    response(&String::from_utf8(client.rest().await).unwrap())
}

fn response(text: &str) -> (u16, String) {
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text:?}"));
    (head[9..12].parse().unwrap(), body.to_owned())
}

#[tokio::test]
async fn a_post_of_any_content_type() {
    let served = Served::start();
    for kind in ["application/json", "application/x-www-form-urlencoded", "text/plain; charset=x"] {
        let (status, body) = post(&served, kind, PING).await;
        assert_eq!(status, 200);
        assert!(is_pong(&serde_json::from_str(&body).unwrap(), json!("a")), "{body}");
    }
    served.stop().await;
}

#[tokio::test]
async fn what_a_post_gets() {
    let served = Served::start();
    let note = r#"{"jsonrpc":"2.0","method":"setSessionName","params":["s","by post"]}"#;
    for (body, status, want) in [
        ("{nope}", 200, "null -32700"),
        ("nope", 200, "null -32700"),
        ("", 200, "null -32700"),
        ("[]", 200, "null -32600"),
        ("1", 200, "null -32600"),
        (r#"{"jsonrpc":"2.0","method":"ping","id":-1.5}"#, 200, "-1.5 ok"),
        (r#"{"jsonrpc":"2.0","method":1,"id":3}"#, 200, "3 -32600"),
        (r#"{"jsonrpc":"2.0","method":"nope","id":3}"#, 200, "3 -32601"),
        (r#"{"jsonrpc":"2.0","method":"getSession","id":3,"params":["missing"]}"#, 200, "3 -32020"),
        (r#"{"jsonrpc":"2.0","method":"subscribe","id":3}"#, 200, "3 -32040"),
        (r#"{"jsonrpc":"2.0","method":"registerTools","id":3}"#, 200, "3 -32040"),
        (r#"{"jsonrpc":"2.0","method":"unsubscribe","id":3,"params":{"subscription":1}}"#, 200, "3 ok"),
        (note, 204, ""),
        (&format!("[{note}]"), 204, ""),
        (&format!("[{note},1,{PING}]"), 200, "[\"a\" ok, null -32600]"),
    ] {
        let (got_status, reply) = post(&served, "text/plain", body).await;
        let mut reply: Value = serde_json::from_str(&reply).unwrap_or(Value::Null);
        if let Value::Array(members) = &mut reply {
            members.sort_by_key(|member| member["id"].to_string());
        }
        let got = if want.is_empty() { reply.as_str().unwrap_or_default().to_owned() } else { short(&reply) };
        assert_eq!((got_status, got.as_str()), (status, want), "{body}");
    }
    assert_eq!(served.service.notes().iter().filter(|note| *note == "by post").count(), 3);
    served.stop().await;
}

#[tokio::test]
async fn other_verbs_and_keep_alive() {
    let served = Served::start();
    let mut client = served.connect().await;
    client.send("GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    let text = String::from_utf8(client.rest().await).unwrap();
    assert_eq!(response(&text).0, 405);
    let mut client = served.connect().await;
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":[{"name":"curl","version":"1"}]}"#;
    for _ in 0..2 {
        client.send(format!("\r\nPOST / HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{call}", call.len())).await;
        // The status line, the headers, and then the reply on a line of its own.
        let reply = async { while !client.text_line().await.starts_with('{') {} };
        tokio::time::timeout(PATIENCE, reply).await.unwrap();
    }
    assert_eq!(served.service.notes()[1..], ["connection 2 was ", "connection 2 was curl"]);
    drop(client);
    served.service.noted("closed 2").await;
    served.stop().await;
}

/// Whoever writes all of it before reading gets the answer, and goes on.
#[tokio::test]
async fn a_post_above_the_limit_is_passed_over() {
    let served = Served::with(Limits { max_message_bytes: 1000, ..Limits::default() });
    let mut client = served.connect().await;
    let large = "x".repeat(4 << 20);
    client.send(format!("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{large}", large.len())).await;
    let chunked = format!("{:x}\r\n{large}\r\n0\r\n\r\n", large.len());
    client.send(format!("POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n{chunked}")).await;
    client
        .send(format!(
            "POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{PING}",
            PING.len()
        ))
        .await;
    let text = String::from_utf8(client.rest().await).unwrap();
    assert_eq!(text.matches("HTTP/1.1 413").count(), 2, "{text}");
    assert!(text.contains("HTTP/1.1 200") && text.contains(r#""protocolVersion""#), "{text}");
    let mut client = served.connect().await;
    client.send("POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 9000\r\n\r\n").await;
    let text = String::from_utf8(client.rest().await).unwrap();
    assert_eq!(response(&text).0, 413, "asked first, answered at once");
    served.stop().await;
}

/// Whoever has closed the sending half still gets the answers, then the end; whoever is gone is noticed.
#[tokio::test]
async fn a_half_closed_post_is_answered() {
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"waitRun","params":["s"]}"#;
    let post = format!("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{call}", call.len());
    let served = Served::start();
    let mut client = served.connect().await;
    client.send(post.repeat(2)).await;
    client.socket.shutdown().await.unwrap();
    served.service.noted("waiting s").await;
    served.service.release.cancel();
    let text = String::from_utf8(client.rest().await).unwrap();
    assert_eq!(text.matches("HTTP/1.1 200").count(), 2, "{text}");
    assert_eq!(text.matches(r#""result""#).count(), 2, "{text}");
    served.service.noted("closed 1").await;
    served.stop().await;

    let served = Served::start();
    let mut client = served.connect().await;
    client.send(post).await;
    client.socket.shutdown().await.unwrap();
    served.service.noted("waiting s").await;
    drop(client);
    served.service.noted("closed 1").await;
    served.stop().await;
}

struct WebSocket(Client);

impl WebSocket {
    async fn open(served: &Served) -> WebSocket {
        let mut client = served.connect().await;
        client
            .send(
                "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                 Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
            )
            .await;
        while !client.unread.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            client.socket.read_exact(&mut byte).await.unwrap();
            client.unread.extend(byte);
        }
        let head = String::from_utf8(std::mem::take(&mut client.unread)).unwrap();
        assert!(head.starts_with("HTTP/1.1 101 ") && head.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
        WebSocket(client)
    }

    async fn send(&mut self, text: &str) {
        let mut frame = vec![0x81];
        match u8::try_from(text.len()) {
            Ok(length) if length < 126 => frame.push(0x80 | length),
            _ => {
                frame.push(0x80 | 126);
                frame.extend(u16::try_from(text.len()).unwrap().to_be_bytes());
            }
        }
        frame.extend([0; 4]);
        frame.extend(text.as_bytes());
        self.0.send(frame).await;
    }

    async fn receive(&mut self) -> Value {
        let read = async {
            let socket = &mut self.0.socket;
            assert_eq!(socket.read_u8().await.unwrap(), 0x81);
            let length = match socket.read_u8().await.unwrap() {
                126 => usize::from(socket.read_u16().await.unwrap()),
                length => usize::from(length),
            };
            let mut text = vec![0; length];
            socket.read_exact(&mut text).await.unwrap();
            serde_json::from_slice(&text).unwrap()
        };
        tokio::time::timeout(PATIENCE, read).await.unwrap()
    }
}

#[tokio::test]
async fn calls_and_subscriptions_over_websocket() {
    let served = Served::start();
    let mut socket = WebSocket::open(&served).await;
    socket.send(PING).await;
    assert!(is_pong(&socket.receive().await, json!("a")));
    socket.send(r#"{"jsonrpc":"2.0","method":"setSessionName","params":["s","by socket"]}"#).await;
    served.service.noted("by socket").await;
    socket.send(r#"{"jsonrpc":"2.0","id":1,"method":"waitRun","params":["s"]}"#).await;
    socket.send(r#"{"jsonrpc":"2.0","id":2,"method":"subscribe","params":{"sessionId":"s"}}"#).await;
    let number = socket.receive().await["result"].as_u64().unwrap();
    let event = socket.receive().await;
    assert_eq!(event["method"], "sessionEvent");
    assert_eq!(event["params"], json!({ "subscription": number, "result": { "type": "snapshot", "seq": 1 } }));
    socket.send(r#"{"jsonrpc":"2.0","id":3,"method":"subscribe","params":{"sessionId":"missing"}}"#).await;
    assert_eq!(short(&socket.receive().await), "3 -32020");
    for (id, ended) in [(4, true), (5, false)] {
        let end = json!({ "jsonrpc": "2.0", "id": id, "method": "unsubscribe", "params": { "subscription": number } });
        socket.send(&end.to_string()).await;
        assert_eq!(socket.receive().await["result"], ended);
    }
    served.service.release.cancel();
    assert_eq!(short(&socket.receive().await), "1 ok");
    drop(socket);
    served.service.noted("closed 1").await;
    served.stop().await;
}

/// The library sends the number of a subscription before it knows it itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_over_websocket_can_be_ended_at_once() {
    let served = Served::start();
    let mut socket = WebSocket::open(&served).await;
    for _ in 0..300 {
        socket.send(r#"{"jsonrpc":"2.0","id":1,"method":"registerTools","params":{"tools":[]}}"#).await;
        let number = socket.receive().await["result"].as_u64().unwrap();
        let end = json!({ "jsonrpc": "2.0", "id": 2, "method": "unregisterTools", "params": [number] });
        socket.send(&end.to_string()).await;
        assert_eq!(socket.receive().await["result"], true);
    }
    drop(socket);
    served.stop().await;
}

#[tokio::test]
async fn a_websocket_is_closed_when_the_daemon_stops() {
    let served = Served::with(Limits { drain: Duration::from_millis(100), ..Limits::default() });
    let mut socket = WebSocket::open(&served).await;
    socket.send(r#"{"jsonrpc":"2.0","id":1,"method":"waitRun","params":["s"]}"#).await;
    served.service.noted("waiting s").await;
    served.stop().await;
}

#[tokio::test]
async fn a_websocket_that_does_not_read_is_not_read_from() {
    let served = Served::start();
    let mut socket = WebSocket::open(&served).await;
    socket.send(r#"{"jsonrpc":"2.0","id":2,"method":"subscribe","params":{"types":["endless"]}}"#).await;
    let flood = async {
        for _ in 0..100_000 {
            socket.send(PING).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_millis(500), flood).await.is_err(), "the daemon stopped reading");
    assert_eq!(served.exchange_lines(PING).await.len(), 1);
    drop(socket);
    served.service.noted("closed 1").await;
    served.stop().await;
}
