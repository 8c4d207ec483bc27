//! Argument text of a tool call, as models really write it, into a JSON object.

use serde_json::{Map, Value};

use crate::tree::json::without_lone_surrogates;

/// Under this key lies the argument text of a call that was no JSON object: the agent answers such a call with
/// an error, the model sees what it wrote, and the request stays valid JSON.
pub const INVALID_ARGUMENTS: &str = "__invalidArguments";

/// How many characters of a broken argument text are kept.
const KEPT: usize = 4_000;

/// What to tell the model of a call whose arguments could not be read; none: they could.
pub fn invalid_arguments(arguments: &Map<String, Value>) -> Option<String> {
    let raw = arguments.get(INVALID_ARGUMENTS)?.as_str()?;
    let problem = match serde_json::from_str::<Value>(raw) {
        Ok(value) => format!("they are {}, not a JSON object", kind_of(&value)),
        Err(e) => format!("they are no valid JSON ({e})"),
    };
    Some(format!("The arguments of this call were not understood: {problem}. Nothing was done. They were: {raw}"))
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// Whether `text` is one whole JSON object.
pub fn is_whole(text: &str) -> bool {
    text.trim_start().starts_with('{') && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

/// The arguments that `text` stands for: nothing and `null` are `{}`; an object written as a JSON string, or
/// with raw control characters in its strings, is read as it was meant; half a surrogate pair is U+FFFD.
pub fn parse(text: &str) -> Map<String, Value> {
    let text = without_lone_surrogates(text);
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return Map::new();
    }
    match serde_json::from_str::<Value>(trimmed) {
        Ok(Value::Object(map)) => return map,
        Ok(Value::Null) => return Map::new(),
        Ok(Value::String(inner)) => {
            if let Ok(Value::Object(map)) = serde_json::from_str(&inner) {
                return map;
            }
        }
        Ok(_) => {}
        Err(_) => {
            if let Some(map) = said_again(trimmed) {
                return map;
            }
            if let Ok(Value::Object(map)) = serde_json::from_str(&escape_controls(trimmed)) {
                return map;
            }
        }
    }
    let kept: String = trimmed.chars().take(KEPT).collect();
    Map::from_iter([(INVALID_ARGUMENTS.to_owned(), Value::String(kept))])
}

/// The one object that a text of several holds: some servers begin each call with `{}`, or say all of it again at
/// the end.
fn said_again(text: &str) -> Option<Map<String, Value>> {
    let mut object: Option<Map<String, Value>> = None;
    for next in serde_json::Deserializer::from_str(text).into_iter::<Map<String, Value>>() {
        let next = next.ok()?;
        match &object {
            Some(known) if !known.is_empty() && *known != next => return None,
            _ => object = Some(next),
        }
    }
    object
}

/// Raw control characters inside strings, which some models write, as escapes.
fn escape_controls(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    let (mut in_string, mut escaped) = (false, false);
    for c in text.chars() {
        if in_string && c < ' ' {
            out.push_str(&format!("\\u{:04x}", u32::from(c)));
            escaped = false;
            continue;
        }
        match c {
            '"' if !escaped => in_string = !in_string,
            _ => {}
        }
        escaped = c == '\\' && !escaped;
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn arguments() {
        fn check(text: &str, expected: Value) {
            assert_eq!(Value::Object(parse(text)), expected, "{text}");
        }
        check("", json!({}));
        check("  \n", json!({}));
        check("null", json!({}));
        check("{\"a\":1} ", json!({"a": 1}));
        check("\"{\\\"a\\\":1}\"", json!({"a": 1}));
        check("{\"a\":\"x\ny\\\"\tz\"}", json!({"a": "x\ny\"\tz"}));
        check("{}{\"a\":1}", json!({"a": 1}));
        check("{\"a\":1}\n{\"a\":1}", json!({"a": 1}));
        check("{\"a\":1}{\"a\":2}", json!({"__invalidArguments": "{\"a\":1}{\"a\":2}"}));
        check("{\"a\":1}{\"a\":", json!({"__invalidArguments": "{\"a\":1}{\"a\":"}));
        check(r#"{"a":"x\ud99c"}"#, json!({"a": "x\u{fffd}"}));
        check(r#"{"a":"\udc00\ud83d\ude00\\ud83d"}"#, json!({"a": "\u{fffd}\u{1f600}\\ud83d"}));
        check("{\"command\": ls}", json!({"__invalidArguments": "{\"command\": ls}"}));
        check("\"just a string\"", json!({"__invalidArguments": "\"just a string\""}));
        check("[1]", json!({"__invalidArguments": "[1]"}));
    }

    #[test]
    fn the_sentence_says_what_is_wrong() {
        fn check(text: &str, expected: Option<&str>) {
            let said = invalid_arguments(&parse(text));
            assert_eq!(said.is_some(), expected.is_some(), "{text}");
            assert!(said.unwrap_or_default().contains(expected.unwrap_or_default()), "{text}");
        }
        check("{\"command\": ls}", Some("no valid JSON"));
        check("\"just a string\"", Some("a string, not a JSON object"));
        check("{}", None);
    }
}
