//! The thread that brings session files to disk: those that wait at the same time share a round, and what nobody
//! waits for follows a second later at most.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::oneshot;

use super::medium::Medium;

/// How long written bytes may stay with the system when nobody waits for them.
const LATEST: Duration = Duration::from_secs(1);

enum Request {
    /// Within [`LATEST`]. A session sends one only after its last was answered by a sync.
    Soon(Arc<Job>),
    Now(Arc<Job>, oneshot::Sender<io::Result<()>>),
}

/// One file, and whether it is in the queue already.
pub struct Job {
    pub medium: Arc<dyn Medium>,
    queued: Mutex<bool>,
}

impl Job {
    pub fn new(medium: Arc<dyn Medium>) -> Arc<Job> {
        Arc::new(Job { medium, queued: Mutex::new(false) })
    }

    /// A mutex, since the flag is set by the session's thread and cleared by the syncing one.
    fn set_queued(&self, queued: bool) -> bool {
        std::mem::replace(&mut *self.queued.lock().unwrap_or_else(PoisonError::into_inner), queued)
    }
}

pub struct Syncer {
    /// None once it is being dropped: the thread ends when the last sender does.
    requests: Option<Sender<Request>>,
    thread: Option<JoinHandle<()>>,
}

impl Syncer {
    pub fn start() -> io::Result<Syncer> {
        let (sender, requests) = channel();
        let thread = std::thread::Builder::new().name("sync".into()).spawn(move || serve(&requests))?;
        Ok(Syncer { requests: Some(sender), thread: Some(thread) })
    }

    pub fn soon(&self, job: &Arc<Job>) {
        if !job.set_queued(true)
            && let Some(requests) = &self.requests
        {
            let _ = requests.send(Request::Soon(job.clone()));
        }
    }

    /// Begins at once, and answers who awaits it.
    pub fn now(&self, job: Arc<Job>) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let (done, wait) = oneshot::channel();
        if let Some(requests) = &self.requests {
            // When it fails, so does the wait.
            let _ = requests.send(Request::Now(job, done));
        }
        async move { wait.await.map_err(|_| io::Error::other("the store is stopping"))? }
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Who waits for one file.
struct Waiting {
    job: Arc<Job>,
    done: Vec<oneshot::Sender<io::Result<()>>>,
}

fn serve(requests: &Receiver<Request>) {
    let mut soon: Vec<Arc<Job>> = Vec::new();
    let mut deadline = std::time::Instant::now();
    loop {
        let first = if soon.is_empty() {
            requests.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            requests.recv_timeout(deadline.saturating_duration_since(std::time::Instant::now()))
        };
        let mut waiting: Vec<Waiting> = Vec::new();
        let mut last = false;
        match first {
            Ok(first) => {
                for request in std::iter::once(first).chain(requests.try_iter()) {
                    match request {
                        Request::Soon(job) => {
                            if soon.is_empty() {
                                deadline = std::time::Instant::now() + LATEST;
                            }
                            soon.push(job);
                        }
                        Request::Now(job, done) => match waiting.iter_mut().find(|w| Arc::ptr_eq(&w.job, &job)) {
                            Some(same) => same.done.push(done),
                            None => waiting.push(Waiting { job, done: vec![done] }),
                        },
                    }
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => last = true,
        }
        if last || std::time::Instant::now() >= deadline {
            for job in soon.drain(..) {
                sync(&job, Vec::new());
            }
        }
        for Waiting { job, done } in waiting {
            sync(&job, done);
            soon.retain(|other| !Arc::ptr_eq(other, &job));
        }
        if last {
            return;
        }
    }
}

fn sync(job: &Job, done: Vec<oneshot::Sender<io::Result<()>>>) {
    // Before the sync: what is written while it runs must be queued again.
    job.set_queued(false);
    let result = job.medium.sync();
    if let Err(e) = &result {
        tracing::warn!("a session file could not be brought to disk: {e}");
    }
    for done in done {
        let answer = match &result {
            Ok(()) => Ok(()),
            Err(e) => Err(io::Error::new(e.kind(), e.to_string())),
        };
        let _ = done.send(answer);
    }
}
