//! What lies in the session directory: which file has which id, and what lists show of it.
//!
//! The directory is looked at each time; a file is read again only when its size or time changed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use kli_protocol::api::Unreadable;
use kli_protocol::record::{Base, Header};

use super::disk::{Disk, Locking};
use super::scan::{self, Head, Source, Warnings};
use super::{Facts, StoreError, medium, names};
use crate::tree::{Index, Ix, json, line};

/// What one file of the directory is.
#[derive(Clone, Debug)]
pub struct Summary {
    pub facts: Facts,
    /// As the header says: an id, or a path.
    pub parent_session: Option<String>,
    pub base: Option<Base>,
    pub migrated_from: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    size: u64,
    mtime: (i64, i64),
    inode: u64,
}

struct Known {
    stamp: Stamp,
    what: Result<Summary, String>,
}

#[derive(Default)]
pub struct Catalog {
    files: BTreeMap<PathBuf, Known>,
    /// Deleted and not removed yet, since forks may need them.
    deleted: BTreeMap<PathBuf, Known>,
    /// The file that has an id, and the files that claim one in vain.
    owners: HashMap<String, PathBuf>,
    vain: BTreeMap<PathBuf, String>,
}

const DELETED: &str = "jsonl.deleted";

impl Catalog {
    /// Looks at the directory again.
    pub fn refresh(&mut self, dir: &Path) {
        let mut seen = BTreeSet::new();
        let mut changed = false;
        for (path, stamp) in session_files(dir) {
            let files = if is_deleted(&path) { &mut self.deleted } else { &mut self.files };
            if files.get(&path).is_none_or(|known| known.stamp != stamp) {
                files.insert(path.clone(), Known { stamp, what: summary(&path) });
                changed = true;
            }
            seen.insert(path);
        }
        let before = self.files.len() + self.deleted.len();
        self.files.retain(|path, _| seen.contains(path));
        self.deleted.retain(|path, _| seen.contains(path));
        if changed || before != self.files.len() + self.deleted.len() {
            self.assign();
        }
    }

    /// Which file has an id that several claim: not one that was migrated from, then the one named after it, then
    /// the first.
    fn assign(&mut self) {
        let readable = |known: &Known| known.what.as_ref().ok().cloned();
        let mut claims: BTreeMap<String, Vec<(PathBuf, Summary)>> = BTreeMap::new();
        for (path, known) in &self.files {
            if let Some(summary) = readable(known) {
                claims.entry(summary.facts.id.clone()).or_default().push((path.clone(), summary));
            }
        }
        self.owners.clear();
        self.vain.clear();
        for (id, mut files) in claims {
            let old: Vec<PathBuf> = files
                .iter()
                .filter_map(|(path, summary)| Some(path.with_file_name(summary.migrated_from.as_ref()?)))
                .collect();
            let migrated = |path: &PathBuf, summary: &Summary| summary.migrated_from.is_none() && old.contains(path);
            let hidden: Vec<PathBuf> =
                files.iter().filter(|(path, s)| migrated(path, s)).map(|(path, _)| path.clone()).collect();
            files.retain(|(path, _)| !hidden.contains(path));
            let ending = format!("_{id}.jsonl");
            let named = |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(&ending));
            let Some(owner) = files.iter().find(|(path, _)| named(path)).or(files.first()).map(|(p, _)| p.clone())
            else {
                continue;
            };
            for (path, _) in files.into_iter().filter(|(path, _)| *path != owner) {
                self.vain.insert(path, format!("same id as {}", owner.display()));
            }
            for path in hidden {
                self.vain.insert(path, String::new());
            }
            self.owners.insert(id, owner);
        }
    }

    pub fn path_of(&self, id: &str) -> Option<&PathBuf> {
        self.owners.get(id)
    }

    /// Where the records of a session lie for those that forked from it: deleted ones too.
    pub fn base_path(&self, id: &str) -> Option<&PathBuf> {
        let deleted = || self.deleted.iter().find(|(_, known)| known.what.as_ref().is_ok_and(|s| s.facts.id == id));
        self.path_of(id).or_else(|| deleted().map(|(path, _)| path))
    }

    /// The file that should be this session and cannot be read.
    pub fn unreadable_of(&self, id: &str) -> Option<(PathBuf, String)> {
        let ending = format!("_{id}.jsonl");
        self.files.iter().find_map(|(path, known)| {
            let reason = known.what.as_ref().err()?;
            path.to_string_lossy().ends_with(&ending).then(|| (path.clone(), reason.clone()))
        })
    }

    pub fn summaries(&self) -> impl Iterator<Item = &Summary> {
        let owned = self.owners.values().filter_map(|path| self.files.get(path));
        owned.filter_map(|known| known.what.as_ref().ok())
    }

    pub fn summary(&self, id: &str) -> Option<&Summary> {
        self.files.get(self.owners.get(id)?)?.what.as_ref().ok()
    }

    pub fn unreadable(&self) -> Vec<Unreadable> {
        let reason = |(path, known): (&PathBuf, &Known)| match (&known.what, self.vain.get(path)) {
            (Err(reason), _) => Some((path.clone(), reason.clone())),
            (_, Some(reason)) if !reason.is_empty() => Some((path.clone(), reason.clone())),
            _ => None,
        };
        let all = self.files.iter().filter_map(reason);
        all.map(|(path, reason)| Unreadable { path: path.display().to_string(), reason }).collect()
    }

    /// Deleted files that no other file can need: none while something cannot be read, since it may be a fork.
    pub fn removable(&self) -> Vec<PathBuf> {
        let all = || self.files.values().chain(self.deleted.values());
        if all().any(|known| known.what.is_err()) {
            return Vec::new();
        }
        let needed: BTreeSet<&str> =
            all().filter_map(|known| Some(known.what.as_ref().ok()?.base.as_ref()?.session.as_str())).collect();
        let free = |known: &Known| known.what.as_ref().is_ok_and(|s| !needed.contains(s.facts.id.as_str()));
        self.deleted.iter().filter(|(_, known)| free(known)).map(|(path, _)| path.clone()).collect()
    }
}

/// Whether a file is a deleted session.
pub fn is_deleted(path: &Path) -> bool {
    path.to_string_lossy().ends_with(DELETED)
}

/// Where a session goes when it is deleted.
pub fn deleted_path(path: &Path) -> PathBuf {
    path.with_extension(DELETED)
}

/// An id as it is; a path by that file's header, else by its name.
pub fn parent_id(parent: &str) -> Option<String> {
    if !parent.contains('/') && !parent.ends_with(".jsonl") {
        return Some(parent.to_owned());
    }
    let path = Path::new(parent);
    if let Ok(disk) = Disk::open(path, Locking::None)
        && let Ok(head) = scan::head(&disk, path)
    {
        return Some(head.header.id);
    }
    let name = path.file_name()?.to_str()?.strip_suffix(".jsonl")?;
    name.split_once('_').map(|(_, id)| id.to_owned()).filter(|id| names::valid_session_id(id))
}

/// `*.jsonl` (and deleted ones) in a directory and its direct subdirectories.
fn session_files(dir: &Path) -> Vec<(PathBuf, Stamp)> {
    let mut files = Vec::new();
    let mut directories = vec![(dir.to_owned(), 0)];
    while let Some((dir, depth)) = directories.pop() {
        let Ok(entries) = std::fs::read_dir(&dir) else { continue };
        for entry in entries.flatten() {
            let path = entry.path();
            let Ok(kind) = entry.file_type() else { continue };
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.ends_with(".jsonl") || name.ends_with(DELETED) {
                // Through links too: a directory of sessions may be made of them.
                if let Ok(meta) = std::fs::metadata(&path)
                    && meta.is_file()
                {
                    files.push((path, stamp(&meta)));
                }
            } else if depth == 0 && (kind.is_dir() || kind.is_symlink() && path.is_dir()) {
                directories.push((path, 1));
            }
        }
    }
    files
}

fn stamp(meta: &std::fs::Metadata) -> Stamp {
    Stamp { size: meta.len(), mtime: (meta.mtime(), meta.mtime_nsec()), inode: meta.ino() }
}

fn summary(path: &Path) -> Result<Summary, String> {
    read_summary(path).map_err(|e| match e {
        StoreError::Corrupt { reason, .. } => reason,
        other => other.to_string(),
    })
}

fn read_summary(path: &Path) -> super::Result<Summary> {
    let disk = Disk::open(path, Locking::None)?;
    let head = scan::head(&disk, path)?;
    let mut index = Index::new(0, None);
    let mut progress = head.progress();
    let mut warnings = Warnings::default();
    let source = Source { medium: &disk, path: Some(path), shape: head.shape };
    let failed = |source| StoreError::Io { act: format!("cannot read {}", path.display()), source };
    scan::records(&source, &mut index, &(), &mut progress, &mut warnings).map_err(failed)?;
    if head.header.base.is_none() {
        scan::settle(&mut index, &(), 0, Some(path), &mut warnings);
    }
    let prompt = |ix: Option<Ix>| {
        let row = index.row(ix?.0)?;
        let bytes = medium::read(&disk, row.offset, row.len).ok()?;
        let text = String::from_utf8(bytes).ok()?;
        let text = json::without_lone_surrogates(&text);
        Some(names::shortened(&typed(&text)?))
    };
    let tally = index.tally();
    let (first, last) = (prompt(tally.first_prompt), prompt(tally.last_prompt));
    let mut facts = header_facts(&head, path);
    facts.updated_at = match tally.updated_at.is_empty() {
        true => facts.created_at.clone(),
        false => tally.updated_at.clone(),
    };
    facts.name = tally.name.clone();
    facts.archived = tally.archived.unwrap_or_default();
    facts.mode = tally.mode.or(facts.mode);
    facts.work_dir = tally.work_dir.clone().unwrap_or(facts.work_dir);
    facts.usage = tally.usage;
    facts.last_prompt = last;
    if head.header.base.is_some() {
        facts.fork_prompt = first;
    } else {
        facts.first_prompt = first;
        facts.entry_count = Some(tally.nodes);
        facts.message_count = Some(tally.messages);
    }
    facts.warnings = warnings.list;
    let Header { parent_session, base, migrated_from, .. } = head.header;
    Ok(Summary { facts, parent_session, base, migrated_from })
}

/// The text of a prompt in any of pi's formats.
fn typed(text: &str) -> Option<String> {
    let mut fields: serde_json::Map<String, serde_json::Value> = serde_json::from_str(text).ok()?;
    fields.entry("id").or_insert_with(|| "-".into());
    line::typed(&serde_json::from_value(serde_json::Value::Object(fields)).ok()?)
}

/// What a header alone says.
pub fn header_facts(head: &Head, path: &Path) -> Facts {
    Facts {
        id: head.header.id.clone(),
        work_dir: work_dir(&head.header, path),
        created_at: head.header.timestamp.clone(),
        updated_at: head.header.timestamp.clone(),
        mode: head.header.mode,
        fork_entry_id: head.header.base.as_ref().map(|base| base.entry.clone()),
        persisted: true,
        path: Some(path.to_owned()),
        read_only: head.newer.clone(),
        newer_version: head.newer.is_some(),
        ..Facts::default()
    }
}

/// `cwd`, else the directory of the file.
pub fn work_dir(header: &Header, path: &Path) -> String {
    match &header.cwd {
        Some(dir) if !dir.is_empty() => dir.clone(),
        _ => {
            let dir = path.parent().unwrap_or(Path::new("/"));
            dir.canonicalize().unwrap_or_else(|_| dir.to_owned()).display().to_string()
        }
    }
}
