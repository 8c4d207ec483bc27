//! Lines of a file at about the speed of reading it: whole blocks, each checked before its lines count.

use std::io;
use std::ops::{ControlFlow, Range};
use std::sync::mpsc::sync_channel;

use memchr::{memchr, memrchr};

use crate::store::medium::Medium;
use crate::tree::json;

/// How much is read at a time.
const BLOCK: usize = 512 * 1024;
const PAGE: usize = 4096;
/// From this size on a second thread helps; so many blocks are read ahead for it.
pub const THREADED: u64 = 8 << 20;
const AHEAD: usize = 4;
/// A longer line is no record.
const LINE: usize = 512 * 1024 * 1024;
/// A header must be within this.
const HEADER: usize = 1024 * 1024;

/// Where a line lies in a block.
pub struct Line {
    /// Without white space around it, and a BOM in front.
    pub text: Range<usize>,
    /// With its LF.
    pub end: usize,
    pub closed: bool,
    /// Whether it is a JSON object, and its checksum.
    pub object: bool,
    pub crc: u32,
}

/// Whole lines from one place of the file. The lines of a block are checked by whoever has time to.
pub struct Block {
    buffer: Vec<u8>,
    pub used: Range<usize>,
    /// Of the first byte used.
    pub offset: u64,
    pub lines: Vec<Line>,
}

impl Block {
    pub fn bytes(&self) -> &[u8] {
        self.buffer.get(self.used.clone()).unwrap_or_default()
    }

    fn check(&mut self) {
        let mut lines = std::mem::take(&mut self.lines);
        lines.clear();
        let bytes = self.bytes();
        let mut start = 0;
        while start < bytes.len() {
            let rest = bytes.get(start..).unwrap_or_default();
            let length = memchr(b'\n', rest);
            let line = rest.get(..length.unwrap_or(rest.len())).unwrap_or_default();
            let end = start + length.map_or(rest.len(), |length| length + 1);
            let bom = if self.offset == 0 && start == 0 { line.strip_prefix(BOM) } else { None };
            let front = bom.unwrap_or(line).trim_ascii_start();
            let from = start + line.len() - front.len();
            let text = front.trim_ascii_end();
            let object = text.len() < LINE && json::is_object(text);
            let crc = if object { crc32fast::hash(text) } else { 0 };
            lines.push(Line { text: from..from + text.len(), end, closed: length.is_some(), object, crc });
            start = end;
        }
        self.lines = lines;
    }
}

const BOM: &[u8] = b"\xef\xbb\xbf";

/// Reads blocks of whole lines, each into a buffer so that pages of the file come to lie on pages of memory: that
/// copies several times as fast.
pub struct Blocks<'a> {
    medium: &'a dyn Medium,
    at: u64,
    /// The beginning of a line whose end was not read yet.
    carried: Vec<u8>,
    size: usize,
    done: bool,
}

impl<'a> Blocks<'a> {
    fn new(medium: &'a dyn Medium, from: u64, size: usize) -> Blocks<'a> {
        Blocks { medium, at: from, carried: Vec::new(), size, done: false }
    }

    /// `spare`: a block that is not needed any more.
    fn next(&mut self, spare: Option<Block>) -> io::Result<Option<Block>> {
        if self.done {
            return Ok(None);
        }
        let (mut buffer, lines) = spare.map_or_else(Default::default, |block| (block.buffer, block.lines));
        let misplaced = (self.at % PAGE as u64) as usize;
        // A long line is read in ever larger blocks, or its beginning would be copied again and again.
        let size = self.size.max(self.carried.len() / PAGE * PAGE);
        let room = self.carried.len() + 2 * PAGE + size;
        if buffer.len() < room {
            buffer = vec![0; room.max(size + 64 * 1024)];
        }
        let front = self.carried.len() + PAGE;
        let data = front + buffer.as_ptr().wrapping_add(front).align_offset(PAGE) + misplaced;
        let start = data - self.carried.len();
        let wanted = size - misplaced;
        if data + wanted > buffer.len() {
            buffer.resize(data + wanted, 0);
        }
        let Some(carried) = buffer.get_mut(start..data) else {
            return Err(io::Error::other("a read buffer is too small"));
        };
        carried.copy_from_slice(&self.carried);
        self.carried.clear();
        let n = self.medium.read_at(self.at, buffer.get_mut(data..data + wanted).unwrap_or_default())?;
        let offset = self.at - (data - start) as u64;
        self.at += n as u64;
        self.done = n < wanted;
        let mut used = start..data + n;
        if !self.done {
            let read = buffer.get(data..used.end).unwrap_or_default();
            let whole = memrchr(b'\n', read).map_or(start, |last| data + last + 1);
            let carried = buffer.get(whole..used.end).unwrap_or_default();
            if carried.len() > LINE {
                // No record: only that there is a line is kept, and it must not look like one.
                self.carried.push(0);
                self.carried.extend_from_slice(carried.get(carried.len() - PAGE + 1..).unwrap_or_default());
            } else {
                self.carried.extend_from_slice(carried);
            }
            used.end = whole;
        }
        Ok(Some(Block { buffer, used, offset, lines }))
    }
}

/// Calls `each` with every block, its lines checked. Of a large file the checking is done by a second thread, while
/// this one reads and takes in.
pub fn blocks(medium: &dyn Medium, from: u64, mut each: impl FnMut(&Block) -> ControlFlow<()>) -> io::Result<()> {
    let mut blocks = Blocks::new(medium, from, BLOCK);
    let size = medium.size().unwrap_or_default();
    if size.saturating_sub(from) < THREADED {
        let mut spare = None;
        while let Some(mut block) = blocks.next(spare.take())? {
            block.check();
            if each(&block).is_break() {
                break;
            }
            spare = Some(block);
        }
        return Ok(());
    }
    std::thread::scope(|scope| {
        let (to_check, unchecked) = sync_channel::<Block>(AHEAD);
        let (to_take, checked) = sync_channel::<Block>(AHEAD);
        scope.spawn(move || {
            for mut block in unchecked {
                block.check();
                if to_take.send(block).is_err() {
                    return;
                }
            }
        });
        let mut spare = Vec::new();
        let mut ahead = 0;
        loop {
            while ahead < AHEAD
                && let Some(block) = blocks.next(spare.pop())?
            {
                if to_check.send(block).is_err() {
                    return Ok(());
                }
                ahead += 1;
            }
            if ahead == 0 {
                return Ok(());
            }
            let Ok(block) = checked.recv() else { return Ok(()) };
            ahead -= 1;
            if each(&block).is_break() {
                return Ok(());
            }
            spare.push(block);
        }
    })
}

/// The first line that is not blank, where it ends, and whether by LF.
pub fn first_line(medium: &dyn Medium) -> io::Result<Option<(Vec<u8>, u64, bool)>> {
    let mut blocks = Blocks::new(medium, 0, PAGE);
    let mut spare = None;
    while let Some(mut block) = blocks.next(spare.take())? {
        block.check();
        if let Some(line) = block.lines.iter().find(|line| !line.text.is_empty()) {
            let bytes = block.bytes().get(line.text.clone()).unwrap_or_default();
            return Ok(Some((bytes.to_vec(), block.offset + line.end as u64, line.closed)));
        }
        if blocks.carried.len() > HEADER {
            return Ok(Some((Vec::new(), 0, false)));
        }
        spare = Some(block);
    }
    Ok(None)
}
