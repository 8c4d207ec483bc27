//! What a subscriber sees.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Approval, ContextUse, Mode, Queue, RunError, RunStop, SessionInfo, SessionState};
use crate::record::{Block, Content, Entry, Usage};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SubscribeParams {
    /// Absent: what happens to all sessions, without deltas, snapshot and `after`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The events after this number instead of a snapshot, while the daemon has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// Only events of these types (`snapshot` and `lagged` always come).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub types: Option<Vec<String>>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UnsubscribeParams {
    pub subscription: u64,
}

/// The names of notifications, and of the methods that begin and end each subscription.
pub const SESSION_EVENT: &str = "sessionEvent";
pub const TOOL_CALL: &str = "toolCall";

/// One event: `result` of a `sessionEvent` notification.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// Rises with each event of a session, is never given twice. Absent: from the daemon itself, or news of a
    /// session that is not open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// RFC 3339, UTC, ms.
    pub time: String,
    /// The run that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    #[serde(flatten)]
    pub body: EventBody,
}

/// What happened, by `type`. Clients pass over types that they do not know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum EventBody {
    /// The state at `seq`.
    Snapshot {
        session: Box<SessionState>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run: Option<RunSnapshot>,
    },
    RunStart {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        entry_id: Option<String>,
    },
    RunEnd {
        stop_reason: RunStop,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<RunError>,
        usage: Usage,
    },
    TurnStart {},
    TurnEnd {
        usage: Usage,
        context: ContextUse,
    },
    MessageStart {
        message_id: String,
    },
    MessageEnd {
        message_id: String,
        /// False: dropped, a retry follows.
        stored: bool,
    },
    TextDelta {
        message_id: String,
        index: u32,
        delta: String,
    },
    ThinkingDelta {
        message_id: String,
        index: u32,
        delta: String,
    },
    ToolCallDelta {
        message_id: String,
        index: u32,
        tool_call_id: String,
        tool_name: String,
        /// JSON text.
        delta: String,
    },
    ToolStart {
        tool_call_id: String,
        tool_name: String,
        title: String,
        arguments: Map<String, Value>,
        locations: Vec<Location>,
    },
    ToolUpdate {
        tool_call_id: String,
        delta: String,
    },
    ToolEnd {
        tool_call_id: String,
        is_error: bool,
        content: Content,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        details: Option<Value>,
    },
    ApprovalRequested {
        approval: Approval,
    },
    ApprovalResolved {
        approval_id: String,
        /// `allow`, `allowForSession`, `deny` or `aborted`.
        decision: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
    EntryAppended {
        entry: Entry,
    },
    LeafMoved {
        leaf_id: Option<String>,
        from_id: Option<String>,
    },
    LabelChanged {
        entry_id: String,
        label: Option<String>,
    },
    QueueChanged {
        queue: Queue,
    },
    CompactionStart {
        reason: CompactionReason,
    },
    CompactionEnd {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        entry_id: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<RunError>,
    },
    RetryScheduled {
        attempt: u32,
        max_attempts: u32,
        delay_ms: u64,
        reason: String,
    },
    ModelChanged {
        provider: String,
        model_id: String,
    },
    OptionChanged {
        option_id: String,
        value: Value,
    },
    ModeChanged {
        mode: Mode,
    },
    SessionCreated {
        session: SessionInfo,
    },
    SessionInfoChanged {
        session: SessionInfo,
    },
    SessionDeleted {},
    /// Events were passed over; a `snapshot` follows.
    Lagged {},
    Warning {
        kind: String,
        message: String,
    },
    #[serde(other)]
    Unknown,
}

impl EventBody {
    /// The event's `type`.
    pub fn type_name(&self) -> &'static str {
        match self {
            EventBody::Snapshot { .. } => "snapshot",
            EventBody::RunStart { .. } => "runStart",
            EventBody::RunEnd { .. } => "runEnd",
            EventBody::TurnStart {} => "turnStart",
            EventBody::TurnEnd { .. } => "turnEnd",
            EventBody::MessageStart { .. } => "messageStart",
            EventBody::MessageEnd { .. } => "messageEnd",
            EventBody::TextDelta { .. } => "textDelta",
            EventBody::ThinkingDelta { .. } => "thinkingDelta",
            EventBody::ToolCallDelta { .. } => "toolCallDelta",
            EventBody::ToolStart { .. } => "toolStart",
            EventBody::ToolUpdate { .. } => "toolUpdate",
            EventBody::ToolEnd { .. } => "toolEnd",
            EventBody::ApprovalRequested { .. } => "approvalRequested",
            EventBody::ApprovalResolved { .. } => "approvalResolved",
            EventBody::EntryAppended { .. } => "entryAppended",
            EventBody::LeafMoved { .. } => "leafMoved",
            EventBody::LabelChanged { .. } => "labelChanged",
            EventBody::QueueChanged { .. } => "queueChanged",
            EventBody::CompactionStart { .. } => "compactionStart",
            EventBody::CompactionEnd { .. } => "compactionEnd",
            EventBody::RetryScheduled { .. } => "retryScheduled",
            EventBody::ModelChanged { .. } => "modelChanged",
            EventBody::OptionChanged { .. } => "optionChanged",
            EventBody::ModeChanged { .. } => "modeChanged",
            EventBody::SessionCreated { .. } => "sessionCreated",
            EventBody::SessionInfoChanged { .. } => "sessionInfoChanged",
            EventBody::SessionDeleted {} => "sessionDeleted",
            EventBody::Lagged {} => "lagged",
            EventBody::Warning { .. } => "warning",
            EventBody::Unknown => "unknown",
        }
    }

    /// Deltas may be merged, and are not sent to those who watch all sessions.
    pub fn is_delta(&self) -> bool {
        matches!(
            self,
            EventBody::TextDelta { .. }
                | EventBody::ThinkingDelta { .. }
                | EventBody::ToolCallDelta { .. }
                | EventBody::ToolUpdate { .. }
        )
    }
}

/// What a run has brought so far that is no entry yet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RunSnapshot {
    pub run_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    /// Each block at its index. A tool call that is still being written has `arguments` `{}` and its JSON text so
    /// far in `partialArguments`.
    pub content: Vec<Block>,
    pub tools: Vec<ToolSnapshot>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ToolSnapshot {
    pub tool_call_id: String,
    pub tool_name: String,
    pub title: String,
    pub arguments: Map<String, Value>,
    pub output: String,
}

/// A place that a tool call touches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Location {
    pub path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum CompactionReason {
    #[default]
    Manual,
    Threshold,
    Overflow,
    Branch,
}
