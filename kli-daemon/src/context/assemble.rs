//! From a window to the messages of a request: valid by construction, whatever the branch holds.
//!
//! Every tool call has exactly one result right after its reply, in call order; no result is without its call; ids
//! are unique; no text is blank; the first message is the user's. What needs no change is shared, not copied.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use kli_protocol::api::{ModelInfo, Warning};
use kli_protocol::record::{AssistantMessage, Block, Content, Message, ToolCallBlock, ToolResultMessage, UserMessage};

use super::estimate;
use super::item::{Item, Sent, reported, trim_thinking, with_content, without_content, without_result_content};
use super::window::Window;

/// The stored result of a call that a crash cut off, and the sent one of a call that has none.
pub const INTERRUPTED_RESULT: &str =
    "Interrupted: no result was stored. The call may have run in part or in full; look before you repeat it.";
/// The stored result of a call that a person aborted.
pub const ABORTED_RESULT: &str = "Aborted by the user. The call may have run in part.";
/// The stored result of a call whose turn had not come when a person aborted.
pub const NOT_BEGUN_RESULT: &str = "Not run: the user aborted before it began.";
/// The result of a call in a reply that its length limit cut off.
pub const NOT_RUN_RESULT: &str =
    "Not run: the reply that made this call was cut off by its length limit. Make the call again, with less in it.";

const BEGINNING_LOST: &str = "[The beginning of this conversation is not available.]";

/// The part of a model's window that one tool result may take up, and all results of one reply together: the
/// newest ones cannot be compacted away.
const RESULT_SHARE: (u64, u64) = (2, 5);
const RESULTS_SHARE: (u64, u64) = (3, 5);

/// A provider that reports less than this part of our own estimate did not count: some servers say 0, or count
/// only what their cache did not hold.
const LEAST_REPORTED: u64 = 3;

/// The messages of the next request.
#[derive(Clone, Debug, Default)]
pub struct Assembled {
    pub messages: Vec<Arc<Message>>,
    /// The estimate of each message.
    pub sizes: Vec<u64>,
    /// The last message whose reported usage still holds, and that usage: all tokens up to and including it.
    pub anchor: Option<(usize, u64)>,
    pub warnings: Vec<Warning>,
}

impl Assembled {
    /// Tokens of the whole request; `overhead` is the estimate of system prompt and tools
    /// ([`estimate::overhead`]), which reported usage includes.
    pub fn tokens(&self, overhead: u64) -> u64 {
        let (from, base) = match self.anchor {
            Some((at, usage)) => (at + 1, usage),
            None => (0, overhead),
        };
        self.sizes.iter().skip(from).fold(base, |sum, size| sum.saturating_add(*size))
    }

    /// Nothing for the model to answer: the run is continued after a whole or an aborted reply.
    pub fn ends_in_reply(&self) -> bool {
        matches!(self.messages.last().map(Arc::as_ref), Some(Message::Assistant(_)))
    }
}

/// What a request ends with when there is no prompt and the last message is a reply: many providers refuse to
/// go on from a reply. Sent, never stored.
pub fn continuation() -> Arc<Message> {
    Arc::new(Message::User(UserMessage { content: "Continue where you left off.".into(), ..UserMessage::default() }))
}

/// The messages that the window gives for `model`.
pub fn assemble(window: &Window, model: &ModelInfo) -> Assembled {
    let mut out = Out {
        model,
        images: model.input.is_empty() || model.input.iter().any(|kind| kind == "image"),
        ids: HashSet::new(),
        tokens: 0,
        done: Assembled { warnings: window.warnings().to_vec(), ..Assembled::default() },
    };
    if let Some(message) = window.summary().and_then(|summary| summary.message.as_ref()) {
        out.push(Arc::clone(message), estimate::message(message));
    }
    let barrier = window.usage_barrier();
    for step in steps(window.items()) {
        match step {
            Step::User(item) => out.user(item),
            Step::Reply { at, item, results } => {
                let usage_counts = at >= barrier;
                out.reply(item, &results, usage_counts);
            }
        }
    }
    out.done
}

/// What is sent, in order: results are with their replies.
enum Step<'a> {
    User(&'a Item),
    Reply {
        at: usize,
        item: &'a Item,
        /// For each call of the reply.
        results: Vec<Option<&'a Item>>,
    },
}

fn steps(items: &[Arc<Item>]) -> Vec<Step<'_>> {
    let mut steps: Vec<Step> = Vec::with_capacity(items.len());
    // The last reply that made a call of that id; none: its results are not sent.
    let mut callers: HashMap<&str, Option<usize>> = HashMap::new();
    for (at, item) in items.iter().enumerate() {
        if let Some((reply, sent)) = item.assistant() {
            let step = (sent != Sent::Never).then_some(steps.len());
            callers.extend(reply.content.tool_calls().map(|call| (call.id.as_str(), step)));
            if step.is_some() {
                let results = reply.content.tool_calls().map(|_| None).collect();
                steps.push(Step::Reply { at, item, results });
            }
        } else if let Some(result) = item.result() {
            let caller = callers.get(result.tool_call_id.as_str()).copied().flatten();
            if let Some(Step::Reply { item: reply, results, .. }) = caller.and_then(|at| steps.get_mut(at)) {
                // The first result of a call counts; two calls of one reply may share an id.
                let calls = reply.assistant().into_iter().flat_map(|(reply, _)| reply.content.tool_calls());
                let free = calls.zip(results).find(|(call, slot)| call.id == result.tool_call_id && slot.is_none());
                if let Some((_, slot)) = free {
                    *slot = Some(item);
                }
            }
        } else if item.message().is_some() {
            steps.push(Step::User(item));
        }
    }
    steps
}

struct Out<'a> {
    model: &'a ModelInfo,
    images: bool,
    /// Call ids that are taken.
    ids: HashSet<Cow<'a, str>>,
    /// Of all messages so far.
    tokens: u64,
    done: Assembled,
}

impl<'a> Out<'a> {
    fn push(&mut self, message: Arc<Message>, size: u64) {
        if self.done.messages.is_empty() && !matches!(*message, Message::User(_)) {
            let lost = Message::User(UserMessage { content: BEGINNING_LOST.into(), ..UserMessage::default() });
            let size = estimate::message(&lost);
            self.tokens = self.tokens.saturating_add(size);
            self.done.sizes.push(size);
            self.done.messages.push(Arc::new(lost));
        }
        self.tokens = self.tokens.saturating_add(size);
        self.done.messages.push(message);
        self.done.sizes.push(size);
    }

    fn user(&mut self, item: &Item) {
        if let Some(message) = self.imaged(item) {
            self.push(Arc::clone(message), self.size(item, message));
        }
    }

    /// The cached estimate, unless the message lost its images.
    fn size(&self, item: &Item, message: &Arc<Message>) -> u64 {
        let as_read = self.images || item.message().is_some_and(|own| Arc::ptr_eq(own, message));
        if as_read { item.tokens() } else { estimate::message(message) }
    }

    fn imaged<'i>(&self, item: &'i Item) -> Option<&'i Arc<Message>> {
        if self.images { item.message() } else { item.without_images() }
    }

    fn reply(&mut self, item: &'a Item, results: &[Option<&'a Item>], usage_counts: bool) {
        let Some((reply, sent)) = item.assistant() else { return };
        let own = reply.provider == self.model.provider && reply.model == self.model.model_id;
        let message = if own { item.message() } else { item.for_other_model() };
        let Some(message) = message else { return };
        let Message::Assistant(shown) = &**message else { return };
        let calls: Vec<Call<'a>> = reply
            .content
            .tool_calls()
            .zip(results)
            .map(|(call, result)| {
                let sent = sent != Sent::AnsweredCalls || result.is_some();
                let id = if sent { self.unique(&call.id, &item.id) } else { Cow::default() };
                Call { call, sent, id, name: tool_name(&call.name), result: *result }
            })
            .collect();
        let message = if calls.iter().all(Call::is_as_stored) {
            if shown.content.blocks().is_empty() {
                return;
            }
            Arc::clone(message)
        } else {
            let blocks = replaced(shown, &calls);
            if blocks.is_empty() {
                return;
            }
            let content = Content::Blocks(blocks);
            Arc::new(Message::Assistant(AssistantMessage { content, ..without_content(shown) }))
        };
        self.push(message, item.tokens());
        let usage = reported(&reply.usage);
        let counted = usage > 0 && usage.saturating_mul(LEAST_REPORTED) >= self.tokens;
        if usage_counts && sent != Sent::AnsweredCalls && counted {
            self.done.anchor = Some((self.done.messages.len() - 1, usage));
        }
        let most = self.most_of_result(&calls);
        for call in calls.into_iter().filter(|call| call.sent) {
            self.result(call, sent, reply.timestamp, most);
        }
    }

    /// Tokens that each result of a reply may take: those that take less leave the rest to the others.
    fn most_of_result(&self, calls: &[Call]) -> u64 {
        let share = |(part, of): (u64, u64)| self.model.context_window.saturating_mul(part) / of;
        let mut left = share(RESULTS_SHARE);
        if left == 0 {
            return u64::MAX;
        }
        let mut sizes: Vec<u64> = calls.iter().filter_map(|call| call.result).map(Item::tokens).collect();
        sizes.sort_unstable();
        let mut count = sizes.len() as u64;
        for size in sizes {
            let even = left / count.max(1);
            if size > even {
                return even.min(share(RESULT_SHARE));
            }
            left -= size;
            count -= 1;
        }
        share(RESULT_SHARE)
    }

    fn result(&mut self, call: Call<'a>, sent: Sent, timestamp: u64, most: u64) {
        let stored = call.result.and_then(|item| Some((item, self.imaged(item)?)));
        let Some((item, message)) = stored else {
            let text = if sent == Sent::CallsNotRun { NOT_RUN_RESULT } else { INTERRUPTED_RESULT };
            let result = Message::ToolResult(ToolResultMessage {
                tool_call_id: call.id.into_owned(),
                tool_name: call.name.into_owned(),
                content: text.into(),
                details: None,
                is_error: true,
                timestamp,
            });
            let size = estimate::message(&result);
            return self.push(Arc::new(result), size);
        };
        let Message::ToolResult(result) = &**message else { return };
        let mut message = Arc::clone(message);
        let mut size = self.size(item, &message);
        if result.tool_call_id != call.id || result.tool_name != call.name {
            message = Arc::new(Message::ToolResult(ToolResultMessage {
                tool_call_id: call.id.into_owned(),
                tool_name: call.name.into_owned(),
                content: result.content.clone(),
                ..without_result_content(result)
            }));
        }
        if size > most {
            message = Arc::new(cut(&message, most));
            size = estimate::message(&message);
        }
        self.push(message, size);
    }

    /// The id, or one made from it that no call before has: the same in each request, since it depends on the entry.
    fn unique(&mut self, id: &'a str, entry: &str) -> Cow<'a, str> {
        let mut unique = Cow::Borrowed(id);
        let mut n = 1;
        while unique.is_empty() || self.ids.contains(&unique) {
            unique = Cow::Owned(if n == 1 { format!("{id}_{entry}") } else { format!("{id}_{entry}_{n}") });
            n += 1;
        }
        self.ids.insert(unique.clone());
        unique
    }
}

struct Call<'a> {
    call: &'a ToolCallBlock,
    sent: bool,
    id: Cow<'a, str>,
    name: Cow<'a, str>,
    result: Option<&'a Item>,
}

impl Call<'_> {
    fn is_as_stored(&self) -> bool {
        self.sent && self.id == self.call.id && self.name == self.call.name
    }
}

/// The blocks of a reply with its calls as they are sent.
fn replaced(reply: &AssistantMessage, calls: &[Call]) -> Vec<Block> {
    let mut calls = calls.iter();
    let blocks = reply.content.blocks().iter().filter_map(|block| match block {
        Block::ToolCall(call) => {
            let sent = calls.next().filter(|call| call.sent)?;
            let (id, name) = (sent.id.clone().into_owned(), sent.name.clone().into_owned());
            Some(Block::ToolCall(ToolCallBlock { id, name, ..call.clone() }))
        }
        other => Some(other.clone()),
    });
    let mut blocks: Vec<Block> = blocks.collect();
    trim_thinking(&mut blocks);
    blocks
}

/// A name that every provider takes; what a model made up may be anything.
fn tool_name(name: &str) -> Cow<'_, str> {
    let legal = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !name.is_empty() && name.len() <= 64 && name.chars().all(legal) {
        return Cow::Borrowed(name);
    }
    let cleaned: String = name.chars().map(|c| if legal(c) { c } else { '_' }).take(64).collect();
    Cow::Owned(if cleaned.is_empty() { "unknown".to_owned() } else { cleaned })
}

/// A result that takes no more than about `most` tokens: of each text its beginning and its end.
fn cut(message: &Message, most: u64) -> Message {
    let Message::ToolResult(result) = message else { return message.clone() };
    let mut left = most;
    let mut blocks = Vec::new();
    for block in result.content.clone().into_blocks() {
        let size = estimate::block(&block);
        if size <= left {
            left -= size;
            blocks.push(block);
            continue;
        }
        match block {
            Block::Text(text) if left > 0 => blocks.push(Block::text(middle_cut(&text.text, size, left))),
            _ => blocks.push(Block::text("[left out: too large for this model]")),
        }
        left = 0;
    }
    with_content(message, Content::Blocks(blocks))
}

/// The text with its middle left out, so that of `tokens` about `most` stay.
pub(super) fn middle_cut(text: &str, tokens: u64, most: u64) -> String {
    let keep = u64::try_from(text.len()).unwrap_or(u64::MAX).saturating_mul(most) / tokens.max(1);
    let half = usize::try_from(keep / 2).unwrap_or(usize::MAX);
    if half.saturating_mul(2) >= text.len() {
        return text.to_owned();
    }
    let head = text.get(..text.floor_char_boundary(half)).unwrap_or_default();
    let tail = text.get(text.ceil_char_boundary(text.len() - half)..).unwrap_or_default();
    let gone = text.len() - head.len() - tail.len();
    format!("{head}\n[… {gone} bytes left out: too long for this model's context …]\n{tail}")
}
