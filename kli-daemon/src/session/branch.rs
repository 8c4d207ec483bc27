//! What a branch means: its messages, model and options, how full the window is, how its last run ended.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use kli_protocol::api::{
    ContextUse, Image, ModelInfo, ModelRef, RunError, RunErrorKind, RunOutcome, RunStop, ToolDescription, Warning,
};
use kli_protocol::record::{Block, Body, Content, Custom, Kind, Message, Record, StopReason, ToolCallBlock, Usage};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::context::{self, Assembled, Item, Settings, Window, assemble};
use crate::provider::{Provider, Request};
use crate::store::{Ix, Log, Result, Role};
use crate::tool::Tool;

/// In bytes of its lines: more than the largest windows hold.
const LONG: u64 = 8 << 20;
/// Of a line, about.
const BYTES_PER_TOKEN: u64 = 5;

/// A record on the way from its branch's last appended entry that is farther than this is read anew.
const MAX_CATCH_UP: usize = 4096;

/// Model and options of a branch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BranchSettings {
    pub model: ModelRef,
    pub options: BTreeMap<String, Value>,
}

/// What the records say; where they say nothing, the opening records of the file, then the defaults.
pub(super) fn settings(
    log: &Log,
    tip: Option<Ix>,
    default_model: ModelRef,
    default_options: &BTreeMap<String, Value>,
) -> BranchSettings {
    let mut settings = Settings::default();
    // A long session has thousands of compactions, and their bodies say nothing here.
    let on_branch = log.settings_up(tip).filter(|node| node.kind != Kind::Compaction).map(|node| node.ix);
    let chain = on_branch.chain(log.opening_settings().into_iter().rev());
    for ix in chain {
        if let Ok(record) = log.record(ix) {
            settings.add_older(&record);
        }
    }
    for (id, value) in default_options {
        settings.options.entry(id.clone()).or_insert_with(|| value.clone());
    }
    BranchSettings { model: settings.model.unwrap_or(default_model), options: settings.options }
}

/// The part of a branch that counts for its context, kept from turn to turn: a turn reads only what is new.
#[derive(Default)]
pub(super) struct Cache {
    known: Option<(Option<Ix>, Window)>,
    /// Of the last branch that was asked for: bytes since its last compaction.
    bytes: Option<(Option<Ix>, u64)>,
}

impl Cache {
    /// Nothing has to be read for this place.
    pub fn is_at(&self, tip: Option<Ix>) -> bool {
        self.known.as_ref().is_some_and(|(at, _)| *at == tip)
    }

    /// Another program appended: what is known may not hold any more.
    pub fn forget(&mut self) {
        *self = Cache::default();
    }

    /// Takes in records that were just appended one on the other, so that they need not be read back.
    pub fn appended(&mut self, log: &Log, records: Vec<Record>, ixs: &[Ix]) {
        let Some((at, window)) = &mut self.known else { return };
        for (record, ix) in records.into_iter().zip(ixs) {
            if record.body.kind().is_mark() {
                continue;
            }
            // Another branch: it is read when it is asked for.
            if log.parent(*ix) != *at {
                return;
            }
            window.push(Arc::new(Item::from(record)));
            *at = Some(*ix);
        }
    }

    pub fn window(&mut self, log: &Log, tip: Option<Ix>) -> Result<&Window> {
        let caught_up = match &mut self.known {
            Some((at, window)) => catch_up(log, at, window, tip)?,
            None => false,
        };
        if !caught_up {
            self.known = Some((tip, read(log, tip)?));
        }
        match &self.known {
            Some((_, window)) => Ok(window),
            None => Err(crate::store::StoreError::Other("the window was not read".into())),
        }
    }

    /// The tokens of a branch that has grown so long without a compaction that it is not read only to count them; none
    /// of any other.
    pub fn rough_tokens(&mut self, log: &Log, tip: Option<Ix>, model: &ModelInfo) -> Option<u64> {
        if matches!(&self.known, Some((at, _)) if *at == tip) {
            return None;
        }
        let known = self.bytes.filter(|(at, _)| *at == tip).map(|(_, bytes)| bytes);
        let bytes = known.unwrap_or_else(|| {
            let since = log.up(tip).take_while(|node| node.kind != Kind::Compaction);
            since.map(|node| u64::from(node.len)).sum()
        });
        self.bytes = Some((tip, bytes));
        if bytes <= LONG {
            return None;
        }
        let rough = bytes / BYTES_PER_TOKEN;
        let end = self.look_at_end(log, tip, |end| messages(end, model)).ok()?;
        let reported = end.anchor.map(|_| end.tokens(0));
        // What was reported of a part of it is no measure.
        Some(reported.filter(|tokens| tokens.saturating_mul(2) > rough).unwrap_or(rough))
    }

    /// Looks at the end of the branch: at least from the last reply on whose usage was reported. Where the window is
    /// not known that is read alone, and not the whole of a branch that was never compacted.
    pub fn look_at_end<R>(&mut self, log: &Log, tip: Option<Ix>, look: impl FnOnce(&Window) -> R) -> Result<R> {
        let known = match &mut self.known {
            Some((at, window)) => catch_up(log, at, window, tip)?,
            None => false,
        };
        if !known && let Some(end) = read_end(log, tip)? {
            return Ok(look(&end));
        }
        self.window(log, tip).map(look)
    }
}

pub(super) fn item(log: &Log, ix: Ix) -> Result<Arc<Item>> {
    Ok(Arc::new(Item::from(log.record(ix)?)))
}

/// Adds what was appended after `at`. False: the branch is another one, or too far ahead.
fn catch_up(log: &Log, at: &mut Option<Ix>, window: &mut Window, tip: Option<Ix>) -> Result<bool> {
    if *at == tip {
        return Ok(true);
    }
    let mut new = vec![];
    for node in log.up(tip).take(MAX_CATCH_UP) {
        if Some(node.ix) == *at {
            for ix in new.into_iter().rev() {
                window.push(item(log, ix)?);
            }
            *at = tip;
            return Ok(true);
        }
        new.push(node.ix);
    }
    Ok(false)
}

/// The window of any branch.
pub(super) fn read(log: &Log, tip: Option<Ix>) -> Result<Window> {
    let aside = tip.map(|tip| log.edits_aside(tip)).unwrap_or_default();
    let up = log.up(tip).flat_map(|node| {
        let hanging = aside.iter().rev().filter(move |(on, _)| *on == node.ix).map(|(_, edit)| *edit);
        hanging.chain([node.ix])
    });
    let up = up.map(|ix| item(log, ix));
    let on_branch = |id: &str| match (log.find_whole(id), tip) {
        (Some(ix), Some(tip)) => log.is_ancestor(ix, tip),
        _ => false,
    };
    Window::read(up, on_branch)
}

/// What is odd about the part of a branch that counts, without reading it.
pub(super) fn window_warnings(log: &Log, tip: Option<Ix>) -> Vec<Warning> {
    let compactions = log.settings_up(tip).filter(|node| node.kind == Kind::Compaction);
    let read = compactions.filter_map(|node| Some((node.ix, item(log, node.ix).ok()?)));
    let Some((at, last)) = read.into_iter().find(|(_, item)| item.is_boundary()) else { return vec![] };
    let above = |id: &str| log.find_whole(id).is_some_and(|ix| ix != at && log.is_ancestor(ix, at));
    context::boundary_warning(&last, above).into_iter().collect()
}

/// The end of a branch from the last reply with usage on; none where that is far, or a compaction or an edit decides
/// what counts.
fn read_end(log: &Log, tip: Option<Ix>) -> Result<Option<Window>> {
    let mut items = vec![];
    if tip.is_some_and(|tip| !log.edits_aside(tip).is_empty()) {
        return Ok(None);
    }
    for node in log.up(tip).take(MAX_CATCH_UP) {
        if matches!(node.kind, Kind::Compaction | Kind::ContextEdit) {
            break;
        }
        let item = item(log, node.ix)?;
        let ends = item.tells_usage();
        items.push(item);
        if ends {
            items.reverse();
            return Ok(Some(Window::of_end(items)));
        }
    }
    Ok(None)
}

/// Everything of a request but its messages.
#[derive(Clone)]
pub(super) struct Shape {
    pub model: Arc<ModelInfo>,
    pub provider: Arc<dyn Provider>,
    pub options: BTreeMap<String, Value>,
    pub setting: Setting,
}

/// What is the same whichever model is asked.
#[derive(Clone)]
pub(super) struct Setting {
    pub tools: Vec<Arc<dyn Tool>>,
    pub descriptions: Arc<[ToolDescription]>,
    pub work_dir: PathBuf,
    pub system_prompt: Arc<str>,
    /// Tokens of system prompt and tools.
    pub overhead: u64,
}

impl Shape {
    /// Tokens of the request that these messages make.
    pub fn tokens(&self, assembled: &Assembled) -> u64 {
        assembled.tokens(self.setting.overhead)
    }

    pub fn request(&self, assembled: Assembled, cache_key: String) -> Request {
        let tokens = self.tokens(&assembled);
        let in_reply = assembled.ends_in_reply();
        let mut messages = assembled.messages;
        if in_reply {
            messages.push(context::continuation());
        }
        let max_tokens = context::estimate::output_limit(self.model.context_window, self.model.max_output, tokens);
        Request {
            model: self.model.clone(),
            system_prompt: self.setting.system_prompt.clone(),
            tools: self.setting.descriptions.clone(),
            messages,
            options: self.options.clone(),
            max_tokens,
            cache_key,
        }
    }
}

pub(super) fn messages(window: &Window, model: &ModelInfo) -> Assembled {
    assemble(window, model)
}

pub(super) fn context_use(tokens: u64, window: u64) -> ContextUse {
    let percent = match window {
        0 => 0.0,
        window => (tokens as f64 * 1000.0 / window as f64).round() / 10.0,
    };
    ContextUse { tokens, window, percent }
}

/// A prompt as it goes back into an editor.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PromptText {
    pub text: String,
    pub images: Option<Vec<Image>>,
}

pub(super) fn prompt_text(log: &Log, ix: Ix) -> Result<PromptText> {
    log.record(ix).map(|record| prompt_of(&record))
}

pub(super) fn prompt_of(record: &Record) -> PromptText {
    let Body::Message(body) = &record.body else { return PromptText::default() };
    let Message::User(user) = &body.message else { return PromptText::default() };
    let images: Vec<Image> = match &user.content {
        Content::Text(_) => vec![],
        Content::Blocks(blocks) => blocks.iter().filter_map(image).collect(),
    };
    PromptText {
        text: user.typed.clone().unwrap_or_else(|| user.content.text()),
        images: (!images.is_empty()).then_some(images),
    }
}

fn image(block: &Block) -> Option<Image> {
    match block {
        Block::Image(image) => {
            Some(Image { data: Some(image.data.clone()), mime_type: Some(image.mime_type.clone()), path: None })
        }
        _ => None,
    }
}

/// The newest prompt of a branch.
pub(super) fn last_prompt(log: &Log, tip: Option<Ix>) -> Option<Ix> {
    log.up(tip).find(|node| node.role == Some(Role::User)).map(|node| node.ix)
}

/// A mark in the file about a run, where the tree alone does not show its beginning (it had no prompt) or its end
/// (it ended where a crash could have cut it off).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RunMark {
    pub run_id: String,
    /// None: it begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<RunStop>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<RunError>,
}

impl RunMark {
    const TYPE: &str = "kli.run";

    pub fn body(&self) -> Body {
        let data = serde_json::to_value(self).unwrap_or_default();
        Body::Custom(Custom { custom_type: RunMark::TYPE.into(), data, idempotency_key: None })
    }

    /// Those after a record, in file order, each with the place where the leaf was.
    fn after(log: &Log, ix: Ix) -> impl Iterator<Item = (Option<Ix>, RunMark)> + '_ {
        log.records_after(Some(ix)).filter(|node| node.kind == Kind::Custom).filter_map(|node| {
            let Body::Custom(custom) = log.record(node.ix).ok()?.body else { return None };
            let mark = serde_json::from_value(custom.data).ok().filter(|_| custom.custom_type == RunMark::TYPE)?;
            Some((log.parent(node.ix), mark))
        })
    }
}

/// Of a branch that looks unfinished: whether a crash left it so. Not when the leaf was moved or forked there, nor
/// when the run that ended there said so.
pub(super) fn was_cut_off(log: &Log) -> bool {
    let Some(leaf) = log.leaf() else { return false };
    match RunMark::after(log, leaf).filter(|(at, _)| *at == Some(leaf)).last() {
        Some((_, mark)) => mark.stop_reason.is_none(),
        None => {
            let shared = log.last_shared().is_some_and(|last| leaf <= last);
            !shared && !log.records_after(Some(leaf)).any(|node| node.kind == Kind::Leaf)
        }
    }
}

/// How the run of a prompt ended, as far as the file tells: by the last reply below it on the branch of the leaf,
/// unless the run said more. None: the prompt is not there.
pub(super) fn outcome(log: &Log, entry_id: &str) -> Option<RunOutcome> {
    let prompt = log.find(entry_id).ok()?;
    let leaf = log.leaf().filter(|leaf| log.is_ancestor(prompt, *leaf));
    // Off the branch the tree does not say which of the paths below it was the run's: the newest is.
    let end = leaf.or_else(|| log.entries_before(log.end()).map(|n| n.ix).find(|ix| log.is_ancestor(prompt, *ix)));
    let mut below: Vec<Ix> = log.up(end).map(|node| node.ix).take_while(|ix| *ix != prompt).collect();
    below.reverse();
    // The run ends where the next prompt that was not steered into it begins; a reply that calls no tool is an end.
    let mut last = None;
    let mut usage = Usage::default();
    for ix in below {
        let Ok(record) = log.record(ix) else { continue };
        let Body::Message(body) = record.body else { continue };
        if let Message::Assistant(reply) = body.message {
            usage += reply.usage;
            let ends = reply.stop_reason != StopReason::ToolUse && reply.content.tool_calls().next().is_none();
            last = Some((ix, reply));
            if ends {
                break;
            }
        }
    }
    let run_id = format!("run_{entry_id}");
    let noted = RunMark::after(log, prompt).find(|(_, mark)| mark.run_id == run_id);
    let text = last.as_ref().map(|(_, reply)| reply.content.text()).unwrap_or_default();
    if let Some((at, RunMark { stop_reason: Some(stop_reason), error, .. })) = noted {
        return Some(RunOutcome { stop_reason, text, leaf_id: at.map(|ix| log.id(ix)), error, usage });
    }
    let Some((ix, reply)) = last else {
        return Some(RunOutcome { leaf_id: end.map(|ix| log.id(ix)), ..interrupted() });
    };
    let stop_reason = match reply.stop_reason {
        StopReason::Stop if reply.error_message.is_some() => RunStop::Refused,
        StopReason::Stop => RunStop::Done,
        StopReason::Length => RunStop::Length,
        StopReason::Aborted => RunStop::Aborted,
        StopReason::Error => RunStop::Error,
        StopReason::ToolUse => return Some(RunOutcome { leaf_id: Some(log.id(ix)), usage, ..interrupted() }),
    };
    let kind = if stop_reason == RunStop::Refused { RunErrorKind::BadRequest } else { RunErrorKind::Internal };
    let error = reply.error_message.filter(|_| matches!(stop_reason, RunStop::Error | RunStop::Refused));
    let error = error.map(|message| RunError { kind, message, retryable: false });
    Some(RunOutcome { stop_reason, text, leaf_id: Some(log.id(ix)), error, usage })
}

/// The outcome of a run that a crash cut off.
pub(super) fn interrupted() -> RunOutcome {
    RunOutcome {
        stop_reason: RunStop::Error,
        error: Some(RunError {
            kind: RunErrorKind::Interrupted,
            message: "The daemon ended while this ran; continueRun takes it up.".into(),
            retryable: true,
        }),
        ..RunOutcome::default()
    }
}

/// The stored result of a call that a crash left open.
pub(super) fn interrupted_result(call: &ToolCallBlock, timestamp: u64) -> Message {
    Message::ToolResult(kli_protocol::record::ToolResultMessage {
        tool_call_id: call.id.clone(),
        tool_name: call.name.clone(),
        content: Content::Blocks(vec![Block::text(context::assemble::INTERRUPTED_RESULT)]),
        details: None,
        is_error: true,
        timestamp,
    })
}
