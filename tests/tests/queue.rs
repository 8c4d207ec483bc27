//! Several wishes at one session: the queue, aborts, the same call twice, two clients at once.

use std::time::Duration;

use kli_tests::model::{End, Step};
use kli_tests::{Gate, Place, Reply, Session, fixtures, text_of, timed};
use serde_json::{Value, json};

fn bash(command: &str) -> Value {
    json!({ "command": command })
}

#[test]
fn queued_while_a_run_goes_on() {
    let gate = Gate::new();
    let p = Place::with([
        Reply::steps([
            Step::Text("working".into()),
            Step::Hold(gate.clone()),
            Step::Call("c1".into(), "bash".into(), bash("echo tool").to_string()),
            Step::End(End::Calls),
        ]),
        Reply::text("steered"),
        Reply::text("first follow-up"),
        Reply::text("second follow-up"),
    ]);
    let mut session = p.session();
    let run = session.call("prompt", json!({ "text": "start" }));
    gate.reached();
    assert_eq!(session.error("prompt", json!({ "text": "now" })).kind(), "sessionBusy");
    let steer = session.call("steer", json!({ "text": "steer one" }));
    assert_eq!((&steer["queued"], &steer["runId"], steer.get("entryId")), (&json!(true), &run["runId"], None));
    session.call("prompt", json!({ "text": "follow one", "behavior": "followUp" }));
    session.call("steer", json!({ "text": "steer two" }));
    session.call("followUp", json!({ "text": "follow two" }));
    session.call("followUp", json!({ "text": "taken back" }));
    let queue = session.state()["queue"].take();
    assert_eq!(queue["steer"].as_array().unwrap().len(), 2);
    assert_eq!(queue["followUp"][2]["text"], "taken back");
    let taken = session.call("clearQueue", json!({}));
    assert_eq!(taken["followUp"].as_array().unwrap().len(), 3);
    for (method, text) in [("steer", "steer one"), ("steer", "steer two"), ("followUp", "follow one")] {
        session.call(method, json!({ "text": text }));
    }
    session.call("followUp", json!({ "text": "follow two" }));
    gate.open();
    session.wait();

    let said: Vec<String> = session.prompts().into_iter().rev().map(|(_, text)| text).collect();
    assert_eq!(said, ["start", "steer one", "steer two", "follow one", "follow two"]);
    let requests = p.server.requests();
    assert_eq!(requests.len(), 4);
    assert!(requests[1].says("steer one") && requests[1].says("steer two") && !requests[1].says("follow one"));
    assert!(requests[2].says("follow one") && !requests[2].says("follow two"));
    assert_eq!(session.state()["queue"], json!({ "steer": [], "followUp": [] }));
    // When none goes on, each of the three starts one.
    let alone = session.call("followUp", json!({ "text": "alone", "wait": true }));
    assert_eq!((&alone["queued"], &alone["stopReason"]), (&json!(false), &json!("done")));
    p.server.assert_valid();
}

/// Where a run would end, what waits is said, also after a reply that its limit cut off; after an error it stays for
/// the next run.
#[test]
fn queued_where_a_run_would_end() {
    let gates = [Gate::new(), Gate::new()];
    let mut held = gates.iter().map(|gate| [Step::Text("half".into()), Step::Hold(gate.clone())]);
    let cut_off = held.next().unwrap().into_iter().chain([Step::End(End::Length)]);
    let p = Place::with([Reply::steps(cut_off), Reply::text("steered"), Reply::text("followed")]);
    let mut session = p.session();
    session.call("prompt", json!({ "text": "start" }));
    gates[0].reached();
    session.call("steer", json!({ "text": "shorter" }));
    session.call("followUp", json!({ "text": "and then" }));
    gates[0].open();
    assert_eq!(session.wait()["stopReason"], "done");
    let said: Vec<String> = session.prompts().into_iter().rev().map(|(_, text)| text).collect();
    assert_eq!(said, ["start", "shorter", "and then"]);

    let failed = held.next().unwrap().into_iter().chain([Step::Reset]);
    let refused = |_| Reply::status(401, "authentication_error", "no");
    p.server.script([Reply::steps(failed)].into_iter().chain((0..4).map(refused)));
    session.call("prompt", json!({ "text": "again" }));
    gates[1].reached();
    session.call("followUp", json!({ "text": "later" }));
    gates[1].open();
    assert_eq!(session.wait()["stopReason"], "error");
    assert_eq!(session.state()["queue"]["followUp"][0]["text"], "later");
    p.server.assert_valid();
}

#[test]
fn aborting_a_stream() {
    let gate = Gate::new();
    let p = Place::with([Reply::held("first half", &gate, "second half"), Reply::text("after")]);
    let mut session = p.session();
    session.subscribe();
    let mut waiting = Session::attach(&p.daemon, &session.id);
    let call = waiting.send("prompt", json!({ "text": "slowly", "wait": true }));
    session.client.until(|e| e.kind() == "textDelta" && e.body["delta"].to_string().contains("first half"));
    let (result, took) = timed(|| session.call("abort", json!({})));
    assert_eq!(result["aborted"], true);
    assert!(took < Duration::from_millis(1200), "{took:?}");
    let ended = waiting.client.reply(call).expect("the waiting call is answered");
    assert_eq!(ended["stopReason"], "aborted");
    gate.open();
    assert_eq!(session.call("abort", json!({}))["aborted"], false);
    assert_eq!(session.state()["status"], "idle");
    assert_eq!(session.wait()["stopReason"], "aborted");
    let messages = session.messages();
    assert_eq!(messages.last().unwrap()["stopReason"], "aborted");
    assert_eq!(text_of(messages.last().unwrap()), "first half", "what had come is kept");
    session.ask("next");
    assert!(!p.server.last().says("second half"));
    p.server.assert_valid();
}

#[test]
fn aborting_a_tool() {
    let p = Place::with([
        Reply::calls(&[
            ("a", "bash", bash("echo finished")),
            ("b", "bash", bash("echo started > started; sleep 987 & setsid sleep 988 & sleep 989")),
        ]),
        Reply::text("after"),
    ]);
    let mut session = p.session();
    session.subscribe();
    session.call("prompt", json!({ "text": "go" }));
    let started = p.work_dir.path().join("started");
    assert!(kli_tests::poll(kli_tests::PATIENCE, || started.exists()), "the tool did not start");
    session.client.until(|e| e.kind() == "toolEnd" && e.body["toolCallId"] == "a");
    session.call("followUp", json!({ "text": "queued before the abort" }));
    let (_, took) = timed(|| session.call("abort", json!({})));
    assert!(took < Duration::from_millis(1200), "{took:?}");
    p.daemon.until_no_stragglers(Duration::from_secs(3));
    assert_eq!(session.wait()["stopReason"], "aborted");
    let (finished, is_error) = session.result_of("a");
    assert_eq!((finished.trim(), is_error), ("finished", false), "a finished sibling keeps its result");
    assert!(session.result_of("b").1, "the open call is answered by a stored result");
    assert_eq!(session.state()["queue"]["followUp"][0]["text"], "queued before the abort", "the queue stays");
    session.ask("next");
    let said: Vec<String> = session.prompts().into_iter().map(|(_, text)| text).collect();
    assert!(said.contains(&"queued before the abort".to_owned()), "and enters with the next run: {said:?}");
    assert_eq!(session.client.events().iter().filter(|e| e.kind() == "runEnd").count(), 2);
    p.server.assert_valid();
}

/// An impatient client: abort and the next prompt in one write.
#[test]
fn abort_and_prompt_together() {
    let gate = Gate::new();
    let p = Place::with([Reply::held("old", &gate, "old"), Reply::text("the new answer")]);
    let mut session = p.session();
    let first = session.call("prompt", json!({ "text": "one" }));
    gate.reached();
    let calls = [
        ("abort", json!({ "sessionId": session.id })),
        ("prompt", json!({ "sessionId": session.id, "text": "two", "wait": true })),
    ];
    let ids = session.client.send_together(&calls);
    assert_eq!(session.client.reply(ids[0]).unwrap()["aborted"], true);
    let second = session.client.reply(ids[1]).expect("the new prompt has its own run");
    gate.open();
    assert_eq!((&second["stopReason"], &second["text"]), (&json!("done"), &json!("the new answer")));
    let old = session.call("waitRun", json!({ "runId": first["runId"] }));
    assert_eq!(old["stopReason"], "aborted");
    p.server.assert_valid();
}

/// Two clients prompt in the same moment: each text runs once or is refused, and the session ends idle.
#[test]
fn two_prompts_at_once() {
    let p = Place::with([]);
    let mut one = p.session();
    let mut two = Session::attach(&p.daemon, &one.id);
    let mut accepted = 0;
    for round in 0..20 {
        let a = one.send("prompt", json!({ "text": format!("a {round}"), "wait": true }));
        let b = two.send("prompt", json!({ "text": format!("b {round}"), "wait": true }));
        for reply in [one.client.reply(a), two.client.reply(b)] {
            match reply {
                Ok(result) => {
                    assert_eq!(result["stopReason"], "done");
                    accepted += 1;
                }
                Err(error) => assert_eq!(error.kind(), "sessionBusy"),
            }
        }
    }
    assert_eq!(one.prompts().len(), accepted);
    assert_eq!(one.state()["status"], "idle");
    assert!(accepted >= 20);
    p.server.assert_valid();
}

#[test]
fn the_same_prompt_sent_again() {
    let p = Place::with([]);
    let mut session = p.session();
    let prompt = json!({ "text": "once", "wait": true, "idempotencyKey": "key-1" });
    let first = session.call("prompt", prompt.clone());
    let again = session.call("prompt", prompt.clone());
    for key in ["runId", "entryId", "text", "leafId"] {
        assert_eq!(first[key], again[key], "{key}");
    }
    assert_eq!(p.server.requests().len(), 1);
    let records = fixtures::records(&session.path());
    assert_eq!(records.iter().filter(|r| r["idempotencyKey"] == "key-1").count(), 1);
    let mut daemon = p.daemon;
    daemon.kill9();
    daemon.start();
    let mut session = Session::attach(&daemon, &session.id);
    let after = session.call("prompt", prompt);
    assert_eq!((&after["entryId"], &after["stopReason"]), (&first["entryId"], &json!("done")));
    assert_eq!(p.server.requests().len(), 1, "not even across a restart");
    assert_eq!(session.error("prompt", json!({ "text": "x", "idempotencyKey": "k".repeat(65) })).code(), -32602);
    // What another call made is no answer.
    session.call("appendEntry", json!({ "customType": "x", "content": "note", "idempotencyKey": "key-2" }));
    session.call("bash", json!({ "command": "true", "idempotencyKey": "key-3" }));
    for (method, key, mut params) in [
        ("appendEntry", "key-1", json!({ "customType": "x", "data": 1 })),
        ("bash", "key-1", json!({ "command": "true" })),
        ("prompt", "key-2", json!({ "text": "x" })),
        ("bash", "key-2", json!({ "command": "true" })),
        ("prompt", "key-3", json!({ "text": "x" })),
        ("appendEntry", "key-3", json!({ "customType": "x", "data": 1 })),
    ] {
        params["idempotencyKey"] = json!(key);
        assert_eq!(session.error(method, params).code(), -32602, "{method} {key}");
    }
}

/// A queued text sent again: in the queue, said, and as a command.
#[test]
fn the_same_queued_text_sent_again() {
    let gate = Gate::new();
    let p = Place::with([Reply::held("working", &gate, "")]);
    let mut session = p.session();
    let run = session.call("prompt", json!({ "text": "go" }));
    gate.reached();
    let text = json!({ "text": "later", "idempotencyKey": "\u{e9}".repeat(64) });
    let queued = session.call("followUp", text.clone());
    assert_eq!(session.call("followUp", text.clone()), queued);
    gate.open();
    session.wait();
    let said = session.call("followUp", text);
    assert_eq!((&said["runId"], &said["queued"]), (&run["runId"], &json!(true)), "as before");
    assert_eq!(session.prompts().len(), 2);

    let command = json!({ "command": "sleep 0.3; echo $RANDOM$RANDOM", "idempotencyKey": "k" });
    let twice = [session.send("bash", command.clone()), session.send("bash", command)];
    let [one, two] = twice.map(|id| session.client.reply(id).unwrap());
    assert_eq!(one, two, "run once");
}

/// There is no turn left to answer it, so it stays queued.
#[test]
fn a_follow_up_waits_when_the_turns_are_used_up() {
    let gate = Gate::new();
    let p = Place::with([Reply::held("one", &gate, "")]);
    let mut session = p.session();
    let prompt = session.send("prompt", json!({ "text": "go", "maxTurns": 1, "wait": true }));
    gate.reached();
    session.call("followUp", json!({ "text": "later" }));
    gate.open();
    assert_eq!(session.client.reply(prompt).unwrap()["stopReason"], "maxTurns");
    assert_eq!(session.state()["queue"]["followUp"][0]["text"], "later");
    session.ask("next");
    let said: Vec<String> = session.prompts().into_iter().rev().map(|(_, text)| text).collect();
    assert_eq!(said, ["go", "next", "later"]);
}

/// Prompts that come just as a run ends are answered, every one.
#[test]
fn said_at_the_very_end_of_a_run() {
    let p = Place::with([]);
    let mut session = p.session();
    session.ask("begin");
    for round in 0..100 {
        let first = session.send("prompt", json!({ "text": format!("first {round}"), "wait": true }));
        let last = session.send("steer", json!({ "text": format!("last {round}"), "wait": true }));
        for id in [first, last] {
            assert_eq!(session.client.reply(id).unwrap()["stopReason"], "done");
        }
        assert_eq!(session.state()["queue"], json!({ "steer": [], "followUp": [] }));
    }
    assert_eq!(session.prompts().len(), 201);
    p.server.assert_valid();
}

#[test]
fn where_the_caller_believes_the_leaf_is() {
    let p = Place::with([]);
    let mut session = p.session();
    session.call("prompt", json!({ "text": "first", "leafId": null, "wait": true }));
    let leaf = session.leaf();
    let error = session.error("prompt", json!({ "text": "late", "leafId": null }));
    assert_eq!((error.kind(), &error.0["data"]["leafId"]), ("leafMoved", &json!(leaf)));
    session.call("prompt", json!({ "text": "second", "leafId": leaf, "wait": true }));
    assert_eq!(session.prompts().len(), 2);
}

#[test]
fn a_retry_can_be_aborted() {
    let p = Place::with([Reply::status(429, "rate_limit_error", "slow down").header("retry-after", "20")]);
    let mut session = p.session();
    session.subscribe();
    session.call("prompt", json!({ "text": "hi" }));
    session.client.until_kind("retryScheduled");
    let (_, took) = timed(|| session.call("abort", json!({})));
    assert!(took < Duration::from_millis(1200), "{took:?}");
    assert_eq!(session.wait()["stopReason"], "aborted");
    assert_eq!(p.server.requests().len(), 1);
    session.ask("now");
    p.server.assert_valid();
}

/// Ten sessions stream at once: all finish, each with its own text.
#[test]
fn many_sessions_at_once() {
    let p = Place::with([]);
    let gate = Gate::new();
    p.server.otherwise({
        let gate = gate.clone();
        move |request| {
            let prompt = request.texts().last().cloned().unwrap_or_default();
            Reply::held("answer to ", &gate, &prompt)
        }
    });
    let mut sessions: Vec<Session> = (0..10).map(|_| p.session()).collect();
    for (n, session) in sessions.iter_mut().enumerate() {
        session.call("prompt", json!({ "text": format!("prompt {n}") }));
    }
    p.server.until_requests(10);
    gate.open();
    for (n, session) in sessions.iter_mut().enumerate() {
        assert_eq!(session.wait()["text"], json!(format!("answer to prompt {n}")));
    }
    p.server.assert_valid();
}
