//! A branch for people to read.

use std::io::Write;

use kli_protocol::record::*;

use super::put;
use crate::store::log::Log;
use crate::store::{Ix, Result, names};

/// One thing on the page.
enum Part {
    /// What somebody said: who, and what.
    Said(&'static str, String),
    /// Code or output, with what it is; folded away where it is long.
    Block(String, String),
    Note(String),
}

fn parts(record: &Record) -> Vec<Part> {
    match &record.body {
        Body::Message(body) => match &body.message {
            Message::User(user) => {
                vec![Part::Said("You", user.typed.clone().unwrap_or_else(|| shown(&user.content)))]
            }
            Message::Assistant(answer) => assistant(answer),
            Message::ToolResult(result) => {
                let what = if result.is_error { "failed" } else { "gave" };
                vec![Part::Block(format!("`{}` {what}", result.tool_name), shown(&result.content))]
            }
            Message::BashExecution(bash) => {
                vec![Part::Block("Ran".into(), format!("$ {}\n{}", bash.command, bash.output))]
            }
            Message::Unknown => Vec::new(),
        },
        Body::Compaction(c) => {
            vec![Part::Note("Older history was summarised".into()), Part::Said("Summary", c.summary.clone())]
        }
        Body::BranchSummary(b) => {
            vec![Part::Note("A branch was left".into()), Part::Said("Summary", b.summary.clone())]
        }
        Body::CustomMessage(m) if m.display => vec![Part::Said("Extension", shown(&m.content))],
        Body::ModelChange(m) => vec![Part::Note(format!("Model: {}/{}", m.provider, m.model_id))],
        _ => Vec::new(),
    }
}

fn assistant(answer: &AssistantMessage) -> Vec<Part> {
    let mut parts = Vec::new();
    match &answer.content {
        Content::Text(text) => parts.push(Part::Said("Assistant", text.clone())),
        Content::Blocks(blocks) => {
            for block in blocks {
                match block {
                    Block::Text(text) if !text.text.trim().is_empty() => {
                        parts.push(Part::Said("Assistant", text.text.clone()));
                    }
                    Block::Thinking(thinking) if !thinking.thinking.trim().is_empty() => {
                        parts.push(Part::Block("Thinking".into(), thinking.thinking.clone()));
                    }
                    Block::ToolCall(call) => {
                        let arguments = serde_json::to_string_pretty(&call.arguments).unwrap_or_default();
                        parts.push(Part::Block(format!("Called `{}`", call.name), arguments));
                    }
                    Block::Image(image) => parts.push(Part::Note(format!("An image ({})", image.mime_type))),
                    _ => {}
                }
            }
        }
    }
    if let Some(error) = &answer.error_message {
        parts.push(Part::Note(format!("Error: {error}")));
    }
    parts
}

fn shown(content: &Content) -> String {
    let images = content.blocks().iter().filter(|block| matches!(block, Block::Image(_))).count();
    match images {
        0 => content.text(),
        n => format!("{}\n[{n} images]", content.text()),
    }
}

pub fn markdown(log: &Log, leaf: Option<Ix>, out: &mut dyn Write) -> Result<()> {
    let facts = log.facts();
    put(out, &format!("# {}\n", names::title(facts.name.as_deref(), facts.first_prompt.as_deref())))?;
    put(out, &format!("Session `{}` in `{}`, {}\n", facts.id, facts.work_dir, facts.created_at))?;
    for ix in log.branch_to(leaf) {
        for part in parts(&log.record(ix)?) {
            match part {
                Part::Said(who, text) => put(out, &format!("## {who}\n\n{text}\n"))?,
                Part::Note(text) => put(out, &format!("*{text}*\n"))?,
                Part::Block(what, text) => {
                    let fence = fence(&text);
                    put(
                        out,
                        &format!(
                            "<details><summary>{}</summary>\n\n{fence}\n{}\n{fence}\n\n</details>\n",
                            escaped(&what),
                            text.trim_end()
                        ),
                    )?;
                }
            }
        }
    }
    Ok(())
}

/// Longer than any row of back-ticks in the text.
fn fence(text: &str) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or_default();
    "`".repeat(longest.max(2) + 1)
}

const STYLE: &str = "body{max-width:52rem;margin:2rem auto;padding:0 1rem;font:16px/1.5 system-ui,sans-serif;color-scheme:light dark}\
pre{white-space:pre-wrap;overflow-wrap:anywhere}details{margin:.5rem 0}summary{cursor:pointer;opacity:.7}\
.you{border-left:.2rem solid #4a8;padding-left:1rem}.note{opacity:.6;font-style:italic}h2{font-size:1rem;margin-bottom:0}";

pub fn html(log: &Log, leaf: Option<Ix>, out: &mut dyn Write) -> Result<()> {
    let facts = log.facts();
    let title = escaped(&names::title(facts.name.as_deref(), facts.first_prompt.as_deref()));
    put(
        out,
        &format!(
            "<!doctype html>\n<html><head><meta charset=\"utf-8\"><title>{title}</title><style>{STYLE}</style></head><body>\n<h1>{title}</h1>"
        ),
    )?;
    let (id, dir, time) = (escaped(&facts.id), escaped(&facts.work_dir), escaped(&facts.created_at));
    put(out, &format!("<p class=\"note\">Session {id} in {dir}, {time}</p>"))?;
    for ix in log.branch_to(leaf) {
        let anchor = escaped(&log.id(ix));
        put(out, &format!("<section id=\"{anchor}\">"))?;
        for part in parts(&log.record(ix)?) {
            match part {
                Part::Said(who, text) => {
                    let class = if who == "You" { " class=\"you\"" } else { "" };
                    put(out, &format!("<div{class}><h2>{who}</h2><pre>{}</pre></div>", escaped(&text)))?;
                }
                Part::Note(text) => put(out, &format!("<p class=\"note\">{}</p>", escaped(&text)))?,
                Part::Block(what, text) => put(
                    out,
                    &format!("<details><summary>{}</summary><pre>{}</pre></details>", escaped(&what), escaped(&text)),
                )?,
            }
        }
        put(out, "</section>")?;
    }
    put(out, "</body></html>")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
