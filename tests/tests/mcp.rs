//! MCP servers that a client gives to a session. The servers are real programs, see `src/bin/mcp-server.rs`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kli_tests::{Place, Reply, Session, poll};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(20);

/// A server with these tools, and where it notes what it gets.
fn server(place: &Path, label: &str, tools: &[&str], more: &[&str]) -> (Value, PathBuf) {
    let log = place.join(format!("{label}.log"));
    let mut args = vec!["--label".to_owned(), label.to_owned(), "--log".into(), log.display().to_string()];
    args.extend(tools.iter().flat_map(|tool| ["--tool".to_owned(), (*tool).to_owned()]));
    args.extend(more.iter().map(|arg| (*arg).to_owned()));
    (json!({ "command": env!("CARGO_BIN_EXE_mcp-server"), "args": args }), log)
}

fn noted(log: &Path) -> String {
    std::fs::read_to_string(log).unwrap_or_default()
}

fn until_noted(log: &Path, text: &str) {
    assert!(poll(PATIENCE, || noted(log).contains(text)), "{text}: {}", noted(log));
}

fn pid(log: &Path) -> i32 {
    until_noted(log, "pid ");
    noted(log).lines().find_map(|line| line.strip_prefix("pid ")).unwrap().parse().unwrap()
}

fn is_gone(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.is_empty() || stat.contains(") Z")
}

/// The names that the last request offered, those of servers alone.
fn offered(p: &Place) -> Vec<String> {
    let request = p.server.last();
    let tools = request.body["tools"].as_array().cloned().unwrap_or_default();
    let name = |tool: &Value| tool.get("function").unwrap_or(tool)["name"].as_str().unwrap().to_owned();
    tools.iter().map(name).filter(|name| name.starts_with("mcp__")).collect()
}

fn session(p: &Place, servers: Value) -> Session {
    p.session_with(json!({ "mode": "auto", "mcpServers": { "mcpServers": servers } }))
}

#[test]
fn tools_of_servers_are_called_where_they_are() {
    let call = |id: &str, tool: &str, text: &str| Reply::call(id, tool, json!({ "text": text }));
    let p = Place::with([
        call("c1", "mcp__one__run", "a"),
        call("c2", "mcp__two__run", "b"),
        call("c3", "mcp__one__fail", "c"),
        call("c4", "mcp__one__long", "d"),
        call("c5", "mcp__one__env", "e"),
        call("c6", "mcp__one__more", "f"),
        Reply::text("done"),
        Reply::text("again"),
    ]);
    let dir = p.work_dir.path();
    let (mut one, log) = server(dir, "one", &["run", "bash", "a.b", "a_b", "fail", "long", "env", "more"], &[]);
    one["env"] = json!({ "MCP_TEST": "${MCP_VALUE}" });
    let (two, _) = server(dir, "two", &["run"], &[]);
    let mut session = p.session_with(json!({
        "mode": "auto", "env": { "MCP_VALUE": "v" }, "mcpServers": { "one": one, "two": two },
    }));
    session.ask("go");
    let names = offered(&p);
    assert_eq!(names.iter().filter(|name| *name != "mcp__one__added").count(), 9, "{names:?}");
    assert_eq!(names.iter().filter(|name| name.starts_with("mcp__one__a_b")).count(), 2, "{names:?}");
    let last = p.server.last();
    for text in ["one did run with {\\\"text\\\":\\\"a\\\"}", "two did run with", "it went wrong", "bytes …]"] {
        assert!(last.body.to_string().contains(text), "{text}: {:?}", last.texts());
    }
    assert!(last.says(&format!("Ok(\"v\") {}", dir.canonicalize().unwrap().display())), "{:?}", last.texts());
    assert!(last.body.to_string().len() < 200_000, "a long answer is cut");
    // A client cannot take a name.
    let tools = json!([{ "name": "mcp__one__run", "description": "", "parameters": { "type": "object" } }]);
    assert_eq!(session.error("registerTools", json!({ "tools": tools })).code(), -32602);
    // What came later is offered later.
    let context = |session: &mut Session| session.call("getContext", json!({}))["tools"].to_string();
    assert!(poll(PATIENCE, || context(&mut session).contains("\"mcp__one__added\"")));
    // Given again they replace.
    session.call("openSession", json!({ "mcpServers": {} }));
    session.ask("once more");
    assert_eq!(offered(&p), [""; 0]);
    let one = pid(&log);
    assert!(poll(PATIENCE, || is_gone(one)));
    p.server.assert_valid();
}

#[test]
fn a_tool_that_is_no_reader_needs_approval() {
    let p = Place::with([
        Reply::call("c1", "mcp__s__look", json!({})),
        Reply::call("c2", "mcp__s__run", json!({})),
        Reply::text("done"),
    ]);
    let (s, _) = server(p.work_dir.path(), "s", &["look", "run"], &[]);
    let mut session = p.session_with(json!({ "mode": "ask", "mcpServers": { "s": s } }));
    session.subscribe();
    session.call("prompt", json!({ "text": "go" }));
    let asked = session.client.until_kind("approvalRequested").body["approval"].clone();
    assert_eq!((&asked["toolCallId"], &asked["title"]), (&json!("c2"), &json!("s run")));
    session.call("respondToApproval", json!({ "approvalId": asked["approvalId"], "decision": "allow" }));
    session.wait();
    assert!(p.server.last().says("s did run with {}"));
    p.server.assert_valid();
}

/// F188: the session can be used at once; the tools come when the server does.
#[test]
fn a_slow_server_holds_nobody_up() {
    let p = Place::with([Reply::text("one"), Reply::text("two")]);
    let gate = p.work_dir.path().join("gate");
    let (slow, log) = server(p.work_dir.path(), "slow", &["run"], &["--gate", gate.to_str().unwrap()]);
    let silent = json!({ "command": "sleep", "args": ["600"] });
    let mut session = session(&p, json!({ "slow": slow, "silent": silent }));
    session.subscribe();
    session.ask("at once");
    assert_eq!(offered(&p), [""; 0]);
    std::fs::write(&gate, "").unwrap();
    until_noted(&log, "tools/list");
    let has_tools = |session: &mut Session| {
        let context = session.call("getContext", json!({}));
        context["tools"].to_string().contains("mcp__slow__run")
    };
    assert!(poll(PATIENCE, || has_tools(&mut session)));
    session.ask("later");
    assert_eq!(offered(&p), ["mcp__slow__run"]);
    // The silent one is told of.
    let warning = session.client.until(|e| e.kind() == "warning");
    assert!(warning.body["message"].as_str().unwrap().contains("silent is not available"), "{:?}", warning.body);
    let warnings = session.state()["warnings"].to_string();
    assert!(warnings.contains("\"mcpServer\""), "{warnings}");
}

#[test]
fn a_server_that_cannot_be_had_is_told_of() {
    let p = Place::with([Reply::text("done")]);
    let servers = json!({
        "missing": { "command": "no-such-program-here" },
        "ends": { "command": "sh", "args": ["-c", "echo no licence >&2; exit 7"] },
        "unset": { "command": "true", "args": ["${NOT_SET_AT_ALL}"] },
        "closed": { "type": "http", "url": "http://127.0.0.1:9/mcp" },
    });
    let mut session = session(&p, servers);
    session.ask("go");
    let warnings = |session: &mut Session| session.state()["warnings"].to_string();
    assert!(poll(PATIENCE, || warnings(&mut session).matches("Its tools are left out").count() == 4));
    let warnings = warnings(&mut session);
    for text in [
        "no-such-program-here cannot be started",
        "exit code 7, saying: no licence",
        "NOT_SET_AT_ALL is not set",
        "closed",
    ] {
        assert!(warnings.contains(text), "{text}: {warnings}");
    }
    for wrong in [json!([]), json!({ "s": {} }), json!({ "s": { "type": "sse", "url": "http://h" } })] {
        let error = session.error("openSession", json!({ "mcpServers": wrong }));
        assert!(error.code() == -32602 && error.message().contains("mcpServers"), "{}", error.message());
    }
}

/// Whatever a server answers, the call ends, and the conversation is one that providers take.
#[test]
fn odd_answers_end_the_call() {
    let tools = ["image", "odd", "huge", "none", "broken", "wrong", "run"];
    let calls =
        tools.iter().enumerate().map(|(n, tool)| Reply::call(&format!("c{n}"), &format!("mcp__s__{tool}"), json!({})));
    let p = Place::with(calls.chain([Reply::text("done")]));
    let (s, _) = server(p.work_dir.path(), "s", &tools, &[]);
    let mut session = session(&p, json!({ "s": s }));
    session.ask("go");
    assert_eq!(p.server.requests().len(), tools.len() + 1);
    let last = p.server.last();
    for text in ["a picture", "after", "more than 16 MiB", "its data is damaged", "s did run"] {
        assert!(last.says(text), "{text}: {:?}", last.texts());
    }
    p.server.assert_valid();
}

/// F190: an abort ends a call at once and reaches the server.
#[test]
fn a_call_that_never_answers_is_aborted() {
    let p = Place::with([Reply::call("c1", "mcp__s__hang", json!({})), Reply::text("goes on")]);
    let (s, log) = server(p.work_dir.path(), "s", &["hang"], &[]);
    let mut session = session(&p, json!({ "s": s }));
    session.call("prompt", json!({ "text": "go" }));
    until_noted(&log, "tools/call");
    session.call("abort", json!({}));
    session.wait();
    until_noted(&log, "notifications/cancelled");
    session.ask("next");
    p.server.assert_valid();
}

/// A server that ends is started again, and the call that it took with it is an error.
#[test]
fn a_server_that_ends_comes_back() {
    let run = |id: &str| Reply::call(id, "mcp__s__run", json!({}));
    let p =
        Place::with([Reply::call("c1", "mcp__s__die", json!({})), Reply::text("one"), run("c2"), Reply::text("two")]);
    let (s, log) = server(p.work_dir.path(), "s", &["die", "run"], &[]);
    let mut session = session(&p, json!({ "s": s }));
    session.ask("go");
    assert!(p.server.last().says("ended before it answered"), "{:?}", p.server.last().texts());
    assert!(poll(PATIENCE, || noted(&log).matches("tools/list").count() >= 4));
    assert!(poll(PATIENCE, || session.state().get("warnings").is_none_or(|w| w == &json!([]))));
    session.ask("again");
    assert!(p.server.last().says("s did run"), "{:?}", p.server.last().texts());
    p.server.assert_valid();
}

#[test]
fn a_server_at_an_address_is_called_over_http() {
    let p = Place::with([Reply::call("c1", "mcp__web__run", json!({ "text": "x" })), Reply::text("done")]);
    let (web, log) = server(p.work_dir.path(), "web", &["run", "other"], &["--http"]);
    let args: Vec<&str> = web["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap()).collect();
    let mut program = std::process::Command::new(web["command"].as_str().unwrap()).args(args).spawn().unwrap();
    until_noted(&log, "port ");
    let port = noted(&log).lines().find_map(|line| line.strip_prefix("port ").map(str::to_owned)).unwrap();
    let url = format!("http://127.0.0.1:{port}/mcp");
    let headers = json!({ "Authorization": "Bearer secret" });
    let mut session = session(&p, json!({ "web": { "type": "http", "url": url, "headers": headers } }));
    session.ask("go");
    let (last, names) = (p.server.last(), offered(&p));
    program.kill().unwrap();
    program.wait().unwrap();
    assert!(last.says("web did run with"), "{:?}", last.texts());
    assert_eq!(names, ["mcp__web__run", "mcp__web__other"]);
    assert!(noted(&log).contains("Bearer secret"));
    p.server.assert_valid();
}

/// F193: no server outlives its session or its daemon.
#[test]
fn servers_end_with_their_session_and_with_the_daemon() {
    let mut p = Place::with([Reply::text("one")]);
    let (a, log_a) = server(p.work_dir.path(), "a", &["run"], &["--stubborn"]);
    let (b, log_b) = server(p.work_dir.path(), "b", &["run"], &["--stubborn"]);
    let (c, log_c) = server(p.work_dir.path(), "c", &["run"], &[]);
    let mut deleted = session(&p, json!({ "a": a }));
    let _stays = session(&p, json!({ "b": b }));
    let (a, b) = (pid(&log_a), pid(&log_b));
    deleted.call("deleteSession", json!({}));
    assert!(poll(PATIENCE, || is_gone(a)), "closed with its session");
    assert!(!is_gone(b));
    assert!(p.daemon.terminate().success());
    assert!(is_gone(b), "closed with the daemon");
    assert_eq!(p.daemon.stragglers(), [0; 0]);
    p.daemon.start();
    let _last = session(&p, json!({ "c": c }));
    let c = pid(&log_c);
    until_noted(&log_c, "initialize");
    p.daemon.kill9();
    assert!(poll(PATIENCE, || is_gone(c)), "its input has ended");
}

#[test]
fn kli_gives_a_session_its_servers() {
    let p = Place::with([
        Reply::call("c1", "mcp__s__run", json!({ "text": "x" })),
        Reply::text("one"),
        Reply::call("c2", "mcp__s__run", json!({ "text": "y" })),
        Reply::text("two"),
    ]);
    let dir = p.work_dir.path();
    let (s, _) = server(dir, "s", &["run"], &[]);
    let file = dir.join("servers.json");
    std::fs::write(&file, json!({ "mcpServers": { "s": s } }).to_string()).unwrap();
    let file = file.to_str().unwrap();
    let run = |args: &[&str]| p.daemon.kli(dir, &[&["--mode", "auto", "--mcp-config", file], args].concat());
    assert_eq!(run(&["-p", "go"]).success().stdout.trim(), "one");
    assert!(p.server.last().says("s did run with"));
    // Of one that is there they take the place of those that it has.
    assert_eq!(run(&["--continue", "-p", "again"]).success().stdout.trim(), "two");
    assert!(p.server.last().body.to_string().matches("s did run with").count() == 2);
    for (text, says) in [("{", "no JSON"), ("[]", "mcpServers"), ("{\"s\": {\"command\": 7}}", "invalid type")] {
        std::fs::write(file, text).unwrap();
        let failed = run(&["-p", "go"]);
        assert!(failed.code != Some(0) && failed.stderr.contains(says), "{text}: {}", failed.stderr);
    }
    p.server.assert_valid();
}

/// Servers that others wrote, over both transports; `tests/scripts/mcp-servers` gets them.
#[test]
fn servers_of_others() {
    let Some(bin) = std::env::var_os("KLI_MCP_SERVERS").map(PathBuf::from) else {
        println!("skipped: KLI_MCP_SERVERS does not name where servers are (tests/scripts/mcp-servers does)");
        return;
    };
    let mut p = Place::with([
        Reply::call("c1", "mcp__every__get-sum", json!({ "a": 40, "b": 2 })),
        Reply::call("c2", "mcp__every__get-tiny-image", json!({})),
        Reply::call("c3", "mcp__files__read_text_file", json!({ "path": "hello.txt" })),
        Reply::call("c4", "mcp__web__echo", json!({ "message": "over http" })),
        Reply::text("done"),
    ]);
    let dir = p.work_dir.path();
    std::fs::write(dir.join("hello.txt"), "marker-4711").unwrap();
    let every = bin.join("mcp-server-everything");
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut web = std::process::Command::new(&every)
        .arg("streamableHttp")
        .env("PORT", port.to_string())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    assert!(poll(PATIENCE, || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()));
    let mut session = session(
        &p,
        json!({
            "every": { "command": every },
            "files": { "command": bin.join("mcp-server-filesystem"), "args": [dir] },
            "web": { "url": format!("http://127.0.0.1:{port}/mcp") },
        }),
    );
    let context = |session: &mut Session| session.call("getContext", json!({}))["tools"].to_string();
    let all = ["mcp__every__get-sum", "mcp__files__read_text_file", "mcp__web__echo"];
    let have_come = poll(PATIENCE, || all.iter().all(|name| context(&mut session).contains(name)));
    session.ask("go");
    let last = p.server.last();
    web.kill().unwrap();
    web.wait().unwrap();
    assert!(have_come);
    for text in ["42", "marker-4711", "over http"] {
        assert!(last.says(text), "{text}: {:?}", last.texts());
    }
    assert!(p.daemon.terminate().success());
    assert_eq!(p.daemon.stragglers(), [0; 0]);
    p.server.assert_valid();
}
