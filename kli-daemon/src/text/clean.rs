//! Bytes of a terminal program, in pieces cut anywhere, to plain text.

/// What is left of an escape sequence that began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Text,
    Escape,
    /// `ESC [ …` up to a final byte.
    Csi,
    /// `ESC ( x` and its kin: one more character.
    One,
    /// `ESC ] …`, `ESC P …`: up to BEL or `ESC \`; the number of characters swallowed so far.
    Str(u16),
    StrEscape(u16),
}

/// No sequence swallows more than this: an unterminated one must not eat the rest of the output.
const LONGEST_SEQUENCE: u16 = 4096;
/// A line longer than this is handed on in pieces, and then can no longer be overwritten.
const LONGEST_LINE: usize = 16 * 1024;

/// Decodes UTF-8 (invalid bytes and NUL become U+FFFD), drops escape sequences and control characters, and does what a
/// terminal does with a carriage return and a backspace, so that of a progress bar its last state is left.
///
/// Memory is bounded by the longest line that is held (16 KiB), whatever comes.
#[derive(Debug)]
pub struct Cleaner {
    state: State,
    /// The beginning of a character that is not whole yet.
    partial: Vec<u8>,
    line: String,
    /// How many bytes of `line` the live reader has.
    shown: usize,
    carriage_return: bool,
    replaced: u64,
}

impl Default for Cleaner {
    fn default() -> Self {
        Cleaner {
            state: State::Text,
            partial: Vec::new(),
            line: String::new(),
            shown: 0,
            carriage_return: false,
            replaced: 0,
        }
    }
}

impl Cleaner {
    /// Takes the next bytes. Finished lines go to `text`; `live` gets all that is new, also of the line that is
    /// not finished (one that is overwritten later is then followed by its successor on a new line).
    pub fn push(&mut self, bytes: &[u8], text: &mut String, live: &mut String) {
        let joined;
        let mut rest = if self.partial.is_empty() {
            bytes
        } else {
            joined = [std::mem::take(&mut self.partial).as_slice(), bytes].concat();
            joined.as_slice()
        };
        loop {
            let (valid, bad, after) = split(rest);
            for c in valid.chars() {
                self.take(c, text, live);
            }
            match bad {
                Bad::None => break,
                Bad::Incomplete(bytes) => {
                    self.partial = bytes.to_vec();
                    break;
                }
                Bad::Invalid => {
                    self.replaced += 1;
                    self.take(char::REPLACEMENT_CHARACTER, text, live);
                    rest = after;
                }
            }
        }
        live.push_str(self.line.get(self.shown..).unwrap_or_default());
        self.shown = self.line.len();
    }

    /// The end: what was held back goes to `text`.
    pub fn finish(&mut self, text: &mut String, live: &mut String) {
        if !std::mem::take(&mut self.partial).is_empty() {
            self.replaced += 1;
            self.take(char::REPLACEMENT_CHARACTER, text, live);
        }
        live.push_str(self.line.get(self.shown..).unwrap_or_default());
        self.hand_on(text);
        self.state = State::Text;
        self.carriage_return = false;
    }

    /// How many times bytes that are no UTF-8, or NUL, were replaced.
    pub fn replaced(&self) -> u64 {
        self.replaced
    }

    /// The line that is not finished yet.
    pub fn unfinished(&self) -> &str {
        &self.line
    }

    fn take(&mut self, c: char, text: &mut String, live: &mut String) {
        match (self.state, c) {
            (State::Text, _) => self.plain(c, text, live),
            (State::Escape, '[') => self.state = State::Csi,
            (State::Escape, ']' | 'P' | 'X' | '^' | '_') => self.state = State::Str(0),
            (State::Escape, '(' | ')' | '*' | '+' | '-' | '.' | '/' | '#' | '%' | ' ') => self.state = State::One,
            (State::Escape, '\x1b') => {}
            (State::Escape, '\x20'..='\x7e') => self.state = State::Text,
            (State::Csi, '\x20'..='\x3f') => {}
            (State::Csi, '\x40'..='\x7e') => self.state = State::Text,
            (State::One, '\x20'..='\x7e') => self.state = State::Text,
            (State::Str(_), '\x07') => self.state = State::Text,
            (State::Str(n), '\x1b') => self.state = State::StrEscape(n),
            (State::Str(n) | State::StrEscape(n), c) if c != '\n' && n < LONGEST_SEQUENCE => {
                let ended = matches!(self.state, State::StrEscape(_)) && c == '\\';
                self.state = if ended { State::Text } else { State::Str(n + 1) };
            }
            // No sequence after all: the character counts for itself.
            _ => {
                self.state = State::Text;
                self.plain(c, text, live);
            }
        }
    }

    fn plain(&mut self, c: char, text: &mut String, live: &mut String) {
        match c {
            '\n' => {
                self.carriage_return = false;
                self.line.push('\n');
                live.push_str(self.line.get(self.shown..).unwrap_or_default());
                self.hand_on(text);
            }
            '\r' => self.carriage_return = true,
            '\x1b' => self.state = State::Escape,
            '\x08' => {
                self.line.pop();
                self.shown = self.shown.min(self.line.len());
            }
            '\t' => self.visible(c, text, live),
            // Padding after a carriage return.
            '\0' if self.carriage_return => {}
            // It parts things (`find -print0`): dropped, it would make one word of two.
            '\0' => {
                self.replaced += 1;
                self.visible(char::REPLACEMENT_CHARACTER, text, live);
            }
            c if c.is_control() => {}
            c => self.visible(c, text, live),
        }
    }

    fn visible(&mut self, c: char, text: &mut String, live: &mut String) {
        if std::mem::take(&mut self.carriage_return) {
            if self.shown > 0 {
                live.push('\n');
            }
            self.line.clear();
            self.shown = 0;
        }
        if self.line.len() >= LONGEST_LINE {
            live.push_str(self.line.get(self.shown..).unwrap_or_default());
            self.hand_on(text);
        }
        self.line.push(c);
    }

    fn hand_on(&mut self, text: &mut String) {
        text.push_str(&self.line);
        self.line.clear();
        self.shown = 0;
    }
}

enum Bad<'a> {
    None,
    /// The bytes end inside a character.
    Incomplete(&'a [u8]),
    Invalid,
}

/// The valid beginning, what stopped it, and what comes after the invalid bytes.
fn split(bytes: &[u8]) -> (&str, Bad<'_>, &[u8]) {
    let error = match std::str::from_utf8(bytes) {
        Ok(text) => return (text, Bad::None, &[]),
        Err(error) => error,
    };
    let (valid, rest) = bytes.split_at_checked(error.valid_up_to()).unwrap_or((bytes, &[]));
    let valid = std::str::from_utf8(valid).unwrap_or_default();
    match error.error_len() {
        None => (valid, Bad::Incomplete(rest), &[]),
        Some(n) => (valid, Bad::Invalid, rest.get(n..).unwrap_or_default()),
    }
}
