//! What a `ping` costs: round trips a second in each framing, as a ratio to a raw tokio Unix-socket echo that is
//! measured in the same run by the same clients. Server and echo are processes of their own, as for real clients.
//!
//! `cargo bench -p kli-tests --bench rpc`. Ends with status 1 if a ratio is below what the socket promises. Rounds
//! of all ways alternate and the best of each counts, since a shared machine only ever makes it slower.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kli_daemon::rpc::{Caller, Connections, Feed, Limits, Module, Server, Service, bind, prepare, register};
use kli_protocol::api::{Ping, PingResult, RegisterToolsParams, SubscribeParams};
use kli_protocol::{ApiError, PROTOCOL_VERSION};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;

const ROUNDS: usize = 20;
const ROUND: Duration = Duration::from_millis(250);
const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;

/// A way to ask and be answered.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Echo,
    Lines,
    ContentLength,
    WebSocket,
    Post,
}

/// With the least ratio for 1 and for 16 clients, where one is promised.
const WAYS: [(Way, [f64; 2]); 4] = [
    (Way::Lines, [0.85, 0.5]),
    (Way::ContentLength, [0.0, 0.0]),
    (Way::WebSocket, [0.85, 0.4]),
    (Way::Post, [0.0, 0.0]),
];

struct NoSessions;

type Opening = Pin<Box<dyn Future<Output = Result<Feed, ApiError>> + Send>>;

impl Service for NoSessions {
    fn subscribe(&self, _: Caller, _: SubscribeParams) -> Opening {
        Box::pin(async { Err(ApiError::internal("there is nothing to subscribe to")) })
    }

    fn register_tools(&self, _: Caller, _: RegisterToolsParams) -> Opening {
        Box::pin(async { Err(ApiError::internal("there is nobody to call tools")) })
    }

    fn closed(&self, _: u64) {}
}

const SERVE: &str = "--serve";

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, serve, way, path] = arguments.as_slice()
        && serve == SERVE
    {
        match way.as_str() {
            "echo" => serve_echo(UnixListener::bind(path).unwrap()).await,
            _ => server(Path::new(path), CancellationToken::new()).await,
        }
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (echo, socket) = (dir.path().join("echo"), dir.path().join("kli"));
    let mut servers = Vec::new();
    for (way, path) in [("echo", &echo), ("kli", &socket)] {
        let mut server = tokio::process::Command::new(std::env::current_exe().unwrap());
        servers.push(server.args([SERVE, way]).arg(path).kill_on_drop(true).spawn().unwrap());
        while UnixStream::connect(path).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    let mut missed = compare(&echo, &socket).await;
    let pid = servers.last().and_then(tokio::process::Child::id).unwrap();
    missed |= hostile(&socket, pid).await;
    missed |= come_and_go(&socket, pid).await;
    for mut server in servers {
        server.kill().await.unwrap();
    }
    std::process::exit(i32::from(missed));
}

/// Whether a way is slower than promised.
async fn compare(echo: &Path, socket: &Path) -> bool {
    let mut missed = false;
    println!("{:<14} {:>8} {:>12} {:>12} {:>7} {:>7}", "way", "clients", "trips/s", "p50 µs", "ratio", "least");
    for (at, clients) in [1, 16].into_iter().enumerate() {
        let mut best = [(0.0, 0.0); 5];
        for _ in 0..ROUNDS {
            for (way, best) in [Way::Echo].into_iter().chain(WAYS.map(|(way, _)| way)).zip(&mut best) {
                let path = if way == Way::Echo { echo } else { socket };
                let measured = measure(way, path.to_owned(), clients).await;
                if measured.0 > best.0 {
                    *best = measured;
                }
            }
        }
        let (base, base_p50) = best[0];
        println!("{:<14} {clients:>8} {base:>12.0} {base_p50:>12.1}", "raw echo");
        for ((way, least), (trips, p50)) in WAYS.iter().zip(&best[1..]) {
            let ratio = trips / base;
            missed |= ratio < least[at];
            println!(
                "{:<14} {clients:>8} {trips:>12.0} {p50:>12.1} {ratio:>7.2} {:>7.2}",
                format!("{way:?}"),
                least[at]
            );
        }
    }
    missed
}

/// How a healthy client fares beside idle, slow, huge, deaf and dying ones. Whether it is worse than promised.
async fn hostile(socket: &Path, pid: u32) -> bool {
    let (quiet, before) = (p99(socket).await, memory(pid));
    let mut idle = Vec::new();
    for _ in 0..200 {
        idle.push(UnixStream::connect(socket).await.unwrap());
    }
    let mut others = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let mut client = UnixStream::connect(socket).await.unwrap();
        others.spawn(async move {
            for byte in PING.bytes().cycle() {
                client.write_all(&[byte]).await.unwrap();
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
    }
    let mut huge = UnixStream::connect(socket).await.unwrap();
    others.spawn(async move {
        for _ in 0..200 {
            huge.write_all(&vec![b'x'; 1 << 20]).await.unwrap();
        }
    });
    let mut deaf = UnixStream::connect(socket).await.unwrap();
    others.spawn(async move {
        loop {
            deaf.write_all(format!("{PING}\n").as_bytes()).await.unwrap();
        }
    });
    let path = socket.to_owned();
    others.spawn(async move {
        loop {
            let mut dying = UnixStream::connect(&path).await.unwrap();
            dying.write_all(&PING.as_bytes()[..20]).await.unwrap();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    let (pressed, after) = (p99(socket).await, memory(pid));
    others.shutdown().await;
    println!("p99 of a healthy client: {quiet:.0} µs quiet, {pressed:.0} µs beside hostile ones (at most 3 times)");
    println!("memory of the server: {before} KiB before, {after} KiB after");
    pressed > 3.0 * quiet || after > before + (64 << 10)
}

/// Whether connections that come and go leave something behind.
async fn come_and_go(socket: &Path, pid: u32) -> bool {
    let descriptors = || std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let round = async || Client::open(Way::Lines, socket).await.trip().await;
    for _ in 0..1000 {
        round().await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let before = (memory(pid), descriptors());
    for _ in 0..10_000 {
        round().await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let after = (memory(pid), descriptors());
    println!("(KiB, descriptors) before and after 10,000 connections: {before:?} {after:?}");
    after.1 > before.1 || after.0 > before.0 + 1024
}

async fn p99(socket: &Path) -> f64 {
    let mut client = Client::open(Way::Lines, socket).await;
    let (mut times, end) = (Vec::new(), Instant::now() + Duration::from_secs(2));
    while Instant::now() < end {
        let begin = Instant::now();
        client.trip().await;
        times.push(begin.elapsed());
    }
    times.sort_unstable();
    times[times.len() * 99 / 100].as_secs_f64() * 1e6
}

/// Resident, in KiB.
fn memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn server(path: &Path, stop: CancellationToken) -> impl Future<Output = ()> + Send + use<> {
    let mut module = Module::new(Arc::new(NoSessions));
    register::<Ping, _, _>(&mut module, |_: Arc<NoSessions>, _, _| async move {
        Ok(PingResult { version: "bench".to_owned(), protocol_version: PROTOCOL_VERSION, pid: std::process::id() })
    });
    prepare(path).unwrap();
    let bound = bind(path).unwrap();
    Server { module, limits: Limits::default(), connections: Connections::default(), stop }.run(bound)
}

async fn serve_echo(listener: UnixListener) {
    loop {
        let (mut socket, _) = listener.accept().await.unwrap();
        tokio::spawn(async move {
            let mut piece = [0; 16 << 10];
            while let Ok(length @ 1..) = socket.read(&mut piece).await {
                socket.write_all(&piece[..length]).await.unwrap();
            }
        });
    }
}

/// Round trips a second of so many clients together, and the middle one of the first client's times.
async fn measure(way: Way, path: PathBuf, clients: usize) -> (f64, f64) {
    let (trips, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let mut tasks = Vec::new();
    for _ in 0..clients {
        let mut client = Client::open(way, &path).await;
        let (trips, over) = (trips.clone(), over.clone());
        tasks.push(tokio::spawn(async move {
            let mut times = Vec::with_capacity(1 << 16);
            while !over.load(Ordering::Relaxed) {
                let begin = Instant::now();
                client.trip().await;
                times.push(begin.elapsed());
            }
            trips.fetch_add(times.len() as u64, Ordering::Relaxed);
            times
        }));
    }
    let begin = Instant::now();
    tokio::time::sleep(ROUND).await;
    over.store(true, Ordering::Relaxed);
    let mut times = Vec::new();
    for task in tasks {
        times = task.await.unwrap();
    }
    times.sort_unstable();
    let p50 = times.get(times.len() / 2).copied().unwrap_or_default();
    (trips.load(Ordering::Relaxed) as f64 / begin.elapsed().as_secs_f64(), p50.as_secs_f64() * 1e6)
}

struct Client {
    way: Way,
    socket: UnixStream,
    request: Vec<u8>,
    reply: Vec<u8>,
}

impl Client {
    async fn open(way: Way, path: &Path) -> Client {
        let mut socket = UnixStream::connect(path).await.unwrap();
        let request = match way {
            Way::Echo | Way::Lines => format!("{PING}\n").into_bytes(),
            Way::ContentLength => format!("Content-Length: {}\r\n\r\n{PING}", PING.len()).into_bytes(),
            Way::Post => {
                format!("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{PING}", PING.len()).into_bytes()
            }
            Way::WebSocket => {
                let hello = "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
                socket.write_all(hello.as_bytes()).await.unwrap();
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    socket.read_buf(&mut head).await.unwrap();
                }
                let mut frame = vec![0x81, 0x80 | u8::try_from(PING.len()).unwrap(), 1, 2, 3, 4];
                frame.extend(PING.bytes().zip([1, 2, 3, 4].into_iter().cycle()).map(|(byte, key)| byte ^ key));
                frame
            }
        };
        Client { way, socket, request, reply: Vec::new() }
    }

    async fn trip(&mut self) {
        self.socket.write_all(&self.request).await.unwrap();
        self.reply.clear();
        while !self.whole() {
            assert_ne!(self.socket.read_buf(&mut self.reply).await.unwrap(), 0, "the server closed");
        }
    }

    /// Whether the reply is there. All are alike, so that their ends tell.
    fn whole(&self) -> bool {
        match self.way {
            Way::Echo | Way::Lines => self.reply.ends_with(b"\n"),
            Way::Post => self.reply.ends_with(b"}}\n"),
            Way::ContentLength | Way::WebSocket => self.reply.ends_with(b"}}"),
        }
    }
}
