//! `find`: files and directories by name.

use std::path::{Path, PathBuf};

use futures_util::future::BoxFuture;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::grep::{NameOrPath, outline, tidy};
use super::read::with_notes;
use super::walk::Place;
use super::{Arguments, Effect, Outline, Tool, ToolContext, ToolOutput, ToolSpec, args, path};
use crate::text::{self, Limits};

const DEFAULT_LIMIT: usize = 1000;

pub(crate) struct Find {
    spec: ToolSpec,
}

impl Find {
    pub(crate) fn new() -> Find {
        let description = format!(
            "Find files and directories by glob. A pattern without a slash is matched with names at any depth \
             (*.rs), one with a slash with paths from the searched directory on (src/**/*.rs). What git ignores is \
             passed over unless path names it. At most {DEFAULT_LIMIT} paths unless limit says otherwise."
        );
        let parameters = json!({
            "type": "object",
            "properties": {
                "pattern": {"type": "string", "description": "Glob, such as *.ts, **/*.json or src/**/*.spec.ts"},
                "path": {"type": "string", "description": "Directory to search (default: the work directory)"},
                "limit": {"type": "integer", "description": "Most paths to show"},
            },
            "required": ["pattern"],
        });
        Find { spec: ToolSpec { name: "find".into(), description, parameters, effect: Effect::Reads } }
    }
}

impl Tool for Find {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn outline(&self, arguments: &Arguments, work_dir: &Path) -> Outline {
        outline("find", args::text(arguments, "pattern").unwrap_or_default(), arguments, work_dir)
    }

    fn call<'a>(&'a self, arguments: Arguments, context: ToolContext) -> BoxFuture<'a, ToolOutput> {
        Box::pin(async move {
            let request = match Request::from(&arguments, &context.work_dir) {
                Ok(request) => request,
                Err(error) => return ToolOutput::error(error),
            };
            if let Err(gone) = path::check_work_dir(&context.work_dir) {
                return gone;
            }
            super::blocking(&context.cancel, move |cancel| find(&request, cancel)).await
        })
    }
}

struct Request {
    pattern: NameOrPath,
    root: PathBuf,
    work_dir: PathBuf,
    limit: usize,
}

impl Request {
    fn from(arguments: &Arguments, work_dir: &Path) -> Result<Request, String> {
        let pattern = args::text(arguments, "pattern").map_err(|error| error.to_string())?;
        let place = args::optional_text(arguments, "path").map_err(|error| error.to_string())?.unwrap_or(".");
        Ok(Request {
            pattern: NameOrPath::new(pattern).map_err(|error| format!("The pattern is no glob: {error}"))?,
            root: tidy(&path::resolve(place, work_dir)),
            work_dir: work_dir.to_owned(),
            limit: args::count(arguments, "limit", DEFAULT_LIMIT).map_err(|error| error.to_string())?,
        })
    }
}

fn find(request: &Request, cancel: &CancellationToken) -> ToolOutput {
    let name = path::display(&request.root, &request.work_dir);
    match std::fs::metadata(&request.root) {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => return ToolOutput::error(format!("{name} is not a directory.")),
        Err(error) => return ToolOutput::error(format!("{name}: {error}")),
    }
    let (mut lines, mut count, mut more, mut unread) = (String::new(), 0, false, 0);
    for entry in Place::new(request.root.clone(), &request.work_dir).entries() {
        if cancel.is_cancelled() {
            return super::aborted();
        }
        let Ok(entry) = entry else {
            unread += 1;
            continue;
        };
        let below = entry.path().strip_prefix(&request.root).unwrap_or(entry.path());
        if !request.pattern.matches(below) {
            continue;
        }
        if count == request.limit || lines.len() > Limits::OUTPUT.bytes {
            more = true;
            break;
        }
        count += 1;
        lines.push_str(&path::display(entry.path(), &request.work_dir));
        lines.push_str(if entry.file_type().is_some_and(|kind| kind.is_dir()) { "/\n" } else { "\n" });
    }
    let cut = text::head(&lines, Limits { lines: usize::MAX, bytes: Limits::OUTPUT.bytes });
    let mut notes = Vec::new();
    if more || cut.by.is_some() {
        notes.push(format!("Only the first {}; there are more. Narrow the pattern or the path down.", cut.lines));
    }
    if unread > 0 {
        notes.push(format!("{unread} directories could not be searched."));
    }
    let body = if count == 0 { "Nothing matches the pattern." } else { cut.text };
    ToolOutput::text(with_notes(body, &notes))
}
