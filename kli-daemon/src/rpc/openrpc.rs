//! The reference of the socket as an OpenRPC document, made from the types: what `rpc.discover` answers.
//!
//! Beyond OpenRPC: `x-notifications` (what subscriptions send), `x-events` (each event by its `type`), `x-errors`
//! (each application error by its `data.kind`) and for each method `x-order`. Every method and event has an example
//! from `openrpc/examples.json`, which the tests hold against the types.

mod typescript;

use std::sync::OnceLock;

use kli_protocol::api::{self, Method, Order, Visitor, param_names, visit_methods};
use kli_protocol::{ErrorKind, PROTOCOL_VERSION, decode_params};
use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Map, Value, json};

pub use typescript::typescript;

const EXAMPLES: &str = include_str!("openrpc/examples.json");
const SCHEMAS: &str = "/components/schemas";
/// What parameters call a type that replies have too, with other fields required.
const IN_PARAMS: &str = "Param";

/// How the types call an event that they do not know. The daemon sends none.
const UNKNOWN_EVENT: &str = "unknown";

/// The document. Made once.
pub fn document() -> &'static Value {
    static DOCUMENT: OnceLock<Value> = OnceLock::new();
    DOCUMENT.get_or_init(make)
}

fn make() -> Value {
    let settings = || SchemaSettings::draft2020_12().with(|settings| settings.definitions_path = SCHEMAS.into());
    let mut maker = Maker {
        params: settings().for_deserialize().into_generator(),
        results: settings().for_serialize().into_generator(),
        examples: serde_json::from_str(EXAMPLES).unwrap_or_default(),
        methods: Vec::new(),
    };
    visit_methods(&mut maker);
    let events = maker.events();
    let notifications = maker.notifications();
    let mut document = json!({
        "openrpc": "1.3.2",
        "info": {
            "title": "kli-daemon",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Sessions of AI agents: trees of entries, runs, and what happens in them. \
                JSON-RPC 2.0 over one Unix socket, in newline or Content-Length framing, HTTP POST or WebSocket.",
            "license": { "name": "MIT OR Apache-2.0" },
            "x-protocolVersion": PROTOCOL_VERSION,
        },
        "methods": maker.methods,
        "x-notifications": notifications,
        "x-events": events,
        "x-errors": errors(),
    });
    let mut schemas = maker.results.take_definitions(true);
    for (name, schema) in maker.params.take_definitions(true) {
        match schemas.get(&name) {
            Some(other) if *other != schema => {
                let new = format!("{name}{IN_PARAMS}");
                schemas.insert(new.clone(), schema);
                rename_in_params(&mut document, &mut schemas, &name, &new);
            }
            Some(_) => {}
            None => drop(schemas.insert(name, schema)),
        }
    }
    let variants = schemas.get_mut("Event").and_then(|event| event.get_mut("oneOf")).and_then(Value::as_array_mut);
    if let Some(variants) = variants {
        variants.retain(|variant| variant.pointer("/properties/type/const") != Some(&json!(UNKNOWN_EVENT)));
    }
    // A record is shown as it was written, by whomever.
    let ours = |(name, _): &(&String, &mut Value)| *name != "Entry";
    schemas.iter_mut().filter(ours).for_each(|(_, schema)| absent_is_not_null(schema));
    if let Some(document) = document.as_object_mut() {
        document.insert("components".to_owned(), json!({ "schemas": schemas }));
    }
    document
}

/// Parameters, and types that only they use, mean their own kind of a type.
fn rename_in_params(document: &mut Value, schemas: &mut Map<String, Value>, from: &str, to: &str) {
    let (from, to) = (format!("#{SCHEMAS}/{from}"), format!("#{SCHEMAS}/{to}"));
    for method in document.get_mut("methods").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(params) = method.get_mut("params") {
            replace_refs(params, &from, &to);
        }
    }
    for (name, schema) in schemas.iter_mut() {
        if name.ends_with(IN_PARAMS) {
            replace_refs(schema, &from, &to);
        }
    }
}

/// A field that may be left out is left out when it has no value; null is a value only of those that may not.
fn absent_is_not_null(schema: &mut Value) {
    match schema {
        Value::Array(all) => all.iter_mut().for_each(absent_is_not_null),
        Value::Object(fields) => {
            fields.values_mut().for_each(absent_is_not_null);
            let required = fields.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
            for (name, property) in fields.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten() {
                if !required.iter().any(|required| required == name.as_str()) {
                    without_null(property);
                }
            }
        }
        _ => {}
    }
}

fn without_null(property: &mut Value) {
    for key in ["type", "anyOf"] {
        let Some(Value::Array(kinds)) = property.get_mut(key) else { continue };
        kinds.retain(|kind| kind != "null" && *kind != json!({ "type": "null" }));
        if let [only] = kinds.as_mut_slice() {
            let only = only.take();
            match (key, property.as_object_mut(), only) {
                ("anyOf", Some(fields), Value::Object(only)) => {
                    fields.remove(key);
                    fields.extend(only);
                }
                (_, Some(fields), only) => drop(fields.insert(key.to_owned(), only)),
                _ => {}
            }
        }
    }
}

fn replace_refs(value: &mut Value, from: &str, to: &str) {
    match value {
        Value::String(text) if text == from => *text = to.to_owned(),
        Value::Array(values) => values.iter_mut().for_each(|value| replace_refs(value, from, to)),
        Value::Object(fields) => fields.values_mut().for_each(|value| replace_refs(value, from, to)),
        _ => {}
    }
}

struct Maker {
    params: SchemaGenerator,
    results: SchemaGenerator,
    examples: Map<String, Value>,
    methods: Vec<Value>,
}

impl Visitor for Maker {
    fn method<M: Method>(&mut self) {
        let mut params = <M::Params as schemars::JsonSchema>::json_schema(&mut self.params).to_value();
        let example = self.example("methods", M::NAME).and_then(|example| example.get("params")).cloned();
        // Of a parameter that must be given and may be null the schema says that it may be left out.
        let is_required = |name: &str| {
            let mut without = example.clone().unwrap_or_default();
            let given = without.as_object_mut().is_some_and(|params| params.remove(name).is_some());
            given && decode_params::<M::Params>(Some(&without.to_string())).is_err()
        };
        let described: Vec<Value> = param_names::<M::Params>()
            .iter()
            .map(|name| {
                let mut schema = params.get_mut("properties").and_then(|all| all.get_mut(*name)).map(Value::take);
                let about = schema.as_mut().and_then(Value::as_object_mut).and_then(|s| s.remove("description"));
                let mut param = Map::new();
                param.insert("name".to_owned(), json!(name));
                param.extend(about.map(|about| ("description".to_owned(), about)));
                param.insert("required".to_owned(), json!(is_required(name)));
                param.insert("schema".to_owned(), schema.unwrap_or(json!(true)));
                Value::Object(param)
            })
            .collect();
        let result = self.results.subschema_for::<M::Result>().to_value();
        let mut method = json!({
            "name": M::NAME,
            "description": M::DOC.trim(),
            "paramStructure": "either",
            "params": described,
            "result": { "name": "result", "schema": result },
            "x-order": match M::ORDER { Order::Free => "free", Order::Session => "session" },
        });
        if let (Some(method), Some(example)) = (method.as_object_mut(), self.example("methods", M::NAME)) {
            let params = example.get("params").and_then(Value::as_object).cloned().unwrap_or_default();
            let params: Vec<Value> =
                params.into_iter().map(|(name, value)| json!({ "name": name, "value": value })).collect();
            let result = json!({ "name": "result", "value": example.get("result") });
            let pairing = json!([{ "name": M::NAME, "params": params, "result": result }]);
            method.insert("examples".to_owned(), pairing);
        }
        self.methods.push(method);
    }
}

impl Maker {
    fn example(&self, of: &str, name: &str) -> Option<&Value> {
        self.examples.get(of)?.get(name)
    }

    /// Each event, by its type.
    fn events(&mut self) -> Value {
        let body = <api::EventBody as schemars::JsonSchema>::json_schema(&mut self.results).to_value();
        let variants = body.get("oneOf").and_then(Value::as_array).cloned().unwrap_or_default();
        let described = variants.into_iter().filter_map(|mut schema| {
            let name = schema.pointer("/properties/type/const")?.as_str()?.to_owned();
            if name == UNKNOWN_EVENT {
                return None;
            }
            let about = schema.as_object_mut()?.remove("description").unwrap_or_default();
            let example = self.example("events", &name);
            Some(json!({ "type": name, "description": about, "schema": schema, "example": example }))
        });
        described.collect()
    }

    /// What subscriptions send, and how each is begun and ended.
    fn notifications(&mut self) -> Value {
        let event = self.results.subschema_for::<api::Event>().to_value();
        let call = self.results.subschema_for::<api::ClientToolCall>().to_value();
        json!([
            notification(api::SESSION_EVENT, api::Subscribe::NAME, api::Unsubscribe::NAME, &event),
            notification(api::TOOL_CALL, api::RegisterTools::NAME, api::UnregisterTools::NAME, &call),
        ])
    }
}

fn notification(name: &str, begin: &str, end: &str, result: &Value) -> Value {
    json!({
        "name": name,
        "begin": begin,
        "end": end,
        "params": {
            "type": "object",
            "required": ["subscription", "result"],
            "properties": { "subscription": { "type": "integer", "minimum": 0 }, "result": result },
        },
    })
}

fn errors() -> Value {
    ErrorKind::ALL.iter().map(|kind| json!({ "code": kind.code(), "kind": kind.name() })).collect()
}

#[cfg(test)]
mod tests;
