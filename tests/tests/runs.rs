//! Runs: prompts, tools, retries, models; and that every request is one a provider takes.

use std::time::Duration;

use kli_tests::model::{End, Step};
use kli_tests::{Place, Reply, Session, Setup, fixtures, text, text_of, timed};
use serde_json::{Value, json};

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

#[test]
fn a_tool_conversation() {
    let p = Place::with([
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
    let p = Place::with([
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
    assert_eq!(session.result_of("a").0.trim(), "slow");
    assert!(session.result_of("b").0.contains('3'));
    let (unknown, is_error) = session.result_of("c");
    assert!(is_error && unknown.contains("no_such_tool"), "{unknown}");
    assert!(!session.result_of("d").0.trim().is_empty(), "no output is said in words");
    assert!(session.result_of("e").1, "missing arguments are an error result");
    p.server.assert_valid();
}

#[test]
fn arguments_that_are_no_object() {
    let call = |id: &str, arguments: &str| Step::Call(id.into(), "bash".into(), arguments.into());
    let p = Place::with([
        Reply::steps([call("a", "{\"command\": \"echo"), call("b", "[1]"), call("c", ""), Step::End(End::Calls)]),
        Reply::text("seen"),
    ]);
    let mut session = p.session();
    session.ask("go");
    for id in ["a", "b", "c"] {
        assert!(session.result_of(id).1, "{id}");
    }
    p.server.assert_valid();
}

/// Some providers begin their call ids anew with each turn.
#[test]
fn call_ids_that_come_again() {
    let again = |n: u8| Reply::call("call_0", "bash", bash(&format!("echo turn-{n}")));
    let p = Place::with([again(1), again(2), again(3), Reply::text("done")]);
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
    let p = Place::with([cut, Reply::text("after"), Reply::steps([Step::End(End::Done)]), Reply::text("still here")]);
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
    let p = Place::with((0..5).map(|n| Reply::call(&format!("c{n}"), "bash", bash("true"))));
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
    let p = Place::with([]);
    let mut session = p.session();
    for blank in ["", "   ", "\n\t "] {
        assert_eq!(session.error("prompt", json!({ "text": blank })).code(), -32602, "{blank:?}");
    }
    assert_eq!((session.branch_ids().len(), p.server.requests().len()), (0, 0));
    for odd in ["a\u{0}\u{1b}b", "a\u{2028}b\u{2029}c\u{85}d", "{\"json\":\"\\\\\"}", &"a".repeat(100 << 10)] {
        session.ask(odd);
        assert!(p.server.last().texts().iter().any(|t| t.contains(odd)), "sent as it is: {:.20}", odd);
        assert_eq!(session.prompts()[0].1, odd);
    }
    p.server.assert_valid();
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
        let p = Place::with(failures.into_iter().chain([Reply::text("Hello")]));
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
        let p = Place::with((0..3).map(|_| Reply::status(status, kind, "the reason in words")));
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

/// Where nothing would be sent, no model is asked.
#[test]
fn nothing_to_continue() {
    let p = Place::with([]);
    let mut session = p.session();
    let refused = |session: &mut Session, what: &str| {
        assert_eq!(session.error("continueRun", json!({})).kind(), "invalidEntry", "{what}");
    };
    refused(&mut session, "an empty session");
    session.call("setSessionName", json!({ "name": "a name" }));
    session.call("setModel", json!({ "provider": "fake", "modelId": "m2" }));
    session.call("appendEntry", json!({ "customType": "x", "data": {} }));
    refused(&mut session, "settings and a name");
    session.call("bash", json!({ "command": "echo secret", "excludeFromContext": true }));
    refused(&mut session, "what the model is not to see");
    assert_eq!(p.server.requests().len(), 0);
    session.call("bash", json!({ "command": "echo seen" }));
    assert_eq!(session.call("continueRun", json!({ "wait": true }))["stopReason"], "done");
    refused(&mut session, "a whole reply");
    p.server.assert_valid();
}

#[test]
fn a_persons_own_command() {
    let p = Place::with([]);
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
    let p = Place::with([]);
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
    let p = Place::with([
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

#[test]
fn pictures_that_no_provider_takes() {
    const DOT: &str =
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    let p = Place::with([]);
    let mut session = p.session();
    for image in [
        json!({}),
        json!({ "data": "", "mimeType": "image/png" }),
        json!({ "data": "bm90IGFuIGltYWdl", "mimeType": "image/png" }),
        json!({ "data": "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4", "mimeType": "image/png" }),
        json!({ "path": "relative.png" }),
        json!({ "path": p.work_dir.path().join("hello.txt") }),
    ] {
        let error = session.error("prompt", json!({ "text": "look", "images": [image] }));
        assert_eq!(error.code(), -32602, "{image}");
    }
    assert_eq!(session.branch_ids().len(), 0, "nothing was stored");
    // What it is counts, not what it is said to be.
    let image = json!({ "data": DOT, "mimeType": "image/jpeg" });
    session.call("prompt", json!({ "text": "look", "images": [image], "wait": true }));
    assert!(p.server.last().body.to_string().contains(&format!("data:image/png;base64,{DOT}")));
    p.server.assert_valid();
}

#[test]
fn variables_of_a_session() {
    let p = Place::with([]);
    let mut session = p.session_with(json!({ "env": { "KLI_TEST_ONE": "1 2" } }));
    let echo = json!({ "command": "echo \"[$KLI_TEST_ONE][$KLI_TEST_TWO]\"" });
    assert_eq!(session.call("bash", echo.clone())["output"], "[1 2][]\n");
    session.call("openSession", json!({ "env": { "KLI_TEST_TWO": "2" } }));
    assert_eq!(session.call("bash", echo)["output"], "[][2]\n", "given again they replace");
    let file = std::fs::read_to_string(session.path()).unwrap();
    assert!(!file.contains("\"KLI_TEST_TWO\":"), "never written");
    for name in ["", "A=B", "A\u{0}"] {
        let params = json!({ "workDir": p.work_dir.path(), "env": { name: "x" } });
        assert_eq!(session.client.error("createSession", params).code(), -32602, "{name:?}");
    }
}

/// `sandbox` holds commands of models and of persons, and a change counts from the next command on.
#[test]
fn commands_in_a_sandbox() {
    if !cfg!(target_os = "linux") {
        eprintln!("skipped: only Linux has the sandbox");
        return;
    }
    let p = Place::with([]);
    let config = |sandbox: &str| format!("sandbox = \"{sandbox}\"\n{}", p.server.config(200_000));
    let daemon = Setup::new().config(config("workspace-write")).start();
    let mut session = Session::create(&daemon, p.work_dir.path());
    let try_in = |session: &mut Session, name: &str| {
        let result = session.call("bash", json!({ "command": format!("echo x > {name}; echo x > {name}") }));
        let output = text(&result["output"]);
        match output.contains("is not possible") {
            true => None,
            false => Some(p.work_dir.path().join(name).exists()),
        }
    };
    let Some(written) = try_in(&mut session, "inside") else {
        eprintln!("skipped: this kernel has no sandbox");
        return;
    };
    assert!(written);
    for (sandbox, may) in [("read-only", false), ("off", true)] {
        std::fs::write(daemon.config.as_ref().unwrap(), config(sandbox)).unwrap();
        let changed = session.client.call("reloadConfig", json!({}));
        assert_eq!(changed["changed"], json!(["sandbox"]));
        p.server.script([Reply::call("c1", "bash", bash(&format!("echo x > model-{sandbox}")))]);
        session.ask("go");
        assert_eq!(p.work_dir.path().join(format!("model-{sandbox}")).exists(), may, "{sandbox}");
        assert_eq!(try_in(&mut session, &format!("person-{sandbox}")), Some(may), "{sandbox}");
    }
}
