//! One connection of our own framings: moves bytes between its socket and its dispatcher.
//!
//! One task and no channels. Each turn of the loop writes what there is, takes what calls and subscriptions have
//! brought, reads and dispatches as long as there is room, and sleeps when none of it made progress.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use kli_protocol::frame::{Decoder, Framing};
use tokio_util::sync::CancellationToken;

use super::dispatch::{Dispatcher, Shared};
use super::io::{HangUp, Socket};
use super::serve::Open;

pub(super) struct Connection {
    socket: Socket,
    decoder: Decoder,
    dispatcher: Dispatcher,
    /// The client sends no more.
    eof: bool,
    /// The client takes no more.
    deaf: bool,
    hang_up: Option<HangUp>,
}

/// Why a connection came to rest.
enum Rest {
    /// Nothing is left to do.
    Done,
    /// The client is gone; its calls may go on.
    Gone,
}

impl Connection {
    pub(super) fn new(socket: Socket, framing: Framing, shared: Arc<Shared>, connection: u64) -> Connection {
        let decoder = Decoder::new(framing, shared.limits.max_message_bytes);
        let dispatcher = Dispatcher::new(shared, framing, connection);
        Connection { socket, decoder, dispatcher, eof: false, deaf: false, hang_up: None }
    }

    /// Serves until both sides have no more to say, the client is gone, or the daemon stops. `head` was read before.
    pub(super) async fn run(mut self, head: &[u8], open: &Open, shared: &Shared, stop: &CancellationToken) {
        self.take(head);
        let rest = {
            let live = std::future::poll_fn(|cx| self.poll(cx));
            tokio::select! {
                rest = live => Some(rest),
                () = stop.cancelled() => None,
            }
        };
        match rest {
            Some(Rest::Done) => {}
            Some(Rest::Gone) => {
                open.gone();
                self.dispatcher.abandon();
                let left = std::future::poll_fn(|cx| self.poll_left_behind(cx));
                tokio::select! {
                    rest = tokio::time::timeout(shared.limits.linger, left) => drop(rest),
                    () = stop.cancelled() => {}
                }
            }
            None => {
                let last = std::future::poll_fn(|cx| self.poll_last(cx));
                if tokio::time::timeout(shared.limits.drain, last).await.is_err() {
                    tracing::debug!("a connection was closed with replies still in flight");
                }
            }
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Rest> {
        loop {
            let mut progress = self.poll_write(cx);
            progress |= self.dispatcher.poll_calls(cx);
            progress |= !self.deaf && self.dispatcher.poll_feeds(cx);
            progress |= self.dispatch();
            progress |= self.poll_read(cx);
            let quiet = self.dispatcher.out().is_empty();
            if self.eof && quiet && !self.dispatcher.has_calls() && !self.dispatcher.has_feeds() {
                return Poll::Ready(Rest::Done);
            }
            if self.eof && self.deaf || self.poll_hang_up(cx, quiet) {
                return Poll::Ready(Rest::Gone);
            }
            if !progress {
                return Poll::Pending;
            }
        }
    }

    /// What a client that is gone has left: the rest of what it sent, and its calls.
    fn poll_left_behind(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let mut progress = self.dispatcher.poll_calls(cx);
            progress |= self.dispatch();
            progress |= self.poll_read(cx);
            let out = self.dispatcher.out();
            out.advance(out.len());
            if self.eof && !self.dispatcher.has_calls() {
                return Poll::Ready(());
            }
            if !progress {
                return Poll::Pending;
            }
        }
    }

    /// Nothing is read any more; what is in flight goes out, and the events that are there.
    fn poll_last(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let mut progress = self.poll_write(cx);
            progress |= self.dispatcher.poll_calls(cx);
            progress |= !self.deaf && self.dispatcher.poll_feeds(cx);
            if self.deaf || self.dispatcher.out().is_empty() && !self.dispatcher.has_calls() {
                return Poll::Ready(());
            }
            if !progress {
                return Poll::Pending;
            }
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> bool {
        let mut progress = false;
        let out = self.dispatcher.out();
        while !out.is_empty() {
            if self.deaf {
                out.advance(out.len());
                return true;
            }
            match self.socket.poll_write(cx, out.unsent()) {
                Poll::Ready(Ok(sent)) => out.advance(sent),
                Poll::Ready(Err(error)) => {
                    // What it sent before it left is still carried out.
                    tracing::debug!(%error, "a client takes no more");
                    self.deaf = true;
                }
                Poll::Pending => break,
            }
            progress = true;
        }
        progress
    }

    /// Takes frames out of the decoder while there is room.
    fn dispatch(&mut self) -> bool {
        let mut progress = false;
        while self.dispatcher.has_room() {
            let Some(frame) = self.decoder.next_frame() else { break };
            self.dispatcher.frame(frame);
            progress = true;
        }
        progress
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> bool {
        if self.eof || !self.dispatcher.has_room() {
            return false;
        }
        let decoder = &mut self.decoder;
        match self.socket.poll_read(cx, |piece| decoder.push(piece)) {
            Poll::Pending => return false,
            Poll::Ready(Ok(1..)) => drop(self.dispatch()),
            Poll::Ready(end) => {
                if let Err(error) = end {
                    tracing::debug!(%error, "a connection broke");
                    self.deaf = error.kind() != io::ErrorKind::Interrupted;
                }
                self.eof = true;
                if let Some(frame) = self.decoder.finish() {
                    self.dispatcher.frame(frame);
                }
            }
        }
        true
    }

    fn take(&mut self, piece: &[u8]) {
        self.decoder.push(piece);
        self.dispatch();
    }

    /// Whether the client is gone, where neither reading nor writing would tell.
    fn poll_hang_up(&mut self, cx: &mut Context<'_>, quiet: bool) -> bool {
        let reading = !self.eof && self.dispatcher.has_room();
        if reading || !quiet {
            self.hang_up = None;
            return false;
        }
        if self.hang_up.is_none() {
            // Without a descriptor to spare it is noticed at the next write.
            self.hang_up = HangUp::of(&self.socket).ok();
        }
        self.hang_up.as_ref().is_some_and(|hang_up| hang_up.poll(cx).is_ready())
    }
}
