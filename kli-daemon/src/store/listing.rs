//! The thread that reads the session directory ahead of the lists: at the start all of it, later what a list could
//! only glance at (large files). What it found is kept in `.kli-list` for the next start.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;

use super::Store;
use super::catalog::{Catalog, full_summary};

pub struct Lister {
    /// None once it is being dropped. A message says: there is something to read.
    wake: Option<Sender<()>>,
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

/// Why the thread should let go of a file.
#[derive(Default)]
pub struct Stop {
    ending: AtomicBool,
    /// Somebody waits for a session to be opened: two large scans at once would take twice the memory.
    pub(super) held: AtomicUsize,
}

impl Stop {
    pub fn is_set(&self) -> bool {
        self.ending.load(Ordering::Relaxed) || self.held.load(Ordering::Relaxed) > 0
    }
}

/// While it is there the thread reads no large file.
pub struct Hold<'a> {
    lister: &'a Lister,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.lister.stop.held.fetch_sub(1, Ordering::Relaxed);
        self.lister.wake();
    }
}

impl Lister {
    pub fn hold(&self) -> Hold<'_> {
        self.stop.held.fetch_add(1, Ordering::Relaxed);
        Hold { lister: self }
    }

    pub fn start(dir: PathBuf, catalog: Arc<Mutex<Catalog>>, store: Weak<Store>) -> std::io::Result<Lister> {
        let (wake, work) = channel();
        let stop = Arc::<Stop>::default();
        let stopping = stop.clone();
        let thread = std::thread::Builder::new()
            .name("list".into())
            .spawn(move || serve(&dir, &catalog, &store, &work, &stopping))?;
        let _ = wake.send(());
        Ok(Lister { wake: Some(wake), stop, thread: Some(thread) })
    }

    /// Some files were only glanced at.
    pub fn wake(&self) {
        if let Some(wake) = &self.wake {
            let _ = wake.send(());
        }
    }
}

impl Drop for Lister {
    fn drop(&mut self) {
        self.stop.ending.store(true, Ordering::Relaxed);
        self.wake = None;
        // The thread itself may have held the store last.
        if let Some(thread) = self.thread.take().filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }
}

fn serve(dir: &Path, catalog: &Mutex<Catalog>, store: &Weak<Store>, work: &Receiver<()>, stop: &Stop) {
    let lock = || catalog.lock().unwrap_or_else(PoisonError::into_inner);
    let mut first = true;
    while let Ok(()) = work.recv() {
        // One round does for all that were sent meanwhile.
        while work.try_recv().is_ok() {}
        if std::mem::take(&mut first) {
            lock().refresh(dir, &Default::default());
        }
        loop {
            let Some((path, stamp)) = lock().glanced() else { break };
            // Of one that is open all is known.
            if let Some(open) = store.upgrade().and_then(|store| store.facts_of(&path)) {
                lock().join(&path, stamp, Some(open));
                continue;
            }
            // Whoever holds it wakes it again.
            let Some(what) = full_summary(&path, stop) else { break };
            lock().complete(path.clone(), stamp, what);
            tell(store, &path);
        }
        join_forks(&lock, store, stop);
        if stop.ending.load(Ordering::Relaxed) {
            break;
        }
        save(&lock, dir, store);
    }
    save(&lock, dir, store);
}

/// Not into a directory that is another daemon's meanwhile.
fn save<'a>(lock: &dyn Fn() -> MutexGuard<'a, Catalog>, dir: &Path, store: &Weak<Store>) {
    if store.upgrade().is_none_or(|store| store.owns_dir()) {
        lock().save(dir);
    }
}

/// Lists showed less of it before.
fn tell(store: &Weak<Store>, path: &Path) {
    if let Some(store) = store.upgrade() {
        store.tell_scanned(path);
    }
}

/// Forks are asked as wholes: what is shown of them lies partly in their bases.
fn join_forks<'a>(lock: &dyn Fn() -> MutexGuard<'a, Catalog>, store: &Weak<Store>, stop: &Stop) {
    // Kept until the next one is open: forks often have a base in common.
    let mut before = None;
    loop {
        let all = lock().unjoined();
        if all.is_empty() {
            return;
        }
        for (path, stamp, id) in all {
            let Some(store) = store.upgrade().filter(|_| !stop.is_set()) else { return };
            let log = store.open(&id).ok();
            let whole = log.as_ref().map(|log| log.facts());
            lock().join(&path, stamp, whole);
            store.tell_scanned(&path);
            drop(std::mem::replace(&mut before, log));
        }
    }
}
