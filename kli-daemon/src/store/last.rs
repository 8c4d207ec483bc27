//! `.kli-last`: the sessions last used in each work directory, replaced by rename.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// So many are remembered of a directory: the last may be archived or deleted meanwhile.
const DEPTH: usize = 8;
/// So many directories.
const DIRECTORIES: usize = 10_000;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    pub session: String,
    /// Of a session that has a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
}

#[derive(Debug, Default)]
pub struct Last {
    file: Option<PathBuf>,
    dirs: BTreeMap<String, Vec<Used>>,
}

impl Last {
    /// A file that cannot be read is as good as none: it is a cache.
    pub fn load(dir: Option<&Path>) -> Last {
        let file = dir.map(|dir| dir.join(".kli-last"));
        let text = file.as_ref().and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
        Last { dirs: serde_json::from_str(&text).unwrap_or_default(), file }
    }

    /// Puts a session first; true: that is to be saved. One without a file is remembered only while the daemon lives.
    pub fn set(&mut self, work_dir: &str, used: Used) -> bool {
        let dir = self.dirs.entry(work_dir.to_owned()).or_default();
        if dir.first() == Some(&used) {
            return false;
        }
        dir.retain(|other| other.session != used.session);
        let written = used.path.is_some();
        dir.insert(0, used);
        dir.truncate(DEPTH);
        while self.dirs.len() > DIRECTORIES {
            self.dirs.pop_first();
        }
        written
    }

    /// Newest first.
    pub fn of(&self, work_dir: &str) -> &[Used] {
        self.dirs.get(work_dir).map_or(&[], Vec::as_slice)
    }

    pub fn save(&self) {
        let Some(file) = &self.file else { return };
        if let Err(e) = self.replace(file) {
            tracing::warn!("{} could not be written: {e}", file.display());
        }
    }

    fn replace(&self, file: &Path) -> std::io::Result<()> {
        let written: BTreeMap<&String, Vec<&Used>> =
            self.dirs.iter().map(|(dir, all)| (dir, all.iter().filter(|used| used.path.is_some()).collect())).collect();
        let part = file.with_file_name(".kli-last.part");
        let mut out = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
        out.write_all(serde_json::to_string(&written)?.as_bytes())?;
        drop(out);
        std::fs::rename(part, file)
    }
}
