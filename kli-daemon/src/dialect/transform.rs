//! Messages of a session into turns that any model API takes: the part that all formats share.
//!
//! Which calls have which results was settled in [`crate::context`]. Here: tool call ids that the API accepts,
//! unique and paired; thinking only for the model that thought it; images only for a model that sees them; no
//! blank text, no empty message. The outcome for a message depends only on those before it, so that a request
//! repeats the bytes of the one before.

use std::borrow::Cow;
use std::collections::{HashSet, VecDeque};

use kli_protocol::api::ModelInfo;
use kli_protocol::record::{
    AssistantMessage, BashExecution, Block, Content, ImageBlock, Message, ThinkingBlock, ToolCallBlock,
    ToolResultMessage,
};

use super::{Api, Request};

/// One message, ready to be written down.
#[derive(Debug, PartialEq)]
pub enum Turn<'a> {
    User(Vec<Part<'a>>),
    Assistant(Said<'a>),
    /// The results of the calls of the assistant turn before.
    Results(Vec<Returned<'a>>),
}

#[derive(Debug, PartialEq)]
pub enum Part<'a> {
    Text(Cow<'a, str>),
    Image(&'a ImageBlock),
}

/// An assistant message: never empty.
#[derive(Debug, PartialEq)]
pub struct Said<'a> {
    pub pieces: Vec<Piece<'a>>,
    /// This very model said it, over this API.
    pub own: bool,
}

#[derive(Debug, PartialEq)]
pub enum Piece<'a> {
    Text { text: &'a str, signature: Option<&'a str> },
    Thinking(&'a ThinkingBlock),
    Call { id: Cow<'a, str>, call: &'a ToolCallBlock },
}

/// A tool result: its text is never empty.
#[derive(Debug, PartialEq)]
pub struct Returned<'a> {
    pub id: Cow<'a, str>,
    pub name: &'a str,
    pub parts: Vec<Part<'a>>,
    pub is_error: bool,
}

impl Returned<'_> {
    /// The text parts as one.
    pub fn text(&self) -> Cow<'_, str> {
        let mut texts = self.parts.iter().filter_map(|part| match part {
            Part::Text(text) => Some(text.as_ref()),
            Part::Image(_) => None,
        });
        let first = texts.next().unwrap_or_default();
        texts.fold(Cow::Borrowed(first), |all, text| Cow::Owned(format!("{all}\n{text}")))
    }
}

/// What an API allows as a tool call id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdRule {
    /// `[A-Za-z0-9_-]`, at most so many; but what the model itself made is kept as it is.
    Plain { max: usize },
    /// `[A-Za-z0-9_-]`, at most so many, whoever made it.
    Strict { max: usize },
    /// Exactly nine letters and digits.
    NineAlphanumerics,
}

const NO_IMAGES: &str = "(an image was here, which this model cannot see)";
const GO_ON: &str = "Go on where you were cut off.";
const NO_OUTPUT: &str = "(no output)";
const OWN_ID_MAX: usize = 256;

pub fn turns<'a>(request: &'a Request, api: Api, rule: IdRule) -> Vec<Turn<'a>> {
    let images = request.model.input.iter().any(|kind| kind == "image");
    let mut ids = Ids { rule, used: HashSet::new(), open: VecDeque::new() };
    let mut turns: Vec<Turn<'a>> = Vec::with_capacity(request.messages.len());
    for message in &request.messages {
        match message.as_ref() {
            Message::User(user) => {
                let parts = parts_of(&user.content, images);
                if !parts.is_empty() {
                    turns.push(Turn::User(parts));
                }
            }
            Message::Assistant(assistant) => {
                let own = is_own(assistant, &request.model, api);
                let pieces = pieces_of(assistant, own, &mut ids);
                // Thinking without what it led to is refused, and useless.
                if pieces.iter().any(|piece| !matches!(piece, Piece::Thinking(_))) {
                    turns.push(Turn::Assistant(Said { pieces, own }));
                }
            }
            Message::ToolResult(result) => {
                let Some((id, name)) = ids.take(&result.tool_call_id) else { continue };
                let returned = returned(id, name, result, images);
                match turns.last_mut() {
                    Some(Turn::Results(results)) => results.push(returned),
                    _ => turns.push(Turn::Results(vec![returned])),
                }
            }
            Message::BashExecution(bash) if bash.exclude_from_context != Some(true) => {
                turns.push(Turn::User(vec![Part::Text(Cow::Owned(bash_text(bash)))]));
            }
            Message::BashExecution(_) | Message::Unknown => {}
        }
    }
    // A run that goes on after an abort: not every API lets a request end with the model's own words.
    if let Some(Turn::Assistant(_)) = turns.last() {
        turns.push(Turn::User(vec![Part::Text(Cow::Borrowed(GO_ON))]));
    }
    turns
}

/// What a person ran, as the model reads it.
fn bash_text(bash: &BashExecution) -> String {
    let output = if bash.output.trim().is_empty() { NO_OUTPUT } else { bash.output.trim_end() };
    let end = match (bash.cancelled, bash.exit_code) {
        (true, _) => "\n(cancelled)".to_owned(),
        (false, Some(code)) if code != 0 => format!("\n(exit code {code})"),
        _ => String::new(),
    };
    format!("Ran `{}`\n```\n{output}\n```{end}", bash.command)
}

fn is_own(message: &AssistantMessage, model: &ModelInfo, api: Api) -> bool {
    message.provider == model.provider && message.model == model.model_id && api.is_called(&message.api)
}

fn parts_of<'a>(content: &'a Content, images: bool) -> Vec<Part<'a>> {
    let text = |text: &'a str| (!text.trim().is_empty()).then_some(Part::Text(Cow::Borrowed(text)));
    match content {
        Content::Text(whole) => text(whole).into_iter().collect(),
        Content::Blocks(blocks) => {
            let parts = blocks.iter().filter_map(|block| match block {
                Block::Text(block) => text(&block.text),
                Block::Image(image) if images && !image.data.is_empty() => Some(Part::Image(image)),
                Block::Image(_) => Some(Part::Text(Cow::Borrowed(NO_IMAGES))),
                Block::Thinking(_) | Block::ToolCall(_) | Block::Unknown(_) => None,
            });
            parts.collect()
        }
    }
}

fn pieces_of<'a>(message: &'a AssistantMessage, own: bool, ids: &mut Ids<'a>) -> Vec<Piece<'a>> {
    ids.open.clear();
    match &message.content {
        Content::Text(text) if text.trim().is_empty() => Vec::new(),
        Content::Text(text) => vec![Piece::Text { text, signature: None }],
        Content::Blocks(blocks) => {
            let pieces = blocks.iter().filter_map(|block| match block {
                Block::Text(block) if !block.text.trim().is_empty() => {
                    let signature = block.text_signature.as_deref().filter(|_| own);
                    Some(Piece::Text { text: &block.text, signature })
                }
                Block::Thinking(block) if own => Some(Piece::Thinking(block)),
                Block::ToolCall(call) => Some(Piece::Call { id: ids.give(call, own), call }),
                _ => None,
            });
            pieces.collect()
        }
    }
}

fn returned<'a>(id: Cow<'a, str>, name: &'a str, result: &'a ToolResultMessage, images: bool) -> Returned<'a> {
    let mut parts = parts_of(&result.content, images);
    if !parts.iter().any(|part| matches!(part, Part::Text(_))) {
        let note = if parts.is_empty() { NO_OUTPUT } else { "(an image)" };
        parts.insert(0, Part::Text(Cow::Borrowed(note)));
    }
    Returned { id, name, parts, is_error: result.is_error }
}

/// Hands out ids for one request.
struct Ids<'a> {
    rule: IdRule,
    used: HashSet<Cow<'a, str>>,
    /// The calls of the last assistant message that have no result yet.
    open: VecDeque<Open<'a>>,
}

struct Open<'a> {
    stored: &'a str,
    sent: Cow<'a, str>,
    name: &'a str,
}

impl<'a> Ids<'a> {
    fn give(&mut self, call: &'a ToolCallBlock, own: bool) -> Cow<'a, str> {
        let stored = call.id.as_str();
        let mut id = self.shape(stored, own);
        let mut n = 1u32;
        // Some providers begin again at `call_0` in each turn.
        while self.used.contains(&id) {
            n += 1;
            id = Cow::Owned(self.numbered(stored, own, n));
        }
        self.used.insert(id.clone());
        self.open.push_back(Open { stored, sent: id.clone(), name: &call.name });
        id
    }

    /// The id and the name under which the call of a result was sent.
    fn take(&mut self, stored: &str) -> Option<(Cow<'a, str>, &'a str)> {
        let place = self.open.iter().position(|open| open.stored == stored)?;
        self.open.remove(place).map(|open| (open.sent, open.name))
    }

    fn shape(&self, stored: &'a str, own: bool) -> Cow<'a, str> {
        match self.rule {
            IdRule::Plain { .. } if own && !stored.is_empty() && stored.len() <= OWN_ID_MAX => Cow::Borrowed(stored),
            IdRule::Plain { max } | IdRule::Strict { max } => {
                let id = plain(stored);
                // A cut could make two ids equal, which `give` mends, but a hash is steadier.
                if id.is_empty() {
                    Cow::Borrowed("call")
                } else if id.len() > max {
                    let keep: String = id.chars().take(max.saturating_sub(10)).collect();
                    Cow::Owned(format!("{keep}_{:09x}", hash(stored) & 0xf_ffff_ffff))
                } else {
                    id
                }
            }
            IdRule::NineAlphanumerics => {
                if stored.len() == 9 && stored.bytes().all(|b| b.is_ascii_alphanumeric()) {
                    Cow::Borrowed(stored)
                } else {
                    Cow::Owned(nine(hash(stored)))
                }
            }
        }
    }

    fn numbered(&self, stored: &'a str, own: bool, n: u32) -> String {
        match self.rule {
            IdRule::NineAlphanumerics => nine(hash(&format!("{stored}\n{n}"))),
            IdRule::Plain { max } | IdRule::Strict { max } => {
                let end = format!("_{n}");
                let id = self.shape(stored, own);
                let keep: String = plain(&id).chars().take(max.saturating_sub(end.len())).collect();
                format!("{keep}{end}")
            }
        }
    }
}

/// The part before a `|` (pi stores two ids of the Responses API in one), other characters as `_`.
fn plain(stored: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let first = stored.split('|').next().unwrap_or_default();
    match first.chars().all(is_plain) {
        true => Cow::Borrowed(first),
        false => Cow::Owned(first.chars().map(|c| if is_plain(c) { c } else { '_' }).collect()),
    }
}

/// FNV-1a: the same on every machine and in every version, since ids must not change between requests.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}

fn nine(mut number: u64) -> String {
    const ALPHABET: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let digits = (0..9).map(|_| {
        let digit = ALPHABET.get((number % 36) as usize).copied().unwrap_or(b'0');
        number /= 36;
        char::from(digit)
    });
    digits.collect()
}

/// The output limit to ask for. Servers that count the reply into the window refuse one that reaches beyond it.
pub fn max_tokens(request: &Request) -> Option<u64> {
    let max = request.max_tokens.unwrap_or(request.model.max_output);
    if max == 0 {
        return None;
    }
    let window = request.model.context_window;
    let room = window.saturating_sub(rough_tokens(request));
    Some(if window > 0 && max > room { room.max(1_024).min(max) } else { max })
}

/// An estimate of the tokens in a request, for bounds only.
pub fn rough_tokens(request: &Request) -> u64 {
    let content = |content: &Content| match content {
        Content::Text(text) => text.len(),
        Content::Blocks(blocks) => blocks
            .iter()
            .map(|block| match block {
                Block::Text(block) => block.text.len(),
                Block::Image(_) => 6_000,
                Block::Thinking(block) => block.thinking.len(),
                Block::ToolCall(call) => call.arguments.values().map(|v| v.as_str().map_or(16, str::len)).sum(),
                Block::Unknown(_) => 0,
            })
            .sum(),
    };
    let messages = request.messages.iter().map(|message| match message.as_ref() {
        Message::User(user) => content(&user.content),
        Message::Assistant(assistant) => content(&assistant.content),
        Message::ToolResult(result) => content(&result.content),
        Message::BashExecution(bash) => bash.output.len() + bash.command.len(),
        Message::Unknown => 0,
    });
    let bytes = request.system_prompt.len() + messages.sum::<usize>() + request.tools.len() * 400;
    u64::try_from(bytes / 4).unwrap_or(u64::MAX)
}
