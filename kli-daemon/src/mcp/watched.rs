//! What a program writes, on its way to the reader of messages: one that is too long is dropped there without a word,
//! and whoever waits for it should hear of it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rmcp::transport::async_rw::DEFAULT_MAX_LINE_LENGTH;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::Notify;

/// Bytes of the longest message.
pub(super) const LONGEST: usize = DEFAULT_MAX_LINE_LENGTH;

pub(super) struct Watched<R> {
    inner: R,
    /// Bytes of the line so far.
    line: usize,
    dropped: Arc<Notify>,
}

impl<R> Watched<R> {
    /// `dropped` is told of each message that is too long.
    pub fn new(inner: R, dropped: Arc<Notify>) -> Watched<R> {
        Watched { inner, line: 0, dropped }
    }

    fn saw(&mut self, bytes: &[u8]) {
        for (number, part) in bytes.split(|byte| *byte == b'\n').enumerate() {
            if number > 0 {
                self.line = 0;
            }
            let before = self.line;
            self.line = before.saturating_add(part.len());
            if before <= LONGEST && self.line > LONGEST {
                self.dropped.notify_waiters();
            }
        }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Watched<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(context, buffer))?;
        self.saw(buffer.filled().get(before..).unwrap_or_default());
        Poll::Ready(Ok(()))
    }
}
