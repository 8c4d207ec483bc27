//! Lines of a file at about the speed of reading it: several threads read parts of it and make of their lines what is
//! wanted, which is handed out in order. The bytes stay with the thread that read them: memory goes slowly from one
//! processor to another.

use std::io;
use std::ops::ControlFlow;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use memchr::memchr;

use crate::store::medium::Medium;

/// How much is read at a time: it fits beside what else a processor's own cache holds.
const PIECE: u64 = 128 * 1024;
/// Pieces of a part.
const PART: u64 = 8;
const PAGE: u64 = 4096;
/// From this size on more threads help, as many as there are processors, but no more than this.
pub const THREADED: u64 = 4 << 20;
const THREADS: usize = 4;
/// Parts of each thread that may wait for those before them.
const AHEAD: usize = 2;
/// A longer line is no record.
const LINE: usize = if cfg!(test) { 32 << 20 } else { 512 << 20 };
/// A header must be within this.
const HEADER: usize = 1024 * 1024;

const BOM: &[u8] = b"\xef\xbb\xbf";

/// Where a line lies.
pub struct Line<'a> {
    /// Without white space around it, and a BOM in front; of one that is too long, nothing.
    pub text: &'a [u8],
    /// Of the text's first byte, and behind the line's LF, in the file.
    pub offset: u64,
    pub end: u64,
    /// By an LF.
    pub closed: bool,
    /// Longer than any record.
    pub long: bool,
}

/// What is made of the lines of one part, on whatever thread.
pub trait Take: Send {
    fn line(&mut self, line: &Line<'_>);
    /// To be used anew.
    fn clear(&mut self);
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

    fn parts(&self) -> u64 {
        self.count.div_ceil(PART)
    }

    /// Takes the lines that begin in a part; whether the file ends in it.
    fn part(&self, number: u64, buffer: &mut Vec<u8>, take: &mut impl Take) -> io::Result<bool> {
        let first = number * PART;
        for number in first..(first + PART).min(self.count) {
            if self.piece(number, buffer, take)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn piece(&self, number: u64, buffer: &mut Vec<u8>, take: &mut impl Take) -> io::Result<bool> {
        let first = number == 0;
        let begin = if first { self.from } else { (self.from / PIECE + number) * PIECE };
        let end = if number + 1 >= self.count { u64::MAX } else { (self.from / PIECE + number + 1) * PIECE };
        // The byte before tells whether a line begins here.
        let start = if first { begin } else { begin - 1 };
        let mut window = Window::new(self.medium, start, std::mem::take(buffer));
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
            take.line(&line);
            at = line.end;
            if !line.closed {
                break;
            }
        }
        let last = window.ended && (at == window.end() || number + 1 >= self.count);
        *buffer = window.buffer;
        Ok(last)
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
    fn line(&mut self, at: u64) -> io::Result<Option<Line<'_>>> {
        let within = self.line_end(at, at.saturating_add(LINE as u64))?;
        if at >= self.end() {
            return Ok(None);
        }
        let (end, closed, long) = match within {
            Some(end) => (end, true, false),
            None if self.ended && self.end() - at <= LINE as u64 => (self.end(), false, false),
            None => {
                let (end, closed) = self.far_line_end(at + LINE as u64)?;
                (end, closed, true)
            }
        };
        let held = self.bytes(at);
        let line = held.get(..usize::try_from(end - at).unwrap_or(usize::MAX)).unwrap_or(held);
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let bom = if at == 0 { line.strip_prefix(BOM) } else { None };
        let front = bom.unwrap_or(line).trim_ascii_start();
        let skipped = line.len() - front.len();
        let text = if long { &[] } else { front.trim_ascii_end() };
        Ok(Some(Line { text, offset: at + skipped as u64, end, closed, long }))
    }

    /// Where a line ends that is too long, looked for from `at` on. What follows is for another window, which the next
    /// reading begins.
    fn far_line_end(&self, mut at: u64) -> io::Result<(u64, bool)> {
        let mut passing = vec![0; PIECE as usize];
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

/// Calls `each` with what was taken of every part from `from` on, in order.
pub fn parts<T: Take>(
    medium: &dyn Medium,
    from: u64,
    new: impl Fn() -> T + Sync,
    mut each: impl FnMut(&T) -> ControlFlow<()>,
) -> io::Result<()> {
    let cut = Cut::new(medium, from);
    let threads = match cut.count * PIECE < THREADED {
        true => 1,
        false => std::thread::available_parallelism().map_or(1, |n| n.get().min(THREADS)),
    };
    if threads == 1 {
        let (mut buffer, mut taken) = (Vec::new(), new());
        for number in 0..cut.parts() {
            taken.clear();
            let last = cut.part(number, &mut buffer, &mut taken)?;
            if each(&taken).is_break() || last {
                break;
            }
        }
        return Ok(());
    }
    let crew = Crew { cut, new, ahead: (threads * AHEAD) as u64, work: Mutex::default(), changed: Condvar::new() };
    std::thread::scope(|scope| {
        // Ends them also when `each` panics.
        let _end = End(&crew);
        for _ in 1..threads {
            scope.spawn(|| crew.help());
        }
        crew.lead(each)
    })
}

/// Those who read parts side by side, and the one who hands out what they took and reads where none is ready.
struct Crew<'a, T, N> {
    cut: Cut<'a>,
    new: N,
    ahead: u64,
    /// A mutex, since the parts come from several threads and go by one; held to put and to take them.
    work: Mutex<Work<T>>,
    changed: Condvar,
}

struct Work<T> {
    /// To be read next, and to be handed out next.
    next: u64,
    wanted: u64,
    ready: Vec<(u64, io::Result<(T, bool)>)>,
    spare: Vec<T>,
    over: bool,
}

impl<T> Default for Work<T> {
    fn default() -> Work<T> {
        Work { next: 0, wanted: 0, ready: Vec::new(), spare: Vec::new(), over: false }
    }
}

impl<'a, T: Take, N: Fn() -> T> Crew<'a, T, N> {
    fn work(&self) -> MutexGuard<'_, Work<T>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'g>(&self, work: MutexGuard<'g, Work<T>>) -> MutexGuard<'g, Work<T>> {
        self.changed.wait(work).unwrap_or_else(PoisonError::into_inner)
    }

    /// A part to be read, and something to put it in.
    fn claim(&self, work: &mut Work<T>) -> Option<(u64, T)> {
        let free = !work.over && work.next < self.cut.parts() && work.next < work.wanted + self.ahead;
        free.then(|| {
            work.next += 1;
            (work.next - 1, work.spare.pop().unwrap_or_else(&self.new))
        })
    }

    fn read(&self, (number, mut taken): (u64, T), buffer: &mut Vec<u8>) {
        taken.clear();
        let read = self.cut.part(number, buffer, &mut taken);
        self.work().ready.push((number, read.map(|last| (taken, last))));
        self.changed.notify_all();
    }

    fn help(&self) {
        let mut buffer = Vec::new();
        let mut work = self.work();
        while !work.over && work.next < self.cut.parts() {
            match self.claim(&mut work) {
                Some(claimed) => {
                    drop(work);
                    self.read(claimed, &mut buffer);
                    work = self.work();
                }
                None => work = self.wait(work),
            }
        }
    }

    fn lead(&self, mut each: impl FnMut(&T) -> ControlFlow<()>) -> io::Result<()> {
        let mut buffer = Vec::new();
        let mut work = self.work();
        while work.wanted < self.cut.parts() {
            let wanted = work.wanted;
            if let Some(at) = work.ready.iter().position(|(number, _)| *number == wanted) {
                let (_, part) = work.ready.swap_remove(at);
                drop(work);
                let (taken, last) = part?;
                if each(&taken).is_break() || last {
                    return Ok(());
                }
                work = self.work();
                work.wanted += 1;
                work.spare.push(taken);
                self.changed.notify_all();
            } else if let Some(claimed) = self.claim(&mut work) {
                drop(work);
                self.read(claimed, &mut buffer);
                work = self.work();
            } else {
                work = self.wait(work);
            }
        }
        Ok(())
    }
}

struct End<'c, 'a, T: Take, N: Fn() -> T>(&'c Crew<'a, T, N>);

impl<T: Take, N: Fn() -> T> Drop for End<'_, '_, T, N> {
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
            return Ok(Some((line.text.to_vec(), line.end, line.closed)));
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

    /// Offset, end, closed, text.
    type Lines = Vec<(u64, u64, bool, Vec<u8>)>;

    impl Take for Lines {
        fn line(&mut self, line: &Line<'_>) {
            self.push((line.offset, line.end, line.closed, line.text.to_vec()));
        }

        fn clear(&mut self) {
            Vec::clear(self);
        }
    }

    /// All lines as they come, however many threads there are.
    fn all(bytes: &[u8], from: u64) -> Lines {
        let memory = Memory::new(Budget::new(u64::MAX));
        memory.append(bytes).unwrap();
        let mut lines = Vec::new();
        parts(&memory, from, Lines::new, |part: &Lines| {
            lines.extend_from_slice(part);
            ControlFlow::Continue(())
        })
        .unwrap();
        lines
    }

    fn expected(bytes: &[u8], from: u64) -> Lines {
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

    /// It is passed over, and none of those behind it is taken for its end.
    #[test]
    fn after_a_line_that_is_too_long_come_the_others() {
        for (over, tail) in [(1, "a\n"), (1, "a\nb"), (300_000, "a\nb\n"), (5 << 20, "a\n"), (300_000, "")] {
            let mut bytes = b"first\n".to_vec();
            bytes.resize(bytes.len() + LINE + over, b'x');
            let long = bytes.len() as u64;
            bytes.push(b'\n');
            bytes.extend_from_slice(tail.as_bytes());
            let lines = all(&bytes, 0);
            let ends: Vec<_> = lines.iter().map(|(_, end, closed, text)| (*end, *closed, text.len())).collect();
            let mut right = vec![(6, true, 5), (long + 1, true, 0)];
            right.extend(expected(&bytes, long + 1).iter().map(|(_, end, closed, text)| (*end, *closed, text.len())));
            assert_eq!(ends, right, "{over} bytes too long, then {tail:?}");
        }
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
        parts(&memory, 0, Lines::new, |_| {
            count += 1;
            if count == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
        assert_eq!(count, 3);
    }
}
