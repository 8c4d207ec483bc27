//! One session's records, and the questions that need no walk.

mod bodies;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use kli_protocol::record::Header;

use super::medium::{Budget, Medium};
use super::scan::{Progress, Shape, Warnings};
use super::sidecar::{self, Indexer, Leftover};
use super::sync::{Job, Syncer};
use super::{Durability, Facts, Ix, Node, Ownership, Result, StoreError, names};
use crate::tree::{Above, Id, Index, NONE, Row, line, link};

/// One session's records.
pub struct Log {
    pub(super) id: String,
    /// An option only so that `drop` can take it.
    pub(super) base: Option<BaseLink>,
    /// The base's records that come before its own.
    pub(super) start: u32,
    /// Whether it has, or is to have, a file; and whether that is locked by itself.
    pub(super) home: Home,
    pub(super) shared: Arc<Shared>,
    /// A lock and no message, since forks and readers look at it from many threads while its actor appends. Held
    /// for index work; across I/O only while a file is read for the first time, or lines that another program
    /// appended are read in.
    pub(super) state: RwLock<State>,
    /// A mutex, since next to the actor's appends a fork may have to bring an old file into the new format. Held
    /// across an append's I/O; readers never take it.
    pub(super) writer: Mutex<Writer>,
    /// Forks refer to its records: they must not be tied anew.
    pub(super) forked: AtomicBool,
    /// Itself, for the thread that writes indexes.
    pub(super) me: OnceLock<Weak<Log>>,
    prompts: Prompts,
}

/// The shared prefix.
pub(super) struct BaseLink {
    pub log: Arc<Log>,
    pub entry: Ix,
    /// A base further down; with `hops` they make any base of a long chain reachable in logarithmic time.
    skip: Option<Arc<Log>>,
    hops: u32,
}

impl BaseLink {
    pub fn new(log: Arc<Log>, entry: Ix) -> BaseLink {
        let hops = |log: &Log| log.base.as_ref().map_or(0, |base| base.hops);
        let over = |log: &Arc<Log>| log.base.as_ref().map(|base| base.skip.clone().unwrap_or_else(|| base.log.clone()));
        // Skew-binary jumps, as between the rows of the tree.
        let skip = over(&log).and_then(|near| {
            let far = over(&near)?;
            (hops(&log) - hops(&near) == hops(&near) - hops(&far)).then_some(far)
        });
        BaseLink { hops: hops(&log) + 1, log, entry, skip }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    Memory,
    /// In the session directory.
    Dir,
    /// A file elsewhere, under its own lock.
    Outside,
}

/// What all logs of a store have in common.
pub(super) struct Shared {
    pub syncer: Syncer,
    pub indexer: Indexer,
    pub durability: Durability,
    pub budget: Arc<Budget>,
    /// None: nobody else can come to write in the session directory.
    pub owner: OnceLock<Arc<dyn Ownership>>,
}

impl Shared {
    /// Must be called before something is written to the directory.
    pub fn own_dir(&self) -> Result<()> {
        self.owner.get().map_or(Ok(()), |owner| owner.take()).map_err(StoreError::Other)
    }

    /// Whether what can be done without may be written there.
    pub fn owns_dir(&self) -> bool {
        self.owner.get().is_none_or(|owner| owner.is_taken())
    }
}

pub(super) struct State {
    pub index: Index,
    /// None: nothing was written yet.
    pub place: Option<Placed>,
    /// Where the file will be.
    pub planned: Option<PathBuf>,
    /// The name that the opening write will give it.
    pub opening_name: Option<String>,
    pub header: Header,
    pub shape: Shape,
    pub work_dir: String,
    pub parent_session: Option<String>,
    pub progress: Progress,
    /// Bytes of the file as we left or last saw it, a torn tail included.
    pub known: u64,
    pub warnings: Warnings,
    pub read_only: Option<String>,
    pub newer: bool,
    /// Where the records begin.
    pub head_end: u64,
    /// Own records that `.idx` holds, and whether the index came from there.
    pub indexed: usize,
    /// Own records when `.idx` was last asked for.
    pub asked: usize,
    /// Rises with every change.
    pub version: u64,
    pub from_idx: bool,
}

#[derive(Clone)]
pub(super) struct Placed {
    pub medium: Arc<dyn Medium>,
    pub job: Arc<Job>,
    pub path: Option<PathBuf>,
}

impl Placed {
    pub fn new(medium: Arc<dyn Medium>, path: Option<PathBuf>) -> Placed {
        Placed { job: Job::new(medium.clone()), medium, path }
    }
}

#[derive(Default)]
pub(super) struct Writer {
    /// A failed append left bytes that could not be cut off: where they begin, and at most end.
    pub garbage: Option<(u64, u64)>,
    /// Foreign records taken in and not yet told to the actor.
    pub taken_in: Vec<Ix>,
}

/// Texts of prompts, read once.
#[derive(Default)]
struct Prompts {
    /// Of the shared prefix, which does not change: first and last.
    shared: OnceLock<(Option<Ix>, Option<Ix>)>,
    /// A mutex, since any thread may ask for facts; the texts are a cache.
    texts: Mutex<Vec<(Ix, Option<String>)>>,
}

/// What a new log starts from.
pub(super) struct Start {
    pub header: Header,
    pub home: Home,
    pub work_dir: String,
    pub parent_session: Option<String>,
    pub base: Option<(Arc<Log>, Ix, u32)>,
}

impl Log {
    pub(super) fn new(start: Start, shared: Arc<Shared>) -> Log {
        let (base, first) = match start.base {
            Some((log, entry, first)) => (Some(BaseLink::new(log, entry)), first),
            None => (None, 0),
        };
        let index = Index::new(first, base.as_ref().map(|base| base.entry));
        Log {
            id: start.header.id.clone(),
            start: first,
            home: start.home,
            shared,
            state: RwLock::new(State {
                index,
                place: None,
                planned: None,
                opening_name: None,
                header: start.header,
                shape: Shape::V3,
                work_dir: start.work_dir,
                parent_session: start.parent_session,
                progress: Progress::default(),
                known: 0,
                warnings: Warnings::default(),
                read_only: None,
                newer: false,
                head_end: 0,
                indexed: 0,
                asked: 0,
                version: 0,
                from_idx: false,
            }),
            base,
            writer: Mutex::default(),
            forked: AtomicBool::new(false),
            me: OnceLock::new(),
            prompts: Prompts::default(),
        }
    }

    pub fn session_id(&self) -> &str {
        &self.id
    }

    pub fn path(&self) -> Option<PathBuf> {
        self.read().place.as_ref().and_then(|place| place.path.clone())
    }

    /// Whether the file is of one of pi's first formats: the first append writes all of it anew elsewhere.
    pub fn is_legacy(&self) -> bool {
        self.read().shape != Shape::V3
    }

    pub fn facts(&self) -> Facts {
        let (shared_first, shared_last) = self.shared_prompts();
        let (tally, mut facts) = {
            let state = self.read();
            let tally = state.index.tally().clone();
            let mut warnings = state.warnings.list.clone();
            if state.warnings.more > 0 {
                let message = format!("{} more warnings", state.warnings.more);
                warnings.push(kli_protocol::api::Warning { kind: "more".into(), message, ..Default::default() });
            }
            let facts = Facts {
                id: self.id.clone(),
                work_dir: state.work_dir.clone(),
                created_at: state.header.timestamp.clone(),
                mode: state.header.mode,
                parent_session: state.parent_session.clone(),
                persisted: self.home != Home::Memory,
                path: state.place.as_ref().and_then(|place| place.path.clone()),
                read_only: state.read_only.clone(),
                newer_version: state.newer,
                warnings,
                ..Facts::default()
            };
            let name = match state.index.is_empty() {
                true => state.opening_name.clone(),
                false => None,
            };
            (tally, Facts { name, ..facts })
        };
        let prefix = self.base.as_ref().and_then(|base| self.row(base.entry.0));
        let over = |own: u64, shared: Option<u32>| Some(own + u64::from(shared.unwrap_or_default()));
        facts.entry_count = over(tally.nodes, prefix.map(|row| row.nodes));
        facts.message_count = over(tally.messages, prefix.map(|row| row.messages));
        facts.fork_entry_id = self.base.as_ref().map(|base| self.id(base.entry));
        facts.first_prompt = self.prompt(shared_first.or(tally.first_prompt));
        facts.last_prompt = self.prompt(tally.last_prompt.or(shared_last));
        if self.base.is_some() {
            facts.fork_prompt = self.prompt(tally.first_prompt);
        }
        facts.updated_at = match tally.updated_at.is_empty() {
            true => facts.created_at.clone(),
            false => tally.updated_at,
        };
        facts.name = tally.name.or(facts.name);
        facts.archived = tally.archived.unwrap_or_default();
        facts.mode = tally.mode.or(facts.mode);
        facts.work_dir = tally.work_dir.unwrap_or(facts.work_dir);
        facts.usage = tally.usage;
        facts
    }

    /// How it is called until its first record is written, which bears the name.
    pub fn set_opening_name(&self, name: Option<String>) {
        self.write().opening_name = name;
    }

    /// No record was written yet (nor, where it is to have one, its file).
    pub fn is_empty(&self) -> bool {
        let state = self.read();
        self.base.is_none() && state.index.is_empty() && state.place.as_ref().is_none_or(|p| p.path.is_none())
    }

    /// Whether its file in the session directory alone brings it back.
    pub fn can_be_reopened(&self) -> bool {
        self.home == Home::Dir && self.read().place.as_ref().is_some_and(|place| place.path.is_some())
    }

    /// Where the next entry attaches; none: before the first.
    pub fn leaf(&self) -> Option<Ix> {
        self.read().index.leaf()
    }

    /// Records that the session can count up to: own and base's.
    pub fn end(&self) -> Ix {
        Ix(self.read().index.end())
    }

    /// The last record of the base that this session counts; none: all records are its own.
    pub fn last_shared(&self) -> Option<Ix> {
        self.read().index.start().checked_sub(1).map(Ix)
    }

    pub fn node(&self, ix: Ix) -> Option<Node> {
        Some(self.row(ix.0)?.node(ix.0))
    }

    /// Empty for a place beyond the end.
    pub fn id(&self, ix: Ix) -> String {
        self.owner(ix.0).read().index.id(ix.0).unwrap_or_default()
    }

    /// By the whole id, or a unique beginning of 4 characters or more. Sees only what is visible: own records,
    /// and of the base the shared branch with the marks on it that count.
    pub fn find(&self, id: &str) -> Result<Ix> {
        if let Some(ix) = self.find_whole(id) {
            return Ok(ix);
        }
        if id.chars().count() < 4 {
            return Err(StoreError::EntryNotFound(id.to_owned()));
        }
        let mut found = Vec::new();
        for log in self.chain() {
            let fits = log.read().index.find_beginning(id, usize::MAX);
            found.extend(fits.into_iter().map(Ix).filter(|ix| self.sees_of(log, *ix)));
        }
        found.sort_unstable();
        match found.as_slice() {
            [] => Err(StoreError::EntryNotFound(id.to_owned())),
            [one] => Ok(*one),
            several => {
                let candidates = several.iter().take(20).map(|ix| self.id(*ix)).collect();
                Err(StoreError::AmbiguousEntry { text: id.to_owned(), candidates })
            }
        }
    }

    /// A visible record by its whole id.
    pub fn find_whole(&self, id: &str) -> Option<Ix> {
        self.chain().find_map(|log| {
            let ix = log.read().index.find(id).map(Ix)?;
            self.sees_of(log, ix).then_some(ix)
        })
    }

    /// The entry that was written with this `idempotencyKey`, an own one.
    pub fn find_key(&self, key: &str) -> Option<Ix> {
        self.read().index.find_key(key)
    }

    /// The entry above, marks passed over.
    pub fn parent(&self, ix: Ix) -> Option<Ix> {
        link(self.row(ix.0)?.tree_parent)
    }

    /// The entries below (of none: the roots), marks passed over, in file order.
    pub fn children(&self, ix: Option<Ix>) -> Vec<Ix> {
        let own = || self.read().index.children(ix.map(|ix| ix.0));
        let Some(base) = &self.base else { return own() };
        let mut children = Vec::new();
        // Of the base only the branch is shared: at most one child of each entry.
        match ix {
            Some(ix) if ix.0 >= self.start => {}
            Some(ix) if !self.is_ancestor(ix, base.entry) => return children,
            _ => children.extend(self.next_towards(ix, base.entry)),
        }
        children.extend(own());
        children
    }

    /// The first settings of the session's own file or its base's: they count where a branch has none.
    pub fn opening_settings(&self) -> Vec<Ix> {
        let first = self.chain().last().unwrap_or(self);
        first.read().index.opening()
    }

    pub fn label(&self, ix: Ix) -> Option<String> {
        let mut limit = NONE;
        for log in self.chain() {
            if let Some(label) = log.read().index.label(ix.0, limit) {
                return label.map(str::to_owned);
            }
            if ix.0 >= log.start {
                break;
            }
            limit = log.start;
        }
        None
    }

    /// All labelled entries.
    pub fn labels(&self) -> Vec<(Ix, String)> {
        let mut targets: Vec<Ix> = Vec::new();
        let mut limit = NONE;
        for log in self.chain() {
            targets.extend(log.read().index.labelled().filter(|ix| *ix < limit).map(Ix));
            limit = log.start;
        }
        targets.sort_unstable();
        targets.dedup();
        targets.retain(|ix| self.is_visible(*ix));
        targets.into_iter().filter_map(|ix| Some((ix, self.label(ix)?))).collect()
    }

    /// An id that no visible entry has: 8 lower-case hex digits.
    pub fn new_id(&self, clock: &dyn crate::clock::Clock) -> String {
        // Counts on, so that a clock whose randomness is fixed cannot hang it.
        let mut attempt = 0u32;
        loop {
            let id = format!("{:08x}", (clock.random() as u32).wrapping_add(attempt));
            if self.find_whole(&id).is_none() && !self.read().index.is_awaited(&id) {
                return id;
            }
            attempt = attempt.wrapping_add(1);
        }
    }

    /// The text of a prompt, shortened.
    fn prompt(&self, ix: Option<Ix>) -> Option<String> {
        let ix = ix?;
        let mut texts = self.prompts.texts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, text)) = texts.iter().find(|(known, _)| *known == ix) {
            return text.clone();
        }
        let text = self.record(ix).ok().and_then(|record| line::typed(&record)).map(|text| names::shortened(&text));
        if texts.len() >= 4 {
            texts.pop();
        }
        texts.insert(0, (ix, text.clone()));
        text
    }

    /// The first and the last prompt of the shared prefix.
    fn shared_prompts(&self) -> (Option<Ix>, Option<Ix>) {
        let Some(base) = &self.base else { return (None, None) };
        *self.prompts.shared.get_or_init(|| {
            let is_prompt = |ix: &Ix| self.row(ix.0).is_some_and(|row| row.is_prompt());
            let first = (1..=self.depth(base.entry))
                .filter_map(|depth| self.ancestor_at(base.entry, depth))
                .find(|ix| is_prompt(ix));
            let last = first.and_then(|_| self.up(Some(base.entry)).map(|node| node.ix).find(|ix| is_prompt(ix)));
            (first, last)
        })
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn write(&self) -> RwLockWriteGuard<'_, State> {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        state.version += 1;
        state
    }

    pub(super) fn lock_writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This log, its base, the base's base and so on.
    pub(super) fn chain(&self) -> impl Iterator<Item = &Log> {
        std::iter::successors(Some(self), |log| log.base.as_ref().map(|base| &*base.log))
    }

    /// The log of the chain to which a record belongs.
    pub(super) fn owner(&self, ix: u32) -> &Log {
        let mut log = self;
        while let Some(base) = &log.base
            && ix < log.start
        {
            log = match &base.skip {
                Some(skip) if ix < skip.start => skip,
                _ => &base.log,
            };
        }
        log
    }

    pub(super) fn row(&self, ix: u32) -> Option<Row> {
        if ix == NONE {
            return None;
        }
        self.owner(ix).read().index.row(ix).copied()
    }

    /// Whether a record is one that this session shows: an own one, or of the base one on the shared branch, or a
    /// label or edit of such a one.
    pub fn is_visible(&self, ix: Ix) -> bool {
        self.sees_of(self.owner(ix.0), ix)
    }

    /// As `is_visible`, for a record found in that log of the chain.
    fn sees_of(&self, owner: &Log, ix: Ix) -> bool {
        let Some(base) = &self.base else { return ix < self.end() };
        if std::ptr::eq(owner, self) {
            return ix.0 >= self.start && ix < self.end();
        }
        // The base went on after the fork: these places are others' here.
        if ix.0 >= self.start || !std::ptr::eq(owner, self.owner(ix.0)) {
            return false;
        }
        if self.is_ancestor(ix, base.entry) {
            return true;
        }
        let target = owner.read().index.target(ix.0);
        target.is_some_and(|target| self.is_ancestor(Ix(target), base.entry))
    }

    /// The session that the header names as base, there or not.
    pub(super) fn wanted_base(&self) -> Option<String> {
        self.read().header.base.as_ref().map(|base| base.session.clone())
    }

    /// Why the part that it shares, with itself as a base, is not all there.
    pub(super) fn incomplete(&self) -> Option<String> {
        let lowest = self.chain().last()?;
        let missing = lowest.wanted_base()?;
        let (id, own) = (&lowest.id, &self.id);
        let between = if id == own { String::new() } else { format!(" below {own}") };
        Some(format!(
            "the session {missing}, from which {id}{between} was forked, is not there; what they share cannot be shown"
        ))
    }

    pub(super) fn above(&self) -> BaseView<'_> {
        BaseView { log: self }
    }

    pub(super) fn set_forked(&self) {
        self.forked.store(true, Ordering::Release);
    }

    /// Nothing is written to it any more; what was forked from it still reads it.
    pub(super) fn close(&self, reason: &str) {
        let place = {
            let mut state = self.write();
            state.read_only.get_or_insert_with(|| reason.to_owned());
            state.place.clone()
        };
        if let Some(place) = place {
            place.medium.unlock();
        }
    }
}

/// A chain of bases is as long as people like: dropping it must not recurse.
impl Drop for Log {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if bodies::wants_idx(self.home, &self.base, state)
            && let Some(file) = state.place.as_ref().and_then(|place| place.path.clone())
            && let Some(idx) = sidecar::path_of(&file, self.home == Home::Outside)
        {
            self.shared.indexer.closed(Leftover {
                file,
                idx,
                index: std::mem::replace(&mut state.index, Index::new(0, None)),
                progress: std::mem::take(&mut state.progress),
                warnings: std::mem::take(&mut state.warnings),
                head_end: state.head_end,
                base: state.header.base.take(),
            });
        }
        let mut links: Vec<BaseLink> = self.base.take().into_iter().collect();
        while let Some(link) = links.pop() {
            for log in std::iter::once(link.log).chain(link.skip) {
                if let Some(mut log) = Arc::into_inner(log) {
                    links.extend(log.base.take());
                }
            }
        }
    }
}

/// What a fork's index may see of its base; asked for while the fork's own index is locked.
pub(super) struct BaseView<'a> {
    log: &'a Log,
}

impl Above for BaseView<'_> {
    fn row(&self, ix: u32) -> Option<Row> {
        let base = self.log.base.as_ref()?;
        (ix < self.log.start).then(|| base.log.row(ix)).flatten()
    }

    fn find(&self, id: Id<'_>) -> Option<u32> {
        let base = self.log.base.as_ref()?;
        let start = self.log.start;
        base.log.chain().find_map(|log| {
            // Let go of the lock before `is_ancestor` takes it again.
            let (ix, target) = {
                let index = &log.read().index;
                let ix = index.find_id(id).filter(|ix| *ix < start)?;
                (ix, index.target(ix))
            };
            let shared = |ix: u32| base.log.is_ancestor(Ix(ix), base.entry);
            (shared(ix) || target.is_some_and(shared)).then_some(ix)
        })
    }
}
