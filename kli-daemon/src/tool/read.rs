//! `read`: a part of a text file, or a picture.

use std::io::{self, Cursor, Read as _};
use std::path::{Path, PathBuf};

use encoding_rs_io::DecodeReaderBytesBuilder;
use futures_util::future::BoxFuture;
use kli_protocol::api::Location;
use kli_protocol::record::{Block, ImageBlock};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::args::{self, ArgumentError};
use super::{Arguments, Effect, Outline, Tool, ToolContext, ToolOutput, ToolSpec, file, image, path};
use crate::text::{self, Limits};

/// Zero bytes so early say that a file is no text.
const SNIFFED: usize = 8 * 1024;
/// How far beyond what is shown the lines are still counted.
const COUNTED: u64 = 256 * 1024 * 1024;

pub(crate) struct Read {
    spec: ToolSpec,
}

impl Read {
    pub(crate) fn new() -> Read {
        let description = format!(
            "Read a text file or an image (png, jpeg, gif, webp). At most {} lines or {} KiB of text come back at \
             once; use offset and limit to read on in a large file.",
            Limits::OUTPUT.lines,
            Limits::OUTPUT.bytes / 1024
        );
        let parameters = json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "File to read, relative to the work directory or absolute"},
                "offset": {"type": "integer", "description": "First line to read, counted from 1"},
                "limit": {"type": "integer", "description": "How many lines to read"},
            },
            "required": ["path"],
        });
        Read { spec: ToolSpec { name: "read".into(), description, parameters, effect: Effect::Reads } }
    }
}

impl Tool for Read {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn outline(&self, arguments: &Arguments, work_dir: &Path) -> Outline {
        let Ok(path) = args::text(arguments, "path") else {
            return Outline { title: "read".into(), ..Outline::default() };
        };
        let resolved = path::resolve(path, work_dir);
        let line = args::integer(arguments, "offset").ok().flatten().and_then(|n| u64::try_from(n).ok());
        let mut title = format!("read {}", path::display(&resolved, work_dir));
        if let Some(line) = line {
            title.push_str(&format!(":{line}"));
        }
        let location = Location { path: resolved.to_string_lossy().into_owned(), line };
        Outline { title, locations: vec![location], changes: None }
    }

    fn call<'a>(&'a self, arguments: Arguments, context: ToolContext) -> BoxFuture<'a, ToolOutput> {
        Box::pin(async move {
            let request = match Request::from(&arguments, &context.work_dir) {
                Ok(request) => request,
                Err(error) => return ToolOutput::error(error.to_string()),
            };
            if request.path.starts_with(&context.work_dir)
                && let Err(gone) = path::check_work_dir(&context.work_dir)
            {
                return gone;
            }
            let images = context.images;
            super::blocking(&context.cancel, move |cancel| read(&request, images, cancel)).await
        })
    }
}

struct Request {
    path: PathBuf,
    /// As the model wrote it.
    name: String,
    offset: Option<i64>,
    limit: Option<i64>,
}

impl Request {
    fn from(arguments: &Arguments, work_dir: &Path) -> Result<Request, ArgumentError> {
        let name = args::text(arguments, "path")?;
        Ok(Request {
            path: path::resolve(name, work_dir),
            name: text::printable(name).into_owned(),
            offset: args::integer(arguments, "offset")?,
            limit: args::integer(arguments, "limit")?,
        })
    }
}

fn read(request: &Request, images: bool, cancel: &CancellationToken) -> ToolOutput {
    let (mut file, metadata) = match file::open(&request.path) {
        Ok(opened) => opened,
        Err(error @ file::FileError::Directory(_)) => return ToolOutput::error(format!("{error} Use ls to list it.")),
        Err(error) => return ToolOutput::error(error.to_string()),
    };
    let mut begin = Vec::with_capacity(SNIFFED);
    if let Err(error) = file.by_ref().take(SNIFFED as u64).read_to_end(&mut begin) {
        return ToolOutput::error(format!("{}: {error}", request.name));
    }
    if let Some(format) = image::format_of(&begin) {
        return picture(request, Cursor::new(begin).chain(file), format, images);
    }
    let utf16 = begin.starts_with(b"\xff\xfe") || begin.starts_with(b"\xfe\xff");
    if !utf16 && begin.contains(&0) {
        return ToolOutput::error(format!(
            "{} is a binary file ({}), not text. Use bash to look into it (file, strings, xxd).",
            request.name,
            text::size(metadata.len().max(begin.len() as u64))
        ));
    }
    let decoder =
        DecodeReaderBytesBuilder::new().utf8_passthru(true).strip_bom(true).build(Cursor::new(begin).chain(file));
    let first = match request.offset {
        Some(offset) if offset > 1 => u64::try_from(offset).unwrap_or(u64::MAX),
        _ => 1,
    };
    let lines = match request.limit {
        Some(limit) => usize::try_from(limit).unwrap_or(0).min(Limits::OUTPUT.lines),
        None => Limits::OUTPUT.lines,
    };
    match scan(decoder, first, lines, cancel) {
        Ok(Some(window)) => answer(request, window, first, lines, utf16),
        Ok(None) => super::aborted(),
        Err(error) => ToolOutput::error(format!("{}: {error}", request.name)),
    }
}

/// What was found of a file.
struct Window {
    /// From the first line wanted on, not much more than the limits allow.
    bytes: Vec<u8>,
    /// Of the whole file, or as far as it was counted.
    lines: u64,
    /// The end was reached, so `lines` is all.
    whole: bool,
}

/// Reads through in constant memory; none: cancelled.
fn scan(mut from: impl io::Read, first: u64, lines: usize, cancel: &CancellationToken) -> io::Result<Option<Window>> {
    let mut buffer = vec![0; 64 * 1024];
    let mut window = Window { bytes: Vec::new(), lines: 0, whole: false };
    let (mut newlines, mut taken, mut after) = (0u64, 0usize, 0u64);
    let mut last = b'\n';
    loop {
        if cancel.is_cancelled() {
            return Ok(None);
        }
        let n = from.read(&mut buffer)?;
        let mut chunk = buffer.get(..n).unwrap_or_default();
        let Some(end) = chunk.last() else { break };
        last = *end;
        // Before the window: whole lines are passed over.
        while newlines + 1 < first
            && let Some(at) = memchr::memchr(b'\n', chunk)
        {
            newlines += 1;
            chunk = chunk.get(at + 1..).unwrap_or_default();
        }
        if newlines + 1 < first {
            continue;
        }
        while taken < lines && window.bytes.len() <= Limits::OUTPUT.bytes && !chunk.is_empty() {
            let at = memchr::memchr(b'\n', chunk);
            let line = at.map_or(chunk.len(), |at| at + 1);
            // Room for a character and one byte more, which tell where to cut and that there was more.
            let keep = line.min(Limits::OUTPUT.bytes + 5 - window.bytes.len().min(Limits::OUTPUT.bytes));
            window.bytes.extend_from_slice(chunk.get(..keep).unwrap_or_default());
            if keep < line {
                break;
            }
            taken += usize::from(at.is_some());
            newlines += u64::from(at.is_some());
            chunk = chunk.get(line..).unwrap_or_default();
        }
        newlines += memchr::memchr_iter(b'\n', chunk).count() as u64;
        after += chunk.len() as u64;
        if after > COUNTED {
            window.lines = newlines;
            return Ok(Some(window));
        }
    }
    window.lines = newlines + u64::from(last != b'\n');
    window.whole = true;
    Ok(Some(window))
}

fn answer(request: &Request, window: Window, first: u64, lines: usize, utf16: bool) -> ToolOutput {
    let name = &request.name;
    let total = match (window.whole, window.lines) {
        (true, 1) => "1 line".to_owned(),
        (true, n) => format!("{n} lines"),
        (false, n) => format!("more than {n} lines"),
    };
    if let Some(offset) = request.offset.filter(|offset| *offset < 0) {
        return ToolOutput::error(format!("offset {offset}: lines count from 1; {name} has {total}."));
    }
    if let Some(limit) = request.limit.filter(|limit| *limit < 1) {
        return ToolOutput::error(format!("limit {limit}: it must be 1 or more; {name} has {total}."));
    }
    if window.whole && window.lines == 0 {
        return ToolOutput::text(format!("{name} is empty (0 bytes)."));
    }
    if window.whole && first > window.lines {
        return ToolOutput::error(format!("offset {first} is past the end: {name} has {total}."));
    }
    let (decoded, replaced) = decode(&window.bytes);
    let cut = text::head(&decoded, Limits { lines, bytes: Limits::OUTPUT.bytes });
    let last = first + (cut.lines as u64).saturating_sub(1);
    let more = !window.whole || last < window.lines;

    let mut notes = Vec::new();
    if cut.inside_line {
        notes.push(format!(
            "Line {first} is too long: only its first {} bytes are shown. Use bash for the rest: sed -n '{first}p' FILE | \
             tail -c +{}.",
            cut.text.len(),
            cut.text.len() + 1
        ));
    }
    if more {
        notes.push(format!("Lines {first}-{last} of {total}. Read on with offset={}.", last + 1));
    }
    if request.offset == Some(0) {
        notes.push(format!("Lines count from 1, so offset 0 was taken as 1; the file has {total}."));
    }
    if utf16 {
        notes.push("Decoded from UTF-16; edit keeps that encoding.".to_owned());
    }
    if replaced {
        notes.push("Bytes that are not UTF-8 text, and NUL, are shown as U+FFFD.".to_owned());
    }
    let mut output = ToolOutput::text(with_notes(cut.text, &notes));
    if more || cut.inside_line {
        let lines = window.whole.then_some(window.lines);
        output.details = Some(json!({ "truncated": true, "firstLine": first, "lastLine": last, "totalLines": lines }));
    }
    output
}

/// Text, then each note in brackets on its own line.
pub(crate) fn with_notes(text: &str, notes: &[String]) -> String {
    if notes.is_empty() {
        return text.to_owned();
    }
    let notes = notes.iter().map(|note| format!("[{note}]")).collect::<Vec<_>>().join("\n");
    let body = text.strip_suffix('\n').unwrap_or(text);
    if body.is_empty() { notes } else { format!("{body}\n\n{notes}") }
}

/// As text, and whether something was replaced. A character cut off by the end of the window is left out.
fn decode(bytes: &[u8]) -> (String, bool) {
    let mut text = String::with_capacity(bytes.len());
    let mut replaced = false;
    let mut chunks = bytes.utf8_chunks().peekable();
    while let Some(chunk) = chunks.next() {
        text.push_str(chunk.valid());
        let cut_off = chunks.peek().is_none() && bytes.len() > Limits::OUTPUT.bytes;
        if !chunk.invalid().is_empty() && !cut_off {
            text.push(char::REPLACEMENT_CHARACTER);
            replaced = true;
        }
    }
    if text.contains('\0') {
        text = text.replace('\0', "\u{fffd}");
        replaced = true;
    }
    (text, replaced)
}

fn picture(request: &Request, from: impl io::Read, format: ::image::ImageFormat, images: bool) -> ToolOutput {
    let name = &request.name;
    let mut bytes = Vec::new();
    match from.take(image::LARGEST_FILE + 1).read_to_end(&mut bytes) {
        Ok(_) if bytes.len() as u64 > image::LARGEST_FILE => {
            let limit = text::size(image::LARGEST_FILE);
            return ToolOutput::error(format!("{name} is an image of more than {limit}: too large to be shown."));
        }
        Ok(_) => {}
        Err(error) => return ToolOutput::error(format!("{name}: {error}")),
    }
    if !images {
        let (mime, size) = (format.to_mime_type(), text::size(bytes.len() as u64));
        let measure = image::dimensions(&bytes, format).map(|(w, h)| format!(", {w}×{h} px")).unwrap_or_default();
        return ToolOutput::text(format!(
            "{name} is an image ({mime}{measure}, {size}). The model in use takes no images, so it cannot be shown."
        ));
    }
    match image::prepare(bytes, format) {
        Ok(picture) => {
            let block = Block::Image(ImageBlock { data: picture.data, mime_type: picture.mime_type.to_owned() });
            let text = format!("{name}: {}", picture.about);
            ToolOutput { content: vec![Block::text(text), block], details: None, is_error: false }
        }
        Err(error) => ToolOutput::error(format!("{name} cannot be shown: {error}.")),
    }
}

#[cfg(test)]
mod tests;
