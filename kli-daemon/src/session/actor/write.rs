//! Appending records, and telling of them.

use kli_protocol::api::{Event, EventBody, RunOutcome};
use kli_protocol::record::{
    Body, Entry, Kind, ModelChange, OptionChange, Record, SessionInfoRecord, ThinkingLevelChange,
};
use kli_protocol::{ApiError, ErrorKind};

use super::Actor;
use crate::session::api_error;
use crate::session::branch::Cache;
use crate::session::hub::Published;
use crate::store::events::{EventLog, Kept};
use crate::store::{Durability, Ix, StoreError};

/// A record to be: its id is made when it has none yet.
pub(super) struct Draft {
    pub id: Option<String>,
    pub body: Body,
}

impl From<Body> for Draft {
    fn from(body: Body) -> Draft {
        Draft { id: None, body }
    }
}

/// Records that are written and applied, and of which nobody was told yet.
pub(super) struct Written {
    ixs: Vec<Ix>,
    entries: Vec<Entry>,
    kinds: Vec<Kind>,
    taken_in: Vec<Ix>,
}

impl Written {
    /// The id of the last record.
    pub fn last_id(&self, actor: &Actor) -> String {
        self.ixs.last().map(|ix| actor.log.id(*ix)).unwrap_or_default()
    }
}

/// The beginning of the last run, if no end of it was told.
fn cut_off(kept: &[Kept]) -> Option<Event> {
    let last = kept.iter().rfind(|event| event.kind == "runStart" || event.kind == "runEnd")?;
    serde_json::from_str(&last.text).ok()
}

impl Actor {
    /// Writes records in one go, each tree entry on the one before it, and tells of them.
    pub(super) fn append(&mut self, drafts: Vec<Draft>) -> Result<String, ApiError> {
        let written = self.write(drafts)?;
        let id = written.last_id(self);
        self.tell(written);
        Ok(id)
    }

    /// Takes in what another program appended, so that what is said next is said on the leaf there is now. A run
    /// stays on its own branch; what it appends looks by itself.
    pub(super) fn catch_up(&mut self) -> Result<(), ApiError> {
        if self.run.is_some() {
            return Ok(());
        }
        let taken_in = self.log.take_in_foreign();
        let taken_in = taken_in.map_err(|error| self.not_written(error))?;
        if !taken_in.is_empty() {
            self.with_cache(Cache::forget);
            self.refresh_branch();
            self.tell_taken_in(&taken_in);
        }
        Ok(())
    }

    /// Writes and applies; the caller tells of it by [`Actor::tell`].
    pub(super) fn write(&mut self, drafts: Vec<Draft>) -> Result<Written, ApiError> {
        self.check_writable()?;
        self.catch_up()?;
        let mut all = match self.log.is_empty() {
            true => self.opening_records(),
            false => vec![],
        };
        all.extend(drafts);
        let timestamp = self.deps.now();
        let mut parent = self.tip_id();
        let mut records = Vec::with_capacity(all.len());
        for draft in all {
            let id = draft.id.unwrap_or_else(|| self.log.new_id(self.deps.clock.as_ref()));
            let record = Record::new(id, parent.clone(), timestamp.clone(), draft.body);
            if !record.body.kind().is_mark() {
                parent = Some(record.id.clone());
            }
            records.push(record);
        }
        self.write_records(records)
    }

    /// As `write`, for records that know their parents.
    pub(super) fn write_records(&mut self, records: Vec<Record>) -> Result<Written, ApiError> {
        let appended = self.log.append(&records).map_err(|error| self.not_written(error))?;
        if self.deps.settings().durability == Durability::Entry {
            // The record must be on disk before anybody hears of it, and this session can do nothing else
            // meanwhile; other sessions go on, and share the sync.
            tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(self.log.sync()))
                .map_err(api_error)?;
        }
        if let Some(run) = &mut self.run {
            let moved = records.iter().zip(&appended.ixs).rfind(|(r, _)| r.body.kind().becomes_leaf());
            run.tip = moved.map(|(_, ix)| *ix).or(run.tip);
        }
        let kinds: Vec<Kind> = records.iter().map(|record| record.body.kind()).collect();
        self.with_cache(|cache| match appended.taken_in.is_empty() {
            true => cache.appended(&self.log, records, &appended.ixs),
            false => cache.forget(),
        });
        if kinds.iter().any(|kind| changes_branch(*kind)) || !appended.taken_in.is_empty() {
            self.refresh_branch();
        }
        Ok(Written { ixs: appended.ixs, entries: appended.entries, kinds, taken_in: appended.taken_in })
    }

    /// Clients hear of it when the session can only be read from now on.
    fn not_written(&mut self, error: StoreError) -> ApiError {
        let error = api_error(error);
        if self.check_writable().is_err() {
            self.publish(EventBody::Warning { kind: "fileLost".into(), message: error.message.clone() });
            self.tell_info();
        }
        error
    }

    /// Tells of what was written.
    pub(super) fn tell(&mut self, written: Written) {
        if !written.taken_in.is_empty() {
            self.tell_taken_in(&written.taken_in);
        }
        let titled = written.kinds.contains(&Kind::Message) && self.log.facts().name.is_none();
        for (entry, kind) in written.entries.into_iter().zip(&written.kinds) {
            if !kind.is_mark() {
                self.publish(EventBody::EntryAppended { entry: super::state::shortened(entry) });
            }
        }
        if titled && self.title_changed() {
            self.tell_info();
        }
    }

    fn tell_taken_in(&mut self, taken_in: &[Ix]) {
        for ix in taken_in {
            let mark = self.log.node(*ix).is_none_or(|n| n.kind.is_mark());
            if !mark && let Ok(entry) = self.log.entry(*ix) {
                self.publish(EventBody::EntryAppended { entry: super::state::shortened(entry) });
            }
        }
        self.publish(EventBody::Warning {
            kind: "foreignEntries".into(),
            message: format!(
                "Another program appended {} records to this session's file; they were taken in.",
                taken_in.len()
            ),
        });
    }

    pub(super) fn tell_info(&mut self) {
        let session = self.info();
        self.publish(EventBody::SessionInfoChanged { session });
    }

    /// Gives an event its number and shows it to all.
    pub(super) fn publish(&mut self, body: EventBody) {
        let run_id = self.run.as_ref().map(|r| r.id.clone());
        self.publish_for(run_id, body);
    }

    pub(super) fn publish_for(&mut self, run_id: Option<String>, body: EventBody) {
        let mut event = Event { seq: None, session_id: Some(self.id.to_string()), time: self.deps.now(), run_id, body };
        self.reserve_number();
        let published: Published = self.hub.publish(&mut event);
        if let Some(events) = &mut self.events
            && KEPT.contains(&published.kind.as_ref())
        {
            events.append(published.seq, &published.text);
        }
        if !published.delta {
            self.deps.all.relay(published);
        }
    }

    /// No number is given twice, also across restarts: those of a session with a file are reserved there.
    fn reserve_number(&mut self) {
        if self.events.is_none() {
            self.events = self.deps.event_path(&self.log).map(EventLog::open);
        }
        // A file that is there is written to by its descriptor, wherever it lies now.
        if let Some(events) = &mut self.events
            && (events.reserved().is_some() || self.log.owns_place())
        {
            events.reserve(self.hub.last_seq() + 1);
        }
    }

    /// Brings back events of an earlier daemon, when someone wants them.
    pub fn prepare_replay(&mut self, after: Option<u64>) {
        let Some(after) = after.filter(|after| self.hub.lacks_only_earlier(*after)) else { return };
        let Some((floor, kept)) = self.events.as_ref().and_then(EventLog::read) else { return };
        if after < floor {
            return;
        }
        let cut_off = cut_off(&kept).filter(|_| self.run.is_none());
        let events = kept.into_iter().map(|event| Published {
            seq: event.seq,
            kind: event.kind.into(),
            delta: false,
            text: event.text.into(),
        });
        self.hub.preload(floor, events.collect());
        // Who saw a run begin waits for its end, and a crash told of none.
        if let Some(Event { run_id, body: EventBody::RunStart { entry_id }, .. }) = cut_off {
            let RunOutcome { stop_reason, error, usage, .. } = self.outcome_from_tree(entry_id.as_deref());
            self.publish_for(run_id, EventBody::RunEnd { stop_reason, error, usage });
        }
    }

    pub(super) fn check_writable(&self) -> Result<(), ApiError> {
        match self.log.facts().read_only {
            Some(reason) => Err(ApiError::new(ErrorKind::SessionReadOnly, reason)),
            None => Ok(()),
        }
    }

    /// What stands before a session's first record: model, effort, other options, name and mode.
    fn opening_records(&self) -> Vec<Draft> {
        let options = &self.branch.options;
        let effort = options.get(EFFORT).and_then(|v| v.as_str()).unwrap_or("off").to_owned();
        let mut bodies = vec![
            Body::ModelChange(ModelChange {
                provider: self.branch.model.provider.clone(),
                model_id: self.branch.model.model_id.clone(),
            }),
            Body::ThinkingLevelChange(ThinkingLevelChange { thinking_level: effort }),
        ];
        for (id, value) in options.iter().filter(|(id, _)| *id != EFFORT) {
            bodies.push(Body::OptionChange(OptionChange { option_id: id.clone(), value: value.clone() }));
        }
        if self.opening.name.is_some() || self.opening.mode.is_some() {
            bodies.push(Body::SessionInfo(SessionInfoRecord {
                name: self.opening.name.clone(),
                mode: self.opening.mode,
                ..SessionInfoRecord::default()
            }));
        }
        bodies.into_iter().map(Draft::from).collect()
    }

    /// Writes the opening records at once, for a session that has its file from the start; nobody knows it yet.
    pub fn write_opening(&mut self) -> Result<(), ApiError> {
        self.write(vec![]).map(|_| ())
    }

    /// Writes the name of a fork that nobody knows yet.
    pub fn write_name(&mut self, name: Option<String>) -> Result<(), ApiError> {
        let Some(name) = name else { return Ok(()) };
        let record = SessionInfoRecord { name: Some(name), ..SessionInfoRecord::default() };
        self.write(vec![Body::SessionInfo(record).into()]).map(|_| ())
    }
}

/// Whether a record can change model, options or the place where the next one goes.
fn changes_branch(kind: Kind) -> bool {
    !matches!(kind, Kind::Message | Kind::Custom | Kind::Label | Kind::SessionInfo | Kind::Usage)
}

/// Events that are kept on disk: those that a transcript does not tell.
const KEPT: [&str; 12] = [
    "runStart",
    "runEnd",
    "turnStart",
    "turnEnd",
    "messageEnd",
    "toolStart",
    "toolEnd",
    "approvalRequested",
    "approvalResolved",
    "retryScheduled",
    "compactionStart",
    "compactionEnd",
];

/// The option that pi calls thinking level.
pub(super) const EFFORT: &str = "reasoning-effort";
