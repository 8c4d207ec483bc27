//! What one line of a session file says, as far as the index wants to know.
//!
//! Lines of our own and of pi begin with `type`, `id`, `parentId`, `timestamp` (and the role of a message) in this
//! order: these are taken by hand. Any other order goes through serde.

use std::borrow::Cow;
use std::sync::LazyLock;

use kli_protocol::record::{Body, ContextEdit, Cost, Kind, Label, Record, SessionInfoRecord, Usage};
use memchr::{memchr2, memmem};
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
    match quick(bytes) {
        Some(line) => Ok(line),
        None => slow(bytes),
    }
}

/// What a line of pi's first format says (a JSON object), whose id and parent are where it lies.
pub fn read_v1(bytes: &[u8], id: String, parent: Option<String>) -> Result<Line<'_>, NoRecord> {
    match read_object(bytes) {
        Err(NoRecord::NoId) => {
            let mut fields = object(bytes)?;
            fields.insert("id".into(), id.into());
            fields.insert("parentId".into(), parent.map_or(Value::Null, Value::String));
            from_fields(fields)
        }
        other => other,
    }
}

fn quick(line: &[u8]) -> Option<Line<'_>> {
    let mut at = Cursor { rest: line };
    at.expect(b"{\"type\":\"")?;
    let name = at.string()?;
    let kind = match (Kind::of_type(name), name) {
        (Kind::Unknown, "session" | "kli_session" | "") => return None,
        // What these say lies anywhere in the line, and they are few.
        (Kind::Label | Kind::SessionInfo | Kind::Usage, _) => return None,
        (Kind::ContextEdit | Kind::Compaction | Kind::BranchSummary, _) => return None,
        (kind, _) => kind,
    };
    at.expect(b",\"id\":\"")?;
    let id = at.string().filter(|id| !id.is_empty())?;
    at.expect(b",\"parentId\":")?;
    let parent = match at.expect(b"null") {
        Some(()) => None,
        None => {
            at.expect(b"\"")?;
            Some(at.string()?)
        }
    };
    at.expect(b",\"timestamp\":\"")?;
    let timestamp = at.string()?;
    let role = match kind {
        Kind::Message => {
            at.expect(b",\"message\":{\"role\":\"")?;
            Some(role(at.string()?))
        }
        _ => None,
    };
    let says = match role {
        Some(Role::Assistant) => usage_at_end(at.rest).map_or_else(|| slow_usage(line), Says::Usage),
        _ => Says::Nothing,
    };
    let key = match kind {
        Kind::Message | Kind::Custom | Kind::CustomMessage => idempotency_key(line),
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
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    fn expect(&mut self, what: &[u8]) -> Option<()> {
        self.rest = self.rest.strip_prefix(what)?;
        Some(())
    }

    /// The rest of a string without escapes, and its closing quote.
    fn string(&mut self) -> Option<&'a str> {
        let end = memchr2(b'"', b'\\', self.rest)?;
        let (string, rest) = self.rest.split_at_checked(end)?;
        self.rest = rest.strip_prefix(b"\"")?;
        std::str::from_utf8(string).ok()
    }

    /// A whole number that stands at `name`.
    fn number(&mut self, name: &[u8]) -> Option<u64> {
        self.expect(name)?;
        let digits = self.rest.iter().take_while(|b| b.is_ascii_digit()).count();
        let (number, rest) = self.rest.split_at_checked(digits)?;
        // A fraction or exponent is for serde.
        if matches!(rest.first(), Some(b'.' | b'e' | b'E')) || !(1..=18).contains(&digits) {
            return None;
        }
        self.rest = rest;
        Some(number.iter().fold(0, |n, digit| n * 10 + u64::from(digit - b'0')))
    }

    fn price(&mut self, name: &[u8]) -> Option<f64> {
        self.expect(name)?;
        let end = memchr2(b',', b'}', self.rest)?;
        let (number, rest) = self.rest.split_at_checked(end)?;
        self.rest = rest;
        match number {
            b"0" => Some(0.0),
            _ => std::str::from_utf8(number).ok()?.parse().ok(),
        }
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

/// In it a key lies whole: 64 characters, each of two escapes at most, and its name.
const KEY_END: usize = 64 * 12 + 32;

/// The key, which is written last; one that lies elsewhere, or is longer than any of ours, is not found.
fn idempotency_key(line: &[u8]) -> Option<String> {
    // Most messages end in a number or a bracket.
    if !line.ends_with(b"\"}") {
        return None;
    }
    let end = line.get(line.len().saturating_sub(KEY_END)..)?;
    memmem::find(end, b"\"idempotencyKey\":\"")?;
    match object(line).ok()?.get("idempotencyKey")? {
        Value::String(key) => Some(key.clone()),
        _ => None,
    }
}

/// How much of a line's end holds the usage of an assistant message, as we and pi write it.
const END: usize = 512;
static USAGE: LazyLock<memmem::Finder<'static>> = LazyLock::new(|| memmem::Finder::new(b",\"usage\":{"));

/// The usage of an assistant message as we and pi write it: after the content, `stopReason` right behind it.
fn usage_at_end(line: &[u8]) -> Option<Usage> {
    let end = line.get(line.len().saturating_sub(END)..)?;
    let at = USAGE.find_iter(end).last()?;
    let mut at = Cursor { rest: end.get(at + USAGE.needle().len()..)? };
    let usage = Usage {
        input: at.number(b"\"input\":")?,
        output: at.number(b",\"output\":")?,
        cache_read: at.number(b",\"cacheRead\":")?,
        cache_write: at.number(b",\"cacheWrite\":")?,
        total_tokens: at.number(b",\"totalTokens\":")?,
        cost: {
            at.expect(b",\"cost\":{")?;
            Cost {
                input: at.price(b"\"input\":")?,
                output: at.price(b",\"output\":")?,
                cache_read: at.price(b",\"cacheRead\":")?,
                cache_write: at.price(b",\"cacheWrite\":")?,
                total: at.price(b",\"total\":")?,
            }
        },
    };
    at.expect(b"}},\"stopReason\":\"")?;
    Some(usage)
}

fn slow_usage(line: &[u8]) -> Says {
    object(line).map_or(Says::Nothing, |fields| usage_of(fields.get("message").and_then(|m| m.get("usage"))))
}

fn usage_of(value: Option<&Value>) -> Says {
    let usage = value.and_then(|v| serde::Deserialize::deserialize(v).ok());
    usage.map_or(Says::Nothing, Says::Usage)
}

fn object(line: &[u8]) -> Result<Map<String, Value>, NoRecord> {
    let text = std::str::from_utf8(line).map_err(|_| NoRecord::Damaged)?;
    // What is an object and yet cannot be read is nested deeper than serde goes.
    serde_json::from_str(&json::without_lone_surrogates(text)).map_err(|_| NoRecord::Damaged)
}

fn slow(line: &[u8]) -> Result<Line<'static>, NoRecord> {
    from_fields(object(line)?)
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
