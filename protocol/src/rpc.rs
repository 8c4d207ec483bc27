//! JSON-RPC 2.0 messages.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::error::ApiError;

/// A request or a notification, with its parameters not yet read.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request<'a> {
    pub jsonrpc: Version,
    /// Absent: a notification, which is carried out and gets no reply. Null is an id.
    #[serde(default, borrow, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub id: Option<&'a RawValue>,
    #[serde(borrow)]
    pub method: std::borrow::Cow<'a, str>,
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
