//! The clients of `packaging/examples`, each run by the program that it is for against the real daemon. Where that
//! program is not installed the test says so and passes; `.ci/run` installs what is to be had.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kli_tests::model::{End, Step};
use kli_tests::{Gate, PATIENCE, Place, Reply, fixtures, process};
use serde_json::Value;

/// What a shell, a JSON string, or both could trip over.
const QUESTION: &str = "say \"hi\\there\" to $HOME;\tü\non two lines";

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/examples").join(name)
}

/// Whether a program is there and does what is asked of it.
fn works(what: &str, program: &str, args: &[&str]) -> bool {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output();
    let works = output.is_ok_and(|output| output.status.success());
    if !works {
        eprintln!("skipped: there is no {what}");
    }
    works
}

fn has_neovim() -> bool {
    // The oldest that the examples are for; Debian 12 has 0.7.
    let probe = "+lua vim.cmd(vim.uv and vim.fs.joinpath and 'qa!' or 'cq')";
    works("Neovim 0.10 or newer", "nvim", &["--headless", "--clean", probe])
}

/// Asks, and reads what is printed: the first half while the model has not gone on, then the rest.
#[track_caller]
fn check(program: &str, args: &[&str], script: &str, shown: impl Fn(&str) -> String) {
    let gate = Gate::new();
    let p = Place::with([Reply::held("first half, ", &gate, "second half")]);
    let mut command = command(program, args, script, &p.daemon.socket, &p);
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let _watchdog = process::Watchdog::over(child.id());
    let (mut stdout, mut printed) = (child.stdout.take().unwrap(), Vec::new());
    while !shown(&String::from_utf8_lossy(&printed)).contains("first half, ") {
        let mut piece = [0; 4096];
        let length = stdout.read(&mut piece).unwrap();
        assert_ne!(length, 0, "{script} ended early: {}", errors(child));
        printed.extend_from_slice(&piece[..length]);
    }
    gate.open();
    stdout.read_to_end(&mut printed).unwrap();
    let printed = String::from_utf8(printed).unwrap();
    assert_eq!(shown(&printed).trim_end_matches('\n'), "first half, second half", "{script}");
    let status = child.wait().unwrap();
    assert!(status.success(), "{script}: {status}");
    assert_eq!(p.server.last().texts().last().map(String::as_str), Some(QUESTION), "{script}");
}

fn command(program: &str, args: &[&str], script: &str, socket: &Path, p: &Place) -> Command {
    let mut command = Command::new(program);
    command.args(args).arg(example(script)).arg(QUESTION).current_dir(p.work_dir.path());
    command.env("KLI_SOCKET", socket).env("XDG_STATE_HOME", p.daemon.home.join("state"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn errors(child: std::process::Child) -> String {
    let output = child.wait_with_output().unwrap();
    format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr))
}

fn as_it_is(printed: &str) -> String {
    printed.to_owned()
}

#[test]
fn python() {
    if works("python3", "python3", &["--version"]) {
        check("python3", &[], "ask.py", as_it_is);
    }
}

#[test]
fn node() {
    if works("node with vscode-jsonrpc", "node", &["-e", "require('vscode-jsonrpc/node')"]) {
        check("node", &[], "ask.js", as_it_is);
    }
}

#[test]
fn neovim() {
    if has_neovim() {
        check("nvim", &["-l"], "ask.lua", as_it_is);
        check("nvim", &["-l"], "lines.lua", as_it_is);
    }
}

/// Neovim's own client as older ones have it, which starts a program and talks to that: `kli bridge`.
#[test]
fn neovim_over_the_bridge() {
    if !works("Neovim", "nvim", &["--version"]) {
        return;
    }
    let p = Place::with([Reply::text("the answer")]);
    let script = p.work_dir.path().join("ask.lua");
    std::fs::write(&script, OVER_THE_BRIDGE).unwrap();
    let kli = p.daemon.kli_command::<&str>(p.work_dir.path(), &[]);
    let mut command = Command::new("nvim");
    command.args(["--headless", "--clean", "-S"]).arg(&script).current_dir(p.work_dir.path());
    command.env("KLI", kli.get_program()).env("KLI_SOCKET", &p.daemon.socket).env("QUESTION", QUESTION);
    for (variable, place) in [("XDG_STATE_HOME", "state"), ("XDG_DATA_HOME", "data"), ("XDG_CONFIG_HOME", "config")] {
        command.env(variable, p.daemon.home.join(place));
    }
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "the answer", "{output:?}");
    assert_eq!(p.server.last().texts().last().map(String::as_str), Some(QUESTION));
}

const OVER_THE_BRIDGE: &str = r"
local ended
local client = vim.lsp.rpc.start(vim.env.KLI, { 'bridge' }, {
  notification = function(_, params)
    local event = params.result
    if event.type == 'textDelta' then
      io.stdout:write(event.delta)
    elseif event.type == 'runEnd' then
      ended = event.stopReason
    end
  end,
  server_request = function() end,
  on_exit = function() end,
  on_error = function(...) ended = vim.inspect({ ... }) end,
})
local function call(method, params, follow)
  client.request(method, params, function(err, result)
    if err then ended = err.message else follow(result) end
  end)
end
call('createSession', { workDir = vim.fn.getcwd() }, function(session)
  local id = session.sessionId
  call('subscribe', { sessionId = id }, function() end)
  call('prompt', { sessionId = id, text = vim.env.QUESTION }, function() end)
end)
vim.wait(10000, function() return ended ~= nil end, 10)
io.stdout:flush()
if ended ~= 'done' then io.stderr:write(ended or 'nothing came') end
vim.cmd(ended == 'done' and 'qa!' or 'cq')
";

/// It prints messages; the text is in the deltas.
#[test]
fn netcat() {
    if works("nc that knows Unix sockets", "sh", &["-c", "nc -h 2>&1 | grep -q -e -.*U"]) {
        check("sh", &[], "nc.sh", |printed| {
            let messages = printed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            messages.filter_map(|m| m["params"]["result"]["delta"].as_str().map(str::to_owned)).collect()
        });
    }
}

/// One call for a whole run: nothing is printed before its end.
#[test]
fn curl() {
    if !works("curl", "curl", &["--version"]) {
        return;
    }
    let p = Place::with([Reply::text("the answer")]);
    let output = command("sh", &[], "curl.sh", &p.daemon.socket, &p).output().unwrap();
    let reply: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    assert_eq!(reply["result"]["text"], "the answer", "{reply}");
    assert_eq!(p.server.last().texts().last().map(String::as_str), Some(QUESTION));
}

/// The Python client through a connection that breaks again and again: all of the text, once, and one run.
#[test]
fn python_on_a_bad_line() {
    if !works("python3", "python3", &["--version"]) {
        return;
    }
    let pieces: Vec<(String, Gate)> = (0..40).map(|n| (format!("piece {n}, "), Gate::new())).collect();
    let steps = pieces.iter().flat_map(|(text, gate)| [Step::Text(text.clone()), Step::Hold(gate.clone())]);
    let p = Place::with([Reply::steps(steps.chain([Step::End(End::Done)]))]);
    let line = BadLine::to(&p.daemon.socket);
    let mut child = command("python3", &[], "ask.py", &line.socket, &p).spawn().unwrap();
    let _watchdog = process::Watchdog::over(child.id());
    // What it says of lost connections is read too, or it would stop there.
    let mut told = BufReader::new(child.stderr.take().unwrap());
    let told = std::thread::spawn(move || {
        let mut lines = String::new();
        told.read_to_string(&mut lines).unwrap();
        lines
    });
    let mut printed = BufReader::new(child.stdout.take().unwrap());
    let mut heard = Vec::new();
    for (text, gate) in &pieces {
        while !heard.ends_with(text.as_bytes()) {
            assert_ne!(printed.read_until(b' ', &mut heard).unwrap(), 0, "it ended early");
        }
        gate.open();
    }
    printed.read_to_end(&mut heard).unwrap();
    let whole: String = pieces.iter().map(|(text, _)| text.as_str()).collect();
    assert_eq!(String::from_utf8(heard).unwrap().trim_end(), whole.trim_end());
    assert!(child.wait().unwrap().success());
    let told = told.join().unwrap();
    assert!(told.matches("going on after event").count() >= 3, "{told}");
    assert_eq!(p.server.requests().len(), 1, "the prompt was run once");
}

/// A way to the daemon that breaks after some thousand bytes from it, each time at another one.
struct BadLine {
    socket: PathBuf,
    _dir: tempfile::TempDir,
}

impl BadLine {
    fn to(daemon: &Path) -> BadLine {
        let dir = fixtures::temp_dir("kli-b");
        let socket = dir.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let daemon = daemon.to_owned();
        std::thread::spawn(move || {
            for (client, left) in listener.incoming().map_while(Result::ok).zip((1500..).step_by(137)) {
                let daemon = UnixStream::connect(&daemon).unwrap();
                std::thread::spawn(move || forward(client, daemon, left));
            }
        });
        BadLine { socket, _dir: dir }
    }
}

fn forward(client: UnixStream, daemon: UnixStream, mut left: usize) {
    let (mut from, mut to) = (client.try_clone().unwrap(), daemon.try_clone().unwrap());
    std::thread::spawn(move || std::io::copy(&mut from, &mut to));
    let (mut daemon, mut client) = (daemon, client);
    let mut piece = [0; 512];
    daemon.set_read_timeout(Some(PATIENCE)).unwrap();
    while let Ok(length @ 1..) = daemon.read(&mut piece) {
        let length = length.min(left);
        left -= length;
        if client.write_all(&piece[..length]).is_err() || left == 0 {
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Both);
    let _ = daemon.shutdown(Shutdown::Both);
}

/// Every example is told of in the readme beside it.
#[test]
fn all_are_told_of() {
    let readme = std::fs::read_to_string(example("README.md")).unwrap();
    for entry in std::fs::read_dir(example("")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(name == "README.md" || readme.contains(&format!(" {name} ")), "{name}");
    }
}
