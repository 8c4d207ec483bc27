//! Sessions that nobody uses give their memory back, and nobody can tell but by the memory.

use std::time::Duration;

use kli_tests::{Daemon, Event, Gate, ModelServer, Reply, Session, Setup, fixtures, poll, text};
use serde_json::{Value, json};

fn open(daemon: &Daemon) -> u64 {
    daemon.client().call("getStatus", json!({}))["sessions"]["open"].as_u64().unwrap()
}

#[track_caller]
fn until_open(daemon: &Daemon, count: u64) {
    assert!(poll(Duration::from_secs(20), || open(daemon) == count), "{} are open, not {count}", open(daemon));
}

fn quick() -> Daemon {
    Setup::new().persisted().config("unloadAfterMs = 20\n").start()
}

#[test]
fn who_stays_and_who_goes() {
    let daemon = quick();
    let work_dir = fixtures::work_dir();
    let mut gone = Session::create(&daemon, work_dir.path());
    gone.ask("hello");
    let mut followed = Session::create(&daemon, work_dir.path());
    followed.ask("hello");
    followed.subscribe();
    let never_written = Session::create(&daemon, work_dir.path());
    let mut in_memory = Session::create_with(&daemon, json!({ "workDir": work_dir.path(), "persist": false }));
    in_memory.ask("hello");
    until_open(&daemon, 3);
    let listed = daemon.client().call("listSessions", json!({ "workDir": work_dir.path() }));
    assert_eq!(listed["sessions"].as_array().unwrap().len(), 4, "all are listed: {listed}");
    for session in [&mut gone, &mut followed, &mut in_memory] {
        assert_eq!(session.prompts().len(), 1);
    }
    assert_eq!(daemon.client().call("getSession", json!({ "sessionId": never_written.id }))["entryCount"], 0);
}

#[test]
fn what_the_file_does_not_tell_is_kept() {
    let daemon = quick();
    let work_dir = fixtures::work_dir();
    let mut session = Session::create(&daemon, work_dir.path());
    session.ask("hello");
    session.call("openSession", json!({ "env": { "KEPT": "yes" } }));
    let (snapshot, seen) = {
        let mut follower = Session::attach(&daemon, &session.id);
        let snapshot = follower.subscribe().seq().unwrap();
        follower.call("prompt", json!({ "text": "with a key", "idempotencyKey": "k1", "wait": true }));
        follower.client.until(|e| e.kind() == "sessionInfoChanged" && e.body["session"]["status"] == "idle");
        (snapshot, follower.client.events().split_off(1))
    };
    until_open(&daemon, 0);
    let mut again = Session::attach(&daemon, &session.id);
    again.call("subscribe", json!({ "after": snapshot }));
    let last = seen.last().unwrap().seq();
    again.client.until(|e| e.seq() == last);
    let bodies = |events: &[Event]| events.iter().map(|e| e.body.clone()).collect::<Vec<Value>>();
    assert_eq!(bodies(&again.client.events()), bodies(&seen), "deltas and all, with their numbers");
    let result = again.call("prompt", json!({ "text": "with a key", "idempotencyKey": "k1", "wait": true }));
    assert_eq!(result["stopReason"], "done");
    assert_eq!(again.prompts().len(), 2, "it ran once");
    again.call("setMode", json!({ "mode": "auto" }));
    assert_eq!(text(&again.call("bash", json!({ "command": "echo $KEPT" }))["output"]).trim(), "yes");
}

/// Calls that come while a session is let go of: each is answered, and no session ever has two owners.
#[test]
fn calls_race_with_unloading() {
    let daemon = Setup::new().persisted().config("unloadAfterMs = 1\n").start();
    let work_dir = fixtures::work_dir();
    let mut session = Session::create(&daemon, work_dir.path());
    session.ask("hello");
    std::thread::scope(|scope| {
        for caller in 0..3 {
            let (mut client, id) = (daemon.client(), &session.id);
            scope.spawn(move || {
                for round in 0..100 {
                    let name = format!("{caller}-{round}");
                    let named = client.call("setSessionName", json!({ "sessionId": id, "name": name }));
                    assert_eq!(named["sessionId"], json!(id));
                }
            });
        }
    });
    let path = session.path();
    let records = fixtures::records(&path);
    let named = records.iter().filter(|r| r["type"] == "session_info").count();
    assert_eq!(named, 300);
    let ids: std::collections::BTreeSet<String> = records[1..].iter().map(|r| text(&r["id"])).collect();
    assert_eq!(ids.len(), records.len() - 1);
}

#[test]
fn a_run_keeps_its_session() {
    let gate = Gate::new();
    let server = ModelServer::with([Reply::held("half", &gate, " whole")]);
    let config = format!("unloadAfterMs = 10\n{}", server.config(200_000));
    let daemon = Setup::new().persisted().config(config).start();
    let work_dir = fixtures::work_dir();
    let mut session = Session::create(&daemon, work_dir.path());
    let id = session.call("prompt", json!({ "text": "go" }))["runId"].clone();
    gate.reached();
    // Long enough for several rounds: the other one goes meanwhile.
    let mut other = Session::create(&daemon, work_dir.path());
    other.call("setSessionName", json!({ "name": "other" }));
    until_open(&daemon, 1);
    assert_eq!(session.state()["status"], "running");
    gate.open();
    until_open(&daemon, 0);
    let run = session.call("waitRun", json!({ "runId": id }));
    assert_eq!((&run["stopReason"], &run["text"]), (&json!("done"), &json!("half whole")));
}
