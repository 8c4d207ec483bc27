//! The thread that reads the session directory ahead of the lists: at the start all of it, later what a list could
//! only glance at (large files). What it found is kept in `.kli-list` for the next start.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::catalog::{Catalog, full_summary};

pub struct Lister {
    /// None once it is being dropped. A message says: there is something to read.
    wake: Option<Sender<()>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Lister {
    pub fn start(dir: PathBuf, catalog: Arc<Mutex<Catalog>>) -> std::io::Result<Lister> {
        let (wake, work) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = stop.clone();
        let thread =
            std::thread::Builder::new().name("list".into()).spawn(move || serve(&dir, &catalog, &work, &stopping))?;
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
        self.stop.store(true, Ordering::Relaxed);
        self.wake = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(dir: &std::path::Path, catalog: &Mutex<Catalog>, work: &Receiver<()>, stop: &AtomicBool) {
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
            let what = full_summary(&path, stop);
            if stop.load(Ordering::Relaxed) {
                break;
            }
            lock().complete(path, stamp, what);
        }
        if stop.load(Ordering::Relaxed) {
            break;
        }
        lock().save(dir);
    }
    lock().save(dir);
}
