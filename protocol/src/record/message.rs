//! Messages and their content blocks, in the file's shape, which is also that of `getContext`.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::{lenient, lenient_default};

/// One message of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "role", rename_all = "camelCase")]
pub enum Message {
    User(UserMessage),
    Assistant(AssistantMessage),
    ToolResult(ToolResultMessage),
    /// A command that a person ran in the session, not the model.
    BashExecution(BashExecution),
    /// A role of another program: kept, never sent.
    #[default]
    #[serde(other)]
    Unknown,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct UserMessage {
    #[serde(default, deserialize_with = "lenient_default")]
    pub content: Content,
    /// What the person typed, when `content` is its expansion.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient")]
    pub typed: Option<String>,
    /// Unix ms.
    #[serde(default, deserialize_with = "lenient_default")]
    pub timestamp: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AssistantMessage {
    #[serde(default, deserialize_with = "lenient_default")]
    pub content: Content,
    /// The wire format that it came over, such as `openai-chat`.
    #[serde(default, deserialize_with = "lenient_default")]
    pub api: String,
    #[serde(default, deserialize_with = "lenient_default")]
    pub provider: String,
    #[serde(default, deserialize_with = "lenient_default")]
    pub model: String,
    #[serde(default, deserialize_with = "lenient_default")]
    pub usage: Usage,
    #[serde(default, deserialize_with = "lenient_default")]
    pub stop_reason: StopReason,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient")]
    pub error_message: Option<String>,
    /// Unix ms.
    #[serde(default, deserialize_with = "lenient_default")]
    pub timestamp: u64,
}

/// Why a model stopped, as stored with its message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum StopReason {
    #[default]
    Stop,
    /// The output limit cut it off; its tool calls are not run.
    Length,
    ToolUse,
    Error,
    Aborted,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ToolResultMessage {
    #[serde(default, deserialize_with = "lenient_default")]
    pub tool_call_id: String,
    #[serde(default, deserialize_with = "lenient_default")]
    pub tool_name: String,
    #[serde(default, deserialize_with = "lenient_default")]
    pub content: Content,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
    #[serde(default, deserialize_with = "lenient_default")]
    pub is_error: bool,
    /// Unix ms.
    #[serde(default, deserialize_with = "lenient_default")]
    pub timestamp: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct BashExecution {
    #[serde(default, deserialize_with = "lenient_default")]
    pub command: String,
    #[serde(default, deserialize_with = "lenient_default")]
    pub output: String,
    #[serde(default, deserialize_with = "lenient")]
    pub exit_code: Option<i32>,
    #[serde(default, deserialize_with = "lenient_default")]
    pub cancelled: bool,
    #[serde(default, deserialize_with = "lenient_default")]
    pub truncated: bool,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient")]
    pub full_output_path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient")]
    pub exclude_from_context: Option<bool>,
    /// Unix ms.
    #[serde(default, deserialize_with = "lenient_default")]
    pub timestamp: u64,
}

/// The content of a message: text, or blocks. Null and missing are no blocks.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum Content {
    Text(String),
    Blocks(Vec<Block>),
}

impl Default for Content {
    fn default() -> Content {
        Content::Blocks(Vec::new())
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Ok(match Value::deserialize(d)? {
            Value::String(text) => Content::Text(text),
            Value::Array(blocks) => Content::Blocks(blocks.into_iter().map(Block::from_value).collect()),
            Value::Null => Content::default(),
            other => Content::Blocks(vec![Block::from_value(other)]),
        })
    }
}

impl From<&str> for Content {
    fn from(text: &str) -> Content {
        Content::Text(text.to_owned())
    }
}

impl From<String> for Content {
    fn from(text: String) -> Content {
        Content::Text(text)
    }
}

impl From<Vec<Block>> for Content {
    fn from(blocks: Vec<Block>) -> Content {
        Content::Blocks(blocks)
    }
}

impl Content {
    /// The text of all text blocks, joined by nothing: as it was streamed.
    pub fn text(&self) -> String {
        match self {
            Content::Text(text) => text.clone(),
            Content::Blocks(blocks) => blocks.iter().filter_map(Block::as_text).collect(),
        }
    }

    /// As blocks; a text is one text block.
    pub fn into_blocks(self) -> Vec<Block> {
        match self {
            Content::Text(text) => vec![Block::text(text)],
            Content::Blocks(blocks) => blocks,
        }
    }

    /// The blocks, none for a text.
    pub fn blocks(&self) -> &[Block] {
        match self {
            Content::Text(_) => &[],
            Content::Blocks(blocks) => blocks,
        }
    }

    pub fn is_blank(&self) -> bool {
        match self {
            Content::Text(text) => text.trim().is_empty(),
            Content::Blocks(blocks) => blocks.iter().all(|b| matches!(b, Block::Text(t) if t.text.trim().is_empty())),
        }
    }

    pub fn tool_calls(&self) -> impl Iterator<Item = &ToolCallBlock> {
        self.blocks().iter().filter_map(|b| match b {
            Block::ToolCall(call) => Some(call),
            _ => None,
        })
    }
}

/// One block of content.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum Block {
    Text(TextBlock),
    Image(ImageBlock),
    Thinking(ThinkingBlock),
    ToolCall(ToolCallBlock),
    /// A block of another program, as it was: kept, never sent.
    #[serde(untagged)]
    Unknown(Value),
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct TextBlock {
    #[serde(default, deserialize_with = "lenient_default")]
    pub text: String,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient")]
    pub text_signature: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ImageBlock {
    /// Base64.
    #[serde(default, deserialize_with = "lenient_default")]
    pub data: String,
    #[serde(default, deserialize_with = "lenient_default")]
    pub mime_type: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ThinkingBlock {
    #[serde(default, deserialize_with = "lenient_default")]
    pub thinking: String,
    /// What the provider wants back, byte for byte.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient")]
    pub thinking_signature: Option<String>,
    /// The provider hid the text; the signature holds it.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient")]
    pub redacted: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ToolCallBlock {
    #[serde(default, deserialize_with = "lenient_default")]
    pub id: String,
    #[serde(default, deserialize_with = "lenient_default")]
    pub name: String,
    #[serde(default, deserialize_with = "lenient_default")]
    pub arguments: Map<String, Value>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient")]
    pub thought_signature: Option<String>,
}

impl Block {
    pub fn text(text: impl Into<String>) -> Block {
        Block::Text(TextBlock { text: text.into(), text_signature: None })
    }

    pub fn as_text(&self) -> Option<&str> {
        match self {
            Block::Text(block) => Some(&block.text),
            _ => None,
        }
    }

    /// Reads a block; one that fits no known type is kept as it is.
    pub fn from_value(value: Value) -> Block {
        fn read<T: for<'a> Deserialize<'a>>(value: Value, make: fn(T) -> Block) -> Block {
            match T::deserialize(&value) {
                Ok(t) => make(t),
                Err(_) => Block::Unknown(value),
            }
        }
        match value.get("type").and_then(Value::as_str) {
            Some("text") => read(value, Block::Text),
            Some("image") => read(value, Block::Image),
            Some("thinking") => read(value, Block::Thinking),
            Some("toolCall") => read(value, Block::ToolCall),
            _ => match value {
                Value::String(text) => Block::text(text),
                other => Block::Unknown(other),
            },
        }
    }
}

impl<'de> Deserialize<'de> for Block {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Value::deserialize(d).map(Block::from_value)
    }
}

/// Tokens and their price.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    #[serde(default, deserialize_with = "lenient_default")]
    pub input: u64,
    #[serde(default, deserialize_with = "lenient_default")]
    pub output: u64,
    #[serde(default, deserialize_with = "lenient_default")]
    pub cache_read: u64,
    #[serde(default, deserialize_with = "lenient_default")]
    pub cache_write: u64,
    #[serde(default, deserialize_with = "lenient_default")]
    pub total_tokens: u64,
    #[serde(default, deserialize_with = "lenient_default")]
    pub cost: Cost,
}

/// US dollars.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Cost {
    #[serde(default, deserialize_with = "lenient_default")]
    pub input: f64,
    #[serde(default, deserialize_with = "lenient_default")]
    pub output: f64,
    #[serde(default, deserialize_with = "lenient_default")]
    pub cache_read: f64,
    #[serde(default, deserialize_with = "lenient_default")]
    pub cache_write: f64,
    #[serde(default, deserialize_with = "lenient_default")]
    pub total: f64,
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Usage) {
        self.input = self.input.saturating_add(other.input);
        self.output = self.output.saturating_add(other.output);
        self.cache_read = self.cache_read.saturating_add(other.cache_read);
        self.cache_write = self.cache_write.saturating_add(other.cache_write);
        self.total_tokens = self.total_tokens.saturating_add(other.total_tokens);
        self.cost.input += other.cost.input;
        self.cost.output += other.cost.output;
        self.cost.cache_read += other.cost.cache_read;
        self.cost.cache_write += other.cost.cache_write;
        self.cost.total += other.cost.total;
    }
}
