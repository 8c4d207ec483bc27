//! Times, sizes, and the table that they stand in.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kli_tests::Daemon;
use serde_json::{Value, json};

use crate::files;

/// A connection that reads replies without looking at them while the time runs.
pub struct Wire {
    lines: BufReader<UnixStream>,
    line: Vec<u8>,
    /// Bytes of it.
    pub last_reply: usize,
}

impl Wire {
    pub fn connect(daemon: &Daemon) -> Wire {
        let stream = UnixStream::connect(&daemon.socket).unwrap();
        Wire { lines: BufReader::with_capacity(1 << 20, stream), line: Vec::new(), last_reply: 0 }
    }

    /// The reply's seconds.
    pub fn time(&mut self, method: &str, params: Value) -> f64 {
        self.call(method, params).0
    }

    pub fn call(&mut self, method: &str, params: Value) -> (f64, Value) {
        let call = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string() + "\n";
        self.line.clear();
        let start = Instant::now();
        self.lines.get_mut().write_all(call.as_bytes()).unwrap();
        self.lines.read_until(b'\n', &mut self.line).unwrap();
        let time = start.elapsed().as_secs_f64();
        self.last_reply = self.line.len();
        let reply: Value = serde_json::from_slice(&self.line).unwrap();
        assert!(reply.get("error").is_none(), "{method}: {reply}");
        (time, reply)
    }

    /// Opens the session; its leaf.
    pub fn leaf(&mut self) -> String {
        self.call("openSession", json!({ "sessionId": files::ID }));
        let (_, state) = self.call("getSession", json!({ "sessionId": files::ID }));
        state["result"]["leafId"].as_str().unwrap().to_owned()
    }
}

/// The shortest of some: the machine may be busy with other things.
pub struct Best(f64);

impl Best {
    pub fn new() -> Best {
        Best(f64::MAX)
    }

    pub fn add(&mut self, seconds: f64) {
        self.0 = self.0.min(seconds);
    }

    pub fn get(&self) -> f64 {
        self.0
    }
}

pub fn best(times: usize, mut act: impl FnMut() -> f64) -> f64 {
    (0..times).map(|_| act()).fold(f64::MAX, f64::min)
}

pub fn median(times: impl Iterator<Item = f64>) -> f64 {
    let mut all: Vec<f64> = times.collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or_default()
}

pub fn timed(act: impl FnOnce()) -> f64 {
    let start = Instant::now();
    act();
    start.elapsed().as_secs_f64()
}

pub fn cat(file: &Path) -> f64 {
    timed(|| {
        Command::new("cat").arg(file).stdout(Stdio::null()).status().unwrap();
    })
}

/// MB that the daemon takes.
pub fn rss(daemon: &Daemon) -> f64 {
    daemon.rss_bytes() as f64 / 1e6
}

/// The most of the next second: what goes on in the background counts.
pub fn settled_rss(daemon: &Daemon) -> f64 {
    let end = Instant::now() + Duration::from_secs(1);
    let mut most = 0.0f64;
    while Instant::now() < end {
        most = most.max(rss(daemon));
        std::thread::sleep(Duration::from_millis(10));
    }
    most
}

/// Where a file of that size has an index, until it is there.
pub fn until_written(idx: &Path, bytes: f64) {
    if bytes > (1 << 20) as f64 {
        assert!(kli_tests::poll(kli_tests::PATIENCE, || idx.exists()), "no {}", idx.display());
    }
}

/// Rows of measures, columns of sizes.
pub struct Table {
    columns: Vec<String>,
    rows: Vec<(String, Vec<String>)>,
    missed: bool,
}

impl Table {
    pub fn new(columns: impl Iterator<Item = String>) -> Table {
        Table { columns: columns.collect(), rows: Vec::new(), missed: false }
    }

    fn put(&mut self, name: &str, cell: String) {
        match self.rows.iter_mut().find(|(row, _)| row == name) {
            Some((_, cells)) => cells.push(cell),
            None => self.rows.push((name.to_owned(), vec![cell])),
        }
    }

    pub fn plain(&mut self, name: &str, value: f64) {
        self.put(name, format!("{value:.1}"));
    }

    pub fn time(&mut self, name: &str, seconds: f64) {
        self.put(name, show(seconds));
    }

    /// A time in seconds, or a number where the name says of what.
    pub fn limited(&mut self, name: &str, value: f64, limit: f64) {
        let missed = value > limit;
        self.missed |= missed;
        let mark = if missed { " !" } else { "" };
        let number = name.contains("MB") || name.contains("bytes");
        let text = if number { format!("{value:.2}") } else { show(value) };
        self.put(name, format!("{text}{mark}"));
    }

    /// Whether something misses its limit.
    pub fn print(&self) -> bool {
        let wide = self.rows.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
        print!("{:wide$}", "");
        for column in &self.columns {
            print!(" {column:>16}");
        }
        println!();
        for (name, cells) in &self.rows {
            print!("{name:wide$}");
            for cell in cells {
                print!(" {cell:>16}");
            }
            println!();
        }
        println!();
        self.missed
    }
}

fn show(seconds: f64) -> String {
    match seconds {
        s if s < 1e-5 => format!("{:.2} µs", s * 1e6),
        s if s < 1e-3 => format!("{:.0} µs", s * 1e6),
        s if s < 1e-1 => format!("{:.2} ms", s * 1e3),
        s => format!("{:.0} ms", s * 1e3),
    }
}
