//! Cutting messages from a byte stream: which framing a connection speaks, the decoder, and the writer.
//!
//! A decoder is fed with whatever pieces arrive and gives the same frames however they were cut. It never holds
//! more than one message of the permitted length: what is longer is told of once and then passed over.
//! What a message says is left to [`crate::rpc`]; HTTP is left to an HTTP library.

/// How messages are cut from the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// One message a line (LF).
    Lines,
    /// `Content-Length` headers, as in the Language Server Protocol.
    ContentLength,
}

/// What the first bytes of a connection say about the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sniffed {
    /// Too few to tell.
    More,
    Framing(Framing),
    /// HTTP, from this byte on.
    Http(usize),
}

const BOM: &[u8] = b"\xef\xbb\xbf";

/// `PRI` opens HTTP/2 with prior knowledge. `CONNECT` is missing: `C` is `Content-Length`.
const VERBS: [&[u8]; 8] = [b"GET ", b"POST ", b"PUT ", b"HEAD ", b"OPTIONS ", b"DELETE ", b"PATCH ", b"PRI "];

/// White space beyond this many bytes is taken for blank lines.
const MAX_SNIFF_BYTES: usize = 1024;

/// Tells the framing by the first byte after a byte-order mark and white space.
pub fn sniff(head: &[u8]) -> Sniffed {
    if head.len() < BOM.len() && BOM.starts_with(head) {
        return Sniffed::More;
    }
    let text = head.strip_prefix(BOM).unwrap_or(head).trim_ascii_start();
    match text.first() {
        None if head.len() < MAX_SNIFF_BYTES => Sniffed::More,
        Some(b'C' | b'c') => Sniffed::Framing(Framing::ContentLength),
        _ if VERBS.iter().any(|verb| text.starts_with(verb)) => Sniffed::Http(head.len() - text.len()),
        Some(_) if VERBS.iter().any(|verb| verb.starts_with(text)) => Sniffed::More,
        _ => Sniffed::Framing(Framing::Lines),
    }
}

impl Framing {
    /// Appends one message, given in parts, to what is to be sent.
    pub fn write(self, out: &mut Vec<u8>, parts: &[&str]) {
        if self == Framing::ContentLength {
            let length: usize = parts.iter().map(|part| part.len()).sum();
            out.extend_from_slice(format!("Content-Length: {length}\r\n\r\n").as_bytes());
        }
        let begin = out.len();
        for part in parts {
            out.extend_from_slice(part.as_bytes());
        }
        if self == Framing::Lines {
            // In JSON a raw line feed is only ever white space, which another program may have put into a value.
            if let Some(message) = out.get_mut(begin..).filter(|message| message.contains(&b'\n')) {
                message.iter_mut().filter(|byte| **byte == b'\n').for_each(|byte| *byte = b' ');
            }
            out.push(b'\n');
        }
    }
}

/// What a decoder finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    Message(&'a [u8]),
    /// A message above the limit; the rest of it is passed over.
    Oversized,
    /// Headers that cannot be read, and why; the decoder looks for the next `Content-Length`.
    BadHeader(&'static str),
}

/// Cuts messages from the pieces of a stream.
#[derive(Debug)]
pub struct Decoder {
    framing: Framing,
    max: usize,
    buf: Vec<u8>,
    /// What lies before this was given out.
    start: usize,
    /// Up to here there is no line feed. Never less than `start`.
    scanned: usize,
    state: State,
    /// Nothing but blank lines so far: a byte-order mark may come.
    fresh: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In a line, or in a line of the headers.
    Line(Headers),
    SkipLine,
    Body(usize),
    SkipBody(u64),
    /// After bad headers.
    Resync,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Headers {
    length: Option<u64>,
    /// So far, lines and line ends.
    bytes: usize,
}

/// Offsets instead of slices, since the buffer is still borrowed where a frame is found.
enum Found {
    Message(usize, usize),
    Oversized,
    BadHeader(&'static str),
}

const MAX_HEADER_BYTES: usize = 8 << 10;
/// An empty buffer above this is given back.
const KEPT_CAPACITY: usize = 64 << 10;
const LENGTH_HEADER: &[u8] = b"content-length";

impl Decoder {
    pub fn new(framing: Framing, max_message_bytes: usize) -> Decoder {
        Decoder {
            framing,
            max: max_message_bytes,
            buf: Vec::new(),
            start: 0,
            scanned: 0,
            state: State::Line(Headers::default()),
            fresh: true,
        }
    }

    /// Takes the next piece. Call [`Decoder::next_frame`] until it has no more before the next one.
    pub fn push(&mut self, piece: &[u8]) {
        if self.start == self.buf.len() {
            self.clear();
        } else if self.start > self.buf.len() / 2 {
            self.buf.drain(..self.start);
            self.scanned -= self.start;
            self.start = 0;
        }
        self.buf.extend_from_slice(piece);
    }

    /// The next frame of what has come so far.
    pub fn next_frame(&mut self) -> Option<Frame<'_>> {
        let found = self.find()?;
        Some(self.frame(found))
    }

    /// What the end of the stream leaves: a last line without line feed counts, a cut message is a bad frame.
    pub fn finish(&mut self) -> Option<Frame<'_>> {
        let (start, end) = (self.start, self.buf.len());
        let state = std::mem::replace(&mut self.state, State::Line(Headers::default()));
        (self.start, self.scanned) = (end, end);
        let found = match (self.framing, state) {
            (Framing::Lines, State::Line(_)) => self.message(start, end)?,
            (Framing::ContentLength, State::Line(headers)) if start == end && headers == Headers::default() => {
                return None;
            }
            (Framing::ContentLength, State::Line(_) | State::Body(_)) => {
                Found::BadHeader("the stream ended inside a message")
            }
            _ => return None,
        };
        Some(self.frame(found))
    }

    fn frame(&self, found: Found) -> Frame<'_> {
        match found {
            Found::Message(start, end) => Frame::Message(self.buf.get(start..end).unwrap_or_default()),
            Found::Oversized => Frame::Oversized,
            Found::BadHeader(why) => Frame::BadHeader(why),
        }
    }

    fn find(&mut self) -> Option<Found> {
        loop {
            match self.state {
                State::Line(headers) => {
                    let Some((start, end)) = self.take_line() else {
                        return self.unended(headers);
                    };
                    let found = match self.framing {
                        Framing::Lines => self.message(start, end),
                        Framing::ContentLength => self.header_line(headers, start, end),
                    };
                    if found.is_some() {
                        return found;
                    }
                }
                State::SkipLine => {
                    if self.take_line().is_none() {
                        self.clear();
                        return None;
                    }
                    self.state = State::Line(Headers::default());
                }
                State::Body(length) => {
                    let end = self.start.saturating_add(length);
                    if end > self.buf.len() {
                        return None;
                    }
                    let start = std::mem::replace(&mut self.start, end);
                    self.scanned = end;
                    self.state = State::Line(Headers::default());
                    return Some(Found::Message(start, end));
                }
                State::SkipBody(left) => {
                    let here = (self.buf.len() - self.start) as u64;
                    if here < left {
                        self.state = State::SkipBody(left - here);
                        self.clear();
                        return None;
                    }
                    self.start += usize::try_from(left).unwrap_or_default();
                    self.scanned = self.start;
                    self.state = State::Line(Headers::default());
                }
                State::Resync => {
                    let rest = self.buf.get(self.start..).unwrap_or_default();
                    let header = |window: &[u8]| {
                        window.strip_suffix(b":").is_some_and(|name| name.eq_ignore_ascii_case(LENGTH_HEADER))
                    };
                    let found = rest.windows(LENGTH_HEADER.len() + 1).position(header);
                    self.start += found.unwrap_or(rest.len().saturating_sub(LENGTH_HEADER.len()));
                    self.scanned = self.start;
                    found?;
                    self.state = State::Line(Headers::default());
                }
            }
        }
    }

    /// The next line without its line feed, as offsets.
    fn take_line(&mut self) -> Option<(usize, usize)> {
        let rest = self.buf.get(self.scanned..)?;
        match line_feed(rest) {
            Some(at) => {
                let (start, end) = (self.start, self.scanned + at);
                self.start = end + 1;
                self.scanned = self.start;
                Some((start, end))
            }
            None => {
                self.scanned = self.buf.len();
                None
            }
        }
    }

    /// Whether what there is of an unended line is already too long.
    fn unended(&mut self, headers: Headers) -> Option<Found> {
        let length = self.buf.len() - self.start;
        match self.framing {
            Framing::Lines if length > self.max && (length > self.max + 1 || !self.buf.ends_with(b"\r")) => {
                self.clear();
                self.fresh = false;
                self.state = State::SkipLine;
                Some(Found::Oversized)
            }
            Framing::ContentLength if headers.bytes + length > MAX_HEADER_BYTES => {
                Some(self.overlong_headers(headers, self.start))
            }
            _ => None,
        }
    }

    /// Passes over as much of the line as was permitted, whether or not its end is there.
    fn overlong_headers(&mut self, headers: Headers, line: usize) -> Found {
        self.start = line + MAX_HEADER_BYTES.saturating_sub(headers.bytes);
        self.scanned = self.start;
        self.fresh = false;
        self.state = State::Resync;
        Found::BadHeader("the headers are longer than 8 KiB")
    }

    /// A line as a message, unless it is blank.
    fn message(&mut self, start: usize, end: usize) -> Option<Found> {
        let line = self.buf.get(start..end)?;
        // A carriage return is part of the line's end, not of the message.
        if line.strip_suffix(b"\r").unwrap_or(line).len() > self.max {
            self.fresh = false;
            return Some(Found::Oversized);
        }
        let unmarked = if self.fresh { line.strip_prefix(BOM).unwrap_or(line) } else { line };
        let begin = end - unmarked.trim_ascii_start().len();
        let text = unmarked.trim_ascii();
        if text.is_empty() {
            return None;
        }
        let text_end = begin + text.len();
        self.fresh = false;
        Some(Found::Message(begin, text_end))
    }

    fn header_line(&mut self, headers: Headers, start: usize, end: usize) -> Option<Found> {
        let bytes = headers.bytes + (end + 1 - start);
        if bytes > MAX_HEADER_BYTES {
            return Some(self.overlong_headers(headers, start));
        }
        let line = self.buf.get(start..end)?;
        let unmarked = if self.fresh { line.strip_prefix(BOM).unwrap_or(line) } else { line };
        let line = unmarked.trim_ascii();
        let next = match (line.is_empty(), headers.length) {
            (true, None) if headers.bytes == 0 => Ok(State::Line(headers)),
            (true, None) => Err("the headers have no Content-Length"),
            (true, Some(length)) => match usize::try_from(length) {
                Ok(length) if length <= self.max => Ok(State::Body(length)),
                _ => Ok(State::SkipBody(length)),
            },
            _ => header(line, headers.length).map(|length| State::Line(Headers { length, bytes })),
        };
        self.fresh &= line.is_empty();
        match next {
            Ok(state) => {
                self.state = state;
                matches!(state, State::SkipBody(_)).then_some(Found::Oversized)
            }
            Err(why) => {
                self.state = State::Resync;
                Some(Found::BadHeader(why))
            }
        }
    }

    fn clear(&mut self) {
        if self.buf.capacity() > KEPT_CAPACITY {
            self.buf = Vec::new();
        }
        self.buf.clear();
        (self.start, self.scanned) = (0, 0);
    }
}

/// Where the first line feed is. `contains` is vectorised, `position` is not.
fn line_feed(bytes: &[u8]) -> Option<usize> {
    const STEP: usize = 256;
    let step = bytes.chunks(STEP).position(|chunk| chunk.contains(&b'\n'))? * STEP;
    bytes.get(step..)?.iter().position(|byte| *byte == b'\n').map(|at| step + at)
}

/// The length so far, after one more header.
fn header(line: &[u8], so_far: Option<u64>) -> Result<Option<u64>, &'static str> {
    let mut halves = line.splitn(2, |byte| *byte == b':');
    let (Some(name), Some(value)) = (halves.next(), halves.next()) else {
        return Err("a header has no colon");
    };
    if !name.trim_ascii().eq_ignore_ascii_case(LENGTH_HEADER) {
        return Ok(so_far);
    }
    let value = value.trim_ascii();
    let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    let length = std::str::from_utf8(value).ok().filter(|_| digits).and_then(|value| value.parse::<u64>().ok());
    match (length, so_far) {
        (None, _) => Err("Content-Length is not a number of bytes"),
        (Some(length), Some(other)) if length != other => Err("two Content-Length headers differ"),
        (length, _) => Ok(length),
    }
}

#[cfg(test)]
mod tests;
