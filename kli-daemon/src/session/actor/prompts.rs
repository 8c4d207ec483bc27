//! What a person says: prompts, steers, follow-ups; the queue, and keys that make a repeated call do nothing.

use std::collections::{BTreeMap, HashMap, VecDeque};

use kli_protocol::api::{Approvals, Behavior, EventBody, Image, ModelRef, PromptResult, Queue, Queued, RunOutcome};
use kli_protocol::record::{Block, Body, Content, Message, MessageBody, UserMessage};
use kli_protocol::{ApiError, ErrorKind};
use serde_json::Value;
use tokio::sync::oneshot;

use super::Actor;
use super::runs::RunStart;
use super::write::Draft;
use crate::session::api_error;

/// Texts that may wait in one session.
const MAX_QUEUED: usize = 100;

/// A prompt whose parameters were checked and whose images were read.
#[derive(Clone, Debug, Default)]
pub struct PromptOrder {
    pub text: String,
    /// What the person typed, when `text` is its expansion.
    pub typed: Option<String>,
    pub images: Vec<Block>,
    /// `@file`, `/name` and `/skill:name` in the text are to be expanded first.
    pub expand: bool,
    pub behavior: Option<Behavior>,
    pub approvals: Approvals,
    /// None: not looked at. Some(None): before the first entry.
    pub leaf_id: Option<Option<String>>,
    pub key: Option<String>,
    /// For this run only.
    pub model: Option<ModelRef>,
    pub options: BTreeMap<String, Value>,
    pub max_turns: Option<u32>,
}

/// What a prompt came to so far.
#[derive(Debug)]
pub struct Started {
    pub result: PromptResult,
    /// Answers when the run ends; none: it has, and the result says how.
    pub ended: Option<oneshot::Receiver<RunOutcome>>,
}

/// The answer to a prompt, which may have to wait for an abort to finish.
pub enum PromptAnswer {
    Now(Box<Result<Started, ApiError>>),
    Later(oneshot::Receiver<Result<Started, ApiError>>),
}

#[derive(Clone, Debug)]
struct Item {
    text: String,
    typed: Option<String>,
    images: Vec<Block>,
    key: Option<String>,
}

/// Texts that wait: steers enter at the next turn boundary, follow-ups when the run would end.
#[derive(Default)]
pub(super) struct Waiting {
    steer: VecDeque<Item>,
    follow_up: VecDeque<Item>,
    /// Prompts that came when the run was at its end or being aborted, and start the next one.
    deferred: Vec<(PromptOrder, oneshot::Sender<Result<Started, ApiError>>)>,
}

impl Waiting {
    pub fn shown(&self) -> Queue {
        let show = |items: &VecDeque<Item>| items.iter().map(Item::shown).collect();
        Queue { steer: show(&self.steer), follow_up: show(&self.follow_up) }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn len(&self) -> usize {
        self.steer.len() + self.follow_up.len() + self.deferred.len()
    }
}

impl Item {
    fn shown(&self) -> Queued {
        let images: Vec<_> = self.images.iter().filter_map(image_of).collect();
        Queued {
            text: self.typed.clone().unwrap_or_else(|| self.text.clone()),
            images: (!images.is_empty()).then_some(images),
        }
    }

    fn draft(self, now_ms: u64) -> Draft {
        user_draft(self.text, self.typed, self.images, self.key, now_ms)
    }
}

pub(super) fn image_of(block: &Block) -> Option<Image> {
    match block {
        Block::Image(image) => {
            Some(Image { data: Some(image.data.clone()), mime_type: Some(image.mime_type.clone()), path: None })
        }
        _ => None,
    }
}

fn user_draft(
    text: String,
    typed: Option<String>,
    images: Vec<Block>,
    idempotency_key: Option<String>,
    timestamp: u64,
) -> Draft {
    let mut blocks = vec![Block::text(text)];
    blocks.extend(images);
    let message = Message::User(UserMessage { content: Content::Blocks(blocks), typed, timestamp });
    Draft { id: None, body: Body::Message(MessageBody { message, idempotency_key }) }
}

/// Keys of texts that wait, and the run that they wait for; those of entries are the log's to know.
#[derive(Default)]
pub(super) struct Keys {
    queued: HashMap<String, String>,
    /// Of those that waited: the run in which they were said at last.
    said: VecDeque<(String, String)>,
}

/// Keys of texts that waited, whose run is remembered.
const MAX_SAID: usize = 1000;

/// What a call with a key came to before.
#[derive(Clone, Debug)]
enum Key {
    Queued { run_id: String },
    Entry(Said),
}

/// An entry, and in which run it was said; none: of an earlier daemon, or no prompt.
#[derive(Clone, Debug)]
struct Said {
    entry_id: String,
    run_id: Option<String>,
    queued: bool,
}

/// The run that a prompt begins: known from the entry alone, so that it is the same after a restart.
pub(super) fn run_id_of(entry_id: &str) -> String {
    format!("run_{entry_id}")
}

/// What another call made is no answer to this one.
pub(super) fn key_of_another(call: &str) -> ApiError {
    ApiError::invalid_params(format!("idempotencyKey: another call than `{call}` had it"))
}

impl Actor {
    pub fn prompt(&mut self, mut order: PromptOrder) -> PromptAnswer {
        if order.expand {
            self.expand(&mut order);
        }
        if let Some(known) = order.key.as_deref().and_then(|key| self.known_key(key)) {
            return PromptAnswer::Now(Box::new(self.answer_again(known)));
        }
        let ending = self.run.as_ref().is_some_and(|run| run.closed || run.cancel.is_cancelled())
            || self.work.as_ref().is_some_and(|work| work.cancel.is_cancelled());
        if ending && self.queue.len() < MAX_QUEUED {
            let (reply, answer) = oneshot::channel();
            self.queue.deferred.push((order, reply));
            return PromptAnswer::Later(answer);
        }
        PromptAnswer::Now(Box::new(self.prompt_now(order)))
    }

    /// What was typed is kept beside what it stands for.
    fn expand(&self, order: &mut PromptOrder) {
        order.expand = false;
        let work_dir = self.work_dir();
        let dir = std::path::Path::new(&work_dir);
        // Reads a few small files; the session waits for it as for its own records.
        let expanded = tokio::task::block_in_place(|| {
            let workspace = crate::workspace::Workspace::load(&self.deps.places(dir));
            crate::workspace::expand(&order.text, &workspace, &self.deps.places_for_context(dir))
        });
        let Some(typed) = expanded.typed else { return };
        order.text = expanded.content.text();
        order.typed = Some(typed);
        // A prompt that came back into an editor brings the picture that it mentions.
        for block in expanded.content.into_blocks() {
            if matches!(block, Block::Image(_)) && !order.images.contains(&block) {
                order.images.push(block);
            }
        }
    }

    fn prompt_now(&mut self, order: PromptOrder) -> Result<Started, ApiError> {
        self.catch_up()?;
        self.check_leaf(&order.leaf_id)?;
        if let Some(model) = &order.model {
            self.deps.models().find(&model.provider, &model.model_id)?;
        }
        if self.work.is_some() {
            return self.say_after_work(order);
        }
        match (&self.run, order.behavior) {
            (None, _) => self.start_prompt(order),
            (Some(_), Some(behavior)) => self.enqueue(order, behavior),
            (Some(run), None) if run.compacting => self.enqueue(order, Behavior::FollowUp),
            (Some(_), None) => Err(self.busy("prompt it with `behavior` steer or followUp, abort the run, or wait")),
        }
    }

    fn start_prompt(&mut self, order: PromptOrder) -> Result<Started, ApiError> {
        self.start_prompt_as(order, None)
    }

    /// A prompt that comes during a compaction or a summary: said afterwards.
    fn say_after_work(&mut self, order: PromptOrder) -> Result<Started, ApiError> {
        self.check_writable()?;
        self.check_room()?;
        let fresh = run_id_of(&self.log.new_id(self.deps.clock.as_ref()));
        let Some(work) = &mut self.work else { return Err(ApiError::internal("there is nothing to wait for")) };
        let run_id = work.next_run.get_or_insert(fresh).clone();
        let (waiter, ended) = oneshot::channel();
        work.waiters.push(waiter);
        let behavior = order.behavior.unwrap_or(Behavior::FollowUp);
        if let Some(key) = &order.key {
            self.keys.queued.insert(key.clone(), run_id.clone());
        }
        work.said.push((order, behavior));
        self.tell_queue();
        Ok(Started { result: PromptResult { run_id, queued: true, entry_id: None, outcome: None }, ended: Some(ended) })
    }

    /// Puts back what could not be said yet.
    pub(super) fn requeue(&mut self, order: PromptOrder, behavior: Behavior) {
        let item = Item { text: order.text, typed: order.typed, images: order.images, key: order.key };
        match behavior {
            Behavior::Steer => self.queue.steer.push_back(item),
            Behavior::FollowUp => self.queue.follow_up.push_back(item),
        }
    }

    fn check_room(&self) -> Result<(), ApiError> {
        let during_work = self.work.as_ref().map_or(0, |work| work.said.len());
        match self.queue.len() + during_work < MAX_QUEUED {
            true => Ok(()),
            false => Err(ApiError::limit(
                "maxQueued",
                MAX_QUEUED as u64,
                format!("{MAX_QUEUED} texts wait in this session already; wait for them, or use clearQueue."),
            )),
        }
    }

    /// What waits to be said, as a client sees it.
    pub(super) fn shown_queue(&self) -> Queue {
        let mut queue = self.queue.shown();
        for (order, behavior) in self.work.iter().flat_map(|work| &work.said) {
            let item =
                Item { text: order.text.clone(), typed: order.typed.clone(), images: order.images.clone(), key: None };
            match behavior {
                Behavior::Steer => queue.steer.push(item.shown()),
                Behavior::FollowUp => queue.follow_up.push(item.shown()),
            }
        }
        queue
    }

    /// `run_id`: the one that was promised, when the prompt waited.
    pub(super) fn start_prompt_as(&mut self, order: PromptOrder, run_id: Option<String>) -> Result<Started, ApiError> {
        self.check_writable()?;
        let model = order.model.clone().unwrap_or_else(|| self.branch.model.clone());
        self.deps.models().find(&model.provider, &model.model_id)?;
        let now_ms = self.deps.clock.now_ms();
        let mut drafts = self.open_call_drafts()?;
        // What was steered before and not yet said was said earlier than this prompt.
        let steered: Vec<_> = self.queue.steer.drain(..).collect();
        drafts.extend(steered.iter().cloned().map(|item| item.draft(now_ms)));
        let promised = run_id.is_some();
        let entry_id = run_id.as_deref().and_then(|id| id.strip_prefix("run_")).map(str::to_owned);
        let entry_id = entry_id.unwrap_or_else(|| self.log.new_id(self.deps.clock.as_ref()));
        let mut prompt = user_draft(order.text, order.typed, order.images, order.key.clone(), now_ms);
        prompt.id = Some(entry_id.clone());
        drafts.push(prompt);
        let written = match self.write(drafts) {
            Ok(written) => written,
            Err(error) => {
                self.queue.steer.extend(steered);
                return Err(error);
            }
        };
        let run_id = run_id_of(&entry_id);
        for item in &steered {
            self.key_said(item.key.as_deref(), &run_id);
        }
        match promised {
            true => self.key_said(order.key.as_deref(), &run_id),
            false => self.key_done(order.key.as_deref()),
        }
        self.deps.store.set_last(&self.log);
        let ended = self.start_run(RunStart {
            run_id: run_id.clone(),
            entry_id: Some(entry_id.clone()),
            approvals: order.approvals,
            model: order.model,
            options: order.options,
            max_turns: order.max_turns,
        });
        self.tell(written);
        if !steered.is_empty() {
            self.tell_queue();
        }
        let result = PromptResult { run_id, queued: false, entry_id: Some(entry_id), outcome: None };
        Ok(Started { result, ended: Some(ended) })
    }

    fn enqueue(&mut self, order: PromptOrder, behavior: Behavior) -> Result<Started, ApiError> {
        let Some(run_id) = self.run.as_ref().map(|run| run.id.clone()) else {
            return Err(ApiError::internal("there is no run to wait for"));
        };
        self.check_room()?;
        if let Some(key) = &order.key {
            self.keys.queued.insert(key.clone(), run_id.clone());
        }
        let item = Item { text: order.text, typed: order.typed, images: order.images, key: order.key };
        match behavior {
            Behavior::Steer => self.queue.steer.push_back(item),
            Behavior::FollowUp => self.queue.follow_up.push_back(item),
        }
        self.tell_queue();
        let ended = self.when_run_ends();
        Ok(Started { result: PromptResult { run_id, queued: true, entry_id: None, outcome: None }, ended })
    }

    /// Prompts that waited for the end of a run, now that it is over.
    pub(super) fn take_deferred(&mut self) {
        for (order, reply) in std::mem::take(&mut self.queue.deferred) {
            let known = order.key.as_deref().and_then(|key| self.known_key(key));
            let _ = reply.send(match known {
                Some(known) => self.answer_again(known),
                None => self.prompt_now(order),
            });
        }
    }

    /// Appends what was steered, all together. True if there was anything.
    pub(super) fn take_steered(&mut self) -> Result<bool, ApiError> {
        let items: Vec<_> = self.queue.steer.drain(..).collect();
        self.say(items, Behavior::Steer)
    }

    /// Appends the next follow-up. True if there was one.
    pub(super) fn take_follow_up(&mut self) -> Result<bool, ApiError> {
        let items: Vec<_> = self.queue.follow_up.pop_front().into_iter().collect();
        self.say(items, Behavior::FollowUp)
    }

    fn say(&mut self, items: Vec<Item>, from: Behavior) -> Result<bool, ApiError> {
        if items.is_empty() {
            return Ok(false);
        }
        let now_ms = self.deps.clock.now_ms();
        let run_id = self.run.as_ref().map(|run| run.id.clone()).unwrap_or_default();
        for (index, item) in items.iter().enumerate() {
            let mut draft = item.clone().draft(now_ms);
            let id = self.log.new_id(self.deps.clock.as_ref());
            draft.id = Some(id.clone());
            if let Err(error) = self.append(vec![draft]) {
                let queue = match from {
                    Behavior::Steer => &mut self.queue.steer,
                    Behavior::FollowUp => &mut self.queue.follow_up,
                };
                for unsaid in items.get(index..).unwrap_or_default().iter().rev() {
                    queue.push_front(unsaid.clone());
                }
                return Err(error);
            }
            self.key_said(item.key.as_deref(), &run_id);
        }
        self.tell_queue();
        Ok(true)
    }

    pub(super) fn anything_queued(&self) -> bool {
        !self.queue.steer.is_empty() || !self.queue.follow_up.is_empty()
    }

    pub fn clear_queue(&mut self) -> Queue {
        let taken = self.shown_queue();
        self.forget_said();
        for item in self.queue.steer.drain(..).chain(self.queue.follow_up.drain(..)) {
            if let Some(key) = item.key {
                self.keys.queued.remove(&key);
            }
        }
        if !taken.steer.is_empty() || !taken.follow_up.is_empty() {
            self.tell_queue();
        }
        taken
    }

    /// What was said during a compaction is taken back too; the run that was promised for it will not be.
    fn forget_said(&mut self) {
        let Some(work) = &mut self.work else { return };
        work.next_run = None;
        let (said, waiters) = (std::mem::take(&mut work.said), std::mem::take(&mut work.waiters));
        for (order, _) in said {
            if let Some(key) = order.key {
                self.keys.queued.remove(&key);
            }
        }
        for waiter in waiters {
            let _ =
                waiter.send(RunOutcome { stop_reason: kli_protocol::api::RunStop::Aborted, ..RunOutcome::default() });
        }
    }

    pub(super) fn tell_queue(&mut self) {
        let queue = self.shown_queue();
        self.publish(EventBody::QueueChanged { queue });
    }

    /// The leaf must be where the caller believes it is.
    pub(super) fn check_leaf(&self, believed: &Option<Option<String>>) -> Result<(), ApiError> {
        let Some(believed) = believed else { return Ok(()) };
        let tip = self.tip();
        let same = match believed {
            None => tip.is_none(),
            Some(id) => self.log.find(id).ok().is_some_and(|ix| Some(ix) == tip),
        };
        if same {
            return Ok(());
        }
        let leaf_id = self.tip_id();
        let at = leaf_id.clone().unwrap_or_else(|| "before the first entry".into());
        let message = format!("The leaf is elsewhere by now ({at}); look at the session again and repeat the call.");
        Err(ApiError::new(ErrorKind::LeafMoved, message).with("leafId", leaf_id))
    }

    pub(super) fn busy(&self, advice: &str) -> ApiError {
        let status = serde_json::to_value(*self.status.borrow()).unwrap_or_default();
        let said = status.as_str().unwrap_or("busy").to_owned();
        let error = ApiError::new(ErrorKind::SessionBusy, format!("The session is busy ({said}): {advice}."))
            .with("status", status);
        match &self.run {
            Some(run) => error.with("runId", run.id.clone()),
            None => error,
        }
    }

    /// A text with a key waits no more: its entry has the key.
    pub(super) fn key_done(&mut self, key: Option<&str>) {
        if let Some(key) = key {
            self.keys.queued.remove(key);
        }
    }

    /// The same for a text that waited, and the run in which it was said at last.
    fn key_said(&mut self, key: Option<&str>, run_id: &str) {
        self.key_done(key);
        if let Some(key) = key {
            self.keys.said.push_back((key.to_owned(), run_id.to_owned()));
            while self.keys.said.len() > MAX_SAID {
                self.keys.said.pop_front();
            }
        }
    }

    /// The entry that a call with this key made, if it was carried out before.
    pub(super) fn entry_of_key(&self, key: &str) -> Option<String> {
        match self.known_key(key)? {
            Key::Entry(said) => Some(said.entry_id),
            Key::Queued { .. } => None,
        }
    }

    fn known_key(&self, key: &str) -> Option<Key> {
        if let Some(run_id) = self.keys.queued.get(key) {
            return Some(Key::Queued { run_id: run_id.clone() });
        }
        let entry_id = self.log.find_key(key).map(|ix| self.log.id(ix))?;
        let run_id = self.keys.said.iter().rev().find(|(said, _)| said == key).map(|(_, run_id)| run_id.clone());
        Some(Key::Entry(Said { entry_id, queued: run_id.is_some(), run_id }))
    }

    /// What was written under a key, for the call that is made again.
    pub(super) fn body_of_key(&self, entry_id: &str) -> Result<Body, ApiError> {
        Ok(self.log.find(entry_id).and_then(|ix| self.log.record(ix)).map_err(api_error)?.body)
    }

    fn answer_again(&mut self, key: Key) -> Result<Started, ApiError> {
        let (run_id, queued, entry_id) = match key {
            Key::Queued { run_id } => (run_id, true, None),
            Key::Entry(Said { entry_id, run_id, queued }) => {
                match self.body_of_key(&entry_id)? {
                    Body::Message(MessageBody { message: Message::User(_), .. }) => {}
                    _ => return Err(key_of_another("prompt")),
                }
                (run_id.unwrap_or_else(|| run_id_of(&entry_id)), queued, Some(entry_id))
            }
        };
        let mut result = PromptResult { run_id: run_id.clone(), queued, entry_id: entry_id.clone(), outcome: None };
        if self.run.as_ref().is_some_and(|run| run.id == run_id) {
            return Ok(Started { result, ended: self.when_run_ends() });
        }
        result.outcome = self.outcome_of(&run_id).or_else(|| Some(self.outcome_from_tree(entry_id.as_deref())));
        Ok(Started { result, ended: None })
    }

    /// How a run of an earlier daemon ended, as far as the tree tells.
    pub(super) fn outcome_from_tree(&self, entry_id: Option<&str>) -> RunOutcome {
        entry_id
            .and_then(|id| crate::session::branch::outcome(&self.log, id))
            .unwrap_or_else(|| RunOutcome { leaf_id: self.tip_id(), ..crate::session::branch::interrupted() })
    }

    /// Error results for calls that a crash left open at the tip: they go in front of the next entry.
    pub(super) fn open_call_drafts(&self) -> Result<Vec<Draft>, ApiError> {
        let now_ms = self.deps.clock.now_ms();
        let open = self.with_end(crate::context::Window::open_calls).map_err(api_error)?;
        let results = open.iter().map(|call| crate::session::branch::interrupted_result(call, now_ms));
        Ok(results.map(|result| Body::message(result).into()).collect())
    }
}
