//! What one line of a session file says, as far as the index wants to know.
//!
//! Lines of our own and of pi begin with `type`, `id`, `parentId`, `timestamp` (and the role of a message) in this
//! order: these are taken by hand. Any other order goes through serde.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::LazyLock;

use kli_protocol::record::{Body, ContextEdit, Cost, Kind, Label, Record, SessionInfoRecord, Usage};
use memchr::{memchr2, memmem};
use serde_json::{Map, Value};

use super::{Place, Role, ids, json};

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

impl Line<'_> {
    pub fn into_owned(self) -> Line<'static> {
        let owned = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
        let (id, parent, timestamp) = (owned(self.id), self.parent.map(owned), owned(self.timestamp));
        Line { id, parent, timestamp, kind: self.kind, role: self.role, key: self.key, says: self.says }
    }
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
    /// A JSON object that serde does not take: nested deeper than it goes, or with a number out of range.
    Unreadable,
    NoType,
    NoId,
    /// A second header.
    Header,
}

/// Reads a line; `bytes` is without white space around it.
pub fn read(bytes: &[u8]) -> Result<Line<'_>, NoRecord> {
    look(bytes).map(Look::line)
}

/// As `read`, and from what it gives less may be taken.
pub fn look(bytes: &[u8]) -> Result<Look<'_>, NoRecord> {
    let bare = json::Bare::of(bytes);
    if !bare.is_text {
        return Err(NoRecord::Damaged);
    }
    // What was taken by hand need not be checked again, unless it could hide a control character.
    match quick(bytes).filter(|_| !bare.controls) {
        Some((quick, hand)) if json::ends_object(bytes, hand.at, hand.depth, &hand.usage) => Ok(Look::Quick(quick)),
        Some(_) => Err(NoRecord::Damaged),
        None if json::is_object(bytes) => slow(bytes).map(|line| Look::Slow(Box::new(line))),
        None => Err(NoRecord::Damaged),
    }
}

/// A line that was looked at.
pub enum Look<'a> {
    Quick(Quick<'a>),
    Slow(Box<Line<'static>>),
}

/// A line whose fields lie where we and pi write them. Its strings are text: the line is, and they end at quotes.
pub struct Quick<'a> {
    kind: Kind,
    role: Option<Role>,
    id: &'a [u8],
    parent: Option<&'a [u8]>,
    timestamp: &'a [u8],
    usage: Option<Usage>,
    key: Option<String>,
}

/// A record of which only the place in the tree counts, and usage and time, which go beside: nearly all are, and of a
/// large file a million come from other threads.
#[derive(Clone, Copy, Debug)]
pub struct Plain {
    pub place: Place,
    pub id: u32,
    pub parent: Option<u32>,
    pub kind: Kind,
    pub role: Option<Role>,
    pub has_usage: bool,
}

impl<'a> Look<'a> {
    pub fn line(self) -> Line<'a> {
        let Quick { kind, role, id, parent, timestamp, usage, key } = match self {
            Look::Quick(quick) => quick,
            Look::Slow(line) => return *line,
        };
        let text = String::from_utf8_lossy;
        let says = usage.map_or(Says::Nothing, Says::Usage);
        Line { kind, role, id: text(id), parent: parent.map(text), timestamp: text(timestamp), key, says }
    }
}

impl<'a> Quick<'a> {
    /// None: more counts of the record, or its ids are not 8 hex digits.
    pub fn plain(&self, place: Place) -> Option<Plain> {
        let parent = match self.parent {
            Some(parent) => Some(ids::hex(parent)?),
            None => None,
        };
        let (id, kind, role) = (ids::hex(self.id)?, self.kind, self.role);
        let plain = Plain { place, id, parent, kind, role, has_usage: self.usage.is_some() };
        self.key.is_none().then_some(plain)
    }

    pub fn timestamp(&self) -> &'a [u8] {
        self.timestamp
    }

    pub fn usage(&self) -> Option<Usage> {
        self.usage
    }
}

/// What was taken by hand: up to here, with so many objects open, and the value of `usage`.
struct Hand {
    at: usize,
    depth: usize,
    usage: Range<usize>,
}

/// What a line of pi's first format says, whose id and parent are where it lies.
pub fn read_v1(bytes: &[u8], id: String, parent: Option<String>) -> Result<Line<'static>, NoRecord> {
    if !json::is_object(bytes) {
        return Err(NoRecord::Damaged);
    }
    match slow(bytes) {
        Err(NoRecord::NoId) => {
            let mut fields = object(bytes)?;
            fields.insert("id".into(), id.into());
            fields.insert("parentId".into(), parent.map_or(Value::Null, Value::String));
            from_fields(fields)
        }
        other => other,
    }
}

fn quick(line: &[u8]) -> Option<(Quick<'_>, Hand)> {
    let mut at = Cursor { line, at: 0 };
    at.expect(b"{\"type\":\"")?;
    let name = at.string()?;
    let kind = match line.get(name)? {
        b"message" => Kind::Message,
        b"session" | b"kli_session" | b"" => return None,
        other => Kind::of_type(std::str::from_utf8(other).ok()?),
    };
    match kind {
        // What these say lies anywhere in the line, and they are few.
        Kind::Label | Kind::SessionInfo | Kind::Usage => return None,
        Kind::ContextEdit | Kind::Compaction | Kind::BranchSummary => return None,
        _ => {}
    }
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
    let (role, depth) = match kind {
        Kind::Message => {
            at.expect(b",\"message\":{\"role\":\"")?;
            let name = at.string()?;
            (Some(role(line.get(name)?)), 2)
        }
        _ => (None, 1),
    };
    let mut hand = Hand { at: at.at, depth, usage: 0..0 };
    let usage = match role {
        Some(Role::Assistant) => match usage_at_end(line, at.at) {
            Some((usage, range)) => {
                hand.usage = range;
                Some(usage)
            }
            None => slow_usage(line),
        },
        _ => None,
    };
    let key = match kind {
        Kind::Message | Kind::Custom | Kind::CustomMessage => idempotency_key(line),
        _ => None,
    };
    let text = |range: Range<usize>| line.get(range);
    let parent = match parent.filter(|id| !id.is_empty()) {
        Some(parent) => Some(text(parent)?),
        None => None,
    };
    Some((Quick { kind, role, id: text(id)?, parent, timestamp: text(timestamp)?, usage, key }, hand))
}

struct Cursor<'a> {
    line: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn rest(&self) -> &'a [u8] {
        self.line.get(self.at..).unwrap_or_default()
    }

    /// Of a length that is known: a call to compare would take longer than comparing.
    #[inline(always)]
    fn expect<const N: usize>(&mut self, what: &[u8; N]) -> Option<()> {
        (self.rest().first_chunk() == Some(what)).then(|| self.at += N)
    }

    /// The rest of a string without escapes, and its closing quote.
    fn string(&mut self) -> Option<Range<usize>> {
        let length = json::quote_or_backslash(self.rest())?;
        let (start, end) = (self.at, self.at + length);
        self.at = end;
        self.expect(b"\"")?;
        Some(start..end)
    }

    /// A whole number that stands at `name`.
    fn number<const N: usize>(&mut self, name: &[u8; N]) -> Option<u64> {
        self.expect(name)?;
        let digits = self.rest().iter().take_while(|b| b.is_ascii_digit()).count();
        let (number, rest) = self.rest().split_at_checked(digits)?;
        // A fraction or exponent is for serde.
        if matches!(rest.first(), Some(b'.' | b'e' | b'E')) || !(1..=18).contains(&digits) {
            return None;
        }
        if digits > 1 && number.starts_with(b"0") {
            return None;
        }
        self.at += digits;
        Some(number.iter().fold(0, |n, digit| n * 10 + u64::from(digit - b'0')))
    }

    fn price<const N: usize>(&mut self, name: &[u8; N]) -> Option<f64> {
        self.expect(name)?;
        let end = memchr2(b',', b'}', self.rest())?;
        let number = self.rest().get(..end)?;
        self.at += end;
        match number {
            b"0" => Some(0.0),
            _ if !json::is_number(number) => None,
            _ => std::str::from_utf8(number).ok()?.parse().ok(),
        }
    }
}

fn role(name: &[u8]) -> Role {
    match name {
        b"user" => Role::User,
        b"assistant" => Role::Assistant,
        b"toolResult" => Role::ToolResult,
        b"bashExecution" => Role::BashExecution,
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

/// The usage of an assistant message as we and pi write it, and where it lies: after the content (which begins behind
/// `from`), `stopReason` right behind it.
fn usage_at_end(line: &[u8], from: usize) -> Option<(Usage, Range<usize>)> {
    let end = line.len().saturating_sub(END).max(from);
    let at = end + USAGE.find_iter(line.get(end..)?).last()? + USAGE.needle().len();
    let start = at - 1;
    let mut at = Cursor { line, at };
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
    let value = start..at.at + 2;
    at.expect(b"}},\"stopReason\":\"")?;
    Some((usage, value))
}

fn slow_usage(line: &[u8]) -> Option<Usage> {
    usage_in(object(line).ok()?.get("message").and_then(|m| m.get("usage")))
}

fn usage_in(value: Option<&Value>) -> Option<Usage> {
    value.and_then(|v| serde::Deserialize::deserialize(v).ok())
}

fn usage_of(value: Option<&Value>) -> Says {
    usage_in(value).map_or(Says::Nothing, Says::Usage)
}

fn object(line: &[u8]) -> Result<Map<String, Value>, NoRecord> {
    let text = std::str::from_utf8(line).map_err(|_| NoRecord::Damaged)?;
    serde_json::from_str(&json::without_lone_surrogates(text)).map_err(|_| NoRecord::Unreadable)
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
        Kind::Message => Some(
            message
                .and_then(|m| m.get("role"))
                .and_then(Value::as_str)
                .map_or(Role::Other, |name| role(name.as_bytes())),
        ),
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
