//! How a file becomes a session: its bases first, then its index if there is one, then its lines.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kli_protocol::record::Base;

use super::{Store, lock};
use crate::store::catalog::{self, Catalog};
use crate::store::disk::{Disk, Locking};
use crate::store::listing::Lister;
use crate::store::log::{Home, Log, Placed, Start, State};
use crate::store::medium::Medium;
use crate::store::scan::{self, Head, Shape, Source};
use crate::store::{Result, StoreError, sidecar};

impl Store {
    /// The log that a fork refers to: the source itself, unless records of it lie before their parents; those may
    /// be tied to later ones, which the fork must not see.
    pub(super) fn shared_base(&self, source: &Arc<Log>, end: u32) -> Result<Arc<Log>> {
        source.set_forked();
        let state = source.read();
        if !state.index.has_forward_links() {
            return Ok(source.clone());
        }
        let start = Start {
            header: state.header.clone(),
            home: source.home,
            work_dir: state.work_dir.clone(),
            parent_session: state.parent_session.clone(),
            base: source.base.as_ref().map(|base| (base.log.clone(), base.entry, source.start)),
        };
        let frozen = Log::new(start, self.shared.clone());
        {
            let mut copy = frozen.write();
            copy.index = state.index.truncated(end, &source.above());
            copy.place = state.place.clone();
            copy.shape = state.shape;
            copy.read_only = Some("a view of an earlier state".into());
        }
        Ok(Arc::new(frozen))
    }

    /// Opens a file and the bases that it needs, the lowest first: no recursion over the length of the chain.
    pub(super) fn load(self: &Arc<Self>, path: &Path, locking: Locking) -> Result<Arc<Log>> {
        let mut open: Vec<Opening> = Vec::new();
        let mut next = Some((path.to_owned(), locking));
        let mut found: Option<Arc<Log>> = None;
        let mut circle = None;
        let mut anew = false;
        let apart = locking == Locking::Apart;
        while let Some((path, locking)) = next.take() {
            let key = path.display().to_string();
            if let Some(log) = self.live(&key) {
                found = Some(log);
                break;
            }
            let disk = match Disk::open(&path, locking).and_then(|disk| Ok((scan::head(&disk, &path)?, disk))) {
                Ok((head, disk)) => (disk, head),
                Err(e) if open.is_empty() => return Err(e),
                Err(_) => break,
            };
            let base = disk.1.header.base.as_ref().map(|base| base.session.clone());
            open.push(Opening { path, disk: disk.0, head: disk.1, anew: std::mem::take(&mut anew) });
            let Some(base) = base else { break };
            if let Some(start) = open.iter().position(|o| o.head.header.id == base) {
                circle = Some(start);
                break;
            }
            if let Some(log) = self.live(&base) {
                if let Some(path) = self.healed(&log) {
                    anew = true;
                    next = Some((path, Locking::None));
                    continue;
                }
                found = Some(log);
                break;
            }
            next = self.base_path(&base, open.last().map(|o| o.path.as_path())).map(|path| (path, Locking::None));
        }
        // One that is open without its base may lie in a circle with those that are being opened.
        let mut steps = 0;
        let mut at = found.clone();
        while let Some(base) = at.as_ref().filter(|log| log.base.is_none()).and_then(|log| log.wanted_base())
            && circle.is_none()
            && steps < 10_000
        {
            circle = open.iter().position(|o| o.head.header.id == base);
            at = self.live(&base);
            steps += 1;
        }
        let mut log = found;
        let count = open.len();
        for (number, opening) in open.into_iter().enumerate().rev() {
            let inside = self.is_inside(&opening.path) && !(apart && number == 0);
            let home = if inside { Home::Dir } else { Home::Outside };
            let in_circle = circle.is_some_and(|start| (start..count).contains(&number));
            log = Some(self.build(opening, home, log.filter(|_| !in_circle))?);
        }
        log.ok_or_else(|| StoreError::SessionNotFound(path.display().to_string()))
    }

    /// The file of an open session that lacked a base which is there by now. It is read only until it is opened
    /// again, but whoever is opened on it need not wait for that.
    fn healed(&self, log: &Log) -> Option<PathBuf> {
        let lowest = log.chain().last()?;
        let missing = lowest.wanted_base()?;
        self.base_path(&missing, lowest.path().as_deref()).and(log.path())
    }

    /// Where a base lies: in the directory, deleted or not, or beside its fork.
    fn base_path(&self, id: &str, fork: Option<&Path>) -> Option<PathBuf> {
        let known = lock(&self.catalog).base_path(id).filter(|path| path.exists()).map(Path::to_owned);
        if let Some(path) =
            known.or_else(|| self.dir.as_ref().and_then(|_| self.refreshed().base_path(id).map(Path::to_owned)))
        {
            return Some(path);
        }
        let mut beside = Catalog::default();
        beside.refresh(fork.filter(|fork| !self.is_inside(fork))?.parent()?, &HashSet::new());
        beside.base_path(id).map(Path::to_owned)
    }

    fn build(&self, opening: Opening, home: Home, base: Option<Arc<Log>>) -> Result<Arc<Log>> {
        let Opening { path, disk, head, anew } = opening;
        let deleted = catalog::is_deleted(&path);
        // A deleted session is there for its forks only: by its id nobody finds it.
        let key = match home {
            _ if anew => format!("anew {}", path.display()),
            Home::Outside if !disk.is_locked() => format!("unlocked {}", path.display()),
            Home::Outside => path.display().to_string(),
            _ if deleted => path.display().to_string(),
            _ => head.header.id.clone(),
        };
        let by_id = !anew && home == Home::Outside && disk.is_locked() && !deleted;
        let slot = self.slot(&key);
        let mut there = lock(&slot.log);
        if let Some(log) = there.upgrade() {
            return Ok(log);
        }
        let _hold = self.lister.get().map(Lister::hold);
        let log = Arc::new(self.read_log(&path, disk, head, home, base)?);
        if deleted {
            log.close("this session was deleted");
        }
        *there = Arc::downgrade(&log);
        drop(there);
        let _ = log.me.set(Arc::downgrade(&log));
        log.index_if_grown(&mut log.write());
        if by_id {
            // By its id too, where no other session has it.
            let slot = self.slot(&log.id);
            let mut there = lock(&slot.log);
            if there.upgrade().is_none() {
                *there = Arc::downgrade(&log);
            }
        }
        Ok(log)
    }

    fn read_log(&self, path: &Path, disk: Disk, head: Head, home: Home, base: Option<Arc<Log>>) -> Result<Log> {
        let mut warnings = scan::Warnings::default();
        let mut read_only = head.newer.clone();
        let mut shared = None;
        if let Some(wanted) = &head.header.base {
            let at = base.and_then(|base| {
                let end = base.start + base.read().index.rows_before(wanted.at);
                let entry = base.find_whole(&wanted.entry).filter(|ix| ix.0 < end)?;
                Some((base, entry, end))
            });
            match at {
                Some((base, entry, end)) => {
                    if let Some(reason) = base.incomplete() {
                        warnings.add("baseMissing", reason.clone(), Some(path), Some(0));
                        read_only.get_or_insert(reason);
                    }
                    shared = Some((self.shared_base(&base, end)?, entry, end));
                }
                None => {
                    let Base { session, entry, .. } = wanted;
                    let reason = format!(
                        "the session {session} that this one was forked from (at entry {entry}) is not there; its shared part cannot be shown"
                    );
                    warnings.add("baseMissing", reason.clone(), Some(path), Some(0));
                    read_only.get_or_insert(reason);
                }
            }
        }
        let parent_session = head.header.parent_session.as_deref().and_then(|parent| {
            let id = catalog::parent_id(parent);
            if id.is_none() {
                warnings.list.push(catalog::unknown_parent(parent, path));
            }
            id
        });
        if let Some(reason) = &head.newer {
            warnings.add("newerVersion", reason.clone(), Some(path), Some(0));
        }
        let progress = head.progress();
        let opened_head = head.clone();
        let based = shared.is_some();
        let start = Start {
            work_dir: catalog::work_dir(&head.header, path),
            header: head.header,
            home,
            parent_session,
            base: shared,
        };
        let log = Log::new(start, self.shared.clone());
        let disk = Arc::new(disk);
        {
            let mut state = log.write();
            let state = &mut *state;
            state.shape = head.shape;
            state.progress = progress;
            state.warnings = warnings;
            state.head_end = head.end;
            let opened = Opened { path, disk: &disk, head: &opened_head, based };
            state.from_idx = self.take_idx(&opened, home, state);
            let source = Source { medium: &*disk, path: Some(path), shape: head.shape };
            let failed = |source| StoreError::Io { act: format!("cannot read {}", path.display()), source };
            let above = log.above();
            scan::records(&source, &mut state.index, &above, &mut state.progress, &mut state.warnings)
                .map_err(failed)?;
            // What was odd about records that `.idx` holds was told when it was made.
            let first = if state.from_idx { state.index.start() + state.indexed as u32 } else { 0 };
            scan::settle(&mut state.index, &above, first, Some(path), &mut state.warnings);
            state.known = match disk.size() {
                Ok(size) if state.progress.tail == scan::Tail::Torn => size,
                _ => state.progress.covered,
            };
            state.newer = head.newer.is_some();
            state.read_only = read_only;
            state.place = Some(Placed::new(disk, Some(path.to_owned())));
        }
        Ok(log)
    }

    /// Starts from `.idx`, where there is one that fits.
    fn take_idx(&self, opening: &Opened<'_>, home: Home, state: &mut State) -> bool {
        let Opened { path, disk, head, based } = opening;
        let whole = head.header.base.is_some() == *based;
        if head.shape != Shape::V3 || !whole || disk.size().unwrap_or_default() <= sidecar::ABOVE {
            return false;
        }
        let Some(idx) = sidecar::path_of(path, home == Home::Outside) else { return false };
        let Some((index, progress, warnings)) = sidecar::load(&idx, path, *disk, head, state.index.start()) else {
            return false;
        };
        state.indexed = index.len();
        state.index = index;
        state.progress = progress;
        state.warnings.set_lines(warnings);
        true
    }
}

/// A file whose index is looked for.
struct Opened<'a> {
    path: &'a Path,
    disk: &'a Disk,
    head: &'a Head,
    /// Its base is there.
    based: bool,
}

struct Opening {
    path: PathBuf,
    disk: Disk,
    head: Head,
    /// Beside the one that is open, as a base alone.
    anew: bool,
}
