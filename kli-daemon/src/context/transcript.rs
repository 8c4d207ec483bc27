//! A stretch of conversation as text: what a summariser reads, and what is added to its summary.

use std::collections::BTreeSet;
use std::sync::Arc;

use kli_protocol::record::{Block, Content, Message, SummaryDetails, ToolCallBlock};
use serde_json::Value;

use super::item::{Item, Meaning};
use super::{estimate, script};

/// Bytes of one tool result, and of one argument, that a summariser reads: what matters of them is in the replies.
const MAX_RESULT: usize = 4_000;
const MAX_ARGUMENT: usize = 1_500;
/// Paths of each kind that are carried from summary to summary, and that its text names.
const MAX_FILES: usize = 1_000;
const MAX_NAMED_FILES: usize = 100;

const REQUEST_LEAD: &str = "The user's latest request, verbatim; work on it goes on below:";
const REQUEST_START: &str = "<latest-request>";
const REQUEST_END: &str = "</latest-request>";

/// One text for each message. Older compactions are passed over: their text is carried as the earlier summary.
pub fn messages(items: &[Arc<Item>]) -> Vec<String> {
    items.iter().filter_map(|item| item.message()).filter_map(|message| of_message(message)).collect()
}

/// The same for a path that was left, of whose compactions only the summary says what came before.
pub fn path(items: &[Arc<Item>]) -> Vec<String> {
    let texts = items.iter().filter_map(|item| match &item.meaning {
        Meaning::Compaction(summary) if summary.message.is_some() => {
            Some(format!("[Summary of what came before]\n{}", split_summary(&summary.text).0))
        }
        _ => item.message().and_then(|message| of_message(message)),
    });
    texts.collect()
}

/// Whether [`path`] would have anything to tell.
pub fn says_anything(items: &[Arc<Item>]) -> bool {
    items.iter().any(|item| match &item.meaning {
        Meaning::Compaction(summary) => summary.message.is_some(),
        _ => item.message().is_some_and(|message| of_message(message).is_some()),
    })
}

fn of_message(message: &Message) -> Option<String> {
    let mut lines = Vec::new();
    match message {
        Message::User(m) => lines.push(format!("[User]\n{}", plain(&m.content))),
        Message::Assistant(m) => {
            let text = plain(&m.content);
            if !text.is_empty() {
                lines.push(format!("[Assistant]\n{text}"));
            }
            lines.extend(m.content.tool_calls().map(call));
        }
        Message::ToolResult(m) => {
            let error = if m.is_error { ", failed" } else { "" };
            let text = shortened(&plain(&m.content), MAX_RESULT);
            lines.push(format!("[Result of {}{error}]\n{text}", m.tool_name));
        }
        Message::BashExecution(_) | Message::Unknown => {}
    }
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// The text of a content, images named.
pub fn plain(content: &Content) -> String {
    match content {
        Content::Text(text) => text.clone(),
        Content::Blocks(blocks) => {
            let texts = blocks.iter().filter_map(|block| match block {
                Block::Text(text) => Some(text.text.as_str()),
                Block::Image(_) => Some("[image]"),
                Block::Thinking(_) | Block::ToolCall(_) | Block::Unknown(_) => None,
            });
            texts.collect::<Vec<_>>().join("\n")
        }
    }
}

fn call(call: &ToolCallBlock) -> String {
    let arguments = call.arguments.iter().map(|(name, value)| match value {
        Value::String(text) => format!("{name}={:?}", shortened(text, MAX_ARGUMENT)),
        other => format!("{name}={}", shortened(&other.to_string(), MAX_ARGUMENT)),
    });
    format!("[Assistant calls {}({})]", call.name, arguments.collect::<Vec<_>>().join(", "))
}

/// Beginning and end of a text that is longer than `most` bytes.
fn shortened(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let head = text.get(..text.floor_char_boundary(most / 3 * 2)).unwrap_or_default();
    let tail = text.get(text.ceil_char_boundary(text.len() - most / 3)..).unwrap_or_default();
    format!("{head}\n[… {} bytes …]\n{tail}", text.len() - head.len() - tail.len())
}

/// Takes texts off the front, as many as fit; one that does not fit alone is split.
pub fn take_part(texts: &mut std::collections::VecDeque<String>, tokens: u64) -> String {
    let mut part = String::new();
    let mut left = tokens;
    while let Some(text) = texts.pop_front() {
        let size = script::tokens(&text) + 2;
        if size <= left {
            left -= size;
        } else if part.is_empty() {
            // The scripts may be mixed: a little less than the even share.
            let share = u64::try_from(text.len()).unwrap_or(u64::MAX).saturating_mul(left) / size;
            let at = text.floor_char_boundary(usize::try_from(share).unwrap_or(usize::MAX).max(16));
            let (head, tail) = text.split_at_checked(at).unwrap_or((&text, ""));
            if !tail.is_empty() {
                texts.push_front(tail.to_owned());
            }
            return head.to_owned();
        } else {
            texts.push_front(text);
            return part;
        }
        if !part.is_empty() {
            part.push_str("\n\n");
        }
        part.push_str(&text);
    }
    part
}

/// The files that a stretch touched, and those of the summaries before it. A modified one is not listed as read.
pub fn files<'a>(items: &[Arc<Item>], before: impl IntoIterator<Item = &'a SummaryDetails>) -> SummaryDetails {
    const PATHS: [&str; 4] = ["path", "file_path", "filePath", "filename"];
    const READ: [&str; 4] = ["read", "read_file", "view", "Read"];
    const MODIFY: [&str; 9] =
        ["edit", "write", "edit_file", "write_file", "multi_edit", "str_replace", "create", "Edit", "Write"];
    let mut read = BTreeSet::new();
    let mut modified = BTreeSet::new();
    for details in before {
        read.extend(details.read_files.iter().cloned());
        modified.extend(details.modified_files.iter().cloned());
    }
    let failed: BTreeSet<&str> =
        items.iter().filter_map(|item| item.result()).filter(|r| r.is_error).map(|r| r.tool_call_id.as_str()).collect();
    let replies = items.iter().filter_map(|item| item.message().and(item.assistant()));
    for call in replies.flat_map(|(reply, _)| reply.content.tool_calls()) {
        let path = PATHS.iter().find_map(|name| call.arguments.get(*name).and_then(Value::as_str));
        let Some(path) = path.filter(|_| !failed.contains(call.id.as_str())) else { continue };
        if MODIFY.contains(&call.name.as_str()) {
            modified.insert(path.to_owned());
        } else if READ.contains(&call.name.as_str()) {
            read.insert(path.to_owned());
        }
    }
    SummaryDetails {
        read_files: read.into_iter().filter(|path| !modified.contains(path)).take(MAX_FILES).collect(),
        modified_files: modified.into_iter().take(MAX_FILES).collect(),
    }
}

/// A summary as it is stored: what the model wrote, the files, and the request in progress when the cut splits its
/// turn. That comes verbatim: a retelling of what a person asked for is not what they asked for.
pub fn compose(text: &str, files: &SummaryDetails, request: Option<&str>) -> String {
    let mut summary = text.replace(REQUEST_START, "").replace(REQUEST_END, "").trim().to_owned();
    for (name, paths) in [("read-files", &files.read_files), ("modified-files", &files.modified_files)] {
        if paths.is_empty() {
            continue;
        }
        let mut list = paths.iter().take(MAX_NAMED_FILES).cloned().collect::<Vec<_>>().join("\n");
        if paths.len() > MAX_NAMED_FILES {
            list.push_str(&format!("\n… and {} more", paths.len() - MAX_NAMED_FILES));
        }
        summary.push_str(&format!("\n\n<{name}>\n{list}\n</{name}>"));
    }
    if let Some(request) = request {
        summary.push_str(&format!("\n\n{REQUEST_LEAD}\n{REQUEST_START}\n{request}\n{REQUEST_END}"));
    }
    summary
}

/// A stored summary without what [`compose`] added, and the request that it holds.
pub fn split_summary(summary: &str) -> (&str, Option<&str>) {
    let held = summary.split_once(REQUEST_START).and_then(|(before, rest)| {
        let (request, _) = rest.rsplit_once(REQUEST_END)?;
        let before = before.trim_end();
        Some((before.strip_suffix(REQUEST_LEAD).unwrap_or(before), request.trim_matches('\n')))
    });
    let mut text = held.map_or(summary, |(before, _)| before).trim();
    for name in ["modified-files", "read-files"] {
        let listed = text.strip_suffix(&format!("</{name}>")).and_then(|rest| rest.rsplit_once(&format!("<{name}>")));
        text = listed.map_or(text, |(before, _)| before).trim();
    }
    (text, held.map(|(_, request)| request))
}

/// The prompt that the kept part of a window works on, when it comes before the cut `at`.
pub fn request_before(items: &[Arc<Item>], at: usize, earlier_summary: Option<&str>) -> Option<String> {
    let (before, kept) = items.split_at_checked(at)?;
    if kept.iter().any(|item| item.is_prompt()) {
        return None;
    }
    match before.iter().rev().find(|item| item.is_prompt()).and_then(|item| item.message()).map(Arc::as_ref) {
        Some(Message::User(prompt)) => Some(plain(&prompt.content)),
        _ => earlier_summary.and_then(|summary| split_summary(summary).1).map(str::to_owned),
    }
}

/// Tokens of texts together.
pub fn tokens(texts: &[String]) -> u64 {
    texts.iter().map(|text| estimate::text(text)).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests;
