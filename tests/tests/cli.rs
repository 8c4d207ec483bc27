//! `kli` as scripts and people use it.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;

use kli_tests::{Gate, ModelServer, Place, Reply, Session, Setup, fixtures, poll, text};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

#[track_caller]
fn kli(p: &Place, args: &[&str]) -> kli_tests::Finished {
    p.daemon.kli(p.work_dir.path(), args)
}

/// In a directory that is of no matter.
#[track_caller]
fn kli_in(daemon: &kli_tests::Daemon, args: &[&str]) -> kli_tests::Finished {
    daemon.kli(fixtures::work_dir().path(), args)
}

#[test]
fn one_prompt() {
    let p = Place::with([Reply::text("the answer"), Reply::text("two"), Reply::text("three"), Reply::text("four")]);
    let text_out = kli(&p, &["-p", "a question"]).success();
    assert_eq!(text_out.stdout, "the answer\n", "the final text and nothing else");
    let json_out = kli(&p, &["-p", "another", "--output", "json"]).success().json();
    assert_eq!((&json_out["text"], &json_out["stopReason"]), (&json!("two"), &json!("done")));
    let id = text(&json_out["sessionId"]);
    assert_eq!(p.daemon.client().call("listSessions", json!({}))["sessions"].as_array().unwrap().len(), 2);

    let stream = kli(&p, &["-p", "more", "--continue", "--output", "stream-json"]).success();
    let lines: Vec<serde_json::Value> = stream.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.len() > 2, "{}", stream.stdout);
    assert_eq!(Session::attach(&p.daemon, &id).prompts().len(), 2, "--continue is the last session of the directory");
    kli(&p, &["-p", "and more", "--session", &id[id.len() - 8..]]).success();
    assert_eq!(Session::attach(&p.daemon, &id).prompts().len(), 3, "by the end of its id");
    p.server.assert_valid();
}

#[test]
fn input_is_appended() {
    let p = Place::with([]);
    p.daemon.kli_with_input(p.work_dir.path(), &["-p", "what is this?"], "piped text\n").success();
    let sent = p.server.last();
    assert!(sent.says("what is this?") && sent.says("piped text"), "{:?}", sent.texts());
}

#[test]
fn what_needs_a_person() {
    let touch = |id: &str| Reply::call(id, "bash", json!({ "command": "touch made" }));
    let server = ModelServer::with([touch("c1"), Reply::text("refused"), touch("c2"), Reply::text("made")]);
    let config = server.config(200_000).replace("defaultMode = \"auto\"", "defaultMode = \"ask\"");
    let daemon = Setup::new().persisted().config(config).start();
    let work_dir = fixtures::work_dir();
    daemon.kli(work_dir.path(), &["-p", "make it"]).success();
    assert!(!work_dir.path().join("made").exists(), "nobody is there, so it is denied");
    assert!(server.last().says("auto"), "and the refusal says how to allow it");
    daemon.kli(work_dir.path(), &["-p", "make it", "--mode", "auto"]).success();
    assert!(work_dir.path().join("made").exists());
    server.assert_valid();
}

#[test]
fn exit_codes() {
    let p = Place::with([Reply::status(401, "authentication_error", "the key is wrong")]);
    let failed = kli(&p, &["-p", "hi"]);
    assert_eq!(failed.code, Some(1), "{failed:?}");
    assert!(failed.stderr.contains("the key is wrong"), "{failed:?}");
    for usage in [&["--no-such-flag"][..], &["fork"], &["rpc"], &["-p", "x", "--output", "yaml"]] {
        assert_eq!(kli(&p, usage).code, Some(2), "{usage:?}");
    }
    assert_eq!(kli(&p, &["show", "--entry", "no-such-entry"]).code, Some(1));
    assert_eq!(kli(&p, &["rpc", "getSession", r#"{"sessionId":"nobody"}"#]).code, Some(1));
    kli(&p, &["--help"]).success();
}

#[test]
fn an_interrupt_aborts_the_run() {
    let gate = Gate::new();
    let p = Place::with([Reply::held("half", &gate, "")]);
    let mut command = p.daemon.kli_command(p.work_dir.path(), &["-p", "slowly", "--output", "stream-json"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut events = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(events.any(|line| line.unwrap().contains("half")), "it prints what comes while it comes");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{stderr}");
    gate.open();
    let list = p.daemon.client().call("listSessions", json!({}));
    assert_eq!(list["sessions"][0]["status"], "idle");
    let mut session = Session::attach(&p.daemon, &text(&list["sessions"][0]["sessionId"]));
    assert_eq!(session.messages().last().unwrap()["stopReason"], "aborted");
}

/// Who looks in and says nothing leaves nothing behind, and changes nothing about what is gone on with.
#[test]
fn a_prompt_at_which_nothing_is_said_leaves_no_session() {
    let p = Place::with([]);
    let id = text(&kli(&p, &["-p", "a question", "--output", "json"]).success().json()["sessionId"]);
    p.daemon.kli_with_input::<&str>(p.work_dir.path(), &[], "/help\n/tree\n/new\n/mode auto\n/quit\n").success();
    let list = kli(&p, &["ls", "--json"]).success().json();
    assert_eq!(list["sessions"].as_array().unwrap().len(), 1, "{list}");
    assert_eq!(kli(&p, &["show", "--json"]).success().json()["sessionId"], json!(id));
    p.daemon.kli_with_input::<&str>(p.work_dir.path(), &["--continue"], "/help\n").success();
    p.daemon.kli_with_input::<&str>(p.work_dir.path(), &[], "/name kept\n").success();
    let list = kli(&p, &["ls", "--json"]).success().json();
    assert_eq!(list["sessions"].as_array().unwrap().len(), 2, "a name is something: {list}");
}

/// How a command of the person's own went is told once, whether it failed or was aborted.
#[test]
fn a_command_of_ones_own_that_fails_is_told_of_once() {
    let p = Place::with([]);
    let failed = p.daemon.kli_with_input::<&str>(p.work_dir.path(), &[], "!echo oh; false\n").success();
    assert_eq!(failed.stdout, "● bash echo oh; false\noh\nexit code 1\n");

    let mut command = p.daemon.kli_command::<&str>(p.work_dir.path(), &[]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"!sleep 1000\n").unwrap();
    let mut told = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(told.next().unwrap().unwrap(), "● bash sleep 1000");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    drop(stdin);
    let rest: Vec<String> = told.map(Result::unwrap).collect();
    assert!(rest.len() == 1 && rest[0].starts_with("✗ The command was aborted"), "{rest:?}");
    assert!(child.wait().unwrap().success());
}

#[test]
fn commands_for_scripts() {
    let p = Place::with([]);
    let id = text(&kli(&p, &["new", "--json"]).success().json()["sessionId"]);
    kli(&p, &["-p", "first question", "--session", &id]).success();
    kli(&p, &["-p", "second question", "--session", &id]).success();
    let list = kli(&p, &["ls", "--json"]).success();
    assert!(list.stdout.contains(&id), "{list:?}");
    assert!(kli(&p, &["ls"]).success().stdout.contains("first question"));
    let tree = kli(&p, &["tree"]).success().stdout;
    assert!(tree.contains("first question") && tree.contains("second question"), "{tree}");
    assert!(!tree.contains('\u{1b}'), "plain when piped: {tree}");
    let mut session = Session::attach(&p.daemon, &id);
    let second = session.newest_prompt();
    assert!(kli(&p, &["show", "--entry", &second]).success().stdout.contains("second question"));
    kli(&p, &["label", &second, "here"]).success();
    assert_eq!(session.labels()[&second], "here");
    assert!(kli(&p, &["tree"]).success().stdout.contains("here"));
    let moved = kli(&p, &["goto", &second]).success();
    assert!(moved.stdout.contains("second question"), "its text, to be edited: {moved:?}");
    assert_eq!(session.prompts().len(), 1);
    kli(&p, &["goto", &second[..6]]).success();
    let log = kli(&p, &["log"]).success().stdout;
    assert!(log.contains("first question"), "{log}");
    let ping = kli(&p, &["rpc", "ping"]).success().json();
    assert_eq!(ping["pid"], json!(p.daemon.pid()));
    for command in [&["fork", second.as_str(), "--json"][..], &["clone", "--json"]] {
        let made = kli(&p, command).success();
        assert!(made.stdout.contains("sessionId"), "{command:?}: {made:?}");
    }
    assert!(kli(&p, &["ls", "--forest"]).success().stdout.contains("first question"));
    p.server.assert_valid();
}

/// With no daemon there, `kli` starts the one beside it, once, also when many ask at the same moment; it stays.
#[test]
fn it_starts_the_daemon() {
    let daemon = Setup::new().prepare();
    let work_dir = fixtures::work_dir();
    let children: Vec<_> = (0..5)
        .map(|_| {
            let mut command = daemon.kli_command(work_dir.path(), &["rpc", "ping"]);
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let pids: std::collections::BTreeSet<u64> = children
        .into_iter()
        .map(|child| {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{output:?}");
            serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()["pid"].as_u64().unwrap()
        })
        .collect();
    assert_eq!(pids.len(), 1, "one daemon for all: {pids:?}");
    // The readme's first command: the offline model uses a tool, and the tree shows it.
    let said = daemon.kli(work_dir.path(), &["-p", "read hello.txt"]).success();
    assert!(said.stdout.contains("marker-4711") || said.stdout.contains("hello.txt"), "{said:?}");
    let tree = daemon.kli(work_dir.path(), &["tree"]).success();
    assert!(tree.stdout.contains("read hello.txt") && tree.stdout.contains("marker-4711"), "{tree:?}");
    assert!(
        daemon.kli(work_dir.path(), &["daemon", "status"]).success().stdout.contains(daemon.socket.to_str().unwrap())
    );
    // It holds a session that lives only in memory, so stopping it must be meant.
    assert_eq!(daemon.kli(work_dir.path(), &["daemon", "stop"]).code, Some(1));
    daemon.client().call("shutdown", json!({ "force": true }));
    assert!(poll(kli_tests::PATIENCE, || !daemon.socket.exists()));
    daemon.until_no_stragglers(std::time::Duration::from_secs(5));
}

/// Whatever is wrong with the configuration, who called `kli` reads it.
#[test]
fn a_daemon_that_cannot_start_says_why() {
    for (config, expected) in [
        ("defaultModell = \"x/y\"", "defaultModel"),
        ("[approvals]\nallow = [\"bsh(cargo test)\"]", "bsh"),
        ("[approvals]\ndeny = [\"bash(git push\"]", "bash(git push"),
    ] {
        let daemon = Setup::new().config(config).prepare();
        let ended = kli_in(&daemon, &["-p", "hi"]);
        assert_eq!(ended.code, Some(1), "{config}: {ended:?}");
        assert!(ended.stderr.contains(expected), "{config}: {ended:?}");
        assert!(!daemon.socket.exists(), "{config}: nobody was let in");
    }
}

/// A prompt that is refused beforehand leaves no empty session; one that was there before stays.
#[test]
fn a_refused_prompt_leaves_nothing() {
    let daemon = Setup::new().config("defaultModel = \"openai/gpt-5\"").start();
    let refused = kli_in(&daemon, &["-p", "hi"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("OPENAI_API_KEY"), "{refused:?}");
    let sessions = || daemon.client().call("listSessions", json!({}))["sessions"].as_array().unwrap().len();
    assert_eq!(sessions(), 0);
    let id = text(&kli_in(&daemon, &["new", "--json"]).success().json()["sessionId"]);
    assert_eq!(kli_in(&daemon, &["-p", "hi", "--session", &id]).code, Some(1));
    assert_eq!(sessions(), 1);
}

/// Rules that do not count for a slip in their file are not passed over in silence.
#[test]
fn faults_in_a_directorys_configuration_are_told() {
    let daemon = Setup::new().start();
    let work_dir = fixtures::work_dir();
    std::fs::create_dir(work_dir.path().join(".kli")).unwrap();
    std::fs::write(work_dir.path().join(".kli/config.toml"), "defaultModl = \"plan\"\n").unwrap();
    daemon.client().call("trustWorkDir", json!({ "workDir": work_dir.path(), "trusted": true }));
    let said = daemon.kli(work_dir.path(), &["-p", "hi"]).success();
    assert_eq!(said.stderr.matches("defaultModl").count(), 1, "once: {said:?}");
}

#[test]
fn the_daemon_dies_under_it() {
    let gate = Gate::new();
    let mut p = Place::with([Reply::held("half", &gate, "")]);
    let mut command = p.daemon.kli_command(p.work_dir.path(), &["-p", "slowly"]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    gate.reached();
    p.daemon.kill9();
    let output = child.wait_with_output().unwrap();
    gate.open();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(!output.stderr.is_empty(), "it says what happened");
    p.daemon.start();
    kli(&p, &["-p", "again"]).success();
}
