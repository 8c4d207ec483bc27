//! Subscriptions: a snapshot and all after it, no gap, no double; for a late one, a lost one, and a lazy one.

use std::io::Write;
use std::os::unix::net::UnixStream;

use kli_tests::model::{End, Step};
use kli_tests::{Event, Gate, ModelServer, Place, Reply, Session, Setup, fixtures, raw, text};
use serde_json::{Value, json};

/// The text of all deltas.
fn streamed(events: &[Event]) -> String {
    events.iter().filter(|e| e.kind() == "textDelta").filter_map(|e| e.body["delta"].as_str()).collect()
}

fn kinds(events: &[Event]) -> Vec<&str> {
    events.iter().map(Event::kind).collect()
}

#[test]
fn the_events_of_a_run() {
    let p = Place::with([
        Reply::steps([
            Step::Thinking("hm".into()),
            Step::Text("I look. ".into()),
            Step::Call("c1".into(), "bash".into(), json!({ "command": "echo out" }).to_string()),
            Step::End(End::Calls),
        ])
        .usage(10, 2),
        Reply::text("done").usage(20, 3),
    ]);
    let mut session = p.session();
    let snapshot = session.subscribe();
    assert_eq!(snapshot.body["session"]["sessionId"], json!(session.id));
    let run = session.call("prompt", json!({ "text": "go" }));
    session.client.until_kind("runEnd");
    let events = session.client.events();
    let order = [
        "snapshot",
        "runStart",
        "turnStart",
        "messageStart",
        "messageEnd",
        "toolStart",
        "toolEnd",
        "turnEnd",
        "turnStart",
        "messageStart",
        "messageEnd",
        "turnEnd",
        "runEnd",
    ];
    let milestones: Vec<&str> = kinds(&events).into_iter().filter(|kind| order.contains(kind)).collect();
    assert_eq!(milestones, order);
    for kind in ["runStart", "textDelta", "thinkingDelta", "toolStart", "runEnd"] {
        let event = events.iter().find(|e| e.kind() == kind).unwrap_or_else(|| panic!("no {kind}"));
        assert_eq!(event.body["runId"], run["runId"], "{kind}");
        assert!(event.body["time"].is_string() && event.body["sessionId"] == json!(session.id));
    }
    let find = |kind: &str| events.iter().find(|e| e.kind() == kind).unwrap().body.clone();
    assert_eq!(find("runStart")["entryId"], run["entryId"]);
    assert_eq!(find("toolStart")["arguments"]["command"], "echo out");
    assert!(text(&find("toolStart")["title"]).contains("echo out"));
    assert_eq!(find("messageEnd")["stored"], true);
    let outputs = |kind: &str| -> Vec<u64> {
        events.iter().filter(|e| e.kind() == kind).map(|e| e.body["usage"]["output"].as_u64().unwrap()).collect()
    };
    assert_eq!((outputs("turnEnd"), outputs("runEnd")), (vec![2, 3], vec![5]), "of the turn, and of the run");
    let idle = |e: &Event| e.kind() == "sessionInfoChanged" && e.body["session"]["status"] == "idle";
    let end = session.client.until(idle).seq();
    let run_end = events.iter().find(|e| e.kind() == "runEnd").unwrap().seq();
    assert!(end > run_end, "idle is told after the end");
    // Each entry of the tree once, in the order of the branch, prompts and results too.
    let appended: Vec<String> =
        events.iter().filter(|e| e.kind() == "entryAppended").map(|e| text(&e.body["entry"]["id"])).collect();
    assert_eq!(appended, session.branch_ids());
    assert!(appended.contains(&text(&find("messageStart")["messageId"])), "a message's id is its entry's");
    assert_rising(&events);
}

#[track_caller]
fn assert_rising(events: &[Event]) {
    let seqs: Vec<u64> =
        events.iter().filter(|e| !matches!(e.kind(), "snapshot" | "lagged")).filter_map(Event::seq).collect();
    assert!(seqs.windows(2).all(|pair| pair[0] < pair[1]), "{seqs:?}");
}

#[test]
fn two_clients_see_the_same() {
    let p = Place::with([Reply::call("c1", "bash", json!({ "command": "seq 100" })), Reply::text("done")]);
    let mut one = p.session();
    let mut two = Session::attach(&p.daemon, &one.id);
    one.subscribe();
    two.subscribe();
    one.ask("go");
    let ended = |client: &kli_tests::Client| client.until_kind("runEnd").seq().unwrap();
    let end = ended(&one.client).max(ended(&two.client));
    let of = |session: &Session| -> Vec<(Option<u64>, Value)> {
        let events = session.client.events();
        let kept = events.iter().filter(|e| e.is_kept() && e.seq().is_some_and(|seq| seq <= end));
        kept.map(|e| (e.seq(), e.body.clone())).collect()
    };
    assert_eq!(of(&one), of(&two));
    assert_eq!(streamed(&one.client.events()), streamed(&two.client.events()));
}

#[test]
fn one_that_joins_in_the_middle() {
    let gate = Gate::new();
    let p = Place::with([Reply::held("first half, ", &gate, "second half")]);
    let mut early = p.session();
    early.subscribe();
    early.call("prompt", json!({ "text": "slowly" }));
    early.client.until(|e| e.kind() == "textDelta" && e.body["delta"].to_string().contains("first half"));
    let mut late = Session::attach(&p.daemon, &early.id);
    let snapshot = late.subscribe();
    assert!(snapshot.body["run"]["content"].to_string().contains("first half, "), "{}", snapshot.body);
    assert_eq!(snapshot.body["session"]["status"], "running");
    // The transcript so far, then what follows: together what the early one has.
    let leaf = snapshot.body["session"]["leafId"].clone();
    let mut transcript: Vec<Value> =
        late.call("getBranch", json!({ "leafId": leaf }))["entries"].as_array().unwrap().clone();
    gate.open();
    late.client.until_kind("runEnd");
    let events = late.client.events();
    assert_eq!(streamed(&events), "second half", "not again what the snapshot held");
    transcript.extend(events.iter().filter(|e| e.kind() == "entryAppended").map(|e| e.body["entry"].clone()));
    assert_eq!(transcript, early.branch());
    assert_eq!(kinds(&events).iter().filter(|kind| **kind == "runEnd").count(), 1);
}

#[test]
fn a_run_outlives_who_began_it() {
    let gate = Gate::new();
    let p = Place::with([Reply::held("first, ", &gate, "second")]);
    let mut session = p.session();
    let mut gone = Session::attach(&p.daemon, &session.id);
    gone.send("prompt", json!({ "text": "go", "wait": true }));
    gate.reached();
    drop(gone);
    session.subscribe();
    gate.open();
    assert_eq!(session.client.until_kind("runEnd").body["stopReason"], "done");
    assert_eq!(session.wait()["text"], "first, second");
}

#[test]
fn replay_after_a_lost_connection() {
    let p = Place::with([]);
    let mut session = p.session();
    session.subscribe();
    for n in 0..40 {
        session.ask(&format!("small {n}"));
    }
    let events = session.client.events();
    let live: Vec<&Event> = events.iter().filter(|e| e.kind() != "snapshot").collect();
    let end = live.iter().filter_map(|e| e.seq()).max().unwrap();
    for cut in [live[0].seq().unwrap(), live[live.len() / 2].seq().unwrap(), end - 1] {
        let mut again = Session::attach(&p.daemon, &session.id);
        again.call("subscribe", json!({ "after": cut }));
        again.client.until(|e| e.seq() == Some(end));
        let replayed = again.client.events();
        let kept = |events: &[&Event]| -> Vec<Value> {
            let after = events.iter().filter(|e| e.is_kept() && e.seq().is_some_and(|seq| cut < seq && seq <= end));
            after.map(|e| e.body.clone()).collect()
        };
        assert_eq!(kept(&replayed.iter().collect::<Vec<_>>()), kept(&live), "after {cut} of {end}");
        assert!(replayed.iter().all(|e| e.kind() != "snapshot" && e.seq() > Some(cut)));
        let after: Vec<Event> = live.iter().filter(|e| e.seq() > Some(cut)).map(|e| (*e).clone()).collect();
        assert_eq!(streamed(&replayed), streamed(&after), "the text comes too");
    }
}

/// A client that loses its connection again and again ends with what one has that was there all along.
#[test]
fn reconnecting_during_a_run() {
    let pieces: Vec<(String, Gate)> = (0..20).map(|n| (format!("piece {n}, "), Gate::new())).collect();
    let steps = pieces.iter().flat_map(|(text, gate)| [Step::Text(text.clone()), Step::Hold(gate.clone())]);
    let p = Place::with([Reply::steps(steps.chain([Step::End(End::Done)]))]);
    let mut steady = p.session();
    steady.subscribe();
    steady.call("prompt", json!({ "text": "go" }));
    let mut after = None;
    let mut heard = String::new();
    for (text, gate) in &pieces {
        gate.reached();
        steady.client.until(|e| e.kind() == "textDelta" && e.body["delta"].to_string().contains(text.as_str()));
        let mut flaky = Session::attach(&p.daemon, &steady.id);
        match after {
            None => {
                let snapshot = flaky.subscribe();
                let blocks = snapshot.body["run"]["content"].as_array().cloned().unwrap_or_default();
                heard = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
                after = snapshot.seq();
            }
            Some(seq) => {
                flaky.call("subscribe", json!({ "after": seq }));
                flaky.client.until(|e| e.kind() == "textDelta" && e.body["delta"].to_string().contains(text.as_str()));
                let events = flaky.client.events();
                heard.push_str(&streamed(&events));
                after = events.iter().filter_map(Event::seq).max();
            }
        }
        gate.open();
    }
    let whole: String = pieces.iter().map(|(text, _)| text.as_str()).collect();
    assert_eq!(heard, whole);
    assert_eq!(steady.wait()["text"], json!(whole));
}

#[test]
fn numbers_go_on_after_a_restart() {
    let gate = Gate::new();
    let mut p = Place::with([Reply::text("one"), Reply::held("half", &gate, "")]);
    let mut session = p.session();
    session.subscribe();
    session.ask("one");
    let prompt = session.call("prompt", json!({ "text": "then it died" }))["entryId"].clone();
    session.client.until(|e| e.kind() == "textDelta" && e.body["delta"] == "half");
    let end = session.client.events().iter().filter_map(Event::seq).max().unwrap();
    let id = session.id.clone();
    p.daemon.kill9();
    gate.open();
    p.daemon.start();
    let mut session = Session::attach(&p.daemon, &id);
    let snapshot = session.subscribe();
    assert!(snapshot.seq() >= Some(end), "{:?} after {end}", snapshot.seq());
    assert_eq!(snapshot.body["session"]["status"], "idle");
    assert!(session.branch_ids().contains(&text(&prompt)));
    session.ask("go on");
    let seqs: Vec<u64> =
        session.client.events().iter().filter(|e| e.kind() != "snapshot").filter_map(Event::seq).collect();
    assert!(seqs.iter().all(|seq| *seq > end), "{seqs:?} after {end}");
    let mut again = Session::attach(&p.daemon, &id);
    again.call("subscribe", json!({ "after": end }));
    let first = again.client.until(|_| true);
    assert!(first.kind() == "snapshot" || first.seq() > Some(end));
    p.server.assert_valid();
}

/// Milestones are kept beside the session: a client that comes back after a restart gets those that it missed, as
/// they were told, and no number is ever given again, however the daemon ended, also for a file of another place.
#[test]
fn milestones_outlive_the_daemon() {
    const KEPT: [&str; 12] = [
        "runStart",
        "runEnd",
        "turnStart",
        "turnEnd",
        "messageEnd",
        "toolStart",
        "toolEnd",
        "approvalRequested",
        "approvalResolved",
        "retryScheduled",
        "compactionStart",
        "compactionEnd",
    ];
    let foreign = fixtures::temp_dir("kli-f");
    let work_dir = fixtures::work_dir();
    let mut file = fixtures::SessionFile::new("of-another-place", work_dir.path());
    file.user("aaaaaaaa", None, "hi").write(&foreign.path().join("x.jsonl"));
    for inside in [true, false] {
        let mut p = Place::with([]);
        let made = p.session();
        let attach = |p: &Place| match inside {
            true => Session::attach(&p.daemon, &made.id),
            false => Session::open(&p.daemon, &foreign.path().join("x.jsonl")),
        };
        attach(&p).call("setMode", json!({ "mode": "ask" }));
        let mut told: std::collections::BTreeMap<u64, Value> = Default::default();
        let mut start = None;
        for ending in ["terminate", "kill9", "kill9"] {
            let mut session = attach(&p);
            let snapshot = session.subscribe().seq();
            start = start.or(snapshot);
            assert!(snapshot >= told.last_key_value().map(|(seq, _)| *seq), "it goes on where it was");
            p.server.script([
                Reply::status(503, "overloaded_error", "busy"),
                Reply::call("c1", "bash", json!({ "command": "touch made" })),
                Reply::text("done"),
            ]);
            let id = session.send("prompt", json!({ "text": "go", "wait": true }));
            let approval = session.client.until_kind("approvalRequested").body["approval"].clone();
            session.call("respondToApproval", json!({ "approvalId": approval["approvalId"], "decision": "allow" }));
            session.client.reply(id).unwrap();
            session.client.until_kind("runEnd");
            for event in session.client.events().iter().filter(|e| e.kind() != "snapshot") {
                let before = told.insert(event.seq().unwrap(), event.body.clone());
                assert_eq!(before, None, "a number was given twice");
            }
            match ending {
                "kill9" => p.daemon.kill9(),
                _ => drop(p.daemon.terminate()),
            }
            p.daemon.start();
            let after = start.unwrap();
            let mut again = attach(&p);
            again.call("subscribe", json!({ "after": after }));
            let kept: Vec<&Value> =
                told.values().filter(|event| KEPT.contains(&event["type"].as_str().unwrap())).collect();
            let last = kept.last().unwrap()["seq"].as_u64();
            again.client.until(|event| event.seq() >= last);
            let events = again.client.events();
            let replayed: Vec<&Value> = events.iter().map(|event| &event.body).collect();
            assert_eq!(replayed, kept, "{ending}, inside: {inside}");
            // And on from there: what is new has a number that is new.
            again.call("setSessionName", json!({ "name": format!("after {ending}") }));
            let new = again.client.until_kind("sessionInfoChanged");
            assert!(new.seq() > last, "{new:?}");
            let before = told.insert(new.seq().unwrap(), new.body.clone());
            assert_eq!(before, None, "a number was given twice");
        }
    }
}

#[test]
fn all_sessions_and_types() {
    let p = Place::with([]);
    let mut all = p.daemon.client();
    all.call("subscribe", json!({}));
    let mut session = p.session();
    session.call("subscribe", json!({ "types": ["runEnd"] }));
    session.ask("hi");
    all.until(|e| e.kind() == "sessionCreated" && e.body["session"]["sessionId"] == json!(session.id));
    all.until(|e| e.kind() == "runEnd" && e.body["sessionId"] == json!(session.id));
    assert!(!all.events().iter().any(|e| e.kind().ends_with("Delta") || e.kind() == "snapshot"));
    session.client.until_kind("runEnd");
    assert_eq!(kinds(&session.client.events()), ["snapshot", "runEnd"], "types never hide the snapshot");
    let subscription = session.call("subscribe", json!({}));
    let params = json!({ "subscription": subscription });
    assert_eq!(session.client.call("unsubscribe", params.clone()), true);
    assert_eq!(session.client.call("unsubscribe", params), false);
}

/// One that subscribes and never reads costs little memory, holds up nobody, and can catch up.
#[test]
fn a_reader_that_never_reads() {
    let megabytes = |n: usize| {
        let line = json!({ "choices": [{ "index": 0, "delta": { "content": "y".repeat(900) } }] });
        let chunk = format!("data: {line}\n\n").repeat(1100);
        let end = json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "stop" }] });
        let steps = (0..n).map(|_| Step::Raw(chunk.clone().into_bytes()));
        Reply::steps(steps.chain([Step::Raw(format!("data: {end}\n\ndata: [DONE]\n\n").into_bytes())]))
    };
    let server = ModelServer::start();
    let daemon = Setup::new().persisted().config(server.config(2_000_000_000)).start();
    let work_dir = fixtures::work_dir();
    let mut session = Session::create(&daemon, work_dir.path());
    let mut lazy = UnixStream::connect(&daemon.socket).unwrap();
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "subscribe", "params": { "sessionId": session.id } });
    lazy.write_all(format!("{call}\n").as_bytes()).unwrap();
    session.ask("small");
    let before = daemon.rss_bytes();
    for _ in 0..6 {
        server.script([megabytes(4)]);
        session.ask("stream much");
        session.call("navigateTree", json!({ "entryId": null }));
    }
    let grown = daemon.rss_bytes().saturating_sub(before) >> 20;
    assert!(grown < 120, "{grown} MiB for a reader that never reads");
    server.clear();
    session.ask("small again");
    let leaf = session.leaf().unwrap();
    // When it reads at last: a bounded backlog, `lagged` and a snapshot at once behind it, then all that follows.
    let needle = leaf.clone().into_bytes();
    let bytes = raw::read_until(&mut lazy, |got| {
        got.ends_with(b"\n") && got[got.len().saturating_sub(64 << 10)..].windows(needle.len()).any(|w| w == needle)
    });
    assert!(bytes.len() < 64 << 20, "{} bytes of backlog", bytes.len());
    let mut kinds = Vec::new();
    for line in bytes.split(|b| *b == b'\n').filter(|line| !line.is_empty()) {
        let message: Value = serde_json::from_slice(line).unwrap();
        kinds.push(message["params"]["result"]["type"].as_str().unwrap_or("reply").to_owned());
    }
    let lagged: Vec<usize> = (0..kinds.len()).filter(|i| kinds[*i] == "lagged").collect();
    assert!(!lagged.is_empty());
    assert!(lagged.iter().all(|i| kinds.get(i + 1).is_some_and(|kind| kind == "snapshot")), "{kinds:?}");
}
