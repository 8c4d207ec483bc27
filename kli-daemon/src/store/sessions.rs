//! All sessions of one daemon: made, opened, forked, listed, deleted.

mod deleting;
mod opening;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use kli_protocol::api::Unreadable;
use kli_protocol::record::{Base, Header, HeaderKind, KLI_SESSION_VERSION, SESSION_VERSION};

use super::catalog::{self, Catalog, Claim, Summary};
use super::disk::Locking;
use super::last::{Last, Used};
use super::listing::Lister;
use super::log::{Home, Log, Shared, Start};
use super::medium::Budget;
use super::sidecar::Indexer;
use super::sync::Syncer;
use super::write::{file_below, put_header};
use super::{Durability, Facts, Filter, Ix, NewSession, Ownership, Result, StoreError, StoreSettings, legacy, names};
use crate::clock::{parse_rfc3339, rfc3339};
use deleting::Gone;

/// All sessions of one daemon.
pub struct Store {
    dir: Option<PathBuf>,
    shared: Arc<Shared>,
    /// Open sessions by id, those outside the directory by path too. Mutexes, here and below, since connections ask
    /// for sessions side by side and none of these has an owner to send to; each is held for look-ups only, but a
    /// slot's own, which keeps two from opening one session at once.
    slots: Mutex<HashMap<String, Arc<Slot>>>,
    /// Sessions without files, which live as long as the daemon.
    memory: Mutex<HashMap<String, Arc<Log>>>,
    /// Ids that were deleted and must not be given again.
    gone: Mutex<Gone>,
    catalog: Arc<Mutex<Catalog>>,
    /// Reads ahead for lists; none without a directory.
    lister: OnceLock<Lister>,
    /// Who wants to hear of sessions of which a list showed only a part.
    scanned: OnceLock<Box<dyn Fn(Facts) + Send + Sync>>,
    last: Mutex<Last>,
}

#[derive(Default)]
struct Slot {
    log: Mutex<Weak<Log>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store {
    /// `session_dir`: none keeps all sessions in memory. The caller holds the directory's lock.
    pub fn new(session_dir: Option<&Path>, settings: StoreSettings) -> Result<Arc<Store>> {
        if let Some(dir) = session_dir {
            make_dir(dir)?;
        }
        let dir = session_dir.map(|dir| dir.canonicalize().unwrap_or_else(|_| dir.to_owned()));
        let no_thread = |source| StoreError::Io { act: "cannot start a thread".into(), source };
        let syncer = Syncer::start().map_err(no_thread)?;
        let indexer = Indexer::start().map_err(no_thread)?;
        let shared = Shared {
            syncer,
            indexer,
            durability: settings.durability,
            budget: Budget::new(settings.max_memory_bytes),
            owner: OnceLock::new(),
        };
        let catalog = Arc::<Mutex<Catalog>>::default();
        let store = Arc::new(Store {
            last: Mutex::new(Last::load(dir.as_deref())),
            gone: Mutex::new(Gone::load(dir.as_deref())),
            dir,
            shared: Arc::new(shared),
            slots: Mutex::default(),
            memory: Mutex::default(),
            catalog,
            lister: OnceLock::new(),
            scanned: OnceLock::new(),
        });
        if let Some(dir) = store.dir.clone() {
            let lister = Lister::start(dir, store.catalog.clone(), Arc::downgrade(&store)).map_err(no_thread)?;
            let _ = store.lister.set(lister);
        }
        Ok(store)
    }

    /// Who holds the directory's lock, and takes it again where it was lost.
    pub fn owned_by(&self, owner: Arc<dyn Ownership>) {
        let _ = self.shared.owner.set(owner);
    }

    /// Whether what can be done without may be written in the directory.
    pub(super) fn owns_dir(&self) -> bool {
        self.shared.owns_dir()
    }

    pub fn session_dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    /// Bytes that the records of sessions without files take.
    pub fn memory_bytes(&self) -> u64 {
        self.shared.budget.used()
    }

    pub fn create(self: &Arc<Self>, new: NewSession) -> Result<Arc<Log>> {
        let header = self.header(&new, HeaderKind::Session)?;
        let home = if new.persist { Home::Dir } else { Home::Memory };
        let planned = match (new.persist, &self.dir) {
            (true, Some(dir)) => Some(file_below(dir, &new.work_dir, &header)),
            (true, None) => {
                return Err(StoreError::Other("there is no sessionDir to keep a session in".into()));
            }
            (false, _) => None,
        };
        let start = Start { header, home, work_dir: new.work_dir, parent_session: new.parent_session, base: None };
        let log = Log::new(start, self.shared.clone());
        log.write().planned = planned;
        self.keep(Arc::new(log))
    }

    /// By the whole id.
    pub fn open(self: &Arc<Self>, id: &str) -> Result<Arc<Log>> {
        if let Some(log) = self.live(id) {
            return Ok(log);
        }
        // A file that is known needs no look at the whole directory.
        let known = lock(&self.catalog).path_of(id).cloned();
        if let Some(path) = known
            && let Ok(log) = self.load(&path, Locking::None)
            && log.id == id
        {
            return Ok(log);
        }
        let path = {
            let mut catalog = self.refreshed();
            match catalog.path_of(id) {
                Some(path) => path.clone(),
                None => return Err(missing(&mut catalog, id)),
            }
        };
        self.load(&path, Locking::None)
    }

    /// A file where it lies: under its own lock when outside `session_dir`.
    pub fn open_path(self: &Arc<Self>, path: &Path) -> Result<Arc<Log>> {
        let path = path.canonicalize().map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => StoreError::SessionNotFound(path.display().to_string()),
            _ => StoreError::Io { act: format!("cannot open {}", path.display()), source },
        })?;
        if !self.is_inside(&path) {
            let path = legacy::successor(&path).unwrap_or(path);
            // One that moved on to a newer version since is still kept under the name that it was opened by.
            let open = self.live_logs().into_iter().find(|log| log.path().as_deref() == Some(&path));
            return open.map_or_else(|| self.load(&path, Locking::Own), Ok);
        }
        let claim = self.refreshed().claim(&path);
        match claim {
            Claim::Owned(id) => self.open(&id),
            Claim::Refused(reason) => Err(StoreError::Corrupt { path, reason, offset: None }),
            Claim::Unknown => self.load(&path, Locking::None),
        }
    }

    /// A file to read from only: not locked, so that it may be open elsewhere.
    pub(super) fn peek(self: &Arc<Self>, path: &Path) -> Result<Arc<Log>> {
        let path = path.canonicalize().map_err(|_| StoreError::SessionNotFound(path.display().to_string()))?;
        match self.is_inside(&path).then(|| self.refreshed().claim(&path)) {
            Some(Claim::Owned(id)) if self.refreshed().path_of(&id) == Some(&path) => self.open(&id),
            _ => self.load(&path, Locking::Apart),
        }
    }

    /// The session is to be read anew at its next opening, since it cannot be written to as it is.
    pub fn forget(&self, log: &Arc<Log>) {
        // One that cannot be looked at is being opened, and so another.
        let is_it = |slot: &Slot| slot.log.try_lock().is_ok_and(|there| there.as_ptr() == Arc::as_ptr(log));
        lock(&self.slots).retain(|_, slot| !is_it(slot));
        log.close("this session was opened anew");
    }

    /// Takes back a session that was not wholly made.
    pub fn discard(&self, id: &str) {
        let Some(log) = self.live(id) else { return };
        log.close("this session was not wholly made");
        if let Some(path) = log.path() {
            let _ = std::fs::remove_file(path);
        }
        lock(&self.memory).remove(id);
        lock(&self.slots).remove(id);
    }

    /// A session whose branch ends with `at`: a header with a base, no copy.
    pub fn fork(self: &Arc<Self>, source: &Arc<Log>, at: Ix, new: NewSession) -> Result<Arc<Log>> {
        if source.read().newer {
            let reason = source.read().read_only.clone().unwrap_or_default();
            return Err(StoreError::ReadOnly { reason });
        }
        // Held so that an append in flight is either wholly before the fork or wholly after.
        let mut writer = source.lock_writer();
        source.bring_up_to_date(&mut writer)?;
        if !source.is_visible(at) {
            return Err(StoreError::EntryNotFound(source.id(at)));
        }
        let (end, covered, place) = {
            let state = source.read();
            (state.index.end(), state.progress.covered, state.place.clone())
        };
        let position = match source.home {
            Home::Memory => u64::from(end - source.start),
            Home::Dir | Home::Outside => covered,
        };
        let mut header = self.header(&new, HeaderKind::KliSession)?;
        header.parent_session = Some(source.id.clone());
        header.mode = new.mode;
        header.base = Some(Base { session: source.id.clone(), entry: source.id(at), at: position });
        let base = self.shared_base(source, end)?;
        let start = Start {
            home: source.home,
            work_dir: new.work_dir.clone(),
            parent_session: Some(source.id.clone()),
            base: Some((base, at, end)),
            header: header.clone(),
        };
        let log = Log::new(start, self.shared.clone());
        if let Some(place) = place.filter(|_| source.home != Home::Memory) {
            if self.shared.durability != Durability::Os {
                place.medium.sync().map_err(|e| source.failed("bring to disk", e))?;
            }
            let path = match (&self.dir, source.home, &place.path) {
                (Some(dir), Home::Dir, _) => file_below(dir, &new.work_dir, &header),
                (_, _, Some(path)) => path.with_file_name(names::file_name(&header.timestamp, &header.id)),
                (_, _, None) => return Err(StoreError::Other("the source has no file".into())),
            };
            let mut bytes = Vec::new();
            put_header(&mut bytes, &header)?;
            let made = log.make_file(path, &bytes)?;
            let mut state = log.write();
            state.place = Some(made);
            state.known = bytes.len() as u64;
            state.head_end = bytes.len() as u64;
            state.progress.covered = bytes.len() as u64;
        }
        drop(writer);
        self.keep(Arc::new(log))
    }

    /// The whole id that a person's text means: whole, unique beginning, unique end, unique name, in this order.
    pub fn resolve(&self, text: &str) -> Result<String> {
        let known = || lock(&self.catalog).path_of(text).is_some_and(|path| path.exists());
        if self.live(text).is_some() || known() {
            return Ok(text.to_owned());
        }
        let (all, _) = self.all();
        let matches = |fits: &dyn Fn(&Facts) -> bool| -> Vec<String> {
            all.iter().filter(|facts| fits(facts)).map(|facts| facts.id.clone()).collect()
        };
        let whole = matches(&|facts| facts.id == text);
        if whole.is_empty()
            && let Some((path, reason)) = self.dir.as_ref().and_then(|_| lock(&self.catalog).unreadable_of(text))
        {
            // Never silently another one that the text also fits.
            return Err(StoreError::Corrupt { path, reason, offset: None });
        }
        let long = text.chars().count() >= 4;
        let tries = [
            whole,
            if long { matches(&|facts| facts.id.starts_with(text)) } else { Vec::new() },
            if long { matches(&|facts| facts.id.ends_with(text)) } else { Vec::new() },
            matches(&|facts| facts.name.as_deref() == Some(text)),
        ];
        match tries.into_iter().find(|found| !found.is_empty()) {
            None => Err(StoreError::SessionNotFound(text.to_owned())),
            Some(mut found) if found.len() == 1 => Ok(found.swap_remove(0)),
            Some(mut candidates) => {
                candidates.truncate(20);
                Err(StoreError::Ambiguous { text: text.to_owned(), candidates })
            }
        }
    }

    /// Newest first by `updated_at`, then id.
    pub fn list(&self, filter: &Filter) -> (Vec<Facts>, Vec<Unreadable>) {
        let (mut all, unreadable) = self.all();
        let words: Vec<String> =
            filter.query.iter().flat_map(|q| q.split_whitespace()).map(str::to_lowercase).collect();
        let fits = |facts: &Facts| {
            filter.work_dir.as_ref().is_none_or(|dir| *dir == facts.work_dir)
                && filter.archived == facts.archived
                && (words.is_empty() || {
                    let title = names::title(None, facts.first_prompt.as_deref());
                    let text = format!("{} {title}", facts.name.as_deref().unwrap_or_default()).to_lowercase();
                    words.iter().all(|word| text.contains(word))
                })
        };
        all.retain(fits);
        all.sort_by_cached_key(|facts| {
            let time = parse_rfc3339(&facts.updated_at).unwrap_or_default();
            std::cmp::Reverse((time, facts.id.clone()))
        });
        (all, unreadable)
    }

    /// Whether lists still lack what is read in the background.
    pub fn is_listing(&self) -> bool {
        self.dir.is_some() && self.refreshed().is_unfinished()
    }

    /// Remembers the session last used in its work directory.
    pub fn set_last(&self, log: &Log) {
        let work_dir = log.facts().work_dir;
        let mut last = lock(&self.last);
        if last.set(&work_dir, Used { session: log.id.clone(), path: log.path() }) && self.owns_dir() {
            last.save();
        }
    }

    /// The session last used there, or the newest; `Err` when it is there and cannot be read.
    pub fn last(self: &Arc<Self>, work_dir: &str) -> Result<Option<LastUsed>> {
        let used = lock(&self.last).of(work_dir).to_vec();
        let (all, _) = self.all();
        // One that was given another work directory since is at home there.
        let counts = |facts: &Facts| !facts.archived && facts.work_dir == work_dir;
        for Used { session, path } in used {
            if let Some(log) = self.live(&session) {
                let vanished = log.path().is_some_and(|path| !path.exists());
                if !log.is_empty() && !vanished && counts(&log.facts()) {
                    return Ok(Some(LastUsed::Id(session)));
                }
            } else if let Some(facts) = all.iter().find(|facts| facts.id == session) {
                if counts(facts) {
                    return Ok(Some(LastUsed::Id(session)));
                }
            } else if let Some(path) = path.filter(|path| path.exists())
                && counts(&self.peek(&path)?.facts())
            {
                return Ok(Some(LastUsed::Path(path)));
            }
        }
        let filter = Filter { work_dir: Some(work_dir.to_owned()), ..Filter::default() };
        let (newest, _) = self.list(&filter);
        let written = |facts: &Facts| self.live(&facts.id).is_none_or(|log| !log.is_empty());
        Ok(newest.into_iter().find(written).map(|facts| LastUsed::Id(facts.id)))
    }

    fn header(&self, new: &NewSession, kind: HeaderKind) -> Result<Header> {
        if !names::valid_session_id(&new.id) {
            return Err(StoreError::InvalidId(new.id.clone()));
        }
        self.check_free(new)?;
        let version = match kind {
            HeaderKind::Session => SESSION_VERSION,
            HeaderKind::KliSession => KLI_SESSION_VERSION,
        };
        Ok(Header {
            kind,
            version,
            id: new.id.clone(),
            timestamp: rfc3339(new.created_at_ms),
            cwd: Some(new.work_dir.clone()),
            parent_session: new.parent_session.clone(),
            mode: None,
            base: None,
            migrated_from: None,
        })
    }

    fn check_free(&self, new: &NewSession) -> Result<()> {
        let id = &new.id;
        let exists = || StoreError::SessionExists(id.clone());
        if self.live(id).is_some() || lock(&self.gone).has(id) {
            return Err(exists());
        }
        let taken = |catalog: &Catalog| catalog.base_path(id).is_some() || catalog.unreadable_of(id).is_some();
        // An id made just now is nobody's: a fork need not look at thousands of files.
        let made_now = uuid::Uuid::parse_str(id).ok().and_then(|uuid| uuid.get_timestamp()).is_some_and(|time| {
            let (seconds, nanos) = time.to_unix();
            (seconds * 1000 + u64::from(nanos / 1_000_000)).abs_diff(new.created_at_ms) < 10_000
        });
        let catalog = if made_now { lock(&self.catalog) } else { self.refreshed() };
        if taken(&catalog) {
            return Err(exists());
        }
        Ok(())
    }

    /// A new session becomes known; two of one id cannot.
    fn keep(&self, log: Arc<Log>) -> Result<Arc<Log>> {
        let slot = self.slot(&log.id);
        let mut there = lock(&slot.log);
        if there.upgrade().is_some() {
            if let Some(path) = log.path() {
                let _ = std::fs::remove_file(path);
            }
            return Err(StoreError::SessionExists(log.id.clone()));
        }
        *there = Arc::downgrade(&log);
        let _ = log.me.set(Arc::downgrade(&log));
        if log.home == Home::Memory {
            lock(&self.memory).insert(log.id.clone(), log.clone());
        }
        Ok(log.clone())
    }

    fn slot(&self, key: &str) -> Arc<Slot> {
        let mut slots = lock(&self.slots);
        if slots.len() >= 64 && slots.len().is_power_of_two() && !slots.contains_key(key) {
            // One that is in use right now is held by its user too.
            slots.retain(|_, slot| Arc::strong_count(slot) > 1 || lock(&slot.log).strong_count() > 0);
        }
        slots.entry(key.to_owned()).or_default().clone()
    }

    fn live(&self, key: &str) -> Option<Arc<Log>> {
        let slot = lock(&self.slots).get(key).cloned()?;
        lock(&slot.log).upgrade()
    }

    fn live_logs(&self) -> Vec<Arc<Log>> {
        let slots: Vec<Arc<Slot>> = lock(&self.slots).values().cloned().collect();
        // One that is being opened just now is not there yet: its slot may be locked for long.
        slots.iter().filter_map(|slot| slot.log.try_lock().ok()?.upgrade()).collect()
    }

    /// Of a session that is open, by its file.
    pub(super) fn facts_of(&self, path: &Path) -> Option<Facts> {
        let open = self.live_logs().into_iter().find(|log| log.path().as_deref() == Some(path))?;
        Some(open.facts())
    }

    /// `tell` hears of each session whose file was read as a whole after a list could only glance at it.
    pub fn when_scanned(&self, tell: impl Fn(Facts) + Send + Sync + 'static) {
        let _ = self.scanned.set(Box::new(tell));
    }

    pub(super) fn tell_scanned(&self, path: &Path) {
        let Some(tell) = self.scanned.get() else { return };
        let facts = {
            let catalog = lock(&self.catalog);
            catalog.summaries().find(|s| s.facts.path.as_deref() == Some(path)).map(|s| listed(&catalog, s))
        };
        if let Some(facts) = facts {
            tell(facts);
        }
    }

    fn refreshed(&self) -> MutexGuard<'_, Catalog> {
        let live = self.live_logs().into_iter().filter_map(|log| log.path()).collect();
        let mut catalog = lock(&self.catalog);
        if let Some(dir) = &self.dir {
            catalog.refresh(dir, &live);
            if catalog.is_unfinished()
                && let Some(lister) = self.lister.get()
            {
                lister.wake();
            }
        }
        catalog
    }

    fn is_inside(&self, path: &Path) -> bool {
        let Some(dir) = &self.dir else { return false };
        path.parent() == Some(dir) || path.parent().and_then(Path::parent) == Some(dir)
    }

    /// Every session: live ones as they are now, others as their files were last read.
    fn all(&self) -> (Vec<Facts>, Vec<Unreadable>) {
        let mut live: HashMap<String, Arc<Log>> = HashMap::new();
        for log in self.live_logs() {
            if log.path().is_none_or(|path| !catalog::is_deleted(&path)) {
                live.insert(log.id.clone(), log);
            }
        }
        let mut facts: Vec<Facts> = Vec::new();
        let mut unreadable = Vec::new();
        if self.dir.is_some() {
            let catalog = self.refreshed();
            for summary in catalog.summaries().filter(|s| !live.contains_key(&s.facts.id)) {
                facts.push(listed(&catalog, summary));
            }
            unreadable = catalog.unreadable();
        }
        facts.extend(live.values().map(|log| log.facts_now()));
        (facts, unreadable)
    }
}

/// Which session was last used in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LastUsed {
    Id(String),
    /// Of one that lies outside the session directory.
    Path(PathBuf),
}

/// A summary, with what only the sessions that it was forked from can tell.
fn listed(catalog: &Catalog, summary: &Summary) -> Facts {
    let mut facts = summary.facts.clone();
    let mut base = summary.base.as_ref().filter(|_| summary.unjoined);
    let mut seen = 0;
    while let Some(wanted) = base
        && facts.first_prompt.is_none()
        && seen < 10_000
    {
        let Some(below) = catalog.summary(&wanted.session) else { break };
        facts.first_prompt = below.facts.first_prompt.clone();
        if facts.last_prompt.is_none() {
            facts.last_prompt = below.facts.fork_prompt.clone().or_else(|| below.facts.last_prompt.clone());
        }
        base = below.base.as_ref();
        seen += 1;
    }
    facts
}

fn missing(catalog: &mut Catalog, id: &str) -> StoreError {
    match catalog.unreadable_of(id) {
        Some((path, reason)) => StoreError::Corrupt { path, reason, offset: None },
        None => StoreError::SessionNotFound(id.to_owned()),
    }
}

fn make_dir(dir: &Path) -> Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let failed = |source| StoreError::Io { act: format!("cannot use the session directory {}", dir.display()), source };
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
    std::fs::read_dir(dir).map(drop).map_err(failed)
}
