//! Tokens of a text, guessed by its script, without a vocabulary.
//!
//! One pass over the characters that does what tokenizers do before they look anything up: words with the space
//! before them, digits by three, runs of punctuation, runs of white space; other scripts by the character. The rates were fitted to
//! o200k_base; `estimates_match_a_tokenizer` holds them within 15 %.

/// Hundredths of a token.
mod rate {
    pub const HAN: u64 = 70;
    pub const KANA: u64 = 70;
    pub const HANGUL: u64 = 62;
    pub const CJK_PUNCTUATION: u64 = 75;
    pub const ALPHABET: u64 = 32;
    pub const OTHER: u64 = 90;
    pub const EMOJI: u64 = 130;
    /// Base64, and runs without capitals, such as hashes in hex.
    pub const DENSE: u64 = 70;
    pub const DENSE_SMALL: u64 = 58;
    /// A sign right before a word is often one token with it.
    pub const SIGN: u64 = 62;
    /// A hump of a camelCase word after the first.
    pub const HUMP: u64 = 78;
    pub const WORD_REST: u64 = 22;
}

/// Letters of a word that one token covers.
const WORD: u64 = 7;
/// A run of letters and digits as long as this is no word: base64, a hash.
const DENSE_RUN: usize = 24;

/// About how many tokens a model takes the text for.
pub fn tokens(text: &str) -> u64 {
    let bytes = text.as_bytes();
    let mut sum: u64 = 0;
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let (end, cost) = match byte {
            b' ' | b'\t' | b'\n' | b'\r' => white(bytes, at),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => alphanumeric(bytes, at),
            0..=0x7f => punctuation(bytes, at),
            _ => other(text, at),
        };
        sum = sum.saturating_add(cost);
        // Each branch moves on by at least one character.
        at = end.max(at + 1);
    }
    sum.div_ceil(100)
}

fn run(bytes: &[u8], from: usize, is: impl Fn(u8) -> bool) -> usize {
    bytes.iter().skip(from).position(|b| !is(*b)).map_or(bytes.len(), |n| from + n)
}

/// One space belongs to the word after it; a longer run is a token, its last space aside.
fn white(bytes: &[u8], at: usize) -> (usize, u64) {
    let end = run(bytes, at, |b| matches!(b, b' ' | b'\t' | b'\n' | b'\r'));
    let cost = match end - at {
        1 if bytes.get(at) == Some(&b' ') => 0,
        1 => 85,
        n => 100 + 100 * (n as u64 / 40),
    };
    (end, cost)
}

fn alphanumeric(bytes: &[u8], at: usize) -> (usize, u64) {
    let end = run(bytes, at, |b| b.is_ascii_alphanumeric());
    let Some(run) = bytes.get(at..end) else { return (end, 0) };
    if run.len() >= DENSE_RUN && is_dense(run) {
        let capitals = run.iter().any(u8::is_ascii_uppercase);
        return (end, run.len() as u64 * if capitals { rate::DENSE } else { rate::DENSE_SMALL });
    }
    let mut cost = 0;
    let mut from = 0;
    while let Some(first) = run.get(from) {
        let to = if first.is_ascii_digit() {
            self::run(run, from, |b| b.is_ascii_digit())
        } else {
            // camelCase is split before its capitals; ALLCAPS stay together.
            let capitals = self::run(run, from, |b| b.is_ascii_uppercase());
            let small = self::run(run, capitals, |b| b.is_ascii_lowercase());
            if capitals > from + 1 && small > capitals { capitals - 1 } else { small }
        };
        let to = to.max(from + 1);
        let whole = if from == 0 { 100 } else { rate::HUMP };
        let len = (to - from) as u64;
        cost += if first.is_ascii_digit() {
            len.div_ceil(3) * 100
        } else {
            whole + len.saturating_sub(WORD) * rate::WORD_REST
        };
        from = to;
    }
    (end, cost)
}

/// Capitals, small letters and digits in disorder: many changes between them.
fn is_dense(run: &[u8]) -> bool {
    let class = |b: &u8| (b.is_ascii_digit(), b.is_ascii_uppercase());
    let changes = run.iter().zip(run.iter().skip(1)).filter(|(a, b)| class(a) != class(b)).count();
    changes * 5 >= run.len()
}

fn punctuation(bytes: &[u8], at: usize) -> (usize, u64) {
    let end = run(bytes, at, |b| b.is_ascii_punctuation() || b.is_ascii_control() && !b.is_ascii_whitespace());
    let run = bytes.get(at..end).unwrap_or_default();
    // A rule such as ----- is one token or two; mixed ones go by two or three.
    let same = run.first().is_some_and(|first| run.iter().all(|b| b == first));
    let n = run.len() as u64;
    let cost = match n {
        1 if bytes.get(end).is_some_and(u8::is_ascii_alphabetic) => rate::SIGN,
        _ if same => 100 + 100 * (n / 16),
        _ => 100 + n.saturating_sub(2) * 45,
    };
    (end, cost)
}

fn other(text: &str, at: usize) -> (usize, u64) {
    let Some(c) = text.get(at..).and_then(|rest| rest.chars().next()) else { return (at + 1, 0) };
    let cost = match c as u32 {
        0x0080..=0x024f | 0x0370..=0x058f | 0x05d0..=0x06ff => rate::ALPHABET,
        0x3041..=0x30ff => rate::KANA,
        0x3400..=0x4dbf | 0x4e00..=0x9fff | 0xf900..=0xfaff => rate::HAN,
        0xac00..=0xd7af => rate::HANGUL,
        0x2000..=0x206f | 0x3000..=0x303f | 0xff00..=0xffef => rate::CJK_PUNCTUATION,
        0x1_f000.. => rate::EMOJI,
        _ => rate::OTHER,
    };
    (at + c.len_utf8(), cost)
}
