//! A person in charge: what is held until somebody answers.

use kli_tests::{Place, Reply, Session};
use serde_json::{Value, json};

fn bash(command: &str) -> Value {
    json!({ "command": command })
}

#[test]
fn a_person_is_asked() {
    let touch = |id: &str, file: &str| Reply::call(id, "bash", bash(&format!("touch {file}")));
    let p = Place::with([
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

/// Where no rule describes a call, the very same call is not asked for again; another one is.
#[test]
fn allowed_for_the_session_without_a_rule() {
    let same = bash("echo $(date) > one; cat .env");
    let other = bash("echo $(date) > two; cat .env");
    let p = Place::with([
        Reply::call("c1", "bash", same.clone()),
        Reply::call("c2", "bash", same),
        Reply::call("c3", "bash", other),
        Reply::text("done"),
    ]);
    let mut session = p.session_with(json!({ "mode": "ask" }));
    session.subscribe();
    session.call("prompt", json!({ "text": "go" }));
    for (id, decision) in [("c1", "allowForSession"), ("c3", "deny")] {
        let asked = session.client.until(|e| e.kind() == "approvalRequested" && e.body["approval"]["toolCallId"] == id);
        assert_eq!(asked.body["approval"].get("rule"), None);
        let answer = json!({ "approvalId": asked.body["approval"]["approvalId"], "decision": decision });
        session.call("respondToApproval", answer);
    }
    session.wait();
    let asked = session.client.events().iter().filter(|e| e.kind() == "approvalRequested").count();
    assert_eq!((asked, p.work_dir.path().join("two").exists()), (2, false));
    p.server.assert_valid();
}

#[test]
fn an_open_question_is_aborted() {
    let p = Place::with([Reply::call("c1", "bash", bash("touch one"))]);
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

/// What a new mode or rule decides needs no answer any more.
#[test]
fn an_open_question_that_answers_itself() {
    let write = |id: &str| Reply::call(id, "write", json!({ "path": id, "content": "x" }));
    let p = Place::with([write("one"), Reply::text("done"), write("two"), Reply::text("done")]);
    let mut session = p.session_with(json!({ "mode": "ask" }));
    session.subscribe();
    for (mode, file, decision) in [("auto", "one", "allow"), ("plan", "two", "deny")] {
        session.call("setMode", json!({ "mode": "ask" }));
        let seen = session.client.events().len();
        session.call("prompt", json!({ "text": "go" }));
        let asked = session.client.until_after(seen, |e| e.kind() == "approvalRequested");
        let change = &asked.body["approval"]["changes"][0];
        assert_eq!((&change["line"], &change["oldText"]), (&json!(1), &Value::Null), "a new file");
        session.call("setMode", json!({ "mode": mode }));
        let resolved = session.client.until_after(seen, |e| e.kind() == "approvalResolved");
        assert_eq!(resolved.body["decision"], decision);
        assert_eq!(session.wait()["stopReason"], "done");
        assert_eq!(p.work_dir.path().join(file).exists(), decision == "allow");
    }
    p.server.assert_valid();
}

#[test]
fn reading_is_free_and_plan_changes_nothing() {
    let p = Place::with([
        Reply::call("c1", "read", json!({ "path": "hello.txt" })),
        Reply::text("read"),
        Reply::call("c2", "bash", bash("touch one")),
        Reply::call("c3", "write", json!({ "path": "two", "content": "x" })),
        Reply::text("planned"),
    ]);
    let mut session = p.session_with(json!({ "mode": "ask" }));
    session.ask("read it");
    assert!(!session.result_of("c1").1);
    session.call("setMode", json!({ "mode": "plan" }));
    session.ask("plan it");
    assert!(session.result_of("c2").1 && session.result_of("c3").1);
    assert_eq!(std::fs::read_dir(p.work_dir.path()).unwrap().count(), 1);
    let mut daemon = p.daemon;
    daemon.kill9();
    daemon.start();
    assert_eq!(Session::attach(&daemon, &session.id).state()["mode"], "plan", "the mode is kept");
}
