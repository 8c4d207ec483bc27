//! Session files of any size: prompts, replies that call, results; bodies of 200 bytes to 2 KB; a side branch every
//! 50 entries or so.

use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};

pub const ID: &str = "bench-session";

#[derive(Clone, Copy, Debug)]
pub enum Shape {
    Plain,
    /// A compaction every 400 entries, which keeps about the last 40.
    Compacted,
    /// One chain of so many.
    Deep(usize),
    /// So many children of one entry.
    Wide(usize),
}

pub fn path(dir: &Path) -> PathBuf {
    dir.join(format!("x_{ID}.jsonl"))
}

pub fn idx(dir: &Path) -> PathBuf {
    dir.join(format!("x_{ID}.jsonl.idx"))
}

fn id(n: usize) -> u32 {
    (n as u32).wrapping_mul(2_654_435_761)
}

/// The one after the opening.
pub fn first_entry() -> String {
    format!("{:08x}", id(0))
}

/// A reply near the beginning.
pub fn early_entry() -> String {
    format!("{:08x}", id(3))
}

/// Writes the file of a session alone in its directory: line by line, as one grows. What was written in large pieces
/// lies in larger ones in memory too, and is read at twice the speed.
pub fn session(dir: &Path, count: usize, shape: Shape) {
    std::fs::create_dir_all(dir).unwrap();
    let mut out = std::io::LineWriter::new(std::fs::File::create(path(dir)).unwrap());
    header(&mut out, ID, 0);
    match shape {
        Shape::Plain => plain(&mut out, count, None),
        Shape::Compacted => plain(&mut out, count, Some(400)),
        Shape::Deep(count) => {
            for n in 0..count {
                let parent = n.checked_sub(1).map(id);
                let kind = if n % 2 == 0 { Kind::User } else { Kind::Reply };
                line(&mut out, kind, n, parent, "a few words");
            }
        }
        Shape::Wide(count) => {
            line(&mut out, Kind::User, 0, None, "the one above");
            for n in 1..=count {
                line(&mut out, Kind::Reply, n, Some(id(0)), "one of many");
            }
        }
    }
    out.flush().unwrap();
}

/// Many sessions of so many entries each.
pub fn many(dir: &Path, count: usize, entries: usize) {
    std::fs::create_dir_all(dir).unwrap();
    for n in 0..count {
        let name = format!("x_many-{n:06}.jsonl");
        let mut out = std::io::BufWriter::new(std::fs::File::create(dir.join(name)).unwrap());
        header(&mut out, &format!("many-{n:06}"), n);
        plain(&mut out, entries, None);
        out.flush().unwrap();
    }
}

fn header(out: &mut impl Write, id: &str, second: usize) {
    let (second, minute) = (second % 60, second / 60 % 60);
    let time = format!("2026-01-01T00:{minute:02}:{second:02}.000Z");
    writeln!(out, r#"{{"type":"session","version":3,"id":"{id}","timestamp":"{time}","cwd":"/tmp"}}"#).unwrap();
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    User,
    Reply,
    Call,
    Result,
    Compaction { kept: u32 },
}

fn plain(out: &mut impl Write, count: usize, compact_every: Option<usize>) {
    let mut random = 0x9e37_79b9_7f4a_7c15u64 ^ count as u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random as usize
    };
    let words = ["tree", "leaf", "branch", "parser", "socket", "buffer", "commit", "session", "entry", "model"];
    let (mut parent, mut side): (Option<u32>, Option<u32>) = (None, None);
    let mut prompts: Vec<u32> = Vec::new();
    let mut body = String::new();
    for n in 0..count {
        if compact_every.is_some_and(|every| n > 0 && n % every == 0) && prompts.len() > 12 {
            let kept = prompts[prompts.len() - 10];
            line(out, Kind::Compaction { kept }, n, parent, &"The work so far. ".repeat(20));
            prompts.drain(..prompts.len() - 10);
            (parent, side) = (Some(id(n)), None);
            continue;
        }
        body.clear();
        let _ = write!(body, "prompt {n} ");
        for _ in 0..20 + next() % 280 {
            body.push_str(words[next() % words.len()]);
            body.push(' ');
        }
        if n % 4 == 0 && n % 52 == 0 && side.is_some() {
            parent = side;
        }
        let kind = [Kind::User, Kind::Call, Kind::Result, Kind::Reply][n % 4];
        let text = match kind {
            Kind::User => body.get(..400).unwrap_or(&body),
            Kind::Call => body.get(..300).unwrap_or(&body),
            _ => &body,
        };
        line(out, kind, n, parent, text);
        if n % 4 == 0 {
            prompts.push(id(n));
        }
        if n % 40 == 3 {
            side = Some(id(n));
        }
        parent = Some(id(n));
    }
}

const USAGE: &str = r#""usage":{"input":10,"output":5,"cacheRead":0,"cacheWrite":0,"totalTokens":15,"cost":{"input":0,"output":0,"cacheRead":0,"cacheWrite":0,"total":0}}"#;

fn line(out: &mut impl Write, kind: Kind, n: usize, parent: Option<u32>, text: &str) {
    let parent = parent.map_or("null".to_owned(), |id| format!("\"{id:08x}\""));
    let kind_name = if matches!(kind, Kind::Compaction { .. }) { "compaction" } else { "message" };
    let (id, second) = (id(n), n % 60);
    let head = format!(
        r#"{{"type":"{kind_name}","id":"{id:08x}","parentId":{parent},"timestamp":"2026-01-01T00:00:{second:02}.000Z""#
    );
    let block = format!(r#"{{"type":"text","text":"{text}"}}"#);
    let reply = format!(r#""api":"anthropic-messages","provider":"anthropic","model":"m1",{USAGE}"#);
    let rest = match kind {
        Kind::User => format!(r#""message":{{"role":"user","content":[{block}],"timestamp":1767225600000}}"#),
        Kind::Reply => format!(
            r#""message":{{"role":"assistant","content":[{block}],{reply},"stopReason":"stop","timestamp":1767225600000}}"#
        ),
        Kind::Call => format!(
            r#""message":{{"role":"assistant","content":[{block},{{"type":"toolCall","id":"call_{n}","name":"bash","arguments":{{"command":"ls -la"}}}}],{reply},"stopReason":"toolUse","timestamp":1767225600000}}"#
        ),
        Kind::Result => format!(
            r#""message":{{"role":"toolResult","toolCallId":"call_{}","toolName":"bash","content":[{block}],"isError":false,"timestamp":1767225600000}}"#,
            n - 1
        ),
        Kind::Compaction { kept } => {
            format!(r#""summary":"{text}","firstKeptEntryId":"{kept:08x}","tokensBefore":100000"#)
        }
    };
    writeln!(out, "{head},{rest}}}").unwrap();
}
