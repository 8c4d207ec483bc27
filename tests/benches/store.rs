//! What sessions cost by their size, in the real daemon over its socket, beside what the machine costs anyway:
//!
//! ```text
//! cargo build --release --workspace && cargo bench -p kli-tests --bench store -- 1000 10000 100000 1000000
//! ```
//!
//! (default: the first three sizes). One table; a `!` marks what misses its limit, and then the exit status is 1.
//! Every time has a round trip over the socket in it. Where npm gives pi 1.6.0 (`tests/scripts/pi-bench`), the last
//! table is its SessionManager on the same files.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

#[path = "store/files.rs"]
mod files;
#[path = "store/measure.rs"]
mod measure;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use kli_tests::{Daemon, ModelServer, Reply, Setup};
use serde_json::{Value, json};

use files::Shape;
use measure::{Best, Table, Wire, median};

const KIB: f64 = 1024.0;
const MS: f64 = 1e-3;

fn main() {
    let mut sizes: Vec<usize> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    if sizes.is_empty() {
        sizes = vec![1_000, 10_000, 100_000];
    }
    let place = kli_tests::fixtures::temp_dir("kli-b");
    let mut missed = false;
    let mut table = Table::new(sizes.iter().map(|size| format!("{size} entries")));
    let mut made = Vec::new();
    for size in &sizes {
        let (plain, compacted) = (place.path().join(format!("{size}")), place.path().join(format!("{size}-c")));
        files::session(&plain, *size, Shape::Plain);
        files::session(&compacted, *size, Shape::Compacted);
        one_session(&mut table, &plain);
        with_a_context(&mut table, &compacted);
        made.push(files::path(&plain));
    }
    missed |= table.print();
    let mut table = Table::new(["1000 sessions", "10000 sessions"].map(str::to_owned).into_iter());
    for count in [1_000, 10_000] {
        many_sessions(&mut table, place.path(), count);
    }
    missed |= table.print();
    let mut table = Table::new(["100000 deep", "20000 children"].map(str::to_owned).into_iter());
    for (name, shape) in [("deep", Shape::Deep(100_000)), ("wide", Shape::Wide(20_000))] {
        let dir = place.path().join(name);
        files::session(&dir, 0, shape);
        odd_trees(&mut table, &dir);
    }
    missed |= table.print();
    let mut table = Table::new(["400 sessions of 1 MB"].map(str::to_owned).into_iter());
    searching(&mut table, place.path());
    missed |= table.print();
    pi(&made);
    std::process::exit(i32::from(missed));
}

fn daemon(dir: &Path, durability: &str, model: Option<&ModelServer>) -> Daemon {
    let model = model.map(|server| server.config(200_000)).unwrap_or_default();
    Setup::new().session_dir(dir).config(format!("durability = \"{durability}\"\n{model}")).start()
}

fn one_session(table: &mut Table, dir: &Path) {
    let file = files::path(dir);
    let bytes = std::fs::metadata(&file).unwrap().len() as f64;
    table.plain("file, MB", bytes / 1e6);
    let cat = measure::best(3, || measure::cat(&file));
    table.time("cat FILE >/dev/null", cat);

    // Opening: no index, then with it.
    let idx = files::idx(dir);
    let (mut cold, mut resident) = (Best::new(), 0.0f64);
    for _ in 0..3 {
        let _ = std::fs::remove_file(&idx);
        let _ = std::fs::remove_file(dir.join(".kli-list"));
        let daemon = daemon(dir, "os", None);
        let mut wire = Wire::connect(&daemon);
        let before = measure::rss(&daemon);
        cold.add(wire.time("openSession", json!({ "sessionId": files::ID })));
        resident = resident.max(measure::settled_rss(&daemon).max(before));
        measure::until_written(&idx, bytes);
    }
    table.limited("open without index", cold.get(), if bytes > 1e7 { 4.0 * cat.max(0.002) } else { f64::MAX });
    let mut warm = Best::new();
    for _ in 0..5 {
        let daemon = daemon(dir, "os", None);
        let mut wire = Wire::connect(&daemon);
        warm.add(wire.time("openSession", json!({ "sessionId": files::ID })));
    }
    table.limited("open by index", warm.get(), 20.0 * MS);
    table.limited("MB resident after opening", resident, 100.0);

    for (durability, limit) in [("os", 1.0 * MS), ("turn", 2.0 * MS)] {
        forks(table, dir, durability, limit);
    }
    fork_of_forks(table, dir);
    reads(table, dir);
    for durability in ["os", "turn", "entry"] {
        appends(table, dir, durability);
    }
    raw_writes(table, dir);
}

fn forks(table: &mut Table, dir: &Path, durability: &str, limit: f64) {
    let daemon = daemon(dir, durability, None);
    let mut wire = Wire::connect(&daemon);
    let leaf = wire.leaf();
    wire.time("ping", json!({}));
    let ping = median((0..50).map(|_| wire.time("ping", json!({}))));
    let mut largest = 0u64;
    let mut fork = |wire: &mut Wire, method: &str, params: Value| {
        let (time, reply) = wire.call(method, params);
        let path = reply["result"]["session"]["path"].as_str().unwrap_or_else(|| panic!("{method}: {reply}"));
        largest = largest.max(std::fs::metadata(path).unwrap().len());
        time
    };
    let forked = median((0..50).map(|_| fork(&mut wire, "fork", json!({ "sessionId": files::ID, "entryId": leaf }))));
    let cloned = median((0..50).map(|_| fork(&mut wire, "clone", json!({ "sessionId": files::ID }))));
    let far = files::early_entry();
    let mut to = [far.as_str(), leaf.as_str()].into_iter().cycle();
    let navigated = median((0..50).map(|_| {
        let to = to.next().unwrap_or_default();
        wire.time("navigateTree", json!({ "sessionId": files::ID, "entryId": to }))
    }));
    if durability == "os" {
        table.time("ping (in each time below)", ping);
    }
    table.limited(&format!("fork, durability {durability}"), forked, limit + ping);
    table.limited(&format!("clone, durability {durability}"), cloned, limit + ping);
    table.limited(&format!("navigate, durability {durability}"), navigated, 1.0 * MS + ping);
    if durability == "os" {
        table.limited("bytes written by a fork", largest as f64, KIB);
    }
    remove_forks(dir);
}

/// Each a fork of the one before, and open.
fn fork_of_forks(table: &mut Table, dir: &Path) {
    let daemon = daemon(dir, "os", None);
    let mut wire = Wire::connect(&daemon);
    wire.leaf();
    let mut source = files::ID.to_owned();
    let mut grow = |wire: &mut Wire, count: usize| {
        for _ in 0..count {
            let (_, reply) = wire.call("clone", json!({ "sessionId": source }));
            source = reply["result"]["session"]["sessionId"].as_str().unwrap().to_owned();
        }
    };
    // What the allocator and the connection take once.
    grow(&mut wire, 20);
    let before = measure::settled_rss(&daemon);
    grow(&mut wire, 100);
    let after = measure::settled_rss(&daemon);
    table.limited("MB of 100 forks of forks", after - before, 1.0);
    drop((wire, daemon));
    remove_forks(dir);
}

fn reads(table: &mut Table, dir: &Path) {
    let daemon = daemon(dir, "os", None);
    let mut wire = Wire::connect(&daemon);
    wire.leaf();
    let id = files::ID;
    let mut largest = 0.0f64;
    for (name, method, params, limit) in [
        ("getSession", "getSession", json!({ "sessionId": id }), f64::MAX),
        ("getTree branches, first page", "getTree", json!({ "sessionId": id, "view": "branches" }), 50.0 * MS),
        ("getTree all, first page", "getTree", json!({ "sessionId": id }), 50.0 * MS),
        ("getTree prompts, first page", "getTree", json!({ "sessionId": id, "view": "prompts" }), 50.0 * MS),
        ("getBranch, first page", "getBranch", json!({ "sessionId": id }), f64::MAX),
        ("getForkMessages, first page", "getForkMessages", json!({ "sessionId": id }), f64::MAX),
        (
            "getEntries, 1,000 from the start",
            "getEntries",
            json!({ "sessionId": id, "after": files::first_entry() }),
            f64::MAX,
        ),
        ("getStats", "getStats", json!({ "sessionId": id }), f64::MAX),
        ("search in it", "search", json!({ "sessionId": id, "query": "nothing says this" }), f64::MAX),
    ] {
        let time = measure::best(3, || wire.time(method, params.clone()));
        table.limited(name, time, limit);
        largest = largest.max(measure::rss(&daemon));
    }
    table.limited("MB resident at most while reading", largest, 200.0);
}

fn appends(table: &mut Table, dir: &Path, durability: &str) {
    let daemon = daemon(dir, durability, None);
    let mut wire = Wire::connect(&daemon);
    wire.leaf();
    let params = json!({ "sessionId": files::ID, "customType": "bench", "content": "a few words", "display": false });
    let time = median((0..100).map(|_| wire.time("appendEntry", params.clone())));
    table.time(&format!("append, durability {durability}"), time);
}

fn raw_writes(table: &mut Table, dir: &Path) {
    let mut file = std::fs::File::create(dir.join("raw")).unwrap();
    let line = [b'x'; 200];
    let write = median((0..100).map(|_| measure::timed(|| file.write_all(&line).unwrap())));
    let synced = median((0..100).map(|_| {
        measure::timed(|| {
            file.write_all(&line).unwrap();
            file.sync_data().unwrap();
        })
    }));
    table.time("raw write", write);
    table.time("raw write + fdatasync", synced);
    let _ = std::fs::remove_file(dir.join("raw"));
}

/// On a file with a compaction every 400 entries.
fn with_a_context(table: &mut Table, dir: &Path) {
    let server = ModelServer::start();
    server.otherwise(|_| Reply::text("an answer"));
    let daemon = daemon(dir, "turn", Some(&server));
    let mut wire = Wire::connect(&daemon);
    wire.leaf();
    wire.call("setModel", json!({ "sessionId": files::ID, "provider": "fake", "modelId": "m1" }));
    let id = files::ID;
    let first = wire.time("getContext", json!({ "sessionId": id }));
    let context = measure::best(3, || wire.time("getContext", json!({ "sessionId": id })));
    let prompt = json!({ "sessionId": id, "text": "and now?", "wait": true, "approvals": "deny" });
    wire.call("prompt", prompt.clone());
    let turn = median((0..20).map(|_| wire.time("prompt", prompt.clone())));
    table.time("getContext the first time (compacted)", first);
    table.time("getContext (compacted)", context);
    table.time("a turn, with its model server (compacted)", turn);
}

fn many_sessions(table: &mut Table, place: &Path, count: usize) {
    let dir = place.join(format!("many-{count}"));
    files::many(&dir, count, 2);
    let list = json!({ "limit": 50 });
    let scan = measure::timed(|| {
        for entry in std::fs::read_dir(&dir).unwrap() {
            std::fs::metadata(entry.unwrap().path()).unwrap();
        }
    });
    table.time("readdir + stat", scan);
    let (mut first_ever, mut first, mut warm) = (Best::new(), Best::new(), Best::new());
    for _ in 0..3 {
        let _ = std::fs::remove_file(dir.join(".kli-list"));
        let daemon = daemon(&dir, "os", None);
        first_ever.add(Wire::connect(&daemon).time("listSessions", list.clone()));
    }
    for _ in 0..3 {
        let mut daemon = daemon(&dir, "os", None);
        let mut wire = Wire::connect(&daemon);
        first.add(wire.time("listSessions", list.clone()));
        for _ in 0..10 {
            warm.add(wire.time("listSessions", list.clone()));
        }
        drop(wire);
        daemon.terminate();
    }
    let one = if count == 1_000 { 300.0 * MS } else { f64::MAX };
    table.limited("list, the first ever, at once", first_ever.get(), one);
    table.limited("list, at once after a start", first.get(), one);
    table.limited("list, warm", warm.get(), if count == 1_000 { 10.0 * MS } else { 50.0 * MS });
    let _ = std::fs::remove_dir_all(dir);
}

fn odd_trees(table: &mut Table, dir: &Path) {
    let daemon = daemon(dir, "os", None);
    let mut wire = Wire::connect(&daemon);
    wire.leaf();
    let mut largest = 0usize;
    for view in ["all", "branches", "messages", "prompts"] {
        let mut pages = Best::new();
        let mut worst = 0.0f64;
        let mut cursor = Value::Null;
        for _ in 0..30 {
            let call = json!({ "sessionId": files::ID, "view": view, "cursor": cursor });
            let (time, reply) = wire.call("getTree", call);
            pages.add(time);
            worst = worst.max(time);
            largest = largest.max(wire.last_reply);
            cursor = reply["result"]["nextCursor"].clone();
            if cursor.is_null() {
                break;
            }
        }
        table.limited(&format!("getTree {view}, best page"), pages.get(), 50.0 * MS);
        table.time(&format!("getTree {view}, worst page"), worst);
    }
    table.limited("largest reply, MB", largest as f64 / 1e6, 16.0);
}

fn searching(table: &mut Table, place: &Path) {
    let dir = place.join("search");
    files::many(&dir, 400, 1_000);
    let daemon = daemon(&dir, "os", None);
    let mut wire = Wire::connect(&daemon);
    wire.time("listSessions", json!({}));
    let total: f64 = std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().metadata().unwrap().len() as f64).sum();
    table.plain("MB in all", total / 1e6);
    let cat = measure::best(2, || {
        measure::timed(|| {
            let mut buffer = vec![0; 256 * 1024];
            for entry in std::fs::read_dir(&dir).unwrap() {
                let mut file = std::fs::File::open(entry.unwrap().path()).unwrap();
                while file.read(&mut buffer).unwrap() > 0 {}
            }
        })
    });
    table.time("reading them", cat);
    for (name, query) in [("search without a hit", "nothing says this"), ("search, hits in each", "prompt 44 ")] {
        let time = measure::best(3, || wire.time("search", json!({ "query": query })));
        table.limited(name, time, 1.0);
    }
    table.limited("MB resident", measure::rss(&daemon), 200.0);
}

/// pi's own SessionManager on the same files, in processes of its own.
fn pi(files: &[PathBuf]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/pi-bench");
    let mut command = Command::new(script);
    command.args(files);
    if let Err(error) = command.status() {
        println!("pi: {error}");
    }
}

fn remove_forks(dir: &Path) {
    for entry in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            std::fs::remove_dir_all(entry).unwrap();
        }
    }
}
