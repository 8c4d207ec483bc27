//! Work directories whose own configuration, skills and commands are used: a person said so.
//!
//! Kept in one small file of the state directory, written anew by rename. A directory below a trusted one is
//! trusted too.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a person said of directories. A mutex: methods set it, every turn asks it, each for a moment.
#[derive(Debug)]
pub struct Trust {
    file: Option<PathBuf>,
    said: Mutex<BTreeMap<PathBuf, bool>>,
}

impl Trust {
    /// `file`: where it is kept; none: only while the daemon lives. A damaged file trusts nothing.
    pub fn load(file: Option<PathBuf>) -> Trust {
        let text = file.as_ref().and_then(|file| std::fs::read_to_string(file).ok());
        let said = text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        Trust { file, said: Mutex::new(said) }
    }

    fn said(&self) -> MutexGuard<'_, BTreeMap<PathBuf, bool>> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// By what was said of the directory itself, or of the nearest one above it.
    pub fn is_trusted(&self, dir: &Path) -> bool {
        let said = self.said();
        dir.ancestors().find_map(|dir| said.get(dir).copied()).unwrap_or_default()
    }

    /// Whether anything was said of the directory, or of one above it.
    pub fn is_known(&self, dir: &Path) -> bool {
        let said = self.said();
        dir.ancestors().any(|dir| said.contains_key(dir))
    }

    /// `dir` is canonical.
    pub fn set(&self, dir: &Path, trusted: bool) -> std::io::Result<()> {
        let mut said = self.said();
        let mut next = said.clone();
        next.insert(dir.to_owned(), trusted);
        if let Some(file) = &self.file {
            write(file, &serde_json::to_vec_pretty(&next)?)?;
        }
        *said = next;
        Ok(())
    }
}

fn write(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    if let Some(dir) = file.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    }
    let new = file.with_extension("new");
    let mut out = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    out.write_all(bytes)?;
    out.sync_data()?;
    std::fs::rename(&new, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_stays_and_counts_below() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("state/trusted.json");
        let trust = Trust::load(Some(file.clone()));
        assert!(!trust.is_trusted(Path::new("/p")));
        trust.set(Path::new("/p"), true).unwrap();
        trust.set(Path::new("/p/bad"), false).unwrap();
        for trust in [trust, Trust::load(Some(file.clone()))] {
            assert!(trust.is_trusted(Path::new("/p")) && trust.is_trusted(Path::new("/p/sub/dir")));
            assert!(!trust.is_trusted(Path::new("/p/bad/x")) && !trust.is_trusted(Path::new("/")));
            assert!(trust.is_known(Path::new("/p/bad/x")) && !trust.is_known(Path::new("/q")));
        }
        std::fs::write(&file, "{damaged").unwrap();
        assert!(!Trust::load(Some(file)).is_trusted(Path::new("/p")));
    }
}
