//! Lines of a file at about the speed of reading it: in pieces, of which several are read and checked at a time, and
//! handed out in order.

use std::io;
use std::ops::{ControlFlow, Range};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use memchr::memchr;

use crate::store::medium::Medium;
use crate::tree::line::Checked;

/// How much is read at a time.
const PIECE: u64 = 128 * 1024;
const PAGE: u64 = 4096;
/// From this size on more threads help, as many as there are processors, but no more than this.
pub const THREADED: u64 = 4 << 20;
const THREADS: usize = 4;
/// Pieces of each thread that may wait for those before them.
const AHEAD: usize = 3;
/// A longer line is no record.
const LINE: usize = 512 * 1024 * 1024;
/// A header must be within this.
const HEADER: usize = 1024 * 1024;

const BOM: &[u8] = b"\xef\xbb\xbf";

/// Where a line lies, and what it is.
pub struct Line {
    /// In the piece's bytes: without white space around it, and a BOM in front.
    pub text: Range<usize>,
    /// Of the text's first byte, and behind the line's LF, in the file.
    pub offset: u64,
    pub end: u64,
    /// By an LF.
    pub closed: bool,
    pub checked: Checked,
    /// Of the text.
    pub crc: u32,
}

/// The lines that begin in one part of a file.
#[derive(Default)]
pub struct Piece {
    buffer: Vec<u8>,
    pub lines: Vec<Line>,
    /// The file ends in it.
    last: bool,
}

impl Piece {
    pub fn text(&self, line: &Line) -> &[u8] {
        self.buffer.get(line.text.clone()).unwrap_or_default()
    }

    /// Bytes of its lines.
    pub fn len(&self) -> u64 {
        match (self.lines.first(), self.lines.last()) {
            (Some(first), Some(last)) => last.end - first.offset,
            _ => 0,
        }
    }
}

/// How a file is cut: pieces end at multiples of [`PIECE`], the first begins where it is told to and the last goes on
/// to the end.
struct Cut<'a> {
    medium: &'a dyn Medium,
    from: u64,
    count: u64,
}

impl<'a> Cut<'a> {
    fn new(medium: &'a dyn Medium, from: u64) -> Cut<'a> {
        let size = medium.size().unwrap_or_default();
        Cut { medium, from, count: (size.div_ceil(PIECE)).saturating_sub(from / PIECE).max(1) }
    }

    /// Reads a piece; `spare` is one that is not needed any more.
    fn read(&self, number: u64, spare: Piece) -> io::Result<Piece> {
        let first = number == 0;
        let begin = if first { self.from } else { (self.from / PIECE + number) * PIECE };
        let end = if number + 1 >= self.count { u64::MAX } else { (self.from / PIECE + number + 1) * PIECE };
        // The byte before tells whether a line begins here.
        let start = if first { begin } else { begin - 1 };
        let mut window = Window::new(self.medium, start, spare.buffer);
        let mut piece = Piece { lines: spare.lines, ..Piece::default() };
        piece.lines.clear();
        window.grow(end.min(begin + PIECE).saturating_add(PAGE) - start)?;
        let mut at = start;
        if !first {
            match window.line_end(at, end)? {
                Some(next) => at = next,
                None => at = u64::MAX,
            }
        }
        while at < end && at <= window.end() {
            let Some(line) = window.line(at)? else { break };
            at = line.end;
            let closed = line.closed;
            piece.lines.push(line);
            if !closed {
                break;
            }
        }
        piece.last = window.ended && (at == window.end() || number + 1 >= self.count);
        piece.buffer = window.buffer;
        Ok(piece)
    }
}

/// A stretch of a file in memory. It begins so that pages of the file lie on pages of memory: that copies several
/// times as fast.
struct Window<'a> {
    medium: &'a dyn Medium,
    buffer: Vec<u8>,
    /// The file's offset of its first byte, where that lies in the buffer, and how much of it is filled.
    start: u64,
    base: usize,
    filled: usize,
    /// What follows lies beyond the end of the file.
    ended: bool,
}

impl<'a> Window<'a> {
    fn new(medium: &'a dyn Medium, start: u64, buffer: Vec<u8>) -> Window<'a> {
        Window { medium, buffer, start, base: 0, filled: 0, ended: false }
    }

    fn end(&self) -> u64 {
        self.start + self.filled as u64
    }

    /// Reads on until it holds so many bytes from its start, or the file ends.
    fn grow(&mut self, len: u64) -> io::Result<()> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let room = len.saturating_add(2 * PAGE as usize);
        if self.filled == 0 {
            if self.buffer.len() < room {
                self.buffer = vec![0; room];
            }
            let misplaced = (self.start % PAGE) as usize;
            self.base = self.buffer.as_ptr().align_offset(PAGE as usize) % PAGE as usize + misplaced;
        } else if self.buffer.len() < self.base + len {
            // It moves, and pages no longer fit: only long lines come here.
            self.buffer.resize(self.base + len.max(2 * self.filled), 0);
        }
        while self.filled < len && !self.ended {
            let to = self.base + len;
            let Some(free) = self.buffer.get_mut(self.base + self.filled..to) else {
                return Err(io::Error::other("a read buffer is too small"));
            };
            let n = self.medium.read_at(self.start + self.filled as u64, free)?;
            self.ended = n < free.len();
            self.filled += n;
        }
        Ok(())
    }

    fn bytes(&self, from: u64) -> &[u8] {
        let skip = usize::try_from(from.saturating_sub(self.start)).unwrap_or(usize::MAX);
        self.buffer.get(self.base..self.base + self.filled).and_then(|all| all.get(skip..)).unwrap_or_default()
    }

    /// Behind the next LF at or after `at`; none before `limit` or the end of the file.
    fn line_end(&mut self, mut at: u64, limit: u64) -> io::Result<Option<u64>> {
        loop {
            if let Some(length) = memchr(b'\n', self.bytes(at)) {
                let end = at + length as u64 + 1;
                return Ok((end <= limit).then_some(end));
            }
            at = self.end();
            if self.ended || at >= limit {
                return Ok(None);
            }
            let held = self.filled as u64;
            self.grow(held + held.clamp(PIECE, LINE as u64 / 8))?;
        }
    }

    /// The line that begins at `at`; none at the end of the file.
    fn line(&mut self, at: u64) -> io::Result<Option<Line>> {
        let within = self.line_end(at, at.saturating_add(LINE as u64))?;
        if at >= self.end() {
            return Ok(None);
        }
        let (end, closed, long) = match within {
            Some(end) => (end, true, false),
            None if self.ended => (self.end(), false, false),
            None => {
                let (end, closed) = self.far_line_end()?;
                (end, closed, true)
            }
        };
        let held = self.bytes(at);
        let line = held.get(..usize::try_from(end - at).unwrap_or(usize::MAX)).unwrap_or(held);
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let bom = if at == 0 { line.strip_prefix(BOM) } else { None };
        let front = bom.unwrap_or(line).trim_ascii_start();
        let skipped = line.len() - front.len();
        let text = front.trim_ascii_end();
        // Of one that is too long only that it is there counts.
        let checked = if long { Checked::default() } else { Checked::of(text) };
        let crc = if checked.object { crc32fast::hash(text) } else { 0 };
        let from = self.base + usize::try_from(at - self.start).unwrap_or(usize::MAX) + skipped;
        let offset = at + skipped as u64;
        Ok(Some(Line { text: from..from + text.len(), offset, end, closed, checked, crc }))
    }

    /// Where a line ends of which only the beginning is held; no line can follow in this window then.
    fn far_line_end(&mut self) -> io::Result<(u64, bool)> {
        let mut at = self.end();
        let mut passing = vec![0; PIECE as usize];
        self.ended = true;
        loop {
            let n = self.medium.read_at(at, &mut passing)?;
            let read = passing.get(..n).unwrap_or_default();
            if let Some(length) = memchr(b'\n', read) {
                return Ok((at + length as u64 + 1, true));
            }
            at += n as u64;
            if n < passing.len() {
                return Ok((at, false));
            }
        }
    }
}

/// Calls `each` with every piece from `from` on, in order.
pub fn pieces(medium: &dyn Medium, from: u64, mut each: impl FnMut(&Piece) -> ControlFlow<()>) -> io::Result<()> {
    let cut = Cut::new(medium, from);
    let threads = match cut.count * PIECE < THREADED {
        true => 1,
        false => std::thread::available_parallelism().map_or(1, |n| n.get().min(THREADS)),
    };
    if threads == 1 {
        let mut spare = Piece::default();
        for number in 0..cut.count {
            let piece = cut.read(number, spare)?;
            if each(&piece).is_break() || piece.last {
                break;
            }
            spare = piece;
        }
        return Ok(());
    }
    let crew = Crew { cut, ahead: (threads * AHEAD) as u64, work: Mutex::default(), changed: Condvar::new() };
    std::thread::scope(|scope| {
        // Ends them also when `each` panics.
        let _end = End(&crew);
        for _ in 1..threads {
            scope.spawn(|| crew.help());
        }
        crew.lead(each)
    })
}

/// Those who read pieces side by side, and the one who hands them out and reads where none is ready.
struct Crew<'a> {
    cut: Cut<'a>,
    ahead: u64,
    /// A mutex, since the pieces come from several threads and go by one; held to put and to take them.
    work: Mutex<Work>,
    changed: Condvar,
}

#[derive(Default)]
struct Work {
    /// To be read next, and to be handed out next.
    next: u64,
    wanted: u64,
    ready: Vec<(u64, io::Result<Piece>)>,
    spare: Vec<Piece>,
    over: bool,
}

impl Work {
    fn claim(&mut self, crew: &Crew<'_>) -> Option<(u64, Piece)> {
        let free = !self.over && self.next < crew.cut.count && self.next < self.wanted + crew.ahead;
        free.then(|| {
            self.next += 1;
            (self.next - 1, self.spare.pop().unwrap_or_default())
        })
    }
}

impl<'a> Crew<'a> {
    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'g>(&self, work: MutexGuard<'g, Work>) -> MutexGuard<'g, Work> {
        self.changed.wait(work).unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, (number, spare): (u64, Piece)) {
        let piece = self.cut.read(number, spare);
        self.work().ready.push((number, piece));
        self.changed.notify_all();
    }

    fn help(&self) {
        let mut work = self.work();
        while !work.over && work.next < self.cut.count {
            match work.claim(self) {
                Some(claimed) => {
                    drop(work);
                    self.read(claimed);
                    work = self.work();
                }
                None => work = self.wait(work),
            }
        }
    }

    fn lead(&self, mut each: impl FnMut(&Piece) -> ControlFlow<()>) -> io::Result<()> {
        let mut work = self.work();
        while work.wanted < self.cut.count {
            let wanted = work.wanted;
            if let Some(at) = work.ready.iter().position(|(number, _)| *number == wanted) {
                let (_, piece) = work.ready.swap_remove(at);
                drop(work);
                let piece = piece?;
                if each(&piece).is_break() || piece.last {
                    return Ok(());
                }
                work = self.work();
                work.wanted += 1;
                work.spare.push(piece);
                self.changed.notify_all();
            } else if let Some(claimed) = work.claim(self) {
                drop(work);
                self.read(claimed);
                work = self.work();
            } else {
                work = self.wait(work);
            }
        }
        Ok(())
    }
}

struct End<'a>(&'a Crew<'a>);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.work().over = true;
        self.0.changed.notify_all();
    }
}

/// The first line that is not blank, where it ends, and whether by LF.
pub fn first_line(medium: &dyn Medium) -> io::Result<Option<(Vec<u8>, u64, bool)>> {
    let mut window = Window::new(medium, 0, Vec::new());
    window.grow(PAGE)?;
    let mut at = 0;
    while let Some(line) = window.line(at)? {
        if !line.text.is_empty() {
            let bytes = window.buffer.get(line.text).unwrap_or_default();
            return Ok(Some((bytes.to_vec(), line.end, line.closed)));
        }
        at = line.end;
        if at > HEADER as u64 {
            return Ok(Some((Vec::new(), 0, false)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::medium::{Budget, Memory};

    /// All lines as they come: offset, end, closed, text; however many threads there are.
    fn all(bytes: &[u8], from: u64) -> Vec<(u64, u64, bool, Vec<u8>)> {
        let memory = Memory::new(Budget::new(u64::MAX));
        memory.append(bytes).unwrap();
        let mut lines = Vec::new();
        pieces(&memory, from, |piece| {
            lines.extend(piece.lines.iter().map(|l| (l.offset, l.end, l.closed, piece.text(l).to_vec())));
            ControlFlow::Continue(())
        })
        .unwrap();
        lines
    }

    fn expected(bytes: &[u8], from: u64) -> Vec<(u64, u64, bool, Vec<u8>)> {
        let mut at = from;
        let mut lines = Vec::new();
        for line in bytes[from as usize..].split_inclusive(|b| *b == b'\n') {
            let end = at + line.len() as u64;
            let bare = line.strip_suffix(b"\n").unwrap_or(line);
            let text = if at == 0 { bare.strip_prefix(BOM).unwrap_or(bare) } else { bare };
            let skipped = bare.len() - text.trim_ascii_start().len();
            lines.push((at + skipped as u64, end, bare.len() < line.len(), text.trim_ascii().to_vec()));
            at = end;
        }
        lines
    }

    /// Lines of all lengths, whose ends fall on, before and behind the ends of pieces.
    #[test]
    fn every_line_comes_once_and_in_order() {
        let piece = PIECE as usize;
        let line = |n: usize| [vec![b'x'; n.saturating_sub(1)], vec![b'\n']].concat();
        let mut cases: Vec<Vec<u8>> = vec![vec![], b"\n".to_vec(), b"a".to_vec(), b"\xef\xbb\xbfa\r\n \n".to_vec()];
        for around in [piece - 1, piece, piece + 1] {
            cases.push([line(around), line(7), b"end".to_vec()].concat());
            cases.push([line(around), line(piece), line(piece + 1), line(1)].concat());
        }
        // Above the size from which on there are several threads.
        let mut long = Vec::new();
        for n in 0..60_000usize {
            long.extend(line(1 + n * 7919 % 397));
        }
        long.extend(line(5 * piece + 3));
        long.extend(line(3));
        long.extend(line(2 * piece));
        long.extend(b"no end");
        cases.push(long);
        for bytes in cases {
            let firsts = expected(&bytes, 0).into_iter().map(|(_, end, ..)| end).take(2);
            for from in std::iter::once(0).chain(firsts).collect::<Vec<_>>() {
                assert!(all(&bytes, from) == expected(&bytes, from), "{} bytes from {from}", bytes.len());
            }
        }
    }

    #[test]
    fn it_ends_when_it_is_told_to() {
        let memory = Memory::new(Budget::new(u64::MAX));
        memory.append(&b"{}\n".repeat(3_000_000)).unwrap();
        let mut count = 0;
        pieces(&memory, 0, |_| {
            count += 1;
            if count == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
        assert_eq!(count, 3);
    }
}
