//! What to answer to a request: the rules of the offline model.

use kli_protocol::record::{Block, Content, Message, ToolResultMessage};
use serde_json::{Value, json};

use super::summary;
use crate::dialect::Request;

/// Text, then tool calls.
#[derive(Debug, Default, PartialEq)]
pub struct Plan {
    pub text: String,
    pub calls: Vec<ToolUse>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ToolUse {
    pub name: &'static str,
    pub arguments: Value,
}

/// More tools at once than this help nobody to see how it works.
const MOST_CALLS: usize = 8;
const QUOTED_LINES: usize = 5;
const QUOTED_WIDTH: usize = 160;
const ECHOED: usize = 120;

const WHO: &str = "I am demo/offline, a fixed set of rules and not a language model.";

pub fn plan(request: &Request) -> Plan {
    if let Some(text) = summary::summarise(request) {
        return Plan { text, calls: Vec::new() };
    }
    let newest = request.messages.iter().rposition(|message| matches!(message.as_ref(), Message::User(_)));
    let since = request.messages.get(newest.map_or(0, |at| at + 1)..).unwrap_or_default();
    let results: Vec<&ToolResultMessage> = since
        .iter()
        .filter_map(|message| match message.as_ref() {
            Message::ToolResult(result) => Some(result),
            _ => None,
        })
        .collect();
    if !results.is_empty() {
        return Plan { text: report(&results), calls: Vec::new() };
    }
    let prompt = match newest.and_then(|at| request.messages.get(at)).map(AsRef::as_ref) {
        Some(Message::User(user)) => &user.content,
        _ => &Content::Text(String::new()),
    };
    let text = prompt.text();
    let mut calls = calls_for(&text);
    calls.retain(|call| request.tools.iter().any(|tool| tool.name == call.name));
    if calls.is_empty() {
        let pictures = prompt.blocks().iter().filter(|block| matches!(block, Block::Image(_))).count();
        return Plan { text: no_idea(&text, pictures), calls };
    }
    let plural = if calls.len() == 1 { "one tool" } else { "some tools" };
    Plan { text: format!("Your prompt asks for {plural}, so I call {}.", names(&calls)), calls }
}

fn names(calls: &[ToolUse]) -> String {
    let mut names: Vec<&str> = calls.iter().map(|call| call.name).collect();
    names.dedup();
    names.join(", ")
}

fn no_idea(prompt: &str, pictures: usize) -> String {
    let seen = match pictures {
        0 => String::new(),
        1 => " (and a picture, which I cannot see)".to_owned(),
        n => format!(" (and {n} pictures, which I cannot see)"),
    };
    format!(
        "{WHO} You said: \"{}\"{seen}. I cannot think about it, but I can show how everything else works. Try:\n\
         - read README.md\n- list the directory\n- search for `TODO`\n- run `git status`\n- summarize\n\
         Several in one prompt run side by side. Then move about in the tree: go back to a prompt and change it, fork, \
         clone, rewind. For real answers, set a provider's key (such as ANTHROPIC_API_KEY or OPENAI_API_KEY) or name a \
         server in config.toml.",
        cut(prompt, ECHOED)
    )
}

/// The answer after tools have run.
fn report(results: &[&ToolResultMessage]) -> String {
    let mut text = String::new();
    for result in results {
        let output = result.content.text();
        let lines: Vec<&str> = output.lines().filter(|line| !line.trim().is_empty()).collect();
        let verb = if result.is_error { "failed" } else { "gave" };
        match lines.len() {
            0 => text.push_str(&format!("{} {verb} no text.\n", result.tool_name)),
            n => {
                let word = if n == 1 { "line" } else { "lines" };
                text.push_str(&format!("{} {verb} {n} {word}:\n", result.tool_name));
                for line in lines.iter().take(QUOTED_LINES) {
                    text.push_str(&format!("> {}\n", cut(line, QUOTED_WIDTH)));
                }
                if n > QUOTED_LINES {
                    text.push_str(&format!("> … and {} more\n", n - QUOTED_LINES));
                }
            }
        }
        text.push('\n');
    }
    text.push_str(WHO);
    text
}

/// At most `max` characters on one line.
pub fn cut(text: &str, max: usize) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(max) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line,
    }
}

/// What the words of a prompt ask for, in their order.
pub fn calls_for(prompt: &str) -> Vec<ToolUse> {
    let mut calls: Vec<ToolUse> = Vec::new();
    let mut verb = Verb::None;
    for piece in pieces(prompt) {
        let call = match piece {
            Piece::Quoted { text, code } => {
                let call = match verb {
                    Verb::Search => Some(grep(text)),
                    Verb::Read if !text.contains(char::is_whitespace) => Some(read(text)),
                    Verb::List if is_path(text) => Some(list(text)),
                    _ if code => Some(ToolUse { name: "bash", arguments: json!({ "command": text }) }),
                    _ => None,
                };
                verb = Verb::None;
                call
            }
            Piece::Word(word) => match Verb::of(word) {
                Some(new) => {
                    let call = (new == Verb::List && verb != Verb::List).then(|| list("."));
                    verb = new;
                    call
                }
                None => {
                    let name = word.trim_matches(|c: char| "\"'()[]<>,;:!?".contains(c)).trim_start_matches('@');
                    let name = name.strip_suffix('.').unwrap_or(name);
                    let filler = matches!(
                        name.to_ascii_lowercase().as_str(),
                        "for"
                            | "the"
                            | "in"
                            | "of"
                            | "a"
                            | "all"
                            | "file"
                            | "my"
                            | "me"
                            | "this"
                            | "current"
                            | "and"
                            | ""
                    );
                    if filler {
                        None
                    } else if verb == Verb::Search {
                        verb = Verb::None;
                        Some(grep(name))
                    } else if verb == Verb::List && is_path(name) {
                        // "list" alone means here; with a place, there.
                        if calls.last() == Some(&list(".")) {
                            calls.pop();
                        }
                        Some(list(name))
                    } else if is_file(name) {
                        Some(read(name))
                    } else if name.len() > 1 && name.ends_with('/') && !name.contains("://") {
                        Some(list(name))
                    } else {
                        None
                    }
                }
            },
        };
        if let Some(call) = call.filter(|call| calls.len() < MOST_CALLS && !calls.contains(call)) {
            calls.push(call);
        }
    }
    calls
}

fn read(path: &str) -> ToolUse {
    ToolUse { name: "read", arguments: json!({ "path": path }) }
}

fn list(path: &str) -> ToolUse {
    ToolUse { name: "ls", arguments: json!({ "path": path }) }
}

fn grep(pattern: &str) -> ToolUse {
    ToolUse { name: "grep", arguments: json!({ "pattern": pattern }) }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    None,
    Read,
    List,
    Search,
    Run,
}

impl Verb {
    fn of(word: &str) -> Option<Verb> {
        let word = word.trim_matches(|c: char| !c.is_alphanumeric()).to_ascii_lowercase();
        Some(match word.as_str() {
            "read" | "open" | "show" | "cat" | "print" => Verb::Read,
            "list" | "ls" | "directory" | "folder" => Verb::List,
            "search" | "grep" | "find" => Verb::Search,
            "run" | "execute" => Verb::Run,
            _ => return None,
        })
    }
}

enum Piece<'a> {
    Word(&'a str),
    /// Between backticks (`code`) or double quotes.
    Quoted {
        text: &'a str,
        code: bool,
    },
}

fn pieces(prompt: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut rest = prompt;
    while let Some(start) = rest.find(['`', '"']) {
        let (before, from) = rest.split_at(start);
        let quote = if from.starts_with('`') { '`' } else { '"' };
        let inner = from.get(1..).unwrap_or_default();
        let Some(end) = inner.find(quote) else { break };
        pieces.extend(before.split_whitespace().map(Piece::Word));
        let text = inner.get(..end).unwrap_or_default().trim();
        if !text.is_empty() {
            pieces.push(Piece::Quoted { text, code: quote == '`' });
        }
        rest = inner.get(end + 1..).unwrap_or_default();
    }
    pieces.extend(rest.split_whitespace().map(Piece::Word));
    pieces
}

fn is_path(name: &str) -> bool {
    name.starts_with(['/', '.', '~']) || name.contains('/') || matches!(name, "src" | "tests" | "docs" | "lib")
}

/// Whether a word looks like a file: a known name, or an ending of letters and digits.
fn is_file(name: &str) -> bool {
    const KNOWN: [&str; 6] = ["Makefile", "Dockerfile", "LICENSE", "README", "CHANGELOG", "Justfile"];
    if KNOWN.contains(&name) {
        return true;
    }
    if name.contains("://") || name.contains('@') {
        return false;
    }
    let base = name.rsplit('/').next().unwrap_or_default();
    let Some((stem, ending)) = base.rsplit_once('.') else { return false };
    let good_ending = (1..=8).contains(&ending.len())
        && ending.starts_with(|c: char| c.is_ascii_alphabetic())
        && ending.chars().all(|c| c.is_ascii_alphanumeric());
    // Not "e.g", "i.e", "example.com" (an address more often than a program of DOS).
    let good_stem = stem.len() > 1 || (stem.len() == 1 && ending.len() > 1);
    good_ending && (good_stem || stem.is_empty() && ending.len() > 1) && !matches!(ending, "com" | "org" | "net")
}
