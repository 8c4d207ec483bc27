//! As much of JSON Schema as the daemon's own document uses, and stricter in one thing: a field that no schema names
//! is a fault too.

use std::collections::BTreeSet;

use serde_json::Value;

/// A document with schemas, which may refer to each other.
pub struct Schemas<'a>(pub &'a Value);

#[derive(Default)]
struct Names {
    known: BTreeSet<String>,
    /// Some part of the schema names fields.
    some: bool,
    /// Some part allows any.
    any: bool,
}

impl Schemas<'_> {
    /// What is wrong with a value, each with its place.
    pub fn problems(&self, schema: &Value, value: &Value) -> Vec<String> {
        let mut problems = Vec::new();
        self.check(schema, value, "$", &mut problems);
        problems
    }

    fn check(&self, schema: &Value, value: &Value, at: &str, problems: &mut Vec<String>) {
        let mut names = Names::default();
        self.part(schema, value, at, problems, &mut names);
        for name in value.as_object().into_iter().flat_map(|fields| fields.keys()) {
            if names.some && !names.any && !names.known.contains(name) {
                problems.push(format!("{at}: `{name}` is in no schema"));
            }
        }
    }

    /// One part of the schema of a value; others may say more of the same value.
    fn part(&self, schema: &Value, value: &Value, at: &str, problems: &mut Vec<String>, names: &mut Names) {
        let Some(rules) = schema.as_object() else {
            names.any |= *schema == true;
            return;
        };
        for (rule, says) in rules {
            match rule.as_str() {
                "$ref" => {
                    let path = says.as_str().unwrap_or_default().trim_start_matches('#');
                    let target = self.0.pointer(path).unwrap_or_else(|| panic!("{says} leads nowhere"));
                    self.part(target, value, at, problems, names);
                }
                "allOf" => list(says).for_each(|part| self.part(part, value, at, problems, names)),
                "anyOf" | "oneOf" => self.one_of(says, value, at, problems, names),
                "type" => {
                    let fits = match says {
                        Value::Array(types) => types.iter().any(|kind| is_a(value, kind)),
                        kind => is_a(value, kind),
                    };
                    fault(fits, at, || format!("is no {says}: {value}"), problems);
                }
                "const" => fault(value == says, at, || format!("is not {says}: {value}"), problems),
                "enum" => {
                    fault(list(says).any(|one| one == value), at, || format!("is none of {says}: {value}"), problems)
                }
                "minimum" => {
                    let fits = value.as_f64().is_none_or(|number| says.as_f64().is_none_or(|least| number >= least));
                    fault(fits, at, || format!("is below {says}: {value}"), problems);
                }
                "required" => {
                    for name in list(says).filter_map(Value::as_str) {
                        let there = value.as_object().is_none_or(|fields| fields.contains_key(name));
                        fault(there, at, || format!("has no `{name}`"), problems);
                    }
                }
                "properties" => {
                    names.some = true;
                    for (name, schema) in says.as_object().into_iter().flatten() {
                        names.known.insert(name.clone());
                        if let Some(value) = value.get(name) {
                            self.check(schema, value, &format!("{at}.{name}"), problems);
                        }
                    }
                }
                "additionalProperties" => {
                    names.any |= *says != false;
                    names.some |= *says == false;
                    let named = rules.get("properties");
                    for (name, value) in value.as_object().into_iter().flatten() {
                        if named.is_none_or(|named| named.get(name).is_none()) {
                            self.check(says, value, &format!("{at}.{name}"), problems);
                        }
                    }
                }
                "items" => {
                    for (n, value) in list(value).enumerate() {
                        self.check(says, value, &format!("{at}[{n}]"), problems);
                    }
                }
                "description" | "title" | "format" | "default" => {}
                other => panic!("this test does not know the rule {other} of {schema}"),
            }
        }
    }

    /// The one of the value's own `type`, else the first that fits; where none does, what the closest one lacks.
    fn one_of(&self, parts: &Value, value: &Value, at: &str, problems: &mut Vec<String>, names: &mut Names) {
        let mut closest: Option<Vec<String>> = None;
        let own = |part: &&Value| value["type"].is_string() && part["properties"]["type"]["const"] == value["type"];
        if let Some(part) = list(parts).find(own) {
            return self.part(part, value, at, problems, names);
        }
        for part in list(parts) {
            let (mut faults, mut known) = (Vec::new(), Names::default());
            self.part(part, value, at, &mut faults, &mut known);
            if faults.is_empty() {
                names.known.append(&mut known.known);
                names.some |= known.some;
                names.any |= known.any;
                return;
            }
            if closest.as_ref().is_none_or(|closest| faults.len() < closest.len()) {
                closest = Some(faults);
            }
        }
        problems.extend(closest.unwrap_or_default());
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn fault(fits: bool, at: &str, what: impl FnOnce() -> String, problems: &mut Vec<String>) {
    if !fits {
        problems.push(format!("{at} {}", what()));
    }
}

fn is_a(value: &Value, kind: &Value) -> bool {
    match kind.as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        Some("number") => value.is_number(),
        Some("integer") => value.is_i64() || value.is_u64(),
        _ => panic!("no type: {kind}"),
    }
}
