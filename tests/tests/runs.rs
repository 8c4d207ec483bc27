//! Runs: prompts, tools, the queue, aborts, retries, approvals; and that every request is one a provider takes.

use std::time::Duration;

use kli_tests::model::{End, Step};
use kli_tests::{Daemon, Gate, ModelServer, Reply, Session, Setup, fixtures, text, text_of, timed};
use serde_json::{Value, json};

struct Place {
    server: ModelServer,
    daemon: Daemon,
    work_dir: tempfile::TempDir,
}

/// A daemon whose model plays these replies, then says "done".
fn place(replies: impl IntoIterator<Item = Reply>) -> Place {
    let server = ModelServer::with(replies);
    let daemon = Setup::new().persisted().model(&server).start();
    Place { server, daemon, work_dir: fixtures::work_dir() }
}

impl Place {
    fn session(&self) -> Session {
        Session::create(&self.daemon, self.work_dir.path())
    }

    fn session_with(&self, mut params: Value) -> Session {
        params["workDir"] = json!(self.work_dir.path());
        Session::create_with(&self.daemon, params)
    }
}

fn bash(command: &str) -> Value {
    json!({ "command": command })
}

/// Role of each message, with the call ids of results.
fn shape(session: &mut Session) -> Vec<String> {
    session
        .messages()
        .iter()
        .map(|m| match m["toolCallId"].as_str() {
            Some(id) => format!("result {id}"),
            None => text(&m["role"]),
        })
        .collect()
}

#[track_caller]
fn result_of(session: &mut Session, call_id: &str) -> (String, bool) {
    let message = session.messages().into_iter().find(|m| m["toolCallId"] == call_id).expect("a stored result");
    (text_of(&message), message["isError"] == true)
}

#[test]
fn a_tool_conversation() {
    let p = place([
        Reply::call("c1", "read", json!({ "path": "hello.txt" })),
        Reply::text("It says marker-4711."),
        Reply::call("c2", "bash", bash("echo second-run")),
        Reply::text("Done again."),
    ]);
    let mut session = p.session();
    let result = session.ask("what does hello.txt say?");
    assert_eq!((&result["text"], &result["queued"]), (&json!("It says marker-4711."), &json!(false)));
    assert!(result["usage"]["totalTokens"].as_u64().unwrap() > 0);
    assert!(p.server.last().says("marker-4711"), "the model was given the tool's output");
    session.ask("and echo");
    assert_eq!(
        shape(&mut session),
        ["user", "assistant", "result c1", "assistant", "user", "assistant", "result c2", "assistant"]
    );
    assert!(p.server.last().says("second-run"));
    // What was sent before is sent again byte for byte: providers' prompt caches stay warm.
    for (i, prefix) in p.server.prefixes().into_iter().enumerate() {
        assert!(prefix.is_whole(), "request {} repeats only {prefix:?} of the one before", i + 1);
    }
    p.server.assert_valid();
}

/// Parallel calls: each runs once, results are stored in call order, one failure does not touch the others.
#[test]
fn several_calls_at_once() {
    let p = place([
        Reply::calls(&[
            ("a", "bash", bash("sleep 0.3; echo slow")),
            ("b", "bash", bash("exit 3")),
            ("c", "no_such_tool", json!({})),
            ("d", "bash", bash("true")),
            ("e", "read", json!({})),
        ]),
        Reply::text("seen"),
    ]);
    let mut session = p.session();
    session.ask("go");
    assert_eq!(
        shape(&mut session),
        ["user", "assistant", "result a", "result b", "result c", "result d", "result e", "assistant"]
    );
    assert_eq!(result_of(&mut session, "a").0.trim(), "slow");
    assert!(result_of(&mut session, "b").0.contains('3'));
    let (unknown, is_error) = result_of(&mut session, "c");
    assert!(is_error && unknown.contains("no_such_tool"), "{unknown}");
    assert!(!result_of(&mut session, "d").0.trim().is_empty(), "no output is said in words");
    assert!(result_of(&mut session, "e").1, "missing arguments are an error result");
    p.server.assert_valid();
}

#[test]
fn arguments_that_are_no_object() {
    let call = |id: &str, arguments: &str| Step::Call(id.into(), "bash".into(), arguments.into());
    let p = place([
        Reply::steps([call("a", "{\"command\": \"echo"), call("b", "[1]"), call("c", ""), Step::End(End::Calls)]),
        Reply::text("seen"),
    ]);
    let mut session = p.session();
    session.ask("go");
    for id in ["a", "b", "c"] {
        assert!(result_of(&mut session, id).1, "{id}");
    }
    p.server.assert_valid();
}

/// Some providers begin their call ids anew with each turn.
#[test]
fn call_ids_that_come_again() {
    let again = |n: u8| Reply::call("call_0", "bash", bash(&format!("echo turn-{n}")));
    let p = place([again(1), again(2), again(3), Reply::text("done")]);
    let mut session = p.session();
    session.ask("go");
    let results: Vec<String> =
        session.messages().iter().filter(|m| m["role"] == "toolResult").map(|m| text_of(m).trim().to_owned()).collect();
    assert_eq!(results, ["turn-1", "turn-2", "turn-3"], "each call ran once");
    p.server.assert_valid();
}

#[test]
fn ends_of_a_reply() {
    let cut = [Step::Text("half".into()), Step::Call("c".into(), "bash".into(), bash("touch ran").to_string())];
    let cut = Reply::steps(cut.into_iter().chain([Step::End(End::Length)]));
    let p = place([cut, Reply::text("after"), Reply::steps([Step::End(End::Done)]), Reply::text("still here")]);
    let mut session = p.session();
    assert_eq!(session.run("go")["stopReason"], "length");
    assert!(!p.work_dir.path().join("ran").exists(), "a reply cut by its limit runs none of its calls");
    session.ask("go on");
    // A model with nothing to say ends its turn, and the next request is still valid.
    session.run("say nothing");
    session.ask("and now?");
    p.server.assert_valid();
}

#[test]
fn max_turns() {
    let p = place((0..5).map(|n| Reply::call(&format!("c{n}"), "bash", bash("true"))));
    let mut session = p.session();
    let result = session.call("prompt", json!({ "text": "loop", "wait": true, "maxTurns": 2 }));
    assert_eq!(result["stopReason"], "maxTurns");
    assert_eq!(p.server.requests().len(), 2);
    p.server.clear();
    session.ask("go on");
    p.server.assert_valid();
}

#[test]
fn blank_prompts_store_nothing() {
    let p = place([]);
    let mut session = p.session();
    for blank in ["", "   ", "\n\t "] {
        assert_eq!(session.error("prompt", json!({ "text": blank })).code(), -32602, "{blank:?}");
    }
    assert_eq!((session.branch_ids().len(), p.server.requests().len()), (0, 0));
    for odd in ["a\u{0}\u{1b}b", "\u{2028}\u{2029}\u{85}", "{\"json\":\"\\\\\"}", &"a".repeat(1 << 20)] {
        session.ask(odd);
        assert!(p.server.last().texts().iter().any(|t| t.contains(odd)), "sent as it is: {:.20}", odd);
        assert_eq!(session.prompts()[0].1, odd);
    }
    p.server.assert_valid();
}

#[test]
fn queued_while_a_run_goes_on() {
    let gate = Gate::new();
    let p = place([
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

#[test]
fn aborting_a_stream() {
    let gate = Gate::new();
    let p = place([Reply::held("first half", &gate, "second half"), Reply::text("after")]);
    let mut session = p.session();
    let mut waiting = Session::attach(&p.daemon, &session.id);
    let call = waiting.send("prompt", json!({ "text": "slowly", "wait": true }));
    gate.reached();
    session.subscribe();
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
    let p = place([
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
    let (finished, is_error) = result_of(&mut session, "a");
    assert_eq!((finished.trim(), is_error), ("finished", false), "a finished sibling keeps its result");
    assert!(result_of(&mut session, "b").1, "the open call is answered by a stored result");
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
    let p = place([Reply::held("old", &gate, "old"), Reply::text("the new answer")]);
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
    let p = place([]);
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
    let p = place([]);
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
}

#[test]
fn where_the_caller_believes_the_leaf_is() {
    let p = place([]);
    let mut session = p.session();
    session.call("prompt", json!({ "text": "first", "leafId": null, "wait": true }));
    let leaf = session.leaf();
    let error = session.error("prompt", json!({ "text": "late", "leafId": null }));
    assert_eq!((error.kind(), &error.0["data"]["leafId"]), ("leafMoved", &json!(leaf)));
    session.call("prompt", json!({ "text": "second", "leafId": leaf, "wait": true }));
    assert_eq!(session.prompts().len(), 2);
}

#[test]
fn failures_that_pass() {
    let refused = |status, kind: &str| Reply::status(status, kind, "try later");
    for (name, failures) in [
        ("429", vec![refused(429, "rate_limit_error"), refused(429, "rate_limit_error").header("retry-after", "0")]),
        ("5xx", vec![refused(500, "server_error"), refused(529, "overloaded_error")]),
        ("reset", vec![Reply::steps([Step::Text("Hel".into()), Step::Reset])]),
        ("early end", vec![Reply::steps([Step::Text("Hel".into())])]),
        ("html", vec![Reply::body(502, "text/html", "<html>bad gateway</html>")]),
    ] {
        let tries = failures.len();
        let p = place(failures.into_iter().chain([Reply::text("Hello")]));
        let mut session = p.session();
        session.subscribe();
        let result = session.ask("hi");
        assert_eq!(result["text"], "Hello", "{name}");
        assert_eq!(shape(&mut session), ["user", "assistant"], "{name}: nothing of a failed try is on the branch");
        let events = session.client.events();
        let retries = events.iter().filter(|e| e.kind() == "retryScheduled").count();
        assert_eq!(retries, tries, "{name}: each wait is visible");
        session.ask("again");
        let answers = p.server.last().texts().iter().filter(|t| t.contains("Hel")).count();
        assert_eq!(answers, 1, "{name}: one answer is sent, once");
        p.server.assert_valid();
    }
}

#[test]
fn failures_that_stay() {
    for (status, kind, expected) in [
        (401, "authentication_error", "auth"),
        (402, "insufficient_quota", "quota"),
        (400, "invalid_request_error", "badRequest"),
        (500, "server_error", ""),
    ] {
        let p = place((0..3).map(|_| Reply::status(status, kind, "the reason in words")));
        let mut session = p.session();
        let result = session.run("hi");
        assert_eq!(result["stopReason"], "error", "{status}: {result}");
        assert!(text(&result["error"]["message"]).contains("the reason in words"), "{result}");
        if !expected.is_empty() {
            assert_eq!(result["error"]["kind"], expected, "{result}");
            assert_eq!(p.server.requests().len(), 1, "{status} is not tried again");
        }
        assert_eq!(session.state()["status"], "idle");
        // Going on takes the prompt that is there.
        p.server.clear();
        let again = session.call("continueRun", json!({ "wait": true }));
        assert_eq!(again["stopReason"], "done", "{again}");
        assert_eq!(session.prompts().len(), 1);
        p.server.assert_valid();
    }
}

#[test]
fn a_retry_can_be_aborted() {
    let p = place([Reply::status(429, "rate_limit_error", "slow down").header("retry-after", "20")]);
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

#[test]
fn a_person_is_asked() {
    let touch = |id: &str, file: &str| Reply::call(id, "bash", bash(&format!("touch {file}")));
    let p = place([
        touch("c1", "one"),
        Reply::text("done"),
        touch("c2", "two"),
        Reply::text("not done"),
        Reply::call("c3", "write", json!({ "path": "three", "content": "x" })),
        Reply::text("written"),
    ]);
    let mut session = p.session_with(json!({ "mode": "ask" }));
    session.subscribe();
    session.call("prompt", json!({ "text": "go" }));
    let asked = session.client.until_kind("approvalRequested").body["approval"].clone();
    assert_eq!((&asked["toolCallId"], &asked["toolName"]), (&json!("c1"), &json!("bash")));
    assert_eq!(asked["arguments"]["command"], "touch one");
    assert_eq!(session.state()["status"], "waitingForApproval");
    // One that attaches later sees it too, and answers.
    let mut other = Session::attach(&p.daemon, &session.id);
    let pending = other.state()["pendingApprovals"][0].clone();
    assert_eq!(pending["approvalId"], asked["approvalId"]);
    assert!(!p.work_dir.path().join("one").exists(), "held until a person answers");
    let answer = |decision: &str| json!({ "approvalId": asked["approvalId"], "decision": decision });
    other.call("respondToApproval", answer("allow"));
    let late = session.error("respondToApproval", answer("deny"));
    assert_eq!((late.kind(), &late.0["data"]["decision"]), ("approvalNotFound", &json!("allow")));
    session.wait();
    assert!(p.work_dir.path().join("one").exists());
    assert_eq!(session.client.until_kind("approvalResolved").body["decision"], "allow");

    // Denied: the model is told, and the run goes on.
    let seen = session.client.events().len();
    session.call("prompt", json!({ "text": "again" }));
    let asked = session.client.until_after(seen, |e| e.kind() == "approvalRequested").body["approval"].clone();
    let params = json!({ "approvalId": asked["approvalId"], "decision": "deny", "message": "not today" });
    session.call("respondToApproval", params);
    assert_eq!(session.wait()["stopReason"], "done");
    assert!(!p.work_dir.path().join("two").exists());
    assert!(p.server.last().says("not today"));

    // With nobody there the call is refused, and the refusal says how to allow it.
    session.ask("write it");
    assert!(!p.work_dir.path().join("three").exists());
    assert!(p.server.last().says("auto"), "{:?}", p.server.last().texts().last());
    p.server.assert_valid();
}

#[test]
fn an_open_question_is_aborted() {
    let p = place([Reply::call("c1", "bash", bash("touch one"))]);
    let mut session = p.session_with(json!({ "mode": "ask" }));
    session.subscribe();
    session.call("prompt", json!({ "text": "go" }));
    session.client.until_kind("approvalRequested");
    session.call("abort", json!({}));
    assert_eq!(session.client.until_kind("approvalResolved").body["decision"], "aborted");
    assert_eq!(session.state()["pendingApprovals"], json!([]));
    session.ask("next");
    assert!(!p.work_dir.path().join("one").exists());
    p.server.assert_valid();
}

#[test]
fn reading_is_free_and_plan_changes_nothing() {
    let p = place([
        Reply::call("c1", "read", json!({ "path": "hello.txt" })),
        Reply::text("read"),
        Reply::call("c2", "bash", bash("touch one")),
        Reply::call("c3", "write", json!({ "path": "two", "content": "x" })),
        Reply::text("planned"),
    ]);
    let mut session = p.session_with(json!({ "mode": "ask" }));
    session.ask("read it");
    assert!(!result_of(&mut session, "c1").1);
    session.call("setMode", json!({ "mode": "plan" }));
    session.ask("plan it");
    assert!(result_of(&mut session, "c2").1 && result_of(&mut session, "c3").1);
    assert_eq!(std::fs::read_dir(p.work_dir.path()).unwrap().count(), 1);
    let mut daemon = p.daemon;
    daemon.kill9();
    daemon.start();
    assert_eq!(Session::attach(&daemon, &session.id).state()["mode"], "plan", "the mode is kept");
}

#[test]
fn a_persons_own_command() {
    let p = place([]);
    let mut session = p.session();
    session.ask("hi");
    let result = session.call("bash", json!({ "command": "echo out; echo err >&2; exit 4" }));
    assert_eq!(result["exitCode"], 4);
    let output = text(&result["output"]);
    assert!(output.contains("out") && output.contains("err"), "{output}");
    session.call("bash", json!({ "command": "echo secret", "excludeFromContext": true }));
    let stored = session.messages();
    assert_eq!(stored.iter().filter(|m| m["role"] == "bashExecution").count(), 2);
    session.ask("and?");
    assert!(p.server.last().says("echo out") && !p.server.last().says("secret"));
    let (result, took) = timed(|| session.call("bash", json!({ "command": "sleep 600 & echo done" })));
    assert!(text(&result["output"]).contains("done") && took < Duration::from_secs(5), "{took:?}");
    let result = session.call("bash", json!({ "command": "sleep 600", "timeoutMs": 200 }));
    assert_eq!(result["cancelled"], true);
    p.server.assert_valid();
}

#[test]
fn models_and_options() {
    let p = place([]);
    let mut session = p.session();
    session.ask("one");
    session.call("setModel", json!({ "provider": "fake", "modelId": "m2" }));
    session.ask("two");
    assert_eq!(p.server.last().body["model"], "m2");
    // For one run only: no entry.
    let before = session.nodes().len();
    let params = json!({ "text": "three", "wait": true, "provider": "fake", "modelId": "m1" });
    session.call("prompt", params);
    assert_eq!(p.server.last().body["model"], "m1");
    assert_eq!(session.nodes().len(), before + 2);
    assert_eq!(session.state()["modelId"], "m2");
    session.call("setOption", json!({ "optionId": "reasoning-effort", "value": "high" }));
    assert_eq!(session.state()["options"]["reasoning-effort"], "high");
    let error = session.error("setModel", json!({ "provider": "fake", "modelId": "none" }));
    assert_eq!(error.kind(), "modelNotFound");
    let error = session.error("prompt", json!({ "text": "x", "provider": "fake", "modelId": "none" }));
    assert_eq!(error.kind(), "modelNotFound");
    p.server.assert_valid();
}

#[test]
fn what_can_be_known_before() {
    let config = r#"
defaultModel = "keyed/m1"
[providers.keyed]
api = "openai-chat"
baseUrl = "http://127.0.0.1:1/v1"
apiKeyEnv = "KLI_TEST_NO_SUCH_KEY"
[[providers.keyed.models]]
id = "m1"
contextWindow = 1000
maxOutput = 100
"#;
    let daemon = Setup::new().config(config).start();
    let work_dir = fixtures::work_dir();
    let mut session = Session::create(&daemon, work_dir.path());
    let error = session.error("prompt", json!({ "text": "hi" }));
    assert_eq!((error.kind(), &error.0["data"]["apiKeyEnv"]), ("noApiKey", &json!("KLI_TEST_NO_SUCH_KEY")));
    assert_eq!(session.branch_ids().len(), 0, "nothing was stored");
    let models = session.client.call("listModels", json!({}));
    let model = models["models"].as_array().unwrap().iter().find(|m| m["provider"] == "keyed").unwrap();
    assert_eq!(model["available"], false);
    assert!(text(&model["reason"]).contains("KLI_TEST_NO_SUCH_KEY"));
}

#[test]
fn counts_and_costs() {
    let p = place([
        Reply::call("c1", "bash", bash("true")).usage(1000, 100),
        Reply::text("one").usage(2000, 100),
        Reply::text("two").usage(3000, 100),
    ]);
    let mut session = p.session();
    session.ask("go");
    let (mut fork, _) = session.forked(&p.daemon, "clone", json!({}));
    fork.ask("in the fork");
    let stats = session.call("getStats", json!({}));
    for (key, count) in [("userMessages", 1), ("assistantMessages", 2), ("toolCalls", 1), ("toolResults", 1)] {
        assert_eq!(stats[key], json!(count), "{key} in {stats}");
    }
    assert_eq!(stats["usage"]["input"], json!(3000));
    assert_eq!(stats["usage"]["output"], json!(200));
    let cost = stats["usage"]["cost"]["total"].as_f64().unwrap();
    assert!((cost - 0.0034).abs() < 1e-9, "3,000 tokens in at 1 $, 200 out at 2 $ a million: {cost}");
    assert_eq!(fork.call("getStats", json!({}))["usage"]["input"], json!(3000), "its own, not the shared prefix");
    assert_eq!(p.session().call("waitRun", json!({})), Value::Null, "there never was a run");
}

/// Ten sessions stream at once: all finish, each with its own text.
#[test]
fn many_sessions_at_once() {
    let p = place([]);
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
