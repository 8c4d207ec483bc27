use std::time::Instant;

use serde_json::{Value, json};

use super::*;
use crate::tool::testing::{Place, text};

/// Runs `command`, which must end within a few seconds by itself.
async fn run(place: &Place, command: &str) -> ToolOutput {
    let begin = Instant::now();
    // The limit is a net under a test that would hang, not a part of what is tested.
    let output = place.call(&Bash::new(), json!({"command": command, "timeout": 20})).await;
    assert!(begin.elapsed() < Duration::from_secs(10), "{command} took {:?}", begin.elapsed());
    output
}

#[tokio::test]
async fn outputs_and_exit_codes() {
    let place = Place::new();
    for (command, error, want) in [
        ("echo hello", false, "hello\n"),
        ("true", false, "(no output)"),
        ("printf '  \\n'", false, "(no output)"),
        ("echo out; echo err >&2; echo out2", false, "out\nerr\nout2\n"),
        ("exit 3", true, "(no output)\n\n[Command exited with code 3.]"),
        ("echo x; false", true, "x\n\n[Command exited with code 1.]"),
        ("kill -9 $$", true, "(no output)\n\n[Command exited with code 137 (signal 9).]"),
        ("printf '\\033[31mred\\033[0m\\r\\n'", false, "red\n"),
        (
            "printf '\\xff\\xfe ok\\x00end'",
            false,
            "\u{fffd}\u{fffd} ok\u{fffd}end\n\n[Bytes that are not UTF-8 text, and NUL, are shown as U+FFFD.]",
        ),
        (
            "printf 'a\\0b\\0'",
            false,
            "a\u{fffd}b\u{fffd}\n\n[Bytes that are not UTF-8 text, and NUL, are shown as U+FFFD.]",
        ),
        ("pwd", false, &format!("{}\n", place.at("").to_string_lossy().trim_end_matches('/'))),
        ("[[ a == a ]] && echo bash", false, "bash\n"),
        ("exec 1>&- 2>&-; sleep 0.1; exit 4", true, "(no output)\n\n[Command exited with code 4.]"),
    ] {
        let output = run(&place, command).await;
        assert_eq!((text(&output).as_str(), output.is_error), (want, error), "{command}");
    }
    assert_eq!(run(&place, "exit 3").await.details, Some(json!({"exitCode": 3})));
    for (arguments, want) in [
        (json!({}), "`command` is missing"),
        (json!({"command": "a\0b"}), "NUL"),
        (json!({"command": "x".repeat(3_000_000)}), "too long"),
        (json!({"command": "true", "timeout": 0}), "`timeout` must be more than 0"),
        (json!({"command": "true", "timeout": "soon"}), "`timeout` must be a number"),
    ] {
        let output = place.call(&Bash::new(), arguments).await;
        assert!(output.is_error && text(&output).contains(want), "{}", text(&output));
    }
}

#[tokio::test]
async fn the_session_variables_count_and_the_marker_does_not() {
    let mut place = Place::new();
    let variables =
        [("GREETING", "hi"), ("EDITOR", "vim"), ("KLI_CALL", "stolen"), ("", "x"), ("A=B", "x"), ("NUL", "\0")];
    place.context.env =
        std::sync::Arc::new(variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect());
    let output = run(&place, "echo $GREETING $EDITOR; [ \"$KLI_CALL\" = stolen ] || echo marked").await;
    assert_eq!(text(&output), "hi false\nmarked\n");
}

/// F120, F128, F131: nothing waits for what never comes.
#[tokio::test]
async fn commands_end_with_their_shell() {
    let place = Place::new();
    for (command, want) in [
        ("sleep 600 & echo done", "done"),
        ("(sleep 600 &) ; echo done", "done"),
        ("setsid sleep 600 & echo done", "done"),
        ("nohup sleep 600 & sleep 0.2; echo up", "up"),
        ("yes & echo done", "y"),
        ("cat; echo end", "end"),
        ("read x; echo got:$x", "got:"),
        ("python3 -c 'input()'", "EOFError"),
        ("read x </dev/tty", "/dev/tty"),
        (
            "python3 -c \"import sys; sys.stderr.write('e'*300000); sys.stdout.write('o'*300000)\"",
            "eee\n[… left out …]\nooo",
        ),
        (
            "python3 -c \"import sys; sys.stdout.write('o'*300000); sys.stderr.write('e'*300000)\"",
            "ooo\n[… left out …]\neee",
        ),
    ] {
        let begin = Instant::now();
        let output = run(&place, command).await;
        assert!(text(&output).contains(want), "{command}: {:?}", text(&output));
        assert!(begin.elapsed() < Duration::from_secs(3), "{command} took {:?}", begin.elapsed());
    }
    let running = place.context.jobs.list();
    assert_eq!(running.len(), 5, "what holds the output became a job: {running:?}");
    assert_eq!(text(&run(&place, "echo next").await), "next\n");
    place.context.jobs.shutdown().await;
    assert!(marked(&place).is_empty());
}

/// F129: what would ask a person, or edit, fails.
#[tokio::test]
async fn nothing_asks_or_opens_an_editor() {
    let place = Place::new();
    let prepare = "git init -q . && git config user.email a@b.c && git config user.name n && echo 1 > f && git add f && \
                   git commit -qm one && echo 2 > f && git commit -qam two && echo 3 > f && git rev-parse HEAD > ../head-$$ && \
                   cat ../head-$$ && rm ../head-$$";
    let head = run(&place, prepare).await;
    assert!(!head.is_error, "{}", text(&head));
    for command in [
        "git commit -a",
        "git stash -q; git rebase -i HEAD~1",
        "git -c credential.helper= ls-remote https://user@127.0.0.1:9/x",
        "ssh-keygen -f k",
        "command -v sudo >/dev/null || exit 1; sudo -k; sudo -n false",
    ] {
        let output = run(&place, command).await;
        if !command.starts_with("ssh-keygen") {
            assert!(output.is_error, "{command}: {}", text(&output));
        }
    }
    assert_eq!(text(&run(&place, "git rebase --abort >/dev/null 2>&1; git rev-parse HEAD").await), text(&head));
    let log = run(&place, "git log; git diff HEAD~1").await;
    assert!(!log.is_error && text(&log).contains("two"));
}

/// F129: an editor called by its name too; one that is told what to do does it, with the person's own settings.
#[tokio::test]
async fn vim_does_not_wait_for_a_person() {
    let place = Place::new();
    if run(&place, "vim --version | grep -q +timers").await.is_error {
        eprintln!("skipped: there is no Vim with timers");
        return;
    }
    let begin = Instant::now();
    assert!(run(&place, "vim new").await.is_error);
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    run(&place, "echo 'let mine = \"hello\"' > .vimrc").await;
    let told = run(&place, "HOME=$PWD vim -c 'call setline(1, mine)' -c wq told; cat told").await;
    assert!(text(&told).ends_with("hello\n"), "{}", text(&told));
    let piped = run(&place, r"printf 'ihello\033:wq\n' | vim piped; cat piped").await;
    assert!(text(&piped).ends_with("hello\n"), "{}", text(&piped));
}

/// F125: cut at a character, wherever it falls.
#[tokio::test]
async fn a_long_output_is_cut_and_kept_whole_in_a_file() {
    let place = Place::new();
    for lead in 0..4 {
        let output = run(&place, &format!("python3 -c \"print('x'*{lead} + '\\u4e2d'*400000)\"")).await;
        let got = text(&output);
        assert!(!output.is_error && !got.contains('\u{fffd}') && got.len() < Limits::OUTPUT.bytes + 300, "{lead}");
        let path = output.details.unwrap()["fullOutputPath"].as_str().unwrap().to_owned();
        assert!(got.contains(&path), "{got}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{}{}\n", "x".repeat(lead), "中".repeat(400_000)));
        let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&path).unwrap());
        assert_eq!(mode & 0o777, 0o600);
    }
    let output = run(&place, "seq 1 3000").await;
    let got = text(&output);
    assert!(got.starts_with("1\n2\n") && got.contains("\n200\n[… 1000 lines left out …]\n1201\n"), "{got}");
    assert!(got.contains("\n3000\n\n[Only the beginning and the end of 3000 lines of output. All of it: "), "{got}");
    let path = output.details.unwrap()["fullOutputPath"].as_str().unwrap().to_owned();
    assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 3000);
    let output = run(&place, "seq 1 2000").await;
    assert_eq!(output.details, Some(json!({"exitCode": 0})), "what fits is not kept");
    let binary = run(&place, "head -c 200000 /bin/ls").await;
    assert!(!text(&binary).contains('\0') && text(&binary).contains("not UTF-8"));
    place.context.jobs.shutdown().await;
    assert!(!std::path::Path::new(&path).exists(), "the files go with the session");
}

#[tokio::test]
async fn output_is_seen_while_it_comes() {
    let place = Place::new();
    let output = run(&place, "printf 'one\\ntw'; printf 'o\\n10%%\\r20%%\\n'").await;
    assert_eq!(text(&output), "one\ntwo\n20%\n");
    let printed = place.printed.lock().unwrap().clone();
    assert!(printed.starts_with("one\ntwo\n") && printed.ends_with("20%\n"), "{printed:?}");
}

/// F122: an end is an end, for all that was started.
#[tokio::test]
async fn a_cancelled_command_leaves_nothing() {
    for command in [
        "sleep 987 & sleep 988; wait",
        "setsid sleep 987 & (setsid sleep 988 &) ; sleep 989",
        "env -i sleep 987 & env -i setsid sleep 988 & sleep 989",
        "trap '' TERM INT HUP; sleep 987",
        "(trap '' TERM; setsid setsid sleep 987 & sleep 988) & wait",
        "nohup bash -c 'while :; do sleep 987; done' >/dev/null 2>&1 & sleep 988",
    ] {
        let mut place = Place::new();
        let started = tokio_util::sync::CancellationToken::new();
        let seen = started.clone();
        place.context.progress = std::sync::Arc::new(move |_| seen.cancel());
        let bash = Bash::new();
        let call = place.call(&bash, json!({"command": format!("{{ {command}; }} & sleep 0.3; echo up; wait")}));
        let cancel = async {
            started.cancelled().await;
            place.context.cancel.cancel();
        };
        let begin = Instant::now();
        let (output, ()) = tokio::join!(call, cancel);
        assert!(begin.elapsed() < Duration::from_secs(3), "{command}");
        assert!(output.is_error && text(&output).contains("Command aborted."), "{command}: {}", text(&output));
        assert!(text(&output).contains("up"), "what was printed stays: {}", text(&output));
        assert_eq!(marked(&place), Vec::<String>::new(), "{command}");
        place.context.jobs.shutdown().await;
    }
}

#[tokio::test]
async fn a_dropped_call_leaves_nothing() {
    let place = Place::new();
    let bash = Bash::new();
    {
        let call = place.call(&bash, json!({"command": "setsid sleep 987 & sleep 988"}));
        assert!(tokio::time::timeout(Duration::from_millis(300), call).await.is_err());
    }
    assert_eq!(marked(&place), Vec::<String>::new());
}

#[tokio::test]
async fn a_time_out_ends_a_command() {
    let place = Place::new();
    let output = place.call(&Bash::new(), json!({"command": "echo begun; sleep 987", "timeout": 0.3})).await;
    assert!(output.is_error, "{}", text(&output));
    assert_eq!(text(&output), "begun\n\n[Command timed out after 0.3 seconds and was ended.]");
    assert_eq!(output.details, Some(json!({"exitCode": Value::Null, "timedOut": true})));
    assert_eq!(marked(&place), Vec::<String>::new());
}

/// F183
#[tokio::test]
async fn without_its_work_directory_a_command_says_so() {
    let place = Place::new();
    std::fs::remove_dir(&place.context.work_dir).unwrap();
    let output = run(&place, "pwd").await;
    assert!(output.is_error && text(&output).contains("does not exist any more"), "{}", text(&output));
    std::fs::create_dir(&place.context.work_dir).unwrap();
}

/// The processes that work in the place's directory.
fn marked(place: &Place) -> Vec<String> {
    let here =
        |pid: &std::path::Path| std::fs::read_link(pid.join("cwd")).is_ok_and(|cwd| cwd == place.context.work_dir);
    let dead = |pid: &std::path::Path| {
        std::fs::read_to_string(pid.join("stat")).map_or(true, |stat| stat.contains(") Z ") || stat.contains(") X "))
    };
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|pid| here(pid) && !dead(pid))
        .filter_map(|pid| std::fs::read_to_string(pid.join("cmdline")).ok())
        .collect()
}
