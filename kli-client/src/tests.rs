//! The library against a fake daemon on a real socket.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::api::{self, EventBody};
use crate::fake::{self, Fake, Options, Reply, SESSION};
use crate::{CallError, Client, ConnectError, Connector, ErrorKind, Step};

fn connector(fake: &Fake) -> Connector {
    Connector::local(Some(fake.path.clone())).unwrap().without_starting()
}

async fn client(fake: &Fake) -> Client {
    Client::connect(connector(fake)).await.unwrap()
}

fn delta(text: &str) -> serde_json::Value {
    json!({"type": "textDelta", "messageId": "m1", "index": 0, "delta": text})
}

#[tokio::test]
async fn calls_are_typed_and_errors_are_the_daemons() {
    let fake = Fake::start(|method, params| match method {
        "getSession" if params["sessionId"] == "x" => Some(Reply::Error(
            json!({"code": -32020, "message": "there is no session x", "data": {"kind": "sessionNotFound"}}),
        )),
        "continueSession" => Some(Reply::Result(serde_json::Value::Null)),
        "listModels" => Some(Reply::Result(json!({"models": 3}))),
        _ => None,
    });
    let client = client(&fake).await;
    assert_eq!(client.hello().await.version, "0.1.0");
    let made = client.call::<api::CreateSession>(api::CreateSessionParams::default()).await.unwrap();
    assert_eq!(made.session_id, SESSION);
    let error = client.call::<api::GetSession>(api::SessionParams { session_id: "x".into() }).await.unwrap_err();
    assert_eq!(error.api().and_then(|e| e.kind()), Some(ErrorKind::SessionNotFound));
    assert_eq!(error.to_string(), "there is no session x");
    let none = client.call::<api::ContinueSession>(api::ContinueSessionParams::default()).await.unwrap();
    assert_eq!(none, None);
    let error = client.call::<api::ListModels>(api::NoParams {}).await.unwrap_err();
    assert!(matches!(error, CallError::BadReply { .. }), "{error}");
}

#[tokio::test]
async fn a_call_that_waits_holds_up_no_other() {
    let fake = Fake::start(|method, _| (method == "prompt").then_some(Reply::Never));
    let client = client(&fake).await;
    let waiting = client.call::<api::Prompt>(api::PromptParams::default());
    tokio::select! {
        _ = waiting => panic!("it was answered"),
        ping = async { fake.until_called("prompt", 1).await; client.call::<api::Ping>(api::NoParams {}).await } => {
            assert_eq!(ping.unwrap().protocol_version, 1);
        }
    }
}

#[tokio::test]
async fn a_daemon_that_dies_in_mid_call_is_an_error_at_once_and_the_next_call_connects_anew() {
    let fake = Fake::start(|method, _| (method == "prompt").then_some(Reply::Hangup));
    let client = client(&fake).await;
    let started = Instant::now();
    let error = client.call::<api::Prompt>(api::PromptParams::default()).await.unwrap_err();
    assert!(matches!(&error, CallError::Lost { method, .. } if method == "prompt"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(2));
    client.closed().await;
    client.call::<api::Ping>(api::NoParams {}).await.unwrap();
    assert_eq!(fake.calls("initialize").len(), 2);
    assert_eq!(fake.calls("prompt").len(), 1, "nothing is sent twice");
}

#[tokio::test]
async fn what_may_be_sent_again_is_sent_again() {
    // Hangs up so many times before it answers.
    for (times, ends_well) in [(1, true), (3, true), (usize::MAX, false)] {
        let left = std::sync::atomic::AtomicUsize::new(times);
        let fake = Fake::start(move |method, _| {
            let one_less = |left: usize| left.checked_sub(1);
            let hangs_up = method == "ping" && left.fetch_update(Relaxed, Relaxed, one_less).is_ok();
            hangs_up.then_some(Reply::Hangup)
        });
        let client = client(&fake).await;
        let answer = client.call_again("ping", &api::NoParams {}).await;
        assert_eq!(answer.is_ok(), ends_well, "{answer:?}");
        if ends_well {
            assert_eq!(fake.calls("ping").len(), times + 1);
        }
    }
    let mut fake = Fake::start(|method, _| (method == "prompt").then_some(Reply::Never));
    let client = client(&fake).await;
    let started = Instant::now();
    let params = api::PromptParams::default();
    let (answer, ()) = tokio::join!(client.call_again("prompt", &params), async {
        fake.until_called("prompt", 1).await;
        fake.kill().await;
    });
    assert!(matches!(answer, Err(CallError::Lost { .. })), "{answer:?}");
    assert!(started.elapsed() < Duration::from_secs(2), "a daemon that died is not waited for");
}

#[tokio::test]
async fn a_dead_daemon_is_told_from_a_strange_file() {
    let mut fake = Fake::start(|_, _| None);
    let connector = connector(&fake);
    fake.kill().await;
    let fails = |c: Connector| async { Client::connect(c).await.err().map(|e| e.to_string()).unwrap_or_default() };
    assert!(fails(connector.clone()).await.contains("no daemon runs"));
    let file = fake.dir().join("file");
    std::fs::write(&file, "precious").unwrap();
    let at = |path: &PathBuf| Connector::local(Some(path.clone()));
    for start in [false, true] {
        let connector = if start { at(&file).unwrap() } else { at(&file).unwrap().without_starting() };
        assert!(fails(connector).await.contains("is not a socket"));
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    let long = PathBuf::from(format!("/tmp/{}", "x".repeat(120)));
    assert!(at(&long).unwrap_err().to_string().contains("107") || cfg!(not(target_os = "linux")));
    for host in ["", "-oProxyCommand=x", "a b"] {
        assert!(matches!(Connector::remote(host, "kli"), Err(ConnectError::BadHost { .. })), "{host:?}");
    }
}

#[tokio::test]
async fn another_protocol_is_refused_with_a_sentence() {
    let fake = Fake::with(Options { protocol: 7, ..Default::default() }, |_, _| None);
    let error = Client::connect(connector(&fake)).await.err().unwrap();
    assert!(error.to_string().contains("speaks protocol 7, this program speaks 1"), "{error}");
    Client::connect(connector(&fake).any_protocol()).await.unwrap();
}

#[tokio::test]
async fn a_daemon_without_initialize_is_asked_by_ping() {
    let unknown = || Reply::Error(json!({"code": -32601, "message": "there is no method `initialize`"}));
    let fake = Fake::start(move |method, _| (method == "initialize").then(unknown));
    assert_eq!(client(&fake).await.hello().await.protocol_version, 1);
}

#[tokio::test]
async fn events_come_once_and_in_order_however_often_the_connection_drops() {
    const N: usize = 400;
    let fake = Fake::with(Options { cut_after: Some(7), ..Default::default() }, |_, _| None);
    let mut events = client(&fake).await.events(SESSION);
    events.start().await.unwrap();
    for i in 0..N {
        fake.publish(delta(&i.to_string()));
    }
    assert!(matches!(events.next().await.unwrap().event.body, EventBody::Snapshot { .. }));
    for i in 0..N {
        let received = events.next().await.unwrap();
        assert_eq!(received.event.seq, Some(i as u64 + 1));
        assert!(matches!(&received.event.body, EventBody::TextDelta { delta, .. } if *delta == i.to_string()));
    }
    assert!(fake.calls("subscribe").len() > N / 8);
}

#[tokio::test]
async fn cancelling_next_loses_nothing() {
    let fake = Fake::start(|_, _| None);
    let mut events = client(&fake).await.events(SESSION);
    events.start().await.unwrap();
    let mut seen = Vec::new();
    let mut published = 0;
    while seen.len() < 100 {
        tokio::select! {
            biased;
            received = events.next() => seen.extend(received.unwrap().event.seq),
            () = tokio::task::yield_now() => if published < 100 {
                published += 1;
                fake.publish(delta("x"));
                if published % 10 == 0 { fake.cut(); }
            },
        }
    }
    let last = seen.iter().skip(1).copied().collect::<Vec<_>>();
    assert_eq!(last, (1..100).collect::<Vec<u64>>());
}

#[tokio::test]
async fn losing_the_connection_can_be_told() {
    let fake = Fake::start(|_, _| None);
    let mut events = client(&fake).await.events(SESSION);
    assert!(matches!(events.step().await.unwrap(), Step::Event(_)));
    fake.cut();
    assert!(matches!(events.step().await.unwrap(), Step::Lost(_)));
    assert!(matches!(events.step().await.unwrap(), Step::Back));
    fake.publish(delta("x"));
    assert!(matches!(events.step().await.unwrap(), Step::Event(_)));
}

#[tokio::test]
async fn events_not_known_here_are_events_all_the_same() {
    let fake = Fake::start(|_, _| None);
    let mut events = client(&fake).await.events(SESSION);
    events.start().await.unwrap();
    fake.publish(json!({"type": "fromTheFuture", "a": {"b": 1}}));
    fake.publish(json!({"type": "textDelta", "messageId": 5}));
    fake.publish(delta("x"));
    assert!(matches!(events.next().await.unwrap().event.body, EventBody::Snapshot { .. }));
    for seq in 1..=2 {
        let received = events.next().await.unwrap();
        assert_eq!((received.event.seq, &received.event.body), (Some(seq), &EventBody::Unknown));
    }
    assert!(events.next().await.unwrap().raw.get().contains("textDelta"));
}

#[tokio::test]
async fn a_session_that_is_not_there_ends_its_stream() {
    let fake = Fake::start(|method, _| {
        let error = json!({"code": -32020, "message": "there is no session", "data": {"kind": "sessionNotFound"}});
        (method == "subscribe").then_some(Reply::Error(error))
    });
    let error = client(&fake).await.events("x").next().await.unwrap_err();
    assert!(error.api().is_some(), "{error}");
}

#[tokio::test]
async fn raw_subscriptions_end_with_their_connection() {
    let fake = Fake::start(|_, _| None);
    let client = client(&fake).await;
    let mut subscription = client.subscribe("subscribe", &json!({"sessionId": SESSION})).await.unwrap();
    assert!(subscription.next().await.unwrap().unwrap().get().contains("snapshot"));
    fake.cut();
    assert!(subscription.next().await.unwrap().is_none());
}

/// A program that is started as the daemon.
fn script(dir: &std::path::Path, body: &str) -> PathBuf {
    let path = dir.join("kli-daemon");
    std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Not a test by itself: what the scripts below start. It serves until the test that wanted it is done.
#[test]
#[ignore = "started by other tests as their daemon"]
fn daemon_process() {
    let Ok(path) = std::env::var("KLI_TEST_DAEMON_SOCKET") else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let own = Fake::start(|_, _| None);
        std::fs::hard_link(&own.path, &path).unwrap();
        // Ends by itself should nobody end it.
        tokio::time::sleep(Duration::from_secs(20)).await;
    });
}

#[tokio::test]
async fn twenty_clients_at_once_start_one_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("new/kli.sock");
    let count = dir.path().join("started");
    let program = script(
        dir.path(),
        &format!(
            "echo $$ >> {}\nTMPDIR={} KLI_TEST_DAEMON_SOCKET=$2 exec {} --exact tests::daemon_process --ignored",
            count.display(),
            dir.path().display(),
            std::env::current_exe().unwrap().display()
        ),
    );
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let connector = Connector::local(Some(socket.clone())).unwrap().starting(program.clone());
        clients.spawn(async move { Client::connect(connector).await.map(drop) });
    }
    while let Some(connected) = clients.join_next().await {
        connected.unwrap().unwrap();
    }
    let started = std::fs::read_to_string(&count).unwrap();
    let pids: Vec<i32> = started.lines().map(|l| l.parse().unwrap()).collect();
    assert_eq!(pids.len(), 1);
    let pid = rustix::process::Pid::from_raw(pids[0]).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let mode = std::fs::metadata(socket.parent().unwrap()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[tokio::test]
async fn a_daemon_that_cannot_start_is_told_at_once_and_in_its_own_words() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("kli.sock");
    let program = script(dir.path(), "echo 'config.toml: unknown key `modle`' >&2; exit 3");
    let started = Instant::now();
    let connector = Connector::local(Some(socket.clone())).unwrap().starting(program);
    let error = Client::connect(connector).await.err().unwrap().to_string();
    assert!(error.contains("unknown key `modle`") && error.contains('3'), "{error}");
    assert!(started.elapsed() < Duration::from_secs(5));
    let connector = Connector::local(Some(socket)).unwrap().starting(dir.path().join("nothing"));
    let error = Client::connect(connector).await.err().unwrap();
    assert!(matches!(error, ConnectError::Spawn { .. }), "{error}");
}

#[test]
fn fakes_are_sound() {
    let state: api::SessionState = serde_json::from_value(fake::session_state()).unwrap();
    assert_eq!(state.info.session_id, SESSION);
    let result: api::PromptResult = serde_json::from_value(fake::result("done", "x")).unwrap();
    assert!(result.outcome.is_some());
}
