//! As much of HTTP/1.1 as a model server needs.

use std::io::{BufRead, Error, ErrorKind, Read, Result, Write};
use std::net::TcpStream;

/// No request of a test is longer.
const MAX_BODY: usize = 256 << 20;

pub struct Head {
    pub method: String,
    pub path: String,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
}

/// What becomes of a connection after a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    Keep,
    Close,
}

/// The next request; none when the client has closed.
pub fn read_head(input: &mut impl BufRead) -> Result<Option<Head>> {
    let Some(first) = read_line(input)? else { return Ok(None) };
    let mut words = first.split(' ');
    let (method, path) = (words.next().unwrap_or_default().to_owned(), words.next().unwrap_or_default().to_owned());
    let mut headers = Vec::new();
    loop {
        let line = read_line(input)?.ok_or(ErrorKind::UnexpectedEof)?;
        if line.is_empty() {
            return Ok(Some(Head { method, path, headers }));
        }
        let (name, value) = line.split_once(':').ok_or_else(|| invalid("a header without a colon"))?;
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
}

pub fn read_body(input: &mut impl BufRead, head: &Head) -> Result<Vec<u8>> {
    let header = |name: &str| head.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    let mut body = Vec::new();
    if header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
        loop {
            let line = read_line(input)?.ok_or(ErrorKind::UnexpectedEof)?;
            let size = usize::from_str_radix(line.split(';').next().unwrap_or_default().trim(), 16);
            let size = size.map_err(|_| invalid("a chunk size"))?;
            read_exactly(input, size, &mut body)?;
            read_line(input)?;
            if size == 0 {
                return Ok(body);
            }
        }
    }
    let size = header("content-length").unwrap_or("0").parse().map_err(|_| invalid("a length"))?;
    read_exactly(input, size, &mut body)?;
    Ok(body)
}

fn read_exactly(input: &mut impl BufRead, size: usize, body: &mut Vec<u8>) -> Result<()> {
    if size + body.len() > MAX_BODY {
        return Err(invalid("a body of more than 256 MiB"));
    }
    let start = body.len();
    body.resize(start + size, 0);
    input.read_exact(&mut body[start..])
}

fn read_line(input: &mut impl BufRead) -> Result<Option<String>> {
    let mut line = Vec::new();
    input.take(64 << 10).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    String::from_utf8(line).map(|line| Some(line.trim_end().to_owned())).map_err(|_| invalid("a line in UTF-8"))
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("expected {what}"))
}

/// The sending side of a connection.
pub struct Output {
    stream: TcpStream,
}

impl Output {
    pub fn new(stream: TcpStream) -> Output {
        Output { stream }
    }

    /// A whole reply.
    pub fn respond(&mut self, status: u16, headers: &[(String, String)], body: &[u8]) -> Result<()> {
        let mut bytes = head(status, headers, "application/json");
        bytes.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
        bytes.extend_from_slice(body);
        self.stream.write_all(&bytes)
    }

    /// The head of a stream that ends with the connection.
    pub fn begin_stream(&mut self, headers: &[(String, String)]) -> Result<()> {
        let mut bytes = head(200, headers, "text/event-stream");
        bytes.extend_from_slice(b"connection: close\r\n\r\n");
        self.stream.write_all(&bytes)
    }

    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes)
    }

    /// Closes so that the other side sees a reset instead of an end.
    pub fn reset(&mut self) -> Result<()> {
        let now = Some(std::time::Duration::ZERO);
        rustix::net::sockopt::set_socket_linger(&self.stream, now)?;
        Ok(())
    }
}

fn head(status: u16, headers: &[(String, String)], content_type: &str) -> Vec<u8> {
    let mut text = format!("HTTP/1.1 {status} {}\r\n", if status < 400 { "OK" } else { "Error" });
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type")) {
        text.push_str(&format!("content-type: {content_type}\r\n"));
    }
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.into_bytes()
}
