//! Long sessions: compaction by hand, by itself and after an overflow; what is said meanwhile; branch summaries.

use kli_tests::model::Received;
use kli_tests::{Gate, ModelServer, Place, Reply, Session, Setup, fixtures, text};
use serde_json::{Value, json};

/// The model, with little room: 20,000 tokens, of which 16,000 are for a request and about 2,000 are kept.
fn config(server: &ModelServer) -> String {
    format!("{}\n[compaction]\nreserveTokens = 4000\nkeepRecentTokens = 2000\n", server.config(20_000))
}

/// The model answers "noted", and a summariser by `summary`.
fn place(summary: impl FnMut(&Received) -> Reply + Send + 'static) -> Place {
    let server = ModelServer::start();
    let mut summary = summary;
    server.otherwise(move |request| if is_summary(request) { summary(request) } else { Reply::text("noted") });
    let daemon = Setup::new().persisted().config(config(&server)).start();
    Place { server, daemon, work_dir: fixtures::work_dir() }
}

fn is_summary(request: &Received) -> bool {
    request.texts().iter().any(|text| text.starts_with("Summarize the conversation"))
}

fn summaries(p: &Place) -> Vec<Received> {
    p.server.requests().into_iter().filter(is_summary).collect()
}

/// What was asked of the model itself.
fn turns(p: &Place) -> Vec<Received> {
    p.server.requests().into_iter().filter(|request| !is_summary(request)).collect()
}

fn long(mark: &str) -> String {
    format!("{mark} {}", "word ".repeat(450))
}

fn fill(session: &mut Session, turns: usize) {
    for n in 0..turns {
        session.ask(&long(&format!("PROMPT-{n}-")));
    }
}

fn of_kind(session: &Session, kinds: &[&str]) -> Vec<Value> {
    session.client.events().into_iter().filter(|e| kinds.contains(&e.kind())).map(|e| e.body).collect()
}

/// Who follows a session sees why a summary takes its time.
#[test]
fn a_summary_that_is_asked_for_again() {
    let mut asked = 0;
    let p = place(move |_| {
        asked += 1;
        if asked % 2 == 1 { Reply::status(529, "overloaded_error", "busy now") } else { Reply::text("SUM") }
    });
    let mut session = p.session();
    fill(&mut session, 8);
    session.subscribe();
    let prompt = session.branch().iter().find(|e| e["message"]["role"] == "user").unwrap()["id"].clone();
    session.call("compact", json!({}));
    session.call("navigateTree", json!({ "entryId": prompt, "summarize": true }));
    session.client.until_kind("leafMoved");
    let told = of_kind(&session, &["compactionStart", "retryScheduled", "compactionEnd"]);
    let kinds: Vec<&str> = told.iter().filter_map(|event| event["type"].as_str()).collect();
    let one = ["compactionStart", "retryScheduled", "compactionEnd"];
    assert_eq!(kinds, [one, one].concat());
    assert_eq!((&told[1]["attempt"], told[1].get("runId")), (&json!(2), None));
    assert!(text(&told[1]["reason"]).contains("busy now"), "{told:?}");
}

#[test]
fn by_hand() {
    let p = place(|_| Reply::text("THE-SUMMARY"));
    let mut session = p.session();
    assert_eq!(session.error("compact", json!({})).kind(), "nothingToCompact");
    fill(&mut session, 8);
    let (before, leaf) = (session.call("getContext", json!({})), session.leaf());
    session.subscribe();
    let made = session.call("compact", json!({ "instructions": "MIND-THE-TESTS", "leafId": leaf }));
    let after = session.call("getContext", json!({}));
    assert_eq!((&made["tokensBefore"], &made["tokensAfter"]), (&before["tokens"], &after["tokens"]));
    assert_eq!(session.state()["context"]["tokens"], after["tokens"]);
    assert!(after["tokens"].as_u64() < before["tokens"].as_u64());
    assert!(summaries(&p)[0].says("MIND-THE-TESTS") && summaries(&p)[0].says("PROMPT-0-"));
    let branch = session.branch();
    let entry = branch.last().unwrap();
    assert_eq!(
        (&entry["type"], &entry["id"], &entry["parentId"]),
        (&json!("compaction"), &made["entryId"], &json!(leaf))
    );
    assert_eq!((&entry["summary"], &entry["firstKeptEntryId"]), (&made["summary"], &made["firstKeptEntryId"]));
    // What is kept follows the summary word for word.
    let kept = branch.iter().position(|e| e["id"] == made["firstKeptEntryId"]).unwrap();
    let kept: Vec<&Value> = branch[kept..branch.len() - 1].iter().map(|e| &e["message"]).collect();
    let sent = after["messages"].as_array().unwrap();
    assert!(sent[0]["content"].to_string().contains("THE-SUMMARY") && sent[1..].iter().eq(kept));
    session.client.until_kind("compactionEnd");
    let told: Vec<Value> = of_kind(&session, &["compactionStart", "entryAppended", "compactionEnd", "queueChanged"]);
    let told: Vec<&str> = told.iter().map(|body| body["type"].as_str().unwrap()).collect();
    assert_eq!(told, ["compactionStart", "entryAppended", "compactionEnd"]);
    assert_eq!(session.error("compact", json!({})).kind(), "nothingToCompact");
    assert_eq!(session.error("compact", json!({ "leafId": leaf })).kind(), "leafMoved");
    session.ask("go on");
    assert!(p.server.last().says("THE-SUMMARY") && !p.server.last().says("PROMPT-0-"));
    p.server.assert_valid();
}

/// Whatever is no summary leaves the session as it was, and is told once.
#[test]
fn a_summary_that_is_none() {
    let replies = [
        Reply::text(" "),
        Reply::status(400, "invalid_request_error", "no"),
        Reply::sse(
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"half\"},\"finish_reason\":\"length\"}]}\n\n",
        ),
        Reply::text(&"much too long ".repeat(10_000)),
    ];
    let count = replies.len();
    let mut replies = replies.into_iter();
    let p = place(move |_| replies.next().unwrap_or_else(|| Reply::text("at last")));
    let mut session = p.session();
    fill(&mut session, 8);
    let (file, leaf) = (std::fs::read(session.path()).unwrap(), session.leaf());
    session.subscribe();
    for n in 1..=count {
        let seen = session.client.events().len();
        let error = session.error("compact", json!({}));
        assert_eq!(error.kind(), "compactionFailed", "{n}: {}", error.message());
        let end = session.client.until_after(seen, |e| e.kind() == "compactionEnd").body;
        assert!(end["error"]["message"].is_string() && end.get("entryId").is_none(), "{end}");
        assert!(std::fs::read(session.path()).unwrap() == file && session.leaf() == leaf);
    }
    assert_eq!(of_kind(&session, &["compactionEnd"]).len(), count);
    assert_eq!(session.call("compact", json!({}))["summary"], "at last");
}

#[test]
fn an_abort_and_a_kill_leave_it_as_it_was() {
    let gate = Gate::new();
    let held = gate.clone();
    let mut p = place(move |_| Reply::held("half a", &held, " summary"));
    let mut session = p.session();
    fill(&mut session, 8);
    let (path, leaf) = (session.path(), session.leaf());
    let file = std::fs::read(&path).unwrap();
    let call = session.send("compact", json!({}));
    gate.reached();
    let mut other = Session::attach(&p.daemon, &session.id);
    assert_eq!(other.state()["status"], "compacting");
    for (method, params) in
        [("compact", json!({})), ("navigateTree", json!({ "entryId": null })), ("continueRun", json!({}))]
    {
        assert_eq!(other.error(method, params).kind(), "sessionBusy", "{method}");
    }
    assert_eq!(other.call("abort", json!({}))["aborted"], true);
    assert_eq!(session.client.reply(call).unwrap_err().kind(), "aborted");
    assert!(std::fs::read(&path).unwrap() == file);
    let before = p.server.requests().len();
    session.send("compact", json!({}));
    p.server.until_requests(before + 1);
    p.daemon.kill9();
    gate.open();
    p.daemon.start();
    let mut session = Session::attach(&p.daemon, &session.id);
    assert_eq!((session.leaf(), session.state()["interrupted"].clone()), (leaf, json!(false)));
    assert!(std::fs::read(&path).unwrap() == file);
}

/// Before a request that would not fit, also between the turns of one run.
#[test]
fn by_itself() {
    let p = place(|_| Reply::text("EARLIER"));
    for n in 0..12 {
        std::fs::write(p.work_dir.path().join(format!("f{n}.txt")), format!("content of {n}\n").repeat(500)).unwrap();
    }
    let mut turn = 0..12;
    p.server.otherwise(move |request| match is_summary(request) {
        true => Reply::text("EARLIER"),
        false => turn.next().map_or(Reply::text("read"), |n| {
            Reply::call(&format!("c{n}"), "read", json!({ "path": format!("f{n}.txt") }))
        }),
    });
    let mut session = p.session();
    session.subscribe();
    session.ask("READ THEM ALL");
    let told = of_kind(&session, &["compactionStart", "compactionEnd"]);
    assert!(!told.is_empty() && told[0]["reason"] == "threshold" && told[1]["entryId"].is_string(), "{told:?}");
    for request in turns(&p) {
        assert!(request.raw.len() < 4 * 17_000, "{}", request.raw.len());
        let count = request.texts().iter().filter(|text| text.contains("READ THEM ALL")).count();
        assert_eq!(count, 1, "the prompt is always there, once");
    }
    let (told, last) = (summaries(&p), p.server.last());
    for n in 0..12 {
        let mark = format!("content of {n}\n");
        assert!(last.says(&mark) || told.iter().any(|request| request.says(&mark)), "{n} fell out");
    }
    let branch = session.branch();
    let newest = branch.iter().rfind(|e| e["type"] == "compaction").unwrap();
    assert!(newest["details"]["readFiles"].to_string().contains("f0.txt"), "{newest}");
    // Whole prompts later, the same.
    for n in 0..40 {
        session.ask(&long(&format!("LATER-{n}-")));
    }
    assert!((2..8).contains(&summaries(&p).len()), "{}", summaries(&p).len());
    assert!(summaries(&p).last().unwrap().says("EARLIER"), "the earlier summary is carried on");
    p.server.assert_valid();
}

/// A provider that says the request is too long, in any of their words: compaction, and one more try.
#[test]
fn after_an_overflow() {
    let p = place(|_| Reply::text("SUM"));
    let error = |status: u16, body: Value| Reply::body(status, "application/json", body.to_string());
    let says = |words: &str| error(400, json!({ "error": { "message": words } }));
    for (reply, overflow) in [
        (says("prompt is too long: 256468 tokens > 256000"), true),
        (says("Prompt has 5,958,968 tokens, but the configured context size is 256,000 tokens"), true),
        (error(400, json!({ "code": "context_length_exceeded" })), true),
        (says("the request exceeds the available context size"), true),
        (Reply::body(413, "text/plain", ""), true),
        (Reply::text("cut silently").usage(21_000, 5), true),
        (says("Invalid max_tokens: must be between 1 and 4096"), false),
        (says("URL is too long"), false),
        (error(429, json!({ "error": { "message": "too many tokens per minute" } })), false),
    ] {
        let mut session = p.session();
        fill(&mut session, 6);
        session.subscribe();
        let (asked, told) = (turns(&p).len(), summaries(&p).len());
        p.server.script([reply.clone()]);
        let ended = session.run("and now?");
        let reasons: Vec<Value> = of_kind(&session, &["compactionStart"]).iter().map(|e| e["reason"].clone()).collect();
        assert_eq!(reasons, vec![json!("overflow"); usize::from(overflow)], "{reply:?}");
        assert_eq!(summaries(&p).len() - told, usize::from(overflow), "{reply:?}");
        if overflow {
            assert_eq!((&ended["stopReason"], turns(&p).len() - asked), (&json!("done"), 2), "{reply:?}");
            assert!(!session.context().contains("cut silently"));
        }
    }
}

/// What cannot be made to fit is told once, and does not loop.
#[test]
fn it_pauses_instead_of_looping() {
    let p = place(|_| Reply::text(""));
    let mut session = p.session();
    session.subscribe();
    fill(&mut session, 30);
    assert!(summaries(&p).len() < 6, "{}", summaries(&p).len());
    let paused: Vec<Value> =
        of_kind(&session, &["warning"]).into_iter().filter(|w| w["kind"] == "compactionPaused").collect();
    assert_eq!(paused.len(), 1, "{paused:?}");
    assert_eq!(of_kind(&session, &["compactionEnd"]).len(), summaries(&p).len());

    let p = place(|_| Reply::text("small"));
    let mut session = p.session();
    fill(&mut session, 6);
    let before = p.server.requests().len();
    p.server.script((0..9).map(|_| Reply::status(400, "invalid_request_error", "prompt is too long: 9 tokens > 8")));
    // Those were for the summariser too.
    let ended = session.run("never fits");
    assert_eq!((&ended["stopReason"], &ended["error"]["kind"]), (&json!("error"), &json!("contextOverflow")));
    assert!(p.server.requests().len() - before < 10);
    p.server.clear();
    assert_eq!(session.state()["status"], "idle");
    session.ask("usable all the same");
    // A prompt that is too large goes with the next one.
    let mut session = p.session();
    session.run(&"word ".repeat(20_000));
    session.ask("small again");
    session.ask("and again");
    assert!(p.server.last().raw.len() < 40_000);
    p.server.assert_valid();
}

/// Prompts, steers and follow-ups during a compaction run afterwards, each once, in order.
#[test]
fn what_is_said_meanwhile() {
    for (kinds, said) in [
        (&["prompt", "prompt", "followUp"][..], &["0", "1", "2"][..]),
        (&["followUp", "steer", "prompt"], &["0", "1", "2"]),
        (&["steer", "followUp", "steer"], &["0", "2", "1"]),
    ] {
        let gate = Gate::new();
        let held = gate.clone();
        let p = place(move |_| Reply::held("SUM", &held, "MARY"));
        let mut session = p.session();
        fill(&mut session, 8);
        let call = session.send("compact", json!({}));
        gate.reached();
        let mut other = Session::attach(&p.daemon, &session.id);
        let mut runs = vec![];
        for (n, kind) in kinds.iter().enumerate() {
            let result = other.call(kind, json!({ "text": n.to_string() }));
            assert_eq!((&result["queued"], result.get("entryId")), (&json!(true), None), "{result}");
            runs.push(text(&result["runId"]));
        }
        assert_eq!(other.error("prompt", json!({ "text": " " })).code(), -32602);
        let wrong = json!({ "text": "x", "provider": "fake", "modelId": "none" });
        assert_eq!(other.error("prompt", wrong).kind(), "modelNotFound");
        gate.open();
        session.client.reply(call).unwrap();
        other.call("waitRun", json!({ "runId": runs[0] }));
        let prompts: Vec<String> = other.prompts().into_iter().rev().map(|(_, text)| text).skip(8).collect();
        assert_eq!(prompts, said, "{kinds:?}");
        assert_eq!(other.state()["queue"], json!({ "steer": [], "followUp": [] }));
        let branch = other.branch();
        assert_eq!(branch.iter().rfind(|e| e["type"] == "compaction").unwrap()["summary"], "SUMMARY");
        p.server.assert_valid();
    }
}

/// The branch trace with a summary of what was left.
#[test]
fn a_path_that_was_left_tells_its_story() {
    let p = place(|_| Reply::text("THE-STORY"));
    let mut session = p.session();
    for prompt in ["one", "two", "three"] {
        session.ask(prompt);
    }
    let ids = session.branch_ids();
    let [reply_1, prompt_2, left] = [&ids[ids.len() - 5], &ids[ids.len() - 4], &ids[ids.len() - 1]];
    let moved = session.call("navigateTree", json!({ "entryId": prompt_2, "summarize": true, "label": "left" }));
    assert_eq!((&moved["editorText"], &moved["fromId"]), (&json!("two"), &json!(left)));
    assert_eq!(moved["leafId"], moved["summaryEntryId"]);
    let branch = session.branch();
    let entry = branch.last().unwrap();
    assert_eq!((&entry["type"], &entry["parentId"]), (&json!("branch_summary"), &json!(reply_1)));
    assert_eq!((&entry["fromId"], &entry["id"]), (&json!(left), &moved["leafId"]));
    assert_eq!(session.labels().into_iter().collect::<Vec<_>>(), [(text(&entry["id"]), "left".to_owned())]);
    assert!(fixtures::records(&session.path()).iter().all(|record| record["type"] != "leaf"));
    let told = &summaries(&p)[0];
    assert!(told.says("two") && told.says("three") && !told.says("[User]\none"));
    session.ask("two, otherwise");
    let sent = p.server.last();
    assert!(sent.says("THE-STORY") && sent.says("one") && !sent.says("three"));
    assert_eq!(session.children(reply_1), [prompt_2.clone(), text(&entry["id"])]);
    // The leaf, downwards, and where there are only settings: nothing to summarise, nothing is written of it.
    let leaf = session.leaf();
    session.call("navigateTree", json!({ "entryId": leaf, "summarize": true }));
    session.call("navigateTree", json!({ "entryId": reply_1 }));
    session.call("navigateTree", json!({ "entryId": leaf, "summarize": true }));
    session.call("setOption", json!({ "optionId": "reasoning-effort", "value": "off" }));
    let moved = session.call("navigateTree", json!({ "entryId": leaf, "summarize": true }));
    assert_eq!((&moved["leafId"], moved.get("summaryEntryId")), (&json!(leaf), None));
    assert_eq!(summaries(&p).len(), 1);
    p.server.assert_valid();
}

#[test]
fn a_branch_summary_that_fails_or_is_aborted_moves_nothing() {
    let gate = Gate::new();
    let held = gate.clone();
    let mut first = true;
    let p = place(move |_| match std::mem::take(&mut first) {
        true => Reply::text(" "),
        false => Reply::held("half", &held, ""),
    });
    let mut session = p.session();
    session.ask("one");
    session.ask("two");
    let ids = session.branch_ids();
    let params = json!({ "entryId": ids[ids.len() - 3], "summarize": true, "label": "never" });
    let file = std::fs::read(session.path()).unwrap();
    assert_eq!(session.error("navigateTree", params.clone()).kind(), "compactionFailed");
    let call = session.send("navigateTree", params);
    gate.reached();
    let mut other = Session::attach(&p.daemon, &session.id);
    assert_eq!(other.state()["status"], "summarizing");
    other.call("abort", json!({}));
    assert_eq!(session.client.reply(call).unwrap_err().kind(), "aborted");
    assert_eq!(std::fs::read(session.path()).unwrap(), file);
    assert_eq!(session.leaf().as_ref(), ids.last());
    gate.open();
}

/// Before a compaction there is no summary, after it there is; navigating back brings all back.
#[test]
fn forks_and_moves_across_a_compaction() {
    let p = place(|_| Reply::text("THE-SUMMARY"));
    let mut session = p.session();
    fill(&mut session, 8);
    let whole = session.context();
    let made = session.call("compact", json!({}));
    session.ask("after it");
    let short = session.context();
    let prompts = session.prompts();
    let early = &prompts[6].0;
    let (mut fork, _) = session.forked(&p.daemon, "rewind", json!({ "entryId": early }));
    assert!(!fork.context().contains("THE-SUMMARY") && fork.context().contains("PROMPT-1-"));
    let (mut fork, _) = session.forked(&p.daemon, "rewind", json!({}));
    assert!(fork.context().contains("THE-SUMMARY") && !fork.context().contains("PROMPT-1-"));
    let before = json!({ "entryId": made["entryId"], "position": "before" });
    let (mut fork, _) = session.forked(&p.daemon, "fork", before);
    assert_eq!(fork.context(), whole);
    let moved = session.call("navigateTree", json!({ "entryId": early }));
    assert!(!session.context().contains("THE-SUMMARY"));
    session.ask("elsewhere");
    assert!(!p.server.last().says("THE-SUMMARY"));
    session.call("navigateTree", json!({ "entryId": moved["fromId"] }));
    assert_eq!(session.context(), short);
    p.server.assert_valid();
}

/// Twenty compactions by themselves; a fact from every tenth turn is still known.
#[test]
fn facts_survive_twenty_compactions() {
    let facts = |text: &str| -> Vec<String> {
        text.split(|c: char| !c.is_ascii_alphanumeric() && c != '=')
            .filter(|w| w.starts_with("FACT"))
            .map(str::to_owned)
            .collect()
    };
    let server = ModelServer::start();
    server.otherwise(move |request| {
        let mut known: Vec<String> = request.texts().iter().flat_map(|text| facts(text)).collect();
        known.sort();
        known.dedup();
        let question = request.texts().pop().unwrap_or_default();
        match question.strip_prefix("what is ") {
            _ if is_summary(request) => Reply::text(&format!("Known: {}", known.join(" "))),
            Some(fact) => Reply::text(known.iter().find(|f| f.starts_with(&format!("{fact}="))).map_or("?", |f| f)),
            None => Reply::text(&"noted ".repeat(300)),
        }
    });
    let config = server.config(12_000) + "\n[compaction]\nreserveTokens = 4000\nkeepRecentTokens = 1000\n";
    let daemon = Setup::new().persisted().config(config).start();
    let mut session = Session::create(&daemon, fixtures::work_dir().path());
    let count = || server.requests().iter().filter(|r| is_summary(r)).count();
    let mut turn = 0;
    while count() < 20 {
        turn += 1;
        let fact = if turn % 10 == 0 { format!("FACT{turn}=v{} ", turn * 7) } else { String::new() };
        session.ask(&format!("{fact}{}", "word ".repeat(700)));
        assert!(turn < 400, "{} compactions in {turn} turns", count());
    }
    assert!(turn > 20);
    for fact in (10..=turn).step_by(10) {
        let answer = session.ask(&format!("what is FACT{fact}"));
        assert_eq!(answer["text"], format!("FACT{fact}=v{}", fact * 7));
    }
    server.assert_valid();
}
