//! The keys of `config.toml`: what each one holds. One table serves the file, the environment and the flags.

use std::collections::BTreeMap;

use toml::{Table, Value};

use super::ConfigError;
use crate::provider::registry::nearest;

/// What a key holds.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    Text,
    Count,
    /// A number that is not negative.
    Amount,
    Flag,
    Texts,
    One(&'static [&'static str]),
    Table(&'static [(&'static str, Shape)]),
    /// Names of a person's choosing, each with such a value.
    Named(&'static Shape),
    Tables(&'static [(&'static str, Shape)]),
}

pub const ROOT: &[(&str, Shape)] = &[
    ("sessionDir", Shape::Text),
    ("defaultModel", Shape::Text),
    ("defaultMode", Shape::One(&["ask", "auto", "plan"])),
    ("durability", Shape::One(&["os", "turn", "entry"])),
    ("sandbox", Shape::One(&["off", "workspace-write", "read-only"])),
    ("idleExitMs", Shape::Count),
    ("unloadAfterMs", Shape::Count),
    ("maxMemoryBytes", Shape::Count),
    ("maxMessageBytes", Shape::Count),
    ("maxSubscriberBytes", Shape::Count),
    ("maxConnections", Shape::Count),
    ("connectTimeoutMs", Shape::Count),
    ("idleTimeoutMs", Shape::Count),
    (
        "compaction",
        Shape::Table(&[("enabled", Shape::Flag), ("reserveTokens", Shape::Count), ("keepRecentTokens", Shape::Count)]),
    ),
    ("retry", Shape::Table(&[("maxAttempts", Shape::Count), ("baseDelayMs", Shape::Count)])),
    ("approvals", Shape::Table(&[("allow", Shape::Texts), ("deny", Shape::Texts)])),
    ("providers", Shape::Named(&Shape::Table(PROVIDER))),
];

const PROVIDER: &[(&str, Shape)] = &[
    ("api", Shape::One(&["openai-chat", "openai-responses", "anthropic", "google"])),
    ("baseUrl", Shape::Text),
    ("apiKeyEnv", Shape::Text),
    ("apiKeyFile", Shape::Text),
    ("apiKeyCommand", Shape::Texts),
    ("headers", Shape::Named(&Shape::Text)),
    ("idleTimeoutMs", Shape::Count),
    ("connectTimeoutMs", Shape::Count),
    ("models", Shape::Tables(MODEL)),
];

const MODEL: &[(&str, Shape)] = &[
    ("id", Shape::Text),
    ("name", Shape::Text),
    ("contextWindow", Shape::Count),
    ("maxOutput", Shape::Count),
    ("reasoning", Shape::Flag),
    ("reasoningLevels", Shape::Texts),
    ("input", Shape::Texts),
    (
        "cost",
        Shape::Table(&[
            ("input", Shape::Amount),
            ("output", Shape::Amount),
            ("cacheRead", Shape::Amount),
            ("cacheWrite", Shape::Amount),
        ]),
    ),
];

/// What a project may set for itself: nothing that names a server, a key or a command, or allows more.
pub const PROJECT: &[&str] = &[
    "defaultModel",
    "defaultMode",
    "compaction.enabled",
    "compaction.reserveTokens",
    "compaction.keepRecentTokens",
    "approvals.deny",
];

/// Refuses the first key that is not known, and the first value of a wrong type.
pub fn check(set: &Table, known: &[(&str, Shape)], origin: &str) -> Result<(), ConfigError> {
    check_table(set, known, origin, "")
}

fn check_table(set: &Table, known: &[(&str, Shape)], origin: &str, path: &str) -> Result<(), ConfigError> {
    for (name, value) in set {
        let key = join(path, name);
        match known.iter().find(|(known, _)| known == name) {
            Some((_, shape)) => check_value(value, *shape, origin, &key)?,
            None => return Err(unknown_among(origin, &key, name, known)),
        }
    }
    Ok(())
}

fn check_value(value: &Value, shape: Shape, origin: &str, key: &str) -> Result<(), ConfigError> {
    let right = match (shape, value) {
        (Shape::Text, Value::String(_)) | (Shape::Flag, Value::Boolean(_)) => true,
        (Shape::Count, Value::Integer(n)) => *n >= 0,
        (Shape::Amount, Value::Integer(n)) => *n >= 0,
        (Shape::Amount, Value::Float(x)) => x.is_finite() && *x >= 0.0,
        (Shape::Texts, Value::Array(list)) => list.iter().all(Value::is_str),
        (Shape::One(choices), Value::String(text)) => choices.contains(&text.as_str()),
        (Shape::Table(known), Value::Table(inner)) => return check_table(inner, known, origin, key),
        (Shape::Named(shape), Value::Table(inner)) => {
            for (name, value) in inner {
                check_value(value, *shape, origin, &join(key, name))?;
            }
            true
        }
        (Shape::Tables(known), Value::Array(list)) => {
            for (n, value) in list.iter().enumerate() {
                let key = format!("{key}[{n}]");
                match value {
                    Value::Table(inner) => check_table(inner, known, origin, &key)?,
                    other => return Err(wrong(origin, &key, "a table", other)),
                }
            }
            true
        }
        _ => false,
    };
    if right { Ok(()) } else { Err(wrong(origin, key, &expected(shape), value)) }
}

fn expected(shape: Shape) -> String {
    match shape {
        Shape::Text => "a text in quotes".into(),
        Shape::Count => "a whole number, 0 or more".into(),
        Shape::Amount => "a number, 0 or more".into(),
        Shape::Flag => "true or false".into(),
        Shape::Texts => "a list of texts, such as [\"a\", \"b\"]".into(),
        Shape::One(choices) => format!("one of {}", choices.join(", ")),
        Shape::Table(_) | Shape::Named(_) => "a table".into(),
        Shape::Tables(_) => "a list of tables".into(),
    }
}

fn wrong(origin: &str, key: &str, expected: &str, found: &Value) -> ConfigError {
    let found = match found {
        Value::String(text) => format!("\"{}\"", text.chars().take(60).collect::<String>()),
        Value::Integer(n) => n.to_string(),
        Value::Float(x) => x.to_string(),
        Value::Boolean(b) => b.to_string(),
        Value::Array(_) => "a list".into(),
        Value::Table(_) => "a table".into(),
        Value::Datetime(_) => "a date".into(),
    };
    ConfigError::WrongType { origin: origin.into(), key: key.into(), expected: expected.into(), found }
}

/// The error for a key in dotted spelling.
pub fn unknown(origin: &str, key: &str, known: &[(&str, Shape)]) -> ConfigError {
    unknown_among(origin, key, key, known)
}

fn unknown_among(origin: &str, key: &str, name: &str, known: &[(&str, Shape)]) -> ConfigError {
    let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
    let hint = match nearest(name, &names) {
        Some(near) => format!(" Did you mean {near}?"),
        None => format!(" Known here: {}.", names.join(", ")),
    };
    ConfigError::UnknownKey { origin: origin.into(), key: key.into(), hint }
}

/// What a key in dotted spelling holds.
pub fn of_key(key: &str) -> Option<Shape> {
    scalars().into_iter().find(|(known, _)| known == key).map(|(_, shape)| shape)
}

/// All keys that hold one value or a list of texts, providers aside.
pub fn scalars() -> Vec<(String, Shape)> {
    fn collect(known: &[(&str, Shape)], path: &str, out: &mut Vec<(String, Shape)>) {
        for (name, shape) in known {
            let key = join(path, name);
            match shape {
                Shape::Table(inner) => collect(inner, &key, out),
                Shape::Named(_) | Shape::Tables(_) => {}
                _ => out.push((key, *shape)),
            }
        }
    }
    let mut out = Vec::new();
    collect(ROOT, "", &mut out);
    out
}

/// `retry.maxAttempts` → `KLI_RETRY_MAX_ATTEMPTS`
pub fn env_name(key: &str) -> String {
    let mut name = "KLI_".to_owned();
    for c in key.chars() {
        match c {
            '.' => name.push('_'),
            c if c.is_ascii_uppercase() => {
                name.push('_');
                name.push(c);
            }
            c => name.push(c.to_ascii_uppercase()),
        }
    }
    name
}

/// A value from the environment or the command line, where all is text.
pub fn read(shape: Shape, text: &str, origin: &str, key: &str) -> Result<Value, ConfigError> {
    let typed = match shape {
        Shape::Count => text.trim().parse().ok().map(Value::Integer),
        Shape::Amount => text.trim().parse().ok().map(Value::Float),
        Shape::Flag => match text.trim() {
            "true" | "1" | "yes" | "on" => Some(Value::Boolean(true)),
            "false" | "0" | "no" | "off" => Some(Value::Boolean(false)),
            _ => None,
        },
        Shape::Texts => {
            let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
            Some(Value::Array(items.map(|item| Value::String(item.to_owned())).collect()))
        }
        _ => None,
    };
    let value = typed.unwrap_or_else(|| Value::String(text.to_owned()));
    check_value(&value, shape, origin, key)?;
    Ok(value)
}

/// Each value by its dotted key; lists of tables count as one value.
pub fn leaves(set: &Table) -> BTreeMap<String, Value> {
    fn collect(set: &Table, path: &str, out: &mut BTreeMap<String, Value>) {
        for (name, value) in set {
            match value {
                Value::Table(inner) => collect(inner, &join(path, name), out),
                other => {
                    out.insert(join(path, name), other.clone());
                }
            }
        }
    }
    let mut out = BTreeMap::new();
    collect(set, "", &mut out);
    out
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}
