//! From the socket's place in the file system to the end of a connection and of the server.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::*;

#[tokio::test]
async fn a_half_closed_client_gets_what_it_asked_for() {
    let served = Served::start();
    let mut client = served.connect().await;
    client.call(1, "waitRun", json!(["s"])).await;
    client.call(2, "subscribe", json!({})).await;
    client.socket.shutdown().await.unwrap();
    assert_eq!(client.line().await["id"], 2);
    assert_eq!(client.line().await["method"], "sessionEvent");
    served.service.release.cancel();
    assert_eq!(client.line().await["id"], 1);
    served.service.events.send("{}".into()).unwrap();
    assert_eq!(client.line().await["method"], "sessionEvent", "its subscription goes on");
    drop(client);
    served.service.noted("closed 1").await;
    served.stop().await;
}

#[tokio::test]
async fn with_nothing_left_the_daemon_closes() {
    let served = Served::start();
    assert_eq!(served.exchange_lines(PING).await.len(), 1);
    served.service.noted("closed 1").await;
    assert_eq!(served.exchange("").await, b"");
    served.stop().await;
}

#[tokio::test]
async fn a_client_that_dies_is_noticed() {
    // While a call waits; while it only listens; in mid-line; with the sending half closed before.
    for (input, half) in [
        ("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"waitRun\",\"params\":[\"s\"]}\n", false),
        ("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"subscribe\"}\n", false),
        ("{\"jsonrpc\":\"2.0\",\"id", false),
        ("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"waitRun\",\"params\":[\"s\"]}\n", true),
        ("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"subscribe\"}\n", true),
        ("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"subscribe\",\"params\":{\"types\":[\"endless\"]}}\n", true),
    ] {
        let served = Served::start();
        let mut client = served.connect().await;
        client.send(input).await;
        if half {
            client.socket.shutdown().await.unwrap();
        }
        match input {
            _ if input.contains("waitRun") => served.service.noted("waiting s").await,
            _ if input.contains("subscribe") => drop(client.line().await),
            _ => {}
        }
        drop(client);
        served.service.noted("closed 1").await;
        served.stop().await;
    }
}

#[tokio::test]
async fn what_a_client_sent_before_it_died_is_carried_out() {
    let served = Served::with(Limits { max_in_flight: 4, ..Limits::default() });
    let mut client = served.connect().await;
    for i in 0..100 {
        client.call(i, "setSessionName", json!(["s", i.to_string()])).await;
    }
    drop(client);
    served.service.noted("99").await;
    served.stop().await;
}

#[tokio::test]
async fn calls_of_the_dead_end_in_the_end() {
    let served = Served::with(Limits { linger: Duration::from_millis(50), ..Limits::default() });
    let mut client = served.connect().await;
    client.call(1, "waitRun", json!(["s"])).await;
    served.service.noted("waiting s").await;
    drop(client);
    served.service.noted("closed 1").await;
    let gone = async {
        while served.connections.count() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.unwrap();
    served.stop().await;
}

#[tokio::test]
async fn stopping_lets_replies_in_flight_go_out() {
    let served = Served::start();
    let mut client = served.connect().await;
    client.call(1, "waitRun", json!(["s"])).await;
    client.call(2, "subscribe", json!({})).await;
    served.service.noted("waiting s").await;
    client.line().await;
    let mut idle = served.connect().await;
    idle.send(format!("{PING}\n")).await;
    idle.line().await;
    let path = served.path.clone();
    let service = served.service.clone();
    let (stopped, rest) = tokio::join!(served.stop(), async {
        service.events.send(r#"{"type":"last"}"#.into()).unwrap();
        service.release.cancel();
        client.rest().await
    });
    let () = stopped;
    let text = String::from_utf8(rest).unwrap();
    assert!(text.contains(r#""id":1,"result":null"#) && text.contains(r#"{"type":"last"}"#), "{text}");
    assert_eq!(idle.rest().await, b"");
    assert!(UnixStream::connect(&path).await.is_err());
}

#[tokio::test]
async fn stopping_does_not_wait_for_ever() {
    let served = Served::with(Limits { drain: Duration::from_millis(50), ..Limits::default() });
    let mut client = served.connect().await;
    client.call(1, "waitRun", json!(["s"])).await;
    served.service.noted("waiting s").await;
    served.stop().await;
    assert_eq!(client.rest().await, b"");
}

#[tokio::test]
async fn connections_are_bounded_and_the_next_is_told_why() {
    let served = Served::with(Limits { max_connections: 1, ..Limits::default() });
    let mut first = served.connect().await;
    first.send(format!("{PING}\n")).await;
    first.line().await;
    let replies = served.exchange_lines(PING).await;
    assert_eq!(replies[0]["error"]["data"], json!({ "kind": "limitExceeded", "limit": "maxConnections", "max": 1 }));
    let text = String::from_utf8(served.exchange("POST / HTTP/1.1\r\n\r\n").await).unwrap();
    assert!(text.starts_with("HTTP/1.1 503 ") && text.contains("maxConnections"), "{text}");
    drop(first);
    served.service.noted("closed 1").await;
    served.stop().await;
}

#[tokio::test]
async fn coming_and_going_leaves_nothing() {
    let served = Served::start();
    let descriptors = || std::fs::read_dir("/proc/self/fd").map(Iterator::count).unwrap_or_default();
    let round = async |i: usize| {
        let mut client = served.connect().await;
        match i % 4 {
            0 => {}
            1 => client.send("{\"half").await,
            2 => {
                client.send(format!("{PING}\n")).await;
                client.line().await;
            }
            _ => {
                client.call(1, "subscribe", json!({})).await;
                client.socket.shutdown().await.unwrap();
                client.line().await;
            }
        }
    };
    for i in 0..400 {
        round(i).await;
    }
    let gone = async {
        while served.connections.count() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.unwrap();
    let closed = served.service.notes().iter().filter(|note| note.starts_with("closed")).count();
    assert_eq!(closed, 400);
    assert_eq!(served.service.events.receiver_count(), 0);
    // Other tests open descriptors too; four hundred leaked ones would show.
    assert!(descriptors() < 350, "{}", descriptors());
    served.stop().await;
}

#[tokio::test]
async fn the_socket_is_ours_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deep/er/s");
    prepare(&path).unwrap();
    let bound = bind(&path).unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o600);
    assert_eq!(mode(path.parent().unwrap()), 0o700);
    assert_eq!(mode(&dir.path().join("deep")), 0o700);
    drop(bound);
    assert!(!path.exists());
}

#[tokio::test]
async fn a_path_that_cannot_be_is_refused_in_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let long = dir.path().join("x".repeat(120));
    assert!(prepare(&long).unwrap_err().to_string().contains(if cfg!(target_os = "linux") { "107" } else { "103" }));
    assert!(matches!(prepare(Path::new("relative/s")), Err(BindError::NoDirectory(_))));
    let open = dir.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
    let error = prepare(&open.join("s")).unwrap_err();
    assert!(matches!(error, BindError::OpenDirectory { mode: 0o777, .. }), "{error}");
    let file = dir.path().join("file");
    std::fs::write(&file, "mine").unwrap();
    assert!(matches!(prepare(&file.join("s")), Err(BindError::MakeDirectory { .. })));
}

#[tokio::test]
async fn only_a_stale_socket_makes_way() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("file"), "mine").unwrap();
    std::fs::create_dir(at("directory")).unwrap();
    std::os::unix::fs::symlink("/nowhere", at("link")).unwrap();
    std::os::unix::fs::symlink(at("stale"), at("link to a socket")).unwrap();
    for (name, what) in [
        ("file", "a file"),
        ("directory", "a directory"),
        ("link", "a symbolic link"),
        ("link to a socket", "a symbolic link"),
    ] {
        let error = bind(&at(name)).unwrap_err();
        assert!(matches!(&error, BindError::NotASocket { what: is, .. } if *is == what), "{error}");
        assert!(at(name).symlink_metadata().is_ok(), "{name} is left as it is");
    }
    let listening = std::os::unix::net::UnixListener::bind(at("stale")).unwrap();
    assert!(matches!(bind(&at("stale")), Err(BindError::InUse(_))));
    drop(listening);
    let bound = bind(&at("stale")).unwrap();
    // What took its place meanwhile is not ours.
    std::fs::remove_file(at("stale")).unwrap();
    std::fs::write(at("stale"), "another's").unwrap();
    drop(bound);
    assert_eq!(std::fs::read_to_string(at("stale")).unwrap(), "another's");
}
