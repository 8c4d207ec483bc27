//! Where the old texts of an edit are in a file, and the file after it. Pure.
//!
//! Line ends do not matter for finding a text and are kept where they were. A text that is not found as it is gets
//! a second look in which typographic quotes and dashes, odd spaces and trailing white space do not matter either;
//! then too it must be found exactly once.

use std::ops::Range;

use memchr::memmem;

/// One edit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Replacement {
    pub old: String,
    pub new: String,
}

/// A file after its edits.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Applied {
    pub text: String,
    /// The edits (by their place in the call) that were only found loosely.
    pub inexact: Vec<usize>,
}

/// `{0}` is always the place of the edit in the call.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum EditError {
    #[error("edits[{0}].oldText is empty.")]
    Empty(usize),
    #[error("edits[{0}]: oldText and newText are the same.")]
    Same(usize),
    #[error(
        "edits[{0}].oldText was not found. It must be the text of the file as it was before this call, white space included.{1}"
    )]
    NotFound(usize, Hint),
    #[error("edits[{0}].oldText has {1} matches (lines {2}); it must have one. Add lines around it.")]
    Several(usize, usize, String),
    #[error("edits[{0}] and edits[{1}] overlap. Make them one edit.")]
    Overlap(usize, usize),
    #[error("The edits change nothing.")]
    NoChange,
}

/// What may help to find a text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Hint(Option<usize>);

impl std::fmt::Display for Hint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(line) => write!(f, " Its first line is line {line} of the file, but what follows differs."),
            None => Ok(()),
        }
    }
}

/// Makes all edits, or none.
pub(crate) fn apply(text: &str, edits: &[Replacement]) -> Result<Applied, EditError> {
    let exact = View::of(text, Fold::LineEnds);
    let mut loose = None;
    let mut inexact = Vec::new();
    let mut places: Vec<(Range<usize>, usize)> = Vec::new();
    for (index, edit) in edits.iter().enumerate() {
        if edit.old.is_empty() {
            return Err(EditError::Empty(index));
        }
        if edit.old == edit.new {
            return Err(EditError::Same(index));
        }
        let mut found = exact.find(&Pattern::of(&edit.old, Fold::LineEnds));
        if found.is_empty() {
            let view = loose.get_or_insert_with(|| View::of(text, Fold::Typography));
            found = view.find(&Pattern::of(&edit.old, Fold::Typography));
            inexact.push(index);
        }
        match found.as_slice() {
            [] => return Err(EditError::NotFound(index, Hint(first_line(text, &edit.old)))),
            [place] => places.push((place.clone(), index)),
            many => {
                let mut lines: Vec<_> =
                    many.iter().take(5).map(|place| line_at(text, place.start).to_string()).collect();
                if many.len() > 5 {
                    lines.push("…".to_owned());
                }
                return Err(EditError::Several(index, many.len(), lines.join(", ")));
            }
        }
    }
    places.sort_by_key(|(place, _)| (place.start, place.end));
    for pair in places.windows(2) {
        if let [(before, a), (after, b)] = pair
            && after.start < before.end
        {
            return Err(EditError::Overlap(*a.min(b), *a.max(b)));
        }
    }
    let mut result = String::with_capacity(text.len());
    let mut done = 0;
    for (place, index) in &places {
        result.push_str(text.get(done..place.start).unwrap_or_default());
        if let Some(edit) = edits.get(*index) {
            push_with_line_ends(&mut result, &edit.new, text, place);
        }
        done = place.end;
    }
    result.push_str(text.get(done..).unwrap_or_default());
    if result == text { Err(EditError::NoChange) } else { Ok(Applied { text: result, inexact }) }
}

/// The line of an edit's one place, for showing it.
pub(crate) fn line_of(text: &str, edit: &Replacement) -> Option<u64> {
    let found = View::of(text, Fold::LineEnds).find(&Pattern::of(&edit.old, Fold::LineEnds));
    let [place] = found.as_slice() else { return None };
    u64::try_from(line_at(text, place.start)).ok()
}

/// No more are counted: one too many is as wrong as a thousand.
const MOST_MATCHES: usize = 1000;

/// What two texts may differ in and still be the same.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fold {
    LineEnds,
    /// Also quotes, dashes, kinds of spaces, and white space at the end of a line.
    Typography,
}

/// A text with differences folded away, and the way back.
struct View {
    text: String,
    /// From this byte of `text` on, the original is at that byte, up to the next step. What was folded into a
    /// character belongs to it, so that the end of one is the beginning of the next.
    steps: Vec<(usize, usize)>,
}

impl View {
    fn of(original: &str, fold: Fold) -> View {
        let mut view = View { text: String::with_capacity(original.len()), steps: vec![(0, 0)] };
        // White space that is dropped if the line ends after it.
        let mut blank: Option<(usize, usize)> = None;
        let mut chars = original.char_indices().peekable();
        while let Some((at, c)) = chars.next() {
            let pair = c == '\r' && chars.peek().is_some_and(|(_, next)| *next == '\n');
            let c = if c == '\r' { '\n' } else { folded(c, fold) };
            let mut begins = at;
            match (c, fold) {
                ('\n', Fold::Typography) => {
                    if let Some((in_view, in_original)) = blank.take() {
                        view.truncate(in_view);
                        begins = in_original;
                    }
                }
                (' ' | '\t', Fold::Typography) => blank = blank.or(Some((view.text.len(), at))),
                _ => blank = None,
            }
            view.step(begins);
            view.text.push(c);
            if pair {
                chars.next();
            }
        }
        if let Some((in_view, in_original)) = blank {
            view.truncate(in_view);
            view.step(in_original);
        } else {
            view.step(original.len());
        }
        view
    }

    /// The next character of the view stands for the original from here on.
    fn step(&mut self, original: usize) {
        let here = self.text.len();
        match self.steps.last_mut() {
            Some((view, at)) if *at + (here - *view) == original => {}
            Some((view, at)) if *view == here => *at = original,
            _ => self.steps.push((here, original)),
        }
    }

    fn truncate(&mut self, len: usize) {
        self.text.truncate(len);
        while self.steps.last().is_some_and(|(view, _)| *view > len) {
            self.steps.pop();
        }
    }

    fn original(&self, at: usize) -> usize {
        let next = self.steps.partition_point(|(view, _)| *view <= at);
        match self.steps.get(next.saturating_sub(1)) {
            Some((view, original)) => original + (at - view),
            None => at,
        }
    }

    /// All places, as ranges of the original; overlapping ones count each.
    fn find(&self, pattern: &Pattern) -> Vec<Range<usize>> {
        if pattern.text.is_empty() {
            return Vec::new();
        }
        let finder = memmem::Finder::new(&pattern.text);
        let bytes = self.text.as_bytes();
        let mut found = Vec::new();
        let mut from = 0;
        while let Some(at) = bytes.get(from..).and_then(|rest| finder.find(rest)) {
            let (start, end) = (from + at, from + at + pattern.text.len());
            if !pattern.ends_line || matches!(bytes.get(end), None | Some(b'\n')) {
                found.push(self.original(start)..self.original(end));
            }
            if found.len() == MOST_MATCHES {
                break;
            }
            // The next character: UTF-8 cannot match in the middle of one.
            from = start + 1;
        }
        found
    }
}

/// A text that is looked for in a view of the same fold.
struct Pattern {
    text: String,
    /// White space was dropped from its end, so a line must end there.
    ends_line: bool,
}

impl Pattern {
    fn of(text: &str, fold: Fold) -> Pattern {
        let view = View::of(text, fold).text;
        let ends_line = fold == Fold::Typography && text.ends_with(|c| matches!(folded(c, fold), ' ' | '\t'));
        Pattern { text: view, ends_line }
    }
}

fn folded(c: char, fold: Fold) -> char {
    if fold == Fold::LineEnds {
        return c;
    }
    match c {
        '\u{2018}'..='\u{201b}' => '\'',
        '\u{201c}'..='\u{201f}' => '"',
        '\u{2010}'..='\u{2015}' | '\u{2212}' => '-',
        '\u{a0}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}' => ' ',
        c => c,
    }
}

/// The new text, each of its line ends like the one that it takes the place of; further ones like the last of
/// those, and if there was none, like the nearest in the file.
fn push_with_line_ends(result: &mut String, new: &str, text: &str, place: &Range<usize>) {
    let old = text.get(place.clone()).unwrap_or_default();
    let mut ends = line_ends(old);
    let mut end = None;
    let mut lines = new.split('\n').peekable();
    while let Some(line) = lines.next() {
        if lines.peek().is_none() {
            result.push_str(line);
            break;
        }
        result.push_str(line.strip_suffix('\r').unwrap_or(line));
        end = ends.next().or(end).or_else(|| nearest_line_end(text, place));
        result.push_str(end.unwrap_or("\n"));
    }
}

fn nearest_line_end<'a>(text: &'a str, place: &Range<usize>) -> Option<&'a str> {
    let after = line_ends(text.get(place.end..).unwrap_or_default()).next();
    after.or_else(|| {
        let before = text.get(..place.start).unwrap_or_default();
        let at = before.rfind(['\n', '\r'])?;
        let at = if before.get(..at).is_some_and(|b| b.ends_with('\r')) && before.get(at..=at) == Some("\n") {
            at - 1
        } else {
            at
        };
        before.get(at..).and_then(|rest| line_ends(rest).next())
    })
}

fn line_ends(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (_, from) = rest.split_at_checked(rest.find(['\n', '\r'])?)?;
        let (end, after) = from.split_at_checked(if from.starts_with("\r\n") { 2 } else { 1 })?;
        rest = after;
        Some(end)
    })
}

fn line_at(text: &str, at: usize) -> usize {
    memchr::memchr_iter(b'\n', text.as_bytes().get(..at).unwrap_or_default()).count() + 1
}

/// Where the first line that says something stands, if in one place only.
fn first_line(text: &str, old: &str) -> Option<usize> {
    let wanted = old.lines().map(str::trim).find(|line| line.len() >= 4)?;
    let mut found = text.lines().enumerate().filter(|(_, line)| line.trim() == wanted);
    match (found.next(), found.next()) {
        (Some((index, _)), None) => Some(index + 1),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
