//! Reading the prompt out of a request of any wire format.

use serde_json::Value;

/// How much of a prompt a request shares with the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Bytes that both begin with.
    pub common: usize,
    /// Bytes of the earlier one: when nothing was changed, but only added, it is `common`.
    pub earlier: usize,
}

impl Prefix {
    pub fn of(earlier: &Value, later: &Value) -> Prefix {
        let (earlier, later) = (canonical(earlier), canonical(later));
        let common = earlier.bytes().zip(later.bytes()).take_while(|(a, b)| a == b).count();
        Prefix { common, earlier: earlier.len() }
    }

    /// Whether a prompt cache could keep all of the earlier prompt.
    pub fn is_whole(self) -> bool {
        self.common == self.earlier
    }
}

/// Tools, system prompt and messages in the order in which providers put them before a model.
fn canonical(body: &Value) -> String {
    let mut text = String::new();
    for key in ["tools", "system", "systemInstruction", "system_instruction", "instructions"] {
        if let Some(value) = body.get(key) {
            text.push_str(&format!("{}\n", without_cache_marks(value)));
        }
    }
    for message in messages(body) {
        text.push_str(&format!("{}\n", without_cache_marks(message)));
    }
    text
}

/// Where to cut for the cache moves along with each turn; it is no part of the prompt.
fn without_cache_marks(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(without_cache_marks).collect(),
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(key, _)| *key != "cache_control");
            Value::Object(kept.map(|(key, value)| (key.clone(), without_cache_marks(value))).collect())
        }
        other => other.clone(),
    }
}

/// The messages of a request, whatever they are called.
pub fn messages(body: &Value) -> &[Value] {
    ["messages", "input", "contents"].iter().find_map(|key| body.get(*key)?.as_array()).map_or(&[], Vec::as_slice)
}

/// The texts of all messages but the system prompt.
pub fn texts(body: &Value) -> Vec<String> {
    let mut texts = Vec::new();
    let said = messages(body).iter().filter(|m| !matches!(m["role"].as_str(), Some("system" | "developer")));
    for message in said {
        for key in ["content", "parts", "output", "arguments", "tool_calls"] {
            collect(&message[key], &mut texts);
        }
    }
    texts
}

fn collect(value: &Value, texts: &mut Vec<String>) {
    match value {
        Value::String(text) => texts.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| collect(item, texts)),
        Value::Object(fields) => fields.values().for_each(|field| collect(field, texts)),
        _ => {}
    }
}
