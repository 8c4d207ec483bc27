//! Summaries without understanding: the beginnings of what was said, in order, with what a program can tell for
//! certain (files touched, number of messages).

use kli_protocol::record::{Content, Message};

use super::plan::{calls_for, cut};
use crate::dialect::Request;

/// Lines kept of each kind.
const MOST_LINES: usize = 24;
const WIDTH: usize = 140;

/// The summary, if the request asks for one.
pub fn summarise(request: &Request) -> Option<String> {
    let Some(Message::User(newest)) = request.messages.last().map(AsRef::as_ref) else { return None };
    let asked = newest.content.text();
    let head: String = asked.trim_start().chars().take(12).collect();
    let asks = if request.tools.is_empty() {
        mentions(&asked) || mentions(&request.system_prompt)
    } else {
        // "Summarize README.md" is for a tool.
        names_conversation(&asked) || mentions(&head) && calls_for(&asked).is_empty()
    };
    if !asks {
        return None;
    }
    let before = request.messages.len() - 1;
    let earlier: Vec<String> = request.messages.iter().take(before).filter_map(|message| line_of(message)).collect();
    // A summariser may be given the conversation as messages, or as one text.
    let (lines, budget) = if earlier.is_empty() {
        let size = asked.len();
        (lines_of_text(&asked), size / 3)
    } else {
        let size: usize = request.messages.iter().take(before).map(|message| size_of(message)).sum();
        (earlier, size / 2)
    };
    Some(extract(&lines, budget.clamp(200, 6_000)))
}

fn mentions(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    ["summarize", "summarise", "summary"].iter().any(|word| lower.contains(word))
}

/// What a person says who wants the conversation told, or a program that compacts it.
fn names_conversation(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    mentions(&lower) && ["the conversation", "this conversation", "our conversation"].iter().any(|words| lower.contains(words))
        // An earlier summary, which stands before a prompt, is no request for one.
        && !lower.contains("<summary>")
}

fn size_of(message: &Message) -> usize {
    match message {
        Message::User(user) => user.content.text().len(),
        Message::Assistant(assistant) => assistant.content.text().len(),
        Message::ToolResult(result) => result.content.text().len(),
        Message::BashExecution(bash) => bash.output.len(),
        Message::Unknown => 0,
    }
}

fn line_of(message: &Message) -> Option<String> {
    let text = |content: &Content| cut(&content.text(), WIDTH);
    let line = match message {
        Message::User(user) => {
            let said = user.content.text();
            // What an earlier summary says is carried on whole.
            if said.contains("<summary>") { cut(&said, 2_000) } else { format!("User: {}", cut(&said, WIDTH)) }
        }
        Message::Assistant(assistant) => {
            let calls: Vec<String> = assistant
                .content
                .tool_calls()
                .map(|call| {
                    let first = call.arguments.values().find_map(|value| value.as_str()).unwrap_or_default();
                    format!("{} {}", call.name, cut(first, 60)).trim().to_owned()
                })
                .collect();
            let said = text(&assistant.content);
            match (said.is_empty(), calls.is_empty()) {
                (true, true) => return None,
                (false, true) => format!("Assistant: {said}"),
                (true, false) => format!("Assistant called {}", calls.join(", ")),
                (false, false) => format!("Assistant: {said} (called {})", calls.join(", ")),
            }
        }
        Message::ToolResult(result) => {
            let verb = if result.is_error { "failed" } else { "gave" };
            format!("{} {verb}: {}", result.tool_name, cut(&result.content.text(), 80))
        }
        Message::BashExecution(bash) => format!("User ran: {}", cut(&bash.command, WIDTH)),
        Message::Unknown => return None,
    };
    Some(line)
}

/// The lines of a conversation that was written down as text, without the instructions around it.
fn lines_of_text(text: &str) -> Vec<String> {
    let inner = between(text, "<conversation>", "</conversation>");
    let body = inner.unwrap_or(text);
    let mut lines: Vec<String> = Vec::new();
    if let Some(previous) = between(text, "<previous-summary>", "</previous-summary>") {
        lines.push(cut(previous, 2_000));
    }
    lines.extend(body.lines().map(|line| cut(line, WIDTH)).filter(|line| !line.is_empty()));
    lines
}

fn between<'a>(text: &'a str, open: &str, close: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(open)?;
    Some(rest.rsplit_once(close).map_or(rest, |(inner, _)| inner).trim())
}

/// The first lines and the last ones, within `budget` bytes.
fn extract(lines: &[String], budget: usize) -> String {
    let head = "Extracted by demo/offline, which is no language model: the beginnings of what was said.\n".to_owned();
    let mut room = budget.saturating_sub(head.len());
    let fits = |line: &&String, room: &mut usize| {
        let size = line.len() + 3;
        let fits = size <= *room;
        *room = room.saturating_sub(size);
        fits
    };
    let first: Vec<&String> = {
        let mut half = room / 2;
        let taken: Vec<&String> = lines.iter().take(MOST_LINES / 2).take_while(|line| fits(line, &mut half)).collect();
        room = room.saturating_sub(taken.iter().map(|line| line.len() + 3).sum());
        taken
    };
    let rest = lines.get(first.len()..).unwrap_or_default();
    let mut last: Vec<&String> =
        rest.iter().rev().take(MOST_LINES / 2).take_while(|line| fits(line, &mut room)).collect();
    last.reverse();
    let left_out = lines.len() - first.len() - last.len();
    let mut text = head;
    let mut add = |line: &str| {
        text.push_str("- ");
        text.push_str(line);
        text.push('\n');
    };
    first.iter().for_each(|line| add(line));
    if left_out > 0 {
        add(&format!("… {left_out} more"));
    }
    last.iter().for_each(|line| add(line));
    text.trim_end().to_owned()
}
