//! Accepts connections, tells their framing, and owns their tasks.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use kli_protocol::ApiError;
use kli_protocol::frame::{Framing, Sniffed, sniff};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::connection::Connection;
use super::dispatch::Shared;
use super::io::Socket;
use super::{Bound, Limits, Module, Service, http};

/// How many connections are open, for whoever wants to know.
#[derive(Clone, Debug, Default)]
pub struct Connections(Arc<AtomicUsize>);

impl Connections {
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// All that serving takes.
#[derive(Debug)]
pub struct Server<S> {
    pub module: Module<S>,
    pub limits: Limits,
    pub connections: Connections,
    /// Cancelled to stop.
    pub stop: CancellationToken,
}

/// Connections above the limit that are told so, at a time; further ones are closed at once.
const MAX_REFUSALS: usize = 64;
/// How long a refused connection may take to show its framing.
const REFUSAL_TIME: Duration = Duration::from_secs(1);

impl<S: Service> Server<S> {
    /// Serves until it is stopped; then nothing of it is left.
    pub async fn run(self, bound: Bound) {
        let Server { module, limits, connections, stop } = self;
        let service: Arc<dyn Service> = module.service().clone();
        let shared = Arc::new(Shared { methods: module.methods(), service, limits });
        let ids = AtomicU64::new(0);
        let mut tasks = JoinSet::new();
        let mut refusals = JoinSet::new();
        loop {
            let socket = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(ended) = tasks.join_next() => {
                    report(ended);
                    continue;
                }
                Some(_) = refusals.join_next() => continue,
                socket = bound.accept() => socket,
            };
            let max = shared.limits.max_connections;
            if connections.count() >= max {
                if refusals.len() < MAX_REFUSALS {
                    refusals.spawn(tokio::time::timeout(REFUSAL_TIME, refuse(socket, max)));
                }
                continue;
            }
            let open = Open::new(&shared, &connections, ids.fetch_add(1, Ordering::Relaxed) + 1);
            tasks.spawn(serve(socket, shared.clone(), open, stop.clone()));
        }
        // No new client finds the socket, while those that are here get their replies.
        drop(bound);
        refusals.shutdown().await;
        while let Some(ended) = tasks.join_next().await {
            report(ended);
        }
    }
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a connection's task failed");
    }
}

/// An open connection. However its task ends, the service is told once, and it counts no more.
pub(super) struct Open {
    pub id: u64,
    service: Arc<dyn Service>,
    connections: Connections,
    told: AtomicBool,
}

impl Open {
    fn new(shared: &Shared, connections: &Connections, id: u64) -> Open {
        connections.0.fetch_add(1, Ordering::Relaxed);
        Open { id, service: shared.service.clone(), connections: connections.clone(), told: AtomicBool::new(false) }
    }

    /// The client is gone, though its calls may go on.
    pub(super) fn gone(&self) {
        if !self.told.swap(true, Ordering::Relaxed) {
            self.service.closed(self.id);
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.gone();
        self.connections.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One connection from its first byte to its end.
async fn serve(socket: UnixStream, shared: Arc<Shared>, open: Open, stop: CancellationToken) {
    let mut head = Vec::new();
    let sniffed = tokio::select! {
        biased;
        () = stop.cancelled() => return,
        sniffed = look(&socket, &mut head) => sniffed,
    };
    match sniffed {
        Ok(Some(Sniffed::Http(start))) => {
            head.drain(..start);
            // Boxed, since it is large and most connections are of our own framings.
            Box::pin(http::serve(socket, head, shared, &open, &stop)).await;
        }
        Ok(Some(Sniffed::Framing(framing))) => match Socket::new(socket) {
            Ok(socket) => {
                let connection = Connection::new(socket, framing, shared.clone(), open.id);
                connection.run(&head, &open, &shared, &stop).await;
            }
            Err(error) => tracing::warn!(%error, "a connection cannot be served"),
        },
        Ok(Some(Sniffed::More) | None) => {}
        Err(error) => tracing::debug!(%error, "a connection broke before it said anything"),
    }
}

/// Reads until the framing can be told. None: it ended before anything came.
async fn look(socket: &UnixStream, head: &mut Vec<u8>) -> io::Result<Option<Sniffed>> {
    loop {
        socket.readable().await?;
        let mut piece = [0; 1024];
        let length = match socket.try_read(&mut piece) {
            Ok(length) => length,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
            Err(e) => return Err(e),
        };
        head.extend_from_slice(piece.get(..length).unwrap_or_default());
        match sniff(head) {
            // The end of the stream is the connection's to see, for what there is may be a line.
            Sniffed::More if length == 0 && head.is_empty() => return Ok(None),
            Sniffed::More if length == 0 => return Ok(Some(Sniffed::Framing(Framing::Lines))),
            Sniffed::More => {}
            sniffed => return Ok(Some(sniffed)),
        }
    }
}

/// Tells a client in its own framing that there are too many.
async fn refuse(mut socket: UnixStream, max: usize) {
    let mut head = Vec::new();
    let text = format!("the daemon has maxConnections ({max}) open; close one, or raise the limit");
    let error = ApiError::limit("maxConnections", max as u64, text);
    let reply = serde_json::json!({ "jsonrpc": "2.0", "id": null, "error": error }).to_string();
    let mut out = Vec::new();
    match look(&socket, &mut head).await {
        Ok(Some(Sniffed::Framing(framing))) => framing.write(&mut out, &[&reply]),
        Ok(Some(Sniffed::Http(_))) => out.extend_from_slice(
            format!(
                "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
                 content-length: {}\r\nconnection: close\r\n\r\n{reply}",
                reply.len()
            )
            .as_bytes(),
        ),
        _ => return,
    }
    let _ = socket.write_all(&out).await;
    let _ = socket.shutdown().await;
}
