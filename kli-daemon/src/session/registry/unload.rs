//! Sessions that nobody needs for a while give their memory back; the next call opens them again.
//!
//! A session goes when it was not asked for between two rounds, nobody follows it, nothing goes on in it, and its
//! file can bring it back: those in memory, those without a record yet and those outside the session directory
//! stay. What the file does not tell is kept, see [`Kept`].

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kli_protocol::api::Status;
use tokio::sync::oneshot;

use kli_protocol::ApiError;

use super::{Registry, Slot, api_error, blocking};
use crate::session::actor::{Kept, Message, Opening};
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

    /// A person opens a session: where it could not be written to it is read anew, since what was in the way may be
    /// gone. Those who follow it go on.
    pub async fn opened(&self, handle: Handle) -> Result<Handle, ApiError> {
        let facts = handle.log.facts_now();
        let Some(path) = facts.path.filter(|_| facts.read_only.is_some() && !facts.newer_version) else {
            return Ok(handle);
        };
        let (slot, id) = (Slot::default(), handle.id.clone());
        let made = slot.get_or_try_init(|| async {
            if !self.take_place(&handle, &slot) {
                // Somebody else is at it.
                return Err(None);
            }
            let (reply, answer) = oneshot::channel();
            let _ = handle.mailbox.send(Message::Reopen(reply)).await;
            let Ok(kept) = answer.await else { return Ok(handle) };
            self.deps.store.forget(&handle.log);
            drop(handle);
            let store = self.deps.store.clone();
            match blocking(move || store.open_path(&path)).await.and_then(|log| log.map_err(api_error)) {
                Ok(log) => Ok(self.spawn(log, Opening::default(), *kept)),
                Err(error) => {
                    self.unloaded.put(&id, *kept);
                    Err(Some(error))
                }
            }
        });
        let made = made.await.cloned();
        self.sweep(&id, &slot);
        match made {
            Ok(handle) => {
                handle.ask(|actor| actor.tell_reopened()).await?;
                Ok(handle)
            }
            Err(Some(error)) => Err(error),
            Err(None) => self.open_id(&id).await,
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

    /// Puts an empty slot in the place of a session's; false where it is not there any more.
    fn take_place(&self, handle: &Handle, instead: &Slot) -> bool {
        let mut map = self.map();
        let there = map
            .get_mut(handle.id.as_ref())
            .filter(|slot| slot.get().is_some_and(|there| there.mailbox.same_channel(&handle.mailbox)));
        let Some(there) = there else { return false };
        *there = instead.clone();
        true
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
