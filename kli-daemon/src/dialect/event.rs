//! A server event as JSON, read with the patience that servers need.

use serde_json::Value;

use super::{Failure, failure};
use crate::sse;
use crate::tree::json::without_lone_surrogates;

/// The JSON of an event; none: it holds nothing, or the mark that ends a stream. One that is called `error` is a
/// failure, whatever it looks like: half a reply must not pass for a whole one.
pub fn read(event: &sse::Event) -> Result<Option<Value>, Failure> {
    let data = event.data.trim();
    if data.is_empty() || data == DONE {
        return Ok(None);
    }
    let read = json(data);
    if event.name == "error" {
        return Err(failure::of_error_event(data, read.as_ref().ok()));
    }
    read.map(Some).map_err(|e| failure::not_json(data, &e))
}

/// Whether the stream says that it is over.
pub fn is_done(event: &sse::Event) -> bool {
    event.data.trim() == DONE
}

/// Half a surrogate pair, which a model can write, is read as U+FFFD: asking again would bring it again.
pub fn json(text: &str) -> serde_json::Result<Value> {
    serde_json::from_str(&without_lone_surrogates(text))
}

const DONE: &str = "[DONE]";

#[cfg(test)]
mod tests {
    use super::*;
    use kli_protocol::api::RunErrorKind as Kind;
    use serde_json::json;

    #[test]
    fn what_an_event_holds() {
        fn check(name: &str, data: &str, expected: Result<Option<Value>, (Kind, bool)>) {
            let read = read(&sse::Event { name: name.into(), data: data.into() });
            assert_eq!(read.map_err(|f| (f.kind, f.retryable)), expected, "{name} {data}");
        }
        check("", " \n", Ok(None));
        check("error", "[DONE]", Ok(None));
        check("", "{\"a\":1}", Ok(Some(json!({ "a": 1 }))));
        check("", r#"{"a":"x\ud83dy"}"#, Ok(Some(json!({ "a": "x\u{fffd}y" }))));
        check("", r#"{"a":"\ud83d\ude00"}"#, Ok(Some(json!({ "a": "\u{1f600}" }))));
        check("", "{nope", Err((Kind::Network, true)));
        check("error", "{}", Err((Kind::Overloaded, true)));
        check("error", r#"{"code":400,"message":"bad tool schema"}"#, Err((Kind::BadRequest, false)));
        check("error", r#"{"error":{"type":"overloaded_error","message":"x"}}"#, Err((Kind::Overloaded, true)));
        check("error", "prompt is too long", Err((Kind::ContextOverflow, false)));
        check("error", "busy", Err((Kind::Overloaded, true)));
    }
}
