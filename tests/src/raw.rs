//! Bytes on the socket, for tests of the framings themselves.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::PATIENCE;

/// What a client does after it has sent all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Closes its sending half, as `nc -N` does, and reads until the daemon closes.
    Shut,
    /// Keeps the connection, and reads until that many lines have come.
    Read(usize),
}

/// Sends bytes and gives what comes back.
#[track_caller]
pub fn exchange(socket: &Path, bytes: &[u8], then: Then) -> Vec<u8> {
    let mut stream = UnixStream::connect(socket).expect("connect to the daemon");
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    // A daemon may close in mid-message, then the rest cannot be written; what it had said is still to be read.
    let _ = stream.write_all(bytes);
    if then == Then::Shut {
        let _ = stream.shutdown(Shutdown::Write);
    }
    read_until(&mut stream, |got| match then {
        Then::Shut => false,
        Then::Read(lines) => got.iter().filter(|b| **b == b'\n').count() >= lines,
    })
}

/// The same, each line read as JSON.
#[track_caller]
pub fn lines(socket: &Path, bytes: &[u8], then: Then) -> Vec<Value> {
    exchange(socket, bytes, then)
        .split(|b| *b == b'\n')
        .filter(|line| !line.trim_ascii().is_empty())
        .map(|line| serde_json::from_slice(line).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(line))))
        .collect()
}

/// Reads until `enough`, or the end.
#[track_caller]
pub fn read_until(stream: &mut UnixStream, enough: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let deadline = Instant::now() + PATIENCE;
    let mut got = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    while !enough(&got) {
        let left = deadline.saturating_duration_since(Instant::now());
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1)))).unwrap();
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => got.extend_from_slice(&buffer[..n]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
            Err(error) => panic!("nothing more in {PATIENCE:?} ({error}); so far {}", String::from_utf8_lossy(&got)),
        }
    }
    got
}

/// One message in `Content-Length` framing.
pub fn framed(message: &[u8]) -> Vec<u8> {
    let mut bytes = format!("Content-Length: {}\r\n\r\n", message.len()).into_bytes();
    bytes.extend_from_slice(message);
    bytes
}

/// The messages of a `Content-Length` stream.
#[track_caller]
pub fn unframe(mut bytes: &[u8]) -> Vec<Value> {
    let mut messages = Vec::new();
    while let Some(end) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
        let head = std::str::from_utf8(&bytes[..end]).expect("headers in ASCII");
        let length = head
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
            .map(|(_, value)| value.trim().parse::<usize>().expect("a length"))
            .unwrap_or_else(|| panic!("no Content-Length in {head:?}"));
        let body = &bytes[end + 4..];
        messages.push(serde_json::from_slice(&body[..length]).expect("JSON in the frame"));
        bytes = &body[length..];
    }
    assert!(bytes.is_empty(), "bytes after the last frame: {}", String::from_utf8_lossy(bytes));
    messages
}
