//! How the rest of the daemon reaches a session: its mailbox, its log to read, its events to follow.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use kli_protocol::api::Status;
use kli_protocol::{ApiError, ErrorKind};
use tokio::sync::{mpsc, oneshot, watch};

use super::actor::{Actor, Message};
use super::hub::Hub;
use crate::store::Log;

/// Calls that may wait in a session's mailbox; a caller waits for room beyond that.
pub(super) const MAILBOX: usize = 256;

/// A session that is open. Clones reach the same one.
#[derive(Clone)]
pub struct Handle {
    pub id: Arc<str>,
    pub log: Arc<Log>,
    pub hub: Arc<Hub>,
    /// What goes on in it.
    pub status: watch::Receiver<Status>,
    pub(super) mailbox: mpsc::Sender<Message>,
    pub(super) door: Arc<Door>,
    /// Somebody asked for it since the registry last looked.
    pub(super) used: Arc<AtomicBool>,
}

/// Where a session's mailbox is now: it has another when it was opened anew, and those who follow it stay. A mutex,
/// since followers ask from tasks of their own.
#[derive(Default)]
pub(super) struct Door(Mutex<Option<mpsc::WeakSender<Message>>>);

impl Door {
    pub fn lead_to(&self, mailbox: &mpsc::Sender<Message>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(mailbox.downgrade());
    }

    pub fn mailbox(&self) -> Option<mpsc::Sender<Message>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.upgrade()
    }
}

/// The answer to a call that the session has taken.
pub struct Pending<R>(oneshot::Receiver<R>);

impl<R> Pending<R> {
    pub(super) fn of(answer: oneshot::Receiver<R>) -> Pending<R> {
        Pending(answer)
    }

    pub(super) fn ready(answer: R) -> Pending<R> {
        let (reply, pending) = oneshot::channel();
        let _ = reply.send(answer);
        Pending(pending)
    }

    pub async fn wait(self) -> Result<R, ApiError> {
        self.0.await.map_err(|_| gone())
    }
}

impl Handle {
    /// Somebody asked for it.
    pub(super) fn touched(self) -> Handle {
        self.used.store(true, Ordering::Relaxed);
        self
    }

    /// Puts a call into the session's mailbox; calls are carried out in the order of their sending.
    pub async fn send<R: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Actor) -> R + Send + 'static,
    ) -> Result<Pending<R>, ApiError> {
        let (reply, answer) = oneshot::channel();
        let call = Box::new(move |actor: &mut Actor| {
            // A caller that went away does not undo its call.
            let _ = reply.send(call(actor));
        });
        self.mailbox.send(Message::Call(call)).await.map_err(|_| gone())?;
        Ok(Pending(answer))
    }

    /// `send` and wait.
    pub async fn ask<R: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Actor) -> R + Send + 'static,
    ) -> Result<R, ApiError> {
        self.send(call).await?.wait().await
    }
}

pub(super) fn gone() -> ApiError {
    ApiError::new(ErrorKind::ShuttingDown, "The session was closed while this call waited; call again.")
}
