//! Sessions: the only place where tree, store and agent meet.
//!
//! Each open session has one actor, which alone changes it; everybody else holds a [`Handle`]: a mailbox, the
//! log to read from, the hub to follow events. The [`Registry`] opens and makes sessions.

pub mod actor;
mod branch;
pub mod client_tools;
mod handle;
pub mod hub;
mod info;
mod registry;
pub mod trust;
pub mod views;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kli_protocol::ApiError;
use kli_protocol::ErrorKind;
use kli_protocol::api::{Mode, ModelRef, Warning};
use sha2::Digest;
use tokio::sync::watch;

pub use handle::{Handle, Pending};
pub use registry::{ForkMade, Registry, absolute, blocking, canonical, canonical_dir, mcp_settings};

use crate::agent::RetrySettings;
use crate::clock::Clock;
use crate::provider::Models;
use crate::store::{Durability, Log, Store, StoreError};
use crate::tool::Tool;
use crate::tool::policy::Rules;
use crate::tool::sandbox::Sandbox;
use crate::workspace::Places;

/// What the configuration says about sessions.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Rules of the configuration about tool calls.
    pub rules: Rules,
    pub default_mode: Mode,
    /// What a project wants for its new sessions; none: the table of models says.
    pub default_model: Option<ModelRef>,
    pub durability: Durability,
    pub retry: RetrySettings,
    pub compaction: CompactionSettings,
    /// How far a subscriber may lag behind, in bytes.
    pub max_subscriber_bytes: usize,
    /// What commands may touch.
    pub sandbox: Sandbox,
}

/// When a conversation is shortened, and how far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactionSettings {
    pub enabled: bool,
    pub reserve_tokens: u64,
    pub keep_recent_tokens: u64,
}

/// Puts what a trusted directory's own configuration says over the settings; none: it says nothing.
pub type ProjectSettings = dyn Fn(&Path, &Settings) -> Result<Option<Settings>, String> + Send + Sync;

/// What every session needs of the daemon.
pub struct Deps {
    pub store: Arc<Store>,
    pub clock: Arc<dyn Clock>,
    pub models: watch::Receiver<Arc<dyn Models>>,
    pub settings: watch::Receiver<Arc<Settings>>,
    pub project: Box<ProjectSettings>,
    pub tools: Vec<Arc<dyn Tool>>,
    pub client_tools: Arc<client_tools::ClientTools>,
    /// For the event files of sessions that lie outside the session directory.
    pub cache_dir: Option<PathBuf>,
    /// Events of all sessions, without deltas.
    pub all: Arc<hub::Hub>,
    /// The user's home and configuration directory, whose context files and skills count everywhere.
    pub home: Option<PathBuf>,
    pub config_dir: Option<PathBuf>,
    pub trust: trust::Trust,
}

impl Deps {
    pub fn now(&self) -> String {
        crate::clock::rfc3339(self.clock.now_ms())
    }

    /// Where the milestone events of a session are kept; none: it has no file.
    pub fn event_path(&self, log: &Log) -> Option<PathBuf> {
        let path = log.path()?;
        let inside = self.store.session_dir().is_some_and(|dir| path.starts_with(dir));
        if inside {
            let mut name = path.into_os_string();
            name.push(".events");
            return Some(name.into());
        }
        let digest = sha2::Sha256::digest(path.as_os_str().as_encoded_bytes());
        let name: String = digest.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
        Some(self.cache_dir.as_ref()?.join(format!("{name}.events")))
    }

    /// Where the files lie that speak to the model. The project's own configuration, skills and prompts count
    /// only when its directory is trusted; its context files are text like any other that a tool could read.
    pub fn places(&self, work_dir: &Path) -> Places {
        let trusted = self.trust.is_trusted(work_dir);
        Places { work_dir: trusted.then(|| work_dir.to_owned()), ..self.places_for_context(work_dir) }
    }

    pub fn places_for_context(&self, work_dir: &Path) -> Places {
        Places { config_dir: self.config_dir.clone(), home: self.home.clone(), work_dir: Some(work_dir.to_owned()) }
    }

    /// What of a directory's own would count, were it trusted; nothing once a person has said whether it is.
    pub fn untrusted(&self, work_dir: &Path) -> Vec<String> {
        match self.trust.is_known(work_dir) {
            true => vec![],
            false => crate::workspace::own_files(work_dir).iter().map(|p| p.to_string_lossy().into_owned()).collect(),
        }
    }

    pub fn settings(&self) -> Arc<Settings> {
        self.settings.borrow().clone()
    }

    /// The settings for a work directory, with what its project sets when it is trusted. The fault of a file that
    /// cannot be used comes beside: none of it counts then.
    pub fn settings_in(&self, work_dir: &Path) -> (Arc<Settings>, Option<Warning>) {
        let own = self.settings();
        if !self.trust.is_trusted(work_dir) {
            return (own, None);
        }
        match (self.project)(work_dir, &own) {
            Ok(None) => (own, None),
            Ok(Some(settings)) => (Arc::new(settings), None),
            Err(message) => {
                let path = work_dir.join(".kli/config.toml").to_string_lossy().into_owned();
                (own, Some(Warning { kind: "projectConfig".into(), message, path: Some(path), offset: None }))
            }
        }
    }

    pub fn models(&self) -> Arc<dyn Models> {
        self.models.borrow().clone()
    }
}

/// Where the store's errors become the contract's.
pub fn api_error(error: StoreError) -> ApiError {
    let message = error.to_string();
    match error {
        StoreError::SessionNotFound(_) => ApiError::new(ErrorKind::SessionNotFound, message),
        StoreError::Ambiguous { candidates, .. } => {
            ApiError::new(ErrorKind::Ambiguous, message).with("candidates", candidates)
        }
        StoreError::SessionExists(_) => ApiError::new(ErrorKind::SessionExists, message),
        StoreError::InvalidId(_) => ApiError::invalid_params(message),
        StoreError::EntryNotFound(_) => ApiError::new(ErrorKind::EntryNotFound, message),
        StoreError::AmbiguousEntry { candidates, .. } => {
            ApiError::new(ErrorKind::Ambiguous, message).with("candidates", candidates)
        }
        StoreError::Corrupt { path, offset, .. } => {
            let error = ApiError::new(ErrorKind::SessionCorrupt, message).with("path", path.display().to_string());
            match offset {
                Some(offset) => error.with("offset", offset),
                None => error,
            }
        }
        StoreError::ReadOnly { .. } => ApiError::new(ErrorKind::SessionReadOnly, message),
        StoreError::Limit { limit, max, .. } => ApiError::limit(limit, max, message),
        StoreError::FileExists { .. } => ApiError::new(ErrorKind::FileExists, message),
        StoreError::Io { .. } | StoreError::Other(_) => ApiError::new(ErrorKind::StoreFailed, message),
    }
}
