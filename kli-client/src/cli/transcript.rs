//! A conversation as text: entries one after another, as a person reads them.

use kli_client::api::SessionInfo;
use kli_client::protocol::record::{Block, Body, Content, Entry, Message, Record};

use super::out::{Look, Style};
use super::text;

/// Tool results are cut here, unless shown alone.
const RESULT_LINES: usize = 12;
/// The characters of a session's id that are shown: its random end.
const ID_END: usize = 8;

/// How much of an entry is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    Brief,
    Whole,
}

/// An entry as text, without a last line break; empty for bookkeeping that nobody reads.
pub fn entry(entry: &Entry, extent: Extent, style: Style) -> String {
    match entry.record() {
        Ok(record) => self::record(&record, extent, style),
        Err(_) => text::clean(entry.json()).into_owned(),
    }
}

fn record(record: &Record, extent: Extent, style: Style) -> String {
    let dim = |t: String| style.paint(Look::Dim, &t);
    match &record.body {
        Body::Message(body) => message(&body.message, extent, style),
        Body::Compaction(c) => dim(format!("— older history is summed up —\n{}", text::clean(&c.summary))),
        Body::BranchSummary(b) => dim(format!("— what happened on another branch —\n{}", text::clean(&b.summary))),
        Body::CustomMessage(c) => text::clean(&c.content.text()).into_owned(),
        Body::ModelChange(m) => {
            dim(format!("— model: {}/{} —", text::one_line(&m.provider), text::one_line(&m.model_id)))
        }
        Body::OptionChange(o) => {
            dim(format!("— {}: {} —", text::one_line(&o.option_id), text::one_line(&plain(&o.value))))
        }
        Body::ThinkingLevelChange(t) => dim(format!("— thinking: {} —", text::one_line(&t.thinking_level))),
        // A large entry comes as a preview of itself.
        Body::Unknown(fields) => match fields.get("preview").and_then(|p| p.as_str()) {
            Some(preview) => format!("{} {}", text::clean(preview), dim("(too long to be shown here)".into())),
            None => dim(format!("— {} —", text::one_line(&record.kind))),
        },
        _ => String::new(),
    }
}

fn plain(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The wire's word for a value of an enum.
pub fn word(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value).map_or_else(|_| "?".into(), |v| plain(&v))
}

fn message(message: &Message, extent: Extent, style: Style) -> String {
    match message {
        Message::User(m) => prompt(m.typed.as_deref().unwrap_or(&m.content.text()), style),
        Message::Assistant(m) => assistant(&m.content, m.error_message.as_deref(), style),
        Message::ToolResult(m) => {
            let mark = if m.is_error { style.paint(Look::Bad, "✗") } else { style.paint(Look::Good, "✓") };
            let name = style.paint(Look::Dim, &text::one_line(&m.tool_name));
            let body = indent(&some_lines(&m.content.text(), extent));
            format!("{mark} {name}\n{}", style.paint(Look::Dim, &body)).trim_end().to_owned()
        }
        Message::BashExecution(m) => {
            let body = indent(&some_lines(&m.output, extent));
            let line = format!("! {}", text::clean(&m.command));
            format!("{}\n{}", style.paint(Look::Person, &line), style.paint(Look::Dim, &body)).trim_end().to_owned()
        }
        Message::Unknown => String::new(),
    }
}

/// What a person said, marked line by line.
pub fn prompt(said: &str, style: Style) -> String {
    let said = text::clean(said);
    said.trim_end().split('\n').map(|l| style.paint(Look::Person, &format!("> {l}"))).collect::<Vec<_>>().join("\n")
}

fn assistant(content: &Content, error: Option<&str>, style: Style) -> String {
    let mut parts: Vec<String> = Vec::new();
    if let Content::Text(said) = content {
        parts.push(text::clean(said).trim_end().to_owned());
    }
    for block in content.blocks() {
        match block {
            Block::Text(t) => parts.push(text::clean(&t.text).trim().to_owned()),
            Block::Thinking(t) if !t.thinking.is_empty() => {
                parts.push(style.paint(Look::Dim, text::clean(&t.thinking).trim()));
            }
            Block::ToolCall(call) => {
                let arguments = serde_json::Value::Object(call.arguments.clone()).to_string();
                let arguments = text::cut(&text::one_line(&arguments), 160).into_owned();
                parts.push(format!("● {} {}", text::one_line(&call.name), style.paint(Look::Dim, &arguments)));
            }
            Block::Image(_) => parts.push(style.paint(Look::Dim, "(an image)")),
            Block::Thinking(_) | Block::Unknown(_) => {}
        }
    }
    if let Some(error) = error {
        parts.push(style.paint(Look::Bad, &format!("✗ {}", text::clean(error))));
    }
    parts.retain(|p| !p.is_empty());
    parts.join("\n")
}

fn some_lines(content: &str, extent: Extent) -> String {
    let content = text::clean(content);
    let lines: Vec<&str> = content.trim_end().lines().collect();
    if extent == Extent::Whole || lines.len() <= RESULT_LINES {
        return lines.join("\n");
    }
    let shown = lines.get(..RESULT_LINES - 1).unwrap_or_default().join("\n");
    format!("{shown}\n… {} more lines", lines.len() - (RESULT_LINES - 1))
}

fn indent(content: &str) -> String {
    content.lines().map(|l| format!("  {l}")).collect::<Vec<_>>().join("\n")
}

/// The end of a session's id, by which it can be named.
pub fn session_id(id: &str) -> String {
    let skip = id.chars().count().saturating_sub(ID_END);
    text::one_line(&id.chars().skip(skip).collect::<String>())
}

/// A session in one line: id, when, status, what it is about.
pub fn session(info: &SessionInfo, depth: usize, style: Style) -> String {
    let mut about = text::one_line(&info.title);
    // Forks share their first prompt, and often their title; their own first prompt tells them apart.
    if let Some(own) = info.fork_prompt.as_deref().filter(|_| info.name.is_none() && info.parent_session.is_some()) {
        about = format!("{about} → {}", text::one_line(own));
    }
    let when = info.updated_at.get(..16).unwrap_or(&info.updated_at).replace('T', " ");
    let count = info.message_count.map_or("?".into(), |n| n.to_string());
    let mut marks = Vec::new();
    if info.status != kli_client::api::Status::Idle {
        marks.push(word(&info.status));
    }
    for (set, word) in [(!info.persisted, "in memory"), (info.archived, "archived"), (info.read_only, "read-only")] {
        if set {
            marks.push(word.to_owned());
        }
    }
    let marks = if marks.is_empty() { String::new() } else { format!(" ({})", marks.join(", ")) };
    let place = if depth == 0 { String::new() } else { format!("{}└ ", "  ".repeat(depth.min(16) - 1)) };
    let head = format!("{}  {}  {count:>4}  ", session_id(&info.session_id), text::one_line(&when));
    if let Some(width) = style.width {
        let used = head.chars().count() + place.chars().count() + marks.chars().count();
        about = text::cut(&about, width.saturating_sub(used + 1).max(12)).into_owned();
    }
    let (head, marks) = (style.paint(Look::Dim, &head), style.paint(Look::Label, &marks));
    format!("{head}{place}{about}{marks}")
}
