//! What sessions cost by their size, beside what the machine costs anyway: `cargo bench -p kli-tests --bench store`,
//! with `-- 1000 10000 100000 1000000` for the sizes (default: the first three).
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kli_daemon::store::{Durability, Filter, Ix, Log, NewSession, Search, Store, StoreSettings};
use kli_protocol::record::{Body, LeafRecord, Message, Record, UserMessage};

fn main() {
    let mut sizes: Vec<usize> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    if sizes.is_empty() {
        sizes = vec![1_000, 10_000, 100_000];
    }
    println!(
        "{:>9} {:>8} | {:>9} {:>9} {:>9} | {:>9} {:>9} {:>9} {:>9} {:>9} | {:>9} {:>9} {:>9} {:>9}",
        "entries",
        "MB",
        "read file",
        "open",
        "by index",
        "fork",
        "f. synced",
        "navigate",
        "page 1000",
        "ancestor",
        "app. os",
        "turn",
        "entry",
        "RSS MB"
    );
    for size in sizes {
        one_session(size);
    }
    for count in [1_000, 10_000] {
        many_sessions(count);
    }
    searching(400, 1 << 20);
}

fn store(dir: &Path, durability: Durability) -> Arc<Store> {
    Store::new(Some(dir), StoreSettings { durability, max_memory_bytes: 1 << 30 }).unwrap()
}

fn new_session(number: u64) -> NewSession {
    let created_at_ms = 1_790_000_000_000 + number;
    let id = uuid_like(created_at_ms, number);
    NewSession { id, work_dir: "/tmp/w".into(), created_at_ms, persist: true, ..NewSession::default() }
}

/// A UUIDv7 of that time.
fn uuid_like(ms: u64, number: u64) -> String {
    format!("{:08x}-{:04x}-7000-8000-{number:012x}", ms >> 16, ms & 0xffff)
}

fn one_session(size: usize) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x_bench.jsonl");
    let bytes = write_session(&path, "bench", size);
    let read = best(3, || {
        let mut file = std::fs::File::open(&path).unwrap();
        let mut buffer = vec![0; 128 * 1024];
        while file.read(&mut buffer).unwrap() > 0 {}
    });
    let scan = best(3, || {
        let quiet = tempfile::tempdir().unwrap();
        let link = quiet.path().join("x_bench.jsonl");
        std::fs::hard_link(&path, &link).unwrap();
        let store = store(quiet.path(), Durability::Os);
        timed(|| drop(std::hint::black_box(store.open("bench").unwrap())))
    });
    {
        // Leaves the index behind.
        let store = store(dir.path(), Durability::Os);
        drop(store.open("bench").unwrap());
    }
    let indexed = store(dir.path(), Durability::Os);
    let by_index = best(1, || timed(|| drop(std::hint::black_box(indexed.open("bench").unwrap()))));
    let log = indexed.open("bench").unwrap();
    let resident = resident_mb();
    let leaf = log.leaf().unwrap();
    let mut number = 0;
    let mut fork = |store: &Arc<Store>, log: &Arc<Log>| {
        number += 1;
        let new = new_session(number);
        timed(|| drop(std::hint::black_box(store.fork(log, leaf, new).unwrap())))
    };
    let forked = best(20, || fork(&indexed, &log));
    let navigate = best(20, || append(&log, Body::Leaf(LeafRecord {})));
    let page = best(5, || {
        timed(|| {
            std::hint::black_box(log.entries_before(log.end()).take(1_000).count());
        })
    });
    let ancestor = best(20, || {
        timed(|| {
            std::hint::black_box(log.is_ancestor(Ix(0), leaf));
        })
    });
    let os = best(50, || append(&log, prompt()));
    drop((log, indexed));
    let synced = store(dir.path(), Durability::Turn);
    let log = synced.open("bench").unwrap();
    let fork_synced = best(10, || fork(&synced, &log));
    let turn = best(50, || append(&log, prompt()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let entry = best(20, || append(&log, prompt()) + timed(|| runtime.block_on(log.sync()).unwrap()));
    println!(
        "{size:>9} {:>8.1} | {:>9} {:>9} {:>9} | {:>9} {:>9} {:>9} {:>9} {:>9} | {:>9} {:>9} {:>9} {resident:>9}",
        bytes as f64 / 1e6,
        show(read),
        show(scan),
        show(by_index),
        show(forked),
        show(fork_synced),
        show(navigate),
        show(page),
        show(ancestor),
        show(os),
        show(turn),
        show(entry)
    );
}

fn many_sessions(count: usize) {
    let dir = tempfile::tempdir().unwrap();
    for n in 0..count {
        write_session(&dir.path().join(format!("x_s{n}.jsonl")), &format!("s{n}"), 2);
    }
    let cold = timed(|| drop(store(dir.path(), Durability::Os).list(&Filter::default())));
    let started = store(dir.path(), Durability::Os);
    let cached = timed(|| drop(started.list(&Filter::default())));
    let warm = best(5, || timed(|| drop(started.list(&Filter::default()))));
    println!(
        "list of {count} sessions: first ever {}, after a start {}, warm {}",
        show(cold),
        show(cached),
        show(warm)
    );
}

fn searching(count: usize, bytes: usize) {
    let dir = tempfile::tempdir().unwrap();
    let mut total = 0;
    for n in 0..count {
        total += write_session(&dir.path().join(format!("x_s{n}.jsonl")), &format!("s{n}"), bytes / 1_000);
    }
    let store = store(dir.path(), Durability::Os);
    store.list(&Filter::default());
    for query in ["notinany", "prompt 44 "] {
        let search = Search { query: query.into(), limit: 1_000, ..Search::default() };
        let mut hits = 0;
        let time = best(2, || timed(|| hits = store.search(&search).unwrap().0.len()));
        println!("search for {query:?} in {count} sessions of {} MB in all: {}, {hits} hits", total >> 20, show(time));
    }
}

fn prompt() -> Body {
    Body::message(Message::User(UserMessage { content: "a prompt of some words".into(), ..UserMessage::default() }))
}

fn append(log: &Log, body: Body) -> Duration {
    let id = format!("b{:07x}", log.end().0);
    let record = [Record::new(id, log.leaf().map(|ix| log.id(ix)), "2026-01-01T00:00:00.000Z", body)];
    timed(|| drop(log.append(&record).unwrap()))
}

/// Prompts, answers with calls, and results, about 1 KB each, with a side branch now and then.
fn write_session(path: &Path, id: &str, count: usize) -> usize {
    let mut out = std::io::BufWriter::new(std::fs::File::create(path).unwrap());
    let head = format!(
        "{{\"type\":\"session\",\"version\":3,\"id\":\"{id}\",\"timestamp\":\"2026-01-01T00:00:00.000Z\",\"cwd\":\"/tmp/w\"}}\n"
    );
    out.write_all(head.as_bytes()).unwrap();
    let (mut total, mut line) = (head.len(), String::new());
    let text = "tree leaf branch parser socket buffer commit session entry model ".repeat(12);
    for n in 0..count {
        let parent = match n {
            0 => "null".to_owned(),
            n if n % 50 == 49 => format!("\"{:08x}\"", hashed(n - 5)),
            n => format!("\"{:08x}\"", hashed(n - 1)),
        };
        line.clear();
        let message = match n % 4 {
            0 => format!("\"role\":\"user\",\"content\":\"prompt {n} {text}\""),
            2 => format!(
                "\"role\":\"toolResult\",\"toolCallId\":\"c{}\",\"toolName\":\"bash\",\"content\":[{{\"type\":\"text\",\"text\":\"{text}\\n{text}\"}}],\"isError\":false",
                n - 1
            ),
            _ => format!(
                "\"role\":\"assistant\",\"content\":[{{\"type\":\"text\",\"text\":\"{text}\"}}],\"api\":\"x\",\"provider\":\"p\",\"model\":\"m\",\"usage\":{{\"input\":10,\"output\":5,\"cacheRead\":0,\"cacheWrite\":0,\"totalTokens\":15,\"cost\":{{\"input\":0,\"output\":0,\"cacheRead\":0,\"cacheWrite\":0,\"total\":0}}}},\"stopReason\":\"stop\""
            ),
        };
        writeln!(line, "{{\"type\":\"message\",\"id\":\"{:08x}\",\"parentId\":{parent},\"timestamp\":\"2026-01-01T00:00:{:02}.000Z\",\"message\":{{{message},\"timestamp\":1767225600000}}}}", hashed(n), n % 60).unwrap();
        out.write_all(line.as_bytes()).unwrap();
        total += line.len();
    }
    out.flush().unwrap();
    total
}

fn hashed(n: usize) -> u32 {
    (n as u32).wrapping_mul(2_654_435_761)
}

fn timed(act: impl FnOnce()) -> Duration {
    let start = Instant::now();
    act();
    start.elapsed()
}

/// The shortest of some: the machine may be busy with other things.
fn best<T: Into<Timing>>(times: usize, mut act: impl FnMut() -> T) -> Duration {
    let run = |act: &mut dyn FnMut() -> T| {
        let start = Instant::now();
        match act().into() {
            Timing::Own(time) => time,
            Timing::Whole => start.elapsed(),
        }
    };
    (0..times).map(|_| run(&mut act)).min().unwrap_or_default()
}

enum Timing {
    Own(Duration),
    Whole,
}

impl From<Duration> for Timing {
    fn from(time: Duration) -> Timing {
        Timing::Own(time)
    }
}

impl From<()> for Timing {
    fn from((): ()) -> Timing {
        Timing::Whole
    }
}

fn show(time: Duration) -> String {
    match time.as_nanos() {
        0..10_000 => format!("{} ns", time.as_nanos()),
        10_000..10_000_000 => format!("{} µs", time.as_micros()),
        _ => format!("{} ms", time.as_millis()),
    }
}

/// Of this process; 0 where the system does not tell.
fn resident_mb() -> u64 {
    let pages = std::fs::read_to_string(PathBuf::from("/proc/self/statm")).unwrap_or_default();
    pages.split(' ').nth(1).and_then(|n| n.parse::<u64>().ok()).unwrap_or_default() * 4 / 1024
}
