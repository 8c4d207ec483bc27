//! `<file>.events`: the milestone events of a session, so that a client can resume after a restart, and the
//! number up to which events may have been given, so that none is given twice.
//!
//! The first line is of fixed length and rewritten in place: `{"reserved":N,"floor":M}` and blanks. Numbers are
//! reserved in blocks, before the first of a block is given. The file is a cache: a fault in it costs events,
//! never a session, and is only logged.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// Beyond this the older half is dropped.
const MAX_BYTES: u64 = 4 << 20;
/// A longer event is not kept.
const MAX_LINE: usize = 256 << 10;
/// Numbers reserved at a time.
const BLOCK: u64 = 1000;
const HEAD: usize = 80;

/// Milestones of one session, as JSON lines.
#[derive(Debug)]
pub struct EventLog {
    path: PathBuf,
    file: Option<File>,
    head: Head,
    len: u64,
    /// A crash cut the last line; the next one begins on a line of its own.
    torn: bool,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
struct Head {
    /// Numbers up to this one may have been given.
    reserved: u64,
    /// Events up to this number are no longer here.
    floor: u64,
}

/// A kept event.
#[derive(Debug, Deserialize)]
pub struct Kept {
    pub seq: u64,
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(skip)]
    pub text: String,
}

impl EventLog {
    /// Looks for the file; makes none.
    pub fn open(path: PathBuf) -> EventLog {
        let mut log = EventLog { path, file: None, head: Head::default(), len: 0, torn: false };
        if let Ok(mut file) = OpenOptions::new().read(true).write(true).open(&log.path) {
            let mut head = [0; HEAD];
            if file.read_exact(&mut head).is_ok()
                && let Ok(head) = serde_json::from_slice(&head)
            {
                log.head = head;
                log.len = file.seek(SeekFrom::End(0)).unwrap_or_default();
                let mut last = [0];
                log.torn = file.read_exact_at(&mut last, log.len.saturating_sub(1)).is_ok() && last != *b"\n";
                log.file = Some(file);
            }
        }
        log
    }

    /// The last number that may have been given; none: there is no such file.
    pub fn reserved(&self) -> Option<u64> {
        self.file.as_ref().map(|_| self.head.reserved)
    }

    /// Must be called before `seq` is given.
    pub fn reserve(&mut self, seq: u64) {
        if self.file.is_some() && seq <= self.head.reserved {
            return;
        }
        if self.file.is_none() {
            self.head.floor = seq.saturating_sub(1);
        }
        self.head.reserved = seq + BLOCK;
        if let Err(error) = self.write_head() {
            tracing::warn!(path = %self.path.display(), %error, "the event file cannot be written");
        }
    }

    fn write_head(&mut self) -> std::io::Result<()> {
        let head = head_line(self.head);
        if self.file.is_none() {
            let file =
                OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(&self.path)?;
            self.len = HEAD as u64;
            self.file = Some(file);
        }
        match &self.file {
            Some(file) => file.write_all_at(&head, 0),
            None => Ok(()),
        }
    }

    /// Keeps an event (its JSON).
    pub fn append(&mut self, seq: u64, text: &str) {
        if text.len() > MAX_LINE {
            return self.forget_up_to(seq);
        }
        let Some(file) = &self.file else { return };
        let mut line = Vec::with_capacity(text.len() + 2);
        if std::mem::take(&mut self.torn) {
            line.push(b'\n');
        }
        line.extend_from_slice(text.as_bytes());
        line.push(b'\n');
        match file.write_all_at(&line, self.len) {
            Ok(()) => self.len += line.len() as u64,
            Err(error) => tracing::warn!(path = %self.path.display(), %error, "an event could not be kept"),
        }
        if self.len > MAX_BYTES
            && let Err(error) = self.drop_older_half()
        {
            tracing::warn!(path = %self.path.display(), %error, "the event file could not be shortened");
        }
    }

    /// One event is not kept, so that those before it are no answer any more.
    fn forget_up_to(&mut self, seq: u64) {
        self.head.floor = seq;
        if let Err(error) = self.write_head() {
            tracing::warn!(path = %self.path.display(), %error, "the event file cannot be written");
        }
    }

    /// What is kept, oldest first, and the number up to which events are lost. None: there is no such file, so that
    /// all are.
    pub fn read(&self) -> Option<(u64, Vec<Kept>)> {
        self.file.as_ref()?;
        Some((self.head.floor, read_lines(&self.path).ok()?))
    }

    fn drop_older_half(&mut self) -> std::io::Result<()> {
        let events = read_lines(&self.path)?;
        let total: usize = events.iter().map(|e| e.text.len()).sum();
        let mut dropped = 0;
        let mut bytes = vec![b' '; HEAD];
        for event in events {
            if dropped < total / 2 {
                dropped += event.text.len();
                self.head.floor = event.seq;
                continue;
            }
            bytes.extend_from_slice(event.text.as_bytes());
            bytes.push(b'\n');
        }
        for (to, from) in bytes.iter_mut().zip(head_line(self.head)) {
            *to = from;
        }
        let next = self.path.with_extension("events-new");
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(&next)?;
        file.write_all(&bytes)?;
        std::fs::rename(&next, &self.path)?;
        self.len = bytes.len() as u64;
        self.file = Some(file);
        Ok(())
    }
}

fn head_line(head: Head) -> [u8; HEAD] {
    let mut line = [b' '; HEAD];
    let text = format!("{{\"reserved\":{},\"floor\":{}}}", head.reserved, head.floor);
    for (to, from) in line.iter_mut().zip(text.bytes()) {
        *to = from;
    }
    line[HEAD - 1] = b'\n';
    line
}

/// A line that a crash cut, or that is damaged, is passed over.
fn read_lines(path: &Path) -> std::io::Result<Vec<Kept>> {
    let mut reader = BufReader::new(File::open(path)?).take(2 * MAX_BYTES);
    let mut line = Vec::new();
    let mut events = vec![];
    while reader.read_until(b'\n', &mut line)? > 0 {
        if let Ok(text) = std::str::from_utf8(&line)
            && let Ok(mut kept) = serde_json::from_str::<Kept>(text)
        {
            kept.text = text.trim_end().to_owned();
            events.push(kept);
        }
        line.clear();
    }
    Ok(events)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(seq: u64, size: usize) -> String {
        format!("{{\"seq\":{seq},\"type\":\"runStart\",\"pad\":\"{}\"}}", "x".repeat(size))
    }

    #[test]
    fn numbers_are_reserved_before_they_are_given() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.jsonl.events");
        let mut log = EventLog::open(path.clone());
        assert_eq!(log.reserved(), None);
        assert!(log.read().is_none(), "without a file nothing is known");
        log.reserve(5);
        log.append(5, &event(5, 1));
        // As after a kill: nothing was closed.
        let again = EventLog::open(path);
        assert_eq!(again.reserved(), Some(1005));
        let (floor, kept) = again.read().unwrap();
        assert_eq!((floor, kept.len(), kept[0].seq), (4, 1, 5));
    }

    #[test]
    fn the_oldest_are_dropped_first_and_a_torn_line_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.jsonl.events");
        let mut log = EventLog::open(path.clone());
        log.reserve(1);
        for seq in 1..=100 {
            log.append(seq, &event(seq, 100_000));
        }
        assert!(std::fs::metadata(&path).unwrap().len() <= MAX_BYTES + 200_000);
        let (floor, kept) = log.read().unwrap();
        assert_eq!(kept[0].seq, floor + 1);
        assert_eq!(kept.last().unwrap().seq, 100);
        let len = std::fs::metadata(&path).unwrap().len();
        OpenOptions::new().write(true).open(&path).unwrap().set_len(len - 10).unwrap();
        let mut again = EventLog::open(path.clone());
        assert_eq!(again.read().unwrap().1.last().unwrap().seq, 99);
        assert_eq!(again.reserved(), Some(1001));
        again.reserve(1002);
        again.append(1002, &event(1002, 1));
        assert_eq!(
            EventLog::open(path).read().unwrap().1.last().unwrap().seq,
            1002,
            "the torn one takes no other along"
        );
    }

    #[test]
    fn one_that_is_too_long_leaves_no_gap_behind_its_back() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = EventLog::open(dir.path().join("s.jsonl.events"));
        log.reserve(1);
        for (seq, size) in [(1, 1), (2, MAX_LINE), (3, 1)] {
            log.append(seq, &event(seq, size));
        }
        let (floor, kept) = log.read().unwrap();
        assert_eq!((floor, kept.last().unwrap().seq), (2, 3), "who asks for what follows 1 is told that it is lost");
    }
}
