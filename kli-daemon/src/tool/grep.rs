//! `grep`: lines that match, in files that are not ignored.

use std::path::{Path, PathBuf};

use futures_util::future::BoxFuture;
use globset::{GlobBuilder, GlobMatcher};
use grep_matcher::{LineTerminator, Matcher as _};
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkMatch};
use kli_protocol::api::Location;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::args::{self, ArgumentError};
use super::read::with_notes;
use super::walk::Place;
use super::{Arguments, Effect, Outline, Tool, ToolContext, ToolOutput, ToolSpec, file, path, policy};
use crate::text::{self, Limits};

/// Matches, unless a call says otherwise.
const DEFAULT_LIMIT: usize = 100;
/// Characters of a line.
const LONGEST_LINE: usize = 500;
const MOST_CONTEXT: usize = 100;
/// Of a file whose lines are so long that they do not fit, nothing is searched.
const MOST_MEMORY: usize = 16 * 1024 * 1024;

pub(crate) struct Grep {
    spec: ToolSpec,
}

impl Grep {
    pub(crate) fn new() -> Grep {
        let description = format!(
            "Search the contents of files for a regular expression (or a literal text). Files that git ignores are \
             passed over unless path names them. Gives path:line:text; at most {DEFAULT_LIMIT} matches unless limit \
             says otherwise, long lines cut to {LONGEST_LINE} characters."
        );
        let parameters = json!({
            "type": "object",
            "properties": {
                "pattern": {"type": "string", "description": "Regular expression (Rust syntax), or text with literal"},
                "path": {"type": "string", "description": "File or directory to search (default: the work directory)"},
                "glob": {"type": "string", "description": "Only files that match, such as *.ts or src/**/*.rs"},
                "ignoreCase": {"type": "boolean", "description": "Upper and lower case are the same"},
                "literal": {"type": "boolean", "description": "The pattern is plain text"},
                "context": {"type": "integer", "description": "Lines to show before and after each match"},
                "limit": {"type": "integer", "description": "Most matches to show"},
            },
            "required": ["pattern"],
        });
        Grep { spec: ToolSpec { name: "grep".into(), description, parameters, effect: Effect::Reads } }
    }
}

impl Tool for Grep {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn outline(&self, arguments: &Arguments, work_dir: &Path) -> Outline {
        let pattern = args::text(arguments, "pattern").unwrap_or_default();
        outline("grep", pattern, arguments, work_dir)
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
            super::blocking(&context.cancel, move |cancel| search(&request, cancel)).await
        })
    }
}

/// One line for `grep` and `find`, and the place when it is not the whole work directory.
pub(crate) fn outline(tool: &str, pattern: &str, arguments: &Arguments, work_dir: &Path) -> Outline {
    let Ok(Some(place)) = args::optional_text(arguments, "path") else {
        return Outline { title: text::one_line(&format!("{tool} {pattern}"), 200), ..Outline::default() };
    };
    let resolved = path::resolve(place, work_dir);
    let title = text::one_line(&format!("{tool} {pattern} in {}", path::display(&resolved, work_dir)), 200);
    let location = Location { path: resolved.to_string_lossy().into_owned(), line: None };
    Outline { title, locations: vec![location], changes: None }
}

struct Request {
    matcher: RegexMatcher,
    multi_line: bool,
    glob: Option<NameOrPath>,
    root: PathBuf,
    work_dir: PathBuf,
    context: usize,
    limit: usize,
}

impl Request {
    fn from(arguments: &Arguments, work_dir: &Path) -> Result<Request, String> {
        let say = |error: ArgumentError| error.to_string();
        let pattern = args::text(arguments, "pattern").map_err(say)?;
        let literal = args::flag(arguments, "literal").map_err(say)?;
        let multi_line = pattern.contains('\n') || !literal && pattern.contains("\\n");
        let mut builder = RegexMatcherBuilder::new();
        builder
            .case_insensitive(args::flag(arguments, "ignoreCase").map_err(say)?)
            .fixed_strings(literal)
            .multi_line(true)
            .crlf(true);
        if multi_line {
            builder.line_terminator(None);
        }
        let matcher = builder
            .build(pattern)
            .map_err(|error| format!("The pattern is no regular expression: {error}\nSet literal for plain text."))?;
        let glob = match args::optional_text(arguments, "glob").map_err(say)? {
            Some(glob) => Some(NameOrPath::new(glob).map_err(|error| format!("The glob is wrong: {error}"))?),
            None => None,
        };
        let place = args::optional_text(arguments, "path").map_err(say)?.unwrap_or(".");
        let context = args::integer(arguments, "context").map_err(say)?.unwrap_or(0);
        Ok(Request {
            matcher,
            multi_line,
            glob,
            root: tidy(&path::resolve(place, work_dir)),
            work_dir: work_dir.to_owned(),
            context: usize::try_from(context).unwrap_or(0).min(MOST_CONTEXT),
            limit: args::count(arguments, "limit", DEFAULT_LIMIT).map_err(say)?,
        })
    }
}

/// Without `.` in it, for paths that are shown.
pub(crate) fn tidy(path: &Path) -> PathBuf {
    path.components().collect()
}

/// A glob as people mean it: one without a slash is about names, one with a slash about paths.
pub(crate) struct NameOrPath {
    matcher: GlobMatcher,
    names: bool,
}

impl NameOrPath {
    pub(crate) fn new(glob: &str) -> Result<NameOrPath, globset::Error> {
        let names = !glob.contains('/');
        let glob = glob.strip_prefix("./").or(glob.strip_prefix('/')).unwrap_or(glob).trim_end_matches('/');
        let matcher = GlobBuilder::new(glob).literal_separator(true).build()?.compile_matcher();
        Ok(NameOrPath { matcher, names })
    }

    /// `path` counts from the place that is searched.
    pub(crate) fn matches(&self, path: &Path) -> bool {
        if self.names {
            path.file_name().is_some_and(|name| self.matcher.is_match(name))
        } else {
            self.matcher.is_match(path)
        }
    }
}

fn search(request: &Request, cancel: &CancellationToken) -> ToolOutput {
    let metadata = match std::fs::metadata(&request.root) {
        Ok(metadata) => metadata,
        Err(error) => {
            return ToolOutput::error(format!("{}: {error}", path::display(&request.root, &request.work_dir)));
        }
    };
    let mut found =
        Found { lines: String::new(), matches: 0, limit: request.limit, unread: 0, kept_back: 0, stop: None };
    let mut searcher = searcher(request);
    if metadata.is_dir() {
        for entry in Place::new(request.root.clone(), &request.work_dir).entries() {
            if cancel.is_cancelled() {
                return super::aborted();
            }
            if found.stop.is_some() {
                break;
            }
            let Ok(entry) = entry else {
                found.unread += 1;
                continue;
            };
            if !entry.file_type().is_some_and(|kind| kind.is_file()) {
                continue;
            }
            let below = entry.path().strip_prefix(&request.root).unwrap_or(entry.path());
            if request.glob.as_ref().is_some_and(|glob| !glob.matches(below)) {
                continue;
            }
            // A person is asked for these, and was not asked for this one.
            if policy::is_sensitive(below) {
                found.kept_back += 1;
                continue;
            }
            one_file(request, &mut searcher, entry.path(), &mut found);
        }
    } else {
        match file::open(&request.root) {
            Ok(_) => one_file(request, &mut searcher, &request.root, &mut found),
            Err(error) => return ToolOutput::error(error.to_string()),
        }
    }
    found.into_output()
}

fn searcher(request: &Request) -> Searcher {
    SearcherBuilder::new()
        .line_terminator(LineTerminator::crlf())
        .line_number(true)
        .multi_line(request.multi_line)
        .before_context(request.context)
        .after_context(request.context)
        .binary_detection(BinaryDetection::quit(0))
        .heap_limit(Some(MOST_MEMORY))
        .build()
}

fn one_file(request: &Request, searcher: &mut Searcher, path: &Path, found: &mut Found) {
    let Ok((file, _)) = file::open(path) else {
        found.unread += 1;
        return;
    };
    let name = path::display(path, &request.work_dir);
    let before = found.lines.len();
    let mut lines = Lines { name: &name, matcher: &request.matcher, context: request.context > 0, found };
    if searcher.search_file(&request.matcher, &file, &mut lines).is_err() {
        found.unread += 1;
    }
    if request.context > 0 && before > 0 && found.lines.len() > before {
        found.lines.insert_str(before, "--\n");
    }
}

/// What was found so far.
struct Found {
    lines: String,
    matches: usize,
    limit: usize,
    unread: usize,
    kept_back: usize,
    stop: Option<Stop>,
}

#[derive(Clone, Copy)]
enum Stop {
    Limit,
    Size,
}

impl Found {
    fn into_output(self) -> ToolOutput {
        let mut notes = Vec::new();
        match self.stop {
            Some(Stop::Limit) => notes.push(format!(
                "There are more than {} matches. Narrow the search down by path, glob or pattern, or set a higher limit.",
                self.limit
            )),
            Some(Stop::Size) => notes.push(format!(
                "Cut at {} KiB. Narrow the search down by path, glob or pattern.",
                Limits::OUTPUT.bytes / 1024
            )),
            None => {}
        }
        if self.kept_back > 0 {
            notes.push(format!(
                "Passed over: {} that may hold secrets (such as .env or keys); path can name one.",
                self.kept_back
            ));
        }
        if self.unread > 0 {
            notes.push(format!("{} files or directories could not be searched.", self.unread));
        }
        if self.matches == 0 {
            return ToolOutput::text(with_notes("No matches.", &notes));
        }
        let cut = text::head(&self.lines, Limits { lines: usize::MAX, bytes: Limits::OUTPUT.bytes });
        let mut output = ToolOutput::text(with_notes(cut.text, &notes));
        output.details = Some(json!({ "matches": self.matches, "truncated": self.stop.is_some() }));
        output
    }
}

/// Writes one file's lines.
struct Lines<'a> {
    name: &'a str,
    matcher: &'a RegexMatcher,
    context: bool,
    found: &'a mut Found,
}

impl Lines<'_> {
    fn push(&mut self, bytes: &[u8], first: Option<u64>, mark: char) -> bool {
        let lines = bytes.split_inclusive(|byte| *byte == b'\n');
        for (number, line) in (first.unwrap_or(0)..).zip(lines) {
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let focus = match mark {
                ':' => self.matcher.find(line).ok().flatten().map_or(0, |found| found.start()),
                _ => 0,
            };
            let shown = String::from_utf8_lossy(line);
            let shown = text::clip_around(&shown, focus, LONGEST_LINE);
            self.found.lines.push_str(&format!(
                "{}{mark}{number}{mark}{}\n",
                self.name,
                shown.replace('\0', "\u{fffd}")
            ));
            if self.found.lines.len() > Limits::OUTPUT.bytes {
                self.found.stop = Some(Stop::Size);
                return false;
            }
        }
        true
    }
}

impl Sink for Lines<'_> {
    type Error = std::io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> Result<bool, Self::Error> {
        if self.found.matches == self.found.limit {
            self.found.stop = Some(Stop::Limit);
            return Ok(false);
        }
        self.found.matches += 1;
        Ok(self.push(found.bytes(), found.line_number(), ':'))
    }

    fn context(&mut self, _: &Searcher, context: &SinkContext<'_>) -> Result<bool, Self::Error> {
        // Past the last match that is shown, only its own context.
        Ok(self.push(context.bytes(), context.line_number(), '-'))
    }

    fn context_break(&mut self, _: &Searcher) -> Result<bool, Self::Error> {
        if self.context {
            self.found.lines.push_str("--\n");
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
