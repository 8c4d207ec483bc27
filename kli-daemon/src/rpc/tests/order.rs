//! Calls side by side, in order where order matters, and subscriptions.

use super::*;

#[tokio::test]
async fn a_call_that_waits_holds_up_no_other() {
    let served = Served::start();
    let mut client = served.connect().await;
    client.call(1, "waitRun", json!(["s"])).await;
    client.call(2, "ping", json!({})).await;
    client.call(3, "setSessionName", json!(["s", "x"])).await;
    let mut replies = [client.line().await, client.line().await];
    replies.sort_by_key(|reply| reply["id"].as_u64());
    assert_eq!(replies.iter().map(short).collect::<Vec<_>>(), ["2 ok", "3 ok"]);
    served.service.release.cancel();
    assert_eq!(client.line().await, json!({ "jsonrpc": "2.0", "id": 1, "result": null }));
    served.stop().await;
}

#[tokio::test]
async fn calls_to_one_session_reach_it_in_the_order_sent() {
    let served = Served::start();
    let mut client = served.connect().await;
    let mut input = String::new();
    for i in 0..200 {
        let (method, params) = match i % 50 {
            49 => ("createSession", json!({ "workDir": "/", "sessionId": i.to_string() })),
            _ => ("setSessionName", json!([format!("s{}", i % 3), i.to_string()])),
        };
        input += &format!("{}\n", json!({ "jsonrpc": "2.0", "id": i, "method": method, "params": params }));
    }
    client.send(input).await;
    for _ in 0..200 {
        client.line().await;
    }
    let notes = served.service.notes();
    for session in 0..3 {
        let of_one: Vec<u32> =
            notes.iter().filter_map(|note| note.parse().ok()).filter(|i: &u32| i % 3 == session).collect();
        assert!(of_one.is_sorted(), "{of_one:?}");
    }
    // What makes a session stands between those before and those after.
    for made in [49u32, 99, 149] {
        let at = notes.iter().position(|note| *note == format!("made {made}")).unwrap();
        assert!(notes[..at].iter().filter_map(|note| note.parse::<u32>().ok()).all(|i| i < made));
        assert!(notes[at..].iter().filter_map(|note| note.parse::<u32>().ok()).all(|i| i > made));
    }
    served.stop().await;
}

#[tokio::test]
async fn the_client_is_known_by_its_connection() {
    let served = Served::start();
    let mut client = served.connect().await;
    for (id, name) in [(1, "first"), (2, "second")] {
        client.call(id, "initialize", json!({ "clientInfo": { "name": name, "version": "1" } })).await;
        client.line().await;
    }
    assert_eq!(served.service.notes(), ["connection 1 was ", "connection 1 was first"]);
    served.stop().await;
}

#[tokio::test]
async fn a_subscription_from_beginning_to_end() {
    let served = Served::start();
    let mut client = served.connect().await;
    client.call(1, "subscribe", json!({ "sessionId": "missing" })).await;
    assert_eq!(short(&client.line().await), "1 -32020");
    client.call(2, "subscribe", json!({})).await;
    assert_eq!(client.line().await["result"], 1);
    let event = |result: Value| json!({ "jsonrpc": "2.0", "method": "sessionEvent", "params": { "subscription": 1, "result": result } });
    assert_eq!(client.line().await, event(json!({ "type": "snapshot", "seq": 1 })));
    served.service.events.send(r#"{"type":"raw", "seq":2}"#.into()).unwrap();
    assert_eq!(client.line().await, event(json!({ "type": "raw", "seq": 2 })));
    client.call(3, "unregisterTools", json!([1])).await;
    assert_eq!(client.line().await["result"], false);
    client.call(4, "unsubscribe", json!({ "subscription": 1 })).await;
    assert_eq!(client.line().await["result"], true);
    client.call(5, "unsubscribe", json!([1])).await;
    assert_eq!(client.line().await["result"], false);
    assert_eq!(served.service.events.receiver_count(), 0, "nothing is left of it");
    let tools = json!({ "tools": [{ "name": "look", "description": "", "parameters": {} }] });
    client.call(6, "registerTools", tools).await;
    assert_eq!(client.line().await["result"], 2);
    assert_eq!(client.line().await["method"], "toolCall");
    client.call(7, "unregisterTools", json!({ "subscription": 2 })).await;
    assert_eq!(client.line().await["result"], true);
    served.stop().await;
}

#[tokio::test]
async fn a_subscription_in_a_batch_begins_after_its_reply() {
    let served = Served::start();
    let mut client = served.connect().await;
    client.send(r#"[{"jsonrpc":"2.0","id":1,"method":"waitRun","params":["s"]},{"jsonrpc":"2.0","id":2,"method":"subscribe"}]
"#).await;
    served.service.noted("waiting s").await;
    served.service.release.cancel();
    let reply = client.line().await;
    assert_eq!(reply.as_array().map(Vec::len), Some(2));
    assert_eq!(client.line().await["params"]["result"]["type"], "snapshot");
    served.stop().await;
}

#[tokio::test]
async fn subscriptions_of_one_connection_are_bounded() {
    let served = Served::with(Limits { max_subscriptions: 1, ..Limits::default() });
    let mut client = served.connect().await;
    client.call(1, "subscribe", json!({})).await;
    client.line().await;
    client.line().await;
    client.call(2, "subscribe", json!({})).await;
    assert_eq!(client.line().await["error"]["data"]["limit"], "maxSubscriptions");
    served.stop().await;
}

#[tokio::test]
async fn calls_in_flight_are_bounded_by_reading_no_more() {
    let served = Served::with(Limits { max_in_flight: 2, ..Limits::default() });
    let mut client = served.connect().await;
    for id in 1..=3 {
        client.call(id, "waitRun", json!([format!("s{id}")])).await;
    }
    served.service.noted("waiting s2").await;
    // Another connection shows that the server had its time.
    assert_eq!(served.exchange_lines(PING).await.len(), 1);
    assert!(!served.service.notes().contains(&"waiting s3".to_owned()));
    served.service.release.cancel();
    let mut ids: Vec<_> = Vec::new();
    for _ in 0..3 {
        ids.push(client.line().await["id"].as_u64());
    }
    ids.sort_unstable();
    assert_eq!(ids, [Some(1), Some(2), Some(3)]);
    served.stop().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_is_not_read_from_and_makes_nothing_grow() {
    let served = Served::start();
    let mut client = served.connect().await;
    client.call(1, "subscribe", json!({ "types": ["endless"] })).await;
    // Far more than the buffers hold, so that it can end only by being read.
    let pings = format!("{PING}\n").repeat(1_000_000 / PING.len());
    let (mut read, mut write) = client.socket.split();
    let sent = tokio::time::timeout(Duration::from_millis(500), write.write_all(pings.as_bytes())).await;
    assert!(sent.is_err(), "the daemon stopped reading");
    // Others do not notice.
    assert_eq!(served.exchange_lines(PING).await.len(), 1);
    // Once it reads, it gets everything in whole lines.
    let mut got = vec![0; 3_000_000];
    tokio::time::timeout(PATIENCE, read.read_exact(&mut got)).await.unwrap().unwrap();
    let end = got.iter().rposition(|byte| *byte == b'\n').unwrap();
    assert!(
        lines(&got[..end]).iter().skip(1).all(|line| line["method"] == "sessionEvent" || is_pong(line, json!("a")))
    );
    served.stop().await;
}
