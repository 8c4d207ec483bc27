//! One record, read for the context once: cleaned of what no provider takes, shared from then on.
//!
//! What depends on the other records of the branch (pairing, order, the cut) is [`super::assemble`]'s.

use std::sync::{Arc, OnceLock};

use kli_protocol::record::{
    AssistantMessage, BashExecution, Block, Body, Compaction, Content, Kind, Message, Record, Replacement, StopReason,
    SummaryDetails, ToolResultMessage, Usage, UserMessage,
};

use super::{estimate, image};
use crate::clock;

/// What an empty tool result says: some providers refuse empty ones.
const NO_OUTPUT: &str = "(no output)";
const REMOVED: &str = "(this result was removed from the context)";

/// A record of the branch, as far as the context is concerned.
#[derive(Debug)]
pub struct Item {
    pub id: String,
    pub kind: Kind,
    pub(super) meaning: Meaning,
    /// What it was before a `context_edit`.
    origin: Option<Arc<Item>>,
    tokens: OnceLock<u64>,
    /// The message for another model than the one that wrote it.
    foreign: OnceLock<Option<Arc<Message>>>,
    /// The message for a model that takes no images.
    imageless: OnceLock<Arc<Message>>,
}

#[derive(Debug)]
pub(super) enum Meaning {
    /// Sent as a user message. `prompt`: a person or client wrote it for the model.
    User {
        message: Arc<Message>,
        prompt: bool,
        details: Option<Box<SummaryDetails>>,
    },
    Assistant {
        message: Arc<Message>,
        sent: Sent,
    },
    Result(Arc<Message>),
    Compaction(Box<Summary>),
    Edit {
        target: String,
        replacement: Option<Content>,
    },
    /// Never sent.
    Nothing,
}

/// How much of an assistant message is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    Whole,
    /// Cut by the output limit: its calls were not run.
    CallsNotRun,
    /// Aborted: only calls that have a stored result.
    AnsweredCalls,
    /// Failed, or taken out: neither it nor the results of its calls.
    Never,
}

#[derive(Debug)]
pub(super) struct Summary {
    /// As sent; none when it is blank, and the compaction is passed over.
    pub message: Option<Arc<Message>>,
    pub text: String,
    /// The first entry kept, as the record says.
    pub kept: Option<String>,
    pub details: SummaryDetails,
    pub timestamp: u64,
}

impl Item {
    pub fn of(record: &Record) -> Item {
        Item::from(record.clone())
    }

    fn new(id: String, kind: Kind, meaning: Meaning) -> Item {
        Item {
            id,
            kind,
            meaning,
            origin: None,
            tokens: OnceLock::new(),
            foreign: OnceLock::new(),
            imageless: OnceLock::new(),
        }
    }

    /// An estimate of what it adds to a request.
    pub fn tokens(&self) -> u64 {
        *self.tokens.get_or_init(|| match &self.meaning {
            Meaning::User { message, .. } | Meaning::Result(message) => estimate::message(message),
            Meaning::Assistant { sent: Sent::Never, .. } => 0,
            Meaning::Assistant { message, .. } => estimate::message(message),
            Meaning::Compaction(summary) => summary.message.as_deref().map_or(0, estimate::message),
            Meaning::Edit { .. } | Meaning::Nothing => 0,
        })
    }

    /// The message that it is sent as, if it is.
    pub fn message(&self) -> Option<&Arc<Message>> {
        match &self.meaning {
            Meaning::User { message, .. } | Meaning::Result(message) => Some(message),
            Meaning::Assistant { sent: Sent::Never, .. } => None,
            Meaning::Assistant { message, .. } => Some(message),
            Meaning::Compaction(_) | Meaning::Edit { .. } | Meaning::Nothing => None,
        }
    }

    /// A reply whose reported usage tells the tokens of all that was sent up to it.
    pub fn tells_usage(&self) -> bool {
        let counts = |sent: Sent| matches!(sent, Sent::Whole | Sent::CallsNotRun);
        self.assistant().is_some_and(|(reply, sent)| counts(sent) && reported(&reply.usage) > 0)
    }

    /// A prompt, a steer or a follow-up (not a command's output or an extension's message).
    pub fn is_prompt(&self) -> bool {
        matches!(self.meaning, Meaning::User { prompt: true, .. })
    }

    /// The files that a compaction's summary carries.
    pub fn details(&self) -> Option<&SummaryDetails> {
        match &self.meaning {
            Meaning::Compaction(summary) => Some(&summary.details),
            Meaning::User { details, .. } => details.as_deref(),
            _ => None,
        }
    }

    pub(super) fn assistant(&self) -> Option<(&AssistantMessage, Sent)> {
        match &self.meaning {
            Meaning::Assistant { message, sent } => match &**message {
                Message::Assistant(assistant) => Some((assistant, *sent)),
                _ => None,
            },
            _ => None,
        }
    }

    pub(super) fn result(&self) -> Option<&ToolResultMessage> {
        match &self.meaning {
            Meaning::Result(message) => match &**message {
                Message::ToolResult(result) => Some(result),
                _ => None,
            },
            _ => None,
        }
    }

    /// The compaction, when its summary is not blank.
    pub(super) fn summary(&self) -> Option<&Summary> {
        match &self.meaning {
            Meaning::Compaction(summary) if summary.message.is_some() => Some(summary),
            _ => None,
        }
    }

    /// A compaction whose summary stands in for what came before.
    pub fn is_boundary(&self) -> bool {
        self.summary().is_some()
    }

    /// The assistant message for a model that did not write it: no thinking, no signatures. None: nothing is left.
    pub(super) fn for_other_model(&self) -> Option<&Arc<Message>> {
        self.foreign
            .get_or_init(|| {
                let (assistant, _) = self.assistant()?;
                let blocks: Vec<Block> = assistant.content.blocks().iter().filter_map(unsigned).collect();
                if blocks.is_empty() {
                    return None;
                }
                let content = Content::Blocks(blocks);
                Some(Arc::new(Message::Assistant(AssistantMessage { content, ..without_content(assistant) })))
            })
            .as_ref()
    }

    /// The user message or tool result for a model that takes no images.
    pub(super) fn without_images(&self) -> Option<&Arc<Message>> {
        let message = self.message()?;
        let content = content_of(message)?;
        if !content.blocks().iter().any(|b| matches!(b, Block::Image(_))) {
            return Some(message);
        }
        Some(self.imageless.get_or_init(|| {
            let blocks = content.blocks().iter().map(|block| match block {
                Block::Image(_) => Block::text("[image: this model takes no images]"),
                other => other.clone(),
            });
            Arc::new(with_content(message, Content::Blocks(blocks.collect())))
        }))
    }

    /// The item after a `context_edit`: left out, or with other content.
    pub(super) fn edited(self: &Arc<Item>, replacement: Option<&Content>) -> Item {
        let origin = self.origin.as_ref().unwrap_or(self);
        let meaning = match (&origin.meaning, replacement) {
            (Meaning::User { message, prompt, .. }, Some(content)) => {
                let timestamp = timestamp_of(message);
                user(content.clone(), timestamp, *prompt)
            }
            (Meaning::Assistant { message, sent }, Some(content)) => match &**message {
                Message::Assistant(old) => {
                    assistant(AssistantMessage { content: content.clone(), ..without_content(old) }, *sent)
                }
                _ => Meaning::Nothing,
            },
            (Meaning::Assistant { message, .. }, None) => {
                Meaning::Assistant { message: Arc::clone(message), sent: Sent::Never }
            }
            // A result cannot be left out: its call would be taken for interrupted.
            (Meaning::Result(message), replacement) => match &**message {
                Message::ToolResult(old) => result(ToolResultMessage {
                    content: replacement.cloned().unwrap_or_else(|| REMOVED.into()),
                    details: None,
                    ..without_result_content(old)
                }),
                _ => Meaning::Nothing,
            },
            (Meaning::Compaction(old), replacement) => {
                let text = replacement.map(Content::text).unwrap_or_default();
                compaction(text, old.kept.clone(), old.details.clone(), old.timestamp)
            }
            (Meaning::User { .. }, None) | (Meaning::Edit { .. } | Meaning::Nothing, _) => Meaning::Nothing,
        };
        Item { origin: Some(Arc::clone(origin)), ..Item::new(self.id.clone(), self.kind, meaning) }
    }

    /// A `context_edit`: its target, and the new content.
    pub(super) fn edit(&self) -> Option<(&str, Option<&Content>)> {
        match &self.meaning {
            Meaning::Edit { target, replacement } => Some((target, replacement.as_ref())),
            _ => None,
        }
    }
}

impl From<Record> for Item {
    fn from(record: Record) -> Item {
        let kind = record.body.kind();
        let time = || clock::parse_rfc3339(&record.timestamp).unwrap_or_default();
        let meaning = match record.body {
            Body::Message(body) => message(body.message),
            Body::CustomMessage(custom) => user(custom.content, time(), false),
            Body::BranchSummary(branch) if branch.summary.trim().is_empty() => Meaning::Nothing,
            Body::BranchSummary(branch) => match user(branch_summary_text(&branch.summary).into(), time(), false) {
                Meaning::User { message, prompt, .. } => {
                    Meaning::User { message, prompt, details: branch.details.map(Box::new) }
                }
                other => other,
            },
            Body::Compaction(c) => {
                let kept = first_kept(&c);
                compaction(c.summary, kept, c.details.unwrap_or_default(), time())
            }
            Body::ContextEdit(edit) => Meaning::Edit {
                target: edit.target_id,
                replacement: edit.replacement.map(|Replacement { content }| content),
            },
            Body::ModelChange(_)
            | Body::OptionChange(_)
            | Body::ThinkingLevelChange(_)
            | Body::Custom(_)
            | Body::Label(_)
            | Body::SessionInfo(_)
            | Body::Usage(_)
            | Body::Leaf(_)
            | Body::Unknown(_) => Meaning::Nothing,
        };
        Item::new(record.id, kind, meaning)
    }
}

/// The text in which a compaction's summary reaches the model.
pub fn compaction_text(summary: &str) -> String {
    format!(
        "The conversation before this point was compacted. This summary stands in for it:\n\n<summary>\n{}\n</summary>",
        summary.trim()
    )
}

/// The text in which a branch summary reaches the model.
pub fn branch_summary_text(summary: &str) -> String {
    format!(
        "Before this point another path of this conversation was explored and left. A summary of that path:\n\n<summary>\n{}\n</summary>",
        summary.trim()
    )
}

/// The first kept entry; in pi's first format an index counted from the header, whose line is number 1.
fn first_kept(c: &Compaction) -> Option<String> {
    c.first_kept_entry_id
        .clone()
        .or_else(|| c.first_kept_entry_index.map(|index| format!("{:08x}", index.saturating_add(1))))
}

fn compaction(text: String, kept: Option<String>, details: SummaryDetails, timestamp: u64) -> Meaning {
    let message = (!text.trim().is_empty()).then(|| {
        let content = compaction_text(&text).into();
        Arc::new(Message::User(UserMessage { content, typed: None, timestamp }))
    });
    Meaning::Compaction(Box::new(Summary { message, text, kept, details, timestamp }))
}

fn message(message: Message) -> Meaning {
    match message {
        Message::User(m) => match clean(m.content, user_block) {
            Some(content) => Meaning::User {
                message: Arc::new(Message::User(UserMessage { content, ..m })),
                prompt: true,
                details: None,
            },
            None => Meaning::Nothing,
        },
        Message::Assistant(m) => {
            let sent = match m.stop_reason {
                StopReason::Stop | StopReason::ToolUse => Sent::Whole,
                StopReason::Length => Sent::CallsNotRun,
                StopReason::Aborted => Sent::AnsweredCalls,
                StopReason::Error => Sent::Never,
            };
            assistant(m, sent)
        }
        Message::ToolResult(m) => result(m),
        Message::BashExecution(m) if m.exclude_from_context == Some(true) => Meaning::Nothing,
        Message::BashExecution(m) => user(bash_text(&m).into(), m.timestamp, false),
        Message::Unknown => Meaning::Nothing,
    }
}

fn user(content: Content, timestamp: u64, prompt: bool) -> Meaning {
    match clean(content, user_block) {
        Some(content) => Meaning::User {
            message: Arc::new(Message::User(UserMessage { content, typed: None, timestamp })),
            prompt,
            details: None,
        },
        None => Meaning::Nothing,
    }
}

fn assistant(mut m: AssistantMessage, sent: Sent) -> Meaning {
    // Always blocks: calls are looked for in them.
    let mut blocks: Vec<Block> =
        m.content.into_blocks().into_iter().filter(|block| assistant_block(block, sent)).collect();
    trim_thinking(&mut blocks);
    m.content = Content::Blocks(blocks);
    Meaning::Assistant { message: Arc::new(Message::Assistant(m)), sent }
}

/// Providers refuse a message that ends in thinking: it must lead to something.
pub(super) fn trim_thinking(blocks: &mut Vec<Block>) {
    while matches!(blocks.last(), Some(Block::Thinking(_))) {
        blocks.pop();
    }
}

fn result(m: ToolResultMessage) -> Meaning {
    let content = clean(m.content, user_block).unwrap_or_else(|| NO_OUTPUT.into());
    Meaning::Result(Arc::new(Message::ToolResult(ToolResultMessage { content, ..m })))
}

/// Content without what `block` drops; none when nothing is left.
fn clean(content: Content, block: fn(Block) -> Option<Block>) -> Option<Content> {
    match content {
        Content::Text(text) if text.trim().is_empty() => None,
        Content::Text(text) => Some(Content::Text(text)),
        Content::Blocks(blocks) => {
            let blocks: Vec<Block> = blocks.into_iter().filter_map(block).collect();
            (!blocks.is_empty()).then_some(Content::Blocks(blocks))
        }
    }
}

fn user_block(block: Block) -> Option<Block> {
    match block {
        Block::Text(text) if text.text.trim().is_empty() => None,
        Block::Text(text) => Some(Block::Text(text)),
        Block::Image(image) => Some(image::sendable(image)),
        Block::Thinking(_) | Block::ToolCall(_) | Block::Unknown(_) => None,
    }
}

fn assistant_block(block: &Block, sent: Sent) -> bool {
    let filled = |text: &Option<String>| text.as_ref().is_some_and(|s| !s.is_empty());
    match block {
        Block::Text(text) => !text.text.trim().is_empty(),
        // A signature comes with the end of its block: without one, an aborted block is unfinished.
        Block::Thinking(t) if sent == Sent::AnsweredCalls => filled(&t.thinking_signature),
        Block::Thinking(t) => !t.thinking.trim().is_empty() || filled(&t.thinking_signature),
        Block::ToolCall(_) => true,
        Block::Image(_) | Block::Unknown(_) => false,
    }
}

fn unsigned(block: &Block) -> Option<Block> {
    match block {
        Block::Text(text) => Some(Block::text(text.text.clone())),
        Block::ToolCall(call) => {
            let mut call = call.clone();
            call.thought_signature = None;
            Some(Block::ToolCall(call))
        }
        Block::Thinking(_) | Block::Image(_) | Block::Unknown(_) => None,
    }
}

fn bash_text(m: &BashExecution) -> String {
    let mut text = format!("I ran a command: `{}`\n", m.command);
    if m.output.trim().is_empty() {
        text.push_str(NO_OUTPUT);
    } else {
        let fence = if m.output.contains("```") { "~~~~" } else { "```" };
        text.push_str(&format!("{fence}\n{}\n{fence}", m.output.trim_end_matches('\n')));
    }
    match (m.cancelled, m.exit_code) {
        (true, _) => text.push_str("\nIt was cancelled."),
        (false, Some(code)) if code != 0 => text.push_str(&format!("\nIt exited with code {code}.")),
        (false, _) => {}
    }
    if m.truncated {
        match &m.full_output_path {
            Some(path) => text.push_str(&format!("\nThe output was cut; all of it is in {path}.")),
            None => text.push_str("\nThe output was cut."),
        }
    }
    text
}

fn content_of(message: &Message) -> Option<&Content> {
    match message {
        Message::User(m) => Some(&m.content),
        Message::Assistant(m) => Some(&m.content),
        Message::ToolResult(m) => Some(&m.content),
        Message::BashExecution(_) | Message::Unknown => None,
    }
}

fn timestamp_of(message: &Message) -> u64 {
    match message {
        Message::User(m) => m.timestamp,
        Message::Assistant(m) => m.timestamp,
        Message::ToolResult(m) => m.timestamp,
        Message::BashExecution(m) => m.timestamp,
        Message::Unknown => 0,
    }
}

pub(super) fn with_content(message: &Message, content: Content) -> Message {
    match message {
        Message::User(m) => Message::User(UserMessage { content, typed: m.typed.clone(), timestamp: m.timestamp }),
        Message::Assistant(m) => Message::Assistant(AssistantMessage { content, ..without_content(m) }),
        Message::ToolResult(m) => Message::ToolResult(ToolResultMessage { content, ..without_result_content(m) }),
        Message::BashExecution(_) | Message::Unknown => message.clone(),
    }
}

/// All but the content, which may be large: it is about to be replaced.
pub(super) fn without_content(m: &AssistantMessage) -> AssistantMessage {
    AssistantMessage {
        content: Content::default(),
        api: m.api.clone(),
        provider: m.provider.clone(),
        model: m.model.clone(),
        usage: m.usage,
        stop_reason: m.stop_reason,
        error_message: m.error_message.clone(),
        timestamp: m.timestamp,
    }
}

pub(super) fn without_result_content(m: &ToolResultMessage) -> ToolResultMessage {
    ToolResultMessage {
        tool_call_id: m.tool_call_id.clone(),
        tool_name: m.tool_name.clone(),
        content: Content::default(),
        details: m.details.clone(),
        is_error: m.is_error,
        timestamp: m.timestamp,
    }
}

/// All tokens of a call that its provider reported.
pub(super) fn reported(usage: &Usage) -> u64 {
    let sum =
        usage.input.saturating_add(usage.output).saturating_add(usage.cache_read).saturating_add(usage.cache_write);
    sum.max(usage.total_tokens)
}
