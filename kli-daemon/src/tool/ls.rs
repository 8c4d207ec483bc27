//! `ls`: what is in a directory.

use std::path::{Path, PathBuf};

use futures_util::future::BoxFuture;
use kli_protocol::api::Location;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::read::with_notes;
use super::{Arguments, Effect, Outline, Tool, ToolContext, ToolOutput, ToolSpec, args, path};
use crate::text::{self, Limits};

const DEFAULT_LIMIT: usize = 500;
/// A directory with more is not sorted but shown as far as it was read.
const MOST_SORTED: usize = 200_000;

pub(crate) struct Ls {
    spec: ToolSpec,
}

impl Ls {
    pub(crate) fn new() -> Ls {
        let description = format!(
            "List a directory in the order of names, hidden files too; directories end in /. At most {DEFAULT_LIMIT} \
             entries unless limit says otherwise."
        );
        let parameters = json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "Directory to list (default: the work directory)"},
                "limit": {"type": "integer", "description": "Most entries to show"},
            },
        });
        Ls { spec: ToolSpec { name: "ls".into(), description, parameters, effect: Effect::Reads } }
    }
}

impl Tool for Ls {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn outline(&self, arguments: &Arguments, work_dir: &Path) -> Outline {
        let place = args::optional_text(arguments, "path").ok().flatten().unwrap_or(".");
        let resolved = super::grep::tidy(&path::resolve(place, work_dir));
        let location = Location { path: resolved.to_string_lossy().into_owned(), line: None };
        Outline {
            title: format!("ls {}", path::display(&resolved, work_dir)),
            locations: vec![location],
            changes: None,
        }
    }

    fn call<'a>(&'a self, arguments: Arguments, context: ToolContext) -> BoxFuture<'a, ToolOutput> {
        Box::pin(async move {
            let place = args::optional_text(&arguments, "path");
            let limit = args::count(&arguments, "limit", DEFAULT_LIMIT);
            let (place, limit) = match (place, limit) {
                (Ok(place), Ok(limit)) => (place.unwrap_or("."), limit),
                (Err(error), _) | (_, Err(error)) => return ToolOutput::error(error.to_string()),
            };
            let path = path::resolve(place, &context.work_dir);
            if path.starts_with(&context.work_dir)
                && let Err(gone) = path::check_work_dir(&context.work_dir)
            {
                return gone;
            }
            let name = text::printable(place).into_owned();
            super::blocking(&context.cancel, move |cancel| list(&path, &name, limit, cancel)).await
        })
    }
}

fn list(path: &PathBuf, name: &str, limit: usize, cancel: &CancellationToken) -> ToolOutput {
    let entries = match std::fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return ToolOutput::error(format!("There is no directory {name}."));
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {
            return ToolOutput::error(format!("{name} is not a directory. Use read."));
        }
        Err(error) => return ToolOutput::error(format!("{name}: {error}")),
    };
    let mut names = Vec::new();
    let mut more = false;
    for entry in entries.flatten() {
        if cancel.is_cancelled() {
            return super::aborted();
        }
        if names.len() == MOST_SORTED {
            more = true;
            break;
        }
        let mut shown = text::printable(&entry.file_name().to_string_lossy()).into_owned();
        if is_directory(&entry) {
            shown.push('/');
        }
        names.push(shown);
    }
    if names.is_empty() {
        return ToolOutput::text("(empty directory)");
    }
    names.sort_by_cached_key(|name| (name.to_lowercase(), name.clone()));
    let total = names.len();
    let lines: String = names.iter().take(limit).map(|name| format!("{name}\n")).collect();
    let cut = text::head(&lines, Limits { lines: usize::MAX, bytes: Limits::OUTPUT.bytes });
    let mut notes = Vec::new();
    if cut.lines < total || more {
        let than = if more { "more than " } else { "" };
        notes.push(format!("Only the first {} of {than}{total} entries. Set a limit, or use find.", cut.lines));
    }
    ToolOutput::text(with_notes(cut.text, &notes))
}

/// Also through a link; one that leads nowhere is none.
fn is_directory(entry: &std::fs::DirEntry) -> bool {
    match entry.file_type() {
        Ok(kind) if kind.is_symlink() => std::fs::metadata(entry.path()).is_ok_and(|target| target.is_dir()),
        Ok(kind) => kind.is_dir(),
        Err(_) => false,
    }
}
