//! What a command prints: its beginning and its end in bounded memory, all of it in a file once that is more than a
//! model gets.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::time::Instant;

use super::Progress;
use super::jobs::Jobs;
use crate::text::{self, Cleaner, Limits};

/// How much of the end is kept; more than [`Limits::OUTPUT`] lets through.
const KEPT: usize = 64 * 1024;
/// Of an output that is too long, what is shown of its beginning: there is the first of many errors, and the stream
/// that was written first. The end has the rest of [`Limits::OUTPUT`].
const BEGINNING: Limits = Limits { lines: 200, bytes: 8 * 1024 };
const END: Limits =
    Limits { lines: Limits::OUTPUT.lines - BEGINNING.lines, bytes: Limits::OUTPUT.bytes - BEGINNING.bytes };
/// A command must not fill the disk: what comes after this is not written to the file.
const LARGEST_FILE: u64 = 64 * 1024 * 1024;

/// The end of a text that grows.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    cleaner: Cleaner,
    text: String,
    /// A little more of the beginning than is shown, to tell where it is cut.
    beginning: String,
    /// Lines that ended, since the beginning.
    lines: u64,
    dropped: bool,
}

/// What a piece of output added.
pub(crate) struct Added {
    /// For those who watch.
    pub live: String,
    /// Finished lines, for the file.
    pub text: String,
}

impl Tail {
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Added {
        let mut added = Added { live: String::new(), text: String::new() };
        self.cleaner.push(bytes, &mut added.text, &mut added.live);
        self.append(&added.text);
        added
    }

    pub(crate) fn finish(&mut self) -> Added {
        let mut added = Added { live: String::new(), text: String::new() };
        self.cleaner.finish(&mut added.text, &mut added.live);
        self.append(&added.text);
        added
    }

    fn append(&mut self, text: &str) {
        let room = (BEGINNING.bytes + 8).saturating_sub(self.beginning.len());
        if self.beginning.len() <= BEGINNING.bytes {
            self.beginning.push_str(text::clip_bytes(text, room.min(text.len())));
        }
        self.text.push_str(text);
        self.lines += memchr::memchr_iter(b'\n', text.as_bytes()).count() as u64;
        if self.text.len() > 2 * KEPT {
            let from = text::ceil_char_boundary(&self.text, self.text.len() - KEPT);
            self.text.drain(..from);
            self.dropped = true;
        }
    }

    /// The end of what came so far, within limits.
    pub(crate) fn end(&self, limits: Limits) -> (String, bool) {
        let all = [self.text.as_str(), self.cleaner.unfinished()].concat();
        let cut = text::tail(&all, limits);
        (cut.text.to_owned(), self.dropped || cut.by.is_some())
    }

    /// All of a finished output where it fits, else its beginning and its end; whether something was left out.
    fn both_ends(&self) -> (String, bool) {
        if !self.dropped && text::tail(&self.text, Limits::OUTPUT).by.is_none() {
            return (self.text.clone(), false);
        }
        let (first, last) = (text::head(&self.beginning, BEGINNING), text::tail(&self.text, END));
        let left_out = match self.total_lines().saturating_sub((first.lines + last.lines) as u64) {
            0 => "left out".to_owned(),
            1 => "1 line left out".to_owned(),
            lines => format!("{lines} lines left out"),
        };
        (format!("{}\n[… {left_out} …]\n{}", first.text.trim_end_matches('\n'), last.text), true)
    }

    fn total_lines(&self) -> u64 {
        self.lines + u64::from(!self.text.is_empty() && !self.text.ends_with('\n'))
    }

    pub(crate) fn replaced(&self) -> bool {
        self.cleaner.replaced() > 0
    }
}

/// A finished output.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// At most [`Limits::OUTPUT`] of it; of more the beginning and the end, and a line between them that says so.
    pub text: String,
    pub truncated: bool,
    pub total_lines: u64,
    /// Everything, if `truncated` and it could be written.
    pub path: Option<PathBuf>,
    /// The file has only the beginning of it.
    pub path_incomplete: bool,
    pub replaced: bool,
}

/// An output as it comes.
pub(crate) struct Capture {
    tail: Tail,
    live: Live,
    jobs: Arc<Jobs>,
    file: Spill,
}

enum Spill {
    NotNeeded,
    Open { file: tokio::fs::File, path: PathBuf, written: u64, full: bool },
    Failed,
}

impl Capture {
    pub(crate) fn new(progress: Progress, jobs: Arc<Jobs>) -> Capture {
        Capture { tail: Tail::default(), live: Live::new(progress), jobs, file: Spill::NotNeeded }
    }

    pub(crate) async fn push(&mut self, bytes: &[u8]) {
        let added = self.tail.push(bytes);
        self.live.send(&added.live);
        match &self.file {
            // Nothing was dropped yet: the kept text is all.
            Spill::NotNeeded if self.tail.text.len() > KEPT => self.spill().await,
            Spill::Open { .. } => self.store(&added.text).await,
            _ => {}
        }
    }

    pub(crate) async fn finish(mut self) -> Output {
        let added = self.tail.finish();
        self.live.send(&added.live);
        let (text, truncated) = self.tail.both_ends();
        match self.file {
            Spill::NotNeeded if truncated => self.spill().await,
            Spill::Open { .. } => self.store(&added.text).await,
            _ => {}
        }
        let total_lines = self.tail.total_lines();
        let mut output = Output { text, truncated, total_lines, replaced: self.tail.replaced(), ..Output::default() };
        if let Spill::Open { mut file, path, full, .. } = self.file
            && file.flush().await.is_ok()
        {
            output.path = Some(path);
            output.path_incomplete = full;
        }
        output
    }

    async fn spill(&mut self) {
        match self.jobs.output_file() {
            Ok((file, path)) => {
                self.file = Spill::Open { file: tokio::fs::File::from_std(file), path, written: 0, full: false };
                let all = self.tail.text.clone();
                self.store(&all).await;
            }
            Err(error) => {
                tracing::warn!("a command's output cannot be kept in a file: {error}");
                self.file = Spill::Failed;
            }
        }
    }

    async fn store(&mut self, text: &str) {
        let Spill::Open { file, written, full, .. } = &mut self.file else { return };
        let room = usize::try_from(LARGEST_FILE - *written).unwrap_or(usize::MAX);
        let part = text::clip_bytes(text, room.min(text.len()));
        *full |= part.len() < text.len();
        *written += part.len() as u64;
        if let Err(error) = file.write_all(part.as_bytes()).await {
            tracing::warn!("a command's output cannot be kept in a file: {error}");
            self.file = Spill::Failed;
        }
    }
}

/// Hands output on to those who watch, at a rate that they can take.
struct Live {
    progress: Progress,
    since: Instant,
    sent: usize,
    skipped: bool,
}

impl Live {
    const WINDOW: Duration = Duration::from_millis(100);
    const IN_WINDOW: usize = 64 * 1024;

    fn new(progress: Progress) -> Live {
        Live { progress, since: Instant::now(), sent: 0, skipped: false }
    }

    fn send(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        if self.since.elapsed() >= Self::WINDOW {
            self.since = Instant::now();
            self.sent = 0;
        }
        let part = text::clip_bytes(text, (Self::IN_WINDOW - self.sent.min(Self::IN_WINDOW)).min(text.len()));
        if !part.is_empty() {
            if std::mem::take(&mut self.skipped) {
                (self.progress)("\n[…]\n");
            }
            (self.progress)(part);
            self.sent += part.len();
        }
        self.skipped |= part.len() < text.len();
    }
}
