//! The lines of a session file (session-format.md is their contract): a header, then records.
//!
//! A record is read leniently, since other programs write these files too: a field of the wrong shape is as
//! good as absent, an unknown type or block is kept as it is. Writing puts `type`, `id`, `parentId`,
//! `timestamp` first and in this order, which lets a scan take them without building a tree.
//! Bytes once written are never printed again: what a client gets is the line itself, see [`Entry`].

mod message;
mod quick;

pub use message::*;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, value::RawValue};

/// The newest `session` and `kli_session` versions that this program writes and may append to.
pub const SESSION_VERSION: u64 = 3;
pub const KLI_SESSION_VERSION: u64 = 4;

/// The first line of a session file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Header {
    /// `session`, or `kli_session` when there is a base (a program that knows no bases then refuses the file).
    #[serde(rename = "type")]
    pub kind: HeaderKind,
    /// 3 (`session`) or 4 (`kli_session`); absent in pi's first format, whose entries have no ids.
    #[serde(default = "one")]
    pub version: u64,
    pub id: String,
    /// RFC 3339, UTC.
    #[serde(default)]
    pub timestamp: String,
    /// The work directory. Absent: the directory of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// The session this one was forked from: an id, or in pi's files a path.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient")]
    pub parent_session: Option<String>,
    /// The mode that a fork took over.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient")]
    pub mode: Option<crate::api::Mode>,
    /// The shared prefix, by reference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<Base>,
    /// The pi v1 or v2 file whose entries this one holds.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient")]
    pub migrated_from: Option<String>,
}

fn one() -> u64 {
    1
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeaderKind {
    Session,
    KliSession,
}

/// Where a fork's shared prefix ends: the branch from `entry` to the root of `session`, as it was when that
/// session's file was `at` bytes long (in memory: had `at` records).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    pub session: String,
    pub entry: String,
    pub at: u64,
}

/// A line after the header, typed. `R` is what a line of a known type holds beyond its envelope.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    #[serde(rename = "type")]
    pub kind: String,
    pub id: String,
    pub parent_id: Option<String>,
    pub timestamp: String,
    #[serde(flatten)]
    pub body: Body,
}

/// What a record says, by its `type`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Body {
    Message(MessageBody),
    ModelChange(ModelChange),
    OptionChange(OptionChange),
    ThinkingLevelChange(ThinkingLevelChange),
    Compaction(Compaction),
    BranchSummary(BranchSummary),
    CustomMessage(CustomMessage),
    Custom(Custom),
    Label(Label),
    SessionInfo(SessionInfoRecord),
    Usage(UsageRecord),
    ContextEdit(ContextEdit),
    Leaf(LeafRecord),
    /// A type of another program: kept and shown, never sent.
    Unknown(Map<String, Value>),
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MessageBody {
    pub message: Message,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient")]
    pub idempotency_key: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelChange {
    pub provider: String,
    pub model_id: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OptionChange {
    pub option_id: String,
    #[serde(default)]
    pub value: Value,
}

/// The option `reasoning-effort`, as pi spells it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ThinkingLevelChange {
    #[serde(default)]
    pub thinking_level: String,
}

/// An entry whose summary stands in for all history before `first_kept_entry_id`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Compaction {
    #[serde(default, deserialize_with = "lenient_default")]
    pub summary: String,
    /// May be the compaction's own id: nothing is kept.
    #[serde(default, deserialize_with = "lenient")]
    pub first_kept_entry_id: Option<String>,
    /// pi's first format: the index of the first kept line instead.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient")]
    pub first_kept_entry_index: Option<u64>,
    #[serde(default, deserialize_with = "lenient_default")]
    pub tokens_before: u64,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient")]
    pub details: Option<SummaryDetails>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient")]
    pub usage: Option<Usage>,
}

/// Files that the summarised stretch touched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SummaryDetails {
    #[serde(default)]
    pub read_files: Vec<String>,
    #[serde(default)]
    pub modified_files: Vec<String>,
}

/// What happened on a branch that was left; lies where the leaf landed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BranchSummary {
    #[serde(default, deserialize_with = "lenient_default")]
    pub summary: String,
    /// The leaf that was left, or `root`.
    #[serde(default, deserialize_with = "lenient_default")]
    pub from_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient")]
    pub details: Option<SummaryDetails>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient")]
    pub usage: Option<Usage>,
}

/// A message of an extension; the model sees it as a user message.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CustomMessage {
    #[serde(default, deserialize_with = "lenient_default")]
    pub custom_type: String,
    #[serde(default, deserialize_with = "lenient_default")]
    pub content: Content,
    #[serde(default, deserialize_with = "lenient_default")]
    pub display: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient")]
    pub idempotency_key: Option<String>,
}

/// Data of an extension; the model never sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Custom {
    #[serde(default, deserialize_with = "lenient_default")]
    pub custom_type: String,
    #[serde(default)]
    pub data: Value,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient")]
    pub idempotency_key: Option<String>,
}

/// A person's name for an entry; absent, null or empty clears it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Label {
    #[serde(default, deserialize_with = "lenient_default")]
    pub target_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient")]
    pub label: Option<String>,
}

/// Bookkeeping about the session. `name` absent or empty clears the name, so each one repeats it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionInfoRecord {
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient")]
    pub archived: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient")]
    pub mode: Option<crate::api::Mode>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient")]
    pub work_dir: Option<String>,
}

/// Totals of a call that left no message (read from pi).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UsageRecord {
    #[serde(default, deserialize_with = "lenient_default")]
    pub kind: String,
    #[serde(default, deserialize_with = "lenient_default")]
    pub usage: Usage,
}

/// Omits (`replacement` null) or replaces the content of an entry in the context (read from pi).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContextEdit {
    #[serde(default, deserialize_with = "lenient_default")]
    pub target_id: String,
    #[serde(default, deserialize_with = "lenient")]
    pub replacement: Option<Replacement>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Replacement {
    #[serde(default, deserialize_with = "lenient_default")]
    pub content: Content,
}

/// Its `parentId` is where the leaf is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeafRecord {}

/// What a record is, for the tree: whether it is a node, and whether it moves the leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    Message = 0,
    ModelChange,
    OptionChange,
    ThinkingLevelChange,
    Compaction,
    BranchSummary,
    CustomMessage,
    Custom,
    Label,
    SessionInfo,
    Usage,
    ContextEdit,
    Leaf,
    Unknown,
}

impl Kind {
    /// Every kind, in the order of its number.
    pub const ALL: [Kind; 14] = [
        Kind::Message,
        Kind::ModelChange,
        Kind::OptionChange,
        Kind::ThinkingLevelChange,
        Kind::Compaction,
        Kind::BranchSummary,
        Kind::CustomMessage,
        Kind::Custom,
        Kind::Label,
        Kind::SessionInfo,
        Kind::Usage,
        Kind::ContextEdit,
        Kind::Leaf,
        Kind::Unknown,
    ];

    pub fn of_type(name: &str) -> Kind {
        Kind::ALL.into_iter().find(|k| k.type_name() == name).unwrap_or(Kind::Unknown)
    }

    /// The `type` of such a record; `unknown` for the types of other programs.
    pub fn type_name(self) -> &'static str {
        match self {
            Kind::Message => "message",
            Kind::ModelChange => "model_change",
            Kind::OptionChange => "option_change",
            Kind::ThinkingLevelChange => "thinking_level_change",
            Kind::Compaction => "compaction",
            Kind::BranchSummary => "branch_summary",
            Kind::CustomMessage => "custom_message",
            Kind::Custom => "custom",
            Kind::Label => "label",
            Kind::SessionInfo => "session_info",
            Kind::Usage => "usage",
            Kind::ContextEdit => "context_edit",
            Kind::Leaf => "leaf",
            Kind::Unknown => "unknown",
        }
    }

    /// Bookkeeping: no node of the tree that a person sees. Other programs hang entries on them all the same.
    pub fn is_mark(self) -> bool {
        matches!(self, Kind::Custom | Kind::Label | Kind::SessionInfo | Kind::Usage | Kind::ContextEdit | Kind::Leaf)
    }

    /// Whether the leaf after this record is the record itself (a `leaf` record moves it to its parent instead).
    pub fn becomes_leaf(self) -> bool {
        !self.is_mark() && self != Kind::Unknown
    }
}

impl Body {
    pub fn kind(&self) -> Kind {
        match self {
            Body::Message(_) => Kind::Message,
            Body::ModelChange(_) => Kind::ModelChange,
            Body::OptionChange(_) => Kind::OptionChange,
            Body::ThinkingLevelChange(_) => Kind::ThinkingLevelChange,
            Body::Compaction(_) => Kind::Compaction,
            Body::BranchSummary(_) => Kind::BranchSummary,
            Body::CustomMessage(_) => Kind::CustomMessage,
            Body::Custom(_) => Kind::Custom,
            Body::Label(_) => Kind::Label,
            Body::SessionInfo(_) => Kind::SessionInfo,
            Body::Usage(_) => Kind::Usage,
            Body::ContextEdit(_) => Kind::ContextEdit,
            Body::Leaf(_) => Kind::Leaf,
            Body::Unknown(_) => Kind::Unknown,
        }
    }

    pub fn message(message: Message) -> Body {
        Body::Message(MessageBody { message, idempotency_key: None })
    }

    /// What a line says whose `type` is `name`; a known type whose fields make no sense is `Unknown`.
    pub fn from_fields(name: &str, fields: Map<String, Value>) -> Body {
        fn read<T: serde::de::DeserializeOwned>(fields: Map<String, Value>, make: fn(T) -> Body) -> Body {
            match T::deserialize(Value::Object(fields.clone())) {
                Ok(t) => make(t),
                Err(_) => Body::Unknown(fields),
            }
        }
        match Kind::of_type(name) {
            Kind::Message => read(fields, Body::Message),
            Kind::ModelChange => read(fields, Body::ModelChange),
            Kind::OptionChange => read(fields, Body::OptionChange),
            Kind::ThinkingLevelChange => read(fields, Body::ThinkingLevelChange),
            Kind::Compaction => read(fields, Body::Compaction),
            Kind::BranchSummary => read(fields, Body::BranchSummary),
            Kind::CustomMessage => read(fields, Body::CustomMessage),
            Kind::Custom => read(fields, Body::Custom),
            Kind::Label => read(fields, Body::Label),
            Kind::SessionInfo => read(fields, Body::SessionInfo),
            Kind::Usage => read(fields, Body::Usage),
            Kind::ContextEdit => read(fields, Body::ContextEdit),
            Kind::Leaf => Body::Leaf(LeafRecord {}),
            Kind::Unknown => Body::Unknown(fields),
        }
    }
}

impl Record {
    pub fn new(id: impl Into<String>, parent_id: Option<String>, timestamp: impl Into<String>, body: Body) -> Record {
        Record { kind: body.kind().type_name().to_owned(), id: id.into(), parent_id, timestamp: timestamp.into(), body }
    }

    /// Reads one line. Only what is no JSON object, or has no string `type` and `id`, is an error.
    pub fn parse(line: &str) -> Result<Record, serde_json::Error> {
        match quick::message(line) {
            Some(record) => Ok(record),
            None => serde_json::from_str(line),
        }
    }

    /// The line without its LF.
    pub fn to_line(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self)
    }
}

impl<'de> Deserialize<'de> for Record {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        let mut fields = Map::deserialize(d)?;
        let mut text = |name: &str| match fields.shift_remove(name) {
            Some(Value::String(s)) => Some(s),
            _ => None,
        };
        let kind = text("type").ok_or_else(|| D::Error::missing_field("type"))?;
        let id = text("id").filter(|s| !s.is_empty()).ok_or_else(|| D::Error::missing_field("id"))?;
        let parent_id = text("parentId");
        let timestamp = text("timestamp").unwrap_or_default();
        let body = Body::from_fields(&kind, fields);
        Ok(Record { kind, id, parent_id, timestamp, body })
    }
}

/// A record as it lies in the file: the bytes pass from file to socket without being printed again.
#[derive(Clone, Debug)]
pub struct Entry(pub Box<RawValue>);

impl Entry {
    /// The entry of a record that was made here.
    pub fn of(record: &Record) -> Result<Entry, serde_json::Error> {
        serde_json::value::to_raw_value(record).map(Entry)
    }

    pub fn json(&self) -> &str {
        self.0.get()
    }

    pub fn record(&self) -> Result<Record, serde_json::Error> {
        Record::parse(self.0.get())
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.0.get() == other.0.get()
    }
}

impl Serialize for Entry {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(s)
    }
}

/// Reads by way of a JSON tree, since entries also come inside tagged and flattened types, where serde cannot
/// hand raw text through. Only clients read entries.
impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(d)?;
        serde_json::value::to_raw_value(&value).map(Entry).map_err(serde::de::Error::custom)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Entry {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Entry".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "object",
            "description": "A record as it lies in the session file (session-format.md), or, above 1 MiB, {type, id, parentId, timestamp, preview, bytes}.",
            "required": ["type", "id"],
            "properties": {
                "type": { "type": "string" },
                "id": { "type": "string" },
                "parentId": { "type": ["string", "null"] },
                "timestamp": { "type": "string" }
            },
            "additionalProperties": true
        })
    }
}

/// A value of the wrong shape counts as absent.
pub(crate) fn lenient<'de, D: Deserializer<'de>, T: serde::de::DeserializeOwned>(d: D) -> Result<Option<T>, D::Error> {
    let value = Value::deserialize(d)?;
    Ok(T::deserialize(value).ok())
}

/// A value of the wrong shape counts as the default.
pub(crate) fn lenient_default<'de, D: Deserializer<'de>, T: serde::de::DeserializeOwned + Default>(
    d: D,
) -> Result<T, D::Error> {
    Ok(lenient(d)?.unwrap_or_default())
}
