//! What lies in the session directory: which file has which id, and what lists show of it.
//!
//! The directory is looked at each time; a file is read again only when its size or time changed. Of a large one a
//! list reads the beginning and the end; the rest follows in the background (see [`super::listing`]). All of it is
//! kept in `.kli-list`, a cache.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use kli_protocol::api::{Unreadable, Warning};
use kli_protocol::record::{Base, Header};
use serde::{Deserialize, Serialize};

use super::disk::{Disk, Locking};
use super::listing::Stop;
use super::medium::{Lost, Medium};
use super::scan::{self, Head, Source, Warnings};
use super::{Facts, StoreError, medium, names, sidecar};
use crate::tree::{Index, Ix, json, line};

/// What one file of the directory is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Summary {
    pub facts: Facts,
    /// Only the beginning and the end of the file were read.
    pub glanced: bool,
    /// A fork of which only the own file was read: what its base adds is missing.
    pub unjoined: bool,
    pub base: Option<Base>,
    pub migrated_from: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    size: u64,
    mtime: (i64, i64),
    inode: u64,
}

#[derive(Serialize, Deserialize)]
struct Known {
    stamp: Stamp,
    what: Result<Summary, String>,
    /// It was the reading that failed, which may go well at the next look though the file stays the same.
    #[serde(skip)]
    passing: bool,
    /// The look at the directory that saw it last.
    #[serde(skip)]
    seen: u64,
}

/// Why there is no summary of a file.
#[derive(Debug)]
pub struct Failed {
    reason: String,
    passing: bool,
}

/// What a file is that somebody names by its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The session of this id, or what that was written anew from.
    Owned(String),
    /// Not readable, or another has its id: says why.
    Refused(String),
    Unknown,
}

#[derive(Default)]
pub struct Catalog {
    files: Files,
    /// Deleted and not removed yet, since forks may need them.
    deleted: Files,
    /// The file that has an id, and the files that claim one in vain.
    owners: HashMap<String, PathBuf>,
    vain: HashMap<PathBuf, String>,
    /// Whether `.kli-list` was looked for, and what it lacks by now.
    loaded: bool,
    unsaved: usize,
    look: u64,
    /// No part of the directory was hidden from the last look.
    all_seen: bool,
    /// Files that may be glanced at or unjoined: false where there is surely none.
    unfinished: bool,
}

/// Files by their paths, which are compared as bytes: by their components, as [`Path`] does it, took a third of the
/// time of a list.
#[derive(Default)]
struct Files(BTreeMap<OsString, Known>);

impl Files {
    fn get(&self, path: &Path) -> Option<&Known> {
        self.0.get(path.as_os_str())
    }

    fn get_mut(&mut self, path: &Path) -> Option<&mut Known> {
        self.0.get_mut(path.as_os_str())
    }

    fn insert(&mut self, path: PathBuf, known: Known) {
        self.0.insert(path.into_os_string(), known);
    }

    fn iter(&self) -> impl Iterator<Item = (&Path, &Known)> {
        self.0.iter().map(|(path, known)| (Path::new(path), known))
    }

    /// Those that can be read, and what they are.
    fn read(&self) -> impl Iterator<Item = (&Path, &Summary)> {
        self.iter().filter_map(|(path, known)| Some((path, known.what.as_ref().ok()?)))
    }
}

/// Of a larger file a list reads only the beginning and the end.
const GLANCE_ABOVE: u64 = 512 * 1024;
/// How much of each.
const WINDOW: u64 = 64 * 1024;
/// After so many changes `.kli-list` is written even if nobody stops.
const SAVE_AFTER: usize = 64;

const LIST: &str = ".kli-list";
const DELETED: &str = "jsonl.deleted";

impl Catalog {
    /// Looks at the directory again. Files of `live` sessions are known better by those.
    pub fn refresh(&mut self, dir: &Path, live: &HashSet<PathBuf>) {
        if !std::mem::replace(&mut self.loaded, true) {
            self.load(dir);
        }
        self.look += 1;
        let look = self.look;
        let mut changed = false;
        let (found, all_seen) = session_files(dir);
        self.all_seen = all_seen;
        for (path, stamp) in found {
            let files = if is_deleted(&path) { &mut self.deleted } else { &mut self.files };
            if let Some(known) = files.get_mut(&path)
                && (known.stamp == stamp && !known.passing || known.what.is_ok() && live.contains(&path))
            {
                known.seen = look;
                continue;
            }
            let (what, passing) = told(summary(&path, stamp.size));
            files.insert(path, Known { stamp, what, passing, seen: look });
            changed = true;
            self.unsaved += 1;
        }
        for files in [&mut self.files, &mut self.deleted] {
            let before = files.0.len();
            files.0.retain(|_, known| known.seen == look);
            changed |= files.0.len() != before;
        }
        if changed {
            self.assign();
        }
        if self.unsaved >= SAVE_AFTER {
            self.save(dir);
        }
    }

    /// A file that was only glanced at.
    pub fn glanced(&self) -> Option<(PathBuf, Stamp)> {
        let glanced = |known: &Known| known.what.as_ref().is_ok_and(|summary| summary.glanced);
        self.files.iter().find(|(_, known)| glanced(known)).map(|(path, known)| (path.to_owned(), known.stamp))
    }

    /// The forks whose bases were not asked yet.
    pub fn unjoined(&self) -> Vec<(PathBuf, Stamp, String)> {
        let unjoined = |(id, path): (&String, &PathBuf)| {
            let known = self.files.get(path)?;
            known.what.as_ref().ok().filter(|s| s.unjoined)?;
            Some((path.clone(), known.stamp, id.clone()))
        };
        self.owners.iter().filter_map(unjoined).collect()
    }

    /// What the whole of a session says; none: it could not be opened, and its own file has to do.
    pub fn join(&mut self, path: &Path, stamp: Stamp, whole: Option<Facts>) {
        let Some(known) = self.files.get_mut(path).filter(|known| known.stamp == stamp) else { return };
        let Ok(summary) = &mut known.what else { return };
        summary.unjoined = false;
        self.unsaved += 1;
        if let Some(whole) = whole {
            let own = &mut summary.facts;
            (own.first_prompt, own.last_prompt) = (whole.first_prompt, whole.last_prompt);
            (own.entry_count, own.message_count) = (whole.entry_count, whole.message_count);
            (own.warnings, own.read_only) = (whole.warnings, whole.read_only);
            summary.glanced = false;
        }
    }

    /// Whether the background has something to do.
    pub fn is_unfinished(&mut self) -> bool {
        self.unfinished = self.unfinished && (self.glanced().is_some() || !self.unjoined().is_empty());
        self.unfinished
    }

    /// What a file that was glanced at really holds, if it is still the same.
    pub fn complete(&mut self, path: PathBuf, stamp: Stamp, what: Result<Summary, Failed>) {
        if let Some(known) = self.files.get_mut(&path)
            && known.stamp == stamp
        {
            (known.what, known.passing) = told(what);
            self.unsaved += 1;
            self.assign();
        }
    }

    fn load(&mut self, dir: &Path) {
        let Ok(text) = std::fs::read_to_string(dir.join(LIST)) else { return };
        for line in text.lines() {
            // What could not be read is looked at anew.
            if let Ok((path, known)) = serde_json::from_str::<(PathBuf, Known)>(line)
                && known.what.is_ok()
            {
                let files = if is_deleted(&path) { &mut self.deleted } else { &mut self.files };
                files.insert(path, known);
            }
        }
        self.assign();
    }

    /// Writes `.kli-list`, where something is new; a failure costs time at the next start and nothing else.
    pub fn save(&mut self, dir: &Path) {
        if self.unsaved == 0 {
            return;
        }
        self.unsaved = 0;
        let write = || -> std::io::Result<()> {
            let part = dir.join(format!("{LIST}.part"));
            let file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
            let mut out = std::io::BufWriter::new(file);
            for entry in self.files.iter().chain(self.deleted.iter()) {
                serde_json::to_writer(&mut out, &entry)?;
                out.write_all(b"\n")?;
            }
            out.into_inner().map_err(std::io::IntoInnerError::into_error)?;
            std::fs::rename(part, dir.join(LIST))
        };
        if let Err(e) = write() {
            tracing::debug!("{LIST} could not be written: {e}");
        }
    }

    /// Which file has an id that several claim: not one that was migrated from, then the one named after it, then
    /// the first.
    fn assign(&mut self) {
        let mut claims: HashMap<&str, Vec<(&Path, Option<&str>)>> = HashMap::new();
        for (path, summary) in self.files.read() {
            claims.entry(&summary.facts.id).or_default().push((path, summary.migrated_from.as_deref()));
        }
        let (mut owners, mut vain) = (HashMap::new(), HashMap::new());
        for (id, files) in claims {
            let old: Vec<PathBuf> =
                files.iter().filter_map(|(path, from)| Some(path.with_file_name((*from)?))).collect();
            let (hidden, files): (Vec<_>, Vec<_>) =
                files.into_iter().partition(|(path, from)| from.is_none() && old.iter().any(|old| old == path));
            let ending = format!("_{id}.jsonl");
            let named = |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(&ending));
            let owner = files.iter().find(|(path, _)| files.len() == 1 || named(path)).or(files.first());
            let Some((owner, _)) = owner else { continue };
            for (path, _) in files.iter().filter(|(path, _)| path != owner) {
                vain.insert((*path).to_owned(), format!("same id as {}", owner.display()));
            }
            vain.extend(hidden.into_iter().map(|(path, _)| (path.to_owned(), String::new())));
            owners.insert(id.to_owned(), (*owner).to_owned());
        }
        (self.owners, self.vain, self.unfinished) = (owners, vain, true);
    }

    pub fn path_of(&self, id: &str) -> Option<&PathBuf> {
        self.owners.get(id)
    }

    /// What a file of the directory is, by its path.
    pub fn claim(&self, path: &Path) -> Claim {
        match self.files.get(path).map(|known| &known.what) {
            None => Claim::Unknown,
            Some(Err(reason)) => Claim::Refused(reason.clone()),
            Some(Ok(summary)) => match self.vain.get(path) {
                // Written anew in another file, which is the session from then on.
                Some(reason) if !reason.is_empty() => Claim::Refused(reason.clone()),
                _ => Claim::Owned(summary.facts.id.clone()),
            },
        }
    }

    /// The files of old formats that were written anew in this one.
    pub fn migrated_to(&self, path: &Path) -> Vec<PathBuf> {
        let summary = |path: &Path| self.files.get(path).and_then(|known| known.what.as_ref().ok());
        let old = summary(path).and_then(|s| Some((path.with_file_name(s.migrated_from.as_ref()?), &s.facts.id)));
        let same = old.filter(|(old, id)| summary(old).is_some_and(|summary| summary.facts.id == **id));
        same.into_iter().map(|(old, _)| old).collect()
    }

    /// Where the records of a session lie for those that forked from it: deleted ones too, and of a deleted one that
    /// was written anew the new file.
    pub fn base_path(&self, id: &str) -> Option<&Path> {
        let deleted = || {
            let all = self.deleted.read().filter(|(_, summary)| summary.facts.id == id);
            all.max_by_key(|(_, summary)| summary.migrated_from.is_some())
        };
        self.path_of(id).map(PathBuf::as_path).or_else(|| deleted().map(|(path, _)| path))
    }

    /// The file that should be this session and cannot be read.
    pub fn unreadable_of(&self, id: &str) -> Option<(PathBuf, String)> {
        let ending = format!("_{id}.jsonl");
        self.files.iter().find_map(|(path, known)| {
            let reason = known.what.as_ref().err()?;
            path.to_string_lossy().ends_with(&ending).then(|| (path.to_owned(), reason.clone()))
        })
    }

    pub fn summaries(&self) -> impl Iterator<Item = &Summary> {
        let owned = self.files.read().filter(|(path, _)| self.vain.is_empty() || !self.vain.contains_key(*path));
        owned.map(|(_, summary)| summary)
    }

    pub fn summary(&self, id: &str) -> Option<&Summary> {
        self.files.get(self.owners.get(id)?)?.what.as_ref().ok()
    }

    pub fn unreadable(&self) -> Vec<Unreadable> {
        let vain = |path: &Path| self.vain.get(path).filter(|reason| !reason.is_empty());
        let reason = |(path, known): (&'_ Path, &'_ Known)| match &known.what {
            Err(reason) => Some((path.to_owned(), reason.clone())),
            Ok(_) => vain(path).map(|reason| (path.to_owned(), reason.clone())),
        };
        let all = self.files.iter().filter_map(reason);
        all.map(|(path, reason)| Unreadable { path: path.display().to_string(), reason }).collect()
    }

    /// Deleted files that no other file can need: none while something cannot be read or seen, since it may be a fork.
    pub fn removable(&self) -> Vec<PathBuf> {
        let all = || self.files.iter().chain(self.deleted.iter()).map(|(_, known)| &known.what);
        // Nor does a newer version's file say for certain what it needs.
        let is_riddle = |what: &Result<Summary, String>| {
            what.as_ref().map_or(true, |summary| summary.facts.newer_version && summary.base.is_none())
        };
        if !self.all_seen || all().any(is_riddle) {
            return Vec::new();
        }
        let needed: BTreeSet<&str> =
            all().filter_map(|what| Some(what.as_ref().ok()?.base.as_ref()?.session.as_str())).collect();
        let free = self.deleted.read().filter(|(_, summary)| !needed.contains(summary.facts.id.as_str()));
        free.map(|(path, _)| path.to_owned()).collect()
    }
}

/// Whether a file is a deleted session.
pub fn is_deleted(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(DELETED.as_bytes())
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

/// What is said of a session whose header names a parent that is not found.
pub fn unknown_parent(parent: &str, path: &Path) -> Warning {
    Warning {
        kind: "parentSession".to_owned(),
        message: format!("the session that this one was forked from ({parent}) cannot be told"),
        path: Some(path.display().to_string()),
        offset: Some(0),
    }
}

/// `*.jsonl` (and deleted ones) in a directory and its direct subdirectories, and whether these are all.
fn session_files(dir: &Path) -> (Vec<(PathBuf, Stamp)>, bool) {
    let mut files = Vec::new();
    let mut all_seen = true;
    let mut directories = vec![(dir.to_owned(), 0)];
    while let Some((dir, depth)) = directories.pop() {
        let Ok(entries) = std::fs::read_dir(&dir) else {
            all_seen = false;
            continue;
        };
        for entry in entries {
            let Ok((kind, entry)) = entry.and_then(|entry| Ok((entry.file_type()?, entry))) else {
                all_seen = false;
                continue;
            };
            let path = entry.path();
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.ends_with(".jsonl") || name.ends_with(DELETED) {
                // Through links too: a directory of sessions may be made of them.
                let meta = if kind.is_symlink() { std::fs::metadata(&path) } else { entry.metadata() };
                match meta {
                    Ok(meta) if meta.is_file() => files.push((path, stamp(&meta))),
                    Ok(_) => {}
                    Err(_) => all_seen = false,
                }
            } else if depth == 0 && (kind.is_dir() || kind.is_symlink() && path.is_dir()) {
                directories.push((path, 1));
            }
        }
    }
    (files, all_seen)
}

fn stamp(meta: &std::fs::Metadata) -> Stamp {
    Stamp { size: meta.len(), mtime: (meta.mtime(), meta.mtime_nsec()), inode: meta.ino() }
}

fn told(what: Result<Summary, Failed>) -> (Result<Summary, String>, bool) {
    match what {
        Ok(summary) => (Ok(summary), false),
        Err(Failed { reason, passing }) => (Err(reason), passing),
    }
}

fn summary(path: &Path, size: u64) -> Result<Summary, Failed> {
    reasoned(read_summary(path, if size > GLANCE_ABOVE { Extent::Ends } else { Extent::All }, &Stop::default()))
}

/// By reading the whole file, however large; none when `stop` ended it.
pub fn full_summary(path: &Path, stop: &Stop) -> Option<Result<Summary, Failed>> {
    let read = read_summary(path, Extent::All, stop);
    // It may be set no longer.
    let stopped = matches!(&read, Err(StoreError::Io { source, .. }) if source.kind() == ErrorKind::Interrupted);
    (!stopped).then(|| reasoned(read))
}

fn reasoned(summary: super::Result<Summary>) -> Result<Summary, Failed> {
    summary.map_err(|e| match e {
        StoreError::Corrupt { reason, .. } => Failed { reason, passing: false },
        other => Failed { reason: other.to_string(), passing: true },
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    All,
    /// What lies within a window at either end.
    Ends,
}

fn read_summary(path: &Path, extent: Extent, stop: &Stop) -> super::Result<Summary> {
    let disk = Disk::open(path, Locking::None)?;
    let head = scan::head(&disk, path)?;
    let mut index = Index::new(0, None);
    let mut progress = head.progress();
    let mut warnings = Warnings::default();
    let failed = |source| StoreError::Io { act: format!("cannot read {}", path.display()), source };
    let ends = Ends { disk: &disk, stop, extent };
    let source = Source { medium: &ends, path: Some(path), shape: head.shape };
    match extent {
        Extent::All => {
            // Of a large file that was open before only the end is new.
            if head.header.base.is_none()
                && Medium::size(&disk).unwrap_or_default() > sidecar::ABOVE
                && let Some(idx) = sidecar::path_of(path, false)
                && let Some(known) = sidecar::load(&idx, path, &disk, &head, 0)
            {
                (index, progress, warnings) = known;
            }
            let first = index.end();
            scan::records(&source, &mut index, &(), &mut progress, &mut warnings).map_err(failed)?;
            if head.header.base.is_none() {
                scan::settle(&mut index, &(), first, Some(path), &mut warnings);
            }
        }
        Extent::Ends => {
            let mut ignored = Warnings::default();
            scan::records(&source, &mut index, &(), &mut progress, &mut ignored).map_err(failed)?;
            let size = Medium::size(&disk).unwrap_or_default();
            // The first line there is part of one, and so no record.
            progress.covered = size.saturating_sub(WINDOW).max(progress.covered);
            let end = Source { medium: &disk, ..source };
            scan::records(&end, &mut index, &(), &mut progress, &mut ignored).map_err(failed)?;
        }
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
        facts.entry_count = (extent == Extent::All).then_some(tally.nodes);
        facts.message_count = (extent == Extent::All).then_some(tally.messages);
    }
    // Parents that lie in the base are not missing.
    facts.warnings = warnings.list;
    let Header { parent_session, base, migrated_from, .. } = head.header;
    facts.parent_session = parent_session.as_deref().and_then(parent_id);
    if let Some(parent) = parent_session.filter(|_| facts.parent_session.is_none()) {
        facts.warnings.push(unknown_parent(&parent, path));
    }
    Ok(Summary { facts, glanced: extent == Extent::Ends, unjoined: base.is_some(), base, migrated_from })
}

/// A file of which only the beginning is shown, or all of it until somebody wants to stop.
struct Ends<'a> {
    disk: &'a Disk,
    stop: &'a Stop,
    extent: Extent,
}

impl Medium for Ends<'_> {
    fn size(&self) -> Result<u64, Lost> {
        let size = self.disk.size()?;
        Ok(if self.extent == Extent::Ends { size.min(WINDOW) } else { size })
    }

    fn room(&self, _: u64) -> super::Result<()> {
        Ok(())
    }

    fn append(&self, _: &[u8]) -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    fn cut(&self, _: u64) -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.stop.is_set() {
            return Err(ErrorKind::Interrupted.into());
        }
        let end = match self.extent {
            Extent::All => u64::MAX,
            Extent::Ends => WINDOW,
        };
        let len = usize::try_from(end.saturating_sub(offset)).unwrap_or(usize::MAX).min(buffer.len());
        self.disk.read_at(offset, buffer.get_mut(..len).unwrap_or_default())
    }

    fn sync(&self) -> std::io::Result<()> {
        Ok(())
    }
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
