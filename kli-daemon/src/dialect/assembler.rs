//! Puts a reply together, block by block, in the shape of the session file, and says what is new as it comes.
//!
//! By construction the message has no blank block, each tool call has a name and an id of its own, and the index
//! in an event is the index in the message.

use std::sync::Arc;

use kli_protocol::api::{ModelInfo, RunErrorKind};
use kli_protocol::record::{
    AssistantMessage, Block, Content, StopReason, TextBlock, ThinkingBlock, ToolCallBlock, Usage,
};

use super::{Failure, StreamEvent, arguments};

/// What a reply needs to know before its first byte.
#[derive(Clone, Debug)]
pub struct Start {
    /// The name of the wire format.
    pub api: &'static str,
    pub model: Arc<ModelInfo>,
    /// Unix ms.
    pub timestamp: u64,
    /// Random: made-up tool call ids come from it.
    pub seed: u64,
}

/// Where a decoder's block lands; nothing is made of it before something worth keeping comes.
#[derive(Debug, Default)]
pub struct Slot {
    block: Option<usize>,
    /// White space that is kept only if text follows.
    held: String,
}

impl Slot {
    pub fn is_open(&self) -> bool {
        self.block.is_some()
    }
}

/// A tool call's place in the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallSlot(usize);

#[derive(Debug)]
enum Part {
    Text(TextBlock),
    Thinking(ThinkingBlock),
    Call(Call),
}

#[derive(Debug, Default)]
struct Call {
    id: String,
    name: String,
    arguments: String,
    /// How much of `arguments` was told.
    told: usize,
    announced: bool,
    /// The provider said that no more comes.
    closed: bool,
    signature: Option<String>,
}

#[derive(Debug)]
pub struct Assembler {
    start: Start,
    parts: Vec<Part>,
    events: Vec<StreamEvent>,
    usage: Usage,
    stop: StopReason,
    refusal: Option<String>,
    bytes: usize,
    made_up: usize,
}

impl Assembler {
    pub fn new(start: Start) -> Assembler {
        Assembler {
            start,
            parts: Vec::new(),
            events: Vec::new(),
            usage: Usage::default(),
            stop: StopReason::Stop,
            refusal: None,
            bytes: 0,
            made_up: 0,
        }
    }

    /// What came since the last time.
    pub fn take_events(&mut self) -> Vec<StreamEvent> {
        std::mem::take(&mut self.events)
    }

    /// How much the reply holds by now.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts what a decoder keeps beside the reply.
    pub fn grow(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    pub fn text(&mut self, slot: &mut Slot, delta: &str) {
        let Some((index, delta)) = self.place(slot, delta, || Part::Text(TextBlock::default())) else { return };
        if let Some(Part::Text(block)) = self.parts.get_mut(index) {
            block.text.push_str(&delta);
            self.events.push(StreamEvent::Text { index: number(index), delta });
        }
    }

    pub fn thinking(&mut self, slot: &mut Slot, delta: &str) {
        let Some((index, delta)) = self.place(slot, delta, || Part::Thinking(ThinkingBlock::default())) else { return };
        if let Some(Part::Thinking(block)) = self.parts.get_mut(index) {
            block.thinking.push_str(&delta);
            self.events.push(StreamEvent::Thinking { index: number(index), delta });
        }
    }

    /// Appends to what the provider wants back with this thinking; opens the block even without text.
    pub fn thinking_signature(&mut self, slot: &mut Slot, signature: &str) {
        if signature.is_empty() {
            return;
        }
        self.bytes += signature.len();
        let held = std::mem::take(&mut slot.held);
        let index = self.open(slot, || Part::Thinking(ThinkingBlock::default()));
        if let Some(Part::Thinking(block)) = self.parts.get_mut(index) {
            if !held.is_empty() {
                // Blank, but signed as it is.
                block.thinking.push_str(&held);
                self.events.push(StreamEvent::Thinking { index: number(index), delta: held });
            }
            block.thinking_signature.get_or_insert_default().push_str(signature);
        }
    }

    /// Replaces what the provider wants back with this thinking, if there is any.
    pub fn set_thinking_signature(&mut self, slot: &Slot, signature: String) {
        if let Some(Part::Thinking(block)) = slot.block.and_then(|index| self.parts.get_mut(index)) {
            self.bytes += signature.len();
            block.thinking_signature = Some(signature);
        }
    }

    /// Thinking whose text the provider hid.
    pub fn redacted(&mut self, slot: &mut Slot, data: &str) {
        self.thinking_signature(slot, data);
        if let Some(Part::Thinking(block)) = slot.block.and_then(|index| self.parts.get_mut(index)) {
            block.redacted = Some(true);
        }
    }

    pub fn text_signature(&mut self, slot: &Slot, signature: &str) {
        if let Some(Part::Text(block)) = slot.block.and_then(|index| self.parts.get_mut(index)) {
            block.text_signature = Some(signature.to_owned());
        }
    }

    pub fn open_call(&mut self) -> CallSlot {
        self.parts.push(Part::Call(Call::default()));
        CallSlot(self.parts.len() - 1)
    }

    /// The id, once it is known; made unique in this reply. Only the first one counts.
    pub fn call_id(&mut self, slot: CallSlot, id: &str) {
        if id.is_empty() || self.call(slot).is_none_or(|call| !call.id.is_empty()) {
            return;
        }
        let mut unique = id.to_owned();
        let mut n = 1;
        while self.calls().any(|call| call.id == unique) {
            n += 1;
            unique = format!("{id}_{n}");
        }
        self.bytes += id.len();
        if let Some(call) = self.call_mut(slot) {
            call.id = unique;
        }
        self.tell(slot);
    }

    /// A piece of the name: the whole name again in each chunk, the name so far, or its next letters.
    pub fn call_name(&mut self, slot: CallSlot, piece: &str) {
        let Some(call) = self.call_mut(slot) else { return };
        if piece.is_empty() || call.name == piece || call.announced {
            return;
        }
        if piece.starts_with(call.name.as_str()) {
            call.name = piece.to_owned();
        } else {
            call.name.push_str(piece);
        }
        self.bytes += piece.len();
    }

    pub fn call_arguments(&mut self, slot: CallSlot, delta: &str) {
        let Some(call) = self.call_mut(slot) else { return };
        call.arguments.push_str(delta);
        self.bytes += delta.len();
        self.tell(slot);
    }

    /// The whole argument text, from an event that repeats what deltas told (or replaces them).
    pub fn set_call_arguments(&mut self, slot: CallSlot, whole: &str) {
        let Some(call) = self.call_mut(slot) else { return };
        match whole.strip_prefix(call.arguments.as_str()) {
            Some(rest) => {
                let rest = rest.to_owned();
                self.call_arguments(slot, &rest);
            }
            None if call.arguments.is_empty() || !whole.is_empty() => {
                call.arguments = whole.to_owned();
                call.told = call.told.min(call.arguments.len());
                while !call.arguments.is_char_boundary(call.told) {
                    call.told -= 1;
                }
            }
            None => {}
        }
    }

    pub fn call_signature(&mut self, slot: CallSlot, signature: &str) {
        if let Some(call) = self.call_mut(slot) {
            call.signature = Some(signature.to_owned());
        }
    }

    pub fn close_call(&mut self, slot: CallSlot) {
        if let Some(call) = self.call_mut(slot) {
            call.closed = true;
        }
    }

    /// The name and the argument text so far.
    pub fn call_so_far(&self, slot: CallSlot) -> (&str, &str) {
        self.call(slot).map(|call| (call.name.as_str(), call.arguments.as_str())).unwrap_or_default()
    }

    pub fn has_calls(&self) -> bool {
        self.calls().next().is_some()
    }

    /// Token counts; the price follows from the model.
    pub fn usage(&mut self, usage: Usage) {
        self.usage = usage;
    }

    pub fn usage_so_far(&self) -> Usage {
        self.usage
    }

    /// The output limit cut the reply off.
    pub fn cut_off(&mut self) {
        self.stop = StopReason::Length;
    }

    /// The provider will not go on; `why` is for a person.
    pub fn refused(&mut self, why: impl Into<String>) {
        self.refusal.get_or_insert(why.into());
    }

    /// The end of a whole reply: what is still untold, then the message.
    pub fn done(&mut self) -> Vec<StreamEvent> {
        for index in 0..self.parts.len() {
            self.settle(CallSlot(index));
        }
        let mut events = self.take_events();
        let stop = match (self.stop, self.has_calls()) {
            (StopReason::Length, _) => StopReason::Length,
            // Many servers say "stop" though there are calls: what is there counts.
            (_, true) if self.refusal.is_none() => StopReason::ToolUse,
            _ => StopReason::Stop,
        };
        let window = self.start.model.context_window;
        let read = self.usage.input.saturating_add(self.usage.cache_read);
        // Some servers cut the beginning off without a word, and answer to the rest; some have no room to answer.
        let no_room = stop == StopReason::Length && self.parts.is_empty() && read >= window / 100 * 99;
        if window > 0 && (read > window || no_room) {
            let what = format!("The conversation is too long for this model ({read} tokens, its window has {window}).");
            return self.fail(Failure::fatal(RunErrorKind::ContextOverflow, what), StopReason::Error, events);
        }
        let refusal = self.refusal.take();
        events.push(StreamEvent::Done(Box::new(self.message(stop, refusal, Calls::All))));
        events
    }

    /// The end of a reply that failed.
    pub fn failed(&mut self, failure: Failure, stop: StopReason) -> Vec<StreamEvent> {
        let events = self.take_events();
        self.fail(failure, stop, events)
    }

    fn fail(&mut self, failure: Failure, stop: StopReason, mut events: Vec<StreamEvent>) -> Vec<StreamEvent> {
        let error = (stop == StopReason::Error).then(|| failure.message.clone());
        let partial = Box::new(self.message(stop, error, Calls::Whole));
        events.push(StreamEvent::Failed { failure, partial });
        events
    }

    fn message(&mut self, stop_reason: StopReason, error_message: Option<String>, calls: Calls) -> AssistantMessage {
        let blocks = std::mem::take(&mut self.parts).into_iter().filter_map(|part| match part {
            Part::Text(block) => Some(Block::Text(block)),
            Part::Thinking(block) => Some(Block::Thinking(block)),
            Part::Call(call) => {
                let whole = !call.name.is_empty() && (call.closed || arguments::is_whole(&call.arguments));
                (calls == Calls::All || whole).then(|| {
                    Block::ToolCall(ToolCallBlock {
                        arguments: arguments::parse(&call.arguments),
                        id: call.id,
                        name: call.name,
                        thought_signature: call.signature,
                    })
                })
            }
        });
        let content = Content::Blocks(blocks.collect());
        AssistantMessage {
            content,
            api: self.start.api.to_owned(),
            provider: self.start.model.provider.clone(),
            model: self.start.model.model_id.clone(),
            usage: priced(self.usage, &self.start.model),
            stop_reason,
            error_message,
            timestamp: self.start.timestamp,
        }
    }

    /// Gives a call what it still lacks, and tells of it if nobody has heard.
    fn settle(&mut self, slot: CallSlot) {
        let Some(call) = self.call(slot) else { return };
        let (no_name, no_id) = (call.name.is_empty(), call.id.is_empty());
        if no_name {
            self.call_name(slot, "unnamed_tool");
        }
        if no_id {
            self.made_up += 1;
            let id = format!("call_{:012x}_{}", self.start.seed & 0xffff_ffff_ffff, self.made_up);
            self.call_id(slot, &id);
        }
        if let Some(call) = self.call_mut(slot) {
            call.closed = true;
        }
        self.tell(slot);
    }

    /// Tells the argument text that is new, once name and id are certain: the name is when arguments follow it.
    fn tell(&mut self, slot: CallSlot) {
        let Some(call) = self.call_mut(slot) else { return };
        if call.id.is_empty() || call.name.is_empty() {
            return;
        }
        let delta = call.arguments.get(call.told..).unwrap_or_default().to_owned();
        if delta.is_empty() && (call.announced || !call.closed) {
            return;
        }
        call.told = call.arguments.len();
        call.announced = true;
        let (id, name) = (call.id.clone(), call.name.clone());
        self.events.push(StreamEvent::ToolCall { index: number(slot.0), id, name, delta });
    }

    /// The block that `delta` goes to, and the text with the white space that was held back; none while there
    /// is nothing but white space.
    fn place(&mut self, slot: &mut Slot, delta: &str, make: fn() -> Part) -> Option<(usize, String)> {
        if delta.is_empty() {
            return None;
        }
        self.bytes += delta.len();
        let empty = match slot.block.and_then(|index| self.parts.get(index)) {
            Some(Part::Text(block)) => block.text.is_empty(),
            Some(Part::Thinking(block)) => block.thinking.is_empty(),
            _ => true,
        };
        if !empty {
            return slot.block.map(|index| (index, delta.to_owned()));
        }
        slot.held.push_str(delta);
        if slot.held.trim().is_empty() {
            return None;
        }
        let text = std::mem::take(&mut slot.held);
        Some((self.open(slot, make), text))
    }

    fn open(&mut self, slot: &mut Slot, make: fn() -> Part) -> usize {
        *slot.block.get_or_insert_with(|| {
            self.parts.push(make());
            self.parts.len() - 1
        })
    }

    fn calls(&self) -> impl Iterator<Item = &Call> {
        self.parts.iter().filter_map(|part| match part {
            Part::Call(call) => Some(call),
            _ => None,
        })
    }

    fn call(&self, slot: CallSlot) -> Option<&Call> {
        match self.parts.get(slot.0) {
            Some(Part::Call(call)) => Some(call),
            _ => None,
        }
    }

    fn call_mut(&mut self, slot: CallSlot) -> Option<&mut Call> {
        match self.parts.get_mut(slot.0) {
            Some(Part::Call(call)) => Some(call),
            _ => None,
        }
    }
}

/// Which tool calls a message keeps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Calls {
    All,
    /// Those that had come to their end when the reply broke off.
    Whole,
}

fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

/// `usage` with its total and its price.
pub fn priced(mut usage: Usage, model: &ModelInfo) -> Usage {
    let parts = [usage.input, usage.output, usage.cache_read, usage.cache_write];
    let sum = parts.into_iter().fold(0u64, u64::saturating_add);
    usage.total_tokens = usage.total_tokens.max(sum);
    // Exact up to 2^53 tokens.
    let price = |tokens: u64, per_million: f64| tokens as f64 * per_million / 1e6;
    usage.cost.input = price(usage.input, model.cost.input);
    usage.cost.output = price(usage.output, model.cost.output);
    usage.cost.cache_read = price(usage.cache_read, model.cost.cache_read);
    usage.cost.cache_write = price(usage.cache_write, model.cost.cache_write);
    usage.cost.total = usage.cost.input + usage.cost.output + usage.cost.cache_read + usage.cost.cache_write;
    usage
}
