//! What the records of a part of a file come down to, on the thread that read it.

use kli_protocol::record::Usage;

use super::lines::{self, Take};
use super::{Shape, Tail};
use crate::tree::Place;
use crate::tree::line::{self, Look, NoRecord, Plain, Quick};

/// The lines of one part.
pub struct Batch {
    shape: Shape,
    /// Nearly all, and their usages and times: apart, since whoever takes them needs few of these.
    pub plain: Vec<Plain>,
    pub usages: Vec<Usage>,
    times: Vec<[u8; TIME]>,
    pub others: Vec<Other>,
    /// How many they are.
    pub lines: u32,
    /// Where the first begins, and where the last ends that counts.
    pub start: u64,
    pub end: Option<u64>,
    /// How the last ends.
    pub tail: Tail,
}

/// The length of a time as we and pi write it.
const TIME: usize = 24;

/// A line that is no plain record.
pub struct Other {
    /// So many plain records lie before it.
    pub at: usize,
    /// The number of the line.
    pub line: u32,
    pub place: Place,
    pub what: What,
}

pub enum What {
    Record(Box<line::Line<'static>>),
    /// Of pi's first format: what it says depends on those before it.
    V1(Vec<u8>),
    None(NoRecord),
    /// Cut off at the end of the file.
    Torn,
}

impl Batch {
    pub fn new(shape: Shape) -> Batch {
        Batch {
            shape,
            plain: Vec::new(),
            usages: Vec::new(),
            times: Vec::new(),
            others: Vec::new(),
            lines: 0,
            start: 0,
            end: None,
            tail: Tail::Clean,
        }
    }

    /// The time of a plain record.
    pub fn time(&self, number: usize) -> Option<&str> {
        std::str::from_utf8(self.times.get(number)?).ok()
    }

    /// Bytes of its lines.
    pub fn len(&self) -> u64 {
        self.end.map_or(0, |end| end.saturating_sub(self.start))
    }

    fn plain(&mut self, line: &Quick<'_>, place: Place) -> Option<()> {
        let time = line.timestamp().try_into().ok()?;
        self.plain.push(line.plain(place)?);
        self.times.push(time);
        self.usages.extend(line.usage());
        Some(())
    }

    fn other(&mut self, place: Place, what: What) {
        self.others.push(Other { at: self.plain.len(), line: self.lines, place, what });
    }
}

impl Take for Batch {
    fn line(&mut self, line: &lines::Line<'_>) {
        if self.lines == 0 {
            self.start = line.offset;
        }
        self.lines = self.lines.saturating_add(1);
        let mut place = Place { offset: line.offset, len: line.text.len() as u32, crc: 0 };
        let read = match self.shape {
            _ if line.long => Err(NoRecord::Damaged),
            Shape::V1 => match crate::tree::json::is_object(line.text) {
                true => Ok(None),
                false => Err(NoRecord::Damaged),
            },
            Shape::V2 | Shape::V3 => line::look(line.text).map(Some),
        };
        let is_blank = line.text.is_empty() && !line.long;
        if read.as_ref().err() == Some(&NoRecord::Damaged) && !line.closed && !is_blank {
            self.tail = Tail::Torn;
            self.other(place, What::Torn);
            return;
        }
        self.end = Some(line.end);
        self.tail = if line.closed { Tail::Clean } else { Tail::Unclosed };
        if read.is_ok() {
            place.crc = crc32fast::hash(line.text);
        }
        match read {
            Ok(Some(Look::Quick(quick))) if self.plain(&quick, place).is_some() => {}
            Ok(Some(look)) => self.other(place, What::Record(Box::new(look.line().into_owned()))),
            Ok(None) => self.other(place, What::V1(line.text.to_vec())),
            Err(_) if is_blank => {}
            Err(reason) => self.other(place, What::None(reason)),
        }
    }

    fn clear(&mut self) {
        self.plain.clear();
        self.usages.clear();
        self.times.clear();
        self.others.clear();
        (self.lines, self.end, self.tail) = (0, None, Tail::Clean);
    }
}
