//! A byte stream to a daemon, cut into lines: a Unix socket, or the pipes of a process that leads to one.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::Child;

/// The longest message taken from a daemon. Ordinary pages end before 8 MiB; a single entry may be larger.
pub(crate) const MAX_LINE: usize = 256 << 20;

/// Read buffers larger than this are given back after the line that needed them.
const KEEP_BUFFER: usize = 1 << 20;

/// The two directions of one connection.
pub(crate) struct Wire {
    pub(crate) reader: Box<dyn AsyncRead + Send + Unpin>,
    pub(crate) writer: Box<dyn AsyncWrite + Send + Unpin>,
    /// The process that the pipes belong to; it ends with the connection.
    pub(crate) _child: Option<Child>,
}

impl Wire {
    pub(crate) fn socket(stream: UnixStream) -> Wire {
        let (reader, writer) = stream.into_split();
        Wire { reader: Box::new(reader), writer: Box::new(writer), _child: None }
    }
}

/// Bytes in, lines out. What was read of an unfinished line stays here, so a reader may be cancelled at any time.
#[derive(Default)]
pub(crate) struct Lines {
    buffer: Vec<u8>,
    /// Where the next line starts.
    start: usize,
    /// No LF lies before this place.
    seen: usize,
}

impl Lines {
    /// The next whole line that is here already, without its LF.
    pub(crate) fn pop(&mut self) -> Option<&[u8]> {
        let rest = self.buffer.get(self.seen..)?;
        let Some(at) = rest.iter().position(|b| *b == b'\n') else {
            self.seen = self.buffer.len();
            self.compact();
            return None;
        };
        let (from, to) = (self.start, self.seen + at);
        self.start = to + 1;
        self.seen = self.start;
        self.buffer.get(from..to)
    }

    /// Reads some more; false at the end. To be called when `pop` has nothing left.
    pub(crate) async fn fill(&mut self, from: &mut (impl AsyncRead + Unpin)) -> io::Result<bool> {
        if self.buffer.len() - self.start > MAX_LINE {
            let text = format!("a message of more than {} MiB", MAX_LINE >> 20);
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        self.buffer.reserve(64 << 10);
        Ok(from.read_buf(&mut self.buffer).await? > 0)
    }

    fn compact(&mut self) {
        self.buffer.drain(..self.start);
        self.seen -= self.start;
        self.start = 0;
        if self.buffer.is_empty() && self.buffer.capacity() > KEEP_BUFFER {
            self.buffer = Vec::new();
        }
    }
}

/// A wire and its lines, for one reader.
pub(crate) struct LineWire {
    pub(crate) wire: Wire,
    pub(crate) lines: Lines,
}

impl LineWire {
    pub(crate) fn new(wire: Wire) -> LineWire {
        LineWire { wire, lines: Lines::default() }
    }

    /// Sends one message.
    pub(crate) async fn send(&mut self, message: &str) -> io::Result<()> {
        self.wire.writer.write_all(message.as_bytes()).await?;
        self.wire.writer.write_all(b"\n").await?;
        self.wire.writer.flush().await
    }

    /// The next message; none at the end. Nothing is lost when this is cancelled.
    pub(crate) async fn recv(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(line) = self.lines.pop() {
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                return Ok(Some(line.to_vec()));
            }
            if !self.lines.fill(&mut self.wire.reader).await? {
                return Ok(None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_come_whole_however_the_bytes_come() {
        let text = "one\n\ntwo \u{2028} still two\n";
        for piece in 1..text.len() {
            let mut lines = Lines::default();
            let mut got = Vec::new();
            for bytes in text.as_bytes().chunks(piece) {
                assert!(lines.fill(&mut &bytes[..]).await.unwrap());
                while let Some(line) = lines.pop() {
                    got.push(String::from_utf8(line.to_vec()).unwrap());
                }
            }
            assert_eq!(got, ["one", "", "two \u{2028} still two"], "in pieces of {piece}");
        }
    }
}
