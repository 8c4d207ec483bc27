use std::path::{Path, PathBuf};

use kli_protocol::decode_params;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::*;

fn examples() -> Value {
    serde_json::from_str(EXAMPLES).unwrap()
}

/// Reading a text as a type and writing it again loses and adds nothing.
fn same<T: DeserializeOwned + Serialize>(name: &str, value: &Value, read: impl FnOnce(&str) -> T) {
    let text = value.to_string();
    assert_eq!(serde_json::to_value(read(&text)).unwrap(), *value, "{name}");
}

#[test]
fn every_method_has_an_example_of_its_types() {
    struct Check(Value);
    impl Visitor for Check {
        fn method<M: Method>(&mut self) {
            let example = self.0["methods"].as_object_mut().unwrap().remove(M::NAME);
            let example = example.unwrap_or_else(|| panic!("{} has no example", M::NAME));
            same(M::NAME, &example["params"], |text| {
                decode_params::<M::Params>(Some(text)).unwrap_or_else(|e| panic!("{}: {e}", M::NAME))
            });
            same(M::NAME, &example["result"], |text| {
                serde_json::from_str::<M::Result>(text).unwrap_or_else(|e| panic!("{}: {e}", M::NAME))
            });
        }
    }
    let mut check = Check(examples());
    visit_methods(&mut check);
    assert_eq!(check.0["methods"], serde_json::json!({}), "examples of no method");
}

#[test]
fn every_event_has_an_example_of_its_type() {
    let document = document();
    let examples = examples();
    let events = document["x-events"].as_array().unwrap();
    for event in events {
        let name = event["type"].as_str().unwrap();
        let example = examples["events"].get(name).unwrap_or_else(|| panic!("{name} has no example"));
        same(name, example, |text| {
            let event: api::Event = serde_json::from_str(text).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(event.body.type_name(), name);
            event
        });
    }
    assert_eq!(events.len(), examples["events"].as_object().unwrap().len(), "examples of no event");
}

#[test]
fn every_reference_of_the_document_leads_somewhere() {
    fn walk(document: &Value, value: &Value) {
        match value {
            Value::Object(fields) => {
                if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
                    assert!(document.pointer(reference.trim_start_matches('#')).is_some(), "{reference}");
                }
                fields.values().for_each(|value| walk(document, value));
            }
            Value::Array(values) => values.iter().for_each(|value| walk(document, value)),
            _ => {}
        }
    }
    walk(document(), document());
}

/// The first parameters of a method, `!` after those that must be given.
#[track_caller]
fn check_params(method: &str, want: &[&str]) {
    let methods = document()["methods"].as_array().unwrap();
    let params = methods.iter().find(|described| described["name"] == method).unwrap()["params"].as_array().unwrap();
    let got: Vec<String> = params
        .iter()
        .take(want.len())
        .map(|param| format!("{}{}", param["name"].as_str().unwrap(), if param["required"] == true { "!" } else { "" }))
        .collect();
    assert_eq!(got, want, "{method}");
}

#[test]
fn parameters_come_in_the_order_of_the_contract() {
    check_params("prompt", &["sessionId!", "text!", "images"]);
    check_params("navigateTree", &["sessionId!", "entryId!", "summarize"]);
    check_params("setLabel", &["sessionId!", "entryId!", "label!"]);
    check_params("subscribe", &["sessionId", "after", "types"]);
    check_params("createSession", &["workDir!", "sessionId"]);
}

/// A line for each method.
fn table() -> String {
    let mut out = String::from("<!-- Generated. UPDATE=1 cargo test -p kli-daemon openrpc rewrites it. -->\n\n");
    out += "| method | params | what it does |\n|---|---|---|\n";
    for method in document()["methods"].as_array().unwrap() {
        let params: Vec<String> = method["params"]
            .as_array()
            .unwrap()
            .iter()
            .map(|param| {
                let optional = if param["required"] == true { "" } else { "?" };
                format!("`{}{optional}`", param["name"].as_str().unwrap())
            })
            .collect();
        let about = method["description"].as_str().unwrap();
        out += &format!("| `{}` | {} | {about} |\n", method["name"].as_str().unwrap(), params.join(", "));
    }
    out
}

#[track_caller]
fn committed(name: &str, text: &str) {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../protocol/generated").join(name);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
    }
    let old = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(old == text, "protocol/generated/{name} is out of date; UPDATE=1 cargo test -p kli-daemon openrpc");
}

#[test]
fn what_is_committed_is_what_the_types_say() {
    committed("openrpc.json", &format!("{}\n", serde_json::to_string_pretty(document()).unwrap()));
    committed("methods.md", &table());
    committed("kli.d.ts", &typescript(document()));
}
