//! Files read within bounds, and never such that would block.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A text file, cut at `max` bytes with a note. None: not there, blank, not a plain file, or not text.
pub(super) fn text(path: &Path, max: usize) -> Option<String> {
    let (mut text, whole) = prefix(path, max)?;
    if text.trim().is_empty() {
        return None;
    }
    if !whole {
        text.push_str(&format!("\n[cut at {max} bytes: {} goes on]", path.display()));
    }
    Some(text)
}

/// The first `max` bytes of a text file, and whether that is all of it. None: no plain file, or binary.
pub(super) fn prefix(path: &Path, max: usize) -> Option<(String, bool)> {
    let (bytes, whole) = bytes(path, max)?;
    if bytes.contains(&0) {
        return None;
    }
    // A character may be cut in two at the end, and only there.
    let text = match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let valid = error.utf8_error().valid_up_to();
            let bytes = error.into_bytes();
            let cut = !whole && bytes.len() - valid < 4;
            let kept = if cut { bytes.get(..valid).unwrap_or_default() } else { &bytes };
            String::from_utf8_lossy(kept).into_owned()
        }
    };
    Some((text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text), whole))
}

pub(super) fn bytes(path: &Path, max: usize) -> Option<(Vec<u8>, bool)> {
    // Opening a FIFO would wait for its writer.
    fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    let mut bytes = Vec::new();
    let limit = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1);
    File::open(path).ok()?.take(limit).read_to_end(&mut bytes).ok()?;
    let whole = bytes.len() <= max;
    bytes.truncate(max);
    Some((bytes, whole))
}

/// What lies in a directory, by name.
pub(super) fn entries(dir: &Path, max: usize) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).take(max).collect();
    paths.sort();
    paths
}

/// Whether it belongs to us, to root, or to the owner of the work directory.
pub(super) fn is_ours(path: &Path, work_dir: Option<&Path>) -> bool {
    let owner = |path: &Path| fs::metadata(path).ok().map(|meta| meta.uid());
    let Some(uid) = owner(path) else { return false };
    uid == 0 || uid == rustix::process::getuid().as_raw() || work_dir.and_then(owner) == Some(uid)
}
