//! Reading the parameters of a call: by name or by position, null as absent, unknown names refused.

use serde::Deserialize as _;
use serde::de::{DeserializeOwned, Deserializer, Error as _, Visitor};
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::record::Content;
use crate::surrogates::without_lone_surrogates;

/// Parameters where null has a meaning of its own.
const NULLABLE: [&str; 3] = ["entryId", "leafId", "label"];

/// Reads parameters as `T`, or says in one sentence what is wrong with them. Half a surrogate pair, as an editor
/// sends that cuts text between UTF-16 units, is read as U+FFFD.
pub fn decode_params<T: DeserializeOwned>(raw: Option<&str>) -> Result<T, ApiError> {
    // Read once more where it fails, instead of copied wherever it does not.
    T::deserialize(Value::Object(given::<T>(raw)?))
        .map_err(|e| ApiError::invalid_params(given::<T>(raw).map_or(e.to_string(), |given| fault::<T>(given, &e))))
}

/// The parameters by name.
fn given<T: DeserializeOwned>(raw: Option<&str>) -> Result<Map<String, Value>, ApiError> {
    let value = match raw {
        None => Value::Object(Map::new()),
        Some(raw) => serde_json::from_str(&without_lone_surrogates(raw))
            .map_err(|e| ApiError::invalid_params(format!("params: {e}")))?,
    };
    let mut fields = match value {
        Value::Object(fields) => fields,
        Value::Array(values) => by_position::<T>(values)?,
        Value::Null => Map::new(),
        _ => return Err(ApiError::invalid_params("params must be an object or an array")),
    };
    fields.retain(|name, value| !value.is_null() || NULLABLE.contains(&name.as_str()));
    Ok(fields)
}

/// The fault in one sentence, with the parameter that it lies in: given alone, that one is refused in the same words.
fn fault<T: DeserializeOwned>(given: Map<String, Value>, error: &serde_json::Error) -> String {
    let why = error.to_string();
    let names = param_names::<T>();
    let itself = |name: &str, starts: &str| why.starts_with(&format!("{starts} `{name}`"));
    let is_missing = names.iter().any(|name| !given.contains_key(*name) && itself(name, "missing field"));
    let is_unknown = given.keys().any(|name| !names.contains(&name.as_str()) && itself(name, "unknown field"));
    if is_missing || is_unknown {
        return format!("invalid params: {why}");
    }
    let refused = given.into_iter().find_map(|(name, value)| {
        let alone = T::deserialize(Value::Object(Map::from_iter([(name.clone(), value)])));
        alone.err().filter(|e| e.to_string() == why).map(|_| name)
    });
    format!("invalid params: {}{why}", refused.map(|name| format!("{name}: ")).unwrap_or_default())
}

fn by_position<T: DeserializeOwned>(values: Vec<Value>) -> Result<Map<String, Value>, ApiError> {
    let names = param_names::<T>();
    if values.len() > names.len() {
        return Err(ApiError::invalid_params(format!(
            "{} parameters were given, this method takes at most {}: {}",
            values.len(),
            names.len(),
            names.join(", ")
        )));
    }
    Ok(names.iter().map(|n| (*n).to_owned()).zip(values).collect())
}

/// The names of a parameter struct's fields, in their order.
pub fn param_names<T: DeserializeOwned>() -> &'static [&'static str] {
    let mut names: &'static [&'static str] = &[];
    // The derived code hands the list to the deserialiser; this one takes it and refuses to go on.
    let _ = T::deserialize(Names(&mut names));
    names
}

struct Names<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for Names<'_> {
    type Error = serde_json::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Self::Error> {
        *self.0 = fields;
        Err(serde_json::Error::custom("only the names were wanted"))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(serde_json::Error::custom("parameters are structs"))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// For a parameter that may be left out, and where null is a value: absent is `None`, null is `Some(None)`.
pub(super) fn present<'de, D: Deserializer<'de>, T: serde::Deserialize<'de>>(d: D) -> Result<Option<T>, D::Error> {
    T::deserialize(d).map(Some)
}

/// For a parameter that must be given and may be null.
pub(super) fn nullable<'de, D: Deserializer<'de>, T: serde::Deserialize<'de>>(d: D) -> Result<Option<T>, D::Error> {
    <Option<T> as serde::Deserialize>::deserialize(d)
}

/// Content that a caller gives. Files may hold anything; here a block without what belongs to it is refused, and not
/// taken for an empty one. Types that we do not know are kept.
pub(super) fn content<'de, D: Deserializer<'de>>(d: D) -> Result<Content, D::Error> {
    let value = Value::deserialize(d)?;
    let is_content = match &value {
        Value::String(_) => true,
        Value::Array(blocks) => blocks.iter().all(|block| block.is_string() || is_block(block)),
        _ => false,
    };
    if !is_content {
        return Err(D::Error::custom("text, or a list of blocks, each with its `type` and what belongs to it"));
    }
    Content::deserialize(value).map_err(D::Error::custom)
}

/// The same for a parameter that may be left out.
pub(super) fn some_content<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Content>, D::Error> {
    content(d).map(Some)
}

fn is_block(block: &Value) -> bool {
    let has_text = |field| block.get(field).is_some_and(Value::is_string);
    match block.get("type").and_then(Value::as_str) {
        Some("text") => has_text("text"),
        Some("image") => has_text("data") && has_text("mimeType"),
        Some("thinking") => has_text("thinking"),
        Some("toolCall") => has_text("id") && has_text("name") && block.get("arguments").is_some_and(Value::is_object),
        Some(_) => true,
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{
        AppendEntryParams, CreateSessionParams, InitializeParams, NavigateTreeParams, PromptParams, SetLabelParams,
    };

    #[test]
    fn names_come_in_the_order_of_the_contract() {
        assert_eq!(param_names::<SetLabelParams>(), ["sessionId", "entryId", "label"]);
        assert_eq!(param_names::<CreateSessionParams>()[..2], ["workDir", "sessionId"]);
    }

    #[test]
    fn by_position_and_by_name() {
        let a: SetLabelParams = decode_params(Some(r#"["s","e",null]"#)).unwrap();
        let b: SetLabelParams = decode_params(Some(r#"{"sessionId":"s","entryId":"e","label":null}"#)).unwrap();
        assert_eq!(a, b);
    }

    #[test]
    fn null_counts_as_absent_save_where_it_has_a_meaning() {
        let p: PromptParams = decode_params(Some(r#"{"sessionId":"s","text":"x","wait":null,"leafId":null}"#)).unwrap();
        assert_eq!((p.wait, p.leaf_id), (None, Some(None)));
        let p: PromptParams = decode_params(Some(r#"{"sessionId":"s","text":"x"}"#)).unwrap();
        assert_eq!(p.leaf_id, None);
        let p: NavigateTreeParams = decode_params(Some(r#"{"sessionId":"s","entryId":null}"#)).unwrap();
        assert_eq!(p.entry_id, None);
    }

    #[test]
    fn half_a_surrogate_pair_is_read() {
        let p: PromptParams =
            decode_params(Some(r#"{"sessionId":"s","text":"a\ud83d b\ud83d\ude00 \\ud83d"}"#)).unwrap();
        assert_eq!(p.text, "a\u{fffd} b\u{1f600} \\ud83d");
    }

    #[test]
    fn faults_are_named() {
        for (raw, says) in [
            (r#"{"sessionId":"s"}"#, "entryId"),
            (r#"{"sessionId":"s","entryId":"e","colour":1}"#, "colour"),
            (r#"["s","e","p","more","and","still","more","x"]"#, "at most"),
            (r#"3"#, "object or an array"),
            (r#"{"sessionId":"s","entryId":5}"#, "invalid params: entryId: invalid type"),
            (r#"{"sessionId":[],"entryId":"e"}"#, "invalid params: sessionId: invalid type"),
            (r#"{"entryId":"e","position":"under","sessionId":"s"}"#, "invalid params: position: unknown variant"),
            (r#"["s","e",true,7]"#, "invalid params: instructions: invalid type"),
        ] {
            let e = decode_params::<NavigateTreeParams>(Some(raw)).unwrap_err();
            assert_eq!(e.code, crate::error::code::INVALID_PARAMS);
            assert!(e.message.contains(says), "{raw}: {}", e.message);
        }
    }

    #[test]
    fn a_fault_inside_a_parameter_is_named_with_it() {
        for (raw, says) in [
            (r#"{"clientInfo":{}}"#, "invalid params: clientInfo: missing field `name`"),
            (r#"{"protocolVersion":1,"clientInfo":{"name":3}}"#, "invalid params: clientInfo: invalid type"),
            (r#"{"clientInfo":{"name":"a","version":"1"},"protocolVersion":-1}"#, "protocolVersion: invalid value"),
            (r#"{"protocolVersion":1}"#, "invalid params: missing field `clientInfo`"),
        ] {
            let e = decode_params::<InitializeParams>(Some(raw)).unwrap_err();
            assert!(e.message.contains(says), "{raw}: {}", e.message);
        }
    }

    #[test]
    fn content_that_a_caller_gives() {
        let read = |content: &str| {
            let raw = format!(r#"{{"sessionId":"s","customType":"x","content":{content}}}"#);
            decode_params::<AppendEntryParams>(Some(&raw)).map(|params| params.content)
        };
        let fits = [
            r#""""#,
            "[]",
            r#"["a"]"#,
            r#"[{"type":"text","text":""}]"#,
            r#"[{"type":"image","data":"","mimeType":"image/png"}]"#,
            r#"[{"type":"theirs"}]"#,
        ];
        for content in fits {
            assert!(read(content).unwrap().is_some(), "{content}");
        }
        let odd = [
            "5",
            "{}",
            "[5]",
            "[null]",
            r#"[{"text":"no type"}]"#,
            r#"[{"type":5}]"#,
            r#"[{"type":"text"}]"#,
            r#"[{"type":"text","text":null}]"#,
            r#"[{"type":"text","text":["a"]}]"#,
            r#"[{"type":"text","text":"a"},{"type":"image","data":"aGk="}]"#,
            r#"[{"type":"toolCall","id":"c","name":"n","arguments":"{}"}]"#,
            r#"[{"type":"thinking"}]"#,
        ];
        for content in odd {
            let error = read(content).unwrap_err();
            assert!(error.message.contains("content: text, or a list of blocks"), "{content}: {}", error.message);
        }
        assert_eq!(read("null").unwrap(), None);
    }
}
