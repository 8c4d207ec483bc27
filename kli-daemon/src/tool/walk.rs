//! Walks a tree of files for `grep` and `find`: what git ignores and `.git` itself are passed over, unless the
//! place that is asked for lies in it; symbolic links are not followed, so that no loop is walked.

use std::path::{Path, PathBuf};

use ignore::{DirEntry, WalkBuilder};

/// Where to search.
pub(crate) struct Place {
    root: PathBuf,
    /// The place itself is ignored, so it was named on purpose.
    everything: bool,
}

impl Place {
    pub(crate) fn new(root: PathBuf, work_dir: &Path) -> Place {
        let everything = is_left_out(&root, work_dir);
        Place { root, everything }
    }

    /// The entries below, in the order of their names, directories too.
    pub(crate) fn entries(&self) -> impl Iterator<Item = Result<DirEntry, ignore::Error>> {
        let mut walk = walker(&self.root);
        if self.everything {
            walk.standard_filters(false);
        } else {
            walk.filter_entry(|entry| entry.depth() == 0 || entry.file_name() != ".git");
        }
        walk.sort_by_file_name(Ord::cmp).build().filter(|entry| entry.as_ref().map_or(true, |entry| entry.depth() > 0))
    }
}

fn walker(root: &Path) -> WalkBuilder {
    let mut walk = WalkBuilder::new(root);
    walk.hidden(false).require_git(false).follow_links(false);
    walk
}

/// Whether a walk from the work directory would pass over this place, or over one on the way to it.
fn is_left_out(root: &Path, work_dir: &Path) -> bool {
    let Ok(below) = root.strip_prefix(work_dir) else {
        return root.components().any(|part| part.as_os_str() == ".git");
    };
    let mut directory = work_dir.to_owned();
    below.components().any(|part| {
        let name = part.as_os_str().to_owned();
        if name == "." || name == ".." {
            directory.push(&name);
            return false;
        }
        let wanted = name.clone();
        let mut level = walker(&directory);
        level.max_depth(Some(1)).filter_entry(move |entry| entry.depth() == 0 || entry.file_name() == wanted);
        let seen = level.build().flatten().any(|entry| entry.depth() == 1);
        directory.push(&name);
        name == ".git" || !seen && std::fs::symlink_metadata(&directory).is_ok()
    })
}
