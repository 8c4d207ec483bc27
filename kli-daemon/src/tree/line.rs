//! What one line of a session file says, as far as the index wants to know.
//!
//! Lines of our own and of pi begin with `type`, `id`, `parentId`, `timestamp` (and the role of a message) in this
//! order: these are taken by hand. Any other order goes through serde.

use std::borrow::Cow;

use kli_protocol::record::{Body, ContextEdit, Kind, Label, Record, SessionInfoRecord, Usage};
use memchr::{memchr, memmem};
use serde_json::{Map, Value};

use super::Role;
use super::json;

/// A record, as much of it as the index needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Line<'a> {
    pub kind: Kind,
    pub role: Option<Role>,
    pub id: Cow<'a, str>,
    pub parent: Option<Cow<'a, str>>,
    pub timestamp: Cow<'a, str>,
    /// `idempotencyKey`.
    pub key: Option<String>,
    pub says: Says,
}

/// What counts for the session as a whole.
#[derive(Clone, Debug, PartialEq)]
pub enum Says {
    Nothing,
    Usage(Usage),
    Label { target: String, label: Option<String> },
    Edit { target: String },
    Info(Box<SessionInfoRecord>),
}

/// Why a line is no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRecord {
    /// Not UTF-8, or no JSON object.
    Damaged,
    NoType,
    NoId,
    /// A second header.
    Header,
}

/// Reads a line; `bytes` is without white space around it.
pub fn read(bytes: &[u8]) -> Result<Line<'_>, NoRecord> {
    match json::is_object(bytes) {
        true => read_object(bytes),
        false => Err(NoRecord::Damaged),
    }
}

/// As `read`, of bytes that were found to be a JSON object.
pub fn read_object(bytes: &[u8]) -> Result<Line<'_>, NoRecord> {
    let text = std::str::from_utf8(bytes).map_err(|_| NoRecord::Damaged)?;
    match quick(text) {
        Some(line) => Ok(line),
        None => slow(text),
    }
}

/// What a line of pi's first format says (a JSON object), whose id and parent are where it lies.
pub fn read_v1(bytes: &[u8], id: String, parent: Option<String>) -> Result<Line<'_>, NoRecord> {
    match read_object(bytes) {
        Err(NoRecord::NoId) => {
            let text = std::str::from_utf8(bytes).map_err(|_| NoRecord::Damaged)?;
            let mut fields = object(text)?;
            fields.insert("id".into(), id.into());
            fields.insert("parentId".into(), parent.map_or(Value::Null, Value::String));
            from_fields(fields)
        }
        other => other,
    }
}

fn quick(text: &str) -> Option<Line<'_>> {
    let mut at = Cursor { text };
    at.expect("{\"type\":\"")?;
    let kind = at.string()?;
    let kind = Kind::of_type(kind).ne(&Kind::Unknown).then(|| Kind::of_type(kind)).or(match kind {
        "session" | "kli_session" | "" => None,
        _ => Some(Kind::Unknown),
    })?;
    at.expect(",\"id\":\"")?;
    let id = at.string().filter(|id| !id.is_empty())?;
    at.expect(",\"parentId\":")?;
    let parent = match at.expect("null") {
        Some(()) => None,
        None => {
            at.expect("\"")?;
            Some(at.string()?)
        }
    };
    at.expect(",\"timestamp\":\"")?;
    let timestamp = at.string()?;
    let role = match kind {
        Kind::Message => {
            at.expect(",\"message\":{\"role\":\"")?;
            Some(role(at.string()?))
        }
        _ => None,
    };
    let says = match (kind, role) {
        (Kind::Message, Some(Role::Assistant)) => usage_at_end(at.text).map_or_else(|| slow_usage(text), Says::Usage),
        (
            Kind::Label | Kind::SessionInfo | Kind::Usage | Kind::ContextEdit | Kind::Compaction | Kind::BranchSummary,
            _,
        ) => return None,
        _ => Says::Nothing,
    };
    let key = match kind {
        Kind::Message | Kind::Custom | Kind::CustomMessage => idempotency_key(text),
        _ => None,
    };
    Some(Line {
        kind,
        role,
        id: Cow::Borrowed(id),
        parent: parent.filter(|id| !id.is_empty()).map(Cow::Borrowed),
        timestamp: Cow::Borrowed(timestamp),
        key,
        says,
    })
}

struct Cursor<'a> {
    text: &'a str,
}

impl<'a> Cursor<'a> {
    fn expect(&mut self, what: &str) -> Option<()> {
        self.text = self.text.strip_prefix(what)?;
        Some(())
    }

    /// The rest of a string without escapes, and its closing quote.
    fn string(&mut self) -> Option<&'a str> {
        let end = memchr(b'"', self.text.as_bytes())?;
        let (string, rest) = (self.text.get(..end)?, self.text.get(end + 1..)?);
        if memchr(b'\\', string.as_bytes()).is_some() {
            return None;
        }
        self.text = rest;
        Some(string)
    }
}

fn role(name: &str) -> Role {
    match name {
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "toolResult" => Role::ToolResult,
        "bashExecution" => Role::BashExecution,
        _ => Role::Other,
    }
}

/// How much of a line's end is searched for what is written last.
const END: usize = 1024;

/// The key, which is written last; one that lies elsewhere, or is longer than any of ours, is not found.
fn idempotency_key(text: &str) -> Option<String> {
    let from = text.len().saturating_sub(128);
    let end = text.as_bytes().get(from..)?;
    memmem::rfind(end, b"\"idempotencyKey\":\"")?;
    match object(text).ok()?.get("idempotencyKey")? {
        Value::String(key) => Some(key.clone()),
        _ => None,
    }
}

/// The usage of an assistant message as we and pi write it: after the content, `stopReason` right behind it.
fn usage_at_end(text: &str) -> Option<Usage> {
    let from = text.len().saturating_sub(END);
    let end = text.as_bytes().get(from..)?;
    let at = from + memmem::rfind(end, b",\"usage\":{")? + 9;
    let object = text.get(at..)?;
    let close = memmem::find(object.as_bytes(), b",\"stopReason\":\"")?;
    serde_json::from_str(object.get(..close)?).ok()
}

fn slow_usage(text: &str) -> Says {
    object(text).map_or(Says::Nothing, |fields| usage_of(fields.get("message").and_then(|m| m.get("usage"))))
}

fn usage_of(value: Option<&Value>) -> Says {
    let usage = value.and_then(|v| serde::Deserialize::deserialize(v).ok());
    usage.map_or(Says::Nothing, Says::Usage)
}

fn object(text: &str) -> Result<Map<String, Value>, NoRecord> {
    // What is an object and yet cannot be read is nested deeper than serde goes.
    serde_json::from_str(&json::without_lone_surrogates(text)).map_err(|_| NoRecord::Damaged)
}

fn slow(text: &str) -> Result<Line<'static>, NoRecord> {
    from_fields(object(text)?)
}

fn from_fields(fields: Map<String, Value>) -> Result<Line<'static>, NoRecord> {
    let text = |name: &str| fields.get(name).and_then(Value::as_str).filter(|s| !s.is_empty());
    let name = text("type").ok_or(NoRecord::NoType)?.to_owned();
    if matches!(name.as_str(), "session" | "kli_session") {
        return Err(NoRecord::Header);
    }
    let id = text("id").ok_or(NoRecord::NoId)?.to_owned();
    let parent = text("parentId").map(|id| Cow::Owned(id.to_owned()));
    let timestamp = text("timestamp").unwrap_or_default().to_owned();
    let kind = Kind::of_type(&name);
    let key = text("idempotencyKey").map(str::to_owned);
    let message = (kind == Kind::Message).then(|| fields.get("message")).flatten();
    let role = match kind {
        Kind::Message => Some(message.and_then(|m| m.get("role")).and_then(Value::as_str).map_or(Role::Other, role)),
        _ => None,
    };
    let says = match (kind, role) {
        (Kind::Message, Some(Role::Assistant)) => usage_of(message.and_then(|m| m.get("usage"))),
        (Kind::Compaction | Kind::BranchSummary | Kind::Usage, _) => usage_of(fields.get("usage")),
        (Kind::Label | Kind::ContextEdit | Kind::SessionInfo, _) => says(Body::from_fields(&name, fields)),
        _ => Says::Nothing,
    };
    Ok(Line { kind, role, id: Cow::Owned(id), parent, timestamp: Cow::Owned(timestamp), key, says })
}

fn says(body: Body) -> Says {
    match body {
        Body::Label(Label { target_id, label }) => Says::Label { target: target_id, label },
        Body::ContextEdit(ContextEdit { target_id, .. }) => Says::Edit { target: target_id },
        Body::SessionInfo(info) => Says::Info(Box::new(info)),
        _ => Says::Nothing,
    }
}

/// The text that a person typed, of a user message.
pub fn typed(record: &Record) -> Option<String> {
    use kli_protocol::record::Message;
    match &record.body {
        Body::Message(body) => match &body.message {
            Message::User(user) => Some(user.typed.clone().unwrap_or_else(|| user.content.text())),
            _ => None,
        },
        _ => None,
    }
}
