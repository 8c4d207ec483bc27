//! What the daemon itself costs in a run: the time of a turn beside an instant model in a short and in a very long
//! session, the CPU of a stream, the memory of a hundred streams at once.
//!
//! `cargo build --release --workspace && cargo bench -p kli-tests --bench turn`. The daemon is the real one, a process
//! of its own; the model is a server here that answers without thinking and says how long it took, which is taken off.
//! `-- turns`, `streams` or `many` does only that part. Ends with status 1 if a promise is not kept. Of a shared machine the best round counts.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use kli_tests::{Client, Daemon, Setup, fixtures};
use serde_json::{Value, json};

/// Rounds of each measurement, and what is done in one.
const ROUNDS: usize = 12;
const RUNS: usize = 25;
const TOKENS: usize = 2_000;
const STREAMS: usize = 100;

/// What is promised.
const TURN: Duration = Duration::from_millis(1);
const LONG_SESSION: f64 = 2.0;
const STREAM_CPU: Duration = Duration::from_millis(10);
const STREAMS_MIB: f64 = 150.0;

fn main() {
    let only: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let mut table = Table::new();
    for (name, part) in [("turns", turns as fn(&mut Table)), ("streams", streams), ("many", many)] {
        if only.is_empty() || only.iter().any(|wanted| wanted == name) {
            part(&mut table);
        }
    }
    std::process::exit(i32::from(table.missed));
}

fn turns(table: &mut Table) {
    let model = Model::start();
    let (daemon, work_dir) = daemon_of(&model);
    let sessions = daemon.session_dir.clone().unwrap();
    std::fs::create_dir_all(&sessions).unwrap();
    let lengths = [("10 entries", 10), ("100,000 entries", 100_000)];
    let mut client = daemon.client();
    let mut least: Vec<[Measured; 2]> = Vec::new();
    for (_, entries) in lengths {
        let id = write_session(&sessions, work_dir.path(), entries);
        for _ in 0..3 {
            ask(&mut client, &id, &json!({}));
        }
        let kinds = [Script::Text, Script::Tool].map(|script| {
            model.play(script.clone());
            (0..ROUNDS)
                .map(|_| round(&mut client, &daemon, &model, &id, script.turns()))
                .min_by_key(|m| m.time)
                .unwrap()
        });
        least.push(kinds);
    }
    for (at, kind) in ["turn of one token", "turn with a tool call"].into_iter().enumerate() {
        for ((name, entries), measured) in lengths.iter().zip(&least) {
            let (time, cpu) = (measured[at].time, measured[at].cpu);
            let what = format!("{kind}, {name}");
            let measured = format!("{:.3} ms ({:.3} ms CPU)", ms(time), ms(cpu));
            match *entries {
                10 => table.row(&what, &measured, "1 ms", time < TURN),
                _ => table.row(&what, &measured, "", true),
            }
        }
        let ratio = least[1][at].time.as_secs_f64() / least[0][at].time.as_secs_f64();
        table.row(&format!("{kind}, ratio"), &format!("{ratio:.2}"), "2", ratio <= LONG_SESSION);
    }
}

#[derive(Clone, Copy)]
struct Measured {
    time: Duration,
    cpu: Duration,
}

/// The daemon's own time for a turn: all but what the model took.
fn round(client: &mut Client, daemon: &Daemon, model: &Model, id: &str, turns: u32) -> Measured {
    let (cpu, thought) = (cpu_of(daemon), model.thought());
    let begun = Instant::now();
    for _ in 0..RUNS {
        ask(client, id, &json!({}));
    }
    let time = begun.elapsed() - (model.thought() - thought);
    let turns = turns * u32::try_from(RUNS).unwrap();
    Measured { time: time / turns, cpu: (cpu_of(daemon) - cpu) / turns }
}

/// A stream of short tokens, each in a write of its own, with somebody who watches.
fn streams(table: &mut Table) {
    let model = Model::start();
    let (daemon, work_dir) = daemon_of(&model);
    let mut client = daemon.client();
    let id = create(&mut client, work_dir.path());
    client.call("subscribe", json!({ "sessionId": id }));
    for (pause, name) in [(Duration::ZERO, "as fast as it goes"), (Duration::from_micros(500), "2,000 tokens a second")]
    {
        model.play(Script::Stream { pause, start: None });
        let bare = (0..ROUNDS / 2).map(|_| bare_read(&model)).min().unwrap();
        table.row(&format!("CPU of reading the bytes of it, {name}"), &format!("{:.2} ms", ms(bare)), "", true);
        let least = (0..ROUNDS / 2).map(|_| {
            let before = cpu_of(&daemon);
            ask(&mut client, &id, &json!({}));
            cpu_of(&daemon) - before
        });
        let least = least.min().unwrap();
        let what = format!("CPU of a stream of {TOKENS} tokens, {name}");
        // One that is slow is mostly waiting, and the price of each wait is the machine's.
        let (limit, kept) = if pause.is_zero() { ("10 ms", least < STREAM_CPU) } else { ("", true) };
        table.row(&what, &format!("{:.2} ms", ms(least)), limit, kept);
    }
}

/// The CPU time that it takes to wait for the pieces of a stream and to copy them.
fn bare_read(model: &Model) -> Duration {
    let cpu = || {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
    };
    let mut stream = TcpStream::connect(("127.0.0.1", model.port)).unwrap();
    stream.write_all(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 0\r\n\r\n").unwrap();
    let before = cpu();
    let (mut piece, mut end) = ([0; 16 << 10], Vec::new());
    while !end.ends_with(b"0\r\n\r\n") {
        let read = stream.read(&mut piece).unwrap();
        end.extend_from_slice(&piece[..read]);
        end.drain(..end.len().saturating_sub(5));
    }
    cpu() - before
}

/// Sessions that stream at the same time.
fn many(table: &mut Table) {
    let model = Model::start();
    let (daemon, work_dir) = daemon_of(&model);
    let start = Arc::new(Barrier::new(STREAMS + 1));
    model.play(Script::Stream { pause: Duration::from_millis(1), start: Some(start.clone()) });
    let mut client = daemon.client();
    let idle = memory_of(&daemon, "VmRSS");
    let calls: Vec<u64> = (0..STREAMS)
        .map(|_| {
            let id = create(&mut client, work_dir.path());
            client.call("subscribe", json!({ "sessionId": id }));
            client.send("prompt", json!({ "sessionId": id, "text": "stream", "wait": true }))
        })
        .collect();
    start.wait();
    let begun = Instant::now();
    let mut ended: Vec<Duration> = Vec::new();
    for call in calls {
        let result = client.reply(call).unwrap();
        assert_eq!(result["text"].as_str().map(str::len), Some(TOKENS * "token ".len()), "{result}");
        ended.push(begun.elapsed());
    }
    let most = memory_of(&daemon, "VmHWM");
    let what = format!("memory of {STREAMS} sessions that stream ({idle:.0} MiB before)");
    table.row(&what, &format!("{most:.0} MiB"), "150 MiB", most < STREAMS_MIB);
    let spread = ended.last().unwrap().as_secs_f64();
    table.row(&format!("{STREAMS} streams of {TOKENS} tokens"), &format!("all done in {spread:.1} s"), "", true);
}

fn daemon_of(model: &Model) -> (Daemon, tempfile::TempDir) {
    let config = format!(
        "defaultModel = \"m/m1\"\ndefaultMode = \"auto\"\n[providers.m]\napi = \"openai-chat\"\nbaseUrl = \
         \"http://127.0.0.1:{}/v1\"\n[[providers.m.models]]\nid = \"m1\"\ncontextWindow = 1000000\nmaxOutput = 4096\n",
        model.port
    );
    (Setup::new().persisted().config(config).start(), fixtures::work_dir())
}

fn create(client: &mut Client, work_dir: &Path) -> String {
    client.call("createSession", json!({ "workDir": work_dir }))["sessionId"].as_str().unwrap().to_owned()
}

fn ask(client: &mut Client, id: &str, more: &Value) -> Value {
    let mut params = json!({ "sessionId": id, "text": "go on", "wait": true });
    params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let result = client.call("prompt", params);
    assert_eq!(result["stopReason"], "done", "{result}");
    result
}

/// A session as a day of work leaves it: prompts, replies, calls and results of 200 bytes to 2 KB, and after every 400
/// entries a compaction that keeps the last 40.
fn write_session(sessions: &Path, work_dir: &Path, entries: usize) -> String {
    const WORDS: [&str; 10] =
        ["tree", "leaf", "branch", "parser", "socket", "buffer", "commit", "session", "entry", "model"];
    let id = format!("01900000-0000-7000-9000-{entries:012}");
    let mut file = fixtures::SessionFile::new(&id, work_dir);
    let (mut random, mut parent, mut prompts): (u64, Option<String>, Vec<String>) = (entries as u64 + 1, None, vec![]);
    let mut next = move |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    for n in 0..entries {
        let name = format!("{:08x}", (n as u64 * 2_654_435_761) & 0xffff_ffff);
        let words: Vec<&str> = (0..20 + next(280)).map(|_| WORDS[next(10) as usize]).collect();
        let body = words.join(" ");
        let at = parent.as_deref();
        if n > 0 && n % 400 == 0 {
            let kept = prompts.split_off(prompts.len() - 10);
            let summary = format!("Summary up to entry {n}: {}", "the work so far. ".repeat(20));
            let fields = json!({ "summary": summary, "firstKeptEntryId": kept[0], "tokensBefore": 100_000 });
            file.record("compaction", &name, at, fields);
            prompts = kept;
        } else {
            match n % 4 {
                0 => {
                    file.user(&name, at, &body[..body.len().min(400)]);
                    prompts.push(name.clone());
                }
                1 => drop(file.call(&name, at, &format!("call_{n}"))),
                2 => drop(file.result(&name, at, &format!("call_{}", n - 1), &body)),
                _ => drop(file.assistant(&name, at, &body)),
            }
        }
        parent = Some(name);
    }
    file.write(&sessions.join(format!("{id}.jsonl")));
    id
}

/// What the model answers.
#[derive(Clone)]
enum Script {
    Text,
    /// Calls a tool, then says a word.
    Tool,
    Stream {
        pause: Duration,
        start: Option<Arc<Barrier>>,
    },
}

impl Script {
    fn turns(&self) -> u32 {
        if matches!(self, Script::Tool) { 2 } else { 1 }
    }
}

struct Model {
    port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    script: Mutex<Script>,
    /// Nanoseconds between a whole request and the last byte of its reply.
    thought: AtomicU64,
    requests: AtomicU64,
}

impl Model {
    fn start() -> Model {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            script: Mutex::new(Script::Text),
            thought: AtomicU64::new(0),
            requests: AtomicU64::new(0),
        });
        let serving = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = serving.clone();
                // Ends with the daemon's connection.
                std::thread::spawn(move || serve(stream, &shared));
            }
        });
        Model { port, shared }
    }

    fn play(&self, script: Script) {
        *self.shared.script.lock().unwrap() = script;
        self.shared.requests.store(0, Ordering::Relaxed);
    }

    fn thought(&self) -> Duration {
        Duration::from_nanos(self.shared.thought.load(Ordering::Relaxed))
    }
}

fn serve(stream: TcpStream, shared: &Shared) {
    stream.set_nodelay(true).unwrap();
    let mut input = BufReader::with_capacity(1 << 20, stream.try_clone().unwrap());
    let mut output = stream;
    let mut body = Vec::new();
    while let Some(length) = head(&mut input) {
        body.resize(length, 0);
        if input.read_exact(&mut body).is_err() {
            return;
        }
        let begun = Instant::now();
        let script = shared.script.lock().unwrap().clone();
        let answered = reply(&mut output, script, shared.requests.fetch_add(1, Ordering::Relaxed));
        shared.thought.fetch_add(u64::try_from(begun.elapsed().as_nanos()).unwrap(), Ordering::Relaxed);
        if answered.is_err() {
            return;
        }
    }
}

/// The length of the request's body.
fn head(input: &mut impl BufRead) -> Option<usize> {
    let mut length = 0;
    let mut line = String::new();
    loop {
        line.clear();
        if input.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if line.trim().is_empty() {
            return Some(length);
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
}

const TEXT: &str = r#"data: {"choices":[{"index":0,"delta":{"content":"token "}}]}"#;
const USAGE: &str = r#"data: {"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":1,"total_tokens":11}}"#;
const CALL: &str = r#"data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"ls","arguments":"{}"}}]}}]}"#;

fn reply(output: &mut TcpStream, script: Script, count: u64) -> std::io::Result<()> {
    let end = |reason: &str| {
        format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{}},\"finish_reason\":\"{reason}\"}}]}}\n\n{USAGE}\n\ndata: [DONE]\n\n"
        )
    };
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n";
    let whole = match script {
        Script::Tool if count.is_multiple_of(2) => format!("{CALL}\n\n{}", end("tool_calls")),
        Script::Text | Script::Tool => format!("{TEXT}\n\n{}", end("stop")),
        Script::Stream { pause, start } => {
            write!(output, "{head}transfer-encoding: chunked\r\n\r\n")?;
            let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
            if let Some(start) = start {
                output.write_all(chunk(&format!("{TEXT}\n\n")).as_bytes())?;
                start.wait();
            } else {
                output.write_all(chunk(&format!("{TEXT}\n\n")).as_bytes())?;
            }
            let token = chunk(&format!("{TEXT}\n\n"));
            for _ in 1..TOKENS {
                output.write_all(token.as_bytes())?;
                if !pause.is_zero() {
                    std::thread::sleep(pause);
                }
            }
            return write!(output, "{}0\r\n\r\n", chunk(&end("stop")));
        }
    };
    output.write_all(format!("{head}content-length: {}\r\n\r\n{whole}", whole.len()).as_bytes())
}

/// CPU time of all its threads.
fn cpu_of(daemon: &Daemon) -> Duration {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
    let spent = tasks.flatten().filter_map(|task| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(spent.sum())
}

fn memory_of(daemon: &Daemon, field: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

struct Table {
    missed: bool,
}

impl Table {
    fn new() -> Table {
        println!("{:<58} {:>26} {:>8}", "what", "measured", "most");
        Table { missed: false }
    }

    fn row(&mut self, what: &str, measured: &str, most: &str, kept: bool) {
        self.missed |= !kept;
        println!("{what:<58} {measured:>26} {most:>8} {}", if kept { "" } else { "MISSED" });
    }
}
