//! Server-sent events, from bytes: chunks may be cut anywhere, also inside a character or a CRLF.
//!
//! Knows the framing only. What an event says is a dialect's business, how long to wait for one the HTTP
//! client's. Comments, `id:` and `retry:` lines are passed over.

/// One event: all its `data` lines, joined by LF.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// The `event:` line; empty when there was none.
    pub name: String,
    pub data: String,
}

/// More bytes in one event than we are willing to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server sent an event of more than {max} bytes")]
pub struct TooLarge {
    pub max: usize,
}

/// Cuts a byte stream into events.
#[derive(Debug)]
pub struct Parser {
    /// The line so far, without its end.
    line: Vec<u8>,
    name: String,
    data: Vec<u8>,
    has_data: bool,
    /// The last byte was CR: a LF right after it belongs to it.
    after_cr: bool,
    at_start: bool,
    max: usize,
}

const BOM: &[u8] = b"\xef\xbb\xbf";

impl Parser {
    /// `max` bounds the bytes of one event.
    pub fn new(max: usize) -> Parser {
        Parser {
            line: Vec::new(),
            name: String::new(),
            data: Vec::new(),
            has_data: false,
            after_cr: false,
            at_start: true,
            max,
        }
    }

    /// Takes the next bytes and appends to `out` the events that they complete.
    pub fn push(&mut self, mut bytes: &[u8], out: &mut Vec<Event>) -> Result<(), TooLarge> {
        while !bytes.is_empty() {
            if std::mem::take(&mut self.after_cr) && bytes.first() == Some(&b'\n') {
                bytes = bytes.get(1..).unwrap_or_default();
                continue;
            }
            let Some(end) = memchr::memchr2(b'\n', b'\r', bytes) else {
                return self.extend_line(bytes);
            };
            let (line, rest) = bytes.split_at(end);
            self.extend_line(line)?;
            self.after_cr = rest.first() == Some(&b'\r');
            bytes = rest.get(1..).unwrap_or_default();
            self.end_line(out)?;
        }
        Ok(())
    }

    /// The stream has ended. An event without its closing blank line is taken when its last line was whole,
    /// since many servers forget the blank line; a half line is dropped.
    pub fn finish(&mut self, out: &mut Vec<Event>) {
        let half = std::mem::take(&mut self.line);
        let whole = half.is_empty() || {
            // A last line without its LF is whole exactly when its data is: that shows in the JSON.
            let text = String::from_utf8_lossy(&half);
            let data = text.strip_prefix("data:").map(str::trim).unwrap_or_default();
            data == "[DONE]" || serde_json::from_str::<serde::de::IgnoredAny>(data).is_ok()
        };
        if !whole {
            self.name.clear();
            self.data.clear();
            self.has_data = false;
            return;
        }
        self.line = half;
        if self.end_line(out).is_ok() {
            self.dispatch(out);
        }
    }

    fn extend_line(&mut self, bytes: &[u8]) -> Result<(), TooLarge> {
        if self.line.len() + self.data.len() + bytes.len() > self.max {
            return Err(TooLarge { max: self.max });
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    fn end_line(&mut self, out: &mut Vec<Event>) -> Result<(), TooLarge> {
        let line = std::mem::take(&mut self.line);
        let mut text = line.as_slice();
        if std::mem::take(&mut self.at_start) {
            text = text.strip_prefix(BOM).unwrap_or(text);
        }
        if text.is_empty() {
            self.dispatch(out);
        } else {
            let (field, value) = match memchr::memchr(b':', text) {
                Some(colon) => (text.get(..colon).unwrap_or_default(), text.get(colon + 1..).unwrap_or_default()),
                None => (text, &[][..]),
            };
            let value = value.strip_prefix(b" ").unwrap_or(value);
            match field {
                b"data" => {
                    if self.has_data {
                        self.data.push(b'\n');
                    }
                    self.has_data = true;
                    self.data.extend_from_slice(value);
                }
                b"event" => self.name = String::from_utf8_lossy(value).into_owned(),
                // A comment has an empty field name; all other fields mean nothing to us.
                _ => {}
            }
        }
        // The buffer goes back, so that a stream of small lines allocates once.
        self.line = line;
        self.line.clear();
        Ok(())
    }

    fn dispatch(&mut self, out: &mut Vec<Event>) {
        let name = std::mem::take(&mut self.name);
        if std::mem::take(&mut self.has_data) {
            let data = String::from_utf8(std::mem::take(&mut self.data))
                .unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned());
            out.push(Event { name, data });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the split, the events are the same.
    fn check(input: &[u8], expected: &[(&str, &str)]) {
        let expected: Vec<Event> =
            expected.iter().map(|(name, data)| Event { name: (*name).into(), data: (*data).into() }).collect();
        for step in [1, 2, 3, 7, input.len().max(1)] {
            let mut parser = Parser::new(1 << 20);
            let mut events = Vec::new();
            for chunk in input.chunks(step) {
                parser.push(chunk, &mut events).unwrap();
            }
            parser.finish(&mut events);
            assert_eq!(events, expected, "in chunks of {step}: {}", String::from_utf8_lossy(input));
        }
    }

    #[test]
    fn frames() {
        check(b"data: a\n\ndata: b\n\n", &[("", "a"), ("", "b")]);
        check(b"data:a\r\n\r\ndata:b\r\n\r\n", &[("", "a"), ("", "b")]);
        check(b"data: a\r\rdata: b\r\r", &[("", "a"), ("", "b")]);
        check(b"data: a\r\n\ndata: b\n\r\n", &[("", "a"), ("", "b")]);
        check(b"\xef\xbb\xbfdata: a\n\n", &[("", "a")]);
        check(b": ping\n\n: OPENROUTER PROCESSING\n\nevent: x\n\ndata: a\n\n", &[("", "a")]);
        check(b"event: delta\nid: 1\nretry: 5\ndata: a\ndata: b\nwhat: c\n\n", &[("delta", "a\nb")]);
        check(b"data\n\ndata:\n\n", &[("", ""), ("", "")]);
        check(b"data:  two spaces\n\n", &[("", " two spaces")]);
        check("data: \u{4f60}\u{1f600}\u{2028}\n\n".as_bytes(), &[("", "\u{4f60}\u{1f600}\u{2028}")]);
        check(b"data: \xff\n\n", &[("", "\u{fffd}")]);
    }

    #[test]
    fn ends() {
        check(b"data: {}\n", &[("", "{}")]);
        check(b"data: [DONE]", &[("", "[DONE]")]);
        check(b"data: {\"a\":1}", &[("", "{\"a\":1}")]);
        check(b"data: {}\n\ndata: {\"a\":", &[("", "{}")]);
        check(b"", &[]);
    }

    #[test]
    fn an_endless_event_is_refused() {
        let mut parser = Parser::new(10);
        assert_eq!(parser.push(b"data: 0123456789", &mut Vec::new()), Err(TooLarge { max: 10 }));
        let mut parser = Parser::new(20);
        let mut sent = Ok(());
        for _ in 0..20 {
            sent = sent.and_then(|()| parser.push(b"data: 12\n", &mut Vec::new()));
        }
        assert_eq!(sent, Err(TooLarge { max: 20 }));
    }
}
