//! Standard input of commands that take text from it.

use std::io::{self, Read};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::fs::FileType;

use super::out;

/// The daemon takes no larger message than 16 MiB; some of it is needed for quotes and escapes.
const MAX_INPUT: u64 = 12 << 20;
const HINT_AFTER: Duration = Duration::from_secs(3);

/// Whether somebody gave us something on standard input: a pipe, a socket or a file, and neither a terminal nor a
/// device such as /dev/null.
pub fn is_piped() -> bool {
    let kind = rustix::fs::fstat(rustix::stdio::stdin()).map(|stat| FileType::from_raw_mode(stat.st_mode));
    matches!(kind, Ok(FileType::Fifo | FileType::Socket | FileType::RegularFile))
}

/// All of standard input, if it is piped. Bytes that are no UTF-8 come out as U+FFFD.
pub fn piped() -> anyhow::Result<Option<String>> {
    if is_piped() { read_all().map(Some) } else { Ok(None) }
}

/// All of standard input, whatever it is. Where nothing comes the person is told what is waited for.
pub fn read_all() -> anyhow::Result<String> {
    let (done, waiting) = mpsc::channel::<()>();
    let hint = std::thread::spawn(move || {
        if waiting.recv_timeout(HINT_AFTER) == Err(mpsc::RecvTimeoutError::Timeout) {
            out::note("waiting for the end of standard input (`< /dev/null` leaves it out)");
        }
    });
    let mut bytes = Vec::new();
    let read = io::stdin().lock().take(MAX_INPUT + 1).read_to_end(&mut bytes);
    drop(done);
    let _ = hint.join();
    read.context("cannot read standard input")?;
    if bytes.len() as u64 > MAX_INPUT {
        bail!("standard input is longer than {} MiB", MAX_INPUT >> 20);
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A prompt: what was said on the command line, then what was piped.
pub fn join(text: &str, piped: Option<String>) -> String {
    match piped {
        Some(piped) if !piped.trim().is_empty() && text.trim().is_empty() => piped,
        Some(piped) if !piped.trim().is_empty() => format!("{text}\n\n{piped}"),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_piped_follows_the_text() {
        for (text, piped, whole) in [
            ("sum up", Some("a\nb\n"), "sum up\n\na\nb\n"),
            ("sum up", Some(" \n"), "sum up"),
            ("sum up", None, "sum up"),
            ("", Some("a\n"), "a\n"),
            ("", None, ""),
        ] {
            assert_eq!(join(text, piped.map(str::to_owned)), whole);
        }
    }
}
