//! Background commands of a session: started by `bash` with `background`, or left by a command whose children
//! still hold its output. They end with the session.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kli_protocol::api::{Job, JobStatus};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::process::Child;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::output::Tail;
use super::process::{self, Whose};
use super::shell::{self, Process};
use crate::text::Limits;

/// At the bound no further one is started.
const MOST_RUNNING: usize = 32;
/// Of those that ended, so many are remembered.
const MOST_ENDED: usize = 64;
/// What a list shows of each.
const LISTED: Limits = Limits { lines: 50, bytes: 4 * 1024 };

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum JobError {
    #[error("there is no background job {0}")]
    Unknown(String),
    #[error("{MOST_RUNNING} background jobs are running already; end one first")]
    TooMany,
    #[error("the session is closing")]
    Closing,
}

/// The background commands of one session, what its commands left running, and the files with their output.
///
/// `shutdown` ends all and waits; a drop ends all too, but may leave a moment in which they still are.
#[derive(Debug)]
pub struct Jobs {
    marker: String,
    calls: AtomicU64,
    closing: CancellationToken,
    tasks: TaskTracker,
    /// A mutex: tools of a run, the session and connections look at it, each for a moment and never across an await.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    jobs: Vec<Arc<Entry>>,
    started: u64,
    /// Made with the first output that is too long, gone with the session.
    outputs: Option<tempfile::TempDir>,
    files: u64,
}

#[derive(Debug)]
struct Entry {
    id: String,
    command: String,
    kill: CancellationToken,
    /// Cancelled when the job has ended.
    ended: CancellationToken,
    /// A mutex, as above: written by the job's task alone.
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    status: JobStatus,
    exit_code: Option<i32>,
    tail: Tail,
}

impl Default for Jobs {
    fn default() -> Jobs {
        static SESSIONS: AtomicU64 = AtomicU64::new(0);
        Jobs {
            marker: process::session_marker(SESSIONS.fetch_add(1, Ordering::Relaxed)),
            calls: AtomicU64::new(0),
            closing: CancellationToken::new(),
            tasks: TaskTracker::new(),
            state: Mutex::default(),
        }
    }
}

impl Jobs {
    /// All that are remembered, oldest first.
    pub fn list(&self) -> Vec<Job> {
        let jobs = self.state().jobs.clone();
        jobs.iter().map(|job| job.describe(LISTED)).collect()
    }

    /// One, with as much of the end of its output as limits allow, and whether that is not all.
    pub(crate) fn get(&self, job_id: &str, limits: Limits) -> Result<(Job, bool), JobError> {
        let job = self.find(job_id)?;
        let truncated = job.seen().tail.end(limits).1;
        Ok((job.describe(limits), truncated))
    }

    /// Waits until it has ended.
    pub(crate) async fn ended(&self, job_id: &str) -> Result<(), JobError> {
        let job = self.find(job_id)?;
        job.ended.cancelled().await;
        Ok(())
    }

    /// Ends a job with all its processes; one that has ended stays as it is.
    pub async fn kill(&self, job_id: &str) -> Result<(), JobError> {
        let job = self.find(job_id)?;
        job.kill.cancel();
        job.ended.cancelled().await;
        Ok(())
    }

    /// Ends all jobs, and everything that any command of the session left running; then removes the files with
    /// their output. No job starts afterwards.
    pub async fn shutdown(&self) {
        self.closing.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        if self.calls.swap(0, Ordering::Relaxed) > 0 {
            let session = Whose::Session(self.marker.clone());
            let _ = tokio::task::spawn_blocking(move || process::kill(&session, None)).await;
        }
        let outputs = self.state().outputs.take();
        if let Some(Err(error)) = outputs.map(tempfile::TempDir::close) {
            tracing::warn!("the files with a session's command outputs stay: {error}");
        }
    }

    /// The marker of a new command.
    pub(crate) fn next_call(&self) -> Result<String, JobError> {
        if self.closing.is_cancelled() {
            return Err(JobError::Closing);
        }
        Ok(format!("{}.{}", self.marker, self.calls.fetch_add(1, Ordering::Relaxed)))
    }

    /// A new file, readable for nobody else, for an output that is too long.
    pub(crate) fn output_file(&self) -> std::io::Result<(File, PathBuf)> {
        let mut state = self.state();
        state.files += 1;
        let name = format!("output-{}.txt", state.files);
        let outputs = match state.outputs.take() {
            Some(outputs) => outputs,
            None => tempfile::Builder::new().prefix("kli-").tempdir()?,
        };
        let path = outputs.path().join(name);
        state.outputs = Some(outputs);
        let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        Ok((file, path))
    }

    /// Takes a command over that runs; at the bound it is ended.
    pub(crate) fn start(&self, command: &str, process: Process) -> Result<String, JobError> {
        let Process { child, output, tree } = process;
        self.watch(command, Watched { child: Some(child), exit: None, output, tree })
    }

    /// Takes over what a command left that ended: children that hold its output. At the bound they go on without
    /// anybody who reads it.
    pub(crate) fn adopt(
        &self,
        command: &str,
        exit: ExitStatus,
        output: pipe::Receiver,
        tree: process::Tree,
    ) -> Result<String, JobError> {
        self.watch(command, Watched { child: None, exit: Some(exit), output, tree })
    }

    fn watch(&self, command: &str, mut watched: Watched) -> Result<String, JobError> {
        let mut state = self.state();
        let bound = if self.closing.is_cancelled() {
            Some(JobError::Closing)
        } else {
            (state.jobs.iter().filter(|job| !job.ended.is_cancelled()).count() >= MOST_RUNNING)
                .then_some(JobError::TooMany)
        };
        if let Some(error) = bound {
            if watched.child.is_none() {
                watched.tree.disarm();
            }
            return Err(error);
        }
        state.started += 1;
        let job = Arc::new(Entry {
            id: format!("job_{}", state.started),
            command: command.to_owned(),
            kill: self.closing.child_token(),
            ended: CancellationToken::new(),
            seen: Mutex::default(),
        });
        let ended = state.jobs.iter().filter(|job| job.ended.is_cancelled()).count();
        if ended >= MOST_ENDED
            && let Some(oldest) = state.jobs.iter().position(|job| job.ended.is_cancelled())
        {
            state.jobs.remove(oldest);
        }
        state.jobs.push(job.clone());
        let id = job.id.clone();
        self.tasks.spawn(run(job, watched));
        Ok(id)
    }

    fn find(&self, job_id: &str) -> Result<Arc<Entry>, JobError> {
        let state = self.state();
        let job = state.jobs.iter().find(|job| job.id == job_id);
        job.cloned().ok_or_else(|| JobError::Unknown(job_id.to_owned()))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Jobs {
    fn drop(&mut self) {
        self.closing.cancel();
        if *self.calls.get_mut() > 0 {
            process::kill(&Whose::Session(self.marker.clone()), None);
        }
    }
}

impl Entry {
    fn describe(&self, limits: Limits) -> Job {
        let seen = self.seen();
        Job {
            job_id: self.id.clone(),
            command: self.command.clone(),
            status: seen.status,
            exit_code: seen.exit_code,
            output: seen.tail.end(limits).0,
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Watched {
    /// None: it has ended.
    child: Option<Child>,
    exit: Option<ExitStatus>,
    output: pipe::Receiver,
    tree: process::Tree,
}

/// Reads a job's output until nobody holds it any more, or until it is killed.
async fn run(job: Arc<Entry>, watched: Watched) {
    let Watched { mut child, mut exit, mut output, mut tree } = watched;
    let mut buffer = vec![0; 16 * 1024];
    let mut open = true;
    let mut killed = false;
    while open || child.is_some() {
        tokio::select! {
            () = job.kill.cancelled() => {
                killed = true;
                break;
            }
            status = wait(&mut child), if child.is_some() => {
                exit = status;
                child = None;
                tree.forget_root();
            }
            read = output.read(&mut buffer), if open => match read {
                Ok(n) if n > 0 => drop(job.seen().tail.push(buffer.get(..n).unwrap_or_default())),
                _ => open = false,
            },
        }
    }
    if killed {
        if let Some(status) = shell::end(&mut child, tree).await {
            exit = Some(status);
        }
    } else {
        tree.disarm();
    }
    {
        let mut seen = job.seen();
        seen.tail.finish();
        seen.status = if killed { JobStatus::Killed } else { JobStatus::Exited };
        seen.exit_code = exit.map(shell::exit_code);
    }
    job.ended.cancel();
}

async fn wait(child: &mut Option<Child>) -> Option<ExitStatus> {
    match child {
        Some(child) => child.wait().await.ok(),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
