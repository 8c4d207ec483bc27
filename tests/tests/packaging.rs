//! What is shipped beside the programs.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};

use kli_tests::{Client, PATIENCE, Setup, poll, process};
use serde_json::{Value, json};

fn packaging() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging")
}

/// systemd itself reads the user units without a complaint.
#[test]
fn systemd_units() {
    let place = kli_tests::fixtures::temp_dir("kli-u");
    for name in ["kli.socket", "kli.service"] {
        let text = std::fs::read_to_string(packaging().join("systemd").join(name)).unwrap();
        // The program need not be installed for its unit to be checked.
        let text = text.replace("/usr/bin/kli-daemon", "/bin/true");
        std::fs::write(place.path().join(name), text).unwrap();
    }
    let mut command = Command::new("systemd-analyze");
    command.args(["--user", "verify", "kli.socket", "kli.service"]).current_dir(place.path());
    command.env("XDG_RUNTIME_DIR", place.path()).env("SYSTEMD_UNIT_PATH", format!("{}:", place.path().display()));
    let Ok(output) = command.output() else {
        eprintln!("skipped: there is no systemd-analyze");
        return;
    };
    let told = String::from_utf8_lossy(&output.stderr);
    let ours: Vec<&str> = told.lines().filter(|line| line.contains("kli.")).collect();
    assert!(output.status.success() && ours.is_empty(), "{told}");
}

/// The socket is there before the daemon: the first client starts it, it says when it is ready and when it stops,
/// and leaves the socket to whoever made it.
#[test]
fn socket_activation() {
    let mut daemon = Setup::new().persisted().prepare();
    let notified = daemon.dir().join("notify");
    let told = UnixDatagram::bind(&notified).unwrap();
    told.set_read_timeout(Some(PATIENCE)).unwrap();
    daemon.env.insert("NOTIFY_SOCKET".into(), notified.to_str().unwrap().into());
    let socket = daemon.dir().join("by-systemd");
    let plain = daemon.command();
    let mut command = Command::new("systemd-socket-activate");
    command.arg("--listen").arg(&socket).env_clear().env("PATH", std::env::var_os("PATH").unwrap());
    // It hands on little of its own environment.
    command.args(daemon.env.iter().map(|(name, value)| format!("--setenv={name}={value}")));
    // No `--socket`: the one that was passed counts.
    command.arg(plain.get_program()).args(["--foreground", "--session-dir"]).arg(daemon.session_dir.as_ref().unwrap());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir(daemon.dir());
    let Ok(mut child) = command.spawn() else {
        eprintln!("skipped: there is no systemd-socket-activate");
        return;
    };
    let _watchdog = process::Watchdog::over(child.id());
    // A socket that is there may not be listened to yet.
    let mut client = None;
    assert!(
        poll(PATIENCE, || {
            client = Client::connect(&socket).ok();
            client.is_some()
        }),
        "it listens"
    );
    assert!(child.try_wait().unwrap().is_none());
    let mut client = client.unwrap();
    let status = client.call("getStatus", json!({}));
    assert_eq!(status["socket"], json!(socket));
    assert_eq!(status["pid"], json!(child.id()), "it became the daemon");
    let mut message = [0; 100];
    let length = told.recv(&mut message).unwrap();
    assert!(message[..length].starts_with(b"READY=1"), "{}", String::from_utf8_lossy(&message[..length]));
    client.call("shutdown", json!({}));
    let length = told.recv(&mut message).unwrap();
    assert!(message[..length].starts_with(b"STOPPING=1"));
    assert!(child.wait().unwrap().success());
    assert!(socket.exists(), "it is not the daemon's to remove");
}

/// Read by the system's own tool, or else as the XML that it is.
#[test]
fn launchd_plist() {
    let path = packaging().join("launchd/dev.kli.daemon.plist");
    let mut lint = Command::new("plutil");
    lint.arg("-lint").arg(&path);
    let mut parse = Command::new("python3");
    let script = "import json, plistlib, sys; json.dump(plistlib.load(open(sys.argv[1], 'rb')), sys.stdout)";
    parse.args(["-c", script]).arg(&path);
    if let Ok(output) = lint.output() {
        assert!(output.status.success(), "{output:?}");
    }
    let Some(output) = parse.output().ok().filter(|output| output.status.code() != Some(127)) else {
        eprintln!("skipped: there is no python3");
        return;
    };
    let plist: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    assert_eq!(plist["Label"], "dev.kli.daemon", "as the file is called");
    let arguments: Vec<&str> = plist["ProgramArguments"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(arguments[0].starts_with('/') && arguments[0].ends_with("/kli-daemon"), "{arguments:?}");
    // The options exist.
    let daemon = Setup::new().prepare().command();
    let daemon = Command::new(daemon.get_program()).args(&arguments[1..]).arg("--version").output().unwrap();
    assert!(daemon.status.success(), "{daemon:?}");
}

/// Each shell takes its completions, and they know the commands.
#[test]
fn completions() {
    let daemon = Setup::new().prepare();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = daemon.kli(daemon.dir(), &["completions", shell]).success().stdout;
        assert!(script.contains("rewind") && script.contains("work-dir"), "{shell}: {script}");
        let path = daemon.dir().join(shell);
        std::fs::write(&path, script).unwrap();
        // The others cannot check a script without running it.
        if !["bash", "zsh", "fish"].contains(&shell) {
            continue;
        }
        match Command::new(shell).arg("-n").arg(&path).output() {
            Ok(read) => assert!(read.status.success() && read.stderr.is_empty(), "{shell}: {read:?}"),
            Err(_) => eprintln!("skipped: there is no {shell}"),
        }
    }
}

/// Every command has its page, which the reader of such pages takes without a warning.
#[test]
fn manual_pages() {
    let daemon = Setup::new().prepare();
    let dir = daemon.dir().join("share/man/man1");
    daemon.kli(daemon.dir(), &["man", dir.to_str().unwrap()]).success();
    let pages: std::collections::BTreeSet<String> =
        dir.read_dir().unwrap().map(|page| page.unwrap().file_name().into_string().unwrap()).collect();
    for page in ["kli.1", "kli-rewind.1", "kli-daemon-stop.1"] {
        assert!(pages.contains(page), "{page} of {pages:?}");
    }
    let main = daemon.kli(daemon.dir(), &["man"]).success().stdout;
    assert_eq!(main, std::fs::read_to_string(dir.join("kli.1")).unwrap());
    for page in pages {
        match Command::new("groff").args(["-man", "-Tutf8", "-ww", "-z"]).arg(dir.join(&page)).output() {
            Ok(read) => assert!(read.status.success() && read.stderr.is_empty(), "{page}: {read:?}"),
            Err(_) => return eprintln!("skipped: there is no groff"),
        }
    }
    let refused = daemon.kli(daemon.dir(), &["man", "/dev/null/man1"]);
    assert!(refused.code == Some(1) && refused.stderr.contains("/dev/null/man1"), "{refused:?}");
}

/// Changes are written down before they are released.
#[test]
fn the_changelog_has_this_version() {
    let text = std::fs::read_to_string(packaging().join("CHANGELOG.md")).unwrap();
    let version = format!("## {}", env!("CARGO_PKG_VERSION"));
    assert!(text.contains("## Unreleased") || text.contains(&version), "{version} is not in the changelog");
}
