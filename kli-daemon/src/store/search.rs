//! Full-text search: ripgrep's searcher finds candidate lines in the files, then the texts of the record decide.

use std::path::PathBuf;
use std::sync::Arc;

use grep_matcher::Matcher;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{MmapChoice, Searcher, SearcherBuilder, Sink, SinkMatch};
use kli_protocol::api::SearchHit;
use kli_protocol::record::{Block, Body, Content, Message, Record};

use super::log::{Home, Log};
use super::{Facts, Filter, Ix, Result, Store, StoreError};
use crate::clock::parse_rfc3339;
use crate::tree::{Role, json};

/// What to look for, and where.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// Literal text. In lower case it fits any case.
    pub query: String,
    /// Only in this session, the whole of what it shows.
    pub session_id: Option<String>,
    /// Else in all of these, each in its own records; `query` is of no matter.
    pub filter: Filter,
    pub limit: usize,
    /// Where the page before ended.
    pub cursor: Option<Cursor>,
}

/// Characters around a hit.
const BEFORE: usize = 60;
const PREVIEW: usize = 200;

impl Store {
    /// A page of hits, newest session first, each in file order, and where the next one begins.
    pub fn search(self: &Arc<Self>, search: &Search) -> Result<(Vec<SearchHit>, Option<String>)> {
        if search.query.trim().is_empty() {
            return Err(StoreError::Other("there is nothing to search for".into()));
        }
        let finder = Finder::new(&search.query)?;
        let cursor = search.cursor.as_ref();
        let mut hits = Hits { list: Vec::new(), limit: search.limit.max(1), next: None };
        if let Some(id) = &search.session_id {
            let log = self.open(id)?;
            let after = cursor.and_then(|cursor| cursor.from.0.checked_sub(1)).map(Ix);
            finder.in_records(&log, log.records_after(after).map(|node| node.ix), 0, &mut hits);
            return Ok((hits.list, hits.next));
        }
        let filter = Filter { query: None, ..search.filter.clone() };
        for facts in self.list(&filter).0 {
            let time = parse_rfc3339(&facts.updated_at).unwrap_or_default();
            let from = match cursor {
                // Sessions are listed by time and id, both falling.
                Some(cursor) if (time, &facts.id) > (cursor.time, &cursor.session) => continue,
                Some(cursor) if facts.id == cursor.session => cursor.from,
                _ => Ix(0),
            };
            self.search_session(&finder, &facts, from, time, &mut hits);
            if hits.next.is_some() {
                break;
            }
        }
        Ok((hits.list, hits.next))
    }

    /// A session's own records. One that cannot be read has no hits: the list says why.
    fn search_session(self: &Arc<Self>, finder: &Finder, facts: &Facts, from: Ix, time: u64, hits: &mut Hits) {
        let Some(path) = &facts.path else {
            if let Ok(log) = self.open(&facts.id)
                && log.home == Home::Memory
            {
                let first = from.0.max(log.start);
                finder.in_records(&log, (first..log.end().0).map(Ix), time, hits);
            }
            return;
        };
        let offsets = finder.candidates(path);
        if offsets.is_empty() {
            return;
        }
        let Ok(log) = self.open(&facts.id) else { return };
        let rows = {
            let state = log.read();
            let at = |offset: u64| state.index.row_between(offset, offset + 64).map(Ix);
            offsets.into_iter().filter_map(at).filter(|ix| *ix >= from).collect::<Vec<_>>()
        };
        finder.in_records(&log, rows.into_iter(), time, hits);
    }
}

struct Hits {
    list: Vec<SearchHit>,
    limit: usize,
    next: Option<String>,
}

/// The first hit of a page: the time that its session has in the list, its record, the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    time: u64,
    from: Ix,
    session: String,
}

impl Cursor {
    /// None where a page cannot have ended.
    pub fn parse(text: &str) -> Option<Cursor> {
        let mut parts = text.splitn(3, '.');
        Some(Cursor {
            time: parts.next()?.parse().ok()?,
            from: Ix(parts.next()?.parse().ok()?),
            session: parts.next()?.to_owned(),
        })
    }
}

struct Finder {
    /// In the texts.
    text: RegexMatcher,
    /// In the lines, where they are escaped.
    line: RegexMatcher,
}

impl Finder {
    fn new(query: &str) -> Result<Finder> {
        let failed = |e: grep_regex::Error| StoreError::Other(format!("cannot search for {query:?}: {e}"));
        let any_case = !query.chars().any(char::is_uppercase);
        let build = |patterns: &[String]| {
            RegexMatcherBuilder::new().case_insensitive(any_case).fixed_strings(true).build_many(patterns)
        };
        let quoted = serde_json::to_string(query).unwrap_or_default();
        let raw = quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default().to_owned();
        // Some programs write everything but ASCII as escapes.
        let escaped: String = raw
            .chars()
            .map(|c| match c.is_ascii() {
                true => c.to_string(),
                false => c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect(),
            })
            .collect();
        let mut lines = vec![raw];
        if lines.first() != Some(&escaped) {
            lines.push(escaped);
        }
        Ok(Finder { text: build(&[query.to_owned()]).map_err(failed)?, line: build(&lines).map_err(failed)? })
    }

    /// Where the lines begin that may hold it.
    fn candidates(&self, path: &PathBuf) -> Vec<u64> {
        let mut searcher: Searcher = SearcherBuilder::new().line_number(false).memory_map(MmapChoice::never()).build();
        let mut offsets = Offsets::default();
        if let Err(e) = searcher.search_path(&self.line, path, &mut offsets) {
            tracing::debug!("{} could not be searched: {e}", path.display());
        }
        offsets.0
    }

    fn in_records(&self, log: &Log, ixs: impl Iterator<Item = Ix>, time: u64, hits: &mut Hits) {
        for ix in ixs {
            let Ok(text) = log.text(ix) else { continue };
            if !self.line.is_match(text.as_bytes()).unwrap_or_default() {
                continue;
            }
            let Ok(record) = Record::parse(&json::without_lone_surrogates(&text)) else { continue };
            let Some(preview) = texts(&record).iter().find_map(|text| self.preview(text)) else { continue };
            if hits.list.len() == hits.limit {
                hits.next = Some(format!("{time}.{}.{}", ix.0, log.session_id()));
                return;
            }
            // A label leads to the entry that has it; one that was changed or taken away leads nowhere.
            let (ix, entry_id) = match &record.body {
                Body::Label(label) => match log.find(&label.target_id) {
                    Ok(target) if log.label(target) == label.label => (target, label.target_id.clone()),
                    _ => continue,
                },
                _ => (ix, record.id),
            };
            let node = log.node(ix);
            hits.list.push(SearchHit {
                session_id: log.session_id().to_owned(),
                entry_id,
                kind: record.kind,
                role: node.and_then(|node| node.role).and_then(role_name).map(str::to_owned),
                preview,
                timestamp: record.timestamp,
                on_branch: log.leaf().is_some_and(|leaf| log.is_ancestor(ix, leaf)),
            });
        }
    }

    /// One line around the first hit.
    fn preview(&self, text: &str) -> Option<String> {
        let at = self.text.find(text.as_bytes()).ok()??;
        let before = text.get(..at.start()).unwrap_or_default();
        let start = before.char_indices().rev().nth(BEFORE - 1).map_or(0, |(start, _)| start);
        let shown: String = text.get(start..).unwrap_or_default().chars().take(PREVIEW).collect();
        Some(shown.split_whitespace().collect::<Vec<_>>().join(" "))
    }
}

#[derive(Default)]
struct Offsets(Vec<u64>);

impl Sink for Offsets {
    type Error = std::io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> std::io::Result<bool> {
        self.0.push(found.absolute_byte_offset());
        Ok(true)
    }
}

fn role_name(role: Role) -> Option<&'static str> {
    match role {
        Role::User => Some("user"),
        Role::Assistant => Some("assistant"),
        Role::ToolResult => Some("toolResult"),
        Role::BashExecution => Some("bashExecution"),
        Role::Other => None,
    }
}

/// What a person could look for in a record.
fn texts(record: &Record) -> Vec<String> {
    match &record.body {
        Body::Message(body) => match &body.message {
            Message::User(user) => user.typed.iter().cloned().chain(of_content(&user.content)).collect(),
            Message::Assistant(answer) => {
                of_content(&answer.content).into_iter().chain(answer.error_message.clone()).collect()
            }
            Message::ToolResult(result) => of_content(&result.content),
            Message::BashExecution(bash) => vec![bash.command.clone(), bash.output.clone()],
            Message::Unknown => Vec::new(),
        },
        Body::Compaction(compaction) => vec![compaction.summary.clone()],
        Body::BranchSummary(summary) => vec![summary.summary.clone()],
        Body::CustomMessage(message) => of_content(&message.content),
        Body::Label(label) => label.label.iter().cloned().collect(),
        _ => Vec::new(),
    }
}

fn of_content(content: &Content) -> Vec<String> {
    match content {
        Content::Text(text) => vec![text.clone()],
        Content::Blocks(blocks) => blocks.iter().flat_map(of_block).collect(),
    }
}

fn of_block(block: &Block) -> Vec<String> {
    match block {
        Block::Text(text) => vec![text.text.clone()],
        Block::Thinking(thinking) => vec![thinking.thinking.clone()],
        Block::ToolCall(call) => {
            let mut texts = vec![call.name.clone()];
            let mut open: Vec<&serde_json::Value> = call.arguments.values().collect();
            while let Some(value) = open.pop() {
                match value {
                    serde_json::Value::String(text) => texts.push(text.clone()),
                    serde_json::Value::Array(values) => open.extend(values),
                    serde_json::Value::Object(values) => open.extend(values.values()),
                    serde_json::Value::Number(number) => texts.push(number.to_string()),
                    _ => {}
                }
            }
            texts
        }
        Block::Image(_) | Block::Unknown(_) => Vec::new(),
    }
}
