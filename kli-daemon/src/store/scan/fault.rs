//! Why a first line is no header that this version can read.

use serde_json::{Map, Value};

/// A field of the header, and whether its value will do.
type Field = (&'static str, fn(&Value) -> bool, &'static str);

const FIELDS: [Field; 5] = [
    ("id", Value::is_string, "a string"),
    ("version", Value::is_u64, "a whole number"),
    ("timestamp", Value::is_string, "a string"),
    ("cwd", |value| value.is_string() || value.is_null(), "a string"),
    ("base", |value| value.is_object() || value.is_null(), "an object"),
];

/// Of a line that was not read as one.
pub fn header_fault(text: &str) -> String {
    let fields = match serde_json::from_str::<Map<String, Value>>(text) {
        Ok(fields) if is_header(&fields) => fields,
        _ => return "does not begin with a session header".into(),
    };
    let wrong = FIELDS.iter().find(|(name, is_right, _)| fields.get(*name).is_some_and(|value| !is_right(value)));
    match wrong {
        Some((name, _, expected)) => format!("has a session header whose {name} is not {expected}"),
        None if !fields.contains_key("id") => "has a session header without an id".into(),
        None => "has a session header whose base is not {session, entry, at}".into(),
    }
}

fn is_header(fields: &Map<String, Value>) -> bool {
    fields.get("type").and_then(Value::as_str).is_some_and(|kind| kind == "session" || kind == "kli_session")
}
