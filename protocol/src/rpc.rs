//! JSON-RPC 2.0 messages.

use std::borrow::Cow;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::error::{ApiError, code};

/// A request or a notification, with its parameters not yet read.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request<'a> {
    pub jsonrpc: Version,
    /// Absent: a notification, which is carried out and gets no reply. Null is an id.
    #[serde(default, borrow, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub id: Option<&'a RawValue>,
    #[serde(borrow)]
    pub method: Cow<'a, str>,
    #[serde(default, borrow, skip_serializing_if = "Option::is_none")]
    pub params: Option<&'a RawValue>,
}

fn present<'de: 'a, 'a, D: serde::Deserializer<'de>>(d: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(d).map(Some)
}

/// The string `2.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Version {
    #[serde(rename = "2.0")]
    V2,
}

/// What a server received.
#[derive(Debug)]
pub enum Parsed<'a> {
    Call(Request<'a>),
    /// Its members, each for [`parse_call`]. May be empty, which is an invalid request.
    Batch(Vec<&'a RawValue>),
    Invalid(Invalid<'a>),
}

/// What is no request, and the reply that it gets.
#[derive(Debug)]
pub struct Invalid<'a> {
    /// Absent: the reply's id is null.
    pub id: Option<&'a RawValue>,
    pub error: ApiError,
}

/// Reads what a server received.
pub fn parse(message: &[u8]) -> Parsed<'_> {
    let text = match std::str::from_utf8(message) {
        Ok(text) => text,
        Err(e) => return Parsed::Invalid(unparsable(format!("the message is not UTF-8: {e}"))),
    };
    if text.trim_ascii_start().starts_with('[') {
        return match serde_json::from_str(text) {
            Ok(members) => Parsed::Batch(members),
            Err(e) => Parsed::Invalid(unparsable(format!("the message is not JSON: {e}"))),
        };
    }
    match parse_call(text) {
        Ok(request) => Parsed::Call(request),
        Err(invalid) => Parsed::Invalid(invalid),
    }
}

/// Reads one request or notification.
pub fn parse_call(text: &str) -> Result<Request<'_>, Invalid<'_>> {
    // The derived code would read an array too, as the fields in their order.
    let is_object = text.trim_ascii_start().starts_with('{');
    let fault = match serde_json::from_str::<Request>(text) {
        _ if !is_object => "it must be an object".to_owned(),
        Ok(request) if request.id.is_none_or(|id| is_id(id.get())) => return Ok(request),
        Ok(_) => "the id must be a string, a number or null".to_owned(),
        Err(e) => e.to_string(),
    };
    if let Err(e) = serde_json::from_str::<IgnoredAny>(text) {
        return Err(unparsable(format!("the message is not JSON: {e}")));
    }
    let id = serde_json::from_str::<IdOnly>(text).ok().filter(|_| is_object).and_then(|message| message.id);
    let error = ApiError { code: code::INVALID_REQUEST, message: format!("invalid request: {fault}"), data: None };
    Err(Invalid { id: id.filter(|id| is_id(id.get())), error })
}

/// What can still be read of a bad request.
#[derive(Deserialize)]
struct IdOnly<'a> {
    #[serde(default, borrow)]
    id: Option<&'a RawValue>,
}

fn is_id(raw: &str) -> bool {
    matches!(raw.as_bytes().first(), Some(b'"' | b'-' | b'0'..=b'9' | b'n'))
}

fn unparsable(message: String) -> Invalid<'static> {
    Invalid { id: None, error: ApiError { code: code::PARSE_ERROR, message, data: None } }
}

/// What a client receives: a reply, or a notification.
#[derive(Debug, Deserialize)]
pub struct Incoming {
    #[serde(default)]
    pub id: Option<serde_json::Value>,
    #[serde(default)]
    pub method: Option<String>,
    #[serde(default)]
    pub params: Option<Box<RawValue>>,
    #[serde(default)]
    pub result: Option<Box<RawValue>>,
    #[serde(default)]
    pub error: Option<ApiError>,
}

/// `params` of a notification of a subscription.
#[derive(Debug, Deserialize)]
pub struct SubscriptionParams<T> {
    pub subscription: u64,
    pub result: T,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(message: &[u8], want: &str) {
        let got = match parse(message) {
            Parsed::Call(call) => format!("{} {}", call.method, call.id.map_or("-", RawValue::get)),
            Parsed::Batch(members) => format!("batch of {}", members.len()),
            Parsed::Invalid(invalid) => format!("{} {}", invalid.error.code, invalid.id.map_or("-", RawValue::get)),
        };
        assert_eq!(got, want, "{}", String::from_utf8_lossy(message));
    }

    #[test]
    fn what_a_message_is() {
        check(br#"{"jsonrpc":"2.0","method":"m","id":1}"#, "m 1");
        check(br#"{"jsonrpc":"2.0","method":"m","id":-1.50e2}"#, "m -1.50e2");
        check(br#"{"jsonrpc":"2.0","method":"\u006d","id":"\u0061"}"#, r#"m "\u0061""#);
        check(br#"{"jsonrpc":"2.0","method":"m","id":null}"#, "m null");
        check(br#"{"jsonrpc":"2.0","method":"m","extra":[]}"#, "m -");
        check(br#" [] "#, "batch of 0");
        check(br#"[1,{}]"#, "batch of 2");
        check(br#"[1,"#, "-32700 -");
        check(br#"{"jsonrpc":"2.0","method":"m""#, "-32700 -");
        check(br#"{"jsonrpc":"2.0","method":"m","id":1} x"#, "-32700 -");
        check(b"{\"jsonrpc\":\"2.0\",\"method\":\"\xff\"}", "-32700 -");
        check(b"", "-32700 -");
        check(br#"1"#, "-32600 -");
        check(br#"{}"#, "-32600 -");
        check(br#"{"id":3}"#, "-32600 3");
        check(br#"{"jsonrpc":"1.0","method":"m","id":3}"#, "-32600 3");
        check(br#"{"jsonrpc":2.0,"method":"m","id":3}"#, "-32600 3");
        check(br#"{"jsonrpc":"2.0","method":1,"id":"x"}"#, "-32600 \"x\"");
        check(br#"{"jsonrpc":"2.0","method":"m","id":{}}"#, "-32600 -");
        check(br#"{"jsonrpc":"2.0","method":"m","id":true}"#, "-32600 -");
        check(br#"{"jsonrpc":"2.0","method":"m","method":"n","id":1}"#, "-32600 1");
        check(br#"{"jsonrpc":"2.0","result":1,"id":1}"#, "-32600 1");
    }

    #[test]
    fn a_member_of_a_batch_is_an_object() {
        for member in [r#"["2.0",1,"m",[]]"#, r#"["2.0",null,"m",{}]"#, "[1]", "[]", "[[]]", r#""m""#, "null"] {
            let invalid = parse_call(member).unwrap_err();
            assert_eq!((invalid.error.code, invalid.id.map(RawValue::get)), (code::INVALID_REQUEST, None), "{member}");
        }
    }

    #[test]
    fn depth_is_no_matter() {
        let deep = format!(
            r#"{{"jsonrpc":"2.0","method":"m","id":1,"params":[{}{}]}}"#,
            "[".repeat(100_000),
            "]".repeat(100_000)
        );
        check(deep.as_bytes(), "m 1");
    }
}
