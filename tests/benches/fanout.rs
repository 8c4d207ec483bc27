//! What it costs to show one run to many: the daemon's CPU for 10,000 deltas that a model sends without pause, to
//! one subscriber and to fifty, and for each event that is delivered of a stream of a hundred deltas a second.
//!
//! `cargo build --release --workspace && cargo bench -p kli-tests --bench fanout`. Ends with status 1 if it costs
//! more than the socket promises. Model and subscribers are threads of this process, the daemon is the real one;
//! rounds alternate and the cheapest of each counts, since a shared machine only ever makes it dearer.

#![allow(clippy::print_stdout)]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use kli_tests::model::{End, Step};
use kli_tests::{Daemon, ModelServer, Reply, Session, Setup, fixtures};
use serde_json::json;

const DELTAS: usize = 10_000;
const MANY: usize = 50;
const ROUNDS: usize = 5;
const PACED_DELTAS: usize = 500;
const PACE: Duration = Duration::from_millis(10);

/// Of the CPU of one subscriber, without pause.
const MOST_TIMES: f64 = 3.0;
/// For each delivered event, paced.
const MOST_MICROS: f64 = 10.0;

fn main() {
    let server = ModelServer::start();
    let daemon = Setup::new().persisted().config(server.config(2_000_000_000)).start();
    let mut missed = false;
    for (name, reply) in [("a write for each", each as fn() -> Reply), ("one write", all)] {
        let mut best = [f64::MAX; 2];
        let mut events = [0; 2];
        for _ in 0..ROUNDS {
            for (at, subscribers) in [1, MANY].into_iter().enumerate() {
                server.script([reply()]);
                let run = stream(&daemon, subscribers);
                best[at] = best[at].min(run.cpu.as_secs_f64());
                events[at] = run.events / subscribers;
            }
        }
        let times = best[1] / best[0];
        missed |= times > MOST_TIMES;
        println!(
            "{DELTAS} deltas, {name}: {:.0} ms for 1 subscriber ({} events), {:.0} ms for {MANY} ({} events): \
             {times:.2} times (at most {MOST_TIMES})",
            best[0] * 1e3,
            events[0],
            best[1] * 1e3,
            events[1],
        );
    }
    for subscribers in [1, MANY] {
        server.script([paced()]);
        let run = stream(&daemon, subscribers);
        let micros = run.cpu.as_secs_f64() * 1e6 / run.events as f64;
        let rate = PACED_DELTAS as f64 / run.took.as_secs_f64();
        // One subscriber bears the whole run alone; the promise is about delivering.
        missed |= subscribers == MANY && micros > MOST_MICROS;
        println!(
            "{PACED_DELTAS} deltas, {rate:.0} a second, {subscribers} subscribers: {micros:.1} µs for each of {} \
             delivered events (at most {MOST_MICROS} for {MANY})",
            run.events
        );
    }
    drop(daemon);
    std::process::exit(i32::from(missed));
}

fn deltas() -> impl Iterator<Item = Step> {
    (0..DELTAS).map(|n| Step::Text(format!("word{n} ")))
}

fn each() -> Reply {
    Reply::steps(deltas().chain([Step::End(End::Done)]))
}

/// The same as one piece.
fn all() -> Reply {
    let mut bytes = Vec::new();
    for n in 0..DELTAS {
        let chunk = json!({ "choices": [{ "index": 0, "delta": { "content": format!("word{n} ") } }] });
        bytes.extend_from_slice(format!("data: {chunk}\n\n").as_bytes());
    }
    let end = json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "stop" }] });
    bytes.extend_from_slice(format!("data: {end}\n\ndata: [DONE]\n\n").as_bytes());
    Reply::sse(bytes)
}

fn paced() -> Reply {
    let steps = (0..PACED_DELTAS).flat_map(|n| [Step::Text(format!("word{n} ")), Step::Pause(PACE)]);
    Reply::steps(steps.chain([Step::End(End::Done)]))
}

struct Run {
    /// The daemon's.
    cpu: Duration,
    took: Duration,
    /// Delivered to all of them.
    events: usize,
}

/// One run of a fresh session, until every subscriber has seen its end.
fn stream(daemon: &Daemon, subscribers: usize) -> Run {
    let work_dir = fixtures::work_dir();
    let mut session = Session::create(daemon, work_dir.path());
    let (ready, all_ready) = mpsc::channel();
    let readers: Vec<_> = (0..subscribers)
        .map(|_| {
            let (ready, socket, id) = (ready.clone(), daemon.socket.clone(), session.id.clone());
            std::thread::spawn(move || read(UnixStream::connect(socket).unwrap(), &id, &ready))
        })
        .collect();
    for _ in 0..subscribers {
        all_ready.recv().unwrap();
    }
    let (before, begin) = (daemon.cpu_time(), Instant::now());
    session.call("prompt", json!({ "text": "go" }));
    let events = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
    Run { cpu: daemon.cpu_time() - before, took: begin.elapsed(), events }
}

/// Subscribes and reads up to the end of the run: how many events came after the snapshot.
fn read(mut stream: UnixStream, session: &str, ready: &mpsc::Sender<()>) -> usize {
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "subscribe", "params": { "sessionId": session } });
    stream.write_all(format!("{call}\n").as_bytes()).unwrap();
    let (mut lines, mut tail) = (0, Vec::new());
    let mut piece = vec![0; 64 << 10];
    loop {
        let length = stream.read(&mut piece).unwrap();
        assert_ne!(length, 0, "the daemon closed");
        let before = lines;
        lines += piece[..length].iter().filter(|byte| **byte == b'\n').count();
        // The reply, then the snapshot.
        if before < 2 && lines >= 2 {
            ready.send(()).unwrap();
        }
        tail.extend_from_slice(&piece[..length]);
        if has(&tail, b"\"type\":\"runEnd\"") {
            return lines - 2;
        }
        let kept = tail.len().saturating_sub(64);
        tail.drain(..kept);
    }
}

fn has(bytes: &[u8], needle: &[u8]) -> bool {
    bytes.windows(needle.len()).any(|window| window == needle)
}
