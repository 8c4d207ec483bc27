//! The `kli` program against a fake daemon: what it prints, and how it ends.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

#[path = "../src/fake.rs"]
mod fake;

use std::process::{Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fake::{Fake, Reply, SESSION};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

fn kli(fake: &Fake, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kli"));
    command.args(args).env("KLI_SOCKET", &fake.path).env("HOME", fake.dir()).env_remove("XDG_STATE_HOME");
    command.current_dir(fake.dir()).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

async fn ended(child: Child) -> Output {
    let waited = tokio::time::timeout(Duration::from_secs(20), child.wait_with_output()).await;
    waited.expect("it hangs").unwrap()
}

/// Runs a command with this on standard input.
async fn run(fake: &Fake, args: &[&str], input: Option<&str>) -> (i32, String, String) {
    let mut command = kli(fake, args);
    if input.is_some() {
        command.stdin(Stdio::piped());
    }
    let mut child = command.spawn().unwrap();
    if let (Some(mut stdin), Some(input)) = (child.stdin.take(), input) {
        let _ = stdin.write_all(input.as_bytes()).await;
    }
    let out = ended(child).await;
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (out.status.code().unwrap_or(-1), text(&out.stdout), text(&out.stderr))
}

fn answering() -> Fake {
    Fake::start(|method, params| match method {
        "getSession" if params["sessionId"] == "nobody" => Some(Reply::Error(
            json!({"code": -32020, "message": "no session nobody here", "data": {"kind": "sessionNotFound"}}),
        )),
        "prompt" => Some(fake::run(&format!("you said: {}", params["text"].as_str().unwrap()))),
        "exportSession" => Some(Reply::Result(match params["path"].as_str() {
            None => json!({"content": "# Exported\n"}),
            Some(path) => json!({"path": path}),
        })),
        "getTree" => Some(Reply::Result(match params["cursor"].as_str() {
            None => {
                json!({"leafId": "cccccccc", "roots": ["aaaaaaaa"], "nextCursor": "older", "nodes": [node("cccccccc", "aaaaaaaa", true)]})
            }
            Some(_) => {
                json!({"leafId": "cccccccc", "roots": ["aaaaaaaa"], "nodes": [node("aaaaaaaa", "", true), node("bbbbbbbb", "aaaaaaaa", false)]})
            }
        })),
        _ => None,
    })
}

fn node(id: &str, parent: &str, on_branch: bool) -> Value {
    let parent = if parent.is_empty() { Value::Null } else { parent.into() };
    json!({"id": id, "parentId": parent, "type": "message", "role": "user", "preview": format!("text of {id}"),
        "timestamp": "t", "tokens": 1, "children": [], "childCount": 0, "onBranch": on_branch})
}

#[tokio::test]
async fn commands_print_and_exit_as_they_should() {
    let fake = answering();
    for (args, input, exit, out, err) in [
        (&["-p", "hi"][..], None, 0, "you said: hi\n", ""),
        (&["-p", "hi"], Some("from a pipe"), 0, "you said: hi\n\nfrom a pipe\n", ""),
        (&["-p"], Some("from a pipe"), 0, "you said: from a pipe\n", ""),
        (&["-p", "- x"], None, 0, "you said: - x\n", ""),
        (&["-p", " "], None, 2, "", "needs a prompt"),
        (&["-p", "hi", "--output", "xml"], None, 2, "", "possible values"),
        (&["frobnicate"], None, 2, "", "unrecognized subcommand"),
        (&["new"], None, 0, SESSION, ""),
        (
            &["tree"],
            None,
            0,
            "aaaaaaaa ● you text of aaaaaaaa\nbbbbbbbb ├─○ you text of bbbbbbbb\ncccccccc ● you text of cccccccc ◀ leaf\n",
            "",
        ),
        (&["rpc", "ping"], None, 0, r#"{"version":"0.1.0","protocolVersion":1,"pid":1}"#, ""),
        (&["rpc", "getSession", r#"{"sessionId":"x"}"#], None, 0, "offline", ""),
        (&["rpc", "nope"], None, 1, "", r#"{"code":-32601,"#),
        (&["rpc", "ping", "{"], None, 2, "", "no JSON"),
        (&["completions", "bash"], None, 0, "_kli", ""),
        (&["--socket", "/nowhere/at/all", "daemon", "status"], None, 1, "no daemon runs at /nowhere/at/all", ""),
        (&["--socket", "/nowhere/at/all", "daemon", "stop"], None, 0, "", "no daemon runs"),
        (&["--host=-oProxyCommand=x", "ls"], None, 1, "", "no name of a host"),
        (&["daemon", "logs"], None, 1, "", "no log"),
        (&["goto", " "], None, 2, "", "names no entry"),
        (&["search", ""], None, 2, "", "nothing to look for"),
        (&["show", "nobody"], None, 1, "", "no session nobody here; `kli ls --all` lists the sessions"),
        (&["man"], None, 0, ".TH kli", ""),
    ] {
        let (code, stdout, stderr) = run(&fake, args, input).await;
        assert_eq!(code, exit, "{args:?}: {stdout} {stderr}");
        assert!(stdout.contains(out) && (!out.is_empty() || stdout.is_empty()), "{args:?}: {stdout}");
        assert!(stderr.contains(err) && (!err.is_empty() || stderr.is_empty()), "{args:?}: {stderr}");
    }
    let prompt = &fake.calls("prompt")[0];
    assert_eq!((&prompt["approvals"], &prompt["wait"]), (&json!("deny"), &json!(true)));
    assert_eq!(fake.calls("createSession").len(), 5, "each -p, and `new`, makes a session");
}

#[tokio::test]
async fn an_interrupt_aborts_and_a_second_one_leaves() {
    for answers in [true, false] {
        let fake = Fake::start(move |method, _| match method {
            "prompt" if answers => Some(Reply::Never),
            "prompt" | "abort" => Some(Reply::Never),
            _ => None,
        });
        let child = kli(&fake, &["-p", "hi"]).spawn().unwrap();
        fake.until_called("prompt", 1).await;
        let pid = rustix::process::Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
        let interrupt = || rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        interrupt();
        fake.until_called("abort", 1).await;
        interrupt();
        assert_eq!(ended(child).await.status.code(), Some(130));
    }
}

#[tokio::test]
async fn a_daemon_that_is_killed_in_mid_run_ends_the_command() {
    let mut fake = Fake::start(|method, _| (method == "prompt").then_some(Reply::Never));
    let child = kli(&fake, &["-p", "hi"]).spawn().unwrap();
    fake.until_called("prompt", 1).await;
    fake.kill().await;
    let out = ended(child).await;
    let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("was lost"), "{stderr}");
    let beside = fake.path.with_extension("sock.lock");
    assert!(!beside.exists(), "no daemon was started in its place");
}

#[tokio::test]
async fn a_script_at_the_prompt_sees_each_answer_before_its_next_line() {
    let fake = answering();
    let script = "first\n/tree\ntwo \\\nlines\n/nothing like this\n/review this\n/goto\n/name\n/quit\nnever\n";
    let (code, out, err) = run(&fake, &[], Some(script)).await;
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let places: Vec<Option<usize>> = [
        "you said: first\n",
        "text of bbbbbbbb",
        "you said: two \nlines\n",
        "✗ there is no command /nothing",
        "you said: /review this\n",
        "✗ /goto needs an entry",
        "✗ /name needs a text",
    ]
    .iter()
    .map(|t| out.find(t))
    .collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?} in {out}");
    assert!(!out.contains("never"), "{out}");
}

/// The session of `kli` alone is kept if something is said in it or it has a name; what was chosen for it is nothing.
#[tokio::test]
async fn a_session_in_which_nothing_was_said_is_not_kept() {
    let chosen =
        json!({"type": "model_change", "id": "a", "parentId": null, "timestamp": "t", "provider": "p", "modelId": "m"});
    let said = json!({"type": "message", "id": "b", "parentId": "a", "timestamp": "t", "message": {"role": "user", "content": "hi"}});
    for (script, entries, name, kept) in [
        ("", vec![], Value::Null, false),
        ("/help\n/quit\n", vec![], Value::Null, false),
        ("/mode auto\n", vec![chosen.clone()], Value::Null, false),
        ("/help\n", vec![chosen.clone()], json!("a name"), true),
        ("first\n", vec![chosen.clone(), said.clone()], Value::Null, true),
    ] {
        let fake = Fake::start(move |method, _| match method {
            "prompt" => Some(fake::run("yes")),
            "deleteSession" => Some(Reply::Result(json!({}))),
            "getEntries" => Some(Reply::Result(json!({"entries": entries}))),
            "getSession" => {
                let mut state = fake::session_state();
                if name.is_string() {
                    state["name"] = name.clone();
                }
                Some(Reply::Result(state))
            }
            _ => None,
        });
        let (code, out, err) = run(&fake, &[], Some(script)).await;
        assert_eq!((code, err.as_str()), (0, ""), "{out}");
        assert_eq!(fake.calls("deleteSession").is_empty(), kept, "{script:?}");
        let (code, ..) = run(&fake, &["--continue"], Some("/help\n")).await;
        assert_eq!((code, fake.calls("deleteSession").len()), (0, usize::from(!kept)), "one of others stays");
    }
}

/// A run that asks whether a call is allowed, and goes on when it is answered.
fn asking() -> Fake {
    let approval = json!({"approvalId": "ap1", "toolCallId": "t1", "toolName": "bash", "title": "bash: rm x",
        "arguments": {"command": "rm x"}, "reason": "it may change something"});
    Fake::start(move |method, params| match method {
        "prompt" => Some(Reply::Run(
            vec![
                json!({"type": "runStart", "runId": "r1", "entryId": "e1"}),
                json!({"type": "approvalRequested", "runId": "r1", "approval": approval}),
            ],
            json!({"runId": "r1", "queued": false, "entryId": "e1"}),
        )),
        "respondToApproval" => Some(Reply::Run(
            vec![
                json!({"type": "approvalResolved", "runId": "r1", "approvalId": "ap1", "decision": params["decision"], "by": "kli"}),
                json!({"type": "textDelta", "runId": "r1", "messageId": "m1", "index": 0, "delta": "so be it"}),
                json!({"type": "runEnd", "runId": "r1", "stopReason": "done", "usage": fake::usage()}),
            ],
            json!({}),
        )),
        _ => None,
    })
}

#[tokio::test]
async fn a_call_that_needs_a_person_is_asked_about() {
    for (script, decision, message) in [
        ("do it\nmaybe\ny\n", "allow", Value::Null),
        ("do it\na\n", "allowForSession", Value::Null),
        ("do it\nn use mv\n", "deny", "use mv".into()),
        // Nobody is left to answer.
        ("do it\n", "deny", "nobody is there to allow it".into()),
    ] {
        let fake = asking();
        let (code, out, _) = run(&fake, &[], Some(script)).await;
        assert_eq!(code, 0, "{out}");
        let answers = fake.calls("respondToApproval");
        assert_eq!(answers.len(), 1, "{script:?}: {out}");
        assert_eq!((&answers[0]["decision"], &answers[0]["message"]), (&json!(decision), &message), "{script:?}");
        assert!(out.contains("? bash: rm x") && out.contains("so be it\n"), "{out}");
        assert!(!out.contains("elsewhere"), "{out}");
    }
}

#[tokio::test]
async fn a_question_that_another_client_answers_is_withdrawn() {
    let fake = asking();
    let mut child = kli(&fake, &[]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"do it\n").await.unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut out = String::new();
    read_until(&mut stdout, &mut out, "allow?").await;
    fake.publish(json!({"type": "approvalResolved", "approvalId": "ap1", "decision": "allow", "by": "an editor"}));
    read_until(&mut stdout, &mut out, "allowed elsewhere by an editor").await;
    fake.publish(json!({"type": "runEnd", "runId": "r1", "stopReason": "done", "usage": fake::usage()}));
    drop(stdin);
    assert_eq!(ended(child).await.status.code(), Some(0));
    assert!(fake.calls("respondToApproval").is_empty());
}

/// Reads until this text came, and takes it and all before it out of what was read.
async fn read_until(from: &mut (impl AsyncReadExt + Unpin), out: &mut String, text: &str) {
    let reading = async {
        let mut piece = [0; 1024];
        while !out.contains(text) {
            // A terminal whose other side has gone is an error, not an end.
            match from.read(&mut piece).await.unwrap_or(0) {
                0 => panic!("it ended before {text:?}: {out}"),
                n => out.push_str(&String::from_utf8_lossy(&piece[..n])),
            }
        }
    };
    let done = tokio::time::timeout(Duration::from_secs(20), reading).await;
    assert!(done.is_ok(), "no {text:?}: {out}");
    if let Some(at) = out.find(text) {
        out.drain(..at + text.len());
    }
}

#[tokio::test]
async fn a_reader_that_has_gone_is_no_fault() {
    let fake = answering();
    let mut child = kli(&fake, &["rpc", "subscribe", r#"{"sessionId":"x"}"#]).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut out = String::new();
    read_until(&mut stdout, &mut out, "snapshot").await;
    drop(stdout);
    let mut ended = std::pin::pin!(ended(child));
    let mut again = tokio::time::interval(Duration::from_millis(20));
    let out = loop {
        // More than once: a child that another test is just starting may hold the pipe for a moment.
        tokio::select! {
            out = &mut ended => break out,
            _ = again.tick() => fake.publish(json!({"type": "turnStart"})),
        }
    };
    assert_eq!((out.status.code(), String::from_utf8_lossy(&out.stderr).as_ref()), (Some(0), ""));
}

/// A full disk is no success, and is told as what it is.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn an_answer_that_cannot_be_written_is_a_fault() {
    let fake = answering();
    for args in [&["-p", "hi"][..], &["-p", "hi", "--output", "json"], &["new"], &["tree"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let out = ended(kli(&fake, args).stdout(full).spawn().unwrap()).await;
        let err = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(
            out.status.code() == Some(1) && err.contains("cannot write to standard output: No space"),
            "{args:?}: {err}"
        );
    }
}

#[tokio::test]
async fn a_bridge_carries_bytes_both_ways_and_answers_what_is_in_flight() {
    let fake = answering();
    let ping = "{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"ping\"}\n";
    let mut child = kli(&fake, &["bridge"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(ping.as_bytes()).await.unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut out = String::new();
    read_until(&mut stdout, &mut out, "\"id\":7").await;
    drop(stdin);
    assert_eq!(ended(child).await.status.code(), Some(0));
}

#[tokio::test]
async fn another_machine_is_reached_by_ssh() {
    let fake = Fake::start(|method, params| match method {
        "importSession" => {
            assert_eq!(params["path"], "/there/s.jsonl");
            let message = "cannot read /there/s.jsonl: No such file or directory (os error 2)";
            Some(Reply::Error(json!({"code": -32034, "message": message, "data": {"kind": "storeFailed"}})))
        }
        "prompt" => Some(fake::run(&format!("you said: {}", params["text"].as_str().unwrap()))),
        "exportSession" => Some(Reply::Result(json!({"content": "# Exported\n"}))),
        _ => None,
    });
    let bin = fake.dir().join("bin");
    std::fs::create_dir(&bin).unwrap();
    // An ssh that runs the command here, after it checked that it was told where to go.
    let ssh = bin.join("ssh");
    let body = format!(
        "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done\n[ \"$2 $3 $4\" = 'me@box kli bridge' ] || exit 9\nexec {} bridge\n",
        env!("CARGO_BIN_EXE_kli")
    );
    std::fs::write(&ssh, body).unwrap();
    std::fs::set_permissions(&ssh, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let path_with_ssh = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    let child =
        kli(&fake, &["--host", "me@box", "-C", "/over/there", "-p", "hi"]).env("PATH", &path_with_ssh).spawn().unwrap();
    let out = ended(child).await;
    assert_eq!(String::from_utf8_lossy(&out.stdout), "you said: hi\n", "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(fake.calls("createSession")[0]["workDir"], "/over/there");
    // A path that the daemon there is to read is one of that machine.
    for (path, code, told) in [
        ("/there/s.jsonl", 1, "on me@box: cannot read /there/s.jsonl: No such file"),
        ("s.jsonl", 2, "s.jsonl is a path of me@box"),
    ] {
        let child = kli(&fake, &["--host", "me@box", "import", path]).env("PATH", &path_with_ssh).spawn().unwrap();
        let out = ended(child).await;
        let err = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.code() == Some(code) && err.contains(told), "{path}: {err}");
    }
    // A file that is written lies here, and takes no other's place.
    let file = fake.dir().join("out.md");
    for (code, told) in [(0, "written to"), (1, "exists already")] {
        let args = ["--host", "me@box", "export", SESSION, "-f", "markdown", "-o", file.to_str().unwrap()];
        let out = ended(kli(&fake, &args).env("PATH", &path_with_ssh).spawn().unwrap()).await;
        assert_eq!(out.status.code(), Some(code));
        assert!(String::from_utf8_lossy(&out.stderr).contains(told), "{out:?}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "# Exported\n");
    }
    let child = kli(&fake, &["--host", "elsewhere", "ls"]).env("PATH", &path_with_ssh).spawn().unwrap();
    let out = ended(child).await;
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stderr).contains("closed the connection at once"));
}

/// A terminal of its own for a child, and our end of it.
fn terminal(command: &mut Command, columns: u16) -> std::fs::File {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let size = rustix::termios::Winsize { ws_row: 40, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&ours, size).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
    let theirs = std::fs::File::options().read(true).write(true).open(name).unwrap();
    command.env("TERM", "xterm").env("NO_COLOR", "1");
    command.stdin(theirs.try_clone().unwrap()).stdout(theirs.try_clone().unwrap()).stderr(theirs);
    // SAFETY: both calls are async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            rustix::process::setsid()?;
            Ok(rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?)
        });
    }
    std::fs::File::from(ours)
}

#[tokio::test]
async fn at_a_terminal_lines_are_edited_runs_are_steered_and_interrupts_abort() {
    let run = |event: Value| {
        let mut event = event;
        event["runId"] = "r1".into();
        event
    };
    let fake = Fake::start(move |method, params| match method {
        "prompt" => Some(Reply::Run(
            vec![
                run(json!({"type": "runStart", "entryId": "e1"})),
                run(json!({"type": "textDelta", "messageId": "m1", "index": 0, "delta": "thinking aloud \u{1b}[2J"})),
            ],
            json!({"runId": "r1", "queued": false, "entryId": "e1"}),
        )),
        "steer" => {
            assert_eq!(params["text"], "be quick");
            Some(Reply::Result(json!({"runId": "r1", "queued": true})))
        }
        "abort" => Some(Reply::Run(
            vec![run(json!({"type": "runEnd", "stopReason": "aborted", "usage": fake::usage()}))],
            json!({"aborted": true}),
        )),
        "getBranch" => Some(Reply::Result(json!({"entries": []}))),
        _ => None,
    });
    let mut command = kli(&fake, &["--continue"]);
    let ours = terminal(&mut command, 100);
    let child = command.spawn().unwrap();
    drop(command);
    let mut screen = tokio::fs::File::from_std(ours.try_clone().unwrap());
    let keys = |text: &str| std::io::Write::write_all(&mut &ours, text.as_bytes()).unwrap();
    let mut out = String::new();
    read_until(&mut screen, &mut out, "> ").await;
    keys("hellp\u{8}o\r");
    read_until(&mut screen, &mut out, "thinking aloud \u{241b}[2J").await;
    assert_eq!(fake.calls("prompt")[0]["text"], "hello");
    keys("be quick\n");
    read_until(&mut screen, &mut out, "queued").await;
    keys("\u{3}");
    read_until(&mut screen, &mut out, "aborted").await;
    read_until(&mut screen, &mut out, "> ").await;
    // Another client is heard above the line that is being typed.
    keys("not yet sent");
    read_until(&mut screen, &mut out, "not yet sent").await;
    fake.publish(json!({"type": "modeChanged", "mode": "auto"}));
    read_until(&mut screen, &mut out, "mode: auto").await;
    keys("\u{3}");
    read_until(&mut screen, &mut out, "Ctrl-C again").await;
    keys("\u{3}");
    let out = ended(child).await;
    assert_eq!(out.status.code(), Some(0));
    assert_eq!(fake.calls("prompt").len(), 1);
}

/// As of a terminal or a paste in another encoding.
#[tokio::test]
async fn bytes_that_are_no_text_do_not_end_the_prompt() {
    let fake = answering();
    let mut command = kli(&fake, &[]);
    let ours = terminal(&mut command, 100);
    let child = command.spawn().unwrap();
    drop(command);
    let mut screen = tokio::fs::File::from_std(ours.try_clone().unwrap());
    let keys = |bytes: &[u8]| std::io::Write::write_all(&mut &ours, bytes).unwrap();
    let mut out = String::new();
    read_until(&mut screen, &mut out, "> ").await;
    keys(b"what is a caf\xff");
    read_until(&mut screen, &mut out, "what is a caf").await;
    read_until(&mut screen, &mut out, "> what is a caf").await;
    keys(b"e?\r");
    read_until(&mut screen, &mut out, "you said: what is a cafe?").await;
    read_until(&mut screen, &mut out, "> ").await;
    keys(b"\x04");
    assert_eq!(ended(child).await.status.code(), Some(0));
}

#[tokio::test]
async fn tab_completes_what_the_daemon_offers() {
    let fake = answering();
    let mut command = kli(&fake, &[]);
    let ours = terminal(&mut command, 100);
    let child = command.spawn().unwrap();
    drop(command);
    let mut screen = tokio::fs::File::from_std(ours.try_clone().unwrap());
    let keys = |text: &str| std::io::Write::write_all(&mut &ours, text.as_bytes()).unwrap();
    let mut out = String::new();
    read_until(&mut screen, &mut out, "> ").await;
    keys("/rev\tthis\r");
    read_until(&mut screen, &mut out, "you said: /review this").await;
    read_until(&mut screen, &mut out, "> ").await;
    keys("\u{4}");
    assert_eq!(ended(child).await.status.code(), Some(0));
}

/// What a directory brings of its own is used when the person says so; asked until that is clear, and once.
#[tokio::test]
async fn a_person_is_asked_whether_a_directory_is_trusted() {
    for (answer, trusted) in [("y\n", true), ("No\n", false)] {
        let answered = AtomicBool::new(false);
        let fake = Fake::start(move |method, _| match method {
            "getSession" => {
                let mut state = fake::session_state();
                state["untrusted"] = json!(["/w/.kli/SYSTEM.md"]);
                if answered.load(Ordering::SeqCst) {
                    let message = "/w/.kli/config.toml: there is no key x";
                    state["warnings"] = json!([{"kind": "configuration", "message": message}]);
                }
                Some(Reply::Result(state))
            }
            "trustWorkDir" => {
                answered.store(true, Ordering::SeqCst);
                Some(Reply::Result(json!({})))
            }
            _ => None,
        });
        let mut command = kli(&fake, &[]);
        let ours = terminal(&mut command, 100);
        let child = command.spawn().unwrap();
        drop(command);
        let mut screen = tokio::fs::File::from_std(ours.try_clone().unwrap());
        let keys = |text: &str| std::io::Write::write_all(&mut &ours, text.as_bytes()).unwrap();
        let mut out = String::new();
        read_until(&mut screen, &mut out, "/w/.kli/SYSTEM.md").await;
        read_until(&mut screen, &mut out, "[n]o").await;
        keys("perhaps\n");
        read_until(&mut screen, &mut out, "[n]o").await;
        assert!(fake.calls("trustWorkDir").is_empty());
        keys(answer);
        // What trust brings to light is told at once.
        read_until(&mut screen, &mut out, "✗ /w/.kli/config.toml: there is no key x").await;
        read_until(&mut screen, &mut out, "> ").await;
        keys("\u{4}");
        assert_eq!(ended(child).await.status.code(), Some(0));
        assert_eq!(fake.calls("trustWorkDir"), [json!({"workDir": "/w", "trusted": trusted})]);
    }
}

#[tokio::test]
async fn a_terminal_without_a_width_takes_plain_lines() {
    let fake = answering();
    let mut command = kli(&fake, &[]);
    let ours = terminal(&mut command, 0);
    let child = command.spawn().unwrap();
    drop(command);
    let mut screen = tokio::fs::File::from_std(ours.try_clone().unwrap());
    let mut out = String::new();
    read_until(&mut screen, &mut out, "> ").await;
    std::io::Write::write_all(&mut &ours, b"hi\n").unwrap();
    read_until(&mut screen, &mut out, "you said: hi").await;
    std::io::Write::write_all(&mut &ours, b"\x04").unwrap();
    assert_eq!(ended(child).await.status.code(), Some(0));
}
