//! The little that a scan needs to know of JSON text: whether it is an object, and lone surrogates.
//!
//! Every line of a file is checked before it counts, at the speed of reading the file; serde's own check takes
//! several times as long. It accepts what serde accepts (a test compares them), at any depth.

use std::ops::Range;

pub use kli_protocol::surrogates::without_lone_surrogates;
use memchr::memchr2;

/// Whether a text is one JSON object and nothing else. Lone surrogate escapes are fine.
pub fn is_object(text: &[u8]) -> bool {
    let bare = Bare::of(text);
    let mut check = Check { text, at: 0, controls: bare.controls, known: &(0..0) };
    bare.is_text && check.object().is_some()
}

/// Whether the rest of a text from `at` on ends the object that it begins with: so many objects are open there, and
/// a value has just ended. The text has no control characters. `known` is where a value lies that was looked at
/// already, if not empty.
pub fn ends_object(text: &[u8], at: usize, depth: usize, known: &Range<usize>) -> bool {
    let mut check = Check { text, at, controls: false, known };
    let mut open = Open { near: [b'{'; 32], far: Vec::new(), depth: 0 };
    (0..depth).for_each(|_| open.push(b'{'));
    check.rest(&mut open, false).is_some()
}

/// Whether a text is one number of JSON and nothing else.
pub fn is_number(text: &[u8]) -> bool {
    let mut check = Check { text, at: 0, controls: false, known: &(0..0) };
    check.number().is_some() && check.at == text.len()
}

/// What the bytes of a text are, before anything is looked at closely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bare {
    pub is_text: bool,
    /// Nearly all lines have none; strings may hold none.
    pub controls: bool,
}

impl Bare {
    pub fn of(text: &[u8]) -> Bare {
        let (lowest, all) = extremes(text);
        Bare { is_text: all < 0x80 || std::str::from_utf8(text).is_ok(), controls: lowest < 0x20 }
    }
}

/// The lowest byte, and the bits that any of them has.
fn extremes(text: &[u8]) -> (u8, u8) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: it only wants the feature, and that is there.
        return unsafe { wide_extremes(text) };
    }
    plain_extremes(text)
}

/// The same code, which the compiler makes twice as wide.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn wide_extremes(text: &[u8]) -> (u8, u8) {
    plain_extremes(text)
}

#[inline(always)]
fn plain_extremes(text: &[u8]) -> (u8, u8) {
    text.iter().fold((0xff, 0), |(lowest, all): (u8, u8), b| (lowest.min(*b), all | b))
}

/// Where the first quote or backslash is. Most strings are short: for these a call of `memchr2` takes longer than
/// the looking.
#[inline]
pub fn quote_or_backslash(text: &[u8]) -> Option<usize> {
    const WORDS: usize = 3;
    const EACH: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let zeros = |word: u64| word.wrapping_sub(EACH) & !word & HIGH;
    let mut at = 0;
    for _ in 0..WORDS {
        let Some(bytes) = text.get(at..).and_then(|rest| rest.first_chunk::<8>()) else { break };
        let word = u64::from_le_bytes(*bytes);
        // The lowest of the bits found is right, whatever stands above it.
        let found = zeros(word ^ (EACH * u64::from(b'"'))) | zeros(word ^ (EACH * u64::from(b'\\')));
        if found != 0 {
            return Some(at + found.trailing_zeros() as usize / 8);
        }
        at += 8;
    }
    memchr2(b'"', b'\\', text.get(at..)?).map(|more| at + more)
}

/// Goes over the text once; `None` is the first thing that is not JSON.
struct Check<'a> {
    text: &'a [u8],
    at: usize,
    /// Whether there are control characters: strings may hold none.
    controls: bool,
    /// Where a value lies that need not be looked at.
    known: &'a Range<usize>,
}

/// Open brackets: the first in place, deeper ones on the heap.
struct Open {
    near: [u8; 32],
    far: Vec<u8>,
    depth: usize,
}

impl Open {
    fn push(&mut self, bracket: u8) {
        match self.near.get_mut(self.depth) {
            Some(place) => *place = bracket,
            None => self.far.push(bracket),
        }
        self.depth += 1;
    }

    fn pop(&mut self) -> Option<u8> {
        self.depth = self.depth.checked_sub(1)?;
        self.near.get(self.depth).copied().or_else(|| self.far.pop())
    }

    fn last(&self) -> Option<u8> {
        let depth = self.depth.checked_sub(1)?;
        self.near.get(depth).or_else(|| self.far.last()).copied()
    }
}

impl Check<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn blank(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    /// The next byte that is no white space.
    #[inline(always)]
    fn token(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        if byte > b' ' {
            return Some(byte);
        }
        self.blank();
        self.peek()
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    fn object(&mut self) -> Option<()> {
        let mut open = Open { near: [0; 32], far: Vec::new(), depth: 0 };
        self.blank();
        self.take(b'{')?;
        open.push(b'{');
        self.rest(&mut open, true)
    }

    /// `fresh`: a bracket was just opened, and no value has come in it.
    fn rest(&mut self, open: &mut Open, mut fresh: bool) -> Option<()> {
        let mut bracket = open.last();
        // Each round: what follows an opened bracket, or a value.
        while let Some(opened) = bracket {
            let mut byte = self.token()?;
            // Each closing bracket is two above its opening one.
            if byte == opened + 2 {
                self.at += 1;
                open.pop();
                bracket = open.last();
                fresh = false;
                continue;
            }
            if !std::mem::take(&mut fresh) {
                self.take(b',')?;
                byte = self.token()?;
            }
            if opened == b'{' {
                if self.usual_name().is_none() {
                    self.take(b'"')?;
                    self.string()?;
                    if self.token()? != b':' {
                        return None;
                    }
                    self.at += 1;
                }
                byte = self.token()?;
            }
            match byte {
                b'"' => {
                    self.at += 1;
                    self.string()?;
                }
                b'{' if self.at == self.known.start => self.at = self.known.end,
                b'{' | b'[' => {
                    self.at += 1;
                    open.push(byte);
                    bracket = Some(byte);
                    fresh = true;
                }
                b't' => self.word(b"true")?,
                b'f' => self.word(b"false")?,
                b'n' => self.word(b"null")?,
                _ => self.number()?,
            }
        }
        self.blank();
        (self.at == self.text.len()).then_some(())
    }

    /// The names that lines are full of, as we and pi write them: looking at one whole is faster than for its end.
    #[inline(always)]
    fn usual_name(&mut self) -> Option<()> {
        match self.text.get(self.at + 1)? {
            b't' => self
                .word(b"\"type\":")
                .or_else(|| self.word(b"\"text\":"))
                .or_else(|| self.word(b"\"timestamp\":"))
                .or_else(|| self.word(b"\"toolCallId\":"))
                .or_else(|| self.word(b"\"toolName\":")),
            b'c' => self.word(b"\"content\":").or_else(|| self.word(b"\"command\":")),
            b'i' => self.word(b"\"id\":").or_else(|| self.word(b"\"isError\":")),
            b'n' => self.word(b"\"name\":"),
            b'a' => self.word(b"\"arguments\":").or_else(|| self.word(b"\"api\":")),
            b'p' => self.word(b"\"provider\":").or_else(|| self.word(b"\"path\":")),
            b'm' => self.word(b"\"model\":"),
            b'u' => self.word(b"\"usage\":"),
            b's' => self.word(b"\"stopReason\":"),
            _ => None,
        }
    }

    #[inline(always)]
    fn word<const N: usize>(&mut self, word: &[u8; N]) -> Option<()> {
        (self.text.get(self.at..)?.first_chunk() == Some(word)).then(|| self.at += N)
    }

    fn digits(&mut self) -> Option<()> {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        (self.at > start).then_some(())
    }

    fn number(&mut self) -> Option<()> {
        let _ = self.take(b'-');
        if self.take(b'0').is_none() {
            self.digits()?;
        }
        if self.take(b'.').is_some() {
            self.digits()?;
        }
        if self.take(b'e').or_else(|| self.take(b'E')).is_some() {
            let _ = self.take(b'+').or_else(|| self.take(b'-'));
            self.digits()?;
        }
        Some(())
    }

    /// The rest of a string.
    fn string(&mut self) -> Option<()> {
        loop {
            let rest = self.text.get(self.at..)?;
            let plain = quote_or_backslash(rest)?;
            if self.controls && rest.get(..plain)?.iter().any(|b| *b < 0x20) {
                return None;
            }
            self.at += plain;
            match self.peek()? {
                b'"' => {
                    self.at += 1;
                    return Some(());
                }
                b'\\' => match self.text.get(self.at + 1)? {
                    b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => self.at += 2,
                    b'u' => {
                        let digits = self.text.get(self.at + 2..self.at + 6)?;
                        if !digits.iter().all(u8::is_ascii_hexdigit) {
                            return None;
                        }
                        self.at += 6;
                    }
                    _ => return None,
                },
                _ => return None,
            }
        }
    }
}
