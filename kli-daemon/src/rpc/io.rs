//! The socket as HTTP needs it, and how a half-closed one tells that the other half is gone.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as StdStream;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, Bytes};
use futures_util::future::FutureExt;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::UnixStream;

/// A connection whose first bytes were looked at and are put back.
///
/// While a write waits for the client to read, nothing is read from it either. jsonrpsee reads WebSocket messages
/// without regard to what it could not send yet, so that without this a client which never reads could make it
/// queue replies without bound.
#[derive(Debug)]
pub(super) struct Rewound {
    head: Bytes,
    socket: UnixStream,
    write_waits: bool,
    /// The reader, while a write waits. The reader may be another task than the writer.
    reader: Option<Waker>,
}

impl Rewound {
    pub(super) fn new(head: Bytes, socket: UnixStream) -> Rewound {
        Rewound { head, socket, write_waits: false, reader: None }
    }

    fn wrote(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.write_waits = written.is_pending();
        if let Some(reader) = self.reader.take_if(|_| written.is_ready()) {
            reader.wake();
        }
        written
    }
}

impl AsyncRead for Rewound {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.head.is_empty() {
            let length = self.head.len().min(buf.remaining());
            buf.put_slice(self.head.get(..length).unwrap_or_default());
            self.head.advance(length);
            return Poll::Ready(Ok(()));
        }
        if self.write_waits {
            self.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Pin::new(&mut self.socket).poll_read(cx, buf)
    }
}

impl AsyncWrite for Rewound {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(cx, buf);
        self.wrote(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(cx, bufs);
        self.wrote(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

/// Tells when the client of a connection is gone that is neither read from nor written to.
///
/// A second descriptor, since looking for the hang-up means to forget that the socket is writable, which the writer
/// must not.
#[derive(Debug)]
pub(super) struct HangUp(UnixStream);

impl HangUp {
    pub(super) fn of(socket: &UnixStream) -> io::Result<HangUp> {
        let second = StdStream::from(socket.as_fd().try_clone_to_owned()?);
        UnixStream::from_std(second).map(HangUp)
    }

    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if ready!(self.0.poll_write_ready(cx)).is_err() {
                return Poll::Ready(());
            }
            match self.0.ready(Interest::WRITABLE).now_or_never() {
                Some(Ok(state)) if !state.is_write_closed() => {}
                Some(_) => return Poll::Ready(()),
                // The task has used up its share of this turn.
                None => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
            // Room to write is no news. Forgotten, the next event is.
            let _ = self.0.try_io(Interest::WRITABLE, || Err::<(), _>(io::ErrorKind::WouldBlock.into()));
        }
    }
}
