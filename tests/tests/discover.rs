//! `rpc.discover` tells the truth: every example request is sent to a real daemon as it stands, and what comes back,
//! replies and events, is what the schemas say and has what the examples show.

use std::collections::{BTreeMap, BTreeSet};

use kli_tests::model::{End, Step};
use kli_tests::schema::Schemas;
use kli_tests::{Client, Daemon, Event, Gate, ModelServer, PATIENCE, Reply, Setup, fixtures, poll, text};
use serde_json::{Value, json};

/// The session of the examples, and its entries.
const SESSION: &str = "0197f3a2-6f10-7c31-9d5e-3b1f7a2c9e04";
const FIRST_PROMPT: &str = "5c0ffee2";
const LEAF: &str = "8e2f1a3b";

/// Maps from any name: what is in them differs from case to case.
const OPEN: [&str; 8] = ["arguments", "capabilities", "data", "details", "limits", "methods", "options", "parameters"];

struct Story {
    server: ModelServer,
    daemon: Daemon,
    work_dir: tempfile::TempDir,
    document: Value,
    client: Client,
    /// Comes when a run is going on.
    late: Client,
    told: BTreeSet<String>,
    faults: BTreeSet<String>,
}

impl Story {
    fn begin() -> Story {
        let server = ModelServer::start();
        let config =
            server.config(200_000).replace("fake", "local").replace("\"m1\"", "\"qwen3\"").replace("/m1", "/qwen3");
        let config = format!("{config}[compaction]\nkeepRecentTokens = 10\n");
        let mut daemon = Setup::new().persisted().config(config).prepare();
        let work_dir = fixtures::work_dir();
        std::fs::write(work_dir.path().join("Cargo.toml"), "[workspace]\n").unwrap();
        let mut file = fixtures::SessionFile::new(SESSION, work_dir.path());
        file.user(FIRST_PROMPT, None, "Fix the build")
            .assistant("7d1e0f2a", Some(FIRST_PROMPT), "The build is fixed.")
            .user("3ab5c7d9", Some("7d1e0f2a"), "And the tests?")
            .assistant(LEAF, Some("3ab5c7d9"), "They pass.");
        let directory = daemon.session_dir.clone().unwrap();
        file.write(&directory.join("x.jsonl"));
        std::fs::write(directory.join("bad.jsonl"), "{}\n").unwrap();
        let mut old = fixtures::SessionFile::new("old", work_dir.path());
        old.user("aaaaaaaa", None, "Fix the build").write(&work_dir.path().join("old.jsonl"));
        let prompts = daemon.home.join("config/kli/prompts");
        std::fs::create_dir_all(&prompts).unwrap();
        let review = "---\ndescription: Reviews the last commit\nargument-hint: \"[commit]\"\n---\nReview $1";
        std::fs::write(prompts.join("review.md"), review).unwrap();
        daemon.start();
        let mut client = daemon.client();
        let document = client.call("rpc.discover", json!({}));
        let late = daemon.client();
        Story { server, daemon, work_dir, document, client, late, told: BTreeSet::new(), faults: BTreeSet::new() }
    }

    fn method(&self, name: &str) -> &Value {
        let methods = self.document["methods"].as_array().unwrap();
        methods.iter().find(|method| method["name"] == name).unwrap_or_else(|| panic!("no method {name}"))
    }

    /// The example's parameters, with the places of this test.
    fn params(&self, method: &str) -> Value {
        let params = self.method(method)["examples"][0]["params"].as_array().unwrap();
        let params: serde_json::Map<String, Value> =
            params.iter().map(|param| (text(&param["name"]), param["value"].clone())).collect();
        let work_dir = self.work_dir.path().to_str().unwrap();
        let here = Value::Object(params).to_string();
        serde_json::from_str(&here.replace("/home/u/proj", work_dir).replace("/home/u", work_dir)).unwrap()
    }

    /// Sends the example as it stands.
    #[track_caller]
    fn ask(&mut self, method: &str) -> Value {
        self.ask_with(method, json!({}))
    }

    /// Sends the example with other values, where they cannot be known beforehand.
    #[track_caller]
    fn ask_with(&mut self, method: &str, others: Value) -> Value {
        let id = self.send_with(method, others);
        self.reply(method, id)
    }

    fn send_with(&mut self, method: &str, others: Value) -> u64 {
        let mut params = self.params(method);
        for (name, value) in others.as_object().unwrap() {
            params[name] = value.clone();
        }
        self.client.send(method, params)
    }

    #[track_caller]
    fn reply(&mut self, method: &str, id: u64) -> Value {
        let result = self.client.reply(id).unwrap_or_else(|error| panic!("{method}: {}", error.0));
        let described = self.method(method).clone();
        let example = &described["examples"][0]["result"]["value"];
        let schema = &described["result"]["schema"];
        let mut faults = Vec::new();
        for (of, value) in [("example", example), ("reply", &result)] {
            let problems = Schemas(&self.document).problems(schema, value);
            faults.extend(problems.into_iter().map(|problem| format!("{method}, {of}: {problem}")));
        }
        compare(method, example, &result, &mut faults);
        self.faults.extend(faults);
        self.told.insert(method.to_owned());
        result
    }

    /// A call that is part of the story and of no example.
    #[track_caller]
    fn quietly(&mut self, method: &str, mut params: Value) -> Value {
        params["sessionId"] = json!(SESSION);
        self.client.call(method, params)
    }

    /// Each kind of event: all that came are as the schema says, one of them has what the example shows.
    fn check_events(&mut self, events: &[Event]) {
        let by_kind = events.iter().fold(BTreeMap::<&str, Vec<&Value>>::new(), |mut all, event| {
            all.entry(event.kind()).or_default().push(&event.body);
            all
        });
        let schema = &self.document["components"]["schemas"]["Event"];
        for described in self.document["x-events"].as_array().unwrap() {
            let (kind, example) = (described["type"].as_str().unwrap(), &described["example"]);
            let problems = Schemas(&self.document).problems(schema, example);
            self.faults.extend(problems.into_iter().map(|problem| format!("{kind}, example: {problem}")));
            // Its own test makes a client lag (`a_reader_that_never_reads`).
            if kind == "lagged" {
                continue;
            }
            let mut closest: Option<Vec<String>> = None;
            for event in by_kind.get(kind).into_iter().flatten() {
                let problems = Schemas(&self.document).problems(schema, event);
                self.faults.extend(problems.into_iter().map(|problem| format!("{kind}: {problem}")));
                let mut faults = Vec::new();
                compare(kind, example, event, &mut faults);
                if closest.as_ref().is_none_or(|closest| faults.len() < closest.len()) {
                    closest = Some(faults);
                }
            }
            self.faults.extend(closest.unwrap_or_else(|| vec![format!("{kind}: no such event came")]));
        }
        let known: BTreeSet<&str> =
            self.document["x-events"].as_array().unwrap().iter().filter_map(|event| event["type"].as_str()).collect();
        self.faults
            .extend(by_kind.keys().filter(|kind| !known.contains(*kind)).map(|kind| format!("{kind} is not told of")));
    }
}

/// What an example shows and the real thing has not, or has otherwise.
fn compare(at: &str, example: &Value, real: &Value, faults: &mut Vec<String>) {
    match (example, real) {
        (Value::Object(example), Value::Object(real)) => {
            for (name, value) in example {
                let at = format!("{at}.{name}");
                match real.get(name) {
                    // The root has none.
                    Some(real) if name == "parentId" && (value.is_null() || real.is_null()) => {}
                    None => faults.push(format!("{at}: the example has it, the daemon has not")),
                    Some(real) if OPEN.contains(&name.as_str()) => {
                        if kind(value) != kind(real) {
                            faults.push(format!("{at}: {value} in the example, {real} in truth"));
                        }
                    }
                    Some(real) => compare(&at, value, real, faults),
                }
            }
        }
        (Value::Array(example), Value::Array(real)) => {
            for value in example {
                let mut closest = vec![format!("{at}: {value} in the example, nothing in truth")];
                for real in real {
                    let mut faults = Vec::new();
                    compare(at, value, real, &mut faults);
                    if faults.len() < closest.len() || faults.is_empty() {
                        closest = faults;
                    }
                }
                faults.append(&mut closest);
            }
        }
        _ if kind(example) == kind(real) => {}
        _ => faults.push(format!("{at}: {example} in the example, {real} in truth")),
    }
}

fn kind(value: &Value) -> u8 {
    match value {
        Value::Null => 0,
        Value::Bool(_) => 1,
        Value::Number(_) => 2,
        Value::String(_) => 3,
        Value::Array(_) => 4,
        Value::Object(_) => 5,
    }
}

#[test]
fn every_example_is_true() {
    let mut story = Story::begin();
    let mut all = story.daemon.client();
    all.call("subscribe", json!({}));

    for method in ["ping", "initialize", "rpc.discover", "getStatus", "listModels", "listCommands", "trustWorkDir"] {
        story.ask(method);
    }
    let new = text(&story.ask("createSession")["sessionId"]);
    story.ask("openSession");
    story.ask("continueSession");
    // The first two subscriptions of this connection: what the examples end are these.
    assert_eq!(story.ask("subscribe"), 1);
    assert_eq!(story.ask("registerTools"), 2);

    story.quietly("setLabel", json!({ "entryId": FIRST_PROMPT, "label": "begin" }));
    story.ask("setLabel");
    for method in ["getTree", "getEntries", "getBranch", "getForkMessages", "search", "listSessions"] {
        story.ask(method);
    }
    for method in ["fork", "clone", "rewind", "getForest", "navigateTree"] {
        story.ask(method);
    }
    story.quietly("navigateTree", json!({ "entryId": LEAF }));

    a_run_with_tools(&mut story);
    a_run_that_is_steered_and_aborted(&mut story);

    story.ask("setMode");
    for method in
        ["setModel", "setOption", "bash", "appendEntry", "setSessionName", "getSession", "getContext", "exportSession"]
    {
        story.ask(method);
    }
    jobs(&mut story);
    story.server.script([Reply::text("The build was fixed.")]);
    story.ask("compact");
    another_program_appends(&mut story);
    story.ask("importSession");
    story.ask("archiveSession");
    for method in ["unsubscribe", "unregisterTools", "deleteSession"] {
        story.ask(method);
    }
    all.until(|event| event.kind() == "sessionDeleted");
    let seen = [story.client.events(), story.late.events(), all.events()];
    let events: Vec<Event> = seen.into_iter().flatten().collect();
    story.check_events(&events.into_iter().filter(|event| event.method == "sessionEvent").collect::<Vec<_>>());

    let config = story.daemon.config.clone().unwrap();
    let other = std::fs::read_to_string(&config).unwrap().replace("local/qwen3", "local/m2");
    std::fs::write(config, other).unwrap();
    story.ask("reloadConfig");
    story.client.call("deleteSession", json!({ "sessionId": new }));
    story.ask("shutdown");
    assert!(story.daemon.exited().success());

    assert!(story.faults.is_empty(), "{:#?}", story.faults);
    let methods = story.document["methods"].as_array().unwrap().iter().map(|method| text(&method["name"]));
    let untold: Vec<String> = methods.filter(|name| !story.told.contains(name)).collect();
    assert!(untold.is_empty(), "{untold:?}");
}

/// The prompt of the example: the model is busy at first, then wants a command, a file and a tool of the client's.
fn a_run_with_tools(story: &mut Story) {
    let call = |id: &str, name: &str, arguments: Value| Step::Call(id.into(), name.into(), arguments.to_string());
    story.server.script([
        Reply::status(503, "overloaded_error", "busy"),
        Reply::steps([
            Step::Thinking("Let me see".into()),
            Step::Text("I look.".into()),
            call("call_1", "bash", json!({ "command": "touch built; echo Compiling" })),
            call(
                "call_2",
                "edit",
                json!({ "path": "Cargo.toml", "edits": [{ "oldText": "[workspace]", "newText": "[workspace] " }] }),
            ),
            call("call_3", "diagnostics", json!({ "path": "Cargo.toml" })),
            Step::End(End::Calls),
        ]),
        Reply::text("The build is fixed."),
    ]);
    story.quietly("setMode", json!({ "mode": "ask" }));
    let waiting = story.send_with("prompt", json!({}));
    for decided in 0..2 {
        let seen = |event: &Event| event.kind() == "approvalRequested";
        assert!(poll(PATIENCE, || story.client.events().iter().filter(|event| seen(event)).count() > decided));
        let asked = story.client.events().into_iter().filter(seen).nth(decided).unwrap();
        story.ask_with("respondToApproval", json!({ "approvalId": asked.body["approval"]["approvalId"] }));
    }
    let call = story.client.until(|event| event.method == "toolCall").body;
    let schema = story.document["components"]["schemas"]["ClientToolCall"].clone();
    story.faults.extend(Schemas(&story.document).problems(&schema, &call));
    story.ask_with("submitToolResult", json!({ "callId": call["callId"] }));
    story.reply("prompt", waiting);
    story.ask("waitRun");
    story.ask("getStats");
    // And one that fails.
    story.server.script([Reply::status(401, "authentication_error", "no such key")]);
    story.quietly("prompt", json!({ "text": "again", "wait": true }));
}

fn a_run_that_is_steered_and_aborted(story: &mut Story) {
    let gate = Gate::new();
    story.server.script([Reply::held("first half, ", &gate, "second half"), Reply::text("done")]);
    let seen = story.client.events().len();
    story.quietly("prompt", json!({ "text": "slowly" }));
    gate.reached();
    story.client.until_after(seen, |event| event.kind() == "textDelta");
    story.late.call("subscribe", json!({ "sessionId": SESSION }));
    story.late.until_kind("snapshot");
    story.ask("followUp");
    story.ask("clearQueue");
    story.ask("steer");
    story.ask("abort");
    gate.open();
    story.quietly("waitRun", json!({}));
    story.ask("continueRun");
    story.quietly("waitRun", json!({}));
}

fn jobs(story: &mut Story) {
    let command = json!({ "command": "echo Compiling; sleep 600", "background": true });
    story.server.script([Reply::call("call_4", "bash", command), Reply::text("It runs.")]);
    story.quietly("prompt", json!({ "text": "watch", "wait": true }));
    let printed = || json!({ "sessionId": SESSION });
    let mut other = story.daemon.client();
    assert!(poll(PATIENCE, || other.call("listJobs", printed())["jobs"][0]["output"] != ""));
    let jobs = story.ask("listJobs");
    story.ask_with("killJob", json!({ "jobId": jobs["jobs"][0]["jobId"] }));
}

/// Which is told as a warning when the session goes on.
fn another_program_appends(story: &mut Story) {
    use std::io::Write;
    let path = text(&story.quietly("getSession", json!({}))["path"]);
    let leaf = story.quietly("getSession", json!({}))["leafId"].clone();
    let message = json!({ "role": "user", "content": "from elsewhere", "timestamp": 0 });
    let line = json!({ "type": "message", "id": "eeeeeeee", "parentId": leaf, "timestamp": "2026-01-02T03:04:05.000Z", "message": message });
    let mut file = std::fs::File::options().append(true).open(path).unwrap();
    writeln!(file, "{line}").unwrap();
    story.quietly("setSessionName", json!({ "name": "Build" }));
}
