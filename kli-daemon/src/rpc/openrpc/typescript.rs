//! TypeScript types of the socket, printed from the OpenRPC document.

use std::fmt::Write;

use serde_json::{Map, Value};

/// All types, the methods with their parameters and results, and the notifications.
pub fn typescript(document: &Value) -> String {
    let mut out = String::from(
        "// Generated from the types of kli-protocol. UPDATE=1 cargo test -p kli-daemon openrpc rewrites it.\n",
    );
    for (name, schema) in object(document.pointer("/components/schemas")) {
        comment(&mut out, "", schema.get("description"));
        let _ = writeln!(out, "export type {name} = {};", of(&schema, ""));
    }
    out.push_str("\n/** Every method: its parameters by name, and its result. */\nexport interface Methods {\n");
    for method in array(document.get("methods")) {
        let (name, result) = (text(method.get("name")), method.pointer("/result/schema").unwrap_or(&Value::Null));
        comment(&mut out, "  ", method.get("description"));
        let mut params = String::new();
        for param in array(method.get("params")) {
            let optional = if param.get("required") == Some(&Value::Bool(true)) { "" } else { "?" };
            let kind = of(param.get("schema").unwrap_or(&Value::Null), "    ");
            let _ = write!(params, " {}{optional}: {kind};", text(param.get("name")));
        }
        let _ = writeln!(out, "  \"{name}\": {{ params: {{{params} }}; result: {} }};", of(result, "  "));
    }
    out.push_str("}\n\n/** Every notification: its parameters. */\nexport interface Notifications {\n");
    for notification in array(document.get("x-notifications")) {
        let params = notification.get("params").unwrap_or(&Value::Null);
        let _ = writeln!(out, "  \"{}\": {};", text(notification.get("name")), of(params, "  "));
    }
    out.push_str("}\n\n/** `data.kind` of the application errors, and their codes. */\nexport const errorCodes = {\n");
    for error in array(document.get("x-errors")) {
        let _ = writeln!(out, "  {}: {},", text(error.get("kind")), error.get("code").unwrap_or(&Value::Null));
    }
    out.push_str("} as const;\n");
    out
}

/// The type that a schema describes.
fn of(schema: &Value, indent: &str) -> String {
    let Some(schema) = schema.as_object() else { return "unknown".to_owned() };
    if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
        let name = reference.rsplit('/').next().unwrap_or("unknown").to_owned();
        // A reference beside fields of its own: a flattened type.
        return if schema.contains_key("properties") { format!("{name} & {}", fields(schema, indent)) } else { name };
    }
    if let Some(value) = schema.get("const") {
        return value.to_string();
    }
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        return union(values.iter().map(Value::to_string));
    }
    for (key, separator) in [("oneOf", " | "), ("anyOf", " | "), ("allOf", " & ")] {
        if let Some(variants) = schema.get(key).and_then(Value::as_array) {
            let all: Vec<String> = variants.iter().map(|variant| of(variant, indent)).collect();
            let all = if separator == " | " { union(all.into_iter()) } else { all.join(separator) };
            return if schema.contains_key("properties") {
                format!("{} & ({all})", fields(schema, indent))
            } else {
                all
            };
        }
    }
    match schema.get("type") {
        Some(Value::Array(kinds)) => union(kinds.iter().map(|kind| {
            let mut one = schema.clone();
            one.insert("type".to_owned(), kind.clone());
            of(&Value::Object(one), indent)
        })),
        Some(Value::String(kind)) => match kind.as_str() {
            "string" | "boolean" | "null" => kind.clone(),
            "integer" | "number" => "number".to_owned(),
            "array" => format!("Array<{}>", of(schema.get("items").unwrap_or(&Value::Null), indent)),
            _ => fields(schema, indent),
        },
        _ if schema.contains_key("properties") => fields(schema, indent),
        _ => "unknown".to_owned(),
    }
}

fn fields(schema: &Map<String, Value>, indent: &str) -> String {
    let properties = object(schema.get("properties"));
    let rest = schema.get("additionalProperties").filter(|rest| **rest != Value::Bool(false));
    if properties.is_empty() {
        return match rest {
            Some(rest) => format!("Record<string, {}>", of(rest, indent)),
            None if schema.contains_key("additionalProperties") => "Record<string, never>".to_owned(),
            None => "Record<string, unknown>".to_owned(),
        };
    }
    let required: Vec<&str> = array(schema.get("required")).iter().filter_map(Value::as_str).collect();
    let deeper = format!("{indent}  ");
    let mut out = String::from("{\n");
    for (name, property) in properties {
        comment(&mut out, &deeper, property.get("description"));
        let optional = if required.contains(&name.as_str()) { "" } else { "?" };
        let _ = writeln!(out, "{deeper}{name}{optional}: {};", of(&property, &deeper));
    }
    out.push_str(indent);
    out.push('}');
    out
}

fn union(kinds: impl Iterator<Item = String>) -> String {
    let mut all: Vec<String> = Vec::new();
    for kind in kinds {
        if !all.contains(&kind) {
            all.push(kind);
        }
    }
    all.join(" | ")
}

fn comment(out: &mut String, indent: &str, about: Option<&Value>) {
    if let Some(about) = about.and_then(Value::as_str).filter(|about| !about.is_empty()) {
        let _ = writeln!(out, "{indent}/** {} */", about.split_whitespace().collect::<Vec<_>>().join(" "));
    }
}

fn object(value: Option<&Value>) -> Map<String, Value> {
    value.and_then(Value::as_object).cloned().unwrap_or_default()
}

fn array(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn text(value: Option<&Value>) -> &str {
    value.and_then(Value::as_str).unwrap_or_default()
}
