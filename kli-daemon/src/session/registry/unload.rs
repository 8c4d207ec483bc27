//! Sessions that nobody needs for a while give their memory back; the next call opens them again.
//!
//! A session goes when it was not asked for between two rounds, nobody follows it, nothing goes on in it, and its
//! file can bring it back: those in memory, those without a record yet and those outside the session directory
//! stay. What the file does not tell is kept, see [`Kept`].

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kli_protocol::ApiError;
use kli_protocol::api::Status;
use tokio::sync::oneshot;

use super::{Registry, Slot, blocking};
use crate::session::actor::{Kept, Message, Opening};
use crate::session::api_error;
use crate::session::handle::Handle;

/// Events of unloaded sessions, together. Beyond it those of the longest unloaded go; who wants them later gets what
/// a restart would have left.
const KEPT_BYTES: usize = 64 << 20;

/// What unloaded sessions left. A mutex, since any connection may open one again.
#[derive(Default)]
pub(super) struct Unloaded(Mutex<Left>);

#[derive(Default)]
struct Left {
    /// Of each session, and when it went: the number of unloadings before.
    sessions: HashMap<String, (u64, Kept)>,
    count: u64,
}

impl Unloaded {
    fn left(&self) -> MutexGuard<'_, Left> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn take(&self, id: &str) -> Option<Kept> {
        self.left().sessions.remove(id).map(|(_, kept)| kept)
    }

    pub fn drain(&self) -> Vec<Kept> {
        self.left().sessions.drain().map(|(_, (_, kept))| kept).collect()
    }

    fn put(&self, id: &str, kept: Kept) {
        let mut left = self.left();
        left.count += 1;
        let when = left.count;
        left.sessions.insert(id.to_owned(), (when, kept));
        let mut bytes: usize = left.sessions.values().map(|(_, kept)| kept.bytes()).sum();
        if bytes <= KEPT_BYTES {
            return;
        }
        let mut oldest: Vec<&(u64, Kept)> = left.sessions.values().collect();
        oldest.sort_unstable_by_key(|(when, _)| *when);
        for (_, kept) in oldest {
            if bytes <= KEPT_BYTES {
                break;
            }
            bytes -= kept.bytes();
            kept.forget_events();
        }
    }
}

/// The system's allocator keeps what was freed unless it is asked.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn give_back() {
    // SAFETY: it takes no pointer, and the allocator lets any thread call it at any time.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn give_back() {}

impl Registry {
    /// Unloads what nobody needs, each so long after its last use, or up to twice as long. Never ends.
    pub async fn keep_unloading(&self, after: Duration) {
        loop {
            tokio::time::sleep(after).await;
            self.unload_idle().await;
        }
    }

    /// One round.
    pub async fn unload_idle(&self) {
        let ids: Vec<String> = self.map().keys().cloned().collect();
        let mut any = false;
        for id in ids {
            any |= self.unload(&id).await;
        }
        if any {
            // Walks all that is free: not on a thread that serves.
            let _ = tokio::task::spawn_blocking(give_back).await;
        }
    }

    /// The session's place is taken by an empty one that is being filled, by us: whoever wants the session now
    /// waits until its actor has ended or has said that it stays. So no session ever has two actors.
    async fn unload(&self, id: &str) -> bool {
        let slot = Slot::default();
        let stays = slot.get_or_try_init(|| async {
            let handle = self.take_idle(id, &slot).ok_or(false)?;
            let (reply, answer) = oneshot::channel();
            if handle.mailbox.send(Message::Unload(reply)).await.is_err() {
                return Err(false);
            }
            match answer.await {
                Ok(kept) => {
                    self.unloaded.put(id, *kept);
                    Err(true)
                }
                Err(_) => Ok(handle),
            }
        });
        let unloaded = stays.await.err().unwrap_or_default();
        self.sweep(id, &slot);
        unloaded
    }

    /// A session whose file changed behind our back is read-only until somebody opens it: then what the file holds
    /// now is read. One that does not mend stays as it is.
    pub async fn healed(&self, handle: Handle) -> Result<Handle, ApiError> {
        if !handle.log.may_heal() {
            return Ok(handle);
        }
        let slot = Slot::default();
        let opened = slot.get_or_try_init(|| async {
            {
                let mut map = self.map();
                match map.get_mut(handle.id.as_ref()) {
                    Some(there) if there.get().is_some_and(|h| h.mailbox.same_channel(&handle.mailbox)) => {
                        *there = slot.clone();
                    }
                    // Another call was first.
                    _ => return Err(None),
                }
            }
            let (reply, answer) = oneshot::channel();
            if handle.mailbox.send(Message::Reopen(reply)).await.is_err() {
                return Err(None);
            }
            let Ok(kept) = answer.await else { return Ok(handle.clone()) };
            let (store, old) = (self.deps.store.clone(), handle.log.clone());
            let opened = blocking(move || store.reopen(&old)).await;
            match opened.and_then(|log| log.map_err(api_error)) {
                Ok(log) => Ok(self.spawn(log, Opening::default(), *kept)),
                Err(error) => {
                    self.unloaded.put(&handle.id, *kept);
                    Err(Some(error))
                }
            }
        });
        let opened = opened.await.cloned();
        self.sweep(&handle.id, &slot);
        match opened {
            Ok(handle) => Ok(handle.touched()),
            Err(Some(error)) => Err(error),
            Err(None) => self.open_id(&handle.id).await,
        }
    }

    /// Takes an empty slot away that nobody waits for.
    fn sweep(&self, id: &str, slot: &Slot) {
        let mut map = self.map();
        // Others came by it only under this lock, so that the count is true: the map's and ours.
        let unwanted = map.get(id).is_some_and(|there| Arc::ptr_eq(there, slot)) && Arc::strong_count(slot) == 2;
        if unwanted && slot.get().is_none() {
            map.remove(id);
        }
    }

    /// Takes a session out of its slot that nobody holds and nobody asked for since the last round.
    fn take_idle(&self, id: &str, instead: &Slot) -> Option<Handle> {
        let mut map = self.map();
        let slot = map.get_mut(id)?;
        let handle = slot.get()?;
        if handle.used.swap(false, Ordering::Relaxed) {
            return None;
        }
        if *handle.status.borrow() != Status::Idle {
            handle.used.store(true, Ordering::Relaxed);
            return None;
        }
        // One who is just getting at it holds the slot; one who calls or follows holds a sender.
        if Arc::strong_count(slot) > 1 || handle.mailbox.strong_count() > 1 {
            return None;
        }
        std::mem::replace(slot, instead.clone()).get().cloned()
    }
}
