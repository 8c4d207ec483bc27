//! kill -9 at any moment: nothing acknowledged is missing, and the next request is valid. `KLI_ROUNDS` makes
//! the random rounds many (`tests/scripts/long-rounds`).

use std::collections::HashSet;
use std::time::Duration;

use kli_tests::{Client, Daemon, Gate, Place, Random, Reply, Session, fixtures, poll, text};
use serde_json::{Value, json};

#[test]
fn while_it_streams() {
    let gate = Gate::new();
    let mut p = Place::with([Reply::text("one"), Reply::held("half", &gate, "")]);
    let mut session = p.session();
    session.ask("first");
    let (before, path) = (session.branch_ids(), session.path());
    let prompt = text(&session.call("prompt", json!({ "text": "second" }))["entryId"]);
    gate.reached();
    p.daemon.kill9();
    gate.open();
    let bytes = std::fs::read(&path).unwrap();
    p.daemon.start();
    let mut session = Session::attach(&p.daemon, &session.id);
    assert!(session.branch_ids().starts_with(&before));
    assert!(session.branch_ids().contains(&prompt), "acknowledged, so it is there");
    assert_eq!(std::fs::read(&path).unwrap(), bytes, "opening writes nothing");
    assert_eq!(session.state()["interrupted"], true);
    let result = session.call("continueRun", json!({ "wait": true }));
    assert_eq!(result["stopReason"], "done");
    session.ask("third");
    assert_eq!(session.prompts().len(), 3);
    p.server.assert_valid();
}

/// Who saw it begin and comes back is told that it ended, once.
#[test]
fn the_end_of_a_run_that_was_cut_off() {
    let gate = Gate::new();
    let mut p = Place::with([Reply::text("one"), Reply::held("half", &gate, "")]);
    let mut session = p.session();
    session.ask("first");
    session.subscribe();
    let run = session.call("prompt", json!({ "text": "second" }))["runId"].take();
    gate.reached();
    let seen = session.client.until_kind("textDelta").seq();
    p.daemon.kill9();
    gate.open();
    let mut told = Vec::new();
    for _ in 0..2 {
        p.daemon.start();
        let mut session = Session::attach(&p.daemon, &session.id);
        session.call("subscribe", json!({ "after": seen }));
        let end = session.client.until_kind("runEnd");
        assert_eq!((&end.body["runId"], &end.body["error"]["kind"]), (&run, &json!("interrupted")));
        assert!(end.seq() > seen);
        told.push(end.body);
        // The state is as it was: it can be taken up.
        assert_eq!(session.state()["interrupted"], true);
        p.daemon.kill9();
    }
    assert_eq!(told[0], told[1]);
    p.daemon.start();
    let mut session = Session::attach(&p.daemon, &session.id);
    session.call("subscribe", json!({ "after": told[0]["seq"] }));
    session.call("continueRun", json!({ "wait": true }));
    let end = session.client.until_kind("runEnd");
    assert_eq!((&end.body["stopReason"], end.body["runId"] == run), (&json!("done"), false));
}

#[test]
fn while_a_tool_runs() {
    let mut p = Place::with([Reply::calls(&[
        ("a", "bash", json!({ "command": "echo finished" })),
        ("b", "bash", json!({ "command": "echo x >> runs; sleep 600" })),
    ])]);
    let mut session = p.session();
    session.subscribe();
    session.call("prompt", json!({ "text": "go" }));
    session.client.until(|e| e.kind() == "toolEnd" && e.body["toolCallId"] == "a");
    let runs = p.work_dir.path().join("runs");
    assert!(poll(kli_tests::PATIENCE, || runs.exists()), "the tool did not start");
    let ids = session.branch_ids();
    p.daemon.kill9();
    p.daemon.start();
    let mut session = Session::attach(&p.daemon, &session.id);
    assert!(session.branch_ids().starts_with(&ids), "what was there is there");
    session.ask("go on");
    let open = session.messages().into_iter().find(|m| m["toolCallId"] == "b").expect("the open call is answered");
    assert_eq!(open["isError"], true);
    assert_eq!(std::fs::read_to_string(&runs).unwrap(), "x\n", "it is not run again");
    p.server.assert_valid();
}

/// Only a crash cuts a run off: one that was ended where it could have been says so, also after a crash.
#[test]
fn what_ended_is_not_taken_for_cut_off() {
    let gate = Gate::new();
    let mut p = Place::with([
        Reply::call("a", "bash", json!({ "command": "true" })),
        Reply::call("b", "bash", json!({ "command": "sleep 600" })),
        Reply::held("", &gate, ""),
    ]);
    let mut limited = p.session();
    let at_limit = limited.call("prompt", json!({ "text": "go", "maxTurns": 1, "wait": true }));
    assert_eq!(at_limit["stopReason"], "maxTurns");
    let (mut fork, _) = limited.forked(&p.daemon, "clone", json!({}));
    let mut in_tool = p.session();
    in_tool.subscribe();
    in_tool.call("prompt", json!({ "text": "go" }));
    in_tool.client.until_kind("toolStart");
    in_tool.call("abort", json!({}));
    let aborted = in_tool.wait();
    let mut unsaid = p.session();
    unsaid.call("prompt", json!({ "text": "go" }));
    gate.reached();
    unsaid.call("abort", json!({}));
    let nothing_came = unsaid.wait();
    gate.open();
    for (session, of) in [&mut limited, &mut fork, &mut in_tool, &mut unsaid].into_iter().zip(["a", "f", "b", "u"]) {
        assert_eq!(session.state()["interrupted"], false, "{of}");
    }
    p.daemon.kill9();
    p.daemon.start();
    for (id, ended) in [(limited.id, at_limit), (in_tool.id, aborted), (unsaid.id, nothing_came)] {
        let mut session = Session::attach(&p.daemon, &id);
        assert_eq!(session.state()["interrupted"], false);
        let known = session.call("waitRun", json!({ "runId": ended["runId"] }));
        for key in ["stopReason", "leafId", "usage"] {
            assert_eq!(known[key], ended[key], "{key}");
        }
        assert_eq!(session.call("continueRun", json!({ "wait": true }))["stopReason"], "done");
        assert_eq!(session.error("continueRun", json!({})).kind(), "invalidEntry", "nothing is left to continue");
    }
    // A run without a prompt of its own is cut off all the same.
    let gate = Gate::new();
    p.server.script([Reply::held("", &gate, "")]);
    let mut fork = Session::attach(&p.daemon, &fork.id);
    fork.call("continueRun", json!({}));
    gate.reached();
    p.daemon.kill9();
    gate.open();
    p.daemon.start();
    assert_eq!(Session::attach(&p.daemon, &fork.id).state()["interrupted"], true);
    p.server.assert_valid();
}

#[test]
fn a_moved_leaf_and_labels_survive() {
    let mut p = Place::with([]);
    let mut session = p.session();
    session.ask("first");
    session.ask("second");
    let second = session.newest_prompt();
    session.call("navigateTree", json!({ "entryId": second }));
    let leaf = session.leaf().unwrap();
    session.call("setLabel", json!({ "entryId": leaf, "label": "here" }));
    let (fork, _) = session.forked(&p.daemon, "fork", json!({ "entryId": leaf }));
    let ids = [session.id.clone(), fork.id.clone()];
    let look = |daemon: &Daemon| -> Vec<Value> {
        ids.iter()
            .map(|id| {
                let mut session = Session::attach(daemon, id);
                let (state, tree) = (session.state(), session.call("getTree", json!({})));
                json!([state["leafId"], state["updatedAt"], state["title"], tree["nodes"], tree["roots"]])
            })
            .collect()
    };
    let before = look(&p.daemon);
    p.daemon.kill9();
    p.daemon.start();
    assert_eq!(look(&p.daemon), before);
    p.server.assert_valid();
}

#[test]
fn the_waiting_client_is_told() {
    let gate = Gate::new();
    let mut p = Place::with([Reply::held("half", &gate, "")]);
    let mut session = p.session();
    session.send("prompt", json!({ "text": "hi", "wait": true }));
    gate.reached();
    p.daemon.kill9();
    session.client.until_closed();
    gate.open();
}

/// Kills it at random moments under load. What a client was told is there afterwards, byte for byte.
#[test]
fn random_moments() {
    let (rounds, mut random) = Random::rounds(10);
    let mut p = Place::with([]);
    p.server.otherwise({
        let mut n = 0;
        move |_| {
            n += 1;
            if n % 3 == 0 {
                return Reply::text(&format!("answer {n} ").repeat(50));
            }
            Reply::calls(&[
                (&format!("x{n}"), "bash", json!({ "command": "echo one" })),
                (&format!("y{n}"), "bash", json!({ "command": "sleep 0.02; echo two" })),
            ])
        }
    });
    let (mut ids, mut first) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let mut session = p.session();
        session.ask("begin");
        first.push(session.newest_prompt());
        ids.push(session.id);
    }
    let mut acknowledged: Vec<HashSet<(String, String)>> = vec![HashSet::new(); ids.len()];
    for round in 0..rounds {
        let mut loads: Vec<Session> = ids.iter().map(|id| Session::attach(&p.daemon, id)).collect();
        for (n, session) in loads.iter_mut().enumerate() {
            session.subscribe();
            session.send("prompt", json!({ "text": format!("round {round} of {n}"), "behavior": "followUp" }));
            session.send("followUp", json!({ "text": format!("more in round {round}") }));
            if random.number().is_multiple_of(3) {
                session.send("fork", json!({ "entryId": first[n] }));
            }
        }
        // The kill itself is to come at no particular moment: a pause without a meaning is what is wanted here.
        std::thread::sleep(Duration::from_micros(random.number() % 150_000));
        p.daemon.kill9();
        for (n, session) in loads.iter().enumerate() {
            session.client.until_closed();
            acknowledged[n].extend(appended(&session.client));
        }
        drop(loads);
        p.daemon.start();
        for (n, id) in ids.iter().enumerate() {
            let mut session = Session::attach(&p.daemon, id);
            let path = session.path();
            let stored: HashSet<(String, String)> = fixtures::records(&path).iter().map(identity).collect();
            let missing: Vec<_> = acknowledged[n].difference(&stored).collect();
            assert!(missing.is_empty(), "round {round}: published, but not there: {missing:?}");
        }
        let n = (random.number() % 3) as usize;
        let mut session = Session::attach(&p.daemon, &ids[n]);
        session.ask(&format!("after round {round}"));
        p.server.assert_valid();
    }
    p.daemon.until_no_stragglers(Duration::from_secs(5));
}

fn identity(entry: &Value) -> (String, String) {
    (entry["id"].to_string(), entry.to_string())
}

/// The entries that a client was shown.
fn appended(client: &Client) -> Vec<(String, String)> {
    let events = client.events();
    events.iter().filter(|e| e.kind() == "entryAppended").map(|e| identity(&e.body["entry"])).collect()
}
