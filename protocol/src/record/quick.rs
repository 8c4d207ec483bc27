//! Messages in the shape in which nearly all of them are written, read in one pass. Anything else — a field of the
//! wrong shape, a block of another program, another kind of record — is left to the lenient way, which gives the same
//! for these and takes many times as long.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::{
    AssistantMessage, Block, Body, Content, Cost, ImageBlock, Message, MessageBody, Record, StopReason, TextBlock,
    ThinkingBlock, ToolCallBlock, ToolResultMessage, Usage, UserMessage,
};

/// None: not in that shape.
pub(super) fn message(line: &str) -> Option<Record> {
    let record: Line = serde_json::from_str(line).ok()?;
    if record.kind != "message" || record.id.is_empty() {
        return None;
    }
    let said = record.message;
    let (content, timestamp) = (said.content.0, said.timestamp.unwrap_or_default());
    let message = match &*said.role {
        "user" => Message::User(UserMessage { content, typed: said.typed, timestamp }),
        "assistant" => Message::Assistant(AssistantMessage {
            content,
            api: said.api.unwrap_or_default(),
            provider: said.provider.unwrap_or_default(),
            model: said.model.unwrap_or_default(),
            usage: said.usage.map(Usage::from).unwrap_or_default(),
            stop_reason: said.stop_reason.unwrap_or_default(),
            error_message: said.error_message,
            timestamp,
        }),
        "toolResult" => Message::ToolResult(ToolResultMessage {
            tool_call_id: said.tool_call_id.unwrap_or_default(),
            tool_name: said.tool_name.unwrap_or_default(),
            content,
            details: said.details,
            is_error: said.is_error.unwrap_or_default(),
            timestamp,
        }),
        _ => return None,
    };
    Some(Record {
        kind: "message".to_owned(),
        id: record.id,
        parent_id: record.parent_id,
        timestamp: record.timestamp.unwrap_or_default(),
        body: Body::Message(MessageBody { message, idempotency_key: record.idempotency_key }),
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    id: String,
    parent_id: Option<String>,
    timestamp: Option<String>,
    #[serde(borrow)]
    message: Said<'a>,
    idempotency_key: Option<String>,
}

/// The fields of all roles.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Said<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    content: Blocks,
    typed: Option<String>,
    api: Option<String>,
    provider: Option<String>,
    model: Option<String>,
    usage: Option<Tokens>,
    stop_reason: Option<StopReason>,
    error_message: Option<String>,
    tool_call_id: Option<String>,
    tool_name: Option<String>,
    /// Null is a value here: kept, so that it is for the lenient way.
    #[serde(default, deserialize_with = "no_null")]
    details: Option<Value>,
    is_error: Option<bool>,
    timestamp: Option<u64>,
}

fn no_null<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Value>, D::Error> {
    match Value::deserialize(d)? {
        Value::Null => Err(serde::de::Error::custom("null")),
        value => Ok(Some(value)),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Tokens {
    #[serde(default)]
    input: u64,
    #[serde(default)]
    output: u64,
    #[serde(default)]
    cache_read: u64,
    #[serde(default)]
    cache_write: u64,
    #[serde(default)]
    total_tokens: u64,
    #[serde(default)]
    cost: Price,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Price {
    input: f64,
    output: f64,
    cache_read: f64,
    cache_write: f64,
    total: f64,
}

impl From<Tokens> for Usage {
    fn from(tokens: Tokens) -> Usage {
        let Tokens { input, output, cache_read, cache_write, total_tokens, cost } = tokens;
        let Price { input: priced, output: given, cache_read: read, cache_write: written, total } = cost;
        let cost = Cost { input: priced, output: given, cache_read: read, cache_write: written, total };
        Usage { input, output, cache_read, cache_write, total_tokens, cost }
    }
}

struct Blocks(Content);

impl<'de> Deserialize<'de> for Blocks {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = Content;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text or blocks")
            }

            fn visit_str<E>(self, text: &str) -> Result<Content, E> {
                Ok(Content::Text(text.to_owned()))
            }

            fn visit_string<E>(self, text: String) -> Result<Content, E> {
                Ok(Content::Text(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut blocks: A) -> Result<Content, A::Error> {
                let mut all = Vec::new();
                while let Some(block) = blocks.next_element::<Any>()? {
                    all.push(block.typed().ok_or_else(|| serde::de::Error::custom("another block"))?);
                }
                Ok(Content::Blocks(all))
            }
        }

        d.deserialize_any(Either).map(Blocks)
    }
}

/// The fields of all blocks.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Any<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    text: Option<String>,
    text_signature: Option<String>,
    data: Option<String>,
    mime_type: Option<String>,
    thinking: Option<String>,
    thinking_signature: Option<String>,
    redacted: Option<bool>,
    id: Option<String>,
    name: Option<String>,
    arguments: Option<Map<String, Value>>,
    thought_signature: Option<String>,
}

impl Any<'_> {
    fn typed(self) -> Option<Block> {
        Some(match &*self.kind {
            "text" => {
                Block::Text(TextBlock { text: self.text.unwrap_or_default(), text_signature: self.text_signature })
            }
            "image" => Block::Image(ImageBlock {
                data: self.data.unwrap_or_default(),
                mime_type: self.mime_type.unwrap_or_default(),
            }),
            "thinking" => Block::Thinking(ThinkingBlock {
                thinking: self.thinking.unwrap_or_default(),
                thinking_signature: self.thinking_signature,
                redacted: self.redacted,
            }),
            "toolCall" => Block::ToolCall(ToolCallBlock {
                id: self.id.unwrap_or_default(),
                name: self.name.unwrap_or_default(),
                arguments: self.arguments.unwrap_or_default(),
                thought_signature: self.thought_signature,
            }),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lenient(line: &str) -> Option<Record> {
        serde_json::from_str(line).ok()
    }

    #[track_caller]
    fn check(message: &str, is_quick: bool) {
        let line = format!(r#"{{"type":"message","id":"a","parentId":null,"timestamp":"t","message":{message}}}"#);
        let quick = super::message(&line);
        assert_eq!(quick.is_some(), is_quick, "{line}");
        if quick.is_some() {
            assert_eq!(quick, lenient(&line), "{line}");
        }
        assert_eq!(Record::parse(&line).ok(), lenient(&line), "{line}");
    }

    #[test]
    fn the_usual_shapes_are_read_as_the_lenient_way_reads_them() {
        check(r#"{"role":"user","content":"hi \"there\" \u00e9 \ud83d\ude00","typed":"/x","timestamp":5}"#, true);
        check(r#"{"role":"user","content":[],"other":{"a":[1,2]}}"#, true);
        check(
            r#"{"role":"user","content":[{"type":"text","text":"a","more":1},{"type":"image","data":"QQ==","mimeType":"image/png"}]}"#,
            true,
        );
        check(
            r#"{"role":"assistant","content":[{"type":"thinking","thinking":"hm","thinkingSignature":"s","redacted":true},{"type":"text","text":null},{"type":"toolCall","id":"c","name":"bash","arguments":{"b":{"c":[1.5,null]},"a":-1},"thoughtSignature":"t"}],"api":"x","provider":"p","model":"m","usage":{"input":1,"output":2,"cacheRead":3,"cacheWrite":4,"totalTokens":10,"cost":{"input":0.25,"output":1,"total":1e-7}},"stopReason":"toolUse","errorMessage":null,"timestamp":1767225600000}"#,
            true,
        );
        check(
            r#"{"role":"toolResult","toolCallId":"c","toolName":"read","content":[{"type":"text","text":"x"}],"details":{"a":[{}]},"isError":true}"#,
            true,
        );
    }

    /// A number that was written is the number that is read.
    #[test]
    fn costs_keep_their_last_digit() {
        for total in [0.002962, 0.0029620000000000002, 0.1 + 0.2, 1e-7, 123_456.789] {
            let line = format!(
                r#"{{"type":"message","id":"a","message":{{"role":"assistant","content":[],"usage":{{"cost":{{"total":{total}}}}}}}}}"#
            );
            let Some(Body::Message(MessageBody { message: Message::Assistant(reply), .. })) =
                super::message(&line).map(|record| record.body)
            else {
                panic!("{line}")
            };
            assert_eq!(reply.usage.cost.total, total);
        }
    }

    #[test]
    fn odd_shapes_are_left_to_the_lenient_way() {
        for message in [
            r#"{"role":"user","content":null}"#,
            r#"{"role":"user"}"#,
            r#"{"role":"user","content":{"type":"text","text":"x"}}"#,
            r#"{"role":"user","content":["x"]}"#,
            r#"{"role":"user","content":[{"type":"video","url":"x"}]}"#,
            r#"{"role":"user","content":[{"text":"no type"}]}"#,
            r#"{"role":"user","content":"x","timestamp":"now"}"#,
            r#"{"role":"user","content":"x","timestamp":1.5}"#,
            r#"{"role":"user","content":"x","content":"y"}"#,
            r#"{"role":"assistant","content":[],"stopReason":"weird"}"#,
            r#"{"role":"assistant","content":[],"usage":{"input":-1}}"#,
            r#"{"role":"assistant","content":[],"usage":7}"#,
            r#"{"role":"assistant","content":[{"type":"toolCall","id":"c","name":"n","arguments":"{}"}]}"#,
            r#"{"role":"toolResult","content":[],"details":null}"#,
            r#"{"role":"bashExecution","command":"ls","output":"","exitCode":0,"cancelled":false,"truncated":false}"#,
            r#"{"role":"system","content":"x"}"#,
            r#"{"content":"x"}"#,
            r#""text""#,
        ] {
            check(message, false);
        }
        for line in [
            r#"{"type":"message","id":"","message":{"role":"user","content":"x"}}"#,
            r#"{"type":"message","id":7,"message":{"role":"user","content":"x"}}"#,
            r#"{"type":"custom","id":"a","message":{"role":"user","content":"x"}}"#,
            r#"{"type":"message","id":"a","parentId":7,"message":{"role":"user","content":"x"}}"#,
        ] {
            assert_eq!(super::message(line), None, "{line}");
            assert_eq!(Record::parse(line).ok(), lenient(line), "{line}");
        }
    }
}
