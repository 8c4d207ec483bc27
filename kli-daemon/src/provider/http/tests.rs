//! Faults of a server, from a loopback one that says byte for byte what a case gives it.

mod independent;

use std::collections::BTreeMap;

use kli_protocol::api::ModelInfo;
use kli_protocol::record::{AssistantMessage, Message, UserMessage};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::*;
use crate::clock::SystemClock;

/// What the server does once it has read a request.
enum Act {
    Send(Vec<u8>),
    /// Bytes one by one.
    Trickle(Vec<u8>),
    /// Tells that the client went away.
    AwaitClose(oneshot::Sender<()>),
    /// Says the same for ever.
    Repeat(&'static [u8]),
    Hang,
}

/// Serves one connection; gives its address and what was asked.
async fn server(acts: Vec<Act>) -> (String, tokio::task::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let task = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let request = read_request(&mut socket).await;
        for act in acts {
            match act {
                Act::Send(bytes) => socket.write_all(&bytes).await.unwrap(),
                Act::Trickle(bytes) => {
                    for byte in bytes {
                        socket.write_all(&[byte]).await.unwrap();
                        socket.flush().await.unwrap();
                    }
                }
                Act::AwaitClose(gone) => {
                    let _ = socket.read(&mut [0; 16]).await;
                    gone.send(()).unwrap();
                }
                Act::Repeat(bytes) => {
                    while socket.write_all(bytes).await.is_ok() {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                }
                Act::Hang => std::future::pending().await,
            }
        }
        request
    });
    (url, task)
}

async fn read_request(socket: &mut tokio::net::TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let n = socket.read(&mut buffer).await.unwrap();
        bytes.extend_from_slice(&buffer[..n]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let lower = head.to_ascii_lowercase();
            let length = lower.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
            if body.len() >= length.parse::<usize>().unwrap() || n == 0 {
                return text;
            }
        }
    }
}

fn answer(status: &str, kind: &str, headers: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\nconnection: close\r\n{headers}\r\n{body}").into_bytes()
}

fn stream(body: &str) -> Act {
    Act::Send(answer("200 OK", "text/event-stream", "", body))
}

const HELLO: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"Hel\"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"lo\"}}]}\n\n";
const STOP: &str = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";

fn provider(base_url: String, key: KeySource, idle: Duration) -> HttpProvider {
    let timeouts = Timeouts { connect: Duration::from_secs(5), idle };
    let headers = BTreeMap::from([("x-team".to_owned(), "a".to_owned())]);
    let endpoint = Endpoint { api: Api::OpenaiChat, base_url, key, headers, timeouts };
    HttpProvider::new(endpoint, Clients::new(), Arc::new(SystemClock))
}

fn hello() -> Request {
    let user = UserMessage { content: "hi".into(), ..UserMessage::default() };
    let model = ModelInfo { provider: "fake".into(), model_id: "m1".into(), ..ModelInfo::default() };
    Request {
        model: Arc::new(model),
        system_prompt: "".into(),
        tools: Arc::new([]),
        messages: vec![Arc::new(Message::User(user))],
        options: BTreeMap::new(),
        max_tokens: None,
        cache_key: String::new(),
    }
}

/// Runs one request; the events before the end, the message, and the failure if it failed.
async fn exchange(provider: &HttpProvider) -> (Vec<StreamEvent>, AssistantMessage, Option<Failure>) {
    let mut events: Vec<StreamEvent> = provider.stream(hello(), CancellationToken::new()).collect().await;
    match events.pop() {
        Some(StreamEvent::Done(message)) => (events, *message, None),
        Some(StreamEvent::Failed { failure, partial }) => (events, *partial, Some(failure)),
        other => panic!("{other:?}"),
    }
}

async fn ask(acts: Vec<Act>, idle: Duration) -> (AssistantMessage, Option<Failure>) {
    let (url, task) = server(acts).await;
    let (_, message, failure) = exchange(&provider(url, KeySource::None, idle)).await;
    task.abort();
    (message, failure)
}

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(150);

#[tokio::test]
async fn replies() {
    async fn check(acts: Vec<Act>, text: &str) {
        let (message, failure) = ask(acts, LONG).await;
        assert_eq!((failure, message.content.text().as_str()), (None, text));
    }
    let whole = format!("{HELLO}{STOP}data: [DONE]\n\n");
    check(vec![stream(&whole)], "Hello").await;
    check(vec![stream(&whole), Act::Hang], "Hello").await;
    check(vec![stream(&format!("{HELLO}{STOP}"))], "Hello").await;
    check(vec![Act::Trickle(answer("200 OK", "text/event-stream", "", &whole.replace('\n', "\r\n")))], "Hello").await;
    check(
        vec![Act::Trickle(answer(
            "200 OK",
            "text/plain",
            "",
            &format!("\u{feff}: hi\n\n{}", whole.replace("Hel", "H\u{e9}\u{1f600}")),
        ))],
        "H\u{e9}\u{1f600}lo",
    )
    .await;
    let json = r#" {"choices":[{"message":{"content":"plain"},"finish_reason":"stop"}]}"#;
    for kind in ["application/json", "text/event-stream"] {
        check(vec![Act::Trickle(answer("200 OK", kind, "", json))], "plain").await;
    }
}

#[tokio::test]
async fn faults() {
    use RunErrorKind as Kind;
    async fn check(acts: Vec<Act>, kind: Kind, retryable: bool, text: &str) -> Failure {
        let (message, failure) = ask(acts, LONG).await;
        let failure = failure.expect("a failure");
        assert_eq!((failure.kind, failure.retryable), (kind, retryable), "{}", failure.message);
        assert_eq!(message.content.text(), text);
        assert_eq!(message.stop_reason, StopReason::Error);
        failure
    }
    check(vec![stream(HELLO)], Kind::Network, true, "Hello").await;
    check(vec![stream("")], Kind::Network, true, "").await;
    check(vec![], Kind::Network, true, "").await;
    let chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n40\r\ndata: {\"choices\"".to_vec();
    check(vec![Act::Send(chunked)], Kind::Network, true, "").await;
    check(
        vec![stream(&format!(
            "{HELLO}data: {{\"error\":{{\"message\":\"Overloaded\",\"type\":\"overloaded_error\"}}}}\n\n"
        ))],
        Kind::Overloaded,
        true,
        "Hello",
    )
    .await;
    check(vec![stream("data: not json\n\n")], Kind::Network, true, "").await;
    let page = "<!doctype html><html><title>Welcome</title></html>";
    let failure = check(vec![Act::Send(answer("200 OK", "text/html", "", page))], Kind::BadRequest, false, "").await;
    assert!(failure.message.contains("Welcome") && failure.message.contains("baseUrl"), "{}", failure.message);
    check(
        vec![Act::Send(answer(
            "200 OK",
            "application/json",
            "",
            "{\"error\":{\"message\":\"no\",\"type\":\"invalid_request_error\"}}",
        ))],
        Kind::BadRequest,
        false,
        "",
    )
    .await;
    let odd = answer("200 OK", "application/json", "", "{\"status\":\"starting up\"}");
    let failure = check(vec![Act::Send(odd)], Kind::Network, true, "").await;
    assert!(failure.message.contains("starting up"), "{}", failure.message);
    check(
        vec![Act::Send(answer("302 Found", "text/html", "location: http://elsewhere.test/\r\n", ""))],
        Kind::BadRequest,
        false,
        "",
    )
    .await;
    check(vec![Act::Send(answer("500 Oops", "text/html", "", page))], Kind::Overloaded, true, "").await;
    check(vec![Act::Send(answer("413 Too Large", "text/plain", "", ""))], Kind::ContextOverflow, false, "").await;
    for (header, wait) in [
        ("retry-after: 2\r\n", Some(2_000)),
        ("retry-after: abc\r\n", None),
        ("retry-after-ms: 1500\r\nretry-after: 9\r\n", Some(1_500)),
        ("", None),
    ] {
        let failure =
            check(vec![Act::Send(answer("429 Slow", "application/json", header, "{}"))], Kind::RateLimited, true, "")
                .await;
        assert_eq!(failure.retry_after_ms, wait, "{header}");
    }
}

#[tokio::test]
async fn nobody_there() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let (_, _, failure) = exchange(&provider(format!("http://{address}/v1"), KeySource::None, LONG)).await;
    let failure = failure.unwrap();
    assert_eq!((failure.kind, failure.retryable), (RunErrorKind::Network, true));
    assert!(failure.message.contains(&address.to_string()), "{}", failure.message);
}

#[tokio::test]
async fn tls_with_a_server_that_speaks_none() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/v1", listener.local_addr().unwrap());
    let task = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let _ = socket.read(&mut [0; 4096]).await;
        socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
    });
    let (_, _, failure) = exchange(&provider(url, KeySource::None, LONG)).await;
    let failure = failure.unwrap();
    assert_eq!((failure.kind, failure.retryable), (RunErrorKind::Network, false), "{}", failure.message);
    task.abort();
}

#[tokio::test]
async fn a_handshake_that_never_ends() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut provider = provider(format!("https://{}/v1", listener.local_addr().unwrap()), KeySource::None, LONG);
    Arc::get_mut(&mut provider.endpoint).unwrap().timeouts.connect = SHORT;
    let (_, _, failure) = exchange(&provider).await;
    let failure = failure.unwrap();
    let no_authorities = failure.message.contains("certificate authorities");
    assert!(no_authorities || (failure.kind, failure.retryable) == (RunErrorKind::Timeout, true), "{failure:?}");
}

#[tokio::test]
async fn silence_and_pings_end_in_a_time_out() {
    for acts in [
        vec![Act::Hang],
        vec![stream(""), Act::Hang],
        vec![stream(HELLO), Act::Hang],
        vec![stream(HELLO), Act::Repeat(b": ping\n\n")],
    ] {
        let (_, failure) = ask(acts, SHORT).await;
        let failure = failure.unwrap();
        assert_eq!((failure.kind, failure.retryable), (RunErrorKind::Timeout, true), "{}", failure.message);
    }
    let (message, failure) = ask(vec![stream(&format!("{HELLO}{STOP}")), Act::Repeat(b": ping\n\n")], SHORT).await;
    assert_eq!((failure, message.content.text().as_str()), (None, "Hello"), "it had stopped");
}

#[tokio::test]
async fn cancelling_ends_it_and_closes_the_line() {
    let (gone, closed) = oneshot::channel();
    let (url, task) = server(vec![stream(HELLO), Act::AwaitClose(gone)]).await;
    let cancel = CancellationToken::new();
    let mut stream = provider(url, KeySource::None, LONG).stream(hello(), cancel.clone());
    let mut last = None;
    while let Some(event) = stream.next().await {
        if matches!(event, StreamEvent::Text { .. }) {
            cancel.cancel();
        }
        last = Some(event);
    }
    let Some(StreamEvent::Failed { partial, .. }) = last else { panic!("{last:?}") };
    assert_eq!(partial.stop_reason, StopReason::Aborted);
    assert!(partial.content.text().starts_with("Hel"));
    closed.await.unwrap();
    task.await.unwrap();
}

#[tokio::test]
async fn the_key_goes_into_its_header_and_nowhere_else() {
    let body = "{\"error\":{\"message\":\"Incorrect API key provided: sk-secret\"}}";
    let (url, task) = server(vec![Act::Send(answer("401 No", "application/json", "", body))]).await;
    let key = KeySource::env("K", Some("sk-secret".into()));
    let (events, message, failure) = exchange(&provider(url, key, LONG)).await;
    let failure = failure.unwrap();
    assert_eq!((failure.kind, failure.retryable), (RunErrorKind::Auth, false));
    assert!(!format!("{events:?}{message:?}{failure:?}").contains("sk-secret"), "{failure:?}");
    let asked = task.await.unwrap();
    assert!(asked.starts_with("POST /v1/chat/completions HTTP/1.1\r\n"), "{asked}");
    assert!(asked.contains("authorization: Bearer sk-secret\r\n") && asked.contains("x-team: a\r\n"), "{asked}");
}

#[tokio::test]
async fn a_reply_has_an_end() {
    let event = format!("data: {}", "x".repeat(1 << 20));
    let mut acts = vec![stream("")];
    acts.extend((0..17).map(|_| Act::Send(event.clone().into_bytes())));
    let (_, failure) = ask(acts, LONG).await;
    let failure = failure.unwrap();
    assert!(!failure.retryable && failure.message.contains("too much"), "{}", failure.message);
}

#[test]
fn this_machine_is_reached_without_a_proxy() {
    for (url, expected) in [
        ("http://127.0.0.1:8080/v1", true),
        ("http://localhost/v1", true),
        ("http://[::1]:1/v1", true),
        ("http://127.0.0.2/", true),
        ("https://api.openai.com/v1", false),
        ("http://localhost.example.com", false),
    ] {
        assert_eq!(client::is_loopback(url), expected, "{url}");
    }
}
