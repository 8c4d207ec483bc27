//! JSON text of requests: built as a tree that borrows its texts, then written in one pass.
//!
//! A request repeats the whole conversation, so it is mostly long texts that are copied: `serde_json::Value` would
//! copy each twice more and allocate every key.

use std::borrow::Cow;

use serde_json::{Map, Value};

#[derive(Clone, Debug, PartialEq)]
pub enum Json<'a> {
    Bool(bool),
    Number(u64),
    Text(Cow<'a, str>),
    /// As a message or a schema holds it.
    Value(Cow<'a, Value>),
    Map(&'a Map<String, Value>),
    List(Vec<Json<'a>>),
    Object(Fields<'a>),
}

pub type Fields<'a> = Vec<(&'static str, Json<'a>)>;

/// `object! { "type" => "text", "text" => text }`
macro_rules! object {
    ($($key:expr => $value:expr),* $(,)?) => {
        $crate::dialect::json::Json::Object(vec![$(($key, $crate::dialect::json::Json::from($value))),*])
    };
}
pub(super) use object;

impl<'a> Json<'a> {
    pub fn null() -> Json<'a> {
        Json::Value(Cow::Owned(Value::Null))
    }

    pub fn get(&self, name: &str) -> Option<&Json<'a>> {
        match self {
            Json::Object(fields) => fields.iter().find(|(key, _)| *key == name).map(|(_, value)| value),
            _ => None,
        }
    }

    pub fn get_mut(&mut self, name: &str) -> Option<&mut Json<'a>> {
        match self {
            Json::Object(fields) => fields.iter_mut().find(|(key, _)| *key == name).map(|(_, value)| value),
            _ => None,
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Json::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Adds a field to an object.
    pub fn set(&mut self, name: &'static str, value: impl Into<Json<'a>>) {
        if let Json::Object(fields) = self {
            fields.push((name, value.into()));
        }
    }

    pub fn list_mut(&mut self) -> Option<&mut Vec<Json<'a>>> {
        match self {
            Json::List(items) => Some(items),
            _ => None,
        }
    }

    pub fn text(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.size());
        self.write(&mut out);
        out
    }

    /// About how long the text will be.
    fn size(&self) -> usize {
        match self {
            Json::Bool(_) | Json::Number(_) => 8,
            Json::Text(text) => text.len() + text.len() / 16 + 2,
            Json::Value(_) | Json::Map(_) => 64,
            Json::List(items) => items.iter().map(|item| item.size() + 1).sum::<usize>() + 2,
            Json::Object(fields) => fields.iter().map(|(key, value)| key.len() + value.size() + 4).sum::<usize>() + 2,
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Json::Bool(yes) => out.extend_from_slice(if *yes { b"true" } else { b"false" }),
            Json::Number(number) => out.extend_from_slice(number.to_string().as_bytes()),
            Json::Text(text) => write_text(text, out),
            // Values and maps are always written: their keys are texts.
            Json::Value(value) => serde_json::to_writer(out, value).unwrap_or_default(),
            Json::Map(map) => serde_json::to_writer(out, map).unwrap_or_default(),
            Json::List(items) => {
                out.push(b'[');
                for (n, item) in items.iter().enumerate() {
                    if n > 0 {
                        out.push(b',');
                    }
                    item.write(out);
                }
                out.push(b']');
            }
            Json::Object(fields) => {
                out.push(b'{');
                for (n, (key, value)) in fields.iter().enumerate() {
                    if n > 0 {
                        out.push(b',');
                    }
                    write_text(key, out);
                    out.push(b':');
                    value.write(out);
                }
                out.push(b'}');
            }
        }
    }
}

impl<'a> From<&'a str> for Json<'a> {
    fn from(text: &'a str) -> Json<'a> {
        Json::Text(Cow::Borrowed(text))
    }
}

impl From<String> for Json<'_> {
    fn from(text: String) -> Self {
        Json::Text(Cow::Owned(text))
    }
}

impl<'a> From<Cow<'a, str>> for Json<'a> {
    fn from(text: Cow<'a, str>) -> Json<'a> {
        Json::Text(text)
    }
}

impl From<bool> for Json<'_> {
    fn from(yes: bool) -> Self {
        Json::Bool(yes)
    }
}

impl From<u64> for Json<'_> {
    fn from(number: u64) -> Self {
        Json::Number(number)
    }
}

impl From<Value> for Json<'_> {
    fn from(value: Value) -> Self {
        Json::Value(Cow::Owned(value))
    }
}

impl<'a> From<&'a Value> for Json<'a> {
    fn from(value: &'a Value) -> Json<'a> {
        Json::Value(Cow::Borrowed(value))
    }
}

impl<'a> From<&'a Map<String, Value>> for Json<'a> {
    fn from(map: &'a Map<String, Value>) -> Json<'a> {
        Json::Map(map)
    }
}

impl<'a> From<Vec<Json<'a>>> for Json<'a> {
    fn from(items: Vec<Json<'a>>) -> Json<'a> {
        Json::List(items)
    }
}

impl<'a> FromIterator<Json<'a>> for Json<'a> {
    fn from_iter<I: IntoIterator<Item = Json<'a>>>(items: I) -> Json<'a> {
        Json::List(items.into_iter().collect())
    }
}

fn write_text(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    let mut rest = text.as_bytes();
    loop {
        let (plain, odd) = rest.split_at(plain_length(rest));
        out.extend_from_slice(plain);
        let Some((byte, after)) = odd.split_first() else { break };
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0x08 => out.extend_from_slice(b"\\b"),
            0x0c => out.extend_from_slice(b"\\f"),
            control => out.extend_from_slice(format!("\\u{control:04x}").as_bytes()),
        }
        rest = after;
    }
    out.push(b'"');
}

/// How many bytes stand as they are. Block by block first, which the compiler turns into a few wide instructions.
fn plain_length(bytes: &[u8]) -> usize {
    const BLOCK: usize = 32;
    let is_odd = |byte: u8| byte < 0x20 || byte == b'"' || byte == b'\\';
    let blocks = bytes.chunks_exact(BLOCK);
    let plain = blocks.take_while(|block| !block.iter().fold(false, |odd, byte| odd | is_odd(*byte))).count() * BLOCK;
    let rest = bytes.get(plain..).unwrap_or_default();
    plain + rest.iter().position(|byte| is_odd(*byte)).unwrap_or(rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn written_as_serde_writes_it() {
        let every: String = (0..=0x17f).filter_map(char::from_u32).collect();
        let long = format!("{}\n{}\"😀", "x".repeat(70), "y".repeat(33));
        let map = json!({ "k\"": [1, 2.5, null], "n": {} });
        let tree = object! {
            "text" => every.as_str(),
            "list" => vec![Json::from(long.clone()), Json::from(true), Json::from(7u64), Json::null()],
            "value" => &map,
            "map" => map.as_object().unwrap(),
            "empty" => vec![],
        };
        let same = json!({ "text": every, "list": [long, true, 7, null], "value": map, "map": map, "empty": [] });
        assert_eq!(String::from_utf8(tree.text()).unwrap(), same.to_string());
    }
}
