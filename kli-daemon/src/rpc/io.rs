//! The socket as our own framings and as HTTP need it, and how a half-closed one tells that the other half is gone.

use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as StdStream;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use futures_util::future::FutureExt;
use futures_util::task::AtomicWaker;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::UnixStream;

const READ_BYTES: usize = 16 << 10;
/// For what HTTP has read and not yet begun to answer.
const GRACE: Duration = Duration::from_millis(100);

/// A socket that looks out for room to write only while it lacks it.
///
/// tokio's own looks out for it all the time, and so is woken whenever a client has read something. With many who
/// follow one session that costs as much as sending to them.
#[derive(Debug)]
pub(super) struct Socket {
    socket: Arc<StdStream>,
    /// None only while what is looked out for changes: one descriptor cannot be watched twice.
    watch: Option<AsyncFd<Arc<StdStream>>>,
    write_waits: bool,
}

impl Socket {
    pub(super) fn new(socket: UnixStream) -> io::Result<Socket> {
        let mut socket = Socket { socket: Arc::new(socket.into_std()?), watch: None, write_waits: false };
        socket.look_out_for(Interest::READABLE)?;
        Ok(socket)
    }

    fn look_out_for(&mut self, interest: Interest) -> io::Result<&AsyncFd<Arc<StdStream>>> {
        self.watch = None;
        // SAFETY: the watch has a share of the socket, which stays open, and the same one, for as long.
        let watch = unsafe { AsyncFd::register_with_interest(self.socket.clone(), interest) }?;
        Ok(self.watch.insert(watch))
    }

    fn watch(&mut self) -> io::Result<&AsyncFd<Arc<StdStream>>> {
        match &mut self.watch {
            // Asked for again, since the borrow checker cannot follow a return from here.
            Some(_) => self.watch.as_ref().ok_or_else(|| io::ErrorKind::NotConnected.into()),
            None => self.look_out_for(Interest::READABLE),
        }
    }

    /// Reads what there is, and tells how much. Nothing: the client sends no more.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>, take: impl FnOnce(&[u8])) -> Poll<io::Result<usize>> {
        let watch = self.watch()?;
        loop {
            let mut ready = ready!(watch.poll_read_ready(cx))?;
            // Not set to zero, which would cost more than to read a short message.
            let mut space = [MaybeUninit::uninit(); READ_BYTES];
            match ready.try_io(|socket| Ok(rustix::io::read(socket.get_ref(), &mut space)?.0)) {
                Ok(Ok(piece)) => {
                    // Less than there was room for: there is no more, and asking again can be saved.
                    if !piece.is_empty() && piece.len() < READ_BYTES {
                        ready.clear_ready();
                    }
                    take(piece);
                    return Poll::Ready(Ok(piece.len()));
                }
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                Err(_would_block) => {}
            }
        }
    }

    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            if self.write_waits {
                let mut ready = ready!(self.watch()?.poll_write_ready(cx))?;
                let Ok(written) = ready.try_io(|socket| (&**socket.get_ref()).write(bytes)) else { continue };
                if written.as_ref().is_ok_and(|length| *length == bytes.len()) {
                    self.write_waits = false;
                    self.look_out_for(Interest::READABLE)?;
                }
                return Poll::Ready(written);
            }
            match (&*self.socket).write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.write_waits = true;
                    self.look_out_for(Interest::READABLE | Interest::WRITABLE)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                written => return Poll::Ready(written),
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// How many requests of one HTTP connection are being answered.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    count: AtomicUsize,
    reader: AtomicWaker,
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub(super) struct Answering(Arc<InFlight>);

impl InFlight {
    pub(super) fn enter(self: &Arc<Self>) -> Answering {
        self.count.fetch_add(1, Ordering::AcqRel);
        Answering(self.clone())
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::AcqRel);
        self.0.reader.wake();
    }
}

/// A connection whose first bytes were looked at and are put back.
///
/// While a write waits for the client to read, nothing is read from it either. jsonrpsee reads WebSocket messages
/// without regard to what it could not send yet, so that without this a client which never reads could make it
/// queue replies without bound.
///
/// That the client has closed its sending half is told only a moment after its requests are answered: hyper takes it
/// for the end of the client, and would drop what it has read and not yet passed on.
#[derive(Debug)]
pub(super) struct Rewound {
    head: Bytes,
    socket: UnixStream,
    in_flight: Arc<InFlight>,
    write_waits: bool,
    /// Written, and perhaps not yet all there is of a reply.
    unflushed: bool,
    /// The reader, while a write waits. The reader may be another task than the writer.
    reader: Option<Waker>,
    /// The client sends no more.
    ended: bool,
    hang_up: Option<HangUp>,
    /// What is left of the moment, while no request is in flight.
    grace: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl Rewound {
    pub(super) fn new(head: Bytes, socket: UnixStream, in_flight: Arc<InFlight>) -> Rewound {
        Rewound {
            head,
            socket,
            in_flight,
            write_waits: false,
            unflushed: false,
            reader: None,
            ended: false,
            hang_up: None,
            grace: None,
        }
    }

    /// Ready when the end may be told.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.in_flight.reader.register(cx.waker());
        if self.in_flight.count.load(Ordering::Acquire) == 0 && !self.unflushed {
            let grace = self.grace.get_or_insert_with(|| Box::pin(tokio::time::sleep(GRACE)));
            if grace.poll_unpin(cx).is_ready() {
                return Poll::Ready(());
            }
        } else {
            self.grace = None;
        }
        if self.hang_up.is_none() {
            // Without a descriptor to spare it is noticed at the next write.
            self.hang_up = HangUp::of(&self.socket).ok();
        }
        self.hang_up.as_ref().map_or(Poll::Pending, |hang_up| hang_up.poll(cx))
    }

    fn wrote(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.write_waits = written.is_pending();
        self.unflushed = true;
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
        if !self.ended {
            let before = buf.filled().len();
            ready!(Pin::new(&mut self.socket).poll_read(cx, buf))?;
            if buf.filled().len() > before || buf.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            self.ended = true;
        }
        self.poll_end(cx).map(Ok)
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
        ready!(Pin::new(&mut self.socket).poll_flush(cx))?;
        self.unflushed = false;
        Poll::Ready(Ok(()))
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
    pub(super) fn of(socket: &impl AsFd) -> io::Result<HangUp> {
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
