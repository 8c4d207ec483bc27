//! Events as text on a terminal: pure, so that what is shown can be tested.

use std::collections::{HashMap, HashSet};

use kli_client::api::{Approval, CompactionReason, EventBody, RunError, RunSnapshot, RunStop};
use kli_client::protocol::record::{Block, Body, Message};

use crate::cli::out::{Look, Style};
use crate::cli::{text, transcript};

/// Lines of an edit that are shown where it needs a person.
const CHANGE_LINES: usize = 40;

/// Where on the screen we are, and what was shown.
pub struct Render {
    style: Style,
    /// Something stands in the present line.
    mid_line: bool,
    flow: Flow,
    /// The titles of tool calls that go on.
    tools: HashMap<String, String>,
    /// The message that streams, and how many bytes of each of its blocks were shown.
    message: Option<String>,
    shown: HashMap<u32, usize>,
    /// Entries that this client made, and so are on the screen.
    own: Vec<String>,
    /// Commands of this client, of whose failure it tells itself.
    commands: HashSet<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    Lines,
    Text,
    Thinking,
}

impl Render {
    pub fn new(style: Style) -> Render {
        Render {
            style,
            mid_line: false,
            flow: Flow::Lines,
            tools: HashMap::new(),
            message: None,
            shown: HashMap::new(),
            own: Vec::new(),
            commands: HashSet::new(),
        }
    }

    /// The terminal may have another width by now.
    pub fn resize(&mut self, style: Style) {
        self.style = style;
    }

    /// The person sees this prompt already: it was typed here.
    pub fn is_ours(&mut self, entry_id: &str) {
        self.own.push(entry_id.to_owned());
    }

    /// How this command of the person's failed is told with its output.
    pub fn tells_its_end(&mut self, tool_call_id: &str) {
        self.commands.insert(tool_call_id.to_owned());
    }

    /// Text of our own, in lines of its own.
    pub fn line(&mut self, line: &str) -> String {
        let start = self.fresh_line();
        format!("{start}{line}\n")
    }

    /// The person ended the line that the cursor stood in.
    pub fn entered(&mut self) {
        self.mid_line = false;
    }

    /// What brings the cursor to the left edge.
    pub fn fresh(&mut self) -> String {
        self.fresh_line()
    }

    /// What to print for an event.
    pub fn event(&mut self, body: &EventBody) -> String {
        match body {
            EventBody::Snapshot { run: Some(run), .. } => self.resume(run),
            EventBody::MessageStart { message_id } => {
                self.begin(message_id);
                String::new()
            }
            EventBody::TextDelta { message_id, index, delta } => self.flow(Flow::Text, message_id, *index, delta),
            EventBody::ThinkingDelta { message_id, index, delta } => {
                self.flow(Flow::Thinking, message_id, *index, delta)
            }
            EventBody::MessageEnd { stored, .. } => {
                self.message = None;
                let start = self.fresh_line();
                if *stored {
                    start
                } else {
                    format!("{start}{}", self.dim_line("— dropped; it is asked for again —"))
                }
            }
            EventBody::ToolStart { tool_call_id, tool_name, title, .. } => {
                self.tool_start(tool_call_id, tool_name, title)
            }
            EventBody::ToolEnd { tool_call_id, is_error, content, .. } => {
                let said = if *is_error { content.text() } else { String::new() };
                self.tool_end(tool_call_id, *is_error, &said)
            }
            EventBody::RunEnd { stop_reason, error, .. } => self.run_end(*stop_reason, error.as_ref()),
            EventBody::EntryAppended { entry } => entry.record().map_or_else(|_| String::new(), |r| self.entry(&r)),
            EventBody::RetryScheduled { attempt, max_attempts, delay_ms, reason } => self.dim(&format!(
                "{}; trying again in {} s ({attempt} of {max_attempts})",
                text::one_line(reason),
                delay_ms.div_ceil(1000)
            )),
            EventBody::CompactionStart { reason } => self.dim(match reason {
                CompactionReason::Branch => "summing up the branch that is left…",
                _ => "summing up older history…",
            }),
            EventBody::CompactionEnd { error, .. } => match error {
                Some(error) => self.bad(&format!("no summary: {}", text::one_line(&error.message))),
                None => self.dim("summed up"),
            },
            EventBody::LeafMoved { leaf_id, .. } => {
                let leaf = leaf_id.as_deref().map_or("before the first entry".into(), text::one_line);
                self.dim(&format!("the leaf is {leaf}"))
            }
            EventBody::LabelChanged { entry_id, label } => match label {
                Some(label) => {
                    self.dim(&format!("{} is labelled [{}]", text::one_line(entry_id), text::one_line(label)))
                }
                None => self.dim(&format!("{} has no label any more", text::one_line(entry_id))),
            },
            EventBody::ModelChanged { provider, model_id } => {
                self.dim(&format!("model: {}/{}", text::one_line(provider), text::one_line(model_id)))
            }
            EventBody::OptionChanged { option_id, value } => {
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                self.dim(&format!("{}: {}", text::one_line(option_id), text::one_line(&value)))
            }
            EventBody::ModeChanged { mode } => self.dim(&format!("mode: {}", transcript::word(mode))),
            EventBody::SessionDeleted {} => self.bad("this session was deleted"),
            EventBody::Lagged {} => self.dim("(some output was passed over)"),
            EventBody::Warning { message, .. } => self.bad(&text::one_line(message)),
            _ => String::new(),
        }
    }

    fn begin(&mut self, message_id: &str) {
        if self.message.as_deref() != Some(message_id) {
            self.message = Some(message_id.to_owned());
            self.shown.clear();
        }
    }

    /// Streamed text, thinking apart from what is said.
    fn flow(&mut self, flow: Flow, message_id: &str, index: u32, delta: &str) -> String {
        self.begin(message_id);
        *self.shown.entry(index).or_default() += delta.len();
        if delta.is_empty() || (flow == Flow::Thinking && !self.style.terminal) {
            return String::new();
        }
        let start = if self.flow == flow { String::new() } else { self.fresh_line() };
        self.flow = flow;
        self.mid_line = !delta.ends_with('\n');
        let shown = text::clean(delta);
        let shown = if flow == Flow::Thinking { self.style.paint(Look::Dim, &shown) } else { shown.into_owned() };
        format!("{start}{shown}")
    }

    /// A run that was joined, or come back to: what it has said that is not on the screen yet.
    fn resume(&mut self, run: &RunSnapshot) -> String {
        let mut out = String::new();
        if let Some(message_id) = &run.message_id {
            self.begin(message_id);
            for (index, block) in (0u32..).zip(&run.content) {
                let (flow, said) = match block {
                    Block::Text(t) => (Flow::Text, &t.text),
                    Block::Thinking(t) => (Flow::Thinking, &t.thinking),
                    _ => continue,
                };
                let seen = self.shown.get(&index).copied().unwrap_or(0);
                if let Some(rest) = said.get(seen..) {
                    out.push_str(&self.flow(flow, message_id, index, rest));
                }
            }
        }
        for tool in &run.tools {
            if !self.tools.contains_key(&tool.tool_call_id) {
                out.push_str(&self.tool_start(&tool.tool_call_id, &tool.tool_name, &tool.title));
            }
        }
        out
    }

    fn tool_start(&mut self, id: &str, name: &str, title: &str) -> String {
        let title = text::one_line(title);
        let name = text::one_line(name);
        // Most titles begin with the tool's name anyway.
        let title = if title.starts_with(&name) { title } else { format!("{name} {title}") };
        let title = self.fit(title.trim(), 2);
        self.tools.insert(id.to_owned(), title.clone());
        self.line(&format!("● {title}"))
    }

    fn tool_end(&mut self, id: &str, is_error: bool, said: &str) -> String {
        let title = self.tools.remove(id).unwrap_or_default();
        if self.commands.remove(id) && is_error {
            return self.fresh_line();
        }
        if !is_error {
            let mark = self.style.paint(Look::Good, "✓");
            return self.line(&format!("{mark} {}", self.style.paint(Look::Dim, &title)));
        }
        let first = said.lines().find(|l| !l.trim().is_empty()).unwrap_or("it failed");
        let first = text::one_line(first);
        let mark = self.style.paint(Look::Bad, "✗");
        self.line(&format!("{mark} {}", self.fit(&format!("{title}: {first}"), 2)))
    }

    fn run_end(&mut self, stop: RunStop, error: Option<&RunError>) -> String {
        self.tools.clear();
        self.message = None;
        let why = match (stop, error) {
            (_, Some(error)) => text::one_line(&error.message),
            (RunStop::Done, None) => return self.fresh_line(),
            (RunStop::Aborted, None) => return self.dim("aborted"),
            (RunStop::Length, None) => "cut off at the model's output limit".into(),
            (RunStop::Refused, None) => "the model refused".into(),
            (RunStop::MaxTurns, None) => "ended at the limit of turns".into(),
            (RunStop::Error, None) => "the run failed".into(),
        };
        self.bad(&why)
    }

    /// What others said, and our own that was queued, as it enters.
    fn entry(&mut self, record: &kli_client::protocol::record::Record) -> String {
        if let Some(at) = self.own.iter().position(|id| *id == record.id) {
            self.own.remove(at);
            return String::new();
        }
        match &record.body {
            Body::Message(body) => match &body.message {
                Message::User(m) => {
                    let said = m.typed.clone().unwrap_or_else(|| m.content.text());
                    self.line(&transcript::prompt(&said, self.style))
                }
                _ => String::new(),
            },
            Body::CustomMessage(m) if m.display => self.line(&text::clean(&m.content.text())),
            _ => String::new(),
        }
    }

    /// What a person has to know to allow a call.
    pub fn approval(&mut self, approval: &Approval) -> String {
        let mut lines = vec![format!(
            "{} {}",
            self.style.paint(Look::Label, "?"),
            self.style.paint(Look::Bold, &self.approval_title(approval))
        )];
        let reason = text::one_line(&approval.reason);
        if !reason.is_empty() {
            lines.push(format!("  {}", self.style.paint(Look::Dim, &reason)));
        }
        for change in approval.changes.iter().flatten() {
            let at = change.line.map(|l| format!(":{l}")).unwrap_or_default();
            lines.push(format!("  {}{at}", text::one_line(&change.path)));
            let old = change.old_text.as_deref().unwrap_or_default();
            lines.extend(self.change(old, "-", Look::Bad));
            lines.extend(self.change(&change.new_text, "+", Look::Good));
        }
        if let Some(rule) = &approval.rule {
            lines.push(format!("  {}", self.style.paint(Look::Dim, &format!("always: {}", text::one_line(rule)))));
        }
        self.line(&lines.join("\n"))
    }

    /// The whole of it, however long: a person has to see what is allowed.
    fn approval_title(&self, approval: &Approval) -> String {
        let command = approval.arguments.get("command").and_then(|c| c.as_str());
        match command {
            Some(command) => format!("{}: {}", text::one_line(&approval.tool_name), text::clean(command)),
            None => text::one_line(&approval.title),
        }
    }

    fn change(&self, content: &str, sign: &str, look: Look) -> Vec<String> {
        let content = text::clean(content);
        let all: Vec<&str> = content.lines().collect();
        let mut lines: Vec<String> =
            all.iter().take(CHANGE_LINES).map(|l| self.style.paint(look, &format!("  {sign} {l}"))).collect();
        if all.len() > CHANGE_LINES {
            lines.push(format!("  {sign} … {} more lines", all.len() - CHANGE_LINES));
        }
        lines
    }

    pub fn dim(&mut self, line: &str) -> String {
        let start = self.fresh_line();
        format!("{start}{}", self.dim_line(&format!("— {line} —")))
    }

    pub fn bad(&mut self, line: &str) -> String {
        self.line(&self.style.paint(Look::Bad, &format!("✗ {line}")))
    }

    fn dim_line(&self, line: &str) -> String {
        format!("{}\n", self.style.paint(Look::Dim, line))
    }

    fn fresh_line(&mut self) -> String {
        self.flow = Flow::Lines;
        if std::mem::take(&mut self.mid_line) { "\n".into() } else { String::new() }
    }

    fn fit(&self, line: &str, used: usize) -> String {
        match self.style.width {
            Some(width) => text::cut(line, width.saturating_sub(used)).into_owned(),
            None => line.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(events: &[serde_json::Value], shown: &str) {
        let mut render = Render::new(Style::PLAIN);
        let out: String = events
            .iter()
            .map(|e| render.event(&serde_json::from_value(e.clone()).unwrap_or_else(|x| panic!("{e}: {x}"))))
            .collect();
        assert_eq!(out, shown);
    }

    fn said(delta: &str) -> serde_json::Value {
        json!({"type": "textDelta", "messageId": "m", "index": 0, "delta": delta})
    }

    fn start(id: &str, title: &str) -> serde_json::Value {
        json!({"type": "toolStart", "toolCallId": id, "toolName": "bash", "title": title, "arguments": {}, "locations": []})
    }

    fn end(id: &str, is_error: bool, content: &str) -> serde_json::Value {
        json!({"type": "toolEnd", "toolCallId": id, "isError": is_error, "content": content})
    }

    fn usage() -> serde_json::Value {
        json!({"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 0})
    }

    #[test]
    fn text_flows_and_tools_have_lines() {
        check(
            &[
                json!({"type": "messageStart", "messageId": "m"}),
                said("Let me "),
                said("look\u{1b}[2J."),
                json!({"type": "messageEnd", "messageId": "m", "stored": true}),
                start("1", "ls -la"),
                start("2", "bash false"),
                end("2", true, "\nexit code 1\nmore"),
                end("1", false, "a b"),
                json!({"type": "runEnd", "stopReason": "done", "usage": usage()}),
            ],
            "Let me look\u{241b}[2J.\n● bash ls -la\n● bash false\n✗ bash false: exit code 1\n✓ bash ls -la\n",
        );
    }

    #[test]
    fn ends_say_why() {
        let end = |stop: &str, error: Option<&str>| {
            let mut e = json!({"type": "runEnd", "stopReason": stop, "usage": usage()});
            if let Some(message) = error {
                e["error"] = json!({"kind": "network", "message": message, "retryable": true});
            }
            e
        };
        check(&[said("x"), end("aborted", None)], "x\n— aborted —\n");
        check(&[end("error", Some("no route\nto host"))], "✗ no route to host\n");
        check(&[end("length", None)], "✗ cut off at the model's output limit\n");
    }

    #[test]
    fn a_snapshot_in_mid_run_shows_only_what_is_new() {
        let mut state = crate::cli::fake::session_state();
        state["status"] = "running".into();
        let snapshot = json!({"type": "snapshot", "session": state, "run": {
            "runId": "r", "messageId": "m", "content": [{"type": "text", "text": "one two three"}],
            "tools": [{"toolCallId": "1", "toolName": "bash", "title": "ls", "arguments": {}, "output": ""}]}});
        check(&[said("one "), snapshot.clone(), said("!")], "one two three\n● bash ls\n!");
        check(&[snapshot.clone(), snapshot], "one two three\n● bash ls\n");
    }

    #[test]
    fn prompts_of_others_are_shown_and_our_own_are_not() {
        let entry = |id: &str| {
            json!({"type": "entryAppended", "entry": {"type": "message", "id": id, "parentId": null,
                "timestamp": "t", "message": {"role": "user", "content": "do\nit"}}})
        };
        check(&[entry("a")], "> do\n> it\n");
        let mut render = Render::new(Style::PLAIN);
        render.is_ours("a");
        assert_eq!(render.event(&serde_json::from_value(entry("a")).unwrap()), "");
    }

    #[test]
    fn what_is_to_be_allowed_is_shown_whole_and_steers_nothing() {
        let approval =
            serde_json::from_value(json!({"approvalId": "a", "toolCallId": "1", "toolName": "bash", "title": "rm…",
            "arguments": {"command": "rm -rf x\n\u{1b}[8mrm -rf /"}, "reason": "it changes files", "rule": "bash: rm",
            "changes": [{"path": "/w/f", "line": 3, "oldText": null, "newText": "new\u{202e}"}]}))
            .unwrap();
        assert_eq!(
            Render::new(Style::PLAIN).approval(&approval),
            "? bash: rm -rf x\n\u{241b}[8mrm -rf /\n  it changes files\n  /w/f:3\n  + new\u{fffd}\n  always: bash: rm\n"
        );
    }
}
