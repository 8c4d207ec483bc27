//! The daemon as a process: one owner, its socket, its ends, its configuration.

use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use kli_tests::{Daemon, Gate, ModelServer, Reply, Session, Setup, fixtures, poll, text, timed};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn its_vital_signs() {
    let daemon = Setup::new().persisted().start();
    let client = &mut daemon.client();
    let ping = client.call("ping", json!({}));
    assert_eq!((&ping["pid"], &ping["protocolVersion"]), (&json!(daemon.pid()), &json!(1)));
    let status = client.call("getStatus", json!({}));
    assert_eq!(status["socket"], json!(daemon.socket));
    assert_eq!(status["sessionDir"], json!(daemon.session_dir));
    assert!(status["memoryBytes"].as_u64().unwrap() > 0 && status["connections"].as_u64().unwrap() >= 1);
    assert_eq!(status["sessions"]["running"], 0);
    let hello = client.call("initialize", json!({ "clientInfo": { "name": "test", "version": "1" } }));
    assert!(hello["limits"]["maxMessageBytes"].as_u64().unwrap() >= 1 << 20);
    assert_eq!(mode(&daemon.socket), 0o600);
    assert_eq!(mode(daemon.session_dir.as_ref().unwrap()), 0o700);
}

#[test]
fn one_owner() {
    let daemon = Setup::new().persisted().start();
    let pid = daemon.pid().to_string();
    let other = daemon.dir().join("other");
    for (what, second) in [
        ("the same socket and directory", daemon.run_second()),
        ("another socket, the same directory", daemon.run_on(&other)),
    ] {
        assert!(second.code.is_some_and(|code| code != 0), "{what}: {second:?}");
        assert!(second.stderr.contains(&pid) || second.stdout.contains(&pid), "{what}: {second:?}");
    }
    assert_eq!(daemon.client().call("ping", json!({}))["pid"], json!(daemon.pid()), "the first goes on");
}

#[test]
fn twenty_at_once() {
    let daemon = Setup::new().persisted().prepare();
    let children: Vec<std::process::Child> = (0..20)
        .map(|_| {
            let mut command = daemon.command();
            command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped());
            command.spawn().unwrap()
        })
        .collect();
    let socket = daemon.socket.clone();
    let mut owner = None;
    assert!(kli_tests::poll(kli_tests::PATIENCE, || {
        owner = kli_tests::Client::connect(&socket)
            .ok()
            .and_then(|mut client| client.ping())
            .and_then(|ping| ping["pid"].as_u64());
        owner.is_some()
    }));
    let owner = owner.unwrap();
    let mut losers = 0;
    let mut kept = vec![];
    for child in children {
        if u64::from(child.id()) == owner {
            // Its stderr stays open as long as it is asked.
            kept.push(child);
            continue;
        }
        let output = child.wait_with_output().unwrap();
        assert!(!output.status.success());
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(told.contains(&owner.to_string()), "names the owner {owner}: {told}");
        losers += 1;
    }
    assert_eq!(losers, 19);
    assert_eq!(kli_tests::Client::connect(&socket).unwrap().call("ping", json!({}))["pid"], json!(owner));
}

#[test]
fn a_stale_socket_is_taken_over() {
    let mut daemon = Setup::new().persisted().start();
    daemon.kill9();
    assert!(daemon.socket.exists(), "kill -9 leaves it");
    let took = daemon.start();
    assert!(took < Duration::from_secs(5), "{took:?}");
}

/// Whatever else lies at the socket's path stays, and the daemon says what is wrong.
#[test]
fn what_lies_at_the_path() {
    type Put = fn(&Path);
    let cases: [(&str, Put); 5] = [
        ("a file", |path| std::fs::write(path, "precious").unwrap()),
        ("a directory", |path| std::fs::create_dir(path).unwrap()),
        ("a link to a file", |path| {
            std::fs::write(path.with_extension("target"), "precious").unwrap();
            symlink(path.with_extension("target"), path).unwrap();
        }),
        ("a link to nothing", |path| symlink(path.with_extension("missing"), path).unwrap()),
        ("a socket that somebody listens on", |path| std::mem::forget(UnixListener::bind(path).unwrap())),
    ];
    for (name, put) in cases {
        let daemon = Setup::new().prepare();
        put(&daemon.socket);
        let before = std::fs::symlink_metadata(&daemon.socket).unwrap().file_type();
        let ended = daemon.run_second();
        assert!(ended.code.is_some_and(|code| code != 0), "{name}: {ended:?}");
        let after = std::fs::symlink_metadata(&daemon.socket).unwrap().file_type();
        assert_eq!((before.is_socket(), before), (after.is_socket(), after), "{name}");
        if before.is_file() {
            assert_eq!(std::fs::read_to_string(&daemon.socket).unwrap(), "precious");
        }
    }
}

#[test]
fn a_path_that_is_too_long() {
    let daemon = Setup::new().prepare();
    let long = daemon.dir().join("x".repeat(120));
    let ended = daemon.run_on(&long);
    assert!(ended.code.is_some_and(|code| code != 0), "{ended:?}");
    assert!(ended.stderr.contains("107") || ended.stderr.contains("103"), "names the limit: {ended:?}");
    let left: Vec<_> = std::fs::read_dir(daemon.dir()).unwrap().filter_map(Result::ok).collect();
    assert!(!left.iter().any(|entry| entry.file_name().to_string_lossy().starts_with("xx")), "no cut path");
}

#[test]
fn a_socket_directory_that_others_can_write() {
    let daemon = Setup::new().prepare();
    let open = daemon.dir().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
    let ended = daemon.run_on(&open.join("s"));
    assert!(ended.code.is_some_and(|code| code != 0), "{ended:?}");
    assert!(!open.join("s").exists());
}

#[test]
fn ends_that_leave_nothing() {
    let gate = Gate::new();
    let server = ModelServer::with([
        Reply::call("c1", "bash", json!({ "command": "echo x > started; sleep 989 & setsid sleep 988 & sleep 987" })),
        Reply::held("half", &gate, ""),
    ]);
    let mut daemon = Setup::new().persisted().model(&server).start();
    let work_dir = fixtures::work_dir();
    let mut in_tool = Session::create(&daemon, work_dir.path());
    in_tool.call("prompt", json!({ "text": "go" }));
    let started = work_dir.path().join("started");
    assert!(kli_tests::poll(kli_tests::PATIENCE, || started.exists()), "the tool did not start");
    let mut streaming = Session::create(&daemon, work_dir.path());
    streaming.call("prompt", json!({ "text": "go" }));
    gate.reached();
    let ids = [in_tool.id.clone(), streaming.id.clone()];
    let (status, took) = timed(|| daemon.terminate());
    assert!(status.success() && took < Duration::from_secs(10), "{status} after {took:?}");
    gate.open();
    assert!(!daemon.socket.exists(), "the socket is gone");
    daemon.until_no_stragglers(Duration::from_secs(3));
    in_tool.client.until_closed();
    // What was said is stored, every call is answered, and the next prompt is a valid request.
    daemon.start();
    for id in ids {
        Session::attach(&daemon, &id).ask("go on");
    }
    server.assert_valid();
}

#[test]
fn asked_to_stop() {
    let gate = Gate::new();
    let server = ModelServer::with([Reply::held("half", &gate, "")]);
    let mut daemon = Setup::new().model(&server).start();
    let work_dir = fixtures::work_dir();
    let mut session = Session::create(&daemon, work_dir.path());
    session.call("prompt", json!({ "text": "hi" }));
    gate.reached();
    let busy = session.client.error("shutdown", json!({}));
    assert_eq!(busy.kind(), "daemonBusy");
    assert_eq!(busy.0["data"]["running"], json!([session.id]));
    gate.open();
    session.wait();
    let busy = session.client.error("shutdown", json!({}));
    assert_eq!(busy.0["data"]["memoryOnly"], json!([session.id]), "it lives only in memory");
    assert!(text(&busy.0["message"]).starts_with("1 session lives only in memory"), "{busy:?}");
    session.client.call("shutdown", json!({ "force": true }));
    assert!(daemon.exited().success());
    assert!(!daemon.socket.exists());
}

#[test]
fn a_faulty_configuration() {
    for (config, expected) in [
        ("defaultModell = \"x/y\"", "defaultModel"),
        ("defaultMode = \"yolo\"", "defaultMode"),
        ("sessionDir = \"relative\"", "sessionDir"),
        ("[providers.x]\napi = \"nonsense\"", "api"),
        ("not toml at all", "config.toml"),
    ] {
        let daemon = Setup::new().config(config).prepare();
        let ended = daemon.run_second();
        assert!(ended.code.is_some_and(|code| code != 0), "{config}: {ended:?}");
        assert!(ended.stderr.contains(expected), "{config}: {ended:?}");
    }
}

#[test]
fn a_session_directory_that_cannot_be_used() {
    let place = fixtures::temp_dir("kli-t");
    let file = place.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    let ended = Setup::new().session_dir(&file).prepare().run_second();
    assert!(ended.code.is_some_and(|code| code != 0), "{ended:?}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
}

/// What is in memory goes on, and what is made anew is the daemon's own before it writes.
#[test]
fn a_session_directory_that_is_removed() {
    let place = fixtures::temp_dir("kli-t");
    let dir = place.path().join("sessions");
    let server = ModelServer::start();
    let daemon = Setup::new().session_dir(&dir).model(&server).start();
    let work_dir = fixtures::work_dir();
    let mut written = Session::create(&daemon, work_dir.path());
    written.ask("one");
    let mut memory = Session::create_with(&daemon, json!({ "workDir": work_dir.path(), "persist": false }));
    memory.ask("one");
    let mut fresh = Session::create(&daemon, work_dir.path());
    written.subscribe();
    std::fs::remove_dir_all(&dir).unwrap();

    let listed = written.client.call("listSessions", json!({}));
    let listed = listed["sessions"].as_array().unwrap().iter().find(|s| s["sessionId"] == written.id).unwrap();
    assert_eq!((&listed["readOnly"], &listed["warnings"][0]["kind"]), (&json!(true), &json!("fileLost")));
    assert_eq!(written.error("prompt", json!({ "text": "two" })).kind(), "storeFailed");
    assert_eq!(written.client.until_kind("warning").body["kind"], "fileLost");
    let told = written.client.until(|e| e.kind() == "sessionInfoChanged" && e.body["session"]["readOnly"] == true);
    assert!(text(&told.body["session"]["warnings"][0]["message"]).contains("is gone"), "{told:?}");
    assert_eq!(written.state()["warnings"][0]["kind"], "fileLost");
    assert_eq!(written.branch().iter().filter(|e| e["type"] == "message").count(), 2, "it can be read");
    assert!(!dir.exists(), "nothing was written");
    memory.ask("two");
    fresh.ask("one");
    let second = daemon.run_on(&place.path().join("other.sock"));
    assert!(second.code != Some(0) && second.stderr.contains(&daemon.pid().to_string()), "{second:?}");

    // Another daemon is quicker.
    let mut fresh = Session::create(&daemon, work_dir.path());
    std::fs::remove_dir_all(&dir).unwrap();
    let mut other = Setup::new().session_dir(&dir).start();
    let refused = fresh.error("prompt", json!({ "text": "hi" }));
    assert_eq!(refused.kind(), "storeFailed");
    assert!(refused.message().contains(&format!("pid {}", other.pid())), "{refused:?}");
    assert!(fixtures::session_files(&dir).is_empty(), "nothing was written");
    memory.ask("three");
    other.terminate();
    fresh.ask("hi");
    assert_eq!(fixtures::session_files(&dir).len(), 1);
}

/// Neither prompts nor keys are in the log.
#[test]
fn what_is_logged() {
    let server = ModelServer::start();
    let config = server.config(200_000).replace("api = ", "apiKeyEnv = \"TEST_KEY\"\napi = ");
    let daemon = Setup::new().config(config).env("TEST_KEY", "sk-secret-4711").env("RUST_LOG", "debug").start();
    let work_dir = fixtures::work_dir();
    let mut session = Session::create(&daemon, work_dir.path());
    session.subscribe();
    session.ask("a very private prompt");
    assert_eq!(server.last().header("authorization"), Some("Bearer sk-secret-4711"));
    let log = std::fs::read_to_string(daemon.dir().join("log")).unwrap();
    assert!(!log.contains("very private") && !log.contains("sk-secret"), "{log}");
    let events: Vec<String> = session.client.events().iter().map(|e| e.body.to_string()).collect();
    assert!(!events.join("\n").contains("sk-secret"));
    let models = session.client.call("listModels", json!({}));
    assert!(!models.to_string().contains("sk-secret"));
    assert_eq!(text(&models["default"]["modelId"]), "m1");
}

/// Nothing depends on whether somebody reads the log: a pipe that was closed, one that is full.
#[test]
fn a_log_that_nobody_reads() {
    for closed in [true, false] {
        let daemon = Setup::new().env("KLI_LOG", "trace").prepare();
        let mut command = daemon.command();
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let _watchdog = kli_tests::process::Watchdog::over(child.id());
        let unread = child.stderr.take().filter(|_| !closed);
        // A socket is there before it listens.
        let mut client = None;
        assert!(poll(kli_tests::PATIENCE, || {
            client = kli_tests::Client::connect(&daemon.socket).ok();
            client.is_some() || child.try_wait().unwrap().is_some()
        }));
        let mut client = client.expect("it ended");
        // Far more than a pipe holds.
        for _ in 0..500 {
            assert_eq!(client.call("ping", json!({}))["pid"], json!(child.id()), "closed: {closed}");
        }
        kli_tests::process::signal(child.id(), Signal::TERM);
        assert!(child.wait().unwrap().success(), "closed: {closed}");
        drop(unread);
    }
}

/// A hang-up has the configuration read again; what is wrong with it is told to those who watch, as nobody waits
/// for a reply.
#[test]
fn a_hangup_reads_the_configuration() {
    let daemon = Setup::new().config("defaultMode = \"plan\"\n").start();
    let work_dir = fixtures::work_dir();
    let mode_of = |daemon: &Daemon| Session::create(daemon, work_dir.path()).state()["mode"].clone();
    assert_eq!(mode_of(&daemon), "plan");
    let mut client = daemon.client();
    client.call("subscribe", json!({}));
    let config = daemon.config.clone().unwrap();
    std::fs::write(&config, "defaultModel = \"auto\"\ndefaultMood = 1\n").unwrap();
    let pid = Pid::from_raw(daemon.pid() as i32).unwrap();
    kill_process(pid, Signal::HUP).unwrap();
    let warning = client.until_kind("warning").body;
    assert!(text(&warning["message"]).contains("defaultMood"), "{warning}");
    assert_eq!((warning.get("sessionId"), warning.get("seq")), (None, None));
    assert_eq!(mode_of(&daemon), "plan", "the last good one stays");
    std::fs::write(&config, "defaultMode = \"auto\"\n").unwrap();
    kill_process(pid, Signal::HUP).unwrap();
    assert!(poll(Duration::from_secs(10), || mode_of(&daemon) == "auto"));
}
