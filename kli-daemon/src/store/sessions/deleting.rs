//! Deleting: a session's file is renamed at once and removed when no fork can need it; its id is not given again.

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::{Store, lock, missing};
use crate::store::log::Home;
use crate::store::{Result, StoreError, catalog, disk, sidecar};

/// Ids of deleted sessions, one a line, where their files do not tell any more.
const GONE: &str = ".kli-gone";
/// Beyond this the older half is forgotten.
const MAX_BYTES: usize = 1 << 20;

/// Ids that were deleted.
#[derive(Default)]
pub(super) struct Gone {
    file: Option<PathBuf>,
    ids: HashSet<String>,
}

impl Gone {
    pub fn load(dir: Option<&Path>) -> Gone {
        let file = dir.map(|dir| dir.join(GONE));
        let text = file.as_ref().and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
        let ids: Vec<&str> = text.lines().collect();
        let old = if text.len() > MAX_BYTES { ids.len() / 2 } else { 0 };
        let kept: Vec<&str> = ids.into_iter().skip(old).collect();
        if let Some(file) = file.as_ref().filter(|_| old > 0) {
            noted(file, rewrite(file, &kept));
        }
        let ids = kept.into_iter().map(str::to_owned).collect();
        Gone { file, ids }
    }

    pub fn has(&self, id: &str) -> bool {
        self.ids.contains(id)
    }

    /// Of a session that ended with the daemon anyway.
    fn add_for_now(&mut self, id: &str) {
        self.ids.insert(id.to_owned());
    }

    fn add(&mut self, id: &str) {
        if self.ids.insert(id.to_owned())
            && let Some(file) = &self.file
        {
            let append = || {
                let mut out = OpenOptions::new().append(true).create(true).mode(0o600).open(file)?;
                out.write_all(format!("{id}\n").as_bytes())
            };
            noted(file, append());
        }
    }
}

fn rewrite(file: &Path, ids: &[&str]) -> std::io::Result<()> {
    let part = file.with_file_name(format!("{GONE}.part"));
    let mut out = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
    out.write_all((ids.join("\n") + "\n").as_bytes())?;
    std::fs::rename(part, file)
}

/// What cannot be noted costs no deletion.
fn noted(file: &Path, written: std::io::Result<()>) {
    if let Err(error) = written {
        tracing::warn!(path = %file.display(), %error, "a deleted id could not be noted");
    }
}

impl Store {
    pub fn delete(&self, id: &str) -> Result<()> {
        let log = self.live(id);
        if lock(&self.memory).remove(id).is_some() {
            lock(&self.gone).add_for_now(id);
        } else if log.as_ref().is_none_or(|log| log.home == Home::Dir) {
            let (known, migrated) = {
                let mut catalog = self.refreshed();
                match catalog.path_of(id) {
                    Some(path) => (Some(path.clone()), catalog.migrated_to(path)),
                    None if log.is_some() => (None, Vec::new()),
                    None => return Err(missing(&mut catalog, id)),
                }
            };
            self.shared.own_dir()?;
            // Keeps an append from making or growing the file behind our back.
            let writer = log.as_ref().map(|log| log.lock_writer());
            let path = log.as_ref().and_then(|log| log.path()).or(known);
            lock(&self.gone).add(id);
            // A file of an old format that was written anew would have the id again.
            for path in migrated.iter().chain(&path) {
                rename_deleted(path)?;
            }
            drop(writer);
        }
        if let Some(log) = &log {
            log.close("this session was deleted");
            self.forget(log);
        }
        self.remove_unneeded();
        Ok(())
    }

    fn remove_unneeded(&self) {
        if self.dir.is_none() {
            return;
        }
        // One that is gone may have been the last to need another.
        loop {
            let removable = self.refreshed().removable();
            if removable.is_empty() {
                return;
            }
            for path in removable {
                // Where its session is still somebody's base in memory, the open file goes on.
                if let Err(e) = std::fs::remove_file(&path) {
                    tracing::warn!("{} could not be removed: {e}", path.display());
                    return;
                }
                if let Some(idx) = sidecar::path_of(&path, false) {
                    let _ = std::fs::remove_file(idx);
                }
            }
        }
    }
}

fn rename_deleted(path: &Path) -> Result<()> {
    let failed = |source| StoreError::Io { act: format!("cannot delete {}", path.display()), source };
    let deleted = catalog::deleted_path(path);
    match std::fs::rename(path, &deleted) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        renamed => renamed.map_err(failed)?,
    }
    // Forks go on opening it by its index.
    if let (Some(from), Some(to)) = (sidecar::path_of(path, false), sidecar::path_of(&deleted, false)) {
        let _ = std::fs::rename(from, to);
    }
    let _ = std::fs::remove_file(path.with_extension("jsonl.events"));
    path.parent().map_or(Ok(()), disk::sync_dir).map_err(failed)
}
